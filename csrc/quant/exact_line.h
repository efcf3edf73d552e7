/* Lines of the scheme uint4-block: w = scale * (q - offset), q 0 .. 15, where scale, offset and scale * offset are exact in fp16.
 * So a block of Q4_1 with d = scale and m = -scale * offset has the same values. q - offset is exact in fp16 too, and every w is
 * exact in float32. The offset of a struct ane_line is m: x ~ scale * q + m. */
#ifndef ANE_QUANT_EXACT_LINE_H
#define ANE_QUANT_EXACT_LINE_H

#include "quant/fit.h"

/* Weighted sums over the codes of a block: w, w q, w q q. They say how much a change of the line costs. */
struct ane_line_cost {
  float w, q, qq;
};

/* The exact line near `l` that costs the least. A line whose scale is not positive, or too small for fp16, becomes the constant
 * `l.offset`. */
struct ane_line ane_line_exact(struct ane_line l, struct ane_line_cost cost);

/* An exact line whose nearest codes q [n] have nearly the least weighted squared error for x [n], n a multiple of 4 and at most
 * ANE_SPAN_MAX. Elements beyond fp16 are taken as its limits. Equal elements that are exact in fp16 stay exact. */
struct ane_line ane_fit_exact(const float *x, const float *w, int n, float *q);

/* The offset of an exact line as it is stored beside the scale: fp16. */
uint16_t ane_line_shift(struct ane_line l);

#endif
