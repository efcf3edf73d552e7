/* Tokens to bytes, a stream at a time. */
#include "base/bytes.h"
#include "text/text_internal.h"

#include <string.h>

bool ane_decoder_push(const struct ane_tokenizer *t, struct ane_decoder *d, uint32_t id, bool skip, struct ane_buffer *out) {
  if (id >= t->n || (skip && (t->types[id] == ANE_TOKEN_CONTROL || t->types[id] == ANE_TOKEN_UNKNOWN))) return true;
  struct ane_text s = t->bytes[id];
  if (!s.len) return true;
  bool strip = !d->begun && t->strip_space && s.data[0] == ' ';
  d->begun = true;
  if (strip && s.len == 1) return true;
  s.data += strip;
  s.len -= strip;
  size_t old = out->size;
  if (!ane_buffer_reserve(out, d->n_held + s.len)) return false;
  memcpy(out->data + out->size, d->held, d->n_held);
  out->size += d->n_held;
  memcpy(out->data + out->size, s.data, s.len);
  out->size += s.len;
  size_t whole = ane_utf8_whole((const char *)out->data + old, out->size - old);
  d->n_held = (uint8_t)(out->size - old - whole);
  memcpy(d->held, out->data + old + whole, d->n_held);
  out->size = old + whole;
  return true;
}

bool ane_decoder_flush(struct ane_decoder *d, struct ane_buffer *out) {
  if (!ane_buffer_append(out, d->held, d->n_held)) return false;
  *d = (struct ane_decoder){0};
  return true;
}
