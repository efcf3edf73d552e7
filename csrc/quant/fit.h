/* Nearest codes for a scale, and the scale (and offset) of a run of codes: shared by the encoders that search.
 * A span is one sub-block of 16, 32 or 64 elements with their weights. Codes are integers 0 .. top, stored as floats during
 * the search; x is approximated by scale * q + offset. All sums run in four lanes in one fixed order, so bytes do not depend
 * on the machine. */
#ifndef ANE_QUANT_FIT_H
#define ANE_QUANT_FIT_H

#include "base/attr.h"

#include <string.h>

enum { ANE_SPAN_MAX = 64 };

struct ane_span {
  const float *x, *w; /* n each; x finite, w >= 0 */
  int n;              /* a multiple of 4, at most ANE_SPAN_MAX */
  float sum_w, sum_wx, sum_wxx;
};

/* x ~ scale * q + offset */
struct ane_line {
  float scale, offset;
};

/* Sums over a span for given codes. */
struct ane_code_sums {
  float q, qq, xq; /* sum of w q, w q q, w x q */
};

struct ane_span ane_span_of(const float *x, const float *w, int n);

/* Sets q[i] to the code in 0 .. top that is nearest to (x[i] - offset) / scale, or to 0 if scale is 0. Returns the weighted
 * squared error. */
float ane_span_code(const struct ane_span *s, struct ane_line l, int top, float *q);
struct ane_code_sums ane_span_sums(const struct ane_span *s, const float *q);

/* The line with offset <= 0 and scale >= 0 whose nearest codes 0 .. top have nearly the least weighted squared error: rounding
 * at a grid of scales around the range, a least squares fit for each, then both in alternation until nothing changes. */
struct ane_line ane_fit_range(const struct ane_span *s, int top);
/* The same with an offset of either sign. If the elements lie on a grid of at most top + 1 equidistant points, the line has no
 * error, whichever of the points occur. */
struct ane_line ane_fit_free(const struct ane_span *s, int top);
/* The scale (of either sign) for x ~ scale * (q - half), q in 0 .. 2 half - 1; the offset is -half * scale. */
struct ane_line ane_fit_signed(const struct ane_span *s, int half);
/* The same with a scale >= 0. */
struct ane_line ane_fit_positive(const struct ane_span *s, int half);

#endif
