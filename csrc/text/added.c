/* Added tokens. They are found in the text by their spelling, before the model runs. */
#include "text/text_internal.h"

#include <string.h>

static bool is_added(const struct ane_tokenizer *t, uint32_t i) {
  return (t->types[i] == ANE_TOKEN_CONTROL || t->types[i] == ANE_TOKEN_USER || t->types[i] == ANE_TOKEN_UNKNOWN) &&
         t->pieces[i].len;
}

/* Adds a token by its normalised spelling; adds nothing if that is empty. */
static ane_status add_normalised(struct ane_tokenizer *t, uint32_t i, struct ane_pattern_memory *m, struct ane_error *err) {
  struct ane_change_context x = {.pattern_memory = m};
  struct ane_aligned a = {0};
  ane_status st = ane_normalise(t->normalisers, t->n_normalisers, &x, t->pieces[i], false, &a, err);
  if (!st && a.bytes.size > ANE_TOKEN_BYTES)
    st = ane_fail(err, ANE_RANGE, "token %u must have at most %d bytes after the normalizer, but has %zu", (unsigned)i,
                  ANE_TOKEN_BYTES, a.bytes.size);
  if (!st && a.bytes.size && !ane_trie_add(&t->late, (const char *)a.bytes.data, a.bytes.size, (int32_t)i))
    st = ane_fail(err, ANE_NOMEM, "no memory for the added tokens");
  ane_aligned_free(&a);
  return st;
}

static ane_status add_all(struct ane_tokenizer *t, struct ane_pattern_memory *m, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < t->n && !st; i++) {
    uint8_t flags = t->flags ? t->flags[i] : 0;
    bool ok = true;
    if (!is_added(t, i)) continue;
    if (flags & ANE_ADDED_NORMALISED)
      st = add_normalised(t, i, m, err);
    else if (!(flags & ANE_ADDED_MODEL))
      ok = ane_trie_add(flags & ANE_ADDED_LATE ? &t->late : &t->added, t->pieces[i].data, t->pieces[i].len, (int32_t)i);
    if (flags & (ANE_ADDED_LATE | ANE_ADDED_MODEL) && t->types[i] == ANE_TOKEN_USER)
      ok = ok && ane_trie_add(&t->keep, t->pieces[i].data, t->pieces[i].len, (int32_t)i);
    if (!ok) st = ane_fail(err, ANE_NOMEM, "no memory for the added tokens");
  }
  return st;
}

ane_status ane_added_init(struct ane_tokenizer *t, struct ane_error *err) {
  struct ane_pattern_memory m = {0};
  ane_status st = t->needs_pattern_memory ? ane_pattern_memory_open(&m, err) : ANE_OK;
  if (!st) st = add_all(t, &m, err);
  ane_pattern_memory_close(&m);
  return st;
}

/* Is s[start..end) free of adjacent word characters? */
static bool alone(const char *s, size_t len, size_t start, size_t end) {
  size_t n;
  return (start == 0 || !ane_char_is_word(ane_char_before(s, start, &n))) &&
         (end == len || !ane_char_is_word(ane_char_at(s + end, len - end, &n)));
}

int32_t ane_added_next(const struct ane_tokenizer *t, const struct ane_trie *trie, unsigned admitted, const char *s, size_t len,
                       size_t taken, size_t *at, size_t *start, size_t *end) {
  for (size_t p = *at, n = 0; trie->n && p < len;) {
    int32_t id = trie->first[(unsigned char)s[p]] ? ane_trie_longest(trie, t->types, admitted, s + p, len - p, &n) : ANE_NO_TOKEN;
    if (id == ANE_NO_TOKEN) {
      p++;
      continue;
    }
    uint8_t flags = t->flags ? t->flags[id] : 0;
    size_t a = p, b = p + n, step;
    p = b; /* also if the match is rejected: no other match begins inside it */
    if (flags & ANE_ADDED_SINGLE_WORD && !alone(s, len, a, b)) continue;
    if (flags & ANE_ADDED_LSTRIP)
      while (a > taken && ane_char_is_space(ane_char_before(s, a, &step))) a -= step;
    if (flags & ANE_ADDED_RSTRIP)
      while (b < len && ane_char_is_space(ane_char_at(s + b, len - b, &step))) b += step;
    a = ANE_MAX(a, taken);
    b = ANE_MAX(b, taken);
    if (flags & ANE_ADDED_LSTRIP && a == b) continue; /* blanks that belong to the previous token */
    *at = p;
    *start = a;
    *end = b;
    return id;
  }
  *at = len;
  return ANE_NO_TOKEN;
}
