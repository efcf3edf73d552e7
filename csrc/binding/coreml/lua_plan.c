/* core.mil_plan(graph, options): the shards of a graph and their verdicts by the residency rules; the lists of rules, chips and
 * schemes of weights. The keys "law" and "laws" are those of --json. */
#include "binding/model/bind_model.h"
#include "binding/coreml/bind_mil.h"
#include "binding/formats/bind_package.h"

#include "base/alloc.h"

#include <string.h>

#define PARTITION_CLASS "ane.partition"

/* ---- Options ---------------------------------------------------------------------------------------------------------*/

void bind_mil_options(lua_State *L, int t, struct ane_mil_options *o) {
  static const char *const layouts[] = {"ct1", "c1t", NULL}, *const norms[] = {"doubled", "fp32", NULL},
                           *const ropes[] = {"inputs", "constants", NULL};
  *o = (struct ane_mil_options){.layout = (ane_mil_layout)bind_choice_option(L, t, "layout", layouts),
                                .norm = (ane_mil_norm)bind_choice_option(L, t, "norm", norms),
                                .rope = (ane_mil_rope)bind_choice_option(L, t, "rope", ropes)};
  o->context = bind_opt_integer_option(L, t, "context", 512, 1, INT32_MAX);
  o->max_t = bind_opt_integer_option(L, t, "max_t", 4, 1, INT32_MAX);
  o->fixed_t = bind_opt_integer_option(L, t, "fixed_t", 0, 0, INT32_MAX);
  o->argmax = bind_boolean_option(L, t, "argmax");
  o->fp32 = bind_boolean_option(L, t, "fp32");
  o->hidden = bind_boolean_option(L, t, "hidden");
}

struct ane_mil_profile *bind_mil_profiles(lua_State *L, int t, const struct ane_mil_options *o, uint32_t *n) {
  bind_field(L, t, "functions");
  *n = lua_istable(L, -1) ? (uint32_t)bind_length(L, lua_gettop(L), 1 << 16) : 0;
  int list = lua_gettop(L);
  struct ane_mil_profile *out = lua_newuserdatauv(L, ((size_t)*n + 1) * sizeof *out, 0);
  for (uint32_t i = 0; i < *n; i++) {
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    int row = lua_gettop(L);
    out[i].fixed_t = bind_opt_integer_option(L, row, "fixed_t", 0, 0, INT32_MAX);
    out[i].max_t = bind_opt_integer_option(L, row, "max_t", o->max_t, 1, INT32_MAX);
    out[i].context = bind_opt_integer_option(L, row, "context", o->context, 1, INT32_MAX);
    lua_pop(L, 1);
  }
  lua_remove(L, list);
  return out;
}

void bind_mil_push_function(lua_State *L, const struct ane_mil_function_plan *f) {
  bool fixed = f->profile.fixed_t > 0;
  lua_createtable(L, 0, 6);
  bind_set_text(L, "name", f->name);
  bind_set_integer(L, fixed ? "fixed_t" : "max_t", fixed ? f->profile.fixed_t : f->profile.max_t);
  if (!f->any_context) bind_set_integer(L, "context", f->profile.context);
}

static struct ane_weight_spec check_scheme(lua_State *L, int arg) {
  struct ane_weight_spec s;
  const char *name = luaL_checkstring(L, arg);
  if (!ane_weight_spec_from_name(name, &s)) luaL_error(L, "no weight scheme %s", name);
  return s;
}

struct ane_weight_spec *bind_mil_schemes(lua_State *L, int t, const struct ane_graph *g) {
  struct ane_weight_spec *specs = lua_newuserdatauv(L, ((size_t)g->n_values + 1) * sizeof *specs, 0);
  bind_field(L, t, "weights");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_pushliteral(L, "int8");
  }
  struct ane_weight_spec all = check_scheme(L, lua_gettop(L));
  lua_pop(L, 1);
  bind_field(L, t, "schemes");
  bool own = lua_istable(L, -1);
  for (int32_t v = 0; v < g->n_values; v++) {
    specs[v] = all;
    if (!own || g->values[v].kind != ANE_VALUE_CONST) continue;
    if (bind_field(L, -1, g->values[v].name) != LUA_TNIL) specs[v] = check_scheme(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return specs;
}

/* Returns the number of rows that share a table in every scheme in use. Slices of the head begin at its multiples. */
static int64_t table_rows(const struct ane_graph *g, const struct ane_weight_spec *specs) {
  int64_t most = 1;
  for (int32_t v = 0; v < g->n_values; v++)
    if (g->values[v].kind == ANE_VALUE_CONST && specs[v].scheme == ANE_WEIGHT_LUT) most = ANE_MAX(most, (int64_t)specs[v].size);
  return most;
}

/* Reads the options target, size_limit, rows, slices, layers, expert_parts and stateless. */
static void read_limits(lua_State *L, int t, const struct ane_graph *g, const struct ane_weight_spec *specs,
                        struct ane_partition_limits *l) {
  *l = ane_partition_default_limits();
  l->target = (uint64_t)bind_opt_integer_option(L, t, "target", (int64_t)l->target, 1, INT64_MAX);
  l->size_limit = (uint64_t)bind_opt_integer_option(L, t, "size_limit", (int64_t)l->size_limit, 1, INT64_MAX);
  l->rows = bind_opt_integer_option(L, t, "rows", l->rows, 1, INT32_MAX);
  l->head_slices = (int32_t)bind_opt_integer_option(L, t, "slices", 0, 0, INT32_MAX);
  l->layers = (int32_t)bind_opt_integer_option(L, t, "layers", 0, 0, INT32_MAX);
  l->expert_parts = (int32_t)bind_opt_integer_option(L, t, "expert_parts", 0, 0, INT32_MAX);
  l->stateless = bind_boolean_option(L, t, "stateless");
  l->row_align = table_rows(g, specs);
}

ane_status bind_mil_partition(lua_State *L, int t, const struct ane_graph *g, struct ane_weight_spec *specs,
                              struct ane_partition **out, struct ane_error *err) {
  struct ane_partition_limits limits;
  read_limits(L, t, g, specs, &limits);
  if (bind_boolean_option(L, t, "whole"))
    return ane_partition_whole(out, g, limits.stateless, ane_partition_scheme_bytes, specs, err);
  return ane_partition_make(out, g, &limits, ane_partition_scheme_bytes, specs, err);
}

/* ---- What is found ---------------------------------------------------------------------------------------------------*/

static void push_finding(lua_State *L, const char *key, struct ane_residency_finding f) {
  int n = 0;
  lua_createtable(L, 4, 3);
  bind_set_text(L, "verdict", ane_residency_verdict_name(f.verdict));
  if (f.rule != ANE_NONE) bind_set_text(L, "law", ane_residency_rule_at(f.rule)->id);
  for (int i = 0; ane_residency_rule_at(i); i++) {
    if (!(f.rules >> i & 1)) continue;
    lua_pushstring(L, ane_residency_rule_at(i)->id);
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, key);
}

/* Sets `key` of the table on top: a list of {name, shape}. */
static void push_values(lua_State *L, const char *key, const struct ane_graph *g, const int32_t *list, int32_t n) {
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    lua_createtable(L, 0, 2);
    bind_set_text(L, "name", g->values[list[i]].name);
    bind_push_shape(L, &g->values[list[i]].shape);
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, key);
}

struct planned {
  const struct ane_graph *g;
  const struct ane_weight_spec *specs;
  struct ane_mil_options o;
  const struct ane_mil_profile *profiles;
  uint32_t n_profiles;
};

static void push_nodes(lua_State *L, const struct planned *x, const struct ane_shard *p) {
  lua_createtable(L, p->n_nodes, 0);
  for (int32_t i = 0; i < p->n_nodes; i++) {
    const struct ane_node *n = &x->g->nodes[p->nodes[i]];
    lua_createtable(L, 0, 4);
    bind_set_text(L, "name", n->name);
    bind_set_text(L, "op", ane_op_info(n->op)->name);
    push_finding(L, "finding", ane_residency_judge_node(x->g, p, p->nodes[i], x->specs, &x->o));
    int kernels = 0;
    for (int32_t j = 0; j < n->n_inputs; j++)
      if (ane_partition_is_matrix(x->g, p->nodes[i], j) &&
          (p->kind != ANE_SHARD_EXPERTS || p->nodes[i] != p->split || ((j - 2) / 6 >= p->from && (j - 2) / 6 < p->to)))
        kernels++;
    bind_set_integer(L, "convs", kernels);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "nodes");
}

/* Sets `functions` of the shard at the top, and in `package` the facts that the residency rules use. */
static ane_status push_functions(lua_State *L, const struct planned *x, const struct ane_shard *p,
                                 struct ane_residency_package *package, struct ane_error *err) {
  struct ane_arena arena = {0};
  struct ane_mil_function_plan *list;
  uint32_t n;
  ane_status st = ane_mil_plan_functions(&arena, x->g, p, x->profiles, x->n_profiles, &list, &n, err);
  if (!st) {
    lua_createtable(L, (int)n, 0);
    package->n_functions = (int32_t)n;
    package->max_t = 0;
    for (uint32_t i = 0; i < n; i++) {
      if (list[i].profile.fixed_t == 0) package->max_t = ANE_MAX(package->max_t, list[i].profile.max_t);
      bind_mil_push_function(L, &list[i]);
      lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_setfield(L, -2, "functions");
  }
  ane_arena_free(&arena);
  return st;
}

static ane_status push_shard(lua_State *L, const struct planned *x, const struct ane_shard *p, struct ane_error *err) {
  struct ane_residency_package package = ane_residency_package_of(p, &x->o);
  lua_createtable(L, 0, 16);
  bind_set_text(L, "kind", ane_shard_kind_name(p->kind));
  if (p->first != ANE_NONE) bind_set_integer(L, "first", p->first), bind_set_integer(L, "last", p->last);
  if (p->parts) bind_set_integer(L, "part", p->part), bind_set_integer(L, "parts", p->parts);
  if (p->split != ANE_NONE) {
    bind_set_text(L, "split", x->g->nodes[p->split].name);
    bind_set_integer(L, "from", p->from);
    bind_set_integer(L, "to", p->to);
  }
  bind_set_integer(L, "bytes", (lua_Integer)p->bytes);
  lua_pushboolean(L, ane_mil_reads_keys(x->g, p));
  lua_setfield(L, -2, "reads_keys");
  push_values(L, "ins", x->g, p->ins, p->n_ins);
  push_values(L, "outs", x->g, p->outs, p->n_outs);
  push_values(L, "states", x->g, p->states, p->n_states);
  push_values(L, "ropes", x->g, p->ropes, p->n_ropes);
  if (p->hidden_in != ANE_NONE) bind_set_text(L, "hidden_in", x->g->values[p->hidden_in].name);
  if (p->hidden_out != ANE_NONE) bind_set_text(L, "hidden_out", x->g->values[p->hidden_out].name);
  push_nodes(L, x, p);
  ane_status st = x->n_profiles ? push_functions(L, x, p, &package, err) : ANE_OK;
  push_finding(L, "finding", ane_residency_judge_package(&package));
  return st;
}

/* mil_plan(graph, options) -> {layers, rows, embedding, shards}; or nil, message, code. embedding: {tables = list of {name,
 * shape}, rows, columns, bytes (fp16) of the joined embedding}, absent in models without. Options: weights (scheme), schemes
 * ({constant = scheme}), target, size_limit (bytes), rows, slices, layers, expert_parts, whole, stateless (each call has a whole
 * sequence); context, max_t, fixed_t, layout, norm; functions (list of {fixed_t or max_t, context}) */
static int mil_plan(lua_State *L) {
  const struct ane_graph *g = bind_check_graph(L, 1)->graph;
  struct planned x = {.g = g};
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  bind_mil_options(L, 2, &x.o);
  x.profiles = bind_mil_profiles(L, 2, &x.o, &x.n_profiles);
  struct ane_weight_spec *specs = bind_mil_schemes(L, 2, g);
  x.specs = specs;
  struct bind_partition *ud = bind_new(L, PARTITION_CLASS, sizeof *ud, 0);
  if (bind_mil_partition(L, 2, g, specs, &ud->partition, &err)) return bind_fail(L, &err);
  const struct ane_partition *c = ud->partition;
  lua_createtable(L, 0, 4);
  bind_set_integer(L, "layers", c->n_layers);
  bind_set_integer(L, "rows", c->rows);
  if (c->n_embeddings) {
    int64_t rows = g->values[c->tables[0]].shape.dim[0], columns = ane_partition_joined_channels(g);
    lua_createtable(L, 0, 4);
    push_values(L, "tables", g, c->tables, c->n_embeddings);
    bind_set_integer(L, "rows", rows);
    bind_set_integer(L, "columns", columns);
    bind_set_integer(L, "bytes", 2 * rows * columns);
    lua_setfield(L, -2, "embedding");
  }
  lua_createtable(L, c->n_shards, 0);
  for (int32_t i = 0; i < c->n_shards; i++) {
    if (push_shard(L, &x, &c->shards[i], &err)) return bind_fail(L, &err);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "shards");
  return 1;
}

static int partition_close(lua_State *L) {
  struct bind_partition *ud = luaL_checkudata(L, 1, PARTITION_CLASS);
  ane_partition_free(ud->partition);
  ud->partition = NULL;
  return 0;
}

/* mil_judge(package) -> {engine, risk, cpu (convolutions with weights, by predicted device), laws = {id = times}}: the
 * operations of the default function as they are in the package */
static int mil_judge(lua_State *L) {
  const struct ane_mil_model *m = bind_check_package(L, 1)->p->model;
  const struct ane_mil_function *f = ane_mil_function(m, m->default_function);
  lua_Integer convs[3] = {0}, times[64] = {0};
  struct ane_strmap makers = {0};
  if (f && !ane_residency_makers(f, &makers)) {
    ane_strmap_free(&makers);
    return luaL_error(L, "no memory to judge a package");
  }
  for (uint32_t i = 0; f && i < f->block.n_ops; i++) {
    struct ane_residency_finding x = ane_residency_judge_mil(f, &makers, i);
    if (x.rule == ANE_NONE) continue;
    if (strcmp(f->block.ops[i].type, "conv") == 0) convs[x.verdict]++;
    for (int l = 0; ane_residency_rule_at(l); l++) times[l] += x.rules >> l & 1;
  }
  ane_strmap_free(&makers);
  lua_createtable(L, 0, 4);
  for (int v = 0; v < 3; v++) bind_set_integer(L, ane_residency_verdict_name((ane_residency_verdict)v), convs[v]);
  lua_newtable(L);
  for (int l = 0; ane_residency_rule_at(l); l++)
    if (times[l]) bind_set_integer(L, ane_residency_rule_at(l)->id, times[l]);
  lua_setfield(L, -2, "laws");
  return 1;
}

/* ---- Lists -----------------------------------------------------------------------------------------------------------*/

/* mil_rules() -> list of {id, scope, verdict, text, source} */
static int mil_rules(lua_State *L) {
  lua_newtable(L);
  for (int i = 0; ane_residency_rule_at(i); i++) {
    const struct ane_residency_rule *rule = ane_residency_rule_at(i);
    lua_createtable(L, 0, 5);
    bind_set_text(L, "id", rule->id);
    bind_set_text(L, "scope", rule->scope == ANE_RESIDENCY_OP ? "op" : "package");
    bind_set_text(L, "verdict", ane_residency_verdict_name(rule->verdict));
    bind_set_text(L, "text", rule->text);
    bind_set_text(L, "source", rule->source);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* mil_chips() -> list of {name, ane_cores, ane_tops, gpu_cores, bandwidth (GB/s), memory = {least, most} (GB), target, size_limit
 * (bytes), source} */
static int mil_chips(lua_State *L) {
  lua_newtable(L);
  for (int i = 0; ane_chip_at(i); i++) {
    const struct ane_chip *c = ane_chip_at(i);
    lua_createtable(L, 0, 10);
    bind_set_text(L, "name", c->name);
    bind_set_text(L, "source", c->source);
    bind_set_integer(L, "ane_cores", c->ane_cores);
    bind_set_integer(L, "gpu_cores", c->gpu_cores);
    bind_set_integer(L, "memory_min", c->memory_min);
    bind_set_integer(L, "memory_max", c->memory_max);
    bind_set_integer(L, "target", (lua_Integer)c->target);
    bind_set_integer(L, "size_limit", (lua_Integer)c->size_limit);
    lua_pushnumber(L, c->ane_tops);
    lua_setfield(L, -2, "ane_tops");
    lua_pushnumber(L, c->bandwidth);
    lua_setfield(L, -2, "bandwidth");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* mil_schemes() -> list of names */
static int mil_schemes(lua_State *L) {
  lua_newtable(L);
  for (int i = 0; ane_weight_spec_list(i); i++) {
    lua_pushstring(L, ane_weight_spec_list(i));
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

void bind_mil(lua_State *L) {
  static const luaL_Reg none[] = {{NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", partition_close}, {"__close", partition_close}, {NULL, NULL}};
  static const luaL_Reg functions[] = {{"mil_plan", mil_plan},   {"mil_judge", mil_judge},     {"mil_rules", mil_rules},
                                       {"mil_chips", mil_chips}, {"mil_schemes", mil_schemes}, {NULL, NULL}};
  bind_class(L, PARTITION_CLASS, none, meta);
  luaL_setfuncs(L, functions, 0);
}
