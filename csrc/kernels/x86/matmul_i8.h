/* Products with 8-bit activations. A template: include the lanes and matmul_unpack.h first.
 *
 * Few tokens: `fused` unpacks a block of one or two vectors of rows to registers and multiplies it with the tokens of a run. Two
 * vectors share each load of activations. With up to FUSED_NT1 tokens the product is limited by memory, and one vector at a time
 * is faster.
 *
 *   packed group (16 rows)            registers                  registers
 *   block b: codes, scale, min  ->    8 planes [LANES x 4]   x   4 codes of token t  ->  sum[t] [LANES]
 *
 * More tokens: `unpack_panel` unpacks PANEL_NV vectors of rows to a panel in scratch memory, and `tile` keeps the sums of
 * I8_NV vectors x I8_NT tokens in registers while it walks the blocks.
 *
 *   panel: a record for each block b of the range [b_from, b_to)          tile, sums in registers
 *
 *   record b   +--------------------------+--------------------------+           t0  t0+1 .. t0+I8_NT-1
 *     codes    | vector 0: planes 0 .. 7  | vector 1: planes 0 .. 7  |  vector 0 [ ] [ ]  ..  [ ]
 *              | each LANES x 4 bytes     |                          |  vector 1 [ ] [ ]  ..  [ ]
 *     scales   | sub 0: LANES floats      | sub 0                    |
 *              | sub 1, where subs is 2   | sub 1                    |  for each block: integer dots of the 8 planes
 *     minima   | as scales, or one        |                          |  with the tokens' codes, times scale, times d
 *              +--------------------------+--------------------------+
 *
 * A row that is longer than a panel is processed in ranges of blocks; between ranges `out` and `residual_sums` hold its sums.
 * Tokens are processed in runs of at most RUN_NT. Both ways do the same operations in the same order for each output, so results
 * are equal to the bit. matmul_outliers.h multiplies the residual codes of outlier blocks with the same planes. */
#ifndef ANE_KERNELS_X86_MATMUL_I8_H
#define ANE_KERNELS_X86_MATMUL_I8_H

#include <string.h>

/* Keeps the compiler from moving a sum past the branches that follow: all operands of the sum would stay in registers until then.
 */
#define FINISH_SUM(v) __asm__ volatile("" : "+v"(v))

enum {
  PANEL_NV = 2,
  PLANE = LANES * 4,
  I8_PANEL_BYTES = 256 * 1024,
  MAX_RECORDS = I8_PANEL_BYTES / (PANEL_NV * 8 * PLANE), /* of a range: no record is smaller than its codes */
  RUN_NT = 32 * LANES,                                   /* maximum tokens of a run */
  MAX_FUSED = ANE_MAX(FEW_BYTES, HALF_FEW_BYTES),
  RESIDUAL_CHAINS = SIGNED_BYTES ? 1 : 2,               /* independent sums: with one token a single chain waits for each dot */
  MOST_RECORD = PANEL_NV * (8 * PLANE + 4 * 4 * LANES), /* no record is larger: scales and minima of two halves */
};
_Static_assert(I8_PANEL_BYTES + 4 * RUN_NT * PANEL_NV * LANES + 8 * (MAX_RECORDS + 1) + 4 * RUN_NT * MAX_RECORDS <= ANE_SCRATCH,
               "the scratch of a product");

INLINE int record_bytes(ane_layout f) {
  return PANEL_NV * (8 * PLANE + LANES * 4 * (layout_subs(f) + (layout_has_min(f) ? 1 : layout_has_sub_min(f) ? 2 : 0)));
}

/* Parts of the list of outliers at the end of a block: tokens with one or two planes end at `few`, others begin at `many`. */
struct outlier_ends {
  uint32_t few, many;
};

/* The constants of a call, the current range of blocks [b_from, b_to) and the current run of tokens [t_from, t_to). */
struct i8_job {
  const struct ane_packed *w;
  const struct ane_activations *x;
  float *out;
  int64_t ld_out, nb, b_from, b_to, t_from, t_to;
  const uint8_t *panel;
  const uint8_t *prefetch; /* packed groups of the next panel, which the tiles prefetch */
  int64_t prefetch_bytes;
  int prefetch_lines;  /* cache lines for each block of a tile */
  int32_t *start_sums; /* of `fused`, for layouts with a zero: see make_start_sums */
  int64_t start_ld;
  uint32_t *outliers;        /* list_outliers': token << 6 | plane << 3 | plane */
  struct outlier_ends *ends; /* [blocks of the range], and 0 at [-1] */
  float *residual_sums;      /* [t_to - t_from][PANEL_NV][LANES]: sums of residual codes */
  int shift;                 /* zero = 1 << shift */
};

/* Computes the start values of the dots of all tokens: -zero * sum of q. [t][start_ld], for each block a number for each scale.
 */
INLINE void make_start_sums(ane_layout f, const struct i8_job *j) {
  const int64_t n = layout_subs(f) * j->nb;
  for (int64_t t = 0; t < j->x->t; t++) {
    const int32_t *sums = layout_subs(f) == 1 ? j->x->minus_sum + t * n : j->x->isum + t * n;
    for (int64_t i = 0; i < n; i += LANES) {
      vi sum = n - i >= LANES ? vi_load(sums + i) : vi_load_masked(sums + i, n - i);
      vi_store(j->start_sums + t * j->start_ld + i, vi_shl_by(layout_subs(f) == 1 ? sum : vi_sub(vi_zero(), sum), j->shift));
    }
  }
}

/* Returns the start value of half `half` of one block. A block with one scale has one start value. */
INLINE vi start_at(ane_layout f, const struct i8_job *j, int64_t block, int half) {
  if (!has_zero(f)) return vi_zero();
  vi minus = layout_subs(f) == 1 ? vi_word(j->x->minus_sum + block) : vi_sub(vi_zero(), vi_word(j->x->isum + 2 * block + half));
  return vi_shl_by(minus, j->shift);
}

/* Returns the start value of the residual codes of one block. */
INLINE vi residual_start(ane_layout f, const int32_t *isum, int shift, int half) {
  return has_zero(f) ? vi_set(-(layout_subs(f) == 1 ? isum[0] + isum[1] : isum[half]) * (1 << shift)) : vi_zero();
}

/* Returns the scaled dot of half `half` of the columns plus, for the second half, `before`, that of the first. */
INLINE vf scaled(ane_layout f, int half, vi sum, vf scale, vf before) {
  vf x = v_float(sum);
  return layout_scale(f) == LAYOUT_NONE ? x : half == 0 ? v_mul(x, scale) : v_fma(x, scale, before);
}

/* Returns dot + min * the sum of q over 16 columns. */
INLINE vf add_sub_min(ane_layout f, vf dot, vf min, const int32_t *isum) {
  return layout_has_sub_min(f) ? v_fma(v_float(vi_word(isum)), min, dot) : dot;
}

/* Returns acc + scaled dot * d, plus minimum * dsum if the layout has minima. */
INLINE vf add_block(ane_layout f, vf dot, vf min, float d, float dsum, vf acc) {
  acc = v_fma(dot, v_set(d), acc);
  return layout_has_min(f) ? v_fma(min, v_set(dsum), acc) : acc;
}

/* sum[i][t] += planes c[i] of nv vectors times the codes at q + t * ld. */
INLINE void fused_dots(ane_layout f, int nv, int nt, const vi c[][8], int from, int planes, const int8_t *q, int64_t ld,
                       vi sum[][FUSED_NT], vi run[][FUSED_NT]) {
#pragma GCC unroll 8
  for (int v = 0; v < planes; v++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
      const vi word = vi_word(q + t * ld + 4 * v);
#pragma GCC unroll 2
      for (int i = 0; i < nv; i++)
        dot_step(&sum[i][t], &run[i][t], c[i][from + v], word, layout_width(f) == 8, v % layout_run(f) == 0,
                 v % layout_run(f) == layout_run(f) - 1);
    }
}

/* Does a vector hold a whole group whose planes are stored as a record stores them? Then they need no unpacking. */
INLINE bool planes_stored(ane_layout f) {
  return PARTS == 1 && layout_bits(f) == 8 && !layout_has_table(f) && !layout_is_split(f) && !SIGNED_BYTES;
}

/* Unpacks block b of nv vectors to a record of a panel; with_codes false: its scales and minima only. */
INLINE void unpack_record(ane_layout f, const struct i8_job *j, int64_t vc, int nv, int64_t b, bool with_codes, uint8_t *to) {
  const struct code_table table = code_table(f, j->w, SIGNED_BYTES);
  float *scales = (float *)(to + PANEL_NV * 8 * PLANE), *minima = scales + layout_subs(f) * PANEL_NV * LANES;
  for (int i = 0; i < nv; i++) {
    int part = (int)((vc + i) % PARTS);
    const uint8_t *group = j->w->data + (size_t)((vc + i) / PARTS) * j->w->group_bytes;
    struct block_parts at = block_at(f, group, b);
    vi c[8];
    if (with_codes) {
      unpack_block(f, j->w, (vc + i) / PARTS, b, at.codes, part, SIGNED_BYTES, table, c);
#pragma GCC unroll 8
      for (int v = 0; v < 8; v++) vi_store(to + (8 * i + v) * PLANE, c[v]);
    }
#pragma GCC unroll 2
    for (int half = 0; half < layout_subs(f); half++)
      v_store(scales + (half * PANEL_NV + i) * LANES, unpack_scale(f, at, table, part, half));
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
      if (layout_has_sub_min(f)) v_store(minima + (half * PANEL_NV + i) * LANES, unpack_sub_min(at, part, half));
    if (layout_has_min(f)) v_store(minima + i * LANES, unpack_min(f, at, part));
  }
}

#include "kernels/x86/matmul_outliers.h"

/* out[i][t] = vector vc + i times token t0 + t, from the packed layout; with two vectors without the residual codes. */
INLINE void fused(ane_layout f, int nv, int nt, const struct i8_job *j, int64_t vc, int64_t t0, vf out[FUSED_NV][FUSED_NT]) {
  const struct ane_packed *w = j->w;
  const struct code_table table = code_table(f, w, SIGNED_BYTES);
  vf acc[FUSED_NV][FUSED_NT], dot[FUSED_NV][FUSED_NT];
  const int8_t *q = j->x->q + t0 * j->nb * ANE_BLOCK;
  const float *d = j->x->d + t0 * j->nb, *dsum = j->x->dsum + t0 * j->nb;
  const int32_t *start_sums = j->start_sums + t0 * j->start_ld;
  const int with_residual = nv == 1 ? nt : 0; /* tokens whose residual codes are added here */
  const bool far = nv == 1 && nt > 1 && half_units();
  vf residual_sum[FUSED_NT];
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++) residual_sum[t] = v_set(0);
#pragma GCC unroll 2
  for (int i = 0; i < nv; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) acc[i][t] = v_set(0);
  for (int64_t b = 0; b < j->nb; b++) {
    vi c[FUSED_NV][8], sum[FUSED_NV][FUSED_NT], run[FUSED_NV][FUSED_NT];
    struct block_parts at[FUSED_NV];
    vf scale[FUSED_NV][2], sub_min[FUSED_NV][2];
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++) {
      const uint8_t *group = w->data + (size_t)((vc + i) / PARTS) * w->group_bytes;
      const int part = (int)((vc + i) % PARTS);
      at[i] = block_at(f, group, b);
      if (part == 0) prefetch_block(f, w, group, nv > PARTS ? nv / PARTS : 1, b, far);
      unpack_block(f, w, (vc + i) / PARTS, b, at[i].codes, part, SIGNED_BYTES, table, c[i]);
    }
#pragma GCC unroll 2
    for (int half = 0; half < layout_subs(f); half++) {
      const int planes = 8 / layout_subs(f), from = planes * half;
      const int32_t *start = start_sums + layout_subs(f) * b + half;
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) sum[0][t] = sum[nv - 1][t] = has_zero(f) ? vi_word(start + t * j->start_ld) : vi_zero();
      fused_dots(f, nv, nt, c, from, planes, q + b * ANE_BLOCK + 4 * from, j->nb * ANE_BLOCK, sum, run);
#pragma GCC unroll 2
      for (int i = 0; i < nv; i++) {
        const int part = (int)((vc + i) % PARTS);
        scale[i][half] = unpack_scale(f, at[i], table, part, half);
        sub_min[i][half] = layout_has_sub_min(f) ? unpack_sub_min(at[i], part, half) : v_set(0);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) {
          dot[i][t] = scaled(f, half, sum[i][t], scale[i][half], dot[i][t]);
          dot[i][t] = add_sub_min(f, dot[i][t], sub_min[i][half], j->x->isum + 2 * ((t0 + t) * j->nb + b) + half);
        }
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++) {
      const vf min = layout_has_min(f) ? unpack_min(f, at[i], (int)((vc + i) % PARTS)) : v_set(0);
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) acc[i][t] = add_block(f, dot[i][t], min, d[t * j->nb + b], dsum[t * j->nb + b], acc[i][t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < with_residual; t++) FINISH_SUM(acc[0][t]);
#pragma GCC unroll 1
    for (int t = 0; t < with_residual; t++) {
      const int64_t at_x = b * j->x->outlier_ld + t0 + t;
      if (j->x->outlier[at_x])
        residual_sum[t] = add_residual(f, c[0], scale[0], sub_min[0], j->x->residual + at_x * ANE_BLOCK,
                                       j->x->residual_isum + 2 * at_x, j->x->d_residual[at_x], j->shift, residual_sum[t]);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < nv; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) out[i][t] = nv == 1 ? v_add(acc[i][t], residual_sum[t]) : acc[i][t];
}

#include "kernels/x86/matmul_split.h"

INLINE void unpack_panel(ane_layout f, const struct i8_job *j, int64_t vc, int nv, uint8_t *to) {
  for (int64_t b = j->b_from; b < j->b_to; b++, to += record_bytes(f)) {
    for (int i = 0; i < nv; i += PARTS)
      prefetch_block(f, j->w, j->w->data + (size_t)((vc + i) / PARTS) * j->w->group_bytes, PANEL_NV / PARTS, b, false);
    unpack_record(f, j, vc, nv, b, true, to);
  }
}

/* sum[i][t] += planes at `codes` times the codes at q[t] + at. */
INLINE void tile_dots(ane_layout f, int nv, int nt, const uint8_t *codes, int planes, const int8_t *const q[I8_NT], int64_t at,
                      vi sum[I8_NV][I8_NT], vi run[I8_NV][I8_NT]) {
  const int n = layout_run(f) == 2 ? 2 : 1; /* planes at a time: a run of two stays in one register */
#pragma GCC unroll 8
  for (int v0 = 0; v0 < planes; v0 += n) {
    vi c[2][I8_NV];
#pragma GCC unroll 2
    for (int k = 0; k < n; k++)
#pragma GCC unroll 2
      for (int i = 0; i < nv; i++) c[k][i] = vi_load(codes + (8 * i + v0 + k) * PLANE);
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
      vi word[2];
#pragma GCC unroll 2
      for (int k = 0; k < n; k++) word[k] = vi_word(q[t] + at + 4 * (v0 + k));
#pragma GCC unroll 2
      for (int i = 0; i < nv; i++)
#pragma GCC unroll 2
        for (int k = 0; k < n; k++)
          dot_step(&sum[i][t], &run[i][t], c[k][i], word[k], layout_width(f) == 8, (v0 + k) % layout_run(f) == 0,
                   (v0 + k) % layout_run(f) == layout_run(f) - 1);
    }
  }
}

/* Multiplies vectors [vc, vc + nv), from vector p of the panel on, with tokens [t0, t0 + nt). The last range adds residual_sums.
 * f stands for all layouts with the same arithmetic. */
INLINE void tile(ane_layout f, int nv, int nt, const struct i8_job *j, int64_t vc, int p, int64_t t0) {
  vf acc[I8_NV][I8_NT], dot[I8_NV][I8_NT];
  vi sum[I8_NV][I8_NT], run[I8_NV][I8_NT];
  int64_t left = j->w->rows - vc * LANES;
  float *out = j->out + t0 * j->ld_out + vc * LANES;
  const int8_t *q[I8_NT];
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++) {
    q[t] = j->x->q + (t0 + t) * j->nb * ANE_BLOCK;
    if (PARTS > 1) __builtin_prefetch(out + t * j->ld_out, 1); /* stores at the end meet these lines; wider tiles gain nothing */
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++)
      acc[i][t] = j->b_from && left > i * LANES ? v_load_masked(out + t * j->ld_out + i * LANES, left - i * LANES) : v_set(0);
  }
  const int64_t prefetch_at = (t0 - j->t_from) / nt * j->nb * j->prefetch_lines * 64;
  const int prefetch_lines = prefetch_at < j->prefetch_bytes ? j->prefetch_lines : 0;
  const uint8_t *record = j->panel, *prefetch = j->prefetch + prefetch_at;
  for (int64_t b = j->b_from; b < j->b_to; b++, record += record_bytes(f)) {
    const uint8_t *codes = record + p * 8 * PLANE;
    for (int i = 0; i < prefetch_lines; i++, prefetch += 64) __builtin_prefetch(prefetch, 0, 2);
    const float *scales = (const float *)(record + PANEL_NV * 8 * PLANE) + p * LANES;
    const float *minima = scales + layout_subs(f) * PANEL_NV * LANES;
    const float *d = j->x->d + t0 * j->nb + b, *dsum = j->x->dsum + t0 * j->nb + b;
#pragma GCC unroll 2
    for (int half = 0; half < layout_subs(f); half++) {
      int planes = 8 / layout_subs(f), from = planes * half;
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) {
        sum[0][t] = start_at(f, j, (t0 + t) * j->nb + b, half);
        if (nv > 1) sum[I8_NV - 1][t] = sum[0][t];
      }
      tile_dots(f, nv, nt, codes + from * PLANE, planes, q, b * ANE_BLOCK + 4 * from, sum, run);
#pragma GCC unroll 2
      for (int i = 0; i < nv; i++) {
        vf scale = v_load(scales + (half * PANEL_NV + i) * LANES);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) dot[i][t] = scaled(f, half, sum[i][t], scale, dot[i][t]);
        if (!layout_has_sub_min(f)) continue;
        const vf min = v_load(minima + (half * PANEL_NV + i) * LANES);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) dot[i][t] = add_sub_min(f, dot[i][t], min, j->x->isum + 2 * ((t0 + t) * j->nb + b) + half);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++) {
      vf min = layout_has_min(f) ? v_load(minima + i * LANES) : v_set(0);
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) acc[i][t] = add_block(f, dot[i][t], min, d[t * j->nb], dsum[t * j->nb], acc[i][t]);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < nv; i++) {
    if (left <= i * LANES) return;
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
      if (j->b_to == j->nb) {
        acc[i][t] = v_add(acc[i][t], v_load(j->residual_sums + ((t0 + t - j->t_from) * PANEL_NV + p + i) * LANES));
        if (layout_scale(f) == LAYOUT_NONE) acc[i][t] = v_mul(acc[i][t], v_load(j->w->row_scale + (vc + i) * LANES));
      }
      v_store_masked(out + t * j->ld_out + i * LANES, acc[i][t], left - i * LANES);
    }
  }
}

/* Multiplies the panel with the tokens of the run, in tiles of nearly equal width. */
INLINE void tiles(ane_layout f, int nv, const struct i8_job *j, int64_t vc, int p) {
  int64_t n = (j->t_to - j->t_from + I8_NT - 1) / I8_NT;
  for (int64_t i = 0, t = j->t_from; i < n; i++) {
    int nt = (int)((j->t_to - t) / (n - i));
    switch (nt) {
      case 1: tile(f, nv, 1, j, vc, p, t); break;
      case 2: tile(f, nv, 2, j, vc, p, t); break;
      case 3: tile(f, nv, 3, j, vc, p, t); break;
      case 4: tile(f, nv, 4, j, vc, p, t); break;
      case 5:
        if (I8_NT >= 5) tile(f, nv, 5, j, vc, p, t);
        break;
      case 6:
        if (I8_NT >= 6) tile(f, nv, 6, j, vc, p, t);
        break;
    }
    t += nt;
  }
}

/* The tile functions, one for each kind of arithmetic: layouts that differ only in how they are packed share one, named after
 * one of them. */
typedef void (*tiles_fn)(const struct i8_job *j, int64_t vc, int nv);
#define TILES(f)                                                                                                                 \
  static void tiles_##f(const struct i8_job *j, int64_t vc, int nv) {                                                            \
    if (nv == 2)                                                                                                                 \
      panel_residuals(ANE_LAYOUT_##f, 2, j);                                                                                     \
    else                                                                                                                         \
      panel_residuals(ANE_LAYOUT_##f, 1, j);                                                                                     \
    if (I8_NV == 2 && nv == 2)                                                                                                   \
      tiles(ANE_LAYOUT_##f, I8_NV, j, vc, 0);                                                                                    \
    else                                                                                                                         \
      for (int p = 0; p < nv; p++) tiles(ANE_LAYOUT_##f, 1, j, vc + p, p);                                                       \
  }
TILES(Q4_0)
TILES(Q4_1)
TILES(Q6_K)
TILES(I8)
TILES(N4)
TILES(Q2_K)
#ifdef ANE_LANES_VNNI
#define BY_WIDTH(f, four, five, six, eight) four
#else /* the number of products that fit in a 16-bit sum depends on the code width */
#define BY_WIDTH(f, four, five, six, eight)                                                                                      \
  (layout_width(f) == 8 ? eight : layout_width(f) == 6 ? six : layout_width(f) == 5 ? five : four)
TILES(Q5_0)
TILES(Q5_1)
TILES(Q8_0)
TILES(N8)
TILES(N4H)
TILES(N8H)
#define tiles_two tiles_N4H
#endif
#ifndef tiles_two
#define tiles_two tiles_Q6_K
#endif

INLINE tiles_fn tiles_of(ane_layout f) {
  if (layout_scale(f) == LAYOUT_NONE) return tiles_I8;
  if (layout_has_sub_min(f)) return tiles_Q2_K;
  if (layout_subs(f) == 2) return BY_WIDTH(f, tiles_two, tiles_Q6_K, tiles_Q6_K, tiles_N8H);
  if (layout_has_min(f) && layout_zero(f)) return BY_WIDTH(f, tiles_N4, tiles_N4, tiles_N4, tiles_N8);
  if (layout_has_min(f)) return BY_WIDTH(f, tiles_Q4_1, tiles_Q5_1, tiles_Q5_1, tiles_N8);
  return BY_WIDTH(f, tiles_Q4_0, tiles_Q5_0, tiles_Q5_0, tiles_Q8_0);
}

/* Lets the tiles of vectors vc, vc + 1 prefetch the packed groups that follow: without it, unpacking waits for memory while
 * nothing is computed (18 tokens take 1.2 times as long, 32 tokens 1.08 times). Rows longer than a panel are not
 * prefetched. */
INLINE void set_prefetch(struct i8_job *j, int64_t vc) {
  const int64_t group = (vc + PANEL_NV) / PARTS, n = PANEL_NV / PARTS;
  const int64_t blocks = (j->t_to - j->t_from + I8_NT - 1) / I8_NT * j->nb;
  const bool some = j->b_to - j->b_from == j->nb && group + n <= j->w->groups;
  j->prefetch = j->w->data + (size_t)(some ? group : 0) * j->w->group_bytes;
  j->prefetch_bytes = some ? n * (int64_t)j->w->group_bytes : 0;
  j->prefetch_lines = (int)((j->prefetch_bytes / 64 + blocks - 1) / blocks);
}

INLINE void panels(ane_layout f, tiles_fn run, struct i8_job *j, int64_t from, int64_t to, uint8_t *scratch) {
  int64_t piece = I8_PANEL_BYTES / record_bytes(f), t = j->x->t;
  j->panel = scratch;
  j->residual_sums = (float *)(void *)(scratch + I8_PANEL_BYTES);
  j->ends = (struct outlier_ends *)(j->residual_sums + RUN_NT * PANEL_NV * LANES) + 1;
  j->outliers = (uint32_t *)(j->ends + MAX_RECORDS);
  for (j->t_from = 0; j->t_from < t; j->t_from = j->t_to) {
    j->t_to = ANE_MIN(j->t_from + RUN_NT, t);
    for (int64_t vc = from; vc < to; vc += PANEL_NV) {
      int nv = (int)ANE_MIN(to - vc, PANEL_NV);
      for (j->b_from = 0; j->b_from < j->nb; j->b_from = j->b_to) {
        j->b_to = ANE_MIN(j->b_from + piece, j->nb);
        j->ends[-1] = (struct outlier_ends){0, (uint32_t)((j->b_to - j->b_from) * (j->t_to - j->t_from))};
        if (piece < j->nb || vc == from) list_outliers(f, j);
        unpack_panel(f, j, vc, nv, scratch);
        set_prefetch(j, vc);
        run(j, vc, nv);
      }
    }
  }
}

/* Returns the maximum number of tokens for `fused`. */
INLINE int max_fused_tokens(ane_layout f) {
  const bool bytes = layout_bits(f) == 8 && !layout_is_split(f);
  const bool four = layout_bits(f) == 4 && layout_subs(f) == 1 && !layout_is_k(f);
  if (half_units() && layout_subs(f) == 1 && !layout_is_split(f)) return bytes ? HALF_FEW_BYTES : HALF_FEW;
  return bytes ? FEW_BYTES : four ? FEW_FOUR : FEW;
}

/* Returns the maximum number of tokens of a run. A split layout, whose low nibbles are stored by rows, is unpacked for one vector
 * at a time and in as few runs as possible: with 8 tokens, two vectors took 1.6 times as long. */
INLINE int max_run_tokens(ane_layout f, int nv) {
  return nv == 2 || layout_is_split(f) ? FUSED_NT : half_units() ? HALF_NT : FUSED_NT1;
}

/* Is there a run of nt tokens with nv vectors? */
INLINE bool is_run(ane_layout f, int nv, int nt) {
  return nt <= (nv == 2 || layout_is_split(f) ? FUSED_NT : ANE_MAX(FUSED_NT1, HALF_NT));
}

/* Multiplies vectors [vc, vc + nv) with the tokens of one run. */
INLINE void fused_run(ane_layout f, int nv, const struct i8_job *j, int64_t vc, const struct fused_run *r) {
  vf out[FUSED_NV][FUSED_NT];
  switch (r->nt) {
    case 1:
      if (nv == 2) return;
#ifdef ANE_LANES_ROWS
      if (layout_is_split(f) && half_units()) {
        out[0][0] = fused_split(j, vc, r->t0);
        break;
      }
#endif
      fused(f, nv, 1, j, vc, r->t0, out);
      break;
    case 2: fused(f, nv, 2, j, vc, r->t0, out); break;
    case 3: fused(f, nv, 3, j, vc, r->t0, out); break;
    case 4: fused(f, nv, 4, j, vc, r->t0, out); break;
    case 5:
      if (!is_run(f, nv, 5)) return;
      fused(f, nv, 5, j, vc, r->t0, out);
      break;
    case 6:
      if (!is_run(f, nv, 6)) return;
      fused(f, nv, 6, j, vc, r->t0, out);
      break;
    case 7:
      if (!is_run(f, nv, 7)) return;
      fused(f, nv, 7, j, vc, r->t0, out);
      break;
    case 8:
      if (!is_run(f, nv, 8)) return;
      fused(f, nv, 8, j, vc, r->t0, out);
      break;
    default: return; /* runs are not longer */
  }
  fused_finish(f, nv, j, vc, r, out);
}

/* Multiplies vectors [vc, to), nv at a time. Returns the first vector of the incomplete rest. */
INLINE int64_t fused_vectors(ane_layout f, int nv, const struct i8_job *j, int64_t vc, int64_t to, int32_t *blocks) {
  struct fused_run runs[MAX_FUSED];
  if (vc + nv > to) return vc;
  const int n = make_fused_runs(j, max_run_tokens(f, nv), nv == 2, runs, blocks);
  for (; vc + nv <= to; vc += nv)
    for (int i = 0; i < n; i++) fused_run(f, nv, j, vc, &runs[i]);
  return vc;
}

/* Multiplies groups [g_from, g_to) from the packed layout. blocks: room for [MAX_FUSED][nb]. */
INLINE void fused_groups(ane_layout f, const struct i8_job *j, int64_t g_from, int64_t g_to, int32_t *blocks) {
  int64_t vc = g_from * PARTS, to = g_to * PARTS;
  if (has_zero(f)) make_start_sums(f, j);
  const bool pairs = FUSED_NV == 2 && !layout_is_split(f) && !half_units();
  if (pairs && j->x->t > FUSED_NT1) vc = fused_vectors(f, FUSED_NV, j, vc, to, blocks);
  fused_vectors(f, 1, j, vc, to, blocks);
}

INLINE void i8_product(ane_layout f, tiles_fn run, const struct ane_packed *w, const struct ane_activations *x, int64_t g_from,
                       int64_t g_to, float *out, int64_t ld_out, uint8_t *scratch) {
  int64_t nb = (int64_t)ane_div_up((size_t)w->cols, ANE_BLOCK), start_ld = (int64_t)ane_align_up(2 * (size_t)nb, LANES);
  struct i8_job j = {.w = w,
                     .x = x,
                     .out = out,
                     .ld_out = ld_out,
                     .nb = nb,
                     .b_to = nb,
                     .start_sums = (int32_t *)(void *)scratch,
                     .start_ld = start_ld,
                     .shift = zero_shift(f)};
  if (x->t <= max_fused_tokens(f) && (x->t * start_ld + MAX_FUSED * nb) * 4 <= ANE_SCRATCH)
    fused_groups(f, &j, g_from, g_to, j.start_sums + x->t * start_ld);
  else
    panels(f, run, &j, g_from * PARTS, g_to * PARTS, scratch);
}

#include "kernels/matmul_i8_table.h"

#endif
