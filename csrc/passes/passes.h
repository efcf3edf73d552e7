/* Passes: each takes a valid graph and leaves a valid graph that computes the same. A pass is one file and one line in
 * pipeline.c, which gives the reason for its position. */
#ifndef ANE_PASSES_PASSES_H
#define ANE_PASSES_PASSES_H

#include "graph/graph.h"

typedef ane_status (*ane_pass_fn)(struct ane_graph *g, struct ane_error *err);

struct ane_pass {
  const char *name;
  ane_pass_fn run;
};

/* Runs the passes of a pipeline in order and verifies the graph after each. "cpu": for the executor. "cpu-plain": only what the
 * executor needs, without fusions; its results have the same bits and take longer. Specs compare the two. Errors: ANE_NOTFOUND
 * (no such pipeline), ANE_NOMEM, those of ane_graph_verify. */
ane_status ane_passes_run(struct ane_graph *g, const char *pipeline, struct ane_error *err);
/* Runs one pass by name, for specs. ANE_NOTFOUND lists the passes. */
ane_status ane_pass_run(struct ane_graph *g, const char *pass, struct ane_error *err);

#endif
