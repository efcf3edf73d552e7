/* Quantises activations by blocks of 32 for NEON: the same steps as acts_i8 of ref. */
#include "kernels/arm/matmul_unpack.h"

INLINE float block_max(const float *x) {
  float32x4_t m = vdupq_n_f32(0);
#pragma GCC unroll 8
  for (int i = 0; i < ANE_BLOCK; i += LANES) m = vmaxnmq_f32(m, vabsq_f32(vld1q_f32(x + i))); /* a NaN is passed over */
  return vmaxnmvq_f32(m);
}

/* Four values of x * inverse to whole numbers. What is no number or beyond the limit becomes -limit. */
INLINE int32x4_t whole_of(const float *x, float inverse, int32_t limit) {
  float32x4_t v = vmulq_n_f32(vld1q_f32(x), inverse);
  uint32x4_t good = vcleq_f32(vabsq_f32(v), vdupq_n_f32((float)limit + 0.5f));
  return vbslq_s32(good, vcvtnq_s32_f32(v), vdupq_n_s32(-limit));
}

INLINE int8x16_t bytes_of(const int32x4_t v[4]) {
  return vcombine_s8(vmovn_s16(vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]))), vmovn_s16(vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]))));
}

/* Block `at`, whose mark is at `mark`, from 32 values, the largest of which is in d. */
INLINE void quantise_block(const struct ane_acts *a, int64_t at, int64_t mark, const float *x, bool fine) {
  int8_t *q = (int8_t *)a->q + at * ANE_BLOCK, *low = (int8_t *)a->low + at * ANE_BLOCK;
  int32_t *isum = (int32_t *)a->isum + 2 * at, *low_isum = (int32_t *)a->low_isum + 2 * at;
  const int32_t limit = fine ? ANE_FINE_MAX : ANE_CODE_MAX;
  const float amax = a->d[at], inverse = amax >= ANE_TINY ? (float)limit / amax : 0;
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    int32x4_t v[4], rest[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      v[i] = whole_of(x + 16 * half + 4 * i, inverse, limit);
      rest[i] = vdupq_n_s32(0);
      if (fine) {
        const int32x4_t high = vshrq_n_s32(vaddq_s32(v[i], vdupq_n_s32(64)), 7);
        rest[i] = vsubq_s32(v[i], vshlq_n_s32(high, 7));
        v[i] = high;
      }
    }
    const int8x16_t codes = bytes_of(v), lows = bytes_of(rest);
    vst1q_s8(q + 16 * half, codes);
    vst1q_s8(low + 16 * half, lows);
    isum[half] = vaddlvq_s8(codes);
    low_isum[half] = vaddlvq_s8(lows);
  }
  const float d = amax >= ANE_TINY ? amax / (float)limit * (fine ? 128.0f : 1.0f) : 0;
  ((float *)a->d)[at] = d;
  ((float *)a->d_low)[at] = d * 0x1p-7f;
  ((uint8_t *)a->fine)[mark] = fine;
  ((float *)a->dsum)[at] = d * 0x1p-7f * (float)(128 * (isum[0] + isum[1]) + low_isum[0] + low_isum[1]);
}

static void acts_i8(const struct ane_acts *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  const int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK), whole = a->cols / ANE_BLOCK;
  for (int64_t t = t_from; t < t_to; t++) {
    const float *row = x + t * ld;
    float last[ANE_BLOCK] = {0}, *amax = (float *)a->d + t * nb;
    if (whole < nb) memcpy(last, row + whole * ANE_BLOCK, sizeof(float) * (size_t)(a->cols - whole * ANE_BLOCK));
    for (int64_t b = 0; b < nb; b++) amax[b] = block_max(b < whole ? row + b * ANE_BLOCK : last);
    const float limit = ane_fine_limit(amax, nb, a->fine_over);
    for (int64_t b = 0; b < nb; b++) {
      const float *from = b < whole ? row + b * ANE_BLOCK : last;
      const int64_t at = t * nb + b, mark = b * a->fine_ld + t;
      if (amax[b] * amax[b] > limit) quantise_block(a, at, mark, from, true);
      else quantise_block(a, at, mark, from, false);
    }
  }
}

void ane_acts_neon(struct ane_kernels *k) { k->acts_i8 = acts_i8; }
