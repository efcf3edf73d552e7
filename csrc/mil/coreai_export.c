/* Builds the functions of an asset. Each runs the shards of the model in sequence, on the inputs of the contract. */
#include "mil/coreai_export.h"

#include "base/elementary.h"
#include "mil/coreai.h"
#include "mil/coreai_table.h"
#include "mil/coreai_pool.h"
#include "mil/export_internal.h"
#include "tensor/finite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The contract's mask value for a hidden key. */
#define HIDDEN_SCORE (-40000.0)

struct asset {
  struct exporting x;
  const struct ane_partition *partition;
  const struct ane_graph *g;
  struct ane_arena *arena;
  struct ane_error *err;
  struct ane_aimodel_writer *w;
  struct coreai_embedding table;
  struct ane_mil_ropes ropes;
  struct ane_mil_masks masks;
  int64_t longest; /* of the contexts */
  const struct ane_coreai_result *result;
  struct ane_buffer functions; /* of struct ane_ai_function */
};

/* One function with layers. */
struct body {
  struct asset *a;
  struct ane_ai_build b;
  int64_t context, t;
  bool whole, head;               /* a call has a whole sequence; the head is in the function */
  struct ane_mil_lowered **parts; /* by shard */
  int32_t n_parts;
  ane_ai_value positions;  /* int32 [1, T] */
  ane_ai_value step;       /* int32 [1] */
  ane_ai_value types;      /* int32 [1, T]; NULL: the model has no token types */
  ane_ai_value given_mask; /* fp16 [1, 1, T, S], or [1, 1, 1, T] with `whole` */
  ane_ai_value *edges;     /* by value of the graph: [1, C, T, 1] */
  ane_ai_value *cos, *sin; /* by rope: [1, r / 2, T, 1] */
  ane_ai_value *mask;      /* by mask: [1, 1, T, S] */
  ane_ai_value *logits;    /* slices [1, N, T, 1] */
  uint32_t n_logits;
  struct coreai_state *states;
  struct coreai_store *stores; /* at most one per state */
  uint32_t n_states, n_stores;
};

/* ---- Resources ---------------------------------------------------------------------------------------------------------*/

static ane_status begin_resource(void *to, const struct ane_mil_type *type, uint64_t count, uint64_t *offset,
                                 struct ane_error *err) {
  struct ane_ai_type t = coreai_type(type);
  int32_t resource = 0;
  (void)count;
  ane_status st = ane_aimodel_blob(to, &t, &resource, err);
  *offset = (uint64_t)resource;
  return st;
}

static ane_status add_data(void *to, const void *data, uint64_t bytes, struct ane_error *err) {
  return ane_aimodel_data(to, data, bytes, err);
}

static ane_status note_resource(void *to, const char *key, size_t len, const void *data, size_t size, uint64_t offset,
                                struct ane_error *err) {
  return ane_aimodel_note(to, key, len, data, size, (int32_t)offset, err);
}

static bool noted_resource(void *to, const char *key, size_t len, struct ane_aimodel_note *out) {
  return ane_aimodel_noted(to, key, len, out);
}

ane_status coreai_begin(const struct ane_mil_export *e, const char *path, struct ane_aimodel_writer **w, struct export_sink *sink,
                        struct ane_error *err) {
  ane_status st = (e->resume ? ane_aimodel_resume : ane_aimodel_create)(w, path, err);
  *sink = (struct export_sink){*w, begin_resource, add_data, note_resource, noted_resource};
  return st;
}

/* ---- Inputs that the shards share -----------------------------------------------------------------------------------------*/

static void *allocate(struct body *f, size_t n, size_t size) {
  void *p = ane_arena_array(f->a->arena, n + 1, size);
  if (!p && !f->b.status) ane_ai_build_fail(&f->b, ane_fail(f->b.err, ANE_NOMEM, "no memory for the program"));
  return p;
}

/* Returns the angular frequencies of a rope. With longrope, all functions of an asset use those of the longest context, so a
 * reply that grows into the next context keeps its keys. */
static const float *frequencies(const struct asset *a, const struct ane_node *n) {
  const struct ane_attr *far = ane_node_attr(n, "long_freq");
  bool beyond = far->fv.n && a->longest > ane_node_int(n, "original");
  return beyond ? far->fv.v : ane_node_attr(n, "inv_freq")->fv.v;
}

/* Makes an fp16 constant as a resource. data lies in the arena. */
static ane_ai_value stored(struct body *f, int32_t rank, const int64_t *dim, const uint16_t *data) {
  uint64_t count = 1;
  for (int32_t i = 0; i < rank; i++) count *= (uint64_t)dim[i];
  struct ane_mil_value v = {.type = ane_mil_tensor_type(ANE_MIL_FP16, rank, dim),
                            .kind = ANE_MIL_NUMBERS,
                            .count = count,
                            .data = data,
                            .bytes = 2 * count};
  ane_status st = export_store_constant(&f->a->x, &v);
  if (st) ane_ai_build_fail(&f->b, st);
  struct ane_ai_type type = ane_ai_tensor(ANE_AI_FP16, rank, dim);
  return v.kind == ANE_MIL_BLOB ? ane_ai_resource(&f->b, type, (int32_t)v.offset) : ane_ai_constant(&f->b, type, data);
}

/* Returns the cosines or sines of a rope at the positions of the call, [1, r / 2, T, 1], gathered from an fp16 table
 * [context, r / 2]. The angle is an fp32 product, as in the executor. */
static ane_ai_value rope_table(struct body *f, const struct ane_node *n, bool sine) {
  const float *freq = frequencies(f->a, n);
  int64_t half = ane_node_attr(n, "inv_freq")->fv.n, dim[] = {f->context, half};
  float magnitude = (float)ane_node_float(n, "magnitude");
  uint16_t *data = allocate(f, (size_t)half * (size_t)f->context, sizeof *data);
  bool fine = true;
  for (int64_t p = 0; data && p < f->context; p++)
    for (int64_t i = 0; i < half; i++) {
      float angle = (float)p * freq[i], number = (sine ? ane_sinf(angle) : ane_cosf(angle)) * magnitude;
      fine &= ane_round_f16(&number, 1, &data[p * half + i]);
    }
  if (data && !fine)
    ane_ai_build_fail(&f->b, ane_fail(f->b.err, ANE_INVALID, "%s: its table has a number that is not finite in fp16", n->name));
  if (!data || !fine) return ane_ai_int(&f->b, ANE_AI_INT32, 0);
  ane_ai_value table = stored(f, 2, dim, data);
  ane_ai_value rows = ane_ai_transpose(&f->b, ane_ai_gather(&f->b, table, f->positions), (int32_t[]){0, 2, 1});
  return ane_ai_reshape(&f->b, rows, 4, (int64_t[]){1, half, f->t, 1});
}

static ane_ai_value rope_of(struct body *f, int32_t number, bool sine) {
  ane_ai_value *slot = sine ? &f->sin[number] : &f->cos[number];
  if (!*slot) *slot = rope_table(f, &f->a->g->nodes[f->a->ropes.nodes[number]], sine);
  return *slot;
}

/* Makes int32 0 .. n - 1 in the shape dim. */
static ane_ai_value iota(struct body *f, int64_t n, const int64_t dim[4]) {
  int64_t *v = allocate(f, (size_t)n, sizeof *v);
  for (int64_t i = 0; v && i < n; i++) v[i] = i;
  return v ? ane_ai_reshape(&f->b, ane_ai_ints(&f->b, ANE_AI_INT32, v, (int32_t)n), 4, dim) : f->positions;
}

/* Returns HIDDEN_SCORE for each x > limit, else 0. */
static ane_ai_value hide(struct body *f, ane_ai_value x, int64_t limit) {
  ane_ai_value beyond = ane_ai_binary(&f->b, ANE_AI_GREATER, x, ane_ai_int(&f->b, ANE_AI_INT32, limit));
  return ane_ai_binary(&f->b, ANE_AI_MUL, ane_ai_cast(&f->b, beyond, ANE_AI_FP16),
                       ane_ai_number(&f->b, ANE_AI_FP16, HIDDEN_SCORE));
}

/* Returns the given mask, restricted to the window: keys 0 .. window - 1 positions back and at most `ahead` positions ahead. */
static ane_ai_value mask_of(struct body *f, int32_t number) {
  if (f->mask[number]) return f->mask[number];
  const struct ane_mil_mask *m = &f->a->masks.list[number];
  int64_t keys = f->whole ? f->t : f->context;
  ane_ai_value y = f->given_mask;
  ane_ai_value query = ane_ai_reshape(&f->b, f->positions, 4, (int64_t[]){1, 1, f->t, 1});
  if (f->whole) y = ane_ai_broadcast_to(&f->b, y, 4, (int64_t[]){1, 1, f->t, keys});
  if (m->window > 0 && m->window < keys) {
    ane_ai_value back = ane_ai_binary(&f->b, ANE_AI_SUB, query, iota(f, keys, (int64_t[]){1, 1, 1, keys}));
    y = ane_ai_binary(&f->b, ANE_AI_MINIMUM, y, hide(f, back, m->window - 1));
  }
  if (f->whole && m->ahead < keys) {
    ane_ai_value ahead = ane_ai_binary(&f->b, ANE_AI_SUB, iota(f, keys, (int64_t[]){1, 1, 1, keys}), query);
    y = ane_ai_binary(&f->b, ANE_AI_MINIMUM, y, hide(f, ahead, m->ahead));
  }
  return f->mask[number] = y;
}

/* ---- States --------------------------------------------------------------------------------------------------------------*/

static bool is_kind(const struct ane_mil_port *p, ane_mil_port_kind kind) { return p->kind == kind; }

/* Does an earlier part have this state, of layers that share keys and values? */
static bool is_shared(const struct body *f, int32_t part, const struct ane_mil_port *p) {
  for (int32_t i = 0; i < part; i++)
    for (uint32_t j = 0; j < f->parts[i]->n_states; j++)
      if (f->parts[i]->states[j].value == p->value) return true;
  return false;
}

/* Counts the states of this kind. *same: all of them have *channels channels. */
static int64_t count_states(const struct body *f, ane_mil_port_kind kind, bool *same, int64_t *channels) {
  int64_t n = 0;
  *same = true;
  for (int32_t i = 0; i < f->n_parts; i++)
    for (uint32_t j = 0; j < f->parts[i]->n_states; j++) {
      const struct ane_mil_port *p = &f->parts[i]->states[j];
      if (!is_kind(p, kind) || is_shared(f, i, p)) continue;
      if (n++ == 0) *channels = p->dim[1] * p->dim[3];
      *same &= p->dim[1] * p->dim[3] == *channels;
    }
  return n;
}

static struct coreai_store *add_store(struct body *f, const char *name, struct ane_ai_type type) {
  struct coreai_store *store = &f->stores[f->n_stores++];
  store->state = ane_ai_state(&f->b, name, type);
  return store;
}

static struct ane_ai_type stack(const struct body *f, int64_t layers, int64_t channels) {
  return ane_ai_tensor(ANE_AI_FP16, 5, (int64_t[]){layers, 1, channels, 1, f->context});
}

static void declare_kind(struct body *f, ane_mil_port_kind kind, const char *name) {
  bool same;
  int64_t channels = 0, n = count_states(f, kind, &same, &channels), layer = 0;
  struct coreai_store *all = n && same && name ? add_store(f, name, stack(f, n, channels)) : NULL;
  for (int32_t i = 0; i < f->n_parts; i++)
    for (uint32_t j = 0; j < f->parts[i]->n_states; j++) {
      const struct ane_mil_port *p = &f->parts[i]->states[j];
      if (!is_kind(p, kind) || is_shared(f, i, p)) continue;
      struct coreai_store *own = all ? all : add_store(f, p->name, ane_ai_tensor(ANE_AI_FP16, p->rank, p->dim));
      f->states[f->n_states++] = (struct coreai_state){p->name, p->value, own, all != NULL, layer++};
    }
}

static void declare_states(struct body *f) {
  size_t n = 0;
  for (int32_t i = 0; i < f->n_parts; i++) n += f->parts[i]->n_states;
  f->states = allocate(f, n, sizeof *f->states);
  f->stores = allocate(f, n, sizeof *f->stores);
  if (!f->states || !f->stores) return;
  declare_kind(f, ANE_MIL_PORT_KEYS, "key_cache");
  declare_kind(f, ANE_MIL_PORT_VALUES, "value_cache");
  declare_kind(f, ANE_MIL_PORT_COLUMNS, NULL);
  declare_kind(f, ANE_MIL_PORT_RECURRENT, NULL);
}

/* ---- Shards ----------------------------------------------------------------------------------------------------------------*/

static ane_status provide(void *arg, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                          struct ane_mil_weight *out, struct ane_error *err) {
  struct asset *a = arg;
  bool tied;
  ane_status st = coreai_table_provide(&a->table, &a->x, request, out, &tied);
  return st || tied ? st : export_provide(&a->x, arena, request, out, err);
}

static ane_status lower_parts(struct body *f) {
  struct ane_mil_options o = {.norm = ANE_MIL_NORM_FP32,
                              .context = f->context,
                              .fixed_t = f->t,
                              .max_t = f->t,
                              .function = f->b.f.name,
                              .several = true,
                              .ios18_weights = true,
                              .weight = provide,
                              .weight_arg = f->a};
  f->parts = allocate(f, (size_t)f->a->partition->n_shards, sizeof *f->parts);
  if (!f->parts) return f->b.status;
  for (int32_t i = 0; i < f->a->partition->n_shards; i++) {
    const struct ane_shard *p = &f->a->partition->shards[i];
    if (p->kind == ANE_SHARD_HEAD && !f->head) continue;
    struct ane_mil_lowered **part = &f->parts[f->n_parts];
    ane_status st = ane_mil_lower(f->a->arena, f->a->g, p, &o, part, f->a->err);
    if (!st) st = export_store_rest(&f->a->x, (*part)->model);
    if (st) return st;
    f->n_parts++;
  }
  return ANE_OK;
}

static ane_ai_value input_of(struct body *f, const struct ane_mil_port *p) {
  switch (p->kind) {
    case ANE_MIL_PORT_HIDDEN:
    case ANE_MIL_PORT_EDGE: return f->edges[p->value];
    case ANE_MIL_PORT_POSITION: return f->step;
    case ANE_MIL_PORT_COS:
    case ANE_MIL_PORT_SIN: return rope_of(f, p->index, p->kind == ANE_MIL_PORT_SIN);
    case ANE_MIL_PORT_MASK: return mask_of(f, p->index);
    case ANE_MIL_PORT_TYPES: return f->types;
    default: return NULL;
  }
}

/* Returns the states of a part by its own names for them: two parts may have the same name for different states. */
static const struct coreai_state *states_of(struct body *f, const struct ane_mil_lowered *part) {
  struct coreai_state *list = allocate(f, part->n_states, sizeof *list);
  for (uint32_t i = 0; list && i < part->n_states; i++)
    for (uint32_t j = 0; j < f->n_states; j++) {
      if (f->states[j].value != part->states[i].value) continue;
      list[i] = f->states[j];
      list[i].name = part->states[i].name;
    }
  return list;
}

static void lower_part(struct body *f, const struct ane_mil_lowered *part) {
  struct coreai_scope s = coreai_scope_begin(&f->b, f->a->arena);
  s.states = states_of(f, part);
  s.n_states = s.states ? part->n_states : 0;
  for (uint32_t i = 0; i < part->n_inputs && !f->b.status; i++) {
    ane_ai_value x = input_of(f, &part->inputs[i]);
    if (x)
      coreai_bind(&s, part->inputs[i].name, x);
    else
      ane_ai_build_fail(&f->b, ane_fail(f->b.err, ANE_UNSUPPORTED, "input %.64s has no counterpart in Core AI's contract",
                                        part->inputs[i].name));
  }
  coreai_lower(&s, &part->model->program.functions[0]);
  for (uint32_t i = 0; i < part->n_outputs && !f->b.status; i++) {
    const struct ane_mil_port *p = &part->outputs[i];
    ane_ai_value y = coreai_value(&s, p->name);
    if (p->kind == ANE_MIL_PORT_LOGITS)
      f->logits[f->n_logits++] = y;
    else
      f->edges[p->value] = y;
  }
  coreai_scope_free(&s);
}

/* ---- Functions ------------------------------------------------------------------------------------------------------------*/

static ane_status keep(struct asset *a, struct ane_ai_build *b, ane_status st) {
  struct ane_ai_function f;
  const char *name = b->f.name;
  if (st) ane_ai_build_fail(b, st);
  st = ane_ai_build_end(b, &f);
  if (st) return ane_fail_in(a->err, st, "function %s", name);
  return ane_buffer_append(&a->functions, &f, sizeof f) ? ANE_OK : ane_fail(a->err, ANE_NOMEM, "no memory for the program");
}

static const char *name_of(struct asset *a, const char *format, int64_t x, int64_t y) {
  char text[96];
  int len = y   ? snprintf(text, sizeof text, "%s_%" PRId64 "_%" PRId64, format, x, y)
            : x ? snprintf(text, sizeof text, "%s_%" PRId64, format, x)
                : snprintf(text, sizeof text, "%s", format);
  return ane_arena_strndup(a->arena, text, (size_t)len);
}

static ane_status load_embeddings(struct asset *a) {
  struct ane_ai_build b;
  ane_ai_build_begin(&b, a->arena, "load_embeddings", a->err);
  ane_ai_output(&b, "embedding_table", coreai_table_value(&b, a->arena, &a->table));
  return keep(a, &b, ANE_OK);
}

static ane_status gather_embeddings(struct asset *a, int64_t t) {
  struct ane_ai_build b;
  const char *name = name_of(a, "gather_embeddings", t, 0);
  if (!name) return ane_fail(a->err, ANE_NOMEM, "no memory for the program");
  ane_ai_build_begin(&b, a->arena, name, a->err);
  ane_ai_value ids = ane_ai_input(&b, "in_new_token_ids", ane_ai_tensor(ANE_AI_INT32, 2, (int64_t[]){1, t}));
  ane_ai_value table = ane_ai_input(&b, "embedding_table", a->table.type);
  ane_ai_output(&b, "gathered_embeddings", ane_ai_gather(&b, table, ids));
  return keep(a, &b, ANE_OK);
}

static ane_status begin_body(struct body *f, const char *name) {
  struct asset *a = f->a;
  if (!name) return ane_fail(a->err, ANE_NOMEM, "no memory for the program");
  ane_ai_build_begin(&f->b, a->arena, name, a->err);
  f->edges = allocate(f, (size_t)a->g->n_values, sizeof *f->edges);
  f->cos = allocate(f, (size_t)a->ropes.n, sizeof *f->cos);
  f->sin = allocate(f, (size_t)a->ropes.n, sizeof *f->sin);
  f->mask = allocate(f, (size_t)a->masks.n, sizeof *f->mask);
  f->logits = allocate(f, (size_t)a->partition->n_shards, sizeof *f->logits);
  return f->b.status;
}

/* Binds the gathered rows [1, T, 1, H] as the joined embedding, [1, H, T, 1]. */
static void bind_hidden(struct body *f, ane_ai_value x) {
  f->edges[f->a->partition->embedding] = ane_ai_transpose(&f->b, x, (int32_t[]){0, 3, 1, 2});
}

static ane_ai_value join_logits(struct body *f) {
  return f->n_logits > 1 ? ane_ai_concat(&f->b, f->logits, f->n_logits, 1) : f->logits[0];
}

/* Returns the scalar of prompt_opt: one element of the last shard's output, so that its computation is not removed. */
static ane_ai_value one_element(struct body *f) {
  const struct ane_mil_lowered *last = f->parts[f->n_parts - 1];
  const struct ane_mil_port *p = &last->outputs[last->n_outputs - 1];
  ane_ai_value x = p->kind == ANE_MIL_PORT_LOGITS ? f->logits[f->n_logits - 1] : f->edges[p->value];
  for (int32_t axis = 0; axis < x->type.rank; axis++)
    if (x->type.dim[axis] > 1) x = ane_ai_slice(&f->b, x, axis, 0, 1, 1);
  return ane_ai_reshape(&f->b, x, 0, NULL);
}

static void run_parts(struct body *f) {
  for (int32_t i = 0; i < f->n_parts && !f->b.status; i++) lower_part(f, f->parts[i]);
  for (uint32_t i = 0; i < f->n_stores && !f->b.status; i++) coreai_store_end(&f->b, &f->stores[i]);
}

static ane_status extend(struct asset *a, int64_t context, int64_t t, bool head) {
  struct body f = {.a = a, .context = context, .t = t, .head = head};
  const struct ane_ai_type hidden = ane_ai_tensor(ANE_AI_FP16, 4, (int64_t[]){1, t, 1, a->table.type.dim[2]});
  ane_status st = begin_body(&f, name_of(a, head ? "extend" : "prompt_opt", context, t));
  if (!st) st = lower_parts(&f);
  if (st) return keep(a, &f.b, st);
  bind_hidden(&f, ane_ai_input(&f.b, "transformer_input", hidden));
  ane_ai_value ids = ane_ai_input(&f.b, "position_ids", ane_ai_tensor(ANE_AI_UINT16, 2, (int64_t[]){1, t}));
  f.step = ane_ai_input(&f.b, "in_step", ane_ai_tensor(ANE_AI_INT32, 1, (int64_t[]){1}));
  ane_ai_value mask = ane_ai_input(&f.b, "causal_mask", ane_ai_tensor(ANE_AI_FP16, 4, (int64_t[]){1, context, 1, t}));
  ane_ai_input(&f.b, "embedding_table", a->table.type);
  f.positions = ane_ai_cast(&f.b, ids, ANE_AI_INT32);
  f.given_mask = ane_ai_transpose(&f.b, mask, (int32_t[]){0, 2, 3, 1});
  declare_states(&f);
  run_parts(&f);
  if (!f.b.status && head)
    ane_ai_output(&f.b, "out_logits", ane_ai_transpose(&f.b, join_logits(&f), (int32_t[]){0, 2, 3, 1}));
  else if (!f.b.status)
    ane_ai_output(&f.b, "out_prompt_opt", one_element(&f));
  return keep(a, &f.b, ANE_OK);
}

static bool has_types(const struct body *f) {
  for (int32_t i = 0; i < f->n_parts; i++)
    for (uint32_t j = 0; j < f->parts[i]->n_inputs; j++)
      if (f->parts[i]->inputs[j].kind == ANE_MIL_PORT_TYPES) return true;
  return false;
}

/* Makes an fp16 constant of the fp32 numbers of dense layer i: its `what`. */
static ane_ai_value rounded(struct body *f, uint32_t i, const char *what, int32_t rank, const int64_t *dim, const float *x) {
  size_t n = 1;
  for (int32_t d = 0; d < rank; d++) n *= (size_t)dim[d];
  uint16_t *data = allocate(f, n, sizeof *data);
  if (!data) return f->positions;
  if (ane_round_f16(x, n, data)) return stored(f, rank, dim, data);
  ane_ai_build_fail(&f->b, ane_fail(f->b.err, ANE_INVALID, "dense layer %u: its %s has a number that is not finite in fp16",
                                    (unsigned)i + 1, what));
  return f->positions;
}

/* Returns the vector of the sequence, or the rows of all tokens [1, T, N]. x [1, N, T, 1]; seen: the tokens that are pooled. */
static ane_ai_value result_of(struct body *f, ane_ai_value x, ane_ai_value seen) {
  const struct ane_coreai_result *r = f->a->result;
  if (!r->n_poolings)
    return ane_ai_reshape(&f->b, ane_ai_transpose(&f->b, x, (int32_t[]){0, 2, 1, 3}), 3, (int64_t[]){1, f->t, ane_ai_dim(x, 1)});
  struct coreai_dense *dense = allocate(f, r->n_dense, sizeof *dense);
  for (uint32_t i = 0; dense && i < r->n_dense && !f->b.status; i++) {
    const struct ane_coreai_dense *d = &r->dense[i];
    dense[i].weight = rounded(f, i, "weight", 4, (int64_t[]){d->rows, d->columns, 1, 1}, d->weight);
    if (d->bias && !f->b.status) dense[i].bias = rounded(f, i, "bias", 4, (int64_t[]){1, d->rows, 1, 1}, d->bias);
  }
  return dense ? coreai_pool(&f->b, r, dense, x, seen) : x;
}

/* Returns the hidden states or scores [1, N, T, 1] of all tokens: those of the head, or else those of the last shard. */
static ane_ai_value rows_of(struct body *f) {
  if (f->n_logits) return join_logits(f);
  ane_ai_build_fail(&f->b, ane_fail(f->b.err, ANE_INVALID, "no shard makes the result of the graph"));
  return f->positions;
}

/* Builds the function of a model that takes whole sequences: all tokens in one call, without states. */
static ane_status whole(struct asset *a, int64_t t, const char *name) {
  const struct ane_ai_type a_token = ane_ai_tensor(ANE_AI_INT32, 2, (int64_t[]){1, t}),
                           a_weight = ane_ai_tensor(ANE_AI_FP16, 2, (int64_t[]){1, t});
  struct body f = {.a = a, .context = t, .t = t, .head = true, .whole = true};
  ane_status st = begin_body(&f, name);
  if (!st) st = lower_parts(&f);
  if (st) return keep(a, &f.b, st);
  ane_ai_value ids = ane_ai_input(&f.b, "input_ids", a_token), seen = ane_ai_input(&f.b, "attention_mask", a_weight),
               pooled = seen;
  if (has_types(&f)) f.types = ane_ai_input(&f.b, "token_type_ids", a_token);
  if (a->result->prompt_mask) pooled = ane_ai_input(&f.b, "pooling_mask", a_weight);
  bind_hidden(&f, ane_ai_gather(&f.b, coreai_table_value(&f.b, a->arena, &a->table), ids));
  f.positions = ane_ai_reshape(&f.b, iota(&f, t, (int64_t[]){1, 1, 1, t}), 2, (int64_t[]){1, t});
  f.step = ane_ai_ints(&f.b, ANE_AI_INT32, (int64_t[]){0}, 1);
  ane_ai_value padding = ane_ai_binary(&f.b, ANE_AI_SUB, ane_ai_number(&f.b, ANE_AI_FP16, 1), seen);
  padding = ane_ai_binary(&f.b, ANE_AI_MUL, padding, ane_ai_number(&f.b, ANE_AI_FP16, HIDDEN_SCORE));
  f.given_mask = ane_ai_reshape(&f.b, padding, 4, (int64_t[]){1, 1, 1, t});
  declare_states(&f);
  run_parts(&f);
  ane_ai_value y = f.b.status ? NULL : rows_of(&f);
  if (!f.b.status) y = result_of(&f, y, pooled);
  if (!f.b.status) ane_ai_output(&f.b, a->result->name ? a->result->name : "logits", y);
  return keep(a, &f.b, ANE_OK);
}

/* ---- The asset ----------------------------------------------------------------------------------------------------------*/

static bool takes_whole(const struct asset *a) {
  bool any = a->partition->stateless;
  for (int32_t i = 0; i < a->masks.n; i++) any |= a->masks.list[i].ahead > 0;
  return any;
}

/* Is there a shard besides the head? Otherwise prompt_opt has nothing to compute. */
static bool has_layers(const struct asset *a) {
  for (int32_t i = 0; i < a->partition->n_shards; i++)
    if (a->partition->shards[i].kind != ANE_SHARD_HEAD) return true;
  return false;
}

static ane_status write_functions(struct asset *a, const struct ane_coreai_plan *plan) {
  ane_status st = ANE_OK;
  if (takes_whole(a)) {
    for (uint32_t i = 0; i < plan->n_tokens && !st; i++)
      st = whole(a, plan->tokens[i], name_of(a, "main", plan->n_tokens > 1 ? plan->tokens[i] : 0, 0));
    return st;
  }
  st = load_embeddings(a);
  for (uint32_t i = 0; i < plan->n_tokens && !st; i++) st = gather_embeddings(a, plan->tokens[i]);
  for (uint32_t c = 0; c < plan->n_contexts; c++)
    for (uint32_t i = 0; i < plan->n_tokens && !st; i++) {
      if (plan->tokens[i] > plan->contexts[c]) continue;
      st = extend(a, plan->contexts[c], plan->tokens[i], true);
      if (!st && has_layers(a)) st = extend(a, plan->contexts[c], plan->tokens[i], false);
    }
  return st;
}

static ane_status check(const struct asset *a, const struct ane_coreai_plan *plan) {
  if (!a->partition->n_embeddings)
    return ane_fail(a->err, ANE_UNSUPPORTED, "the model has no embedding, which Core AI's runner needs");
  for (uint32_t i = 0; i < plan->n_contexts; i++)
    if (plan->contexts[i] > UINT16_MAX)
      return ane_fail(a->err, ANE_UNSUPPORTED, "a context of %" PRId64 " positions; Core AI's runner supports at most %d",
                      plan->contexts[i], UINT16_MAX);
  return ANE_OK;
}

ane_status ane_coreai_export(struct ane_mil_export *e, const struct ane_partition *partition, const struct ane_coreai_plan *plan,
                             const char *path, struct ane_arena *arena, struct ane_ai_program *out, struct ane_error *err) {
  struct asset a = {.x = {.e = e, .coreai = true, .arena = arena, .err = err},
                    .partition = partition,
                    .g = e->graph,
                    .arena = arena,
                    .result = &plan->result,
                    .err = err};
  *out = (struct ane_ai_program){0};
  ane_status st = check(&a, plan);
  if (!st) st = ane_mil_ropes(arena, a.g, &a.ropes, err);
  if (!st) st = ane_mil_masks(arena, a.g, &a.masks, err);
  if (!st) st = coreai_begin(e, path, &a.w, &a.x.sink, err);
  if (st) return st;
  for (uint32_t i = 0; i < plan->n_contexts; i++) a.longest = ANE_MAX(a.longest, plan->contexts[i]);
  st = coreai_table_write(&a.table, &a.x, partition, a.w);
  if (!st) st = write_functions(&a, plan);
  struct ane_ai_function *list = ane_arena_array(arena, a.functions.size / sizeof *list + 1, sizeof *list);
  if (!st && !list) st = ane_fail(err, ANE_NOMEM, "no memory for the program");
  if (!st) {
    memcpy(list, a.functions.data, a.functions.size);
    *out = (struct ane_ai_program){list, (uint32_t)(a.functions.size / sizeof *list)};
    st = ane_aimodel_commit(a.w, out, err);
  } else {
    ane_aimodel_abandon(a.w);
  }
  ane_buffer_free(&a.functions);
  export_free(&a.x);
  return st;
}
