/* Rope: the tables, which are inputs or constants of the package, and the rotation. */
#include "mil/lower_internal.h"

#include "base/elementary.h"

#include <inttypes.h>

static bool same_floats(const struct ane_attr *a, const struct ane_attr *b) {
  return a->fv.n == b->fv.n && (a->fv.n == 0 || memcmp(a->fv.v, b->fv.v, (size_t)a->fv.n * sizeof *a->fv.v) == 0);
}

static bool same_rope(const struct ane_node *a, const struct ane_node *b) {
  return same_floats(ane_node_attr(a, "inv_freq"), ane_node_attr(b, "inv_freq")) &&
         same_floats(ane_node_attr(a, "long_freq"), ane_node_attr(b, "long_freq")) &&
         (float)ane_node_float(a, "magnitude") == (float)ane_node_float(b, "magnitude") &&
         ane_node_int(a, "original") == ane_node_int(b, "original");
}

static int32_t find_rope(const struct ane_graph *g, const int32_t *nodes, int32_t n, const struct ane_node *node) {
  int32_t i = 0;
  while (i < n && !same_rope(&g->nodes[nodes[i]], node)) i++;
  return i;
}

ane_status ane_mil_ropes(struct ane_arena *arena, const struct ane_graph *g, struct ane_mil_ropes *out, struct ane_error *err) {
  int32_t *nodes = ane_arena_array(arena, (size_t)g->n_nodes + 1, sizeof *nodes);
  if (!nodes) return ane_fail(err, ANE_NOMEM, "no memory for the ropes");
  *out = (struct ane_mil_ropes){nodes, 0};
  for (int32_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i].op == ANE_OP_ROPE_TABLE && !g->nodes[i].dead && find_rope(g, nodes, out->n, &g->nodes[i]) == out->n)
      nodes[out->n++] = i;
  return ANE_OK;
}

/* Makes the table for all positions, [1, 1, r / 2, context]. The angle is an fp32 product, as in the executor. */
static mil_value whole_table(struct lower *l, const struct ane_node *n, bool sine) {
  struct mil_build *b = &l->b;
  const struct ane_attr *f = ane_node_attr(n, "inv_freq");
  int64_t half = f->fv.n, context = lower_held(l);
  float magnitude = (float)ane_node_float(n, "magnitude");
  float *data = ane_arena_array(b->arena, (size_t)half * (size_t)context, sizeof *data);
  if (!data) {
    mil_build_no_memory(b);
    return mil_int(b, 0);
  }
  for (int64_t i = 0; i < half; i++)
    for (int64_t p = 0; p < context; p++) {
      float angle = (float)p * f->fv.v[i];
      data[i * context + p] = (sine ? ane_sinf(angle) : ane_cosf(angle)) * magnitude;
    }
  return mil_tensor(b, sine ? "sin" : "cos", b->dtype, 4, (int64_t[]){1, 1, half, context}, data);
}

mil_value lower_token_indices(struct lower *l) {
  struct mil_build *b = &l->b;
  mil_value zero = mil_int(b, 0), one = mil_int(b, 1), n;
  if (l->t >= 0) {
    n = mil_int(b, (int32_t)l->t);
  } else {
    struct mil_arg squeeze[] = {{"x", lower_tokens(l)},
                                {"begin", mil_ints(b, &(int32_t){0}, 1)},
                                {"end", mil_ints(b, &(int32_t){1}, 1)},
                                {"squeeze_mask", mil_flags(b, &(bool){true}, 1)}};
    n = mil_op(b, "slice_by_index", "count", ane_mil_tensor_type(ANE_MIL_INT32, 0, NULL), squeeze, 4);
  }
  struct mil_arg args[] = {{"end", n}, {"start", zero}, {"step", one}};
  return mil_op(b, "range_1d", NULL, ane_mil_tensor_type(ANE_MIL_INT32, 1, &l->t), args, 3);
}

/* Returns position .. position + T - 1, int32 [T]. */
static mil_value positions(struct lower *l) { return mil_add(&l->b, lower_token_indices(l), lower_position(l)); }

/* Multiplies x by the factors of its positions, gathered from those of all positions, [1, 1, context]. */
void lower_position_scale(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t context = lower_held(l), original = ane_node_int(n, "original");
  float beta = (float)ane_node_float(n, "beta"), *data = ane_arena_array(b->arena, (size_t)context, sizeof *data);
  if (!data) {
    mil_build_no_memory(b);
    return;
  }
  for (int64_t p = 0; p < context; p++) data[p] = 1.0f + beta * ane_logf(1.0f + (float)(p / original));
  mil_value table = mil_tensor(b, "factors", b->dtype, 4, (int64_t[]){1, 1, 1, context}, data);
  mil_value by = mil_gather(b, table, positions(l), 3);
  lower_out(l, n, mil_mul(b, lower_in(l, n, 0), lower_as_flat(l, by, 1)));
}

static void gather_tables(struct lower *l, const struct ane_node *n, mil_value *cos, mil_value *sin) {
  struct mil_build *b = &l->b;
  int64_t original = ane_node_int(n, "original");
  if (ane_node_attr(n, "long_freq")->fv.n && lower_held(l) > original) {
    mil_build_fail(b, ane_fail(b->err, ANE_UNSUPPORTED,
                               "%s has other factors beyond %" PRId64
                               " positions: its tables must be inputs for a context of %" PRId64,
                               n->name, original, lower_held(l)));
    return;
  }
  mil_value at = positions(l);
  *cos = mil_gather(b, whole_table(l, n, false), at, 3);
  *sin = mil_gather(b, whole_table(l, n, true), at, 3);
}

static mil_value given_table(struct lower *l, const char *word, ane_mil_port_kind kind, int32_t number, int64_t half) {
  char name[32];
  snprintf(name, sizeof name, "%s_%" PRId32, word, number);
  mil_value x = lower_input(l, name, kind, ANE_NONE, number, lower_type(l, l->b.dtype, half));
  return mil_reshape4(&l->b, x, 1, 1, half, -1);
}

/* Sets *cos and *sin to those of the rope table `value`, [1, 1, r / 2, T]. */
static void cos_sin(struct lower *l, int32_t value, mil_value *cos, mil_value *sin) {
  const struct ane_node *n = &l->g->nodes[l->g->values[value].node];
  int32_t number = find_rope(l->g, l->ropes.nodes, l->ropes.n, n);
  if (!l->cos[number]) {
    int64_t half = ane_node_attr(n, "inv_freq")->fv.n;
    if (l->o->rope == ANE_MIL_ROPE_CONSTANTS) {
      gather_tables(l, n, &l->cos[number], &l->sin[number]);
    } else {
      l->cos[number] = given_table(l, "cos", ANE_MIL_PORT_COS, number, half);
      l->sin[number] = given_table(l, "sin", ANE_MIL_PORT_SIN, number, half);
    }
  }
  *cos = l->cos[number];
  *sin = l->sin[number];
}

/* Does nothing: each user of the table asks for it on first use. */
void lower_rope_table(struct lower *l, struct mil_build *b, const struct ane_node *n) { (void)l, (void)b, (void)n; }

/* Maps (a, b) to (a cos - b sin, b cos + a sin) for pairs in the first r dimensions of each head [1, heads, d, T]. */
void lower_rope(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t heads = ane_node_int(n, "heads");
  bool half = ane_node_string(n, "layout")[0] == 'h';
  mil_value x = lower_heads(l, n->inputs[0], heads), cos = NULL, sin = NULL;
  cos_sin(l, n->inputs[1], &cos, &sin);
  if (b->status) return;
  int64_t r = 2 * mil_dim(cos, 2), d = mil_dim(x, 2);
  mil_value even = half ? mil_slice(b, x, 2, 0, r / 2, 1) : mil_slice(b, x, 2, 0, r, 2);
  mil_value odd = half ? mil_slice(b, x, 2, r / 2, r, 1) : mil_slice(b, x, 2, 1, r, 2);
  mil_value y[3] = {mil_binary(b, "sub", mil_mul(b, even, cos), mil_mul(b, odd, sin)),
                    mil_add(b, mil_mul(b, odd, cos), mil_mul(b, even, sin)), NULL};
  mil_value rest = r < d ? mil_slice(b, x, 2, r, d, 1) : NULL;
  if (half) {
    y[2] = rest;
    lower_out_heads(l, n, mil_concat(b, y, rest ? 3 : 2, 2, false), heads);
    return;
  }
  mil_value rotated = mil_concat(b, y, 2, 2, true);
  lower_out_heads(l, n, rest ? mil_concat2(b, rotated, rest, 2) : rotated, heads);
}
