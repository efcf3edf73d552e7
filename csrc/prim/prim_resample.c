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

/* ---- resize --------------------------------------------------------------------------------------------------------*/

enum sampling { STRICT_ALIGN_CORNERS, ALIGN_CORNERS, DEFAULT, OFFSET_CORNERS, UNALIGN_CORNERS, SAMPLINGS };

/* One of the two axes: `in` elements become `out`. An element of the result is over / under elements of x. */
struct resized {
  int64_t in, out;
  double over, under;
  struct spot *spots; /* [out] */
};

/* The coordinate in x of element i. Source: coremltools, MIL Operations, resize_bilinear. */
static double coordinate(const struct resized *r, enum sampling s, int64_t i) {
  double n = (double)r->in, m = (double)r->out, k = (double)i, delta = fmax(1, n - 1) / m;
  switch (s) {
    case STRICT_ALIGN_CORNERS: return m > 1 ? k * (n - 1) / (m - 1) : 0;
    case ALIGN_CORNERS: return m > 1 ? k * (n - 1) / (m - 1) : (n - 1) / 2;
    case OFFSET_CORNERS: return (k + 0.5) * delta;
    case UNALIGN_CORNERS: return (k + 0.5) * r->over / r->under - 0.5;
    default: return k * r->over / r->under;
  }
}

/* The nearest element is the one before the coordinate: of the beginning of element i (DEFAULT), or of its middle. */
static ane_status find_spots(struct ane_prim_call *c, struct resized *r, enum sampling s, bool nearest) {
  if (!(r->spots = prim_temp(c, (uint64_t)r->out * sizeof *r->spots))) return c->status;
  for (int64_t i = 0; i < r->out; i++) {
    double last = (double)(r->in - 1), at = coordinate(r, s, i) + (nearest && s == UNALIGN_CORNERS ? 0.5 : 0);
    at = fmin(fmax(at, 0), last);
    int64_t low = (int64_t)at;
    r->spots[i] = (struct spot){low, nearest ? 0 : (float)(at - (double)low)};
  }
  return c->status;
}

/* Reads the size of the result along an axis. A scale that does not give whole elements is itself the ratio for the nearest
 * elements; else the sizes are, which are not rounded. */
static ane_status read_axis(struct ane_prim_call *c, const char *size, const char *scale, bool nearest, struct resized *r) {
  bool scaled = prim_in(c, scale) != NULL;
  float by = prim_float(c, scale, 1), all = floorf(by * (float)r->in);
  r->out = prim_int(c, size, !scaled ? 1 : all >= 0 && all <= (float)INT32_MAX ? (int64_t)all : -1);
  if (c->status) return c->status;
  if (r->out < 0 || r->out > INT32_MAX || r->in > INT32_MAX || (r->in == 0 && r->out > 0))
    return prim_fail(c, ANE_RANGE, "%s is %" PRId64 " for %" PRId64 " elements", size, r->out, r->in);
  bool whole = !nearest || !scaled || !(by > 0) || fabs((double)by * (double)r->in - (double)r->out) < 1e-3;
  r->over = whole ? (double)r->in : 1;
  r->under = whole ? (double)r->out : (double)by;
  return ANE_OK;
}

static enum sampling read_sampling(struct ane_prim_call *c) {
  static const char *const names[] = {"STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS", "UNALIGN_CORNERS"};
  char text[PRIM_TEXT];
  const char *given = prim_text(c, "sampling_mode", NULL, text);
  if (!given) {
    bool align = prim_bool(c, "align_corners", false), half = prim_bool(c, "half_pixel_centers", !align);
    if (align && half) prim_fail(c, ANE_UNSUPPORTED, "align_corners with half_pixel_centers");
    return align ? STRICT_ALIGN_CORNERS : half ? UNALIGN_CORNERS : DEFAULT;
  }
  for (int i = 0; i < SAMPLINGS; i++)
    if (strcmp(names[i], given) == 0) return (enum sampling)i;
  prim_fail(c, ANE_INVALID,
            "sampling_mode is \"%s\"; known are STRICT_ALIGN_CORNERS, ALIGN_CORNERS, DEFAULT, OFFSET_CORNERS, "
            "UNALIGN_CORNERS",
            given);
  return DEFAULT;
}

struct planes {
  const float *x;
  float *y;
  struct resized rows, cols;
};

/* Computes rows of the result, counted over all planes. */
static void resize_rows(void *arg, int64_t from, int64_t to, int thread ANE_UNUSED) {
  const struct planes *p = arg;
  int64_t w = p->cols.in;
  for (int64_t row = from; row < to; row++) {
    struct spot s = p->rows.spots[row % p->rows.out];
    const float *a = p->x + (row / p->rows.out * p->rows.in + s.low) * w, *b = s.share > 0 ? a + w : a;
    for (int64_t i = 0; i < p->cols.out; i++) {
      struct spot t = p->cols.spots[i];
      int64_t j = t.low, k = t.share > 0 ? j + 1 : j;
      float *y = &p->y[row * p->cols.out + i];
      *y = a[j];
      if (t.share > 0) *y = (1 - t.share) * a[j] + t.share * a[k];
      if (s.share > 0) *y = (1 - s.share) * *y + s.share * ((1 - t.share) * b[j] + t.share * b[k]);
    }
  }
}

ane_status prim_resize(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  char text[PRIM_TEXT], shape[ANE_DYN_TEXT];
  const char *mode = prim_text(c, "mode", "linear", text);
  bool nearest = strcmp(mode, "nearest") == 0;
  enum sampling s = read_sampling(c);
  int64_t dim[ANE_DYN_RANK];
  if (c->status) return c->status;
  if (!nearest && strcmp(mode, "linear") != 0)
    return prim_fail(c, ANE_INVALID, "mode is \"%s\"; known are linear and nearest", mode);
  if (x->rank < 2) return prim_fail(c, ANE_SHAPE, "x is %s", ane_dyn_text(x, shape));
  struct planes p = {.rows = {.in = x->dim[x->rank - 2]}, .cols = {.in = x->dim[x->rank - 1]}};
  if (read_axis(c, "height", "scale_height", nearest, &p.rows) || read_axis(c, "width", "scale_width", nearest, &p.cols))
    return c->status;
  memcpy(dim, x->dim, sizeof dim);
  dim[x->rank - 2] = p.rows.out, dim[x->rank - 1] = p.cols.out;
  p.x = prim_f32(c, x);
  p.y = prim_out(c, 0, ANE_F32, x->rank, dim);
  if (c->status || c->out[0].count == 0) return c->status;
  if (find_spots(c, &p.rows, s, nearest) || find_spots(c, &p.cols, s, nearest)) return c->status;
  prim_parallel(c, c->out[0].count / p.cols.out, 8.0 * (double)c->out[0].count, resize_rows, &p);
  return c->status;
}
