/* Selection with a heap of the k best entries so far, the worst at its root: most of the n entries cost one comparison. */
#include "sampling/sampling.h"

static inline bool better(struct ane_ranked a, struct ane_ranked b) {
  if (a.value == b.value || (a.value != a.value && b.value != b.value)) return a.id < b.id;
  return a.value > b.value || b.value != b.value;
}

/* Sifts heap[at] down. */
static void sift(struct ane_ranked *heap, int32_t at, int32_t n) {
  struct ane_ranked moved = heap[at];
  for (int64_t child; (child = 2 * (int64_t)at + 1) < n; at = (int32_t)child) {
    if (child + 1 < n && better(heap[child], heap[child + 1])) child++;
    if (!better(moved, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

/* Heapsort: the root, which is the worst, goes to the end. */
static void sort(struct ane_ranked *heap, int32_t n) {
  for (int32_t end = n; --end > 0;) {
    struct ane_ranked worst = heap[0];
    heap[0] = heap[end];
    heap[end] = worst;
    sift(heap, 0, end);
  }
}

void ane_rank(struct ane_ranked *list, int32_t n) {
  for (int32_t i = n / 2; i-- > 0;) sift(list, i, n);
  sort(list, n);
}

void ane_topk(const float *row, int32_t n, int32_t k, struct ane_ranked *out) {
  if (k <= 0) return;
  for (int32_t i = 0; i < k; i++) out[i] = (struct ane_ranked){i, row[i]};
  for (int32_t i = k / 2; i-- > 0;) sift(out, i, k);
  for (int32_t i = k; i < n; i++) {
    if (row[i] <= out[0].value) continue; /* of equal values the earlier one is better */
    struct ane_ranked next = {i, row[i]};
    if (!better(next, out[0])) continue; /* one of them is NaN */
    out[0] = next;
    sift(out, 0, k);
  }
  sort(out, k);
}

/* The best of `best` and row[from..end). */
static inline struct ane_ranked better_of(const float *row, int32_t from, int32_t end, struct ane_ranked best) {
  for (int32_t i = from; i < end; i++) {
    if (row[i] <= best.value) continue;
    struct ane_ranked next = {i, row[i]};
    if (better(next, best)) best = next;
  }
  return best;
}

/* Compilers vectorise the comparison of a block. Few blocks have a better entry. */
static ANE_WIDE struct ane_ranked best_of(const float *row, int32_t n) {
  enum { BLOCK = 32 };
  struct ane_ranked best = {0, row[0]};
  int32_t from = 0;
  for (; from + BLOCK <= n; from += BLOCK) {
    int32_t above = 0; /* or NaN */
    for (int32_t i = 0; i < BLOCK; i++) above += !(row[from + i] <= best.value);
    if (above) best = better_of(row, from, from + BLOCK, best);
  }
  return better_of(row, from, n, best);
}

struct ane_ranked ane_best(const float *row, int32_t n) {
  return best_of(row, n);
}
