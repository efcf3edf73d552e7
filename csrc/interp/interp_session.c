/* Sessions: tokens in, logits out, caches carried from call to call. */
#include "interp/interp_lm.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- State ---------------------------------------------------------------------------------------------------------*/

void lm_drop_logits(struct ane_lm_session *s) {
  ane_dyn_drop(&s->memory, &s->logits);
  s->rows = 0;
}

/* The states of a sequence of length 0; forgets ids and logits too. */
static void reset(struct ane_lm_session *s) {
  for (int32_t i = 0; i < s->lm->n_states; i++) {
    ane_dyn_drop(&s->memory, &s->states[i]);
    s->states[i] = s->lm->states[i].first;
    ane_dyn_keep(&s->states[i]); /* never the last owner: that is the model */
  }
  s->length = 0;
  lm_drop_logits(s);
}

ane_status ane_lm_session_create(struct ane_lm_session **out, struct ane_lm *m, int64_t context, struct ane_error *err) {
  *out = NULL;
  if (context < 1 || context > m->context)
    return ane_fail(err, ANE_INVALID, "context is %" PRId64 ", not in 1 .. %" PRId64, context, m->context);
  struct ane_lm_session *s = ane_calloc(1, sizeof *s);
  if (!s || !(s->states = ane_calloc((size_t)m->n_states + 1, sizeof *s->states))) {
    ane_free(s);
    return interp_no_memory(err);
  }
  s->lm = m;
  s->context = context;
  s->memory.limit = m->graph->memory.limit;
  reset(s);
  *out = s;
  return ANE_OK;
}

void ane_lm_session_destroy(struct ane_lm_session *s) {
  if (!s) return;
  for (int32_t i = 0; i < s->lm->n_states; i++) ane_dyn_drop(&s->memory, &s->states[i]);
  lm_drop_logits(s);
  ane_dyn_memory_free(&s->memory);
  ane_free(s->states);
  ane_free(s->ids);
  ane_free(s);
}

int64_t ane_lm_length(const struct ane_lm_session *s) { return s->length; }
int64_t ane_lm_session_context(const struct ane_lm_session *s) { return s->context; }
const int32_t *ane_lm_ids(const struct ane_lm_session *s) { return s->ids; }
void ane_lm_stop(struct ane_lm_session *s) { atomic_store(&s->stop, true); }

uint64_t ane_lm_kv_bytes(const struct ane_lm_session *s) {
  uint64_t sum = 0;
  for (int32_t i = 0; s->length > 0 && i < s->lm->n_states; i++) sum += ane_dyn_bytes(&s->states[i]);
  return sum;
}

ane_status lm_reserve_ids(struct ane_lm_session *s, int64_t n, struct ane_error *err) {
  if (n <= s->room_ids) return ANE_OK;
  int64_t room = ANE_MAX(n, ANE_MIN(2 * s->room_ids, s->context));
  int32_t *ids = ane_realloc(s->ids, (size_t)room * sizeof *ids);
  if (!ids) return ane_fail(err, ANE_NOMEM, "no memory for %" PRId64 " tokens", room);
  s->ids = ids;
  s->room_ids = room;
  return ANE_OK;
}

/* ---- A call --------------------------------------------------------------------------------------------------------*/

/* Integers as input i wants them: from, from + step, ...; ids NULL, or their values. */
static ane_status integers(struct ane_lm_session *s, int32_t i, int32_t rank, int64_t n, int64_t from, int64_t step,
                           const int32_t *ids, struct ane_dyn *out, struct ane_error *err) {
  bool declared = i < ane_interp_info(s->lm->graph).n_inputs;
  ane_dtype t = declared && ane_interp_input(s->lm->graph, i)->dtype == ANE_I32 ? ANE_I32 : ANE_I64;
  *out = (struct ane_dyn){.dtype = t, .rank = rank};
  if (rank > 0) out->dim[0] = rank == 1 ? n : 1;
  if (rank > 1) out->dim[1] = n;
  ane_status st = ane_dyn_alloc(&s->memory, out, err);
  for (int64_t k = 0; !st && k < n; k++) {
    int64_t v = ids ? ids[k] : from + k * step;
    if (t == ANE_I32)
      ((int32_t *)ane_dyn_data(out))[k] = (int32_t)v;
    else
      ((int64_t *)ane_dyn_data(out))[k] = v;
  }
  return st;
}

/* Rank of a length as declared: a number, or a list of one. */
static int32_t length_rank(const struct ane_lm *m, int32_t i) { return ane_interp_input(m->graph, i)->rank == 1 ? 1 : 0; }

static ane_status fill_inputs(struct ane_lm_session *s, const int32_t *ids, int64_t n, ane_lm_want want, struct ane_dyn *in,
                              struct ane_error *err) {
  const struct ane_lm *m = s->lm;
  ane_status st = integers(s, m->ids, 2, n, 0, 0, ids, &in[m->ids], err);
  if (!st && m->mask >= 0) st = integers(s, m->mask, 2, s->length + n, 1, 0, NULL, &in[m->mask], err);
  if (!st && m->positions >= 0) st = integers(s, m->positions, 2, n, s->length, 1, NULL, &in[m->positions], err);
  if (!st && m->past_length >= 0)
    st = integers(s, m->past_length, length_rank(m, m->past_length), 1, s->length, 0, NULL, &in[m->past_length], err);
  if (!st && m->total_length >= 0)
    st = integers(s, m->total_length, length_rank(m, m->total_length), 1, s->length + n, 0, NULL, &in[m->total_length], err);
  int64_t rows = want == ANE_LM_NONE ? 0 : want == ANE_LM_LAST ? 1 : n;
  int32_t extra = ane_interp_info(m->graph).n_inputs;
  if (!st && m->trimmed) st = integers(s, extra, 1, rows, n - rows, 1, NULL, &in[extra], err);
  for (int32_t i = 0; !st && i < m->n_states; i++) {
    in[m->states[i].input] = s->states[i];
    ane_dyn_keep(&s->states[i]);
  }
  return st;
}

/* What the graph gave becomes the session's: rows of logits as wanted, states of the shapes that the model has. */
static ane_status check_outputs(const struct ane_lm_session *s, const struct ane_dyn *out, int64_t n, ane_lm_want want,
                                struct ane_error *err) {
  const struct ane_lm *m = s->lm;
  char text[ANE_DYN_TEXT];
  const struct ane_dyn *l = &out[m->logits];
  int64_t rows = l->count / m->vocab, least = want == ANE_LM_NONE ? 0 : want == ANE_LM_LAST ? 1 : n;
  if (l->dtype != ANE_F32 || l->rank < 1 || l->dim[l->rank - 1] != m->vocab || rows < least)
    return ane_fail(err, ANE_SHAPE, "logits are %s for %" PRId64 " tokens, wanted rows of %" PRId64, ane_dyn_text(l, text), n,
                    m->vocab);
  for (int32_t i = 0; i < m->n_states; i++) {
    const struct ane_dyn *t = &out[m->states[i].output], *first = &m->states[i].first;
    bool fits = t->dtype == ANE_F32 && t->rank == first->rank;
    for (int32_t k = 0; fits && k < t->rank; k++)
      fits = t->dim[k] == (m->states[i].grows && k == 2 ? s->length + n : first->dim[k]);
    if (!fits)
      return ane_fail(err, ANE_SHAPE, "output %.100s is %s after %" PRId64 " tokens",
                      ane_interp_output(m->graph, m->states[i].output)->name, ane_dyn_text(t, text), s->length + n);
  }
  return ANE_OK;
}

static ane_status run(struct ane_lm_session *s, const int32_t *ids, int64_t n, ane_lm_want want, struct ane_error *err) {
  struct ane_lm *m = s->lm;
  struct ane_interp_info info = ane_interp_info(m->graph);
  struct ane_dyn *in = ane_calloc((size_t)info.n_inputs + 1, sizeof *in),
                 *out = ane_calloc((size_t)info.n_outputs + 1, sizeof *out);
  ane_status st = in && out ? fill_inputs(s, ids, n, want, in, err) : interp_no_memory(err);
  if (!st) st = ane_interp_run(m->graph, &s->memory, in, out, err);
  if (!st) st = check_outputs(s, out, n, want, err);
  if (!st) {
    for (int32_t i = 0; i < m->n_states; i++) {
      struct ane_dyn *t = &out[m->states[i].output];
      ane_dyn_drop(&s->memory, &s->states[i]);
      s->states[i] = *t;
      *t = (struct ane_dyn){0};
    }
    int64_t rows = out[m->logits].count / m->vocab;
    s->rows = want == ANE_LM_NONE ? 0 : want == ANE_LM_LAST ? 1 : n;
    s->logits = out[m->logits];
    out[m->logits] = (struct ane_dyn){0};
    s->logits.data = (const float *)s->logits.data + (rows - s->rows) * m->vocab; /* the last ones, where there are more */
    s->best_only = want == ANE_LM_ARGMAX;
  }
  for (int32_t i = 0; in && i <= info.n_inputs; i++) ane_dyn_drop(&s->memory, &in[i]);
  for (int32_t i = 0; out && i < info.n_outputs; i++) ane_dyn_drop(&s->memory, &out[i]);
  ane_free(in);
  ane_free(out);
  return st;
}

ane_status ane_lm_feed(struct ane_lm_session *s, const int32_t *ids, int64_t n, ane_lm_want want, struct ane_error *err) {
  const struct ane_lm *m = s->lm;
  if (atomic_exchange(&s->stop, false)) return ane_fail(err, ANE_STOPPED, "stopped");
  if (n < 1 || n > m->chunk) return ane_fail(err, ANE_INVALID, "%" PRId64 " tokens at once, wanted 1 .. %" PRId64, n, m->chunk);
  if (n > s->context - s->length)
    return ane_fail(err, ANE_RANGE, "%" PRId64 " tokens after %" PRId64 " do not fit in a context of %" PRId64, n, s->length,
                    s->context);
  for (int64_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= m->vocab)
      return ane_fail(err, ANE_RANGE, "id %d is not in 0 .. %" PRId64, (int)ids[i], m->vocab - 1);
  ane_status st = lm_reserve_ids(s, s->length + n, err);
  if (st) return st;
  lm_drop_logits(s);
  st = run(s, ids, n, want, err);
  if (st) return st;
  memmove(s->ids + s->length, ids, (size_t)n * sizeof *ids); /* the session's own ids, where a rewind feeds them again */
  s->length += n;
  return ANE_OK;
}

/* ---- Results -------------------------------------------------------------------------------------------------------*/

int64_t ane_lm_rows(const struct ane_lm_session *s) { return s->rows; }

static const float *row_of(const struct ane_lm_session *s, int64_t row) {
  return row >= 0 && row < s->rows ? (const float *)s->logits.data + row * s->lm->vocab : NULL;
}

const float *ane_lm_logits(const struct ane_lm_session *s, int64_t row) { return s->best_only ? NULL : row_of(s, row); }

int32_t ane_lm_argmax(const struct ane_lm_session *s, int64_t row, float *logit) {
  const float *x = row_of(s, row);
  return x ? (int32_t)s->lm->graph->kernels->argmax(x, s->lm->vocab, logit) : -1;
}

/* ---- Back, and copies ----------------------------------------------------------------------------------------------*/

/* The first `length` positions of a cache [1, heads, rows, width]. */
static ane_status cut(struct ane_lm_session *s, const struct ane_dyn *from, int64_t length, struct ane_dyn *out,
                      struct ane_error *err) {
  *out = (struct ane_dyn){.dtype = ANE_F32, .rank = 4};
  memcpy(out->dim, from->dim, sizeof out->dim);
  out->dim[2] = length;
  ane_status st = ane_dyn_alloc(&s->memory, out, err);
  size_t row = (size_t)from->dim[3] * sizeof(float), heads = (size_t)(from->dim[0] * from->dim[1]);
  for (size_t h = 0; !st && h < heads; h++)
    memcpy((char *)ane_dyn_data(out) + h * (size_t)length * row, (const char *)from->data + h * (size_t)from->dim[2] * row,
           (size_t)length * row);
  return st;
}

static ane_status feed_again(struct ane_lm_session *s, int64_t length, struct ane_error *err) {
  reset(s);
  for (int64_t at = 0; at < length;) {
    int64_t n = ANE_MIN(length - at, s->lm->chunk);
    ane_status st = ane_lm_feed(s, s->ids + at, n, ANE_LM_NONE, err);
    if (st) return st;
    at += n;
  }
  return ANE_OK;
}

ane_status ane_lm_rewind(struct ane_lm_session *s, int64_t length, struct ane_error *err) {
  const struct ane_lm *m = s->lm;
  if (length < 0 || length > s->length)
    return ane_fail(err, ANE_RANGE, "length is %" PRId64 ", not in 0 .. %" PRId64, length, s->length);
  lm_drop_logits(s);
  if (length == s->length) return ANE_OK;
  if (length == 0) return reset(s), ANE_OK;
  for (int32_t i = 0; i < m->n_states; i++)
    if (!m->states[i].grows) return feed_again(s, length, err);
  struct ane_dyn *shorter = ane_calloc((size_t)m->n_states + 1, sizeof *shorter);
  ane_status st = shorter ? ANE_OK : interp_no_memory(err);
  for (int32_t i = 0; !st && i < m->n_states; i++) st = cut(s, &s->states[i], length, &shorter[i], err);
  for (int32_t i = 0; shorter && i < m->n_states; i++) {
    ane_dyn_drop(&s->memory, st ? &shorter[i] : &s->states[i]);
    if (!st) s->states[i] = shorter[i];
  }
  ane_free(shorter);
  if (!st) s->length = length;
  return st;
}

static ane_status copy_state(struct ane_lm_session *to, const struct ane_dyn *from, struct ane_dyn *out, struct ane_error *err) {
  struct ane_dyn copy = *from;
  ane_status st = ane_dyn_alloc(&to->memory, &copy, err);
  if (st) return st;
  memcpy(ane_dyn_data(&copy), from->data, (size_t)ane_dyn_bytes(from));
  ane_dyn_drop(&to->memory, out);
  *out = copy;
  return ANE_OK;
}

ane_status ane_lm_fork(struct ane_lm_session **out, const struct ane_lm_session *s, struct ane_error *err) {
  ane_status st = ane_lm_session_create(out, s->lm, s->context, err);
  if (st) return st;
  struct ane_lm_session *t = *out;
  st = lm_reserve_ids(t, s->length, err);
  for (int32_t i = 0; !st && s->length > 0 && i < s->lm->n_states; i++) st = copy_state(t, &s->states[i], &t->states[i], err);
  if (st) {
    ane_lm_session_destroy(t);
    *out = NULL;
    return st;
  }
  if (s->length) memcpy(t->ids, s->ids, (size_t)s->length * sizeof *t->ids);
  t->length = s->length;
  return ANE_OK;
}
