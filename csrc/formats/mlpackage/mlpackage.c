/* Opening a package: manifest, model, then every blob that the model names. */
#include "formats/mlpackage/mlpackage_internal.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

/* Packages have one weight file; some have a few. */
enum { MAX_FILES = 256 };

struct opening {
  struct ane_mlpackage *p;
  struct ane_error *err;
};

/* ---- Blobs ---------------------------------------------------------------------------------------------------------*/

static ane_status find_file(struct opening *o, const char *name, struct ane_mlpackage_file **out) {
  struct ane_mlpackage *p = o->p;
  for (uint32_t i = p->n_files; i-- > 0;) {
    *out = &p->files[i];
    if (strcmp(p->files[i].name, name) == 0) return ANE_OK;
  }
  if (p->n_files == MAX_FILES) return ane_fail(o->err, ANE_UNSUPPORTED, "more than %d weight files", MAX_FILES);
  if (!p->files && !(p->files = ane_arena_array(&p->arena, MAX_FILES, sizeof *p->files)))
    return ane_fail(o->err, ANE_NOMEM, "not enough memory");
  *out = &p->files[p->n_files++]; /* counted before it is complete: closing the package closes what is open */
  (*out)->name = name;
  return mlpackage_weights_open(&p->arena, *out, p->model_path, o->err);
}

static ane_status find_blob(struct opening *o, struct ane_mil_value *v) {
  struct ane_mlpackage_file *f = NULL;
  const uint8_t *data = NULL;
  bool fresh = false;
  ane_status st = find_file(o, v->file, &f);
  if (!st) st = mlpackage_weights_find(f, v, &data, &fresh, o->err);
  if (st) return st;
  v->data = data;
  o->p->n_blobs += fresh;
  o->p->blob_bytes += fresh ? v->bytes : 0;
  return ANE_OK;
}

static ane_status visit(void *arg, const struct ane_mil_function *f, const struct ane_mil_op *op, const char *name,
                        const struct ane_mil_value *v) {
  struct opening *o = arg;
  if (v->kind != ANE_MIL_BLOB) return ANE_OK;
  /* The model lies in this package's own arena, and nothing else refers to it yet. */
  ane_status st = find_blob(o, (struct ane_mil_value *)(uintptr_t)v);
  if (!st) return ANE_OK;
  char q[ANE_QUOTE_TEXT], text[ANE_MIL_OP_TEXT];
  ane_fail_in(o->err, st, "%s", ane_quote(q, name, strlen(name)));
  if (op) ane_fail_in(o->err, st, "%s", ane_mil_op_text(text, op));
  return f ? ane_fail_in(o->err, st, "function %s", ane_quote(q, f->name, strlen(f->name))) : st;
}

/* ---- Opening -------------------------------------------------------------------------------------------------------*/

static const char *join(struct ane_arena *arena, const char *folder, const char *name) {
  size_t n = strlen(folder), room = n + strlen(name) + 2;
  char *path = ane_arena_alloc(arena, room);
  if (path) snprintf(path, room, "%s%s%s", folder, n && folder[n - 1] == '/' ? "" : "/", name);
  return path;
}

static ane_status read_model(struct ane_mlpackage *p, const char *manifest, const char *location, struct ane_error *err) {
  struct opening o = {p, err};
  struct ane_map map;
  struct ane_mil_model *model;
  ane_status st = ane_map_open_beside(&map, manifest, location, err);
  if (st) return st;
  st = ane_mil_unpack(&p->arena, map.data ? map.data : (const uint8_t *)"", (size_t)map.size, &model, err);
  ane_map_close(&map);
  p->model = model;
  if (!st) st = ane_mil_each_value(model, visit, &o);
  return st ? ane_fail_in(err, st, "%s", ane_path_tail(p->model_path)) : ANE_OK;
}

static ane_status open_into(struct ane_mlpackage *p, const char *path, struct ane_error *err) {
  const char *location, *manifest = join(&p->arena, path, "Manifest.json");
  p->path = ane_arena_strndup(&p->arena, path, strlen(path));
  if (!p->path || !manifest) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  ane_status st = mlpackage_manifest(&p->arena, manifest, &location, err);
  if (st) return st;
  if (!(p->model_path = join(&p->arena, path, location)))
    return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  return read_model(p, manifest, location, err);
}

ane_status ane_mlpackage_open(struct ane_mlpackage **out, const char *path, struct ane_error *err) {
  *out = NULL;
  ane_folder_restore(path);
  char kind = ane_path_kind(path);
  if (kind && kind != 'd')
    return ane_fail(err, ANE_UNSUPPORTED, "%s: must be a folder (.mlpackage or .aimodel), but is a file", ane_path_tail(path));
  struct ane_mlpackage *p = ane_calloc(1, sizeof *p);
  if (!p) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  ane_status st = open_into(p, path, err);
  if (st)
    ane_mlpackage_close(p);
  else
    *out = p;
  return st;
}

void ane_mlpackage_close(struct ane_mlpackage *p) {
  if (!p) return;
  for (uint32_t i = 0; i < p->n_files; i++) ane_map_close(&p->files[i].map);
  if (p->release) p->release(p->release_arg);
  ane_arena_free(&p->arena);
  ane_free(p);
}
