/* Recurrent blocks without a loop over tokens: the T tokens of a call are one chunk, computed by products of matrices. With a_t
 * the logarithm of the decay of token t (never positive), and S the state before the call:
 *
 *   Mamba-2      y_t = e^(a_1 + .. + a_t) S^T c_t + sum over s <= t of e^(a_(s+1) + .. + a_t) (c_t b_s) dt_s x_s + d x_t
 *   delta rule   the same with q_t, k_s and u_s in place of c_t, b_s and dt_s x_s, where
 *                u_t = beta_t (v_t - e^(a_1 + .. + a_t) S^T k_t - sum over s < t of e^(a_(s+1) + .. + a_t) (k_t k_s) u_s)
 *
 * (Dao and Gu 2024, section 6; Yang et al. 2024, section 3.3.) Sums of a are taken over the tokens between s and t only, by a
 * product with triangles of ones, and not as differences of running sums: so they keep their precision in fp16.
 *
 * Heads are [1, H, channels, T]. The state is fp16, [1, H, N, P], and is rounded once in each call. */
#include "mil/lower_internal.h"

#include <math.h>

/* ---- Triangles -------------------------------------------------------------------------------------------------------*/

/* The type in which decays are computed. */
static ane_mil_dtype decay_type(const struct lower *l) { return l->o->norm == ANE_MIL_NORM_FP32 ? ANE_MIL_FP32 : l->b.dtype; }

/* Makes [1, 1, T, T] for known T: 1 if column <= row (strict: if column < row), else 0. */
static mil_value known_triangle(struct lower *l, const char *name, bool strict) {
  float *data = ane_arena_array(l->b.arena, (size_t)(l->t * l->t), sizeof *data);
  if (!data) return mil_build_no_memory(&l->b), mil_int(&l->b, 0);
  for (int64_t i = 0; i < l->t; i++)
    for (int64_t j = 0; j < l->t; j++) data[i * l->t + j] = strict ? j < i : j <= i;
  return mil_tensor(&l->b, name, decay_type(l), 4, (int64_t[]){1, 1, l->t, l->t}, data);
}

/* Makes the same triangle, also for T that is known only at run time. */
static mil_value triangle(struct lower *l, const char *name, bool strict) {
  struct mil_build *b = &l->b;
  if (l->t >= 0) return known_triangle(l, name, strict);
  mil_value indices = lower_token_indices(l);
  mil_value rows = mil_reshape4(b, indices, 1, 1, -1, 1), columns = mil_reshape4(b, indices, 1, 1, 1, -1);
  return mil_cast(b, mil_compare(b, strict ? "greater" : "greater_equal", rows, columns), decay_type(l));
}

/* ---- Decays ------------------------------------------------------------------------------------------------------------*/

/* Products of the decays e^a of a call. NULL: all 1, for T = 1. */
struct decays {
  mil_value from_start; /* [1, H, T, 1]: of tokens 1 .. t */
  mil_value between;    /* [1, H, T, T]: row t, column s: of tokens s + 1 .. t; 0 for s > t */
  mil_value to_end;     /* [1, H, 1, T]: of tokens s + 1 .. T */
  mil_value all;        /* [1, H, 1, 1] */
  mil_value earlier;    /* [1, 1, T, T]: 1 for s < t, else 0 */
};

static mil_value exp_of(struct lower *l, mil_value x) { return mil_cast(&l->b, mil_unary(&l->b, "exp", x), l->b.dtype); }

/* Computes the products of decays from their logarithms a: [1, H, 1, T]. */
static struct decays decays_of(struct lower *l, mil_value a) {
  struct mil_build *b = &l->b;
  struct decays d = {0};
  int64_t heads = mil_dim(a, 1);
  if (l->t == 1) {
    d.from_start = d.all = exp_of(l, a);
    return d;
  }
  if (!l->until) l->until = triangle(l, "until", false), l->after = triangle(l, "after", true);
  mil_value after = mil_tile(b, l->after, 1, heads), upto = mil_mul(b, l->until, a); /* row t, column r: a_r for r <= t */
  mil_value until = mil_cast(b, l->until, b->dtype);
  d.from_start = exp_of(l, mil_reduce(b, "reduce_sum", upto, 3));
  d.between = mil_mul(b, exp_of(l, mil_matmul(b, upto, after, false)), until);
  d.to_end = exp_of(l, mil_matmul(b, a, after, false));
  d.all = exp_of(l, mil_reduce(b, "reduce_sum", a, 3));
  d.earlier = mil_cast(b, l->after, b->dtype);
  return d;
}

static mil_value times(struct lower *l, mil_value x, mil_value by) { return by ? mil_mul(&l->b, x, by) : x; }

/* softplus(x + bias) within the limits, of an activation [1, H, T, 1], as [1, H, 1, T] */
static mil_value time_step(struct lower *l, int32_t x, int32_t bias, int64_t heads, double low, double high) {
  struct mil_build *b = &l->b;
  mil_value y = lower_heads(l, x, heads), by = lower_vector(l, bias, 1, 0, 1);
  if (by) y = mil_add(b, y, by);
  y = mil_unary(b, "softplus", mil_cast(b, y, decay_type(l)));
  if (high > 0) return mil_clip(b, y, low, high);
  return low > 0 ? mil_binary(b, "maximum", y, mil_number(b, y->type.dtype, low)) : y;
}

/* Returns the factor A of each head, [1, H, 1, 1]. It is stored as A, or as the logarithm of -A. */
static mil_value factor(struct lower *l, const struct ane_node *n, int32_t decay) {
  struct mil_build *b = &l->b;
  mil_value a = mil_cast(b, lower_vector(l, decay, 1, 0, 1), decay_type(l));
  return ane_node_int(n, "log") ? mil_scale(b, mil_unary(b, "exp", a), -1) : a;
}

/* ---- Heads and states --------------------------------------------------------------------------------------------------*/

/* Returns channels [from, from + heads * width) of an activation as heads [1, heads, width, T]. */
static mil_value heads_of(struct lower *l, mil_value flat, int64_t from, int64_t heads, int64_t width) {
  return mil_reshape4(&l->b, mil_slice(&l->b, flat, 1, from, from + heads * width, 1), 1, heads, width, -1);
}

/* Repeats each head of x [1, G, N, T] `count` times: 1 1 2 2, or with `interleaved` 1 2 1 2. */
static mil_value repeated(struct lower *l, mil_value x, int64_t count, bool interleaved) {
  struct mil_build *b = &l->b;
  int64_t heads = mil_dim(x, 1), width = mil_dim(x, 2);
  if (interleaved || heads == 1 || count == 1) return mil_tile(b, x, 1, count);
  mil_value y = mil_tile(b, mil_reshape(b, x, 5, (int64_t[]){1, heads, 1, width, -1}), 2, count);
  return mil_reshape4(b, y, 1, heads * count, width, -1);
}

/* The state of a node, [1, H, N, P]: what is stored, and the variable itself. */
struct memory {
  mil_value variable, now;
};

static struct memory memory_of(struct lower *l, int32_t state) {
  struct memory m = {0};
  m.variable = lower_state(l, state, ANE_MIL_PORT_RECURRENT, 4, l->g->values[state].shape.dim);
  m.now = mil_cast(&l->b, mil_read_state(&l->b, m.variable), l->b.dtype);
  return m;
}

/* Updates the state: S = all S + sum over s of to_end_s k_s u_s^T. k: [1, H, N, T], u: [1, H, T, P]. */
static void accumulate(struct lower *l, const struct memory *m, const struct decays *d, mil_value k, mil_value u) {
  struct mil_build *b = &l->b;
  mil_value s = mil_add(b, mil_mul(b, m->now, d->all), mil_matmul(b, times(l, k, d->to_end), u, false));
  mil_write_state(b, m->variable, mil_cast(b, s, ANE_MIL_FP16));
}

/* Returns what the tokens read: from_start S^T q_t + sum over s <= t of between (q_t k_s) u_s. q: [1, H, T, N],
 * k: [1, H, N, T], u: [1, H, T, P] -> [1, H, T, P]. */
static mil_value look_up(struct lower *l, const struct memory *m, const struct decays *d, mil_value q, mil_value k, mil_value u) {
  struct mil_build *b = &l->b;
  mil_value old = mil_mul(b, mil_matmul(b, q, m->now, false), d->from_start);
  return mil_add(b, old, mil_matmul(b, times(l, mil_matmul(b, q, k, false), d->between), u, false));
}

/* ---- Mamba-2 -----------------------------------------------------------------------------------------------------------*/

void lower_ssm_scan(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  const struct ane_shape *s = &l->g->values[n->inputs[5]].shape;
  int64_t heads = s->dim[1], states = s->dim[2], width = s->dim[3], groups = ane_node_int(n, "groups");
  mil_value flat = lower_in(l, n, 0), x = heads_of(l, flat, 0, heads, width);
  mil_value k = heads_of(l, flat, heads * width, groups, states),
            q = heads_of(l, flat, heads * width + groups * states, groups, states);
  mil_value dt = time_step(l, n->inputs[1], ane_node_input(n, 4), heads, ane_node_float(n, "low"), ane_node_float(n, "high"));
  struct decays d = decays_of(l, mil_mul(b, dt, factor(l, n, n->inputs[2])));
  struct memory m = memory_of(l, n->inputs[5]);
  k = repeated(l, k, heads / groups, false);
  q = mil_swap(b, repeated(l, q, heads / groups, false));
  mil_value u = mil_swap(b, mil_mul(b, x, mil_cast(b, dt, b->dtype)));
  mil_value y = mil_swap(b, look_up(l, &m, &d, q, k, u)), skip = lower_vector(l, ane_node_input(n, 3), 1, 0, 1);
  accumulate(l, &m, &d, k, u);
  lower_out_heads(l, n, skip ? mil_add(b, y, mil_mul(b, x, skip)) : y, heads);
}

/* ---- Delta rule ----------------------------------------------------------------------------------------------------------*/

/* Tokens whose equations are solved by powers of a matrix. Its powers stay small for so few. */
enum { SOLVED = 8 };

/* Returns (1 - N)^-1 r = (1 + N) (1 + N^2) (1 + N^4) .. r, for N [1, H, n, n] with zeros on and above the diagonal. */
static mil_value solve_few(struct lower *l, mil_value matrix, mil_value r, int64_t n) {
  struct mil_build *b = &l->b;
  for (int64_t m = 1; m < n; m *= 2) {
    r = mil_add(b, r, mil_matmul(b, matrix, r, false));
    if (2 * m < n) matrix = mil_matmul(b, matrix, matrix, false);
  }
  return r;
}

/* Returns (1 - N)^-1 r for any n: solves SOLVED tokens at a time, with the results of the tokens before them. */
static mil_value solve(struct lower *l, mil_value matrix, mil_value r) {
  struct mil_build *b = &l->b;
  int64_t n = l->t < 0 ? l->o->max_t : l->t;
  if (n <= SOLVED) return solve_few(l, matrix, r, n);
  mil_value done = NULL;
  for (int64_t from = 0; from < n && !b->status; from += SOLVED) {
    int64_t to = ANE_MIN(from + SOLVED, n);
    mil_value rows = mil_slice(b, matrix, 2, from, to, 1), part = mil_slice(b, r, 2, from, to, 1);
    if (done) part = mil_add(b, part, mil_matmul(b, mil_slice(b, rows, 3, 0, from, 1), done, false));
    part = solve_few(l, mil_slice(b, rows, 3, from, to, 1), part, to - from);
    done = done ? mil_concat2(b, done, part, 2) : part;
  }
  return done;
}

/* Returns the updates u [1, H, T, V]. k: [1, H, N, T], v: [1, H, V, T], beta: [1, H, T, 1]. */
static mil_value updates(struct lower *l, const struct memory *m, const struct decays *d, mil_value k, mil_value v,
                         mil_value beta) {
  struct mil_build *b = &l->b;
  mil_value rows = mil_swap(b, k), old = mil_mul(b, mil_matmul(b, rows, m->now, false), d->from_start);
  mil_value r = mil_mul(b, mil_binary(b, "sub", mil_swap(b, v), old), beta);
  if (!d->between) return r;
  mil_value matrix = mil_mul(b, mil_mul(b, mil_matmul(b, rows, k, false), d->between), mil_scale(b, beta, -1));
  return solve(l, mil_mul(b, matrix, d->earlier), r);
}

/* Returns x / |x| * by along the channels of heads. |x| is sqrt(x^2 + 1e-6), as in the executor. */
static mil_value unit(struct lower *l, mil_value x, double by) {
  double n = (double)mil_dim(x, 2);
  return mil_scale(&l->b, lower_rms(l, x, 2, 1e-6 / n), by / sqrt(n));
}

void lower_delta_rule(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  const struct ane_shape *s = &l->g->values[n->inputs[5]].shape;
  int64_t heads = s->dim[1], width = s->dim[2], values = s->dim[3], keys = ane_node_int(n, "key_heads");
  bool interleaved = ane_node_int(n, "interleaved") != 0;
  if (l->t < 0 && l->o->max_t > SOLVED) {
    mil_build_fail(b, ane_fail(b->err, ANE_UNSUPPORTED, "the delta rule needs a fixed number of tokens, or at most %d", SOLVED));
    return;
  }
  mil_value flat = lower_in(l, n, 0), q = unit(l, heads_of(l, flat, 0, keys, width), 1 / sqrt((double)width)),
            k = unit(l, heads_of(l, flat, keys * width, keys, width), 1), v = heads_of(l, flat, 2 * keys * width, heads, values);
  mil_value a = mil_mul(b, time_step(l, n->inputs[1], ane_node_input(n, 4), heads, 0, 0), factor(l, n, n->inputs[3]));
  mil_value beta = mil_swap(b, mil_unary(b, "sigmoid", lower_heads(l, n->inputs[2], heads)));
  struct decays d = decays_of(l, a);
  struct memory m = memory_of(l, n->inputs[5]);
  q = mil_swap(b, repeated(l, q, heads / keys, interleaved));
  k = repeated(l, k, heads / keys, interleaved);
  mil_value u = updates(l, &m, &d, k, v, beta);
  lower_out_heads(l, n, mil_swap(b, look_up(l, &m, &d, q, k, u)), heads);
  accumulate(l, &m, &d, k, u);
}
