#include "kernels/vec/vec_avx2.h"
#include "kernels/vec/low_rank_vec.h"

void ane_low_rank_avx2(struct ane_kernels *k) { low_rank_set(k); }
