/* SentencePiece models: field numbers, types and defaults are those of sentencepiece_model.proto. */
#include "base/message.h"
#include "vocabulary/vocabulary.h"

#include <string.h>

static double float_of(uint64_t bits) {
  uint32_t u = (uint32_t)bits;
  float f;
  memcpy(&f, &u, sizeof f);
  return (double)f;
}

static struct ane_text text_of(const struct ane_message_field *f) { return (struct ane_text){(const char *)f->data, f->size}; }

/* A field of an unexpected type is ignored, by the rule of protocol buffers for unknown fields. */
static bool is(const struct ane_message_field *f, uint32_t number, ane_message_type type) {
  return f->number == number && f->type == type;
}

static ane_status read_piece(struct vocabulary *v, const struct ane_message_field *message, struct ane_error *err) {
  struct ane_reader r = ane_reader_of(message->data, message->size);
  struct vocabulary_entry e = {.text = {"", 0}, .id = (uint32_t)v->n, .type = ANE_TOKEN_NORMAL};
  struct ane_message_field f;
  while (ane_message_next(&r, &f)) {
    if (is(&f, 1, ANE_MESSAGE_BYTES)) e.text = text_of(&f);
    if (is(&f, 2, ANE_MESSAGE_32)) e.score = float_of(f.value);
    if (is(&f, 3, ANE_MESSAGE_VARINT)) e.type = f.value > UINT8_MAX ? UINT8_MAX : (uint8_t)f.value;
  }
  if (r.bad) return ane_fail(err, ANE_FORMAT, "piece %zu: the message is broken", v->n);
  if (!e.text.len) return ane_fail(err, ANE_FORMAT, "piece %zu is empty", v->n);
  if (e.type < ANE_TOKEN_NORMAL || e.type > ANE_TOKEN_BYTE)
    return ane_fail(err, ANE_FORMAT, "piece %zu has type %d, known are 1 to 6", v->n, e.type);
  if (ane_utf8_run(e.text.data, e.text.len) != e.text.len) return ane_fail(err, ANE_FORMAT, "piece %zu is not UTF-8", v->n);
  if (e.score != e.score) return ane_fail(err, ANE_FORMAT, "the score of piece %zu is not a number", v->n);
  if (v->n >= INT32_MAX - 1) return ane_fail(err, ANE_FORMAT, "more than 2^31 pieces");
  return vocabulary_add(v, &e) ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for %zu pieces", v->n);
}

static ane_status read_trainer(struct sentencepiece *s, const struct ane_message_field *message, struct ane_error *err) {
  struct ane_reader r = ane_reader_of(message->data, message->size);
  struct ane_message_field f;
  while (ane_message_next(&r, &f)) {
    if (is(&f, 3, ANE_MESSAGE_VARINT)) s->model_type = f.value > INT16_MAX ? -1 : (int)f.value;
    if (is(&f, 24, ANE_MESSAGE_VARINT)) s->whitespace_suffix = f.value != 0;
    if (is(&f, 35, ANE_MESSAGE_VARINT)) s->byte_fallback = f.value != 0;
    if (is(&f, 41, ANE_MESSAGE_VARINT)) s->bos = (int32_t)f.value;
    if (is(&f, 42, ANE_MESSAGE_VARINT)) s->eos = (int32_t)f.value;
    if (is(&f, 43, ANE_MESSAGE_VARINT)) s->pad = (int32_t)f.value;
    if (is(&f, 44, ANE_MESSAGE_BYTES)) s->unk_surface = text_of(&f);
  }
  return r.bad ? ane_fail(err, ANE_FORMAT, "trainer_spec: the message is broken") : ANE_OK;
}

static ane_status read_normaliser(struct sentencepiece *s, const struct ane_message_field *message, bool back,
                                  struct ane_error *err) {
  struct ane_reader r = ane_reader_of(message->data, message->size);
  struct ane_message_field f;
  while (ane_message_next(&r, &f)) {
    if (is(&f, 2, ANE_MESSAGE_BYTES)) *(back ? &s->denormaliser : &s->charsmap) = text_of(&f);
    if (back) continue;
    if (is(&f, 3, ANE_MESSAGE_VARINT)) s->add_dummy_prefix = f.value != 0;
    if (is(&f, 4, ANE_MESSAGE_VARINT)) s->remove_extra_whitespaces = f.value != 0;
    if (is(&f, 5, ANE_MESSAGE_VARINT)) s->escape_whitespaces = f.value != 0;
  }
  return r.bad ? ane_fail(err, ANE_FORMAT, "%snormalizer_spec: the message is broken", back ? "de" : "") : ANE_OK;
}

ane_status sentencepiece_read(struct sentencepiece *s, struct vocabulary *v, const void *data, size_t size,
                              struct ane_error *err) {
  static const char surface[] = " \xE2\x81\x87 ";
  struct ane_reader r = ane_reader_of(data, size);
  struct ane_message_field f;
  ane_status st = ANE_OK;
  *s = (struct sentencepiece){.model_type = 1, .bos = 1, .eos = 2, .pad = -1, .unk_surface = {surface, sizeof surface - 1}};
  s->add_dummy_prefix = s->remove_extra_whitespaces = s->escape_whitespaces = true;
  v->scored = true;
  while (!st && ane_message_next(&r, &f)) {
    if (is(&f, 1, ANE_MESSAGE_BYTES)) st = read_piece(v, &f, err);
    if (is(&f, 2, ANE_MESSAGE_BYTES)) st = read_trainer(s, &f, err);
    if (is(&f, 3, ANE_MESSAGE_BYTES)) st = read_normaliser(s, &f, false, err);
    if (is(&f, 5, ANE_MESSAGE_BYTES)) st = read_normaliser(s, &f, true, err);
  }
  if (!st && r.bad) st = ane_fail(err, ANE_FORMAT, "the message is broken at byte %zu", r.pos);
  if (!st && !v->n) st = ane_fail(err, ANE_FORMAT, "the model has no pieces");
  return st;
}
