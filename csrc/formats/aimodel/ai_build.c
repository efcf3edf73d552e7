/* The builder of Core AI functions: inputs, outputs, states, operations and constants. */
#include "formats/aimodel/ai_internal.h"
#include "tensor/half.h"

#include <stdio.h>
#include <string.h>

/* The placeholder that calls return after a failure. Its type is valid, so that callers may read it. */
static const struct ane_ai_value placeholder = {
    .type = {.kind = ANE_AI_TENSOR, .dtype = ANE_AI_FP16, .rank = 4, .dim = {1, 1, 1, 1, 1, 1, 1, 1}}};

enum { SHARED_BYTES = 256 };

/* A state of the function, with the token of its last read or write. */
struct ane_ai_state {
  const char *name;
  ane_ai_value handle, token; /* token NULL: not read or written yet */
  bool written;
};

void ane_ai_build_fail(struct ane_ai_build *b, ane_status status) {
  if (!b->status) b->status = status;
}

static void no_memory(struct ane_ai_build *b) {
  if (!b->status) ane_ai_build_fail(b, ane_fail(b->err, ANE_NOMEM, "no memory for the program"));
}

static void *allocate(struct ane_ai_build *b, size_t count, size_t size) {
  void *p = b->status ? NULL : ane_arena_array(b->arena, ANE_MAX(count, (size_t)1), size);
  if (!p) no_memory(b);
  return p;
}

static const void *keep(struct ane_ai_build *b, const void *data, size_t size) {
  void *p = allocate(b, size, 1);
  return p && size ? memcpy(p, data, size) : p;
}

static void append(struct ane_ai_build *b, struct ane_buffer *list, const void *item, size_t size) {
  if (!b->status && !ane_buffer_append(list, item, size)) no_memory(b);
}

void ane_ai_build_begin(struct ane_ai_build *b, struct ane_arena *arena, const char *function, struct ane_error *err) {
  *b = (struct ane_ai_build){.arena = arena, .err = err};
  b->f.name = keep(b, function, strlen(function) + 1);
}

/* ---- Inputs, outputs and states -----------------------------------------------------------------*/

static struct ane_ai_value *new_values(struct ane_ai_build *b, uint32_t n, const struct ane_ai_type *types,
                                       const struct ane_ai_op *op) {
  struct ane_ai_value *v = allocate(b, n, sizeof *v);
  for (uint32_t i = 0; v && i < n; i++) v[i] = (struct ane_ai_value){types[i], -1, op}; /* numbered at the end */
  return v;
}

static ane_ai_value port(struct ane_ai_build *b, const char *name, const struct ane_ai_type *type) {
  struct ane_ai_port p = {keep(b, name, strlen(name) + 1), new_values(b, 1, type, NULL)};
  append(b, &b->inputs, &p, sizeof p);
  return b->status ? &placeholder : p.value;
}

/* The tensor without a layout, as operations need it. */
static ane_ai_value plain(struct ane_ai_build *b, ane_ai_value x) {
  return x->type.interleave[0] ? ane_ai_op(b, ANE_AI_COPY_PLAIN, &x, 1) : x;
}

ane_ai_value ane_ai_input(struct ane_ai_build *b, const char *name, struct ane_ai_type type) {
  return plain(b, port(b, name, &type));
}

ane_ai_value ane_ai_state(struct ane_ai_build *b, const char *name, struct ane_ai_type type) {
  type.kind = ANE_AI_HANDLE;
  struct ane_ai_state s = {.handle = port(b, name, &type)};
  s.name = keep(b, name, strlen(name) + 1);
  append(b, &b->states, &s, sizeof s);
  return s.handle;
}

void ane_ai_output(struct ane_ai_build *b, const char *name, ane_ai_value x) {
  struct ane_ai_port port = {keep(b, name, strlen(name) + 1), x};
  append(b, &b->outputs, &port, sizeof port);
}

static struct ane_ai_state *state_of(struct ane_ai_build *b, ane_ai_value handle) {
  struct ane_ai_state *list = (void *)b->states.data;
  for (size_t i = 0; !b->status && i < b->states.size / sizeof *list; i++)
    if (list[i].handle == handle) {
      if (!list[i].token) list[i].token = ane_ai_op(b, ANE_AI_CREATE_TOKEN, NULL, 0);
      return &list[i];
    }
  if (!b->status) ane_ai_build_fail(b, ane_fail(b->err, ANE_INVALID, "a value that is not a state is read or written as one"));
  return NULL;
}

ane_ai_value ane_ai_read(struct ane_ai_build *b, ane_ai_value state) {
  struct ane_ai_state *s = state_of(b, state);
  if (!s) return &placeholder;
  ane_ai_value in[] = {state, s->token}, x = ane_ai_op(b, ANE_AI_READ_HANDLE, in, 2);
  if (b->status) return &placeholder;
  s->token = x + 1;
  return plain(b, x);
}

void ane_ai_write(struct ane_ai_build *b, ane_ai_value state, ane_ai_value data) {
  struct ane_ai_state *s = state_of(b, state);
  if (!s) return;
  struct ane_ai_type held = state->type;
  held.kind = ANE_AI_TENSOR;
  if (held.interleave[0]) data = ane_ai_typed(b, ANE_AI_COPY_LAID_OUT, &data, 1, held);
  ane_ai_value in[] = {state, data, s->token};
  s->token = ane_ai_op(b, ANE_AI_WRITE_HANDLE, in, 3);
  s->written = true;
}

/* Sets the function's outputs: tokens of the written states, then tensors. */
static void close_outputs(struct ane_ai_build *b) {
  const struct ane_ai_state *states = (const void *)b->states.data;
  uint32_t n = (uint32_t)(b->outputs.size / sizeof(struct ane_ai_port)), k = 0;
  struct ane_ai_port *list = allocate(b, n + b->states.size / sizeof *states, sizeof *list);
  if (!list) return;
  for (size_t i = 0; i < b->states.size / sizeof *states; i++)
    if (states[i].written) list[k++] = (struct ane_ai_port){states[i].name, states[i].token};
  if (n) memcpy(list + k, b->outputs.data, n * sizeof *list);
  b->f.outputs = list;
  b->f.n_outputs = k + n;
}

/* Numbers the values: inputs first, then results in order. */
static void number_values(struct ane_ai_function *f) {
  for (uint32_t i = 0; i < f->n_inputs; i++) ((struct ane_ai_value *)(uintptr_t)f->inputs[i].value)->number = f->n_values++;
  for (uint32_t i = 0; i < f->n_ops; i++)
    for (uint32_t j = 0; j < f->ops[i]->n_out; j++) f->ops[i]->out[j].number = f->n_values++;
}

ane_status ane_ai_build_end(struct ane_ai_build *b, struct ane_ai_function *out) {
  b->f.inputs = keep(b, b->inputs.data, b->inputs.size);
  b->f.n_inputs = (uint32_t)(b->inputs.size / sizeof(struct ane_ai_port));
  b->f.ops = keep(b, b->ops.data, b->ops.size);
  b->f.n_ops = (uint32_t)(b->ops.size / sizeof(struct ane_ai_op *));
  close_outputs(b);
  if (!b->status) number_values(&b->f);
  if (!b->status) *out = b->f;
  struct ane_buffer *buffers[] = {&b->ops, &b->inputs, &b->outputs, &b->states, &b->shared};
  for (size_t i = 0; i < ANE_COUNT(buffers); i++) ane_buffer_free(buffers[i]);
  ane_strmap_free(&b->constants);
  return b->status;
}

/* ---- Operations -----------------------------------------------------------------------------------------------------*/

static const char *op_name(struct ane_ai_build *b, ane_ai_op_id id) {
  char text[96];
  int len = snprintf(text, sizeof text, "%s_v%d", ai_rows[id].name, ai_rows[id].version);
  return keep(b, text, (size_t)len + 1);
}

/* Appends an operation with results of these types. NULL: a failure is recorded. */
static struct ane_ai_op *emit(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n,
                              const struct ane_ai_type *types, uint32_t n_out) {
  struct ane_ai_op *op = allocate(b, 1, sizeof *op);
  if (!op) return NULL;
  *op = (struct ane_ai_op){.id = id, .name = op_name(b, id), .n_in = n, .n_out = n_out, .data = {.resource = -1}};
  op->in = keep(b, in, n * sizeof *in);
  op->out = new_values(b, n_out, types, op);
  append(b, &b->ops, &op, sizeof op);
  return b->status ? NULL : op;
}

enum { MAX_RESULTS = 2 };

/* Infers the result types and appends the operation. given: the result type as far as operands do not determine it, or NULL. */
static ane_ai_value infer(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n,
                          const struct ane_ai_type *given) {
  if (b->status) return &placeholder;
  struct ane_ai_type types[MAX_RESULTS] = {given ? *given : (struct ane_ai_type){.kind = ANE_AI_TENSOR}};
  int n_out = ai_rows[id].out;
  ane_status st = ane_ai_infer(id, in, n, types, (uint32_t)n_out, b->err);
  if (st && b->scope) ane_fail_in(b->err, st, "%s", b->scope);
  ane_ai_build_fail(b, st);
  struct ane_ai_op *op = emit(b, id, in, n, types, (uint32_t)n_out);
  return op ? op->out : &placeholder;
}

ane_ai_value ane_ai_op(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n) {
  return infer(b, id, in, n, NULL);
}

ane_ai_value ane_ai_typed(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n, struct ane_ai_type type) {
  return infer(b, id, in, n, &type);
}

ane_ai_value ane_ai_invoke(struct ane_ai_build *b, const struct ane_ai_function *callee, const ane_ai_value *in, uint32_t n) {
  struct ane_ai_type *types = allocate(b, callee->n_outputs, sizeof *types);
  bool fits = n == callee->n_inputs;
  for (uint32_t i = 0; types && fits && i < n; i++) fits = ane_ai_type_equal(&in[i]->type, &callee->inputs[i].value->type);
  if (types && !fits) ane_ai_build_fail(b, ane_fail(b->err, ANE_SHAPE, "the arguments of %s do not fit", callee->name));
  for (uint32_t i = 0; types && i < callee->n_outputs; i++) types[i] = callee->outputs[i].value->type;
  struct ane_ai_op *op = b->status ? NULL : emit(b, ANE_AI_INVOKE, in, n, types, callee->n_outputs);
  if (!op) return &placeholder;
  op->callee = callee->name;
  return op->out;
}

/* ---- Constants ------------------------------------------------------------------------------------------------------*/

static ane_ai_value constant(struct ane_ai_build *b, const struct ane_ai_type *type, struct ane_ai_data data) {
  struct ane_ai_op *op = b->status ? NULL : emit(b, ANE_AI_CONSTANT, NULL, 0, type, 1);
  if (!op) return &placeholder;
  op->data = data;
  return op->out;
}

/* The key of a small constant in b->constants: its type and bytes. */
static const char *key_of(struct ane_ai_build *b, const struct ane_ai_type *t, const void *data, uint64_t bytes, size_t *size) {
  size_t dims = (size_t)t->rank * sizeof *t->dim;
  uint8_t *key = allocate(b, 2 + dims + (size_t)bytes, 1);
  if (!key) return NULL;
  key[0] = (uint8_t)t->dtype;
  key[1] = (uint8_t)t->rank;
  memcpy(key + 2, t->dim, dims);
  if (bytes) memcpy(key + 2 + dims, data, (size_t)bytes);
  *size = 2 + dims + (size_t)bytes;
  return (const char *)key;
}

ane_ai_value ane_ai_constant(struct ane_ai_build *b, struct ane_ai_type type, const void *data) {
  uint64_t count, bytes;
  size_t size = 0;
  if (b->status) return &placeholder;
  if (!ane_ai_count(&type, &count) || !ane_ai_bytes(type.dtype, count, &bytes)) {
    ane_ai_build_fail(b, ane_fail(b->err, ANE_INVALID, "a constant of unknown size"));
    return &placeholder;
  }
  const char *key = bytes <= SHARED_BYTES ? key_of(b, &type, data, bytes, &size) : NULL;
  uint32_t at = key ? ane_strmap_get(&b->constants, key, size) : UINT32_MAX;
  if (at != UINT32_MAX) return ((ane_ai_value *)(void *)b->shared.data)[at];
  struct ane_ai_data d = {.data = keep(b, data, (size_t)bytes), .bytes = bytes, .resource = -1};
  ane_ai_value v = constant(b, &type, d);
  at = (uint32_t)(b->shared.size / sizeof v);
  if (!key || b->status) return v;
  append(b, &b->shared, &v, sizeof v);
  if (!b->status && !ane_strmap_put(&b->constants, key, size, at, NULL)) no_memory(b);
  return v;
}

ane_ai_value ane_ai_resource(struct ane_ai_build *b, struct ane_ai_type type, int32_t resource) {
  uint64_t count = 0;
  struct ane_ai_data d = {.resource = resource};
  if (!ane_ai_count(&type, &count) || !ane_ai_bytes(type.dtype, count, &d.bytes))
    ane_ai_build_fail(b, ane_fail(b->err, ANE_INVALID, "a constant of unknown size"));
  return constant(b, &type, d);
}

/* Encodes a number: `v` for floats, `whole` for integers, which are truncated to the type's width. */
static void encode(ane_ai_dtype t, int64_t whole, double v, uint8_t out[8]) {
  uint32_t bits = ane_ai_dtype_bits(t);
  float f = (float)v;
  uint64_t raw = (uint64_t)whole;
  if (t == ANE_AI_FP16) raw = ane_f32_f16(f);
  if (t == ANE_AI_FP32) raw = ane_f32_bits(f);
  for (uint32_t i = 0; i < bits / 8; i++) out[i] = (uint8_t)(raw >> 8 * i);
}

ane_ai_value ane_ai_ints(struct ane_ai_build *b, ane_ai_dtype t, const int64_t *v, int32_t n) {
  uint32_t size = ane_ai_dtype_bits(t) / 8;
  int64_t dim = n;
  uint8_t *data = allocate(b, (size_t)n + 1, 8);
  for (int32_t i = 0; data && i < n; i++) encode(t, v[i], (double)v[i], data + (size_t)i * size);
  return data ? ane_ai_constant(b, ane_ai_tensor(t, 1, &dim), data) : &placeholder;
}

ane_ai_value ane_ai_int(struct ane_ai_build *b, ane_ai_dtype t, int64_t v) {
  uint8_t data[8] = {0};
  encode(t, v, (double)v, data);
  return ane_ai_constant(b, ane_ai_tensor(t, 0, NULL), data);
}

ane_ai_value ane_ai_number(struct ane_ai_build *b, ane_ai_dtype t, double v) {
  uint8_t data[8] = {0};
  /* analyser: the bounds are powers of two, which cppcheck does not read. */
  bool whole = v >= -0x1p62 && v <= 0x1p62; /* an integer type has no other numbers; floats may be infinite */
  encode(t, whole ? (int64_t)v : 0, v, data);
  return ane_ai_constant(b, ane_ai_tensor(t, 0, NULL), data);
}
