/* core.save_session, core.load_session: files of saved sessions, for engines whose sessions are Lua. */
#include "binding/model/bind_saved.h"
#include "binding/tensor/bind_tensor.h"

#include "platform/map_guard.h"

#include <string.h>

#define SAVED_CLASS "ane.saved"

ane_want bind_want(lua_State *L, int arg) {
  static const char *const names[] = {"none", "last", "all", "argmax", "best", NULL};
  static const ane_want wants[] = {ANE_WANT_NONE, ANE_WANT_LAST, ANE_WANT_ALL, ANE_WANT_ARGMAX, ANE_WANT_BEST};
  return wants[luaL_checkoption(L, arg, "last", names)];
}

static int saved_gc(lua_State *L) {
  ane_saved_close(luaL_checkudata(L, 1, SAVED_CLASS));
  return 0;
}

static struct ane_saved_key check_key(lua_State *L, int arg) {
  return (struct ane_saved_key){luaL_checkstring(L, arg), (uint64_t)luaL_checkinteger(L, arg + 1)};
}

/* Returns the contents of the part on top of the stack: a text, a tensor's fp32, or the ids that bind_ids makes of a list. */
static const void *part_bytes(lua_State *L, size_t *bytes) {
  const struct bind_tensor *t = luaL_testudata(L, -1, BIND_TENSOR);
  if (t) return *bytes = (size_t)t->count * sizeof(float), t->data;
  if (lua_type(L, -1) == LUA_TSTRING) return lua_tolstring(L, -1, bytes);
  size_t n;
  const int32_t *ids = bind_ids(L, lua_gettop(L), &n);
  *bytes = n * sizeof *ids;
  return ids;
}

/* A part of a file, ready to be written. */
struct part {
  const char *name;
  const void *data;
  size_t bytes;
};

/* save_session(path, engine, model, parts) -> true; or nil, message, code. model: the fingerprint. parts: list of {name, text,
 * tensor or ids}. */
static int save_session(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct ane_saved_key key = check_key(L, 2);
  struct ane_saved_writer w;
  struct ane_error err;
  luaL_checktype(L, 4, LUA_TTABLE);
  size_t n = (size_t)lua_rawlen(L, 4);
  luaL_argcheck(L, n <= 100000, 4, "too many parts");
  struct part *list = lua_newuserdatauv(L, (n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < n;
       i++) { /* everything that may raise happens before the file is open; the table keeps names, texts and tensors alive */
    luaL_argcheck(L, lua_rawgeti(L, 4, (lua_Integer)i + 1) == LUA_TTABLE, 4, "each part is a list {name, data}");
    luaL_checkstack(L, 4, "parts");
    luaL_argcheck(L, lua_rawgeti(L, -1, 1) == LUA_TSTRING, 4, "each part has a name");
    list[i].name = lua_tostring(L, -1);
    lua_rawgeti(L, -2, 2);
    int top = lua_gettop(L);
    list[i].data = part_bytes(L, &list[i].bytes);
    if (lua_gettop(L) > top) lua_rotate(L, -4, 1); /* the ids' memory stays on the stack */
    lua_pop(L, 3);
  }
  ane_saved_create(&w, path, &key, &err);
  for (size_t i = 0; i < n; i++) {
    ane_saved_begin_part(&w, list[i].name, list[i].bytes);
    ane_saved_write(&w, list[i].data, list[i].bytes);
  }
  return bind_done(L, ane_saved_commit(&w), &err);
}

/* load_session(path, engine, model, n_ids, context) -> ids, table of parts (name -> bytes); or nil, message, code. Refuses what
 * ane_saved_open and ane_saved_ids refuse. */
static int load_session(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct ane_saved_key key = check_key(L, 2);
  int64_t n_ids = luaL_checkinteger(L, 4), context = luaL_checkinteger(L, 5), length;
  const uint8_t *ids;
  struct ane_error err;
  struct ane_saved *s = bind_new(L, SAVED_CLASS, sizeof *s, 0);
  if (ane_saved_open(s, path, &key, &err) || ane_saved_ids(s, n_ids, context, &ids, &length, &err)) return bind_fail(L, &err);
  lua_createtable(L, (int)length, 0);
  for (int64_t i = 0; i < length; i++) lua_pushinteger(L, ane_load_u32(ids + 4 * i)), lua_rawseti(L, -2, i + 1);
  lua_newtable(L);
  struct ane_saved_part part;
  for (size_t at = 0; ane_saved_next(s, &at, &part);) {
    lua_pushlstring(L, part.name, part.name_bytes);
    lua_pushlstring(L, (const char *)part.data, (size_t)part.bytes);
    lua_rawset(L, -3);
  }
  ane_status st = ane_map_check(&s->map, &err);
  ane_saved_close(s);
  return st ? bind_fail(L, &err) : 2;
}

void bind_saved(lua_State *L) {
  static const luaL_Reg none[] = {{NULL, NULL}}, saved_meta[] = {{"__gc", saved_gc}, {NULL, NULL}};
  static const luaL_Reg functions[] = {{"save_session", save_session}, {"load_session", load_session}, {NULL, NULL}};
  bind_class(L, SAVED_CLASS, none, saved_meta);
  luaL_setfuncs(L, functions, 0);
}
