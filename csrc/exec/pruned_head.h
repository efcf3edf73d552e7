/* The pruned head: the exact best ids of a few output rows without reading the whole LM head (pruned_head.c). */
#ifndef ANE_EXEC_PRUNED_HEAD_H
#define ANE_EXEC_PRUNED_HEAD_H

#include "exec/step.h"

struct candidate;
struct run;

/* Most output rows of a pruned run. Measured change of the tokens per second of sequences with random prompts and a head of 145
 * MB (Zen 5): two rows gain 5 %, three 6 %, four lose 2 %. */
enum { PRUNED_ROWS = 3 };

struct pruned_head {
  const struct ane_packed *matrix; /* NULL: this head is never pruned */
  int32_t step;                    /* the linear step; steps after it scale or cap the logits */
  float *bounds, *bases;           /* [PRUNED_ROWS][groups * 16] each, as the kernel upper_bound fills them */
  struct candidate *candidates;    /* [thread][PRUNED_ROWS] */
  float share;                     /* running mean: cost of a pruned head as a share of the whole product's */
  int pause, last_pause; /* runs until pruning is tried again; length of the last pause, 0: pruning has paid off since then */
  uint64_t pruned, read; /* runs whose head was pruned, and bytes of weights that they read */
};

/* Decides whether the head can be pruned and changes its layout. Call it before scratch is planned. */
void pruned_head_plan(struct ane_program *p);
/* Allocates the bounds and candidates, if the head can be pruned. Errors: ANE_NOMEM. */
ane_status pruned_head_reserve(struct ane_program *p, struct ane_error *err);
void pruned_head_free(struct ane_program *p);
/* Is the head pruned in this run? Call it once per run, because it counts the runs of a pause. */
bool pruned_head_applies(struct ane_program *p, const struct run *r);
/* Prefetches the weights for the bounds. A prefetch_fn. */
void pruned_head_prefetch(const struct thread_ctx *tc, const struct step *s, struct prefetch *a);
/* Runs the head's step, those after it and the choice of the best id. All threads call it. It ends with a barrier, after which
 * the result is written. */
void pruned_head_run(struct thread_ctx *tc);

#endif
