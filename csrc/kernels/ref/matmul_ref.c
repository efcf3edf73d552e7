/* Matrix products in scalar C, for every layout, with float and with 8-bit activations. The other levels are tested against this
 * file. */
#include "kernels/matmul_layouts.h"

#include "tensor/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64 }; /* tokens whose sums are kept at once; each block is decoded once for all of them */

static void store(const struct ane_packed *w, int64_t g, int n, float acc[][ANE_GROUP], float *out, int64_t ld_out) {
  for (int t = 0; t < n; t++) memcpy(out + t * ld_out + g * ANE_GROUP, acc[t], sizeof(float) * (size_t)ane_group_rows(w, g));
}

static void matmul_f32(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out,
                       int64_t ld_out, void *scratch) {
  float *panel = scratch, *tmp = panel + ANE_PANEL * ANE_GROUP;
  for (int64_t g = g_from; g < g_to; g++)
    for (int64_t t0 = 0; t0 < x->t; t0 += TOKENS) {
      float acc[TOKENS][ANE_GROUP] = {{0}};
      int nt = (int)ANE_MIN(x->t - t0, TOKENS);
      for (int64_t k = 0; k < w->cols; k += ANE_PANEL) {
        int n = (int)ANE_MIN(w->cols - k, ANE_PANEL);
        ane_read_panel(w, g, k, n, panel, tmp);
        for (int t = 0; t < nt; t++)
          for (int j = 0; j < n; j++)
            for (int r = 0; r < ANE_GROUP; r++)
              acc[t][r] = fmaf(panel[j * ANE_GROUP + r], x->f32[(t0 + t) * x->ld + k + j], acc[t][r]);
      }
      store(w, g, nt, acc, out + t0 * ld_out, ld_out);
    }
}

/* Computes the scaled dot of each row of a block with the 32 codes q of one token. */
static void dot_block(const struct ane_packed *w, const struct ane_layout_info *f, const struct ane_block *block, const int8_t *q,
                      float v[ANE_GROUP]) {
  for (int r = 0; r < ANE_GROUP; r++) {
    int32_t i[2] = {0, 0}, sum[2] = {0, 0};
    for (int c = 0; c < ANE_BLOCK; c++) {
      i[c / 16] += (block->code[c][r] - f->zero) * q[c];
      sum[c / 16] += q[c];
    }
    if (w->layout == ANE_LAYOUT_I8)
      v[r] = (float)(i[0] + i[1]);
    else if (f->subs == 1)
      v[r] = (float)(i[0] + i[1]) * block->scale[0][r];
    else if (layout_has_sub_min(w->layout)) {
      v[r] = fmaf((float)sum[0], block->sub_min[0][r], (float)i[0] * block->scale[0][r]);
      v[r] = fmaf((float)sum[1], block->sub_min[1][r], fmaf((float)i[1], block->scale[1][r], v[r]));
    } else
      v[r] = fmaf((float)i[1], block->scale[1][r], (float)i[0] * block->scale[0][r]);
  }
}

/* Adds the products of block b and token t to acc and, in an outlier block, those of the residual codes to residual_sum. */
static void add_block(const struct ane_packed *w, const struct ane_layout_info *f, const struct ane_block *block,
                      const struct ane_activations *x, int64_t t, int64_t b, int64_t nb, float acc[ANE_GROUP],
                      float residual_sum[ANE_GROUP]) {
  int64_t at = t * nb + b;
  float v[ANE_GROUP];
  dot_block(w, f, block, x->q + at * ANE_BLOCK, v);
  for (int r = 0; r < ANE_GROUP; r++) {
    acc[r] = fmaf(v[r], x->d[at], acc[r]);
    if (f->has_min) acc[r] = fmaf(block->min[r], x->dsum[at], acc[r]);
  }
  at = b * x->outlier_ld + t;
  if (!x->outlier[at]) return;
  dot_block(w, f, block, x->residual + at * ANE_BLOCK, v);
  for (int r = 0; r < ANE_GROUP; r++) residual_sum[r] = fmaf(v[r], x->d_residual[at], residual_sum[r]);
}

static void matmul_i8(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out,
                      int64_t ld_out, void *scratch) {
  const struct ane_layout_info *f = ane_layout_info(w->layout);
  int64_t nb = (int64_t)ane_div_up((size_t)w->cols, ANE_BLOCK);
  (void)scratch;
  for (int64_t g = g_from; g < g_to; g++)
    for (int64_t t0 = 0; t0 < x->t; t0 += TOKENS) {
      float acc[TOKENS][ANE_GROUP] = {{0}}, residual_sum[TOKENS][ANE_GROUP] = {{0}};
      int nt = (int)ANE_MIN(x->t - t0, TOKENS);
      for (int64_t b = 0; b < nb; b++) {
        struct ane_block block;
        ane_read_block(w, g, b, &block);
        for (int t = 0; t < nt; t++) add_block(w, f, &block, x, t0 + t, b, nb, acc[t], residual_sum[t]);
      }
      for (int t = 0; t < nt; t++)
        for (int r = 0; r < ANE_GROUP; r++) {
          acc[t][r] += residual_sum[t][r];
          if (w->layout == ANE_LAYOUT_I8) acc[t][r] *= w->row_scale[g * ANE_GROUP + r];
        }
      store(w, g, nt, acc, out + t0 * ld_out, ld_out);
    }
}

/* Rounds x * inverse to the nearest integer. Returns -limit where it is out of range or not finite, as the vector conversions do.
 */
static int32_t code_of(float x, float inverse, int32_t limit) {
  float v = x * inverse;
  return fabsf(v) <= (float)limit + 0.5f ? (int32_t)nearbyintf(v) : -limit;
}

/* Splits the integers v of outlier block `at` into residual codes and codes q: v = q + 128 * residual. */
static void split_outlier(const struct ane_activations *a, int64_t at, const int32_t v[ANE_BLOCK], int8_t *q) {
  int8_t *residual = (int8_t *)a->residual + at * ANE_BLOCK;
  int32_t *isum = (int32_t *)a->residual_isum + 2 * at;
  uint8_t *outlier = (uint8_t *)a->outlier + at;
  isum[0] = isum[1] = 0;
  for (int i = 0; i < ANE_BLOCK; i++)
    if (abs(v[i]) > ANE_CODE_MAX) *outlier |= (uint8_t)(1u << i / 4);
  for (int i = 0; i < ANE_BLOCK; i++) {
    residual[i] = (int8_t)(*outlier >> i / 4 & 1 ? (v[i] + 64) >> 7 : 0);
    q[i] = (int8_t)(v[i] - 128 * residual[i]);
    isum[i / 16] += residual[i];
  }
}

/* Quantises the n <= 32 values x of block b of token t. amax: the largest magnitude. limit: the square above which a block is an
 * outlier block. */
static void quantise_block(const struct ane_activations *a, int64_t t, int64_t b, int64_t nb, const float *x, int n, float amax,
                           float limit) {
  const int64_t at = t * nb + b, at_outlier = b * a->outlier_ld + t;
  const bool outlier = amax * amax > limit;
  const float span = outlier ? ane_outlier_span(amax, sqrtf(limit), a->precise) : amax,
              inverse = amax >= ANE_TINY ? (float)ANE_CODE_MAX / span : 0;
  const float d = amax >= ANE_TINY ? span / (float)ANE_CODE_MAX : 0;
  int8_t *q = (int8_t *)a->q + at * ANE_BLOCK;
  int32_t *isum = (int32_t *)a->isum + 2 * at, sum = 0, v[ANE_BLOCK] = {0};
  for (int i = 0; i < n; i++) {
    v[i] = code_of(x[i], inverse, outlier ? ANE_OUTLIER_MAX : ANE_CODE_MAX);
    sum += v[i];
  }
  ((uint8_t *)a->outlier)[at_outlier] = 0;
  ((float *)a->d_residual)[at_outlier] = 128 * d;
  for (int i = 0; i < ANE_BLOCK; i++) q[i] = (int8_t)v[i];
  if (outlier) split_outlier(a, at_outlier, v, q);
  isum[0] = isum[1] = 0;
  for (int i = 0; i < ANE_BLOCK; i++) isum[i / 16] += q[i];
  ((int32_t *)a->minus_sum)[at] = -isum[0] - isum[1];
  ((float *)a->d)[at] = d;
  ((float *)a->dsum)[at] = d * (float)sum;
}

static void quantise_i8(const struct ane_activations *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK);
  for (int64_t t = t_from; t < t_to; t++) {
    float *amax = (float *)a->d + t * nb;
    for (int64_t b = 0; b < nb; b++) amax[b] = 0;
    for (int64_t i = 0; i < a->cols; i++) amax[i / ANE_BLOCK] = fmaxf(amax[i / ANE_BLOCK], fabsf(x[t * ld + i]));
    float limit = ane_outlier_limit(amax, nb, a->precise);
    for (int64_t b = 0; b < nb; b++)
      quantise_block(a, t, b, nb, x + t * ld + b * ANE_BLOCK, (int)ANE_MIN(a->cols - b * ANE_BLOCK, ANE_BLOCK), amax[b], limit);
  }
}

static void convert_bf16(const struct ane_activations *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t pad = a->cols + (a->cols & 1);
  for (int64_t t = t_from; t < t_to; t++) {
    uint16_t *to = (uint16_t *)a->bf16 + t * pad;
    for (int64_t i = 0; i < a->cols; i++) to[i] = ane_f32_bf16(x[t * ld + i]);
    if (pad > a->cols) to[a->cols] = 0;
  }
}

/* Returns the integer q + 128 * residual of column c of the first token. */
static int32_t column_code(const struct ane_activations *x, int64_t c) {
  int64_t at = c / ANE_BLOCK * x->outlier_ld;
  return x->outlier[at] ? x->q[c] + 128 * x->residual[at * ANE_BLOCK + c % ANE_BLOCK] : x->q[c];
}

/* The bounds of the first token of x. */
static void token_bounds(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                         int64_t g_from, int64_t g_to, float *bound, float *base) {
  for (int64_t g = g_from; g < g_to; g++)
    for (int r = 0; r < ANE_GROUP; r++) {
      const uint8_t *from = w->data + (size_t)g * w->group_bytes;
      float acc = ANE_BOUND_START, norm_sum = 0;
      for (int64_t b = 0; b < w->cols / ANE_BLOCK; b++, from += 304) {
        int32_t dot = 0;
        for (int c = 0; c < ANE_BLOCK; c++)
          dot += (from[64 * (c / 4 % 4) + 4 * r + c % 4] >> (c < 16 ? 0 : 4) & 15) * column_code(x, b * ANE_BLOCK + c);
        float scale = ane_f16_f32(ane_half(from + 256 + 2 * r));
        acc = fmaf((float)(32 * dot + blocks[b].start) * scale, blocks[b].by, acc);
        acc = fmaf(fabsf(scale), blocks[b].slack, acc);
        norm_sum = fmaf(fabsf(scale), (float)from[288 + r] * blocks[b].norm, norm_sum);
      }
      base[g * ANE_GROUP + r] = acc;
      bound[g * ANE_GROUP + r] = acc + norm_sum;
    }
}

static void upper_bound(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                        int64_t g_from, int64_t g_to, float *bound, float *base, int64_t ld) {
  for (int64_t t = 0; t < x->t; t++) {
    const struct ane_activations one = ane_activations_rows(x, t, 1);
    token_bounds(w, &one, blocks + t * (w->cols / ANE_BLOCK), g_from, g_to, bound + t * ld, base + t * ld);
  }
}

static void row_bound(const struct ane_packed *w, const struct ane_activations *x, const struct ane_bound_block *blocks,
                      const int32_t *rows, int n, const float *base, float *bound) {
  const int64_t nb = w->cols / ANE_BLOCK;
  for (int i = 0; i < n; i++) {
    const uint8_t *scales = w->scales + rows[i] * nb * 2;
    float acc = base[rows[i]];
    for (int64_t b = 0; b < nb; b++) {
      const uint8_t *low = ane_low_nibbles(w, rows[i], b);
      int32_t dot = 0;
      for (int c = 0; c < ANE_BLOCK; c++) dot += (low[c % 16] >> (c < 16 ? 0 : 4) & 15) * column_code(x, b * ANE_BLOCK + c);
      acc = fmaf((float)(2 * dot + blocks[b].start_low) * ane_f16_f32(ane_half(scales + 2 * b)), blocks[b].by, acc);
    }
    bound[i] = acc;
  }
}

void ane_matmul_ref(struct ane_kernels *k) {
  for (int f = 0; f < ANE_LAYOUT_COUNT; f++) {
    k->matmul[f][ANE_ACTIVATION_F32] = matmul_f32;
    if (ane_layout_info((ane_layout)f)->int8_activations) k->matmul[f][ANE_ACTIVATION_I8] = matmul_i8;
  }
  k->upper_bound = upper_bound;
  k->row_bound = row_bound;
  k->quantise_i8 = quantise_i8;
  k->convert_bf16 = convert_bf16;
}
