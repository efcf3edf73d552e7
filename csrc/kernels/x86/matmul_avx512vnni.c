/* Matrix products with 8-bit activations for AVX-512 with VNNI. */
#define ANE_LANES_VNNI
#include "kernels/x86/matmul_lanes_avx512.h"
#include "kernels/x86/matmul_unpack.h"
#include "kernels/x86/matmul_i8.h"
#include "kernels/x86/matmul_bound.h"

void ane_matmul_avx512vnni(struct ane_kernels *k) {
  overlay_i8(k);
  k->upper_bound = upper_bound;
  k->row_bound = row_bound;
}
