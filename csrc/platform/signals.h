/* Signals around the start of threads. */
#ifndef ANE_PLATFORM_SIGNALS_H
#define ANE_PLATFORM_SIGNALS_H

#include <signal.h>

/* Blocks all signals in the calling thread, except those that a fault raises in the thread itself (SIGBUS, SIGFPE, SIGILL,
 * SIGSEGV, SIGSYS, SIGTRAP). A thread created then inherits this mask, so that the signals of the process go to its host's
 * threads. Writes the mask before to *before. */
void ane_signals_block(sigset_t *before);
/* Restores the mask that ane_signals_block returned. */
void ane_signals_restore(const sigset_t *before);

#endif
