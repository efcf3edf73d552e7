/* Class "ane.sampler": the filters of csrc/sampling over tensors, with scratch that is reused between draws; and the functions
 * core.sampler, core.logprobs, core.softmax, core.divergence, core.random. lua/ane/generate/sampler.lua checks the options. */
#include "binding/tensor/bind_tensor.h"
#include "sampling/sampling.h"

#include <math.h>

#define SAMPLER "ane.sampler"

/* User values of a sampler: the memory of the bias list and of the scratch, which Lua owns. */
enum { BIAS = 1, SCRATCH = 2 };

struct lua_sampler {
  struct ane_sampling how;
  int32_t room; /* size of the scratch in ids */
  float *work;
  struct ane_ranked *ranked;
};

/* ---- Options -----------------------------------------------------------------------------------------------------*/

/* Reads {[id] = value} at the top of the stack into memory that the sampler at index `self` keeps; pops the table. */
static void read_bias(lua_State *L, int self, struct ane_sampling *how) {
  int table = lua_gettop(L);
  int32_t n = 0;
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) n++;
  struct ane_bias *bias = lua_newuserdatauv(L, (size_t)(n ? n : 1) * sizeof *bias, 0);
  int32_t got = 0;
  for (lua_pushnil(L); lua_next(L, table) && got < n; lua_pop(L, 1)) {
    int is_id, is_number;
    lua_Integer id = lua_isinteger(L, -2) ? lua_tointegerx(L, -2, &is_id) : -1;
    double value = lua_tonumberx(L, -1, &is_number);
    if (id < 0 || id > INT32_MAX || !is_number || value != value)
      luaL_error(L, "logit_bias must map token ids to numbers, but has a %s for a %s", luaL_typename(L, -1),
                 luaL_typename(L, -2));
    bias[got++] = (struct ane_bias){(int32_t)id, (float)value};
  }
  lua_setiuservalue(L, self, BIAS);
  how->bias = bias;
  how->n_bias = got;
  lua_settop(L, table - 1);
}

/* core.sampler{temperature=, top_k=, top_p=, min_p=, repeat_penalty=, logit_bias={[id]=number}, seed=integer} */
static int sampler_make(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  struct lua_sampler *s = bind_new(L, SAMPLER, sizeof *s, 2);
  s->how.temperature = (float)bind_opt_number_option(L, 1, "temperature", 0, 0, 1e6);
  s->how.top_k = (int32_t)bind_opt_number_option(L, 1, "top_k", 0, 0, INT32_MAX);
  s->how.top_p = (float)bind_opt_number_option(L, 1, "top_p", 1, 0, 1);
  s->how.min_p = (float)bind_opt_number_option(L, 1, "min_p", 0, 0, 1);
  s->how.repeat_penalty = (float)bind_opt_number_option(L, 1, "repeat_penalty", 1, 1e-6, 1e6);
  bind_field(L, 1, "seed");
  s->how.seed = (uint64_t)(lua_isnil(L, -1) ? 0 : luaL_checkinteger(L, -1));
  lua_pop(L, 1);
  if (bind_field(L, 1, "logit_bias") == LUA_TTABLE) read_bias(L, 2, &s->how);
  lua_settop(L, 2);
  return 1;
}

/* ---- Drawing -----------------------------------------------------------------------------------------------------*/

/* Returns the row of logits at `arg`, of 1 .. INT32_MAX elements. */
static const float *check_row(lua_State *L, int arg, int32_t *n) {
  struct bind_tensor *t = bind_check_tensor(L, arg);
  if (t->count < 1 || t->count > INT32_MAX) luaL_argerror(L, arg, "logits have at least one element");
  *n = (int32_t)t->count;
  return t->data;
}

static void reserve(lua_State *L, struct lua_sampler *s, int32_t n) {
  if (n <= s->room) return;
  s->room = 0;
  s->ranked = lua_newuserdatauv(L, (size_t)n * (sizeof *s->ranked + sizeof *s->work), 0);
  s->work = (float *)(void *)(s->ranked + n);
  lua_setiuservalue(L, 1, SCRATCH);
  s->room = n;
}

/* sampler:draw(logits, position, recent) -> id, logit after penalty and bias; or nil, message, code */
static int meth_draw(lua_State *L) {
  struct lua_sampler *s = luaL_checkudata(L, 1, SAMPLER);
  int32_t n;
  size_t n_recent = 0;
  const float *row = check_row(L, 2, &n);
  lua_Integer position = bind_integer(L, 3, 0, INT64_MAX);
  const int32_t *recent = lua_isnoneornil(L, 4) ? NULL : bind_ids(L, 4, &n_recent);
  struct ane_ranked out;
  struct ane_error err;
  reserve(L, s, n);
  if (ane_sample(row, n, &s->how, recent, n_recent, (uint64_t)position, s->work, s->ranked, &out, &err))
    return bind_fail(L, &err);
  lua_pushinteger(L, out.id);
  lua_pushnumber(L, out.value);
  return 2;
}

/* core.logprobs(logits, id, top) -> log probability of id, {{id, logprob}, ...} of the `top` best */
static int logprobs(lua_State *L) {
  int32_t n;
  const float *row = check_row(L, 1, &n);
  lua_Integer id = bind_integer(L, 2, 0, n - 1);
  int32_t k = (int32_t)ANE_MIN(bind_opt_integer(L, 3, 0, 0, INT32_MAX), n);
  double whole = ane_log_sum_exp(row, n);
  struct ane_ranked *best = lua_newuserdatauv(L, (size_t)(k ? k : 1) * sizeof *best, 0);
  ane_topk(row, n, k, best);
  lua_pushnumber(L, (double)row[id] - whole);
  lua_createtable(L, k, 0);
  for (int32_t i = 0; i < k; i++) {
    lua_createtable(L, 2, 0);
    lua_pushinteger(L, best[i].id);
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, (double)best[i].value - whole);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i + 1);
  }
  return 2;
}

/* core.softmax(logits, temperature = 1) -> tensor of probabilities */
static int softmax(lua_State *L) {
  int32_t n;
  const float *row = check_row(L, 1, &n);
  double temperature = luaL_optnumber(L, 2, 1);
  luaL_argcheck(L, temperature > 0 && temperature <= 1e6, 2, "temperature must be above 0");
  float *out = bind_tensor_new(L, &bind_check_tensor(L, 1)->shape);
  ane_softmax(row, n, (float)temperature, out);
  return 1;
}

/* core.divergence(a, b [, id]) -> KL(a || b) in nats, best id of a, best id of b; with an id also its log probability in a and in
 * b */
static int divergence(lua_State *L) {
  int32_t n, m;
  const float *a = check_row(L, 1, &n), *b = check_row(L, 2, &m);
  if (n != m) return luaL_error(L, "divergence: rows of %d and %d logits", (int)n, (int)m);
  bool scored = !lua_isnoneornil(L, 3);
  lua_Integer id = scored ? bind_integer(L, 3, 0, n - 1) : 0;
  struct ane_divergence d = ane_diverge(a, b, n);
  lua_pushnumber(L, d.kl);
  lua_pushinteger(L, d.best_a);
  lua_pushinteger(L, d.best_b);
  if (!scored) return 3;
  lua_pushnumber(L, (double)a[id] - d.whole_a);
  lua_pushnumber(L, (double)b[id] - d.whole_b);
  return 5;
}

/* core.random(seed, position) -> number in [0, 1), and the four 32-bit words it is made from */
static int random_number(lua_State *L) {
  uint64_t seed = (uint64_t)luaL_checkinteger(L, 1), position = (uint64_t)luaL_checkinteger(L, 2);
  uint32_t word[4];
  ane_philox(seed, position, word);
  lua_pushnumber(L, ane_random(seed, position));
  for (size_t i = 0; i < ANE_COUNT(word); i++) lua_pushinteger(L, word[i]);
  return 1 + (int)ANE_COUNT(word);
}

static const luaL_Reg methods[] = {{"draw", meth_draw}, {NULL, NULL}};
static const luaL_Reg meta[] = {{NULL, NULL}};
static const luaL_Reg functions[] = {
    {"sampler", sampler_make},  {"logprobs", logprobs},    {"softmax", softmax},
    {"divergence", divergence}, {"random", random_number}, {NULL, NULL},
};

void bind_sampler(lua_State *L) {
  bind_class(L, SAMPLER, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
