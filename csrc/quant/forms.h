/* What compensated rounding knows of a type: how parameters of a block are found, the values that codes stand for, the bytes.
 * A cell holds the parameters of one block of one row. Parts are the sub-blocks of a block; a value is scale * T + offset, where
 * the line (scale, offset) is that of the part, and T is the code itself or an entry of a table. */
#ifndef ANE_QUANT_FORMS_H
#define ANE_QUANT_FORMS_H

#include "quant/k_search.h"

struct ane_cell {
  float scale, offset; /* of a block without parts; scale is exact in the block's own type */
  struct ane_k_choice k;
};

struct ane_form {
  ane_dtype dtype;
  int group, sub;      /* columns of a block and of a part */
  int top;             /* codes are 0 .. top, in the order of their values */
  int half;            /* where values are scale * (q - half); 0: there is an offset, or a table */
  int candidates;      /* lines that are tried for a part; 0 is the one that the cell has */
  const int8_t *table; /* T by ascending value; NULL: T is the code */
  const uint8_t *code; /* the stored code of each entry of the table; NULL: its index */
  /* Finds parameters for x [group], parts one after the other, with weights w [group] of the squared errors. */
  void (*fit)(const struct ane_form *f, const float *x, const float *w, struct ane_cell *c);
  /* The line of a part in candidate i. */
  struct ane_line (*line)(const struct ane_form *f, const struct ane_cell *c, int part, int i);
  /* Makes candidate i the part's own. */
  void (*keep)(const struct ane_form *f, struct ane_cell *c, int part, int i);
  /* The block's bytes for codes q [group] in the order of columns. */
  void (*pack)(const struct ane_form *f, struct ane_cell *c, const uint8_t *q, void *block);
};

/* NULL: the type has none. */
const struct ane_form *ane_form_of(ane_dtype t);
/* Blocks of `size` columns of the scheme int4-block: `pack` writes nothing. */
const struct ane_form *ane_form_int4(int size);

#endif
