/* The recurrent states of a session: one per node, of a fixed size, accumulated over all tokens so far. Such a state cannot step
 * back, so the session keeps copies of earlier ones, each with the ring rows that belong to it. A rewind restores the latest copy
 * that is early enough and feeds the tokens after it again. */
#include "exec/session_recurrent.h"

#include "base/alloc.h"

#include <string.h>

enum { KEEP = 64 }; /* positions between copies: a rewind of up to this many has a copy nearby */

/* The number of floats in the ring rows that are copied with a state: those that the next token looks back to. */
static int64_t row_floats(const struct ane_program *p) {
  int64_t channels = 0;
  for (int32_t i = 0; i < p->n_rings; i++) channels += p->ring_channels[i];
  return p->n_rings ? channels * (p->ring_taps - 1) : 0;
}

static float *copy_at(const struct ane_session *s, int copy) {
  const struct ane_program *p = s->program;
  return s->recurrent + p->recurrent_floats * (1 + copy) + row_floats(p) * copy;
}

bool recurrent_open(struct ane_session *s) {
  const struct ane_program *p = s->program;
  recurrent_forget(s);
  if (!p->n_recurrent) return true;
  size_t floats = (size_t)(p->recurrent_floats * (1 + RECURRENT_COPIES) + row_floats(p) * RECURRENT_COPIES);
  s->recurrent = ane_calloc(floats, sizeof *s->recurrent);
  return s->recurrent != NULL;
}

float *recurrent_state(const struct ane_session *s, int state) { return s->recurrent + s->program->recurrent[state]; }

void recurrent_forget(struct ane_session *s) {
  for (int i = 0; i < RECURRENT_COPIES; i++) s->recurrent_at[i] = -1;
}

/* Copies the ring rows before position `pos` to `rows`; to_rings: back to the rings. */
static void copy_rows(const struct ane_session *s, float *rows, int64_t pos, bool to_rings) {
  const struct ane_program *p = s->program;
  for (int32_t ring = 0; ring < p->n_rings; ring++)
    for (int64_t at = pos - (p->ring_taps - 1); at < pos; at++, rows += p->ring_channels[ring]) {
      size_t bytes = (size_t)p->ring_channels[ring] * sizeof *rows;
      if (at < 0) continue;
      float *row = ring_at(s, ring, at);
      memcpy(to_rings ? row : rows, to_rings ? rows : row, bytes);
    }
}

void recurrent_begin(struct ane_session *s, int64_t n) {
  const struct ane_program *p = s->program;
  if (!p->n_recurrent) return;
  size_t bytes = (size_t)p->recurrent_floats * sizeof *s->recurrent;
  if (s->length == 0) {
    memset(s->recurrent, 0, bytes);
    recurrent_forget(s);
    return;
  }
  int64_t *at = s->recurrent_at;
  int last = at[1] > at[0];
  if (at[last] == s->length || (n == 1 && at[last] >= 0 && s->length - at[last] < KEEP)) return;
  /* The older copy stays until the newer one is far enough from it. */
  int to = at[!last] >= 0 && at[last] - at[!last] < KEEP ? last : !last;
  memcpy(copy_at(s, to), s->recurrent, bytes);
  copy_rows(s, copy_at(s, to) + p->recurrent_floats, s->length, false);
  at[to] = s->length;
}

int64_t recurrent_rewind(struct ane_session *s, int64_t length) {
  const struct ane_program *p = s->program;
  int best = -1;
  for (int i = 0; i < RECURRENT_COPIES; i++) {
    if (s->recurrent_at[i] > length) s->recurrent_at[i] = -1;
    if (s->recurrent_at[i] > 0 && (best < 0 || s->recurrent_at[i] > s->recurrent_at[best])) best = i;
  }
  if (best < 0) return 0;
  int64_t at = s->recurrent_at[best];
  memcpy(s->recurrent, copy_at(s, best), (size_t)p->recurrent_floats * sizeof *s->recurrent);
  copy_rows(s, copy_at(s, best) + p->recurrent_floats, at, true);
  if (p->n_rings) s->ring_low = ANE_MAX(at - (p->ring_taps - 1), (int64_t)0);
  return at;
}
