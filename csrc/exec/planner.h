/* Planning makes a program from a graph. plan.c runs the builders, one per op; memplan.c assigns slots to values; plan_scratch.c
 * allocates scratch memory; weights.c packs matrices. */
#ifndef ANE_EXEC_PLANNER_H
#define ANE_EXEC_PLANNER_H

#include "exec/program_internal.h"

struct planner {
  struct ane_program *p;
  const struct ane_graph *g;
  int32_t *matrix_of;    /* by value: index of its matrix, or -1 */
  int32_t *kv_of;        /* by value of a K or V state: index of the layer's state, or -1 */
  int32_t *kv_made_of;   /* by value of a K or V state: the k or v that is written to it, or -1 */
  bool *kv_written;      /* by pair of K and V states: a step that the program has writes to it */
  int32_t *ring_of;      /* by value of a ring state: index of the ring, or -1 */
  int32_t *recurrent_of; /* by value of a recurrent state: its index, or -1 */
  bool *precise;         /* by value: the product that makes it takes precise activations */
  int32_t *step_of;      /* by node: index of its step in the body; n_body: the tail; n_body + 1: the head (stage.c) */
  bool *held;            /* by node: the program has its step. It is false only for nodes of other stages */
  int32_t n_body;
  int32_t from, to; /* the range of step_of that the program has: [from, to) */
};

/* Fills step s from node n. Errors: ANE_UNSUPPORTED, ANE_NOMEM. */
typedef ane_status (*plan_fn)(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);

/* The builders of op.def, each in step_<step>.c. plan_none, in plan.c, rejects the op. Several ops may share a builder. */
#define ANE_OP(id, name, kind, min, max, outs, tokens, infer, plan, ...)                                                         \
  ane_status plan_##plan(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
#include "graph/op.def"
#undef ANE_OP

/* A constant vector as fp32 in the program's arena, with `offset` added to each element. *out is NULL if the input is absent.
 * Errors: ANE_UNSUPPORTED (not a vector of a type with a decoder), ANE_INVALID (an element is not finite), ANE_NOMEM. */
ane_status planner_vector(struct planner *pl, int32_t value, float offset, const float **out, struct ane_error *err);
/* The matrix of a constant; weights_pack packs it later. input: the slot that it is multiplied by unchanged, or NULL. Errors:
 * those of weights_describe, ANE_UNSUPPORTED (not a constant). */
ane_status planner_matrix(struct planner *pl, int32_t value, const struct slot *input, const struct matrix **out,
                          struct ane_error *err);
/* The same. divide: the matrix has only the rows of this rank (exchange.c). ANE_UNSUPPORTED: another step uses the matrix whole.
 */
ane_status planner_rows(struct planner *pl, int32_t value, const struct slot *input, bool divide, const struct matrix **out,
                        struct ane_error *err);
/* The kernel of the act with this name (op.def). Errors: ANE_UNSUPPORTED. */
ane_status planner_act(const struct ane_kernels *k, const char *name, act_fn *act, struct ane_error *err);
/* The slot of a value. NULL if the input is absent. */
const struct slot *planner_slot(struct planner *pl, int32_t value);

/* memplan.c: gives every result value of the graph a slot. *bytes is the size of the activation arena. Errors: ANE_NOMEM. */
ane_status memplan(struct planner *pl, size_t *bytes, struct ane_error *err);

/* stage.c: fills step_of, held, n_body, from and to. Errors: ANE_INVALID (steps that the body does not have), ANE_NOMEM. */
ane_status stage_select(struct planner *pl, struct ane_error *err);
/* stage.c: finds the values that the stage receives and sends, and allocates the message. Call it after memplan. Errors:
 * ANE_NOMEM. */
ane_status stage_plan(struct planner *pl, struct ane_error *err);
/* Record facts that all stages of a program need. planner_limits (step_embed.c) records the limits of ids; planner_long_rope
 * (step_rope.c) records the length above which the long rope factors are used. Called for all nodes of the graph, also for those
 * whose steps the program does not have. */
ane_status planner_limits(struct planner *pl, const struct ane_node *n, struct ane_error *err);
ane_status planner_long_rope(struct planner *pl, const struct ane_node *n, struct ane_error *err);

/* plan_scratch.c: allocates the scratch memory. activations: bytes of the activation arena. Errors: ANE_NOMEM. */
ane_status plan_scratch(struct ane_program *p, size_t activations, struct ane_error *err);

/* fingerprint.c: FNV-1a over the text of the graph, the bytes of every weight that the program holds (samples of large ones), and
 * their layouts and activation types. It decides whether a saved state fits. */
uint64_t fingerprint_graph(const struct planner *pl, const struct ane_buffer *text);
/* The fingerprint including the errors of re-encoded weights, which differ between schemes and between the importance data used.
 * */
uint64_t fingerprint_packed(const struct ane_program *p);

/* weights.c: chooses a matrix's layout and activation type. Errors: ANE_UNSUPPORTED, ANE_SHAPE; both name the weight. */
ane_status weights_describe(const struct ane_program *p, struct matrix *m, struct ane_error *err);
/* weights.c: allocates the slab and packs all matrices. Errors: ANE_INVALID (a rule that matches no matrix; an element that is
 * not finite), ANE_SHAPE, ANE_NOMEM. */
ane_status weights_pack(struct ane_program *p, struct ane_error *err);

#endif
