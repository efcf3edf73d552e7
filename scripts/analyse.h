/* What clang's analyser is told before each file but csrc/base/status.c: which functions of Lua never return, and that a function which
 * reports a failure returns its code, not ANE_OK. The analyser sees one file at a time. */
#include <lauxlib.h>
#include <lua.h>

#include "base/status.h"

int lua_error(lua_State *L) __attribute__((noreturn));
int luaL_error(lua_State *L, const char *fmt, ...) __attribute__((noreturn));
int luaL_argerror(lua_State *L, int arg, const char *m) __attribute__((noreturn));
int luaL_typeerror(lua_State *L, int arg, const char *m) __attribute__((noreturn));
#define ane_fail(err, code, ...) ((ane_fail)(err, code, __VA_ARGS__), (code))
#define ane_fail_in(err, code, ...) ((ane_fail_in)(err, code, __VA_ARGS__), (code))
