/* The text form of a graph. Fingerprints of saved sessions depend on it. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool put(struct ane_buffer *b, const char *fmt, ...) ANE_PRINTF(2, 3);
static bool put(struct ane_buffer *b, const char *fmt, ...) {
  char text[512];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return n >= 0 && ane_buffer_append(b, text, ANE_MIN((size_t)n, sizeof text - 1));
}

static bool put_type(struct ane_buffer *b, const struct ane_value *v) {
  if (!put(b, "%s[", ane_dtype_info(v->dtype)->name)) return false;
  for (uint32_t i = 0; i < v->shape.rank; i++) {
    int64_t d = v->shape.dim[i];
    const char *sep = i ? ", " : "";
    bool ok = d >= 0                  ? put(b, "%s%" PRId64, sep, d)
              : d == ANE_DIM_TOKENS   ? put(b, "%sT", sep)
              : d == ANE_DIM_OUT_ROWS ? put(b, "%sW", sep)
                                      : put(b, "%scontext", sep);
    if (!ok) return false;
  }
  return put(b, "]");
}

static bool same_attr(const struct ane_attr *a, const struct ane_attr *b) {
  switch (a->type) {
    case ANE_ATTR_INT: return a->i == b->i;
    case ANE_ATTR_FLOAT: return a->f == b->f;
    case ANE_ATTR_STRING: return strcmp(a->s, b->s) == 0;
    default: return a->fv.n == 0;
  }
}

static bool put_attr(struct ane_buffer *b, const char *name, const struct ane_attr *a) {
  switch (a->type) {
    case ANE_ATTR_INT: return put(b, "%s=%" PRId64, name, a->i);
    case ANE_ATTR_FLOAT: return put(b, "%s=%.9g", name, a->f);
    case ANE_ATTR_STRING: return put(b, "%s=%s", name, a->s);
    default: break;
  }
  bool ok = put(b, "%s=[", name);
  for (int64_t i = 0; ok && i < a->fv.n; i++) ok = put(b, "%s%.9g", i ? " " : "", (double)a->fv.v[i]);
  return ok && put(b, "]");
}

static bool put_node(struct ane_buffer *b, const struct ane_graph *g, const struct ane_node *n) {
  const struct ane_op_info *op = ane_op_info(n->op);
  bool ok = true;
  for (int32_t i = 0; ok && i < n->n_outputs; i++) ok = put(b, "%s%s", i ? ", " : "", g->values[n->outputs[i]].name);
  ok = ok && put(b, " = %s(", op->name);
  for (int32_t i = 0; ok && i < n->n_inputs; i++)
    ok = put(b, "%s%s", i ? ", " : "", n->inputs[i] == ANE_NONE ? "-" : g->values[n->inputs[i]].name);
  ok = ok && put(b, ")");
  bool any = false;
  for (int i = 0; ok && i < op->n_attrs; i++) {
    if (same_attr(&n->attrs[i], &op->attrs[i].def)) continue;
    ok = put(b, any ? " " : " {") && put_attr(b, op->attrs[i].name, &n->attrs[i]);
    any = true;
  }
  if (any) ok = ok && put(b, "}");
  for (int32_t i = 0; ok && i < n->n_outputs; i++) ok = put(b, i ? ", " : " : ") && put_type(b, &g->values[n->outputs[i]]);
  return ok && put(b, "\n");
}

bool ane_graph_print(const struct ane_graph *g, struct ane_buffer *out) {
  static const char *const words[] = {"input", "const", "state"};
  bool ok = put(out, "graph %s\n", g->name);
  for (int32_t i = 0; ok && i < g->n_values; i++) {
    const struct ane_value *v = &g->values[i];
    if (v->kind == ANE_VALUE_RESULT) continue;
    ok = put(out, "%s %s: ", words[v->kind], v->name) && put_type(out, v) && put(out, "\n");
  }
  for (int32_t i = 0; ok && i < g->n_nodes; i++)
    if (!g->nodes[i].dead) ok = put_node(out, g, &g->nodes[i]);
  ok = ok && put(out, "give");
  for (int32_t i = 0; ok && i < g->n_results; i++) ok = put(out, " %s", g->values[g->results[i]].name);
  return ok && put(out, "\n");
}
