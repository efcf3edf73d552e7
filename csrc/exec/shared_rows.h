/* Messages between programs that divide matrices by rows, through memory that they share (struct ane_tensor_parallel). */
#ifndef ANE_EXEC_SHARED_ROWS_H
#define ANE_EXEC_SHARED_ROWS_H

#include "exec/program_internal.h"

/* Reads the number of messages that this rank has posted so far, in earlier programs, from the shared memory. Call it after
 * p->team is set. */
void shared_rows_begin(struct ane_program *p);
/* The most floats of a message; 0: there is no shared memory. */
int64_t shared_rows_floats(const struct ane_program *p);
/* Sets *out to the buffer of this rank's next message, shared_rows_floats floats. Waits until all ranks have read the message
 * that the buffer held. Errors: those of team.wait. */
ane_status shared_rows_buffer(struct ane_program *p, float **out, struct ane_error *err);
/* Posts the message in that buffer, so that the other ranks can read it. Each rank posts every message, also one that no other
 * rank reads. */
void shared_rows_post(struct ane_program *p);
/* Waits for the message of another rank whose number is that of the last message that this rank has posted, and sets *out to it.
 * The message is valid until this rank posts the next one. Errors: those of team.wait. */
ane_status shared_rows_receive(struct ane_program *p, int32_t rank, const float **out, struct ane_error *err);
/* Returns the common buffer, which all ranks write and read, 128-byte aligned; NULL: there is no shared memory. *floats: its
 * size.
 */
float *shared_rows_common(const struct ane_program *p, int64_t *floats);
/* A barrier of all ranks: posts an empty message and waits until each rank has posted as many messages. Everything that the ranks
 * wrote to the common buffer before is then visible. Errors: those of team.wait. */
ane_status shared_rows_barrier(struct ane_program *p, struct ane_error *err);

#endif
