/* exp: x = n ln 2 + r, |r| <= ln(2) / 2, and the series of exp(r) up to r^9 / 9!, whose remainder is below 1e-11. */
#include "quant/exponential.h"
#include "quant/wide.h"

#include <math.h>

typedef double lanes __attribute__((vector_size(32)));
typedef int64_t bits __attribute__((vector_size(32)));
typedef float floats __attribute__((vector_size(16)));
enum { LANES = 4 };

#define MAGIC 0x1.8p52 /* the low bits of x + MAGIC are the nearest integer of x */

/* exp of |x| <= 700. */
ANE_ALWAYS_INLINE void exponentiate(lanes *x) {
  const lanes t = *x * 0x1.71547652b82fep+0 + MAGIC, n = t - MAGIC; /* 1 / ln 2 */
  const lanes r = *x - n * 0x1.62e42fefa39efp-1;                    /* ln 2 */
  lanes p = r * (1.0 / 362880) + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  bits power;
  memcpy(&power, &t, sizeof power);
  /* analyser: these are vectors of 64-bit numbers. */
  power = (power << 52) + 0x3ff0000000000000; /* 2^n */
  lanes scale;
  memcpy(&scale, &power, sizeof scale);
  *x = p * scale;
}

double ane_exp(double x) {
  lanes v = {x < -700 ? -700 : x > 700 ? 700 : x};
  exponentiate(&v);
  return v[0];
}

double ane_tanh(double x) { return 1 - 2 / (1 + ane_exp(2 * x)); }

/* The value at x of the polynomial with these coefficients, the highest power first. */
static double horner(const double *c, int n, double x) {
  double p = c[0];
  for (int i = 1; i < n; i++) p = p * x + c[i];
  return p;
}

double ane_erf(double x) {
  static const double low[] = {0x1.496a30p-14, -0x1.a3f700p-11, 0x1.5405b2p-8, -0x1.b7f90ep-6,
                               0x1.ce2cf8p-4,  -0x1.81273ep-2,  0x1.06eba8p-3};
  static const double high[] = {-0x1.86dd76p-13, 0x1.825af0p-9, -0x1.65cb72p-6, 0x1.a65340p-4,
                                0x1.46baecp-1,   0x1.2088eap+0, 0x1.661db0p-12};
  const double a = fabs(x);
  if (a < 1) return horner(low, ANE_COUNT(low), x * x) * x + x;
  return copysign(a >= 4 ? 1 : 1 - ane_exp(-horner(high, ANE_COUNT(high), a)), x);
}

/* out[i] = exp(x[i] - less), i < n <= LANES; the results are added to sum. */
ANE_ALWAYS_INLINE void few(const float *x, int64_t n, float less, float *out, lanes *sum) {
  const size_t size = (size_t)n * sizeof *x;
  floats in = {less, less, less, less}, rounded;
  bits kept;
  memcpy(&in, x, size);
  lanes v = __builtin_convertvector(in - less, lanes);
  const bits hidden = v < -104;
  exponentiate(&v);
  memcpy(&kept, &v, sizeof kept);
  kept &= ~hidden;
  memcpy(&v, &kept, sizeof v);
  rounded = __builtin_convertvector(v, floats);
  memcpy(out, &rounded, size);
  v = __builtin_convertvector(rounded, lanes);
  for (int64_t l = n; l < LANES; l++) v[l] = 0;
  *sum += v;
}

static ANE_WIDE double exp_row(const float *x, int64_t n, float less, float *out) {
  lanes sum = {0};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) few(x + i, LANES, less, out + i, &sum);
  if (i < n) few(x + i, n - i, less, out + i, &sum);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

double ane_exp_row(const float *x, int64_t n, float less, float *out) { return exp_row(x, n, less, out); }
