/* Vectors of 16 rows for the x86 matmul templates (x86/matmul_*.h). With ANE_LANES_VNNI the 8-bit dot is one instruction. Without
 * it, products of unsigned codes and signed activations are first summed in 16 bits. matmul_lanes_avx2.h documents the
 * operations. They add to those of vec/vec_avx512.h. */
#ifndef ANE_KERNELS_X86_MATMUL_LANES_AVX512_H
#define ANE_KERNELS_X86_MATMUL_LANES_AVX512_H

#include "kernels/matmul_layouts.h"
#include "kernels/vec/vec_avx512.h"

enum { LANES = VL, F32_NV = 2, F32_NT = 6 };
/* FEW: the most tokens that `fused` takes; FEW_FOUR: the same for 4-bit codes with numbers of their own in each block, which
 * unpack in few steps; FEW_BYTES: for codes stored as bytes, which need none. FUSED_NV: the vectors it takes at a time. FUSED_NT:
 * the most tokens of a run; FUSED_NT1: the same with one vector. These and the tile sizes were measured on Zen 5, FEW_FOUR and
 * FEW_BYTES on a Xeon. HALF_*: the same for a CPU that computes 512 bits in two halves, with one vector always, measured on
 * Zen 4. There a dot takes as long as a load, so vectors need not share loads of activations, and lines that are prefetched to
 * the first level cache delay the loads beside them. */
#ifdef ANE_LANES_VNNI
enum {
  I8_NV = 2,
  I8_NT = 6,
  FUSED_NT = 8,
  FUSED_NT1 = 4,
  FUSED_NV = 2,
  FEW = 16,
  FEW_FOUR = 32,
  FEW_BYTES = 64,
  SIGNED_BYTES = 0,
  HALF_NT = 6,
  HALF_FEW = 32,
  HALF_FEW_BYTES = 64
};
INLINE bool half_units(void) { return ane_half_units; }
#else
enum {
  I8_NV = 2,
  I8_NT = 4,
  FUSED_NT = 4,
  FUSED_NT1 = 4,
  FUSED_NV = 1,
  FEW = 12,
  FEW_FOUR = 12,
  FEW_BYTES = 12,
  SIGNED_BYTES = 1,
  HALF_NT = 0,
  HALF_FEW = 0,
  HALF_FEW_BYTES = 0
};
INLINE bool half_units(void) { return false; }
#endif

INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE vi vi_word(const void *p) { return _mm512_set1_epi32((int)ane_word(p)); }
INLINE vi vi_byte(int b) { return _mm512_set1_epi8((char)b); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vi vi_or_and(vi a, vi b, vi mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xF8); } /* a | (b & mask) */
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi vi_shl_by(vi a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
INLINE vi vi_shr_by(vi a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
INLINE vi vi_times_128(vi a) { return _mm512_slli_epi32(a, 7); }
INLINE vi vi_set(int n) { return _mm512_set1_epi32(n); }
/* vi_table repeats 16 bytes in each 128 bits; vi_lookup gives the bytes at the indices `code`, 0 .. 15. */
INLINE vi vi_table(const void *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(p)); }
INLINE vi vi_lookup(vi table, vi code) { return _mm512_shuffle_epi8(table, code); }
/* Shift 16-bit elements by a literal. */
#define vi_shl(a, n) _mm512_slli_epi16(a, n)
#define vi_shr(a, n) _mm512_srli_epi16(a, n)

/* Loads 16 bytes of each of 16 rows, `stride` bytes apart. out[v] holds bytes 4v .. 4v + 3 of all rows. */
INLINE void vi_rows(const uint8_t *p, size_t stride, vi out[4]) {
  vi a[4];
#pragma GCC unroll 4
  for (size_t k = 0; k < 4; k++) {
    a[k] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(p + k * stride)));
    a[k] = _mm512_inserti32x4(a[k], _mm_loadu_si128((const void *)(p + (k + 4) * stride)), 1);
    a[k] = _mm512_inserti32x4(a[k], _mm_loadu_si128((const void *)(p + (k + 8) * stride)), 2);
    a[k] = _mm512_inserti32x4(a[k], _mm_loadu_si128((const void *)(p + (k + 12) * stride)), 3);
  }
  vi b = _mm512_unpacklo_epi32(a[0], a[1]), c = _mm512_unpacklo_epi32(a[2], a[3]);
  vi d = _mm512_unpackhi_epi32(a[0], a[1]), e = _mm512_unpackhi_epi32(a[2], a[3]);
  out[0] = _mm512_unpacklo_epi64(b, c);
  out[1] = _mm512_unpackhi_epi64(b, c);
  out[2] = _mm512_unpacklo_epi64(d, e);
  out[3] = _mm512_unpackhi_epi64(d, e);
}

#ifdef ANE_LANES_VNNI
#define ANE_LANES_ROWS /* the operations of matmul_split.h */
/* Returns sum + dots of unsigned codes and signed q, four bytes each. */
INLINE vi vi_dot(vi sum, vi code, vi q) { return _mm512_dpbusd_epi32(sum, code, q); }
/* Return the low, the high halves of each 32 bytes of a and b. */
INLINE vi vi_low_halves(vi a, vi b) { return _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13), b); }
INLINE vi vi_high_halves(vi a, vi b) { return _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15), b); }
/* Returns, in each quarter, the sums of the same quarter of rows[0], .. rows[3]. Each pair of numbers has a sum within 16 bits.
 */
INLINE vi vi_fold_rows(const vi rows[4]) {
  const vi ones = _mm512_set1_epi16(1);
  const vi a = _mm512_madd_epi16(_mm512_packs_epi32(rows[0], rows[1]), ones);
  const vi b = _mm512_madd_epi16(_mm512_packs_epi32(rows[2], rows[3]), ones);
  return _mm512_madd_epi16(_mm512_packs_epi32(a, b), ones);
}
/* out[i] = quarter i of rows[0], .. rows[3]. */
INLINE void vi_transpose_quarters(const vi rows[4], vi out[4]) {
  const vi a = _mm512_shuffle_i32x4(rows[0], rows[1], 0x44), b = _mm512_shuffle_i32x4(rows[2], rows[3], 0x44);
  const vi c = _mm512_shuffle_i32x4(rows[0], rows[1], 0xEE), d = _mm512_shuffle_i32x4(rows[2], rows[3], 0xEE);
  out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
  out[1] = _mm512_shuffle_i32x4(a, b, 0xDD);
  out[2] = _mm512_shuffle_i32x4(c, d, 0x88);
  out[3] = _mm512_shuffle_i32x4(c, d, 0xDD);
}
#endif

/* Returns a bit for each of the first n bytes at p, set if the byte is not 0. Up to MARKS bytes are read. */
enum { MARKS = 64 };
INLINE uint64_t vi_marks(const uint8_t *p, int64_t n) {
  uint64_t m = _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(p), _mm512_setzero_si512());
  return n < 64 ? m & (((uint64_t)1 << n) - 1) : m;
}

/* The first n lanes, always by mask. */
INLINE vf v_load_masked(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(v_first_lanes(n), p); }
INLINE void v_store_masked(float *p, vf a, int64_t n) { _mm512_mask_storeu_ps(p, v_first_lanes(n), a); }
INLINE vi vi_load_masked(const int32_t *p, int64_t n) { return _mm512_maskz_loadu_epi32(v_first_lanes(n), p); }
INLINE vf v_bits(vi a) { return _mm512_castsi512_ps(a); }
/* Convert a byte of each of LANES rows: to int32; to floats of the byte, its low nibble or its high nibble; to 2^(byte - 128). */
INLINE vi vi_load_u8(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
INLINE vf v_load_u8(const void *p) { return v_float(vi_load_u8(p)); }
INLINE vf v_load_low(const void *p) { return v_float(vi_and(vi_load_u8(p), vi_set(15))); }
INLINE vf v_load_high(const void *p) { return v_float(vi_shr_by(vi_load_u8(p), 4)); }
INLINE vf v_load_e8m0(const void *p) { /* bytes 0 and 1 give subnormal numbers, which the second term covers */
  const vi e = vi_load_u8(p);
  return v_max(v_bits(vi_shl_by(vi_add(e, vi_set(-1)), 23)), v_bits(vi_shl_by(vi_add(e, vi_set(1)), 21)));
}

/* Lane i of the result is the largest lane of a[i]. */
INLINE vf v_max_each(const vf a[LANES]) {
  vf four[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) { /* four[i]: in each 128 bits a lane for each of a[4 i] .. a[4 i + 3] */
    const vf *p = a + 4 * i;
    const __m512d x = _mm512_castps_pd(_mm512_max_ps(_mm512_unpacklo_ps(p[0], p[1]), _mm512_unpackhi_ps(p[0], p[1])));
    const __m512d y = _mm512_castps_pd(_mm512_max_ps(_mm512_unpacklo_ps(p[2], p[3]), _mm512_unpackhi_ps(p[2], p[3])));
    four[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  const vf x = _mm512_max_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x44), _mm512_shuffle_f32x4(four[0], four[1], 0xEE));
  const vf y = _mm512_max_ps(_mm512_shuffle_f32x4(four[2], four[3], 0x44), _mm512_shuffle_f32x4(four[2], four[3], 0xEE));
  return _mm512_max_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
}

/* Two tables of 16 floats, for lanes 0 .. 7 and 8 .. 15, indexed by codes 0 .. 15. */
struct v_tables {
  vf a, b;
};
INLINE struct v_tables v_load_tables(const float *p) { return (struct v_tables){v_load(p), v_load(p + 16)}; }
INLINE vf v_table(struct v_tables t, vi code) {
  const vi second = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
  return _mm512_permutex2var_ps(t.a, _mm512_or_si512(code, second), t.b);
}

/* As in matmul_lanes_avx2.h. */
#define KEEP_ORDER(v) __asm__("" : "+v"(v))

/* One step of a dot over eight planes: sum += code * q. `run` accumulates 16-bit sums from `first` to `last`. */
INLINE void dot_step(vi *sum, vi *run, vi code, vi q, bool is_signed, bool first, bool last) {
#ifdef ANE_LANES_VNNI
  (void)run, (void)is_signed, (void)first, (void)last;
  *sum = _mm512_dpbusd_epi32(*sum, code, q);
#else
  if (is_signed) { /* |code| * (q with the sign of code): at most 128 * 127 * 2, so it fits */
    q = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(code), _mm512_setzero_si512(), q);
    code = _mm512_abs_epi8(code);
  }
  vi product = _mm512_maddubs_epi16(code, q);
  *run = first ? product : _mm512_add_epi16(*run, product);
  KEEP_ORDER(*run);
  if (!last) return;
  *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(*run, _mm512_set1_epi16(1)));
  KEEP_ORDER(*sum);
#endif
}

#endif
