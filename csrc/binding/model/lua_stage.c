/* Programs on several ranks: the options `stage` and `tensor` of core.program, whose links call Lua functions, and the costs by
 * which a cut is chosen. */
#include "binding/model/bind_model.h"

#include "base/alloc.h"

#include <string.h>

struct bind_link {
  lua_State *L, *main; /* of the current call; the main thread, which outlives it */
  int receive, send;   /* references in the registry */
  int begin, wait;     /* of a tensor's shared memory; else LUA_NOREF */
};

/* The callbacks of a run raise nothing, not even where memory is out: an error of Lua would leave a run half done. */

/* (value) -> its text */
static int to_text(lua_State *L) {
  luaL_tolstring(L, 1, NULL);
  return 1;
}

/* Replaces the value at the top of the stack by its text. */
static const char *text_of(lua_State *L) {
  lua_pushcfunction(L, to_text);
  lua_insert(L, -2);
  (void)lua_pcall(L, 1, 1, 0);
  return lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : luaL_typename(L, -1);
}

/* Calls the function on the stack, below `args` arguments, for one result. After an error nothing is left on the stack. */
static ane_status call(lua_State *L, int args, const char *what, struct ane_error *err) {
  if (lua_pcall(L, args, 2, 0) != LUA_OK) {
    ane_status st = ane_fail(err, ANE_IO, "%s: %s", what, text_of(L));
    lua_pop(L, 1);
    return st;
  }
  if (lua_toboolean(L, -2)) return lua_pop(L, 1), ANE_OK;
  ane_status st = ane_fail(err, ANE_IO, "%s", text_of(L));
  lua_pop(L, 2);
  return st;
}

static ane_status on_receive(void *arg, void *data, size_t bytes, struct ane_error *err) {
  const struct bind_link *link = arg;
  lua_State *L = link->L;
  size_t got = 0;
  if (!lua_checkstack(L, 8)) return ane_fail(err, ANE_NOMEM, "no memory for Lua's stack");
  lua_rawgeti(L, LUA_REGISTRYINDEX, link->receive);
  lua_pushinteger(L, (lua_Integer)bytes);
  ane_status st = call(L, 1, "receiving from the stage before", err);
  if (st) return st;
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &got) : NULL;
  if (!text || got != bytes)
    st = ane_fail(err, ANE_INVALID, "the stage before sent %zu bytes, but must send %zu: it has another cut or another build",
                  got, bytes);
  else
    memcpy(data, text, bytes);
  lua_pop(L, 1);
  return st;
}

struct message {
  int send; /* reference of the function */
  const void *data;
  size_t bytes;
  bool rows, to_first; /* rows: of a tensor, with to_first as a second argument */
};

/* (struct message *) -> what the function returns */
static int send_message(lua_State *L) {
  const struct message *m = lua_touserdata(L, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, m->send);
  lua_pushlstring(L, m->data, m->bytes);
  if (m->rows) lua_pushboolean(L, m->to_first);
  lua_call(L, m->rows ? 2 : 1, 2);
  return 2;
}

static ane_status send(lua_State *L, struct message *m, const char *what, struct ane_error *err) {
  if (!lua_checkstack(L, 8)) return ane_fail(err, ANE_NOMEM, "no memory for Lua's stack");
  lua_pushcfunction(L, send_message);
  lua_pushlightuserdata(L, m);
  ane_status st = call(L, 1, what, err);
  if (!st) lua_pop(L, 1);
  return st;
}

static ane_status on_send(void *arg, const void *data, size_t bytes, struct ane_error *err) {
  const struct bind_link *link = arg;
  return send(link->L, &(struct message){link->send, data, bytes, false, false}, "sending to the next stage", err);
}

static ane_status on_send_rows(void *arg, const void *data, size_t bytes, bool to_first, struct ane_error *err) {
  const struct bind_link *link = arg;
  return send(link->L, &(struct message){link->send, data, bytes, true, to_first}, "sending to other ranks", err);
}

static ane_status on_receive_from(void *arg, int32_t rank, void *data, size_t bytes, struct ane_error *err) {
  const struct bind_link *link = arg;
  lua_State *L = link->L;
  size_t got = 0;
  if (!lua_checkstack(L, 8)) return ane_fail(err, ANE_NOMEM, "no memory for Lua's stack");
  lua_rawgeti(L, LUA_REGISTRYINDEX, link->receive);
  lua_pushinteger(L, rank);
  ane_status st = call(L, 1, "receiving from another rank", err);
  if (st) return st;
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &got) : NULL;
  if (!text || got != bytes)
    st = ane_fail(err, ANE_INVALID, "rank %d sent %zu bytes, but must send %zu: it has another build", (int)rank, got, bytes);
  else
    memcpy(data, text, bytes);
  lua_pop(L, 1);
  return st;
}

static ane_status on_begin(void *arg, struct ane_error *err) {
  const struct bind_link *link = arg;
  lua_State *L = link->L;
  if (!lua_checkstack(L, 8)) return ane_fail(err, ANE_NOMEM, "no room for a run");
  lua_rawgeti(L, LUA_REGISTRYINDEX, link->begin);
  ane_status st = call(L, 0, "beginning a run of all ranks", err);
  if (!st) lua_pop(L, 1);
  return st;
}

static ane_status on_wait(void *arg, int32_t rank, double seconds, struct ane_error *err) {
  const struct bind_link *link = arg;
  lua_State *L = link->L;
  if (!lua_checkstack(L, 8)) return ane_fail(err, ANE_NOMEM, "no room to wait");
  lua_rawgeti(L, LUA_REGISTRYINDEX, link->wait);
  lua_pushinteger(L, rank);
  lua_pushnumber(L, seconds);
  ane_status st = call(L, 2, "waiting for another rank", err);
  if (!st) lua_pop(L, 1);
  return st;
}

/* Makes a reference to a function of the table at `t`. */
static int function_field(lua_State *L, int t, const char *option, const char *name) {
  if (bind_field(L, t, name) != LUA_TFUNCTION)
    luaL_error(L, "option %s: %s is %s, not a function", option, name, bind_kind(L, -1));
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

static ane_stage_tail tail_option(lua_State *L, int t) {
  static const char *const names[] = {"all", "no-head", "head", NULL};
  static const ane_stage_tail tails[] = {ANE_STAGE_TAIL_ALL, ANE_STAGE_TAIL_NO_HEAD, ANE_STAGE_TAIL_HEAD};
  return tails[bind_choice_option(L, t, "tail", names)];
}

/* Makes the link whose functions are in the table at the top of the stack. */
static struct bind_link *new_link(lua_State *L, const char *option, struct bind_program_box *box) {
  luaL_checktype(L, -1, LUA_TTABLE);
  int t = lua_gettop(L);
  struct bind_link *link = ane_calloc(1, sizeof *link);
  if (!link) luaL_error(L, "no memory for option %s", option);
  box->link = link;
  link->receive = link->send = link->begin = link->wait = LUA_NOREF;
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  link->main = lua_tothread(L, -1);
  link->L = L;
  lua_pop(L, 1);
  link->receive = function_field(L, t, option, "receive");
  link->send = function_field(L, t, option, "send");
  return link;
}

bool bind_stage_option(lua_State *L, int t, struct bind_program_box *box, struct ane_stage *out) {
  if (bind_field(L, t, "stage") == LUA_TNIL) return lua_pop(L, 1), false;
  struct bind_link *link = new_link(L, "stage", box);
  int stage = lua_gettop(L);
  *out = (struct ane_stage){.from = (int32_t)bind_integer_option(L, stage, "from", 0, INT32_MAX),
                            .to = (int32_t)bind_integer_option(L, stage, "to", 0, INT32_MAX),
                            .tail = tail_option(L, stage),
                            .fp16 = bind_boolean_option(L, stage, "fp16"),
                            .link = {on_receive, on_send, link}};
  lua_settop(L, stage - 1);
  return true;
}

bool bind_tensor_option(lua_State *L, int t, struct bind_program_box *box, struct ane_tensor_parallel *out) {
  if (bind_field(L, t, "tensor") == LUA_TNIL) return lua_pop(L, 1), false;
  if (box->link) luaL_error(L, "options stage and tensor exclude each other");
  struct bind_link *link = new_link(L, "tensor", box);
  int tensor = lua_gettop(L);
  int32_t ranks = (int32_t)bind_integer_option(L, tensor, "ranks", 1, INT32_MAX);
  *out = (struct ane_tensor_parallel){.rank = (int32_t)bind_integer_option(L, tensor, "rank", 0, ranks - 1),
                                      .ranks = ranks,
                                      .send = on_send_rows,
                                      .receive = on_receive_from,
                                      .arg = link};
  if (bind_field(L, tensor, "shared") != LUA_TNIL) {
    luaL_checktype(L, -1, LUA_TLIGHTUSERDATA);
    out->shared = lua_touserdata(L, -1);
    out->shared_bytes = (size_t)bind_integer_option(L, tensor, "shared_bytes", 0, INT32_MAX);
    out->begin = on_begin;
    out->wait = on_wait;
    link->begin = function_field(L, tensor, "tensor", "begin");
    link->wait = function_field(L, tensor, "tensor", "wait");
  }
  lua_settop(L, tensor - 1);
  return true;
}

void bind_link_enter(struct bind_program_box *box, lua_State *L) {
  if (box->link) box->link->L = L;
}

void bind_link_free(struct bind_program_box *box) {
  struct bind_link *link = box->link;
  if (!link) return;
  luaL_unref(link->main, LUA_REGISTRYINDEX, link->receive);
  luaL_unref(link->main, LUA_REGISTRYINDEX, link->send);
  luaL_unref(link->main, LUA_REGISTRYINDEX, link->begin);
  luaL_unref(link->main, LUA_REGISTRYINDEX, link->wait);
  ane_free(link);
  box->link = NULL;
}

/* costs() -> list of {name, weights, read, table (bytes), values, kv (numbers), attention (multiplications), window (positions),
 * crossing (floats per token)}, one for each step of the body and a last one for the tail: see struct ane_step_cost. Call it
 * after passes("cpu"). */
int bind_graph_costs(lua_State *L) {
  const struct ane_graph *g = bind_check_graph(L, 1)->graph;
  struct ane_step_cost *found, *costs = lua_newuserdatauv(L, ((size_t)g->n_nodes + 1) * sizeof *costs, 0);
  int32_t n;
  struct ane_error err;
  if (ane_stage_costs(g, &found, &n, &err)) return bind_fail(L, &err);
  memcpy(costs, found, (size_t)n * sizeof *costs);
  ane_free(found); /* what follows may raise */
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    lua_createtable(L, 0, 9);
    bind_set_text(L, "name", costs[i].name);
    bind_set_integer(L, "weights", (lua_Integer)costs[i].weights);
    bind_set_integer(L, "read", (lua_Integer)costs[i].read);
    bind_set_integer(L, "values", (lua_Integer)costs[i].values);
    bind_set_integer(L, "table", (lua_Integer)costs[i].table);
    bind_set_integer(L, "kv", costs[i].kv);
    bind_set_integer(L, "attention", costs[i].attention);
    bind_set_integer(L, "window", costs[i].window);
    bind_set_integer(L, "crossing", costs[i].crossing);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* head() -> {rows, cols, weights (bytes)} of the head, if its rows can be divided; else nil. Call it after passes("cpu"). */
int bind_graph_head(lua_State *L) {
  const struct ane_graph *g = bind_check_graph(L, 1)->graph;
  int32_t head = ane_graph_head(g);
  if (head == ANE_NONE) return lua_pushnil(L), 1;
  const struct ane_value *w = &g->values[g->nodes[head].inputs[3]];
  lua_createtable(L, 0, 3);
  bind_set_integer(L, "rows", w->shape.dim[0]);
  bind_set_integer(L, "cols", w->shape.dim[1]);
  bind_set_integer(L, "weights", (lua_Integer)(w->data.data ? w->data.bytes : 2 * (uint64_t)(w->shape.dim[0] * w->shape.dim[1])));
  return 1;
}

/* slice_head(from, to) -> true; or nil, message, code. Reduces the head to its rows [from, to), counted from 0. */
int bind_graph_slice_head(lua_State *L) {
  struct ane_graph *g = bind_check_graph(L, 1)->graph;
  struct ane_error err;
  if (ane_graph_slice_head(g, luaL_checkinteger(L, 2), luaL_checkinteger(L, 3), &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static void read_sparsely(const struct bind_graph *ud, bool sparse) {
  for (int i = 0; i < ud->n_sources; i++)
    for (uint32_t f = 0; f < ud->sources[i]->n_files; f++) ane_map_read_sparsely(&ud->sources[i]->files[f].map, sparse);
}

/* identity() -> integer: a hash of the graph and of a few bytes of each constant; or nil, message, code. Reads only these bytes
 * of the weights. */
int bind_graph_identity(lua_State *L) {
  const struct bind_graph *ud = bind_check_graph(L, 1);
  struct ane_error err;
  uint64_t h;
  read_sparsely(ud, true);
  ane_status st = ane_stage_identity(ud->graph, &h, &err);
  read_sparsely(ud, false);
  if (st) return bind_fail(L, &err);
  lua_pushinteger(L, (lua_Integer)h);
  return 1;
}
