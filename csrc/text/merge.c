/* The merge loop of both BPE models. Symbols are indexed by their first byte, so a symbol's length leads to its neighbour. A heap
 * entry may be stale: it is valid only if the symbol at its position has its rank. A symbol may get the same rank again; then the
 * entry is valid, since the order depends only on rank and position. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <string.h>

enum { SHORT = 48 }; /* up to this many bytes, a scan for the lowest rank is faster than the heap */

bool ane_merge_reserve(struct ane_merge_work *w, size_t n) {
  if (n <= w->room) return true;
  size_t room = ANE_MAX(n, (size_t)256), bytes;
  if (!ane_mul_size(room, sizeof *w->symbols, &bytes)) return false;
  ane_free(w->symbols);
  w->symbols = ane_malloc(bytes);
  w->room = w->symbols ? room : 0;
  return w->symbols != NULL;
}

void ane_merge_free(struct ane_merge_work *w) {
  ane_free(w->symbols);
  ane_free(w->heap);
  *w = (struct ane_merge_work){0};
}

/* Sets rank and merged of the symbol at p. */
static inline void rate(struct ane_symbol *s, const struct ane_tokenizer *t, const char *piece, uint32_t n, uint32_t p,
                        ane_pair_fn pair) {
  uint32_t next = p + s[p].len;
  s[p].rank = next < n ? pair(t, piece + p, &s[p], &s[next], &s[p].merged) : ANE_NO_RANK;
}

static inline void join(struct ane_symbol *s, const struct ane_tokenizer *t, const char *piece, uint32_t n, uint32_t p,
                        ane_pair_fn pair) {
  s[p].id = s[p].merged;
  s[s[p].len + p].rank = ANE_NO_RANK; /* its entries in the heap are stale now */
  s[p].len += s[p + s[p].len].len;
  if (p + s[p].len < n) s[p + s[p].len].prev = p;
  rate(s, t, piece, n, p, pair);
  if (s[p].prev != UINT32_MAX) rate(s, t, piece, n, s[p].prev, pair);
}

static void merge_short(struct ane_symbol *s, const struct ane_tokenizer *t, const char *piece, uint32_t n, ane_pair_fn pair) {
  for (;;) {
    uint32_t best = 0, rank = ANE_NO_RANK;
    for (uint32_t p = 0; p < n; p += s[p].len)
      if (s[p].rank < rank) {
        rank = s[p].rank;
        best = p;
      }
    if (rank == ANE_NO_RANK) return;
    join(s, t, piece, n, best, pair);
  }
}

static void sift_down(uint64_t *h, size_t n, size_t i) {
  uint64_t v = h[i];
  for (size_t c; (c = 2 * i + 1) < n; i = c) {
    if (c + 1 < n && h[c + 1] < h[c]) c++;
    if (v <= h[c]) break;
    h[i] = h[c];
  }
  h[i] = v;
}

static bool push(struct ane_merge_work *w, uint32_t p) {
  uint64_t v = (uint64_t)w->symbols[p].rank << 32 | p;
  if (w->symbols[p].rank == ANE_NO_RANK) return true;
  if (w->n_heap == w->heap_room) {
    size_t room = w->heap_room ? w->heap_room + w->heap_room / 2 : 256, bytes;
    uint64_t *heap = ane_mul_size(room, sizeof *heap, &bytes) ? ane_realloc(w->heap, bytes) : NULL;
    if (!heap) return false;
    w->heap = heap;
    w->heap_room = room;
  }
  size_t i = w->n_heap++;
  for (; i && w->heap[(i - 1) / 2] > v; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = v;
  return true;
}

static uint64_t pop(struct ane_merge_work *w) {
  uint64_t top = w->heap[0];
  w->heap[0] = w->heap[--w->n_heap];
  if (w->n_heap) sift_down(w->heap, w->n_heap, 0);
  return top;
}

static bool merge_long(struct ane_merge_work *w, const struct ane_tokenizer *t, const char *piece, uint32_t n, ane_pair_fn pair) {
  struct ane_symbol *s = w->symbols;
  w->n_heap = 0;
  for (uint32_t p = 0; p < n; p += s[p].len)
    if (!push(w, p)) return false;
  while (w->n_heap) {
    uint64_t top = pop(w);
    uint32_t p = (uint32_t)top;
    if (s[p].rank != top >> 32) continue;
    join(s, t, piece, n, p, pair);
    if (!push(w, p) || (s[p].prev != UINT32_MAX && !push(w, s[p].prev))) return false;
  }
  return true;
}

bool ane_merge(struct ane_merge_work *w, const struct ane_tokenizer *t, const char *piece, uint32_t n, ane_pair_fn pair) {
  for (uint32_t p = 0; p < n; p += w->symbols[p].len) rate(w->symbols, t, piece, n, p, pair);
  if (n > SHORT) return merge_long(w, t, piece, n, pair);
  merge_short(w->symbols, t, piece, n, pair);
  return true;
}
