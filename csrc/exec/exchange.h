/* Programs that divide each matrix of linear steps by rows: what they exchange after such a step. */
#ifndef ANE_EXEC_EXCHANGE_H
#define ANE_EXEC_EXCHANGE_H

#include "exec/planner.h"
#include "exec/thread_ctx.h"

/* Can the rows of this weight be divided over the ranks of the program? */
bool exchange_divides(const struct ane_program *p, const struct ane_tensor *weight);
/* Can the heads of this attention be divided? Then each rank multiplies the rows of q, k and v that belong to its own heads,
 * caches only the keys and values of these heads, and computes their attention. Only the result is exchanged. */
bool exchange_divides_heads(const struct planner *pl, const struct ane_node *n);
/* Reduces a matrix, before its layout is chosen, to the rows of this rank. */
void exchange_divide(const struct ane_program *p, struct matrix *m);
/* Finds the steps that exchange, and allocates the message. Call it after all steps are planned. Errors: ANE_NOMEM. */
ane_status exchange_plan(struct planner *pl, struct ane_error *err);
/* Sends this rank's rows of the step's outputs to all ranks, and receives theirs. Of the head, only rank 0 receives rows. tokens:
 * the tokens of the step. first_out_row: the output row that is the first of them, if the step belongs to the tail. Errors: those
 * of send, receive and wait (ane_tensor_parallel). */
ane_status exchange_step(struct run *r, const struct step *s, int64_t tokens, int64_t first_out_row, struct ane_error *err);

/* Sets [*from, *to) to the ids of the program's own rows of the head. For a run without logits (run.own_best). */
void exchange_own_ids(const struct ane_program *p, int64_t *from, int64_t *to);
/* Sends the best id and its logit of each output row [first, first + rows) to rank 0, which keeps the best of all ranks. Of equal
 * logits the lowest id is the best, as in one program. */
ane_status exchange_best(struct run *r, int64_t first, int64_t rows, struct ane_error *err);

#endif
