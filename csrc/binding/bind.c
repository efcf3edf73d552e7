#include "binding/bind.h"

#include <string.h>

void *bind_new(lua_State *L, const char *cls, size_t size, int uservalues) {
  void *ud = lua_newuserdatauv(L, size, uservalues);
  memset(ud, 0, size);
  luaL_setmetatable(L, cls);
  return ud;
}

void bind_class(lua_State *L, const char *cls, const luaL_Reg *methods, const luaL_Reg *meta) {
  luaL_newmetatable(L, cls);
  luaL_setfuncs(L, meta, 0);
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

int bind_fail(lua_State *L, const struct ane_error *err) {
  lua_pushnil(L);
  lua_pushstring(L, err->text);
  lua_pushstring(L, ane_status_word(err->code));
  return 3;
}

lua_Integer bind_integer(lua_State *L, int arg, lua_Integer lo, lua_Integer hi) {
  lua_Integer v = luaL_checkinteger(L, arg);
  if (v < lo || v > hi) {
    const char *msg = lua_pushfstring(L, "%I is not in %I .. %I", (LUAI_UACINT)v, (LUAI_UACINT)lo, (LUAI_UACINT)hi);
    luaL_argerror(L, arg, msg);
  }
  return v;
}

lua_Integer bind_opt_integer(lua_State *L, int arg, lua_Integer def, lua_Integer lo, lua_Integer hi) {
  return lua_isnoneornil(L, arg) ? def : bind_integer(L, arg, lo, hi);
}

size_t bind_length(lua_State *L, int arg, size_t most) {
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Unsigned n = lua_rawlen(L, arg);
  if (n > most) luaL_error(L, "a list must have at most %I entries, but this one has %I", (LUAI_UACINT)most, (LUAI_UACINT)n);
  return (size_t)n;
}

const char *bind_text(lua_State *L, int arg) {
  size_t len;
  const char *s = luaL_checklstring(L, arg, &len);
  luaL_argcheck(L, strlen(s) == len, arg, "holds a NUL byte");
  return s;
}

int32_t *bind_ids(lua_State *L, int arg, size_t *n) {
  if (lua_isinteger(L, arg)) {
    int32_t *one = lua_newuserdatauv(L, sizeof *one, 0);
    *one = (int32_t)bind_integer(L, arg, 0, INT32_MAX);
    *n = 1;
    return one;
  }
  size_t len = bind_length(L, arg, INT32_MAX);
  int32_t *ids = lua_newuserdatauv(L, (len ? len : 1) * sizeof *ids, 0);
  for (size_t i = 0; i < len; i++) {
    int ok;
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    lua_Integer v = lua_tointegerx(L, -1, &ok);
    if (!ok || v < 0 || v > INT32_MAX) {
      const char *msg = lua_pushfstring(L, "id %I is %s, not a token id", (LUAI_UACINT)(i + 1), luaL_tolstring(L, -1, NULL));
      luaL_argerror(L, arg, msg);
    }
    ids[i] = (int32_t)v;
    lua_pop(L, 1);
  }
  *n = len;
  return ids;
}

int bind_done(lua_State *L, ane_status st, const struct ane_error *err) {
  if (st) return bind_fail(L, err);
  lua_pushboolean(L, 1);
  return 1;
}

int64_t bind_row(lua_State *L, int arg, int64_t rows) {
  int64_t i = luaL_optinteger(L, arg, -1);
  if (i < 0) i += rows + 1;
  return i >= 1 && i <= rows ? i - 1 : -1;
}

int bind_no_row(lua_State *L, int64_t rows) {
  return luaL_error(L, "the row of logits does not exist: the last feed left %I", (LUAI_UACINT)rows);
}

/* ---- Fields of tables ------------------------------------------------------------------------------------------------*/

void bind_set_text(lua_State *L, const char *key, const char *s) {
  lua_pushstring(L, s); /* nil for NULL */
  lua_setfield(L, -2, key);
}

void bind_set_bytes(lua_State *L, const char *key, const void *data, size_t size) {
  if (!data) return;
  lua_pushlstring(L, data, size);
  lua_setfield(L, -2, key);
}

void bind_set_integer(lua_State *L, const char *key, lua_Integer v) {
  lua_pushinteger(L, v);
  lua_setfield(L, -2, key);
}

void bind_set_number(lua_State *L, const char *key, lua_Number v) {
  lua_pushnumber(L, v);
  lua_setfield(L, -2, key);
}

void bind_set_boolean(lua_State *L, const char *key, bool v) {
  lua_pushboolean(L, v);
  lua_setfield(L, -2, key);
}

int bind_field(lua_State *L, int t, const char *name) {
  t = lua_absindex(L, t);
  luaL_checktype(L, t, LUA_TTABLE);
  lua_pushstring(L, name);
  return lua_rawget(L, t);
}

/* Pops the integer at the top of the stack and returns it. */
static lua_Integer pop_integer(lua_State *L, const char *name, lua_Integer lo, lua_Integer hi) {
  int ok;
  lua_Integer v = lua_tointegerx(L, -1, &ok);
  if (!ok || v < lo || v > hi)
    luaL_error(L, "option %s must be an integer in %I .. %I, but is %s", name, (LUAI_UACINT)lo, (LUAI_UACINT)hi,
               luaL_tolstring(L, -1, NULL));
  lua_pop(L, 1);
  return v;
}

lua_Integer bind_integer_option(lua_State *L, int t, const char *name, lua_Integer lo, lua_Integer hi) {
  bind_field(L, t, name);
  return pop_integer(L, name, lo, hi);
}

lua_Integer bind_opt_integer_option(lua_State *L, int t, const char *name, lua_Integer def, lua_Integer lo, lua_Integer hi) {
  if (bind_field(L, t, name) != LUA_TNIL) return pop_integer(L, name, lo, hi);
  lua_pop(L, 1);
  return def;
}

lua_Number bind_opt_number_option(lua_State *L, int t, const char *name, lua_Number def, lua_Number lo, lua_Number hi) {
  int ok = 1;
  lua_Number v = bind_field(L, t, name) == LUA_TNIL ? def : lua_tonumberx(L, -1, &ok);
  if (!ok || !(v >= lo && v <= hi))
    luaL_error(L, "option %s must be a number in %f .. %f, but is %s", name, lo, hi, luaL_tolstring(L, -1, NULL));
  lua_pop(L, 1);
  return v;
}

const char *bind_kind(lua_State *L, int i) { return lua_isnil(L, i) ? "nil" : lua_pushfstring(L, "a %s", luaL_typename(L, i)); }

const char *bind_opt_text_option(lua_State *L, int t, const char *name) {
  int type = bind_field(L, t, name);
  if (type != LUA_TNIL && type != LUA_TSTRING)
    luaL_error(L, "option %s must be a string, but is a %s", name, lua_typename(L, type));
  const char *s = lua_tostring(L, -1);
  lua_pop(L, 1);
  return s;
}

const float *bind_opt_floats_option(lua_State *L, int t, const char *name, lua_Integer n, const char *of) {
  size_t size = 0;
  if (bind_field(L, t, name) != LUA_TNIL) luaL_checktype(L, -1, LUA_TSTRING); /* the table keeps no text made of a number */
  const char *bytes = lua_tolstring(L, -1, &size);
  if (bytes && size != (size_t)n * sizeof(float))
    luaL_error(L, "%s of %s has %I bytes, but must have %I", name, of, (LUAI_UACINT)size, (LUAI_UACINT)n * 4);
  lua_pop(L, 1);
  return (const float *)(const void *)bytes;
}

bool bind_boolean_option(lua_State *L, int t, const char *name) {
  bind_field(L, t, name);
  bool v = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return v;
}

int bind_choice_option(lua_State *L, int t, const char *name, const char *const *words) {
  const char *s = bind_opt_text_option(L, t, name);
  int i = 0;
  while (s && words[i] && strcmp(words[i], s) != 0) i++;
  if (words[i]) return i;
  luaL_Buffer list;
  luaL_buffinit(L, &list);
  for (i = 0; words[i]; i++) {
    if (i) luaL_addstring(&list, ", ");
    luaL_addstring(&list, words[i]);
  }
  luaL_pushresult(&list);
  return luaL_error(L, "option %s is %s; choose %s", name, s, lua_tostring(L, -1));
}

/* ---- Progress --------------------------------------------------------------------------------------------------------*/

void bind_on_progress(void *arg, uint64_t done, uint64_t total) {
  struct bind_progress *p = arg;
  if (!p->function || p->raised) return;
  lua_pushvalue(p->L, p->function);
  lua_pushinteger(p->L, (lua_Integer)done);
  lua_pushinteger(p->L, (lua_Integer)total);
  p->raised = lua_pcall(p->L, 2, 0, 0) != LUA_OK; /* the message stays on the stack */
}
