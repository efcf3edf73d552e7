/* Upper bounds of the products of one token, from the upper halves of 8-bit codes. A template: include the lanes and
 * matmul_i8.h first. */
#ifndef ANE_KERNELS_X86_MATMUL_UPPER_H
#define ANE_KERNELS_X86_MATMUL_UPPER_H

INLINE vf upper_vector(const struct ane_upper *u, const struct ane_acts *x, const struct ane_upper_x *blocks, const uint8_t *group, int part) {
  vf acc = vf_zero();
  for (int64_t b = 0; b < u->cols / ANE_BLOCK; b++) {
    const uint8_t *from = group + b * ANE_UPPER_BLOCK;
    vi c[8], sum[FUSED_NT] = {vi_zero()}, run[FUSED_NT];
    if (part == 0) look_ahead(group, u->group_bytes, 1, (size_t)b * ANE_UPPER_BLOCK, (ANE_UPPER_BLOCK + 63) / 64);
    unpack_codes(ANE_FORM_Q4_0, from, part, false, c);
    fused_dots(ANE_FORM_Q4_0, 1, c, 8, x->q + b * ANE_BLOCK, 0, sum, run);
    if (x->fine[b]) {
      sum[0] = vi_times_128(sum[0]);
      fused_dots(ANE_FORM_Q4_0, 1, c, 8, x->low + b * ANE_BLOCK, 0, sum, run);
    }
    vf dot = vf_int(vi_add(vi_shl_by(sum[0], 5), vi_set(blocks[b].start)));
    vf scale = vf_half(from + 256 + part * LANES * 2), norm = vf_u8(from + 288 + part * LANES);
    acc = vf_fma(vf_mul(dot, scale), vf_set(blocks[b].by), acc);
    acc = vf_fma(vf_abs(scale), vf_fma(norm, vf_set(blocks[b].norm), vf_set(blocks[b].slack)), acc);
  }
  return acc;
}

static void upper_bound(const struct ane_upper *u, const struct ane_acts *x, const struct ane_upper_x *blocks, int64_t g_from, int64_t g_to,
                        float *bound) {
  for (int64_t g = g_from; g < g_to; g++)
    for (int part = 0; part < PARTS; part++)
      vf_store(bound + g * ANE_GROUP + part * LANES, upper_vector(u, x, blocks, u->data + (size_t)g * u->group_bytes, part));
}

#endif
