/* core.onnx(source): the graph of an ONNX model as plain tables, for code that looks for roles in it. */
#include "binding/bind_source.h"

#include "base/attr.h"

/* Constants up to this many bytes come with their bytes. */
enum { SMALL_BYTES = 4096 };

static void set_text(lua_State *L, const char *key, const char *s) {
  lua_pushstring(L, s);
  lua_setfield(L, -2, key);
}
static void set_integer(lua_State *L, const char *key, lua_Integer v) {
  lua_pushinteger(L, v);
  lua_setfield(L, -2, key);
}

static void push_dims(lua_State *L, int32_t rank, const int64_t *dim, const char *const *symbol) {
  lua_createtable(L, rank, 0);
  for (int32_t i = 0; i < rank; i++) {
    if (symbol && dim[i] < 0 && symbol[i]) lua_pushstring(L, symbol[i]);
    else lua_pushinteger(L, dim[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* {dtype, shape, bytes, data (where small)} */
static void push_tensor(lua_State *L, const struct ane_onnx_tensor *t) {
  lua_createtable(L, 0, 4);
  set_text(L, "dtype", ane_dtype_info(t->dtype)->name);
  push_dims(L, t->rank, t->dim, NULL);
  lua_setfield(L, -2, "shape");
  set_integer(L, "bytes", (lua_Integer)t->bytes);
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
    if (a->type == ANE_ONNX_FLOATS) lua_pushnumber(L, (lua_Number)a->floats[i]);
    else if (a->type == ANE_ONNX_INTS) lua_pushinteger(L, a->ints[i]);
    else lua_pushlstring(L, a->strings[i].data, a->strings[i].len);
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
  set_text(L, "name", n->name);
  set_text(L, "op", n->op);
  set_text(L, "domain", n->domain);
  set_integer(L, "opset", n->opset);
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
    set_text(L, "name", io[i].name);
    set_integer(L, "value", io[i].value + 1);
    if (io[i].dtype != ANE_DTYPE_COUNT) set_text(L, "dtype", ane_dtype_info(io[i].dtype)->name);
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
 * constant = {dtype, shape, bytes, data} or nil}), producer, opset}; nil where the source holds no graph. Functions are
 * inlined, Constant nodes are constants. */
static int onnx_tables(lua_State *L) {
  const struct ane_onnx *doc = bind_check_source(L, 1)->onnx;
  if (!doc) return lua_pushnil(L), 1;
  push_graph(L, &doc->graph);
  set_text(L, "producer", doc->producer);
  set_integer(L, "opset", doc->opset);
  lua_createtable(L, doc->n_values, 0);
  for (int32_t i = 0; i < doc->n_values; i++) {
    lua_createtable(L, 0, 2);
    set_text(L, "name", doc->values[i].name);
    if (doc->values[i].constant) push_tensor(L, doc->values[i].constant), lua_setfield(L, -2, "constant");
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "values");
  return 1;
}

/* onnx_io(source) -> inputs, outputs as above, without the rest; nil where the source holds no graph */
static int onnx_io(lua_State *L) {
  const struct ane_onnx *doc = bind_check_source(L, 1)->onnx;
  if (!doc) return lua_pushnil(L), 1;
  push_ios(L, doc->graph.inputs, doc->graph.n_inputs);
  push_ios(L, doc->graph.outputs, doc->graph.n_outputs);
  return 2;
}

void bind_onnx(lua_State *L) {
  lua_pushcfunction(L, onnx_tables);
  lua_setfield(L, -2, "onnx");
  lua_pushcfunction(L, onnx_io);
  lua_setfield(L, -2, "onnx_io");
}
