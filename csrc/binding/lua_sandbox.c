/* core.sandbox(reads, writes): gives up rights of the process. */
#include "binding/bind.h"

#include "platform/sandbox.h"

/* Returns the list of texts at `arg`, which keeps them alive. */
static const char **check_paths(lua_State *L, int arg, size_t *n) {
  *n = bind_length(L, arg, 1 << 20);
  const char **list = lua_newuserdatauv(L, (*n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < *n; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    luaL_checktype(L, -1, LUA_TSTRING); /* the table holds the string */
    list[i] = bind_text(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  return list;
}

/* sandbox(reads, writes) -> true; or nil, message, code. Lists of paths; see ane_sandbox_enter */
static int sandbox(lua_State *L) {
  struct ane_sandbox s = {0};
  struct ane_error err;
  s.reads = check_paths(L, 1, &s.n_reads);
  s.writes = check_paths(L, 2, &s.n_writes);
  return bind_done(L, ane_sandbox_enter(&s, &err), &err);
}

void bind_sandbox(lua_State *L) {
  static const luaL_Reg functions[] = {{"sandbox", sandbox}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
