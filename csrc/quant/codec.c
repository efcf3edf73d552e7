#include "quant/quant_internal.h"

#include "tensor/half.h"

#include <string.h>

/* Plain types: one function a type around ane_to_f32, which cannot fail for them. */
#define PLAIN_TYPES(X) X(F16) X(BF16) X(F32) X(F64) X(I8) X(I16) X(I32) X(U8) X(U16) X(U32) X(F8E4M3) X(F8E5M2)

#define PLAIN(id)                                                                                                                \
  static void decode_##id(const void *src, float *dst, uint64_t n) { (void)!ane_to_f32(ANE_##id, src, dst, n, NULL); }
PLAIN_TYPES(PLAIN)
#undef PLAIN

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

static const ane_decode_fn decoders[ANE_DTYPE_COUNT] = {
#define ROW(id) [ANE_##id] = decode_##id,
    PLAIN_TYPES(ROW)
#undef ROW
#define ROW(id, name) [ANE_##id] = ane_##name##_decode,
        ANE_BLOCK_DECODERS(ROW)
#undef ROW
};

static const ane_encode_fn encoders[ANE_DTYPE_COUNT] = {[ANE_F32] = encode_f32,
                                                        [ANE_F16] = encode_f16,
                                                        [ANE_BF16] = encode_bf16,
#define ROW(id, name) [ANE_##id] = ane_##name##_encode,
                                                        ANE_BLOCK_ENCODERS(ROW)
#undef ROW
};

ane_decode_fn ane_decoder(ane_dtype t) { return (unsigned)t < ANE_DTYPE_COUNT ? decoders[t] : NULL; }
ane_encode_fn ane_encoder(ane_dtype t) { return (unsigned)t < ANE_DTYPE_COUNT ? encoders[t] : NULL; }

typedef void (*weighted_fn)(const float *src, const float *importance, void *dst, uint64_t n);
static const weighted_fn weighted[ANE_DTYPE_COUNT] = {
#define ROW(id, name) [ANE_##id] = ane_##name##_encode_weighted,
    ANE_K_ENCODERS(ROW)
#undef ROW
};

bool ane_encode(ane_dtype t, const float *src, const float *importance, void *dst, uint64_t n) {
  ane_encode_fn plain = ane_encoder(t);
  if (!plain) return false;
  if (importance && weighted[t])
    weighted[t](src, importance, dst, n);
  else
    plain(src, dst, n);
  return true;
}
