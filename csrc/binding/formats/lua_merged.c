/* core.merged(source, edits): a source with some of its tensors changed: adapters merged, rotations and scales folded in. */
#include "binding/formats/bind_source.h"

#include "quant/quant.h"

#include <string.h>

/* One edit, read from its table at stack index `at`. */
struct edit {
  const char *name, *from; /* the tensor; the one whose numbers it begins with */
  int at;
  bool alias;        /* the tensor of `from` unchanged, under another name */
  const char *bytes; /* of the tensor in the type `dtype`; NULL: changes make it */
  size_t size;
  ane_dtype dtype;
};

static const char *text_field(lua_State *L, int t, const char *name) {
  const char *text = bind_opt_text_option(L, t, name);
  if (!text) luaL_error(L, "an edit has no %s", name);
  return text;
}

/* n floats of field `name` of the table at t; NULL if it is absent. */
static const float *floats(lua_State *L, int t, const char *name, int64_t n) {
  size_t size = 0;
  lua_getfield(L, t, name);
  const char *bytes = lua_isnil(L, -1) ? NULL : luaL_checklstring(L, -1, &size);
  if (bytes && size != (size_t)n * sizeof(float)) luaL_error(L, "%s of an edit has %I bytes", name, (LUAI_UACINT)size);
  lua_pop(L, 1);
  return (const float *)(const void *)bytes;
}

/* Rows and columns of a tensor for adapters: a vector is one row. */
static void sides(const struct ane_shape *s, int64_t *rows, int64_t *cols) {
  *cols = s->rank ? s->dim[s->rank - 1] : 1;
  *rows = 1;
  for (uint32_t i = 0; i + 1 < s->rank; i++) *rows *= s->dim[i];
}

/* Rows [from, to) of w, which the rotation {rotate = n, along, seed, from, to} at t changes in place. */
static ane_status rotate(lua_State *L, int t, float *w, int64_t rows, int64_t cols, struct ane_error *err) {
  int64_t n = bind_opt_integer_option(L, t, "rotate", 1, 1, ANE_ROTATION_MOST);
  int64_t from = bind_opt_integer_option(L, t, "from", 0, 0, rows), to = bind_opt_integer_option(L, t, "to", rows, from, rows);
  uint64_t seed = (uint64_t)bind_opt_integer_option(L, t, "seed", 0, INT64_MIN, INT64_MAX);
  bool by_rows = bind_boolean_option(L, t, "rows");
  struct ane_rotation r;
  if ((by_rows ? to - from : cols) % n)
    luaL_error(L, "a rotation of %I elements for %I", (LUAI_UACINT)n, (LUAI_UACINT)(by_rows ? to - from : cols));
  ane_status st = ane_rotation_make(&r, n, seed, err);
  if (st) return st;
  (by_rows ? ane_rotate_rows : ane_rotate_columns)(&r, w + from * cols, to - from, cols);
  ane_rotation_free(&r);
  return ANE_OK;
}

static void multiply(float *w, int64_t rows, int64_t cols, const float *columns) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) w[r * cols + c] *= columns[c];
}

/* One change: a rotation, factors of the columns, or an adapter's. */
static ane_status change(lua_State *L, int t, float *w, int64_t rows, int64_t cols, float *temp, struct ane_error *err) {
  bool rotates = lua_getfield(L, t, "rotate") != LUA_TNIL;
  lua_pop(L, 1);
  if (rotates) return rotate(L, t, w, rows, cols, err);
  const float *columns = floats(L, t, "columns", cols);
  if (columns) {
    multiply(w, rows, cols, columns);
    return ANE_OK;
  }
  struct ane_lora l = {.rank = bind_opt_integer_option(L, t, "rank", 0, 0, INT32_MAX),
                       .scale = (float)bind_opt_number_option(L, t, "scale", 1, -1e30, 1e30),
                       .blend = (float)bind_opt_number_option(L, t, "blend", 1, -1e30, 1e30)};
  l.a = floats(L, t, "a", l.rank * cols), l.b = floats(L, t, "b", rows * l.rank);
  l.magnitude = floats(L, t, "magnitude", rows), l.values = floats(L, t, "values", rows * cols);
  if (!l.b) l.a = NULL;
  ane_lora_merge(w, rows, cols, &l, temp);
  return ANE_OK;
}

/* Applies the list `changes` of an edit to w. */
static ane_status apply(lua_State *L, const struct edit *e, float *w, const struct ane_shape *shape, float *temp,
                        struct ane_error *err) {
  int64_t rows, cols;
  ane_status st = ANE_OK;
  sides(shape, &rows, &cols);
  lua_getfield(L, e->at, "changes");
  int list = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, list);
  for (lua_Integer i = 0; i < n && !st; i++) {
    lua_rawgeti(L, list, i + 1);
    int t = lua_gettop(L);
    luaL_checktype(L, t, LUA_TTABLE);
    st = change(L, t, w, rows, cols, temp, err);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return st;
}

/* The entry of the overlay for an edit; raises where its source has no such tensor, or one without a decoder. */
static struct ane_source_tensor entry_of(lua_State *L, const struct ane_source *s, const struct edit *e) {
  const struct ane_source_tensor *from = ane_source_tensor(s, e->from);
  if (!from) luaL_error(L, "no tensor %s", e->from);
  struct ane_source_tensor t = *from;
  t.name = e->name;
  if (e->alias) return t;
  if (e->bytes) {
    uint64_t count, bytes;
    t.parts = NULL, t.n_parts = 0;
    t.tensor = (struct ane_tensor){.dtype = e->dtype, .shape = from->tensor.shape};
    if (!ane_shape_count(&t.tensor.shape, &count) || !ane_dtype_bytes(e->dtype, count, &bytes) || bytes != e->size)
      luaL_error(L, "tensor %s has %I bytes", e->name, (LUAI_UACINT)e->size);
    return t;
  }
  if (!ane_decoder(from->tensor.dtype) || from->parts || from->tensor.gather)
    luaL_error(L, "tensor %s cannot be changed", e->from);
  t.tensor = (struct ane_tensor){.dtype = ANE_F32, .shape = from->tensor.shape};
  return t;
}

/* Reads an edit from the table on top of the stack; the strings stay in that table. */
static struct edit edit_of(lua_State *L) {
  int t = lua_gettop(L);
  luaL_checktype(L, t, LUA_TTABLE);
  struct edit e = {.name = text_field(L, t, "name"), .alias = bind_boolean_option(L, t, "alias")};
  e.from = bind_opt_text_option(L, t, "from");
  if (!e.from) e.from = e.name;
  if (lua_getfield(L, t, "bytes") != LUA_TNIL) {
    const char *dtype = text_field(L, t, "dtype");
    e.bytes = luaL_checklstring(L, -1, &e.size);
    e.dtype = ane_dtype_from_name(dtype, strlen(dtype));
    if (e.dtype == ANE_DTYPE_COUNT) luaL_error(L, "no type %s", dtype);
  }
  lua_pop(L, 1);
  return e;
}

/* merged(source, edits) -> source; or nil, message, code. edits: list of {name, from (default name), alias = true: as stored, or
 * dtype, bytes (of the whole tensor, in that type), or changes = list of {rank, scale, blend, a, b, magnitude, values} (float32
 * bytes; see ane_lora), {columns} (float32 bytes: factors of the columns) or {rotate = n, seed, rows (true: the rows turn, else
 * the columns), from, to (of the rows)} (see ane_rotation), one after the other}. Changed tensors are fp32. */
static int merged(lua_State *L) {
  struct ane_source *s = bind_check_source(L, 1);
  struct ane_error err;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_Integer n = (lua_Integer)ANE_MIN(lua_rawlen(L, 2), (size_t)1 << 20);
  struct edit *edits = lua_newuserdatauv(L, (size_t)ANE_MAX(n, 1) * sizeof *edits, 0);
  struct ane_source_tensor *list = lua_newuserdatauv(L, (size_t)ANE_MAX(n, 1) * sizeof *list, 0);
  int64_t rows, cols, most = 1;
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    edits[i] = edit_of(L);
    list[i] = entry_of(L, s, &edits[i]);
    sides(&list[i].tensor.shape, &rows, &cols);
    most = ANE_MAX(most, cols);
    lua_pop(L, 1);
  }
  float *temp = lua_newuserdatauv(L, (size_t)most * sizeof *temp, 0);
  struct ane_source **out = bind_new_source(L);
  int self = lua_gettop(L);
  if (ane_source_overlay(out, s, list, (uint32_t)n, &err)) return bind_fail(L, &err);
  for (lua_Integer i = 0; i < n; i++) {
    if (edits[i].alias) continue;
    const struct ane_tensor *from = &ane_source_tensor(s, edits[i].from)->tensor,
                            *to = &ane_source_tensor(*out, edits[i].name)->tensor;
    float *w = (float *)(uintptr_t)to->data; /* the overlay's own memory */
    if (edits[i].bytes) {
      memcpy(w, edits[i].bytes, edits[i].size);
      continue;
    }
    ane_decoder(from->dtype)(from->data, w, to->bytes / sizeof *w);
    lua_rawgeti(L, 2, i + 1);
    edits[i].at = lua_gettop(L);
    if (apply(L, &edits[i], w, &to->shape, temp, &err)) return bind_fail(L, &err); /* the source closes itself */
    lua_pop(L, 1);
  }
  lua_settop(L, self);
  return 1;
}

void bind_merged(lua_State *L) {
  lua_pushcfunction(L, merged);
  lua_setfield(L, -2, "merged");
}
