/* Quantises activations by blocks of 32 for NEON: the same steps as acts_i8 of ref. */
#include "kernels/arm/matmul_unpack.h"

INLINE float block_max(const float *x) {
  float32x4_t m = vdupq_n_f32(0);
#pragma GCC unroll 8
  for (int i = 0; i < ANE_BLOCK; i += LANES) m = vmaxnmq_f32(m, vabsq_f32(vld1q_f32(x + i))); /* a NaN is passed over */
  return vmaxnmvq_f32(m);
}

/* Four codes of x * inverse. What is no number or too large for a code becomes -127. */
INLINE int32x4_t codes_of(const float *x, float inverse) {
  float32x4_t v = vmulq_n_f32(vld1q_f32(x), inverse);
  uint32x4_t good = vcleq_f32(vabsq_f32(v), vdupq_n_f32(127.25f));
  return vbslq_s32(good, vcvtnq_s32_f32(v), vdupq_n_s32(-127));
}

INLINE int8x16_t sixteen_codes(const float *x, float inverse) {
  int16x8_t a = vcombine_s16(vmovn_s32(codes_of(x, inverse)), vmovn_s32(codes_of(x + 4, inverse)));
  int16x8_t b = vcombine_s16(vmovn_s32(codes_of(x + 8, inverse)), vmovn_s32(codes_of(x + 12, inverse)));
  return vcombine_s8(vmovn_s16(a), vmovn_s16(b));
}

INLINE void quantise_block(const float *x, int8_t *q, float *d, int32_t isum[2], float *dsum) {
  const float amax = block_max(x), inverse = amax > 0 ? 127 / amax : 0;
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    int8x16_t codes = sixteen_codes(x + 16 * half, inverse);
    vst1q_s8(q + 16 * half, codes);
    isum[half] = vaddlvq_s8(codes);
  }
  *d = amax / 127;
  *dsum = *d * (float)(isum[0] + isum[1]);
}

static void acts_i8(const struct ane_acts *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  const int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK), whole = a->cols / ANE_BLOCK;
  for (int64_t t = t_from; t < t_to; t++) {
    int8_t *q = (int8_t *)a->q + t * nb * ANE_BLOCK;
    float *d = (float *)a->d + t * nb, *dsum = (float *)a->dsum + t * nb;
    int32_t *isum = (int32_t *)a->isum + t * nb * 2;
    const float *row = x + t * ld;
    for (int64_t b = 0; b < whole; b++) quantise_block(row + b * ANE_BLOCK, q + b * ANE_BLOCK, d + b, isum + 2 * b, dsum + b);
    if (whole < nb) {
      float last[ANE_BLOCK] = {0};
      memcpy(last, row + whole * ANE_BLOCK, sizeof(float) * (size_t)(a->cols - whole * ANE_BLOCK));
      quantise_block(last, q + whole * ANE_BLOCK, d + whole, isum + 2 * whole, dsum + whole);
    }
  }
}

void ane_acts_neon(struct ane_kernels *k) { k->acts_i8 = acts_i8; }
