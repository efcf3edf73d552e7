/* WordPiece, and the model of whole words. */
#include "text/text_internal.h"

#include <string.h>

ane_status ane_word_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  int32_t id = ane_model_token(run->t, s, len, run->special);
  return id >= 0 ? ane_emit(run, id, s, len, err) : ane_emit_unknown(run, s, len, NULL, err);
}

/* The length of the longest token at the start of s[at..len), with the prefix if at > 0. 0: none. */
static size_t longest(struct ane_encode_run *run, const char *s, size_t at, size_t len, int32_t *id) {
  const struct ane_tokenizer *t = run->t;
  struct ane_text prefix = at ? t->prefix : (struct ane_text){0};
  size_t n = ANE_MIN(len - at, (size_t)t->max_len);
  struct ane_buffer *b = &run->spelled;
  b->size = 0;
  *id = ANE_NO_TOKEN;
  if (!ane_buffer_append(b, prefix.data, prefix.len) || !ane_buffer_append(b, s + at, n)) return 0;
  for (; n; n--) {
    if (at + n < len && ((unsigned char)s[at + n] & 0xC0) == 0x80) continue; /* not a character boundary */
    *id = ane_model_token(t, (const char *)b->data, prefix.len + n, run->special);
    if (*id >= 0) return n;
  }
  return 0;
}

static size_t characters(const char *s, size_t len) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xC0) != 0x80;
  return n;
}

ane_status ane_wordpiece_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  struct ane_encoding *e = run->out;
  size_t n = 0, had = e->n;
  ane_status st = ANE_OK;
  if (characters(s, len) > run->t->max_chars) return ane_emit_unknown(run, s, len, NULL, err);
  for (size_t at = 0; at < len && !st; at += n) {
    int32_t id;
    n = longest(run, s, at, len, &id);
    if (!n) break;
    st = ane_emit(run, id, s + at, n, err);
  }
  if (st || n) return st;
  e->n = had; /* one unknown part makes the whole word unknown */
  return ane_emit_unknown(run, s, len, NULL, err);
}
