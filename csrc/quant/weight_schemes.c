/* Names, shapes and sizes of the schemes, and the rows of tensors. */
#include "quant/weight_schemes.h"

#include "tensor/rows.h"

#include <string.h>

struct row {
  const char *name;
  struct ane_weight_spec spec;
};

#define ANE_WEIGHT(scheme, size, bits, name) {name, {ANE_WEIGHT_##scheme, size, bits}},
static const struct row rows[] = {
#include "quant/weight_scheme.def"
};
#undef ANE_WEIGHT

enum { ROWS = sizeof rows / sizeof *rows };

bool ane_weight_spec_from_name(const char *name, struct ane_weight_spec *out) {
  for (int i = 0; i < ROWS; i++)
    if (strcmp(rows[i].name, name) == 0) return *out = rows[i].spec, true;
  return false;
}

bool ane_weight_spec_equal(struct ane_weight_spec a, struct ane_weight_spec b) {
  return a.scheme == b.scheme && a.size == b.size && a.bits == b.bits;
}

const char *ane_weight_spec_name(struct ane_weight_spec s) {
  for (int i = 0; i < ROWS; i++)
    if (ane_weight_spec_equal(rows[i].spec, s)) return rows[i].name;
  return "?";
}

bool ane_weight_has_blocks(struct ane_weight_spec s) {
  return s.scheme == ANE_WEIGHT_INT8_BLOCK || s.scheme == ANE_WEIGHT_INT4_BLOCK || s.scheme == ANE_WEIGHT_UINT4_BLOCK;
}

const char *ane_weight_spec_list(int i) { return i >= 0 && i < ROWS ? rows[i].name : NULL; }

struct ane_weight_spec ane_weight_spec_fit(struct ane_weight_spec s, int64_t n_rows, int64_t n_cols) {
  if (ane_weight_has_blocks(s)) {
    while (s.size > 32 && n_cols % s.size) s.size /= 2;
    if (n_cols % s.size) s = (struct ane_weight_spec){.scheme = ANE_WEIGHT_INT8_CHANNEL};
  }
  if (s.scheme == ANE_WEIGHT_LUT) {
    while (s.size > 8 && n_rows % s.size) s.size /= 2;
    if (s.size && n_rows % s.size) s.size = 0;
  }
  return s;
}

bool ane_weight_sizes(struct ane_weight_spec s, int64_t n_rows, int64_t n_cols, struct ane_weight_sizes *out) {
  uint64_t n, r = (uint64_t)n_rows;
  if (n_rows < 1 || n_cols < 1 || __builtin_mul_overflow(r, (uint64_t)n_cols, &n) || n > INT64_MAX / 8) return false;
  *out = (struct ane_weight_sizes){0};
  switch (s.scheme) {
    case ANE_WEIGHT_FP16: out->payload = 2 * n; break;
    case ANE_WEIGHT_INT8: out->payload = n, out->scales = 1; break;
    case ANE_WEIGHT_INT8_CHANNEL: out->payload = n, out->scales = r; break;
    case ANE_WEIGHT_INT8_BLOCK: out->payload = n, out->scales = n / (uint64_t)s.size; break;
    case ANE_WEIGHT_INT4_BLOCK: out->payload = (n + 1) / 2, out->scales = n / (uint64_t)s.size; break;
    case ANE_WEIGHT_UINT4_BLOCK: out->payload = (n + 1) / 2, out->scales = out->offsets = n / (uint64_t)s.size; break;
    case ANE_WEIGHT_LUT:
      out->payload = (n * (uint64_t)s.bits + 7) / 8;
      out->lut = (s.size ? r / (uint64_t)s.size : 1) << s.bits;
      break;
  }
  out->bytes = out->payload + 2 * (out->scales + out->offsets + out->lut);
  return true;
}

/* ---- Rows of tensors -----------------------------------------------------------------------------------------------*/

static void read_plain(const void *arg, int64_t from, int64_t n, float *dst) {
  const struct ane_tensor *t = arg;
  uint64_t count, cols, row = 0;
  ane_shape_count(&t->shape, &count);
  cols = t->shape.rank > 1 ? count / (uint64_t)t->shape.dim[0] : 1;
  ane_dtype_bytes(t->dtype, cols, &row);
  ane_decoder(t->dtype)((const uint8_t *)t->data + (uint64_t)from * row, dst, (uint64_t)n * cols);
}

static void read_transposed(const void *arg, int64_t from, int64_t n, float *dst) {
  enum { ROWS_AT_ONCE = 16, PIECE = 64, MAX_BYTES = 8 };
  const struct ane_tensor *t = arg;
  ane_decode_fn decode = ane_decoder(t->dtype);
  size_t size = ane_dtype_info(t->dtype)->bytes;
  int64_t cols = t->shape.dim[1];
  uint8_t piece[ROWS_AT_ONCE * PIECE * MAX_BYTES];
  for (int64_t r = 0; r < n; r += ROWS_AT_ONCE)
    for (int64_t c = 0; c < cols; c += PIECE) {
      int64_t height = ANE_MIN(n - r, ROWS_AT_ONCE), width = ANE_MIN(cols - c, PIECE);
      const uint8_t *src = (const uint8_t *)t->data + (size_t)(c * t->ld + from + r) * size;
      ane_copy_matrix(src, size, 1, t->ld, height, width, piece, PIECE * MAX_BYTES);
      for (int64_t i = 0; i < height; i++) decode(piece + i * PIECE * MAX_BYTES, dst + (r + i) * cols + c, (uint64_t)width);
    }
}

static void read_gathered(const void *arg, int64_t from, int64_t n, float *dst) {
  const struct ane_tensor *t = arg;
  for (int64_t i = 0; i < n; i++) ane_gather_floats(t, from + i, dst + i * t->shape.dim[1]);
}

ane_status ane_weight_rows_of(const struct ane_tensor *t, struct ane_weight_rows *out, struct ane_error *err) {
  const struct ane_shape *s = &t->shape;
  char text[ANE_SHAPE_TEXT];
  uint64_t count, row;
  bool matrix = s->rank >= 1 && ane_shape_count(s, &count) && count > 0 && count <= INT64_MAX;
  for (uint32_t i = 2; matrix && i < s->rank; i++) matrix = s->dim[i] == 1;
  if (!matrix || (t->transposed && s->rank != 2)) return ane_fail(err, ANE_SHAPE, "is not a matrix: %s", ane_shape_text(s, text));
  if (!ane_decoder(t->dtype)) return ane_fail(err, ANE_UNSUPPORTED, "%s cannot be decoded", ane_dtype_info(t->dtype)->name);
  *out = (struct ane_weight_rows){s->dim[0], (int64_t)(count / (uint64_t)s->dim[0]),
                                  t->gather       ? read_gathered
                                  : t->transposed ? read_transposed
                                                  : read_plain,
                                  t};
  if (!ane_dtype_bytes(t->dtype, (uint64_t)out->cols, &row))
    return ane_fail(err, ANE_SHAPE, "its rows are not whole blocks of %s", ane_dtype_info(t->dtype)->name);
  return ANE_OK;
}
