#include "binding/tensor/bind_dyn.h"

#include "binding/tensor/bind_tensor.h"

#include "base/bytes.h"

#include <string.h>

static void read_shape(lua_State *L, const char *name, struct ane_dyn *t) {
  bind_field(L, -1, "shape");
  t->rank = lua_istable(L, -1) ? (int32_t)ANE_MIN(lua_rawlen(L, -1), (lua_Unsigned)ANE_DYN_RANK + 1) : ANE_DYN_RANK + 1;
  if (t->rank > ANE_DYN_RANK) luaL_error(L, "input %s: shape is not a list of at most %d dimensions", name, ANE_DYN_RANK);
  for (int32_t i = 0; i < t->rank; i++) {
    lua_rawgeti(L, -1, i + 1);
    t->dim[i] = lua_tointeger(L, -1);
    if (!ane_dyn_count(i + 1, t->dim, &t->count))
      luaL_error(L, "input %s: dimension %d is %I", name, (int)i + 1, (LUAI_UACINT)t->dim[i]);
    lua_pop(L, 1);
  }
  if (t->rank == 0) t->count = 1;
  lua_pop(L, 1);
}

void bind_dyn_read(lua_State *L, const char *name, struct ane_dyn *t) {
  static const char none[1] = "";
  struct bind_tensor *tensor = luaL_testudata(L, -1, BIND_TENSOR);
  size_t len;
  *t = (struct ane_dyn){0};
  if (lua_isnil(L, -1)) return;
  if (tensor) {
    t->dtype = ANE_F32;
    t->rank = (int32_t)tensor->shape.rank;
    t->count = (int64_t)tensor->count;
    for (int32_t i = 0; i < t->rank; i++) t->dim[i] = tensor->shape.dim[i];
    int64_t count;
    char text[ANE_SHAPE_TEXT];
    if (!ane_dyn_count(t->rank, t->dim, &count))
      luaL_error(L, "input %s: a shape of %s has too many elements", name, ane_shape_text(&tensor->shape, text));
    t->data = tensor->data;
    return;
  }
  if (!lua_istable(L, -1)) luaL_error(L, "input %s is %s, no tensor", name, bind_kind(L, -1));
  bind_field(L, -1, "dtype");
  const char *dtype = luaL_optlstring(L, -1, "", &len);
  t->dtype = ane_dtype_from_name(dtype, len);
  if (t->dtype == ANE_DTYPE_COUNT || ane_dtype_info(t->dtype)->block > 2) luaL_error(L, "input %s: dtype is %s", name, dtype);
  lua_pop(L, 1);
  read_shape(L, name, t);
  bind_field(L, -1, "data");
  if (lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "input %s: data is %s, not a text of bytes", name, bind_kind(L, -1));
  const char *data = lua_tolstring(L, -1, &len);
  if (len != ane_dyn_bytes(t))
    luaL_error(L, "input %s: data has %I bytes, but the shape needs %I", name, (LUAI_UACINT)len, (LUAI_UACINT)ane_dyn_bytes(t));
  t->data = len ? data : none;
  lua_pop(L, 1); /* the string lives in the caller's table */
}

static int64_t integer_at(const struct ane_dyn *t, int64_t i) {
  const uint8_t *p = (const uint8_t *)t->data + (size_t)i * ane_dtype_info(t->dtype)->bytes;
  switch (t->dtype) {
    case ANE_I8: return (int8_t)*p;
    case ANE_I16: return (int16_t)ane_load_u16(p);
    case ANE_U16: return ane_load_u16(p);
    case ANE_I32: return (int32_t)ane_load_u32(p);
    case ANE_U32: return ane_load_u32(p);
    case ANE_I64:
    case ANE_U64: return (int64_t)ane_load_u64(p);
    default: return *p;
  }
}

/* Sets dtype and shape of the table at the top of the stack. */
static void set_type(lua_State *L, const struct ane_dyn *t) {
  bind_set_text(L, "dtype", ane_dtype_info(t->dtype)->name);
  lua_createtable(L, t->rank, 0);
  for (int32_t i = 0; i < t->rank; i++) lua_pushinteger(L, t->dim[i]), lua_rawseti(L, -2, i + 1);
  lua_setfield(L, -2, "shape");
}

void bind_dyn_push(lua_State *L, const struct ane_dyn *t) {
  if (t->dtype == ANE_F32 && t->rank <= (int32_t)ANE_MAX_RANK) {
    struct ane_shape s = {.rank = (uint32_t)t->rank};
    for (int32_t i = 0; i < t->rank; i++) s.dim[i] = t->dim[i];
    float *to = bind_tensor_new(L, &s);
    if (t->count) memcpy(to, t->data, (size_t)t->count * sizeof *to);
    return;
  }
  lua_createtable(L, (int)ANE_MIN(t->count, (int64_t)1 << 24), 2);
  for (int64_t i = 0; i < t->count; i++) {
    if (t->dtype == ANE_BOOL)
      lua_pushboolean(L, ((const uint8_t *)t->data)[i]);
    else if (t->dtype == ANE_F32)
      lua_pushnumber(L, (lua_Number)((const float *)t->data)[i]);
    else
      lua_pushinteger(L, integer_at(t, i));
    lua_rawseti(L, -2, i + 1);
  }
  set_type(L, t);
}

void bind_dyn_push_bytes(lua_State *L, const struct ane_dyn *t) {
  lua_createtable(L, 0, 3);
  set_type(L, t);
  bind_set_bytes(L, "data", t->count ? t->data : "", (size_t)ane_dyn_bytes(t));
}

/* ---- Tensors by name -------------------------------------------------------------------------------------------------*/

void bind_names_push(lua_State *L, const struct bind_names *names) {
  lua_createtable(L, names->n, 0);
  for (int32_t i = 0; i < names->n; i++) lua_pushstring(L, names->name(names->of, i)), lua_rawseti(L, -2, i + 1);
}

int32_t bind_names_index(lua_State *L, int arg, const struct bind_names *names, const char *what) {
  const char *name = luaL_checkstring(L, arg);
  for (int32_t i = 0; i < names->n; i++)
    if (strcmp(names->name(names->of, i), name) == 0) return i;
  return luaL_error(L, "there is no %s %s", what, name);
}

struct ane_dyn *bind_dyn_list(lua_State *L, int32_t n) {
  size_t bytes = ((size_t)n + 1) * sizeof(struct ane_dyn);
  return memset(lua_newuserdatauv(L, bytes, 0), 0, bytes);
}

struct ane_dyn *bind_dyn_inputs(lua_State *L, int arg, const struct bind_names *names) {
  luaL_checktype(L, arg, LUA_TTABLE);
  struct ane_dyn *list = bind_dyn_list(L, names->n);
  for (int32_t i = 0; i < names->n; i++) {
    const char *name = names->name(names->of, i);
    lua_pushstring(L, name);
    lua_rawget(L, arg);
    bind_dyn_read(L, name, &list[i]);
    lua_pop(L, 1);
  }
  return list;
}

struct results {
  const struct bind_names *names;
  const struct ane_dyn *list;
};

/* (struct results *) -> table of the results; raises if Lua has no memory */
static int push_results(lua_State *L) {
  const struct results *r = lua_touserdata(L, 1);
  lua_createtable(L, 0, r->names->n);
  for (int32_t i = 0; i < r->names->n; i++) {
    bind_dyn_push(L, &r->list[i]);
    lua_setfield(L, -2, r->names->name(r->names->of, i));
  }
  return 1;
}

/* Checks that there is room for the results as values of Lua, in which a number that is not of fp32 takes a slot of a table. */
static ane_status check_room(const struct results *r, struct ane_dyn_budget *b, struct ane_error *err) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < r->names->n; i++) {
    bool tensor = r->list[i].dtype == ANE_F32 && r->list[i].rank <= (int32_t)ANE_MAX_RANK;
    bytes += (uint64_t)r->list[i].count * (tensor ? sizeof(float) : 16);
  }
  ane_status st = ane_dyn_budget_check(b, bytes, err);
  return st ? ane_fail_in(err, st, "the outputs") : ANE_OK;
}

int bind_dyn_results(lua_State *L, ane_status st, const struct ane_error *err, const struct bind_names *names,
                     struct ane_dyn *results, struct ane_dyn_memory *memory) {
  struct results r = {names, results};
  struct ane_error short_of;
  int failed = LUA_OK;
  if (!st && (st = check_room(&r, memory->budget, &short_of))) err = &short_of;
  if (!st) {
    lua_pushcfunction(L, push_results);
    lua_pushlightuserdata(L, &r);
    failed = lua_pcall(L, 1, 1, 0);
  }
  for (int32_t i = 0; i < names->n; i++) ane_dyn_drop(memory, &results[i]);
  if (failed) return lua_error(L);
  return st ? bind_fail(L, err) : 1;
}
