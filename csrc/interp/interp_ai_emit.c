/* Types, constants and operations of MIL, as the translation of Core AI programs makes them. */
#include "interp/interp_ai.h"

#include "tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

ane_status ai_no_memory(struct translation *t) { return ane_fail(t->err, ANE_NOMEM, "no memory for the program"); }

ane_status ai_fail(struct translation *t, ane_status code, const char *format, ...) {
  char text[256];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  return ane_fail(t->err, code, "operation %.64s: %s", t->op->name, text);
}

/* ---- Types and constants ---------------------------------------------------------------------------------------------*/

static ane_mil_dtype dtype_of(ane_ai_dtype t) {
  switch (t) {
    case ANE_AI_BOOL: return ANE_MIL_BOOL;
    case ANE_AI_FP16: return ANE_MIL_FP16;
    case ANE_AI_FP32: return ANE_MIL_FP32;
    case ANE_AI_BF16: return ANE_MIL_BF16;
    case ANE_AI_FP64: return ANE_MIL_FP64;
    case ANE_AI_INT4: return ANE_MIL_INT4;
    case ANE_AI_UINT4: return ANE_MIL_UINT4;
    case ANE_AI_UINT6: return ANE_MIL_UINT6;
    case ANE_AI_UINT3: return ANE_MIL_UINT3;
    case ANE_AI_UINT2: return ANE_MIL_UINT2;
    case ANE_AI_UINT1: return ANE_MIL_UINT1;
    case ANE_AI_FP8E4M3: return ANE_MIL_FP8E4M3;
    case ANE_AI_FP8E5M2: return ANE_MIL_FP8E5M2;
    case ANE_AI_FP4E2M1:
    case ANE_AI_FP8E8M0: return ANE_MIL_FP32; /* constants are converted */
    case ANE_AI_INT2:
    case ANE_AI_INT8: return ANE_MIL_INT8;
    case ANE_AI_UINT8: return ANE_MIL_UINT8;
    case ANE_AI_INT16:
    case ANE_AI_UINT16:
    case ANE_AI_INT32:
    case ANE_AI_UINT32:
    case ANE_AI_INT64:
    case ANE_AI_UINT64: return ANE_MIL_INT32;
    default: return ANE_MIL_STRING; /* not supported */
  }
}

ane_status ai_type_of(struct translation *t, const struct ane_ai_type *from, struct ane_mil_type *out) {
  ane_mil_dtype d = dtype_of(from->dtype);
  if (d == ANE_MIL_STRING) return ane_fail(t->err, ANE_UNSUPPORTED, "elements of type %s", ane_ai_dtype_name(from->dtype));
  *out = ane_mil_tensor_type(d, from->rank, from->dim);
  if (from->kind == ANE_AI_HANDLE) out->kind = ANE_MIL_STATE;
  return ANE_OK;
}

const struct ane_mil_value *ai_value(struct translation *t, struct ane_mil_type type, const void *data, uint64_t count) {
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  uint64_t bytes = 0;
  (void)ane_mil_bytes(type.dtype, count, &bytes);
  void *copy = v ? ane_arena_alloc(t->arena, (size_t)bytes + 1) : NULL;
  if (!copy) return NULL;
  if (bytes) memcpy(copy, data, (size_t)bytes);
  *v = (struct ane_mil_value){.type = type, .kind = ANE_MIL_NUMBERS, .count = count, .data = copy, .bytes = bytes};
  return v;
}

const struct ane_mil_value *ai_ints(struct translation *t, const int32_t *v, int64_t n) {
  return ai_value(t, ane_mil_tensor_type(ANE_MIL_INT32, 1, &n), v, (uint64_t)n);
}
const struct ane_mil_value *ai_integer(struct translation *t, int32_t v) {
  return ai_value(t, ane_mil_tensor_type(ANE_MIL_INT32, 0, NULL), &v, 1);
}
const struct ane_mil_value *ai_flag(struct translation *t, bool v) {
  uint8_t byte = v;
  return ai_value(t, ane_mil_tensor_type(ANE_MIL_BOOL, 0, NULL), &byte, 1);
}
const struct ane_mil_value *ai_real(struct translation *t, float v) {
  return ai_value(t, ane_mil_tensor_type(ANE_MIL_FP32, 0, NULL), &v, 1);
}

const struct ane_mil_value *ai_text(struct translation *t, const char *s) {
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  const char **list = v ? ane_arena_alloc(t->arena, sizeof *list) : NULL;
  if (!list) return NULL;
  *list = s;
  *v = (struct ane_mil_value){
      .type = ane_mil_tensor_type(ANE_MIL_STRING, 0, NULL), .kind = ANE_MIL_STRINGS, .count = 1, .strings = list};
  return v;
}

/* ---- Operations of MIL --------------------------------------------------------------------------------------------------*/

const char *ai_name(struct translation *t) {
  char name[24];
  int len = snprintf(name, sizeof name, "%%%" PRIu32, t->n_names++);
  return ane_arena_strndup(t->arena, name, (size_t)len);
}

static ane_status bind(struct translation *t, const struct param *p, struct ane_mil_arg *out) {
  uint32_t n = p->list ? p->n : 1;
  struct ane_mil_binding *b = ane_arena_array(t->arena, (size_t)n + 1, sizeof *b);
  if (!b) return ai_no_memory(t);
  for (uint32_t i = 0; i < n; i++) {
    const struct slot *s = p->list ? p->list[i] : p->slot;
    if (s && !s->name) return ai_fail(t, ANE_FORMAT, "an operand must be a tensor, but is a token");
    if (s)
      b[i].name = s->name;
    else
      b[i].value = p->value;
  }
  *out = (struct ane_mil_arg){p->name, b, n};
  return ANE_OK;
}

ane_status ai_emit(struct translation *t, const char *type, const struct param *params, uint32_t n, struct slot *out,
                   uint32_t n_out) {
  struct ane_mil_op op = {.type = type, .n_outputs = n_out};
  struct ane_mil_arg *args = ane_arena_array(t->arena, (size_t)n + 1, sizeof *args);
  struct ane_mil_named_type *outputs = ane_arena_array(t->arena, (size_t)n_out + 1, sizeof *outputs);
  if (!args || !outputs) return ai_no_memory(t);
  for (uint32_t i = 0; i < n; i++) {
    if (!params[i].slot && !params[i].value && !params[i].list)
      return ai_no_memory(t); /* out of memory while the value was made */
    ane_status st = bind(t, &params[i], &args[op.n_inputs++]);
    if (st) return st;
  }
  for (uint32_t i = 0; i < n_out; i++) {
    /* analyser: out is NULL only where n_out is 0. */
    if (!(out[i].name = ai_name(t))) return ai_no_memory(t);
    outputs[i] = (struct ane_mil_named_type){out[i].name, out[i].type};
  }
  op.inputs = args;
  op.outputs = outputs;
  return ane_buffer_append(&t->ops, &op, sizeof op) ? ANE_OK : ai_no_memory(t);
}

ane_status ai_emit_constant(struct translation *t, const struct ane_mil_value *v, struct slot *out) {
  struct ane_mil_attr *a = ane_arena_alloc(t->arena, sizeof *a);
  struct ane_mil_named_type *o = ane_arena_alloc(t->arena, sizeof *o);
  if (!v || !a || !o) return ai_no_memory(t);
  *out = (struct slot){ai_name(t), v, v->type};
  if (!out->name) return ai_no_memory(t);
  *a = (struct ane_mil_attr){"val", *v};
  *o = (struct ane_mil_named_type){out->name, v->type};
  struct ane_mil_op op = {.type = "const", .outputs = o, .attrs = a, .n_outputs = 1, .n_attrs = 1};
  return ane_buffer_append(&t->ops, &op, sizeof op) ? ANE_OK : ai_no_memory(t);
}

/* ---- Constants ------------------------------------------------------------------------------------------------------------*/

/* Returns element i of stored integers, clamped to int32. */
static int32_t narrow(ane_ai_dtype t, const uint8_t *p, uint64_t i) {
  int64_t v = 0;
  switch (t) {
    case ANE_AI_INT16: v = (int16_t)ane_load_u16(p + 2 * i); break;
    case ANE_AI_UINT16: v = ane_load_u16(p + 2 * i); break;
    case ANE_AI_INT32: v = (int32_t)ane_load_u32(p + 4 * i); break;
    case ANE_AI_UINT32: v = ane_load_u32(p + 4 * i); break;
    default: v = (int64_t)ane_load_u64(p + 8 * i); break;
  }
  return v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : (int32_t)v;
}

enum { MAX_BYTES = 1 << 30, MAX_INLINE = 1 << 26 }; /* limits of copied constants: of all, and of those outside resources */

void *ai_copy(struct translation *t, uint64_t bytes) {
  void *p = NULL;
  if (bytes > MAX_BYTES - t->bytes)
    (void)ai_fail(t, ANE_UNSUPPORTED, "constants that must be converted have more than %d bytes", (int)MAX_BYTES);
  else if (!(p = ane_arena_alloc(t->arena, (size_t)bytes + 1)))
    (void)ai_no_memory(t);
  else
    t->bytes += bytes;
  return p;
}

/* Expands the one value of a splat to `count` elements. */
static void spread(const struct ane_ai_op *op, uint64_t count, uint8_t *out) {
  uint32_t bits = ane_ai_dtype_bits(op->out->type.dtype);
  const uint8_t *one = op->data.data;
  for (uint64_t i = 0; bits >= 8 && i < count; i++) memcpy(out + i * (bits / 8), one, bits / 8);
  for (uint64_t i = 0; bits < 8 && i < count * bits; i++) out[i / 8] |= (uint8_t)((one[0] >> i % bits & 1) << i % 8);
}

/* Return the value of a 4-bit float, E2M1, and of an 8-bit exponent, E8M0 (OCP Microscaling Formats, version 1.0). */
static float fp4(uint32_t code) {
  static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}
static float exponent(uint32_t code) { return code == 255 ? NAN : ldexpf(1, (int)code - 127); }

/* Converts elements to the type that they have in MIL, if it is another one. NULL: the error is set. */
static const uint8_t *converted(struct translation *t, ane_ai_dtype from, ane_mil_dtype to, const uint8_t *data, uint64_t count) {
  bool wide = to == ANE_MIL_INT32 && from != ANE_AI_INT32, floats = from == ANE_AI_FP4E2M1 || from == ANE_AI_FP8E8M0;
  if (!wide && !floats && from != ANE_AI_INT2) return data;
  uint8_t *all = ai_copy(t, count * (from == ANE_AI_INT2 ? 1 : 4));
  for (uint64_t i = 0; all && i < count; i++) {
    uint32_t two = data[i / 4] >> 2 * (i % 4) & 3, four = data[i / 2] >> 4 * (i % 2) & 15;
    if (from == ANE_AI_INT2)
      all[i] = (uint8_t)(two > 1 ? (int)two - 4 : (int)two);
    else if (wide)
      ane_store_u32(all + 4 * i, (uint32_t)narrow(from, data, i));
    else
      ane_store_u32(all + 4 * i, ane_f32_bits(from == ANE_AI_FP4E2M1 ? fp4(four) : exponent(data[i])));
  }
  return all;
}

ane_status ai_translate_constant(struct translation *t, const struct ane_ai_op *op, struct slot *out) {
  const struct ane_ai_type *from = &op->out->type;
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  uint64_t count, bytes;
  struct ane_mil_type type;
  if (!v) return ai_no_memory(t);
  ane_status st = ai_type_of(t, from, &type);
  if (st) return st;
  bool blank = !op->data.data && op->data.resource >= 0;
  if ((!op->data.data && !blank) || !ane_ai_count(from, &count) || !ane_ai_bytes(from->dtype, count, &bytes))
    return ai_fail(t, ANE_FORMAT, "a constant without data");
  const uint8_t *data = op->data.data;
  *v = (struct ane_mil_value){.type = type, .kind = ANE_MIL_NUMBERS, .count = count};
  (void)ane_mil_bytes(type.dtype, count, &v->bytes);
  if (blank) {
    v->kind = ANE_MIL_BLOB;
    v->offset = (uint64_t)op->data.resource;
    return ai_emit_constant(t, v, out);
  }
  if (op->data.splat || ((uintptr_t)data % 16 && bytes < MAX_INLINE)) { /* elements outside resources are not aligned */
    uint8_t *all = ai_copy(t, bytes);
    if (!all) return t->err->code;
    if (op->data.splat)
      spread(op, count, all);
    else if (bytes)
      memcpy(all, data, (size_t)bytes);
    data = all;
  }
  v->data = converted(t, from->dtype, type.dtype, data, count);
  return v->data ? ai_emit_constant(t, v, out) : t->err->code;
}

bool ai_constant_ints(const struct slot *s, int32_t *out, int64_t most, int64_t *n) {
  if (!s->raw || s->raw->type.dtype != ANE_MIL_INT32 || s->raw->count > (uint64_t)most) return false;
  *n = (int64_t)s->raw->count;
  for (int64_t i = 0; i < *n; i++) out[i] = (int32_t)ane_mil_integer(s->raw, (uint64_t)i);
  return true;
}
