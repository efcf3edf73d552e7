/* Orthogonal rotations of weights. */
#include "quant/quant.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <math.h>

enum { TILE = 16 }; /* columns that are rotated at a time */

/* splitmix64 (Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators"): number i of a seed. */
static uint64_t mix(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

ane_status ane_rotation_make(struct ane_rotation *r, int64_t n, uint64_t seed, struct ane_error *err) {
  *r = (struct ane_rotation){.n = n};
  if (n < 1 || n > ANE_ROTATION_MOST) return ane_fail(err, ANE_SHAPE, "a rotation of %" PRId64 " elements", n);
  r->odd = n;
  while (r->odd % 2 == 0) r->odd /= 2;
  if (r->odd > ANE_ROTATION_ODD)
    return ane_fail(err, ANE_SHAPE, "a rotation of %" PRId64 " elements has the odd factor %" PRId64 ", the most is %d", n,
                    r->odd, ANE_ROTATION_ODD);
  r->sign = ane_malloc((size_t)(n + r->odd * r->odd + TILE * n) * sizeof *r->sign);
  if (!r->sign) return ane_fail(err, ANE_NOMEM, "no memory for a rotation of %" PRId64 " elements", n);
  r->cosines = r->sign + n, r->temp = r->cosines + r->odd * r->odd;
  const double by = 1 / sqrt((double)(n / r->odd));
  for (int64_t i = 0; i < n; i++) r->sign[i] = mix(seed, (uint64_t)i) >> 63 ? -by : by;
  for (int64_t k = 0; k < r->odd; k++)
    for (int64_t j = 0; j < r->odd; j++) {
      const double angle = acos(-1) * (double)((2 * j + 1) * k) / (double)(2 * r->odd);
      r->cosines[k * r->odd + j] = cos(angle) * sqrt((k ? 2.0 : 1.0) / (double)r->odd);
    }
  return ANE_OK;
}

void ane_rotation_free(struct ane_rotation *r) {
  ane_free(r->sign);
  *r = (struct ane_rotation){0};
}

/* The unnormalised Hadamard transform of v, [n / odd] entries that lie `odd` apart, for each of the `odd` offsets. */
static void hadamard(double *v, int64_t n, int64_t odd) {
  for (int64_t half = odd; half < n; half *= 2)
    for (int64_t from = 0; from < n; from += 2 * half)
      for (int64_t i = from; i < from + half; i++) {
        const double a = v[i], b = v[i + half];
        v[i] = a + b, v[i + half] = a - b;
      }
}

/* v = v Q. temp: room for n doubles. */
static void rotate_one(const struct ane_rotation *r, double *v, double *temp) {
  for (int64_t i = 0; i < r->n; i++) v[i] *= r->sign[i];
  hadamard(v, r->n, r->odd);
  if (r->odd == 1) return;
  for (int64_t i = 0; i < r->n; i++) temp[i] = v[i];
  for (int64_t from = 0; from < r->n; from += r->odd)
    for (int64_t j = 0; j < r->odd; j++) {
      double sum = 0;
      for (int64_t k = 0; k < r->odd; k++) sum += temp[from + k] * r->cosines[k * r->odd + j];
      v[from + j] = sum;
    }
}

void ane_rotate_columns(const struct ane_rotation *r, float *w, int64_t rows, int64_t cols) {
  for (float *at = w; at < w + rows * cols; at += r->n) {
    for (int64_t i = 0; i < r->n; i++) r->temp[i] = (double)at[i];
    rotate_one(r, r->temp, r->temp + r->n);
    for (int64_t i = 0; i < r->n; i++) at[i] = (float)r->temp[i];
  }
}

void ane_rotate_rows(const struct ane_rotation *r, float *w, int64_t rows, int64_t cols) {
  for (int64_t from = 0; from < rows; from += r->n)
    for (int64_t c = 0; c < cols; c += TILE - 1) { /* the last vector of the tile is scratch of rotate_one */
      const int64_t width = ANE_MIN(TILE - 1, cols - c);
      float *at = w + from * cols + c;
      for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < width; j++) r->temp[j * r->n + i] = (double)at[i * cols + j];
      for (int64_t j = 0; j < width; j++) rotate_one(r, r->temp + j * r->n, r->temp + (TILE - 1) * r->n);
      for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < width; j++) at[i * cols + j] = (float)r->temp[j * r->n + i];
    }
}
