/* Mixtures of experts as shards of their own: slices of the experts, each of which adds to the sum of the slice before. */
#include "mil/partition_internal.h"

/* Returns the first mixture in [lo, hi), or hi. */
static int32_t next_mixture(const struct ane_graph *g, struct span s) {
  while (s.lo < s.hi && (g->nodes[s.lo].dead || g->nodes[s.lo].op != ANE_OP_EXPERTS)) s.lo++;
  return s.lo;
}

static struct ane_shard expert_slice(int32_t layer, int32_t node, int64_t count, int32_t part, int32_t parts) {
  return (struct ane_shard){.kind = ANE_SHARD_EXPERTS,
                            .first = layer,
                            .last = layer,
                            .split = node,
                            .from = count * part / parts,
                            .to = count * (part + 1) / parts};
}

/* Returns the number of slices for the mixture at `node`: 1, 2, 4, ... up to one per expert, until the largest slice keeps the
 * size limit. The last slice also has the nodes up to `end`. */
static int32_t expert_parts(struct partitioner *c, int32_t layer, int32_t node, int32_t end) {
  int64_t count = ane_node_int(&c->g->nodes[node], "count");
  if (c->limits->expert_parts) return (int32_t)ANE_MIN(count, (int64_t)c->limits->expert_parts);
  for (int64_t parts = 1;; parts *= 2) {
    if (parts >= count) return (int32_t)count;
    uint64_t most = 0;
    for (int32_t i = 0; i < parts; i++) {
      struct ane_shard p = expert_slice(layer, node, count, i, (int32_t)parts);
      uint64_t b = partition_count_bytes(c, &p, (struct span){node, i + 1 < parts ? node + 1 : end});
      most = ANE_MAX(most, b);
    }
    if (most <= c->limits->size_limit) return (int32_t)parts;
  }
}

ane_status partition_mixtures(struct partitioner *c, int32_t layer, struct span s, struct ane_error *err) {
  int32_t node = next_mixture(c->g, s);
  struct ane_shard before = {.kind = ANE_SHARD_LAYERS, .first = layer, .last = layer, .split = ANE_NONE};
  struct span head = {s.lo, node};
  ane_status st = partition_span_bytes(c, head) > c->limits->size_limit ? partition_split_layer(c, layer, head, err)
                                                                        : partition_add(c, before, head, err);
  while (!st && node < s.hi) {
    int32_t end = next_mixture(c->g, (struct span){node + 1, s.hi}), parts = expert_parts(c, layer, node, end);
    int64_t count = ane_node_int(&c->g->nodes[node], "count");
    for (int32_t i = 0; i < parts && !st; i++)
      st = partition_add(c, expert_slice(layer, node, count, i, parts), (struct span){node, i + 1 < parts ? node + 1 : end}, err);
    node = end;
  }
  return st;
}

bool partition_has_mixture(const struct ane_graph *g, struct span s) {
  int32_t node = next_mixture(g, s);
  return node != s.hi && ane_node_int(&g->nodes[node], "count") >= 2;
}

bool partition_has_split_mixture(struct partitioner *c, struct span s) {
  if (!partition_has_mixture(c->g, s)) return false;
  return c->limits->expert_parts ? c->limits->expert_parts > 1 : partition_span_bytes(c, s) > c->limits->size_limit;
}
