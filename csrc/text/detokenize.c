/* Turns token ids into text, for streams and for whole lists. */
#include "base/alloc.h"
#include "base/bytes.h"
#include "text/text_internal.h"

#include <string.h>

/* Appends the held bytes and s[0..len), except an incomplete UTF-8 sequence at the end, which the decoder then holds. */
static bool write_whole(struct ane_decoder *d, const char *s, size_t len, struct ane_buffer *out) {
  size_t old = out->size;
  if (!ane_buffer_reserve(out, d->n_held + len)) return false;
  memcpy(out->data + out->size, d->held, d->n_held);
  out->size += d->n_held;
  if (len) memcpy(out->data + out->size, s, len);
  out->size += len;
  size_t whole = ane_utf8_whole((const char *)out->data + old, out->size - old);
  d->n_held = (uint8_t)(out->size - old - whole);
  memcpy(d->held, out->data + old + whole, d->n_held);
  out->size = old + whole;
  return true;
}

static bool write_ending(const struct ane_tokenizer *t, struct ane_decoder *d, uint32_t n, struct ane_buffer *out) {
  bool ok = true;
  for (; n && ok; n--, d->ending--) ok = write_whole(d, t->strip.data, t->strip.len, out);
  return ok;
}

/* Appends the next part of the text, without the characters that are stripped at its ends. */
static bool write_text(const struct ane_tokenizer *t, struct ane_decoder *d, const char *s, size_t len, struct ane_buffer *out) {
  size_t n = t->strip.len, keep;
  uint32_t ending = 0;
  for (; n && d->stripped < t->strip_start && len >= n && memcmp(s, t->strip.data, n) == 0; s += n, len -= n) d->stripped++;
  if (!len) return true;
  d->stripped = UINT32_MAX;
  for (keep = len; ending < t->strip_stop && keep >= n && memcmp(s + keep - n, t->strip.data, n) == 0; keep -= n) ending++;
  if (keep) {
    if (!write_ending(t, d, d->ending, out) || !write_whole(d, s, keep, out)) return false;
  } else {
    uint32_t all = d->ending + ending;
    if (!write_ending(t, d, all > t->strip_stop ? ANE_MIN(all - t->strip_stop, d->ending) : 0, out)) return false;
  }
  d->ending += ending;
  return true;
}

static bool write_token(const struct ane_tokenizer *t, struct ane_decoder *d, uint32_t id, bool last, struct ane_buffer *out) {
  bool first = !d->begun, anew = (first && t->place_first) || (last && t->place_last);
  if (t->unk_text && id == (uint32_t)t->unk) anew = false;
  d->begun = true;
  if (!anew) return write_text(t, d, t->bytes[id].data, t->bytes[id].len, out);
  struct ane_buffer b = {0};
  bool ok = ane_decode_token(t, id, first, last, &b);
  d->begun = !t->lead_all || b.size;
  ok = ok && write_text(t, d, (const char *)b.data, b.size, out);
  ane_buffer_free(&b);
  return ok;
}

static bool silent(const struct ane_tokenizer *t, uint32_t id, bool skip) {
  return id >= t->n || !t->pieces[id].len || (skip && (t->types[id] == ANE_TOKEN_CONTROL || t->types[id] == ANE_TOKEN_UNKNOWN));
}

bool ane_decoder_push(const struct ane_tokenizer *t, struct ane_decoder *d, uint32_t id, bool skip, struct ane_buffer *out) {
  if (silent(t, id, skip)) return true;
  if (!t->place_last) return write_token(t, d, id, false, out);
  bool ok = !d->has_last || write_token(t, d, d->last, false, out);
  d->has_last = true;
  d->last = id;
  return ok;
}

bool ane_decoder_flush(const struct ane_tokenizer *t, struct ane_decoder *d, struct ane_buffer *out) {
  if (d->has_last && !write_token(t, d, d->last, true, out)) return false;
  if (!ane_buffer_append(out, d->held, d->n_held)) return false;
  *d = (struct ane_decoder){0};
  return true;
}

/* ---- Whole lists -------------------------------------------------------------------------------------------------*/

/* Appends a run of byte tokens that begins at ids[0]. *used: the number of its ids. */
static bool write_run(const struct ane_tokenizer *t, struct ane_decoder *d, const int32_t *ids, size_t n, bool skip, size_t *used,
                      struct ane_buffer *out) {
  struct ane_buffer bytes = {0};
  bool ok = true;
  size_t i = 0;
  for (; i < n && ok; i++) {
    if (silent(t, (uint32_t)ids[i], skip)) continue;
    int byte = ane_byte_value(t->pieces[ids[i]]);
    if (byte < 0) break;
    ok = ane_buffer_append(&bytes, &(char){(char)byte}, 1);
  }
  const char *s = (const char *)bytes.data;
  bool good = ok && ane_utf8_run(s, bytes.size) == bytes.size;
  if (good) ok = write_text(t, d, s, bytes.size, out);
  for (size_t k = 0; k < bytes.size && ok && !good; k++) ok = write_text(t, d, "\xEF\xBF\xBD", 3, out);
  d->begun = true;
  *used = i;
  ane_buffer_free(&bytes);
  return ok;
}

bool ane_tokenizer_decode(const struct ane_tokenizer *t, const int32_t *ids, size_t n, bool skip, bool replace,
                          struct ane_buffer *out) {
  struct ane_decoder d = {0};
  struct ane_buffer text = {0};
  bool ok = true;
  for (size_t i = 0, used = 1; i < n && ok; i += used, used = 1) {
    uint32_t id = (uint32_t)ids[i];
    if (replace && t->byte_runs && !silent(t, id, skip) && ane_byte_value(t->pieces[id]) >= 0)
      ok = write_run(t, &d, ids + i, n - i, skip, &used, &text);
    else
      ok = ane_decoder_push(t, &d, id, skip, &text);
  }
  ok = ok && ane_decoder_flush(t, &d, &text);
  if (ok && replace && ane_utf8_run((const char *)text.data, text.size) < text.size) {
    size_t len;
    char *good = ane_utf8_replace((const char *)text.data, text.size, &len);
    ok = good && ane_buffer_append(out, good, len);
    ane_free(good);
  } else if (ok) {
    ok = ane_buffer_append(out, text.data, text.size);
  }
  ane_buffer_free(&text);
  return ok;
}
