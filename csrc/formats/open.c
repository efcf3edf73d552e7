/* Chooses the reader of a path by the contents of the file or folder, not by its name. */
#include "formats/formats_internal.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <stdio.h>
#include <string.h>

/* ---- Recognising files -------------------------------------------------------------------------------------------*/

/* Header length (8 bytes), then JSON. A file with a length of a TB or more has another format. Lengths between the format's limit
 * and that are left to the reader, whose message says more. */
static bool looks_safetensors(const uint8_t *p, uint64_t size) { return size >= 9 && ane_load_u64(p) >> 40 == 0 && p[8] == '{'; }

/* The JSON that says which file of a folder holds which tensor. */
static bool looks_index(const uint8_t *p, uint64_t size) {
  static const char key[] = "\"weight_map\"";
  uint64_t i = 0;
  while (i < size && (p[i] == ' ' || p[i] == '\n' || p[i] == '\r' || p[i] == '\t')) i++;
  return i < size && p[i] == '{' && memmem(p, (size_t)size, key, sizeof key - 1);
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

/* The opcode PROTO with a protocol of 2 to 5 (Python's pickletools.py). */
static bool looks_pickle(const uint8_t *p, uint64_t size) { return size >= 2 && p[0] == 0x80 && p[1] >= 2 && p[1] <= 5; }

/* One row per format; the first that matches counts. A file matches by `magic`, its first bytes, or by `looks`. read NULL: the
 * format is recognised but not supported, and `name` says in the message what was found. */
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
    {"safetensors", NULL, looks_safetensors, ane_safetensors_read},
    {"safetensors", NULL, looks_index, ane_safetensors_read_index},
    {"onnx", NULL, looks_onnx, ane_onnx_read},
    {"a zip archive (for example a PyTorch checkpoint)", "PK\3\4", NULL, NULL},
    {"a Python pickle (for example a PyTorch checkpoint; ane never reads pickles)", NULL, looks_pickle, NULL},
    {"a gzip archive", "\x1F\x8B", NULL, NULL},
    {"a Git LFS pointer (the model itself was not fetched)", "version https://git-lfs", NULL, NULL},
    {"an HTML page (a failed download?)", "<!DOCTYPE", NULL, NULL},
    {"an HTML page (a failed download?)", "<!doctype", NULL, NULL},
    {"an HTML page (a failed download?)", "<html", NULL, NULL},
    {"a text file", NULL, looks_text, NULL},
};

/* A file that matches no row but has this name is given to the reader, whose message says what is wrong with it. */
static bool named_safetensors(const char *path) {
  static const char suffix[] = ".safetensors";
  size_t len = strlen(path), n = sizeof suffix - 1;
  return len > n && strcmp(path + len - n, suffix) == 0;
}

static const struct format *find_format(const struct ane_map *map) {
  for (size_t i = 0; i < ANE_COUNT(formats); i++) {
    const struct format *f = &formats[i];
    if (f->magic && map->size >= strlen(f->magic) && memcmp(map->data, f->magic, strlen(f->magic)) == 0) return f;
    if (f->looks && f->looks(map->data, map->size)) return f;
  }
  return NULL;
}

/* ---- Folders -----------------------------------------------------------------------------------------------------*/

/* The kinds of folders, each known by a file in it; the first file that exists decides. `read` opens it as a source of the format
 * `name`. read NULL: the kind is recognised but not supported, and `name` says what was found. ONNX models, which have several
 * names, are looked for after the rows with `read` and before the others. */
static const struct folder {
  const char *file, *name;
  ane_source_reader read;
} folders[] = {
    {"model.safetensors", "safetensors", ane_safetensors_read},
    {"model.safetensors.index.json", "safetensors", ane_safetensors_read_index},
    {"Manifest.json", "a Core ML package", NULL},
    {"runtime_meta.json", "a set of Core ML packages or Core AI assets", NULL},
    {"main.mlirb", "a Core AI asset, which ane predict runs", NULL},
    {"coremldata.bin", "a compiled Core ML model", NULL},
    {"pytorch_model.bin", "a folder with a PyTorch checkpoint", NULL},
    {"pytorch_model.bin.index.json", "a folder with a PyTorch checkpoint", NULL},
    {"config.json", "a folder with a config.json but no model.safetensors", NULL},
    {"tokenizer.json", "a folder with a tokenizer but no model.safetensors", NULL},
    {"metadata.json", "a folder with a metadata.json, as a bundle of a Core AI asset has it (ane predict runs its .aimodel)",
     NULL},
};

/* What a path must be, for messages. */
#define WANTED "a GGUF, safetensors or ONNX file, or a folder that holds safetensors or ONNX"

static ane_status no_memory(const char *path, struct ane_error *err) {
  return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
}

/* The first row of `folders` whose file is there, its path in *file (in the arena); NULL if none is. */
static ane_status find_folder(struct ane_source *s, const struct folder **out, char **file, struct ane_error *err) {
  size_t len = strlen(s->path);
  bool slash = len > 0 && s->path[len - 1] == '/';
  *file = ane_arena_alloc(&s->arena, len + 64); /* all names are below 60 bytes */
  if (!*file) return no_memory(s->path, err);
  *out = NULL;
  for (size_t i = 0; i < ANE_COUNT(folders) && !*out; i++) {
    sprintf(*file, "%s%s%s", s->path, slash ? "" : "/", folders[i].file);
    if (ane_path_kind(*file)) *out = &folders[i];
  }
  return ANE_OK;
}

static ane_status map_first(struct ane_source *s, char *path, struct ane_error *err) {
  s->files[0].path = path;
  s->n_files = 1;
  ane_status st = ane_map_open(&s->files[0].map, path, err);
  if (st || s->files[0].map.size) return st;
  return ane_fail(err, ANE_FORMAT, "%s: the file is empty", ane_path_tail(path));
}

/* The ONNX model of a folder (in the arena), or NULL. */
static ane_status find_onnx(struct ane_source *s, char **file, struct ane_error *err) {
  char *model;
  ane_status st = ane_onnx_find(s->path, &model, err);
  *file = NULL;
  if (st || !model) return st;
  *file = ane_arena_strndup(&s->arena, model, strlen(model));
  ane_free(model);
  return *file ? ANE_OK : no_memory(s->path, err);
}

static ane_status open_folder(struct ane_source *s, struct ane_error *err) {
  const struct folder *f = NULL;
  char *file = NULL;
  ane_status st = find_folder(s, &f, &file, err);
  if (st) return st;
  if (f && f->read) {
    st = map_first(s, file, err);
    s->format = f->name;
    return st ? st : f->read(s, err);
  }
  st = find_onnx(s, &file, err);
  if (st) return st;
  if (!file && !f)
    return ane_fail(err, ANE_UNSUPPORTED, "%s: the folder has no model: it must have model.safetensors or an ONNX model",
                    ane_path_tail(s->path));
  if (!file) return ane_fail(err, ANE_UNSUPPORTED, "%s: is %s, but must be " WANTED, ane_path_tail(s->path), f->name);
  s->path = file; /* the name says what the file is to be: errors then tell what is wrong with it as that */
  s->format = "onnx";
  st = map_first(s, file, err);
  return st ? st : ane_onnx_read(s, err);
}

/* ---- Files -------------------------------------------------------------------------------------------------------*/

static ane_status refuse_unknown(const struct ane_source *s, struct ane_error *err) {
  const struct ane_map *m = &s->files[0].map;
  char hex[3 * 8 + 1] = "";
  for (size_t i = 0; i < 8 && i < m->size; i++) sprintf(hex + 3 * i, " %02x", m->data[i]);
  return ane_fail(err, ANE_UNSUPPORTED, "%s: is not a known model file; it must be " WANTED "; it begins with the bytes%s",
                  ane_path_tail(s->path), hex);
}

static ane_status open_file(struct ane_source *s, struct ane_error *err) {
  ane_status st = map_first(s, s->path, err);
  if (st) return st;
  const struct format *f = find_format(&s->files[0].map);
  s->format = f ? f->name : "safetensors";
  if (f && f->read) return f->read(s, err);
  if (named_safetensors(s->path)) return ane_safetensors_read(s, err);
  if (!f) return refuse_unknown(s, err);
  return ane_fail(err, ANE_UNSUPPORTED, "%s: is %s, but must be " WANTED, ane_path_tail(s->path), f->name);
}

/* ---- Open --------------------------------------------------------------------------------------------------------*/

static ane_status open_into(struct ane_source *s, const char *path, struct ane_error *err) {
  s->path = ane_arena_strndup(&s->arena, path, strlen(path));
  s->files = ane_arena_array(&s->arena, 1, sizeof *s->files);
  if (!s->path || !s->files) return no_memory(path, err);
  return ane_path_kind(path) == 'd' ? open_folder(s, err) : open_file(s, err);
}

ane_status ane_source_open(struct ane_source **out, const char *path, struct ane_error *err) {
  *out = NULL;
  struct ane_source *s = ane_calloc(1, sizeof *s);
  if (!s) return no_memory(path, err);
  ane_status st = open_into(s, path, err);
  if (st)
    ane_source_close(s);
  else
    *out = s;
  return st;
}
