/* Products with 8-bit activations. A template: the includer first includes matmul_tile.h and gives FEW (most tokens of `fused`,
 * at most FUSED_NT), TILE_NT (tokens of a tile, at most 4) and the integer dots, whose results are exact:
 *
 *   dot(f, planes, start, c, q)   four rows: start + sum of c[v] * q[4 v ..] over `planes` planes (4 or 8) of layout f
 *   panel_codes(c, to)            writes the eight planes of four rows (128 bytes) in the order that tile_dots reads
 *   tile_dots(f, nt, planes, from, start, codes, q, sum)
 *                                 sum[i][t] = start[t] + dot of planes [from, from + planes) of part i (at codes + 128 i) with
 *                                 those of token t (at q[t]), for two parts and nt tokens
 *
 * T <= FEW tokens: `fused` unpacks each block to registers and multiplies it with all tokens. More tokens: `unpack_panel` unpacks
 * a group to a panel in scratch memory, and `tile` keeps the sums of 8 rows x TILE_NT tokens in registers. Both do the same
 * operations in the same order for each output. Residual codes of outlier blocks are multiplied with the same planes, one token
 * at a time.
 *
 * A panel has a record for each block: codes [PARTS][128], scales [subs][16], minima [16]. A row that is longer than a panel is
 * processed in ranges of blocks; between ranges its sums are in `out` and `residual_sums`. */
#ifndef ANE_KERNELS_ARM_MATMUL_I8_H
#define ANE_KERNELS_ARM_MATMUL_I8_H

enum { I8_PANEL_BYTES = 256 * 1024, CODES = 128 * PARTS, RUN_NT = 1024 /* most tokens of a run */ };
_Static_assert(I8_PANEL_BYTES + 4 * RUN_NT * ANE_GROUP <= ANE_SCRATCH, "the scratch of a product");

INLINE int record_bytes(ane_layout f) {
  return CODES + 64 * (layout_subs(f) + (layout_has_min(f) ? 1 : layout_has_sub_min(f) ? 2 : 0));
}

/* The constants of a call, the current range of blocks [b_from, b_to) and the current run of tokens [t_from, t_to). */
struct i8_job {
  const struct ane_packed *w;
  const struct ane_activations *x;
  float *out;
  int64_t ld_out, nb, b_from, b_to, t_from, t_to;
  uint8_t *panel;
  float *residual_sums; /* [t_to - t_from][16]: sums of residual codes */
};

/* Returns the start value of the dots of half `half` of a block: -zero * sum of q. A block with one scale has one start value. */
INLINE int32_t start_of(ane_layout f, const int32_t *isum, int half) {
  return zero_left(f) ? -zero_left(f) * (layout_subs(f) == 2 ? isum[half] : isum[0] + isum[1]) : 0;
}

/* Returns the scaled dots of half `half` of the columns plus, for the second half, `before`, those of the first. */
INLINE float32x4_t scaled(ane_layout f, int half, int32x4_t sum, float32x4_t scale, float32x4_t before) {
  const float32x4_t x = vcvtq_f32_s32(sum);
  return layout_scale(f) == LAYOUT_NONE ? x : half == 0 ? vmulq_f32(x, scale) : vfmaq_f32(before, x, scale);
}

/* Returns dot + min * the sum of q over 16 columns, for layouts with a minimum for each 16. */
INLINE float32x4_t add_sub_min(ane_layout f, float32x4_t dot, float32x4_t min, int32_t isum) {
  return layout_has_sub_min(f) ? vfmaq_n_f32(dot, min, (float)isum) : dot;
}

/* Returns acc + scaled dot * d, plus minimum * dsum where the layout has minima. */
INLINE float32x4_t add_block(ane_layout f, float32x4_t dot, float32x4_t min, float d, float dsum, float32x4_t acc) {
  acc = vfmaq_n_f32(acc, dot, d);
  return layout_has_min(f) ? vfmaq_n_f32(acc, min, dsum) : acc;
}

/* Returns the scaled dots of four rows of a block with the codes q of one token. isum: the sums of q over each 16. */
INLINE float32x4_t block_dot(ane_layout f, const int8x16_t *c, const float32x4_t *scale, const float32x4_t *sub_min,
                             const int32_t *isum, const int8_t *q) {
  float32x4_t sum = scale[0];
#pragma GCC unroll 2
  for (int half = 0; half < layout_subs(f); half++) {
    sum = scaled(f, half, dot(f, 8 / layout_subs(f), vdupq_n_s32(start_of(f, isum, half)), c + 4 * half, q + 16 * half),
                 scale[half], sum);
    sum = add_sub_min(f, sum, sub_min[half], isum[half]);
  }
  return sum;
}

/* Multiplies group g with tokens [t0, t0 + nt), from the packed layout. */
INLINE void fused(ane_layout f, int nt, const struct i8_job *j, int64_t g, int64_t t0) {
  const struct ane_packed *w = j->w;
  const uint8_t *group = w->data + (size_t)g * w->group_bytes;
  const struct ane_activations x = ane_activations_rows(j->x, t0, nt);
  const struct code_table table = code_table(f, w);
  float32x4_t acc[PARTS][FUSED_NT], residual_sum[PARTS][FUSED_NT];
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++)
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) acc[i][t] = residual_sum[i][t] = vdupq_n_f32(0);
  for (int64_t b = 0; b < j->nb; b++) {
    const struct block_parts at = block_at(f, group, b);
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) {
      int8x16_t c[8];
      float32x4_t scale[2], sub_min[2];
      unpack_block(f, w, g, b, at.codes, i, table, c);
#pragma GCC unroll 2
      for (int half = 0; half < layout_subs(f); half++) scale[half] = unpack_scale(f, at, table, i, half);
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) sub_min[half] = layout_has_sub_min(f) ? unpack_sub_min(at, i, half) : vdupq_n_f32(0);
      const float32x4_t min = layout_has_min(f) ? unpack_min(f, at, i) : vdupq_n_f32(0);
#pragma GCC unroll 4
      for (int t = 0; t < nt; t++) {
        const int64_t block = t * j->nb + b, outlier = b * x.outlier_ld + t;
        const float32x4_t sum = block_dot(f, c, scale, sub_min, x.isum + block * 2, x.q + block * ANE_BLOCK);
        acc[i][t] = add_block(f, sum, min, x.d[block], x.dsum[block], acc[i][t]);
        if (x.outlier[outlier])
          residual_sum[i][t] =
              vfmaq_n_f32(residual_sum[i][t],
                          block_dot(f, c, scale, sub_min, x.residual_isum + outlier * 2, x.residual + outlier * ANE_BLOCK),
                          x.d_residual[outlier]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++)
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
      const int64_t row = g * ANE_GROUP + i * LANES;
      acc[i][t] = vaddq_f32(acc[i][t], residual_sum[i][t]);
      if (layout_scale(f) == LAYOUT_NONE) acc[i][t] = vmulq_f32(acc[i][t], vld1q_f32(w->row_scale + row));
      v_store_n(j->out + (t0 + t) * j->ld_out + row, acc[i][t], w->rows - row);
    }
}

/* Unpacks the current range of blocks of group g to the panel. */
INLINE void unpack_panel(ane_layout f, const struct i8_job *j, int64_t g) {
  const uint8_t *group = j->w->data + (size_t)g * j->w->group_bytes;
  const struct code_table table = code_table(f, j->w);
  uint8_t *to = j->panel;
  for (int64_t b = j->b_from; b < j->b_to; b++, to += record_bytes(f)) {
    const struct block_parts at = block_at(f, group, b);
    float *scales = (float *)(to + CODES), *minima = scales + layout_subs(f) * ANE_GROUP;
    for (int i = 0; i < PARTS; i++) {
      int8x16_t c[8];
      unpack_block(f, j->w, g, b, at.codes, i, table, c);
      panel_codes(c, (int8_t *)to + 128 * i);
#pragma GCC unroll 2
      for (int half = 0; half < layout_subs(f); half++)
        vst1q_f32(scales + half * ANE_GROUP + i * LANES, unpack_scale(f, at, table, i, half));
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++)
        if (layout_has_sub_min(f)) vst1q_f32(minima + half * ANE_GROUP + i * LANES, unpack_sub_min(at, i, half));
      if (layout_has_min(f)) vst1q_f32(minima + i * LANES, unpack_min(f, at, i));
    }
  }
}

/* Computes the scaled dots of parts p and p + 1 of a record with nt tokens. q, isum: the codes of the first token and their sums
 * over each 16. Those of the next token are nb blocks further on. */
INLINE void record_dots(ane_layout f, int nt, const uint8_t *record, int p, const int8_t *q, const int32_t *isum, int64_t nb,
                        float32x4_t dots[TILE_PARTS][TILE_NT]) {
  const int planes = 8 / layout_subs(f);
  const float *scales = (const float *)(record + CODES) + p * LANES;
  const int8_t *codes = (const int8_t *)record + 128 * p, *column[TILE_NT];
#pragma GCC unroll 4
  for (int t = 0; t < nt; t++) column[t] = q + t * nb * ANE_BLOCK;
#pragma GCC unroll 2
  for (int half = 0; half < layout_subs(f); half++) {
    int32_t start[TILE_NT];
    int32x4_t sum[TILE_PARTS][TILE_NT];
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) start[t] = start_of(f, isum + t * nb * 2, half);
    tile_dots(f, nt, planes, planes * half, start, codes, column, sum);
#pragma GCC unroll 2
    for (int i = 0; i < TILE_PARTS; i++) {
      const float32x4_t scale = vld1q_f32(scales + half * ANE_GROUP + i * LANES);
#pragma GCC unroll 4
      for (int t = 0; t < nt; t++) dots[i][t] = scaled(f, half, sum[i][t], scale, half ? dots[i][t] : scale);
      if (!layout_has_sub_min(f)) continue;
      const float32x4_t min = vld1q_f32(scales + (2 + half) * ANE_GROUP + i * LANES);
#pragma GCC unroll 4
      for (int t = 0; t < nt; t++) dots[i][t] = add_sub_min(f, dots[i][t], min, isum[t * nb * 2 + half]);
    }
  }
}

/* Adds the products of the residual codes of the current range to residual_sums, for parts p and p + 1 and the run's tokens. */
INLINE void panel_residuals(ane_layout f, const struct i8_job *j, int p) {
  const struct ane_activations *x = j->x;
  for (int64_t b = j->b_from; b < j->b_to; b++)
    for (int64_t t = j->t_from; t < j->t_to; t++) {
      const int64_t at = b * x->outlier_ld + t;
      float *sums = j->residual_sums + (t - j->t_from) * ANE_GROUP + p * LANES;
      float32x4_t dots[TILE_PARTS][TILE_NT];
      if (!x->outlier[at]) continue;
      record_dots(f, 1, j->panel + (b - j->b_from) * record_bytes(f), p, x->residual + at * ANE_BLOCK, x->residual_isum + 2 * at,
                  0, dots);
#pragma GCC unroll 2
      for (int i = 0; i < TILE_PARTS; i++)
        vst1q_f32(sums + i * LANES, vfmaq_n_f32(vld1q_f32(sums + i * LANES), dots[i][0], x->d_residual[at]));
    }
}

/* Multiplies parts p and p + 1 of group g with tokens [t0, t0 + nt). The last range adds residual_sums. f stands for all layouts
 * with the same arithmetic. */
INLINE void tile(ane_layout f, int nt, const struct i8_job *j, int64_t g, int p, int64_t t0) {
  const int64_t row = g * ANE_GROUP + p * LANES, left = j->w->rows - row;
  float *out = j->out + t0 * j->ld_out + row;
  const uint8_t *record = j->panel;
  const struct ane_activations x = ane_activations_rows(j->x, t0, nt);
  float32x4_t acc[TILE_PARTS][TILE_NT];
#pragma GCC unroll 2
  for (int i = 0; i < TILE_PARTS; i++)
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
      acc[i][t] = j->b_from ? v_load_n(out + t * j->ld_out + i * LANES, left - i * LANES) : vdupq_n_f32(0);
  for (int64_t b = j->b_from; b < j->b_to; b++, record += record_bytes(f)) {
    const float *minima = (const float *)(record + CODES) + layout_subs(f) * ANE_GROUP + p * LANES;
    float32x4_t dots[TILE_PARTS][TILE_NT];
    record_dots(f, nt, record, p, x.q + b * ANE_BLOCK, x.isum + 2 * b, j->nb, dots);
#pragma GCC unroll 2
    for (int i = 0; i < TILE_PARTS; i++) {
      const float32x4_t min = layout_has_min(f) ? vld1q_f32(minima + i * LANES) : vdupq_n_f32(0);
#pragma GCC unroll 4
      for (int t = 0; t < nt; t++)
        acc[i][t] = add_block(f, dots[i][t], min, x.d[t * j->nb + b], x.dsum[t * j->nb + b], acc[i][t]);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < TILE_PARTS; i++)
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
      if (j->b_to == j->nb) {
        acc[i][t] = vaddq_f32(acc[i][t], vld1q_f32(j->residual_sums + (t0 + t - j->t_from) * ANE_GROUP + (p + i) * LANES));
        if (layout_scale(f) == LAYOUT_NONE) acc[i][t] = vmulq_f32(acc[i][t], vld1q_f32(j->w->row_scale + row + i * LANES));
      }
      v_store_n(out + t * j->ld_out + i * LANES, acc[i][t], left - i * LANES);
    }
}

/* Multiplies the panel of group g with the run's tokens, in tiles of nearly equal width. Skips parts without rows. */
INLINE void tiles(ane_layout f, const struct i8_job *j, int64_t g) {
  const int64_t n = (j->t_to - j->t_from + TILE_NT - 1) / TILE_NT;
  const int rows = ane_group_rows(j->w, g);
  if (!j->b_from) memset(j->residual_sums, 0, sizeof(float) * (size_t)((j->t_to - j->t_from) * ANE_GROUP));
  for (int p = 0; p * LANES < rows; p += TILE_PARTS) {
    panel_residuals(f, j, p);
    for (int64_t i = 0, t = j->t_from; i < n; i++) {
      const int nt = (int)((j->t_to - t) / (n - i));
      switch (nt) {
        case 1: tile(f, 1, j, g, p, t); break;
        case 2: tile(f, 2, j, g, p, t); break;
        case 3:
          if (TILE_NT >= 3) tile(f, 3, j, g, p, t);
          break;
        case 4:
          if (TILE_NT >= 4) tile(f, 4, j, g, p, t);
          break;
      }
      t += nt;
    }
  }
}

/* The tile functions, one for each kind of arithmetic. Layouts that differ only in packing share a function, which has the name
 * of one of them. */
typedef void (*tiles_fn)(const struct i8_job *j, int64_t g);
#define TILES(f)                                                                                                                 \
  static void tiles_##f(const struct i8_job *j, int64_t g) { tiles(ANE_LAYOUT_##f, j, g); }
TILES(Q4_0)
TILES(Q4_1)
TILES(Q5_0)
TILES(Q6_K)
TILES(Q8_0)
TILES(I8)
TILES(N4)
TILES(Q2_K)
TILES(Q3_K)
TILES(TQ)
TILES(N8)
TILES(N4H)
TILES(N8H)

INLINE tiles_fn tiles_of(ane_layout f) {
  const int bits = layout_width(f);
  if (layout_scale(f) == LAYOUT_NONE) return tiles_I8;
  if (layout_subs(f) == 2)
    return layout_has_sub_min(f) ? tiles_Q2_K
           : bits == 8           ? tiles_N8H
           : bits == 3           ? tiles_Q3_K
           : bits == 4           ? tiles_N4H
                                 : tiles_Q6_K;
  if (layout_has_min(f)) return !layout_zero(f) ? tiles_Q4_1 : bits == 8 ? tiles_N8 : tiles_N4;
  return bits == 8 ? tiles_Q8_0 : bits == 5 ? tiles_Q5_0 : bits == 4 ? tiles_Q4_0 : tiles_TQ;
}

INLINE void panels(ane_layout f, tiles_fn run, struct i8_job *j, int64_t from, int64_t to) {
  const int64_t piece = I8_PANEL_BYTES / record_bytes(f);
  j->residual_sums = (float *)(j->panel + I8_PANEL_BYTES);
  for (int64_t g = from; g < to; g++)
    for (j->t_from = 0; j->t_from < j->x->t; j->t_from = j->t_to) {
      j->t_to = ANE_MIN(j->t_from + RUN_NT, j->x->t);
      for (j->b_from = 0; j->b_from < j->nb; j->b_from = j->b_to) {
        j->b_to = ANE_MIN(j->b_from + piece, j->nb);
        unpack_panel(f, j, g);
        run(j, g);
      }
    }
}

INLINE void i8_product(ane_layout f, tiles_fn run, const struct ane_packed *w, const struct ane_activations *x, int64_t g_from,
                       int64_t g_to, float *out, int64_t ld_out, uint8_t *scratch) {
  const int64_t nb = (int64_t)ane_div_up((size_t)w->cols, ANE_BLOCK);
  struct i8_job j = {.w = w, .x = x, .out = out, .ld_out = ld_out, .nb = nb, .b_to = nb, .panel = scratch};
  if (x->t > FEW) {
    panels(f, run, &j, g_from, g_to);
    return;
  }
  for (int64_t g = g_from; g < g_to; g++) {
    switch (x->t) {
      case 1: fused(f, 1, &j, g, 0); break;
      case 2:
        if (FEW >= 2) fused(f, 2, &j, g, 0);
        break;
      case 3:
        if (FEW >= 3) fused(f, 3, &j, g, 0);
        break;
    }
  }
}

#include "kernels/matmul_i8_table.h"

#endif
