/* Masks byte by byte. */
#include "grammar/mask.h"

void mask_allow(struct masking *k, uint32_t token) {
  for (; token; token = k->t->twin[token - 1]) k->mask[(token - 1) >> 5] |= (uint32_t)1 << ((token - 1) & 31);
}

void mask_walk(struct masking *k, const struct token_node *nodes, uint32_t from, uint32_t to) {
  struct ane_matcher *m = k->m;
  struct ane_grammar *g = m->g;
  bool json = g->kind == ENGINE_JSON;
  uint64_t first[4] = {0};
  uint32_t known = UINT32_MAX; /* the depth whose state `first` is of */
  for (uint32_t i = from; i < to;) {
    const struct token_node *x = &nodes[i];
    uint32_t d = x->depth - 1u;
    if (json) {
      if (known != d) {
        json_first_bytes(&g->machine, &m->path[d].json, first);
        known = d;
      }
      if (!(first[x->byte >> 6] >> (x->byte & 63) & 1)) {
        i = x->skip;
        continue;
      }
    }
    if (!engine_step(g, &m->path[d], x->byte, &m->path[d + 1])) {
      i = x->skip;
      continue;
    }
    if (known == d + 1) known = UINT32_MAX;
    if (x->token) mask_allow(k, x->token);
    i++;
  }
}
