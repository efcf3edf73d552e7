/* Prepared activations: the activation type of a layout, the sizes, and the memory offsets of the parts. */
#include "kernels/kernels_internal.h"

ane_activation_type ane_activation_type_for(ane_layout f, bool int8, bool bf16_dot) {
  if (!int8) return ANE_ACTIVATION_F32;
  if (ane_layout_info(f)->int8_activations) return ANE_ACTIVATION_I8;
  return f == ANE_LAYOUT_BF16 && bf16_dot ? ANE_ACTIVATION_BF16 : ANE_ACTIVATION_F32;
}

/* Returns the row length of the outlier flags of t tokens: 1 for one token, else a multiple of 64, so that vectors may read past
 * the last flag. */
static int64_t outlier_row(int64_t t) { return t == 1 ? 1 : (int64_t)ane_align_up((size_t)t, 64); }

/* Returns the bytes of an array [t][each] of elements of `bytes` bytes, rounded up to 64. */
static size_t array_bytes(int64_t t, int64_t each, size_t bytes) { return ane_align_up((size_t)t * (size_t)each * bytes, 64); }

/* F32 needs no memory: f32 may point to rows of the caller. */
size_t ane_activations_bytes(ane_activation_type kind, int64_t t, int64_t cols) {
  int64_t nb = (int64_t)ane_div_up((size_t)cols, ANE_BLOCK);
  switch (kind) {
    case ANE_ACTIVATION_I8:
      return array_bytes(t, nb * ANE_BLOCK, 1) + 3 * array_bytes(t, nb, 4) + array_bytes(t, nb, 8) +
             array_bytes(outlier_row(t), nb, 1) + array_bytes(outlier_row(t), nb * ANE_BLOCK, 1) +
             array_bytes(outlier_row(t), nb, 4) + array_bytes(outlier_row(t), nb, 8);
    case ANE_ACTIVATION_BF16: return array_bytes(t, cols + (cols & 1), 2);
    default: return array_bytes(t, cols, 4);
  }
}

void ane_activations_place(struct ane_activations *a, ane_activation_type kind, int64_t t, int64_t cols, void *memory) {
  int64_t nb = (int64_t)ane_div_up((size_t)cols, ANE_BLOCK);
  uint8_t *at = memory;
  *a = (struct ane_activations){.kind = kind, .t = t, .cols = cols, .precise = true};
  switch (kind) {
    case ANE_ACTIVATION_I8:
      a->outlier_ld = outlier_row(t);
      a->q = (const int8_t *)at;
      a->d = (const float *)(at += array_bytes(t, nb * ANE_BLOCK, 1));
      a->dsum = (const float *)(at += array_bytes(t, nb, 4));
      a->isum = (const int32_t *)(at += array_bytes(t, nb, 4));
      a->minus_sum = (const int32_t *)(at += array_bytes(t, nb, 8));
      a->outlier = at += array_bytes(t, nb, 4);
      a->residual = (const int8_t *)(at += array_bytes(a->outlier_ld, nb, 1));
      a->d_residual = (const float *)(at += array_bytes(a->outlier_ld, nb * ANE_BLOCK, 1));
      a->residual_isum = (const int32_t *)(at + array_bytes(a->outlier_ld, nb, 4));
      break;
    case ANE_ACTIVATION_BF16: a->bf16 = (const uint16_t *)at; break;
    default: a->f32 = (const float *)at; a->ld = cols;
  }
}

struct ane_activations ane_activations_rows(const struct ane_activations *a, int64_t from, int64_t n) {
  struct ane_activations v = *a;
  int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK);
  v.t = n;
  if (a->f32) v.f32 += from * a->ld;
  if (a->bf16) v.bf16 += from * (a->cols + (a->cols & 1));
  if (!a->q) return v;
  v.q += from * nb * ANE_BLOCK, v.d += from * nb, v.dsum += from * nb, v.isum += 2 * from * nb, v.minus_sum += from * nb;
  v.outlier += from, v.residual += from * ANE_BLOCK, v.d_residual += from, v.residual_isum += 2 * from;
  return v;
}
