/* WordPiece, and the model of whole words. */
#include "text/text_internal.h"

#include <string.h>

ane_status ane_word_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  int32_t id = ane_model_token(run->t, s, len, run->special);
  return id >= 0 ? ane_emit(run, id, s, len, err) : ane_emit_unknown(run, s, len, NULL, err);
}

/* Sets *length to that of the longest token at the start of s[at..len), with the prefix if at > 0. 0: there is none. */
static ane_status longest(struct ane_encode_run *run, const char *s, size_t at, size_t len, int32_t *id, size_t *length,
                          struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  struct ane_text prefix = at ? t->prefix : (struct ane_text){0};
  size_t n = ANE_MIN(len - at, (size_t)t->max_len);
  struct ane_buffer *b = &run->spelled;
  b->size = 0;
  *id = ANE_NO_TOKEN;
  *length = 0;
  if (!ane_buffer_append(b, prefix.data, prefix.len) || !ane_buffer_append(b, s + at, n))
    return ane_fail(err, ANE_NOMEM, "no memory for a word of %zu bytes", len);
  for (; n; n--) {
    if (at + n < len && ((unsigned char)s[at + n] & 0xC0) == 0x80) continue; /* not a character boundary */
    *id = ane_model_token(t, (const char *)b->data, prefix.len + n, run->special);
    if (*id >= 0) {
      *length = n;
      return ANE_OK;
    }
  }
  return ANE_OK;
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
    st = longest(run, s, at, len, &id, &n, err);
    if (st || !n) break;
    st = ane_emit(run, id, s + at, n, err);
  }
  if (st || n) return st;
  e->n = had; /* one unknown part makes the whole word unknown */
  return ane_emit_unknown(run, s, len, NULL, err);
}
