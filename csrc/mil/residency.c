#include "mil/residency.h"

#include <string.h>

#define MB 1000000u

const char *ane_residency_verdict_name(ane_residency_verdict v) {
  static const char *const names[] = {"engine", "risk", "cpu"};
  return names[v];
}

/* ---- Tests: each serves one or several rows of residency.def -------------------------------------------------------------*/

/* The subject of a test: an operation or a package; the other pointer is NULL. */
struct subject {
  const struct ane_residency_op *op;
  const struct ane_residency_package *package;
};

static bool has_scheme(const struct ane_residency_op *o, ane_weight_scheme f) { return o->has_weights && o->scheme == f; }

static bool rule_always(const struct subject *s) { return s->op; }
static bool rule_projection(const struct subject *s) { return s->op->projection; }
static bool rule_int8(const struct subject *s) { return has_scheme(s->op, ANE_WEIGHT_INT8); }
static bool rule_int8_channel(const struct subject *s) { return has_scheme(s->op, ANE_WEIGHT_INT8_CHANNEL); }
static bool rule_int8_block(const struct subject *s) { return has_scheme(s->op, ANE_WEIGHT_INT8_BLOCK); }
static bool rule_int4_block(const struct subject *s) { return has_scheme(s->op, ANE_WEIGHT_INT4_BLOCK); }
static bool rule_uint4_block(const struct subject *s) { return has_scheme(s->op, ANE_WEIGHT_UINT4_BLOCK); }
static bool rule_lut4(const struct subject *s) { return has_scheme(s->op, ANE_WEIGHT_LUT); }
static bool rule_int8_activations(const struct subject *s) { return s->op->int8_activations; }
static bool rule_dimension(const struct subject *s) { return s->op->most > 65536; }
static bool rule_rank(const struct subject *s) { return s->op->rank > 5; }
static bool rule_fp32(const struct subject *s) { return s->op->fp32; }
static bool rule_lookup(const struct subject *s) { return s->op->lookup; }
static bool rule_recurrent(const struct subject *s) { return s->op->recurrent; }
static bool rule_top_k(const struct subject *s) { return s->op->top_k; }
static bool rule_state_write(const struct subject *s) { return s->op->state_write; }
static bool rule_state_width(const struct subject *s) { return s->op->state_last % 32 != 0; }

static bool within(uint64_t bytes, uint64_t above, uint64_t most) { return bytes > above * MB && bytes <= most * MB; }
static bool rule_size_planned(const struct subject *s) { return s->package->bytes <= 200ull * MB; }
static bool rule_size_limit(const struct subject *s) { return within(s->package->bytes, 200, 250); }
static bool rule_size_over(const struct subject *s) { return within(s->package->bytes, 250, 1000); }
static bool rule_size_fail(const struct subject *s) { return s->package->bytes > 1000ull * MB; }
static bool rule_states(const struct subject *s) { return s->package->n_states > 0; }
static bool rule_many_states(const struct subject *s) { return s->package->n_states > 2; }
static bool rule_functions(const struct subject *s) { return s->package->n_functions > 1; }
static bool rule_tokens(const struct subject *s) { return s->package->max_t <= 4; }
static bool rule_tokens_many(const struct subject *s) { return s->package->max_t > 4; }
static bool rule_last_axis(const struct subject *s) { return s->package->layout == ANE_MIL_CT1; }

static const struct ane_residency_rule rules[] = {
#define ANE_RESIDENCY_RULE(id, scope, test, verdict, text, source)                                                               \
  {id, ANE_RESIDENCY_##scope, ANE_RESIDENCY_##verdict, text, source},
#include "mil/residency.def"
#undef ANE_RESIDENCY_RULE
};

static bool (*const tests[])(const struct subject *) = {
#define ANE_RESIDENCY_RULE(id, scope, test, verdict, text, source) rule_##test,
#include "mil/residency.def"
#undef ANE_RESIDENCY_RULE
};

_Static_assert(ANE_COUNT(rules) <= 64, "findings hold a bit for each rule");

const struct ane_residency_rule *ane_residency_rule_at(int i) { return i >= 0 && i < (int)ANE_COUNT(rules) ? &rules[i] : NULL; }

static struct ane_residency_finding judge(struct subject s, ane_residency_scope scope) {
  struct ane_residency_finding f = {ANE_RESIDENCY_ENGINE, ANE_NONE, 0};
  for (int i = 0; i < (int)ANE_COUNT(rules); i++) {
    if (rules[i].scope != scope || !tests[i](&s)) continue;
    f.rules |= 1ull << i;
    if (f.rule == ANE_NONE || rules[i].verdict > f.verdict) {
      f.rule = i;
      f.verdict = rules[i].verdict;
    }
  }
  return f;
}

struct ane_residency_finding ane_residency_judge_op(const struct ane_residency_op *op) {
  return judge((struct subject){op, NULL}, ANE_RESIDENCY_OP);
}
struct ane_residency_finding ane_residency_judge_package(const struct ane_residency_package *p) {
  return judge((struct subject){NULL, p}, ANE_RESIDENCY_PACKAGE);
}

struct ane_residency_package ane_residency_package_of(const struct ane_shard *p, const struct ane_mil_options *o) {
  int64_t t = o->fixed_t > 0 ? 0 : ANE_MAX(o->max_t, (int64_t)1);
  return (struct ane_residency_package){
      .bytes = p->bytes, .n_states = p->n_states, .n_functions = 1, .max_t = t, .layout = o->layout};
}

/* ---- Nodes of a recipe ---------------------------------------------------------------------------------------------*/

static int64_t widest(const struct ane_value *v) {
  int64_t most = 0;
  for (uint32_t i = 0; i < v->shape.rank; i++) most = ANE_MAX(most, v->shape.dim[i]);
  return most;
}

/* Returns the largest dimension of a node's tensors. For a slice of the head, its own rows count, not those of the whole
 * matrix. */
static int64_t widest_of(const struct ane_graph *g, const struct ane_shard *p, int32_t node) {
  const struct ane_node *n = &g->nodes[node];
  bool sliced = p->kind == ANE_SHARD_HEAD && p->split != ANE_NONE && node >= p->split;
  int64_t most = 0;
  for (int32_t j = 0; j < n->n_inputs; j++) {
    if (n->inputs[j] == ANE_NONE) continue;
    const struct ane_value *v = &g->values[n->inputs[j]];
    bool in_slice = sliced && (node != p->split || j > 0);
    int64_t w = v->kind == ANE_VALUE_STATE ? 0 : widest(v); /* the positions of a state are not counted */
    if (in_slice && node == p->split && v->shape.rank == 2) w = v->shape.dim[1];
    if (in_slice && (node != p->split || v->shape.rank == 1)) w = 0;
    most = ANE_MAX(most, w);
  }
  for (int32_t j = 0; j < n->n_outputs; j++) most = ANE_MAX(most, sliced ? p->to - p->from : widest(&g->values[n->outputs[j]]));
  return most;
}

struct ane_residency_finding ane_residency_judge_node(const struct ane_graph *g, const struct ane_shard *p, int32_t node,
                                                      const struct ane_weight_spec *specs, const struct ane_mil_options *o) {
  const struct ane_node *n = &g->nodes[node];
  bool norm = n->op == ANE_OP_RMS_NORM && o->norm == ANE_MIL_NORM_FP32;
  struct ane_residency_op x = {.fp32 = norm || o->fp32,
                               .top_k = n->op == ANE_OP_ROUTE,
                               .lookup = n->op == ANE_OP_EMBED && strcmp(g->values[n->inputs[0]].name, "types") == 0,
                               .recurrent = n->op == ANE_OP_SSM_SCAN || n->op == ANE_OP_DELTA_RULE,
                               .rank = 4,
                               .most = widest_of(g, p, node)};
  for (int32_t j = 0; j < n->n_inputs; j++) {
    int32_t v = n->inputs[j];
    if (v == ANE_NONE) continue;
    if (g->values[v].kind == ANE_VALUE_STATE && ane_shard_has_state(p, v)) {
      const struct ane_shape *s = &g->values[v].shape;
      x.state_write = true;
      if (x.state_last % 32 == 0) x.state_last = s->dim[s->rank - 1];
    }
    if (!ane_partition_is_matrix(g, node, j)) continue;
    struct ane_weight_spec spec = ane_weight_spec_fit(specs[v], g->values[v].shape.dim[0], g->values[v].shape.dim[1]);
    x.projection = true;
    if (!x.has_weights || spec.scheme > x.scheme) x.scheme = spec.scheme; /* the enum begins with the safest scheme */
    x.has_weights = true;
  }
  return ane_residency_judge_op(&x);
}

/* ---- Weights by shape ----------------------------------------------------------------------------------------------*/

bool ane_partition_is_matrix(const struct ane_graph *g, int32_t node, int32_t input) {
  const struct ane_node *n = &g->nodes[node];
  int32_t v = n->inputs[input];
  if (v == ANE_NONE || g->values[v].kind != ANE_VALUE_CONST || g->values[v].shape.rank != 2) return false;
  return (n->op == ANE_OP_CONV1X1 && input == 1) || (n->op == ANE_OP_EXPERTS && input >= 2);
}

uint64_t ane_partition_scheme_bytes(void *arg, const struct ane_graph *g, int32_t node, int32_t input, int64_t rows) {
  const struct ane_weight_spec *specs = arg;
  int32_t v = g->nodes[node].inputs[input];
  const struct ane_shape *s = &g->values[v].shape;
  struct ane_weight_sizes sizes;
  if (ane_partition_is_matrix(g, node, input)) {
    struct ane_weight_spec spec = ane_weight_spec_fit(specs[v], s->dim[0], s->dim[1]);
    return ane_weight_sizes(spec, rows, s->dim[1], &sizes) ? sizes.bytes : UINT64_MAX / 4;
  }
  uint64_t n = (uint64_t)rows;
  for (uint32_t i = 1; i < s->rank; i++) n *= (uint64_t)s->dim[i];
  return 2 * n; /* fp16 */
}

/* ---- Chips ---------------------------------------------------------------------------------------------------------*/

static const struct ane_chip chips[] = {
#define ANE_CHIP(name, cores, tops, gpu, least, most, bandwidth, target, size_limit, source)                                     \
  {name, cores, gpu, tops, bandwidth, least, most, target * 1000000ull, size_limit * 1000000ull, source},
#include "mil/chips.def"
#undef ANE_CHIP
};

const struct ane_chip *ane_chip_at(int i) { return i >= 0 && i < (int)ANE_COUNT(chips) ? &chips[i] : NULL; }
