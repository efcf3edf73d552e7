/* Pages of cached state that sessions share, and the tree of known prefixes. A page holds the state of ANE_KV_POSITIONS
 * consecutive positions of one sequence, for all layers; what lies where in it is the business of the session's owner. Nothing
 * here is safe to use from two threads at a time. */
#ifndef ANE_KV_KV_H
#define ANE_KV_KV_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ANE_KV_POSITIONS = 64 }; /* positions a page */

/* ---- Pages ---------------------------------------------------------------------------------------------------------*/

struct ane_kv_store;
struct ane_kv_slab;

/* A page with its owners counted. Who writes to a page must be its only owner (ane_kv_page_own). */
struct ane_kv_page {
  uint8_t *data; /* page_bytes of the store, 64-byte aligned */
  int32_t refs;
  bool whole; /* a mark of the owners: all positions, and what lies beside them, are written */
  struct ane_kv_store *store;
  struct ane_kv_slab *slab; /* of the store */
};

/* A store of pages of page_bytes bytes, which it takes from the system by eight and gives back when all eight are released. NULL:
 * out of memory. It begins with one owner; the last one that releases it frees it. */
struct ane_kv_store *ane_kv_store_create(size_t page_bytes);
struct ane_kv_store *ane_kv_store_retain(struct ane_kv_store *s);
void ane_kv_store_release(struct ane_kv_store *s); /* NULL is fine */
/* Bytes of all pages that have an owner, each counted once. */
uint64_t ane_kv_store_bytes(const struct ane_kv_store *s);
size_t ane_kv_store_page_bytes(const struct ane_kv_store *s);

/* A page of zeros with one owner; NULL: out of memory. */
struct ane_kv_page *ane_kv_page_new(struct ane_kv_store *s);
struct ane_kv_page *ane_kv_page_retain(struct ane_kv_page *p);
void ane_kv_page_release(struct ane_kv_page *p); /* NULL is fine */
/* Makes *p a page that the caller alone owns: itself, or a new one in its place, with its contents if `copy`, else of zeros.
 * false: out of memory, *p is unchanged. */
bool ane_kv_page_own(struct ane_kv_page **p, bool copy);

/* ---- Known prefixes ------------------------------------------------------------------------------------------------*/

/* The prefixes of sequences that ended, or that are far enough to be of use: a tree of pages, each under the ids of its
 * positions. It owns its pages beside the sessions that use them. A key keeps apart sequences that are equal in ids and differ in
 * state. */
struct ane_kv_prefixes;

struct ane_kv_prefixes *ane_kv_prefixes_create(void);    /* NULL: out of memory */
void ane_kv_prefixes_destroy(struct ane_kv_prefixes *t); /* NULL is fine */

/* Adds the first n positions, 64 to a page; where n is no multiple of 64 the last page is partly filled, and may be of use to
 * sequences that share only its first positions. Pages that are known already are not added again; they become the most recently
 * used. ANE_NOMEM: what was added before stays. */
ane_status ane_kv_prefixes_keep(struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n,
                                struct ane_kv_page *const *pages);
/* The longest known start of ids[0 .. n), in whole pages if `whole`. Writes the pages of its positions to `pages`, which has room
 * for (n + 63) / 64, each with the caller as an owner; they become the most recently used. Returns its length. */
int64_t ane_kv_prefixes_find(struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n, bool whole,
                             struct ane_kv_page **pages);
/* The length only. Changes nothing. */
int64_t ane_kv_prefixes_known(const struct ane_kv_prefixes *t, uint64_t key, const int32_t *ids, int64_t n, bool whole);
/* Forgets pages that only the tree owns, the least recently used first, until `bytes` are freed or no such page is left. Returns
 * the bytes freed. */
uint64_t ane_kv_prefixes_forget(struct ane_kv_prefixes *t, uint64_t bytes);
/* Pages in the tree. */
int64_t ane_kv_prefixes_count(const struct ane_kv_prefixes *t);
/* A page of the tree as a list of all shows it. */
struct ane_kv_prefix {
  int64_t above; /* number of the page that it continues, counted from 0 in the order of the list; -1: it begins a sequence */
  uint64_t key;
  int32_t n; /* positions that are filled */
  const int32_t *ids;
  struct ane_kv_page *page;
};
/* Calls fn for each page of the tree, the most recently used first, and so each behind the one that it continues. fn must not
 * change the tree. Ends at the first false. */
void ane_kv_prefixes_each(struct ane_kv_prefixes *t, bool (*fn)(void *arg, const struct ane_kv_prefix *p), void *arg);

#endif
