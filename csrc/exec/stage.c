/* Stages of a pipeline: which steps a program holds, what it receives and sends, and what steps cost. */
#include "exec/stage.h"

#include "base/alloc.h"
#include "exec/planner.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <string.h>

static ane_status no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "no memory for the stages of a graph"); }

/* ---- Steps of a stage ---------------------------------------------------------------------------------------------------*/

/* Does every stage that uses the output of n compute it itself? Such a node has no weights and reads only inputs of a run. */
static bool is_replicated(const struct ane_node *n) { return n->op == ANE_OP_ROPE_TABLE; }

/* Does a node with the step index `step` make the first input of node i? */
static bool reads_step(const struct ane_graph *g, const int32_t *step_of, int32_t i, int32_t step) {
  const struct ane_value *v = &g->values[g->nodes[i].inputs[0]];
  return v->kind == ANE_VALUE_RESULT && v->node != ANE_NONE && step_of[v->node] == step;
}

/* Fills step_of by node: body steps are numbered from 0; n_body is the tail before the head; n_body + 1 is the head and what
 * follows it. Returns n_body, the number of body steps. */
static int32_t number_steps(const struct ane_graph *g, int32_t *step_of) {
  int32_t n_body = 0;
  for (int32_t i = 0; i < g->n_nodes; i++) {
    bool tail = g->values[g->nodes[i].outputs[0]].shape.dim[2] == ANE_DIM_OUT_ROWS;
    step_of[i] = tail ? INT32_MAX : n_body++;
  }
  for (int32_t i = 0; i < g->n_nodes; i++) step_of[i] = ANE_MIN(step_of[i], n_body);
  int32_t head = ane_graph_head(g);
  for (int32_t i = head; head != ANE_NONE && i < g->n_nodes; i++)
    if (step_of[i] == n_body && (i == head || reads_step(g, step_of, i, n_body + 1))) step_of[i] = n_body + 1;
  return n_body;
}

/* Returns the step index of the node that makes a value; -1: no node does, or each stage computes it. */
static int32_t producer_step(const struct ane_graph *g, const int32_t *step_of, int32_t value) {
  const struct ane_value *v = &g->values[value];
  if (v->kind != ANE_VALUE_RESULT || v->node == ANE_NONE || is_replicated(&g->nodes[v->node])) return -1;
  return step_of[v->node];
}

/* Sets last[value] to the step index of its last use; -1: it has none. */
static void find_last_uses(const struct ane_graph *g, const int32_t *step_of, int32_t *last) {
  for (int32_t v = 0; v < g->n_values; v++) last[v] = -1;
  for (int32_t i = 0; i < g->n_nodes; i++)
    for (int32_t j = 0; j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v != ANE_NONE) last[v] = ANE_MAX(last[v], step_of[i]);
    }
}

/* Does a node with a step index in [from, to) use an output of n? */
static bool used_in(const struct planner *pl, const struct ane_node *n, int32_t from, int32_t to) {
  for (int32_t i = 0; i < pl->g->n_nodes; i++) {
    const struct ane_node *user = &pl->g->nodes[i];
    bool in = pl->step_of[i] >= from && pl->step_of[i] < to;
    for (int32_t j = 0; in && j < user->n_inputs; j++)
      if (user->inputs[j] == n->outputs[0]) return true;
  }
  return false;
}

ane_status stage_select(struct planner *pl, struct ane_error *err) {
  const struct ane_stage *stage = pl->p->o.stage;
  pl->n_body = number_steps(pl->g, pl->step_of);
  int32_t from = stage ? stage->from : 0, to = stage ? stage->to : pl->n_body;
  if (from < 0 || to < from || to > pl->n_body)
    return ane_fail(err, ANE_INVALID, "a stage of the steps %" PRId32 " to %" PRId32 ": the graph %s has %" PRId32, from, to,
                    pl->g->name, pl->n_body);
  ane_stage_tail tail = stage ? stage->tail : ANE_STAGE_TAIL_ALL;
  if (tail != ANE_STAGE_TAIL_ALL && (to != pl->n_body || ane_graph_head(pl->g) == ANE_NONE))
    return ane_fail(err, ANE_INVALID, "a stage with %s of the tail: it does not end with the body, or the graph %s has no head",
                    tail == ANE_STAGE_TAIL_HEAD ? "the head" : "all but the head", pl->g->name);
  pl->p->stage.first = from == 0 && tail != ANE_STAGE_TAIL_HEAD;
  pl->p->stage.last = to == pl->n_body && tail != ANE_STAGE_TAIL_NO_HEAD;
  pl->p->stage.rows = tail == ANE_STAGE_TAIL_NO_HEAD;
  if (tail == ANE_STAGE_TAIL_HEAD) from = pl->n_body + 1;
  if (to == pl->n_body) to = tail == ANE_STAGE_TAIL_NO_HEAD ? pl->n_body + 1 : pl->n_body + 2;
  for (int32_t i = 0; i < pl->g->n_nodes; i++) {
    const struct ane_node *n = &pl->g->nodes[i];
    pl->held[i] = pl->step_of[i] >= from && pl->step_of[i] < to;
    if (stage && is_replicated(n)) pl->held[i] = used_in(pl, n, from, to);
  }
  pl->from = from;
  pl->to = to;
  return ANE_OK;
}

/* ---- Messages ------------------------------------------------------------------------------------------------------------*/

/* Lists the slots of the values that are made before step `cut` and used from it on. *floats: their floats per token. */
static ane_status find_crossing(struct planner *pl, const int32_t *last, int32_t cut, const struct slot ***out, int32_t *n,
                                int64_t *floats, struct ane_error *err) {
  const struct slot **list = ane_arena_array(&pl->p->arena, (size_t)pl->g->n_values + 1, sizeof *list);
  if (!list) return no_memory(err);
  *floats = 0;
  for (int32_t v = 0; v < pl->g->n_values; v++) {
    int32_t made = producer_step(pl->g, pl->step_of, v);
    if (made < 0 || made >= cut || last[v] < cut) continue;
    list[(*n)++] = &pl->p->slots[v];
    *floats += pl->p->slots[v].channels;
  }
  *out = list;
  return ANE_OK;
}

ane_status stage_plan(struct planner *pl, struct ane_error *err) {
  struct ane_program *p = pl->p;
  const struct ane_stage *stage = p->o.stage;
  if (!stage) return ANE_OK;
  p->stage.fp16 = stage->fp16;
  p->stage.link = stage->link;
  int32_t *last = ane_malloc(((size_t)pl->g->n_values + 1) * sizeof *last);
  if (!last) return no_memory(err);
  find_last_uses(pl->g, pl->step_of, last);
  int64_t in = 0, out = 0;
  ane_status st = ANE_OK;
  if (!p->stage.first) st = find_crossing(pl, last, pl->from, &p->stage.in, &p->stage.n_in, &in, err);
  if (!st && !p->stage.last) st = find_crossing(pl, last, pl->to, &p->stage.out, &p->stage.n_out, &out, err);
  ane_free(last);
  if (st) return st;
  size_t bytes;
  if (!ane_mul_size((size_t)ANE_MAX(in, out) * sizeof(float), (size_t)p->o.chunk, &bytes) ||
      !(p->stage.message = ane_malloc(ANE_MAX(bytes, (size_t)1))))
    return no_memory(err);
  return ANE_OK;
}

/* Bytes of n numbers in a message. */
static size_t packed_bytes(const struct program_stage *s, int64_t n) {
  return (size_t)n * (s->fp16 ? sizeof(uint16_t) : sizeof(float));
}

/* Writes n floats to a message. Returns the end of the written bytes. */
static uint8_t *pack_floats(const struct program_stage *s, uint8_t *message, const float *x, int64_t n) {
  uint16_t *half = (uint16_t *)(void *)message;
  if (!s->fp16) memcpy(message, x, packed_bytes(s, n));
  for (int64_t i = 0; s->fp16 && i < n; i++) half[i] = ane_f32_f16(x[i]);
  return message + packed_bytes(s, n);
}

/* Reads n floats from a message. Returns the end of the read bytes. */
static const uint8_t *unpack_floats(const struct program_stage *s, const uint8_t *message, float *x, int64_t n) {
  const uint16_t *half = (const uint16_t *)(const void *)message;
  if (!s->fp16) memcpy(x, message, packed_bytes(s, n));
  for (int64_t i = 0; s->fp16 && i < n; i++) x[i] = ane_f16_f32(half[i]);
  return message + packed_bytes(s, n);
}

static size_t message_bytes(const struct program_stage *s, const struct slot *const *list, int32_t n, int64_t tokens) {
  int64_t floats = 0;
  for (int32_t i = 0; i < n; i++) floats += list[i]->channels;
  return packed_bytes(s, floats * tokens);
}

static float *slot_data(const struct ane_program *p, const struct slot *slot) {
  return (float *)(void *)(p->scratch + slot->offset);
}

ane_status stage_receive(struct ane_program *p, int64_t tokens, struct ane_error *err) {
  const struct program_stage *s = &p->stage;
  if (s->n_in == 0) return ANE_OK;
  const uint8_t *at = (const uint8_t *)s->message;
  ane_status st = s->link.receive(s->link.arg, s->message, message_bytes(s, s->in, s->n_in, tokens), err);
  for (int32_t i = 0; !st && i < s->n_in; i++) at = unpack_floats(s, at, slot_data(p, s->in[i]), tokens * s->in[i]->channels);
  return st;
}

void stage_pack_rows(struct ane_program *p, int64_t first_row, int64_t rows, int64_t n_rows) {
  const struct program_stage *s = &p->stage;
  uint8_t *at = (uint8_t *)s->message;
  for (int32_t i = 0; i < s->n_out; i++) {
    int64_t channels = s->out[i]->channels;
    pack_floats(s, at + packed_bytes(s, first_row * channels), slot_data(p, s->out[i]), rows * channels);
    at += packed_bytes(s, n_rows * channels);
  }
}

ane_status stage_send(struct ane_program *p, int64_t tokens, struct ane_error *err) {
  const struct program_stage *s = &p->stage;
  if (s->n_out == 0 || tokens == 0) return ANE_OK;
  uint8_t *at = (uint8_t *)s->message;
  for (int32_t i = 0; !s->rows && i < s->n_out; i++)
    at = pack_floats(s, at, slot_data(p, s->out[i]), tokens * s->out[i]->channels);
  return s->link.send(s->link.arg, s->message, message_bytes(s, s->out, s->n_out, tokens), err);
}

/* ---- Costs ------------------------------------------------------------------------------------------------------------*/

/* The fraction of a mixture's experts that a token chooses; 1 for other nodes. */
static double share_read(const struct ane_graph *g, const struct ane_node *n) {
  if (n->op != ANE_OP_EXPERTS || ane_node_int(n, "soft")) return 1;
  const struct ane_value *route = &g->values[n->inputs[1]];
  double count = (double)ane_node_int(n, "count");
  return route->shape.dim[1] / 2 < count ? (double)(route->shape.dim[1] / 2) / count : 1;
}

/* Returns the number of elements of a constant. *bytes: as stored; without data, as fp16. */
static uint64_t count_of(const struct ane_value *v, uint64_t *bytes) {
  uint64_t n = 0;
  (void)ane_shape_count(&v->shape, &n);
  *bytes = v->data.data || v->data.gather ? v->data.bytes : 2 * n;
  return n;
}

static void add_cost(const struct ane_graph *g, const struct ane_node *n, struct ane_step_cost *c) {
  uint64_t weights = 0, values = 0;
  if (n->op == ANE_OP_ATTENTION || n->op == ANE_OP_FUSED_ATTENTION) {
    c->attention += 2 * g->values[n->outputs[0]].shape.dim[1]; /* scores and weighted values; both have heads of this size */
    c->window = ane_node_int(n, "window");
  }
  for (int32_t j = 0; j < n->n_inputs; j++) {
    if (n->inputs[j] == ANE_NONE) continue;
    const struct ane_value *v = &g->values[n->inputs[j]];
    if (v->kind == ANE_VALUE_STATE && (n->op == ANE_OP_ATTENTION || n->op == ANE_OP_FUSED_ATTENTION))
      c->kv += v->shape.dim[1] * v->shape.dim[3];
    if (v->kind != ANE_VALUE_CONST) continue;
    uint64_t bytes, count = count_of(v, &bytes);
    if (n->op == ANE_OP_EMBED) {
      c->table += bytes;
      continue;
    }
    weights += bytes;
    values += count;
  }
  c->weights += weights;
  c->read += (uint64_t)((double)weights * share_read(g, n));
  c->values += (uint64_t)((double)values * share_read(g, n));
}

ane_status ane_stage_costs(const struct ane_graph *g, struct ane_step_cost **out, int32_t *n, struct ane_error *err) {
  int32_t *step_of = ane_malloc(((size_t)g->n_nodes + 1) * sizeof *step_of);
  int32_t *last = ane_malloc(((size_t)g->n_values + 1) * sizeof *last);
  struct ane_step_cost *costs = ane_calloc((size_t)g->n_nodes + 1, sizeof *costs);
  if (!step_of || !last || !costs) {
    ane_free(step_of);
    ane_free(last);
    ane_free(costs);
    return no_memory(err);
  }
  int32_t n_body = number_steps(g, step_of);
  find_last_uses(g, step_of, last);
  for (int32_t i = 0; i < g->n_nodes; i++) {
    struct ane_step_cost *c = &costs[ANE_MIN(step_of[i], n_body)];
    if (!c->name) c->name = g->nodes[i].name;
    add_cost(g, &g->nodes[i], c);
  }
  for (int32_t v = 0; v < g->n_values; v++) {
    int32_t made = producer_step(g, step_of, v);
    for (int32_t cut = made + 1; made >= 0 && cut <= ANE_MIN(last[v], n_body); cut++)
      costs[cut].crossing += g->values[v].shape.dim[1];
  }
  ane_free(step_of);
  ane_free(last);
  *out = costs;
  *n = n_body + 1;
  return ANE_OK;
}
