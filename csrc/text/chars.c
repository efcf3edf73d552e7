/* Properties of characters. */
#include "text/text_internal.h"

#include <utf8proc.h>

int32_t ane_char_at(const char *s, size_t len, size_t *n) {
  int step = ane_utf8_step(s, len, NULL);
  utf8proc_int32_t c = -1;
  *n = (size_t)(step < 0 ? -step : step);
  if (step == 1) return (unsigned char)*s;
  if (step > 0) utf8proc_iterate((const utf8proc_uint8_t *)s, step, &c);
  return c;
}

int32_t ane_char_before(const char *s, size_t len, size_t *n) {
  for (size_t back = 1; back <= 4 && back <= len; back++) {
    if (((unsigned char)s[len - back] & 0xC0) == 0x80) continue;
    int32_t c = ane_char_at(s + len - back, back, n);
    if (c >= 0 && *n == back) return c;
    break;
  }
  *n = 1;
  return -1;
}

bool ane_char_is_space(int32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool ane_char_is_word(int32_t c) {
  if (c < 0) return false;
  if (c < 0x80) return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';
  if (c == 0x200C || c == 0x200D) return true;
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189))
    return true; /* Other_Alphabetic outside category M */
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}
