/* Runs a program: active threads run each step, then synchronise. */
#include "base/alloc.h"
#include "exec/session_recurrent.h"
#include "exec/exchange.h"
#include "exec/stage.h"
#include "exec/thread_ctx.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* From this number of tokens on, a run waits at its first step until sleeping threads are awake (ane_pool_steps.all). Steps then
 * take much longer than the wait. */
enum { ALL_TOKENS = 64 };

/* Steps of the pool: the body, then for each block of output rows the tail and find_best. In a run with a pruned head,
 * pruned_head_run replaces the head's step, the steps after it, and find_best. */

/* The program step of pool step `at`; n_steps means find_best. */
static int32_t step_of(const struct run *r, int64_t at) {
  const struct ane_program *p = r->p;
  return (int32_t)(at < p->n_body ? at : p->n_body + (at - p->n_body) % r->tail);
}

static bool is_pruned(const struct run *r, int32_t step) { return r->pruned && step == r->p->pruned_head.step; }

/* Clears the counters of a step that all threads have finished. */
static void reset_counters(const struct run *r, int64_t at) {
  struct ane_program *p = r->p;
  int32_t step = step_of(r, at);
  if (step == p->n_steps) return;
  for (int t = 0; t < p->o.threads; t++)
    for (int i = 0; i < 2; i++) atomic_store_explicit(&p->claimed[t * p->claimed_stride + 2 * step + i], 0, memory_order_relaxed);
  atomic_store_explicit(&p->counters[2 * step], 0, memory_order_relaxed);
  atomic_store_explicit(&p->counters[2 * step + 1], 0, memory_order_relaxed);
}

/* Ends the current profile row and begins row `step`; -1: none. */
static void profile_next(struct run *r, int32_t step) {
  double now = ane_clock();
  if (r->profiled >= 0) profile_step(r->p, r->profiled, r->profiled_from, now);
  r->profiled = step;
  r->profiled_from = now;
}

/* Called on thread 0 before each step. */
static void between_steps(struct run *r, int64_t at) {
  if (at > 0) reset_counters(r, at - 1);
  if (r->p->profile) profile_next(r, step_of(r, at));
}

static void tap_step(const struct thread_ctx *tc, const struct step *s) {
  thread_barrier(tc);
  for (int i = 0; tc->thread == 0 && i < MAX_LINEAR && s->out[i]; i++)
    tc->r->tap(tc->r->tap_arg, s->out[i]->name, thread_data(tc, s->out[i]), s->out[i]->tail ? tc->first_out_row : 0, tc->tokens,
               s->out[i]->channels);
}

/* Sets the logits of ids that are not in the mask to -infinity. */
static void ban(const uint32_t *mask, float *logits, int64_t n) {
  for (int64_t from = 0; from < n; from += 32) {
    const uint32_t bits = mask[from / 32];
    const int64_t to = ANE_MIN(from + 32, n);
    for (int64_t i = from; bits != UINT32_MAX && i < to; i++)
      if (!(bits >> (i - from) & 1)) logits[i] = -INFINITY;
  }
}

/* Finds the best id of each row of the block. The threads divide the rows. Rows with a mask are not kept, so their logits may
 * change. */
static void find_best(const struct thread_ctx *tc, int64_t rows) {
  float *x = thread_data(tc, tc->p->result);
  const int64_t vocab = tc->p->vocab;
  int64_t from = 0, to = vocab;
  if (tc->r->own_best) exchange_own_ids(tc->p, &from, &to);
  for (int64_t i = tc->thread; i < rows; i += tc->threads) {
    const int64_t row = tc->first_out_row + i;
    if (tc->r->masks[row]) ban(tc->r->masks[row], x + i * vocab, vocab);
    tc->r->best[row] = (int32_t)(from + tc->k->argmax(x + i * vocab + from, to - from, &tc->r->best_logit[row]));
  }
}

/* Ends a block of output rows: finds the best ids, or keeps what the head of other programs needs. */
static void finish_block(const struct thread_ctx *tc) {
  if (!tc->p->stage.rows)
    find_best(tc, tc->tokens);
  else if (tc->thread == 0)
    stage_pack_rows(tc->p, tc->first_out_row, tc->tokens, tc->r->n_out_rows);
}

/* The number of tokens of a pool step. *first_out_row: in the tail, the output row that is its first token; else 0. */
static int64_t tokens_of(const struct run *r, int64_t at, int64_t *first_out_row) {
  const struct ane_program *p = r->p;
  *first_out_row = at < p->n_body ? 0 : (at - p->n_body) / r->tail * OUT_ROWS_BLOCK;
  if (at < p->n_body) return r->tokens;
  return ANE_MIN(r->n_out_rows - *first_out_row, (int64_t)ANE_MIN(OUT_ROWS_BLOCK, p->o.chunk));
}

static void run_step(void *arg, int64_t at, int thread, int threads, int worker) {
  struct run *r = arg;
  struct ane_program *p = r->p;
  struct thread_ctx tc = {.r = r,
                          .p = p,
                          .k = p->k,
                          .thread = thread,
                          .threads = threads,
                          .worker = worker,
                          .mem = p->thread_mem + (size_t)worker * p->thread_bytes};
  struct prefetch *prefetch = &p->prefetch[worker];
  at += r->first_step;
  int32_t i = step_of(r, at);
  prefetch->at = prefetch->n = 0;
  if (thread == 0) between_steps(r, at);
  tc.tokens = tokens_of(r, at, &tc.first_out_row);
  if (i == p->n_steps) {
    finish_block(&tc);
  } else if (is_pruned(r, i)) {
    pruned_head_run(&tc);
  } else {
    struct step *s = &p->steps[i];
    s->run(&tc, s);
    if (p->profile && thread == 0 && s->cost) s->cost(&tc, s, &p->profile[i]);
    if (r->tap) tap_step(&tc, s);
    prefetch_begin(prefetch, &tc, i);
  }
}

static bool run_idle(void *program, int worker) { return prefetch_more(&((struct ane_program *)program)->prefetch[worker]); }

/* Must the ranks exchange rows after pool step `at`? If no logits are kept, they exchange their best ids instead of the head's
 * rows. */
static bool exchanges(const struct run *r, int64_t at) {
  const struct ane_program *p = r->p;
  int32_t i = step_of(r, at);
  if (!p->exchange) return false;
  if (i == p->n_steps) return r->own_best;
  return p->steps[i].exchanges && !(r->own_best && &p->steps[i] == p->divided_head);
}

/* Exchanges what pool step `at` has computed. */
static ane_status exchange(struct run *r, int64_t at, struct ane_error *err) {
  int64_t row, tokens = tokens_of(r, at, &row);
  int32_t i = step_of(r, at);
  return i == r->p->n_steps ? exchange_best(r, row, tokens, err) : exchange_step(r, &r->p->steps[i], tokens, row, err);
}

static ane_status run_all(struct run *r, struct ane_error *err) {
  struct ane_program *p = r->p;
  int64_t blocks = p->stage.last || p->stage.rows ? (r->n_out_rows + OUT_ROWS_BLOCK - 1) / OUT_ROWS_BLOCK : 0;
  r->own_best = p->divided_head && !r->results;
  r->tail = (r->pruned ? p->pruned_head.step : p->n_steps) + 1 - p->n_body;
  r->profiled = -1;
  int64_t count = p->n_body + blocks * r->tail;
  struct ane_pool_steps steps = {.step = run_step, .arg = r, .idle = run_idle, .idle_arg = p, .all = r->tokens >= ALL_TOKENS};
  ane_status st = p->team.shared ? p->team.begin(p->team.arg, err) : ANE_OK;
  for (; !st && r->first_step < count; r->first_step += steps.count) {
    int64_t last = r->first_step;
    while (last < count - 1 && !exchanges(r, last)) last++;
    steps.count = last + 1 - r->first_step;
    ane_pool_run_steps(p->pool, &steps);
    reset_counters(r, last);
    if (exchanges(r, last)) st = exchange(r, last, err);
  }
  if (p->profile) profile_next(r, -1);
  return st;
}

static int64_t out_rows_of(const struct ane_run_item *i) { return ane_want_rows(i->want, i->n); }

/* Does the run leave logits for this item? */
static bool keeps_logits(const struct ane_program *p, const struct ane_run_item *i) {
  return p->stage.last && (i->want == ANE_WANT_LAST || i->want == ANE_WANT_ALL);
}

static ane_status check_item(const struct ane_program *p, const struct ane_run_item *it, struct ane_error *err) {
  const struct ane_session *s = it->session;
  if (s->program != p) return ane_fail(err, ANE_INVALID, "the session belongs to another model");
  if (p->bidirectional && s->length > 0)
    return ane_fail(err, ANE_RANGE,
                    "this model sees tokens on both sides: it takes a whole sequence at once, from position 0 (rewind first)");
  if (p->bidirectional && (it->n > p->o.chunk || it->until > it->n))
    return ane_fail(err, ANE_RANGE,
                    "this model sees tokens on both sides: it takes a whole sequence in one run, not %" PRId64 " of %" PRId64
                    " ids; a run takes %" PRId64 " at most (cut the text)",
                    ANE_MIN(it->n, p->o.chunk), ANE_MAX(it->n, it->until), p->o.chunk);
  if (it->n < 1) return ane_fail(err, ANE_INVALID, "no ids to feed");
  if (it->mask && it->want != ANE_WANT_BEST)
    return ane_fail(err, ANE_INVALID, "a mask is for the best id of the last token only");
  if (it->n > s->context - s->length)
    return ane_fail(err, ANE_RANGE,
                    "context exceeded: %" PRId64 " positions are used and %" PRId64 " ids are fed, the session holds %" PRId64,
                    s->length, it->n, s->context);
  for (int64_t i = 0; it->types && p->n_types && i < it->n; i++)
    if (it->types[i] < 0 || it->types[i] >= p->n_types)
      return ane_fail(err, ANE_RANGE, "token type %" PRId32 " at position %" PRId64 " is not in 0 .. %" PRId64, it->types[i],
                      s->length + i, p->n_types - 1);
  ane_status st = ane_ids_check(it->ids, it->n, p->n_ids, s->length, err);
  return st ? st : embed_check(p, it->ids, it->n, err);
}

ane_status session_room(struct ane_session *s, int64_t rows, struct ane_error *err) {
  if (rows <= s->room_rows) return ANE_OK;
  size_t bytes;
  if (!ane_mul_size((size_t)rows * sizeof(float), (size_t)s->program->vocab, &bytes))
    return ane_fail(err, ANE_NOMEM, "too many logits");
  float *bigger = ane_realloc(s->logits, bytes); /* the old rows are kept: another item may still fail */
  if (!bigger) return ane_fail(err, ANE_NOMEM, "no memory for %" PRId64 " rows of logits (%zu bytes)", rows, bytes);
  s->logits = bigger;
  s->room_rows = rows;
  return ANE_OK;
}

/* Checks every item before any session changes. Until then only room for rows and pages is added. */
static ane_status check_items(struct ane_program *p, const struct ane_run_item *items, int32_t n, int64_t *tokens,
                              struct ane_error *err) {
  *tokens = 0;
  for (int32_t i = 0; i < n; i++) {
    ane_status st = check_item(p, &items[i], err);
    if (st) return st;
    *tokens += items[i].n;
    for (int32_t j = 0; j < i; j++)
      if (items[j].session == items[i].session) return ane_fail(err, ANE_INVALID, "a session occurs twice in one run");
  }
  if (*tokens > p->o.chunk) return ane_fail(err, ANE_RANGE, "%" PRId64 " ids in one run, at most %" PRId64, *tokens, p->o.chunk);
  for (int32_t i = 0; i < n; i++)
    if (atomic_exchange(&items[i].session->stop, false)) return ane_fail(err, ANE_STOPPED, "stopped");
  for (int32_t i = 0; i < n; i++) {
    struct ane_session *s = items[i].session;
    ane_status st = session_room(s, keeps_logits(p, &items[i]) ? out_rows_of(&items[i]) : 0, err);
    if (!st) st = state_own(s, s->length, items[i].n, err);
    if (st) return st;
  }
  return ANE_OK;
}

static void fill_lists(struct token_lists *c, struct run *r) {
  int64_t tok = 0;
  for (int32_t i = 0; i < r->n_items; i++) {
    const struct ane_run_item *it = &r->items[i];
    if (it->session->adapters.n)
      c->adapted[r->n_adapted++] = (struct adapted){.adapters = &it->session->adapters,
                                                    .from = tok,
                                                    .to = tok + it->n,
                                                    .row_from = r->n_out_rows,
                                                    .row_to = r->n_out_rows + out_rows_of(it)};
    for (int64_t j = 0; j < it->n; j++, tok++) {
      c->ids[tok] = it->ids[j];
      c->types[tok] = it->types ? it->types[j] : 0;
      c->positions[tok] = (int32_t)(it->session->length + j);
      c->angles[tok] = c->positions[tok] + (int32_t)it->session->origin;
      c->long_rope[tok] = it->session->long_rope;
      if (j < it->n - out_rows_of(it)) continue;
      c->masks[r->n_out_rows] = it->mask;
      c->out_rows[r->n_out_rows++] = (int32_t)tok;
    }
  }
  r->ids = c->ids;
  r->types = c->types;
  r->positions = c->positions;
  r->angles = c->angles;
  r->out_rows = c->out_rows;
  r->adapted = c->adapted;
  r->best = c->best;
  r->best_logit = c->best_logit;
  r->masks = c->masks;
}

/* Advances the sessions and stores their rows. */
static void finish(const struct run *r, const float *rows) {
  int64_t at = 0;
  for (int32_t i = 0; i < r->n_items; i++) {
    const struct ane_run_item *it = &r->items[i];
    struct ane_session *s = it->session;
    int64_t n = r->p->stage.last ? out_rows_of(it) : 0;
    memcpy(s->ids + s->length, it->ids, (size_t)it->n * sizeof *s->ids);
    for (int64_t page = s->length / ANE_TILE; page < (s->length + it->n) / ANE_TILE; page++) s->pages[page]->whole = true;
    s->length += it->n;
    if (r->p->n_rings) s->ring_low = ANE_MAX(s->ring_low, s->length - r->p->ring_length);
    s->rows = n;
    s->want = it->want;
    memcpy(s->best, r->best + at, (size_t)n * sizeof *s->best);
    memcpy(s->best_logit, r->best_logit + at, (size_t)n * sizeof *s->best_logit);
    if (keeps_logits(r->p, it)) {
      size_t bytes = (size_t)(n * r->p->vocab) * sizeof(float);
      if (rows && s->logits != rows) memcpy(s->logits, rows + at * r->p->vocab, bytes);
    }
    at += n;
  }
}

/* Runs items that have been checked. results: room for the logits of the output rows; NULL: only the best ids are kept. */
static ane_status run_items(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, float *results,
                            ane_tap_fn tap, void *tap_arg, struct ane_error *err) {
  struct run r = {.p = p, .items = items, .n_items = n_items, .results = results, .tap = tap, .tap_arg = tap_arg};
  for (int32_t i = 0; i < n_items; i++) {
    r.tokens += items[i].n;
    recurrent_begin(items[i].session, items[i].n);
  }
  ane_status st = stage_receive(p, r.tokens, err);
  if (st) return st;
  fill_lists(&p->token_lists, &r);
  r.pruned = !adapter_on_head(&r) && pruned_head_applies(p, &r);
  if ((st = run_all(&r, err))) return st;
  if ((st = stage_send(p, p->stage.rows ? r.n_out_rows : r.tokens, err))) return st;
  finish(&r, results);
  return ANE_OK;
}

ane_status run_replay(struct ane_session *s, int64_t from, int64_t length, struct ane_error *err) {
  struct ane_program *p = s->program;
  s->length = from;
  if (from == 0) s->ring_low = 0;
  s->rows = 0;
  while (s->length < length) {
    struct ane_run_item it = {.session = s, .ids = s->ids + s->length, .n = ANE_MIN(length - s->length, p->o.chunk)};
    if (atomic_exchange(&s->stop, false)) return ane_fail(err, ANE_STOPPED, "stopped");
    ane_status st = state_own(s, s->length, it.n, err);
    if (!st) st = run_items(p, &it, 1, NULL, NULL, NULL, err);
    if (st) return st;
    s->replayed += it.n;
  }
  return ANE_OK;
}

/* Chooses the rope factors of each item by the length that its feed will reach. */
static ane_status choose_rope(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, struct ane_error *err) {
  for (int32_t i = 0; p->long_rope_after && i < n_items; i++) {
    struct ane_session *s = items[i].session;
    bool long_rope = ANE_MAX(items[i].until, s->length + items[i].n) > p->long_rope_after;
    if (s->long_rope == long_rope) continue;
    s->long_rope = long_rope;
    ane_status st = run_replay(s, 0, s->length, err); /* does nothing if the session is empty */
    if (st) return st;
  }
  return ANE_OK;
}

/* Most bytes of logits that a program keeps between two runs of several sessions. New pages cost more than the copy out of them:
 * a pool of 32 replies needs 19 MB in each step if the model has 150,000 tokens. */
enum { COMMON_ROWS_KEPT = 64 << 20 };

static void free_common_rows(struct ane_program *p) {
  ane_free(p->common_rows);
  p->common_rows = NULL;
  p->common_rows_bytes = 0;
}

/* Memory for the logits of all rows of a run; NULL: there is none. The program owns it. */
static float *common_rows(struct ane_program *p, int64_t rows) {
  size_t bytes = (size_t)(rows * p->vocab) * sizeof(float);
  if (bytes <= p->common_rows_bytes) return p->common_rows;
  free_common_rows(p);
  if ((p->common_rows = ane_malloc(bytes))) p->common_rows_bytes = bytes;
  return p->common_rows;
}

/* Indices that threads take one by one. */
struct each {
  void (*fn)(void *arg, int64_t i, int thread);
  void *arg;
  int64_t n;
  _Atomic int64_t next;
};

static void each_thread(void *arg, int thread, int threads) {
  struct each *e = arg;
  (void)threads;
  for (int64_t i; (i = atomic_fetch_add(&e->next, 1)) < e->n;) e->fn(e->arg, i, thread);
}

void ane_program_each(struct ane_program *p, int64_t n, void (*fn)(void *arg, int64_t i, int thread), void *arg) {
  struct each e = {.fn = fn, .arg = arg, .n = n};
  if (n > 1)
    ane_pool_run(p->pool, each_thread, &e);
  else
    each_thread(&e, 0, 1);
}

ane_status ane_run(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, struct ane_error *err) {
  return ane_run_tapped(p, items, n_items, NULL, NULL, err);
}

ane_status ane_run_tapped(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, ane_tap_fn tap, void *tap_arg,
                          struct ane_error *err) {
  int64_t tokens;
  ane_status st = check_items(p, items, n_items, &tokens, err);
  if (st || n_items == 0) return st;
  bool keep = false;
  for (int32_t i = 0; i < n_items; i++) keep |= keeps_logits(p, &items[i]);
  float *results = keep && n_items == 1 ? items[0].session->logits : NULL;
  if (keep && n_items > 1) {
    int64_t rows = 0;
    for (int32_t i = 0; i < n_items; i++) rows += out_rows_of(&items[i]);
    if (!(results = common_rows(p, rows))) return ane_fail(err, ANE_NOMEM, "no memory for %" PRId64 " rows of logits", rows);
  }
  st = choose_rope(p, items, n_items, err); /* last, because it changes sessions */
  if (!st) st = run_items(p, items, n_items, results, tap, tap_arg, err);
  if (p->common_rows_bytes > COMMON_ROWS_KEPT) free_common_rows(p);
  return st;
}
