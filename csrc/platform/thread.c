/* The pool. Its threads meet at gates: whoever comes last opens the gate for all. */
#include "platform/platform_internal.h"

#include "base/alloc.h"

#include <stdatomic.h>

/* Waiting is a short spin, then sleep. The spin is about 50 us: long enough for the meetings inside a forward pass, short
 * enough that an idle program uses no CPU. A worker that waits to be called into a step spins longer, since steps over a long
 * prompt take milliseconds. */
enum { SPIN_CHECKS = 40, SPIN_PAUSES = 32 };
#define SPIN_SECONDS 50e-6
#define CALL_SECONDS 1e-3
/* A thread whose CPU time stands still for this long does not run. */
#define STILL_SECONDS 30e-6
/* The caller looks again whether those it waits for still run. */
#define LOOK_SECONDS 1e-3
/* So long after the last late worker all may stand anywhere again. */
#define CALM_SECONDS 1.0
/* A caller that is without a CPU for more than this share of so much time is disturbed. */
#define CROWDED_SHARE 0.2
#define WEIGH_SECONDS 20e-3

enum { OUT, IN };

/* A thread of the pool; 0 is the caller. */
struct seat {
  _Alignas(64) _Atomic int state; /* IN: takes part; changed by who closes a meeting, between steps */
  _Atomic uint32_t alive;         /* OUT: the generation of `next` that it has seen awake */
  _Atomic uint64_t met;           /* meetings it has come to */
  _Atomic bool late;              /* off the CPU while others wait: fetched by the caller, and OUT from the next step on */
  uint32_t since;                 /* the generation of `next` from which it is IN */
  int number;                     /* among those that take part */
  bool kept_off;                  /* it may not stand on the caller's CPU */
  double used;                    /* CPU time when the caller looked; -1: it is not waited for */
  pthread_t thread;
};

struct ane_pool {
  enum ane_pool_manner manner;
  int threads, seats; /* asked for; started, with the caller */
  bool spin, look;    /* waiting; after late workers */
  struct seat *seat;
  void *memory;
  struct gate meet, next; /* inside a step; between steps */
  _Atomic int arrived;
  _Atomic uint64_t meetings;
  _Atomic bool running, quit;
  _Atomic bool changes; /* who takes part may change at the next step */
  pthread_mutex_t turn; /* one run at a time */
  /* Changed between steps: */
  const struct ane_pool_steps *work;
  int crew; /* how many take part */
  int64_t at;
  /* The caller's: */
  bool fetched, kept_off; /* a late worker is on the caller's CPU; some may not stand there */
  bool single, crowded;   /* the caller may stand on one CPU only; other programs take that from it as well */
  bool alone;             /* for such a reason nobody else takes part in this run */
  int cpu;                /* where the caller stood then */
  double fetched_at;
  double slept, wall, lost; /* in the run that goes on; in runs since `crowded` was decided: seconds, and those without a CPU */
};

static _Atomic int next_manner = ANE_POOL_FREE;

void ane_pool_manner(enum ane_pool_manner m) { atomic_store(&next_manner, m); }

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* ---- Gates -------------------------------------------------------------------------------------------------------*/

static bool gate_opened(struct gate *g, uint32_t seen) {
  return atomic_load_explicit(&g->generation, memory_order_acquire) != seen;
}

/* Is the generation no longer `seen`, after so many seconds at most? Meanwhile calls idle(arg, seat) until that gives false;
 * NULL: nothing to do. */
static bool gate_spin(struct gate *g, uint32_t seen, double seconds, ane_idle_fn idle, void *arg, int seat) {
  double end = 0;
  for (int check = 0;; check++) {
    for (int i = 0; i < SPIN_PAUSES; i++) {
      if (gate_opened(g, seen)) return true;
      if (!idle || !idle(arg, seat)) {
        idle = NULL;
        cpu_pause();
      }
    }
    if (check < SPIN_CHECKS) continue; /* asks for the time only when it has waited a little */
    double now = ane_clock();
    if (end == 0)
      end = now + seconds;
    else if (now > end)
      return false;
  }
}

/* ---- Who takes part -----------------------------------------------------------------------------------------------*/

/* Test hook: changes from step to step and from thread to thread, in no regular way. */
static bool mixed_in(const struct ane_pool *p, int i) {
  uint64_t x = (uint64_t)atomic_load(&p->meetings) * 0x9E3779B97F4A7C15u + (uint64_t)i * 0xBF58476D1CE4E5B9u;
  return (x ^ x >> 29) >> 13 & 1;
}

/* Decides who takes part from the next opening of `next` on: who does and is not late, and who has been seen awake since the last
 * one. Only while no other thread takes part or all have come. */
static void call_crew(struct ane_pool *p, bool all) {
  uint32_t now = atomic_load(&p->next.generation);
  bool mixed = p->manner == ANE_POOL_MIXED;
  int n = 1;
  atomic_store(&p->changes, mixed);
  for (int i = 1; i < p->seats; i++) {
    struct seat *s = &p->seat[i];
    bool was = atomic_load(&s->state) == IN, in = all || (was ? !atomic_load(&s->late) : atomic_load(&s->alive) == now);
    if (mixed && !all) in = mixed_in(p, i);
    if (p->alone) in = false;
    if (in) s->number = n++;
    if (in == was) continue;
    s->since = now + 1;
    atomic_store(&s->met, atomic_load(&p->meetings));
    atomic_store(&s->state, in ? IN : OUT);
  }
  p->crew = n;
}

static void dismiss(struct ane_pool *p) {
  atomic_store(&p->running, false);
  for (int i = 1; i < p->seats; i++) atomic_store(&p->seat[i].state, OUT);
}

/* By the last one to come. */
static void close_meeting(struct ane_pool *p, struct gate *g) {
  atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
  atomic_fetch_add(&p->meetings, 1);
  if (g == &p->next) {
    if (++p->at == p->work->count)
      dismiss(p);
    else if (atomic_load(&p->changes))
      call_crew(p, false);
  }
  if (!p->alone) gate_open(g);
}

/* ---- Late workers ------------------------------------------------------------------------------------------------*/

/* A worker that another program has put off its core is waited for by all, for some milliseconds. The caller has a core and
 * nothing to do, so it lets the worker finish its part of the step there; then that one leaves, stands where the caller does not,
 * and comes back when it gets a core. */

static bool is_missing(const struct ane_pool *p, const struct seat *s) {
  return atomic_load(&s->state) == IN && !atomic_load(&s->late) && atomic_load(&s->met) == atomic_load(&p->meetings);
}

/* Fetches those that are missing and do not run. */
static void fetch_late(struct ane_pool *p, struct gate *g, uint32_t seen) {
  for (int i = 1; i < p->seats; i++) p->seat[i].used = is_missing(p, &p->seat[i]) ? thread_used(p->seat[i].thread) : -1;
  if (gate_spin(g, seen, STILL_SECONDS, NULL, NULL, 0)) return;
  for (int i = 1; i < p->seats; i++) {
    struct seat *s = &p->seat[i];
    if (s->used < 0 || !is_missing(p, s) || thread_used(s->thread) != s->used || !thread_fetch(s->thread)) continue;
    atomic_store(&s->late, true);
    atomic_store(&p->changes, true);
    p->fetched = true;
  }
}

/* Worker i may stand anywhere but on the caller's CPU. */
static void keep_off(struct ane_pool *p, int i) {
  p->cpu = thread_cpu();
  p->kept_off = p->seat[i].kept_off = true;
  p->single = !thread_keep_off(p->seat[i].thread, p->cpu);
}

static void put_away(struct ane_pool *p) {
  p->fetched = false;
  p->fetched_at = ane_clock();
  for (int i = 1; i < p->seats; i++)
    if (atomic_load(&p->seat[i].late)) {
      keep_off(p, i);
      atomic_store(&p->seat[i].late, false);
    }
}

/* At the beginning of a run. */
static void settle(struct ane_pool *p) {
  bool calm = !p->crowded && ane_clock() > p->fetched_at + CALM_SECONDS;
  if (!calm && thread_cpu() == p->cpu) return;
  p->kept_off = p->single = false;
  for (int i = 1; i < p->seats; i++) {
    struct seat *s = &p->seat[i];
    if (!s->kept_off) continue;
    s->kept_off = false;
    if (calm)
      thread_keep_off(s->thread, -1);
    else
      keep_off(p, i);
  }
}

/* With as many busy programs as CPUs the caller loses its own as well. Two threads that each run half of the time seldom run
 * together, and get no more of the machine than one that moves to where there is room: workers rest until the caller runs
 * undisturbed. */
static void weigh(struct ane_pool *p, double wall, double used) {
  p->wall += wall;
  p->lost += wall - used - p->slept;
  if (p->wall < WEIGH_SECONDS) return;
  p->crowded = p->lost > CROWDED_SHARE * p->wall;
  p->wall = p->lost = 0;
}

/* The caller at a meeting. */
static void wait_for_workers(struct ane_pool *p, struct gate *g, uint32_t seen, ane_idle_fn idle, void *arg) {
  if (p->spin && !p->fetched && gate_spin(g, seen, SPIN_SECONDS, idle, arg, 0)) return;
  for (bool look = p->look && !p->fetched; !gate_opened(g, seen); look = p->look) {
    if (look) fetch_late(p, g, seen);
    double from = ane_clock();
    gate_sleep(g, seen, p->look ? LOOK_SECONDS : 0);
    p->slept += ane_clock() - from;
  }
}

/* ---- Meetings and runs --------------------------------------------------------------------------------------------*/

static void gate_wait(struct ane_pool *p, struct gate *g, uint32_t seen, ane_idle_fn idle, void *arg, int seat) {
  if (p->spin && gate_spin(g, seen, SPIN_SECONDS, idle, arg, seat)) return;
  gate_sleep(g, seen, 0);
}

static void meet(struct ane_pool *p, int i, struct gate *g, ane_idle_fn idle, void *arg) {
  if (p->crew == 1 && g == &p->meet) return;
  uint32_t seen = atomic_load_explicit(&g->generation, memory_order_relaxed);
  int last = p->crew - 1; /* once this thread has come, others may go on and change the crew */
  atomic_store_explicit(&p->seat[i].met, atomic_load_explicit(&p->meetings, memory_order_relaxed) + 1, memory_order_relaxed);
  if (atomic_fetch_add(&p->arrived, 1) == last)
    close_meeting(p, g);
  else if (i == 0)
    wait_for_workers(p, g, seen, idle, arg);
  else
    gate_wait(p, g, seen, idle, arg, i);
  if (i == 0 && p->fetched && g == &p->next) put_away(p);
}

void ane_pool_barrier(struct ane_pool *p, int seat) { meet(p, seat, &p->meet, NULL, NULL); }

/* Steps, as long as the seat is IN. */
static void take_part(struct ane_pool *p, int i) {
  struct seat *s = &p->seat[i];
  do {
    if (i > 0) gate_wait(p, &p->next, s->since - 1, NULL, NULL, i); /* called before the opening from which it holds */
    p->work->step(p->work->arg, p->at, s->number, p->crew, i);
    meet(p, i, &p->next, p->work->idle, p->work->idle_arg);
  } while (i > 0 ? atomic_load(&s->state) == IN : atomic_load(&p->running));
}

struct worker_arg {
  struct ane_pool *pool;
  int seat;
};

static void *worker(void *arg) {
  struct worker_arg w = *(struct worker_arg *)arg;
  ane_free(arg);
  struct ane_pool *p = w.pool;
  struct seat *s = &p->seat[w.seat];
  for (;;) {
    uint32_t seen = atomic_load(&p->next.generation);
    if (atomic_load(&s->state) == IN) {
      take_part(p, w.seat);
      continue;
    }
    if (atomic_load(&p->quit)) return NULL;
    atomic_store(&s->alive, seen);
    atomic_store(&p->changes, true);
    bool here = p->spin && !atomic_load(&s->late); /* else it is on the caller's CPU: that one waits for it */
    if (here && gate_spin(&p->next, seen, atomic_load(&p->running) ? CALL_SECONDS : SPIN_SECONDS, NULL, NULL, w.seat)) continue;
    if (!atomic_load(&p->running)) atomic_store(&s->alive, seen - 1); /* nobody shall wait until it has woken up */
    gate_sleep(&p->next, seen, 0);
  }
}

static bool start_seats(struct ane_pool *p, int n) {
  for (p->seats = 1; p->seats < n; p->seats++) {
    struct worker_arg *arg = ane_malloc(sizeof *arg);
    if (!arg) return false;
    *arg = (struct worker_arg){p, p->seats};
    atomic_store(&p->seat[p->seats].alive, UINT32_MAX);
    if (pthread_create(&p->seat[p->seats].thread, NULL, worker, arg) != 0) {
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
  int slots = ane_cpu_slots();
  p->threads = threads;
  p->spin = free || threads <= slots;
  p->look = free;
  p->seats = 1;
  gate_init(&p->meet);
  gate_init(&p->next);
  pthread_mutex_init(&p->turn, NULL);
  p->memory = ane_calloc((size_t)threads + 1, sizeof *p->seat);
  p->seat = (struct seat *)ane_align_up((uintptr_t)p->memory, _Alignof(struct seat));
  if (!p->memory || !start_seats(p, free ? ANE_MIN(threads, slots) : threads)) {
    int got = p->seats;
    ane_pool_destroy(p);
    return ane_fail(err, ANE_NOMEM, "cannot start %d threads: the system gave %d", threads, got);
  }
  *out = p;
  return ANE_OK;
}

void ane_pool_destroy(struct ane_pool *p) {
  if (!p) return;
  atomic_store(&p->quit, true);
  gate_open(&p->next);
  for (int i = 1; i < p->seats; i++) pthread_join(p->seat[i].thread, NULL);
  gate_destroy(&p->meet);
  gate_destroy(&p->next);
  pthread_mutex_destroy(&p->turn);
  ane_free(p->memory);
  ane_free(p);
}

int ane_pool_threads(const struct ane_pool *p) { return p->threads; }

static void run(struct ane_pool *p, const struct ane_pool_steps *work, bool all) {
  if (work->count < 1) return;
  pthread_mutex_lock(&p->turn);
  if (p->kept_off) settle(p); /* may let others take part again */
  bool weighed = p->kept_off;
  double from = weighed ? ane_clock() : 0, used = weighed ? thread_used(pthread_self()) : 0;
  p->slept = 0;
  p->alone = p->single || p->crowded;
  p->work = work;
  p->at = 0;
  atomic_store(&p->running, true);
  call_crew(p, all);
  if (!p->alone) gate_open(&p->next);
  take_part(p, 0);
  if (weighed) weigh(p, ane_clock() - from, thread_used(pthread_self()) - used);
  pthread_mutex_unlock(&p->turn);
}

void ane_pool_run_steps(struct ane_pool *p, const struct ane_pool_steps *work) { run(p, work, p->manner == ANE_POOL_TOGETHER); }

struct whole {
  ane_pool_fn fn;
  void *arg;
};

static void whole_step(void *arg, int64_t step, int thread, int threads, int seat) {
  const struct whole *w = arg;
  (void)step, (void)seat;
  w->fn(w->arg, thread, threads);
}

void ane_pool_run(struct ane_pool *p, ane_pool_fn fn, void *arg) {
  struct whole w = {fn, arg};
  run(p, &(struct ane_pool_steps){.count = 1, .step = whole_step, .arg = &w}, true);
}
