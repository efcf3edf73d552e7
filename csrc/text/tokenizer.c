/* The tokenizer: its life cycle, and the encoding pipeline. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <string.h>

/* ---- Creation and destruction ------------------------------------------------------------------------------------*/

static bool copy_text(struct ane_arena *arena, struct ane_text s, struct ane_text *out) {
  *out = (struct ane_text){ane_arena_strndup(arena, s.len ? s.data : "", s.len), s.len};
  return out->data != NULL;
}

/* Copies the ids before or after a text: the list, or the single token. */
static bool copy_ends(struct ane_tokenizer *t, const int32_t *list, uint32_t n, int32_t one, int32_t **out, uint32_t *n_out) {
  if (!n && one != ANE_NO_TOKEN) {
    list = &one;
    n = 1;
  }
  *out = ane_arena_array(&t->arena, n, sizeof **out);
  if (*out && n) memcpy(*out, list, n * sizeof **out);
  *n_out = n;
  return *out != NULL;
}

static ane_status init_model(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  switch (d->model) {
    case ANE_MODEL_MERGES: return ane_bpe_init(t, d, err);
    case ANE_MODEL_SCORES: ane_spm_init(t); return ANE_OK;
    case ANE_MODEL_UNIGRAM: return ane_unigram_init(t, err);
    case ANE_MODEL_WORDPIECE: return ane_wordpiece_init(t, err);
    case ANE_MODEL_WORDS: break;
  }
  return ANE_OK;
}

/* Each step runs on every text or token, and a split calls the next one, so their number must be small. */
static ane_status check_steps(const struct ane_tokenizer_desc *d, struct ane_error *err) {
  const struct {
    const char *kind;
    uint32_t n;
  } lists[] = {{"normalizer", d->n_normalisers}, {"pre_tokenizer", d->n_splits}, {"decoder", d->n_decoders}};
  for (size_t i = 0; i < ANE_COUNT(lists); i++)
    if (lists[i].n > ANE_TEXT_STEPS)
      return ane_fail(err, ANE_RANGE, "%s: must have at most %d steps, but has %u", lists[i].kind, ANE_TEXT_STEPS,
                      (unsigned)lists[i].n);
  return ANE_OK;
}

static ane_status init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  ane_status st;
  t->model = d->model;
  t->byte_level = d->byte_level;
  t->fuse_unk = d->fuse_unk;
  t->unk_needed = d->unk_needed;
  t->library_rules = d->library_rules;
  t->single = d->single;
  t->whole = d->whole;
  t->max_chars = d->max_chars;
  t->unk = d->unk;
  bool scores = d->model == ANE_MODEL_SCORES || d->model == ANE_MODEL_UNIGRAM;
  if (scores && !d->scores) return ane_fail(err, ANE_FORMAT, "the vocabulary has no scores");
  if ((st = check_steps(d, err)) || (st = ane_vocab_init(t, d, err))) return st;
  if (!copy_text(&t->arena, d->prefix, &t->prefix) || !copy_text(&t->arena, d->suffix, &t->suffix) ||
      !copy_ends(t, d->head, d->n_head, d->bos, &t->head, &t->n_head) ||
      !copy_ends(t, d->tail, d->n_tail, d->eos, &t->tail, &t->n_tail))
    return ane_fail(err, ANE_NOMEM, "no memory for a tokenizer");
  if ((st = ane_stages_init(t, d, err)) || (st = ane_decode_init(t, d, err)) || (st = ane_added_init(t, err))) return st;
  return init_model(t, d, err);
}

ane_status ane_tokenizer_create(struct ane_tokenizer **out, const struct ane_tokenizer_desc *desc, struct ane_error *err) {
  *out = NULL;
  struct ane_tokenizer *t = ane_calloc(1, sizeof *t);
  if (!t) return ane_fail(err, ANE_NOMEM, "no memory for a tokenizer");
  ane_status st = init(t, desc, err);
  if (st)
    ane_tokenizer_destroy(t);
  else
    *out = t;
  return st;
}

void ane_tokenizer_destroy(struct ane_tokenizer *t) {
  if (!t) return;
  for (uint32_t i = 0; i < t->n_patterns; i++) ane_pattern_free(&t->patterns[i]);
  for (uint32_t i = 0; i < t->n_stages; i++) ane_change_close(&t->stages[i].change);
  for (uint32_t i = 0; i < t->n_normalisers; i++) ane_change_close(&t->normalisers[i]);
  ane_decode_close(t);
  ane_trie_free(&t->added);
  ane_trie_free(&t->late);
  ane_trie_free(&t->keep);
  ane_strmap_free(&t->by_piece);
  ane_arena_free(&t->arena);
  ane_free(t);
}

/* ---- Output ------------------------------------------------------------------------------------------------------*/

void ane_encoding_free(struct ane_encoding *e) {
  ane_free(e->ids);
  ane_free(e->spans);
  *e = (struct ane_encoding){0};
}

static bool grow(struct ane_encoding *e, bool spans) {
  size_t room = e->room ? e->room * 2 : 256, bytes;
  if (!ane_mul_size(room, sizeof *e->spans, &bytes)) return false;
  int32_t *ids = ane_realloc(e->ids, room * sizeof *ids);
  if (!ids) return false;
  e->ids = ids;
  if (spans) {
    struct ane_span *s = ane_realloc(e->spans, bytes);
    if (!s) return false;
    e->spans = s;
  }
  e->room = room;
  return true;
}

/* Appends an id with its span in the input. */
static ane_status append(struct ane_encode_run *run, int32_t id, size_t start, size_t end, struct ane_error *err) {
  struct ane_encoding *e = run->out;
  if (e->n == e->room && !grow(e, run->spans)) return ane_fail(err, ANE_NOMEM, "no memory for %zu tokens", e->n + 1);
  if (run->spans) e->spans[e->n] = (struct ane_span){start, end};
  e->ids[e->n++] = id;
  return ANE_OK;
}

static struct ane_span span_of(struct ane_encode_run *run, const char *piece, size_t len) {
  size_t at = (size_t)(piece - run->base);
  struct ane_span s = {at, at + len};
  if (run->aligned && run->spans) s = ane_aligned_span(run->aligned, at, at + len, &run->cursor);
  return (struct ane_span){s.start + run->offset, s.end + run->offset};
}

ane_status ane_emit(struct ane_encode_run *run, int32_t id, const char *piece, size_t len, struct ane_error *err) {
  if (id == ANE_NO_TOKEN) return ANE_OK;
  struct ane_span s = span_of(run, piece, len);
  return append(run, id, s.start, s.end, err);
}

ane_status ane_emit_unknown(struct ane_encode_run *run, const char *s, size_t len, bool *fused, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  bool bytes = !t->byte_level;
  ane_status st = ANE_OK;
  for (size_t i = 0; i < len && bytes; i++) bytes = t->byte_ids[(unsigned char)s[i]] >= 0;
  if (bytes) {
    for (size_t i = 0; i < len && !st; i++) st = ane_emit(run, t->byte_ids[(unsigned char)s[i]], s + i, 1, err);
    return st;
  }
  if (t->unk == ANE_NO_TOKEN && t->unk_needed)
    return ane_fail(err, ANE_FORMAT, "the text has characters without a token, and the vocabulary has no unknown token");
  if (fused && *fused && t->fuse_unk) {
    if (run->spans) run->out->spans[run->out->n - 1].end = span_of(run, s, len).end;
    return ANE_OK;
  }
  if (fused) *fused = t->unk != ANE_NO_TOKEN;
  return ane_emit(run, t->unk, s, len, err);
}

ane_status ane_emit_symbols(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err) {
  const struct ane_symbol *sym = run->work.symbols;
  ane_status st = ANE_OK;
  bool fused = false;
  for (size_t p = 0; p < len && !st; p += sym[p].len) {
    if (sym[p].id < 0) {
      st = ane_emit_unknown(run, piece + p, sym[p].len, &fused, err);
    } else {
      st = ane_emit(run, sym[p].id, piece + p, sym[p].len, err);
      fused = false;
    }
  }
  return st;
}

/* ---- Encoding ----------------------------------------------------------------------------------------------------*/

ane_status ane_model_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err) {
  switch (run->t->model) {
    case ANE_MODEL_MERGES: return ane_bpe_encode(run, piece, len, err);
    case ANE_MODEL_SCORES: return ane_spm_encode(run, piece, len, err);
    case ANE_MODEL_UNIGRAM: return ane_unigram_encode(run, piece, len, err);
    case ANE_MODEL_WORDPIECE: return ane_wordpiece_encode(run, piece, len, err);
    case ANE_MODEL_WORDS: return ane_word_encode(run, piece, len, err);
  }
  return ANE_OK;
}

/* Encodes normalised text, which may contain late added tokens. */
static ane_status encode_normalised(struct ane_encode_run *run, size_t len, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  const char *s = run->base;
  size_t done = 0, at = 0, start = 0, end = 0;
  ane_status st = ANE_OK;
  while (!st && t->late.n) {
    int32_t id = ane_added_next(t, &t->late, run->admitted, s, len, done, &at, &start, &end);
    if (id == ANE_NO_TOKEN) break;
    if (start > done) st = ane_stages_encode(run, s + done, start - done, err);
    if (!st) st = ane_emit(run, id, s + start, end - start, err);
    done = end;
  }
  return st || done == len ? st : ane_stages_encode(run, s + done, len - done, err);
}

/* Encodes text between two added tokens: text.data[start..end). */
static ane_status encode_fragment(struct ane_encode_run *run, struct ane_text text, size_t start, size_t end,
                                  struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  struct ane_change_context x = {&run->pattern_memory, &t->keep, t->types, ANE_MAX(run->limit - run->normalised, (size_t)1)};
  struct ane_aligned aligned = {0};
  if (start >= end) return ANE_OK;
  run->offset = start;
  run->base = text.data + start;
  run->aligned = NULL;
  if (!t->n_normalisers) return encode_normalised(run, end - start, err);
  ane_status st = ane_normalise(t->normalisers, t->n_normalisers, &x, (struct ane_text){run->base, end - start},
                                run->spans || t->needs_first, &aligned, err);
  if (!st && aligned.bytes.size) {
    run->aligned = &aligned;
    run->base = (const char *)aligned.bytes.data;
    run->cursor = 0;
    run->normalised += ANE_MIN(aligned.bytes.size, run->limit - run->normalised);
    st = encode_normalised(run, aligned.bytes.size, err);
  }
  run->aligned = NULL;
  ane_aligned_free(&aligned);
  return st;
}

/* Appends the tokens before (or after) a text; their spans are empty. */
static ane_status append_all(struct ane_encode_run *run, const int32_t *ids, uint32_t n, size_t at, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < n && !st; i++) st = append(run, ids[i], at, at, err);
  return st;
}

static ane_status encode_all(struct ane_encode_run *run, struct ane_text text, unsigned flags, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  size_t done = 0, at = 0, start = 0, end = 0;
  ane_status st = flags & ANE_ENCODE_BOS ? append_all(run, t->head, t->n_head, 0, err) : ANE_OK;
  while (!st && t->added.n) {
    int32_t id = ane_added_next(t, &t->added, run->admitted, text.data, text.len, done, &at, &start, &end);
    if (id == ANE_NO_TOKEN) break;
    st = encode_fragment(run, text, done, start, err);
    if (!st) st = append(run, id, start, end, err);
    done = end;
  }
  if (!st) st = encode_fragment(run, text, done, text.len, err);
  return !st && flags & ANE_ENCODE_EOS ? append_all(run, t->tail, t->n_tail, text.len, err) : st;
}

ane_status ane_tokenizer_encode(const struct ane_tokenizer *t, struct ane_text text, unsigned flags, struct ane_encoding *out,
                                struct ane_error *err) {
  struct ane_encode_run run = {.t = t, .out = out, .spans = flags & ANE_ENCODE_SPANS, .special = flags & ANE_ENCODE_SPECIAL};
  run.limit = ane_normalise_limit(text.len);
  run.admitted = 1u << ANE_TOKEN_USER;
  if (run.special) run.admitted |= 1u << ANE_TOKEN_CONTROL | 1u << ANE_TOKEN_UNKNOWN;
  ane_encoding_free(out);
  ane_status st = t->needs_pattern_memory ? ane_pattern_memory_open(&run.pattern_memory, err) : ANE_OK;
  if (!st) st = encode_all(&run, text, flags, err);
  ane_pattern_memory_close(&run.pattern_memory);
  ane_merge_free(&run.work);
  ane_free(run.nodes);
  ane_buffer_free(&run.spelled);
  return st;
}
