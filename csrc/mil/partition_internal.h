/* Shared by the files of the partition: partition.c (the driver), partition_layers.c, partition_mixture.c and partition_head.c
 * (choose the shards), and partition_lists.c (finds the inputs and outputs of each shard). */
#ifndef ANE_MIL_PARTITION_INTERNAL_H
#define ANE_MIL_PARTITION_INTERNAL_H

#include "mil/partition.h"

/* Nodes [lo, hi) of the graph. */
struct span {
  int32_t lo, hi;
};

/* A partition under construction. */
struct partitioner {
  struct ane_partition *partition;
  const struct ane_graph *g;
  const struct ane_partition_limits *limits; /* NULL: everything in one shard */
  bool stateless;                            /* see ane_partition_limits */
  ane_partition_bytes_fn bytes;
  void *arg;
  int32_t *section;   /* [n_nodes] the layer of each node: 0 for nodes before layer 0, n_layers for nodes after the layers */
  int32_t *last_use;  /* [n_values] the last node that uses the value, INT32_MAX for results, ANE_NONE for none */
  int32_t *mark;      /* [n_values] the last `stamp` under which the value was seen */
  int32_t *list;      /* [n_nodes + n_values] scratch for one list */
  struct span *spans; /* [n_shards] the nodes of each shard; slices of a head or a mixture share theirs */
  int32_t room, stamp;
};

/* ---- partition.c ---------------------------------------------------------------------------------------------------*/

/* Does the host run the node? It looks up embeddings and makes rope tables. Dead nodes count too. */
static inline bool partition_is_host(const struct ane_graph *g, const struct ane_node *n) {
  return n->dead || ane_partition_is_embedding(g, n) || n->op == ANE_OP_ROPE_TABLE;
}
/* Does the shard need input j of node i? A slice of a mixture needs its own experts only. */
bool partition_takes(const struct ane_shard *p, int32_t i, int32_t j);
/* Returns the bytes of the constants that the shard has in these nodes, each counted once. */
uint64_t partition_count_bytes(struct partitioner *c, const struct ane_shard *p, struct span s);
/* Returns the bytes of the constants of these nodes, none of them divided into slices. */
uint64_t partition_span_bytes(struct partitioner *c, struct span s);
/* Returns the nodes of layer l; l = n_layers: those after the layers. */
struct span partition_layer_span(const struct partitioner *c, int32_t l);
/* Adds a shard and counts its bytes. Errors: ANE_NOMEM. */
ane_status partition_add(struct partitioner *c, struct ane_shard p, struct span s, struct ane_error *err);

/* ---- partition_layers.c, partition_mixture.c -----------------------------------------------------------------------*/

/* Adds the shards of all layers. */
ane_status partition_layers(struct partitioner *c, struct ane_error *err);
/* Splits nodes of one layer that exceed the size limit into shards between nodes; adds one shard if no division is possible. */
ane_status partition_split_layer(struct partitioner *c, int32_t layer, struct span s, struct ane_error *err);
/* Must the layer be split at its mixtures? */
bool partition_has_split_mixture(struct partitioner *c, struct span s);
/* Does it have a mixture of two experts or more? */
bool partition_has_mixture(const struct ane_graph *g, struct span s);
/* Adds the shards of a layer whose mixtures are shards of their own. */
ane_status partition_mixtures(struct partitioner *c, int32_t layer, struct span s, struct ane_error *err);

/* ---- partition_head.c ----------------------------------------------------------------------------------------------*/

/* Returns the head: the projection whose rows are the channels of the result, followed only by ops that act on each channel by
 * itself. ANE_NONE: the graph has no head. */
int32_t partition_find_head(const struct ane_graph *g);
/* Returns the rows of the head's weight; 0 for ANE_NONE. */
int64_t partition_head_rows(const struct ane_graph *g, int32_t head);
/* Adds the slices of the head, with all nodes after the layers. */
ane_status partition_head(struct partitioner *c, struct ane_error *err);

/* ---- partition_lists.c ---------------------------------------------------------------------------------------------*/

/* Fills the shard's lists: nodes, ins, outs, states, ropes, consts, hidden_in and hidden_out. */
ane_status partition_fill_lists(struct partitioner *c, struct ane_shard *p, struct span s, struct ane_error *err);

#endif
