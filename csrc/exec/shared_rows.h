/* Messages between programs that divide matrices by rows, through memory that they share (struct ane_tensor_parallel). */
#ifndef ANE_EXEC_SHARED_ROWS_H
#define ANE_EXEC_SHARED_ROWS_H

#include "exec/program_internal.h"

/* Continues the count of messages in the shared memory. After p->team is set. */
void shared_rows_begin(struct ane_program *p);
/* The most floats of a message; 0: there is no shared memory. */
int64_t shared_rows_floats(const struct ane_program *p);
/* *out: where this rank's next message is written. Waits until all ranks have read the message that was there. */
ane_status shared_rows_place(struct ane_program *p, float **out, struct ane_error *err);
/* Gives the message that was written to the other ranks. Each rank posts every message, also one that no other rank takes. */
void shared_rows_post(struct ane_program *p);
/* *out: the message of a rank with the number of the last one that this rank has posted, valid until this rank posts the next.
 * Waits for it. Errors: those of team.wait. */
ane_status shared_rows_take(struct ane_program *p, int32_t rank, const float **out, struct ane_error *err);
/* A buffer that all ranks write and read, 128-byte aligned; NULL: there is no shared memory. *floats: its size. */
float *shared_rows_common(const struct ane_program *p, int64_t *floats);
/* Posts an empty message and waits until each rank has posted as many: what each wrote to the common buffer is then visible. */
ane_status shared_rows_meet(struct ane_program *p, struct ane_error *err);

#endif
