/* Sessions of a program: made by program:session or session:fork. */
#include "binding/model/bind_model.h"

#include "base/alloc.h"
#include "binding/model/bind_saved.h"
#include "binding/tensor/bind_tensor.h"

#include <string.h>

#define SESSION_CLASS "ane.session"
#define TRACE_CLASS "ane.trace"

struct lua_session {
  struct ane_session *session; /* NULL: closed */
  struct bind_program_box *box;
};

static struct lua_session *check_session(lua_State *L, int arg) {
  struct lua_session *ud = luaL_checkudata(L, arg, SESSION_CLASS);
  if (!ud->session) luaL_error(L, "session is closed");
  bind_check_idle(L, ud->box);
  bind_link_enter(ud->box, L);
  return ud;
}

struct ane_session *bind_check_session(lua_State *L, int arg, struct bind_program_box **box) {
  const struct lua_session *ud = check_session(L, arg);
  *box = ud->box;
  return ud->session;
}

static void adopt(struct lua_session *ud, struct bind_program_box *box) {
  ud->box = box;
  box->refs++;
}

int bind_session_open(lua_State *L, int program, int64_t context, ane_dtype kv, int prefixes) {
  struct lua_session *ud = bind_new(L, SESSION_CLASS, sizeof *ud, 0);
  struct bind_program_box *box = bind_check_program(L, program);
  const struct bind_prefixes *p = prefixes ? bind_check_prefixes(L, prefixes) : NULL;
  struct ane_error err;
  if (p && (p->box != box || p->kv != kv)) luaL_error(L, "option prefixes is of another program or type of kv");
  adopt(ud, box);
  if (ane_session_create(&ud->session, box->program, context, kv, p ? p->store : NULL, &err) ||
      ane_session_adapt(ud->session, box->adapters, box->scales, box->n_adapters, &err))
    return bind_fail(L, &err);
  return 1;
}

/* A session that is in a run is on the stack of Lua, so this one is not. */
static int session_gc(lua_State *L) {
  struct lua_session *ud = luaL_checkudata(L, 1, SESSION_CLASS);
  ane_session_destroy(ud->session);
  ud->session = NULL;
  bind_program_release(ud->box);
  ud->box = NULL;
  return 0;
}

static int meth_close(lua_State *L) {
  const struct lua_session *ud = luaL_checkudata(L, 1, SESSION_CLASS);
  if (ud->box) bind_check_idle(L, ud->box);
  return session_gc(L);
}

/* feed(ids [, want [, until [, mask]]]) -> true; or nil, message, code. want: none, last (default), all, argmax, best. until: the
 * length of the session at the end of a feed of several runs (default: of this one). mask: with "best", the ids among which the
 * best one is searched (core.mask). See ane_run_item */
static int meth_feed(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  struct ane_run_item item = {.want = bind_want(L, 3)};
  size_t n;
  struct ane_error err;
  item.until = bind_opt_integer(L, 4, 0, 0, INT32_MAX);
  item.mask = bind_run_mask(L, 5, ud->box);
  item.ids = bind_ids(L, 2, &n);
  item.n = (int64_t)n;
  item.session = check_session(L, 1)->session; /* a finaliser that ran meanwhile may have closed it */
  ane_status st = bind_run(ud->box, &item, 1, NULL, NULL, &err);
  return bind_done(L, st ? st : bind_program_check(ud->box, &err), &err);
}

/* The values that a trace collects: [tokens][channels] for each requested name. */
struct trace {
  int n;
  const char **names;
  struct trace_value {
    float *data;
    double *sums;
    int64_t tokens, channels;
  } * values;
  bool no_memory;
};

static struct trace_value *find_value(struct trace *t, const char *name) {
  for (int i = 0; i < t->n; i++)
    if (strcmp(t->names[i], name) == 0) return &t->values[i];
  return NULL;
}

/* Adds up squares, [channels], in double precision. */
static void on_squares(void *arg, const char *name, const float *data, int64_t first, int64_t tokens, int64_t channels) {
  struct trace *t = arg;
  struct trace_value *v = find_value(t, name);
  (void)first;
  if (!v || t->no_memory) return;
  if (!v->sums && !(v->sums = ane_calloc((size_t)channels, sizeof *v->sums))) {
    t->no_memory = true;
    return;
  }
  v->tokens += tokens, v->channels = channels;
  for (int64_t i = 0; i < tokens; i++)
    for (int64_t c = 0; c < channels; c++) v->sums[c] += (double)data[i * channels + c] * (double)data[i * channels + c];
}

static void on_tap(void *arg, const char *name, const float *data, int64_t first, int64_t tokens, int64_t channels) {
  struct trace *t = arg;
  struct trace_value *v = find_value(t, name);
  if (!v || t->no_memory) return;
  float *more = ane_realloc(v->data, (size_t)((first + tokens) * channels) * sizeof *more);
  if (!more) {
    t->no_memory = true;
    return;
  }
  memcpy(more + first * channels, data, (size_t)(tokens * channels) * sizeof *more);
  v->data = more, v->tokens = first + tokens, v->channels = channels;
}

static int trace_gc(lua_State *L) {
  struct trace *t = luaL_checkudata(L, 1, TRACE_CLASS);
  for (int i = 0; t->values && i < t->n; i++) {
    ane_free(t->values[i].data);
    ane_free(t->values[i].sums);
  }
  ane_free(t->values);
  ane_free(t->names);
  *t = (struct trace){0};
  return 0;
}

/* Makes a trace of the names listed at `arg`. A table that is pushed keeps the names alive. */
static struct trace *check_names(lua_State *L, int arg) {
  int n = (int)bind_length(L, arg, 1 << 20);
  lua_createtable(L, n, 0);
  struct trace *t = bind_new(L, TRACE_CLASS, sizeof *t, 0);
  t->names = ane_calloc((size_t)n, sizeof *t->names);
  t->values = ane_calloc((size_t)n, sizeof *t->values);
  if (!t->names || !t->values) luaL_error(L, "no memory for a trace of %d values", n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, arg, i + 1);
    if (lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "name %d of the trace is %s", i + 1, bind_kind(L, -1));
    t->names[i] = lua_tostring(L, -1);
    lua_rawseti(L, -3, i + 1);
  }
  t->n = n;
  return t;
}

/* Feeds the ids at 2 to the session at 1, collects the values whose names are listed at 3, and pushes a table for the results.
 * NULL: it pushed nil, message, code instead. what: the name of the results in the message if memory is out. */
static struct trace *run_traced(lua_State *L, ane_want want, ane_tap_fn tap, const char *what) {
  struct lua_session *ud = check_session(L, 1);
  struct ane_run_item item = {.want = want};
  size_t n;
  struct ane_error err;
  lua_settop(L, 3);
  item.ids = bind_ids(L, 2, &n);
  item.n = (int64_t)n;
  struct trace *t = check_names(L, 3);
  item.session = check_session(L, 1)->session; /* as in meth_feed */
  if (bind_run(ud->box, &item, 1, tap, t, &err) || bind_program_check(ud->box, &err)) {
    bind_fail(L, &err);
    return NULL;
  }
  if (t->no_memory) luaL_error(L, "no memory for %s", what);
  lua_createtable(L, 0, t->n);
  return t;
}

/* trace(ids, names [, last]) -> table name -> tensor [tokens, channels]; or nil, message, code. Feeds the ids, all logits wanted;
 * with `last` only those of the last token, so values of the head have one row. */
static int meth_trace(lua_State *L) {
  ane_want want = lua_toboolean(L, 4) ? ANE_WANT_ARGMAX : ANE_WANT_ALL;
  struct trace *t = run_traced(L, want, on_tap, "the trace");
  if (!t) return 3;
  for (int i = 0; i < t->n; i++) {
    struct trace_value *v = &t->values[i];
    if (!v->data) continue;
    struct ane_shape s = {2, {v->tokens, v->channels}};
    memcpy(bind_tensor_new(L, &s), v->data, (size_t)(s.dim[0] * s.dim[1]) * sizeof(float));
    ane_free(v->data); /* now, so that no more than one value exists twice */
    v->data = NULL;
    lua_setfield(L, -2, t->names[i]);
  }
  return 1;
}

/* squares(ids, names) -> table name -> tensor [channels], the mean square of each over the ids; or nil, message, code. Feeds
 * the ids. */
static int meth_squares(lua_State *L) {
  struct trace *t = run_traced(L, ANE_WANT_ARGMAX, on_squares, "sums of squares");
  if (!t) return 3;
  for (int i = 0; i < t->n; i++) {
    const struct trace_value *v = &t->values[i];
    if (!v->sums) continue;
    struct ane_shape s = {1, {v->channels}};
    float *out = bind_tensor_new(L, &s);
    for (int64_t c = 0; c < v->channels; c++) out[c] = (float)(v->sums[c] / (double)v->tokens);
    lua_setfield(L, -2, t->names[i]);
  }
  return 1;
}

/* logits([row]) -> tensor [vocab] */
static int meth_logits(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  lua_settop(L, 2);
  struct ane_shape s = {1, {ane_program_info(ud->box->program).vocab}};
  float *out = bind_tensor_new(L, &s);
  const struct ane_session *from = check_session(L, 1)->session; /* as in meth_feed */
  const float *row = ane_session_logits(from, bind_row(L, 2, ane_session_rows(from)));
  if (!row) return bind_no_row(L, ane_session_rows(from));
  memcpy(out, row, (size_t)s.dim[0] * sizeof *row);
  return 1;
}

/* pooled(how [, from]) -> tensor [vocab]: the rows from `from` on (from 1) as one vector, see ane_pooling */
static int meth_pooled(lua_State *L) {
  static const char *const names[] = {"cls", "last", "mean", "max", "mean_sqrt", "weighted_mean", NULL};
  struct lua_session *ud = check_session(L, 1);
  ane_pooling how = (ane_pooling)luaL_checkoption(L, 2, NULL, names);
  int64_t from = bind_opt_integer(L, 3, 1, 1, INT32_MAX) - 1, rows = ane_session_rows(ud->session);
  if (from >= rows || !ane_session_logits(ud->session, 0)) return bind_no_row(L, rows);
  struct ane_shape s = {1, {ane_program_info(ud->box->program).vocab}};
  float *out = bind_tensor_new(L, &s);
  if (!ane_session_pooled(check_session(L, 1)->session, how, from, out)) return bind_no_row(L, rows); /* as in meth_feed */
  return 1;
}

/* argmax([row]) -> id, logit */
static int meth_argmax(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  float logit;
  int32_t id = ane_session_argmax(ud->session, bind_row(L, 2, ane_session_rows(ud->session)), &logit);
  if (id < 0) return bind_no_row(L, ane_session_rows(ud->session));
  lua_pushinteger(L, id);
  lua_pushnumber(L, (lua_Number)logit);
  return 2;
}

static int meth_rows(lua_State *L) {
  lua_pushinteger(L, ane_session_rows(check_session(L, 1)->session));
  return 1;
}

static int meth_length(lua_State *L) {
  lua_pushinteger(L, ane_session_length(check_session(L, 1)->session));
  return 1;
}

static int meth_context(lua_State *L) {
  lua_pushinteger(L, ane_session_context(check_session(L, 1)->session));
  return 1;
}

static int meth_replayed(lua_State *L) {
  lua_pushinteger(L, ane_session_replayed(check_session(L, 1)->session));
  return 1;
}

static int meth_kv_bytes(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)ane_session_kv_bytes(check_session(L, 1)->session));
  return 1;
}

/* ids() -> list of the tokens fed */
static int meth_ids(lua_State *L) {
  lua_createtable(L, (int)ane_session_length(check_session(L, 1)->session), 0);
  const struct ane_session *s = check_session(L, 1)->session; /* as in meth_feed; there is room for the ids now */
  for (int64_t i = 0; i < ane_session_length(s); i++) lua_pushinteger(L, ane_session_ids(s)[i]), lua_rawseti(L, -2, i + 1);
  return 1;
}

static int meth_rewind(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  lua_Integer length = luaL_checkinteger(L, 2);
  struct ane_error err;
  ud->box->running = true; /* it may feed tokens again, as bind_run */
  ane_status st = ane_session_rewind(ud->session, length, &err);
  ud->box->running = false;
  return bind_done(L, st, &err);
}

static int meth_part(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  struct ane_error err;
  return bind_done(L, ane_session_part(ud->session, luaL_checkinteger(L, 2), &err), &err);
}

/* save(path [, note]) -> true; or nil, message, code */
static int meth_save(lua_State *L) {
  const char *path = bind_text(L, 2);
  struct ane_session_note note = {0};
  struct ane_error err;
  note.text = luaL_optlstring(L, 3, NULL, &note.bytes);
  return bind_done(L, ane_session_save(check_session(L, 1)->session, path, &note, &err), &err);
}

/* restore(path) -> true, note (nil: none was saved); or nil, message, code */
static int meth_restore(lua_State *L) {
  const char *path = bind_text(L, 2);
  struct ane_buffer *note = bind_buffer(L);
  struct ane_error err;
  if (ane_session_restore(check_session(L, 1)->session, path, note, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  if (!note->data) return 1;
  lua_pushlstring(L, (const char *)note->data, note->size);
  return 2;
}

/* adapt(list) -> true; or nil, message, code. The empty session carries the adapters of {{adapter, scale}, ...} from now on. */
static int meth_adapt(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  struct ane_adapter *list[ANE_SESSION_ADAPTERS];
  float scales[ANE_SESSION_ADAPTERS];
  struct ane_error err;
  int n = bind_adapters(L, 2, list, scales);
  return bind_done(L, ane_session_adapt(ud->session, list, scales, n, &err), &err);
}

/* adapters_key() -> integer that distinguishes states under different adapters; 0: none */
static int meth_adapters_key(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)ane_session_adapters_key(check_session(L, 1)->session));
  return 1;
}

static int meth_fork(lua_State *L) {
  struct lua_session *ud = bind_new(L, SESSION_CLASS, sizeof *ud, 0), *from = check_session(L, 1);
  struct ane_error err;
  adopt(ud, from->box);
  if (ane_session_fork(&ud->session, from->session, &err)) return bind_fail(L, &err);
  return 1;
}

/* Returns the prefixes at `arg`, whose pages must be those of the session's program and type of kv. */
static const struct bind_prefixes *check_prefixes(lua_State *L, int arg, const struct lua_session *ud) {
  const struct bind_prefixes *p = bind_check_prefixes(L, arg);
  ane_dtype kv = ane_session_kv(ud->session);
  if (p->box != ud->box) luaL_error(L, "the prefixes are of another program than the session");
  if (p->kv != kv)
    luaL_error(L, "the prefixes hold kv of type %s, but the session has %s", ane_dtype_info(p->kv)->name,
               ane_dtype_info(kv)->name);
  return p;
}

/* keep(prefixes [, all]) -> true; or nil, message, code. Adds the session's pages; all: also the last, partly filled page
 */
static int meth_keep(lua_State *L) {
  struct lua_session *ud = check_session(L, 1);
  const struct bind_prefixes *p = check_prefixes(L, 2, ud);
  struct ane_error err;
  return bind_done(L, ane_session_keep(ud->session, p->tree, lua_toboolean(L, 3), &err), &err);
}

/* begin(prefixes, ids) -> length. Gives an empty session the longest known prefix of a prompt, shorter than the prompt */
static int meth_begin(lua_State *L) {
  size_t n;
  const int32_t *ids = bind_ids(L, 3, &n);
  struct lua_session *ud = check_session(L, 1); /* not before: as in meth_feed */
  const struct bind_prefixes *p = check_prefixes(L, 2, ud);
  lua_pushinteger(L, ane_session_begin(ud->session, p->tree, ids, (int64_t)n));
  return 1;
}

/* stop(): may also be called in a run */
static int meth_stop(lua_State *L) {
  const struct lua_session *ud = luaL_checkudata(L, 1, SESSION_CLASS);
  if (!ud->session) return luaL_error(L, "session is closed");
  ane_session_stop(ud->session);
  return 0;
}

static int meth_tostring(lua_State *L) {
  struct lua_session *ud = luaL_checkudata(L, 1, SESSION_CLASS);
  if (!ud->session) return lua_pushliteral(L, "session (closed)"), 1;
  lua_pushfstring(L, "session (%I of %I positions)", (LUAI_UACINT)ane_session_length(ud->session),
                  (LUAI_UACINT)ane_session_context(ud->session));
  return 1;
}

void bind_session(lua_State *L) {
  static const luaL_Reg methods[] = {{"feed", meth_feed},
                                     {"logits", meth_logits},
                                     {"argmax", meth_argmax},
                                     {"rows", meth_rows},
                                     {"length", meth_length},
                                     {"context", meth_context},
                                     {"ids", meth_ids},
                                     {"kv_bytes", meth_kv_bytes},
                                     {"replayed", meth_replayed},
                                     {"trace", meth_trace},
                                     {"squares", meth_squares},
                                     {"rewind", meth_rewind},
                                     {"part", meth_part},
                                     {"save", meth_save},
                                     {"restore", meth_restore},
                                     {"fork", meth_fork},
                                     {"keep", meth_keep},
                                     {"begin", meth_begin},
                                     {"stop", meth_stop},
                                     {"close", meth_close},
                                     {"pooled", meth_pooled},
                                     {"adapt", meth_adapt},
                                     {"adapters_key", meth_adapters_key},
                                     {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", session_gc}, {"__close", meth_close}, {"__tostring", meth_tostring}, {NULL, NULL}};
  static const luaL_Reg none[] = {{NULL, NULL}}, trace_meta[] = {{"__gc", trace_gc}, {NULL, NULL}};
  bind_class(L, SESSION_CLASS, methods, meta);
  bind_class(L, TRACE_CLASS, none, trace_meta);
}
