/* Dynamic tensors and their memory. */
#include "tensor/dyn.h"

#include "base/alloc.h"
#include "platform/platform.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Budgets -------------------------------------------------------------------------------------------------------*/

struct ane_dyn_budget *ane_dyn_budget_new(uint64_t limit) {
  struct ane_dyn_budget *b = ane_calloc(1, sizeof *b);
  if (b) *b = (struct ane_dyn_budget){.limit = limit, .refs = 1};
  return b;
}

struct ane_dyn_budget *ane_dyn_budget_keep(struct ane_dyn_budget *b) {
  b->refs++;
  return b;
}

void ane_dyn_budget_drop(struct ane_dyn_budget *b) {
  if (b && --b->refs == 0) ane_free(b);
}

uint64_t ane_dyn_budget_limit(struct ane_dyn_budget *b) {
  if (b->limit) return b->limit;
  uint64_t free_memory = ane_memory_available();
  if (!free_memory) free_memory = UINT64_C(1) << 36; /* unknown */
  return b->limit = ANE_MAX(b->held + free_memory / 2, (uint64_t)ANE_DYN_ALWAYS);
}

static bool has_room(struct ane_dyn_budget *b, uint64_t bytes) {
  if (!b || (!b->limit && bytes <= ANE_DYN_ALWAYS && b->held <= ANE_DYN_ALWAYS - bytes)) return true;
  uint64_t limit = ane_dyn_budget_limit(b);
  return bytes <= limit && b->held <= limit - bytes;
}

ane_status ane_dyn_budget_check(struct ane_dyn_budget *b, uint64_t bytes, struct ane_error *err) {
  if (has_room(b, bytes)) return ANE_OK;
  return ane_fail(err, ANE_NOMEM,
                  "%" PRIu64 " bytes are needed, %" PRIu64 " are in use, and the limit is %" PRIu64 " (option run_memory)", bytes,
                  b->held, b->limit);
}

/* ---- Blocks --------------------------------------------------------------------------------------------------------*/

/* Block sizes are 64 x 1, 1.5, 2, 3, 4, 6, ... bytes. At most a third is wasted, and a tensor that grows row by row rarely
 * changes its size class. */
static uint32_t class_of(uint64_t bytes, uint64_t *size) {
  uint64_t step = 64;
  uint32_t c = 0;
  for (; c + 2 < 128; c += 2, step *= 2) {
    if (bytes <= step) return *size = step, c;
    if (bytes <= step + step / 2) return *size = step + step / 2, c + 1;
    if (step >> 57) break;
  }
  return *size = bytes, UINT32_MAX;
}

/* Frees the free blocks. */
static void give_back(struct ane_dyn_memory *m) {
  uint64_t before = m->held;
  for (size_t i = 0; i < ANE_COUNT(m->free); i++) {
    for (struct ane_dyn_block *b = m->free[i], *next; b; b = next) {
      next = b->next;
      m->held -= b->size;
      ane_free(b);
    }
    m->free[i] = NULL;
  }
  if (m->budget) m->budget->held -= before - m->held;
}

struct ane_dyn_block *ane_dyn_block_new(struct ane_dyn_memory *m, uint64_t bytes, struct ane_error *err) {
  uint64_t size;
  uint32_t c = class_of(bytes, &size);
  if ((m->limit && bytes > m->limit) || c == UINT32_MAX || size > SIZE_MAX / 2) {
    m->refused = bytes;
    ane_fail(err, ANE_RANGE, "a tensor of %" PRIu64 " bytes is larger than the limit of %" PRIu64, bytes, m->limit);
    return NULL;
  }
  struct ane_dyn_block *b = m->free[c];
  if (b) {
    m->free[c] = b->next;
  } else {
    if (!has_room(m->budget, size))
      for (struct ane_dyn_memory *any = m->budget->memories; any; any = any->next) give_back(any);
    if (ane_dyn_budget_check(m->budget, size, err)) {
      m->refused = bytes;
      return NULL;
    }
    if (!(b = ane_malloc(sizeof *b + (size_t)size + 64))) {
      ane_fail(err, ANE_NOMEM, "no memory for a tensor of %" PRIu64 " bytes", bytes);
      return NULL;
    }
    m->held += size;
    if (m->budget) m->budget->held += size;
  }
  b->next = NULL;
  b->refs = 1;
  b->size_class = c;
  b->size = size;
  m->used += size;
  m->peak = ANE_MAX(m->peak, m->used);
  return b;
}

void ane_dyn_block_give(struct ane_dyn_memory *m, struct ane_dyn_block *b) {
  if (--b->refs > 0) return;
  m->used -= b->size;
  b->next = m->free[b->size_class];
  m->free[b->size_class] = b;
}

void ane_dyn_memory_use(struct ane_dyn_memory *m, struct ane_dyn_budget *b) {
  m->budget = ane_dyn_budget_keep(b);
  m->next = b->memories;
  b->memories = m;
}

void ane_dyn_memory_free(struct ane_dyn_memory *m) {
  give_back(m);
  struct ane_dyn_memory **at = m->budget ? &m->budget->memories : NULL;
  while (at && *at != m) at = &(*at)->next;
  if (at) *at = m->next;
  ane_dyn_budget_drop(m->budget);
  *m = (struct ane_dyn_memory){.limit = m->limit};
}

/* ---- Tensors -------------------------------------------------------------------------------------------------------*/

void ane_dyn_keep(const struct ane_dyn *t) {
  if (t->block) t->block->refs++;
}

bool ane_dyn_alone(const struct ane_dyn *t) { return t->block && t->block->refs == 1; }

void ane_dyn_drop(struct ane_dyn_memory *m, struct ane_dyn *t) {
  if (t->block) ane_dyn_block_give(m, t->block);
  *t = (struct ane_dyn){0};
}

bool ane_dyn_count(int rank, const int64_t *dim, int64_t *count) {
  uint64_t n;
  if (!ane_count_elements((uint32_t)rank, dim, &n)) return false;
  *count = (int64_t)n;
  return true;
}

uint64_t ane_dyn_bytes(const struct ane_dyn *t) {
  const struct ane_dtype_info *i = ane_dtype_info(t->dtype);
  return ((uint64_t)t->count + i->block - 1) / i->block * i->bytes;
}

ane_status ane_dyn_alloc(struct ane_dyn_memory *m, struct ane_dyn *t, struct ane_error *err) {
  char text[ANE_DYN_TEXT];
  t->block = NULL;
  if (!ane_dyn_count(t->rank, t->dim, &t->count))
    return ane_fail(err, ANE_RANGE, "a tensor of shape %s has too many elements", ane_dyn_dims(t->rank, t->dim, text));
  struct ane_error own;
  t->block = ane_dyn_block_new(m, ane_dyn_bytes(t), &own);
  if (!t->block) return ane_fail(err, own.code, "%s", own.text);
  t->data = t->block->data;
  return ANE_OK;
}

void *ane_dyn_data(const struct ane_dyn *t) { return t->block->data; }

const char *ane_dyn_dims(int rank, const int64_t *dim, char out[ANE_DYN_TEXT]) {
  size_t at = 0;
  out[at++] = '[';
  for (int i = 0; i < rank && at < ANE_DYN_TEXT - 24; i++)
    at += (size_t)snprintf(out + at, ANE_DYN_TEXT - at, "%s%" PRId64, i ? ", " : "", dim[i]);
  out[at++] = ']';
  out[at] = '\0';
  return out;
}

const char *ane_dyn_text(const struct ane_dyn *t, char out[ANE_DYN_TEXT]) {
  char dims[ANE_DYN_TEXT];
  snprintf(out, ANE_DYN_TEXT, "%s%.180s", ane_dtype_info(t->dtype)->name, ane_dyn_dims(t->rank, t->dim, dims));
  return out;
}
