/* The system calls of the pool: sleep and wake-up, CPU time and affinity of threads. */
#include "platform/pool_internal.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <time.h>

/* ---- Sleep -------------------------------------------------------------------------------------------------------*/

#ifdef __linux__

/* This uses a futex and no lock: a thread that has been woken but gets no CPU must not hold a lock that others need. */

void event_init(struct event *e) { (void)e; }
void event_destroy(struct event *e) { (void)e; }

void event_sleep(struct event *e, uint32_t seen, double seconds) {
  struct timespec most = {.tv_nsec = (long)(seconds * 1e9)};
  atomic_fetch_add(&e->sleepers, 1);
  do syscall(SYS_futex, &e->generation, FUTEX_WAIT_PRIVATE, seen, seconds > 0 ? &most : NULL, NULL, 0);
  while (seconds <= 0 && atomic_load(&e->generation) == seen);
  atomic_fetch_sub(&e->sleepers, 1);
}

/* Either the signalling thread sees the sleeper, or the sleeper sees the new generation, since both sides are sequentially
 * consistent. */
void event_signal(struct event *e) {
  atomic_fetch_add(&e->generation, 1);
  if (atomic_load(&e->sleepers) > 0) syscall(SYS_futex, &e->generation, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

#else

void event_init(struct event *e) {
  pthread_mutex_init(&e->mutex, NULL);
  pthread_cond_init(&e->cond, NULL);
}

void event_destroy(struct event *e) {
  pthread_cond_destroy(&e->cond);
  pthread_mutex_destroy(&e->mutex);
}

void event_sleep(struct event *e, uint32_t seen, double seconds) {
  (void)seconds; /* workers are never migrated here */
  pthread_mutex_lock(&e->mutex);
  atomic_fetch_add(&e->sleepers, 1);
  while (atomic_load(&e->generation) == seen) pthread_cond_wait(&e->cond, &e->mutex);
  atomic_fetch_sub(&e->sleepers, 1);
  pthread_mutex_unlock(&e->mutex);
}

void event_signal(struct event *e) {
  atomic_fetch_add(&e->generation, 1);
  if (atomic_load(&e->sleepers) > 0) {
    pthread_mutex_lock(&e->mutex);
    pthread_cond_broadcast(&e->cond);
    pthread_mutex_unlock(&e->mutex);
  }
}

#endif

/* ---- CPU time and affinity ---------------------------------------------------------------------------------------*/

#ifdef __linux__

double thread_used(pthread_t t) {
  clockid_t clock;
  struct timespec used;
  if (pthread_getcpuclockid(t, &clock) != 0 || clock_gettime(clock, &used) != 0) return -1;
  return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

int thread_cpu(void) { return sched_getcpu(); }

bool thread_pin_here(pthread_t t) {
  int cpu = sched_getcpu();
  cpu_set_t here;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_ZERO(&here);
  CPU_SET(cpu, &here);
  return pthread_setaffinity_np(t, sizeof here, &here) == 0;
}

bool thread_exclude_cpu(pthread_t t, int cpu) {
  cpu_set_t may;
  if (sched_getaffinity(0, sizeof may, &may) != 0) return true;
  bool elsewhere = CPU_COUNT(&may) > 1;
  if (cpu >= 0 && cpu < CPU_SETSIZE && elsewhere) CPU_CLR(cpu, &may);
  pthread_setaffinity_np(t, sizeof may, &may);
  return elsewhere;
}

#else

double thread_used(pthread_t t) { return (void)t, -1; }
int thread_cpu(void) { return -1; }
bool thread_pin_here(pthread_t t) { return (void)t, false; }
bool thread_exclude_cpu(pthread_t t, int cpu) { return (void)t, (void)cpu, true; }

#endif
