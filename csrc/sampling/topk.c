/* Selection by radix: three histograms find the value of the k-th best exactly, a last pass collects. No scratch beyond
 * the histogram, and no input on which it is slow, as quickselect and heaps have. */
#include "sampling/sampling.h"

#include <string.h>

enum { RADIX_BITS = 11, BINS = 1 << RADIX_BITS };

/* Order-preserving integer of a float: negative ones have all bits flipped, others the sign bit. NaN is 0, below
 * -infinity; -0 equals 0, as adding 0 makes it. */
static inline uint32_t key_of(float v) {
  uint32_t bits;
  v += 0.0f;
  if (v != v) return 0;
  memcpy(&bits, &v, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline bool better(struct ane_ranked a, struct ane_ranked b) {
  uint32_t ka = key_of(a.value), kb = key_of(b.value);
  return ka != kb ? ka > kb : a.id < b.id;
}

/* The key of the k-th best (k >= 1); *equal gets how many of the k have exactly this key. */
static uint32_t threshold(const float *row, int32_t n, int32_t k, int32_t *equal) {
  static const int shifts[] = {21, 10, 0};
  uint32_t prefix = 0, known = 0; /* the bits found so far, and their mask */
  int32_t left = k;
  for (size_t level = 0; level < ANE_COUNT(shifts); level++) {
    uint32_t count[BINS] = {0}, mask = level == 2 ? 1023 : BINS - 1;
    int shift = shifts[level];
    for (int32_t i = 0; i < n; i++) {
      uint32_t key = key_of(row[i]);
      if ((key & known) == prefix) count[key >> shift & mask]++;
    }
    uint32_t bin = mask;
    while (count[bin] < (uint32_t)left) left -= (int32_t)count[bin--];
    prefix |= bin << shift;
    known |= mask << shift;
  }
  *equal = left;
  return prefix;
}

/* Moves heap[at] down: the worst is at the root. */
static void sift(struct ane_ranked *heap, int32_t at, int32_t n) {
  struct ane_ranked moved = heap[at];
  for (int64_t child; (child = 2 * (int64_t)at + 1) < n; at = (int32_t)child) {
    if (child + 1 < n && better(heap[child], heap[child + 1])) child++;
    if (!better(moved, heap[child])) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

/* Heapsort, best first: as fast in the worst case, and in place. */
static void sort(struct ane_ranked *a, int32_t n) {
  for (int32_t i = n / 2; i-- > 0;) sift(a, i, n);
  for (int32_t end = n; --end > 0;) {
    struct ane_ranked worst = a[0];
    a[0] = a[end];
    a[end] = worst;
    sift(a, 0, end);
  }
}

void ane_topk(const float *row, int32_t n, int32_t k, struct ane_ranked *out) {
  if (k <= 0) return;
  int32_t equal, got = 0;
  uint32_t limit = threshold(row, n, k, &equal);
  for (int32_t i = 0; i < n && got < k; i++) {
    uint32_t key = key_of(row[i]);
    if (key > limit || (key == limit && equal-- > 0)) out[got++] = (struct ane_ranked){i, row[i]};
  }
  sort(out, k);
}

struct ane_ranked ane_best(const float *row, int32_t n) {
  struct ane_ranked best = {0, row[0]};
  for (int32_t i = 1; i < n; i++)
    if (row[i] > best.value || (best.value != best.value && row[i] == row[i])) best = (struct ane_ranked){i, row[i]};
  return best;
}
