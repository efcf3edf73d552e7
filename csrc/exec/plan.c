/* Plans a graph into a program: a step for every node, a slot for every value, scratch memory for every thread. */
#include "base/alloc.h"
#include "exec/exchange.h"
#include "exec/planner.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

ane_status plan_none(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  (void)pl, (void)n;
  return ane_fail(err, ANE_UNSUPPORTED, "the CPU executor has no step for op %s", s->op->name);
}

/* The builder of each op's step: the column `step` of op.def. */
static const plan_fn planners[ANE_OP_COUNT] = {
#define ANE_OP(id, name, kind, min, max, outs, tokens, infer, plan, ...) [ANE_OP_##id] = plan_##plan,
#include "graph/op.def"
#undef ANE_OP
};

static ane_status no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "no memory for the program"); }

const struct slot *planner_slot(struct planner *pl, int32_t value) { return value == ANE_NONE ? NULL : &pl->p->slots[value]; }

static void relu(const float *g, const float *u, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = (g[i] > 0 ? g[i] : 0) * (u ? u[i] : 1.0f);
}

ane_status planner_act(const struct ane_kernels *k, const char *name, act_fn *act, struct ane_error *err) {
  *act = strcmp(name, "silu") == 0        ? k->silu
         : strcmp(name, "gelu_tanh") == 0 ? k->gelu_tanh
         : strcmp(name, "gelu_erf") == 0  ? k->gelu_erf
         : strcmp(name, "sigmoid") == 0   ? k->sigmoid
         : strcmp(name, "relu") == 0      ? relu
                                          : NULL;
  return *act ? ANE_OK : ane_fail(err, ANE_UNSUPPORTED, "no kernel for activation %s", name);
}

ane_status planner_vector(struct planner *pl, int32_t value, float offset, const float **out, struct ane_error *err) {
  *out = NULL;
  if (value == ANE_NONE) return ANE_OK;
  const struct ane_value *v = &pl->g->values[value];
  ane_decode_fn decode = ane_decoder(v->dtype);
  uint64_t n, bytes;
  if (v->kind != ANE_VALUE_CONST || v->data.transposed || !decode || !ane_shape_count(&v->shape, &n) ||
      !ane_dtype_bytes(v->dtype, n, &bytes))
    return ane_fail(err, ANE_UNSUPPORTED, "%s (%s) cannot be used as a vector", v->name, ane_dtype_info(v->dtype)->name);
  float *f = ane_arena_array(&pl->p->arena, (size_t)n, sizeof *f);
  if (!f) return no_memory(err);
  if (v->data.gather) {
    struct ane_tensor rows = v->data;
    int64_t cols = v->shape.rank < 2 ? 1 : v->shape.dim[v->shape.rank - 1];
    rows.shape = (struct ane_shape){2, {cols ? (int64_t)n / cols : 0, cols}};
    for (int64_t i = 0; i < rows.shape.dim[0]; i++) ane_gather_floats(&rows, i, f + i * cols);
  } else {
    decode(v->data.data, f, n);
  }
  for (uint64_t i = 0; i < n; i++) {
    if (!isfinite(f[i])) return ane_fail(err, ANE_INVALID, "weight %s: element %" PRIu64 " is not finite", v->name, i);
    f[i] += offset;
  }
  *out = f;
  return ANE_OK;
}

ane_status planner_matrix(struct planner *pl, int32_t value, const struct slot *input, const struct matrix **out,
                          struct ane_error *err) {
  return planner_rows(pl, value, input, false, out, err);
}

ane_status planner_rows(struct planner *pl, int32_t value, const struct slot *input, bool divide, const struct matrix **out,
                        struct ane_error *err) {
  struct ane_program *p = pl->p;
  const struct ane_value *v = &pl->g->values[value];
  if (v->kind != ANE_VALUE_CONST)
    return ane_fail(err, ANE_UNSUPPORTED, "%s is not a constant: only constant weights can be multiplied", v->name);
  if (pl->matrix_of[value] < 0) {
    struct matrix *m = &p->matrices[p->n_matrices];
    *m = (struct matrix){.name = ane_arena_strndup(&p->arena, v->name, strlen(v->name)), .stored = v->data};
    if (!m->name) return no_memory(err);
    if (divide) exchange_divide(p, m);
    ane_status st = weights_describe(p, m, err);
    if (st) return st;
    m->input = input ? input->name : NULL;
    pl->matrix_of[value] = p->n_matrices++;
  }
  *out = &p->matrices[pl->matrix_of[value]];
  if (divide != ((*out)->all_rows > 0))
    return ane_fail(err, ANE_UNSUPPORTED, "%s is used by steps that divide its rows and by others", v->name);
  return ANE_OK;
}

/* May node n read the graph input v as its input i? A run supplies four inputs: ids, types, positions, out_rows. */
static bool may_read(const struct ane_node *n, int i, const struct ane_value *v) {
  static const struct {
    ane_op op;
    int input;
    const char *name;
    int64_t dim;
  } readers[] = {{ANE_OP_EMBED, 0, "ids", ANE_DIM_TOKENS},
                 {ANE_OP_EMBED, 0, "types", ANE_DIM_TOKENS},
                 {ANE_OP_EMBED, 0, "positions", ANE_DIM_TOKENS},
                 {ANE_OP_ROPE_TABLE, 0, "positions", ANE_DIM_TOKENS},
                 {ANE_OP_POSITION_SCALE, 1, "positions", ANE_DIM_TOKENS},
                 {ANE_OP_GATHER, 1, "out_rows", ANE_DIM_OUT_ROWS}};
  for (size_t r = 0; r < ANE_COUNT(readers); r++)
    if (readers[r].op == n->op && readers[r].input == i && strcmp(readers[r].name, v->name) == 0)
      return v->shape.dim[1] == readers[r].dim;
  return false;
}

/* Checks the assumptions of steps: every activation is made by a step, and ops that mix tokens work on all tokens. */
static ane_status check_node(const struct planner *pl, const struct ane_node *n, struct ane_error *err) {
  for (int i = 0; i < n->n_inputs; i++) {
    if (n->inputs[i] == ANE_NONE) continue;
    const struct ane_value *v = &pl->g->values[n->inputs[i]];
    if (v->kind == ANE_VALUE_INPUT && !may_read(n, i, v))
      return ane_fail(err, ANE_UNSUPPORTED, "%s: graph input %s can only feed embed, rope_table, position_scale or gather",
                      n->name, v->name);
    if (v->kind == ANE_VALUE_CONST && v->shape.rank == 4)
      return ane_fail(err, ANE_UNSUPPORTED, "%s: constant %s cannot be an activation", n->name, v->name);
    if (ane_op_info(n->op)->mixes_tokens && i == 0 && v->shape.dim[2] != ANE_DIM_TOKENS)
      return ane_fail(err, ANE_UNSUPPORTED, "%s: %s cannot follow gather", n->name, ane_op_info(n->op)->name);
  }
  return ANE_OK;
}

static ane_status plan_step(struct planner *pl, const struct ane_node *n, struct step *s, int32_t index, struct ane_error *err) {
  *s = (struct step){.op = ane_op_info(n->op), .index = index};
  s->name = ane_arena_strndup(&pl->p->arena, n->name, strlen(n->name));
  if (!s->name) return no_memory(err);
  for (int i = 0; i < n->n_outputs; i++) s->out[i] = planner_slot(pl, n->outputs[i]);
  ane_status st = check_node(pl, n, err);
  if (st) return st;
  st = planners[n->op](pl, n, s, err);
  return st ? ane_fail_in(err, st, "%s", n->name) : ANE_OK;
}

/* Marks the products that take precise activations: those that make the result, the q, k and v of attention, or the scores of a
 * router. There a small error changes a choice. Ops other than products pass the mark on to their inputs, so they may stand
 * between. Measured: kernels.h. */
static void mark_precise(struct planner *pl) {
  const struct ane_graph *g = pl->g;
  for (int32_t i = 0; i < g->n_results; i++) pl->precise[g->results[i]] = true;
  for (int32_t i = g->n_nodes - 1; i >= 0; i--) {
    const struct ane_node *n = &g->nodes[i];
    int inputs = 0;
    if (n->op == ANE_OP_ATTENTION || n->op == ANE_OP_FUSED_ATTENTION)
      inputs = 3;
    else if (n->op == ANE_OP_ROUTE)
      inputs = 1;
    else if (n->op != ANE_OP_LINEAR && n->op != ANE_OP_EXPERTS)
      for (int32_t o = 0; o < n->n_outputs; o++)
        if (pl->precise[n->outputs[o]]) inputs = n->n_inputs;
    for (int j = 0; j < inputs; j++)
      if (n->inputs[j] != ANE_NONE) pl->precise[n->inputs[j]] = true;
  }
}

/* Records the facts of a node that a stage needs although it does not hold the node. */
static ane_status note_node(struct planner *pl, const struct ane_node *n, struct ane_error *err) {
  if (n->op == ANE_OP_EMBED) return planner_limits(pl, n, err);
  if (n->op == ANE_OP_ROPE_TABLE) return planner_long_rope(pl, n, err);
  if (n->op == ANE_OP_ATTENTION || n->op == ANE_OP_FUSED_ATTENTION) pl->p->bidirectional |= ane_node_int(n, "ahead") > 0;
  return ANE_OK;
}

/* Allocates the lists of a run's tokens, each with room for a chunk. */
static ane_status reserve_token_lists(struct ane_program *p, struct ane_error *err) {
  struct token_lists *c = &p->token_lists;
  size_t n = (size_t)p->o.chunk;
  int32_t **lists[] = {&c->ids, &c->types, &c->positions, &c->angles, &c->out_rows, &c->best};
  bool ok = true;
  for (size_t i = 0; ok && i < ANE_COUNT(lists); i++) ok = (*lists[i] = ane_arena_array(&p->arena, n, sizeof **lists[i])) != NULL;
  ok = ok && (c->long_rope = ane_arena_array(&p->arena, n, sizeof *c->long_rope));
  ok = ok && (c->best_logit = ane_arena_array(&p->arena, n, sizeof *c->best_logit));
  ok = ok && (c->masks = ane_arena_array(&p->arena, n, sizeof *c->masks));
  ok = ok && (c->adapted = ane_arena_array(&p->arena, n, sizeof *c->adapted));
  return ok ? ANE_OK : no_memory(err);
}

/* Plans the steps on all tokens first, then those on output rows. No node of the body reads a value of the tail. */
static ane_status plan_steps(struct planner *pl, struct ane_error *err) {
  const struct ane_graph *g = pl->g;
  struct ane_program *p = pl->p;
  p->steps = ane_arena_array(&p->arena, (size_t)g->n_nodes, sizeof *p->steps);
  if (!p->steps) return no_memory(err);
  ane_status lists = reserve_token_lists(p, err);
  if (lists) return lists;
  int32_t n_tail = 0;
  for (int tail = 0; tail < 2; tail++) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
      const struct ane_node *n = &g->nodes[i];
      if ((pl->step_of[i] >= pl->n_body) != (tail == 1)) continue;
      n_tail += tail;
      ane_status st = pl->held[i] ? plan_step(pl, n, &p->steps[p->n_steps], p->n_steps, err) : note_node(pl, n, err);
      if (st) return st;
      p->n_steps += pl->held[i];
    }
    if (!tail) p->n_body = p->n_steps;
  }
  if (n_tail < 2) return ane_fail(err, ANE_UNSUPPORTED, "the graph %s does not gather its output rows before the head", g->name);
  return ANE_OK;
}

/* Gives a conv_causal or delay node its ring. A ring belongs to one node. Here and below, a state whose node the program does not
 * hold is counted, so that all stages decide alike what a rewind must compute again, and has no bytes. */
static ane_status plan_ring(struct planner *pl, const struct ane_node *n, bool held, struct ane_error *err) {
  struct ane_program *p = pl->p;
  int32_t v = n->inputs[n->op == ANE_OP_DELAY ? 1 : 4];
  const struct ane_value *s = &pl->g->values[v];
  if (pl->ring_of[v] >= 0) return ane_fail(err, ANE_UNSUPPORTED, "%s: state %s belongs to another node", n->name, s->name);
  pl->ring_of[v] = p->n_rings;
  p->ring_channels[p->n_rings++] = held ? s->shape.dim[1] : 0;
  p->ring_taps = ANE_MAX(p->ring_taps, s->shape.dim[2] + 1);
  p->ring_length = p->ring_taps - 1 + RING_KEEP;
  return ANE_OK;
}

/* Gives an ssm_scan or delta_rule node its state, which belongs to it alone. */
static ane_status plan_recurrent_state(struct planner *pl, const struct ane_node *n, bool held, struct ane_error *err) {
  struct ane_program *p = pl->p;
  const struct ane_value *s = &pl->g->values[n->inputs[5]];
  if (pl->recurrent_of[n->inputs[5]] >= 0)
    return ane_fail(err, ANE_UNSUPPORTED, "%s: state %s belongs to another node", n->name, s->name);
  pl->recurrent_of[n->inputs[5]] = p->n_recurrent;
  p->recurrent[p->n_recurrent++] = p->recurrent_floats;
  if (held) p->recurrent_floats += s->shape.dim[1] * s->shape.dim[2] * s->shape.dim[3];
  if (p->recurrent_floats > INT64_MAX / 64) /* a session has several copies */
    return ane_fail(err, ANE_NOMEM, "%s: the recurrent states have too many elements", n->name);
  return ANE_OK;
}

/* Gives an attention its pair of K and V states. Layers that share keys and values share the pair. Their nodes have the same k
 * and v, which the first one of the program writes. */
static ane_status plan_kv(struct planner *pl, const struct ane_node *n, bool held, struct ane_error *err) {
  const struct ane_graph *g = pl->g;
  struct ane_program *p = pl->p;
  const struct ane_shape *s = &g->values[n->inputs[3]].shape;
  int32_t pair = pl->kv_of[n->inputs[3]];
  for (int j = 3; j <= 4; j++) {
    int32_t made_of = pl->kv_made_of[n->inputs[j]];
    if (pl->kv_of[n->inputs[j]] != pair || (pair >= 0 && made_of != n->inputs[j - 2]))
      return ane_fail(err, ANE_UNSUPPORTED, "%s: state %s belongs to another attention", n->name, g->values[n->inputs[j]].name);
  }
  if (pair < 0) p->kv[pair = p->n_kv++] = (struct kv_spec){0, s->dim[3], true};
  for (int j = 3; j <= 4; j++) {
    pl->kv_of[n->inputs[j]] = pair;
    pl->kv_made_of[n->inputs[j]] = n->inputs[j - 2];
  }
  if (held) p->kv[pair].heads = exchange_divides_heads(pl, n) ? s->dim[1] / p->o.tensor->ranks : s->dim[1];
  return ANE_OK;
}

/* Numbers layer states in the order of the graph's nodes. */
static ane_status plan_states(struct planner *pl, struct ane_error *err) {
  const struct ane_graph *g = pl->g;
  struct ane_program *p = pl->p;
  p->kv = ane_arena_array(&p->arena, (size_t)g->n_values, sizeof *p->kv);
  p->ring_channels = ane_arena_array(&p->arena, (size_t)g->n_values, sizeof *p->ring_channels);
  p->recurrent = ane_arena_array(&p->arena, (size_t)g->n_values, sizeof *p->recurrent);
  if (!p->kv || !p->ring_channels || !p->recurrent) return no_memory(err);
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->op == ANE_OP_CONV_CAUSAL || n->op == ANE_OP_DELAY) {
      ane_status st = plan_ring(pl, n, pl->held[i], err);
      if (st) return st;
    }
    if (n->op == ANE_OP_SSM_SCAN || n->op == ANE_OP_DELTA_RULE) {
      ane_status st = plan_recurrent_state(pl, n, pl->held[i], err);
      if (st) return st;
    }
    if (n->op == ANE_OP_ATTENTION || n->op == ANE_OP_FUSED_ATTENTION) {
      ane_status st = plan_kv(pl, n, pl->held[i], err);
      if (st) return st;
    }
  }
  return ANE_OK;
}

static ane_status find_result(struct planner *pl, struct ane_error *err) {
  const struct ane_graph *g = pl->g;
  const struct ane_value *v = &g->values[g->results[0]];
  if (g->n_results != 1 || v->kind != ANE_VALUE_RESULT || v->shape.dim[2] != ANE_DIM_OUT_ROWS)
    return ane_fail(err, ANE_UNSUPPORTED, "the graph %s has %d results; the executor takes one, of the output rows", g->name,
                    g->n_results);
  pl->p->slots[g->results[0]].result = true;
  pl->p->result = &pl->p->slots[g->results[0]];
  pl->p->vocab = v->shape.dim[1];
  return ANE_OK;
}

static ane_status plan_arrays(struct planner *pl, struct ane_error *err) {
  struct ane_program *p = pl->p;
  size_t n = (size_t)pl->g->n_values + 1;
  p->slots = ane_arena_array(&p->arena, n, sizeof *p->slots);
  p->n_slots = pl->g->n_values;
  p->matrices = ane_arena_array(&p->arena, n, sizeof *p->matrices);
  pl->matrix_of = ane_malloc(n * sizeof *pl->matrix_of);
  pl->kv_of = ane_malloc(n * sizeof *pl->kv_of);
  pl->kv_made_of = ane_malloc(n * sizeof *pl->kv_made_of);
  pl->kv_written = ane_calloc(n, sizeof *pl->kv_written);
  pl->ring_of = ane_malloc(n * sizeof *pl->ring_of);
  pl->recurrent_of = ane_malloc(n * sizeof *pl->recurrent_of);
  pl->precise = ane_calloc(n, sizeof *pl->precise);
  pl->step_of = ane_malloc(((size_t)pl->g->n_nodes + 1) * sizeof *pl->step_of);
  pl->held = ane_calloc((size_t)pl->g->n_nodes + 1, sizeof *pl->held);
  if (!p->slots || !p->matrices || !pl->matrix_of || !pl->kv_of || !pl->kv_made_of || !pl->kv_written || !pl->ring_of ||
      !pl->recurrent_of || !pl->precise || !pl->step_of || !pl->held)
    return no_memory(err);
  memset(pl->ring_of, 0xFF, n * sizeof *pl->ring_of);
  memset(pl->recurrent_of, 0xFF, n * sizeof *pl->recurrent_of);
  memset(pl->matrix_of, 0xFF, n * sizeof *pl->matrix_of);
  memset(pl->kv_of, 0xFF, n * sizeof *pl->kv_of);
  memset(pl->kv_made_of, 0xFF, n * sizeof *pl->kv_made_of);
  mark_precise(pl);
  return ANE_OK;
}

static ane_status plan_all(struct planner *pl, struct ane_error *err) {
  struct ane_program *p = pl->p;
  struct ane_buffer text = {0};
  size_t activations;
  ane_status st;
  if ((st = ane_graph_verify(pl->g, err)) || (st = plan_arrays(pl, err)) || (st = find_result(pl, err)) ||
      (st = memplan(pl, &activations, err)) || (st = stage_select(pl, err)) || (st = stage_plan(pl, err)) ||
      (st = plan_states(pl, err)) || (st = plan_steps(pl, err)) || (st = exchange_plan(pl, err)))
    return st;
  pruned_head_plan(p);
  if ((st = plan_scratch(p, activations, err)) || (st = pruned_head_reserve(p, err))) return st;
  /* Packing calls the caller's progress function, which may destroy the graph: nothing reads it from here on. */
  if (!ane_graph_print(pl->g, &text))
    st = no_memory(err);
  else
    p->fingerprint = fingerprint_graph(pl, &text);
  ane_buffer_free(&text);
  if (!st) st = weights_pack(p, err);
  p->fingerprint = fingerprint_packed(p);
  p->o.rules = NULL; /* borrowed only for this call */
  p->o.n_rules = 0;
  p->o.stage = NULL;
  p->o.tensor = NULL;
  return st;
}

static ane_status check_weights(struct ane_weights_encoding encoding, struct ane_error *err) {
  if (encoding.kind == ANE_WEIGHTS_DTYPE && !ane_encoder(encoding.dtype))
    return ane_fail(err, ANE_UNSUPPORTED, "weights cannot be encoded as %s", ane_dtype_info(encoding.dtype)->name);
  return ANE_OK;
}

static ane_status check_options(const struct ane_program_options *o, struct ane_error *err) {
  if (!ane_isa_available(o->isa))
    return ane_fail(err, ANE_UNSUPPORTED, "ISA level %s is not available on this machine", ane_isa_name(o->isa));
  if (o->context < 1 || o->context > INT32_MAX)
    return ane_fail(err, ANE_INVALID, "context is %" PRId64 ", not in 1 .. %d", o->context, INT32_MAX);
  if (o->chunk < 1 || o->chunk > MAX_CHUNK)
    return ane_fail(err, ANE_INVALID, "chunk is %" PRId64 ", not in 1 .. %d", o->chunk, MAX_CHUNK);
  if (o->stage && o->stage->tail == ANE_STAGE_TAIL_HEAD && o->chunk > OUT_ROWS_BLOCK)
    return ane_fail(err, ANE_INVALID, "chunk is %" PRId64 ", but the head alone takes at most %d output rows", o->chunk,
                    OUT_ROWS_BLOCK);
  if (o->tensor && (o->stage || o->n_rules || o->weights.kind != ANE_WEIGHTS_FILE))
    return ane_fail(err, ANE_UNSUPPORTED,
                    "matrices that are divided by rows keep their stored type, in a program with all layers");
  ane_status st = check_weights(o->weights, err);
  for (int32_t i = 0; !st && i < o->n_rules; i++) st = check_weights(o->rules[i].encoding, err);
  return st;
}

ane_status ane_program_create(struct ane_program **out, const struct ane_graph *g, const struct ane_program_options *o,
                              struct ane_error *err) {
  *out = NULL;
  ane_status st = check_options(o, err);
  if (st) return st;
  struct ane_program *p = ane_calloc(1, sizeof *p);
  if (!p) return no_memory(err);
  struct planner pl = {.p = p, .g = g};
  p->o = *o;
  p->k = ane_kernels_get(o->isa);
  st = ane_pool_create(&p->pool, o->threads, err);
  if (!st) st = plan_all(&pl, err);
  ane_free(pl.matrix_of);
  ane_free(pl.kv_of);
  ane_free(pl.kv_made_of);
  ane_free(pl.kv_written);
  ane_free(pl.ring_of);
  ane_free(pl.recurrent_of);
  ane_free(pl.precise);
  ane_free(pl.step_of);
  ane_free(pl.held);
  if (st) {
    ane_program_destroy(p);
    return st;
  }
  *out = p;
  return ANE_OK;
}

void ane_program_destroy(struct ane_program *p) {
  if (!p) return;
  ane_pool_destroy(p->pool);
  if (p->slab) ane_pages_free(p->slab, ANE_MAX(p->slab_bytes, (size_t)64));
  if (p->scratch) ane_pages_free(p->scratch, p->scratch_bytes);
  pruned_head_free(p);
  if (p->result_block) ane_pages_free(p->result_block, p->result_block_bytes);
  for (int i = 0; i < ANE_DTYPE_COUNT; i++) ane_kv_store_release(p->stores[i]);
  ane_free(p->aux);
  ane_free(p->adapter_scratch.memory);
  ane_free(p->profile);
  ane_free(p->stage.message);
  ane_free(p->exchange);
  ane_free(p->common_rows);
  ane_arena_free(&p->arena);
  ane_free(p);
}

void ane_program_poison(struct ane_program *p) {
  memset(p->scratch, 0xFF, (size_t)((uint8_t *)p->counters - p->scratch));
  memset(p->thread_mem, 0xFF, p->thread_bytes * (size_t)p->o.threads);
  memset(p->result_block, 0xFF, p->result_block_bytes);
}
