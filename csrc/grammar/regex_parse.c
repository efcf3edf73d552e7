/* Parses patterns: ECMA-262 with flag u, and more lenient where Annex B or Python are. */
#include "base/alloc.h"
#include "grammar/regex_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Sets of characters ------------------------------------------------------------------------------------------*/

enum { LAST_CHAR = 0x10ffff, MANY_RANGES = 1 << 16 };

struct range {
  uint32_t lo, hi;
};

struct ranges {
  struct range *list;
  uint32_t n, room;
};

struct parser {
  struct re_pool *p;
  const char *text;
  size_t len, at;
  unsigned syntax;
  int depth;
  struct ane_error *err;
  ane_status status;
};

static ane_re fail(struct parser *ps, ane_status status, const char *what) {
  if (ps->status == ANE_OK) ps->status = ane_fail(ps->err, status, "%s at character %zu", what, ps->at + 1);
  return RE_NONE;
}

static bool add(struct parser *ps, struct ranges *r, uint32_t lo, uint32_t hi) {
  if (!re_grow((void **)&r->list, &r->room, r->n, sizeof *r->list)) {
    fail(ps, ANE_NOMEM, "no memory for a set");
    return false;
  }
  r->list[r->n++] = (struct range){lo, hi};
  return true;
}

static int by_start(const void *a, const void *b) {
  const struct range *x = a, *y = b;
  return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorts ranges and makes them disjoint. */
static void tidy(struct ranges *r) {
  if (r->n > 1) qsort(r->list, r->n, sizeof *r->list, by_start);
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n; i++) {
    if (n > 0 && r->list[i].lo <= r->list[n - 1].hi + 1)
      r->list[n - 1].hi = ANE_MAX(r->list[n - 1].hi, r->list[i].hi);
    else
      r->list[n++] = r->list[i];
  }
  r->n = n;
}

static bool invert(struct parser *ps, struct ranges *r) {
  struct ranges out = {0};
  uint32_t from = 0;
  bool ok = true;
  tidy(r);
  for (uint32_t i = 0; i < r->n && ok; i++) {
    if (r->list[i].lo > from) ok = add(ps, &out, from, r->list[i].lo - 1);
    from = r->list[i].hi + 1;
  }
  if (ok && from <= LAST_CHAR) ok = add(ps, &out, from, LAST_CHAR);
  ane_free(r->list);
  *r = out;
  return ok;
}

/* Joins halves, so that the cost of a long list is nearly linear. */
static ane_re join_ranges(struct re_pool *p, const struct range *list, uint32_t n) {
  if (n == 0) return RE_NONE;
  if (n == 1) return re_chars(p, list->lo, list->hi);
  ane_re a = join_ranges(p, list, n / 2);
  return re_alt(p, a, join_ranges(p, list + n / 2, n - n / 2));
}

static ane_re expression_of(struct parser *ps, struct ranges *r) {
  uint32_t n = r->n;
  for (uint32_t i = 0; ps->syntax & RE_NO_CASE && i < n; i++) {
    struct range q = r->list[i];
    if (q.lo <= 'z' && q.hi >= 'a') add(ps, r, ANE_MAX(q.lo, 'a') - 32, ANE_MIN(q.hi, 'z') - 32);
    if (q.lo <= 'Z' && q.hi >= 'A') add(ps, r, ANE_MAX(q.lo, 'A') + 32, ANE_MIN(q.hi, 'Z') + 32);
  }
  tidy(r);
  return join_ranges(ps->p, r->list, r->n);
}

static const struct range digits[] = {{'0', '9'}};
static const struct range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
/* WhiteSpace and LineTerminator of ECMA-262. */
static const struct range spaces[] = {{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                                      {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};

/* \d \w \s, and their complements in upper case. */
static bool add_shorthand(struct parser *ps, struct ranges *r, char which) {
  struct ranges own = {0};
  const struct range *list = which == 'd' || which == 'D' ? digits : which == 'w' || which == 'W' ? words : spaces;
  size_t n = list == digits ? ANE_COUNT(digits) : list == words ? ANE_COUNT(words) : ANE_COUNT(spaces);
  bool ok = true;
  for (size_t i = 0; i < n && ok; i++) ok = add(ps, &own, list[i].lo, list[i].hi);
  if (ok && which < 'a') ok = invert(ps, &own);
  for (uint32_t i = 0; i < own.n && ok; i++) ok = add(ps, r, own.list[i].lo, own.list[i].hi);
  ane_free(own.list);
  return ok;
}

/* Long names of the general categories (Unicode 15, PropertyValueAliases.txt). */
static const struct {
  const char *name, *category;
} categories[] = {
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"punct", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"cntrl", "Cc"},
    {"Format", "Cf"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
};

/* Reads the {...} of \p{...}. */
static bool add_property(struct parser *ps, struct ranges *r, bool negative) {
  char name[32] = "";
  const char *close = ps->at < ps->len && ps->text[ps->at] == '{' ? memchr(ps->text + ps->at, '}', ps->len - ps->at) : NULL;
  size_t n = close ? (size_t)(close - ps->text) - ps->at - 1 : 0;
  if (n > 0 && n < sizeof name) memcpy(name, ps->text + ps->at + 1, n);
  for (size_t i = 0; i < ANE_COUNT(categories); i++)
    if (strcmp(name, categories[i].name) == 0) strcpy(name, categories[i].category);
  if (!name[0] || !strchr("LMNPSZC", name[0]) || strlen(name) > 2) {
    fail(ps, ANE_UNSUPPORTED, "a Unicode property other than a general category is not supported");
    return false;
  }
  ps->at += n + 2;
  struct ranges own = {0};
  bool ok = true;
  for (uint32_t run = 0, lo, hi; ok && re_category(name, &run, &lo, &hi);) {
    if (own.n > 0 && own.list[own.n - 1].hi == lo - 1)
      own.list[own.n - 1].hi = hi;
    else
      ok = add(ps, &own, lo, hi);
  }
  if (ok && own.n == 0) {
    fail(ps, ANE_INVALID, "an unknown Unicode category");
    ok = false;
  }
  if (ok && negative) ok = invert(ps, &own);
  for (uint32_t i = 0; i < own.n && ok; i++) ok = add(ps, r, own.list[i].lo, own.list[i].hi);
  ane_free(own.list);
  if (r->n > MANY_RANGES) tidy(r); /* a long class repeats itself */
  return ok;
}

/* ---- Characters --------------------------------------------------------------------------------------------------*/

static bool more(const struct parser *ps) { return ps->at < ps->len && ps->status == ANE_OK; }
static char peek(const struct parser *ps) { return ps->at < ps->len ? ps->text[ps->at] : 0; }
static bool take(struct parser *ps, char c) {
  if (ps->at >= ps->len || ps->text[ps->at] != c) return false;
  ps->at++;
  return true;
}

/* Reads one character of UTF-8. */
static uint32_t character(struct parser *ps) {
  utf8proc_int32_t c;
  utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)ps->text + ps->at, (utf8proc_ssize_t)(ps->len - ps->at), &c);
  if (n <= 0) {
    fail(ps, ANE_INVALID, "the pattern is not UTF-8");
    return 0;
  }
  ps->at += (size_t)n;
  return (uint32_t)c;
}

static uint32_t hex(struct parser *ps, int n) {
  uint32_t v = 0;
  for (int i = 0; i < n; i++) {
    char c = peek(ps);
    int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (d < 0) {
      fail(ps, ANE_INVALID, "hexadecimal digits are missing");
      return 0;
    }
    v = v * 16 + (uint32_t)d;
    ps->at++;
  }
  return v;
}

static uint32_t unicode_escape(struct parser *ps) {
  if (take(ps, '{')) {
    uint32_t v = 0;
    while (more(ps) && peek(ps) != '}' && v <= LAST_CHAR) v = v * 16 + hex(ps, 1);
    if (!take(ps, '}') || v > LAST_CHAR) fail(ps, ANE_INVALID, "\\u{...} is not a character");
    return v;
  }
  uint32_t v = hex(ps, 4);
  if (v >= 0xd800 && v < 0xdc00 && ps->len - ps->at >= 6 && ps->text[ps->at] == '\\' && ps->text[ps->at + 1] == 'u') {
    ps->at += 2;
    uint32_t low = hex(ps, 4);
    if (low >= 0xdc00 && low < 0xe000) return 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
    fail(ps, ANE_INVALID, "half a surrogate pair");
  }
  return v;
}

/* Returns the character that an escape denotes, if it denotes one. */
static uint32_t escaped(struct parser *ps) {
  char c = peek(ps);
  switch (c) {
    case 't': ps->at++; return '\t';
    case 'n': ps->at++; return '\n';
    case 'r': ps->at++; return '\r';
    case 'v': ps->at++; return '\v';
    case 'f': ps->at++; return '\f';
    case 'x': ps->at++; return hex(ps, 2);
    case 'u': ps->at++; return unicode_escape(ps);
    case 'c': {
      ps->at++;
      char l = peek(ps);
      if (!((l >= 'a' && l <= 'z') || (l >= 'A' && l <= 'Z'))) fail(ps, ANE_INVALID, "\\c needs a letter");
      ps->at++;
      return (uint32_t)l % 32;
    }
    case '0':
      ps->at++;
      if (peek(ps) >= '0' && peek(ps) <= '9') fail(ps, ANE_UNSUPPORTED, "octal escapes are not supported");
      return 0;
    default:
      if (c >= '1' && c <= '9')
        fail(ps, ANE_UNSUPPORTED, "back references are not supported");
      else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        fail(ps, c == 'k' ? ANE_UNSUPPORTED : ANE_INVALID, "an unknown escape");
      else if (ps->at >= ps->len)
        fail(ps, ANE_INVALID, "the pattern ends after a backslash");
      return ps->status ? 0 : character(ps);
  }
}

/* Reads a member of a [...]. *single: it is one character, *c. */
static bool class_member(struct parser *ps, struct ranges *r, bool *single, uint32_t *c) {
  *single = true;
  if (take(ps, '\\')) {
    char e = peek(ps);
    if (e && strchr("dDwWsS", e)) {
      ps->at++;
      *single = false;
      return add_shorthand(ps, r, e);
    }
    if (e == 'p' || e == 'P') {
      ps->at++;
      *single = false;
      return add_property(ps, r, e == 'P');
    }
    if (e == 'b') {
      ps->at++;
      *c = 8;
    } else
      *c = escaped(ps);
  } else
    *c = character(ps);
  return ps->status == ANE_OK;
}

static ane_re class_of(struct parser *ps) {
  struct ranges r = {0};
  bool negative = take(ps, '^');
  while (more(ps) && peek(ps) != ']') {
    bool single, last_single;
    uint32_t lo, hi;
    if (!class_member(ps, &r, &single, &lo)) break;
    if (peek(ps) == '-' && ps->at + 1 < ps->len && ps->text[ps->at + 1] != ']') {
      ps->at++;
      if (!class_member(ps, &r, &last_single, &hi)) break;
      if (single && last_single && hi >= lo)
        add(ps, &r, lo, hi);
      else if (single && last_single)
        fail(ps, ANE_INVALID, "a range is the wrong way round");
      else { /* Annex B: a - beside a class such as \d is a plain character */
        add(ps, &r, '-', '-');
        if (single) add(ps, &r, lo, lo);
        if (last_single) add(ps, &r, hi, hi);
      }
    } else if (single)
      add(ps, &r, lo, lo);
  }
  if (!take(ps, ']')) fail(ps, ANE_INVALID, "[ is not closed");
  /* The other case is added before the set is inverted. */
  ane_re re = RE_NONE;
  if (negative && ps->syntax & RE_NO_CASE) expression_of(ps, &r);
  if (ps->status == ANE_OK && (!negative || invert(ps, &r))) {
    unsigned syntax = ps->syntax;
    if (negative) ps->syntax &= ~(unsigned)RE_NO_CASE;
    re = expression_of(ps, &r);
    ps->syntax = syntax;
  }
  ane_free(r.list);
  return re;
}

static ane_re single(struct parser *ps, uint32_t c) {
  struct range one[3] = {{c, c}};
  struct ranges r = {one, 1, 3};
  if (c >= 0xd800 && c < 0xe000) return fail(ps, ANE_UNSUPPORTED, "half a surrogate pair");
  return expression_of(ps, &r);
}

static ane_re dot(struct parser *ps) {
  if (ps->syntax & RE_DOT_ALL) return re_any_char(ps->p);
  struct ranges r = {0};
  add(ps, &r, '\n', '\n');
  add(ps, &r, '\r', '\r');
  add(ps, &r, 0x2028, 0x2029);
  ane_re re = invert(ps, &r) ? expression_of(ps, &r) : RE_NONE;
  ane_free(r.list);
  return re;
}

/* ---- Structure ---------------------------------------------------------------------------------------------------*/

static ane_re alternatives(struct parser *ps);

static ane_re group(struct parser *ps) {
  int look = 0;
  if (take(ps, '?')) {
    if (take(ps, ':'))
      look = 0;
    else if (take(ps, '='))
      look = 1;
    else if (take(ps, '!'))
      look = 2;
    else {
      bool named = take(ps, 'P'); /* Python's spelling */
      if (!take(ps, '<')) return fail(ps, ANE_UNSUPPORTED, named ? "(?P is not supported here" : "this group is not supported");
      if (peek(ps) == '=' || peek(ps) == '!') return fail(ps, ANE_UNSUPPORTED, "look-behind assertions are not supported");
      while (more(ps) && peek(ps) != '>') ps->at++;
      if (!take(ps, '>')) return fail(ps, ANE_INVALID, "a group's name is not closed");
    }
  }
  ane_re re = alternatives(ps);
  if (ps->status) return RE_NONE;
  if (!take(ps, ')')) return fail(ps, ANE_INVALID, "( is not closed");
  return look ? re_ahead(ps->p, re, look == 2) : re;
}

/* \d, \p{...} and the like outside of brackets. ps->at is at the letter. */
static ane_re shorthand(struct parser *ps) {
  struct ranges r = {0};
  char e = peek(ps);
  ps->at++;
  bool ok = e == 'p' || e == 'P' ? add_property(ps, &r, e == 'P') : add_shorthand(ps, &r, e);
  ane_re re = ok ? expression_of(ps, &r) : RE_NONE;
  ane_free(r.list);
  return re;
}

/* Returns the length of the class or shorthand at ps->at; 0: it has no end. */
static size_t class_length(const struct parser *ps) {
  size_t i = ps->at + 1;
  if (ps->text[ps->at] == '[') {
    while (i < ps->len && ps->text[i] != ']') i += ps->text[i] == '\\' ? 2 : 1;
  } else if (i < ps->len && (ps->text[i] == 'p' || ps->text[i] == 'P')) {
    while (i < ps->len && ps->text[i] != '}') i++;
  }
  return i < ps->len ? i + 1 - ps->at : 0;
}

/* Reads the class or shorthand at ps->at, unless one with the same spelling has been read. */
static ane_re class_once(struct parser *ps) {
  struct ane_strmap *known = &ps->p->classes[ps->syntax & RE_NO_CASE ? 1 : 0];
  size_t from = ps->at, n = class_length(ps);
  uint32_t old = n ? ane_strmap_get(known, ps->text + from, n) : UINT32_MAX;
  if (old != UINT32_MAX) {
    ps->at += n;
    return old;
  }
  ane_re re = ps->text[ps->at++] == '[' ? class_of(ps) : shorthand(ps);
  if (ps->status || ps->p->full || ps->at != from + n) return re;
  const char *spelling = ane_arena_strndup(&ps->p->spellings, ps->text + from, n);
  if (!spelling || !ane_strmap_put(known, spelling, n, re, NULL)) return fail(ps, ANE_NOMEM, "no memory for a set");
  return re;
}

static ane_re atom(struct parser *ps) {
  char c = peek(ps);
  switch (c) {
    case '(': ps->at++; return group(ps);
    case '[': return class_once(ps);
    case '.': ps->at++; return dot(ps);
    case '^': ps->at++; return re_start(ps->p);
    case '$': ps->at++; return re_ahead(ps->p, RE_ANY_BYTE, true);
    case '*':
    case '+':
    case '?': return fail(ps, ANE_INVALID, "nothing to repeat");
    case '\\': {
      ps->at++;
      char e = peek(ps);
      if (e == 'b' || e == 'B') {
        ps->at++;
        return re_boundary(ps->p, e == 'B');
      }
      if (e && strchr("dDwWsSpP", e)) {
        ps->at--;
        return class_once(ps);
      }
      uint32_t v = escaped(ps);
      return ps->status ? RE_NONE : single(ps, v);
    }
    default: {
      uint32_t v = character(ps);
      return ps->status ? RE_NONE : single(ps, v);
    }
  }
}

/* {n} {n,} {n,m} {,m}. Returns false if the text is not a quantifier. */
static bool counts(struct parser *ps, uint32_t *lo, uint32_t *hi) {
  size_t at = ps->at + 1;
  uint64_t v[2] = {0, 0};
  bool given[2] = {false, false};
  int i = 0;
  for (; at < ps->len && ps->text[at] != '}'; at++) {
    char c = ps->text[at];
    if (c == ',' && i == 0 && given[0])
      i = 1;
    else if (c >= '0' && c <= '9') {
      given[i] = true;
      v[i] = ANE_MIN(v[i] * 10 + (uint64_t)(c - '0'), (uint64_t)UINT32_MAX);
    } else
      return false;
  }
  if (at >= ps->len || !given[0]) return false;
  ps->at = at + 1;
  *lo = (uint32_t)v[0];
  *hi = i == 0 ? *lo : given[1] ? (uint32_t)v[1] : RE_INF;
  if (*lo > RE_MAX_REPEAT || (*hi > RE_MAX_REPEAT && *hi != RE_INF))
    fail(ps, ANE_RANGE, "a count above 100000");
  else if (*hi < *lo)
    fail(ps, ANE_INVALID, "the minimum count is above the maximum");
  return true;
}

static ane_re repeated(struct parser *ps) {
  ane_re re = atom(ps);
  for (bool again = false; more(ps); again = true) {
    uint32_t lo = 0, hi = RE_INF;
    char c = peek(ps);
    if (c == '*' || c == '+' || c == '?') {
      ps->at++;
      if (c == '+') lo = 1;
      if (c == '?') hi = 1;
    } else if (c != '{' || !counts(ps, &lo, &hi))
      break;
    if (ps->status) return RE_NONE;
    if (again) return fail(ps, ANE_INVALID, "two repetitions follow each other");
    if (peek(ps) == '+') return fail(ps, ANE_UNSUPPORTED, "possessive repetition is not supported");
    take(ps, '?'); /* lazy: the same texts */
    uint8_t kind = re_at(ps->p, re)->kind;
    if (kind == RE_KIND_AHEAD || kind == RE_KIND_START || kind == RE_KIND_BOUNDARY)
      return fail(ps, ANE_INVALID, "nothing to repeat");
    re = re_repeat(ps->p, re, lo, hi);
  }
  return re;
}

static ane_re sequence(struct parser *ps) {
  /* Parts are joined from the right, so that each join is made once. */
  ane_re *parts = NULL, re = RE_EMPTY;
  uint32_t n = 0, room = 0;
  while (more(ps) && peek(ps) != '|' && peek(ps) != ')') {
    ane_re part = repeated(ps);
    if (ps->status) break;
    if (!re_grow((void **)&parts, &room, n, sizeof *parts)) {
      fail(ps, ANE_NOMEM, "no memory for the pattern");
      break;
    }
    parts[n++] = part;
  }
  while (n > 0 && ps->status == ANE_OK) re = re_cat(ps->p, parts[--n], re);
  ane_free(parts);
  return re;
}

static ane_re alternatives(struct parser *ps) {
  if (++ps->depth > RE_MAX_DEPTH) return fail(ps, ANE_RANGE, "groups are nested more than 200 deep");
  ane_re re = sequence(ps);
  while (more(ps) && take(ps, '|')) re = re_alt(ps->p, re, sequence(ps));
  ps->depth--;
  return re;
}

/* ---- Anchors -----------------------------------------------------------------------------------------------------*/

static bool is_end(const struct re_pool *p, ane_re re) {
  const struct re_node *n = re_at(p, re);
  return n->kind == RE_KIND_AHEAD && n->lo && re_at(p, n->a)->kind == RE_KIND_CAT && re_at(p, n->a)->a == RE_ANY_BYTE;
}

/* Allows any text before a match, or none if it begins with ^. */
static ane_re open_front(struct re_pool *p, ane_re re) {
  struct re_node n = *re_at(p, re);
  if (!n.looks_back) return re_cat(p, RE_ALL, re);
  if (n.kind == RE_KIND_START) return RE_EMPTY;
  if (n.kind == RE_KIND_ALT) {
    ane_re a = open_front(p, n.a);
    return re_alt(p, a, open_front(p, n.b));
  }
  if (n.kind == RE_KIND_CAT && re_at(p, n.a)->kind == RE_KIND_START && !re_at(p, n.b)->looks_back) return n.b;
  return re_cat(p, RE_ALL, re);
}

/* Allows any text after a match, or none if it ends with $. */
static ane_re open_back(struct parser *ps, ane_re re, int depth) {
  struct re_pool *p = ps->p;
  if (!re_at(p, re)->asserts || depth > RE_MAX_DEPTH) return re_cat(p, re, RE_ALL);
  ane_re *heads = NULL;
  uint32_t n = 0, room = 0;
  for (; re_at(p, re)->kind == RE_KIND_CAT; re = re_at(p, re)->b) {
    if (!re_grow((void **)&heads, &room, n, sizeof *heads)) {
      ane_free(heads);
      return fail(ps, ANE_NOMEM, "no memory for the pattern");
    }
    heads[n++] = re_at(p, re)->a;
  }
  struct re_node last = *re_at(p, re);
  if (is_end(p, re))
    re = RE_EMPTY;
  else if (last.kind == RE_KIND_ALT && last.asserts) {
    re = open_back(ps, last.a, depth + 1);
    for (ane_re rest = last.b; rest != RE_NONE;) {
      struct re_node r = *re_at(p, rest);
      re = re_alt(p, re, open_back(ps, r.kind == RE_KIND_ALT ? r.a : rest, depth + 1));
      rest = r.kind == RE_KIND_ALT ? r.b : RE_NONE;
    }
  } else
    re = re_cat(p, re, RE_ALL);
  while (n > 0) re = re_cat(p, heads[--n], re);
  ane_free(heads);
  return re;
}

ane_status re_parse(struct re_pool *p, const char *text, size_t len, unsigned syntax, ane_re *out, struct ane_error *err) {
  struct parser ps = {.p = p, .text = text, .len = len, .syntax = syntax, .err = err};
  if (len > RE_MAX_PATTERN) return ane_fail(err, ANE_RANGE, "a pattern of %zu bytes, the limit is %d", len, RE_MAX_PATTERN);
  p->step_limit = p->steps + RE_MAX_STEPS;
  if (len >= 4 && memcmp(text, "(?i)", 4) == 0) {
    ps.syntax |= RE_NO_CASE;
    ps.at = 4;
  }
  ane_re re = alternatives(&ps);
  if (ps.status == ANE_OK && ps.at < len) fail(&ps, ANE_INVALID, ") has no (");
  if (ps.status) return ps.status;
  /* A search allows any text before and after; an anchor at an end allows none. */
  *out = syntax & RE_SEARCH ? open_front(p, open_back(&ps, re, 0)) : re;
  if (ps.status) return ps.status;
  if (p->full)
    return p->no_memory ? ane_fail(err, ANE_NOMEM, "no memory for the pattern")
                        : ane_fail(err, ANE_RANGE, "the pattern is too large");
  return ANE_OK;
}
