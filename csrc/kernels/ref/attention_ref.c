/* Attention and writes to its cache in scalar C. The other levels are tested against this file.
 *
 * The order of operations is that of kernels.h, with one more step: + 0 at the end of the sums o of a tile. It turns a -0 (from
 * underflow) into +0, so the result is the same whether a level skips hidden keys or gives them the weight 0. */
#include "kernels/attention_shared.h"
#include "kernels/vec/vec_scalar.h"
#include "kernels/mathfn.h"

#include <string.h>

/* Bytes of scratch, enough for every level. It holds a K tile [head_dim][64], a V tile [64][pad], rows of q and of O ([ROWS][pad]
 * each), the scores of all panels [PANELS * PANEL][64] with their int16 codes, the sums of one panel [PANEL][pad], and M, L and
 * the scale of each row. */
size_t ane_attention_scratch(ANE_UNUSED int64_t n_heads, ANE_UNUSED int64_t kv_heads, int64_t head_dim) {
  int64_t pad = ane_att_pad(head_dim);
  int64_t floats =
      2 * ANE_TILE * pad + ANE_ATT_ROWS * (2 * pad + 3) + ANE_ATT_PANEL * (ANE_ATT_PANELS * (ANE_TILE + ANE_TILE / 2) + pad);
  return ane_align_up((size_t)floats * sizeof(float), 64) + 64;
}

/* Returns the scale of codes of magnitude `most` or less for n values, and sets its inverse. Both are 0 where the values are too
 * small or not finite. */
static float code_scale(const float *x, int64_t n, float most, float *inverse) {
  float amax = 0;
  for (int64_t i = 0; i < n; i++) amax = v_max(v_abs(x[i]), amax);
  *inverse = amax > ane_att_min_magnitude(most) && amax < INFINITY ? most / amax : 0.0f;
  return *inverse > 0 ? amax / most : 0.0f;
}

/* The sum of 16 lanes, in the order of kernels.h. */
static float fold(float lane[16]) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  return lane[0];
}

/* Returns x[i], or x[i] - base[i] if there is a base. */
static float relative(const float *x, const float *base, int64_t i) { return base ? x[i] - base[i] : x[i]; }

/* As code_scale, for int16 queries and keys, whose norm limits the codes too. Both are 0 if some value is NaN. */
static float norm_scale(const float *x, const float *base, int64_t n, float *inverse) {
  float amax = 0, lane[16] = {0};
  for (int64_t i = 0; i < n; i++) amax = v_max(v_abs(relative(x, base, i)), amax);
  *inverse = 0;
  if (!(amax > ane_att_min_magnitude(ANE_ATT_CODE) && amax < INFINITY)) return 0;
  const float by = 1 / amax;
  for (int64_t i = 0; i < n; i++) {
    const float y = relative(x, base, i) * by;
    lane[i % 16] = fmaf(y, y, lane[i % 16]);
  }
  const float norm = sqrtf(fold(lane)), limit = ANE_ATT_NORM / norm, most = v_min(limit, ANE_ATT_CODE);
  if (!(norm > 0)) return 0;
  *inverse = most / amax;
  return amax / most;
}

/* Rounds x * inverse to the nearest even code in [-most, most]: adding 1.5 * 2^23 leaves the integer in the low bits. NaN and
 * infinity give an unspecified code. */
static int16_t code(float x, float inverse, float most) {
  float q = v_max(v_set(-most), v_min(v_set(most), x * inverse));
  return (int16_t)(uint16_t)ane_f32_bits(q + 0x1.8p23f);
}

/* The code of a weight: the nearest even integer. */
static int16_t weight_code(float w) { return (int16_t)(uint16_t)ane_f32_bits(fmaf(w, ANE_ATT_WEIGHT, 0x1.8p23f)); }

/* One query and one tile of one KV head. */
struct row {
  const struct ane_kv *kv;
  const void *k, *v;
  const float *k_scale, *v_scale;       /* NULL: none */
  int64_t first, last;                  /* visible keys, inclusive, in the tile */
  float scale, softcap, s[ANE_TILE], m; /* s: scores, then weights; m: the largest score */
};

/* Computes the weights of a float query. */
static void float_weights(struct row *r, const float *q) {
  for (int64_t j = r->first; j <= r->last; j++) {
    float sum = 0;
    for (int64_t d = 0; d < r->kv->head_dim; d++) sum = fmaf(q[d], ane_att_element(r->kv, r->k, ane_att_k(r->kv, d, j)), sum);
    if (r->k_scale) sum *= r->k_scale[j];
    r->s[j] = sum * r->scale;
  }
  r->m = -INFINITY;
  for (int64_t j = r->first; j <= r->last; j++) {
    if (r->softcap > 0) r->s[j] = v_softcap(r->s[j], r->softcap);
    r->m = v_max(r->s[j], r->m);
  }
  for (int64_t j = r->first; j <= r->last; j++) r->s[j] = v_exp_low(r->s[j] - r->m);
}

/* Computes the weights of a query that is rounded to int16 codes, times the scales of the values. */
static void code_weights(struct row *r, const float *q) {
  const int64_t hd = r->kv->head_dim;
  float inverse, c = norm_scale(q, NULL, hd, &inverse) * v_abs(r->scale), top = -INFINITY;
  if (r->scale < 0) inverse = -inverse;
  for (int64_t j = r->first; j <= r->last; j++) {
    int32_t sum = 0;
    for (int64_t d = 0; d < hd; d++) sum += code(q[d], inverse, ANE_ATT_CODE) * ((const int16_t *)r->k)[ane_att_k(r->kv, d, j)];
    const float x = (float)sum * r->k_scale[j];
    if (r->softcap > 0)
      r->s[j] = fmaf(v_softcap(x * c, r->softcap), V_LOG2_E, r->v_scale[j]);
    else
      r->s[j] = fmaf(x, c * V_LOG2_E, r->v_scale[j]);
    top = v_max(r->s[j], top);
  }
  r->m = top * ANE_ATT_LN2;
  for (int64_t j = r->first; j <= r->last; j++) r->s[j] = v_exp2_rough(r->s[j] - top);
}

/* o[head_dim] = sum over the visible keys of weight times value. code_values does the same in int16 codes. */
static void float_values(const struct row *r, float *o) {
  for (int64_t d = 0; d < r->kv->head_dim; d++) {
    o[d] = 0;
    for (int64_t j = r->first; j <= r->last; j++)
      o[d] = fmaf(r->s[j], ane_att_element(r->kv, r->v, ane_att_v(r->kv, j, d)), o[d]);
    o[d] += 0.0f;
  }
}
static void code_values(const struct row *r, float *o) {
  for (int64_t d = 0; d < r->kv->head_dim; d++) {
    int32_t sum = 0;
    for (int64_t j = r->first; j <= r->last; j++) sum += weight_code(r->s[j]) * ((const int16_t *)r->v)[ane_att_v(r->kv, j, d)];
    o[d] = (float)sum * (1 / ANE_ATT_WEIGHT);
  }
}

/* Writes (m, l, o[head_dim]) of the query q at position p over the visible keys of one tile of KV head h to part. */
static void tile_of_query(const struct ane_attention *a, const float *q, int64_t h, int64_t p, int64_t tile, float *part) {
  const struct ane_kv *kv = a->kv;
  const bool i16 = kv->dtype == ANE_I16, scaled = ane_kv_has_scales(kv->dtype);
  struct row r = {.kv = kv,
                  .k = ane_kv_k(kv, h, tile),
                  .v = ane_kv_v(kv, h, tile),
                  .k_scale = scaled ? ane_kv_k_scale(kv, h, tile) : NULL,
                  .v_scale = scaled ? ane_kv_v_scale(kv, h, tile) : NULL,
                  .first = ANE_MAX(ane_att_first(a, p) - tile * ANE_TILE, 0),
                  .last = ANE_MIN(ane_att_last(a, p) - tile * ANE_TILE, ANE_TILE - 1),
                  .scale = a->scale,
                  .softcap = a->softcap};
  float lane[16] = {0};
  if (i16)
    code_weights(&r, q);
  else
    float_weights(&r, q);
  for (int64_t j = r.first; j <= r.last; j++) {
    if (i16)
      lane[j % 16] = fmaf(r.s[j], v_exp2_rough(-r.v_scale[j]), lane[j % 16]);
    else
      lane[j % 16] += r.s[j];
    if (kv->dtype == ANE_I8) r.s[j] *= r.v_scale[j];
  }
  if (i16)
    code_values(&r, part + 2);
  else
    float_values(&r, part + 2);
  part[0] = r.m;
  part[1] = fold(lane);
}

/* Adds the part of a tile to the running maximum, sum and output of a head. */
static void combine(const float *part, int64_t hd, float *big_m, float *big_l, float *big_o) {
  float m = v_max(part[0], *big_m), x = v_exp_low(*big_m - m), y = v_exp_low(part[0] - m);
  *big_l = fmaf(part[1], y, *big_l * x);
  for (int64_t d = 0; d < hd; d++) big_o[d] = fmaf(part[2 + d], y, big_o[d] * x);
  *big_m = m;
}

/* Finishes head g: adds its sink to the sum, then divides O by L. */
static void divide(const struct ane_attention *a, int64_t g, int64_t hd, float m, float l, float *o) {
  if (a->sinks) {
    float next = v_max(m, a->sinks[g]), x = v_exp_low(m - next);
    l = fmaf(l, x, v_exp_low(a->sinks[g] - next));
    for (int64_t d = 0; d < hd; d++) o[d] *= x;
  }
  for (int64_t d = 0; d < hd; d++) o[d] /= l;
}

static void attention(const struct ane_attention *a, int64_t h, int64_t t_from, int64_t t_to, void *scratch) {
  const int64_t hd = a->kv->head_dim, group = a->n_heads / a->kv->heads;
  for (int64_t t = t_from; t < t_to; t++) {
    const int64_t p = a->pos + t;
    for (int64_t g = h * group; g < (h + 1) * group; g++) {
      float *o = a->out + t * a->ld_out + g * hd, m = -INFINITY, l = 0;
      for (int64_t d = 0; d < hd; d++) o[d] = 0;
      for (int64_t tile = ane_att_first(a, p) / ANE_TILE; tile <= ane_att_last(a, p) / ANE_TILE; tile++) {
        tile_of_query(a, a->q + t * a->ld_q + g * hd, h, p, tile, scratch);
        combine(scratch, hd, &m, &l, o);
      }
      divide(a, g, hd, m, l, o);
    }
  }
}

static void attention_part(const struct ane_attention *a, int64_t h, int64_t t, int64_t tile_from, int64_t tile_to, float *part,
                           ANE_UNUSED void *scratch) {
  const int64_t hd = a->kv->head_dim, group = a->n_heads / a->kv->heads, p = a->pos + t;
  for (int64_t tile = tile_from; tile < tile_to; tile++)
    for (int64_t g = 0; g < group; g++, part += 2 + hd)
      if (tile >= ane_att_first(a, p) / ANE_TILE && tile <= ane_att_last(a, p) / ANE_TILE)
        tile_of_query(a, a->q + t * a->ld_q + (h * group + g) * hd, h, p, tile, part);
}

static void attention_merge(const struct ane_attention *a, int64_t h, int64_t t, int64_t tile_from, int64_t tile_to,
                            const float *part) {
  const int64_t hd = a->kv->head_dim, group = a->n_heads / a->kv->heads, p = a->pos + t;
  const int64_t from = ANE_MAX(tile_from, ane_att_first(a, p) / ANE_TILE),
                to = ANE_MIN(tile_to, ane_att_last(a, p) / ANE_TILE + 1);
  for (int64_t g = 0; g < group; g++) {
    float *o = a->out + t * a->ld_out + (h * group + g) * hd, m = -INFINITY, l = 0;
    for (int64_t d = 0; d < hd; d++) o[d] = 0;
    for (int64_t tile = from; tile < to; tile++) combine(part + ((tile - tile_from) * group + g) * (2 + hd), hd, &m, &l, o);
    divide(a, h * group + g, hd, m, l, o);
  }
}

/* ---- The cache ---------------------------------------------------------------------------------------------------*/

static void store(const struct ane_kv *kv, void *base, int64_t i, float x, float inverse, float most) {
  if (kv->dtype == ANE_F16)
    ((uint16_t *)base)[i] = ane_f32_f16(x);
  else if (kv->dtype == ANE_I8)
    ((int8_t *)base)[i] = (int8_t)code(x, inverse, most);
  else if (kv->dtype == ANE_I16)
    ((int16_t *)base)[i] = code(x, inverse, most);
  else
    ((float *)base)[i] = x;
}

/* Return what is stored as the scale of a key or value, and set the inverse of its scale. */
static float key_scale(const struct ane_kv *kv, const float *k, const float *base, float *inverse) {
  if (kv->dtype == ANE_I8) return code_scale(k, kv->head_dim, 127, inverse);
  return norm_scale(k, base, kv->head_dim, inverse);
}
static float value_scale(const struct ane_kv *kv, const float *v, float *inverse) {
  if (kv->dtype == ANE_I8) return code_scale(v, kv->head_dim, 127, inverse);
  float amax = 0;
  for (int64_t d = 0; d < kv->head_dim; d++) amax = v_max(v_abs(v[d]), amax);
  const float e = ane_att_exponent(amax);
  *inverse = v_exp2_rough(-e);
  return e;
}

static void write_token(const struct ane_kv *kv, int64_t pos, const float *k, const float *v, int64_t h_from, int64_t h_to) {
  const int64_t hd = kv->head_dim, tile = pos / ANE_TILE, j = pos % ANE_TILE;
  const bool i8 = kv->dtype == ANE_I8;
  const float most_k = i8 ? 127 : ANE_ATT_CODE, most_v = i8 ? 127 : ANE_ATT_VALUE;
  for (int64_t h = h_from; h < h_to; h++) {
    void *to_k = ane_kv_k(kv, h, tile), *to_v = ane_kv_v(kv, h, tile);
    float ik = 0, iv = 0, *base = ane_kv_base(kv, h);
    if (base && pos == 0) memcpy(base, k + h * hd, (size_t)hd * sizeof *base);
    if (ane_kv_has_scales(kv->dtype)) {
      ane_kv_k_scale(kv, h, tile)[j] = key_scale(kv, k + h * hd, base, &ik);
      ane_kv_v_scale(kv, h, tile)[j] = value_scale(kv, v + h * hd, &iv);
    }
    for (int64_t d = 0; d < hd; d++) {
      store(kv, to_k, ane_att_k(kv, d, j), relative(k + h * hd, base, d), ik, most_k);
      store(kv, to_v, ane_att_v(kv, j, d), v[h * hd + d], iv, most_v);
    }
    if (kv->dtype == ANE_I16 && hd % 2) ((int16_t *)to_k)[ane_att_k(kv, hd, j)] = 0;
  }
}

static void kv_write(const struct ane_kv *kv, int64_t pos, int64_t n, const float *k, const float *v, int64_t ld, int64_t h_from,
                     int64_t h_to) {
  for (int64_t t = 0; t < n; t++) write_token(kv, pos + t, k + t * ld, v + t * ld, h_from, h_to);
}

void ane_attention_ref(struct ane_kernels *k) {
  k->kv_write = kv_write;
  k->attention = attention;
  k->attention_part = attention_part;
  k->attention_merge = attention_merge;
}
