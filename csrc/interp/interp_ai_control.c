/* Translates `if` and `while` of Core AI to cond and while_loop of MIL. */
#include "interp/interp_ai.h"

#include <string.h>

/* Begins a block. Returns the operations so far, which are put aside until end_block. */
static struct ane_buffer begin_block(struct translation *t) {
  struct ane_buffer outer = t->ops;
  t->ops = (struct ane_buffer){0};
  return outer;
}

/* Ends a block that returns `values`. Its operations move into the arena. */
static ane_status end_block(struct translation *t, ane_status st, struct ane_buffer outer, const struct slot *const *values,
                            uint32_t n, struct ane_mil_block *out) {
  struct ane_mil_op *ops = ane_arena_array(t->arena, t->ops.size / sizeof *ops + 1, sizeof *ops);
  const char **names = ane_arena_array(t->arena, (size_t)n + 1, sizeof *names);
  if (!st && (!ops || !names)) st = ai_no_memory(t);
  /* analyser: without memory, st is set. */
  if (!st && t->ops.size) memcpy(ops, t->ops.data, t->ops.size);
  for (uint32_t i = 0; i < n && !st; i++) {
    if (!values[i]->name) st = ai_fail(t, ANE_UNSUPPORTED, "a region returns a token, as one that writes a state does");
    names[i] = values[i]->name; /* analyser: as above */
  }
  out->ops = ops;
  out->n_ops = (uint32_t)(t->ops.size / sizeof *ops);
  out->outputs = names;
  out->n_outputs = n;
  ane_buffer_free(&t->ops);
  t->ops = outer;
  return st;
}

/* Translates a region and sets results [n_outputs] to copies of what it returns: the next region has the same slots. */
static ane_status region(struct translation *t, const struct ane_ai_op *op, const struct ane_ai_function *f,
                         const struct slot *const *in, struct slot *slots, const struct slot **results) {
  struct slot *copies = ane_arena_array(t->arena, (size_t)f->n_outputs + 1, sizeof *copies);
  ane_status st = copies ? ai_translate_body(t, f, in, slots) : ai_no_memory(t);
  t->op = op;
  for (uint32_t i = 0; i < f->n_outputs && !st; i++) {
    /* analyser: as in end_block. */
    copies[i] = slots[f->outputs[i].value->number];
    results[i] = &copies[i];
  }
  return st;
}

/* Appends the operation with its two blocks. */
static ane_status emit(struct translation *t, const char *type, const struct param *p, struct slot *out, uint32_t n_out,
                       const struct ane_mil_block *blocks) {
  ane_status st = ai_emit(t, type, p, 1, out, n_out);
  if (st) return st;
  struct ane_mil_op *op = (struct ane_mil_op *)(void *)t->ops.data + (t->ops.size / sizeof *op - 1);
  op->blocks = blocks;
  op->n_blocks = 2;
  return ANE_OK;
}

static ane_status translate_if(struct translation *t, const struct ane_ai_op *op, const struct slot *const *in, struct slot *out,
                               struct slot *slots) {
  struct ane_mil_block *blocks = ane_arena_array(t->arena, 2, sizeof *blocks);
  const struct slot **results = ane_arena_array(t->arena, (size_t)op->n_out + 1, sizeof *results);
  if (!blocks || !results) return ai_no_memory(t);
  ane_status st = ANE_OK;
  if (op->n_in != 1) return ai_fail(t, ANE_FORMAT, "has %u operands, but must have the condition", (unsigned)op->n_in);
  for (int k = 0; k < 2 && !st; k++) {
    const struct ane_ai_function *f = &op->regions[k];
    if (f->n_inputs || f->n_outputs != op->n_out) return ai_fail(t, ANE_FORMAT, "its results differ from those of its regions");
    struct ane_buffer outer = begin_block(t);
    st = region(t, op, f, NULL, slots, results);
    st = end_block(t, st, outer, results, op->n_out, &blocks[k]);
  }
  struct param p = {.name = "pred", .slot = in[0]};
  return st ? st : emit(t, "cond", &p, out, op->n_out, blocks);
}

/* ---- Loops ----------------------------------------------------------------------------------------------------------*/

/* A loop of Core AI: `before` gives the condition and the values of this round, `after` makes the operands of `before` from
 * these. A loop of MIL takes the condition from the carried values. So it carries what `before` gives: the condition and the
 * values. `before` is translated twice: ahead of the loop, and after `after`. */
struct loop {
  const struct ane_ai_function *before, *after;
  uint32_t n;                  /* carried values: the condition, then the results */
  const struct slot **results; /* [n] of `before` */
  const struct slot **next;    /* of `after` */
  struct slot *carried, *out;  /* [n] inputs of a block; results of the loop */
  const struct slot **args;    /* [n] &carried[i] */
};

static bool make_loop(struct translation *t, const struct ane_ai_op *op, struct loop *l) {
  *l = (struct loop){.before = &op->regions[0], .after = &op->regions[1], .n = op->n_out + 1};
  size_t n = (size_t)l->n + 1;
  l->results = ane_arena_array(t->arena, (size_t)l->before->n_outputs + n, sizeof *l->results);
  l->next = ane_arena_array(t->arena, (size_t)l->after->n_outputs + n, sizeof *l->next);
  l->carried = ane_arena_array(t->arena, n, sizeof *l->carried);
  l->out = ane_arena_array(t->arena, n, sizeof *l->out);
  l->args = ane_arena_array(t->arena, n, sizeof *l->args);
  return l->results && l->next && l->carried && l->out && l->args;
}

/* Gives new names to the inputs of a block, whose types are those that the loop carries. */
static ane_status block_inputs(struct translation *t, struct loop *l, struct ane_mil_block *b) {
  struct ane_mil_named_type *inputs = ane_arena_array(t->arena, (size_t)l->n + 1, sizeof *inputs);
  if (!inputs) return ai_no_memory(t);
  for (uint32_t i = 0; i < l->n; i++) {
    l->carried[i] = (struct slot){.name = ai_name(t), .type = l->out[i].type};
    if (!l->carried[i].name) return ai_no_memory(t);
    l->args[i] = &l->carried[i];
    inputs[i] = (struct ane_mil_named_type){l->carried[i].name, l->carried[i].type};
  }
  b->inputs = inputs;
  b->n_inputs = l->n;
  return ANE_OK;
}

static ane_status translate_while(struct translation *t, const struct ane_ai_op *op, const struct slot *const *in,
                                  struct slot *out, struct slot *slots) {
  struct loop l;
  struct ane_mil_block *blocks = ane_arena_array(t->arena, 2, sizeof *blocks);
  if (!blocks || !make_loop(t, op, &l)) return ai_no_memory(t);
  if (l.before->n_inputs != op->n_in || l.before->n_outputs != l.n || l.after->n_inputs != op->n_out ||
      l.after->n_outputs != op->n_in)
    return ai_fail(t, ANE_FORMAT, "its operands or results differ from those of its regions");
  ane_status st = region(t, op, l.before, in, slots, l.results);
  if (st) return st;
  for (uint32_t i = 0; i < l.n; i++) l.out[i].type = i ? out[i - 1].type : l.results[0]->type;
  const struct slot **first = ane_arena_array(t->arena, l.n, sizeof *first);
  if (!first) return ai_no_memory(t);
  memcpy(first, l.results, l.n * sizeof *first);
  st = block_inputs(t, &l, &blocks[0]);
  if (st) return st;
  st = end_block(t, ANE_OK, begin_block(t), l.args, 1, &blocks[0]);
  if (!st) st = block_inputs(t, &l, &blocks[1]);
  if (st) return st;
  struct ane_buffer outer = begin_block(t);
  st = region(t, op, l.after, l.args + 1, slots, l.next);
  if (!st) st = region(t, op, l.before, l.next, slots, l.results);
  st = end_block(t, st, outer, l.results, l.n, &blocks[1]);
  struct param p = {.name = "loop_vars", .list = first, .n = l.n};
  if (!st) st = emit(t, "while_loop", &p, l.out, l.n, blocks);
  for (uint32_t i = 0; i < op->n_out && !st; i++) out[i] = l.out[i + 1];
  return st;
}

ane_status ai_translate_control(struct translation *t, const struct ane_ai_op *op, const struct slot *const *in, struct slot *out,
                                struct slot *slots) {
  if (op->n_regions != 2) return ai_fail(t, ANE_FORMAT, "has %u regions, but must have two", (unsigned)op->n_regions);
  for (uint32_t i = 0; i < op->n_out; i++)
    if (op->out[i].type.kind != ANE_AI_TENSOR) return ai_fail(t, ANE_UNSUPPORTED, "its results are not tensors alone");
  return op->id == ANE_AI_IF ? translate_if(t, op, in, out, slots) : translate_while(t, op, in, out, slots);
}
