#include "kernels/vec/vec_neon.h"
#include "kernels/vec/norm_vec.h"

void ane_norm_neon(struct ane_kernels *k) {
  k->rms_norm = rms_norm;
  k->layer_norm = layer_norm;
}
