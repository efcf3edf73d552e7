/* Quantises activations by blocks of 32 for NEON: the same steps as quantise_i8 of ref. */
#include "kernels/arm/matmul_unpack.h"

INLINE float block_max(const float *x) {
  float32x4_t m = vdupq_n_f32(0);
#pragma GCC unroll 8
  for (int i = 0; i < ANE_BLOCK; i += LANES) m = vmaxnmq_f32(m, vabsq_f32(vld1q_f32(x + i))); /* vmaxnm ignores NaN */
  return vmaxnmvq_f32(m);
}

/* Rounds four values of x * inverse to integers. NaN and values beyond the limit become -limit. */
INLINE int32x4_t whole_of(const float *x, float inverse, int32_t limit) {
  float32x4_t v = vmulq_n_f32(vld1q_f32(x), inverse);
  uint32x4_t good = vcleq_f32(vabsq_f32(v), vdupq_n_f32((float)limit + 0.5f));
  return vbslq_s32(good, vcvtnq_s32_f32(v), vdupq_n_s32(-limit));
}

INLINE int8x16_t bytes_of(const int32x4_t v[4]) {
  return vcombine_s8(vmovn_s16(vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]))),
                     vmovn_s16(vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]))));
}

/* Quantises one block of 32 values. at: its index by tokens; at_outlier: by blocks; span: the value that code 127 stands for. */
INLINE void quantise_block(const struct ane_activations *a, int64_t at, int64_t at_outlier, const float *x, bool is_outlier,
                           float span) {
  int8_t *q = (int8_t *)a->q + at * ANE_BLOCK, *residual = (int8_t *)a->residual + at_outlier * ANE_BLOCK;
  int32_t *isum = (int32_t *)a->isum + 2 * at, *residual_isum = (int32_t *)a->residual_isum + 2 * at_outlier, sum = 0;
  const float inverse = span >= ANE_TINY ? ANE_CODE_MAX / span : 0, d = span >= ANE_TINY ? span / ANE_CODE_MAX : 0;
  unsigned outlier = 0;
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    int32x4_t v[4], h[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      v[i] = whole_of(x + 16 * half + 4 * i, inverse, is_outlier ? ANE_OUTLIER_MAX : ANE_CODE_MAX);
      h[i] = vdupq_n_s32(0);
      if (is_outlier && vmaxvq_s32(vabsq_s32(v[i])) > ANE_CODE_MAX) {
        outlier |= 1u << (4 * half + i);
        h[i] = vshrq_n_s32(vaddq_s32(v[i], vdupq_n_s32(64)), 7);
        v[i] = vsubq_s32(v[i], vshlq_n_s32(h[i], 7));
      }
    }
    const int8x16_t codes = bytes_of(v);
    vst1q_s8(q + 16 * half, codes);
    sum += isum[half] = vaddlvq_s8(codes);
    if (!is_outlier) continue;
    const int8x16_t residual_codes = bytes_of(h);
    vst1q_s8(residual + 16 * half, residual_codes);
    sum += 128 * (residual_isum[half] = vaddlvq_s8(residual_codes));
  }
  ((int32_t *)a->minus_sum)[at] = -isum[0] - isum[1];
  ((float *)a->d)[at] = d;
  ((float *)a->d_residual)[at_outlier] = 128 * d;
  ((uint8_t *)a->outlier)[at_outlier] = (uint8_t)outlier;
  ((float *)a->dsum)[at] = d * (float)sum;
}

static void quantise_i8(const struct ane_activations *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  const int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK), whole = a->cols / ANE_BLOCK;
  for (int64_t t = t_from; t < t_to; t++) {
    const float *row = x + t * ld;
    float last[ANE_BLOCK] = {0}, *amax = (float *)a->d + t * nb;
    if (whole < nb) memcpy(last, row + whole * ANE_BLOCK, sizeof(float) * (size_t)(a->cols - whole * ANE_BLOCK));
    for (int64_t b = 0; b < nb; b++) amax[b] = block_max(b < whole ? row + b * ANE_BLOCK : last);
    const float limit = ane_outlier_limit(amax, nb, a->precise), root = vget_lane_f32(vsqrt_f32(vdup_n_f32(limit)), 0);
    for (int64_t b = 0; b < nb; b++) {
      const float *from = b < whole ? row + b * ANE_BLOCK : last;
      const int64_t at = t * nb + b, at_outlier = b * a->outlier_ld + t;
      if (amax[b] * amax[b] > limit)
        quantise_block(a, at, at_outlier, from, true, ane_outlier_span(amax[b], root, a->precise));
      else
        quantise_block(a, at, at_outlier, from, false, amax[b]);
    }
  }
}

void ane_activations_neon(struct ane_kernels *k) { k->quantise_i8 = quantise_i8; }
