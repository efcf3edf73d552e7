/* constexpr_* operations: constants that are stored as codes. Both generations of them: iOS16 has all parameters as attributes,
 * iOS18 has inputs that are bound to values in place or to the outputs of other constexpr operations.
 * Scaled codes and plain tables stay codes (struct ane_coded), all else becomes floats here. */
#include "interp/interp_mil.h"

#include "tensor/half.h"

#include <inttypes.h>
#include <string.h>

/* ---- Parameters ----------------------------------------------------------------------------------------------------*/

static const struct ane_mil_value *stored(const struct mil_import *t, const struct ane_mil_op *op, const char *name) {
  const struct ane_mil_value *v = ane_mil_op_attr(op, name);
  const struct ane_mil_arg *a = v ? NULL : ane_mil_op_arg(op, name);
  if (v || !a || a->n_bindings != 1) return v;
  if (a->bindings[0].value) return a->bindings[0].value;
  const struct mil_name *n = mil_find(t, a->bindings[0].name);
  return n ? n->raw : NULL;
}

/* A tensor of numbers of at most `rank` dimensions, with its data; NULL: the error is set. */
static const struct ane_mil_value *tensor(const struct mil_import *t, const struct ane_mil_op *op, const char *name,
                                          int32_t rank) {
  const struct ane_mil_value *v = stored(t, op, name);
  if (!v) {
    mil_op_fail(t, op, ANE_FORMAT, "parameter %s is missing, or no constant", name);
    return NULL;
  }
  bool ok = (v->kind == ANE_MIL_NUMBERS || v->kind == ANE_MIL_BLOB) && v->type.kind == ANE_MIL_TENSOR && v->type.rank <= rank &&
            (v->data || !v->count);
  if (!ok) mil_op_fail(t, op, ANE_FORMAT, "parameter %s is no tensor of at most %d dimensions with data", name, (int)rank);
  return ok ? v : NULL;
}

static bool is_float(ane_mil_dtype t) { return t == ANE_MIL_FP16 || t == ANE_MIL_FP32; }

/* All elements as floats in the arena; NULL: no memory. */
static float *floats(struct mil_import *t, const struct ane_mil_value *v) {
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

/* Output k = floats of this shape; other constexpr operations may read them too. */
static ane_status give_floats(struct mil_import *t, const struct ane_mil_op *op, uint32_t k, int32_t rank, const int64_t *dim,
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

/* Output k = a stored value as it is. */
static ane_status give_stored(struct mil_import *t, const struct ane_mil_op *op, uint32_t k, const struct ane_mil_value *v) {
  struct mil_name name = {.value = INTERP_NONE, .raw = v, .type = &op->outputs[k].type, .state = -1};
  if (!same_shape(&op->outputs[k].type, v->type.rank, v->type.dim))
    return mil_op_fail(t, op, ANE_SHAPE, "output %.100s is declared with another shape", op->outputs[k].name);
  ane_status st = mil_constant(t, op->outputs[k].name, v, &name.value);
  return st ? st : mil_define(t, op->outputs[k].name, &name);
}

/* Where tables of other operations need floats and not codes: small ones. */
enum { SMALL = 1 << 16 };

/* The op's output = codes, for primitives to decode. */
static ane_status give_codes(struct mil_import *t, const struct ane_mil_op *op, struct ane_coded *w) {
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

static struct ane_coded *codes_of(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *v) {
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

/* iOS16: w = scale (q - zero_point), both one number or one for each place of `axis`. */
static ane_status affine(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *q = tensor(t, op, "quantized_data", ANE_DYN_RANK), *s = tensor(t, op, "scale", 1),
                             *z = tensor(t, op, "zero_point", 1), *a = tensor(t, op, "axis", 0);
  struct ane_coded *w = q && s && z && a ? codes_of(t, op, q) : NULL;
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
  float *scale = floats(t, s), *zero = scale ? floats(t, z) : NULL;
  if (!zero) return ANE_NOMEM;
  if (most > 1 && (s->count == 1 || z->count == 1)) { /* one of them for all */
    float *both = ane_arena_array(&t->g->arena, (size_t)most, sizeof *both), **single = s->count == 1 ? &scale : &zero;
    if (!both) return interp_no_memory(t->err);
    for (uint64_t i = 0; i < most; i++) both[i] = **single;
    *single = both;
  }
  w->scale = scale, w->offset = zero;
  return give_codes(t, op, w);
}

/* Blocks of dimensions: `of` [*g, ...] divides the codes' dimensions; its first rank entries. */
static ane_status set_blocks(const struct mil_import *t, const struct ane_mil_op *op, struct ane_coded *w,
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

static ane_status scaled(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *data,
                         struct ane_coded **out) {
  const struct ane_mil_value *s = tensor(t, op, "scale", ANE_DYN_RANK),
                             *z = stored(t, op, "offset") || ane_mil_op_arg(op, "offset") ? tensor(t, op, "offset", ANE_DYN_RANK)
                                                                                          : NULL;
  if (!s || (!z && ane_mil_op_arg(op, "offset"))) return t->err->code;
  struct ane_coded *w = codes_of(t, op, data);
  if (!w) return t->err->code;
  if (s->type.rank != w->rank || !is_float(s->type.dtype))
    return mil_op_fail(t, op, ANE_SHAPE, "scale has %d dimensions of type %s, data %d", (int)s->type.rank,
                       ane_mil_dtype_name(s->type.dtype), (int)w->rank);
  if (z && !same_shape(&s->type, z->type.rank, z->type.dim))
    return mil_op_fail(t, op, ANE_SHAPE, "offset and scale differ in shape");
  ane_status st = set_blocks(t, op, w, s->type.dim);
  if (st) return st;
  float *scale = floats(t, s), *offset = scale && z ? floats(t, z) : NULL;
  if (!scale || (z && !offset)) return ANE_NOMEM;
  w->scale = scale, w->offset = offset;
  *out = w;
  return ANE_OK;
}

static ane_status blockwise(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *data = tensor(t, op, "data", ANE_DYN_RANK);
  struct ane_coded *w;
  if (!data) return t->err->code;
  ane_status st = scaled(t, op, data, &w);
  return st ? st : give_codes(t, op, w);
}

/* ---- Tables --------------------------------------------------------------------------------------------------------*/

static int code_bits(uint64_t entries) {
  for (int n = 1; n <= 8; n++)
    if (entries == UINT64_C(1) << n) return n;
  return 0;
}

/* iOS16: a packed stream of indices and its shape, one table. */
static ane_status lut_stream(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *index = tensor(t, op, "indices", 1), *lut = tensor(t, op, "lut", 1),
                             *shape = tensor(t, op, "shape", 1);
  if (!index || !lut || !shape) return t->err->code;
  struct ane_coded *w = ane_arena_alloc(&t->g->arena, sizeof *w);
  if (!w) return interp_no_memory(t->err);
  int bits = code_bits(lut->count);
  int64_t count = 1;
  if (!bits || shape->count > ANE_DYN_RANK || ane_mil_dtype_bits(index->type.dtype) != 8)
    return mil_op_fail(t, op, ANE_SHAPE, "a table of %" PRIu64 " entries for %" PRIu64 " dimensions", lut->count, shape->count);
  *w = (struct ane_coded){.codes = index->data, .bits = bits, .rank = (int32_t)shape->count, .entries = (int64_t)lut->count};
  for (int32_t i = 0; i < w->rank; i++) {
    w->dim[i] = w->block[i] = ane_mil_integer(shape, (uint64_t)i);
    if (w->dim[i] < 1 || __builtin_mul_overflow(count, w->dim[i], &count) || count > INT64_MAX / 16)
      return mil_op_fail(t, op, ANE_SHAPE, "shape holds %" PRId64, w->dim[i]);
  }
  if (ane_coded_bytes(w, count) != index->bytes)
    return mil_op_fail(t, op, ANE_SHAPE, "%" PRIu64 " bytes of indices for %" PRId64 " elements of %d bits", index->bytes, count,
                       bits);
  if (!(w->table = floats(t, lut))) return ANE_NOMEM;
  return give_codes(t, op, w);
}

/* Tables of vectors: `indices` elements give V values each along an axis. */
static ane_status lut_vectors(struct mil_import *t, const struct ane_mil_op *op, const struct ane_coded *w,
                              const struct ane_mil_value *lut, float **data, int64_t *dim, int64_t *total) {
  const struct ane_mil_value *a = tensor(t, op, "vector_axis", 0);
  int64_t v = lut->type.dim[lut->type.rank - 1], n = 1, inner = 1, at[ANE_DYN_RANK] = {0};
  if (!a) return t->err->code;
  int64_t axis = ane_mil_integer(a, 0) < 0 ? ane_mil_integer(a, 0) + w->rank : ane_mil_integer(a, 0);
  if (axis < 0 || axis >= w->rank) return mil_op_fail(t, op, ANE_INVALID, "vector_axis is %" PRId64, ane_mil_integer(a, 0));
  for (int32_t i = 0; i < w->rank; i++) {
    dim[i] = w->dim[i] * (i == axis ? v : 1);
    n *= w->dim[i];
    if (i > axis) inner *= w->dim[i];
  }
  if (__builtin_mul_overflow(n, v, total) || *total > INT64_MAX / 16)
    return mil_op_fail(t, op, ANE_RANGE, "vectors of %" PRId64 " elements", v);
  float *out = *data = ane_arena_array(&t->g->arena, (size_t)*total + 1, sizeof *out);
  if (!out) return interp_no_memory(t->err);
  for (int64_t i = 0; i < n; i++) {
    int64_t group = 0;
    for (int32_t d = 0; d < w->rank; d++) group += at[d] / w->block[d] * w->step[d];
    int64_t bit = i * w->bits, code = w->codes[bit >> 3] >> (bit & 7);
    if ((bit & 7) + w->bits > 8) code |= (int64_t)w->codes[(bit >> 3) + 1] << (8 - (bit & 7));
    const float *from = w->table + (group * w->entries + (code & ((1 << w->bits) - 1))) * v;
    int64_t outer = i / inner, rest = i % inner;
    for (int64_t j = 0; j < v; j++) out[(outer * v + j) * inner + rest] = from[j];
    for (int32_t d = w->rank - 1; d >= 0 && ++at[d] == w->dim[d]; d--) at[d] = 0;
  }
  return ANE_OK;
}

/* iOS18: codes of `index` with tables [*groups, 2^n, V]. */
static ane_status table_of(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *index,
                           const struct ane_mil_value *lut, struct ane_coded **out) {
  struct ane_coded *w = codes_of(t, op, index);
  if (!w) return t->err->code;
  if (lut->type.rank != w->rank + 2 || w->is_signed || w->bits > 8 || lut->type.dim[w->rank] != INT64_C(1) << w->bits ||
      lut->type.dim[w->rank + 1] < 1)
    return mil_op_fail(t, op, ANE_SHAPE, "lut of %d dimensions for indices of %d bits and %d dimensions", (int)lut->type.rank,
                       w->bits, (int)w->rank);
  w->entries = lut->type.dim[w->rank];
  ane_status st = set_blocks(t, op, w, lut->type.dim);
  if (!st && !(w->table = floats(t, lut))) st = ANE_NOMEM;
  *out = w;
  return st;
}

static ane_status lut_dense(struct mil_import *t, const struct ane_mil_op *op) {
  if (ane_mil_op_attr(op, "shape")) return lut_stream(t, op);
  const struct ane_mil_value *index = tensor(t, op, "indices", ANE_DYN_RANK - 2), *lut = tensor(t, op, "lut", ANE_MIL_RANK);
  struct ane_coded *w;
  if (!index || !lut) return t->err->code;
  ane_status st = table_of(t, op, index, lut, &w);
  if (st || lut->type.dim[lut->type.rank - 1] == 1) return st ? st : give_codes(t, op, w);
  float *data;
  int64_t dim[ANE_DYN_RANK], total;
  st = lut_vectors(t, op, w, lut, &data, dim, &total);
  return st ? st : give_floats(t, op, 0, w->rank, dim, data, (uint64_t)total);
}

/* ---- Sparse --------------------------------------------------------------------------------------------------------*/

static bool bit(const struct ane_mil_value *mask, uint64_t i) { return ((const uint8_t *)mask->data)[i >> 3] >> (i & 7) & 1; }

/* Nonzero data spread by a mask of n bits. */
static ane_status spread(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *mask,
                         const struct ane_mil_value *data, uint64_t n, float **out) {
  uint64_t at = 0;
  float *v = floats(t, data), *all = v ? ane_arena_array(&t->g->arena, (size_t)n + 1, sizeof *all) : NULL;
  if (!all) return interp_no_memory(t->err);
  if ((n + 7) / 8 > mask->bytes)
    return mil_op_fail(t, op, ANE_SHAPE, "mask has %" PRIu64 " bytes for %" PRIu64 " elements", mask->bytes, n);
  for (uint64_t i = 0; i < n; i++) {
    if (!bit(mask, i)) continue;
    if (at == data->count)
      return mil_op_fail(t, op, ANE_SHAPE, "mask has more bits than the %" PRIu64 " elements of nonzero data", data->count);
    all[i] = v[at++];
  }
  if (at != data->count)
    return mil_op_fail(t, op, ANE_SHAPE, "mask has %" PRIu64 " bits for %" PRIu64 " elements of nonzero data", at, data->count);
  *out = all;
  return ANE_OK;
}

static ane_status sparse_dense(struct mil_import *t, const struct ane_mil_op *op) {
  bool old = ane_mil_op_attr(op, "shape");
  const struct ane_mil_value *mask = tensor(t, op, "mask", ANE_DYN_RANK), *data = tensor(t, op, "nonzero_data", 1),
                             *shape = old ? tensor(t, op, "shape", 1) : NULL;
  int64_t dim[ANE_DYN_RANK], n = 1;
  float *all;
  if (!mask || !data || (old && !shape)) return t->err->code;
  if (!old && mask->type.dtype != ANE_MIL_UINT1)
    return mil_op_fail(t, op, ANE_FORMAT, "mask is %s, wanted uint1", ane_mil_dtype_name(mask->type.dtype));
  int32_t rank = old ? (int32_t)ANE_MIN(shape->count, (uint64_t)ANE_DYN_RANK + 1) : mask->type.rank;
  if (rank > ANE_DYN_RANK) return mil_op_fail(t, op, ANE_UNSUPPORTED, "%d dimensions", (int)rank);
  for (int32_t i = 0; i < rank; i++) {
    dim[i] = old ? ane_mil_integer(shape, (uint64_t)i) : mask->type.dim[i];
    if (dim[i] < 0 || __builtin_mul_overflow(n, dim[i], &n) || n > INT64_MAX / 16)
      return mil_op_fail(t, op, ANE_SHAPE, "shape holds %" PRId64, dim[i]);
  }
  if ((uint64_t)n > mask->bytes * 8)
    return mil_op_fail(t, op, ANE_SHAPE, "mask has %" PRIu64 " bytes for %" PRId64 " elements", mask->bytes, n);
  ane_status st = spread(t, op, mask, data, (uint64_t)n, &all);
  return st ? st : give_floats(t, op, 0, rank, dim, all, (uint64_t)n);
}

/* The elements of `all` under the mask, as output 1; the mask as output 0. */
static ane_status give_sparse(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *mask, float *all) {
  uint64_t n = 0;
  if (op->n_outputs != 2) return mil_op_fail(t, op, ANE_FORMAT, "has %" PRIu32 " outputs, wanted two", op->n_outputs);
  for (uint64_t i = 0; i < mask->count; i++)
    if (bit(mask, i)) all[n++] = all[i];
  int64_t dim[1] = {(int64_t)n};
  ane_status st = give_stored(t, op, 0, mask);
  return st ? st : give_floats(t, op, 1, 1, dim, all, n);
}

static ane_status sparse_scaled(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *mask = tensor(t, op, "data_mask", ANE_DYN_RANK), *data = tensor(t, op, "nonzero_data", 1);
  struct ane_coded *w;
  float *codes, *all;
  if (!mask || !data || mask->type.dtype != ANE_MIL_UINT1)
    return mask && data ? mil_op_fail(t, op, ANE_FORMAT, "data_mask is not uint1") : t->err->code;
  ane_status st = spread(t, op, mask, data, mask->count, &codes);
  if (st) return st;
  struct ane_mil_value dense = {.type = ane_mil_tensor_type(ANE_MIL_FP32, mask->type.rank, mask->type.dim),
                                .kind = ANE_MIL_NUMBERS,
                                .count = mask->count,
                                .data = codes,
                                .bytes = mask->count * sizeof *codes};
  st = scaled(t, op, &dense, &w);
  if (st) return st;
  if (!(all = ane_arena_array(&t->g->arena, (size_t)mask->count + 1, sizeof *all))) return interp_no_memory(t->err);
  ane_coded_simplify(w);
  if (mask->count) ane_coded_read(w, 0, (int64_t)mask->count, all);
  return give_sparse(t, op, mask, all);
}

static ane_status lut_sparse(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *mask = tensor(t, op, "indices_mask", ANE_DYN_RANK - 2),
                             *data = tensor(t, op, "indices_nonzero_data", 1), *lut = tensor(t, op, "lut", ANE_MIL_RANK);
  struct ane_coded *w;
  float *spreaded, *all;
  if (!mask || !data || !lut || mask->type.dtype != ANE_MIL_UINT1)
    return mask && data && lut ? mil_op_fail(t, op, ANE_FORMAT, "indices_mask is not uint1") : t->err->code;
  uint32_t bits = ane_mil_dtype_bits(data->type.dtype);
  ane_status st = bits >= 1 && bits <= 8
                      ? spread(t, op, mask, data, mask->count, &spreaded)
                      : mil_op_fail(t, op, ANE_UNSUPPORTED, "indices of type %s", ane_mil_dtype_name(data->type.dtype));
  if (st) return st;
  uint8_t *codes = ane_arena_alloc(&t->g->arena, (size_t)mask->count + 1);
  if (!codes) return interp_no_memory(t->err);
  for (uint64_t i = 0; i < mask->count; i++) codes[i] = (uint8_t)spreaded[i];
  /* bytes now; the table is as long as the bits of the indices say */
  struct ane_mil_value dense = {.type = ane_mil_tensor_type(ANE_MIL_UINT8, mask->type.rank, mask->type.dim),
                                .kind = ANE_MIL_NUMBERS,
                                .count = mask->count,
                                .data = codes,
                                .bytes = mask->count};
  struct ane_mil_value narrow = *lut;
  if (lut->type.rank != mask->type.rank + 2 || lut->type.dim[mask->type.rank] != INT64_C(1) << bits)
    return mil_op_fail(t, op, ANE_SHAPE, "lut does not fit the indices");
  narrow.type.dim[mask->type.rank] = 256;
  st = table_of(t, op, &dense, &narrow, &w);
  if (st) return st;
  w->entries = INT64_C(1) << bits;
  int64_t v = lut->type.dim[lut->type.rank - 1], total = (int64_t)mask->count, dim[ANE_DYN_RANK];
  if (v == 1) {
    if (!(all = ane_arena_array(&t->g->arena, (size_t)total + 1, sizeof *all))) return interp_no_memory(t->err);
    ane_coded_simplify(w);
    if (total) ane_coded_read(w, 0, total, all);
    return give_sparse(t, op, mask, all);
  }
  st = lut_vectors(t, op, w, lut, &all, dim, &total);
  if (st) return st;
  /* the mask of a vector is that of its index */
  struct ane_mil_value *wide = ane_arena_alloc(&t->g->arena, sizeof *wide);
  uint8_t *map = ane_arena_alloc(&t->g->arena, (size_t)total / 8 + 2);
  if (!wide || !map) return interp_no_memory(t->err);
  int64_t axis = ane_mil_integer(stored(t, op, "vector_axis"), 0), inner = 1;
  if (axis < 0) axis += mask->type.rank;
  for (int32_t i = (int32_t)axis + 1; i < mask->type.rank; i++) inner *= mask->type.dim[i];
  for (int64_t i = 0; i < total; i++) {
    int64_t from = i / (inner * v) * inner + i % inner;
    if (bit(mask, (uint64_t)from)) map[i >> 3] = (uint8_t)(map[i >> 3] | 1 << (i & 7));
  }
  *wide = (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_UINT1, mask->type.rank, dim),
                                 .kind = ANE_MIL_NUMBERS,
                                 .count = (uint64_t)total,
                                 .data = map,
                                 .bytes = ((uint64_t)total + 7) / 8};
  return give_sparse(t, op, wide, all);
}

/* ---- Cast ----------------------------------------------------------------------------------------------------------*/

static ane_status cast(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *v = tensor(t, op, "source_val", ANE_DYN_RANK);
  if (!v) return t->err->code;
  return is_float(v->type.dtype) ? give_stored(t, op, 0, v)
                                 : mil_op_fail(t, op, ANE_UNSUPPORTED, "source_val is %s", ane_mil_dtype_name(v->type.dtype));
}

ane_status mil_constexpr(struct mil_import *t, const struct ane_mil_op *op, bool *done) {
  static const struct {
    const char *name;
    ane_status (*import)(struct mil_import *t, const struct ane_mil_op *op);
  } list[] = {
      {"constexpr_affine_dequantize", affine},
      {"constexpr_blockwise_shift_scale", blockwise},
      {"constexpr_lut_to_dense", lut_dense},
      {"constexpr_sparse_to_dense", sparse_dense},
      {"constexpr_sparse_blockwise_shift_scale", sparse_scaled},
      {"constexpr_lut_to_sparse", lut_sparse},
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
