/* Verifies a program: ane_ai_verify. */
#include "formats/aimodel/ai_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct verify {
  const struct ane_ai_program *p;
  const struct ane_ai_function *f;
  const struct ane_ai_op *op; /* the operation at hand; NULL: outside operations */
  bool *defined;              /* [n_values], by number */
  struct ane_error *err;
};

static ane_status wrong(const struct verify *v, const char *what) {
  if (!v->op) return ane_fail(v->err, ANE_FORMAT, "function %.64s: %s", v->f->name, what);
  return ane_fail(v->err, ANE_FORMAT, "function %.64s: %s (value %d): %s", v->f->name, v->op->name,
                  /* analyser: an operation with results has an array of them. */
                  v->op->n_out ? (int)v->op->out->number : -1, what);
}

static bool known(const struct verify *v, const struct ane_ai_value *x) {
  return x && x->number >= 0 && x->number < v->f->n_values && v->defined[x->number];
}

static ane_status define(struct verify *v, const struct ane_ai_value *x) {
  if (!x || x->number < 0 || x->number >= v->f->n_values || v->defined[x->number])
    return wrong(v, "the number of a result is out of range or used twice");
  v->defined[x->number] = true;
  return ANE_OK;
}

static ane_status check_constant(const struct verify *v) {
  const struct ane_ai_data *d = &v->op->data;
  uint64_t count, bytes;
  char text[128], type[ANE_AI_TYPE_TEXT];
  if (v->op->out->type.kind != ANE_AI_TENSOR || !ane_ai_count(&v->op->out->type, &count) ||
      !ane_ai_bytes(v->op->out->type.dtype, d->splat ? 1 : count, &bytes))
    return wrong(v, "a constant of unknown size");
  uint8_t first;
  if (d->resource < 0 && ane_ai_dtype_bits(v->op->out->type.dtype) < 8 && !ai_uniform(v->op->out, &first))
    return wrong(v, "sub-byte elements that differ must be in a resource");
  if (d->bytes == bytes && (d->data || d->resource >= 0)) return ANE_OK;
  snprintf(text, sizeof text, "%" PRIu64 " bytes for %.60s, which has %" PRIu64, d->bytes,
           ane_ai_type_text(type, &v->op->out->type), bytes);
  return wrong(v, text);
}

static ane_status check_invoke(const struct verify *v) {
  const struct ane_ai_op *op = v->op;
  const struct ane_ai_function *f = op->callee ? ane_ai_function(v->p, op->callee) : NULL;
  if (!f || f == v->f) return wrong(v, "calls a function that is not in the asset");
  bool fits = f->n_inputs == op->n_in && f->n_outputs == op->n_out;
  for (uint32_t i = 0; fits && i < op->n_in; i++) fits = ane_ai_type_equal(&f->inputs[i].value->type, &op->in[i]->type);
  for (uint32_t i = 0; fits && i < op->n_out; i++) fits = ane_ai_type_equal(&f->outputs[i].value->type, &op->out[i].type);
  return fits ? ANE_OK : wrong(v, "its types differ from those of the function that it calls");
}

enum { MAX_RESULTS = 2 };

static ane_status check_types(const struct verify *v) {
  const struct ane_ai_op *op = v->op;
  struct ane_ai_type types[MAX_RESULTS];
  char text[300], is[ANE_AI_TYPE_TEXT], should[ANE_AI_TYPE_TEXT];
  struct ane_error err = {0};
  if (op->id >= ANE_AI_OPS) return wrong(v, "unknown operation");
  if (op->id == ANE_AI_CONSTANT) return op->n_out == 1 && !op->n_in ? check_constant(v) : wrong(v, "a constant has one result");
  if (op->id == ANE_AI_INVOKE) return check_invoke(v);
  if (op->id == ANE_AI_OUTPUT || op->id == ANE_AI_YIELD || op->id == ANE_AI_REDUCE || op->id == ANE_AI_REDUCE_INDEX ||
      op->id == ANE_AI_IF || op->id == ANE_AI_WHILE || op->id == ANE_AI_CONDITION)
    return wrong(v, "is not allowed here");
  if (op->n_out != (uint32_t)ai_rows[op->id].out) return wrong(v, "has a wrong number of results");
  for (uint32_t i = 0; i < op->n_out; i++) types[i] = op->out[i].type;
  if (ane_ai_infer(op->id, op->in, op->n_in, types, op->n_out, &err)) return wrong(v, err.text);
  for (uint32_t i = 0; i < op->n_out; i++) {
    if (ane_ai_type_equal(&types[i], &op->out[i].type)) continue;
    snprintf(text, sizeof text, "its result is declared as %s, but is %s", ane_ai_type_text(is, &op->out[i].type),
             ane_ai_type_text(should, &types[i]));
    return wrong(v, text);
  }
  return ANE_OK;
}

static ane_status check_op(struct verify *v) {
  for (uint32_t i = 0; i < v->op->n_in; i++)
    if (!known(v, v->op->in[i])) return wrong(v, "an operand is used before it is defined");
  for (uint32_t i = 0; i < v->op->n_out; i++) {
    uint64_t count;
    const struct ane_ai_type *t = &v->op->out[i].type;
    if (t->kind == ANE_AI_TENSOR && (t->rank > ANE_AI_RANK || !ane_ai_count(t, &count)))
      return wrong(v, "the size of its result is unknown");
  }
  ane_status st = check_types(v);
  for (uint32_t i = 0; i < v->op->n_out && !st; i++) st = define(v, &v->op->out[i]);
  return st;
}

static ane_status check_ports(struct verify *v, const struct ane_ai_port *list, uint32_t n, const char *what) {
  char text[128];
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t j = 0; j < i; j++)
      if (strcmp(list[i].name, list[j].name) == 0) {
        snprintf(text, sizeof text, "two %s are named %.64s", what, list[i].name);
        return wrong(v, text);
      }
  return ANE_OK;
}

static ane_status check_function(struct verify *v) {
  const struct ane_ai_function *f = v->f;
  ane_status st = check_ports(v, f->inputs, f->n_inputs, "inputs");
  if (!st) st = check_ports(v, f->outputs, f->n_outputs, "outputs");
  for (uint32_t i = 0; i < f->n_inputs && !st; i++) st = define(v, f->inputs[i].value);
  for (uint32_t i = 0; i < f->n_ops && !st; i++) {
    v->op = f->ops[i];
    st = check_op(v);
  }
  v->op = NULL;
  for (uint32_t i = 0; i < f->n_outputs && !st; i++)
    if (!known(v, f->outputs[i].value)) st = wrong(v, "an output is not a value of the function");
  return st;
}

ane_status ane_ai_verify(const struct ane_ai_program *p, struct ane_error *err) {
  ane_status st = p->n_functions ? ANE_OK : ane_fail(err, ANE_FORMAT, "the asset has no function");
  for (uint32_t i = 0; i < p->n_functions && !st; i++) {
    struct ane_arena arena = {0};
    const struct ane_ai_function *f = &p->functions[i];
    struct verify v = {.p = p, .f = f, .err = err};
    v.defined = ane_arena_array(&arena, (size_t)(f->n_values > 0 ? f->n_values : 0) + 1, sizeof *v.defined);
    if (ane_ai_function(p, f->name) != f) st = wrong(&v, "two functions have this name");
    if (!st) st = v.defined ? check_function(&v) : ane_fail(err, ANE_NOMEM, "not enough memory");
    ane_arena_free(&arena);
  }
  return st;
}
