#include "kernels/vec/vec_avx512.h"
#include "kernels/vec/elementwise_vec.h"

void ane_elementwise_avx512(struct ane_kernels *k) { overlay_elementwise(k); }
