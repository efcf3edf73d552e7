#include "kernels/vec/vec_avx2.h"
#include "kernels/vec/elementwise_vec.h"

void ane_elementwise_avx2(struct ane_kernels *k) { overlay_elementwise(k); }
