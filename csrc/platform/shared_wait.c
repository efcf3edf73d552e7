#include "platform/shared_wait.h"

#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef __linux__

/* Either ane_shared_set sees the sleeper, or the futex sees the new value, since both sides are sequentially consistent. */
void ane_shared_sleep(struct ane_shared_word *w, uint32_t seen, double seconds) {
  struct timespec most = {.tv_nsec = (long)(seconds * 1e9)};
  atomic_fetch_add(&w->sleepers, 1);
  syscall(SYS_futex, &w->value, FUTEX_WAIT, seen, &most, NULL, 0);
  atomic_fetch_sub(&w->sleepers, 1);
}

void ane_shared_set(struct ane_shared_word *w, uint32_t value) {
  atomic_store(&w->value, value);
  if (atomic_load(&w->sleepers) > 0) syscall(SYS_futex, &w->value, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

#else

void ane_shared_sleep(struct ane_shared_word *w, uint32_t seen, double seconds) {
  static const long MOST = 50000; /* nanoseconds */
  long n = (long)(seconds * 1e9);
  if (atomic_load(&w->value) == seen) (void)nanosleep(&(struct timespec){.tv_nsec = n < MOST ? n : MOST}, NULL);
}

void ane_shared_set(struct ane_shared_word *w, uint32_t value) { atomic_store(&w->value, value); }

#endif
