/* The block codecs that codec.c puts into its table. */
#ifndef ANE_QUANT_QUANT_INTERNAL_H
#define ANE_QUANT_QUANT_INTERNAL_H

#include "quant/quant.h"

/* X(enumerator of dtype.def, name): all have ane_<name>_decode. */
/* clang-format off */
#define ANE_BLOCK_DECODERS(X) \
  X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q4_K, q4_k) X(Q5_K, q5_k) \
  X(Q6_K, q6_k) X(IQ2_XXS, iq2_xxs) X(IQ2_XS, iq2_xs) X(IQ2_S, iq2_s) X(IQ3_XXS, iq3_xxs) X(IQ3_S, iq3_s) X(IQ1_S, iq1_s) \
  X(IQ1_M, iq1_m) X(IQ4_NL, iq4_nl) X(IQ4_XS, iq4_xs) X(TQ1_0, tq1_0) X(TQ2_0, tq2_0) X(MXFP4, mxfp4) X(NVFP4, nvfp4) X(N4, n4) \
  X(N8, n8) X(N4H, n4h) X(N8H, n8h)
/* clang-format on */
/* Those that search for scales also have ane_<name>_encode_weighted. */
#define ANE_K_ENCODERS(X) X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k)
#define ANE_BLOCK_ENCODERS(X) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) ANE_K_ENCODERS(X)

#define ANE_DECLARE(id, name) void ane_##name##_decode(const void *src, float *dst, uint64_t n);
ANE_BLOCK_DECODERS(ANE_DECLARE)
#undef ANE_DECLARE
#define ANE_DECLARE(id, name) void ane_##name##_encode(const float *src, void *dst, uint64_t n);
ANE_BLOCK_ENCODERS(ANE_DECLARE)
#undef ANE_DECLARE
#define ANE_DECLARE(id, name) void ane_##name##_encode_weighted(const float *src, const float *importance, void *dst, uint64_t n);
ANE_K_ENCODERS(ANE_DECLARE)
#undef ANE_DECLARE

#endif
