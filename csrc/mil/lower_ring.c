/* Blocks that look back over tokens. A ring state [1, C, K - 1, 1] holds the last K - 1 inputs, which are placed before the
 * inputs of the call. The ring stores them minus the inputs before the first token, so that zeros always mean the start of a
 * sequence. */
#include "mil/lower_internal.h"

struct lookback {
  mil_value state, all; /* all: [1, C, K - 1 + T, 1] */
  mil_value less;       /* the same minus the inputs before the first token */
  int64_t count;        /* K - 1 */
};

static struct lookback look_back(struct lower *l, int32_t state, mil_value x, int32_t before, int64_t count) {
  struct mil_build *b = &l->b;
  struct ane_mil_type type = x->type;
  type.dim[l->token_axis] = count;
  struct lookback c = {.count = count};
  c.state = lower_state(l, state, ANE_MIL_PORT_COLUMNS, 4, type.dim);
  mil_value first = lower_vector(l, before, 1, 0, 1); /* NULL: zeros */
  mil_value past = mil_cast(b, mil_read_state(b, c.state), b->dtype);
  /* The inputs of the call go through the same subtraction and addition. That may round, and results must not depend on how
   * tokens are divided into calls. */
  if (first) x = mil_binary(b, "sub", x, first);
  c.less = mil_concat2(b, past, x, l->token_axis);
  c.all = first ? mil_add(b, c.less, first) : c.less;
  return c;
}

/* Stores the last inputs for the next call. */
static void keep_last(struct lower *l, const struct lookback *c) {
  struct mil_build *b = &l->b;
  mil_value last = mil_slice_size(b, c->less, l->token_axis, lower_on_axis(l, 4, l->token_axis, lower_tokens(l)), c->count);
  mil_write_state(b, c->state, mil_cast(b, last, ANE_MIL_FP16));
}

void lower_conv_causal(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  const struct ane_shape *w = &l->g->values[n->inputs[1]].shape; /* [C_out, C / groups, K] or [C, K] */
  int64_t taps = w->dim[w->rank - 1], rows = w->dim[0], groups = ane_node_int(n, "groups");
  int64_t kernel[4] = {rows, w->rank == 3 ? w->dim[1] : 1, 1, 1};
  kernel[l->token_axis] = taps;
  struct lookback c = look_back(l, n->inputs[4], lower_in(l, n, 0), n->inputs[3], taps - 1);
  mil_value weight = lower_plain(l, n->inputs[1], 0, rows, 4, kernel, 0, 1),
            bias = lower_plain(l, n->inputs[2], 0, rows, 1, &rows, 0, 1);
  mil_value y = mil_conv(b, c.all, weight, bias, groups);
  keep_last(l, &c);
  lower_out(l, n, y);
}

void lower_delay(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  struct lookback c = look_back(l, n->inputs[1], lower_in(l, n, 0), ANE_NONE, 1);
  keep_last(l, &c);
  lower_out(l, n, mil_slice(b, c.all, l->token_axis, 0, -1, 1));
}
