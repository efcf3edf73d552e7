/* Memory of a call, and its results. */
#include "prim/prim_internal.h"

void *prim_temp(struct ane_prim_call *c, uint64_t bytes) {
  struct ane_error own;
  struct ane_dyn_block *b = ane_dyn_block_new(c->memory, bytes, &own);
  if (!b) {
    prim_fail(c, own.code, "%s", own.text);
    return NULL;
  }
  b->next = c->temps;
  c->temps = b;
  return b->data;
}

void prim_drop(struct ane_prim_call *c, const struct ane_dyn_block *until) {
  while (c->temps != until) {
    struct ane_dyn_block *next = c->temps->next;
    ane_dyn_block_give(c->memory, c->temps);
    c->temps = next;
  }
}

void *prim_temp_array(struct ane_prim_call *c, size_t size, int rank, const int64_t *dim) {
  int64_t n;
  char text[ANE_DYN_TEXT];
  if (ane_dyn_count(rank, dim, &n)) return prim_temp(c, (uint64_t)n * size);
  prim_fail(c, ANE_RANGE, "a tensor of shape %s has too many elements", ane_dyn_dims(rank, dim, text));
  return NULL;
}

void *prim_out(struct ane_prim_call *c, int i, ane_dtype t, int rank, const int64_t *dim) {
  struct ane_dyn *o = &c->out[i];
  *o = (struct ane_dyn){.dtype = t, .rank = rank};
  if (rank > ANE_DYN_RANK) {
    o->rank = 0;
    prim_fail(c, ANE_UNSUPPORTED, "a result of %d dimensions, at most %d are supported", rank, ANE_DYN_RANK);
    return NULL;
  }
  for (int k = 0; k < rank; k++) o->dim[k] = dim[k];
  if (ane_dtype_info(t)->block != 1) {
    *o = (struct ane_dyn){0};
    prim_fail(c, ANE_UNSUPPORTED, "a result of type %s", ane_dtype_info(t)->name);
    return NULL;
  }
  struct ane_error own;
  ane_status st = ane_dyn_alloc(c->memory, o, &own);
  if (!st) return o->block->data;
  *o = (struct ane_dyn){0};
  prim_fail(c, st, "%s", own.text);
  return NULL;
}

ane_status prim_view(struct ane_prim_call *c, int i, const struct ane_dyn *t, int rank, const int64_t *dim) {
  if (rank > ANE_DYN_RANK)
    return prim_fail(c, ANE_UNSUPPORTED, "a result of %d dimensions, at most %d are supported", rank, ANE_DYN_RANK);
  struct ane_dyn v = *t;
  v.rank = rank;
  for (int k = 0; k < rank; k++) v.dim[k] = dim[k];
  ane_dyn_keep(t);
  c->out[i] = v;
  return ANE_OK;
}

bool prim_wanted(const struct ane_prim_call *c, int i) { return i < c->n_out && (!c->wanted || c->wanted[i]); }
