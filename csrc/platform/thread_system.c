/* What the pool asks of the system: sleep, and where threads stand. */
#include "platform/platform_internal.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <time.h>

/* ---- Sleep -------------------------------------------------------------------------------------------------------*/

#ifdef __linux__

/* No lock: a sleeper that has been woken but gets no core must not hold what the others need. */

void gate_init(struct gate *g) { (void)g; }
void gate_destroy(struct gate *g) { (void)g; }

void gate_sleep(struct gate *g, uint32_t seen, double seconds) {
  struct timespec most = {.tv_nsec = (long)(seconds * 1e9)};
  atomic_fetch_add(&g->sleepers, 1);
  do syscall(SYS_futex, &g->generation, FUTEX_WAIT_PRIVATE, seen, seconds > 0 ? &most : NULL, NULL, 0);
  while (seconds <= 0 && atomic_load(&g->generation) == seen);
  atomic_fetch_sub(&g->sleepers, 1);
}

/* Either the opener sees the sleeper or the sleeper sees the new generation: both sides are sequentially consistent. */
void gate_open(struct gate *g) {
  atomic_fetch_add(&g->generation, 1);
  if (atomic_load(&g->sleepers) > 0) syscall(SYS_futex, &g->generation, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

#else

void gate_init(struct gate *g) {
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->cond, NULL);
}

void gate_destroy(struct gate *g) {
  pthread_cond_destroy(&g->cond);
  pthread_mutex_destroy(&g->mutex);
}

void gate_sleep(struct gate *g, uint32_t seen, double seconds) {
  (void)seconds; /* nobody looks after late threads here */
  pthread_mutex_lock(&g->mutex);
  atomic_fetch_add(&g->sleepers, 1);
  while (atomic_load(&g->generation) == seen) pthread_cond_wait(&g->cond, &g->mutex);
  atomic_fetch_sub(&g->sleepers, 1);
  pthread_mutex_unlock(&g->mutex);
}

void gate_open(struct gate *g) {
  atomic_fetch_add(&g->generation, 1);
  if (atomic_load(&g->sleepers) > 0) {
    pthread_mutex_lock(&g->mutex);
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->mutex);
  }
}

#endif

/* ---- Where threads stand -----------------------------------------------------------------------------------------*/

#ifdef __linux__

double thread_used(pthread_t t) {
  clockid_t clock;
  struct timespec used;
  if (pthread_getcpuclockid(t, &clock) != 0 || clock_gettime(clock, &used) != 0) return -1;
  return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

int thread_cpu(void) { return sched_getcpu(); }

bool thread_fetch(pthread_t t) {
  int cpu = sched_getcpu();
  cpu_set_t here;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_ZERO(&here);
  CPU_SET(cpu, &here);
  return pthread_setaffinity_np(t, sizeof here, &here) == 0;
}

bool thread_keep_off(pthread_t t, int cpu) {
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
bool thread_fetch(pthread_t t) { return (void)t, false; }
bool thread_keep_off(pthread_t t, int cpu) { return (void)t, (void)cpu, true; }

#endif
