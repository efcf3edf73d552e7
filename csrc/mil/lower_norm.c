/* Norms. In fp16 the squares of a row may overflow. layer_norm of [x, -x], whose mean is zero, gives x / rms(x) without that
 * overflow. */
#include "mil/lower_internal.h"

#include <math.h>

/* Returns the axis of the channels, for an activation or for heads [1, n, d, T]. */
static int channel_axis(int64_t groups) { return groups > 1 ? 2 : 1; }

static mil_value grouped(struct lower *l, const struct ane_node *n, int64_t groups) {
  return groups > 1 ? lower_heads(l, n->inputs[0], groups) : lower_in(l, n, 0);
}

static void give(struct lower *l, const struct ane_node *n, mil_value y, int64_t groups) {
  if (groups > 1)
    lower_out_heads(l, n, y, groups);
  else
    lower_out(l, n, y);
}

/* fp16 would round a smaller eps to 0, with which zeros become NaN. */
double lower_held_eps(const struct lower *l, double eps) { return l->b.dtype == ANE_MIL_FP16 ? fmax(eps, 0x1p-24) : eps; }

mil_value lower_rms(struct lower *l, mil_value x, int axis, double eps) {
  struct mil_build *b = &l->b;
  if (l->o->norm == ANE_MIL_NORM_DOUBLED) {
    mil_value both = mil_concat2(b, x, mil_scale(b, x, -1), axis);
    return mil_slice(b, mil_layer_norm(b, both, axis, lower_held_eps(l, eps)), axis, 0, mil_dim(x, axis), 1);
  }
  mil_value wide = mil_cast(b, x, ANE_MIL_FP32);
  mil_value mean = mil_reduce(b, "reduce_mean", mil_mul(b, wide, wide), axis);
  return mil_cast(b, mil_mul(b, wide, mil_rsqrt(b, mean, eps)), x->type.dtype);
}

void lower_rms_norm(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t groups = ane_node_int(n, "groups");
  int axis = channel_axis(groups);
  mil_value y = lower_rms(l, grouped(l, n, groups), axis, ane_node_float(n, "eps"));
  mil_value w = lower_vector(l, ane_node_input(n, 1), axis, ane_node_float(n, "offset"), 1);
  give(l, n, w ? mil_mul(b, y, w) : y, groups);
}

void lower_layer_norm(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t groups = ane_node_int(n, "groups");
  int axis = channel_axis(groups);
  mil_value x = grouped(l, n, groups);
  mil_value wide = l->o->norm == ANE_MIL_NORM_FP32 ? mil_cast(b, x, ANE_MIL_FP32) : x;
  double eps = ane_node_float(n, "eps");
  mil_value y =
      mil_cast(b, mil_layer_norm(b, wide, axis, wide->type.dtype == ANE_MIL_FP16 ? lower_held_eps(l, eps) : eps), x->type.dtype);
  mil_value w = lower_vector(l, ane_node_input(n, 1), axis, 0, 1), bias = lower_vector(l, ane_node_input(n, 2), axis, 0, 1);
  if (w) y = mil_mul(b, y, w);
  give(l, n, bias ? mil_add(b, y, bias) : y, groups);
}

/* sqrt(n) / max(|x|, eps) = 1 / max(rms, eps / sqrt(n)). This uses the norm above, which adds eps to the mean square instead. */
void lower_l2_norm(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t groups = ane_node_int(n, "groups");
  int axis = channel_axis(groups);
  mil_value x = grouped(l, n, groups);
  double eps = ane_node_float(n, "eps");
  mil_value y = lower_rms(l, x, axis, eps * eps / (double)mil_dim(x, axis));
  mil_value w = lower_vector(l, ane_node_input(n, 1), 1, 0, 1); /* one per group */
  give(l, n, w ? mil_mul(b, y, w) : y, groups);
}
