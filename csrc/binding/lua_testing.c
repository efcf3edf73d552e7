/* core.testing: the internals that specs reach; nothing else may use it. One luaL_Reg list a topic. */
#include "binding/bind.h"

#include "base/alloc.h"

/* alloc_fail_after(n): after n more successful allocations of the core the next one fails, once; nil or -1: never.
 * Returns the number of allocations so far. */
static int alloc_fail_after(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)ane_alloc_fail_after(bind_opt_integer(L, 1, -1, -1, LUA_MAXINTEGER)));
  return 1;
}

/* alloc_count() -> allocations so far, also those that failed; ends a running alloc_fail_after */
static int alloc_count(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)ane_alloc_fail_after(-1));
  return 1;
}

static const luaL_Reg alloc_functions[] = {
    {"alloc_fail_after", alloc_fail_after},
    {"alloc_count", alloc_count},
    {NULL, NULL},
};

void bind_testing(lua_State *L) {
  luaL_setfuncs(L, alloc_functions, 0);
}
