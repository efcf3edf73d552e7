/* core.embedding(beside, location, rows, width): a mapped file of fp16 rows, decoded on access. */
#include "binding/tensor/bind_tensor.h"

#include "base/bytes.h"
#include "platform/platform.h"
#include "tensor/half.h"

#include <inttypes.h>

#define EMBEDDING_CLASS "ane.embedding"

struct lua_embedding {
  struct ane_map map;
  int64_t rows, width; /* 0: closed */
};

/* embedding(beside, location, rows, width) -> the file `location` in the folder of the file `beside`, which it must not leave; or
 * nil, message, code */
static int embedding_open(lua_State *L) {
  const char *beside = luaL_checkstring(L, 1), *location = luaL_checkstring(L, 2);
  int64_t rows = bind_integer(L, 3, 1, INT32_MAX), width = bind_integer(L, 4, 1, INT32_MAX);
  struct lua_embedding *ud = bind_new(L, EMBEDDING_CLASS, sizeof *ud, 0);
  struct ane_error err;
  if (ane_map_open_beside(&ud->map, beside, location, &err)) return bind_fail(L, &err);
  uint64_t want = (uint64_t)rows * (uint64_t)width * 2;
  if (ud->map.size != want) {
    ane_fail(&err, ANE_FORMAT, "%.200s must have %" PRIu64 " bytes for %" PRId64 " rows of %" PRId64 " numbers, but has %" PRIu64,
             location, want, rows, width, ud->map.size);
    return bind_fail(L, &err);
  }
  ud->rows = rows, ud->width = width;
  return 1;
}

static int embedding_close(lua_State *L) {
  struct lua_embedding *ud = luaL_checkudata(L, 1, EMBEDDING_CLASS);
  ane_map_close(&ud->map);
  ud->rows = ud->width = 0;
  return 0;
}

/* gather(ids, columns, scale) -> ane.tensor [1, width, columns, 1]: column t is row ids[t]; zeros after the last id */
static int embedding_gather(lua_State *L) {
  const struct lua_embedding *ud = luaL_checkudata(L, 1, EMBEDDING_CLASS);
  size_t n;
  const int32_t *ids = bind_ids(L, 2, &n);
  int64_t columns = bind_opt_integer(L, 3, (lua_Integer)n, (lua_Integer)n, INT32_MAX);
  float scale = (float)luaL_optnumber(L, 4, 1);
  if (!ud->rows) return luaL_error(L, "embedding is closed");
  for (size_t t = 0; t < n; t++)
    if (ids[t] >= ud->rows) return luaL_error(L, "id %d is not in 0 .. %I", (int)ids[t], (LUAI_UACINT)(ud->rows - 1));
  struct ane_shape shape = {4, {1, ud->width, columns, 1}};
  float *out = bind_tensor_new(L, &shape);
  for (size_t t = 0; t < n; t++) {
    const uint8_t *row = ud->map.data + (size_t)ids[t] * (size_t)ud->width * 2;
    for (int64_t c = 0; c < ud->width; c++) out[c * columns + (int64_t)t] = ane_f16_f32(ane_load_u16(row + 2 * c)) * scale;
  }
  return 1;
}

void bind_embedding(lua_State *L) {
  static const luaL_Reg methods[] = {{"gather", embedding_gather}, {"close", embedding_close}, {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", embedding_close}, {"__close", embedding_close}, {NULL, NULL}};
  bind_class(L, EMBEDDING_CLASS, methods, meta);
  lua_pushcfunction(L, embedding_open);
  lua_setfield(L, -2, "embedding");
}
