#include "formats/formats_internal.h"

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/utf8.h"
#include "platform/map_guard.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void ane_source_retain(struct ane_source *s) { s->refs++; }

void ane_source_close(struct ane_source *s) {
  if (!s) return;
  if (s->refs > 0) {
    s->refs--;
    return;
  }
  for (uint32_t i = 0; !s->parent && i < s->n_files - s->n_borrowed; i++) ane_map_close(&s->files[i].map);
  if (s->free_owned) s->free_owned(s->owned);
  struct ane_source *parent = s->parent;
  ane_strmap_free(&s->by_name);
  ane_strmap_free(&s->by_key);
  ane_arena_free(&s->arena);
  ane_free(s);
  ane_source_close(parent);
}

struct ane_source *ane_source_derive(struct ane_source *s) {
  struct ane_source *d = ane_calloc(1, sizeof *d);
  if (!d) return NULL;
  ane_source_retain(s);
  *d = (struct ane_source){.format = s->format, .path = s->path, .files = s->files, .n_files = s->n_files, .parent = s};
  return d;
}

/* Copies an entry of an overlay. An entry without data gets memory. */
static ane_status overlay_tensor(struct ane_source *d, const struct ane_source_tensor *from, struct ane_source_tensor *to,
                                 struct ane_error *err) {
  const ane_dtype t = from->tensor.dtype;
  uint64_t count, bytes;
  *to = *from;
  to->name = ane_arena_strndup(&d->arena, from->name, strlen(from->name));
  if (!to->name) return ane_fail(err, ANE_NOMEM, "no memory for tensor %s", from->name);
  if (from->tensor.data) return ANE_OK;
  if (!ane_shape_count(&from->tensor.shape, &count) || !ane_dtype_bytes(t, count, &bytes) || bytes > SIZE_MAX)
    return ane_fail(err, ANE_SHAPE, "tensor %s is too large", from->name);
  to->tensor = (struct ane_tensor){.dtype = t, .shape = from->tensor.shape, .bytes = bytes};
  to->offset = 0;
  void *data = ane_arena_alloc(&d->arena, (size_t)bytes);
  to->unset = ane_arena_alloc(&d->arena, sizeof *to->unset);
  if (!data || !to->unset)
    return ane_fail(err, ANE_NOMEM, "no memory for tensor %s (%" PRIu64 " bytes)", from->name, to->tensor.bytes);
  to->tensor.data = data;
  *to->unset = true;
  return ANE_OK;
}

static ane_status overlay_fill(struct ane_source *d, const struct ane_source_tensor *list, uint32_t n, struct ane_error *err) {
  const struct ane_source *s = d->parent;
  d->onnx = s->onnx;
  d->values = s->values, d->keys = s->keys, d->n_values = s->n_values;
  d->tensors = ane_arena_array(&d->arena, (size_t)s->n_tensors + n, sizeof *d->tensors);
  if (!d->tensors || !ane_strmap_reserve(&d->by_key, s->n_values)) return ane_fail(err, ANE_NOMEM, "not enough memory");
  for (uint32_t i = 0; i < s->n_values; i++)
    if (!ane_strmap_put(&d->by_key, s->keys[i], strlen(s->keys[i]), i, NULL))
      return ane_fail(err, ANE_NOMEM, "not enough memory");
  memcpy(d->tensors, s->tensors, (size_t)s->n_tensors * sizeof *d->tensors);
  d->n_tensors = s->n_tensors;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = ane_strmap_get(&s->by_name, list[i].name, strlen(list[i].name));
    if (at == UINT32_MAX) at = d->n_tensors++;
    ane_status st = overlay_tensor(d, &list[i], &d->tensors[at], err);
    if (st) return st;
  }
  return ane_source_index_tensors(d, err);
}

ane_status ane_source_overlay(struct ane_source **out, struct ane_source *s, const struct ane_source_tensor *list, uint32_t n,
                              struct ane_error *err) {
  *out = NULL;
  struct ane_source *d = ane_source_derive(s);
  ane_status st = d ? overlay_fill(d, list, n, err) : ane_fail(err, ANE_NOMEM, "not enough memory");
  if (st)
    ane_source_close(d);
  else
    *out = d;
  return st;
}

const struct ane_source_tensor *ane_source_tensor(const struct ane_source *s, const char *name) {
  uint32_t i = ane_strmap_get(&s->by_name, name, strlen(name));
  return i == UINT32_MAX ? NULL : &s->tensors[i];
}

const struct ane_meta *ane_source_meta(const struct ane_source *s, const char *key) {
  uint32_t i = ane_strmap_get(&s->by_key, key, strlen(key));
  return i == UINT32_MAX ? NULL : &s->values[i];
}

ane_status ane_source_check(const struct ane_source *s, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < s->n_files; i++) st = ane_map_check(&s->files[i].map, err);
  return st;
}

bool ane_source_holds(const struct ane_source *s, const char *path) {
  for (uint32_t i = 0; i < s->n_files; i++)
    if (ane_path_same(s->files[i].path, path)) return true;
  return false;
}

void ane_source_set(const struct ane_source_tensor *t) { *t->unset = false; }

void ane_source_forget(const struct ane_source_tensor *t) {
  if (!t->unset) return;
  ane_pages_drop((void *)(uintptr_t)t->tensor.data, (size_t)t->tensor.bytes);
  *t->unset = true;
}

void ane_source_drop(const struct ane_source *s, const struct ane_source_tensor *t) {
  const struct ane_map *m = &s->files[t->file].map;
  if ((const uint8_t *)t->tensor.data == (const uint8_t *)m->data + t->offset) ane_map_drop(m, t->offset, t->tensor.bytes);
}

ane_status ane_source_index_tensors(struct ane_source *s, struct ane_error *err) {
  if (!ane_strmap_reserve(&s->by_name, s->n_tensors)) return ane_fail(err, ANE_NOMEM, "not enough memory");
  for (uint32_t i = 0; i < s->n_tensors; i++) {
    const struct ane_source_tensor *t = &s->tensors[i];
    uint32_t old;
    if (!ane_strmap_put(&s->by_name, t->name, strlen(t->name), i, &old)) return ane_fail(err, ANE_NOMEM, "not enough memory");
    if (old == UINT32_MAX) continue;
    char text[ANE_QUOTE_TEXT];
    return ane_fail(err, ANE_FORMAT, "%s: tensor %s at byte %" PRIu64 ": the name appears twice, also at byte %" PRIu64 " of %s",
                    ane_path_tail(s->files[t->file].path), ane_quote(text, t->name, strlen(t->name)), t->offset,
                    s->tensors[old].offset, ane_path_tail(s->files[s->tensors[old].file].path));
  }
  return ANE_OK;
}

/* ---- Metadata ----------------------------------------------------------------------------------------------------*/

static int64_t saturate(double f) {
  if (isnan(f)) return 0;
  if (f >= 0x1p63) return INT64_MAX;
  return f < -0x1p63 ? INT64_MIN : (int64_t)f;
}

/* Reads one element of a scalar array. Returns true and sets *n for an integer, false and *f for a float. u64 values above the
 * range of int64 saturate. */
static bool scalar(const struct ane_meta *array, uint64_t i, int64_t *n, double *f) {
  if (array->kind != ANE_META_ARRAY || array->a.items || i >= array->a.count) return *n = 0, true;
  const uint8_t *p = array->a.data + i * ane_dtype_info(array->a.dtype)->bytes;
  switch (array->a.dtype) {
    case ANE_BOOL:
    case ANE_U8: return *n = *p, true;
    case ANE_I8: return *n = (int8_t)*p, true;
    case ANE_U16: return *n = ane_load_u16(p), true;
    case ANE_I16: return *n = (int16_t)ane_load_u16(p), true;
    case ANE_U32: return *n = ane_load_u32(p), true;
    case ANE_I32: return *n = (int32_t)ane_load_u32(p), true;
    case ANE_I64: return *n = (int64_t)ane_load_u64(p), true;
    case ANE_U64: {
      uint64_t u = ane_load_u64(p);
      *n = (int64_t)ANE_MIN(u, (uint64_t)INT64_MAX);
      *f = (double)u;
      return u <= INT64_MAX;
    }
    case ANE_F32: return *f = (double)ane_bits_f32(ane_load_u32(p)), false;
    case ANE_F64: {
      uint64_t u = ane_load_u64(p);
      memcpy(f, &u, sizeof *f);
      return false;
    }
    default: return *n = 0, true;
  }
}

double ane_meta_array_number(const struct ane_meta *array, uint64_t i) {
  int64_t n;
  double f;
  return scalar(array, i, &n, &f) ? (double)n : f;
}

int64_t ane_meta_array_integer(const struct ane_meta *array, uint64_t i) {
  int64_t n;
  double f;
  return scalar(array, i, &n, &f) ? n : saturate(f);
}

bool ane_meta_count(const struct ane_meta *m, uint64_t *n) {
  if (m->kind != ANE_META_UINT && (m->kind != ANE_META_INT || m->i < 0)) return false;
  *n = m->u;
  return true;
}

/* ---- Texts for messages ------------------------------------------------------------------------------------------*/

/* Length of the character of two to four bytes at s that may be shown; 0: none. */
static size_t shown(const char *s, size_t left) {
  const unsigned char *u = (const unsigned char *)s;
  int n = ane_utf8_step(s, left, NULL);
  bool control = u[0] == 0xC2 && n > 0 && u[1] < 0xA0; /* C1 control characters */
  return n > 1 && !control ? (size_t)n : 0;
}

const char *ane_quote(char out[ANE_QUOTE_TEXT], const char *s, uint64_t len) {
  const unsigned char *u = (const unsigned char *)s;
  size_t at = 0, i = 0;
  while (i < len && at + 8 <= ANE_QUOTE_TEXT) { /* room for one sequence and "..." with its NUL */
    size_t n = shown(s + i, (size_t)ANE_MIN(len - i, (uint64_t)4));
    if (n)
      memcpy(out + at, u + i, n);
    else
      out[at] = u[i] >= 0x20 && u[i] < 0x7F ? s[i] : '?', n = 1;
    at += n;
    i += n;
  }
  memcpy(out + at, i < len ? "..." : "", i < len ? 4 : 1);
  return out;
}

const char *ane_path_tail(const char *path) {
  size_t len = strlen(path);
  if (len <= 200) return path;
  const char *slash = strrchr(path, '/');
  return slash && strlen(slash + 1) <= 255 ? slash + 1 : path + len - 200;
}

const char *ane_location_fault(const char *s) {
  if (!*s) return "is empty";
  if (*s == '/') return "is an absolute path";
  for (const char *p = s; *p; p++) {
    if (*p == '\\') return "holds a backslash";
    if (*p == ':') return "holds a colon";
    if ((p == s || p[-1] == '/') && p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2] || p[2] == '\\'))
      return "leaves the folder";
  }
  return strlen(s) > 1024 ? "is longer than 1024 bytes" : NULL;
}
