/* Normaliser steps, each of which keeps track of where its bytes came from. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <utf8proc.h>

#include <string.h>

/* ---- Edits -------------------------------------------------------------------------------------------------------*/

void ane_aligned_free(struct ane_aligned *a) {
  ane_buffer_free(&a->bytes);
  ane_free(a->edits);
  *a = (struct ane_aligned){0};
}

static bool add_edit(struct ane_aligned *a, struct ane_edit e) {
  if (a->n_edits == a->room) {
    size_t room = a->room ? a->room * 2 : 64, bytes;
    struct ane_edit *edits = ane_mul_size(room, sizeof *edits, &bytes) ? ane_realloc(a->edits, bytes) : NULL;
    if (!edits) return false;
    a->edits = edits;
    a->room = room;
  }
  a->edits[a->n_edits++] = e;
  return true;
}

/* Original position of x, which lies behind edit i - 1 and before edit i. */
static size_t copied(const struct ane_aligned *a, size_t i, size_t x) {
  if (!i) return x;
  const struct ane_edit *e = &a->edits[i - 1];
  return x - (e->out + e->out_len) + (e->in + e->in_len);
}

struct ane_span ane_aligned_span(const struct ane_aligned *a, size_t start, size_t end, size_t *cursor) {
  struct ane_span span;
  size_t i = *cursor;
  while (i < a->n_edits && a->edits[i].out + a->edits[i].out_len <= start) i++;
  *cursor = i;
  span.start = i < a->n_edits && a->edits[i].out <= start ? a->edits[i].in : copied(a, i, start);
  while (i < a->n_edits && a->edits[i].out + a->edits[i].out_len < end) i++;
  if (i < a->n_edits && a->edits[i].out < end)
    span.end = a->edits[i].in + a->edits[i].in_len;
  else
    span.end = copied(a, i, end);
  if (span.end < span.start) span.end = span.start;
  return span;
}

/* ---- One step ----------------------------------------------------------------------------------------------------*/

/* Reads `from` in order and writes `to`, whose edits speak of the original. */
struct rewrite {
  const struct ane_aligned *from;
  struct ane_aligned *to;
  size_t at, cursor; /* read so far; first edit of `from` that does not end before `at` */
  bool edits;
};

/* The next n bytes pass as they are. */
static bool copy(struct rewrite *r, size_t n) {
  size_t out = r->to->bytes.size, end = r->at + n;
  if (!ane_buffer_append(&r->to->bytes, r->from->bytes.data + r->at, n)) return false;
  for (; r->edits && r->cursor < r->from->n_edits; r->cursor++) {
    const struct ane_edit *e = &r->from->edits[r->cursor];
    size_t a = ANE_MAX(e->out, r->at), b = ANE_MIN(e->out + e->out_len, end);
    if (e->out >= end) break;
    bool gone = e->out_len == 0 && e->out >= r->at; /* a deletion: what follows is shifted by it */
    if ((a < b || gone) && !add_edit(r->to, (struct ane_edit){out + (a - r->at), gone ? 0 : b - a, e->in, e->in_len}))
      return false;
    if (e->out + e->out_len > end) break;
  }
  r->at = end;
  return true;
}

/* The next n bytes become text[0..len). */
static bool put(struct rewrite *r, size_t n, const void *text, size_t len) {
  if (r->edits) {
    struct ane_span in = ane_aligned_span(r->from, r->at, r->at + n, &r->cursor);
    if (!add_edit(r->to, (struct ane_edit){r->to->bytes.size, len, in.start, in.end - in.start})) return false;
  }
  r->at += n;
  return ane_buffer_append(&r->to->bytes, text, len);
}

static bool replace(struct rewrite *r, struct ane_text from, struct ane_text to) {
  const char *s = (const char *)r->from->bytes.data;
  size_t size = r->from->bytes.size;
  while (r->at < size) {
    const char *hit = from.len ? memmem(s + r->at, size - r->at, from.data, from.len) : NULL;
    size_t gap = (hit ? (size_t)(hit - s) : size) - r->at;
    if (gap && !copy(r, gap)) return false;
    if (hit && !put(r, from.len, to.data, to.len)) return false;
  }
  return true;
}

static bool squeeze(struct rewrite *r) {
  const uint8_t *s = r->from->bytes.data;
  size_t size = r->from->bytes.size;
  while (size && s[size - 1] == ' ') size--;
  while (r->at < size) {
    size_t run = 0;
    while (r->at + run < size && s[r->at + run] != ' ') run++;
    if (run && !copy(r, run)) return false;
    for (run = 0; r->at + run < size && s[r->at + run] == ' ';) run++;
    bool first = r->to->bytes.size == 0;
    if (run == 1 && !first ? !copy(r, 1) : run && !put(r, run, " ", first ? 0 : 1)) return false;
  }
  return put(r, r->from->bytes.size - r->at, "", 0);
}

/* ---- Normal forms ------------------------------------------------------------------------------------------------*/

enum { LONGEST = 18 }; /* of all decompositions: U+FDFA */

/* Code points of one cluster, decomposed. */
struct cluster {
  utf8proc_int32_t *points;
  size_t n, room;
};

static bool cluster_room(struct cluster *c, size_t extra) {
  size_t bytes;
  if (c->n + extra <= c->room) return true;
  size_t room = ANE_MAX(c->room * 2, c->n + extra);
  utf8proc_int32_t *points = ane_mul_size(room, 2 * sizeof *points, &bytes) ? ane_realloc(c->points, bytes) : NULL;
  if (!points) return false;
  c->points = points; /* the second half is scratch for the sort */
  c->room = room;
  return true;
}

/* Appends the decomposition of c; *starts gets whether no normal form can join it to what lies before: its first code
 * point is no mark and no vowel or final of Hangul. */
static bool decompose(struct cluster *out, utf8proc_int32_t c, int options, bool *starts) {
  int boundary = 0;
  if (!cluster_room(out, LONGEST)) return false;
  utf8proc_int32_t *p = out->points + out->n;
  utf8proc_ssize_t n = utf8proc_decompose_char(c, p, LONGEST, (utf8proc_option_t)options, &boundary);
  if (n < 1 || n > LONGEST) {
    p[0] = c;
    n = 1;
  }
  out->n += (size_t)n;
  utf8proc_category_t k = utf8proc_category(p[0]);
  *starts =
      k != UTF8PROC_CATEGORY_MN && k != UTF8PROC_CATEGORY_MC && k != UTF8PROC_CATEGORY_ME && !(p[0] >= 0x1160 && p[0] <= 0x11FF);
  return true;
}

static unsigned rank(utf8proc_int32_t c) { return (unsigned)utf8proc_get_property(c)->combining_class & 0xFF; }

/* Canonical order: a stable sort by combining class of each run of non-starters. By counting, so that long runs of marks
 * stay linear. */
static void reorder(struct cluster *c) {
  utf8proc_int32_t *p = c->points, *tmp = c->points + c->room;
  for (size_t a = 0, b; a < c->n; a = b + 1) {
    size_t starts[257] = {0};
    for (b = a; b < c->n && rank(p[b]); b++) starts[rank(p[b]) + 1]++;
    if (b - a < 2) continue;
    for (int k = 1; k < 257; k++) starts[k] += starts[k - 1];
    for (size_t i = a; i < b; i++) tmp[starts[rank(p[i])]++] = p[i];
    memcpy(p + a, tmp, (b - a) * sizeof *p);
  }
}

/* Writes the cluster that covers the next n bytes. */
static bool put_cluster(struct rewrite *r, size_t n, struct cluster *c, bool compose, struct ane_buffer *text) {
  reorder(c);
  if (compose) {
    utf8proc_ssize_t left = utf8proc_normalize_utf32(c->points, (utf8proc_ssize_t)c->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (left >= 0) c->n = (size_t)left;
  }
  text->size = 0;
  for (size_t i = 0; i < c->n; i++) {
    utf8proc_uint8_t bytes[4];
    if (!ane_buffer_append(text, bytes, (size_t)utf8proc_encode_char(c->points[i], bytes))) return false;
  }
  c->n = 0;
  if (text->size == n && memcmp(text->data, r->from->bytes.data + r->at, n) == 0) return copy(r, n);
  return put(r, n, text->data, text->size);
}

/* The character at p (n bytes) joins the cluster under way, which began at r->at, or ends it and begins the next. */
static bool add_character(struct rewrite *r, size_t p, size_t n, struct cluster *c, bool compose, int options,
                          struct ane_buffer *text) {
  utf8proc_int32_t point, fresh[LONGEST];
  size_t had = c->n;
  bool starts;
  utf8proc_iterate((const utf8proc_uint8_t *)r->from->bytes.data + p, (utf8proc_ssize_t)n, &point);
  if (!decompose(c, point, options, &starts)) return false;
  if (!starts || !had) return true;
  size_t n_fresh = c->n - had;
  memcpy(fresh, c->points + had, n_fresh * sizeof *fresh);
  c->n = had;
  if (!put_cluster(r, p - r->at, c, compose, text)) return false;
  memcpy(c->points, fresh, n_fresh * sizeof *fresh);
  c->n = n_fresh;
  return true;
}

static bool normal_form(struct rewrite *r, ane_normaliser_kind kind) {
  const char *s = (const char *)r->from->bytes.data;
  size_t size = r->from->bytes.size;
  bool compose = kind == ANE_NORMALISE_NFC || kind == ANE_NORMALISE_NFKC, ok = true;
  int options = UTF8PROC_DECOMPOSE | (kind == ANE_NORMALISE_NFKC || kind == ANE_NORMALISE_NFKD ? UTF8PROC_COMPAT : 0);
  struct cluster c = {0};
  struct ane_buffer text = {0};
  for (size_t p = 0; p < size && ok;) {
    int n = ane_utf8_step(s + p, size - p, NULL);
    size_t plain = p;
    while (plain < size && (unsigned char)s[plain] < 0x80) plain++;
    if (n > 0 && plain <= p + 1) {
      ok = add_character(r, p, (size_t)n, &c, compose, options, &text);
      p += (size_t)n;
      continue;
    }
    /* All but the last of several ASCII characters, or bytes that are no text, pass at once. */
    if (c.n) ok = put_cluster(r, p - r->at, &c, compose, &text);
    p = n < 0 ? p + (size_t)-n : plain - 1;
    if (ok) ok = copy(r, p - r->at);
  }
  if (ok && c.n) ok = put_cluster(r, size - r->at, &c, compose, &text);
  ane_free(c.points);
  ane_buffer_free(&text);
  return ok;
}

/* ---- All steps ---------------------------------------------------------------------------------------------------*/

static bool run_step(const struct ane_normaliser *n, struct rewrite *r) {
  size_t size = r->from->bytes.size;
  switch (n->kind) {
    case ANE_NORMALISE_REPLACE: return replace(r, n->from, n->to);
    case ANE_NORMALISE_PREPEND: return !size || (put(r, 0, n->to.data, n->to.len) && copy(r, size));
    case ANE_NORMALISE_SQUEEZE: return squeeze(r);
    case ANE_NORMALISE_NFC:
    case ANE_NORMALISE_NFD:
    case ANE_NORMALISE_NFKC:
    case ANE_NORMALISE_NFKD: return normal_form(r, n->kind);
  }
  return true;
}

ane_status ane_normalise(const struct ane_normaliser *steps, uint32_t n, struct ane_text in, bool keep_edits,
                         struct ane_aligned *out, struct ane_error *err) {
  bool ok = ane_buffer_append(&out->bytes, in.data, in.len);
  for (uint32_t i = 0; i < n && ok; i++) {
    struct ane_aligned next = {0};
    ok = ane_buffer_reserve(&next.bytes, out->bytes.size) && run_step(&steps[i], &(struct rewrite){out, &next, 0, 0, keep_edits});
    struct ane_aligned old = ok ? *out : next;
    if (ok) *out = next;
    ane_aligned_free(&old);
  }
  return ok ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory to normalise %zu bytes", in.len);
}

ane_status ane_normal_form(struct ane_text text, ane_normaliser_kind form, struct ane_buffer *out, struct ane_error *err) {
  struct ane_aligned a = {0};
  if (form < ANE_NORMALISE_NFC || form > ANE_NORMALISE_NFKD)
    return ane_fail(err, ANE_INVALID, "normaliser %d is no normal form", (int)form);
  ane_status st = ane_normalise(&(struct ane_normaliser){.kind = form}, 1, text, false, &a, err);
  if (!st && !ane_buffer_append(out, a.bytes.data, a.bytes.size))
    st = ane_fail(err, ANE_NOMEM, "no memory to normalise %zu bytes", text.len);
  ane_aligned_free(&a);
  return st;
}
