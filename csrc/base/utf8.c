#include "base/utf8.h"

#include "base/alloc.h"

#include <string.h>

int ane_utf8_lead(uint8_t first, uint8_t *low, uint8_t *high) {
  *low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  *high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

int ane_utf8_step(const char *s, size_t len, bool *cut) {
  const uint8_t *p = (const uint8_t *)s;
  uint8_t low, high;
  if (cut) *cut = false;
  if (p[0] < 0x80) return 1;
  int n = ane_utf8_lead(p[0], &low, &high);
  if (!n) return -1;
  for (int i = 1; i < n; i++) {
    if ((size_t)i == len) {
      if (cut) *cut = true;
      return -i;
    }
    if (p[i] < low || p[i] > high) return -i;
    low = 0x80;
    high = 0xBF;
  }
  return n;
}

size_t ane_utf8_whole(const char *s, size_t len) {
  for (size_t back = 1; back <= 3 && back <= len; back++) {
    unsigned char b = (unsigned char)s[len - back];
    if ((b & 0xC0) == 0x80) continue;
    bool cut;
    return ane_utf8_step(s + len - back, back, &cut) < 0 && cut ? len - back : len;
  }
  return len;
}

size_t ane_utf8_run(const char *s, size_t len) {
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

char *ane_utf8_replace(const char *s, size_t len, size_t *out_len) {
  static const char mark[] = {'\xEF', '\xBF', '\xBD'};
  size_t need = 0, at = 0;
  for (size_t i = 0; i < len;) {
    int n = ane_utf8_step(s + i, len - i, NULL);
    need += n > 0 ? (size_t)n : sizeof mark;
    i += (size_t)(n > 0 ? n : -n);
  }
  char *out = ane_malloc(need + 1);
  if (!out) return NULL;
  for (size_t i = 0; i < len;) {
    int n = ane_utf8_step(s + i, len - i, NULL);
    memcpy(out + at, n > 0 ? s + i : mark, n > 0 ? (size_t)n : sizeof mark);
    at += n > 0 ? (size_t)n : sizeof mark;
    i += (size_t)(n > 0 ? n : -n);
  }
  out[at] = '\0';
  *out_len = at;
  return out;
}
