/* Reads the tokenizer from the metadata of a GGUF file. */
#include "vocabulary/vocabulary.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY "tokenizer.ggml."

/* Reads the value of a key. *out is NULL if the key is missing. Fails if the value is of another kind. */
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

/* Reads a token id. Files without such a token omit the key or write -1 in some width. lenient: an id beyond the vocabulary
 * counts as none; some published files have such a padding token, which is never used. */
static ane_status want_id(const struct gguf_tokenizer *g, const char *key, bool lenient, int32_t *id, struct ane_error *err) {
  const struct ane_meta *m = ane_source_meta(g->source, key);
  if (!m) return ANE_OK;
  if (m->kind != ANE_META_UINT && m->kind != ANE_META_INT) return ane_fail(err, ANE_FORMAT, "%s is not an integer", key);
  uint64_t v = m->kind == ANE_META_INT ? (uint64_t)m->i : m->u;
  *id = ANE_NO_TOKEN;
  if (v == UINT64_MAX || v == UINT32_MAX || (lenient && v >= g->desc.n_tokens)) return ANE_OK;
  if (v >= g->desc.n_tokens)
    return ane_fail(err, ANE_FORMAT, "%s is %" PRIu64 ", but the vocabulary has %u tokens", key, v, (unsigned)g->desc.n_tokens);
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

/* Reads an array of one number per token, of this type. *out stays NULL if there is none. */
static ane_status want_numbers(const struct gguf_tokenizer *g, const char *key, ane_dtype dtype, const struct ane_meta **out,
                               struct ane_error *err) {
  ane_status st = want(g, key, ANE_META_ARRAY, out, err);
  if (st || !*out) return st;
  const struct ane_meta *m = *out;
  if (m->a.items || m->a.dtype != dtype)
    return ane_fail(err, ANE_FORMAT, "%s must be an array of %s", key, ane_dtype_info(dtype)->name);
  if (m->a.count != g->desc.n_tokens)
    return ane_fail(err, ANE_FORMAT, "%s has %" PRIu64 " entries, but the vocabulary has %u tokens", key, m->a.count,
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
  double *s = scores ? ane_arena_array(&g->arena, n, sizeof *s) : NULL;
  if ((types && !t) || (scores && !s)) return ane_fail(err, ANE_NOMEM, "no memory for %" PRIu64 " tokens", n);
  for (uint64_t i = 0; i < n && t; i++) {
    int64_t v = ane_meta_array_integer(types, i);
    if (v < 0 || v > ANE_TOKEN_BYTE)
      return ane_fail(err, ANE_FORMAT, KEY "token_type of token %" PRIu64 " is %" PRId64 ", known are 0 to 6", i, v);
    t[i] = (uint8_t)(v ? v : ANE_TOKEN_NORMAL); /* 0 is "undefined" */
  }
  for (uint64_t i = 0; i < n && s; i++) s[i] = ane_meta_array_number(scores, i);
  d->types = t;
  d->scores = s;
  return ANE_OK;
}

static void add_normaliser(struct gguf_tokenizer *g, ane_normaliser_kind kind, const char *from, const char *to) {
  g->normalisers[g->desc.n_normalisers++] = (struct ane_normaliser){kind, {from, strlen(from)}, {to, strlen(to)}};
  g->desc.normalisers = g->normalisers;
}

#define MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

/* Model "llama": SentencePiece. The defaults are those of llama.cpp: bos 1, eos 2, unknown 0, bos added, a space inserted before
 * the text. */
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

/* Merges have the form "left right". A part may begin with a space itself if the alphabet has one, so the separator is never the
 * first byte. */
static ane_status want_merges(struct gguf_tokenizer *g, struct ane_error *err) {
  const struct ane_text *texts = NULL;
  uint64_t n = 0;
  ane_status st = want_texts(g, KEY "merges", &texts, &n, err);
  if (st) return st;
  struct ane_token_pair *pairs = ane_arena_array(&g->arena, (size_t)n, sizeof *pairs);
  if (!pairs) return ane_fail(err, ANE_NOMEM, "no memory for %" PRIu64 " merges", n);
  for (uint64_t i = 0; i < n; i++) {
    struct ane_text m = texts[i];
    const char *gap = m.len > 2 ? memchr(m.data + 1, ' ', m.len - 2) : NULL;
    if (!gap) return ane_fail(err, ANE_FORMAT, "merge %" PRIu64 " is not two tokens with a space between", i);
    size_t left = (size_t)(gap - m.data);
    pairs[i] = (struct ane_token_pair){{m.data, left}, {gap + 1, m.len - left - 1}};
  }
  g->desc.merges = pairs;
  g->desc.n_merges = (size_t)n;
  return ANE_OK;
}

static ane_status unknown_name(const char *key, const struct ane_meta *found, const char *known, struct ane_error *err) {
  int len = (int)ANE_MIN(found->s.len, (uint64_t)64);
  return ane_fail(err, ANE_UNSUPPORTED, "%s is '%.*s'; known are %s", key, len, found->s.data, known);
}

/* Appends one name for each list of splits, and the number of other names. */
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

/* Model "gpt2": merges, after the pre-tokenizer that the file names. */
static ane_status describe_merges(struct gguf_tokenizer *g, const char *implied, struct ane_error *err) {
  struct ane_tokenizer_desc *d = &g->desc;
  const struct ane_meta *m;
  char known[400];
  ane_status st = want(g, KEY "pre", ANE_META_STRING, &m, err);
  if (st) return st;
  known_pretokenizers(known, sizeof known);
  if (!m && !implied) return ane_fail(err, ANE_UNSUPPORTED, KEY "pre is missing; known are %s", known);
  const struct ane_pretokenizer *p =
      implied ? ane_pretokenizer_find(implied, strlen(implied)) : ane_pretokenizer_find(m->s.data, (size_t)m->s.len);
  if (!p) return unknown_name(KEY "pre", m, known, err);
  if ((st = want_merges(g, err))) return st;
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
  /* The family's default applies only if the token exists. If the file sets it without the token, that is an error (vocab.c). */
  if (d->bos == ANE_NO_TOKEN && !ane_source_meta(g->source, KEY "add_bos_token")) add_bos = false;
  d->add_bos = add_bos;
  d->unk = d->model == ANE_MODEL_SCORES ? g->unk : ANE_NO_TOKEN;
  return ANE_OK;
}

ane_status gguf_tokenizer_describe(struct gguf_tokenizer *g, struct ane_error *err) {
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
