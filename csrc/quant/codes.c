/* Blocks of the types whose elements are codes of at most four bits: 32 columns at a time as codes, scales and values. Decoders
 * and packed layouts both come from here. Block structs and formulas: quant/blocks.h. */
#include "quant/blocks.h"
#include "quant/gguf_iq_tables.h"
#include "quant/quant_internal.h"

#include "base/bytes.h"
#include "tensor/half.h"

#include <string.h>

/* ---- Values --------------------------------------------------------------------------------------------------------*/

/* The code of IQ1, IQ2 and IQ3 is the index of a magnitude, with the sign as the bit above it (IQ1: the sign of the delta).
 * Values of IQ1 are 8 * (-1, 0 or 1, plus or minus 1/8). */
static const struct ane_code_values iq4 = {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}, 1},
                                    e2m1 = {{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}, 1},
                                    iq3_s = {{1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, 1},
                                    iq3_xxs = {{4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}, 0.25f},
                                    iq2 = {{8, 25, 43, 43, -8, -25, -43, -43}, 0.125f},
                                    iq1 = {{-7, 1, 9, 9, -9, -1, 7, 7}, 0.125f};

/* ---- Readers -------------------------------------------------------------------------------------------------------*/

/* Reads 2 n codes from n bytes: the low nibbles, then the high ones. */
static void nibbles(const uint8_t *q, int n, uint8_t *code) {
  for (int l = 0; l < n; l++) code[l] = q[l] & 15, code[l + n] = q[l] >> 4;
}

static void read_iq4_nl(const void *block, ANE_UNUSED int s, struct ane_codes *out) {
  const ane_block_iq4_nl *b = block;
  out->d[0] = b->d;
  nibbles(b->qs, 16, out->code);
}

static void read_iq4_xs(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq4_xs *b = block;
  out->d[0] = b->d;
  out->sub[0] = (int8_t)(((b->scales_l[s / 2] >> s % 2 * 4 & 15) | (b->scales_h >> 2 * s & 3) << 4) - 32);
  nibbles(b->qs + 16 * s, 16, out->code);
}

/* d: the e8m0 byte. */
static void read_mxfp4(const void *block, ANE_UNUSED int s, struct ane_codes *out) {
  const ane_block_mxfp4 *b = block;
  out->d[0] = b->e;
  nibbles(b->qs, 16, out->code);
}

/* Half of an unsigned E4M3 number as fp16 bits, exact: bit 7 is not used, 0x7F (NaN in E4M3) counts as 0. */
static uint16_t ue4m3_half(uint8_t x) {
  const uint32_t exp = x >> 3 & 15, man = x & 7;
  if (x == 0x7F) return 0;
  return ane_f32_f16(exp ? ane_bits_f32((exp + 119) << 23 | man << 20) : (float)man * 0x1p-10f);
}
static void read_nvfp4(const void *block, int s, struct ane_codes *out) {
  const ane_block_nvfp4 *b = block;
  for (int half = 0; half < 2; half++) {
    out->d[half] = ue4m3_half(b->d[2 * s + half]);
    nibbles(b->qs + 16 * s + 8 * half, 8, out->code + 16 * half);
  }
}

/* Unpacks 32 codes of 2 bits: bits 2 (s % 4) and up of 32 bytes. */
static void unpack_2_bits(const uint8_t *qs, int s, uint8_t *code) {
  for (int l = 0; l < 32; l++) code[l] = qs[s / 4 * 32 + l] >> s % 4 * 2 & 3;
}

static void read_q2_k(const void *block, int s, struct ane_codes *out) {
  const ane_block_q2_k *b = block;
  out->d[0] = b->d, out->min = b->dmin;
  out->sub[0] = (int8_t)b->scales[2 * s], out->sub[1] = (int8_t)b->scales[2 * s + 1];
  unpack_2_bits(b->qs, s, out->code);
}

static void read_q3_k(const void *block, int s, struct ane_codes *out) {
  const ane_block_q3_k *b = block;
  uint8_t scales[16];
  ane_q3_k_scales(b->scales, scales);
  out->d[0] = b->d;
  out->sub[0] = (int8_t)(scales[2 * s] - 32), out->sub[1] = (int8_t)(scales[2 * s + 1] - 32);
  unpack_2_bits(b->qs, s, out->code);
  for (int l = 0; l < 32; l++) out->code[l] |= (uint8_t)((b->hmask[l] >> s & 1) << 2);
}

/* Digit `power`, from 0, of the fraction byte / 256 to the base 3. byte * 3^power mod 256 is what remains of the fraction after
 * `power` digits; the integer part of 3 / 256 times it is the digit. */
static uint8_t ternary_digit(uint8_t byte, int power) {
  static const uint8_t powers[5] = {1, 3, 9, 27, 81};
  /* analyser: the power is 0 to 4: code numbers are 0 to 255. */
  return (uint8_t)((uint8_t)(byte * powers[power]) * 3 >> 8);
}
static void read_tq1_0(const void *block, int s, struct ane_codes *out) {
  const ane_block_tq1_0 *b = block;
  out->d[0] = b->d;
  for (int l = 0; l < 32; l++) {
    const int c = 32 * s + l;
    if (c < 160)
      out->code[l] = ternary_digit(b->qs[c % 32], c / 32);
    else if (c < 240)
      out->code[l] = ternary_digit(b->qs[32 + c % 16], (c - 160) / 16);
    else
      out->code[l] = ternary_digit(b->qh[c % 4], (c - 240) / 4);
  }
}

static void read_tq2_0(const void *block, int s, struct ane_codes *out) {
  const ane_block_tq2_0 *b = block;
  out->d[0] = b->d;
  unpack_2_bits(b->qs, s, out->code);
}

/* Eight codes of a grid point with two bits per element. Bit l of signs becomes the sign of code l. */
static void grid8(uint16_t grid, uint8_t signs, uint8_t *code) {
  for (int l = 0; l < 8; l++) code[l] = (uint8_t)((grid >> 2 * l & 3) | (signs >> l & 1) << 2);
}
/* Four codes of a grid point with four bits per element. */
static void grid4(uint16_t grid, int signs, uint8_t *code) {
  for (int l = 0; l < 4; l++) code[l] = (uint8_t)((grid >> 4 * l & 7) | (signs >> l & 1) << 3);
}

static void read_iq2_xxs(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq2_xxs *b = block;
  const uint8_t *index = b->qs + 8 * s;
  const uint32_t aux = ane_load_u32(index + 4);
  out->d[0] = b->d;
  out->sub[0] = (int8_t)(2 * (aux >> 28) + 1);
  for (int k = 0; k < 4; k++) grid8(iq2_xxs_grid[index[k]], ane_iq_signs(aux >> 7 * k), out->code + 8 * k);
}

/* The two scales of 32 elements: a nibble each. */
static void iq2_scales(const uint8_t *scales, int s, struct ane_codes *out) {
  out->sub[0] = (int8_t)(2 * (scales[s] & 15) + 1), out->sub[1] = (int8_t)(2 * (scales[s] >> 4) + 1);
}
static void read_iq2_xs(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq2_xs *b = block;
  out->d[0] = b->d;
  iq2_scales(b->scales, s, out);
  for (int k = 0; k < 4; k++) grid8(iq2_xs_grid[b->qs[4 * s + k] & 511], ane_iq_signs(b->qs[4 * s + k] >> 9), out->code + 8 * k);
}
static void read_iq2_s(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq2_s *b = block;
  out->d[0] = b->d;
  iq2_scales(b->scales, s, out);
  for (int k = 0; k < 4; k++)
    grid8(iq2_s_grid[b->qs[4 * s + k] | (b->qh[s] >> 2 * k & 3) << 8], b->signs[4 * s + k], out->code + 8 * k);
}

static void read_iq3_xxs(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq3_xxs *b = block;
  const uint32_t aux = b->aux[s];
  out->d[0] = b->d;
  out->sub[0] = (int8_t)(2 * (aux >> 28) + 1);
  for (int k = 0; k < 8; k++)
    grid4(iq3_xxs_grid[b->qs[8 * s + k]], ane_iq_signs(aux >> 7 * (k / 2)) >> k % 2 * 4, out->code + 4 * k);
}
static void read_iq3_s(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq3_s *b = block;
  out->d[0] = b->d;
  out->sub[0] = (int8_t)(2 * (b->scales[s / 2] >> s % 2 * 4 & 15) + 1);
  for (int k = 0; k < 8; k++)
    grid4(iq3_s_grid[b->qs[8 * s + k] | (b->qh[s] >> k & 1) << 8], b->signs[4 * s + k / 2] >> k % 2 * 4, out->code + 4 * k);
}

static void read_iq1_s(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq1_s *b = block;
  const uint16_t h = b->qh[s];
  out->d[0] = b->d;
  out->sub[0] = (int8_t)(2 * (h >> 12 & 7) + 1);
  for (int k = 0; k < 4; k++) grid8(iq1_grid[b->qs[4 * s + k] | (h >> 3 * k & 7) << 8], h & 0x8000 ? 255 : 0, out->code + 8 * k);
}
/* d: four bits at the top of each scale word. */
static void read_iq1_m(const void *block, int s, struct ane_codes *out) {
  const ane_block_iq1_m *b = block;
  out->d[0] = 0;
  for (int k = 0; k < 4; k++) out->d[0] = (uint16_t)(out->d[0] | (b->scales[k] >> 12) << 4 * k);
  for (int half = 0; half < 2; half++) out->sub[half] = (int8_t)(2 * (b->scales[s / 2] >> (s % 2 * 2 + half) * 3 & 7) + 1);
  for (int k = 0; k < 4; k++) {
    const int h = b->qh[2 * s + k / 2] >> k % 2 * 4;
    grid8(iq1_grid[b->qs[4 * s + k] | (h & 7) << 8], h & 8 ? 255 : 0, out->code + 8 * k);
  }
}

/* ---- By type -------------------------------------------------------------------------------------------------------*/

static const struct coded {
  ane_codes_fn read;
  const struct ane_code_values *values;
  int subs; /* of sub: scales for each 32 columns; 0: d alone */
} types[ANE_DTYPE_COUNT] = {
    [ANE_IQ4_NL] = {read_iq4_nl, &iq4, 0}, [ANE_IQ4_XS] = {read_iq4_xs, &iq4, 1}, [ANE_MXFP4] = {read_mxfp4, &e2m1, 0},
    [ANE_NVFP4] = {read_nvfp4, &e2m1, 0},  [ANE_Q2_K] = {read_q2_k, NULL, 2},     [ANE_Q3_K] = {read_q3_k, NULL, 2},
    [ANE_TQ1_0] = {read_tq1_0, NULL, 0},   [ANE_TQ2_0] = {read_tq2_0, NULL, 0},   [ANE_IQ2_XXS] = {read_iq2_xxs, &iq2, 1},
    [ANE_IQ2_XS] = {read_iq2_xs, &iq2, 2}, [ANE_IQ2_S] = {read_iq2_s, &iq2, 2},   [ANE_IQ3_XXS] = {read_iq3_xxs, &iq3_xxs, 1},
    [ANE_IQ3_S] = {read_iq3_s, &iq3_s, 1}, [ANE_IQ1_S] = {read_iq1_s, &iq1, 1},   [ANE_IQ1_M] = {read_iq1_m, &iq1, 2},
};

ane_codes_fn ane_codes_reader(ane_dtype t) { return types[t].read; }
const struct ane_code_values *ane_code_values(ane_dtype t) { return types[t].values; }

/* value = d * sub * factor * values[code], for types whose d is fp16; sub is 1 if the type has none. All products but the last
 * are exact. */
static void decode(ane_dtype t, const uint8_t *src, float *dst, uint64_t n) {
  const struct ane_dtype_info *info = ane_dtype_info(t);
  const struct coded *k = &types[t];
  for (uint64_t i = 0; i < n; i += info->block, src += info->bytes)
    for (uint32_t s = 0; s < info->block / 32; s++, dst += 32) {
      struct ane_codes c;
      k->read(src, (int)s, &c);
      for (int l = 0; l < 32; l++) {
        const int half = k->subs == 2 ? l / 16 : 0;
        const float scale = ane_f16_f32(c.d[0]) * (k->subs ? (float)c.sub[half] : 1.0f) * k->values->factor;
        dst[l] = scale * (float)k->values->value[c.code[l]];
      }
    }
}

#define DECODE(id, name)                                                                                                         \
  void ane_##name##_decode(const void *src, float *dst, uint64_t n) { decode(ANE_##id, src, dst, n); }
DECODE(IQ4_NL, iq4_nl)
DECODE(IQ4_XS, iq4_xs)
DECODE(IQ3_S, iq3_s)
DECODE(IQ3_XXS, iq3_xxs)
DECODE(IQ2_XXS, iq2_xxs)
DECODE(IQ2_XS, iq2_xs)
DECODE(IQ2_S, iq2_s)
DECODE(IQ1_S, iq1_s)
DECODE(IQ1_M, iq1_m)

void ane_mxfp4_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_mxfp4 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, b++, dst += ANE_QK) {
    struct ane_codes c;
    read_mxfp4(b, 0, &c);
    for (int l = 0; l < 32; l++) dst[l] = ane_bits_f32(ane_e8m0_half_bits(b->e)) * (float)e2m1.value[c.code[l]];
  }
}

void ane_nvfp4_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_nvfp4 *b = src;
  for (uint64_t i = 0; i < n / 64; i++, b++)
    for (int s = 0; s < 2; s++, dst += 32) {
      struct ane_codes c;
      read_nvfp4(b, s, &c);
      for (int l = 0; l < 32; l++) dst[l] = ane_f16_f32(c.d[l / 16]) * (float)e2m1.value[c.code[l]];
    }
}

static void decode_ternary(ane_dtype t, const uint8_t *src, float *dst, uint64_t n) {
  const struct ane_dtype_info *info = ane_dtype_info(t);
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, src += info->bytes)
    for (int s = 0; s < 8; s++, dst += 32) {
      struct ane_codes c;
      types[t].read(src, s, &c);
      for (int l = 0; l < 32; l++) dst[l] = ane_f16_f32(c.d[0]) * (float)(c.code[l] - 1);
    }
}
void ane_tq1_0_decode(const void *src, float *dst, uint64_t n) { decode_ternary(ANE_TQ1_0, src, dst, n); }
void ane_tq2_0_decode(const void *src, float *dst, uint64_t n) { decode_ternary(ANE_TQ2_0, src, dst, n); }
