/* core.gradients(threads): the gradients of quant/gradient.h for tensors of Lua. */
#include "binding/model/bind_model.h"
#include "binding/tensor/bind_tensor.h"

#include "quant/gradient.h"

#include <string.h>

#define GRADIENTS_CLASS "ane.gradients"

struct lua_gradients {
  struct ane_pool *pool; /* NULL: closed */
  struct ane_gradient_space space;
};

static struct lua_gradients *check_gradients(lua_State *L) {
  struct lua_gradients *ud = luaL_checkudata(L, 1, GRADIENTS_CLASS);
  if (!ud->pool) luaL_error(L, "gradients are closed");
  return ud;
}

/* gradients(threads) -> gradients; or nil, message, code */
static int gradients_new(lua_State *L) {
  int threads = (int)bind_integer(L, 1, 1, 1024);
  struct lua_gradients *ud = bind_new(L, GRADIENTS_CLASS, sizeof *ud, 0);
  struct ane_error err;
  return ane_pool_create(&ud->pool, threads, &err) ? bind_fail(L, &err) : 1;
}

static int meth_close(lua_State *L) {
  struct lua_gradients *ud = luaL_checkudata(L, 1, GRADIENTS_CLASS);
  if (ud->pool) ane_pool_destroy(ud->pool);
  ud->pool = NULL;
  ane_gradient_space_free(&ud->space);
  return 0;
}

/* Returns the matrix at `arg`, which must have `tokens` rows and `cols` columns; 0: any number. */
static const struct bind_tensor *check_matrix(lua_State *L, int arg, int64_t tokens, int64_t cols) {
  const struct bind_tensor *t = bind_check_tensor(L, arg);
  luaL_argcheck(L, t->shape.rank == 2 && t->count > 0, arg, "no matrix");
  luaL_argcheck(L, (!tokens || t->shape.dim[0] == tokens) && (!cols || t->shape.dim[1] == cols), arg, "another shape");
  return t;
}

static float *push_matrix(lua_State *L, int64_t tokens, int64_t cols) {
  struct ane_shape s = {2, {tokens, cols}};
  return bind_tensor_new(L, &s);
}

/* product(graph, value, dy [n, rows] [, into [tokens, columns], from]) -> dx [n, columns], or into, whose rows from number `from`
 * (from 1) on are written; or nil, message, code. value: a matrix [rows, columns] */
static int meth_product(lua_State *L) {
  struct lua_gradients *ud;
  (void)check_gradients(L);
  const struct ane_graph *g = bind_check_graph(L, 2)->graph;
  lua_Integer value = bind_integer(L, 3, 1, g->n_values);
  const struct ane_value *v = &g->values[value - 1];
  struct ane_error err;
  luaL_argcheck(L, v->kind == ANE_VALUE_CONST && v->shape.rank == 2 && (v->data.data || v->data.gather), 3,
                "no matrix of the graph");
  const struct bind_tensor *dy = check_matrix(L, 4, 0, v->shape.dim[0]);
  float *dx;
  if (lua_isnoneornil(L, 5)) {
    dx = push_matrix(L, dy->shape.dim[0], v->shape.dim[1]);
  } else {
    const struct bind_tensor *into = check_matrix(L, 5, 0, v->shape.dim[1]);
    luaL_argcheck(L, into->shape.dim[0] >= dy->shape.dim[0], 5, "too few rows");
    dx = into->data + (bind_integer(L, 6, 1, into->shape.dim[0] - dy->shape.dim[0] + 1) - 1) * v->shape.dim[1];
    lua_pushvalue(L, 5);
  }
  ud = check_gradients(L), (void)bind_check_graph(L, 2); /* again: see meth_norm */
  return ane_gradient_product(ud->pool, &ud->space, &v->data, dy->data, dy->shape.dim[0], dx, &err) ? bind_fail(L, &err) : 1;
}

/* norm({groups =, eps =, centred =, offset =}, x, weight [columns / groups] or nil, dy) -> dx, and the gradient of the weight, if
 * there is one */
static int meth_norm(lua_State *L) {
  struct lua_gradients *ud;
  (void)check_gradients(L);
  const struct bind_tensor *x = check_matrix(L, 3, 0, 0), *dy = check_matrix(L, 5, x->shape.dim[0], x->shape.dim[1]);
  const struct bind_tensor *weight = lua_isnil(L, 4) ? NULL : bind_check_tensor(L, 4);
  struct ane_gradient_norm n = {.tokens = x->shape.dim[0], .cols = x->shape.dim[1]};
  n.groups = bind_opt_integer_option(L, 2, "groups", 1, 1, n.cols);
  n.eps = (float)bind_opt_number_option(L, 2, "eps", 0, 0, 1);
  n.centred = bind_boolean_option(L, 2, "centred");
  float offset = (float)bind_opt_number_option(L, 2, "offset", 0, -1e3, 1e3);
  luaL_argcheck(L, n.cols % n.groups == 0 && (!weight || (int64_t)weight->count == n.cols / n.groups), 4, "another size");
  struct ane_shape s = {1, {n.cols / n.groups}};
  float *dx = push_matrix(L, n.tokens, n.cols), *dw = NULL;
  if (weight) {
    dw = bind_tensor_new(L, &s);
    float *sum = bind_tensor_new(L, &s);
    for (int64_t c = 0; c < s.dim[0]; c++) sum[c] = weight->data[c] + offset;
    n.weight = sum;
  }
  ud = check_gradients(L); /* again: a finaliser that ran meanwhile may have closed it */
  ane_gradient_norm(ud->pool, &n, x->data, dy->data, dx, dw);
  if (weight) lua_pop(L, 1);
  return weight ? 2 : 1;
}

/* attention({heads =, kv_heads =, scale =, window =, softcap =}, q, k, v, dy, sinks (a tensor [heads], or nil) -> dq, dk, dv; or
 * nil, message, code */
static int meth_attention(lua_State *L) {
  struct lua_gradients *ud;
  (void)check_gradients(L);
  const struct bind_tensor *q = check_matrix(L, 3, 0, 0), *k = check_matrix(L, 4, q->shape.dim[0], 0);
  const struct bind_tensor *v = check_matrix(L, 5, q->shape.dim[0], k->shape.dim[1]);
  const struct bind_tensor *dy = check_matrix(L, 6, q->shape.dim[0], q->shape.dim[1]);
  const struct bind_tensor *sinks = lua_isnoneornil(L, 7) ? NULL : bind_check_tensor(L, 7);
  struct ane_gradient_attention a = {.tokens = q->shape.dim[0]};
  struct ane_error err;
  a.heads = bind_opt_integer_option(L, 2, "heads", 1, 1, q->shape.dim[1]);
  a.kv_heads = bind_opt_integer_option(L, 2, "kv_heads", 1, 1, a.heads);
  a.window = bind_opt_integer_option(L, 2, "window", 0, 0, INT32_MAX);
  a.scale = (float)bind_opt_number_option(L, 2, "scale", 1, -1e30, 1e30);
  a.softcap = (float)bind_opt_number_option(L, 2, "softcap", 0, 0, 1e30);
  a.dim = q->shape.dim[1] / a.heads;
  luaL_argcheck(L, a.dim * a.heads == q->shape.dim[1] && a.dim * a.kv_heads == k->shape.dim[1] && a.heads % a.kv_heads == 0, 2,
                "heads of other sizes");
  luaL_argcheck(L, !sinks || (int64_t)sinks->count == a.heads, 7, "another number of heads");
  if (sinks) a.sinks = sinks->data;
  float *dq = push_matrix(L, a.tokens, q->shape.dim[1]), *dk = push_matrix(L, a.tokens, k->shape.dim[1]);
  float *dv = push_matrix(L, a.tokens, k->shape.dim[1]);
  ud = check_gradients(L); /* again: see meth_norm */
  return ane_gradient_attention(ud->pool, &ud->space, &a, q->data, k->data, v->data, dy->data, dq, dk, dv, &err)
             ? bind_fail(L, &err)
             : 3;
}

/* rope(table [tokens, r], heads, interleaved, dy) -> dx */
static int meth_rope(lua_State *L) {
  check_gradients(L);
  const struct bind_tensor *dy = check_matrix(L, 5, 0, 0), *table = check_matrix(L, 2, dy->shape.dim[0], 0);
  int64_t cols = dy->shape.dim[1], heads = bind_integer(L, 3, 1, cols), r = table->shape.dim[1];
  luaL_argcheck(L, cols % heads == 0 && r <= cols / heads && r % 2 == 0, 3, "heads of other sizes");
  float *dx = push_matrix(L, dy->shape.dim[0], cols);
  ane_gradient_rope(table->data, dy->shape.dim[0], cols, heads, r, lua_toboolean(L, 4), dy->data, dx);
  return 1;
}

/* glu(act, x, u or nil, dy) -> dx, and du if u is given: the gradients of act(x) u, or of act(x) */
static int meth_glu(lua_State *L) {
  struct lua_gradients *ud = check_gradients(L);
  int act = ane_gradient_act(luaL_checkstring(L, 2));
  luaL_argcheck(L, act >= 0, 2, "an activation without a gradient");
  const struct bind_tensor *x = check_matrix(L, 3, 0, 0), *dy = check_matrix(L, 5, x->shape.dim[0], x->shape.dim[1]);
  const struct bind_tensor *u = lua_isnil(L, 4) ? NULL : check_matrix(L, 4, x->shape.dim[0], x->shape.dim[1]);
  float *dx = push_matrix(L, x->shape.dim[0], x->shape.dim[1]), *du = u ? push_matrix(L, x->shape.dim[0], x->shape.dim[1]) : NULL;
  ane_gradient_glu(ud->pool, act, x->data, u ? u->data : NULL, dy->data, dx, du, (int64_t)x->count);
  return u ? 2 : 1;
}

/* Reads the ids after `rows` tokens, of which the first is number `from` (from 0) of the list at stack index `ids`; -1: there is
 * none, or no list. */
static void read_labels(lua_State *L, int ids, int64_t from, int64_t rows, int64_t vocab, int32_t *label) {
  for (int64_t r = 0; r < rows; r++) {
    label[r] = -1;
    if (lua_isnoneornil(L, ids)) continue;
    if (lua_rawgeti(L, ids, from + r + 2) != LUA_TNIL) label[r] = (int32_t)bind_integer(L, -1, 0, vocab - 1);
    lua_pop(L, 1);
  }
}

/* Pushes the sums of the log probabilities of the labels, by the second and by the first logits. */
static void push_log_sums(lua_State *L, const struct ane_gradient_logits *l) {
  double got = 0, want = 0;
  for (int64_t r = 0; r < l->rows; r++) {
    const int32_t id = l->label[r];
    if (id >= 0) got += l->got[r][id] - l->log_got[r], want += l->want[r][id] - l->log_want[r];
  }
  lua_pushnumber(L, got);
  lua_pushnumber(L, want);
}

/* divergence(reference, session, from, n [, ids [, share]]) -> dy [n, vocab], the gradient of the loss (ane_gradient_logits) by
 * the logits of the second session, and the sum of the divergences of both sessions in nats, for n rows of logits from number
 * `from` (from 1) on; with the list of ids that both have read, also the sums of the log probabilities of the ids after `from`,
 * by the second and by the first session; or nil, message, code. share: of the ids in the loss, 0 (default) to 1 */
static int meth_divergence(lua_State *L) {
  struct lua_gradients *ud = check_gradients(L);
  struct bind_program_box *box, *other;
  const struct ane_session *want = bind_check_session(L, 2, &box), *got = bind_check_session(L, 3, &other);
  int64_t vocab = ane_program_info(box->program).vocab, most = ANE_MIN(ane_session_rows(want), ane_session_rows(got));
  luaL_argcheck(L, ane_program_info(other->program).vocab == vocab, 3, "another vocabulary");
  int64_t from = bind_integer(L, 4, 1, ANE_MAX(most, 1)) - 1, n = bind_integer(L, 5, 1, ANE_MAX(most - from, 1));
  bool has_ids = !lua_isnoneornil(L, 6);
  if (has_ids) luaL_checktype(L, 6, LUA_TTABLE);
  const double share = luaL_optnumber(L, 7, 0);
  luaL_argcheck(L, share >= 0 && share <= 1, 7, "the share must be 0 to 1");
  const float **rows = lua_newuserdatauv(L, 2 * (size_t)n * sizeof *rows, 0);
  double *kl = lua_newuserdatauv(L, 3 * (size_t)n * sizeof *kl, 0), sum = 0;
  int32_t *label = lua_newuserdatauv(L, (size_t)n * sizeof *label, 0);
  read_labels(L, 6, from, n, vocab, label);
  for (int64_t r = 0; r < n; r++) {
    rows[r] = ane_session_logits(want, from + r), rows[n + r] = ane_session_logits(got, from + r);
    if (!rows[r] || !rows[n + r]) return luaL_error(L, "no logits of token %I", (LUAI_UACINT)(from + r + 1));
  }
  struct ane_gradient_logits l = {.want = rows,
                                  .got = rows + n,
                                  .label = label,
                                  .share = share,
                                  .rows = n,
                                  .n = vocab,
                                  .kl = kl,
                                  .log_want = kl + n,
                                  .log_got = kl + 2 * n};
  struct ane_error err;
  l.dy = push_matrix(L, n, vocab);
  if (ane_gradient_divergence(ud->pool, &ud->space, &l, &err)) return bind_fail(L, &err);
  for (int64_t r = 0; r < n; r++) sum += kl[r];
  lua_pushnumber(L, sum);
  if (has_ids) push_log_sums(L, &l);
  return has_ids ? 4 : 2;
}

void bind_gradient(lua_State *L) {
  static const luaL_Reg methods[] = {{"product", meth_product}, {"norm", meth_norm}, {"attention", meth_attention},
                                     {"rope", meth_rope},       {"glu", meth_glu},   {"divergence", meth_divergence},
                                     {"close", meth_close},     {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {NULL, NULL}};
  bind_class(L, GRADIENTS_CLASS, methods, meta);
  lua_pushcfunction(L, gradients_new);
  lua_setfield(L, -2, "gradients");
}
