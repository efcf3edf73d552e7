#define V_VNNI
#include "kernels/vec/vec_avx512.h"
#include "kernels/vec/low_rank_vec.h"

void ane_low_rank_avx512vnni(struct ane_kernels *k) { low_rank_set(k); }
