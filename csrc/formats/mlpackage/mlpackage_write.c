/* Writes a package: blobs as they come, then the model and the manifest; then renames it into place. */
#include "formats/mlpackage/mlpackage_internal.h"

#include "base/alloc.h"
#include "base/hash64.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DATA "Data/" MLPACKAGE_AUTHOR
enum { BUFFER_SIZE = 1 << 18 };

/* A blob that was begun. */
struct written {
  uint64_t offset, bytes;
  uint32_t code;
};

struct ane_mlpackage_writer {
  struct ane_folder_writer folder;
  struct ane_folder_file weights; /* open from the first blob on */
  struct ane_buffer blobs;        /* of struct written, ascending */
  uint64_t at, left;              /* position in the weight file; bytes that the blob still lacks */
  struct ane_hash64 hash;         /* of the weight file without its header */
  uint8_t *pending;               /* BUFFER_SIZE bytes, of which n_pending wait to be written */
  size_t n_pending;
  bool broken; /* a write has failed */
};

/* ---- Weights -------------------------------------------------------------------------------------------------------*/

static ane_status flush(struct ane_mlpackage_writer *w, struct ane_error *err) {
  ane_status st = ane_folder_write(&w->weights, w->pending, w->n_pending, err);
  w->n_pending = 0;
  return st;
}

static ane_status append(struct ane_mlpackage_writer *w, const void *data, size_t size, struct ane_error *err) {
  ane_hash64_add(&w->hash, data, size);
  w->at += size;
  ane_status st = w->n_pending + size > BUFFER_SIZE ? flush(w, err) : ANE_OK;
  if (!st && size > BUFFER_SIZE) {
    st = ane_folder_write(&w->weights, data, size, err);
  } else if (!st && size) {
    memcpy(w->pending + w->n_pending, data, size);
    w->n_pending += size;
  }
  w->broken = w->broken || st;
  return st;
}

static void store(uint8_t *p, uint64_t n, int bytes) {
  for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(n >> 8 * i);
}

static ane_status begin_weights(struct ane_mlpackage_writer *w, struct ane_error *err) {
  uint8_t header[BLOB_HEADER] = {0}; /* the final header is written at the end */
  ane_status st = ane_folder_make(&w->folder, DATA "/weights", err);
  if (!st) st = ane_folder_open(&w->folder, DATA "/weights/weight.bin", &w->weights, err);
  return st ? st : append(w, header, sizeof header, err);
}

/* Fails unless the blob before is complete. */
static ane_status check_complete(const struct ane_mlpackage_writer *w, struct ane_error *err) {
  if (w->broken) return ane_fail(err, ANE_IO, "the weights could not be written");
  return w->left ? ane_fail(err, ANE_INVALID, "the last blob lacks %" PRIu64 " bytes", w->left) : ANE_OK;
}

ane_status ane_mlpackage_blob(struct ane_mlpackage_writer *w, ane_mil_dtype dtype, uint64_t count, uint64_t *offset,
                              struct ane_error *err) {
  static const uint8_t zeros[BLOB_ALIGN];
  uint8_t record[BLOB_RECORD] = {0};
  struct written b = {.code = ane_mil_dtype_blob(dtype)};
  ane_status st = check_complete(w, err);
  if (st) return st;
  if (!b.code || !ane_mil_bytes(dtype, count, &b.bytes))
    return ane_fail(err, ANE_INVALID, "%" PRIu64 " elements of %s are not a blob", count, ane_mil_dtype_name(dtype));
  if (w->blobs.size / sizeof b == UINT32_MAX) return ane_fail(err, ANE_INVALID, "more blobs than a weight file can count");
  if (w->weights.fd < 0) st = begin_weights(w, err);
  if (!st) st = append(w, zeros, (size_t)(-w->at % BLOB_ALIGN), err);
  if (st) return st;
  b.offset = w->at;
  store(record, BLOB_SENTINEL, 4);
  store(record + 4, b.code, 4);
  store(record + 8, b.bytes, 8);
  store(record + 16, b.offset + BLOB_RECORD, 8);
  store(record + 24, b.bytes * 8 - count * ane_mil_dtype_bits(dtype), 8);
  if (!ane_buffer_append(&w->blobs, &b, sizeof b)) return ane_fail(err, ANE_NOMEM, "not enough memory");
  w->left = b.bytes;
  *offset = b.offset;
  return append(w, record, sizeof record, err);
}

ane_status ane_mlpackage_data(struct ane_mlpackage_writer *w, const void *data, size_t size, struct ane_error *err) {
  if (size > w->left) return ane_fail(err, ANE_INVALID, "%zu bytes for a blob that lacks %" PRIu64, size, w->left);
  w->left -= size;
  return append(w, data, size, err);
}

static ane_status end_weights(struct ane_mlpackage_writer *w, struct ane_error *err) {
  uint8_t header[8];
  ane_status st = check_complete(w, err);
  if (st) return st;
  if (w->weights.fd < 0)
    return ane_folder_make(&w->folder, DATA "/weights", err); /* the manifest names the folder even where there are no weights */
  store(header, w->blobs.size / sizeof(struct written), 4);
  store(header + 4, BLOB_VERSION, 4);
  st = flush(w, err);
  if (!st) st = ane_folder_overwrite(&w->weights, 0, header, sizeof header, err);
  return st ? st : ane_folder_sync(&w->weights, err);
}

/* ---- Model and manifest ------------------------------------------------------------------------------------------------*/

static ane_status write_file(struct ane_mlpackage_writer *w, const char *name, const void *data, size_t size,
                             struct ane_error *err) {
  struct ane_folder_file f;
  ane_status st = ane_folder_open(&w->folder, name, &f, err);
  if (st) return st;
  st = ane_folder_write(&f, data, size, err);
  if (!st) return ane_folder_sync(&f, err);
  ane_folder_close(&f);
  return st;
}

struct checking {
  const struct ane_mlpackage_writer *w;
  ane_mil_place_fn place;
  void *arg;
  struct ane_error *err;
};

/* Fails unless the blob that a value refers to was written. */
static ane_status check_blob(void *arg, const struct ane_mil_function *f, const struct ane_mil_op *op, const char *name,
                             const struct ane_mil_value *v) {
  const struct checking *c = arg;
  if (v->kind != ANE_MIL_BLOB) return ANE_OK;
  const char *file = v->file;
  uint64_t offset = v->offset;
  if (c->place) c->place(c->arg, v, &file, &offset);
  const struct written *list = (const void *)c->w->blobs.data, *b = NULL;
  for (size_t lo = 0, hi = c->w->blobs.size / sizeof *list; lo < hi && !b;) {
    size_t mid = lo + (hi - lo) / 2;
    if (list[mid].offset == offset)
      b = &list[mid];
    else if (list[mid].offset < offset)
      lo = mid + 1;
    else
      hi = mid;
  }
  if (b && file && strcmp(file, ANE_MLPACKAGE_WEIGHTS) == 0 && b->code == ane_mil_dtype_blob(v->type.dtype) &&
      b->bytes == v->bytes)
    return ANE_OK;
  char text[ANE_MIL_OP_TEXT] = "";
  return ane_fail(c->err, ANE_INVALID, "function %.64s: %s: %.64s: no such blob of %" PRIu64 " bytes was written at %" PRIu64,
                  f ? f->name : "", op ? ane_mil_op_text(text, op) : "", name, v->bytes, offset);
}

/* An id formatted as a UUID, derived from the content: version 8 of RFC 9562. */
static void make_id(char out[37], const struct ane_hash64 *content, const char *name) {
  struct ane_hash64 h = *content;
  ane_hash64_add(&h, name, strlen(name));
  uint64_t a = ane_hash64_end(&h);
  ane_hash64_add(&h, name, strlen(name));
  uint64_t b = ane_hash64_end(&h);
  snprintf(out, 37, "%08x-%04x-8%03x-%04x-%012" PRIx64, (unsigned)(a >> 32), (unsigned)(a >> 16 & 0xFFFF), (unsigned)(a & 0xFFF),
           (unsigned)(0x8000 | (b >> 48 & 0x3FFF)), b & 0xFFFFFFFFFFFFu);
}

static ane_status write_manifest(struct ane_mlpackage_writer *w, const struct ane_buffer *model, struct ane_error *err) {
  static const char form[] = "{\n"
                             "    \"fileFormatVersion\": \"1.0.0\",\n"
                             "    \"itemInfoEntries\": {\n"
                             "        \"%s\": {\n"
                             "            \"author\": \"" MLPACKAGE_AUTHOR "\",\n"
                             "            \"description\": \"CoreML Model Specification\",\n"
                             "            \"name\": \"model.mlmodel\",\n"
                             "            \"path\": \"" MLPACKAGE_AUTHOR "/model.mlmodel\"\n"
                             "        },\n"
                             "        \"%s\": {\n"
                             "            \"author\": \"" MLPACKAGE_AUTHOR "\",\n"
                             "            \"description\": \"CoreML Model Weights\",\n"
                             "            \"name\": \"weights\",\n"
                             "            \"path\": \"" MLPACKAGE_AUTHOR "/weights\"\n"
                             "        }\n"
                             "    },\n"
                             "    \"rootModelIdentifier\": \"%s\"\n"
                             "}\n";
  char text[sizeof form + 128], model_id[37], weights_id[37];
  struct ane_hash64 h = {0};
  ane_hash64_add(&h, model->data, model->size);
  make_id(model_id, &h, "model.mlmodel");
  make_id(weights_id, &w->hash, "weights");
  int n = snprintf(text, sizeof text, form, model_id, weights_id, model_id);
  return write_file(w, "Manifest.json", text, (size_t)n, err);
}

static ane_status write_model(struct ane_mlpackage_writer *w, const struct ane_mil_model *m, ane_mil_place_fn place, void *arg,
                              struct ane_error *err) {
  struct checking c = {w, place, arg, err};
  struct ane_buffer model = {0};
  ane_status st = ane_mil_each_value(m, check_blob, &c);
  if (!st) st = ane_mil_pack(m, place, arg, &model, err);
  if (!st) st = write_file(w, DATA "/model.mlmodel", model.data, model.size, err);
  if (!st) st = write_manifest(w, &model, err);
  ane_buffer_free(&model);
  return st;
}

/* ---- The package ---------------------------------------------------------------------------------------------------*/

ane_status ane_mlpackage_create(struct ane_mlpackage_writer **out, const char *path, struct ane_error *err) {
  *out = NULL;
  ane_status st = ane_folder_replaceable(path, "Manifest.json", "a package", err);
  if (st) return st;
  struct ane_mlpackage_writer *w = ane_calloc(1, sizeof *w);
  if (!w) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  w->weights.fd = -1;
  w->pending = ane_malloc(BUFFER_SIZE);
  st = w->pending ? ane_folder_create(&w->folder, path, err)
                  : ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  if (!st) st = ane_folder_make(&w->folder, "Data", err);
  if (!st) st = ane_folder_make(&w->folder, DATA, err);
  if (st)
    ane_mlpackage_abandon(w);
  else
    *out = w;
  return st;
}

void ane_mlpackage_abandon(struct ane_mlpackage_writer *w) {
  if (!w) return;
  ane_folder_close(&w->weights);
  ane_folder_abandon(&w->folder);
  ane_buffer_free(&w->blobs);
  ane_free(w->pending);
  ane_free(w);
}

static ane_status commit(struct ane_mlpackage_writer *w, const struct ane_mil_model *m, ane_mil_place_fn place, void *arg,
                         struct ane_error *err) {
  ane_status st = end_weights(w, err);
  if (!st) st = write_model(w, m, place, arg, err);
  if (st && w->folder.path) ane_fail_in(err, st, "%s", ane_path_tail(w->folder.path));
  if (!st) st = ane_folder_commit(&w->folder, err);
  ane_mlpackage_abandon(w); /* what a commit has not freed */
  return st;
}

ane_status ane_mlpackage_commit(struct ane_mlpackage_writer *w, const struct ane_mil_model *m, struct ane_error *err) {
  return commit(w, m, NULL, NULL, err);
}

/* ---- Rewriting a package -------------------------------------------------------------------------------------------*/

struct copying {
  const struct ane_mlpackage *p;
  struct ane_mlpackage_writer *w;
  uint64_t **offsets; /* for each file and record: the new offset, 0: not copied yet */
  struct ane_error *err;
};

/* Where the new offset of a blob is kept. */
static uint64_t *new_offset_of(const struct copying *c, const struct ane_mil_value *v) {
  for (uint32_t i = 0; i < c->p->n_files; i++) {
    const struct ane_mlpackage_file *f = &c->p->files[i];
    if (strcmp(f->name, v->file) != 0) continue;
    return &c->offsets[i][mlpackage_weights_record(f, v->offset)]; /* the reader has found it there */
  }
  return NULL;
}

static ane_status copy_blob(void *arg, const struct ane_mil_function *f ANE_UNUSED, const struct ane_mil_op *op ANE_UNUSED,
                            const char *name ANE_UNUSED, const struct ane_mil_value *v) {
  struct copying *c = arg;
  uint64_t *to = v->kind == ANE_MIL_BLOB ? new_offset_of(c, v) : NULL;
  if (!to || *to) return ANE_OK;
  ane_status st = ane_mlpackage_blob(c->w, v->type.dtype, v->count, to, c->err);
  return st ? st : ane_mlpackage_data(c->w, v->data, (size_t)v->bytes, c->err);
}

static void give_new_offset(void *arg, const struct ane_mil_value *v, const char **file, uint64_t *offset) {
  /* analyser: the reader refuses a blob whose file is missing. */
  *offset = *new_offset_of(arg, v);
  *file = ANE_MLPACKAGE_WEIGHTS;
}

ane_status ane_mlpackage_rewrite(const struct ane_mlpackage *p, const char *path, struct ane_error *err) {
  struct copying c = {.p = p, .err = err};
  struct ane_arena arena = {0};
  bool memory = (c.offsets = ane_arena_array(&arena, p->n_files ? p->n_files : 1, sizeof *c.offsets)) != NULL;
  for (uint32_t i = 0; memory && i < p->n_files; i++)
    memory = (c.offsets[i] = ane_arena_array(&arena, p->files[i].n_records + (size_t)1, sizeof **c.offsets)) != NULL;
  ane_status st =
      memory ? ane_mlpackage_create(&c.w, path, err) : ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  if (!st && (st = ane_mil_each_value(p->model, copy_blob, &c)))
    ane_mlpackage_abandon(c.w);
  else if (!st)
    st = commit(c.w, p->model, give_new_offset, &c, err);
  ane_arena_free(&arena);
  return st;
}
