#include "quant/exact_line.h"

#include "tensor/half.h"

#include <math.h>

enum { TOP = 15, HALF_BITS = 11, AROUND = 4 };
static const float MOST = 65504.0f, LEAST = 0x1p-24f;

static bool in_half(float v) { return ane_f16_f32(ane_f32_f16(v)) == v; }

/* The value of the last of `bits` significant bits of v > 0. */
static float unit_of(float v, int bits) {
  int e;
  frexpf(v, &e);
  return ldexpf(1, e - bits);
}

/* The line |v| (q + 1) or |v| (q - 1) whose code 0 has the value v. */
static struct ane_line constant(float v) {
  float h = ane_f16_f32(ane_f32_f16(ANE_MAX(ANE_MIN(v, MOST), -MOST)));
  return (struct ane_line){fabsf(h), h == 0 ? 0 : h};
}

/* Can a block have this line? Scale, shift and their product must be exact in fp16, and so must q - shift for each code q: its
 * largest magnitude has 11 significant bits, and shift must be a multiple of the last of them. */
static bool is_exact(float scale, float shift) {
  float m = scale * shift, far = ANE_MAX(fabsf(shift), fabsf(TOP - shift)), unit = unit_of(far, HALF_BITS);
  return in_half(scale) && in_half(shift) && in_half(m) && fabsf(m) <= MOST && fabsf(TOP * scale - m) <= MOST &&
         shift / unit == floorf(shift / unit);
}

struct search {
  struct ane_line from, best;
  struct ane_line_cost cost;
  double least;
};

static void consider(struct search *s, float scale, float shift) {
  double ds = (double)scale - (double)s->from.scale, dm = -(double)(scale * shift) - (double)s->from.offset;
  double cost = ds * ds * (double)s->cost.qq + 2 * ds * dm * (double)s->cost.q + dm * dm * (double)s->cost.w;
  if (cost < s->least && is_exact(scale, shift)) s->least = cost, s->best = (struct ane_line){scale, 0 - scale * shift};
}

struct ane_line ane_line_exact(struct ane_line l, struct ane_line_cost cost) {
  struct search s = {.from = l, .cost = cost, .least = INFINITY};
  if (!(l.scale >= LEAST)) return constant(l.offset);
  if (!(cost.w > 0)) s.cost = (struct ane_line_cost){1, 7.5f, 77.5f}; /* all codes alike */
  s.from.scale = ANE_MIN(l.scale, MOST);
  float middle = s.cost.q / s.cost.w;
  for (int bits = 1; bits <= HALF_BITS; bits++) { /* of the offset; a product of more than 11 bits may be exact, too */
    float step = ANE_MAX(unit_of(s.from.scale, ANE_MIN(HALF_BITS, HALF_BITS + 1 - bits)), LEAST);
    float first = floorf(s.from.scale / step) * step;
    for (int i = -AROUND / 2 + 1; i <= AROUND / 2; i++) {
      float scale = first + (float)i * step;
      if (!(scale > 0)) continue;
      float want = -(s.from.offset - (scale - s.from.scale) * middle) / scale; /* the best offset for this scale */
      if (!(fabsf(want) <= MOST)) continue;
      float far = ANE_MAX(fabsf(want), fabsf(TOP - want)), unit = unit_of(far, HALF_BITS);
      if (want != 0) unit = ANE_MAX(unit, unit_of(fabsf(want), bits));
      float below = floorf(want / unit) * unit;
      consider(&s, scale, below);
      consider(&s, scale, below + unit);
    }
  }
  return s.least < INFINITY ? s.best : constant(l.offset + l.scale * middle);
}

/* The line whose first and last code are the least and the largest element. */
static struct ane_line range_of(const struct ane_span *s) {
  float lo = s->x[0], hi = s->x[0];
  for (int i = 1; i < s->n; i++) lo = ANE_MIN(lo, s->x[i]), hi = ANE_MAX(hi, s->x[i]);
  return (struct ane_line){(hi - lo) / TOP, lo};
}

struct ane_line ane_fit_exact(const float *x, const float *w, int n, float *q) {
  float at[ANE_SPAN_MAX];
  for (int i = 0; i < n; i++) at[i] = x[i] < MOST ? x[i] > -MOST ? x[i] : -MOST : MOST;
  struct ane_span s = ane_span_of(at, w, n);
  struct ane_line line = ane_fit_free(&s, TOP);
  if (!(line.offset >= -MOST && line.offset + TOP * line.scale <= MOST)) line = range_of(&s); /* some codes are beyond fp16 */
  (void)ane_span_code(&s, line, TOP, q);
  struct ane_code_sums sums = ane_span_sums(&s, q);
  struct ane_line best = ane_line_exact(line, (struct ane_line_cost){s.sum_w, sums.q, sums.qq});
  /* analyser: n is at least 1. */
  struct ane_line flat = constant(s.sum_w > 0 ? s.sum_wx / s.sum_w : at[0]);
  if (ane_span_code(&s, flat, TOP, q) < ane_span_code(&s, best, TOP, q)) best = flat;
  (void)ane_span_code(&s, best, TOP, q);
  return best;
}

uint16_t ane_line_shift(struct ane_line l) { return ane_f32_f16(l.scale != 0 ? 0 - l.offset / l.scale : 0); }
