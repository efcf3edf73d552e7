/* The block codecs that codec.c puts into its table. */
#ifndef ANE_QUANT_QUANT_INTERNAL_H
#define ANE_QUANT_QUANT_INTERNAL_H

#include "quant/quant.h"

/* The codecs by the column `codec` of dtype.def: what rows declare. */
/* clang-format off */
#define ANE_CODEC_NONE(name)
#define ANE_CODEC_PLAIN(name)
#define ANE_CODEC_READ(name) void ane_##name##_decode(const void *src, float *dst, uint64_t n);
#define ANE_CODEC_ROUND(name) ANE_CODEC_READ(name) void ane_##name##_encode(const float *src, void *dst, uint64_t n);
#define ANE_CODEC_SEARCH(name) \
  ANE_CODEC_ROUND(name) void ane_##name##_encode_weighted(const float *src, const float *importance, void *dst, uint64_t n);
#define ANE_DTYPE(id, name, block, bytes, gguf, st, onnx, mil, codec, ...) ANE_CODEC_##codec(name)
#include "tensor/dtype.def"
#undef ANE_DTYPE
/* clang-format on */

/* Defines ane_NAME_decode, which calls decode_NAME. A function with copies (ANE_WIDE) is static: GCC exports others. */
#define ANE_WIDE_DECODER(name)                                                                                                   \
  void ane_##name##_decode(const void *src, float *dst, uint64_t n) { decode_##name(src, dst, n); }

#endif
