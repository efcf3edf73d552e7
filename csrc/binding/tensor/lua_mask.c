/* core.mask: sets of token ids. Matchers fill them, and feeds search the best id among them. */
#include "binding/tensor/bind_mask.h"

#include <string.h>

#define MASK "ane.mask"

struct bind_mask *bind_check_mask(lua_State *L, int arg) {
  return luaL_checkudata(L, arg, MASK);
}

/* core.mask(n [, ids]) -> mask of ids 0 .. n - 1, with the ids of the list; default: none */
static int mask_make(lua_State *L) {
  uint32_t n = (uint32_t)bind_integer(L, 1, 1, INT32_MAX), words = (n + 31) / 32;
  size_t count = 0;
  lua_settop(L, 2);
  const int32_t *ids = lua_isnil(L, 2) ? NULL : bind_ids(L, 2, &count);
  struct bind_mask *m = bind_new(L, MASK, sizeof *m + words * sizeof *m->bits, 0);
  m->n = n, m->words = words;
  for (size_t i = 0; i < count; i++) { /* analyser: count is 0 where ids is NULL. */
    if ((uint32_t)ids[i] >= n) return luaL_error(L, "id %d is not in 0 .. %d", (int)ids[i], (int)n - 1);
    m->bits[ids[i] / 32] |= (uint32_t)1 << (ids[i] % 32);
  }
  return 1;
}

/* mask:has(id) -> whether the id is in it */
static int mask_has(lua_State *L) {
  const struct bind_mask *m = bind_check_mask(L, 1);
  lua_Integer id = bind_integer(L, 2, 0, (lua_Integer)m->n - 1);
  lua_pushboolean(L, m->bits[id / 32] >> (id % 32) & 1);
  return 1;
}

void bind_mask(lua_State *L) {
  static const luaL_Reg methods[] = {{"has", mask_has}, {NULL, NULL}}, meta[] = {{NULL, NULL}};
  static const luaL_Reg functions[] = {{"mask", mask_make}, {NULL, NULL}};
  bind_class(L, MASK, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
