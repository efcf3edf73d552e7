/* The prefix tree of the tokens that a model may produce. A walk along a text ends where no token continues, so finding the
 * tokens at a position takes at most as many steps as the longest token has bytes. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
  const struct ane_text *const *x = a, *const *y = b;
  size_t n = ANE_MIN((*x)->len, (*y)->len);
  int order = memcmp((*x)->data, (*y)->data, n);
  if (!order && (*x)->len != (*y)->len) order = (*x)->len < (*y)->len ? -1 : 1;
  return order ? order : *x < *y ? -1 : *x > *y; /* of equal spellings the last one counts */
}

static bool in_model(const struct ane_tokenizer *t, uint32_t i) {
  if (!t->pieces[i].len || (t->flags && t->flags[i] & ANE_ADDED_OUTSIDE)) return false;
  bool made = t->types[i] == ANE_TOKEN_NORMAL || t->types[i] == ANE_TOKEN_USER;
  return made || (!t->single && t->types[i] != ANE_TOKEN_UNUSED);
}

/* A node to build: sorted[from..to) share the first `depth` bytes. */
struct range {
  uint32_t from, to;
};

/* Makes the children of a node at `depth` from its range of sorted spellings. A spelling that ends here sets the node's token. */
static uint32_t expand(const struct ane_tokenizer *t, const struct ane_text **sorted, struct range r, size_t depth,
                       struct ane_prefix_node *node, struct ane_prefix_node *children, struct range *ranges) {
  uint32_t n = 0;
  for (; r.from < r.to && sorted[r.from]->len == depth; r.from++) node->token = (int32_t)(sorted[r.from] - t->pieces);
  for (uint32_t i = r.from; i < r.to; n++) {
    uint8_t byte = (uint8_t)sorted[i]->data[depth];
    children[n] = (struct ane_prefix_node){ANE_NO_TOKEN, 0, 0, byte};
    ranges[n].from = i;
    while (i < r.to && (uint8_t)sorted[i]->data[depth] == byte) i++;
    ranges[n].to = i;
  }
  return n;
}

/* Builds level by level, so that the children of a node are consecutive. room: bytes of all spellings, plus one. */
static bool build(struct ane_tokenizer *t, const struct ane_text **sorted, uint32_t n, size_t room) {
  struct range *ranges = ane_malloc(room * sizeof *ranges);
  struct ane_prefix_node *nodes = ranges ? ane_malloc(room * sizeof *nodes) : NULL;
  size_t used = 1, depth = 0;
  if (nodes) {
    nodes[0] = (struct ane_prefix_node){ANE_NO_TOKEN, 0, 0, 0};
    ranges[0] = (struct range){0, n};
    for (size_t level = 0, end; level < used; level = end, depth++) {
      end = used;
      for (size_t i = level; i < end; i++) {
        nodes[i].child = (uint32_t)used;
        nodes[i].n = (uint16_t)expand(t, sorted, ranges[i], depth, &nodes[i], nodes + used, ranges + used);
        used += nodes[i].n;
      }
    }
    t->tree = ane_arena_array(&t->arena, used, sizeof *nodes);
    if (t->tree) memcpy(t->tree, nodes, used * sizeof *nodes);
  }
  ane_free(ranges);
  ane_free(nodes);
  return t->tree != NULL;
}

ane_status ane_tree_init(struct ane_tokenizer *t, struct ane_error *err) {
  const struct ane_text **sorted = ane_malloc((t->n + (size_t)1) * sizeof *sorted);
  size_t room = 2;
  uint32_t n = 0;
  if (!sorted) return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
  for (uint32_t i = 0; i < t->n; i++) {
    if (!in_model(t, i)) continue;
    sorted[n++] = &t->pieces[i];
    room += t->pieces[i].len;
  }
  qsort(sorted, n, sizeof *sorted, compare);
  bool ok = room < UINT32_MAX && build(t, sorted, n, room);
  ane_free(sorted);
  return ok ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
}

const struct ane_prefix_node *ane_tree_child(const struct ane_tokenizer *t, const struct ane_prefix_node *node, uint8_t byte) {
  const struct ane_prefix_node *base = t->tree + node->child;
  size_t n = node->n;
  while (n > 1) {
    size_t half = n / 2;
    if (base[half].byte <= byte) base += half;
    n -= half;
  }
  return n && base->byte == byte ? base : NULL;
}
