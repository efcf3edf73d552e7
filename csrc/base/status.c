#include "base/status.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops an incomplete UTF-8 sequence at the end of a text that was truncated. */
static void trim_utf8(char *text, size_t len) { text[ane_utf8_whole(text, len)] = '\0'; }

ane_status ane_fail(struct ane_error *err, ane_status code, const char *fmt, ...) {
  if (!err) return code;
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
  va_end(ap);
  if (n >= (int)sizeof err->text) trim_utf8(err->text, sizeof err->text - 1);
  err->code = code;
  return code;
}

ane_status ane_fail_in(struct ane_error *err, ane_status code, const char *fmt, ...) {
  if (!err) return code;
  char old[sizeof err->text];
  memcpy(old, err->text, sizeof old);
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
  va_end(ap);
  if (n < 0) n = 0;
  size_t used = ANE_MIN((size_t)n, sizeof err->text - 1);
  int m = snprintf(err->text + used, sizeof err->text - used, ": %s", old);
  if (used + (size_t)ANE_MAX(m, 0) >= sizeof err->text) trim_utf8(err->text, sizeof err->text - 1);
  err->code = code;
  return code;
}

const char *ane_status_word(ane_status code) {
  static const char *const words[] = {
#define ANE_STATUS_WORD(name, word) word,
      ANE_STATUS_LIST(ANE_STATUS_WORD)
#undef ANE_STATUS_WORD
  };
  return (size_t)code < ANE_COUNT(words) ? words[code] : "unknown";
}
