/* Read before each file by clang-tidy only, which sees one file at a time: what it would have to know of others. */
#include "base/status.h"

#include <lauxlib.h>

/* Fails with the code it is given. */
#define ane_fail(err, code, ...) ((void)ane_fail(err, code, __VA_ARGS__), (code))

/* Never come back. */
#define NEVER __attribute__((noreturn))
NEVER int(luaL_error)(lua_State *L, const char *fmt, ...);
NEVER int(luaL_argerror)(lua_State *L, int arg, const char *text);
NEVER int(luaL_typeerror)(lua_State *L, int arg, const char *name);
NEVER int(lua_error)(lua_State *L);
#undef NEVER
