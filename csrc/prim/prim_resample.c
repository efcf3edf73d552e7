/* Resampling on a regular grid. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Where a position of the result lies along one axis of x: between elements `low` and `low + 1`, by `share` towards the second.
 */
struct spot {
  int64_t low;
  float share;
};

static struct spot spot_of(int64_t i, int64_t n, float scale, float offset, bool nearest) {
  float at = ((float)i + 0.5f - offset) / scale - 0.5f, last = (float)(n - 1);
  at = at > 0 ? at < last ? at : last : 0; /* NaN becomes 0 */
  if (nearest) at = rintf(at);
  int64_t low = ANE_MIN((int64_t)at, n - 1);
  return (struct spot){low, at - (float)low};
}

/* Returns the weighted sum of the 2^rank neighbours. Those with weight 0 are skipped, since they may lie outside of x. */
static float mixed(const float *x, int rank, const int64_t *stride, const struct spot *s) {
  double sum = 0;
  /* analyser: the rank is not negative. */
  for (uint32_t corner = 0; corner < 1u << rank; corner++) {
    double w = 1;
    int64_t at = 0;
    for (int i = 0; i < rank && w != 0; i++) {
      bool high = corner >> i & 1;
      w *= high ? (double)s[i].share : 1 - (double)s[i].share;
      at += (s[i].low + high) * stride[i];
    }
    if (w != 0) sum += w * (double)x[at];
  }
  return (float)sum;
}

/* Resamples. The coordinate of element i of the result along an axis is (i + 0.5 - offset) / scale - 0.5, clamped to x. */
ane_status prim_interpolate(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *scale = prim_in(c, "scale"), *offset = prim_in(c, "offset");
  char text[PRIM_TEXT];
  const char *mode = prim_text(c, "mode", "linear", text);
  bool nearest = strcmp(mode, "nearest") == 0;
  int64_t dim[ANE_DYN_RANK], stride[ANE_DYN_RANK], at[ANE_DYN_RANK] = {0};
  int rank = prim_ints(c, "shape", dim, ANE_DYN_RANK);
  if (c->status) return c->status;
  if (!nearest && strcmp(mode, "linear") != 0)
    return prim_fail(c, ANE_INVALID, "mode is \"%s\"; known are linear and nearest", mode);
  if (rank != x->rank || scale->count != rank || offset->count != rank || x->count < 1)
    return prim_fail(c, ANE_SHAPE, "shape, scale and offset need an entry for each dimension of x, and x an element");
  const float *px = prim_f32(c, x), *ps = prim_f32(c, scale), *po = prim_f32(c, offset);
  float *y = prim_out(c, 0, ANE_F32, rank, dim);
  if (c->status) return c->status;
  prim_strides(rank, x->dim, stride);
  for (int64_t i = 0; i < c->out[0].count; i++) {
    struct spot s[ANE_DYN_RANK];
    for (int k = 0; k < rank; k++) s[k] = spot_of(at[k], x->dim[k], ps[k], po[k], nearest);
    y[i] = mixed(px, rank, stride, s);
    for (int k = rank - 1; k >= 0 && ++at[k] == dim[k]; k--) at[k] = 0;
  }
  return c->status;
}
