/* Reads graphs: names become values, each of which is defined once and before its use. The bodies of local functions replace
 * calls of them. Constant nodes become constants. */
#include "formats/onnx/onnx_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ABSENT: an optional input that is not given. MISSING: a name without a value. */
enum { ABSENT = -1, MISSING = -2 };
static const uint32_t absent_mark = UINT32_MAX - 1;

struct build {
  struct onnx_reader *r;
  struct ane_buffer nodes; /* of struct ane_onnx_node */
};

/* ---- Values --------------------------------------------------------------------------------------------------------*/

static ane_status add_value(struct onnx_reader *r, const struct onnx_scope *scope, const char *name,
                            const struct ane_onnx_tensor *constant, int32_t *out) {
  size_t at = r->values.size / sizeof(struct ane_onnx_value), prefix = strlen(scope->prefix), len = strlen(name);
  *out = -1;
  if (at >= INT32_MAX / 2) return onnx_fail(r, ANE_FORMAT, "too many values");
  char *full = onnx_array(r, prefix + len + 1, 1);
  if (!full) return onnx_no_memory(r);
  memcpy(full, scope->prefix, prefix);
  memcpy(full + prefix, name, len);
  struct ane_onnx_value v = {full, constant};
  if (!ane_buffer_append(&r->values, &v, sizeof v)) return onnx_no_memory(r);
  *out = (int32_t)at;
  return ANE_OK;
}

static ane_status bind(struct onnx_reader *r, struct onnx_scope *scope, const char *name, int32_t value, const char *what) {
  uint32_t old;
  char q[ANE_QUOTE_TEXT];
  if (!ane_strmap_put(&scope->names, name, strlen(name), value == ABSENT ? absent_mark : (uint32_t)value, &old))
    return onnx_no_memory(r);
  if (old == UINT32_MAX) return ANE_OK;
  return onnx_fail(r, ANE_FORMAT, "%s: the value %s is made a second time", what, ane_quote(q, name, strlen(name)));
}

static int32_t lookup(const struct onnx_scope *scope, const char *name) {
  for (; scope; scope = scope->outer) {
    uint32_t v = ane_strmap_get(&scope->names, name, strlen(name));
    if (v != UINT32_MAX) return v == absent_mark ? ABSENT : (int32_t)v;
  }
  return MISSING;
}

/* ---- Nodes ---------------------------------------------------------------------------------------------------------*/

static ane_status walk_nodes(struct build *b, struct onnx_scope *scope, AneOnnx__Node **nodes, size_t n);

/* "name (Op)" for messages. */
enum { LABEL = 2 * ANE_QUOTE_TEXT + 8 };
static const char *label(const struct onnx_scope *scope, const AneOnnx__Node *n, char out[LABEL]) {
  char name[ANE_QUOTE_TEXT], op[ANE_QUOTE_TEXT], full[256];
  const char *base = n->name && *n->name ? n->name : n->n_output ? onnx_text(n->output[0]) : "";
  snprintf(full, sizeof full, "%.100s%.150s", scope->prefix, base);
  ane_quote(name, full, strlen(full));
  ane_quote(op, onnx_text(n->op_type), strlen(onnx_text(n->op_type)));
  snprintf(out, LABEL, "%s (%s)", name, op);
  return out;
}

static bool made_later(AneOnnx__Node **nodes, size_t from, size_t n, const char *name) {
  for (size_t i = from; i < n; i++)
    for (size_t o = 0; o < nodes[i]->n_output; o++)
      if (strcmp(nodes[i]->output[o], name) == 0) return true;
  return false;
}

/* The inputs of node `at`, as values. */
static ane_status read_inputs(struct build *b, const struct onnx_scope *scope, AneOnnx__Node **nodes, size_t at, size_t n,
                              int32_t *in) {
  char q[ANE_QUOTE_TEXT], l[LABEL];
  const AneOnnx__Node *node = nodes[at];
  for (size_t i = 0; i < node->n_input; i++) {
    const char *name = node->input[i];
    in[i] = *name ? lookup(scope, name) : ABSENT;
    if (in[i] != MISSING) continue;
    ane_quote(q, name, strlen(name));
    if (made_later(nodes, at, n, name))
      return onnx_fail(b->r, ANE_FORMAT,
                       "node %s: input %s is made only by a later node: the graph has a cycle or is not in order",
                       label(scope, node, l), q);
    return onnx_fail(b->r, ANE_FORMAT, "node %s: no node makes its input %s", label(scope, node, l), q);
  }
  return ANE_OK;
}

static ane_status read_attributes(struct build *b, const struct onnx_scope *scope, const AneOnnx__Node *n,
                                  AneOnnx__Attribute **list, size_t count, struct ane_onnx_attr *out, int32_t *n_out) {
  char l[LABEL];
  label(scope, n, l);
  for (size_t i = 0; i < count; i++) {
    bool present;
    ane_status st = onnx_attribute(b->r, scope, l, list[i], &out[*n_out], &present);
    if (st) return st;
    bool twice = false;
    for (int32_t k = 0; k < *n_out; k++) twice = twice || strcmp(out[k].name, out[*n_out].name) == 0;
    if (twice) return onnx_fail(b->r, ANE_FORMAT, "node %s: an attribute is given twice", l);
    if (present) ++*n_out;
  }
  return ANE_OK;
}

static ane_status find_opset(struct build *b, const struct onnx_scope *scope, const AneOnnx__Node *n, int64_t *out) {
  char q[ANE_QUOTE_TEXT], l[LABEL];
  const char *domain = onnx_domain(n->domain);
  const struct onnx_scope *s = scope;
  while (!s->opsets && s->outer) s = s->outer;
  for (size_t i = 0; i < s->n_opsets; i++) /* analyser: there are n_opsets of them. */
    if (strcmp(onnx_domain(s->opsets[i]->domain), domain) == 0) return *out = s->opsets[i]->version, ANE_OK;
  return onnx_fail(b->r, ANE_FORMAT, "node %s: no opset of the domain \"%s\" is imported", label(scope, n, l),
                   ane_quote(q, domain, strlen(domain)));
}

/* ---- Constants -----------------------------------------------------------------------------------------------------*/

static ane_status constant_of(struct build *b, const char *l, const struct ane_onnx_attr *a, const struct ane_onnx_tensor **out) {
  if (strcmp(a->name, "value") == 0 && a->type == ANE_ONNX_TENSOR) return *out = a->t, ANE_OK;
  bool list = a->type == ANE_ONNX_INTS || a->type == ANE_ONNX_FLOATS, whole = a->type == ANE_ONNX_INTS || a->type == ANE_ONNX_INT;
  const char *want = list ? (whole ? "value_ints" : "value_floats") : (whole ? "value_int" : "value_float");
  if (a->type != ANE_ONNX_FLOAT && a->type != ANE_ONNX_INT && !list) want = "";
  if (strcmp(a->name, want) != 0)
    return onnx_fail(b->r, ANE_UNSUPPORTED, "node %s: a constant of texts or of a sparse tensor", l);
  struct ane_onnx_tensor *t = ane_arena_alloc(&b->r->s->arena, sizeof *t);
  if (!t) return onnx_no_memory(b->r);
  *t = (struct ane_onnx_tensor){.name = "", .dtype = whole ? ANE_I64 : ANE_F32, .count = 1, .file = UINT32_MAX};
  if (list) t->rank = 1, t->dim[0] = (int64_t)a->n, t->count = a->n;
  t->bytes = t->count * (whole ? 8 : 4);
  t->data = list ? (const uint8_t *)a->ints : (const uint8_t *)&a->i; /* all members of the union begin at the same address */
  *out = t;
  return ANE_OK;
}

static ane_status add_constant(struct build *b, struct onnx_scope *scope, const AneOnnx__Node *n,
                               const struct ane_onnx_attr *attrs, int32_t n_attrs) {
  char l[LABEL];
  label(scope, n, l);
  if (n_attrs != 1 || n->n_output != 1 || n->n_input)
    return onnx_fail(b->r, ANE_FORMAT, "node %s: must have one attribute and one output", l);
  const struct ane_onnx_tensor *t = NULL;
  int32_t value;
  ane_status st = constant_of(b, l, &attrs[0], &t);
  if (!st) st = add_value(b->r, scope, n->output[0], t, &value);
  return st ? st : bind(b->r, scope, n->output[0], value, l);
}

/* ---- Calls ---------------------------------------------------------------------------------------------------------*/

/* The caller's attributes and, for those it left out, the function's defaults. */
static ane_status call_attributes(struct build *b, struct onnx_scope *scope, const AneOnnx__Node *n, const AneOnnx__Function *f,
                                  const struct ane_onnx_attr *given, int32_t n_given, struct onnx_scope *inner) {
  struct ane_onnx_attr *all = onnx_array(b->r, (size_t)n_given + f->n_attribute_proto, sizeof *all);
  char l[LABEL];
  /* A graph among the defaults sees no names around it. */
  struct onnx_scope bare = {.prefix = inner->prefix, .depth = inner->depth, .opsets = inner->opsets, .n_opsets = inner->n_opsets};
  if (!all) return onnx_no_memory(b->r);
  if (n_given) memcpy(all, given, (size_t)n_given * sizeof *all);
  int32_t count = n_given;
  for (size_t i = 0; i < f->n_attribute_proto; i++) {
    const AneOnnx__Attribute *a = f->attribute_proto[i];
    bool present = false;
    for (int32_t k = 0; k < n_given; k++) present = present || strcmp(given[k].name, onnx_text(a->name)) == 0;
    if (present) continue;
    ane_status st = onnx_attribute(b->r, &bare, label(scope, n, l), a, &all[count], &present);
    if (st) return st;
    count += present;
  }
  inner->given = all;
  inner->n_given = count;
  return ANE_OK;
}

static ane_status bind_results(struct build *b, struct onnx_scope *scope, const struct onnx_scope *inner, const AneOnnx__Node *n,
                               const AneOnnx__Function *f) {
  char l[LABEL], q[ANE_QUOTE_TEXT];
  label(scope, n, l);
  for (size_t i = 0; i < n->n_output; i++) {
    if (!*n->output[i]) continue;
    int32_t v = lookup(inner, f->output[i]);
    if (v < 0)
      return onnx_fail(b->r, ANE_FORMAT, "node %s: no node makes output %s of the function", l,
                       ane_quote(q, f->output[i], strlen(f->output[i])));
    ane_status st = bind(b->r, scope, n->output[i], v, l);
    if (st) return st;
  }
  return ANE_OK;
}

static ane_status inline_call(struct build *b, struct onnx_scope *scope, const AneOnnx__Node *n, const AneOnnx__Function *f,
                              const int32_t *in, const struct ane_onnx_attr *attrs, int32_t n_attrs) {
  char l[LABEL];
  label(scope, n, l);
  if (scope->depth >= ONNX_MAX_DEPTH)
    return onnx_fail(b->r, ANE_FORMAT, "node %s: calls and subgraphs are nested deeper than %d", l, ONNX_MAX_DEPTH);
  if (n->n_input > f->n_input || n->n_output > f->n_output)
    return onnx_fail(b->r, ANE_FORMAT, "node %s: has %zu inputs and %zu outputs, the function %zu and %zu", l, n->n_input,
                     n->n_output, f->n_input, f->n_output);
  const char *own = n->name && *n->name ? n->name : n->n_output ? n->output[0] : "";
  size_t outer = strlen(scope->prefix), len = strlen(own);
  if (outer + len > 200) len = outer < 200 ? 200 - outer : 0; /* names of deep calls do not grow without end */
  char *prefix = ane_arena_alloc(&b->r->s->arena, outer + len + 2);
  if (!prefix) return onnx_no_memory(b->r);
  memcpy(prefix, scope->prefix, outer);
  memcpy(prefix + outer, own, len);
  prefix[outer + len] = '/';
  struct onnx_scope inner = {.prefix = outer < 200 ? prefix : scope->prefix,
                             .depth = scope->depth + 1,
                             .opsets = f->opset_import,
                             .n_opsets = f->n_opset_import};
  if (!f->n_opset_import) inner.opsets = b->r->model->opset_import, inner.n_opsets = b->r->model->n_opset_import;
  b->r->calls++;
  ane_status st = call_attributes(b, scope, n, f, attrs, n_attrs, &inner);
  for (size_t i = 0; !st && i < f->n_input; i++) st = bind(b->r, &inner, f->input[i], i < n->n_input ? in[i] : ABSENT, l);
  if (!st) st = walk_nodes(b, &inner, f->node, f->n_node);
  b->r->calls--;
  if (!st) st = bind_results(b, scope, &inner, n, f);
  ane_strmap_free(&inner.names);
  return st;
}

/* ---- One node ------------------------------------------------------------------------------------------------------*/

static ane_status add_node(struct build *b, struct onnx_scope *scope, const AneOnnx__Node *n, struct ane_onnx_node *node) {
  char l[LABEL];
  label(scope, n, l);
  int32_t *out = onnx_array(b->r, n->n_output, sizeof *out);
  const char *base = n->name && *n->name ? n->name : n->n_output ? n->output[0] : onnx_text(n->op_type);
  size_t prefix = strlen(scope->prefix), len = strlen(base);
  char *name = onnx_array(b->r, prefix + len + 1, 1);
  node->op = onnx_copy(b->r, n->op_type);
  node->domain = onnx_copy(b->r, onnx_domain(n->domain));
  if (!out || !name || !node->op || !node->domain) return onnx_no_memory(b->r);
  memcpy(name, scope->prefix, prefix);
  memcpy(name + prefix, base, len);
  node->name = name;
  node->out = out;
  node->n_out = (int32_t)n->n_output;
  ane_status st = find_opset(b, scope, n, &node->opset);
  for (size_t i = 0; !st && i < n->n_output; i++) {
    out[i] = ABSENT;
    if (!*n->output[i]) continue;
    st = add_value(b->r, scope, n->output[i], NULL, &out[i]);
    if (!st) st = bind(b->r, scope, n->output[i], out[i], l);
  }
  if (!st && !ane_buffer_append(&b->nodes, node, sizeof *node)) return onnx_no_memory(b->r);
  return st;
}

static ane_status read_node(struct build *b, struct onnx_scope *scope, AneOnnx__Node **nodes, size_t at, size_t n) {
  const AneOnnx__Node *node = nodes[at];
  char l[LABEL];
  if (b->r->inlined > ONNX_MAX_INLINED)
    return onnx_fail(b->r, ANE_FORMAT, "node %s: local functions take more than %d MB when they are inlined",
                     label(scope, node, l), (int)(ONNX_MAX_INLINED >> 20));
  if (node->n_input > UINT16_MAX || node->n_output > UINT16_MAX || node->n_attribute > ONNX_MAX_ATTRIBUTES)
    return onnx_fail(b->r, ANE_FORMAT, "node %s: more than %d inputs or outputs, or %d attributes", label(scope, node, l),
                     UINT16_MAX, ONNX_MAX_ATTRIBUTES);
  int32_t *in = onnx_array(b->r, node->n_input, sizeof *in);
  struct ane_onnx_attr *attrs = onnx_array(b->r, node->n_attribute, sizeof *attrs);
  struct ane_onnx_node made = {.in = in, .attrs = attrs, .n_in = (int32_t)node->n_input};
  if (!in || !attrs) return onnx_no_memory(b->r);
  ane_status st = read_inputs(b, scope, nodes, at, n, in);
  if (!st) st = read_attributes(b, scope, node, node->attribute, node->n_attribute, attrs, &made.n_attrs);
  if (st) return st;
  const AneOnnx__Function *f = onnx_function(b->r, node);
  if (f) return inline_call(b, scope, node, f, in, attrs, made.n_attrs);
  if (strcmp(onnx_text(node->op_type), "Constant") == 0 && !*onnx_domain(node->domain))
    return add_constant(b, scope, node, attrs, made.n_attrs);
  return add_node(b, scope, node, &made);
}

static ane_status walk_nodes(struct build *b, struct onnx_scope *scope, AneOnnx__Node **nodes, size_t n) {
  ane_status st = ANE_OK;
  for (size_t i = 0; !st && i < n; i++) st = read_node(b, scope, nodes, i, n);
  return st;
}

/* ---- Graphs --------------------------------------------------------------------------------------------------------*/

static ane_status read_initialisers(struct onnx_reader *r, struct onnx_scope *scope, const AneOnnx__Graph *g) {
  if (g->n_sparse_initializer) return onnx_fail(r, ANE_UNSUPPORTED, "sparse initialisers are not supported");
  for (size_t i = 0; i < g->n_initializer; i++) {
    char what[ANE_QUOTE_TEXT + 16], q[ANE_QUOTE_TEXT];
    const char *name = onnx_text(g->initializer[i]->name);
    int32_t value;
    snprintf(what, sizeof what, "tensor %s", ane_quote(q, name, strlen(name)));
    if (!*name) return onnx_fail(r, ANE_FORMAT, "initialiser %zu has no name", i + 1);
    struct ane_onnx_tensor *t = ane_arena_alloc(&r->s->arena, sizeof *t);
    if (!t) return onnx_no_memory(r);
    ane_status st = onnx_tensor(r, g->initializer[i], what, t);
    if (!st) st = add_value(r, scope, name, t, &value);
    if (!st) st = bind(r, scope, name, value, what);
    if (st) return st;
  }
  return ANE_OK;
}

static ane_status read_io(struct onnx_reader *r, const AneOnnx__ValueInfo *v, const char *what, struct ane_onnx_io *out) {
  const AneOnnx__Type *t = v->type;
  char q[ANE_QUOTE_TEXT];
  ane_quote(q, onnx_text(v->name), strlen(onnx_text(v->name)));
  *out = (struct ane_onnx_io){.name = onnx_copy(r, v->name), .dtype = ANE_DTYPE_COUNT, .rank = -1};
  if (!out->name) return onnx_no_memory(r);
  if (t && (t->sequence_type || t->map_type || t->sparse_tensor_type || t->optional_type))
    return onnx_fail(r, ANE_UNSUPPORTED, "%s %s is not a tensor", what, q);
  if (!t || !t->tensor_type) return ANE_OK;
  for (int d = 0; t->tensor_type->elem_type > 0 && d < ANE_DTYPE_COUNT; d++)
    if (ane_dtype_info((ane_dtype)d)->onnx == t->tensor_type->elem_type) out->dtype = (ane_dtype)d;
  const AneOnnx__Shape *s = t->tensor_type->shape;
  if (!s) return ANE_OK;
  if (s->n_dim > ANE_ONNX_RANK)
    return onnx_fail(r, ANE_UNSUPPORTED, "%s %s has %zu dimensions, at most %d are supported", what, q, s->n_dim, ANE_ONNX_RANK);
  out->rank = (int32_t)s->n_dim;
  for (size_t i = 0; i < s->n_dim; i++) {
    const AneOnnx__Dimension *d = s->dim[i];
    out->dim[i] = d->has_dim_value && d->dim_value >= 0 ? d->dim_value : -1; /* a negative number too: not known */
    if (d->dim_param && !(out->symbol[i] = onnx_copy(r, d->dim_param))) return onnx_no_memory(r);
  }
  return ANE_OK;
}

/* Reads the declared inputs; the names in scope are those of initialisers. */
static ane_status read_inputs_of(struct onnx_reader *r, struct onnx_scope *scope, const AneOnnx__Graph *g,
                                 struct ane_onnx_graph *out) {
  size_t initialised = r->values.size / sizeof(struct ane_onnx_value);
  if (!(out->inputs = onnx_array(r, g->n_input, sizeof *out->inputs))) return onnx_no_memory(r);
  for (size_t i = 0; i < g->n_input; i++) {
    const char *name = onnx_text(g->input[i]->name);
    uint32_t known = ane_strmap_get(&scope->names, name, strlen(name));
    if (out->n_inputs >= ONNX_MAX_PORTS || g->n_output > ONNX_MAX_PORTS)
      return onnx_fail(r, ANE_UNSUPPORTED, "a graph has more than %d inputs or outputs", ONNX_MAX_PORTS);
    if (known != UINT32_MAX && known < initialised) continue; /* an input with a default value: the initialiser is used */
    struct ane_onnx_io *io = &out->inputs[out->n_inputs];
    ane_status st = read_io(r, g->input[i], "input", io);
    if (!st) st = add_value(r, scope, name, NULL, &io->value);
    if (!st) st = bind(r, scope, name, io->value, "input");
    if (st) return st;
    out->n_inputs++;
  }
  return ANE_OK;
}

static ane_status read_outputs_of(struct onnx_reader *r, const struct onnx_scope *scope, const AneOnnx__Graph *g,
                                  struct ane_onnx_graph *out) {
  char q[ANE_QUOTE_TEXT];
  if (!(out->outputs = onnx_array(r, g->n_output, sizeof *out->outputs))) return onnx_no_memory(r);
  for (size_t i = 0; i < g->n_output; i++) {
    const char *name = onnx_text(g->output[i]->name);
    struct ane_onnx_io *io = &out->outputs[i];
    ane_status st = read_io(r, g->output[i], "output", io);
    if (st) return st;
    io->value = lookup(scope, name);
    if (io->value < 0) return onnx_fail(r, ANE_FORMAT, "no node makes output %s", ane_quote(q, name, strlen(name)));
    out->n_outputs++;
  }
  return ANE_OK;
}

/* Counts the nodes of a graph and of its subgraphs, and how deep these are nested. Attributes of functions can refer to one
 * subgraph many times, and it can hold such references too, so a small file could have any number of nodes. */
static ane_status count_all(struct onnx_reader *r, struct ane_onnx_graph *g) {
  int64_t all = g->n_nodes;
  g->depth = 1;
  for (int32_t i = 0; i < g->n_nodes; i++)
    for (int32_t k = 0; k < g->nodes[i].n_attrs; k++) {
      const struct ane_onnx_attr *a = &g->nodes[i].attrs[k];
      if (a->type != ANE_ONNX_GRAPH) continue;
      all += a->g->n_all;
      g->depth = ANE_MAX(g->depth, a->g->depth + 1);
      if (all > ONNX_MAX_NODES || g->depth > ONNX_MAX_DEPTH)
        return onnx_fail(r, ANE_FORMAT, "node %.120s: more than %d nodes in subgraphs, or these are nested deeper than %d",
                         g->nodes[i].name, ONNX_MAX_NODES, ONNX_MAX_DEPTH);
    }
  g->n_all = (int32_t)all;
  return ANE_OK;
}

ane_status onnx_graph(struct onnx_reader *r, const struct onnx_scope *outer, const AneOnnx__Graph *g,
                      struct ane_onnx_graph *out) {
  struct onnx_scope scope = {.outer = outer, .prefix = outer ? outer->prefix : "", .depth = outer ? outer->depth + 1 : 0};
  struct build b = {.r = r};
  if (!outer) scope.opsets = r->model->opset_import, scope.n_opsets = r->model->n_opset_import;
  ane_status st = read_initialisers(r, &scope, g);
  if (!st) st = read_inputs_of(r, &scope, g, out);
  if (!st) st = walk_nodes(&b, &scope, g->node, g->n_node);
  if (!st) st = read_outputs_of(r, &scope, g, out);
  if (!st) {
    out->n_nodes = (int32_t)(b.nodes.size / sizeof *out->nodes);
    out->nodes = onnx_array(r, (size_t)out->n_nodes, sizeof *out->nodes);
    if (!out->nodes)
      st = onnx_no_memory(r);
    else if (b.nodes.size)
      memcpy(out->nodes, b.nodes.data, b.nodes.size);
  }
  if (!st) st = count_all(r, out);
  ane_strmap_free(&scope.names);
  ane_buffer_free(&b.nodes);
  return st;
}
