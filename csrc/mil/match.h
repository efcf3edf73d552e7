/* Compares the packages of a set with the graph of a recipe. Each shard of the graph is lowered again, with blanks in place of
 * weights, and compared with a function of a package. Where all functions are equal, what the packages hold in those places
 * becomes the weights of the graph.
 *
 * Two functions are equal if their outputs are made by equal operations of equal values, and their states are read and written in
 * the same order. Constants are equal if all bits are. Names, the order of operations and operations whose results nobody uses
 * make no difference. */
#ifndef ANE_MIL_MATCH_H
#define ANE_MIL_MATCH_H

#include "mil/lower.h"

/* A place for a weight, and the operation of a package that fills it. */
struct ane_mil_bound {
  struct ane_mil_weight_ask ask;
  const struct ane_mil_op *op;             /* const or constexpr_... */
  const struct ane_mil_function *function; /* whose operation it is */
};

struct ane_mil_match {
  const struct ane_graph *graph;
  struct ane_arena *arena; /* of everything that is found */
  struct ane_buffer bound; /* of struct ane_mil_bound; freed by the caller */
};

/* The name that an input, output or state of the lowered function has in the package; NULL: the package has none. */
typedef const char *(*ane_mil_rename_fn)(void *arg, const char *name);

/* Lowers a shard with the options and compares it with function `f` of a model of that specification version. The options'
 * weight, weight_arg and ios18_weights are set by the call. rename NULL: names are equal. *out: the lowered shard, also where it
 * differs. Errors: ANE_UNSUPPORTED with the first difference found, those of ane_mil_lower, ANE_NOMEM. */
ane_status ane_mil_match(struct ane_mil_match *m, const struct ane_shard *shard, const struct ane_mil_options *o,
                         const struct ane_mil_function *f, int32_t version, ane_mil_rename_fn rename, void *arg,
                         struct ane_mil_lowered **out, struct ane_error *err);

/* The tensors that fill the graph's constants, from all that was bound. Matrices are read as stored: codes with their scales, or
 * tables (struct ane_gather). The numbers of other constants are those that give the stored ones after the recipe's arithmetic.
 */
struct ane_mil_weight_found {
  const char *name; /* of the constant in the graph */
  bool matrix;      /* what projections use; a constant may also be used otherwise, as a tied embedding is */
  const struct ane_tensor *tensor;
};
/* Lists the tensors, in the match's arena. They point into the packages. Errors: ANE_UNSUPPORTED where a weight is stored in a
 * form that is not read, or differs from one function to another; ANE_NOMEM. */
ane_status ane_mil_match_weights(struct ane_mil_match *m, struct ane_mil_weight_found **out, uint32_t *n, struct ane_error *err);

#endif
