/* core.testing: writes Core AI assets from lists of the builder's calls. */
#include "binding/bind.h"

#include "formats/formats.h"

#include <string.h>

/* The state of building from a list. The Lua values of its stack stay where they are. */
struct writing {
  lua_State *L;
  struct ane_arena arena;
  struct ane_aimodel_writer *w;
  struct ane_ai_function *functions; /* of the asset; n are built */
  uint32_t n;
  struct ane_ai_build b;
  ane_ai_value values[4096]; /* results of the function's steps */
  int n_values, step;        /* step: stack index of the list of arguments */
  struct ane_error *err;
};

/* Return an argument of a step, by position. Specs give them in the right form. */
static const char *text(struct writing *w, int i) {
  lua_rawgeti(w->L, w->step, i);
  const char *s = lua_tostring(w->L, -1);
  lua_pop(w->L, 1); /* the table keeps it */
  return s ? s : "";
}

static lua_Integer number(struct writing *w, int i) {
  lua_rawgeti(w->L, w->step, i);
  lua_Integer v = lua_tointeger(w->L, -1);
  lua_pop(w->L, 1);
  return v;
}

static int list(struct writing *w, int i, int64_t *out, int most) {
  int n = 0;
  lua_rawgeti(w->L, w->step, i);
  for (; lua_istable(w->L, -1) && n < most && lua_rawgeti(w->L, -1, n + 1) != LUA_TNIL; n++, lua_pop(w->L, 1))
    out[n] = lua_tointeger(w->L, -1);
  lua_settop(w->L, w->step);
  return n;
}

/* Returns the result of step `at`, counted from 1; if there is no such step, that of the first. */
static ane_ai_value value(struct writing *w, lua_Integer at) { return w->values[at < 1 || at > w->n_values ? 0 : at - 1]; }
static ane_ai_value arg(struct writing *w, int i) { return value(w, number(w, i)); }

static ane_ai_dtype dtype(const char *name) {
  for (int t = 0; t < 64; t++)
    if (strcmp(ane_ai_dtype_name((ane_ai_dtype)t), name) == 0) return (ane_ai_dtype)t;
  return (ane_ai_dtype)0;
}

static struct ane_ai_type type(struct writing *w, int i) {
  int64_t dim[ANE_AI_RANK];
  int n = list(w, i + 1, dim, ANE_AI_RANK);
  return ane_ai_tensor(dtype(text(w, i)), n, dim);
}

/* Returns a type with a layout: a list of interleave factors after the dimensions. */
static struct ane_ai_type port_type(struct writing *w, int i) {
  struct ane_ai_type t = type(w, i);
  list(w, i + 2, t.interleave, ANE_AI_RANK);
  return t;
}

static ane_ai_op_id operation(const char *name) {
  for (int i = 0; i < ANE_AI_OPS; i++)
    if (strcmp(ane_ai_op_name((ane_ai_op_id)i), name) == 0) return (ane_ai_op_id)i;
  return ANE_AI_OPS;
}

static const char *bytes(struct writing *w, int i, size_t *len) {
  lua_rawgeti(w->L, w->step, i);
  const char *s = lua_tolstring(w->L, -1, len);
  lua_pop(w->L, 1);
  return s;
}

/* ---- Steps ---------------------------------------------------------------------------------------------------------*/

static ane_ai_value step_input(struct writing *w) { return ane_ai_input(&w->b, text(w, 2), port_type(w, 3)); }
static ane_ai_value step_state(struct writing *w) { return ane_ai_state(&w->b, text(w, 2), port_type(w, 3)); }
static ane_ai_value step_read(struct writing *w) { return ane_ai_read(&w->b, arg(w, 2)); }
static ane_ai_value step_write(struct writing *w) { return ane_ai_write(&w->b, arg(w, 2), arg(w, 3)), arg(w, 3); }
static ane_ai_value step_output(struct writing *w) { return ane_ai_output(&w->b, text(w, 2), arg(w, 3)), arg(w, 3); }
static ane_ai_value step_cast(struct writing *w) { return ane_ai_cast(&w->b, arg(w, 2), dtype(text(w, 3))); }
static ane_ai_value step_softmax(struct writing *w) { return ane_ai_softmax(&w->b, arg(w, 2), (int32_t)number(w, 3)); }
static ane_ai_value step_argmax(struct writing *w) { return ane_ai_argmax(&w->b, arg(w, 2), (int32_t)number(w, 3)); }
static ane_ai_value step_matmul(struct writing *w) { return ane_ai_matmul(&w->b, arg(w, 2), arg(w, 3)); }
static ane_ai_value step_conv(struct writing *w) { return ane_ai_conv(&w->b, arg(w, 2), arg(w, 3), number(w, 4)); }
static ane_ai_value step_gather(struct writing *w) { return ane_ai_gather(&w->b, arg(w, 2), arg(w, 3)); }
static ane_ai_value step_blockwise(struct writing *w) { return ane_ai_blockwise(&w->b, arg(w, 2), arg(w, 3), NULL); }
static ane_ai_value step_lut(struct writing *w) { return ane_ai_lut(&w->b, arg(w, 2), arg(w, 3)); }
static ane_ai_value step_int(struct writing *w) { return ane_ai_int(&w->b, dtype(text(w, 2)), number(w, 3)); }

static ane_ai_value step_argsort(struct writing *w) {
  return ane_ai_argsort(&w->b, arg(w, 2), (int32_t)number(w, 3), number(w, 4) != 0);
}

static ane_ai_value step_gelu(struct writing *w) { return ane_ai_gelu(&w->b, (ane_ai_gelu_kind)number(w, 3), arg(w, 2)); }

static ane_ai_value step_unary(struct writing *w) { return ane_ai_unary(&w->b, operation(text(w, 2)), arg(w, 3)); }

static ane_ai_value step_binary(struct writing *w) { return ane_ai_binary(&w->b, operation(text(w, 2)), arg(w, 3), arg(w, 4)); }

static ane_ai_value step_reduce(struct writing *w) {
  return ane_ai_reduce(&w->b, operation(text(w, 2)), arg(w, 3), (int32_t)number(w, 4));
}

static ane_ai_value step_number(struct writing *w) {
  lua_rawgeti(w->L, w->step, 3);
  double v = lua_tonumber(w->L, -1);
  lua_pop(w->L, 1);
  return ane_ai_number(&w->b, dtype(text(w, 2)), v);
}

static ane_ai_value step_ints(struct writing *w) {
  int64_t v[64];
  int n = list(w, 3, v, 64);
  return ane_ai_ints(&w->b, dtype(text(w, 2)), v, n);
}

/* Adds a constant. The bytes, or the resource's, must be as many as the type has. */
static ane_ai_value step_constant(struct writing *w) {
  size_t len = 0;
  uint64_t count = 0, wanted = 0;
  struct ane_ai_type t = type(w, 2);
  const char *data = bytes(w, 4, &len);
  if (!ane_ai_count(&t, &count) || !ane_ai_bytes(t.dtype, count, &wanted) || len < wanted)
    ane_ai_build_fail(&w->b, ane_fail(w->err, ANE_INVALID, "too few bytes"));
  return ane_ai_constant(&w->b, t, data);
}

static ane_ai_value step_resource(struct writing *w) {
  size_t len = 0;
  int32_t resource = (int32_t)number(w, 5) - 1; /* one that was written before */
  struct ane_ai_type t = type(w, 2);
  const char *data = bytes(w, 4, &len);
  ane_status st = resource >= 0 ? ANE_OK : ane_aimodel_blob(w->w, &t, &resource, w->err);
  for (size_t at = 0, part; data && !st && at < len; at += part) {
    part = len - at < 1000 ? len - at : 1000;
    st = ane_aimodel_data(w->w, data + at, part, w->err);
  }
  ane_ai_build_fail(&w->b, st);
  return ane_ai_resource(&w->b, t, resource);
}

static ane_ai_value step_reshape(struct writing *w) {
  int64_t dim[ANE_AI_RANK];
  int n = list(w, 3, dim, ANE_AI_RANK);
  return ane_ai_reshape(&w->b, arg(w, 2), n, dim);
}

static ane_ai_value step_broadcast(struct writing *w) {
  int64_t dim[ANE_AI_RANK];
  int n = list(w, 3, dim, ANE_AI_RANK);
  return ane_ai_broadcast_to(&w->b, arg(w, 2), n, dim);
}

static ane_ai_value step_transpose(struct writing *w) {
  int64_t dim[ANE_AI_RANK] = {0};
  int32_t perm[ANE_AI_RANK];
  list(w, 3, dim, ANE_AI_RANK);
  for (int i = 0; i < ANE_AI_RANK; i++) perm[i] = (int32_t)dim[i];
  return ane_ai_transpose(&w->b, arg(w, 2), perm);
}

static uint32_t operands(struct writing *w, int i, ane_ai_value *out) {
  int64_t at[16];
  int n = list(w, i, at, 16);
  for (int k = 0; k < n; k++) out[k] = value(w, at[k]);
  return (uint32_t)n;
}

static ane_ai_value step_concat(struct writing *w) {
  ane_ai_value in[16];
  uint32_t n = operands(w, 2, in);
  return ane_ai_concat(&w->b, in, n, (int32_t)number(w, 3));
}

static ane_ai_value step_op(struct writing *w) {
  ane_ai_value in[16];
  uint32_t n = operands(w, 3, in);
  return ane_ai_op(&w->b, operation(text(w, 2)), in, n);
}

static ane_ai_value step_invoke(struct writing *w) {
  ane_ai_value in[16];
  uint32_t n = operands(w, 3, in);
  return ane_ai_invoke(&w->b, &w->functions[number(w, 2) - 1], in, n);
}

static ane_ai_value step_slice(struct writing *w) {
  return ane_ai_slice(&w->b, arg(w, 2), (int32_t)number(w, 3), number(w, 4), number(w, 5), number(w, 6));
}

static ane_ai_value step_slice_at(struct writing *w) {
  return ane_ai_slice_at(&w->b, arg(w, 2), arg(w, 3), arg(w, 4), type(w, 5));
}

static ane_ai_value step_slice_update(struct writing *w) {
  return ane_ai_slice_update(&w->b, arg(w, 2), arg(w, 3), arg(w, 4), arg(w, 5));
}

static const struct {
  const char *name;
  ane_ai_value (*fn)(struct writing *w);
} steps[] = {
    {"input", step_input},       {"state", step_state},     {"read", step_read},           {"write", step_write},
    {"output", step_output},     {"cast", step_cast},       {"softmax", step_softmax},     {"argmax", step_argmax},
    {"matmul", step_matmul},     {"conv", step_conv},       {"gather", step_gather},       {"blockwise", step_blockwise},
    {"lut", step_lut},           {"int", step_int},         {"unary", step_unary},         {"binary", step_binary},
    {"reduce", step_reduce},     {"number", step_number},   {"ints", step_ints},           {"constant", step_constant},
    {"resource", step_resource}, {"reshape", step_reshape}, {"broadcast", step_broadcast}, {"transpose", step_transpose},
    {"concat", step_concat},     {"op", step_op},           {"invoke", step_invoke},       {"argsort", step_argsort},
    {"gelu", step_gelu},         {"slice", step_slice},     {"slice_at", step_slice_at},   {"slice_update", step_slice_update},
};

/* ---- The asset -------------------------------------------------------------------------------------------------------*/

static ane_status run_step(struct writing *w) {
  const char *name = text(w, 1);
  for (size_t i = 0; i < ANE_COUNT(steps); i++)
    if (strcmp(steps[i].name, name) == 0 && w->n_values < (int)ANE_COUNT(w->values)) {
      w->values[w->n_values] = steps[i].fn(w);
      w->n_values++;
      return w->b.status;
    }
  return ane_fail(w->err, ANE_INVALID, "no step %s", name);
}

/* Builds the function in the table at the top of the stack: {name =, private =, step, step, ...}. */
static ane_status build_function(struct writing *w) {
  int table = lua_gettop(w->L);
  lua_getfield(w->L, table, "name");
  ane_ai_build_begin(&w->b, &w->arena, lua_tostring(w->L, -1), w->err);
  w->b.scope = lua_tostring(w->L, -1);
  w->n_values = 0;
  ane_status st = ANE_OK;
  for (int i = 1; !st && lua_rawgeti(w->L, table, i) == LUA_TTABLE; i++) {
    w->step = lua_gettop(w->L);
    st = run_step(w);
    lua_settop(w->L, table + 1);
  }
  ane_ai_build_fail(&w->b, st);
  struct ane_ai_function *f = &w->functions[w->n];
  st = ane_ai_build_end(&w->b, f);
  lua_getfield(w->L, table, "private");
  f->local = lua_toboolean(w->L, -1);
  lua_settop(w->L, table - 1);
  w->n += !st;
  return st;
}

/* aimodel_write(path, functions) -> true; or nil, message, code. A function: {name =, private =, {"input", "x", "fp16", {2, 3}},
 * {"unary", "primitive.exp", 1}, {"output", "y", 2}}: a step refers to the results of others by their numbers. */
static int aimodel_write(lua_State *L) {
  const char *path = bind_text(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checkstack(L, 20, "too many values");
  struct ane_error err;
  lua_Integer n = luaL_len(L, 2);
  struct writing *w = lua_newuserdatauv(L, sizeof *w, 0);
  memset(w, 0, sizeof *w);
  w->L = L;
  w->err = &err;
  w->functions = ane_arena_array(&w->arena, (size_t)n + 1, sizeof *w->functions);
  ane_status st = w->functions ? ane_aimodel_create(&w->w, path, &err) : ane_fail(&err, ANE_NOMEM, "not enough memory");
  for (lua_Integer i = 1; i <= n && !st; i++) {
    lua_rawgeti(L, 2, i);
    st = build_function(w);
  }
  struct ane_ai_program p = {w->functions, w->n};
  if (st)
    ane_aimodel_abandon(w->w);
  else
    st = ane_aimodel_commit(w->w, &p, &err);
  ane_arena_free(&w->arena);
  return bind_done(L, st, &err);
}

static const luaL_Reg functions[] = {
    {"aimodel_write", aimodel_write},
    {NULL, NULL},
};

void bind_testing_aimodel(lua_State *L) { luaL_setfuncs(L, functions, 0); }
