/* Checks inputs of a Core ML function against their declarations: type, rank, dimensions, ranges. Absent inputs get their
 * defaults. */
#include "interp/interp_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_float(ane_dtype t) { return t == ANE_F32 || t == ANE_F16 || t == ANE_BF16 || t == ANE_F64; }

/* Bytes of a text such as "1..4 elements". */
enum { BOUNDS_TEXT = 64 };

static bool in_range(const struct ane_mil_feature *f, const struct ane_dyn *t, int32_t *axis) {
  for (*axis = 0; *axis < t->rank; ++*axis)
    if (t->dim[*axis] < f->low[*axis] || (f->high[*axis] >= 0 && t->dim[*axis] > f->high[*axis])) return false;
  return true;
}

static bool is_listed(const struct ane_mil_feature *f, const struct ane_dyn *t) {
  for (uint32_t i = 0; i < f->n_shapes; i++) {
    bool same = f->shapes[i].rank == t->rank;
    for (int32_t k = 0; same && k < t->rank; k++) same = f->shapes[i].dim[k] == t->dim[k];
    if (same) return true;
  }
  return false;
}

static ane_status check_shape(const struct ane_interp *g, int32_t i, const struct ane_dyn *t, struct ane_error *err) {
  const struct ane_onnx_io *io = &g->io_in[i];
  const struct ane_mil_feature *f = g->features[i];
  char text[ANE_DYN_TEXT], want[ANE_DYN_TEXT];
  struct ane_dyn declared = {.dtype = io->dtype, .rank = io->rank};
  memcpy(declared.dim, io->dim, (size_t)io->rank * sizeof *io->dim);
  bool ok = t->rank == io->rank;
  for (int32_t k = 0; ok && k < t->rank; k++) ok = t->dim[k] >= 0 && (io->dim[k] < 0 || io->dim[k] == t->dim[k]);
  if (!ok)
    return ane_fail(err, ANE_SHAPE, "input %.100s must be %s, but is %s", io->name, ane_dyn_text(&declared, want),
                    ane_dyn_text(t, text));
  int32_t axis;
  if (f && f->flexibility == ANE_MIL_RANGE && f->shape.rank == t->rank && !in_range(f, t, &axis)) {
    char most[BOUNDS_TEXT] = "any number";
    if (f->high[axis] >= 0) snprintf(most, sizeof most, "%" PRId64, f->high[axis]);
    return ane_fail(err, ANE_SHAPE, "input %.100s must have %" PRId64 " to %s elements along axis %d, but is %s", io->name,
                    f->low[axis], most, (int)axis, ane_dyn_text(t, text));
  }
  if (f && f->flexibility == ANE_MIL_ENUMERATED && !is_listed(f, t))
    return ane_fail(err, ANE_SHAPE, "input %.100s is %s, which is none of its %" PRIu32 " shapes", io->name,
                    ane_dyn_text(t, text), f->n_shapes);
  return ANE_OK;
}

/* Sets the smallest and the largest number of an integer type; false for other types. */
static bool bounds(ane_dtype t, double *low, double *high) {
  unsigned bits = 8 * ane_dtype_info(t)->bytes;
  bool sign = t == ANE_I8 || t == ANE_I16 || t == ANE_I32 || t == ANE_I64;
  if (is_float(t) || t == ANE_BOOL) return false;
  *low = sign ? -ldexp(1, (int)bits - 1) : 0;
  *high = sign ? ldexp(1, (int)bits - 1) : ldexp(1, (int)bits);
  return true;
}

/* Returns element i as a number. 64-bit integers beyond 2^53 lose their last bits, which no check here needs. */
static double element(const struct ane_dyn *t, int64_t i) {
  const uint8_t *p = (const uint8_t *)t->data + (size_t)i * ane_dtype_info(t->dtype)->bytes;
  int64_t v = 0;
  float f;
  switch (t->dtype) {
    case ANE_F32: memcpy(&f, p, sizeof f); return (double)f;
    case ANE_I8: return (double)(int8_t)*p;
    case ANE_U8: return (double)*p;
    case ANE_BOOL: return *p != 0;
    case ANE_I16: return (double)(int16_t)ane_load_u16(p);
    case ANE_U16: return (double)ane_load_u16(p);
    case ANE_I32: return (double)(int32_t)ane_load_u32(p);
    case ANE_U32: return (double)ane_load_u32(p);
    default: memcpy(&v, p, sizeof v); return (double)v;
  }
}

/* Converts numbers of another type, if each of them is one of the declared type. */
static ane_status check_numbers(const struct ane_onnx_io *io, const struct ane_dyn *t, struct ane_error *err) {
  double low, high;
  if (io->dtype == t->dtype || !bounds(io->dtype, &low, &high)) return ANE_OK;
  for (int64_t i = 0; i < t->count; i++) {
    double v = element(t, i);
    if (v != floor(v) || v < low || v >= high)
      return ane_fail(err, ANE_INVALID, "input %.100s: element %" PRId64 " is %g, no %s", io->name, i, v,
                      ane_dtype_info(io->dtype)->name);
  }
  return ANE_OK;
}

static ane_status cast(const struct ane_interp *g, const struct ane_dyn *in, ane_dtype to, struct ane_dyn_memory *m,
                       struct ane_dyn *out, struct ane_error *err) {
  const char *name = ane_dtype_info(to)->name;
  struct ane_dyn text = {
      .dtype = ANE_U8, .rank = 1, .dim = {(int64_t)strlen(name)}, .count = (int64_t)strlen(name), .data = name};
  const struct ane_dyn *args[2] = {in, &text};
  struct ane_prim_call c = {.op = ANE_PRIM_cast,
                            .in = args,
                            .n_in = 2,
                            .out = out,
                            .n_out = 1,
                            .memory = m,
                            .kernels = g->kernels,
                            .pool = g->pool,
                            .err = err};
  ane_status st = ane_prim_run(&c);
  if (st) ane_dyn_drop(m, out);
  return st;
}

/* Fills an absent input with its default, if it has one. */
static ane_status fill_default(const struct ane_interp *g, int32_t i, struct ane_dyn_memory *m, struct ane_dyn *out,
                               struct ane_error *err) {
  const struct ane_mil_feature *f = g->features[i];
  const struct ane_onnx_io *io = &g->io_in[i];
  if (!f || !f->optional || !f->default_kind) return ane_fail(err, ANE_INVALID, "input %.100s is missing", io->name);
  struct ane_dyn d = {.dtype = ANE_F32, .rank = f->shape.rank};
  memcpy(d.dim, f->shape.dim, (size_t)d.rank * sizeof *d.dim);
  ane_status st = ane_dyn_alloc(m, &d, err);
  if (st) return st;
  for (int64_t k = 0; k < d.count; k++) ((float *)ane_dyn_data(&d))[k] = (float)f->default_value;
  if (io->rank == 0) d.rank = 0;
  *out = d;
  if (is_float(io->dtype)) return ANE_OK;
  st = cast(g, &d, io->dtype, m, out, err);
  ane_dyn_drop(m, &d);
  return st;
}

ane_status interp_input(const struct ane_interp *g, int32_t i, const struct ane_dyn *in, struct ane_dyn_memory *m,
                        struct ane_dyn *out, struct ane_error *err) {
  const struct ane_onnx_io *io = &g->io_in[i];
  struct ane_dyn t = *in;
  *out = (struct ane_dyn){0};
  if (!t.data && t.rank == 0 && t.count == 0) return fill_default(g, i, m, out, err);
  if (io->rank == 0 && t.rank == 1 && t.dim[0] == 1) t.rank = 0; /* described with the shape [1]: a scalar */
  ane_status st = check_shape(g, i, &t, err);
  if (st) return st;
  if (ane_dtype_info(t.dtype)->block != 1 || t.dtype == ANE_F8E4M3 || t.dtype == ANE_F8E5M2)
    return ane_fail(err, ANE_UNSUPPORTED, "input %.100s is of type %s", io->name, ane_dtype_info(t.dtype)->name);
  bool floats = is_float(io->dtype), half = g->options.fp16 && io->dtype == ANE_F16;
  struct ane_dyn as = t;
  ane_dyn_keep(in);
  if (is_float(t.dtype) && t.dtype != ANE_F32) { /* integers are checked as numbers below */
    st = cast(g, &t, ANE_F32, m, &as, err);
    ane_dyn_drop(m, &t);
    if (st) return st;
  }
  if (!floats) st = check_numbers(io, &as, err);
  ane_dtype to = floats ? ANE_F32 : io->dtype;
  struct ane_dyn result = as;
  if (!st && as.dtype != to) {
    st = cast(g, &as, to, m, &result, err);
    ane_dyn_drop(m, &as);
  }
  if (st) return ane_dyn_drop(m, &as), st;
  if (half) {
    const struct ane_mil_type type = ane_mil_tensor_type(ANE_MIL_FP16, result.rank, result.dim);
    const struct interp_result r = {ANE_F32, true, &type};
    const struct interp_node n = {.name = io->name, .results = &r};
    st = interp_settle((struct ane_interp *)(uintptr_t)g, &n, 0, m, &result, err);
    if (st) return ane_dyn_drop(m, &result), st;
  }
  *out = result;
  return ANE_OK;
}
