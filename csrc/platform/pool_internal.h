/* Internals of the thread pool: pool.c runs steps, migrate.c handles workers that lose their CPU, and thread_system.c wraps the
 * system calls of both. */
#ifndef ANE_PLATFORM_POOL_INTERNAL_H
#define ANE_PLATFORM_POOL_INTERNAL_H

#include "platform/platform.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- thread_system.c -------------------------------------------------------------------------------------------------*/

/* Threads wait until an event is signalled. Zero an event, then call event_init. */
struct event {
  _Atomic uint32_t generation; /* counts signals */
  _Atomic int sleepers;
#ifndef __linux__
  pthread_mutex_t mutex;
  pthread_cond_t cond;
#endif
};
void event_init(struct event *e);
void event_destroy(struct event *e);
/* Sleeps until the generation differs from `seen`. seconds > 0: for about that long at most; may return earlier. */
void event_sleep(struct event *e, uint32_t seen, double seconds);
/* Begins the next generation and wakes all sleepers. */
void event_signal(struct event *e);

/* CPU time of a thread in seconds; -1 where unknown. */
double thread_used(pthread_t t);
/* The CPU that this thread runs on; -1 where unknown. */
int thread_cpu(void);
/* Pins a thread to the CPU of the calling thread. false: not possible here. */
bool thread_pin_here(pthread_t t);
/* Lets a thread run on all CPUs that the calling thread may use, except `cpu`; -1: on all of them. false: `cpu` is the only one
 * and stays allowed. */
bool thread_exclude_cpu(pthread_t t, int cpu);

/* ---- pool.c ------------------------------------------------------------------------------------------------------------*/

enum { IDLE, ACTIVE };

/* A thread of the pool; worker 0 is the caller. */
struct worker {
  _Alignas(64) _Atomic int state; /* ACTIVE: takes part in steps; the last thread at a barrier changes it, between steps */
  _Atomic uint32_t awake;         /* IDLE: the generation of `next_step` that it last saw while awake */
  _Atomic uint64_t barriers;      /* number of the last barrier that it has reached */
  _Atomic bool preempted; /* it lacks a CPU while others wait, and the caller has migrated it. IDLE from the next step on */
  uint32_t since;         /* the generation of `next_step` from which it is ACTIVE */
  int thread;             /* number among the active threads */
  bool excluded;          /* may not run on the caller's CPU */
  double used;            /* its CPU time when the caller last looked; -1: not waited for */
  pthread_t handle;
};

struct ane_pool {
  enum ane_pool_manner manner;
  int threads, n_workers; /* threads requested; threads started, including the caller */
  bool spin, migrate;     /* waits spin before they sleep; preempted workers are migrated */
  struct worker *workers; /* in `memory`, aligned */
  void *memory;
  struct event inside, next_step; /* barriers inside a step; the barrier between steps */
  _Atomic int arrived;
  _Atomic uint64_t barriers; /* passed since the pool was created */
  _Atomic bool running, quit;
  _Atomic bool changes;     /* the active workers may change at the next step */
  pthread_mutex_t run_lock; /* one run at a time */
  /* Changed between steps only: */
  const struct ane_pool_steps *work;
  int active; /* number of active threads */
  int64_t at; /* current step */
  /* Used by the caller only (migrate.c): */
  bool migrated, excluded; /* a preempted worker is on the caller's CPU; some worker may not run there */
  bool one_cpu, contended; /* the caller may use only one CPU; other programs also compete for it */
  bool alone;              /* for one of these reasons no worker takes part in this run */
  int cpu;                 /* the caller's at the last exclusion */
  double migrated_at;
  double slept, wall, lost; /* seconds: slept in this run; duration and lost CPU time of the runs since `contended` was decided */
};

/* Spins until the generation differs from `seen`, for about `seconds` at most; false: it has not changed. Meanwhile calls
 * idle(arg, worker) until that returns false. idle NULL: nothing to do. */
bool event_spin(struct event *e, uint32_t seen, double seconds, ane_idle_fn idle, void *arg, int worker);
static inline bool event_signalled(struct event *e, uint32_t seen) {
  return atomic_load_explicit(&e->generation, memory_order_acquire) != seen;
}

enum { SPIN_CHECKS = 40, SPIN_PAUSES = 32 };
/* A wait spins this long, then sleeps. That is longer than waits at barriers inside a run take, and so short that an idle program
 * uses no CPU. */
#define SPIN_SECONDS 50e-6

/* In builds with ANE_POOL_STRESS (config=tsan) some calls sleep for up to 100 microseconds, so that threads meet in orders that
 * are rare otherwise. pool.c calls it at each arrival, each signal and each choice of the active workers. */
#ifdef ANE_POOL_STRESS
void pool_stray(void);
#else
static inline void pool_stray(void) {}
#endif

/* ---- migrate.c ---------------------------------------------------------------------------------------------------------*/

/* Waits at a barrier on the caller's thread and migrates preempted workers. */
void migrate_wait(struct ane_pool *p, struct event *e, uint32_t seen, ane_idle_fn idle, void *arg);
/* After a step with a migrated worker: takes it off the caller's CPU. */
void migrate_back(struct ane_pool *p);
/* At the beginning of a run: ends or renews exclusions from the caller's CPU. */
void migrate_begin(struct ane_pool *p);
/* At the end of a run of `wall` seconds, in which the caller had a CPU for `used` seconds: decides whether the caller is
 * contended. */
void migrate_end(struct ane_pool *p, double wall, double used);

#endif
