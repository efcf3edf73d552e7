/* Vectors of 8 rows for the x86 matmul templates (x86/matmul_*.h); a group of 16 rows is two of them. With ANE_LANES_VNNI the
 * 8-bit dot is one instruction. Without it, products of unsigned codes and signed activations are first summed in 16 bits.
 *
 * These operations add to those of vec/vec_avx2.h, which are loads, stores and arithmetic in fp32. Their elements are 8-bit
 * codes: vi holds LANES x 4 of them, or LANES int32, or bytes of a lookup table. */
#ifndef ANE_KERNELS_X86_MATMUL_LANES_AVX2_H
#define ANE_KERNELS_X86_MATMUL_LANES_AVX2_H

#include "kernels/matmul_layouts.h"
#include "kernels/vec/vec_avx2.h"

enum { LANES = VL, F32_NV = 2, F32_NT = 6 };
INLINE bool half_units(void) { return false; }
/* FEW: the most tokens that `fused` takes; FEW_FOUR and FEW_BYTES: the same for some 4-bit codes and for codes stored as bytes.
 * FUSED_NV: the vectors it takes at a time. FUSED_NT: the most tokens of a run; FUSED_NT1: the same with one vector. I8_NV and
 * I8_NT: vectors and tokens of a tile. SIGNED_BYTES: unpacked bytes are signed. These sizes were measured on Zen 5. HALF_*: of
 * AVX-512 only. */
#ifdef ANE_LANES_VNNI
enum {
  I8_NV = 2,
  I8_NT = 6,
  FUSED_NT = 4,
  FUSED_NT1 = 4,
  FUSED_NV = 1,
  FEW = 3,
  FEW_FOUR = 3,
  FEW_BYTES = 3,
  SIGNED_BYTES = 0,
  HALF_NT = 0,
  HALF_FEW = 0,
  HALF_FEW_BYTES = 0
};
#else
enum {
  I8_NV = 2,
  I8_NT = 4,
  FUSED_NT = 4,
  FUSED_NT1 = 4,
  FUSED_NV = 1,
  FEW = 4,
  FEW_FOUR = 4,
  FEW_BYTES = 4,
  SIGNED_BYTES = 1,
  HALF_NT = 0,
  HALF_FEW = 0,
  HALF_FEW_BYTES = 0
};
#endif

INLINE vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
INLINE void vi_store(void *p, vi a) { _mm256_storeu_si256(p, a); }
INLINE vi vi_word(const void *p) { return _mm256_set1_epi32((int)ane_word(p)); }
INLINE vi vi_byte(int b) { return _mm256_set1_epi8((char)b); }
INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
INLINE vi vi_or_and(vi a, vi b, vi mask) { return _mm256_or_si256(a, _mm256_and_si256(b, mask)); }
INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
INLINE vi vi_shl_by(vi a, int n) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n)); }
INLINE vi vi_shr_by(vi a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
INLINE vi vi_times_128(vi a) { return _mm256_slli_epi32(a, 7); }
INLINE vi vi_set(int n) { return _mm256_set1_epi32(n); }
/* vi_table repeats 16 bytes in each 128 bits; vi_lookup gives the bytes at the indices `code`, 0 .. 15. */
INLINE vi vi_table(const void *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(p)); }
INLINE vi vi_lookup(vi table, vi code) { return _mm256_shuffle_epi8(table, code); }
/* Shift 16-bit elements by a literal. */
#define vi_shl(a, n) _mm256_slli_epi16(a, n)
#define vi_shr(a, n) _mm256_srli_epi16(a, n)

/* Loads 16 bytes of each of 8 rows, `stride` bytes apart. out[v] holds bytes 4v .. 4v + 3 of all rows. */
INLINE void vi_rows(const uint8_t *p, size_t stride, vi out[4]) {
  vi a[4];
#pragma GCC unroll 4
  for (size_t k = 0; k < 4; k++)
    a[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)(p + k * stride))),
                                   _mm_loadu_si128((const void *)(p + (k + 4) * stride)), 1);
  vi b = _mm256_unpacklo_epi32(a[0], a[1]), c = _mm256_unpacklo_epi32(a[2], a[3]);
  vi d = _mm256_unpackhi_epi32(a[0], a[1]), e = _mm256_unpackhi_epi32(a[2], a[3]);
  out[0] = _mm256_unpacklo_epi64(b, c);
  out[1] = _mm256_unpackhi_epi64(b, c);
  out[2] = _mm256_unpacklo_epi64(d, e);
  out[3] = _mm256_unpackhi_epi64(d, e);
}

/* Returns a bit for each of the first n bytes at p, set if the byte is not 0. Up to MARKS bytes are read. */
enum { MARKS = 32 };
INLINE uint64_t vi_marks(const uint8_t *p, int64_t n) {
  uint64_t m = (uint32_t)~_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)p), _mm256_setzero_si256()));
  return n < 32 ? m & (((uint64_t)1 << n) - 1) : m;
}

/* The first n lanes. Unlike v_load_n and v_store_n they have no branch: n differs from call to call. */
INLINE vf v_load_masked(const float *p, int64_t n) { return _mm256_maskload_ps(p, v_first_lanes(n)); }
INLINE void v_store_masked(float *p, vf a, int64_t n) { _mm256_maskstore_ps(p, v_first_lanes(n), a); }
INLINE vi vi_load_masked(const int32_t *p, int64_t n) { return _mm256_maskload_epi32(p, v_first_lanes(n)); }
INLINE vf v_bits(vi a) { return _mm256_castsi256_ps(a); }
/* Convert a byte of each of LANES rows: to int32; to floats of the byte, its low nibble or its high nibble; to 2^(byte - 128). */
INLINE vi vi_load_u8(const void *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)); }
INLINE vf v_load_u8(const void *p) { return v_float(vi_load_u8(p)); }
INLINE vf v_load_low(const void *p) { return v_float(vi_and(vi_load_u8(p), vi_set(15))); }
INLINE vf v_load_high(const void *p) { return v_float(vi_shr_by(vi_load_u8(p), 4)); }
INLINE vf v_load_e8m0(const void *p) { /* bytes 0 and 1 give subnormal numbers, which the second term covers */
  const vi e = vi_load_u8(p);
  return v_max(v_bits(vi_shl_by(vi_add(e, vi_set(-1)), 23)), v_bits(vi_shl_by(vi_add(e, vi_set(1)), 21)));
}

/* Lane i of the result is the largest lane of a[i]. */
INLINE vf v_max_each(const vf a[LANES]) {
  vf four[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) { /* four[i]: in each 128 bits a lane for each of a[4 i] .. a[4 i + 3] */
    const vf *p = a + 4 * i;
    const __m256d x = _mm256_castps_pd(_mm256_max_ps(_mm256_unpacklo_ps(p[0], p[1]), _mm256_unpackhi_ps(p[0], p[1])));
    const __m256d y = _mm256_castps_pd(_mm256_max_ps(_mm256_unpacklo_ps(p[2], p[3]), _mm256_unpackhi_ps(p[2], p[3])));
    four[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  }
  return _mm256_max_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20), _mm256_permute2f128_ps(four[0], four[1], 0x31));
}

/* A table of 16 floats, indexed by codes 0 .. 15. */
struct v_tables {
  vf a, b;
};
INLINE struct v_tables v_load_tables(const float *p) { return (struct v_tables){v_load(p), v_load(p + 8)}; }
INLINE vf v_table(struct v_tables t, vi code) {
  vf low = _mm256_permutevar8x32_ps(t.a, code),
     high = _mm256_permutevar8x32_ps(t.b, code); /* three bits index a half, the fourth selects it */
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
}

/* Keeps the compiler from reordering sums: it would compute all products first and spill them. */
#define KEEP_ORDER(v) __asm__("" : "+x"(v))

/* One step of a dot over eight planes: sum += code * q. `run` accumulates 16-bit sums from `first` to `last`. */
INLINE void dot_step(vi *sum, vi *run, vi code, vi q, bool is_signed, bool first, bool last) {
#ifdef ANE_LANES_VNNI
  (void)run, (void)is_signed, (void)first, (void)last;
  *sum = _mm256_dpbusd_avx_epi32(*sum, code, q);
#else
  if (is_signed) { /* |code| * (q with the sign of code): at most 128 * 127 * 2, so it fits */
    q = _mm256_sign_epi8(q, code);
    code = _mm256_abs_epi8(code);
  }
  vi product = _mm256_maddubs_epi16(code, q);
  *run = first ? product : _mm256_add_epi16(*run, product);
  KEEP_ORDER(*run);
  if (!last) return;
  *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*run, _mm256_set1_epi16(1)));
  KEEP_ORDER(*sum);
#endif
}

#endif
