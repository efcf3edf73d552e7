/* The LM head: as few slices of its rows as the limits allow. The final norm is in each slice. */
#include "mil/partition_internal.h"

int32_t partition_find_head(const struct ane_graph *g) {
  if (g->n_results != 1) return ANE_NONE;
  int32_t v = g->results[0];
  while (v != ANE_NONE && g->values[v].kind == ANE_VALUE_RESULT) {
    const struct ane_node *n = &g->nodes[g->values[v].node];
    if (n->op == ANE_OP_CONV1X1) return g->values[v].node;
    if (n->op != ANE_OP_SOFTCAP && n->op != ANE_OP_SCALE && n->op != ANE_OP_ACT) return ANE_NONE;
    v = n->inputs[0];
  }
  return ANE_NONE;
}

int64_t partition_head_rows(const struct ane_graph *g, int32_t head) {
  return head == ANE_NONE ? 0 : g->values[g->nodes[head].inputs[1]].shape.dim[0];
}

/* Returns slice i of `slices` equal ones. The start of a slice is rounded down to a multiple of row_align. */
static struct ane_shard head_slice(const struct ane_partition_limits *l, int32_t head, int64_t rows, int64_t i, int64_t slices) {
  struct ane_shard p = {.kind = ANE_SHARD_HEAD,
                        .first = ANE_NONE,
                        .last = ANE_NONE,
                        .split = head,
                        .from = rows * i / slices,
                        .to = rows * (i + 1) / slices};
  if (l->row_align > 1) {
    p.from -= p.from % l->row_align;
    if (i + 1 < slices) p.to -= p.to % l->row_align;
  }
  return p;
}

/* Does every slice keep the limits of rows and bytes? */
static bool slices_fit(struct partitioner *c, struct span s, int32_t head, int64_t rows, int64_t slices) {
  bool bytes_count = c->limits->head_slices == 0;
  for (int64_t i = 0; i < slices; i++) {
    struct ane_shard p = head_slice(c->limits, head, rows, i, slices);
    if (p.to - p.from > c->limits->rows || (bytes_count && partition_count_bytes(c, &p, s) > c->limits->target)) return false;
  }
  return true;
}

/* Returns the smallest number of slices that keep the limits, at most one per row. */
static int64_t head_slices(struct partitioner *c, struct span s, int32_t head, int64_t rows) {
  int64_t n = ANE_MAX((rows + c->limits->rows - 1) / c->limits->rows, (int64_t)ANE_MAX(c->limits->head_slices, 1));
  if (!c->limits->head_slices) n = ANE_MAX(n, (int64_t)(partition_span_bytes(c, s) / c->limits->target));
  while (n < rows && !slices_fit(c, s, head, rows, n)) n++;
  return ANE_MAX((int64_t)1, ANE_MIN(n, rows));
}

/* Appends the nodes after the layers to the last shard, if it ends with whole layers and the nodes have only vectors: the final
 * norm of hidden states needs no package of its own. */
static bool append_to_layers(struct partitioner *c, struct span s) {
  enum { VECTORS = 64 }; /* vectors are smaller than 1/64 of the limit */
  struct ane_partition *all = c->partition;
  struct ane_shard *last = all->n_shards ? &all->shards[all->n_shards - 1] : NULL;
  if (!last || last->kind != ANE_SHARD_LAYERS || last->parts || partition_span_bytes(c, s) > c->limits->size_limit / VECTORS)
    return false;
  c->spans[all->n_shards - 1].hi = s.hi;
  last->bytes = partition_count_bytes(c, last, c->spans[all->n_shards - 1]);
  return true;
}

ane_status partition_head(struct partitioner *c, struct ane_error *err) {
  struct span s = {partition_layer_span(c, c->partition->n_layers).lo, c->g->n_nodes};
  int32_t head = partition_find_head(c->g);
  int64_t slices = 1, rows = 0;
  bool any = false;
  for (int32_t i = s.lo; i < s.hi; i++) any |= !partition_is_host(c->g, &c->g->nodes[i]);
  if (!any) return ANE_OK;
  if (head != ANE_NONE && head >= s.lo) {
    rows = partition_head_rows(c->g, head);
    slices = head_slices(c, s, head, rows);
  } else {
    head = ANE_NONE;
    if (append_to_layers(c, s)) return ANE_OK;
  }
  for (int64_t i = 0; i < slices; i++) {
    struct ane_shard p = head_slice(c->limits, head, rows, i, slices);
    ane_status st = p.from < p.to || rows == 0 ? partition_add(c, p, s, err) : ANE_OK;
    if (st) return st;
  }
  return ANE_OK;
}
