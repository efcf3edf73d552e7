/* Matrix products in scalar C: the truth for all levels. Every form, float and 8-bit activations. */
#include "kernels/kernels_internal.h"

#include "tensor/half.h"

#include <math.h>
#include <string.h>

enum { COLUMNS = 64 }; /* columns of x whose sums are held at once; a block is decoded once for all of them */

static void store(const struct ane_packed *w, int64_t g, int n, float acc[][ANE_GROUP], float *out, int64_t ld_out) {
  for (int t = 0; t < n; t++) memcpy(out + t * ld_out + g * ANE_GROUP, acc[t], sizeof(float) * (size_t)ane_group_rows(w, g));
}

static void matmul_f32(const struct ane_packed *w, const struct ane_acts *x, int64_t g_from, int64_t g_to, float *out,
                       int64_t ld_out, void *scratch) {
  float *panel = scratch, *tmp = panel + ANE_PANEL * ANE_GROUP;
  for (int64_t g = g_from; g < g_to; g++)
    for (int64_t t0 = 0; t0 < x->t; t0 += COLUMNS) {
      float acc[COLUMNS][ANE_GROUP] = {{0}};
      int nt = (int)ANE_MIN(x->t - t0, COLUMNS);
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

/* Block b of a group times one column of x, added to acc. */
static void dot_block(const struct ane_packed *w, const struct ane_form_info *f, const struct ane_block *block,
                      const struct ane_acts *x, int64_t t, int64_t b, int64_t nb, float acc[ANE_GROUP]) {
  const int8_t *q = x->q + (t * nb + b) * ANE_BLOCK;
  const int32_t *isum = x->isum + (t * nb + b) * 2;
  float d = x->d[t * nb + b];
  for (int r = 0; r < ANE_GROUP; r++) {
    int32_t i[2] = {0, 0};
    for (int c = 0; c < ANE_BLOCK; c++) i[c / 16] += block->code[c][r] * q[c];
    i[0] -= f->zero * isum[0];
    i[1] -= f->zero * isum[1];
    float v;
    if (w->form == ANE_FORM_I8) v = (float)(i[0] + i[1]);
    else if (f->subs == 1) v = (float)(i[0] + i[1]) * block->scale[0][r];
    else v = fmaf((float)i[1], block->scale[1][r], (float)i[0] * block->scale[0][r]);
    acc[r] = fmaf(v, d, acc[r]);
    if (f->has_min) acc[r] = fmaf(block->min[r], x->dsum[t * nb + b], acc[r]);
  }
}

static void matmul_i8(const struct ane_packed *w, const struct ane_acts *x, int64_t g_from, int64_t g_to, float *out,
                      int64_t ld_out, void *scratch) {
  const struct ane_form_info *f = ane_form_info(w->form);
  int64_t nb = (int64_t)ane_div_up((size_t)w->cols, ANE_BLOCK);
  (void)scratch;
  for (int64_t g = g_from; g < g_to; g++)
    for (int64_t t0 = 0; t0 < x->t; t0 += COLUMNS) {
      float acc[COLUMNS][ANE_GROUP] = {{0}};
      int nt = (int)ANE_MIN(x->t - t0, COLUMNS);
      for (int64_t b = 0; b < nb; b++) {
        struct ane_block block;
        ane_read_block(w, g, b, &block);
        for (int t = 0; t < nt; t++) dot_block(w, f, &block, x, t0 + t, b, nb, acc[t]);
      }
      if (w->form == ANE_FORM_I8)
        for (int t = 0; t < nt; t++)
          for (int r = 0; r < ANE_GROUP; r++) acc[t][r] *= w->row_scale[g * ANE_GROUP + r];
      store(w, g, nt, acc, out + t0 * ld_out, ld_out);
    }
}

/* One block of n <= 32 values. Only what is not finite, or a product with the inverse of an amax below 2^-121, which is
 * infinite, lies beyond the limits: -127, as the vector conversions give. */
static void quantise_block(const float *x, int n, int8_t *q, float *d, int32_t isum[2], float *dsum) {
  float amax = 0;
  for (int i = 0; i < n; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
  float inverse = amax > 0 ? 127 / amax : 0;
  memset(q, 0, ANE_BLOCK);
  isum[0] = isum[1] = 0;
  for (int i = 0; i < n; i++) {
    float v = x[i] * inverse;
    q[i] = fabsf(v) <= 127.25f ? (int8_t)nearbyintf(v) : -127;
    isum[i / 16] += q[i];
  }
  *d = amax / 127;
  *dsum = *d * (float)(isum[0] + isum[1]);
}

static void acts_i8(const struct ane_acts *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK);
  for (int64_t t = t_from; t < t_to; t++)
    for (int64_t b = 0; b < nb; b++) {
      int64_t at = t * nb + b, from = b * ANE_BLOCK;
      quantise_block(x + t * ld + from, (int)ANE_MIN(a->cols - from, ANE_BLOCK), (int8_t *)a->q + at * ANE_BLOCK,
                     (float *)a->d + at, (int32_t *)a->isum + at * 2, (float *)a->dsum + at);
    }
}

static void acts_bf16(const struct ane_acts *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t pad = a->cols + (a->cols & 1);
  for (int64_t t = t_from; t < t_to; t++) {
    uint16_t *to = (uint16_t *)a->bf16 + t * pad;
    for (int64_t i = 0; i < a->cols; i++) to[i] = ane_f32_bf16(x[t * ld + i]);
    if (pad > a->cols) to[a->cols] = 0;
  }
}

void ane_matmul_ref(struct ane_kernels *k) {
  for (int f = 0; f < ANE_FORM_COUNT; f++) {
    k->matmul[f][ANE_ACT_F32] = matmul_f32;
    if (ane_form_info((ane_form)f)->act8) k->matmul[f][ANE_ACT_I8] = matmul_i8;
  }
  k->acts_i8 = acts_i8;
  k->acts_bf16 = acts_bf16;
}
