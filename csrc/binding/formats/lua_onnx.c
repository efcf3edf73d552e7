/* core.onnx(source): the graph of an ONNX model as plain tables, for code that looks for roles in it. */
#include "binding/formats/bind_source.h"

#include "base/attr.h"

/* Constants up to this many bytes come with their bytes. */
enum { SMALL_BYTES = 4096 };

static void push_dims(lua_State *L, int32_t rank, const int64_t *dim, const char *const *symbol) {
  lua_createtable(L, rank, 0);
  for (int32_t i = 0; i < rank; i++) {
    if (symbol && dim[i] < 0 && symbol[i])
      lua_pushstring(L, symbol[i]);
    else
      lua_pushinteger(L, dim[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* Pushes {dtype, shape, bytes, data (if it is small)}. */
static void push_tensor(lua_State *L, const struct ane_onnx_tensor *t) {
  lua_createtable(L, 0, 4);
  bind_set_text(L, "dtype", ane_dtype_info(t->dtype)->name);
  push_dims(L, t->rank, t->dim, NULL);
  lua_setfield(L, -2, "shape");
  bind_set_integer(L, "bytes", (lua_Integer)t->bytes);
  if (t->bytes > SMALL_BYTES) return;
  lua_pushlstring(L, (const char *)t->data, (size_t)t->bytes);
  lua_setfield(L, -2, "data");
}

static void push_ids(lua_State *L, const int32_t *ids, int32_t n) {
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    lua_pushinteger(L, ids[i] < 0 ? 0 : ids[i] + 1);
    lua_rawseti(L, -2, i + 1);
  }
}

static void push_graph(lua_State *L, const struct ane_onnx_graph *g);

static void push_attr(lua_State *L, const struct ane_onnx_attr *a) {
  bool list = a->type == ANE_ONNX_FLOATS || a->type == ANE_ONNX_INTS || a->type == ANE_ONNX_STRINGS;
  if (list) lua_createtable(L, (int)ANE_MIN(a->n, (size_t)INT32_MAX), 0);
  for (size_t i = 0; list && i < a->n; i++) {
    if (a->type == ANE_ONNX_FLOATS)
      lua_pushnumber(L, (lua_Number)a->floats[i]);
    else if (a->type == ANE_ONNX_INTS)
      lua_pushinteger(L, a->ints[i]);
    else
      lua_pushlstring(L, a->strings[i].data, a->strings[i].len);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  switch (a->type) {
    case ANE_ONNX_FLOAT: lua_pushnumber(L, (lua_Number)a->f); break;
    case ANE_ONNX_INT: lua_pushinteger(L, a->i); break;
    case ANE_ONNX_STRING: lua_pushlstring(L, a->s.data, a->s.len); break;
    case ANE_ONNX_TENSOR: push_tensor(L, a->t); break;
    case ANE_ONNX_GRAPH: push_graph(L, a->g); break;
    default: break;
  }
}

static void push_node(lua_State *L, const struct ane_onnx_node *n) {
  lua_createtable(L, 0, 7);
  bind_set_text(L, "name", n->name);
  bind_set_text(L, "op", n->op);
  bind_set_text(L, "domain", n->domain);
  bind_set_integer(L, "opset", n->opset);
  push_ids(L, n->in, n->n_in);
  lua_setfield(L, -2, "inputs");
  push_ids(L, n->out, n->n_out);
  lua_setfield(L, -2, "outputs");
  lua_createtable(L, 0, n->n_attrs);
  for (int32_t i = 0; i < n->n_attrs; i++) {
    push_attr(L, &n->attrs[i]);
    lua_setfield(L, -2, n->attrs[i].name);
  }
  lua_setfield(L, -2, "attrs");
}

static void push_ios(lua_State *L, const struct ane_onnx_io *io, int32_t n) {
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    lua_createtable(L, 0, 4);
    bind_set_text(L, "name", io[i].name);
    bind_set_integer(L, "value", io[i].value + 1);
    if (io[i].dtype != ANE_DTYPE_COUNT) bind_set_text(L, "dtype", ane_dtype_info(io[i].dtype)->name);
    if (io[i].rank >= 0) push_dims(L, io[i].rank, io[i].dim, io[i].symbol), lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, i + 1);
  }
}

static void push_graph(lua_State *L, const struct ane_onnx_graph *g) {
  luaL_checkstack(L, 16, "graph");
  lua_createtable(L, 0, 6);
  push_ios(L, g->inputs, g->n_inputs);
  lua_setfield(L, -2, "inputs");
  push_ios(L, g->outputs, g->n_outputs);
  lua_setfield(L, -2, "outputs");
  lua_createtable(L, g->n_nodes, 0);
  for (int32_t i = 0; i < g->n_nodes; i++) {
    push_node(L, &g->nodes[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "nodes");
}

/* onnx(source) -> {inputs, outputs (lists of {name, value, dtype, shape}; symbols are strings, unknown dimensions -1),
 * nodes (list of {name, op, domain, opset, inputs, outputs (values by number, 0: absent), attrs}), values (list of {name,
 * constant = {dtype, shape, bytes, data} or nil}), producer, opset}; nil if the source holds no graph. Functions are
 * inlined, Constant nodes are constants. */
static int onnx_tables(lua_State *L) {
  const struct ane_onnx *doc = bind_check_source(L, 1)->onnx;
  if (!doc) return lua_pushnil(L), 1;
  push_graph(L, &doc->graph);
  bind_set_text(L, "producer", doc->producer);
  bind_set_integer(L, "opset", doc->opset);
  lua_createtable(L, doc->n_values, 0);
  for (int32_t i = 0; i < doc->n_values; i++) {
    lua_createtable(L, 0, 2);
    bind_set_text(L, "name", doc->values[i].name);
    if (doc->values[i].constant) push_tensor(L, doc->values[i].constant), lua_setfield(L, -2, "constant");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "values");
  return 1;
}

/* onnx_io(source) -> inputs, outputs as above, without the rest; nil if the source holds no graph */
static int onnx_io(lua_State *L) {
  const struct ane_onnx *doc = bind_check_source(L, 1)->onnx;
  if (!doc) return lua_pushnil(L), 1;
  push_ios(L, doc->graph.inputs, doc->graph.n_inputs);
  push_ios(L, doc->graph.outputs, doc->graph.n_outputs);
  return 2;
}

/* ---- Sources made of a graph -----------------------------------------------------------------------------------------*/

/* Returns a list of values by number, in memory that Lua owns and that stays on the stack. */
static const int32_t *check_values(lua_State *L, int arg, int32_t *n) {
  luaL_checktype(L, arg, LUA_TTABLE);
  *n = (int32_t)ANE_MIN(lua_rawlen(L, arg), (lua_Unsigned)INT32_MAX / 8);
  int32_t *v = lua_newuserdatauv(L, ((size_t)*n + 1) * sizeof *v, 0);
  for (int32_t i = 0; i < *n; i++) {
    lua_rawgeti(L, arg, i + 1);
    lua_Integer at = lua_tointeger(L, -1);
    v[i] = at < 1 || at > INT32_MAX ? -1 : (int32_t)at - 1;
    lua_pop(L, 1);
  }
  return v;
}

/* onnx_part(source, want, given) -> source: the part of the graph that computes the values `want` from the values `given`; or
 * nil, message, code. Inputs and outputs are called "v" and their number less 1 */
static int onnx_part(lua_State *L) {
  struct ane_source *s = bind_check_source(L, 1);
  int32_t n_want, n_given;
  struct ane_error err;
  const int32_t *want = check_values(L, 2, &n_want), *given = check_values(L, 3, &n_given);
  struct ane_source **out = bind_new_source(L);
  return ane_onnx_part(out, s, want, n_want, given, n_given, &err) ? bind_fail(L, &err) : 1;
}

static int64_t piece_field(lua_State *L, const char *name, int64_t def) {
  return bind_opt_integer_option(L, -1, name, def, INT64_MIN, INT64_MAX);
}

static int32_t piece_value(lua_State *L, const char *name) {
  int64_t v = piece_field(L, name, 0);
  return v < 1 || v > INT32_MAX ? -1 : (int32_t)v - 1;
}

/* Reads the piece at the top of the stack. */
static struct ane_onnx_piece check_piece(lua_State *L) {
  static const char *const kinds[] = {"plain", "nbits", "dequantize", NULL};
  luaL_checktype(L, -1, LUA_TTABLE);
  bind_field(L, -1, "kind");
  int kind = luaL_checkoption(L, -1, NULL, kinds);
  bind_field(L, -2, "zero_default");
  float zero = (float)luaL_optnumber(L, -1, 0);
  lua_pop(L, 2);
  return (struct ane_onnx_piece){.kind = (ane_onnx_kind)kind,
                                 .data = piece_value(L, "data"),
                                 .scales = piece_value(L, "scales"),
                                 .zeros = piece_value(L, "zeros"),
                                 .g_idx = piece_value(L, "g_idx"),
                                 .transposed = bind_boolean_option(L, -1, "transposed"),
                                 .padded = bind_boolean_option(L, -1, "padded"),
                                 .rows = piece_field(L, "rows", 0),
                                 .cols = piece_field(L, "cols", 0),
                                 .matrix = piece_field(L, "matrix", 0),
                                 .from = piece_field(L, "from", 0),
                                 .step = piece_field(L, "step", 1),
                                 .n = piece_field(L, "n", 0),
                                 .bits = (int)piece_field(L, "bits", 0),
                                 .block = piece_field(L, "block", 0),
                                 .axis = piece_field(L, "axis", 0),
                                 .zero_default = zero};
}

/* Reads the weight {name, shape, pieces} at the top of the stack. Its pieces are in memory that is pushed. */
static struct ane_onnx_weight check_weight(lua_State *L) {
  struct ane_onnx_weight w = {0};
  luaL_checktype(L, -1, LUA_TTABLE);
  bind_field(L, -1, "name");
  luaL_checktype(L, -1, LUA_TSTRING);
  w.name = lua_tostring(L, -1); /* lives in the table */
  bind_field(L, -2, "shape");
  luaL_checktype(L, -1, LUA_TTABLE);
  w.shape.rank = (uint32_t)ANE_MIN(lua_rawlen(L, -1), (lua_Unsigned)ANE_MAX_RANK);
  for (uint32_t i = 0; i < w.shape.rank; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    w.shape.dim[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  bind_field(L, -3, "pieces");
  luaL_checktype(L, -1, LUA_TTABLE);
  w.n_pieces = (uint32_t)ANE_MIN(lua_rawlen(L, -1), (lua_Unsigned)64);
  struct ane_onnx_piece *pieces = lua_newuserdatauv(L, ((size_t)w.n_pieces + 1) * sizeof *pieces, 0);
  w.pieces = pieces;
  for (uint32_t i = 0; i < w.n_pieces; i++) {
    lua_rawgeti(L, -2, (lua_Integer)i + 1);
    pieces[i] = check_piece(L);
    lua_pop(L, 1);
  }
  lua_insert(L, -4); /* below name, shape and pieces, which go */
  lua_pop(L, 3);
  return w;
}

/* onnx_weights(source, list of {name, shape, pieces = list of ane_onnx_piece's fields, values by number}) -> source; or nil,
 * message, code */
static int onnx_weights(lua_State *L) {
  struct ane_source *s = bind_check_source(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  lua_Unsigned n = ANE_MIN(lua_rawlen(L, 2), (lua_Unsigned)1 << 20);
  struct ane_onnx_weight *list = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *list, 0);
  lua_createtable(L, (int)n, 0); /* keeps the pieces */
  struct ane_error err;
  for (lua_Unsigned i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    list[i] = check_weight(L);
    lua_rawseti(L, 4, (lua_Integer)i + 1);
    lua_pop(L, 1);
  }
  struct ane_source **out = bind_new_source(L);
  return ane_onnx_weights(out, s, list, (uint32_t)n, &err) ? bind_fail(L, &err) : 1;
}

void bind_onnx(lua_State *L) {
  static const luaL_Reg functions[] = {{"onnx_part", onnx_part}, {"onnx_weights", onnx_weights}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
  lua_pushcfunction(L, onnx_tables);
  lua_setfield(L, -2, "onnx");
  lua_pushcfunction(L, onnx_io);
  lua_setfield(L, -2, "onnx_io");
}
