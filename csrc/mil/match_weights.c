/* Reads the weights of a graph from packages that are equal to it: ane_mil_match_weights. */
#include "mil/match.h"

#include "tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct finding {
  struct ane_mil_match *m;
  struct ane_error *err;
  const char *name; /* of the current weight */
};

static ane_status unread(const struct finding *x, const char *what) {
  return ane_fail(x->err, ANE_UNSUPPORTED, "weight %.80s %s", x->name, what);
}

static ane_status no_memory(const struct finding *x) { return ane_fail(x->err, ANE_NOMEM, "no memory for the weights"); }

/* ---- Stored forms ------------------------------------------------------------------------------------------------------*/

/* Returns a parameter of the operation: an attribute, an immediate value, or a constant by name. NULL: it is absent. */
static const struct ane_mil_value *find_param(const struct ane_mil_bound *b, const char *name) {
  const struct ane_mil_value *v = ane_mil_op_attr(b->op, name);
  const struct ane_mil_arg *arg = v ? NULL : ane_mil_op_arg(b->op, name);
  if (!arg || arg->n_bindings != 1) return v;
  if (arg->bindings[0].value) return arg->bindings[0].value;
  for (uint32_t i = 0; i < b->function->block.n_ops; i++) {
    const struct ane_mil_op *op = &b->function->block.ops[i];
    if (op->n_outputs == 1 && strcmp(op->outputs[0].name, arg->bindings[0].name) == 0)
      return strcmp(op->type, "const") == 0 ? ane_mil_op_attr(op, "val") : NULL;
  }
  return NULL;
}

/* Returns a parameter of the operation; NULL: it is absent or has no numbers. */
static const struct ane_mil_value *param(const struct ane_mil_bound *b, const char *name) {
  const struct ane_mil_value *v = find_param(b, name);
  return v && v->type.kind == ANE_MIL_TENSOR && v->kind != ANE_MIL_STRINGS && v->data && v->count ? v : NULL;
}

static bool is_float(const struct ane_mil_value *v) { return v->type.dtype == ANE_MIL_FP16 || v->type.dtype == ANE_MIL_FP32; }

/* Sets g to codes of 4 or 8 bits. false: they have another type. */
static bool codes_of(const struct ane_mil_value *v, struct ane_gather *g) {
  ane_mil_dtype t = v->type.dtype;
  g->bits = t == ANE_MIL_INT8 || t == ANE_MIL_UINT8 ? 8 : t == ANE_MIL_INT4 || t == ANE_MIL_UINT4 ? 4 : 0;
  g->is_signed = t == ANE_MIL_INT8 || t == ANE_MIL_INT4;
  g->data = v->data;
  g->bytes = v->bytes;
  return g->bits != 0;
}

static void scales_of(const struct ane_mil_value *v, struct ane_gather *g) {
  g->scales = v->data;
  g->scale_dtype = ane_mil_dtype_plain(v->type.dtype);
}

/* Sets g's zero points, of which v has `count` or one. v NULL: none. false: another count or type. */
static bool zeros_of(const struct ane_mil_value *v, uint64_t count, struct ane_gather *g) {
  if (!v) return true;
  if (v->count == 1) return g->zero_default = (float)ane_mil_number(v, 0), true;
  g->zeros = v->data;
  g->zero_dtype = ane_mil_dtype_plain(v->type.dtype);
  return v->count == count && g->zero_dtype != ANE_DTYPE_COUNT;
}

/* Reads constexpr_affine_dequantize: one scale, or one per row. */
static ane_status affine(const struct finding *x, const struct ane_mil_bound *b, int64_t rows, int64_t cols,
                         struct ane_gather *g) {
  const struct ane_mil_value *data = param(b, "quantized_data"), *scale = param(b, "scale"), *zero = param(b, "zero_point"),
                             *axis = param(b, "axis");
  if (!data || !scale || !is_float(scale) || !codes_of(data, g)) return unread(x, "has codes or scales of an unknown type");
  bool by_row = scale->count > 1;
  if (by_row && (scale->count != (uint64_t)rows || !axis || ane_mil_integer(axis, 0) != 0))
    return unread(x, "has scales along another axis than its rows");
  scales_of(scale, g);
  g->block = cols;
  g->row_block = by_row ? 1 : rows;
  g->scale_row = by_row;
  if (zero && zero->count > 1 && !by_row) return unread(x, "has more zero points than scales");
  return zeros_of(zero, scale->count, g) ? ANE_OK : unread(x, "has zero points of an unknown type");
}

/* Reads constexpr_blockwise_shift_scale: one scale per block of columns, or of rows and columns. */
static ane_status blockwise(const struct finding *x, const struct ane_mil_bound *b, int64_t rows, int64_t cols,
                            struct ane_gather *g) {
  const struct ane_mil_value *data = param(b, "data"), *scale = param(b, "scale"), *offset = param(b, "offset");
  if (!data || !scale || !is_float(scale) || !codes_of(data, g)) return unread(x, "has codes or scales of an unknown type");
  const int64_t *d = scale->type.dim;
  if (scale->type.rank < 2 || d[0] < 1 || d[1] < 1 || rows % d[0] || cols % d[1] || scale->count != (uint64_t)(d[0] * d[1]))
    return unread(x, "has scales that do not divide it");
  scales_of(scale, g);
  g->block = cols / d[1];
  g->row_block = rows / d[0];
  g->scale_row = d[1];
  g->scale_col = 1;
  return zeros_of(offset, scale->count, g) ? ANE_OK : unread(x, "has offsets of an unknown type");
}

/* Returns the bits of the codes of tables with `entries` numbers; 0: no code has so many. */
static int table_bits(int64_t entries) {
  for (int bits = 2; bits <= 8; bits++)
    if (entries == (int64_t)1 << bits && bits != 5 && bits != 7) return bits;
  return 0;
}

/* Reads constexpr_lut_to_dense with tables of numbers: one, or one per group of consecutive rows. */
static ane_status table(const struct finding *x, const struct ane_mil_bound *b, int64_t rows, struct ane_gather *g) {
  const struct ane_mil_value *data = param(b, "indices"), *lut = param(b, "lut");
  if (!data || !lut || !is_float(lut) || !lut->count) return unread(x, "has no tables of numbers");
  bool old = data->type.dtype == ANE_MIL_UINT8 && lut->type.rank == 1, new = lut->type.rank == 6;
  int64_t entries = old || new ? lut->type.dim[old ? 0 : 4] : 0;
  int bits = table_bits(entries);
  int64_t tables = (int64_t)lut->count / ANE_MAX(entries, 1);
  new = new &&bits && (int)ane_mil_dtype_bits(data->type.dtype) == bits && lut->type.dim[0] == tables;
  if (!bits || (!old && !new) || (uint64_t)(tables * entries) != lut->count || rows % tables)
    return unread(x, "has tables of an unsupported kind");
  g->bits = bits;
  g->data = data->data;
  g->bytes = data->bytes;
  g->table = lut->data;
  g->table_dtype = ane_mil_dtype_plain(lut->type.dtype);
  g->row_block = rows / tables;
  g->block = 1;
  return ANE_OK;
}

/* Reads rows [0, rows) of a matrix in the form that an operation stores. */
static ane_status read_piece(const struct finding *x, const struct ane_mil_bound *b, int64_t rows, int64_t cols,
                             struct ane_gather *g) {
  const char *type = b->op->type;
  uint64_t want;
  ane_status st = ANE_OK;
  *g = (struct ane_gather){.row_step = cols, .col_step = 1, .rows = rows};
  if (strcmp(type, "const") == 0) {
    const struct ane_mil_value *v = param(b, "val");
    if (!v || !is_float(v)) return unread(x, "holds no floats");
    g->data = v->data;
    g->bytes = v->bytes;
    g->dtype = ane_mil_dtype_plain(v->type.dtype);
  } else if (strcmp(type, "constexpr_affine_dequantize") == 0) {
    st = affine(x, b, rows, cols, g);
  } else if (strcmp(type, "constexpr_blockwise_shift_scale") == 0) {
    st = blockwise(x, b, rows, cols, g);
  } else if (strcmp(type, "constexpr_lut_to_dense") == 0) {
    st = table(x, b, rows, g);
  } else {
    return ane_fail(x->err, ANE_UNSUPPORTED, "weight %.80s: %.60s is not supported", x->name, type);
  }
  if (st) return st;
  unsigned bits = g->bits ? (unsigned)g->bits : ane_dtype_info(g->dtype)->bytes * 8;
  want = ((uint64_t)rows * (uint64_t)cols * bits + 7) / 8;
  return g->data && g->bytes >= want ? ANE_OK : unread(x, "has fewer elements than its shape");
}

/* ---- Matrices ----------------------------------------------------------------------------------------------------------*/

static bool same_value(const struct ane_mil_value *a, const struct ane_mil_value *b) {
  if (!a || !b) return a == b;
  return ane_mil_type_equal(&a->type, &b->type) && a->bytes == b->bytes &&
         (a->data == b->data || (a->data && b->data && memcmp(a->data, b->data, (size_t)a->bytes) == 0));
}

/* Do two operations store the same weight? */
static bool same_stored(const struct ane_mil_bound *a, const struct ane_mil_bound *b) {
  static const char *const params[] = {"val",    "quantized_data", "data",    "scale", "zero_point",
                                       "offset", "axis",           "indices", "lut"};
  if (strcmp(a->op->type, b->op->type) != 0) return false;
  for (size_t i = 0; i < ANE_COUNT(params); i++)
    if (!same_value(param(a, params[i]), param(b, params[i]))) return false;
  return true;
}

/* Joins the pieces list [0, n), in the order of their rows, to a matrix. */
static ane_status find_matrix(const struct finding *x, const struct ane_mil_bound *list, size_t n, struct ane_tensor *out) {
  const struct ane_shape *s = &x->m->graph->values[list->request.value].shape;
  int64_t cols = s->dim[1], at = 0;
  struct ane_gather *first = NULL, *last = NULL;
  for (size_t i = 0; i < n; i++) {
    const struct ane_mil_weight_request *request = &list[i].request;
    if (i > 0 && request->from == list[i - 1].request.from && request->to == list[i - 1].request.to) {
      if (!same_stored(&list[i], &list[i - 1])) return unread(x, "is stored twice, with different numbers");
      continue;
    }
    if (request->from != at) return unread(x, "is stored in parts that overlap, or lack rows");
    struct ane_gather *g = ane_arena_alloc(x->m->arena, sizeof *g);
    if (!g) return no_memory(x);
    ane_status st = read_piece(x, &list[i], request->to - request->from, cols, g);
    if (st) return st;
    if (last)
      last->next = g;
    else
      first = g;
    last = g;
    at = request->to;
  }
  if (!first || at != s->dim[0]) return unread(x, "is stored in parts that lack rows");
  *out = (struct ane_tensor){.shape = *s, .data = first->data, .bytes = first->bytes};
  out->dtype = ane_gather_dtype(first, at, cols);
  if (first->next || first->bits) out->gather = first;
  return ANE_OK;
}

/* ---- Other constants -----------------------------------------------------------------------------------------------------*/

/* Does the recipe's arithmetic on w give the stored number v? */
static bool gives(const struct ane_mil_weight_request *request, float w, double v) {
  float y = (w + request->add) * request->times;
  if (request->dtype == ANE_MIL_FP16) return ane_f16_f32(ane_f32_f16(y)) == (float)v || (isnan(v) && isnan(y));
  return fabs((double)y - v) <= 1e-6 * fabs(v);
}

/* Fills the rows of w from row `filled` on from a stored constant, and compares earlier rows with it. per: elements per row. */
static ane_status fill_plain(const struct finding *x, const struct ane_mil_bound *b, int64_t filled, uint64_t per, float *w) {
  const struct ane_mil_weight_request *request = &b->request;
  const struct ane_mil_value *v = strcmp(b->op->type, "const") == 0 ? param(b, "val") : NULL;
  if (!v || !v->data || !is_float(v) || v->count != (uint64_t)(request->to - request->from) * per)
    return unread(x, "is stored in a form that is supported for matrices only");
  float *row = w + (uint64_t)request->from * per;
  for (uint64_t i = 0; i < v->count; i++) {
    double stored = ane_mil_number(v, i);
    if ((int64_t)(request->from + (int64_t)(i / per)) >= filled)
      row[i] = (float)(stored / (double)request->times - (double)request->add);
    if (!gives(request, row[i], stored)) return unread(x, "is stored twice, with different numbers");
  }
  return ANE_OK;
}

static ane_status find_plain(const struct finding *x, const struct ane_mil_bound *list, size_t n, struct ane_tensor *out) {
  const struct ane_value *value = &x->m->graph->values[list->request.value];
  const struct ane_mil_weight_request *request = &list->request;
  uint64_t count;
  *out = (struct ane_tensor){.dtype = ANE_F32, .shape = value->shape};
  if (!ane_shape_count(&value->shape, &count) || !count || value->shape.rank < 1) return unread(x, "has no elements");
  const struct ane_mil_value *v = n == 1 && strcmp(list->op->type, "const") == 0 ? param(list, "val") : NULL;
  if (v && v->data && is_float(v) && v->count == count && request->add == 0 &&
      request->times == 1) { /* use the stored numbers in place */
    out->dtype = ane_mil_dtype_plain(v->type.dtype);
    out->data = v->data;
    out->bytes = v->bytes;
    return ANE_OK;
  }
  float *w = ane_arena_array(x->m->arena, (size_t)count, sizeof *w);
  if (!w) return no_memory(x);
  int64_t filled = 0;
  for (size_t i = 0; i < n; i++) {
    if (list[i].request.from > filled) return unread(x, "is stored in parts that lack rows");
    ane_status st = fill_plain(x, &list[i], filled, count / (uint64_t)value->shape.dim[0], w);
    if (st) return st;
    filled = ANE_MAX(filled, list[i].request.to);
  }
  out->data = w;
  out->bytes = count * sizeof *w;
  return filled == value->shape.dim[0] ? ANE_OK : unread(x, "is stored in parts that lack rows");
}

/* ---- All weights ------------------------------------------------------------------------------------------------------*/

static int by_place(const void *a, const void *b) {
  const struct ane_mil_weight_request *x = &((const struct ane_mil_bound *)a)->request,
                                      *y = &((const struct ane_mil_bound *)b)->request;
  if (x->value != y->value) return x->value < y->value ? -1 : 1;
  if (x->matrix != y->matrix) return x->matrix ? -1 : 1;
  if (x->from != y->from) return x->from < y->from ? -1 : 1;
  return (x->to > y->to) - (x->to < y->to);
}

ane_status ane_mil_match_weights(struct ane_mil_match *m, struct ane_mil_weight_found **out, uint32_t *n, struct ane_error *err) {
  struct ane_mil_bound *list = (void *)m->bound.data;
  size_t total = m->bound.size / sizeof *list;
  struct ane_mil_weight_found *found = ane_arena_array(m->arena, total + 1, sizeof *found);
  struct finding x = {.m = m, .err = err};
  *n = 0;
  if (!found) return no_memory(&x);
  if (total) qsort(list, total, sizeof *list, by_place);
  for (size_t i = 0, end; i < total; i = end) {
    const struct ane_mil_weight_request *request = &list[i].request;
    for (end = i + 1; end < total && list[end].request.value == request->value && list[end].request.matrix == request->matrix;)
      end++;
    struct ane_tensor *t = ane_arena_alloc(m->arena, sizeof *t);
    if (!t) return no_memory(&x);
    x.name = m->graph->values[request->value].name;
    ane_status st = request->matrix ? find_matrix(&x, &list[i], end - i, t) : find_plain(&x, &list[i], end - i, t);
    if (st) return st;
    found[(*n)++] = (struct ane_mil_weight_found){x.name, request->matrix, t};
  }
  *out = found;
  return ANE_OK;
}
