/* Matrix products with 8-bit activations for AVX2 with AVX-VNNI. */
#define ANE_LANES_VNNI
#include "kernels/x86/matmul_lanes_avx2.h"
#include "kernels/x86/matmul_unpack.h"
#include "kernels/x86/matmul_i8.h"
#include "kernels/x86/matmul_bound.h"

void ane_matmul_avxvnni(struct ane_kernels *k) {
  overlay_i8(k);
  k->upper_bound = upper_bound;
  k->row_bound = row_bound;
}
