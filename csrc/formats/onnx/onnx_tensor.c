/* TensorProto: shapes, element types, and the three forms of stored numbers: raw bytes, typed fields, external files. */
#include "formats/onnx/onnx_internal.h"

#include "formats/wire.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static ane_status tensor_fail(struct onnx_reader *r, const char *what, ane_status code, const char *fmt, ...) ANE_PRINTF(4, 5);
static ane_status tensor_fail(struct onnx_reader *r, const char *what, ane_status code, const char *fmt, ...) {
  char text[240];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return onnx_fail(r, code, "%s: %s", what, text);
}

/* ---- Types ---------------------------------------------------------------------------------------------------------*/

/* Float types without an ane_dtype are widened to float32 when they are read (ONNX: onnx.proto, "Float stored in 8 bits"; OCP
 * Microscaling Formats 1.0 for E2M1 and E8M0). 2-bit integers become int8. */
enum { F8E4M3FNUZ = 18, F8E5M2FNUZ = 20, F4E2M1 = 23, F8E8M0 = 24, UINT2 = 25, INT2 = 26 };

static ane_dtype dtype_of(int32_t id) {
  for (int t = 0; id > 0 && t < ANE_DTYPE_COUNT; t++)
    if (ane_dtype_info((ane_dtype)t)->onnx == id) return (ane_dtype)t;
  return ANE_DTYPE_COUNT;
}

/* Bits of an element of a widened type, 0: the type is none of them. */
static unsigned widened_bits(int32_t id) {
  switch (id) {
    case F8E4M3FNUZ:
    case F8E5M2FNUZ:
    case F8E8M0: return 8;
    case F4E2M1: return 4;
    case UINT2:
    case INT2: return 2;
    default: return 0;
  }
}

/* FNUZ: one NaN (sign bit alone), no infinities, exponent bias one higher than the plain types. */
static float fnuz(uint8_t b, unsigned mantissa, int bias) {
  if (b == 0x80) return ane_bits_f32(0x7FC00000);
  int exp = (b & 0x7F) >> mantissa, man = b & ((1 << mantissa) - 1);
  float f = (float)(exp ? man + (1 << mantissa) : man) / (float)(1 << mantissa);
  for (int e = (exp ? exp : 1) - bias; e; e += e < 0 ? 1 : -1) f = e < 0 ? f / 2 : f * 2;
  return b & 0x80 ? -f : f;
}

static float widen(int32_t id, uint8_t code) {
  static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  switch (id) {
    case F8E4M3FNUZ: return fnuz(code, 3, 8);
    case F8E5M2FNUZ: return fnuz(code, 2, 16);
    case F8E8M0: return code == 255 ? ane_bits_f32(0x7FC00000) : code ? ane_bits_f32((uint32_t)code << 23) : 0x1p-127f;
    default: return code & 8 ? -e2m1[code & 7] : e2m1[code & 7];
  }
}

/* ---- Shape ---------------------------------------------------------------------------------------------------------*/

static ane_status read_shape(struct onnx_reader *r, const AneOnnx__Tensor *t, const char *what, struct ane_onnx_tensor *out) {
  if (t->n_dims > ANE_ONNX_RANK)
    return tensor_fail(r, what, ANE_UNSUPPORTED, "has %zu dimensions, at most %d are supported", t->n_dims, ANE_ONNX_RANK);
  uint64_t room = 1; /* with 1 for a dimension of 0: those must not hide an overflow of the others */
  out->rank = (int32_t)t->n_dims;
  out->count = 1;
  for (size_t i = 0; i < t->n_dims; i++) {
    int64_t d = t->dims[i];
    if (d < 0) return tensor_fail(r, what, ANE_FORMAT, "dimension %zu must be 0 or more, but is %" PRId64, i + 1, d);
    if (!ane_mul_u64(room, (uint64_t)ANE_MAX(d, 1), &room) || room > UINT64_C(1) << 57)
      return tensor_fail(r, what, ANE_FORMAT, "dimension %zu is %" PRId64 ": more elements than any file holds", i + 1, d);
    out->dim[i] = d;
    out->count *= (uint64_t)d;
  }
  return ANE_OK;
}

/* Bytes of n elements as stored: sub-byte types fill whole bytes over the flat array. */
static uint64_t stored_bytes(int32_t id, ane_dtype dtype, uint64_t n) {
  unsigned bits = widened_bits(id);
  if (!bits) bits = dtype == ANE_I4 || dtype == ANE_U4 ? 4 : 8 * ane_dtype_info(dtype)->bytes;
  return (n * bits + 7) / 8; /* n <= 2^57, bits <= 64 */
}

/* ---- Typed fields --------------------------------------------------------------------------------------------------*/

static ane_status wrong_count(struct onnx_reader *r, const char *what, const char *field, uint64_t want, size_t found) {
  return tensor_fail(r, what, ANE_FORMAT, "%s has %zu numbers, but its shape needs %" PRIu64, field, found, want);
}

/* Copies the low `size` bytes of each number. The machine must be little-endian. */
static void narrow(const void *src, size_t step, uint8_t *dst, size_t size, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) memcpy(dst + i * size, (const uint8_t *)src + i * step, size);
}

static ane_status typed_data(struct onnx_reader *r, const AneOnnx__Tensor *t, const char *what, uint64_t bytes,
                             const uint8_t **data) {
  struct {
    const char *name;
    const void *src;
    size_t n, step;
  } field = {"int32_data", t->int32_data, t->n_int32_data, 4};
  ane_dtype dtype = dtype_of(t->data_type);
  size_t size = dtype == ANE_DTYPE_COUNT || dtype == ANE_I4 || dtype == ANE_U4 ? 1 : ane_dtype_info(dtype)->bytes;
  uint64_t want = bytes / size;
  if (dtype == ANE_F32)
    field.name = "float_data", field.src = t->float_data, field.n = t->n_float_data;
  else if (dtype == ANE_F64)
    field.name = "double_data", field.src = t->double_data, field.n = t->n_double_data, field.step = 8;
  else if (dtype == ANE_I64)
    field.name = "int64_data", field.src = t->int64_data, field.n = t->n_int64_data, field.step = 8;
  else if (dtype == ANE_U32 || dtype == ANE_U64)
    field.name = "uint64_data", field.src = t->uint64_data, field.n = t->n_uint64_data, field.step = 8;
  size_t all = t->n_float_data + t->n_double_data + t->n_int64_data + t->n_uint64_data + t->n_int32_data;
  if (field.n != want || all != want) return wrong_count(r, what, field.name, want, all == field.n ? field.n : all);
  uint8_t *dst = onnx_array(r, (size_t)want, size);
  if (!dst) return onnx_no_memory(r);
  narrow(field.src, field.step, dst, size, want);
  *data = dst;
  return ANE_OK;
}

/* ---- Whole tensors -------------------------------------------------------------------------------------------------*/

static bool has_typed(const AneOnnx__Tensor *t) {
  return t->n_float_data || t->n_double_data || t->n_int64_data || t->n_uint64_data || t->n_int32_data;
}

static ane_status find_bytes(struct onnx_reader *r, const AneOnnx__Tensor *t, const char *what, uint64_t bytes,
                             struct ane_onnx_tensor *out) {
  bool external = t->data_location == 1;
  if (t->data_location != 0 && !external)
    return tensor_fail(r, what, ANE_FORMAT, "data_location must be 0 (here) or 1 (external), but is %d", (int)t->data_location);
  if (t->segment) return tensor_fail(r, what, ANE_UNSUPPORTED, "is one segment of a tensor");
  if ((external && (t->has_raw_data || has_typed(t))) || (t->has_raw_data && has_typed(t)))
    return tensor_fail(r, what, ANE_FORMAT, "has its numbers in more than one place");
  if (external) return onnx_external(r, t, what, bytes, out);
  out->file = UINT32_MAX;
  if (!t->has_raw_data) return typed_data(r, t, what, bytes, &out->data);
  size_t n;
  out->data = ane_wire_view(&t->raw_data, r->s->files[0].map.data, &n);
  if (n != bytes) return tensor_fail(r, what, ANE_FORMAT, "raw_data has %zu bytes, but its shape needs %" PRIu64, n, bytes);
  out->file = 0;
  out->offset = (uint64_t)(out->data - r->s->files[0].map.data);
  return ANE_OK;
}

/* Numbers of a widened type, from the stored bytes at out->data. */
static ane_status widen_all(struct onnx_reader *r, int32_t id, struct ane_onnx_tensor *out) {
  /* analyser: id is a widened type: other types have a dtype or were refused. */
  unsigned bits = widened_bits(id), per = 8 / bits;
  bool floats = id != UINT2 && id != INT2;
  out->dtype = floats ? ANE_F32 : id == INT2 ? ANE_I8 : ANE_U8;
  out->bytes = out->count * (floats ? 4 : 1);
  uint8_t *dst = onnx_array(r, (size_t)out->count, floats ? 4 : 1);
  if (!dst) return onnx_no_memory(r);
  for (uint64_t i = 0; i < out->count; i++) {
    uint8_t code = (uint8_t)(out->data[i / per] >> bits * (i % per) & ((1u << bits) - 1));
    float f = floats ? widen(id, code) : 0;
    if (floats)
      memcpy(dst + 4 * i, &f, 4);
    else
      dst[i] = id == INT2 && code > 1 ? (uint8_t)(code - 4) : code;
  }
  out->data = dst;
  out->file = UINT32_MAX;
  return ANE_OK;
}

ane_status onnx_tensor(struct onnx_reader *r, const AneOnnx__Tensor *t, const char *what, struct ane_onnx_tensor *out) {
  *out = (struct ane_onnx_tensor){.dtype = dtype_of(t->data_type)};
  if (out->dtype == ANE_DTYPE_COUNT && !widened_bits(t->data_type)) {
    bool known = t->data_type == 8 || t->data_type == 14 || t->data_type == 15 || t->data_type == 27 || t->data_type == 28;
    return tensor_fail(r, what, known ? ANE_UNSUPPORTED : ANE_FORMAT, "data type %d is not one of the supported ones",
                       (int)t->data_type);
  }
  ane_status st = read_shape(r, t, what, out);
  if (st) return st;
  if (!(out->name = onnx_copy(r, t->name))) return onnx_no_memory(r);
  out->bytes = stored_bytes(t->data_type, out->dtype, out->count);
  st = find_bytes(r, t, what, out->bytes, out);
  return st || out->dtype != ANE_DTYPE_COUNT ? st : widen_all(r, t->data_type, out);
}
