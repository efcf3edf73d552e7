/* MXFP4 in files of transformers (gpt-oss): NAME_blocks u8 [E, rows, columns / 32, 16], whose nibbles are E2M1 floats, lower bits
 * first, and NAME_scales u8 [E, rows, columns / 32], the exponents s of 2^(s - 127). Both become one tensor, NAME
 * [E, rows, columns], which is read by a gather. */
#include "formats/formats_internal.h"

#include <string.h>

static const char BLOCKS[] = "_blocks", SCALES[] = "_scales";

/* The name without its ending; NULL: it has another ending, or there is no memory. */
static char *stem_of(struct ane_source *s, const char *name, const char *ending) {
  size_t n = strlen(name), cut = strlen(ending);
  if (n <= cut || strcmp(name + n - cut, ending) != 0) return NULL;
  return ane_arena_strndup(&s->arena, name, n - cut);
}

/* The scales of the blocks NAME; NULL if there are none of a fitting shape, or there is no memory. */
static const struct ane_source_tensor *scales_of(struct ane_source *s, const struct ane_source_tensor *blocks, const char *name) {
  size_t n = strlen(name);
  char *want = ane_arena_alloc(&s->arena, n + sizeof SCALES);
  if (!want) return NULL;
  memcpy(want, name, n);
  memcpy(want + n, SCALES, sizeof SCALES);
  const struct ane_source_tensor *t = ane_source_tensor(s, want);
  if (!t || t->tensor.dtype != ANE_U8 || t->tensor.shape.rank != 3) return NULL;
  return memcmp(blocks->tensor.shape.dim, t->tensor.shape.dim, 3 * sizeof t->tensor.shape.dim[0]) == 0 ? t : NULL;
}

static ane_status join(struct ane_source *s, struct ane_source_tensor *blocks, const struct ane_source_tensor *scales,
                       const char *name, struct ane_error *err) {
  struct ane_gather *g = ane_arena_alloc(&s->arena, sizeof *g);
  if (!g) return ane_fail(err, ANE_NOMEM, "not enough memory");
  const struct ane_shape *b = &blocks->tensor.shape;
  int64_t columns = b->dim[2] * 32;
  *g = (struct ane_gather){.data = blocks->tensor.data,
                           .bytes = blocks->tensor.bytes,
                           .bits = 4,
                           .fp4 = true,
                           .row_step = columns,
                           .col_step = 1,
                           .scales = scales->tensor.data,
                           .scale_dtype = ANE_U8,
                           .scale_row = b->dim[2],
                           .scale_col = 1,
                           .block = 32,
                           .row_block = 1};
  blocks->name = name;
  blocks->tensor.dtype = ANE_MXFP4;
  blocks->tensor.shape = (struct ane_shape){3, {b->dim[0], b->dim[1], columns}};
  blocks->tensor.gather = g;
  return ANE_OK;
}

/* Removes the tensors that are marked. */
static void drop_marked(struct ane_source *s, const bool *marked) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < s->n_tensors; i++)
    if (!marked[i]) s->tensors[kept++] = s->tensors[i];
  s->n_tensors = kept;
}

ane_status ane_safetensors_join_mxfp4(struct ane_source *s, struct ane_error *err) {
  bool *joined = NULL; /* by tensor: scales of a pair */
  for (uint32_t i = 0; i < s->n_tensors; i++) {
    struct ane_source_tensor *t = &s->tensors[i];
    if (t->tensor.dtype != ANE_U8 || t->tensor.shape.rank != 4 || t->tensor.shape.dim[3] != 16) continue;
    char *stem = stem_of(s, t->name, BLOCKS);
    const struct ane_source_tensor *scales = stem ? scales_of(s, t, stem) : NULL;
    if (!scales) continue;
    if (!joined && !(joined = ane_arena_array(&s->arena, s->n_tensors, sizeof *joined)))
      return ane_fail(err, ANE_NOMEM, "not enough memory");
    ane_status st = join(s, t, scales, stem, err);
    if (st) return st;
    joined[scales - s->tensors] = true;
  }
  if (!joined) return ANE_OK;
  drop_marked(s, joined);
  ane_strmap_free(&s->by_name);
  s->by_name = (struct ane_strmap){0};
  return ane_source_index_tensors(s, err);
}
