/* Byte pair encoding (Sennrich, Haddow, Birch 2016) with merges looked up by ids: (left, right) -> (rank, merged). */
#include "text/text_internal.h"

#include <string.h>

static size_t slot_of(const struct ane_tokenizer *t, uint64_t key) {
  size_t i = (size_t)((key * 0x9E3779B97F4A7C15u) >> 32) & t->pair_mask;
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

/* A piece that merges may join or make. */
static int32_t part(const struct ane_tokenizer *t, const char *s, size_t len) {
  int32_t id = ane_tokenizer_id(t, s, len);
  return id >= 0 && t->types[id] != ANE_TOKEN_CONTROL && t->types[id] != ANE_TOKEN_UNKNOWN ? id : ANE_NO_TOKEN;
}

static ane_status add_merge(struct ane_tokenizer *t, struct ane_text m, size_t rank, struct ane_buffer *both,
                            struct ane_error *err) {
  /* A part may begin with the space itself where the alphabet has one: the separator is never the first byte. */
  const char *gap = m.len > 2 ? memchr(m.data + 1, ' ', m.len - 2) : NULL;
  if (!gap) return ane_fail(err, ANE_FORMAT, "merge %zu is not two tokens with a space between", rank);
  size_t left = (size_t)(gap - m.data), right = m.len - left - 1;
  both->size = 0;
  if (!ane_buffer_append(both, m.data, left) || !ane_buffer_append(both, gap + 1, right))
    return ane_fail(err, ANE_NOMEM, "no memory for merges");
  int32_t a = part(t, m.data, left), b = part(t, gap + 1, right), c = part(t, (const char *)both->data, both->size);
  if (a < 0 || b < 0 || c < 0) return ANE_OK;
  uint64_t key = (uint64_t)a << 32 | (uint32_t)b;
  struct ane_pair_slot *s = &t->pairs[slot_of(t, key)];
  if (s->key != key) *s = (struct ane_pair_slot){key, (uint32_t)rank, c};
  return ANE_OK;
}

ane_status ane_bpe_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  size_t room = 16;
  if (d->n_merges >= UINT32_MAX) return ane_fail(err, ANE_FORMAT, "%zu merges", d->n_merges);
  while (room < d->n_merges + d->n_merges / 2) room *= 2;
  t->pairs = ane_arena_array(&t->arena, room, sizeof *t->pairs);
  if (!t->pairs) return ane_fail(err, ANE_NOMEM, "no memory for %zu merges", d->n_merges);
  t->pair_mask = room - 1;
  for (size_t i = 0; i < room; i++) t->pairs[i].key = UINT64_MAX;
  struct ane_buffer both = {0};
  ane_status st = ANE_OK;
  for (size_t i = 0; i < d->n_merges && !st; i++) st = add_merge(t, d->merges[i], i, &both, err);
  ane_buffer_free(&both);
  return st;
}

/* The token of the whole piece where the rule asks for it. */
static ane_status whole_token(struct ane_encode_run *run, const char *s, size_t len, int32_t *id, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  *id = ANE_NO_TOKEN;
  if (t->whole == ANE_WHOLE_NEVER || len > t->max_len) return ANE_OK;
  if (t->whole == ANE_WHOLE_NEWLINES)
    for (size_t i = 0; i < len; i++)
      if (s[i] != '\n') return ANE_OK;
  if (!t->byte_level) {
    *id = ane_model_token(t, s, len);
    return ANE_OK;
  }
  run->spelled.size = 0;
  if (!ane_alphabet_encode(s, len, &run->spelled)) return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  *id = ane_model_token(t, (const char *)run->spelled.data, run->spelled.size);
  return ANE_OK;
}

/* One symbol per byte, or per character that is a token and per byte of one that is not. */
static void set_symbols(const struct ane_tokenizer *t, struct ane_symbol *sym, const char *s, uint32_t n) {
  uint32_t prev = UINT32_MAX;
  for (uint32_t p = 0; p < n; prev = p, p += sym[p].len) {
    int step = t->byte_level ? 1 : ane_utf8_step(s + p, n - p, NULL);
    int32_t id = t->byte_level ? t->byte_ids[(unsigned char)s[p]] : ane_model_token(t, s + p, step > 0 ? (uint32_t)step : 1);
    if (!t->byte_level && id < 0 && (t->byte_ids[(unsigned char)s[p]] >= 0 || step < 0)) {
      step = 1;
      id = t->byte_ids[(unsigned char)s[p]];
    }
    sym[p] = (struct ane_symbol){id, (uint32_t)step, prev, ANE_NO_RANK, ANE_NO_TOKEN};
  }
}

ane_status ane_bpe_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  int32_t id;
  ane_status st = whole_token(run, s, len, &id, err);
  if (st) return st;
  if (id >= 0) return ane_emit(run, id, s, len, err);
  if (len >= UINT32_MAX) return ane_fail(err, ANE_RANGE, "a piece of %zu bytes without a place to split is too long", len);
  if (!ane_merge_reserve(&run->work, len)) return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  set_symbols(run->t, run->work.symbols, s, (uint32_t)len);
  if (!ane_merge(&run->work, run->t, s, (uint32_t)len, pair))
    return ane_fail(err, ANE_NOMEM, "no memory for a piece of %zu bytes", len);
  return ane_emit_symbols(run, s, len, err);
}
