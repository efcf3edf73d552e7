/* BPE of SentencePiece (Kudo, Richardson 2018; bpe_model.cc): two neighbours merge if together they spell a token, the highest
 * score first. Characters that end up in no token become byte tokens. */
#include "text/text_internal.h"

#include <string.h>

static const char mark[] = "\xE2\x96\x81"; /* U+2581, the space */

/* Maps a score to a rank, reversing the order: the higher the score, the lower the rank. Never ANE_NO_RANK (that would be -NaN).
 * */
static uint32_t rank_of(float score) {
  uint32_t u;
  score += 0.0f; /* -0 and 0 are equal */
  memcpy(&u, &score, sizeof u);
  return u >> 31 ? u : 0x7FFFFFFFu - u;
}

static uint32_t pair(const struct ane_tokenizer *t, const char *at, const struct ane_symbol *a, const struct ane_symbol *b,
                     int32_t *merged) {
  *merged = ane_model_token(t, at, (size_t)a->len + b->len, false);
  return *merged < 0 ? ANE_NO_RANK : rank_of((float)t->scores[*merged]);
}

void ane_spm_init(struct ane_tokenizer *t) {
  t->words_apart = true;
  for (uint32_t i = 0; i < t->n && t->words_apart; i++) {
    struct ane_text s = t->pieces[i];
    if (t->types[i] != ANE_TOKEN_NORMAL && t->types[i] != ANE_TOKEN_USER) continue;
    for (size_t p = 3; p + 3 <= s.len && t->words_apart; p++)
      if (memcmp(s.data + p, mark, 3) == 0 && memcmp(s.data + p - 3, mark, 3) != 0) t->words_apart = false;
    /* A mark within the first three bytes: only characters of one or two bytes fit before it. */
    for (size_t p = 1; p < 3 && p + 3 <= s.len; p++)
      if (memcmp(s.data + p, mark, 3) == 0) t->words_apart = false;
  }
}

/* The length of the word at s: it ends before the next mark that follows another character. */
static size_t word_end(const char *s, size_t len) {
  size_t p = 0;
  while (len - p >= 3 && memcmp(s + p, mark, 3) == 0) p += 3;
  for (;;) {
    const char *next = memchr(s + p, (unsigned char)mark[0], len - p);
    if (!next) return len;
    p = (size_t)(next - s);
    if (len - p >= 3 && memcmp(next, mark, 3) == 0) return p;
    p++;
  }
}

static ane_status encode_word(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  uint32_t prev = UINT32_MAX;
  if (len >= UINT32_MAX) return ane_fail(err, ANE_RANGE, "a piece of %zu bytes without a place to split is too long", len);
  if (!ane_merge_reserve(&run->work, len)) return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  struct ane_symbol *sym = run->work.symbols;
  for (uint32_t p = 0; p < len; prev = p, p += sym[p].len) {
    int step = ane_utf8_step(s + p, len - p, NULL);
    uint32_t n = step > 0 ? (uint32_t)step : 1;
    sym[p] = (struct ane_symbol){ane_model_token(run->t, s + p, n, false), n, prev, ANE_NO_RANK, ANE_NO_TOKEN};
  }
  if (!ane_merge(&run->work, run->t, s, (uint32_t)len, pair))
    return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  return ane_emit_symbols(run, s, len, err);
}

ane_status ane_spm_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (size_t at = 0; at < len && !st;) {
    size_t n = run->t->words_apart ? word_end(s + at, len - at) : len - at;
    st = encode_word(run, s + at, n, err);
    at += n;
  }
  return st;
}
