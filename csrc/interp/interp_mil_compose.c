/* MIL ops that become several primitives, or one of another name. */
#include "interp/interp_mil.h"

#include <inttypes.h>
#include <string.h>

static ane_status last(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, bool moves, const int32_t *in,
                       int32_t n_in) {
  int32_t *out;
  if (op->n_outputs != 1) return mil_op_fail(t, op, ANE_FORMAT, "has %" PRIu32 " outputs, but must have one", op->n_outputs);
  ane_status st = mil_outputs(t, op, &out);
  return st ? st : mil_add(t, op, prim, moves, in, n_in, out);
}

/* Reads parameters in order; a '?' marks optional ones. Other parameters of the op are refused. */
static ane_status params(struct mil_import *t, const struct ane_mil_op *op, const char *const *names, int32_t n, int32_t *out) {
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

/* Makes a float constant. */
static ane_status number(struct mil_import *t, float v, int32_t *out) { return interp_float(t->g, v, out, t->err); }

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

/* log(sum(x)) */
static ane_status reduce_log_sum(struct mil_import *t, const struct ane_mil_op *op) {
  static const char *const names[] = {"x", "?axes", "?keep_dims"};
  int32_t in[3], sum;
  ane_status st = params(t, op, names, 3, in);
  if (!st) st = mil_step(t, op, ANE_PRIM_reduce_sum, in, 3, &sum);
  return st ? st : last(t, op, ANE_PRIM_log, false, &sum, 1);
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
  };
  *done = false;
  for (size_t i = 0; i < ANE_COUNT(list); i++) {
    if (strcmp(list[i].name, op->type) != 0) continue;
    *done = true;
    return list[i].import(t, op);
  }
  return ANE_OK;
}
