/* Prefetches weights while a thread waits at a barrier: those of the thread's first tasks in the next product. Only for single
 * tokens: their products are memory-bound, and the memory would be idle at every barrier and in every small step. */
#include "exec/thread_ctx.h"

enum { LOOKAHEAD_STEPS = 3, LINE = 64, LINES_PER_CALL = 4 };

void prefetch_begin(struct prefetch *a, const struct thread_ctx *tc, int32_t step) {
  a->at = a->n = 0;
  if (tc->tokens != 1) return;
  for (int32_t i = step + 1; a->n == 0 && i < ANE_MIN(step + 1 + LOOKAHEAD_STEPS, tc->p->n_steps); i++)
    if (tc->p->steps[i].prefetch) tc->p->steps[i].prefetch(tc, &tc->p->steps[i], a);
}

void prefetch_add(struct prefetch *a, const uint8_t *data, size_t bytes) {
  if (a->n == ANE_COUNT(a->part)) return;
  a->part[a->n].data = data;
  a->part[a->n++].end = data + bytes;
}

int64_t prefetch_calls(const struct prefetch *a) {
  int64_t n = 0;
  for (int i = a->at; i < a->n; i++) n += (a->part[i].end - a->part[i].data) / (LINE * LINES_PER_CALL) + 1;
  return n;
}

bool prefetch_more(struct prefetch *a) {
  if (a->at == a->n) return false;
  const uint8_t *p = a->part[a->at].data, *end = a->part[a->at].end;
  for (int i = 0; i < LINES_PER_CALL && p < end; i++, p += LINE) __builtin_prefetch(p, 0, 2);
  a->part[a->at].data = p;
  a->at += p >= end;
  return true;
}
