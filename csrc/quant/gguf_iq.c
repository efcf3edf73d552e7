/* Grid types IQ1 to IQ3, and the non-linear 4-bit types IQ4_NL and IQ4_XS. */
#include "quant/blocks.h"
#include "quant/gguf_iq_tables.h"
#include "quant/quant_internal.h"

#include "base/bytes.h"
#include "tensor/half.h"

const int8_t ane_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static const uint8_t iq2_values[4] = {8, 25, 43, 43}; /* the grids hold no index 3 */
static const uint8_t iq3_xxs_values[8] = {4, 12, 20, 28, 36, 44, 52, 62};

/* Eight elements of magnitude d * values[index], two bits an index; bit l of signs makes element l negative. */
static void put8(float *dst, float d, uint16_t grid, uint8_t signs) {
  for (int l = 0; l < 8; l++) {
    float v = d * (float)iq2_values[grid >> 2 * l & 3];
    dst[l] = signs >> l & 1 ? -v : v;
  }
}

/* ---- IQ2 ---------------------------------------------------------------------------------------------------------*/

void ane_iq2_xxs_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq2_xxs *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int g = 0; g < 8; g++) {
      const uint8_t *index = b->qs + 8 * g;
      uint32_t aux = ane_load_u32(index + 4);
      float dl = d * (0.5f + (float)(aux >> 28)) * 0.25f;
      for (int k = 0; k < 4; k++, dst += 8) put8(dst, dl, iq2_xxs_grid[index[k]], ane_iq_signs(aux >> 7 * k));
    }
  }
}

/* Scale of eight elements j: a nibble for two such groups. */
static float iq2_scale(float d, const uint8_t *scales, int j) {
  return d * (0.5f + (float)(scales[j / 4] >> j / 2 % 2 * 4 & 15)) * 0.25f;
}

void ane_iq2_xs_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq2_xs *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 32; j++, dst += 8)
      put8(dst, iq2_scale(d, b->scales, j), iq2_xs_grid[b->qs[j] & 511], ane_iq_signs(b->qs[j] >> 9));
  }
}

void ane_iq2_s_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq2_s *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 32; j++, dst += 8) {
      int index = b->qs[j] | (b->qh[j / 4] >> j % 4 * 2 & 3) << 8;
      put8(dst, iq2_scale(d, b->scales, j), iq2_s_grid[index], b->signs[j]);
    }
  }
}

/* ---- IQ3 ---------------------------------------------------------------------------------------------------------*/

void ane_iq3_xxs_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq3_xxs *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 64; j++, dst += 4) { /* four elements of group j / 8; two j share eight signs */
      uint32_t aux = b->aux[j / 8];
      float dl = d * (0.5f + (float)(aux >> 28)) * 0.5f;
      uint16_t grid = iq3_xxs_grid[b->qs[j]];
      int signs = ane_iq_signs(aux >> j / 2 % 4 * 7) >> j % 2 * 4;
      for (int l = 0; l < 4; l++) {
        float v = dl * (float)iq3_xxs_values[grid >> 4 * l & 7];
        dst[l] = signs >> l & 1 ? -v : v;
      }
    }
  }
}

void ane_iq3_s_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq3_s *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 64; j++, dst += 4) {
      float dl = d * (float)(1 + 2 * (b->scales[j / 16] >> j / 8 % 2 * 4 & 15));
      uint16_t grid = iq3_s_grid[b->qs[j] | (b->qh[j / 8] >> j % 8 & 1) << 8];
      int signs = b->signs[j / 2] >> j % 2 * 4;
      for (int l = 0; l < 4; l++) {
        float v = dl * (float)(2 * (grid >> 4 * l & 7) + 1);
        dst[l] = signs >> l & 1 ? -v : v;
      }
    }
  }
}

/* ---- IQ1 ---------------------------------------------------------------------------------------------------------*/

/* Eight elements dl * (-1, 0 or 1, plus delta). */
static void put8_ternary(float *dst, float dl, uint16_t grid, float delta) {
  for (int l = 0; l < 8; l++) dst[l] = dl * ((float)((grid >> 2 * l & 3) - 1) + delta);
}

void ane_iq1_s_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq1_s *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 32; j++, dst += 8) {
      uint16_t h = b->qh[j / 4];
      float dl = d * (float)(2 * (h >> 12 & 7) + 1);
      put8_ternary(dst, dl, iq1_grid[b->qs[j] | (h >> j % 4 * 3 & 7) << 8], h & 0x8000 ? -0.125f : 0.125f);
    }
  }
}

void ane_iq1_m_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq1_m *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    uint32_t bits = 0; /* d: four bits at the top of each scale word */
    for (int k = 0; k < 4; k++) bits |= (uint32_t)(b->scales[k] >> 12) << 4 * k;
    float d = ane_f16_f32((uint16_t)bits);
    for (int j = 0; j < 32; j++, dst += 8) {
      float dl = d * (float)(2 * (b->scales[j / 8] >> j / 2 % 4 * 3 & 7) + 1);
      int h = b->qh[j / 2] >> j % 2 * 4;
      put8_ternary(dst, dl, iq1_grid[b->qs[j] | (h & 7) << 8], h & 8 ? -0.125f : 0.125f);
    }
  }
}

/* ---- IQ4 ---------------------------------------------------------------------------------------------------------*/

static void put32_iq4(float *dst, float d, const uint8_t *qs) {
  for (int l = 0; l < 16; l++) {
    dst[l] = d * (float)ane_iq4_values[qs[l] & 15];
    dst[l + 16] = d * (float)ane_iq4_values[qs[l] >> 4];
  }
}

void ane_iq4_nl_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq4_nl *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, b++, dst += ANE_QK) put32_iq4(dst, ane_f16_f32(b->d), b->qs);
}

void ane_iq4_xs_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_iq4_xs *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 8; j++, dst += 32) {
      int s = (b->scales_l[j / 2] >> j % 2 * 4 & 15) | (b->scales_h >> 2 * j & 3) << 4;
      put32_iq4(dst, d * (float)(s - 32), b->qs + 16 * j);
    }
  }
}
