/* Elementwise functions, rope and argmax for any vector length; included by elementwise_<isa>.c after vec_<isa>.h. */
#include "kernels/kernels_internal.h"
#include "kernels/mathfn.h"

/* Calls one_vector(..., i, m) for whole vectors and for the remainder of n. */
#define EACH(n, one_vector, ...)                                                                                                 \
  do {                                                                                                                           \
    int64_t i = 0;                                                                                                               \
    for (; i + VL <= (n); i += VL) one_vector(__VA_ARGS__, i, VL);                                                               \
    if (i < (n)) one_vector(__VA_ARGS__, i, (n)-i);                                                                              \
  } while (0)

V_FN void add_at(const float *a, const float *b, float *y, int64_t i, int64_t n) {
  v_store_n(y + i, v_add(v_load_n(a + i, n), v_load_n(b + i, n)), n);
}
V_FN void mul_at(const float *a, const float *b, float *y, int64_t i, int64_t n) {
  v_store_n(y + i, v_mul(v_load_n(a + i, n), v_load_n(b + i, n)), n);
}
V_FN void scale_at(const float *a, vf s, float *y, int64_t i, int64_t n) { v_store_n(y + i, v_mul(v_load_n(a + i, n), s), n); }
V_FN void softcap_at(const float *a, vf s, float *y, int64_t i, int64_t n) {
  v_store_n(y + i, v_softcap(v_load_n(a + i, n), s), n);
}

static void add(const float *a, const float *b, float *y, int64_t n) { EACH(n, add_at, a, b, y); }
static void mul(const float *a, const float *b, float *y, int64_t n) { EACH(n, mul_at, a, b, y); }
static void scale(const float *a, float s, float *y, int64_t n) { EACH(n, scale_at, a, v_set(s), y); }
static void softcap(const float *a, float s, float *y, int64_t n) { EACH(n, softcap_at, a, v_set(s), y); }

#define ACTIVATION(name)                                                                                                         \
  V_FN void name##_at(const float *g, const float *u, float *y, int64_t i, int64_t n) {                                          \
    vf v = v_##name(v_load_n(g + i, n));                                                                                         \
    v_store_n(y + i, u ? v_mul(v, v_load_n(u + i, n)) : v, n);                                                                   \
  }                                                                                                                              \
  static void name(const float *g, const float *u, float *y, int64_t n) { EACH(n, name##_at, g, u, y); }
ACTIVATION(silu)
ACTIVATION(gelu_tanh)
ACTIVATION(gelu_erf)
ACTIVATION(sigmoid)

V_FN void rotate(vf *a, vf *b, vf c, vf s) {
  vf x = *a, y = *b;
  *a = v_fma(x, c, v_neg(v_mul(y, s)));
  *b = v_fma(y, c, v_mul(x, s));
}

V_FN void neox_at(float *x, const float *cs, int64_t half, int64_t i, int64_t n) {
  vf a = v_load_n(x + i, n), b = v_load_n(x + half + i, n);
  rotate(&a, &b, v_load_n(cs + i, n), v_load_n(cs + half + i, n));
  v_store_n(x + i, a, n);
  v_store_n(x + half + i, b, n);
}

/* Rotates n pairs from pair i on: 2n floats in two vectors. */
V_FN void pairs_at(float *x, const float *cs, int64_t half, int64_t i, int64_t n) {
  float *p = x + 2 * i;
  vf lo = v_load_n(p, 2 * n), hi = v_load_n(p + VL, 2 * n - VL), a, b;
  v_unzip(lo, hi, &a, &b);
  rotate(&a, &b, v_load_n(cs + i, n), v_load_n(cs + half + i, n));
  v_zip(a, b, &lo, &hi);
  v_store_n(p, lo, 2 * n);
  v_store_n(p + VL, hi, 2 * n - VL);
}

static void rope(float *x, const float *cs, int64_t n_heads, int64_t head_dim, int64_t r, bool neox) {
  for (int64_t h = 0; h < n_heads; h++, x += head_dim) {
    if (neox)
      EACH(r / 2, neox_at, x, cs, r / 2);
    else
      EACH(r / 2, pairs_at, x, cs, r / 2);
  }
}

/* argmax first finds the maximum of each block of this many elements, and then the index in one block only. v_max(x, m) ignores
 * NaN in x. */
enum { ARGMAX_BLOCK = 1024 };

static float largest_of(const float *x, int64_t n) {
  vf m[4];
  int64_t i = 0;
  for (int j = 0; j < 4; j++) m[j] = v_set(-__builtin_inff());
  for (; i + 4 * VL <= n; i += 4 * VL)
    for (int j = 0; j < 4; j++) m[j] = v_max(v_load(x + i + j * VL), m[j]);
  float best = v_largest(v_max(v_max(m[0], m[1]), v_max(m[2], m[3])));
  for (; i < n; i++) best = x[i] > best ? x[i] : best;
  return best;
}

static int64_t argmax(const float *x, int64_t n, float *best) {
  int64_t start = 0;
  *best = -__builtin_inff();
  for (int64_t i = 0; i < n; i += ARGMAX_BLOCK) {
    float m = largest_of(x + i, ANE_MIN(n - i, ARGMAX_BLOCK));
    if (m > *best) *best = m, start = i;
  }
  for (int64_t i = start; i + VL <= n; i += VL) {
    int lane = v_find(v_load(x + i), v_set(*best));
    if (lane >= 0) return i + lane;
    start = i + VL;
  }
  for (int64_t i = start; i < n; i++)
    if (x[i] == *best) return i;
  return 0;
}

/* Sets the entries of the table for which this file has kernels. */
static inline void overlay_elementwise(struct ane_kernels *k) {
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
