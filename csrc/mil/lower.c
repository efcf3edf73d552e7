/* The driver of the lowering: features, nodes in order, and the model that holds them. */
#include "mil/lower_internal.h"

#include <inttypes.h>

void lower_none(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  (void)l;
  mil_build_fail(
      b, ane_fail(b->err, ANE_UNSUPPORTED, "op %s has no lowering to MIL: its layers stay on the CPU", ane_op_info(n->op)->name));
}

/* The lowering of each op: the column `lowering` of op.def. */
static const lower_fn lowerings[ANE_OP_COUNT] = {
#define ANE_OP(id, name, kind, min, max, outs, tokens, infer, step, lowering, ...) [ANE_OP_##id] = lower_##lowering,
#include "graph/op.def"
#undef ANE_OP
};

const char *ane_mil_port_word(ane_mil_port_kind kind) {
  static const char *const words[] = {"ids",    "types",  "hidden", "edge", "position", "rope_cos", "rope_sin", "mask",
                                      "logits", "argmax", "max",    "keys", "values",   "columns",  "recurrent"};
  return (size_t)kind < ANE_COUNT(words) ? words[kind] : "?";
}

/* Makes a MIL identifier from a name: every character other than a letter, digit or _ becomes _, and a leading digit gets a _
 * before it. Allocated in the arena; NULL: out of memory. */
static char *mil_identifier(struct ane_arena *arena, const char *name) {
  size_t len = strlen(name);
  bool digit = *name >= '0' && *name <= '9';
  char *out = ane_arena_array(arena, len + 2, 1);
  if (!out) return NULL;
  if (digit || !*name) out[0] = '_';
  char *at = out + (digit || !*name);
  for (size_t i = 0; i < len; i++) {
    char c = name[i];
    at[i] = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c : '_';
  }
  return out;
}

/* Returns the number of channels with which a value crosses the edge of a shard: that of its shape, that of the joined embedding,
 * or for the result of a route its number of experts. */
static int64_t edge_channels(const struct ane_graph *g, int32_t value) {
  int64_t experts = lower_route_experts(g, value);
  if (ane_partition_is_embedded(g, value)) return ane_partition_joined_channels(g);
  return experts >= 0 ? experts : g->values[value].shape.dim[1];
}

/* Returns an identifier for a name of the graph; "" after a failure. */
static const char *identifier(struct lower *l, const char *name) {
  const char *s = mil_identifier(l->b.arena, name);
  if (!s) mil_build_no_memory(&l->b);
  return s ? s : "";
}

/* ---- Values ----------------------------------------------------------------------------------------------------------*/

mil_value lower_as_flat(struct lower *l, mil_value x, int64_t channels) {
  int64_t dim[4] = {1, channels, 1, 1};
  dim[l->token_axis] = -1;
  return mil_reshape(&l->b, x, 4, dim);
}

/* Makes a value that no node has made yet: the embedding, if it belongs to the package. */
static void make_late(struct lower *l, int32_t value) {
  const struct ane_value *v = &l->g->values[value];
  struct lowered *x = &l->values[value];
  if (ane_partition_is_embedded(l->g, value) && l->o->embed) lower_embed(l, &l->b, &l->g->nodes[v->node]);
  if (!x->flat && !x->heads && !l->b.status)
    mil_build_fail(&l->b,
                   ane_fail(l->b.err, ANE_INVALID, "%s is neither made by a node of the shard nor one of its inputs", v->name));
}

mil_value lower_flat(struct lower *l, int32_t value) {
  struct lowered *x = &l->values[value];
  if (!x->flat && !x->heads) make_late(l, value);
  if (l->b.status) return mil_int(&l->b, 0);
  if (!x->flat) x->flat = lower_as_flat(l, x->heads, mil_dim(x->heads, 1) * mil_dim(x->heads, 2));
  return x->flat;
}

mil_value lower_heads(struct lower *l, int32_t value, int64_t heads) {
  struct lowered *x = &l->values[value];
  if (x->heads && x->n_heads == heads) return x->heads;
  mil_value flat = lower_flat(l, value);
  x->heads = mil_reshape4(&l->b, flat, 1, heads, mil_dim(flat, 1) / heads, -1);
  x->n_heads = heads;
  return x->heads;
}

void lower_out(struct lower *l, const struct ane_node *n, mil_value x) { l->values[n->outputs[0]] = (struct lowered){.flat = x}; }
void lower_out_heads(struct lower *l, const struct ane_node *n, mil_value x, int64_t heads) {
  l->values[n->outputs[0]] = (struct lowered){.heads = x, .n_heads = heads};
}

/* ---- Weights ---------------------------------------------------------------------------------------------------------*/

static mil_value request(struct lower *l, const struct ane_mil_weight_request *a) {
  struct mil_build *b = &l->b;
  char text[256];
  int len = snprintf(text, sizeof text, "%" PRId32 " %" PRId64 " %" PRId64 " %a %a", a->value, a->from, a->to, (double)a->add,
                     (double)a->times);
  for (int32_t i = 0; i < a->rank; i++) len += snprintf(text + len, sizeof text - (size_t)len, " %" PRId64, a->dim[i]);
  uint32_t at = ane_strmap_get(&l->weights, text, (size_t)len);
  mil_value v;
  if (b->status) return mil_int(b, 0);
  if (at != UINT32_MAX) return memcpy(&v, l->kernels.data + at * sizeof v, sizeof v), v;
  struct ane_mil_weight w = {0};
  const char *name = l->g->values[a->value].name;
  ane_status st = (l->o->weight ? l->o->weight : ane_mil_weight_plain)(l->o->weight_arg, b->arena, a, &w, b->err);
  if (st) {
    mil_build_fail(b, ane_fail_in(b->err, st, "%s", name));
    return mil_int(b, 0);
  }
  v = mil_weight(b, identifier(l, name), &w, ane_mil_tensor_type(a->dtype, a->rank, a->dim));
  const char *key = ane_arena_strndup(b->arena, text, (size_t)len);
  at = (uint32_t)(l->kernels.size / sizeof v);
  if (!key || !ane_buffer_append(&l->kernels, &v, sizeof v) || !ane_strmap_put(&l->weights, key, (size_t)len, at, NULL))
    mil_build_no_memory(b);
  return v;
}

mil_value lower_matrix(struct lower *l, int32_t value, int64_t from, int64_t to) {
  return request(l, &(struct ane_mil_weight_request){.graph = l->g,
                                                     .value = value,
                                                     .from = from,
                                                     .to = to,
                                                     .matrix = true,
                                                     .version = l->b.version,
                                                     .dtype = l->b.dtype,
                                                     .times = 1,
                                                     .rank = 4,
                                                     .dim = {to - from, l->g->values[value].shape.dim[1], 1, 1}});
}

mil_value lower_plain(struct lower *l, int32_t value, int64_t from, int64_t to, int32_t rank, const int64_t *dim, double add,
                      double times) {
  if (value == ANE_NONE) return NULL;
  struct ane_mil_weight_request a = {.graph = l->g,
                                     .value = value,
                                     .from = from,
                                     .to = to,
                                     .dtype = l->b.dtype,
                                     .version = l->b.version,
                                     .add = (float)add,
                                     .times = (float)times,
                                     .rank = rank};
  memcpy(a.dim, dim, (size_t)rank * sizeof *dim);
  return request(l, &a);
}

mil_value lower_vector(struct lower *l, int32_t value, int axis, double add, double times) {
  if (value == ANE_NONE) return NULL;
  const struct ane_shape *s = &l->g->values[value].shape;
  int64_t dim[4] = {1, 1, 1, 1}, rows = s->rank ? s->dim[0] : 1;
  dim[axis] = rows;
  for (uint32_t i = 1; i < s->rank; i++) dim[axis] *= s->dim[i]; /* all numbers lie on the axis, whatever the shape */
  return lower_plain(l, value, 0, rows, 4, dim, add, times);
}

/* ---- Features --------------------------------------------------------------------------------------------------------*/

struct ane_mil_type lower_type(const struct lower *l, ane_mil_dtype t, int64_t channels) {
  struct ane_mil_type type = ane_mil_tensor_type(t, 4, (int64_t[]){1, channels, 1, 1});
  type.dim[l->token_axis] = l->t;
  return type;
}

static void add_port(struct lower *l, struct ane_buffer *list, const char *name, ane_mil_port_kind kind, int32_t value,
                     int32_t index, const struct ane_mil_type *t) {
  struct ane_mil_port p = {.name = name, .kind = kind, .value = value, .index = index, .dtype = t->dtype, .rank = t->rank};
  memcpy(p.dim, t->dim, sizeof p.dim);
  if (!l->b.status && !ane_buffer_append(list, &p, sizeof p)) mil_build_no_memory(&l->b);
}

mil_value lower_input(struct lower *l, const char *name, ane_mil_port_kind kind, int32_t value, int32_t index,
                      struct ane_mil_type type) {
  mil_value v = mil_given(&l->b, mil_name(&l->b, name), type);
  add_port(l, &l->inputs, v->name, kind, value, index, &type);
  return v;
}

mil_value lower_state(struct lower *l, int32_t value, ane_mil_port_kind kind, int32_t rank, const int64_t *dim) {
  struct ane_mil_type type = ane_mil_tensor_type(ANE_MIL_FP16, rank, dim);
  type.kind = ANE_MIL_STATE;
  mil_value v = mil_given(&l->b, mil_name(&l->b, identifier(l, l->g->values[value].name)), type);
  add_port(l, &l->states, v->name, kind, value, 0, &type);
  return v;
}

mil_value lower_position(struct lower *l) {
  if (!l->position)
    l->position =
        lower_input(l, "position", ANE_MIL_PORT_POSITION, ANE_NONE, 0, ane_mil_tensor_type(ANE_MIL_INT32, 1, &(int64_t){1}));
  return l->position;
}

/* Takes T from the first input that has it. */
mil_value lower_tokens(struct lower *l) {
  if (l->tokens) return l->tokens;
  if (l->t >= 0) return l->tokens = mil_ints(&l->b, &(int32_t){(int32_t)l->t}, 1);
  for (int32_t i = 0; i < l->shard->n_ins && !l->tokens; i++) {
    mil_value x = lower_flat(l, l->shard->ins[i]);
    if (!l->b.status && mil_dim(x, l->token_axis) < 0) l->tokens = mil_size(&l->b, x, l->token_axis);
  }
  if (!l->tokens && !l->b.status)
    mil_build_fail(&l->b, ane_fail(l->b.err, ANE_INVALID, "no input of the shard has the number of tokens"));
  return l->b.status ? mil_int(&l->b, 0) : l->tokens;
}

mil_value lower_on_axis(struct lower *l, int rank, int axis, mil_value v) {
  static const int32_t zeros[ANE_MIL_RANK];
  mil_value parts[3];
  int n = 0;
  if (axis > 0) parts[n++] = mil_ints(&l->b, zeros, axis);
  parts[n++] = v;
  if (axis + 1 < rank) parts[n++] = mil_ints(&l->b, zeros, rank - 1 - axis);
  return mil_concat(&l->b, parts, n, 0, false);
}

/* Binds the embeddings to their channels of the joined one, x. */
static void divide_embedding(struct lower *l, mil_value x) {
  int32_t nodes[ANE_PARTITION_EMBEDDINGS], count = ane_partition_embeddings(l->g, nodes);
  int64_t from = 0;
  for (int32_t i = 0; i < ANE_MIN(count, ANE_PARTITION_EMBEDDINGS) && !l->b.status; i++) {
    int32_t v = l->g->nodes[nodes[i]].outputs[0];
    int64_t to = from + l->g->values[v].shape.dim[1];
    if (count > 1) l->b.scope = identifier(l, l->g->values[v].name);
    l->values[v].flat = count > 1 ? mil_slice(&l->b, x, 1, from, to, 1) : x;
    from = to;
  }
}

/* Declares all inputs: the residual stream first, then the edges in the order of the shard. */
static void declare_inputs(struct lower *l) {
  const struct ane_shard *p = l->shard;
  mil_value joined = NULL;
  for (int32_t i = 0; i < p->n_ins; i++) {
    int32_t v = p->ins[i];
    const struct ane_value *value = &l->g->values[v];
    bool embedding = ane_partition_is_embedded(l->g, v), hidden = embedding || v == p->hidden_in;
    if (embedding && l->o->embed) continue;
    const char *name = hidden ? "hidden" : identifier(l, value->name);
    struct ane_mil_type type = lower_type(l, l->b.dtype, edge_channels(l->g, v));
    mil_value x = lower_input(l, name, hidden ? ANE_MIL_PORT_HIDDEN : ANE_MIL_PORT_EDGE, v, 0, type);
    if (embedding)
      joined = x;
    else
      l->values[v].flat = x;
  }
  if (joined) divide_embedding(l, joined);
}

static bool comes_in(const struct lower *l, int32_t value) {
  for (int32_t i = 0; i < l->shard->n_ins; i++)
    if (l->shard->ins[i] == value) return true;
  return false;
}

static void give(struct lower *l, mil_value x, const char *name, ane_mil_port_kind kind, int32_t value) {
  l->b.scope = name;
  mil_value y = mil_identity(&l->b, x, name);
  add_port(l, &l->outputs, y->name, kind, value, 0, &y->type);
}

/* Makes the head's outputs: logits [1, N, T, 1], or the best row of each token and its logit, [1, T]. */
static void give_head(struct lower *l, int32_t value, const char *const names[3]) {
  mil_value x = lower_flat(l, value);
  if (l->b.status) return;
  if (!l->o->argmax) {
    give(l, x, names[0], ANE_MIL_PORT_LOGITS, ANE_NONE);
    return;
  }
  static const int64_t flat[] = {1, -1};
  l->b.scope = "head";
  give(l, mil_reshape(&l->b, mil_argmax(&l->b, x, 1), 2, flat), names[1], ANE_MIL_PORT_ARGMAX, ANE_NONE);
  give(l, mil_reshape(&l->b, mil_reduce(&l->b, "reduce_max", x, 1), 2, flat), names[2], ANE_MIL_PORT_MAX, ANE_NONE);
}

/* Output names are reserved before any operation is named, so that they do not depend on the operations. */
struct output_name {
  const char *name, *head[3];
};

static struct output_name *name_outputs(struct lower *l) {
  const struct ane_shard *p = l->shard;
  struct output_name *names = ane_arena_array(l->b.arena, (size_t)p->n_outs + 1, sizeof *names);
  if (!names) return mil_build_no_memory(&l->b), NULL;
  for (int32_t i = 0; i < p->n_outs; i++) {
    int32_t v = p->outs[i];
    char text[512];
    snprintf(text, sizeof text, "%.480s%s", identifier(l, l->g->values[v].name), comes_in(l, v) ? "_out" : "");
    if (l->g->n_results > 0 && v == l->g->results[0]) {
      names[i].head[0] = mil_name(&l->b, l->o->hidden ? "last_hidden_state" : "logits");
      names[i].head[1] = mil_name(&l->b, "argmax");
      names[i].head[2] = mil_name(&l->b, "max");
    } else {
      names[i].name = mil_name(&l->b, v == p->hidden_out ? "hidden_out" : text);
    }
  }
  return names;
}

static void declare_outputs(struct lower *l, const struct output_name *names) {
  const struct ane_shard *p = l->shard;
  for (int32_t i = 0; names && i < p->n_outs && !l->b.status; i++) {
    if (!names[i].name)
      give_head(l, p->outs[i], names[i].head);
    else
      give(l, lower_flat(l, p->outs[i]), names[i].name, p->outs[i] == p->hidden_out ? ANE_MIL_PORT_HIDDEN : ANE_MIL_PORT_EDGE,
           p->outs[i]);
  }
}

/* ---- Nodes -----------------------------------------------------------------------------------------------------------*/

static ane_status lower_nodes(struct lower *l) {
  struct mil_build *b = &l->b;
  for (int32_t i = 0; i < l->shard->n_nodes && !b->status; i++) {
    l->node = l->shard->nodes[i];
    const struct ane_node *n = &l->g->nodes[l->node];
    b->scope = identifier(l, n->name);
    if (ane_partition_is_embedding(l->g, n)) continue; /* made when first used, if it belongs to the package */
    lowerings[n->op](l, b, n);
    if (b->status) return ane_fail_in(b->err, b->status, "%s", n->name);
  }
  return b->status;
}

/* ---- The model -------------------------------------------------------------------------------------------------------*/

static int compare_ports(const struct ane_mil_port *a, const struct ane_mil_port *b) {
  bool rope_a = a->kind == ANE_MIL_PORT_COS || a->kind == ANE_MIL_PORT_SIN,
       rope_b = b->kind == ANE_MIL_PORT_COS || b->kind == ANE_MIL_PORT_SIN;
  if (rope_a && rope_b && a->index != b->index) return a->index < b->index ? -1 : 1;
  if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
  return (a->index > b->index) - (a->index < b->index);
}

/* A stable sort of few elements. */
static void sort_ports(struct ane_mil_port *list, uint32_t n) {
  for (uint32_t i = 1; i < n; i++)
    for (uint32_t j = i; j > 0 && compare_ports(&list[j - 1], &list[j]) > 0; j--) {
      struct ane_mil_port swap = list[j];
      list[j] = list[j - 1];
      list[j - 1] = swap;
    }
}

static struct ane_mil_port *keep_ports(struct lower *l, const struct ane_buffer *from, uint32_t *n) {
  /* analyser: n is in a result that was allocated. */
  *n = (uint32_t)(from->size / sizeof(struct ane_mil_port));
  struct ane_mil_port *list = ane_arena_array(l->b.arena, *n + 1, sizeof *list);
  if (!list)
    mil_build_no_memory(&l->b);
  else if (*n)
    memcpy(list, from->data, from->size);
  return list;
}

static struct ane_mil_feature feature_of(const struct lower *l, const struct ane_mil_port *p, bool output) {
  struct ane_mil_feature f = {.name = p->name,
                              .description = "",
                              .kind = p->kind >= ANE_MIL_PORT_KEYS ? ANE_MIL_ARRAY_STATE : ANE_MIL_ARRAY,
                              .dtype = p->dtype,
                              .flexibility = ANE_MIL_FIXED,
                              .shape = {.rank = p->rank}};
  bool open = false;
  for (int32_t i = 0; i < p->rank; i++) {
    bool any = p->dim[i] < 0;
    f.shape.dim[i] = f.low[i] = any ? 1 : p->dim[i];
    f.high[i] = any ? l->o->max_t : p->dim[i];
    open |= any;
  }
  if (open && output)
    f.shape.rank = 0; /* known only at run time */
  else if (open)
    f.flexibility = ANE_MIL_RANGE;
  return f;
}

static struct ane_mil_feature *features_of(struct lower *l, const struct ane_mil_port *list, uint32_t n, bool output) {
  struct ane_mil_feature *f = ane_arena_array(l->b.arena, n + 1, sizeof *f);
  for (uint32_t i = 0; f && i < n; i++) f[i] = feature_of(l, &list[i], output);
  if (!f) mil_build_no_memory(&l->b);
  return f;
}

static struct ane_mil_named_type *inputs_of(struct lower *l, const struct ane_mil_lowered *r) {
  struct ane_mil_named_type *list = ane_arena_array(l->b.arena, r->n_inputs + r->n_states + 1, sizeof *list);
  for (uint32_t i = 0; list && i < r->n_inputs + r->n_states; i++) {
    const struct ane_mil_port *p = i < r->n_inputs ? &r->inputs[i] : &r->states[i - r->n_inputs];
    list[i] = (struct ane_mil_named_type){p->name, ane_mil_tensor_type(p->dtype, p->rank, p->dim)};
    if (i >= r->n_inputs) list[i].type.kind = ANE_MIL_STATE;
  }
  if (!list) mil_build_no_memory(&l->b);
  return list;
}

static struct ane_mil_model *model_of(struct lower *l, const struct ane_mil_lowered *r) {
  struct ane_arena *a = l->b.arena;
  struct ane_mil_model *m = ane_arena_alloc(a, sizeof *m);
  struct ane_mil_interface *face = ane_arena_alloc(a, sizeof *face);
  struct ane_mil_function *f = ane_arena_alloc(a, sizeof *f);
  struct ane_mil_op *ops = ane_arena_array(a, l->b.ops.size / sizeof *ops + 1, sizeof *ops);
  const char **outputs = ane_arena_array(a, r->n_outputs + 1, sizeof *outputs);
  const char *name = l->o->function ? ane_arena_strndup(a, l->o->function, strlen(l->o->function)) : "main";
  if (!m || !face || !f || !ops || !outputs || !name) return mil_build_no_memory(&l->b), NULL;
  memcpy(ops, l->b.ops.data, l->b.ops.size);
  for (uint32_t i = 0; i < r->n_outputs; i++) outputs[i] = r->outputs[i].name;
  *face = (struct ane_mil_interface){.name = name,
                                     .inputs = features_of(l, r->inputs, r->n_inputs, false),
                                     .n_inputs = r->n_inputs,
                                     .outputs = features_of(l, r->outputs, r->n_outputs, true),
                                     .n_outputs = r->n_outputs,
                                     .states = features_of(l, r->states, r->n_states, false),
                                     .n_states = r->n_states,
                                     .predicted = "",
                                     .probabilities = ""};
  *f = (struct ane_mil_function){
      .name = name,
      .opset = ane_mil_opset(l->b.version),
      .inputs = inputs_of(l, r),
      .n_inputs = r->n_inputs + r->n_states,
      .block = {.outputs = outputs, .n_outputs = r->n_outputs, .ops = ops, .n_ops = (uint32_t)(l->b.ops.size / sizeof *ops)}};
  *m = (struct ane_mil_model){
      .version = l->b.version,
      .interfaces = face,
      .n_interfaces = 1,
      .multi = strcmp(name, "main") != 0,
      .default_function = name,
      .metadata = {.description = l->o->description ? l->o->description : "", .version = "", .author = "", .license = ""},
      .program = {.functions = f, .n_functions = 1}};
  return m;
}

static struct ane_mil_lowered *finish(struct lower *l) {
  struct ane_mil_lowered *r = ane_arena_alloc(l->b.arena, sizeof *r);
  if (!r) mil_build_no_memory(&l->b);
  if (l->b.status) return NULL;
  r->inputs = keep_ports(l, &l->inputs, &r->n_inputs);
  r->outputs = keep_ports(l, &l->outputs, &r->n_outputs);
  r->states = keep_ports(l, &l->states, &r->n_states);
  if (l->b.status) return NULL;
  sort_ports(r->inputs, r->n_inputs);
  r->model = model_of(l, r);
  return r;
}

/* The first specification with states, weights in iOS 18's schemes, and several functions. */
enum { SEVERAL_VERSION = 9 };

/* ---- Lowering a shard ------------------------------------------------------------------------------------------------*/

static ane_status check_options(const struct ane_mil_options *o, struct ane_error *err) {
  if (o->context < 1 || o->context > INT32_MAX)
    return ane_fail(err, ANE_INVALID, "context is %" PRId64 ", not in 1 .. %d", o->context, INT32_MAX);
  if (o->held && (o->held < o->context || o->held > INT32_MAX))
    return ane_fail(err, ANE_INVALID, "attention sees %" PRId64 " positions, but the states hold %" PRId64, o->context, o->held);
  int64_t t = o->fixed_t > 0 ? o->fixed_t : o->max_t;
  if (t < 1 || t > o->context)
    return ane_fail(err, ANE_INVALID, "a call has %" PRId64 " tokens, not 1 .. %" PRId64 ", the context", t, o->context);
  return ANE_OK;
}

static ane_status prepare(struct lower *l, struct ane_arena *arena, struct ane_error *err) {
  ane_status st = ane_mil_ropes(arena, l->g, &l->ropes, err);
  if (!st) st = ane_mil_masks(arena, l->g, &l->masks, err);
  if (st) return st;
  l->values = ane_arena_array(arena, (size_t)l->g->n_values + 1, sizeof *l->values);
  l->cos = ane_arena_array(arena, (size_t)l->ropes.n + 1, sizeof *l->cos);
  l->sin = ane_arena_array(arena, (size_t)l->ropes.n + 1, sizeof *l->sin);
  l->mask = ane_arena_array(arena, (size_t)l->masks.n + 1, sizeof *l->mask);
  return l->values && l->cos && l->sin && l->mask ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for the program");
}

ane_status ane_mil_lower(struct ane_arena *arena, const struct ane_graph *g, const struct ane_shard *shard,
                         const struct ane_mil_options *o, struct ane_mil_lowered **out, struct ane_error *err) {
  *out = NULL;
  ane_status st = check_options(o, err);
  if (st) return st;
  struct lower l = {.g = g,
                    .shard = shard,
                    .o = o,
                    .token_axis = o->layout == ANE_MIL_C1T ? 3 : 2,
                    .t = o->fixed_t > 0 ? o->fixed_t : ANE_MIL_UNKNOWN};
  mil_build_init(&l.b, arena, shard->n_states > 0 || o->ios18_weights || o->several || o->function ? SEVERAL_VERSION : 7,
                 o->fp32 ? ANE_MIL_FP32 : ANE_MIL_FP16, err);
  st = prepare(&l, arena, err);
  if (!st) {
    const struct output_name *names = name_outputs(&l);
    declare_inputs(&l);
    st = lower_nodes(&l);
    if (!st) declare_outputs(&l, names);
    *out = finish(&l);
    st = l.b.status;
  }
  if (!st) st = ane_mil_verify((*out)->model, err);
  if (st) *out = NULL;
  mil_build_free(&l.b);
  ane_buffer_free(&l.inputs);
  ane_buffer_free(&l.outputs);
  ane_buffer_free(&l.states);
  ane_buffer_free(&l.kernels);
  ane_strmap_free(&l.weights);
  return st;
}

/* ---- Several functions -------------------------------------------------------------------------------------------------*/

ane_status ane_mil_join(struct ane_arena *arena, struct ane_mil_lowered *const *parts, uint32_t n, struct ane_mil_model **out,
                        struct ane_error *err) {
  struct ane_mil_model *m = ane_arena_alloc(arena, sizeof *m);
  struct ane_mil_interface *faces = ane_arena_array(arena, (size_t)n + 1, sizeof *faces);
  struct ane_mil_function *functions = ane_arena_array(arena, (size_t)n + 1, sizeof *functions);
  *out = NULL;
  if (!m || !faces || !functions) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  if (n < 1) return ane_fail(err, ANE_INVALID, "a package has at least one function");
  for (uint32_t i = 0; i < n; i++) {
    const struct ane_mil_model *part = parts[i]->model;
    faces[i] = part->interfaces[0];
    functions[i] = part->program.functions[0];
    if (part->version != SEVERAL_VERSION)
      return ane_fail(err, ANE_INVALID, "function %.64s was not lowered as one of several", faces[i].name);
    for (uint32_t j = 0; j < i; j++)
      if (strcmp(faces[j].name, faces[i].name) == 0)
        return ane_fail(err, ANE_INVALID, "two functions are called %.64s", faces[i].name);
  }
  *m = *parts[0]->model;
  m->interfaces = faces;
  m->n_interfaces = n;
  m->multi = true;
  m->default_function = faces[0].name;
  m->program = (struct ane_mil_program){.functions = functions, .n_functions = n};
  ane_status st = ane_mil_verify(m, err);
  if (!st) *out = m;
  return st;
}
