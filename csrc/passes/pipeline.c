/* The pipelines: passes in order, each with the reason for its position. */
#include "passes/passes_internal.h"

#include <stdio.h>
#include <string.h>

static const struct ane_pass cpu_plain[] = {
    {"dead_code", pass_dead_code}, /* first: no later pass sees what no result needs */
    {"linear", pass_linear},       /* the executor has one step for every projection */
};

static const struct ane_pass cpu[] = {
    {"dead_code", pass_dead_code},
    {"linear", pass_linear},                   /* before the fusions: they match linear nodes */
    {"fuse_residual", pass_fuse_residual},     /* before fuse_projection, which leaves projections with a residual alone */
    {"fuse_glu", pass_fuse_glu},               /* before fuse_projection, which would fuse gate and up without their product */
    {"fuse_projection", pass_fuse_projection}, /* before fuse_norm: a norm can move only into the sole user of its result */
    {"fuse_norm", pass_fuse_norm},
    {"fuse_attention", pass_fuse_attention},
    {"early_gather", pass_early_gather}, /* last: after the fusions it has few nodes to move */
};

static ane_status run_one(struct ane_graph *g, const struct ane_pass *p, struct ane_error *err) {
  ane_status st = p->run(g, err);
  if (!st) st = ane_graph_compact(g, err);
  if (!st) st = ane_graph_verify(g, err);
  return st ? ane_fail_in(err, st, "pass %s", p->name) : ANE_OK;
}

ane_status ane_passes_run(struct ane_graph *g, const char *pipeline, struct ane_error *err) {
  bool plain = strcmp(pipeline, "cpu-plain") == 0;
  if (!plain && strcmp(pipeline, "cpu") != 0)
    return ane_fail(err, ANE_NOTFOUND, "no pipeline %s; there are: cpu, cpu-plain", pipeline);
  const struct ane_pass *p = plain ? cpu_plain : cpu;
  size_t n = plain ? ANE_COUNT(cpu_plain) : ANE_COUNT(cpu);
  for (size_t i = 0; i < n; i++) {
    ane_status st = run_one(g, &p[i], err);
    if (st) return st;
  }
  return ANE_OK;
}

ane_status ane_pass_run(struct ane_graph *g, const char *pass, struct ane_error *err) {
  for (size_t i = 0; i < ANE_COUNT(cpu); i++)
    if (strcmp(cpu[i].name, pass) == 0) return run_one(g, &cpu[i], err);
  char names[256] = "";
  for (size_t i = 0, at = 0; i < ANE_COUNT(cpu) && at < sizeof names; i++)
    at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", cpu[i].name);
  return ane_fail(err, ANE_NOTFOUND, "no pass %s; there are: %s", pass, names);
}

/* Returns the living node of this op that makes `value`; NULL: there is none. */
static struct ane_node *maker(const struct ane_graph *g, int32_t value, ane_op op) {
  if (value == ANE_NONE || g->values[value].kind != ANE_VALUE_RESULT) return NULL;
  struct ane_node *n = &g->nodes[g->values[value].node];
  return !n->dead && n->op == op ? n : NULL;
}

struct ane_node *pass_sole_maker(const struct ane_graph *g, int32_t value, ane_op op) {
  struct ane_node *n = maker(g, value, op);
  return n && ane_graph_uses(g, value) == 1 ? n : NULL;
}
