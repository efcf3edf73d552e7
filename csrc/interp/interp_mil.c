/* Translates MIL operations to primitives: by the table mil.def if an op is one primitive, by functions if it is several. */
#include "interp/interp_mil.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct row {
  const char *op;
  ane_prim prim;
  bool moves;
  const char *mapping;
} rows[] = {
#define MIL_OP(op, prim, moves, mapping) {#op, ANE_PRIM_##prim, moves, mapping},
#include "interp/mil.def"
#undef MIL_OP
};

/* ---- Errors --------------------------------------------------------------------------------------------------------*/

ane_status mil_op_fail(const struct mil_import *t, const struct ane_mil_op *op, ane_status code, const char *fmt, ...) {
  char text[300], name[ANE_MIL_OP_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return ane_fail(t->err, code, "%s: %s", ane_mil_op_text(name, op), text);
}

/* ---- Names ---------------------------------------------------------------------------------------------------------*/

const struct mil_name *mil_find(const struct mil_import *t, const char *name) {
  uint32_t i = ane_strmap_get(&t->names, name, strlen(name));
  return i == UINT32_MAX ? NULL : (const struct mil_name *)(const void *)t->entries.data + i;
}

ane_status mil_define(struct mil_import *t, const char *name, const struct mil_name *n) {
  uint32_t at = (uint32_t)(t->entries.size / sizeof *n), old;
  if (!ane_strmap_put(&t->names, name, strlen(name), at, &old)) return interp_no_memory(t->err);
  if (old == UINT32_MAX) return ane_buffer_append(&t->entries, n, sizeof *n) ? ANE_OK : interp_no_memory(t->err);
  ((struct mil_name *)(void *)t->entries.data)[old] = *n; /* a name of a block that has ended */
  return ANE_OK;
}

/* ---- Types ---------------------------------------------------------------------------------------------------------*/

static bool mil_is_float(ane_mil_dtype t) {
  return t == ANE_MIL_FP16 || t == ANE_MIL_FP32 || t == ANE_MIL_FP64 || t == ANE_MIL_BF16;
}

/* Sets what the declared types require of the results. */
static ane_status results(struct mil_import *t, const struct ane_mil_op *op, bool moves, const struct interp_result **out) {
  struct interp_result *r = ane_arena_array(&t->g->arena, (size_t)op->n_outputs + 1, sizeof *r);
  if (!r) return interp_no_memory(t->err);
  for (uint32_t i = 0; i < op->n_outputs; i++) {
    const struct ane_mil_type *type = &op->outputs[i].type;
    ane_dtype plain = type->kind == ANE_MIL_TENSOR ? ane_mil_dtype_plain(type->dtype) : ANE_DTYPE_COUNT;
    if (plain == ANE_DTYPE_COUNT || ane_dtype_info(plain)->block != 1 || type->rank > ANE_DYN_RANK)
      return mil_op_fail(t, op, ANE_UNSUPPORTED, "output %.100s has a type that is not supported", op->outputs[i].name);
    bool floats = mil_is_float(type->dtype);
    r[i] = (struct interp_result){floats ? ANE_F32 : plain, t->g->options.fp16 && !moves && type->dtype == ANE_MIL_FP16, type};
  }
  *out = r;
  return ANE_OK;
}

/* ---- Values --------------------------------------------------------------------------------------------------------*/

ane_status mil_constant(struct mil_import *t, const char *name, const struct ane_mil_value *v, int32_t *out) {
  *out = INTERP_NONE;
  if (v->kind == ANE_MIL_STRINGS && v->type.rank == 0)
    return interp_text(t->g, v->strings[0], strlen(v->strings[0]), out, t->err);
  if (v->kind != ANE_MIL_NUMBERS && v->kind != ANE_MIL_BLOB) return ANE_OK;
  if (v->count && !v->data) return ane_fail(t->err, ANE_INVALID, "constant %.100s: its blob has not been loaded", name);
  ane_dtype dtype = ane_mil_dtype_plain(v->type.dtype);
  if (dtype == ANE_DTYPE_COUNT || v->type.rank > ANE_DYN_RANK) return ANE_OK;
  struct ane_dyn d = {.dtype = dtype, .rank = v->type.rank, .count = (int64_t)v->count, .data = v->data};
  for (int32_t i = 0; i < d.rank; i++) d.dim[i] = v->type.dim[i];
  return interp_constant(t->g, name, &d, out, t->err);
}

ane_status mil_binding(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_binding *b, int32_t *out) {
  if (b->value) {
    ane_status st = mil_constant(t, "", b->value, out);
    return st || *out != INTERP_NONE
               ? st
               : mil_op_fail(t, op, ANE_UNSUPPORTED, "a parameter is a constant that is not a tensor of a supported type");
  }
  const struct mil_name *n = mil_find(t, b->name);
  if (!n || n->value == INTERP_NONE) return mil_op_fail(t, op, ANE_UNSUPPORTED, "%.100s cannot be used here", b->name);
  *out = n->value;
  return ANE_OK;
}

ane_status mil_param(struct mil_import *t, const struct ane_mil_op *op, const char *name, int32_t *out) {
  const struct ane_mil_arg *a = ane_mil_op_arg(op, name);
  *out = INTERP_NONE;
  if (!a) return ANE_OK;
  if (a->n_bindings != 1)
    return mil_op_fail(t, op, ANE_FORMAT, "parameter %.60s has %" PRIu32 " values, but must have one", name, a->n_bindings);
  return mil_binding(t, op, &a->bindings[0], out);
}

ane_status mil_outputs(struct mil_import *t, const struct ane_mil_op *op, int32_t **out) {
  *out = ane_arena_array(&t->g->arena, (size_t)op->n_outputs + 1, sizeof **out);
  if (!*out) return interp_no_memory(t->err);
  for (uint32_t i = 0; i < op->n_outputs; i++) {
    ane_status st = interp_value(t->g, op->outputs[i].name, &(*out)[i], t->err);
    struct mil_name n = {.value = (*out)[i], .type = &op->outputs[i].type, .state = -1};
    if (!st) st = mil_define(t, op->outputs[i].name, &n);
    if (st) return st;
  }
  return ANE_OK;
}

static const char *node_name(const struct ane_mil_op *op) { return op->n_outputs ? op->outputs[0].name : op->type; }

ane_status mil_add(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, bool moves, const int32_t *in, int32_t n_in,
                   const int32_t *out) {
  struct interp_node n = {.name = node_name(op), .op = prim, .n_in = n_in, .n_out = (int32_t)op->n_outputs};
  ane_status st = results(t, op, moves, &n.results);
  if (st) return st;
  n.in = ane_arena_array(&t->g->arena, (size_t)n_in + 1, sizeof *n.in);
  n.out = ane_arena_array(&t->g->arena, (size_t)n.n_out + 1, sizeof *n.out);
  if (!n.in || !n.out) return interp_no_memory(t->err);
  if (n_in) memcpy(n.in, in, (size_t)n_in * sizeof *in);
  if (n.n_out) memcpy(n.out, out, (size_t)n.n_out * sizeof *out);
  return interp_put(t->g, t->block, &n, t->err);
}

ane_status mil_step(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, const int32_t *in, int32_t n_in,
                    int32_t *out) {
  int32_t made = INTERP_NONE;
  ane_status st = interp_value(t->g, node_name(op), &made, t->err);
  if (!st) st = interp_add(t->g, t->block, prim, node_name(op), in, n_in, &made, 1, t->err);
  *out = made; /* which may be one of the inputs */
  return st;
}

/* ---- Mappings ------------------------------------------------------------------------------------------------------*/

/* Finds the item of a mapping for a parameter of the primitive ("p=..."). Returns the text after the '=', or NULL. */
static const char *mapped(const char *mapping, const char *param, size_t len, size_t *n) {
  for (const char *p = mapping; *p; p += strspn(p, " ")) {
    size_t all = strcspn(p, " ");
    if (all > len && memcmp(p, param, len) == 0 && p[len] == '=') return *n = all - len - 1, p + len + 1;
    p += all;
  }
  return NULL;
}

/* Returns whether the mapping names the op's parameter, as a source or as one to ignore. */
static bool mentions(const char *mapping, const char *name) {
  size_t len = strlen(name);
  for (const char *p = mapping; *p; p += strspn(p, " ")) {
    size_t all = strcspn(p, " ");
    const char *eq = memchr(p, '=', all);
    if (*p == '!' && all == len + 1 && memcmp(p + 1, name, len) == 0) return true;
    if (eq && (size_t)(p + all - eq - 1) == len && memcmp(eq + 1, name, len) == 0) return true;
    p += all;
  }
  return false;
}

static ane_status check_known(struct mil_import *t, const struct ane_mil_op *op, const struct row *row) {
  for (uint32_t i = 0; i < op->n_inputs; i++) {
    const char *name = op->inputs[i].name;
    size_t n;
    bool taken =
        mapped(row->mapping, name, strlen(name), &n) && n > 0 && !strchr("#'", *mapped(row->mapping, name, strlen(name), &n));
    if (!mentions(row->mapping, name) && (ane_prim_param(row->prim, name) < 0 || taken))
      return mil_op_fail(t, op, ANE_UNSUPPORTED, "parameter %.60s is not known", name);
  }
  return ANE_OK;
}

/* Sets the value of one parameter of the primitive. */
static ane_status parameter(struct mil_import *t, const struct ane_mil_op *op, const struct row *row, const char *param,
                            size_t len, int32_t *out) {
  char name[64];
  size_t n = 0;
  const char *source = mapped(row->mapping, param, len, &n);
  bool fallback = source && (*source == '#' || *source == '\'');
  snprintf(name, sizeof name, "%.*s", (int)(source && !fallback ? n : len), source && !fallback ? source : param);
  ane_status st = mil_param(t, op, name, out);
  if (st || *out != INTERP_NONE || !fallback) return st;
  return *source == '#' ? interp_float(t->g, strtof(source + 1, NULL), out, t->err)
                        : interp_text(t->g, source + 1, n - 1, out, t->err);
}

static ane_status map_op(struct mil_import *t, const struct ane_mil_op *op, const struct row *row) {
  struct ane_prim_info info = ane_prim_info(row->prim);
  const struct ane_mil_arg *many = NULL;
  ane_status st = check_known(t, op, row);
  int32_t count = 0, *out;
  if (st) return st;
  if (info.variadic) {
    many = ane_mil_op_arg(op, "values");
    if (!many) return mil_op_fail(t, op, ANE_FORMAT, "parameter values is missing");
  }
  int32_t *in = ane_arena_array(&t->g->arena, (size_t)info.n_params + (many ? many->n_bindings : 0) + 1, sizeof *in);
  if (!in) return interp_no_memory(t->err);
  for (const char *p = info.params; !st && *p && count < info.n_params; p += strspn(p, " ")) {
    size_t all = strcspn(p, " ");
    st = parameter(t, op, row, p, all - (p[all - 1] == '?'), &in[count++]);
    p += all;
  }
  for (uint32_t i = 0; !st && many && i < many->n_bindings; i++) st = mil_binding(t, op, &many->bindings[i], &in[count++]);
  while (!many && count > 0 && in[count - 1] == INTERP_NONE) count--;
  if (!st && op->n_outputs > (uint32_t)info.max_outputs)
    st = mil_op_fail(t, op, ANE_FORMAT, "has %" PRIu32 " outputs, but must have at most %d", op->n_outputs, info.max_outputs);
  if (!st) st = mil_outputs(t, op, &out);
  return st ? st : mil_add(t, op, row->prim, row->moves, in, count, out);
}

/* ---- Blocks --------------------------------------------------------------------------------------------------------*/

static ane_status import_op(struct mil_import *t, const struct ane_mil_op *op);

static ane_status import_block(struct mil_import *t, const struct ane_mil_block *b, struct interp_block *to) {
  struct interp_block *outer = t->block;
  ane_status st = ANE_OK;
  t->block = to;
  to->n_inputs = (int32_t)b->n_inputs, to->n_outputs = (int32_t)b->n_outputs;
  to->inputs = ane_arena_array(&t->g->arena, (size_t)b->n_inputs + 1, sizeof *to->inputs);
  to->outputs = ane_arena_array(&t->g->arena, (size_t)b->n_outputs + 1, sizeof *to->outputs);
  if (!to->inputs || !to->outputs) return interp_no_memory(t->err);
  for (uint32_t i = 0; !st && i < b->n_inputs; i++) {
    st = interp_value(t->g, b->inputs[i].name, &to->inputs[i], t->err);
    if (st) break;
    t->g->values[to->inputs[i]].block = to; /* no node makes it, but it is freed with the block's values */
    struct mil_name n = {.value = to->inputs[i], .type = &b->inputs[i].type, .state = -1};
    st = mil_define(t, b->inputs[i].name, &n);
  }
  for (uint32_t i = 0; !st && i < b->n_ops; i++) st = import_op(t, &b->ops[i]);
  for (uint32_t i = 0; !st && i < b->n_outputs; i++) {
    const struct mil_name *n = mil_find(t, b->outputs[i]);
    if (!n || n->value == INTERP_NONE)
      st = ane_fail(t->err, ANE_UNSUPPORTED, "output %.100s is not a tensor of a supported type", b->outputs[i]);
    else
      to->outputs[i] = n->value;
  }
  t->block = outer;
  return st ? st : interp_close_block(t->g, to, t->err);
}

/* Translates cond(pred) or while_loop(loop_vars), which have two blocks each. */
static ane_status control(struct mil_import *t, const struct ane_mil_op *op, bool loop) {
  const struct ane_mil_arg *a = ane_mil_op_arg(op, loop ? "loop_vars" : "pred");
  struct interp_node n = {.name = node_name(op), .kind = loop ? INTERP_WHILE : INTERP_IF, .n_out = (int32_t)op->n_outputs};
  if (!a || op->n_blocks != 2 || (!loop && a->n_bindings != 1))
    return mil_op_fail(t, op, ANE_FORMAT, "must have %s and two blocks", loop ? "loop_vars" : "pred");
  n.n_in = (int32_t)a->n_bindings;
  n.in = ane_arena_array(&t->g->arena, (size_t)a->n_bindings + 1, sizeof *n.in);
  if (!n.in) return interp_no_memory(t->err);
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < a->n_bindings; i++) st = mil_binding(t, op, &a->bindings[i], &n.in[i]);
  for (int k = 0; !st && k < 2; k++) {
    const struct ane_mil_block *b = &op->blocks[k];
    uint32_t in = loop ? a->n_bindings : 0, out = loop && k == 0 ? 1 : op->n_outputs;
    if (b->n_inputs != in || b->n_outputs != out || (loop && op->n_outputs != in))
      return mil_op_fail(t, op, ANE_FORMAT,
                         "block %d has %" PRIu32 " inputs and %" PRIu32 " outputs, but must have %" PRIu32 " and %" PRIu32, k + 1,
                         b->n_inputs, b->n_outputs, in, out);
    struct interp_block *to = ane_arena_alloc(&t->g->arena, sizeof *to);
    if (!to) return interp_no_memory(t->err);
    st = import_block(t, b, to);
    if (st) ane_buffer_free(&to->buffer);
    n.blocks[k] = to;
  }
  if (!st) st = mil_outputs(t, op, &n.out);
  return st ? st : interp_put(t->g, t->block, &n, t->err);
}

/* ---- States --------------------------------------------------------------------------------------------------------*/

static ane_status state_op(struct mil_import *t, const struct ane_mil_op *op, bool write) {
  const struct ane_mil_arg *a = ane_mil_op_arg(op, "input");
  const struct mil_name *s = a && a->n_bindings == 1 && a->bindings[0].name ? mil_find(t, a->bindings[0].name) : NULL;
  struct interp_node n = {.name = node_name(op), .kind = write ? INTERP_WRITE : INTERP_READ, .n_in = write, .n_out = !write};
  if (!s || s->state < 0) return mil_op_fail(t, op, ANE_FORMAT, "parameter input is not a state");
  if (op->n_outputs != (uint32_t)n.n_out)
    return mil_op_fail(t, op, ANE_FORMAT, "has %" PRIu32 " outputs, but must have %d", op->n_outputs, (int)n.n_out);
  n.at = s->state;
  n.in = ane_arena_array(&t->g->arena, 1, sizeof *n.in);
  if (!n.in) return interp_no_memory(t->err);
  ane_status st = ANE_OK;
  if (write) {
    st = mil_param(t, op, "data", &n.in[0]);
    if (!st && n.in[0] == INTERP_NONE) st = mil_op_fail(t, op, ANE_FORMAT, "parameter data is missing");
  }
  if (!st) st = mil_outputs(t, op, &n.out);
  return st ? st : interp_put(t->g, t->block, &n, t->err);
}

/* coreml_update_state(state, value) -> value: a write, then a read. */
static ane_status update_state(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_arg *a = ane_mil_op_arg(op, "state");
  const struct mil_name *s = a && a->n_bindings == 1 && a->bindings[0].name ? mil_find(t, a->bindings[0].name) : NULL;
  struct interp_node n = {.name = node_name(op), .kind = INTERP_WRITE, .n_in = 1};
  if (!s || s->state < 0 || op->n_outputs > 1) return mil_op_fail(t, op, ANE_FORMAT, "parameter state is not a state");
  n.at = s->state;
  n.in = ane_arena_array(&t->g->arena, 1, sizeof *n.in);
  n.out = ane_arena_array(&t->g->arena, 1, sizeof *n.out);
  if (!n.in || !n.out) return interp_no_memory(t->err);
  ane_status st = mil_param(t, op, "value", &n.in[0]);
  if (!st && n.in[0] == INTERP_NONE) st = mil_op_fail(t, op, ANE_FORMAT, "parameter value is missing");
  if (!st) st = interp_put(t->g, t->block, &n, t->err);
  if (st || op->n_outputs == 0) return st;
  struct mil_name name = {.value = n.in[0], .type = &op->outputs[0].type, .state = -1};
  return mil_define(t, op->outputs[0].name, &name);
}

/* ---- Ops -----------------------------------------------------------------------------------------------------------*/

static ane_status import_const(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *v = ane_mil_op_attr(op, "val");
  struct mil_name n = {.value = INTERP_NONE, .raw = v, .type = &op->outputs[0].type, .state = -1};
  ane_status st = mil_constant(t, op->outputs[0].name, v, &n.value);
  return st ? st : mil_define(t, op->outputs[0].name, &n);
}

static ane_status import_op(struct mil_import *t, const struct ane_mil_op *op) {
  bool done = false;
  if (strcmp(op->type, "const") == 0) return import_const(t, op);
  if (strcmp(op->type, "cond") == 0) return control(t, op, false);
  if (strcmp(op->type, "while_loop") == 0) return control(t, op, true);
  if (strcmp(op->type, "read_state") == 0) return state_op(t, op, false);
  if (strcmp(op->type, "write_state") == 0) return state_op(t, op, true);
  if (strcmp(op->type, "coreml_update_state") == 0) return update_state(t, op);
  if (op->n_blocks) return mil_op_fail(t, op, ANE_UNSUPPORTED, "the op is not known");
  ane_status st = mil_compose(t, op, &done);
  if (!st && !done) st = mil_constexpr(t, op, &done);
  if (st || done) return st;
  for (size_t i = 0; i < ANE_COUNT(rows); i++)
    if (strcmp(rows[i].op, op->type) == 0) return map_op(t, op, &rows[i]);
  return mil_op_fail(t, op, ANE_UNSUPPORTED, "the op is not known");
}

/* ---- The function --------------------------------------------------------------------------------------------------*/

_Static_assert((int)ANE_ONNX_IO_RANK >= (int)ANE_DYN_RANK, "inputs and outputs have as many dimensions as values");

static void describe(struct ane_onnx_io *io, const char *name, const struct ane_mil_type *type, int32_t value) {
  *io = (struct ane_onnx_io){.name = name, .value = value, .dtype = ane_mil_dtype_plain(type->dtype), .rank = type->rank};
  for (int32_t i = 0; i < type->rank; i++) io->dim[i] = type->dim[i];
}

static ane_status add_input(struct mil_import *t, const struct ane_mil_named_type *in, const struct ane_mil_interface *d,
                            struct ane_onnx_io *io) {
  struct ane_interp *g = t->g;
  struct mil_name n = {.value = INTERP_NONE, .type = &in->type, .state = -1};
  if (in->type.kind == ANE_MIL_STATE) {
    n.state = g->n_states;
    g->states[g->n_states++] = in->name;
    return mil_define(t, in->name, &n);
  }
  ane_dtype plain = in->type.kind == ANE_MIL_TENSOR ? ane_mil_dtype_plain(in->type.dtype) : ANE_DTYPE_COUNT;
  if (plain == ANE_DTYPE_COUNT || ane_dtype_info(plain)->block != 1 || in->type.rank > ANE_DYN_RANK)
    return ane_fail(t->err, ANE_UNSUPPORTED, "input %.100s has a type that is not supported", in->name);
  ane_status st = interp_value(g, in->name, &n.value, t->err);
  if (st) return st;
  g->values[n.value].block = &g->main; /* node INTERP_NONE: no node makes it, but it is freed with the main block's values */
  describe(&io[g->n_inputs], in->name, &in->type, n.value);
  if (d) g->features[g->n_inputs] = ane_mil_feature(d->inputs, d->n_inputs, in->name);
  g->inputs[g->n_inputs++] = n.value;
  return mil_define(t, in->name, &n);
}

static ane_status import_function(struct mil_import *t) {
  struct ane_interp *g = t->g;
  const struct ane_mil_function *f = g->function;
  const struct ane_mil_interface *d = ane_mil_interface(g->mil, f->name);
  size_t n = (size_t)f->n_inputs + 1, n_out = (size_t)f->block.n_outputs + 1;
  struct ane_onnx_io *in = ane_arena_array(&g->arena, n, sizeof *in), *out = ane_arena_array(&g->arena, n_out, sizeof *out);
  g->features = ane_arena_array(&g->arena, n, sizeof *g->features);
  g->inputs = ane_arena_array(&g->arena, n, sizeof *g->inputs);
  g->states = ane_arena_array(&g->arena, n, sizeof *g->states);
  if (!in || !out || !g->features || !g->inputs || !g->states) return interp_no_memory(t->err);
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < f->n_inputs; i++) st = add_input(t, &f->inputs[i], d, in);
  if (!st) st = import_block(t, &f->block, &g->main);
  for (int32_t i = 0; !st && i < g->main.n_outputs; i++) {
    const struct mil_name *name = mil_find(t, f->block.outputs[i]);
    describe(&out[i], f->block.outputs[i], name->type, name->value);
  }
  g->io_in = in, g->io_out = out;
  g->info.n_inputs = g->n_inputs, g->info.n_outputs = g->main.n_outputs;
  return st;
}

ane_status interp_import_mil(struct ane_interp *g, struct ane_error *err) {
  struct mil_import t = {.g = g, .block = &g->main, .err = err};
  ane_status st = import_function(&t);
  ane_strmap_free(&t.names);
  ane_buffer_free(&t.entries);
  return st;
}
