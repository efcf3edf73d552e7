/* The table of roundings: parameters, lines and packing of blocks by type. Also the encoders of types with tables of values. */
#include "quant/rounding.h"

#include "quant/blocks.h"
#include "quant/exact_line.h"
#include "quant/quant_internal.h"
#include "quant/wide.h"
#include "tensor/half.h"

#include <math.h>

static float inverse(float v) { return v != 0 ? 1 / v : 0; }
static float in_half(float v) { return ane_f16_f32(ane_f32_f16(ANE_MAX(ANE_MIN(v, 65504.0f), -65504.0f))); }

/* ---- Blocks with one scale ----------------------------------------------------------------------------------------------*/

/* Candidates for a scale, as factors of the fitted one. */
static const float factors[] = {1, 0.96f, 1.04f, 0.92f, 1.08f, 0.88f, 0.84f, 1.12f};
enum { FACTORS = ANE_COUNT(factors) };

/* Up to 5 bits the scale is searched; with 8 bits it is that of the largest element. */
static void fit_signed(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c) {
  float far = 0;
  c->offset = 0;
  if (f->half <= 16) {
    struct ane_span s = ane_span_of(x, w, f->group);
    c->scale = in_half(ane_fit_signed(&s, f->half).scale);
    return;
  }
  for (int i = 0; i < f->group; i++) far = ANE_MAX(far, fabsf(x[i]));
  c->scale = in_half(far / (float)f->half);
}

static void fit_range(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c) {
  struct ane_span s = ane_span_of(x, w, f->group);
  struct ane_line l = ane_fit_range(&s, f->top);
  c->scale = in_half(l.scale);
  c->offset = in_half(l.offset);
}

static struct ane_line flat_line(const struct ane_rounding *f, const struct ane_block_params *c, int part, int i) {
  float scale = in_half(c->scale * factors[i]);
  (void)part;
  if (f->half) return (struct ane_line){scale, -(float)f->half * scale};
  if (f->table) return (struct ane_line){scale, 0};
  if (i == 0) return (struct ane_line){scale, c->offset};
  return (struct ane_line){scale,
                           in_half(c->offset + 0.5f * (float)f->top * (c->scale - scale))}; /* the middle of the range stays */
}

static void flat_keep(const struct ane_rounding *f, struct ane_block_params *c, int part, int i) {
  struct ane_line l = flat_line(f, c, part, i);
  c->scale = l.scale;
  c->offset = f->half ? 0 : l.offset;
}

/* Fits a line of uint4-block. The lines of its candidates keep the middle of the range, as those of flat_line do. */
static void fit_exact(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c) {
  float q[ANE_SPAN_MAX];
  struct ane_line l = ane_fit_exact(x, w, f->group, q);
  c->scale = l.scale, c->offset = l.offset;
}

static struct ane_line exact_line(const struct ane_rounding *f, const struct ane_block_params *c, int part, int i) {
  (void)part;
  struct ane_line l = {c->scale * factors[i], c->offset + 0.5f * (float)f->top * c->scale * (1 - factors[i])};
  return i == 0 || c->scale == 0 ? (struct ane_line){c->scale, c->offset} : ane_line_exact(l, (struct ane_line_cost){0, 0, 0});
}

static void exact_keep(const struct ane_rounding *f, struct ane_block_params *c, int part, int i) {
  struct ane_line l = exact_line(f, c, part, i);
  c->scale = l.scale, c->offset = l.offset;
}

static void pack_nibbles(const uint8_t *q, uint8_t *qs) {
  for (int l = 0; l < 16; l++) qs[l] = (uint8_t)((q[l] & 15) | (q[l + 16] & 15) << 4);
}

static void pack_fifths(const uint8_t *q, uint8_t *qh) {
  memset(qh, 0, 4);
  for (int l = 0; l < 32; l++) qh[l / 8] = (uint8_t)(qh[l / 8] | (q[l] >> 4) << l % 8);
}

static void pack_q4_0(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_q4_0 *b = block;
  (void)f;
  b->d = ane_f32_f16(c->scale);
  pack_nibbles(q, b->qs);
}

static void pack_q4_1(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_q4_1 *b = block;
  (void)f;
  b->d = ane_f32_f16(c->scale), b->m = ane_f32_f16(c->offset);
  pack_nibbles(q, b->qs);
}

static void pack_q5_0(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_q5_0 *b = block;
  (void)f;
  b->d = ane_f32_f16(c->scale);
  pack_nibbles(q, b->qs);
  pack_fifths(q, b->qh);
}

static void pack_q5_1(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_q5_1 *b = block;
  (void)f;
  b->d = ane_f32_f16(c->scale), b->m = ane_f32_f16(c->offset);
  pack_nibbles(q, b->qs);
  pack_fifths(q, b->qh);
}

static void pack_q8_0(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_q8_0 *b = block;
  b->d = ane_f32_f16(c->scale);
  for (int l = 0; l < 32; l++) b->qs[l] = (int8_t)((int)q[l] - f->half);
}

static void pack_nothing(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  (void)f, (void)c, (void)q, (void)block;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------------*/

static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1[15] = {-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12};
static const uint8_t e2m1_code[15] = {15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7};

enum { TABLE_GROUP = 32, TABLE_PARTS = TABLE_GROUP / 8 }; /* elements with one scale, of all types with tables */

static float sum_of(const ane_f8x *v) {
  float sum = 0;
  for (int i = 0; i < 8; i++) sum += (*v)[i];
  return sum;
}

/* The midpoint between values i and i + 1 of the table. */
static float middle(const struct ane_rounding *f, int i) { return 0.5f * (float)(f->table[i] + f->table[i + 1]); }

/* k[i] = the index of the value that is nearest to v[i]; of two, the smaller one. */
static ANE_WIDE void nearest_each(const struct ane_rounding *f, const float *v, int32_t *k) {
  ane_f8x u[TABLE_PARTS];
  ane_i8x n[TABLE_PARTS] = {{0}};
  memcpy(u, v, sizeof u);
  for (int i = 0; i < f->top; i++) {
    const float m = middle(f, i);
#pragma GCC unroll 4
    for (int p = 0; p < TABLE_PARTS; p++) n[p] -= u[p] > m;
  }
  memcpy(k, n, sizeof n);
}

/* Weighted squared error of TABLE_GROUP elements at a scale; *better: the least squares scale for the codes. */
static ANE_WIDE float table_error(const struct ane_rounding *f, const float *x, const float *w, float scale, float *better) {
  const float inv = inverse(scale);
  ane_f8x u[TABLE_PARTS], t[TABLE_PARTS], error = {0}, tt = {0}, xt = {0};
#pragma GCC unroll 4
  for (int p = 0; p < TABLE_PARTS; p++) {
    memcpy(&u[p], x + 8 * p, sizeof u[p]);
    u[p] *= inv;
    t[p] = (ane_f8x){0} + (scale != 0 ? (float)f->table[0] : 0);
  }
  for (int i = 0; i < f->top && scale != 0; i++) { /* from value to value, as long as the next one is nearer */
    const float m = middle(f, i);
    const ane_f8x step = (ane_f8x){0} + (float)(f->table[i + 1] - f->table[i]);
#pragma GCC unroll 4
    for (int p = 0; p < TABLE_PARTS; p++) t[p] += (ane_f8x)((ane_i8x)step & (u[p] > m));
  }
#pragma GCC unroll 4
  for (int p = 0; p < TABLE_PARTS; p++) {
    ane_f8x xs, ws;
    memcpy(&xs, x + 8 * p, sizeof xs);
    memcpy(&ws, w + 8 * p, sizeof ws);
    const ane_f8x d = xs - scale * t[p];
    error += ws * d * d, tt += ws * t[p] * t[p], xt += ws * xs * t[p];
  }
  const float squares = sum_of(&tt);
  *better = squares > 0 ? sum_of(&xt) / squares : scale;
  return sum_of(&error);
}

/* A scale, of either sign, with nearly the least error. Tries scales around those that map the largest element to an end of the
 * table.
 */
static float table_scale(const struct ane_rounding *f, const float *x, const float *w) {
  float far = 0, best = 0, least = INFINITY, better;
  for (int i = 0; i < TABLE_GROUP; i++)
    if (fabsf(x[i]) > fabsf(far)) far = x[i];
  if (far == 0) return 0;
  for (int end = 0; end < 2; end++)
    for (int k = -2; k <= 3; k++) {
      float scale = far / ((float)f->table[end ? f->top : 0] * (1 + 0.07f * (float)k));
      table_error(f, x, w, scale, &better);
      float error = table_error(f, x, w, better, &scale);
      if (error < least) least = error, best = better;
    }
  return best;
}

static void fit_table(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c) {
  c->scale = in_half(table_scale(f, x, w));
  c->offset = 0;
}

static void pack_iq4_nl(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_iq4_nl *b = block;
  (void)f;
  b->d = ane_f32_f16(c->scale);
  pack_nibbles(q, b->qs);
}

/* MXFP4: the scale is a power of two, 2^(e - 128); the table's values are doubled. */
static float power_of(int e) { return ldexpf(1, e - 128); }

static int exponent_of(float scale) {
  int e;
  frexpf(scale, &e); /* scale = m 2^e, 0.5 <= m < 1 */
  return ANE_MAX(ANE_MIN(e - 1 + 128, 254), 0);
}

static void fit_mxfp4(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c) {
  float far = 0, least = INFINITY, ignored;
  for (int i = 0; i < f->group; i++) far = ANE_MAX(far, fabsf(x[i]));
  *c = (struct ane_block_params){0};
  if (far == 0) return;
  int at = exponent_of(far / 12);
  for (int e = ANE_MAX(at - 1, 0); e <= ANE_MIN(at + 2, 254); e++) {
    float error = table_error(f, x, w, power_of(e), &ignored);
    if (error < least) least = error, c->scale = power_of(e);
  }
}

static struct ane_line mxfp4_line(const struct ane_rounding *f, const struct ane_block_params *c, int part, int i) {
  static const float by[] = {1, 0.5f, 2};
  (void)f, (void)part;
  float scale = c->scale * by[i];
  return (struct ane_line){scale >= power_of(0) && scale <= power_of(254) ? scale : c->scale, 0};
}

static void mxfp4_keep(const struct ane_rounding *f, struct ane_block_params *c, int part, int i) {
  c->scale = mxfp4_line(f, c, part, i).scale;
}

static void pack_mxfp4(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_mxfp4 *b = block;
  (void)f;
  b->e = (uint8_t)(c->scale > 0 ? exponent_of(c->scale) : 0);
  pack_nibbles(q, b->qs);
}

/* ---- Super-blocks ------------------------------------------------------------------------------------------------------*/

/* Candidates for the integer scale and minimum of a part, as steps. */
static const int8_t scale_steps[] = {0, -1, 1, 0, 0, -1, 1, -1, 1}, min_steps[] = {0, 0, 0, -1, 1, -1, 1, 1, -1};
enum { STEPS = ANE_COUNT(scale_steps), SCALE_STEPS = 3 };

static int between(int v, int lo, int hi) { return ANE_MAX(lo, ANE_MIN(v, hi)); }

static void fit_k(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c) {
  ane_k_search(ane_k_layout(f->dtype), x, w, &c->k);
}

static void k_step(const struct ane_rounding *f, const struct ane_block_params *c, int part, int i, int *scale, int *min) {
  const struct ane_k_layout *l = ane_k_layout(f->dtype);
  *scale = between(c->k.scale[part] + scale_steps[i], l->scale_lo, l->scale_hi);
  *min = l->half ? 0 : between(c->k.min[part] + min_steps[i], 0, l->scale_hi);
}

static struct ane_line k_line(const struct ane_rounding *f, const struct ane_block_params *c, int part, int i) {
  int scale, min;
  k_step(f, c, part, i, &scale, &min);
  struct ane_line l = {c->k.d * (float)scale, 0};
  l.offset = f->half ? -(float)f->half * l.scale : -(c->k.dmin * (float)min);
  return l;
}

static void k_keep(const struct ane_rounding *f, struct ane_block_params *c, int part, int i) {
  k_step(f, c, part, i, &c->k.scale[part], &c->k.min[part]);
}

static void pack_k(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  for (int i = 0; i < f->group; i++) c->k.q[i] = (float)q[i];
  ane_k_pack(f->dtype, &c->k, block);
}

/* IQ4_XS: 8 parts with integer scales from -32 to 31. */
static void fit_iq4_xs(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c) {
  float want[8], far = 0;
  for (int j = 0; j < 8; j++) {
    want[j] = table_scale(f, x + 32 * j, w + 32 * j);
    if (fabsf(want[j]) > fabsf(far)) far = want[j];
  }
  c->k.d = in_half(far / -32);
  for (int j = 0; j < 8; j++) c->k.scale[j] = between((int)lrintf(want[j] * inverse(c->k.d)), -32, 31);
}

static struct ane_line iq4_xs_line(const struct ane_rounding *f, const struct ane_block_params *c, int part, int i) {
  (void)f;
  return (struct ane_line){c->k.d * (float)between(c->k.scale[part] + scale_steps[i], -32, 31), 0};
}

static void iq4_xs_keep(const struct ane_rounding *f, struct ane_block_params *c, int part, int i) {
  (void)f;
  c->k.scale[part] = between(c->k.scale[part] + scale_steps[i], -32, 31);
}

static void pack_iq4_xs(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block) {
  ane_block_iq4_xs *b = block;
  (void)f;
  *b = (ane_block_iq4_xs){.d = ane_f32_f16(c->k.d)};
  for (int j = 0; j < 8; j++) {
    unsigned s = (unsigned)(c->k.scale[j] + 32);
    b->scales_l[j / 2] = (uint8_t)(b->scales_l[j / 2] | (s & 15) << j % 2 * 4);
    b->scales_h = (uint16_t)(b->scales_h | (s >> 4) << 2 * j);
    pack_nibbles(q + 32 * j, b->qs + 16 * j);
  }
}

/* ---- By type -----------------------------------------------------------------------------------------------------------*/

/* clang-format off */
static const struct ane_rounding roundings[] = {
    {ANE_Q4_0, 32, 32, 15, 8, FACTORS, NULL, NULL, fit_signed, flat_line, flat_keep, pack_q4_0},
    {ANE_Q4_1, 32, 32, 15, 0, FACTORS, NULL, NULL, fit_range, flat_line, flat_keep, pack_q4_1},
    {ANE_Q5_0, 32, 32, 31, 16, FACTORS, NULL, NULL, fit_signed, flat_line, flat_keep, pack_q5_0},
    {ANE_Q5_1, 32, 32, 31, 0, FACTORS, NULL, NULL, fit_range, flat_line, flat_keep, pack_q5_1},
    {ANE_Q8_0, 32, 32, 254, 127, 1, NULL, NULL, fit_signed, flat_line, flat_keep, pack_q8_0},
    {ANE_IQ4_NL, 32, 32, 15, 0, FACTORS, iq4, NULL, fit_table, flat_line, flat_keep, pack_iq4_nl},
    {ANE_MXFP4, 32, 32, 14, 0, 3, e2m1, e2m1_code, fit_mxfp4, mxfp4_line, mxfp4_keep, pack_mxfp4},
    {ANE_Q2_K, 256, 16, 3, 0, STEPS, NULL, NULL, fit_k, k_line, k_keep, pack_k},
    {ANE_Q3_K, 256, 16, 7, 4, SCALE_STEPS, NULL, NULL, fit_k, k_line, k_keep, pack_k},
    {ANE_Q4_K, 256, 32, 15, 0, STEPS, NULL, NULL, fit_k, k_line, k_keep, pack_k},
    {ANE_Q5_K, 256, 32, 31, 0, STEPS, NULL, NULL, fit_k, k_line, k_keep, pack_k},
    {ANE_Q6_K, 256, 16, 63, 32, SCALE_STEPS, NULL, NULL, fit_k, k_line, k_keep, pack_k},
    {ANE_IQ4_XS, 256, 32, 15, 0, SCALE_STEPS, iq4, NULL, fit_iq4_xs, iq4_xs_line, iq4_xs_keep, pack_iq4_xs},
};
static const struct ane_rounding int4[2] = {
    {ANE_F32, 32, 32, 15, 8, FACTORS, NULL, NULL, fit_signed, flat_line, flat_keep, pack_nothing},
    {ANE_F32, 64, 64, 15, 8, FACTORS, NULL, NULL, fit_signed, flat_line, flat_keep, pack_nothing},
};
static const struct ane_rounding uint4 = {ANE_F32, 32, 32, 15, 0, FACTORS, NULL, NULL, fit_exact, exact_line, exact_keep, pack_nothing};
/* clang-format on */

const struct ane_rounding *ane_rounding_of(ane_dtype t) {
  for (size_t i = 0; i < ANE_COUNT(roundings); i++)
    if (roundings[i].dtype == t) return &roundings[i];
  return NULL;
}

bool ane_rounding_fits(const struct ane_rounding *f) { return f->line == flat_line && (f->half || f->table); }

const struct ane_rounding *ane_rounding_int4(int size) { return &int4[size == 64]; }
const struct ane_rounding *ane_rounding_uint4(void) { return &uint4; }

/* ---- Encoders of the types with tables ---------------------------------------------------------------------------------*/

/* The scale as the reference encoder chooses it (gguf-py, quants.py): the largest element has the exponent 2 in E2M1. */
static float mxfp4_plain(const float *x, int n) {
  float far = 0;
  int e;
  for (int i = 0; i < n; i++) far = ANE_MAX(far, fabsf(x[i]));
  frexpf(far, &e);
  return far > 0 ? power_of(between(e + 124, 0, 254)) : 0;
}

/* The codes of the nearest values of TABLE_GROUP numbers; for MXFP4 a tie goes to the smaller magnitude, as in the reference
 * encoder. */
static void code_each(const struct ane_rounding *f, const float *v, uint8_t *code) {
  float size[TABLE_GROUP];
  int32_t k[TABLE_GROUP];
  for (int i = 0; i < TABLE_GROUP; i++) size[i] = f->code ? fabsf(v[i]) : v[i];
  nearest_each(f, size, k);
  /* analyser: nearest_each writes all of k. */
  for (int i = 0; i < TABLE_GROUP; i++) code[i] = f->code ? f->code[v[i] < 0 ? f->top - k[i] : k[i]] : (uint8_t)k[i];
}

/* Encodes rows without compensation: fits each block, then rounds each element. */
static void encode(ane_dtype t, const float *src, const float *importance, void *dst, uint64_t n) {
  const struct ane_rounding *f = ane_rounding_of(t);
  uint8_t *to = dst, q[ANE_QK_K];
  float w[ANE_QK_K];
  for (uint64_t at = 0; at < n; at += (uint64_t)f->group, to += ane_dtype_info(t)->bytes) {
    struct ane_block_params c = {0};
    /* analyser: only types that have rules for rounding come here. */
    for (int i = 0; i < f->group; i++) w[i] = importance ? importance[at + (uint64_t)i] : 1;
    if (t == ANE_MXFP4 && !importance)
      c.scale = mxfp4_plain(src + at, f->group);
    else
      f->fit(f, src + at, w, &c);
    for (int i = 0; i < f->group; i += TABLE_GROUP) {
      const struct ane_line l = f->line(f, &c, i / f->sub, 0);
      float v[TABLE_GROUP];
      for (int j = 0; j < TABLE_GROUP; j++) v[j] = l.scale != 0 ? src[at + (uint64_t)(i + j)] / l.scale : 0;
      code_each(f, v, q + i);
    }
    f->pack(f, &c, q, to);
  }
}

#define ENCODER(id, name)                                                                                                        \
  void ane_##name##_encode_weighted(const float *src, const float *importance, void *dst, uint64_t n) {                          \
    encode(ANE_##id, src, importance, dst, n);                                                                                   \
  }                                                                                                                              \
  void ane_##name##_encode(const float *src, void *dst, uint64_t n) { encode(ANE_##id, src, NULL, dst, n); }
ENCODER(IQ4_NL, iq4_nl)
ENCODER(IQ4_XS, iq4_xs)
ENCODER(MXFP4, mxfp4)
