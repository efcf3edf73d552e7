/* The last part of each architecture's matmul_i8.h: a function for every layout that takes 8-bit activations, made from
 * i8_product and tiles_of, and the entries of these functions in the kernel table. */
#ifndef ANE_KERNELS_MATMUL_I8_TABLE_H
#define ANE_KERNELS_MATMUL_I8_TABLE_H

#define MATMUL_I8_0(f)
#define MATMUL_I8_1(f)                                                                                                           \
  static void matmul_##f(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out,  \
                         int64_t ld_out, void *scratch) {                                                                        \
    i8_product(ANE_LAYOUT_##f, tiles_of(ANE_LAYOUT_##f), w, x, g_from, g_to, out, ld_out, scratch);                              \
  }
#define ANE_LAYOUT(id, name, unit, bits, table, zero, subs, scale, min, int8) MATMUL_I8_##int8(id)
#include "kernels/layout.def"
#undef ANE_LAYOUT

INLINE void overlay_i8(struct ane_kernels *k) {
#define PLACE_0(f)
#define PLACE_1(f) k->matmul[ANE_LAYOUT_##f][ANE_ACTIVATION_I8] = matmul_##f;
#define ANE_LAYOUT(id, name, unit, bits, table, zero, subs, scale, min, int8) PLACE_##int8(id)
#include "kernels/layout.def"
#undef ANE_LAYOUT
#undef PLACE_0
#undef PLACE_1
}

#endif
