/* Ternary types TQ1_0, TQ2_0, and the microscaling types MXFP4, NVFP4. */
#include "quant/blocks.h"
#include "quant/quant_internal.h"

#include "tensor/half.h"

const int8_t ane_e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Digit `power` of each of `run` bytes: byte * 3^power mod 256 is the fraction that is left, times 3 / 256 its first digit. */
static float *put_trits(float *dst, float d, const uint8_t *q, int run, int power) {
  static const uint8_t powers[5] = {1, 3, 9, 27, 81};
  for (int l = 0; l < run; l++) {
    uint8_t left = (uint8_t)(q[l] * powers[power]);
    *dst++ = d * (float)((left * 3 >> 8) - 1);
  }
  return dst;
}

void ane_tq1_0_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_tq1_0 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int k = 0; k < 5; k++) dst = put_trits(dst, d, b->qs, 32, k);
    for (int k = 0; k < 5; k++) dst = put_trits(dst, d, b->qs + 32, 16, k);
    for (int k = 0; k < 4; k++) dst = put_trits(dst, d, b->qh, 4, k);
  }
}

void ane_tq2_0_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_tq2_0 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 8; j++) /* run of 32: two bits of 32 bytes */
      for (int l = 0; l < 32; l++) *dst++ = d * (float)((b->qs[j / 4 * 32 + l] >> j % 4 * 2 & 3) - 1);
  }
}

void ane_mxfp4_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_mxfp4 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, b++, dst += ANE_QK) {
    float d = ane_bits_f32(ane_e8m0_half_bits(b->e));
    for (int l = 0; l < 16; l++) {
      dst[l] = d * (float)ane_e2m1_values[b->qs[l] & 15];
      dst[l + 16] = d * (float)ane_e2m1_values[b->qs[l] >> 4];
    }
  }
}

/* Half of an unsigned E4M3 number: bit 7 is not used, 0x7F (NaN in E4M3) counts as 0. */
static float ue4m3_half(uint8_t x) {
  if (x == 0x7F) return 0;
  uint32_t exp = x >> 3 & 15, man = x & 7;
  return exp ? ane_bits_f32((exp + 119) << 23 | man << 20) : (float)man * 0x1p-10f;
}

void ane_nvfp4_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_nvfp4 *b = src;
  for (uint64_t i = 0; i < n / 64; i++, b++)
    for (int j = 0; j < 4; j++, dst += 16) {
      float d = ue4m3_half(b->d[j]);
      for (int l = 0; l < 8; l++) {
        dst[l] = d * (float)ane_e2m1_values[b->qs[8 * j + l] & 15];
        dst[l + 8] = d * (float)ane_e2m1_values[b->qs[8 * j + l] >> 4];
      }
    }
}
