#include "kernels/vec/vec_neon.h"
#include "kernels/vec/elementwise_vec.h"

void ane_elementwise_neon(struct ane_kernels *k) {
  k->add = add;
  k->mul = mul;
  k->scale = scale;
  k->softcap = softcap;
  k->silu = silu;
  k->gelu_tanh = gelu_tanh;
  k->gelu_erf = gelu_erf;
  k->sigmoid = sigmoid;
  k->rope = rope;
  k->argmax = argmax;
}
