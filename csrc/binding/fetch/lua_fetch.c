/* Class "ane.fetch" over csrc/fetch: an exchange over HTTP; and what a cache of files needs of the system. lua/ane/hub is what
 * programs see. */
#include "binding/bind.h"
#include "fetch/fetch.h"

#include <limits.h>
#include <time.h>

#define FETCH "ane.fetch"

struct lua_fetch {
  struct ane_fetch *f;
};

static struct ane_fetch *check(lua_State *L) {
  struct lua_fetch *ud = luaL_checkudata(L, 1, FETCH);
  if (!ud->f) luaL_error(L, "exchange is closed");
  return ud->f;
}

static int fetch_close(lua_State *L) {
  struct lua_fetch *ud = luaL_checkudata(L, 1, FETCH);
  ane_fetch_end(ud->f);
  ud->f = NULL;
  return 0;
}

/* core.fetch(url, {headers = list, path =, offset =, most =, connect_s =, stall_s =}) -> exchange; or nil, message, code */
static int fetch_begin(lua_State *L) {
  struct ane_fetch_request r = {.url = luaL_checkstring(L, 1)};
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  r.path = bind_opt_text_option(L, 2, "path");
  r.offset = (uint64_t)bind_opt_integer_option(L, 2, "offset", 0, 0, INT64_MAX);
  r.most = (size_t)bind_opt_integer_option(L, 2, "most", 1 << 20, 0, 1 << 30);
  r.connect_ms = (uint32_t)(1000 * bind_opt_number_option(L, 2, "connect_s", 30, 0.001, 3600));
  r.stall_ms = (uint32_t)(1000 * bind_opt_number_option(L, 2, "stall_s", 60, 0.001, 3600));
  lua_getfield(L, 2, "headers");
  r.n_headers = lua_istable(L, -1) ? bind_length(L, lua_gettop(L), 1000) : 0;
  const char **headers = lua_newuserdatauv(L, (r.n_headers + 1) * sizeof *headers, 0);
  for (size_t i = 0; i < r.n_headers; i++) {
    lua_rawgeti(L, 3, (lua_Integer)i + 1);
    size_t n;
    luaL_checktype(L, -1, LUA_TSTRING);
    headers[i] = lua_tolstring(L, -1, &n); /* the table holds the string */
    for (size_t k = 0; k < n; k++)
      if ((unsigned char)headers[i][k] < ' ') luaL_error(L, "header %d has a control character", (int)i + 1);
    lua_pop(L, 1);
  }
  r.headers = headers;
  struct lua_fetch *ud = bind_new(L, FETCH, sizeof *ud, 0);
  struct ane_error err;
  return ane_fetch_begin(&ud->f, &r, &err) ? bind_fail(L, &err) : 1;
}

/* core.fetch_available() -> true; or nil, message, code */
static int fetch_available(lua_State *L) {
  struct ane_error err;
  return bind_done(L, ane_fetch_available(&err) ? ANE_OK : ANE_UNSUPPORTED, &err);
}

/* exchange:step(seconds) -> whether the response is complete; or nil, message, code */
static int fetch_step(lua_State *L) {
  struct ane_fetch *f = check(L);
  lua_Number seconds = luaL_optnumber(L, 2, 0.1);
  struct ane_error err;
  bool done;
  if (ane_fetch_step(f, seconds > 0 ? (uint32_t)(ANE_MIN(seconds, 60) * 1000) : 0, &done, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, done);
  return 1;
}

/* exchange:status() -> 200, ...; exchange:received() -> bytes; exchange:headers(), exchange:body() -> texts */
static int fetch_status(lua_State *L) {
  lua_pushinteger(L, ane_fetch_status(check(L)));
  return 1;
}
static int fetch_received(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)ane_fetch_received(check(L)));
  return 1;
}
static int fetch_headers(lua_State *L) {
  size_t n;
  const char *s = ane_fetch_headers(check(L), &n);
  lua_pushlstring(L, s, n);
  return 1;
}
static int fetch_body(lua_State *L) {
  size_t n;
  const char *s = ane_fetch_body(check(L), &n);
  lua_pushlstring(L, s, n);
  return 1;
}

/* exchange:sync() -> true; or nil, message, code */
static int fetch_sync(lua_State *L) {
  struct ane_error err;
  return bind_done(L, ane_fetch_sync(check(L), &err), &err);
}

/* core.make_folder(path) -> true; or nil, message, code. Makes the missing folders above it too */
static int make_folder(lua_State *L) {
  struct ane_error err;
  return bind_done(L, ane_cache_folder(luaL_checkstring(L, 1), &err), &err);
}

/* core.make_link(target, path) -> true; or nil, message, code. Makes `path` a symbolic link to `target`, replacing what it was */
static int make_link(lua_State *L) {
  struct ane_error err;
  return bind_done(L, ane_cache_link(luaL_checkstring(L, 1), luaL_checkstring(L, 2), &err), &err);
}

/* core.link_target(path) -> where the symbolic link leads; or nil if the path is not a link */
static int link_target(lua_State *L) {
  char target[PATH_MAX];
  if (!ane_cache_link_target(luaL_checkstring(L, 1), target, sizeof target)) return 0;
  lua_pushstring(L, target);
  return 1;
}

/* core.move_file(from, to) -> true; or nil, message, code. Renames a file, durably: also after a loss of power */
static int move_file(lua_State *L) {
  struct ane_error err;
  return bind_done(L, ane_cache_move(luaL_checkstring(L, 1), luaL_checkstring(L, 2), &err), &err);
}

/* core.file_size(path) -> bytes; or nil if it is not a regular file. Links are followed */
static int file_size(lua_State *L) {
  uint64_t n;
  if (!ane_cache_size(luaL_checkstring(L, 1), &n)) return 0;
  lua_pushinteger(L, (lua_Integer)n);
  return 1;
}

/* core.sleep(seconds): returns after this time, or earlier if a signal arrives */
static int sleep_for(lua_State *L) {
  lua_Number seconds = luaL_checknumber(L, 1);
  if (!(seconds > 0)) return 0;
  seconds = ANE_MIN(seconds, 3600);
  struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (lua_Number)(time_t)seconds) * 1e9)};
  nanosleep(&t, NULL);
  return 0;
}

static const luaL_Reg methods[] = {
    {"step", fetch_step}, {"status", fetch_status}, {"received", fetch_received}, {"headers", fetch_headers},
    {"body", fetch_body}, {"sync", fetch_sync},     {"close", fetch_close},       {NULL, NULL},
};
static const luaL_Reg meta[] = {{"__gc", fetch_close}, {"__close", fetch_close}, {NULL, NULL}};
static const luaL_Reg functions[] = {
    {"fetch", fetch_begin},
    {"fetch_available", fetch_available},
    {"make_folder", make_folder},
    {"make_link", make_link},
    {"link_target", link_target},
    {"move_file", move_file},
    {"file_size", file_size},
    {"sleep", sleep_for},
    {NULL, NULL},
};

void bind_fetch(lua_State *L) {
  bind_class(L, FETCH, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
