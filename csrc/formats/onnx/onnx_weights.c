/* Constants of an ONNX graph as matrices of a source: see onnx_source.h. Every index that a gather can form is checked here once,
 * so that later reads stay inside the constants. */
#include "formats/formats_internal.h"
#include "formats/onnx/onnx.h"
#include "formats/onnx/onnx_source.h"

#include <string.h>

struct weights {
  struct ane_source *out, *from;
  const char *name; /* of the current weight */
  struct ane_error *err;
};

static ane_status fail(const struct weights *w, ane_status code, const char *what) {
  char q[ANE_QUOTE_TEXT];
  return ane_fail(w->err, code, "%s: weight %s: %s", w->from->path, ane_quote(q, w->name, strlen(w->name)), what);
}

static const struct ane_onnx_tensor *constant(const struct weights *w, int32_t value) {
  const struct ane_onnx *doc = w->from->onnx;
  return value < 0 || value >= doc->n_values ? NULL : doc->values[value].constant;
}

static bool is_float(ane_dtype t) { return t == ANE_F32 || t == ANE_F16 || t == ANE_BF16 || t == ANE_F64; }

/* The largest of base + (rows - 1) * row_step + (cols - 1) * col_step, no step negative; -1: overflow. */
static int64_t farthest(int64_t base, int64_t rows, int64_t row_step, int64_t cols, int64_t col_step) {
  int64_t a, b;
  if (__builtin_mul_overflow(rows - 1, row_step, &a) || __builtin_mul_overflow(cols - 1, col_step, &b)) return -1;
  if (__builtin_add_overflow(a, b, &a) || __builtin_add_overflow(a, base, &a)) return -1;
  return a;
}

/* Is element number `last` of a tensor with `bits` bits per element inside its bytes? */
static bool inside(const struct ane_onnx_tensor *t, int64_t last, int bits) {
  return last >= 0 && (uint64_t)last <= UINT64_MAX / 64 && ((uint64_t)last * (unsigned)bits + (unsigned)bits + 7) / 8 <= t->bytes;
}

static int width(ane_dtype t) { return t == ANE_U4 || t == ANE_I4 ? 4 : (int)ane_dtype_info(t)->bytes * 8; }

/* ---- Kinds ---------------------------------------------------------------------------------------------------------*/

static ane_status plain(struct weights *w, const struct ane_onnx_piece *p, const struct ane_onnx_tensor *t,
                        struct ane_gather *g) {
  if (!is_float(t->dtype)) return fail(w, ANE_UNSUPPORTED, "its numbers are not floats");
  g->dtype = t->dtype;
  g->row_step = p->transposed ? 1 : p->cols;
  g->col_step = p->transposed ? p->rows : 1;
  if (__builtin_mul_overflow(p->matrix, p->rows * p->cols, &g->base)) return fail(w, ANE_SHAPE, "is too large");
  return ANE_OK;
}

/* Codes [matrix][row][block * nb], scales [matrix][row][nb], zero points the same or packed. */
static ane_status nbits(struct weights *w, const struct ane_onnx_piece *p, const struct ane_onnx_tensor *t,
                        struct ane_gather *g) {
  int64_t block = p->block ? p->block : p->cols, nb = (p->cols + block - 1) / block, row = p->padded ? nb * block : p->cols;
  const struct ane_onnx_tensor *zeros = constant(w, p->zeros);
  if (t->dtype != ANE_U8 && t->dtype != ANE_U4 && t->dtype != ANE_I4)
    return fail(w, ANE_UNSUPPORTED, "its codes are of another type than uint8, uint4, int4");
  g->bits = t->dtype == ANE_U8 ? p->bits : 4;
  g->is_signed = t->dtype == ANE_I4;
  if (row * g->bits % 8) return fail(w, ANE_UNSUPPORTED, "its rows are not whole bytes");
  g->row_step = row, g->col_step = 1;
  g->scale_row = nb, g->scale_col = 1, g->block = block, g->row_block = 1;
  if (__builtin_mul_overflow(p->matrix, p->rows * row, &g->base)) return fail(w, ANE_SHAPE, "is too large");
  g->scale_base = p->matrix * p->rows * nb;
  if (zeros && t->dtype == ANE_U8 && zeros->dtype == ANE_U8) {
    g->zero_bits = p->bits, g->zero_blocks = nb, g->zero_row_bytes = (nb * p->bits + 7) / 8;
  } else if (zeros && zeros->dtype != t->dtype && !is_float(zeros->dtype)) {
    return fail(w, ANE_UNSUPPORTED, "its zero points are of another type");
  }
  return ANE_OK;
}

static ane_status dequantize(struct weights *w, const struct ane_onnx_piece *p, const struct ane_onnx_tensor *t,
                             struct ane_gather *g) {
  const struct ane_onnx_tensor *scales = constant(w, p->scales), *zeros = constant(w, p->zeros);
  bool sixteenth = t->dtype == ANE_U4 || t->dtype == ANE_I4;
  if (!sixteenth && t->dtype != ANE_U8 && t->dtype != ANE_I8)
    return fail(w, ANE_UNSUPPORTED, "its codes are of another type than int4 and int8");
  if (zeros && zeros->dtype != t->dtype) return fail(w, ANE_UNSUPPORTED, "its zero points are of another type than its codes");
  g->bits = sixteenth ? 4 : 8;
  g->is_signed = t->dtype == ANE_I4 || t->dtype == ANE_I8;
  /* dim 0 and 1 of the stored matrix are the rows and columns of the product, or the other way round */
  int64_t outer = p->transposed ? p->cols : p->rows, inner = p->transposed ? p->rows : p->cols;
  g->row_step = p->transposed ? 1 : p->cols;
  g->col_step = p->transposed ? p->rows : 1;
  g->row_block = g->block = 1;
  bool along_rows = p->transposed ? p->axis == 1 : p->axis == 0; /* do scales change from row to row of the product? */
  if (scales && scales->count == 1 && p->block == 0) {           /* a single one */
    g->row_block = p->rows, g->block = p->cols;
  } else if (p->block == 0) {
    if (along_rows)
      g->scale_row = 1, g->block = p->cols;
    else
      g->scale_col = 1, g->row_block = p->rows;
  } else {
    int64_t nb = ((p->axis == 0 ? outer : inner) + p->block - 1) / p->block, line = p->axis == 0 ? inner : nb;
    *(along_rows ? &g->row_block : &g->block) = p->block;
    g->scale_row = p->transposed ? 1 : line;
    g->scale_col = p->transposed ? line : 1;
  }
  return ANE_OK;
}

/* ---- Bounds --------------------------------------------------------------------------------------------------------*/

static ane_status check_g_idx(struct weights *w, const struct ane_onnx_piece *p, const struct ane_onnx_tensor *t,
                              int64_t blocks) {
  if (t->dtype != ANE_I32 || t->count < (uint64_t)p->cols) return fail(w, ANE_SHAPE, "g_idx is not an int32 list of its columns");
  for (int64_t c = 0; c < p->cols; c++) {
    int32_t b;
    memcpy(&b, t->data + 4 * c, 4);
    if (b < 0 || b >= blocks) return fail(w, ANE_RANGE, "g_idx names a block that is not there");
  }
  return ANE_OK;
}

static ane_status bind_scales(struct weights *w, const struct ane_onnx_piece *p, struct ane_gather *g) {
  const struct ane_onnx_tensor *scales = constant(w, p->scales), *zeros = constant(w, p->zeros), *idx = constant(w, p->g_idx);
  if (!scales || (p->zeros >= 0 && !zeros) || (p->g_idx >= 0 && !idx))
    return fail(w, ANE_UNSUPPORTED, "its scales, zero points or g_idx are not constants");
  if (!is_float(scales->dtype)) return fail(w, ANE_UNSUPPORTED, "its scales are not floats");
  int64_t blocks = (p->cols + g->block - 1) / g->block;
  int64_t last = farthest(g->scale_base, (p->rows + g->row_block - 1) / g->row_block, g->scale_row, blocks, g->scale_col);
  if (last < 0 || (uint64_t)last >= scales->count) return fail(w, ANE_SHAPE, "it has too few scales");
  g->scales = scales->data, g->scale_dtype = scales->dtype;
  g->zero_default = p->zero_default;
  if (zeros) {
    uint64_t rows = g->zero_bits ? (uint64_t)(last / g->zero_blocks) + 1 : 0;
    bool fits = g->zero_bits ? zeros->bytes / (uint64_t)g->zero_row_bytes >= rows
                             : (uint64_t)last < zeros->count && inside(zeros, last, width(zeros->dtype));
    if (!fits) return fail(w, ANE_SHAPE, "it has too few zero points");
    g->zeros = zeros->data, g->zero_dtype = zeros->dtype;
  }
  if (!idx) return ANE_OK;
  g->g_idx = (const int32_t *)(const void *)idx->data;
  return check_g_idx(w, p, idx, blocks);
}

static ane_status bind(struct weights *w, const struct ane_onnx_piece *p, struct ane_gather *g) {
  const struct ane_onnx_tensor *t = constant(w, p->data);
  int64_t elements;
  if (!t) return fail(w, ANE_UNSUPPORTED, "it is not a constant");
  if (p->rows < 1 || p->cols < 1 || p->rows > INT32_MAX || p->cols > INT32_MAX || p->matrix < 0 || p->block < 0 ||
      p->block > INT32_MAX || __builtin_mul_overflow(p->rows, p->cols, &elements) ||
      p->matrix > (int64_t)(t->bytes / (uint64_t)ANE_MAX(elements / 4, 1)) ||
      (p->kind == ANE_ONNX_NBITS && p->bits != 2 && p->bits != 4 && p->bits != 8))
    return fail(w, ANE_SHAPE, "its sizes are not those of its constants");
  ane_status st = p->kind == ANE_ONNX_PLAIN   ? plain(w, p, t, g)
                  : p->kind == ANE_ONNX_NBITS ? nbits(w, p, t, g)
                                              : dequantize(w, p, t, g);
  if (!st && p->kind != ANE_ONNX_PLAIN) st = bind_scales(w, p, g);
  if (st) return st;
  if (!inside(t, farthest(g->base, p->rows, g->row_step, p->cols, g->col_step), g->bits ? g->bits : width(t->dtype)))
    return fail(w, ANE_SHAPE, "its sizes are not those of its constants");
  g->data = t->data, g->bytes = t->bytes;
  return ANE_OK;
}

/* ---- Tensors -------------------------------------------------------------------------------------------------------*/

/* Restricts a gather to the rows of the piece: from, from + step, ... */
static void take_rows(const struct ane_onnx_piece *p, struct ane_gather *g) {
  g->base += p->from * g->row_step;
  g->row_step *= p->step;
  if (g->row_block == 1) g->scale_base += p->from * g->scale_row, g->scale_row *= p->step;
}

static ane_status piece(struct weights *w, const struct ane_onnx_piece *p, struct ane_tensor *out) {
  struct ane_gather *g = ane_arena_alloc(&w->out->arena, sizeof *g);
  if (!g) return ane_fail(w->err, ANE_NOMEM, "no memory for the names of weights");
  ane_status st = bind(w, p, g);
  if (st) return st;
  int64_t end = p->n < 1 || p->step < 1 || p->from < 0 ? -1 : farthest(p->from, p->n, p->step, 1, 0);
  if (end < 0 || end >= p->rows || (g->row_block > 1 && g->row_block < p->rows && (p->step != 1 || p->from)))
    return fail(w, ANE_SHAPE, "it has no such rows");
  take_rows(p, g);
  out->shape = (struct ane_shape){.rank = 2, .dim = {p->n, p->cols}};
  out->gather = g;
  uint64_t bits = g->bits ? (unsigned)g->bits : (unsigned)width(g->dtype), first = (uint64_t)g->base * bits / 8;
  out->bytes = ANE_MIN(((uint64_t)p->n * (uint64_t)p->cols * bits + 7) / 8, g->bytes);
  out->data = (const uint8_t *)g->data + (first + out->bytes <= g->bytes ? first : 0);
  out->dtype = ane_gather_dtype(g, p->n, p->cols);
  if (g->bits || g->col_step != 1 || g->row_step != p->cols || !is_float(g->dtype) || g->dtype == ANE_F64) return ANE_OK;
  size_t size = ane_dtype_info(g->dtype)->bytes; /* rows as they are to be */
  out->gather = NULL;
  out->data = (const uint8_t *)g->data + (size_t)g->base * size;
  out->bytes = (uint64_t)p->n * (uint64_t)p->cols * size;
  return ANE_OK;
}

static ane_status weight(struct weights *w, const struct ane_onnx_weight *from, struct ane_source_tensor *to) {
  w->name = from->name;
  uint64_t count = 0, want;
  struct ane_tensor *parts = ane_arena_array(&w->out->arena, ANE_MAX(from->n_pieces, 1u), sizeof *parts);
  to->name = ane_arena_strndup(&w->out->arena, from->name, strlen(from->name));
  if (!parts || !to->name) return ane_fail(w->err, ANE_NOMEM, "no memory for the names of weights");
  for (uint32_t i = 0; i < from->n_pieces; i++) {
    ane_status st = piece(w, &from->pieces[i], &parts[i]);
    if (st) return st;
    count += (uint64_t)parts[i].shape.dim[0] * (uint64_t)parts[i].shape.dim[1];
  }
  if (!from->n_pieces || !ane_shape_count(&from->shape, &want) || want != count)
    return fail(w, ANE_SHAPE, "its shape is not that of its pieces");
  to->tensor = parts[0];
  to->tensor.shape = from->shape;
  if (to->tensor.gather && from->shape.rank != 2)
    return fail(w, ANE_UNSUPPORTED, "it is not a matrix, and its rows are not stored like those of a matrix");
  if (from->n_pieces > 1) to->parts = parts, to->n_parts = from->n_pieces, to->tensor.gather = NULL;
  return ANE_OK;
}

ane_status ane_onnx_weights(struct ane_source **out, struct ane_source *s, const struct ane_onnx_weight *list, uint32_t n,
                            struct ane_error *err) {
  *out = NULL;
  if (!s->onnx) return ane_fail(err, ANE_INVALID, "%s: holds no graph", s->path);
  struct ane_source *d = ane_source_derive(s);
  if (!d) return ane_fail(err, ANE_NOMEM, "no memory for the names of weights");
  struct weights w = {.out = d, .from = s, .err = err};
  d->tensors = ane_arena_array(&d->arena, (size_t)n + 1, sizeof *d->tensors);
  ane_status st = d->tensors ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for the names of weights");
  for (uint32_t i = 0; !st && i < n; i++) st = weight(&w, &list[i], &d->tensors[i]);
  d->n_tensors = st ? 0 : n;
  if (!st) st = ane_source_index_tensors(d, err);
  if (st)
    ane_source_close(d);
  else
    *out = d;
  return st;
}
