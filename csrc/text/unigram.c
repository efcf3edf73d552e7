/* The unigram model (Kudo 2018): Viterbi's algorithm finds the segmentation of a piece with the largest sum of scores. A
 * character without a token costs a penalty below the lowest score. Of equal sums the first one found wins, with starts from left
 * to right and lengths from short to long, as in the tokenizers library and in SentencePiece (unigram_model.cc, EncodeOptimized).
 * */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <float.h>

#define UNK_PENALTY 10.0

ane_status ane_unigram_init(struct ane_tokenizer *t, struct ane_error *err) {
  double low = DBL_MAX, high = t->single ? (double)FLT_MIN : 0; /* SentencePiece starts the maximum at FLT_MIN */
  for (uint32_t i = 0; i < t->n; i++) {
    bool counts =
        t->single ? t->types[i] == ANE_TOKEN_NORMAL : !(t->flags && t->flags[i] & ANE_ADDED_OUTSIDE) && t->pieces[i].len;
    if (counts) low = ANE_MIN(low, t->scores[i]);
    if (counts) high = ANE_MAX(high, t->scores[i]);
  }
  t->bonus = high;
  t->unk_score = t->single ? (double)((float)low - (float)UNK_PENALTY) : low - UNK_PENALTY;
  return ane_tree_init(t, err);
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
  for (size_t i = p; i < len && step > 0 && (node = ane_tree_child(t, node, (uint8_t)s[i])); i++) {
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
