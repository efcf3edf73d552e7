/* Byte pair encoding (Sennrich, Haddow, Birch 2016). Merges are looked up by ids: (left, right) -> (rank, merged). */
#include "text/text_internal.h"

#include <string.h>

/* The seed prevents that a file is crafted whose pairs all collide. */
static size_t slot_of(const struct ane_tokenizer *t, uint64_t key) {
  uint64_t hash = (key ^ t->pair_seed) * 0x9E3779B97F4A7C15u;
  size_t i = (size_t)(((hash ^ hash >> 29) * 0xBF58476D1CE4E5B9u) >> 32) & t->pair_mask;
  while (t->pairs[i].key != key && t->pairs[i].key != UINT64_MAX) i = (i + 1) & t->pair_mask;
  return i;
}

static uint32_t pair(const struct ane_tokenizer *t, const char *at, const struct ane_symbol *a, const struct ane_symbol *b,
                     int32_t *merged) {
  (void)at;
  if (a->id < 0 || b->id < 0) return ANE_NO_RANK;
  uint64_t key = (uint64_t)a->id << 32 | (uint32_t)b->id;
  const struct ane_pair_slot *s = &t->pairs[slot_of(t, key)];
  *merged = s->merged;
  return s->key == key ? s->rank : ANE_NO_RANK;
}

/* Returns the id of a token that a merge joins or makes; ANE_NO_TOKEN if there is none, or if the model may not produce it. */
static int32_t part(const struct ane_tokenizer *t, const char *s, size_t len) {
  int32_t id = ane_tokenizer_id(t, s, len);
  if (id < 0 || (t->flags && t->flags[id] & ANE_ADDED_OUTSIDE)) return ANE_NO_TOKEN;
  bool made = t->library_rules || (t->types[id] != ANE_TOKEN_CONTROL && t->types[id] != ANE_TOKEN_UNKNOWN);
  return made ? id : ANE_NO_TOKEN;
}

static ane_status no_token(const struct ane_token_pair *m, size_t rank, const char *which, struct ane_error *err) {
  return ane_fail(err, ANE_FORMAT, "merge %zu, '%.*s' and '%.*s': %s is not a token", rank, (int)ANE_MIN(m->left.len, (size_t)40),
                  m->left.data, (int)ANE_MIN(m->right.len, (size_t)40), m->right.data, which);
}

static ane_status add_merge(struct ane_tokenizer *t, const struct ane_token_pair *m, size_t rank, struct ane_buffer *both,
                            struct ane_error *err) {
  size_t skip = ANE_MIN(t->prefix.len, m->right.len);
  both->size = 0;
  if (!ane_buffer_append(both, m->left.data, m->left.len) || !ane_buffer_append(both, m->right.data + skip, m->right.len - skip))
    return ane_fail(err, ANE_NOMEM, "no memory for merges");
  int32_t a = part(t, m->left.data, m->left.len), b = part(t, m->right.data, m->right.len),
          c = part(t, (const char *)both->data, both->size);
  if (t->library_rules && (a < 0 || b < 0 || c < 0))
    return no_token(m, rank, a < 0 ? "the first" : b < 0 ? "the second" : "what they make", err);
  if (a < 0 || b < 0 || c < 0) return ANE_OK;
  uint64_t key = (uint64_t)a << 32 | (uint32_t)b;
  struct ane_pair_slot *s = &t->pairs[slot_of(t, key)];
  if (s->key != key || t->library_rules) *s = (struct ane_pair_slot){key, (uint32_t)rank, c};
  return ANE_OK;
}

ane_status ane_bpe_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  size_t room = 16;
  if (d->n_merges >= UINT32_MAX) return ane_fail(err, ANE_FORMAT, "%zu merges", d->n_merges);
  while (room < d->n_merges + d->n_merges / 2) room *= 2;
  t->pairs = ane_arena_array(&t->arena, room, sizeof *t->pairs);
  if (!t->pairs) return ane_fail(err, ANE_NOMEM, "no memory for %zu merges", d->n_merges);
  t->pair_mask = room - 1;
  t->pair_seed = (uint64_t)(uintptr_t)t->pairs * 0x9E3779B97F4A7C15u | 1;
  for (size_t i = 0; i < room; i++) t->pairs[i].key = UINT64_MAX;
  struct ane_buffer both = {0};
  ane_status st = ANE_OK;
  for (size_t i = 0; i < d->n_merges && !st; i++) st = add_merge(t, &d->merges[i], i, &both, err);
  ane_buffer_free(&both);
  return st;
}

/* Emits the token of the whole piece, if the rule applies. */
static ane_status whole_token(struct ane_encode_run *run, const char *s, size_t len, int32_t *id, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  *id = ANE_NO_TOKEN;
  if (t->whole == ANE_WHOLE_NEVER || len > t->max_len) return ANE_OK;
  if (t->whole == ANE_WHOLE_NEWLINES)
    for (size_t i = 0; i < len; i++)
      if (s[i] != '\n') return ANE_OK;
  if (!t->byte_level) {
    *id = ane_model_token(t, s, len, run->special);
    return ANE_OK;
  }
  run->spelled.size = 0;
  if (!ane_alphabet_encode(s, len, &run->spelled)) return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  *id = ane_model_token(t, (const char *)run->spelled.data, run->spelled.size, run->special);
  return ANE_OK;
}

/* The token of one character, s[0..n), of a piece that ends at `end`, with a prefix or suffix depending on its position. */
static int32_t character(struct ane_encode_run *run, const char *piece, const char *s, size_t n, const char *end) {
  const struct ane_tokenizer *t = run->t;
  struct ane_text prefix = s > piece ? t->prefix : (struct ane_text){0}, suffix = s + n == end ? t->suffix : (struct ane_text){0};
  if (!prefix.len && !suffix.len) return ane_model_token(t, s, n, run->special);
  struct ane_buffer *b = &run->spelled;
  b->size = 0;
  if (!ane_buffer_append(b, prefix.data, prefix.len) || !ane_buffer_append(b, s, n) ||
      !ane_buffer_append(b, suffix.data, suffix.len))
    return ANE_NO_TOKEN;
  return ane_model_token(t, (const char *)b->data, b->size, run->special);
}

/* Is there a token for each of these bytes? */
static bool has_bytes(const struct ane_tokenizer *t, const char *s, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (t->byte_ids[(unsigned char)s[i]] < 0) return false;
  return true;
}

/* Makes one symbol per character that is a token, otherwise one per byte. */
static void set_symbols(struct ane_encode_run *run, struct ane_symbol *sym, const char *s, uint32_t n) {
  const struct ane_tokenizer *t = run->t;
  uint32_t prev = UINT32_MAX, bytes_to = 0;
  for (uint32_t p = 0; p < n; prev = p, p += sym[p].len) {
    int step = t->byte_level ? 1 : ane_utf8_step(s + p, n - p, NULL);
    uint32_t len = step > 0 ? (uint32_t)step : 1;
    int32_t id = ANE_NO_TOKEN;
    if (t->byte_level)
      id = t->byte_ids[(unsigned char)s[p]];
    else if (step > 0 && p >= bytes_to)
      id = character(run, s, s + p, len, s + n);
    if (!t->byte_level && id < 0 && (p < bytes_to || has_bytes(t, s + p, len))) {
      if (p >= bytes_to) bytes_to = p + len;
      len = 1;
      id = t->byte_ids[(unsigned char)s[p]];
    }
    sym[p] = (struct ane_symbol){id, len, prev, ANE_NO_RANK, ANE_NO_TOKEN};
  }
}

/* Attaches skipped symbols to the previous symbol, and those at the beginning to the next one, so that their neighbours can
 * merge. false: no symbol is left. */
static bool close_gaps(struct ane_symbol *sym, uint32_t n) {
  uint32_t last = UINT32_MAX, lost = 0;
  for (uint32_t p = 0, len; p < n; p += len) {
    struct ane_symbol s = sym[p];
    len = s.len;
    if (s.id < 0 && last == UINT32_MAX) {
      lost += len;
    } else if (s.id < 0) {
      sym[last].len += len;
    } else {
      uint32_t at = p - (last == UINT32_MAX ? lost : 0);
      sym[at] = (struct ane_symbol){s.id, p + len - at, last, ANE_NO_RANK, ANE_NO_TOKEN};
      last = at;
    }
  }
  return last != UINT32_MAX;
}

ane_status ane_bpe_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  int32_t id;
  ane_status st = whole_token(run, s, len, &id, err);
  if (st) return st;
  if (id >= 0) return ane_emit(run, id, s, len, err);
  if (len >= UINT32_MAX) return ane_fail(err, ANE_RANGE, "a piece of %zu bytes without a place to split is too long", len);
  if (!ane_merge_reserve(&run->work, len)) return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  set_symbols(run, run->work.symbols, s, (uint32_t)len);
  if (run->t->library_rules && run->t->unk == ANE_NO_TOKEN && !run->t->unk_needed &&
      !close_gaps(run->work.symbols, (uint32_t)len))
    return ANE_OK;
  if (!ane_merge(&run->work, run->t, s, (uint32_t)len, pair))
    return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  return ane_emit_symbols(run, s, len, err);
}
