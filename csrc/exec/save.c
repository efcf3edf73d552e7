/* Saved sessions: parts "ids" (i32 each), "past" (u32 kv type, u32 flags, u64 lowest position that the rings hold), "state" (its
 * used ranges in the order of state_each_used), "logits" (fp32, of the last token, if the last run kept them) and "note". The
 * fingerprint determines heads and dimensions; the context size may differ between writer and reader. */
#include "exec/session_recurrent.h"
#include "platform/map_guard.h"

#include <inttypes.h>
#include <string.h>

static const char engine[] = "recipe";
enum { FLAG_LONG_ROPE = 1, PAST = 16 };

static struct ane_saved_key key_of(const struct ane_session *s) {
  return (struct ane_saved_key){engine, s->program->fingerprint ^ ane_session_adapters_key(s)};
}

static bool save_range(void *arg, uint8_t *data, size_t bytes) { return ane_saved_write(arg, data, bytes) == ANE_OK; }

ane_status ane_session_save(const struct ane_session *s, const char *path, const struct ane_session_note *note,
                            struct ane_error *err) {
  struct ane_saved_writer w;
  struct ane_saved_key key = key_of(s);
  uint8_t past[PAST];
  size_t row = (size_t)s->program->vocab * sizeof(float);
  const float *logits = ane_session_logits(s, s->rows - 1);
  ane_store_u32(past, (uint32_t)s->kv_dtype);
  ane_store_u32(past + 4, s->long_rope ? FLAG_LONG_ROPE : 0);
  ane_store_u64(past + 8, (uint64_t)s->ring_low);
  ane_saved_create(&w, path, &key, err);
  ane_saved_begin_part(&w, "ids", (uint64_t)s->length * sizeof *s->ids);
  ane_saved_write(&w, s->ids, (size_t)s->length * sizeof *s->ids);
  ane_saved_begin_part(&w, "past", sizeof past);
  ane_saved_write(&w, past, sizeof past);
  ane_saved_begin_part(&w, "state", ane_session_kv_bytes(s));
  state_each_used(s, save_range, &w);
  if (logits) ane_saved_begin_part(&w, "logits", row), ane_saved_write(&w, logits, row);
  if (note->text) ane_saved_begin_part(&w, "note", note->bytes), ane_saved_write(&w, note->text, note->bytes);
  return ane_saved_commit(&w);
}

/* The contents of a file, after all of it has been checked against the session. */
struct found {
  const uint8_t *ids, *state, *logits; /* logits: NULL if there are none */
  int64_t length, ring_low;
  bool long_rope;
};

static ane_status find_past(const struct ane_session *s, const struct ane_saved *file, struct found *f, struct ane_error *err) {
  const uint8_t *past;
  ane_status st = ane_saved_need(file, "past", PAST, &past, err);
  if (st) return st;
  uint32_t kv = ane_load_u32(past);
  uint64_t low = ane_load_u64(past + 8);
  if (kv != (uint32_t)s->kv_dtype)
    return ane_fail(err, ANE_STATE, "%s holds kv of type %s, the session has %s", file->path,
                    kv < ANE_DTYPE_COUNT ? ane_dtype_info((ane_dtype)kv)->name : "?", ane_dtype_info(s->kv_dtype)->name);
  if (low > (uint64_t)f->length) return ane_fail(err, ANE_FORMAT, "%s is damaged: wrong ring position", file->path);
  f->long_rope = (ane_load_u32(past + 4) & FLAG_LONG_ROPE) != 0;
  f->ring_low = (int64_t)low;
  return ANE_OK;
}

static ane_status find_state(struct ane_session *s, const struct ane_saved *file, struct found *f, struct ane_error *err) {
  int64_t length = s->length;
  s->length = f->length; /* the state in the file has the bytes of this length */
  uint64_t bytes = ane_session_kv_bytes(s), row = 0;
  s->length = length;
  ane_status st = ane_saved_need(file, "state", bytes, &f->state, err);
  if (st) return st;
  f->logits = ane_saved_find(file, "logits", &row);
  if (f->logits && (f->length == 0 || row != (uint64_t)s->program->vocab * sizeof(float)))
    return ane_fail(err, ANE_FORMAT, "%s is damaged: wrong size of the logits", file->path);
  return f->logits ? session_room(s, 1, err) : ANE_OK;
}

static ane_status find_all(struct ane_session *s, const struct ane_saved *file, struct found *f, struct ane_error *err) {
  ane_status st = ane_saved_ids(file, s->program->n_ids, s->context, &f->ids, &f->length, err);
  if (!st) st = find_past(s, file, f, err);
  if (!st) st = find_state(s, file, f, err);
  return st;
}

/* arg: the position to read from next. */
static bool restore_range(void *arg, uint8_t *data, size_t bytes) {
  const uint8_t **from = arg;
  memcpy(data, *from, bytes);
  *from += bytes;
  return true;
}

static void adopt(struct ane_session *s, const struct found *f) {
  const uint8_t *state = f->state;
  int64_t whole = f->length / ANE_TILE;
  s->length = f->length;
  memcpy(s->ids, f->ids, (size_t)s->length * sizeof *s->ids);
  state_each_used(s, restore_range, &state);
  for (int64_t i = 0; i < whole; i++) s->pages[i]->whole = s->program->n_rings == 0;
  state_copy_borders(s, whole * ANE_TILE, f->length, false);
  s->long_rope = f->long_rope;
  s->ring_low = f->ring_low;
  recurrent_forget(s);
  s->rows = f->logits ? 1 : 0;
  if (!f->logits) return;
  s->want = ANE_WANT_LAST;
  memcpy(s->logits, f->logits, (size_t)s->program->vocab * sizeof *s->logits);
  s->best[0] = (int32_t)s->program->k->argmax(s->logits, s->program->vocab, &s->best_logit[0]);
}

ane_status ane_session_restore(struct ane_session *s, const char *path, struct ane_buffer *note, struct ane_error *err) {
  struct ane_saved file;
  struct ane_saved_key key = key_of(s);
  struct found f = {0};
  ane_status st = ane_saved_open(&file, path, &key, err);
  if (st) return st;
  st = find_all(s, &file, &f, err);
  if (!st) st = state_own(s, 0, f.length, err);
  if (!st) st = ane_saved_note(&file, note, err);
  if (!st) adopt(s, &f);
  if (!st && (st = ane_map_check(&file.map, err))) ane_session_rewind(s, 0, NULL); /* lost pages of the file read as zeros */
  ane_saved_close(&file);
  return st;
}
