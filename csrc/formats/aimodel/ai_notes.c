/* Files of notes: main.notes beside main.mlirb, and old.notes and old.mlirb of an interrupted writer. They are in the byte order
 * of the machine, which alone reads them. */
#include "formats/aimodel/ai_notes.h"

#include "base/alloc.h"
#include "base/hash64.h"

#include <stdio.h>
#include <string.h>

#define MAGIC 0x31456f4e656e61ull

struct record {
  uint64_t magic, key, size; /* bytes of the key and of the data, which follow */
  uint64_t from, count;      /* range of the asset's file */
  uint64_t bytes;            /* hash of that range */
  uint64_t hash;             /* of the fields above, the key and the data */
};

static uint64_t hash_of(const struct record *r, const void *key, const void *data) {
  struct ane_hash64 h = {0};
  ane_hash64_add(&h, r, offsetof(struct record, hash));
  ane_hash64_add(&h, key, (size_t)r->key);
  ane_hash64_add(&h, data, (size_t)r->size);
  return ane_hash64_end(&h);
}

/* ---- Reading -----------------------------------------------------------------------------------------------------------*/

/* Reads the record at `at`. False: the file ends there, or the record is broken. */
static bool read_record(const struct ane_map *m, uint64_t at, struct record *r) {
  if (at > m->size || m->size - at < sizeof *r) return false;
  memcpy(r, m->data + at, sizeof *r);
  uint64_t left = m->size - at - sizeof *r;
  if (r->magic != MAGIC || r->key > left || r->size > left - r->key) return false;
  const uint8_t *key = m->data + at + sizeof *r;
  return hash_of(r, key, key + r->key) == r->hash;
}

static uint64_t record_bytes(const struct record *r) { return sizeof *r + r->key + r->size; }

static uint64_t count_records(const struct ane_map *m) {
  struct record r;
  uint64_t n = 0;
  for (uint64_t at = 0; read_record(m, at, &r); at += record_bytes(&r)) n++;
  return n;
}

/* The path of a file in the folder. NULL: no memory. */
static char *path_of(const struct ane_folder_writer *folder, const char *name) {
  size_t room = strlen(folder->temp) + strlen(name) + 2;
  char *path = ane_calloc(1, room);
  if (path) snprintf(path, room, "%s/%s", folder->temp, name);
  return path;
}

/* Maps a file of the folder. A file that is missing or cannot be read gives an empty map. */
static void map_file(const struct ane_folder_writer *folder, const char *name, struct ane_map *out) {
  char *path = path_of(folder, name);
  *out = (struct ane_map){0};
  if (path && ane_map_open(out, path, NULL)) *out = (struct ane_map){0};
  ane_free(path);
}

static bool rename_file(const struct ane_folder_writer *folder, const char *from, const char *to) {
  char *a = path_of(folder, from), *b = path_of(folder, to);
  bool ok = a && b && rename(a, b) == 0;
  ane_free(a);
  ane_free(b);
  return ok;
}

static bool index_records(struct ai_notes *n) {
  struct record r;
  for (uint64_t at = 0; at < UINT32_MAX && read_record(&n->old, at, &r); at += record_bytes(&r))
    if (!ane_strmap_put(&n->known, (const char *)n->old.data + at + sizeof r, (size_t)r.key, (uint32_t)at, NULL)) return false;
  return true;
}

/* ---- The folder ----------------------------------------------------------------------------------------------------------*/

static ane_status remove_pair(struct ane_folder_writer *folder, const char *notes, const char *file, struct ane_error *err) {
  ane_status st = ane_folder_remove(folder, notes, err);
  return st ? st : ane_folder_remove(folder, file, err);
}

/* Of two interrupted writers, keeps the files of the one with more records. A kill between the two renames leaves records whose
 * hashes do not fit; they are not used. */
static ane_status set_aside(struct ane_folder_writer *folder, struct ane_error *err) {
  struct ane_map last, old;
  map_file(folder, "main.notes", &last);
  map_file(folder, "old.notes", &old);
  bool better = count_records(&last) > count_records(&old);
  ane_map_close(&last);
  ane_map_close(&old);
  if (better && rename_file(folder, "main.notes", "old.notes")) (void)rename_file(folder, "main.mlirb", "old.mlirb");
  ane_status st = remove_pair(folder, "main.notes", "main.mlirb", err);
  if (!st) st = remove_pair(folder, "main.hash", "metadata.json", err); /* of a writer that was killed in its commit */
  return st;
}

ane_status ai_notes_begin(struct ai_notes *n, struct ane_folder_writer *folder, struct ane_error *err) {
  *n = (struct ai_notes){.file = {-1, "main.notes"}};
  ane_status st = set_aside(folder, err);
  if (st) return st;
  map_file(folder, "old.notes", &n->old);
  map_file(folder, "old.mlirb", &n->bytes);
  if (!index_records(n)) return ane_fail(err, ANE_NOMEM, "not enough memory");
  return ane_folder_open(folder, "main.notes", &n->file, err);
}

ane_status ai_notes_remove(struct ai_notes *n, struct ane_folder_writer *folder, struct ane_error *err) {
  ane_folder_close(&n->file);
  ane_status st = remove_pair(folder, "old.notes", "old.mlirb", err);
  return st ? st : ane_folder_remove(folder, "main.notes", err);
}

void ai_notes_close(struct ai_notes *n) {
  ane_folder_close(&n->file);
  ane_map_close(&n->old);
  ane_map_close(&n->bytes);
  ane_strmap_free(&n->known);
}

/* ---- Records -------------------------------------------------------------------------------------------------------------*/

ane_status ai_notes_add(struct ai_notes *n, const char *key, size_t len, const void *data, size_t size, uint64_t from,
                        uint64_t count, uint64_t hash, struct ane_error *err) {
  struct record r = {.magic = MAGIC, .key = len, .size = size, .from = from, .count = count, .bytes = hash};
  struct ane_buffer all = {0};
  r.hash = hash_of(&r, key, data);
  bool ok = ane_buffer_append(&all, &r, sizeof r) && ane_buffer_append(&all, key, len) && ane_buffer_append(&all, data, size);
  ane_status st = ok ? ane_folder_write(&n->file, all.data, all.size, err) : ane_fail(err, ANE_NOMEM, "not enough memory");
  ane_buffer_free(&all);
  return st;
}

bool ai_notes_find(const struct ai_notes *n, const char *key, size_t len, struct ane_aimodel_note *out) {
  uint32_t at = ane_strmap_get(&n->known, key, len);
  struct record r;
  if (at == UINT32_MAX || !read_record(&n->old, at, &r)) return false;
  if (r.from > n->bytes.size || r.count > n->bytes.size - r.from) return false;
  struct ane_hash64 h = {0};
  ane_hash64_add(&h, n->bytes.data + r.from, (size_t)r.count);
  if (ane_hash64_end(&h) != r.bytes) return false;
  *out = (struct ane_aimodel_note){n->old.data + at + sizeof r + r.key, n->bytes.data + r.from, r.size, r.count};
  return true;
}
