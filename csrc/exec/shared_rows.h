/* Messages between programs that divide matrices by rows, through memory that they share (struct ane_tensor_parallel). */
#ifndef ANE_EXEC_SHARED_ROWS_H
#define ANE_EXEC_SHARED_ROWS_H

#include "exec/program_internal.h"

/* Continues the count of messages in the shared memory. Call it after p->team is set. */
void shared_rows_begin(struct ane_program *p);
/* The most floats of a message; 0: there is no shared memory. */
int64_t shared_rows_floats(const struct ane_program *p);
/* Sets *out to the place of this rank's next message. Waits until all ranks have read the message that was there. Errors: those
 * of team.wait. */
ane_status shared_rows_place(struct ane_program *p, float **out, struct ane_error *err);
/* Posts the message that was written to that place, so that the other ranks can read it. Each rank posts every message, also one
 * that no other rank takes. */
void shared_rows_post(struct ane_program *p);
/* Waits for the message of another rank that has the number of the last message that this rank has posted. Sets *out to it; it is
 * valid until this rank posts the next one. Errors: those of team.wait. */
ane_status shared_rows_take(struct ane_program *p, int32_t rank, const float **out, struct ane_error *err);
/* A buffer that all ranks write and read, 128-byte aligned; NULL: there is no shared memory. *floats: its size. */
float *shared_rows_common(const struct ane_program *p, int64_t *floats);
/* Posts an empty message and waits until each rank has posted as many messages. Then all that the ranks wrote to the common
 * buffer is visible. Errors: those of team.wait. */
ane_status shared_rows_meet(struct ane_program *p, struct ane_error *err);

#endif
