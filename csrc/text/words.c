/* WordPiece, and the model of whole words. */
#include "text/text_internal.h"

ane_status ane_word_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  int32_t id = ane_model_token(run->t, s, len, run->special);
  return id >= 0 ? ane_emit(run, id, s, len, err) : ane_emit_unknown(run, s, len, NULL, err);
}

ane_status ane_wordpiece_init(struct ane_tokenizer *t, struct ane_error *err) {
  ane_status st = ane_tree_init(t, err);
  if (st) return st;
  t->tree_inside = t->tree;
  for (size_t i = 0; i < t->prefix.len && t->tree_inside; i++)
    t->tree_inside = ane_tree_child(t, t->tree_inside, (uint8_t)t->prefix.data[i]);
  return ANE_OK;
}

/* May the model produce this token? */
static bool is_made(const struct ane_encode_run *run, int32_t id) {
  ane_token_type type = (ane_token_type)run->t->types[id];
  return type == ANE_TOKEN_NORMAL || type == ANE_TOKEN_USER || (run->special && type == ANE_TOKEN_CONTROL);
}

/* Returns the length of the longest token at the start of s[at..len), with the prefix if at > 0. 0: there is none. */
static size_t longest(const struct ane_encode_run *run, const char *s, size_t at, size_t len, int32_t *id) {
  const struct ane_tokenizer *t = run->t;
  const struct ane_prefix_node *node = at ? t->tree_inside : t->tree;
  size_t length = 0;
  for (size_t n = 1; node && at + n <= len; n++) {
    node = ane_tree_child(t, node, (uint8_t)s[at + n - 1]);
    bool cut = at + n < len && ((unsigned char)s[at + n] & 0xC0) == 0x80; /* not a character boundary */
    if (!node || node->token < 0 || cut || !is_made(run, node->token)) continue;
    *id = node->token;
    length = n;
  }
  return length;
}

static size_t characters(const char *s, size_t len) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xC0) != 0x80;
  return n;
}

ane_status ane_wordpiece_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  struct ane_encoding *e = run->out;
  size_t n = 0, had = e->n;
  ane_status st = ANE_OK;
  if (characters(s, len) > run->t->max_chars) return ane_emit_unknown(run, s, len, NULL, err);
  for (size_t at = 0; at < len && !st; at += n) {
    int32_t id = ANE_NO_TOKEN;
    n = longest(run, s, at, len, &id);
    if (!n) break;
    st = ane_emit(run, id, s + at, n, err);
  }
  if (st || n) return st;
  e->n = had; /* one unknown part makes the whole word unknown */
  return ane_emit_unknown(run, s, len, NULL, err);
}
