/* constexpr_* operations: constants that are stored as codes. iOS16 has all parameters as attributes. iOS18 has inputs, bound to
 * values or to the outputs of other constexpr operations.
 * Codes with scales and codes with tables of numbers stay codes (struct ane_coded). All others become floats here. Tables are
 * in interp_mil_lut.c, masks in interp_mil_sparse.c. */
#include "interp/interp_mil_const.h"

#include "tensor/half.h"

#include <inttypes.h>
#include <string.h>

/* ---- Parameters ----------------------------------------------------------------------------------------------------*/

const struct ane_mil_value *mil_const_stored(const struct mil_import *t, const struct ane_mil_op *op, const char *name) {
  const struct ane_mil_value *v = ane_mil_op_attr(op, name);
  const struct ane_mil_arg *a = v ? NULL : ane_mil_op_arg(op, name);
  if (v || !a || a->n_bindings != 1) return v;
  if (a->bindings[0].value) return a->bindings[0].value;
  const struct mil_name *n = mil_find(t, a->bindings[0].name);
  return n ? n->raw : NULL;
}

const struct ane_mil_value *mil_const_tensor(const struct mil_import *t, const struct ane_mil_op *op, const char *name,
                                             int32_t rank) {
  const struct ane_mil_value *v = mil_const_stored(t, op, name);
  if (!v) {
    mil_op_fail(t, op, ANE_FORMAT, "parameter %s is missing, or no constant", name);
    return NULL;
  }
  bool ok = (v->kind == ANE_MIL_NUMBERS || v->kind == ANE_MIL_BLOB) && v->type.kind == ANE_MIL_TENSOR && v->type.rank <= rank &&
            (v->data || !v->count);
  if (!ok) mil_op_fail(t, op, ANE_FORMAT, "parameter %s is not a tensor of at most %d dimensions with data", name, (int)rank);
  return ok ? v : NULL;
}

float *mil_const_floats(struct mil_import *t, const struct ane_mil_value *v) {
  float *out = ane_arena_array(&t->g->arena, (size_t)v->count + 1, sizeof *out);
  if (!out) {
    interp_no_memory(t->err);
    return NULL;
  }
  for (uint64_t i = 0; i < v->count; i++) {
    uint16_t half;
    if (v->type.dtype == ANE_MIL_FP16)
      memcpy(&half, (const uint8_t *)v->data + 2 * i, 2), out[i] = ane_f16_f32(half);
    else
      out[i] = (float)ane_mil_number(v, i);
  }
  return out;
}

/* ---- Results -------------------------------------------------------------------------------------------------------*/

static bool same_shape(const struct ane_mil_type *type, int32_t rank, const int64_t *dim) {
  return type->kind == ANE_MIL_TENSOR && type->rank == rank && memcmp(type->dim, dim, (size_t)rank * sizeof *dim) == 0;
}

static bool rounds(const struct mil_import *t, const struct ane_mil_op *op, uint32_t k) {
  return t->g->options.fp16 && op->outputs[k].type.dtype == ANE_MIL_FP16;
}

ane_status mil_const_give_floats(struct mil_import *t, const struct ane_mil_op *op, uint32_t k, int32_t rank, const int64_t *dim,
                                 float *data, uint64_t n) {
  const struct ane_mil_named_type *out = &op->outputs[k];
  struct ane_mil_value *v = ane_arena_alloc(&t->g->arena, sizeof *v);
  if (!v) return interp_no_memory(t->err);
  if (!same_shape(&out->type, rank, dim))
    return mil_op_fail(t, op, ANE_SHAPE, "output %.100s is declared with another shape", out->name);
  for (uint64_t i = 0; rounds(t, op, k) && i < n; i++) data[i] = ane_f16_f32(ane_f32_f16(data[i]));
  *v = (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_FP32, rank, dim),
                              .kind = ANE_MIL_NUMBERS,
                              .count = n,
                              .data = data,
                              .bytes = n * sizeof *data};
  struct mil_name name = {.value = INTERP_NONE, .raw = v, .type = &out->type, .state = -1};
  ane_status st = mil_constant(t, out->name, v, &name.value);
  return st ? st : mil_define(t, out->name, &name);
}

ane_status mil_const_give_stored(struct mil_import *t, const struct ane_mil_op *op, uint32_t k, const struct ane_mil_value *v) {
  struct mil_name name = {.value = INTERP_NONE, .raw = v, .type = &op->outputs[k].type, .state = -1};
  if (!same_shape(&op->outputs[k].type, v->type.rank, v->type.dim))
    return mil_op_fail(t, op, ANE_SHAPE, "output %.100s is declared with another shape", op->outputs[k].name);
  ane_status st = mil_constant(t, op->outputs[k].name, v, &name.value);
  return st ? st : mil_define(t, op->outputs[k].name, &name);
}

/* Tables of at most this many elements are decoded, since other operations may need floats. */
enum { SMALL = 1 << 16 };

ane_status mil_const_give_codes(struct mil_import *t, const struct ane_mil_op *op, struct ane_coded *w) {
  /* analyser: w is given: what made it returned ANE_OK. */
  struct ane_dyn d = {.dtype = ANE_F32, .rank = w->rank, .count = 1, .coded = w};
  struct mil_name name = {.value = INTERP_NONE, .type = &op->outputs[0].type, .state = -1};
  if (!same_shape(&op->outputs[0].type, w->rank, w->dim))
    return mil_op_fail(t, op, ANE_SHAPE, "output %.100s is declared with another shape", op->outputs[0].name);
  for (int32_t i = 0; i < w->rank; i++) {
    d.dim[i] = w->dim[i];
    if (w->block[i] == 0) return mil_op_fail(t, op, ANE_SHAPE, "has no elements");
    d.count *= w->dim[i];
  }
  w->round = rounds(t, op, 0);
  int32_t rank = w->rank;
  ane_coded_simplify(w);
  if (d.count <= SMALL) {
    float *all = ane_arena_array(&t->g->arena, (size_t)d.count + 1, sizeof *all);
    if (!all) return interp_no_memory(t->err);
    ane_coded_read(w, 0, d.count, all);
    struct ane_mil_value *v = ane_arena_alloc(&t->g->arena, sizeof *v);
    if (!v) return interp_no_memory(t->err);
    *v = (struct ane_mil_value){
        .type = ane_mil_tensor_type(ANE_MIL_FP32, rank, d.dim), .kind = ANE_MIL_NUMBERS, .count = (uint64_t)d.count, .data = all};
    v->bytes = v->count * sizeof *all;
    name.raw = v;
  }
  ane_status st = interp_constant(t->g, op->outputs[0].name, &d, &name.value, t->err);
  return st ? st : mil_define(t, op->outputs[0].name, &name);
}

struct ane_coded *mil_const_codes(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *v) {
  struct ane_coded *w = ane_arena_alloc(&t->g->arena, sizeof *w);
  ane_mil_dtype d = v->type.dtype;
  bool known =
      d == ANE_MIL_FP16 || d == ANE_MIL_FP32 ||
      (ane_mil_dtype_bits(d) <= 8 && d != ANE_MIL_BOOL && d != ANE_MIL_STRING && d != ANE_MIL_FP8E4M3 && d != ANE_MIL_FP8E5M2);
  if (!w) {
    interp_no_memory(t->err);
    return NULL;
  }
  if (!known) {
    mil_op_fail(t, op, ANE_UNSUPPORTED, "codes of type %s", ane_mil_dtype_name(d));
    return NULL;
  }
  *w = (struct ane_coded){.codes = v->data,
                          .bits = (int)ane_mil_dtype_bits(d),
                          .is_signed = d == ANE_MIL_INT8 || d == ANE_MIL_INT4,
                          .rank = v->type.rank};
  for (int32_t i = 0; i < w->rank; i++) w->dim[i] = w->block[i] = v->type.dim[i];
  return w;
}

/* ---- Scales --------------------------------------------------------------------------------------------------------*/

/* iOS16: w = scale (q - zero_point). scale and zero_point are each one number, or one for each index of `axis`. */
static ane_status affine(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *q = mil_const_tensor(t, op, "quantized_data", ANE_DYN_RANK),
                             *s = mil_const_tensor(t, op, "scale", 1), *z = mil_const_tensor(t, op, "zero_point", 1),
                             *a = mil_const_tensor(t, op, "axis", 0);
  struct ane_coded *w = q && s && z && a ? mil_const_codes(t, op, q) : NULL;
  if (!w) return t->err->code;
  int64_t axis = ane_mil_integer(a, 0), n;
  if (axis < 0) axis += q->type.rank;
  if (axis < 0 || axis >= ANE_MAX(q->type.rank, 1))
    return mil_op_fail(t, op, ANE_INVALID, "axis is %" PRId64, ane_mil_integer(a, 0));
  n = q->type.rank ? q->type.dim[axis] : 1;
  uint64_t most = ANE_MAX(s->count, z->count);
  if ((s->count != 1 && s->count != (uint64_t)n) || (z->count != 1 && z->count != (uint64_t)n))
    return mil_op_fail(t, op, ANE_SHAPE, "%" PRIu64 " scales and %" PRIu64 " zero points for %" PRId64 " places of the axis",
                       s->count, z->count, n);
  if (most > 1) w->block[axis] = 1, w->step[axis] = 1;
  float *scale = mil_const_floats(t, s), *zero = scale ? mil_const_floats(t, z) : NULL;
  if (!zero) return ANE_NOMEM;
  if (most > 1 && (s->count == 1 || z->count == 1)) { /* one number for the whole axis */
    float *both = ane_arena_array(&t->g->arena, (size_t)most, sizeof *both), **single = s->count == 1 ? &scale : &zero;
    if (!both) return interp_no_memory(t->err);
    for (uint64_t i = 0; i < most; i++) both[i] = **single;
    *single = both;
  }
  w->scale = scale, w->offset = zero;
  return mil_const_give_codes(t, op, w);
}

ane_status mil_const_set_blocks(const struct mil_import *t, const struct ane_mil_op *op, struct ane_coded *w,
                                const int64_t *groups) {
  int64_t step = 1;
  for (int32_t k = w->rank - 1; k >= 0; k--) {
    if (groups[k] < 1 || w->dim[k] % groups[k])
      return mil_op_fail(t, op, ANE_SHAPE, "%" PRId64 " groups along axis %d of %" PRId64 " elements", groups[k], (int)k,
                         w->dim[k]);
    w->block[k] = w->dim[k] / groups[k];
    w->step[k] = groups[k] == 1 ? 0 : step;
    step *= groups[k];
  }
  return ANE_OK;
}

ane_status mil_const_scaled(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *data,
                            struct ane_coded **out) {
  *out = NULL;
  bool has_offset = mil_const_stored(t, op, "offset") || ane_mil_op_arg(op, "offset");
  const struct ane_mil_value *s = mil_const_tensor(t, op, "scale", ANE_DYN_RANK);
  const struct ane_mil_value *z = has_offset ? mil_const_tensor(t, op, "offset", ANE_DYN_RANK) : NULL;
  if (!s || (has_offset && !z)) return t->err->code;
  struct ane_coded *w = mil_const_codes(t, op, data);
  if (!w) return t->err->code;
  if (s->type.rank != w->rank || !mil_is_float(s->type.dtype))
    return mil_op_fail(t, op, ANE_SHAPE, "scale has %d dimensions of type %s, data %d", (int)s->type.rank,
                       ane_mil_dtype_name(s->type.dtype), (int)w->rank);
  if (z && !same_shape(&s->type, z->type.rank, z->type.dim))
    return mil_op_fail(t, op, ANE_SHAPE, "offset and scale differ in shape");
  ane_status st = mil_const_set_blocks(t, op, w, s->type.dim);
  if (st) return st;
  float *scale = mil_const_floats(t, s), *offset = scale && z ? mil_const_floats(t, z) : NULL;
  if (!scale || (z && !offset)) return ANE_NOMEM;
  w->scale = scale, w->offset = offset;
  *out = w;
  return ANE_OK;
}

static ane_status blockwise(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *data = mil_const_tensor(t, op, "data", ANE_DYN_RANK);
  struct ane_coded *w;
  if (!data) return t->err->code;
  ane_status st = mil_const_scaled(t, op, data, &w);
  return st ? st : mil_const_give_codes(t, op, w);
}

/* ---- Cast ----------------------------------------------------------------------------------------------------------*/

static ane_status cast(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *v = mil_const_tensor(t, op, "source_val", ANE_DYN_RANK);
  if (!v) return t->err->code;
  return mil_is_float(v->type.dtype) ? mil_const_give_stored(t, op, 0, v)
                                     : mil_op_fail(t, op, ANE_UNSUPPORTED, "source_val is %s", ane_mil_dtype_name(v->type.dtype));
}

/* ---- Dispatch ------------------------------------------------------------------------------------------------------*/

ane_status mil_constexpr(struct mil_import *t, const struct ane_mil_op *op, bool *done) {
  static const struct {
    const char *name;
    ane_status (*import)(struct mil_import *t, const struct ane_mil_op *op);
  } list[] = {
      {"constexpr_affine_dequantize", affine},
      {"constexpr_blockwise_shift_scale", blockwise},
      {"constexpr_lut_to_dense", mil_const_lut},
      {"constexpr_sparse_to_dense", mil_const_sparse},
      {"constexpr_sparse_blockwise_shift_scale", mil_const_sparse_scaled},
      {"constexpr_lut_to_sparse", mil_const_sparse_lut},
      {"constexpr_cast", cast},
  };
  *done = false;
  for (size_t i = 0; i < ANE_COUNT(list); i++) {
    if (strcmp(list[i].name, op->type) != 0) continue;
    *done = true;
    if (op->n_outputs < 1) return mil_op_fail(t, op, ANE_FORMAT, "has no output");
    return list[i].import(t, op);
  }
  return ANE_OK;
}
