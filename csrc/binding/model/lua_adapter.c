/* Adapters of a program: program:adapter(parts, hash), and the lists of adapters that sessions use. */
#include "binding/model/bind_model.h"

#include <string.h>

#define ADAPTER_CLASS "ane.adapter"

struct lua_adapter {
  struct ane_adapter *adapter; /* NULL: closed */
  struct bind_program_box *box;
};

/* Returns the float32 bytes of field `name` of the table at the top, which must be n floats; NULL if it is absent. The table
 * keeps them alive. */
static const float *floats_field(lua_State *L, const char *name, lua_Integer n) {
  return bind_opt_floats_option(L, lua_gettop(L), name, n, "a part");
}

static lua_Integer count_field(lua_State *L, const char *name) {
  int ok;
  bind_field(L, -1, name);
  lua_Integer n = lua_tointegerx(L, -1, &ok);
  if (!ok || n < 0 || n > INT32_MAX)
    luaL_error(L, "%s of a part must be an integer in 0 .. %d, but is %s", name, INT32_MAX, luaL_tolstring(L, -1, NULL));
  lua_pop(L, 1);
  return n;
}

/* Reads a part from the table at the top. */
static struct ane_adapter_part check_part(lua_State *L) {
  struct ane_adapter_part p = {.scale = 1};
  bind_field(L, -1, "weight");
  luaL_checktype(L, -1, LUA_TSTRING);
  p.weight = lua_tostring(L, -1);
  lua_pop(L, 1);
  p.embedding = bind_boolean_option(L, lua_gettop(L), "embedding");
  p.rank = count_field(L, "rank"), p.rows = count_field(L, "rows"), p.cols = count_field(L, "cols");
  bind_field(L, -1, "scale");
  p.scale = (float)luaL_checknumber(L, -1);
  lua_pop(L, 1);
  p.a = floats_field(L, "a", p.rank * p.cols);
  p.b = floats_field(L, "b", p.rank * p.rows);
  p.bias = floats_field(L, "bias", p.rows);
  if (p.rank && (!p.a || !p.b)) luaL_error(L, "a part of rank %I has no a or b", (LUAI_UACINT)p.rank);
  return p;
}

/* adapter(parts, hash) -> adapter; or nil, message, code. parts: list of {weight, embedding, rank, scale, rows, cols, a, b,
 * bias}; a [rank, cols] (of an embedding [cols, rank]), b [rows, rank] and bias [rows] as float32 bytes. hash: integer. */
int bind_adapter_new(lua_State *L, int program) {
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_Integer hash = luaL_checkinteger(L, 3), n = (lua_Integer)ANE_MIN(lua_rawlen(L, 2), (size_t)1 << 20);
  struct lua_adapter *ud = bind_new(L, ADAPTER_CLASS, sizeof *ud, 0);
  int self = lua_gettop(L);
  struct ane_adapter_part *parts = lua_newuserdatauv(L, (size_t)ANE_MAX(n, 1) * sizeof *parts, 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    parts[i] = check_part(L);
    lua_pop(L, 1);
  }
  struct bind_program_box *box = bind_check_program(L, program);
  if (ane_adapter_create(&ud->adapter, box->program, parts, (int32_t)n, (uint64_t)hash, &err)) return bind_fail(L, &err);
  ud->box = box;
  box->refs++;
  lua_pushvalue(L, self);
  return 1;
}

int bind_adapters(lua_State *L, int arg, struct ane_adapter *list[ANE_SESSION_ADAPTERS], float scales[ANE_SESSION_ADAPTERS]) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Unsigned n = lua_rawlen(L, arg);
  luaL_argcheck(L, n <= ANE_SESSION_ADAPTERS, arg, "too many adapters");
  for (lua_Unsigned i = 0; i < n; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    list[i] = ((struct lua_adapter *)luaL_checkudata(L, -2, ADAPTER_CLASS))->adapter;
    if (!list[i]) return luaL_error(L, "adapter is closed");
    scales[i] = (float)luaL_optnumber(L, -1, 1);
    lua_pop(L, 3);
  }
  return (int)n;
}

static int meth_close(lua_State *L) {
  struct lua_adapter *ud = luaL_checkudata(L, 1, ADAPTER_CLASS);
  ane_adapter_release(ud->adapter);
  if (ud->adapter) bind_program_release(ud->box);
  *ud = (struct lua_adapter){0};
  return 0;
}

/* bytes() -> bytes of memory */
static int meth_bytes(lua_State *L) {
  const struct lua_adapter *ud = luaL_checkudata(L, 1, ADAPTER_CLASS);
  lua_pushinteger(L, ud->adapter ? (lua_Integer)ane_adapter_bytes(ud->adapter) : 0);
  return 1;
}

void bind_adapter(lua_State *L) {
  static const luaL_Reg methods[] = {{"close", meth_close}, {"bytes", meth_bytes}, {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {NULL, NULL}};
  bind_class(L, ADAPTER_CLASS, methods, meta);
}
