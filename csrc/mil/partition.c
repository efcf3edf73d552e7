/* The partition of a graph into shards.
 *
 * Every shard is a span of nodes [lo, hi), without those that the host runs. The steps:
 *   1. each node gets its section: a layer, or the part after all layers;
 *   2. partition_layers.c and partition_head.c choose the spans, by the bytes of the weights in them;
 *   3. partition_lists.c finds the inputs and outputs of each shard, from where values are made and last used. */
#include "mil/partition_internal.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *ane_shard_kind_name(ane_shard_kind kind) {
  static const char *const names[] = {"layers", "experts", "head", "whole"};
  return names[kind];
}

struct ane_partition_limits ane_partition_default_limits(void) {
  return (struct ane_partition_limits){.target = 200000000, .size_limit = 250000000, .rows = 65536};
}

/* ---- Sections -----------------------------------------------------------------------------------------------------*/

/* Returns the layer of a node, from its name; ANE_NONE outside layers. */
static int32_t layer_of(const struct ane_node *n) {
  static const char prefix[] = "layers.";
  if (strncmp(n->name, prefix, sizeof prefix - 1) != 0) return ANE_NONE;
  const char *digits = n->name + sizeof prefix - 1;
  char *end;
  if (*digits < '0' || *digits > '9') return ANE_NONE;
  long layer = strtol(digits, &end, 10);
  return *end == '.' && layer >= 0 && layer < INT32_MAX ? (int32_t)layer : ANE_NONE;
}

static ane_status find_embeddings(struct partitioner *c, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  struct ane_partition *p = c->partition;
  int32_t nodes[ANE_PARTITION_EMBEDDINGS];
  p->embedding = ANE_NONE;
  p->n_embeddings = ane_partition_embeddings(g, nodes);
  if (p->n_embeddings > ANE_PARTITION_EMBEDDINGS)
    return ane_fail(err, ANE_UNSUPPORTED, "the model has %" PRId32 " embeddings, at most %d can be exported", p->n_embeddings,
                    ANE_PARTITION_EMBEDDINGS);
  for (int32_t i = 0; i < p->n_embeddings; i++) {
    const struct ane_node *n = &g->nodes[nodes[i]];
    p->tables[i] = n->inputs[1];
    if (i == 0) p->embedding = n->outputs[0];
    int64_t first = g->values[p->tables[0]].shape.dim[0], rows = g->values[p->tables[i]].shape.dim[0];
    if (rows > first)
      return ane_fail(err, ANE_UNSUPPORTED, "%s: has %" PRId64 " rows, more than the %" PRId64 " of the first embedding", n->name,
                      rows, first);
  }
  return ANE_OK;
}

static ane_status find_sections(struct partitioner *c, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  int32_t layer = ANE_NONE, next;
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead) continue;
    if (ane_op_info(n->op)->kind == ANE_OPKIND_FUSED)
      return ane_fail(err, ANE_UNSUPPORTED, "%s: the fused op %s cannot be exported", n->name, ane_op_info(n->op)->name);
    int32_t l = layer_of(n);
    if (l == ANE_NONE) continue;
    if (l >= g->n_nodes) /* layers are gone through one by one, also those without nodes */
      return ane_fail(err, ANE_UNSUPPORTED, "%s: layer %" PRId32 " of a graph of %" PRId32 " nodes", n->name, l, g->n_nodes);
    if (l < layer)
      return ane_fail(err, ANE_UNSUPPORTED,
                      "%s comes after nodes of layer %" PRId32 ": layers that are not in order cannot be partitioned", n->name,
                      layer);
    layer = l;
  }
  next = c->partition->n_layers = layer + 1;
  for (int32_t i = g->n_nodes - 1; i >= 0; i--) {
    int32_t l = g->nodes[i].dead ? ANE_NONE : layer_of(&g->nodes[i]);
    if (l != ANE_NONE) next = l;
    c->section[i] = next;
  }
  return ANE_OK;
}

static void find_uses(struct partitioner *c) {
  const struct ane_graph *g = c->g;
  for (int32_t v = 0; v < g->n_values; v++) c->last_use[v] = ANE_NONE;
  for (int32_t i = 0; i < g->n_nodes; i++)
    for (int32_t j = 0; !g->nodes[i].dead && j < g->nodes[i].n_inputs; j++)
      if (g->nodes[i].inputs[j] != ANE_NONE) c->last_use[g->nodes[i].inputs[j]] = i;
  for (int32_t r = 0; r < g->n_results; r++) c->last_use[g->results[r]] = INT32_MAX;
}

/* ---- Shards -------------------------------------------------------------------------------------------------------*/

bool partition_takes(const struct ane_shard *p, int32_t i, int32_t j) {
  return p->kind != ANE_SHARD_EXPERTS || i != p->split || j < 2 || ((j - 2) / 6 >= p->from && (j - 2) / 6 < p->to);
}

/* Returns the number of rows of the outermost dimension of constant `v`, input j of node i, that the shard holds. */
static int64_t rows_of(const struct ane_shard *p, const struct ane_value *v, int32_t i, int32_t j) {
  bool sliced = p->kind == ANE_SHARD_HEAD && i == p->split && j >= 1;
  return sliced ? p->to - p->from : v->shape.rank ? v->shape.dim[0] : 1;
}

uint64_t partition_count_bytes(struct partitioner *c, const struct ane_shard *p, struct span s) {
  const struct ane_graph *g = c->g;
  uint64_t sum = 0;
  c->stamp++;
  for (int32_t i = s.lo; i < s.hi; i++)
    for (int32_t j = 0; !partition_is_host(g, &g->nodes[i]) && j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v == ANE_NONE || g->values[v].kind != ANE_VALUE_CONST || c->mark[v] == c->stamp || !partition_takes(p, i, j)) continue;
      c->mark[v] = c->stamp;
      sum += c->bytes(c->arg, g, i, j, rows_of(p, &g->values[v], i, j));
    }
  return sum;
}

uint64_t partition_span_bytes(struct partitioner *c, struct span s) {
  struct ane_shard whole = {.kind = ANE_SHARD_LAYERS};
  return partition_count_bytes(c, &whole, s);
}

ane_status partition_add(struct partitioner *c, struct ane_shard p, struct span s, struct ane_error *err) {
  struct ane_partition *partition = c->partition;
  if (partition->n_shards == c->room) {
    int32_t room = c->room ? 2 * c->room : 16;
    void *shards = ane_realloc(partition->shards, (size_t)room * sizeof *partition->shards);
    if (shards) partition->shards = shards;
    void *spans = shards ? ane_realloc(c->spans, (size_t)room * sizeof *c->spans) : NULL;
    if (!spans) return ane_fail(err, ANE_NOMEM, "no memory for %" PRId32 " shards", room);
    c->spans = spans;
    c->room = room;
  }
  p.bytes = partition_count_bytes(c, &p, s);
  /* analyser: without room, the spans were allocated above. */
  c->spans[partition->n_shards] = s;
  partition->shards[partition->n_shards++] = p;
  return ANE_OK;
}

struct span partition_layer_span(const struct partitioner *c, int32_t l) {
  struct span s = {0, 0};
  while (s.lo < c->g->n_nodes && c->section[s.lo] < l) s.lo++;
  for (s.hi = s.lo; s.hi < c->g->n_nodes && c->section[s.hi] == l;) s.hi++;
  return s;
}

bool ane_shard_has_state(const struct ane_shard *p, int32_t value) {
  for (int32_t i = 0; i < p->n_states; i++)
    if (p->states[i] == value) return true;
  return false;
}

bool ane_partition_is_embedding(const struct ane_graph *g, const struct ane_node *n) {
  return n->op == ANE_OP_EMBED && strcmp(g->values[n->inputs[0]].name, "ids") == 0;
}

bool ane_partition_is_embedded(const struct ane_graph *g, int32_t value) {
  const struct ane_value *v = value == ANE_NONE ? NULL : &g->values[value];
  return v && v->kind == ANE_VALUE_RESULT && ane_partition_is_embedding(g, &g->nodes[v->node]);
}

int32_t ane_partition_embeddings(const struct ane_graph *g, int32_t nodes[ANE_PARTITION_EMBEDDINGS]) {
  int32_t count = 0;
  for (int32_t i = 0; i < g->n_nodes; i++) {
    if (g->nodes[i].dead || !ane_partition_is_embedding(g, &g->nodes[i])) continue;
    if (count < ANE_PARTITION_EMBEDDINGS) nodes[count] = i;
    count++;
  }
  return count;
}

int64_t ane_partition_joined_channels(const struct ane_graph *g) {
  int32_t nodes[ANE_PARTITION_EMBEDDINGS], count = ane_partition_embeddings(g, nodes);
  int64_t sum = 0;
  for (int32_t i = 0; i < ANE_MIN(count, ANE_PARTITION_EMBEDDINGS); i++)
    sum += g->values[g->nodes[nodes[i]].outputs[0]].shape.dim[1];
  return sum;
}

/* ---- Entry points -------------------------------------------------------------------------------------------------*/

static ane_status partition_all(struct partitioner *c, bool whole, struct ane_error *err) {
  ane_status st = find_embeddings(c, err);
  if (st || (st = find_sections(c, err))) return st;
  find_uses(c);
  c->partition->stateless = c->stateless;
  c->partition->rows = partition_head_rows(c->g, partition_find_head(c->g));
  if (whole) {
    int32_t head = partition_find_head(c->g);
    struct ane_shard p = {
        .kind = ANE_SHARD_WHOLE, .first = 0, .last = c->partition->n_layers - 1, .split = head, .to = c->partition->rows};
    st = partition_add(c, p, (struct span){0, c->g->n_nodes}, err);
  } else if (!(st = partition_layers(c, err))) {
    st = partition_head(c, err);
  }
  for (int32_t i = 0; i < c->partition->n_shards && !st; i++)
    st = partition_fill_lists(c, &c->partition->shards[i], c->spans[i], err);
  return st;
}

static ane_status make(struct ane_partition **out, const struct ane_graph *g, const struct ane_partition_limits *limits,
                       bool stateless, ane_partition_bytes_fn bytes, void *arg, struct ane_error *err) {
  struct partitioner c = {.g = g, .limits = limits, .stateless = stateless, .bytes = bytes, .arg = arg};
  size_t nodes = (size_t)g->n_nodes + 1, values = (size_t)g->n_values + 1;
  *out = NULL;
  c.partition = ane_calloc(1, sizeof *c.partition);
  c.section = ane_calloc(nodes, sizeof *c.section);
  c.last_use = ane_calloc(values, sizeof *c.last_use);
  c.mark = ane_calloc(values, sizeof *c.mark);
  c.list = ane_calloc(nodes + values, sizeof *c.list);
  ane_status st = ANE_OK;
  if (!c.partition || !c.section || !c.last_use || !c.mark || !c.list)
    st = ane_fail(err, ANE_NOMEM, "no memory to partition %zu nodes", nodes);
  if (!st) st = partition_all(&c, limits == NULL, err);
  ane_free(c.section);
  ane_free(c.last_use);
  ane_free(c.mark);
  ane_free(c.list);
  ane_free(c.spans);
  if (st)
    ane_partition_free(c.partition);
  else
    *out = c.partition;
  return st;
}

ane_status ane_partition_make(struct ane_partition **out, const struct ane_graph *g, const struct ane_partition_limits *limits,
                              ane_partition_bytes_fn bytes, void *arg, struct ane_error *err) {
  *out = NULL;
  if (limits->rows < 1 || limits->target < 1 || limits->size_limit < 1 || limits->head_slices < 0 || limits->layers < 0 ||
      limits->expert_parts < 0)
    return ane_fail(err, ANE_INVALID, "the limits of shards must be positive");
  return make(out, g, limits, limits->stateless, bytes, arg, err);
}

ane_status ane_partition_whole(struct ane_partition **out, const struct ane_graph *g, bool stateless,
                               ane_partition_bytes_fn bytes, void *arg, struct ane_error *err) {
  return make(out, g, NULL, stateless, bytes, arg, err);
}

void ane_partition_free(struct ane_partition *partition) {
  if (!partition) return;
  ane_free(partition->shards);
  ane_arena_free(&partition->arena);
  ane_free(partition);
}
