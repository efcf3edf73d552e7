/* Lists the high codes of wide blocks for products with many columns. A template: include the lanes first.
 *
 * A list is made for a run of REST_NT columns: block by block, in each block first the columns with high codes in one or two
 * fours of one half of the block, then those with two fours in different halves, then all others. So a product walks through it
 * without a guess, and its panel block by block. */
#ifndef ANE_KERNELS_X86_MATMUL_WIDE_H
#define ANE_KERNELS_X86_MATMUL_WIDE_H

#include "kernels/kernels_internal.h"

#include <string.h>

enum { REST_NT = 32 * LANES /* most columns of a run */ };
_Static_assert((int)REST_NT >= (int)ANE_WIDE_RUN, "ane_acts_list_bytes counts more runs than there are");

/* Column t of the run, whose high codes, half sums and d_high are at at; v, u: two fours that hold them all, or any. */
INLINE struct ane_wide_code wide_code(const struct ane_acts *x, int64_t at, int64_t t, uint32_t v, uint32_t u) {
  struct ane_wide_code e = {.t = (uint16_t)t, .plane = {(uint8_t)v, (uint8_t)u}, .d = x->d_high[at]};
  const uint32_t fours[2] = {v, u};
  for (int p = 0; p < 2; p++) {
    const int8_t *c = x->high + at * ANE_BLOCK + 4 * fours[p];
    memcpy(e.code[p], c, 4);
    e.minus[p] = (int16_t)(-c[0] - c[1] - c[2] - c[3]);
  }
  return e;
}

/* The columns of block b from *n on to the list, and where each kind ends to *ends. */
INLINE void list_block(const struct ane_acts *x, int64_t t_from, int64_t t_to, int64_t b, struct ane_wide_code *codes, uint32_t *n, struct ane_wide_ends *ends) {
  const uint8_t *wide = x->wide + b * x->wide_ld + t_from;
  const int64_t count = t_to - t_from, first = b * x->wide_ld + t_from;
  uint16_t apart[REST_NT], all[REST_NT];
  int n_apart = 0, n_all = 0;
  for (int64_t t0 = 0; t0 < count; t0 += MARKS)
    for (uint64_t m = vi_marks(wide + t0, count - t0); m; m &= m - 1) {
      const int64_t t = t0 + __builtin_ctzll(m);
      const uint32_t fours = wide[t], more = fours & (fours - 1), v = (uint32_t)__builtin_ctz(fours), u = more ? (uint32_t)__builtin_ctz(more) : v ^ 1;
      if (more & (more - 1)) all[n_all++] = (uint16_t)t;
      else if (v / 4 != u / 4) apart[n_apart++] = (uint16_t)t;
      else codes[(*n)++] = wide_code(x, first + t, t, v, u);
    }
  ends->same = *n;
  for (int i = 0; i < n_apart; i++) {
    const uint32_t fours = wide[apart[i]];
    codes[(*n)++] = wide_code(x, first + apart[i], apart[i], (uint32_t)__builtin_ctz(fours), (uint32_t)__builtin_ctz(fours & (fours - 1)));
  }
  ends->apart = *n;
  for (int i = 0; i < n_all; i++) codes[(*n)++] = wide_code(x, first + all[i], all[i], 0, 0);
  ends->all = *n;
}

/* The list of columns [t_from, t_to) and blocks [b_from, b_to), where list says. */
INLINE void wide_list_make(const struct ane_acts *x, int64_t t_from, int64_t t_to, int64_t b_from, int64_t b_to, const struct ane_wide_list *list) {
  uint32_t n = 0;
  list->ends[0].all = 0;
  for (int64_t b = b_from; b < b_to; b++) list_block(x, t_from, t_to, b, list->codes, &n, &list->ends[1 + b - b_from]);
}

/* The run's list in x->list: all ends first, then room for every block of every column. */
INLINE void wide_list_at(const struct ane_acts *x, int64_t nb, int64_t t_from, struct ane_wide_list *list) {
  const int64_t runs = (x->t + REST_NT - 1) / REST_NT;
  struct ane_wide_ends *ends = x->list;
  struct ane_wide_code *codes = (struct ane_wide_code *)(ends + runs * (nb + 1));
  *list = (struct ane_wide_list){.codes = codes + t_from * nb, .ends = ends + t_from / REST_NT * (nb + 1)};
}

#endif
