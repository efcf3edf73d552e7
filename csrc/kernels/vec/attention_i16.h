/* Attention with keys and values in int16 codes: exact sums of products of pairs. attention_vec.h includes this file. Queries and
 * softmax weights are converted to codes too: a query once per call, weights for each row and tile. */
#ifndef ANE_KERNELS_VEC_ATTENTION_I16_H
#define ANE_KERNELS_VEC_ATTENTION_I16_H

/* As code_scale of attention_ref.c. */
static float code_scale(const float *x, int64_t n, float most, float *inverse) {
  vf m = v_set(0);
  for (int64_t i = 0; i < n; i += VL) m = v_max(v_abs(v_load_n(x + i, n - i)), m);
  const float amax = v_largest(m);
  *inverse = amax > ane_att_least(most) && amax < __builtin_inff() ? most / amax : 0.0f;
  return *inverse > 0 ? amax / most : 0.0f;
}

/* Converts n floats to codes. May write up to VL - 1 elements past the end. */
static void codes_of(const float *x, int64_t n, float most, float inverse, int16_t *to) {
  for (int64_t i = 0; i < n; i += VL)
    v_store_i16(to + i, v_max(v_set(-most), v_min(v_set(most), v_mul(v_load_n(x + i, n - i), v_set(inverse)))));
}

static int16_t *query_codes(const struct work *w, int64_t row) { return (int16_t *)(void *)w->q + row * w->pad; }

/* Converts a query to codes, in row `row` of scratch. */
static void code_query(const struct work *w, int64_t row, const float *q) {
  const float most = ane_att_most(w->a->kv);
  float inverse;
  w->q_scale[row] = code_scale(q, w->hd, most, &inverse) * w->a->scale;
  codes_of(q, w->hd, most, inverse, query_codes(w, row));
}

/* What is done with the sums of a block. SCORES: multiplies by scale[x], then by row[r], and keeps the maximum of each lane of a
 * row. PLAIN and VALUES: multiply by row[r]; otherwise as in struct ending. */
struct code_ending {
  const float *row, *scale;
  vf *largest;
  const float *keep, *add;
  intptr_t ahead;
};

/* c[r][x] = sum over k of a[r][2 k .. 2 k + 1] times the pair b[k][x], for `rows` rows and `vecs` vectors of x. */
V_FN void pair_block(const int rows, const int vecs, const int end, int64_t n, const int16_t *a, int64_t lda, const int16_t *b,
                     int64_t ldb, float *c, int64_t ldc, const struct code_ending *e) {
  vi sum[ANE_ATT_PANEL][MOST_VECS];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) sum[r][x] = vi_zero();
  for (int64_t k = 0; k < n; k++, b += ldb) {
    vpairs w[MOST_VECS];
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) w[x] = v_load_pairs(b + 2 * x * VL);
    if (rows <= 4)
#pragma GCC unroll 8
      for (int x = 0; x < vecs; x += 16 / VL)
        __builtin_prefetch((const char *)((uintptr_t)(b + 2 * x * VL) + (uintptr_t)e->ahead));
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const vpairs f = v_set_pair(a + r * lda + 2 * k);
#pragma GCC unroll 8
      for (int x = 0; x < vecs; x++) sum[r][x] = v_dot(sum[r][x], w[x], f);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    vf m = end == SCORES && e->largest ? e->largest[r] : v_set(0);
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) {
      float *at = c + r * ldc + x * VL;
      vf v = v_float(sum[r][x]);
      if (end == SCORES) v = v_mul(v, v_load(e->scale + x * VL));
      v = v_mul(v, v_set(e->row[r]));
      if (end == SCORES) m = v_max(v, m);
      if (end == VALUES) v = v_fma(v, v_set(e->add[r]), v_mul(v_load(at), v_set(e->keep[r])));
      v_store(at, v);
    }
    if (end == SCORES && e->largest) e->largest[r] = m;
  }
}

typedef void (*pair_block_fn)(int rows, int64_t n, const int16_t *a, int64_t lda, const int16_t *b, int64_t ldb, float *c,
                              int64_t ldc, const struct code_ending *e);

#define PAIR_BLOCK(rows, vecs, end)                                                                                              \
  case rows:                                                                                                                     \
    if (vecs <= VECS_FOR(rows)) pair_block(rows, vecs, end, n, a, lda, b, ldb, c, ldc, e);                                       \
    break;
#define PAIR_BLOCKS(name, vecs, end)                                                                                             \
  static void name##_##vecs(int r, int64_t n, const int16_t *a, int64_t lda, const int16_t *b, int64_t ldb, float *c,            \
                            int64_t ldc, const struct code_ending *e) {                                                          \
    switch (r) {                                                                                                                 \
      PAIR_BLOCK(1, vecs, end)                                                                                                   \
      PAIR_BLOCK(2, vecs, end)                                                                                                   \
      PAIR_BLOCK(3, vecs, end)                                                                                                   \
      PAIR_BLOCK(4, vecs, end)                                                                                                   \
      PAIR_BLOCK(5, vecs, end)                                                                                                   \
      PAIR_BLOCK(6, vecs, end)                                                                                                   \
    }                                                                                                                            \
  }
#define PAIR_BLOCKS_OF(name, end)                                                                                                \
  PAIR_BLOCKS(name, 1, end)                                                                                                      \
  PAIR_BLOCKS(name, 2, end)                                                                                                      \
  PAIR_BLOCKS(name, 3, end)                                                                                                      \
  PAIR_BLOCKS(name, 4, end)                                                                                                      \
  PAIR_BLOCKS(name, 5, end)                                                                                                      \
  PAIR_BLOCKS(name, 6, end)                                                                                                      \
  PAIR_BLOCKS(name, 7, end)                                                                                                      \
  PAIR_BLOCKS(name, 8, end)                                                                                                      \
  static const pair_block_fn name[MOST_VECS] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8};
PAIR_BLOCKS_OF(pair_scores, SCORES)
PAIR_BLOCKS_OF(pair_values, PLAIN)
PAIR_BLOCKS_OF(pair_values_joined, VALUES)

/* Computes the product for any number of vectors, in blocks of nearly equal size. */
static void pair_product(const pair_block_fn *fn, int rows, int64_t vecs, int64_t n, const int16_t *a, int64_t lda,
                         const int16_t *b, int64_t ldb, float *c, int64_t ldc, const struct code_ending *e) {
  const int64_t parts = (vecs + VECS_FOR(rows) - 1) / VECS_FOR(rows);
  struct code_ending part = *e;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t from = vecs * i / parts, to = vecs * (i + 1) / parts;
    if (e->scale) part.scale = e->scale + from * VL;
    fn[to - from - 1](rows, n, a, lda, b + 2 * from * VL, ldb, c + from * VL, ldc, &part);
  }
}

/* Computes the scaled products of rows of query codes with the keys of a panel. q: the place of the first row in scratch.
 * largest: receives the maximum of each lane of a row; may be NULL. */
static void code_scores(int rows, const struct work *w, struct panel *p, const float *q, vf *largest) {
  const int64_t row = (q - w->q) / w->pad;
  const struct code_ending e = {.row = w->q_scale + row, .scale = w->k_scale + p->from, .largest = largest, .ahead = w->ahead_k};
  pair_product(pair_scores, rows, (p->to - p->from) / VL, (w->hd + 1) / 2, query_codes(w, row), w->pad,
               (const int16_t *)w->k + 2 * p->from, 2 * ANE_TILE, p->s + p->from, ANE_TILE, &e);
}

/* Converts the weights in s to codes, and sets the factors of the sums of values. most: the maximum weights of each lane. */
V_FN void weight_codes(const int rows, const vf *most, struct panel *p) {
  float largest[16] = {0}, inverse[16];
  v_largest_each(most, rows, largest);
  for (int r = 0; r < rows; r += VL) {
    const vf x = v_load(largest + r), top = v_set(ANE_ATT_WEIGHT), least = v_set(ane_att_least(ANE_ATT_WEIGHT)), zero = v_set(0);
    v_store(inverse + r, v_select_lt(least, x, v_div(top, x), zero));
    v_store(p->o_scale + r, v_select_lt(least, x, v_div(x, top), zero));
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    const vf by = v_set(inverse[r]);
    const float *s = p->s + r * ANE_TILE;
    int16_t *codes = p->codes + r * ANE_TILE;
    for (int64_t j = p->from; j < p->to; j += VL) v_store_i16(codes + j, v_mul(v_load(s + j), by));
  }
}

/* Writes the sums of values of panel p to `out` [rows][pad]. join: combines them with the sums there (VALUES). */
static void code_values(const struct work *w, const struct panel *p, float *out, bool join) {
  const struct code_ending e = {.row = p->o_scale, .keep = p->old, .add = p->new, .ahead = w->ahead_v};
  pair_product(join ? pair_values_joined : pair_values, p->rows, w->pad / VL, (p->to - p->from) / 2, p->codes + p->from, ANE_TILE,
               (const int16_t *)w->v + p->from * w->ld_v, 2 * w->ld_v, out, w->pad, &e);
}

/* Copies a tile of values whose rows are no multiple of a vector, with zeros after each row. */
static void pad_code_values(struct work *w) {
  int16_t *to = (int16_t *)(void *)w->tile_v;
  const int16_t *from = w->v;
  for (int64_t j = 0; j < ANE_TILE / 2; j++, to += 2 * w->pad, from += 2 * w->hd) {
    memcpy(to, from, (size_t)(2 * w->hd) * sizeof *to);
    memset(to + 2 * w->hd, 0, (size_t)(2 * (w->pad - w->hd)) * sizeof *to);
  }
  w->v = w->tile_v;
  w->ld_v = w->pad;
}

/* Writes the key and the value of position j of a tile. An odd last dimension is paired with a zero. */
static void write_i16(int16_t *to_k, int16_t *to_v, int64_t j, const float *k, const float *v, int64_t hd, float most, float ik,
                      float iv) {
  int16_t codes[VL];
  to_v += j / 2 * 2 * hd + j % 2;
  for (int64_t i = 0; i < hd; i += VL) {
    const int64_t n = ANE_MIN(hd - i, VL);
    codes_of(k + i, n, most, ik, codes);
    for (int64_t d = 0; d < n; d += 2) memcpy(to_k + (i + d) * ANE_TILE + 2 * j, codes + d, 2 * sizeof *codes);
    codes_of(v + i, n, most, iv, codes);
    for (int64_t d = 0; d < n; d++) to_v[2 * (i + d)] = codes[d];
  }
}

#endif
