/* Writes GGUF version 3; gguf.c draws the layout. Values and tensor infos are collected in memory (a vocabulary takes a few MB);
 * the data of tensors are written at once. */
#include "formats/formats_internal.h"
#include "formats/gguf_write.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <string.h>

/* Limits: the specification's, and ggml's for names (GGML_MAX_NAME with its NUL). */
enum { VERSION = 3, DEFAULT_ALIGNMENT = 32, MIN_ALIGNMENT = 8, MAX_KEY = 65535, MAX_NAME = 63, MAX_DIMS = 4, MAX_DEPTH = 4 };
enum { TYPE_STRING = 8, TYPE_ARRAY = 9 };

struct pending {
  const char *name;
  ane_dtype dtype;
  struct ane_shape shape;
  uint64_t bytes;
};

struct ane_gguf_writer {
  struct ane_file_writer file;
  struct ane_arena arena; /* keys and names */
  struct ane_strmap keys, names;
  struct ane_buffer values;
  struct pending *tensors;
  uint32_t n_values, n_tensors, room;
  uint32_t alignment;
  bool begun, broken;  /* ane_gguf_begin was called; a write has failed, so that the file can only be dropped */
  uint32_t at;         /* the tensor that is being written */
  uint64_t filled;     /* its bytes so far */
  uint64_t size, done; /* bytes of the whole file; written so far */
  uint64_t data;       /* where the tensors begin */
};

static ane_status no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "not enough memory"); }

/* ---- Little endian -----------------------------------------------------------------------------------------------*/

static bool put(struct ane_buffer *b, uint64_t v, size_t size) {
  uint8_t bytes[8];
  for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(v >> 8 * i);
  return ane_buffer_append(b, bytes, size);
}

static bool put_string(struct ane_buffer *b, const char *s, uint64_t len) {
  return put(b, len, 8) && ane_buffer_append(b, s, (size_t)len);
}

/* ---- Values ------------------------------------------------------------------------------------------------------*/

/* The id of a scalar type; -1: GGUF has none. */
static int type_id(ane_dtype t) {
  switch (t) {
    case ANE_U8: return 0;
    case ANE_I8: return 1;
    case ANE_U16: return 2;
    case ANE_I16: return 3;
    case ANE_U32: return 4;
    case ANE_I32: return 5;
    case ANE_F32: return 6;
    case ANE_BOOL: return 7;
    case ANE_U64: return 10;
    case ANE_I64: return 11;
    case ANE_F64: return 12;
    default: return -1;
  }
}

static bool put_scalar(struct ane_buffer *b, const struct ane_meta *m) {
  if (m->kind != ANE_META_FLOAT) return put(b, m->u, ane_dtype_info(m->dtype)->bytes); /* two's complement: the low bytes */
  if (m->dtype == ANE_F32) return put(b, ane_f32_bits((float)m->f), 4);
  uint64_t u;
  memcpy(&u, &m->f, sizeof u);
  return put(b, u, 8);
}

static int element_id(const struct ane_meta *array) {
  if (array->a.kind == ANE_META_STRING) return TYPE_STRING;
  return array->a.kind == ANE_META_ARRAY ? TYPE_ARRAY : type_id(array->a.dtype);
}

static ane_status put_array(struct ane_buffer *b, const struct ane_meta *m, int depth, struct ane_error *err) {
  int id = element_id(m);
  if (id < 0) return ane_fail(err, ANE_UNSUPPORTED, "GGUF has no values of type %s", ane_dtype_info(m->a.dtype)->name);
  if (depth >= MAX_DEPTH) return ane_fail(err, ANE_UNSUPPORTED, "arrays nested deeper than %d", MAX_DEPTH);
  if (!put(b, (uint64_t)id, 4) || !put(b, m->a.count, 8)) return no_memory(err);
  if (!m->a.items) {
    size_t size = (size_t)m->a.count * ane_dtype_info(m->a.dtype)->bytes;
    return ane_buffer_append(b, m->a.data, size) ? ANE_OK : no_memory(err);
  }
  for (uint64_t i = 0; i < m->a.count; i++) {
    const struct ane_meta *e = &m->a.items[i];
    ane_status st = ANE_OK;
    if (m->a.kind == ANE_META_ARRAY)
      st = put_array(b, e, depth + 1, err);
    else if (!put_string(b, e->s.data, e->s.len))
      st = no_memory(err);
    if (st) return st;
  }
  return ANE_OK;
}

static ane_status put_value(struct ane_buffer *b, const struct ane_meta *m, struct ane_error *err) {
  if (m->kind == ANE_META_ARRAY) return put(b, TYPE_ARRAY, 4) ? put_array(b, m, 0, err) : no_memory(err);
  if (m->kind == ANE_META_STRING) return put(b, TYPE_STRING, 4) && put_string(b, m->s.data, m->s.len) ? ANE_OK : no_memory(err);
  int id = type_id(m->dtype);
  if (id < 0) return ane_fail(err, ANE_UNSUPPORTED, "GGUF has no values of type %s", ane_dtype_info(m->dtype)->name);
  return put(b, (uint64_t)id, 4) && put_scalar(b, m) ? ANE_OK : no_memory(err);
}

static ane_status set_alignment(struct ane_gguf_writer *w, const struct ane_meta *m, struct ane_error *err) {
  bool fits =
      m->kind == ANE_META_UINT && m->dtype == ANE_U32 && m->u >= MIN_ALIGNMENT && m->u <= 1u << 24 && !(m->u & (m->u - 1));
  if (!fits) return ane_fail(err, ANE_INVALID, "must be a uint32 and a power of two of at least %d", MIN_ALIGNMENT);
  w->alignment = (uint32_t)m->u;
  return ANE_OK;
}

/* Copies the name into the arena and adds it to the map. Fails if the map has it. */
static ane_status keep_name(struct ane_gguf_writer *w, struct ane_strmap *map, const char **name, uint32_t index, size_t max,
                            struct ane_error *err) {
  size_t len = strlen(*name);
  if (len == 0 || len > max) return ane_fail(err, ANE_INVALID, "a name has 1 to %zu bytes, this one %zu", max, len);
  if (ane_strmap_get(map, *name, len) != UINT32_MAX) return ane_fail(err, ANE_INVALID, "was added before");
  *name = ane_arena_strndup(&w->arena, *name, len);
  return *name && ane_strmap_put(map, *name, len, index, NULL) ? ANE_OK : no_memory(err);
}

ane_status ane_gguf_add_value(struct ane_gguf_writer *w, const char *key, const struct ane_meta *m, struct ane_error *err) {
  char text[ANE_QUOTE_TEXT];
  const char *kept = key;
  if (w->begun) return ane_fail(err, ANE_INVALID, "key %s comes after the data has begun", ane_quote(text, key, strlen(key)));
  ane_status st = keep_name(w, &w->keys, &kept, w->n_values, MAX_KEY, err);
  if (!st && strcmp(key, "general.alignment") == 0) st = set_alignment(w, m, err);
  if (!st && !put_string(&w->values, key, strlen(key))) st = no_memory(err);
  if (!st) st = put_value(&w->values, m, err);
  if (st) {
    w->broken = true; /* the buffer may hold half a value */
    return ane_fail_in(err, st, "key %s", ane_quote(text, key, strlen(key)));
  }
  w->n_values++;
  return ANE_OK;
}

/* ---- Tensors -----------------------------------------------------------------------------------------------------*/

static ane_status check_layout(struct pending *p, struct ane_error *err) {
  const struct ane_dtype_info *info = ane_dtype_info(p->dtype);
  char text[ANE_SHAPE_TEXT];
  uint64_t count;
  if (info->gguf < 0) return ane_fail(err, ANE_UNSUPPORTED, "GGUF has no tensors of type %s", info->name);
  if (p->shape.rank < 1 || p->shape.rank > MAX_DIMS)
    return ane_fail(err, ANE_SHAPE, "%" PRIu32 " dimensions, GGUF has 1 to %d", p->shape.rank, MAX_DIMS);
  for (uint32_t i = 0; i < p->shape.rank; i++)
    if (p->shape.dim[i] < 1) return ane_fail(err, ANE_SHAPE, "shape %s is empty", ane_shape_text(&p->shape, text));
  int64_t cols = p->shape.dim[p->shape.rank - 1];
  if (cols % info->block)
    return ane_fail(err, ANE_SHAPE, "%s needs a multiple of %" PRIu32 " columns, has %" PRId64, info->name, info->block, cols);
  if (!ane_shape_count(&p->shape, &count) || !ane_dtype_bytes(p->dtype, count, &p->bytes) || p->bytes > INT64_MAX)
    return ane_fail(err, ANE_SHAPE, "the size of %s %s overflows", info->name, ane_shape_text(&p->shape, text));
  return ANE_OK;
}

static bool more_room(struct ane_gguf_writer *w) {
  if (w->n_tensors < w->room) return true;
  uint32_t room = w->room ? 2 * w->room : 256;
  struct pending *grown = ane_realloc(w->tensors, room * sizeof *grown);
  if (!grown) return false;
  w->tensors = grown;
  w->room = room;
  return true;
}

ane_status ane_gguf_add_tensor(struct ane_gguf_writer *w, const char *name, ane_dtype t, const struct ane_shape *shape,
                               uint64_t *bytes, struct ane_error *err) {
  char text[ANE_QUOTE_TEXT];
  struct pending p = {name, t, *shape, 0};
  ane_status st = w->begun ? ane_fail(err, ANE_INVALID, "comes after the data has begun") : check_layout(&p, err);
  if (!st && !more_room(w)) st = no_memory(err);
  if (!st) st = keep_name(w, &w->names, &p.name, w->n_tensors, MAX_NAME, err);
  if (st) return ane_fail_in(err, st, "tensor %s", ane_quote(text, name, strlen(name)));
  w->tensors[w->n_tensors++] = p;
  if (bytes) *bytes = p.bytes;
  return ANE_OK;
}

static uint64_t padding(const struct ane_gguf_writer *w, uint64_t n) { return -n & (w->alignment - 1); }

static bool put_info(struct ane_buffer *b, const struct pending *p, uint64_t offset) {
  bool ok = put_string(b, p->name, strlen(p->name)) && put(b, p->shape.rank, 4);
  for (uint32_t i = p->shape.rank; ok && i-- > 0;) ok = put(b, (uint64_t)p->shape.dim[i], 8);
  return ok && put(b, (uint64_t)ane_dtype_info(p->dtype)->gguf, 4) && put(b, offset, 8);
}

/* Encodes all that precedes the data: header, values, tensor infos. */
static ane_status gather_head(struct ane_gguf_writer *w, struct ane_buffer *b, struct ane_error *err) {
  bool ok = ane_buffer_append(b, "GGUF", 4) && put(b, VERSION, 4) && put(b, w->n_tensors, 8) && put(b, w->n_values, 8) &&
            ane_buffer_append(b, w->values.data, w->values.size);
  uint64_t offset = 0;
  for (uint32_t i = 0; ok && i < w->n_tensors; i++) {
    ok = put_info(b, &w->tensors[i], offset);
    if (!ane_add_u64(offset, w->tensors[i].bytes, &offset) || offset > INT64_MAX / 2)
      return ane_fail(err, ANE_SHAPE, "the tensors together are too large");
    offset += padding(w, offset);
  }
  if (ok && w->n_tensors) {
    static const uint8_t zeros[64];
    for (uint64_t left = padding(w, b->size); ok && left;) {
      size_t n = (size_t)ANE_MIN(left, (uint64_t)sizeof zeros);
      ok = ane_buffer_append(b, zeros, n);
      left -= n;
    }
  }
  w->size = b->size + offset;
  return ok ? ANE_OK : no_memory(err);
}

static ane_status put_bytes(struct ane_gguf_writer *w, const void *data, size_t size, struct ane_error *err) {
  w->done += size;
  return ane_file_write(&w->file, data, size, err);
}

ane_status ane_gguf_begin(struct ane_gguf_writer *w, struct ane_error *err) {
  if (w->begun || w->broken)
    return ane_fail(err, ANE_INVALID, w->begun ? "the data has already begun" : "an earlier step failed");
  struct ane_buffer head = {0};
  ane_status st = gather_head(w, &head, err);
  w->data = head.size;
  if (!st) st = put_bytes(w, head.data, head.size, err);
  ane_buffer_free(&head);
  ane_buffer_free(&w->values);
  w->begun = true;
  w->broken = st != ANE_OK;
  return st;
}

static ane_status put_padding(struct ane_gguf_writer *w, uint64_t n, struct ane_error *err) {
  static const uint8_t zeros[4096];
  ane_status st = ANE_OK;
  for (size_t part; !st && n; n -= part) {
    part = (size_t)ANE_MIN(n, (uint64_t)sizeof zeros);
    st = put_bytes(w, zeros, part, err);
  }
  return st;
}

ane_status ane_gguf_write(struct ane_gguf_writer *w, const void *data, size_t size, struct ane_error *err) {
  if (!w->begun || w->broken) return ane_fail(err, ANE_INVALID, w->begun ? "an earlier write failed" : "the data has not begun");
  if (size > ane_gguf_wanted(w, NULL, NULL))
    return ane_fail(err, ANE_RANGE, "%zu bytes, but %s needs %" PRIu64, size,
                    w->at < w->n_tensors ? w->tensors[w->at].name : "nothing", ane_gguf_wanted(w, NULL, NULL));
  ane_status st = put_bytes(w, data, size, err);
  w->filled += size;
  if (!st && w->at < w->n_tensors && w->filled == w->tensors[w->at].bytes) {
    st = put_padding(w, padding(w, w->filled), err);
    w->at++;
    w->filled = 0;
  }
  w->broken = st != ANE_OK;
  return st;
}

ane_status ane_gguf_rewrite(struct ane_gguf_writer *w, const char *name, const void *data, size_t size, struct ane_error *err) {
  uint64_t offset = w->data;
  uint32_t i = 0;
  if (!w->begun || w->broken) return ane_fail(err, ANE_INVALID, w->begun ? "an earlier write failed" : "the data has not begun");
  for (; i < w->at && strcmp(w->tensors[i].name, name) != 0; i++) offset += w->tensors[i].bytes + padding(w, w->tensors[i].bytes);
  if (i == w->at) return ane_fail(err, ANE_NOTFOUND, "no complete tensor %s", name);
  if (size != w->tensors[i].bytes)
    return ane_fail(err, ANE_RANGE, "%zu bytes for %s, which has %" PRIu64, size, name, w->tensors[i].bytes);
  ane_status st = ane_file_overwrite(&w->file, offset, data, size, err);
  w->broken = st != ANE_OK;
  return st;
}

const char *ane_gguf_path(const struct ane_gguf_writer *w) { return w->file.temp; }

uint64_t ane_gguf_wanted(const struct ane_gguf_writer *w, const char **name, ane_dtype *t) {
  const struct pending *p = w->at < w->n_tensors ? &w->tensors[w->at] : NULL;
  if (name) *name = p ? p->name : NULL;
  if (t) *t = p ? p->dtype : ANE_F32;
  return p ? p->bytes - w->filled : 0;
}

uint64_t ane_gguf_size(const struct ane_gguf_writer *w) { return w->size; }
uint64_t ane_gguf_done(const struct ane_gguf_writer *w) { return w->done; }

/* ---- Life cycle --------------------------------------------------------------------------------------------------*/

ane_status ane_gguf_create(struct ane_gguf_writer **out, const char *path, struct ane_error *err) {
  *out = NULL;
  struct ane_gguf_writer *w = ane_calloc(1, sizeof *w);
  if (!w) return no_memory(err);
  w->alignment = DEFAULT_ALIGNMENT;
  ane_status st = ane_file_create(&w->file, path, err);
  if (st)
    ane_gguf_close(w);
  else
    *out = w;
  return st;
}

ane_status ane_gguf_commit(struct ane_gguf_writer *w, struct ane_error *err) {
  if (!w->begun || w->broken) return ane_fail(err, ANE_INVALID, w->begun ? "an earlier write failed" : "the data has not begun");
  if (w->at < w->n_tensors)
    return ane_fail(err, ANE_INVALID, "tensor %s is not complete: %" PRIu64 " bytes are missing", w->tensors[w->at].name,
                    ane_gguf_wanted(w, NULL, NULL));
  w->broken = true; /* on success and on failure: nothing more is written to this file */
  return ane_file_commit(&w->file, err);
}

void ane_gguf_close(struct ane_gguf_writer *w) {
  if (!w) return;
  ane_file_abandon(&w->file);
  ane_buffer_free(&w->values);
  ane_strmap_free(&w->keys);
  ane_strmap_free(&w->names);
  ane_arena_free(&w->arena);
  ane_free(w->tensors);
  ane_free(w);
}
