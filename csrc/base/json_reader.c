#include "base/json_reader.h"

#include "base/alloc.h"
#include "base/utf8.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool ane_json_fail(struct ane_json *j, const char *at, const char *why) {
  j->p = at;
  j->why = why;
  return false;
}

static bool no_memory(struct ane_json *j) {
  j->no_memory = true;
  return ane_json_fail(j, j->p, "not enough memory");
}

void ane_json_start(struct ane_json *j, const char *text, size_t len, struct ane_buffer *scratch) {
  *j = (struct ane_json){.text = text, .p = text, .end = text + len, .scratch = scratch};
  if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) j->p += 3;
}

static void skip_blanks(struct ane_json *j) {
  while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r')) j->p++;
}

char ane_json_peek(struct ane_json *j) {
  skip_blanks(j);
  if (j->p >= j->end) {
    ane_json_fail(j, j->end, "the text ends where a value should be");
    return '\0';
  }
  char c = *j->p;
  if (c && (strchr("{[\"ntf-", c) || (c >= '0' && c <= '9'))) return c;
  ane_json_fail(j, j->p, "expected a value");
  return '\0';
}

/* ---- Strings -----------------------------------------------------------------------------------------------------*/

/* Skips plain characters, up to a quote, a backslash or a fault. */
static bool plain_run(struct ane_json *j) {
  const unsigned char *p = (const unsigned char *)j->p, *end = (const unsigned char *)j->end;
  while (p < end && *p != '"' && *p != '\\') {
    int n = *p >= 0x80 ? ane_utf8_step((const char *)p, (size_t)(end - p), NULL) : *p >= 0x20;
    if (n <= 0) return ane_json_fail(j, (const char *)p, *p < 0x20 ? "control character in a string" : "invalid UTF-8");
    p += n;
  }
  j->p = (const char *)p;
  return p < end || ane_json_fail(j, j->end, "the text ends inside a string");
}

/* The value of four hex digits; -1: not four hex digits. */
static int32_t hex4(const char *s, const char *end) {
  int32_t v = 0;
  if (end - s < 4) return -1;
  for (int i = 0; i < 4; i++) {
    int c = (unsigned char)s[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (digit < 0) return -1;
    v = v << 4 | digit;
  }
  return v;
}

/* Reads an escape \uXXXX or \uXXXX\uXXXX whose first digit is at j->p. Returns its code point; -1: malformed. */
static int32_t unicode_escape(struct ane_json *j) {
  int32_t c = hex4(j->p, j->end);
  if (c < 0) return -1;
  j->p += 4;
  if (c < 0xD800 || c > 0xDFFF) return c;
  if (c > 0xDBFF || j->end - j->p < 6 || j->p[0] != '\\' || j->p[1] != 'u') return -1;
  int32_t low = hex4(j->p + 2, j->end);
  j->p += 6;
  return low < 0xDC00 || low > 0xDFFF ? -1 : 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
}

static bool add_utf8(struct ane_json *j, int32_t c) {
  char s[4];
  size_t n = 0;
  if (c < 0x80) {
    s[n++] = (char)c;
  } else {
    if (c < 0x800) {
      s[n++] = (char)(0xC0 | c >> 6);
    } else {
      if (c < 0x10000) {
        s[n++] = (char)(0xE0 | c >> 12);
      } else {
        s[n++] = (char)(0xF0 | c >> 18);
        s[n++] = (char)(0x80 | (c >> 12 & 63));
      }
      s[n++] = (char)(0x80 | (c >> 6 & 63));
    }
    s[n++] = (char)(0x80 | (c & 63));
  }
  return ane_buffer_append(j->scratch, s, n) || no_memory(j);
}

/* Reads one escape, starting after its backslash. */
static bool escape(struct ane_json *j) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  const char *at = j->p - 1, *found;
  char c = *j->p++;
  if (c == 'u') {
    int32_t code = unicode_escape(j);
    return code < 0 ? ane_json_fail(j, at, "malformed \\u escape") : add_utf8(j, code);
  }
  if (!c || !(found = strchr(from, c))) return ane_json_fail(j, at, "unknown escape");
  return ane_buffer_append(j->scratch, &to[found - from], 1) || no_memory(j);
}

bool ane_json_string(struct ane_json *j, const char **s, size_t *len) {
  const char *start = ++j->p;
  if (!plain_run(j)) return false;
  *s = start;
  *len = (size_t)(j->p - start);
  if (*j->p++ == '"') return true;
  j->p--;
  for (j->scratch->size = 0;;) {
    if (!ane_buffer_append(j->scratch, start, (size_t)(j->p - start))) return no_memory(j);
    if (*j->p == '"') break;
    j->p++;
    if (!escape(j)) return false;
    start = j->p;
    if (!plain_run(j)) return false;
  }
  j->p++;
  *s = (const char *)j->scratch->data;
  *len = j->scratch->size;
  return true;
}

/* ---- Numbers and words -------------------------------------------------------------------------------------------*/

static const char *skip_digits(const char *p) {
  while (*p >= '0' && *p <= '9') p++;
  return p;
}

/* strtod for locales whose decimal point is not '.'. */
static bool number_by_copy(struct ane_json *j, const char *start, const char *end, double *d) {
  char *copy = ane_strndup(start, (size_t)(end - start));
  if (!copy) return no_memory(j);
  char *point = strchr(copy, '.');
  if (point) *point = localeconv()->decimal_point[0];
  *d = strtod(copy, NULL);
  ane_free(copy);
  return true;
}

/* The end of the number at j->p according to the grammar; NULL: malformed. */
static const char *number_end(struct ane_json *j, bool *is_float) {
  const char *start = j->p, *p = start + (*start == '-'), *digits = p;
  p = *p == '0' ? p + 1 : skip_digits(p);
  const char *why = p != digits ? NULL : *start == '-' ? "expected a digit after the minus sign" : "expected a value";
  *is_float = false;
  if (!why && *p == '.') {
    const char *fraction = ++p;
    *is_float = true;
    if ((p = skip_digits(p)) == fraction) why = "expected a digit after the point";
  }
  if (!why && (*p == 'e' || *p == 'E')) {
    p++;
    const char *exponent = p += *p == '+' || *p == '-';
    *is_float = true;
    if ((p = skip_digits(p)) == exponent) why = "expected a digit in the exponent";
  }
  if (!why) return p;
  ane_json_fail(j, start, why);
  return NULL;
}

bool ane_json_number(struct ane_json *j, bool *integer, int64_t *i, double *d) {
  const char *start = j->p, *end = number_end(j, integer);
  bool negative = *start == '-', is_float = *integer;
  const char *digits = start + negative;
  if (!end) return false;
  if (!is_float && !(negative && *digits == '0')) {
    uint64_t v = 0, most = (uint64_t)INT64_MAX + negative;
    bool fits = end - digits <= 19;
    for (const char *q = digits; fits && q < end; q++) v = v * 10 + (uint64_t)(*q - '0');
    if (fits && v <= most) {
      *integer = true;
      *i = (int64_t)(negative ? 0 - v : v);
      j->p = end;
      return true;
    }
  }
  char *stop;
  *integer = false;
  *d = strtod(start, &stop);
  if (stop != end && !number_by_copy(j, start, end, d)) return false;
  if (isinf(*d)) return ane_json_fail(j, start, "the number is too large");
  j->p = end;
  return true;
}

bool ane_json_number_text(struct ane_json *j, const char **s, size_t *len) {
  bool is_float;
  const char *end = number_end(j, &is_float);
  if (!end) return false;
  *s = j->p;
  *len = (size_t)(end - j->p);
  j->p = end;
  return true;
}

bool ane_json_word(struct ane_json *j, const char *word) {
  size_t n = strlen(word);
  if (strncmp(j->p, word, n) != 0) return ane_json_fail(j, j->p, "expected a value");
  j->p += n;
  return true;
}

/* ---- Arrays and objects ------------------------------------------------------------------------------------------*/

bool ane_json_enter(struct ane_json *j, char bracket) {
  skip_blanks(j);
  if (*j->p != bracket) return ane_json_fail(j, j->p, bracket == '[' ? "expected an array" : "expected an object");
  if (j->depth > ANE_JSON_DEPTH) return ane_json_fail(j, j->p, "nested too deeply");
  j->depth++;
  j->p++;
  return true;
}

bool ane_json_next(struct ane_json *j, char bracket, bool first, bool *more) {
  bool array = bracket == '[';
  skip_blanks(j);
  *more = *j->p != (array ? ']' : '}');
  if (!*more) {
    j->p++;
    j->depth--;
    return true;
  }
  if (first && (array || j->p < j->end)) return true;
  if (j->p >= j->end) return ane_json_fail(j, j->p, array ? "the text ends inside an array" : "the text ends inside an object");
  if (*j->p != ',') return ane_json_fail(j, j->p, array ? "expected ',' or ']'" : "expected ',' or '}'");
  j->p++;
  return true;
}

bool ane_json_name(struct ane_json *j, const char **s, size_t *len) {
  skip_blanks(j);
  if (*j->p != '"') return ane_json_fail(j, j->p, j->p < j->end ? "expected a name in quotes" : "the text ends inside an object");
  if (!ane_json_string(j, s, len)) return false;
  skip_blanks(j);
  if (*j->p != ':') return ane_json_fail(j, j->p, "expected ':'");
  j->p++;
  return true;
}

bool ane_json_finish(struct ane_json *j) {
  skip_blanks(j);
  return j->p == j->end || ane_json_fail(j, j->p, "expected the end of the text");
}

void ane_json_place(const struct ane_json *j, int *line, int *column) {
  *line = *column = 1;
  for (const char *p = j->text; p < j->p; p++) {
    if (*p == '\n') {
      ++*line;
      *column = 1;
    } else if ((*p & 0xC0) != 0x80) {
      ++*column;
    }
  }
}
