/* Which reader takes a path: decided by what is there, not by the name. */
#include "formats/formats_internal.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <stdio.h>
#include <string.h>

/* ---- Looks of files ----------------------------------------------------------------------------------------------*/

/* Header length (8 bytes, at most 100 MB by the format's own limit), then JSON. */
static bool looks_safetensors(const uint8_t *p, uint64_t size) {
  if (size < 10) return false;
  uint64_t n = ane_load_u64(p);
  return n >= 2 && n <= 100000000 && n <= size - 8 && p[8] == '{';
}

/* ModelProto (onnx.proto): field 1 ir_version as a small varint, then a length-delimited field 2, 3, 7 or 8 (names,
 * graph, opset imports). */
static bool looks_onnx(const uint8_t *p, uint64_t size) {
  return size >= 4 && p[0] == 0x08 && p[1] >= 1 && p[1] < 64 && (p[2] == 0x12 || p[2] == 0x1A || p[2] == 0x3A || p[2] == 0x42);
}

static bool looks_text(const uint8_t *p, uint64_t size) {
  size_t n = (size_t)ANE_MIN(size, (uint64_t)512);
  for (size_t i = 0; i < n; i++)
    if (p[i] < 0x20 ? !strchr("\t\n\r\f", p[i]) || !p[i] : p[i] == 0x7F) return false;
  return n > 0;
}

/* One row a format: the first that matches wins. `magic` (its bytes at the start) or `looks`; `read` is NULL where the
 * format is known by sight only, `name` then says what was found. */
static const struct format {
  const char *name;
  const char *magic;
  bool (*looks)(const uint8_t *p, uint64_t size);
  ane_source_reader read;
} formats[] = {
    {"gguf", "GGUF", NULL, ane_gguf_read},
    {"a big-endian GGUF file", "FUGG", NULL, NULL},
    {"a GGML file from before GGUF", "tjgg", NULL, NULL},
    {"a GGML file from before GGUF", "lmgg", NULL, NULL},
    {"a GGML file from before GGUF", "fmgg", NULL, NULL},
    {"a safetensors file", NULL, looks_safetensors, NULL},
    {"onnx", NULL, looks_onnx, ane_onnx_read},
    {"a zip archive (PyTorch checkpoints are such)", "PK\3\4", NULL, NULL},
    {"a gzip archive", "\x1F\x8B", NULL, NULL},
    {"a Git LFS pointer (the model itself was not fetched)", "version https://git-lfs", NULL, NULL},
    {"an HTML page (a failed download?)", "<!DOCTYPE", NULL, NULL},
    {"an HTML page (a failed download?)", "<!doctype", NULL, NULL},
    {"an HTML page (a failed download?)", "<html", NULL, NULL},
    {"a text file", NULL, looks_text, NULL},
};

/* In a folder the name says what a file is to be: errors then tell what is wrong with it as that. */
static const struct format onnx_format = {"onnx", NULL, NULL, ane_onnx_read};

static const struct format *find_format(const struct ane_map *map) {
  for (size_t i = 0; i < ANE_COUNT(formats); i++) {
    const struct format *f = &formats[i];
    if (f->magic && map->size >= strlen(f->magic) && memcmp(map->data, f->magic, strlen(f->magic)) == 0) return f;
    if (f->looks && f->looks(map->data, map->size)) return f;
  }
  return NULL;
}

/* ---- Looks of folders --------------------------------------------------------------------------------------------*/

static const struct {
  const char *file, *name;
} folders[] = {
    {"Manifest.json", "a Core ML package"},
    {"coremldata.bin", "a compiled Core ML model"},
    {"model.safetensors.index.json", "a folder with safetensors files"},
    {"model.safetensors", "a folder with a safetensors file"},
    {"config.json", "a folder with a config.json"},
};

static ane_status refuse_folder(const char *path, struct ane_error *err) {
  const char *found = "a folder";
  char *name = ane_calloc(1, strlen(path) + 64);
  if (!name) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  for (size_t i = 0; i < ANE_COUNT(folders); i++) {
    sprintf(name, "%s/%s", path, folders[i].file); /* room: all names are below 60 bytes */
    if (!ane_path_kind(name)) continue;
    found = folders[i].name;
    break;
  }
  ane_free(name);
  return ane_fail(err, ANE_UNSUPPORTED, "%s: is %s, wanted a GGUF file", ane_path_tail(path), found);
}

/* ---- Open --------------------------------------------------------------------------------------------------------*/

static ane_status refuse_unknown(const struct ane_source *s, struct ane_error *err) {
  const struct ane_map *m = &s->files[0].map;
  char hex[3 * 8 + 1] = "";
  for (size_t i = 0; i < 8 && i < m->size; i++) sprintf(hex + 3 * i, " %02x", m->data[i]);
  return ane_fail(err, ANE_UNSUPPORTED, "%s: is no model file known here, wanted a GGUF file; it begins with the bytes%s",
                  ane_path_tail(s->path), hex);
}

static ane_status open_into(struct ane_source *s, const char *path, bool onnx, struct ane_error *err) {
  s->path = ane_arena_strndup(&s->arena, path, strlen(path));
  s->files = ane_arena_array(&s->arena, 1, sizeof *s->files);
  if (!s->path || !s->files) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  s->files[0].path = s->path;
  s->n_files = 1;
  ane_status st = ane_map_open(&s->files[0].map, path, err);
  if (st) return st;
  if (s->files[0].map.size == 0) return ane_fail(err, ANE_FORMAT, "%s: the file is empty", ane_path_tail(path));
  const struct format *f = onnx ? &onnx_format : find_format(&s->files[0].map);
  if (!f) return refuse_unknown(s, err);
  if (!f->read) return ane_fail(err, ANE_UNSUPPORTED, "%s: is %s, wanted a GGUF file", ane_path_tail(path), f->name);
  s->format = f->name;
  return f->read(s, err);
}

ane_status ane_source_open(struct ane_source **out, const char *path, struct ane_error *err) {
  *out = NULL;
  bool folder = ane_path_kind(path) == 'd';
  char *model = NULL;
  ane_status st = folder ? ane_onnx_find(path, &model, err) : ANE_OK;
  if (!st && folder && !model) st = refuse_folder(path, err);
  if (st) return st;
  struct ane_source *s = ane_calloc(1, sizeof *s);
  st = s ? open_into(s, folder ? model : path, folder, err) : ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  ane_free(model);
  if (st) ane_source_close(s);
  else *out = s;
  return st;
}
