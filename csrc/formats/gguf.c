/* GGUF, versions 2 and 3, little endian, whole or split (ggml/docs/gguf.md). Layout of a file, all numbers little endian:
 *
 *   "GGUF"  u32 version  u64 n_tensors  u64 n_values
 *   n_values  x { string key, u32 type, value }
 *   n_tensors x { string name, u32 n_dims, u64 dim[n_dims] (innermost first), u32 type, u64 offset }
 *   zeros up to a multiple of the alignment; then the data; offsets count from its first byte
 *
 *   string = u64 length, bytes;  array = u32 type, u64 count, elements
 *
 * A count is used only if the rest of the file can hold as many elements of the least size. So allocations are at most a small
 * multiple of the size of the file. */
#include "formats/formats_internal.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Value types, in the order of their ids. Scalars have the bytes of `dtype`. */
enum { TYPE_STRING = 8, TYPE_ARRAY = 9, TYPE_COUNT = 13, TYPE_U32 = 4 };
static const struct {
  const char *name;
  ane_dtype dtype;
  ane_meta_kind kind;
} types[TYPE_COUNT] = {
    {"UINT8", ANE_U8, ANE_META_UINT},     {"INT8", ANE_I8, ANE_META_INT},     {"UINT16", ANE_U16, ANE_META_UINT},
    {"INT16", ANE_I16, ANE_META_INT},     {"UINT32", ANE_U32, ANE_META_UINT}, {"INT32", ANE_I32, ANE_META_INT},
    {"FLOAT32", ANE_F32, ANE_META_FLOAT}, {"BOOL", ANE_BOOL, ANE_META_BOOL},  {"STRING", ANE_U8, ANE_META_STRING},
    {"ARRAY", ANE_U8, ANE_META_ARRAY},    {"UINT64", ANE_U64, ANE_META_UINT}, {"INT64", ANE_I64, ANE_META_INT},
    {"FLOAT64", ANE_F64, ANE_META_FLOAT},
};

enum {
  DEFAULT_ALIGNMENT = 32,
  MIN_ALIGNMENT = 8, /* the specification asks for a multiple of 8; so every element of plain types is aligned */
  MAX_DIMS = 4,
  MAX_KEY = 65535,     /* bytes; the specification's limit */
  MAX_NAME = 64,       /* bytes; the specification's limit */
  MAX_DEPTH = 4,       /* arrays within arrays */
  MAX_ITEMS = 1 << 24, /* strings or arrays of one array */
  MAX_VALUES = 1 << 14,
  MAX_TENSORS = 1 << 16,
  MIN_VALUE_BYTES = 8 + 1 + 4 + 1,
  MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8,
};

/* One file while it is read. Everything it points to lies in the arena of the source. */
struct part {
  struct ane_source *s;
  struct ane_error *err;
  struct ane_reader r;
  uint32_t file; /* index into s->files */
  const char **keys;
  struct ane_meta *values;
  struct ane_strmap by_key; /* moves to the source for the first part */
  struct ane_source_tensor *tensors;
  uint32_t n_values, n_tensors;
  uint64_t alignment;
};

static ane_status no_memory(const struct part *p) { return ane_fail(p->err, ANE_NOMEM, "not enough memory"); }

/* Fails unless `bytes` more bytes follow. */
static ane_status need(const struct part *p, uint64_t bytes) {
  uint64_t left = ane_reader_left(&p->r);
  if (bytes <= left) return ANE_OK;
  return ane_fail(p->err, ANE_FORMAT, "the file ends too early: expected %" PRIu64 " bytes at byte %zu, found %" PRIu64, bytes,
                  p->r.pos, left);
}

/* Fails unless `count` elements of at least `least` bytes each can follow. */
static ane_status fits(const struct part *p, uint64_t count, uint64_t least, uint64_t limit, const char *what) {
  uint64_t left = ane_reader_left(&p->r);
  if (count > limit) return ane_fail(p->err, ANE_FORMAT, "%" PRIu64 " %s, the limit is %" PRIu64, count, what, limit);
  if (count <= left / least) return ANE_OK;
  return ane_fail(p->err, ANE_FORMAT, "%" PRIu64 " %s do not fit into the %" PRIu64 " bytes that are left", count, what, left);
}

/* ---- Values ------------------------------------------------------------------------------------------------------*/

static ane_status read_string(struct part *p, const char **data, uint64_t *len) {
  ane_status st = need(p, 8);
  if (st) return st;
  *len = ane_read_u64(&p->r);
  if ((st = need(p, *len))) return st;
  *data = (const char *)ane_read_bytes(&p->r, *len);
  return ANE_OK;
}

/* A name that becomes a C string: 1 to max bytes, none of them NUL. */
static ane_status read_name(struct part *p, const char **out, size_t max) {
  const char *data;
  uint64_t len;
  ane_status st = read_string(p, &data, &len);
  if (st) return st;
  char text[ANE_QUOTE_TEXT];
  if (len == 0) return ane_fail(p->err, ANE_FORMAT, "the name is empty");
  if (len > max)
    return ane_fail(p->err, ANE_FORMAT, "the name %s has %" PRIu64 " bytes, the limit is %zu", ane_quote(text, data, len), len,
                    max);
  if (memchr(data, 0, (size_t)len))
    return ane_fail(p->err, ANE_FORMAT, "the name %s holds a NUL byte", ane_quote(text, data, len));
  *out = ane_arena_strndup(&p->s->arena, data, (size_t)len);
  return *out ? ANE_OK : no_memory(p);
}

static ane_status check_bools(const struct part *p, const uint8_t *data, uint64_t count) {
  for (uint64_t i = 0; i < count; i++)
    if (data[i] > 1) return ane_fail(p->err, ANE_FORMAT, "a BOOL must be 0 or 1, but is %u", data[i]);
  return ANE_OK;
}

static ane_status read_scalar(struct part *p, uint32_t type, struct ane_meta *out) {
  ane_status st = need(p, ane_dtype_info(types[type].dtype)->bytes);
  if (st) return st;
  out->kind = types[type].kind;
  out->dtype = types[type].dtype;
  /* Reads the value as an array of one element, so that one function knows every type. */
  struct ane_meta one = {.kind = ANE_META_ARRAY};
  one.a.kind = out->kind;
  one.a.dtype = types[type].dtype;
  one.a.count = 1;
  one.a.data = ane_read_bytes(&p->r, ane_dtype_info(one.a.dtype)->bytes);
  if (one.a.dtype == ANE_U64)
    out->u = ane_load_u64(one.a.data);
  else if (out->kind == ANE_META_FLOAT)
    out->f = ane_meta_array_number(&one, 0);
  else
    out->i = ane_meta_array_integer(&one, 0);
  return out->kind == ANE_META_BOOL ? check_bools(p, one.a.data, 1) : ANE_OK;
}

/* Reads the strings of vocabularies and merges: 300,000 of them in a few ms. */
static ane_status read_strings(struct part *p, struct ane_meta *items, uint64_t count) {
  struct ane_reader *r = &p->r;
  for (uint64_t i = 0; i < count; i++) {
    size_t left = r->size - r->pos;
    uint64_t len = left < 8 ? UINT64_MAX : ane_load_u64(r->data + r->pos);
    if (left < 8 || len > left - 8) {
      ane_status st = left < 8 ? need(p, 8) : (r->pos += 8, need(p, len));
      return ane_fail_in(p->err, st, "string %" PRIu64 " of %" PRIu64, i, count);
    }
    items[i].kind = ANE_META_STRING;
    items[i].s.data = (const char *)r->data + r->pos + 8;
    items[i].s.len = len;
    r->pos += 8 + (size_t)len;
  }
  return ANE_OK;
}

static ane_status read_array(struct part *p, struct ane_meta *out, int depth) {
  ane_status st = need(p, 12);
  if (st) return st;
  uint32_t type = ane_read_u32(&p->r);
  uint64_t count = ane_read_u64(&p->r);
  if (type >= TYPE_COUNT) return ane_fail(p->err, ANE_FORMAT, "unknown element type %" PRIu32 ", known are 0 to 12", type);
  if (depth >= MAX_DEPTH) return ane_fail(p->err, ANE_FORMAT, "arrays nested deeper than %d", MAX_DEPTH);
  *out = (struct ane_meta){.kind = ANE_META_ARRAY};
  out->a.kind = types[type].kind;
  out->a.dtype = types[type].dtype;
  out->a.count = count;
  if (type != TYPE_STRING && type != TYPE_ARRAY) {
    uint64_t size = ane_dtype_info(types[type].dtype)->bytes;
    if ((st = fits(p, count, size, UINT64_MAX, "elements"))) return st;
    out->a.data = ane_read_bytes(&p->r, count * size);
    return type == 7 ? check_bools(p, out->a.data, count) : ANE_OK;
  }
  if ((st = fits(p, count, type == TYPE_STRING ? 8 : 12, MAX_ITEMS, "elements"))) return st;
  struct ane_meta *items = ane_arena_array(&p->s->arena, (size_t)count, sizeof *items);
  if (!items) return no_memory(p);
  out->a.items = items;
  if (type == TYPE_STRING) return read_strings(p, items, count);
  for (uint64_t i = 0; i < count && !st; i++) st = read_array(p, &items[i], depth + 1);
  return st;
}

static ane_status read_value(struct part *p, struct ane_meta *out, uint32_t *type) {
  ane_status st = need(p, 4);
  if (st) return st;
  *type = ane_read_u32(&p->r);
  if (*type >= TYPE_COUNT) return ane_fail(p->err, ANE_FORMAT, "unknown value type %" PRIu32 ", known are 0 to 12", *type);
  if (*type == TYPE_ARRAY) return read_array(p, out, 0);
  if (*type != TYPE_STRING) return read_scalar(p, *type, out);
  out->kind = ANE_META_STRING;
  return read_string(p, &out->s.data, &out->s.len);
}

static ane_status check_alignment(struct part *p, const struct ane_meta *m, uint32_t type) {
  if (type != TYPE_U32) return ane_fail(p->err, ANE_FORMAT, "must be a UINT32, but is %s", types[type].name);
  if (m->u < MIN_ALIGNMENT || (m->u & (m->u - 1)))
    return ane_fail(p->err, ANE_FORMAT, "must be a power of two of at least %d, but is %" PRIu64, MIN_ALIGNMENT, m->u);
  p->alignment = m->u;
  return ANE_OK;
}

static ane_status read_key_value(struct part *p, uint32_t i) {
  size_t at = p->r.pos;
  ane_status st = read_name(p, &p->keys[i], MAX_KEY);
  if (st) return ane_fail_in(p->err, st, "key %" PRIu32 " of %" PRIu32 " at byte %zu", i + 1, p->n_values, at);
  const char *key = p->keys[i];
  uint32_t type, old;
  st = read_value(p, &p->values[i], &type);
  if (!st && !ane_strmap_put(&p->by_key, key, strlen(key), i, &old))
    st = no_memory(p);
  else if (!st && old != UINT32_MAX)
    st = ane_fail(p->err, ANE_FORMAT, "the key appears twice");
  if (!st && strcmp(key, "general.alignment") == 0) st = check_alignment(p, &p->values[i], type);
  char text[ANE_QUOTE_TEXT];
  return st ? ane_fail_in(p->err, st, "key %s at byte %zu", ane_quote(text, key, strlen(key)), at) : ANE_OK;
}

/* ---- Tensors -----------------------------------------------------------------------------------------------------*/

static ane_status unknown_type(const struct part *p, uint32_t id) {
  char names[320] = "";
  size_t at = 0;
  for (uint32_t i = 0; i < 64 && at < sizeof names; i++) {
    ane_dtype t = ane_dtype_from_gguf(i);
    if (t != ANE_DTYPE_COUNT)
      at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? " " : "", ane_dtype_info(t)->name);
  }
  return ane_fail(p->err, ANE_UNSUPPORTED, "unknown tensor type %" PRIu32 "; known are %s", id, names);
}

/* Reads shape (outermost first; the file has innermost first), type and size. */
static ane_status read_layout(struct part *p, struct ane_tensor *t) {
  ane_status st = need(p, 4);
  if (st) return st;
  uint32_t rank = ane_read_u32(&p->r);
  if (rank > MAX_DIMS) return ane_fail(p->err, ANE_FORMAT, "%" PRIu32 " dimensions, the limit is %d", rank, MAX_DIMS);
  if ((st = need(p, 8 * rank + 4 + 8))) return st;
  t->shape.rank = rank;
  for (uint32_t i = 0; i < rank; i++) {
    uint64_t dim = ane_read_u64(&p->r);
    if (dim == 0 || dim > INT64_MAX) return ane_fail(p->err, ANE_FORMAT, "dimension %" PRIu32 " is %" PRIu64, i, dim);
    t->shape.dim[rank - 1 - i] = (int64_t)dim;
  }
  uint32_t type = ane_read_u32(&p->r);
  t->dtype = ane_dtype_from_gguf(type);
  if (t->dtype == ANE_DTYPE_COUNT) return unknown_type(p, type);
  const struct ane_dtype_info *info = ane_dtype_info(t->dtype);
  int64_t columns = rank ? t->shape.dim[rank - 1] : 1;
  if (columns % info->block)
    return ane_fail(p->err, ANE_FORMAT, "%s needs a multiple of %" PRIu32 " columns, has %" PRId64, info->name, info->block,
                    columns);
  uint64_t count;
  char text[ANE_SHAPE_TEXT];
  if (!ane_shape_count(&t->shape, &count) || count > INT64_MAX || !ane_dtype_bytes(t->dtype, count, &t->bytes))
    return ane_fail(p->err, ANE_FORMAT, "the size of %s %s overflows", info->name, ane_shape_text(&t->shape, text));
  return ANE_OK;
}

static ane_status tensor_fail(const struct part *p, const char *name, uint64_t at, ane_status st) {
  char text[ANE_QUOTE_TEXT];
  return ane_fail_in(p->err, st, "tensor %s at byte %" PRIu64, ane_quote(text, name, strlen(name)), at);
}

static ane_status read_tensor_info(struct part *p, uint32_t i) {
  struct ane_source_tensor *t = &p->tensors[i];
  size_t at = p->r.pos;
  ane_status st = read_name(p, &t->name, MAX_NAME);
  if (st) return ane_fail_in(p->err, st, "tensor %" PRIu32 " of %" PRIu32 " at byte %zu", i + 1, p->n_tensors, at);
  st = read_layout(p, &t->tensor);
  if (st) return tensor_fail(p, t->name, at, st);
  t->offset = ane_read_u64(&p->r); /* the start of the data is added later */
  t->file = p->file;
  if (t->offset % p->alignment == 0) return ANE_OK;
  st =
      ane_fail(p->err, ANE_FORMAT, "its offset %" PRIu64 " is not a multiple of the alignment %" PRIu64, t->offset, p->alignment);
  return tensor_fail(p, t->name, at, st);
}

/* Turns offsets into positions in the file and sets data pointers. Fails if data reach beyond the end of the file. */
static ane_status place_tensors(struct part *p) {
  uint64_t size = p->r.size, start = (p->r.pos + p->alignment - 1) & ~(p->alignment - 1);
  uint64_t room = start < size ? size - start : 0;
  for (uint32_t i = 0; i < p->n_tensors; i++) {
    struct ane_source_tensor *t = &p->tensors[i];
    if (t->offset > room || t->tensor.bytes > room - t->offset) {
      char text[ANE_SHAPE_TEXT];
      ane_status st = ane_fail(
          p->err, ANE_FORMAT, "%s %s needs %" PRIu64 " bytes at offset %" PRIu64 ", the file has %" PRIu64 " bytes of data",
          ane_dtype_info(t->tensor.dtype)->name, ane_shape_text(&t->tensor.shape, text), t->tensor.bytes, t->offset, room);
      uint64_t at = t->offset;
      return tensor_fail(p, t->name, ane_add_u64(start, at, &at) ? at : UINT64_MAX, st);
    }
    t->offset += start;
    t->tensor.data = p->r.data + t->offset;
  }
  return ANE_OK;
}

static int by_offset(const void *a, const void *b) {
  const struct ane_source_tensor *x = *(const struct ane_source_tensor *const *)a,
                                 *y = *(const struct ane_source_tensor *const *)b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return (x > y) - (x < y); /* in the order of the file: qsort of other C libraries does not keep it */
}

static ane_status check_overlap(const struct part *p) {
  const struct ane_source_tensor *t = p->tensors;
  uint32_t n = p->n_tensors, i = 1;
  while (i < n && t[i].offset >= t[i - 1].offset + t[i - 1].tensor.bytes) i++;
  if (i >= n) return ANE_OK; /* writers store tensors in order */
  const struct ane_source_tensor **sorted = ane_malloc(n * sizeof *sorted);
  if (!sorted) return no_memory(p);
  for (i = 0; i < n; i++) sorted[i] = &t[i];
  qsort(sorted, n, sizeof *sorted, by_offset);
  ane_status st = ANE_OK;
  for (i = 1; i < n && !st; i++) {
    const struct ane_source_tensor *a = sorted[i - 1], *b = sorted[i];
    if (b->offset - a->offset >= a->tensor.bytes) continue;
    char text[ANE_QUOTE_TEXT];
    st = ane_fail(p->err, ANE_FORMAT, "overlaps tensor %s at byte %" PRIu64 " of %" PRIu64 " bytes",
                  ane_quote(text, a->name, strlen(a->name)), a->offset, a->tensor.bytes);
    st = tensor_fail(p, b->name, b->offset, st);
  }
  ane_free(sorted);
  return st;
}

/* ---- One file ----------------------------------------------------------------------------------------------------*/

static ane_status read_header(struct part *p) {
  const uint8_t *magic = ane_read_bytes(&p->r, 4);
  if (!magic || memcmp(magic, "GGUF", 4) != 0)
    return ane_fail(p->err, ANE_FORMAT, "is not a GGUF file: it does not begin with \"GGUF\"");
  ane_status st = need(p, 4);
  if (st) return st;
  uint32_t version = ane_read_u32(&p->r);
  if (version && !(version & 0xFFFF))
    return ane_fail(p->err, ANE_UNSUPPORTED, "must be little endian, but is a big-endian GGUF file (version %" PRIu32 ")",
                    version >> 24);
  if (version != 2 && version != 3)
    return ane_fail(p->err, ANE_UNSUPPORTED, "the GGUF version at byte 4 must be 2 or 3, but is %" PRIu32, version);
  if ((st = need(p, 16))) return st;
  uint64_t n_tensors = ane_read_u64(&p->r), n_values = ane_read_u64(&p->r);
  if ((st = fits(p, n_tensors, MIN_TENSOR_BYTES, MAX_TENSORS, "tensors"))) return ane_fail_in(p->err, st, "byte 8");
  if ((st = fits(p, n_values, MIN_VALUE_BYTES, MAX_VALUES, "keys"))) return ane_fail_in(p->err, st, "byte 16");
  p->n_tensors = (uint32_t)n_tensors;
  p->n_values = (uint32_t)n_values;
  struct ane_arena *arena = &p->s->arena;
  p->keys = ane_arena_array(arena, p->n_values, sizeof *p->keys);
  p->values = ane_arena_array(arena, p->n_values, sizeof *p->values);
  p->tensors = ane_arena_array(arena, p->n_tensors, sizeof *p->tensors);
  return p->keys && p->values && p->tensors ? ANE_OK : no_memory(p);
}

static ane_status read_part(struct part *p) {
  const struct ane_map *map = &p->s->files[p->file].map;
  p->r = ane_reader_of(map->data, (size_t)map->size);
  p->alignment = DEFAULT_ALIGNMENT;
  ane_status st = read_header(p);
  for (uint32_t i = 0; !st && i < p->n_values; i++) st = read_key_value(p, i);
  for (uint32_t i = 0; !st && i < p->n_tensors; i++) st = read_tensor_info(p, i);
  if (!st) st = place_tensors(p);
  if (!st) st = check_overlap(p);
  return st ? ane_fail_in(p->err, st, "%s", ane_path_tail(p->s->files[p->file].path)) : ANE_OK;
}

/* ---- Split files -------------------------------------------------------------------------------------------------*/

/* What a part says about the split. A whole file is part 0 of 1. */
struct split {
  uint64_t no, count, tensors; /* of all parts; UINT64_MAX: not given */
};

static ane_status split_key(const struct part *p, const char *key, uint64_t *n) {
  uint32_t i = ane_strmap_get(&p->by_key, key, strlen(key));
  if (i == UINT32_MAX || ane_meta_count(&p->values[i], n)) return ANE_OK;
  return ane_fail(p->err, ANE_FORMAT, "%s: key %s: must be a count", ane_path_tail(p->s->files[p->file].path), key);
}

static ane_status split_of(const struct part *p, struct split *out) {
  *out = (struct split){0, 1, UINT64_MAX};
  ane_status st = split_key(p, "split.count", &out->count);
  if (!st) st = split_key(p, "split.no", &out->no);
  if (!st) st = split_key(p, "split.tensors.count", &out->tensors);
  if (st) return st;
  if (out->count <= 1) out->count = 1, out->no = 0;
  if (out->count > 65535 || out->no >= out->count)
    return ane_fail(p->err, ANE_FORMAT, "%s: split.no %" PRIu64 " of split.count %" PRIu64 " is out of range",
                    ane_path_tail(p->s->files[p->file].path), out->no, out->count);
  return ANE_OK;
}

/* The path of part `no`, such as "base-00002-of-00003.gguf", in the arena. It is made from the path of the file that was opened.
 * NULL: that path has no such name (*named is then false), or there is no memory. Parts count from 1 in names, from 0 in
 * split.no. */
static char *part_path(struct ane_source *s, const struct split *sp, uint64_t no, bool *named) {
  char end[40];
  int n = snprintf(end, sizeof end, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", sp->no + 1, sp->count);
  size_t len = strlen(s->path), cut = (size_t)n;
  *named = len > cut && strcmp(s->path + len - cut, end) == 0;
  if (!*named) return NULL;
  char *path = ane_arena_alloc(&s->arena, len + sizeof end);
  if (!path) return NULL;
  memcpy(path, s->path, len - cut);
  snprintf(path + len - cut, sizeof end, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", no + 1, sp->count);
  return path;
}

static ane_status not_first(const struct part *p, const struct split *sp) {
  bool named;
  const char *first = part_path(p->s, sp, 0, &named);
  return ane_fail(p->err, ANE_FORMAT, "%s: is part %" PRIu64 " of %" PRIu64 "; open the first part%s%s",
                  ane_path_tail(p->s->path), sp->no + 1, sp->count, first ? ", " : "", first ? ane_path_tail(first) : "");
}

/* Looks for all parts before it opens any, so that the message can name several missing ones. It stops after four, because the
 * count in the file may be wrong. */
static ane_status find_parts(const struct part *p, const struct split *sp) {
  struct ane_source *s = p->s;
  struct ane_source_file *files = ane_arena_array(&s->arena, (size_t)sp->count, sizeof *files);
  if (!files) return no_memory(p);
  files[0] = s->files[0];
  s->files = files;
  char names[400] = "";
  size_t at = 0;
  int missing = 0;
  for (uint64_t i = 1; i < sp->count && missing < 4; i++) {
    bool named;
    files[i].path = part_path(s, sp, i, &named);
    if (!named)
      return ane_fail(p->err, ANE_FORMAT, "%s: is part 1 of %" PRIu64 ", its name must end in -00001-of-%05" PRIu64 ".gguf",
                      ane_path_tail(s->path), sp->count, sp->count);
    if (!files[i].path) return no_memory(p);
    if (ane_path_kind(files[i].path)) continue;
    const char *slash = strrchr(files[i].path, '/'), *name = slash ? slash + 1 : files[i].path;
    if (at < sizeof names) at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", missing++ ? ", " : "", name);
  }
  if (!missing) return ANE_OK;
  return ane_fail(p->err, ANE_IO, "%s: of its %" PRIu64 " parts, missing: %s", ane_path_tail(s->path), sp->count, names);
}

/* Reads a part after the first. The source keeps nothing of its metadata. */
static ane_status read_further(struct part *p, const struct split *first) {
  struct ane_source_file *f = &p->s->files[p->file];
  ane_status st = ane_map_open(&f->map, f->path, p->err);
  if (st) return st;
  p->s->n_files = p->file + 1;
  struct split sp;
  if ((st = read_part(p)) || (st = split_of(p, &sp))) return st;
  if (sp.no == p->file && sp.count == first->count) return ANE_OK;
  return ane_fail(p->err, ANE_FORMAT,
                  "%s: must be part %" PRIu32 " of %" PRIu64 ", but says that it is part %" PRIu64 " of %" PRIu64,
                  ane_path_tail(f->path), p->file + 1, first->count, sp.no + 1, sp.count);
}

/* Joins the tensors of all parts in s->tensors. `parts` holds sp->count parts, of which the first has been read. */
static ane_status join_parts(struct ane_source *s, struct part *parts, const struct split *sp) {
  ane_status st = ANE_OK;
  uint64_t total = parts[0].n_tensors;
  for (uint32_t i = 1; i < sp->count && !st; i++) {
    parts[i] = (struct part){.s = s, .err = parts[0].err, .file = i};
    st = read_further(&parts[i], sp);
    ane_strmap_free(&parts[i].by_key);
    total += parts[i].n_tensors;
  }
  if (st) return st;
  if (total > MAX_TENSORS)
    return ane_fail(parts[0].err, ANE_FORMAT, "%s: %" PRIu64 " tensors, the limit is %d", ane_path_tail(s->path), total,
                    MAX_TENSORS);
  if (sp->tensors != UINT64_MAX && sp->tensors != total)
    return ane_fail(parts[0].err, ANE_FORMAT, "%s: split.tensors.count is %" PRIu64 ", the %" PRIu64 " parts hold %" PRIu64,
                    ane_path_tail(s->path), sp->tensors, sp->count, total);
  s->tensors = ane_arena_array(&s->arena, (size_t)total, sizeof *s->tensors);
  if (!s->tensors) return no_memory(&parts[0]);
  for (uint32_t i = 0; i < sp->count; i++) {
    memcpy(s->tensors + s->n_tensors, parts[i].tensors, parts[i].n_tensors * sizeof *s->tensors);
    s->n_tensors += parts[i].n_tensors;
  }
  return ANE_OK;
}

static ane_status read_others(struct part *p, const struct split *sp) {
  ane_status st = find_parts(p, sp);
  if (st) return st;
  struct part *parts = ane_calloc((size_t)sp->count, sizeof *parts);
  if (!parts) return no_memory(p);
  parts[0] = *p;
  st = join_parts(p->s, parts, sp);
  ane_free(parts);
  return st;
}

/* ---- The source --------------------------------------------------------------------------------------------------*/

ane_status ane_gguf_read(struct ane_source *s, struct ane_error *err) {
  struct part p = {.s = s, .err = err};
  ane_status st = read_part(&p);
  s->by_key = p.by_key; /* on failure too: the source frees it */
  if (st) return st;
  s->keys = p.keys;
  s->values = p.values;
  s->n_values = p.n_values;
  struct split sp;
  if ((st = split_of(&p, &sp))) return st;
  if (sp.no != 0) return not_first(&p, &sp);
  if (sp.count > 1) {
    if ((st = read_others(&p, &sp))) return st;
  } else {
    s->tensors = p.tensors;
    s->n_tensors = p.n_tensors;
  }
  return ane_source_index_tensors(s, err);
}
