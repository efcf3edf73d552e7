/* core.coreml(options): a function of a package run by Core ML itself, with the methods of the programs of lua_predict.c.
 * It was never run on hardware. On systems other than macOS, coreml() is an error. */
#include "binding/tensor/bind_dyn.h"

#include "coreml/coreml.h"
#include "platform/platform.h"

#define PROGRAM_CLASS "ane.coreml_program"
#define STATE_CLASS "ane.coreml_state"

/* A program. Its user value is the path of the package. */
struct lua_coreml {
  struct ane_coreml *program; /* NULL: closed */
  struct ane_dyn_memory memory;
};

/* A state. Its user value is the program, which must outlive it. */
struct lua_coreml_state {
  struct ane_coreml_states *states; /* NULL: closed */
  struct lua_coreml *owner;
};

static struct lua_coreml *check_program(lua_State *L, int arg) {
  struct lua_coreml *ud = luaL_checkudata(L, arg, PROGRAM_CLASS);
  if (!ud->program) luaL_error(L, "program is closed");
  return ud;
}

static struct lua_coreml_state *check_state(lua_State *L, int arg) {
  struct lua_coreml_state *ud = luaL_checkudata(L, arg, STATE_CLASS);
  if (!ud->states || !ud->owner->program) luaL_error(L, "state is closed");
  return ud;
}

/* coreml{path, function, compiled (where the compiled package is kept), anywhere (true: convolutions need not be on the Neural
 * Engine)} -> program; or nil, message, code */
static int coreml(lua_State *L) {
  struct ane_coreml_options o = {0};
  struct ane_error err;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  o.path = bind_opt_text_option(L, 1, "path");
  luaL_argcheck(L, o.path, 1, "path is missing");
  o.function = bind_opt_text_option(L, 1, "function");
  o.compiled = bind_opt_text_option(L, 1, "compiled");
  o.anywhere = bind_boolean_option(L, 1, "anywhere");
  struct lua_coreml *ud = bind_new(L, PROGRAM_CLASS, sizeof *ud, 1);
  lua_pushstring(L, o.path);
  lua_setiuservalue(L, -2, 1);
  ud->memory.limit = ane_memory_available();
  if (ane_coreml_create(&ud->program, &o, &err)) return bind_fail(L, &err);
  return 1;
}

static int coreml_available(lua_State *L) {
  lua_pushboolean(L, ane_coreml_available());
  return 1;
}

static int program_close(lua_State *L) {
  struct lua_coreml *ud = luaL_checkudata(L, 1, PROGRAM_CLASS);
  ane_coreml_destroy(ud->program);
  ud->program = NULL;
  ane_dyn_memory_free(&ud->memory);
  return 0;
}

static int program_info(lua_State *L) {
  struct ane_coreml_info i = ane_coreml_info(check_program(L, 1)->program);
  lua_createtable(L, 0, 4);
  bind_set_integer(L, "operations", i.n_operations);
  bind_set_integer(L, "on_engine", i.on_engine);
  bind_set_integer(L, "convolutions", i.n_convs);
  bind_set_integer(L, "convolutions_on_engine", i.convs_on_engine);
  return 1;
}

/* Is the state at `state` of this program, or of another function of its package? */
static bool same_package(lua_State *L, int program, int state) {
  lua_getiuservalue(L, program, 1);
  lua_getiuservalue(L, state, 1); /* the program that made it */
  lua_getiuservalue(L, -1, 1);
  bool same = lua_rawequal(L, -1, -3);
  lua_pop(L, 3);
  return same;
}

static const char *input_name(const void *program, int32_t i) { return ane_coreml_input(program, i)->name; }
static const char *output_name(const void *program, int32_t i) { return ane_coreml_output(program, i)->name; }

/* run(inputs, state or nil) -> outputs by name; or nil, message, code */
static int program_run(lua_State *L) {
  struct lua_coreml *ud = check_program(L, 1);
  struct lua_coreml_state *s = lua_isnoneornil(L, 3) ? NULL : check_state(L, 3);
  struct ane_coreml_info info = ane_coreml_info(ud->program);
  struct bind_names inputs = {input_name, ud->program, info.n_inputs}, outputs = {output_name, ud->program, info.n_outputs};
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  if (s && !same_package(L, 1, 3)) return luaL_error(L, "the state belongs to another package");
  struct ane_dyn *in = bind_dyn_inputs(L, 2, &inputs), *out = bind_dyn_list(L, outputs.n);
  ane_status st = ane_coreml_run(ud->program, &ud->memory, s ? s->states : NULL, in, out, &err);
  return bind_dyn_results(L, st, &err, &outputs, out, &ud->memory);
}

/* ---- States --------------------------------------------------------------------------------------------------------*/

/* Pushes a closed state of the program at `arg`. */
static struct lua_coreml_state *new_state(lua_State *L, struct lua_coreml *owner, int arg) {
  struct lua_coreml_state *ud = bind_new(L, STATE_CLASS, sizeof *ud, 1);
  ud->owner = owner;
  lua_pushvalue(L, arg);
  lua_setiuservalue(L, -2, 1);
  return ud;
}

/* state() -> zeros; or nil, message, code */
static int program_state(lua_State *L) {
  struct lua_coreml *owner = check_program(L, 1);
  struct ane_error err;
  struct lua_coreml_state *ud = new_state(L, owner, 1);
  return ane_coreml_states_create(&ud->states, owner->program, &err) ? bind_fail(L, &err) : 1;
}

static int state_close(lua_State *L) {
  struct lua_coreml_state *ud = luaL_checkudata(L, 1, STATE_CLASS);
  ane_coreml_states_destroy(ud->states);
  ud->states = NULL;
  return 0;
}

static int state_reset(lua_State *L) {
  struct ane_error err;
  if (ane_coreml_states_reset(check_state(L, 1)->states, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static const char *name_of(const void *states, int32_t i) { return ane_coreml_states_name(states, i); }

static struct bind_names names_of(const struct ane_coreml_states *s) {
  return (struct bind_names){name_of, s, ane_coreml_states_count(s)};
}

static int state_names(lua_State *L) {
  struct bind_names names = names_of(check_state(L, 1)->states);
  bind_names_push(L, &names);
  return 1;
}

static int32_t state_index(lua_State *L, const struct ane_coreml_states *s) {
  struct bind_names names = names_of(s);
  return bind_names_index(L, 2, &names, "state");
}

/* (struct ane_dyn *) -> value */
static int push_dyn(lua_State *L) {
  bind_dyn_push(L, lua_touserdata(L, 1));
  return 1;
}

/* get(name) -> ane.tensor, a copy; or nil, message, code */
static int state_get(lua_State *L) {
  struct lua_coreml_state *s = check_state(L, 1);
  struct ane_dyn t = {0};
  struct ane_error err;
  ane_status st = ane_coreml_states_read(s->states, state_index(L, s->states), &s->owner->memory, &t, &err);
  int failed = LUA_OK;
  if (!st) {
    lua_pushcfunction(L, push_dyn);
    lua_pushlightuserdata(L, &t);
    failed = lua_pcall(L, 1, 1, 0);
  }
  ane_dyn_drop(&s->owner->memory, &t);
  if (failed) return lua_error(L);
  return st ? bind_fail(L, &err) : 1;
}

/* set(name, ane.tensor of the same shape) -> true; or nil, message, code */
static int state_set(lua_State *L) {
  struct ane_coreml_states *s = check_state(L, 1)->states;
  int32_t i = state_index(L, s);
  struct ane_dyn t;
  struct ane_error err;
  lua_settop(L, 3);
  bind_dyn_read(L, ane_coreml_states_name(s, i), &t);
  if (ane_coreml_states_write(s, i, &t, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

/* copy() -> a second state with the same contents; or nil, message, code */
static int state_copy(lua_State *L) {
  struct lua_coreml_state *from = check_state(L, 1);
  struct ane_error err;
  lua_getiuservalue(L, 1, 1);
  struct lua_coreml_state *ud = new_state(L, from->owner, lua_gettop(L));
  if (ane_coreml_states_create(&ud->states, from->owner->program, &err) || ane_coreml_states_copy(ud->states, from->states, &err))
    return bind_fail(L, &err);
  return 1;
}

void bind_coreml(lua_State *L) {
  static const luaL_Reg functions[] = {{"coreml", coreml}, {"coreml_available", coreml_available}, {NULL, NULL}};
  static const luaL_Reg program[] = {
      {"run", program_run}, {"info", program_info}, {"state", program_state}, {"close", program_close}, {NULL, NULL}};
  static const luaL_Reg program_meta[] = {{"__gc", program_close}, {"__close", program_close}, {NULL, NULL}};
  static const luaL_Reg state[] = {{"reset", state_reset}, {"names", state_names}, {"get", state_get}, {"set", state_set},
                                   {"copy", state_copy},   {"close", state_close}, {NULL, NULL}};
  static const luaL_Reg state_meta[] = {{"__gc", state_close}, {"__close", state_close}, {NULL, NULL}};
  bind_class(L, PROGRAM_CLASS, program, program_meta);
  bind_class(L, STATE_CLASS, state, state_meta);
  luaL_setfuncs(L, functions, 0);
}
