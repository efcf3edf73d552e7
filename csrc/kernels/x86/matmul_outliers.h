/* The outlier path of products with 8-bit activations: residual codes of outlier blocks times the planes of weights. A part of
 * matmul_i8.h, which includes it.
 *
 * Few blocks are outliers, rarely for all tokens of a tile, and most of them have residual codes in one or two planes only. They
 * are therefore multiplied token by token, and only in those planes. Their sums are separate and are added at the end. */
#ifndef ANE_KERNELS_X86_MATMUL_OUTLIERS_H
#define ANE_KERNELS_X86_MATMUL_OUTLIERS_H

/* Returns residual_sum + residual codes of one block and token times planes c. isum: sums of the codes over each 16; d: their
 * scale. */
INLINE vf add_residual(ane_layout f, const vi c[8], const vf scale[2], const vf sub_min[2], const int8_t *residual,
                       const int32_t *isum, float d, int shift, vf residual_sum) {
  vf dot = residual_sum;
#pragma GCC unroll 2
  for (int half = 0; half < layout_subs(f); half++) {
    int planes = 8 / layout_subs(f), chain = planes / RESIDUAL_CHAINS;
    const int8_t *q = residual + ANE_BLOCK / layout_subs(f) * half;
    vi sum[RESIDUAL_CHAINS][FUSED_NT] = {{residual_start(f, isum, shift, half)}}, run[1][FUSED_NT];
#pragma GCC unroll 2
    for (int i = 0; i < RESIDUAL_CHAINS; i++) {
      if (i) sum[i][0] = vi_zero();
      fused_dots(f, 1, 1, (const vi(*)[8])c, planes * half + chain * i, chain, q + 4 * chain * i, 0, &sum[i], run);
    }
    dot = scaled(f, half, RESIDUAL_CHAINS == 1 ? sum[0][0] : vi_add(sum[0][0], sum[RESIDUAL_CHAINS - 1][0]), scale[half], dot);
    dot = add_sub_min(f, dot, sub_min[half], isum + half);
  }
  return v_fma(dot, v_set(d), residual_sum);
}

/* A run of tokens of `fused`: [t0, t0 + nt), and the blocks in which one of them is an outlier, in ascending order. */
struct fused_run {
  int64_t t0;
  int nt;
  int32_t n_blocks, *blocks;
};

/* Returns eight bytes, one per token: not 0 for those of the nt <= 8 tokens that have residual codes. */
INLINE uint64_t outlier_bytes(const uint8_t *outlier, int nt) {
  uint64_t m;
  memcpy(&m, outlier, 8);
  return nt < 8 ? m & (((uint64_t)1 << 8 * nt) - 1) : m;
}

/* Divides the tokens into runs of nearly equal width, at most `most` each. list: also lists their blocks with outliers. blocks:
 * room for [runs][nb]. Returns the number of runs. */
INLINE int make_fused_runs(const struct i8_job *j, int most, bool list, struct fused_run *runs, int32_t *blocks) {
  const int n = (int)((j->x->t + most - 1) / most);
  int64_t t = 0;
  for (int i = 0; i < n; i++, blocks += j->nb) {
    struct fused_run *r = &runs[i];
    *r = (struct fused_run){.t0 = t, .nt = (int)((j->x->t - t) / (n - i)), .blocks = blocks};
    for (int64_t b = 0; list && b < j->nb; b++) {
      blocks[r->n_blocks] = (int32_t)b;
      r->n_blocks += outlier_bytes(j->x->outlier + b * j->x->outlier_ld + t, r->nt) != 0;
    }
    t += r->nt;
  }
  return n;
}

/* A block for add_outlier: the planes of each vector, and the scales and minima of both as in a record of a panel; for each token
 * its residual codes, their sums over each 16, and their scale. */
struct outlier_block {
  const uint8_t *codes[PANEL_NV];
  const float *scales;
  const int8_t *residual;
  const int32_t *isum;
  const float *d;
  int shift;
};

/* residual_sum of token t += residual codes times planes: all planes, or only v and u, which lie in one half. */
INLINE void add_outlier(ane_layout f, int nv, const struct outlier_block k, int64_t t, bool all, int v, int u,
                        float *restrict residual_sum) {
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
        dot_step(&sum[i], &run[i], vi_load(k.codes[i] + plane * PLANE), word, layout_width(f) == 8, true, true);
    }
#pragma GCC unroll 2
    for (int i = 0; i < nv; i++) {
      dot[i] = scaled(f, h, sum[i], v_load(k.scales + (half * PANEL_NV + i) * LANES), dot[i]);
      if (layout_has_sub_min(f)) /* minima follow the scales of both halves */
        dot[i] = add_sub_min(f, dot[i], v_load(k.scales + ((2 + half) * PANEL_NV + i) * LANES), k.isum + 2 * t + half);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < nv; i++)
    v_store(residual_sum + (t * PANEL_NV + i) * LANES,
            v_fma(dot[i], v_set(k.d[t]), v_load(residual_sum + (t * PANEL_NV + i) * LANES)));
}

/* Which planes of a block have residual codes for a token. few: one or two planes of one half, v and u. */
struct outlier_planes {
  uint32_t v, u;
  bool few;
};
INLINE struct outlier_planes planes_of(ane_layout f, uint32_t planes) {
  const uint32_t more = planes & (planes - 1), v = (uint32_t)__builtin_ctz(planes),
                 u = more ? (uint32_t)__builtin_ctz(more) : v ^ 1;
  return (struct outlier_planes){v, u, !(more & (more - 1)) && (layout_subs(f) == 1 || v / 4 == u / 4)};
}

/* Returns the block of a record. first: index of its first token in the arrays that are ordered by blocks. */
INLINE struct outlier_block outlier_block(const struct i8_job *j, const uint8_t *record, int64_t first) {
  return (struct outlier_block){{record, record + 8 * PLANE},       (const float *)(const void *)(record + PANEL_NV * 8 * PLANE),
                                j->x->residual + first * ANE_BLOCK, j->x->residual_isum + 2 * first,
                                j->x->d_residual + first,           j->shift};
}

/* sum[t] += residual codes of block b times vectors vc and vc + 1, for the tokens of the run that have some. */
INLINE void fused_residuals(ane_layout f, const struct i8_job *j, int64_t vc, int64_t b, const struct fused_run *r,
                            float sum[FUSED_NT][PANEL_NV][LANES]) {
  uint8_t record[MOST_RECORD] __attribute__((aligned(64)));
  const int64_t first = b * j->x->outlier_ld + r->t0;
  const uint8_t *outlier = j->x->outlier + first;
  struct outlier_block k = outlier_block(j, record, first);
  unpack_record(f, j, vc, PANEL_NV, b, !planes_stored(f), record);
  for (int i = 0; planes_stored(f) && i < PANEL_NV; i++)
    k.codes[i] = block_at(f, j->w->data + (size_t)((vc + i) / PARTS) * j->w->group_bytes, b).codes;
  for (uint64_t m = outlier_bytes(outlier, r->nt); m;) {
    const int t = __builtin_ctzll(m) / 8;
    const struct outlier_planes p = planes_of(f, outlier[t]);
    m &= ~((uint64_t)0xFF << 8 * t);
    if (p.few)
      add_outlier(f, PANEL_NV, k, t, false, (int)p.v, (int)p.u, sum[0][0]);
    else
      add_outlier(f, PANEL_NV, k, t, true, 0, 0, sum[0][0]);
  }
}

/* Scales and stores the sums of vectors [vc, vc + nv). With two vectors it first adds the products of the run's residual codes:
 * it unpacks the blocks with outliers a second time, so that the loop over all blocks needs no registers and no mispredicted
 * branches for them. */
INLINE void fused_finish(ane_layout f, int nv, const struct i8_job *j, int64_t vc, const struct fused_run *r,
                         vf sum[FUSED_NV][FUSED_NT]) {
  float residual_sums[FUSED_NT][PANEL_NV][LANES] __attribute__((aligned(64)));
  if (nv == 2) memset(residual_sums, 0, (size_t)r->nt * sizeof residual_sums[0]);
  for (int32_t k = 0; nv == 2 && k < r->n_blocks; k++) fused_residuals(f, j, vc, r->blocks[k], r, residual_sums);
  for (int i = 0; i < nv; i++) {
    const int64_t row = (vc + i) * LANES;
    if (row >= j->w->rows) return;
    for (int t = 0; t < r->nt; t++) {
      vf y = nv == 2 ? v_add(sum[i][t], v_load(residual_sums[t][i])) : sum[i][t];
      if (layout_scale(f) == LAYOUT_NONE) y = v_mul(y, v_load(j->w->row_scale + row));
      v_store_masked(j->out + (r->t0 + t) * j->ld_out + row, y, j->w->rows - row);
    }
  }
}

/* Lists the outliers of the range. For each block, tokens with residual codes in one or two planes of one half go to the front of
 * the list, in order; all others go to its end, backwards. */
INLINE void list_outliers(ane_layout f, const struct i8_job *j) {
  const struct ane_activations *x = j->x;
  const int64_t n = j->t_to - j->t_from;
  uint32_t *few = j->outliers, *many = j->outliers + (j->b_to - j->b_from) * n;
  for (int64_t b = j->b_from; b < j->b_to; b++) {
    const uint8_t *outlier = x->outlier + b * x->outlier_ld + j->t_from;
    struct outlier_ends *ends = &j->ends[b - j->b_from];
    for (int64_t t0 = 0; t0 < n; t0 += MARKS)
      for (uint64_t m = vi_marks(outlier + t0, n - t0); m; m &= m - 1) {
        const uint32_t t = (uint32_t)t0 + (uint32_t)__builtin_ctzll(m);
        const struct outlier_planes p = planes_of(f, outlier[t]);
        uint32_t *to = p.few ? few : many - 1;
        *to = t << 6 | p.v << 3 | p.u;
        few += p.few;
        many -= !p.few;
      }
    *ends = (struct outlier_ends){(uint32_t)(few - j->outliers), (uint32_t)(many - j->outliers)};
  }
}

/* residual_sums += residual codes of block b for the tokens of the run. */
INLINE void block_residuals(ane_layout f, int nv, const struct i8_job *j, int64_t b, const uint8_t *record) {
  const struct outlier_ends *ends = &j->ends[b - j->b_from], *before = ends - 1;
  const struct outlier_block k = outlier_block(j, record, b * j->x->outlier_ld + j->t_from);
  const uint32_t *end = j->outliers + ends->few, *last = j->outliers + before->many;
  float *restrict residual_sum = j->residual_sums;
  for (const uint32_t *e = j->outliers + before->few; e < end; e++)
    add_outlier(f, nv, k, *e >> 6, false, *e >> 3 & 7, *e & 7, residual_sum);
  for (const uint32_t *e = j->outliers + ends->many; e < last; e++) add_outlier(f, nv, k, *e >> 6, true, 0, 0, residual_sum);
}

INLINE void panel_residuals(ane_layout f, int nv, const struct i8_job *j) {
  if (!j->b_from) memset(j->residual_sums, 0, sizeof(float) * (size_t)((j->t_to - j->t_from) * PANEL_NV * LANES));
  for (int64_t b = j->b_from; b < j->b_to; b++) block_residuals(f, nv, j, b, j->panel + (b - j->b_from) * record_bytes(f));
}

#endif
