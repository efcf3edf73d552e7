/* Recurrent states of sessions (session_recurrent.c). */
#ifndef ANE_EXEC_SESSION_RECURRENT_H
#define ANE_EXEC_SESSION_RECURRENT_H

#include "exec/session_internal.h"

/* Allocates the states and their copies; does nothing if the program has none. false: out of memory. */
bool recurrent_open(struct ane_session *s);
/* State number `state` after the session's tokens: [heads][n][width] floats. */
float *recurrent_state(const struct ane_session *s, int state);
/* Called before a run of n tokens: zeroes the states at the start of a sequence, otherwise may copy the current ones. */
void recurrent_begin(struct ane_session *s, int64_t n);
/* Restores the latest copy of at most `length` tokens and returns its number of tokens; 0: there is none, so all tokens must be
 * fed again. */
int64_t recurrent_rewind(struct ane_session *s, int64_t length);
/* Drops the copies, which belong to another sequence. */
void recurrent_forget(struct ane_session *s);

#endif
