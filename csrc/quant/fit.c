#include "quant/fit.h"

#include <math.h>

/* Four lanes: SSE2 and NEON have them on every machine. */
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

static inline f4 load(const float *p) {
  f4 v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline void store(float *p, f4 v) { memcpy(p, &v, sizeof v); }
static inline f4 all(float v) { return (f4){v, v, v, v}; }
static inline f4 pick(i4 mask, f4 a, f4 b) { return (f4)((mask & (i4)a) | (~mask & (i4)b)); }
static inline float total(f4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

/* The integer in 0 .. top that is nearest to v - 0.5; NaN gives 0. */
static inline f4 nearest(f4 v, f4 top) {
  v = pick(v > all(0), v, all(0));
  v = pick(v < top, v, top);
  return __builtin_convertvector(__builtin_convertvector(v, i4), f4);
}

struct ane_span ane_span_of(const float *x, const float *w, int n) {
  f4 sw = all(0), swx = all(0), swxx = all(0);
  for (int i = 0; i < n; i += 4) {
    f4 wi = load(w + i), wx = wi * load(x + i);
    sw += wi, swx += wx, swxx += wx * load(x + i);
  }
  return (struct ane_span){x, w, n, total(sw), total(swx), total(swxx)};
}

static inline float inverse(float v) {
  float inv = v != 0 ? 1 / v : 0;
  return fabsf(inv) < 1e30f ? inv : 0; /* with a smaller scale all elements are zero */
}

float ane_span_code(const struct ane_span *s, struct ane_line l, int top, float *q) {
  float inv = inverse(l.scale);
  f4 bias = all(0.5f - l.offset * inv), error = all(0), scale = all(l.scale), offset = all(l.offset);
  for (int i = 0; i < s->n; i += 4) {
    f4 x = load(s->x + i), c = nearest(x * all(inv) + bias, all((float)top));
    if (inv == 0) c = all(0);
    f4 e = x - (scale * c + offset);
    error += load(s->w + i) * e * e;
    store(q + i, c);
  }
  return total(error);
}

struct ane_code_sums ane_span_sums(const struct ane_span *s, const float *q) {
  f4 sq = all(0), sqq = all(0), sxq = all(0);
  for (int i = 0; i < s->n; i += 4) {
    f4 c = load(q + i), wq = load(s->w + i) * c;
    sq += wq, sqq += wq * c, sxq += wq * load(s->x + i);
  }
  return (struct ane_code_sums){total(sq), total(sqq), total(sxq)};
}

/* The sums of ane_span_sums for the codes of ane_span_code, without storing the codes. */
static struct ane_code_sums sums_at(const struct ane_span *s, float inv, float bias, float top) {
  f4 sq = all(0), sqq = all(0), sxq = all(0), inv4 = all(inv), bias4 = all(bias + 0.5f), top4 = all(top);
  for (int i = 0; i < s->n; i += 4) {
    f4 x = load(s->x + i), c = nearest(x * inv4 + bias4, top4), wq = load(s->w + i) * c;
    sq += wq, sqq += wq * c, sxq += wq * x;
  }
  return (struct ane_code_sums){total(sq), total(sqq), total(sxq)};
}

/* ---- Lines -------------------------------------------------------------------------------------------------------*/

/* The lines among which a least squares fit chooses. */
typedef enum { BELOW_ZERO, FREE, SIGNED } bound;

struct best {
  struct ane_line line;
  float error; /* of the fitted line, by the normal equations */
};

/* Least squares for fixed codes: *line and its error (infinite where the codes do not determine a line). */
static float solve(const struct ane_span *s, struct ane_code_sums c, bound b, float half, struct ane_line *line) {
  if (b == SIGNED) { /* in terms of q - half */
    float qq = c.qq - 2 * half * c.q + half * half * s->sum_w, xq = c.xq - half * s->sum_wx;
    if (!(qq > 0)) return INFINITY;
    line->scale = xq / qq;
    line->offset = -half * line->scale;
    return s->sum_wxx - line->scale * xq;
  }
  float det = s->sum_w * c.qq - c.q * c.q;
  if (det > 0) {
    line->scale = (s->sum_w * c.xq - s->sum_wx * c.q) / det;
    line->offset = (c.qq * s->sum_wx - c.q * c.xq) / det;
  }
  if (!(det > 0) || (b == BELOW_ZERO && line->offset > 0)) {
    if (!(c.qq > 0)) return INFINITY;
    line->scale = c.xq / c.qq;
    line->offset = 0;
  }
  if (!(line->scale > 0)) return INFINITY;
  return s->sum_wxx - line->scale * c.xq - line->offset * s->sum_wx;
}

static bool consider(const struct ane_span *s, float inv, float bias, int top, bound b, struct best *best) {
  struct ane_line l;
  float error = solve(s, sums_at(s, inv, bias, (float)top), b, 0.5f * (float)(top + 1), &l);
  if (!(error < best->error)) return false;
  *best = (struct best){l, error};
  return true;
}

/* Alternates between rounding at the best line and fitting, while the error falls. */
static void settle(const struct ane_span *s, int top, bound b, struct best *best) {
  for (int i = 0; i < 4 && best->error < INFINITY; i++) {
    float inv = inverse(best->line.scale);
    if (!consider(s, inv, -best->line.offset * inv, top, b, best)) return;
  }
}

struct ane_line ane_fit_range(const struct ane_span *s, int top) {
  float lo = s->x[0], hi = s->x[0];
  for (int i = 1; i < s->n; i++) lo = ANE_MIN(lo, s->x[i]), hi = ANE_MAX(hi, s->x[i]);
  lo = ANE_MIN(lo, 0);
  struct best best = {{0, lo}, INFINITY};
  if (!(hi > lo)) return best.line;
  for (int k = -10; k <= 10; k++) {
    float inv = ((float)top + 0.1f * (float)k) / (hi - lo);
    if (inv < INFINITY) consider(s, inv, -lo * inv, top, BELOW_ZERO, &best);
  }
  settle(s, top, BELOW_ZERO, &best);
  return best.line;
}

/* Fits x minus its least element. Without that, sums of elements far from zero would lose their differences. */
struct ane_line ane_fit_free(const struct ane_span *s, int top) {
  float lo = s->x[0], hi = s->x[0], x[ANE_SPAN_MAX];
  for (int i = 1; i < s->n; i++) lo = ANE_MIN(lo, s->x[i]), hi = ANE_MAX(hi, s->x[i]);
  for (int i = 0; i < s->n; i++) x[i] = s->x[i] - lo;
  struct ane_span moved = ane_span_of(x, s->w, s->n);
  struct best best = {{0, 0}, INFINITY};
  if (!(hi > lo)) return (struct ane_line){0, lo};
  for (int k = -10; k <= 10; k++) {
    float inv = ((float)top + 0.1f * (float)k) / (hi - lo);
    if (inv < INFINITY) consider(&moved, inv, 0, top, FREE, &best);
  }
  for (int k = 1; k < top; k++) { /* the least and the greatest value are k grid steps apart */
    float inv = (float)k / (hi - lo);
    if (inv < INFINITY) consider(&moved, inv, 0, top, FREE, &best);
  }
  settle(&moved, top, FREE, &best);
  if (!(best.error < INFINITY)) best.line = (struct ane_line){(hi - lo) / (float)top, 0};
  return (struct ane_line){best.line.scale, best.line.offset + lo};
}

struct ane_line ane_fit_signed(const struct ane_span *s, int half) {
  float far = 0; /* the element of largest magnitude; it takes the end of the range that has one code more */
  for (int i = 0; i < s->n; i++)
    if (fabsf(s->x[i]) > fabsf(far)) far = s->x[i];
  struct best best = {{0, 0}, INFINITY};
  for (int k = -9; far != 0 && k <= 9; k++) {
    float inv = -((float)half + 0.1f * (float)k) / far;
    if (!(fabsf(inv) < INFINITY)) continue;
    consider(s, inv, (float)half, 2 * half - 1, SIGNED, &best);
    if (half <= 8) consider(s, inv * (1 - 0.5f / (float)half) * -1, (float)half, 2 * half - 1, SIGNED, &best);
  }
  settle(s, 2 * half - 1, SIGNED, &best);
  return best.line;
}

struct ane_line ane_fit_positive(const struct ane_span *s, int half) {
  float far = 0;
  for (int i = 0; i < s->n; i++) far = ANE_MAX(far, fabsf(s->x[i]));
  struct best best = {{0, 0}, INFINITY};
  for (int k = -10; far > 0 && k <= 15; k++) { /* scales around half - 1 and half, the ends of the codes */
    float inv = ((float)half - 1 + 0.1f * (float)k) / far;
    if (inv < INFINITY) consider(s, inv, (float)half, 2 * half - 1, SIGNED, &best);
  }
  settle(s, 2 * half - 1, SIGNED, &best);
  return best.line;
}
