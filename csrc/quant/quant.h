/* Block codecs: rows of any stored type to float32 and back. The layouts are those of the GGUF specification
 * (ggml/docs/gguf.md) and of ggml's block structs; quant/blocks.h draws them. */
#ifndef ANE_QUANT_QUANT_H
#define ANE_QUANT_QUANT_H

#include "tensor/tensor.h"

/* Decodes n elements of one row: n is a multiple of the type's block. src needs no alignment. Cannot fail: every bit
 * pattern decodes to something (maybe infinity or NaN), table indices are masked. */
typedef void (*ane_decode_fn)(const void *src, float *dst, uint64_t n);

/* The decoder of a type; plain types included. NULL for types without (bool, int4, uint4, 64-bit integers). */
ane_decode_fn ane_decoder(ane_dtype t);

/* Encodes n elements (a multiple of the block): NULL where no encoder exists. Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: the plain
 * rounding rules of the GGUF reference; fp16, bf16: nearest even. */
typedef void (*ane_encode_fn)(const float *src, void *dst, uint64_t n);
ane_encode_fn ane_encoder(ane_dtype t);

#endif
