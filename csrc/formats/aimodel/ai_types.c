/* Element types, tensor types and the rows of ai_op.def. */
#include "formats/aimodel/ai_internal.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct dtype_row {
  int code;
  const char *name;
  uint32_t bits;
};

static const struct dtype_row dtypes[] = {
#define ANE_AI_DTYPE(id, code, name, dialect, bits, dtype) {code, name, bits},
#include "formats/aimodel/ai_dtype.def"
#undef ANE_AI_DTYPE
};

const struct ai_row ai_rows[ANE_AI_OPS] = {
#define ANE_AI_OP(id, name, version, in, out, rule, body) [ANE_AI_##id] = {name, version, in, out, AI_BODY_##body},
#include "formats/aimodel/ai_op.def"
#undef ANE_AI_OP
};

static const struct dtype_row *row_of(ane_ai_dtype t) {
  for (size_t i = 0; i < ANE_COUNT(dtypes); i++)
    if (dtypes[i].code == (int)t) return &dtypes[i];
  return NULL;
}

const char *ane_ai_dtype_name(ane_ai_dtype t) {
  const struct dtype_row *r = row_of(t);
  return r ? r->name : "?";
}

uint32_t ane_ai_dtype_bits(ane_ai_dtype t) {
  const struct dtype_row *r = row_of(t);
  return r ? r->bits : 0;
}

bool ane_ai_bytes(ane_ai_dtype t, uint64_t n, uint64_t *bytes) {
  uint64_t bits = ane_ai_dtype_bits(t);
  if (!bits || n > (UINT64_MAX - 7) / bits) return false;
  *bytes = (n * bits + 7) / 8;
  return true;
}

const char *ane_ai_op_name(ane_ai_op_id id) { return id < ANE_AI_OPS ? ai_rows[id].name : NULL; }

struct ane_ai_type ane_ai_tensor(ane_ai_dtype dtype, int32_t rank, const int64_t *dim) {
  struct ane_ai_type t = {.kind = ANE_AI_TENSOR, .dtype = dtype, .rank = rank};
  for (int32_t i = 0; i < rank && i < ANE_AI_RANK; i++) t.dim[i] = dim[i];
  return t;
}

bool ane_ai_type_equal(const struct ane_ai_type *a, const struct ane_ai_type *b) {
  if (a->kind != b->kind) return false;
  if (a->kind == ANE_AI_TOKEN) return true;
  size_t dims = (size_t)a->rank * sizeof *a->dim;
  return a->dtype == b->dtype && a->rank == b->rank && memcmp(a->dim, b->dim, dims) == 0 &&
         memcmp(a->interleave, b->interleave, dims) == 0;
}

bool ane_ai_count(const struct ane_ai_type *t, uint64_t *count) { return ane_count_elements((uint32_t)t->rank, t->dim, count); }

const char *ane_ai_type_text(char out[ANE_AI_TYPE_TEXT], const struct ane_ai_type *t) {
  if (t->kind == ANE_AI_TOKEN) return strcpy(out, "token"); /* room: ANE_AI_TYPE_TEXT */
  int len = snprintf(out, ANE_AI_TYPE_TEXT, "%s%s [", t->kind == ANE_AI_HANDLE ? "state " : "", ane_ai_dtype_name(t->dtype));
  for (int32_t i = 0; i < t->rank && len < ANE_AI_TYPE_TEXT; i++) {
    char dim[24] = "?";
    if (t->dim[i] >= 0) snprintf(dim, sizeof dim, "%" PRId64, t->dim[i]);
    len += snprintf(out + len, (size_t)(ANE_AI_TYPE_TEXT - len), "%s%s", i ? ", " : "", dim);
  }
  if (len < ANE_AI_TYPE_TEXT) snprintf(out + len, (size_t)(ANE_AI_TYPE_TEXT - len), "]");
  return out;
}

const struct ane_ai_function *ane_ai_function(const struct ane_ai_program *p, const char *name) {
  for (uint32_t i = 0; i < p->n_functions; i++)
    if (strcmp(p->functions[i].name, name) == 0) return &p->functions[i];
  return NULL;
}

bool ai_constant_int(const struct ane_ai_value *v, uint64_t i, int64_t *out) {
  const struct ane_ai_op *op = v->op;
  uint64_t count;
  if (!op || op->id != ANE_AI_CONSTANT || !op->data.data || !ane_ai_count(&v->type, &count) || i >= count) return false;
  if (op->data.splat) i = 0;
  const uint8_t *p = op->data.data;
  uint32_t bytes = ane_ai_dtype_bits(v->type.dtype) / 8;
  if (op->data.bytes < (i + 1) * bytes) return false;
  switch (v->type.dtype) {
    case ANE_AI_INT64:
    case ANE_AI_UINT64: *out = (int64_t)ane_load_u64(p + 8 * i); return true;
    case ANE_AI_INT32: *out = (int32_t)ane_load_u32(p + 4 * i); return true;
    case ANE_AI_UINT32: *out = ane_load_u32(p + 4 * i); return true;
    case ANE_AI_INT16: *out = (int16_t)ane_load_u16(p + 2 * i); return true;
    case ANE_AI_UINT16: *out = ane_load_u16(p + 2 * i); return true;
    case ANE_AI_INT8: *out = (int8_t)p[i]; return true;
    case ANE_AI_UINT8: *out = p[i]; return true;
    default: return false;
  }
}
