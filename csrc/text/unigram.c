/* The unigram model (Kudo 2018): Viterbi's algorithm finds the segmentation of a piece with the largest sum of scores. A
 * character without a token costs a penalty below the lowest score. Of equal sums the first one found wins, with starts from left
 * to right and lengths from short to long, as in the tokenizers library and in SentencePiece (unigram_model.cc, EncodeOptimized).
 * */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNK_PENALTY 10.0

/* ---- Prefix tree -------------------------------------------------------------------------------------------------*/

static int compare(const void *a, const void *b) {
  const struct ane_text *const *x = a, *const *y = b;
  size_t n = ANE_MIN((*x)->len, (*y)->len);
  int order = memcmp((*x)->data, (*y)->data, n);
  if (!order && (*x)->len != (*y)->len) order = (*x)->len < (*y)->len ? -1 : 1;
  return order ? order : *x < *y ? -1 : *x > *y; /* of equal spellings the last one counts */
}

static bool in_model(const struct ane_tokenizer *t, uint32_t i) {
  if (!t->pieces[i].len || (t->flags && t->flags[i] & ANE_ADDED_OUTSIDE)) return false;
  bool made = t->types[i] == ANE_TOKEN_NORMAL || t->types[i] == ANE_TOKEN_USER;
  return made || (!t->single && t->types[i] != ANE_TOKEN_UNUSED);
}

/* A node to build: sorted[from..to) share the first `depth` bytes. */
struct range {
  uint32_t from, to;
};

/* Makes the children of a node at `depth` from its range of sorted spellings. A spelling that ends here sets the node's token. */
static uint32_t expand(const struct ane_tokenizer *t, const struct ane_text **sorted, struct range r, size_t depth,
                       struct ane_prefix_node *node, struct ane_prefix_node *children, struct range *ranges) {
  uint32_t n = 0;
  for (; r.from < r.to && sorted[r.from]->len == depth; r.from++) node->token = (int32_t)(sorted[r.from] - t->pieces);
  for (uint32_t i = r.from; i < r.to; n++) {
    uint8_t byte = (uint8_t)sorted[i]->data[depth];
    children[n] = (struct ane_prefix_node){ANE_NO_TOKEN, 0, 0, byte};
    ranges[n].from = i;
    while (i < r.to && (uint8_t)sorted[i]->data[depth] == byte) i++;
    ranges[n].to = i;
  }
  return n;
}

/* Builds level by level, so that the children of a node are consecutive. room: bytes of all spellings, plus one. */
static bool build(struct ane_tokenizer *t, const struct ane_text **sorted, uint32_t n, size_t room) {
  struct range *ranges = ane_malloc(room * sizeof *ranges);
  struct ane_prefix_node *nodes = ranges ? ane_malloc(room * sizeof *nodes) : NULL;
  size_t used = 1, depth = 0;
  if (nodes) {
    nodes[0] = (struct ane_prefix_node){ANE_NO_TOKEN, 0, 0, 0};
    ranges[0] = (struct range){0, n};
    for (size_t level = 0, end; level < used; level = end, depth++) {
      end = used;
      for (size_t i = level; i < end; i++) {
        nodes[i].child = (uint32_t)used;
        nodes[i].n = (uint16_t)expand(t, sorted, ranges[i], depth, &nodes[i], nodes + used, ranges + used);
        used += nodes[i].n;
      }
    }
    t->tree = ane_arena_array(&t->arena, used, sizeof *nodes);
    if (t->tree) memcpy(t->tree, nodes, used * sizeof *nodes);
  }
  ane_free(ranges);
  ane_free(nodes);
  return t->tree != NULL;
}

ane_status ane_unigram_init(struct ane_tokenizer *t, struct ane_error *err) {
  const struct ane_text **sorted = ane_malloc((t->n + (size_t)1) * sizeof *sorted);
  double low = DBL_MAX, high = t->single ? (double)FLT_MIN : 0; /* SentencePiece starts the maximum at FLT_MIN */
  size_t room = 2;
  uint32_t n = 0;
  if (!sorted) return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
  for (uint32_t i = 0; i < t->n; i++) {
    bool counts =
        t->single ? t->types[i] == ANE_TOKEN_NORMAL : !(t->flags && t->flags[i] & ANE_ADDED_OUTSIDE) && t->pieces[i].len;
    if (counts) low = ANE_MIN(low, t->scores[i]);
    if (counts) high = ANE_MAX(high, t->scores[i]);
    if (!in_model(t, i)) continue;
    sorted[n++] = &t->pieces[i];
    room += t->pieces[i].len;
  }
  qsort(sorted, n, sizeof *sorted, compare);
  t->bonus = high;
  t->unk_score = t->single ? (double)((float)low - (float)UNK_PENALTY) : low - UNK_PENALTY;
  bool ok = room < UINT32_MAX && build(t, sorted, n, room);
  ane_free(sorted);
  return ok ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
}

static const struct ane_prefix_node *descend(const struct ane_tokenizer *t, const struct ane_prefix_node *node, uint8_t byte) {
  const struct ane_prefix_node *base = t->tree + node->child;
  size_t n = node->n;
  while (n > 1) {
    size_t half = n / 2;
    if (base[half].byte <= byte) base += half;
    n -= half;
  }
  return n && base->byte == byte ? base : NULL;
}

/* ---- Search ------------------------------------------------------------------------------------------------------*/

static void offer(const struct ane_tokenizer *t, struct ane_unigram_node *nodes, size_t from, size_t to, double score,
                  int32_t id) {
  double sum = score + nodes[from].score;
  if (t->single && id == t->unk) sum = (double)(float)sum; /* SentencePiece compares the others in double precision */
  struct ane_unigram_node *end = &nodes[to];
  if (end->start != UINT32_MAX && !(sum > end->score)) return;
  *end = (struct ane_unigram_node){t->single ? (double)(float)sum : sum, (uint32_t)from, id};
}

/* Offers all tokens that begin at p, and the unknown token if no token covers exactly the character. */
static size_t offer_all(struct ane_encode_run *run, const char *s, size_t p, size_t len) {
  const struct ane_tokenizer *t = run->t;
  const struct ane_prefix_node *node = t->tree;
  int step = ane_utf8_step(s + p, len - p, NULL);
  size_t one = step > 0 ? (size_t)step : 1;
  bool covered = false;
  for (size_t i = p; i < len && step > 0 && (node = descend(t, node, (uint8_t)s[i])); i++) {
    int32_t id = node->token;
    if (id < 0 || (t->types[id] == ANE_TOKEN_CONTROL && !run->special)) continue;
    double score = t->scores[id];
    if (t->single && t->types[id] == ANE_TOKEN_USER)
      score = (double)(float)((float)(i + 1 - p) * (float)t->bonus) - 0.1;
    else if (t->single)
      score = (double)(float)score;
    offer(t, run->nodes, p, i + 1, score, id);
    covered = covered || i + 1 - p == one;
  }
  if (!covered) offer(t, run->nodes, p, p + one, t->unk_score, t->unk);
  return one;
}

/* ---- Output ------------------------------------------------------------------------------------------------------*/

/* Emits unknown text, which may happen to spell a token. */
static ane_status emit_unknown(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  int32_t id = run->t->single ? ANE_NO_TOKEN : ane_model_token(run->t, s, len, run->special);
  return id >= 0 ? ane_emit(run, id, s, len, err) : ane_emit_unknown(run, s, len, NULL, err);
}

/* Emits the best path, linked forwards: nodes[p].start is the end of the token that begins at p. Adjacent unknown characters are
 * emitted together. */
static ane_status emit_path(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  const struct ane_unigram_node *nodes = run->nodes;
  int32_t unk = run->t->unk;
  ane_status st = ANE_OK;
  for (size_t p = 0, end; p < len && !st; p = end) {
    end = nodes[p].start;
    if (nodes[p].id != unk) {
      st = ane_emit(run, nodes[p].id, s + p, end - p, err);
      continue;
    }
    while (end < len && nodes[end].id == unk) end = nodes[end].start;
    st = emit_unknown(run, s + p, end - p, err);
  }
  return st;
}

ane_status ane_unigram_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  if (len >= UINT32_MAX) return ane_fail(err, ANE_RANGE, "a piece of %zu bytes without a place to split is too long", len);
  if (len + 1 > run->nodes_room) {
    size_t room = ANE_MAX(len + 1, run->nodes_room * 2), bytes;
    ane_free(run->nodes);
    run->nodes = ane_mul_size(room, sizeof *run->nodes, &bytes) ? ane_malloc(bytes) : NULL;
    run->nodes_room = run->nodes ? room : 0;
    if (!run->nodes) return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  }
  for (size_t i = 0; i <= len; i++) run->nodes[i] = (struct ane_unigram_node){0, UINT32_MAX, ANE_NO_TOKEN};
  for (size_t p = 0; p < len;) p += offer_all(run, s, p, len);
  /* Reverses the links in place: each node receives the end and the id of the token that begins there. */
  uint32_t end = (uint32_t)len;
  struct ane_unigram_node at = run->nodes[len];
  while (end) {
    uint32_t start = at.start;
    struct ane_unigram_node before = run->nodes[start];
    run->nodes[start].start = end;
    run->nodes[start].id = at.id;
    at = before;
    end = start;
  }
  return emit_path(run, s, len, err);
}
