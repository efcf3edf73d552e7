#include "kernels/vec/vec_avx2.h"
#include "kernels/vec/norm_vec.h"

void ane_norm_avx2(struct ane_kernels *k) {
  k->rms_norm = rms_norm;
  k->layer_norm = layer_norm;
}
