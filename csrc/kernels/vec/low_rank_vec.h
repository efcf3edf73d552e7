/* Products with the A and the B of adapters for any vector length; included by low_rank_<isa>.c after vec_<isa>.h. The 16 lanes
 * of a sum are V_PARTS vectors. A tile of 4 rows and some tokens keeps its sums in registers and reads the rows once, from the
 * first byte to the last. */
#include "kernels/low_codes.h"

enum { LOW_GROUPS = 4 }; /* groups of B whose sums are computed side by side */
enum {
  LOW_ROWS = 4,                      /* rows of a tile */
  LOW_TOKENS = V_PARTS == 1 ? 4 : 1, /* tokens of a tile */
  LOW_PREFETCH = 4096                /* prefetch distance in bytes */
};

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

/* ---- B in 8-bit codes -----------------------------------------------------------------------------------------------*/

enum {
  CODES = 4096,                            /* codes of x that are kept at a time, for one or more tokens */
  CODE_BLOCKS = ANE_LOW_RANKS / ANE_BLOCK, /* blocks of the largest rank */
  CODE_TOKENS = V_PARTS == 1 ? 8 : 2,      /* tokens of a tile */
  CODE_GROUPS = V_PARTS == 1 ? 4 : 2       /* groups that are multiplied with one token side by side */
};

/* Codes of n values at x; returns their scale. q holds ANE_BLOCK codes, zeros from n on. */
static float code_block(const float *x, int64_t n, int16_t *q) {
  vf m = v_set(0);
  for (int64_t i = 0; i < n; i += VL) m = v_max(v_abs(v_load_n(x + i, n - i)), m);
  const float amax = v_largest(m);
  const bool some = amax > 0x1p-100f && amax < __builtin_inff();
  const vf most = v_set(ANE_LOW_CODE), least = v_set(-ANE_LOW_CODE), inverse = v_set(some ? ANE_LOW_CODE / amax : 0);
  for (int64_t i = 0; i < ANE_BLOCK; i += VL)
    v_store_i16(q + i, v_max(least, v_min(most, v_mul(v_load_n(x + i, n - i), inverse))));
  return some ? amax / ANE_LOW_CODE : 0;
}

/* The activations of a tile: for each token the codes of all blocks, `stride` apart, and a scale for each block. */
struct code_tokens {
  const int16_t *q;
  int64_t stride;
  const float (*d)[CODE_BLOCKS];
};

/* Adds the product of one group to nt tokens of y, whose first `rows` rows exist. nt is a constant after inlining. */
V_FN void code_tile(const int nt, const uint8_t *block, int64_t rank, int64_t rows, struct code_tokens x, float *y, int64_t ldy) {
  vf acc[CODE_TOKENS][V_PARTS];
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
    for (int p = 0; p < V_PARTS; p++) acc[t][p] = v_set(0);
  for (int64_t b = 0; b * ANE_BLOCK < rank; b++) {
    const int64_t here = ANE_MIN(rank - b * ANE_BLOCK, (int64_t)ANE_BLOCK);
    const int8_t *codes = (const int8_t *)block + ANE_GROUP * sizeof(float);
    vi sum[CODE_TOKENS][V_PARTS];
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
      for (int p = 0; p < V_PARTS; p++) sum[t][p] = vi_zero();
    for (int64_t k = 0; k < here; k += 2) {
      vpairs w[V_PARTS];
#pragma GCC unroll 4
      for (int p = 0; p < V_PARTS; p++) w[p] = v_load_pairs_i8(codes + k * ANE_GROUP + 2 * p * VL);
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) {
        const vpairs pair = v_set_pair(x.q + t * x.stride + b * ANE_BLOCK + k);
#pragma GCC unroll 4
        for (int p = 0; p < V_PARTS; p++) sum[t][p] = v_dot(sum[t][p], w[p], pair);
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < V_PARTS; p++) {
      const vf scale = v_load((const float *)(const void *)block + p * VL);
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) acc[t][p] = v_fma(v_mul(v_float(sum[t][p]), scale), v_set(x.d[t][b]), acc[t][p]);
    }
    block += low_block_bytes(here);
  }
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++)
#pragma GCC unroll 4
    for (int p = 0; p < V_PARTS; p++) {
      float *to = y + t * ldy + p * VL;
      if (p * VL >= rows) break;
      v_store_n(to, v_add(v_load_n(to, rows - p * VL), acc[t][p]), rows - p * VL);
    }
}

/* Adds the products of ng groups with one token to y, whose first `rows` rows exist. The groups are computed side by side,
 * because each dot of a group waits for the one before it. ng is a constant after inlining. */
V_FN void code_groups(const int ng, const struct ane_low_codes *b, const uint8_t *block, int64_t rows, const int16_t *q,
                      const float *d, float *y) {
  const size_t group = b->group_bytes;
  vf acc[CODE_GROUPS][V_PARTS];
#pragma GCC unroll 4
  for (int g = 0; g < ng; g++)
#pragma GCC unroll 4
    for (int p = 0; p < V_PARTS; p++) acc[g][p] = v_set(0);
  for (int64_t k = 0; k < b->rank; k += ANE_BLOCK, d++) {
    const int64_t here = ANE_MIN(b->rank - k, (int64_t)ANE_BLOCK);
    vi sum[CODE_GROUPS][V_PARTS];
#pragma GCC unroll 4
    for (int g = 0; g < ng; g++)
#pragma GCC unroll 4
      for (int p = 0; p < V_PARTS; p++) sum[g][p] = vi_zero();
    for (int64_t i = 0; i < here; i += 2) {
      const vpairs x = v_set_pair(q + k + i);
#pragma GCC unroll 4
      for (int g = 0; g < ng; g++)
#pragma GCC unroll 4
        for (int p = 0; p < V_PARTS; p++)
          sum[g][p] = v_dot(
              sum[g][p],
              v_load_pairs_i8((const int8_t *)block + (size_t)g * group + ANE_GROUP * sizeof(float) + i * ANE_GROUP + 2 * p * VL),
              x);
    }
#pragma GCC unroll 4
    for (int g = 0; g < ng; g++)
#pragma GCC unroll 4
      for (int p = 0; p < V_PARTS; p++) {
        const vf scale = v_load((const float *)(const void *)(block + (size_t)g * group) + p * VL);
        acc[g][p] = v_fma(v_mul(v_float(sum[g][p]), scale), v_set(*d), acc[g][p]);
      }
    block += low_block_bytes(here);
  }
#pragma GCC unroll 4
  for (int g = 0; g < ng; g++)
#pragma GCC unroll 4
    for (int p = 0; p < V_PARTS; p++) {
      const int64_t at = g * ANE_GROUP + p * VL;
      if (at < rows) v_store_n(y + at, v_add(v_load_n(y + at, rows - at), acc[g][p]), rows - at);
    }
}

static void low_codes_add(const struct ane_low_codes *b, const float *x, int64_t ldx, int64_t n, int64_t g_from, int64_t g_to,
                          float *y, int64_t ldy) {
  _Alignas(64) int16_t q[CODES];
  float d[CODES / ANE_BLOCK][CODE_BLOCKS];
  const int64_t stride = (int64_t)ane_align_up((size_t)b->rank, ANE_BLOCK), most = n == 1 ? 1 : CODES / stride;
  for (int64_t from = 0; from < n; from += most) {
    const int64_t run = ANE_MIN(n - from, most);
    for (int64_t t = 0; t < run; t++)
      for (int64_t k = 0; k < b->rank; k += ANE_BLOCK)
        d[t][k / ANE_BLOCK] = code_block(x + (from + t) * ldx + k, ANE_MIN(b->rank - k, (int64_t)ANE_BLOCK), q + t * stride + k);
    int64_t g = g_from;
    for (; n == 1 && g + CODE_GROUPS <= g_to; g += CODE_GROUPS)
      code_groups(CODE_GROUPS, b, b->data + (size_t)g * b->group_bytes, b->rows - g * ANE_GROUP, q, d[0],
                  y + (g - g_from) * ANE_GROUP);
    for (; g < g_to; g++) {
      const uint8_t *group = b->data + (size_t)g * b->group_bytes;
      const int64_t rows = b->rows - g * ANE_GROUP;
      float *to = y + from * ldy + (g - g_from) * ANE_GROUP;
      int64_t t = 0;
      for (; t + CODE_TOKENS <= run; t += CODE_TOKENS)
        code_tile(CODE_TOKENS, group, b->rank, rows, (struct code_tokens){q + t * stride, stride, d + t}, to + t * ldy, ldy);
      for (; t < run; t++)
        code_tile(1, group, b->rank, rows, (struct code_tokens){q + t * stride, stride, d + t}, to + t * ldy, ldy);
    }
  }
}

static void low_rank_set(struct ane_kernels *k) {
  k->low_codes_add = low_codes_add;
  k->low_rank = low_rank;
  k->low_rank_add = low_rank_add;
}
