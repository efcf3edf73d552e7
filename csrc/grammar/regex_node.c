/* Expressions: the pool, the constructors and their simplifications. */
#include "base/alloc.h"
#include "grammar/regex_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- The pool ----------------------------------------------------------------------------------------------------*/

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

static uint64_t hash_node(const struct re_node *n) { return mix(mix(mix(mix(n->kind, n->a), n->b), n->lo), n->hi); }

static bool same_node(const struct re_node *x, const struct re_node *y) {
  return x->kind == y->kind && x->a == y->a && x->b == y->b && x->lo == y->lo && x->hi == y->hi;
}

bool re_grow(void **items, uint32_t *room, uint32_t n, size_t size) {
  if (n < *room) return true;
  uint32_t more = *room ? *room * 2 : 64;
  void *p = ane_realloc(*items, more * size);
  if (!p) return false;
  *items = p;
  *room = more;
  return true;
}

bool re_grow_table(struct re_table *t, uint32_t least, const struct re_pool *p, uint32_t n,
                   uint32_t (*hash)(const struct re_pool *p, uint32_t number)) {
  uint32_t size = t->size ? t->size * 2 : least, *slots = ane_calloc(size, sizeof *slots);
  if (!slots) return false;
  for (uint32_t i = 1; i <= n; i++) {
    uint32_t at = hash(p, i) & (size - 1);
    while (slots[at]) at = (at + 1) & (size - 1);
    slots[at] = i;
  }
  ane_free(t->slots);
  *t = (struct re_table){slots, size};
  return true;
}

static uint32_t hash_of_node(const struct re_pool *p, uint32_t number) { return (uint32_t)hash_node(&p->nodes[number - 1]); }

static uint32_t sum(uint32_t a, uint32_t b) { return a > RE_INF - b ? RE_INF : a + b; }
static uint32_t product(uint32_t a, uint32_t b) {
  if (a == 0 || b == 0) return 0;
  uint64_t n = (uint64_t)a * b;
  return a == RE_INF || b == RE_INF || n > RE_INF ? RE_INF : (uint32_t)n;
}

/* Does a byte set hold only continuation bytes? It then adds nothing to the length in characters. */
static bool continues(const struct re_set *s) { return !s->bits[0] && !s->bits[1] && s->bits[2] && !s->bits[3]; }

/* Fills the fields that follow from the operands. */
static void derive_facts(const struct re_pool *p, struct re_node *n) {
  if (n->kind <= RE_KIND_ALL) return;
  const struct re_node *a = &p->nodes[n->kind == RE_KIND_SET ? RE_NONE : n->a], *b = &p->nodes[n->b];
  switch (n->kind) {
    case RE_KIND_SET: n->min_chars = n->max_chars = continues(&p->sets[n->a]) ? 0 : 1; return;
    case RE_KIND_CAT:
      n->nullable = a->nullable && b->nullable;
      n->min_chars = sum(a->min_chars, b->min_chars);
      n->max_chars = sum(a->max_chars, b->max_chars);
      break;
    case RE_KIND_ALT:
      n->nullable = a->nullable || b->nullable;
      n->min_chars = ANE_MIN(a->min_chars, b->min_chars);
      n->max_chars = ANE_MAX(a->max_chars, b->max_chars);
      break;
    case RE_KIND_AND:
      n->nullable = a->nullable && b->nullable;
      n->min_chars = ANE_MAX(a->min_chars, b->min_chars);
      n->max_chars = ANE_MIN(a->max_chars, b->max_chars);
      break;
    case RE_KIND_NOT:
      n->nullable = !a->nullable;
      n->max_chars = RE_INF;
      break;
    case RE_KIND_REPEAT:
      n->nullable = n->lo == 0 || a->nullable;
      n->min_chars = product(a->min_chars, n->lo);
      n->max_chars = product(a->max_chars, n->hi);
      break;
    case RE_KIND_AHEAD: n->nullable = n->lo ? !a->nullable : a->nullable; break;
    default: break;
  }
  bool two = n->kind == RE_KIND_CAT || n->kind == RE_KIND_ALT || n->kind == RE_KIND_AND;
  n->asserts =
      n->kind == RE_KIND_START || n->kind == RE_KIND_BOUNDARY || n->kind == RE_KIND_AHEAD || a->asserts || (two && b->asserts);
  n->looks_back = n->kind == RE_KIND_START || n->kind == RE_KIND_BOUNDARY || a->looks_back || (two && b->looks_back);
  n->boolean = n->kind == RE_KIND_AND || n->kind == RE_KIND_NOT || n->kind == RE_KIND_START || n->kind == RE_KIND_BOUNDARY ||
               n->kind == RE_KIND_AHEAD || a->boolean || (two && b->boolean);
}

static ane_re make(struct re_pool *p, struct re_node n) {
  struct re_table *t = &p->node_table;
  if ((p->n_nodes + 1) * 2 > t->size && !re_grow_table(t, 1024, p, p->n_nodes, hash_of_node)) goto no_memory;
  uint32_t at = (uint32_t)hash_node(&n) & (t->size - 1);
  for (; t->slots[at]; at = (at + 1) & (t->size - 1))
    if (same_node(&p->nodes[t->slots[at] - 1], &n)) return t->slots[at] - 1;
  if (p->n_nodes >= RE_MAX_NODES) {
    p->full = true;
    return RE_NONE;
  }
  if (!re_grow((void **)&p->nodes, &p->room_nodes, p->n_nodes, sizeof n)) goto no_memory;
  derive_facts(p, &n);
  p->nodes[p->n_nodes] = n;
  t->slots[at] = ++p->n_nodes;
  return p->n_nodes - 1;
no_memory:
  p->full = p->no_memory = true;
  return RE_NONE;
}

static ane_re re_set_of(struct re_pool *p, const struct re_set *set);

bool re_pool_init(struct re_pool *p) {
  memset(p, 0, sizeof *p);
  p->step_limit = RE_MAX_STEPS;
  struct re_set all;
  memset(&all, 0xff, sizeof all);
  make(p, (struct re_node){.kind = RE_KIND_NONE, .min_chars = RE_INF});
  make(p, (struct re_node){.kind = RE_KIND_EMPTY, .nullable = true});
  make(p, (struct re_node){.kind = RE_KIND_ALL, .nullable = true, .max_chars = RE_INF});
  re_set_of(p, &all);
  if (!p->full && re_grow((void **)&p->states, &p->room_states, 0, sizeof *p->states)) {
    p->states[0] = (struct re_state){.alive = 2};
    p->n_states = 1;
    return true;
  }
  re_pool_free(p);
  return false;
}

void re_pool_free(struct re_pool *p) {
  for (uint32_t i = 0; i < p->n_states; i++) ane_free(p->states[i].next);
  ane_free(p->nodes);
  ane_free(p->node_table.slots);
  ane_free(p->sets);
  ane_free(p->set_table.slots);
  for (int i = 0; i < 2; i++) ane_strmap_free(&p->classes[i]);
  ane_arena_free(&p->spellings);
  ane_free(p->states);
  ane_free(p->state_table.slots);
  memset(p, 0, sizeof *p);
}

/* ---- Constructors ------------------------------------------------------------------------------------------------*/

static uint64_t hash_of_set(const struct re_set *s) {
  return mix(mix(mix(mix(0, s->bits[0]), s->bits[1]), s->bits[2]), s->bits[3]);
}

static uint32_t hash_of_set_number(const struct re_pool *p, uint32_t number) {
  return (uint32_t)hash_of_set(&p->sets[number - 1]);
}

static ane_re re_set_of(struct re_pool *p, const struct re_set *set) {
  if (!(set->bits[0] | set->bits[1] | set->bits[2] | set->bits[3])) return RE_NONE;
  struct re_table *t = &p->set_table;
  if ((p->n_sets + 1) * 2 > t->size && !re_grow_table(t, 256, p, p->n_sets, hash_of_set_number)) goto no_memory;
  uint32_t at = (uint32_t)hash_of_set(set) & (t->size - 1);
  while (t->slots[at] && memcmp(&p->sets[t->slots[at] - 1], set, sizeof *set) != 0) at = (at + 1) & (t->size - 1);
  if (!t->slots[at]) {
    if (!re_grow((void **)&p->sets, &p->room_sets, p->n_sets, sizeof *set)) goto no_memory;
    p->sets[p->n_sets] = *set;
    t->slots[at] = ++p->n_sets;
  }
  return make(p, (struct re_node){.kind = RE_KIND_SET, .a = t->slots[at] - 1});
no_memory:
  p->full = p->no_memory = true;
  return RE_NONE;
}

static ane_re re_byte(struct re_pool *p, uint8_t byte) {
  if (p->byte_re[byte] == RE_NONE) {
    struct re_set s = {{0}};
    s.bits[byte >> 6] = (uint64_t)1 << (byte & 63);
    p->byte_re[byte] = re_set_of(p, &s);
  }
  return p->byte_re[byte];
}

ane_re re_literal(struct re_pool *p, const char *s, size_t len) {
  ane_re re = RE_EMPTY;
  while (len > 0) re = re_cat(p, re_byte(p, (uint8_t)s[--len]), re);
  return re;
}

/* Joins are right-nested: the head is never a join itself. */
ane_re re_cat(struct re_pool *p, ane_re a, ane_re b) {
  if (a == RE_NONE || b == RE_NONE) return RE_NONE;
  if (a == RE_EMPTY) return b;
  if (b == RE_EMPTY) return a;
  if (a == RE_ALL && b == RE_ALL) return a;
  if (p->nodes[a].kind != RE_KIND_CAT) return make(p, (struct re_node){.kind = RE_KIND_CAT, .a = a, .b = b});
  /* Makes a right-nested list without recursion: collects the heads first. */
  uint32_t n = 0;
  ane_re at = a;
  for (; p->nodes[at].kind == RE_KIND_CAT; at = p->nodes[at].b) n++;
  ane_re *heads = ane_malloc((n + 1) * sizeof *heads);
  if (!heads) {
    p->full = p->no_memory = true;
    return RE_NONE;
  }
  n = 0;
  for (at = a; p->nodes[at].kind == RE_KIND_CAT; at = p->nodes[at].b) heads[n++] = p->nodes[at].a;
  heads[n++] = at;
  ane_re re = b;
  while (n > 0) re = make(p, (struct re_node){.kind = RE_KIND_CAT, .a = heads[--n], .b = re});
  p->steps += n;
  ane_free(heads);
  return re;
}

/* Returns the head of a list of ALT or AND, which is sorted by number. */
static ane_re head_of(const struct re_pool *p, uint8_t kind, ane_re re) {
  return p->nodes[re].kind == kind ? p->nodes[re].a : re;
}
static ane_re rest_of(const struct re_pool *p, uint8_t kind, ane_re re) {
  return p->nodes[re].kind == kind ? p->nodes[re].b : RE_NONE;
}

/* The union of two lists that are sorted by number. RE_NONE ends a list. */
static ane_re merge(struct re_pool *p, uint8_t kind, ane_re a, ane_re b) {
  ane_re fixed[64], *list = fixed;
  size_t n = 0, room = ANE_COUNT(fixed);
  while (a != RE_NONE || b != RE_NONE) {
    ane_re x = a != RE_NONE ? head_of(p, kind, a) : RE_INF, y = b != RE_NONE ? head_of(p, kind, b) : RE_INF;
    if (x <= y) a = rest_of(p, kind, a);
    if (y <= x) b = rest_of(p, kind, b);
    if (n == room) {
      ane_re *more = ane_malloc(room * 2 * sizeof *more);
      if (more) memcpy(more, list, n * sizeof *more);
      if (list != fixed) ane_free(list);
      if (!more) {
        p->full = p->no_memory = true;
        return RE_NONE;
      }
      list = more;
      room *= 2;
    }
    list[n++] = ANE_MIN(x, y);
  }
  p->steps += n;
  /* analyser: the caller gives a list that is not empty, so the loop has written list[0 .. n - 1]. */
  ane_re re = list[--n];
  while (n > 0) re = make(p, (struct re_node){.kind = kind, .a = list[--n], .b = re});
  if (list != fixed) ane_free(list);
  return re;
}

ane_re re_alt(struct re_pool *p, ane_re a, ane_re b) {
  if (a == b || b == RE_NONE) return a;
  if (a == RE_NONE) return b;
  if (a == RE_ALL || b == RE_ALL) return RE_ALL;
  const struct re_node *x = &p->nodes[a], *y = &p->nodes[b];
  if (x->kind == RE_KIND_SET && y->kind == RE_KIND_SET) {
    struct re_set s = p->sets[x->a];
    for (int i = 0; i < 4; i++) s.bits[i] |= p->sets[y->a].bits[i];
    return re_set_of(p, &s);
  }
  if (a == RE_EMPTY && y->nullable && !y->asserts) return b;
  if (b == RE_EMPTY && x->nullable && !x->asserts) return a;
  return merge(p, RE_KIND_ALT, a, b);
}

ane_re re_and(struct re_pool *p, ane_re a, ane_re b) {
  if (a == b || b == RE_ALL) return a;
  if (a == RE_ALL) return b;
  if (a == RE_NONE || b == RE_NONE) return RE_NONE;
  const struct re_node *x = &p->nodes[a], *y = &p->nodes[b];
  if (a == RE_EMPTY && !y->asserts) return y->nullable ? RE_EMPTY : RE_NONE;
  if (b == RE_EMPTY && !x->asserts) return x->nullable ? RE_EMPTY : RE_NONE;
  if (x->kind == RE_KIND_SET && y->kind == RE_KIND_SET) {
    struct re_set s = p->sets[x->a];
    for (int i = 0; i < 4; i++) s.bits[i] &= p->sets[y->a].bits[i];
    return re_set_of(p, &s);
  }
  if (ANE_MAX(x->min_chars, y->min_chars) > ANE_MIN(x->max_chars, y->max_chars)) return RE_NONE;
  return merge(p, RE_KIND_AND, a, b);
}

ane_re re_not(struct re_pool *p, ane_re a) {
  if (a == RE_NONE) return RE_ALL;
  if (a == RE_ALL) return RE_NONE;
  if (p->nodes[a].kind == RE_KIND_NOT) return p->nodes[a].a;
  return make(p, (struct re_node){.kind = RE_KIND_NOT, .a = a});
}

ane_re re_repeat(struct re_pool *p, ane_re a, uint32_t lo, uint32_t hi) {
  if (hi == 0 || a == RE_EMPTY) return RE_EMPTY;
  if (a == RE_NONE) return lo == 0 ? RE_EMPTY : RE_NONE;
  if (lo == 1 && hi == 1) return a;
  const struct re_node *n = &p->nodes[a];
  if (n->nullable && !n->asserts) lo = 0;
  if (hi == RE_INF && lo == 0 && (a == RE_ANY_BYTE || a == RE_ALL)) return RE_ALL;
  if (n->kind == RE_KIND_REPEAT && n->lo == 0 && n->hi == RE_INF && lo <= 1) return a;
  return make(p, (struct re_node){.kind = RE_KIND_REPEAT, .a = a, .lo = lo, .hi = hi});
}

ane_re re_ahead(struct re_pool *p, ane_re a, bool negative) {
  return make(p, (struct re_node){.kind = RE_KIND_AHEAD, .a = re_cat(p, a, RE_ALL), .lo = negative});
}
ane_re re_start(struct re_pool *p) { return make(p, (struct re_node){.kind = RE_KIND_START}); }
ane_re re_boundary(struct re_pool *p, bool negative) {
  return make(p, (struct re_node){.kind = RE_KIND_BOUNDARY, .lo = negative});
}

/* ---- Characters and lists ----------------------------------------------------------------------------------------*/

static ane_re byte_range(struct re_pool *p, unsigned lo, unsigned hi) {
  struct re_set s = {{0}};
  for (unsigned b = lo; b <= hi; b++) s.bits[b >> 6] |= (uint64_t)1 << (b & 63);
  return re_set_of(p, &s);
}

/* Returns the sequences of `more` continuation bytes for the code points lo..hi, relative to those of the prefix. */
static ane_re tails(struct re_pool *p, uint32_t lo, uint32_t hi, int more) {
  if (more == 0) return RE_EMPTY;
  int shift = 6 * (more - 1);
  uint32_t full = ((uint32_t)1 << shift) - 1, first = lo >> shift, last = hi >> shift;
  if (first == last) return re_cat(p, byte_range(p, 0x80 | first, 0x80 | first), tails(p, lo & full, hi & full, more - 1));
  ane_re re = RE_NONE;
  if ((lo & full) != 0) {
    re = re_cat(p, byte_range(p, 0x80 | first, 0x80 | first), tails(p, lo & full, full, more - 1));
    first++;
  }
  if ((hi & full) != full) {
    re = re_alt(p, re, re_cat(p, byte_range(p, 0x80 | last, 0x80 | last), tails(p, 0, hi & full, more - 1)));
    if (last == first) return re;
    last--;
  }
  return first <= last ? re_alt(p, re, re_cat(p, byte_range(p, 0x80 | first, 0x80 | last), tails(p, 0, full, more - 1))) : re;
}

/* Returns the sequences of the code points with one pattern of lead byte: `lead` or the top bits, then `more` continuation bytes.
 */
static ane_re sequences(struct re_pool *p, uint32_t lo, uint32_t hi, unsigned lead, int more) {
  if (more == 0) return byte_range(p, lo, hi);
  int shift = 6 * more;
  uint32_t full = ((uint32_t)1 << shift) - 1;
  ane_re re = RE_NONE;
  for (uint32_t top = lo >> shift; top <= hi >> shift;) {
    uint32_t from = top == lo >> shift ? lo & full : 0, to = top == hi >> shift ? hi & full : full;
    uint32_t last = top;
    if (from == 0 && to == full)
      while (last < hi >> shift && (last + 1 < hi >> shift || (hi & full) == full)) last++;
    re = re_alt(p, re, re_cat(p, byte_range(p, lead | top, lead | last), tails(p, from, to, more)));
    top = last + 1;
  }
  return re;
}

ane_re re_chars(struct re_pool *p, uint32_t lo, uint32_t hi) {
  static const struct {
    uint32_t lo, hi;
    unsigned lead;
    int more;
  } rows[] = {
      {0, 0x7f, 0, 0}, {0x80, 0x7ff, 0xc0, 1}, {0x800, 0xd7ff, 0xe0, 2}, {0xe000, 0xffff, 0xe0, 2}, {0x10000, 0x10ffff, 0xf0, 3}};
  ane_re re = RE_NONE;
  for (size_t i = 0; i < ANE_COUNT(rows); i++) {
    uint32_t from = ANE_MAX(lo, rows[i].lo), to = ANE_MIN(hi, rows[i].hi);
    if (from <= to) re = re_alt(p, re, sequences(p, from, to, rows[i].lead, rows[i].more));
  }
  return re;
}

ane_re re_any_char(struct re_pool *p) { return re_chars(p, 0, 0x10ffff); }

static int by_bytes(const void *x, const void *y) {
  const struct re_text *a = x, *b = y;
  int c = memcmp(a->data, b->data, ANE_MIN(a->len, b->len));
  return c ? c : (a->len > b->len) - (a->len < b->len);
}

/* texts[0..n) are sorted and agree on their first `skip` bytes. */
static ane_re trie(struct re_pool *p, const struct re_text *texts, size_t n, size_t skip, int depth) {
  ane_re re = RE_NONE;
  size_t i = 0;
  while (i < n && texts[i].len == skip) i++;
  if (i > 0) re = RE_EMPTY;
  while (i < n) {
    size_t end = i + 1, common = texts[i].len;
    while (end < n && texts[end].data[skip] == texts[i].data[skip]) end++;
    for (size_t j = skip; end - i > 1 && j < common; j++)
      if (texts[end - 1].len <= j || texts[end - 1].data[j] != texts[i].data[j]) common = j;
    if (depth > RE_MAX_DEPTH * 10) p->full = true;
    if (p->full) return RE_NONE;
    ane_re tail = end - i == 1 ? RE_EMPTY : trie(p, texts + i, end - i, common, depth + 1);
    re = re_alt(p, re, re_cat(p, re_literal(p, texts[i].data + skip, common - skip), tail));
    i = end;
  }
  return re;
}

ane_re re_choice(struct re_pool *p, struct re_text *texts, size_t n) {
  if (n > 1) qsort(texts, n, sizeof *texts, by_bytes);
  return trie(p, texts, n, 0, 0);
}
