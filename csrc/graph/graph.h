/* The graph: values and the nodes that make them, in topological order. A recipe builds it, passes rewrite it, then it is planned
 * for the CPU or lowered to Core ML. Everything lives in one arena and is freed at once.
 *
 * Values and nodes are referred to by index (int32_t; ANE_NONE: absent). Dimensions are constant (>= 0) or one of the symbols
 * below. Names of values are unique and consist of scope and name ("layers.3.attn.q"). Dumps, profiles and packages show them. */
#ifndef ANE_GRAPH_GRAPH_H
#define ANE_GRAPH_GRAPH_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/status.h"
#include "base/strmap.h"
#include "tensor/tensor.h"

enum { ANE_NONE = -1 };

/* Limits of a router: its step works on the stack. */
enum { ANE_MAX_EXPERTS = 1024, ANE_MAX_CHOSEN = 32 };

/* Symbolic dimensions: tokens of a call, output rows, positions of the context. */
enum { ANE_DIM_TOKENS = -1, ANE_DIM_OUT_ROWS = -2, ANE_DIM_CONTEXT = -3 };

typedef enum {
#define ANE_OP(id, ...) ANE_OP_##id,
#include "graph/op.def"
#undef ANE_OP
  ANE_OP_COUNT
} ane_op;

typedef enum { ANE_OPKIND_BLOCK, ANE_OPKIND_FUSED } ane_op_kind;
typedef enum { ANE_ATTR_INT, ANE_ATTR_FLOAT, ANE_ATTR_STRING, ANE_ATTR_FLOATS } ane_attr_type;

/* One attribute of a node. Strings and lists live in the graph's arena. */
struct ane_attr {
  ane_attr_type type;
  union {
    int64_t i;
    double f;
    const char *s;
    struct {
      const float *v;
      int64_t n;
    } fv;
  };
};

struct ane_attr_spec {
  const char *name;
  struct ane_attr def; /* type and default */
};

struct ane_op_info {
  const char *name;
  ane_op_kind kind;
  int min_inputs, max_inputs, outputs;
  bool mixes_tokens; /* a token of the result depends on other tokens too; all other ops work on each token separately */
  const struct ane_attr_spec *attrs;
  int n_attrs;
};
const struct ane_op_info *ane_op_info(ane_op op);
/* Returns the op of this name, or ANE_OP_COUNT. */
ane_op ane_op_from_name(const char *name);
/* Checks that `act` names an activation function of the ops glu and act. Errors: ANE_INVALID, which lists the names. */
ane_status ane_activation_check(const char *act, struct ane_error *err);

typedef enum { ANE_VALUE_INPUT, ANE_VALUE_CONST, ANE_VALUE_STATE, ANE_VALUE_RESULT } ane_value_kind;

struct ane_value {
  const char *name;
  ane_value_kind kind;
  ane_dtype dtype;
  struct ane_shape shape;
  int32_t node;           /* RESULT: the node that makes it; ANE_NONE: none */
  int32_t output;         /* RESULT: number among that node's outputs */
  struct ane_tensor data; /* CONST: borrowed; must outlive the graph and every program made of it */
};

struct ane_node {
  const char *name;
  ane_op op;
  bool dead; /* removed by a pass */
  int32_t n_inputs, n_outputs;
  int32_t *inputs, *outputs; /* value indices; an absent input is ANE_NONE */
  struct ane_attr *attrs;    /* as many as the op has, in its order */
};

struct ane_graph {
  const char *name;
  struct ane_value *values;
  int32_t n_values, room_values;
  struct ane_node *nodes;
  int32_t n_nodes, room_nodes;
  int32_t *results; /* values that the graph returns */
  int32_t n_results;
  struct ane_strmap names; /* of values */
  struct ane_arena arena;
};

/* Makes an empty graph; the name is copied. Errors: ANE_NOMEM. */
ane_status ane_graph_create(struct ane_graph **out, const char *name, struct ane_error *err);
void ane_graph_destroy(struct ane_graph *g); /* NULL is fine */

/* ---- Building: *out is the index of the new value -------------------------------------------------------------------*/

/* The functions that add a value fail with ANE_INVALID if the name is empty or taken, or with ANE_NOMEM. */
ane_status ane_graph_input(struct ane_graph *g, const char *name, ane_dtype t, const struct ane_shape *s, int32_t *out,
                           struct ane_error *err);
ane_status ane_graph_state(struct ane_graph *g, const char *name, const struct ane_shape *s, int32_t *out, struct ane_error *err);
/* Adds a weight. The same name with the same data gives the same value. */
ane_status ane_graph_const(struct ane_graph *g, const char *name, const struct ane_tensor *data, int32_t *out,
                           struct ane_error *err);

struct ane_attr_arg {
  const char *name;
  struct ane_attr value;
};
/* Adds a node at the end. inputs: value indices, ANE_NONE for an absent optional one. Attributes not given have their defaults;
 * an unknown one, or one of a wrong type, is an error that lists the choices. Output values are called name, name.1, ...; *out is
 * the first. Shapes are inferred and checked at once. */
ane_status ane_graph_add(struct ane_graph *g, ane_op op, const char *name, const int32_t *inputs, int n_inputs,
                         const struct ane_attr_arg *attrs, int n_attrs, int32_t *out, struct ane_error *err);
/* Sets the n values that the graph returns, instead of earlier ones. Errors: ANE_INVALID (not a value), ANE_NOMEM. */
ane_status ane_graph_set_results(struct ane_graph *g, const int32_t *values, int n, struct ane_error *err);

/* ---- Reading --------------------------------------------------------------------------------------------------------*/

/* Returns the attribute `name` of the node. The op must have it. */
const struct ane_attr *ane_node_attr(const struct ane_node *n, const char *name);
int64_t ane_node_int(const struct ane_node *n, const char *name);
double ane_node_float(const struct ane_node *n, const char *name);
const char *ane_node_string(const struct ane_node *n, const char *name);
/* Returns input i; ANE_NONE if it is absent or beyond the end. */
int32_t ane_node_input(const struct ane_node *n, int i);

/* Returns the number of uses of a value by living nodes and as a result of the graph. */
int32_t ane_graph_uses(const struct ane_graph *g, int32_t value);

/* ---- Changing (passes) ----------------------------------------------------------------------------------------------*/

/* Replaces the node at `index`: op, inputs and attributes as for ane_graph_add. outputs: existing RESULT values, which become
 * this node's in order; their shapes must equal the inferred ones. Nodes that lose all their outputs are dead. */
ane_status ane_graph_rewrite(struct ane_graph *g, int32_t index, ane_op op, const int32_t *inputs, int n_inputs,
                             const struct ane_attr_arg *attrs, int n_attrs, const int32_t *outputs, int n_outputs,
                             struct ane_error *err);
/* Replaces every use of `from` by `to`. */
void ane_graph_replace(struct ane_graph *g, int32_t from, int32_t to);
/* Removes dead nodes and sorts the others topologically. The sort is stable. Errors: ANE_INVALID (a cycle), ANE_NOMEM. */
ane_status ane_graph_compact(struct ane_graph *g, struct ane_error *err);

/* ---- The head (head.c), after the "cpu" pipeline ---------------------------------------------------------------------*/

/* Returns the linear node whose rows are the logits and which only ops on single logits follow. ANE_NONE: there is none, or its
 * weight is not stored by rows. */
int32_t ane_graph_head(const struct ane_graph *g);
/* Reduces the head to its rows [from, to), so that the result has the logits of these ids only, with the same bits. Errors:
 * ANE_UNSUPPORTED (ane_graph_head finds none), ANE_RANGE, ANE_NOMEM. After an error the graph may only be destroyed. */
ane_status ane_graph_slice_head(struct ane_graph *g, int64_t from, int64_t to, struct ane_error *err);

/* ---- Checking and printing ------------------------------------------------------------------------------------------*/

/* Checks the invariants: order, indices, unique names, arity, shapes equal to the inferred ones, existing results. */
ane_status ane_graph_verify(const struct ane_graph *g, struct ane_error *err);

/* Appends the stable text form, one line per input, state, constant and node:
 *   name = op(input, input, -) {attr=1} : fp32[1, 64, T, 1]
 * A node with several outputs lists all of them, each with its type. Attributes at their defaults are left out. Saved sessions
 * depend on this text. false: out of memory. */
bool ane_graph_print(const struct ane_graph *g, struct ane_buffer *out);

#endif
