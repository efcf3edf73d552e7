/* Softmax and norms. Each row is computed alone; sums are float64. */
#include "prim/prim_internal.h"

#include <math.h>

/* ---- Softmax -------------------------------------------------------------------------------------------------------*/

struct rows {
  const float *x;
  float *y;
  int64_t n, inner; /* x is [outer, n, inner]; a row is n elements `inner` apart */
  bool log;
};

static void softmax_rows(void *arg, int64_t from, int64_t to, int thread ANE_UNUSED) {
  const struct rows *r = arg;
  for (int64_t o = from; o < to; o++) {
    const float *x = r->x + o / r->inner * r->n * r->inner + o % r->inner;
    float *y = r->y + (x - r->x), top = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < r->n; i++) top = fmaxf(top, x[i * r->inner]);
    if (top == -INFINITY) top = 0; /* all keys hidden: 0 / 0 gives NaN, as the definition does */
    for (int64_t i = 0; i < r->n; i++) {
      float e = expf(x[i * r->inner] - top);
      y[i * r->inner] = r->log ? x[i * r->inner] - top : e;
      sum += (double)e;
    }
    float log_sum = r->log ? (float)log(sum) : 0;
    for (int64_t i = 0; i < r->n; i++)
      y[i * r->inner] = r->log ? y[i * r->inner] - log_sum : (float)((double)y[i * r->inner] / sum);
  }
}

static void hardmax_rows(void *arg, int64_t from, int64_t to, int thread ANE_UNUSED) {
  const struct rows *r = arg;
  for (int64_t o = from; o < to; o++) {
    const float *x = r->x + o / r->inner * r->n * r->inner + o % r->inner;
    float *y = r->y + (x - r->x);
    int64_t best = 0;
    for (int64_t i = 1; i < r->n; i++) best = x[i * r->inner] > x[best * r->inner] ? i : best;
    for (int64_t i = 0; i < r->n; i++) y[i * r->inner] = i == best;
  }
}

/* Calls fn for all rows of x along the axis, or along all axes from it on together. */
static ane_status softmax(struct ane_prim_call *c, prim_range_fn fn, bool log) {
  const struct ane_dyn *x = c->in[0];
  int axis = prim_axis(c, "axis", -1, ANE_MAX(x->rank, 1));
  bool to_end = prim_bool(c, "to_end", false);
  if (c->status) return c->status;
  struct rows r = {prim_f32(c, x), prim_out(c, 0, ANE_F32, x->rank, x->dim), 1, 1, log};
  int64_t outer = 1;
  for (int i = 0; i < x->rank; i++) {
    if (i < axis)
      outer *= x->dim[i];
    else if (i == axis || to_end)
      r.n *= x->dim[i];
    else
      r.inner *= x->dim[i];
  }
  if (r.x && r.y && r.n) prim_parallel(c, outer * r.inner, 30.0 * (double)x->count, fn, &r);
  return c->status;
}

ane_status prim_softmax(struct ane_prim_call *c) { return softmax(c, softmax_rows, false); }
ane_status prim_log_softmax(struct ane_prim_call *c) { return softmax(c, softmax_rows, true); }
ane_status prim_hardmax(struct ane_prim_call *c) { return softmax(c, hardmax_rows, false); }

/* ---- Norms over the last axes --------------------------------------------------------------------------------------*/

struct norm {
  const float *x, *gamma, *beta; /* gamma and beta: [n] or NULL */
  float *y, *mean, *scale;       /* mean and scale: one for each row, or NULL */
  int64_t n;
  double epsilon;
  bool centre;
};

static void norm_rows(void *arg, int64_t from, int64_t to, int thread ANE_UNUSED) {
  const struct norm *m = arg;
  for (int64_t r = from; r < to; r++) {
    const float *x = m->x + r * m->n;
    float *y = m->y + r * m->n;
    double mean = 0, sum = 0;
    for (int64_t i = 0; m->centre && i < m->n; i++) mean += (double)x[i];
    mean /= (double)m->n;
    for (int64_t i = 0; i < m->n; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    double scale = 1 / sqrt(sum / (double)m->n + m->epsilon);
    if (m->mean) m->mean[r] = (float)mean;
    if (m->scale) m->scale[r] = (float)scale;
    for (int64_t i = 0; i < m->n; i++) {
      float v = (float)(((double)x[i] - mean) * scale);
      if (m->gamma) v *= m->gamma[i];
      y[i] = m->beta ? v + m->beta[i] : v;
    }
  }
}

static bool is_real(struct ane_prim_call *c, const char *name, const struct ane_dyn *t) {
  char text[ANE_DYN_TEXT];
  if (!t || t->coded || prim_is_float(t->dtype)) return true;
  prim_fail(c, ANE_INVALID, "%s must be floats, but is %s", name, ane_dyn_text(t, text));
  return false;
}

static bool fits(struct ane_prim_call *c, const char *name, const struct ane_dyn *t, int64_t n) {
  char text[ANE_DYN_TEXT];
  if (!is_real(c, name, t)) return false;
  if (!t || t->count == n) return true;
  prim_fail(c, ANE_SHAPE, "%s must have %lld elements, but is %s", name, (long long)n, ane_dyn_text(t, text));
  return false;
}

/* Allocates the results that hold one number for each row: the axes of `mask` keep one element. */
static void row_results(struct ane_prim_call *c, uint32_t mask, struct norm *m) {
  const struct ane_dyn *x = c->in[0];
  int64_t dim[ANE_DYN_RANK];
  for (int i = 0; i < x->rank; i++) dim[i] = mask >> i & 1 ? 1 : x->dim[i];
  m->mean = prim_wanted(c, 1) ? prim_out(c, 1, ANE_F32, x->rank, dim) : NULL;
  m->scale = prim_wanted(c, 2) ? prim_out(c, 2, ANE_F32, x->rank, dim) : NULL;
}

/* mask: the axes from `first` on, for the further results. */
static ane_status norm(struct ane_prim_call *c, int first, uint32_t mask, bool centre) {
  const struct ane_dyn *x = c->in[0], *gamma = prim_in(c, "gamma"), *beta = centre ? prim_in(c, "beta") : NULL;
  struct norm m = {.n = 1, .centre = centre, .epsilon = (double)prim_float(c, "epsilon", 1e-5f)};
  int64_t outer = 1;
  for (int i = 0; i < x->rank; i++) *(i < first ? &outer : &m.n) *= x->dim[i];
  if (c->status || !is_real(c, "x", x) || !fits(c, "gamma", gamma, m.n) || !fits(c, "beta", beta, m.n)) return c->status;
  m.x = prim_f32(c, x);
  m.gamma = gamma ? prim_f32(c, gamma) : NULL;
  m.beta = beta ? prim_f32(c, beta) : NULL;
  m.y = prim_out(c, 0, ANE_F32, x->rank, x->dim);
  row_results(c, mask, &m);
  if (!c->status && (m.n || m.mean || m.scale)) prim_parallel(c, outer, 4.0 * (double)x->count, norm_rows, &m);
  return c->status;
}

/* Normalises over any axes: transposes x so that they are last, normalises, and transposes back. The order of each sum is the
 * same. */
static ane_status norm_transposed(struct ane_prim_call *c, uint32_t mask) {
  const struct ane_dyn *x = c->in[0], *gamma = prim_in(c, "gamma"), *beta = prim_in(c, "beta");
  struct norm m = {.n = 1, .centre = true, .epsilon = (double)prim_float(c, "epsilon", 1e-5f)};
  int64_t own[ANE_DYN_RANK], dim[ANE_DYN_RANK], stride[ANE_DYN_RANK], outer = 1;
  int at = 0;
  prim_strides(x->rank, x->dim, own);
  for (uint32_t want = 0; want < 2; want++)
    for (int i = 0; i < x->rank; i++) {
      if ((mask >> i & 1) != want) continue;
      dim[at] = x->dim[i], stride[at++] = own[i];
      *(want ? &m.n : &outer) *= x->dim[i];
    }
  if (c->status || !is_real(c, "x", x) || !fits(c, "gamma", gamma, m.n) || !fits(c, "beta", beta, m.n)) return c->status;
  const float *v = prim_f32(c, x);
  float *in = prim_temp(c, (uint64_t)x->count * sizeof *in), *out = prim_temp(c, (uint64_t)x->count * sizeof *out),
        *y = prim_out(c, 0, ANE_F32, x->rank, x->dim);
  m.gamma = gamma ? prim_f32(c, gamma) : NULL;
  m.beta = beta ? prim_f32(c, beta) : NULL;
  row_results(c, mask, &m);
  if (c->status || (!x->count && !m.mean && !m.scale)) return c->status;
  prim_copy(in, v, sizeof *in, x->rank, dim, stride);
  m.x = in, m.y = out;
  prim_parallel(c, outer, 4.0 * (double)x->count, norm_rows, &m);
  prim_copy_into(y, out, sizeof *out, x->rank, dim, stride);
  return c->status;
}

ane_status prim_layer_norm(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  uint32_t mask = prim_axes(c, "axes", x->rank);
  int first = 0, end = x->rank;
  while (end > 0 && x->dim[end - 1] == 1) end--; /* axes of one element make no difference */
  while (first < end && !(mask >> first & 1)) first++;
  if (c->status) return c->status;
  bool last = true;
  for (int i = first; i < end; i++) last = last && mask >> i & 1;
  return last && first < end ? norm(c, first, mask, true) : norm_transposed(c, mask);
}

ane_status prim_rms_norm(struct ane_prim_call *c) {
  int first = prim_axis(c, "axis", -1, ANE_MAX(c->in[0]->rank, 1));
  return c->status ? c->status : norm(c, first, 0, false);
}

ane_status prim_l2_norm(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int axis = prim_axis(c, "axis", -1, ANE_MAX(x->rank, 1));
  double epsilon = (double)prim_float(c, "epsilon", 1e-12f);
  const float *v = prim_f32(c, x);
  float *y = prim_out(c, 0, ANE_F32, x->rank, x->dim);
  if (c->status || x->count == 0) return c->status;
  int64_t n = x->rank ? x->dim[axis] : 1, inner = 1, outer = 1;
  for (int i = 0; i < x->rank; i++) *(i < axis ? &outer : &inner) *= i == axis ? 1 : x->dim[i];
  for (int64_t o = 0; o < outer * inner; o++) {
    int64_t base = o / inner * n * inner + o % inner;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)v[base + i * inner] * (double)v[base + i * inner];
    double scale = 1 / fmax(sqrt(sum), epsilon);
    for (int64_t i = 0; i < n; i++) y[base + i * inner] = (float)((double)v[base + i * inner] * scale);
  }
  return c->status;
}

ane_status prim_batch_norm(struct ane_prim_call *c) {
  static const char *const names[] = {"gamma", "beta", "mean", "variance"};
  const struct ane_dyn *x = c->in[0];
  const float *p[4];
  char text[ANE_DYN_TEXT];
  int64_t channels = x->rank > 1 ? x->dim[1] : 1, inner = 1;
  double epsilon = (double)prim_float(c, "epsilon", 1e-5f);
  if (x->rank < 1) return prim_fail(c, ANE_SHAPE, "x is %s", ane_dyn_text(x, text));
  for (int i = 0; i < 4; i++)
    if (!fits(c, names[i], c->in[1 + i], channels) || !(p[i] = prim_f32(c, c->in[1 + i]))) return c->status;
  for (int i = 2; i < x->rank; i++) inner *= x->dim[i];
  const float *v = prim_f32(c, x);
  float *y = is_real(c, "x", x) ? prim_out(c, 0, ANE_F32, x->rank, x->dim) : NULL;
  for (int64_t i = 0; v && y && i < x->count; i++) {
    int64_t k = i / inner % channels;
    y[i] = (float)(((double)v[i] - (double)p[2][k]) / sqrt((double)p[3][k] + epsilon) * (double)p[0][k] + (double)p[1][k]);
  }
  return c->status;
}
