/* Lowered shards as Lua sees them: their inputs, outputs, states and functions, and the tables that hosts make. */
#include "binding/coreml/bind_mil.h"

#include <string.h>

void bind_mil_exporter_options(lua_State *L, int t, struct ane_mil_options *o) {
  bind_mil_options(L, t, o);
  bind_field(L, t, "gather");
  const char *gather = luaL_optstring(L, -1, "all");
  if (strcmp(gather, "all") != 0 && strcmp(gather, "last") != 0)
    luaL_error(L, "option gather is %s; known are: all, last", gather);
  o->gather = *gather == 'l' ? ANE_MIL_GATHER_LAST : ANE_MIL_GATHER_ALL;
  lua_pop(L, 1);
  o->embed = bind_boolean_option(L, t, "embed");
}

/* Sets `key` of the table on top: a list of {name, role, edge, index, dtype, shape}; T is "T". */
static void push_ports(lua_State *L, const char *key, const struct ane_graph *g, const struct ane_mil_port *list, uint32_t n) {
  lua_createtable(L, (int)n, 0);
  for (uint32_t i = 0; i < n; i++) {
    const struct ane_mil_port *p = &list[i];
    lua_createtable(L, 0, 6);
    bind_set_text(L, "name", p->name);
    bind_set_text(L, "role", ane_mil_port_word(p->kind));
    bind_set_text(L, "dtype", ane_mil_dtype_name(p->dtype));
    if (p->value != ANE_NONE) bind_set_text(L, "edge", g->values[p->value].name);
    if (p->kind == ANE_MIL_PORT_COS || p->kind == ANE_MIL_PORT_SIN || p->kind == ANE_MIL_PORT_MASK) {
      lua_pushinteger(L, p->index);
      lua_setfield(L, -2, "index");
    }
    lua_createtable(L, p->rank, 0);
    for (int32_t d = 0; d < p->rank; d++) {
      if (p->dim[d] >= 0)
        lua_pushinteger(L, p->dim[d]);
      else
        lua_pushliteral(L, "T");
      lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, key);
}

void bind_mil_push_lowered(lua_State *L, const struct ane_graph *g, const struct ane_mil_lowered *r) {
  push_ports(L, "inputs", g, r->inputs, r->n_inputs);
  push_ports(L, "outputs", g, r->outputs, r->n_outputs);
  push_ports(L, "states", g, r->states, r->n_states);
}

void bind_mil_push_functions(lua_State *L, const struct ane_graph *g, const struct ane_mil_function_plan *list, uint32_t n,
                             struct ane_mil_lowered *const *lowered) {
  lua_createtable(L, (int)n, 0);
  for (uint32_t i = 0; i < n; i++) {
    bind_mil_push_function(L, &list[i]);
    bind_mil_push_lowered(L, g, lowered[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "functions");
}

static void push_floats(lua_State *L, const char *key, const struct ane_attr *a) {
  lua_createtable(L, (int)a->fv.n, 0);
  for (int64_t i = 0; i < a->fv.n; i++) lua_pushnumber(L, (lua_Number)a->fv.v[i]), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, key);
}

ane_status bind_mil_push_tables(lua_State *L, const struct ane_graph *g, struct ane_arena *arena, struct ane_error *err) {
  struct ane_mil_ropes ropes;
  struct ane_mil_masks masks;
  ane_status st = ane_mil_ropes(arena, g, &ropes, err);
  if (!st) st = ane_mil_masks(arena, g, &masks, err);
  if (st) return st;
  lua_createtable(L, 0, 2);
  lua_createtable(L, ropes.n, 0);
  for (int32_t i = 0; i < ropes.n; i++) {
    const struct ane_node *n = &g->nodes[ropes.nodes[i]];
    lua_createtable(L, 0, 4);
    push_floats(L, "inv_freq", ane_node_attr(n, "inv_freq"));
    lua_pushnumber(L, ane_node_float(n, "magnitude"));
    lua_setfield(L, -2, "magnitude");
    if (ane_node_attr(n, "long_freq")->fv.n) {
      push_floats(L, "long_freq", ane_node_attr(n, "long_freq"));
      lua_pushinteger(L, ane_node_int(n, "original"));
      lua_setfield(L, -2, "original");
    }
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "ropes");
  lua_createtable(L, masks.n, 0);
  for (int32_t i = 0; i < masks.n; i++) {
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, masks.list[i].window);
    lua_setfield(L, -2, "window");
    lua_pushinteger(L, masks.list[i].ahead);
    lua_setfield(L, -2, "ahead");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "masks");
  return ANE_OK;
}
