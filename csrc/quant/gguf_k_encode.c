/* Encoders of the super-block types Q2_K to Q6_K, whose blocks are drawn in blocks.h.
 *
 * The search has two levels. For each sub-block it finds the scale (and minimum) whose nearest codes have the least weighted
 * squared error (fit.h). For the super-block it then chooses fp16 factors d and dmin, and for every sub-block the integer scale
 * and minimum, among neighbours, whose codes have the least error. As long as the error falls, it fits d and dmin to all codes by
 * least squares and chooses the integers and codes again.
 *
 * The weight of an element is the importance of its column, or 1. */
#include "quant/blocks.h"
#include "quant/k_search.h"
#include "quant/quant_internal.h"

#include "tensor/half.h"

#include <math.h>

enum { REFITS = 3 };

static const struct ane_k_layout q2_k = {16, 16, 3, 0, 0, 15}, q3_k = {16, 16, 7, 4, -32, 31}, q4_k = {8, 32, 15, 0, 0, 63},
                                 q5_k = {8, 32, 31, 0, 0, 63}, q6_k = {16, 16, 63, 32, -128, 127};

struct super {
  const struct ane_k_layout *l;
  float x[ANE_QK_K], w[ANE_QK_K];
  struct ane_span span[ANE_K_SUBS];
  struct ane_line want[ANE_K_SUBS];
};

/* ---- Super-blocks ------------------------------------------------------------------------------------------------*/

/* Larger magnitudes exceed what fp16 factors can give. Up to it, squares do not overflow in float32. */
#define LARGEST 1e9f

static float usable(float v) { return v > -LARGEST ? v < LARGEST ? v : LARGEST : v <= -LARGEST ? -LARGEST : 0; }

static void super_fill(struct super *s, const struct ane_k_layout *l, const float *src, const float *importance) {
  s->l = l;
  for (int i = 0; i < ANE_QK_K; i++) {
    s->x[i] = usable(src[i]);
    s->w[i] = importance ? ANE_MAX(usable(importance[i]), 0) : 1;
  }
  for (int j = 0; j < l->subs; j++) {
    s->span[j] = ane_span_of(s->x + j * l->len, s->w + j * l->len, l->len);
    s->want[j] = l->half ? ane_fit_signed(&s->span[j], l->half) : ane_fit_range(&s->span[j], l->top);
  }
}

/* The fp16 nearest to v, kept finite. */
static float in_half(float v) { return ane_f16_f32(ane_f32_f16(ANE_MAX(ANE_MIN(v, 65504.0f), -65504.0f))); }

/* The fp16 for v / steps. Among subnormals, 2^-24 apart, it is the next larger one if the nearest makes the last step fall
 * short of v. */
static float factor(float v, int steps) {
  uint16_t h = ane_f32_f16(in_half(v / (float)steps));
  if ((h & 0x7C00) == 0 && fabsf(ane_f16_f32(h) * (float)steps) < fabsf(v)) h++;
  return ane_f16_f32(h);
}

static int whole(float v, int lo, int hi) { return v > (float)lo ? v < (float)hi ? (int)floorf(v) : hi : lo; }

/* Integer scale and minimum of sub-block j for c->d and c->dmin, with codes and error. */
struct trial {
  int scale, min;
  float error, q[ANE_SPAN_MAX];
};

static void try_one(const struct super *s, int j, const struct ane_k_choice *c, int scale, int min, struct trial *best) {
  struct trial t = {scale, min, 0, {0}};
  struct ane_line line = {c->d * (float)scale, 0};
  line.offset = s->l->half ? -(float)s->l->half * line.scale : -(c->dmin * (float)min);
  t.error = ane_span_code(&s->span[j], line, s->l->top, t.q);
  if (t.error < best->error) *best = t;
}

/* The minimum, in units of dmin and before rounding, that fits the codes at this scale. */
static float wanted_min(const struct super *s, int j, const struct ane_k_choice *c, int scale) {
  const struct ane_span *span = &s->span[j];
  struct ane_line line = {c->d * (float)scale, s->want[j].offset};
  float q[ANE_SPAN_MAX];
  if (!(c->dmin > 0) || !(span->sum_w > 0)) return 0;
  ane_span_code(span, line, s->l->top, q);
  return (line.scale * ane_span_sums(span, q).q - span->sum_wx) / span->sum_w / c->dmin;
}

/* Scales, minima and codes of all sub-blocks for the factors in c. */
static void choose(const struct super *s, struct ane_k_choice *c) {
  const struct ane_k_layout *l = s->l;
  c->error = 0;
  for (int j = 0; j < l->subs; j++) {
    struct trial best = {0, 0, INFINITY, {0}};
    float ratio = c->d != 0 ? s->want[j].scale / c->d : 0;
    int at = whole(ratio, l->scale_lo, l->scale_hi);
    for (int scale = at; scale <= ANE_MIN(at + 1, l->scale_hi); scale++) {
      int min = l->half ? 0 : whole(wanted_min(s, j, c, scale), 0, l->scale_hi);
      try_one(s, j, c, scale, min, &best);
      if (!l->half && min < l->scale_hi) try_one(s, j, c, scale, min + 1, &best);
    }
    c->scale[j] = best.scale, c->min[j] = best.min;
    c->error += best.error;
    memcpy(c->q + j * l->len, best.q, (size_t)l->len * sizeof *best.q);
  }
}

/* Sets the factors by least squares for the codes in c. Factors that the codes do not determine stay as they are. */
static void refit(const struct super *s, const struct ane_k_choice *c, float *d, float *dmin) {
  double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0; /* x ~ d u + dmin v, u = scale (q - half), v = -min */
  double half = s->l->half;
  for (int j = 0; j < s->l->subs; j++) {
    const struct ane_span *span = &s->span[j];
    struct ane_code_sums k = ane_span_sums(span, c->q + j * s->l->len);
    double scale = c->scale[j], min = c->min[j], q = k.q - half * span->sum_w;
    uu += scale * scale * (k.qq - 2 * half * k.q + half * half * span->sum_w);
    uv -= scale * min * q;
    vv += min * min * span->sum_w;
    xu += scale * (k.xq - half * span->sum_wx);
    xv -= min * span->sum_wx;
  }
  double det = uu * vv - uv * uv;
  *d = c->d, *dmin = c->dmin;
  if (vv > 0 && det > 1e-9 * uu * vv) {
    double a = (xu * vv - xv * uv) / det, b = (xv * uu - xu * uv) / det;
    if (a > 0 && b > 0) *d = in_half((float)a), *dmin = in_half((float)b);
  } else if (uu > 0 && vv == 0) {
    *d = in_half((float)(xu / uu));
  }
}

/* First factors: the largest scale and minimum become the largest integer. */
static void first_factors(const struct super *s, struct ane_k_choice *c) {
  float scale = 0, min = 0;
  for (int j = 0; j < s->l->subs; j++) {
    if (fabsf(s->want[j].scale) > fabsf(scale)) scale = s->want[j].scale;
    min = ANE_MAX(min, -s->want[j].offset);
  }
  int far = s->l->half ? s->l->scale_lo : s->l->scale_hi; /* the end of a signed range that has one integer more */
  c->d = factor(scale, far);
  c->dmin = s->l->half ? 0 : factor(min, s->l->scale_hi);
}

void ane_k_search(const struct ane_k_layout *l, const float *src, const float *importance, struct ane_k_choice *c) {
  struct super s;
  super_fill(&s, l, src, importance);
  first_factors(&s, c);
  choose(&s, c);
  for (int i = 0; i < REFITS; i++) {
    struct ane_k_choice next;
    refit(&s, c, &next.d, &next.dmin);
    if (next.d == c->d && next.dmin == c->dmin) break;
    choose(&s, &next);
    if (!(next.error < c->error)) break;
    *c = next;
  }
}

/* ---- Bytes -------------------------------------------------------------------------------------------------------*/

static unsigned code(const struct ane_k_choice *c, int i) { return (unsigned)c->q[i]; }

/* Packs 2 bits per element: element 128 h + 32 k + l in bits 2 k and 2 k + 1 of byte 32 h + l. */
static void pack_twos(const struct ane_k_choice *c, int shift, unsigned mask, uint8_t *qs) {
  memset(qs, 0, 64);
  for (int i = 0; i < ANE_QK_K; i++) {
    uint8_t *at = &qs[i / 128 * 32 + i % 32];
    *at = (uint8_t)(*at | (code(c, i) >> shift & mask) << i % 128 / 32 * 2);
  }
}

/* Packs nibbles: element half (2 h + k) + l in nibble k of byte half h + l. */
static void pack_nibbles(const struct ane_k_choice *c, int half, uint8_t *qs) {
  for (int i = 0; i < ANE_QK_K / 2; i++) {
    int at = i / half * 2 * half + i % half;
    qs[i] = (uint8_t)((code(c, at) & 15) | (code(c, at + half) & 15) << 4);
  }
}

/* The 12 bytes that ane_k_scale_min reads. */
static void pack_scale_mins(const struct ane_k_choice *c, uint8_t *s) {
  for (int j = 0; j < 4; j++) {
    s[j] = (uint8_t)(c->scale[j] | c->scale[j + 4] >> 4 << 6);
    s[j + 4] = (uint8_t)(c->min[j] | c->min[j + 4] >> 4 << 6);
    s[j + 8] = (uint8_t)((c->scale[j + 4] & 15) | (c->min[j + 4] & 15) << 4);
  }
}

static void pack_q2_k(const struct ane_k_choice *c, ane_block_q2_k *b) {
  for (int j = 0; j < 16; j++) b->scales[j] = (uint8_t)(c->scale[j] | c->min[j] << 4);
  pack_twos(c, 0, 3, b->qs);
  b->d = ane_f32_f16(c->d);
  b->dmin = ane_f32_f16(c->dmin);
}

static void pack_q3_k(const struct ane_k_choice *c, ane_block_q3_k *b) {
  memset(b, 0, sizeof *b);
  for (int j = 0; j < 16; j++) {
    unsigned s = (unsigned)(c->scale[j] + 32);
    b->scales[j % 8] = (uint8_t)(b->scales[j % 8] | (s & 15) << j / 8 * 4);
    b->scales[8 + j % 4] = (uint8_t)(b->scales[8 + j % 4] | (s >> 4) << j / 4 * 2);
  }
  pack_twos(c, 0, 3, b->qs);
  for (int i = 0; i < ANE_QK_K; i++) b->hmask[i % 32] = (uint8_t)(b->hmask[i % 32] | (code(c, i) >> 2) << i / 32);
  b->d = ane_f32_f16(c->d);
}

static void pack_q4_k(const struct ane_k_choice *c, ane_block_q4_k *b) {
  b->d = ane_f32_f16(c->d);
  b->dmin = ane_f32_f16(c->dmin);
  pack_scale_mins(c, b->scales);
  pack_nibbles(c, 32, b->qs);
}

static void pack_q5_k(const struct ane_k_choice *c, ane_block_q5_k *b) {
  b->d = ane_f32_f16(c->d);
  b->dmin = ane_f32_f16(c->dmin);
  pack_scale_mins(c, b->scales);
  pack_nibbles(c, 32, b->qs);
  memset(b->qh, 0, sizeof b->qh);
  for (int i = 0; i < ANE_QK_K; i++) b->qh[i % 32] = (uint8_t)(b->qh[i % 32] | (code(c, i) >> 4) << i / 32);
}

static void pack_q6_k(const struct ane_k_choice *c, ane_block_q6_k *b) {
  pack_nibbles(c, 64, b->ql);
  pack_twos(c, 4, 3, b->qh);
  for (int j = 0; j < 16; j++) b->scales[j] = (int8_t)c->scale[j];
  b->d = ane_f32_f16(c->d);
}

#define ENCODER(type)                                                                                                            \
  void ane_##type##_encode_weighted(const float *src, const float *importance, void *dst, uint64_t n) {                          \
    ane_block_##type *b = dst;                                                                                                   \
    for (uint64_t i = 0; i < n / ANE_QK_K; i++) {                                                                                \
      struct ane_k_choice c;                                                                                                     \
      ane_k_search(&type, src + i * ANE_QK_K, importance ? importance + i * ANE_QK_K : NULL, &c);                                \
      pack_##type(&c, &b[i]);                                                                                                    \
    }                                                                                                                            \
  }                                                                                                                              \
  void ane_##type##_encode(const float *src, void *dst, uint64_t n) { ane_##type##_encode_weighted(src, NULL, dst, n); }

ENCODER(q2_k)
ENCODER(q3_k)
ENCODER(q4_k)
ENCODER(q5_k)
ENCODER(q6_k)

#define TYPES(ROW) ROW(Q2_K, q2_k) ROW(Q3_K, q3_k) ROW(Q4_K, q4_k) ROW(Q5_K, q5_k) ROW(Q6_K, q6_k)

const struct ane_k_layout *ane_k_layout(ane_dtype t) {
#define LAYOUT(id, type)                                                                                                         \
  if (t == ANE_##id) return &type;
  TYPES(LAYOUT)
#undef LAYOUT
  return NULL;
}

void ane_k_pack(ane_dtype t, const struct ane_k_choice *c, void *block) {
#define PACK(id, type)                                                                                                           \
  if (t == ANE_##id) pack_##type(c, block);
  TYPES(PACK)
#undef PACK
}
