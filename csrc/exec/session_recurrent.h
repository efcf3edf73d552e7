/* Recurrent states of sessions (session_recurrent.c). */
#ifndef ANE_EXEC_SESSION_RECURRENT_H
#define ANE_EXEC_SESSION_RECURRENT_H

#include "exec/session_internal.h"

/* Allocates the states and their copies; false: no memory. Nothing where the program has none. */
bool recurrent_open(struct ane_session *s);
/* State number `state`, [n][width] floats. What it holds is for `length` tokens. */
float *recurrent_state(const struct ane_session *s, int state);
/* Before a run of n tokens: zeros at the start of a sequence, else perhaps a copy of where it is. */
void recurrent_begin(struct ane_session *s, int64_t n);
/* Goes back to the last copy of at most `length` tokens and gives their number; 0: there is none, all must be fed again. */
int64_t recurrent_rewind(struct ane_session *s, int64_t length);
/* The copies are of another sequence. */
void recurrent_forget(struct ane_session *s);

#endif
