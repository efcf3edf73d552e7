#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>

bool ane_count_elements(uint32_t rank, const int64_t *dim, uint64_t *count) {
  uint64_t n = 1;
  bool empty = false;
  for (uint32_t i = 0; i < rank; i++) {
    if (dim[i] < 0 || !ane_mul_u64(n, (uint64_t)ANE_MAX(dim[i], 1), &n) || n > ANE_MOST_ELEMENTS) return false;
    empty = empty || dim[i] == 0;
  }
  *count = empty ? 0 : n;
  return true;
}

bool ane_shape_count(const struct ane_shape *s, uint64_t *count) { return ane_count_elements(s->rank, s->dim, count); }

bool ane_shape_equal(const struct ane_shape *a, const struct ane_shape *b) {
  if (a->rank != b->rank) return false;
  for (uint32_t i = 0; i < a->rank; i++)
    if (a->dim[i] != b->dim[i]) return false;
  return true;
}

const char *ane_shape_text(const struct ane_shape *s, char out[ANE_SHAPE_TEXT]) {
  int at = snprintf(out, ANE_SHAPE_TEXT, "[");
  for (uint32_t i = 0; i < s->rank && i < ANE_MAX_RANK; i++) {
    const char *sep = i ? ", " : "";
    at += s->dim[i] < 0 ? snprintf(out + at, (size_t)(ANE_SHAPE_TEXT - at), "%s?", sep)
                        : snprintf(out + at, (size_t)(ANE_SHAPE_TEXT - at), "%s%" PRId64, sep, s->dim[i]);
  }
  snprintf(out + at, (size_t)(ANE_SHAPE_TEXT - at), "]");
  return out;
}
