/* core.folder(path): a folder that is written over several runs and then put in place as a whole; core.sha256 and core.hash64. */
#include "binding/bind.h"

#include "base/hash64.h"
#include "base/sha256.h"
#include "platform/map_guard.h"
#include "platform/platform.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FOLDER_CLASS "ane.folder"
#define HASHED_CLASS "ane.hashed"

struct lua_folder {
  struct ane_folder_writer w; /* zeroed: closed */
};

static struct lua_folder *check_folder(lua_State *L) {
  struct lua_folder *ud = luaL_checkudata(L, 1, FOLDER_CLASS);
  if (!ud->w.temp) luaL_error(L, "folder is closed");
  return ud;
}

/* folder(path) -> folder: PATH.partial with what an earlier run has left in it, locked; or nil, message, code ("state": another
 * one is writing) */
static int folder_open(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct lua_folder *ud = bind_new(L, FOLDER_CLASS, sizeof *ud, 0);
  struct ane_error err;
  if (ane_folder_resume(&ud->w, path, &err)) return bind_fail(L, &err);
  return 1;
}

/* leave(): closes the folder. What was written stays for the next run; an empty folder is removed. */
static int meth_leave(lua_State *L) {
  struct lua_folder *ud = luaL_checkudata(L, 1, FOLDER_CLASS);
  ane_folder_leave(&ud->w);
  ud->w.temp = NULL;
  return 0;
}

static int done(lua_State *L, ane_status st, const struct ane_error *err) {
  if (st) return bind_fail(L, err);
  lua_pushboolean(L, 1);
  return 1;
}

/* commit() -> true; or nil, message, code. Puts the folder in its place; what was there is removed */
static int meth_commit(lua_State *L) {
  struct ane_error err;
  return done(L, ane_folder_commit(&check_folder(L)->w, &err), &err);
}

static int meth_abandon(lua_State *L) {
  struct lua_folder *ud = luaL_checkudata(L, 1, FOLDER_CLASS);
  if (ud->w.temp) ane_folder_abandon(&ud->w);
  return 0;
}

/* remove(name) -> true; or nil, message, code */
static int meth_remove(lua_State *L) {
  struct ane_error err;
  return done(L, ane_folder_remove(&check_folder(L)->w, bind_text(L, 2), &err), &err);
}

/* make(name) -> true; or nil, message, code. Makes a folder inside */
static int meth_make(lua_State *L) {
  struct ane_error err;
  return done(L, ane_folder_make(&check_folder(L)->w, bind_text(L, 2), &err), &err);
}

static int meth_path(lua_State *L) {
  lua_pushstring(L, check_folder(L)->w.temp);
  return 1;
}

static int map_close(lua_State *L) {
  ane_map_close(luaL_checkudata(L, 1, HASHED_CLASS));
  return 0;
}

/* Pages that have been hashed are given back in pieces of this size. */
enum { PIECE = 8 << 20 };

static void hash_map(const struct ane_map *m, char out[ANE_SHA256_TEXT]) {
  struct ane_sha256 s;
  ane_sha256_begin(&s);
  for (uint64_t at = 0; at < m->size; at += PIECE) {
    uint64_t n = ANE_MIN(m->size - at, (uint64_t)PIECE);
    ane_sha256_add(&s, m->data + at, (size_t)n);
    ane_map_drop(m, at, n);
  }
  ane_sha256_end(&s, out);
}

/* sha256_file(path) -> hexadecimal digits, bytes; or nil, message, code */
static int sha256_file(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct ane_map *map = bind_new(L, HASHED_CLASS, sizeof *map, 0);
  struct ane_error err;
  char out[ANE_SHA256_TEXT];
  if (ane_map_open(map, path, &err)) return bind_fail(L, &err);
  hash_map(map, out);
  if (ane_map_check(map, &err)) return ane_map_close(map), bind_fail(L, &err);
  lua_pushstring(L, out);
  lua_pushinteger(L, (lua_Integer)map->size);
  ane_map_close(map);
  return 2;
}

/* sha256(bytes) -> hexadecimal digits */
static int sha256(lua_State *L) {
  size_t len;
  const char *bytes = luaL_checklstring(L, 1, &len);
  struct ane_sha256 s;
  char out[ANE_SHA256_TEXT];
  ane_sha256_begin(&s);
  ane_sha256_add(&s, bytes, len);
  ane_sha256_end(&s, out);
  lua_pushstring(L, out);
  return 1;
}

/* hash64(bytes) -> 16 hexadecimal digits: the hash of base/hash64.h, about 20 times as fast as sha256. It detects damage, not
 * forgery */
static int hash64(lua_State *L) {
  size_t len;
  const char *bytes = luaL_checklstring(L, 1, &len);
  struct ane_hash64 h = {0};
  char out[17];
  ane_hash64_add(&h, bytes, len);
  snprintf(out, sizeof out, "%016" PRIx64, ane_hash64_end(&h));
  lua_pushstring(L, out);
  return 1;
}

void bind_folder(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"path", meth_path},       {"remove", meth_remove}, {"make", meth_make}, {"commit", meth_commit},
      {"abandon", meth_abandon}, {"leave", meth_leave},   {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_leave}, {"__close", meth_leave}, {NULL, NULL}};
  static const luaL_Reg none[] = {{NULL, NULL}}, map_meta[] = {{"__gc", map_close}, {"__close", map_close}, {NULL, NULL}};
  static const luaL_Reg functions[] = {
      {"folder", folder_open}, {"sha256", sha256}, {"sha256_file", sha256_file}, {"hash64", hash64}, {NULL, NULL}};
  bind_class(L, FOLDER_CLASS, methods, meta);
  bind_class(L, HASHED_CLASS, none, map_meta);
  luaL_setfuncs(L, functions, 0);
}
