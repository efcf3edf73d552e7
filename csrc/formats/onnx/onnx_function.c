/* Local functions: found by domain, name and overload. The number of nodes is counted before anything is inlined. */
#include "formats/onnx/onnx_internal.h"

#include "base/alloc.h"

#include <string.h>

/* The key of a function: "domain\nname\noverload", since no identifier contains a newline. 0: it is longer than the buffer. */
enum { KEY_BYTES = 512 };
static size_t function_key(char key[KEY_BYTES], const char *domain, const char *name, const char *overload) {
  const char *part[3] = {onnx_domain(domain), onnx_text(name), onnx_text(overload)};
  size_t at = 0;
  for (int i = 0; i < 3; i++) {
    size_t n = strlen(part[i]);
    if (n >= KEY_BYTES - at - 1) return 0;
    memcpy(key + at, part[i], n);
    at += n;
    key[at++] = '\n';
  }
  return at;
}

static uint32_t function_index(const struct onnx_reader *r, const AneOnnx__Node *n) {
  char key[KEY_BYTES];
  if (!r->functions.count) return UINT32_MAX;
  size_t len = function_key(key, n->domain, n->op_type, n->overload);
  return len ? ane_strmap_get(&r->functions, key, len) : UINT32_MAX;
}

const AneOnnx__Function *onnx_function(const struct onnx_reader *r, const AneOnnx__Node *n) {
  uint32_t i = function_index(r, n);
  return i == UINT32_MAX ? NULL : r->model->functions[i];
}

/* ---- Growth --------------------------------------------------------------------------------------------------------*/

/* Marks a function whose nodes are being counted. Other counts: the number of nodes that the function becomes when it is inlined;
 * 0: not counted yet. */
enum { BUSY = -1 };
struct counter {
  struct onnx_reader *r;
  int64_t *counts;
};

static ane_status count_nodes(struct counter *c, AneOnnx__Node **nodes, size_t n, int calls, int64_t *total);

/* Adds the nodes of a graph; NULL: an attribute that holds none. */
static ane_status count_graph(struct counter *c, const AneOnnx__Graph *g, int calls, int64_t *total) {
  return g ? count_nodes(c, g->node, g->n_node, calls, total) : ANE_OK;
}

static ane_status count_call(struct counter *c, uint32_t index, int calls, int64_t *total) {
  const AneOnnx__Function *f = c->r->model->functions[index];
  char q[ANE_QUOTE_TEXT];
  ane_quote(q, onnx_text(f->name), strlen(onnx_text(f->name)));
  if (c->counts[index] == BUSY) return onnx_fail(c->r, ANE_FORMAT, "local function %s is recursive", q);
  if (calls > ONNX_MAX_DEPTH)
    return onnx_fail(c->r, ANE_FORMAT, "local function %s: calls are nested deeper than %d", q, ONNX_MAX_DEPTH);
  if (c->counts[index] == 0) {
    int64_t sum = 1 + (int64_t)((f->n_input + f->n_output + f->n_attribute_proto) / ONNX_NODE_NAMES);
    c->counts[index] = BUSY;
    ane_status st = count_nodes(c, f->node, f->n_node, calls + 1, &sum);
    /* each call that leaves out an attribute reads its default */
    for (size_t i = 0; !st && i < f->n_attribute_proto; i++) st = count_graph(c, f->attribute_proto[i]->g, calls + 1, &sum);
    if (st) return st;
    c->counts[index] = sum;
  }
  *total += c->counts[index];
  return ANE_OK;
}

/* Adds the nodes to *total, which stays below 2 * ONNX_MAX_NODES at each step. */
static ane_status count_nodes(struct counter *c, AneOnnx__Node **nodes, size_t n, int calls, int64_t *total) {
  for (size_t i = 0; i < n; i++) {
    uint32_t f = function_index(c->r, nodes[i]);
    ane_status st = ANE_OK;
    *total += (int64_t)((nodes[i]->n_input + nodes[i]->n_output + nodes[i]->n_attribute) / ONNX_NODE_NAMES);
    if (f == UINT32_MAX)
      ++*total;
    else
      st = count_call(c, f, calls, total);
    for (size_t a = 0; !st && a < nodes[i]->n_attribute; a++) st = count_graph(c, nodes[i]->attribute[a]->g, calls, total);
    if (st) return st;
    if (*total > ONNX_MAX_NODES)
      return onnx_fail(c->r, ANE_FORMAT, "more than %d nodes when local functions are inlined", ONNX_MAX_NODES);
  }
  return ANE_OK;
}

/* Maps the functions by name; keys live in the source's arena. */
static ane_status list_functions(struct onnx_reader *r) {
  for (size_t i = 0; i < r->model->n_functions; i++) {
    const AneOnnx__Function *f = r->model->functions[i];
    char key[KEY_BYTES], q[ANE_QUOTE_TEXT];
    size_t len = function_key(key, f->domain, f->name, f->overload);
    if (!len) return onnx_fail(r, ANE_FORMAT, "local function %zu has a name that is too long", i + 1);
    if (f->n_attribute_proto > ONNX_MAX_ATTRIBUTES)
      return onnx_fail(r, ANE_FORMAT, "local function %zu has defaults of %zu attributes, at most %d are supported", i + 1,
                       f->n_attribute_proto, ONNX_MAX_ATTRIBUTES);
    uint32_t old;
    const char *copy = ane_arena_strndup(&r->s->arena, key, len);
    if (!copy || !ane_strmap_put(&r->functions, copy, len, (uint32_t)i, &old)) return onnx_no_memory(r);
    if (old != UINT32_MAX)
      return onnx_fail(r, ANE_FORMAT, "two local functions are called %s",
                       ane_quote(q, onnx_text(f->name), strlen(onnx_text(f->name))));
  }
  return ANE_OK;
}

ane_status onnx_functions(struct onnx_reader *r) {
  const AneOnnx__Model *m = r->model;
  struct counter c = {r, NULL};
  int64_t total = 0;
  ane_status st = list_functions(r);
  if (st) return st;
  if (!(c.counts = ane_calloc(m->n_functions + 1, sizeof *c.counts))) return onnx_no_memory(r);
  st = count_nodes(&c, m->graph->node, m->graph->n_node, 1, &total);
  ane_free(c.counts);
  return st;
}
