/* core.gguf_writer(path, threads): a GGUF file written tensor by tensor, re-encoded on the way. */
#include "binding/tensor/bind_factor.h"
#include "binding/tensor/bind_tensor.h"
#include "binding/formats/bind_source.h"

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "quant/quant.h"
#include "quant/weight_schemes.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WRITER_CLASS "ane.gguf_writer"

struct lua_gguf {
  struct ane_gguf_writer *writer; /* NULL: closed */
  struct ane_pool *pool;
  bool busy; /* inside send, whose progress function must not use the writer */
};

static struct lua_gguf *check_idle(lua_State *L) {
  struct lua_gguf *ud = luaL_checkudata(L, 1, WRITER_CLASS);
  if (ud->busy) luaL_error(L, "writer is busy");
  return ud;
}

static struct lua_gguf *check_writer(lua_State *L) {
  struct lua_gguf *ud = check_idle(L);
  if (!ud->writer) luaL_error(L, "writer is closed");
  return ud;
}

static int done(lua_State *L, ane_status st, const struct ane_error *err) {
  if (st) return bind_fail(L, err);
  lua_pushboolean(L, 1);
  return 1;
}

/* gguf_writer(path, threads) -> writer; or nil, message, code */
static int writer_new(lua_State *L) {
  const char *path = bind_text(L, 1);
  int threads = (int)bind_integer(L, 2, 1, 1024);
  struct lua_gguf *ud = bind_new(L, WRITER_CLASS, sizeof *ud, 0);
  struct ane_error err;
  if (ane_pool_create(&ud->pool, threads, &err) || ane_gguf_create(&ud->writer, path, &err)) return bind_fail(L, &err);
  return 1;
}

static int meth_close(lua_State *L) {
  struct lua_gguf *ud = check_idle(L);
  ane_gguf_close(ud->writer);
  ud->writer = NULL;
  if (ud->pool) ane_pool_destroy(ud->pool);
  ud->pool = NULL;
  return 0;
}

static int meth_tostring(lua_State *L) {
  struct lua_gguf *ud = luaL_checkudata(L, 1, WRITER_CLASS);
  lua_pushstring(L, ud->writer ? "GGUF writer" : "GGUF writer (closed)");
  return 1;
}

/* ---- Values ------------------------------------------------------------------------------------------------------*/

static ane_meta_kind kind_of(ane_dtype t) {
  switch (t) {
    case ANE_F32:
    case ANE_F64: return ANE_META_FLOAT;
    case ANE_BOOL: return ANE_META_BOOL;
    case ANE_I8:
    case ANE_I16:
    case ANE_I32:
    case ANE_I64: return ANE_META_INT;
    default: return ANE_META_UINT;
  }
}

/* Returns whether v fits an integer type of `bytes` bytes. */
static bool in_range(lua_Integer v, ane_meta_kind kind, uint32_t bytes) {
  if (bytes == 8) return kind == ANE_META_INT || v >= 0;
  lua_Integer range = (lua_Integer)1 << (8 * bytes - (kind == ANE_META_INT));
  return v < range && v >= (kind == ANE_META_INT ? -range : 0);
}

/* Returns the Lua value at idx as a scalar of type t; raises if it is not one. */
static struct ane_meta to_scalar(lua_State *L, int idx, ane_dtype t) {
  const struct ane_dtype_info *info = ane_dtype_info(t);
  struct ane_meta m = {.kind = kind_of(t), .dtype = t};
  int ok = 1;
  if (m.kind == ANE_META_FLOAT)
    m.f = lua_tonumberx(L, idx, &ok);
  else if (m.kind == ANE_META_BOOL)
    m.i = lua_toboolean(L, idx), ok = lua_isboolean(L, idx);
  else
    m.i = lua_tointegerx(L, idx, &ok), ok = ok && in_range(m.i, m.kind, info->bytes);
  if (!ok) luaL_error(L, "set: %s is no %s", luaL_tolstring(L, idx, NULL), info->name);
  return m;
}

static void store_scalar(const struct ane_meta *m, uint8_t *at) {
  uint64_t u = m->u;
  if (m->dtype == ANE_F32)
    u = ane_f32_bits((float)m->f);
  else if (m->dtype == ANE_F64)
    memcpy(&u, &m->f, sizeof u);
  for (uint32_t i = 0; i < ane_dtype_info(m->dtype)->bytes; i++) at[i] = (uint8_t)(u >> 8 * i);
}

/* Returns the list at idx as an array. Its memory is a userdata that stays on the stack; strings stay in the list. */
static struct ane_meta to_array(lua_State *L, int idx, bool strings, ane_dtype t) {
  size_t n = bind_length(L, idx, INT32_MAX), size = strings ? sizeof(struct ane_meta) : ane_dtype_info(t)->bytes;
  struct ane_meta m = {.kind = ANE_META_ARRAY};
  uint8_t *data = lua_newuserdatauv(L, (n ? n : 1) * size, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, idx, (lua_Integer)i + 1);
    if (strings) {
      struct ane_meta s = {.kind = ANE_META_STRING};
      size_t len;
      if (lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "set: entry %I is %s, not a string", (LUAI_UACINT)(i + 1), bind_kind(L, -1));
      s.s.data = lua_tolstring(L, -1, &len);
      s.s.len = len;
      memcpy(data + i * size, &s, sizeof s);
    } else {
      struct ane_meta s = to_scalar(L, lua_gettop(L), t);
      store_scalar(&s, data + i * size);
    }
    lua_pop(L, 1);
  }
  m.a.kind = strings ? ANE_META_STRING : kind_of(t);
  m.a.dtype = strings ? ANE_U8 : t;
  m.a.count = n;
  if (strings)
    m.a.items = (const struct ane_meta *)(const void *)data;
  else
    m.a.data = data;
  return m;
}

/* set(key, type, value) -> true; or nil, message, code. type: uint8 .. int64, fp32, fp64, bool, string; with the suffix []
 * the value is a list of them. */
static int meth_set(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  const char *key = bind_text(L, 2);
  size_t len;
  const char *type = luaL_checklstring(L, 3, &len);
  bool list = len > 2 && strcmp(type + len - 2, "[]") == 0;
  if (list) len -= 2;
  bool string = len == 6 && memcmp(type, "string", 6) == 0;
  ane_dtype t = string ? ANE_U8 : ane_dtype_from_name(type, len);
  luaL_argcheck(L, t != ANE_DTYPE_COUNT && ane_dtype_info(t)->block == 1, 3, "no type of values");
  struct ane_meta m = {.kind = ANE_META_STRING};
  struct ane_error err;
  if (list)
    m = to_array(L, 4, string, t);
  else if (!string)
    m = to_scalar(L, 4, t);
  else
    m.s.data = luaL_checklstring(L, 4, &len), m.s.len = len;
  return done(L, ane_gguf_add_value(ud->writer, key, &m, &err), &err);
}

/* copy(source, key) -> true; or nil, message, code: copies the value unchanged */
static int meth_copy(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  const struct ane_source *s = bind_check_source(L, 2);
  const char *key = bind_text(L, 3);
  const struct ane_meta *m = ane_source_meta(s, key);
  struct ane_error err;
  if (!m) return done(L, ane_fail(&err, ANE_NOTFOUND, "%s: no metadata key %s", s->path, key), &err);
  return done(L, ane_gguf_add_value(ud->writer, key, m, &err), &err);
}

/* ---- Tensors -----------------------------------------------------------------------------------------------------*/

/* add(name, dtype, shape) -> bytes; or nil, message, code. shape: outermost first */
static int meth_add(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  const char *name = bind_text(L, 2);
  ane_dtype t = bind_check_dtype(L, 3);
  luaL_checktype(L, 4, LUA_TTABLE);
  struct ane_shape shape = {(uint32_t)ANE_MIN(lua_rawlen(L, 4), (lua_Unsigned)ANE_MAX_RANK), {0}};
  for (uint32_t i = 0; i < shape.rank; i++) {
    lua_rawgeti(L, 4, (lua_Integer)i + 1);
    shape.dim[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  struct ane_error err;
  uint64_t bytes;
  if (ane_gguf_add_tensor(ud->writer, name, t, &shape, &bytes, &err)) return bind_fail(L, &err);
  lua_pushinteger(L, (lua_Integer)bytes);
  return 1;
}

/* begin() -> true; or nil, message, code */
static int meth_begin(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  struct ane_error err;
  return done(L, ane_gguf_begin(ud->writer, &err), &err);
}

/* The data of the sink. The progress function runs in protected mode: an error in it ends the work, and is raised again when no
 * function of this module is on the C stack. */
struct sending {
  lua_State *L;
  struct ane_gguf_writer *writer;
  int progress; /* stack index of the function, 0: none */
  bool raised;
  const struct ane_factor *factor; /* of the options, which progress may close; NULL: none */
  const char *scheme;              /* of the option; NULL: none */
  bool keeps;                      /* the written bytes are also kept in `kept`, which is on the stack */
  struct ane_buffer *kept;
};

static ane_status on_rows(void *arg, const void *data, size_t size, struct ane_error *err) {
  struct sending *s = arg;
  ane_status st = ane_gguf_write(s->writer, data, size, err);
  if (!st && s->kept && !ane_buffer_append(s->kept, data, size)) st = ane_fail(err, ANE_NOMEM, "no memory to keep a tensor");
  if (st || !s->progress) return st;
  lua_pushvalue(s->L, s->progress);
  lua_pushinteger(s->L, (lua_Integer)ane_gguf_done(s->writer));
  lua_pushinteger(s->L, (lua_Integer)ane_gguf_size(s->writer));
  s->raised = lua_pcall(s->L, 2, 0, 0) != LUA_OK; /* the message stays on the stack */
  if (!s->raised && s->factor && !s->factor->order) return ane_fail(err, ANE_INVALID, "the factor was closed");
  return s->raised ? ane_fail(err, ANE_STOPPED, "stopped by the progress function") : ANE_OK;
}

/* Reads the options of send: rows first .. last (1-based), head, add, by, scheme, importance (float32 bytes, one number per
 * column), factor (of the inputs). */
static void send_options(lua_State *L, struct ane_recode *r, int64_t cols, struct sending *s) {
  if (lua_isnoneornil(L, 4)) return;
  luaL_checktype(L, 4, LUA_TTABLE);
  r->from = bind_opt_integer_option(L, 4, "first", 1, INT64_MIN, INT64_MAX) - 1;
  r->to = bind_opt_integer_option(L, 4, "last", -1, INT64_MIN, INT64_MAX);
  r->pair = bind_opt_integer_option(L, 4, "head", 0, INT64_MIN, INT64_MAX);
  bind_field(L, 4, "add");
  r->add = (float)luaL_optnumber(L, -1, 0);
  bind_field(L, 4, "by");
  r->by = (float)luaL_optnumber(L, -1, 0);
  bind_field(L, 4, "importance");
  if (!lua_isnil(L, -1)) {
    size_t len;
    const char *bytes = luaL_checklstring(L, -1, &len);
    if (len != (size_t)cols * sizeof(float))
      luaL_error(L, "send: importance has %I bytes, but must have a float32 for each of %I columns", (LUAI_UACINT)len,
                 (LUAI_UACINT)cols);
    r->importance = (const float *)(const void *)bytes; /* strings of Lua are aligned for any type; this one stays on the stack */
  }
  if (bind_field(L, 4, "factor") != LUA_TNIL) r->factor = bind_check_factor(L, lua_gettop(L), cols);
  s->factor = r->factor; /* it stays on the stack */
  s->scheme = bind_opt_text_option(L, 4, "scheme");
  s->keeps = bind_boolean_option(L, 4, "keep");
  bind_field(L, 4, "progress");
  s->progress = lua_isnil(L, -1) ? 0 : lua_gettop(L);
}

/* Finds the parameters of the option `scheme` for the whole tensor, as a matrix. */
static ane_status fit_scheme(const struct sending *s, struct ane_pool *pool, struct ane_recode *r, struct ane_weight_fit *fit,
                             struct ane_error *err) {
  struct ane_tensor matrix = *r->src;
  struct ane_weight_rows rows;
  struct ane_weight_spec spec;
  uint64_t count;
  if (!s->scheme) return ANE_OK;
  if (!ane_weight_spec_from_name(s->scheme, &spec)) return ane_fail(err, ANE_INVALID, "option scheme is %s", s->scheme);
  if (matrix.shape.rank > 2 && ane_shape_count(&matrix.shape, &count)) {
    int64_t cols = matrix.shape.dim[matrix.shape.rank - 1];
    matrix.shape = (struct ane_shape){2, {cols ? (int64_t)count / cols : 0, cols}};
  }
  ane_status st = ane_weight_rows_of(&matrix, &rows, err);
  if (!st) st = ane_weight_fit(fit, pool, &rows, spec, r->factor ? r->factor->importance : r->importance, err);
  fit->factor = r->factor;
  r->factor = NULL;
  r->fit = fit;
  return st;
}

static void push_error(lua_State *L, const struct ane_recode_error *e) {
  lua_createtable(L, 0, 4);
  lua_pushinteger(L, (lua_Integer)e->count);
  lua_setfield(L, -2, "count");
  lua_pushnumber(L, e->max_abs);
  lua_setfield(L, -2, "max_abs");
  lua_pushnumber(L, e->error);
  lua_setfield(L, -2, "error");
  lua_pushnumber(L, e->signal);
  lua_setfield(L, -2, "signal");
}

/* The columns of the matrix that rows first .. last of a tensor make, as rows: `view` becomes this matrix, transposed, and r
 * reads all of it. */
static ane_status transpose(struct ane_recode *r, struct ane_tensor *view, struct ane_error *err) {
  const struct ane_tensor *t = r->src;
  const struct ane_dtype_info *info = ane_dtype_info(t->dtype);
  uint64_t count;
  if (t->gather || t->transposed || info->block > 1)
    return ane_fail(err, ANE_UNSUPPORTED, "%s cannot be read by columns", info->name);
  if (t->shape.rank < 2 || !ane_shape_count(&t->shape, &count) || count == 0) return ane_fail(err, ANE_SHAPE, "it is no matrix");
  const int64_t cols = t->shape.dim[t->shape.rank - 1], rows = (int64_t)(count / (uint64_t)cols), to = r->to < 0 ? rows : r->to;
  if (r->from < 0 || to < r->from || to > rows)
    return ane_fail(err, ANE_RANGE, "rows %" PRId64 " .. %" PRId64 " of %" PRId64, r->from, to, rows);
  *view = *t;
  view->data = (const char *)t->data + (size_t)(r->from * cols) * info->bytes;
  view->bytes = (uint64_t)((to - r->from) * cols) * info->bytes;
  view->shape = (struct ane_shape){2, {cols, to - r->from}};
  view->transposed = true, view->ld = cols;
  r->src = view, r->from = 0, r->to = -1;
  return ANE_OK;
}

/* send(source, name [, {first, last, head, add, by, transposed, importance, factor, scheme, keep, progress}]) -> {count, max_abs,
 * error, signal} (the last two are sums of squares; with keep also bytes: what was written); or nil, message, code. Rows of a
 * tensor of the source become the next rows of the current tensor, in its type; with `transposed`, the columns of the matrix that
 * these rows make. */
static int meth_send(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  struct ane_source *s = bind_check_source(L, 2);
  const char *name = bind_text(L, 3);
  const struct ane_source_tensor *t = ane_source_tensor(s, name);
  struct ane_error err;
  if (!t) return done(L, ane_fail(&err, ANE_NOTFOUND, "%s: no tensor %s", s->path, name), &err);
  const struct ane_shape *shape = &t->tensor.shape;
  int64_t cols = shape->rank ? shape->dim[shape->rank - 1] : 1;
  struct ane_recode r = {.src = &t->tensor, .to = -1};
  struct ane_tensor view;
  struct sending sending = {.L = L, .writer = ud->writer};
  send_options(L, &r, cols, &sending);
  bool transposed = !lua_isnoneornil(L, 4) && bind_boolean_option(L, 4, "transposed");
  luaL_argcheck(L, !transposed || !(r.pair || r.importance || r.factor), 4, "transposed rows have no heads and no importance");
  ane_gguf_wanted(ud->writer, NULL, &r.dtype);
  luaL_checkstack(L, 8, "progress");
  if (sending.keeps) sending.kept = bind_buffer(L);
  struct ane_recode_error total = {0};
  (void)check_writer(L), (void)bind_check_source(L, 2); /* a finaliser that ran meanwhile may have closed them */
  ud->busy = true;
  ane_source_retain(s); /* the progress function may close it */
  struct ane_weight_fit fit;
  ane_status st = transposed ? transpose(&r, &view, &err) : ANE_OK;
  if (!st) st = fit_scheme(&sending, ud->pool, &r, &fit, &err);
  if (!st) st = ane_recode_rows(ud->pool, &r, on_rows, &sending, &total, &err);
  if (st) ane_fail_in(&err, st, "tensor %s", t->name);
  ane_source_drop(s, t);
  ane_source_close(s);
  ud->busy = false;
  if (sending.raised) return lua_error(L);
  if (st) return bind_fail(L, &err);
  push_error(L, &total);
  if (!sending.kept) return 1;
  bind_set_bytes(L, "bytes", sending.kept->data, sending.kept->size);
  ane_buffer_free(sending.kept); /* now: the collector does not know how large it is */
  return 1;
}

/* The sink of rounded(): decodes rows to floats. */
struct rounding_sink {
  ane_dtype dtype;
  float *to;
};

static ane_status on_rounded(void *arg, const void *data, size_t size, struct ane_error *err) {
  struct rounding_sink *k = arg;
  const struct ane_dtype_info *info = ane_dtype_info(k->dtype);
  uint64_t n = size / info->bytes * info->block;
  (void)err;
  ane_decoder(k->dtype)(data, k->to, n);
  k->to += n;
  return ANE_OK;
}

/* rounded(source, name, {scheme, factor}, threads) -> the numbers of a tensor after rounding to the scheme, as float32 bytes; or
 * nil, message, code */
static int l_rounded(lua_State *L) {
  struct ane_source *s = bind_check_source(L, 1);
  const char *name = bind_text(L, 2);
  const struct ane_source_tensor *t = ane_source_tensor(s, name);
  struct sending x = {.L = L};
  struct ane_weight_spec spec = {0};
  struct ane_weight_fit fit;
  struct ane_recode_error total = {0};
  struct ane_error err;
  uint64_t count = 0;
  if (!t || t->tensor.shape.rank == 0) return ane_fail(&err, ANE_NOTFOUND, "%s: no matrix %s", s->path, name), bind_fail(L, &err);
  const int64_t cols = t->tensor.shape.dim[t->tensor.shape.rank - 1];
  int threads = (int)bind_integer(L, 4, 1, 1024);
  lua_settop(L, 4);
  lua_insert(L, 3); /* send_options expects its table at 4 */
  struct ane_recode r = {.src = &t->tensor, .to = -1};
  send_options(L, &r, cols, &x);
  r.from = 0, r.to = -1, r.pair = 0; /* all rows, in their order */
  luaL_argcheck(L, x.scheme && ane_weight_spec_from_name(x.scheme, &spec), 3, "no scheme");
  luaL_argcheck(L, cols > 0 && ane_shape_count(&t->tensor.shape, &count) && count < INT64_MAX / 4, 2, "no matrix");
  spec = ane_weight_spec_fit(spec, (int64_t)count / cols, cols);
  struct rounding_sink sink = {.dtype = r.dtype = ane_weight_container(spec, cols)};
  float *values = sink.to = lua_newuserdatauv(L, (size_t)count * sizeof *values, 0);
  (void)bind_check_source(L, 1); /* a finaliser that ran meanwhile may have closed it */
  struct ane_pool *pool;
  ane_status st = ane_pool_create(&pool, threads, &err);
  if (st) return bind_fail(L, &err);
  st = fit_scheme(&x, pool, &r, &fit, &err);
  if (!st) st = ane_recode_rows(pool, &r, on_rounded, &sink, &total, &err);
  ane_pool_destroy(pool);
  if (st) ane_fail_in(&err, st, "tensor %s", t->name);
  if (st) return bind_fail(L, &err);
  lua_pushlstring(L, (const char *)values, (size_t)count * sizeof *values);
  return 1;
}

/* write(bytes) -> true; or nil, message, code: writes the next bytes of the current tensor unchanged */
static int meth_write(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  size_t len;
  const char *bytes = luaL_checklstring(L, 2, &len);
  struct ane_error err;
  return done(L, ane_gguf_write(ud->writer, bytes, len, &err), &err);
}

/* wanted() -> bytes that are missing from the current tensor (0: none), its name (or nil) */
static int meth_wanted(lua_State *L) {
  const char *name;
  lua_pushinteger(L, (lua_Integer)ane_gguf_wanted(check_writer(L)->writer, &name, NULL));
  lua_pushstring(L, name);
  return 2;
}

/* size() -> bytes of the file, bytes written */
static int meth_size(lua_State *L) {
  const struct ane_gguf_writer *w = check_writer(L)->writer;
  lua_pushinteger(L, (lua_Integer)ane_gguf_size(w));
  lua_pushinteger(L, (lua_Integer)ane_gguf_done(w));
  return 2;
}

/* rewrite(name, bytes) -> true; or nil, message, code. Replaces the bytes of a tensor that is complete */
static int meth_rewrite(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  const char *name = bind_text(L, 2);
  size_t len;
  const char *bytes = luaL_checklstring(L, 3, &len);
  struct ane_error err;
  return done(L, ane_gguf_rewrite(ud->writer, name, bytes, len, &err), &err);
}

/* path() -> where the file is until commit() */
static int meth_path(lua_State *L) {
  lua_pushstring(L, ane_gguf_path(check_writer(L)->writer));
  return 1;
}

/* commit() -> true; or nil, message, code. The file has its final name afterwards. */
static int meth_commit(lua_State *L) {
  struct lua_gguf *ud = check_writer(L);
  struct ane_error err;
  return done(L, ane_gguf_commit(ud->writer, &err), &err);
}

/* core.dtypes() -> a list of { name, bits, block, encodes, weighs, packed, file_type, mixed, nearest }, in the order of
 * dtype.def: bits per element, elements per block, whether weights can be written in the type, whether the importance of columns
 * changes them, whether kernels have a layout for it, LLAMA_FTYPE of files, the type for rows that are not whole blocks. */
static int l_dtypes(lua_State *L) {
  lua_createtable(L, ANE_DTYPE_COUNT, 0);
  for (int i = 0; i < ANE_DTYPE_COUNT; i++) {
    const struct ane_dtype_info *t = ane_dtype_info((ane_dtype)i);
    lua_createtable(L, 0, 9);
    lua_pushstring(L, t->name), lua_setfield(L, -2, "name");
    lua_pushnumber(L, 8.0 * t->bytes / t->block), lua_setfield(L, -2, "bits");
    lua_pushinteger(L, t->block), lua_setfield(L, -2, "block");
    lua_pushboolean(L, ane_encoder((ane_dtype)i) != NULL), lua_setfield(L, -2, "encodes");
    lua_pushboolean(L, ane_encoder_weighs((ane_dtype)i)), lua_setfield(L, -2, "weighs");
    lua_pushboolean(L, ane_layout_for((ane_dtype)i, 256) != ANE_LAYOUT_ROWS), lua_setfield(L, -2, "packed");
    if (t->file_type >= 0) lua_pushinteger(L, t->file_type), lua_setfield(L, -2, "file_type");
    if (t->mixed) lua_pushinteger(L, t->mixed), lua_setfield(L, -2, "mixed");
    if (t->nearest) lua_pushstring(L, t->nearest), lua_setfield(L, -2, "nearest");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* scheme_of(name, rows, columns) -> the scheme that a matrix of this shape takes, the GGUF type that holds its numbers, and
 * its bytes in a package */
static int l_scheme_of(lua_State *L) {
  struct ane_weight_spec spec;
  struct ane_weight_sizes sizes;
  luaL_argcheck(L, ane_weight_spec_from_name(luaL_checkstring(L, 1), &spec), 1, "no scheme");
  int64_t rows = bind_integer(L, 2, 1, INT64_MAX), cols = bind_integer(L, 3, 1, INT64_MAX);
  spec = ane_weight_spec_fit(spec, rows, cols);
  lua_pushstring(L, ane_weight_spec_name(spec));
  lua_pushstring(L, ane_dtype_info(ane_weight_container(spec, cols))->name);
  if (!ane_weight_sizes(spec, rows, cols, &sizes)) return 2;
  lua_pushinteger(L, (lua_Integer)sizes.bytes);
  return 3;
}

void bind_gguf(lua_State *L) {
  lua_pushcfunction(L, l_rounded);
  lua_setfield(L, -2, "rounded");
  lua_pushcfunction(L, l_scheme_of);
  lua_setfield(L, -2, "scheme_of");
  lua_pushcfunction(L, l_dtypes);
  lua_setfield(L, -2, "dtypes");
  static const luaL_Reg methods[] = {
      {"set", meth_set},     {"copy", meth_copy},     {"add", meth_add},   {"begin", meth_begin},   {"send", meth_send},
      {"write", meth_write}, {"wanted", meth_wanted}, {"size", meth_size}, {"commit", meth_commit}, {"rewrite", meth_rewrite},
      {"path", meth_path},   {"close", meth_close},   {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {"__tostring", meth_tostring}, {NULL, NULL}};
  bind_class(L, WRITER_CLASS, methods, meta);
  lua_pushcfunction(L, writer_new);
  lua_setfield(L, -2, "gguf_writer");
}
