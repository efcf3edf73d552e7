/* Saved sessions of imported graphs. A file is
 * "ANEGRAPH", then little endian: u32 version, u32 number of states, u64 fingerprint, u64 length, i32 ids[length]; for each
 * state u32 rank, u32 0, u64 dimensions, its float32 elements; at the end u32 CRC-32 (zlib) of all before. */
#include "interp/interp_lm.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

static const char magic[8] = "ANEGRAPH";
enum { VERSION = 1 };

/* ---- Writing -------------------------------------------------------------------------------------------------------*/

struct saver {
  struct ane_file_writer w;
  uint32_t crc;
  ane_status st;
  struct ane_error *err;
};

static void put(struct saver *v, const void *data, size_t n) {
  if (v->st || n == 0) return;
  v->crc = (uint32_t)crc32_z(v->crc, data, n);
  v->st = ane_file_write(&v->w, data, n, v->err);
}

static void put_number(struct saver *v, uint64_t n, size_t bytes) {
  uint8_t b[8];
  for (size_t i = 0; i < 8; i++) b[i] = (uint8_t)(n >> 8 * i);
  put(v, b, bytes);
}

ane_status ane_lm_save(const struct ane_lm_session *s, const char *path, struct ane_error *err) {
  struct saver v = {.err = err};
  v.st = ane_file_create(&v.w, path, err);
  if (v.st) return v.st;
  put(&v, magic, sizeof magic);
  put_number(&v, VERSION, 4);
  put_number(&v, (uint64_t)s->lm->n_states, 4);
  put_number(&v, s->lm->fingerprint, 8);
  put_number(&v, (uint64_t)s->length, 8);
  put(&v, s->ids, (size_t)s->length * sizeof *s->ids);
  for (int32_t i = 0; i < s->lm->n_states; i++) {
    const struct ane_dyn *t = &s->states[i];
    put_number(&v, (uint64_t)t->rank, 4);
    put_number(&v, 0, 4);
    for (int32_t k = 0; k < t->rank; k++) put_number(&v, (uint64_t)t->dim[k], 8);
    put(&v, t->data, (size_t)ane_dyn_bytes(t));
  }
  put_number(&v, v.crc, 4);
  if (!v.st) v.st = ane_file_commit(&v.w, err);
  ane_file_abandon(&v.w);
  return v.st;
}

/* ---- Reading -------------------------------------------------------------------------------------------------------*/

static ane_status check_head(const struct ane_lm_session *s, const struct ane_map *map, struct ane_reader *r, const char *path,
                             int64_t *length, struct ane_error *err) {
  const uint8_t *m = ane_read_bytes(r, sizeof magic);
  if (!m || memcmp(m, magic, sizeof magic) != 0)
    return ane_fail(err, ANE_FORMAT, "%s: is no saved session of an imported graph", path);
  uint32_t version = ane_read_u32(r), states = ane_read_u32(r);
  uint64_t print = ane_read_u64(r), n = ane_read_u64(r);
  if (version != VERSION)
    return ane_fail(err, ANE_UNSUPPORTED, "%s: is of version %" PRIu32 ", wanted %d", path, version, VERSION);
  if (print != s->lm->fingerprint || states != (uint32_t)s->lm->n_states)
    return ane_fail(err, ANE_STATE, "%s: was saved with another model", path);
  if (map->size < 36 || ane_load_u32(map->data + map->size - 4) != (uint32_t)crc32_z(0, map->data, (size_t)map->size - 4))
    return ane_fail(err, ANE_FORMAT, "%s: is damaged: the checksum does not fit", path);
  if (n > (uint64_t)s->context)
    return ane_fail(err, ANE_RANGE, "%s: holds %" PRIu64 " tokens, the context %" PRId64, path, n, s->context);
  *length = (int64_t)n;
  return ANE_OK;
}

static ane_status read_state(struct ane_lm_session *s, struct ane_reader *r, int32_t i, int64_t length, struct ane_dyn *t,
                             struct ane_error *err) {
  const struct lm_state *state = &s->lm->states[i];
  bool fits = ane_read_u32(r) == (uint32_t)state->first.rank && ane_read_u32(r) == 0;
  *t = state->first;
  t->block = NULL;
  for (int32_t k = 0; fits && k < t->rank; k++) {
    t->dim[k] = state->grows && k == 2 ? length : state->first.dim[k];
    fits = ane_read_u64(r) == (uint64_t)t->dim[k];
  }
  if (!fits || r->bad) return ane_fail(err, ANE_STATE, "a state has another shape");
  ane_status st = ane_dyn_alloc(&s->memory, t, err);
  if (st) return st;
  const uint8_t *data = ane_read_bytes(r, ane_dyn_bytes(t));
  if (!data) return ane_fail(err, ANE_FORMAT, "ends early");
  memcpy(ane_dyn_data(t), data, (size_t)ane_dyn_bytes(t));
  return ANE_OK;
}

static ane_status read_all(struct ane_lm_session *s, struct ane_reader *r, int64_t length, struct ane_dyn *states,
                           struct ane_error *err) {
  const uint8_t *ids = ane_read_bytes(r, (uint64_t)length * sizeof *s->ids);
  if (!ids) return ane_fail(err, ANE_FORMAT, "ends early");
  for (int64_t i = 0; i < length; i++)
    if (ane_load_u32(ids + 4 * i) >= (uint64_t)s->lm->vocab)
      return ane_fail(err, ANE_FORMAT, "holds an id beyond the vocabulary");
  ane_status st = ANE_OK;
  for (int32_t i = 0; !st && i < s->lm->n_states; i++) st = read_state(s, r, i, length, &states[i], err);
  if (!st && ane_reader_left(r) != 4) st = ane_fail(err, ANE_FORMAT, "has bytes behind its end");
  if (!st) st = lm_reserve_ids(s, length, err);
  if (st) return st;
  lm_drop_logits(s);
  if (length) memcpy(s->ids, ids, (size_t)length * sizeof *s->ids);
  s->length = length;
  for (int32_t i = 0; i < s->lm->n_states; i++) {
    ane_dyn_drop(&s->memory, &s->states[i]);
    s->states[i] = states[i];
    states[i] = (struct ane_dyn){0};
  }
  return ANE_OK;
}

ane_status ane_lm_restore(struct ane_lm_session *s, const char *path, struct ane_error *err) {
  struct ane_map map;
  ane_status st = ane_map_open(&map, path, err);
  if (st) return st;
  struct ane_reader r = ane_reader_of(map.data, (size_t)map.size);
  int64_t length = 0;
  struct ane_error own;
  struct ane_dyn *states = NULL;
  st = check_head(s, &map, &r, path, &length, err);
  if (!st) {
    states = ane_calloc((size_t)s->lm->n_states + 1, sizeof *states);
    st = states ? read_all(s, &r, length, states, &own) : interp_no_memory(&own);
    if (st) ane_fail(err, st, "%s: %s", path, own.text);
  }
  for (int32_t i = 0; states && i < s->lm->n_states; i++) ane_dyn_drop(&s->memory, &states[i]);
  ane_free(states);
  ane_map_close(&map);
  return st;
}
