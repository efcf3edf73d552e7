/* Attention with keys and values in int16 codes: exact sums of products of pairs. attention_vec.h includes this file. Queries and
 * softmax weights are converted to codes too: a query once per call, weights as soon as they are computed. */
#ifndef ANE_KERNELS_VEC_ATTENTION_I16_H
#define ANE_KERNELS_VEC_ATTENTION_I16_H

/* Returns VL elements of x from i on, minus those of base unless it is NULL; 0 for elements from n on. */
V_FN vf load_relative(const float *x, const float *base, int64_t i, int64_t n) {
  const vf a = v_load_n(x + i, n - i);
  return base ? v_sub(a, v_load_n(base + i, n - i)) : a;
}

/* Returns the scale of codes of magnitude `most` or less for n values, and sets its inverse. Both are 0 if the values are too
 * small or not finite. */
static float code_scale(const float *x, int64_t n, float most, float *inverse) {
  vf m = v_set(0);
  for (int64_t i = 0; i < n; i += VL) m = v_max(v_abs(v_load_n(x + i, n - i)), m);
  const float amax = v_largest(m);
  *inverse = amax > ane_att_min_magnitude(most) && amax < __builtin_inff() ? most / amax : 0.0f;
  return *inverse > 0 ? amax / most : 0.0f;
}

/* Does the same for int16 queries and keys, whose norm limits the codes too. Both are 0 if some value is NaN. */
static float norm_scale(const float *x, const float *base, int64_t n, float *inverse) {
  vf m = v_set(0), l[V_PARTS];
  for (int64_t i = 0; i < n; i += VL) m = v_max(v_abs(load_relative(x, base, i, n)), m);
  for (int i = 0; i < V_PARTS; i++) l[i] = v_set(0);
  const float amax = v_largest(m);
  *inverse = 0;
  if (!(amax > ane_att_min_magnitude(ANE_ATT_CODE) && amax < __builtin_inff())) return 0;
  const vf by = v_set(1 / amax);
  for (int64_t i = 0; i < n; i += 16)
    for (int p = 0; p < V_PARTS; p++) {
      const vf y = v_mul(load_relative(x, base, i + p * VL, n), by);
      l[p] = v_fma(y, y, l[p]);
    }
  const float norm = __builtin_sqrtf(v_fold(l)), limit = ANE_ATT_NORM / norm, most = limit < ANE_ATT_CODE ? limit : ANE_ATT_CODE;
  if (!(norm > 0)) return 0;
  *inverse = most / amax;
  return amax / most;
}

/* Converts VL floats to codes. */
V_FN void codes_of(vf x, float most, float inverse, int16_t *to) {
  v_store_i16(to, v_max(v_set(-most), v_min(v_set(most), v_mul(x, v_set(inverse)))));
}

/* As value_scale of attention_ref.c, for int16. */
static float value_exponent(const float *v, int64_t n, float *inverse) {
  vf m = v_set(0);
  for (int64_t i = 0; i < n; i += VL) m = v_max(v_abs(v_load_n(v + i, n - i)), m);
  const float e = ane_att_exponent(v_largest(m));
  float lanes[VL];
  v_store(lanes, v_exp2_rough(v_set(-e)));
  *inverse = lanes[0];
  return e;
}

static int16_t *query_codes(const struct work *w, int64_t row) { return (int16_t *)(void *)w->q + row * w->pad; }

/* Converts a query to codes, in row `row` of scratch. Its scale there is c, or c log2 e if scores are not capped (kernels.h). */
static void code_query(const struct work *w, int64_t row, const float *q) {
  float inverse, scale = w->a->scale;
  w->q_scale[row] = norm_scale(q, NULL, w->hd, &inverse) * (scale < 0 ? -scale : scale);
  if (scale < 0) inverse = -inverse;
  if (!(w->a->softcap > 0)) w->q_scale[row] *= V_LOG2_E;
  for (int64_t i = 0; i < w->hd; i += VL) codes_of(v_load_n(q + i, w->hd - i), ANE_ATT_CODE, inverse, query_codes(w, row) + i);
}

/* What a block does with its sums. SCORES multiplies them by scale[x] and row[r], adds plus[x], and keeps the maximum of each
 * lane of a row unless `largest` is NULL. PLAIN and VALUES multiply them by 1 / 8191. VALUES then combines them with c, as VALUES
 * of struct ending does (attention_vec.h); if `kept`, all keep[r] are 1. */
struct code_ending {
  bool kept;
  const float *row, *scale, *plus;
  vf *largest;
  const float *keep, *add;
  struct fetch fetch;
};

V_FN void pair_end(const int rows, const int vecs, const int end, const vi (*sum)[MAX_VECS], float *c, int64_t ldc,
                   const bool kept, const struct code_ending *e) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    vf m = end == SCORES && e->largest ? e->largest[r] : v_set(0);
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) {
      float *at = c + r * ldc + x * VL;
      vf v = v_float(sum[r][x]);
      if (end == SCORES) v = v_mul(v, v_load(e->scale + x * VL));
      if (end == SCORES) v = v_fma(v, v_set(e->row[r]), v_load(e->plus + x * VL)), m = v_max(v, m);
      if (end == PLAIN || end == VALUES) v = v_mul(v, v_set(1 / ANE_ATT_WEIGHT));
      if (end == VALUES) v = v_fma(v, v_set(e->add[r]), kept ? v_load(at) : v_mul(v_load(at), v_set(e->keep[r])));
      v_store(at, v);
    }
    if (end == SCORES && e->largest) e->largest[r] = m;
  }
}

/* Adds the products of pair k of each row of a and the pairs b. */
V_FN void pair_step(const int rows, const int vecs, vi (*sum)[MAX_VECS], const int16_t *a, int64_t lda, const int16_t *b) {
  vpairs w[MAX_VECS];
#pragma GCC unroll 8
  for (int x = 0; x < vecs; x++) w[x] = v_load_pairs(b + 2 * x * VL);
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    const vpairs f = v_set_pair(a + r * lda);
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) sum[r][x] = v_dot(sum[r][x], w[x], f);
  }
}

/* c[r][x] = sum over k of a[r][2 k .. 2 k + 1] times the pair b[k][x], for `rows` rows and `vecs` vectors of x. */
V_FN void pair_block(const int rows, const int vecs, const int end, int64_t n, const int16_t *a, int64_t lda, const int16_t *b,
                     int64_t ldb, float *c, int64_t ldc, const struct code_ending *e) {
  const bool far = ane_half_units;
  vi sum[ANE_ATT_PANEL][MAX_VECS];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) sum[r][x] = vi_zero();
  if (e->fetch.at)
    for (int64_t k = 0; k < n; k++) {
      fetch_row(&e->fetch, k, far);
      pair_step(rows, vecs, sum, a + 2 * k, lda, b + k * ldb);
    }
  else
    for (int64_t k = 0; k < n; k++) pair_step(rows, vecs, sum, a + 2 * k, lda, b + k * ldb);
  if (end == VALUES && e->kept)
    pair_end(rows, vecs, end, (const vi(*)[MAX_VECS])sum, c, ldc, true, e);
  else
    pair_end(rows, vecs, end, (const vi(*)[MAX_VECS])sum, c, ldc, false, e);
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
  static const pair_block_fn name[MAX_VECS] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8};
PAIR_BLOCKS_OF(pair_scores, SCORES)
PAIR_BLOCKS_OF(pair_values, PLAIN)
PAIR_BLOCKS_OF(pair_values_joined, VALUES)

/* Computes the product for any number of vectors, in blocks of nearly equal size. */
static void pair_product(const pair_block_fn *fn, int rows, int64_t vecs, int64_t n, const int16_t *a, int64_t lda,
                         const int16_t *b, int64_t ldb, float *c, int64_t ldc, const struct code_ending *e) {
  const uint32_t most = VECS_FOR(rows), parts = ((uint32_t)vecs + most - 1) / most;
  if (parts == 1) {
    fn[vecs - 1](rows, n, a, lda, b, ldb, c, ldc, e);
    return;
  }
  struct code_ending part = *e;
  for (uint32_t i = 0, some; i < parts; i++, vecs -= some) {
    some = (uint32_t)vecs / (parts - i);
    if (e->fetch.at) part.fetch = fetch_part(e->fetch, i, parts);
    fn[some - 1](rows, n, a, lda, b, ldb, c, ldc, &part);
    if (e->scale) part.scale += some * VL, part.plus += some * VL;
    b += 2 * some * VL;
    c += some * VL;
  }
}

/* Computes y_j of kernels.h, or x_j c if scores are capped, of a panel. row: the first row in scratch. largest: receives the
 * maximum of each lane of a row; may be NULL. */
static void code_products(const struct work *w, struct panel *p, int64_t row, vf *largest) {
  static const float zeros[ANE_TILE];
  const struct code_ending e = {.row = w->q_scale + row,
                                .scale = w->k_scale + p->from,
                                .plus = w->a->softcap > 0 ? zeros : w->v_scale + p->from,
                                .largest = largest,
                                .fetch = p->leads ? w->next_k : (struct fetch){0}};
  pair_product(pair_scores, p->rows, (p->to - p->from) / VL, (w->hd + 1) / 2, query_codes(w, row), w->pad,
               (const int16_t *)w->k + 2 * p->from, 2 * ANE_TILE, p->s + p->from, ANE_TILE, &e);
}

/* Returns whether every row of the panel sees all keys from p->from to p->to. */
static bool sees_all(const struct panel *p) { return p->first[p->rows - 1] <= p->from && p->last[0] >= p->to - 1; }

/* Caps the scores of a panel where they are capped, and finds the largest visible y_j. */
V_FN void code_finish(const int rows, const struct work *w, struct panel *p) {
  const float cap = w->a->softcap;
  for (int64_t j = p->from; j < p->to; j += VL)
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      float *s = p->s + r * ANE_TILE + j;
      vf v = v_load(s);
      if (cap > 0) {
        v = v_fma(v_softcap(v, v_set(cap)), v_set(V_LOG2_E), v_load(w->v_scale + j));
        v_store(s, v);
      }
      p->largest[r] = v_max(v_keep_range(v, j, p->first[r], p->last[r]), p->largest[r]);
    }
}

/* Computes y_j of kernels.h. row: the first row in scratch. */
static void code_scores(const struct work *w, struct panel *p, int64_t row) {
  for (int r = 0; r < p->rows; r++) p->largest[r] = v_set(-__builtin_inff());
  p->plain = !(w->a->softcap > 0) && sees_all(p);
  code_products(w, p, row, p->plain ? p->largest : NULL);
}

/* Computes top and m. */
V_FN void code_largest(const int rows, const struct work *w, struct panel *p) {
  if (!p->plain) code_finish(rows, w, p);
  v_largest_each(p->largest, rows, p->top);
  for (int r = 0; r < rows; r += VL) v_store(p->m + r, v_mul(v_load(p->top + r), v_set(ANE_ATT_LN2)));
}

/* Sets the inverses of the scales of the values of the current tile. */
static void use_value_scales(struct work *w) {
  for (int64_t j = 0; j < ANE_TILE; j += VL) v_store(w->inverse_v + j, v_exp2_rough(v_neg(v_load(w->v_scale + j))));
}

/* Replaces s by the codes of the weights, and sets l to the sums of the weights. hide: some rows do not see all keys. */
V_FN void code_weights(const int rows, const bool hide, const struct work *w, struct panel *p) {
  const vf magic = v_set(0x1.8p23f), most = v_set(ANE_ATT_WEIGHT);
  const float *scores = p->s;
  int16_t *codes = p->codes;
  vf l[ANE_ATT_PANEL][V_PARTS];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int x = 0; x < V_PARTS; x++) l[r][x] = v_set(0);
  for (int64_t j = p->from; j < p->to; j += 32)
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
      for (int x = 0; x < V_PARTS; x++) {
        const int64_t i = j + x * VL;
        const float *s = scores + r * ANE_TILE + i, *by = w->inverse_v + i;
        vf a = v_exp2_rough(v_sub(v_load(s), v_set(p->top[r])));
        vf b = v_exp2_rough(v_sub(v_load(s + 16), v_set(p->top[r])));
        if (hide) a = v_zero_range(a, i, p->first[r], p->last[r]), b = v_zero_range(b, i + 16, p->first[r], p->last[r]);
        l[r][x] = v_fma(b, v_load(by + 16), v_fma(a, v_load(by), l[r][x]));
        v_store_pairs(codes + r * ANE_TILE + j + 2 * x * VL, v_fma(a, most, magic), v_fma(b, most, magic));
      }
  v_fold_each(l, rows, p->l);
}
V_FN void code_exponentials(const int rows, const struct work *w, struct panel *p) {
  if (sees_all(p))
    code_weights(rows, false, w, p);
  else
    code_weights(rows, true, w, p);
}

/* Writes the sums of values of panel p to `out` [rows][pad]. join: combines them with the sums there (VALUES). */
static void code_values(const struct work *w, const struct panel *p, float *out, bool join, struct fetch fetch) {
  struct code_ending e = {.kept = join, .keep = p->old, .add = p->new, .fetch = fetch};
  for (int r = 0; r < p->rows; r++) e.kept = e.kept && p->old[r] == 1;
  pair_product(join ? pair_values_joined : pair_values, p->rows, w->pad / VL, (p->to - p->from) / 2, p->codes + p->from, ANE_TILE,
               (const int16_t *)w->v + p->from * w->ld_v, 2 * w->ld_v, out, w->pad, &e);
}

/* Copies a tile of values whose rows are not a multiple of a vector, and pads each row with zeros. */
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
static void write_i16(int16_t *to_k, int16_t *to_v, int64_t j, const float *k, const float *base, const float *v, int64_t hd,
                      float ik, float iv) {
  int16_t codes[VL];
  to_v += 2 * (j / 32 * 16 + j % 16) * hd + j / 16 % 2;
  for (int64_t i = 0; i < hd; i += VL) {
    const int64_t n = ANE_MIN(hd - i, VL);
    codes_of(load_relative(k, base, i, hd), ANE_ATT_CODE, ik, codes);
    for (int64_t d = 0; d < n; d += 2) memcpy(to_k + (i + d) * ANE_TILE + 2 * j, codes + d, 2 * sizeof *codes);
    codes_of(v_load_n(v + i, n), ANE_ATT_VALUE, iv, codes);
    for (int64_t d = 0; d < n; d++) to_v[2 * (i + d)] = codes[d];
  }
}

#endif
