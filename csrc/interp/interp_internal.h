/* What the parts of the interpreter share: the graph as it is built and run. */
#ifndef ANE_INTERP_INTERNAL_H
#define ANE_INTERP_INTERNAL_H

#include "base/bytes.h"
#include "interp/interp.h"

enum { INTERP_NONE = -1 };

struct interp_value {
  const char *name;
  bool constant;
  struct ane_dyn data;        /* constant: borrowed from the file or the arena, or folded (block set) */
  int32_t uses;               /* number of uses by living nodes and as an output */
  struct interp_block *block; /* the block of the node that makes it; NULL: input or constant */
  int32_t node;               /* index of that node in the block */
  int32_t last;               /* index in that block of the last node that uses it */
};

/* What the declared type of a result requires. */
struct interp_result {
  ane_dtype dtype; /* as stored: floats are fp32 */
  bool round;      /* to fp16 */
  const struct ane_mil_type *type;
};

/* PRIM   runs one primitive
 * IF     in[0] is the condition, blocks[0] runs if it is true, blocks[1] if it is false
 * WHILE  in: the first values, out: the last ones; blocks[0] gives the condition, blocks[1] the next values, both from the
 * block's inputs
 * READ   out[0] is the present value of state `at`
 * WRITE  in[0] becomes the value of state `at` */
typedef enum { INTERP_PRIM, INTERP_IF, INTERP_WHILE, INTERP_READ, INTERP_WRITE } interp_kind;

struct interp_node {
  const char *name;
  interp_kind kind;
  ane_prim op;
  bool dead;
  int32_t at;
  const struct interp_result *results; /* n_out, or NULL */
  int32_t n_in, n_out, n_drop;
  int32_t *in, *out;
  int32_t *drop; /* values whose last use is this node */
  bool *wanted;  /* which outputs are used [n_out] */
  struct ane_prim_state *state;
  struct interp_shared_state *shared; /* owns `state`; NULL: the node does */
  struct interp_block *blocks[2];
};

/* A list of nodes in order. Its outputs are those of the graph, of a branch or of a loop's block. */
struct interp_block {
  struct ane_buffer buffer; /* of struct interp_node, while it is built */
  struct interp_node *nodes;
  int32_t n_nodes, n_inputs, n_outputs;
  int32_t *inputs, *outputs; /* inputs: of a WHILE's blocks */
};

struct ane_interp {
  const struct ane_source *source; /* ONNX */
  const struct ane_onnx *onnx;
  const struct ane_mil_model *mil; /* Core ML */
  const struct ane_mil_function *function;
  const struct ane_mil_feature **features; /* of inputs; NULL if not described */
  const char **states;                     /* names, by the nodes' state numbers */
  int32_t n_states;
  const struct ane_onnx_io *io_in, *io_out;
  struct ane_interp_options options;
  const struct ane_kernels *kernels;
  struct ane_pool *pool;
  bool own_pool;
  struct ane_buffer value_buffer; /* of struct interp_value */
  struct interp_value *values;
  int32_t n_values;
  struct interp_block main;
  int32_t *inputs; /* values of onnx->graph.inputs, then of inputs added here */
  int32_t n_inputs, n_added;
  struct ane_dyn_memory memory; /* folded constants */
  struct ane_interp_info info;
  struct ane_arena arena;
};

/* ---- Building ------------------------------------------------------------------------------------------------------*/

ane_status interp_value(struct ane_interp *g, const char *name, int32_t *out, struct ane_error *err);
/* Add a value without a constant, a constant whose memory lives as long as the graph, and constants that are copied. *out: the
 * index of the value. */
ane_status interp_constant(struct ane_interp *g, const char *name, const struct ane_dyn *t, int32_t *out, struct ane_error *err);
ane_status interp_ints(struct ane_interp *g, const int64_t *v, int64_t n, bool scalar, int32_t *out, struct ane_error *err);
ane_status interp_float(struct ane_interp *g, float v, int32_t *out, struct ane_error *err);
ane_status interp_text(struct ane_interp *g, const char *s, size_t len, int32_t *out, struct ane_error *err);
/* Adds a node; in and out are copied. */
ane_status interp_add(struct ane_interp *g, struct interp_block *b, ane_prim op, const char *name, const int32_t *in,
                      int32_t n_in, const int32_t *out, int32_t n_out, struct ane_error *err);
/* Appends a node whose arrays live in the arena. */
ane_status interp_put(struct ane_interp *g, struct interp_block *b, const struct interp_node *n, struct ane_error *err);
/* Moves the nodes from a block's buffer to its list. */
ane_status interp_close_block(struct ane_interp *g, struct interp_block *b, struct ane_error *err);
ane_status interp_no_memory(struct ane_error *err);

/* Translate an ONNX graph (interp_onnx.c) or a MIL function (interp_mil.c) into g->main. */
ane_status interp_import_onnx(struct ane_interp *g, struct ane_error *err);
ane_status interp_import_mil(struct ane_interp *g, struct ane_error *err);

/* Casts and rounds result k of a node as its declared type requires. ANE_SHAPE: the shape differs (interp_state.c). */
ane_status interp_settle(struct ane_interp *g, const struct interp_node *n, int32_t k, struct ane_dyn_memory *m,
                         struct ane_dyn *t, struct ane_error *err);
/* Sets *out to the decoded elements of a coded tensor, to a copy of a tensor without a block, or else to another reference. */
ane_status interp_solid(const struct ane_dyn *t, struct ane_dyn_memory *m, struct ane_dyn *out, struct ane_error *err);
/* Returns what a node does, for messages: "conv", "if", ... */
const char *interp_kind_name(const struct interp_node *n);
/* Sets *out to input i as the function declares it: checked, and converted if it has another type (interp_check.c). */
ane_status interp_input(const struct ane_interp *g, int32_t i, const struct ane_dyn *in, struct ane_dyn_memory *m,
                        struct ane_dyn *out, struct ane_error *err);

/* States of a run. */
struct interp_state {
  const char *name;
  struct ane_dyn t;
};
struct ane_interp_states {
  struct ane_dyn_memory *memory;
  struct interp_state *list;
  int32_t n;
  bool spoiled;
};
/* Returns the index of a state by name, or -1. */
int32_t interp_state_find(const struct ane_interp_states *s, const char *name);
bool interp_same_shape(const struct ane_dyn *t, const struct ane_mil_type *type);

/* Passes over the translated graph, in this order (interp_passes.c, interp_fold.c):
 * fuse   products with transposed or dequantised constants read the stored ones
 * prune  removes nodes whose results are not used
 * fold   runs nodes of constants once
 * prune  again
 * ready  packs weights
 * live   finds last uses */
ane_status interp_fuse(struct ane_interp *g, struct ane_error *err);
ane_status interp_prune(struct ane_interp *g, struct ane_error *err);
ane_status interp_fold(struct ane_interp *g, struct ane_error *err);
ane_status interp_ready(struct ane_interp *g, struct ane_error *err);
ane_status interp_live(struct ane_interp *g, struct ane_error *err);
/* Prepares the constants of a node, or shares what another function prepared from the same ones (interp_share.c). Gives up the
 * node's reference to them. */
ane_status interp_prepare(struct ane_interp *g, struct interp_node *n, struct ane_prim_call *c, struct ane_error *err);
void interp_give_up(struct ane_interp *g, struct interp_node *n);

/* Adds an input after those of the file: the output rows. *done false: the last product of the graph cannot be limited to
 * some positions. */
ane_status interp_trim_head(struct ane_interp *g, int32_t logits, bool *done, struct ane_error *err);

/* Returns the input of a node for this parameter if it is a constant; else NULL. */
const struct ane_dyn *interp_const_in(const struct ane_interp *g, const struct interp_node *n, const char *param);

/* ---- Language models -----------------------------------------------------------------------------------------------*/

struct lm_state {
  int32_t input, output;
  struct ane_dyn first; /* an empty cache; data: zeros, or NULL if it has no elements */
  bool grows;           /* rows of dim 2 are positions: rewind truncates them */
};

struct ane_lm {
  struct ane_interp *graph;
  int32_t ids, mask, positions, past_length, total_length, logits; /* indices of inputs and of the output; -1: none */
  bool trimmed;                                                    /* the graph takes the output rows as its last input */
  struct lm_state *states;
  int32_t n_states;
  int64_t context, chunk, vocab;
  uint64_t fingerprint;
  struct ane_dyn_memory memory; /* memory of the empty caches */
};

#endif
