/* Decodes single tokens. The decoder steps that see single tokens run once per token, when the tokenizer is made, and fill a
 * table. A token that decodes differently in the first or last position is decoded again when it stands there. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <string.h>

/* ---- Steps for one token -----------------------------------------------------------------------------------------*/

/* The position in a list of tokens. */
struct position {
  bool first, last;
};

/* The decoding of one token. */
struct work {
  struct ane_buffer *b;
  struct ane_pattern_memory *m; /* open if a step has a pattern */
  size_t limit;                 /* the most bytes after a step */
  uint32_t step;                /* the current decoder */
  bool full;                    /* it exceeds the limit */
};

static bool set(struct ane_buffer *b, const char *s, size_t n) {
  b->size = 0;
  return ane_buffer_append(b, s, n);
}

/* The size of the text after replacing every `from` by `to`; SIZE_MAX: too large. */
static size_t replaced_size(const struct ane_buffer *b, struct ane_text from, struct ane_text to) {
  const char *s = (const char *)b->data, *end = s + b->size, *hit;
  size_t size = b->size;
  while ((hit = memmem(s, (size_t)(end - s), from.data, from.len))) {
    if (to.len > SIZE_MAX - size) return SIZE_MAX;
    size = size - from.len + to.len;
    s = hit + from.len;
  }
  return size;
}

/* Replaces every `from` by `to`. */
static bool replace(struct work *w, struct ane_text from, struct ane_text to) {
  struct ane_buffer *b = w->b, out = {0};
  const char *s = (const char *)b->data, *hit = from.len && b->size ? memmem(s, b->size, from.data, from.len) : NULL;
  size_t at = 0;
  bool ok = true;
  if (!hit) return true;
  w->full = to.len > from.len && replaced_size(b, from, to) > w->limit;
  if (w->full) return false;
  for (; hit && ok; hit = memmem(s + at, b->size - at, from.data, from.len)) {
    ok = ane_buffer_append(&out, s + at, (size_t)(hit - s) - at) && ane_buffer_append(&out, to.data, to.len);
    at = (size_t)(hit - s) + from.len;
  }
  ok = ok && ane_buffer_append(&out, s + at, b->size - at) && set(b, (const char *)out.data, out.size);
  ane_buffer_free(&out);
  return ok;
}

/* Runs normalisers over a text, into the buffer. */
static bool normalise(struct work *w, const struct ane_change *steps, uint32_t n, struct ane_text s) {
  struct ane_change_context x = {.pattern_memory = w->m, .limit = w->limit};
  struct ane_aligned a = {0};
  ane_status st = ane_normalise(steps, n, &x, s, false, &a, NULL);
  bool ok = !st && set(w->b, (const char *)a.bytes.data, a.bytes.size);
  w->full = st == ANE_RANGE;
  ane_aligned_free(&a);
  return ok;
}

/* Removes a character at both ends. */
static void strip(struct ane_buffer *b, const struct ane_decode_step *d) {
  size_t n = d->from.len, start = 0, size = b->size;
  for (uint32_t i = 0; i < d->start && size - start >= n && memcmp(b->data + start, d->from.data, n) == 0; i++) start += n;
  for (uint32_t i = 0; i < d->stop && size - start >= n && memcmp(b->data + size - n, d->from.data, n) == 0; i++) size -= n;
  if (start) memmove(b->data, b->data + start, size - start);
  b->size = size - start;
}

static bool prepend(struct ane_buffer *b, const char *s, size_t n) {
  if (!ane_buffer_reserve(b, n)) return false;
  memmove(b->data + n, b->data, b->size);
  memcpy(b->data, s, n);
  b->size += n;
  return true;
}

/* Removes the prefix from b. Did b begin with it? */
static bool drop_front(struct ane_buffer *b, struct ane_text prefix) {
  if (b->size < prefix.len || (prefix.len && memcmp(b->data, prefix.data, prefix.len) != 0)) return false;
  b->size -= prefix.len;
  if (prefix.len) memmove(b->data, b->data + prefix.len, b->size);
  return true;
}

/* Replacements of the tokenizers library (decoders/wordpiece.rs, cleanup), in its order. */
static bool cleanup(struct work *w) {
  static const char *const pairs[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                         {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                         {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  bool ok = true;
  for (size_t i = 0; i < ANE_COUNT(pairs) && ok; i++)
    ok = replace(w, (struct ane_text){pairs[i][0], strlen(pairs[i][0])}, (struct ane_text){pairs[i][1], strlen(pairs[i][1])});
  return ok;
}

static bool from_alphabet(struct ane_buffer *b) {
  char small[64], *out = b->size <= sizeof small ? small : ane_malloc(b->size);
  size_t n;
  bool ok = out != NULL;
  if (ok && ane_alphabet_decode((const char *)b->data, b->size, out, &n)) ok = set(b, out, n);
  if (out != small) ane_free(out);
  return ok;
}

static bool step(const struct ane_tokenizer *t, uint32_t i, struct position position, struct work *w) {
  const struct ane_decode_step *d = &t->decoders[i];
  static const struct ane_text space = {" ", 1}, nothing = {"", 0};
  struct ane_buffer *b = w->b;
  switch (d->kind) {
    case ANE_DECODE_REPLACE: return replace(w, d->from, d->to);
    case ANE_DECODE_PATTERN: return normalise(w, &t->decoder_changes[i], 1, (struct ane_text){(const char *)b->data, b->size});
    case ANE_DECODE_STRIP: return strip(b, d), true;
    case ANE_DECODE_METASPACE: return replace(w, d->from, position.first && d->start ? nothing : space);
    case ANE_DECODE_WORDPIECE: return position.first || drop_front(b, d->from) || prepend(b, " ", 1);
    case ANE_DECODE_CLEANUP: return cleanup(w);
    case ANE_DECODE_SUFFIX: return replace(w, d->from, position.last ? nothing : space);
    case ANE_DECODE_LEAD: return position.first ? drop_front(b, d->from), true : true;
    case ANE_DECODE_SPACED: return position.first || prepend(b, " ", 1);
    case ANE_DECODE_BYTE_LEVEL: return from_alphabet(b);
    case ANE_DECODE_BYTES:
    case ANE_DECODE_FUSE: return true;
  }
  return true;
}

/* The spelling of a token as decoders see it. It is normalised if the text contains the token in that spelling. */
static bool spelling(const struct ane_tokenizer *t, uint32_t id, struct work *w) {
  struct ane_text s = t->pieces[id];
  if (!t->flags || !(t->flags[id] & ANE_ADDED_NORMALISED) || !t->n_normalisers) return set(w->b, s.data, s.len);
  return normalise(w, t->normalisers, t->n_normalisers, s);
}

static bool decode(const struct ane_tokenizer *t, uint32_t id, struct position position, struct work *w) {
  int byte = t->byte_runs ? ane_byte_value(t->pieces[id]) : -1;
  if (byte >= 0) return set(w->b, &(char){(char)byte}, 1);
  bool ok = spelling(t, id, w);
  for (uint32_t i = 0; i < t->n_alone && ok; i++) {
    w->step = i;
    ok = step(t, i, position, w);
  }
  return ok;
}

bool ane_decode_token(const struct ane_tokenizer *t, uint32_t id, bool first, bool last, struct ane_buffer *out) {
  struct ane_pattern_memory m = {0};
  struct ane_buffer b = {0};
  struct work w = {.b = &b, .m = &m, .limit = ane_normalise_limit(t->pieces[id].len)};
  bool ok = !t->needs_pattern_memory || !ane_pattern_memory_open(&m, NULL);
  ok = ok && decode(t, id, (struct position){first, last}, &w) && ane_buffer_append(out, b.data, b.size);
  ane_pattern_memory_close(&m);
  ane_buffer_free(&b);
  return ok;
}

/* ---- Without steps -----------------------------------------------------------------------------------------------*/

/* Appends s with U+2581 replaced by spaces. */
static bool unmark(struct ane_text s, struct work *w) {
  static const struct ane_text mark = {"\xE2\x96\x81", 3}, space = {" ", 1};
  return set(w->b, s.data, s.len) && replace(w, mark, space);
}

/* Normal, unused and byte tokens are spelled in an alphabet; others are plain text. */
static bool decode_plain(const struct ane_tokenizer *t, uint32_t id, const struct ane_tokenizer_desc *d, struct work *w) {
  struct ane_text s = t->pieces[id];
  bool normal = t->types[id] == ANE_TOKEN_NORMAL || t->types[id] == ANE_TOKEN_UNUSED;
  int byte = t->types[id] == ANE_TOKEN_BYTE ? ane_byte_value(s) : -1;
  if (byte >= 0) return set(w->b, &(char){(char)byte}, 1);
  if (normal && d->space_mark) return unmark(s, w);
  return set(w->b, s.data, s.len) && (!normal || !d->byte_level || from_alphabet(w->b));
}

/* ---- Table -------------------------------------------------------------------------------------------------------*/

static ane_status copy_steps(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  t->decoders = ane_arena_array(&t->arena, d->n_decoders, sizeof *t->decoders);
  t->decoder_changes = ane_arena_array(&t->arena, d->n_decoders, sizeof *t->decoder_changes);
  if (!t->decoders || !t->decoder_changes) return ane_fail(err, ANE_NOMEM, "no memory for a tokenizer");
  for (uint32_t i = 0; i < d->n_decoders; i++) {
    struct ane_decode_step *s = &t->decoders[t->n_decoders++];
    *s = d->decoders[i];
    s->from.data = ane_arena_strndup(&t->arena, s->from.len ? s->from.data : "", s->from.len);
    s->to.data = ane_arena_strndup(&t->arena, s->to.len ? s->to.data : "", s->to.len);
    s->place.data = ane_arena_strndup(&t->arena, s->place.len ? s->place.data : "", s->place.len);
    if (!s->from.data || !s->to.data || !s->place.data) return ane_fail(err, ANE_NOMEM, "no memory for a tokenizer");
    if (s->kind != ANE_DECODE_PATTERN) continue;
    t->needs_pattern_memory = true;
    const struct ane_normaliser change = {ANE_NORMALISE_PATTERN, s->from, s->to, s->place};
    ane_status st = ane_change_open(&t->decoder_changes[i], &t->arena, &change, err);
    if (st) return st;
  }
  return ANE_OK;
}

/* Finds which steps see single tokens and which see the whole text. */
static ane_status arrange(struct ane_tokenizer *t, struct ane_error *err) {
  bool fused = false;
  for (uint32_t i = 0; i < t->n_decoders; i++) {
    const struct ane_decode_step *s = &t->decoders[i];
    bool over_bytes = s->kind == ANE_DECODE_WORDPIECE || s->kind == ANE_DECODE_SUFFIX || s->kind == ANE_DECODE_BYTE_LEVEL;
    if (t->byte_runs && over_bytes) return ane_fail(err, ANE_UNSUPPORTED, "a decoder of this kind after ByteFallback");
    if (!fused) t->n_alone = i + 1;
    if (fused && s->kind == ANE_DECODE_STRIP && !t->strip.len) {
      t->strip = s->from;
      t->strip_start = s->start;
      t->strip_stop = s->stop;
    } else if (fused && s->kind != ANE_DECODE_FUSE) {
      return ane_fail(err, ANE_UNSUPPORTED, "decoders other than one Strip after Fuse or ByteLevel");
    }
    if (s->kind == ANE_DECODE_BYTES) t->byte_runs = true;
    if (s->kind == ANE_DECODE_METASPACE && s->start) t->place_first = true;
    if (s->kind == ANE_DECODE_WORDPIECE || s->kind == ANE_DECODE_SPACED || s->kind == ANE_DECODE_LEAD) t->place_first = true;
    if (s->kind == ANE_DECODE_LEAD && s->start) t->lead_all = true;
    if (s->kind == ANE_DECODE_SUFFIX) t->place_last = true;
    fused = fused || s->kind == ANE_DECODE_FUSE || s->kind == ANE_DECODE_BYTE_LEVEL;
  }
  return ANE_OK;
}

static bool decode_at(const struct ane_tokenizer *t, uint32_t id, const struct ane_tokenizer_desc *d, struct work *w) {
  if (id == (uint32_t)t->unk && d->unk_text.data) return set(w->b, d->unk_text.data, d->unk_text.len);
  if (!t->pieces[id].len) return set(w->b, "", 0);
  return d->decoders ? decode(t, id, (struct position){false, false}, w) : decode_plain(t, id, d, w);
}

static ane_status fill_failed(const struct ane_tokenizer *t, const struct work *w, struct ane_error *err) {
  if (!w->full) return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
  struct ane_text place = w->step < t->n_decoders ? t->decoders[w->step].place : (struct ane_text){NULL, 0};
  if (!place.len) place = (struct ane_text){"a decoder", 9};
  return ane_fail(err, ANE_RANGE,
                  "%.*s makes texts of more than the limit: %d bytes for each byte of the tokens' spellings, and %d more",
                  (int)ANE_MIN(place.len, (size_t)200), place.data, ANE_NORMALISE_GROWTH, ANE_NORMALISE_SLACK);
}

/* Stores the texts in blocks of the arena. A text equal to its spelling is shared with `pieces`. */
static ane_status fill(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_pattern_memory *m,
                       struct ane_buffer *b, struct ane_error *err) {
  enum { BLOCK = 65536 };
  char *block = NULL;
  size_t left = 0, spelled = 0, made = 0;
  for (uint32_t i = 0; i < t->n; i++) {
    spelled += t->pieces[i].len;
    struct work w = {.b = b, .m = m, .limit = ane_normalise_limit(spelled) - made};
    if (!decode_at(t, i, d, &w)) return fill_failed(t, &w, err);
    made += ANE_MIN(b->size, w.limit);
    t->bytes[i] = t->pieces[i];
    if (b->size == t->pieces[i].len && (!b->size || memcmp(b->data, t->pieces[i].data, b->size) == 0)) continue;
    if (b->size > left) {
      left = ANE_MAX(b->size, (size_t)BLOCK);
      block = ane_arena_alloc(&t->arena, left);
      if (!block) return ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
    }
    t->bytes[i] = (struct ane_text){"", 0};
    if (!b->size) continue;
    memcpy(block, b->data, b->size);
    t->bytes[i] = (struct ane_text){block, b->size};
    block += b->size;
    left -= b->size;
  }
  return ANE_OK;
}

ane_status ane_decode_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  struct ane_pattern_memory m = {0};
  struct ane_buffer b = {0};
  ane_status st = copy_steps(t, d, err);
  if (!st) st = arrange(t, err);
  if (st) return st;
  if (!d->decoders && d->strip_space) {
    t->strip = (struct ane_text){" ", 1};
    t->strip_start = 1;
  }
  t->unk_text = d->unk_text.data != NULL;
  t->bytes = ane_arena_array(&t->arena, t->n, sizeof *t->bytes);
  if (t->bytes && t->needs_pattern_memory) st = ane_pattern_memory_open(&m, err);
  if (!t->bytes) st = ane_fail(err, ANE_NOMEM, "no memory for a vocabulary of %u tokens", (unsigned)t->n);
  if (!st) st = fill(t, d, &m, &b, err);
  ane_pattern_memory_close(&m);
  ane_buffer_free(&b);
  return st;
}

void ane_decode_close(struct ane_tokenizer *t) {
  for (uint32_t i = 0; i < t->n_decoders; i++) ane_change_close(&t->decoder_changes[i]);
}
