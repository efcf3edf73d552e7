/* Activations prepared for a kind of matrix: which kind, how many bytes, where the parts lie. */
#include "kernels/kernels_internal.h"

ane_act ane_act_for(ane_form f, bool int8, bool bf16_dot) {
  if (!int8) return ANE_ACT_F32;
  if (ane_form_info(f)->act8) return ANE_ACT_I8;
  return f == ANE_FORM_BF16 && bf16_dot ? ANE_ACT_BF16 : ANE_ACT_F32;
}

static size_t part(int64_t t, int64_t each, size_t bytes) { return ane_align_up((size_t)t * (size_t)each * bytes, 64); }

/* F32 needs no memory where the caller points f32 at rows it already has. */
size_t ane_acts_bytes(ane_act kind, int64_t t, int64_t cols) {
  int64_t nb = (int64_t)ane_div_up((size_t)cols, ANE_BLOCK);
  switch (kind) {
    case ANE_ACT_I8: return part(t, nb * ANE_BLOCK, 1) + 2 * part(t, nb, 4) + part(t, nb, 8);
    case ANE_ACT_BF16: return part(t, cols + (cols & 1), 2);
    default: return part(t, cols, 4);
  }
}

void ane_acts_place(struct ane_acts *a, ane_act kind, int64_t t, int64_t cols, void *memory) {
  int64_t nb = (int64_t)ane_div_up((size_t)cols, ANE_BLOCK);
  uint8_t *at = memory;
  *a = (struct ane_acts){.kind = kind, .t = t, .cols = cols};
  switch (kind) {
    case ANE_ACT_I8:
      a->q = (const int8_t *)at;
      a->d = (const float *)(at += part(t, nb * ANE_BLOCK, 1));
      a->dsum = (const float *)(at += part(t, nb, 4));
      a->isum = (const int32_t *)(at + part(t, nb, 4));
      break;
    case ANE_ACT_BF16: a->bf16 = (const uint16_t *)at; break;
    default:
      a->f32 = (const float *)at;
      a->ld = cols;
  }
}
