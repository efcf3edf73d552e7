/* Upper bounds of the products of tokens and a Q8_0_SPLIT matrix: for all rows from the high nibbles of the codes, for chosen
 * rows from the low nibbles too. A template: the includer first includes matmul_i8.h, for its dot(), and defines
 *
 *   row_dot(c, q)   four partial sums of the 32 products of the low nibbles c[0], c[1] (0 .. 15) and the 32 codes at q */
#ifndef ANE_KERNELS_ARM_MATMUL_BOUND_H
#define ANE_KERNELS_ARM_MATMUL_BOUND_H

enum { SPLIT_BLOCK = 304, PREFETCH_ROWS = 4 };

/* Computes the bounds of the 16 rows of the group at `from` and the first token. */
INLINE void bound_group(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                        const uint8_t *from, float *bound, float *base) {
  float32x4_t acc[PARTS], norm_sum[PARTS];
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++) acc[i] = vdupq_n_f32(ANE_BOUND_START), norm_sum[i] = vdupq_n_f32(0);
  for (int64_t b = 0; b < w->cols / ANE_BLOCK; b++, from += SPLIT_BLOCK) {
    const struct ane_bound_block at = blocks[b];
    const int64_t outlier = b * x->outlier_ld;
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) {
      int8x16_t c[8];
      unpack_codes(ANE_LAYOUT_Q4_0, from, i, c);
      int32x4_t sum = vdupq_n_s32(0);
      if (x->outlier[outlier]) sum = vshlq_n_s32(dot(ANE_LAYOUT_Q4_0, 8, sum, c, x->residual + outlier * ANE_BLOCK), 7);
      sum = dot(ANE_LAYOUT_Q4_0, 8, sum, c, x->q + b * ANE_BLOCK);
      const float32x4_t dots = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(sum, 5), vdupq_n_s32(at.start)));
      const float32x4_t scale = load_half(from + 256 + 8 * i), size = vabsq_f32(scale);
      acc[i] = vfmaq_n_f32(acc[i], vmulq_f32(dots, scale), at.by);
      acc[i] = vfmaq_n_f32(acc[i], size, at.slack);
      norm_sum[i] = vfmaq_f32(norm_sum[i], size, vmulq_n_f32(load_u8(from + 288 + 4 * i), at.norm));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++) {
    vst1q_f32(base + LANES * i, acc[i]);
    vst1q_f32(bound + LANES * i, vaddq_f32(acc[i], norm_sum[i]));
  }
}

static void upper_bound(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                        int64_t g_from, int64_t g_to, float *bound, float *base, int64_t ld) {
  for (int64_t g = g_from; g < g_to; g++)
    for (int64_t t = 0; t < x->t; t++) {
      const struct ane_activations one = ane_activations_rows(x, t, 1);
      const int64_t at = t * ld + g * ANE_GROUP;
      bound_group(w, &one, blocks + t * (w->cols / ANE_BLOCK), w->data + (size_t)g * w->group_bytes, bound + at, base + at);
    }
}

/* Returns the sum over all blocks of the products of one row's low nibbles. */
INLINE float low_row(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                     int64_t row) {
  const int64_t nb = w->cols / ANE_BLOCK;
  const uint8_t *scales = w->scales + row * nb * 2;
  float32x4_t acc = vdupq_n_f32(0);
  float start = 0;
  const uint8_t *low = NULL;
  for (int64_t b = 0; b < nb; b++, low += 16) {
    if (b % ANE_LOW_BLOCKS == 0) low = ane_low_nibbles(w, row, b);
    const uint8x16_t v = vld1q_u8(low);
    const int8x16_t c[2] = {vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(v, 4))};
    int32x4_t sum = row_dot(c, x->q + b * ANE_BLOCK);
    if (x->outlier[b * x->outlier_ld])
      sum = vaddq_s32(sum, vshlq_n_s32(row_dot(c, x->residual + b * x->outlier_ld * ANE_BLOCK), 7));
    float16_t scale;
    memcpy(&scale, scales + 2 * b, sizeof scale);
    const float by = (float)scale * blocks[b].by;
    acc = vfmaq_n_f32(acc, vcvtq_f32_s32(vshlq_n_s32(sum, 1)), by);
    start += (float)blocks[b].start_low * by;
  }
  return vaddvq_f32(acc) + start;
}

static void row_bound(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                      const int32_t *rows, int n, const float *base, float *bound) {
  const int64_t nb = w->cols / ANE_BLOCK;
  for (int i = -PREFETCH_ROWS; i < n; i++) {
    if (i + PREFETCH_ROWS < n) { /* rows are far apart in memory */
      const int64_t row = rows[i + PREFETCH_ROWS];
      const uint8_t *scales = w->scales + row * nb * 2;
      for (int64_t b = 0; b < nb; b += ANE_LOW_BLOCKS) __builtin_prefetch(ane_low_nibbles(w, row, b));
      for (int64_t at = 0; at < nb * 2 + 63; at += 64) __builtin_prefetch((const void *)((uintptr_t)scales + (uintptr_t)at));
    }
    if (i >= 0) bound[i] = base[rows[i]] + low_row(w, x, blocks, rows[i]);
  }
}

#endif
