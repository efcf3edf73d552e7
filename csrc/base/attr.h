/* Attributes and small arithmetic helpers that every layer uses. */
#ifndef ANE_BASE_ATTR_H
#define ANE_BASE_ATTR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ANE_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ANE_NODISCARD __attribute__((warn_unused_result))
#define ANE_UNUSED __attribute__((unused))

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define ANE_WIDE_X86
#endif
/* Marks a function that is also compiled for AVX2. The loader of glibc selects that copy if the CPU has AVX2. */
#if defined(ANE_WIDE_X86) && !defined(__clang__)
#define ANE_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define ANE_WIDE
#endif

/* The number of elements of a true array (not of a pointer). */
#define ANE_COUNT(a) (sizeof(a) / sizeof *(a))

#define ANE_MIN(a, b) ((a) < (b) ? (a) : (b))
#define ANE_MAX(a, b) ((a) > (b) ? (a) : (b))

/* *out = a * b, or a + b. false on overflow; *out is then unspecified. */
static inline bool ane_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool ane_add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool ane_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool ane_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* The smallest multiple of `align` (a power of two) that is >= n. n + align must not overflow. */
static inline size_t ane_align_up(size_t n, size_t align) { return (n + align - 1) & ~(align - 1); }

/* n / d rounded up, for d > 0. Never overflows. */
static inline size_t ane_div_up(size_t n, size_t d) { return n / d + (n % d != 0); }

#endif
