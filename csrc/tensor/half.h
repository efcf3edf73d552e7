/* Scalar conversions of the small float types. All of them round to nearest even.
 * fp16: IEEE 754 binary16. bf16: upper half of binary32. fp8: OCP 8-bit Floating Point Specification 1.0 (E4M3 has no
 * infinity, NaN is S.1111.111; E5M2 is IEEE-like). */
#ifndef ANE_TENSOR_HALF_H
#define ANE_TENSOR_HALF_H

#include <stdint.h>
#include <string.h>

static inline float ane_bits_f32(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static inline uint32_t ane_f32_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

static inline float ane_f16_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3FF;
  if (exp == 31) return ane_bits_f32(sign | 0x7F800000 | man << 13);
  if (exp) return ane_bits_f32(sign | (exp + 112) << 23 | man << 13);
  float f = (float)man * 0x1p-24f; /* zero and subnormals, exact */
  return sign ? -f : f;
}

static inline uint16_t ane_f32_f16(float f) {
  uint32_t u = ane_f32_bits(f), sign = u >> 16 & 0x8000;
  u &= 0x7FFFFFFF;
  if (u > 0x7F800000) return (uint16_t)(sign | 0x7E00);  /* NaN */
  if (u >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* 65520 and above round to infinity */
  if (u < 0x38800000) {                                  /* below 2^-14: subnormal in steps of 2^-24 */
    float scaled = ane_bits_f32(u) + 0.5f;               /* 0.5 has an ulp of 2^-24, so the addition rounds as needed */
    return (uint16_t)(sign | (ane_f32_bits(scaled) - 0x3F000000));
  }
  u += 0xFFF + (u >> 13 & 1);
  return (uint16_t)(sign | (u - 0x38000000) >> 13);
}

static inline float ane_bf16_f32(uint16_t h) { return ane_bits_f32((uint32_t)h << 16); }

static inline uint16_t ane_f32_bf16(float f) {
  uint32_t u = ane_f32_bits(f);
  if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
  return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

static inline float ane_f8e4m3_f32(uint8_t b) {
  uint32_t sign = (uint32_t)(b & 0x80) << 24, exp = b >> 3 & 15, man = b & 7;
  if (exp == 15 && man == 7) return ane_bits_f32(sign | 0x7FC00000);
  if (exp) return ane_bits_f32(sign | (exp + 120) << 23 | man << 20);
  float f = (float)man * 0x1p-9f;
  return sign ? -f : f;
}

static inline float ane_f8e5m2_f32(uint8_t b) { return ane_f16_f32((uint16_t)(b << 8)); }

#endif
