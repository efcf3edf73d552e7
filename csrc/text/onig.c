/* Patterns of tokenizer.json files are written for Oniguruma in its Ruby syntax (doc/RE of kkos/oniguruma), but PCRE2 runs them.
 * Syntax that both read alike is copied; the rest is rewritten here:
 *
 *   \s \S \w \W \h \H \O \uHHHH   other sets, or unknown to PCRE2
 *   \b \B                         by \w as it is here
 *   \p{Han}                       a script there, script extensions here; long names of categories; POSIX names
 *   [a[bc]] [a-z&&[^b]]           sets in sets
 *   (?m)                          the dot matches line ends: (?s) here; ^ and $ are always at lines
 *   a{,3}  a{1,2}+  a{2}?         {0,3}; not possessive; not lazy */
#include "text/text_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64, NAME = 48 };

/* White_Space (Unicode 15, PropList.txt). PCRE2's own \s also contains U+180E, which has not been White_Space since Unicode 6.3.
 * Ranges are faster than \p{White_Space}. */
#define SPACES "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
/* Alphabetic, M, Nd, Pc; but in [[:word:]] also six numbers of Latin-1 that Oniguruma's table for that block adds. */
#define POSIX_WORD                                                                                                               \
  "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define WORD POSIX_WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
#define GRAPH "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}"
#define ALPHA "\\p{L}\\p{Nl}\\p{Alphabetic}"

struct set_name {
  const char *name, *items;
};

/* Names whose set in a POSIX bracket differs from that of the property. */
static const struct set_name brackets[] = {
    {"word", POSIX_WORD},
    {"punct", "\\p{P}\\p{S}"},
};

/* Maps the name of a property or POSIX bracket to the items of a class. Names are in lower case, without blanks, '_' and '-'. */
static const struct set_name names[] = {
    {"alpha", ALPHA},
    {"digit", "\\p{Nd}"},
    {"alnum", ALPHA "\\p{Nd}"},
    {"space", SPACES},
    {"whitespace", SPACES},
    {"blank", "\\t\\p{Zs}"},
    {"upper", "\\p{Uppercase}"},
    {"lower", "\\p{Lowercase}"},
    {"xdigit", "0-9a-fA-F"},
    {"word", WORD},
    {"cntrl", "\\p{Cc}"},
    {"punct", "\\p{P}"},
    {"graph", GRAPH},
    {"print", GRAPH "\\p{Zs}"},
    {"any", "\\x{0}-\\x{10FFFF}"},
    {"letter", "\\p{L}"},
    {"uppercaseletter", "\\p{Lu}"},
    {"lowercaseletter", "\\p{Ll}"},
    {"titlecaseletter", "\\p{Lt}"},
    {"modifierletter", "\\p{Lm}"},
    {"otherletter", "\\p{Lo}"},
    {"mark", "\\p{M}"},
    {"combiningmark", "\\p{M}"},
    {"nonspacingmark", "\\p{Mn}"},
    {"spacingmark", "\\p{Mc}"},
    {"enclosingmark", "\\p{Me}"},
    {"number", "\\p{N}"},
    {"decimalnumber", "\\p{Nd}"},
    {"letternumber", "\\p{Nl}"},
    {"othernumber", "\\p{No}"},
    {"punctuation", "\\p{P}"},
    {"connectorpunctuation", "\\p{Pc}"},
    {"dashpunctuation", "\\p{Pd}"},
    {"openpunctuation", "\\p{Ps}"},
    {"closepunctuation", "\\p{Pe}"},
    {"initialpunctuation", "\\p{Pi}"},
    {"finalpunctuation", "\\p{Pf}"},
    {"otherpunctuation", "\\p{Po}"},
    {"symbol", "\\p{S}"},
    {"mathsymbol", "\\p{Sm}"},
    {"currencysymbol", "\\p{Sc}"},
    {"modifiersymbol", "\\p{Sk}"},
    {"othersymbol", "\\p{So}"},
    {"separator", "\\p{Z}"},
    {"spaceseparator", "\\p{Zs}"},
    {"lineseparator", "\\p{Zl}"},
    {"paragraphseparator", "\\p{Zp}"},
    {"other", "\\p{C}"},
    {"control", "\\p{Cc}"},
    {"format", "\\p{Cf}"},
};

struct onig {
  const char *p;
  struct ane_buffer *out;
  ane_status st;
  struct ane_error *err;
  int depth;                /* of classes */
  size_t groups[MAX_DEPTH]; /* where each open group begins in out */
  int n_groups;
  size_t atom; /* start of the item that a quantifier would repeat; SIZE_MAX: none */
};

static void refuse(struct onig *o, const char *what) {
  if (!o->st) o->st = ane_fail(o->err, ANE_UNSUPPORTED, "%s is not supported", what);
}

static void add_to(struct onig *o, struct ane_buffer *b, const char *s, size_t n) {
  if (!o->st && !ane_buffer_append(b, s, n)) o->st = ane_fail(o->err, ANE_NOMEM, "no memory for a pattern");
}

static void add(struct onig *o, const char *s) { add_to(o, o->out, s, strlen(s)); }

/* ---- Sets --------------------------------------------------------------------------------------------------------*/

static bool is_script(const char *name) {
  char pattern[NAME + 16];
  int code;
  PCRE2_SIZE at;
  snprintf(pattern, sizeof pattern, "\\p{sc:%s}", name);
  pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
  pcre2_code_free(compiled);
  return compiled != NULL;
}

static const char *find_name(const struct set_name *list, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(list[i].name, name) == 0) return list[i].items;
  return NULL;
}

/* The items of a named set s[0..n). A leading '^' inverts *negated. bracket: the name comes from [:name:]. */
static void named(struct onig *o, const char *s, size_t n, bool bracket, bool *negated, char items[256]) {
  char name[NAME];
  size_t len = 0;
  items[0] = '\0';
  if (n && *s == '^') {
    *negated = !*negated;
    s++;
    n--;
  }
  for (size_t i = 0; i < n && len + 1 < sizeof name; i++)
    if (!strchr(" _-", s[i])) name[len++] = (char)(s[i] >= 'A' && s[i] <= 'Z' ? s[i] | 32 : s[i]);
  name[len] = '\0';
  const char *found = bracket ? find_name(brackets, ANE_COUNT(brackets), name) : NULL;
  if (!found) found = find_name(names, ANE_COUNT(names), name);
  if (found)
    snprintf(items, 256, "%s", found);
  else if (n == 0 || n >= sizeof name || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") != len)
    refuse(o, "this name of a property");
  else
    snprintf(items, 256, len > 2 && is_script(name) ? "\\p{sc:%.*s}" : "\\p{%.*s}", (int)n, s);
}

/* Reads an escape that is a set: its items, and whether it is negated. false: it is not a set, and o->p is unchanged. */
static bool set_escape(struct onig *o, char items[256], bool *negated) {
  static const struct {
    char letter;
    const char *items;
  } sets[] = {{'s', SPACES}, {'w', WORD}, {'d', "\\p{Nd}"}, {'h', "0-9a-fA-F"}};
  char c = o->p[1];
  *negated = c >= 'A' && c <= 'Z';
  if (c == 'p' || c == 'P') {
    const char *close = o->p[2] == '{' ? strchr(o->p, '}') : NULL;
    if (!close) {
      refuse(o, "\\p without a name in braces");
      return false;
    }
    named(o, o->p + 3, (size_t)(close - o->p - 3), false, negated, items);
    o->p = close + 1;
    return true;
  }
  for (size_t i = 0; i < ANE_COUNT(sets); i++)
    if (sets[i].letter == c || (sets[i].letter & ~32) == c) {
      snprintf(items, 256, "%s", sets[i].items);
      o->p += 2;
      return true;
    }
  return false;
}

/* Reads the escape of a single character at o->p. */
static void char_escape(struct onig *o, struct ane_buffer *out) {
  char text[12];
  size_t n;
  if (o->p[1] == 'u') {
    if (strspn(o->p + 2, "0123456789abcdefABCDEF") < 4) {
      refuse(o, "\\u without four hex digits");
      return;
    }
    snprintf(text, sizeof text, "\\x{%.4s}", o->p + 2);
    add_to(o, out, text, strlen(text));
    o->p += 6;
    return;
  }
  if (!o->p[1]) {
    refuse(o, "a backslash at the end");
    return;
  }
  ane_char_at(o->p + 1, strlen(o->p + 1), &n);
  add_to(o, out, o->p, n + 1);
  o->p += n + 1;
}

/* ---- Classes -----------------------------------------------------------------------------------------------------*/

/* An operand of && in a class: the items that a PCRE2 class can hold, and expressions for the rest, each after a '|'. */
struct operand {
  struct ane_buffer items, others;
};

static void class(struct onig *o, struct ane_buffer *out);

/* A set inside a class. The complement of one property is a property. */
static void add_set(struct onig *o, struct operand *x, char *items, bool negated) {
  const char *close = strchr(items, '}');
  if (negated && strcmp(items, SPACES) == 0) {
    strcpy(items, "\\P{White_Space}");
    negated = false;
  } else if (negated && strncmp(items, "\\p{", 3) == 0 && close && !close[1]) {
    items[1] = 'P';
    negated = false;
  }
  struct ane_buffer *b = negated ? &x->others : &x->items;
  add_to(o, b, negated ? "|[^" : "", negated ? 3 : 0);
  add_to(o, b, items, strlen(items));
  add_to(o, b, "]", negated ? 1 : 0);
  if (o->p[0] == '-' && o->p[1] != ']') refuse(o, "a range that begins with a set");
}

/* Reads [:name:] at o->p. false: there is none. */
static bool posix(struct onig *o, struct operand *x) {
  char items[256];
  bool negated = false;
  if (o->p[0] != '[' || o->p[1] != ':') return false;
  const char *close = strstr(o->p + 2, ":]");
  size_t n = strspn(o->p + 2, "^abcdefghijklmnopqrstuvwxyz");
  if (!close || o->p + 2 + n != close) return false;
  named(o, o->p + 2, n, true, &negated, items);
  o->p = close + 2;
  add_set(o, x, items, negated);
  return true;
}

static void class_item(struct onig *o, struct operand *x) {
  char items[256];
  bool negated;
  size_t n;
  if (posix(o, x)) return;
  if (*o->p == '[') {
    add_to(o, &x->others, "|", 1);
    class(o, &x->others);
  } else if (*o->p == '\\') {
    if (set_escape(o, items, &negated))
      add_set(o, x, items, negated);
    else
      char_escape(o, &x->items);
  } else {
    ane_char_at(o->p, strlen(o->p), &n);
    add_to(o, &x->items, o->p, n);
    o->p += n;
  }
}

/* Appends the operand as an expression for one character; complement: for one that is not in it. */
static void add_operand(struct onig *o, struct ane_buffer *out, const struct operand *x, bool complement) {
  const char *others = (const char *)x->others.data;
  if (!x->items.size && !x->others.size) refuse(o, "an empty class");
  if (complement && x->others.size) add_to(o, out, "(?:(?!", 6);
  if (x->others.size) add_to(o, out, "(?:", 3);
  if (x->items.size) {
    add_to(o, out, complement && !x->others.size ? "[^" : "[", complement && !x->others.size ? 2 : 1);
    add_to(o, out, (const char *)x->items.data, x->items.size);
    add_to(o, out, "]", 1);
  }
  if (x->others.size) {
    size_t skip = x->items.size ? 0 : 1;
    add_to(o, out, others + skip, x->others.size - skip);
    add_to(o, out, ")", 1);
    if (complement) add_to(o, out, ")(?s:.))", 8);
  }
}

/* Reads one operand, up to && or the end. Frees nothing. */
static void operand(struct onig *o, struct operand *x, bool first) {
  if (first && *o->p == ']') { /* at the beginning ']' is a literal character, as in PCRE2 */
    add_to(o, &x->items, "\\]", 2);
    o->p++;
  }
  while (!o->st && *o->p && *o->p != ']' && strncmp(o->p, "&&", 2) != 0) class_item(o, x);
  if (!*o->p) refuse(o, "a class without end");
}

/* Reads the class at o->p. */
static void class(struct onig *o, struct ane_buffer *out) {
  struct ane_buffer whole = {0};
  int n = 0;
  if (++o->depth > MAX_DEPTH) refuse(o, "a class so deeply nested");
  bool complement = o->p[1] == '^', last = false;
  o->p += complement ? 2 : 1;
  while (!o->st && !last) {
    struct operand x = {0};
    operand(o, &x, n == 0);
    last = *o->p == ']';
    o->p += last ? 1 : *o->p ? 2 : 0;
    bool alone = last && n == 0;
    if (!alone && !last) add_to(o, &whole, "(?=", 3);
    add_operand(o, alone ? out : &whole, &x, alone && complement);
    if (!alone && !last) add_to(o, &whole, ")", 1);
    n++;
    ane_buffer_free(&x.items);
    ane_buffer_free(&x.others);
  }
  if (n > 1) {
    const char *before = complement ? "(?:(?!" : "(?:", *after = complement ? ")(?s:.))" : ")";
    add_to(o, out, before, strlen(before));
    add_to(o, out, (const char *)whole.data, whole.size);
    add_to(o, out, after, strlen(after));
  }
  ane_buffer_free(&whole);
  o->depth--;
}

/* ---- Groups and quantifiers --------------------------------------------------------------------------------------*/

static void open_group(struct onig *o) {
  if (o->n_groups == MAX_DEPTH) {
    refuse(o, "a group so deeply nested");
    return;
  }
  o->groups[o->n_groups++] = o->out->size;
}

/* Reads the options of "(?imx-imx", after its first two characters; ':' or ')' follows. */
static void options(struct onig *o, size_t n) {
  bool whole = o->p[2 + n] == ')';
  if (whole && o->atom != SIZE_MAX) refuse(o, "an option in the middle of an alternative");
  if (!whole) open_group(o);
  add(o, "(?");
  for (size_t i = 0; i < n; i++) add_to(o, o->out, o->p[2 + i] == 'm' ? "s" : o->p + 2 + i, 1);
  add_to(o, o->out, o->p + 2 + n, 1);
  o->p += n + 3;
}

static void group(struct onig *o) {
  size_t n = strspn(o->p + 1, "?") ? strspn(o->p + 2, "imx-") : 0;
  const char *close = strchr(o->p, ')');
  if (o->p[1] == '*' || strncmp(o->p, "(?#", 3) == 0) { /* a verb or a comment */
    if (!close)
      refuse(o, "a group without end");
    else
      add_to(o, o->out, o->p, (size_t)(close + 1 - o->p));
    o->p = close ? close + 1 : o->p;
    return;
  }
  if (n && (o->p[2 + n] == ':' || o->p[2 + n] == ')')) {
    options(o, n);
  } else {
    n = o->p[1] != '?' ? 1 : o->p[2] == '<' && (o->p[3] == '=' || o->p[3] == '!') ? 4 : o->p[2] ? 3 : 2;
    open_group(o);
    add_to(o, o->out, o->p, n);
    o->p += n;
  }
  o->atom = SIZE_MAX;
}

static void end_group(struct onig *o) {
  if (o->n_groups) o->atom = o->groups[--o->n_groups];
  add(o, ")");
  o->p++;
}

/* Wraps the atom in "(?:" and ")". */
static void wrap(struct onig *o) {
  size_t size = o->out->size - o->atom;
  add(o, "(?:)");
  if (o->st) return;
  char *at = (char *)o->out->data + o->atom;
  memmove(at + 3, at, size);
  memcpy(at, "(?:", 3);
  at[size + 3] = ')';
}

/* Reads {n} {n,} {,n} {n,m} at o->p. false: the brace is a literal character. */
static bool interval(struct onig *o) {
  static const char digits[] = "0123456789";
  const char *p = o->p + 1;
  size_t low = strspn(p, digits), comma = p[low] == ',', high = comma ? strspn(p + low + 1, digits) : 0;
  if (o->atom == SIZE_MAX || p[low + comma + high] != '}' || (!low && !high)) return false;
  add(o, low ? "{" : "{0");
  add_to(o, o->out, p, low + comma + high + 1);
  o->p = p + low + comma + high + 1;
  if (*o->p == '+' || (*o->p == '?' && !comma)) wrap(o);
  return true;
}

static void quantifier(struct onig *o) {
  if (*o->p != '{') {
    size_t n = o->p[1] == '?' || o->p[1] == '+' ? 2 : 1;
    add_to(o, o->out, o->p, n);
    o->p += n;
  } else if (!interval(o)) {
    o->atom = o->out->size;
    add(o, "\\{");
    o->p++;
  }
}

static void plain_escape(struct onig *o) {
  char items[256];
  bool negated;
  if (o->p[1] == 'y' || o->p[1] == 'Y') refuse(o, "\\y");
  o->atom = o->out->size;
  if (o->p[1] == 'O') {
    add(o, "(?s:.)");
    o->p += 2;
  } else if (o->p[1] == 'b' || o->p[1] == 'B') {
    bool edge = o->p[1] == 'b';
    add(o, edge ? "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"
                : "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
    o->p += 2;
  } else if (set_escape(o, items, &negated)) {
    add(o, negated ? "[^" : "[");
    add(o, items);
    add(o, "]");
  } else {
    char_escape(o, o->out);
  }
}

ane_status ane_onig_translate(const char *pattern, struct ane_buffer *out, struct ane_error *err) {
  struct onig o = {.p = pattern, .out = out, .err = err, .atom = SIZE_MAX};
  while (!o.st && *o.p) {
    size_t n;
    switch (*o.p) {
      case '\\': plain_escape(&o); break;
      case '[':
        o.atom = out->size;
        class(&o, out);
        break;
      case '(': group(&o); break;
      case ')': end_group(&o); break;
      case '{':
      case '*':
      case '+':
      case '?': quantifier(&o); break;
      case '|':
        o.atom = SIZE_MAX;
        add(&o, "|");
        o.p++;
        break;
      default:
        o.atom = out->size;
        ane_char_at(o.p, strlen(o.p), &n);
        add_to(&o, out, o.p, n);
        o.p += n;
    }
  }
  return o.st;
}
