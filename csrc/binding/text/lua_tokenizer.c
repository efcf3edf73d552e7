/* core.tokenizer: a tokenizer from the metadata of a model file or from a vocabulary with a description, and its streaming
 * decoder; core.normalise; core.pretokenizer. */
#include "binding/formats/bind_source.h"
#include "binding/text/bind_vocabulary.h"
#include "vocabulary/vocabulary.h"

#include "base/bytes.h"
#include "text/text.h"

#include <string.h>

#define TOKENIZER_CLASS "ane.tokenizer"
#define DECODER_CLASS "ane.decoder"
#define SCRATCH_CLASS "ane.tokenizer.scratch"

/* ---- Scratch -----------------------------------------------------------------------------------------------------*/

/* C memory of one call, owned by a Lua value so that it is freed wherever Lua raises. */
struct scratch {
  struct ane_encoding encoding;
  struct ane_buffer buffer;
  struct gguf_tokenizer gguf;
};

static int scratch_free(lua_State *L) {
  struct scratch *s = luaL_checkudata(L, 1, SCRATCH_CLASS);
  ane_encoding_free(&s->encoding);
  ane_buffer_free(&s->buffer);
  ane_arena_free(&s->gguf.arena);
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

const struct ane_tokenizer *bind_check_tokenizer(lua_State *L, int arg) { return check_tokenizer(L, arg)->t; }

/* Pushes {default = text, name = text, ...}: tokenizer.chat_template and tokenizer.chat_template.NAME. */
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

/* tokenizer(vocabulary, description) -> tokenizer; or nil, message, code. The vocabulary is closed. */
static int from_vocabulary(lua_State *L) {
  struct ane_tokenizer_desc desc;
  struct ane_error err;
  lua_settop(L, 2);
  struct lua_tokenizer *ud = bind_new(L, TOKENIZER_CLASS, sizeof *ud, 1);
  lua_newtable(L);
  lua_setiuservalue(L, 3, 1);
  ane_status st = bind_describe(L, 1, 2, &desc, &err);
  if (!st) st = ane_tokenizer_create(&ud->t, &desc, &err);
  bind_close_vocabulary(L, 1);
  if (st) return bind_fail(L, &err);
  ud->bos = ud->eos = ud->eot = ud->eom = ud->unk = ud->pad = ANE_NO_TOKEN;
  lua_settop(L, 3);
  return 1;
}

/* tokenizer(source) -> tokenizer; or nil, message, code. Nothing of the source is kept. */
static int tokenizer_new(lua_State *L) {
  if (bind_is_vocabulary(L, 1)) return from_vocabulary(L);
  const struct ane_source *source = bind_check_source(L, 1);
  lua_settop(L, 1);
  struct lua_tokenizer *ud = bind_new(L, TOKENIZER_CLASS, sizeof *ud, 1);
  push_templates(L, source);
  lua_setiuservalue(L, 2, 1);
  struct scratch *s = new_scratch(L);
  struct gguf_tokenizer *g = &s->gguf;
  struct ane_error err;
  g->source = source;
  ane_status st = gguf_tokenizer_describe(g, &err);
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
 * inclusive, end = start - 1 if a token stands for no text]; or nil, message, code */
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

/* Pushes the buffer's bytes. */
static int push_bytes(lua_State *L, struct scratch *s) {
  lua_pushlstring(L, s->buffer.size ? (const char *)s->buffer.data : "", s->buffer.size);
  return 1;
}

/* decode(ids [, skip_special [, replace]]) -> bytes; replace: U+FFFD for bytes that are not UTF-8 */
static int meth_decode(lua_State *L) {
  const struct lua_tokenizer *ud = check_tokenizer(L, 1);
  size_t n;
  bool skip = lua_toboolean(L, 3), replace = lua_toboolean(L, 4);
  const int32_t *ids = bind_ids(L, 2, &n);
  struct scratch *s = new_scratch(L);
  int index = lua_gettop(L);
  if (!ane_tokenizer_decode(ud->t, ids, n, skip, replace, &s->buffer)) return luaL_error(L, "not enough memory");
  push_bytes(L, s);
  drop_scratch(L, index);
  return 1;
}

/* Returns the id at arg, or -1 if it is not in the vocabulary. */
static int64_t id_arg(lua_State *L, const struct lua_tokenizer *ud, int arg) {
  lua_Integer id = bind_integer(L, arg, 0, INT32_MAX);
  return id < (lua_Integer)ane_tokenizer_size(ud->t) ? id : -1;
}

static int push_text(lua_State *L, struct ane_text s) {
  lua_pushlstring(L, s.data, s.len);
  return 1;
}

/* token(id) -> the bytes of the token; nil if the id is not in the vocabulary (also piece and token_type) */
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

/* id(piece) -> the id of the token with this spelling, or nil */
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
  push_bytes(L, s);
  drop_scratch(L, index);
  return 1;
}

/* flush() -> the bytes held back. Resets the decoder */
static int decoder_flush(lua_State *L) {
  struct lua_decoder *d = luaL_checkudata(L, 1, DECODER_CLASS);
  lua_getiuservalue(L, 1, 1);
  const struct lua_tokenizer *ud = check_tokenizer(L, -1);
  struct scratch *s = new_scratch(L);
  int index = lua_gettop(L);
  if (!ane_decoder_flush(ud->t, &d->state, &s->buffer)) return luaL_error(L, "not enough memory");
  push_bytes(L, s);
  drop_scratch(L, index);
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
  push_bytes(L, s);
  drop_scratch(L, index);
  return 1;
}

/* pretokenizer(name) -> {splits = list of patterns whose matches and gaps are pieces, ignore_merges, add_bos, sentence} of a
 * value of tokenizer.ggml.pre. splits is nil if a split is of another kind, ignore_merges where only newlines are never
 * merged. nil: the name is unknown. */
static int pretokenizer(lua_State *L) {
  size_t len;
  const char *name = luaL_checklstring(L, 1, &len);
  const struct ane_pretokenizer *p = ane_pretokenizer_find(name, len);
  if (!p) return 0;
  bool plain = true;
  lua_createtable(L, 0, 4);
  lua_createtable(L, (int)p->n_splits, 0);
  for (uint32_t i = 0; i < p->n_splits; i++) {
    const struct ane_split *split = &p->splits[i];
    plain &= split->pattern && split->behaviour == ANE_SPLIT_ISOLATED && !split->invert && !split->literal;
    lua_pushstring(L, split->pattern);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  if (plain)
    lua_setfield(L, -2, "splits");
  else
    lua_pop(L, 1);
  if (p->whole != ANE_WHOLE_NEWLINES) {
    lua_pushboolean(L, p->whole == ANE_WHOLE_ALWAYS);
    lua_setfield(L, -2, "ignore_merges");
  }
  lua_pushboolean(L, p->add_bos);
  lua_setfield(L, -2, "add_bos");
  lua_pushboolean(L, p->sentence);
  lua_setfield(L, -2, "sentence");
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

static const luaL_Reg functions[] = {
    {"tokenizer", tokenizer_new},
    {"normalise", normalise},
    {"pretokenizer", pretokenizer},
    {NULL, NULL},
};

void bind_tokenizer(lua_State *L) {
  bind_class(L, TOKENIZER_CLASS, tokenizer_methods, tokenizer_meta);
  bind_class(L, DECODER_CLASS, decoder_methods, no_methods);
  bind_class(L, SCRATCH_CLASS, no_methods, scratch_meta);
  luaL_setfuncs(L, functions, 0);
}
