/* Normaliser steps that change single characters. */
#include "text/text_internal.h"

#include <utf8proc.h>

/* A character becomes n code points, at most three. SAME: it is unchanged. */
enum { SAME = -1 };

static bool mark(utf8proc_category_t k) {
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

/* CJK ideographs as BERT defines them. */
static bool ideograph(int32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static int put(int32_t out[3], int32_t c) {
  out[0] = c;
  return 1;
}

static int clean(int32_t c, int32_t out[3]) {
  if (ane_char_is_space(c) && c != 0x0B && c != 0x0C && c != 0x85) return put(out, ' ');
  if (c == 0 || c == 0xFFFD) return 0;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO: return 0;
    default: return SAME;
  }
}

/* SentencePiece's nmt rules as the tokenizers library implements them (normalizers/unicode.rs, do_nmt). */
static int nmt(int32_t c, int32_t out[3]) {
  if ((c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return 0;
  if (c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
      c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
    return put(out, ' ');
  return SAME;
}

/* SpecialCasing.txt of Unicode 15 has one unconditional lower case of two characters. */
static int lower(int32_t c, int32_t out[3]) {
  if (c >= 'A' && c <= 'Z') return put(out, c | 32);
  if (c < 0x80) return SAME;
  if (c == 0x130) {
    out[0] = 'i';
    out[1] = 0x307;
    return 2;
  }
  int32_t to = utf8proc_tolower(c);
  return to == c ? SAME : put(out, to);
}

static int step(ane_normaliser_kind kind, int32_t c, int32_t out[3]) {
  switch (kind) {
    case ANE_NORMALISE_LOWER: return lower(c, out);
    case ANE_NORMALISE_CLEAN: return clean(c, out);
    case ANE_NORMALISE_NMT: return nmt(c, out);
    case ANE_NORMALISE_STRIP_MARKS: return c >= 0x300 && mark(utf8proc_category(c)) ? 0 : SAME;
    case ANE_NORMALISE_STRIP_NONSPACING: return c >= 0x300 && utf8proc_category(c) == UTF8PROC_CATEGORY_MN ? 0 : SAME;
    case ANE_NORMALISE_APART_HAN:
      if (!ideograph(c)) return SAME;
      out[0] = out[2] = ' ';
      out[1] = c;
      return 3;
    default: return SAME;
  }
}

/* Replaces the next character, of n bytes, by points[0..count). */
static bool write(struct ane_rewrite *r, size_t n, const int32_t *points, int count) {
  utf8proc_uint8_t text[12];
  size_t len = 0;
  for (int i = 0; i < count; i++) len += (size_t)utf8proc_encode_char(points[i], text + len);
  return ane_rewrite_put(r, n, text, len);
}

/* One edit per byte, so that spans distinguish bytes. */
static bool spell(struct ane_rewrite *r) {
  while (r->at < r->end) {
    char out[2];
    size_t plain = r->at;
    while (plain < r->end && r->from->bytes.data[plain] > 0x20 && r->from->bytes.data[plain] < 0x7F) plain++;
    if (plain > r->at && !ane_rewrite_copy(r, plain - r->at)) return false;
    if (r->at == r->end) break;
    size_t len = ane_alphabet_spell(r->from->bytes.data[r->at], out);
    if (!ane_rewrite_put(r, 1, out, len)) return false;
  }
  return true;
}

bool ane_rewrite_chars(struct ane_rewrite *r, ane_normaliser_kind kind) {
  const char *s = (const char *)r->from->bytes.data;
  if (kind == ANE_NORMALISE_ALPHABET) return spell(r);
  for (size_t p = r->at, n; p < r->end; p += n) {
    int32_t points[3], c = ane_char_at(s + p, r->end - p, &n);
    int count = c < 0 ? SAME : step(kind, c, points);
    if (count == SAME) continue;
    if (!ane_rewrite_copy(r, p - r->at) || !write(r, n, points, count)) return false;
  }
  return ane_rewrite_copy(r, r->end - r->at);
}
