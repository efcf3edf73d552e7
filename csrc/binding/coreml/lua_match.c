/* core.mil_matcher(graph, options): compares the packages of a set with the shards of a graph, and reads their weights. */
#include "binding/coreml/bind_mil.h"
#include "binding/formats/bind_package.h"
#include "binding/formats/bind_source.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MATCHER_CLASS "ane.mil_matcher"

/* The graph is the first user value; it must stay open. */
struct lua_matcher {
  struct bind_graph *owner;
  struct ane_partition *partition; /* NULL: closed */
  struct ane_mil_options o;
  struct ane_mil_profile *profiles; /* n_profiles; 0: packages have one function */
  uint32_t n_profiles;
  struct ane_mil_match m;           /* its arena is that of parts */
  struct ane_mlpackage_parts parts; /* of the source that is made in the end */
};

static struct lua_matcher *check_matcher(lua_State *L) {
  struct lua_matcher *ud = luaL_checkudata(L, 1, MATCHER_CLASS);
  if (!ud->partition) luaL_error(L, "matcher is closed");
  if (!ud->owner->graph) luaL_error(L, "graph is closed");
  return ud;
}

static int matcher_close(lua_State *L) {
  struct lua_matcher *ud = luaL_checkudata(L, 1, MATCHER_CLASS);
  ane_partition_free(ud->partition);
  ud->partition = NULL;
  for (uint32_t i = 0; i < ud->parts.n_packages; i++) ane_mlpackage_close(ud->parts.packages[i]);
  ud->parts.n_packages = 0;
  ane_map_close(&ud->parts.embedding.map);
  ane_buffer_free(&ud->m.bound);
  ane_arena_free(&ud->parts.arena);
  return 0;
}

/* mil_matcher(graph, options) -> matcher; or nil, message, code. Options: those of mil_exporter. The graph may have blanks. */
static int matcher_new(lua_State *L) {
  struct bind_graph *graph = bind_check_graph(L, 1);
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  struct lua_matcher *ud = bind_new(L, MATCHER_CLASS, sizeof *ud, 2);
  ud->owner = graph;
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, 3, 1);
  bind_mil_exporter_options(L, 2, &ud->o);
  ud->profiles = bind_mil_profiles(L, 2, &ud->o, &ud->n_profiles);
  lua_setiuservalue(L, 3, 2);
  ud->m = (struct ane_mil_match){.graph = graph->graph, .arena = &ud->parts.arena};
  ane_status st = bind_mil_partition(L, 2, graph->graph, bind_mil_schemes(L, 2, graph->graph), &ud->partition, &err);
  if (!st) {
    ud->parts.packages = ane_arena_array(&ud->parts.arena, (size_t)ud->partition->n_shards + 1, sizeof *ud->parts.packages);
    if (!ud->parts.packages) st = ane_fail(&err, ANE_NOMEM, "no memory for the packages");
  }
  if (st) return bind_fail(L, &err);
  lua_settop(L, 3);
  return 1;
}

/* ---- Packages ----------------------------------------------------------------------------------------------------------*/

/* The argument of the rename callback: the table {name in the recipe = name in the package} at stack index `at`. */
struct renaming {
  lua_State *L;
  int at;
};

static const char *rename_feature(void *arg, const char *name) {
  const struct renaming *x = arg;
  lua_pushstring(x->L, name);
  lua_rawget(x->L, x->at);
  const char *other = lua_type(x->L, -1) == LUA_TSTRING ? lua_tostring(x->L, -1) : NULL; /* lives in the table */
  lua_pop(x->L, 1);
  return other;
}

/* The lowered form of one shard. */
struct shard_lowered {
  struct ane_mil_function_plan *functions;
  struct ane_mil_lowered **lowered;
  uint32_t n_functions; /* 0: the only one has no name of its own */
};

static ane_status match_function(struct lua_matcher *ud, int32_t i, const struct ane_mil_options *o,
                                 const struct ane_mlpackage *p, const char *name, struct renaming *names,
                                 struct ane_mil_lowered **out, struct ane_error *err) {
  const struct ane_mil_function *f = ane_mil_function(p->model, name);
  if (!f) return ane_fail(err, ANE_UNSUPPORTED, "it has no function %.80s", name);
  return ane_mil_match(&ud->m, &ud->partition->shards[i], o, f, p->model->version, names->at ? rename_feature : NULL, names, out,
                       err);
}

/* Translates a lowered function to Core AI and back, as it is read from an asset (ane_mil_translate_fn). */
static ane_status translate_as_asset(struct ane_arena *arena, const struct ane_mil_lowered *lowered,
                                     const struct ane_mil_function **out, struct ane_error *err) {
  struct ane_ai_function *f = ane_arena_alloc(arena, sizeof *f);
  struct ane_mil_model *m;
  if (!f) return ane_fail(err, ANE_NOMEM, "no memory to compare an asset");
  struct ane_ai_program program = {f, 1};
  ane_status st = ane_coreai_function(arena, lowered, f, err);
  if (!st) st = ane_interp_mil_of_ai(arena, &program, &m, err);
  if (!st) *out = &m->program.functions[0];
  return st;
}

static ane_status match_package(struct lua_matcher *ud, int32_t i, const struct ane_mlpackage *p, bool asset,
                                struct renaming *names, struct shard_lowered *x, struct ane_error *err) {
  struct ane_arena *arena = &ud->parts.arena;
  struct ane_mil_options o = ud->o;
  ud->m.translate = asset ? translate_as_asset : NULL;
  if (asset) ane_coreai_options(&o);
  ane_status st = ANE_OK;
  if (ud->n_profiles)
    st = ane_mil_plan_functions(arena, ud->m.graph, &ud->partition->shards[i], ud->profiles, ud->n_profiles, &x->functions,
                                &x->n_functions, err);
  if (st) return st;
  x->lowered = ane_arena_array(arena, (size_t)x->n_functions + 1, sizeof *x->lowered);
  if (!x->lowered) return ane_fail(err, ANE_NOMEM, "no memory for the functions");
  if (!x->n_functions) return match_function(ud, i, &o, p, p->model->default_function, names, x->lowered, err);
  o.several = true;
  for (uint32_t k = 0; k < x->n_functions; k++) o.held = ANE_MAX(o.held, x->functions[k].profile.context);
  for (uint32_t k = 0; k < x->n_functions && !st; k++) {
    const struct ane_mil_profile *profile = &x->functions[k].profile;
    o.function = x->functions[k].name;
    o.context = profile->context;
    o.fixed_t = profile->fixed_t;
    o.max_t = profile->max_t;
    st = match_function(ud, i, &o, p, o.function, names, &x->lowered[k], err);
    if (st && x->n_functions > 1) ane_fail_in(err, st, "function %s", o.function);
  }
  return st;
}

/* match(i, path [, names]) -> {kind, from, to (of the shard), inputs, outputs, states, functions}, as the exporter's write
 * returns them; or nil, message, code: "unsupported" with the first difference. Opens the package or asset at `path` and compares
 * it with shard i, from 1. names: {name of an input, output or state in the recipe = its name in the package}; nil: they are
 * equal */
static int matcher_match(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  int32_t i = (int32_t)bind_integer(L, 2, 1, ud->partition->n_shards) - 1;
  const char *path = bind_text(L, 3);
  struct renaming names = {L, lua_istable(L, 4) ? 4 : 0};
  struct shard_lowered x = {0};
  struct ane_error err;
  luaL_checkstack(L, 16, "match");
  if ((int32_t)ud->parts.n_packages >= ud->partition->n_shards) return luaL_error(L, "all shards were compared already");
  struct ane_mlpackage **p = &ud->parts.packages[ud->parts.n_packages];
  const struct ane_aimodel *asset;
  ane_status st = bind_open_package(p, &asset, path, &err);
  if (st) return bind_fail(L, &err);
  ud->parts.n_packages++;
  if (match_package(ud, i, *p, asset != NULL, &names, &x, &err)) return bind_fail(L, &err);
  const struct ane_shard *shard = &ud->partition->shards[i];
  lua_createtable(L, 0, 7);
  bind_set_text(L, "kind", ane_shard_kind_name(shard->kind));
  bind_set_integer(L, "from", shard->from);
  bind_set_integer(L, "to", shard->to);
  bind_mil_push_lowered(L, ud->m.graph, x.lowered[0]);
  if (x.n_functions) bind_mil_push_functions(L, ud->m.graph, x.functions, x.n_functions, x.lowered);
  return 1;
}

/* tables() -> see bind_mil_push_tables */
static int matcher_tables(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  struct ane_error err;
  return bind_mil_push_tables(L, ud->m.graph, &ud->parts.arena, &err) ? bind_fail(L, &err) : 1;
}

static int matcher_count(lua_State *L) {
  lua_pushinteger(L, check_matcher(L)->partition->n_shards);
  return 1;
}

/* ---- Weights -----------------------------------------------------------------------------------------------------------*/

/* Makes the tensor of table i: columns [from, from + cols) of the mapped embedding, of `width` columns. */
static ane_status table_tensor(struct lua_matcher *ud, int32_t i, int64_t from, int64_t width, struct ane_source_tensor *t,
                               struct ane_error *err) {
  static const char prefix[] = "table ";
  const struct ane_map *map = &ud->parts.embedding.map;
  const struct ane_value *v = &ud->m.graph->values[ud->partition->tables[i]];
  size_t size = sizeof prefix + strlen(v->name);
  char *name = ane_arena_array(&ud->parts.arena, size, 1);
  struct ane_gather *g = ane_arena_alloc(&ud->parts.arena, sizeof *g);
  if (!name || !g) return ane_fail(err, ANE_NOMEM, "no memory for the weights");
  snprintf(name, size, "%s%s", prefix, v->name);
  const uint8_t *data = map->data + 2 * (size_t)from;
  uint64_t bytes = map->size - 2 * (uint64_t)from;
  *g = (struct ane_gather){
      .data = data, .bytes = bytes, .dtype = ANE_F16, .row_step = width, .col_step = 1, .rows = v->shape.dim[0]};
  *t = (struct ane_source_tensor){.name = name, .tensor = {.dtype = ANE_F16, .shape = v->shape, .data = data, .bytes = bytes}};
  if (width > v->shape.dim[1]) t->tensor.gather = g;
  return ANE_OK;
}

/* Maps the joined embedding, fp16 rows of `columns` columns, and lists its tables. */
static ane_status open_tables(struct lua_matcher *ud, const char *beside, const char *location, int64_t columns,
                              struct ane_source_tensor *list, uint32_t *n, struct ane_error *err) {
  struct ane_mlpackage_parts *parts = &ud->parts;
  const struct ane_partition *p = ud->partition;
  if (!p->n_embeddings) return ane_fail(err, ANE_UNSUPPORTED, "the recipe has no table of embeddings");
  int64_t width = ane_partition_joined_channels(ud->m.graph), from = 0;
  uint64_t want = (uint64_t)ud->m.graph->values[p->tables[0]].shape.dim[0] * (uint64_t)width * 2;
  if (columns != width)
    return ane_fail(err, ANE_UNSUPPORTED, "%.200s has %" PRId64 " columns, but the recipe's embedding has %" PRId64, location,
                    columns, width);
  ane_map_close(&parts->embedding.map); /* of a call that failed */
  ane_status st = ane_map_open_beside(&parts->embedding.map, beside, location, err);
  if (st) return st;
  if (parts->embedding.map.size != want)
    return ane_fail(err, ANE_UNSUPPORTED, "%.200s has %" PRIu64 " bytes, but the recipe's embedding has %" PRIu64, location,
                    parts->embedding.map.size, want);
  for (int32_t i = 0; i < p->n_embeddings && !st; i++) {
    st = table_tensor(ud, i, from, width, &list[(*n)++], err);
    from += ud->m.graph->values[p->tables[i]].shape.dim[1];
  }
  parts->embedding.path = ane_arena_strndup(&parts->arena, location, strlen(location));
  return st || parts->embedding.path ? st : ane_fail(err, ANE_NOMEM, "no memory for the weights");
}

/* Lists the weights that were found: "matrix NAME", "plain NAME". */
static ane_status list_tensors(struct lua_matcher *ud, struct ane_source_tensor *list, const struct ane_mil_weight_found *found,
                               uint32_t n, struct ane_error *err) {
  for (uint32_t i = 0; i < n; i++) {
    const char *kind = found[i].matrix ? "matrix " : "plain ";
    size_t size = strlen(kind) + strlen(found[i].name);
    char *name = ane_arena_array(&ud->parts.arena, size + 1, 1);
    if (!name) return ane_fail(err, ANE_NOMEM, "no memory for the names of weights");
    memcpy(name, kind, strlen(kind));
    memcpy(name + strlen(kind), found[i].name, strlen(found[i].name));
    list[i] = (struct ane_source_tensor){.name = name, .tensor = *found[i].tensor};
  }
  return ANE_OK;
}

/* weights(path [, beside, location, columns]) -> source of the weights of all packages that were compared, called "matrix NAME"
 * (of projections), "plain NAME" (others) and "table NAME" (embeddings, in the file `location` in the folder of `beside`, of
 * `columns` columns); or nil, message, code. Closes the matcher, whose packages the source keeps. path: of the set */
static int matcher_weights(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  struct ane_mil_weight_found *found;
  struct ane_error err;
  uint32_t n;
  ud->parts.path = bind_text(L, 2);
  const char *location = lua_isnoneornil(L, 4) ? NULL : bind_text(L, 4), *beside = location ? bind_text(L, 3) : NULL;
  int64_t columns = location ? bind_integer(L, 5, 1, INT32_MAX) : 0;
  struct ane_source **out = bind_new_source(L);
  ane_status st = ane_mil_match_weights(&ud->m, &found, &n, &err);
  struct ane_source_tensor *list =
      st ? NULL : ane_arena_array(&ud->parts.arena, (size_t)n + 1 + ANE_PARTITION_EMBEDDINGS, sizeof *list);
  if (!st && !list) st = ane_fail(&err, ANE_NOMEM, "no memory for the weights");
  if (!st) st = list_tensors(ud, list, found, n, &err);
  if (!st && location) st = open_tables(ud, beside, location, columns, list, &n, &err);
  ud->parts.tensors = list;
  ud->parts.n_tensors = n;
  if (!st) st = ane_mlpackage_source(out, &ud->parts, &err);
  if (st) return bind_fail(L, &err);
  ud->parts = (struct ane_mlpackage_parts){0}; /* the source owns all of it */
  lua_pushcfunction(L, matcher_close);
  lua_pushvalue(L, 1);
  lua_call(L, 1, 0);
  return 1;
}

void bind_match(lua_State *L) {
  static const luaL_Reg methods[] = {{"count", matcher_count},     {"tables", matcher_tables}, {"match", matcher_match},
                                     {"weights", matcher_weights}, {"close", matcher_close},   {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", matcher_close}, {"__close", matcher_close}, {NULL, NULL}};
  bind_class(L, MATCHER_CLASS, methods, meta);
  lua_pushcfunction(L, matcher_new);
  lua_setfield(L, -2, "mil_matcher");
}
