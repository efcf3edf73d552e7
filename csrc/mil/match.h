/* Compares the packages or assets of a set with the graph of a recipe. Each shard of the graph is lowered again, with
 * placeholders for its weights, and compared with a function of a package. If all functions are equal, the constants that the
 * packages have instead of the placeholders become the weights of the graph.
 *
 * Two functions are equal if their outputs come from equal operations on equal values, and their states are read and written in
 * the same order. Constants are equal if all bits are. Names, the order of operations and unused operations do not count. */
#ifndef ANE_MIL_MATCH_H
#define ANE_MIL_MATCH_H

#include "mil/lower.h"

/* A weight that the lowering requested, and the operation of a package that makes this weight. */
struct ane_mil_bound {
  struct ane_mil_weight_request request;
  const struct ane_mil_op *op;             /* const or constexpr_... */
  const struct ane_mil_function *function; /* the function that contains it */
};

/* Translates a lowered function, in the arena, to what it becomes when it is written in another format and read again. The result
 * is compared instead of the lowered function. Constants of kind BLOB keep their kind and offset. */
typedef ane_status (*ane_mil_translate_fn)(struct ane_arena *arena, const struct ane_mil_lowered *lowered,
                                           const struct ane_mil_function **out, struct ane_error *err);

struct ane_mil_match {
  const struct ane_graph *graph;
  struct ane_arena *arena;        /* of all results */
  struct ane_buffer bound;        /* of struct ane_mil_bound; freed by the caller */
  ane_mil_translate_fn translate; /* NULL: the lowered function itself */
};

/* Returns the package's name for an input, output or state of the lowered function; NULL: it has none. */
typedef const char *(*ane_mil_rename_fn)(void *arg, const char *name);

/* Lowers a shard with the options and compares it with function `f` of a model with this specification version. The call sets the
 * options' weight, weight_arg and ios18_weights. rename NULL: names are equal. *out: the lowered shard, also if it differs.
 * Errors: ANE_UNSUPPORTED with the first difference, those of ane_mil_lower, ANE_NOMEM. */
ane_status ane_mil_match(struct ane_mil_match *m, const struct ane_shard *shard, const struct ane_mil_options *o,
                         const struct ane_mil_function *f, int32_t version, ane_mil_rename_fn rename, void *arg,
                         struct ane_mil_lowered **out, struct ane_error *err);

/* The tensor of a constant of the graph. Matrices keep their stored form: codes with scales, or tables (struct ane_gather). Other
 * constants are computed back: the recipe's arithmetic on them gives the stored numbers. */
struct ane_mil_weight_found {
  const char *name; /* of the graph's constant */
  bool matrix;      /* used by projections. A constant may have both uses, such as a tied embedding */
  const struct ane_tensor *tensor;
};
/* Lists the tensors of all bound constants: *out [*n], in the match's arena. They point into the packages. Errors:
 * ANE_UNSUPPORTED if the stored form of a weight is not supported, or two functions have different weights; ANE_NOMEM. */
ane_status ane_mil_match_weights(struct ane_mil_match *m, struct ane_mil_weight_found **out, uint32_t *n, struct ane_error *err);

#endif
