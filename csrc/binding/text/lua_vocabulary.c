/* core.vocabulary_json, core.vocabulary_sentencepiece: read the large parts of a tokenizer file in C, and return its small parts
 * as Lua values, from which Lua makes the description for core.tokenizer. */
#include "binding/formats/bind_json.h"
#include "binding/text/bind_vocabulary.h"
#include "vocabulary/vocabulary.h"

#include <string.h>

#define VOCABULARY_CLASS "ane.vocabulary"

struct lua_vocabulary {
  struct vocabulary v;
  bool open; /* user value 1: the text that views lie in */
};

static struct lua_vocabulary *check_vocabulary(lua_State *L, int arg) {
  struct lua_vocabulary *ud = luaL_checkudata(L, arg, VOCABULARY_CLASS);
  if (!ud->open) luaL_error(L, "vocabulary is closed");
  return ud;
}

bool bind_is_vocabulary(lua_State *L, int arg) { return luaL_testudata(L, arg, VOCABULARY_CLASS) != NULL; }

static int meth_close(lua_State *L) {
  struct lua_vocabulary *ud = luaL_checkudata(L, 1, VOCABULARY_CLASS);
  vocabulary_free(&ud->v);
  ud->open = false;
  return 0;
}

void bind_close_vocabulary(lua_State *L, int arg) {
  lua_pushcfunction(L, meth_close);
  lua_pushvalue(L, arg);
  lua_call(L, 1, 0);
}

/* Pushes an empty vocabulary that keeps the text at `text`. */
static struct lua_vocabulary *new_vocabulary(lua_State *L, int text) {
  struct lua_vocabulary *ud = bind_new(L, VOCABULARY_CLASS, sizeof *ud, 1);
  ud->open = true;
  lua_pushvalue(L, text);
  lua_setiuservalue(L, -2, 1);
  return ud;
}

/* ---- Reading -----------------------------------------------------------------------------------------------------*/

/* Reads the member whose name is on top, of the object "model" or of the file. Pushes its value; `true` for members that the
 * vocabulary keeps. */
static bool read_member(lua_State *L, struct lua_vocabulary *ud, struct ane_json *j, bool model);

static bool read_object(lua_State *L, struct lua_vocabulary *ud, struct ane_json *j, bool model) {
  bool more;
  if (!ane_json_enter(j, '{')) return false;
  lua_newtable(L);
  for (bool first = true; ane_json_next(j, '{', first, &more) && more; first = false) {
    if (!bind_json_member(L, j) || !read_member(L, ud, j, model)) return false;
    lua_rawset(L, -3);
  }
  return !j->why;
}

static bool read_member(lua_State *L, struct lua_vocabulary *ud, struct ane_json *j, bool model) {
  const char *name = lua_tostring(L, -1);
  char c = ane_json_peek(j);
  if (!c) return false;
  if (!model) return c == '{' && strcmp(name, "model") == 0 ? read_object(L, ud, j, true) : bind_json_value(L, j);
  bool tokens = strcmp(name, "vocab") == 0, merges = strcmp(name, "merges") == 0 && c != 'n';
  if (!tokens && !merges) return bind_json_value(L, j);
  lua_pushboolean(L, 1);
  return tokens ? vocabulary_read_tokens(&ud->v, j) : vocabulary_read_merges(&ud->v, j);
}

/* vocabulary_json(text) -> vocabulary, all but model.vocab and model.merges as a Lua value; or nil, message, code */
static int vocabulary_json(lua_State *L) {
  size_t len;
  struct ane_json j;
  const char *text = luaL_checklstring(L, 1, &len);
  lua_settop(L, 1);
  struct lua_vocabulary *ud = new_vocabulary(L, 1);
  ane_json_start(&j, text, len, &ud->v.scratch);
  if (ane_json_peek(&j) && read_object(L, ud, &j, false) && ane_json_finish(&j)) return 2;
  bind_close_vocabulary(L, 2);
  return bind_json_fail(L, &j);
}

static void set_text(lua_State *L, const char *name, struct ane_text s) { bind_set_bytes(L, name, s.len ? s.data : "", s.len); }

/* vocabulary_sentencepiece(bytes) -> vocabulary, table of the fields that matter, with the id of the unknown piece and a list
 * of those defined by the user; or nil, message, code */
static int vocabulary_sentencepiece(lua_State *L) {
  size_t len;
  struct sentencepiece s;
  struct ane_error err;
  const char *bytes = luaL_checklstring(L, 1, &len);
  lua_settop(L, 1);
  struct lua_vocabulary *ud = new_vocabulary(L, 1);
  if (sentencepiece_read(&s, &ud->v, bytes, len, &err)) {
    bind_close_vocabulary(L, 2);
    return bind_fail(L, &err);
  }
  lua_newtable(L);
  bind_set_integer(L, "model_type", s.model_type);
  bind_set_boolean(L, "byte_fallback", s.byte_fallback);
  bind_set_boolean(L, "whitespace_suffix", s.whitespace_suffix);
  bind_set_boolean(L, "add_dummy_prefix", s.add_dummy_prefix);
  bind_set_boolean(L, "remove_extra_whitespaces", s.remove_extra_whitespaces);
  bind_set_boolean(L, "escape_whitespaces", s.escape_whitespaces);
  bind_set_integer(L, "bos", s.bos);
  bind_set_integer(L, "eos", s.eos);
  bind_set_integer(L, "pad", s.pad);
  bind_set_integer(L, "n", (lua_Integer)ud->v.n);
  set_text(L, "unk_surface", s.unk_surface);
  set_text(L, "charsmap", s.charsmap);
  set_text(L, "denormaliser", s.denormaliser);
  bool user_blanks = false;
  lua_newtable(L);
  for (size_t i = 0; i < ud->v.n; i++) {
    const struct vocabulary_entry *e = &ud->v.entries[i];
    if (e->type != ANE_TOKEN_USER && e->type != ANE_TOKEN_UNKNOWN) continue;
    if (e->type == ANE_TOKEN_UNKNOWN) {
      lua_pushinteger(L, (lua_Integer)i);
      lua_setfield(L, -3, "unk");
      continue;
    }
    user_blanks = user_blanks || memchr(e->text.data, ' ', e->text.len);
    lua_pushinteger(L, (lua_Integer)i);
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  }
  lua_setfield(L, -2, "user");
  bind_set_boolean(L, "user_blanks", user_blanks);
  return 2;
}

/* find(spelling) -> the id of the token with this spelling, or nil. Searches all tokens: for a few names only. */
static int meth_find(lua_State *L) {
  const struct lua_vocabulary *ud = check_vocabulary(L, 1);
  size_t len;
  const char *s = luaL_checklstring(L, 2, &len);
  for (size_t i = 0; i < ud->v.n; i++) {
    const struct vocabulary_entry *e = &ud->v.entries[i];
    if (e->text.len != len || memcmp(e->text.data, s, len) != 0) continue;
    lua_pushinteger(L, e->id);
    return 1;
  }
  lua_pushnil(L);
  return 1;
}

/* counts() -> tokens, merges, whether tokens have scores, one more than the largest id */
static int meth_counts(lua_State *L) {
  const struct lua_vocabulary *ud = check_vocabulary(L, 1);
  uint32_t end = 0;
  for (size_t i = 0; i < ud->v.n; i++) end = ANE_MAX(end, ud->v.entries[i].id + 1);
  lua_pushinteger(L, (lua_Integer)ud->v.n);
  lua_pushinteger(L, (lua_Integer)ud->v.n_merges);
  lua_pushboolean(L, ud->v.scored);
  lua_pushinteger(L, (lua_Integer)end);
  return 4;
}

/* ---- Describing --------------------------------------------------------------------------------------------------*/

/* The orders are those of the enums of text.h. */
static const char *const change_names[] = {"replace",     "prepend",
                                           "squeeze",     "nfc",
                                           "nfd",         "nfkc",
                                           "nfkd",        "pattern",
                                           "prefix",      "append",
                                           "trim_end",    "lower",
                                           "strip_left",  "strip_right",
                                           "strip_marks", "strip_nonspacing",
                                           "clean",       "apart_han",
                                           "nmt",         "alphabet",
                                           "charsmap",    "charsmap_clusters",
                                           NULL};
_Static_assert(sizeof change_names / sizeof *change_names == ANE_NORMALISE_CHARSMAP_CLUSTERS + 2, "a name for each kind");
static const char *const behaviour_names[] = {"isolated",         "removed",    "merged_with_previous",
                                              "merged_with_next", "contiguous", NULL};
static const char *const model_names[] = {"merges", "scores", "unigram", "wordpiece", "words", NULL};
_Static_assert(sizeof model_names / sizeof *model_names == ANE_MODEL_WORDS + 2, "a name for each kind");
static const char *const decode_names[] = {"replace", "pattern", "bytes",      "fuse",   "strip", "metaspace", "wordpiece",
                                           "cleanup", "suffix",  "byte_level", "spaced", "lead",  NULL};
_Static_assert(sizeof decode_names / sizeof *decode_names == ANE_DECODE_LEAD + 2, "a name for each kind");

/* The state of making a description. All data is in the arena of the vocabulary or in strings of the table. */
struct describe {
  lua_State *L;
  struct vocabulary *v;
  struct ane_tokenizer_desc *d;
  struct ane_error *err;
};

/* Pushes a field of a table of the description, as bind_field. Returns its type. */
static int field(lua_State *L, int table, const char *name) {
  if (!lua_istable(L, table)) luaL_error(L, "description: %s is looked for in %s", name, bind_kind(L, table));
  return bind_field(L, table, name);
}

static struct ane_text text_field(lua_State *L, int table, const char *name) {
  struct ane_text s = {NULL, 0};
  if (field(L, table, name) != LUA_TNIL) {
    if (lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "description: %s is not a string", name);
    s.data = lua_tolstring(L, -1, &s.len);
  }
  lua_pop(L, 1);
  return s;
}

static lua_Integer integer_field(lua_State *L, int table, const char *name, lua_Integer def, lua_Integer lo, lua_Integer hi) {
  lua_Integer value = def;
  if (field(L, table, name) != LUA_TNIL) {
    int whole;
    value = lua_tointegerx(L, -1, &whole);
    if (!whole || value < lo || value > hi) luaL_error(L, "description: %s is not an integer of its range", name);
  }
  lua_pop(L, 1);
  return value;
}

static int choice_field(lua_State *L, int table, const char *name, const char *const *names) {
  struct ane_text s = text_field(L, table, name);
  for (int i = 0; s.data && names[i]; i++)
    if (strcmp(names[i], s.data) == 0) return i;
  return luaL_error(L, "description: %s is '%s'", name, s.data ? s.data : "nil");
}

/* Pushes the list at a key and returns its length. */
static uint32_t list_field(lua_State *L, int table, const char *name) {
  if (field(L, table, name) == LUA_TNIL) return 0;
  luaL_checktype(L, -1, LUA_TTABLE);
  return (uint32_t)ANE_MIN(lua_rawlen(L, -1), (lua_Unsigned)INT32_MAX);
}

static void *array(struct describe *x, uint32_t n, size_t size) {
  void *p = ane_arena_array(&x->v->arena, n, size);
  if (!p) luaL_error(x->L, "not enough memory");
  return p;
}

static void read_change(lua_State *L, struct ane_normaliser *n) {
  int table = lua_gettop(L);
  n->kind = (ane_normaliser_kind)choice_field(L, table, "kind", change_names);
  n->from = text_field(L, table, "from");
  n->to = text_field(L, table, "to");
  n->place = text_field(L, table, "place");
}

static void read_normalisers(struct describe *x, int table) {
  uint32_t n = list_field(x->L, table, "normalisers");
  struct ane_normaliser *list = array(x, n, sizeof *list);
  for (uint32_t i = 0; i < n; i++) {
    lua_rawgeti(x->L, -1, (lua_Integer)i + 1);
    read_change(x->L, &list[i]);
    lua_pop(x->L, 1);
  }
  lua_pop(x->L, 1);
  x->d->normalisers = list;
  x->d->n_normalisers = n;
}

static void read_split(struct describe *x, struct ane_split *s) {
  lua_State *L = x->L;
  int table = lua_gettop(L);
  if (field(L, table, "change") == LUA_TNIL) {
    s->pattern = text_field(L, table, "pattern").data;
    s->behaviour = (ane_split_behaviour)choice_field(L, table, "behaviour", behaviour_names);
    s->invert = bind_boolean_option(L, table, "invert");
    s->literal = bind_boolean_option(L, table, "literal");
    s->place = text_field(L, table, "place").data;
    if (!s->pattern) luaL_error(L, "description: a split without pattern");
  } else {
    struct ane_normaliser *change = array(x, 1, sizeof *change);
    read_change(L, change);
    s->change = change;
    s->only_first = bind_boolean_option(L, table, "only_first");
  }
  lua_pop(L, 1);
}

static void read_splits(struct describe *x, int table) {
  uint32_t n = list_field(x->L, table, "splits");
  struct ane_split *list = array(x, n, sizeof *list);
  for (uint32_t i = 0; i < n; i++) {
    lua_rawgeti(x->L, -1, (lua_Integer)i + 1);
    read_split(x, &list[i]);
    lua_pop(x->L, 1);
  }
  lua_pop(x->L, 1);
  x->d->splits = list;
  x->d->n_splits = n;
}

static void read_decoders(struct describe *x, int table) {
  lua_State *L = x->L;
  uint32_t n = list_field(L, table, "decoders");
  struct ane_decode_step *list = array(x, n, sizeof *list);
  for (uint32_t i = 0; i < n; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    int step = lua_gettop(L);
    list[i].kind = (ane_decode_kind)choice_field(L, step, "kind", decode_names);
    list[i].from = text_field(L, step, "from");
    list[i].to = text_field(L, step, "to");
    list[i].place = text_field(L, step, "place");
    list[i].start = (uint32_t)integer_field(L, step, "start", 0, 0, UINT32_MAX);
    list[i].stop = (uint32_t)integer_field(L, step, "stop", 0, 0, UINT32_MAX);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  x->d->decoders = list;
  x->d->n_decoders = n;
}

static void read_ids(struct describe *x, int table, const char *name, const int32_t **ids, uint32_t *n) {
  *n = list_field(x->L, table, name);
  int32_t *list = array(x, *n, sizeof *list);
  for (uint32_t i = 0; i < *n; i++) {
    lua_rawgeti(x->L, -1, (lua_Integer)i + 1);
    lua_Integer id = luaL_checkinteger(x->L, -1);
    list[i] = id < 0 || id > INT32_MAX ? INT32_MAX : (int32_t)id; /* too large is found by the tokenizer */
    lua_pop(x->L, 1);
  }
  lua_pop(x->L, 1);
  *ids = list;
}

/* ---- Tokens ------------------------------------------------------------------------------------------------------*/

/* Tables by id. */
struct tables {
  struct ane_text *tokens;
  uint8_t *types, *flags;
  double *scores;
};

enum { MAX_HOLES = 1 << 20 };

/* Places the entries of the file in the tables by id. */
static ane_status place_tokens(struct describe *x, const struct tables *t) {
  for (size_t i = 0; i < x->v->n; i++) {
    const struct vocabulary_entry *e = &x->v->entries[i];
    if (t->tokens[e->id].data)
      return ane_fail(x->err, ANE_FORMAT, "id %u belongs to two tokens, '%.*s' and '%.*s'", (unsigned)e->id,
                      (int)ANE_MIN(t->tokens[e->id].len, (size_t)60), t->tokens[e->id].data,
                      (int)ANE_MIN(e->text.len, (size_t)60), e->text.data);
    t->tokens[e->id] = e->text;
    t->types[e->id] = e->type;
    if (t->scores) t->scores[e->id] = e->score;
  }
  return ANE_OK;
}

/* Places the added tokens of the list on top, {id, content, flags, special}. They replace tokens of the vocabulary. */
static ane_status place_added(struct describe *x, const struct tables *t, uint32_t n) {
  lua_State *L = x->L;
  for (uint32_t i = 0; i < n; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    int table = lua_gettop(L);
    uint32_t id = (uint32_t)integer_field(L, table, "id", 0, 0, (lua_Integer)x->d->n_tokens - 1);
    uint8_t flags = (uint8_t)integer_field(L, table, "flags", 0, 0, UINT8_MAX);
    struct ane_text content = text_field(L, table, "content"), *old = &t->tokens[id];
    bool same = old->data && old->len == content.len && (!content.len || memcmp(old->data, content.data, content.len) == 0);
    if (old->data && !same)
      return ane_fail(x->err, ANE_FORMAT, "added_tokens: '%.*s' has the id %u, which belongs to '%.*s'",
                      (int)ANE_MIN(content.len, (size_t)60), content.data, (unsigned)id, (int)ANE_MIN(old->len, (size_t)60),
                      old->data);
    bool outside = !old->data || t->flags[id] & ANE_ADDED_OUTSIDE;
    *old = content;
    t->types[id] = bind_boolean_option(L, table, "special") ? ANE_TOKEN_CONTROL : ANE_TOKEN_USER;
    t->flags[id] = (uint8_t)(flags | (outside ? ANE_ADDED_OUTSIDE : 0));
    lua_pop(L, 1);
  }
  return ANE_OK;
}

/* Returns one more than the largest id of the vocabulary and of the added tokens in the list on top. */
static uint32_t count_ids(struct describe *x, uint32_t n_added) {
  lua_Integer end = 0;
  for (size_t i = 0; i < x->v->n; i++) end = ANE_MAX(end, (lua_Integer)x->v->entries[i].id + 1);
  for (uint32_t i = 0; i < n_added; i++) {
    lua_rawgeti(x->L, -1, (lua_Integer)i + 1);
    end = ANE_MAX(end, integer_field(x->L, lua_gettop(x->L), "id", 0, 0, INT32_MAX - 1) + 1);
    lua_pop(x->L, 1);
  }
  return (uint32_t)end;
}

/* Sets the flags of the ids in the list `user` to `user_flags`. */
static void flag_users(struct describe *x, const struct tables *t, int table) {
  const int32_t *ids;
  uint32_t n;
  uint8_t flags = (uint8_t)integer_field(x->L, table, "user_flags", 0, 0, UINT8_MAX);
  read_ids(x, table, "user", &ids, &n);
  for (uint32_t i = 0; i < n; i++)
    if ((uint32_t)ids[i] < x->d->n_tokens) t->flags[ids[i]] |= flags;
}

static ane_status read_tokens(struct describe *x, int table) {
  uint32_t n_added = list_field(x->L, table, "added"), n = count_ids(x, n_added);
  struct tables t = {0};
  if (n == 0) return ane_fail(x->err, ANE_FORMAT, "the vocabulary has no tokens");
  if (n > x->v->n + n_added + MAX_HOLES)
    return ane_fail(x->err, ANE_FORMAT, "the largest id is %u, in a vocabulary of %zu tokens", (unsigned)n - 1,
                    x->v->n + n_added);
  t.tokens = array(x, n, sizeof *t.tokens);
  t.types = array(x, n, 1);
  t.flags = array(x, n, 1);
  if (x->v->scored) t.scores = array(x, n, sizeof *t.scores);
  memset(t.types, ANE_TOKEN_UNUSED, n);
  x->d->n_tokens = n;
  x->d->tokens = t.tokens;
  x->d->types = t.types;
  x->d->flags = t.flags;
  x->d->scores = t.scores;
  x->d->unique = x->v->unique;
  ane_status st = place_tokens(x, &t);
  if (!st) st = place_added(x, &t, n_added);
  lua_settop(x->L, table);
  if (!st) flag_users(x, &t, table);
  return st;
}

ane_status bind_describe(lua_State *L, int arg, int table, struct ane_tokenizer_desc *d, struct ane_error *err) {
  /* analyser: d is filled in here. */
  struct describe x = {L, &check_vocabulary(L, arg)->v, d, err};
  int top = lua_gettop(L);
  luaL_checktype(L, table, LUA_TTABLE);
  lua_pushvalue(L, table);
  table = top + 1;
  *d = (struct ane_tokenizer_desc){.bos = ANE_NO_TOKEN, .eos = ANE_NO_TOKEN};
  d->model = (ane_model_kind)choice_field(L, table, "model", model_names);
  d->byte_level = bind_boolean_option(L, table, "byte_level");
  d->byte_fallback = bind_boolean_option(L, table, "byte_fallback");
  d->whole = bind_boolean_option(L, table, "whole") ? ANE_WHOLE_ALWAYS : ANE_WHOLE_NEVER;
  d->library_rules = bind_boolean_option(L, table, "library_rules");
  d->single = bind_boolean_option(L, table, "single");
  d->fuse_unk = bind_boolean_option(L, table, "fuse_unk");
  d->unk_needed = bind_boolean_option(L, table, "unk_needed");
  d->prefix = text_field(L, table, "prefix");
  d->suffix = text_field(L, table, "suffix");
  d->unk_text = text_field(L, table, "unk_text");
  d->max_chars = (uint32_t)integer_field(L, table, "max_chars", UINT32_MAX, 0, UINT32_MAX);
  d->unk = (int32_t)integer_field(L, table, "unk", ANE_NO_TOKEN, ANE_NO_TOKEN, INT32_MAX);
  d->merges = x.v->merges;
  d->n_merges = x.v->n_merges;
  read_normalisers(&x, table);
  read_splits(&x, table);
  read_decoders(&x, table);
  read_ids(&x, table, "head", &d->head, &d->n_head);
  read_ids(&x, table, "tail", &d->tail, &d->n_tail);
  ane_status st = read_tokens(&x, table);
  lua_settop(L, top);
  return st;
}

/* ---- base64 ------------------------------------------------------------------------------------------------------*/

/* base64_decode(text) -> bytes; nil if the text is not base64 (RFC 4648, with padding) */
static int base64_decode(lua_State *L) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t len;
  const char *s = luaL_checklstring(L, 1, &len);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  uint32_t bits = 0;
  size_t pad = len && s[len - 1] == '=' ? 1 + (len > 1 && s[len - 2] == '=') : 0;
  if (len % 4) return lua_pushnil(L), 1;
  for (size_t i = 0; i < len; i++) {
    const char *digit = i < len - pad ? (s[i] ? strchr(digits, s[i]) : NULL) : digits;
    if (!digit) return lua_pushnil(L), 1;
    bits = bits << 6 | (uint32_t)(digit - digits);
    if (i % 4 < 3) continue;
    /* analyser: k is at most 2, so the shift is not negative. */
    for (size_t k = 0; k < (i == len - 1 ? 3 - pad : 3); k++) luaL_addchar(&b, (char)(bits >> (16 - 8 * k) & 0xFF));
    bits = 0;
  }
  luaL_pushresult(&b);
  return 1;
}

/* ---- Registration ------------------------------------------------------------------------------------------------*/

static const luaL_Reg methods[] = {{"close", meth_close}, {"find", meth_find}, {"counts", meth_counts}, {NULL, NULL}};
static const luaL_Reg meta[] = {{"__gc", meth_close}, {"__close", meth_close}, {NULL, NULL}};
static const luaL_Reg functions[] = {{"vocabulary_json", vocabulary_json},
                                     {"vocabulary_sentencepiece", vocabulary_sentencepiece},
                                     {"base64_decode", base64_decode},
                                     {NULL, NULL}};

void bind_vocabulary(lua_State *L) {
  bind_class(L, VOCABULARY_CLASS, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
