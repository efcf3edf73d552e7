/* Translates the functions of a Core AI program to operations of MIL, which the interpreter runs. Calls are inlined, and so are
 * the bodies of unknown operations. */
#include "interp/interp_ai.h"

#include <stdio.h>
#include <string.h>

/* Limits, because inlining can expand a small file. Each SLOTS operands and results of an operation count as one more.
 * MAX_FUNCTIONS bounds linear searches. */
enum { MAX_OPS = 1 << 20, SLOTS = 4, MAX_DEPTH = 33, MAX_FUNCTIONS = 4096 };

/* ---- Functions -----------------------------------------------------------------------------------------------------*/

/* Inlines a function or body: its results become those of the operation. */
static ane_status inlined(struct translation *t, const struct ane_ai_function *f, const struct ane_ai_op *op,
                          const struct slot *const *in, struct slot *out) {
  if (f->n_inputs != op->n_in || f->n_outputs != op->n_out)
    return ai_fail(t, ANE_FORMAT, "its operands or results differ from those of its body");
  struct slot *slots = ane_arena_array(t->arena, (size_t)f->n_values + 1, sizeof *slots);
  if (!slots) return ai_no_memory(t);
  ane_status st = ai_translate_body(t, f, in, slots);
  t->op = op;
  for (uint32_t i = 0; i < op->n_out && !st; i++) {
    const struct slot *from = &slots[f->outputs[i].value->number];
    if (op->out[i].type.kind == ANE_AI_TENSOR && !from->name)
      return ai_fail(t, ANE_FORMAT, "its body returns a token instead of a tensor");
    /* analyser: out has an element for each result. */
    out[i] = *from;
  }
  return st;
}

static ane_status translate_any(struct translation *t, const struct ane_ai_op *op, struct slot *slots) {
  uint64_t size = 1 + ((uint64_t)op->n_in + op->n_out) / SLOTS;
  t->op = op;
  if (size > MAX_OPS - t->n_ops) return ane_fail(t->err, ANE_UNSUPPORTED, "more than %d operations", (int)MAX_OPS);
  t->n_ops += (uint32_t)size;
  const struct slot **in = ane_arena_array(t->arena, (size_t)op->n_in + AI_MAX_OPERANDS, sizeof *in);
  struct slot *out = op->n_out ? &slots[op->out[0].number] : NULL;
  if (!in) return ai_no_memory(t);
  for (uint32_t i = 0; i < op->n_in; i++) in[i] = &slots[op->in[i]->number];
  for (uint32_t i = 0; i < op->n_out; i++) {
    ane_status st = op->out[i].type.kind == ANE_AI_TOKEN ? ANE_OK : ai_type_of(t, &op->out[i].type, &out[i].type);
    if (st) return st;
  }
  if (op->id == ANE_AI_CONSTANT)
    return op->n_out == 1 ? ai_translate_constant(t, op, out) : ai_fail(t, ANE_FORMAT, "has no result");
  if (op->id == ANE_AI_INVOKE) {
    const struct ane_ai_function *f = ane_ai_function(t->program, op->callee);
    return f ? inlined(t, f, op, in, out) : ai_fail(t, ANE_FORMAT, "calls a function that is not in the asset");
  }
  if (op->id == ANE_AI_IF || op->id == ANE_AI_WHILE) return ai_translate_control(t, op, in, out, slots);
  if (op->id == ANE_AI_OPS)
    return op->body ? inlined(t, op->body, op, in, out) : ai_fail(t, ANE_UNSUPPORTED, "unknown operation");
  if (!ane_ai_fits(op->id, op->n_in, op->n_out)) return ai_fail(t, ANE_FORMAT, "has a wrong number of operands or results");
  struct call c = {.op = op, .out = out};
  if (op->id == ANE_AI_CONCAT) return ai_concat(t, in, op->n_in, out);
  for (uint32_t i = 0; i < AI_MAX_OPERANDS; i++) c.in[i] = i < op->n_in ? in[i] : NULL;
  return ai_translate_op(t, &c);
}

ane_status ai_translate_body(struct translation *t, const struct ane_ai_function *f, const struct slot *const *in,
                             struct slot *slots) {
  ane_status st = ANE_OK;
  if (t->depth >= MAX_DEPTH) return ai_fail(t, ANE_UNSUPPORTED, "calls and regions are nested too deep");
  t->depth++;
  for (uint32_t i = 0; i < f->n_inputs; i++) slots[f->inputs[i].value->number] = *in[i];
  for (uint32_t i = 0; i < f->n_ops && !st; i++) st = translate_any(t, f->ops[i], slots);
  t->depth--;
  return st;
}

/* ---- The model -----------------------------------------------------------------------------------------------------*/

static struct ane_mil_feature feature(const char *name, const struct ane_mil_type *type) {
  struct ane_mil_feature f = {
      .name = name, .description = "", .kind = type->kind == ANE_MIL_STATE ? ANE_MIL_ARRAY_STATE : ANE_MIL_ARRAY};
  f.dtype = type->dtype;
  f.shape.rank = type->rank;
  memcpy(f.shape.dim, type->dim, sizeof f.shape.dim);
  if (type->rank == 0) f.shape.rank = 1, f.shape.dim[0] = 1; /* Core ML describes scalars so */
  return f;
}

/* Lists of a function, each with room for the most entries that it may get. */
struct lists {
  struct ane_mil_named_type *inputs;
  struct ane_mil_feature *in, *out, *states;
  const char **outputs;
  struct slot *given, *slots;
  const struct slot **args;
};

static bool make_lists(struct translation *t, const struct ane_ai_function *f, struct lists *l) {
  size_t n = (size_t)f->n_inputs + 1, k = (size_t)f->n_outputs + 1;
  l->inputs = ane_arena_array(t->arena, n, sizeof *l->inputs);
  l->in = ane_arena_array(t->arena, n, sizeof *l->in);
  l->states = ane_arena_array(t->arena, n, sizeof *l->states);
  l->out = ane_arena_array(t->arena, k, sizeof *l->out);
  l->outputs = ane_arena_array(t->arena, k, sizeof *l->outputs);
  l->given = ane_arena_array(t->arena, n, sizeof *l->given);
  l->args = ane_arena_array(t->arena, n, sizeof *l->args);
  l->slots = ane_arena_array(t->arena, (size_t)f->n_values + 1, sizeof *l->slots);
  return l->inputs && l->in && l->states && l->out && l->outputs && l->given && l->args && l->slots;
}

/* Gives the function's results their declared names, by identity operations. */
static ane_status name_outputs(struct translation *t, const struct ane_ai_function *f, struct lists *l,
                               struct ane_mil_function *to, struct ane_mil_interface *d) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < f->n_outputs && !st; i++) {
    const struct slot *s = &l->slots[f->outputs[i].value->number];
    if (f->outputs[i].value->type.kind != ANE_AI_TENSOR) continue;
    struct slot named = {.type = s->type};
    struct param p = {.name = "x", .slot = s};
    if (!s->name) return ane_fail(t->err, ANE_FORMAT, "output %.64s is not a tensor", f->outputs[i].name);
    st = ai_emit(t, "identity", &p, 1, &named, 1);
    if (st) return st;
    struct ane_mil_op *op = (struct ane_mil_op *)(void *)t->ops.data + (t->ops.size / sizeof *op - 1);
    ((struct ane_mil_named_type *)(uintptr_t)op->outputs)->name = f->outputs[i].name;
    l->out[d->n_outputs++] = feature(f->outputs[i].name, &s->type);
    l->outputs[to->block.n_outputs++] = f->outputs[i].name;
  }
  return st;
}

static ane_status translate_function(struct translation *t, const struct ane_ai_function *f, struct ane_mil_function *to,
                                     struct ane_mil_interface *d) {
  struct lists l;
  ane_status st = make_lists(t, f, &l) ? ANE_OK : ai_no_memory(t);
  *to = (struct ane_mil_function){.name = f->name, .opset = "CoreML8"};
  *d = (struct ane_mil_interface){.name = f->name, .predicted = "", .probabilities = ""};
  for (uint32_t i = 0; i < f->n_inputs && !st; i++) {
    const struct ane_ai_type *type = &f->inputs[i].value->type;
    if (type->kind == ANE_AI_TOKEN) return ane_fail(t->err, ANE_UNSUPPORTED, "input %.64s is a token", f->inputs[i].name);
    st = ai_type_of(t, type, &l.given[i].type);
    l.given[i].name = f->inputs[i].name;
    l.args[i] = &l.given[i];
    l.inputs[to->n_inputs++] = (struct ane_mil_named_type){f->inputs[i].name, l.given[i].type};
    if (type->kind == ANE_AI_HANDLE)
      l.states[d->n_states++] = feature(f->inputs[i].name, &l.given[i].type);
    else
      l.in[d->n_inputs++] = feature(f->inputs[i].name, &l.given[i].type);
  }
  if (!st) st = ai_translate_body(t, f, l.args, l.slots);
  if (!st) st = name_outputs(t, f, &l, to, d);
  struct ane_mil_op *ops = st ? NULL : ane_arena_array(t->arena, t->ops.size / sizeof *ops + 1, sizeof *ops);
  if (!st && !ops) st = ai_no_memory(t);
  /* analyser: ai_no_memory() never returns ANE_OK. */
  if (!st && t->ops.size) memcpy(ops, t->ops.data, t->ops.size);
  to->block.ops = ops;
  to->block.n_ops = (uint32_t)(t->ops.size / sizeof *ops);
  to->block.outputs = l.outputs;
  to->inputs = l.inputs;
  d->inputs = l.in;
  d->outputs = l.out;
  d->states = l.states;
  t->ops.size = 0;
  return st;
}

ane_status ane_interp_mil_of_ai(struct ane_arena *arena, const struct ane_ai_program *p, struct ane_mil_model **out,
                                struct ane_error *err) {
  struct translation t = {.arena = arena, .program = p, .err = err};
  struct ane_mil_model *m = ane_arena_alloc(arena, sizeof *m);
  struct ane_mil_function *list = ane_arena_array(arena, (size_t)p->n_functions + 1, sizeof *list);
  struct ane_mil_interface *faces = ane_arena_array(arena, (size_t)p->n_functions + 1, sizeof *faces);
  if (!m || !list || !faces) return ai_no_memory(&t);
  if (p->n_functions > MAX_FUNCTIONS) return ane_fail(err, ANE_UNSUPPORTED, "has more than %d functions", (int)MAX_FUNCTIONS);
  *m = (struct ane_mil_model){.version = 9, .interfaces = faces, .multi = true, .default_function = "main"};
  m->metadata = (struct ane_mil_metadata){.description = "", .version = "", .author = "", .license = ""};
  m->program.functions = list;
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < p->n_functions && !st; i++) {
    if (p->functions[i].local) continue;
    st = translate_function(&t, &p->functions[i], &list[m->program.n_functions], &faces[m->n_interfaces]);
    if (st) ane_fail_in(err, st, "function %.64s", p->functions[i].name);
    m->program.n_functions++;
    m->n_interfaces++;
  }
  ane_buffer_free(&t.ops);
  if (st) return st;
  if (!m->program.n_functions) return ane_fail(err, ANE_FORMAT, "the asset has no function that can be called");
  if (!ane_mil_function(m, "main")) m->default_function = list[0].name;
  *out = m;
  return ANE_OK;
}
