/* Translates ONNX nodes to primitives: by the table onnx.def if an op is one primitive, by functions if it is several. */
#include "interp/interp_onnx.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct row {
  const char *domain, *op;
  int64_t first, last; /* opsets */
  ane_prim prim;
  const char *mapping;
} rows[] = {
#define ONNX_OP(domain, op, first, last, prim, mapping) {domain, op, first, last, ANE_PRIM_##prim, mapping},
#include "interp/onnx.def"
#undef ONNX_OP
};

/* ---- Errors --------------------------------------------------------------------------------------------------------*/

ane_status onnx_node_fail(const struct onnx_import *t, const struct ane_onnx_node *n, ane_status code, const char *fmt, ...) {
  char text[300];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return ane_fail(t->err, code, "node %.120s (%s%s%.60s): %s", n->name, n->domain, *n->domain ? "." : "", n->op, text);
}

/* ---- Inputs and attributes -----------------------------------------------------------------------------------------*/

int32_t onnx_in(const struct onnx_import *t, const struct ane_onnx_node *n, int i) {
  (void)t;
  return i < n->n_in ? n->in[i] : INTERP_NONE;
}

/* Makes a constant of a stored tensor. */
static ane_status constant(struct onnx_import *t, const char *name, const struct ane_onnx_tensor *c, int32_t *out) {
  struct ane_dyn d = {.dtype = c->dtype, .rank = c->rank, .count = (int64_t)c->count, .data = c->data};
  memcpy(d.dim, c->dim, sizeof c->dim);
  return interp_constant(t->g, name, &d, out, t->err);
}

/* Makes a constant of an attribute. */
static ane_status attribute_value(struct onnx_import *t, const struct ane_onnx_node *n, const struct ane_onnx_attr *a,
                                  int32_t *out) {
  switch (a->type) {
    case ANE_ONNX_INT: return interp_ints(t->g, &a->i, 1, true, out, t->err);
    case ANE_ONNX_FLOAT: return interp_float(t->g, a->f, out, t->err);
    case ANE_ONNX_STRING: return interp_text(t->g, a->s.data, a->s.len, out, t->err);
    case ANE_ONNX_INTS: return interp_ints(t->g, a->ints, (int64_t)a->n, false, out, t->err);
    case ANE_ONNX_TENSOR: return constant(t, "", a->t, out);
    default: return onnx_node_fail(t, n, ANE_UNSUPPORTED, "attribute %.60s is of a type that is not expected here", a->name);
  }
}

bool onnx_int(const struct ane_onnx_node *n, const char *name, int64_t *out) {
  const struct ane_onnx_attr *a = ane_onnx_attr(n, name);
  if (!a) return true;
  if (a->type != ANE_ONNX_INT) return false;
  *out = a->i;
  return true;
}

bool onnx_float(const struct ane_onnx_node *n, const char *name, float *out) {
  const struct ane_onnx_attr *a = ane_onnx_attr(n, name);
  if (!a) return true;
  if (a->type != ANE_ONNX_FLOAT) return false;
  *out = a->f;
  return true;
}

/* ---- Mappings ------------------------------------------------------------------------------------------------------*/

/* One item of a mapping: "p=0", "!a", "?a=0". Its texts point into the mapping. */
struct item {
  char mark;        /* '!' or '?', else 0 */
  const char *name; /* of the parameter, or of the attribute */
  size_t len;
  const char *source; /* after the '='; NULL for '!' */
  size_t source_len;
};

static bool next_item(const char **s, struct item *it) {
  const char *p = *s;
  while (*p == ' ') p++;
  if (!*p) return false;
  size_t n = strcspn(p, " ");
  *s = p + n;
  *it = (struct item){.mark = *p == '!' || *p == '?' ? *p : 0};
  it->name = p + (it->mark != 0);
  size_t rest = n - (it->mark != 0);
  const char *eq = memchr(it->name, '=', rest);
  it->len = eq ? (size_t)(eq - it->name) : rest;
  if (eq) it->source = eq + 1, it->source_len = (size_t)(p + n - eq - 1);
  return true;
}

static bool is_name(const char *name, const char *s, size_t len) { return strlen(name) == len && memcmp(name, s, len) == 0; }

/* For "?a=value": returns whether the attribute has that value. */
static bool has_value(const struct ane_onnx_attr *a, const struct item *it) {
  if (a->type == ANE_ONNX_STRING) return a->s.len == it->source_len && memcmp(a->s.data, it->source, it->source_len) == 0;
  double want = strtod(it->source, NULL);
  return (a->type == ANE_ONNX_INT && (double)a->i == want) || (a->type == ANE_ONNX_FLOAT && (double)a->f == want);
}

/* Checks that the mapping names every attribute and every input of the node. Ignoring one would change the result. */
static ane_status check_named(struct onnx_import *t, const struct ane_onnx_node *n, const char *mapping) {
  for (int32_t i = 0; i < n->n_attrs; i++) {
    const struct ane_onnx_attr *a = &n->attrs[i];
    bool known = false, allowed = true;
    struct item it;
    for (const char *s = mapping; next_item(&s, &it);) {
      const char *bar = it.source && *it.source == '@' ? memchr(it.source, '|', it.source_len) : NULL;
      size_t len = bar ? (size_t)(bar - it.source) : it.source_len;
      if (!it.mark && it.source && *it.source == '@' && is_name(a->name, it.source + 1, len - 1)) known = true;
      if (it.mark == '!' && is_name(a->name, it.name, it.len)) known = true;
      if (it.mark == '?' && is_name(a->name, it.name, it.len))
        allowed = known ? allowed || has_value(a, &it) : has_value(a, &it), known = true;
    }
    if (!known) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "attribute %.60s is not known", a->name);
    if (!allowed) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "attribute %.60s has a value that is not supported", a->name);
  }
  for (int32_t i = 0; i < n->n_in; i++) {
    bool known = n->in[i] == INTERP_NONE;
    struct item it;
    for (const char *s = mapping; !known && next_item(&s, &it);) {
      if (it.mark || !it.source) continue;
      if (*it.source == '*')
        known = i >= atoi(it.source + 1);
      else if (*it.source >= '0' && *it.source <= '9')
        known = i == atoi(it.source);
    }
    if (!known) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "input %d is not supported", (int)i + 1);
  }
  return ANE_OK;
}

/* Sets the value that an item names; INTERP_NONE if it is absent. */
static ane_status source_value(struct onnx_import *t, const struct ane_onnx_node *n, const struct item *it, int32_t *out) {
  char text[64];
  *out = INTERP_NONE;
  snprintf(text, sizeof text, "%.*s", (int)ANE_MIN(it->source_len, sizeof text - 1), it->source);
  int64_t number = 0;
  switch (*text) {
    case '@': {
      char *bar = strchr(text, '|');
      if (bar) *bar = '\0';
      const struct ane_onnx_attr *a = ane_onnx_attr(n, text + 1);
      if (a) return attribute_value(t, n, a, out);
      if (!bar) return ANE_OK;
      number = strtoll(bar + 1, NULL, 10);
      return interp_ints(t->g, &number, 1, true, out, t->err);
    }
    case '#': number = strtoll(text + 1, NULL, 10); return interp_ints(t->g, &number, 1, true, out, t->err);
    case '\'': return interp_text(t->g, text + 1, strlen(text + 1), out, t->err);
    default: return *out = onnx_in(t, n, atoi(text)), ANE_OK;
  }
}

ane_status onnx_map(struct onnx_import *t, const struct ane_onnx_node *n, ane_prim prim, const char *mapping) {
  struct ane_prim_info info = ane_prim_info(prim);
  ane_status st = check_named(t, n, mapping);
  int32_t room = info.n_params + n->n_in, count = info.n_params,
          *in = ane_arena_array(&t->g->arena, (size_t)room + 1, sizeof *in);
  if (st) return st;
  if (!in) return interp_no_memory(t->err);
  for (int32_t i = 0; i < room; i++) in[i] = INTERP_NONE;
  struct item it;
  for (const char *s = mapping; !st && next_item(&s, &it);) {
    if (it.mark) continue;
    /* analyser: next_item() has set the source. */
    if (*it.source == '*') {
      for (int32_t i = atoi(it.source + 1); i < n->n_in; i++) in[count++] = n->in[i];
      continue;
    }
    char name[48];
    snprintf(name, sizeof name, "%.*s", (int)it.len, it.name);
    int at = ane_prim_param(prim, name);
    if (at < 0) return onnx_node_fail(t, n, ANE_INVALID, "the primitive %s has no parameter %s", info.name, name);
    st = source_value(t, n, &it, &in[at]);
  }
  if (st) return st;
  while (!info.variadic && count > 0 && in[count - 1] == INTERP_NONE) count--;
  for (int32_t i = info.max_outputs; i < n->n_out; i++)
    if (n->out[i] != INTERP_NONE) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "output %d is not supported", (int)i + 1);
  return interp_add(t->g, t->block, prim, n->name, in, count, n->out, ANE_MIN(n->n_out, info.max_outputs), t->err);
}

/* ---- Nodes ---------------------------------------------------------------------------------------------------------*/

static ane_status unknown(struct onnx_import *t, const struct ane_onnx_node *n, const struct row *other) {
  if (other && n->opset < other->first)
    return onnx_node_fail(t, n, ANE_UNSUPPORTED, "its form of opset %" PRId64 " is not supported, only from %" PRId64 " on",
                          n->opset, other->first);
  return onnx_node_fail(t, n, ANE_UNSUPPORTED, "the op is not known");
}

/* Translates a node. */
static ane_status import_node(struct onnx_import *t, const struct ane_onnx_node *n) {
  const struct row *other = NULL;
  for (size_t i = 0; i < ANE_COUNT(rows); i++) {
    if (strcmp(rows[i].op, n->op) != 0 || strcmp(rows[i].domain, n->domain) != 0) continue;
    if (n->opset >= rows[i].first && n->opset <= rows[i].last) return onnx_map(t, n, rows[i].prim, rows[i].mapping);
    if (!other) other = &rows[i];
  }
  bool done = false;
  ane_status st = onnx_compose(t, n, &done);
  return st || done ? st : unknown(t, n, other);
}

static ane_status import_block(struct onnx_import *t, const struct ane_onnx_graph *g, struct interp_block *b) {
  struct interp_block *outer = t->block;
  ane_status st = ANE_OK;
  t->block = b;
  for (int32_t i = 0; !st && i < g->n_nodes; i++) st = import_node(t, &g->nodes[i]);
  t->block = outer;
  if (st) return st;
  b->n_outputs = g->n_outputs;
  b->outputs = ane_arena_array(&t->g->arena, (size_t)g->n_outputs + 1, sizeof *b->outputs);
  if (!b->outputs) return interp_no_memory(t->err);
  for (int32_t i = 0; i < g->n_outputs; i++) b->outputs[i] = g->outputs[i].value;
  return interp_close_block(t->g, b, t->err);
}

ane_status onnx_if(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const names[2] = {"then_branch", "else_branch"};
  struct interp_node node = {.name = n->name, .kind = INTERP_IF, .n_in = 1, .n_out = n->n_out};
  node.in = ane_arena_array(&t->g->arena, 1, sizeof *node.in);
  node.out = ane_arena_array(&t->g->arena, (size_t)n->n_out + 1, sizeof *node.out);
  if (!node.in || !node.out) return interp_no_memory(t->err);
  if (n->n_in != 1 || n->in[0] == INTERP_NONE)
    return onnx_node_fail(t, n, ANE_FORMAT, "has %d inputs, but must have the condition", (int)n->n_in);
  node.in[0] = n->in[0];
  if (n->n_out) memcpy(node.out, n->out, (size_t)n->n_out * sizeof *n->out);
  for (int k = 0; k < 2; k++) {
    const struct ane_onnx_attr *a = ane_onnx_attr(n, names[k]);
    if (!a || a->type != ANE_ONNX_GRAPH || a->g->n_inputs || a->g->n_outputs != n->n_out)
      return onnx_node_fail(t, n, ANE_FORMAT, "%s is not a graph without inputs and with %d outputs", names[k], (int)n->n_out);
    struct interp_block *b = ane_arena_alloc(&t->g->arena, sizeof *b);
    if (!b) return interp_no_memory(t->err);
    node.blocks[k] = b;
    ane_status st = import_block(t, a->g, b);
    if (st) {
      ane_buffer_free(&b->buffer);
      return st;
    }
  }
  return interp_put(t->g, t->block, &node, t->err);
}

/* Values of the document keep their indices. Others follow. */
ane_status interp_import_onnx(struct ane_interp *g, struct ane_error *err) {
  struct onnx_import t = {g, &g->main, err};
  const struct ane_onnx *doc = g->onnx;
  ane_status st = ANE_OK;
  for (int32_t i = 0; !st && i < doc->n_values; i++) {
    int32_t v;
    const struct ane_onnx_value *from = &doc->values[i];
    st = from->constant ? constant(&t, from->name, from->constant, &v) : interp_value(g, from->name, &v, err);
  }
  g->n_inputs = doc->graph.n_inputs;
  g->inputs = ane_arena_array(&g->arena, (size_t)g->n_inputs + 1, sizeof *g->inputs);
  if (!st && !g->inputs) st = interp_no_memory(err);
  for (int32_t i = 0; !st && i < g->n_inputs; i++) {
    /* analyser: there are n_inputs of them. */
    g->inputs[i] = doc->graph.inputs[i].value;
    g->values[g->inputs[i]].block =
        &g->main; /* node INTERP_NONE: no node makes it, but it is freed with the main block's values */
  }
  return st ? st : import_block(&t, &doc->graph, &g->main);
}
