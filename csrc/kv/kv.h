/* Pages of cached state that sessions share, and the tree of known prefixes. A page holds the state of ANE_KV_POSITIONS
 * consecutive positions of one sequence, for all layers. The owner of the sessions defines the layout inside a page. Nothing here
 * is thread-safe. */
#ifndef ANE_KV_KV_H
#define ANE_KV_KV_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ANE_KV_POSITIONS = 64 }; /* positions per page */

/* ---- Pages ---------------------------------------------------------------------------------------------------------*/

struct ane_kv_store;
struct ane_kv_slab;

/* A reference-counted page. Only its sole owner may write to it (ane_kv_page_own). */
struct ane_kv_page {
  uint8_t *data; /* page_bytes of the store, 64-byte aligned */
  int32_t refs;
  bool whole; /* a flag for the owners: all positions, and the rows beside them, are written */
  struct ane_kv_store *store;
  struct ane_kv_slab *slab; /* of the store */
};

/* A store of pages of page_bytes bytes. It allocates pages in slabs of eight and frees a slab when all eight are released. It
 * begins with one owner; the last release frees it. NULL: out of memory. */
struct ane_kv_store *ane_kv_store_create(size_t page_bytes);
struct ane_kv_store *ane_kv_store_retain(struct ane_kv_store *s);
void ane_kv_store_release(struct ane_kv_store *s); /* NULL is fine */
/* The bytes of all pages that have an owner, each counted once. */
uint64_t ane_kv_store_bytes(const struct ane_kv_store *s);
size_t ane_kv_store_page_bytes(const struct ane_kv_store *s);

/* A zeroed page with one owner. NULL: out of memory. */
struct ane_kv_page *ane_kv_page_new(struct ane_kv_store *s);
struct ane_kv_page *ane_kv_page_retain(struct ane_kv_page *p);
void ane_kv_page_release(struct ane_kv_page *p); /* NULL is fine */
/* Makes the caller the only owner of *p. If the page is shared, *p becomes a new page, a copy if `copy`, else zeroed. false: out
 * of memory, *p is unchanged. */
bool ane_kv_page_own(struct ane_kv_page **p, bool copy);

/* ---- Known prefixes ------------------------------------------------------------------------------------------------*/

/* The prefixes of sequences that have ended or are long enough to be reused: a tree of pages, each stored under the ids of its
 * positions. The tree is an owner of its pages, as are the sessions that use them. A key separates sequences that have equal ids
 * but different states. */
struct ane_kv_prefixes;

struct ane_kv_prefixes *ane_kv_prefixes_create(void);    /* NULL: out of memory */
void ane_kv_prefixes_destroy(struct ane_kv_prefixes *t); /* NULL is fine */

/* Adds the first n positions, 64 per page. If n is not a multiple of 64, the last page is partly filled; it may still serve
 * sequences that share only its first positions. Pages that the tree has already are not added again but become the most recently
 * used. After ANE_NOMEM, pages added so far stay. */
ane_status ane_kv_prefixes_keep(struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n,
                                struct ane_kv_page *const *pages);
/* Finds the longest known prefix of ids[0 .. n), in whole pages only if `whole`. Writes its pages to `pages`, which has room for
 * (n + 63) / 64; the caller becomes an owner of each. They become the most recently used. Returns the length of the prefix. */
int64_t ane_kv_prefixes_find(struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n, bool whole,
                             struct ane_kv_page **pages);
/* Returns the length only and changes nothing. */
int64_t ane_kv_prefixes_known(const struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n, bool whole);
/* Removes pages that only the tree owns, the least recently used first, until `bytes` are freed or no such page is left. Returns
 * the bytes freed. */
uint64_t ane_kv_prefixes_forget(struct ane_kv_prefixes *t, uint64_t bytes);
/* The number of pages in the tree. */
int64_t ane_kv_prefixes_count(const struct ane_kv_prefixes *t);
/* A page of the tree, as ane_kv_prefixes_each lists it. */
struct ane_kv_prefix {
  int64_t above; /* list number, from 0, of the page that it continues; -1: it begins a sequence */
  uint64_t key;
  int32_t n; /* number of positions that are filled */
  const int32_t *ids;
  struct ane_kv_page *page;
};
/* Calls fn for each page of the tree, the most recently used first. So each page comes after the one that it continues. fn must
 * not change the tree. Stops when fn returns false. */
void ane_kv_prefixes_each(struct ane_kv_prefixes *t, bool (*fn)(void *arg, const struct ane_kv_prefix *p), void *arg);

#endif
