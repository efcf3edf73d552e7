/* Matrix products, and quantisation of activations, for AVX-512 without VNNI. */
#include "kernels/x86/matmul_lanes_avx512.h"
#include "kernels/x86/matmul_unpack.h"
#include "kernels/x86/matmul_i8.h"
#include "kernels/x86/matmul_bound.h"
#include "kernels/x86/matmul_f32.h"
#include "kernels/x86/matmul_activations.h"

void ane_matmul_avx512(struct ane_kernels *k) {
  overlay_i8(k);
  k->upper_bound = upper_bound;
  k->row_bound = row_bound;
  overlay_f32(k);
  k->quantise_i8 = quantise_i8;
}
