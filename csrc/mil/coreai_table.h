/* The embedding of an asset, fp16 [V, 1, H]: the joined one of partition.h. Each table has resources of its own. A head in fp16
 * that is tied to the first table uses the same resources: the table then is divided at the rows where slices of the head begin.
 */
#ifndef ANE_MIL_COREAI_TABLE_H
#define ANE_MIL_COREAI_TABLE_H

#include "mil/coreai.h"
#include "mil/export_internal.h"

struct coreai_table_part {
  int64_t from, to; /* rows */
  int32_t resource;
  struct ane_recode_error error; /* of fp16 against the stored rows */
};

struct coreai_table {
  int32_t value; /* constant of the graph */
  int64_t rows, columns;
  struct coreai_table_part *parts; /* in the arena; in order, all rows */
  int32_t n;
};

struct coreai_embedding {
  struct ane_ai_type type; /* fp16 [V, 1, H]: V of the first table, H the sum of the columns */
  struct coreai_table tables[ANE_PARTITION_EMBEDDINGS];
  int32_t n;
};

/* Writes the embedding of a partition. Errors: those of the encoder and of the writer, ANE_NOMEM. */
ane_status coreai_table_write(struct coreai_embedding *t, struct exporting *x, const struct ane_partition *p,
                              struct ane_aimodel_writer *w);
/* Returns the embedding as a value of the function: a constant, or the concatenation of several. */
ane_ai_value coreai_table_value(struct ane_ai_build *b, struct ane_arena *arena, const struct coreai_embedding *t);
/* Answers a request for rows of a tied head by the resource of those rows, and tells e->wrote. *done is false if the request is
 * for something else. */
ane_status coreai_table_provide(const struct coreai_embedding *all, struct exporting *x,
                                const struct ane_mil_weight_request *request, struct ane_mil_weight *out, bool *done);

#endif
