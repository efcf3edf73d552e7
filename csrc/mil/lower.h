/* Lowering makes an ML Program of MIL primitives from a shard of a recipe's graph (partition.h). A package writer or an
 * interpreter takes it.
 *
 * Tensors. Every activation is [1, C, T, 1], or [1, C, 1, T] by option: the same numbers in the same order. T is the number of
 * tokens of a call: 1 .. max_t, or fixed. Every projection is a conv with a kernel [C_out, C_in, 1, 1].
 *
 * Features of the function (struct ane_mil_port says what each one is; `act` is fp16, or fp32 with that option):
 *   inputs
 *     ids                int32 [1, T]            with options.embed, if the shard has the embedding
 *     types              int32 [1, T]            token types, if the shard looks them up
 *     hidden             act [1, C, T, 1]        the value shard.hidden_in, or the joined embedding (partition.h)
 *     EDGE               act [1, C, T, 1]        other values of shard.ins, by their graph name made an identifier
 *     position           int32 [1]               tokens that are in the states already
 *     cos_N, sin_N       act [1, r/2, T, 1]      cos(p f_i) magnitude of rope N (ane_mil_ropes) at the positions p
 *     mask_N             act [1, 1, T, context]  added to the scores of mask N (ane_mil_masks): 0 if key j is seen,
 *                                                -1e4 if not. [1, 1, T, T] for attention without states (both sides,
 *                                                or a stateless partition); T is then fixed
 *   outputs
 *     hidden_out         act [1, C, T, 1]        the value shard.hidden_out
 *     EDGE, EDGE_out     act [1, C, T, 1]        other values of shard.outs; _out if the value also comes in (sums of
 *                                                experts)
 *     logits             act [1, N, T, 1]        the graph's first result; N rows of a slice of the head
 *     last_hidden_state  act [1, C, T, 1]        instead of logits, with options.hidden: the result is hidden states
 *     argmax, max        int32, act [1, T]       instead of logits, with options.argmax: the row with the largest logit
 *                                                (counted within the slice) and that logit
 *   states               fp16, names from the graph
 *     keys, values       [1, kv_heads, held, head_dim]
 *     columns            [1, C, K - 1, 1] (in the other layout [1, C, 1, K - 1]): a ring, the last K - 1 inputs of a causal
 *                        convolution minus the inputs before the first token: zeros always mean the start of a sequence
 *     recurrent          [1, H, N, P] of Mamba-2 and the delta rule
 * The result of a route node is not a list of experts but a weight for every expert, zero if not chosen: [1, E, T, 1].
 * A function has only the features that its shard uses, in the order listed: edges in the order of shard.ins and outs, states in
 * order of use.
 *
 * The opset is the lowest that has the features: CoreML8 (specification 9) for states, iOS 18's weight schemes or several
 * functions, else CoreML6.
 *
 * Several functions of one package (ane_mil_join) differ only in T and context. They share states, which are sized for the
 * largest context; a function with a smaller context sees the first positions. So a sequence may move from one function to
 * another. */
#ifndef ANE_MIL_LOWER_H
#define ANE_MIL_LOWER_H

#include "base/arena.h"
#include "base/status.h"
#include "formats/formats.h"
#include "graph/graph.h"
#include "mil/partition.h"

typedef enum { ANE_MIL_CT1, ANE_MIL_C1T } ane_mil_layout; /* [1, C, T, 1], [1, C, 1, T] */
/* How RMSNorm is computed: as layer_norm of [x, -x], which has no squares that overflow, or as the mean of squares in fp32
 * between casts. */
typedef enum { ANE_MIL_NORM_DOUBLED, ANE_MIL_NORM_FP32 } ane_mil_norm;
typedef enum { ANE_MIL_ROPE_INPUTS, ANE_MIL_ROPE_CONSTANTS } ane_mil_rope;
/* The tokens that `gather` keeps: all, or the last one. */
typedef enum { ANE_MIL_GATHER_ALL, ANE_MIL_GATHER_LAST } ane_mil_gather;

/* ---- Weights -------------------------------------------------------------------------------------------------------*/

/* A request for a constant that an operation needs. */
struct ane_mil_weight_request {
  const struct ane_graph *graph;
  int32_t value;    /* the constant in the graph */
  int64_t from, to; /* rows [from, to) of its outermost dimension; all of them are needed */
  bool matrix; /* the weight of a projection: any scheme is allowed. Otherwise (vectors, causal convolutions, tables) plain, of
                  type `dtype` */
  ane_mil_dtype dtype; /* the type that the operation computes in: fp16 or fp32 */
  int32_t version;     /* of the specification: it decides which schemes exist */
  int32_t rank;        /* of the requested shape; same elements in the same order as in the graph */
  int64_t dim[ANE_MIL_RANK];
  float add, times; /* (element + add) * times; 0 and 1 for matrices */
};

/* The answer: the operation that yields the constant. `op` is "const" (parameter val) or "constexpr_...", with its parameters by
 * name. Values lie in memory (data) or in a weight file (file, offset). */
enum { ANE_MIL_WEIGHT_PARAMS = 6 };
struct ane_mil_weight {
  const char *op;
  uint32_t n_params;
  struct ane_mil_attr params[ANE_MIL_WEIGHT_PARAMS];
};

/* Provides a weight. What it returns lives in `arena` or longer. Called once for each distinct request, in order of use. */
typedef ane_status (*ane_mil_weight_fn)(void *arg, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                                        struct ane_mil_weight *out, struct ane_error *err);

/* Provides every weight plain, decoded to the requested type, in memory. arg is unused. */
ane_status ane_mil_weight_plain(void *arg, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                                struct ane_mil_weight *out, struct ane_error *err);

/* ---- Lowering ------------------------------------------------------------------------------------------------------*/

struct ane_mil_options {
  ane_mil_layout layout;
  ane_mil_norm norm;
  ane_mil_rope rope;
  ane_mil_gather gather;
  int64_t context;          /* positions that attention sees, >= 1 */
  int64_t held;             /* positions that the states and constant rope tables hold; at least context; 0: context */
  int64_t max_t;            /* T is 1 .. max_t, by default 1 */
  int64_t fixed_t;          /* > 0: T is fixed to this, and max_t is ignored */
  const char *function;     /* its name; NULL: "main" */
  bool several;             /* it is one of several functions of a package: always CoreML8 */
  bool argmax;              /* the head returns argmax and max */
  bool embed;               /* the embedding table is in the package, not with the host */
  bool hidden;              /* the result is hidden states: its output is last_hidden_state, not logits */
  bool fp32;                /* compute in fp32 (states stay fp16) */
  bool ios18_weights;       /* the weights use schemes that need CoreML8 */
  ane_mil_weight_fn weight; /* NULL: ane_mil_weight_plain */
  void *weight_arg;
  const char *description; /* of the model; NULL: none */
};

typedef enum {
  ANE_MIL_PORT_IDS,
  ANE_MIL_PORT_TYPES,
  ANE_MIL_PORT_HIDDEN,
  ANE_MIL_PORT_EDGE,
  ANE_MIL_PORT_POSITION,
  ANE_MIL_PORT_COS,
  ANE_MIL_PORT_SIN,
  ANE_MIL_PORT_MASK,
  ANE_MIL_PORT_LOGITS,
  ANE_MIL_PORT_ARGMAX,
  ANE_MIL_PORT_MAX,
  ANE_MIL_PORT_KEYS,
  ANE_MIL_PORT_VALUES,
  ANE_MIL_PORT_COLUMNS,
  ANE_MIL_PORT_RECURRENT
} ane_mil_port_kind;
/* "ids", "types", "hidden", "edge", "position", "rope_cos", "rope_sin", "mask", "logits", "argmax", "max"; states: "keys",
 * "values", "columns", "recurrent" */
const char *ane_mil_port_word(ane_mil_port_kind kind);

struct ane_mil_port {
  const char *name; /* of the feature */
  ane_mil_port_kind kind;
  int32_t value; /* HIDDEN, EDGE and states: the value of the graph, whose name is also the edge's; else ANE_NONE */
  int32_t index; /* COS, SIN: number of the rope; MASK: of the mask; else 0 */
  ane_mil_dtype dtype;
  int32_t rank;
  int64_t dim[ANE_MIL_RANK]; /* ANE_MIL_UNKNOWN: T */
};

struct ane_mil_lowered {
  struct ane_mil_model *model;
  struct ane_mil_port *inputs, *outputs, *states;
  uint32_t n_inputs, n_outputs, n_states;
};

/* Lowers a shard. Everything lives in the arena (weights where their provider put them). The graph must be unfused, with dead
 * nodes removed. Errors: ANE_UNSUPPORTED (a fused op; longrope tables as constants beyond the original context; bidirectional
 * attention if T is not fixed), ANE_INVALID (an option), ANE_SHAPE, ANE_NOMEM, and those of the weight provider. The message
 * begins with the node. */
ane_status ane_mil_lower(struct ane_arena *arena, const struct ane_graph *g, const struct ane_shard *shard,
                         const struct ane_mil_options *o, struct ane_mil_lowered **out, struct ane_error *err);

/* Joins several functions into one model. Each has its own name; the first is the default. The model lives in the arena and
 * points into theirs. Errors: ANE_INVALID (a name occurs twice, or a function was not lowered with `several`), ANE_NOMEM, those
 * of ane_mil_verify. */
ane_status ane_mil_join(struct ane_arena *arena, struct ane_mil_lowered *const *parts, uint32_t n, struct ane_mil_model **out,
                        struct ane_error *err);

/* ---- What shards of one graph share --------------------------------------------------------------------------------*/

/* The distinct rope tables of a graph: rope N is the result of the node nodes[N]. */
struct ane_mil_ropes {
  const int32_t *nodes; /* rope_table nodes, the first of each kind */
  int32_t n;
};
/* The masks: pairs of window and ahead, in the order in which attention first uses them. */
struct ane_mil_mask {
  int64_t window, ahead;
};
struct ane_mil_masks {
  const struct ane_mil_mask *list;
  int32_t n;
};
ane_status ane_mil_ropes(struct ane_arena *arena, const struct ane_graph *g, struct ane_mil_ropes *out, struct ane_error *err);
ane_status ane_mil_masks(struct ane_arena *arena, const struct ane_graph *g, struct ane_mil_masks *out, struct ane_error *err);

#endif
