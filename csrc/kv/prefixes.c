/* The tree of known prefixes. A node is a page, stored under the ids of its positions; its children continue it. Only leaves are
 * partly filled. All nodes form one list in order of use. Using a node also uses all its ancestors, which then count as used
 * later, so each node comes after its parent in the list. */
#include "kv/kv.h"

#include "base/alloc.h"

#include <string.h>

struct node {
  struct node *above, *below, *sibling; /* below: the first child; sibling: the next child of the same node */
  struct node *later, *earlier;         /* by use */
  struct ane_kv_page *page;
  int64_t number; /* index in the list during a walk of all nodes */
  uint64_t key;
  int32_t depth; /* pages from the start of the sequence, including this one */
  int32_t n;     /* number of positions that are filled */
  int32_t ids[ANE_KV_POSITIONS];
};

struct ane_kv_prefixes {
  struct node root;             /* has no page; its children are first pages */
  struct node *latest, *oldest; /* ends of the list in order of use */
  int64_t count;
};

struct ane_kv_prefixes *ane_kv_prefixes_create(void) {
  return ane_calloc(1, sizeof(struct ane_kv_prefixes));
}

static void unlink_node(struct ane_kv_prefixes *t, struct node *n) {
  *(n->later ? &n->later->earlier : &t->latest) = n->earlier;
  *(n->earlier ? &n->earlier->later : &t->oldest) = n->later;
}

static void link_first(struct ane_kv_prefixes *t, struct node *n) {
  n->later = NULL;
  n->earlier = t->latest;
  *(t->latest ? &t->latest->later : &t->oldest) = n;
  t->latest = n;
}

/* Moves a node and then its ancestors to the front of the list. */
static void use(struct ane_kv_prefixes *t, struct node *n) {
  for (; n && n != &t->root; n = n->above) {
    unlink_node(t, n);
    link_first(t, n);
  }
}

static void drop(struct ane_kv_prefixes *t, struct node *n) {
  struct node **at = &n->above->below;
  while (*at != n) at = &(*at)->sibling;
  *at = n->sibling;
  unlink_node(t, n);
  ane_kv_page_release(n->page);
  ane_free(n);
  t->count--;
}

void ane_kv_prefixes_destroy(struct ane_kv_prefixes *t) {
  if (!t) return;
  while (t->oldest) drop(t, t->oldest); /* a leaf: its ancestors come before it */
  ane_free(t);
}

/* The number of leading positions in which a node agrees with ids[0 .. n). */
static int64_t agreement(const struct node *c, uint64_t key, const int32_t *ids, int64_t n) {
  int64_t most = ANE_MIN(n, (int64_t)c->n), i = 0;
  while (c->key == key && i < most && c->ids[i] == ids[i]) i++;
  return c->key == key ? i : 0;
}

/* The child that agrees with the longest prefix of ids[0 .. n); NULL: no child has the first id. */
static struct node *best_child(const struct node *above, uint64_t key, const int32_t *ids, int64_t n, int64_t *agreed) {
  struct node *best = NULL;
  *agreed = 0;
  for (struct node *c = above->below; c && *agreed < ANE_KV_POSITIONS; c = c->sibling) {
    int64_t a = agreement(c, key, ids, n);
    if (a > *agreed) best = c, *agreed = a;
  }
  return best;
}

static struct node *add_child(struct ane_kv_prefixes *t, struct node *above, uint64_t key, const int32_t *ids, int64_t n,
                              struct ane_kv_page *page) {
  struct node *c = ane_calloc(1, sizeof *c);
  if (!c) return NULL;
  c->above = above, c->sibling = above->below, above->below = c;
  c->page = ane_kv_page_retain(page);
  c->key = key, c->depth = above->depth + 1, c->n = (int32_t)n;
  memcpy(c->ids, ids, (size_t)n * sizeof *ids);
  link_first(t, c);
  t->count++;
  return c;
}

/* The child for a page of n positions: an existing one that has all of them, or a new one that replaces those that it extends. */
static struct node *child_for(struct ane_kv_prefixes *t, struct node *above, uint64_t key, const int32_t *ids, int64_t n,
                              struct ane_kv_page *page) {
  int64_t agreed;
  struct node *c = best_child(above, key, ids, n, &agreed);
  if (c && agreed == n) return c;
  struct node *made = add_child(t, above, key, ids, n, page);
  for (struct node *old = above->below, *next; made && old; old = next) {
    next = old->sibling;
    if (old != made && agreement(old, key, ids, n) == old->n) drop(t, old);
  }
  return made;
}

ane_status ane_kv_prefixes_keep(struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n,
                                struct ane_kv_page *const *pages) {
  struct node *at = &t->root;
  for (int64_t first = 0; first < n; first += ANE_KV_POSITIONS) {
    struct node *c =
        child_for(t, at, key, ids + first, ANE_MIN(n - first, (int64_t)ANE_KV_POSITIONS), pages[first / ANE_KV_POSITIONS]);
    if (!c) return use(t, at), ANE_NOMEM;
    at = c;
  }
  use(t, at);
  return ANE_OK;
}

/* The last node of the longest known prefix, and the length of that prefix. */
static struct node *longest(const struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n, bool whole,
                            int64_t *length) {
  struct node *at = NULL;
  const struct node *above = &t->root;
  *length = 0;
  while (*length < n) {
    int64_t agreed;
    struct node *c = best_child(above, key, ids + *length, n - *length, &agreed);
    if (!c || (whole && agreed < ANE_KV_POSITIONS)) break;
    above = at = c;
    *length += agreed;
    if (agreed < ANE_KV_POSITIONS) break;
  }
  return at;
}

int64_t ane_kv_prefixes_known(const struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n, bool whole) {
  int64_t length;
  longest(t, key, ids, n, whole, &length);
  return length;
}

int64_t ane_kv_prefixes_find(struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n, bool whole,
                             struct ane_kv_page **pages) {
  int64_t length;
  struct node *last = longest(t, key, ids, n, whole, &length);
  for (struct node *at = last; at && at != &t->root; at = at->above) pages[at->depth - 1] = ane_kv_page_retain(at->page);
  use(t, last);
  return length;
}

uint64_t ane_kv_prefixes_forget(struct ane_kv_prefixes *t, uint64_t bytes) {
  uint64_t freed = 0;
  for (struct node *n = t->oldest, *later; n && freed < bytes; n = later) {
    later = n->later;
    if (n->below || n->page->refs > 1) continue;
    freed += ane_kv_store_page_bytes(n->page->store);
    drop(t, n);
  }
  return freed;
}

int64_t ane_kv_prefixes_count(const struct ane_kv_prefixes *t) { return t->count; }

void ane_kv_prefixes_each(struct ane_kv_prefixes *t, bool (*fn)(void *arg, const struct ane_kv_prefix *p), void *arg) {
  int64_t number = 0;
  for (struct node *n = t->latest; n; n = n->earlier) {
    n->number = number++;
    struct ane_kv_prefix p = {
        .above = n->above == &t->root ? -1 : n->above->number, .key = n->key, .n = n->n, .ids = n->ids, .page = n->page};
    if (!fn(arg, &p)) return;
  }
}
