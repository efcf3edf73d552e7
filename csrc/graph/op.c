/* Tables of ops and their attributes, from op.def. */
#include "graph/graph_internal.h"

#include <string.h>

#define ANE_I(n, d) {.name = #n, .def = {.type = ANE_ATTR_INT, .i = d}},
#define ANE_F(n, d) {.name = #n, .def = {.type = ANE_ATTR_FLOAT, .f = d}},
#define ANE_S(n, d) {.name = #n, .def = {.type = ANE_ATTR_STRING, .s = d}},
#define ANE_FV(n) {.name = #n, .def = {.type = ANE_ATTR_FLOATS}},

/* The empty entry at the end avoids empty arrays: some ops have no attributes. */
#define ANE_OP(id, name, kind, min, max, outs, tokens, infer, step, lowering, ...)                                               \
  static const struct ane_attr_spec attrs_##id[] = {__VA_ARGS__{0}};
#include "graph/op.def"
#undef ANE_OP

enum { TOKENS_EACH = false, TOKENS_MIX = true };
static const struct ane_op_info infos[] = {
#define ANE_OP(id, name, kind, min, max, outs, tokens, ...)                                                                      \
  [ANE_OP_##id] = {#name, ANE_OPKIND_##kind, min, max, outs, TOKENS_##tokens, attrs_##id, ANE_COUNT(attrs_##id) - 1},
#include "graph/op.def"
#undef ANE_OP
};

const struct ane_op_info *ane_op_info(ane_op op) { return &infos[op]; }

ane_op ane_op_from_name(const char *name) {
  for (int i = 0; i < ANE_OP_COUNT; i++)
    if (strcmp(infos[i].name, name) == 0) return (ane_op)i;
  return ANE_OP_COUNT;
}

const struct ane_attr *ane_node_attr(const struct ane_node *n, const char *name) {
  const struct ane_op_info *op = &infos[n->op];
  for (int i = 0; i < op->n_attrs; i++)
    if (strcmp(op->attrs[i].name, name) == 0) return &n->attrs[i];
  return &n->attrs[0];
}

int64_t ane_node_int(const struct ane_node *n, const char *name) { return ane_node_attr(n, name)->i; }
double ane_node_float(const struct ane_node *n, const char *name) { return ane_node_attr(n, name)->f; }
const char *ane_node_string(const struct ane_node *n, const char *name) { return ane_node_attr(n, name)->s; }

int32_t ane_node_input(const struct ane_node *n, int i) { return i < n->n_inputs ? n->inputs[i] : ANE_NONE; }

int graph_outputs(const struct ane_node *n) {
  int outs = infos[n->op].outputs;
  return outs >= 0 ? outs : (int)ane_node_int(n, "outputs");
}
