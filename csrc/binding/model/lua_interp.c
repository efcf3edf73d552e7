/* core.interp(source, options): an imported graph that runs on tensors by name. */
#include "binding/model/bind_interp.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "platform/map_guard.h"

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
  bind_field(L, arg, "isa");
  o->isa = lua_isnil(L, -1) ? ane_isa_best() : ane_isa_from_name(luaL_checkstring(L, -1));
  if (o->isa == ANE_ISA_COUNT) luaL_error(L, "option isa is %s, no ISA level", lua_tostring(L, -1));
  bind_field(L, arg, "threads");
  lua_Integer threads = luaL_optinteger(L, -1, 1);
  if (threads < 1 || threads > 1024) luaL_error(L, "option threads must be 1 .. 1024, but is %I", (LUAI_UACINT)threads);
  o->threads = (int)threads;
  o->run_memory = (uint64_t)bind_opt_integer_option(L, arg, "run_memory", 0, 1, INT64_MAX);
  bind_field(L, arg, "progress");
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
  s = load.source = bind_check_source(L, 1); /* again: a finaliser may have closed it */
  ane_source_retain(s);
  ud->source = s;
  ane_status st = ane_interp_from_onnx(&ud->graph, s, &o, &err);
  if (!st) ane_dyn_memory_use(&ud->memory, ane_interp_budget(ud->graph));
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

/* Pushes a list of {name, dtype (nil: not declared), shape (dimensions, or symbols, or -1; nil: not declared)}. */
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

int bind_interp_info(lua_State *L, const struct ane_interp *g) {
  struct ane_interp_info i = ane_interp_info(g);
  lua_createtable(L, 0, 6);
  bind_set_text(L, "isa", ane_isa_name(i.isa));
  bind_set_integer(L, "threads", i.threads);
  bind_set_integer(L, "nodes", i.n_nodes);
  bind_set_integer(L, "folded", i.n_folded);
  bind_set_integer(L, "weight_bytes", (lua_Integer)i.weight_bytes);
  bind_set_integer(L, "constant_bytes", (lua_Integer)i.constant_bytes);
  return 1;
}

int bind_interp_dump(lua_State *L, const struct ane_interp *g, const char *what) {
  struct ane_buffer text = {0};
  bool ok = ane_interp_print(g, &text);
  if (ok) lua_pushlstring(L, (const char *)text.data, text.size);
  ane_buffer_free(&text);
  return ok ? 1 : luaL_error(L, "no memory to print the %s", what);
}

static int meth_info(lua_State *L) { return bind_interp_info(L, check_interp(L, 1)->graph); }
static int meth_dump(lua_State *L) { return bind_interp_dump(L, check_interp(L, 1)->graph, "graph"); }

static const char *input_name(const void *g, int32_t i) { return ane_interp_input(g, i)->name; }
static const char *output_name(const void *g, int32_t i) { return ane_interp_output(g, i)->name; }

struct bind_names bind_interp_inputs(const struct ane_interp *g) {
  return (struct bind_names){input_name, g, ane_interp_info(g).n_inputs};
}

struct bind_names bind_interp_outputs(const struct ane_interp *g) {
  return (struct bind_names){output_name, g, ane_interp_info(g).n_outputs};
}

/* ---- Running -------------------------------------------------------------------------------------------------------*/

/* run(inputs) -> outputs, both name -> {dtype, shape, data}; or nil, message, code */
static int meth_run(lua_State *L) {
  struct lua_interp *ud = check_interp(L, 1);
  struct bind_names inputs = bind_interp_inputs(ud->graph), outputs = bind_interp_outputs(ud->graph);
  struct ane_error err;
  struct ane_dyn *in = bind_dyn_inputs(L, 2, &inputs);
  for (int32_t i = 0; i < inputs.n; i++)
    if (!in[i].data) luaL_error(L, "input %s is missing", inputs.name(inputs.of, i));
  drop_outputs(ud);
  if (!(ud->outputs = ane_calloc((size_t)outputs.n + 1, sizeof *ud->outputs))) return luaL_error(L, "no memory for outputs");
  ane_status st = ane_interp_run(ud->graph, &ud->memory, in, ud->outputs, &err);
  if (!st) st = ane_maps_check(&err);
  uint64_t bytes = 0; /* of the copies */
  for (int32_t i = 0; !st && i < outputs.n; i++) bytes += ane_dyn_bytes(&ud->outputs[i]);
  if (!st && ane_dyn_budget_check(ud->memory.budget, bytes, &err)) st = ane_fail_in(&err, err.code, "the outputs");
  if (st) return bind_fail(L, &err);
  lua_createtable(L, 0, outputs.n);
  for (int32_t i = 0; i < outputs.n; i++) {
    bind_dyn_push_bytes(L, &ud->outputs[i]);
    lua_setfield(L, -2, outputs.name(outputs.of, i));
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
