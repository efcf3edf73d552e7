/* core.testing: internals for specs. Nothing else may use it. Each topic has one luaL_Reg list. */
#include "binding/tensor/bind_tensor.h"
#include "binding/bind.h"

#include "base/alloc.h"
#include "platform/platform.h"
#include "quant/quant.h"
#include "quant/weight_schemes.h"

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

/* Reads the dtype and the bytes of arguments 1 and 2. *n: the number of elements. */
static const char *check_blocks(lua_State *L, ane_dtype *t, uint64_t *n) {
  *t = bind_check_dtype(L, 1);
  size_t len;
  const char *bytes = luaL_checklstring(L, 2, &len);
  const struct ane_dtype_info *info = ane_dtype_info(*t);
  luaL_argcheck(L, len % info->bytes == 0, 2, "not whole blocks");
  *n = len / info->bytes * info->block;
  return bytes;
}

/* decode(dtype, bytes) -> float32 bytes; nil if the type has no decoder */
static int decode(lua_State *L) {
  ane_dtype t;
  uint64_t n;
  const char *bytes = check_blocks(L, &t, &n);
  ane_decode_fn fn = ane_decoder(t);
  if (!fn) return lua_pushnil(L), 1;
  luaL_Buffer b;
  float *out = (float *)(void *)luaL_buffinitsize(L, &b, n * sizeof *out);
  if (n) fn(bytes, out, n);
  luaL_pushresultsize(&b, n * sizeof *out);
  return 1;
}

/* find_not_finite(dtype, bytes) -> index of the first element that is not finite, or -1 */
static int find_not_finite(lua_State *L) {
  ane_dtype t;
  uint64_t n;
  const char *bytes = check_blocks(L, &t, &n);
  lua_pushinteger(L, ane_find_not_finite(t, bytes, n));
  return 1;
}

/* encode(dtype, float32 bytes [, float32 bytes of the importance]) -> bytes; nil if the type has no encoder */
static int encode(lua_State *L) {
  ane_dtype t = bind_check_dtype(L, 1);
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
    {"find_not_finite", find_not_finite},
    {"encode", encode},
    {NULL, NULL},
};

/* ---- Schemes of weights ------------------------------------------------------------------------------------------*/

/* push_weights(weights) -> the result as a table; `values` is what decoding gives. Called in protected mode: it raises if Lua
 * has no memory. */
static int push_weights(lua_State *L) {
  const struct ane_weights *w = lua_touserdata(L, 1);
  size_t n = (size_t)w->rows * (size_t)w->cols;
  lua_newtable(L);
  lua_pushstring(L, ane_weight_spec_name(w->spec));
  lua_setfield(L, -2, "scheme");
  bind_set_bytes(L, "payload", w->payload, (size_t)w->sizes.payload);
  bind_set_bytes(L, "scales", w->scales, 2 * (size_t)w->sizes.scales);
  bind_set_bytes(L, "offsets", w->offsets, 2 * (size_t)w->sizes.offsets);
  bind_set_bytes(L, "lut", w->lut, 2 * (size_t)w->sizes.lut);
  bind_set_number(L, "max_abs", w->error.max_abs);
  bind_set_number(L, "error", w->error.error);
  bind_set_number(L, "signal", w->error.signal);
  luaL_Buffer b;
  float *out = (float *)(void *)luaL_buffinitsize(L, &b, n * sizeof *out);
  ane_weights_decode(w, 0, w->rows, out);
  luaL_pushresultsize(&b, n * sizeof *out);
  lua_setfield(L, -2, "values");
  return 1;
}

/* encode_weights(scheme, dtype, bytes, rows, cols [, threads, importance, from, to, transposed]) -> table of push_weights; or
 * nil, message, code. importance: float32 bytes or nil; transposed: the bytes are [cols, rows]. */
static int encode_weights(lua_State *L) {
  struct ane_weight_spec spec;
  luaL_argcheck(L, ane_weight_spec_from_name(luaL_checkstring(L, 1), &spec), 1, "no such scheme");
  ane_dtype t = bind_check_dtype(L, 2);
  size_t len, weighted;
  const char *bytes = luaL_checklstring(L, 3, &len);
  int64_t rows = bind_integer(L, 4, 1, 1 << 30), cols = bind_integer(L, 5, 1, 1 << 30);
  const float *importance = (const float *)(const void *)luaL_optlstring(L, 7, NULL, &weighted);
  luaL_argcheck(L, !importance || weighted == (size_t)cols * sizeof(float), 7, "not one weight for each column");
  int64_t from = bind_opt_integer(L, 8, 0, 0, 1 << 30), to = bind_opt_integer(L, 9, -1, -1, 1 << 30);
  struct ane_tensor tensor = {t, {2, {rows, cols}}, bytes, len, lua_toboolean(L, 10), rows};
  struct ane_weight_rows src;
  struct ane_weight_fit fit;
  struct ane_weights w = {0};
  struct ane_error err;
  struct ane_pool *pool = NULL;
  ane_status st = ane_pool_create(&pool, (int)bind_opt_integer(L, 6, 1, 1, 64), &err);
  if (!st) st = ane_weight_rows_of(&tensor, &src, &err);
  if (!st) st = ane_weight_fit(&fit, pool, &src, spec, importance, &err);
  if (!st) st = ane_weights_encode(&w, pool, &src, &fit, from, to, importance, &err);
  int raised = LUA_OK;
  if (!st) {
    lua_pushcfunction(L, push_weights);
    lua_pushlightuserdata(L, &w);
    raised = lua_pcall(L, 1, 1, 0);
  }
  ane_weights_free(&w);
  if (pool) ane_pool_destroy(pool);
  if (raised) return lua_error(L);
  return st ? bind_fail(L, &err) : 1;
}

/* weight_scheme(scheme, rows, cols) -> name of the scheme that fits, bytes */
static int weight_scheme(lua_State *L) {
  struct ane_weight_spec spec;
  struct ane_weight_sizes sizes;
  luaL_argcheck(L, ane_weight_spec_from_name(luaL_checkstring(L, 1), &spec), 1, "no such scheme");
  int64_t rows = luaL_checkinteger(L, 2), cols = luaL_checkinteger(L, 3);
  spec = ane_weight_spec_fit(spec, rows, cols);
  lua_pushstring(L, ane_weight_spec_name(spec));
  if (!ane_weight_sizes(spec, rows, cols, &sizes)) return 1;
  lua_pushinteger(L, (lua_Integer)sizes.bytes);
  return 2;
}

static const luaL_Reg weight_functions[] = {
    {"encode_weights", encode_weights},
    {"weight_scheme", weight_scheme},
    {NULL, NULL},
};

void bind_testing(lua_State *L) {
  luaL_setfuncs(L, alloc_functions, 0);
  luaL_setfuncs(L, codec_functions, 0);
  luaL_setfuncs(L, weight_functions, 0);
}
