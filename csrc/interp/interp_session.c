/* Sessions: tokens in, logits out, states carried from call to call. */
#include "interp/interp_internal.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

struct ane_lm_session {
  struct ane_lm *lm;
  struct ane_dyn_memory memory;
  struct ane_dyn *states; /* one for each state of the model; either owners of their blocks, or the model's empty caches */
  int64_t length;
  struct ane_dyn logits; /* of the last feed: [.., rows, vocab], or empty */
  int64_t rows;
  bool best_only; /* ane_want_best_only: only the best ids of the rows are available */
};

/* ---- Creation and destruction --------------------------------------------------------------------------------------*/

static void drop_rows(struct ane_lm_session *s) {
  ane_dyn_drop(&s->memory, &s->logits);
  s->rows = 0;
}

/* Sets the states of an empty sequence. */
static void reset(struct ane_lm_session *s) {
  for (int32_t i = 0; i < s->lm->n_states; i++) {
    ane_dyn_drop(&s->memory, &s->states[i]);
    s->states[i] = s->lm->states[i].first;
    ane_dyn_keep(&s->states[i]); /* never the last owner: the model is one */
  }
  s->length = 0;
  drop_rows(s);
}

ane_status ane_lm_session_create(struct ane_lm_session **out, struct ane_lm *m, struct ane_error *err) {
  *out = NULL;
  struct ane_lm_session *s = ane_calloc(1, sizeof *s);
  if (!s || !(s->states = ane_calloc((size_t)m->n_states + 1, sizeof *s->states))) {
    ane_free(s);
    return interp_no_memory(err);
  }
  s->lm = m;
  ane_dyn_memory_use(&s->memory, m->graph->memory.budget);
  reset(s);
  *out = s;
  return ANE_OK;
}

void ane_lm_session_destroy(struct ane_lm_session *s) {
  if (!s) return;
  for (int32_t i = 0; i < s->lm->n_states; i++) ane_dyn_drop(&s->memory, &s->states[i]);
  drop_rows(s);
  ane_dyn_memory_free(&s->memory);
  ane_free(s->states);
  ane_free(s);
}

int64_t ane_lm_length(const struct ane_lm_session *s) { return s->length; }

/* ---- Feeds ---------------------------------------------------------------------------------------------------------*/

/* Makes n integers of the type that input i declares: the values of ids, or, if ids is NULL, from, from + step, ... */
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

/* Returns the declared rank of an input that holds a length: 0 for a number, 1 for a list of one. */
static int32_t length_rank(const struct ane_lm *m, int32_t i) { return ane_interp_input(m->graph, i)->rank == 1 ? 1 : 0; }

static ane_status fill_inputs(struct ane_lm_session *s, const int32_t *ids, int64_t n, ane_want want, struct ane_dyn *in,
                              struct ane_error *err) {
  const struct ane_lm *m = s->lm;
  ane_status st = integers(s, m->ids, 2, n, 0, 0, ids, &in[m->ids], err);
  if (!st && m->mask >= 0) st = integers(s, m->mask, 2, s->length + n, 1, 0, NULL, &in[m->mask], err);
  if (!st && m->positions >= 0) st = integers(s, m->positions, 2, n, s->length, 1, NULL, &in[m->positions], err);
  if (!st && m->past_length >= 0)
    st = integers(s, m->past_length, length_rank(m, m->past_length), 1, s->length, 0, NULL, &in[m->past_length], err);
  if (!st && m->total_length >= 0)
    st = integers(s, m->total_length, length_rank(m, m->total_length), 1, s->length + n, 0, NULL, &in[m->total_length], err);
  int64_t rows = ane_want_rows(want, n);
  int32_t extra = ane_interp_info(m->graph).n_inputs;
  if (!st && m->trimmed) st = integers(s, extra, 1, rows, n - rows, 1, NULL, &in[extra], err);
  for (int32_t i = 0; !st && i < m->n_states; i++) {
    in[m->states[i].input] = s->states[i];
    ane_dyn_keep(&s->states[i]);
  }
  return st;
}

/* Checks the outputs of a run: enough rows of logits, and states of the declared shapes. */
static ane_status check_outputs(const struct ane_lm_session *s, const struct ane_dyn *out, int64_t n, ane_want want,
                                struct ane_error *err) {
  const struct ane_lm *m = s->lm;
  char text[ANE_DYN_TEXT];
  const struct ane_dyn *l = &out[m->logits];
  /* analyser: the outputs are those of a run that has not failed. */
  int64_t rows = l->count / m->vocab, least = ane_want_rows(want, n);
  if (l->dtype != ANE_F32 || l->rank < 1 || l->dim[l->rank - 1] != m->vocab || rows < least)
    return ane_fail(err, ANE_SHAPE, "logits must be rows of %" PRId64 ", but are %s for %" PRId64 " tokens", m->vocab,
                    ane_dyn_text(l, text), n);
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

static ane_status run(struct ane_lm_session *s, const int32_t *ids, int64_t n, ane_want want, struct ane_error *err) {
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
    s->rows = ane_want_rows(want, n);
    s->logits = out[m->logits];
    out[m->logits] = (struct ane_dyn){0};
    s->logits.data = (const float *)s->logits.data + (rows - s->rows) * m->vocab; /* keeps the last rows only */
    s->best_only = ane_want_best_only(want);
  }
  for (int32_t i = 0; in && i <= info.n_inputs; i++) ane_dyn_drop(&s->memory, &in[i]);
  for (int32_t i = 0; out && i < info.n_outputs; i++) ane_dyn_drop(&s->memory, &out[i]);
  ane_free(in);
  ane_free(out);
  return st;
}

ane_status ane_lm_feed(struct ane_lm_session *s, const int32_t *ids, int64_t n, ane_want want, struct ane_error *err) {
  const struct ane_lm *m = s->lm;
  if (n < 1 || n > m->chunk) return ane_fail(err, ANE_INVALID, "%" PRId64 " tokens at once, expected 1 .. %" PRId64, n, m->chunk);
  if (n > m->context - s->length)
    return ane_fail(err, ANE_RANGE, "%" PRId64 " tokens after %" PRId64 " do not fit in a context of %" PRId64, n, s->length,
                    m->context);
  ane_status st = ane_ids_check(ids, n, m->vocab, s->length, err);
  if (st) return st;
  drop_rows(s);
  st = run(s, ids, n, want, err);
  if (!st) s->length += n;
  return st;
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

/* ---- States --------------------------------------------------------------------------------------------------------*/

int32_t ane_lm_states(const struct ane_lm *m) { return m->n_states; }
const char *ane_lm_state_name(const struct ane_lm *m, int32_t i) { return ane_interp_input(m->graph, m->states[i].input)->name; }
bool ane_lm_state_grows(const struct ane_lm *m, int32_t i) { return m->states[i].grows; }
const struct ane_dyn *ane_lm_state(const struct ane_lm_session *s, int32_t i) { return &s->states[i]; }

/* Returns the shape of state i after `length` tokens, without elements. */
static struct ane_dyn shape_of(const struct ane_lm *m, int32_t i, int64_t length) {
  struct ane_dyn t = {.dtype = ANE_F32, .rank = m->states[i].first.rank};
  memcpy(t.dim, m->states[i].first.dim, sizeof t.dim);
  if (m->states[i].grows) t.dim[2] = length;
  return t;
}

int64_t ane_lm_state_count(const struct ane_lm *m, int32_t i, int64_t length) {
  struct ane_dyn t = shape_of(m, i, length);
  int64_t count = 1;
  for (int32_t k = 0; k < t.rank; k++) count *= t.dim[k];
  return count;
}

/* Copies the first t->dim[2] rows of a state [1, heads, rows, width]. */
static void copy_rows(struct ane_dyn *t, const struct ane_dyn *from) {
  size_t row = (size_t)t->dim[3] * sizeof(float), heads = (size_t)(t->dim[0] * t->dim[1]), rows = (size_t)t->dim[2];
  for (size_t h = 0; h < heads; h++)
    memcpy((char *)ane_dyn_data(t) + h * rows * row, (const char *)from->data + h * (size_t)from->dim[2] * row, rows * row);
}

/* Makes state i after `length` tokens, from `data` or, if that is NULL, from the session's present state. */
static ane_status make_state(struct ane_lm_session *s, int32_t i, int64_t length, const float *data, struct ane_dyn *out,
                             struct ane_error *err) {
  const struct ane_dyn *old = &s->states[i];
  bool grows = s->lm->states[i].grows;
  if (!data && (!grows || old->dim[2] == length)) {
    /* analyser: ane_lm_put calls this only where `made` is allocated. */
    *out = *old;
    ane_dyn_keep(old);
    return ANE_OK;
  }
  struct ane_dyn t = shape_of(s->lm, i, length);
  if (!data && old->dim[2] < length)
    return ane_fail(err, ANE_RANGE, "length is %" PRId64 ", not in 0 .. %" PRId64, length, old->dim[2]);
  ane_status st = ane_dyn_alloc(&s->memory, &t, err);
  if (st) return st;
  if (data)
    memcpy(ane_dyn_data(&t), data, (size_t)ane_dyn_bytes(&t));
  else
    copy_rows(&t, old);
  /* analyser: as above. */
  *out = t;
  return ANE_OK;
}

ane_status ane_lm_put(struct ane_lm_session *s, int64_t length, const float *const *data, struct ane_error *err) {
  if (length == 0) return reset(s), ANE_OK;
  /* analyser: the caller has made the session, or its status is not ANE_OK. */
  struct ane_dyn *made = ane_calloc((size_t)s->lm->n_states + 1, sizeof *made);
  ane_status st = made ? ANE_OK : interp_no_memory(err);
  /* analyser: data is given, or the status is not ANE_OK. */
  for (int32_t i = 0; !st && i < s->lm->n_states; i++) st = make_state(s, i, length, data[i], &made[i], err);
  for (int32_t i = 0; made && i < s->lm->n_states; i++) {
    ane_dyn_drop(&s->memory, st ? &made[i] : &s->states[i]);
    if (!st) s->states[i] = made[i];
  }
  ane_free(made);
  if (st) return st;
  s->length = length;
  drop_rows(s);
  return ANE_OK;
}

ane_status ane_lm_copy(struct ane_lm_session **out, const struct ane_lm_session *s, struct ane_error *err) {
  ane_status st = ane_lm_session_create(out, s->lm, err);
  const float **data = st ? NULL : ane_calloc((size_t)s->lm->n_states + 1, sizeof *data);
  if (!st && !data) st = interp_no_memory(err);
  /* analyser: interp_no_memory() never returns ANE_OK. */
  for (int32_t i = 0; !st && i < s->lm->n_states; i++) data[i] = s->states[i].data;
  if (!st) st = ane_lm_put(*out, s->length, data, err);
  ane_free(data);
  if (st) ane_lm_session_destroy(*out), *out = NULL;
  return st;
}
