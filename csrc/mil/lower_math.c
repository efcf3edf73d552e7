/* Projections, and ops that work on single numbers or move channels. */
#include "mil/lower_internal.h"

#include <inttypes.h>
#include <string.h>

/* Lowers a projection. Of the head, only the rows of the slice are used. */
void lower_conv1x1(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  const struct ane_shard *p = l->shard;
  bool slice = p->kind == ANE_SHARD_HEAD && p->split == l->node;
  int64_t rows = l->g->values[n->inputs[1]].shape.dim[0], from = slice ? p->from : 0, to = slice ? p->to : rows;
  mil_value bias = lower_plain(l, ane_node_input(n, 2), from, to, 1, &(int64_t){to - from}, 0, 1);
  lower_out(l, n, mil_conv(b, lower_in(l, n, 0), lower_matrix(l, n->inputs[1], from, to), bias, 1));
}

/* Lowers each head to a convolution of its own. */
void lower_head_linear(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t heads = n->n_inputs - 1;
  mil_value x = lower_in(l, n, 0), *list = ane_arena_array(b->arena, (size_t)heads, sizeof *list);
  int64_t c = mil_dim(x, 1) / heads;
  if (!list) {
    mil_build_no_memory(b);
    return;
  }
  for (int64_t h = 0; h < heads; h++) {
    int64_t rows = l->g->values[n->inputs[1 + h]].shape.dim[0];
    list[h] = mil_conv(b, mil_slice(b, x, 1, h * c, (h + 1) * c, 1), lower_matrix(l, n->inputs[1 + h], 0, rows), NULL, 1);
  }
  lower_out(l, n, heads > 1 ? mil_concat(b, list, (int)heads, 1, false) : list[0]);
}

void lower_glu(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  mil_value gate = mil_activation(b, ane_node_string(n, "act"), lower_in(l, n, 0));
  lower_out(l, n, mil_mul(b, gate, lower_in(l, n, 1)));
}

void lower_act(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  lower_out(l, n, mil_activation(b, ane_node_string(n, "act"), lower_in(l, n, 0)));
}
void lower_add(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  lower_out(l, n, mil_add(b, lower_in(l, n, 0), lower_in(l, n, 1)));
}
void lower_mul(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  lower_out(l, n, mil_mul(b, lower_in(l, n, 0), lower_in(l, n, 1)));
}
void lower_scale(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  lower_out(l, n, mil_scale(b, lower_in(l, n, 0), ane_node_float(n, "by")));
}

void lower_softcap(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  double cap = ane_node_float(n, "cap");
  lower_out(l, n, mil_scale(b, mil_unary(b, "tanh", mil_scale(b, lower_in(l, n, 0), 1 / cap)), cap));
}

void lower_slice(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t heads = ane_node_int(n, "heads");
  if (heads > 1) {
    mil_value x = lower_heads(l, n->inputs[0], heads);
    lower_out_heads(l, n, mil_slice(b, x, 2, ane_node_int(n, "from"), ane_node_int(n, "to"), 1), heads);
    return;
  }
  lower_out(l, n, mil_slice(b, lower_in(l, n, 0), 1, ane_node_int(n, "from"), ane_node_int(n, "to"), 1));
}

void lower_concat(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t heads = ane_node_int(n, "heads");
  if (heads > 1) {
    mil_value x = mil_concat2(b, lower_heads(l, n->inputs[0], heads), lower_heads(l, n->inputs[1], heads), 2);
    lower_out_heads(l, n, x, heads);
    return;
  }
  lower_out(l, n, mil_concat2(b, lower_in(l, n, 0), lower_in(l, n, 1), 1));
}

void lower_affine(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  mil_value x = lower_in(l, n, 0), bias = lower_vector(l, ane_node_input(n, 1), 1, 0, 1),
            scale = lower_vector(l, ane_node_input(n, 2), 1, 0, 1);
  if (bias) x = mil_add(b, x, bias);
  lower_out(l, n, scale ? mil_mul(b, x, scale) : x);
}

/* Tiles [1, heads, 1, d, T] to [1, heads, times, d, T]. One head covers all channels. */
void lower_repeat_heads(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t heads = ane_node_int(n, "heads"), times = ane_node_int(n, "times");
  mil_value x = lower_in(l, n, 0);
  int64_t d = mil_dim(x, 1) / heads;
  if (heads == 1) {
    lower_out(l, n, mil_tile(b, x, 1, times));
    return;
  }
  x = mil_tile(b, mil_reshape(b, x, 5, (int64_t[]){1, heads, 1, d, -1}), 2, times);
  lower_out(l, n, lower_as_flat(l, x, heads * times * d));
}

void lower_mean_heads(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t heads = ane_node_int(n, "heads"), times = ane_node_int(n, "times");
  mil_value x = lower_in(l, n, 0);
  int64_t d = mil_dim(x, 1) / heads;
  x = mil_reduce(b, "reduce_mean", mil_reshape(b, x, 5, (int64_t[]){1, heads / times, times, d, -1}), 2);
  lower_out(l, n, lower_as_flat(l, x, heads / times * d));
}

void lower_gather(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  mil_value x = lower_in(l, n, 0);
  lower_out(l, n, l->o->gather == ANE_MIL_GATHER_LAST ? mil_slice(b, x, l->token_axis, -1, MIL_END, 1) : x);
}

/* Looks up rows [T, C] of a table by token ids or token types, int32 [1, T]. rest: ids beyond the table take row 0. */
static mil_value looked_up(struct lower *l, mil_value table, const char *name, ane_mil_port_kind kind, bool rest) {
  struct mil_build *b = &l->b;
  struct ane_mil_type type = ane_mil_tensor_type(ANE_MIL_INT32, 2, (int64_t[]){1, l->t});
  mil_value *known = kind == ANE_MIL_PORT_IDS ? &l->ids : &l->types;
  if (!*known) *known = lower_input(l, name, kind, ANE_NONE, 0, type);
  mil_value list = mil_reshape(b, *known, 1, &(int64_t){-1});
  if (rest) {
    mil_value beyond = mil_compare(b, "greater_equal", list, mil_int(b, (int32_t)mil_dim(table, 0)));
    list = mil_mul(b, list, mil_binary(b, "sub", mil_int(b, 1), mil_cast(b, beyond, ANE_MIL_INT32)));
  }
  return mil_gather(b, table, list, 0);
}

/* Returns rows [T, C] of a table by position. A call has a whole sequence, so they are the first T. */
static mil_value first_rows(struct lower *l, mil_value table, const char *name) {
  struct mil_build *b = &l->b;
  if (l->shard->n_states || l->t < 0)
    mil_build_fail(
        b, ane_fail(b->err, ANE_UNSUPPORTED, "%s: a table of positions needs calls of whole sequences, of fixed T", name));
  else if (l->t > mil_dim(table, 0))
    mil_build_fail(b, ane_fail(b->err, ANE_INVALID, "%s has %" PRId64 " positions, but a call has %" PRId64 " tokens", name,
                               mil_dim(table, 0), l->t));
  return b->status || l->t == mil_dim(table, 0) ? table : mil_slice(b, table, 0, 0, l->t, 1);
}

/* rows [T, C] -> [C, T] */
void lower_embed(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  const struct ane_value *v = &l->g->values[n->inputs[1]];
  const char *list = l->g->values[n->inputs[0]].name;
  mil_value table = lower_plain(l, n->inputs[1], 0, v->shape.dim[0], 2, v->shape.dim, 0, 1), rows;
  if (strcmp(list, "positions") == 0)
    rows = first_rows(l, table, v->name);
  else
    rows =
        looked_up(l, table, list, strcmp(list, "ids") == 0 ? ANE_MIL_PORT_IDS : ANE_MIL_PORT_TYPES, ane_node_int(n, "rest") != 0);
  if (b->status) return;
  lower_out(l, n, lower_as_flat(l, mil_transpose(b, rows, (int32_t[]){1, 0}), v->shape.dim[1]));
}
