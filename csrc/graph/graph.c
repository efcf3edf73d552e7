/* Graphs: life cycle, building, uses, rewriting and order. */
#include "graph/graph_internal.h"

#include "base/alloc.h"

#include <string.h>

ane_status ane_graph_create(struct ane_graph **out, const char *name, struct ane_error *err) {
  *out = NULL;
  struct ane_graph *g = ane_calloc(1, sizeof *g);
  if (!g || !(g->name = ane_arena_strndup(&g->arena, name, strlen(name)))) {
    ane_graph_destroy(g);
    return ane_fail(err, ANE_NOMEM, "no memory for a graph");
  }
  *out = g;
  return ANE_OK;
}

void ane_graph_destroy(struct ane_graph *g) {
  if (!g) return;
  ane_strmap_free(&g->names);
  ane_free(g->values);
  ane_free(g->nodes);
  ane_arena_free(&g->arena);
  ane_free(g);
}

/* Makes room for one more element of a growing array. false: out of memory. */
static bool grow(void **array, int32_t n, int32_t *room, size_t size) {
  if (n < *room) return true;
  int32_t more = *room ? *room * 2 : 64;
  void *p = more > *room ? ane_realloc(*array, (size_t)more * size) : NULL;
  if (!p) return false;
  *array = p;
  *room = more;
  return true;
}

static ane_status no_memory(const char *name, struct ane_error *err) {
  return ane_fail(err, ANE_NOMEM, "not enough memory for %s in the graph", name);
}

static ane_status add_value(struct ane_graph *g, const char *name, ane_value_kind kind, ane_dtype t, const struct ane_shape *s,
                            int32_t *out, struct ane_error *err) {
  size_t len = strlen(name);
  if (len == 0) return ane_fail(err, ANE_INVALID, "a value of the graph has no name");
  if (ane_strmap_get(&g->names, name, len) != UINT32_MAX)
    return ane_fail(err, ANE_INVALID, "two values of the graph are called %s", name);
  char *copy = ane_arena_strndup(&g->arena, name, len);
  if (!copy || !grow((void **)&g->values, g->n_values, &g->room_values, sizeof *g->values)) return no_memory(name, err);
  if (!ane_strmap_put(&g->names, copy, len, (uint32_t)g->n_values, NULL)) return no_memory(name, err);
  g->values[g->n_values] = (struct ane_value){.name = copy, .kind = kind, .dtype = t, .shape = *s, .node = ANE_NONE};
  *out = g->n_values++;
  return ANE_OK;
}

ane_status ane_graph_input(struct ane_graph *g, const char *name, ane_dtype t, const struct ane_shape *s, int32_t *out,
                           struct ane_error *err) {
  return add_value(g, name, ANE_VALUE_INPUT, t, s, out, err);
}

ane_status ane_graph_state(struct ane_graph *g, const char *name, const struct ane_shape *s, int32_t *out,
                           struct ane_error *err) {
  return add_value(g, name, ANE_VALUE_STATE, ANE_F16, s, out, err);
}

ane_status ane_graph_const(struct ane_graph *g, const char *name, const struct ane_tensor *data, int32_t *out,
                           struct ane_error *err) {
  uint32_t old = ane_strmap_get(&g->names, name, strlen(name));
  if (old != UINT32_MAX && g->values[old].kind == ANE_VALUE_CONST && g->values[old].data.data == data->data &&
      ane_shape_equal(&g->values[old].shape, &data->shape)) {
    *out = (int32_t)old;
    return ANE_OK;
  }
  ane_status st = add_value(g, name, ANE_VALUE_CONST, data->dtype, &data->shape, out, err);
  if (st == ANE_OK) g->values[*out].data = *data;
  return st;
}

static const char *const type_words[] = {"an integer", "a number", "a string", "a list of numbers"};

/* Lists an op's attributes for an error message. */
static void list_attrs(const struct ane_op_info *op, char *text, size_t size) {
  size_t at = 0;
  text[0] = '\0';
  for (int i = 0; i < op->n_attrs; i++) {
    size_t len = strlen(op->attrs[i].name);
    if (at + len + 3 > size) break;
    if (i) text[at++] = ',', text[at++] = ' ';
    memcpy(text + at, op->attrs[i].name, len + 1);
    at += len;
  }
}

static ane_status copy_attr(struct ane_graph *g, const char *where, const char *name, struct ane_attr v, ane_attr_type want,
                            struct ane_attr *dst, struct ane_error *err) {
  if (v.type == ANE_ATTR_INT && want == ANE_ATTR_FLOAT) v = (struct ane_attr){.type = ANE_ATTR_FLOAT, .f = (double)v.i};
  if (v.type != want)
    return ane_fail(err, ANE_INVALID, "%s: attribute %s must be %s, but is %s", where, name, type_words[want],
                    type_words[v.type]);
  *dst = v;
  if (want == ANE_ATTR_STRING && !(dst->s = ane_arena_strndup(&g->arena, v.s, strlen(v.s)))) return no_memory(where, err);
  if (want == ANE_ATTR_FLOATS) {
    float *copy = ane_arena_array(&g->arena, (size_t)v.fv.n, sizeof *copy);
    if (!copy) return no_memory(where, err);
    if (v.fv.n) memcpy(copy, v.fv.v, (size_t)v.fv.n * sizeof *copy);
    dst->fv.v = copy;
  }
  return ANE_OK;
}

static ane_status set_attrs(struct ane_graph *g, struct ane_node *n, const struct ane_attr_arg *attrs, int n_attrs,
                            struct ane_error *err) {
  const struct ane_op_info *op = ane_op_info(n->op);
  n->attrs = ane_arena_array(&g->arena, (size_t)op->n_attrs + 1, sizeof *n->attrs);
  if (!n->attrs) return no_memory(n->name, err);
  for (int i = 0; i < op->n_attrs; i++) n->attrs[i] = op->attrs[i].def;
  for (int a = 0; a < n_attrs; a++) {
    int i = 0;
    while (i < op->n_attrs && strcmp(op->attrs[i].name, attrs[a].name) != 0) i++;
    if (i == op->n_attrs) {
      char known[200];
      list_attrs(op, known, sizeof known);
      return ane_fail(err, ANE_INVALID, "%s: %s has no attribute %s; it has: %s", n->name, op->name, attrs[a].name,
                      *known ? known : "none");
    }
    ane_status st = copy_attr(g, n->name, attrs[a].name, attrs[a].value, op->attrs[i].def.type, &n->attrs[i], err);
    if (st) return st;
  }
  return ANE_OK;
}

static ane_status add_outputs(struct ane_graph *g, struct ane_node *n, int32_t index, struct ane_error *err) {
  struct infer_out outs[MAX_OUTPUTS];
  ane_status st = graph_infer(g, n, outs, err);
  if (st) return st;
  for (int i = 0; i < n->n_outputs; i++) {
    char name[256];
    size_t len = ANE_MIN(strlen(n->name), sizeof name - 8);
    memcpy(name, n->name, len + 1);
    name[len] = '\0';
    if (i) name[len] = '.', name[len + 1] = (char)('0' + i), name[len + 2] = '\0';
    if ((st = add_value(g, name, ANE_VALUE_RESULT, outs[i].dtype, &outs[i].shape, &n->outputs[i], err))) {
      while (--i >= 0) g->values[n->outputs[i]].node = ANE_NONE; /* made by no node: no node can use them */
      return st;
    }
    g->values[n->outputs[i]].node = index;
    g->values[n->outputs[i]].output = i;
  }
  return ANE_OK;
}

ane_status ane_graph_add(struct ane_graph *g, ane_op op, const char *name, const int32_t *inputs, int n_inputs,
                         const struct ane_attr_arg *attrs, int n_attrs, int32_t *out, struct ane_error *err) {
  struct ane_node n = {.op = op, .n_inputs = n_inputs};
  n.name = ane_arena_strndup(&g->arena, name, strlen(name));
  n.inputs = ane_arena_array(&g->arena, (size_t)n_inputs, sizeof *n.inputs);
  n.outputs = ane_arena_array(&g->arena, MAX_OUTPUTS, sizeof *n.outputs);
  if (!n.name || !n.inputs || !n.outputs || !grow((void **)&g->nodes, g->n_nodes, &g->room_nodes, sizeof *g->nodes))
    return no_memory(name, err);
  memcpy(n.inputs, inputs, (size_t)n_inputs * sizeof *inputs);
  ane_status st = set_attrs(g, &n, attrs, n_attrs, err);
  if (st) return st;
  n.n_outputs = graph_outputs(&n);
  if (n.n_outputs < 1 || n.n_outputs > MAX_OUTPUTS)
    return ane_fail(err, ANE_INVALID, "%s: %d outputs, not 1 .. %d", name, n.n_outputs, MAX_OUTPUTS);
  if ((st = add_outputs(g, &n, g->n_nodes, err))) return st;
  if (out) *out = n.outputs[0];
  g->nodes[g->n_nodes++] = n;
  return ANE_OK;
}

/* Removes the value from the outputs of its node. A node without outputs is dead. */
static void disown(struct ane_graph *g, int32_t value) {
  struct ane_node *n = &g->nodes[g->values[value].node];
  int32_t left = 0;
  for (int32_t i = 0; i < n->n_outputs; i++)
    if (n->outputs[i] != value) n->outputs[left++] = n->outputs[i];
  n->n_outputs = left;
  n->dead = left == 0;
}

ane_status ane_graph_rewrite(struct ane_graph *g, int32_t index, ane_op op, const int32_t *inputs, int n_inputs,
                             const struct ane_attr_arg *attrs, int n_attrs, const int32_t *outputs, int n_outputs,
                             struct ane_error *err) {
  struct ane_node n = {.op = op, .name = g->nodes[index].name, .n_inputs = n_inputs, .n_outputs = n_outputs};
  n.inputs = ane_arena_array(&g->arena, (size_t)n_inputs, sizeof *n.inputs);
  n.outputs = ane_arena_array(&g->arena, MAX_OUTPUTS, sizeof *n.outputs);
  if (!n.inputs || !n.outputs) return no_memory(n.name, err);
  memcpy(n.inputs, inputs, (size_t)n_inputs * sizeof *inputs);
  ane_status st = set_attrs(g, &n, attrs, n_attrs, err);
  if (st) return st;
  struct infer_out outs[MAX_OUTPUTS];
  if (n_outputs != graph_outputs(&n)) return ane_fail(err, ANE_INVALID, "%s: rewritten with %d outputs", n.name, n_outputs);
  if ((st = graph_infer(g, &n, outs, err))) return st;
  for (int i = 0; i < n_outputs; i++) disown(g, outputs[i]);
  for (int i = 0; i < n_outputs; i++) {
    n.outputs[i] = outputs[i];
    g->values[outputs[i]].node = index;
    g->values[outputs[i]].output = i;
  }
  g->nodes[index] = n;
  return ANE_OK;
}

ane_status ane_graph_set_results(struct ane_graph *g, const int32_t *values, int n, struct ane_error *err) {
  int32_t *r = ane_arena_array(&g->arena, (size_t)n, sizeof *r);
  if (!r) return no_memory("results", err);
  for (int i = 0; i < n; i++) {
    if (values[i] < 0 || values[i] >= g->n_values)
      return ane_fail(err, ANE_INVALID, "result %d of the graph is not a value", i + 1);
    r[i] = values[i];
  }
  g->results = r;
  g->n_results = n;
  return ANE_OK;
}

int32_t ane_graph_uses(const struct ane_graph *g, int32_t value) {
  int32_t uses = 0;
  for (int32_t i = 0; i < g->n_nodes; i++)
    for (int32_t j = 0; !g->nodes[i].dead && j < g->nodes[i].n_inputs; j++) uses += g->nodes[i].inputs[j] == value;
  for (int32_t i = 0; i < g->n_results; i++) uses += g->results[i] == value;
  return uses;
}

void ane_graph_replace(struct ane_graph *g, int32_t from, int32_t to) {
  for (int32_t i = 0; i < g->n_nodes; i++)
    for (int32_t j = 0; j < g->nodes[i].n_inputs; j++)
      if (g->nodes[i].inputs[j] == from) g->nodes[i].inputs[j] = to;
  for (int32_t i = 0; i < g->n_results; i++)
    if (g->results[i] == from) g->results[i] = to;
}

/* Returns whether every input is not a result, or is made by a node that is already sorted. */
static bool ready(const struct ane_graph *g, const struct ane_node *n, const int32_t *new_index) {
  for (int32_t j = 0; j < n->n_inputs; j++) {
    int32_t v = n->inputs[j];
    if (v != ANE_NONE && g->values[v].kind == ANE_VALUE_RESULT && new_index[g->values[v].node] == ANE_NONE) return false;
  }
  return true;
}

ane_status ane_graph_compact(struct ane_graph *g, struct ane_error *err) {
  int32_t n = g->n_nodes, placed = 0, living = 0;
  struct ane_node *sorted = ane_malloc((size_t)n * sizeof *sorted);
  int32_t *new_index = ane_malloc((size_t)n * sizeof *new_index);
  ane_status st = ANE_OK;
  if (!sorted || !new_index) {
    st = ane_fail(err, ANE_NOMEM, "no memory to order %d nodes", n);
    goto out;
  }
  for (int32_t i = 0; i < n; i++) new_index[i] = ANE_NONE, living += !g->nodes[i].dead;
  /* Each round appends all ready nodes in list order. Passes add nodes near their final index, so few rounds suffice. */
  for (int32_t before = -1; placed < living && placed != before;) {
    before = placed;
    for (int32_t i = 0; i < n; i++) {
      if (g->nodes[i].dead || new_index[i] != ANE_NONE || !ready(g, &g->nodes[i], new_index)) continue;
      new_index[i] = placed;
      sorted[placed++] = g->nodes[i];
    }
  }
  if (placed < living) {
    st = ane_fail(err, ANE_INVALID, "the graph %s has a cycle, or uses an output of a removed node", g->name);
    goto out;
  }
  if (placed) memcpy(g->nodes, sorted, (size_t)placed * sizeof *sorted);
  g->n_nodes = placed;
  for (int32_t v = 0; v < g->n_values; v++)
    if (g->values[v].kind == ANE_VALUE_RESULT && g->values[v].node != ANE_NONE) g->values[v].node = new_index[g->values[v].node];
out:
  ane_free(sorted);
  ane_free(new_index);
  return st;
}
