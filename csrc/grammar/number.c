/* Decimal numbers: see number.h. */
#include "grammar/number.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Decimals ----------------------------------------------------------------------------------------------------*/

static bool digit(char c) { return c >= '0' && c <= '9'; }

bool decimal_read(struct decimal *d, const char *s, size_t len) {
  number_part part = NUMBER_NONE;
  for (size_t i = 0; i < len; i++)
    if (!(part = number_step(part, s[i]))) return false;
  if (!number_whole(part)) return false;
  memset(d, 0, sizeof *d);
  const char *end = s + len, *p = s;
  d->negative = *p == '-';
  if (d->negative) p++;
  const char *mark = p;
  while (mark < end && (digit(*mark) || *mark == '.')) mark++;
  int64_t e = 0;
  if (mark < end) {
    const char *q = mark + 1;
    bool minus = *q == '-';
    if (*q == '-' || *q == '+') q++;
    for (; q < end; q++) e = ANE_MIN(e * 10 + (*q - '0'), (int64_t)1 << 40);
    if (minus) e = -e;
  }
  const char *point = memchr(p, '.', (size_t)(mark - p)), *last = mark;
  while (p < mark && (*p == '0' || *p == '.')) p++;
  while (last > p && (last[-1] == '0' || last[-1] == '.')) last--;
  d->digits = p;
  for (const char *q = p; q < last; q++) d->n += digit(*q);
  if (d->n == 0)
    d->negative = false;
  else
    d->exponent = e + (point ? (p < point ? point - p : point + 1 - p) : mark - p);
  return true;
}

/* Returns digit i and advances *at. Skips the decimal point. */
static int next_digit(const struct decimal *d, int i, const char **at) {
  if (i >= d->n) return 0;
  if (**at == '.') (*at)++;
  return *(*at)++ - '0';
}

static int compare_magnitude(const struct decimal *a, const struct decimal *b) {
  if (a->n == 0 || b->n == 0) return (a->n > 0) - (b->n > 0);
  if (a->exponent != b->exponent) return a->exponent > b->exponent ? 1 : -1;
  const char *p = a->digits, *q = b->digits;
  for (int i = 0, n = ANE_MAX(a->n, b->n); i < n; i++) {
    int x = next_digit(a, i, &p), y = next_digit(b, i, &q);
    if (x != y) return x > y ? 1 : -1;
  }
  return 0;
}

int decimal_compare(const struct decimal *a, const struct decimal *b) {
  if (a->negative != b->negative) return a->negative ? -1 : 1;
  int c = compare_magnitude(a, b);
  return a->negative ? -c : c;
}

bool decimal_is_integer(const struct decimal *d) { return d->n == 0 || d->exponent >= d->n; }

uint64_t decimal_hash(const struct decimal *d) {
  const uint64_t odd = 0x9e3779b97f4a7c15u;
  uint64_t h = (0x9ae16a3b2f90404fu + (uint64_t)d->exponent * 2 + d->negative) * odd;
  const char *p = d->digits;
  for (int i = 0; i < d->n; i++) h = ((h ^ h >> 31) + (uint64_t)next_digit(d, i, &p)) * odd;
  return h ^ h >> 32;
}

/* ---- Rules -------------------------------------------------------------------------------------------------------*/

/* Converts the digits to an integer. false: more than 18 digits. */
static bool small(const struct decimal *d, uint64_t *v) {
  if (d->n > 18) return false;
  const char *p = d->digits;
  *v = 0;
  for (int i = 0; i < d->n; i++) *v = *v * 10 + (uint64_t)next_digit(d, i, &p);
  return true;
}

/* value = V * 10^a, step = M * 10^b, V and M without zeros at their ends. */
static bool is_multiple(const struct decimal *d, const struct decimal *step) {
  uint64_t m, rest = 0;
  if (d->n == 0) return true;
  if (!small(step, &m)) return false;
  int64_t zeros = (d->exponent - d->n) - (step->exponent - step->n);
  if (zeros < 0) return false;
  const char *p = d->digits;
  /* analyser: the step is not 0: a schema with such a multipleOf is refused. */
  for (int i = 0; i < d->n; i++) rest = (uint64_t)(((unsigned __int128)rest * 10 + (unsigned)next_digit(d, i, &p)) % m);
  /* analyser: as above. */
  for (uint64_t power = 10 % m; zeros > 0; zeros >>= 1) {
    if (zeros & 1) rest = (uint64_t)((unsigned __int128)rest * power % m);
    power = (uint64_t)((unsigned __int128)power * power % m);
  }
  return rest == 0;
}

static bool in_range(const struct number_rule *r, const struct decimal *d) {
  if (r->has_min) {
    int c = decimal_compare(d, &r->min);
    if (c < 0 || (c == 0 && r->above_min)) return false;
  }
  if (r->has_max) {
    int c = decimal_compare(d, &r->max);
    if (c > 0 || (c == 0 && r->below_max)) return false;
  }
  return true;
}

static int compare_points(const void *a, const void *b) { return decimal_compare(a, b); }

void number_sort(struct decimal *points, uint32_t n) { qsort(points, n, sizeof *points, compare_points); }

/* Returns the first of the rule's points that is at least d, or above d. */
static uint32_t first_point(const struct number_rule *r, const struct decimal *d, bool above) {
  uint32_t from = 0, to = r->n_points;
  while (from < to) {
    uint32_t mid = from + (to - from) / 2;
    if (decimal_compare(&r->points[mid], d) < above)
      from = mid + 1;
    else
      to = mid;
  }
  return from;
}

bool number_fits(const struct number_rule *r, const struct decimal *d) {
  if (r->integer && !decimal_is_integer(d)) return false;
  if (!in_range(r, d) || (r->has_step && !is_multiple(d, &r->step))) return false;
  if (!r->points) return true;
  uint32_t i = first_point(r, d, false);
  return i < r->n_points && decimal_compare(&r->points[i], d) == 0;
}

bool number_join(struct number_rule *r, const struct number_rule *more) {
  if ((r->has_step && more->has_step && decimal_compare(&r->step, &more->step)) || (r->points && more->points)) return false;
  r->integer |= more->integer;
  r->plain |= more->plain;
  if (more->has_min) {
    int c = r->has_min ? decimal_compare(&more->min, &r->min) : 1;
    if (c > 0 || (c == 0 && more->above_min)) r->min = more->min, r->above_min = more->above_min;
    r->has_min = true;
  }
  if (more->has_max) {
    int c = r->has_max ? decimal_compare(&more->max, &r->max) : -1;
    if (c < 0 || (c == 0 && more->below_max)) r->max = more->max, r->below_max = more->below_max;
    r->has_max = true;
  }
  if (more->has_step) r->has_step = true, r->step = more->step;
  if (more->points) r->points = more->points, r->n_points = more->n_points;
  return true;
}

bool number_impossible(const struct number_rule *r) {
  if (r->has_min && r->has_max) {
    int c = decimal_compare(&r->min, &r->max);
    if (c > 0 || (c == 0 && (r->above_min || r->below_max || !number_fits(r, &r->min)))) return true;
  }
  if (!r->points) return !number_viable(r, "", 0, NUMBER_NONE);
  for (uint32_t i = 0; i < r->n_points; i++)
    if (number_fits(r, &r->points[i])) return false;
  return true;
}

/* ---- Incomplete numbers ------------------------------------------------------------------------------------------*/

number_part number_step(number_part part, char c) {
  switch (part) {
    case NUMBER_NONE:
      if (c == '-') return NUMBER_SIGN; /* fall through */
    case NUMBER_SIGN: return c == '0' ? NUMBER_ZERO : digit(c) ? NUMBER_INT : NUMBER_NONE;
    case NUMBER_INT:
      if (digit(c)) return NUMBER_INT; /* fall through */
    case NUMBER_ZERO: return c == '.' ? NUMBER_POINT : c == 'e' || c == 'E' ? NUMBER_E : NUMBER_NONE;
    case NUMBER_POINT: return digit(c) ? NUMBER_FRACTION : NUMBER_NONE;
    case NUMBER_FRACTION: return digit(c) ? NUMBER_FRACTION : c == 'e' || c == 'E' ? NUMBER_E : NUMBER_NONE;
    case NUMBER_E:
      if (c == '+' || c == '-') return NUMBER_E_SIGN; /* fall through */
    case NUMBER_E_SIGN:
    case NUMBER_EXPONENT: return digit(c) ? NUMBER_EXPONENT : NUMBER_NONE;
  }
  return NUMBER_NONE;
}

/* *v = d * 10^scale. false: it is not an integer, or may have more than 36 digits. */
static bool scaled(const struct decimal *d, int scale, __int128 *v) {
  int64_t zeros = d->exponent - d->n + scale;
  if (d->n == 0) return *v = 0, true;
  if (zeros < 0 || d->n + zeros > 36) return false;
  const char *p = d->digits;
  *v = 0;
  for (int i = 0; i < d->n; i++) *v = *v * 10 + next_digit(d, i, &p);
  for (; zeros > 0; zeros--) *v *= 10;
  if (d->negative) *v = -*v;
  return true;
}

/* Sets lo .. hi to the integers in the range of the rule. false: it is not bounded by two integers of at most 18 digits. */
static bool integers_of(const struct number_rule *r, __int128 *lo, __int128 *hi) {
  const __int128 most = (__int128)1 << 59;
  if (!r->integer || !r->has_min || !r->has_max || !scaled(&r->min, 0, lo) || !scaled(&r->max, 0, hi)) return false;
  if (*lo < -most || *hi > most) return false;
  *lo += r->above_min;
  *hi -= r->below_max;
  return true;
}

uint32_t number_count(const struct number_rule *r) {
  __int128 lo, hi;
  if (r->points) return r->n_points;
  if (!integers_of(r, &lo, &hi)) return UINT32_MAX;
  return hi < lo ? 0 : (uint32_t)ANE_MIN(hi - lo + 1, (__int128)UINT32_MAX);
}

bool number_nth(const struct number_rule *r, uint32_t i, char text[24], struct decimal *d) {
  __int128 lo, hi;
  if (r->points) {
    *d = r->points[i];
    return number_fits(r, d);
  }
  if (!integers_of(r, &lo, &hi)) return false;
  int n = snprintf(text, 24, "%lld", (long long)(lo + i));
  return decimal_read(d, text, (size_t)n) && number_fits(r, d);
}

/* The numbers between two ends. open: the end itself is excluded. */
struct interval {
  struct decimal bottom, top;
  bool bottom_open, top_open;
};

/* Returns the decimal 0.TEXT * 10^exponent of n digits, without the zeros at either end. */
static struct decimal trimmed(const char *text, size_t n, int64_t exponent) {
  const char *p = text, *end = text + n;
  while (p < end && *p == '0') p++, exponent--;
  while (end > p && end[-1] == '0') end--;
  return (struct decimal){p, (int)(end - p), false, end > p ? exponent : 0};
}

/* Writes the digits of s[0, len) as an integer with a zero before it, and that integer plus 1. Returns their number of digits. */
static size_t two_integers(const char *s, size_t len, char low[NUMBER_LONGEST + 8], char high[NUMBER_LONGEST + 8]) {
  size_t n = 0;
  low[n++] = '0';
  for (size_t i = 0; i < len && n < NUMBER_LONGEST + 1; i++)
    if (digit(s[i])) low[n++] = s[i];
  memcpy(high, low, n);
  size_t i = n - 1;
  while (high[i] == '9') high[i--] = '0'; /* ends at the zero */
  high[i]++;
  return n;
}

/* Is one of the rule's points at least lo and less than hi in magnitude? Both ends have the sign of the points. */
static bool holds_point(const struct number_rule *r, const struct decimal *lo, const struct decimal *hi) {
  uint32_t from = hi->negative ? first_point(r, hi, true) : first_point(r, lo, false);
  uint32_t to = hi->negative ? first_point(r, lo, true) : first_point(r, hi, false);
  for (uint32_t i = from; i < to; i++)
    if (number_fits(r, &r->points[i])) return true;
  return false;
}

/* Intersects the interval with the range of the rule. false: nothing is left. */
static bool clip(const struct number_rule *r, struct interval *v) {
  if (r->has_min) {
    int c = decimal_compare(&v->top, &r->min);
    if (c < 0 || (c == 0 && (v->top_open || r->above_min))) return false;
    c = decimal_compare(&v->bottom, &r->min);
    if (c < 0) v->bottom = r->min;
    if (c <= 0) v->bottom_open = r->above_min || (c == 0 && v->bottom_open);
  }
  if (r->has_max) {
    int c = decimal_compare(&v->bottom, &r->max);
    if (c > 0 || (c == 0 && (v->bottom_open || r->below_max))) return false;
    c = decimal_compare(&v->top, &r->max);
    if (c > 0) v->top = r->max;
    if (c >= 0) v->top_open = r->below_max || (c == 0 && v->top_open);
  }
  return true;
}

/* *m becomes the least common multiple of *m and unit, both above 0. false: it may be too large. */
static bool common_multiple(__int128 *m, __int128 unit) {
  __int128 x = *m, y = unit;
  while (y) {
    __int128 z = x % y;
    x = y;
    y = z;
  }
  if (*m > ((__int128)1 << 62) || unit / x > ((__int128)1 << 60)) return false;
  *m *= unit / x;
  return true;
}

/* Does the interval hold a multiple of the rule's step, an integer if the rule wants one? true also if the numbers are too long
 * to find out. */
static bool holds_multiple(const struct number_rule *r, const struct interval *v) {
  static const struct decimal one = {"1", 1, false, 1};
  const struct decimal *step = r->has_step ? &r->step : &one, *all[] = {&v->bottom, &v->top, step};
  int64_t scale = 0; /* all are integers in units of 10^-scale */
  for (int i = 0; i < 3; i++)
    if (all[i]->n > 0 && all[i]->n - all[i]->exponent > scale) scale = all[i]->n - all[i]->exponent;
  __int128 bottom, top, m, unit;
  if (scale > 30 || !scaled(&v->bottom, (int)scale, &bottom) || !scaled(&v->top, (int)scale, &top) ||
      !scaled(step, (int)scale, &m) || !scaled(&one, (int)scale, &unit))
    return true;
  if (r->integer && m % unit != 0 && !common_multiple(&m, unit)) return true;
  if (v->top_open) top--;
  if (v->bottom_open) bottom++;
  __int128 k = top >= 0 ? top / m : -((-top + m - 1) / m);
  return k * m >= bottom;
}

/* Does [d, d + 1) * 10^shift / 10^fraction hold a number of the rule? d: the digits of s[0, len), of which `fraction` follow the
 * point. negative: the numbers are negated. */
static bool span_fits(const struct number_rule *r, const char *s, size_t len, int fraction, int shift, bool negative) {
  char low[NUMBER_LONGEST + 8], high[NUMBER_LONGEST + 8];
  size_t n = two_integers(s, len, low, high);
  struct decimal lo = trimmed(low, n, (int64_t)n - fraction + shift), hi = trimmed(high, n, (int64_t)n - fraction + shift);
  lo.negative = negative && lo.n > 0;
  hi.negative = negative;
  if (r->points) return holds_point(r, &lo, &hi);
  struct interval v = negative ? (struct interval){hi, lo, true, false} : (struct interval){lo, hi, false, true};
  if (!clip(r, &v)) return false;
  return (!r->integer && !r->has_step) || holds_multiple(r, &v);
}

/* Does a number, not zero, lie in the normal range of a double? Readers of JSON take others for 0 or infinity. */
static bool is_normal(const struct decimal *d) {
  if (d->exponent != DBL_MAX_10_EXP + 1) return d->exponent > DBL_MIN_10_EXP && d->exponent <= DBL_MAX_10_EXP;
  if (d->digits[0] != '1') return false;
  return d->n == 1 || d->digits[d->digits[1] == '.' ? 2 : 1] < '7'; /* below 1.7e308 */
}

/* Does some exponent make a mantissa satisfy the rule? exponent[0..len): the text after the e. */
static bool exponent_viable(const struct number_rule *r, const char *s, size_t mantissa, const char *exponent, size_t len) {
  struct decimal d;
  if (!decimal_read(&d, s, mantissa)) return false;
  if (len > 6) return false;
  if (d.n == 0) return number_fits(r, &d);
  bool free_sign = len == 0, minus = len > 0 && exponent[0] == '-';
  size_t skip = len > 0 && !digit(exponent[0]);
  int64_t base = d.exponent, typed = 0, span = 1;
  int digits = 0;
  for (size_t i = skip; i < len; i++, digits++) typed = typed * 10 + (exponent[i] - '0');
  if (typed > NUMBER_MAX_EXPONENT) return false;
  /* The exponents that begin with the typed digits: typed, typed x 10 + 0..9, typed x 100 + 0..99, ... */
  for (int extra = 0; digits + extra <= 4; extra++, span *= 10) {
    if (digits + extra == 0) continue;
    for (int64_t k = typed * span; k < typed * span + span; k++) {
      if (k > 400 && k < typed * span + span - 1 && extra > 0) continue;
      for (int sign = 0; sign < 2; sign++) {
        if (!free_sign && minus != (sign == 1)) continue;
        d.exponent = base + (sign ? -k : k);
        if (is_normal(&d) && number_fits(r, &d)) return true;
      }
    }
  }
  return false;
}

enum { DECADES = 400 }; /* no double is outside 10^-400 .. 10^400 */

/* Can a mantissa with one digit before the point satisfy the rule with an exponent, as 5e-05 with a maximum of 1? Tests the
 * decades at the bounds; every number between them fits. */
static bool scientific(const struct number_rule *r, const char *digits, size_t n, int fraction, bool negative) {
  int64_t ends[4] = {0};
  int n_ends = 1;
  if (r->has_min) ends[n_ends++] = r->min.exponent;
  if (r->has_max) ends[n_ends++] = r->max.exponent;
  for (int i = 0; i < n_ends; i++)
    for (int64_t shift = ends[i] - 3; shift <= ends[i] + 1; shift++)
      if (shift > -DECADES && shift < DECADES && span_fits(r, digits, n, fraction, (int)shift, negative)) return true;
  bool tested[2 * DECADES] = {false}; /* each decade of the points once: they may be many */
  for (uint32_t i = 0; i < r->n_points; i++) {
    int64_t shift = r->points[i].exponent - 1;
    if (shift <= -DECADES || shift >= DECADES || tested[shift + DECADES]) continue;
    tested[shift + DECADES] = true;
    if (span_fits(r, digits, n, fraction, (int)shift, negative)) return true;
  }
  return false;
}

bool number_viable(const struct number_rule *r, const char *s, size_t len, number_part part) {
  if (len > NUMBER_LONGEST || (len > NUMBER_LONGEST - 4 && !number_whole(part)))
    return false; /* there is room to complete the number */
  bool plain = !r->integer && !r->has_min && !r->has_max && !r->has_step && !r->points;
  if (part >= NUMBER_E) {
    size_t e = 0;
    while (s[e] != 'e' && s[e] != 'E') e++;
    return exponent_viable(r, s, e, s + e + 1, len - e - 1);
  }
  if (plain) return true;
  bool negative = len > 0 && s[0] == '-';
  if (part == NUMBER_NONE || part == NUMBER_SIGN) {
    for (int sign = part == NUMBER_SIGN; sign < 2; sign++) {
      char start[2] = {'-', '0'};
      for (start[1] = '0'; start[1] <= '9'; start[1]++)
        if (number_viable(r, sign ? start : start + 1, sign ? 2 : 1, start[1] == '0' ? NUMBER_ZERO : NUMBER_INT)) return true;
    }
    return false;
  }
  const char *digits = s + negative, *point = memchr(s, '.', len);
  size_t n = len - negative;
  int fraction = point ? (int)(s + len - point - 1) : 0;
  if (part == NUMBER_ZERO) return span_fits(r, digits, n, 0, 0, negative);
  if (!r->integer && digits[0] != '0' && (n == 1 || point == digits + 1) && scientific(r, digits, n, fraction, negative))
    return true;
  if (part == NUMBER_POINT || part == NUMBER_FRACTION) return span_fits(r, digits, n, fraction, 0, negative);
  /* More digits of the integer part may follow. */
  const struct decimal *far = negative ? (r->has_min ? &r->min : NULL) : (r->has_max ? &r->max : NULL);
  bool open = !far && !r->points;
  int64_t longest = (int64_t)n + 40;
  if (far) longest = far->n > 0 && far->negative == negative ? ANE_MAX(far->exponent, 1) : 1;
  if (r->points) {
    longest = 1;
    for (uint32_t i = 0; i < r->n_points; i++) longest = ANE_MAX(longest, r->points[i].exponent);
  }
  if (open && !r->has_step) return len < NUMBER_LONGEST || span_fits(r, digits, n, 0, 0, negative);
  for (int shift = 0; (int64_t)n + shift <= longest && (size_t)shift + len <= NUMBER_LONGEST; shift++)
    if (span_fits(r, digits, n, 0, shift, negative)) return true;
  return false;
}
