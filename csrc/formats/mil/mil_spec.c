/* Facts about MIL's types, looking things up, elements of values. */
#include "formats/mil/mil_spec.h"

#include "formats/formats_internal.h"
#include "tensor/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Element types -------------------------------------------------------------------------------------------------*/

static const struct dtype_row {
  const char *name;
  int32_t number;
  uint32_t bits, blob;
  ane_dtype plain;
} dtypes[] = {
#define ANE_MIL_DTYPE(id, number, name, bits, blob, field, dtype) {name, number, bits, blob, dtype},
#include "formats/mil/mil_dtype.def"
#undef ANE_MIL_DTYPE
};

static const struct dtype_row *row_of(ane_mil_dtype t) {
  static const struct dtype_row none = {"?", 0, 0, 0, ANE_DTYPE_COUNT};
  for (size_t i = 0; i < ANE_COUNT(dtypes); i++)
    if (dtypes[i].number == (int32_t)t) return &dtypes[i];
  return &none;
}

const char *ane_mil_dtype_name(ane_mil_dtype t) { return row_of(t)->name; }
uint32_t ane_mil_dtype_bits(ane_mil_dtype t) { return row_of(t)->bits; }
uint32_t ane_mil_dtype_blob(ane_mil_dtype t) { return row_of(t)->blob; }
ane_dtype ane_mil_dtype_plain(ane_mil_dtype t) { return row_of(t)->plain; }

bool ane_mil_bytes(ane_mil_dtype t, uint64_t n, uint64_t *bytes) {
  uint64_t bits = row_of(t)->bits;
  if (!bits || !ane_mul_u64(n, bits, bytes)) return false;
  *bytes = *bytes / 8 + (*bytes % 8 != 0);
  return true;
}

/* ---- Types ---------------------------------------------------------------------------------------------------------*/

struct ane_mil_type ane_mil_tensor_type(ane_mil_dtype dtype, int32_t rank, const int64_t *dim) {
  struct ane_mil_type t = {.kind = ANE_MIL_TENSOR, .dtype = dtype, .rank = rank};
  for (int32_t i = 0; i < rank && i < ANE_MIL_RANK; i++) t.dim[i] = dim[i];
  return t;
}

bool ane_mil_type_equal(const struct ane_mil_type *a, const struct ane_mil_type *b) {
  if (a->kind != b->kind) return false;
  if (a->kind == ANE_MIL_TENSOR || a->kind == ANE_MIL_STATE) {
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    return a->rank <= 0 || memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
  }
  if (a->n_items != b->n_items || (a->kind == ANE_MIL_LIST && a->length != b->length)) return false;
  for (uint32_t i = 0; i < a->n_items; i++)
    if (!ane_mil_type_equal(&a->items[i], &b->items[i])) return false;
  return true;
}

/* ---- Elements ------------------------------------------------------------------------------------------------------*/

/* The n < 8 bits of element i of a bit stream. */
static uint32_t stream_bits(const uint8_t *p, uint32_t n, uint64_t i) {
  uint64_t bit = i * n;
  uint32_t shift = (uint32_t)(bit & 7), v = p[bit >> 3];
  if (shift + n > 8) v |= (uint32_t)p[(bit >> 3) + 1] << 8;
  return v >> shift & ((1u << n) - 1);
}

/* Either an integer (true) or a float. uint64 values above the range saturate. */
static bool element(const struct ane_mil_value *v, uint64_t i, int64_t *n, double *f) {
  const uint8_t *p = v->data;
  uint32_t bits = ane_mil_dtype_bits(v->type.dtype);
  if (!p || i >= v->count) return *n = 0, true;
  if (bits < 8) {
    *n = stream_bits(p, bits, i);
    if (v->type.dtype == ANE_MIL_INT4 && *n > 7) *n -= 16;
    return true;
  }
  p += i * (bits / 8);
  switch (v->type.dtype) {
    case ANE_MIL_INT8: return *n = *p < 128 ? *p : *p - 256, true;
    case ANE_MIL_INT16: return *n = (int16_t)ane_load_u16(p), true;
    case ANE_MIL_INT32: return *n = (int32_t)ane_load_u32(p), true;
    case ANE_MIL_INT64: return *n = (int64_t)ane_load_u64(p), true;
    case ANE_MIL_UINT16: return *n = ane_load_u16(p), true;
    case ANE_MIL_UINT32: return *n = ane_load_u32(p), true;
    case ANE_MIL_UINT64: {
      uint64_t u = ane_load_u64(p);
      *n = (int64_t)ANE_MIN(u, (uint64_t)INT64_MAX);
      *f = (double)u;
      return u <= INT64_MAX;
    }
    case ANE_MIL_FP16: return *f = (double)ane_f16_f32(ane_load_u16(p)), false;
    case ANE_MIL_BF16: return *f = (double)ane_bf16_f32(ane_load_u16(p)), false;
    case ANE_MIL_FP32: return *f = (double)ane_bits_f32(ane_load_u32(p)), false;
    case ANE_MIL_FP64: {
      uint64_t u = ane_load_u64(p);
      memcpy(f, &u, sizeof *f);
      return false;
    }
    case ANE_MIL_FP8E4M3: return *f = (double)ane_f8e4m3_f32(*p), false;
    case ANE_MIL_FP8E5M2: return *f = (double)ane_f8e5m2_f32(*p), false;
    default: return *n = *p, true; /* bool, uint8 */
  }
}

double ane_mil_number(const struct ane_mil_value *v, uint64_t i) {
  int64_t n;
  double f;
  return element(v, i, &n, &f) ? (double)n : f;
}

int64_t ane_mil_integer(const struct ane_mil_value *v, uint64_t i) {
  int64_t n;
  double f;
  if (element(v, i, &n, &f)) return n;
  if (isnan(f)) return 0;
  if (f >= 0x1p63) return INT64_MAX;
  return f < -0x1p63 ? INT64_MIN : (int64_t)f;
}

/* ---- Looking up ----------------------------------------------------------------------------------------------------*/

const struct ane_mil_value *ane_mil_op_attr(const struct ane_mil_op *op, const char *name) {
  for (uint32_t i = 0; i < op->n_attrs; i++)
    if (strcmp(op->attrs[i].name, name) == 0) return &op->attrs[i].value;
  return NULL;
}

const struct ane_mil_arg *ane_mil_op_arg(const struct ane_mil_op *op, const char *name) {
  for (uint32_t i = 0; i < op->n_inputs; i++)
    if (strcmp(op->inputs[i].name, name) == 0) return &op->inputs[i];
  return NULL;
}

const struct ane_mil_function *ane_mil_function(const struct ane_mil_model *m, const char *name) {
  for (uint32_t i = 0; i < m->program.n_functions; i++)
    if (strcmp(m->program.functions[i].name, name) == 0) return &m->program.functions[i];
  return NULL;
}

const struct ane_mil_interface *ane_mil_interface(const struct ane_mil_model *m, const char *name) {
  for (uint32_t i = 0; i < m->n_interfaces; i++)
    if (strcmp(m->interfaces[i].name, name) == 0) return &m->interfaces[i];
  return NULL;
}

const struct ane_mil_feature *ane_mil_feature(const struct ane_mil_feature *list, uint32_t n, const char *name) {
  for (uint32_t i = 0; i < n; i++)
    if (strcmp(list[i].name, name) == 0) return &list[i];
  return NULL;
}

/* coremltools 9.0: target.py, _OPSET. */
static const char *const opsets[] = {"CoreML5", "CoreML6", "CoreML7", "CoreML8", "CoreML9"};

const char *ane_mil_opset(int32_t version) {
  return version < ANE_MIL_MIN_VERSION || version > ANE_MIL_MAX_VERSION ? NULL : opsets[version - ANE_MIL_MIN_VERSION];
}

int32_t ane_mil_opset_version(const char *opset) {
  for (int32_t v = ANE_MIL_MIN_VERSION; v <= ANE_MIL_MAX_VERSION; v++)
    if (strcmp(ane_mil_opset(v), opset) == 0) return v;
  return 0;
}

const char *ane_mil_op_text(char out[ANE_MIL_OP_TEXT], const struct ane_mil_op *op) {
  char type[ANE_QUOTE_TEXT], name[ANE_QUOTE_TEXT];
  ane_quote(type, op->type, strlen(op->type));
  const char *first = op->n_outputs ? op->outputs[0].name : "";
  snprintf(out, ANE_MIL_OP_TEXT, *first ? "op %s (%s)" : "op %s", type, ane_quote(name, first, strlen(first)));
  return out;
}

/* ---- Walking over all values -----------------------------------------------------------------------------------------*/

struct each {
  ane_mil_value_fn fn;
  void *arg;
  const struct ane_mil_function *f;
};

static ane_status each_value(const struct each *e, const struct ane_mil_op *op, const char *name, const struct ane_mil_value *v) {
  ane_status st = e->fn(e->arg, e->f, op, name, v);
  for (uint64_t i = 0; !st && v->kind == ANE_MIL_ITEMS && i < v->count; i++) st = each_value(e, op, name, &v->items[i]);
  return st;
}

static ane_status each_attr(const struct each *e, const struct ane_mil_op *op, const struct ane_mil_attr *list, uint32_t n) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < n; i++) st = each_value(e, op, list[i].name, &list[i].value);
  return st;
}

static ane_status each_block(const struct each *e, const struct ane_mil_block *b) {
  ane_status st = each_attr(e, NULL, b->attrs, b->n_attrs);
  for (uint32_t i = 0; !st && i < b->n_ops; i++) {
    const struct ane_mil_op *op = &b->ops[i];
    for (uint32_t j = 0; !st && j < op->n_inputs; j++) {
      const struct ane_mil_arg *arg = &op->inputs[j];
      for (uint32_t k = 0; !st && k < arg->n_bindings; k++)
        if (arg->bindings[k].value) st = each_value(e, op, arg->name, arg->bindings[k].value);
    }
    if (!st) st = each_attr(e, op, op->attrs, op->n_attrs);
    for (uint32_t j = 0; !st && j < op->n_blocks; j++) st = each_block(e, &op->blocks[j]);
  }
  return st;
}

ane_status ane_mil_each_value(const struct ane_mil_model *m, ane_mil_value_fn fn, void *arg) {
  struct each e = {fn, arg, NULL};
  ane_status st = each_attr(&e, NULL, m->program.attrs, m->program.n_attrs);
  for (uint32_t i = 0; !st && i < m->program.n_functions; i++) {
    e.f = &m->program.functions[i];
    st = each_attr(&e, NULL, e.f->attrs, e.f->n_attrs);
    if (!st) st = each_block(&e, &e.f->block);
  }
  return st;
}
