/* Class "ane.tensor". Indices count from 1, negative ones from the end; token ids (topk, argmax) count from 0. */
#include "binding/tensor/bind_tensor.h"
#include "sampling/sampling.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The floats follow the header, at an alignment that suits SIMD code. */
enum { DATA_ALIGN = 64 };

float *bind_tensor_new(lua_State *L, const struct ane_shape *shape) {
  uint64_t count = 0, bytes = 0;
  if (!ane_shape_count(shape, &count) || !ane_mul_u64(count, sizeof(float), &bytes) || bytes > SIZE_MAX / 2) {
    char text[ANE_SHAPE_TEXT];
    luaL_error(L, "a tensor of shape %s is not possible", ane_shape_text(shape, text));
  }
  struct bind_tensor *t = bind_new(L, BIND_TENSOR, sizeof *t + DATA_ALIGN + (size_t)bytes, 0);
  t->shape = *shape;
  t->count = count;
  t->data = (float *)(void *)((char *)t + ane_align_up((uintptr_t)(t + 1), DATA_ALIGN) - (uintptr_t)t);
  return t->data;
}

/* Raises if the running function is a method of tensors, called with a dot. */
static void check_colon(lua_State *L) {
  lua_Debug ar;
  if (!lua_getstack(L, 0, &ar) || !lua_getinfo(L, "nf", &ar)) return;
  luaL_getmetatable(L, BIND_TENSOR);
  lua_getfield(L, -1, "__names");
  bool is_method = ar.name && lua_getfield(L, -1, ar.name) != LUA_TNIL && lua_rawequal(L, -1, -4);
  if (is_method)
    luaL_error(L, "%s: called on a %s instead of a tensor; write tensor:%s(...), with a colon", ar.name, luaL_typename(L, 1),
               ar.name);
  lua_pop(L, ar.name ? 4 : 3);
}

ane_dtype bind_check_dtype(lua_State *L, int arg) {
  size_t len;
  const char *name = luaL_checklstring(L, arg, &len);
  ane_dtype t = ane_dtype_from_name(name, len);
  luaL_argcheck(L, t != ANE_DTYPE_COUNT, arg, "no such dtype");
  return t;
}

struct bind_tensor *bind_check_tensor(lua_State *L, int arg) {
  if (arg == 1 && !luaL_testudata(L, 1, BIND_TENSOR)) check_colon(L);
  return luaL_checkudata(L, arg, BIND_TENSOR);
}

/* ---- Creation ----------------------------------------------------------------------------------------------------*/

static struct ane_shape check_shape(lua_State *L, int arg) {
  struct ane_shape s = {0, {0}};
  if (lua_isinteger(L, arg)) {
    s.rank = 1;
    s.dim[0] = bind_integer(L, arg, 0, INT64_MAX);
    return s;
  }
  luaL_checktype(L, arg, LUA_TTABLE);
  lua_Unsigned rank = lua_rawlen(L, arg);
  if (rank > ANE_MAX_RANK) luaL_argerror(L, arg, "a shape has at most 5 dimensions");
  s.rank = (uint32_t)rank;
  for (uint32_t i = 0; i < s.rank; i++) {
    int ok;
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    s.dim[i] = lua_tointegerx(L, -1, &ok);
    if (!ok || s.dim[i] < 0) luaL_argerror(L, arg, "dimensions are integers that are not negative");
    lua_pop(L, 1);
  }
  return s;
}

/* Raises when the values at arg do not fill the shape. Nothing is allocated before. */
static void check_values(lua_State *L, int arg, const struct ane_shape *shape) {
  uint64_t count, got = lua_rawlen(L, arg);
  if (!ane_shape_count(shape, &count) || count > (uint64_t)INT64_MAX / sizeof(float)) return; /* bind_tensor_new refuses it */
  if (lua_type(L, arg) == LUA_TTABLE && got != count)
    luaL_error(L, "the shape asks for %I values, but the list has %I", (LUAI_UACINT)count, (LUAI_UACINT)got);
  if (lua_type(L, arg) == LUA_TSTRING && got != count * sizeof(float))
    luaL_error(L, "the shape asks for %I bytes, but the string has %I", (LUAI_UACINT)(count * sizeof(float)), (LUAI_UACINT)got);
}

/* core.tensor(shape, values): values = a flat list of numbers, raw float32 bytes, or nothing (zeros). */
static int tensor_make(lua_State *L) {
  struct ane_shape shape = check_shape(L, 1);
  int kind = lua_type(L, 2);
  if (kind != LUA_TNONE && kind != LUA_TNIL && kind != LUA_TTABLE && kind != LUA_TSTRING)
    return luaL_typeerror(L, 2, "list of numbers, string of float32 bytes, or nil");
  check_values(L, 2, &shape);
  float *data = bind_tensor_new(L, &shape);
  uint64_t count = bind_check_tensor(L, -1)->count;
  if (kind == LUA_TSTRING) {
    size_t size;
    const char *bytes = lua_tolstring(L, 2, &size);
    if (size) memcpy(data, bytes, size);
  } else if (kind == LUA_TTABLE) {
    for (uint64_t i = 0; i < count; i++) {
      int ok;
      lua_rawgeti(L, 2, (lua_Integer)i + 1);
      data[i] = (float)lua_tonumberx(L, -1, &ok);
      if (!ok) return luaL_error(L, "value %I is %s, not a number", (LUAI_UACINT)(i + 1), bind_kind(L, -1));
      lua_pop(L, 1);
    }
  }
  return 1;
}

/* ---- Elements ----------------------------------------------------------------------------------------------------*/

/* Returns the index at `arg` for a dimension of `size` elements, 0-based. */
static int64_t check_index(lua_State *L, int arg, int64_t size) {
  lua_Integer i = luaL_checkinteger(L, arg);
  int64_t at = i < 0 ? i + size : i - 1;
  if (i == 0 || at < 0 || at >= size) {
    const char *msg = lua_pushfstring(L, "index %I is outside 1 .. %I (or -1 from the end)", (LUAI_UACINT)i, (LUAI_UACINT)size);
    luaL_argerror(L, arg, msg);
  }
  return at;
}

/* Returns the offset of the element that arguments 2 ... name: one index for each dimension. */
static int64_t check_offset(lua_State *L, const struct bind_tensor *t, int given) {
  if (given != (int)t->shape.rank)
    luaL_error(L, "the tensor has %d dimensions and needs as many indices, not %d", (int)t->shape.rank, given);
  int64_t at = 0;
  for (uint32_t i = 0; i < t->shape.rank; i++) at = at * t->shape.dim[i] + check_index(L, 2 + (int)i, t->shape.dim[i]);
  return at;
}

static int meth_get(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  lua_pushnumber(L, t->data[check_offset(L, t, lua_gettop(L) - 1)]);
  return 1;
}

/* t:set(i, ..., value) */
static int meth_set(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  int last = lua_gettop(L);
  float value = (float)luaL_checknumber(L, last);
  t->data[check_offset(L, t, last - 2)] = value;
  return 0;
}

static int meth_fill(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  float value = (float)luaL_checknumber(L, 2);
  for (uint64_t i = 0; i < t->count; i++) t->data[i] = value;
  lua_settop(L, 1);
  return 1;
}

/* row(i) -> copy of entry i of the first dimension, with one dimension less */
static int meth_row(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  if (t->shape.rank < 2)
    return luaL_error(L, "row needs a tensor of at least 2 dimensions, but this one has %d", (int)t->shape.rank);
  int64_t i = check_index(L, 2, t->shape.dim[0]);
  struct ane_shape shape = {t->shape.rank - 1, {0}};
  memcpy(shape.dim, t->shape.dim + 1, shape.rank * sizeof *shape.dim);
  float *data = bind_tensor_new(L, &shape);
  uint64_t count = t->count / (uint64_t)t->shape.dim[0];
  if (count) memcpy(data, t->data + (uint64_t)i * count, count * sizeof *data);
  return 1;
}

static int meth_shape(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  lua_createtable(L, (int)t->shape.rank, 0);
  for (uint32_t i = 0; i < t->shape.rank; i++) {
    lua_pushinteger(L, t->shape.dim[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int meth_totable(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  lua_createtable(L, t->count < INT32_MAX ? (int)t->count : INT32_MAX, 0);
  for (uint64_t i = 0; i < t->count; i++) {
    lua_pushnumber(L, t->data[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int meth_tostring(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  lua_pushlstring(L, (const char *)t->data, t->count * sizeof *t->data);
  return 1;
}

/* ---- Summaries ---------------------------------------------------------------------------------------------------*/

/* Returns the number of elements as ids count; raises if the tensor is empty, or has more elements than there can be ids. */
static int32_t check_ids(lua_State *L, const struct bind_tensor *t) {
  if (t->count == 0 || t->count > INT32_MAX) luaL_error(L, "needs a tensor of 1 .. 2147483647 elements");
  return (int32_t)t->count;
}

/* topk(k) -> {{id, value}, ...}: the k largest of all elements, the largest first */
static int meth_topk(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  int32_t n = check_ids(L, t);
  int32_t k = (int32_t)ANE_MIN(bind_integer(L, 2, 0, INT32_MAX), n);
  struct ane_ranked *best = lua_newuserdatauv(L, (size_t)(k ? k : 1) * sizeof *best, 0);
  ane_topk(t->data, n, k, best);
  lua_createtable(L, k, 0);
  for (int32_t i = 0; i < k; i++) {
    lua_createtable(L, 2, 0);
    lua_pushinteger(L, best[i].id);
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, best[i].value);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int meth_argmax(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  struct ane_ranked best = ane_best(t->data, check_ids(L, t));
  lua_pushinteger(L, best.id);
  lua_pushnumber(L, best.value);
  return 2;
}

/* Returns the greatest element that is not NaN; NaN if there is none. */
static float greatest(const struct bind_tensor *t) {
  float v = NAN;
  for (uint64_t i = 0; i < t->count; i++)
    if (isnan(v) || t->data[i] > v) v = t->data[i];
  return v;
}

static float least(const struct bind_tensor *t) {
  float v = NAN;
  for (uint64_t i = 0; i < t->count; i++)
    if (isnan(v) || t->data[i] < v) v = t->data[i];
  return v;
}

static double mean(const struct bind_tensor *t) {
  double sum = 0;
  for (uint64_t i = 0; i < t->count; i++) sum += t->data[i];
  return sum / (double)t->count;
}

static int meth_max(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  check_ids(L, t);
  lua_pushnumber(L, greatest(t));
  return 1;
}

static int meth_min(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  check_ids(L, t);
  lua_pushnumber(L, least(t));
  return 1;
}

static int meth_mean(lua_State *L) {
  struct bind_tensor *t = bind_check_tensor(L, 1);
  check_ids(L, t);
  lua_pushnumber(L, mean(t));
  return 1;
}

/* ---- Metamethods -------------------------------------------------------------------------------------------------*/

static int meta_len(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)bind_check_tensor(L, 1)->count);
  return 1;
}

static void add_numbers(luaL_Buffer *b, const float *v, uint64_t n) {
  char number[32];
  for (uint64_t i = 0; i < n; i++) {
    snprintf(number, sizeof number, "%s%.6g", i ? ", " : "", (double)v[i]);
    luaL_addstring(b, number);
  }
}

/* "tensor [2, 3] {1, 2, 3, 4, 5, 6}"; if there are more than 8 elements: the first and last three, the least, the greatest and
 * the mean. */
static int meta_tostring(lua_State *L) {
  enum { WHOLE = 8, END = 3 };
  struct bind_tensor *t = bind_check_tensor(L, 1);
  char text[ANE_SHAPE_TEXT];
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  luaL_addstring(&b, "tensor ");
  luaL_addstring(&b, ane_shape_text(&t->shape, text));
  luaL_addstring(&b, " {");
  if (t->count <= WHOLE) {
    add_numbers(&b, t->data, t->count);
    luaL_addchar(&b, '}');
  } else {
    add_numbers(&b, t->data, END);
    luaL_addstring(&b, ", ..., ");
    add_numbers(&b, t->data + t->count - END, END);
    snprintf(text, sizeof text, "} min %.6g max %.6g mean %.6g", (double)least(t), (double)greatest(t), mean(t));
    luaL_addstring(&b, text);
  }
  luaL_pushresult(&b);
  return 1;
}

/* t[i]: row i, or element i of a vector; t.name: a method. Upvalue: the methods. */
static int meta_index(lua_State *L) {
  if (!lua_isinteger(L, 2)) {
    lua_settop(L, 2);
    lua_gettable(L, lua_upvalueindex(1));
    return 1;
  }
  return bind_check_tensor(L, 1)->shape.rank < 2 ? meth_get(L) : meth_row(L);
}

static const luaL_Reg methods[] = {
    {"get", meth_get},         {"set", meth_set},           {"fill", meth_fill}, {"row", meth_row}, {"shape", meth_shape},
    {"topk", meth_topk},       {"argmax", meth_argmax},     {"max", meth_max},   {"min", meth_min}, {"mean", meth_mean},
    {"totable", meth_totable}, {"tostring", meth_tostring}, {NULL, NULL},
};

static const luaL_Reg meta[] = {{"__len", meta_len}, {"__tostring", meta_tostring}, {NULL, NULL}};

void bind_tensor(lua_State *L) {
  bind_class(L, BIND_TENSOR, methods, meta);
  luaL_getmetatable(L, BIND_TENSOR);
  lua_getfield(L, -1, "__index");
  bind_tensor_math(L);
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "__names"); /* what completion offers, and where Lua files add methods */
  lua_pushcclosure(L, meta_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  lua_pushcfunction(L, tensor_make);
  lua_setfield(L, -2, "tensor");
}
