/* Elementwise functions, rope and argmax in scalar C. The other levels are tested against this file. */
#include "kernels/kernels_internal.h"
#include "kernels/vec/vec_scalar.h"
#include "kernels/mathfn.h"

static void add(const float *a, const float *b, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}
static void mul(const float *a, const float *b, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}
static void scale(const float *a, float s, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = a[i] * s;
}
static void softcap(const float *a, float s, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = v_softcap(a[i], s);
}

#define ACTIVATION(name)                                                                                                         \
  static void name(const float *g, const float *u, float *y, int64_t n) {                                                        \
    for (int64_t i = 0; i < n; i++) y[i] = u ? v_##name(g[i]) * u[i] : v_##name(g[i]);                                           \
  }
ACTIVATION(silu)
ACTIVATION(gelu_tanh)
ACTIVATION(gelu_erf)
ACTIVATION(sigmoid)

static void rope(float *x, const float *cs, int64_t n_heads, int64_t head_dim, int64_t r, bool neox) {
  const float *cosine = cs, *sine = cs + r / 2;
  for (int64_t h = 0; h < n_heads; h++, x += head_dim) {
    for (int64_t t = 0; t < r / 2; t++) {
      float *pa = neox ? x + t : x + 2 * t, *pb = neox ? pa + r / 2 : pa + 1;
      float a = *pa, b = *pb;
      *pa = fmaf(a, cosine[t], -(b * sine[t]));
      *pb = fmaf(b, cosine[t], a * sine[t]);
    }
  }
}

static int64_t argmax(const float *x, int64_t n, float *best) {
  int64_t at = -1;
  *best = -INFINITY;
  for (int64_t i = 0; i < n; i++)
    if (x[i] > *best || (at < 0 && x[i] == *best)) *best = x[i], at = i;
  return at < 0 ? 0 : at;
}

void ane_elementwise_ref(struct ane_kernels *k) {
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
