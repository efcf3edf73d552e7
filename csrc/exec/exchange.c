/* Tensor parallelism: each of several programs computes some rows of every linear step, in whole groups of 16. After the step the
 * programs exchange their rows, so that each has all of them; the rows of the head go to rank 0 only. If q, k and v of a head are
 * on one rank, the heads of attention are divided too. The ranks then exchange the result of attention instead of q, k and v. One
 * rank computes each output as a whole, with the same kernel as in one program. No sum is divided, so the bits do not depend on
 * the number of ranks. */
#include "exec/exchange.h"

#include "base/alloc.h"
#include "exec/shared_rows.h"

#include <string.h>

/* Sets [*from, *to) to the rows of a rank in a matrix of `rows` rows. */
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

/* Are `rows` rows divided into equal parts? */
static bool divides_equally(int64_t rows, int32_t ranks) { return rows % ((int64_t)ANE_GROUP * ranks) == 0; }

/* Is the value an output of a linear step whose matrix is divided, of as many rows on each rank, and used only once? */
static bool is_divided_value(const struct planner *pl, int32_t value) {
  const struct ane_graph *g = pl->g;
  const struct ane_value *v = &g->values[value];
  if (v->kind != ANE_VALUE_RESULT || v->node == ANE_NONE || ane_graph_uses(g, value) != 1) return false;
  const struct ane_node *n = &g->nodes[v->node];
  if (n->op != ANE_OP_LINEAR || *ane_node_string(n, "act")) return false;
  for (int m = 0; m < (int)ane_node_int(n, "count"); m++)
    if (!exchange_divides(pl->p, &g->values[n->inputs[3 + 2 * m]].data)) return false;
  return divides_equally(pl->p->slots[value].channels, pl->p->o.tensor->ranks);
}

bool exchange_divides_heads(const struct planner *pl, const struct ane_node *n) {
  if (!pl->p->o.tensor || n->op != ANE_OP_FUSED_ATTENTION || ane_node_int(n, "kv_heads") % pl->p->o.tensor->ranks) return false;
  if (ane_graph_uses(pl->g, n->inputs[3]) != 1) return false; /* layers that share a state would have to agree */
  return is_divided_value(pl, n->inputs[0]) && is_divided_value(pl, n->inputs[1]) && is_divided_value(pl, n->inputs[2]);
}

static bool is_linear(const struct step *s) { return s->op == ane_op_info(ANE_OP_LINEAR); }

/* Does the step compute the attention of some heads only? */
static bool is_divided_attention(const struct step *s) {
  return s->op == ane_op_info(ANE_OP_FUSED_ATTENTION) && s->attention.heads * s->attention.head_dim < s->out[0]->channels;
}

/* The number of outputs of a step: one of attention and of a linear step with an act, which joins its matrices; otherwise one for
 * each matrix. */
static int outputs_of(const struct step *s) { return is_linear(s) && !s->linear.act ? s->linear.count : 1; }

/* Do other ranks have channels of output m that this one needs? */
static bool is_exchanged(const struct step *s, int m) {
  return is_linear(s) ? s->linear.w[m]->all_rows && !s->out[m]->by_heads : is_divided_attention(s);
}

/* The channels [*from, *to) of output m that a rank computes. */
static void channels_of_rank(const struct ane_program *p, const struct step *s, int m, int32_t rank, int64_t *from, int64_t *to) {
  if (is_linear(s)) {
    rows_of_rank(s->linear.w[m]->all_rows, rank, p->team.ranks, from, to);
  } else {
    int64_t own = s->attention.heads * s->attention.head_dim; /* all ranks have as many heads */
    *from = rank * own;
    *to = *from + own;
  }
}

/* Returns the floats per token that a rank sends after a step. */
static int64_t floats_of(const struct ane_program *p, const struct step *s, int32_t rank) {
  int64_t n = 0, from, to;
  for (int m = 0; m < outputs_of(s); m++) {
    if (!is_exchanged(s, m)) continue;
    channels_of_rank(p, s, m, rank, &from, &to);
    n += to - from;
  }
  return n;
}

/* Can the ranks write the output of step i in place, to the common buffer? They can if the next exchanging step is the only
 * reader. After that step each rank waits for the rows of all others, so all ranks have read the buffer before one writes to it
 * again. A step that reads the buffer must not write to it. */
static bool fits_common(const struct planner *pl, int32_t i, int64_t floats) {
  const struct ane_program *p = pl->p;
  const struct step *s = &p->steps[i];
  if (!s->exchanges || outputs_of(s) != 1 || s->out[0]->result || p->o.chunk * s->out[0]->channels > floats) return false;
  int32_t next = i + 1;
  while (next < p->n_steps && !p->steps[next].exchanges) next++;
  return next < p->n_steps && !p->steps[next].gathers && p->steps[next].in[0] == s->out[0] && !s->in[0]->common &&
         ane_graph_uses(pl->g, (int32_t)(s->out[0] - p->slots)) == 1;
}

static void plan_common(struct planner *pl) {
  struct ane_program *p = pl->p;
  int64_t floats;
  p->common = shared_rows_common(p, &floats);
  for (int32_t i = 0; i < p->n_steps; i++)
    if (fits_common(pl, i, floats)) p->slots[p->steps[i].out[0] - p->slots].common = true;
}

ane_status exchange_plan(struct planner *pl, struct ane_error *err) {
  struct ane_program *p = pl->p;
  if (!p->o.tensor) return ANE_OK;
  p->team = *p->o.tensor;
  int64_t most = 1;
  struct step *last = NULL;
  for (int32_t i = 0; i < p->n_steps; i++) {
    struct step *s = &p->steps[i];
    if (!is_linear(s) && !is_divided_attention(s)) continue;
    for (int32_t rank = 0; rank < p->team.ranks; rank++) s->exchange_floats = ANE_MAX(s->exchange_floats, floats_of(p, s, rank));
    most = ANE_MAX(most, s->exchange_floats);
    int64_t own = floats_of(p, s, p->team.rank);
    for (int m = 0; m < outputs_of(s); m++) s->exchanges |= is_exchanged(s, m);
    if (i < p->n_body) p->exchanged += own;
    if (s->exchanges) last = i < p->n_body ? NULL : s;
  }
  if (last) last->gathers = true;
  if (last && last == &p->steps[p->n_steps - 1] && is_linear(last) && outputs_of(last) == 1 && last->out[0]->result)
    p->divided_head = last;
  shared_rows_begin(p);
  plan_common(pl);
  size_t bytes;
  if (!ane_mul_size((size_t)most * sizeof(float), (size_t)p->o.chunk, &bytes) || !(p->exchange = ane_malloc(bytes)))
    return ane_fail(err, ANE_NOMEM, "no memory for the exchange of rows");
  return ANE_OK;
}

/* Tokens [first, first + count) of the outputs of a step; out_row: the output row that is its token 0, in the tail. */
struct tokens {
  int64_t first, count, out_row;
};

/* Returns the address of a rank's rows of output m, for the first of the tokens. *n: the number of these rows. */
static float *rows_at(struct run *r, const struct step *s, int m, int32_t rank, const struct tokens *k, int64_t *n) {
  struct thread_ctx tc = {.r = r, .p = r->p, .first_out_row = k->out_row};
  int64_t from, to;
  channels_of_rank(r->p, s, m, rank, &from, &to);
  *n = to - from;
  return thread_data(&tc, s->out[m]) + k->first * s->out[m]->channels + from;
}

/* Copies a rank's rows of the tokens to a message. */
static void copy_rows(struct run *r, const struct step *s, int32_t rank, const struct tokens *k, float *to) {
  int64_t n;
  for (int m = 0; m < outputs_of(s); m++) {
    if (!is_exchanged(s, m)) continue;
    const float *row = rows_at(r, s, m, rank, k, &n);
    for (int64_t t = 0; t < k->count; t++, to += n) memcpy(to, row + t * s->out[m]->channels, (size_t)n * sizeof *to);
  }
}

/* Copies a rank's rows of the tokens from its message; from NULL: sets them to zero. */
static void place_rows(struct run *r, const struct step *s, int32_t rank, const struct tokens *k, const float *from) {
  int64_t n;
  for (int m = 0; m < outputs_of(s); m++) {
    if (!is_exchanged(s, m)) continue;
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
  if (shared && (st = shared_rows_buffer(p, &own, err))) return st;
  if (sends) copy_rows(r, s, team->rank, k, own);
  if (shared)
    shared_rows_post(p);
  else if (sends)
    st = team->send(team->arg, own, (size_t)(floats_of(p, s, team->rank) * k->count) * sizeof(float), s->gathers, err);
  for (int32_t rank = 0; !st && rank < team->ranks; rank++) {
    if (rank == team->rank) continue;
    const float *rows = receives ? p->exchange : NULL;
    if (receives && shared)
      st = shared_rows_receive(p, rank, &rows, err);
    else if (receives)
      st = team->receive(team->arg, rank, p->exchange, (size_t)(floats_of(p, s, rank) * k->count) * sizeof(float), err);
    if (!st) place_rows(r, s, rank, k, rows);
  }
  return st;
}

ane_status exchange_step(struct run *r, const struct step *s, int64_t tokens, int64_t first_out_row, struct ane_error *err) {
  if (s->out[0]->common) return shared_rows_barrier(r->p, err);
  int64_t fit = shared_rows_floats(r->p) / s->exchange_floats;
  struct tokens k = {.out_row = first_out_row};
  ane_status st = ANE_OK;
  for (; !st && k.first < tokens; k.first += k.count) {
    k.count = fit > 0 ? ANE_MIN(fit, tokens - k.first) : tokens;
    st = exchange_tokens(r, s, &k, fit > 0, err);
  }
  return st;
}

void exchange_own_ids(const struct ane_program *p, int64_t *from, int64_t *to) {
  channels_of_rank(p, p->divided_head, 0, p->team.rank, from, to);
}

/* The best id of an output row, as it is sent. */
struct best {
  int32_t id;
  float logit;
};

/* Replaces the best ids of the rows by better ones of a rank whose ids are higher. Any number is better than a NaN. */
static void join_best(const struct run *r, int64_t first, int64_t rows, const struct best *list) {
  for (int64_t i = 0; i < rows; i++) {
    float now = r->best_logit[first + i];
    bool better = list[i].logit > now || (now != now && list[i].logit == list[i].logit);
    if (!better) continue;
    r->best[first + i] = list[i].id;
    r->best_logit[first + i] = list[i].logit;
  }
}

ane_status exchange_best(struct run *r, int64_t first, int64_t rows, struct ane_error *err) {
  struct ane_program *p = r->p;
  const struct ane_tensor_parallel *team = &p->team;
  struct best list[OUT_ROWS_BLOCK];
  size_t bytes = (size_t)rows * sizeof *list;
  bool shared = shared_rows_floats(p) >= 2 * rows;
  ane_status st = ANE_OK;
  float *own = NULL;
  if (shared && (st = shared_rows_buffer(p, &own, err))) return st;
  for (int64_t i = 0; i < rows; i++) list[i] = (struct best){r->best[first + i], r->best_logit[first + i]};
  if (shared) memcpy(own, list, bytes), shared_rows_post(p);
  if (team->rank > 0) return shared ? ANE_OK : team->send(team->arg, list, bytes, true, err);
  for (int32_t rank = 1; !st && rank < team->ranks; rank++) {
    const float *taken = NULL;
    st = shared ? shared_rows_receive(p, rank, &taken, err) : team->receive(team->arg, rank, list, bytes, err);
    if (!st && shared) memcpy(list, taken, bytes); /* analyser: without a failure, it is taken. */
    if (!st) join_best(r, first, rows, list);
  }
  return st;
}
