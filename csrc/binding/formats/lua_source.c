/* core.open(path): a file of tensors and metadata. */
#include "binding/formats/bind_source.h"

#include "base/bytes.h"
#include "quant/quant.h"

#include <inttypes.h>
#include <string.h>

#define SOURCE_CLASS "ane.source"

struct lua_source {
  struct ane_source *source; /* NULL: closed */
};

struct ane_source *bind_check_source(lua_State *L, int arg) {
  struct lua_source *ud = luaL_checkudata(L, arg, SOURCE_CLASS);
  if (!ud->source) luaL_error(L, "source is closed");
  return ud->source;
}

/* open(path) -> source; or nil, message, code */
static int source_open(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct lua_source *ud = bind_new(L, SOURCE_CLASS, sizeof *ud, 0);
  struct ane_error err;
  if (ane_source_open(&ud->source, path, &err)) return bind_fail(L, &err);
  return 1;
}

struct ane_source **bind_new_source(lua_State *L) {
  return &((struct lua_source *)bind_new(L, SOURCE_CLASS, sizeof(struct lua_source), 0))->source;
}

static int meth_close(lua_State *L) {
  struct lua_source *ud = luaL_checkudata(L, 1, SOURCE_CLASS);
  ane_source_close(ud->source);
  ud->source = NULL;
  return 0;
}

static int meth_tostring(lua_State *L) {
  struct lua_source *ud = luaL_checkudata(L, 1, SOURCE_CLASS);
  if (ud->source)
    lua_pushfstring(L, "source (%s)", ud->source->path);
  else
    lua_pushliteral(L, "source (closed)");
  return 1;
}

static int meth_path(lua_State *L) {
  lua_pushstring(L, bind_check_source(L, 1)->path);
  return 1;
}

static int meth_format(lua_State *L) {
  lua_pushstring(L, bind_check_source(L, 1)->format);
  return 1;
}

/* ---- Metadata ----------------------------------------------------------------------------------------------------*/

static void push_uint(lua_State *L, uint64_t u) {
  if (u <= LUA_MAXINTEGER)
    lua_pushinteger(L, (lua_Integer)u);
  else
    lua_pushnumber(L, (lua_Number)u);
}

static void push_element(lua_State *L, const struct ane_meta *array, uint64_t i) {
  switch (array->a.kind) {
    case ANE_META_BOOL: lua_pushboolean(L, array->a.data[i]); break;
    case ANE_META_FLOAT: lua_pushnumber(L, ane_meta_array_number(array, i)); break;
    case ANE_META_UINT:
      if (array->a.dtype == ANE_U64)
        push_uint(L, ane_load_u64(array->a.data + 8 * i));
      else
        lua_pushinteger(L, ane_meta_array_integer(array, i));
      break;
    default: lua_pushinteger(L, ane_meta_array_integer(array, i));
  }
}

static void push_meta(lua_State *L, const struct ane_meta *m) {
  switch (m->kind) {
    case ANE_META_INT: lua_pushinteger(L, m->i); return;
    case ANE_META_UINT: push_uint(L, m->u); return;
    case ANE_META_FLOAT: lua_pushnumber(L, m->f); return;
    case ANE_META_BOOL: lua_pushboolean(L, m->i != 0); return;
    case ANE_META_STRING: lua_pushlstring(L, m->s.data, (size_t)m->s.len); return;
    case ANE_META_ARRAY: break;
  }
  luaL_checkstack(L, 8, "metadata");
  lua_createtable(L, (int)ANE_MIN(m->a.count, (uint64_t)INT32_MAX), 0);
  for (uint64_t i = 0; i < m->a.count; i++) {
    if (m->a.items)
      push_meta(L, &m->a.items[i]);
    else
      push_element(L, m, i);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* meta(key) -> number, boolean, string or list; nil if there is no such key */
static int meth_meta(lua_State *L) {
  const struct ane_meta *m = ane_source_meta(bind_check_source(L, 1), luaL_checkstring(L, 2));
  if (m)
    push_meta(L, m);
  else
    lua_pushnil(L);
  return 1;
}

/* meta_len(key) -> length of a list (without building it) or string, 1 for other values; nil if there is no such key */
static int meth_meta_len(lua_State *L) {
  const struct ane_meta *m = ane_source_meta(bind_check_source(L, 1), luaL_checkstring(L, 2));
  if (!m)
    lua_pushnil(L);
  else
    push_uint(L, m->kind == ANE_META_ARRAY ? m->a.count : m->kind == ANE_META_STRING ? m->s.len : 1);
  return 1;
}

static int meth_keys(lua_State *L) {
  const struct ane_source *s = bind_check_source(L, 1);
  lua_createtable(L, (int)s->n_values, 0);
  for (uint32_t i = 0; i < s->n_values; i++) {
    lua_pushstring(L, s->keys[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/* ---- Tensors -----------------------------------------------------------------------------------------------------*/

/* Pushes {name, dtype, shape (outermost first), bytes, offset in its file, file (path)}. */
static void push_tensor(lua_State *L, const struct ane_source *s, const struct ane_source_tensor *t) {
  lua_createtable(L, 0, 6);
  lua_pushstring(L, t->name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, ane_dtype_info(t->tensor.dtype)->name);
  lua_setfield(L, -2, "dtype");
  lua_createtable(L, (int)t->tensor.shape.rank, 0);
  for (uint32_t i = 0; i < t->tensor.shape.rank; i++) {
    lua_pushinteger(L, t->tensor.shape.dim[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "shape");
  lua_pushinteger(L, (lua_Integer)t->tensor.bytes);
  lua_setfield(L, -2, "bytes");
  lua_pushinteger(L, (lua_Integer)t->offset);
  lua_setfield(L, -2, "offset");
  lua_pushstring(L, s->files[t->file].path);
  lua_setfield(L, -2, "file");
}

static int meth_tensors(lua_State *L) {
  const struct ane_source *s = bind_check_source(L, 1);
  lua_createtable(L, (int)s->n_tensors, 0);
  for (uint32_t i = 0; i < s->n_tensors; i++) {
    push_tensor(L, s, &s->tensors[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

static int meth_tensor(lua_State *L) {
  const struct ane_source *s = bind_check_source(L, 1);
  const struct ane_source_tensor *t = ane_source_tensor(s, luaL_checkstring(L, 2));
  if (t)
    push_tensor(L, s, t);
  else
    lua_pushnil(L);
  return 1;
}

/* holds(path) -> is this path one of the source's files, under whatever name? */
static int meth_holds(lua_State *L) {
  const struct ane_source *s = bind_check_source(L, 1);
  lua_pushboolean(L, ane_source_holds(s, bind_text(L, 2)));
  return 1;
}

/* is_set(name) -> has the tensor its numbers? false for a changed tensor that is not computed yet, and for one that is absent */
static int meth_is_set(lua_State *L) {
  const struct ane_source_tensor *t = ane_source_tensor(bind_check_source(L, 1), luaL_checkstring(L, 2));
  lua_pushboolean(L, t && ane_source_is_set(t));
  return 1;
}

static int meth_n_tensors(lua_State *L) {
  lua_pushinteger(L, bind_check_source(L, 1)->n_tensors);
  return 1;
}

static int meth_bytes(lua_State *L) {
  const struct ane_source *s = bind_check_source(L, 1);
  uint64_t total = 0;
  for (uint32_t i = 0; i < s->n_files; i++) total += s->files[i].map.size;
  push_uint(L, total);
  return 1;
}

/* read(name [, from, to]) -> rows from..to (1 is the first, both included; default all) decoded to float32, as a string
 * of little-endian bytes; or nil, message, code. A row is one run along the innermost dimension. */
static int meth_read(lua_State *L) {
  const struct ane_source *s = bind_check_source(L, 1);
  const char *name = luaL_checkstring(L, 2);
  const struct ane_source_tensor *st = ane_source_tensor(s, name);
  struct ane_error err;
  if (!st) {
    ane_fail(&err, ANE_NOTFOUND, "%s: no tensor %s", s->path, name);
    return bind_fail(L, &err);
  }
  if (!ane_source_is_set(st)) {
    ane_fail(&err, ANE_INVALID, "%s: tensor %s is not computed yet", s->path, name);
    return bind_fail(L, &err);
  }
  const struct ane_tensor *t = &st->tensor;
  const struct ane_dtype_info *info = ane_dtype_info(t->dtype);
  uint64_t count = t->bytes / info->bytes * info->block;
  if (t->gather || st->parts) (void)!ane_shape_count(&t->shape, &count);
  uint64_t columns = t->shape.rank ? (uint64_t)t->shape.dim[t->shape.rank - 1] : 1;
  lua_Integer rows = columns ? (lua_Integer)(count / columns) : 0;
  lua_Integer from = bind_opt_integer(L, 3, 1, 1, rows + 1), to = bind_opt_integer(L, 4, rows, from - 1, rows);
  ane_decode_fn decode = ane_decoder(t->dtype);
  uint64_t n = (uint64_t)(to - from + 1) * columns;
  if (st->parts) decode = NULL;
  if (!decode || n > SIZE_MAX / 2 / sizeof(float)) {
    if (!decode)
      ane_fail(&err, ANE_UNSUPPORTED, "%s: tensor %s: %s has no float32 decoder", s->path, name, info->name);
    else
      ane_fail(&err, ANE_RANGE, "%s: tensor %s: %" PRIu64 " elements are too many for one string", s->path, name, n);
    return bind_fail(L, &err);
  }
  luaL_Buffer b;
  float *out = (float *)(void *)luaL_buffinitsize(L, &b, (size_t)n * sizeof *out);
  uint64_t row_bytes = columns / info->block * info->bytes;
  for (lua_Integer r = from; t->gather && r <= to; r++) ane_gather_floats(t, r - 1, out + (uint64_t)(r - from) * columns);
  if (n && !t->gather) decode((const uint8_t *)t->data + (uint64_t)(from - 1) * row_bytes, out, n);
  luaL_pushresultsize(&b, (size_t)n * sizeof *out);
  return 1;
}

static const luaL_Reg methods[] = {
    {"close", meth_close},         {"path", meth_path},   {"format", meth_format},   {"meta", meth_meta},
    {"meta_len", meth_meta_len},   {"keys", meth_keys},   {"tensors", meth_tensors}, {"tensor", meth_tensor},
    {"n_tensors", meth_n_tensors}, {"bytes", meth_bytes}, {"read", meth_read},       {"holds", meth_holds},
    {"is_set", meth_is_set},       {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__gc", meth_close},
    {"__close", meth_close},
    {"__tostring", meth_tostring},
    {NULL, NULL},
};

static const luaL_Reg functions[] = {
    {"open", source_open},
    {NULL, NULL},
};

void bind_source(lua_State *L) {
  bind_class(L, SOURCE_CLASS, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
