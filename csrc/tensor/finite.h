/* Tests for finite numbers, also as fp16. */
#ifndef ANE_TENSOR_FINITE_H
#define ANE_TENSOR_FINITE_H

#include "tensor/half.h"

#include <stdbool.h>
#include <stddef.h>

/* Are n numbers finite? */
static inline bool ane_all_finite(const float *x, uint64_t n) {
  bool fine = true;
  for (uint64_t i = 0; i < n; i++) fine &= (ane_f32_bits(x[i]) & 0x7F800000) != 0x7F800000;
  return fine;
}

/* Rounds n numbers to fp16. false: one of them is not finite there. out NULL: the test alone. */
static inline bool ane_round_f16(const float *x, uint64_t n, uint16_t *out) {
  bool fine = true;
  for (uint64_t i = 0; i < n; i++) {
    uint16_t h = ane_f32_f16(x[i]);
    if (out) out[i] = h;
    fine &= (h & 0x7C00) != 0x7C00;
  }
  return fine;
}

#endif
