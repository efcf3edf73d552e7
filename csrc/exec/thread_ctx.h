/* What a step sees while it runs: the run, the thread context, tasks, barriers and prefetch. */
#ifndef ANE_EXEC_THREAD_CTX_H
#define ANE_EXEC_THREAD_CTX_H

#include "exec/program_internal.h"

/* One run, shared by its threads. Steps write only the results. */
struct run {
  struct ane_program *p;
  const struct ane_run_item *items;
  int32_t n_items;
  int64_t tokens;                                             /* of all items */
  const int32_t *ids, *types, *positions, *angles, *out_rows; /* struct token_lists */
  int64_t n_out_rows;
  const struct adapted *adapted; /* n_adapted items, ascending */
  int32_t n_adapted;
  float *results; /* [n_out_rows][vocab]; NULL: only the best ids are kept */
  int32_t *best;  /* [n_out_rows] */
  float *best_logit;
  const uint32_t *const *masks; /* [n_out_rows] */
  bool pruned;                  /* the head is pruned */
  bool own_best;      /* no logits are kept and the head is divided: each rank finds the best of its rows (exchange_best) */
  int64_t first_step; /* of the steps that the pool runs now */
  int64_t tail;       /* pool steps per block of output rows: program steps [n_body, n_steps), and the choice of the best ids */
  int32_t profiled;   /* current row of the profile; -1: none */
  double profiled_from;
  ane_tap_fn tap; /* NULL: none */
  void *tap_arg;
};

/* If the input of a linear step has at most ALONE_TOKENS tokens and ALONE_VALUES values in all, each thread prepares the whole
 * input for itself. With more values, dividing the work gains more than a barrier costs (measured with 2 threads). */
enum { ALONE_TOKENS = 8, ALONE_VALUES = 12288 };

/* A thread's view of the run. */
struct thread_ctx {
  struct run *r;
  struct ane_program *p;
  const struct ane_kernels *k;
  int thread, threads;   /* number among the threads of this step */
  int worker;            /* index in the pool, the same in every step */
  int64_t tokens;        /* of this step: all of the run, or a block of output rows */
  int64_t first_out_row; /* of this block */
  uint8_t *mem;          /* this thread's scratch */
};

/* Bytes of weights of a task with few tokens. Smaller tasks interrupt the stream of weights more often; larger ones divide the
 * load less evenly among the threads. */
enum { TASK_BYTES = 131072 };

/* The most row groups of a task: an epilogue's temporary holds no more rows. */
static inline int64_t thread_most_groups(const struct thread_ctx *tc) {
  return tc->p->temp_rows * (tc->p->o.chunk / tc->tokens) / ANE_GROUP;
}

/* The number of row groups that have about TASK_BYTES: at least one, at most thread_most_groups. */
static inline int64_t thread_few_groups(const struct thread_ctx *tc, size_t group_bytes) {
  const int64_t n = (int64_t)(TASK_BYTES / ANE_MAX(group_bytes, (size_t)1));
  return ANE_MIN(ANE_MAX(n, (int64_t)1), thread_most_groups(tc));
}

/* The value in a slot: [tokens][channels] floats. */
static inline float *thread_data(const struct thread_ctx *tc, const struct slot *slot) {
  if (slot->result) return tc->r->results ? tc->r->results + tc->first_out_row * tc->p->vocab : tc->p->result_block;
  return slot->common ? tc->p->common : (float *)(void *)(tc->p->scratch + slot->offset);
}

/* Waits until all threads of the step have arrived. What each wrote before the barrier is visible to all after it. */
static inline void thread_barrier(const struct thread_ctx *tc) { ane_pool_barrier(tc->p->pool, tc->worker); }

/* Takes the next value of one of the step's two counters, from 0. */
static inline int64_t thread_next(const struct thread_ctx *tc, const struct step *s, int counter) {
  return atomic_fetch_add_explicit(&tc->p->counters[2 * s->index + counter], 1, memory_order_relaxed);
}

/* Claims one of `total` tasks of the step's counter 0 or 1; -1: all are claimed. A thread first claims its own tasks, which are
 * consecutive, so that it reads memory contiguously. Then it steals from other threads. *stolen: 0 at first; then the distance to
 * the thread that it claims from. */
static inline int64_t thread_claim(const struct thread_ctx *tc, const struct step *s, int counter, int64_t total, int *stolen) {
  for (; *stolen < tc->threads; ++*stolen) {
    int owner = (tc->thread + *stolen) % tc->threads;
    int64_t from, to;
    ane_split(total, owner, tc->threads, &from, &to);
    _Atomic int64_t *claimed = &tc->p->claimed[owner * tc->p->claimed_stride + 2 * s->index + counter];
    if (from + atomic_load_explicit(claimed, memory_order_relaxed) >= to) continue;
    int64_t task = from + atomic_fetch_add_explicit(claimed, 1, memory_order_relaxed);
    if (task < to) return task;
  }
  return -1;
}

/* ---- Prefetch (prefetch.c) -------------------------------------------------------------------------------------------*/

/* Ranges of weights that a thread will read next. */
struct prefetch {
  _Alignas(64) int n;
  int at;
  struct {
    const uint8_t *data, *end;
  } part[1 + MAX_LINEAR];
};
enum { PREFETCH_BYTES = 65536 }; /* of all ranges: as much as a wait of some microseconds can fetch and the L2 cache holds */

/* Collects the first weights that the thread reads in the next steps after `step`, for a step of one token: those of the first of
 * these steps that has weights to prefetch. */
void prefetch_begin(struct prefetch *a, const struct thread_ctx *tc, int32_t step);
/* Adds a range. It is ignored if there is no room. */
void prefetch_add(struct prefetch *a, const uint8_t *data, size_t bytes);
/* The number of calls of prefetch_more that the collected ranges take. */
int64_t prefetch_calls(const struct prefetch *a);
/* Prefetches some cache lines. false: nothing is left. */
bool prefetch_more(struct prefetch *a);

/* ---- Input of products (step_linear.c) ---------------------------------------------------------------------------------*/

/* The products with B for the thread's own tasks. They are computed together, so that B is read contiguously (adapter.h). */
struct adapter_share {
  const struct step_parts *parts; /* NULL: the products are computed task by task */
  int64_t g0[MAX_LINEAR],
      g1[MAX_LINEAR];           /* row groups of each matrix of the step; empty: their products are computed task by task */
  const float *sum[MAX_LINEAR]; /* of the rows from group g0 on; NULL: not computed yet */
};

/* Input prepared for a product, by activation type. */
struct prepared {
  struct ane_activations a[ANE_ACTIVATION_COUNT];
  const float *low; /* the input multiplied by A of the sessions' adapters (adapter.h); NULL: no session of the run has any */
  bool divided;     /* low is still NULL: adapter_down_join returns it */
  struct adapter_share share;
};
/* Prepares the input of a linear step: of few tokens in the thread's own scratch (ALONE_TOKENS); of more together with the other
 * threads, ending with a barrier. */
void linear_prepare(struct thread_ctx *tc, const struct step *s, struct prepared *out);

/* ---- Tables (step_embed.c) ---------------------------------------------------------------------------------------------*/

/* The row of the table of an embed step for an id, type or position. */
int64_t embed_row(const struct step *s, int32_t number);
/* Checks that the table rows of the ids are finite, since int8 activations would hide a NaN. ANE_INVALID names the weight and the
 * row. */
ane_status embed_check(const struct ane_program *p, const int32_t *ids, int64_t n, struct ane_error *err);

#endif
