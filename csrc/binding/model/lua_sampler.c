/* Class "ane.sampler": the filters of csrc/sampling over tensors and rows of sessions, with scratch that is reused between draws;
 * program:draw; and the functions core.sampler, core.logprobs, core.softmax, core.divergence, core.random.
 * lua/ane/generate/sampler.lua checks the options. */
#include "binding/model/bind_model.h"
#include "binding/tensor/bind_tensor.h"

#include "base/alloc.h"
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

/* The logits of a row of the session at `arg` (row: 0-based, from its last run), of *n floats; NULL: none. */
static const float *row_of(lua_State *L, int arg, int64_t row, int32_t *n) {
  struct bind_program_box *box;
  const struct ane_session *s = bind_check_session(L, arg, &box);
  *n = (int32_t)ane_program_info(box->program).vocab;
  return ane_session_logits(s, row);
}

static int64_t rows_of(lua_State *L, int arg) {
  struct bind_program_box *box;
  return ane_session_rows(bind_check_session(L, arg, &box));
}

/* sampler:draw_row(session, row, position, recent) -> as draw, from a row of the session's last run, which is not copied */
static int meth_draw_row(lua_State *L) {
  struct lua_sampler *s = luaL_checkudata(L, 1, SAMPLER);
  int32_t n;
  size_t n_recent = 0;
  struct ane_ranked out;
  struct ane_error err;
  lua_settop(L, 5);
  (void)row_of(L, 2, 0, &n);
  lua_Integer position = bind_integer(L, 4, 0, INT64_MAX);
  const int32_t *recent = lua_isnil(L, 5) ? NULL : bind_ids(L, 5, &n_recent);
  reserve(L, s, n);
  const float *row = row_of(L, 2, bind_row(L, 3, rows_of(L, 2)), &n); /* now: a finaliser may have closed the session */
  if (!row) return bind_no_row(L, rows_of(L, 2));
  if (ane_sample(row, n, &s->how, recent, n_recent, (uint64_t)position, s->work, s->ranked, &out, &err))
    return bind_fail(L, &err);
  lua_pushinteger(L, out.id);
  lua_pushnumber(L, out.value);
  return 2;
}

/* Draws that are made together. */
struct drawing {
  const float *row;
  const struct ane_sampling *how;
  const int32_t *recent;
  size_t n_recent;
  uint64_t position;
  struct ane_ranked out;
  bool failed;
};
struct drawings {
  struct drawing *list;
  int32_t n;                 /* logits of a row */
  struct ane_ranked *ranked; /* n for each thread */
  float *work;               /* n for each thread */
};

static void draw_one(void *arg, int64_t i, int thread) {
  const struct drawings *all = arg;
  struct drawing *d = &all->list[i];
  size_t at = (size_t)thread * (size_t)all->n;
  struct ane_error err;
  d->failed = ane_sample(d->row, all->n, d->how, d->recent, d->n_recent, d->position, all->work + at, all->ranked + at, &d->out,
                         &err) != ANE_OK;
}

/* program:draw(items) -> list of ids (false: nothing can be chosen), list of their logits after penalty and bias; or nil,
 * message, code. items: list of one or more {session, sampler, position [, recent]}; each draws from the last row of the
 * session's last run, as sampler:draw does. The draws are divided over the program's threads. */
int bind_program_draw(lua_State *L) {
  struct bind_program_box *box = bind_check_program(L, 1), *other;
  int n = (int)bind_length(L, 2, 4096);
  luaL_argcheck(L, n >= 1, 2, "must have 1 .. 4096 items");
  struct ane_program_info info = ane_program_info(box->program);
  struct drawings all = {.n = (int32_t)info.vocab};
  size_t room = (size_t)info.threads * (size_t)info.vocab;
  lua_settop(L, 2);
  luaL_checkstack(L, 3 * n + 8, "too many items");
  all.list = lua_newuserdatauv(L, (size_t)n * sizeof *all.list, 0);
  const int first = lua_gettop(L) + 1; /* stack index of item 0, which takes three slots: session, sampler, recent ids */
  for (int i = 0; i < n; i++) {
    struct drawing *d = &all.list[i];
    *d = (struct drawing){0};
    luaL_argcheck(L, lua_rawgeti(L, 2, i + 1) == LUA_TTABLE, 2, "each item is a list {session, sampler, position}");
    int item = lua_gettop(L);
    for (int k = 1; k <= 4; k++) lua_rawgeti(L, item, k);
    d->how = &((struct lua_sampler *)luaL_checkudata(L, item + 2, SAMPLER))->how;
    d->position = (uint64_t)bind_integer(L, item + 3, 0, INT64_MAX);
    if (!lua_isnil(L, item + 4)) d->recent = bind_ids(L, item + 4, &d->n_recent), lua_replace(L, item + 3);
    lua_settop(L, item + 3);
    lua_remove(L, item);
  }
  for (int i = 0; i < n; i++) { /* a finaliser that ran meanwhile may have closed a session */
    int session = first + 3 * i;
    (void)bind_check_session(L, session, &other);
    luaL_argcheck(L, other == box, 2, "a session of another program");
    if (!(all.list[i].row = row_of(L, session, rows_of(L, session) - 1, &all.n))) return bind_no_row(L, rows_of(L, session));
  }
  if (!box->draw_scratch) box->draw_scratch = ane_malloc(room * (sizeof *all.ranked + sizeof *all.work));
  if (!(all.ranked = box->draw_scratch)) {
    struct ane_error err;
    return ane_fail(&err, ANE_NOMEM, "no memory to draw tokens"), bind_fail(L, &err);
  }
  all.work = (float *)(void *)(all.ranked + room);
  ane_program_each(box->program, n, draw_one, &all);
  lua_createtable(L, n, 0);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    const struct drawing *d = &all.list[i];
    if (d->failed)
      lua_pushboolean(L, 0);
    else
      lua_pushinteger(L, d->out.id);
    lua_rawseti(L, -3, i + 1);
    lua_pushnumber(L, d->failed ? 0 : (lua_Number)d->out.value);
    lua_rawseti(L, -2, i + 1);
  }
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

static const luaL_Reg methods[] = {{"draw", meth_draw}, {"draw_row", meth_draw_row}, {NULL, NULL}};
static const luaL_Reg meta[] = {{NULL, NULL}};
static const luaL_Reg functions[] = {
    {"sampler", sampler_make},  {"logprobs", logprobs},    {"softmax", softmax},
    {"divergence", divergence}, {"random", random_number}, {NULL, NULL},
};

void bind_sampler(lua_State *L) {
  bind_class(L, SAMPLER, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
