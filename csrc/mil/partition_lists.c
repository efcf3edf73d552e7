/* Finds the inputs and outputs of each shard. A value crosses the edge of a shard if it is made on one side and used on the
 * other. */
#include "mil/partition_internal.h"

#include <string.h>

static ane_status keep_list(struct partitioner *c, int32_t n, const int32_t **out, int32_t *n_out, struct ane_error *err) {
  int32_t *copy = ane_arena_array(&c->partition->arena, (size_t)n, sizeof *copy);
  if (!copy) return ane_fail(err, ANE_NOMEM, "no memory for the lists of a shard");
  if (n) memcpy(copy, c->list, (size_t)n * sizeof *copy);
  *out = copy;
  *n_out = n;
  return ANE_OK;
}

typedef enum { LIST_NONE, LIST_INS, LIST_STATES, LIST_ROPES, LIST_CONSTS } list_kind;

/* Returns the list of the shard that an input of one of its nodes goes to. */
static list_kind list_of(const struct partitioner *c, struct span s, int32_t v) {
  const struct ane_value *x = &c->g->values[v];
  switch (x->kind) {
    case ANE_VALUE_STATE: return LIST_STATES;
    case ANE_VALUE_CONST: return LIST_CONSTS;
    case ANE_VALUE_RESULT: break;
    default: return LIST_NONE; /* output rows and positions: inputs that the host fills */
  }
  if (c->g->nodes[x->node].op == ANE_OP_ROPE_TABLE) return LIST_ROPES;
  return x->node < s.lo || ane_partition_is_embedded(c->g, v) ? LIST_INS : LIST_NONE;
}

/* Returns the value that stands for v in lists: all embeddings are one. */
static int32_t joined(const struct partitioner *c, int32_t v) {
  return ane_partition_is_embedded(c->g, v) ? c->partition->embedding : v;
}

/* Inserts a value into the list, which stays sorted by the node that makes each value. Values that no node makes keep their order
 * of use. */
static void insert(const struct ane_graph *g, int32_t *list, int32_t n, int32_t v) {
  while (n > 0 && g->values[v].kind == ANE_VALUE_RESULT && g->values[list[n - 1]].node > g->values[v].node) {
    list[n] = list[n - 1];
    n--;
  }
  list[n] = v;
}

/* Does attention see tokens of earlier calls? */
static bool keeps_keys(const struct partitioner *c, const struct ane_node *n) {
  return !c->stateless && ane_node_int(n, "ahead") == 0;
}

static ane_status fill_inputs(struct partitioner *c, const struct ane_shard *p, struct span s, list_kind kind,
                              const int32_t **out, int32_t *n_out, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  int32_t n = 0;
  c->stamp++;
  for (int32_t i = s.lo; i < s.hi; i++)
    for (int32_t j = 0; !partition_is_host(g, &g->nodes[i]) && j < g->nodes[i].n_inputs; j++) {
      int32_t v = joined(c, g->nodes[i].inputs[j]);
      if (v == ANE_NONE || c->mark[v] == c->stamp || !partition_takes(p, i, j) || list_of(c, s, v) != kind) continue;
      if (kind == LIST_STATES && g->nodes[i].op == ANE_OP_ATTENTION && !keeps_keys(c, &g->nodes[i])) continue;
      c->mark[v] = c->stamp;
      insert(g, c->list, n++, v);
    }
  if (kind == LIST_INS && p->kind == ANE_SHARD_EXPERTS && p->from > 0) insert(g, c->list, n++, g->nodes[p->split].outputs[0]);
  return keep_list(c, n, out, n_out, err);
}

static bool is_last_slice(const struct ane_graph *g, const struct ane_shard *p) {
  return p->kind != ANE_SHARD_EXPERTS || p->to == ane_node_int(&g->nodes[p->split], "count");
}

static ane_status fill_outs(struct partitioner *c, struct ane_shard *p, struct span s, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  int32_t n = 0;
  for (int32_t i = s.lo; i < s.hi; i++)
    for (int32_t j = 0; !partition_is_host(g, &g->nodes[i]) && j < g->nodes[i].n_outputs; j++)
      if (c->last_use[g->nodes[i].outputs[j]] >= s.hi || !is_last_slice(g, p)) c->list[n++] = g->nodes[i].outputs[j];
  return keep_list(c, n, &p->outs, &p->n_outs, err);
}

static ane_status fill_nodes(struct partitioner *c, struct ane_shard *p, struct span s, struct ane_error *err) {
  int32_t n = 0;
  for (int32_t i = s.lo; i < s.hi; i++)
    if (!partition_is_host(c->g, &c->g->nodes[i])) c->list[n++] = i;
  return keep_list(c, n, &p->nodes, &p->n_nodes, err);
}

/* Returns the residual stream at an edge: of the values made before node `at` and used at or after it, the one made last, if it
 * has the embedding's shape. The embedding itself counts as made first. */
static int32_t residual_at(const struct partitioner *c, int32_t at) {
  const struct ane_graph *g = c->g;
  int32_t emb = c->partition->embedding;
  for (int32_t i = at - 1; i >= 0; i--)
    for (int32_t j = 0; !partition_is_host(g, &g->nodes[i]) && j < g->nodes[i].n_outputs; j++) {
      int32_t v = g->nodes[i].outputs[j];
      bool same = emb != ANE_NONE && ane_shape_equal(&g->values[v].shape, &g->values[emb].shape);
      if (c->last_use[v] >= at && c->last_use[v] != INT32_MAX) return same ? v : ANE_NONE;
    }
  return emb != ANE_NONE && c->last_use[emb] >= at ? emb : ANE_NONE;
}

static bool holds(const int32_t *list, int32_t n, int32_t v) {
  for (int32_t i = 0; i < n; i++)
    if (list[i] == v) return true;
  return false;
}

/* Does a section begin at node `at`? */
static bool is_border(const struct partitioner *c, int32_t at) {
  return at <= 0 || at >= c->g->n_nodes || c->section[at] != c->section[at - 1];
}

static void name_hidden(const struct partitioner *c, struct ane_shard *p, struct span s) {
  p->hidden_in = p->hidden_out = ANE_NONE;
  int32_t in = is_border(c, s.lo) ? residual_at(c, s.lo) : ANE_NONE;
  int32_t out = is_border(c, s.hi) ? residual_at(c, s.hi) : ANE_NONE;
  if (in != ANE_NONE && holds(p->ins, p->n_ins, in)) p->hidden_in = in;
  if (out != ANE_NONE && holds(p->outs, p->n_outs, out)) p->hidden_out = out;
}

ane_status partition_fill_lists(struct partitioner *c, struct ane_shard *p, struct span s, struct ane_error *err) {
  ane_status st = fill_nodes(c, p, s, err);
  if (st || (st = fill_inputs(c, p, s, LIST_INS, &p->ins, &p->n_ins, err)) || (st = fill_outs(c, p, s, err))) return st;
  if ((st = fill_inputs(c, p, s, LIST_STATES, &p->states, &p->n_states, err))) return st;
  if ((st = fill_inputs(c, p, s, LIST_ROPES, &p->ropes, &p->n_ropes, err))) return st;
  if ((st = fill_inputs(c, p, s, LIST_CONSTS, &p->consts, &p->n_consts, err))) return st;
  name_hidden(c, p, s);
  return ANE_OK;
}
