#include "kernels/vec/vec_neon.h"
#include "kernels/vec/elementwise_vec.h"

void ane_elementwise_neon(struct ane_kernels *k) { overlay_elementwise(k); }
