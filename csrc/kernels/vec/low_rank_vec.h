/* Products with the A and the B of adapters for any vector length; included by low_rank_<isa>.c after vec_<isa>.h. The 16 lanes
 * of a sum are V_PARTS vectors. A tile of 4 rows and some tokens keeps its sums in registers and reads the rows once, from the
 * first byte to the last. */
#include "kernels/kernels_internal.h"

enum { LOW_GROUPS = 4 }; /* groups of B whose sums are computed side by side */
enum {
  LOW_ROWS = 4,
  LOW_TOKENS = V_PARTS == 1 ? 4 : 1,
  LOW_PREFETCH = 4096
}; /* rows and tokens of a tile; prefetch distance in bytes */

/* Loads VL elements of A from element i on. */
V_FN vf low_load(const bool half, const uint8_t *a, int64_t i) {
  return half ? v_load_f16((const uint16_t *)(const void *)a + i) : v_load((const float *)(const void *)a + i);
}

/* Adds 16 columns from c on of 4 rows at a and nt tokens of x to the sums. */
V_FN void low_step(const bool half, const int nt, const uint8_t *a, const float *x, int64_t ldx, int64_t c, int64_t cols,
                   vf l[LOW_ROWS][LOW_TOKENS][V_PARTS]) {
#pragma GCC unroll 4
  for (int p = 0; p < V_PARTS; p++) {
    vf v[LOW_TOKENS];
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) v[t] = v_load_n(x + t * ldx + c + p * VL, cols - c - p * VL);
#pragma GCC unroll 4
    for (int r = 0; r < LOW_ROWS; r++) {
      const vf w = low_load(half, a, r * 16 + p * VL);
#pragma GCC unroll 4
      for (int t = 0; t < nt; t++) l[r][t][p] = v_fma(w, v[t], l[r][t][p]);
    }
  }
}

/* Multiplies rows [0, nr) of the 4 at a with tokens [0, nt) of x. half and nt are constants after inlining. */
V_FN void low_tile(const bool half, const int nt, int64_t nr, const uint8_t *a, const float *x, int64_t ldx, int64_t cols,
                   float *y, int64_t ldy) {
  const int size = LOW_ROWS * 16 * (half ? 2 : 4);
  vf l[LOW_ROWS][LOW_TOKENS][V_PARTS];
#pragma GCC unroll 4
  for (int r = 0; r < LOW_ROWS; r++)
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
      for (int p = 0; p < V_PARTS; p++) l[r][t][p] = v_set(0);
  int64_t c = 0;
  for (; c + 16 <= cols; c += 16, a += size) {
    for (int i = 0; i < size; i += 64) __builtin_prefetch(a + LOW_PREFETCH + i);
    low_step(half, nt, a, x, ldx, c, c + 16, l);
  }
  if (c < cols) low_step(half, nt, a, x, ldx, c, cols, l);
  for (int t = 0; t < nt; t++)
    for (int r = 0; r < nr; r++) y[t * ldy + r] = v_fold(l[r][t]);
}

V_FN void low_rows(const bool half, const int nt, const uint8_t *a, int64_t rank, const float *x, int64_t ldx, int64_t cols,
                   float *y, int64_t ldy) {
  const size_t four = ane_align_up((size_t)cols, 16) * LOW_ROWS * (half ? 2 : 4);
  for (int64_t r = 0; r < rank; r += LOW_ROWS, a += four)
    low_tile(half, nt, ANE_MIN(rank - r, (int64_t)LOW_ROWS), a, x, ldx, cols, y + r, ldy);
}

V_FN void low_all(const bool half, const uint8_t *a, int64_t rank, const float *x, int64_t ldx, int64_t n, int64_t cols, float *y,
                  int64_t ldy) {
  int64_t t = 0;
  for (; t + LOW_TOKENS <= n; t += LOW_TOKENS) low_rows(half, LOW_TOKENS, a, rank, x + t * ldx, ldx, cols, y + t * ldy, ldy);
  for (; t < n; t++) low_rows(half, 1, a, rank, x + t * ldx, ldx, cols, y + t * ldy, ldy);
}

static void low_rank(const void *a, bool half, int64_t rank, const float *x, int64_t ldx, int64_t n, int64_t cols, float *y,
                     int64_t ldy) {
  if (half)
    low_all(true, a, rank, x, ldx, n, cols, y, ldy);
  else
    low_all(false, a, rank, x, ldx, n, cols, y, ldy);
}

/* Adds the products of ng groups of b from group g on, which hold `rows` rows. half and ng are constants after inlining. */
V_FN void low_add_groups(const bool half, const int ng, const struct ane_packed *b, int64_t g, int64_t rows, const float *x,
                         float *y) {
  vf l[LOW_GROUPS][V_PARTS];
#pragma GCC unroll 4
  for (int i = 0; i < ng; i++)
#pragma GCC unroll 4
    for (int p = 0; p < V_PARTS; p++) l[i][p] = v_set(0);
  const uint8_t *from = b->data + (size_t)g * b->group_bytes;
  for (int64_t k = 0; k < b->cols; k++) {
    const vf v = v_set(x[k]);
#pragma GCC unroll 4
    for (int i = 0; i < ng; i++)
#pragma GCC unroll 4
      for (int p = 0; p < V_PARTS; p++)
        l[i][p] = v_fma(low_load(half, from + (size_t)i * b->group_bytes, k * ANE_GROUP + p * VL), v, l[i][p]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < ng; i++)
#pragma GCC unroll 4
    for (int p = 0; p < V_PARTS; p++) {
      const int64_t at = i * ANE_GROUP + p * VL;
      if (at < rows) v_store_n(y + at, v_add(v_load_n(y + at, rows - at), l[i][p]), rows - at);
    }
}

V_FN void low_add(const bool half, const struct ane_packed *b, const float *x, int64_t g, int64_t g_to, float *y) {
  for (; g + LOW_GROUPS <= g_to; g += LOW_GROUPS, y += LOW_GROUPS * ANE_GROUP)
    low_add_groups(half, LOW_GROUPS, b, g, b->rows - g * ANE_GROUP, x, y);
  for (; g < g_to; g++, y += ANE_GROUP) low_add_groups(half, 1, b, g, b->rows - g * ANE_GROUP, x, y);
}

static void low_rank_add(const struct ane_packed *b, const float *x, int64_t g_from, int64_t g_to, float *y) {
  if (b->layout == ANE_LAYOUT_F16)
    low_add(true, b, x, g_from, g_to, y);
  else
    low_add(false, b, x, g_from, g_to, y);
}

static void low_rank_set(struct ane_kernels *k) {
  k->low_rank = low_rank;
  k->low_rank_add = low_rank_add;
}
