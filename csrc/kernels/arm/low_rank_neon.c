#include "kernels/vec/vec_neon.h"
#include "kernels/vec/low_rank_vec.h"

void ane_low_rank_neon(struct ane_kernels *k) { low_rank_set(k); }
