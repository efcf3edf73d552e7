/* Shared by the files of kernels/ only: the overlays that fill the table, and how packed units are read back. */
#ifndef ANE_KERNELS_KERNELS_INTERNAL_H
#define ANE_KERNELS_KERNELS_INTERNAL_H

#include "kernels/kernels.h"

/* Overlays: each sets the entries of the table for which it has a function. Those of ref set all entries. */
void ane_matmul_ref(struct ane_kernels *k);
void ane_norm_ref(struct ane_kernels *k);
void ane_low_rank_ref(struct ane_kernels *k);
void ane_elementwise_ref(struct ane_kernels *k);
void ane_attention_ref(struct ane_kernels *k);

void ane_matmul_avx2(struct ane_kernels *k);
void ane_norm_avx2(struct ane_kernels *k);
void ane_low_rank_avx2(struct ane_kernels *k);
void ane_elementwise_avx2(struct ane_kernels *k);
void ane_attention_avx2(struct ane_kernels *k);

void ane_matmul_avxvnni(struct ane_kernels *k);

void ane_matmul_avx512(struct ane_kernels *k);
void ane_norm_avx512(struct ane_kernels *k);
void ane_low_rank_avx512(struct ane_kernels *k);
void ane_elementwise_avx512(struct ane_kernels *k);
void ane_attention_avx512(struct ane_kernels *k);

void ane_matmul_avx512vnni(struct ane_kernels *k);
void ane_low_rank_avx512vnni(struct ane_kernels *k);
void ane_attention_avx512vnni(struct ane_kernels *k);
void ane_matmul_avx512bf16(struct ane_kernels *k);

void ane_activations_neon(struct ane_kernels *k);
void ane_matmul_neon(struct ane_kernels *k);
void ane_matmul_f32_neon(struct ane_kernels *k);
void ane_norm_neon(struct ane_kernels *k);
void ane_low_rank_neon(struct ane_kernels *k);
void ane_elementwise_neon(struct ane_kernels *k);
void ane_attention_neon(struct ane_kernels *k);

void ane_matmul_dotprod(struct ane_kernels *k);
void ane_matmul_i8mm(struct ane_kernels *k);
void ane_matmul_bf16dot(struct ane_kernels *k);

/* Apply the overlays of one architecture to a table, weakest level first, up to `isa`. */
void ane_kernels_init_x86(struct ane_kernels *k, ane_isa isa);
void ane_kernels_init_arm(struct ane_kernels *k, ane_isa isa);

/* 32 columns of a quantised group, read back one by one: value = scale * (code - zero) + min + sub_min. At most one of
 * the minima is not 0. */
struct ane_block {
  uint8_t code[ANE_BLOCK][ANE_GROUP];
  float scale[2][ANE_GROUP];   /* of each 16 columns; equal where the layout has one scale; 1 for I8 */
  float min[ANE_GROUP];        /* 0 where the layout has none */
  float sub_min[2][ANE_GROUP]; /* of each 16 columns; 0 where the layout has none */
  float offset[ANE_GROUP]; /* N4, N8: zero - zero point; the value is scale * (code - zero + offset), and min scale * offset */
};
/* Reads block b of group g. The layout must have int8_activations. */
void ane_read_block(const struct ane_packed *w, int64_t g, int64_t b, struct ane_block *out);

/* pack_codes.c: ane_pack_group for types that ane_codes_reader reads. */
void ane_pack_codes(ane_layout f, ane_dtype t, const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst);

/* split.c: rows of Q8_0 to group g of a Q8_0_SPLIT matrix. */
void ane_pack_split(const struct ane_packed *w, const uint8_t *rows, size_t stride, int n_rows, int64_t g);

/* The bytes that ane_matmul_scratch returns for any matrix. Each level divides them as it needs. */
enum { ANE_SCRATCH = 1024 * 1024 };
/* Columns of a panel of floats. */
enum { ANE_PANEL = 256 };
/* Decodes columns [k, k + n) of group g to floats [n][16], for any layout. k is a multiple of ANE_PANEL, and n <= ANE_PANEL. Rows
 * beyond the last are zeros. tmp: [16][ANE_PANEL] floats, used for ROWS only, whose dtype must have a decoder. */
void ane_read_panel(const struct ane_packed *w, int64_t g, int64_t k, int n, float *panel, float *tmp);

/* Largest codes of activations: q alone reaches 127; with a residual code the sum reaches 127 * 128 + 63. */
enum { ANE_CODE_MAX = 127, ANE_OUTLIER_MAX = 16319 };
/* A block is an outlier if the square of its largest value exceeds a limit: OVER times the mean of these squares over the blocks
 * of the token. Code 127 of an outlier block then stands for PART times the root of the limit (ane_outlier_span). The precise
 * pair is used for products that attention, routing and logits depend on. Chosen by experiment:
 * docs/notes/activation-outliers.md. */
#define ANE_OUTLIER_OVER_PRECISE 2.0f
#define ANE_OUTLIER_PART_PRECISE 0.25f
#define ANE_OUTLIER_OVER 4.0f
#define ANE_OUTLIER_PART 0.35f
#define ANE_BOUND_START 0x1p-120f /* start of the sums of a bound: exceeds the rounding errors of subnormal numbers */
#define ANE_TINY 0x1p-100f /* blocks with no larger value become zero, so scales and inverses stay finite, normal numbers */

static inline float ane_outlier_over(bool precise) { return precise ? ANE_OUTLIER_OVER_PRECISE : ANE_OUTLIER_OVER; }
static inline float ane_outlier_part(bool precise) { return precise ? ANE_OUTLIER_PART_PRECISE : ANE_OUTLIER_PART; }

/* Returns the limit of a token. Blocks whose squared largest value exceeds it are outliers. amax: the largest magnitudes of its
 * nb blocks. The sum has 16 partial sums and no fma, so that all levels agree to the bit. */
static inline float ane_outlier_limit(const float *amax, int64_t nb, bool precise) {
  float l[16] = {0};
  int64_t b = 0;
  for (; b + 16 <= nb; b += 16)
    for (int j = 0; j < 16; j++) l[j] += amax[b + j] * amax[b + j];
  for (int j = 0; b + j < nb; j++) l[j] += amax[b + j] * amax[b + j];
  for (int n = 8; n >= 1; n /= 2)
    for (int j = 0; j < n; j++) l[j] += l[j + n];
  return l[0] * (ane_outlier_over(precise) / (float)nb);
}

/* Returns the value that code 127 stands for in an outlier block. root: square root of the limit. */
static inline float ane_outlier_span(float amax, float root, bool precise) {
  float least = amax * ((float)ANE_CODE_MAX / (float)ANE_OUTLIER_MAX), part = ane_outlier_part(precise) * root;
  return part > least ? part : least;
}

/* Returns the number of rows of group g within the matrix: 1 .. 16. */
static inline int ane_group_rows(const struct ane_packed *w, int64_t g) {
  int64_t left = w->rows - g * ANE_GROUP;
  return left < ANE_GROUP ? (int)left : ANE_GROUP;
}

/* Unaligned loads and stores in the byte order of the machine. It must be little-endian, because packing does arithmetic on bytes
 * inside words. */
static inline uint32_t ane_word(const void *p) {
  uint32_t u;
  __builtin_memcpy(&u, p, 4);
  return u;
}
static inline uint16_t ane_half(const void *p) {
  uint16_t u;
  __builtin_memcpy(&u, p, 2);
  return u;
}
static inline void ane_put_word(void *p, uint32_t u) { __builtin_memcpy(p, &u, 4); }
static inline void ane_put_half(void *p, uint16_t u) { __builtin_memcpy(p, &u, 2); }

#if defined(__x86_64__)
/* For limits.c: loops of instructions, which the machine must support. */
double limit_dot_avx2(int64_t steps);
double limit_fma_avx2(int64_t steps);
double limit_dot_avxvnni(int64_t steps);
double limit_dot_avx512(int64_t steps);
double limit_dot_avx512vnni(int64_t steps);
double limit_bf16_avx512(int64_t steps);
double limit_fma_avx512(int64_t steps);
uint64_t limit_read_avx2(const void *p, size_t size);
#endif

#endif
