#include "platform/signals.h"

#include <pthread.h>
#include <stddef.h>

void ane_signals_block(sigset_t *before) {
  static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
  sigset_t blocked;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
  pthread_sigmask(SIG_BLOCK, &blocked, before);
}

void ane_signals_restore(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }
