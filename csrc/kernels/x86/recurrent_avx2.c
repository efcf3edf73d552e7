#include "kernels/vec/vec_avx2.h"
#include "kernels/vec/recurrent_vec.h"

const struct ane_recurrent_kernels ane_recurrent_avx2 = {scan, delta};
