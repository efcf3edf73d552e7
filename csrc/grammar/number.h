/* Decimal numbers as JSON spells them: exact comparison, and validation of incomplete numbers. */
#ifndef ANE_GRAMMAR_NUMBER_H
#define ANE_GRAMMAR_NUMBER_H

#include "base/status.h"

enum {
  NUMBER_LONGEST = 96, /* maximum characters of a number */
  NUMBER_MAX_EXPONENT = 9999
};

/* A view onto the digits of a text: sign * 0.DIGITS * 10^exponent, DIGITS without zeros at either end; zero has none. The
 * digits may have one decimal point between them. */
struct decimal {
  const char *digits;
  int n; /* digits without the point */
  bool negative;
  int64_t exponent;
};

/* Reads a number. *d points to s. false: s[0..len) is not a JSON number. */
bool decimal_read(struct decimal *d, const char *s, size_t len);
/* Compares by value. Returns < 0, 0 or > 0. */
int decimal_compare(const struct decimal *a, const struct decimal *b);
bool decimal_is_integer(const struct decimal *d);
/* Numbers of equal value have the same hash. */
uint64_t decimal_hash(const struct decimal *d);

/* Constraints on a number. All that are given apply together. */
struct number_rule {
  bool integer;
  bool plain; /* of an integer: neither a point nor an exponent may be written; the caller checks it by the number's part */
  bool has_min, has_max, above_min, below_max; /* above, below: the bound itself is excluded */
  struct decimal min, max;
  bool has_step; /* a multiple of step > 0 */
  struct decimal step;
  const struct decimal *points; /* one of these, in ascending order; NULL: any */
  uint32_t n_points;
};

/* Returns whether a complete number satisfies the rule. */
bool number_fits(const struct number_rule *r, const struct decimal *d);
/* Puts points in the order that a rule needs. */
void number_sort(struct decimal *points, uint32_t n);

/* Merges the rule `more` into r. false: the result is not a single rule (two steps, two lists of points). */
bool number_join(struct number_rule *r, const struct number_rule *more);
/* Returns an upper limit of the numbers that satisfy the rule; UINT32_MAX: none is known. */
uint32_t number_count(const struct number_rule *r);
/* Makes the i-th of the number_count(r) numbers, in text. Not all of them satisfy the rule: false, this one does not. */
bool number_nth(const struct number_rule *r, uint32_t i, char text[24], struct decimal *d);
/* Returns whether it is certain that no number satisfies the rule. */
bool number_impossible(const struct number_rule *r);

/* The part of a number in which a text ends. */
typedef enum {
  NUMBER_NONE,
  NUMBER_SIGN,
  NUMBER_ZERO,
  NUMBER_INT,
  NUMBER_POINT,
  NUMBER_FRACTION,
  NUMBER_E,
  NUMBER_E_SIGN,
  NUMBER_EXPONENT
} number_part;

/* Returns the part after one more character; NUMBER_NONE if no number continues with it. */
number_part number_step(number_part part, char c);
/* Returns whether a number may end in this part. */
static inline bool number_whole(number_part p) {
  return p == NUMBER_ZERO || p == NUMBER_INT || p == NUMBER_FRACTION || p == NUMBER_EXPONENT;
}
/* Returns whether s[0..len), which ends in `part`, is a number that satisfies the rule, or the beginning of one. For a rule with
 * a step and a very long number the answer may be true by mistake. A mantissa with several digits before the point, or of an
 * integer, is tested as if no exponent followed. */
bool number_viable(const struct number_rule *r, const char *s, size_t len, number_part part);

#endif
