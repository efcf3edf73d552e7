/* Predicts where operations and packages run. Every verdict is a row of residency.def, which names its source. Nothing here was
 * measured on a Neural Engine. */
#ifndef ANE_MIL_RESIDENCY_H
#define ANE_MIL_RESIDENCY_H

#include "base/strmap.h"
#include "formats/formats.h"
#include "graph/graph.h"
#include "mil/partition.h"
#include "mil/lower.h"
#include "quant/weight_schemes.h"

typedef enum {
  ANE_RESIDENCY_ENGINE,
  ANE_RESIDENCY_RISK,
  ANE_RESIDENCY_CPU
} ane_residency_verdict; /* ascending: the worst verdict wins */
/* "engine", "risk", "cpu" */
const char *ane_residency_verdict_name(ane_residency_verdict v);

typedef enum { ANE_RESIDENCY_OP, ANE_RESIDENCY_PACKAGE } ane_residency_scope;

struct ane_residency_rule {
  const char *id;
  ane_residency_scope scope;
  ane_residency_verdict verdict;
  const char *text, *source;
};
/* Returns rule i of the list; NULL past the end. */
const struct ane_residency_rule *ane_residency_rule_at(int i);

/* The facts about an operation that rules of scope OP test. */
struct ane_residency_op {
  bool projection; /* a convolution with a constant kernel */
  bool has_weights;
  ane_weight_scheme scheme; /* of its matrix, if it has one */
  bool int8_activations, fp32, top_k;
  bool lookup, recurrent; /* takes rows of a table by number; is Mamba-2 or the delta rule */
  bool state_write;
  int64_t state_last; /* last dimension of the states that it writes; 0: none */
  int64_t most;       /* largest dimension of its tensors except T */
  int32_t rank;
};
/* The facts about a package that rules of scope PACKAGE test. */
struct ane_residency_package {
  uint64_t bytes; /* of the weights */
  int32_t n_states;
  int32_t n_functions; /* on one copy of the weights */
  int64_t max_t;       /* range 1 .. max_t; 0: fixed */
  ane_mil_layout layout;
};

/* The rules that hold: bit i of `rules` is rule i. `verdict` is the worst of theirs, `rule` the first rule that gives it
 * (ANE_NONE: no rule holds). */
struct ane_residency_finding {
  ane_residency_verdict verdict;
  int rule;
  uint64_t rules;
};
struct ane_residency_finding ane_residency_judge_op(const struct ane_residency_op *op);
struct ane_residency_finding ane_residency_judge_package(const struct ane_residency_package *p);

/* Judges a node of a recipe's graph in a shard. `specs`: the scheme of each value of the graph (see ane_partition_scheme_bytes).
 * */
struct ane_residency_finding ane_residency_judge_node(const struct ane_graph *g, const struct ane_shard *p, int32_t node,
                                                      const struct ane_weight_spec *specs, const struct ane_mil_options *o);
/* Maps the outputs of a function's operations to the indices of these. The map's keys are the names. false: out of memory. */
bool ane_residency_makers(const struct ane_mil_function *f, struct ane_strmap *out);
/* Judges operation i of a function's block. Constants (const, constexpr_*) take no time: their `rule` is ANE_NONE. */
struct ane_residency_finding ane_residency_judge_mil(const struct ane_mil_function *f, const struct ane_strmap *makers,
                                                     uint32_t i);
struct ane_residency_package ane_residency_package_of(const struct ane_shard *p, const struct ane_mil_options *o);

/* ---- Weights by shape ------------------------------------------------------------------------------------------------*/

/* Is input `input` of the node a matrix that can have a scheme? Vectors, and kernels of causal convolutions, are fp16. */
bool ane_partition_is_matrix(const struct ane_graph *g, int32_t node, int32_t input);
/* For ane_partition_make. arg: struct ane_weight_spec[n_values], the requested scheme of each value. */
uint64_t ane_partition_scheme_bytes(void *arg, const struct ane_graph *g, int32_t node, int32_t input, int64_t rows);

/* ---- Chips -------------------------------------------------------------------------------------------------------------*/

struct ane_chip {
  const char *name;
  int ane_cores, gpu_cores;
  double ane_tops, bandwidth;  /* GB/s */
  int memory_min, memory_max;  /* GB */
  uint64_t target, size_limit; /* bytes of a package: see struct ane_partition_limits */
  const char *source;
};
const struct ane_chip *ane_chip_at(int i); /* NULL past the end */

#endif
