/* safetensors (github.com/huggingface/safetensors, README: "Format"), one file or several with an index. A file:
 *
 *   u64 n, little endian    n bytes of JSON, '{' first, blanks may follow    the data
 *   {"__metadata__": {string: string, ...}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *
 * Offsets count from the first byte of the data. The tensors cover the data without holes and without overlaps. The format does
 * not align tensors, so decoders of plain types read unaligned data.
 *
 * An index is JSON, {"metadata": {...}, "weight_map": {tensor name: file name}}; the files lie beside it. */
#include "formats/formats_internal.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  MAX_HEADER = 100000000, /* bytes; the format's own limit */
  MAX_TENSORS = 1 << 20,
  MAX_FILES = 1 << 14,
};

/* One file while it is read. Tensors and names lie in the arena of the source. */
struct part {
  struct ane_source *s;
  struct ane_error *err;
  uint32_t file; /* index into s->files */
  json_t *header;
  const uint8_t *data;  /* the bytes after the header */
  uint64_t start, room; /* position of the data in the file, and their number of bytes */
  struct ane_source_tensor *tensors;
  uint32_t n_tensors;
};

static ane_status no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "not enough memory"); }

/* ---- Tensors -----------------------------------------------------------------------------------------------------*/

static ane_status unknown_dtype(const char *name, struct ane_error *err) {
  char names[160] = "", text[ANE_QUOTE_TEXT];
  size_t at = 0;
  for (int t = 0; t < ANE_DTYPE_COUNT && at < sizeof names; t++) {
    const char *known = ane_dtype_info((ane_dtype)t)->safetensors;
    if (known) at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? " " : "", known);
  }
  return ane_fail(err, ANE_UNSUPPORTED, "unknown dtype %s; known are %s", ane_quote(text, name, strlen(name)), names);
}

static ane_status read_dtype(const struct part *p, const json_t *info, ane_dtype *out) {
  const json_t *v = json_object_get(info, "dtype");
  if (!json_is_string(v)) return ane_fail(p->err, ANE_FORMAT, "dtype must be a string, but is %s", ane_json_kind(v));
  const char *name = json_string_value(v);
  for (int t = 0; t < ANE_DTYPE_COUNT; t++) {
    const char *known = ane_dtype_info((ane_dtype)t)->safetensors;
    if (!known || strcmp(known, name) != 0) continue;
    *out = (ane_dtype)t;
    return ANE_OK;
  }
  return unknown_dtype(name, p->err);
}

static ane_status read_shape(const struct part *p, const json_t *info, struct ane_shape *out) {
  const json_t *v = json_object_get(info, "shape");
  if (!json_is_array(v)) return ane_fail(p->err, ANE_FORMAT, "shape must be an array, but is %s", ane_json_kind(v));
  size_t rank = json_array_size(v);
  if (rank > ANE_MAX_RANK)
    return ane_fail(p->err, ANE_UNSUPPORTED, "shape has %zu dimensions, the limit is %d", rank, ANE_MAX_RANK);
  out->rank = (uint32_t)rank;
  for (size_t i = 0; i < rank; i++) {
    const json_t *d = json_array_get(v, i);
    uint64_t n;
    if (json_is_integer(d) && json_integer_value(d) < 0)
      return ane_fail(p->err, ANE_FORMAT, "shape[%zu] is %" JSON_INTEGER_FORMAT, i, json_integer_value(d));
    if (!ane_json_count(d, &n))
      return ane_fail(p->err, ANE_FORMAT, "shape[%zu] must be a whole number, but is %s", i, ane_json_kind(d));
    out->dim[i] = (int64_t)n;
  }
  return ANE_OK;
}

/* Reads data_offsets and checks them against the size of the data. */
static ane_status read_offsets(const struct part *p, const json_t *info, uint64_t *begin, uint64_t *end) {
  const json_t *v = json_object_get(info, "data_offsets");
  if (!json_is_array(v) || json_array_size(v) != 2 || !ane_json_count(json_array_get(v, 0), begin) ||
      !ane_json_count(json_array_get(v, 1), end))
    return ane_fail(p->err, ANE_FORMAT, v ? "data_offsets must be two whole numbers" : "data_offsets is missing");
  if (*begin > *end) return ane_fail(p->err, ANE_FORMAT, "data_offsets begin at %" PRIu64 " and end at %" PRIu64, *begin, *end);
  if (*end <= p->room) return ANE_OK;
  return ane_fail(p->err, ANE_FORMAT, "data_offsets end at %" PRIu64 ", the file has %" PRIu64 " bytes of data", *end, p->room);
}

static ane_status read_tensor(const struct part *p, const json_t *info, struct ane_source_tensor *t) {
  if (!json_is_object(info)) return ane_fail(p->err, ANE_FORMAT, "must be an object, but is %s", ane_json_kind(info));
  uint64_t begin = 0, end = 0, count;
  ane_status st = read_dtype(p, info, &t->tensor.dtype);
  if (!st) st = read_shape(p, info, &t->tensor.shape);
  if (!st) st = read_offsets(p, info, &begin, &end);
  if (st) return st;
  char text[ANE_SHAPE_TEXT];
  const char *dtype = ane_dtype_info(t->tensor.dtype)->safetensors;
  if (!ane_shape_count(&t->tensor.shape, &count) || !ane_dtype_bytes(t->tensor.dtype, count, &t->tensor.bytes))
    return ane_fail(p->err, ANE_FORMAT, "the size of %s %s overflows", dtype, ane_shape_text(&t->tensor.shape, text));
  if (t->tensor.bytes != end - begin)
    return ane_fail(p->err, ANE_FORMAT, "%s %s has %" PRIu64 " bytes, data_offsets %" PRIu64 " to %" PRIu64 " hold %" PRIu64,
                    dtype, ane_shape_text(&t->tensor.shape, text), t->tensor.bytes, begin, end, end - begin);
  t->offset = p->start + begin;
  t->tensor.data = p->data + begin;
  t->file = p->file;
  return ANE_OK;
}

/* Orders tensors by position. Empty ones come first at equal positions, so that each tensor begins where the one before it
 * ends. Names give them one order with every C library, whose sorts of equal elements differ. */
static int by_position(const void *a, const void *b) {
  const struct ane_source_tensor *x = a, *y = b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  if (x->tensor.bytes != y->tensor.bytes) return x->tensor.bytes < y->tensor.bytes ? -1 : 1;
  return strcmp(x->name, y->name);
}

static ane_status check_cover(const struct part *p) {
  uint64_t next = p->start, end = p->start + p->room;
  char text[ANE_QUOTE_TEXT];
  for (uint32_t i = 0; i < p->n_tensors; i++) {
    const struct ane_source_tensor *t = &p->tensors[i];
    ane_quote(text, t->name, strlen(t->name));
    if (t->offset < next) {
      char other[ANE_QUOTE_TEXT];
      const char *before = p->tensors[i - 1].name;
      return ane_fail(p->err, ANE_FORMAT, "tensor %s at byte %" PRIu64 " overlaps tensor %s, which ends at byte %" PRIu64, text,
                      t->offset, ane_quote(other, before, strlen(before)), next);
    }
    if (t->offset > next)
      return ane_fail(p->err, ANE_FORMAT, "bytes %" PRIu64 " to %" PRIu64 ", before tensor %s, belong to no tensor", next,
                      t->offset, text);
    next = t->offset + t->tensor.bytes;
  }
  if (next == end) return ANE_OK;
  return ane_fail(p->err, ANE_FORMAT, "bytes %" PRIu64 " to %" PRIu64 ", the end, belong to no tensor", next, end);
}

static ane_status read_tensors(struct part *p) {
  size_t count = json_object_size(p->header);
  if (count > MAX_TENSORS) return ane_fail(p->err, ANE_FORMAT, "%zu tensors, the limit is %d", count, MAX_TENSORS);
  p->tensors = ane_arena_array(&p->s->arena, count, sizeof *p->tensors);
  if (!p->tensors) return no_memory(p->err);
  const char *name;
  json_t *info;
  json_object_foreach(p->header, name, info) {
    if (strcmp(name, "__metadata__") == 0) continue;
    struct ane_source_tensor *t = &p->tensors[p->n_tensors];
    ane_status st = read_tensor(p, info, t);
    char text[ANE_QUOTE_TEXT];
    if (st) return ane_fail_in(p->err, st, "tensor %s", ane_quote(text, name, strlen(name)));
    t->name = ane_arena_strndup(&p->s->arena, name, strlen(name));
    if (!t->name) return no_memory(p->err);
    p->n_tensors++;
  }
  qsort(p->tensors, p->n_tensors, sizeof *p->tensors, by_position);
  return check_cover(p);
}

/* ---- Metadata ----------------------------------------------------------------------------------------------------*/

static ane_status keep_metadata(const struct part *p, const json_t *meta) {
  struct ane_source *s = p->s;
  size_t count = json_object_size(meta);
  s->keys = ane_arena_array(&s->arena, count, sizeof *s->keys);
  s->values = ane_arena_array(&s->arena, count, sizeof *s->values);
  if (!s->keys || !s->values || !ane_strmap_reserve(&s->by_key, count)) return no_memory(p->err);
  const char *key;
  json_t *v;
  json_object_foreach((json_t *)(uintptr_t)meta, key, v) {
    struct ane_meta *m = &s->values[s->n_values];
    m->kind = ANE_META_STRING;
    m->s.len = json_string_length(v);
    m->s.data = ane_arena_strndup(&s->arena, json_string_value(v), json_string_length(v));
    s->keys[s->n_values] = ane_arena_strndup(&s->arena, key, strlen(key));
    if (!m->s.data || !s->keys[s->n_values]) return no_memory(p->err);
    if (!ane_strmap_put(&s->by_key, s->keys[s->n_values], strlen(key), s->n_values, NULL)) return no_memory(p->err);
    s->n_values++;
  }
  return ANE_OK;
}

/* __metadata__ maps strings to strings. Of several files the first one's is kept. */
static ane_status read_metadata(const struct part *p) {
  const json_t *meta = json_object_get(p->header, "__metadata__");
  if (!meta || json_is_null(meta)) return ANE_OK;
  if (!json_is_object(meta))
    return ane_fail(p->err, ANE_FORMAT, "__metadata__ must be an object, but is %s", ane_json_kind(meta));
  const char *key;
  json_t *v;
  json_object_foreach((json_t *)(uintptr_t)meta, key, v) {
    char text[ANE_QUOTE_TEXT];
    if (!json_is_string(v))
      return ane_fail(p->err, ANE_FORMAT, "__metadata__: key %s must be a string, but is %s", ane_quote(text, key, strlen(key)),
                      ane_json_kind(v));
  }
  return p->file == 0 ? keep_metadata(p, meta) : ANE_OK;
}

/* ---- One file ----------------------------------------------------------------------------------------------------*/

static ane_status read_header(struct part *p) {
  const struct ane_map *map = &p->s->files[p->file].map;
  if (map->size < 8)
    return ane_fail(p->err, ANE_FORMAT, "has %" PRIu64 " bytes, but must have at least 8: the length of the header", map->size);
  uint64_t n = ane_load_u64(map->data);
  if (n > MAX_HEADER) return ane_fail(p->err, ANE_FORMAT, "the header has %" PRIu64 " bytes, the limit is %d", n, MAX_HEADER);
  if (n > map->size - 8)
    return ane_fail(p->err, ANE_FORMAT, "the header has %" PRIu64 " bytes, the file %" PRIu64 " after its length", n,
                    map->size - 8);
  if (n < 2) return ane_fail(p->err, ANE_FORMAT, "the header has %" PRIu64 " bytes, but must have at least 2", n);
  if (map->data[8] != '{')
    return ane_fail(p->err, ANE_FORMAT, "the header begins with byte 0x%02x, but must begin with '{'", map->data[8]);
  p->data = map->data + 8 + n;
  p->start = 8 + n;
  p->room = map->size - p->start;
  return ane_json_parse(&p->header, map->data + 8, n, 8, p->err);
}

static ane_status read_part(struct part *p) {
  ane_status st = read_header(p);
  if (!st) st = read_metadata(p);
  if (!st) st = read_tensors(p);
  json_decref(p->header);
  p->header = NULL;
  return st ? ane_fail_in(p->err, st, "%s", ane_path_tail(p->s->files[p->file].path)) : ANE_OK;
}

ane_status ane_safetensors_read(struct ane_source *s, struct ane_error *err) {
  struct part p = {.s = s, .err = err};
  ane_status st = read_part(&p);
  if (st) return st;
  s->tensors = p.tensors;
  s->n_tensors = p.n_tensors;
  st = ane_source_index_tensors(s, err);
  return st ? st : ane_safetensors_join_mxfp4(s, err);
}

/* ---- Several files -----------------------------------------------------------------------------------------------*/

/* Is `name` the plain name of a file, which then is in the folder of the index? */
static bool is_plain(const char *name) {
  return *name && !strpbrk(name, "/\\") && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Lists the names of the files, sorted, each once. They are borrowed from the map. */
static ane_status list_files(const json_t *map, const char ***out, uint32_t *count, struct ane_error *err) {
  const char *key, **names = ane_calloc(json_object_size(map), sizeof *names);
  json_t *v;
  size_t n = 0, kept = 0;
  *out = names;
  if (!names) return no_memory(err);
  json_object_foreach((json_t *)(uintptr_t)map, key, v) {
    char text[ANE_QUOTE_TEXT], value[ANE_QUOTE_TEXT];
    ane_quote(text, key, strlen(key));
    if (!json_is_string(v))
      return ane_fail(err, ANE_FORMAT, "weight_map: tensor %s must be the name of a file, but is %s", text, ane_json_kind(v));
    const char *name = json_string_value(v);
    if (!is_plain(name))
      return ane_fail(err, ANE_FORMAT, "weight_map: tensor %s must be the name of a file in the same folder, but is in \"%s\"",
                      text, ane_quote(value, name, strlen(name)));
    names[n++] = name;
  }
  qsort(names, n, sizeof *names, by_name);
  for (size_t i = 0; i < n; i++)
    if (i == 0 || strcmp(names[i], names[kept - 1]) != 0) names[kept++] = names[i];
  *count = (uint32_t)kept;
  if (kept == 0) return ane_fail(err, ANE_FORMAT, "weight_map is empty");
  return kept <= MAX_FILES ? ANE_OK : ane_fail(err, ANE_FORMAT, "weight_map names %zu files, the limit is %d", kept, MAX_FILES);
}

/* Fills s->files with names, none mapped yet. Looks for all of them, so that a message can list those that are missing. */
static ane_status place_files(struct ane_source *s, const char *const *names, uint32_t count, struct ane_error *err) {
  const char *index = s->files[0].path;
  size_t folder = (size_t)(file_name(index) - index);
  struct ane_source_file *files = ane_arena_array(&s->arena, count, sizeof *files);
  if (!files) return no_memory(err);
  char missing[300] = "";
  size_t at = 0;
  for (uint32_t i = 0; i < count && at < sizeof missing; i++) {
    size_t len = strlen(names[i]);
    files[i].path = ane_arena_alloc(&s->arena, folder + len + 1);
    if (!files[i].path) return no_memory(err);
    memcpy(files[i].path, index, folder);
    memcpy(files[i].path + folder, names[i], len);
    char text[ANE_QUOTE_TEXT];
    if (!ane_path_kind(files[i].path))
      at += (size_t)snprintf(missing + at, sizeof missing - at, "%s%s", at ? ", " : "", ane_quote(text, names[i], len));
  }
  if (at) return ane_fail(err, ANE_IO, "of its %" PRIu32 " files, missing: %s", count, missing);
  ane_map_close(&s->files[0].map);
  s->files = files;
  s->n_files = 0;
  return ANE_OK;
}

/* Maps and reads all files and joins their tensors in one list. */
static ane_status read_parts(struct ane_source *s, const char *index, uint32_t count, struct ane_error *err) {
  struct part *parts = ane_calloc(count, sizeof *parts);
  if (!parts) return no_memory(err);
  ane_status st = ANE_OK;
  size_t total = 0;
  for (uint32_t i = 0; i < count && !st; i++) {
    parts[i] = (struct part){.s = s, .err = err, .file = i};
    st = ane_map_open_beside(&s->files[i].map, index, file_name(s->files[i].path), err);
    if (st) break;
    s->n_files = i + 1;
    st = read_part(&parts[i]);
    total += parts[i].n_tensors;
  }
  if (!st && total > MAX_TENSORS)
    st = ane_fail(err, ANE_FORMAT, "%s: %zu tensors, the limit is %d", ane_path_tail(s->path), total, MAX_TENSORS);
  if (!st && !(s->tensors = ane_arena_array(&s->arena, total, sizeof *s->tensors))) st = no_memory(err);
  for (uint32_t i = 0; i < count && !st; i++) {
    if (parts[i].n_tensors) memcpy(s->tensors + s->n_tensors, parts[i].tensors, parts[i].n_tensors * sizeof *s->tensors);
    s->n_tensors += parts[i].n_tensors;
  }
  ane_free(parts);
  return st;
}

/* Checks that each tensor of the map is in the file that the map names. Files may hold more. */
static ane_status check_map(const struct ane_source *s, const json_t *map, struct ane_error *err) {
  const char *name;
  json_t *v;
  json_object_foreach((json_t *)(uintptr_t)map, name, v) {
    const struct ane_source_tensor *t = ane_source_tensor(s, name);
    const char *want = json_string_value(v), *found = t ? file_name(s->files[t->file].path) : NULL;
    if (found && strcmp(found, want) == 0) continue;
    char text[ANE_QUOTE_TEXT], value[ANE_QUOTE_TEXT];
    return ane_fail(err, ANE_FORMAT, "weight_map: tensor %s should be in %s, is in %s", ane_quote(text, name, strlen(name)),
                    ane_quote(value, want, strlen(want)), found ? found : "none of the files");
  }
  return ANE_OK;
}

static ane_status read_map(struct ane_source *s, const json_t *map, const char *index, struct ane_error *err) {
  const char **names = NULL;
  uint32_t count = 0;
  ane_status st = list_files(map, &names, &count, err);
  if (!st) st = place_files(s, names, count, err);
  ane_free(names);
  if (st) return ane_fail_in(err, st, "%s", ane_path_tail(index));
  st = read_parts(s, index, count, err);
  if (!st) st = ane_source_index_tensors(s, err);
  if (st) return st;
  st = check_map(s, map, err);
  if (!st) st = ane_safetensors_join_mxfp4(s, err);
  return st ? ane_fail_in(err, st, "%s", ane_path_tail(index)) : ANE_OK;
}

ane_status ane_safetensors_read_index(struct ane_source *s, struct ane_error *err) {
  const struct ane_map *file = &s->files[0].map;
  const char *path = s->files[0].path;
  json_t *root = NULL;
  ane_status st;
  if (file->size > MAX_HEADER)
    st = ane_fail(err, ANE_FORMAT, "the index has %" PRIu64 " bytes, the limit is %d", file->size, MAX_HEADER);
  else
    st = ane_json_parse(&root, file->data, file->size, 0, err);
  const json_t *map = json_object_get(root, "weight_map");
  if (!st && !json_is_object(map)) st = ane_fail(err, ANE_FORMAT, "weight_map must be an object, but is %s", ane_json_kind(map));
  if (st)
    st = ane_fail_in(err, st, "%s", ane_path_tail(path));
  else
    st = read_map(s, map, path, err);
  json_decref(root);
  return st;
}
