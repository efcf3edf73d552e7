/* Matrix products, and quantisation of activations, for AVX2. */
#include "kernels/x86/matmul_lanes_avx2.h"
#include "kernels/x86/matmul_unpack.h"
#include "kernels/x86/matmul_i8.h"
#include "kernels/x86/matmul_upper.h"
#include "kernels/x86/matmul_f32.h"
#include "kernels/x86/matmul_acts.h"

void ane_matmul_avx2(struct ane_kernels *k) {
  overlay_i8(k);
  k->upper_bound = upper_bound;
  k->row_bound = row_bound;
  overlay_f32(k);
  k->acts_i8 = acts_i8;
}
