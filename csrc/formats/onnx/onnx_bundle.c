/* Folders that hold an ONNX model: those of ONNX Runtime GenAI (genai_config.json names the file), those with a
 * model.onnx, and those with model files in onnx/ (transformers.js), whose names state the type of the weights. */
#include "formats/formats_internal.h"

#include "base/alloc.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Reads model.decoder.filename of a genai_config.json; "model.onnx" if it is absent. The name must be that of a file in the
 * folder. */
static ane_status read_filename(const struct ane_map *map, const char *path, char *name, size_t room, struct ane_error *err) {
  json_t *root;
  ane_status st = ane_json_parse(&root, map->data, map->size, 0, err);
  if (st) return ane_fail_in(err, st, "%s", ane_path_tail(path));
  const char *file = json_string_value(json_object_get(json_object_get(json_object_get(root, "model"), "decoder"), "filename"));
  if (!file) file = "model.onnx";
  if (strlen(file) >= room || !*file || strpbrk(file, "/\\:") || strcmp(file, "..") == 0) {
    char q[ANE_QUOTE_TEXT];
    st = ane_fail(err, ANE_FORMAT, "%s: model.decoder.filename must be the name of a file in the folder, but is \"%s\"",
                  ane_path_tail(path), ane_quote(q, file, strlen(file)));
  } else {
    snprintf(name, room, "%s", file);
  }
  json_decref(root);
  return st;
}

static ane_status from_config(const char *path, char *name, size_t room, struct ane_error *err) {
  struct ane_map map;
  ane_status st = ane_map_open(&map, path, err);
  if (st) return st;
  st = map.size ? read_filename(&map, path, name, room, err)
                : ane_fail(err, ANE_FORMAT, "%s: the file is empty", ane_path_tail(path));
  ane_map_close(&map);
  return st;
}

ane_status ane_onnx_find(const char *folder, char **model, struct ane_error *err) {
  char name[256] = "";
  size_t len = strlen(folder), room = len + sizeof name + 2;
  char *path = ane_calloc(1, room);
  *model = NULL;
  if (!path) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(folder));
  const char *sep = len && folder[len - 1] == '/' ? "" : "/";
  ane_status st = ANE_OK;
  snprintf(path, room, "%s%sgenai_config.json", folder, sep);
  if (ane_path_kind(path)) st = from_config(path, name, sizeof name, err);
  static const char *const usual[] = {"model.onnx", "onnx/model.onnx", "onnx/model_q4.onnx", "onnx/model_q4f16.onnx",
                                      "onnx/model_fp16.onnx"};
  for (size_t i = 0; !st && !*name && i < ANE_COUNT(usual); i++) {
    snprintf(path, room, "%s%s%s", folder, sep, usual[i]);
    if (ane_path_kind(path) == 'f') snprintf(name, sizeof name, "%s", usual[i]);
  }
  if (!st && *name) {
    snprintf(path, room, "%s%s%s", folder, sep, name);
    *model = path;
    return ANE_OK;
  }
  ane_free(path);
  return st;
}
