/* The kernels of the ARM levels. Each level replaces entries of the weaker level before it. */
#include "kernels/kernels_internal.h"

void ane_kernels_init_arm(struct ane_kernels *k, ane_isa isa) {
  if (isa < ANE_ISA_NEON || isa > ANE_ISA_I8MM) return;
  ane_activations_neon(k);
  ane_matmul_neon(k);
  ane_matmul_f32_neon(k);
  ane_norm_neon(k);
  ane_low_rank_neon(k);
  ane_elementwise_neon(k);
  ane_attention_neon(k);
  if (isa < ANE_ISA_DOTPROD) return;
  ane_matmul_dotprod(k);
  if (isa < ANE_ISA_I8MM) return;
  ane_matmul_i8mm(k);
  if (ane_cpu_has_bf16_dot()) ane_matmul_bf16dot(k);
}
