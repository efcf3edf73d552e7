/* Compares a lowered shard with a function of a package: see match.h. */
#include "mil/match.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NONE = -1 };

/* A value of a function: an input (op NONE), or an output of an operation. */
struct value {
  const struct ane_mil_named_type *named;
  int32_t op;
  uint32_t output;
};

/* One function, with its values by number. */
struct side {
  const struct ane_mil_function *f;
  struct ane_strmap names; /* of values -> index into values */
  struct value *values;
  uint32_t n_values;
  uint32_t *writes; /* by operation that reads or writes a state: number of earlier writes of that state */
};

struct comparing {
  struct ane_mil_match *m;
  struct side ours, theirs; /* the lowered function; the package's function */
  const struct ane_buffer *requests;
  int32_t *pair_of;        /* by value of ours: its counterpart in theirs; NONE: not paired yet */
  struct ane_buffer queue; /* of int32_t: paired values of ours whose operations are not compared yet */
  struct ane_arena scratch;
  struct ane_error *err;
};

/* ---- Placeholders -------------------------------------------------------------------------------------------------*/

/* A placeholder is a constant of kind BLOB. Its offset is the number of the request for the weight. */
struct placeholders {
  struct ane_buffer requests; /* of struct ane_mil_weight_request */
};

static ane_status give_placeholder(void *arg, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                                   struct ane_mil_weight *out, struct ane_error *err) {
  struct placeholders *x = arg;
  uint64_t count = 1, bytes;
  (void)arena;
  for (int32_t i = 0; i < request->rank; i++) count *= (uint64_t)request->dim[i];
  if (!ane_mil_bytes(request->dtype, count, &bytes)) return ane_fail(err, ANE_SHAPE, "too large");
  *out = (struct ane_mil_weight){.op = "const", .n_params = 1};
  out->params[0].name = "val";
  out->params[0].value = (struct ane_mil_value){.type = ane_mil_tensor_type(request->dtype, request->rank, request->dim),
                                                .kind = ANE_MIL_BLOB,
                                                .count = count,
                                                .bytes = bytes,
                                                .file = "placeholder",
                                                .offset = x->requests.size / sizeof *request};
  return ane_buffer_append(&x->requests, request, sizeof *request) ? ANE_OK
                                                                   : ane_fail(err, ANE_NOMEM, "no memory for the weights");
}

/* Returns the request of a placeholder; NULL: v is a constant with a value. */
static const struct ane_mil_weight_request *request_of(const struct comparing *c, const struct ane_mil_value *v) {
  if (v->kind != ANE_MIL_BLOB) return NULL;
  return (const struct ane_mil_weight_request *)(const void *)c->requests->data + v->offset;
}

/* ---- Sides -------------------------------------------------------------------------------------------------------------*/

static ane_status no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "no memory to compare a package"); }

static bool is_op(const struct ane_mil_op *op, const char *type) { return strcmp(op->type, type) == 0; }

/* Returns the value of this name; NONE: there is none. */
/* analyser: a parameter without a value of its own has a name. */
static int32_t value_of(const struct side *s, const char *name) { return (int32_t)ane_strmap_get(&s->names, name, strlen(name)); }

static const struct ane_mil_op *op_of(const struct side *s, int32_t value) {
  int32_t op = s->values[value].op;
  return op == NONE ? NULL : &s->f->block.ops[op];
}

static bool add_value(struct side *s, const struct ane_mil_named_type *named, int32_t op, uint32_t output) {
  s->values[s->n_values] = (struct value){named, op, output};
  return ane_strmap_put(&s->names, named->name, strlen(named->name), s->n_values++, NULL);
}

/* Returns the state that an operation reads or writes; NONE: it does neither. */
static int32_t state_of(const struct side *s, const struct ane_mil_op *op) {
  if (!is_op(op, "read_state") && !is_op(op, "write_state")) return NONE;
  const struct ane_mil_arg *arg = ane_mil_op_arg(op, "input");
  return arg && arg->n_bindings == 1 && arg->bindings[0].name ? value_of(s, arg->bindings[0].name) : NONE;
}

static ane_status fill_side(struct comparing *c, struct side *s, const struct ane_mil_function *f) {
  size_t n = f->n_inputs;
  s->f = f;
  for (uint32_t i = 0; i < f->block.n_ops; i++) n += f->block.ops[i].n_outputs;
  s->values = ane_arena_array(&c->scratch, n + 1, sizeof *s->values);
  s->writes = ane_arena_array(&c->scratch, (size_t)f->block.n_ops + 1, sizeof *s->writes);
  uint32_t *count = ane_arena_array(&c->scratch, n + 1, sizeof *count); /* writes, by state */
  if (!s->values || !s->writes || !count || n > INT32_MAX || !ane_strmap_reserve(&s->names, n)) return no_memory(c->err);
  for (uint32_t i = 0; i < f->n_inputs; i++)
    if (!add_value(s, &f->inputs[i], NONE, i)) return no_memory(c->err);
  for (uint32_t i = 0; i < f->block.n_ops; i++) {
    const struct ane_mil_op *op = &f->block.ops[i];
    if (op->n_blocks)
      return ane_fail(c->err, ANE_UNSUPPORTED, "operation %.60s has nested blocks, which no recipe makes", op->type);
    int32_t state = state_of(s, op);
    if (state != NONE) s->writes[i] = is_op(op, "write_state") ? count[state]++ : count[state];
    for (uint32_t j = 0; j < op->n_outputs; j++)
      if (!add_value(s, &op->outputs[j], (int32_t)i, j)) return no_memory(c->err);
  }
  return ANE_OK;
}

/* ---- Constants ---------------------------------------------------------------------------------------------------------*/

/* Returns the value of a constant; NULL: it is computed. */
static const struct ane_mil_value *constant(const struct side *s, const struct ane_mil_binding *b) {
  if (b->value) return b->value;
  int32_t v = value_of(s, b->name);
  const struct ane_mil_op *op = v == NONE ? NULL : op_of(s, v);
  return op && is_op(op, "const") ? ane_mil_op_attr(op, "val") : NULL;
}

enum { VALUE_TEXT = 96 };

/* Writes element i of a constant for a message, or its type if it has no numbers. */
static const char *value_text(char out[VALUE_TEXT], const struct ane_mil_value *v, uint64_t i) {
  if (!v)
    snprintf(out, VALUE_TEXT, "a computed value");
  else if (v->kind == ANE_MIL_STRINGS)
    snprintf(out, VALUE_TEXT, "\"%.60s\"", v->count ? v->strings[0] : "");
  else if (v->data && i < v->count)
    snprintf(out, VALUE_TEXT, "%.9g", ane_mil_number(v, i));
  else
    snprintf(out, VALUE_TEXT, "%s of %" PRIu64, ane_mil_dtype_name(v->type.dtype), v->count);
  return out;
}

/* Are two constants equal? If not, *at: the first element that differs; UINT64_MAX: their types differ. */
static bool same_constant(const struct ane_mil_value *a, const struct ane_mil_value *b, uint64_t *at) {
  *at = UINT64_MAX;
  if (!b || !ane_mil_type_equal(&a->type, &b->type) || a->count != b->count) return false;
  if (a->kind == ANE_MIL_STRINGS || b->kind == ANE_MIL_STRINGS) {
    if (a->kind != b->kind) return false;
    for (*at = 0; *at < a->count; ++*at)
      if (strcmp(a->strings[*at], b->strings[*at]) != 0) return false;
    return true;
  }
  if (a->kind == ANE_MIL_ITEMS || b->kind == ANE_MIL_ITEMS || !a->data || !b->data || a->bytes != b->bytes) return false;
  if (memcmp(a->data, b->data, (size_t)a->bytes) == 0) return true;
  for (*at = 0; *at < a->count && ane_mil_number(a, *at) == ane_mil_number(b, *at);) ++*at;
  return false;
}

/* ---- Values ------------------------------------------------------------------------------------------------------------*/

/* Writes the operation of the package at which a difference was found, for a message. */
static const char *operation_text(char out[ANE_MIL_OP_TEXT], const struct comparing *c, int32_t theirs) {
  const struct ane_mil_op *op = theirs == NONE ? NULL : op_of(&c->theirs, theirs);
  if (op) return ane_mil_op_text(out, op);
  snprintf(out, ANE_MIL_OP_TEXT, "input %.60s", theirs == NONE ? "?" : c->theirs.values[theirs].named->name);
  return out;
}

static ane_status bind_weight(struct comparing *c, const struct ane_mil_weight_request *request, int32_t theirs) {
  const struct ane_mil_op *op = theirs == NONE ? NULL : op_of(&c->theirs, theirs);
  const char *name = c->m->graph->values[request->value].name;
  char text[ANE_MIL_OP_TEXT];
  if (!op || (!is_op(op, "const") && strncmp(op->type, "constexpr_", 10) != 0))
    return ane_fail(c->err, ANE_UNSUPPORTED, "%s, but the recipe has the weight %.80s here", operation_text(text, c, theirs),
                    name);
  struct ane_mil_type want = ane_mil_tensor_type(request->dtype, request->rank, request->dim);
  if (!ane_mil_type_equal(&want, &c->theirs.values[theirs].named->type))
    return ane_fail(c->err, ANE_UNSUPPORTED, "%s has another type or shape than the recipe's weight %.80s",
                    operation_text(text, c, theirs), name);
  struct ane_mil_bound b = {*request, op, c->theirs.f};
  return ane_buffer_append(&c->m->bound, &b, sizeof b) ? ANE_OK : no_memory(c->err);
}

/* Pairs two values. Their operations are compared later. */
static ane_status pair(struct comparing *c, int32_t ours, int32_t theirs) {
  char text[ANE_MIL_OP_TEXT];
  if (c->pair_of[ours] == theirs) return ANE_OK;
  if (c->pair_of[ours] != NONE || op_of(&c->ours, ours) == NULL)
    return ane_fail(c->err, ANE_UNSUPPORTED, "%s, but the recipe has %.80s here", operation_text(text, c, theirs),
                    c->ours.values[ours].named->name);
  c->pair_of[ours] = theirs;
  return ane_buffer_append(&c->queue, &ours, sizeof ours) ? ANE_OK : no_memory(c->err);
}

/* Compares what two parameters are bound to. at: the package's operation, for messages. */
static ane_status same_binding(struct comparing *c, const struct ane_mil_op *at, const char *param,
                               const struct ane_mil_binding *a, const struct ane_mil_binding *b) {
  int32_t ours = a->name ? value_of(&c->ours, a->name) : NONE, theirs = b->name ? value_of(&c->theirs, b->name) : NONE;
  const struct ane_mil_value *want = constant(&c->ours, a);
  const struct ane_mil_weight_request *request = want ? request_of(c, want) : NULL;
  if (request) return bind_weight(c, request, theirs);
  if (!want) {
    if (theirs != NONE) return pair(c, ours, theirs);
    char text[ANE_MIL_OP_TEXT];
    return ane_fail(c->err, ANE_UNSUPPORTED, "%s: parameter %.40s is a constant, in the recipe it is computed",
                    ane_mil_op_text(text, at), param);
  }
  const struct ane_mil_value *found = constant(&c->theirs, b);
  uint64_t i;
  if (same_constant(want, found, &i)) return ANE_OK;
  char text[ANE_MIL_OP_TEXT], has[VALUE_TEXT], takes[VALUE_TEXT];
  return ane_fail(c->err, ANE_UNSUPPORTED, "%s: parameter %.40s is %s, in the recipe %s", ane_mil_op_text(text, at), param,
                  value_text(has, found, i), value_text(takes, want, i));
}

/* Compares the parameters of two operations. */
static ane_status same_op(struct comparing *c, const struct ane_mil_op *a, const struct ane_mil_op *b) {
  char text[ANE_MIL_OP_TEXT];
  if (strcmp(a->type, b->type) != 0 || a->n_outputs != b->n_outputs)
    return ane_fail(c->err, ANE_UNSUPPORTED, "%s, but the recipe has %.60s here", ane_mil_op_text(text, b), a->type);
  if (a->n_inputs != b->n_inputs)
    return ane_fail(c->err, ANE_UNSUPPORTED, "%s has %" PRIu32 " parameters, in the recipe %" PRIu32, ane_mil_op_text(text, b),
                    b->n_inputs, a->n_inputs);
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < a->n_inputs; i++) {
    const struct ane_mil_arg *x = &a->inputs[i], *y = ane_mil_op_arg(b, x->name);
    if (!y || x->n_bindings != y->n_bindings)
      return ane_fail(c->err, ANE_UNSUPPORTED,
                      "%s: parameter %.40s is missing or has another number of values than in the recipe",
                      ane_mil_op_text(text, b), x->name);
    for (uint32_t j = 0; !st && j < x->n_bindings; j++) st = same_binding(c, b, x->name, &x->bindings[j], &y->bindings[j]);
  }
  return st;
}

/* Compares the operations of a paired value. */
static ane_status same_maker(struct comparing *c, int32_t ours) {
  const struct value *a = &c->ours.values[ours], *b = &c->theirs.values[c->pair_of[ours]];
  char text[ANE_MIL_OP_TEXT];
  if (a->op == NONE && b->op == NONE) return ANE_OK;
  bool same = a->op != NONE && b->op != NONE && a->output == b->output;
  if (same && is_op(&c->ours.f->block.ops[a->op], "read_state")) same = c->ours.writes[a->op] == c->theirs.writes[b->op];
  if (!same)
    return ane_fail(c->err, ANE_UNSUPPORTED, "%s, but the recipe has %.80s here", operation_text(text, c, c->pair_of[ours]),
                    a->named->name);
  return same_op(c, &c->ours.f->block.ops[a->op], &c->theirs.f->block.ops[b->op]);
}

/* Compares the operations of all queued values, and of those that they queue. */
static ane_status drain(struct comparing *c) {
  ane_status st = ANE_OK;
  while (!st && c->queue.size) {
    int32_t ours;
    c->queue.size -= sizeof ours;
    memcpy(&ours, c->queue.data + c->queue.size, sizeof ours);
    st = same_maker(c, ours);
  }
  return st;
}

/* ---- Functions ---------------------------------------------------------------------------------------------------------*/

static const char *renamed(ane_mil_rename_fn rename, void *arg, const char *name) { return rename ? rename(arg, name) : name; }

/* Pairs the inputs and states, which must have equal types. */
static ane_status pair_inputs(struct comparing *c, ane_mil_rename_fn rename, void *arg) {
  const struct ane_mil_function *f = c->ours.f;
  if (f->n_inputs != c->theirs.f->n_inputs)
    return ane_fail(c->err, ANE_UNSUPPORTED, "it has %" PRIu32 " inputs and states, in the recipe %" PRIu32,
                    c->theirs.f->n_inputs, f->n_inputs);
  for (uint32_t i = 0; i < f->n_inputs; i++) {
    const char *name = renamed(rename, arg, f->inputs[i].name);
    int32_t theirs = name ? value_of(&c->theirs, name) : NONE;
    if (theirs == NONE || c->theirs.values[theirs].op != NONE)
      return ane_fail(c->err, ANE_UNSUPPORTED, "it has no input %.80s", f->inputs[i].name);
    if (!ane_mil_type_equal(&f->inputs[i].type, &c->theirs.values[theirs].named->type))
      return ane_fail(c->err, ANE_UNSUPPORTED, "input %.80s has another type or shape than in the recipe", name);
    c->pair_of[i] = theirs;
  }
  return ANE_OK;
}

static ane_status pair_outputs(struct comparing *c, ane_mil_rename_fn rename, void *arg) {
  const struct ane_mil_block *a = &c->ours.f->block, *b = &c->theirs.f->block;
  if (a->n_outputs != b->n_outputs)
    return ane_fail(c->err, ANE_UNSUPPORTED, "it has %" PRIu32 " outputs, in the recipe %" PRIu32, b->n_outputs, a->n_outputs);
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < a->n_outputs; i++) {
    const char *name = renamed(rename, arg, a->outputs[i]);
    int32_t theirs = NONE;
    for (uint32_t j = 0; name && j < b->n_outputs; j++)
      if (strcmp(b->outputs[j], name) == 0) theirs = value_of(&c->theirs, name);
    if (theirs == NONE) return ane_fail(c->err, ANE_UNSUPPORTED, "it has no output %.80s", a->outputs[i]);
    st = pair(c, value_of(&c->ours, a->outputs[i]), theirs);
  }
  return st;
}

/* Returns the k-th write of a state in a function; NULL: there is none. */
static const struct ane_mil_op *write_of(const struct side *s, int32_t state, uint32_t k) {
  for (uint32_t i = 0; i < s->f->block.n_ops; i++) {
    const struct ane_mil_op *op = &s->f->block.ops[i];
    if (is_op(op, "write_state") && state_of(s, op) == state && s->writes[i] == k) return op;
  }
  return NULL;
}

static uint32_t count_writes(const struct side *s) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->f->block.n_ops; i++) n += is_op(&s->f->block.ops[i], "write_state");
  return n;
}

/* Compares the writes of the states. */
static ane_status pair_writes(struct comparing *c) {
  if (count_writes(&c->ours) != count_writes(&c->theirs))
    return ane_fail(c->err, ANE_UNSUPPORTED, "it writes its states %" PRIu32 " times, the recipe %" PRIu32,
                    count_writes(&c->theirs), count_writes(&c->ours));
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < c->ours.f->block.n_ops; i++) {
    const struct ane_mil_op *op = &c->ours.f->block.ops[i];
    int32_t state = is_op(op, "write_state") ? state_of(&c->ours, op) : NONE;
    if (state == NONE) continue;
    const struct ane_mil_op *other = write_of(&c->theirs, c->pair_of[state], c->ours.writes[i]);
    if (!other)
      return ane_fail(c->err, ANE_UNSUPPORTED, "state %.80s is not written as in the recipe", c->ours.values[state].named->name);
    st = same_op(c, op, other);
  }
  return st;
}

static ane_status compare(struct comparing *c, const struct ane_mil_function *ours, const struct ane_mil_function *theirs,
                          ane_mil_rename_fn rename, void *arg) {
  ane_status st = fill_side(c, &c->ours, ours);
  if (!st) st = fill_side(c, &c->theirs, theirs);
  if (st) return st;
  c->pair_of = ane_arena_array(&c->scratch, (size_t)c->ours.n_values + 1, sizeof *c->pair_of);
  if (!c->pair_of) return no_memory(c->err);
  for (uint32_t i = 0; i < c->ours.n_values; i++) c->pair_of[i] = NONE;
  st = pair_inputs(c, rename, arg);
  if (!st) st = pair_outputs(c, rename, arg);
  if (!st) st = pair_writes(c);
  return st ? st : drain(c);
}

ane_status ane_mil_match(struct ane_mil_match *m, const struct ane_shard *shard, const struct ane_mil_options *o,
                         const struct ane_mil_function *f, int32_t version, ane_mil_rename_fn rename, void *arg,
                         struct ane_mil_lowered **out, struct ane_error *err) {
  struct placeholders placeholders = {0};
  struct ane_mil_options own = *o;
  own.weight = give_placeholder;
  own.weight_arg = &placeholders;
  own.ios18_weights = version >= 9;
  struct comparing c = {.m = m, .requests = &placeholders.requests, .err = err};
  ane_status st = ane_mil_lower(m->arena, m->graph, shard, &own, out, err);
  if (!st && (*out)->model->version != version)
    st = ane_fail(err, ANE_UNSUPPORTED, "it has specification version %" PRId32 ", in the recipe %" PRId32, version,
                  (*out)->model->version);
  const struct ane_mil_function *ours = st ? NULL : &(*out)->model->program.functions[0];
  if (!st && m->translate) st = m->translate(m->arena, *out, &ours, err);
  if (!st) st = compare(&c, ours, f, rename, arg);
  ane_strmap_free(&c.ours.names);
  ane_strmap_free(&c.theirs.names);
  ane_buffer_free(&c.queue);
  ane_buffer_free(&placeholders.requests);
  ane_arena_free(&c.scratch);
  return st;
}
