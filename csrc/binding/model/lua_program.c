/* core.program(graph, options): a graph planned for this CPU. */
#include "binding/model/bind_model.h"
#include "binding/model/bind_saved.h"
#include "binding/tensor/bind_mask.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "kernels/kernels.h"
#include "quant/quant.h"

#include <stdlib.h>
#include <string.h>

#define PROGRAM_CLASS "ane.program"

struct lua_program {
  struct bind_program_box *box; /* NULL: closed */
};

void bind_program_release(struct bind_program_box *box) {
  if (!box || --box->refs > 0) return;
  while (box->n_adapters > 0) ane_adapter_release(box->adapters[--box->n_adapters]);
  ane_program_destroy(box->program);
  bind_link_free(box);
  ane_free(box->draw_scratch);
  while (box->n_sources > 0) ane_source_close(box->sources[--box->n_sources]);
  ane_free(box);
}

struct bind_program_box *bind_check_program(lua_State *L, int arg) {
  struct lua_program *ud = luaL_checkudata(L, arg, PROGRAM_CLASS);
  if (!ud->box) luaL_error(L, "program is closed");
  bind_check_idle(L, ud->box);
  bind_link_enter(ud->box, L);
  return ud->box;
}

void bind_check_idle(lua_State *L, const struct bind_program_box *box) {
  if (box->running) luaL_error(L, "the program is in a run: a function of its stage cannot use it or its sessions");
}

ane_status bind_run(struct bind_program_box *box, const struct ane_run_item *items, int32_t n, ane_tap_fn tap, void *arg,
                    struct ane_error *err) {
  box->running = true;
  ane_status st = ane_run_tapped(box->program, items, n, tap, arg, err);
  box->running = false;
  return st;
}

struct importance {
  const char *name;
  const float *values;
  int64_t cols;
};
struct other_name {
  const char *name, *other;
};
/* The argument of the packing callbacks. */
struct loading {
  struct bind_progress progress; /* first */
  const struct bind_program_box *box;
  const struct importance *importance; /* kept by a table on the stack */
  int n_importance;
  const struct other_name *other_names; /* in the table of options; sorted */
  size_t n_other_names;
};

/* Drops stored bytes from memory once they are packed. */
static void on_release(void *arg, const void *data, uint64_t bytes) {
  const struct loading *l = arg;
  bind_release(l->box->sources, l->box->n_sources, data, bytes);
}

/* Returns the encoding of weights that the string at the top of the stack names. `what`: the beginning of the message. */
static struct ane_weights_encoding check_weights(lua_State *L, const char *what) {
  struct ane_weights_encoding encoding = {.kind = ANE_WEIGHTS_FILE};
  const char *w = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
  if (strcmp(w, "file") == 0) return encoding;
  bool is_scheme = ane_weight_spec_from_name(w, &encoding.scheme) && encoding.scheme.scheme != ANE_WEIGHT_FP16;
  encoding.kind = is_scheme ? ANE_WEIGHTS_SCHEME : ANE_WEIGHTS_DTYPE;
  encoding.dtype = is_scheme ? ANE_F32 : ane_dtype_from_name(w, strlen(w));
  if (encoding.dtype != ANE_DTYPE_COUNT) return encoding;
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (int i = 0; ane_weight_spec_list(i); i++) {
    luaL_addstring(&b, ane_weight_spec_list(i));
    luaL_addstring(&b, ", ");
  }
  luaL_addstring(&b, "bf16, fp32");
  for (int t = ANE_DTYPE_COUNT - 1; t >= 0; t--) /* in dtype.def types with more bits come later */
    if (ane_dtype_info((ane_dtype)t)->block > 1 && ane_encoder((ane_dtype)t) &&
        ane_layout_for((ane_dtype)t, 256) != ANE_LAYOUT_ROWS)
      lua_pushfstring(L, ", %s", ane_dtype_info((ane_dtype)t)->name), luaL_addvalue(&b);
  luaL_pushresult(&b);
  const char *known = lua_tostring(L, -1), *got = luaL_tolstring(L, -2, NULL);
  luaL_error(L, "%s is %s; known are: file, %s", what, got, known);
  return encoding;
}

/* Reads mixed = list of {pattern, weights, ordered}. The rules are in a userdata that stays on the stack, the patterns in the
 * table. */
static void mixed_field(lua_State *L, int t, struct ane_program_options *o) {
  bind_field(L, t, "mixed");
  if (lua_isnil(L, -1)) return;
  luaL_checktype(L, -1, LUA_TTABLE);
  int list = lua_gettop(L);
  o->n_rules = (int32_t)ANE_MIN(lua_rawlen(L, list), (size_t)4096);
  struct ane_weights_rule *rules = lua_newuserdatauv(L, sizeof *rules * (size_t)o->n_rules, 0);
  o->rules = rules;
  for (int32_t i = 0; i < o->n_rules; i++) {
    lua_rawgeti(L, list, i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    lua_rawgeti(L, -1, 3);
    lua_rawgeti(L, -2, 2);
    rules[i].encoding = check_weights(L, "option mixed");
    lua_rawgeti(L, -3, 1);
    if (lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "option mixed: pattern %d is not a string", (int)i + 1);
    rules[i].pattern = lua_tostring(L, -1);
    rules[i].ordered = lua_toboolean(L, -3);
    lua_pop(L, 4);
  }
}

static int compare_names(const void *a, const void *b) {
  const struct other_name *x = a, *y = b;
  return strcmp(x->name, y->name);
}

/* Reads names = {name of a weight = another name that the patterns of mixed may match}. */
static void names_field(lua_State *L, int t, struct loading *load) {
  bind_field(L, t, "names");
  if (lua_isnil(L, -1)) return;
  luaL_checktype(L, -1, LUA_TTABLE);
  int list = lua_gettop(L);
  size_t n = 0;
  for (lua_pushnil(L); lua_next(L, list); lua_pop(L, 1)) n++;
  struct other_name *rows = lua_newuserdatauv(L, sizeof *rows * ANE_MAX(n, (size_t)1), 0), *row = rows;
  for (lua_pushnil(L); (size_t)(row - rows) < n && lua_next(L, list); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "option names must be {name = name}");
    *row++ = (struct other_name){lua_tostring(L, -2), lua_tostring(L, -1)};
  }
  n = (size_t)(row - rows);
  qsort(rows, n, sizeof *rows, compare_names);
  load->other_names = rows;
  load->n_other_names = n;
}

static const char *find_other_name(void *arg, const char *name) {
  const struct loading *l = arg;
  struct other_name key = {name, NULL}, *found = NULL;
  if (l->n_other_names) found = bsearch(&key, l->other_names, l->n_other_names, sizeof key, compare_names);
  return found ? found->other : NULL;
}

/* Checks importance = {name of a weight = float32 bytes, one number per input column}. */
static void importance_field(lua_State *L, int t, struct loading *load) {
  bind_field(L, t, "importance");
  if (lua_isnil(L, -1)) return;
  luaL_checktype(L, -1, LUA_TTABLE);
  int list = lua_gettop(L), n = 0;
  for (lua_pushnil(L); lua_next(L, list); lua_pop(L, 1)) n++;
  lua_createtable(L, 2 * n, 0); /* keeps the texts: the function `progress` may change the options */
  int keep = lua_gettop(L);
  struct importance *rows = lua_newuserdatauv(L, sizeof *rows * (size_t)ANE_MAX(n, 1), 0);
  load->importance = rows;
  for (lua_pushnil(L); load->n_importance < n && lua_next(L, list); lua_pop(L, 1), rows++) {
    size_t size;
    if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, "option importance must be {name = float32 bytes}");
    const char *bytes = lua_tolstring(L, -1, &size);
    *rows = (struct importance){lua_tostring(L, -2), (const float *)(const void *)bytes, (int64_t)(size / sizeof(float))};
    for (int k = 0; k < 2; k++) lua_pushvalue(L, k - 2), lua_rawseti(L, keep, 2 * load->n_importance + k + 1);
    load->n_importance++;
  }
}

static const float *find_importance(void *arg, const char *name, int64_t cols) {
  const struct loading *l = arg;
  for (int i = 0; i < l->n_importance; i++)
    if (strcmp(l->importance[i].name, name) == 0) return l->importance[i].cols == cols ? l->importance[i].values : NULL;
  return NULL;
}

/* Reads the options isa, threads, int8, head ("auto", "pruned", "full"), weights, mixed, names, importance, context, chunk and
 * progress(done, total). */
static void check_options(lua_State *L, int t, struct ane_program_options *o, struct loading *load) {
  static const char *const head_names[] = {"auto", "pruned", "full", NULL};
  static const ane_head_mode heads[] = {ANE_HEAD_AUTO, ANE_HEAD_PRUNED, ANE_HEAD_FULL};
  luaL_checktype(L, t, LUA_TTABLE);
  bind_field(L, t, "isa");
  o->isa = lua_isnil(L, -1) ? ane_isa_best() : ane_isa_from_name(luaL_checkstring(L, -1));
  if (o->isa == ANE_ISA_COUNT) luaL_error(L, "option isa is %s, no ISA level", lua_tostring(L, -1));
  o->threads = (int)bind_integer_option(L, t, "threads", 1, 1024);
  o->int8 = bind_boolean_option(L, t, "int8");
  o->head = heads[bind_choice_option(L, t, "head", head_names)];
  if (bind_field(L, t, "weights") != LUA_TNIL) o->weights = check_weights(L, "option weights");
  mixed_field(L, t, o);
  names_field(L, t, load);
  o->other_name = find_other_name;
  importance_field(L, t, load);
  o->importance = find_importance;
  o->context = bind_integer_option(L, t, "context", 1, INT32_MAX);
  o->chunk = bind_integer_option(L, t, "chunk", 1, 32768);
  bind_field(L, t, "progress");
  load->progress.function = lua_isfunction(L, -1) ? lua_gettop(L) : 0;
  o->progress = bind_on_progress;
  o->release = on_release;
  o->arg = load;
}

ane_status bind_program_check(const struct bind_program_box *box, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (int i = 0; !st && i < box->n_sources; i++) st = ane_source_check(box->sources[i], err);
  return st;
}

static void keep_sources(struct bind_program_box *box, const struct bind_graph *g) {
  for (int i = 0; i < g->n_sources; i++) {
    ane_source_retain(g->sources[i]);
    box->sources[box->n_sources++] = g->sources[i];
  }
}

/* program(graph, options) -> program; or nil, message, code. Options: see check_options, stage and tensor (lua_stage.c) */
static int program_new(lua_State *L) {
  struct bind_graph *g;
  struct loading load = {.progress.L = L};
  struct ane_program_options o = {0};
  struct ane_stage stage;
  struct ane_tensor_parallel tensor;
  struct ane_error err;
  (void)bind_check_graph(L, 1);
  check_options(L, 2, &o, &load);
  struct lua_program *ud = bind_new(L, PROGRAM_CLASS, sizeof *ud, 0);
  int self = lua_gettop(L);
  if (!(ud->box = ane_calloc(1, sizeof *ud->box)))
    return ane_fail(&err, ANE_NOMEM, "no memory for a program"), bind_fail(L, &err);
  ud->box->refs = 1;
  load.box = ud->box;
  if (bind_stage_option(L, 2, ud->box, &stage)) o.stage = &stage;
  if (bind_tensor_option(L, 2, ud->box, &tensor)) o.tensor = &tensor;
  g = bind_check_graph(L, 1); /* again: a finaliser that ran meanwhile may have closed it */
  if (g->blank) return luaL_error(L, "the graph has no weights, only their shapes: no program can be made of it");
  keep_sources(ud->box, g);
  ane_status st = ane_program_create(&ud->box->program, g->graph, &o, &err);
  if (load.progress.raised) return lua_error(L);
  if (!st) st = bind_program_check(ud->box, &err);
  if (st) return bind_fail(L, &err);
  lua_pushvalue(L, self);
  return 1;
}

static int meth_close(lua_State *L) {
  struct lua_program *ud = luaL_checkudata(L, 1, PROGRAM_CLASS);
  bind_program_release(ud->box);
  ud->box = NULL;
  return 0;
}

/* Pushes a second owner of the program at 1 for calls that make tables of its names, during which a finaliser may close it.
 * let_go ends it. */
static struct lua_program *hold(lua_State *L) {
  struct lua_program *ud = bind_new(L, PROGRAM_CLASS, sizeof *ud, 0);
  struct bind_program_box *box = bind_check_program(L, 1);
  box->refs++;
  ud->box = box;
  return ud;
}

static void let_go(struct lua_program *ud) {
  bind_program_release(ud->box);
  ud->box = NULL;
}

static void push_matrix(lua_State *L, const struct ane_matrix_info *m) {
  lua_createtable(L, 0, 7);
  bind_set_text(L, "name", m->name);
  bind_set_text(L, "dtype", ane_dtype_info(m->dtype)->name);
  bind_set_text(L, "stored", ane_dtype_info(m->stored)->name);
  bind_set_text(L, "form", m->layout);
  bind_set_text(L, "act", m->activations);
  bind_set_integer(L, "rows", m->rows);
  bind_set_integer(L, "cols", m->cols);
  bind_set_integer(L, "bytes", (lua_Integer)m->bytes);
  if (m->input) bind_set_text(L, "input", m->input);
  if (m->weights) bind_set_text(L, "weights", m->weights);
  if (m->unfit) bind_set_text(L, "unfit", m->unfit);
  if (!m->recoded) return;
  bind_set_number(L, "max_abs", m->error.max_abs);
  bind_set_number(L, "error", m->error.error);
  bind_set_number(L, "signal", m->error.signal);
}

/* info() -> table: isa, threads, activations, context, chunk, vocab, weight_bytes, stored_bytes, scratch_bytes,
 * kv_bytes_per_token, steps, matrices = list of {name, rows, cols, stored, dtype, form, act, bytes, input (name of the value that
 * it is multiplied by, or nil), weights (scheme of packages, or nil), unfit (the requested scheme or dtype, if its shape does
 * not take that one, or nil); if it was re-encoded max_abs, error, signal (sums of squares of before - after, and of before)} */
static int meth_info(lua_State *L) {
  struct lua_program *held = hold(L);
  const struct ane_program *p = held->box->program;
  struct ane_program_info i = ane_program_info(p);
  lua_createtable(L, 0, 12);
  bind_set_text(L, "isa", ane_isa_name(i.isa));
  bind_set_text(L, "activations", i.int8 ? "int8" : "fp32");
  bind_set_integer(L, "threads", i.threads);
  bind_set_integer(L, "context", i.context);
  bind_set_integer(L, "chunk", i.chunk);
  bind_set_integer(L, "vocab", i.vocab);
  bind_set_integer(L, "weight_bytes", (lua_Integer)i.weight_bytes);
  bind_set_integer(L, "exchanged_bytes", (lua_Integer)i.exchanged_bytes);
  bind_set_integer(L, "stored_bytes", (lua_Integer)i.stored_bytes);
  bind_set_integer(L, "scratch_bytes", (lua_Integer)i.scratch_bytes);
  bind_set_integer(L, "kv_bytes_per_token", (lua_Integer)i.kv_bytes_per_token);
  bind_set_integer(L, "steps", i.n_steps);
  lua_createtable(L, i.n_matrices, 0);
  for (int32_t m = 0; m < i.n_matrices; m++) {
    struct ane_matrix_info mi = ane_program_matrix(p, m);
    push_matrix(L, &mi);
    lua_rawseti(L, -2, m + 1);
  }
  lua_setfield(L, -2, "matrices");
  let_go(held);
  return 1;
}

/* profile(on) -> true; profile() -> list of {name, op, runs, seconds, bytes, ops, weights (names)}, in the order of steps; nil:
 * profiling is off */
static int meth_profile(lua_State *L) {
  struct ane_program *p = bind_check_program(L, 1)->program;
  struct ane_step_profile row;
  struct ane_error err;
  if (!lua_isnone(L, 2)) {
    luaL_checktype(L, 2, LUA_TBOOLEAN);
    if (ane_program_profile(p, lua_toboolean(L, 2), &err)) return bind_fail(L, &err);
    lua_pushboolean(L, 1);
    return 1;
  }
  if (!ane_program_profiled(p, 0, &row)) return 0;
  struct lua_program *held = hold(L);
  lua_newtable(L);
  for (int32_t i = 0; ane_program_profiled(p, i, &row); i++) {
    lua_createtable(L, 0, 7);
    bind_set_text(L, "name", row.name);
    bind_set_text(L, "op", row.op);
    bind_set_integer(L, "runs", row.runs);
    lua_newtable(L);
    const char *weight;
    for (int n = 0; (weight = ane_program_step_weight(p, i, n)); n++) lua_pushstring(L, weight), lua_rawseti(L, -2, n + 1);
    lua_setfield(L, -2, "weights");
    lua_pushnumber(L, row.seconds), lua_setfield(L, -2, "seconds");
    lua_pushnumber(L, row.bytes), lua_setfield(L, -2, "bytes");
    lua_pushnumber(L, row.ops), lua_setfield(L, -2, "ops");
    lua_rawseti(L, -2, i + 1);
  }
  let_go(held);
  return 1;
}

/* values() -> list of {name, channels}: the values that session:trace can return */
static int meth_values(lua_State *L) {
  struct lua_program *held = hold(L);
  const struct ane_program *p = held->box->program;
  const char *name;
  int64_t channels;
  lua_newtable(L);
  for (int32_t i = 0; (name = ane_program_value(p, i, &channels)); i++) {
    lua_createtable(L, 0, 2);
    bind_set_text(L, "name", name);
    bind_set_integer(L, "channels", channels);
    lua_rawseti(L, -2, i + 1);
  }
  let_go(held);
  return 1;
}

static int meth_max_chunk(lua_State *L) {
  lua_pushinteger(L, ane_program_info(bind_check_program(L, 1)->program).chunk);
  return 1;
}

static int meth_context(lua_State *L) {
  lua_pushinteger(L, ane_program_info(bind_check_program(L, 1)->program).context);
  return 1;
}

static int meth_vocab(lua_State *L) {
  lua_pushinteger(L, ane_program_info(bind_check_program(L, 1)->program).vocab);
  return 1;
}

/* n_ids() -> number of ids: 0 .. n_ids - 1 can be fed. A classifier has fewer logits than ids */
static int meth_n_ids(lua_State *L) {
  lua_pushinteger(L, ane_program_info(bind_check_program(L, 1)->program).n_ids);
  return 1;
}

/* exact() -> true: results do not depend on how tokens are divided into runs; and the length above which a sequence uses the long
 * rope factors, or nil */
static int meth_exact(lua_State *L) {
  int64_t at = ane_program_info(bind_check_program(L, 1)->program).long_rope_after;
  lua_pushboolean(L, 1);
  if (at) lua_pushinteger(L, at);
  return at ? 2 : 1;
}

/* head() -> number of runs with a pruned head, bytes of the head that they read, bytes of the whole head (0: never pruned) */
static int meth_head(lua_State *L) {
  struct ane_head_stats h = ane_program_head(bind_check_program(L, 1)->program);
  lua_pushinteger(L, (lua_Integer)h.pruned);
  lua_pushinteger(L, (lua_Integer)h.read);
  lua_pushinteger(L, (lua_Integer)h.whole);
  return 3;
}

/* dump() -> text, one line for each step */
static int meth_dump(lua_State *L) {
  struct ane_buffer text = {0};
  bool ok = ane_program_print(bind_check_program(L, 1)->program, &text);
  if (ok) lua_pushlstring(L, (const char *)text.data, text.size);
  ane_buffer_free(&text);
  return ok ? 1 : luaL_error(L, "no memory to print the program");
}

/* Returns the type of the cached state at stack index `at`; fp16 if absent. */
static ane_dtype check_kv(lua_State *L, int at) {
  size_t len;
  const char *kv = luaL_optlstring(L, at, "fp16", &len);
  ane_dtype t = ane_dtype_from_name(kv, len);
  if (t != ANE_F16 && t != ANE_F32 && t != ANE_I8 && t != ANE_I16)
    luaL_error(L, "option kv is %s; known are: int16, fp16, fp32, int8", kv);
  return t;
}

/* session{context=, kv=, prefixes= (prefixes to share pages with)} -> session; or nil, message, code */
static int meth_session(lua_State *L) {
  bind_check_program(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_Integer context = bind_integer_option(L, 2, "context", 1, INT32_MAX);
  bind_field(L, 2, "kv");
  ane_dtype kv = check_kv(L, -1);
  if (bind_field(L, 2, "prefixes") == LUA_TNIL) return bind_session_open(L, 1, context, kv, 0);
  return bind_session_open(L, 1, context, kv, lua_gettop(L));
}

/* prefixes([kv]) -> empty known prefixes; or nil, message, code */
static int meth_prefixes(lua_State *L) {
  bind_check_program(L, 1);
  return bind_prefixes_open(L, 1, check_kv(L, 2));
}

/* adapter(parts, hash) -> adapter; or nil, message, code: see lua_adapter.c */
static int meth_adapter(lua_State *L) {
  bind_check_program(L, 1);
  return bind_adapter_new(L, 1);
}

/* adapt(list): sets the adapters {{adapter, scale}, ...} of sessions that are made later; a session can set others */
static int meth_adapt(lua_State *L) {
  struct bind_program_box *box = bind_check_program(L, 1);
  struct ane_adapter *list[ANE_SESSION_ADAPTERS];
  float scales[ANE_SESSION_ADAPTERS];
  int n = bind_adapters(L, 2, list, scales); /* may raise: the adapters so far stay */
  for (int i = 0; i < n; i++) ane_adapter_retain(list[i]);
  while (box->n_adapters > 0) ane_adapter_release(box->adapters[--box->n_adapters]);
  memcpy(box->adapters, list, (size_t)n * sizeof *list);
  memcpy(box->scales, scales, (size_t)n * sizeof *scales);
  box->n_adapters = n;
  return 0;
}

const uint32_t *bind_run_mask(lua_State *L, int arg, const struct bind_program_box *box) {
  if (lua_isnoneornil(L, arg)) return NULL;
  const struct bind_mask *m = bind_check_mask(L, arg);
  lua_Integer vocab = ane_program_info(box->program).vocab;
  if (m->n < vocab) luaL_error(L, "the mask has %d ids, but the model has %d", (int)m->n, (int)vocab);
  return m->bits;
}

/* run(items [, want]) -> true; or nil, message, code. items: list of {session, ids [, token types], want = , until = , mask = },
 * all fed in one run: weights are read once for all. The ids of all together are at most max_chunk(). want, until and mask as in
 * session:feed; the want of an item goes before that of the run (default "last") */
static int meth_run(lua_State *L) {
  struct bind_program_box *box = bind_check_program(L, 1), *other;
  luaL_checktype(L, 2, LUA_TTABLE);
  ane_want wanted = bind_want(L, 3);
  lua_Unsigned n = lua_rawlen(L, 2);
  struct ane_error err;
  luaL_argcheck(L, n >= 1 && n <= 4096, 2, "must have 1 .. 4096 items");
  struct ane_run_item *items = lua_newuserdatauv(L, (size_t)n * sizeof *items, 0);
  luaL_checkstack(L, 4 * (int)n + 8, "too many items");
  const int first = lua_gettop(L) + 1; /* stack index of item 0, which takes four slots */
  for (lua_Unsigned i = 0; i < n; i++) {
    size_t count;
    luaL_argcheck(L, lua_rawgeti(L, 2, (lua_Integer)i + 1) == LUA_TTABLE, 2, "each item is a list {session, ids}");
    int item = lua_gettop(L);
    lua_rawgeti(L, item, 1);
    lua_rawgeti(L, item, 2);
    items[i] = (struct ane_run_item){.session = bind_check_session(L, item + 1, &other), .want = wanted};
    luaL_argcheck(L, other == box, 2, "a session of another program");
    if (lua_getfield(L, item, "want") != LUA_TNIL) items[i].want = bind_want(L, item + 3);
    lua_getfield(L, item, "until");
    items[i].until = bind_opt_integer(L, item + 4, 0, 0, INT32_MAX);
    bind_field(L, item, "mask");
    items[i].mask = bind_run_mask(L, item + 5, bind_check_program(L, 1));
    lua_copy(L, item + 5, item + 3);
    lua_settop(L, item + 3);
    items[i].ids = bind_ids(L, item + 2, &count);
    items[i].n = (int64_t)count;
    lua_replace(L, item + 2);
    if (lua_rawgeti(L, item, 3) != LUA_TNIL) {
      items[i].types = bind_ids(L, lua_gettop(L), &count);
      luaL_argcheck(L, (int64_t)count == items[i].n, 2, "must have as many token types as ids");
      lua_replace(L, item);
    }
    lua_settop(L, item + 3); /* types, session, ids and mask stay on the stack, hence alive */
  }
  for (lua_Unsigned i = 0; i < n; i++) { /* code that ran meanwhile, as a metamethod or finaliser, may have closed a session */
    items[i].session = bind_check_session(L, first + 4 * (int)i + 1, &other);
    luaL_argcheck(L, other == box, 2, "a session of another program");
  }
  ane_status st = bind_run(box, items, (int32_t)n, NULL, NULL, &err);
  return bind_done(L, st ? st : bind_program_check(box, &err), &err);
}

/* mask_size() -> ids of the masks (core.mask) that its feeds take */
static int meth_mask_size(lua_State *L) {
  lua_pushinteger(L, ane_program_info(bind_check_program(L, 1)->program).vocab);
  return 1;
}

static int meth_tostring(lua_State *L) {
  struct lua_program *ud = luaL_checkudata(L, 1, PROGRAM_CLASS);
  if (!ud->box) return lua_pushliteral(L, "program (closed)"), 1;
  struct ane_program_info i = ane_program_info(ud->box->program);
  lua_pushfstring(L, "program (%d steps, %s, %d threads)", i.n_steps, ane_isa_name(i.isa), i.threads);
  return 1;
}

void bind_program(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"session", meth_session}, {"prefixes", meth_prefixes}, {"info", meth_info},   {"max_chunk", meth_max_chunk},
      {"context", meth_context}, {"vocab", meth_vocab},       {"n_ids", meth_n_ids}, {"exact", meth_exact},
      {"head", meth_head},       {"profile", meth_profile},   {"run", meth_run},     {"mask_size", meth_mask_size},
      {"values", meth_values},   {"dump", meth_dump},         {"close", meth_close}, {"adapter", meth_adapter},
      {"adapt", meth_adapt},     {"draw", bind_program_draw}, {NULL, NULL}};
  static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {"__tostring", meth_tostring}, {NULL, NULL}};
  bind_class(L, PROGRAM_CLASS, methods, meta);
  lua_pushcfunction(L, program_new);
  lua_setfield(L, -2, "program");
}
