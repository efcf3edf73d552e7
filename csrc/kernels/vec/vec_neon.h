/* Vectors of 4 floats in NEON, which every AArch64 machine has. vec_avx512.h documents the operations. arm/matmul_unpack.h uses
 * this file too: there are no matmul lanes for NEON. */
#ifndef ANE_KERNELS_VEC_NEON_H
#define ANE_KERNELS_VEC_NEON_H

#include "base/attr.h"

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define V_FN static inline __attribute__((always_inline))

#define V_REGISTERS 32

typedef float32x4_t vf;
enum { VL = 4, V_PARTS = 4 };

V_FN vf v_set(float x) { return vdupq_n_f32(x); }
V_FN vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
V_FN vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
V_FN vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
V_FN vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
V_FN vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
/* Compared and selected, because vminq and vmaxq return NaN if either operand is NaN, and order -0 before +0. */
V_FN vf v_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
V_FN vf v_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
V_FN vf v_abs(vf a) { return vabsq_f32(a); }
V_FN vf v_neg(vf a) { return vnegq_f32(a); }
V_FN vf v_copysign(vf a, vf s) { return vbslq_f32(vdupq_n_u32(0x80000000), s, a); }
V_FN vf v_select_lt(vf a, vf b, vf yes, vf no) { return vbslq_f32(vcltq_f32(a, b), yes, no); }

V_FN vf v_pow2(vf t) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(127)), 23)); }
V_FN vf v_shift_exponent(vf p, vf t) {
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vreinterpretq_s32_f32(t), 23)));
}
V_FN vf v_ldexp(vf p, vf t, ANE_UNUSED vf n) {
  const int32x4_t bias = vdupq_n_s32(127);
  int32x4_t i = vsubq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(0x4B400000)), half = vshrq_n_s32(i, 1);
  int32x4_t a = vshlq_n_s32(vaddq_s32(half, bias), 23);
  int32x4_t b = vshlq_n_s32(vaddq_s32(vsubq_s32(i, half), bias), 23);
  return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(a)), vreinterpretq_f32_s32(b));
}

V_FN int32x4_t v_lane_numbers(void) {
  static const int32_t numbers[VL] = {0, 1, 2, 3};
  return vld1q_s32(numbers);
}
V_FN uint32x4_t v_first_lanes(int64_t n) {
  int32_t count = n < 0 ? 0 : n > VL ? VL : (int32_t)n;
  return vcltq_s32(v_lane_numbers(), vdupq_n_s32(count));
}
V_FN vf v_load(const float *p) { return vld1q_f32(p); }
V_FN void v_store(float *p, vf a) { vst1q_f32(p, a); }
V_FN vf v_load_n(const float *p, int64_t n) {
  if (n >= VL) return v_load(p);
  float some[VL] = {0};
  for (int64_t i = 0; i < n; i++) some[i] = p[i];
  return v_load(some);
}
V_FN void v_store_n(float *p, vf a, int64_t n) {
  if (n >= VL) {
    v_store(p, a);
    return;
  }
  float some[VL];
  v_store(some, a);
  for (int64_t i = 0; i < n; i++) p[i] = some[i];
}
V_FN vf v_load_f16(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
V_FN vf v_load_i8(const void *p) {
  uint32_t four;
  memcpy(&four, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}
V_FN void v_store_f16(uint16_t *p, vf a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }
V_FN void v_store_i8(int8_t *p, vf a) {
  int16x4_t h = vqmovn_s32(vcvtnq_s32_f32(a));
  uint32_t four = vget_lane_u32(vreinterpret_u32_s8(vqmovn_s16(vcombine_s16(h, h))), 0);
  memcpy(p, &four, 4);
}

/* The first and the second elements of pairs are in separate vectors. */
typedef int32x4_t vi;
typedef int16x4x2_t vpairs;
V_FN vi vi_zero(void) { return vdupq_n_s32(0); }
V_FN vpairs v_load_pairs(const int16_t *p) { return vld2_s16(p); }
V_FN vpairs v_load_pairs_i8(const int8_t *p) {
  const int16x8_t w = vmovl_s8(vld1_s8(p));
  return vuzp_s16(vget_low_s16(w), vget_high_s16(w));
}
V_FN vpairs v_set_pair(const int16_t *p) { return vld2_dup_s16(p); }
V_FN vi v_dot(vi sum, vpairs a, vpairs b) { return vmlal_s16(vmlal_s16(sum, a.val[0], b.val[0]), a.val[1], b.val[1]); }
V_FN vf v_float(vi a) { return vcvtq_f32_s32(a); }
V_FN void v_store_pairs(int16_t *p, vf a, vf b) {
  vst1q_s32((int32_t *)(void *)p, vsliq_n_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b), 16));
}
V_FN void v_store_i16(int16_t *p, vf a) { vst1_s16(p, vqmovn_s32(vcvtnq_s32_f32(a))); }

V_FN vf v_keep_range(vf a, int64_t base, int64_t first, int64_t last) {
  uint32x4_t keep = vbicq_u32(v_first_lanes(last + 1 - base), v_first_lanes(first - base));
  return vbslq_f32(keep, a, vdupq_n_f32(-__builtin_inff()));
}
V_FN vf v_zero_range(vf a, int64_t base, int64_t first, int64_t last) {
  const uint32x4_t keep = vbicq_u32(v_first_lanes(last + 1 - base), v_first_lanes(first - base));
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), keep));
}
V_FN vf v_keep_n(vf a, int64_t n) { return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), v_first_lanes(n))); }

V_FN float v_largest(vf a) {
  vf b = v_max(a, vextq_f32(a, a, 2));
  return vgetq_lane_f32(v_max(b, vextq_f32(b, b, 1)), 0);
}
V_FN int v_find(vf a, vf b) {
  /* 16 bits of each lane's mask. */
  uint64_t m = vget_lane_u64(vreinterpret_u64_u16(vmovn_u32(vceqq_f32(a, b))), 0);
  return m ? __builtin_ctzll(m) / 16 : -1;
}
V_FN float v_fold(const vf l[V_PARTS]) {
  vf q = vaddq_f32(vaddq_f32(l[0], l[2]), vaddq_f32(l[1], l[3]));
  float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}

V_FN void v_largest_each(const vf *x, const int rows, float *out) {
  for (int r = 0; r < rows; r++) out[r] = v_largest(x[r]);
}
V_FN void v_fold_each(const vf (*l)[V_PARTS], const int rows, float *out) {
  for (int r = 0; r < rows; r++) out[r] = v_fold(l[r]);
}

V_FN void v_unzip(vf a, vf b, vf *even, vf *odd) {
  *even = vuzp1q_f32(a, b);
  *odd = vuzp2q_f32(a, b);
}
V_FN void v_zip(vf even, vf odd, vf *a, vf *b) {
  *a = vzip1q_f32(even, odd);
  *b = vzip2q_f32(even, odd);
}

V_FN void v_transpose(vf x[VL]) {
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(x[0], x[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(x[0], x[1]));
  const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(x[2], x[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(x[2], x[3]));
  x[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
  x[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
  x[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
  x[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

#endif
