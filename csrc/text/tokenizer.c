/* The pipeline. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <string.h>

/* ---- Life --------------------------------------------------------------------------------------------------------*/

static bool copy_text(struct ane_arena *arena, struct ane_text *s) {
  s->data = ane_arena_strndup(arena, s->len ? s->data : "", s->len);
  return s->data != NULL;
}

static ane_status copy_steps(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  bool ok = true;
  t->normalisers = ane_arena_array(&t->arena, d->n_normalisers, sizeof *t->normalisers);
  t->patterns = ane_arena_array(&t->arena, d->n_splits, sizeof *t->patterns);
  if (!t->normalisers || !t->patterns) return ane_fail(err, ANE_NOMEM, "no memory for a tokenizer");
  for (uint32_t i = 0; i < d->n_normalisers && ok; i++) {
    struct ane_normaliser *n = &t->normalisers[t->n_normalisers++];
    *n = d->normalisers[i];
    ok = copy_text(&t->arena, &n->from) && copy_text(&t->arena, &n->to);
  }
  if (!ok) return ane_fail(err, ANE_NOMEM, "no memory for a tokenizer");
  for (uint32_t i = 0; i < d->n_splits; i++) {
    ane_status st = ane_pattern_compile(&t->patterns[t->n_patterns++], &d->splits[i], err);
    if (st) return st;
  }
  return ANE_OK;
}

static ane_status init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  ane_status st;
  t->model = d->model;
  t->byte_level = d->byte_level;
  t->strip_space = d->strip_space;
  t->fuse_unk = d->fuse_unk;
  t->whole = d->whole;
  t->bos = d->bos;
  t->eos = d->eos;
  t->unk = d->unk;
  if (d->model == ANE_MODEL_SCORES && !d->scores) return ane_fail(err, ANE_FORMAT, "the vocabulary has no scores");
  if ((st = ane_vocab_init(t, d, err)) || (st = copy_steps(t, d, err))) return st;
  if (d->model == ANE_MODEL_MERGES) return ane_bpe_init(t, d, err);
  ane_spm_init(t);
  return ANE_OK;
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
  ane_trie_free(&t->added);
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

/* Appends an id with its span in the text as given. */
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

/* Bytes of a symbol that is no token. *fused: the symbol before was unknown too, and its token is the last one. */
static ane_status emit_unknown(struct ane_encode_run *run, const char *s, size_t len, bool *fused, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  ane_status st = ANE_OK;
  if (!t->byte_level && t->byte_ids[(unsigned char)s[0]] >= 0) {
    for (size_t i = 0; i < len && !st; i++) st = ane_emit(run, t->byte_ids[(unsigned char)s[i]], s + i, 1, err);
    return st;
  }
  if (*fused && t->fuse_unk) {
    if (run->spans) run->out->spans[run->out->n - 1].end = span_of(run, s, len).end;
    return ANE_OK;
  }
  *fused = t->unk != ANE_NO_TOKEN;
  return ane_emit(run, t->unk, s, len, err);
}

ane_status ane_emit_symbols(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err) {
  const struct ane_symbol *sym = run->work.symbols;
  ane_status st = ANE_OK;
  bool fused = false;
  for (size_t p = 0; p < len && !st; p += sym[p].len) {
    if (sym[p].id < 0) {
      st = emit_unknown(run, piece + p, sym[p].len, &fused, err);
    } else {
      st = ane_emit(run, sym[p].id, piece + p, sym[p].len, err);
      fused = false;
    }
  }
  return st;
}

/* ---- Encoding ----------------------------------------------------------------------------------------------------*/

static ane_status encode_piece(void *context, const char *piece, size_t len, struct ane_error *err) {
  struct ane_encode_run *run = context;
  return run->t->model == ANE_MODEL_MERGES ? ane_bpe_encode(run, piece, len, err) : ane_spm_encode(run, piece, len, err);
}

/* Length of the well-formed text that s[0..len) begins with. */
static size_t well_formed(const char *s, size_t len) {
  size_t p = 0;
  while (p < len) {
    uint64_t word;
    if (len - p >= 8 && (memcpy(&word, s + p, 8), !(word & 0x8080808080808080u))) {
      p += 8;
      continue;
    }
    int n = ane_utf8_step(s + p, len - p, NULL);
    if (n < 0) break;
    p += (size_t)n;
  }
  return p;
}

/* Normalised text; bad bytes are pieces of their own. */
static ane_status encode_text(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  ane_status st = ANE_OK;
  for (size_t p = 0; p < len && !st;) {
    size_t n = well_formed(s + p, len - p);
    if (n) st = ane_pretokenize(t->patterns, t->n_patterns, &run->matcher, s + p, n, encode_piece, run, err);
    p += n;
    if (p == len || st) break;
    st = encode_piece(run, s + p, 1, err);
    p++;
  }
  return st;
}

/* Text between two added tokens: text.data[start..end). */
static ane_status encode_fragment(struct ane_encode_run *run, struct ane_text text, size_t start, size_t end,
                                  struct ane_error *err) {
  struct ane_aligned aligned = {0};
  ane_status st;
  if (start == end) return ANE_OK;
  run->offset = start;
  run->base = text.data + start;
  run->aligned = NULL;
  if (!run->t->n_normalisers) return encode_text(run, run->base, end - start, err);
  st = ane_normalise(run->t->normalisers, run->t->n_normalisers, (struct ane_text){run->base, end - start}, run->spans, &aligned,
                     err);
  if (!st && aligned.bytes.size) {
    run->aligned = &aligned;
    run->base = (const char *)aligned.bytes.data;
    run->cursor = 0;
    st = encode_text(run, run->base, aligned.bytes.size, err);
  }
  ane_aligned_free(&aligned);
  return st;
}

static ane_status encode_all(struct ane_encode_run *run, struct ane_text text, unsigned flags, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  unsigned admitted = 1u << ANE_TOKEN_USER;
  size_t done = 0;
  ane_status st = ANE_OK;
  if (flags & ANE_ENCODE_SPECIAL) admitted |= 1u << ANE_TOKEN_CONTROL | 1u << ANE_TOKEN_UNKNOWN;
  if (flags & ANE_ENCODE_BOS && t->bos != ANE_NO_TOKEN) st = append(run, t->bos, 0, 0, err);
  for (size_t p = 0; p < text.len && !st;) {
    size_t n = 0;
    int32_t id = t->added.first[(unsigned char)text.data[p]]
                     ? ane_trie_longest(&t->added, t->types, admitted, text.data + p, text.len - p, &n)
                     : ANE_NO_TOKEN;
    if (id == ANE_NO_TOKEN) {
      p++;
      continue;
    }
    st = encode_fragment(run, text, done, p, err);
    if (!st) st = append(run, id, p, p + n, err);
    done = p += n;
  }
  if (!st) st = encode_fragment(run, text, done, text.len, err);
  if (!st && flags & ANE_ENCODE_EOS && t->eos != ANE_NO_TOKEN) st = append(run, t->eos, text.len, text.len, err);
  return st;
}

ane_status ane_tokenizer_encode(const struct ane_tokenizer *t, struct ane_text text, unsigned flags, struct ane_encoding *out,
                                struct ane_error *err) {
  struct ane_encode_run run = {.t = t, .out = out, .spans = flags & ANE_ENCODE_SPANS};
  ane_encoding_free(out);
  ane_status st = t->n_patterns ? ane_matcher_open(&run.matcher, err) : ANE_OK;
  if (!st) st = encode_all(&run, text, flags, err);
  ane_matcher_close(&run.matcher);
  ane_merge_free(&run.work);
  ane_buffer_free(&run.spelled);
  return st;
}
