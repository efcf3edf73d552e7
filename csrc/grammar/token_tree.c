/* Vocabularies: see token_tree.h. */
#include "grammar/token_tree.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 24 };

struct entry {
  const uint8_t *data;
  uint32_t len, token;
};

static int by_bytes(const void *x, const void *y) {
  const struct entry *a = x, *b = y;
  int c = memcmp(a->data, b->data, ANE_MIN(a->len, b->len));
  if (c) return c;
  if (a->len != b->len) return a->len < b->len ? -1 : 1;
  return (a->token > b->token) - (a->token < b->token);
}

/* Bytes at the start on which two texts agree. */
static uint32_t common(const struct entry *a, const struct entry *b) {
  uint32_t n = ANE_MIN(a->len, b->len), i = 0;
  while (i < n && a->data[i] == b->data[i]) i++;
  return i;
}

static void close_nodes(struct ane_token_tree *t, const uint32_t *open, uint32_t from, uint32_t to) {
  for (uint32_t d = from; d > to; d--) t->nodes[open[d]].skip = t->n_nodes;
}

static void build(struct ane_token_tree *t, const struct entry *list, uint32_t n) {
  uint32_t open[TOKEN_LONGEST + 1], depth = 0;
  for (uint32_t i = 0; i < n; i++) {
    const struct entry *e = &list[i];
    if (i > 0 && e->len == list[i - 1].len && common(e, &list[i - 1]) == e->len) {
      t->twin[e->token] = t->nodes[open[depth]].token;
      t->nodes[open[depth]].token = e->token + 1;
      continue;
    }
    uint32_t shared = i > 0 ? common(e, &list[i - 1]) : 0;
    close_nodes(t, open, depth, shared);
    for (depth = shared; depth < e->len;) {
      open[depth + 1] = t->n_nodes;
      t->nodes[t->n_nodes++] = (struct token_node){.byte = e->data[depth], .depth = (uint16_t)(depth + 1)};
      depth++;
    }
    t->nodes[open[depth]].token = e->token + 1;
    t->longest = ANE_MAX(t->longest, e->len);
  }
  close_nodes(t, open, depth, 0);
}

ane_status ane_token_tree_make(struct ane_token_tree **out, const struct ane_bytes *tokens, uint32_t n, struct ane_error *err) {
  *out = NULL;
  if (n == 0 || n > MAX_TOKENS) return ane_fail(err, ANE_INVALID, "a vocabulary of %u tokens: 1 to %d are possible", (unsigned)n, MAX_TOKENS);
  struct ane_token_tree *t = ane_calloc(1, sizeof *t);
  struct entry *list = ane_malloc(n * sizeof *list);
  uint32_t used = 0;
  if (!t || !list) goto no_memory;
  for (uint32_t i = 0; i < n; i++)
    if (tokens[i].len > 0 && tokens[i].len <= TOKEN_LONGEST) list[used++] = (struct entry){(const uint8_t *)tokens[i].data, (uint32_t)tokens[i].len, i};
  qsort(list, used, sizeof *list, by_bytes);
  size_t nodes = 0;
  for (uint32_t i = 0; i < used; i++) nodes += list[i].len - (i > 0 ? common(&list[i], &list[i - 1]) : 0);
  t->n_tokens = n;
  t->words = (n + 31) / 32;
  t->nodes = ane_calloc(nodes + 1, sizeof *t->nodes);
  t->twin = ane_calloc(n, sizeof *t->twin);
  if (!t->nodes || !t->twin) goto no_memory;
  build(t, list, used);
  ane_free(list);
  *out = t;
  return ANE_OK;
no_memory:
  ane_free(list);
  ane_token_tree_destroy(t);
  return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)n);
}

void ane_token_tree_destroy(struct ane_token_tree *t) {
  if (!t) return;
  ane_free(t->nodes);
  ane_free(t->twin);
  ane_free(t);
}

uint32_t ane_token_tree_size(const struct ane_token_tree *t) { return t->n_tokens; }
