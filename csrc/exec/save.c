/* Saved sessions. A file is
 * "ANESTATE", then little endian: u32 version, u32 kv type, u64 fingerprint, u64 length, u64 flags (1: long rope factors), u64
 * lowest position that the rings hold, i32 ids[length], the used ranges of state in the order of state_each_used, u32 CRC-32
 * (zlib) of all before. The fingerprint implies heads and dimensions. The reserved context may differ between writer and
 * reader. */
#include "exec/session_internal.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

static const char magic[8] = "ANESTATE";
enum { VERSION = 1, HEADER = 48, FLAG_LONG_ROPE = 1 };

struct saver {
  const struct ane_session *s;
  struct ane_file_writer w;
  uint32_t crc;
  ane_status st;
  struct ane_error *err;
};

static bool save_bytes(struct saver *v, const void *data, size_t n) {
  v->crc = (uint32_t)crc32_z(v->crc, data, n);
  v->st = ane_file_write(&v->w, data, n, v->err);
  return v->st == ANE_OK;
}

static bool save_run(void *arg, int layer, size_t offset, size_t bytes) {
  struct saver *v = arg;
  return save_bytes(v, state_bytes(v->s, layer) + offset, bytes);
}

static void put_u32(uint8_t *p, uint32_t v) {
  for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}
static void put_u64(uint8_t *p, uint64_t v) {
  put_u32(p, (uint32_t)v);
  put_u32(p + 4, (uint32_t)(v >> 32));
}

ane_status ane_session_save(const struct ane_session *s, const char *path, struct ane_error *err) {
  struct saver v = {.s = s, .err = err};
  ane_status st = ane_file_create(&v.w, path, err);
  if (st) return st;
  uint8_t head[HEADER], crc[4];
  memcpy(head, magic, 8);
  put_u32(head + 8, VERSION);
  put_u32(head + 12, (uint32_t)s->kv_dtype);
  put_u64(head + 16, s->program->fingerprint);
  put_u64(head + 24, (uint64_t)s->length);
  put_u64(head + 32, s->long_rope ? FLAG_LONG_ROPE : 0);
  put_u64(head + 40, (uint64_t)s->ring_low);
  bool ok = save_bytes(&v, head, HEADER) && save_bytes(&v, s->ids, (size_t)s->length * sizeof *s->ids) &&
            state_each_used(s, save_run, &v);
  put_u32(crc, v.crc);
  if (ok) v.st = ane_file_write(&v.w, crc, 4, err);
  if (v.st == ANE_OK) v.st = ane_file_commit(&v.w, err);
  ane_file_abandon(&v.w);
  return v.st;
}

struct restorer {
  struct ane_session *s;
  struct ane_reader r;
  bool dry; /* only walks the file */
};

static bool restore_run(void *arg, int layer, size_t offset, size_t bytes) {
  struct restorer *v = arg;
  const uint8_t *data = ane_read_bytes(&v->r, bytes);
  if (data && !v->dry) memcpy(state_bytes(v->s, layer) + offset, data, bytes);
  return data != NULL;
}

/* Header fields beside length. */
struct saved {
  bool long_rope;
  int64_t ring_low;
};

static ane_status check_head(const struct ane_session *s, struct ane_reader *r, const char *path, uint64_t *length,
                             struct saved *more, struct ane_error *err) {
  const uint8_t *m = ane_read_bytes(r, 8);
  if (!m || memcmp(m, magic, 8) != 0) return ane_fail(err, ANE_FORMAT, "%s is not a saved session", path);
  uint32_t version = ane_read_u32(r), kv = ane_read_u32(r);
  uint64_t print = ane_read_u64(r);
  *length = ane_read_u64(r);
  more->long_rope = (ane_read_u64(r) & FLAG_LONG_ROPE) != 0;
  more->ring_low = (int64_t)ane_read_u64(r);
  if (r->bad) return ane_fail(err, ANE_FORMAT, "%s is cut short", path);
  if (version != VERSION)
    return ane_fail(err, ANE_UNSUPPORTED, "%s is a saved session of version %u; this program reads version %d", path, version,
                    VERSION);
  if (print != s->program->fingerprint)
    return ane_fail(err, ANE_STATE, "%s was saved with another model, or with other weights, activations or kernels", path);
  if (kv != (uint32_t)s->kv_dtype)
    return ane_fail(err, ANE_STATE, "%s holds kv of type %s, the session has %s", path,
                    kv < ANE_DTYPE_COUNT ? ane_dtype_info((ane_dtype)kv)->name : "?", ane_dtype_info(s->kv_dtype)->name);
  if (more->ring_low < 0 || (uint64_t)more->ring_low > *length)
    return ane_fail(err, ANE_FORMAT, "%s is damaged: wrong ring position", path);
  if (*length > (uint64_t)s->context)
    return ane_fail(err, ANE_RANGE, "%s holds %" PRIu64 " positions, the session has room for %" PRId64, path, *length,
                    s->context);
  return ANE_OK;
}

static ane_status restore_from(struct ane_session *s, const struct ane_map *map, const char *path, struct ane_error *err) {
  struct restorer v = {.s = s, .r = ane_reader_of(map->data, map->size), .dry = true};
  uint64_t length = 0;
  struct saved more = {0};
  ane_status st = check_head(s, &v.r, path, &length, &more, err);
  if (st) return st;
  const uint8_t *ids = ane_read_bytes(&v.r, length * sizeof *s->ids);
  struct ane_reader states = v.r;
  int64_t before = s->length;
  s->length = (int64_t)length; /* state_each_used walks what this length uses */
  bool whole = ids && state_each_used(s, restore_run, &v);
  size_t end = v.r.pos;
  uint32_t crc = ane_read_u32(&v.r);
  if (!whole || v.r.bad || v.r.pos != map->size || crc != (uint32_t)crc32_z(0, map->data, end)) {
    s->length = before;
    return ane_fail(err, ANE_FORMAT, "%s is damaged: %s", path,
                    !whole || v.r.bad      ? "cut short"
                    : v.r.pos != map->size ? "too long"
                                           : "wrong checksum");
  }
  for (uint64_t i = 0; i < length; i++)
    if ((int32_t)ane_load_u32(ids + 4 * i) < 0 || (int32_t)ane_load_u32(ids + 4 * i) >= s->program->n_ids) {
      s->length = before;
      return ane_fail(err, ANE_FORMAT, "%s is damaged: id out of range", path);
    }
  memcpy(s->ids, ids, (size_t)length * sizeof *s->ids);
  v.r = states;
  v.dry = false;
  state_each_used(s, restore_run, &v);
  s->long_rope = more.long_rope;
  s->ring_low = more.ring_low;
  s->rows = 0;
  return ANE_OK;
}

ane_status ane_session_restore(struct ane_session *s, const char *path, struct ane_error *err) {
  struct ane_map map;
  ane_status st = ane_map_open(&map, path, err);
  if (st) return st;
  st = restore_from(s, &map, path, err);
  ane_map_close(&map);
  return st;
}
