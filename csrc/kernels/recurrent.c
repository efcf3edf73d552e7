/* Selects the kernels of recurrent blocks for a level. */
#include "kernels/recurrent.h"

struct ane_recurrent_kernels ane_recurrent_kernels(ane_isa isa) {
#if defined(__x86_64__) || defined(__i386__)
  if (isa >= ANE_ISA_AVX512 && isa <= ANE_ISA_AVX512VNNI) return ane_recurrent_avx512;
  if (isa >= ANE_ISA_AVX2 && isa <= ANE_ISA_AVX512VNNI) return ane_recurrent_avx2;
#elif defined(__aarch64__)
  if (isa != ANE_ISA_REF) return ane_recurrent_neon;
#endif
  (void)isa;
  return ane_recurrent_ref;
}
