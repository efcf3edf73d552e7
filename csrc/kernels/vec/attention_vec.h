/* Attention for any vector length; included by attention_<isa>.c after vec_<isa>.h.
 *
 * A row is one query of one head of the group; rows are numbered token by token, so the rows that see a tile are a
 * range. Up to ROWS rows share a tile, converted to float once; up to PANEL rows go through a tile at a time: scores
 * (lanes are keys), exp, sums of values (lanes are dimensions). Few rows read the tile as it is stored.
 * Leaving out keys that no row of a panel sees changes nothing: their p is 0 (see attention_ref.c on -0). */
#include "kernels/attention_shared.h"
#include "kernels/mathfn.h"

#include <string.h>

enum { F32, F16, I8 }; /* kinds of the second factor of a product, and their bytes */
static const int64_t bytes[] = {4, 2, 1};

struct work {
  const struct ane_attention *a;
  int64_t group, hd, pad;
  int64_t tile, scales, ld_v;   /* the tile at hand, where its scales begin */
  int kind_k, kind_v;
  const void *k, *v;            /* [hd][64], [64][ld_v] */
  float *tile_k, *tile_v;       /* converted: [hd][64], [64][pad] */
  float *q, *o, *big_m, *big_l; /* [ROWS][pad], [ROWS][pad], [ROWS], [ROWS] */
  float *s, *part;              /* scores, then p: [PANEL][64]; o: [PANEL][pad] */
};

/* Up to PANEL rows on their way through the tile at hand. */
struct panel {
  int rows;
  int64_t row;                                          /* the first, counted from query 0 of the call */
  int64_t first[ANE_ATT_PANEL], last[ANE_ATT_PANEL];    /* keys of the tile that each row sees, at least one */
  int64_t begin, end, from, to;                         /* keys that some row sees, and whole sixteens around them */
  float m[16], l[16];                                   /* largest score, sum of p */
  float old[16], new[16];                               /* factors of O and of o in their sum */
};

/* ---- Products ----------------------------------------------------------------------------------------------------*/

V_FN vf load_as(int kind, const void *p, int64_t i) {
  if (kind == F16) return v_load_f16((const uint16_t *)p + i);
  if (kind == I8) return v_load_i8((const int8_t *)p + i);
  return v_load((const float *)p + i);
}

/* A block keeps its sums, a row of the second factor and one element of the first in registers; with one row the second
 * factor is taken vector by vector. */
enum { MOST_VECS = 8 };
#define VECS_FOR(rows) ((rows) == 1 ? MOST_VECS : ANE_MIN((V_REGISTERS - 1) / ((rows) + 1), MOST_VECS))

/* Stored tiles are read once, from memory: each cache line is asked for this far ahead, about a tile of 64 x 64 fp16
 * (measured on Zen 5 at depth 65536: 42 GB/s without, 55 with; half or twice as far is worse). */
enum { AHEAD = 8192 };

/* c[r][x] = sum over k ascending of fma(a[r][k], b[k][x], .) for `rows` rows and `vecs` vectors of x, all in registers. */
V_FN void block(const int rows, const int vecs, const int kind, int64_t n, const float *a, int64_t lda, const void *b,
                int64_t ldb, float *c, int64_t ldc) {
  const int width = kind == F16 ? 2 : 1;
  vf sum[ANE_ATT_PANEL][MOST_VECS];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) sum[r][x] = v_set(0);
  for (int64_t k = 0; k < n; k++) {
    vf w[MOST_VECS];
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) w[x] = load_as(kind, b, k * ldb + x * VL);
    if (kind != F32)
#pragma GCC unroll 8
      for (int x = 0; x < vecs; x += 64 / (VL * width)) __builtin_prefetch((const char *)b + (k * ldb + x * VL) * width + AHEAD);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      vf e = v_set(a[r * lda + k]);
#pragma GCC unroll 8
      for (int x = 0; x < vecs; x++) sum[r][x] = v_fma(e, w[x], sum[r][x]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int x = 0; x < vecs; x++) v_store(c + r * ldc + x * VL, sum[r][x]);
}

typedef void (*block_fn)(int rows, int64_t n, const float *a, int64_t lda, const void *b, int64_t ldb, float *c, int64_t ldc);

#define BLOCK(rows, vecs, kind)                                                                                                  \
  case rows:                                                                                                                     \
    if (vecs <= VECS_FOR(rows)) block(rows, vecs, kind, n, a, lda, b, ldb, c, ldc);                                              \
    break;
#define BLOCKS(name, vecs, kind)                                                                                                 \
  static void name(int r, int64_t n, const float *a, int64_t lda, const void *b, int64_t ldb, float *c, int64_t ldc) {           \
    switch (r) {                                                                                                                 \
      BLOCK(1, vecs, kind)                                                                                                       \
      BLOCK(2, vecs, kind)                                                                                                       \
      BLOCK(3, vecs, kind)                                                                                                       \
      BLOCK(4, vecs, kind)                                                                                                       \
      BLOCK(5, vecs, kind)                                                                                                       \
      BLOCK(6, vecs, kind)                                                                                                       \
    }                                                                                                                            \
  }
#define BLOCKS_OF(name, kind)                                                                                                    \
  BLOCKS(name##_1, 1, kind)                                                                                                      \
  BLOCKS(name##_2, 2, kind)                                                                                                      \
  BLOCKS(name##_3, 3, kind)                                                                                                      \
  BLOCKS(name##_4, 4, kind)                                                                                                      \
  BLOCKS(name##_5, 5, kind)                                                                                                      \
  BLOCKS(name##_6, 6, kind)                                                                                                      \
  BLOCKS(name##_7, 7, kind)                                                                                                      \
  BLOCKS(name##_8, 8, kind)                                                                                                      \
  static const block_fn name[MOST_VECS] = {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8};
BLOCKS_OF(blocks_f32, F32)
BLOCKS_OF(blocks_f16, F16)
BLOCKS_OF(blocks_i8, I8)

/* The product for any number of vectors, cut into blocks as even as possible. */
static void product(int kind, int rows, int64_t vecs, int64_t n, const float *a, int64_t lda, const void *b, int64_t ldb,
                    float *c, int64_t ldc) {
  const block_fn *fn = kind == F32 ? blocks_f32 : kind == F16 ? blocks_f16 : blocks_i8;
  const int64_t most = VECS_FOR(rows), parts = (vecs + most - 1) / most;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t from = vecs * i / parts, to = vecs * (i + 1) / parts;
    fn[to - from - 1](rows, n, a, lda, (const char *)b + from * VL * bytes[kind], ldb, c + from * VL, ldc);
  }
}

/* ---- One panel, one tile -----------------------------------------------------------------------------------------*/

/* Scales, caps and hides the scores of a row: only keys first .. last of the tile are seen; from .. to are whole
 * sixteens around them. Returns the largest. */
static float finish_scores(const struct work *w, float *s, int64_t from, int64_t to, int64_t first, int64_t last) {
  const struct ane_attention *a = w->a;
  const bool i8 = a->kv->dtype == ANE_I8;
  const float *k_scale = i8 ? a->kv->k_scale + w->scales : NULL;
  const bool hide = first > from || last < to - 1;
  vf m = v_set(-__builtin_inff());
  for (int64_t j = from; j < to; j += VL) {
    vf v = v_load(s + j);
    if (i8) v = v_mul(v, v_load(k_scale + j));
    v = v_mul(v, v_set(a->scale));
    if (a->softcap > 0) v = v_softcap(v, v_set(a->softcap));
    if (hide) v = v_keep_range(v, j, first, last);
    v_store(s + j, v);
    m = v_max(v, m);
  }
  return v_largest(m);
}

/* s becomes p = exp(s - m) (int8: times the scale of the value); returns the sum of the p. */
static float exponentials(const struct work *w, float *s, int64_t from, int64_t to, float m) {
  const bool i8 = w->a->kv->dtype == ANE_I8;
  const float *v_scale = i8 ? w->a->kv->v_scale + w->scales : NULL;
  vf l[V_PARTS];
  for (int p = 0; p < V_PARTS; p++) l[p] = v_set(0);
  for (int64_t j = from; j < to; j += 16)
    for (int p = 0; p < V_PARTS; p++) {
      const int64_t i = j + p * VL;
      vf e = v_exp_low(v_sub(v_load(s + i), v_set(m)));
      l[p] = v_add(l[p], e);
      v_store(s + i, i8 ? v_mul(e, v_load(v_scale + i)) : e);
    }
  return v_fold(l);
}

/* The three steps of a panel. Step 1: which keys, and their products with q [rows], stride ldq. */
static void panel_scores(const struct work *w, struct panel *p, int64_t row, int rows, const float *q, int64_t ldq) {
  const struct ane_attention *a = w->a;
  p->row = row;
  p->rows = rows;
  for (int r = 0; r < rows; r++) {
    const int64_t pos = a->pos + (row + r) / w->group;
    p->first[r] = ANE_MAX(ane_att_first(a, pos) - w->tile * ANE_TILE, 0);
    p->last[r] = ANE_MIN(ane_att_last(a, pos) - w->tile * ANE_TILE, ANE_TILE - 1);
  }
  p->begin = p->first[0];
  p->end = p->last[rows - 1] + 1;
  p->from = p->begin / 16 * 16;
  p->to = (p->end + 15) / 16 * 16;
  product(w->kind_k, rows, (p->to - p->from) / VL, w->hd, q, ldq, (const char *)w->k + p->from * bytes[w->kind_k], ANE_TILE,
          w->s + p->from, ANE_TILE);
}

/* Step 2: m, p, l. */
static void panel_softmax(const struct work *w, struct panel *p) {
  for (int r = 0; r < p->rows; r++)
    p->m[r] = finish_scores(w, w->s + r * ANE_TILE, p->from, p->to, p->first[r], p->last[r]);
  for (int r = 0; r < p->rows; r++) p->l[r] = exponentials(w, w->s + r * ANE_TILE, p->from, p->to, p->m[r]);
}

/* Step 3: o, to w->part, yet without the + 0. */
static void panel_values(const struct work *w, const struct panel *p) {
  product(w->kind_v, p->rows, w->pad / VL, p->end - p->begin, w->s + p->begin, ANE_TILE,
          (const char *)w->v + p->begin * w->ld_v * bytes[w->kind_v], w->ld_v, w->part, w->pad);
}

enum { FEW_ROWS = 2 * ANE_ATT_PANEL }; /* so many read a tile as it is stored */

/* The tile as stored or, for more rows, as floats in scratch. A value row that is no whole number of vectors must be
 * copied in any case: a load past it could leave the cache. */
static void use_tile(struct work *w, int64_t h, int64_t tile, bool convert) {
  const struct ane_kv *kv = w->a->kv;
  const int kind = kv->dtype == ANE_F16 ? F16 : kv->dtype == ANE_I8 ? I8 : F32;
  const int64_t base = ane_att_tile(kv, h, tile);
  w->tile = tile;
  w->scales = ane_att_scales(kv, h, tile);
  w->k = (const char *)kv->k + base * bytes[kind];
  w->v = (const char *)kv->v + base * bytes[kind];
  w->kind_k = w->kind_v = kind;
  w->ld_v = w->hd;
  convert = convert && kind != F32;
  if (convert) {
    for (int64_t i = 0; i < w->hd * ANE_TILE; i += VL) v_store(w->tile_k + i, load_as(kind, w->k, i));
    w->k = w->tile_k;
    w->kind_k = F32;
  }
  if (!convert && w->pad == w->hd) return;
  for (int64_t j = 0; j < ANE_TILE; j++) {
    float *row = w->tile_v + j * w->pad;
    int64_t d = 0;
    for (; d + VL <= w->hd; d += VL) v_store(row + d, load_as(kind, w->v, j * w->hd + d));
    for (; d < w->hd; d++) row[d] = ane_att_element(kv, w->v, j * w->hd + d);
    for (; d < w->pad; d++) row[d] = 0;
  }
  w->v = w->tile_v;
  w->kind_v = F32;
  w->ld_v = w->pad;
}

/* ---- Combining tiles ---------------------------------------------------------------------------------------------*/

/* M and L of the panel's rows take in the tile; row: the first, counted from the first in scratch. */
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

/* The same for O. */
static void combine_values(const struct work *w, const struct panel *p, int64_t row) {
  for (int r = 0; r < p->rows; r++) {
    const float *part = w->part + r * w->pad;
    float *o = w->o + (row + r) * w->pad;
    const vf old = v_set(p->old[r]), new = v_set(p->new[r]);
    for (int64_t d = 0; d < w->pad; d += VL)
      v_store(o + d, v_fma(v_add(v_load(part + d), v_set(0)), new, v_mul(v_load(o + d), old)));
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
  w->s = p, p += ANE_ATT_PANEL * ANE_TILE;
  w->part = p, p += ANE_ATT_PANEL * w->pad;
  w->big_m = p, p += ANE_ATT_ROWS;
  w->big_l = p;
}

/* Where a row (counted from query 0 of the call) lies in q or out. */
static int64_t row_at(const struct work *w, int64_t h, int64_t row, int64_t ld) {
  return row / w->group * ld + (h * w->group + row % w->group) * w->hd;
}

/* Rows [from, to) over the tile at hand, in panels as even as possible; `begin` is the first row in scratch. */
static void attend_tile(struct work *w, int64_t begin, int64_t from, int64_t to) {
  const int64_t n = (to - from + ANE_ATT_PANEL - 1) / ANE_ATT_PANEL;
  struct panel p;
  for (int64_t i = 0; i < n; i++) {
    const int64_t r0 = from + (to - from) * i / n, r1 = from + (to - from) * (i + 1) / n;
    panel_scores(w, &p, r0, (int)(r1 - r0), w->q + (r0 - begin) * w->pad, w->pad);
    panel_softmax(w, &p);
    combine_sums(w, &p, r0 - begin);
    panel_values(w, &p);
    combine_values(w, &p, r0 - begin);
  }
}

/* L with the head's sink, and the factor *x of O (1 without a sink, which changes no bit). */
V_FN vf sink_sum(const struct ane_attention *a, int64_t head, vf m, vf l, vf *x) {
  *x = v_set(1);
  if (!a->sinks) return l;
  const vf sink = v_set(a->sinks[head]), next = v_max(m, sink);
  *x = v_exp_low(v_sub(m, next));
  return v_fma(l, *x, v_exp_low(v_sub(sink, next)));
}

/* Rows [begin, end) of kv head h, at most ROWS. */
static void attend(struct work *w, int64_t h, int64_t begin, int64_t end) {
  const struct ane_attention *a = w->a;
  const int64_t p0 = a->pos + begin / w->group, p1 = a->pos + (end - 1) / w->group;
  for (int64_t r = begin; r < end; r++) {
    memcpy(w->q + (r - begin) * w->pad, a->q + row_at(w, h, r, a->ld_q), (size_t)w->hd * sizeof(float));
    w->big_m[r - begin] = -__builtin_inff();
    w->big_l[r - begin] = 0;
  }
  memset(w->o, 0, (size_t)((end - begin) * w->pad) * sizeof(float));
  for (int64_t tile = ane_att_first(a, p0) / ANE_TILE; tile <= ane_att_last(a, p1) / ANE_TILE; tile++) {
    /* The queries from `tile` on (less those ahead) see it, by a window only as far as its last key is inside. */
    int64_t from = ANE_MAX((tile * ANE_TILE - a->ahead - a->pos) * w->group, begin), to = end;
    if (a->window > 0) to = ANE_MIN((tile * ANE_TILE + ANE_TILE - 1 + a->window - a->pos) * w->group, end);
    if (from >= to) continue;
    use_tile(w, h, tile, to - from > FEW_ROWS);
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

static void attention_part(const struct ane_attention *a, int64_t h, int64_t t, int64_t tile, float *part, void *scratch) {
  const int64_t p = a->pos + t;
  struct work w;
  if (tile < ane_att_first(a, p) / ANE_TILE || tile > ane_att_last(a, p) / ANE_TILE) return;
  work_init(&w, a, scratch);
  use_tile(&w, h, tile, w.group > FEW_ROWS);
  struct panel now;
  const int64_t panels = (w.group + ANE_ATT_PANEL - 1) / ANE_ATT_PANEL;
  for (int64_t i = 0; i < panels; i++) {
    const int64_t g0 = w.group * i / panels, g1 = w.group * (i + 1) / panels, row = t * w.group + g0;
    panel_scores(&w, &now, row, (int)(g1 - g0), a->q + row_at(&w, h, row, a->ld_q), w.hd);
    panel_softmax(&w, &now);
    panel_values(&w, &now);
    for (int64_t g = g0; g < g1; g++) {
      float *to = part + g * (2 + w.hd);
      const float *o = w.part + (g - g0) * w.pad;
      to[0] = now.m[g - g0];
      to[1] = now.l[g - g0];
      for (int64_t d = 0; d < w.hd; d += VL) v_store_n(to + 2 + d, v_add(v_load(o + d), v_set(0)), w.hd - d);
    }
  }
}

/* One head: O stands in out until it is divided. */
static void merge_head(const struct ane_attention *a, int64_t head, const float *part, int64_t stride, int64_t tiles, int64_t hd, float *out) {
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
  const int64_t from = ANE_MAX(tile_from, ane_att_first(a, p) / ANE_TILE), to = ANE_MIN(tile_to, ane_att_last(a, p) / ANE_TILE + 1);
  for (int64_t g = 0; g < group; g++)
    merge_head(a, h * group + g, part + (from - tile_from) * stride + g * (2 + hd), stride, to - from, hd,
               a->out + t * a->ld_out + (h * group + g) * hd);
}

/* ---- The cache ---------------------------------------------------------------------------------------------------*/

/* As code_scale of attention_ref.c. */
static float code_scale(const float *x, int64_t n, float *inverse) {
  vf m = v_set(0);
  for (int64_t i = 0; i < n; i += VL) m = v_max(v_abs(v_load_n(x + i, n - i)), m);
  const float amax = v_largest(m);
  *inverse = amax > 0x1p-120f && amax < __builtin_inff() ? 127.0f / amax : 0.0f;
  return *inverse > 0 ? amax / 127.0f : 0.0f;
}

V_FN void encode_f32(float *p, vf x, ANE_UNUSED vf inverse) { v_store(p, x); }
V_FN void encode_f16(uint16_t *p, vf x, ANE_UNUSED vf inverse) { v_store_f16(p, x); }
V_FN void encode_i8(int8_t *p, vf x, vf inverse) {
  v_store_i8(p, v_max(v_set(-127.0f), v_min(v_set(127.0f), v_mul(x, inverse))));
}

/* Inverses of the scales of VL tokens; NULL: none are used. */
V_FN vf inverses(const float *p, int64_t t) { return p ? v_load(p + t) : v_set(0); }

/* One head. write_row: a value along its row, what is left of it by way of `tmp`. write_column: the key of one token down a
 * column of its tile. write_columns: those of VL tokens (row stride ld, lane t of `inverse` belongs to token t) down VL columns.
 * write: n tokens of one tile from the given column and row on. */
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

/* The part of one tile: n tokens from position pos on, which end with the tile at the latest. */
static void write_tile(const struct ane_kv *kv, int64_t h, int64_t pos, int64_t n, const float *k, const float *v, int64_t ld) {
  const int64_t hd = kv->head_dim, tile = pos / ANE_TILE, j = pos % ANE_TILE;
  const int64_t base = ane_att_tile(kv, h, tile), at_k = base + j, at_v = base + j * hd;
  if (kv->dtype == ANE_F16) {
    write_f16((uint16_t *)kv->k + at_k, (uint16_t *)kv->v + at_v, k, v, ld, hd, n, NULL, NULL);
  } else if (kv->dtype == ANE_I8) {
    float ik[ANE_TILE], iv[ANE_TILE];
    const int64_t at = ane_att_scales(kv, h, tile) + j;
    for (int64_t t = 0; t < n; t++) {
      kv->k_scale[at + t] = code_scale(k + t * ld, hd, &ik[t]);
      kv->v_scale[at + t] = code_scale(v + t * ld, hd, &iv[t]);
    }
    write_i8((int8_t *)kv->k + at_k, (int8_t *)kv->v + at_v, k, v, ld, hd, n, ik, iv);
  } else {
    write_f32((float *)kv->k + at_k, (float *)kv->v + at_v, k, v, ld, hd, n, NULL, NULL);
  }
}

static void kv_write(const struct ane_kv *kv, int64_t pos, int64_t n, const float *k, const float *v, int64_t ld, int64_t h_from, int64_t h_to) {
  for (int64_t h = h_from; h < h_to; h++)
    for (int64_t t = 0, some; t < n; t += some) {
      some = ANE_MIN(ANE_TILE - (pos + t) % ANE_TILE, n - t);
      write_tile(kv, h, pos + t, some, k + t * ld + h * kv->head_dim, v + t * ld + h * kv->head_dim, ld);
    }
}
