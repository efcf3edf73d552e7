/* Files of saved sessions: a key, and named parts. */
#include "session/session.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

static const char magic[] = "ANESTATE", end_name[] = "end";
enum { MAGIC = 8, VERSION = 2, ENGINE = 16, HEADER = 40, PART_HEAD = 12, END_NAME = 3, CRC = 4 };

/* ---- Writing -------------------------------------------------------------------------------------------------------*/

ane_status ane_saved_create(struct ane_saved_writer *w, const char *path, const struct ane_saved_key *key,
                            struct ane_error *err) {
  uint8_t head[HEADER] = {0};
  *w = (struct ane_saved_writer){.err = err};
  memcpy(head, magic, MAGIC);
  ane_store_u32(head + 8, VERSION);
  ane_store_u32(head + 12, ANE_ARITHMETIC);
  ane_store_u64(head + 16, key->model);
  memcpy(head + 24, key->engine, ANE_MIN(strlen(key->engine), (size_t)ENGINE - 1));
  w->status = ane_file_create(&w->file, path, err);
  return ane_saved_write(w, head, sizeof head);
}

ane_status ane_saved_write(struct ane_saved_writer *w, const void *data, size_t n) {
  if (w->status || n == 0) return w->status;
  w->crc = (uint32_t)crc32_z(w->crc, data, n);
  return w->status = ane_file_write(&w->file, data, n, w->err);
}

ane_status ane_saved_begin_part(struct ane_saved_writer *w, const char *name, uint64_t bytes) {
  uint8_t head[PART_HEAD];
  ane_store_u32(head, (uint32_t)strlen(name));
  ane_store_u64(head + 4, bytes);
  ane_saved_write(w, head, sizeof head);
  return ane_saved_write(w, name, strlen(name));
}

ane_status ane_saved_commit(struct ane_saved_writer *w) {
  uint8_t crc[CRC];
  ane_saved_begin_part(w, end_name, sizeof crc);
  ane_store_u32(crc, w->crc);
  ane_saved_write(w, crc, sizeof crc);
  if (!w->status) w->status = ane_file_commit(&w->file, w->err);
  ane_file_abandon(&w->file);
  return w->status;
}

/* ---- Reading -------------------------------------------------------------------------------------------------------*/

static bool next(struct ane_reader *r, struct ane_saved_part *out) {
  out->name_bytes = ane_read_u32(r);
  out->bytes = ane_read_u64(r);
  out->name = (const char *)ane_read_bytes(r, out->name_bytes);
  out->data = ane_read_bytes(r, out->bytes);
  return !r->bad;
}

static bool is_named(const struct ane_saved_part *p, const char *name) {
  return p->name_bytes == strlen(name) && memcmp(p->name, name, p->name_bytes) == 0;
}

/* Walks all parts to the end of the file, and checks the last one. */
static ane_status check_parts(struct ane_saved *s, struct ane_error *err) {
  struct ane_reader r = s->parts;
  struct ane_saved_part part;
  const char *why = "cut short";
  while (next(&r, &part)) {
    if (!is_named(&part, end_name)) continue;
    size_t whole = r.pos - (size_t)part.bytes;
    if (ane_reader_left(&r) > 0)
      why = "too long";
    else if (part.bytes != CRC || ane_load_u32(part.data) != (uint32_t)crc32_z(0, s->map.data, whole))
      why = "wrong checksum";
    else
      return s->parts.size = whole - PART_HEAD - END_NAME, ANE_OK;
    break;
  }
  return ane_fail(err, ANE_FORMAT, "%s is damaged: %s", s->path, why);
}

static ane_status check_key(const struct ane_saved *s, const struct ane_saved_key *key, struct ane_error *err) {
  const uint8_t *head = s->map.data;
  char engine[ENGINE];
  memcpy(engine, head + 24, ENGINE);
  engine[ENGINE - 1] = 0;
  if (strcmp(engine, key->engine) != 0)
    return ane_fail(err, ANE_STATE, "%s was saved with engine %s, the session runs on engine %s", s->path, engine, key->engine);
  if (ane_load_u64(head + 16) != key->model)
    return ane_fail(err, ANE_STATE, "%s was saved with another model, or with other weights, activations or kernels", s->path);
  if (ane_load_u32(head + 12) != ANE_ARITHMETIC)
    return ane_fail(err, ANE_STATE,
                    "%s was saved with version %" PRIu32 " of the arithmetic; this program computes with version %d", s->path,
                    ane_load_u32(head + 12), ANE_ARITHMETIC);
  return ANE_OK;
}

ane_status ane_saved_open(struct ane_saved *out, const char *path, const struct ane_saved_key *key, struct ane_error *err) {
  *out = (struct ane_saved){.path = path};
  ane_status st = ane_map_open(&out->map, path, err);
  if (st) return st;
  const struct ane_map *m = &out->map;
  if (m->size < MAGIC || memcmp(m->data, magic, MAGIC) != 0)
    st = ane_fail(err, ANE_FORMAT, "%s is not a saved session", path);
  else if (m->size < HEADER)
    st = ane_fail(err, ANE_FORMAT, "%s is damaged: cut short", path);
  else if (ane_load_u32(m->data + 8) != VERSION)
    st = ane_fail(err, ANE_STATE, "%s is a saved session of version %" PRIu32 "; this program reads version %d", path,
                  ane_load_u32(m->data + 8), VERSION);
  out->parts = ane_reader_of(m->data, (size_t)m->size);
  out->parts.pos = HEADER;
  if (!st) st = check_parts(out, err);
  if (!st) st = check_key(out, key, err);
  if (st) ane_saved_close(out);
  return st;
}

void ane_saved_close(struct ane_saved *s) {
  ane_map_close(&s->map);
  *s = (struct ane_saved){0};
}

bool ane_saved_next(const struct ane_saved *s, size_t *at, struct ane_saved_part *out) {
  struct ane_reader r = s->parts;
  if (*at) r.pos = *at;
  if (ane_reader_left(&r) == 0 || !next(&r, out)) return false;
  *at = r.pos;
  return true;
}

const uint8_t *ane_saved_find(const struct ane_saved *s, const char *name, uint64_t *bytes) {
  struct ane_saved_part part;
  for (size_t at = 0; ane_saved_next(s, &at, &part);) {
    if (!is_named(&part, name)) continue;
    *bytes = part.bytes;
    return part.data;
  }
  return NULL;
}

ane_status ane_saved_need(const struct ane_saved *s, const char *name, uint64_t bytes, const uint8_t **data,
                          struct ane_error *err) {
  uint64_t has = 0;
  *data = ane_saved_find(s, name, &has);
  if (!*data) return ane_fail(err, ANE_FORMAT, "%s is damaged: there is no part %s", s->path, name);
  if (has != bytes)
    return ane_fail(err, ANE_FORMAT, "%s is damaged: part %s has %" PRIu64 " bytes, but must have %" PRIu64, s->path, name, has,
                    bytes);
  return ANE_OK;
}

ane_status ane_saved_ids(const struct ane_saved *s, int64_t n_ids, int64_t context, const uint8_t **ids, int64_t *length,
                         struct ane_error *err) {
  uint64_t bytes = 0;
  *ids = ane_saved_find(s, "ids", &bytes);
  *length = (int64_t)(bytes / sizeof(int32_t));
  if (!*ids || bytes % sizeof(int32_t)) return ane_fail(err, ANE_FORMAT, "%s is damaged: no list of ids", s->path);
  if (*length > context)
    return ane_fail(err, ANE_RANGE, "%s holds %" PRId64 " positions, the session has room for %" PRId64, s->path, *length,
                    context);
  for (int64_t i = 0; i < *length; i++)
    if (ane_load_u32(*ids + 4 * i) >= (uint64_t)n_ids)
      return ane_fail(err, ANE_FORMAT, "%s is damaged: id out of range", s->path);
  return ANE_OK;
}

ane_status ane_saved_note(const struct ane_saved *s, struct ane_buffer *note, struct ane_error *err) {
  uint64_t bytes = 0;
  const uint8_t *text = ane_saved_find(s, "note", &bytes);
  if (!text || (ane_buffer_reserve(note, 1) && ane_buffer_append(note, text, (size_t)bytes))) return ANE_OK;
  return ane_fail(err, ANE_NOMEM, "no memory for the note of %s", s->path);
}
