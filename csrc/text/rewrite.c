/* Text with its origin. A step makes new text from it by copying and replacing. */
#include "base/alloc.h"
#include "text/text_internal.h"

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

/* The original position of x, which lies after edit i - 1 and before edit i. */
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

/* ---- Rewriting ---------------------------------------------------------------------------------------------------*/

/* Is there room for n more bytes? */
static bool fits(struct ane_rewrite *r, size_t n) {
  if (n <= r->limit && r->to->bytes.size <= r->limit - n) return true;
  r->full = true;
  return false;
}

bool ane_rewrite_copy(struct ane_rewrite *r, size_t n) {
  size_t out = r->to->bytes.size, end = r->at + n;
  if (!fits(r, n) || !ane_buffer_append(&r->to->bytes, r->from->bytes.data + r->at, n)) return false;
  for (; r->edits && r->cursor < r->from->n_edits; r->cursor++) {
    const struct ane_edit *e = &r->from->edits[r->cursor];
    size_t a = ANE_MAX(e->out, r->at), b = ANE_MIN(e->out + e->out_len, end);
    if (e->out >= end) break;
    bool gone = e->out_len == 0 && e->out >= r->at; /* a deletion shifts the text after it */
    if ((a < b || gone) && !add_edit(r->to, (struct ane_edit){out + (a - r->at), gone ? 0 : b - a, e->in, e->in_len}))
      return false;
    if (e->out + e->out_len > end) break;
  }
  r->at = end;
  return true;
}

bool ane_rewrite_put(struct ane_rewrite *r, size_t n, const void *text, size_t len) {
  if (!fits(r, len)) return false;
  if (r->edits) {
    struct ane_span in = ane_aligned_span(r->from, r->at, r->at + n, &r->cursor);
    if (!add_edit(r->to, (struct ane_edit){r->to->bytes.size, len, in.start, in.end - in.start})) return false;
  }
  r->at += n;
  return ane_buffer_append(&r->to->bytes, text, len);
}
