/* What a run of a stage exchanges with the stages before and after it. */
#ifndef ANE_EXEC_STAGE_H
#define ANE_EXEC_STAGE_H

#include "exec/program_internal.h"

/* stage_receive receives the values of `tokens` tokens from the stage before; stage_send sends values to the stage after. A
 * message holds one value after another, [tokens][channels] of fp32 or fp16. Both do nothing in a whole program and if there is
 * no such stage. Errors: those of the link. */
ane_status stage_receive(struct ane_program *p, int64_t tokens, struct ane_error *err);
ane_status stage_send(struct ane_program *p, int64_t tokens, struct ane_error *err);
/* Copies a block of output rows into the message of a stage that sends output rows: rows [first_row, first_row + rows) of the
 * n_rows rows of the run. Called once per block, before stage_send. */
void stage_pack_rows(struct ane_program *p, int64_t first_row, int64_t rows, int64_t n_rows);

#endif
