/* Migration of preempted workers. When another program takes the CPU of a worker, all threads wait for that worker, for some
 * milliseconds. The caller has a CPU but only waits, so it gives that CPU to the worker, which finishes its part of the step
 * there. The worker then leaves the run, may not use the caller's CPU for a second, and becomes active again when it gets another
 * CPU. */
#include "platform/pool_internal.h"

/* A thread whose CPU time has not advanced for this long has no CPU. */
#define STILL_SECONDS 30e-6
/* How often the caller looks for preempted workers. */
#define LOOK_SECONDS 1e-3
/* Exclusions from the caller's CPU end this long after the last migration. */
#define EXCLUDE_SECONDS 1.0
/* The caller is contended if it lacks a CPU for more than this share of CONTENTION_SECONDS. */
#define CONTENDED_SHARE 0.2
#define CONTENTION_SECONDS 20e-3

/* Do other threads wait for the worker at the current barrier? */
static bool is_missing(const struct ane_pool *p, const struct worker *w) {
  return atomic_load(&w->state) == ACTIVE && !atomic_load(&w->preempted) &&
         atomic_load(&w->barriers) == atomic_load(&p->barriers);
}

/* Migrates workers that are missing and have no CPU. */
static void migrate_missing(struct ane_pool *p, struct event *e, uint32_t seen) {
  for (int i = 1; i < p->n_workers; i++)
    p->workers[i].used = is_missing(p, &p->workers[i]) ? thread_used(p->workers[i].handle) : -1;
  if (event_spin(e, seen, STILL_SECONDS, NULL, NULL, 0)) return;
  for (int i = 1; i < p->n_workers; i++) {
    struct worker *w = &p->workers[i];
    if (w->used < 0 || !is_missing(p, w) || thread_used(w->handle) != w->used || !thread_pin_here(w->handle)) continue;
    atomic_store(&w->preempted, true);
    atomic_store(&p->changes, true);
    p->migrated = true;
  }
}

/* Lets worker i run on every CPU except the caller's. */
static void exclude(struct ane_pool *p, int i) {
  p->cpu = thread_cpu();
  p->excluded = p->workers[i].excluded = true;
  p->one_cpu = !thread_exclude_cpu(p->workers[i].handle, p->cpu);
}

void migrate_back(struct ane_pool *p) {
  p->migrated = false;
  p->migrated_at = ane_clock();
  for (int i = 1; i < p->n_workers; i++)
    if (atomic_load(&p->workers[i].preempted)) {
      exclude(p, i);
      atomic_store(&p->workers[i].preempted, false);
    }
}

void migrate_begin(struct ane_pool *p) {
  bool end = !p->contended && ane_clock() > p->migrated_at + EXCLUDE_SECONDS;
  if (!end && thread_cpu() == p->cpu) return;
  p->excluded = p->one_cpu = false;
  for (int i = 1; i < p->n_workers; i++) {
    struct worker *w = &p->workers[i];
    if (!w->excluded) continue;
    w->excluded = false;
    if (end)
      thread_exclude_cpu(w->handle, -1);
    else
      exclude(p, i);
  }
}

/* If there are as many busy programs as CPUs, the caller loses its CPU as well. Two threads that each run half of the time seldom
 * run simultaneously, and get no more of the machine than one thread that moves to free CPUs. So the workers stay idle in runs of
 * several steps until the caller runs undisturbed. */
void migrate_end(struct ane_pool *p, double wall, double used) {
  p->wall += wall;
  p->lost += wall - used - p->slept;
  if (p->wall < CONTENTION_SECONDS) return;
  p->contended = p->lost > CONTENDED_SHARE * p->wall;
  p->wall = p->lost = 0;
}

void migrate_wait(struct ane_pool *p, struct event *e, uint32_t seen, ane_idle_fn idle, void *arg) {
  if (p->spin && !p->migrated && event_spin(e, seen, SPIN_SECONDS, idle, arg, 0)) return;
  for (bool look = p->migrate && !p->migrated; !event_signalled(e, seen); look = p->migrate) {
    if (look) migrate_missing(p, e, seen);
    double from = ane_clock();
    event_sleep(e, seen, p->migrate ? LOOK_SECONDS : 0);
    p->slept += ane_clock() - from;
  }
}
