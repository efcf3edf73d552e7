/* Encodes weights in their schemes, as constants of MIL, and streams matrices to a sink. */
#include "mil/export_internal.h"

#include "base/alloc.h"
#include "base/hash64.h"
#include "mil/partition.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Stores the elements at `data` as a value. `data` need not outlive the call. */
static ane_status store(struct exporting *x, struct ane_mil_type type, const void *data, struct ane_mil_value *out) {
  uint64_t count = 1, bytes;
  for (int32_t i = 0; i < type.rank; i++) count *= (uint64_t)type.dim[i];
  if (!ane_mil_bytes(type.dtype, count, &bytes)) return ane_fail(x->err, ANE_SHAPE, "too large");
  *out = (struct ane_mil_value){.type = type, .kind = ANE_MIL_NUMBERS, .count = count, .bytes = bytes};
  bool small = count < BLOB_FROM && !(x->coreai && ane_mil_dtype_bits(type.dtype) < 8);
  if (!small) {
    ane_status st = x->sink.begin(x->sink.to, &type, count, &out->offset, x->err);
    out->kind = ANE_MIL_BLOB;
    out->file = ANE_MLPACKAGE_WEIGHTS;
    return st ? st : x->sink.data(x->sink.to, data, bytes, x->err);
  }
  void *copy = ane_arena_alloc(x->arena, (size_t)bytes + 1);
  if (!copy) return ane_fail(x->err, ANE_NOMEM, "no memory for the program");
  out->data = memcpy(copy, data, bytes);
  return ANE_OK;
}

/* Stores n fp16 numbers as fp16 or fp32. */
static ane_status store_halves(struct exporting *x, ane_mil_dtype t, int32_t rank, const int64_t *dim, const uint16_t *v,
                               uint64_t n, struct ane_mil_value *out) {
  struct ane_mil_type type = ane_mil_tensor_type(t, rank, dim);
  if (t == ANE_MIL_FP16) return store(x, type, v, out);
  float *wide = ane_arena_array(x->arena, n, sizeof *wide);
  if (!wide) return ane_fail(x->err, ANE_NOMEM, "no memory for the program");
  for (uint64_t i = 0; i < n; i++) wide[i] = ane_f16_f32(v[i]);
  return store(x, type, wide, out);
}

static struct ane_mil_value *param(struct ane_mil_weight *out, const char *name) {
  struct ane_mil_attr *a = &out->params[out->n_params++];
  a->name = name;
  return &a->value;
}

/* ---- Schemes -----------------------------------------------------------------------------------------------------------*/

static ane_status put_plain(struct exporting *x, const struct ane_mil_weight_request *request, const struct ane_weights *w,
                            struct ane_mil_weight *out) {
  out->op = "const";
  return store_halves(x, request->dtype, request->rank, request->dim, (const uint16_t *)(const void *)w->payload,
                      (uint64_t)w->rows * (uint64_t)w->cols, param(out, "val"));
}

static ane_status put_int8(struct exporting *x, const struct ane_mil_weight_request *request, const struct ane_weights *w,
                           struct ane_mil_weight *out) {
  static const int8_t zero = 0;
  static const int32_t axis = 0;
  int64_t rows = w->spec.scheme == ANE_WEIGHT_INT8_CHANNEL ? w->rows : 1;
  out->op = "constexpr_affine_dequantize";
  ane_status st =
      store(x, ane_mil_tensor_type(ANE_MIL_INT8, request->rank, request->dim), w->payload, param(out, "quantized_data"));
  if (!st) st = store_halves(x, request->dtype, rows > 1, &rows, w->scales, (uint64_t)rows, param(out, "scale"));
  if (!st) st = store(x, ane_mil_tensor_type(ANE_MIL_INT8, 0, NULL), &zero, param(out, "zero_point"));
  return st ? st : store(x, ane_mil_tensor_type(ANE_MIL_INT32, 0, NULL), &axis, param(out, "axis"));
}

/* Stores the offsets of blocks, or for Core AI their minima (see struct exporting). */
static ane_status put_offsets(struct exporting *x, const struct ane_mil_weight_request *request, const struct ane_weights *w,
                              const int64_t dim[4], struct ane_mil_weight *out) {
  uint64_t n = w->sizes.offsets;
  if (!x->coreai) return store_halves(x, request->dtype, 4, dim, w->offsets, n, param(out, "offset"));
  uint16_t *minima = ane_arena_array(x->arena, n, sizeof *minima);
  if (!minima) return ane_fail(x->err, ANE_NOMEM, "no memory for the program");
  for (uint64_t i = 0; i < n; i++) minima[i] = ane_weight_minimum(w->scales[i], w->offsets[i]);
  return store_halves(x, request->dtype, 4, dim, minima, n, param(out, "minimum"));
}

static ane_status put_blocks(struct exporting *x, const struct ane_mil_weight_request *request, const struct ane_weights *w,
                             struct ane_mil_weight *out) {
  int64_t dim[4] = {w->rows, w->cols / w->spec.size, 1, 1};
  out->op = "constexpr_blockwise_shift_scale";
  uint64_t n = (uint64_t)(dim[0] * dim[1]);
  ane_mil_dtype codes = w->spec.scheme == ANE_WEIGHT_INT8_BLOCK   ? ANE_MIL_INT8
                        : w->spec.scheme == ANE_WEIGHT_INT4_BLOCK ? ANE_MIL_INT4
                                                                  : ANE_MIL_UINT4;
  ane_status st = store(x, ane_mil_tensor_type(codes, request->rank, request->dim), w->payload, param(out, "data"));
  if (!st) st = store_halves(x, request->dtype, 4, dim, w->scales, n, param(out, "scale"));
  return st || !w->sizes.offsets ? st : put_offsets(x, request, w, dim, out);
}

/* Returns the type of codes of `bits` bits. */
static ane_mil_dtype code_dtype(int bits) {
  return bits == 2   ? ANE_MIL_UINT2
         : bits == 3 ? ANE_MIL_UINT3
         : bits == 4 ? ANE_MIL_UINT4
         : bits == 6 ? ANE_MIL_UINT6
                     : ANE_MIL_UINT8;
}

/* Stores codes and tables. iOS 16 has one table for the whole matrix, of any code width but 3 bits, with the codes as bytes and
 * the shape as a separate parameter. iOS 18 has one table per run of rows. */
static ane_status put_table(struct exporting *x, const struct ane_mil_weight_request *request, const struct ane_weights *w,
                            struct ane_mil_weight *out) {
  int64_t tables = w->spec.size ? (w->rows + w->spec.size - 1) / w->spec.size : 1, entries = (int64_t)1 << w->spec.bits,
          dim[6] = {tables, 1, 1, 1, entries, 1}, bytes = (int64_t)w->sizes.payload, four = 4;
  out->op = "constexpr_lut_to_dense";
  bool old = request->version < 9;
  struct ane_mil_type codes = old ? ane_mil_tensor_type(ANE_MIL_UINT8, 1, &bytes)
                                  : ane_mil_tensor_type(code_dtype(w->spec.bits), request->rank, request->dim);
  ane_status st = store(x, codes, w->payload, param(out, "indices"));
  if (!st)
    st = store_halves(x, request->dtype, old ? 1 : 6, old ? &dim[4] : dim, w->lut, (uint64_t)(tables * entries),
                      param(out, "lut"));
  if (st || !old) return st;
  uint32_t shape[4] = {(uint32_t)request->dim[0], (uint32_t)request->dim[1], (uint32_t)request->dim[2],
                       (uint32_t)request->dim[3]};
  return store(x, ane_mil_tensor_type(ANE_MIL_UINT32, 1, &four), shape, param(out, "shape"));
}

static ane_status put(struct exporting *x, const struct ane_mil_weight_request *request, const struct ane_weights *w,
                      struct ane_mil_weight *out) {
  switch (w->spec.scheme) {
    case ANE_WEIGHT_INT8:
    case ANE_WEIGHT_INT8_CHANNEL: return put_int8(x, request, w, out);
    case ANE_WEIGHT_INT8_BLOCK:
    case ANE_WEIGHT_INT4_BLOCK:
    case ANE_WEIGHT_UINT4_BLOCK: return put_blocks(x, request, w, out);
    case ANE_WEIGHT_LUT: return put_table(x, request, w, out);
    default: return put_plain(x, request, w, out);
  }
}

struct ane_weight_spec export_spec_of(const struct ane_mil_export *e, int32_t value) {
  const struct ane_shape *s = &e->graph->values[value].shape;
  struct ane_weight_spec asked = e->specs ? e->specs[value] : (struct ane_weight_spec){.scheme = ANE_WEIGHT_FP16};
  return ane_weight_spec_fit(asked, s->dim[0], s->dim[1]);
}

/* ---- Weights, one after another ---------------------------------------------------------------------------------------- */

/* Rows of a stored matrix. Pages that have been read are released, so that only the part being processed is in memory. */
struct drained {
  struct ane_weight_rows inner;
  const struct ane_tensor *stored;
  const struct ane_mil_export *e;
};

static void read_drained(const void *arg, int64_t from, int64_t n, float *dst) {
  const struct drained *d = arg;
  uint64_t row = d->stored->bytes / (uint64_t)d->inner.rows;
  d->inner.read(d->inner.arg, from, n, dst);
  d->e->release(d->e->arg, (const uint8_t *)d->stored->data + (uint64_t)from * row, (uint64_t)n * row);
}

static struct ane_weight_rows drain(struct drained *d) {
  if (!d->e->release || d->stored->transposed || d->stored->gather) return d->inner;
  return (struct ane_weight_rows){.rows = d->inner.rows, .cols = d->inner.cols, .read = read_drained, .arg = d};
}

static ane_status encode(struct ane_mil_export *e, const struct ane_mil_weight_request *request, struct ane_weights *w,
                         struct ane_error *err) {
  int32_t v = request->value;
  struct drained source = {.stored = &e->graph->values[v].data, .e = e};
  const float *importance = e->importance ? e->importance[v] : NULL;
  ane_status st = ane_weight_rows_of(source.stored, &source.inner, err);
  struct ane_weight_rows rows = st ? (struct ane_weight_rows){0} : drain(&source);
  if (!st && !e->fitted[v]) {
    st = ane_weight_fit(&e->fits[v], e->pool, &rows, export_spec_of(e, v), importance, err);
    e->fitted[v] = !st;
  }
  e->fits[v].factor = NULL;
  if (!st && e->factor) st = e->factor(e->arg, v, e->fits[v].spec, &e->fits[v].factor, err);
  return st ? st : ane_weights_encode(w, e->pool, &rows, &e->fits[v], request->from, request->to, importance, err);
}

/* ---- Interrupted exports -------------------------------------------------------------------------------------------------*/

/* What is noted of an encoded matrix, beside its codes: this, the scales, the offsets, the tables. */
struct noted {
  int64_t rows, cols;
  struct ane_recode_error error;
  struct ane_weight_spec spec;
};

/* Takes over the matrix that an interrupted export has noted under the key. false: there is none. */
static bool recall(const struct exporting *x, const struct ane_mil_weight_request *request, const char *key, size_t len,
                   struct ane_weights *w) {
  struct ane_aimodel_note note;
  struct noted n;
  struct ane_weight_spec spec = export_spec_of(x->e, request->value);
  if (!x->sink.noted || !x->sink.noted(x->sink.to, key, len, &note) || note.size < sizeof n) return false;
  memcpy(&n, note.data, sizeof n);
  *w = (struct ane_weights){.spec = n.spec, .rows = n.rows, .cols = n.cols, .error = n.error};
  if (n.rows != request->to - request->from || !ane_weight_spec_equal(n.spec, spec) ||
      !ane_weight_sizes(n.spec, n.rows, n.cols, &w->sizes) || note.n_bytes != w->sizes.payload ||
      note.size != sizeof n + 2 * (w->sizes.scales + w->sizes.offsets + w->sizes.lut))
    return false;
  const uint8_t *rest = note.data + sizeof n;
  w->payload = ane_malloc((size_t)w->sizes.payload);
  w->scales = ane_malloc(2 * (size_t)w->sizes.scales + 1);
  w->offsets = ane_malloc(2 * (size_t)w->sizes.offsets + 1);
  w->lut = ane_malloc(2 * (size_t)w->sizes.lut + 1);
  if (!w->payload || !w->scales || !w->offsets || !w->lut) return ane_weights_free(w), false;
  memcpy(w->payload, note.bytes, (size_t)w->sizes.payload);
  memcpy(w->scales, rest, 2 * (size_t)w->sizes.scales);
  memcpy(w->offsets, rest + 2 * w->sizes.scales, 2 * (size_t)w->sizes.offsets);
  memcpy(w->lut, rest + 2 * (w->sizes.scales + w->sizes.offsets), 2 * (size_t)w->sizes.lut);
  x->e->n_kept++;
  return true;
}

/* Notes a matrix whose codes are the first parameter of `out`. Matrices of few elements are not in the file and are not noted. */
static ane_status note(const struct exporting *x, const char *key, size_t len, const struct ane_weights *w,
                       const struct ane_mil_weight *out) {
  struct noted n;
  struct ane_buffer all = {0};
  if (!x->sink.note || out->params[0].value.kind != ANE_MIL_BLOB) return ANE_OK;
  memset(&n, 0, sizeof n); /* the gaps, too: they are written */
  n.rows = w->rows, n.cols = w->cols, n.error = w->error, n.spec = w->spec;
  bool ok = ane_buffer_append(&all, &n, sizeof n) && ane_buffer_append(&all, w->scales, 2 * (size_t)w->sizes.scales) &&
            ane_buffer_append(&all, w->offsets, 2 * (size_t)w->sizes.offsets) &&
            ane_buffer_append(&all, w->lut, 2 * (size_t)w->sizes.lut);
  ane_status st = ok ? x->sink.note(x->sink.to, key, len, all.data, all.size, out->params[0].value.offset, x->err)
                     : ane_fail(x->err, ANE_NOMEM, "no memory for the program");
  ane_buffer_free(&all);
  return st;
}

static ane_status provide(struct exporting *x, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                          const char *key, size_t len, struct ane_mil_weight *out, struct ane_error *err) {
  struct ane_mil_export *e = x->e;
  bool exact = e->specs == NULL && request->dtype == ANE_MIL_FP32; /* no scheme is requested, and fp16 would round the weights */
  if (!request->matrix || exact) return ane_mil_weight_plain(NULL, arena, request, out, err);
  struct ane_weights w = {0};
  ane_status st = recall(x, request, key, len, &w) ? ANE_OK : encode(e, request, &w, err);
  if (!st) st = put(x, request, &w, out);
  if (!st) st = note(x, key, len, &w, out);
  if (!st && e->wrote) st = e->wrote(e->arg, request->value, request->from, request->to, &w, err);
  ane_weights_free(&w);
  return st;
}

ane_status export_provide(void *arg, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                          struct ane_mil_weight *out, struct ane_error *err) {
  struct exporting *x = arg;
  char text[256];
  int len = snprintf(text, sizeof text, "%" PRId32 " %" PRId64 " %" PRId64 " %d %d %a %a", request->value, request->from,
                     request->to, request->matrix, (int)request->dtype, (double)request->add, (double)request->times);
  for (int32_t i = 0; i < request->rank; i++)
    len += snprintf(text + len, sizeof text - (size_t)len, " %" PRId64, request->dim[i]);
  uint32_t at = ane_strmap_get(&x->known, text, (size_t)len);
  if (at != UINT32_MAX) return memcpy(out, x->answers.data + at * sizeof *out, sizeof *out), ANE_OK;
  ane_status st = provide(x, arena, request, text, (size_t)len, out, err);
  if (st) return st;
  const char *key = ane_arena_strndup(x->arena, text, (size_t)len);
  at = (uint32_t)(x->answers.size / sizeof *out);
  bool kept = key && ane_buffer_append(&x->answers, out, sizeof *out) && ane_strmap_put(&x->known, key, (size_t)len, at, NULL);
  return kept ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for the program");
}

/* Does the file already hold a constant with these bytes? */
static bool find_stored(const struct exporting *x, const struct ane_mil_value *v, uint64_t hash, uint64_t *offset) {
  const struct stored *list = (const void *)x->constants.data;
  for (size_t i = 0; i < x->constants.size / sizeof *list; i++)
    if (list[i].hash == hash && list[i].bytes == v->bytes && list[i].type.dtype == v->type.dtype &&
        memcmp(list[i].data, v->data, v->bytes) == 0)
      return *offset = list[i].offset, true;
  return false;
}

ane_status export_store_constant(struct exporting *x, struct ane_mil_value *v) {
  struct ane_hash64 h = {0};
  ane_hash64_add(&h, v->data, v->bytes);
  struct stored s = {.type = v->type, .bytes = v->bytes, .hash = ane_hash64_end(&h), .data = v->data};
  if (find_stored(x, v, s.hash, &s.offset)) {
    v->kind = ANE_MIL_BLOB;
    v->file = ANE_MLPACKAGE_WEIGHTS;
    v->offset = s.offset;
    v->data = NULL;
    return ANE_OK;
  }
  ane_status st = store(x, v->type, v->data, v);
  if (st || v->kind != ANE_MIL_BLOB) return st; /* below BLOB_FROM elements: in the program, not in the file */
  s.offset = v->offset;
  if (!ane_buffer_append(&x->constants, &s, sizeof s)) st = ane_fail(x->err, ANE_NOMEM, "no memory for the program");
  return st;
}

ane_status export_store_rest(struct exporting *x, const struct ane_mil_model *m) {
  ane_status st = ANE_OK;
  for (uint32_t f = 0; f < m->program.n_functions; f++) {
    const struct ane_mil_block *block = &m->program.functions[f].block;
    for (uint32_t i = 0; i < block->n_ops && !st; i++) {
      const struct ane_mil_op *op = &block->ops[i];
      if (strcmp(op->type, "const") != 0) continue;
      struct ane_mil_value *v = (struct ane_mil_value *)(uintptr_t)ane_mil_op_attr(op, "val");
      if (v->kind != ANE_MIL_NUMBERS || v->count < BLOB_FROM || (v->type.dtype != ANE_MIL_FP16 && v->type.dtype != ANE_MIL_FP32))
        continue;
      st = export_store_constant(x, v);
    }
  }
  return st;
}

void export_free(struct exporting *x) {
  ane_strmap_free(&x->known);
  ane_buffer_free(&x->answers);
  ane_buffer_free(&x->constants);
}
