/* core.testing: the internals that specs reach; nothing else may use it. One luaL_Reg list a topic. */
#include "binding/bind.h"

#include "base/alloc.h"
#include "quant/quant.h"

/* ---- Allocations -------------------------------------------------------------------------------------------------*/

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

/* ---- Codecs ------------------------------------------------------------------------------------------------------*/

static ane_dtype check_dtype(lua_State *L, int arg) {
  size_t len;
  const char *name = luaL_checklstring(L, arg, &len);
  ane_dtype t = ane_dtype_from_name(name, len);
  luaL_argcheck(L, t != ANE_DTYPE_COUNT, arg, "no such dtype");
  return t;
}

/* decode(dtype, bytes) -> float32 bytes; nil where the type has no decoder */
static int decode(lua_State *L) {
  ane_dtype t = check_dtype(L, 1);
  size_t len;
  const char *bytes = luaL_checklstring(L, 2, &len);
  const struct ane_dtype_info *info = ane_dtype_info(t);
  luaL_argcheck(L, len % info->bytes == 0, 2, "not whole blocks");
  ane_decode_fn fn = ane_decoder(t);
  if (!fn) return lua_pushnil(L), 1;
  uint64_t n = len / info->bytes * info->block;
  luaL_Buffer b;
  float *out = (float *)(void *)luaL_buffinitsize(L, &b, n * sizeof *out);
  if (n) fn(bytes, out, n);
  luaL_pushresultsize(&b, n * sizeof *out);
  return 1;
}

/* encode(dtype, float32 bytes [, float32 bytes of the importance]) -> bytes; nil where the type has no encoder */
static int encode(lua_State *L) {
  ane_dtype t = check_dtype(L, 1);
  size_t len;
  const char *bytes = luaL_checklstring(L, 2, &len);
  const struct ane_dtype_info *info = ane_dtype_info(t);
  uint64_t n = len / sizeof(float);
  luaL_argcheck(L, len % sizeof(float) == 0 && n % info->block == 0, 2, "not whole blocks");
  size_t weighted;
  const char *importance = luaL_optlstring(L, 3, NULL, &weighted);
  luaL_argcheck(L, !importance || weighted == len, 3, "not one weight for each element");
  if (!ane_encoder(t)) return lua_pushnil(L), 1;
  luaL_Buffer b;
  size_t size = (size_t)(n / info->block * info->bytes);
  char *out = luaL_buffinitsize(L, &b, size);
  /* strings of Lua are aligned for any type */
  if (n) (void)!ane_encode(t, (const float *)(const void *)bytes, (const float *)(const void *)importance, out, n);
  luaL_pushresultsize(&b, size);
  return 1;
}

static const luaL_Reg codec_functions[] = {
    {"decode", decode},
    {"encode", encode},
    {NULL, NULL},
};

void bind_testing(lua_State *L) {
  luaL_setfuncs(L, alloc_functions, 0);
  luaL_setfuncs(L, codec_functions, 0);
}
