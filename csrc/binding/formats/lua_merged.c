/* core.merged(source, edits): a source with some of its tensors changed: adapters merged, rotations and scales folded in. */
#include "binding/formats/bind_source.h"

#include "quant/quant.h"
#include "tensor/finite.h"

#include <float.h>
#include <string.h>

/* One edit, read from its table at stack index `at`. */
struct edit {
  const char *name, *from; /* the tensor; the one whose numbers it begins with */
  int at;
  bool alias; /* the tensor of `from` unchanged, under another name */
  bool typed; /* it has the type `dtype`, and bytes, now or later; otherwise changes make it */
  const char *bytes;
  size_t size;
  int64_t head; /* of bytes: rows of a head that were written in pairs; 0: in the order of the tensor */
  ane_dtype dtype;
};

static const char *text_field(lua_State *L, int t, const char *name) {
  const char *text = bind_opt_text_option(L, t, name);
  if (!text) luaL_error(L, "an edit has no %s", name);
  return text;
}

static const float *floats(lua_State *L, int t, const char *name, int64_t n) {
  return bind_opt_floats_option(L, t, name, n, "an edit");
}

/* Sets the rows and columns of a tensor, as adapters see it: a vector is one row. */
static void matrix_size(const struct ane_shape *s, int64_t *rows, int64_t *cols) {
  *cols = s->rank ? s->dim[s->rank - 1] : 1;
  *rows = 1;
  for (uint32_t i = 0; i + 1 < s->rank; i++) *rows *= s->dim[i];
}

/* Applies the rotation {rotate = n, rows, seed, from, to} at t to rows [from, to) of w, in place. */
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

/* Applies the change of stacked experts: l, whose a and b are not set yet, with the fields `experts` = n, `expert` (w is the
 * matrix of this one alone; absent: w [n][out][in] has all), `outputs`, `first`, `step` (row i of a matrix takes row
 * first + i * step of B) and `transposed` (matrices are stored as [in][out]). The n experts share A [n * rank][in], row
 * e * rank + k for expert e, and B [outputs][rank * n], column k * n + e. */
static void change_experts(lua_State *L, int t, float *w, int64_t rows, int64_t cols, struct ane_lora l, float *temp) {
  enum { MOST = 1 << 16 };
  const int64_t n = bind_opt_integer_option(L, t, "experts", 1, 1, MOST),
                one = bind_opt_integer_option(L, t, "expert", -1, -1, n - 1);
  const int64_t outputs = bind_opt_integer_option(L, t, "outputs", 0, 0, INT32_MAX);
  const int64_t first = bind_opt_integer_option(L, t, "first", 0, 0, INT32_MAX),
                step = bind_opt_integer_option(L, t, "step", 1, 1, 2);
  const bool turned = bind_boolean_option(L, t, "transposed");
  if (one < 0 && rows % n) luaL_error(L, "an edit has %I experts for %I rows", (LUAI_UACINT)n, (LUAI_UACINT)rows);
  if (one < 0) rows /= n;
  const int64_t out = turned ? cols : rows, in = turned ? rows : cols, all = n * l.rank;
  if (l.rank > MOST || out < 1 || first + (out - 1) * step >= outputs)
    luaL_error(L, "an edit of experts has rank %I and %I outputs", (LUAI_UACINT)l.rank, (LUAI_UACINT)outputs);
  const float *a = floats(L, t, "a", all * in), *b = floats(L, t, "b", outputs * all);
  if (!a || !b) luaL_error(L, "an edit of experts has no product");
  float *left = lua_newuserdatauv(L, (size_t)(rows * l.rank) * sizeof *left, 0);
  float *right = lua_newuserdatauv(L, (size_t)(l.rank * cols) * sizeof *right, 0);
  l.a = right, l.b = left;
  for (int64_t e = one < 0 ? 0 : one; e < (one < 0 ? n : one + 1); e++, w += rows * cols) {
    for (int64_t i = 0; i < (turned ? in : out); i++)
      for (int64_t k = 0; k < l.rank; k++)
        left[i * l.rank + k] = turned ? a[(e * l.rank + k) * in + i] : b[(first + i * step) * all + k * n + e];
    for (int64_t k = 0; k < l.rank; k++)
      for (int64_t c = 0; c < cols; c++)
        right[k * cols + c] = turned ? b[(first + c * step) * all + k * n + e] : a[(e * l.rank + k) * in + c];
    ane_lora_merge(w, rows, cols, &l, temp);
  }
  lua_pop(L, 2);
}

/* Applies one change: a rotation, factors of the columns, or an adapter. */
static ane_status change(lua_State *L, int t, float *w, int64_t rows, int64_t cols, float *temp, struct ane_error *err) {
  bool rotates = bind_field(L, t, "rotate") != LUA_TNIL;
  lua_pop(L, 1);
  if (rotates) return rotate(L, t, w, rows, cols, err);
  const float *columns = floats(L, t, "columns", cols);
  if (columns) {
    multiply(w, rows, cols, columns);
    return ANE_OK;
  }
  struct ane_lora l = {.rank = bind_opt_integer_option(L, t, "rank", 0, 0, INT32_MAX),
                       .scale = (float)bind_opt_number_option(L, t, "scale", 1, -FLT_MAX, FLT_MAX),
                       .blend = (float)bind_opt_number_option(L, t, "blend", 1, -FLT_MAX, FLT_MAX)};
  bool experts = bind_field(L, t, "experts") != LUA_TNIL;
  lua_pop(L, 1);
  if (experts) {
    change_experts(L, t, w, rows, cols, l, temp);
    return ANE_OK;
  }
  int64_t from = bind_opt_integer_option(L, t, "from", 0, 0, rows), to = bind_opt_integer_option(L, t, "to", rows, from, rows);
  w += from * cols, rows = to - from;
  l.a = floats(L, t, "a", l.rank * cols), l.b = floats(L, t, "b", rows * l.rank);
  l.magnitude = floats(L, t, "magnitude", rows), l.values = floats(L, t, "values", rows * cols);
  if (!l.b) l.a = NULL;
  ane_lora_merge(w, rows, cols, &l, temp);
  return ANE_OK;
}

/* Applies the list `changes` of an edit to w. After a change of an adapter, whose path is its field `adapter`, w must be finite.
 */
static ane_status apply(lua_State *L, const struct edit *e, float *w, const struct ane_shape *shape, float *temp,
                        struct ane_error *err) {
  int64_t rows, cols;
  ane_status st = ANE_OK;
  matrix_size(shape, &rows, &cols);
  bind_field(L, e->at, "changes");
  int list = lua_gettop(L);
  lua_Integer n = (lua_Integer)lua_rawlen(L, list);
  for (lua_Integer i = 0; i < n && !st; i++) {
    lua_rawgeti(L, list, i + 1);
    int t = lua_gettop(L);
    luaL_checktype(L, t, LUA_TTABLE);
    st = change(L, t, w, rows, cols, temp, err);
    const char *adapter = bind_opt_text_option(L, t, "adapter");
    if (!st && adapter && !ane_all_finite(w, (uint64_t)(rows * cols)))
      st = ane_fail(err, ANE_INVALID, "%s: with it, tensor %s has an element that is not finite: its scale is too large", adapter,
                    e->name);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return st;
}

/* Makes the entry of the overlay for an edit. Fails if the tensor's numbers cannot be decoded; raises if there is no tensor. */
static ane_status entry_of(lua_State *L, const struct ane_source *s, const struct edit *e, struct ane_source_tensor *entry,
                           struct ane_error *err) {
  const struct ane_source_tensor *from = ane_source_tensor(s, e->from);
  if (!from) luaL_error(L, "no tensor %s", e->from);
  struct ane_source_tensor t = *from;
  t.name = e->name;
  *entry = t;
  if (e->alias) return ANE_OK;
  t.parts = NULL, t.n_parts = 0;
  if (e->typed) {
    uint64_t count, bytes;
    t.tensor = (struct ane_tensor){.dtype = e->dtype, .shape = from->tensor.shape};
    if (!ane_shape_count(&t.tensor.shape, &count) || !ane_dtype_bytes(e->dtype, count, &bytes) || (e->bytes && bytes != e->size))
      luaL_error(L, "tensor %s has %I bytes", e->name, (LUAI_UACINT)e->size);
    *entry = t;
    return ANE_OK;
  }
  if ((!ane_decoder(from->tensor.dtype) && !from->tensor.gather) || from->parts)
    return ane_fail(err, ANE_UNSUPPORTED, "%s: tensor %s cannot be changed: it is %s", s->path, e->from,
                    from->parts ? "stored in pieces" : ane_dtype_info(from->tensor.dtype)->name);
  t.tensor = (struct ane_tensor){.dtype = ANE_F32, .shape = from->tensor.shape};
  *entry = t;
  return ANE_OK;
}

/* Reads an edit from the table on top of the stack; the strings stay in that table. */
static struct edit edit_of(lua_State *L) {
  int t = lua_gettop(L);
  luaL_checktype(L, t, LUA_TTABLE);
  struct edit e = {.name = text_field(L, t, "name"), .alias = bind_boolean_option(L, t, "alias")};
  e.from = bind_opt_text_option(L, t, "from");
  if (!e.from) e.from = e.name;
  e.head = bind_opt_integer_option(L, t, "head", 0, 0, INT32_MAX);
  if (bind_field(L, t, "bytes") != LUA_TNIL) luaL_checktype(L, -1, LUA_TSTRING);
  e.bytes = lua_tolstring(L, -1, &e.size);
  lua_pop(L, 1);
  const char *dtype = bind_opt_text_option(L, t, "dtype");
  if (!dtype && e.bytes) luaL_error(L, "an edit has bytes but no dtype");
  if (!dtype) return e;
  e.typed = true;
  e.dtype = ane_dtype_from_name(dtype, strlen(dtype));
  if (e.dtype == ANE_DTYPE_COUNT) luaL_error(L, "no type %s", dtype);
  return e;
}

/* Reads the edits of the list at `list` as an overlay: fills edits and entries, and *most, the largest number of columns. */
static ane_status entries_of(lua_State *L, const struct ane_source *s, int list, lua_Integer n, struct edit *edits,
                             struct ane_source_tensor *entries, int64_t *most, struct ane_error *err) {
  int64_t rows, cols;
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, list, i + 1);
    edits[i] = edit_of(L);
    ane_status st = entries ? entry_of(L, s, &edits[i], &entries[i], err) : ANE_OK;
    if (st) return st;
    const struct ane_source_tensor *t = entries ? &entries[i] : ane_source_tensor(s, edits[i].from);
    if (!t) luaL_error(L, "no tensor %s", edits[i].from);
    matrix_size(&t->tensor.shape, &rows, &cols);
    *most = ANE_MAX(*most, cols);
    lua_pop(L, 1);
  }
  return ANE_OK;
}

/* Copies the bytes of an edit to a tensor. Rows of a head that were written in pairs (ane_recode) return to the order of the
 * tensor. */
static void copy_bytes(lua_State *L, const struct edit *e, const struct ane_tensor *to) {
  uint8_t *w = (uint8_t *)(uintptr_t)to->data;
  if (e->size != to->bytes)
    luaL_error(L, "tensor %s has %I bytes, but must have %I", e->name, (LUAI_UACINT)to->bytes, (LUAI_UACINT)e->size);
  if (!e->head) {
    memcpy(w, e->bytes, e->size);
    return;
  }
  int64_t rows = to->shape.rank > 1 ? to->shape.dim[0] : 1;
  if (rows % e->head || e->head % 2) luaL_error(L, "tensor %s has no heads of %I rows", e->name, (LUAI_UACINT)e->head);
  size_t row = e->size / (size_t)rows;
  for (int64_t i = 0; i < rows; i++) {
    int64_t at = i % e->head, from = i - at + at % 2 * (e->head / 2) + at / 2;
    memcpy(w + (size_t)from * row, e->bytes + (size_t)i * row, row);
  }
}

/* Computes edit i of the list at `list` into the overlay's memory. temp: a row. */
static ane_status fill(lua_State *L, const struct ane_source *s, struct ane_source *overlay, int list, lua_Integer i,
                       struct edit *e, float *temp, struct ane_error *err) {
  const struct ane_source_tensor *source = ane_source_tensor(s, e->from);
  const struct ane_tensor *from = &source->tensor;
  const struct ane_source_tensor *to = ane_source_tensor(overlay, e->name);
  if (e->alias) return ANE_OK;
  if (!to || !to->unset) luaL_error(L, "tensor %s is not changed", e->name);
  if (e->bytes) {
    copy_bytes(L, e, &to->tensor);
    ane_source_set(to);
    return ANE_OK;
  }
  if (e->typed) return ANE_OK; /* its bytes come later */
  float *w = (float *)(uintptr_t)to->tensor.data;
  int64_t rows, cols;
  matrix_size(&to->tensor.shape, &rows, &cols);
  for (int64_t r = 0; from->gather && r < rows; r++) ane_gather_floats(from, r, w + r * cols);
  if (!from->gather) ane_decoder(from->dtype)(from->data, w, to->tensor.bytes / sizeof *w);
  ane_source_drop(s, source);
  lua_rawgeti(L, list, i + 1);
  e->at = lua_gettop(L);
  ane_status st = apply(L, e, w, &to->tensor.shape, temp, err);
  lua_pop(L, 1);
  if (!st) ane_source_set(to);
  return st;
}

static lua_Integer count_edits(lua_State *L, int list) {
  luaL_checktype(L, list, LUA_TTABLE);
  return (lua_Integer)ANE_MIN(lua_rawlen(L, list), (size_t)1 << 20);
}

/* merged(source, edits [, later]) -> source; or nil, message, code. edits: list of {name, from (default name), alias = true: as
 * stored, or dtype, bytes (of the whole tensor, in that type), or changes = list of {rank, scale, blend, a, b, magnitude, values}
 * (float32 bytes; see ane_lora), from, to (of the rows, the last excluded) or experts (see change_experts)}, {columns} (float32
 * bytes: factors of the columns) or {rotate = n, seed, rows (true: rotates the rows, else the columns), from, to (of the rows)}
 * (see ane_rotation), one after the other}. Changed tensors are fp32. later = true: the tensors are unset until merge_into
 * computes them; an edit may then have a dtype without bytes. */
static int merged(lua_State *L) {
  struct ane_source *s = bind_check_source(L, 1);
  struct ane_error err;
  lua_Integer n = count_edits(L, 2);
  bool later = lua_toboolean(L, 3);
  struct edit *edits = lua_newuserdatauv(L, (size_t)ANE_MAX(n, 1) * sizeof *edits, 0);
  struct ane_source_tensor *list = lua_newuserdatauv(L, (size_t)ANE_MAX(n, 1) * sizeof *list, 0);
  int64_t most = 1;
  if (entries_of(L, s, 2, n, edits, list, &most, &err)) return bind_fail(L, &err);
  for (lua_Integer i = 0; !later && i < n; i++)
    if (edits[i].typed && !edits[i].bytes) return luaL_error(L, "tensor %s has a type but no bytes", edits[i].name);
  float *temp = lua_newuserdatauv(L, (size_t)most * sizeof *temp, 0);
  struct ane_source **out = bind_new_source(L);
  int self = lua_gettop(L);
  if (ane_source_overlay(out, s, list, (uint32_t)n, &err)) return bind_fail(L, &err);
  for (lua_Integer i = 0; !later && i < n; i++)
    if (fill(L, s, *out, 2, i, &edits[i], temp, &err)) return bind_fail(L, &err); /* the source closes itself */
  lua_settop(L, self);
  return 1;
}

/* merge_into(merged, source, edits) -> true; or nil, message, code. Computes some tensors of what merged(source, ...) gave. bytes
 * of an edit may have `head`: rows of a head were written in pairs. */
static int merge_into(lua_State *L) {
  struct ane_source *overlay = bind_check_source(L, 1), *s = bind_check_source(L, 2);
  struct ane_error err;
  lua_Integer n = count_edits(L, 3);
  struct edit *edits = lua_newuserdatauv(L, (size_t)ANE_MAX(n, 1) * sizeof *edits, 0);
  int64_t most = 1;
  if (entries_of(L, s, 3, n, edits, NULL, &most, &err)) return bind_fail(L, &err);
  float *temp = lua_newuserdatauv(L, (size_t)most * sizeof *temp, 0);
  for (lua_Integer i = 0; i < n; i++)
    if (fill(L, s, overlay, 3, i, &edits[i], temp, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

/* merge_forget(merged, names): gives the memory of changed tensors back, until merge_into computes them again */
static int merge_forget(lua_State *L) {
  struct ane_source *overlay = bind_check_source(L, 1);
  lua_Integer n = count_edits(L, 2);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    const struct ane_source_tensor *t = ane_source_tensor(overlay, luaL_checkstring(L, -1));
    if (t) ane_source_forget(t);
    lua_pop(L, 1);
  }
  return 0;
}

void bind_merged(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"merged", merged}, {"merge_into", merge_into}, {"merge_forget", merge_forget}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
