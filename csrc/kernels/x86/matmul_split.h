/* One token times a Q8_0_SPLIT matrix: a part of matmul_i8.h, which includes it, for vectors of 16 rows with 8-bit dots.
 *
 * `fused` transposes the low nibbles of a block, which are stored by rows, to planes. For one token that costs more than the
 * dots. Here the low nibbles are multiplied as they are stored, a row of four blocks at a time, and the sums are transposed:
 *
 *   line of row r: [4 blocks][16 bytes]  x  codes  ->  [4 blocks][4 sums]       16 rows  ->  for each block [16 rows]
 *
 * The dot of a block is the sum of both nibbles' dots, an integer, so results equal those of `fused` to the bit.
 *
 * Low nibbles and high nibbles are read alternately, LOW_PIECE blocks of 16 rows each, without prefetching. Measured on Zen 4,
 * 151,936 x 1,024, one thread: 5.7 ms; alternating every four blocks with prefetching 7.0 to 7.4, `fused` 6.6 to 6.9. Other CPUs
 * were not measured and keep `fused`. */
#ifndef ANE_KERNELS_X86_MATMUL_SPLIT_H
#define ANE_KERNELS_X86_MATMUL_SPLIT_H

#ifdef ANE_LANES_ROWS

enum { LOW_PIECE = 32 };

/* out[b] [16 rows] = dots of the low nibbles of four blocks b with the codes of the token at q [4][32]. low: [16 rows][4][16]. */
INLINE void low_dots(const uint8_t *low, const int8_t *q, vi out[4]) {
  const vi nibble = vi_byte(0x0F), a = vi_load(q), b = vi_load(q + 64);
  const vi even = vi_low_halves(a, b), odd = vi_high_halves(a, b); /* columns 0 .. 15 and 16 .. 31 of each block */
  vi rows[4];
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) {
    vi sum[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
      const vi l = vi_load(low + (4 * k + r) * 64);
      sum[r] = vi_dot(vi_dot(vi_zero(), vi_and(l, nibble), even), vi_and(vi_shr(l, 4), nibble), odd);
    }
    rows[k] = vi_fold_rows(sum);
  }
  vi_transpose_quarters(rows, out);
}

/* The sums of a row vector and a token so far. */
struct split_sums {
  vf acc, residual;
};

/* Adds block b of vector vc to the sums of token t0. low: dots of its low nibbles; NULL: they are not known yet. */
INLINE void add_split_block(const struct i8_job *j, int64_t vc, int64_t t0, int64_t b, const vi *low, struct split_sums *s) {
  const ane_layout f = ANE_LAYOUT_Q8_0_SPLIT;
  const struct code_table none = {vi_zero(), v_set(0)};
  const uint8_t *group = j->w->data + (size_t)vc * j->w->group_bytes;
  const struct block_parts at = block_at(f, group, b);
  const int8_t *q = j->x->q + (t0 * j->nb + b) * ANE_BLOCK;
  const int64_t at_x = b * j->x->outlier_ld + t0;
  const bool outlier = j->x->outlier[at_x];
  const vi above = vi_byte(0xF0);
  const vf scale[2] = {unpack_scale(f, at, none, 0, 0), v_set(0)}, sub_min[2] = {v_set(0), v_set(0)};
  vi c[8], sum = vi_word(j->start_sums + t0 * j->start_ld + b), other = low ? *low : vi_zero();
  if (outlier || !low) unpack_block(f, j->w, vc, b, at.codes, 0, false, none, c);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    const vi u = vi_load(at.codes + 64 * v);
    sum = vi_dot(sum, low ? vi_and(vi_shl(u, 4), above) : c[v], vi_word(q + 4 * v));
    other = vi_dot(other, low ? vi_and(u, above) : c[v + 4], vi_word(q + 16 + 4 * v));
  }
  s->acc = v_fma(v_mul(v_float(vi_add(sum, other)), scale[0]), v_set(j->x->d[t0 * j->nb + b]), s->acc);
  if (outlier)
    s->residual = add_residual(f, c, scale, sub_min, j->x->residual + at_x * ANE_BLOCK, j->x->residual_isum + 2 * at_x,
                               j->x->d_residual[at_x], j->shift, s->residual);
}

/* As `fused` for one vector, vc, and one token, t0. */
INLINE vf fused_split(const struct i8_job *j, int64_t vc, int64_t t0) {
  struct split_sums s = {v_set(0), v_set(0)};
  const int8_t *q = j->x->q + t0 * j->nb * ANE_BLOCK;
  const int64_t whole = j->nb / ANE_LOW_BLOCKS * ANE_LOW_BLOCKS;
  vi low[LOW_PIECE];
  for (int64_t from = 0; from < whole; from += LOW_PIECE) {
    const int64_t n = ANE_MIN(whole - from, (int64_t)LOW_PIECE);
    const uint8_t *lines = ane_low_nibbles(j->w, vc * ANE_GROUP, from);
    for (int64_t b = 0; b < n; b += ANE_LOW_BLOCKS)
      low_dots(lines + b * ANE_BLOCK / 2 * ANE_GROUP, q + (from + b) * ANE_BLOCK, low + b);
    for (int64_t b = 0; b < n; b++) add_split_block(j, vc, t0, from + b, &low[b], &s);
  }
  for (int64_t b = whole; b < j->nb; b++) add_split_block(j, vc, t0, b, NULL, &s);
  return v_add(s.acc, s.residual);
}

#endif

#endif
