/* Partitions the graph of a model into shards. Each shard becomes a package.
 *
 * The graph is as a recipe builds it, after the pass dead_code only. Nodes of layer N are named "layers.N. ...", in ascending
 * order of N. Nodes before the first layer belong to the first shard; nodes after the last layer belong to each slice of the
 * head. The host runs two kinds of nodes, which are in no shard: the embeddings and the rope tables (inputs of the packages).
 *
 * An embedding is a table whose rows are looked up by token id. A model may have several (Gemma 3n and 4). The host sees them as
 * one, the joined embedding: row i has row i of each table, one after the other. It has the rows of the first table; those that
 * another table lacks are its row 0. In shards it is one value, that of the first embedding.
 *
 *   LAYERS   Layers first .. last. If a layer with experts is above the size limit, its shard ends before the experts. Without
 *            experts, a layer above the size limit is split between nodes into `parts` shards: as few as the limit allows, at the
 *            edges with the fewest channels (between attention and feed-forward, if that is enough). A matrix that is above the
 *            limit by itself stays whole; its shard has no other matrix.
 *   EXPERTS  Experts [from, to) of the mixture `split` in layer first == last. Each slice adds to the sum of the slice before:
 *            the mixture's result is one of its `ins` if from > 0, and its only one of `outs` if to < the number of experts. The
 *            last slice also holds what follows in the layer, up to the next mixture.
 *   HEAD     Rows [from, to) of the projection `split`. The final norm is in each slice.
 *   WHOLE    Everything (ane_partition_whole).
 *
 * `gather` nodes are in the shards. In a package every token of a call is an output row: the host passes only output rows to the
 * head. */
#ifndef ANE_MIL_PARTITION_H
#define ANE_MIL_PARTITION_H

#include "base/arena.h"
#include "base/status.h"
#include "graph/graph.h"

typedef enum { ANE_SHARD_LAYERS, ANE_SHARD_EXPERTS, ANE_SHARD_HEAD, ANE_SHARD_WHOLE } ane_shard_kind;
/* "layers", "experts", "head", "whole" */
const char *ane_shard_kind_name(ane_shard_kind kind);

struct ane_shard {
  ane_shard_kind kind;
  int32_t first, last; /* layers, 0-based, both included; HEAD: ANE_NONE */
  int32_t part, parts; /* LAYERS: index of this part of layer first == last, from 0, and number of parts; parts 0: whole layers */
  int32_t split;       /* EXPERTS: the node of the mixture; HEAD, WHOLE: the head's conv1x1, ANE_NONE if the graph has none */
  int64_t from, to;    /* HEAD: rows of its weight; EXPERTS: experts; WHOLE: all rows */
  const int32_t *nodes; /* in order; `split` is one of them */
  int32_t n_nodes;
  /* ins: values of the embedding or of earlier shards. outs: values for later shards, and results of the graph. Both in the order
   * in which values are made. */
  const int32_t *ins, *outs;
  int32_t n_ins, n_outs;
  const int32_t *states; /* values of kind STATE; see ane_shard_has_state */
  int32_t n_states;
  const int32_t *ropes; /* results of rope_table nodes that the nodes use */
  int32_t n_ropes;
  const int32_t *consts; /* weights, each once, in the order of use */
  int32_t n_consts;
  uint64_t bytes; /* of the weights, as the caller counts them */
  /* The residual stream at the edge before the shard (hidden_in) and after it (hidden_out): of the values that cross the edge,
   * the one that is made last. It exists if the edge lies between layers and the value is in `ins` (`outs`) and has the
   * embedding's shape. Packages call it "hidden" ("hidden_out"); which value goes where does not depend on that name. ANE_NONE:
   * there is none. */
  int32_t hidden_in, hidden_out;
};

enum { ANE_PARTITION_EMBEDDINGS = 4 }; /* most embeddings of a model */

struct ane_partition {
  struct ane_shard *shards; /* in the order in which they are called */
  int32_t n_shards;
  int32_t n_layers;
  /* n_embeddings: 0 for a model without embedding. embedding: result of the node that looks up token ids in the first table,
   * which stands for the joined embedding; ANE_NONE: there is none. tables: constants [V, C], in the order of the nodes. */
  int32_t n_embeddings;
  int32_t embedding;
  int32_t tables[ANE_PARTITION_EMBEDDINGS];
  int64_t rows;   /* of the head; 0 without one */
  bool stateless; /* of the limits */
  struct ane_arena arena;
};

/* How large shards may be. */
struct ane_partition_limits {
  uint64_t target;     /* most bytes of a shard of several layers, and of a slice of the head */
  uint64_t size_limit; /* bytes above which a layer is split: at its experts, or else between nodes */
  int64_t rows;        /* of a slice of the head */
  int32_t head_slices; /* 0: as few as target and rows allow; else this many (at least as many as `rows` requires) */
  int64_t row_align;   /* slices of the head begin at multiples of this; 0: anywhere */
  int32_t layers;      /* most layers of a shard; 0: any number */
  /* Slices of a mixture. 0: as few as the size limit allows, 1, 2, 4, ... up to one per expert; else this many, at most one per
   * expert. */
  int32_t expert_parts;
  /* Each call takes a whole sequence. Attention then sees only the tokens of its call, and no shard has keys and values as
   * states. */
  bool stateless;
};
/* 200 MB, 250 MB, 65,536 rows; MB = 10^6 bytes. */
struct ane_partition_limits ane_partition_default_limits(void);

/* The bytes that input `input` of the node takes in a package if `rows` rows of its outermost dimension are used. */
typedef uint64_t (*ane_partition_bytes_fn)(void *arg, const struct ane_graph *g, int32_t node, int32_t input, int64_t rows);

/* Makes the partition of a graph, which must outlive it. Free it with ane_partition_free; *out is NULL on failure. bytes: how a
 * package stores weights; called with arg. Errors: ANE_UNSUPPORTED (nodes of the layers are not in order, fused nodes),
 * ANE_INVALID (limits that are 0), ANE_NOMEM. */
ane_status ane_partition_make(struct ane_partition **out, const struct ane_graph *g, const struct ane_partition_limits *limits,
                              ane_partition_bytes_fn bytes, void *arg, struct ane_error *err);
/* Makes the partition with everything in one shard. */
ane_status ane_partition_whole(struct ane_partition **out, const struct ane_graph *g, bool stateless,
                               ane_partition_bytes_fn bytes, void *arg, struct ane_error *err);
void ane_partition_free(struct ane_partition *partition); /* NULL is fine */

/* Does the shard hold this value, a state of the graph? Bidirectional attention needs none: it sees only the tokens of its call.
 */
bool ane_shard_has_state(const struct ane_shard *p, int32_t value);
/* Is it a node that looks up token ids? Other embed nodes, of positions and token types, belong to the shards that use them. */
bool ane_partition_is_embedding(const struct ane_graph *g, const struct ane_node *n);
/* Is the value the result of such a node? ANE_NONE is not. */
bool ane_partition_is_embedded(const struct ane_graph *g, int32_t value);
/* Finds the nodes of all embeddings, in their order. Returns their number; at most ANE_PARTITION_EMBEDDINGS are put into nodes.
 */
int32_t ane_partition_embeddings(const struct ane_graph *g, int32_t nodes[ANE_PARTITION_EMBEDDINGS]);
/* Returns the channels of the joined embedding: the sum of those of all embeddings. */
int64_t ane_partition_joined_channels(const struct ane_graph *g);

#endif
