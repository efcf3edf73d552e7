/* A language model from an imported graph: the meaning of its inputs, and its empty caches. */
#include "interp/interp_internal.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

/* ---- Inputs --------------------------------------------------------------------------------------------------------*/

static ane_status find(const struct ane_lm *m, const char *name, bool output, int32_t *out, struct ane_error *err) {
  *out = -1;
  if (!name) return ANE_OK;
  *out = ane_interp_find(m->graph, name, output);
  return *out >= 0 ? ANE_OK : ane_fail(err, ANE_NOTFOUND, "the graph has no %s called %.100s", output ? "output" : "input", name);
}

static ane_status find_all(struct ane_lm *m, const struct ane_lm_options *o, struct ane_error *err) {
  ane_status st = find(m, o->ids, false, &m->ids, err);
  if (!st) st = find(m, o->mask, false, &m->mask, err);
  if (!st) st = find(m, o->positions, false, &m->positions, err);
  if (!st) st = find(m, o->past_length, false, &m->past_length, err);
  if (!st) st = find(m, o->total_length, false, &m->total_length, err);
  if (!st) st = find(m, o->logits, true, &m->logits, err);
  if (!st && (m->ids < 0 || m->logits < 0)) st = ane_fail(err, ANE_INVALID, "no name is given for the ids or the logits");
  for (int32_t i = 0; !st && i < o->n_states; i++) {
    st = find(m, o->states[i].past, false, &m->states[i].input, err);
    if (!st) st = find(m, o->states[i].present, true, &m->states[i].output, err);
  }
  return st;
}

/* Marks input or output i (-1: none) as used. Errors: ANE_INVALID if it has a use already: a feed gives a tensor one meaning. */
static ane_status give_meaning(const struct ane_lm *m, bool *given, int32_t i, bool output, struct ane_error *err) {
  if (i < 0) return ANE_OK;
  const struct ane_onnx_io *io = output ? ane_interp_output(m->graph, i) : ane_interp_input(m->graph, i);
  if (given[i])
    return ane_fail(err, ANE_INVALID, "%s %.100s must have one meaning, but is named for two", output ? "output" : "input",
                    io->name);
  given[i] = true;
  return ANE_OK;
}

/* Checks that each input of the graph has one meaning, and each output at most one. */
static ane_status check_meanings(const struct ane_lm *m, struct ane_error *err) {
  struct ane_interp_info info = ane_interp_info(m->graph);
  bool *in = ane_arena_array(&m->graph->arena, (size_t)info.n_inputs + 1, sizeof *in),
       *out = ane_arena_array(&m->graph->arena, (size_t)info.n_outputs + 1, sizeof *out);
  if (!in || !out) return interp_no_memory(err);
  const int32_t inputs[] = {m->ids, m->mask, m->positions, m->past_length, m->total_length};
  ane_status st = give_meaning(m, out, m->logits, true, err);
  for (size_t i = 0; !st && i < ANE_COUNT(inputs); i++) st = give_meaning(m, in, inputs[i], false, err);
  for (int32_t i = 0; !st && i < m->n_states; i++) {
    st = give_meaning(m, in, m->states[i].input, false, err);
    if (!st) st = give_meaning(m, out, m->states[i].output, true, err);
  }
  for (int32_t i = 0; !st && i < info.n_inputs; i++)
    if (!in[i])
      st = ane_fail(err, ANE_UNSUPPORTED, "input %.100s: its meaning is not known", ane_interp_input(m->graph, i)->name);
  return st;
}

static ane_status check_type(const struct ane_lm *m, int32_t input, struct ane_error *err) {
  if (input < 0) return ANE_OK;
  const struct ane_onnx_io *io = ane_interp_input(m->graph, input);
  if (io->dtype == ANE_I64 || io->dtype == ANE_I32 || io->dtype == ANE_DTYPE_COUNT) return ANE_OK;
  return ane_fail(err, ANE_UNSUPPORTED, "input %.100s must be int64 or int32, but is %s", io->name,
                  ane_dtype_info(io->dtype)->name);
}

/* ---- Caches --------------------------------------------------------------------------------------------------------*/

/* Returns the attention node that reads a cache as its past keys or values; NULL if there is none. */
static const struct interp_node *reader_of(const struct ane_interp *g, int32_t value) {
  for (int32_t i = 0; i < g->main.n_nodes; i++) {
    const struct interp_node *n = &g->main.nodes[i];
    if (n->dead || n->kind != INTERP_PRIM || n->op != ANE_PRIM_group_query_attention) continue;
    int k = ane_prim_param(n->op, "past_key"), v = ane_prim_param(n->op, "past_value");
    if (n->n_in > v && (n->in[k] == value || n->in[v] == value)) return n;
  }
  return NULL;
}

/* Returns a parameter that is one constant int64; else 0. */
static int64_t number(const struct ane_interp *g, const struct interp_node *n, const char *param) {
  const struct ane_dyn *t = n ? interp_const_in(g, n, param) : NULL;
  int64_t v = 0;
  if (t && t->dtype == ANE_I64 && t->count == 1) memcpy(&v, t->data, sizeof v);
  return v;
}

/* Returns the channels of a value that a product with constant weights makes, with or without a bias; 0: unknown. */
static int64_t channels_of(const struct ane_interp *g, int32_t value) {
  while (value != INTERP_NONE && g->values[value].block == &g->main && g->values[value].node >= 0) {
    const struct interp_node *n = &g->main.nodes[g->values[value].node];
    if (n->kind != INTERP_PRIM || n->n_in < 1) return 0;
    if (n->state)
      return n->op == ANE_PRIM_matmul || n->op == ANE_PRIM_matmul_nbits || n->op == ANE_PRIM_matmul_dequantize
                 ? ane_prim_state_rows(n->state)
                 : 0;
    if (n->op != ANE_PRIM_add && n->op != ANE_PRIM_identity && n->op != ANE_PRIM_cast) return 0;
    value = n->in[n->n_in > 1 && n->in[0] != INTERP_NONE && g->values[n->in[0]].constant];
  }
  return 0;
}

/* Finds the width of a head from the query of the attention, which also holds keys and values if those are absent. *out 0:
 * unknown. */
static ane_status head_width(const struct ane_interp *g, const struct interp_node *n, int64_t *out, struct ane_error *err) {
  int64_t heads = number(g, n, "num_heads"), kv = number(g, n, "kv_num_heads"), channels = n ? channels_of(g, n->in[0]) : 0;
  *out = 0;
  if (channels < 1 || heads < 1 || kv < 1) return ANE_OK;
  int64_t parts = n->in[ane_prim_param(n->op, "key")] == INTERP_NONE ? heads + 2 * kv : heads;
  if (channels % parts)
    return ane_fail(err, ANE_SHAPE,
                    "node %.120s (%s): the %" PRId64 " channels of query do not divide into %" PRId64 " heads with %" PRId64
                    " key heads",
                    n->name, ane_prim_info(n->op).name, channels, heads, kv);
  *out = channels / parts;
  return ANE_OK;
}

/* Makes the empty cache [batch, heads, rows, width]: its declared shape with batch 1 and, if it grows, no rows. Other symbolic
 * dimensions come from the attention that reads the cache, or from the options. */
static ane_status first_state(struct ane_lm *m, const struct ane_lm_options *o, int32_t i, struct ane_error *err) {
  struct lm_state *s = &m->states[i];
  const struct ane_onnx_io *io = ane_interp_input(m->graph, s->input);
  const struct interp_node *reader = reader_of(m->graph, m->graph->inputs[s->input]);
  bool slides = number(m->graph, reader, "sliding_window_cache") != 0;
  int64_t width, heads = number(m->graph, reader, "kv_num_heads");
  ane_status st = head_width(m->graph, reader, &width, err);
  if (st) return st;
  if (io->rank < 1) return ane_fail(err, ANE_UNSUPPORTED, "cache %.100s: its shape is not declared", io->name);
  s->first = (struct ane_dyn){.dtype = ANE_F32, .rank = io->rank};
  s->grows = io->rank == 4 && io->dim[2] < 0 && !slides;
  for (int32_t k = 0; k < io->rank; k++) {
    int64_t d = k == 0 ? 1 : io->dim[k];
    if (d < 0 && io->rank == 4) {
      if (k == 1) d = heads > 0 ? heads : o->kv_heads;
      if (k == 2) d = slides ? ANE_MAX(o->states[i].rows, number(m->graph, reader, "local_window_size")) : 0;
      if (k == 3) d = width > 0 ? width : o->head_size;
      if (d == 0 && k != 2) d = -1;
    }
    if (d < 0 || d > INT32_MAX)
      return ane_fail(err, ANE_UNSUPPORTED, "cache %.100s: dimension %d is not known", io->name, (int)k + 1);
    s->first.dim[k] = d;
  }
  if (io->dim[0] > 1) return ane_fail(err, ANE_UNSUPPORTED, "cache %.100s is for a batch of %" PRId64, io->name, io->dim[0]);
  st = ane_dyn_alloc(&m->memory, &s->first, err);
  if (!st) memset(ane_dyn_data(&s->first), 0, (size_t)ane_dyn_bytes(&s->first));
  return st;
}

/* ---- Fingerprint ---------------------------------------------------------------------------------------------------*/

/* Adds bytes to a fingerprint: FNV-1a over all that makes the states of two graphs differ: kernels, ops, shapes of constants, and
 * the first and last of their bytes. */
static void mix(uint64_t *h, const void *data, size_t n) {
  for (size_t i = 0; i < n; i++) *h = (*h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
}

static uint64_t fingerprint(const struct ane_interp *g) {
  uint64_t h = 0xcbf29ce484222325u;
  const int32_t isa = (int32_t)g->options.isa;
  mix(&h, &isa, sizeof isa);
  for (int32_t i = 0; i < g->main.n_nodes; i++) {
    const struct interp_node *n = &g->main.nodes[i];
    if (!n->dead) mix(&h, &n->op, sizeof n->op), mix(&h, n->in, (size_t)n->n_in * sizeof *n->in);
  }
  for (int32_t i = 0; i < g->onnx->n_values; i++) {
    const struct ane_onnx_tensor *t = g->onnx->values[i].constant;
    if (!t) continue;
    size_t end = (size_t)ANE_MIN(t->bytes, (uint64_t)256);
    mix(&h, &t->dtype, sizeof t->dtype);
    mix(&h, t->dim, sizeof t->dim);
    if (end) mix(&h, t->data, end), mix(&h, t->data + (t->bytes - end), end);
  }
  return h;
}

/* ---- Creation and destruction --------------------------------------------------------------------------------------*/

static ane_status setup(struct ane_lm *m, const struct ane_lm_options *o, struct ane_error *err) {
  m->n_states = o->n_states;
  m->states = ane_arena_array(&m->graph->arena, (size_t)o->n_states + 1, sizeof *m->states);
  if (!m->states) return interp_no_memory(err);
  ane_status st = find_all(m, o, err);
  if (!st) st = check_meanings(m, err);
  const int32_t integers[] = {m->ids, m->mask, m->positions, m->past_length, m->total_length};
  for (size_t i = 0; !st && i < ANE_COUNT(integers); i++) st = check_type(m, integers[i], err);
  m->fingerprint = fingerprint(m->graph);
  for (int32_t i = 0; !st && i < m->n_states; i++) st = first_state(m, o, i, err);
  const struct ane_onnx_io *logits = st ? NULL : ane_interp_output(m->graph, m->logits);
  if (!st && (logits->rank < 1 || logits->dim[logits->rank - 1] < 1))
    st = ane_fail(err, ANE_UNSUPPORTED, "output %.100s: the size of the vocabulary is not declared", logits->name);
  if (st) return st;
  m->vocab = logits->dim[logits->rank - 1];
  m->context = o->context;
  m->chunk = o->chunk;
  return interp_trim_head(m->graph, m->logits, &m->trimmed, err);
}

ane_status ane_lm_create(struct ane_lm **out, struct ane_interp *g, const struct ane_lm_options *o, struct ane_error *err) {
  *out = NULL;
  struct ane_lm *m = ane_calloc(1, sizeof *m);
  if (!m) {
    ane_interp_destroy(g);
    return interp_no_memory(err);
  }
  m->graph = g;
  ane_dyn_memory_use(&m->memory, g->memory.budget);
  struct ane_error own;
  ane_status st = setup(m, o, &own);
  if (st) {
    ane_fail(err, st, "%s: %s", g->source->path, own.text);
    ane_lm_destroy(m);
    return st;
  }
  *out = m;
  return ANE_OK;
}

void ane_lm_destroy(struct ane_lm *m) {
  if (!m) return;
  for (int32_t i = 0; m->states && i < m->n_states; i++) ane_dyn_drop(&m->memory, &m->states[i].first);
  ane_dyn_memory_free(&m->memory);
  ane_interp_destroy(m->graph);
  ane_free(m);
}

struct ane_interp *ane_lm_graph(const struct ane_lm *m) {
  return m->graph;
}
int64_t ane_lm_vocab(const struct ane_lm *m) { return m->vocab; }
int64_t ane_lm_context(const struct ane_lm *m) { return m->context; }
int64_t ane_lm_chunk(const struct ane_lm *m) { return m->chunk; }
uint64_t ane_lm_fingerprint(const struct ane_lm *m) { return m->fingerprint; }
