/* x86: applies the overlays of each level after those of the weaker levels. */
#include "kernels/kernels_internal.h"

void ane_kernels_init_x86(struct ane_kernels *k, ane_isa isa) {
  if (isa < ANE_ISA_AVX2 || isa > ANE_ISA_AVX512VNNI) return;
  ane_matmul_avx2(k);
  ane_norm_avx2(k);
  ane_low_rank_avx2(k);
  ane_elementwise_avx2(k);
  ane_attention_avx2(k);
  if (isa == ANE_ISA_AVXVNNI) ane_matmul_avxvnni(k);
  if (isa < ANE_ISA_AVX512) return;
  ane_matmul_avx512(k);
  ane_norm_avx512(k);
  ane_low_rank_avx512(k);
  ane_elementwise_avx512(k);
  ane_attention_avx512(k);
  if (isa < ANE_ISA_AVX512VNNI) return;
  ane_matmul_avx512vnni(k);
  ane_low_rank_avx512vnni(k);
  ane_attention_avx512vnni(k);
  if (ane_cpu_has_bf16_dot()) ane_matmul_avx512bf16(k);
}
