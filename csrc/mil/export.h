/* Writes a shard of a graph as a package on disk. The shard is lowered, and its weights are encoded one after another straight
 * into the file, so that at most one encoded matrix is in memory. */
#ifndef ANE_MIL_EXPORT_H
#define ANE_MIL_EXPORT_H

#include "mil/lower.h"
#include "quant/weight_schemes.h"

/* What the packages of one graph share. */
struct ane_mil_export {
  const struct ane_graph *graph;
  const struct ane_weight_spec *specs; /* by value of the graph: the scheme of each matrix (entries of other values are ignored);
                                          NULL: plain fp16 or fp32, as computed */
  const float *const *importance;      /* by value: a weight for each column of the matrix, or NULL; NULL: none */
  struct ane_pool *pool;               /* runs the encoding */
  bool resume;                 /* assets of Core AI take over the matrices that an interrupted call for the same content has
                                  left beside them (ane_aimodel_resume) */
  uint64_t n_kept;             /* matrices taken over so far */
  struct ane_weight_fit *fits; /* by value, zeroed; kept across shards, so that the slices of a head agree */
  bool *fitted;                /* by value, zeroed */
  /* The factor of a matrix's inputs for this scheme, for compensated rounding (quant/compensate.h); *out NULL: its weights are
   * rounded by themselves. It stays valid until the next call. May be NULL. */
  ane_status (*factor)(void *arg, int32_t value, struct ane_weight_spec spec, const struct ane_factor **out,
                       struct ane_error *err);
  /* Called after a matrix is written: rows [from, to), its scheme and its quantisation error. May be NULL. An error status ends
   * the export. */
  ane_status (*wrote)(void *arg, int32_t value, int64_t from, int64_t to, const struct ane_weights *w, struct ane_error *err);
  /* Called when stored bytes have been read and may be dropped from memory. They must stay readable. Called by several threads.
   * May be NULL. */
  void (*release)(void *arg, const void *data, uint64_t bytes);
  void *arg;
};

/* One way to call a package. With several profiles, each becomes a function of the package. */
struct ane_mil_profile {
  int64_t max_t, fixed_t, context; /* as in struct ane_mil_options */
};

/* A function of a package. */
struct ane_mil_function_plan {
  const char *name; /* "t4": T is 4; "t1_4": T is 1 .. 4; followed by "_c128" if the context makes a difference */
  struct ane_mil_profile profile;
  bool any_context; /* the function serves profiles that differ only in context, since the shard has no keys */
};
/* Does attention in the shard read keys of earlier calls? Otherwise the context makes no difference. */
bool ane_mil_reads_keys(const struct ane_graph *g, const struct ane_shard *shard);
/* Lists the distinct functions that the profiles need from a shard, in order of the profiles; allocated in the arena. Errors:
 * ANE_INVALID (a profile occurs twice), ANE_NOMEM. */
ane_status ane_mil_plan_functions(struct ane_arena *arena, const struct ane_graph *g, const struct ane_shard *shard,
                                  const struct ane_mil_profile *profiles, uint32_t n, struct ane_mil_function_plan **out,
                                  uint32_t *n_out, struct ane_error *err);

/* Writes the package at `path` (see ane_mlpackage_create). The call sets options.weight, weight_arg and ios18_weights itself. The
 * result lives in the arena. Errors: those of ane_mil_lower, of the encoder (with the weight's name) and of the writer. */
ane_status ane_mil_export(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                          const char *path, struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err);
/* Writes a package with several functions on one copy of the weights, otherwise as ane_mil_export; the first is the default. T
 * and context of `o` are ignored. The states are sized for the largest context (or o->held, if larger). out: n entries, one per
 * function. */
ane_status ane_mil_export_functions(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                                    const struct ane_mil_function_plan *functions, uint32_t n, const char *path,
                                    struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err);

#endif
