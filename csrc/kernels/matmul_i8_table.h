/* The end of each machine's matmul_i8.h: a function for every layout that meets 8-bit activations, made of i8_product and
 * tiles_<layout>, and their places in the table of kernels. */
#ifndef ANE_KERNELS_MATMUL_I8_TABLE_H
#define ANE_KERNELS_MATMUL_I8_TABLE_H

#define I8_LAYOUTS(X)                                                                                                            \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q8_0_SPLIT) X(Q4_K) X(Q5_K) X(Q6_K) X(I8) X(N4) X(N8) X(N4H) X(N8H)

#define MATMUL_I8(f)                                                                                                             \
  static void matmul_##f(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out,  \
                         int64_t ld_out, void *scratch) {                                                                        \
    i8_product(ANE_LAYOUT_##f, tiles_##f, w, x, g_from, g_to, out, ld_out, scratch);                                             \
  }
I8_LAYOUTS(MATMUL_I8)

INLINE void overlay_i8(struct ane_kernels *k) {
#define PLACE(f) k->matmul[ANE_LAYOUT_##f][ANE_ACTIVATION_I8] = matmul_##f;
  I8_LAYOUTS(PLACE)
#undef PLACE
}

#endif
