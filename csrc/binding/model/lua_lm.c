/* core.graph_program(source, options): a language model that runs its imported graph op by op, and its sessions. */
#include "binding/model/bind_interp.h"
#include "binding/model/bind_saved.h"
#include "binding/tensor/bind_tensor.h"

#include "base/alloc.h"
#include "platform/map_guard.h"

#include <string.h>

#define PROGRAM_CLASS "ane.graph_program"
#define SESSION_CLASS "ane.graph_session"

/* A model, owned by the program's value and its sessions. The last owner frees it. */
struct box {
  struct ane_lm *lm;
  struct ane_source *source;
  int refs;
};

struct lua_program {
  struct box *box; /* NULL: closed */
};
struct lua_session {
  struct ane_lm_session *session; /* NULL: closed */
  struct box *box;
};

static void release(struct box *b) {
  if (!b || --b->refs > 0) return;
  ane_lm_destroy(b->lm);
  ane_source_close(b->source);
  ane_free(b);
}

static struct box *check_program(lua_State *L, int arg) {
  struct lua_program *ud = luaL_checkudata(L, arg, PROGRAM_CLASS);
  if (!ud->box || !ud->box->lm) luaL_error(L, "program is closed");
  return ud->box;
}

static struct lua_session *check_session(lua_State *L, int arg) {
  struct lua_session *ud = luaL_checkudata(L, arg, SESSION_CLASS);
  if (!ud->session) luaL_error(L, "session is closed");
  return ud;
}

/* ---- Options -------------------------------------------------------------------------------------------------------*/

/* Reads a text; NULL if it is absent. The list at `keep` keeps it alive: the function `progress` may change the options. */
static const char *read_text(lua_State *L, int t, const char *name, int keep) {
  const char *s = bind_opt_text_option(L, t, name);
  if (s) {
    bind_field(L, t, name);
    lua_rawseti(L, keep, (lua_Integer)lua_rawlen(L, keep) + 1);
  }
  return s;
}

/* Reads the option states = list of {past=, present=, rows=}. The array is a userdata that stays on the stack. */
static void read_states(lua_State *L, int t, int keep, struct ane_lm_options *o) {
  bind_field(L, t, "states");
  luaL_checktype(L, -1, LUA_TTABLE);
  int list = lua_gettop(L);
  size_t n = (size_t)lua_rawlen(L, list);
  if (n > 100000) luaL_error(L, "option states has %I entries", (LUAI_UACINT)n);
  struct ane_lm_state *states = lua_newuserdatauv(L, (n + 1) * sizeof *states, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, list, (lua_Integer)i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    int row = lua_gettop(L);
    states[i] = (struct ane_lm_state){read_text(L, row, "past", keep), read_text(L, row, "present", keep),
                                      bind_opt_integer_option(L, row, "rows", 0, 0, INT32_MAX)};
    if (!states[i].past || !states[i].present)
      luaL_error(L, "option states: entry %I has no past or present", (LUAI_UACINT)(i + 1));
    lua_pop(L, 1);
  }
  o->states = states;
  o->n_states = (int32_t)n;
}

static void read_options(lua_State *L, int t, struct ane_lm_options *o) {
  lua_newtable(L);
  int keep = lua_gettop(L);
  *o = (struct ane_lm_options){.ids = read_text(L, t, "ids", keep),
                               .mask = read_text(L, t, "mask", keep),
                               .positions = read_text(L, t, "positions", keep),
                               .past_length = read_text(L, t, "past_length", keep),
                               .total_length = read_text(L, t, "total_length", keep),
                               .logits = read_text(L, t, "logits", keep)};
  o->kv_heads = bind_opt_integer_option(L, t, "kv_heads", 0, 0, INT32_MAX);
  o->head_size = bind_opt_integer_option(L, t, "head_size", 0, 0, INT32_MAX);
  o->context = bind_opt_integer_option(L, t, "context", 1, 1, INT32_MAX);
  o->chunk = bind_opt_integer_option(L, t, "chunk", 1, 1, 4096);
  read_states(L, t, keep, o);
}

/* ---- Programs ------------------------------------------------------------------------------------------------------*/

/* graph_program(source, options) -> program; or nil, message, code. Options: those of core.interp, and ids, mask,
 * positions, past_length, total_length, logits (names), states (list of {past, present, rows}), kv_heads, head_size,
 * context, chunk. */
static int program_new(lua_State *L) {
  struct ane_source *s = bind_check_source(L, 1);
  struct ane_interp_options io;
  struct ane_lm_options o;
  struct bind_loading load;
  struct ane_error err;
  bind_interp_options(L, 2, s, &io, &load);
  read_options(L, 2, &o);
  struct lua_program *ud = bind_new(L, PROGRAM_CLASS, sizeof *ud, 0);
  int self = lua_gettop(L);
  if (!(ud->box = ane_calloc(1, sizeof *ud->box))) return luaL_error(L, "no memory for a program");
  ud->box->refs = 1;
  s = load.source = bind_check_source(L, 1); /* again: a finaliser may have closed it */
  ud->box->source = s;
  ane_source_retain(s);
  struct ane_interp *g;
  ane_status st = ane_interp_from_onnx(&g, s, &io, &err);
  if (!st) st = ane_lm_create(&ud->box->lm, g, &o, &err);
  if (load.progress.raised) return lua_error(L);
  if (st) return bind_fail(L, &err);
  lua_pushvalue(L, self);
  return 1;
}

static int program_close(lua_State *L) {
  struct lua_program *ud = luaL_checkudata(L, 1, PROGRAM_CLASS);
  release(ud->box);
  ud->box = NULL;
  return 0;
}

/* info() -> as core.program's, without matrices; nodes, folded, engine = "graph" */
static int program_info(lua_State *L) {
  const struct ane_lm *m = check_program(L, 1)->lm;
  struct ane_interp_info i = ane_interp_info(ane_lm_graph(m));
  lua_createtable(L, 0, 12);
  const struct {
    const char *name, *text;
    lua_Integer v;
  } rows[] = {{"isa", ane_isa_name(i.isa), 0},
              {"activations", "fp32", 0},
              {"engine", "graph", 0},
              {"threads", NULL, i.threads},
              {"context", NULL, ane_lm_context(m)},
              {"chunk", NULL, ane_lm_chunk(m)},
              {"vocab", NULL, ane_lm_vocab(m)},
              {"weight_bytes", NULL, (lua_Integer)i.weight_bytes},
              {"scratch_bytes", NULL, (lua_Integer)i.constant_bytes},
              {"steps", NULL, i.n_nodes},
              {"folded", NULL, i.n_folded}};
  for (size_t k = 0; k < ANE_COUNT(rows); k++) {
    if (rows[k].text)
      lua_pushstring(L, rows[k].text);
    else
      lua_pushinteger(L, rows[k].v);
    lua_setfield(L, -2, rows[k].name);
  }
  return 1;
}

static int program_max_chunk(lua_State *L) { return lua_pushinteger(L, ane_lm_chunk(check_program(L, 1)->lm)), 1; }
static int program_context(lua_State *L) { return lua_pushinteger(L, ane_lm_context(check_program(L, 1)->lm)), 1; }
static int program_vocab(lua_State *L) { return lua_pushinteger(L, ane_lm_vocab(check_program(L, 1)->lm)), 1; }

static int program_dump(lua_State *L) {
  struct ane_buffer text = {0};
  bool ok = ane_interp_print(ane_lm_graph(check_program(L, 1)->lm), &text);
  if (ok) lua_pushlstring(L, (const char *)text.data, text.size);
  ane_buffer_free(&text);
  return ok ? 1 : luaL_error(L, "no memory to print the program");
}

/* states() -> list of {name, grows (true: by a row for each token; false: a fixed size), count (elements after one token)} */
static int program_states(lua_State *L) {
  const struct ane_lm *m = check_program(L, 1)->lm;
  lua_createtable(L, ane_lm_states(m), 0);
  for (int32_t i = 0; i < ane_lm_states(m); i++) {
    lua_createtable(L, 0, 3);
    lua_pushstring(L, ane_lm_state_name(m, i));
    lua_setfield(L, -2, "name");
    lua_pushboolean(L, ane_lm_state_grows(m, i));
    lua_setfield(L, -2, "grows");
    lua_pushinteger(L, ane_lm_state_count(m, i, 1));
    lua_setfield(L, -2, "count");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* fingerprint() -> integer; a saved state fits models with the same one */
static int program_fingerprint(lua_State *L) {
  return lua_pushinteger(L, (lua_Integer)ane_lm_fingerprint(check_program(L, 1)->lm)), 1;
}

/* session() -> session: feed, rows, logits, argmax, length, and its states by get, put and copy; or nil, message, code */
static int program_session(lua_State *L) {
  struct lua_session *ud = bind_new(L, SESSION_CLASS, sizeof *ud, 0);
  struct box *b = check_program(L, 1);
  struct ane_error err;
  ud->box = b;
  b->refs++;
  if (ane_lm_session_create(&ud->session, b->lm, &err)) return bind_fail(L, &err);
  return 1;
}

static int program_tostring(lua_State *L) {
  const struct lua_program *ud = luaL_checkudata(L, 1, PROGRAM_CLASS);
  if (!ud->box) return lua_pushliteral(L, "graph program (closed)"), 1;
  lua_pushfstring(L, "graph program (%d nodes)", ane_interp_info(ane_lm_graph(ud->box->lm)).n_nodes);
  return 1;
}

/* ---- Sessions ------------------------------------------------------------------------------------------------------*/

static int session_close(lua_State *L) {
  struct lua_session *ud = luaL_checkudata(L, 1, SESSION_CLASS);
  ane_lm_session_destroy(ud->session);
  ud->session = NULL;
  release(ud->box);
  ud->box = NULL;
  return 0;
}

/* feed(ids [, want]) -> true; or nil, message, code */
static int session_feed(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  ane_want want = bind_want(L, 3);
  size_t n;
  struct ane_error err;
  const int32_t *ids = bind_ids(L, 2, &n);
  ud = check_session(L, 1); /* a finaliser that ran meanwhile may have closed it */
  ane_status st = ane_lm_feed(ud->session, ids, (int64_t)n, want, &err);
  return bind_done(L, st ? st : ane_maps_check(&err), &err);
}

static int session_logits(lua_State *L) {
  lua_settop(L, 2);
  struct ane_shape s = {1, {ane_lm_vocab(check_session(L, 1)->box->lm)}};
  float *out = bind_tensor_new(L, &s);
  const struct lua_session *ud = check_session(L, 1); /* as in session_feed */
  const float *row = ane_lm_logits(ud->session, bind_row(L, 2, ane_lm_rows(ud->session)));
  if (!row) return bind_no_row(L, ane_lm_rows(ud->session));
  memcpy(out, row, (size_t)s.dim[0] * sizeof *row);
  return 1;
}

static int session_argmax(lua_State *L) {
  const struct lua_session *ud = check_session(L, 1);
  float logit;
  int32_t id = ane_lm_argmax(ud->session, bind_row(L, 2, ane_lm_rows(ud->session)), &logit);
  if (id < 0) return bind_no_row(L, ane_lm_rows(ud->session));
  lua_pushinteger(L, id);
  lua_pushnumber(L, (lua_Number)logit);
  return 2;
}

static int session_rows(lua_State *L) { return lua_pushinteger(L, ane_lm_rows(check_session(L, 1)->session)), 1; }
static int session_length(lua_State *L) { return lua_pushinteger(L, ane_lm_length(check_session(L, 1)->session)), 1; }
/* get(i) -> tensor [elements], a copy of state i (from 1) */
static int session_get(lua_State *L) {
  const struct lua_session *ud = check_session(L, 1);
  const struct ane_dyn *t = ane_lm_state(ud->session, (int32_t)bind_integer(L, 2, 1, ane_lm_states(ud->box->lm)) - 1);
  struct ane_shape shape = {1, {t->count}};
  float *data = bind_tensor_new(L, &shape);
  if (t->count) memcpy(data, t->data, (size_t)ane_dyn_bytes(t));
  return 1;
}

/* put(length [, tensors]) -> true; or nil, message, code. tensors: number of a state -> its elements; see ane_lm_put. */
static int session_put(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  struct ane_lm *m = ud->box->lm;
  int64_t length = bind_integer(L, 2, 0, ane_lm_context(m));
  struct ane_error err;
  lua_settop(L, 3);
  if (!lua_isnil(L, 3)) luaL_checktype(L, 3, LUA_TTABLE);
  const float **data = lua_newuserdatauv(L, (size_t)(ane_lm_states(m) + 1) * sizeof *data, 0);
  for (int32_t i = 0; i < ane_lm_states(m); i++) {
    data[i] = NULL;
    if (lua_isnil(L, 3)) continue;
    if (lua_rawgeti(L, 3, i + 1) != LUA_TNIL) {
      const struct bind_tensor *t = bind_check_tensor(L, -1);
      if ((int64_t)t->count != ane_lm_state_count(m, i, length))
        return luaL_error(L, "state %s has %I elements, but must have %I", ane_lm_state_name(m, i), (LUAI_UACINT)t->count,
                          (LUAI_UACINT)ane_lm_state_count(m, i, length));
      data[i] = t->data; /* the table keeps it */
    }
    lua_pop(L, 1);
  }
  return bind_done(L, ane_lm_put(ud->session, length, data, &err), &err);
}

/* copy() -> a second session with the same states; or nil, message, code */
static int session_copy(lua_State *L) {
  struct lua_session *ud = bind_new(L, SESSION_CLASS, sizeof *ud, 0), *from = check_session(L, 1);
  struct ane_error err;
  ud->box = from->box;
  from->box->refs++;
  if (ane_lm_copy(&ud->session, from->session, &err)) return bind_fail(L, &err);
  return 1;
}

static int session_tostring(lua_State *L) {
  const struct lua_session *ud = luaL_checkudata(L, 1, SESSION_CLASS);
  if (!ud->session) return lua_pushliteral(L, "session (closed)"), 1;
  lua_pushfstring(L, "session (%I positions)", (LUAI_UACINT)ane_lm_length(ud->session));
  return 1;
}

void bind_lm(lua_State *L) {
  static const luaL_Reg program[] = {{"session", program_session},
                                     {"states", program_states},
                                     {"fingerprint", program_fingerprint},
                                     {"info", program_info},
                                     {"max_chunk", program_max_chunk},
                                     {"context", program_context},
                                     {"vocab", program_vocab},
                                     {"dump", program_dump},
                                     {"close", program_close},
                                     {NULL, NULL}};
  static const luaL_Reg program_meta[] = {
      {"__gc", program_close}, {"__close", program_close}, {"__tostring", program_tostring}, {NULL, NULL}};
  static const luaL_Reg session[] = {{"feed", session_feed},     {"logits", session_logits},
                                     {"argmax", session_argmax}, {"rows", session_rows},
                                     {"length", session_length}, {"get", session_get},
                                     {"put", session_put},       {"copy", session_copy},
                                     {"close", session_close},   {NULL, NULL}};
  static const luaL_Reg session_meta[] = {
      {"__gc", session_close}, {"__close", session_close}, {"__tostring", session_tostring}, {NULL, NULL}};
  bind_class(L, PROGRAM_CLASS, program, program_meta);
  bind_class(L, SESSION_CLASS, session, session_meta);
  lua_pushcfunction(L, program_new);
  lua_setfield(L, -2, "graph_program");
}
