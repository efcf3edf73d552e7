#include "base/elementary.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Adding this to a double below 2^51 and subtracting it again rounds the double to an integer, ties to even. */
#define MAGIC 0x1.8p52

static double power_of_2(int64_t n) {
  uint64_t bits = (uint64_t)(n + 1023) << 52;
  double d;
  memcpy(&d, &bits, sizeof d);
  return d;
}

/* c[0] + c[1] x + ... + c[n - 1] x^(n - 1) */
static double polynomial(const double *c, int n, double x) {
  double p = c[n - 1];
  for (int i = n - 2; i >= 0; i--) p = p * x + c[i];
  return p;
}

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* ---- Exponential and logarithm -----------------------------------------------------------------------------------------*/

/* ln 2 = high + low; high has 32 bits, so n high is exact for |n| < 2^21. */
#define LN2_HIGH 0x1.62e42fee00000p-1
#define LN2_LOW 0x1.a39ef35793c76p-33

/* e^x for -105 <= x <= 90: x = n ln 2 + r, |r| <= ln(2) / 2. Takes Taylor's series of e^r up to r^12; the remainder is below
 * 2e-16. */
static double exponential(double x) {
  static const double c[] = {1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,      1.0 / 720,
                             1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
  double n = x * 0x1.71547652b82fep0 + MAGIC - MAGIC;
  return polynomial(c, COUNT(c), x - n * LN2_HIGH - n * LN2_LOW) * power_of_2((int64_t)n);
}

/* ln((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + ...) for |s| <= 3 - sqrt(8) = 0.172. The terms after s^19 are below 1e-16 of the
 * sum. */
static double twice_atanh(double s) {
  static const double c[] = {2.0, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19};
  return s * polynomial(c, COUNT(c), s * s);
}

/* ln x for normal x: x = 2^n m, sqrt(1/2) <= m < sqrt(2). */
static double logarithm(double x) {
  uint64_t bits;
  double m;
  memcpy(&bits, &x, sizeof bits);
  int64_t n = (int64_t)(bits >> 52) - 1023;
  bits = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1023) << 52;
  memcpy(&m, &bits, sizeof m);
  if (m >= 0x1.6a09e667f3bcdp0) m *= 0.5, n++;
  return (double)n * LN2_HIGH + ((double)n * LN2_LOW + twice_atanh((m - 1) / (m + 1)));
}

float ane_expf(float x) {
  if (x < -104.0f) return 0.0f;
  if (x >= 89.0f) return INFINITY;
  return isnan(x) ? x : (float)exponential(x);
}

float ane_logf(float x) {
  if (x == 0) return -INFINITY;
  if (!(x > 0)) return NAN;
  return isinf(x) ? x : (float)logarithm(x);
}

float ane_softplusf(float x) {
  if (x > 20.0f || isnan(x)) return x;
  if (x < -104.0f) return 0.0f;
  double e = exponential(x);
  return (float)(e < 0.4 ? twice_atanh(e / (2 + e)) : logarithm(1 + e));
}

/* ---- Sine and cosine ---------------------------------------------------------------------------------------------------*/

/* pi / 2 in three parts; the first two have 30 bits, so their products with whole numbers below 2^23 are exact. */
#define HALF_PI_1 0x1.921fb540p0
#define HALF_PI_2 0x1.10b46118p-30
#define HALF_PI_3 0x1.313198a2e0370p-61

void ane_sincosf(float x, float *sine, float *cosine) {
  /* Taylor's series for |r| <= pi / 4. Their remainders are below 3e-16 of the results. */
  static const double s[] = {1.0,          -1.0 / 6,        1.0 / 120,          -1.0 / 5040,
                             1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
  static const double c[] = {1.0,
                             -1.0 / 2,
                             1.0 / 24,
                             -1.0 / 720,
                             1.0 / 40320,
                             -1.0 / 3628800,
                             1.0 / 479001600,
                             -1.0 / 87178291200.0,
                             1.0 / 20922789888000.0};
  *sine = *cosine = NAN;
  if (!(fabsf(x) < 0x1p31f)) return;
  double n = x * 0x1.45f306dc9c883p-1 + MAGIC - MAGIC;
  double r = x - n * HALF_PI_1 - n * HALF_PI_2 - n * HALF_PI_3, z = r * r;
  float by_sine = (float)(r * polynomial(s, COUNT(s), z)), by_cosine = (float)polynomial(c, COUNT(c), z);
  int64_t quarter = (int64_t)n & 3; /* x is within pi / 4 of quarter * pi / 2, modulo 2 pi */
  float odd = quarter & 1 ? by_cosine : by_sine, even = quarter & 1 ? by_sine : by_cosine;
  *sine = quarter & 2 ? -odd : odd;
  *cosine = quarter == 1 || quarter == 2 ? -even : even;
}

float ane_sinf(float x) {
  float sine, cosine;
  ane_sincosf(x, &sine, &cosine);
  return sine;
}

float ane_cosf(float x) {
  float sine, cosine;
  ane_sincosf(x, &sine, &cosine);
  return cosine;
}
