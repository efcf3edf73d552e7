#include "kernels/x86/limits_asm.h"

#include <immintrin.h>

#define FMA(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n"

LIMIT(limit_dot_avx2, FOUR_BLOCKS(YMM), 4 * 512)
LIMIT(limit_fma_avx2, TWELVE(FMA), 12 * 16)

uint64_t limit_read_avx2(const void *p, size_t size) {
  const char *at = p;
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (size_t i = 0; i + 128 <= size; i += 128) {
    a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(at + i)));
    b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(at + i + 32)));
    c = _mm256_xor_si256(c, _mm256_loadu_si256((const __m256i *)(at + i + 64)));
    d = _mm256_xor_si256(d, _mm256_loadu_si256((const __m256i *)(at + i + 96)));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 3);
}
