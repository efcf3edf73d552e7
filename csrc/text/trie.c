/* A trie of added tokens. Children are linked lists: a model's few hundred added tokens share long prefixes. */
#include "base/alloc.h"
#include "text/text_internal.h"

static bool grow(struct ane_trie *t) {
  if (t->n < t->room) return true;
  if (t->room > UINT32_MAX / 4) return false;
  uint32_t room = t->room ? t->room * 2 : 64;
  struct ane_trie_node *nodes = ane_realloc(t->nodes, room * sizeof *nodes);
  if (!nodes) return false;
  t->nodes = nodes;
  t->room = room;
  return true;
}

static uint32_t find_child(const struct ane_trie *t, uint32_t at, uint8_t byte) {
  uint32_t c = t->nodes[at].child;
  while (c && t->nodes[c].byte != byte) c = t->nodes[c].sibling;
  return c;
}

bool ane_trie_add(struct ane_trie *t, const char *key, size_t len, int32_t token) {
  uint32_t at = 0;
  if (!t->n) {
    if (!grow(t)) return false;
    t->nodes[t->n++] = (struct ane_trie_node){ANE_NO_TOKEN, 0, 0, 0};
  }
  for (size_t i = 0; i < len; i++) {
    uint8_t byte = (uint8_t)key[i];
    uint32_t c = find_child(t, at, byte);
    if (!c) {
      if (!grow(t)) return false;
      c = t->n++;
      t->nodes[c] = (struct ane_trie_node){ANE_NO_TOKEN, 0, t->nodes[at].child, byte};
      t->nodes[at].child = c;
    }
    at = c;
  }
  if (len) t->first[(uint8_t)key[0]] = 1;
  if (len && t->nodes[at].token == ANE_NO_TOKEN) t->nodes[at].token = token;
  return true;
}

int32_t ane_trie_longest(const struct ane_trie *t, const uint8_t *types, unsigned admitted, const char *s, size_t n,
                         size_t *len) {
  int32_t best = ANE_NO_TOKEN;
  uint32_t at = 0;
  for (size_t i = 0; t->n && i < n && (at = find_child(t, at, (uint8_t)s[i])); i++) {
    int32_t token = t->nodes[at].token;
    if (token == ANE_NO_TOKEN || !(admitted >> types[token] & 1)) continue;
    best = token;
    *len = i + 1;
  }
  return best;
}

void ane_trie_free(struct ane_trie *t) {
  ane_free(t->nodes);
  *t = (struct ane_trie){0};
}
