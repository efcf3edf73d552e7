/* core.interp(source, options): an imported graph that runs on tensors by name. */
#include "binding/model/bind_interp.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <string.h>

#define INTERP_CLASS "ane.interp"

struct lua_interp {
  struct ane_interp *graph; /* NULL: closed */
  struct ane_source *source;
  struct ane_dyn_memory memory;
  struct ane_dyn *outputs; /* of the last run */
};

static struct lua_interp *check_interp(lua_State *L, int arg) {
  struct lua_interp *ud = luaL_checkudata(L, arg, INTERP_CLASS);
  if (!ud->graph) luaL_error(L, "graph is closed");
  return ud;
}

/* ---- Options -------------------------------------------------------------------------------------------------------*/

static void on_release(void *arg, const void *data, uint64_t bytes) {
  const struct bind_loading *l = arg;
  bind_release(&l->source, 1, data, bytes);
}

void bind_interp_options(lua_State *L, int arg, struct ane_source *s, struct ane_interp_options *o, struct bind_loading *load) {
  luaL_checktype(L, arg, LUA_TTABLE);
  *load = (struct bind_loading){.progress.L = L, .source = s};
  *o = (struct ane_interp_options){.progress = bind_on_progress, .release = s ? on_release : NULL, .arg = load};
  lua_getfield(L, arg, "isa");
  o->isa = lua_isnil(L, -1) ? ane_isa_best() : ane_isa_from_name(luaL_checkstring(L, -1));
  if (o->isa == ANE_ISA_COUNT) luaL_error(L, "option isa is %s, no ISA level", lua_tostring(L, -1));
  lua_getfield(L, arg, "threads");
  lua_Integer threads = luaL_optinteger(L, -1, 1);
  if (threads < 1 || threads > 1024) luaL_error(L, "option threads is %I, wanted 1 .. 1024", (LUAI_UACINT)threads);
  o->threads = (int)threads;
  lua_getfield(L, arg, "progress");
  load->progress.function = lua_isfunction(L, -1) ? lua_gettop(L) : 0;
}

/* interp(source [, options]) -> graph; or nil, message, code */
static int interp_new(lua_State *L) {
  struct ane_source *s = bind_check_source(L, 1);
  struct ane_interp_options o;
  struct bind_loading load;
  struct ane_error err;
  lua_settop(L, 2);
  if (lua_isnil(L, 2)) lua_newtable(L), lua_replace(L, 2);
  bind_interp_options(L, 2, s, &o, &load);
  struct lua_interp *ud = bind_new(L, INTERP_CLASS, sizeof *ud, 0);
  int self = lua_gettop(L);
  ane_source_retain(s);
  ud->source = s;
  ane_status st = ane_interp_from_onnx(&ud->graph, s, &o, &err);
  if (load.progress.raised) return lua_error(L);
  if (st) return bind_fail(L, &err);
  lua_pushvalue(L, self);
  return 1;
}

/* interp_check(source) -> true; or nil, message, code: see ane_interp_check_onnx */
static int interp_check(lua_State *L) {
  struct ane_error err;
  if (ane_interp_check_onnx(bind_check_source(L, 1), &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static void drop_outputs(struct lua_interp *ud) {
  for (int32_t i = 0; ud->outputs && i < ane_interp_info(ud->graph).n_outputs; i++) ane_dyn_drop(&ud->memory, &ud->outputs[i]);
  ane_free(ud->outputs);
  ud->outputs = NULL;
}

static int meth_close(lua_State *L) {
  struct lua_interp *ud = luaL_checkudata(L, 1, INTERP_CLASS);
  if (ud->graph) drop_outputs(ud);
  ane_interp_destroy(ud->graph);
  ud->graph = NULL;
  ane_dyn_memory_free(&ud->memory);
  ane_source_close(ud->source);
  ud->source = NULL;
  return 0;
}

/* ---- Facts ---------------------------------------------------------------------------------------------------------*/

/* List of {name, dtype (nil: not declared), shape (dimensions, or symbols, or -1; nil: not declared)}. */
static int push_ios(lua_State *L, const struct ane_interp *g, bool outputs) {
  int32_t n = outputs ? ane_interp_info(g).n_outputs : ane_interp_info(g).n_inputs;
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    const struct ane_onnx_io *io = outputs ? ane_interp_output(g, i) : ane_interp_input(g, i);
    lua_createtable(L, 0, 3);
    lua_pushstring(L, io->name);
    lua_setfield(L, -2, "name");
    if (io->dtype != ANE_DTYPE_COUNT) lua_pushstring(L, ane_dtype_info(io->dtype)->name), lua_setfield(L, -2, "dtype");
    if (io->rank >= 0) {
      lua_createtable(L, io->rank, 0);
      for (int32_t k = 0; k < io->rank; k++) {
        if (io->dim[k] < 0 && io->symbol[k])
          lua_pushstring(L, io->symbol[k]);
        else
          lua_pushinteger(L, io->dim[k]);
        lua_rawseti(L, -2, k + 1);
      }
      lua_setfield(L, -2, "shape");
    }
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}
static int meth_inputs(lua_State *L) { return push_ios(L, check_interp(L, 1)->graph, false); }
static int meth_outputs(lua_State *L) { return push_ios(L, check_interp(L, 1)->graph, true); }

static int meth_info(lua_State *L) {
  struct ane_interp_info i = ane_interp_info(check_interp(L, 1)->graph);
  lua_createtable(L, 0, 6);
  lua_pushstring(L, ane_isa_name(i.isa));
  lua_setfield(L, -2, "isa");
  const struct {
    const char *name;
    lua_Integer v;
  } numbers[] = {{"threads", i.threads},
                 {"nodes", i.n_nodes},
                 {"folded", i.n_folded},
                 {"weight_bytes", (lua_Integer)i.weight_bytes},
                 {"constant_bytes", (lua_Integer)i.constant_bytes}};
  for (size_t k = 0; k < ANE_COUNT(numbers); k++) lua_pushinteger(L, numbers[k].v), lua_setfield(L, -2, numbers[k].name);
  return 1;
}

static int meth_dump(lua_State *L) {
  struct ane_buffer text = {0};
  bool ok = ane_interp_print(check_interp(L, 1)->graph, &text);
  if (ok) lua_pushlstring(L, (const char *)text.data, text.size);
  ane_buffer_free(&text);
  return ok ? 1 : luaL_error(L, "no memory to print the graph");
}

/* ---- Running -------------------------------------------------------------------------------------------------------*/

/* The tensor {dtype=, shape=, data= (bytes)} at the top of the stack, as a view of its bytes. Raises where it is malformed. */
static void read_tensor(lua_State *L, const char *name, struct ane_dyn *t) {
  size_t len;
  if (!lua_istable(L, -1)) luaL_error(L, "input %s is missing", name);
  lua_getfield(L, -1, "dtype");
  const char *dtype = luaL_optlstring(L, -1, "", &len);
  t->dtype = ane_dtype_from_name(dtype, len);
  if (t->dtype == ANE_DTYPE_COUNT || ane_dtype_info(t->dtype)->block > 2) luaL_error(L, "input %s: dtype is %s", name, dtype);
  lua_getfield(L, -2, "shape");
  t->rank = lua_istable(L, -1) ? (int32_t)lua_rawlen(L, -1) : ANE_DYN_RANK + 1;
  if (t->rank > ANE_DYN_RANK) luaL_error(L, "input %s: shape is no list of at most %d dimensions", name, ANE_DYN_RANK);
  t->count = 1;
  for (int32_t i = 0; i < t->rank; i++) {
    lua_rawgeti(L, -1, i + 1);
    t->dim[i] = lua_tointeger(L, -1);
    if (t->dim[i] < 0 || __builtin_mul_overflow(t->count, t->dim[i], &t->count))
      luaL_error(L, "input %s: dimension %d is %I", name, (int)i + 1, (LUAI_UACINT)t->dim[i]);
    lua_pop(L, 1);
  }
  lua_getfield(L, -3, "data");
  t->data = luaL_optlstring(L, -1, "", &len);
  if (len != ane_dyn_bytes(t))
    luaL_error(L, "input %s: data has %I bytes, the shape wants %I", name, (LUAI_UACINT)len, (LUAI_UACINT)ane_dyn_bytes(t));
  lua_pop(L, 3); /* the string lives in the caller's table */
}

static void push_tensor(lua_State *L, const struct ane_dyn *t) {
  lua_createtable(L, 0, 3);
  lua_pushstring(L, ane_dtype_info(t->dtype)->name);
  lua_setfield(L, -2, "dtype");
  lua_createtable(L, t->rank, 0);
  for (int32_t i = 0; i < t->rank; i++) lua_pushinteger(L, t->dim[i]), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, "shape");
  lua_pushlstring(L, t->count ? t->data : "", (size_t)ane_dyn_bytes(t));
  lua_setfield(L, -2, "data");
}

/* run(inputs) -> outputs, both name -> {dtype, shape, data}; or nil, message, code */
static int meth_run(lua_State *L) {
  struct lua_interp *ud = check_interp(L, 1);
  struct ane_interp_info info = ane_interp_info(ud->graph);
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  struct ane_dyn *in = lua_newuserdatauv(L, (size_t)(info.n_inputs + 1) * sizeof *in, 0);
  memset(in, 0, (size_t)(info.n_inputs + 1) * sizeof *in);
  for (int32_t i = 0; i < info.n_inputs; i++) {
    const char *name = ane_interp_input(ud->graph, i)->name;
    lua_getfield(L, 2, name);
    read_tensor(L, name, &in[i]);
    lua_pop(L, 1);
  }
  drop_outputs(ud);
  if (!(ud->outputs = ane_calloc((size_t)info.n_outputs + 1, sizeof *ud->outputs))) return luaL_error(L, "no memory for outputs");
  ane_status st = ane_interp_run(ud->graph, &ud->memory, in, ud->outputs, &err);
  if (st) return bind_fail(L, &err);
  lua_createtable(L, 0, info.n_outputs);
  for (int32_t i = 0; i < info.n_outputs; i++) {
    push_tensor(L, &ud->outputs[i]);
    lua_setfield(L, -2, ane_interp_output(ud->graph, i)->name);
  }
  return 1;
}

void bind_interp(lua_State *L) {
  static const luaL_Reg methods[] = {{"inputs", meth_inputs}, {"outputs", meth_outputs}, {"info", meth_info}, {"dump", meth_dump},
                                     {"run", meth_run},       {"close", meth_close},     {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {NULL, NULL}};
  bind_class(L, INTERP_CLASS, methods, meta);
  lua_pushcfunction(L, interp_new);
  lua_setfield(L, -2, "interp");
  lua_pushcfunction(L, interp_check);
  lua_setfield(L, -2, "interp_check");
}
