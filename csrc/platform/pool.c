/* The thread pool. Active threads run a step together and meet at a barrier after it. The last thread to arrive signals the
 * barrier's event. Between steps workers may become active or idle. */
#include "platform/pool_internal.h"

#include "base/alloc.h"
#include "platform/signals.h"

/* An idle worker spins this long for the next step: steps over a long prompt take milliseconds. */
#define IDLE_SPIN_SECONDS 1e-3

static _Atomic int next_manner = ANE_POOL_FREE;

void ane_pool_manner(enum ane_pool_manner m) { atomic_store(&next_manner, m); }

#ifdef ANE_POOL_STRESS
#include <time.h>

void pool_stray(void) {
  static _Atomic uint64_t count;
  uint64_t x = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) * 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9u;
  if (x >> 62 == 0) nanosleep(&(struct timespec){.tv_nsec = (long)(x >> 20 & 0x1FFFF) * 100000 / 0x1FFFF}, NULL);
}
#endif

/* ---- Waiting ---------------------------------------------------------------------------------------------------------*/

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

bool event_spin(struct event *e, uint32_t seen, double seconds, ane_idle_fn idle, void *arg, int worker) {
  double end = 0;
  for (int check = 0;; check++) {
    for (int i = 0; i < SPIN_PAUSES; i++) {
      if (event_signalled(e, seen)) return true;
      if (!idle || !idle(arg, worker)) {
        idle = NULL;
        cpu_pause();
      }
    }
    if (check < SPIN_CHECKS) continue; /* a short wait never reads the clock */
    double now = ane_clock();
    if (end == 0)
      end = now + seconds;
    else if (now > end)
      return false;
  }
}

static void event_wait(struct ane_pool *p, struct event *e, uint32_t seen, ane_idle_fn idle, void *arg, int worker) {
  if (p->spin && event_spin(e, seen, SPIN_SECONDS, idle, arg, worker)) return;
  event_sleep(e, seen, 0);
}

/* ---- Who is active -----------------------------------------------------------------------------------------------------*/

/* Test hook: changes from step to step and from worker to worker, irregularly. */
static bool mixed_active(const struct ane_pool *p, int i) {
  uint64_t x = (uint64_t)atomic_load(&p->barriers) * 0x9E3779B97F4A7C15u + (uint64_t)i * 0xBF58476D1CE4E5B9u;
  return (x ^ x >> 29) >> 13 & 1;
}

/* Chooses the workers that are active from the next signal of `next_step` on: those that are active now and not preempted, and
 * idle ones that have been awake since the last signal. all: every worker. Call it only while no other thread is active, or after
 * all have arrived. */
static void choose_active(struct ane_pool *p, bool all) {
  pool_stray();
  uint32_t now = atomic_load(&p->next_step.generation);
  bool mixed = p->manner == ANE_POOL_MIXED;
  int n = 1;
  atomic_store(&p->changes, mixed);
  for (int i = 1; i < p->n_workers; i++) {
    struct worker *w = &p->workers[i];
    bool was = atomic_load(&w->state) == ACTIVE;
    bool active = all || (was ? !atomic_load(&w->preempted) : atomic_load(&w->awake) == now);
    if (mixed && !all) active = mixed_active(p, i);
    if (p->alone) active = false;
    if (active) w->thread = n++;
    if (active == was) continue;
    w->since = now + 1;
    atomic_store(&w->barriers, atomic_load(&p->barriers));
    atomic_store(&w->state, active ? ACTIVE : IDLE);
  }
  p->active = n;
}

static void end_run(struct ane_pool *p) {
  atomic_store(&p->running, false);
  for (int i = 1; i < p->n_workers; i++) atomic_store(&p->workers[i].state, IDLE);
}

/* ---- Barriers ----------------------------------------------------------------------------------------------------------*/

/* Called by the last thread to arrive. */
static void pass_barrier(struct ane_pool *p, struct event *e) {
  atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
  atomic_fetch_add(&p->barriers, 1);
  if (e == &p->next_step) {
    if (++p->at == p->work->count)
      end_run(p);
    else if (atomic_load(&p->changes))
      choose_active(p, false);
  }
  pool_stray();
  if (!p->alone) event_signal(e);
}

static void barrier_wait(struct ane_pool *p, int i, struct event *e, ane_idle_fn idle, void *arg) {
  if (p->active == 1 && e == &p->inside) return;
  uint32_t seen = atomic_load_explicit(&e->generation, memory_order_relaxed);
  pool_stray();
  int last = p->active - 1; /* read first: once this thread has arrived, others may continue and change it */
  atomic_store_explicit(&p->workers[i].barriers, atomic_load_explicit(&p->barriers, memory_order_relaxed) + 1,
                        memory_order_relaxed);
  bool is_last = atomic_fetch_add(&p->arrived, 1) == last;
  pool_stray();
  if (is_last)
    pass_barrier(p, e);
  else if (i == 0)
    migrate_wait(p, e, seen, idle, arg);
  else
    event_wait(p, e, seen, idle, arg, i);
  if (i == 0 && p->migrated && e == &p->next_step) migrate_back(p);
}

void ane_pool_barrier(struct ane_pool *p, int worker) { barrier_wait(p, worker, &p->inside, NULL, NULL); }

/* ---- Threads -----------------------------------------------------------------------------------------------------------*/

/* Runs steps as long as the worker is active; on the caller, until the end of the run. */
static void run_steps(struct ane_pool *p, int i) {
  struct worker *w = &p->workers[i];
  do {
    if (i > 0) event_wait(p, &p->next_step, w->since - 1, NULL, NULL, i); /* it was chosen before that signal */
    p->work->step(p->work->arg, p->at, w->thread, p->active, i);
    barrier_wait(p, i, &p->next_step, p->work->idle, p->work->idle_arg);
  } while (i > 0 ? atomic_load(&w->state) == ACTIVE : atomic_load(&p->running));
}

struct worker_arg {
  struct ane_pool *pool;
  int worker;
};

static void *worker_main(void *arg) {
  struct worker_arg a = *(struct worker_arg *)arg;
  ane_free(arg);
  struct ane_pool *p = a.pool;
  struct worker *w = &p->workers[a.worker];
  for (;;) {
    uint32_t seen = atomic_load(&p->next_step.generation);
    pool_stray();
    if (atomic_load(&w->state) == ACTIVE) {
      run_steps(p, a.worker);
      continue;
    }
    if (atomic_load(&p->quit)) return NULL;
    atomic_store(&w->awake, seen);
    atomic_store(&p->changes, true);
    bool may_spin =
        p->spin && !atomic_load(&w->preempted); /* a preempted worker is on the caller's CPU, which the caller needs */
    double seconds = atomic_load(&p->running) ? IDLE_SPIN_SECONDS : SPIN_SECONDS;
    if (may_spin && event_spin(&p->next_step, seen, seconds, NULL, NULL, a.worker)) continue;
    if (!atomic_load(&p->running)) atomic_store(&w->awake, seen - 1); /* the next run must not wait for it to wake up */
    event_sleep(&p->next_step, seen, 0);
  }
}

/* Least stack of a worker. A kernel has up to 50 KiB of variables, and musl gives a thread 128 KiB. */
#define LEAST_STACK ((size_t)1 << 20)

/* Starts a worker with all signals blocked, except faults, so that the host's threads handle the signals of the process. */
static bool start_worker(pthread_t *handle, struct worker_arg *arg) {
  pthread_attr_t attributes;
  size_t stack;
  sigset_t before;
  if (pthread_attr_init(&attributes) != 0) return false;
  if (pthread_attr_getstacksize(&attributes, &stack) == 0 && stack < LEAST_STACK)
    pthread_attr_setstacksize(&attributes, LEAST_STACK);
  ane_signals_block(&before);
  bool started = pthread_create(handle, &attributes, worker_main, arg) == 0;
  ane_signals_restore(&before);
  pthread_attr_destroy(&attributes);
  return started;
}

static bool start_workers(struct ane_pool *p, int n) {
  for (p->n_workers = 1; p->n_workers < n; p->n_workers++) {
    struct worker_arg *arg = ane_malloc(sizeof *arg);
    if (!arg) return false;
    *arg = (struct worker_arg){p, p->n_workers};
    atomic_store(&p->workers[p->n_workers].awake, UINT32_MAX);
    if (!start_worker(&p->workers[p->n_workers].handle, arg)) {
      ane_free(arg);
      return false;
    }
  }
  return true;
}

ane_status ane_pool_create(struct ane_pool **out, int threads, struct ane_error *err) {
  *out = NULL;
  if (threads < 1 || threads > 1024) return ane_fail(err, ANE_INVALID, "threads is %d, not in 1 .. 1024", threads);
  struct ane_pool *p = ane_calloc(1, sizeof *p);
  if (!p) return ane_fail(err, ANE_NOMEM, "no memory for a thread pool");
  p->manner = atomic_load(&next_manner);
  bool free = p->manner == ANE_POOL_FREE;
  int cpus = ane_cpu_logical();
  p->threads = threads;
  p->spin = free || threads <= cpus;
  p->migrate = free;
  p->n_workers = 1;
  event_init(&p->inside);
  event_init(&p->next_step);
  pthread_mutex_init(&p->run_lock, NULL);
  p->memory = ane_calloc((size_t)threads + 1, sizeof *p->workers);
  p->workers = (struct worker *)ane_align_up((uintptr_t)p->memory, _Alignof(struct worker));
  if (!p->memory || !start_workers(p, free ? ANE_MIN(threads, cpus) : threads)) {
    int got = p->n_workers;
    ane_pool_destroy(p);
    return ane_fail(err, ANE_NOMEM, "cannot start %d threads: the system gave %d", threads, got);
  }
  *out = p;
  return ANE_OK;
}

void ane_pool_destroy(struct ane_pool *p) {
  if (!p) return;
  atomic_store(&p->quit, true);
  event_signal(&p->next_step);
  for (int i = 1; i < p->n_workers; i++) pthread_join(p->workers[i].handle, NULL);
  event_destroy(&p->inside);
  event_destroy(&p->next_step);
  pthread_mutex_destroy(&p->run_lock);
  ane_free(p->memory);
  ane_free(p);
}

int ane_pool_threads(const struct ane_pool *p) { return p->threads; }

/* ---- Runs --------------------------------------------------------------------------------------------------------------*/

static void run(struct ane_pool *p, const struct ane_pool_steps *work, bool all) {
  if (work->count < 1) return;
  pthread_mutex_lock(&p->run_lock);
  if (p->excluded) migrate_begin(p); /* may end the exclusion */
  bool measured = p->excluded;
  double from = measured ? ane_clock() : 0, used = measured ? thread_used(pthread_self()) : 0;
  p->slept = 0;
  p->alone = p->one_cpu || (p->contended && work->count > 1); /* a single step has one barrier: threads need not run together */
  p->work = work;
  p->at = 0;
  atomic_store(&p->running, true);
  choose_active(p, all);
  if (!p->alone) event_signal(&p->next_step);
  run_steps(p, 0);
  if (measured) migrate_end(p, ane_clock() - from, thread_used(pthread_self()) - used);
  pthread_mutex_unlock(&p->run_lock);
}

void ane_pool_run_steps(struct ane_pool *p, const struct ane_pool_steps *work) {
  run(p, work, work->all || p->manner == ANE_POOL_TOGETHER);
}

struct whole {
  ane_pool_fn fn;
  void *arg;
};

static void whole_step(void *arg, int64_t step, int thread, int threads, int worker) {
  const struct whole *w = arg;
  (void)step, (void)worker;
  w->fn(w->arg, thread, threads);
}

void ane_pool_run(struct ane_pool *p, ane_pool_fn fn, void *arg) {
  struct whole w = {fn, arg};
  run(p, &(struct ane_pool_steps){.count = 1, .step = whole_step, .arg = &w}, true);
}
