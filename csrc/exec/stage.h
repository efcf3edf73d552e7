/* What a run of a stage exchanges with the stages before and after it. */
#ifndef ANE_EXEC_STAGE_H
#define ANE_EXEC_STAGE_H

#include "exec/program_internal.h"

/* Receives the values of `tokens` tokens from the stage before; sends them to the stage after. A message holds one value after
 * another, [tokens][channels] of fp32 or fp16. They do nothing in a whole program, and where there is no such stage. */
ane_status stage_receive(struct ane_program *p, int64_t tokens, struct ane_error *err);
ane_status stage_send(struct ane_program *p, int64_t tokens, struct ane_error *err);
/* Of a stage that sends output rows: puts the block of `rows` rows from first_row on into the message of all `all` rows. */
void stage_keep(struct ane_program *p, int64_t first_row, int64_t rows, int64_t all);

#endif
