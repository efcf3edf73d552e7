/* The token table: spellings, the bytes they stand for, and the ways back. */
#include "text/text_internal.h"

#include <math.h>
#include <string.h>

/* ---- GPT-2's alphabet --------------------------------------------------------------------------------------------*/

/* Bytes that are printable in Latin-1 stand for themselves, the other 68 for U+0100 and up, in order: openai/gpt-2,
 * encoder.py, bytes_to_unicode. */
static bool printable(unsigned b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); }

/* Code point of a byte. */
static unsigned spell(unsigned b) {
  if (printable(b)) return b;
  if (b <= 0x20) return 0x100 + b;
  return b == 0xAD ? 0x143 : 0x100 + b - 0x7F + 0x21;
}

/* Byte of a code point, or -1. */
static int unspell(unsigned c) {
  if (c < 0x100) return printable(c) ? (int)c : -1;
  if (c <= 0x120) return (int)(c - 0x100);
  if (c <= 0x142) return (int)(c - 0x121 + 0x7F);
  return c == 0x143 ? 0xAD : -1;
}

bool ane_alphabet_decode(const char *s, size_t len, char *out, size_t *out_len) {
  size_t n = 0;
  for (size_t i = 0; i < len;) {
    unsigned c = (unsigned char)s[i++];
    if (c >= 0x80) {
      if (c < 0xC2 || c > 0xC5 || i == len || ((unsigned char)s[i] & 0xC0) != 0x80) return false;
      c = (c & 0x1F) << 6 | ((unsigned char)s[i++] & 0x3F);
    }
    int b = unspell(c);
    if (b < 0) return false;
    out[n++] = (char)b;
  }
  *out_len = n;
  return true;
}

bool ane_alphabet_encode(const char *s, size_t len, struct ane_buffer *out) {
  size_t room;
  if (!ane_mul_size(len, 2, &room) || !ane_buffer_reserve(out, room)) return false;
  for (size_t i = 0; i < len; i++) {
    unsigned c = spell((unsigned char)s[i]);
    if (c >= 0x80) {
      out->data[out->size++] = (uint8_t)(0xC0 | c >> 6);
      c = 0x80 | (c & 0x3F);
    }
    out->data[out->size++] = (uint8_t)c;
  }
  return true;
}

/* ---- Table -------------------------------------------------------------------------------------------------------*/

/* Value of <0xNN>, or -1. */
static int byte_value(struct ane_text s) {
  int v = 0;
  if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>') return -1;
  for (int i = 3; i < 5; i++) {
    char c = s.data[i];
    if (c >= '0' && c <= '9')
      v = v * 16 + c - '0';
    else if (c >= 'A' && c <= 'F')
      v = v * 16 + c - 'A' + 10;
    else
      return -1;
  }
  return v;
}

static ane_status check(const struct ane_tokenizer_desc *d, struct ane_error *err) {
  if (d->n_tokens == 0 || d->n_tokens > INT32_MAX)
    return ane_fail(err, ANE_FORMAT, "vocabulary of %u tokens", (unsigned)d->n_tokens);
  for (uint32_t i = 0; i < d->n_tokens; i++) {
    if (d->tokens[i].len > INT32_MAX)
      return ane_fail(err, ANE_FORMAT, "token %u is %zu bytes long", (unsigned)i, d->tokens[i].len);
    if (d->types && (d->types[i] < ANE_TOKEN_NORMAL || d->types[i] > ANE_TOKEN_BYTE))
      return ane_fail(err, ANE_FORMAT, "token %u has type %d, known are 1 to 6", (unsigned)i, d->types[i]);
    if (d->scores && isnan(d->scores[i])) return ane_fail(err, ANE_FORMAT, "token %u has no number as score", (unsigned)i);
  }
  const int32_t ids[] = {d->bos, d->eos, d->unk};
  static const char *const names[] = {"begin", "end", "unknown"};
  for (size_t i = 0; i < ANE_COUNT(ids); i++)
    if (ids[i] < ANE_NO_TOKEN || ids[i] >= (int64_t)d->n_tokens)
      return ane_fail(err, ANE_FORMAT, "the %s token is %d, the vocabulary has %u tokens", names[i], (int)ids[i],
                      (unsigned)d->n_tokens);
  if (d->add_bos && d->bos == ANE_NO_TOKEN) return ane_fail(err, ANE_FORMAT, "the model adds a begin token and names none");
  if (d->add_eos && d->eos == ANE_NO_TOKEN) return ane_fail(err, ANE_FORMAT, "the model adds an end token and names none");
  return ANE_OK;
}

/* All spellings in one block behind each other. */
static bool copy_pieces(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d) {
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
    if (!ane_strmap_put(&t->by_piece, block, len, i, NULL)) return false;
    block += len;
  }
  if (d->scores) {
    t->scores = ane_arena_array(&t->arena, t->n, sizeof *t->scores);
    if (!t->scores) return false;
    memcpy(t->scores, d->scores, t->n * sizeof *t->scores);
  }
  return true;
}

/* s with spaces for U+2581, into out; its length. */
static size_t unmark(struct ane_text s, char *out) {
  size_t n = 0;
  for (size_t i = 0; i < s.len;) {
    if (s.len - i >= 3 && memcmp(s.data + i, "\xE2\x96\x81", 3) == 0) {
      out[n++] = ' ';
      i += 3;
    } else {
      out[n++] = s.data[i++];
    }
  }
  return n;
}

/* What each token stands for. Only normal, unused and byte tokens are spelled in some code; the others are plain text. */
static bool decode_pieces(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d) {
  size_t total = 0;
  for (uint32_t i = 0; i < t->n; i++) total += t->pieces[i].len;
  char *block = ane_arena_alloc(&t->arena, total);
  t->bytes = ane_arena_array(&t->arena, t->n, sizeof *t->bytes);
  if (!block || !t->bytes) return false;
  for (uint32_t i = 0; i < t->n; i++) {
    struct ane_text s = t->pieces[i];
    bool normal = t->types[i] == ANE_TOKEN_NORMAL || t->types[i] == ANE_TOKEN_UNUSED;
    size_t n = s.len;
    int value = t->types[i] == ANE_TOKEN_BYTE ? byte_value(s) : -1;
    t->bytes[i] = s;
    if (value >= 0) {
      block[0] = (char)value;
      n = 1;
    } else if (normal && d->space_mark) {
      n = unmark(s, block);
    } else if (!normal || !d->byte_level || !ane_alphabet_decode(s.data, s.len, block, &n)) {
      continue;
    }
    t->bytes[i] = (struct ane_text){block, n};
    block += n;
  }
  return true;
}

static void find_bytes(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d) {
  for (int b = 0; b < 256; b++) {
    char name[8] = {'<', '0', 'x', "0123456789ABCDEF"[b >> 4], "0123456789ABCDEF"[b & 15], '>', 0};
    size_t len = 6;
    if (d->byte_level) {
      unsigned c = spell((unsigned)b);
      len = c < 0x80 ? 1 : 2;
      name[0] = (char)(c < 0x80 ? c : 0xC0 | c >> 6);
      name[1] = (char)(0x80 | (c & 0x3F));
    }
    int32_t id = d->byte_level || d->byte_fallback ? ane_tokenizer_id(t, name, len) : ANE_NO_TOKEN;
    if (id >= 0 && d->byte_level && t->types[id] != ANE_TOKEN_NORMAL && t->types[id] != ANE_TOKEN_BYTE) id = ANE_NO_TOKEN;
    t->byte_ids[b] = id;
  }
}

ane_status ane_vocab_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  ane_status st = check(d, err);
  if (st) return st;
  t->n = d->n_tokens;
  if (!copy_pieces(t, d) || !decode_pieces(t, d))
    return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
  find_bytes(t, d);
  for (uint32_t i = 0; i < t->n; i++) {
    bool added = t->types[i] == ANE_TOKEN_CONTROL || t->types[i] == ANE_TOKEN_USER || t->types[i] == ANE_TOKEN_UNKNOWN;
    if (added && !ane_trie_add(&t->added, t->pieces[i].data, t->pieces[i].len, (int32_t)i))
      return ane_fail(err, ANE_NOMEM, "no memory for the added tokens");
  }
  return ANE_OK;
}

/* ---- Questions ---------------------------------------------------------------------------------------------------*/

uint32_t ane_tokenizer_size(const struct ane_tokenizer *t) { return t->n; }

struct ane_text ane_tokenizer_piece(const struct ane_tokenizer *t, uint32_t id) { return t->pieces[id]; }

ane_token_type ane_tokenizer_type(const struct ane_tokenizer *t, uint32_t id) { return (ane_token_type)t->types[id]; }

struct ane_text ane_tokenizer_bytes(const struct ane_tokenizer *t, uint32_t id) {
  return id < t->n ? t->bytes[id] : (struct ane_text){"", 0};
}

int32_t ane_tokenizer_id(const struct ane_tokenizer *t, const char *piece, size_t len) {
  uint32_t id = ane_strmap_get(&t->by_piece, piece, len);
  return id == UINT32_MAX ? ANE_NO_TOKEN : (int32_t)id;
}

int32_t ane_model_token(const struct ane_tokenizer *t, const char *s, size_t len) {
  int32_t id = len <= t->max_len ? ane_tokenizer_id(t, s, len) : ANE_NO_TOKEN;
  return id >= 0 && (t->types[id] == ANE_TOKEN_NORMAL || t->types[id] == ANE_TOKEN_USER) ? id : ANE_NO_TOKEN;
}
