/* Tensors of Core ML packages as a source: see mlpackage.h. */
#include "formats/mlpackage/mlpackage_internal.h"

#include "base/alloc.h"

#include <string.h>

/* What a source of packages owns. */
struct owned {
  struct ane_mlpackage **packages;
  uint32_t n;
};

static void free_owned(void *arg) {
  const struct owned *o = arg;
  for (uint32_t i = 0; i < o->n; i++) ane_mlpackage_close(o->packages[i]);
}

/* Lists the files, so that their pages can be dropped: the file of the embedding, then the packages' weight files. */
static bool list_files(struct ane_source *s, const struct ane_mlpackage_parts *parts) {
  uint32_t n = parts->embedding.path != NULL;
  for (uint32_t i = 0; i < parts->n_packages; i++) n += parts->packages[i]->n_files;
  s->files = ane_arena_array(&s->arena, (size_t)n + 1, sizeof *s->files);
  if (!s->files) return false;
  if (parts->embedding.path) s->files[s->n_files++] = parts->embedding;
  for (uint32_t i = 0; i < parts->n_packages; i++)
    for (uint32_t f = 0; f < parts->packages[i]->n_files; f++, s->n_borrowed++) {
      const struct ane_mlpackage *p = parts->packages[i];
      s->files[s->n_files].path = ane_arena_strndup(&s->arena, p->path, strlen(p->path));
      if (!s->files[s->n_files].path) return false;
      s->files[s->n_files++].map = p->files[f].map;
    }
  return true;
}

ane_status ane_mlpackage_source(struct ane_source **out, struct ane_mlpackage_parts *parts, struct ane_error *err) {
  struct ane_source *s = ane_calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return ane_fail(err, ANE_NOMEM, "no memory for the weights");
  s->format = "package set";
  s->arena = parts->arena;
  s->path = ane_arena_strndup(&s->arena, parts->path, strlen(parts->path));
  s->tensors = parts->tensors;
  s->n_tensors = parts->n_tensors;
  struct owned *owned = ane_arena_alloc(&s->arena, sizeof *owned);
  ane_status st = s->path && owned && list_files(s, parts) ? ane_source_index_tensors(s, err)
                                                           : ane_fail(err, ANE_NOMEM, "no memory for the weights");
  parts->arena = s->arena; /* it has grown */
  if (st) {
    ane_strmap_free(&s->by_name);
    ane_free(s);
    return st;
  }
  *owned = (struct owned){parts->packages, parts->n_packages};
  s->owned = owned;
  s->free_owned = free_owned;
  parts->arena = (struct ane_arena){0};
  *out = s;
  return ANE_OK;
}
