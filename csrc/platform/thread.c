#include "platform/platform.h"

#include "base/alloc.h"

#include <pthread.h>
#include <stdatomic.h>

/* Waiting is a short spin, then sleep on a condition variable. The spin is about 50 us: long enough for the meetings
 * inside a forward pass, short enough that an idle program uses no CPU. With more threads than cores spinning only takes
 * the core from the thread that is waited for, so it is left out. */
enum { SPIN_CHECKS = 40, SPIN_PAUSES = 32 };
#define SPIN_SECONDS 50e-6

struct gate {
  _Atomic uint32_t generation;
  _Atomic int sleepers;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
};

struct ane_pool {
  int threads, started;
  bool spin;
  pthread_t *workers;
  struct gate start, meet;
  _Atomic int arrived; /* at the barrier */
  _Atomic bool quit;
  pthread_mutex_t turn; /* one run at a time */
  ane_pool_fn fn;
  void *arg;
};

struct worker_arg {
  struct ane_pool *pool;
  int thread;
};

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void gate_init(struct gate *g) {
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->cond, NULL);
}

static void gate_destroy(struct gate *g) {
  pthread_cond_destroy(&g->cond);
  pthread_mutex_destroy(&g->mutex);
}

/* Returns once the generation is no longer `seen`. Spinning it calls idle(arg) until that gives false; NULL: nothing to do. */
static void gate_wait(struct gate *g, uint32_t seen, bool spin, ane_idle_fn idle, void *arg) {
  if (spin) {
    double end = 0;
    for (int check = 0;; check++) {
      for (int i = 0; i < SPIN_PAUSES; i++) {
        if (atomic_load_explicit(&g->generation, memory_order_acquire) != seen) return;
        if (!idle || !idle(arg)) {
          idle = NULL;
          cpu_pause();
        }
      }
      if (check < SPIN_CHECKS) continue; /* asks for the time only when it has waited a little */
      double now = ane_clock();
      if (end == 0) end = now + SPIN_SECONDS;
      else if (now > end) break;
    }
  }
  pthread_mutex_lock(&g->mutex);
  atomic_fetch_add(&g->sleepers, 1);
  while (atomic_load(&g->generation) == seen) pthread_cond_wait(&g->cond, &g->mutex);
  atomic_fetch_sub(&g->sleepers, 1);
  pthread_mutex_unlock(&g->mutex);
}

/* Either the opener sees the sleeper or the sleeper sees the new generation: both sides are sequentially consistent. */
static void gate_open(struct gate *g) {
  atomic_fetch_add(&g->generation, 1);
  if (atomic_load(&g->sleepers) > 0) {
    pthread_mutex_lock(&g->mutex);
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->mutex);
  }
}

void ane_pool_barrier(struct ane_pool *p) { ane_pool_barrier_idle(p, NULL, NULL); }

void ane_pool_barrier_idle(struct ane_pool *p, ane_idle_fn idle, void *arg) {
  if (p->threads == 1) return;
  uint32_t seen = atomic_load_explicit(&p->meet.generation, memory_order_relaxed);
  if (atomic_fetch_add(&p->arrived, 1) == p->threads - 1) {
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    gate_open(&p->meet);
  } else {
    gate_wait(&p->meet, seen, p->spin, idle, arg);
  }
}

static void *worker(void *arg) {
  struct worker_arg w = *(struct worker_arg *)arg;
  ane_free(arg);
  struct ane_pool *p = w.pool;
  for (uint32_t seen = 0;; seen++) {
    gate_wait(&p->start, seen, p->spin, NULL, NULL);
    if (atomic_load(&p->quit)) return NULL;
    p->fn(p->arg, w.thread, p->threads);
    ane_pool_barrier(p);
  }
}

ane_status ane_pool_create(struct ane_pool **out, int threads, struct ane_error *err) {
  *out = NULL;
  if (threads < 1 || threads > 1024) return ane_fail(err, ANE_INVALID, "threads is %d, not in 1 .. 1024", threads);
  struct ane_pool *p = ane_calloc(1, sizeof *p);
  if (!p) return ane_fail(err, ANE_NOMEM, "no memory for a thread pool");
  p->threads = threads;
  p->spin = threads <= ane_cpu_cores();
  gate_init(&p->start);
  gate_init(&p->meet);
  pthread_mutex_init(&p->turn, NULL);
  p->workers = ane_calloc((size_t)threads, sizeof *p->workers);
  for (int i = 1; p->workers && i < threads; i++) {
    struct worker_arg *arg = ane_malloc(sizeof *arg);
    if (!arg) break;
    *arg = (struct worker_arg){p, i};
    if (pthread_create(&p->workers[i], NULL, worker, arg) != 0) {
      ane_free(arg);
      break;
    }
    p->started++;
  }
  if (!p->workers || p->started != threads - 1) {
    int got = p->started + 1;
    ane_pool_destroy(p);
    return ane_fail(err, ANE_NOMEM, "cannot start %d threads: the system gave %d", threads, got);
  }
  *out = p;
  return ANE_OK;
}

void ane_pool_destroy(struct ane_pool *p) {
  if (!p) return;
  atomic_store(&p->quit, true);
  gate_open(&p->start);
  for (int i = 1; i <= p->started; i++) pthread_join(p->workers[i], NULL);
  gate_destroy(&p->start);
  gate_destroy(&p->meet);
  pthread_mutex_destroy(&p->turn);
  ane_free(p->workers);
  ane_free(p);
}

int ane_pool_threads(const struct ane_pool *p) { return p->threads; }

void ane_pool_run(struct ane_pool *p, ane_pool_fn fn, void *arg) {
  pthread_mutex_lock(&p->turn);
  if (p->threads == 1) {
    fn(arg, 0, 1);
  } else {
    p->fn = fn;
    p->arg = arg;
    gate_open(&p->start);
    fn(arg, 0, p->threads);
    ane_pool_barrier(p);
  }
  pthread_mutex_unlock(&p->turn);
}
