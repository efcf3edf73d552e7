/* Attention with its state. Query heads that share a key head become rows of one matrix, so that keys and values are never
 * repeated. With g query heads per key head:
 *
 *   q [1, kv, g T, d] x keys [1, kv, S, d] -> scores [1, kv, g T, S], + mask, softmax, x values [1, kv, S, d]
 *
 * The mask [1, 1, T, S] is tiled to g T rows once for all attention ops of the shard. */
#include "mil/lower_internal.h"

#include <inttypes.h>

/* ---- Masks -----------------------------------------------------------------------------------------------------------*/

static int32_t find_mask(const struct ane_mil_mask *list, int32_t n, const struct ane_node *node) {
  int32_t i = 0;
  while (i < n && (list[i].window != ane_node_int(node, "window") || list[i].ahead != ane_node_int(node, "ahead"))) i++;
  return i;
}

ane_status ane_mil_masks(struct ane_arena *arena, const struct ane_graph *g, struct ane_mil_masks *out, struct ane_error *err) {
  struct ane_mil_mask *list = ane_arena_array(arena, (size_t)g->n_nodes + 1, sizeof *list);
  if (!list) return ane_fail(err, ANE_NOMEM, "no memory for the masks");
  *out = (struct ane_mil_masks){list, 0};
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->op == ANE_OP_ATTENTION && !n->dead && find_mask(list, out->n, n) == out->n)
      list[out->n++] = (struct ane_mil_mask){ane_node_int(n, "window"), ane_node_int(n, "ahead")};
  }
  return ANE_OK;
}

/* Are keys and values kept from call to call? If not, a call has a whole sequence. */
static bool has_keys(const struct lower *l, const struct ane_node *n) { return ane_shard_has_state(l->shard, n->inputs[3]); }

/* Returns the node's mask, with `times` rows for each token. */
static struct lowered_mask *mask_of(struct lower *l, const struct ane_node *n, int64_t times) {
  int32_t number = find_mask(l->masks.list, l->masks.n, n);
  struct lowered_mask *m = &l->mask[number];
  if (!m->given) {
    char name[32];
    int64_t keys = has_keys(l, n) ? l->o->context : l->t;
    snprintf(name, sizeof name, "mask_%" PRId32, number);
    m->given = lower_input(l, name, ANE_MIL_PORT_MASK, ANE_NONE, number,
                           ane_mil_tensor_type(l->b.dtype, 4, (int64_t[]){1, 1, l->t, keys}));
  }
  if (m->times != times) m->tiled = mil_tile(&l->b, m->given, 2, times), m->times = times;
  return m;
}

/* ---- Keys and values -------------------------------------------------------------------------------------------------*/

/* Makes l->begin and l->end, int32 [4] each: the bounds of rows position .. position + T - 1 of a state [1, kv, context, d]. */
static void written_rows(struct lower *l) {
  if (l->begin) return;
  l->begin = lower_on_axis(l, 4, 2, lower_position(l));
  l->end = lower_on_axis(l, 4, 2, mil_add(&l->b, lower_position(l), lower_tokens(l)));
}

/* Writes x [1, kv, d, T] to the state; returns the positions that attention sees. Layers that share a state write it once. */
static mil_value remember(struct lower *l, int32_t state, ane_mil_port_kind kind, mil_value x) {
  struct mil_build *b = &l->b;
  struct lowered *seen = &l->values[state];
  if (seen->heads) return seen->heads;
  mil_value s = lower_state(l, state, kind, 4, (int64_t[]){1, mil_dim(x, 1), lower_held(l), mil_dim(x, 2)});
  written_rows(l);
  mil_value rows = mil_cast(b, mil_swap(b, x), ANE_MIL_FP16);
  mil_write_state(b, s, mil_slice_update(b, mil_read_state(b, s), rows, 2, l->begin, l->end));
  mil_value all = mil_read_state(b, s);
  if (l->o->context < lower_held(l)) all = mil_slice(b, all, 2, 0, l->o->context, 1);
  return seen->heads = mil_cast(b, all, b->dtype);
}

/* ---- Scores ------------------------------------------------------------------------------------------------------------*/

/* Computes the softmax over the keys and one extra score per head that has no value (attention sink). */
static mil_value softmax_with_sinks(struct lower *l, const struct ane_node *n, mil_value scores, mil_value mask) {
  struct mil_build *b = &l->b;
  int64_t heads = ane_node_int(n, "heads"), kv = ane_node_int(n, "kv_heads"), keys = mil_dim(scores, 3);
  mil_value sinks = lower_vector(l, ane_node_input(n, 5), 1, 0, ane_node_float(n, "sink_scale"));
  /* [1, heads, 1, 1] for each of T tokens; T is known only from the mask */
  mil_value column = mil_scale(b, mil_slice(b, mask, 3, 0, 1, 1), 0);
  column = mil_reshape4(b, mil_add(b, column, sinks), 1, kv, mil_dim(mask, 2) < 0 ? -1 : heads / kv * mil_dim(mask, 2), 1);
  return mil_slice(b, mil_softmax(b, mil_concat2(b, scores, column, 3), 3), 3, 0, keys, 1);
}

static mil_value weights_of(struct lower *l, const struct ane_node *n, mil_value scores) {
  struct mil_build *b = &l->b;
  double cap = ane_node_float(n, "softcap");
  if (cap > 0) scores = mil_scale(b, mil_unary(b, "tanh", mil_scale(b, scores, 1 / cap)), cap);
  const struct lowered_mask *m = mask_of(l, n, ane_node_int(n, "heads") / ane_node_int(n, "kv_heads"));
  scores = mil_add(b, scores, m->tiled);
  return ane_node_input(n, 5) == ANE_NONE ? mil_softmax(b, scores, 3) : softmax_with_sinks(l, n, scores, m->given);
}

void lower_attention(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  int64_t heads = ane_node_int(n, "heads"), kv = ane_node_int(n, "kv_heads");
  bool whole = !has_keys(l, n);
  if (whole && l->t < 0) {
    const char *what = ane_node_int(n, "ahead") ? "attention to both sides" : "attention without states";
    mil_build_fail(b, ane_fail(b->err, ANE_UNSUPPORTED, "%s needs a fixed number of tokens", what));
    return;
  }
  mil_value q = lower_heads(l, n->inputs[0], heads), k = lower_heads(l, n->inputs[1], kv), v = lower_heads(l, n->inputs[2], kv);
  int64_t d = mil_dim(q, 2);
  q = mil_swap(b, mil_scale(b, q, ane_node_float(n, "scale")));
  q = mil_reshape4(b, q, 1, kv, -1, d);
  mil_value out;
  if (whole) {
    out = mil_matmul(b, weights_of(l, n, mil_matmul(b, q, k, false)), v, true);
  } else {
    mil_value keys = remember(l, n->inputs[3], ANE_MIL_PORT_KEYS, k), values = remember(l, n->inputs[4], ANE_MIL_PORT_VALUES, v);
    out = mil_matmul(b, weights_of(l, n, mil_matmul(b, q, keys, true)), values, false);
  }
  lower_out_heads(l, n, mil_swap(b, mil_reshape4(b, out, 1, heads, -1, d)), heads);
}
