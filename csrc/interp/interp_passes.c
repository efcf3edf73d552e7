/* Passes over the translated graph: prune unused nodes, let products read stored constants, find last uses. */
#include "interp/interp_internal.h"

#include <string.h>

/* ---- Uses ----------------------------------------------------------------------------------------------------------*/

/* Adds `by` to the use counts of all values that the living nodes of a block read, and of its outputs. */
static void count_block(struct ane_interp *g, const struct interp_block *b, int by);

static void count_node(struct ane_interp *g, const struct interp_node *n, int by) {
  for (int32_t i = 0; i < n->n_in; i++)
    if (n->in[i] != INTERP_NONE) g->values[n->in[i]].uses += by;
  for (int k = 0; k < 2; k++)
    if (n->blocks[k]) count_block(g, n->blocks[k], by);
}

static void count_block(struct ane_interp *g, const struct interp_block *b, int by) {
  for (int32_t i = 0; i < b->n_nodes; i++)
    if (!b->nodes[i].dead) count_node(g, &b->nodes[i], by);
  for (int32_t i = 0; i < b->n_outputs; i++) g->values[b->outputs[i]].uses += by;
}

/* Returns whether the node changes a state, itself or in its blocks. */
static bool writes(const struct interp_node *n) {
  bool found = false;
  for (int k = 0; k < 2 && n->blocks[k]; k++)
    for (int32_t i = 0; !found && i < n->blocks[k]->n_nodes; i++) {
      const struct interp_node *inner = &n->blocks[k]->nodes[i];
      found = inner->kind == INTERP_WRITE || writes(inner);
    }
  return found;
}

/* Walks from the end: removing an unused node releases the values that it reads. */
static void prune_block(struct ane_interp *g, struct interp_block *b) {
  for (int32_t i = b->n_nodes - 1; i >= 0; i--) {
    struct interp_node *n = &b->nodes[i];
    if (n->dead) continue;
    bool used = n->kind == INTERP_WRITE || writes(n);
    for (int32_t k = 0; k < n->n_out; k++) used = used || (n->out[k] != INTERP_NONE && g->values[n->out[k]].uses > 0);
    if (!used) {
      count_node(g, n, -1);
      n->dead = true;
      continue;
    }
    for (int k = 0; k < 2; k++)
      if (n->blocks[k]) prune_block(g, n->blocks[k]);
  }
}

ane_status interp_prune(struct ane_interp *g, struct ane_error *err ANE_UNUSED) {
  for (int32_t i = 0; i < g->n_values; i++) g->values[i].uses = 0;
  count_block(g, &g->main, 1);
  prune_block(g, &g->main);
  return ANE_OK;
}

/* ---- Fusing --------------------------------------------------------------------------------------------------------*/

static const struct interp_node *maker(const struct ane_interp *g, int32_t value) {
  if (value == INTERP_NONE || !g->values[value].block || g->values[value].node < 0) return NULL; /* a constant or an input */
  const struct interp_node *n = &g->values[value].block->nodes[g->values[value].node];
  return n->kind != INTERP_PRIM ? NULL : n;
}

static int32_t input_of(const struct interp_node *n, const char *param) {
  int i = ane_prim_param(n->op, param);
  return i >= 0 && i < n->n_in ? n->in[i] : INTERP_NONE;
}

/* Returns the constant of which `value` is the two-dimensional transpose; INTERP_NONE: there is none. */
static int32_t transposed_constant(const struct ane_interp *g, int32_t value) {
  const struct interp_node *n = maker(g, value);
  if (!n || n->op != ANE_PRIM_transpose) return INTERP_NONE;
  const struct ane_dyn *x = interp_const_in(g, n, "x");
  return x && x->rank == 2 && (input_of(n, "perm") == INTERP_NONE || interp_const_in(g, n, "perm")) ? n->in[0] : INTERP_NONE;
}

/* Returns whether a two-dimensional transpose by this perm changes anything: [1, 0] and an absent perm do, [0, 1] does not. */
static bool is_transpose(const struct ane_interp *g, int32_t value) {
  const struct ane_dyn *perm = interp_const_in(g, maker(g, value), "perm");
  return !perm || (perm->count == 2 && perm->dtype == ANE_I64 && ((const uint8_t *)perm->data)[0] != 0);
}

/* Returns whether a parameter is one constant number other than 0. It may be of any type, and stored as a code. */
static bool flag(const struct ane_interp *g, const struct interp_node *n, const char *param) {
  const struct ane_dyn *t = interp_const_in(g, n, param);
  if (!t || t->count != 1) return false;
  float code = 0;
  if (t->coded) ane_coded_read(t->coded, 0, 1, &code);
  const uint8_t *p = t->coded ? (const uint8_t *)&code : t->data;
  bool any = false;
  for (uint64_t i = 0; i < ane_dyn_bytes(t); i++) any = any || p[i] != 0;
  return any;
}

/* matmul(x, transpose(w)) reads w itself: large weights are neither copied nor transposed at each call. */
static ane_status fuse_transposed(struct ane_interp *g, struct interp_node *n, struct ane_error *err) {
  int32_t w = transposed_constant(g, n->in[1]);
  if (w == INTERP_NONE || !is_transpose(g, n->in[1])) return ANE_OK;
  int64_t transpose = !flag(g, n, "transpose_y");
  int32_t *in = ane_arena_array(&g->arena, 4, sizeof *in);
  if (!in) return interp_no_memory(err);
  in[0] = n->in[0], in[1] = w, in[2] = input_of(n, "transpose_x");
  n->in = in;
  n->n_in = 4;
  return interp_ints(g, &transpose, 1, true, &in[3], err);
}

/* matmul(x, dequantize(codes)) decodes a few rows at a time; the whole matrix never exists as floats. */
static ane_status fuse_dequantize(struct ane_interp *g, struct interp_node *n, struct ane_error *err) {
  const struct interp_node *d = maker(g, n->in[1]);
  if (!d || d->op != ANE_PRIM_dequantize || flag(g, n, "transpose_x") || flag(g, n, "transpose_y")) return ANE_OK;
  const struct ane_dyn *data = interp_const_in(g, d, "x"), *scale = interp_const_in(g, d, "scale");
  bool zero = input_of(d, "zero_point") == INTERP_NONE || interp_const_in(g, d, "zero_point");
  if (!data || !scale || !zero || data->rank != 2) return ANE_OK;
  if (data->dtype != ANE_I4 && data->dtype != ANE_U4 && data->dtype != ANE_I8 && data->dtype != ANE_U8) return ANE_OK;
  int32_t *in = ane_arena_array(&g->arena, (size_t)d->n_in + 1, sizeof *in);
  if (!in) return interp_no_memory(err);
  in[0] = n->in[0];
  memcpy(in + 1, d->in, (size_t)d->n_in * sizeof *in);
  n->op = ANE_PRIM_matmul_dequantize;
  n->in = in;
  n->n_in = d->n_in + 1;
  return ANE_OK;
}

/* gather(transpose(w), i) along the first axis reads columns of w. */
static void fuse_gather(const struct ane_interp *g, struct interp_node *n) {
  int32_t w = transposed_constant(g, n->in[0]);
  const struct ane_dyn *axis = interp_const_in(g, n, "axis");
  bool first = input_of(n, "axis") == INTERP_NONE ||
               (axis && axis->count == 1 && axis->dtype == ANE_I64 && ((const uint8_t *)axis->data)[0] == 0);
  if (w == INTERP_NONE || !is_transpose(g, n->in[0]) || !first || input_of(n, "batch_dims") != INTERP_NONE) return;
  n->op = ANE_PRIM_gather_columns;
  n->in[0] = w;
  n->n_in = 2;
}

static ane_status fuse_block(struct ane_interp *g, struct interp_block *b, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (int32_t i = 0; !st && i < b->n_nodes; i++) {
    struct interp_node *n = &b->nodes[i];
    if (n->blocks[0]) {
      st = fuse_block(g, n->blocks[0], err);
      if (!st) st = fuse_block(g, n->blocks[1], err);
    } else if (n->kind != INTERP_PRIM || n->n_in < 2) { /* an input may be missing: the call refuses it */
      continue;
    } else if (n->op == ANE_PRIM_matmul) {
      st = fuse_transposed(g, n, err);
      if (!st) st = fuse_dequantize(g, n, err);
    } else if (n->op == ANE_PRIM_gather) {
      fuse_gather(g, n);
    }
  }
  return st;
}

ane_status interp_fuse(struct ane_interp *g, struct ane_error *err) { return fuse_block(g, &g->main, err); }

/* ---- The head ------------------------------------------------------------------------------------------------------*/

static bool constant_row(const struct ane_interp *g, int32_t value) {
  const struct interp_value *v = value == INTERP_NONE ? NULL : &g->values[value];
  return v && v->constant && (v->data.rank <= 1 || v->data.count == 1);
}

/* Returns whether a value is a scale or a zero point that dynamic_quantize computes. */
static bool computed_scale(const struct ane_interp *g, int32_t value) {
  const struct interp_node *n = maker(g, value);
  return n && n->op == ANE_PRIM_dynamic_quantize && value != n->out[0];
}

/* Returns whether a value has at most one row: a constant, a computed scale, or a product of one with a constant row. */
static bool one_row(const struct ane_interp *g, int32_t value) {
  const struct interp_node *n = maker(g, value);
  if (constant_row(g, value) || computed_scale(g, value)) return true;
  return n && n->op == ANE_PRIM_mul && n->n_in == 2 &&
         ((computed_scale(g, n->in[0]) && constant_row(g, n->in[1])) ||
          (constant_row(g, n->in[0]) && computed_scale(g, n->in[1])));
}

/* Returns whether each row of the result depends on the same row of x only. Other operands must have at most one row. */
static bool row_by_row(const struct ane_interp *g, const struct interp_node *n) {
  static const ane_prim ops[] = {ANE_PRIM_add,  ANE_PRIM_sub,  ANE_PRIM_mul,      ANE_PRIM_real_div,
                                 ANE_PRIM_tanh, ANE_PRIM_cast, ANE_PRIM_identity, ANE_PRIM_clip};
  bool known = false;
  for (size_t i = 0; i < ANE_COUNT(ops); i++) known = known || n->op == ops[i];
  for (int32_t i = 1; known && i < n->n_in; i++) {
    known = n->in[i] == INTERP_NONE || one_row(g, n->in[i]);
  }
  return known && n->n_out == 1 && n->in[0] != INTERP_NONE && !g->values[n->in[0]].constant;
}

static bool is_product(const struct ane_interp *g, const struct interp_node *n) {
  if (n->op == ANE_PRIM_matmul_nbits || n->op == ANE_PRIM_matmul_dequantize) return n->state != NULL;
  if (n->op == ANE_PRIM_matmul_integer) { /* a single zero point of x */
    int32_t zero = input_of(n, "x_zero_point");
    const struct ane_dyn *c = interp_const_in(g, n, "x_zero_point");
    return n->state && (zero == INTERP_NONE || (c ? c->count == 1 : computed_scale(g, zero)));
  }
  return n->op == ANE_PRIM_matmul && n->state && !flag(g, n, "transpose_x");
}

/* Inserts a node before index `at`. */
static ane_status insert(struct ane_interp *g, struct interp_block *b, int32_t at, const struct interp_node *n,
                         struct ane_error *err) {
  struct interp_node *nodes = ane_arena_array(&g->arena, (size_t)b->n_nodes + 1, sizeof *nodes);
  if (!nodes) return interp_no_memory(err);
  memcpy(nodes, b->nodes, (size_t)at * sizeof *nodes);
  nodes[at] = *n;
  memcpy(nodes + at + 1, b->nodes + at, (size_t)(b->n_nodes - at) * sizeof *nodes);
  for (int32_t i = 0; i < g->n_values; i++)
    if (g->values[i].block == b && g->values[i].node >= at) g->values[i].node++;
  g->values[n->out[0]].block = b;
  g->values[n->out[0]].node = at;
  b->nodes = nodes;
  b->n_nodes++;
  return ANE_OK;
}

ane_status interp_trim_head(struct ane_interp *g, int32_t logits, bool *done, struct ane_error *err) {
  int32_t v = g->main.outputs[logits];
  const struct interp_node *n = maker(g, v);
  *done = false;
  while (n && g->values[v].block == &g->main && g->values[v].uses == 1 && row_by_row(g, n)) v = n->in[0], n = maker(g, v);
  if (!n || g->values[v].block != &g->main || g->values[v].uses != 1 || !is_product(g, n) || n->in[0] == INTERP_NONE ||
      g->values[n->in[0]].constant)
    return ANE_OK;
  int32_t at = g->values[v].node, wanted, taken, axis,
          *inputs = ane_arena_array(&g->arena, (size_t)(g->n_inputs + g->n_added) + 1, sizeof *inputs);
  int64_t rows = -2;
  struct interp_node take = {.name = "output rows", .op = ANE_PRIM_gather, .n_in = 3, .n_out = 1};
  take.in = ane_arena_array(&g->arena, 3, sizeof *take.in);
  take.out = ane_arena_array(&g->arena, 1, sizeof *take.out);
  if (!inputs || !take.in || !take.out) return interp_no_memory(err);
  ane_status st = interp_value(g, "output rows", &wanted, err);
  if (!st) st = interp_value(g, "gathered rows", &taken, err);
  if (!st) st = interp_ints(g, &rows, 1, true, &axis, err);
  if (st) return st;
  take.in[0] = n->in[0], take.in[1] = wanted, take.in[2] = axis;
  take.out[0] = taken;
  st = insert(g, &g->main, at, &take, err);
  if (st) return st;
  g->main.nodes[at + 1].in[0] = taken;
  memcpy(inputs, g->inputs, (size_t)(g->n_inputs + g->n_added) * sizeof *inputs);
  inputs[g->n_inputs + g->n_added++] = wanted;
  g->inputs = inputs;
  *done = true;
  st = interp_prune(g, err);
  return st ? st : interp_live(g, err);
}

/* ---- Last uses -----------------------------------------------------------------------------------------------------*/

/* The position of a pass: one entry for each enclosing block. */
struct position {
  const struct position *outer;
  const struct interp_block *block;
  int32_t node;
};

/* Notes a use at this position. The last use belongs to a node of the block that made the value. */
static void used_at(struct ane_interp *g, const struct position *p, int32_t value) {
  struct interp_value *v = value == INTERP_NONE ? NULL : &g->values[value];
  for (; v && !v->constant && p; p = p->outer)
    if (p->block == v->block) v->last = ANE_MAX(v->last, p->node);
}

static void mark_block(struct ane_interp *g, const struct interp_block *b, const struct position *outer) {
  for (int32_t i = 0; i < b->n_nodes; i++) {
    const struct interp_node *n = &b->nodes[i];
    struct position here = {outer, b, i};
    b->nodes[i].n_drop = 0;
    if (n->dead) continue;
    for (int32_t k = 0; k < n->n_in; k++) used_at(g, &here, n->in[k]);
    for (int32_t k = 0; k < n->n_out; k++) used_at(g, &here, n->out[k]);
    for (int k = 0; k < 2; k++)
      if (n->blocks[k]) mark_block(g, n->blocks[k], &here);
  }
  struct position end = {outer, b, INT32_MAX}; /* outputs of the block outlive its nodes */
  for (int32_t i = 0; i < b->n_outputs; i++) used_at(g, &end, b->outputs[i]);
}

/* Counts the values by the node that uses them last; `fill`: lists them. Inputs of the graph count as made in the main block. One
 * walk over all values serves all blocks: there may be as many of these. */
static void find_drops(struct ane_interp *g, bool fill) {
  for (int32_t v = 0; v < g->n_values; v++) {
    const struct interp_value *value = &g->values[v];
    if (!value->block || value->constant || value->last < 0 || value->last >= value->block->n_nodes) continue;
    struct interp_node *n = &value->block->nodes[value->last];
    if (fill) n->drop[n->n_drop] = v;
    n->n_drop++;
  }
}

/* Finds the outputs that are used, and makes room for `n_drop` values, which becomes 0. */
static ane_status make_lists(struct ane_interp *g, struct interp_block *b, struct ane_error *err) {
  for (int32_t i = 0; i < b->n_nodes; i++) {
    struct interp_node *n = &b->nodes[i];
    n->drop = ane_arena_array(&g->arena, (size_t)n->n_drop + 1, sizeof *n->drop);
    n->wanted = ane_arena_array(&g->arena, (size_t)n->n_out + 1, sizeof *n->wanted);
    if (!n->drop || !n->wanted) return interp_no_memory(err);
    n->n_drop = 0;
    for (int32_t k = 0; k < n->n_out; k++) n->wanted[k] = n->out[k] != INTERP_NONE && g->values[n->out[k]].uses > 0;
    for (int k = 0; k < 2; k++)
      if (n->blocks[k] && make_lists(g, n->blocks[k], err)) return ANE_NOMEM;
  }
  return ANE_OK;
}

ane_status interp_live(struct ane_interp *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_values; i++) g->values[i].last = INTERP_NONE;
  mark_block(g, &g->main, NULL);
  find_drops(g, false);
  ane_status st = make_lists(g, &g->main, err);
  if (!st) find_drops(g, true);
  return st;
}
