/* Known prefixes of a program's sequences: made by program:prefixes. */
#include "binding/model/bind_model.h"

#define PREFIXES_CLASS "ane.prefixes"

struct bind_prefixes *bind_check_prefixes(lua_State *L, int arg) {
  struct bind_prefixes *ud = luaL_checkudata(L, arg, PREFIXES_CLASS);
  if (!ud->tree) luaL_error(L, "the prefixes are closed");
  return ud;
}

int bind_prefixes_open(lua_State *L, int program, ane_dtype kv) {
  struct bind_prefixes *ud = bind_new(L, PREFIXES_CLASS, sizeof *ud, 0);
  struct bind_program_box *box = bind_check_program(L, program);
  struct ane_error err;
  ud->kv = kv;
  ud->box = box;
  box->refs++;
  if (!(ud->store = ane_program_store(box->program, kv, &err))) return bind_fail(L, &err);
  if (!(ud->tree = ane_kv_prefixes_create())) return ane_fail(&err, ANE_NOMEM, "no memory for prefixes"), bind_fail(L, &err);
  return 1;
}

static int meth_close(lua_State *L) {
  struct bind_prefixes *ud = luaL_checkudata(L, 1, PREFIXES_CLASS);
  ane_kv_prefixes_destroy(ud->tree);
  ane_kv_store_release(ud->store);
  bind_program_release(ud->box);
  *ud = (struct bind_prefixes){0};
  return 0;
}

/* known(ids [, key]) -> length of the longest known prefix of a prompt, shorter than the prompt, for sessions with this
 * adapters_key() */
static int meth_known(lua_State *L) {
  uint64_t adapters = (uint64_t)luaL_optinteger(L, 3, 0);
  size_t n;
  const int32_t *ids = bind_ids(L, 2, &n);
  const struct bind_prefixes *ud = bind_check_prefixes(L, 1); /* not before: a finaliser may have closed it meanwhile */
  lua_pushinteger(L, ane_program_known(ud->box->program, ud->tree, adapters, ids, (int64_t)n));
  return 1;
}

/* forget(bytes) -> bytes freed. Frees pages that no session uses, the least recently used first */
static int meth_forget(lua_State *L) {
  const struct bind_prefixes *ud = bind_check_prefixes(L, 1);
  lua_pushinteger(L, (lua_Integer)ane_kv_prefixes_forget(ud->tree, (uint64_t)luaL_checkinteger(L, 2)));
  return 1;
}

/* bytes() -> bytes of all pages, including those that sessions share, each counted once; bytes of a page */
static int meth_bytes(lua_State *L) {
  const struct bind_prefixes *ud = bind_check_prefixes(L, 1);
  lua_pushinteger(L, (lua_Integer)ane_kv_store_bytes(ud->store));
  lua_pushinteger(L, (lua_Integer)ane_kv_store_page_bytes(ud->store));
  return 2;
}

/* count() -> number of known pages */
static int meth_count(lua_State *L) {
  lua_pushinteger(L, ane_kv_prefixes_count(bind_check_prefixes(L, 1)->tree));
  return 1;
}

/* save(path) -> true; or nil, message, code */
static int meth_save(lua_State *L) {
  const char *path = bind_text(L, 2); /* before: it may allocate, so that a finaliser runs */
  const struct bind_prefixes *ud = bind_check_prefixes(L, 1);
  struct ane_error err;
  return bind_done(L, ane_program_save_prefixes(ud->box->program, ud->tree, ud->kv, ud->store, path, &err), &err);
}

/* restore(path [, most]) -> true; or nil, message, code. most: maximum bytes of pages to read */
static int meth_restore(lua_State *L) {
  const char *path = bind_text(L, 2); /* before: see meth_save */
  const struct bind_prefixes *ud = bind_check_prefixes(L, 1);
  uint64_t most = (uint64_t)bind_opt_integer(L, 3, INT64_MAX, 0, INT64_MAX);
  struct ane_error err;
  return bind_done(L, ane_program_restore_prefixes(ud->box->program, ud->tree, ud->kv, ud->store, path, most, &err), &err);
}

void bind_prefixes(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"known", meth_known}, {"forget", meth_forget},   {"bytes", meth_bytes}, {"count", meth_count},
      {"save", meth_save},   {"restore", meth_restore}, {"close", meth_close}, {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {NULL, NULL}};
  bind_class(L, PREFIXES_CLASS, methods, meta);
}
