/* package:program(options), package:state(): functions of Core ML packages that run on tensors by name. */
#include "binding/model/bind_interp.h"
#include "binding/tensor/bind_dyn.h"
#include "binding/formats/bind_package.h"
#include "binding/tensor/bind_tensor.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <string.h>

#define PROGRAM_CLASS "ane.mlpackage_program"
#define STATE_CLASS "ane.mlpackage_state"

/* Threads that programs share; the last one ends them. */
struct shared_pool {
  struct ane_pool *pool;
  int refs;
};

struct lua_predict {
  struct ane_interp *graph; /* NULL: closed */
  struct bind_package *box;
  struct shared_pool *pool;
  struct ane_dyn_memory memory; /* of runs without states */
};

struct lua_states {
  struct ane_interp_states *states; /* NULL: closed */
  struct bind_package *box;
  struct ane_dyn_memory memory;
};

static struct lua_predict *check_program(lua_State *L, int arg) {
  struct lua_predict *ud = luaL_checkudata(L, arg, PROGRAM_CLASS);
  if (!ud->graph) luaL_error(L, "program is closed");
  return ud;
}

static struct lua_states *check_states(lua_State *L, int arg) {
  struct lua_states *ud = luaL_checkudata(L, arg, STATE_CLASS);
  if (!ud->states) luaL_error(L, "state is closed");
  return ud;
}

static void release_pool(struct shared_pool *p) {
  if (!p || --p->refs > 0) return;
  ane_pool_destroy(p->pool);
  ane_free(p);
}

/* ---- Programs ------------------------------------------------------------------------------------------------------*/

/* The pool of the program in the option `pool_of`, or one of its own. */
static ane_status take_pool(lua_State *L, int threads, struct lua_predict *ud, struct ane_error *err) {
  lua_getfield(L, 2, "pool_of");
  struct lua_predict *other = luaL_testudata(L, -1, PROGRAM_CLASS);
  lua_pop(L, 1);
  if (other && other->pool) {
    ud->pool = other->pool;
    ud->pool->refs++;
    return ANE_OK;
  }
  if (!(ud->pool = ane_calloc(1, sizeof *ud->pool))) return ane_fail(err, ANE_NOMEM, "no memory for threads");
  ud->pool->refs = 1;
  return ane_pool_create(&ud->pool->pool, threads, err);
}

/* package:program{function, precision ("fp32", "fp16"), threads, isa, progress, pool_of (a program to share threads with)} ->
 * program; or nil, message, code */
int bind_package_program(lua_State *L) {
  struct bind_package *box = bind_check_package(L, 1);
  struct bind_loading load;
  struct ane_interp_options o;
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  bind_interp_options(L, 2, NULL, &o, &load);
  lua_getfield(L, 2, "function");
  const char *function = luaL_optstring(L, -1, NULL);
  lua_getfield(L, 2, "precision");
  const char *precision = luaL_optstring(L, -1, "fp32");
  if (strcmp(precision, "fp32") != 0 && strcmp(precision, "fp16") != 0)
    return luaL_error(L, "option precision is \"%s\"; choose fp32 or fp16", precision);
  o.fp16 = strcmp(precision, "fp16") == 0;
  struct lua_predict *ud = bind_new(L, PROGRAM_CLASS, sizeof *ud, 0);
  int self = lua_gettop(L);
  ud->box = box;
  box->refs++;
  ud->memory.limit = ane_memory_available();
  ane_status st = take_pool(L, o.threads, ud, &err);
  o.shared = box->shared;
  if (!st) o.pool = ud->pool->pool, st = ane_interp_from_mil(&ud->graph, box->p->model, function, &o, &err);
  if (load.progress.raised) return lua_error(L);
  if (st) return ane_fail_in(&err, st, "%s", box->p->path), bind_fail(L, &err);
  lua_pushvalue(L, self);
  return 1;
}

static int program_close(lua_State *L) {
  struct lua_predict *ud = luaL_checkudata(L, 1, PROGRAM_CLASS);
  ane_interp_destroy(ud->graph);
  ud->graph = NULL;
  release_pool(ud->pool);
  ud->pool = NULL;
  ane_dyn_memory_free(&ud->memory);
  bind_package_release(ud->box);
  ud->box = NULL;
  return 0;
}

static int program_info(lua_State *L) {
  struct ane_interp_info i = ane_interp_info(check_program(L, 1)->graph);
  const struct {
    const char *name;
    lua_Integer v;
  } numbers[] = {{"threads", i.threads},
                 {"nodes", i.n_nodes},
                 {"folded", i.n_folded},
                 {"weight_bytes", (lua_Integer)i.weight_bytes},
                 {"constant_bytes", (lua_Integer)i.constant_bytes}};
  lua_createtable(L, 0, 6);
  lua_pushstring(L, ane_isa_name(i.isa));
  lua_setfield(L, -2, "isa");
  for (size_t k = 0; k < ANE_COUNT(numbers); k++) lua_pushinteger(L, numbers[k].v), lua_setfield(L, -2, numbers[k].name);
  return 1;
}

static int program_dump(lua_State *L) {
  struct ane_buffer text = {0};
  bool ok = ane_interp_print(check_program(L, 1)->graph, &text);
  if (ok) lua_pushlstring(L, (const char *)text.data, text.size);
  ane_buffer_free(&text);
  return ok ? 1 : luaL_error(L, "no memory to print the program");
}

/* ---- Running -------------------------------------------------------------------------------------------------------*/

struct outputs {
  const struct ane_interp *graph;
  struct ane_dyn *list;
};

/* (struct outputs *) -> table; raises where memory is short */
static int push_outputs(lua_State *L) {
  const struct outputs *o = lua_touserdata(L, 1);
  int32_t n = ane_interp_info(o->graph).n_outputs;
  lua_createtable(L, 0, n);
  for (int32_t i = 0; i < n; i++) {
    bind_dyn_push(L, &o->list[i]);
    lua_setfield(L, -2, ane_interp_output(o->graph, i)->name);
  }
  return 1;
}

/* run(inputs, state or nil) -> outputs by name; or nil, message, code */
static int program_run(lua_State *L) {
  struct lua_predict *ud = check_program(L, 1);
  struct lua_states *s = lua_isnoneornil(L, 3) ? NULL : check_states(L, 3);
  struct ane_dyn_memory *memory = s ? &s->memory : &ud->memory;
  struct ane_interp_info info = ane_interp_info(ud->graph);
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  if (s && s->box != ud->box) return luaL_error(L, "the state belongs to another package");
  struct ane_dyn *in = lua_newuserdatauv(L, (size_t)(info.n_inputs + 1) * sizeof *in, 0);
  for (int32_t i = 0; i < info.n_inputs; i++) {
    const char *name = ane_interp_input(ud->graph, i)->name;
    lua_getfield(L, 2, name);
    bind_dyn_read(L, name, &in[i]);
    lua_pop(L, 1);
  }
  struct outputs o = {ud->graph, lua_newuserdatauv(L, (size_t)(info.n_outputs + 1) * sizeof *o.list, 0)};
  memset(o.list, 0, (size_t)(info.n_outputs + 1) * sizeof *o.list);
  ane_status st = ane_interp_run_states(ud->graph, memory, s ? s->states : NULL, in, o.list, &err);
  int failed = LUA_OK;
  if (!st) {
    lua_pushcfunction(L, push_outputs);
    lua_pushlightuserdata(L, &o);
    failed = lua_pcall(L, 1, 1, 0);
  }
  for (int32_t i = 0; i < info.n_outputs; i++) ane_dyn_drop(memory, &o.list[i]);
  if (failed) return lua_error(L);
  return st ? bind_fail(L, &err) : 1;
}

/* ---- States --------------------------------------------------------------------------------------------------------*/

/* package:state() -> zeros for all functions of the package; or nil, message, code */
int bind_package_state(lua_State *L) {
  struct bind_package *box = bind_check_package(L, 1);
  struct ane_error err;
  struct lua_states *ud = bind_new(L, STATE_CLASS, sizeof *ud, 0);
  ud->box = box;
  box->refs++;
  ud->memory.limit = ane_memory_available();
  ane_status st = ane_interp_states_create(&ud->states, box->p->model, &ud->memory, &err);
  if (st) return ane_fail_in(&err, st, "%s", box->p->path), bind_fail(L, &err);
  return 1;
}

static int state_close(lua_State *L) {
  struct lua_states *ud = luaL_checkudata(L, 1, STATE_CLASS);
  ane_interp_states_destroy(ud->states);
  ud->states = NULL;
  ane_dyn_memory_free(&ud->memory);
  bind_package_release(ud->box);
  ud->box = NULL;
  return 0;
}

static int state_reset(lua_State *L) {
  struct ane_error err;
  if (ane_interp_states_reset(check_states(L, 1)->states, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static int state_names(lua_State *L) {
  const struct ane_interp_states *s = check_states(L, 1)->states;
  lua_newtable(L);
  for (int32_t i = 0; i < ane_interp_states_count(s); i++)
    lua_pushstring(L, ane_interp_states_name(s, i)), lua_rawseti(L, -2, i + 1);
  return 1;
}

static int32_t state_index(lua_State *L, const struct ane_interp_states *s) {
  const char *name = luaL_checkstring(L, 2);
  for (int32_t i = 0; i < ane_interp_states_count(s); i++)
    if (strcmp(ane_interp_states_name(s, i), name) == 0) return i;
  return luaL_error(L, "there is no state %s", name);
}

/* get(name) -> ane.tensor, a copy */
static int state_get(lua_State *L) {
  const struct ane_interp_states *s = check_states(L, 1)->states;
  bind_dyn_push(L, ane_interp_states_tensor(s, state_index(L, s)));
  return 1;
}

/* set(name, ane.tensor) of the same shape */
static int state_set(lua_State *L) {
  struct ane_interp_states *s = check_states(L, 1)->states;
  int32_t i = state_index(L, s);
  struct bind_tensor *t = bind_check_tensor(L, 3);
  const struct ane_dyn *old = ane_interp_states_tensor(s, i);
  struct ane_error err;
  bool same = (int32_t)t->shape.rank == old->rank;
  for (int32_t k = 0; same && k < old->rank; k++) same = t->shape.dim[k] == old->dim[k];
  char text[ANE_DYN_TEXT];
  if (!same) return luaL_error(L, "state %s is %s, the tensor has another shape", lua_tostring(L, 2), ane_dyn_text(old, text));
  float *to = ane_interp_states_data(s, i, &err);
  if (!to) return bind_fail(L, &err);
  memcpy(to, t->data, (size_t)t->count * sizeof *to);
  lua_pushboolean(L, 1);
  return 1;
}

/* copy() -> a second state with the same contents; or nil, message, code */
static int state_copy(lua_State *L) {
  struct lua_states *from = check_states(L, 1);
  struct ane_error err;
  struct lua_states *ud = bind_new(L, STATE_CLASS, sizeof *ud, 0);
  ud->box = from->box;
  ud->box->refs++;
  ud->memory.limit = from->memory.limit;
  if (ane_interp_states_create(&ud->states, from->box->p->model, &ud->memory, &err) ||
      ane_interp_states_copy(ud->states, from->states, &err))
    return bind_fail(L, &err);
  return 1;
}

void bind_predict(lua_State *L) {
  static const luaL_Reg program[] = {
      {"run", program_run}, {"info", program_info}, {"dump", program_dump}, {"close", program_close}, {NULL, NULL}};
  static const luaL_Reg program_meta[] = {{"__gc", program_close}, {"__close", program_close}, {NULL, NULL}};
  static const luaL_Reg state[] = {{"reset", state_reset}, {"names", state_names}, {"get", state_get}, {"set", state_set},
                                   {"copy", state_copy},   {"close", state_close}, {NULL, NULL}};
  static const luaL_Reg state_meta[] = {{"__gc", state_close}, {"__close", state_close}, {NULL, NULL}};
  bind_class(L, PROGRAM_CLASS, program, program_meta);
  bind_class(L, STATE_CLASS, state, state_meta);
}
