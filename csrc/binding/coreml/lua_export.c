/* core.mil_exporter(graph, options): writes the shards of a graph as Core ML packages. */
#include "binding/coreml/bind_mil.h"
#include "binding/tensor/bind_factor.h"
#include "binding/tensor/bind_tensor.h"

#include "base/alloc.h"
#include "base/sha256.h"

#include <string.h>

#define EXPORTER_CLASS "ane.mil_exporter"

/* The graph is the first user value; it must stay open. */
struct lua_exporter {
  struct bind_graph *owner;
  struct ane_partition *partition; /* NULL: closed */
  struct ane_mil_export e;
  struct ane_mil_options o;
  struct ane_mil_profile *profiles; /* n_profiles; 0: packages have one function */
  uint32_t n_profiles;
  const float **importance; /* by value */
  struct ane_arena arena;   /* of the shard that is being written */
  bool busy;                /* writing: its functions `wrote` and `factor` must not use it */
};

static struct lua_exporter *check_open(lua_State *L) {
  struct lua_exporter *ud = luaL_checkudata(L, 1, EXPORTER_CLASS);
  if (!ud->partition) luaL_error(L, "exporter is closed");
  if (!ud->owner->graph) luaL_error(L, "graph is closed");
  return ud;
}

static struct lua_exporter *check_exporter(lua_State *L) {
  struct lua_exporter *ud = check_open(L);
  if (ud->busy) luaL_error(L, "exporter is busy");
  return ud;
}

static int exporter_close(lua_State *L) {
  struct lua_exporter *ud = luaL_checkudata(L, 1, EXPORTER_CLASS);
  if (ud->busy) luaL_error(L, "exporter is busy");
  ane_partition_free(ud->partition);
  ud->partition = NULL;
  ane_pool_destroy(ud->e.pool);
  ud->e.pool = NULL;
  ane_free(ud->e.fits);
  ane_free(ud->e.fitted);
  ud->e.fits = NULL;
  ud->e.fitted = NULL;
  ane_arena_free(&ud->arena);
  return 0;
}

/* ---- Creation ------------------------------------------------------------------------------------------------------------*/

/* Reads the option `importance`: {constant = tensor of as many numbers as the matrix has columns}. Pushes a userdata, whose user
 * value is a table that keeps the tensors alive; nothing if the option is absent. */
static void read_importance(lua_State *L, int t, struct lua_exporter *ud) {
  const struct ane_graph *g = ud->owner->graph;
  if (bind_field(L, t, "importance") == LUA_TNIL) {
    lua_pop(L, 1);
    return;
  }
  luaL_checktype(L, -1, LUA_TTABLE);
  ud->importance = lua_newuserdatauv(L, ((size_t)g->n_values + 1) * sizeof *ud->importance, 1);
  memset(ud->importance, 0, ((size_t)g->n_values + 1) * sizeof *ud->importance);
  lua_newtable(L);
  int kept = lua_gettop(L);
  lua_pushvalue(L, kept);
  lua_setiuservalue(L, kept - 1, 1);
  lua_pushvalue(L, kept - 2);
  for (int32_t v = 0; v < g->n_values; v++) {
    if (g->values[v].kind != ANE_VALUE_CONST || g->values[v].shape.rank != 2) continue;
    if (bind_field(L, -1, g->values[v].name) != LUA_TNIL) {
      struct bind_tensor *x = bind_check_tensor(L, lua_gettop(L));
      if ((int64_t)x->count != g->values[v].shape.dim[1])
        luaL_error(L, "importance of %s has %I numbers, but the matrix has %I columns", g->values[v].name, (LUAI_UACINT)x->count,
                   (LUAI_UACINT)g->values[v].shape.dim[1]);
      ud->importance[v] = x->data;
      lua_pushvalue(L, -1);
      lua_rawseti(L, kept, v + 1);
    }
    lua_pop(L, 1);
  }
  lua_settop(L, kept - 1);
}

static ane_status exporter_memory(struct lua_exporter *ud, int threads, struct ane_error *err) {
  size_t n = (size_t)ud->owner->graph->n_values + 1;
  ud->e.fits = ane_calloc(n, sizeof *ud->e.fits);
  ud->e.fitted = ane_calloc(n, sizeof *ud->e.fitted);
  if (!ud->e.fits || !ud->e.fitted) return ane_fail(err, ANE_NOMEM, "no memory for an exporter");
  return ane_pool_create(&ud->e.pool, threads, err);
}

/* mil_exporter(graph, options) -> exporter; or nil, message, code. Options: those of mil_plan, weights = "plain" (as computed);
 * rope ("inputs", "constants"), argmax, fp32, gather ("all", "last"), embed, threads, importance, resume
 * (assets take over what an interrupted export of the same content has left beside them) */
static int exporter_new(lua_State *L) {
  struct bind_graph *graph = bind_check_graph(L, 1);
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  if (graph->blank) return luaL_error(L, "the graph has no weights, only their shapes: it cannot be written");
  struct lua_exporter *ud = bind_new(L, EXPORTER_CLASS, sizeof *ud, 4);
  ud->owner = graph;
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, 3, 1);
  bind_mil_exporter_options(L, 2, &ud->o);
  ud->profiles = bind_mil_profiles(L, 2, &ud->o, &ud->n_profiles);
  lua_setiuservalue(L, 3, 2);
  bind_field(L, 2, "weights");
  bool plain = lua_isstring(L, -1) && strcmp(lua_tostring(L, -1), "plain") == 0;
  lua_pop(L, 1);
  struct ane_weight_spec *specs = NULL;
  if (plain) {
    specs = lua_newuserdatauv(L, ((size_t)graph->graph->n_values + 1) * sizeof *specs, 0);
    memset(specs, 0, ((size_t)graph->graph->n_values + 1) * sizeof *specs);
  } else {
    specs = bind_mil_schemes(L, 2, graph->graph);
  }
  lua_setiuservalue(L, 3, 3);
  read_importance(L, 2, ud);
  if (ud->importance) lua_setiuservalue(L, 3, 4);
  int threads = (int)bind_opt_integer_option(L, 2, "threads", 1, 1, 1024);
  ud->e.resume = bind_boolean_option(L, 2, "resume");
  ud->e.graph = graph->graph;
  ud->e.specs = plain ? NULL : specs;
  ud->e.importance = ud->importance;
  ane_status st = bind_mil_partition(L, 2, graph->graph, specs, &ud->partition, &err);
  if (!st) st = exporter_memory(ud, threads, &err);
  if (st) return bind_fail(L, &err);
  lua_settop(L, 3);
  return 1;
}

/* ---- Writing --------------------------------------------------------------------------------------------------------------*/

struct writing {
  lua_State *L;
  struct lua_exporter *ud;
  int wrote;  /* stack index of the function, 0: none */
  int factor; /* stack index of the function, 0: none; the next slot keeps the factor alive */
  bool raised;
};

/* Calls fn(data, function) in protected mode, because no error of Lua, out of memory included, may jump over the exporter's C
 * functions. The results, or the message, stay on the stack. */
static ane_status call_protected(struct writing *x, lua_CFunction fn, void *data, int function, int results,
                                 struct ane_error *err) {
  lua_pushcfunction(x->L, fn);
  lua_pushlightuserdata(x->L, data);
  lua_pushvalue(x->L, function);
  x->raised = lua_pcall(x->L, 2, results, 0) != LUA_OK;
  return x->raised ? ane_fail(err, ANE_STOPPED, "stopped") : ANE_OK;
}

struct asked_factor {
  const struct ane_value *value;
  struct ane_weight_spec spec;
  const struct ane_factor *factor; /* NULL: none */
};

/* (struct asked_factor *, function(name, scheme, columns) -> factor, or nil) -> the factor */
static int ask_factor(lua_State *L) {
  struct asked_factor *a = lua_touserdata(L, 1);
  lua_pushstring(L, a->value->name);
  lua_pushstring(L, ane_weight_spec_name(a->spec));
  lua_pushinteger(L, a->value->shape.dim[1]);
  lua_call(L, 3, 1);
  a->factor = lua_isnil(L, -1) ? NULL : bind_check_factor(L, lua_gettop(L), a->value->shape.dim[1]);
  return 1;
}

/* factor(name, scheme, columns) -> factor, or nil */
static ane_status on_factor(void *arg, int32_t value, struct ane_weight_spec spec, const struct ane_factor **out,
                            struct ane_error *err) {
  struct writing *x = arg;
  struct asked_factor a = {&x->ud->e.graph->values[value], spec, NULL};
  if (spec.scheme == ANE_WEIGHT_FP16) return ANE_OK;
  ane_status st = call_protected(x, ask_factor, &a, x->factor, 1, err);
  if (st) return st;
  lua_replace(x->L, x->factor + 1);
  *out = a.factor;
  return ANE_OK;
}

struct written {
  const char *name;
  int64_t from, to;
  const struct ane_weights *weights;
};

/* (struct written *, function) */
static int tell_written(lua_State *L) {
  const struct written *a = lua_touserdata(L, 1);
  const struct ane_weights *w = a->weights;
  const struct {
    const char *name;
    lua_Number v;
  } numbers[] = {{"max_abs", w->error.max_abs}, {"error", w->error.error}, {"signal", w->error.signal}};
  const struct {
    const char *name;
    lua_Integer v;
  } integers[] = {
      {"from", a->from}, {"to", a->to}, {"bytes", (lua_Integer)w->sizes.bytes}, {"count", (lua_Integer)w->error.count}};
  lua_createtable(L, 0, 9);
  bind_set_text(L, "name", a->name);
  bind_set_text(L, "form", ane_weight_spec_name(w->spec));
  for (size_t i = 0; i < ANE_COUNT(numbers); i++) lua_pushnumber(L, numbers[i].v), lua_setfield(L, -2, numbers[i].name);
  for (size_t i = 0; i < ANE_COUNT(integers); i++) lua_pushinteger(L, integers[i].v), lua_setfield(L, -2, integers[i].name);
  lua_call(L, 1, 0);
  return 0;
}

/* wrote{name, from, to, form, bytes, max_abs, error, signal, count} */
static ane_status on_wrote(void *arg, int32_t value, int64_t from, int64_t to, const struct ane_weights *w,
                           struct ane_error *err) {
  struct writing *x = arg;
  struct written a = {x->ud->e.graph->values[value].name, from, to, w};
  return x->wrote ? call_protected(x, tell_written, &a, x->wrote, 0, err) : ANE_OK;
}

static void on_release(void *arg, const void *data, uint64_t bytes) {
  const struct bind_graph *owner = ((struct writing *)arg)->ud->owner;
  bind_release(owner->sources, owner->n_sources, data, bytes);
}

/* Sets the callbacks. Until end_writing they can neither use the exporter nor change its graph. */
static void begin_writing(struct writing *x) {
  struct lua_exporter *ud = x->ud;
  ud->e.wrote = on_wrote;
  ud->e.factor = x->factor ? on_factor : NULL;
  ud->e.release = on_release;
  ud->e.arg = x;
  ud->busy = true;
  ud->owner->uses++;
}

static void end_writing(struct writing *x) {
  x->ud->busy = false;
  x->ud->owner->uses--;
}

/* All data of one shard, in the arena of the exporter. */
struct shard_written {
  struct ane_mil_function_plan *functions;
  struct ane_mil_lowered **lowered;
  uint32_t n_functions; /* 0: the only one is called main */
};

/* Writes shard i. asset: as an asset of Core AI, not as a package of Core ML. */
static ane_status write_shard(struct lua_exporter *ud, int32_t i, const char *path, bool asset, struct shard_written *out,
                              struct ane_error *err) {
  const struct ane_shard *p = &ud->partition->shards[i];
  ane_status st = ANE_OK;
  if (ud->n_profiles)
    st =
        ane_mil_plan_functions(&ud->arena, ud->e.graph, p, ud->profiles, ud->n_profiles, &out->functions, &out->n_functions, err);
  if (st) return st;
  out->lowered = ane_arena_array(&ud->arena, (size_t)out->n_functions + 1, sizeof *out->lowered);
  if (!out->lowered) return ane_fail(err, ANE_NOMEM, "no memory for the functions");
  if (asset)
    return ane_coreai_export_shard(&ud->e, p, &ud->o, out->functions, out->n_functions, path, &ud->arena, out->lowered, err);
  if (!out->n_functions) return ane_mil_export(&ud->e, p, &ud->o, path, &ud->arena, out->lowered, err);
  return ane_mil_export_functions(&ud->e, p, &ud->o, out->functions, out->n_functions, path, &ud->arena, out->lowered, err);
}

static int write_as(lua_State *L, bool asset) {
  struct lua_exporter *ud = check_exporter(L);
  int32_t i = (int32_t)bind_integer(L, 2, 1, ud->partition->n_shards) - 1;
  const char *path = bind_text(L, 3);
  luaL_checkstack(L, 16, "export");
  lua_settop(L, 6);
  if (asset && !ud->n_profiles) return luaL_error(L, "an asset has functions: option functions is missing");
  struct writing x = {.L = L, .ud = ud, .wrote = lua_isfunction(L, 4) ? 4 : 0, .factor = lua_isfunction(L, 5) ? 5 : 0};
  struct shard_written w = {0};
  struct ane_error err;
  begin_writing(&x);
  ane_status st = write_shard(ud, i, path, asset, &w, &err);
  end_writing(&x);
  if (x.raised) return ane_arena_free(&ud->arena), lua_error(L);
  if (st) return ane_arena_free(&ud->arena), bind_fail(L, &err);
  lua_createtable(L, 0, 5);
  lua_pushinteger(L, w.lowered[0]->model->version);
  lua_setfield(L, -2, "version");
  bind_mil_push_lowered(L, ud->e.graph, w.lowered[0]);
  if (w.n_functions) bind_mil_push_functions(L, ud->e.graph, w.functions, w.n_functions, w.lowered);
  ane_arena_free(&ud->arena);
  return 1;
}

/* write(i, path [, wrote [, factor]]) -> {version, inputs, outputs, states (of the default function), functions (where the
 * exporter has the option; the default one first)}; or nil, message, code. i: 1-based; wrote: function({name, from, to, form
 * (the scheme), bytes, count, max_abs, error, signal (sums of squares)}) for each matrix; factor: function(name, scheme, columns)
 * -> factor of its inputs, or nil */
static int exporter_write(lua_State *L) { return write_as(L, false); }

/* write_asset(i, path [, wrote [, factor]]): the same for an asset of Core AI. The exporter has the option functions, each with
 * fixed_t. */
static int exporter_write_asset(lua_State *L) { return write_as(L, true); }

/* Sets `key` of the table on top: a list of {name, dtype, shape} of the ports of this kind. */
static void push_ai_ports(lua_State *L, const char *key, const struct ane_ai_port *list, uint32_t n, ane_ai_kind kind) {
  lua_newtable(L);
  for (uint32_t i = 0, k = 0; i < n; i++) {
    const struct ane_ai_type *t = &list[i].value->type;
    if (t->kind != kind) continue;
    lua_createtable(L, 0, 3);
    bind_set_text(L, "name", list[i].name);
    bind_set_text(L, "dtype", ane_ai_dtype_name(t->dtype));
    lua_createtable(L, t->rank, 0);
    for (int32_t d = 0; d < t->rank; d++) lua_pushinteger(L, t->dim[d]), lua_rawseti(L, -2, d + 1);
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, (lua_Integer)++k);
  }
  lua_setfield(L, -2, key);
}

static void push_ai_functions(lua_State *L, const struct ane_ai_program *p) {
  lua_createtable(L, (int)p->n_functions, 0);
  for (uint32_t i = 0; i < p->n_functions; i++) {
    const struct ane_ai_function *f = &p->functions[i];
    lua_createtable(L, 0, 5);
    bind_set_text(L, "name", f->name);
    push_ai_ports(L, "inputs", f->inputs, f->n_inputs, ANE_AI_TENSOR);
    push_ai_ports(L, "outputs", f->outputs, f->n_outputs, ANE_AI_TENSOR);
    push_ai_ports(L, "states", f->inputs, f->n_inputs, ANE_AI_HANDLE);
    lua_pushinteger(L, f->n_ops);
    lua_setfield(L, -2, "operations");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* Returns the list of whole numbers at this index, in a userdata that is pushed. */
static const int64_t *push_numbers(lua_State *L, int at, uint32_t *n) {
  *n = (uint32_t)bind_length(L, at, 1 << 20);
  int64_t *list = lua_newuserdatauv(L, (*n + 1) * sizeof *list, 0);
  for (uint32_t i = 0; i < *n; i++) {
    lua_rawgeti(L, at, (lua_Integer)i + 1);
    list[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
    luaL_argcheck(L, list[i] >= 1 && list[i] <= 1 << 24, at, "numbers from 1 to 16777216");
  }
  return list;
}

/* Returns the `count` fp32 numbers of the text field `key`, which the table at `kept` keeps alive; NULL: there is none. */
static const float *numbers_field(lua_State *L, int t, const char *key, size_t count, int kept) {
  const float *numbers = bind_opt_floats_option(L, t, key, (lua_Integer)count, "result.dense");
  bind_field(L, t, key);
  lua_rawseti(L, kept, (lua_Integer)lua_rawlen(L, kept) + 1);
  return numbers;
}

/* Reads the list `dense` of the table at t, of {weight, bias (fp32 numbers as text), rows, columns, tanh}, into a userdata that
 * is pushed, and a table that keeps the texts. */
static const struct ane_coreai_dense *read_dense(lua_State *L, int t, uint32_t *n) {
  bind_field(L, t, "dense");
  *n = lua_istable(L, -1) ? (uint32_t)bind_length(L, lua_gettop(L), 1 << 10) : 0;
  int list = lua_gettop(L);
  struct ane_coreai_dense *out = lua_newuserdatauv(L, (*n + 1) * sizeof *out, 0);
  lua_newtable(L);
  int kept = lua_gettop(L);
  for (uint32_t i = 0; i < *n; i++) {
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    int row = lua_gettop(L);
    luaL_checktype(L, row, LUA_TTABLE);
    out[i].rows = bind_integer_option(L, row, "rows", 1, 1 << 16);
    out[i].columns = bind_integer_option(L, row, "columns", 1, 1 << 16);
    out[i].weight = numbers_field(L, row, "weight", (size_t)out[i].rows * (size_t)out[i].columns, kept);
    out[i].bias = numbers_field(L, row, "bias", (size_t)out[i].rows, kept);
    out[i].tanh = bind_boolean_option(L, row, "tanh");
    if (!out[i].weight) luaL_error(L, "result.dense: entry %d has no weight", (int)i + 1);
    lua_pop(L, 1);
  }
  return out;
}

/* Reads the table at t as a result: poolings (list of names), dense, normalise, prompt_mask, name. Leaves values on the stack. */
static void read_result(lua_State *L, int t, struct ane_coreai_result *r) {
  static const char *const names[] = {"cls", "last", "mean", "max", "mean_sqrt", "weighted_mean", NULL};
  bind_field(L, t, "poolings");
  luaL_checktype(L, -1, LUA_TTABLE);
  int list = lua_gettop(L);
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, list); i++) {
    if (i > ANE_COREAI_POOLINGS) luaL_error(L, "result.poolings: more than %d", ANE_COREAI_POOLINGS);
    lua_rawgeti(L, list, i);
    r->poolings[r->n_poolings++] = (ane_coreai_pooling)luaL_checkoption(L, -1, NULL, names);
    lua_pop(L, 1);
  }
  r->normalise = bind_boolean_option(L, t, "normalise");
  r->prompt_mask = bind_boolean_option(L, t, "prompt_mask");
  bind_field(L, t, "name");
  r->name = lua_tostring(L, -1);
  r->dense = read_dense(L, t, &r->n_dense);
}

/* coreai(path, contexts, tokens [, wrote [, factor [, result]]]) -> list of functions {name, inputs, outputs, states,
 * operations}: the whole model as one asset of Core AI at `path`; inputs, outputs and states are lists of {name, dtype, shape};
 * or nil, message, code. contexts, tokens: ascending lists; wrote, factor: as in write; result: see read_result, for models that
 * take whole sequences */
static int exporter_coreai(lua_State *L) {
  struct lua_exporter *ud = check_exporter(L);
  const char *path = bind_text(L, 2);
  struct ane_coreai_plan plan = {0};
  luaL_checkstack(L, 16, "export");
  lua_settop(L, 7);
  struct writing x = {.L = L, .ud = ud, .wrote = lua_isfunction(L, 5) ? 5 : 0, .factor = lua_isfunction(L, 6) ? 6 : 0};
  plan.contexts = push_numbers(L, 3, &plan.n_contexts);
  plan.tokens = push_numbers(L, 4, &plan.n_tokens);
  if (lua_istable(L, 7)) read_result(L, 7, &plan.result);
  struct ane_ai_program program;
  struct ane_error err;
  begin_writing(&x);
  ane_status st = ane_coreai_export(&ud->e, ud->partition, &plan, path, &ud->arena, &program, &err);
  end_writing(&x);
  if (x.raised) return ane_arena_free(&ud->arena), lua_error(L);
  if (st) return ane_arena_free(&ud->arena), bind_fail(L, &err);
  push_ai_functions(L, &program);
  ane_arena_free(&ud->arena);
  return 1;
}

static int exporter_count(lua_State *L) {
  lua_pushinteger(L, check_open(L)->partition->n_shards);
  return 1;
}

/* kept() -> the number of matrices that were taken over from an interrupted export */
static int exporter_kept(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check_open(L)->e.n_kept);
  return 1;
}

/* tables() -> see bind_mil_push_tables */
static int exporter_tables(lua_State *L) {
  struct lua_exporter *ud = check_exporter(L);
  struct ane_error err;
  ane_status st = bind_mil_push_tables(L, ud->e.graph, &ud->arena, &err);
  ane_arena_free(&ud->arena);
  return st ? bind_fail(L, &err) : 1;
}

/* Number of rows that are decoded at once. */
enum { TABLE_ROWS = 1024 };

/* The joined embedding (partition.h), written as fp16 rows. */
struct table_writer {
  const struct bind_graph *owner;
  const struct ane_partition *partition;
  struct ane_pool *pool;
  struct ane_file_writer file;
  struct ane_sha256 sum;
  struct ane_weight_rows rows[ANE_PARTITION_EMBEDDINGS]; /* of each table */
  int64_t width;                                         /* columns of the joined embedding */
  uint8_t *batch;                                        /* [TABLE_ROWS, width] fp16 */
  struct ane_error *err;
};

static const struct ane_tensor *table_of(const struct table_writer *t, int32_t i) {
  return &t->owner->graph->values[t->partition->tables[i]].data;
}

/* Puts rows [from, to) of table i into the batch, from row `at` on, at byte `column` of each row. */
static ane_status put_rows(struct table_writer *t, int32_t i, int64_t from, int64_t to, int64_t at, size_t column) {
  const struct ane_weight_fit plain = {.spec = {ANE_WEIGHT_FP16, 0}};
  const struct ane_tensor *tensor = table_of(t, i);
  size_t bytes = 2 * (size_t)t->rows[i].cols;
  struct ane_weights part = {0};
  ane_status st = ane_weights_encode(&part, t->pool, &t->rows[i], &plain, from, to, NULL, t->err);
  for (int64_t r = 0; !st && r < to - from; r++)
    memcpy(t->batch + 2 * (size_t)(at + r) * (size_t)t->width + column, (const uint8_t *)part.payload + (size_t)r * bytes, bytes);
  ane_weights_free(&part);
  uint64_t row = tensor->bytes / (uint64_t)t->rows[i].rows;
  if (!tensor->transposed)
    bind_release(t->owner->sources, t->owner->n_sources, (const uint8_t *)tensor->data + (uint64_t)from * row,
                 (uint64_t)(to - from) * row);
  return st;
}

/* Writes rows [from, to), at most TABLE_ROWS. */
static ane_status write_rows(struct table_writer *t, int64_t from, int64_t to) {
  size_t column = 0, bytes = 2 * (size_t)(to - from) * (size_t)t->width;
  ane_status st = ANE_OK;
  for (int32_t i = 0; i < t->partition->n_embeddings && !st; i++) {
    int64_t end = ANE_MIN(to, t->rows[i].rows);
    if (from < end) st = put_rows(t, i, from, end, 0, column);
    for (int64_t r = ANE_MAX(from, end); r < to && !st; r++) st = put_rows(t, i, 0, 1, r - from, column);
    if (st) return ane_fail_in(t->err, st, "%s", t->owner->graph->values[t->partition->tables[i]].name);
    column += 2 * (size_t)t->rows[i].cols;
  }
  ane_sha256_add(&t->sum, t->batch, bytes);
  return ane_file_write(&t->file, t->batch, bytes, t->err);
}

static ane_status write_table(struct table_writer *t, const char *path) {
  ane_status st = ANE_OK;
  for (int32_t i = 0; i < t->partition->n_embeddings && !st; i++) {
    st = ane_weight_rows_of(table_of(t, i), &t->rows[i], t->err);
    t->width += st ? 0 : t->rows[i].cols;
  }
  if (st) return st;
  t->batch = ane_malloc(2 * (size_t)TABLE_ROWS * (size_t)t->width);
  if (!t->batch) return ane_fail(t->err, ANE_NOMEM, "no memory for rows of the embedding");
  st = ane_file_create(&t->file, path, t->err);
  for (int64_t from = 0; !st && from < t->rows[0].rows; from += TABLE_ROWS)
    st = write_rows(t, from, ANE_MIN(from + TABLE_ROWS, t->rows[0].rows));
  if (!st) st = ane_file_commit(&t->file, t->err);
  ane_file_abandon(&t->file);
  ane_free(t->batch);
  return st;
}

/* table(path) -> {rows, columns, bytes, sha256}: the joined embedding as fp16 rows; or nil, message, code */
static int exporter_table(lua_State *L) {
  struct lua_exporter *ud = check_exporter(L);
  const char *path = bind_text(L, 2);
  struct ane_error err;
  struct table_writer t = {.owner = ud->owner, .partition = ud->partition, .pool = ud->e.pool, .err = &err};
  char hash[ANE_SHA256_TEXT];
  if (!ud->partition->n_embeddings || ud->owner->blank) return luaL_error(L, "the graph has no table of embeddings");
  ane_sha256_begin(&t.sum);
  if (write_table(&t, path)) return bind_fail(L, &err);
  ane_sha256_end(&t.sum, hash);
  lua_createtable(L, 0, 4);
  bind_set_integer(L, "rows", t.rows[0].rows);
  bind_set_integer(L, "columns", t.width);
  bind_set_integer(L, "bytes", 2 * t.rows[0].rows * t.width);
  bind_set_text(L, "sha256", hash);
  return 1;
}

void bind_export(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"count", exporter_count},   {"kept", exporter_kept},   {"tables", exporter_tables},
      {"table", exporter_table},   {"write", exporter_write}, {"write_asset", exporter_write_asset},
      {"coreai", exporter_coreai}, {"close", exporter_close}, {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", exporter_close}, {"__close", exporter_close}, {NULL, NULL}};
  bind_class(L, EXPORTER_CLASS, methods, meta);
  lua_pushcfunction(L, exporter_new);
  lua_setfield(L, -2, "mil_exporter");
}
