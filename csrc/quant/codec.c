#include "quant/quant_internal.h"

#include "tensor/half.h"

#include <string.h>

/* The tables of decoders and encoders, from the column `codec` of dtype.def. Plain types have one function each around
 * ane_to_f32, which cannot fail for them. */
/* clang-format off */
#define NONE(...)
#define DECODE_PLAIN(id) \
  static void decode_##id(const void *src, float *dst, uint64_t n) { (void)!ane_to_f32(ANE_##id, src, dst, n, NULL); }
#define DECODE_NONE NONE
#define DECODE_READ NONE
#define DECODE_ROUND NONE
#define DECODE_SEARCH NONE
#define ANE_DTYPE(id, name, block, bytes, gguf, st, onnx, mil, codec, ...) DECODE_##codec(id)
#include "tensor/dtype.def"
#undef ANE_DTYPE
/* clang-format on */

static void encode_f32(const float *src, void *dst, uint64_t n) { memcpy(dst, src, n * sizeof *src); }

static void encode_f16(const float *src, void *dst, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    uint16_t h = ane_f32_f16(src[i]);
    memcpy((char *)dst + 2 * i, &h, 2);
  }
}

static void encode_bf16(const float *src, void *dst, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    uint16_t h = ane_f32_bf16(src[i]);
    memcpy((char *)dst + 2 * i, &h, 2);
  }
}

typedef void (*weighted_fn)(const float *src, const float *importance, void *dst, uint64_t n);

/* clang-format off */
static const struct codec {
  ane_decode_fn decode;
  ane_encode_fn encode;
  weighted_fn weighted;
} codecs[ANE_DTYPE_COUNT] = {
#define ROW_NONE(id, name)
#define ROW_PLAIN(id, name) [ANE_##id].decode = decode_##id,
#define ROW_READ(id, name) [ANE_##id].decode = ane_##name##_decode,
#define ROW_ROUND(id, name) ROW_READ(id, name) [ANE_##id].encode = ane_##name##_encode,
#define ROW_SEARCH(id, name) ROW_ROUND(id, name) [ANE_##id].weighted = ane_##name##_encode_weighted,
#define ANE_DTYPE(id, name, block, bytes, gguf, st, onnx, mil, codec, ...) ROW_##codec(id, name)
#include "tensor/dtype.def"
#undef ANE_DTYPE
    [ANE_F32].encode = encode_f32, [ANE_F16].encode = encode_f16, [ANE_BF16].encode = encode_bf16,
};
/* clang-format on */

ane_decode_fn ane_decoder(ane_dtype t) { return (unsigned)t < ANE_DTYPE_COUNT ? codecs[t].decode : NULL; }
ane_encode_fn ane_encoder(ane_dtype t) { return (unsigned)t < ANE_DTYPE_COUNT ? codecs[t].encode : NULL; }
bool ane_encoder_weighs(ane_dtype t) { return (unsigned)t < ANE_DTYPE_COUNT && codecs[t].weighted; }

bool ane_encode(ane_dtype t, const float *src, const float *importance, void *dst, uint64_t n) {
  ane_encode_fn plain = ane_encoder(t);
  if (!plain) return false;
  if (importance && codecs[t].weighted)
    codecs[t].weighted(src, importance, dst, n);
  else
    plain(src, dst, n);
  return true;
}
