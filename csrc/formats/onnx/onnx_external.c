/* Tensors whose data lie in another file of the model's folder. */
#include "formats/onnx/onnx_internal.h"

#include <inttypes.h>
#include <string.h>

/* Reads a number of decimal digits only. false: a sign, a space, or overflow. */
static bool read_number(const char *s, uint64_t *out) {
  uint64_t n = 0;
  if (!*s) return false;
  for (; *s; s++)
    if (*s < '0' || *s > '9' || !ane_mul_u64(n, 10, &n) || !ane_add_u64(n, (uint64_t)(*s - '0'), &n)) return false;
  *out = n;
  return true;
}

/* Adds a file. A full list is copied to larger memory of the arena. */
static ane_status add_file(struct onnx_reader *r, const char *what, const char *location, uint32_t *index) {
  struct ane_source *s = r->s;
  if (s->n_files >= ONNX_MAX_FILES) return onnx_fail(r, ANE_UNSUPPORTED, "more than %d files of external data", ONNX_MAX_FILES);
  if (s->n_files == r->room_files) {
    uint32_t room = r->room_files * 2;
    struct ane_source_file *files = onnx_array(r, room, sizeof *files);
    if (!files) return onnx_no_memory(r);
    memcpy(files, s->files, s->n_files * sizeof *files);
    s->files = files;
    r->room_files = room;
  }
  const char *model = s->files[0].path, *slash = strrchr(model, '/');
  size_t dir = slash ? (size_t)(slash + 1 - model) : 0, len = strlen(location);
  char *path = ane_arena_alloc(&s->arena, dir + len + 1);
  if (!path) return onnx_no_memory(r);
  memcpy(path, model, dir);
  memcpy(path + dir, location, len + 1);
  struct ane_source_file *f = &s->files[s->n_files];
  *f = (struct ane_source_file){.path = path};
  if (!ane_strmap_put(&r->locations, path + dir, len, s->n_files, NULL)) return onnx_no_memory(r);
  ane_status st = ane_map_open_beside(&f->map, model, location, r->err);
  if (st) return ane_fail_in(r->err, st, "%s: %s: external data", ane_path_tail(model), what);
  *index = s->n_files++;
  return ANE_OK;
}

ane_status onnx_external(struct onnx_reader *r, const AneOnnx__Tensor *t, const char *what, uint64_t bytes,
                         struct ane_onnx_tensor *out) {
  const char *location = "";
  uint64_t offset = 0, length = UINT64_MAX;
  char q[ANE_QUOTE_TEXT];
  for (size_t i = 0; i < t->n_external_data; i++) {
    const char *key = onnx_text(t->external_data[i]->key), *value = onnx_text(t->external_data[i]->value);
    bool is_offset = strcmp(key, "offset") == 0;
    if (strcmp(key, "location") == 0)
      location = value;
    else if ((is_offset || strcmp(key, "length") == 0) && !read_number(value, is_offset ? &offset : &length))
      return onnx_fail(r, ANE_FORMAT, "%s: external data: %s must be a decimal number, but is \"%s\"", what, key,
                       ane_quote(q, value, strlen(value)));
  }
  const char *fault = ane_location_fault(location);
  if (fault)
    return onnx_fail(r, ANE_FORMAT, "%s: external data: location \"%s\" %s", what, ane_quote(q, location, strlen(location)),
                     fault);
  uint32_t file = ane_strmap_get(&r->locations, location, strlen(location));
  if (file == UINT32_MAX) {
    ane_status st = add_file(r, what, location, &file);
    if (st) return st;
  }
  uint64_t size = r->s->files[file].map.size;
  if (offset > size)
    return onnx_fail(r, ANE_FORMAT, "%s: external data: offset %" PRIu64 " lies beyond the %" PRIu64 " bytes of the file", what,
                     offset, size);
  if (length == UINT64_MAX) length = size - offset;
  if (length > size - offset)
    return onnx_fail(r, ANE_FORMAT,
                     "%s: external data: %" PRIu64 " bytes at %" PRIu64 " go beyond the %" PRIu64 " bytes of the file", what,
                     length, offset, size);
  if (length != bytes)
    return onnx_fail(r, ANE_FORMAT, "%s: external data has %" PRIu64 " bytes, but its shape needs %" PRIu64, what, length, bytes);
  out->data = bytes ? r->s->files[file].map.data + offset : (const uint8_t *)"";
  out->file = file;
  out->offset = offset;
  return ANE_OK;
}
