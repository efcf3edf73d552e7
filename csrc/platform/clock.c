/* The monotonic clock, and pauses. */
#include "platform/platform.h"

#include <sched.h>
#include <time.h>

double ane_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void ane_pause(double waited) {
  static const double SPIN = 50e-6, YIELD = 20e-3; /* seconds of waiting from which it yields, then sleeps */
  if (waited < SPIN) {
#if defined(__x86_64__) || defined(__i386__)
    for (int i = 0; i < 8; i++) __builtin_ia32_pause();
#elif defined(__aarch64__)
    for (int i = 0; i < 8; i++) __asm__ volatile("yield");
#endif
  } else if (waited < YIELD) {
    (void)sched_yield();
  } else {
    (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
}
