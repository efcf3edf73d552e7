/* Fuses norm and rope of q and k into attention:
 * attention(rope(norm(q), t), rope(norm(k), t), v, ...)  =>  fused_attention(q, k, v, ..., t, q norm, k norm) {norm=1}
 * and the same with the norm after the rope {norm=2}, without norm {norm=0}, or without rope. q and k must have the same ops and
 * attributes; else these stay separate nodes before the fused attention. */
#include "passes/passes_internal.h"

#include <string.h>

/* The ops between a projection and the attention, on q or on k. */
struct before {
  int32_t x, table, weight; /* ANE_NONE if there is none */
  int norm;                 /* 0 none, 1 before rope, 2 after */
  struct ane_node *norm_node, *rope_node;
};

static struct ane_node *head_norm(const struct ane_graph *g, int32_t v, int64_t heads) {
  struct ane_node *n = pass_sole_maker(g, v, ANE_OP_RMS_NORM);
  return n && ane_node_int(n, "groups") == heads && ane_node_input(n, 1) != ANE_NONE ? n : NULL;
}

static struct before look_back(const struct ane_graph *g, int32_t v, int64_t heads) {
  struct before b = {v, ANE_NONE, ANE_NONE, 0, NULL, NULL};
  if ((b.norm_node = head_norm(g, b.x, heads))) b.norm = 2, b.x = b.norm_node->inputs[0];
  struct ane_node *rope = pass_sole_maker(g, b.x, ANE_OP_ROPE);
  if (rope && ane_node_int(rope, "heads") == heads) {
    b.rope_node = rope;
    b.table = rope->inputs[1];
    b.x = rope->inputs[0];
    if (b.norm == 0 && (b.norm_node = head_norm(g, b.x, heads))) b.norm = 1, b.x = b.norm_node->inputs[0];
  }
  if (b.norm_node) b.weight = b.norm_node->inputs[1];
  return b;
}

static bool alike(const struct before *q, const struct before *k) {
  if (q->table != k->table || q->norm != k->norm || !q->rope_node != !k->rope_node) return false;
  if (q->rope_node && strcmp(ane_node_string(q->rope_node, "layout"), ane_node_string(k->rope_node, "layout")) != 0) return false;
  if (!q->norm) return true;
  return ane_node_float(q->norm_node, "eps") == ane_node_float(k->norm_node, "eps") &&
         ane_node_float(q->norm_node, "offset") == ane_node_float(k->norm_node, "offset");
}

static void kill(struct before *b) {
  if (b->norm_node) b->norm_node->dead = true;
  if (b->rope_node) b->rope_node->dead = true;
}

ane_status pass_fuse_attention(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead || n->op != ANE_OP_ATTENTION) continue;
    int64_t heads = ane_node_int(n, "heads"), kv_heads = ane_node_int(n, "kv_heads");
    struct before q = look_back(g, n->inputs[0], heads), k = look_back(g, n->inputs[1], kv_heads);
    /* fused_attention overwrites q and k, so no other node may use them. */
    if (!alike(&q, &k) || ane_graph_uses(g, q.x) != 1 || ane_graph_uses(g, k.x) != 1) {
      q = (struct before){.x = n->inputs[0], .table = ANE_NONE, .weight = ANE_NONE};
      k = (struct before){.x = n->inputs[1], .table = ANE_NONE, .weight = ANE_NONE};
    }
    int32_t inputs[] = {q.x, k.x, n->inputs[2], n->inputs[3], n->inputs[4], ane_node_input(n, 5), q.table, q.weight, k.weight},
            out = n->outputs[0];
    struct ane_attr_arg attrs[] = {PASS_INT("heads", heads),
                                   PASS_INT("kv_heads", kv_heads),
                                   PASS_FLOAT("scale", ane_node_float(n, "scale")),
                                   PASS_INT("window", ane_node_int(n, "window")),
                                   PASS_INT("ahead", ane_node_int(n, "ahead")),
                                   PASS_FLOAT("sink_scale", ane_node_float(n, "sink_scale")),
                                   PASS_FLOAT("softcap", ane_node_float(n, "softcap")),
                                   PASS_INT("norm", q.norm),
                                   PASS_STRING("layout", q.rope_node ? ane_node_string(q.rope_node, "layout") : "half"),
                                   PASS_FLOAT("eps", q.norm ? ane_node_float(q.norm_node, "eps") : 1e-5),
                                   PASS_FLOAT("offset", q.norm ? ane_node_float(q.norm_node, "offset") : 0)};
    kill(&q);
    kill(&k);
    ane_status st =
        ane_graph_rewrite(g, i, ANE_OP_FUSED_ATTENTION, inputs, ANE_COUNT(inputs), attrs, ANE_COUNT(attrs), &out, 1, err);
    if (st) return st;
  }
  return ANE_OK;
}
