/* bf16 matrices times bf16 activations. A bfdot instruction takes four rows and a pair of columns. */
#include "kernels/arm/matmul_unpack.h"

enum { MAX_NT = 6 };

/* Multiplies group g with tokens [t0, t0 + nt). */
INLINE void tile(int nt, const struct ane_packed *w, const struct ane_activations *x, int64_t g, int64_t t0, float *out,
                 int64_t ld_out) {
  const int64_t pairs = (w->cols + 1) / 2, left = w->rows - g * ANE_GROUP;
  const uint8_t *p = w->data + (size_t)g * w->group_bytes;
  const uint16_t *columns = x->bf16 + t0 * pairs * 2;
  float32x4_t acc[PARTS][MAX_NT];
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) acc[i][t] = vdupq_n_f32(0);
  for (int64_t k = 0; k < pairs; k++) {
    bfloat16x8_t rows[PARTS];
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) rows[i] = vreinterpretq_bf16_u8(vld1q_u8(p + 64 * k + 16 * i));
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
      const bfloat16x8_t pair = vreinterpretq_bf16_u32(vdupq_n_u32(ane_word(columns + (t * pairs + k) * 2)));
#pragma GCC unroll 4
      for (int i = 0; i < PARTS; i++) acc[i][t] = vbfdotq_f32(acc[i][t], rows[i], pair);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) v_store_n(out + (t0 + t) * ld_out + g * ANE_GROUP + i * LANES, acc[i][t], left - i * LANES);
}

static void matmul_bf16(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out,
                        int64_t ld_out, ANE_UNUSED void *scratch) {
  const int64_t n = (x->t + MAX_NT - 1) / MAX_NT;
  for (int64_t g = g_from; g < g_to; g++)
    for (int64_t i = 0, t = 0; i < n; i++) {
      const int nt = (int)((x->t - t) / (n - i));
      switch (nt) {
        case 1: tile(1, w, x, g, t, out, ld_out); break;
        case 2: tile(2, w, x, g, t, out, ld_out); break;
        case 3: tile(3, w, x, g, t, out, ld_out); break;
        case 4: tile(4, w, x, g, t, out, ld_out); break;
        case 5: tile(5, w, x, g, t, out, ld_out); break;
        default: tile(6, w, x, g, t, out, ld_out); break;
      }
      t += nt;
    }
}

void ane_matmul_bf16dot(struct ane_kernels *k) {
  k->bf16_dot = true;
  k->matmul[ANE_LAYOUT_BF16][ANE_ACTIVATION_BF16] = matmul_bf16;
}
