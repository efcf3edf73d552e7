/* core.graph(name): a graph under construction. Values are integers, 1-based; false stands for an absent input. */
#include "binding/model/bind_model.h"

#include "base/bytes.h"
#include "passes/passes.h"

#include <string.h>

#define GRAPH_CLASS "ane.graph"

struct bind_graph *bind_check_graph(lua_State *L, int arg) {
  struct bind_graph *ud = luaL_checkudata(L, arg, GRAPH_CLASS);
  if (!ud->graph) luaL_error(L, "graph is closed");
  if (ud->uses) luaL_error(L, "graph is in use");
  return ud;
}

void bind_release(struct ane_source *const *sources, int n, const void *data, uint64_t bytes) {
  const uint8_t *at = data;
  for (int i = 0; i < n; i++)
    for (uint32_t f = 0; f < sources[i]->n_files; f++) {
      const struct ane_map *m = &sources[i]->files[f].map;
      if (m->data && at >= m->data && at < m->data + m->size) ane_map_drop(m, (uint64_t)(at - m->data), bytes);
    }
}

static int graph_new(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  struct bind_graph *ud = bind_new(L, GRAPH_CLASS, sizeof *ud, 0);
  struct ane_error err;
  if (ane_graph_create(&ud->graph, name, &err)) return bind_fail(L, &err);
  return 1;
}

static int meth_close(lua_State *L) {
  struct bind_graph *ud = luaL_checkudata(L, 1, GRAPH_CLASS);
  if (ud->uses) luaL_error(L, "graph is in use");
  ane_graph_destroy(ud->graph);
  ud->graph = NULL;
  while (ud->n_sources > 0) ane_source_close(ud->sources[--ud->n_sources]);
  return 0;
}

/* Raises for misuse of the builder; the message names the node. */
static int raise(lua_State *L, const struct ane_error *err) { return luaL_error(L, "%s", err->text); }

static int push_value(lua_State *L, int32_t value) {
  lua_pushinteger(L, (lua_Integer)value + 1);
  return 1;
}

static int32_t check_value(lua_State *L, const struct ane_graph *g, int arg) {
  return (int32_t)bind_integer(L, arg, 1, g->n_values) - 1;
}

/* Reads a shape: a list of sizes and of the symbols "T", "W" and "context". */
static void check_shape(lua_State *L, int arg, struct ane_shape *s) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Unsigned rank = lua_rawlen(L, arg);
  if (rank > ANE_MAX_RANK) luaL_error(L, "a shape has at most %d dimensions, but this one has %d", ANE_MAX_RANK, (int)rank);
  s->rank = (uint32_t)rank;
  for (uint32_t i = 0; i < s->rank; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    if (lua_type(L, -1) == LUA_TSTRING) {
      const char *sym = lua_tostring(L, -1);
      s->dim[i] = strcmp(sym, "T") == 0 ? ANE_DIM_TOKENS : strcmp(sym, "W") == 0 ? ANE_DIM_OUT_ROWS : ANE_DIM_CONTEXT;
      if (s->dim[i] == ANE_DIM_CONTEXT && strcmp(sym, "context") != 0)
        luaL_error(L, "dimension %s is not a symbol; known are: T, W, context", sym);
    } else {
      s->dim[i] = luaL_checkinteger(L, -1);
      if (s->dim[i] < 0) luaL_error(L, "dimension %d of the shape is negative", (int)i + 1);
    }
    lua_pop(L, 1);
  }
}

void bind_push_shape(lua_State *L, const struct ane_shape *s) {
  lua_createtable(L, (int)s->rank, 0);
  for (uint32_t i = 0; i < s->rank; i++) {
    if (s->dim[i] >= 0)
      lua_pushinteger(L, s->dim[i]);
    else
      lua_pushstring(L, s->dim[i] == ANE_DIM_TOKENS ? "T" : s->dim[i] == ANE_DIM_OUT_ROWS ? "W" : "context");
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* input(name, dtype, shape) -> value */
static int meth_input(lua_State *L) {
  struct ane_graph *g = bind_check_graph(L, 1)->graph;
  size_t len;
  const char *name = luaL_checkstring(L, 2), *dtype = luaL_checklstring(L, 3, &len);
  ane_dtype t = ane_dtype_from_name(dtype, len);
  struct ane_shape s;
  struct ane_error err;
  int32_t v;
  luaL_argcheck(L, t != ANE_DTYPE_COUNT, 3, "is not a dtype");
  check_shape(L, 4, &s);
  return ane_graph_input(g, name, t, &s, &v, &err) ? raise(L, &err) : push_value(L, v);
}

/* state(name, shape) -> value */
static int meth_state(lua_State *L) {
  struct ane_graph *g = bind_check_graph(L, 1)->graph;
  const char *name = luaL_checkstring(L, 2);
  struct ane_shape s;
  struct ane_error err;
  int32_t v;
  check_shape(L, 3, &s);
  return ane_graph_state(g, name, &s, &v, &err) ? raise(L, &err) : push_value(L, v);
}

static void keep_source(lua_State *L, struct bind_graph *ud, struct ane_source *s) {
  for (int i = 0; i < ud->n_sources; i++)
    if (ud->sources[i] == s) return;
  if (ud->n_sources == BIND_MAX_SOURCES) luaL_error(L, "a graph takes weights from at most %d sources", BIND_MAX_SOURCES);
  ane_source_retain(s);
  ud->sources[ud->n_sources++] = s;
}

/* Returns an option of the table at `arg`: an integer in [lo, hi]; `def` if the table or the option is absent. */
static int64_t const_field(lua_State *L, int arg, const char *name, int64_t def, int64_t lo, int64_t hi) {
  return lua_isnoneornil(L, arg) ? def : bind_opt_integer_option(L, arg, name, def, lo, hi);
}

/* Makes a view of rows from, from + step, ... of a matrix, or of such elements of a vector; transposed as for view_const. */
static void view_every(lua_State *L, struct bind_graph *ud, int64_t from, int64_t step, bool transposed, struct ane_tensor *t) {
  struct ane_shape *s = &t->shape;
  if (s->rank < 1 || s->rank > 2 || t->transposed || (ane_dtype_info(t->dtype)->block != 1 && !t->gather) ||
      (t->gather && (t->gather->next || t->gather->table)))
    luaL_error(L, "the tensor has no such view");
  struct ane_gather *g = ane_arena_alloc(&ud->graph->arena, sizeof *g);
  if (!g) luaL_error(L, "not enough memory");
  int64_t rows = transposed ? s->dim[1] : s->dim[0], columns = s->rank < 2 ? 1 : transposed ? s->dim[0] : s->dim[1];
  int64_t row_step = transposed ? 1 : columns, col_step = transposed ? s->dim[1] : 1;
  *g = (struct ane_gather){.data = t->data, .bytes = t->bytes, .dtype = t->dtype, .row_step = row_step, .col_step = col_step};
  if (t->gather) *g = *t->gather;
  int64_t first = t->gather ? t->row0 + from : from;
  g->base += first * g->row_step;
  g->scale_base += first * g->scale_row;
  g->row_step *= step;
  g->scale_row *= step;
  *s = (struct ane_shape){s->rank, {(rows - from + step - 1) / step, columns}};
  t->gather = g;
  t->row0 = 0;
  if (!g->bits) t->dtype = ane_gather_dtype(g, s->dim[0], columns);
}

/* Makes a view of a matrix of blocks that is stored as [in, out] and seen as [out, in]: its rows from `from` on. */
static void transpose_blocks(lua_State *L, struct bind_graph *ud, int64_t from, struct ane_tensor *t) {
  struct ane_gather *g = ane_arena_alloc(&ud->graph->arena, sizeof *g);
  if (!g) luaL_error(L, "not enough memory");
  int64_t rows = t->shape.dim[0], cols = t->shape.dim[1];
  *g = (struct ane_gather){.data = t->data, .bytes = t->bytes, .dtype = t->dtype, .decode = ane_decoder(t->dtype)};
  if (t->gather || t->transposed || !g->decode) luaL_error(L, "the tensor has no such view");
  g->row_step = 1;
  g->col_step = cols;
  t->gather = g;
  t->row0 = from;
  t->dtype = ane_gather_dtype(g, cols, rows);
  t->shape.dim[1] = rows;
}

/* Makes a view of a tensor. flat: all of it is a vector. row: a vector becomes a matrix of one row. index: selects in the
 * outermost dimension, which is dropped. from, to: rows [from, to) of the rest. step: rows from, from + step, ... transposed: the
 * rest is stored as [in, out] and seen as [out, in]. */
static void view_const(lua_State *L, struct bind_graph *ud, int arg, struct ane_tensor *t) {
  const struct ane_dtype_info *d = ane_dtype_info(t->dtype);
  if (lua_isnoneornil(L, arg)) return;
  luaL_checktype(L, arg, LUA_TTABLE);
  struct ane_shape *s = &t->shape;
  uint64_t count;
  if (bind_boolean_option(L, arg, "flat") && !t->gather && ane_shape_count(s, &count))
    *s = (struct ane_shape){1, {(int64_t)count}};
  if (bind_boolean_option(L, arg, "row") && s->rank == 1) *s = (struct ane_shape){2, {1, s->dim[0]}};
  int64_t index = const_field(L, arg, "index", -1, 0, s->rank ? s->dim[0] - 1 : -1);
  if (index >= 0) {
    t->bytes /= (uint64_t)s->dim[0];
    if (t->gather)
      t->row0 += index * s->dim[1];
    else
      t->data = (const char *)t->data + (uint64_t)index * t->bytes;
    for (uint32_t i = 1; i < s->rank; i++) s->dim[i - 1] = s->dim[i];
    s->rank--;
  }
  int64_t part = const_field(L, arg, "part_from", -1, 0, s->rank == 2 ? s->dim[0] - 1 : -1);
  if (part >= 0) { /* rows as stored, before they are transposed */
    int64_t n = const_field(L, arg, "part_rows", 1, 1, s->dim[0] - part);
    if (t->gather) luaL_error(L, "the tensor has no such view");
    t->bytes /= (uint64_t)s->dim[0];
    t->data = (const char *)t->data + (uint64_t)part * t->bytes;
    t->bytes *= (uint64_t)n;
    s->dim[0] = n;
  }
  bool transposed = bind_boolean_option(L, arg, "transposed");
  if (s->rank < 1 || (transposed && s->rank != 2)) luaL_error(L, "the tensor has no such view");
  int64_t rows = transposed ? s->dim[1] : s->dim[0];
  if (rows < 1) luaL_error(L, "the tensor has no such view: it has no rows");
  int64_t from = const_field(L, arg, "from", 0, 0, rows - 1), to = const_field(L, arg, "to", rows, from + 1, rows);
  int64_t step = const_field(L, arg, "step", 1, 1, rows);
  bind_check_graph(L, 1); /* again: a finaliser may have closed it */
  if (step > 1) {
    view_every(L, ud, from, step, transposed, t);
    return;
  }
  int64_t block = s->rank == 1 && !t->gather ? d->block : 1;
  if (rows % block || from % block || to % block)
    luaL_error(L, "the tensor has no such view: elements %I to %I of %I are not whole blocks of %I", (LUAI_UACINT)from,
               (LUAI_UACINT)to, (LUAI_UACINT)rows, (LUAI_UACINT)block);
  if (t->gather) {
    if (transposed || s->rank != 2) luaL_error(L, "the tensor has no such view");
    t->row0 += from;
  } else if (transposed && d->block != 1) {
    transpose_blocks(L, ud, from, t);
  } else if (transposed) {
    t->transposed = true;
    t->ld = s->dim[1];
    t->data = (const char *)t->data + (uint64_t)from * d->bytes;
    s->dim[1] = s->dim[0];
  } else {
    t->data = (const char *)t->data + t->bytes / (uint64_t)(rows / block) * (uint64_t)(from / block);
  }
  t->bytes = t->bytes / (uint64_t)(rows / block) * (uint64_t)((to - from) / block);
  s->dim[0] = to - from;
}

/* Makes a view of rows [from, to) of a tensor that consists of parts. They must be in one part. */
static void view_part_rows(lua_State *L, int arg, const struct ane_source_tensor *t, struct ane_tensor *view) {
  int64_t rows = t->tensor.shape.dim[0], from = const_field(L, arg, "from", 0, 0, rows - 1),
          to = const_field(L, arg, "to", rows, from + 1, rows), at = 0;
  bind_check_graph(L, 1); /* as in view_const */
  for (uint32_t i = 0; i < t->n_parts; at += t->parts[i++].shape.dim[0]) {
    const struct ane_tensor *p = &t->parts[i];
    if (from < at || to > at + p->shape.dim[0]) continue;
    *view = *p;
    int64_t n = p->shape.dim[0];
    if (view->gather)
      view->row0 += from - at;
    else
      view->data = (const char *)view->data + view->bytes / (uint64_t)n * (uint64_t)(from - at);
    view->bytes = view->bytes / (uint64_t)n * (uint64_t)(to - from);
    view->shape.dim[0] = to - from;
    if (t->tensor.shape.rank == 1) view->shape.rank = 1;
    return;
  }
  luaL_error(L, "rows %I to %I of %s lie in several parts", (LUAI_UACINT)from, (LUAI_UACINT)to, t->name);
}

/* const(name, source, tensor [, {index =, from =, to =, step =, transposed =}]) -> value: a tensor of the source, or a view of it
 */
static int meth_const(lua_State *L) {
  struct bind_graph *ud = bind_check_graph(L, 1);
  const char *name = luaL_checkstring(L, 2), *tensor = luaL_checkstring(L, 4);
  struct ane_source *s = bind_check_source(L, 3);
  const struct ane_source_tensor *t = ane_source_tensor(s, tensor);
  struct ane_error err;
  int32_t v;
  if (!t) return luaL_error(L, "%s: no tensor %s", s->path, tensor);
  struct ane_tensor view = t->tensor;
  keep_source(L, ud, s); /* before anything is allocated: a finaliser may close it */
  if (t->parts)
    view_part_rows(L, 5, t, &view);
  else
    view_const(L, ud, 5, &view);
  return ane_graph_const(ud->graph, name, &view, &v, &err) ? raise(L, &err) : push_value(L, v);
}

/* blank(name, shape) -> value: a constant without data, for export plans. The graph cannot become a program. */
static int meth_blank(lua_State *L) {
  struct bind_graph *ud = bind_check_graph(L, 1);
  struct ane_tensor t = {.dtype = ANE_F16};
  struct ane_error err;
  int32_t v;
  check_shape(L, 3, &t.shape);
  ud->blank = true;
  return ane_graph_const(ud->graph, luaL_checkstring(L, 2), &t, &v, &err) ? raise(L, &err) : push_value(L, v);
}

/* consts() -> list of {name, shape} */
static int meth_consts(lua_State *L) {
  const struct ane_graph *g = bind_check_graph(L, 1)->graph;
  lua_Integer n = 0;
  lua_newtable(L);
  for (int32_t i = 0; i < g->n_values; i++) {
    if (g->values[i].kind != ANE_VALUE_CONST) continue;
    lua_createtable(L, 0, 2);
    lua_pushstring(L, g->values[i].name);
    lua_setfield(L, -2, "name");
    bind_push_shape(L, &g->values[i].shape);
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

enum { MAX_INPUTS = 8192, MAX_ATTRS = 16, MAX_FLOATS = 4096 };

static int check_inputs(lua_State *L, const struct ane_graph *g, const char *node, int arg, int32_t in[MAX_INPUTS]) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Unsigned given = lua_rawlen(L, arg);
  if (given > MAX_INPUTS) luaL_error(L, "%s: must have at most %d inputs, but has %I", node, MAX_INPUTS, (LUAI_UACINT)given);
  int n = (int)given;
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, arg, i + 1);
    in[i] = ANE_NONE;
    if (lua_isboolean(L, -1) && !lua_toboolean(L, -1))
      in[i] = ANE_NONE;
    else if (!lua_isinteger(L, -1))
      luaL_error(L, "%s: input %d is %s, not a value", node, i + 1, bind_kind(L, -1));
    else if (lua_tointeger(L, -1) < 1 || lua_tointeger(L, -1) > g->n_values)
      luaL_error(L, "%s: input %d is %I; the values of the graph are 1 .. %d", node, i + 1, (LUAI_UACINT)lua_tointeger(L, -1),
                 (int)g->n_values);
    else
      in[i] = (int32_t)lua_tointeger(L, -1) - 1;
    lua_pop(L, 1);
  }
  return n;
}

/* Reads the list of numbers at the top of the stack into a userdata, which is inserted below it. */
static struct ane_attr check_floats(lua_State *L, const char *name) {
  lua_Unsigned n = lua_rawlen(L, -1);
  if (n > MAX_FLOATS) luaL_error(L, "attribute %s has more than %d numbers", name, MAX_FLOATS);
  float *v = lua_newuserdatauv(L, (n ? n : 1) * sizeof *v, 0);
  for (lua_Unsigned i = 0; i < n; i++) {
    lua_rawgeti(L, -2, (lua_Integer)i + 1);
    if (!lua_isnumber(L, -1)) luaL_error(L, "attribute %s: entry %d is not a number", name, (int)i + 1);
    v[i] = (float)lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  return (struct ane_attr){.type = ANE_ATTR_FLOATS, .fv = {v, (int64_t)n}};
}

/* Reads the attributes of the table at `arg`. Buffers stay on the stack until the caller returns. */
static int check_attrs(lua_State *L, int arg, struct ane_attr_arg attrs[MAX_ATTRS]) {
  int n = 0;
  if (lua_isnoneornil(L, arg)) return 0;
  luaL_checktype(L, arg, LUA_TTABLE);
  luaL_checkstack(L, 3 * MAX_ATTRS, "attributes");
  for (lua_pushnil(L); lua_next(L, arg); n++) {
    if (n == MAX_ATTRS) luaL_error(L, "more than %d attributes", MAX_ATTRS);
    if (lua_type(L, -2) != LUA_TSTRING) luaL_error(L, "attribute names are strings");
    attrs[n].name = lua_tostring(L, -2);
    switch (lua_type(L, -1)) {
      case LUA_TNUMBER:
        attrs[n].value = lua_isinteger(L, -1) ? (struct ane_attr){.type = ANE_ATTR_INT, .i = lua_tointeger(L, -1)}
                                              : (struct ane_attr){.type = ANE_ATTR_FLOAT, .f = lua_tonumber(L, -1)};
        break;
      case LUA_TBOOLEAN: attrs[n].value = (struct ane_attr){.type = ANE_ATTR_INT, .i = lua_toboolean(L, -1)}; break;
      case LUA_TSTRING: attrs[n].value = (struct ane_attr){.type = ANE_ATTR_STRING, .s = lua_tostring(L, -1)}; break;
      case LUA_TTABLE:
        attrs[n].value = check_floats(L, attrs[n].name);
        lua_insert(L, -3); /* the buffer goes below key and value, which lua_next needs on top */
        break;
      default: luaL_error(L, "attribute %s is a %s", attrs[n].name, luaL_typename(L, -1));
    }
    lua_pop(L, 1);
  }
  return n;
}

/* add(op, name, inputs [, attributes]) -> one value for each output */
static int meth_add(lua_State *L) {
  struct ane_graph *g = bind_check_graph(L, 1)->graph;
  const char *opname = luaL_checkstring(L, 2), *name = luaL_checkstring(L, 3);
  ane_op op = ane_op_from_name(opname);
  int32_t in[MAX_INPUTS], out;
  struct ane_attr_arg attrs[MAX_ATTRS];
  struct ane_error err;
  lua_settop(L, 5);
  if (op == ANE_OP_COUNT) return luaL_error(L, "%s: no op %s", name, opname);
  int n = check_inputs(L, g, name, 4, in), n_attrs = check_attrs(L, 5, attrs);
  if (ane_graph_add(g, op, name, in, n, attrs, n_attrs, &out, &err)) return raise(L, &err);
  const struct ane_node *node = &g->nodes[g->n_nodes - 1];
  for (int i = 0; i < node->n_outputs; i++) lua_pushinteger(L, (lua_Integer)node->outputs[i] + 1);
  return node->n_outputs;
}

/* results(value, ...): sets the results of the graph */
static int meth_results(lua_State *L) {
  struct ane_graph *g = bind_check_graph(L, 1)->graph;
  int n = lua_gettop(L) - 1;
  int32_t v[MAX_INPUTS];
  struct ane_error err;
  luaL_argcheck(L, n >= 1 && n <= MAX_INPUTS, 2, "at least one result");
  for (int i = 0; i < n; i++) v[i] = check_value(L, g, i + 2);
  return ane_graph_set_results(g, v, n, &err) ? raise(L, &err) : 0;
}

/* shape(value) -> list; symbols as in check_shape */
static int meth_shape(lua_State *L) {
  const struct ane_graph *g = bind_check_graph(L, 1)->graph;
  bind_push_shape(L, &g->values[check_value(L, g, 2)].shape);
  return 1;
}

/* dump() -> stable text form */
static int meth_dump(lua_State *L) {
  struct ane_graph *g = bind_check_graph(L, 1)->graph;
  struct ane_buffer text = {0};
  if (!ane_graph_print(g, &text)) {
    ane_buffer_free(&text);
    return luaL_error(L, "no memory to print the graph");
  }
  /* Only lua_pushlstring can raise before the buffer is freed, and only where memory is out. */
  lua_pushlstring(L, (const char *)text.data, text.size);
  ane_buffer_free(&text);
  return 1;
}

static int meth_verify(lua_State *L) {
  struct ane_error err;
  if (ane_graph_verify(bind_check_graph(L, 1)->graph, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

/* pass(name): runs one pass; passes(pipeline): runs all passes of a pipeline */
static int meth_pass(lua_State *L) {
  struct ane_error err;
  if (ane_pass_run(bind_check_graph(L, 1)->graph, luaL_checkstring(L, 2), &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static int meth_passes(lua_State *L) {
  struct ane_error err;
  if (ane_passes_run(bind_check_graph(L, 1)->graph, luaL_optstring(L, 2, "cpu"), &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

/* check_activation(name) -> true; or nil, a message with the valid names, code */
static int check_activation(lua_State *L) {
  struct ane_error err;
  if (ane_activation_check(luaL_checkstring(L, 1), &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static int meth_tostring(lua_State *L) {
  struct bind_graph *ud = luaL_checkudata(L, 1, GRAPH_CLASS);
  if (ud->graph)
    lua_pushfstring(L, "graph %s (%d nodes)", ud->graph->name, ud->graph->n_nodes);
  else
    lua_pushliteral(L, "graph (closed)");
  return 1;
}

void bind_graph(lua_State *L) {
  static const luaL_Reg methods[] = {{"input", meth_input},
                                     {"state", meth_state},
                                     {"const", meth_const},
                                     {"blank", meth_blank},
                                     {"consts", meth_consts},
                                     {"add", meth_add},
                                     {"results", meth_results},
                                     {"shape", meth_shape},
                                     {"dump", meth_dump},
                                     {"verify", meth_verify},
                                     {"pass", meth_pass},
                                     {"passes", meth_passes},
                                     {"close", meth_close},
                                     {"costs", bind_graph_costs},
                                     {"identity", bind_graph_identity},
                                     {"head", bind_graph_head},
                                     {"slice_head", bind_graph_slice_head},
                                     {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {"__tostring", meth_tostring}, {NULL, NULL}};
  bind_class(L, GRAPH_CLASS, methods, meta);
  lua_pushcfunction(L, graph_new);
  lua_setfield(L, -2, "graph");
  lua_pushcfunction(L, check_activation);
  lua_setfield(L, -2, "check_activation");
}
