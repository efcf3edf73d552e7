/* Splits and changes, in the order of the description. Patterns before the first change run on the text itself, later ones on the
 * changed text. The last stage passes its pieces to the model. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <string.h>

/* ---- Creating ----------------------------------------------------------------------------------------------------*/

static ane_status add_step(struct ane_tokenizer *t, const struct ane_split *split, struct ane_error *err) {
  if (!split->change) {
    if (t->n_stages)
      t->stages[t->n_stages - 1].n++;
    else
      t->n_first++;
    t->needs_pattern_memory = true;
    return ane_pattern_compile(&t->patterns[t->n_patterns++], split, err);
  }
  struct ane_text_stage *s = &t->stages[t->n_stages++];
  s->only_first = split->only_first;
  s->first = t->n_patterns;
  t->needs_first = t->needs_first || s->only_first;
  return ane_change_open(&s->change, &t->arena, split->change, err);
}

ane_status ane_stages_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err) {
  ane_status st = ANE_OK;
  t->patterns = ane_arena_array(&t->arena, d->n_splits, sizeof *t->patterns);
  t->stages = ane_arena_array(&t->arena, d->n_splits, sizeof *t->stages);
  t->normalisers = ane_arena_array(&t->arena, d->n_normalisers, sizeof *t->normalisers);
  if (!t->patterns || !t->stages || !t->normalisers) return ane_fail(err, ANE_NOMEM, "no memory for a tokenizer");
  for (uint32_t i = 0; i < d->n_normalisers && !st; i++) {
    if (d->normalisers[i].kind == ANE_NORMALISE_PATTERN) t->needs_pattern_memory = true;
    st = ane_change_open(&t->normalisers[t->n_normalisers++], &t->arena, &d->normalisers[i], err);
  }
  for (uint32_t i = 0; i < d->n_splits && !st; i++) st = add_step(t, &d->splits[i], err);
  return st;
}

/* ---- Splitting ---------------------------------------------------------------------------------------------------*/

/* Splits text. Each ill-formed byte is a piece of its own. */
static ane_status split_text(struct ane_encode_run *run, uint32_t first, uint32_t n, const char *s, size_t len, ane_piece_fn fn,
                             void *context, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (size_t p = 0; p < len && !st;) {
    size_t good = ane_utf8_run(s + p, len - p);
    if (good) st = ane_pretokenize(run->t->patterns + first, n, &run->pattern_memory, s + p, good, fn, context, err);
    p += good;
    if (p == len || st) break;
    st = fn(context, s + p, 1, err);
    p++;
  }
  return st;
}

static ane_status encode_piece(void *context, const char *piece, size_t len, struct ane_error *err) {
  return ane_model_encode(context, piece, len, err);
}

/* ---- Changing ----------------------------------------------------------------------------------------------------*/

/* Collects pieces of a text. */
struct collector {
  const char *base;
  struct ane_pieces *pieces;
};

static ane_status add_piece(struct ane_pieces *p, size_t start, size_t end, struct ane_error *err) {
  if (p->n == p->room) {
    size_t room = p->room ? p->room * 2 : 64, bytes;
    struct ane_piece *items = ane_mul_size(room, sizeof *items, &bytes) ? ane_realloc(p->items, bytes) : NULL;
    if (!items) return ane_fail(err, ANE_NOMEM, "no memory for %zu pieces", room);
    p->items = items;
    p->room = room;
  }
  p->items[p->n++] = (struct ane_piece){start, end};
  return ANE_OK;
}

static ane_status collect(void *context, const char *piece, size_t len, struct ane_error *err) {
  struct collector *c = context;
  size_t start = (size_t)(piece - c->base);
  return add_piece(c->pieces, start, start + len, err);
}

/* May a prefix be inserted before the piece? Not if the piece is an ill-formed byte or follows one. */
static bool may_begin(const char *s, struct ane_piece piece) {
  size_t n;
  if (ane_utf8_run(s + piece.start, piece.end - piece.start) == 0) return false;
  return piece.start == 0 || ane_char_before(s, piece.start, &n) >= 0;
}

/* Runs the change of one stage over each piece. `to` receives the text, `made` its pieces. */
static ane_status change_pieces(struct ane_encode_run *run, const struct ane_text_stage *stage, const struct ane_aligned *from,
                                const struct ane_pieces *pieces, struct ane_aligned *to, struct ane_pieces *made,
                                struct ane_error *err) {
  struct ane_rewrite r = {.from = from, .to = to, .edits = run->spans || run->t->needs_first, .limit = run->limit - run->staged};
  struct ane_change_context x = {.pattern_memory = &run->pattern_memory};
  const char *s = (const char *)from->bytes.data;
  bool prefix = stage->change.n.kind == ANE_NORMALISE_PREFIX, ok = true;
  size_t cursor = 0;
  ane_status st = ANE_OK;
  for (size_t i = 0; i < pieces->n && !st && ok; i++) {
    struct ane_piece p = pieces->items[i];
    size_t before;
    bool applies = !prefix || may_begin(s, p);
    if (applies && stage->only_first) applies = run->offset + ane_aligned_span(from, p.start, p.end, &cursor).start == 0;
    if (p.start > r.at) ok = ane_rewrite_put(&r, p.start - r.at, "", 0); /* text that a split removed */
    r.end = p.end;
    before = to->bytes.size;
    if (ok && applies)
      st = ane_change_run(&stage->change, &r, &x, err);
    else if (ok)
      ok = ane_rewrite_copy(&r, p.end - r.at);
    if (ok && !st && to->bytes.size > before) st = add_piece(made, before, to->bytes.size, err);
  }
  if (!st && !ok) st = ane_change_failed(&stage->change, &r, from->bytes.size, err);
  return st;
}

/* Splits each piece by the patterns of a stage. */
static ane_status split_pieces(struct ane_encode_run *run, const struct ane_text_stage *stage, const char *base,
                               struct ane_pieces *pieces, struct ane_error *err) {
  struct ane_pieces made = {0};
  struct collector c = {base, &made};
  ane_status st = ANE_OK;
  if (!stage->n) return ANE_OK;
  for (size_t i = 0; i < pieces->n && !st; i++) {
    struct ane_piece p = pieces->items[i];
    st = split_text(run, stage->first, stage->n, base + p.start, p.end - p.start, collect, &c, err);
  }
  ane_free(pieces->items);
  *pieces = made;
  return st;
}

static ane_status run_stage(struct ane_encode_run *run, const struct ane_text_stage *stage, struct ane_aligned *text,
                            struct ane_pieces *pieces, struct ane_error *err) {
  struct ane_aligned next = {0};
  struct ane_pieces made = {0};
  ane_status st = change_pieces(run, stage, text, pieces, &next, &made, err);
  ane_aligned_free(text);
  ane_free(pieces->items);
  *text = next;
  *pieces = made;
  return st ? st : split_pieces(run, stage, (const char *)text->bytes.data, pieces, err);
}

/* The first edit that does not end before x. */
static size_t edit_at(const struct ane_aligned *a, size_t x) {
  size_t low = 0, high = a->n_edits;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (a->edits[middle].out + a->edits[middle].out_len <= x)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Copies the text from s on, with its edits. The first edit records its origin. */
static ane_status copy_text(struct ane_encode_run *run, const char *s, size_t len, struct ane_aligned *out,
                            struct ane_error *err) {
  struct ane_aligned whole = {.bytes = {(uint8_t *)(uintptr_t)run->base, (size_t)(s - run->base) + len, 0}};
  const struct ane_aligned *from = run->aligned ? run->aligned : &whole;
  size_t start = (size_t)(s - run->base);
  struct ane_rewrite r = {.from = from,
                          .to = out,
                          .at = start,
                          .end = start + len,
                          .cursor = edit_at(from, start),
                          .edits = run->spans || run->t->needs_first,
                          .limit = SIZE_MAX};
  if (ane_rewrite_put(&r, 0, "", 0) && ane_rewrite_copy(&r, len)) return ANE_OK;
  return ane_fail(err, ANE_NOMEM, "no memory to split %zu bytes", len);
}

static ane_status run_stages(struct ane_encode_run *run, const char *s, size_t len, struct ane_aligned *text,
                             struct ane_pieces *pieces, struct ane_error *err) {
  const struct ane_tokenizer *t = run->t;
  ane_status st = copy_text(run, s, len, text, err);
  if (st) return st;
  const char *base = (const char *)text->bytes.data;
  if ((st = split_text(run, 0, t->n_first, base, len, collect, &(struct collector){base, pieces}, err))) return st;
  for (uint32_t i = 0; i < t->n_stages && !st; i++) st = run_stage(run, &t->stages[i], text, pieces, err);
  if (!st) run->staged += text->bytes.size;
  return st;
}

ane_status ane_stages_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err) {
  if (!run->t->n_stages) return split_text(run, 0, run->t->n_first, s, len, encode_piece, run, err);
  struct ane_aligned text = {0};
  struct ane_pieces pieces = {0};
  ane_status st = run_stages(run, s, len, &text, &pieces, err);
  const struct ane_aligned *aligned = run->aligned;
  const char *base = run->base;
  size_t cursor = run->cursor;
  run->aligned = &text;
  run->base = (const char *)text.bytes.data;
  run->cursor = 0;
  for (size_t i = 0; i < pieces.n && !st; i++) {
    struct ane_piece p = pieces.items[i];
    st = ane_model_encode(run, run->base + p.start, p.end - p.start, err);
  }
  run->aligned = aligned;
  run->base = base;
  run->cursor = cursor;
  ane_aligned_free(&text);
  ane_free(pieces.items);
  return st;
}
