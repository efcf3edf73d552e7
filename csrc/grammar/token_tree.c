/* Vocabularies: see token_tree.h. */
#include "grammar/token_tree.h"

#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 24 };

struct entry {
  const uint8_t *data;
  uint32_t len, token;
};

static int by_bytes(const void *x, const void *y) {
  const struct entry *a = x, *b = y;
  uint32_t n = ANE_MIN(a->len, b->len);
  int c = n ? memcmp(a->data, b->data, n) : 0;
  if (c) return c;
  if (a->len != b->len) return a->len < b->len ? -1 : 1;
  return (a->token > b->token) - (a->token < b->token);
}

/* Returns the length of the common prefix of two texts. */
static uint32_t common(const struct entry *a, const struct entry *b) {
  uint32_t n = ANE_MIN(a->len, b->len), i = 0;
  while (i < n && a->data[i] == b->data[i]) i++;
  return i;
}

/* Counts the nodes of a sorted list without the empty text. */
static size_t count_nodes(const struct entry *list, uint32_t n) {
  size_t nodes = 0;
  for (uint32_t i = 0; i < n; i++) nodes += list[i].len - (i > 0 ? common(&list[i], &list[i - 1]) : 0);
  return nodes;
}

/* Builds the tree of a sorted list. twin: receives equal texts; NULL if there are none. Returns the number of nodes. */
static uint32_t build(struct token_node *nodes, uint32_t *twin, const struct entry *list, uint32_t n) {
  uint32_t open[TOKEN_LONGEST + 1], depth = 0, used = 0;
  for (uint32_t i = 0; i < n; i++) {
    const struct entry *e = &list[i];
    if (i > 0 && e->len == list[i - 1].len && common(e, &list[i - 1]) == e->len) {
      twin[e->token] = nodes[open[depth]].token;
      nodes[open[depth]].token = e->token + 1;
      continue;
    }
    uint32_t shared = i > 0 ? common(e, &list[i - 1]) : 0;
    for (uint32_t d = depth; d > shared; d--) nodes[open[d]].skip = used;
    for (depth = shared; depth < e->len;) {
      open[depth + 1] = used;
      nodes[used++] = (struct token_node){.byte = e->data[depth], .depth = (uint16_t)(depth + 1)};
      depth++;
    }
    /* analyser: a text is not empty, so depth is at least 1 and open[1 .. depth] is written. */
    nodes[open[depth]].token = e->token + 1;
  }
  for (uint32_t d = depth; d > 0; d--) nodes[open[d]].skip = used;
  return used;
}

/* ---- Inside strings ----------------------------------------------------------------------------------------------*/

/* The state of a path inside a string. */
struct lexer {
  uint8_t lex, need, from, to; /* bytes of a character that are missing; bounds of the next */
  uint8_t escape;              /* 1: after a backslash; 2 to 5: digits of \uXXXX are missing; 6, 7: the second half must follow */
  uint16_t code, chars;
  bool ended; /* after the end of a string that had an escape */
  uint16_t quote;
};

static int hex_digit(uint8_t c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Escapes that a mask offers: those that JSON needs. */
static bool escape_step(struct lexer *l, uint8_t b) {
  if (l->escape == 1) {
    l->escape = 0;
    if (b == 'u') l->escape = 2, l->code = 0;
    return b && strchr("\"\\bfnrtu", b);
  }
  int d = hex_digit(b);
  if (d < 0) return false;
  l->code = (uint16_t)(l->code * 16 + d);
  l->escape = l->escape == 5 ? 0 : l->escape + 1;
  return l->escape ? l->code <= 1 : l->code < 0x20;
}

static void lex_step(struct lexer *l, uint8_t b) {
  if (l->lex == LEX_QUOTE || l->lex == LEX_AFTER) {
    l->lex = LEX_AFTER;
    return;
  }
  if (l->escape) {
    if (!escape_step(l, b)) l->lex = LEX_BAD;
    return;
  }
  if (l->need > 0) {
    if (b < l->from || b > l->to) {
      l->lex = LEX_BAD;
      return;
    }
    l->need--;
    l->from = 0x80;
    l->to = 0xbf;
  } else if (b == '"') {
    l->lex = l->lex == LEX_ESCAPE ? LEX_ESCAPE : LEX_QUOTE;
    l->ended = l->lex == LEX_ESCAPE;
    return;
  } else if (b == '\\') {
    l->lex = LEX_ESCAPE;
    l->escape = 1;
    l->chars++;
    return;
  } else if (b < 0x20) {
    l->lex = LEX_BAD;
    return;
  } else {
    l->chars++;
    if (b >= 0x80) {
      if (b < 0xc2 || b > 0xf4) {
        l->lex = LEX_BAD;
        return;
      }
      l->need = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
      l->from = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
      l->to = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
    }
  }
  if (l->lex != LEX_ESCAPE) l->lex = l->need ? LEX_PARTIAL : LEX_PLAIN;
}

static void add_inside(struct ane_token_tree *t, uint32_t token, uint32_t chars) {
  for (; token; token = t->twin[token - 1])
    for (uint32_t k = ANE_MIN(chars, (uint32_t)TOKEN_CHARS); k <= TOKEN_CHARS; k++) {
      t->inside[k][(token - 1) >> 5] |= (uint32_t)1 << ((token - 1) & 31);
      t->n_inside[k]++;
    }
  t->most_chars = ANE_MAX(t->most_chars, chars);
}

static bool classify(struct ane_token_tree *t) {
  struct lexer *path = ane_calloc(TOKEN_LONGEST + 1, sizeof *path);
  t->lex = ane_malloc(t->n_nodes + 1);
  t->chars = ane_calloc(t->n_nodes + 1, sizeof *t->chars);
  t->quote = ane_calloc(t->n_nodes + 1, sizeof *t->quote);
  t->many = ane_calloc(t->n_tokens + 1, sizeof *t->many);
  for (int k = 0; k <= TOKEN_CHARS; k++)
    if (!(t->inside[k] = ane_calloc(t->words, sizeof **t->inside))) goto no_memory;
  if (!path || !t->lex || !t->chars || !t->quote || !t->many) goto no_memory;
  path[0].lex = LEX_PLAIN;
  for (uint32_t i = 0; i < t->n_nodes; i++) {
    const struct token_node *x = &t->nodes[i];
    struct lexer *l = &path[x->depth];
    *l = path[x->depth - 1];
    if (l->lex != LEX_BAD && !l->ended) lex_step(l, x->byte);
    if (l->quote == 0 && (l->lex == LEX_QUOTE || l->ended)) l->quote = x->depth;
    t->lex[i] = l->lex;
    t->chars[i] = l->chars;
    t->quote[i] = l->lex == LEX_BAD ? 0 : l->quote;
    bool inside = l->lex == LEX_PLAIN || l->lex == LEX_PARTIAL || (l->lex == LEX_ESCAPE && !l->ended);
    if (!x->token || !inside) continue;
    add_inside(t, x->token, l->chars);
    if (l->chars >= TOKEN_CHARS) t->many[t->n_many++] = i;
  }
  ane_free(path);
  return true;
no_memory:
  ane_free(path);
  return false;
}

/* Line ends and blanks beyond ASCII have few first bytes: C2 (U+0085, U+00A0), E1 (U+1680), E2 (U+2028), E3 (U+3000) and EF
 * (U+FEFF). */
static void make_byte_classes(struct ane_token_tree *t) {
  static const uint8_t bounds[] = {'0',  '9' + 1, 'A',  'G',  'Z' + 1, 'a',  'g',  'z' + 1, 0xc2,
                                   0xc3, 0xe0,    0xe1, 0xe2, 0xe3,    0xe4, 0xef, 0xf0,    0xf5};
  uint8_t n = 0;
  memset(t->byte_class, CLASS_NONE, sizeof t->byte_class);
  for (int b = 0x20; b < 0xf5; b++) {
    bool alone = b < 0x80 && !(b >= '0' && b <= '9') && !((b | 32) >= 'a' && (b | 32) <= 'z');
    n += alone || memchr(bounds, b, sizeof bounds);
    if (b != '"' && b != '\\' && (b < 0x80 || b >= 0xc2)) t->byte_class[b] = n;
  }
}

static bool is_plain(const struct ane_token_tree *t, uint32_t node) {
  return t->lex[node] == LEX_PLAIN || t->lex[node] == LEX_PARTIAL;
}

/* Makes the sets of classes of the subtrees, of the tokens without escapes and of the texts before quotes and backslashes. */
static bool make_sets(struct ane_token_tree *t) {
  uint64_t *path = ane_calloc(TOKEN_LONGEST + 1, sizeof *path);
  t->below = ane_calloc(t->n_nodes + 1, sizeof *t->below);
  t->plains = ane_malloc((t->n_tokens + 1) * sizeof *t->plains);
  t->stops = ane_malloc((t->n_nodes + 1) * sizeof *t->stops);
  bool ok = path && t->below && t->plains && t->stops;
  if (ok) make_byte_classes(t);
  for (uint32_t i = 0; ok && i < t->n_nodes;) {
    const struct token_node *x = &t->nodes[i];
    uint32_t d = x->depth;
    if (!is_plain(t, i)) {
      if (t->lex[i] != LEX_BAD) t->stops[t->n_stops++] = (struct string_stop){i, path[d - 1]};
      i = x->skip;
      continue;
    }
    path[d] = path[d - 1] | token_class(t, x->byte);
    t->all_classes |= path[d];
    for (uint32_t token = x->token; token; token = t->twin[token - 1])
      t->plains[t->n_plains++] = (struct plain_token){i, token - 1, path[d], t->chars[i]};
    i++;
  }
  for (uint32_t i = t->n_nodes; ok && i-- > 0;) {
    if (!is_plain(t, i)) continue;
    t->below[i] = token_class(t, t->nodes[i].byte);
    for (uint32_t j = i + 1; j < t->nodes[i].skip; j = t->nodes[j].skip) t->below[i] |= t->below[j];
  }
  ane_free(path);
  return ok;
}

/* Makes the classes of tokens that end a string. */
static bool make_classes(struct ane_token_tree *t) {
  uint32_t n = 0;
  struct entry *list = ane_malloc((t->n_tokens + 1) * sizeof *list), *unique = ane_malloc((t->n_tokens + 1) * sizeof *unique);
  struct closing_token *found = ane_malloc((t->n_tokens + 1) * sizeof *found);
  bool ok = false;
  if (!list || !unique || !found) goto out;
  for (uint32_t i = 0; i < t->n_nodes; i++) {
    const struct token_node *x = &t->nodes[i];
    if (!x->token || !t->quote[i]) continue;
    for (uint32_t token = x->token; token; token = t->twin[token - 1]) {
      uint32_t skip = t->quote[i] - 1u;
      found[n] = (struct closing_token){token - 1, t->chars[i], skip, t->lex[i] == LEX_ESCAPE};
      list[n] = (struct entry){t->bytes[token - 1] + skip, t->lengths[token - 1] - skip, n};
      n++;
    }
  }
  qsort(list, n, sizeof *list, by_bytes);
  t->class_tokens = ane_malloc((n + 1) * sizeof *t->class_tokens);
  t->class_start = ane_malloc((n + 1) * sizeof *t->class_start);
  if (!t->class_tokens || !t->class_start) goto out;
  for (uint32_t i = 0; i < n; i++) {
    bool again = i > 0 && list[i].len == list[i - 1].len && common(&list[i], &list[i - 1]) == list[i].len;
    if (!again) {
      unique[t->n_classes] = list[i];
      unique[t->n_classes].token = t->n_classes;
      t->class_start[t->n_classes++] = i;
    }
    t->class_tokens[i] = found[list[i].token];
    t->class_of[found[list[i].token].token] = t->n_classes;
  }
  t->class_start[t->n_classes] = n;
  t->closings = ane_malloc((count_nodes(unique, t->n_classes) + 1) * sizeof *t->closings);
  if (!t->closings) goto out;
  t->n_closings = build(t->closings, NULL, unique, t->n_classes);
  ok = true;
out:
  ane_free(list);
  ane_free(unique);
  ane_free(found);
  return ok;
}

/* ---- The tree ----------------------------------------------------------------------------------------------------*/

static bool make(struct ane_token_tree *t, const struct ane_bytes *tokens, struct entry *list) {
  uint32_t used = 0;
  t->bytes = ane_calloc(t->n_tokens, sizeof *t->bytes);
  t->lengths = ane_calloc(t->n_tokens, sizeof *t->lengths);
  t->twin = ane_calloc(t->n_tokens, sizeof *t->twin);
  t->class_of = ane_calloc(t->n_tokens, sizeof *t->class_of);
  if (!t->bytes || !t->lengths || !t->twin || !t->class_of) return false;
  for (uint32_t i = 0; i < t->n_tokens; i++) {
    if (tokens[i].len == 0 || tokens[i].len > TOKEN_LONGEST) continue;
    const char *copy = ane_arena_strndup(&t->arena, tokens[i].data, tokens[i].len);
    if (!copy) return false;
    t->bytes[i] = (const uint8_t *)copy;
    t->lengths[i] = (uint32_t)tokens[i].len;
    list[used++] = (struct entry){t->bytes[i], t->lengths[i], i};
    t->longest = ANE_MAX(t->longest, t->lengths[i]);
  }
  if (used > 1) qsort(list, used, sizeof *list, by_bytes);
  t->nodes = ane_malloc((count_nodes(list, used) + 1) * sizeof *t->nodes);
  if (!t->nodes) return false;
  t->n_nodes = build(t->nodes, t->twin, list, used);
  return classify(t) && make_sets(t) && make_classes(t);
}

ane_status ane_token_tree_make(struct ane_token_tree **out, const struct ane_bytes *tokens, uint32_t n, struct ane_error *err) {
  *out = NULL;
  if (n == 0 || n > MAX_TOKENS)
    return ane_fail(err, ANE_INVALID, "a vocabulary of %u tokens: 1 to %d are possible", (unsigned)n, MAX_TOKENS);
  struct ane_token_tree *t = ane_calloc(1, sizeof *t);
  struct entry *list = ane_malloc(n * sizeof *list);
  bool ok = t && list;
  static atomic_uint_fast64_t made;
  if (t) {
    t->serial = atomic_fetch_add(&made, 1) + 1;
    t->n_tokens = n;
    t->words = (n + 31) / 32;
  }
  ok = ok && make(t, tokens, list);
  ane_free(list);
  if (!ok) {
    ane_token_tree_destroy(t);
    return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)n);
  }
  *out = t;
  return ANE_OK;
}

void ane_token_tree_destroy(struct ane_token_tree *t) {
  if (!t) return;
  for (int k = 0; k <= TOKEN_CHARS; k++) ane_free(t->inside[k]);
  ane_free(t->nodes);
  ane_free(t->lex);
  ane_free(t->chars);
  ane_free(t->quote);
  ane_free(t->many);
  ane_free(t->below);
  ane_free(t->plains);
  ane_free(t->stops);
  ane_free(t->twin);
  ane_free(t->closings);
  ane_free(t->class_start);
  ane_free(t->class_tokens);
  ane_free(t->class_of);
  ane_free(t->bytes);
  ane_free(t->lengths);
  ane_arena_free(&t->arena);
  ane_free(t);
}

uint32_t ane_token_tree_size(const struct ane_token_tree *t) { return t->n_tokens; }
