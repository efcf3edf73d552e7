/* core.tokenizer(source): a tokenizer from the metadata of a model file, and its streaming decoder; core.normalise. */
#include "binding/bind_source.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TOKENIZER_CLASS "ane.tokenizer"
#define DECODER_CLASS "ane.decoder"
#define SCRATCH_CLASS "ane.tokenizer.scratch"

/* ---- Metadata to description -------------------------------------------------------------------------------------*/

#define KEY "tokenizer.ggml."

/* What a GGUF file says. Views into the source, arrays in the arena. */
struct gguf_tokenizer {
  const struct ane_source *source;
  struct ane_arena arena;
  struct ane_tokenizer_desc desc;
  struct ane_normaliser normalisers[3];
  int32_t eot, eom, unk, pad;
};

/* The value at a key if there is one: *out is NULL otherwise. Fails where it is of another kind. */
static ane_status want(const struct gguf_tokenizer *g, const char *key, ane_meta_kind kind, const struct ane_meta **out,
                       struct ane_error *err) {
  static const char *const names[] = {"a signed integer", "an unsigned integer", "a float", "a bool", "a string", "an array"};
  const struct ane_meta *m = ane_source_meta(g->source, key);
  *out = m;
  if (!m || m->kind == kind) return ANE_OK;
  return ane_fail(err, ANE_FORMAT, "%s is %s, must be %s", key, names[m->kind], names[kind]);
}

static ane_status want_bool(const struct gguf_tokenizer *g, const char *key, bool *value, struct ane_error *err) {
  const struct ane_meta *m;
  ane_status st = want(g, key, ANE_META_BOOL, &m, err);
  if (!st && m) *value = m->i != 0;
  return st;
}

/* Files without such a token leave the key out, or write -1 in one of its widths. `lenient`: an id beyond the vocabulary
 * counts as none (some published files pad with a token they do not have; nothing is ever looked up by it). */
static ane_status want_id(const struct gguf_tokenizer *g, const char *key, bool lenient, int32_t *id, struct ane_error *err) {
  const struct ane_meta *m = ane_source_meta(g->source, key);
  if (!m) return ANE_OK;
  if (m->kind != ANE_META_UINT && m->kind != ANE_META_INT) return ane_fail(err, ANE_FORMAT, "%s is no integer", key);
  uint64_t v = m->kind == ANE_META_INT ? (uint64_t)m->i : m->u;
  *id = ANE_NO_TOKEN;
  if (v == UINT64_MAX || v == UINT32_MAX || (lenient && v >= g->desc.n_tokens)) return ANE_OK;
  if (v >= g->desc.n_tokens)
    return ane_fail(err, ANE_FORMAT, "%s is %" PRIu64 ", the vocabulary has %u tokens", key, v, (unsigned)g->desc.n_tokens);
  *id = (int32_t)v;
  return ANE_OK;
}

static ane_status want_texts(struct gguf_tokenizer *g, const char *key, const struct ane_text **texts, uint64_t *n,
                             struct ane_error *err) {
  const struct ane_meta *m;
  ane_status st = want(g, key, ANE_META_ARRAY, &m, err);
  if (st) return st;
  if (!m) return ane_fail(err, ANE_FORMAT, "%s is missing", key);
  if (m->a.kind != ANE_META_STRING) return ane_fail(err, ANE_FORMAT, "%s must be an array of strings", key);
  struct ane_text *out = m->a.count <= SIZE_MAX ? ane_arena_array(&g->arena, (size_t)m->a.count, sizeof *out) : NULL;
  if (!out) return ane_fail(err, ANE_NOMEM, "no memory for %" PRIu64 " strings", m->a.count);
  for (uint64_t i = 0; i < m->a.count; i++) out[i] = (struct ane_text){m->a.items[i].s.data, (size_t)m->a.items[i].s.len};
  *texts = out;
  *n = m->a.count;
  return ANE_OK;
}

/* An array of one number for each token, of this type: *out stays NULL where there is none. */
static ane_status want_numbers(const struct gguf_tokenizer *g, const char *key, ane_dtype dtype, const struct ane_meta **out,
                               struct ane_error *err) {
  ane_status st = want(g, key, ANE_META_ARRAY, out, err);
  if (st || !*out) return st;
  const struct ane_meta *m = *out;
  if (m->a.items || m->a.dtype != dtype)
    return ane_fail(err, ANE_FORMAT, "%s must be an array of %s", key, ane_dtype_info(dtype)->name);
  if (m->a.count != g->desc.n_tokens)
    return ane_fail(err, ANE_FORMAT, "%s has %" PRIu64 " entries, the vocabulary %u tokens", key, m->a.count,
                    (unsigned)g->desc.n_tokens);
  return ANE_OK;
}

static ane_status read_vocabulary(struct gguf_tokenizer *g, struct ane_error *err) {
  const struct ane_meta *types, *scores;
  struct ane_tokenizer_desc *d = &g->desc;
  uint64_t n = 0;
  ane_status st = want_texts(g, KEY "tokens", &d->tokens, &n, err);
  if (st) return st;
  if (n == 0 || n > INT32_MAX) return ane_fail(err, ANE_FORMAT, KEY "tokens has %" PRIu64 " entries", n);
  d->n_tokens = (uint32_t)n;
  if ((st = want_numbers(g, KEY "token_type", ANE_I32, &types, err)) ||
      (st = want_numbers(g, KEY "scores", ANE_F32, &scores, err)))
    return st;
  uint8_t *t = types ? ane_arena_alloc(&g->arena, n) : NULL;
  float *s = scores ? ane_arena_array(&g->arena, n, sizeof *s) : NULL;
  if ((types && !t) || (scores && !s)) return ane_fail(err, ANE_NOMEM, "no memory for %" PRIu64 " tokens", n);
  for (uint64_t i = 0; i < n && t; i++) {
    int64_t v = ane_meta_array_integer(types, i);
    if (v < 0 || v > ANE_TOKEN_BYTE)
      return ane_fail(err, ANE_FORMAT, KEY "token_type of token %" PRIu64 " is %" PRId64 ", known are 0 to 6", i, v);
    t[i] = (uint8_t)(v ? v : ANE_TOKEN_NORMAL); /* 0 is "undefined" */
  }
  for (uint64_t i = 0; i < n && s; i++) s[i] = (float)ane_meta_array_number(scores, i);
  d->types = t;
  d->scores = s;
  return ANE_OK;
}

static void add_normaliser(struct gguf_tokenizer *g, ane_normaliser_kind kind, const char *from, const char *to) {
  g->normalisers[g->desc.n_normalisers++] = (struct ane_normaliser){kind, {from, strlen(from)}, {to, strlen(to)}};
  g->desc.normalisers = g->normalisers;
}

#define MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

/* model "llama": SentencePiece. Defaults as llama.cpp has them: bos 1, eos 2, unknown 0, bos added, a space in front. */
static ane_status describe_scores(struct gguf_tokenizer *g, struct ane_error *err) {
  struct ane_tokenizer_desc *d = &g->desc;
  bool prefix = true, squeeze = false;
  ane_status st;
  if ((st = want_bool(g, KEY "add_space_prefix", &prefix, err)) ||
      (st = want_bool(g, KEY "remove_extra_whitespaces", &squeeze, err)))
    return st;
  if (!d->scores) return ane_fail(err, ANE_FORMAT, KEY "scores is missing");
  if (squeeze) add_normaliser(g, ANE_NORMALISE_SQUEEZE, "", "");
  if (prefix) add_normaliser(g, ANE_NORMALISE_PREPEND, "", " ");
  add_normaliser(g, ANE_NORMALISE_REPLACE, " ", MARK);
  d->model = ANE_MODEL_SCORES;
  d->byte_fallback = d->space_mark = d->fuse_unk = true;
  d->strip_space = prefix;
  d->bos = 1 < d->n_tokens ? 1 : ANE_NO_TOKEN;
  d->eos = 2 < d->n_tokens ? 2 : ANE_NO_TOKEN;
  g->unk = 0;
  d->add_bos = true;
  return ANE_OK;
}

static ane_status unknown_name(const char *key, const struct ane_meta *found, const char *known, struct ane_error *err) {
  int len = (int)ANE_MIN(found->s.len, (uint64_t)64);
  return ane_fail(err, ANE_UNSUPPORTED, "%s is '%.*s'; known are %s", key, len, found->s.data, known);
}

/* One name for each list of splits, and how many more there are. */
static void known_pretokenizers(char *out, size_t size) {
  uint32_t n, left;
  const struct ane_pretokenizer *list = ane_pretokenizer_list(&n);
  size_t at = 0;
  left = n;
  for (uint32_t i = 0; i < n; i++) {
    if (i && list[i].splits == list[i - 1].splits) continue;
    int len = snprintf(out + at, size - at, "%s, ", list[i].name);
    if (at + (size_t)len + 16 > size) break;
    at += (size_t)len;
    left--;
  }
  snprintf(out + at, size - at, "%u more", (unsigned)left);
}

/* model "gpt2": merges, behind a pre-tokenizer that the file names. */
static ane_status describe_merges(struct gguf_tokenizer *g, const char *implied, struct ane_error *err) {
  struct ane_tokenizer_desc *d = &g->desc;
  const struct ane_meta *m;
  char known[400];
  uint64_t n = 0;
  ane_status st = want(g, KEY "pre", ANE_META_STRING, &m, err);
  if (st) return st;
  known_pretokenizers(known, sizeof known);
  if (!m && !implied) return ane_fail(err, ANE_UNSUPPORTED, KEY "pre is missing; known are %s", known);
  const struct ane_pretokenizer *p =
      implied ? ane_pretokenizer_find(implied, strlen(implied)) : ane_pretokenizer_find(m->s.data, (size_t)m->s.len);
  if (!p) return unknown_name(KEY "pre", m, known, err);
  if ((st = want_texts(g, KEY "merges", &d->merges, &n, err))) return st;
  d->n_merges = (size_t)n;
  d->model = ANE_MODEL_MERGES;
  d->byte_level = !p->sentence;
  d->byte_fallback = d->space_mark = p->sentence;
  d->whole = p->whole;
  d->splits = p->splits;
  d->n_splits = p->n_splits;
  d->add_bos = p->add_bos;
  if (p->sentence) add_normaliser(g, ANE_NORMALISE_REPLACE, " ", MARK);
  return ANE_OK;
}

static ane_status describe_specials(struct gguf_tokenizer *g, struct ane_error *err) {
  struct ane_tokenizer_desc *d = &g->desc;
  bool add_bos = d->add_bos;
  ane_status st;
  if ((st = want_id(g, KEY "bos_token_id", false, &d->bos, err)) || (st = want_id(g, KEY "eos_token_id", false, &d->eos, err)) ||
      (st = want_id(g, KEY "eot_token_id", false, &g->eot, err)) || (st = want_id(g, KEY "eom_token_id", false, &g->eom, err)) ||
      (st = want_id(g, KEY "unknown_token_id", false, &g->unk, err)) ||
      (st = want_id(g, KEY "padding_token_id", true, &g->pad, err)) || (st = want_bool(g, KEY "add_bos_token", &add_bos, err)) ||
      (st = want_bool(g, KEY "add_eos_token", &d->add_eos, err)))
    return st;
  /* The wish of the family needs a token; the file's own wish without one is an error (vocab.c). */
  if (d->bos == ANE_NO_TOKEN && !ane_source_meta(g->source, KEY "add_bos_token")) add_bos = false;
  d->add_bos = add_bos;
  d->unk = d->model == ANE_MODEL_SCORES ? g->unk : ANE_NO_TOKEN;
  return ANE_OK;
}

static ane_status describe(struct gguf_tokenizer *g, struct ane_error *err) {
  const struct ane_meta *m;
  ane_status st = want(g, KEY "model", ANE_META_STRING, &m, err);
  if (st) return st;
  if (!m) return ane_fail(err, ANE_NOTFOUND, "the file has no tokenizer: " KEY "model is missing");
  struct ane_text model = {m->s.data, (size_t)m->s.len};
#define IS(name) (model.len == sizeof name - 1 && memcmp(model.data, name, sizeof name - 1) == 0)
  if (IS("none")) return ane_fail(err, ANE_NOTFOUND, "the file has no tokenizer: " KEY "model is 'none'");
  bool scores = IS("llama"), gemma4 = IS("gemma4");
  if (!scores && !gemma4 && !IS("gpt2")) return unknown_name(KEY "model", m, "gpt2, llama, gemma4, none", err);
#undef IS
  g->desc.bos = g->desc.eos = g->desc.unk = g->eot = g->eom = g->unk = g->pad = ANE_NO_TOKEN;
  if ((st = read_vocabulary(g, err))) return st;
  if ((st = scores ? describe_scores(g, err) : describe_merges(g, gemma4 ? "gemma4" : NULL, err))) return st;
  return describe_specials(g, err);
}

/* ---- Scratch -----------------------------------------------------------------------------------------------------*/

/* C memory of one call, owned by a Lua value so that it is freed wherever Lua raises. */
struct scratch {
  struct ane_encoding encoding;
  struct ane_buffer buffer;
  struct gguf_tokenizer gguf;
  char *text;
};

static int scratch_free(lua_State *L) {
  struct scratch *s = luaL_checkudata(L, 1, SCRATCH_CLASS);
  ane_encoding_free(&s->encoding);
  ane_buffer_free(&s->buffer);
  ane_arena_free(&s->gguf.arena);
  ane_free(s->text);
  s->text = NULL;
  return 0;
}

/* Frees the scratch at `index` now: some are large and the collector does not see it. */
static void drop_scratch(lua_State *L, int index) {
  lua_pushcfunction(L, scratch_free);
  lua_pushvalue(L, index);
  lua_call(L, 1, 0);
}

static struct scratch *new_scratch(lua_State *L) { return bind_new(L, SCRATCH_CLASS, sizeof(struct scratch), 0); }

/* ---- Tokenizer ---------------------------------------------------------------------------------------------------*/

struct lua_tokenizer {
  struct ane_tokenizer *t; /* NULL: closed */
  int32_t bos, eos, eot, eom, unk, pad;
  bool add_bos, add_eos;
};

static struct lua_tokenizer *check_tokenizer(lua_State *L, int arg) {
  struct lua_tokenizer *ud = luaL_checkudata(L, arg, TOKENIZER_CLASS);
  if (!ud->t) luaL_error(L, "tokenizer is closed");
  return ud;
}

/* {default = text, name = text, ...}: tokenizer.chat_template and tokenizer.chat_template.NAME */
static void push_templates(lua_State *L, const struct ane_source *s) {
  static const char key[] = "tokenizer.chat_template";
  lua_newtable(L);
  for (uint32_t i = 0; i < s->n_values; i++) {
    const char *rest = s->keys[i] + sizeof key - 1;
    if (strncmp(s->keys[i], key, sizeof key - 1) != 0 || s->values[i].kind != ANE_META_STRING || (*rest != '\0' && *rest != '.'))
      continue;
    lua_pushlstring(L, s->values[i].s.data, (size_t)s->values[i].s.len);
    lua_setfield(L, -2, *rest ? rest + 1 : "default");
  }
}

/* tokenizer(source) -> tokenizer; or nil, message, code. Nothing of the source is kept. */
static int tokenizer_new(lua_State *L) {
  const struct ane_source *source = bind_check_source(L, 1);
  lua_settop(L, 1);
  struct lua_tokenizer *ud = bind_new(L, TOKENIZER_CLASS, sizeof *ud, 1);
  push_templates(L, source);
  lua_setiuservalue(L, 2, 1);
  struct scratch *s = new_scratch(L);
  struct gguf_tokenizer *g = &s->gguf;
  struct ane_error err;
  g->source = source;
  ane_status st = describe(g, &err);
  if (!st) st = ane_tokenizer_create(&ud->t, &g->desc, &err);
  if (st) {
    ane_fail_in(&err, st, "%s", source->path);
    return bind_fail(L, &err);
  }
  ud->bos = g->desc.bos;
  ud->eos = g->desc.eos;
  ud->eot = g->eot;
  ud->eom = g->eom;
  ud->unk = g->unk;
  ud->pad = g->pad;
  ud->add_bos = g->desc.add_bos;
  ud->add_eos = g->desc.add_eos;
  drop_scratch(L, 3);
  lua_settop(L, 2);
  return 1;
}

static int meth_close(lua_State *L) {
  struct lua_tokenizer *ud = luaL_checkudata(L, 1, TOKENIZER_CLASS);
  ane_tokenizer_destroy(ud->t);
  ud->t = NULL;
  return 0;
}

static int meth_tostring(lua_State *L) {
  struct lua_tokenizer *ud = luaL_checkudata(L, 1, TOKENIZER_CLASS);
  if (ud->t)
    lua_pushfstring(L, "tokenizer (%d tokens)", (int)ane_tokenizer_size(ud->t));
  else
    lua_pushliteral(L, "tokenizer (closed)");
  return 1;
}

/* encode(text [, special [, bos [, spans [, eos]]]]) -> list of ids [, flat list of start, end byte positions: 1-based,
 * inclusive, end = start - 1 where a token stands for no text]; or nil, message, code */
static int meth_encode(lua_State *L) {
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  struct ane_text text;
  text.data = luaL_checklstring(L, 2, &text.len);
  unsigned flags = (lua_toboolean(L, 3) ? ANE_ENCODE_SPECIAL : 0u) | (lua_toboolean(L, 4) ? ANE_ENCODE_BOS : 0u) |
                   (lua_toboolean(L, 5) ? ANE_ENCODE_SPANS : 0u) | (lua_toboolean(L, 6) ? ANE_ENCODE_EOS : 0u);
  struct scratch *s = new_scratch(L);
  int index = lua_gettop(L);
  struct ane_error err;
  if (ane_tokenizer_encode(ud->t, text, flags, &s->encoding, &err)) return bind_fail(L, &err);
  const struct ane_encoding *e = &s->encoding;
  lua_createtable(L, (int)ANE_MIN(e->n, (size_t)INT32_MAX), 0);
  for (size_t i = 0; i < e->n; i++) {
    lua_pushinteger(L, e->ids[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  if (flags & ANE_ENCODE_SPANS) {
    lua_createtable(L, (int)ANE_MIN(e->n * 2, (size_t)INT32_MAX), 0);
    for (size_t i = 0; i < e->n; i++) {
      lua_pushinteger(L, (lua_Integer)e->spans[i].start + 1);
      lua_rawseti(L, -2, (lua_Integer)(2 * i) + 1);
      lua_pushinteger(L, (lua_Integer)e->spans[i].end);
      lua_rawseti(L, -2, (lua_Integer)(2 * i) + 2);
    }
  }
  drop_scratch(L, index);
  return flags & ANE_ENCODE_SPANS ? 2 : 1;
}

/* Pushes the buffer's bytes, made well formed on request. */
static int push_bytes(lua_State *L, struct scratch *s, bool replace) {
  size_t len = s->buffer.size;
  if (replace) {
    s->text = ane_utf8_replace((const char *)s->buffer.data, len, &len);
    if (!s->text) return luaL_error(L, "not enough memory");
  }
  lua_pushlstring(L, replace ? s->text : len ? (const char *)s->buffer.data : "", len);
  return 1;
}

/* decode(ids [, skip_special [, replace]]) -> bytes; replace: U+FFFD for what is no UTF-8 */
static int meth_decode(lua_State *L) {
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  size_t n;
  bool skip = lua_toboolean(L, 3), replace = lua_toboolean(L, 4), ok = true;
  const int32_t *ids = bind_ids(L, 2, &n);
  struct scratch *s = new_scratch(L);
  int index = lua_gettop(L);
  struct ane_decoder d = {0};
  for (size_t i = 0; i < n && ok; i++) ok = ane_decoder_push(ud->t, &d, (uint32_t)ids[i], skip, &s->buffer);
  if (!ok || !ane_decoder_flush(&d, &s->buffer)) return luaL_error(L, "not enough memory");
  push_bytes(L, s, replace);
  drop_scratch(L, index);
  return 1;
}

/* The id at arg, or -1 where it is beyond the vocabulary. */
static int64_t id_arg(lua_State *L, const struct lua_tokenizer *ud, int arg) {
  lua_Integer id = bind_integer(L, arg, 0, INT32_MAX);
  return id < (lua_Integer)ane_tokenizer_size(ud->t) ? id : -1;
}

static int push_text(lua_State *L, struct ane_text s) {
  lua_pushlstring(L, s.data, s.len);
  return 1;
}

/* token(id) -> the bytes it stands for; nil beyond the vocabulary (as piece and token_type) */
static int meth_token(lua_State *L) {
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  int64_t id = id_arg(L, ud, 2);
  return id < 0 ? (lua_pushnil(L), 1) : push_text(L, ane_tokenizer_bytes(ud->t, (uint32_t)id));
}

static int meth_piece(lua_State *L) {
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  int64_t id = id_arg(L, ud, 2);
  return id < 0 ? (lua_pushnil(L), 1) : push_text(L, ane_tokenizer_piece(ud->t, (uint32_t)id));
}

static int meth_token_type(lua_State *L) {
  static const char *const names[] = {"normal", "unknown", "control", "user", "unused", "byte"};
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  int64_t id = id_arg(L, ud, 2);
  if (id < 0) return lua_pushnil(L), 1;
  lua_pushstring(L, names[ane_tokenizer_type(ud->t, (uint32_t)id) - ANE_TOKEN_NORMAL]);
  return 1;
}

static int push_id(lua_State *L, int32_t id) {
  if (id == ANE_NO_TOKEN)
    lua_pushnil(L);
  else
    lua_pushinteger(L, id);
  return 1;
}

/* id(piece) -> the id of the token that the vocabulary spells so, or nil */
static int meth_id(lua_State *L) {
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  size_t len;
  const char *s = luaL_checklstring(L, 2, &len);
  return push_id(L, ane_tokenizer_id(ud->t, s, len));
}

static int meth_n_vocab(lua_State *L) {
  lua_pushinteger(L, ane_tokenizer_size(check_tokenizer(L, 1)->t));
  return 1;
}

static int meth_special(lua_State *L) {
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  const struct {
    const char *name;
    int32_t id;
  } ids[] = {{"bos", ud->bos}, {"eos", ud->eos}, {"eot", ud->eot}, {"eom", ud->eom}, {"unk", ud->unk}, {"pad", ud->pad}};
  lua_createtable(L, 0, 8);
  for (size_t i = 0; i < ANE_COUNT(ids); i++) {
    push_id(L, ids[i].id);
    lua_setfield(L, -2, ids[i].name);
  }
  lua_pushboolean(L, ud->add_bos);
  lua_setfield(L, -2, "add_bos");
  lua_pushboolean(L, ud->add_eos);
  lua_setfield(L, -2, "add_eos");
  return 1;
}

static int meth_chat_templates(lua_State *L) {
  check_tokenizer(L, 1);
  lua_getiuservalue(L, 1, 1);
  return 1;
}

/* ---- Decoder -----------------------------------------------------------------------------------------------------*/

struct lua_decoder {
  struct ane_decoder state;
  bool skip; /* user value 1: the tokenizer */
};

/* decoder([skip_special]) -> decoder */
static int meth_decoder(lua_State *L) {
  check_tokenizer(L, 1);
  bool skip = lua_toboolean(L, 2);
  struct lua_decoder *d = bind_new(L, DECODER_CLASS, sizeof *d, 1);
  d->skip = skip;
  lua_pushvalue(L, 1);
  lua_setiuservalue(L, -2, 1);
  return 1;
}

/* push(id) -> the bytes that are complete now */
static int decoder_push(lua_State *L) {
  struct lua_decoder *d = luaL_checkudata(L, 1, DECODER_CLASS);
  lua_Integer id = bind_integer(L, 2, 0, INT32_MAX);
  lua_getiuservalue(L, 1, 1);
  const struct lua_tokenizer *ud = check_tokenizer(L, -1);
  struct scratch *s = new_scratch(L);
  int index = lua_gettop(L);
  if (!ane_decoder_push(ud->t, &d->state, (uint32_t)id, d->skip, &s->buffer)) return luaL_error(L, "not enough memory");
  push_bytes(L, s, false);
  drop_scratch(L, index);
  return 1;
}

/* flush() -> the bytes held back; the decoder begins anew */
static int decoder_flush(lua_State *L) {
  struct lua_decoder *d = luaL_checkudata(L, 1, DECODER_CLASS);
  lua_pushlstring(L, d->state.held, d->state.n_held);
  d->state = (struct ane_decoder){0};
  return 1;
}

static int decoder_reset(lua_State *L) {
  struct lua_decoder *d = luaL_checkudata(L, 1, DECODER_CLASS);
  d->state = (struct ane_decoder){0};
  return 0;
}

/* normalise(text, form) -> text in the normal form "nfc", "nfd", "nfkc" or "nfkd"; or nil, message, code */
static int normalise(lua_State *L) {
  static const char *const names[] = {"nfc", "nfd", "nfkc", "nfkd", NULL};
  struct ane_text text;
  text.data = luaL_checklstring(L, 1, &text.len);
  int form = luaL_checkoption(L, 2, NULL, names);
  struct scratch *s = new_scratch(L);
  int index = lua_gettop(L);
  struct ane_error err;
  if (ane_normal_form(text, (ane_normaliser_kind)(ANE_NORMALISE_NFC + form), &s->buffer, &err)) return bind_fail(L, &err);
  push_bytes(L, s, false);
  drop_scratch(L, index);
  return 1;
}

/* ---- Registration ------------------------------------------------------------------------------------------------*/

static const luaL_Reg tokenizer_methods[] = {
    {"close", meth_close},
    {"encode", meth_encode},
    {"decode", meth_decode},
    {"token", meth_token},
    {"piece", meth_piece},
    {"id", meth_id},
    {"n_vocab", meth_n_vocab},
    {"special", meth_special},
    {"token_type", meth_token_type},
    {"decoder", meth_decoder},
    {"chat_templates", meth_chat_templates},
    {NULL, NULL},
};

static const luaL_Reg tokenizer_meta[] = {
    {"__gc", meth_close}, {"__close", meth_close}, {"__tostring", meth_tostring}, {"__len", meth_n_vocab}, {NULL, NULL},
};

static const luaL_Reg decoder_methods[] = {
    {"push", decoder_push},
    {"flush", decoder_flush},
    {"reset", decoder_reset},
    {NULL, NULL},
};

static const luaL_Reg no_methods[] = {{NULL, NULL}};

static const luaL_Reg scratch_meta[] = {{"__gc", scratch_free}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"tokenizer", tokenizer_new}, {"normalise", normalise}, {NULL, NULL}};

void bind_tokenizer(lua_State *L) {
  bind_class(L, TOKENIZER_CLASS, tokenizer_methods, tokenizer_meta);
  bind_class(L, DECODER_CLASS, decoder_methods, no_methods);
  bind_class(L, SCRATCH_CLASS, no_methods, scratch_meta);
  luaL_setfuncs(L, functions, 0);
}
