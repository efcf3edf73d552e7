/* Adapters merged into weights. */
#include "quant/quant.h"

#include <math.h>

/* Sets v to what the adapter makes of row `row`, which is w. */
static void changed_row(const float *w, float *v, int64_t row, int64_t cols, const struct ane_lora *l) {
  for (int64_t c = 0; c < cols; c++) v[c] = l->values ? l->values[row * cols + c] : w[c];
  for (int64_t k = 0; l->a && k < l->rank; k++) {
    const float by = l->scale * l->b[row * l->rank + k], *a = l->a + k * cols;
    for (int64_t c = 0; c < cols; c++) v[c] += by * a[c];
  }
  if (!l->magnitude) return;
  double sum = 0;
  for (int64_t c = 0; c < cols; c++) sum += (double)v[c] * (double)v[c];
  const float by = (float)((double)l->magnitude[row] / sqrt(sum));
  for (int64_t c = 0; c < cols; c++) v[c] *= by;
}

void ane_lora_merge(float *w, int64_t rows, int64_t cols, const struct ane_lora *l, float *v) {
  for (int64_t r = 0; r < rows; r++) {
    float *row = w + r * cols;
    changed_row(row, v, r, cols, l);
    for (int64_t c = 0; c < cols; c++) row[c] = l->blend == 1 ? v[c] : row[c] + l->blend * (v[c] - row[c]);
  }
}
