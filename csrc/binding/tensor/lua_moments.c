/* core.moments(threads): second moments of named values, and their factors. */
#include "binding/tensor/bind_factor.h"
#include "binding/tensor/bind_tensor.h"

#include "base/alloc.h"

#include <string.h>

#define MOMENTS_CLASS "ane.moments"

struct named_moment {
  char *name;
  struct ane_moment moment;
};

struct lua_moments {
  struct ane_pool *pool; /* NULL: closed */
  struct named_moment *list;
  size_t n, room;
};

static struct lua_moments *check_moments(lua_State *L) {
  struct lua_moments *ud = luaL_checkudata(L, 1, MOMENTS_CLASS);
  if (!ud->pool) luaL_error(L, "moments are closed");
  return ud;
}

static struct named_moment *find(const struct lua_moments *ud, const char *name) {
  for (size_t i = 0; i < ud->n; i++)
    if (strcmp(ud->list[i].name, name) == 0) return &ud->list[i];
  return NULL;
}

static void drop_all(struct lua_moments *ud) {
  for (size_t i = 0; i < ud->n; i++) {
    ane_moment_free(&ud->list[i].moment);
    ane_free(ud->list[i].name);
  }
  ud->n = 0;
}

/* moments(threads) -> moments; or nil, message, code */
static int moments_new(lua_State *L) {
  int threads = (int)bind_integer(L, 1, 1, 1024);
  struct lua_moments *ud = bind_new(L, MOMENTS_CLASS, sizeof *ud, 0);
  struct ane_error err;
  return ane_pool_create(&ud->pool, threads, &err) ? bind_fail(L, &err) : 1;
}

static int meth_close(lua_State *L) {
  struct lua_moments *ud = luaL_checkudata(L, 1, MOMENTS_CLASS);
  drop_all(ud);
  ane_free(ud->list);
  ud->list = NULL, ud->room = 0;
  if (ud->pool) ane_pool_destroy(ud->pool);
  ud->pool = NULL;
  return 0;
}

static ane_status append(struct lua_moments *ud, const char *name, int64_t cols, struct ane_error *err) {
  if (ud->n == ud->room) {
    size_t room = ud->room ? 2 * ud->room : 16;
    struct named_moment *more = ane_realloc(ud->list, room * sizeof *more);
    if (!more) return ane_fail(err, ANE_NOMEM, "no memory for moments");
    ud->list = more, ud->room = room;
  }
  struct named_moment *m = &ud->list[ud->n];
  *m = (struct named_moment){.name = ane_strndup(name, strlen(name))};
  ane_status st = m->name ? ane_moment_make(&m->moment, cols, err) : ane_fail(err, ANE_NOMEM, "no memory for moments");
  if (st) {
    ane_free(m->name);
    return st;
  }
  ud->n++;
  return ANE_OK;
}

/* add(name, tensor [tokens, columns] [, the tensor of the source model for the same tokens, or nil [, weight of each token
 * (default 1)]]) -> true; or nil, message, code */
static int meth_add(lua_State *L) {
  struct lua_moments *ud = check_moments(L);
  const char *name = bind_text(L, 2);
  const struct bind_tensor *t = bind_check_tensor(L, 3), *source = lua_isnoneornil(L, 4) ? NULL : bind_check_tensor(L, 4);
  const double weight = luaL_optnumber(L, 5, 1);
  struct ane_error err;
  ane_status st = ANE_OK;
  luaL_argcheck(L, weight > 0 && weight <= (1 << 30), 5, "not above 0, to 2^30");
  luaL_argcheck(L, t->shape.rank == 2 && t->count > 0, 3, "no matrix");
  luaL_argcheck(L, !source || (source->shape.rank == 2 && source->count == t->count && source->shape.dim[1] == t->shape.dim[1]),
                4, "another shape");
  if (!find(ud, name)) st = append(ud, name, t->shape.dim[1], &err);
  if (st) return bind_fail(L, &err);
  struct named_moment *m = find(ud, name);
  if (m->moment.cols != t->shape.dim[1])
    return luaL_error(L, "%s has %I columns, but the inputs have %I", name, (LUAI_UACINT)m->moment.cols,
                      (LUAI_UACINT)t->shape.dim[1]);
  st = ane_moment_add(&m->moment, ud->pool, t->data, source ? source->data : NULL, t->shape.dim[0], (float)weight, &err);
  if (st) ane_fail_in(&err, st, "%s", name);
  return bind_done(L, st, &err);
}

/* clear(): removes all values */
static int meth_clear(lua_State *L) {
  drop_all(check_moments(L));
  return 0;
}

/* diagonal(name) -> tensor [columns], mean squares; nil: the value is unknown */
static int meth_diagonal(lua_State *L) {
  const struct named_moment *m = find(check_moments(L), bind_text(L, 2));
  if (!m) return 0;
  struct ane_shape s = {1, {m->moment.cols}};
  ane_moment_diagonal(&m->moment, bind_tensor_new(L, &s));
  return 1;
}

/* factor(name, group, sub, damp [, strength of the drift, default 0 [, prior in tokens, default 0]]) -> factor; or nil, message,
 * code */
static int meth_factor(lua_State *L) {
  struct lua_moments *ud = check_moments(L);
  const char *name = bind_text(L, 2);
  struct ane_factor_options opts = {(int32_t)bind_integer(L, 3, 1, 1 << 20), (int32_t)bind_integer(L, 4, 1, 1 << 20),
                                    luaL_checknumber(L, 5), luaL_optnumber(L, 6, 0), luaL_optnumber(L, 7, 0)};
  const struct named_moment *m = find(ud, name);
  struct ane_error err;
  luaL_argcheck(L, opts.damp > 0 && opts.damp < 1e6, 5, "no positive number");
  luaL_argcheck(L, opts.strength >= 0 && opts.strength <= 1, 6, "not from 0 to 1");
  luaL_argcheck(L, opts.prior >= 0 && opts.prior < 1e15, 7, "not 0 or more");
  if (!m) return ane_fail(&err, ANE_NOTFOUND, "no second moment of %s", name), bind_fail(L, &err);
  struct ane_factor *f = bind_new(L, BIND_FACTOR, sizeof *f, 0);
  ane_status st = ane_factor_make(f, ud->pool, &m->moment, &opts, &err);
  if (st) ane_fail_in(&err, st, "%s", name);
  return st ? bind_fail(L, &err) : 1;
}

static int factor_close(lua_State *L) {
  ane_factor_free(luaL_checkudata(L, 1, BIND_FACTOR));
  return 0;
}

const struct ane_factor *bind_check_factor(lua_State *L, int arg, int64_t cols) {
  const struct ane_factor *f = luaL_checkudata(L, arg, BIND_FACTOR);
  if (!f->order) luaL_error(L, "factor is closed");
  if (cols && f->cols != cols)
    luaL_error(L, "the factor has %I columns, but the weight has %I", (LUAI_UACINT)f->cols, (LUAI_UACINT)cols);
  return f;
}

/* compensate_groups(type or scheme) -> columns that share parameters in blocks, and in their parts; nil: it has no compensated
 * rounding */
static int l_groups(lua_State *L) {
  size_t len;
  const char *name = luaL_checklstring(L, 1, &len);
  struct ane_weight_spec spec;
  ane_dtype t = ane_dtype_from_name(name, len);
  int32_t group, sub;
  if (ane_weight_spec_from_name(name, &spec) && spec.scheme != ANE_WEIGHT_FP16)
    ane_compensate_scheme_groups(spec, &group, &sub);
  else if (t == ANE_DTYPE_COUNT || !ane_compensate_groups(t, &group, &sub))
    return 0;
  lua_pushinteger(L, group);
  lua_pushinteger(L, sub);
  return 2;
}

void bind_moments(lua_State *L) {
  static const luaL_Reg methods[] = {{"add", meth_add},       {"clear", meth_clear}, {"diagonal", meth_diagonal},
                                     {"factor", meth_factor}, {"close", meth_close}, {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {NULL, NULL}};
  static const luaL_Reg no_methods[] = {{"close", factor_close}, {NULL, NULL}};
  static const luaL_Reg factor_meta[] = {{"__gc", factor_close}, {"__close", factor_close}, {NULL, NULL}};
  bind_class(L, MOMENTS_CLASS, methods, meta);
  bind_class(L, BIND_FACTOR, no_methods, factor_meta);
  lua_pushcfunction(L, moments_new);
  lua_setfield(L, -2, "moments");
  lua_pushcfunction(L, l_groups);
  lua_setfield(L, -2, "compensate_groups");
}
