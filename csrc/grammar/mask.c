/* Masks byte by byte. */
#include "grammar/mask.h"

#include "base/alloc.h"

#include <string.h>

void mask_allow(struct masking *k, uint32_t token) {
  for (; token; token = k->t->twin[token - 1]) k->mask[(token - 1) >> 5] |= (uint32_t)1 << ((token - 1) & 31);
}

/* Sets the bits of a superset of the bytes that may follow. */
static void first_bytes(struct ane_grammar *g, const union engine_state *st, uint64_t first[4]) {
  struct json_values *v = engine_values(g, st);
  if (v && (g->kind == ENGINE_JSON || !json_accepts(&v->machine, &st->json)))
    json_first_bytes(&v->machine, &st->json, first);
  else
    memset(first, 0xff, 4 * sizeof *first);
}

void mask_walk(struct masking *k, const struct token_node *nodes, uint32_t from, uint32_t to) {
  struct ane_matcher *m = k->m;
  struct ane_grammar *g = m->g;
  bool filter = g->n_values > 0;
  uint64_t first[4] = {0};
  uint32_t known = UINT32_MAX; /* the depth of the state that `first` belongs to */
  for (uint32_t i = from; i < to;) {
    const struct token_node *x = &nodes[i];
    uint32_t d = x->depth - 1u;
    if (filter && known != d) {
      first_bytes(g, &m->path[d], first);
      known = d;
    }
    if (filter && !(first[x->byte >> 6] >> (x->byte & 63) & 1)) {
      i = x->skip;
      continue;
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

enum { STATES_KEPT = 128 };

struct state_masks {
  uint64_t serial; /* of the vocabulary */
  uint32_t n;
  struct {
    uint32_t state, *mask;
  } list[STATES_KEPT];
};

void mask_states_free(struct state_masks *s) {
  for (uint32_t i = 0; s && i < s->n; i++) ane_free(s->list[i].mask);
  ane_free(s);
}

void mask_state(struct masking *k) {
  struct ane_grammar *g = k->m->g;
  const struct ane_token_tree *t = k->t;
  uint32_t state = g->kind == ENGINE_RULES ? k->m->path[0].rules : k->m->path[0].regex;
  struct state_masks *s = g->masks;
  if (!s || s->serial != t->serial) {
    mask_states_free(s);
    if ((g->masks = s = ane_calloc(1, sizeof *s))) s->serial = t->serial;
  }
  for (uint32_t i = 0; s && i < s->n; i++)
    if (s->list[i].state == state) {
      memcpy(k->mask, s->list[i].mask, t->words * sizeof *k->mask);
      return;
    }
  mask_walk(k, t->nodes, 0, t->n_nodes);
  uint32_t at = s && s->n == STATES_KEPT ? state % STATES_KEPT : s ? s->n : 0;
  uint32_t *copy = !s || engine_failed(g, NULL) ? NULL : at < s->n ? s->list[at].mask : ane_malloc(t->words * sizeof *copy);
  if (!copy) return; /* not cached: made again the next time */
  memcpy(copy, k->mask, t->words * sizeof *copy);
  s->list[at].state = state;
  s->list[at].mask = copy;
  if (at == s->n) s->n++;
}
