/* MIL ops that become several primitives, or one of another name. */
#include "interp/interp_mil_const.h"

#include <inttypes.h>
#include <string.h>

static ane_status last(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, bool moves, const int32_t *in,
                       int32_t n_in) {
  int32_t *out;
  ane_status st = mil_outputs(t, op, &out);
  return st ? st : mil_add(t, op, prim, moves, in, n_in, out);
}

static ane_status one_output(const struct mil_import *t, const struct ane_mil_op *op) {
  if (op->n_outputs == 1) return ANE_OK;
  return mil_op_fail(t, op, ANE_FORMAT, "has %" PRIu32 " outputs, but must have one", op->n_outputs);
}

/* Reads parameters in order; a '?' marks optional ones. The op must have one output, and no other parameters. */
static ane_status params(struct mil_import *t, const struct ane_mil_op *op, const char *const *names, int32_t n, int32_t *out) {
  ane_status one = one_output(t, op);
  if (one) return one;
  for (int32_t k = 0; k < n; k++) out[k] = INTERP_NONE;
  for (uint32_t i = 0; i < op->n_inputs; i++) {
    bool known = false;
    for (int32_t k = 0; k < n; k++) known = known || strcmp(names[k] + (*names[k] == '?'), op->inputs[i].name) == 0;
    if (!known) return mil_op_fail(t, op, ANE_UNSUPPORTED, "parameter %.60s is not known", op->inputs[i].name);
  }
  for (int32_t k = 0; k < n; k++) {
    bool may = *names[k] == '?';
    ane_status st = mil_param(t, op, names[k] + may, &out[k]);
    if (st) return st;
    if (!may && out[k] == INTERP_NONE) return mil_op_fail(t, op, ANE_FORMAT, "parameter %s is missing", names[k]);
  }
  return ANE_OK;
}

/* Make constants. */
static ane_status number(struct mil_import *t, float v, int32_t *out) { return interp_float(t->g, v, out, t->err); }
static ane_status integer(struct mil_import *t, int64_t v, int32_t *out) { return interp_ints(t->g, &v, 1, true, out, t->err); }
static ane_status integers(struct mil_import *t, const int64_t *v, int64_t n, int32_t *out) {
  return interp_ints(t->g, v, n, false, out, t->err);
}

static ane_status step(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, int32_t a, int32_t b, int32_t *out) {
  const int32_t in[] = {a, b};
  return mil_step(t, op, prim, in, b == INTERP_NONE ? 1 : 2, out);
}
static ane_status last2(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, int32_t a, int32_t b) {
  const int32_t in[] = {a, b};
  return last(t, op, prim, false, in, b == INTERP_NONE ? 1 : 2);
}

/* Sets *rank to the declared rank of the output, which in these ops tells that of x. */
static ane_status declared_rank(const struct mil_import *t, const struct ane_mil_op *op, int32_t least, int32_t most,
                                int32_t *rank) {
  *rank = op->outputs[0].type.rank;
  if (*rank >= least && *rank <= most) return ANE_OK;
  return mil_op_fail(t, op, ANE_SHAPE, "the result has %d dimensions, but must have %d to %d", (int)*rank, (int)least, (int)most);
}

/* Reads a parameter that must be a constant of n integers. One that is absent leaves *out as it is. */
static ane_status whole(struct mil_import *t, const struct ane_mil_op *op, const char *name, uint64_t n, int64_t *out) {
  if (!ane_mil_op_arg(op, name)) return ANE_OK;
  const struct ane_mil_value *v = mil_const_tensor(t, op, name, 1);
  if (!v) return t->err->code;
  if (v->count != n) return mil_op_fail(t, op, ANE_SHAPE, "parameter %s must have %" PRIu64 " elements", name, n);
  for (uint64_t i = 0; i < n; i++) out[i] = ane_mil_integer(v, i);
  return ANE_OK;
}

/* The same for an axis of `rank` dimensions. */
static ane_status whole_axis(struct mil_import *t, const struct ane_mil_op *op, const char *name, int32_t rank, int64_t *out) {
  ane_status st = whole(t, op, name, 1, out);
  if (!st && (*out < -rank || *out >= rank))
    st = mil_op_fail(t, op, ANE_INVALID, "%s is %" PRId64 ", not an axis of %d dimensions", name, *out, (int)rank);
  if (!st && *out < 0) *out += rank;
  return st;
}

/* Gives a vector `rank` dimensions, which are 1 except for `axis`. rank <= ANE_DYN_RANK. */
static ane_status along(struct mil_import *t, const struct ane_mil_op *op, int32_t v, int64_t axis, int32_t rank, int32_t *out) {
  int64_t axes[ANE_DYN_RANK], n = 0;
  int32_t list;
  for (int64_t i = 0; i < rank; i++)
    if (i != axis) axes[n++] = i;
  ane_status st = integers(t, axes, n, &list);
  return st ? st : step(t, op, ANE_PRIM_expand_dims, v, list, out);
}

/* ---- Shapes --------------------------------------------------------------------------------------------------------*/

/* Translates reshape. A 0 in the shape copies a dimension: that of the same index, or from iOS17 on that with the same distance
 * from the end. */
static ane_status reshape(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "shape"};
  int64_t from_end = ane_mil_opset_version(t->g->function->opset) >= 8, zero = 0;
  int32_t in[4];
  ane_status st = params(t, op, names, 2, in);
  if (!st) st = interp_ints(t->g, &zero, 1, true, &in[2], t->err);
  if (!st) st = interp_ints(t->g, &from_end, 1, true, &in[3], t->err);
  return st ? st : last(t, op, ANE_PRIM_reshape, true, in, 4);
}

/* Returns the constant of a binding, or NULL. */
static const struct ane_mil_value *bound(const struct mil_import *t, const struct ane_mil_binding *b) {
  const struct mil_name *n = b->value ? NULL : mil_find(t, b->name);
  return b->value ? b->value : n ? n->raw : NULL;
}

/* Reshapes to dimensions begin .. end - 1 (to the last if its mask is true) of each reference, one after another. */
static ane_status reshape_like(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"ref_tensors", "begins", "ends", "end_masks"};
  const struct ane_mil_arg *list[4];
  int32_t y[3];
  ane_status st = one_output(t, op);
  if (!st) st = mil_param(t, op, "x", &y[0]);
  for (int k = 0; !st && k < 4; k++) {
    list[k] = ane_mil_op_arg(op, names[k]);
    /* analyser: the loop ends where list[0] is NULL. */
    if (!list[k] || list[k]->n_bindings != list[0]->n_bindings || y[0] == INTERP_NONE || op->n_inputs != 5)
      st = mil_op_fail(t, op, ANE_FORMAT, "must have x, ref_tensors, begins, ends and end_masks, lists of one length");
  }
  if (st) return st;
  uint32_t n = list[0]->n_bindings;
  int32_t *in = ane_arena_array(&t->g->arena, (size_t)n + 2, sizeof *in); /* of concat: axis, interleave, parts */
  if (!in) return interp_no_memory(t->err);
  in[1] = INTERP_NONE;
  st = integer(t, 0, &in[0]);
  for (uint32_t i = 0; !st && i < n; i++) {
    const struct ane_mil_value *mask = bound(t, &list[3]->bindings[i]);
    if (!mask || mask->kind != ANE_MIL_NUMBERS || mask->count != 1 || mask->type.kind != ANE_MIL_TENSOR)
      return mil_op_fail(t, op, ANE_FORMAT, "end_masks must be constants");
    int32_t part[3];
    for (int k = 0; !st && k < 3; k++) st = mil_binding(t, op, &list[k]->bindings[i], &part[k]);
    if (!st) st = mil_step(t, op, ANE_PRIM_shape, part, ane_mil_integer(mask, 0) ? 2 : 3, &in[2 + i]);
  }
  if (!st) st = mil_step(t, op, ANE_PRIM_concat, in, (int32_t)n + 2, &y[1]);
  if (!st) st = integer(t, 1, &y[2]);
  return st ? st : last(t, op, ANE_PRIM_reshape, true, y, 3);
}

/* fill(shape(ref), value) */
static ane_status fill_like(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"ref_tensor", "?value"};
  int32_t in[2], shape = INTERP_NONE;
  ane_status st = params(t, op, names, 2, in);
  if (!st) st = mil_step(t, op, ANE_PRIM_shape, in, 1, &shape);
  in[0] = shape;
  return st ? st : last(t, op, ANE_PRIM_fill, false, in, in[1] == INTERP_NONE ? 1 : 2);
}

/* ---- Products ------------------------------------------------------------------------------------------------------*/

/* x W^T + b of integers, for which there are no packed weights. */
static ane_status linear(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "weight", "?bias"};
  int32_t in[3], mm[4] = {0, 0, INTERP_NONE, 0}, add[2];
  int64_t yes = 1;
  ane_status st = params(t, op, names, 3, in);
  if (st) return st;
  ane_mil_dtype d = op->n_outputs ? op->outputs[0].type.dtype : ANE_MIL_FP32;
  bool constant = t->g->values[in[1]].constant, floats = d == ANE_MIL_FP16 || d == ANE_MIL_FP32;
  if (floats && constant) return last(t, op, ANE_PRIM_linear, false, in, in[2] == INTERP_NONE ? 2 : 3);
  mm[0] = in[0], mm[1] = in[1];
  st = interp_ints(t->g, &yes, 1, true, &mm[3], t->err);
  if (st || in[2] == INTERP_NONE) return st ? st : last(t, op, ANE_PRIM_matmul, false, mm, 4);
  st = mil_step(t, op, ANE_PRIM_matmul, mm, 4, &add[0]);
  add[1] = in[2];
  return st ? st : last(t, op, ANE_PRIM_add, false, add, 2);
}

/* ---- Norms ---------------------------------------------------------------------------------------------------------*/

/* x gamma + beta, with a number for each channel (axis 1). Both may be absent. */
static ane_status scaled(struct mil_import *t, const struct ane_mil_op *op, int32_t x, int32_t gamma, int32_t beta,
                         int32_t rank) {
  ane_status st = ANE_OK;
  if (gamma != INTERP_NONE) st = along(t, op, gamma, 1, rank, &gamma);
  if (!st && beta != INTERP_NONE) st = along(t, op, beta, 1, rank, &beta);
  if (st || gamma == INTERP_NONE) return st ? st : last2(t, op, beta == INTERP_NONE ? ANE_PRIM_identity : ANE_PRIM_add, x, beta);
  if (beta == INTERP_NONE) return last2(t, op, ANE_PRIM_mul, x, gamma);
  st = step(t, op, ANE_PRIM_mul, x, gamma, &x);
  return st ? st : last2(t, op, ANE_PRIM_add, x, beta);
}

/* (x - mean) (gamma / sqrt(variance + epsilon)) + beta */
static ane_status batch_norm(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "mean", "variance", "?gamma", "?beta", "?epsilon"};
  int32_t in[6], rank = 0, x = INTERP_NONE, by = INTERP_NONE;
  ane_status st = params(t, op, names, 6, in);
  if (!st) st = declared_rank(t, op, 2, ANE_DYN_RANK, &rank);
  if (!st && in[5] == INTERP_NONE) st = number(t, 1e-5f, &in[5]);
  if (!st) st = along(t, op, in[1], 1, rank, &in[1]);
  if (!st) st = step(t, op, ANE_PRIM_sub, in[0], in[1], &x);
  if (!st) st = step(t, op, ANE_PRIM_rsqrt, in[2], in[5], &by);
  if (!st && in[3] != INTERP_NONE) st = step(t, op, ANE_PRIM_mul, by, in[3], &by);
  return st ? st : scaled(t, op, x, by, in[4], rank);
}

/* layer_norm over the axes after the channels */
static ane_status instance_norm(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "?gamma", "?beta", "?epsilon"};
  int32_t in[4], rank, norm[5] = {INTERP_NONE, INTERP_NONE, INTERP_NONE, INTERP_NONE, INTERP_NONE}, x;
  int64_t axes[ANE_DYN_RANK];
  ane_status st = params(t, op, names, 4, in);
  if (!st) st = declared_rank(t, op, 3, ANE_DYN_RANK, &rank);
  if (st) return st;
  for (int32_t i = 2; i < rank; i++) axes[i - 2] = i;
  norm[0] = in[0], norm[4] = in[3];
  st = integers(t, axes, rank - 2, &norm[1]);
  if (!st) st = mil_step(t, op, ANE_PRIM_layer_norm, norm, 5, &x);
  return st ? st : scaled(t, op, x, in[1], in[2], rank);
}

/* x / sqrt(sum(x^2) + epsilon) over the last three axes. The primitive l2_norm is max(|x|, epsilon) along one. */
static ane_status l2_norm(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "?epsilon"};
  static const int64_t axes[] = {-3, -2, -1};
  int32_t in[2], sum[3], by = INTERP_NONE;
  ane_status st = params(t, op, names, 2, in);
  sum[0] = in[0];
  if (!st && in[1] == INTERP_NONE) st = number(t, 1e-6f, &in[1]);
  if (!st) st = integers(t, axes, 3, &sum[1]);
  if (!st) st = integer(t, 1, &sum[2]);
  if (!st) st = mil_step(t, op, ANE_PRIM_reduce_sum_square, sum, 3, &by);
  if (!st) st = step(t, op, ANE_PRIM_rsqrt, by, in[1], &by);
  return st ? st : last2(t, op, ANE_PRIM_mul, in[0], by);
}

/* x / (k + alpha / size * the sum of x^2 over `size` channels)^beta. An average over channels as a spatial axis gives the sum.
 * The channels are the third axis from the end, also of three: coremltools' own values for [1, 3, 2] have one channel. */
static ane_status local_response_norm(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "size", "?alpha", "?beta", "?k"};
  static const float defaults[] = {1e-4f, 0.75f, 1};
  int32_t in[5], rank, pool[5] = {INTERP_NONE, INTERP_NONE, INTERP_NONE, INTERP_NONE, INTERP_NONE}, axes, y;
  int64_t size = 1, added[] = {0, 1};
  ane_status st = params(t, op, names, 5, in);
  if (!st) st = declared_rank(t, op, 3, 4, &rank);
  if (!st) st = whole(t, op, "size", 1, &size);
  if (!st && (size < 1 || size > INT32_MAX)) st = mil_op_fail(t, op, ANE_INVALID, "size is %" PRId64, size);
  for (int i = 0; !st && i < 3; i++)
    if (in[2 + i] == INTERP_NONE) st = number(t, defaults[i], &in[2 + i]);
  if (st) return st;
  const int64_t kernel[] = {size, 1, 1}, pad[] = {size / 2, (size - 1) / 2, 0, 0, 0, 0};
  st = rank == 3 ? integers(t, added, 2, &axes) : integers(t, added + 1, 1, &axes); /* [1, 1, C, H, W] or [n, 1, C, H, W] */
  if (!st) st = step(t, op, ANE_PRIM_square, in[0], INTERP_NONE, &y);
  if (!st) st = step(t, op, ANE_PRIM_expand_dims, y, axes, &pool[0]);
  if (!st) st = integers(t, kernel, 3, &pool[1]);
  if (!st) st = interp_text(t->g, "custom", 6, &pool[3], t->err);
  if (!st) st = integers(t, pad, 6, &pool[4]);
  if (!st) st = mil_step(t, op, ANE_PRIM_avg_pool, pool, 5, &y);
  if (!st) st = step(t, op, ANE_PRIM_squeeze, y, axes, &y);
  if (!st) st = step(t, op, ANE_PRIM_mul, y, in[2], &y);
  if (!st) st = step(t, op, ANE_PRIM_add, y, in[4], &y);
  if (!st) st = step(t, op, ANE_PRIM_pow, y, in[3], &y);
  return st ? st : last2(t, op, ANE_PRIM_real_div, in[0], y);
}

/* ---- Elementwise ---------------------------------------------------------------------------------------------------*/

static ane_status relu6(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x"};
  int32_t in[3];
  ane_status st = params(t, op, names, 1, in);
  if (!st) st = number(t, 0, &in[1]);
  if (!st) st = number(t, 6, &in[2]);
  return st ? st : last(t, op, ANE_PRIM_clip, false, in, 3);
}

static ane_status exp2_op(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x"};
  int32_t x, in[2];
  ane_status st = params(t, op, names, 1, &x);
  in[1] = x;
  if (!st) st = number(t, 2, &in[0]);
  return st ? st : last(t, op, ANE_PRIM_pow, false, in, 2);
}

static ane_status linear_activation(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "alpha", "?beta"};
  int32_t in[3], add[2];
  ane_status st = params(t, op, names, 3, in);
  if (st || in[2] == INTERP_NONE) return st ? st : last(t, op, ANE_PRIM_mul, false, in, 2);
  st = mil_step(t, op, ANE_PRIM_mul, in, 2, &add[0]);
  add[1] = in[2];
  return st ? st : last(t, op, ANE_PRIM_add, false, add, 2);
}

/* A slope for each channel */
static ane_status prelu(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "alpha"};
  int32_t in[2], rank;
  ane_status st = params(t, op, names, 2, in);
  if (!st) st = declared_rank(t, op, 2, ANE_DYN_RANK, &rank);
  if (!st) st = along(t, op, in[1], 1, rank, &in[1]);
  return st ? st : last(t, op, ANE_PRIM_prelu, false, in, 2);
}

/* alpha fn(beta x) */
static ane_status between(struct mil_import *t, const struct ane_mil_op *op, ane_prim fn, bool channels) {
  static const char *const names[] = {"x", "alpha", "beta"};
  int32_t in[3], rank, y = INTERP_NONE;
  ane_status st = params(t, op, names, 3, in);
  if (!st) st = declared_rank(t, op, channels ? 2 : 0, ANE_DYN_RANK, &rank);
  for (int i = 1; !st && channels && i < 3; i++) st = along(t, op, in[i], 1, rank, &in[i]);
  if (!st) st = step(t, op, ANE_PRIM_mul, in[0], in[2], &y);
  if (!st) st = step(t, op, fn, y, INTERP_NONE, &y);
  return st ? st : last2(t, op, ANE_PRIM_mul, y, in[1]);
}
static ane_status scaled_tanh(struct mil_import *t, const struct ane_mil_op *op) { return between(t, op, ANE_PRIM_tanh, false); }
static ane_status softplus_parametric(struct mil_import *t, const struct ane_mil_op *op) {
  return between(t, op, ANE_PRIM_softplus, true);
}

/* x < alpha ? 0 : x */
static ane_status thresholded_relu(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "alpha"};
  int32_t in[2], choice[3];
  ane_status st = params(t, op, names, 2, in);
  choice[2] = in[0];
  if (!st) st = step(t, op, ANE_PRIM_less, in[0], in[1], &choice[0]);
  if (!st) st = number(t, 0, &choice[1]);
  return st ? st : last(t, op, ANE_PRIM_select, true, choice, 3);
}

/* log(sum(x)) */
static ane_status reduce_log_sum(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "?axes", "?keep_dims"};
  int32_t in[3], sum;
  ane_status st = params(t, op, names, 3, in);
  if (!st) st = mil_step(t, op, ANE_PRIM_reduce_sum, in, 3, &sum);
  return st ? st : last(t, op, ANE_PRIM_log, false, &sum, 1);
}

/* ---- Moving elements -----------------------------------------------------------------------------------------------*/

/* Sets the elements outside of a band around the diagonal to zero. */
static ane_status band_part(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "?lower", "?upper"};
  int32_t in[3];
  int64_t lower = -1, upper = -1;
  ane_status st = params(t, op, names, 3, in);
  if (!st) st = whole(t, op, "lower", 1, &lower);
  if (!st) st = whole(t, op, "upper", 1, &upper);
  if (st || (lower < 0 && upper < 0)) return st ? st : last(t, op, ANE_PRIM_identity, true, in, 1);
  st = integer(t, lower < 0 ? upper : -lower, &in[1]);
  if (!st) st = integer(t, lower >= 0, &in[2]);
  if (st || lower < 0 || upper < 0) return st ? st : last(t, op, ANE_PRIM_trilu, true, in, 3);
  st = mil_step(t, op, ANE_PRIM_trilu, in, 3, &in[0]);
  if (!st) st = integer(t, upper, &in[1]);
  if (!st) st = integer(t, 0, &in[2]);
  return st ? st : last(t, op, ANE_PRIM_trilu, true, in, 3);
}

/* The second result of topk over the whole axis */
static ane_status argsort(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "?axis", "?ascending"};
  int32_t in[3], top[4], out[2];
  ane_status st = params(t, op, names, 3, in);
  top[0] = in[0], top[2] = in[1], top[3] = in[2];
  if (!st) st = integer(t, -1, &top[1]);
  for (int i = 0; !st && i < 2; i++) st = interp_value(t->g, op->outputs[0].name, &out[i], t->err);
  if (!st) st = interp_add(t->g, t->block, ANE_PRIM_topk, op->outputs[0].name, top, 4, out, 2, t->err);
  return st ? st : last(t, op, ANE_PRIM_identity, true, &out[1], 1);
}

/* The elements are gathered from the vector (off_value, on_value). A negative index selects no element, so it is replaced by the
 * size. */
static ane_status one_hot(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"indices", "one_hot_vector_size", "?axis", "?on_value", "?off_value"};
  int32_t in[5], zero, negative = INTERP_NONE;
  ane_status st = params(t, op, names, 5, in);
  if (st) return st;
  ane_mil_dtype d = op->outputs[0].type.dtype;
  for (int i = 0; !st && i < 2; i++)
    if (in[3 + i] == INTERP_NONE) st = mil_is_float(d) ? number(t, i == 0, &in[3 + i]) : integer(t, i == 0, &in[3 + i]);
  if (!st) st = integer(t, 0, &zero);
  if (!st) st = step(t, op, ANE_PRIM_less, in[0], zero, &negative);
  const int32_t choice[] = {negative, in[1], in[0]}, pair[] = {zero, in[4], in[3]};
  int32_t make[4] = {0, in[1], INTERP_NONE, in[2]};
  if (!st) st = mil_step(t, op, ANE_PRIM_select, choice, 3, &make[0]);
  if (!st) st = mil_step(t, op, ANE_PRIM_stack, pair, 3, &make[2]);
  return st ? st : last(t, op, ANE_PRIM_one_hot, false, make, 4);
}

/* scatter_along_axis with the vector of indices repeated along the other axes. An index outside of the axis is always refused. */
static ane_status scatter(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"data", "indices", "updates", "?axis", "?mode", "?validate_indices"};
  int32_t in[6], rank, shape = INTERP_NONE;
  int64_t axis = 0;
  ane_status st = params(t, op, names, 6, in);
  if (!st) st = declared_rank(t, op, 1, ANE_DYN_RANK, &rank);
  if (!st) st = whole_axis(t, op, "axis", rank, &axis);
  if (!st) st = along(t, op, in[1], axis, rank, &in[1]);
  if (!st) st = step(t, op, ANE_PRIM_shape, in[2], INTERP_NONE, &shape);
  if (!st) st = step(t, op, ANE_PRIM_expand, in[1], shape, &in[1]);
  if (!st && in[4] == INTERP_NONE) st = interp_text(t->g, "add", 3, &in[4], t->err);
  return st ? st : last(t, op, ANE_PRIM_scatter_along_axis, false, in, 5);
}

/* Computes positions 0 .. n - 1, int64; n: a value. */
static ane_status positions(struct mil_import *t, const struct ane_mil_op *op, int32_t n, int32_t *out) {
  int32_t in[3] = {n};
  ane_status st = integer(t, 0, &in[1]);
  if (!st) st = integer(t, 1, &in[2]);
  return st ? st : mil_step(t, op, ANE_PRIM_range_1d, in, 3, out);
}

/* Gathers element i stride + j as element (i, j) of two new axes. */
static ane_status sliding_windows(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "axis", "size", "?stride"};
  int32_t in[4], one, axes, n = INTERP_NONE, starts[3], offsets;
  ane_status st = params(t, op, names, 4, in);
  if (!st) st = integer(t, 1, &one);
  if (!st) st = integers(t, (int64_t[]){1}, 1, &axes);
  if (!st) st = step(t, op, ANE_PRIM_shape, in[0], INTERP_NONE, &n);
  if (!st) st = step(t, op, ANE_PRIM_gather, n, in[1], &n);
  if (!st) st = step(t, op, ANE_PRIM_sub, n, in[2], &n);
  if (!st) st = step(t, op, ANE_PRIM_add, n, one, &starts[0]);
  if (!st) st = integer(t, 0, &starts[1]);
  if (!st) starts[2] = in[3] == INTERP_NONE ? one : in[3];
  if (!st) st = mil_step(t, op, ANE_PRIM_range_1d, starts, 3, &n);
  if (!st) st = step(t, op, ANE_PRIM_expand_dims, n, axes, &n);
  if (!st) st = positions(t, op, in[2], &offsets);
  if (!st) st = step(t, op, ANE_PRIM_add, n, offsets, &n);
  const int32_t gather[] = {in[0], n, in[1]};
  return st ? st : last(t, op, ANE_PRIM_gather, true, gather, 3);
}

/* Gathers element p < length ? length - 1 - p : p along seq_axis. Lengths may be of 8 bits, so they are the second operands. */
static ane_status reverse_sequence(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "lengths", "?seq_axis", "?batch_axis"};
  int32_t in[4], rank, shape = INTERP_NONE, p = INTERP_NONE, back = INTERP_NONE, seq_axis, minus, within = INTERP_NONE, gather[3];
  int64_t seq = 0, batch = 0;
  ane_status st = params(t, op, names, 4, in);
  if (!st) st = declared_rank(t, op, 1, ANE_DYN_RANK, &rank);
  if (!st) st = whole_axis(t, op, "seq_axis", rank, &seq);
  if (!st) st = whole_axis(t, op, "batch_axis", rank, &batch);
  if (!st) st = integer(t, seq, &seq_axis);
  if (!st) st = integer(t, -1, &minus);
  if (!st) st = step(t, op, ANE_PRIM_shape, in[0], INTERP_NONE, &shape);
  if (!st) st = step(t, op, ANE_PRIM_gather, shape, seq_axis, &p);
  if (!st) st = positions(t, op, p, &p);
  if (!st) st = along(t, op, p, seq, rank, &p);
  if (!st) st = along(t, op, in[1], batch, rank, &in[1]);
  if (!st) st = step(t, op, ANE_PRIM_less, p, in[1], &within);
  if (!st) st = step(t, op, ANE_PRIM_sub, p, in[1], &back);
  if (!st) st = step(t, op, ANE_PRIM_sub, minus, back, &back);
  const int32_t choice[] = {within, back, p};
  if (!st) st = mil_step(t, op, ANE_PRIM_select, choice, 3, &p);
  if (!st) gather[0] = in[0], gather[2] = seq_axis;
  if (!st) st = step(t, op, ANE_PRIM_expand, p, shape, &gather[1]);
  return st ? st : last(t, op, ANE_PRIM_gather_along_axis, true, gather, 3);
}

static ane_status crop(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "crop_height", "crop_width"};
  static const int64_t axes[] = {-2, -1};
  int32_t in[4];
  int64_t crop[4] = {0}; /* before and after: height, width */
  ane_status st = params(t, op, names, 3, in);
  if (!st) st = whole(t, op, "crop_height", 2, crop);
  if (!st) st = whole(t, op, "crop_width", 2, crop + 2);
  for (int i = 0; !st && i < 4; i++)
    if (crop[i] < 0 || crop[i] > INT32_MAX) st = mil_op_fail(t, op, ANE_INVALID, "crops %" PRId64 " elements", crop[i]);
  if (st) return st;
  const int64_t from[] = {crop[0], crop[2]}, to[] = {crop[1] ? -crop[1] : INT32_MAX, crop[3] ? -crop[3] : INT32_MAX};
  st = integers(t, from, 2, &in[1]);
  if (!st) st = integers(t, to, 2, &in[2]);
  if (!st) st = integers(t, axes, 2, &in[3]);
  return st ? st : last(t, op, ANE_PRIM_slice_by_axes, true, in, 4);
}

/* ---- Blocks of pixels ----------------------------------------------------------------------------------------------*/

/* Computes n sizes from the shape of x [n, c, h, w] and the factor f: each is a letter of `what`. */
static ane_status sizes(struct mil_import *t, const struct ane_mil_op *op, int32_t shape, const char *what, int64_t f,
                        int32_t *out) {
  static const struct {
    char name;
    int axis, times, over; /* dimension f^times / f^over; axis -1: f */
  } letters[] = {{'n', 0, 0, 0}, {'c', 1, 0, 0}, {'h', 2, 0, 0}, {'w', 3, 0, 0}, {'C', 1, 0, 2}, {'H', 2, 0, 1},
                 {'W', 3, 0, 1}, {'D', 1, 2, 0}, {'U', 2, 1, 0}, {'V', 3, 1, 0}, {'f', -1, 0, 0}};
  const int64_t power[] = {1, f, f * f};
  int64_t list[4][6], n = 0;
  int32_t value[4], v = shape;
  for (; what[n]; n++)
    for (size_t k = 0; k < ANE_COUNT(letters); k++) {
      if (letters[k].name != what[n]) continue;
      bool own = letters[k].axis < 0;
      list[0][n] = own ? 0 : letters[k].axis, list[1][n] = own ? 0 : power[letters[k].times];
      list[2][n] = power[letters[k].over], list[3][n] = own ? f : 0;
    }
  static const ane_prim prims[] = {ANE_PRIM_gather, ANE_PRIM_mul, ANE_PRIM_floor_div, ANE_PRIM_add};
  ane_status st = ANE_OK;
  for (int k = 0; !st && k < 4; k++) {
    st = integers(t, list[k], n, &value[k]);
    if (!st) st = step(t, op, prims[k], v, value[k], &v);
  }
  *out = v;
  return st;
}

/* Splits axes of x [n, c, h, w], changes their order, and joins them. A size that f does not divide fails in the reshapes. */
static ane_status blocks(struct mil_import *t, const struct ane_mil_op *op) {
  static const struct {
    const char *op, *factor, *split;
    int64_t perm[6];
    const char *joined;
  } kinds[] = {{"pixel_shuffle", "upscale_factor", "nCffhw", {0, 1, 4, 2, 5, 3}, "nCUV"},
               {"depth_to_space", "block_size", "nffChw", {0, 3, 4, 1, 5, 2}, "nCUV"},
               {"pixel_unshuffle", "downscale_factor", "ncHfWf", {0, 1, 3, 5, 2, 4}, "nDHW"},
               {"space_to_depth", "block_size", "ncHfWf", {0, 3, 5, 1, 2, 4}, "nDHW"}};
  int32_t in[2], shape = INTERP_NONE, perm, y[3];
  int64_t f = 1;
  size_t k = 0;
  while (strcmp(kinds[k].op, op->type) != 0) k++;
  const char *const names[] = {"x", kinds[k].factor};
  ane_status st = params(t, op, names, 2, in);
  if (!st) st = whole(t, op, kinds[k].factor, 1, &f);
  if (!st && (f < 1 || f > INT32_MAX)) st = mil_op_fail(t, op, ANE_INVALID, "%s is %" PRId64, kinds[k].factor, f);
  if (!st) st = integer(t, 1, &y[2]);
  if (!st) st = integers(t, kinds[k].perm, 6, &perm);
  if (!st) st = step(t, op, ANE_PRIM_shape, in[0], INTERP_NONE, &shape);
  y[0] = in[0];
  if (!st) st = sizes(t, op, shape, kinds[k].split, f, &y[1]);
  if (!st) st = mil_step(t, op, ANE_PRIM_reshape, y, 3, &y[0]);
  if (!st) st = step(t, op, ANE_PRIM_transpose, y[0], perm, &y[0]);
  if (!st) st = sizes(t, op, shape, kinds[k].joined, f, &y[1]);
  return st ? st : last(t, op, ANE_PRIM_reshape, true, y, 3);
}

/* Translates upsample_nearest_neighbor and upsample_bilinear. The declared sizes count, if they are known: those of scales may
 * depend on how the product was rounded. */
static ane_status upsample(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "?scale_factor_height", "?scale_factor_width", "?align_corners",
                                      "?half_pixel_centers"};
  bool nearest = strcmp(op->type, "upsample_nearest_neighbor") == 0;
  int32_t in[5], rank, to[9] = {0, INTERP_NONE, INTERP_NONE, INTERP_NONE, INTERP_NONE, INTERP_NONE, INTERP_NONE};
  ane_status st = params(t, op, names, nearest ? 3 : 5, in);
  if (!st) st = declared_rank(t, op, 2, ANE_DYN_RANK, &rank);
  for (int i = 0; !st && i < 2; i++) {
    int64_t size = op->outputs[0].type.dim[rank - 2 + i];
    to[3 + i] = in[1 + i];
    if (to[3 + i] == INTERP_NONE) st = number(t, 1, &to[3 + i]);
    if (!st && size >= 0) st = integer(t, size, &to[1 + i]);
  }
  if (st) return st;
  to[0] = in[0];
  if (nearest) {
    st = interp_text(t->g, "nearest", 7, &to[5], t->err);
    if (!st) st = interp_text(t->g, "DEFAULT", 7, &to[6], t->err);
    return st ? st : last(t, op, ANE_PRIM_resize, true, to, 7);
  }
  to[7] = in[3], to[8] = in[4];
  if (to[7] == INTERP_NONE) st = integer(t, 1, &to[7]);
  return st ? st : last(t, op, ANE_PRIM_resize, false, to, 9);
}

/* Returns a parameter that is a constant text; `def` if it is absent, NULL if it is something else. */
static const char *constant_text(const struct mil_import *t, const struct ane_mil_op *op, const char *name, const char *def) {
  if (!ane_mil_op_arg(op, name)) return def;
  const struct ane_mil_value *v = mil_const_stored(t, op, name);
  return v && v->kind == ANE_MIL_STRINGS && v->type.rank == 0 ? v->strings[0] : NULL;
}

/* Translates resize (iOS17) of two axes. A size of 0 is that of x. The nearest element holds the middle of the new one, as in
 * resize_nearest_neighbor: coremltools' values for its default sampling mode say so, there are none for the others. */
static ane_status resize(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "shape", "resized_dims", "?interpolation_mode", "?sampling_mode"};
  int32_t in[5], zero, shape = INTERP_NONE, to[7] = {0, 0, 0, INTERP_NONE, INTERP_NONE};
  int64_t dims = 0;
  ane_status st = params(t, op, names, 5, in);
  if (!st) st = whole(t, op, "resized_dims", 1, &dims);
  if (st) return st;
  const char *mode = constant_text(t, op, "interpolation_mode", "LINEAR"), *s = constant_text(t, op, "sampling_mode", "DEFAULT");
  bool nearest = mode && strcmp(mode, "NEAREST_NEIGHBOR") == 0;
  if (dims != 2) return mil_op_fail(t, op, ANE_UNSUPPORTED, "resized_dims is %" PRId64 "; only 2 is supported", dims);
  if (!mode || !s || (!nearest && strcmp(mode, "LINEAR") != 0) || (nearest && strcmp(s, "DEFAULT") != 0))
    return mil_op_fail(t, op, ANE_UNSUPPORTED, "its interpolation_mode or sampling_mode is not supported");
  to[0] = in[0];
  st = integer(t, 0, &zero);
  if (!st) st = step(t, op, ANE_PRIM_shape, in[0], INTERP_NONE, &shape);
  for (int i = 0; !st && i < 2; i++) {
    int32_t axis, given = INTERP_NONE, own = INTERP_NONE, choice[3];
    st = integer(t, i - 2, &axis);
    if (!st) st = step(t, op, ANE_PRIM_gather, in[1], axis, &given);
    if (!st) st = step(t, op, ANE_PRIM_gather, shape, axis, &own);
    if (!st) st = step(t, op, ANE_PRIM_equal, given, zero, &choice[0]);
    choice[1] = own, choice[2] = given;
    if (!st) st = mil_step(t, op, ANE_PRIM_select, choice, 3, &to[1 + i]);
  }
  const char *prim_mode = nearest ? "nearest" : "linear", *sampling = nearest ? "UNALIGN_CORNERS" : s;
  if (!st) st = interp_text(t->g, prim_mode, strlen(prim_mode), &to[5], t->err);
  if (!st) st = interp_text(t->g, sampling, strlen(sampling), &to[6], t->err);
  return st ? st : last(t, op, ANE_PRIM_resize, nearest, to, 7);
}

ane_status mil_compose(struct mil_import *t, const struct ane_mil_op *op, bool *done) {
  static const struct {
    const char *name;
    ane_status (*import)(struct mil_import *t, const struct ane_mil_op *op);
  } list[] = {
      {"reshape", reshape},
      {"fill_like", fill_like},
      {"linear", linear},
      {"relu6", relu6},
      {"exp2", exp2_op},
      {"linear_activation", linear_activation},
      {"reduce_log_sum", reduce_log_sum},
      {"reshape_like", reshape_like},
      {"batch_norm", batch_norm},
      {"instance_norm", instance_norm},
      {"l2_norm", l2_norm},
      {"local_response_norm", local_response_norm},
      {"prelu", prelu},
      {"scaled_tanh", scaled_tanh},
      {"softplus_parametric", softplus_parametric},
      {"thresholded_relu", thresholded_relu},
      {"band_part", band_part},
      {"argsort", argsort},
      {"one_hot", one_hot},
      {"scatter", scatter},
      {"sliding_windows", sliding_windows},
      {"reverse_sequence", reverse_sequence},
      {"crop", crop},
      {"pixel_shuffle", blocks},
      {"pixel_unshuffle", blocks},
      {"depth_to_space", blocks},
      {"space_to_depth", blocks},
      {"upsample_nearest_neighbor", upsample},
      {"upsample_bilinear", upsample},
      {"resize", resize},
  };
  *done = false;
  for (size_t i = 0; i < ANE_COUNT(list); i++) {
    if (strcmp(list[i].name, op->type) != 0) continue;
    *done = true;
    return list[i].import(t, op);
  }
  return ANE_OK;
}
