/* core.create(path): a file that is written in pieces and appears when it is complete. */
#include "binding/bind.h"

#include "platform/platform.h"

#define WRITER_CLASS "ane.writer"

static struct ane_file_writer *check_writer(lua_State *L) {
  struct ane_file_writer *w = luaL_checkudata(L, 1, WRITER_CLASS);
  if (!w->temp) luaL_error(L, "file is closed");
  return w;
}

/* create(path) -> writer; or nil, message, code. Until commit() a file at `path` stays as it is. */
static int create(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct ane_file_writer *w = bind_new(L, WRITER_CLASS, sizeof *w, 0);
  struct ane_error err;
  return ane_file_create(w, path, &err) ? bind_fail(L, &err) : 1;
}

/* write(bytes) -> true; or nil, message, code: part of them may be written then, and the writer can only be closed */
static int meth_write(lua_State *L) {
  struct ane_file_writer *w = check_writer(L);
  size_t len;
  const char *bytes = luaL_checklstring(L, 2, &len);
  struct ane_error err;
  return bind_done(L, ane_file_write(w, bytes, len, &err), &err);
}

/* commit() -> true: the file is at its path and on the disk; or nil, message, code. The writer is closed in both cases. */
static int meth_commit(lua_State *L) {
  struct ane_error err;
  return bind_done(L, ane_file_commit(check_writer(L), &err), &err);
}

/* close(): removes what was written, unless it was committed */
static int writer_close(lua_State *L) {
  ane_file_abandon(luaL_checkudata(L, 1, WRITER_CLASS));
  return 0;
}

static const luaL_Reg methods[] = {{"write", meth_write}, {"commit", meth_commit}, {"close", writer_close}, {NULL, NULL}};
static const luaL_Reg meta[] = {{"__gc", writer_close}, {"__close", writer_close}, {NULL, NULL}};
static const luaL_Reg functions[] = {{"create", create}, {NULL, NULL}};

void bind_writer(lua_State *L) {
  bind_class(L, WRITER_CLASS, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
