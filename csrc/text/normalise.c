/* Normaliser steps. Each records the origin of its bytes. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <string.h>

/* ---- Plain text --------------------------------------------------------------------------------------------------*/

static const char *rest(const struct ane_rewrite *r) { return (const char *)r->from->bytes.data + r->at; }

static size_t left(const struct ane_rewrite *r) { return r->end - r->at; }

static bool replace(struct ane_rewrite *r, struct ane_text from, struct ane_text to) {
  while (left(r)) {
    const char *hit = from.len ? memmem(rest(r), left(r), from.data, from.len) : NULL;
    size_t gap = hit ? (size_t)(hit - rest(r)) : left(r);
    if (gap && !ane_rewrite_copy(r, gap)) return false;
    if (hit && !ane_rewrite_put(r, from.len, to.data, to.len)) return false;
  }
  return true;
}

static bool squeeze(struct ane_rewrite *r) {
  const uint8_t *s = r->from->bytes.data;
  size_t size = r->end;
  bool first = true;
  while (size > r->at && s[size - 1] == ' ') size--;
  while (r->at < size) {
    size_t run = 0;
    while (r->at + run < size && s[r->at + run] != ' ') run++;
    if (run && !ane_rewrite_copy(r, run)) return false;
    first = first && !run;
    for (run = 0; r->at + run < size && s[r->at + run] == ' ';) run++;
    if (run == 1 && !first ? !ane_rewrite_copy(r, 1) : run && !ane_rewrite_put(r, run, " ", first ? 0 : 1)) return false;
  }
  return ane_rewrite_put(r, left(r), "", 0);
}

static bool begins(const struct ane_rewrite *r, struct ane_text s) {
  return left(r) >= s.len && (!s.len || memcmp(rest(r), s.data, s.len) == 0);
}

static bool trim_end(struct ane_rewrite *r, struct ane_text s, struct ane_text to) {
  size_t keep = left(r);
  if (!keep) return true;
  while (s.len && keep >= s.len && memcmp(rest(r) + keep - s.len, s.data, s.len) == 0) keep -= s.len;
  return ane_rewrite_copy(r, keep) && ane_rewrite_put(r, left(r), "", 0) && (!to.len || ane_rewrite_put(r, 0, to.data, to.len));
}

static bool strip_left(struct ane_rewrite *r) {
  size_t at = 0, n;
  while (at < left(r) && ane_char_is_space(ane_char_at(rest(r) + at, left(r) - at, &n))) at += n;
  return ane_rewrite_put(r, at, "", 0) && ane_rewrite_copy(r, left(r));
}

static bool strip_right(struct ane_rewrite *r) {
  size_t keep = left(r), n;
  while (keep && ane_char_is_space(ane_char_before(rest(r), keep, &n))) keep -= n;
  return ane_rewrite_copy(r, keep) && ane_rewrite_put(r, left(r), "", 0);
}

/* ---- Limit -------------------------------------------------------------------------------------------------------*/

size_t ane_normalise_limit(size_t len) {
  return len > (SIZE_MAX - ANE_NORMALISE_SLACK) / ANE_NORMALISE_GROWTH ? SIZE_MAX
                                                                       : len * ANE_NORMALISE_GROWTH + ANE_NORMALISE_SLACK;
}

ane_status ane_change_failed(const struct ane_change *c, const struct ane_rewrite *r, size_t n, struct ane_error *err) {
  struct ane_text place = c->n.place;
  if (!r->full) return ane_fail(err, ANE_NOMEM, "no memory to normalise %zu bytes", n);
  if (!place.len) place = (struct ane_text){"a normaliser", 12};
  return ane_fail(err, ANE_RANGE,
                  "%.*s makes a text of more than %zu bytes (the most is %d bytes for each byte of the text and %d more)",
                  (int)ANE_MIN(place.len, (size_t)200), place.data, r->limit, ANE_NORMALISE_GROWTH, ANE_NORMALISE_SLACK);
}

/* ---- Patterns ----------------------------------------------------------------------------------------------------*/

/* Replaces matches in the next n bytes, which are well-formed. */
static ane_status replace_matches(const struct ane_change *c, struct ane_rewrite *r, struct ane_pattern_memory *m, size_t n,
                                  struct ane_error *err) {
  struct ane_matches walk = {.none = true};
  const char *s = rest(r);
  size_t base = r->at;
  bool found = n > 0, ok = true;
  ane_pattern_memory_limit(m, n);
  while (found && ok) {
    size_t range[2];
    ane_status st = ane_pattern_next(&c->pattern, m, s, n, &walk, &found, range, err);
    if (st) return st;
    if (found)
      ok = ane_rewrite_copy(r, base + range[0] - r->at) && ane_rewrite_put(r, range[1] - range[0], c->n.to.data, c->n.to.len);
  }
  if (ok) ok = ane_rewrite_copy(r, base + n - r->at);
  return ok ? ANE_OK : ane_change_failed(c, r, n, err);
}

static ane_status replace_pattern(const struct ane_change *c, struct ane_rewrite *r, struct ane_pattern_memory *m,
                                  struct ane_error *err) {
  while (left(r)) {
    size_t n = ane_utf8_run(rest(r), left(r));
    ane_status st = replace_matches(c, r, m, n, err);
    if (st) return st;
    if (left(r) && !ane_rewrite_copy(r, 1)) return ane_change_failed(c, r, n, err);
  }
  return ANE_OK;
}

/* ---- One step ----------------------------------------------------------------------------------------------------*/

ane_status ane_change_open(struct ane_change *c, struct ane_arena *arena, const struct ane_normaliser *n, struct ane_error *err) {
  *c = (struct ane_change){.n = *n};
  c->n.from.data = ane_arena_strndup(arena, n->from.len ? n->from.data : "", n->from.len);
  c->n.to.data = ane_arena_strndup(arena, n->to.len ? n->to.data : "", n->to.len);
  c->n.place.data = ane_arena_strndup(arena, n->place.len ? n->place.data : "", n->place.len);
  if (!c->n.from.data || !c->n.to.data || !c->n.place.data) return ane_fail(err, ANE_NOMEM, "no memory for a normaliser");
  ane_status st = ANE_OK;
  if (n->kind == ANE_NORMALISE_PATTERN)
    st = ane_pattern_compile(&c->pattern, &(struct ane_split){.pattern = c->n.from.data}, err);
  if (n->kind == ANE_NORMALISE_CHARSMAP || n->kind == ANE_NORMALISE_CHARSMAP_CLUSTERS)
    st = ane_charsmap_open(&c->charsmap, c->n.from, err);
  return st && n->place.len ? ane_fail_in(err, st, "%s", c->n.place.data) : st;
}

void ane_change_close(struct ane_change *c) { ane_pattern_free(&c->pattern); }

static bool run_plain(const struct ane_change *c, struct ane_rewrite *r, const struct ane_change_context *x) {
  const struct ane_normaliser *n = &c->n;
  bool ok = true;
  switch (n->kind) {
    case ANE_NORMALISE_REPLACE: return replace(r, n->from, n->to);
    case ANE_NORMALISE_PREFIX:
    case ANE_NORMALISE_PREPEND:
      if (left(r) && (n->kind == ANE_NORMALISE_PREPEND || !begins(r, n->to))) ok = ane_rewrite_put(r, 0, n->to.data, n->to.len);
      return ok && ane_rewrite_copy(r, left(r));
    case ANE_NORMALISE_APPEND:
      if (!left(r)) return true;
      return ane_rewrite_copy(r, left(r)) && ane_rewrite_put(r, 0, n->to.data, n->to.len);
    case ANE_NORMALISE_SQUEEZE: return squeeze(r);
    case ANE_NORMALISE_TRIM_END: return trim_end(r, n->from, n->to);
    case ANE_NORMALISE_STRIP_LEFT: return strip_left(r);
    case ANE_NORMALISE_STRIP_RIGHT: return strip_right(r);
    case ANE_NORMALISE_NFC:
    case ANE_NORMALISE_NFD:
    case ANE_NORMALISE_NFKC:
    case ANE_NORMALISE_NFKD: return ane_rewrite_form(r, n->kind);
    case ANE_NORMALISE_CHARSMAP: return ane_rewrite_charsmap(r, &c->charsmap, false, x->keep, x->types);
    case ANE_NORMALISE_CHARSMAP_CLUSTERS: return ane_rewrite_charsmap(r, &c->charsmap, true, NULL, NULL);
    default: return ane_rewrite_chars(r, n->kind);
  }
}

ane_status ane_change_run(const struct ane_change *c, struct ane_rewrite *r, const struct ane_change_context *x,
                          struct ane_error *err) {
  size_t size = left(r);
  if (c->n.kind == ANE_NORMALISE_PATTERN) return replace_pattern(c, r, x->pattern_memory, err);
  return run_plain(c, r, x) ? ANE_OK : ane_change_failed(c, r, size, err);
}

/* ---- All steps ---------------------------------------------------------------------------------------------------*/

ane_status ane_normalise(const struct ane_change *steps, uint32_t n, const struct ane_change_context *x, struct ane_text in,
                         bool keep_edits, struct ane_aligned *out, struct ane_error *err) {
  ane_status st = ANE_OK;
  size_t limit = x->limit ? x->limit : ane_normalise_limit(in.len);
  if (!ane_buffer_append(&out->bytes, in.data, in.len))
    return ane_fail(err, ANE_NOMEM, "no memory to normalise %zu bytes", in.len);
  for (uint32_t i = 0; i < n && !st; i++) {
    struct ane_aligned next = {0};
    struct ane_rewrite r = {.from = out, .to = &next, .end = out->bytes.size, .edits = keep_edits, .limit = limit};
    if (!ane_buffer_reserve(&next.bytes, out->bytes.size))
      st = ane_fail(err, ANE_NOMEM, "no memory to normalise %zu bytes", in.len);
    else
      st = ane_change_run(&steps[i], &r, x, err);
    struct ane_aligned old = st ? next : *out;
    if (!st) *out = next;
    ane_aligned_free(&old);
  }
  return st;
}

ane_status ane_normal_form(struct ane_text text, ane_normaliser_kind form, struct ane_buffer *out, struct ane_error *err) {
  struct ane_aligned a = {0};
  if (form < ANE_NORMALISE_NFC || form > ANE_NORMALISE_NFKD)
    return ane_fail(err, ANE_INVALID, "normaliser %d is not a normal form", (int)form);
  ane_status st = ane_normalise(&(struct ane_change){.n.kind = form}, 1, &(struct ane_change_context){0}, text, false, &a, err);
  if (!st && !ane_buffer_append(out, a.bytes.data, a.bytes.size))
    st = ane_fail(err, ANE_NOMEM, "no memory to normalise %zu bytes", text.len);
  ane_aligned_free(&a);
  return st;
}
