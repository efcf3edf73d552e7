/* From the hidden states of a sequence to its vector, in an asset of Core AI: pooling, dense layers, normalisation. */
#ifndef ANE_MIL_COREAI_POOL_H
#define ANE_MIL_COREAI_POOL_H

#include "formats/formats.h"
#include "mil/coreai_export.h"

/* Weights of a dense layer in the function: [rows, columns, 1, 1]; bias [1, rows, 1, 1], or NULL. */
struct coreai_dense {
  ane_ai_value weight, bias;
};

/* x fp16 [1, C, T, 1], seen fp16 [1, T] (1: a token that counts, 0: padding) -> fp16 [1, D]. Each pooling gives C numbers; they
 * are concatenated, then go through the dense layers and are divided by their length if `normalise` is set. Means weigh tokens in
 * fp16 and are summed by a matrix product; lengths are computed in fp32. dense: r->n_dense entries. */
ane_ai_value coreai_pool(struct ane_ai_build *b, const struct ane_coreai_result *r, const struct coreai_dense *dense,
                         ane_ai_value x, ane_ai_value seen);

#endif
