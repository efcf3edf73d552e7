/* A part of an ONNX graph as a source of its own: see onnx_source.h. */
#include "formats/formats_internal.h"
#include "formats/onnx/onnx.h"
#include "formats/onnx/onnx_source.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

struct part {
  struct ane_source *out;
  const struct ane_onnx *from;
  int32_t *maker;  /* of each value: the node of the main graph, -1: none */
  uint8_t *given;  /* each value: 1 given */
  uint8_t *needed; /* each value */
  uint8_t *keep;   /* each node */
  int32_t *stack, depth;
};

static ane_status no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "no memory for a part of the graph"); }

static void need(struct part *p, int32_t v) {
  if (v < 0 || p->needed[v]) return;
  p->needed[v] = 1;
  if (!p->given[v]) p->stack[p->depth++] = v;
}

/* Marks the values that a subgraph uses of the graphs around it. Its own values have no maker in the main graph. */
static void need_inner(struct part *p, const struct ane_onnx_graph *g) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_onnx_node *n = &g->nodes[i];
    for (int32_t k = 0; k < n->n_in; k++) need(p, n->in[k]);
    for (int32_t k = 0; k < n->n_attrs; k++)
      if (n->attrs[k].type == ANE_ONNX_GRAPH) need_inner(p, n->attrs[k].g);
  }
  for (int32_t i = 0; i < g->n_outputs; i++) need(p, g->outputs[i].value);
}

static void mark(struct part *p) {
  while (p->depth > 0) {
    int32_t at = p->maker[p->stack[--p->depth]];
    if (at < 0 || p->keep[at]) continue;
    const struct ane_onnx_node *n = &p->from->graph.nodes[at];
    p->keep[at] = 1;
    for (int32_t k = 0; k < n->n_in; k++) need(p, n->in[k]);
    for (int32_t k = 0; k < n->n_attrs; k++)
      if (n->attrs[k].type == ANE_ONNX_GRAPH) need_inner(p, n->attrs[k].g);
  }
}

static ane_status add_io(struct part *p, struct ane_onnx_io *io, int32_t value, struct ane_error *err) {
  char name[16];
  snprintf(name, sizeof name, "v%d", (int)value);
  *io = (struct ane_onnx_io){
      .name = ane_arena_strndup(&p->out->arena, name, strlen(name)), .value = value, .dtype = ANE_DTYPE_COUNT, .rank = -1};
  return io->name ? ANE_OK : no_memory(err);
}

static ane_status fill(struct part *p, const int32_t *want, int32_t n_want, struct ane_error *err) {
  const struct ane_onnx *from = p->from;
  struct ane_arena *arena = &p->out->arena;
  struct ane_onnx *doc = ane_arena_alloc(arena, sizeof *doc);
  if (!doc) return no_memory(err);
  *doc = *from;
  struct ane_onnx_graph *g = &doc->graph;
  *g = (struct ane_onnx_graph){0};
  int32_t n_inputs = 0;
  for (int32_t v = 0; v < from->n_values; v++) n_inputs += p->needed[v] && (p->given[v] || p->maker[v] == -2);
  g->nodes = ane_arena_array(arena, (size_t)from->graph.n_nodes + 1, sizeof *g->nodes);
  g->inputs = ane_arena_array(arena, (size_t)n_inputs + 1, sizeof *g->inputs);
  g->outputs = ane_arena_array(arena, (size_t)n_want + 1, sizeof *g->outputs);
  if (!g->nodes || !g->inputs || !g->outputs) return no_memory(err);
  for (int32_t i = 0; i < from->graph.n_nodes; i++)
    if (p->keep[i]) g->nodes[g->n_nodes++] = from->graph.nodes[i];
  ane_status st = ANE_OK;
  for (int32_t v = 0; !st && v < from->n_values; v++)
    if (p->needed[v] && (p->given[v] || p->maker[v] == -2)) st = add_io(p, &g->inputs[g->n_inputs++], v, err);
  for (int32_t i = 0; !st && i < n_want; i++) st = add_io(p, &g->outputs[g->n_outputs++], want[i], err);
  p->out->onnx = doc;
  return st;
}

/* Makers: a node's number; -2: an input of the graph; -1: a constant, or a value of a subgraph. */
static void find_makers(struct part *p) {
  const struct ane_onnx_graph *g = &p->from->graph;
  for (int32_t v = 0; v < p->from->n_values; v++) p->maker[v] = -1;
  for (int32_t i = 0; i < g->n_inputs; i++) p->maker[g->inputs[i].value] = -2;
  for (int32_t i = 0; i < g->n_nodes; i++)
    for (int32_t k = 0; k < g->nodes[i].n_out; k++)
      if (g->nodes[i].out[k] >= 0) p->maker[g->nodes[i].out[k]] = i;
}

ane_status ane_onnx_part(struct ane_source **out, struct ane_source *s, const int32_t *want, int32_t n_want, const int32_t *given,
                         int32_t n_given, struct ane_error *err) {
  *out = NULL;
  if (!s->onnx) return ane_fail(err, ANE_INVALID, "%s: holds no graph", s->path);
  int32_t n = s->onnx->n_values;
  for (int32_t i = 0; i < n_want + n_given; i++) {
    int32_t v = i < n_want ? want[i] : given[i - n_want];
    if (v < 0 || v >= n) return ane_fail(err, ANE_INVALID, "%s: value %d is none of %d", s->path, (int)v, (int)n);
  }
  struct part p = {.from = s->onnx, .out = ane_source_derive(s)};
  size_t room = (size_t)n + 1;
  p.maker = ane_calloc(room, sizeof *p.maker);
  p.stack = ane_calloc(room, sizeof *p.stack);
  p.given = ane_calloc(room, 1);
  p.needed = ane_calloc(room, 1);
  p.keep = ane_calloc((size_t)s->onnx->graph.n_nodes + 1, 1);
  ane_status st = p.out && p.maker && p.stack && p.given && p.needed && p.keep ? ANE_OK : no_memory(err);
  if (!st) {
    find_makers(&p);
    for (int32_t i = 0; i < n_given; i++) p.given[given[i]] = 1;
    for (int32_t i = 0; i < n_want; i++) need(&p, want[i]);
    mark(&p);
    st = fill(&p, want, n_want, err);
  }
  ane_free(p.maker);
  ane_free(p.stack);
  ane_free(p.given);
  ane_free(p.needed);
  ane_free(p.keep);
  if (st)
    ane_source_close(p.out);
  else
    *out = p.out;
  return st;
}
