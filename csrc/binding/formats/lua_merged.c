/* core.merged(source, edits): a source with adapters merged into some of its tensors. */
#include "binding/formats/bind_source.h"

#include "quant/quant.h"

#include <string.h>

/* One edit, read from its table at stack index `at`. */
struct edit {
  const char *name, *from; /* the tensor; the one whose numbers it begins with */
  int at;
  bool alias; /* the tensor of `from` unchanged, under another name */
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

/* Applies the changes {{rank, scale, blend, a, b, magnitude, values}, ...} of an edit to w. */
static void apply(lua_State *L, const struct edit *e, float *w, const struct ane_shape *shape, float *temp) {
  int64_t rows, cols;
  sides(shape, &rows, &cols);
  lua_getfield(L, e->at, "changes");
  int list = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, list);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, list, i + 1);
    int t = lua_gettop(L);
    luaL_checktype(L, t, LUA_TTABLE);
    struct ane_lora l = {.rank = bind_opt_integer_option(L, t, "rank", 0, 0, INT32_MAX),
                         .scale = (float)bind_opt_number_option(L, t, "scale", 1, -1e30, 1e30),
                         .blend = (float)bind_opt_number_option(L, t, "blend", 1, -1e30, 1e30)};
    l.a = floats(L, t, "a", l.rank * cols), l.b = floats(L, t, "b", rows * l.rank);
    l.magnitude = floats(L, t, "magnitude", rows), l.values = floats(L, t, "values", rows * cols);
    if (!l.b) l.a = NULL;
    ane_lora_merge(w, rows, cols, &l, temp);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* The entry of the overlay for an edit; raises where its source has no such tensor, or one without a decoder. */
static struct ane_source_tensor entry_of(lua_State *L, const struct ane_source *s, const struct edit *e) {
  const struct ane_source_tensor *from = ane_source_tensor(s, e->from);
  if (!from) luaL_error(L, "no tensor %s", e->from);
  struct ane_source_tensor t = *from;
  t.name = e->name;
  if (e->alias) return t;
  if (!ane_decoder(from->tensor.dtype) || from->parts || from->tensor.gather)
    luaL_error(L, "tensor %s cannot be changed", e->from);
  t.tensor = (struct ane_tensor){.dtype = ANE_F32, .shape = from->tensor.shape};
  return t;
}

/* merged(source, edits) -> source; or nil, message, code. edits: list of {name, from (default name), alias = true: as stored, or
 * changes = list of {rank, scale, blend, a, b, magnitude, values} (float32 bytes), one after the other: see ane_lora}. Changed
 * tensors are fp32. */
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
    int t = lua_gettop(L);
    luaL_checktype(L, t, LUA_TTABLE);
    edits[i] = (struct edit){.name = text_field(L, t, "name"), .alias = bind_boolean_option(L, t, "alias")};
    edits[i].from = bind_opt_text_option(L, t, "from");
    if (!edits[i].from) edits[i].from = edits[i].name;
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
    ane_decoder(from->dtype)(from->data, w, to->bytes / sizeof *w);
    lua_rawgeti(L, 2, i + 1);
    edits[i].at = lua_gettop(L);
    apply(L, &edits[i], w, &to->shape, temp);
    lua_pop(L, 1);
  }
  lua_settop(L, self);
  return 1;
}

void bind_merged(lua_State *L) {
  lua_pushcfunction(L, merged);
  lua_setfield(L, -2, "merged");
}
