/* Looks for elements that are not finite. Of a block type only the scales can be infinite or NaN: codes and sub-scales are
 * integers, too small to overflow the product. */
#include "base/attr.h"
#include "quant/blocks.h"
#include "quant/quant.h"
#include "tensor/half.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { CHUNK = 256 }; /* a multiple of every block */

/* The offsets of the fp16 scales in a block; both are equal if it has one. */
static const struct scales {
  uint8_t at[2];
  bool known;
} scales[ANE_DTYPE_COUNT] = {
#define ONE(id, type) [ANE_##id] = {{offsetof(ane_block_##type, d), offsetof(ane_block_##type, d)}, true},
#define TWO(id, type, other) [ANE_##id] = {{offsetof(ane_block_##type, d), offsetof(ane_block_##type, other)}, true},
    /* clang-format off */
    ONE(Q4_0, q4_0) TWO(Q4_1, q4_1, m) ONE(Q5_0, q5_0) TWO(Q5_1, q5_1, m) ONE(Q8_0, q8_0) ONE(IQ4_NL, iq4_nl)
    TWO(Q2_K, q2_k, dmin) ONE(Q3_K, q3_k) TWO(Q4_K, q4_k, dmin) TWO(Q5_K, q5_k, dmin) ONE(Q6_K, q6_k)
    ONE(IQ1_S, iq1_s) ONE(IQ2_XXS, iq2_xxs) ONE(IQ2_XS, iq2_xs) ONE(IQ2_S, iq2_s) ONE(IQ3_XXS, iq3_xxs) ONE(IQ3_S, iq3_s)
    ONE(IQ4_XS, iq4_xs) ONE(TQ1_0, tq1_0) ONE(TQ2_0, tq2_0)
    /* clang-format on */
};

/* For types of 16 bits: a number is not finite if all bits of its exponent are set. */
static int64_t in_halves(const uint8_t *src, uint64_t n, uint16_t exponent) {
  for (uint64_t from = 0; from < n; from += CHUNK) {
    const uint64_t part = ANE_MIN((uint64_t)CHUNK, n - from);
    uint16_t h[CHUNK] = {0}, any = 0;
    memcpy(h, src + 2 * from, 2 * part);
    for (int i = 0; i < CHUNK; i++) any |= (uint16_t)((h[i] & exponent) == exponent); /* a constant count is vectorised */
    for (uint64_t i = 0; any && i < part; i++)
      if ((h[i] & exponent) == exponent) return (int64_t)(from + i);
  }
  return -1;
}

/* The first of CHUNK floats that is not finite; -1: none. */
static int64_t in_chunk(const float *x) {
  int any = 0;
  for (int i = 0; i < CHUNK; i++) any |= (ane_f32_bits(x[i]) & 0x7F800000) == 0x7F800000;
  for (int i = 0; any && i < CHUNK; i++)
    if (!isfinite(x[i])) return i;
  return -1;
}

/* For types without a list of scales: decodes and checks all elements. */
static int64_t in_decoded(ane_dtype t, const uint8_t *src, uint64_t n) {
  const struct ane_dtype_info *info = ane_dtype_info(t);
  ane_decode_fn decode = ane_decoder(t);
  float x[CHUNK] = {0}; /* after the last part: zeros, or finite elements of the previous chunk */
  for (uint64_t from = 0; decode && from < n; from += CHUNK) {
    const uint64_t part = ANE_MIN((uint64_t)CHUNK, n - from);
    decode(src + from / info->block * info->bytes, x, part);
    int64_t bad = in_chunk(x);
    if (bad >= 0) return (int64_t)from + bad;
  }
  return -1;
}

static bool half_is_finite(const uint8_t *at) {
  uint16_t h;
  memcpy(&h, at, 2);
  return (h & 0x7C00) != 0x7C00;
}

int64_t ane_find_not_finite(ane_dtype t, const void *src, uint64_t n) {
  const uint8_t *bytes = src;
  switch (t) {
    case ANE_F16: return in_halves(bytes, n, 0x7C00);
    case ANE_BF16: return in_halves(bytes, n, 0x7F80);
    case ANE_I8:
    case ANE_I16:
    case ANE_I32:
    case ANE_U8:
    case ANE_U16:
    case ANE_U32: return -1;
    default: break;
  }
  if (!scales[t].known) return in_decoded(t, bytes, n);
  const struct ane_dtype_info *info = ane_dtype_info(t);
  for (uint64_t b = 0; b < n / info->block; b++, bytes += info->bytes)
    if (!half_is_finite(bytes + scales[t].at[0]) || !half_is_finite(bytes + scales[t].at[1])) return (int64_t)(b * info->block);
  return -1;
}
