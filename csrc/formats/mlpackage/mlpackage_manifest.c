/* Manifest.json of a package: the items and their paths. */
#include "formats/mlpackage/mlpackage_internal.h"

#include "base/alloc.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct manifest {
  struct ane_arena *arena;
  const char *path;
  struct ane_error *err;
};

static ane_status fail(struct manifest *m, ane_status code, const char *fmt, ...) ANE_PRINTF(3, 4);
static ane_status fail(struct manifest *m, ane_status code, const char *fmt, ...) {
  char text[300];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return ane_fail(m->err, code, "%s: %s", ane_path_tail(m->path), text);
}

/* Checks an item: its four texts, and a path that stays in Data/ and exists. */
static ane_status check_item(struct manifest *m, const char *id, const json_t *item, const char **location) {
  static const char *const keys[] = {"path", "name", "author", "description"};
  char q[ANE_QUOTE_TEXT], p[ANE_QUOTE_TEXT];
  ane_quote(q, id, strlen(id));
  for (size_t i = 0; i < ANE_COUNT(keys); i++)
    if (!json_is_string(json_object_get(item, keys[i]))) return fail(m, ANE_FORMAT, "item \"%s\" has no text \"%s\"", q, keys[i]);
  const char *path = json_string_value(json_object_get(item, "path")), *fault = ane_location_fault(path);
  if (fault) return fail(m, ANE_FORMAT, "item \"%s\": path \"%s\" %s", q, ane_quote(p, path, strlen(path)), fault);
  const char *slash = strrchr(m->path, '/');
  size_t folder = slash ? (size_t)(slash + 1 - m->path) : 0, room = folder + strlen(path) + 8;
  char *full = ane_arena_alloc(m->arena, room);
  if (!full) return fail(m, ANE_NOMEM, "not enough memory");
  snprintf(full, room, "%.*sData/%s", (int)folder, m->path, path);
  *location = full + folder;
  return ane_path_kind(full)
             ? ANE_OK
             : fail(m, ANE_FORMAT, "item \"%s\": %s does not exist", q, ane_quote(p, *location, strlen(*location)));
}

static ane_status read_items(struct manifest *m, const json_t *root, const char **location) {
  const char *version = json_string_value(json_object_get(root, "fileFormatVersion")),
             *id = json_string_value(json_object_get(root, "rootModelIdentifier"));
  json_t *items = json_object_get(root, "itemInfoEntries"), *item;
  const char *key, *found = NULL;
  char q[ANE_QUOTE_TEXT];
  if (!version) return fail(m, ANE_FORMAT, "has no fileFormatVersion");
  if (strcmp(version, "1.0.0") != 0)
    return fail(m, ANE_UNSUPPORTED, "fileFormatVersion is \"%s\", known is 1.0.0", ane_quote(q, version, strlen(version)));
  if (!json_is_object(items)) return fail(m, ANE_FORMAT, "has no itemInfoEntries");
  if (!id) return fail(m, ANE_FORMAT, "has no rootModelIdentifier");
  *location = NULL;
  json_object_foreach(items, key, item) {
    ane_status st = check_item(m, key, item, &found);
    if (st) return st;
    if (strcmp(key, id) == 0) *location = found;
  }
  return *location ? ANE_OK : fail(m, ANE_FORMAT, "rootModelIdentifier \"%s\" is not an item", ane_quote(q, id, strlen(id)));
}

/* A manifest has two items; a larger file is refused. */
enum { MAX_BYTES = 1 << 20 };

ane_status mlpackage_manifest(struct ane_arena *arena, const char *manifest, const char **location, struct ane_error *err) {
  struct manifest m = {arena, manifest, err};
  struct ane_map map;
  json_t *root;
  ane_status st = ane_map_open(&map, manifest, err);
  if (st) return st;
  if (map.size == 0 || map.size > MAX_BYTES) {
    st = fail(&m, ANE_FORMAT, map.size ? "is larger than a manifest is" : "the file is empty");
    ane_map_close(&map);
    return st;
  }
  st = ane_json_parse(&root, map.data, map.size, 0, err);
  ane_map_close(&map);
  if (st) return ane_fail_in(err, st, "%s", ane_path_tail(manifest));
  st = read_items(&m, root, location);
  json_decref(root);
  return st;
}
