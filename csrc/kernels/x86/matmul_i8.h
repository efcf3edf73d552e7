/* Products with 8-bit activations. A template: include the lanes and matmul_unpack.h first.
 *
 * Few columns: each block is unpacked to registers and meets them at once (`fused`). Many: two vectors of rows are
 * unpacked to a panel in scratch, and a tile of I8_NV vectors x I8_NT columns keeps its sums in registers (`tile`). Both
 * do the same operations in the same order for each output, so the results are equal to the bit. The residual code of outlier
 * blocks meet the same planes column by column: few blocks have them, seldom in all columns of a tile, and most in one or two
 * planes.
 *
 * Panel, for each block one record: codes [PANEL_NV][8][LANES * 4], scales [subs][PANEL_NV][LANES], minima
 * [PANEL_NV][LANES]. Longer rows than a panel holds are done in pieces, the sums waiting in `out` and in `rest`. */
#ifndef ANE_KERNELS_X86_MATMUL_I8_H
#define ANE_KERNELS_X86_MATMUL_I8_H

#include <string.h>

enum {
  PANEL_NV = 2,
  PLANE = LANES * 4,
  I8_PANEL_BYTES = 256 * 1024,
  MAX_RECORDS = I8_PANEL_BYTES / (PANEL_NV * 8 * PLANE), /* of a piece: none is smaller than its codes */
  REST_NT = 32 * LANES,                                  /* most columns of a run */
  RESIDUAL_CHAINS = SIGNED_BYTES ? 1 : 2,                /* one dot after another is slow where there is but one column */
};
_Static_assert(I8_PANEL_BYTES + 4 * REST_NT * PANEL_NV * LANES + 8 * (MAX_RECORDS + 1) + 4 * REST_NT * MAX_RECORDS <= ANE_SCRATCH,
               "the scratch of a product");

INLINE int record_bytes(ane_layout f) {
  return PANEL_NV * (8 * PLANE + LANES * 4 * (layout_subs(f) + (layout_has_min(f) ? 1 : 0)));
}

/* Of a list of columns: where those of a block end, and where others begin. */
struct outlier_ends {
  uint32_t one, other;
};

/* One call's constants, and the piece [b_from, b_to) of the blocks and the run [t_from, t_to) of the columns being done. */
struct i8_job {
  const struct ane_packed *w;
  const struct ane_activations *x;
  float *out;
  int64_t ld_out, nb, b_from, b_to, t_from, t_to;
  const uint8_t *panel;
  int32_t *starts; /* of few columns, for the layouts that need them, by make_starts */
  int64_t start_row;
  uint32_t *outlier;         /* list_outlier's: column << 6 | plane << 3 | plane */
  struct outlier_ends *ends; /* of each block of the piece; [-1]: of none */
  float *rest;               /* [t_to - t_from][PANEL_NV][LANES]: the sums of residual code */
  int shift;                 /* zero = 1 << shift */
};

/* What the dots of all columns start from: - zero * sum of q. [t][start_row], for each block one number for each scale. */
INLINE void make_starts(ane_layout f, const struct i8_job *j) {
  const int64_t n = layout_subs(f) * j->nb;
  for (int64_t t = 0; t < j->x->t; t++) {
    const int32_t *sums = layout_subs(f) == 1 ? j->x->minus_sum + t * n : j->x->isum + t * n;
    for (int64_t i = 0; i < n; i += LANES) {
      vi sum = n - i >= LANES ? vi_load(sums + i) : vi_load_n(sums + i, n - i);
      vi_store(j->starts + t * j->start_row + i, vi_shl_by(layout_subs(f) == 1 ? sum : vi_sub(vi_zero(), sum), j->shift));
    }
  }
}

/* The same for half `half` of one block, whichever it is where there is one scale. */
INLINE vi start_at(ane_layout f, const struct i8_job *j, int64_t block, int half) {
  if (!has_zero(f)) return vi_zero();
  vi minus = layout_subs(f) == 1 ? vi_word(j->x->minus_sum + block) : vi_sub(vi_zero(), vi_word(j->x->isum + 2 * block + half));
  return vi_shl_by(minus, j->shift);
}

/* The same for the residual code of one block, half as in scaled(). */
INLINE vi residual_start(ane_layout f, const int32_t *isum, int shift, int half) {
  return has_zero(f) ? vi_set(-(layout_subs(f) == 1 ? isum[0] + isum[1] : isum[half]) * (1 << shift)) : vi_zero();
}

/* The scaled dot of half `half` of the columns, `before` being that of the first half. */
INLINE vf scaled(ane_layout f, int half, vi sum, vf scale, vf before) {
  vf x = vf_int(sum);
  return layout_scale(f) == LAYOUT_NONE ? x : half == 0 ? vf_mul(x, scale) : vf_fma(x, scale, before);
}

/* acc += the scaled dot, and the minimum's part. */
INLINE vf add_block(ane_layout f, vf dot, vf min, float d, float dsum, vf acc) {
  acc = vf_fma(dot, vf_set(d), acc);
  return layout_has_min(f) ? vf_fma(min, vf_set(dsum), acc) : acc;
}

/* sum[t] += the planes at c times the codes at q, columns ld bytes apart. */
INLINE void fused_dots(ane_layout f, int nt, const vi c[], int planes, const int8_t *q, int64_t ld, vi sum[FUSED_NT],
                       vi run[FUSED_NT]) {
#pragma GCC unroll 8
  for (int v = 0; v < planes; v++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
      dot_step(&sum[t], &run[t], c[v], vi_word(q + t * ld + 4 * v), layout_bits(f) == 8, v % layout_run(f) == 0,
               v % layout_run(f) == layout_run(f) - 1);
}

/* rest += the residual code of one block, their half sums and scale given, times the planes c, whose scales are scale[]. */
INLINE vf add_residual(ane_layout f, const vi c[8], const vf scale[2], const int8_t *residual, const int32_t *isum, float d,
                       int shift, vf rest) {
  vf dot = rest;
#pragma GCC unroll 2
  for (int half = 0; half < layout_subs(f); half++) {
    int planes = 8 / layout_subs(f), chain = planes / RESIDUAL_CHAINS;
    const int8_t *q = residual + ANE_BLOCK / layout_subs(f) * half;
    vi sum[RESIDUAL_CHAINS][FUSED_NT] = {{residual_start(f, isum, shift, half)}}, run[FUSED_NT];
#pragma GCC unroll 2
    for (int i = 0; i < RESIDUAL_CHAINS; i++) {
      if (i) sum[i][0] = vi_zero();
      fused_dots(f, 1, c + planes * half + chain * i, chain, q + 4 * chain * i, 0, sum[i], run);
    }
    dot = scaled(f, half, RESIDUAL_CHAINS == 1 ? sum[0][0] : vi_add(sum[0][0], sum[RESIDUAL_CHAINS - 1][0]), scale[half], dot);
  }
  return vf_fma(dot, vf_set(d), rest);
}

/* nt columns from t0 on times vector vc, straight from the packed layout. */
INLINE void fused(ane_layout f, int nt, const struct i8_job *j, int64_t vc, int64_t t0) {
  const struct ane_packed *w = j->w;
  const uint8_t *group = w->data + (size_t)(vc / PARTS) * w->group_bytes;
  int part = (int)(vc % PARTS);
  vf acc[FUSED_NT], dot[FUSED_NT], rest[FUSED_NT];
  const int8_t *q = j->x->q + t0 * j->nb * ANE_BLOCK;
  const uint8_t *outlier = j->x->outlier + t0;
  const float *d = j->x->d + t0 * j->nb, *dsum = j->x->dsum + t0 * j->nb;
  const int32_t *starts = j->starts + t0 * j->start_row;
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++) acc[t] = rest[t] = vf_zero();
  for (int64_t b = 0; b < j->nb; b++) {
    struct at at = block_at(f, group, b);
    vi c[8], sum[FUSED_NT], run[FUSED_NT];
    if (part == 0) look_ahead_block(f, w, group, 1, b);
    unpack_block(f, w, vc / PARTS, b, at.codes, part, SIGNED_BYTES, c);
    vf min = layout_has_min(f) ? unpack_min(f, at, part) : vf_zero(), scale[2];
#pragma GCC unroll 2
    for (int half = 0; half < layout_subs(f); half++) {
      int planes = 8 / layout_subs(f), from = planes * half;
      const int32_t *start = starts + layout_subs(f) * b + half;
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) sum[t] = has_zero(f) ? vi_word(start + t * j->start_row) : vi_zero();
      fused_dots(f, nt, c + from, planes, q + b * ANE_BLOCK + 4 * from, j->nb * ANE_BLOCK, sum, run);
      scale[half] = unpack_scale(f, at, part, half);
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) dot[t] = scaled(f, half, sum[t], scale[half], dot[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) acc[t] = add_block(f, dot[t], min, d[t * j->nb + b], dsum[t * j->nb + b], acc[t]);
#pragma GCC unroll 1
    for (int t = 0; t < nt; t++)
      if (outlier[b * j->x->outlier_ld + t]) {
        int64_t at_x = b * j->x->outlier_ld + t0 + t;
        rest[t] = add_residual(f, c, scale, j->x->residual + at_x * ANE_BLOCK, j->x->residual_isum + 2 * at_x,
                               j->x->d_residual[at_x], j->shift, rest[t]);
      }
  }
  int64_t row = vc * LANES;
  if (row >= w->rows) return;
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++) {
    acc[t] = vf_add(acc[t], rest[t]);
    if (layout_scale(f) == LAYOUT_NONE) acc[t] = vf_mul(acc[t], vf_load(w->row_scale + row));
    vf_store_n(j->out + (t0 + t) * j->ld_out + row, acc[t], w->rows - row);
  }
}

INLINE void unpack_panel(ane_layout f, const struct i8_job *j, int64_t vc, int nv, uint8_t *to) {
  for (int64_t b = j->b_from; b < j->b_to; b++, to += record_bytes(f)) {
    float *scales = (float *)(to + PANEL_NV * 8 * PLANE), *minima = scales + layout_subs(f) * PANEL_NV * LANES;
    for (int i = 0; i < nv; i++) {
      int part = (int)((vc + i) % PARTS);
      const uint8_t *group = j->w->data + (size_t)((vc + i) / PARTS) * j->w->group_bytes;
      struct at at = block_at(f, group, b);
      vi c[8];
      if (part == 0) look_ahead_block(f, j->w, group, PANEL_NV / PARTS, b);
      unpack_block(f, j->w, (vc + i) / PARTS, b, at.codes, part, SIGNED_BYTES, c);
#pragma GCC unroll 8
      for (int v = 0; v < 8; v++) vi_store(to + (8 * i + v) * PLANE, c[v]);
#pragma GCC unroll 2
      for (int half = 0; half < layout_subs(f); half++)
        vf_store(scales + (half * PANEL_NV + i) * LANES, unpack_scale(f, at, part, half));
      if (layout_has_min(f)) vf_store(minima + i * LANES, unpack_min(f, at, part));
    }
  }
}

/* sum[i][t] += the planes at codes times those of the codes at q[t] + at. */
INLINE void tile_dots(ane_layout f, int nv, int nt, const uint8_t *codes, int planes, const int8_t *const q[I8_NT], int64_t at,
                      vi sum[I8_NV][I8_NT], vi run[I8_NV][I8_NT]) {
  const int n = layout_run(f) == 2 ? 2 : 1; /* planes at a time: a short run ends where it began, in one register */
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
          dot_step(&sum[i][t], &run[i][t], c[k][i], word[k], layout_bits(f) == 8, (v0 + k) % layout_run(f) == 0,
                   (v0 + k) % layout_run(f) == layout_run(f) - 1);
    }
  }
}

/* Lists where the piece has residual code: for each block the columns where one or two planes have them, then, from the end of
 * the list on backwards, all others. Of two planes whose dots are added before they are scaled both lie in the same half. */
INLINE void list_outlier(ane_layout f, const struct i8_job *j) {
  const struct ane_activations *x = j->x;
  const int64_t n = j->t_to - j->t_from;
  uint32_t *one = j->outlier, *other = j->outlier + (j->b_to - j->b_from) * n;
  for (int64_t b = j->b_from; b < j->b_to; b++) {
    const uint8_t *outlier = x->outlier + b * x->outlier_ld + j->t_from;
    struct outlier_ends *ends = &j->ends[b - j->b_from];
    for (int64_t t0 = 0; t0 < n; t0 += MARKS)
      for (uint64_t m = vi_marks(outlier + t0, n - t0); m; m &= m - 1) {
        uint32_t t = (uint32_t)t0 + (uint32_t)__builtin_ctzll(m), fours = outlier[t], more = fours & (fours - 1);
        uint32_t v = (uint32_t)__builtin_ctz(fours), u = more ? (uint32_t)__builtin_ctz(more) : v ^ 1;
        bool few = !(more & (more - 1)) && (layout_subs(f) == 1 || v / 4 == u / 4);
        uint32_t *to = few ? one : other - 1;
        *to = t << 6 | v << 3 | u;
        one += few;
        other -= !few;
      }
    *ends = (struct outlier_ends){(uint32_t)(one - j->outlier), (uint32_t)(other - j->outlier)};
  }
}

/* What add_outlier reads of a block: its planes and scales, and of its columns the residual code, their half sums, their scales.
 */
struct outlier_block {
  const uint8_t *codes;
  const float *scales;
  const int8_t *residual;
  const int32_t *isum;
  const float *d;
  int shift;
};

/* rest of column t takes in the residual code: of the planes v and u alone, which lie in one half where there are two, or of all.
 */
INLINE void add_outlier(ane_layout f, int nv, const struct outlier_block k, int64_t t, bool all, int v, int u,
                        float *restrict rest) {
  const int8_t *q = k.residual + t * ANE_BLOCK;
  const int planes = 8 / layout_subs(f), halves = all ? layout_subs(f) : 1, dots = all ? planes : 2;
  vf dot[PANEL_NV];
#pragma GCC unroll 2
  for (int h = 0; h < halves; h++) {
    int half = all || layout_subs(f) == 1 ? h : v / 4;
    vi sum[PANEL_NV], run[PANEL_NV];
    sum[0] = sum[nv - 1] = residual_start(f, k.isum + 2 * t, k.shift, half);
#pragma GCC unroll 8
    for (int p = 0; p < dots; p++) {
      int64_t plane = all ? half * planes + p : p ? u : v;
      vi word = vi_word(q + 4 * plane);
#pragma GCC unroll 2
      for (int i = 0; i < nv; i++)
        dot_step(&sum[i], &run[i], vi_load(k.codes + (8 * i + plane) * PLANE), word, layout_bits(f) == 8, true, true);
    }
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++) dot[i] = scaled(f, h, sum[i], vf_load(k.scales + (half * PANEL_NV + i) * LANES), dot[i]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < nv; i++)
    vf_store(rest + (t * PANEL_NV + i) * LANES, vf_fma(dot[i], vf_set(k.d[t]), vf_load(rest + (t * PANEL_NV + i) * LANES)));
}

/* rest of the run's columns takes in the residual code of block b, whose record is given. */
INLINE void block_rest(ane_layout f, int nv, const struct i8_job *j, int64_t b, const uint8_t *record) {
  const struct outlier_ends *ends = &j->ends[b - j->b_from], *before = ends - 1;
  const int64_t first = b * j->x->outlier_ld + j->t_from;
  const struct outlier_block k = {record,
                                  (const float *)(record + PANEL_NV * 8 * PLANE),
                                  j->x->residual + first * ANE_BLOCK,
                                  j->x->residual_isum + 2 * first,
                                  j->x->d_residual + first,
                                  j->shift};
  const uint32_t *end = j->outlier + ends->one, *last = j->outlier + before->other;
  float *restrict rest = j->rest;
  for (const uint32_t *e = j->outlier + before->one; e < end; e++)
    add_outlier(f, nv, k, *e >> 6, false, *e >> 3 & 7, *e & 7, rest);
  for (const uint32_t *e = j->outlier + ends->other; e < last; e++) add_outlier(f, nv, k, *e >> 6, true, 0, 0, rest);
}

INLINE void panel_rest(ane_layout f, int nv, const struct i8_job *j) {
  if (!j->b_from) memset(j->rest, 0, sizeof(float) * (size_t)((j->t_to - j->t_from) * PANEL_NV * LANES));
  for (int64_t b = j->b_from; b < j->b_to; b++) block_rest(f, nv, j, b, j->panel + (b - j->b_from) * record_bytes(f));
}

/* nv vectors from vc on (panel column p) x nt columns from t0 on; with the last piece rest is added. f stands for all layouts
 * with the same arithmetic. */
INLINE void tile(ane_layout f, int nv, int nt, const struct i8_job *j, int64_t vc, int p, int64_t t0) {
  vf acc[I8_NV][I8_NT], dot[I8_NV][I8_NT];
  vi sum[I8_NV][I8_NT], run[I8_NV][I8_NT];
  int64_t left = j->w->rows - vc * LANES;
  float *out = j->out + t0 * j->ld_out + vc * LANES;
  const int8_t *q[I8_NT];
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++) {
    q[t] = j->x->q + (t0 + t) * j->nb * ANE_BLOCK;
    if (PARTS > 1)
      __builtin_prefetch(out + t * j->ld_out, 1); /* written at the end, each a line of its own; wider tiles gain nothing */
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++)
      acc[i][t] = j->b_from && left > i * LANES ? vf_load_n(out + t * j->ld_out + i * LANES, left - i * LANES) : vf_zero();
  }
  const uint8_t *record = j->panel;
  for (int64_t b = j->b_from; b < j->b_to; b++, record += record_bytes(f)) {
    const uint8_t *codes = record + p * 8 * PLANE;
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
        vf scale = vf_load(scales + (half * PANEL_NV + i) * LANES);
#pragma GCC unroll 8
        for (int t = 0; t < nt; t++) dot[i][t] = scaled(f, half, sum[i][t], scale, dot[i][t]);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++) {
      vf min = layout_has_min(f) ? vf_load(minima + i * LANES) : vf_zero();
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
        acc[i][t] = vf_add(acc[i][t], vf_load(j->rest + ((t0 + t - j->t_from) * PANEL_NV + p + i) * LANES));
        if (layout_scale(f) == LAYOUT_NONE) acc[i][t] = vf_mul(acc[i][t], vf_load(j->w->row_scale + (vc + i) * LANES));
      }
      vf_store_n(out + t * j->ld_out + i * LANES, acc[i][t], left - i * LANES);
    }
  }
}

/* The columns of the run, in tiles of equal width as far as possible. */
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
      panel_rest(ANE_LAYOUT_##f, 2, j);                                                                                          \
    else                                                                                                                         \
      panel_rest(ANE_LAYOUT_##f, 1, j);                                                                                          \
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
#ifdef ANE_LANES_VNNI
#define BY_WIDTH(f, four, five, six, eight) four
#else /* codes of different widths add up a different number of products in 16 bits */
#define BY_WIDTH(f, four, five, six, eight)                                                                                      \
  (layout_bits(f) == 8 ? eight : layout_bits(f) == 6 ? six : layout_bits(f) == 5 ? five : four)
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
  if (layout_subs(f) == 2) return BY_WIDTH(f, tiles_two, tiles_Q6_K, tiles_Q6_K, tiles_N8H);
  if (layout_has_min(f) && layout_zero(f)) return BY_WIDTH(f, tiles_N4, tiles_N4, tiles_N4, tiles_N8);
  if (layout_has_min(f)) return BY_WIDTH(f, tiles_Q4_1, tiles_Q5_1, tiles_Q5_1, tiles_N8);
  return BY_WIDTH(f, tiles_Q4_0, tiles_Q5_0, tiles_Q5_0, tiles_Q8_0);
}

INLINE void panels(ane_layout f, tiles_fn run, struct i8_job *j, int64_t from, int64_t to,
                   uint8_t *scratch) {
  int64_t piece = I8_PANEL_BYTES / record_bytes(f), t = j->x->t;
  j->panel = scratch;
  j->rest = (float *)(void *)(scratch + I8_PANEL_BYTES);
  j->ends = (struct outlier_ends *)(j->rest + REST_NT * PANEL_NV * LANES) + 1;
  j->outlier = (uint32_t *)(j->ends + MAX_RECORDS);
  for (j->t_from = 0; j->t_from < t; j->t_from = j->t_to) {
    j->t_to = ANE_MIN(j->t_from + REST_NT, t);
    for (int64_t vc = from; vc < to; vc += PANEL_NV) {
      int nv = (int)ANE_MIN(to - vc, PANEL_NV);
      for (j->b_from = 0; j->b_from < j->nb; j->b_from = j->b_to) {
        j->b_to = ANE_MIN(j->b_from + piece, j->nb);
        j->ends[-1] = (struct outlier_ends){0, (uint32_t)((j->b_to - j->b_from) * (j->t_to - j->t_from))};
        if (piece < j->nb || vc == from) list_outlier(f, j);
        unpack_panel(f, j, vc, nv, scratch);
        run(j, vc, nv);
      }
    }
  }
}

/* All columns for one vector of rows, in runs of equal width as far as possible. */
INLINE void fused_columns(ane_layout f, const struct i8_job *j, int64_t vc) {
  int64_t n = (j->x->t + FUSED_NT - 1) / FUSED_NT;
  for (int64_t i = 0, t = 0; i < n; i++) {
    int nt = (int)((j->x->t - t) / (n - i));
    switch (nt) {
      case 1: fused(f, 1, j, vc, t); break;
      case 2: fused(f, 2, j, vc, t); break;
      case 3: fused(f, 3, j, vc, t); break;
      case 4: fused(f, 4, j, vc, t); break;
      case 5:
        if (FUSED_NT >= 5) fused(f, 5, j, vc, t);
        break;
      case 6:
        if (FUSED_NT >= 6) fused(f, 6, j, vc, t);
        break;
      case 7:
        if (FUSED_NT >= 7) fused(f, 7, j, vc, t);
        break;
      case 8:
        if (FUSED_NT >= 8) fused(f, 8, j, vc, t);
        break;
    }
    t += nt;
  }
}

INLINE void i8_product(ane_layout f, tiles_fn run, const struct ane_packed *w,
                       const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out, int64_t ld_out,
                       uint8_t *scratch) {
  int64_t nb = (int64_t)ane_div_up((size_t)w->cols, ANE_BLOCK), start_row = (int64_t)ane_align_up(2 * (size_t)nb, LANES);
  struct i8_job j = {.w = w,
                     .x = x,
                     .out = out,
                     .ld_out = ld_out,
                     .nb = nb,
                     .b_to = nb,
                     .starts = (int32_t *)(void *)scratch,
                     .start_row = start_row,
                     .shift = zero_shift(f)};
  if (x->t <= FEW && x->t * start_row * 4 <= ANE_SCRATCH) {
    if (has_zero(f)) make_starts(f, &j);
    for (int64_t vc = g_from * PARTS; vc < g_to * PARTS; vc++) fused_columns(f, &j, vc);
  } else
    panels(f, run, &j, g_from * PARTS, g_to * PARTS, scratch);
}

#include "kernels/matmul_i8_table.h"

#endif
