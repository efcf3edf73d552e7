/* What a thread asks memory for while it waits for the others: the first weights of its share of the next product, for one
 * token. Such products wait for memory, which would rest at every meeting and in every small step. */
#include "exec/exec_internal.h"

enum { STEPS_ON = 3, LINE = 64, LINES_A_CALL = 4 };

void prefetch_begin(struct prefetch *a, const struct thread_ctx *tc, int32_t step) {
  a->at = a->n = 0;
  if (tc->cols != 1) return;
  for (int32_t i = step + 1; a->n == 0 && i < ANE_MIN(step + 1 + STEPS_ON, tc->p->n_steps); i++)
    if (tc->p->steps[i].prefetch) tc->p->steps[i].prefetch(tc, &tc->p->steps[i], a);
}

void prefetch_add(struct prefetch *a, const uint8_t *data, size_t bytes) {
  if (a->n == ANE_COUNT(a->part)) return;
  a->part[a->n].data = data;
  a->part[a->n++].end = data + bytes;
}

bool prefetch_more(struct prefetch *a) {
  if (a->at == a->n) return false;
  const uint8_t *p = a->part[a->at].data, *end = a->part[a->at].end;
  for (int i = 0; i < LINES_A_CALL && p < end; i++, p += LINE) __builtin_prefetch(p, 0, 2);
  a->part[a->at].data = p;
  a->at += p >= end;
  return true;
}
