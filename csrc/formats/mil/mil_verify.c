/* Verifies that the parts of a model agree: ane_mil_verify. */
#include "formats/mil/mil_internal.h"

#include <inttypes.h>
#include <string.h>

/* A name of the function that is being verified. */
struct name {
  const struct ane_mil_type *type;
  bool live;          /* defined in a block that has not ended */
  bool input, output; /* of the function */
  bool input_described, output_described;
};

struct verify {
  struct ane_strmap names;   /* -> index into entries */
  struct ane_buffer entries; /* of struct name */
  struct ane_buffer scope;   /* of uint32_t: entries of the open blocks, in the order of definition */
  struct ane_error *err;
};

static ane_status fail_name(struct verify *v, const char *fmt, const char *name) {
  char q[ANE_QUOTE_TEXT];
  ane_quote(q, name, strlen(name));
  return ane_fail(v->err, ANE_FORMAT, "%s %s", q, fmt);
}

/* ---- Names ---------------------------------------------------------------------------------------------------------*/

/* Valid until the next definition. */
static struct name *entry(const struct verify *v, uint32_t i) { return (struct name *)(void *)v->entries.data + i; }

/* The definition that a name refers to at this point; NULL: none. */
static struct name *find(const struct verify *v, const char *name) {
  uint32_t i = ane_strmap_get(&v->names, name, strlen(name));
  return i != UINT32_MAX && entry(v, i)->live ? entry(v, i) : NULL;
}

static ane_status define(struct verify *v, const struct ane_mil_named_type *t) {
  uint32_t index = (uint32_t)(v->entries.size / sizeof(struct name)), old;
  struct name fresh = {.type = &t->type, .live = true};
  if (!ane_strmap_put(&v->names, t->name, strlen(t->name), index, &old)) return mil_no_memory(v->err);
  if (old == UINT32_MAX) {
    if (!ane_buffer_append(&v->entries, &fresh, sizeof fresh)) return mil_no_memory(v->err);
  } else {
    /* a name may be defined again once the block that defined it has ended */
    if (entry(v, old)->live) return fail_name(v, "is defined twice", t->name);
    *entry(v, old) = fresh;
    index = old;
  }
  return ane_buffer_append(&v->scope, &index, sizeof index) ? ANE_OK : mil_no_memory(v->err);
}

static ane_status use(struct verify *v, const char *name) {
  return find(v, name) ? ANE_OK : fail_name(v, "is used, but not defined before", name);
}

/* Ends a block: hides the names defined since the scope had `from` bytes. */
static void leave(struct verify *v, size_t from) {
  for (size_t i = from; i < v->scope.size; i += sizeof(uint32_t)) {
    uint32_t index;
    memcpy(&index, v->scope.data + i, sizeof index);
    entry(v, index)->live = false;
  }
  v->scope.size = from;
}

/* ---- Operations ----------------------------------------------------------------------------------------------------*/

static bool is_text(const struct ane_mil_value *v) { return v->kind == ANE_MIL_STRINGS && v->type.rank == 0; }

static ane_status verify_const(struct verify *v, const struct ane_mil_op *op) {
  const struct ane_mil_value *val = ane_mil_op_attr(op, "val");
  if (!val) return ane_fail(v->err, ANE_FORMAT, "a constant without the attribute val");
  if (op->n_inputs) return ane_fail(v->err, ANE_FORMAT, "a constant with inputs");
  if (op->n_outputs != 1) return ane_fail(v->err, ANE_FORMAT, "a constant with %" PRIu32 " outputs, expected one", op->n_outputs);
  return ane_mil_type_equal(&val->type, &op->outputs[0].type)
             ? ANE_OK
             : ane_fail(v->err, ANE_FORMAT, "the type of val is not that of the output");
}

static ane_status verify_block(struct verify *v, const struct ane_mil_block *b);

static ane_status verify_op(struct verify *v, const struct ane_mil_op *op) {
  const struct ane_mil_value *name = ane_mil_op_attr(op, "name");
  if (name && !is_text(name)) return ane_fail(v->err, ANE_FORMAT, "the attribute name is not a string");
  ane_status st = strcmp(op->type, "const") == 0 ? verify_const(v, op) : ANE_OK;
  for (uint32_t i = 0; !st && i < op->n_inputs; i++) {
    const struct ane_mil_arg *arg = &op->inputs[i];
    for (uint32_t j = 0; !st && j < arg->n_bindings; j++) {
      char q[ANE_QUOTE_TEXT];
      if (arg->bindings[j].name && (st = use(v, arg->bindings[j].name)))
        ane_fail_in(v->err, st, "parameter %s", ane_quote(q, arg->name, strlen(arg->name)));
    }
  }
  for (uint32_t i = 0; !st && i < op->n_blocks; i++) {
    size_t from = v->scope.size;
    st = verify_block(v, &op->blocks[i]);
    leave(v, from);
  }
  for (uint32_t i = 0; !st && i < op->n_outputs; i++) st = define(v, &op->outputs[i]);
  return st;
}

/* Verifies a block and leaves it open: the caller still sees its names. */
static ane_status verify_block(struct verify *v, const struct ane_mil_block *b) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < b->n_inputs; i++) st = define(v, &b->inputs[i]);
  for (uint32_t i = 0; !st && i < b->n_ops; i++) {
    char text[ANE_MIL_OP_TEXT];
    st = verify_op(v, &b->ops[i]);
    if (st) ane_fail_in(v->err, st, "%s", ane_mil_op_text(text, &b->ops[i]));
  }
  for (uint32_t i = 0; !st && i < b->n_outputs; i++)
    if ((st = use(v, b->outputs[i]))) ane_fail_in(v->err, st, "output of the block");
  return st;
}

/* ---- Description against function --------------------------------------------------------------------------------------*/

/* Does the description agree with the type? It gives numbers where the function has unknown dimensions, and [1] for rank 0.
 * Outputs may omit the shape. */
static bool fits(const struct ane_mil_feature *f, const struct ane_mil_type *t, bool output) {
  const struct ane_mil_dims *s = &f->shape;
  if (output && s->rank == 0) return true;
  if (t->rank == 0) return s->rank == 1 && s->dim[0] == 1;
  if (s->rank != t->rank) return false;
  for (int32_t i = 0; i < s->rank; i++)
    if (t->dim[i] >= 0 && t->dim[i] != s->dim[i]) return false;
  return true;
}

static ane_status verify_feature(struct verify *v, const struct ane_mil_feature *f, bool output) {
  ane_mil_type_kind want = f->kind == ANE_MIL_ARRAY_STATE ? ANE_MIL_STATE : ANE_MIL_TENSOR;
  struct name *n = find(v, f->name);
  if (!n || !(output ? n->output : n->input))
    return ane_fail(v->err, ANE_FORMAT, "is described, but the function has none of the name");
  bool *described = output ? &n->output_described : &n->input_described;
  if (*described) return ane_fail(v->err, ANE_FORMAT, "is described twice");
  *described = true;
  if (f->kind == ANE_MIL_OTHER) return ANE_OK;
  if (n->type->kind != want)
    return ane_fail(v->err, ANE_FORMAT, "is described as %s, in the function it is none",
                    want == ANE_MIL_STATE ? "a state" : "an array");
  if (n->type->dtype != f->dtype)
    return ane_fail(v->err, ANE_FORMAT, "is described as %s, in the function it is %s", ane_mil_dtype_name(f->dtype),
                    ane_mil_dtype_name(n->type->dtype));
  return fits(f, n->type, output) ? ANE_OK
                                  : ane_fail(v->err, ANE_FORMAT, "is described with another shape than it has in the function");
}

static ane_status verify_features(struct verify *v, const struct ane_mil_feature *list, uint32_t n, const char *what) {
  for (uint32_t i = 0; i < n; i++) {
    char q[ANE_QUOTE_TEXT];
    ane_status st = verify_feature(v, &list[i], *what == 'o');
    if (st) return ane_fail_in(v->err, st, "%s %s", what, ane_quote(q, list[i].name, strlen(list[i].name)));
  }
  return ANE_OK;
}

/* Verifies the description of a function while the function's block is open. */
static ane_status verify_interface(struct verify *v, const struct ane_mil_function *f, const struct ane_mil_interface *d) {
  if (!d) return ane_fail(v->err, ANE_FORMAT, "is not described");
  for (uint32_t i = 0; i < f->n_inputs; i++) find(v, f->inputs[i].name)->input = true;
  for (uint32_t i = 0; i < f->block.n_outputs; i++) {
    struct name *n = find(v, f->block.outputs[i]);
    if (n->output) return fail_name(v, "is an output twice", f->block.outputs[i]);
    n->output = true;
  }
  ane_status st = verify_features(v, d->inputs, d->n_inputs, "input");
  if (!st) st = verify_features(v, d->states, d->n_states, "state");
  if (!st) st = verify_features(v, d->outputs, d->n_outputs, "output");
  for (uint32_t i = 0; !st && i < f->n_inputs; i++)
    if (!find(v, f->inputs[i].name)->input_described)
      st = fail_name(
          v, f->inputs[i].type.kind == ANE_MIL_STATE ? "is a state that is not described" : "is an input that is not described",
          f->inputs[i].name);
  for (uint32_t i = 0; !st && i < f->block.n_outputs; i++)
    if (!find(v, f->block.outputs[i])->output_described)
      st = fail_name(v, "is an output that is not described", f->block.outputs[i]);
  return st;
}

/* ---- Functions and the model ---------------------------------------------------------------------------------------*/

/* Bounds linear searches through the inputs, states and outputs of a function. */
enum { MAX_PORTS = 4096 };

static ane_status verify_function(struct verify *v, const struct ane_mil_model *m, const struct ane_mil_function *f) {
  if (f->n_inputs > MAX_PORTS || f->block.n_outputs > MAX_PORTS)
    return ane_fail(v->err, ANE_UNSUPPORTED, "has more than %d inputs and states, or outputs", MAX_PORTS);
  if (ane_mil_opset_version(f->opset) > m->version)
    return ane_fail(v->err, ANE_FORMAT, "opset %s in a model of specification version %" PRId32, f->opset, m->version);
  if (!f->block.n_outputs) return ane_fail(v->err, ANE_FORMAT, "has no outputs");
  if (f->block.n_inputs) return ane_fail(v->err, ANE_FORMAT, "its block has inputs of its own");
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < f->n_inputs; i++) st = define(v, &f->inputs[i]);
  if (!st) st = verify_block(v, &f->block);
  if (!st) st = verify_interface(v, f, ane_mil_interface(m, f->name));
  ane_strmap_free(&v->names);
  ane_buffer_free(&v->entries);
  ane_buffer_free(&v->scope);
  return st;
}

/* Bounds linear searches through the list of functions. */
enum { MAX_FUNCTIONS = 4096 };

ane_status ane_mil_verify(const struct ane_mil_model *m, struct ane_error *err) {
  struct verify v = {.err = err};
  char q[ANE_QUOTE_TEXT];
  if (m->program.n_functions > MAX_FUNCTIONS || m->n_interfaces > MAX_FUNCTIONS)
    return ane_fail(err, ANE_UNSUPPORTED, "has more than %d functions", MAX_FUNCTIONS);
  for (uint32_t i = 0; i < m->program.n_functions; i++) {
    const char *name = m->program.functions[i].name;
    ane_status st = verify_function(&v, m, &m->program.functions[i]);
    if (st) return ane_fail_in(err, st, "function %s", ane_quote(q, name, strlen(name)));
  }
  for (uint32_t i = 0; i < m->n_interfaces; i++)
    if (!ane_mil_function(m, m->interfaces[i].name))
      return fail_name(&v, "is described, but the program does not have this function", m->interfaces[i].name);
  if (m->n_interfaces != m->program.n_functions) return ane_fail(err, ANE_FORMAT, "a function is described twice");
  return ane_mil_function(m, m->default_function)
             ? ANE_OK
             : fail_name(&v, "is the default function, but the program does not have this function", m->default_function);
}
