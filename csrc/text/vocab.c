/* The token table: spellings, their bytes, and the lookup by spelling. */
#include "text/text_internal.h"

#include <math.h>
#include <string.h>

/* ---- Table -------------------------------------------------------------------------------------------------------*/

int ane_byte_value(struct ane_text s) {
  int v = 0;
  if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>') return -1;
  for (int i = 3; i < 5; i++) {
    char c = s.data[i];
    if (c >= '0' && c <= '9')
      v = v * 16 + c - '0';
    else if ((c | 32) >= 'a' && (c | 32) <= 'f')
      v = v * 16 + (c | 32) - 'a' + 10;
    else
      return -1;
  }
  return v;
}

/* Is the token found by a walk along the text? */
static bool is_walked(const struct ane_tokenizer_desc *d, uint32_t i) {
  uint8_t type = d->types ? d->types[i] : ANE_TOKEN_NORMAL;
  return (d->model != ANE_MODEL_MERGES && d->model != ANE_MODEL_WORDS) || type == ANE_TOKEN_CONTROL || type == ANE_TOKEN_USER ||
         type == ANE_TOKEN_UNKNOWN;
}

static ane_status check(const struct ane_tokenizer_desc *d, struct ane_error *err) {
  if (d->prefix.len > ANE_TOKEN_BYTES || d->suffix.len > ANE_TOKEN_BYTES)
    return ane_fail(err, ANE_RANGE, "the %s of tokens must have at most %d bytes, but has %zu",
                    d->prefix.len > ANE_TOKEN_BYTES ? "prefix" : "suffix", ANE_TOKEN_BYTES,
                    ANE_MAX(d->prefix.len, d->suffix.len));
  if (d->n_tokens == 0 || d->n_tokens > INT32_MAX)
    return ane_fail(err, ANE_FORMAT, "vocabulary of %u tokens", (unsigned)d->n_tokens);
  for (uint32_t i = 0; i < d->n_tokens; i++) {
    if (d->tokens[i].len > INT32_MAX)
      return ane_fail(err, ANE_FORMAT, "token %u is %zu bytes long", (unsigned)i, d->tokens[i].len);
    if (d->tokens[i].len > ANE_TOKEN_BYTES && is_walked(d, i))
      return ane_fail(err, ANE_RANGE, "token %u must have at most %d bytes, but has %zu", (unsigned)i, ANE_TOKEN_BYTES,
                      d->tokens[i].len);
    if (d->types && (d->types[i] < ANE_TOKEN_NORMAL || d->types[i] > ANE_TOKEN_BYTE))
      return ane_fail(err, ANE_FORMAT, "token %u has type %d, known are 1 to 6", (unsigned)i, d->types[i]);
    if (d->scores && isnan(d->scores[i])) return ane_fail(err, ANE_FORMAT, "the score of token %u is not a number", (unsigned)i);
  }
  for (uint32_t i = 0; i < d->n_head + d->n_tail; i++) {
    int32_t id = i < d->n_head ? d->head[i] : d->tail[i - d->n_head];
    if (id < 0 || id >= (int64_t)d->n_tokens)
      return ane_fail(err, ANE_FORMAT, "token %d is added to texts, but the vocabulary has %u tokens", (int)id,
                      (unsigned)d->n_tokens);
  }
  const int32_t ids[] = {d->bos, d->eos, d->unk};
  static const char *const names[] = {"begin", "end", "unknown"};
  for (size_t i = 0; i < ANE_COUNT(ids); i++)
    if (ids[i] < ANE_NO_TOKEN || ids[i] >= (int64_t)d->n_tokens)
      return ane_fail(err, ANE_FORMAT, "the %s token is %d, but the vocabulary has %u tokens", names[i], (int)ids[i],
                      (unsigned)d->n_tokens);
  if (d->add_bos && d->bos == ANE_NO_TOKEN && !d->n_head)
    return ane_fail(err, ANE_FORMAT, "the model adds a begin token but names none");
  if (d->add_eos && d->eos == ANE_NO_TOKEN && !d->n_tail)
    return ane_fail(err, ANE_FORMAT, "the model adds an end token but names none");
  return ANE_OK;
}

/* Copies all spellings to one block. false: out of memory. *twice receives a token that repeats the spelling of an earlier one,
 * if that is an error. */
static bool copy_pieces(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, uint32_t *twice) {
  size_t total = 0;
  for (uint32_t i = 0; i < t->n; i++)
    if (!ane_add_size(total, d->tokens[i].len, &total)) return false;
  char *block = ane_arena_alloc(&t->arena, total);
  t->pieces = ane_arena_array(&t->arena, t->n, sizeof *t->pieces);
  t->types = ane_arena_array(&t->arena, t->n, sizeof *t->types);
  if (!block || !t->pieces || !t->types || !ane_strmap_reserve(&t->by_piece, t->n)) return false;
  for (uint32_t i = 0; i < t->n; i++) {
    size_t len = d->tokens[i].len;
    if (len) memcpy(block, d->tokens[i].data, len);
    t->pieces[i] = (struct ane_text){block, len};
    t->types[i] = d->types ? d->types[i] : ANE_TOKEN_NORMAL;
    t->max_len = ANE_MAX(t->max_len, (uint32_t)len);
    uint32_t old = UINT32_MAX;
    if (len && !ane_strmap_put(&t->by_piece, block, len, i, &old)) return false;
    if (d->unique && old != UINT32_MAX) *twice = i;
    block += len;
  }
  if (d->flags) {
    t->flags = ane_arena_alloc(&t->arena, t->n);
    if (!t->flags) return false;
    memcpy(t->flags, d->flags, t->n);
  }
  if (d->scores) {
    t->scores = ane_arena_array(&t->arena, t->n, sizeof *t->scores);
    if (!t->scores) return false;
    memcpy(t->scores, d->scores, t->n * sizeof *t->scores);
  }
  return true;
}

static void find_bytes(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d) {
  for (int b = 0; b < 256; b++) {
    char name[8] = {'<', '0', 'x', "0123456789ABCDEF"[b >> 4], "0123456789ABCDEF"[b & 15], '>', 0};
    size_t len = 6;
    if (d->byte_level) len = ane_alphabet_spell((unsigned)b, name);
    int32_t id = d->byte_level || d->byte_fallback ? ane_tokenizer_id(t, name, len) : ANE_NO_TOKEN;
    bool outside = id >= 0 && t->flags && t->flags[id] & ANE_ADDED_OUTSIDE;
    if (id >= 0 && d->byte_level && t->types[id] != ANE_TOKEN_NORMAL && t->types[id] != ANE_TOKEN_BYTE)
      outside = !d->library_rules || t->types[id] != ANE_TOKEN_USER;
    if (outside) id = ANE_NO_TOKEN;
    t->byte_ids[b] = id;
  }
}

ane_status ane_vocab_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  ane_status st = check(d, err);
  if (st) return st;
  t->n = d->n_tokens;
  uint32_t twice = UINT32_MAX;
  if (!copy_pieces(t, d, &twice)) return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
  if (twice != UINT32_MAX) {
    struct ane_text s = t->pieces[twice];
    return ane_fail(err, ANE_FORMAT, "token %u is spelled '%.*s', as another token is", (unsigned)twice,
                    (int)ANE_MIN(s.len, (size_t)60), s.data);
  }
  find_bytes(t, d);
  return ANE_OK;
}

/* ---- Look-ups ----------------------------------------------------------------------------------------------------*/

uint32_t ane_tokenizer_size(const struct ane_tokenizer *t) { return t->n; }

struct ane_text ane_tokenizer_piece(const struct ane_tokenizer *t, uint32_t id) {
  return t->pieces[id];
}

ane_token_type ane_tokenizer_type(const struct ane_tokenizer *t, uint32_t id) { return (ane_token_type)t->types[id]; }

struct ane_text ane_tokenizer_bytes(const struct ane_tokenizer *t, uint32_t id) {
  return id < t->n ? t->bytes[id] : (struct ane_text){"", 0};
}

int32_t ane_tokenizer_id(const struct ane_tokenizer *t, const char *piece, size_t len) {
  uint32_t id = ane_strmap_get(&t->by_piece, piece, len);
  return id == UINT32_MAX ? ANE_NO_TOKEN : (int32_t)id;
}

int32_t ane_model_token(const struct ane_tokenizer *t, const char *s, size_t len, bool special) {
  int32_t id = len <= t->max_len ? ane_tokenizer_id(t, s, len) : ANE_NO_TOKEN;
  if (id < 0 || (t->flags && t->flags[id] & ANE_ADDED_OUTSIDE)) return ANE_NO_TOKEN;
  ane_token_type type = (ane_token_type)t->types[id];
  return type == ANE_TOKEN_NORMAL || type == ANE_TOKEN_USER || (special && type == ANE_TOKEN_CONTROL) ? id : ANE_NO_TOKEN;
}
