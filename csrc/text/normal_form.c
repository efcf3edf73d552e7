/* The four normalisation forms of Unicode Standard Annex 15, one cluster at a time. */
#include "base/alloc.h"
#include "text/text_internal.h"

#include <utf8proc.h>

#include <string.h>

enum { LONGEST = 18 }; /* longest of all decompositions: U+FDFA */

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

/* Appends the decomposition of c. *starts: no normalisation form can compose it with earlier characters, since its first code
 * point is not a mark and not a vowel or final of Hangul. */
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

/* Canonical order: a stable sort of each run of non-starters by combining class. It is a counting sort, so that long runs of
 * marks take linear time. */
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

/* Writes the cluster, which replaces the next n bytes. */
static bool put_cluster(struct ane_rewrite *r, size_t n, struct cluster *c, bool compose, struct ane_buffer *text) {
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
  /* analyser: a cluster replaces one byte at least, so the text has bytes. */
  if (text->size == n && memcmp(text->data, r->from->bytes.data + r->at, n) == 0) return ane_rewrite_copy(r, n);
  return ane_rewrite_put(r, n, text->data, text->size);
}

/* Adds the character at p (n bytes) to the current cluster, which began at r->at, or ends that cluster and begins the next. */
static bool add_character(struct ane_rewrite *r, size_t p, size_t n, struct cluster *c, bool compose, int options,
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

bool ane_rewrite_form(struct ane_rewrite *r, ane_normaliser_kind kind) {
  const char *s = (const char *)r->from->bytes.data;
  size_t size = r->end;
  bool compose = kind == ANE_NORMALISE_NFC || kind == ANE_NORMALISE_NFKC, ok = true;
  int options = UTF8PROC_DECOMPOSE | (kind == ANE_NORMALISE_NFKC || kind == ANE_NORMALISE_NFKD ? UTF8PROC_COMPAT : 0);
  struct cluster c = {0};
  struct ane_buffer text = {0};
  for (size_t p = r->at; p < size && ok;) {
    int n = ane_utf8_step(s + p, size - p, NULL);
    size_t plain = p;
    while (plain < size && (unsigned char)s[plain] < 0x80) plain++;
    if (n > 0 && plain <= p + 1) {
      ok = add_character(r, p, (size_t)n, &c, compose, options, &text);
      p += (size_t)n;
      continue;
    }
    /* ASCII characters except the last, and ill-formed bytes, are complete at once. */
    if (c.n) ok = put_cluster(r, p - r->at, &c, compose, &text);
    p = n < 0 ? p + (size_t)-n : plain - 1;
    if (ok) ok = ane_rewrite_copy(r, p - r->at);
  }
  if (ok && c.n) ok = put_cluster(r, size - r->at, &c, compose, &text);
  ane_free(c.points);
  ane_buffer_free(&text);
  return ok;
}
