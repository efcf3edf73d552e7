/* The MIL builder itself: names, constants, and operations in order. */
#include "mil/build.h"

#include "tensor/finite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Calls return this value after a failure. Nobody reads it any more; its dimensions are harmless. */
static const struct ane_mil_named_type nothing = {
    "nothing", {.kind = ANE_MIL_TENSOR, .dtype = ANE_MIL_FP32, .rank = 4, .dim = {1, 1, 1, 1, 1, 1, 1, 1}}};

void mil_build_init(struct mil_build *b, struct ane_arena *arena, int32_t version, ane_mil_dtype dtype, struct ane_error *err) {
  *b = (struct mil_build){.arena = arena, .err = err, .version = version, .dtype = dtype, .scope = "model"};
}

void mil_build_free(struct mil_build *b) {
  ane_buffer_free(&b->ops);
  ane_buffer_free(&b->shared);
  ane_strmap_free(&b->names);
  ane_strmap_free(&b->constants);
}

void mil_build_no_memory(struct mil_build *b) { mil_build_fail(b, ane_fail(b->err, ANE_NOMEM, "no memory for the program")); }

/* Allocates `count` elements of `size` bytes in the arena. NULL: out of memory; the failure is noted. */
static void *allocate(struct mil_build *b, size_t count, size_t size) {
  void *p = b->status ? NULL : ane_arena_array(b->arena, ANE_MAX(count, (size_t)1), size);
  if (!p) mil_build_no_memory(b);
  return p;
}

static const void *keep(struct mil_build *b, const void *data, size_t count, size_t size) {
  void *p = allocate(b, count, size);
  return p && count ? memcpy(p, data, count * size) : p;
}

static const char *keep_text(struct mil_build *b, const char *s) { return keep(b, s, strlen(s) + 1, 1); }

/* ---- Names ---------------------------------------------------------------------------------------------------------*/

enum { NAME_TEXT = 512 };

const char *mil_name(struct mil_build *b, const char *name) {
  char text[NAME_TEXT];
  snprintf(text, sizeof text, "%s", name);
  for (int i = 2; !b->status; i++) {
    const char *kept = keep_text(b, text);
    uint32_t old;
    if (!kept) break;
    if (!ane_strmap_put(&b->names, kept, strlen(kept), 0, &old)) mil_build_no_memory(b);
    if (old == UINT32_MAX) return kept;
    snprintf(text, sizeof text, "%.480s_%d", name, i);
  }
  return nothing.name;
}

static const char *scoped_name(struct mil_build *b, const char *name) {
  char text[NAME_TEXT];
  snprintf(text, sizeof text, "%.400s_%.100s", b->scope, name);
  return mil_name(b, text);
}

static mil_value new_value(struct mil_build *b, const char *name, struct ane_mil_type type) {
  struct ane_mil_named_type *v = allocate(b, 1, sizeof *v);
  if (!v) return &nothing;
  *v = (struct ane_mil_named_type){name, type};
  return v;
}

mil_value mil_given(struct mil_build *b, const char *name, struct ane_mil_type type) { return new_value(b, name, type); }

/* ---- Operations ------------------------------------------------------------------------------------------------------*/

static void append(struct mil_build *b, const struct ane_mil_op *op) {
  if (!b->status && !ane_buffer_append(&b->ops, op, sizeof *op)) mil_build_no_memory(b);
}

static struct ane_mil_value text_value(struct mil_build *b, const char *s) {
  const char *kept = keep_text(b, s);
  return (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_STRING, 0, NULL),
                                .kind = ANE_MIL_STRINGS,
                                .count = 1,
                                .strings = keep(b, &kept, 1, sizeof kept)};
}

/* Appends the attribute `name`, which every operation has, to n others. */
static struct ane_mil_attr *with_name(struct mil_build *b, const struct ane_mil_attr *others, uint32_t n, const char *name) {
  struct ane_mil_attr *a = allocate(b, n + 1, sizeof *a);
  if (!a) return NULL;
  if (n) memcpy(a, others, n * sizeof *a);
  a[n] = (struct ane_mil_attr){"name", text_value(b, name)};
  return a;
}

static const struct ane_mil_arg *make_args(struct mil_build *b, const struct mil_arg *args, int n, uint32_t *count) {
  struct ane_mil_arg *list = allocate(b, (size_t)n, sizeof *list);
  *count = 0;
  for (int i = 0; list && i < n; i++) {
    int parts = args[i].n ? args[i].n : args[i].value ? 1 : 0;
    struct ane_mil_binding *bind = parts ? allocate(b, (size_t)parts, sizeof *bind) : NULL;
    if (!bind) continue;
    for (int j = 0; j < parts; j++) bind[j].name = args[i].n ? args[i].list[j]->name : args[i].value->name;
    list[(*count)++] = (struct ane_mil_arg){args[i].name, bind, (uint32_t)parts};
  }
  return list;
}

/* Emits an operation with the given outputs. It is named after the first output, or `name`. */
static void emit(struct mil_build *b, const char *type, const char *name, const struct ane_mil_named_type *outputs,
                 uint32_t n_outputs, const struct mil_arg *args, int n) {
  struct ane_mil_op op = {.type = type, .outputs = outputs, .n_outputs = n_outputs, .n_attrs = 1};
  op.inputs = make_args(b, args, n, &op.n_inputs);
  op.attrs = with_name(b, NULL, 0, name);
  append(b, &op);
}

mil_value mil_op(struct mil_build *b, const char *type, const char *name, struct ane_mil_type out, const struct mil_arg *args,
                 int n) {
  if (b->status) return &nothing;
  mil_value v = new_value(b, scoped_name(b, name ? name : type), out);
  if (b->status) return &nothing;
  emit(b, type, v->name, v, 1, args, n);
  return b->status ? &nothing : v;
}

mil_value mil_identity(struct mil_build *b, mil_value x, const char *name) {
  mil_value v = new_value(b, name, x->type);
  if (b->status) return &nothing;
  emit(b, "identity", v->name, v, 1, &(struct mil_arg){"x", x}, 1);
  return v;
}

void mil_write_state(struct mil_build *b, mil_value state, mil_value data) {
  if (b->status) return;
  struct mil_arg args[] = {{"input", state}, {"data", data}};
  emit(b, "write_state", scoped_name(b, "write_state"), NULL, 0, args, 2);
}

mil_value mil_topk(struct mil_build *b, mil_value x, int k, int axis) {
  if (b->status) return &nothing;
  struct ane_mil_named_type *out = allocate(b, 2, sizeof *out);
  if (!out) return &nothing;
  struct mil_arg args[] = {{"x", x},
                           {"k", mil_int(b, k)},
                           {"axis", mil_int(b, axis)},
                           {"ascending", mil_flag(b, false)},
                           {"sort", mil_flag(b, true)},
                           {"return_indices", mil_flag(b, true)},
                           {"output_indices_dtype", b->version >= 8 ? mil_text(b, "int32") : NULL}};
  out[0] = (struct ane_mil_named_type){scoped_name(b, "topk"), x->type};
  out[0].type.dim[axis] = k;
  out[1] = (struct ane_mil_named_type){scoped_name(b, "topk_indices"), out[0].type};
  out[1].type.dtype = ANE_MIL_INT32;
  if (b->status) return &nothing;
  emit(b, "topk", out[0].name, out, 2, args, ANE_COUNT(args));
  return &out[1];
}

/* ---- Constants -------------------------------------------------------------------------------------------------------*/

static mil_value constant(struct mil_build *b, const char *name, struct ane_mil_value v) {
  if (b->status) return &nothing;
  struct ane_mil_attr val = {"val", v};
  mil_value out = new_value(b, name, v.type);
  if (b->status) return &nothing;
  struct ane_mil_op op = {.type = "const", .outputs = out, .n_outputs = 1, .n_attrs = 2};
  op.attrs = with_name(b, &val, 1, name);
  append(b, &op);
  return b->status ? &nothing : out;
}

/* Returns the constant with this text as its key, or NULL. Constants with equal texts are equal. */
static mil_value known(const struct mil_build *b, const char *text) {
  uint32_t i = ane_strmap_get(&b->constants, text, strlen(text));
  mil_value v = NULL;
  if (i != UINT32_MAX) memcpy(&v, b->shared.data + i * sizeof v, sizeof v);
  return v;
}

static mil_value share(struct mil_build *b, const char *text, struct ane_mil_value value) {
  const char *key = keep_text(b, text);
  if (!key) return &nothing;
  mil_value v = constant(b, mil_name(b, "const"), value);
  uint32_t at = (uint32_t)(b->shared.size / sizeof v);
  if (!b->status && (!ane_buffer_append(&b->shared, &v, sizeof v) || !ane_strmap_put(&b->constants, key, strlen(key), at, NULL)))
    mil_build_no_memory(b);
  return b->status ? &nothing : v;
}

static struct ane_mil_value numbers(struct ane_mil_type type, const void *data, uint64_t count) {
  struct ane_mil_value v = {.type = type, .kind = ANE_MIL_NUMBERS, .count = count, .data = data};
  (void)ane_mil_bytes(type.dtype, count, &v.bytes);
  return v;
}

/* Makes a small constant of ints or flags: n elements; n = -1: a scalar. */
static mil_value small(struct mil_build *b, ane_mil_dtype t, const int32_t *v, int n) {
  char text[NAME_TEXT];
  int len = snprintf(text, sizeof text, "%s %d:", ane_mil_dtype_name(t), n), count = n < 0 ? 1 : n;
  for (int i = 0; i < count && len < (int)sizeof text; i++)
    len += snprintf(text + len, sizeof text - (size_t)len, " %" PRId32, v[i]);
  bool whole = len < (int)sizeof text;
  mil_value old = b->status ? &nothing : whole ? known(b, text) : NULL;
  if (old) return old;
  uint8_t *bytes = allocate(b, (size_t)count, t == ANE_MIL_BOOL ? 1 : sizeof *v);
  if (!bytes) return &nothing;
  for (int i = 0; i < count; i++) {
    if (t == ANE_MIL_BOOL)
      bytes[i] = v[i] != 0;
    else
      memcpy(bytes + (size_t)i * sizeof *v, &v[i], sizeof *v);
  }
  int64_t dim = n;
  struct ane_mil_value value = numbers(ane_mil_tensor_type(t, n < 0 ? 0 : 1, n < 0 ? NULL : &dim), bytes, (uint64_t)count);
  return whole ? share(b, text, value) : constant(b, mil_name(b, "const"), value);
}

mil_value mil_ints(struct mil_build *b, const int32_t *v, int n) { return small(b, ANE_MIL_INT32, v, n); }
mil_value mil_int(struct mil_build *b, int32_t v) { return small(b, ANE_MIL_INT32, &v, -1); }
mil_value mil_flag(struct mil_build *b, bool v) { return small(b, ANE_MIL_BOOL, &(int32_t){v}, -1); }

mil_value mil_flags(struct mil_build *b, const bool *v, int n) {
  int32_t wide[ANE_MIL_RANK] = {0};
  for (int i = 0; i < n && i < ANE_MIL_RANK; i++) wide[i] = v[i];
  return small(b, ANE_MIL_BOOL, wide, n);
}

mil_value mil_text(struct mil_build *b, const char *s) {
  char text[NAME_TEXT];
  snprintf(text, sizeof text, "string %.400s", s);
  mil_value old = b->status ? &nothing : known(b, text);
  return old ? old : share(b, text, text_value(b, s));
}

/* Are n numbers finite in this type? */
static bool finite_in(ane_mil_dtype t, const float *data, uint64_t n) {
  return t == ANE_MIL_FP16 ? ane_round_f16(data, n, NULL) : ane_all_finite(data, n);
}

/* Converts n numbers to fp16, fp32 or int32. */
static void *rounded(struct mil_build *b, ane_mil_dtype t, const float *data, uint64_t n) {
  uint8_t *out = allocate(b, (size_t)n, t == ANE_MIL_FP16 ? 2 : 4);
  for (uint64_t i = 0; out && i < n; i++) {
    uint16_t h = t == ANE_MIL_FP16 ? ane_f32_f16(data[i]) : 0;
    int32_t whole = t == ANE_MIL_INT32 ? (int32_t)data[i] : 0;
    if (t == ANE_MIL_FP16)
      memcpy(out + 2 * i, &h, 2);
    else
      memcpy(out + 4 * i, t == ANE_MIL_FP32 ? (const void *)&data[i] : (const void *)&whole, 4);
  }
  return out;
}

mil_value mil_number(struct mil_build *b, ane_mil_dtype t, double v) {
  char text[NAME_TEXT];
  float f = (float)v;
  snprintf(text, sizeof text, "%s %08" PRIx32, ane_mil_dtype_name(t),
           t == ANE_MIL_FP16 ? (uint32_t)ane_f32_f16(f) : ane_f32_bits(f));
  mil_value old = b->status ? &nothing : known(b, text);
  if (old) return old;
  void *data = rounded(b, t, &f, 1);
  return data ? share(b, text, numbers(ane_mil_tensor_type(t, 0, NULL), data, 1)) : &nothing;
}

mil_value mil_tensor(struct mil_build *b, const char *name, ane_mil_dtype t, int32_t rank, const int64_t *dim,
                     const float *data) {
  uint64_t n = 1;
  for (int32_t i = 0; i < rank; i++) n *= (uint64_t)dim[i];
  if (!b->status && !finite_in(t, data, n))
    mil_build_fail(b, ane_fail(b->err, ANE_INVALID, "%s has a number that is not finite in %s", name, ane_mil_dtype_name(t)));
  void *copy = rounded(b, t, data, n);
  return copy ? constant(b, scoped_name(b, name), numbers(ane_mil_tensor_type(t, rank, dim), copy, n)) : &nothing;
}

/* In iOS 16, constexpr operations take their parameters as attributes; in iOS 18, as inputs bound to values. */
static bool as_attributes(const struct mil_build *b, const char *op) {
  return strcmp(op, "constexpr_affine_dequantize") == 0 || (b->version < 9 && strcmp(op, "constexpr_blockwise_shift_scale") != 0);
}

mil_value mil_weight(struct mil_build *b, const char *name, const struct ane_mil_weight *w, struct ane_mil_type type) {
  if (b->status) return &nothing;
  name = mil_name(b, name);
  if (strcmp(w->op, "const") == 0) return constant(b, name, w->params[0].value);
  mil_value v = new_value(b, name, type);
  struct ane_mil_op op = {.type = w->op, .outputs = v, .n_outputs = 1};
  if (as_attributes(b, w->op)) {
    op.n_attrs = w->n_params + 1;
    op.attrs = with_name(b, w->params, w->n_params, name);
  } else {
    const struct ane_mil_attr *params = keep(b, w->params, w->n_params, sizeof *params);
    struct ane_mil_binding *bind = allocate(b, w->n_params, sizeof *bind);
    struct ane_mil_arg *args = allocate(b, w->n_params, sizeof *args);
    for (uint32_t i = 0; params && bind && args && i < w->n_params; i++) {
      bind[i].value = &params[i].value;
      args[i] = (struct ane_mil_arg){params[i].name, &bind[i], 1};
    }
    op.inputs = args;
    op.n_inputs = w->n_params;
    op.n_attrs = 1;
    op.attrs = with_name(b, NULL, 0, name);
  }
  append(b, &op);
  return b->status ? &nothing : v;
}
