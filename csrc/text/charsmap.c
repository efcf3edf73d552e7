/* SentencePiece's precompiled_charsmap: <bytes of the trie: u32> <trie> <texts>. The trie is a double array of Yata's
 * darts-clone. The value of a rule is the offset of its text. The file is not trusted: every index is checked. */
#include "text/text_internal.h"

#include <utf8proc.h>

#include <string.h>

ane_status ane_charsmap_open(struct ane_charsmap *m, struct ane_text blob, struct ane_error *err) {
  struct ane_reader r = ane_reader_of(blob.data, blob.len);
  uint32_t size = ane_read_u32(&r);
  const uint8_t *units = ane_read_bytes(&r, size);
  if (!units || size < 4 || size % 4)
    return ane_fail(err, ANE_FORMAT, "precompiled_charsmap: %zu bytes cannot hold a trie of %u", blob.len, (unsigned)size);
  size_t n = ane_reader_left(&r);
  *m = (struct ane_charsmap){units, size / 4, (const char *)ane_read_bytes(&r, n), n};
  if (n && m->texts[n - 1] != '\0') return ane_fail(err, ANE_FORMAT, "precompiled_charsmap: the last text does not end");
  return ANE_OK;
}

static uint32_t unit(const struct ane_charsmap *m, uint32_t i) {
  return i < m->n_units ? ane_load_u32(m->units + 4 * (size_t)i) : 0;
}

static uint32_t offset(uint32_t u) { return (u >> 10) << ((u & 1u << 9) >> 6); }

/* The replacement of the shortest or longest rule that matches at the start of s[0..len), or NULL. *used: the number of bytes it
 * replaces. */
static const char *rule(const struct ane_charsmap *m, const char *s, size_t len, bool shortest, size_t *used) {
  const char *found = NULL;
  uint32_t at = offset(unit(m, 0));
  len = ANE_MIN(len, (size_t)ANE_TOKEN_BYTES); /* the units of a damaged trie may form a circle */
  for (size_t i = 0; i < len && s[i]; i++) {
    uint8_t c = (uint8_t)s[i];
    at ^= c;
    uint32_t u = unit(m, at);
    if (at >= m->n_units || (u & (1u << 31 | 0xFF)) != c) break;
    at ^= offset(u);
    if (!(u >> 8 & 1)) continue;
    uint32_t value = unit(m, at) & 0x7FFFFFFF;
    if (value >= m->n_texts) continue;
    found = m->texts + value;
    *used = i + 1;
    if (shortest) break;
  }
  return found;
}

/* The length of the grapheme cluster (Unicode Standard Annex 29) at s. */
static size_t cluster_end(const char *s, size_t len) {
  utf8proc_int32_t state = 0;
  size_t n, at;
  int32_t c = ane_char_at(s, len, &n);
  for (at = n; at < len && c >= 0; at += n) {
    int32_t next = ane_char_at(s + at, len - at, &n);
    if (next < 0 || utf8proc_grapheme_break_stateful(c, next, &state)) break;
    c = next;
  }
  return at;
}

static bool put_rule(struct ane_rewrite *r, size_t n, const char *text) {
  size_t len = strlen(text);
  if (len == n && memcmp(text, r->from->bytes.data + r->at, n) == 0) return ane_rewrite_copy(r, n);
  return ane_rewrite_put(r, n, text, len);
}

/* As in the tokenizers library (normalizers/precompiled.rs): a cluster of less than six bytes is replaced by the rule that it
 * begins with; otherwise each character is replaced on its own. */
static bool clusters(struct ane_rewrite *r, const struct ane_charsmap *m) {
  enum { SMALL = 6 };
  const char *s = (const char *)r->from->bytes.data;
  while (r->at < r->end) {
    size_t n = cluster_end(s + r->at, r->end - r->at), used, one;
    const char *text = n < SMALL ? rule(m, s + r->at, n, true, &used) : NULL;
    if (text && !put_rule(r, n, text)) return false;
    for (size_t stop = r->at + n; !text && r->at < stop;) {
      ane_char_at(s + r->at, stop - r->at, &one);
      const char *part = rule(m, s + r->at, one, true, &used);
      if (part ? !put_rule(r, one, part) : !ane_rewrite_copy(r, one)) return false;
    }
  }
  return true;
}

bool ane_rewrite_charsmap(struct ane_rewrite *r, const struct ane_charsmap *m, bool by_cluster, const struct ane_trie *keep,
                          const uint8_t *types) {
  const char *s = (const char *)r->from->bytes.data;
  if (by_cluster) return clusters(r, m);
  for (size_t p = r->at, n; p < r->end; p += n) {
    if (keep && keep->first[(uint8_t)s[p]] && ane_trie_longest(keep, types, UINT32_MAX, s + p, r->end - p, &n) >= 0) continue;
    const char *text = rule(m, s + p, r->end - p, false, &n);
    if (!text) {
      ane_char_at(s + p, r->end - p, &n);
      continue;
    }
    if (!ane_rewrite_copy(r, p - r->at) || !put_rule(r, n, text)) return false;
  }
  return ane_rewrite_copy(r, r->end - r->at);
}
