/* Attention for any vector length; included by attention_<isa>.c after vec_<isa>.h.
 *
 * A row is one query of one head of the group. Rows are numbered token by token, so the rows that see a tile are a range. Up to
 * ANE_ATT_ROWS rows share a tile, which is converted to float once. A panel of up to ANE_ATT_PANEL rows is processed at a time:
 * scores (lanes are keys), exponentials, sums of values (lanes are dimensions). Few rows read the stored tile directly.
 * Keys that no row of a panel sees are skipped. Their weight p is 0, so this changes no bit (see attention_ref.c on -0). */
#include "kernels/attention_shared.h"
#include "kernels/mathfn.h"

#include <string.h>

enum { F32, F16, I8, I16 };                  /* element types of the second factor of a product */
static const int64_t bytes[] = {4, 2, 1, 2}; /* of an element, by type */

/* Memory that the rows of a product prefetch: row k fetches cache lines [0, lines) from at + k * step on, before `end`. */
struct fetch {
  const char *at, *end; /* both NULL: none */
  int64_t step, lines;
};

struct work {
  const struct ane_attention *a;
  int64_t group, hd, pad;
  int64_t tile, ld_v;             /* the current tile */
  bool whole;                     /* all current rows see all of its keys */
  const float *k_scale, *v_scale; /* int8, int16: scales of the current tile */
  int kind_k, kind_v;
  const void *k, *v;            /* [hd][64], [64][ld_v] */
  struct fetch next_k, next_v;  /* of the tile that is read next */
  float *tile_k, *tile_v;       /* converted: [hd][64], [64][pad] */
  float *q, *o, *big_m, *big_l; /* [ROWS][pad], [ROWS][pad], [ROWS], [ROWS] */
  float *q_scale;               /* int16: [ROWS] scale of the query's codes, times the scale of scores; q holds these codes */
  float *s, *part;              /* scores, then p: [PANELS * PANEL][64]; o: [PANEL][pad] */
  int16_t *codes;               /* int16: codes of p, [PANELS * PANEL][64] */
  float inverse_v[ANE_TILE];    /* int16: inverses of the scales of values */
};

/* Up to ANE_ATT_PANEL rows that are multiplied with the current tile. */
struct panel {
  int rows;
  bool leads;                                        /* it is the first panel of its tile and prefetches the next tile */
  int64_t row;                                       /* its first row, counted from query 0 of the call */
  int64_t first[ANE_ATT_PANEL], last[ANE_ATT_PANEL]; /* keys of the tile that each row sees, at least one */
  int64_t begin, end, from, to;                      /* keys that some row sees; the same, in whole units of 16 (int16: 32) */
  float m[16], l[16];                                /* largest score, sum of p */
  float old[16], new[16];                            /* factors of O and of o in their sum */
  float *s;                                          /* scores, then p: [rows][64] */
  int16_t *codes;                                    /* int16: codes of p, [rows][64] */
  bool plain;                                        /* int16: scores are neither capped nor hidden */
  vf largest[ANE_ATT_PANEL];                         /* int16: the largest score of each lane */
  float top[16];                                     /* int16: `top` of kernels.h */
};

/* ---- Products ----------------------------------------------------------------------------------------------------*/

V_FN vf load_as(int kind, const void *p, int64_t i) {
  if (kind == F16) return v_load_f16((const uint16_t *)p + i);
  if (kind == I8) return v_load_i8((const int8_t *)p + i);
  return v_load((const float *)p + i);
}

/* A block keeps its sums, a row of the second factor and one element of the first factor in registers. A block of one row loads
 * the second factor one vector at a time. */
enum { MAX_VECS = 8 };
#define VECS_FOR(rows) ((rows) == 1 ? MAX_VECS : ANE_MIN((V_REGISTERS - 1) / ((rows) + 1), MAX_VECS))

/* What a block does with its sums. PLAIN stores them. SCORES stores them times `scale`, and keeps the maximum of each lane of a
 * row. VALUES combines them with c: fma(sum + 0, add[r], c keep[r]). */
enum { PLAIN, SCORES, VALUES };
struct ending {
  float scale;
  vf *largest;             /* [rows] */
  const float *keep, *add; /* [rows] */
  struct fetch fetch;
};

/* Prefetches what belongs to row k of the second factor. CPUs that compute 512 bits in two halves prefetch to the second level
 * cache: there 32 sequences of 100 tokens took 2.6 ms with the first level and 2.0 with the second (Zen 4, two threads). */
V_FN void fetch_row(const struct fetch *a, int64_t k, bool far) {
  uintptr_t p = (uintptr_t)a->at + (uintptr_t)(k * a->step);
  const uintptr_t end = ANE_MIN(p + (uintptr_t)a->lines * 64, (uintptr_t)a->end);
  for (; p < end; p += 64)
    if (far)
      __builtin_prefetch((const void *)p, 0, 2);
    else
      __builtin_prefetch((const void *)p);
}

/* Returns the share of part i of `parts` of a product, which all have the same rows. */
V_FN struct fetch fetch_part(struct fetch a, int64_t i, int64_t parts) {
  const int64_t from = a.lines * i / parts;
  a.lines = a.lines * (i + 1) / parts - from;
  if (a.at) a.at += from * 64;
  return a;
}

/* c[r][x] = sum over k ascending of fma(a[r][k], b[k][x], .) for `rows` rows and `vecs` vectors of x, all in registers. */
V_FN void block(const int rows, const int vecs, const int kind, const int end, int64_t n, const float *a, int64_t lda,
                const void *b, int64_t ldb, float *c, int64_t ldc, const struct ending *e) {
  const bool far = ane_half_units;
  vf sum[ANE_ATT_PANEL][MAX_VECS];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) sum[r][x] = v_set(0);
  for (int64_t k = 0; k < n; k++) {
    vf w[MAX_VECS];
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) w[x] = load_as(kind, b, k * ldb + x * VL);
    if (kind != F32) fetch_row(&e->fetch, k, far);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      vf f = v_set(a[r * lda + k]);
#pragma GCC unroll 8
      for (int x = 0; x < vecs; x++) sum[r][x] = v_fma(f, w[x], sum[r][x]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    vf m = end == SCORES ? e->largest[r] : v_set(0);
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) {
      float *at = c + r * ldc + x * VL;
      vf v = sum[r][x];
      if (end == SCORES) v = v_mul(v, v_set(e->scale)), m = v_max(v, m);
      if (end == VALUES) v = v_fma(v_add(v, v_set(0)), v_set(e->add[r]), v_mul(v_load(at), v_set(e->keep[r])));
      v_store(at, v);
    }
    if (end == SCORES) e->largest[r] = m;
  }
}

typedef void (*block_fn)(int rows, int64_t n, const float *a, int64_t lda, const void *b, int64_t ldb, float *c, int64_t ldc,
                         const struct ending *e);

#define BLOCK(rows, vecs, kind, end)                                                                                             \
  case rows:                                                                                                                     \
    if (vecs <= VECS_FOR(rows)) block(rows, vecs, kind, end, n, a, lda, b, ldb, c, ldc, e);                                      \
    break;
#define BLOCKS(name, vecs, kind, end, few)                                                                                       \
  static void name(int r, int64_t n, const float *a, int64_t lda, const void *b, int64_t ldb, float *c, int64_t ldc,             \
                   ANE_UNUSED const struct ending *e) {                                                                          \
    switch (r) { few(vecs, kind, end) BLOCK(4, vecs, kind, end) BLOCK(5, vecs, kind, end) BLOCK(6, vecs, kind, end) }            \
  }
#define FEW(vecs, kind, end) BLOCK(1, vecs, kind, end) BLOCK(2, vecs, kind, end) BLOCK(3, vecs, kind, end)
#define NONE(vecs, kind, end)
#define BLOCKS_OF(name, kind, end, few)                                                                                          \
  BLOCKS(name##_1, 1, kind, end, few)                                                                                            \
  BLOCKS(name##_2, 2, kind, end, few)                                                                                            \
  BLOCKS(name##_3, 3, kind, end, few)                                                                                            \
  BLOCKS(name##_4, 4, kind, end, few)                                                                                            \
  BLOCKS(name##_5, 5, kind, end, few)                                                                                            \
  BLOCKS(name##_6, 6, kind, end, few)                                                                                            \
  BLOCKS(name##_7, 7, kind, end, few)                                                                                            \
  BLOCKS(name##_8, 8, kind, end, few)                                                                                            \
  static const block_fn name[MAX_VECS] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8};
BLOCKS_OF(blocks_f32, F32, PLAIN, FEW)
BLOCKS_OF(blocks_f16, F16, PLAIN, FEW)
BLOCKS_OF(blocks_i8, I8, PLAIN, FEW)
/* Only used when a tile of floats serves many rows, in panels of at least four (see FEW_ROWS). */
BLOCKS_OF(scores_f32, F32, SCORES, NONE)
BLOCKS_OF(values_f32, F32, VALUES, NONE)
V_FN bool has_ending(int kind, int rows) { return kind == I16 || (kind == F32 && rows >= 4); }

/* Computes the product for any number of vectors, in blocks of nearly equal width. fn: the block functions of `kind`. */
static void product(const block_fn *fn, int kind, int rows, int64_t vecs, int64_t n, const float *a, int64_t lda, const void *b,
                    int64_t ldb, float *c, int64_t ldc, const struct ending *e) {
  const int64_t max_vecs = VECS_FOR(rows);
  if (vecs <= max_vecs) {
    fn[vecs - 1](rows, n, a, lda, b, ldb, c, ldc, e);
    return;
  }
  const int64_t parts = (vecs + max_vecs - 1) / max_vecs;
  struct ending part = *e;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t from = vecs * i / parts, to = vecs * (i + 1) / parts;
    part.fetch = fetch_part(e->fetch, i, parts);
    fn[to - from - 1](rows, n, a, lda, (const char *)b + from * VL * bytes[kind], ldb, c + from * VL, ldc, &part);
  }
}
static const block_fn *plain_blocks(int kind) { return kind == F32 ? blocks_f32 : kind == F16 ? blocks_f16 : blocks_i8; }

#include "kernels/vec/attention_i16.h"

/* ---- One panel, one tile -----------------------------------------------------------------------------------------*/

/* Scales VL products of each row from key j on, caps them and masks hidden keys. largest: the maximum of each lane so far. */
V_FN void finish_keys(const struct work *w, const struct panel *p, const int rows, int64_t j, bool hide, vf *largest) {
  const struct ane_attention *a = w->a;
  const bool i8 = a->kv->dtype == ANE_I8;
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) {
    float *s = p->s + r * ANE_TILE + j;
    vf v = v_load(s);
    if (i8) v = v_mul(v, v_load(w->k_scale + j));
    v = v_mul(v, v_set(a->scale));
    if (a->softcap > 0) v = v_softcap(v, v_set(a->softcap));
    if (hide) v = v_keep_range(v, j, p->first[r], p->last[r]);
    v_store(s, v);
    largest[r] = v_max(v, largest[r]);
  }
}

/* Calls finish_keys for all keys of the panel. Vectors of keys that all rows see need no mask. */
V_FN void finish_scores(const struct work *w, const struct panel *p, const int rows, vf *largest) {
  const int64_t first = p->first[rows - 1], last = p->last[0];
  for (int64_t j = p->from; j < p->to; j += VL)
    if (j < first || j + VL > last + 1)
      finish_keys(w, p, rows, j, true, largest);
    else
      finish_keys(w, p, rows, j, false, largest);
}

/* Replaces s by p = exp(s - m), with int8 times the scale of the value, and sets l to the sums of p. The rows are computed side
 * by side, keys in ascending order. */
V_FN void exponentials(const int rows, const int kind, const struct work *w, struct panel *p) {
  vf l[ANE_ATT_PANEL][V_PARTS];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int x = 0; x < V_PARTS; x++) l[r][x] = v_set(0);
  for (int64_t j = p->from; j < p->to; j += 16)
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
      for (int x = 0; x < V_PARTS; x++) {
        float *s = p->s + r * ANE_TILE + j + x * VL;
        vf e = v_exp_low(v_sub(v_load(s), v_set(p->m[r])));
        l[r][x] = v_add(l[r][x], e);
        if (kind != F32) e = v_mul(e, v_load(w->v_scale + j + x * VL));
        v_store(s, e);
      }
  v_fold_each(l, rows, p->l);
}

/* Sets whether rows [from, to), counted from query 0 of the call, see all keys of the current tile. */
static void set_whole(struct work *w, int64_t from, int64_t to) {
  const int64_t first = ane_att_first(w->a, w->a->pos + (to - 1) / w->group),
                last = ane_att_last(w->a, w->a->pos + from / w->group);
  w->whole = first <= w->tile * ANE_TILE && last >= w->tile * ANE_TILE + ANE_TILE - 1;
}

/* Sets the range of keys that the panel's rows see. */
static void panel_keys(const struct work *w, struct panel *p, int64_t row, int rows) {
  const struct ane_attention *a = w->a;
  p->row = row;
  p->rows = rows;
  if (w->whole) {
    for (int r = 0; r < ANE_ATT_PANEL; r++) p->first[r] = 0, p->last[r] = ANE_TILE - 1;
    p->begin = p->from = 0;
    p->end = p->to = ANE_TILE;
    return;
  }
  int64_t pos = a->pos + row / w->group, next = w->group - row % w->group; /* next: the row at which the next query begins */
  for (int r = 0; r < rows; r++) {
    if (r == next) pos++, next += w->group;
    p->first[r] = ANE_MAX(ane_att_first(a, pos) - w->tile * ANE_TILE, 0);
    p->last[r] = ANE_MIN(ane_att_last(a, pos) - w->tile * ANE_TILE, ANE_TILE - 1);
  }
  p->begin = p->first[0];
  p->end = p->last[rows - 1] + 1;
  const int64_t unit = a->kv->dtype == ANE_I16 ? 32 : 16;
  p->from = p->begin / unit * unit;
  p->to = (p->end + unit - 1) / unit * unit;
}

/* Computes the scores of q [rows], stride ldq, and their maxima m. If scores are only scaled, the product itself scales them. */
V_FN void score_rows(const int rows, const struct work *w, struct panel *p, const float *q, int64_t ldq) {
  const struct ane_attention *a = w->a;
  const bool all = !(a->softcap > 0) && p->first[rows - 1] <= p->from && p->last[0] >= p->to - 1;
  const bool plain = all && has_ending(w->kind_k, rows) && a->kv->dtype != ANE_I8;
  vf largest[ANE_ATT_PANEL];
  const struct ending e = {.scale = a->scale, .largest = largest, .fetch = p->leads ? w->next_k : (struct fetch){0}};
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++) largest[r] = v_set(-__builtin_inff());
  product(plain ? scores_f32 : plain_blocks(w->kind_k), w->kind_k, rows, (p->to - p->from) / VL, w->hd, q, ldq,
          (const char *)w->k + p->from * bytes[w->kind_k], ANE_TILE, p->s + p->from, ANE_TILE, &e);
  if (!plain) finish_scores(w, p, rows, largest);
  v_largest_each(largest, rows, p->m);
}

/* Calls fn(..., rows, ...) with the number of rows as a constant. */
#define FOR_ROWS(n, fn, ...)                                                                                                     \
  switch (n) {                                                                                                                   \
    case 1: fn(1, __VA_ARGS__); break;                                                                                           \
    case 2: fn(2, __VA_ARGS__); break;                                                                                           \
    case 3: fn(3, __VA_ARGS__); break;                                                                                           \
    case 4: fn(4, __VA_ARGS__); break;                                                                                           \
    case 5: fn(5, __VA_ARGS__); break;                                                                                           \
    case 6: fn(6, __VA_ARGS__); break;                                                                                           \
  }

/* A panel has four steps. Step 1 sets the range of keys and computes their scores and m (with int16 m is step 2). With int16, q
 * is a row of w->q, and the row of codes with the same number is used. */
static void panel_scores(const struct work *w, struct panel *p, int64_t row, int rows, const float *q, int64_t ldq) {
  panel_keys(w, p, row, rows);
  if (w->kind_k == I16)
    code_scores(w, p, (q - w->q) / w->pad);
  else
    FOR_ROWS(rows, score_rows, w, p, q, ldq)
}

/* Step 2 computes m with int16. */
static void panel_largest(const struct work *w, struct panel *p) {
  if (w->kind_k == I16) FOR_ROWS(p->rows, code_largest, w, p)
}

/* Step 3 computes p and l. */
static void panel_exponentials(const struct work *w, struct panel *p) {
  if (w->a->kv->dtype == ANE_I8)
    FOR_ROWS(p->rows, exponentials, I8, w, p)
  else if (w->a->kv->dtype == ANE_I16)
    FOR_ROWS(p->rows, code_exponentials, w, p)
  else
    FOR_ROWS(p->rows, exponentials, F32, w, p)
}

/* What the rows of the values of the panel prefetch. They may be fewer than the rows that are read next. */
V_FN struct fetch values_fetch(const struct work *w, const struct panel *p) {
  struct fetch a = p->leads ? w->next_v : (struct fetch){0};
  const int64_t lines = (a.end - a.at + 63) / 64, rows = w->kind_v == I16 ? (p->to - p->from) / 2 : p->end - p->begin;
  a.lines = (lines + rows - 1) / rows;
  a.step = a.lines * 64;
  return a;
}

/* Step 4 writes o, without the final + 0, to `out` [rows][pad]. join: combines it with the contents of `out` (VALUES). */
static void panel_values(const struct work *w, const struct panel *p, float *out, bool join) {
  const struct ending e = {.keep = p->old, .add = p->new, .fetch = values_fetch(w, p)};
  if (w->kind_v == I16) {
    code_values(w, p, out, join, e.fetch);
    return;
  }
  product(join ? values_f32 : plain_blocks(w->kind_v), w->kind_v, p->rows, w->pad / VL, p->end - p->begin, p->s + p->begin,
          ANE_TILE, (const char *)w->v + p->begin * w->ld_v * bytes[w->kind_v], w->ld_v, out, w->pad, &e);
}

enum { FEW_ROWS = 2 * ANE_ATT_PANEL }; /* at most this many rows read a tile in its stored type */

/* Converts n stored rows of hd elements to floats, padded with zeros to `pad`. */
V_FN void convert_rows(const int kind, const struct ane_kv *kv, const void *from, int64_t n, int64_t hd, float *to, int64_t pad) {
  for (int64_t j = 0; j < n; j++, to += pad) {
    int64_t d = 0;
    for (; d + VL <= hd; d += VL) v_store(to + d, load_as(kind, from, j * hd + d));
    for (; d < hd; d++) to[d] = ane_att_element(kv, from, j * hd + d);
    for (; d < pad; d++) to[d] = 0;
  }
}
static void to_floats(const struct ane_kv *kv, const void *from, int64_t n, int64_t hd, float *to, int64_t pad) {
  if (kv->dtype == ANE_F16)
    convert_rows(F16, kv, from, n, hd, to, pad);
  else if (kv->dtype == ANE_I8)
    convert_rows(I8, kv, from, n, hd, to, pad);
  else
    convert_rows(F32, kv, from, n, hd, to, pad);
}

/* Sets what is prefetched while the current tile is read: the next tile of the head or, during the last tile, the tile that the
 * caller reads next. last_key: the last key that the rows see. */
static void set_fetch(struct work *w, int64_t h, int64_t tile, int64_t last_key) {
  const struct ane_attention *a = w->a;
  const struct ane_kv *kv = a->kv;
  const bool inside = (tile + 1) * ANE_TILE <= last_key, i16 = kv->dtype == ANE_I16;
  const char *k = inside ? ane_kv_k(kv, h, tile + 1) : a->next_k, *v = inside ? ane_kv_v(kv, h, tile + 1) : a->next_v;
  w->next_k = w->next_v = (struct fetch){0};
  if (!k) return;
  const int64_t keys = inside ? ANE_MIN(last_key + 1 - (tile + 1) * ANE_TILE, ANE_TILE) : a->next_keys;
  const int64_t size = (int64_t)ane_dtype_info(kv->dtype)->bytes, row = ANE_TILE * size * (i16 ? 2 : 1);
  w->next_k = (struct fetch){.at = k, .end = k + kv->tile_bytes, .step = row, .lines = (keys * row / ANE_TILE + 63) / 64};
  w->next_v = (struct fetch){.at = v, .end = v + (i16 ? (keys + 31) / 32 * 32 : keys) * w->hd * size};
  /* The scales of both follow the values. */
  for (size_t i = 0; i < kv->stride - 2 * kv->tile_bytes; i += 64) __builtin_prefetch(v + kv->tile_bytes + i);
}

/* Selects the tile in its stored type or, for more rows, converts it to floats in scratch. A value row that is not a whole number
 * of vectors is always copied: a load past its end could read outside the KV cache. */
static void use_tile(struct work *w, int64_t h, int64_t tile, int64_t last_key, bool convert) {
  const struct ane_kv *kv = w->a->kv;
  const int kind = kv->dtype == ANE_F16 ? F16 : kv->dtype == ANE_I8 ? I8 : kv->dtype == ANE_I16 ? I16 : F32;
  w->tile = tile;
  w->k = ane_kv_k(kv, h, tile);
  w->v = ane_kv_v(kv, h, tile);
  if (ane_kv_has_scales(kv->dtype)) w->k_scale = ane_kv_k_scale(kv, h, tile), w->v_scale = ane_kv_v_scale(kv, h, tile);
  w->kind_k = w->kind_v = kind;
  w->ld_v = w->hd;
  set_fetch(w, h, tile, last_key);
  if (kind == I16) {
    if (w->pad != w->hd) pad_code_values(w);
    return;
  }
  convert = convert && kind != F32;
  if (convert) {
    to_floats(kv, w->k, w->hd, ANE_TILE, w->tile_k, ANE_TILE);
    w->k = w->tile_k;
    w->kind_k = F32;
  }
  if (!convert && w->pad == w->hd) return;
  to_floats(kv, w->v, ANE_TILE, w->hd, w->tile_v, w->pad);
  w->v = w->tile_v;
  w->kind_v = F32;
  w->ld_v = w->pad;
}

/* ---- Combining tiles ---------------------------------------------------------------------------------------------*/

/* Updates M and L of the panel's rows with the tile, and sets the factors of O and o. row: the panel's first row, relative to the
 * first in scratch. */
static void combine_sums(const struct work *w, struct panel *p, int64_t row) {
  for (int r = 0; r < p->rows; r += VL) {
    float *big_m = w->big_m + row + r, *big_l = w->big_l + row + r;
    const int n = p->rows - r;
    const vf big = v_load_n(big_m, n), m = v_load_n(p->m + r, n), next = v_max(m, big);
    const vf old = v_exp_low(v_sub(big, next)), new = v_exp_low(v_sub(m, next));
    v_store(p->old + r, old);
    v_store(p->new + r, new);
    v_store_n(big_m, next, n);
    v_store_n(big_l, v_fma(v_load_n(p->l + r, n), new, v_mul(v_load_n(big_l, n), old)), n);
  }
}

/* Adds the sums in w->part to O. */
static void combine_values(const struct work *w, const struct panel *p, float *out) {
  for (int r = 0; r < p->rows; r++) {
    const vf old = v_set(p->old[r]), new = v_set(p->new[r]);
    for (int64_t d = r * w->pad; d < (r + 1) * w->pad; d += VL)
      v_store(out + d, v_fma(v_add(v_load(w->part + d), v_set(0)), new, v_mul(v_load(out + d), old)));
  }
}

static void work_init(struct work *w, const struct ane_attention *a, void *scratch) {
  float *p = scratch;
  w->a = a;
  w->hd = a->kv->head_dim;
  w->group = a->n_heads / a->kv->heads;
  w->pad = ane_att_pad(w->hd);
  w->tile_k = p, p += ANE_TILE * w->pad;
  w->tile_v = p, p += ANE_TILE * w->pad;
  w->q = p, p += ANE_ATT_ROWS * w->pad;
  w->o = p, p += ANE_ATT_ROWS * w->pad;
  w->s = p, p += ANE_ATT_PANELS * ANE_ATT_PANEL * ANE_TILE;
  w->part = p, p += ANE_ATT_PANEL * w->pad;
  w->big_m = p, p += ANE_ATT_ROWS;
  w->big_l = p, p += ANE_ATT_ROWS;
  w->q_scale = p, p += ANE_ATT_ROWS;
  w->codes = (int16_t *)(void *)p;
}

/* Returns the index of a row (counted from query 0 of the call) in q or out. */
static int64_t row_at(const struct work *w, int64_t h, int64_t row, int64_t ld) {
  return row / w->group * ld + (h * w->group + row % w->group) * w->hd;
}

/* Processes rows [from, to) with the current tile, in panels of nearly equal size. Panels are interleaved: while one waits for
 * its largest score, the other computes. `begin` is the first row in scratch. */
static void attend_tile(struct work *w, int64_t begin, int64_t from, int64_t to) {
  const int64_t n = (to - from + ANE_ATT_PANEL - 1) / ANE_ATT_PANEL, least = (to - from) / n, more = (to - from) % n;
  struct panel p[ANE_ATT_PANELS];
  set_whole(w, from, to);
  for (int64_t i = 0, row = from; i < n; i += ANE_ATT_PANELS) {
    const int some = (int)ANE_MIN(n - i, ANE_ATT_PANELS);
    for (int x = 0; x < some; row += p[x++].rows) {
      p[x].s = w->s + x * ANE_ATT_PANEL * ANE_TILE;
      p[x].codes = w->codes + x * ANE_ATT_PANEL * ANE_TILE;
      p[x].leads = row == from;
      panel_scores(w, &p[x], row, (int)(least + (i + x < more)), w->q + (row - begin) * w->pad, w->pad);
    }
    for (int x = 0; x < some; x++) panel_largest(w, &p[x]);
    if (i == 0 && w->kind_v == I16) use_value_scales(w);
    for (int x = 0; x < some; x++) {
      panel_exponentials(w, &p[x]);
      combine_sums(w, &p[x], p[x].row - begin);
    }
    for (int x = 0; x < some; x++) {
      float *o = w->o + (p[x].row - begin) * w->pad;
      if (has_ending(w->kind_v, p[x].rows)) {
        panel_values(w, &p[x], o, true);
      } else {
        panel_values(w, &p[x], w->part, false);
        combine_values(w, &p[x], o);
      }
    }
  }
}

/* Returns L with the head's sink, and sets *x to the factor of O. Without a sink the factor is 1, which changes no bit. */
V_FN vf sink_sum(const struct ane_attention *a, int64_t head, vf m, vf l, vf *x) {
  *x = v_set(1);
  if (!a->sinks) return l;
  const vf sink = v_set(a->sinks[head]), next = v_max(m, sink);
  *x = v_exp_low(v_sub(m, next));
  return v_fma(l, *x, v_exp_low(v_sub(sink, next)));
}

/* Computes rows [begin, end) of KV head h, at most ANE_ATT_ROWS. */
static void attend(struct work *w, int64_t h, int64_t begin, int64_t end) {
  const struct ane_attention *a = w->a;
  const int64_t p0 = a->pos + begin / w->group, p1 = a->pos + (end - 1) / w->group;
  for (int64_t r = begin; r < end; r++) {
    const float *q = a->q + row_at(w, h, r, a->ld_q);
    if (a->kv->dtype == ANE_I16)
      code_query(w, r - begin, q);
    else
      memcpy(w->q + (r - begin) * w->pad, q, (size_t)w->hd * sizeof(float));
    w->big_m[r - begin] = -__builtin_inff();
    w->big_l[r - begin] = 0;
  }
  memset(w->o, 0, (size_t)((end - begin) * w->pad) * sizeof(float));
  const int64_t last_key = ane_att_last(a, p1);
  for (int64_t tile = ane_att_first(a, p0) / ANE_TILE; tile <= last_key / ANE_TILE; tile++) {
    /* The first query that sees the tile is `ahead` positions before it. With a window, the last one still sees its last key. */
    int64_t from = ANE_MAX((tile * ANE_TILE - a->ahead - a->pos) * w->group, begin), to = end;
    if (a->window > 0) to = ANE_MIN((tile * ANE_TILE + ANE_TILE - 1 + a->window - a->pos) * w->group, end);
    if (from >= to) continue;
    use_tile(w, h, tile, last_key, to - from > FEW_ROWS);
    attend_tile(w, begin, from, to);
  }
  for (int64_t r = begin; r < end; r++) {
    const float *o = w->o + (r - begin) * w->pad;
    float *out = a->out + row_at(w, h, r, a->ld_out);
    vf x, l = sink_sum(a, h * w->group + r % w->group, v_set(w->big_m[r - begin]), v_set(w->big_l[r - begin]), &x);
    for (int64_t d = 0; d < w->hd; d += VL) v_store_n(out + d, v_div(v_mul(v_load(o + d), x), l), w->hd - d);
  }
}

static void attention(const struct ane_attention *a, int64_t h, int64_t t_from, int64_t t_to, void *scratch) {
  struct work w;
  work_init(&w, a, scratch);
  for (int64_t r = t_from * w.group; r < t_to * w.group; r += ANE_ATT_ROWS)
    attend(&w, h, r, ANE_MIN(r + ANE_ATT_ROWS, t_to * w.group));
}

/* Writes the parts of heads [from, to) of the group, at most ANE_ATT_ROWS, for query `t` and the current tile. */
static void part_of_tile(struct work *w, int64_t h, int64_t t, int64_t from, int64_t to, float *part) {
  struct panel now = {.s = w->s, .codes = w->codes};
  const int64_t panels = (to - from + ANE_ATT_PANEL - 1) / ANE_ATT_PANEL;
  const bool i16 = w->a->kv->dtype == ANE_I16;
  set_whole(w, t * w->group, t * w->group + 1);
  for (int64_t i = 0; i < panels; i++) {
    const int64_t g0 = from + (to - from) * i / panels, g1 = from + (to - from) * (i + 1) / panels, row = t * w->group + g0;
    const float *q = i16 ? w->q + (g0 - from) * w->pad : w->a->q + row_at(w, h, row, w->a->ld_q);
    now.leads = i == 0;
    panel_scores(w, &now, row, (int)(g1 - g0), q, w->hd);
    panel_largest(w, &now);
    if (i == 0 && i16) use_value_scales(w);
    panel_exponentials(w, &now);
    panel_values(w, &now, w->part, false);
    for (int64_t g = g0; g < g1; g++) {
      float *to_part = part + g * (2 + w->hd);
      const float *o = w->part + (g - g0) * w->pad;
      to_part[0] = now.m[g - g0];
      to_part[1] = now.l[g - g0];
      for (int64_t d = 0; d < w->hd; d += VL) v_store_n(to_part + 2 + d, v_add(v_load(o + d), v_set(0)), w->hd - d);
    }
  }
}

static void attention_part(const struct ane_attention *a, int64_t h, int64_t t, int64_t tile_from, int64_t tile_to, float *part,
                           void *scratch) {
  const int64_t p = a->pos + t, first = ANE_MAX(tile_from, ane_att_first(a, p) / ANE_TILE),
                end = ANE_MIN(tile_to, ane_att_last(a, p) / ANE_TILE + 1);
  struct work w;
  work_init(&w, a, scratch);
  for (int64_t from = 0, to; from < w.group; from = to) {
    to = ANE_MIN(from + ANE_ATT_ROWS, w.group);
    for (int64_t g = from; g < to && a->kv->dtype == ANE_I16; g++)
      code_query(&w, g - from, a->q + row_at(&w, h, t * w.group + g, a->ld_q));
    for (int64_t tile = first; tile < end; tile++) {
      use_tile(&w, h, tile, ANE_MIN(end * ANE_TILE - 1, ane_att_last(a, p)), to - from > FEW_ROWS);
      part_of_tile(&w, h, t, from, to, part + (tile - tile_from) * ane_part_floats(a));
    }
  }
}

/* Merges the parts of one head. O is accumulated in out and divided by L at the end. */
static void merge_head(const struct ane_attention *a, int64_t head, const float *part, int64_t stride, int64_t tiles, int64_t hd,
                       float *out) {
  vf big_m = v_set(-__builtin_inff()), big_l = v_set(0);
  for (int64_t d = 0; d < hd; d += VL) v_store_n(out + d, v_set(0), hd - d);
  for (int64_t i = 0; i < tiles; i++, part += stride) {
    const vf m = v_set(part[0]), next = v_max(m, big_m), x = v_exp_low(v_sub(big_m, next)), y = v_exp_low(v_sub(m, next));
    big_l = v_fma(v_set(part[1]), y, v_mul(big_l, x));
    big_m = next;
    for (int64_t d = 0; d < hd; d += VL)
      v_store_n(out + d, v_fma(v_load_n(part + 2 + d, hd - d), y, v_mul(v_load_n(out + d, hd - d), x)), hd - d);
  }
  vf x, l = sink_sum(a, head, big_m, big_l, &x);
  for (int64_t d = 0; d < hd; d += VL) v_store_n(out + d, v_div(v_mul(v_load_n(out + d, hd - d), x), l), hd - d);
}

static void attention_merge(const struct ane_attention *a, int64_t h, int64_t t, int64_t tile_from, int64_t tile_to,
                            const float *part) {
  const int64_t hd = a->kv->head_dim, group = a->n_heads / a->kv->heads, p = a->pos + t, stride = ane_part_floats(a);
  const int64_t from = ANE_MAX(tile_from, ane_att_first(a, p) / ANE_TILE),
                to = ANE_MIN(tile_to, ane_att_last(a, p) / ANE_TILE + 1);
  for (int64_t g = 0; g < group; g++)
    merge_head(a, h * group + g, part + (from - tile_from) * stride + g * (2 + hd), stride, to - from, hd,
               a->out + t * a->ld_out + (h * group + g) * hd);
}

/* ---- The cache ---------------------------------------------------------------------------------------------------*/

V_FN void encode_f32(float *p, vf x, ANE_UNUSED vf inverse) { v_store(p, x); }
V_FN void encode_f16(uint16_t *p, vf x, ANE_UNUSED vf inverse) { v_store_f16(p, x); }
V_FN void encode_i8(int8_t *p, vf x, vf inverse) {
  v_store_i8(p, v_max(v_set(-127.0f), v_min(v_set(127.0f), v_mul(x, inverse))));
}

/* Returns the inverses of the scales of VL tokens; p NULL: the type has no scales. */
V_FN vf inverses(const float *p, int64_t t) { return p ? v_load(p + t) : v_set(0); }

/* Functions that write one head. write_row writes a value to its row, an incomplete vector through `tmp`. write_column writes the
 * key of one token to a column of its tile. write_columns writes the keys of VL tokens (row stride ld; lane t of `inverse`
 * belongs to token t) to VL columns. write writes n tokens of one tile, from the given column and row on. */
#define WRITE_HEAD(type, name)                                                                                                   \
  V_FN void write_row_##name(type *row, const float *v, int64_t hd, vf inverse) {                                                \
    int64_t i = 0;                                                                                                               \
    type tmp[VL];                                                                                                                \
    for (; i + VL <= hd; i += VL) encode_##name(row + i, v_load(v + i), inverse);                                                \
    if (i == hd) return;                                                                                                         \
    encode_##name(tmp, v_load_n(v + i, hd - i), inverse);                                                                        \
    memcpy(row + i, tmp, (size_t)(hd - i) * sizeof(type));                                                                       \
  }                                                                                                                              \
  V_FN void write_column_##name(type *column, const float *k, int64_t hd, vf inverse) {                                          \
    for (int64_t i = 0; i < hd; i += VL) {                                                                                       \
      const int64_t n = ANE_MIN(hd - i, VL);                                                                                     \
      type tmp[VL];                                                                                                              \
      encode_##name(tmp, v_load_n(k + i, n), inverse);                                                                           \
      for (int64_t d = 0; d < n; d++) column[(i + d) * ANE_TILE] = tmp[d];                                                       \
    }                                                                                                                            \
  }                                                                                                                              \
  V_FN void write_columns_##name(type *column, const float *k, int64_t ld, int64_t hd, vf inverse) {                             \
    for (int64_t i = 0; i < hd; i += VL, column += VL * ANE_TILE) {                                                              \
      const int64_t n = ANE_MIN(hd - i, VL);                                                                                     \
      vf x[VL];                                                                                                                  \
      _Pragma("GCC unroll 16") for (int t = 0; t < VL; t++) x[t] = v_load_n(k + t * ld + i, n);                                  \
      v_transpose(x);                                                                                                            \
      _Pragma("GCC unroll 16") for (int d = 0; d < VL; d++) if (d < n) encode_##name(column + d * ANE_TILE, x[d], inverse);      \
    }                                                                                                                            \
  }                                                                                                                              \
  static void write_##name(type *column, type *row, const float *k, const float *v, int64_t ld, int64_t hd, int64_t n,           \
                           const float *ik, const float *iv) {                                                                   \
    int64_t t = 0;                                                                                                               \
    for (; t + VL <= n; t += VL) write_columns_##name(column + t, k + t * ld, ld, hd, inverses(ik, t));                          \
    for (; t < n; t++) write_column_##name(column + t, k + t * ld, hd, v_set(ik ? ik[t] : 0));                                   \
    for (t = 0; t < n; t++) write_row_##name(row + t * hd, v + t * ld, hd, v_set(iv ? iv[t] : 0));                               \
  }
WRITE_HEAD(float, f32)
WRITE_HEAD(uint16_t, f16)
WRITE_HEAD(int8_t, i8)

/* Writes n tokens from position pos on; they must not reach past the end of the tile. */
static void write_tile(const struct ane_kv *kv, int64_t h, int64_t pos, int64_t n, const float *k, const float *v, int64_t ld) {
  const int64_t hd = kv->head_dim, tile = pos / ANE_TILE, j = pos % ANE_TILE;
  void *to_k = ane_kv_k(kv, h, tile), *to_v = ane_kv_v(kv, h, tile);
  if (kv->dtype == ANE_F16) {
    write_f16((uint16_t *)to_k + j, (uint16_t *)to_v + j * hd, k, v, ld, hd, n, NULL, NULL);
  } else if (ane_kv_has_scales(kv->dtype)) {
    const bool i8 = kv->dtype == ANE_I8;
    float ik[ANE_TILE], iv[ANE_TILE], *base = ane_kv_base(kv, h);
    if (base && pos == 0) memcpy(base, k, (size_t)hd * sizeof *base);
    float *k_scale = ane_kv_k_scale(kv, h, tile) + j, *v_scale = ane_kv_v_scale(kv, h, tile) + j;
    for (int64_t t = 0; t < n; t++) {
      k_scale[t] = i8 ? code_scale(k + t * ld, hd, 127.0f, &ik[t]) : norm_scale(k + t * ld, base, hd, &ik[t]);
      v_scale[t] = i8 ? code_scale(v + t * ld, hd, 127.0f, &iv[t]) : value_exponent(v + t * ld, hd, &iv[t]);
    }
    if (i8)
      write_i8((int8_t *)to_k + j, (int8_t *)to_v + j * hd, k, v, ld, hd, n, ik, iv);
    else
      for (int64_t t = 0; t < n; t++)
        write_i16((int16_t *)to_k, (int16_t *)to_v, j + t, k + t * ld, base, v + t * ld, hd, ik[t], iv[t]);
  } else {
    write_f32((float *)to_k + j, (float *)to_v + j * hd, k, v, ld, hd, n, NULL, NULL);
  }
}

static void kv_write(const struct ane_kv *kv, int64_t pos, int64_t n, const float *k, const float *v, int64_t ld, int64_t h_from,
                     int64_t h_to) {
  for (int64_t h = h_from; h < h_to; h++)
    for (int64_t t = 0, some; t < n; t += some) {
      some = ANE_MIN(ANE_TILE - (pos + t) % ANE_TILE, n - t);
      write_tile(kv, h, pos + t, some, k + t * ld + h * kv->head_dim, v + t * ld + h * kv->head_dim, ld);
    }
}
