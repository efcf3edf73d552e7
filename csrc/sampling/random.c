/* Counter-based random numbers: Philox4x32-10. */
#include "sampling/sampling.h"

/* Multipliers and Weyl increments of Philox4x32 (Salmon et al. 2011, section 3.3; Random123 philox.h). */
static const uint32_t mul0 = 0xD2511F53u, mul1 = 0xCD9E8D57u, weyl0 = 0x9E3779B9u, weyl1 = 0xBB67AE85u;

void ane_philox(uint64_t seed, uint64_t position, uint32_t out[4]) {
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++, k0 += weyl0, k1 += weyl1) {
    uint64_t p0 = (uint64_t)mul0 * c0, p1 = (uint64_t)mul1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

double ane_random(uint64_t seed, uint64_t position) {
  uint32_t word[4];
  ane_philox(seed, position, word);
  return (double)(((uint64_t)word[1] << 32 | word[0]) >> 11) * 0x1p-53;
}
