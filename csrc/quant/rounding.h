/* How compensated rounding (compensate.h) encodes a type: it chooses the parameters of a block, rounds values to codes and packs
 * the block. A block has parts, its sub-blocks. A value of a part is scale * T + offset, where T is the code or an entry of a
 * table; (scale, offset) is the part's line. */
#ifndef ANE_QUANT_ROUNDING_H
#define ANE_QUANT_ROUNDING_H

#include "quant/k_search.h"

/* The parameters of one block of one row. */
struct ane_block_params {
  float scale, offset; /* of a block without parts; the scale is exact in the type that the block stores */
  struct ane_k_choice k;
};

struct ane_rounding {
  ane_dtype dtype;
  int group, sub;      /* columns per block and per part */
  int top;             /* codes are 0 .. top, in the order of their values */
  int half;            /* of values scale * (q - half); 0: the type has an offset or a table */
  int candidates;      /* number of lines to try for a part; candidate 0 is the line of the parameters */
  const int8_t *table; /* T in ascending order; NULL: T is the code */
  const uint8_t *code; /* the stored code of each entry of the table; NULL: its index */
  /* Chooses the parameters of a block for x [group], with weights w [group] of the squared errors. */
  void (*fit)(const struct ane_rounding *f, const float *x, const float *w, struct ane_block_params *c);
  /* The line of a part in candidate i. */
  struct ane_line (*line)(const struct ane_rounding *f, const struct ane_block_params *c, int part, int i);
  /* Sets the part's parameters to candidate i. */
  void (*keep)(const struct ane_rounding *f, struct ane_block_params *c, int part, int i);
  /* Writes the bytes of a block with codes q [group], in the order of columns. */
  void (*pack)(const struct ane_rounding *f, struct ane_block_params *c, const uint8_t *q, void *block);
};

/* The rounding of a type. NULL: files are not written in this type. */
const struct ane_rounding *ane_rounding_of(ane_dtype t);
/* Is a block's line a scale of any fp16 value, without an offset of its own? */
bool ane_rounding_fits(const struct ane_rounding *f);
/* The scheme int4-block with blocks of `size` columns (32 or 64). Scales may be negative, so that the largest element can have
 * the code -8, which has no positive counterpart. Its `pack` writes nothing. */
const struct ane_rounding *ane_rounding_int4(int size);
/* The scheme uint4-block: all lines are exact (quant/exact_line.h). Its `pack` writes nothing. */
const struct ane_rounding *ane_rounding_uint4(void);

#endif
