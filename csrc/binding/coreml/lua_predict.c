/* package:program(options), package:state(): functions of Core ML packages that run on tensors by name. */
#include "binding/model/bind_interp.h"
#include "binding/tensor/bind_dyn.h"
#include "binding/formats/bind_package.h"
#include "binding/tensor/bind_tensor.h"

#include "base/alloc.h"
#include "platform/map_guard.h"

#include <string.h>

#define PROGRAM_CLASS "ane.mlpackage_program"
#define STATE_CLASS "ane.mlpackage_state"

/* A thread pool that programs share. The last owner frees it. */
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

/* Takes the pool of the program in the option `pool_of`, or makes a new one. */
static ane_status take_pool(lua_State *L, int threads, struct lua_predict *ud, struct ane_error *err) {
  bind_field(L, 2, "pool_of");
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
  struct bind_package *box;
  struct bind_loading load;
  struct ane_interp_options o;
  struct ane_error err;
  (void)bind_check_package(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  bind_interp_options(L, 2, NULL, &o, &load);
  bind_field(L, 2, "function");
  const char *function = luaL_optstring(L, -1, NULL);
  bind_field(L, 2, "precision");
  const char *precision = luaL_optstring(L, -1, "fp32");
  if (strcmp(precision, "fp32") != 0 && strcmp(precision, "fp16") != 0)
    return luaL_error(L, "option precision is \"%s\"; choose fp32 or fp16", precision);
  o.fp16 = strcmp(precision, "fp16") == 0;
  struct lua_predict *ud = bind_new(L, PROGRAM_CLASS, sizeof *ud, 0);
  int self = lua_gettop(L);
  box = bind_check_package(L, 1); /* again: a finaliser that ran meanwhile may have closed it */
  ud->box = box;
  box->refs++;
  ane_dyn_memory_use(&ud->memory, box->budget);
  ane_status st = take_pool(L, o.threads, ud, &err);
  o.shared = box->shared, o.budget = box->budget;
  for (uint32_t i = 0; i < box->p->n_files; i++) o.file_bytes += box->p->files[i].map.size;
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

static int program_info(lua_State *L) { return bind_interp_info(L, check_program(L, 1)->graph); }
static int program_dump(lua_State *L) { return bind_interp_dump(L, check_program(L, 1)->graph, "program"); }

/* ---- Running -------------------------------------------------------------------------------------------------------*/

/* run(inputs, state or nil) -> outputs by name; or nil, message, code */
static int program_run(lua_State *L) {
  struct lua_predict *ud = check_program(L, 1);
  struct lua_states *s = lua_isnoneornil(L, 3) ? NULL : check_states(L, 3);
  struct ane_dyn_memory *memory = s ? &s->memory : &ud->memory;
  struct bind_names inputs = bind_interp_inputs(ud->graph), outputs = bind_interp_outputs(ud->graph);
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  if (s && s->box != ud->box) return luaL_error(L, "the state belongs to another package");
  struct ane_dyn *in = bind_dyn_inputs(L, 2, &inputs), *out = bind_dyn_list(L, outputs.n);
  ane_status st = ane_interp_run_states(ud->graph, memory, s ? s->states : NULL, in, out, &err);
  if (!st) st = ane_maps_check(&err);
  return bind_dyn_results(L, st, &err, &outputs, out, memory);
}

/* ---- States --------------------------------------------------------------------------------------------------------*/

/* package:state(function) -> zeros for a function and those that share its states; nil: for all functions; or nil, message, code
 */
int bind_package_state(lua_State *L) {
  struct bind_package *box = bind_check_package(L, 1);
  const char *function = lua_isnoneornil(L, 2) ? NULL : bind_text(L, 2);
  struct ane_error err;
  struct lua_states *ud = bind_new(L, STATE_CLASS, sizeof *ud, 0);
  ud->box = box;
  box->refs++;
  ane_dyn_memory_use(&ud->memory, box->budget);
  ane_status st = ane_interp_states_create(&ud->states, box->p->model, function, &ud->memory, &err);
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

static const char *name_of(const void *states, int32_t i) { return ane_interp_states_name(states, i); }

static struct bind_names names_of(const struct ane_interp_states *s) {
  return (struct bind_names){name_of, s, ane_interp_states_count(s)};
}

static int state_names(lua_State *L) {
  struct bind_names names = names_of(check_states(L, 1)->states);
  bind_names_push(L, &names);
  return 1;
}

static int32_t state_index(lua_State *L, const struct ane_interp_states *s) {
  struct bind_names names = names_of(s);
  return bind_names_index(L, 2, &names, "state");
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
  if (!same)
    return luaL_error(L, "state %s is %s, but the tensor has another shape", lua_tostring(L, 2), ane_dyn_text(old, text));
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
  ane_dyn_memory_use(&ud->memory, ud->box->budget);
  return ane_interp_states_copy(&ud->states, from->states, &ud->memory, &err) ? bind_fail(L, &err) : 1;
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
