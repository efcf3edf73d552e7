/* Opens an asset: maps main.mlirb and reads its program. Constants point into the mapping. */
#include "base/alloc.h"
#include "formats/aimodel/ai_unpack.h"
#include "formats/formats_internal.h"

#include <stdio.h>
#include <string.h>

static ane_status read_program(struct ane_aimodel *m, struct ane_error *err) {
  struct ai_file f = {.data = m->map.data, .size = m->map.size, .arena = &m->arena, .err = err};
  ane_status st = ai_unpack(&f);
  if (st) return st;
  m->program = f.program;
  m->producer = f.producer;
  m->n_resources = f.n_resources;
  for (uint32_t i = 0; i < f.n_resources; i++) m->resource_bytes += f.resources[i].size;
  return ANE_OK;
}

ane_status ane_aimodel_at(const char *path, bool *at, struct ane_error *err) {
  char *file = ane_calloc(1, strlen(path) + sizeof "/main.mlirb");
  if (!file) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  ane_folder_restore(path);
  sprintf(file, "%s/main.mlirb", path); /* room: as allocated */
  *at = ane_path_kind(file) == 'f';
  ane_free(file);
  return ANE_OK;
}

ane_status ane_aimodel_open(struct ane_aimodel **out, const char *path, struct ane_error *err) {
  *out = NULL;
  ane_folder_restore(path);
  struct ane_aimodel *m = ane_calloc(1, sizeof *m);
  char *file = ane_calloc(1, strlen(path) + sizeof "/main.mlirb");
  ane_status st = m && file ? ANE_OK : ane_fail(err, ANE_NOMEM, "%s: not enough memory", ane_path_tail(path));
  if (!st) sprintf(file, "%s/main.mlirb", path); /* room: as allocated */
  if (!st) st = ane_map_open(&m->map, file, err);
  if (!st && (st = read_program(m, err))) ane_fail_in(err, st, "%s", file);
  if (!st && !(m->path = ane_arena_strndup(&m->arena, path, strlen(path)))) st = ane_fail(err, ANE_NOMEM, "not enough memory");
  ane_free(file);
  if (st)
    ane_aimodel_close(m);
  else
    *out = m;
  return st;
}

void ane_aimodel_close(struct ane_aimodel *m) {
  if (!m) return;
  ane_map_close(&m->map);
  ane_arena_free(&m->arena);
  ane_free(m);
}
