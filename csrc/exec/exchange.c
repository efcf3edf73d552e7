/* Tensor parallelism: each of several programs computes some rows of every linear step, in whole groups of 16. After the step
 * each has the rows of the others too; after the head only rank 0 has. One rank computes each output as a whole, with the same
 * kernel as in one program. No sum is divided, so the bits do not depend on the number of ranks. */
#include "exec/exchange.h"

#include "base/alloc.h"
#include "exec/shared_rows.h"

#include <string.h>

/* The rows [*from, *to) of a matrix of `rows` rows that a rank has. */
static void rows_of_rank(int64_t rows, int32_t rank, int32_t ranks, int64_t *from, int64_t *to) {
  ane_split((rows + ANE_GROUP - 1) / ANE_GROUP, rank, ranks, from, to);
  *from *= ANE_GROUP;
  *to = ANE_MIN(*to * ANE_GROUP, rows);
}

bool exchange_divides(const struct ane_program *p, const struct ane_tensor *weight) {
  return p->o.tensor && !weight->transposed && !weight->gather && weight->shape.rank == 2 &&
         (weight->shape.dim[0] + ANE_GROUP - 1) / ANE_GROUP >= p->o.tensor->ranks;
}

void exchange_divide(const struct ane_program *p, struct matrix *m) {
  int64_t rows = m->stored.shape.dim[0], to;
  uint64_t row = m->stored.bytes / (uint64_t)rows;
  rows_of_rank(rows, p->o.tensor->rank, p->o.tensor->ranks, &m->first, &to);
  m->all_rows = rows;
  m->stored.shape.dim[0] = to - m->first;
  m->stored.bytes = (uint64_t)(to - m->first) * row;
  m->stored.data = (const uint8_t *)m->stored.data + (uint64_t)m->first * row;
}

/* The number of outputs of a linear step: one if it has an act, which joins its matrices; otherwise one for each matrix. */
static int outputs_of(const struct step *s) { return s->linear.act ? 1 : s->linear.count; }

/* Floats per token that a rank sends after a step. */
static int64_t floats_of(const struct ane_program *p, const struct step *s, int32_t rank) {
  int64_t n = 0, from, to;
  for (int m = 0; m < outputs_of(s); m++) {
    if (!s->linear.w[m]->all_rows) continue;
    rows_of_rank(s->linear.w[m]->all_rows, rank, p->team.ranks, &from, &to);
    n += to - from;
  }
  return n;
}

ane_status exchange_plan(struct ane_program *p, struct ane_error *err) {
  if (!p->o.tensor) return ANE_OK;
  p->team = *p->o.tensor;
  int64_t most = 1;
  struct step *last = NULL;
  for (int32_t i = 0; i < p->n_steps; i++) {
    struct step *s = &p->steps[i];
    if (s->op != ane_op_info(ANE_OP_LINEAR)) continue;
    for (int32_t rank = 0; rank < p->team.ranks; rank++) s->exchange_floats = ANE_MAX(s->exchange_floats, floats_of(p, s, rank));
    most = ANE_MAX(most, s->exchange_floats);
    int64_t own = floats_of(p, s, p->team.rank);
    for (int m = 0; m < outputs_of(s); m++) s->exchanges |= s->linear.w[m]->all_rows > 0;
    if (i < p->n_body) p->exchanged += own;
    if (s->exchanges) last = i < p->n_body ? NULL : s;
  }
  if (last) last->gathers = true;
  shared_rows_begin(p);
  size_t bytes;
  if (!ane_mul_size((size_t)most * sizeof(float), (size_t)p->o.chunk, &bytes) || !(p->exchange = ane_malloc(bytes)))
    return ane_fail(err, ANE_NOMEM, "no memory for the exchange of rows");
  return ANE_OK;
}

/* Tokens [first, first + count) of the outputs of a step; out_row: the output row that is its token 0, in the tail. */
struct tokens {
  int64_t first, count, out_row;
};

/* The first of a rank's rows of output m in the first of the tokens. n: the number of these rows. */
static float *rows_at(struct run *r, const struct step *s, int m, int32_t rank, const struct tokens *k, int64_t *n) {
  struct thread_ctx tc = {.r = r, .p = r->p, .first_out_row = k->out_row};
  int64_t from, to;
  rows_of_rank(s->linear.w[m]->all_rows, rank, r->p->team.ranks, &from, &to);
  *n = to - from;
  return thread_data(&tc, s->out[m]) + k->first * s->out[m]->channels + from;
}

/* Copies a rank's rows of the tokens to a message. */
static void copy_rows(struct run *r, const struct step *s, int32_t rank, const struct tokens *k, float *to) {
  int64_t n;
  for (int m = 0; m < outputs_of(s); m++) {
    if (!s->linear.w[m]->all_rows) continue;
    const float *row = rows_at(r, s, m, rank, k, &n);
    for (int64_t t = 0; t < k->count; t++, to += n) memcpy(to, row + t * s->out[m]->channels, (size_t)n * sizeof *to);
  }
}

/* Copies a rank's rows of the tokens from its message; from NULL: sets them to zero. */
static void place_rows(struct run *r, const struct step *s, int32_t rank, const struct tokens *k, const float *from) {
  int64_t n;
  for (int m = 0; m < outputs_of(s); m++) {
    if (!s->linear.w[m]->all_rows) continue;
    float *row = rows_at(r, s, m, rank, k, &n);
    for (int64_t t = 0; t < k->count; t++, row += s->out[m]->channels) {
      if (from)
        memcpy(row, from, (size_t)n * sizeof *row), from += n;
      else
        memset(row, 0, (size_t)n * sizeof *row);
    }
  }
}

/* Exchanges the rows of some tokens; shared: through shared memory. */
static ane_status exchange_tokens(struct run *r, const struct step *s, const struct tokens *k, bool shared,
                                  struct ane_error *err) {
  struct ane_program *p = r->p;
  const struct ane_tensor_parallel *team = &p->team;
  bool receives = !s->gathers || team->rank == 0, sends = !s->gathers || team->rank > 0;
  ane_status st = ANE_OK;
  float *own = p->exchange;
  if (shared && (st = shared_rows_place(p, &own, err))) return st;
  if (sends) copy_rows(r, s, team->rank, k, own);
  if (shared)
    shared_rows_post(p);
  else if (sends)
    st = team->send(team->arg, own, (size_t)(floats_of(p, s, team->rank) * k->count) * sizeof(float), s->gathers, err);
  for (int32_t rank = 0; !st && rank < team->ranks; rank++) {
    if (rank == team->rank) continue;
    const float *rows = receives ? p->exchange : NULL;
    if (receives && shared)
      st = shared_rows_take(p, rank, &rows, err);
    else if (receives)
      st = team->receive(team->arg, rank, p->exchange, (size_t)(floats_of(p, s, rank) * k->count) * sizeof(float), err);
    if (!st) place_rows(r, s, rank, k, rows);
  }
  return st;
}

ane_status exchange_step(struct run *r, const struct step *s, int64_t tokens, int64_t first_out_row, struct ane_error *err) {
  int64_t fit = shared_rows_floats(r->p) / s->exchange_floats;
  struct tokens k = {.out_row = first_out_row};
  ane_status st = ANE_OK;
  for (; !st && k.first < tokens; k.first += k.count) {
    k.count = fit > 0 ? ANE_MIN(fit, tokens - k.first) : tokens;
    st = exchange_tokens(r, s, &k, fit > 0, err);
  }
  return st;
}
