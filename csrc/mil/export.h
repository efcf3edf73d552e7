/* A shard of a graph as a package on disk: lowered, its weights encoded one after the other straight into the file, so that
 * no more than one encoded matrix is in memory. */
#ifndef ANE_MIL_EXPORT_H
#define ANE_MIL_EXPORT_H

#include "mil/lower.h"
#include "quant/weight_schemes.h"

/* What the packages of one graph share. */
struct ane_mil_export {
  const struct ane_graph *graph;
  const struct ane_weight_spec *specs; /* by value of the graph: the scheme of each matrix (others are not looked at); NULL:
                                          plain, fp16 or fp32 as computed */
  const float *const *importance;      /* by value: a weight for each column of the matrix, or NULL; NULL: none */
  struct ane_pool *pool;               /* encodes */
  struct ane_weight_fit *fits;         /* by value, zeroed; kept from shard to shard, so that the slices of a head agree */
  bool *fitted;                        /* by value, zeroed */
  /* A matrix is written: rows [from, to), its scheme and what it lost. May be NULL; a status ends the export. */
  ane_status (*wrote)(void *arg, int32_t value, int64_t from, int64_t to, const struct ane_weights *w, struct ane_error *err);
  /* Stored bytes have been read and may leave memory: what is read again comes back. Called by several threads. May be NULL. */
  void (*release)(void *arg, const void *data, uint64_t bytes);
  void *arg;
};

/* One way to call a package: a function of its own where there are several. */
struct ane_mil_profile {
  int64_t max_t, fixed_t, context; /* as in struct ane_mil_options */
};

/* A function of a package. */
struct ane_mil_function_plan {
  const char *name; /* "t4": T is 4; "t1_4": T is 1 .. 4; with "_c128" behind it where the context makes a difference */
  struct ane_mil_profile profile;
  bool any_context; /* of profiles that differ in nothing else: there are no keys in the shard */
};
/* Does attention in the shard read keys of earlier calls? Only then the context makes a difference. */
bool ane_mil_reads_keys(const struct ane_graph *g, const struct ane_shard *shard);
/* The functions that the profiles make of a shard, in their order, each once; in the arena. Errors: ANE_INVALID (a profile
 * twice), ANE_NOMEM. */
ane_status ane_mil_plan_functions(struct ane_arena *arena, const struct ane_graph *g, const struct ane_shard *shard,
                                  const struct ane_mil_profile *profiles, uint32_t n, struct ane_mil_function_plan **out,
                                  uint32_t *n_out, struct ane_error *err);

/* Writes the package at `path` (see ane_mlpackage_create). options.weight, weight_arg and ios18_weights are set here; the
 * result lives in the arena. Errors: those of ane_mil_lower, of the encoder (with the weight's name) and of the writer. */
ane_status ane_mil_export(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                          const char *path, struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err);
/* The same with several functions, the first the default one, on one copy of the weights. T and context of `o` are not looked at;
 * the states hold what the largest context of all needs (o->held, where that is more). out: n, one for each function. */
ane_status ane_mil_export_functions(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                                    const struct ane_mil_function_plan *functions, uint32_t n, const char *path,
                                    struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err);

#endif
