/* Life of a graph, and the functions with which importers build it. */
#include "interp/interp_internal.h"

#include "base/alloc.h"

#include <string.h>

ane_status interp_no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "no memory for the graph"); }

/* Adding a value may move the array. */
static struct interp_value *values_of(struct ane_interp *g) { return (struct interp_value *)(void *)g->value_buffer.data; }

static ane_status add_value(struct ane_interp *g, const struct interp_value *v, int32_t *out, struct ane_error *err) {
  size_t at = g->value_buffer.size / sizeof *v;
  if (at >= INT32_MAX / 2 || !ane_buffer_append(&g->value_buffer, v, sizeof *v)) return interp_no_memory(err);
  *out = (int32_t)at;
  g->values = values_of(g);
  g->n_values = (int32_t)at + 1;
  return ANE_OK;
}

ane_status interp_value(struct ane_interp *g, const char *name, int32_t *out, struct ane_error *err) {
  struct interp_value v = {.name = name, .node = INTERP_NONE, .last = INTERP_NONE};
  return add_value(g, &v, out, err);
}

ane_status interp_constant(struct ane_interp *g, const char *name, const struct ane_dyn *t, int32_t *out, struct ane_error *err) {
  struct interp_value v = {.name = name, .constant = true, .data = *t, .node = INTERP_NONE, .last = INTERP_NONE};
  return add_value(g, &v, out, err);
}

static ane_status small_constant(struct ane_interp *g, ane_dtype t, int32_t rank, int64_t n, const void *data, int32_t *out,
                                 struct ane_error *err) {
  struct ane_dyn d = {.dtype = t, .rank = rank, .dim = {n}, .count = n};
  size_t bytes = (size_t)n * ane_dtype_info(t)->bytes;
  void *copy = ane_arena_alloc(&g->arena, bytes ? bytes : 1);
  if (!copy) return interp_no_memory(err);
  if (bytes) memcpy(copy, data, bytes);
  d.data = copy;
  return interp_constant(g, "", &d, out, err);
}

ane_status interp_ints(struct ane_interp *g, const int64_t *v, int64_t n, bool scalar, int32_t *out, struct ane_error *err) {
  return small_constant(g, ANE_I64, scalar ? 0 : 1, n, v, out, err);
}
ane_status interp_float(struct ane_interp *g, float v, int32_t *out, struct ane_error *err) {
  return small_constant(g, ANE_F32, 0, 1, &v, out, err);
}
ane_status interp_text(struct ane_interp *g, const char *s, size_t len, int32_t *out, struct ane_error *err) {
  return small_constant(g, ANE_U8, 1, (int64_t)len, s, out, err);
}

ane_status interp_put(struct ane_interp *g, struct interp_block *b, const struct interp_node *n, struct ane_error *err) {
  int32_t at = (int32_t)(b->buffer.size / sizeof *n);
  for (int32_t i = 0; i < n->n_out; i++)
    if (n->out[i] != INTERP_NONE) g->values[n->out[i]].block = b, g->values[n->out[i]].node = at;
  return ane_buffer_append(&b->buffer, n, sizeof *n) ? ANE_OK : interp_no_memory(err);
}

ane_status interp_add(struct ane_interp *g, struct interp_block *b, ane_prim op, const char *name, const int32_t *in,
                      int32_t n_in, const int32_t *out, int32_t n_out, struct ane_error *err) {
  struct interp_node n = {.name = name, .op = op, .n_in = n_in, .n_out = n_out};
  n.in = ane_arena_array(&g->arena, (size_t)n_in + 1, sizeof *n.in);
  n.out = ane_arena_array(&g->arena, (size_t)n_out + 1, sizeof *n.out);
  if (!n.in || !n.out) return interp_no_memory(err);
  if (n_in) memcpy(n.in, in, (size_t)n_in * sizeof *in);
  if (n_out) memcpy(n.out, out, (size_t)n_out * sizeof *out);
  return interp_put(g, b, &n, err);
}

ane_status interp_close_block(struct ane_interp *g, struct interp_block *b, struct ane_error *err) {
  b->n_nodes = (int32_t)(b->buffer.size / sizeof *b->nodes);
  b->nodes = ane_arena_array(&g->arena, (size_t)b->n_nodes + 1, sizeof *b->nodes);
  if (b->nodes && b->n_nodes) memcpy(b->nodes, b->buffer.data, b->buffer.size);
  ane_buffer_free(&b->buffer);
  return b->nodes ? ANE_OK : interp_no_memory(err);
}

const struct ane_dyn *interp_const_in(const struct ane_interp *g, const struct interp_node *n, const char *param) {
  int i = n->kind != INTERP_PRIM ? -1 : ane_prim_param(n->op, param);
  if (i < 0 || i >= n->n_in || n->in[i] == INTERP_NONE || !g->values[n->in[i]].constant) return NULL;
  return &g->values[n->in[i]].data;
}

/* ---- Creation and destruction --------------------------------------------------------------------------------------*/

static void free_block(struct ane_interp *g, struct interp_block *b) {
  ane_buffer_free(&b->buffer);
  for (int32_t i = 0; i < b->n_nodes; i++) {
    interp_give_up(g, &b->nodes[i]);
    for (int k = 0; k < 2; k++)
      if (b->nodes[i].blocks[k]) free_block(g, b->nodes[i].blocks[k]);
  }
}

void ane_interp_destroy(struct ane_interp *g) {
  if (!g) return;
  free_block(g, &g->main);
  for (int32_t i = 0; i < g->n_values; i++)
    if (g->values[i].constant) ane_dyn_drop(&g->memory, &g->values[i].data);
  ane_dyn_memory_free(&g->memory);
  if (g->own_pool) ane_pool_destroy(g->pool);
  ane_buffer_free(&g->value_buffer);
  ane_arena_free(&g->arena);
  ane_free(g);
}

/* All steps between import and run. A changed graph goes through them again. */
static ane_status finish(struct ane_interp *g, struct ane_error *err) {
  ane_status st = interp_fuse(g, err);
  if (!st) st = interp_prune(g, err);
  if (!st) st = interp_fold(g, err);
  if (!st) st = interp_prune(g, err);
  if (!st) st = interp_ready(g, err);
  return st ? st : interp_live(g, err);
}

static ane_status build(struct ane_interp *g, struct ane_error *err) {
  struct ane_dyn_budget *b =
      g->options.budget ? ane_dyn_budget_keep(g->options.budget) : ane_dyn_budget_new(g->options.run_memory);
  if (!b) return interp_no_memory(err);
  ane_dyn_memory_use(&g->memory, b);
  ane_dyn_budget_drop(b);
  g->kernels = ane_kernels_get(g->options.isa);
  g->pool = g->options.pool;
  g->own_pool = !g->pool;
  ane_status st = g->pool ? ANE_OK : ane_pool_create(&g->pool, g->options.threads, err);
  if (!st) st = g->mil ? interp_import_mil(g, err) : interp_import_onnx(g, err);
  return st ? st : finish(g, err);
}

static struct ane_interp *new_graph(const struct ane_interp_options *o) {
  struct ane_interp *g = ane_calloc(1, sizeof *g);
  if (!g) return NULL;
  g->options = *o;
  g->info = (struct ane_interp_info){.isa = o->isa, .threads = o->pool ? ane_pool_threads(o->pool) : o->threads};
  return g;
}

ane_status ane_interp_from_onnx(struct ane_interp **out, const struct ane_source *s, const struct ane_interp_options *o,
                                struct ane_error *err) {
  *out = NULL;
  if (!s->onnx) return ane_fail(err, ANE_UNSUPPORTED, "%s: holds no graph", s->path);
  struct ane_interp *g = new_graph(o);
  if (!g) return interp_no_memory(err);
  g->source = s;
  for (const struct ane_source *at = s; at; at = at->parent)
    for (uint32_t i = 0; i < at->n_files; i++) g->options.file_bytes += at->files[i].map.size;
  g->onnx = s->onnx;
  g->io_in = s->onnx->graph.inputs, g->io_out = s->onnx->graph.outputs;
  g->info.n_inputs = s->onnx->graph.n_inputs, g->info.n_outputs = s->onnx->graph.n_outputs;
  struct ane_error own;
  ane_status st = build(g, &own);
  if (st) {
    ane_interp_destroy(g);
    return ane_fail(err, st, "%s: %s", s->path, own.text);
  }
  *out = g;
  return ANE_OK;
}

ane_status ane_interp_from_mil(struct ane_interp **out, const struct ane_mil_model *m, const char *function,
                               const struct ane_interp_options *o, struct ane_error *err) {
  *out = NULL;
  if (!function) function = m->default_function;
  const struct ane_mil_function *f = ane_mil_function(m, function);
  if (!f) return ane_fail(err, ANE_NOTFOUND, "there is no function \"%.100s\"", function);
  ane_status st = ane_mil_verify(m, err);
  if (st) return st;
  struct ane_interp *g = new_graph(o);
  if (!g) return interp_no_memory(err);
  g->mil = m;
  g->function = f;
  struct ane_error own;
  st = build(g, &own);
  if (st) {
    ane_interp_destroy(g);
    return ane_fail(err, st, "function %.60s: %s", function, own.text);
  }
  *out = g;
  return ANE_OK;
}

ane_status ane_interp_check_onnx(const struct ane_source *s, struct ane_error *err) {
  if (!s->onnx) return ane_fail(err, ANE_UNSUPPORTED, "%s: holds no graph", s->path);
  struct ane_interp *g = ane_calloc(1, sizeof *g);
  if (!g) return interp_no_memory(err);
  g->source = s;
  g->onnx = s->onnx;
  ane_status st = interp_import_onnx(g, err);
  ane_interp_destroy(g);
  return st;
}

/* ---- Facts ---------------------------------------------------------------------------------------------------------*/

struct ane_interp_info ane_interp_info(const struct ane_interp *g) {
  return g->info;
}
struct ane_dyn_budget *ane_interp_budget(const struct ane_interp *g) {
  return g->memory.budget;
}
const struct ane_onnx_io *ane_interp_input(const struct ane_interp *g, int32_t i) { return &g->io_in[i]; }
const struct ane_onnx_io *ane_interp_output(const struct ane_interp *g, int32_t i) { return &g->io_out[i]; }

int32_t ane_interp_find(const struct ane_interp *g, const char *name, bool output) {
  const struct ane_onnx_io *io = output ? g->io_out : g->io_in;
  for (int32_t i = 0; i < (output ? g->info.n_outputs : g->info.n_inputs); i++)
    if (strcmp(io[i].name, name) == 0) return i;
  return -1;
}

const char *interp_kind_name(const struct interp_node *n) {
  static const char *const names[] = {"", "if", "while", "read_state", "write_state"};
  return n->kind == INTERP_PRIM ? ane_prim_info(n->op).name : names[n->kind];
}

static bool put(struct ane_buffer *b, const char *s) { return ane_buffer_append(b, s, strlen(s)); }

static bool print_block(const struct ane_interp *g, const struct interp_block *b, const char *indent, struct ane_buffer *out) {
  bool ok = true;
  for (int32_t i = 0; ok && i < b->n_nodes; i++) {
    const struct interp_node *n = &b->nodes[i];
    if (n->dead) continue;
    ok = put(out, indent) && put(out, n->name) && put(out, " = ") && put(out, interp_kind_name(n)) && put(out, "(");
    for (int32_t k = 0; ok && k < n->n_in; k++) {
      const struct interp_value *v = n->in[k] == INTERP_NONE ? NULL : &g->values[n->in[k]];
      char text[ANE_DYN_TEXT];
      ok = put(out, k ? ", " : "") && put(out, !v ? "-" : *v->name ? v->name : ane_dyn_text(&v->data, text));
    }
    ok = ok && put(out, n->state ? ") packed\n" : ")\n");
    for (int k = 0; ok && k < 2 && n->blocks[k]; k++)
      ok = put(out, k ? "  else\n" : "  then\n") && print_block(g, n->blocks[k], "    ", out);
  }
  return ok;
}

bool ane_interp_print(const struct ane_interp *g, struct ane_buffer *out) { return print_block(g, &g->main, "", out); }
