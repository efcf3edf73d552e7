/* Reading weight files: see mlpackage.h for their layout. */
#include "formats/mlpackage/mlpackage_internal.h"

#include "base/alloc.h"
#include "base/search.h"

#include <inttypes.h>
#include <string.h>

struct record {
  uint32_t sentinel, code;
  uint64_t bytes, offset, padding;
};

static struct record load_record(const uint8_t *p) {
  return (struct record){ane_load_u32(p), ane_load_u32(p + 4), ane_load_u64(p + 8), ane_load_u64(p + 16), ane_load_u64(p + 24)};
}

/* ---- Walking over the records ------------------------------------------------------------------------------------------*/

/* Checks record `i` at byte `at`. On success its data lie within the file. */
static ane_status check_record(const struct ane_map *map, uint64_t i, uint64_t at, struct record *r, struct ane_error *err) {
  if (at > map->size || map->size - at < BLOB_RECORD)
    return ane_fail(err, ANE_FORMAT, "the file ends before blob %" PRIu64 " of those that its header counts", i + 1);
  *r = load_record(map->data + at);
  if (r->sentinel != BLOB_SENTINEL)
    return ane_fail(err, ANE_FORMAT, "blob %" PRIu64 " at byte %" PRIu64 ": the sentinel must be 0x%08x, but is 0x%08" PRIx32,
                    i + 1, at, BLOB_SENTINEL, r->sentinel);
  if (r->offset != at + BLOB_RECORD)
    return ane_fail(err, ANE_FORMAT,
                    "blob %" PRIu64 " at byte %" PRIu64 ": its data is at byte %" PRIu64 ", but must follow directly", i + 1, at,
                    r->offset);
  if (r->bytes > map->size - r->offset)
    return ane_fail(err, ANE_FORMAT,
                    "blob %" PRIu64 " at byte %" PRIu64 ": %" PRIu64 " bytes of data go beyond the %" PRIu64 " bytes of the file",
                    i + 1, at, r->bytes, map->size);
  if (r->padding > 7)
    return ane_fail(err, ANE_FORMAT, "blob %" PRIu64 " at byte %" PRIu64 ": %" PRIu64 " unused bits, expected fewer than 8",
                    i + 1, at, r->padding);
  return ANE_OK;
}

/* Collects the offsets of all records in `list`. */
static ane_status walk_records(const struct ane_map *map, struct ane_buffer *list, struct ane_error *err) {
  if (map->size < BLOB_HEADER) return ane_fail(err, ANE_FORMAT, "%" PRIu64 " bytes are not a weight file", map->size);
  uint32_t count = ane_load_u32(map->data), version = ane_load_u32(map->data + 4);
  if (version != BLOB_VERSION)
    return ane_fail(err, ANE_FORMAT, "version %" PRIu32 " of weight files, known is %d", version, BLOB_VERSION);
  uint64_t at = BLOB_HEADER;
  for (uint64_t i = 0; i < count; i++) {
    struct record r = {0};
    ane_status st = check_record(map, i, at, &r, err);
    if (st) return st;
    if (!ane_buffer_append(list, &at, sizeof at)) return ane_fail(err, ANE_NOMEM, "not enough memory");
    at = r.offset + r.bytes; /* no overflow: the data lie within the file */
    at += (BLOB_ALIGN - at % BLOB_ALIGN) % BLOB_ALIGN;
  }
  if (at < map->size)
    return ane_fail(err, ANE_FORMAT, "%" PRIu64 " bytes after the last of %" PRIu32 " blobs", map->size - at, count);
  return ANE_OK;
}

ane_status mlpackage_weights_open(struct ane_arena *arena, struct ane_mlpackage_file *f, const char *model_path,
                                  struct ane_error *err) {
  char q[ANE_QUOTE_TEXT];
  size_t skip = strlen(MLPACKAGE_PREFIX);
  ane_quote(q, f->name, strlen(f->name));
  if (strncmp(f->name, MLPACKAGE_PREFIX, skip) != 0)
    return ane_fail(err, ANE_FORMAT, "blob file \"%s\" must begin with " MLPACKAGE_PREFIX, q);
  const char *fault = ane_location_fault(f->name + skip);
  if (fault) return ane_fail(err, ANE_FORMAT, "blob file \"%s\" %s", q, fault);
  ane_status st = ane_map_open_beside(&f->map, model_path, f->name + skip, err);
  if (st) return st;
  struct ane_buffer list = {0};
  st = walk_records(&f->map, &list, err);
  if (!st) {
    uint64_t *records = ane_arena_alloc(arena, list.size);
    f->n_records = (uint32_t)(list.size / sizeof *records);
    f->used = ane_arena_alloc(arena, f->n_records);
    if (records && list.size) memcpy(records, list.data, list.size);
    f->records = records;
    if (!records || !f->used) st = ane_fail(err, ANE_NOMEM, "not enough memory");
  }
  ane_buffer_free(&list);
  return st ? ane_fail_in(err, st, "%s", q + skip) : ANE_OK;
}

/* ---- One blob ------------------------------------------------------------------------------------------------------*/

uint32_t mlpackage_weights_record(const struct ane_mlpackage_file *f, uint64_t offset) {
  return ane_find_u64(f->records, f->n_records, offset);
}

ane_status mlpackage_weights_find(struct ane_mlpackage_file *f, const struct ane_mil_value *v, const uint8_t **data, bool *fresh,
                                  struct ane_error *err) {
  ane_mil_dtype t = v->type.dtype;
  if (v->offset % BLOB_ALIGN)
    return ane_fail(err, ANE_FORMAT, "the blob's offset %" PRIu64 " is not a multiple of %d", v->offset, BLOB_ALIGN);
  uint32_t i = mlpackage_weights_record(f, v->offset);
  if (i == UINT32_MAX)
    return ane_fail(err, ANE_FORMAT, "there is no blob at %" PRIu64 " in the file of %" PRIu64 " bytes", v->offset, f->map.size);
  struct record r = load_record(f->map.data + v->offset);
  if (r.code != ane_mil_dtype_blob(t))
    return ane_fail(err, ANE_FORMAT, "the blob at %" PRIu64 " has type code %" PRIu32 ", but must have %" PRIu32 " for %s",
                    v->offset, r.code, ane_mil_dtype_blob(t), ane_mil_dtype_name(t));
  uint64_t bits = v->count * ane_mil_dtype_bits(t); /* no overflow: the type has been checked */
  if (r.bytes != v->bytes || r.padding != v->bytes * 8 - bits)
    return ane_fail(err, ANE_FORMAT,
                    "the blob at %" PRIu64 " has %" PRIu64 " bytes with %" PRIu64 " unused bits, but must have %" PRIu64
                    " with %" PRIu64,
                    v->offset, r.bytes, r.padding, v->bytes, v->bytes * 8 - bits);
  *fresh = !f->used[i];
  f->used[i] = true;
  *data = f->map.data + r.offset;
  return ANE_OK;
}
