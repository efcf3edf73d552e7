/* Classes "ane.grammar.core", "ane.matcher" and "ane.token_tree" over csrc/grammar. lua/ane/grammar.lua is what programs see. */
#include "binding/text/bind_vocabulary.h"
#include "binding/tensor/bind_mask.h"
#include "binding/tensor/bind_tensor.h"
#include "grammar/grammar.h"
#include "base/alloc.h"

#include <math.h>
#include <string.h>

#define GRAMMAR "ane.grammar.core"
#define MATCHER "ane.matcher"
#define TREE "ane.token_tree"

struct lua_grammar {
  struct ane_grammar *g;
};

/* Uservalue 1: the grammar. */
struct lua_matcher {
  struct ane_matcher *m;
  uint32_t *mask; /* [words] of the tree used last */
  uint32_t words;
};

struct lua_tree {
  struct ane_token_tree *t;
};

/* ---- Grammars ----------------------------------------------------------------------------------------------------*/

static int grammar_close(lua_State *L) {
  struct lua_grammar *ud = luaL_checkudata(L, 1, GRAMMAR);
  ane_grammar_destroy(ud->g);
  ud->g = NULL;
  return 0;
}

static bool flag(lua_State *L, int table, const char *name) {
  if (!lua_istable(L, table)) return false;
  lua_getfield(L, table, name);
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return on;
}

/* Returns the strings of the list at `arg`, in a userdata that is pushed. They are valid as long as the list is unchanged. */
static struct ane_bytes *check_texts(lua_State *L, int arg, size_t *n) {
  *n = bind_length(L, arg, INT32_MAX);
  struct ane_bytes *list = lua_newuserdatauv(L, (*n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < *n; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    if (lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "entry %d must be a string, but is %s", (int)i + 1, bind_kind(L, -1));
    list[i].data = lua_tolstring(L, -1, &list[i].len);
    lua_pop(L, 1);
  }
  return list;
}

static struct ane_json_options json_options(lua_State *L, int table) {
  struct ane_json_options how = {.lenient = flag(L, table, "lenient"), .max_blanks = 1};
  if (lua_istable(L, table) && lua_getfield(L, table, "blanks") != LUA_TNIL) {
    how.free_blanks = true;
    how.max_blanks = (uint32_t)bind_integer(L, -1, 0, 1000);
  }
  return how;
}

/* Reads one symbol at the top of the stack: the number of a rule, or a string: "=" and a literal, "/" and a pattern, "~" and a
 * pattern that ignores case. */
static struct ane_rule_symbol check_symbol(lua_State *L) {
  struct ane_rule_symbol s = {0};
  if (lua_isinteger(L, -1)) {
    lua_Integer rule = lua_tointeger(L, -1);
    if (rule < 1 || rule > INT32_MAX) luaL_error(L, "rule %d does not exist", (int)rule);
    s.kind = ANE_RULE_REFERENCE;
    s.rule = (uint32_t)rule - 1;
    return s;
  }
  size_t n = 0;
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : "";
  if (n == 0 || !strchr("=/~", *text))
    luaL_error(L, "a symbol must be the number of a rule or a text with its kind, but is %s", bind_kind(L, -1));
  s.kind = *text == '=' ? ANE_RULE_LITERAL : *text == '/' ? ANE_RULE_PATTERN : ANE_RULE_PATTERN_NO_CASE;
  s.text = (struct ane_bytes){text + 1, n - 1};
  return s;
}

static size_t list_length(lua_State *L) { return bind_length(L, lua_gettop(L), 1 << 20); }

/* Reads the rules of the table at `arg`, a list of lists of lists of symbols, into userdata: one for each rule and one for each
 * alternative, which a pushed table keeps. */
static struct ane_rule *check_rules(lua_State *L, int arg, size_t *n) {
  lua_newtable(L);
  int keep = lua_gettop(L);
  lua_Integer kept = 0;
  lua_pushvalue(L, arg);
  *n = list_length(L);
  struct ane_rule *rules = lua_newuserdatauv(L, (*n + 1) * sizeof *rules, 0);
  lua_rawseti(L, keep, ++kept);
  for (size_t i = 0; i < *n; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    size_t n_alternatives = list_length(L);
    struct ane_rule_alternative *alternatives = lua_newuserdatauv(L, (n_alternatives + 1) * sizeof *alternatives, 0);
    lua_rawseti(L, keep, ++kept);
    for (size_t k = 0; k < n_alternatives; k++) {
      lua_rawgeti(L, -1, (lua_Integer)k + 1);
      size_t n_symbols = list_length(L);
      struct ane_rule_symbol *symbols = lua_newuserdatauv(L, (n_symbols + 1) * sizeof *symbols, 0);
      lua_rawseti(L, keep, ++kept);
      for (size_t j = 0; j < n_symbols; j++) {
        lua_rawgeti(L, -1, (lua_Integer)j + 1);
        symbols[j] = check_symbol(L); /* the table holds the string */
        lua_pop(L, 1);
      }
      alternatives[k] = (struct ane_rule_alternative){symbols, n_symbols};
      lua_pop(L, 1);
    }
    rules[i] = (struct ane_rule){alternatives, n_alternatives};
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return rules;
}

/* Reads the parts of the list at `arg`, each {from, to, kind, text} with states from 1, into a userdata that is pushed. */
static struct ane_part *check_parts(lua_State *L, int arg, size_t *n) {
  static const char *const kinds[] = {[ANE_PART_LITERAL] = "literal", [ANE_PART_PATTERN] = "pattern", [ANE_PART_JSON] = "json"};
  lua_pushvalue(L, arg);
  *n = list_length(L);
  lua_pop(L, 1);
  struct ane_part *list = lua_newuserdatauv(L, (*n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < *n; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    for (int k = 1; k <= 4; k++) lua_rawgeti(L, -k, k);
    const char *kind = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    size_t which = 0;
    while (which < ANE_COUNT(kinds) && strcmp(kinds[which], kind) != 0) which++;
    if (which == ANE_COUNT(kinds) || lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "part %d is not a part", (int)i + 1);
    list[i].kind = which;
    list[i].from = (uint32_t)bind_integer(L, -4, 1, INT32_MAX) - 1;
    list[i].to = (uint32_t)bind_integer(L, -3, 1, INT32_MAX) - 1;
    list[i].text.data = lua_tolstring(L, -1, &list[i].text.len); /* the table holds the string */
    lua_pop(L, 5);
  }
  return list;
}

/* Returns the states in the field `ends` of a table, in memory of Lua that is pushed. */
static uint32_t *check_ends(lua_State *L, int table, size_t *n) {
  bind_field(L, table, "ends");
  *n = list_length(L);
  uint32_t *list = lua_newuserdatauv(L, (*n + 1) * sizeof *list, 0);
  for (size_t i = 0; i < *n; i++) {
    lua_rawgeti(L, -2, (lua_Integer)i + 1);
    list[i] = (uint32_t)bind_integer(L, -1, 1, INT32_MAX) - 1;
    lua_pop(L, 1);
  }
  return list;
}

/* core.grammar("json_schema", text, {lenient=, blanks=}), core.grammar("regex", pattern), core.grammar("choice", list of
 * strings), core.grammar("rules", list of rules), core.grammar("parts", list of {from, to, kind, text} with a field ends, a list
 * of states; {lenient=, blanks=}) -> grammar; or nil, message, code. blanks: maximum white space at each place where JSON allows
 * it; default: at most one space after , and : */
static int grammar_make(lua_State *L) {
  enum { SCHEMA, REGEX, CHOICE, RULES, PARTS };
  static const char *const kinds[] = {"json_schema", "regex", "choice", "rules", "parts", NULL};
  int kind = luaL_checkoption(L, 1, NULL, kinds);
  size_t len = 0, n = 0, n_ends = 0;
  const char *text = kind == SCHEMA || kind == REGEX ? luaL_checklstring(L, 2, &len) : NULL;
  struct ane_json_options how = json_options(L, 3);
  struct lua_grammar *ud = bind_new(L, GRAMMAR, sizeof *ud, 0);
  int self = lua_gettop(L);
  const struct ane_bytes *texts = kind == CHOICE ? check_texts(L, 2, &n) : NULL;
  const struct ane_rule *rules = kind == RULES ? check_rules(L, 2, &n) : NULL;
  const struct ane_part *parts = kind == PARTS ? check_parts(L, 2, &n) : NULL;
  const uint32_t *ends = kind == PARTS ? check_ends(L, 2, &n_ends) : NULL;
  struct ane_error err;
  ane_status st = ANE_OK;
  switch (kind) {
    case SCHEMA: st = ane_grammar_json_schema(&ud->g, text, len, &how, &err); break;
    case REGEX: st = ane_grammar_regex(&ud->g, text, len, &err); break;
    case CHOICE: st = ane_grammar_choice(&ud->g, texts, n, &err); break;
    case PARTS: st = ane_grammar_parts(&ud->g, parts, n, ends, n_ends, &how, &err); break;
    default: st = ane_grammar_rules(&ud->g, rules, n, &err); break;
  }
  lua_settop(L, self);
  return st ? bind_fail(L, &err) : 1;
}

/* grammar:matcher() -> matcher; or nil, message, code */
static int grammar_matcher(lua_State *L) {
  struct lua_grammar *g = luaL_checkudata(L, 1, GRAMMAR);
  if (!g->g) return luaL_error(L, "grammar is closed");
  struct lua_matcher *ud = bind_new(L, MATCHER, sizeof *ud, 1);
  struct ane_error err;
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  return ane_matcher_make(&ud->m, g->g, &err) ? bind_fail(L, &err) : 1;
}

/* ---- Vocabularies ------------------------------------------------------------------------------------------------*/

static int tree_close(lua_State *L) {
  struct lua_tree *ud = luaL_checkudata(L, 1, TREE);
  ane_token_tree_destroy(ud->t);
  ud->t = NULL;
  return 0;
}

static const struct ane_token_tree *check_tree(lua_State *L, int arg) {
  struct lua_tree *ud = luaL_checkudata(L, arg, TREE);
  if (!ud->t) luaL_error(L, "token tree is closed");
  return ud->t;
}

/* core.token_tree(tokenizer or list of strings, spelled) -> tree; or nil, message, code. The tree has no control tokens of a
 * tokenizer, except those whose spelling is in the list `spelled`. */
static int tree_make(lua_State *L) {
  size_t n = 0, n_spelled = 0;
  struct ane_error err;
  struct ane_bytes *tokens;
  lua_settop(L, 2);
  if (lua_istable(L, 1))
    tokens = check_texts(L, 1, &n);
  else {
    const struct ane_tokenizer *t = bind_check_tokenizer(L, 1);
    const struct ane_bytes *spelled = lua_isnoneornil(L, 2) ? NULL : check_texts(L, 2, &n_spelled);
    n = ane_tokenizer_size(t);
    tokens = lua_newuserdatauv(L, (n + 1) * sizeof *tokens, 0);
    for (uint32_t i = 0; i < n; i++) {
      ane_token_type type = ane_tokenizer_type(t, i);
      bool text = type == ANE_TOKEN_NORMAL || type == ANE_TOKEN_USER || type == ANE_TOKEN_BYTE;
      struct ane_text b = text ? ane_tokenizer_bytes(t, i) : ane_tokenizer_piece(t, i);
      for (size_t k = 0; k < n_spelled && !text; k++) /* analyser: n_spelled is 0 where spelled is NULL. */
        text = b.len == spelled[k].len && memcmp(b.data, spelled[k].data, b.len) == 0;
      tokens[i] = text ? (struct ane_bytes){b.data, b.len} : (struct ane_bytes){0};
    }
  }
  struct lua_tree *ud = bind_new(L, TREE, sizeof *ud, 0);
  return ane_token_tree_make(&ud->t, tokens, (uint32_t)n, &err) ? bind_fail(L, &err) : 1;
}

/* ---- Matchers ----------------------------------------------------------------------------------------------------*/

static struct lua_matcher *check_matcher(lua_State *L) {
  struct lua_matcher *ud = luaL_checkudata(L, 1, MATCHER);
  if (!ud->m) luaL_error(L, "matcher is closed");
  lua_getiuservalue(L, 1, 1);
  struct lua_grammar *g = lua_touserdata(L, -1);
  if (!g || !g->g) luaL_error(L, "grammar is closed");
  lua_pop(L, 1);
  return ud;
}

static int matcher_close(lua_State *L) {
  struct lua_matcher *ud = luaL_checkudata(L, 1, MATCHER);
  lua_getiuservalue(L, 1, 1);
  struct lua_grammar *g = lua_touserdata(L, -1);
  if (g && g->g)
    ane_matcher_destroy(ud->m);
  else if (ud->m)
    ane_matcher_abandon(ud->m);
  ane_free(ud->mask);
  memset(ud, 0, sizeof *ud);
  return 0;
}

/* matcher:push(bytes, canonical) -> whether they were accepted; or nil, message, code */
static int matcher_push(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  size_t n;
  const char *s = luaL_checklstring(L, 2, &n);
  struct ane_error err;
  bool accepted;
  if (ane_matcher_push(ud->m, s, n, lua_toboolean(L, 3), &accepted, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, accepted);
  return 1;
}

/* matcher:pushes() -> number; matcher:rewind(number) */
static int matcher_pushes(lua_State *L) {
  lua_pushinteger(L, ane_matcher_pushes(check_matcher(L)->m));
  return 1;
}

static int matcher_rewind(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  ane_matcher_rewind(ud->m, (uint32_t)bind_integer(L, 2, 0, ane_matcher_pushes(ud->m)));
  return 0;
}

static int matcher_accepts(lua_State *L) {
  lua_pushboolean(L, ane_matcher_accepts(check_matcher(L)->m));
  return 1;
}

/* matcher:finished() -> whether the text is complete and nothing may follow; or nil, message, code */
static int matcher_finished(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  struct ane_error err;
  bool finished;
  if (ane_matcher_finished(ud->m, &finished, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, finished);
  return 1;
}

/* matcher:forced() -> bytes that must come; or nil, message, code */
static int matcher_forced(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  char bytes[256];
  size_t n;
  struct ane_error err;
  if (ane_matcher_forced(ud->m, bytes, sizeof bytes, &n, &err)) return bind_fail(L, &err);
  lua_pushlstring(L, bytes, n);
  return 1;
}

/* Fills the matcher's mask, which has room for `count` tokens at least. */
static ane_status fill_mask(struct lua_matcher *ud, const struct ane_token_tree *t, uint64_t count, uint32_t *n,
                            struct ane_error *err) {
  uint32_t size = ane_token_tree_size(t), used = (size + 31) / 32;
  uint32_t words = ANE_MAX(used, (uint32_t)((ANE_MIN(count, (uint64_t)INT32_MAX) + 31) / 32));
  if (ud->words < words) {
    uint32_t *mask = ane_realloc(ud->mask, words * sizeof *mask);
    if (!mask) return ane_fail(err, ANE_NOMEM, "no memory for a mask");
    ud->mask = mask;
    ud->words = words;
  }
  memset(ud->mask + used, 0, (words - used) * sizeof *ud->mask);
  return ane_matcher_mask(ud->m, t, ud->mask, n, err);
}

/* Sets the logits of tokens whose bit is not set to -infinity. */
static void ban(const uint32_t *mask, float *logits, uint64_t count) {
  for (uint64_t at = 0; at < count; at += 32) {
    uint32_t bits = mask[at >> 5];
    uint64_t n = ANE_MIN(count - at, (uint64_t)32);
    for (uint64_t i = 0; i < n && bits == 0; i++) logits[at + i] = -INFINITY;
    for (uint64_t i = 0; i < n && bits != 0 && bits != UINT32_MAX; i++)
      if (!(bits >> i & 1)) logits[at + i] = -INFINITY;
  }
}

/* matcher:allowed(tree) -> list of the ids that may come; or nil, message, code */
static int matcher_allowed(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  const struct ane_token_tree *t = check_tree(L, 2);
  uint32_t n;
  struct ane_error err;
  if (fill_mask(ud, t, 0, &n, &err)) return bind_fail(L, &err);
  lua_createtable(L, (int)n, 0);
  lua_Integer at = 0;
  for (uint32_t i = 0; i < ane_token_tree_size(t); i++)
    if (ud->mask[i >> 5] >> (i & 31) & 1) {
      lua_pushinteger(L, i);
      lua_rawseti(L, -2, ++at);
    }
  return 1;
}

/* matcher:count(tree) -> number of tokens that may come; or nil, message, code */
static int matcher_count(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  uint32_t n;
  struct ane_error err;
  if (fill_mask(ud, check_tree(L, 2), 0, &n, &err)) return bind_fail(L, &err);
  lua_pushinteger(L, n);
  return 1;
}

/* If the text may end, adds the ids of the set at `arg`, a table {[id]=true} or nothing, to the matcher's mask of `count` ids. */
static void allow_ends(lua_State *L, struct lua_matcher *ud, int arg, uint64_t count) {
  if (!lua_istable(L, arg) || !ane_matcher_accepts(ud->m)) return;
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    lua_Integer id = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : -1;
    if (id >= 0 && (uint64_t)id < count && lua_toboolean(L, -1)) ud->mask[id >> 5] |= (uint32_t)1 << (id & 31);
  }
}

/* matcher:allow(tree, mask, {[id]=true} added if the text may end) -> number of tokens of the tree that may come; or nil,
 * message, code. The mask (core.mask) then has their ids. */
static int matcher_allow(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  const struct ane_token_tree *t = check_tree(L, 2);
  struct bind_mask *mask = bind_check_mask(L, 3);
  uint32_t n;
  struct ane_error err;
  if (fill_mask(ud, t, mask->n, &n, &err)) return bind_fail(L, &err);
  allow_ends(L, ud, 4, mask->n);
  memcpy(mask->bits, ud->mask, mask->words * sizeof *mask->bits);
  lua_pushinteger(L, n);
  return 1;
}

/* matcher:mask(tree, logits, {[id]=true} kept if the text may end) -> number of tokens of the tree that may come; or nil,
 * message, code. The logits of all other tokens become -infinity. */
static int matcher_mask(lua_State *L) {
  struct lua_matcher *ud = check_matcher(L);
  const struct ane_token_tree *t = check_tree(L, 2);
  struct bind_tensor *logits = bind_check_tensor(L, 3);
  uint32_t n;
  struct ane_error err;
  uint64_t count = ANE_MIN(logits->count, (uint64_t)INT32_MAX);
  if (fill_mask(ud, t, count, &n, &err)) return bind_fail(L, &err);
  allow_ends(L, ud, 4, count);
  ban(ud->mask, logits->data, count);
  lua_pushinteger(L, n);
  return 1;
}

static const luaL_Reg grammar_methods[] = {{"close", grammar_close}, {"matcher", grammar_matcher}, {NULL, NULL}};
static const luaL_Reg grammar_meta[] = {{"__gc", grammar_close}, {"__close", grammar_close}, {NULL, NULL}};
static const luaL_Reg tree_methods[] = {{"close", tree_close}, {NULL, NULL}};
static const luaL_Reg tree_meta[] = {{"__gc", tree_close}, {"__close", tree_close}, {NULL, NULL}};
static const luaL_Reg matcher_methods[] = {
    {"close", matcher_close},     {"push", matcher_push},         {"pushes", matcher_pushes}, {"rewind", matcher_rewind},
    {"accepts", matcher_accepts}, {"finished", matcher_finished}, {"forced", matcher_forced}, {"allowed", matcher_allowed},
    {"count", matcher_count},     {"allow", matcher_allow},       {"mask", matcher_mask},     {NULL, NULL},
};
static const luaL_Reg matcher_meta[] = {{"__gc", matcher_close}, {"__close", matcher_close}, {NULL, NULL}};
static const luaL_Reg functions[] = {{"grammar", grammar_make}, {"token_tree", tree_make}, {NULL, NULL}};

void bind_grammar(lua_State *L) {
  bind_class(L, GRAMMAR, grammar_methods, grammar_meta);
  bind_class(L, TREE, tree_methods, tree_meta);
  bind_class(L, MATCHER, matcher_methods, matcher_meta);
  luaL_setfuncs(L, functions, 0);
}
