#include "kernels/vec/vec_neon.h"
#include "kernels/vec/recurrent_vec.h"

const struct ane_recurrent_kernels ane_recurrent_neon = {scan, delta};
