/* Upper bounds of the products of tokens and a Q8_0_SPLIT matrix: for all rows from the high nibbles of the codes, for some
 * rows from the low nibbles. A template: include the lanes and matmul_i8.h first. */
#ifndef ANE_KERNELS_X86_MATMUL_BOUND_H
#define ANE_KERNELS_X86_MATMUL_BOUND_H

enum { SPLIT_BLOCK = 304, PREFETCH_ROWS = 4, BOUND_NT = 4 /* maximum tokens of a pass */ };

/* Computes the bounds of one vector of rows and nt tokens from t0 on. The codes are unpacked once for all tokens. */
INLINE void bound_vector(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                         int64_t t0, int nt, const uint8_t *group, int part, float *bound, float *base, int64_t ld) {
  const int64_t nb = w->cols / ANE_BLOCK;
  vf acc[BOUND_NT], norm_sum[BOUND_NT];
#pragma GCC unroll 4
  for (int t = 0; t < nt; t++) acc[t] = v_set(ANE_BOUND_START), norm_sum[t] = v_set(0);
  for (int64_t b = 0; b < nb; b++) {
    const uint8_t *from = group + b * SPLIT_BLOCK;
    vi c[8], sum[1][FUSED_NT], run[1][FUSED_NT];
    if (part == 0) prefetch_packed(group, w->group_bytes, 1, (size_t)b * SPLIT_BLOCK, (SPLIT_BLOCK + 63) / 64);
    unpack_codes(ANE_LAYOUT_Q4_0, from, part, false, c);
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) sum[0][t] = vi_zero();
    fused_dots(ANE_LAYOUT_Q4_0, 1, nt, (const vi(*)[8])c, 0, 8, x->q + (t0 * nb + b) * ANE_BLOCK, nb * ANE_BLOCK, sum, run);
    const vf scale = v_load_f16(from + 256 + part * LANES * 2), size = v_abs(scale), norm = v_load_u8(from + 288 + part * LANES);
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
      const int64_t at = b * x->outlier_ld + t0 + t;
      const struct ane_bound_block *block = blocks + (t0 + t) * nb + b;
      if (x->outlier[at]) {
        vi residual[1][FUSED_NT] = {{vi_zero()}};
        fused_dots(ANE_LAYOUT_Q4_0, 1, 1, (const vi(*)[8])c, 0, 8, x->residual + at * ANE_BLOCK, 0, residual, run);
        sum[0][t] = vi_add(sum[0][t], vi_times_128(residual[0][0]));
      }
      const vf dot = v_float(vi_add(vi_shl_by(sum[0][t], 5), vi_set(block->start)));
      acc[t] = v_fma(v_mul(dot, scale), v_set(block->by), acc[t]);
      acc[t] = v_fma(size, v_set(block->slack), acc[t]);
      norm_sum[t] = v_fma(size, v_mul(norm, v_set(block->norm)), norm_sum[t]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < nt; t++) {
    v_store(base + (t0 + t) * ld + part * LANES, acc[t]);
    v_store(bound + (t0 + t) * ld + part * LANES, v_add(acc[t], norm_sum[t]));
  }
}

static void upper_bound(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                        int64_t g_from, int64_t g_to, float *bound, float *base, int64_t ld) {
  for (int64_t g = g_from; g < g_to; g++) {
    const uint8_t *group = w->data + (size_t)g * w->group_bytes;
    float *to = bound + g * ANE_GROUP, *to_base = base + g * ANE_GROUP;
    for (int part = 0; part < PARTS; part++)
      for (int64_t t = 0; t < x->t; t += BOUND_NT) switch (ANE_MIN(x->t - t, (int64_t)BOUND_NT)) {
          case 1: bound_vector(w, x, blocks, t, 1, group, part, to, to_base, ld); break;
          case 2: bound_vector(w, x, blocks, t, 2, group, part, to, to_base, ld); break;
          case 3: bound_vector(w, x, blocks, t, 3, group, part, to, to_base, ld); break;
          default: bound_vector(w, x, blocks, t, 4, group, part, to, to_base, ld); break;
        }
  }
}

/* Returns eight sums of four products each; 15 * 127 * 2 is below 32768. */
INLINE __m256i low_dot(__m256i codes, const int8_t *q) {
  __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_loadu_si256((const void *)q));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

INLINE float sum_of_8(__m256 v) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* Returns the sum over all blocks of the products of one row's low nibbles. */
INLINE float low_row(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                     int64_t row) {
  const int64_t nb = w->cols / ANE_BLOCK;
  const uint8_t *scales = w->scales + row * nb * 2;
  const __m128i nibble = _mm_set1_epi8(15);
  __m256 acc = _mm256_setzero_ps();
  float start = 0;
  const uint8_t *low = NULL;
  for (int64_t b = 0; b < nb; b++, low += 16) {
    if (b % ANE_LOW_BLOCKS == 0) low = ane_low_nibbles(w, row, b);
    __m128i v = _mm_loadu_si128((const void *)low);
    __m256i codes =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_and_si128(v, nibble)), _mm_and_si128(_mm_srli_epi16(v, 4), nibble), 1);
    __m256i sum = low_dot(codes, x->q + b * ANE_BLOCK);
    if (x->outlier[b * x->outlier_ld])
      sum = _mm256_add_epi32(sum, _mm256_slli_epi32(low_dot(codes, x->residual + b * x->outlier_ld * ANE_BLOCK), 7));
    float by = _cvtsh_ss(ane_half(scales + 2 * b)) * blocks[b].by;
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_slli_epi32(sum, 1)), _mm256_set1_ps(by), acc);
    start += (float)blocks[b].start_low * by;
  }
  return sum_of_8(acc) + start;
}

static void row_bound(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                      const int32_t *rows, int n, const float *base, float *bound) {
  const int64_t nb = w->cols / ANE_BLOCK;
  for (int i = -PREFETCH_ROWS; i < n; i++) {
    if (i + PREFETCH_ROWS < n) {
      const int64_t row = rows[i + PREFETCH_ROWS];
      const uint8_t *scales = w->scales + row * nb * 2;
      for (int64_t b = 0; b < nb; b += ANE_LOW_BLOCKS) _mm_prefetch((const char *)ane_low_nibbles(w, row, b), _MM_HINT_T0);
      for (int64_t at = 0; at < nb * 2 + 63; at += 64) _mm_prefetch((const char *)scales + at, _MM_HINT_T0);
    }
    if (i >= 0) bound[i] = base[rows[i]] + low_row(w, x, blocks, rows[i]);
  }
}

#endif
