/* linear: applies the norm to the input, quantises it once, multiplies it by one or more matrices, then adds bias or residual or
 * applies a gated act.
 *
 * With few tokens, every thread prepares the whole input for itself, which saves a barrier and the exchange of cache lines. With
 * more tokens, the threads divide the tokens, synchronise, and multiply. A task is a run of row groups for all tokens or, with
 * many tokens, for a block of them. Each output is the same whichever thread computes it. */
#include "base/prefetch.h"
#include "exec/adapter.h"
#include "exec/exchange.h"
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include <string.h>

enum { MOST_GROUPS = 64, PREFETCH_TOKENS = 32, BLOCK_TOKENS = 32 };

/* Prepares tokens [from, to) of x into `out`. normed: room for the normed tokens, from token 0 on. */
static void prepare(const struct thread_ctx *tc, const struct step *s, struct prepared *out, float *normed, int64_t from,
                    int64_t to) {
  const struct ane_kernels *k = tc->k;
  int64_t c = s->in[0]->channels;
  const float *x = thread_data(tc, s->in[0]);
  if (s->linear.norm) {
    k->rms_norm(x + from * c, c, s->linear.norm_weight, s->linear.eps, normed + from * c, c, to - from, c);
    x = normed;
  }
  out->a[ANE_ACTIVATION_F32] =
      (struct ane_activations){.kind = ANE_ACTIVATION_F32, .t = tc->tokens, .cols = c, .f32 = x, .ld = c};
  if (s->linear.activation_types & 1u << ANE_ACTIVATION_I8) k->quantise_i8(&out->a[ANE_ACTIVATION_I8], x, c, from, to);
  if (s->linear.activation_types & 1u << ANE_ACTIVATION_BF16) k->convert_bf16(&out->a[ANE_ACTIVATION_BF16], x, c, from, to);
}

/* Sets up activations of each type that the step's matrices take. */
static void set_up_activations(const struct thread_ctx *tc, const struct step *s, uint8_t *const memory[ANE_ACTIVATION_COUNT],
                               struct prepared *out) {
  for (int a = 0; a < ANE_ACTIVATION_COUNT; a++)
    if (a != ANE_ACTIVATION_F32 && s->linear.activation_types & 1u << a)
      ane_activations_place(&out->a[a], (ane_activation_type)a, tc->tokens, s->in[0]->channels, memory[a]);
  out->a[ANE_ACTIVATION_I8].precise = s->linear.precise;
}

static void prepare_alone(const struct thread_ctx *tc, const struct step *s, struct prepared *out) {
  uint8_t *memory[ANE_ACTIVATION_COUNT];
  for (int a = 0; a < ANE_ACTIVATION_COUNT; a++) memory[a] = tc->mem + tc->p->thread_activations[a];
  set_up_activations(tc, s, memory, out);
  prepare(tc, s, out, (float *)(void *)(tc->mem + tc->p->thread_normed), 0, tc->tokens);
  out->low = NULL;
  out->divided = tc->r->n_adapted && adapter_down_divided(tc, s, out->a);
  if (tc->r->n_adapted && !out->divided) out->low = adapter_down(tc, s, out->a, 0, tc->tokens);
}

static void prepare_shared(struct thread_ctx *tc, const struct step *s, struct prepared *out) {
  set_up_activations(tc, s, tc->p->activations, out);
  int64_t from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  prepare(tc, s, out, tc->p->normed, from, to);
  out->low = tc->r->n_adapted ? adapter_down(tc, s, out->a, from, to) : NULL;
  out->divided = false;
  thread_barrier(tc);
}

/* Does every thread prepare all tokens for itself? Adapters of several tokens share scratch memory. */
static bool is_prepared_alone(const struct thread_ctx *tc, const struct step *s) {
  if (tc->tokens == 1) return true;
  return tc->tokens <= ALONE_TOKENS && tc->tokens * s->in[0]->channels <= ALONE_VALUES && !tc->r->n_adapted;
}

void linear_prepare(struct thread_ctx *tc, const struct step *s, struct prepared *out) {
  out->share = (struct adapter_share){0};
  if (is_prepared_alone(tc, s))
    prepare_alone(tc, s, out);
  else
    prepare_shared(tc, s, out);
}

/* Row groups [g0, g1) of matrix m, for tokens [t0, t1). */
struct task {
  int m;
  int64_t g0, g1, t0, t1;
};

/* Computes y[t][r] for the tokens t and the row groups of task k, with bias and adapters, into dst[(t - t0) * ld + (r - first
 * row)]. m: the matrix, which is not always k->m, because a task of a gated act multiplies by two matrices. */
static void multiply(const struct thread_ctx *tc, const struct step *s, struct prepared *in, const struct task *k, int m,
                     float *dst, int64_t ld) {
  const struct matrix *w = s->linear.w[m];
  const int64_t g0 = k->g0, g1 = k->g1, r0 = g0 * ANE_GROUP, rows = ANE_MIN(g1 * ANE_GROUP, w->packed.rows) - r0;
  const int64_t tokens = k->t1 - k->t0;
  const struct ane_activations *a = &in->a[w->activation_type];
  struct ane_activations part;
  if (tokens < tc->tokens) part = ane_activations_rows(a, k->t0, tokens), a = &part;
  const bool shared = in->share.g0[m] <= g0 && g1 <= in->share.g1[m];
  if (!shared && (in->low || in->divided)) adapter_prefetch(tc, s, m, g0, g1);
  /* The kernel writes out[t * ld + r] for absolute rows r, so the base is moved back: row r0 goes to dst. */
  tc->k->matmul[w->packed.layout][w->activation_type](
      &w->packed, a, g0, g1, (float *)((uintptr_t)dst - (uintptr_t)r0 * sizeof(float)), ld, tc->mem + tc->p->thread_kernel);
  if (s->linear.bias[m])
    for (int64_t t = 0; t < tokens; t++) tc->k->add(dst + t * ld, s->linear.bias[m] + w->first + r0, dst + t * ld, rows);
  if (in->divided && !in->low) in->low = adapter_down_join(tc, s, in->a);
  if (in->low && shared)
    adapter_up_shared(tc, s, in, m, g0, g1, dst);
  else if (in->low)
    adapter_up(tc, s, in->low, m, g0, g1, dst, ld);
}

/* Prefetches `rows` floats of each token, which a task writes at its end: other threads have used the lines, and the atomic claim
 * of the next task waits for the writes. */
static void prefetch_to_write(const struct thread_ctx *tc, const float *out, int64_t ld, int64_t rows) {
  for (int64_t t = 0; t < tc->tokens; t++) ane_prefetch_to_write(out + t * ld, rows * (int64_t)sizeof *out);
}

/* Computes a task, with the epilogue. */
static void finish_task(const struct thread_ctx *tc, const struct step *s, struct prepared *in, const struct task *k) {
  const struct matrix *w = s->linear.w[k->m];
  const int64_t tokens = k->t1 - k->t0, ld = s->out[k->m]->channels, r0 = k->g0 * ANE_GROUP,
                rows = ANE_MIN(k->g1 * ANE_GROUP, w->packed.rows) - r0, at = k->t0 * ld + w->first + r0;
  float *out = thread_data(tc, s->out[k->m]) + at, *temp = (float *)(void *)(tc->mem + tc->p->thread_temp);
  if (tc->tokens <= PREFETCH_TOKENS) prefetch_to_write(tc, out, ld, rows);
  if (s->linear.act) {
    float *up = temp + tokens * rows;
    multiply(tc, s, in, k, 0, temp, rows);
    multiply(tc, s, in, k, 1, up, rows);
    for (int64_t t = 0; t < tokens; t++) s->linear.act(temp + t * rows, up + t * rows, out + t * ld, rows);
  } else if (s->in[1]) {
    const float *residual = thread_data(tc, s->in[1]) + at;
    multiply(tc, s, in, k, 0, temp, rows);
    for (int64_t t = 0; t < tokens; t++) tc->k->add(residual + t * ld, temp + t * rows, out + t * ld, rows);
  } else {
    multiply(tc, s, in, k, k->m, out, ld);
  }
}

/* The number of matrices that tasks count through: the two of a gated act count as one. */
static int task_matrices(const struct step *s) { return s->linear.act ? 1 : s->linear.count; }

/* Sets [g0[m], g1[m]) to the row groups of matrix m in a thread's own tasks, if tasks have size[m] groups. */
static void own_groups(const struct step *s, const int64_t *size, int thread, int threads, int64_t *g0, int64_t *g1) {
  int64_t total = 0, first = 0, from, to, tasks[MAX_LINEAR];
  for (int m = 0; m < task_matrices(s); m++)
    total += tasks[m] = (int64_t)ane_div_up((size_t)s->linear.w[m]->packed.groups, (size_t)size[m]);
  ane_split(total, thread, threads, &from, &to);
  for (int m = 0; m < task_matrices(s); first += tasks[m++]) {
    const int64_t t0 = ANE_MAX(from - first, (int64_t)0), t1 = ANE_MIN(to - first, tasks[m]);
    g0[m] = t0 < t1 ? t0 * size[m] : 0;
    g1[m] = t0 < t1 ? ANE_MIN(t1 * size[m], s->linear.w[m]->packed.groups) : 0;
  }
}

/* The number of row groups of the thread that has most of them, if tasks have `size` groups and no thread steals tasks. */
static int64_t largest_share(const struct step *s, int64_t size, int threads) {
  int64_t sizes[MAX_LINEAR], g0[MAX_LINEAR], g1[MAX_LINEAR], largest = 0;
  for (int m = 0; m < task_matrices(s); m++) sizes[m] = size;
  for (int i = 0; i < threads; i++) {
    int64_t share = 0;
    own_groups(s, sizes, i, threads, g0, g1);
    for (int m = 0; m < task_matrices(s); m++) share += g1[m] - g0[m];
    largest = ANE_MAX(largest, share);
  }
  return largest;
}

/* The number of row groups per task with 2 .. 8 tokens: even, and with at most TASK_BYTES of weights. Such products do not wait
 * for memory, so a smaller size is chosen if it divides the work more equally. */
static int64_t few_groups(const struct step *s, int threads) {
  size_t bytes = 1;
  for (int m = 0; m < task_matrices(s); m++) bytes = ANE_MAX(bytes, s->linear.w[m]->packed.group_bytes);
  int64_t best = ANE_MAX(ANE_MIN((int64_t)(TASK_BYTES / bytes), (int64_t)MOST_GROUPS) / 2 * 2, (int64_t)2);
  int64_t least = largest_share(s, best, threads);
  for (int64_t size = best - 2; size >= 2; size -= 2) {
    const int64_t share = largest_share(s, size, threads);
    if (share * 64 < least * 63) best = size, least = share;
  }
  return best;
}

/* The number of row groups per task. With one token: thread_few_groups. With a few tokens: few_groups of the step. With many
 * tokens: four groups, which share the fixed cost of a product call, or two if four would load the threads less evenly. Never
 * more than thread_most_groups. */
static int64_t groups_per_task(const struct thread_ctx *tc, const struct step *s, const struct matrix *w) {
  const int64_t most = thread_most_groups(tc);
  if (tc->tokens > 8) {
    size_t groups = (size_t)w->packed.groups, threads = (size_t)tc->threads;
    bool even = ane_div_up(groups, 4 * threads) * 2 <= ane_div_up(groups, 2 * threads);
    return ANE_MIN((int64_t)(even ? 4 : 2), most);
  }
  if (tc->tokens > 1) return ANE_MIN(s->linear.few_groups, most);
  return thread_few_groups(tc, w->packed.group_bytes);
}

static int64_t tasks_of(const struct thread_ctx *tc, const struct step *s, const struct matrix *w) {
  return (int64_t)ane_div_up((size_t)w->packed.groups, (size_t)groups_per_task(tc, s, w));
}

/* The tasks of all matrices for one block of tokens. */
static int64_t tasks_of_block(const struct thread_ctx *tc, const struct step *s) {
  int64_t n = 0;
  for (int m = 0; m < task_matrices(s); m++) n += tasks_of(tc, s, s->linear.w[m]);
  return n;
}

/* The number of blocks that tasks divide the tokens into. With many tokens, a thread's own tasks are all rows of the tokens that
 * it prepares. So the activations that it reads are in its own cache, in this step and the next; tasks for all tokens would find
 * a part of them in the caches of other threads. But each block unpacks the weights again. With 2 threads that pays from
 * BLOCK_TOKENS tokens per block on (measured). With more threads, unpacking is repeated more often, so blocks must be larger. */
static int64_t token_blocks(const struct thread_ctx *tc) {
  const int64_t least = BLOCK_TOKENS * ANE_MIN((int64_t)tc->threads, (int64_t)4) / 2;
  return tc->tokens >= least * tc->threads && !tc->r->n_adapted ? tc->threads : 1;
}

static int64_t all_tasks(const struct thread_ctx *tc, const struct step *s) { return token_blocks(tc) * tasks_of_block(tc, s); }

/* Returns task i. Tasks are numbered through the matrices of a block of tokens, then through the blocks. */
static struct task task_at(const struct thread_ctx *tc, const struct step *s, int64_t i) {
  struct task k = {.m = 0};
  const int64_t blocks = token_blocks(tc), block = blocks > 1 ? i / tasks_of_block(tc, s) : 0;
  ane_split(tc->tokens, (int)block, (int)blocks, &k.t0, &k.t1);
  if (block) i -= block * tasks_of_block(tc, s);
  for (;; k.m++) {
    const struct matrix *w = s->linear.w[k.m];
    const int64_t per_task = groups_per_task(tc, s, w), tasks = tasks_of(tc, s, w);
    if (i >= tasks) {
      i -= tasks;
      continue;
    }
    k.g0 = i * per_task;
    k.g1 = ANE_MIN(k.g0 + per_task, w->packed.groups);
    return k;
  }
}

/* Sets the thread's share of the products with B to the row groups of its own tasks. */
static void take_share(const struct thread_ctx *tc, const struct step *s, struct adapter_share *a) {
  int64_t size[MAX_LINEAR];
  for (int m = 0; m < task_matrices(s); m++) size[m] = groups_per_task(tc, s, s->linear.w[m]);
  own_groups(s, size, tc->thread, tc->threads, a->g0, a->g1);
  if (s->linear.act) a->g0[1] = a->g0[0], a->g1[1] = a->g1[0];
}

static void run_linear(struct thread_ctx *tc, const struct step *s);

/* Collects what the thread will read of A and B in the next linear step. These are small ranges at many addresses: without
 * prefetch the thread would wait for most of them. */
static void collect_next(const struct thread_ctx *tc, const struct step *s, struct prefetch *a) {
  enum { LOOKAHEAD_STEPS = 3 };
  a->n = a->at = 0;
  for (int32_t i = s->index + 1; i < ANE_MIN(s->index + 1 + LOOKAHEAD_STEPS, tc->p->n_steps); i++) {
    const struct step *next = &tc->p->steps[i];
    if (next->run != run_linear) continue;
    struct adapter_share share = {.parts = adapter_shares(tc, next)};
    if (!share.parts) return;
    take_share(tc, next, &share);
    adapter_prefetch_share(tc, next, &share, a);
    return;
  }
}

static void run_linear(struct thread_ctx *tc, const struct step *s) {
  struct prepared in;
  struct prefetch next = {.n = 0};
  linear_prepare(tc, s, &in);
  int64_t total = all_tasks(tc, s), calls = 0;
  int stolen = 0;
  if (tc->r->n_adapted) in.share.parts = adapter_shares(tc, s);
  if (in.share.parts) {
    take_share(tc, s, &in.share);
    collect_next(tc, s, &next);
    calls = prefetch_calls(&next) * tc->threads / ANE_MAX(total, (int64_t)1) + 1;
  }
  for (int64_t i; (i = thread_claim(tc, s, 0, total, &stolen)) >= 0;) {
    for (int64_t c = 0; c < calls && prefetch_more(&next); c++) continue;
    const struct task k = task_at(tc, s, i);
    finish_task(tc, s, &in, &k);
  }
}

/* Prefetches the weights of the thread's first tasks. */
static void linear_prefetch(const struct thread_ctx *tc, const struct step *s, struct prefetch *a) {
  int64_t from, to;
  int both = s->linear.act ? 2 : 1;
  if (tc->r->pruned && s->index == tc->p->pruned_head.step) {
    pruned_head_prefetch(tc, s, a);
    return;
  }
  ane_split(all_tasks(tc, s), tc->thread, tc->threads, &from, &to);
  if (from == to) return;
  const struct task k = task_at(tc, s, from);
  for (int i = 0; i < both; i++) {
    const struct ane_packed *w = &s->linear.w[k.m + i]->packed;
    if (w->layout != ANE_LAYOUT_ROWS)
      prefetch_add(a, w->data + (size_t)k.g0 * w->group_bytes,
                   ANE_MIN((size_t)(w->groups - k.g0) * w->group_bytes, (size_t)(PREFETCH_BYTES / both)));
  }
}

static void linear_cost(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p) {
  for (int m = 0; m < s->linear.count; m++) profile_matrix(&s->linear.w[m]->packed, tc->tokens, p);
}

ane_status plan_linear(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  s->run = run_linear;
  s->cost = linear_cost;
  s->prefetch = linear_prefetch;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->in[1] = planner_slot(pl, n->inputs[1]);
  s->linear.count = (int)ane_node_int(n, "count");
  s->linear.norm = ane_node_int(n, "norm") != 0;
  s->linear.eps = (float)ane_node_float(n, "eps");
  ane_status st = planner_vector(pl, n->inputs[2], (float)ane_node_float(n, "offset"), &s->linear.norm_weight, err);
  for (int o = 0; o < n->n_outputs; o++) s->linear.precise |= pl->precise[n->outputs[o]];
  const char *act = ane_node_string(n, "act");
  if (!st && *act) st = planner_act(pl->p->k, act, &s->linear.act, err);
  bool divide = true; /* the two matrices of a gated act alike */
  for (int m = 0; m < s->linear.count; m++) divide &= exchange_divides(pl->p, &pl->g->values[n->inputs[3 + 2 * m]].data);
  for (int m = 0; !st && m < s->linear.count; m++) {
    st = planner_rows(pl, n->inputs[3 + 2 * m], s->linear.norm ? NULL : s->in[0], divide, &s->linear.w[m], err);
    if (!st) st = planner_vector(pl, n->inputs[4 + 2 * m], 0, &s->linear.bias[m], err);
    if (!st) s->linear.activation_types |= 1u << s->linear.w[m]->activation_type;
  }
  if (!st) s->linear.few_groups = few_groups(s, pl->p->o.threads);
  return st;
}
