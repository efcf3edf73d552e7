/* Writes an asset in one pass: the resources as they come, then the program. MLIR allows sections in any order, so only the
 * length of the resource section is filled in at the end. */
#include "base/alloc.h"
#include "base/hash64.h"
#include "base/sha256.h"
#include "formats/aimodel/ai_internal.h"
#include "formats/aimodel/ai_notes.h"
#include "formats/formats_internal.h"
#include "platform/map_guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PRODUCER "ane"
enum { BUFFER_SIZE = 1 << 18, HASH_BYTES = 1 << 24 };

struct ane_aimodel_writer {
  struct ane_folder_writer folder;
  struct ane_folder_file file;
  struct ane_buffer entries;  /* of uint64_t, by resource: bytes with the header */
  struct ane_buffer sizes;    /* of uint64_t, by resource: bytes of its data */
  uint64_t at, left;          /* position in the file; missing bytes of the current blob */
  uint64_t length_at, begins; /* offsets of the resource section's length and first byte */
  uint8_t *pending;           /* BUFFER_SIZE bytes; the first n_pending are not written yet */
  size_t n_pending;
  bool broken; /* a write has failed */
  bool resumes;
  /* if it resumes: */
  struct ai_notes notes;
  struct ane_hash64 hash;   /* of the current blob's data so far */
  struct ane_buffer hashes; /* of uint64_t, by resource, of complete blobs */
};

static ane_status flush(struct ane_aimodel_writer *w, struct ane_error *err) {
  ane_status st = ane_folder_write(&w->file, w->pending, w->n_pending, err);
  w->n_pending = 0;
  return st;
}

static ane_status append(struct ane_aimodel_writer *w, const void *data, size_t size, struct ane_error *err) {
  w->at += size;
  ane_status st = w->n_pending + size > BUFFER_SIZE ? flush(w, err) : ANE_OK;
  if (!st && size > BUFFER_SIZE) {
    st = ane_folder_write(&w->file, data, size, err);
  } else if (!st && size) {
    memcpy(w->pending + w->n_pending, data, size);
    w->n_pending += size;
  }
  w->broken = w->broken || st;
  return st;
}

/* Puts the asset's path before a message that names a file in it. */
static ane_status in_asset(const struct ane_aimodel_writer *w, ane_status st, struct ane_error *err) {
  return st ? ane_fail_in(err, st, "%s", ane_path_tail(w->folder.path)) : ANE_OK;
}

static ane_status append_number(struct ane_aimodel_writer *w, uint64_t v, struct ane_error *err) {
  uint8_t bytes[AI_VARINT];
  return append(w, bytes, ai_varint(bytes, v), err);
}

static ane_status pad(struct ane_aimodel_writer *w, struct ane_error *err) {
  uint8_t bytes[AI_ALIGN];
  memset(bytes, AI_PAD, sizeof bytes);
  return append(w, bytes, (size_t)(-w->at % AI_ALIGN), err);
}

/* Writes magic, version, producer and the head of the resource section, with a placeholder for its length. */
static ane_status begin(struct ane_aimodel_writer *w, struct ane_error *err) {
  static const uint8_t magic[] = {'M', 'L', 0xEF, 'R', AI_BYTECODE << 1 | 1}, section = AI_RESOURCES | 0x80;
  uint8_t length[AI_VARINT];
  ai_varint_wide(length, 0);
  ane_status st = append(w, magic, sizeof magic, err);
  if (!st) st = append(w, PRODUCER, sizeof PRODUCER, err);
  if (!st) st = append(w, &section, 1, err);
  w->length_at = w->at;
  if (!st) st = append(w, length, sizeof length, err);
  if (!st) st = append_number(w, AI_ALIGN, err);
  if (!st) st = pad(w, err);
  w->begins = w->at;
  return st;
}

static ane_status open_folder(struct ane_aimodel_writer *w, const char *path, struct ane_error *err) {
  if (!w->resumes) return ane_folder_create(&w->folder, path, err);
  ane_status st = ane_folder_resume(&w->folder, path, err);
  return st ? st : ai_notes_begin(&w->notes, &w->folder, err);
}

static ane_status create(struct ane_aimodel_writer **out, const char *path, bool resumes, struct ane_error *err) {
  *out = NULL;
  ane_status st = ane_folder_replaceable(path, "main.mlirb", "an asset", err);
  if (st) return st;
  struct ane_aimodel_writer *w = ane_calloc(1, sizeof *w);
  if (!w) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  w->file.fd = w->notes.file.fd = -1;
  w->resumes = resumes;
  w->pending = ane_malloc(BUFFER_SIZE);
  st = w->pending ? open_folder(w, path, err) : ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  if (!st) st = ane_folder_open(&w->folder, "main.mlirb", &w->file, err);
  if (!st) st = begin(w, err);
  if (st)
    ane_aimodel_abandon(w);
  else
    *out = w;
  return st;
}

ane_status ane_aimodel_create(struct ane_aimodel_writer **out, const char *path, struct ane_error *err) {
  return create(out, path, false, err);
}

ane_status ane_aimodel_resume(struct ane_aimodel_writer **out, const char *path, struct ane_error *err) {
  return create(out, path, true, err);
}

void ane_aimodel_abandon(struct ane_aimodel_writer *w) {
  if (!w) return;
  ane_folder_close(&w->file);
  if (w->resumes) {
    ai_notes_close(&w->notes);
    ane_folder_leave(&w->folder);
  }
  ane_folder_abandon(&w->folder);
  ane_buffer_free(&w->entries);
  ane_buffer_free(&w->sizes);
  ane_buffer_free(&w->hashes);
  ane_free(w->pending);
  ane_free(w);
}

/* Fails unless the current blob is complete. */
static ane_status check_complete(const struct ane_aimodel_writer *w, struct ane_error *err) {
  if (w->broken) return ane_fail(err, ANE_IO, "the weights could not be written");
  return w->left ? ane_fail(err, ANE_INVALID, "the last blob lacks %" PRIu64 " bytes", w->left) : ANE_OK;
}

ane_status ane_aimodel_blob(struct ane_aimodel_writer *w, const struct ane_ai_type *type, int32_t *resource,
                            struct ane_error *err) {
  uint64_t count, bytes, from = w->at;
  char text[ANE_AI_TYPE_TEXT];
  ane_status st = check_complete(w, err);
  if (st) return st;
  if (type->kind != ANE_AI_TENSOR || !ane_ai_count(type, &count) || !ane_ai_bytes(type->dtype, count, &bytes) || !bytes)
    return ane_fail(err, ANE_INVALID, "%s: is not a tensor type of known size with elements", ane_ai_type_text(text, type));
  size_t n = w->entries.size / sizeof from;
  if (n == INT32_MAX) return ane_fail(err, ANE_INVALID, "more blobs than an asset can count");
  st = append_number(w, AI_ALIGN, err);
  if (!st) st = append_number(w, bytes, err);
  if (!st) st = pad(w, err);
  if (st) return in_asset(w, st, err);
  uint64_t entry = w->at - from + bytes;
  if (!ane_buffer_append(&w->entries, &entry, sizeof entry) || !ane_buffer_append(&w->sizes, &bytes, sizeof bytes))
    return ane_fail(err, ANE_NOMEM, "not enough memory");
  w->left = bytes;
  w->hash = (struct ane_hash64){0};
  *resource = (int32_t)n;
  return ANE_OK;
}

ane_status ane_aimodel_data(struct ane_aimodel_writer *w, const void *data, size_t size, struct ane_error *err) {
  if (size > w->left) return ane_fail(err, ANE_INVALID, "%zu bytes for a blob with %" PRIu64 " bytes left", size, w->left);
  w->left -= size;
  if (w->resumes) {
    ane_hash64_add(&w->hash, data, size);
    uint64_t sum = w->left ? 0 : ane_hash64_end(&w->hash);
    if (!w->left && !ane_buffer_append(&w->hashes, &sum, sizeof sum)) return ane_fail(err, ANE_NOMEM, "not enough memory");
  }
  return in_asset(w, append(w, data, size, err), err);
}

/* ---- Notes ----------------------------------------------------------------------------------------------------------*/

ane_status ane_aimodel_note(struct ane_aimodel_writer *w, const char *key, size_t len, const void *data, size_t size,
                            int32_t resource, struct ane_error *err) {
  ane_status st = w->resumes ? ane_maps_check(err) : ANE_OK; /* what was written may come from a file that has lost pages */
  if (st || !w->resumes) return st;
  const uint64_t *entries = (const void *)w->entries.data, *sizes = (const void *)w->sizes.data,
                 *hashes = (const void *)w->hashes.data;
  if (resource < 0 || (size_t)resource >= w->hashes.size / sizeof *hashes)
    return ane_fail(err, ANE_INVALID, "resource %d is not complete", (int)resource);
  uint64_t end = w->begins;
  for (int32_t i = 0; i <= resource; i++) end += entries[i];
  st = flush(w, err); /* the file holds the bytes before the notes say so */
  if (st) return w->broken = true, in_asset(w, st, err);
  st = ai_notes_add(&w->notes, key, len, data, size, end - sizes[resource], sizes[resource], hashes[resource], err);
  return in_asset(w, st, err);
}

bool ane_aimodel_noted(const struct ane_aimodel_writer *w, const char *key, size_t len, struct ane_aimodel_note *out) {
  return w->resumes && ai_notes_find(&w->notes, key, len, out);
}

/* ---- Commit ---------------------------------------------------------------------------------------------------------*/

/* Fails unless the resource of each constant was written with the bytes of its type. */
static ane_status check_resources(const struct ane_aimodel_writer *w, const struct ane_ai_program *p, struct ane_error *err) {
  const uint64_t *sizes = (const void *)w->sizes.data;
  int32_t n = (int32_t)(w->sizes.size / sizeof *sizes);
  for (uint32_t i = 0; i < p->n_functions; i++)
    for (uint32_t j = 0; j < p->functions[i].n_ops; j++) {
      const struct ane_ai_data *d = &p->functions[i].ops[j]->data;
      if (p->functions[i].ops[j]->id != ANE_AI_CONSTANT || d->resource < 0) continue;
      if (d->resource >= n || sizes[d->resource] != d->bytes)
        return ane_fail(err, ANE_INVALID, "function %.64s: no resource %d of %" PRIu64 " bytes was written", p->functions[i].name,
                        (int)d->resource, d->bytes);
    }
  return ANE_OK;
}

static ane_status end_program(struct ane_aimodel_writer *w, const struct ane_ai_program *p, struct ane_error *err) {
  struct ane_buffer rest = {0};
  uint8_t length[AI_VARINT];
  ai_varint_wide(length, w->at - w->begins);
  ane_status st = ai_pack(p, (const void *)w->entries.data, (uint32_t)(w->entries.size / sizeof(uint64_t)), &rest, err);
  if (!st) st = append(w, rest.data, rest.size, err);
  if (!st) st = flush(w, err);
  if (!st) st = ane_folder_overwrite(&w->file, w->length_at, length, sizeof length, err);
  ane_buffer_free(&rest);
  return st ? st : ane_folder_sync(&w->file, err);
}

static ane_status write_file(struct ane_aimodel_writer *w, const char *name, const void *data, size_t size,
                             struct ane_error *err) {
  struct ane_folder_file f;
  ane_status st = ane_folder_open(&w->folder, name, &f, err);
  if (st) return st;
  st = ane_folder_write(&f, data, size, err);
  if (!st) return ane_folder_sync(&f, err);
  ane_folder_close(&f);
  return st;
}

static uint8_t nibble(char c) { return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10); }

/* Hashes the finished file: the section's length, which is near its start, is written last. */
static ane_status write_hash(struct ane_aimodel_writer *w, struct ane_error *err) {
  struct ane_map map;
  struct ane_sha256 sha;
  char text[ANE_SHA256_TEXT];
  uint8_t raw[32];
  char *path = ane_calloc(1, strlen(w->folder.temp) + sizeof "/main.mlirb");
  if (!path) return ane_fail(err, ANE_NOMEM, "not enough memory");
  sprintf(path, "%s/main.mlirb", w->folder.temp); /* room: as allocated */
  ane_status st = ane_map_open(&map, path, err);
  ane_free(path);
  if (st) return st;
  ane_sha256_begin(&sha);
  for (uint64_t from = 0; from < map.size; from += HASH_BYTES) {
    size_t size = (size_t)ANE_MIN((uint64_t)HASH_BYTES, map.size - from);
    ane_sha256_add(&sha, map.data + from, size);
    ane_map_drop(&map, from, size);
  }
  ane_sha256_end(&sha, text);
  ane_map_close(&map);
  for (int i = 0; i < 32; i++) raw[i] = (uint8_t)(nibble(text[2 * i]) << 4 | nibble(text[2 * i + 1]));
  return write_file(w, "main.hash", raw, sizeof raw, err);
}

ane_status ane_aimodel_commit(struct ane_aimodel_writer *w, const struct ane_ai_program *p, struct ane_error *err) {
  static const char metadata[] = "{\n  \"assetVersion\" : \"2.0\",\n  \"producer\" : \"" PRODUCER "\"\n}\n";
  ane_status st = check_complete(w, err);
  if (!st) st = ane_ai_verify(p, err);
  if (!st) st = check_resources(w, p, err);
  if (!st) st = end_program(w, p, err);
  if (!st) st = write_hash(w, err);
  if (!st) st = write_file(w, "metadata.json", metadata, sizeof metadata - 1, err);
  if (!st && w->resumes) st = ai_notes_remove(&w->notes, &w->folder, err);
  if (st && w->folder.path) ane_fail_in(err, st, "%s", ane_path_tail(w->folder.path));
  if (!st) st = ane_folder_commit(&w->folder, err);
  ane_aimodel_abandon(w); /* frees the writer; after a commit there is nothing to remove */
  return st;
}
