/* Products with the A and B matrices of adapters in scalar C. The other levels are tested against this file. */
#include "kernels/kernels_internal.h"
#include "tensor/half.h"

#include <math.h>

enum { LANES = 16 };

static void low_rank(const void *a, bool half, int64_t rank, const float *x, int64_t ldx, int64_t n, int64_t cols, float *y,
                     int64_t ldy) {
  const int64_t four =
      4 * (int64_t)ane_align_up((size_t)cols, LANES); /* elements of 4 rows, which are interleaved by 16 columns */
  const uint16_t *halves = a;
  const float *floats = a;
  for (int64_t t = 0; t < n; t++)
    for (int64_t r = 0; r < rank; r++) {
      float l[LANES] = {0};
      for (int64_t c = 0; c < cols; c++) {
        int64_t at = r / 4 * four + c / LANES * 4 * LANES + r % 4 * LANES + c % LANES;
        l[c % LANES] = fmaf(half ? ane_f16_f32(halves[at]) : floats[at], x[t * ldx + c], l[c % LANES]);
      }
      for (int w = LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++) l[i] += l[i + w];
      y[t * ldy + r] = l[0];
    }
}

static void low_rank_add(const struct ane_packed *b, const float *x, int64_t g_from, int64_t g_to, float *y) {
  const bool half = b->layout == ANE_LAYOUT_F16;
  for (int64_t r = g_from * ANE_GROUP; r < ANE_MIN(g_to * ANE_GROUP, b->rows); r++) {
    const uint8_t *group = b->data + (size_t)(r / ANE_GROUP) * b->group_bytes;
    float sum = 0;
    for (int64_t k = 0; k < b->cols; k++) {
      int64_t at = k * ANE_GROUP + r % ANE_GROUP;
      sum = fmaf(half ? ane_f16_f32(((const uint16_t *)(const void *)group)[at]) : ((const float *)(const void *)group)[at], x[k],
                 sum);
    }
    y[r - g_from * ANE_GROUP] += sum;
  }
}

void ane_low_rank_ref(struct ane_kernels *k) {
  k->low_rank = low_rank;
  k->low_rank_add = low_rank_add;
}
