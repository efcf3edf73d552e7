/* Arithmetic of the CPU executor: one table of functions per ISA level. Kernels start no threads, allocate nothing and do not
 * depend on the graph: the caller passes ranges and scratch memory.
 *
 * The order of every floating-point operation is fixed for each output, whatever the range, the number of tokens T or
 * the level, and is written beside each function. Integer dots are exact. `ref` is the same arithmetic in scalar C with
 * fmaf, so all levels agree to the bit unless a comment says otherwise (bf16 dots).
 *
 * Activations of T tokens are [T][C] in memory, channels contiguous: the same bytes as [1, C, T, 1] with stride 1 on C. */
#ifndef ANE_KERNELS_KERNELS_H
#define ANE_KERNELS_KERNELS_H

#include "platform/platform.h"
#include "tensor/tensor.h"

/* ---- Matrices ----------------------------------------------------------------------------------------------------*/

typedef enum {
#define ANE_LAYOUT(id, ...) ANE_LAYOUT_##id,
#include "kernels/layout.def"
#undef ANE_LAYOUT
  ANE_LAYOUT_COUNT
} ane_layout;

/* The columns of layout.def that other folders need. */
struct ane_layout_info {
  const char *name;
  uint32_t unit; /* columns of a unit */
  int zero;      /* subtracted from each code */
  int subs;      /* scales for each 32 columns: 1 or 2 */
  bool has_min, int8_activations;
};
/* Returns a static entry. */
const struct ane_layout_info *ane_layout_info(ane_layout f);

enum { ANE_GROUP = 16, ANE_BLOCK = 32 }; /* rows of a group; columns of a block of activations */

/* A weight matrix [rows, cols] in packed layout. `data`: groups x group_bytes, 64-byte aligned; rows beyond the last are
 * zero codes with zero scales. ROWS: data is the stored tensor, row after row of `row_bytes`, decoded by `dtype`. */
struct ane_packed {
  ane_layout layout;
  ane_dtype dtype;    /* the stored type it came from */
  int64_t rows, cols; /* cols is a multiple of the layout's unit (BF16: the odd last column is padded with zero) */
  int64_t groups;     /* ceil(rows / 16) */
  size_t group_bytes, row_bytes;
  const uint8_t *data;
  const float *row_scale;     /* I8: [groups * 16]; else NULL */
  const float *lut;           /* LUT4: [groups][2][16], a table for each 8 rows; else NULL */
  const uint8_t *low_nibbles; /* Q8_0_SPLIT: after data, the low nibbles of the codes: ane_low_nibbles() */
  const uint8_t *scales;      /* Q8_0_SPLIT: after low_nibbles, the scales by rows: fp16 [groups * 16][cols / 32] */
};

/* Returns the layout for a stored type and row length; ROWS if none fits. */
ane_layout ane_layout_for(ane_dtype t, int64_t cols);
/* Sets *bytes to the bytes of one group of 16 rows; false on overflow. */
bool ane_layout_group_bytes(ane_layout f, int64_t cols, size_t *bytes);
/* Repacks rows of stored type t (stride row_bytes) to one group at dst. n_rows: 1 .. 16; further rows of the group become zeros.
 * Rows of LUT4 are bytes, one for each code. */
void ane_pack_group(ane_layout f, ane_dtype t, const void *rows, size_t row_bytes, int n_rows, int64_t cols, void *dst);
/* Sets *bytes to the bytes of all parts of a matrix whose groups and group_bytes are set; false on overflow. Not for ROWS. */
bool ane_packed_bytes(const struct ane_packed *w, size_t *bytes);
/* Sets data and the pointers to the parts that follow it. memory: ane_packed_bytes() bytes, 64-byte aligned; the caller owns it.
 */
void ane_packed_place(struct ane_packed *w, const void *memory);
/* Repacks rows of stored type t to group g of a placed matrix, as ane_pack_group does. Q8_0_SPLIT takes rows of Q8_0. */
void ane_pack_rows(const struct ane_packed *w, ane_dtype t, const void *rows, size_t row_bytes, int n_rows, int64_t g);

/* The B of an adapter in 8-bit codes. A group of 16 rows holds for each block of ANE_BLOCK ranks, the last of which may be
 * shorter: 16 fp32 scales, then for each pair of ranks [16 rows][2] codes. value = scale * code. Rows and ranks beyond the last
 * are zero. */
struct ane_low_codes {
  int64_t rows, rank, groups; /* groups: ceil(rows / 16) */
  size_t group_bytes;
  const uint8_t *data;
};
enum { ANE_LOW_RANKS = 512 }; /* the most ranks */
/* Sets groups, group_bytes and *bytes, those of all groups, for rows and rank; false on overflow. */
bool ane_low_codes_shape(struct ane_low_codes *b, int64_t rows, int64_t rank, size_t *bytes);
/* Encodes values [rows][rank], finite numbers, to data: the scale of a row of a block is its largest magnitude / 127, codes are
 * rounded to nearest even. */
void ane_low_codes_encode(const struct ane_low_codes *b, const float *values, uint8_t *data);

/* ---- Activations -------------------------------------------------------------------------------------------------*/

typedef enum { ANE_ACTIVATION_F32, ANE_ACTIVATION_I8, ANE_ACTIVATION_BF16, ANE_ACTIVATION_COUNT } ane_activation_type;

/* The activations of a product, prepared for one activation type. cols_pad: cols rounded up to 32 (I8) or 2 (BF16); the padding
 * is zero. nb = cols_pad / 32. */
struct ane_activations {
  ane_activation_type kind;
  int64_t t, cols;
  const float *f32; /* F32: [t][ld] */
  int64_t ld;
  const int8_t *q;          /* I8: [t][cols_pad] */
  bool precise;             /* I8: limits of outliers are lower (quantise_i8) */
  const float *d;           /* I8: [t][nb] scale of q */
  const int32_t *isum;      /* I8: [t][nb][2] sums of q over each 16 */
  const int32_t *minus_sum; /* I8: [t][nb] minus the sum of q over the block */
  int64_t outlier_ld;       /* row length of the next four arrays, which are ordered by blocks: 1, or t rounded up to 64 */
  /* I8: [nb][outlier_ld] bit i: columns 4 i .. 4 i + 3 of the block have residual codes. From each byte on, 64 bytes may be
   * read. */
  const uint8_t *outlier;
  /* I8: [nb][outlier_ld][32] x = d * (q + 128 residual). This and the next two are set only where outlier is not 0. */
  const int8_t *residual;
  const float *d_residual;      /* I8: [nb][outlier_ld] 128 d */
  const int32_t *residual_isum; /* I8: [nb][outlier_ld][2] of residual */
  const float *dsum;            /* I8: [t][nb] d times the sum over the block, rounded: the factor of minima */
  const uint16_t *bf16;         /* BF16: [t][cols_pad] */
};

/* Returns the activation type of a layout. int8: the program has int8 activations; bf16_dot: the level has it (struct
 * ane_kernels). */
ane_activation_type ane_activation_type_for(ane_layout f, bool int8, bool bf16_dot);
/* Returns the bytes of the arrays of t tokens, each 64-byte aligned. */
size_t ane_activations_bytes(ane_activation_type kind, int64_t t, int64_t cols);
/* Fills *a for such memory, which the caller owns, with precise = true. */
void ane_activations_place(struct ane_activations *a, ane_activation_type kind, int64_t t, int64_t cols, void *memory);
/* Returns a view of tokens [from, from + n) of a. */
struct ane_activations ane_activations_rows(const struct ane_activations *a, int64_t from, int64_t n);

/* ---- Bounds of products ------------------------------------------------------------------------------------------*/

/* The layout Q8_0_SPLIT stores the high and the low nibbles of a Q8_0 matrix separately. `data`, 9/16 of the bytes, gives an
 * upper bound of each product; low_nibbles and scales of one row give a tight bound of its product. The pruned head multiplies
 * only rows that can still win. A group of data is cols / 32 blocks of 304 bytes: high nibbles as in Q4_0 (256), scales (32), and
 * for each row the norm over the block of low - 7.5, in steps of 1 / ANE_BOUND_STEPS, rounded up (16). Byte i of the 16 bytes of
 * low nibbles of a block holds column i in its low and column i + 16 in its high nibble. low_nibbles, 64-byte aligned, holds for
 * each group chunks [16 rows][4 blocks][16 bytes]; the last chunk has the rest of the blocks. A row's part of a chunk is a cache
 * line, so one row is read without its neighbours, and all rows of a group are read in the order of memory. */
enum { ANE_BOUND_STEPS = 6, ANE_LOW_BLOCKS = 4 };
/* Returns the bytes from a row to the next in the chunk of block b of low_nibbles. */
static inline size_t ane_low_stride(int64_t cols, int64_t b) {
  int64_t left = cols / ANE_BLOCK - b / ANE_LOW_BLOCKS * ANE_LOW_BLOCKS;
  return (size_t)(left < ANE_LOW_BLOCKS ? left : ANE_LOW_BLOCKS) * 16;
}
/* Returns the low nibbles of block b of row `row`. */
static inline const uint8_t *ane_low_nibbles(const struct ane_packed *w, int64_t row, int64_t b) {
  const int64_t chunk = b / ANE_LOW_BLOCKS, group = row / ANE_GROUP * (w->cols / 2) + chunk * ANE_LOW_BLOCKS * 16;
  return w->low_nibbles + group * ANE_GROUP + (size_t)(row % ANE_GROUP) * ane_low_stride(w->cols, b) + b % ANE_LOW_BLOCKS * 16;
}
/* What the bounds need of a block of one token. by: the factor that dot * scale is multiplied by. norm: the norm of x, in steps
 * of 1 / ANE_BOUND_STEPS. slack: an upper bound of all rounding errors of the bound and of the product. norm and slack are for a
 * scale of 1. The dots are 32 * high * q + start and 2 * low * q + start_low. */
struct ane_bound_block {
  float by, norm, slack;
  int32_t start, start_low; /* -241 and -15 * sum of q: code - 128 = 16 high - 120.5 + (low - 7.5) */
};
/* Fills out [cols / 32] from the first token of x, whose kind is I8. */
void ane_bound_prepare(const struct ane_activations *x, struct ane_bound_block *out);

/* ---- KV cache ----------------------------------------------------------------------------------------------------*/

enum { ANE_TILE = 64 }; /* positions of a tile; tile i holds positions [64 i, 64 i + 64) */

/* Keys and values of one layer. A page holds a tile together with the tiles of the other heads and layers. K tiles are
 * transposed, [head_dim][64]; V tiles are [64][head_dim]. The dtype is fp16, fp32, int8 or int16; integers have one fp32 scale
 * per position and head for K and for V. int16 holds codes in pairs: K [head_dim / 2, rounded up][64][2], V [32][head_dim][2], in
 * which positions j and j + 16 of 32 are a pair. Memory beyond what was written is zero, or after a rewind old
 * values, always finite. K, V and scales of a head are adjacent, because they are read together.
 *
 * int16 keys may be relative: the head's key at position 0, the base, is subtracted from each. This shifts all scores of a query
 * equally, so the softmax does not change. The base is kept in fp32 in the first page. */
struct ane_kv {
  ane_dtype dtype; /* ANE_F16, ANE_F32, ANE_I8, ANE_I16 */
  int64_t heads, head_dim;
  size_t tile_bytes;       /* of one head's K or V */
  size_t stride;           /* bytes from a head's tiles and scales to the next head's */
  uint8_t *const *pages;   /* the page of each tile */
  size_t k, v;             /* byte offsets of the first head's K and V tile in a page */
  size_t k_scale, v_scale; /* integers: byte offsets of its scales, [64] each; int16: for V their logarithms to
                            * base 2, -60 .. 60 */
  bool relative;           /* int16: keys are relative; not for attention with sinks, with softcap or in both directions */
  size_t base;             /* relative: byte offset of its base, [head_dim], of which that in the first page is used */
};

/* Returns whether the type has a scale for each position and head. */
static inline bool ane_kv_has_scales(ane_dtype dtype) { return dtype == ANE_I8 || dtype == ANE_I16; }
/* Lays out the heads of a layer in a page from byte `at`, a multiple of 64, on: sets the sizes and offsets of *kv by its dtype,
 * heads, head_dim and relative, which is cleared for other types than int16. Returns the end, a multiple of 64. */
static inline size_t ane_kv_layout(struct ane_kv *kv, size_t at) {
  const size_t dims = (size_t)(kv->dtype == ANE_I16 ? kv->head_dim + kv->head_dim % 2 : kv->head_dim);
  const size_t scales = ane_kv_has_scales(kv->dtype) ? ANE_TILE * sizeof(float) : 0;
  kv->tile_bytes = ANE_TILE * dims * ane_dtype_info(kv->dtype)->bytes;
  kv->k = at;
  kv->v = kv->k + kv->tile_bytes;
  kv->k_scale = kv->v + kv->tile_bytes;
  kv->v_scale = kv->k_scale + scales;
  kv->relative = kv->relative && kv->dtype == ANE_I16;
  kv->base = kv->v_scale + scales;
  kv->stride = 2 * (kv->tile_bytes + scales) + (kv->relative ? ((size_t)kv->head_dim * sizeof(float) + 63) / 64 * 64 : 0);
  return at + (size_t)kv->heads * kv->stride;
}
/* Return K, V or their 64 scales of one tile of KV head h. Tiles are 64-byte aligned. */
static inline void *ane_kv_k(const struct ane_kv *kv, int64_t h, int64_t tile) {
  return kv->pages[tile] + kv->k + (size_t)h * kv->stride;
}
static inline void *ane_kv_v(const struct ane_kv *kv, int64_t h, int64_t tile) {
  return kv->pages[tile] + kv->v + (size_t)h * kv->stride;
}
static inline float *ane_kv_k_scale(const struct ane_kv *kv, int64_t h, int64_t tile) {
  return (float *)(void *)(kv->pages[tile] + kv->k_scale + (size_t)h * kv->stride);
}
static inline float *ane_kv_v_scale(const struct ane_kv *kv, int64_t h, int64_t tile) {
  return (float *)(void *)(kv->pages[tile] + kv->v_scale + (size_t)h * kv->stride);
}

/* Return the index in a tile of element d of the key, or of the value, at position j. Values of positions j and j + 16 are
 * pairs. */
static inline int64_t ane_att_k(const struct ane_kv *kv, int64_t d, int64_t j) {
  return kv->dtype == ANE_I16 ? 2 * (d / 2 * ANE_TILE + j) + d % 2 : d * ANE_TILE + j;
}
static inline int64_t ane_att_v(const struct ane_kv *kv, int64_t j, int64_t d) {
  return kv->dtype == ANE_I16 ? 2 * ((j / 32 * 16 + j % 16) * kv->head_dim + d) + j / 16 % 2 : j * kv->head_dim + d;
}

/* Returns the base of KV head h, [head_dim]; NULL if keys are not relative. */
static inline float *ane_kv_base(const struct ane_kv *kv, int64_t h) {
  return kv->relative ? (float *)(void *)(kv->pages[0] + kv->base + (size_t)h * kv->stride) : NULL;
}

/* One attention call: queries at positions pos .. pos + t - 1, keys 0 .. pos + t - 1 already written. Query head h uses
 * kv head h / (n_heads / kv->heads). Key j is visible to the query at p iff j <= p + ahead and j > p - window (window 0:
 * all). ahead 0: causal. */
struct ane_attention {
  const struct ane_kv *kv;
  const float *q; /* [t][n_heads * head_dim], row stride ld_q */
  float *out;     /* the same shape, row stride ld_out */
  int64_t ld_q, ld_out;
  int64_t t, n_heads, pos, window, ahead;
  float scale, softcap;        /* score = scale * q.k; softcap c > 0: c * tanh(score / c) */
  const float *sinks;          /* [n_heads]: a score in the softmax that has no value; NULL: none */
  const void *next_k, *next_v; /* to prefetch: the tile of a head that the thread reads after this call; NULL: unknown */
  int64_t next_keys;           /* the first keys of it that the thread reads, 1 .. ANE_TILE */
};

/* Rows (a query of one head) that share one pass over the tiles in a call of `attention`. */
enum { ANE_ATT_ROWS = 192 };

/* ---- The table ---------------------------------------------------------------------------------------------------*/

/* y[t][r] for the rows of groups [g_from, g_to) and all tokens of x. Per output, with nb blocks of 32 in ascending order
 *   F32   acc = fma(w[k], x[k], acc) for k = 0, 1, ..., w the dequantised weight in float32
 *         (scale * (code - zero), then + min where there is one, each rounded; scale of two levels = product, rounded;
 *         N4, N8: scale * (code - zero point), one rounding; codes of a table: its value for code - zero)
 *   I8    i = sum code * q - zero * sum q;  f = (float)i * scale;  acc = fma(f, d, acc);
 *         with a minimum: acc = fma(min, dsum, acc)
 *         two scales: f = (float)i0 * s0; f = fma((float)i1, s1, f)
 *         with a minimum for each 16 columns after each of these f = fma((float)sum of their q, its minimum, f)
 *         layout I8: f = (float)i
 *         outlier blocks are added again, with residual for q and d_residual for d, to a separate sum:
 *         residual_sum = fma(f, d_residual, residual_sum); at the end acc + residual_sum, for layout I8 times row_scale
 *   BF16  one bf16 dot for each pair of columns, ascending (rounding as the instruction)
 * The result goes to out[t * ld_out + r]; rows >= w->rows are not written. scratch: ane_matmul_scratch() bytes,
 * 64-byte aligned, one for each thread. x->kind must be one that ane_activation_type_for gives for the layout. */
typedef void (*ane_matmul_fn)(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to,
                              float *out, int64_t ld_out, void *scratch);

struct ane_kernels {
  ane_isa isa;
  bool bf16_dot;                                                /* BF16 matrices may take bf16 activations */
  ane_matmul_fn matmul[ANE_LAYOUT_COUNT][ANE_ACTIVATION_COUNT]; /* NULL: no kernel for this pair */

  /* For a Q8_0_SPLIT matrix: bound[t * ld + r] >= the result of matmul for row r of the groups [g_from, g_to) and token t of x,
   * all 16 rows of a group; NaN where x has NaN. By the Cauchy-Schwarz inequality a block contributes at most scale * d * (dot of
   * the high nibbles) + |scale| * |low - 7.5| * |d q|. base[t * ld + r] is the bound without the second term. blocks: [t][cols /
   * 32]. Rounding of bounds is not fixed. */
  void (*upper_bound)(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                      int64_t g_from, int64_t g_to, float *bound, float *base, int64_t ld);
  /* For the first token of x: bound[i] >= the result of matmul for row rows[i], and exceeds it by rounding errors only. base: as
   * upper_bound returned it. */
  void (*row_bound)(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                    const int32_t *rows, int n, const float *base, float *bound);

  /* Fill rows [t_from, t_to) of prepared activations from x [t][ld].
   * I8, each block of 32: amax = max |x|; d = amax / 127; q = round to nearest even of x * (127 / amax), the quotient rounded
   * once. A block with amax^2 > limit is an outlier block; limit = sum(amax^2) * (over / nb), the sum over the blocks of the
   * token by 16 lanes as below, without fma; over and part: ANE_OUTLIER_*, by `precise`. There max(sqrt(limit) * part, amax *
   * (127 / 16319)) replaces amax and gives integers v. Each four columns with a |v| above 127 have residual codes:
   * residual = (v + 64) >> 7 and q = v - 128 residual. Where amax < 2^-100: d = 0, q = 0. NaN or infinite x give unspecified
   * codes in range. */
  void (*quantise_i8)(const struct ane_activations *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to);
  void (*convert_bf16)(const struct ane_activations *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to);

  /* Sums below go over 16 lanes: lane j takes elements j, j + 16, ... in ascending order, then l[i] += l[i + 8],
   * l[i] += l[i + 4], l[i] += l[i + 2], l[0] + l[1]. */

  /* y = (x * r) * w for each of n rows of c elements (row strides ldx, ldy), r = 1 / sqrt(sum(x^2) / c + eps), squares
   * by fma. w NULL: no weight. x == y is fine. */
  void (*rms_norm)(const float *x, int64_t ldx, const float *w, float eps, float *y, int64_t ldy, int64_t n, int64_t c);
  /* y = (x - mean) * r * w + b; mean and variance by the sums above. w, b may be NULL. */
  void (*layer_norm)(const float *x, int64_t ldx, const float *w, const float *b, float eps, float *y, int64_t ldy, int64_t n,
                     int64_t c);

  /* y[t][r] = sum over c of a[r][c] * x[t][c] by fma, for n tokens and `rank` rows: the A of adapters. a: fp16 (half) or fp32,
   * for each 4 rows, for each 16 columns [4][16], zeros beyond rank and cols. Row strides of x and y: ldx, ldy. */
  void (*low_rank)(const void *a, bool half, int64_t rank, const float *x, int64_t ldx, int64_t n, int64_t cols, float *y,
                   int64_t ldy);
  /* y[r - 16 g_from] += sum over k, ascending from 0, of b[r][k] * x[k] by fma, for the rows r of groups [g_from, g_to): the B of
   * adapters and one token. b: layout F16 or F32. The sums have the bits of the product of b and x. */
  void (*low_rank_add)(const struct ane_packed *b, const float *x, int64_t g_from, int64_t g_to, float *y);

  /* y[t][r - 16 g_from] += B x for n tokens and the rows r of groups [g_from, g_to). Row strides of x and y: ldx, ldy. For each
   * block of ranks, ascending: amax = max |x|; d = amax / 32767; q = round to nearest even of x * (32767 / amax); where amax is
   * not above 2^-100 or not finite: d = 0, q = 0. s = fma((float)(sum code * q) * scale, d, s), from 0 on; at the end y + s. NaN
   * x give unspecified results. rank is at most ANE_LOW_RANKS. */
  void (*low_codes_add)(const struct ane_low_codes *b, const float *x, int64_t ldx, int64_t n, int64_t g_from, int64_t g_to,
                        float *y, int64_t ldy);

  /* Elementwise over n: y = a + b, a * b, a * s, s * tanh(a / s); any of the arrays may be the same. */
  void (*add)(const float *a, const float *b, float *y, int64_t n);
  void (*mul)(const float *a, const float *b, float *y, int64_t n);
  void (*scale)(const float *a, float s, float *y, int64_t n);
  void (*softcap)(const float *a, float s, float *y, int64_t n);
  /* y = act(g) * u. silu: g / (1 + exp(-g)); gelu_tanh: 0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))), tanh through
   * exp; gelu_erf: 0.5 g (1 + erf(g / sqrt 2)). u NULL: y = act(g). */
  void (*silu)(const float *g, const float *u, float *y, int64_t n);
  void (*gelu_tanh)(const float *g, const float *u, float *y, int64_t n);
  void (*gelu_erf)(const float *g, const float *u, float *y, int64_t n);
  void (*sigmoid)(const float *g, const float *u, float *y, int64_t n);

  /* Rotates n_heads heads of head_dim in place (x[h * head_dim]), by one row of a table cs = cos[r/2], sin[r/2].
   * neox: pairs (x[t], x[t + r/2]); else (x[2t], x[2t+1]). a' = a cos - b sin, b' = b cos + a sin (two products, one
   * fma each: a' = fma(a, cos, -(b sin)), b' = fma(b, cos, a sin)). Dimensions from r on are unchanged. */
  void (*rope)(float *x, const float *cs, int64_t n_heads, int64_t head_dim, int64_t r, bool neox);

  /* Writes keys and values of n tokens (k, v: [n][heads][head_dim], row stride ld) at positions pos .. pos + n - 1, heads
   * [h_from, h_to). fp16: nearest even. int8: scale = max|x| / 127 over the head, codes to nearest even of x * (127 / max|x|).
   * int16 keys: x = k, of relative keys k - base (position 0 sets the base, and must be written before any other); the
   *   largest code c = min(46200 / norm, 32767), norm that of x / max|x| (squares by fma, sums as above);
   *   scale = max|x| / c, codes to nearest even of x * (c / max|x|).
   * int16 values: e = ane_att_exponent(max|v|) in place of a scale; codes to nearest even of v * exp2_rough(-e), at most
   *   4095. */
  void (*kv_write)(const struct ane_kv *kv, int64_t pos, int64_t n, const float *k, const float *v, int64_t ld, int64_t h_from,
                   int64_t h_to);

  /* Attention for query heads of kv head h, queries [t_from, t_to), tiles [tile_from, tile_to). Per query and tile:
   *   s_j = scale * (sum over d ascending of fma(q_d, k_jd)) (int8: * k_scale_j before scale), capped, hidden keys -inf;
   *   m = max s_j; p_j = exp(s_j - m); l = sum p_j over 16 lanes as above; o_d = fma(p_j, v_jd, o_d) for ascending j
   *   (int8: p_j * v_scale_j rounded first), + 0 at the end, so that no -0 reveals hidden keys.
   * int16: queries have codes and scales as keys have. x_j = (float)(sum of the codes of q times those of k_j) * k_scale_j;
   *   c = q_scale * scale (a negative scale: |scale|, and the codes of q negated); y_j = fma(x_j, c * log2 e, e_j), e_j the
   *   exponent of v_j; with softcap y_j = fma(capped(x_j * c), log2 e, e_j). top = max y_j, m = top * ln 2;
   *   w_j = exp2_rough(y_j - top), 0 where hidden; l = sum by fma of w_j * exp2_rough(-e_j) over 16 lanes; u_j = nearest even
   *   of w_j * 8191; o_d = (float)(sum of u_j times codes of v_jd) * (1 / 8191). The sums of integers are exact. So m may lie
   *   below the largest score, and l above the number of keys.
   * attention: combines the tiles in ascending order from M = -inf, L = 0, O = 0 and skips tiles in which nothing is
   *   visible: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fma(l, b, L a), O = fma(o, b, O a); writes O / L;
   *   with a sink S first M' = max(M, S), a = exp(M - M'), L = fma(L, a, exp(S - M')), O = O a.
   * attention_part: writes (m, l, o[head_dim]) of each head of the group for one query and each of the tiles [tile_from,
   *   tile_to) to part, ane_part_floats() a tile (nothing where the tile is hidden), to be combined in that same order by
   *   attention_merge, so the tiles of one query may go to different threads. attention_merge: part has the tiles
   *   [tile_from, tile_to).
   * scratch: ane_attention_scratch() bytes, 64-byte aligned. */
  void (*attention)(const struct ane_attention *a, int64_t h, int64_t t_from, int64_t t_to, void *scratch);
  void (*attention_part)(const struct ane_attention *a, int64_t h, int64_t t, int64_t tile_from, int64_t tile_to, float *part,
                         void *scratch);
  void (*attention_merge)(const struct ane_attention *a, int64_t h, int64_t t, int64_t tile_from, int64_t tile_to,
                          const float *part);

  /* The largest of n values and its index; of equal values the lowest index. NaN is never the largest; if all are NaN, index 0.
   */
  int64_t (*argmax)(const float *x, int64_t n, float *best);
};

/* Returns the floats of one (tile, query) entry of a KV head's part: (n_heads / kv heads) * (2 + head_dim). */
static inline int64_t ane_part_floats(const struct ane_attention *a) { return a->n_heads / a->kv->heads * (2 + a->kv->head_dim); }
/* Return the bytes of scratch memory that a thread needs for a product with w, or for attention. */
size_t ane_matmul_scratch(const struct ane_packed *w);
size_t ane_attention_scratch(int64_t n_heads, int64_t kv_heads, int64_t head_dim);

/* Returns the table of a level, which must be available. Tables are static: two calls return the same pointer. */
const struct ane_kernels *ane_kernels_get(ane_isa isa);
/* Whether the CPU computes 512 bits in two halves: products of the level avx512vnni are then divided in another way. Their bits
 * do not depend on it. ane_kernels_get sets it once. Specs set it to compare both ways. */
extern bool ane_half_units;

/* ---- Limits of the machine (limits.c), which benchmarks and profiles compare kernels with -----------------------------------*/

/* Loops of one thread on registers, with instructions of an available level. Each returns its number of operations (a multiply
 * and an add are two): 8-bit dot products, bf16 dot products (vdpbf16ps), fp32 fused multiply-adds; 0 if the level has no such
 * instruction or this file does not know it. The dot of avxvnni and avx512vnni is vpdpbusd; that of avx2 and avx512 is what 32
 * columns of 4-bit codes need: eight vpmaddubsw, seven vpaddw, one vpmaddwd and one vpaddd. */
double ane_limit_dot(ane_isa isa, int64_t steps);
double ane_limit_bf16(ane_isa isa, int64_t steps);
double ane_limit_fma(ane_isa isa, int64_t steps);
/* Reads all bytes of p; size is a multiple of 128. The result has no meaning: it keeps the compiler from removing the reads. */
uint64_t ane_limit_read(const void *p, size_t size);

/* Bytes of the read test, more than caches hold; maximum threads of a pool. */
enum { ANE_LIMIT_BYTES = 512 << 20, ANE_LIMIT_THREADS = 256 };

/* Limits of all threads of a pool together. 0: unknown. */
struct ane_limits {
  double read;           /* bytes a second from memory */
  double dot, bf16, fma; /* operations a second */
};
/* Measures the limits of one level. It takes about a second and ANE_LIMIT_BYTES of memory. Errors: ANE_NOMEM, ANE_RANGE
 * (threads). */
ane_status ane_limits_measure(struct ane_pool *pool, ane_isa isa, struct ane_limits *out, struct ane_error *err);

#endif
