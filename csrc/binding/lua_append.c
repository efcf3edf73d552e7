/* core.append(path): a file that grows by appending; core.read_some: the bytes that a file or pipe has now; core.same_file. */
#include "binding/bind.h"

#include "platform/append.h"
#include "platform/platform.h"

#include <errno.h>
#include <string.h>

#define APPEND_CLASS "ane.append"

static struct ane_append *check_file(lua_State *L) {
  struct ane_append *f = luaL_checkudata(L, 1, APPEND_CLASS);
  if (!f->path) luaL_error(L, "file is closed");
  return f;
}

/* append(path) -> file, created if it does not exist, and locked; or nil, message, code ("state": another process writes it) */
static int append_open(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct ane_append *f = bind_new(L, APPEND_CLASS, sizeof *f, 0);
  struct ane_error err;
  if (ane_append_open(f, path, &err)) return bind_fail(L, &err);
  return 1;
}

/* write(bytes) -> true; or nil, message, code: none of the bytes are in the file then */
static int meth_write(lua_State *L) {
  struct ane_append *f = check_file(L);
  size_t len;
  const char *bytes = luaL_checklstring(L, 2, &len);
  struct ane_error err;
  return bind_done(L, ane_append_write(f, bytes, len, &err), &err);
}

/* truncate(size) -> true; or nil, message, code */
static int meth_truncate(lua_State *L) {
  struct ane_append *f = check_file(L);
  struct ane_error err;
  return bind_done(L, ane_append_truncate(f, (uint64_t)bind_integer(L, 2, 0, LUA_MAXINTEGER), &err), &err);
}

/* sync() -> true: everything is on the disk; or nil, message, code */
static int meth_sync(lua_State *L) {
  struct ane_append *f = check_file(L);
  struct ane_error err;
  return bind_done(L, ane_append_sync(f, &err), &err);
}

/* size() -> bytes */
static int meth_size(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)check_file(L)->size);
  return 1;
}

static int append_close(lua_State *L) {
  ane_append_close(luaL_checkudata(L, 1, APPEND_CLASS));
  return 0;
}

enum { MOST_READ = 1 << 16 };

/* read_some(fd, wait) -> up to 65536 bytes, as many as are available; nil: the end; false: nothing has come within `wait`
 * seconds; nil, message, code. Without `wait` it waits for the first byte. A signal that arrives meanwhile gives false. */
static int read_some(lua_State *L) {
  int fd = (int)bind_integer(L, 1, 0, INT32_MAX);
  double wait = luaL_optnumber(L, 2, -1);
  luaL_argcheck(L, wait == wait, 2, "not a number of seconds");
  char bytes[MOST_READ];
  if (!ane_fd_ready(fd, wait < 0 ? -1 : wait > 1e6 ? 1000000000 : (int)(wait * 1000))) {
    lua_pushboolean(L, 0);
    return 1;
  }
  int64_t n = ane_fd_read(fd, bytes, sizeof bytes);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
    lua_pushboolean(L, 0);
    return 1;
  }
  if (n < 0) {
    struct ane_error err;
    ane_fail(&err, ANE_IO, "standard input: cannot read: %s", strerror(errno));
    return bind_fail(L, &err);
  }
  if (n == 0) return 0;
  lua_pushlstring(L, bytes, (size_t)n);
  return 1;
}

/* same_file(a, b) -> whether both paths lead to the same existing file */
static int same_file(lua_State *L) {
  lua_pushboolean(L, ane_path_same(bind_text(L, 1), bind_text(L, 2)));
  return 1;
}

static const luaL_Reg methods[] = {
    {"close", append_close}, {"write", meth_write}, {"truncate", meth_truncate},
    {"sync", meth_sync},     {"size", meth_size},   {NULL, NULL},
};
static const luaL_Reg meta[] = {{"__gc", append_close}, {"__close", append_close}, {NULL, NULL}};
static const luaL_Reg functions[] = {
    {"append", append_open},
    {"read_some", read_some},
    {"same_file", same_file},
    {NULL, NULL},
};

void bind_append(lua_State *L) {
  bind_class(L, APPEND_CLASS, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
