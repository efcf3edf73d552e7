/* Steps of a JSON text: see json_machine.h. */
#include "base/alloc.h"
#include "base/utf8.h"
#include "grammar/json_machine.h"
#include "grammar/regex_internal.h"

#include <string.h>

static const char *const words[] = {"null", "false", "true"};

/* ---- Values ------------------------------------------------------------------------------------------------------*/

/* Enters the context of a type for the value that begins at the state. NULL: no value of the type is possible. */
static struct typed_context *enter(struct json_machine *m, struct json_state *st, uint8_t type) {
  struct value_context *p = m->contexts[st->context->number];
  struct typed_context *t = json_typed(m, p, type);
  if (!t) return NULL;
  st->typed = t;
  st->failed = 0;
  if (t->all_true) return t;
  bool fixed[64], any = false, *failed = p->n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, p->n, sizeof *failed);
  if (!failed) return NULL;
  for (uint32_t i = 0; i < p->n; i++) any |= failed[i] = t->e[i] == EXPR_FALSE;
  return !any || json_survives(m, st->frame, failed, p->n) ? t : NULL;
}

/* Completes a value whose type alone decides each goal. */
static bool done_plain(struct json_machine *m, struct json_state *st, uint64_t hash) {
  uint32_t n = st->context->n;
  bool fixed[64], *results = n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, n, sizeof *results);
  if (!results) return false;
  for (uint32_t i = 0; i < n; i++) results[i] = st->typed->e[i] == EXPR_TRUE;
  return json_done(m, st, results, hash);
}

/* Records goals that have failed. false: the root can no longer be satisfied. */
static bool note_failed(struct json_machine *m, struct json_state *st, const bool *failed, uint32_t n) {
  uint64_t bits = 0;
  bool news = n > 64;
  /* analyser: failed holds n flags; one that is alone has n = 1. */
  for (uint32_t i = 0; i < n && i < 64; i++) bits |= (uint64_t)failed[i] << i;
  news |= (bits & ~st->failed) != 0;
  st->failed |= bits;
  return !news || json_survives(m, st->frame, failed, n);
}

/* ---- Strings -----------------------------------------------------------------------------------------------------*/

/* Does no continuation of the string satisfy goal i? */
static bool part_fails(const struct json_machine *m, const struct json_state *st, uint32_t i) {
  uint32_t s = m->tuples[st->tuple].states[i], min = st->typed->min[i], max = st->typed->max[i];
  const struct re_node *x = re_at(&m->s->pool, m->s->pool.states[s].re);
  return !s || (uint64_t)st->length + x->min_chars > max || (x->max_chars != RE_INF && (uint64_t)st->length + x->max_chars < min);
}

uint64_t json_string_failed(const struct json_machine *m, const struct json_state *st, bool bounds) {
  const struct tuple *parts = &m->tuples[st->tuple];
  uint64_t bits = 0;
  for (uint32_t i = 0; i < parts->n; i++) bits |= (uint64_t)(bounds ? part_fails(m, st, i) : !parts->states[i]) << i;
  return bits;
}

bool json_string_survives(struct json_machine *m, const struct json_state *st, uint64_t failed) {
  bool list[64];
  uint32_t n = m->tuples[st->tuple].n;
  for (uint32_t i = 0; i < n; i++) list[i] = failed >> i & 1;
  return !failed || json_survives(m, st->frame, list, n);
}

/* Finds the goals that no continuation of the string satisfies. */
static bool evaluate_string(struct json_machine *m, struct json_state *st) {
  uint32_t n = m->tuples[st->tuple].n;
  if (n == 0) return true;
  if (n == 1) { /* nearly always */
    bool failed = part_fails(m, st, 0);
    return !failed || note_failed(m, st, &failed, 1);
  }
  bool fixed[64], any = false, *failed = n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, n, sizeof *failed);
  if (!failed) return false;
  for (uint32_t i = 0; i < n; i++) any |= failed[i] = part_fails(m, st, i);
  return !any || note_failed(m, st, failed, n);
}

static bool end_string(struct json_machine *m, struct json_state *st) {
  const struct typed_context *t = st->typed;
  const struct tuple *parts = &m->tuples[st->tuple];
  uint32_t n = st->context->n;
  uint64_t hash = json_mix(st->hash, JSON_STRING_END);
  if (t->all_true) return done_plain(m, st, hash);
  bool fixed[64], *results = n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, n, sizeof *results);
  if (!results) return false;
  for (uint32_t i = 0; i < n; i++)
    results[i] = m->s->pool.states[parts->states[i]].accepts && st->length >= t->min[i] && st->length <= t->max[i];
  return json_done(m, st, results, hash);
}

bool json_string_viable(struct json_machine *m, const struct json_state *st) {
  struct json_state probe = *st;
  probe.failed = 0;
  return evaluate_string(m, &probe);
}

/* Adds one byte of a decoded string. */
static bool content(struct json_machine *m, struct json_state *st, uint8_t byte) {
  if (st->mode == MODE_KEY) return json_key_byte(m, st, byte);
  st->hash = json_mix(st->hash, byte);
  st->length += (byte & 0xc0) != 0x80;
  if (m->tuples[st->tuple].n == 0) return true;
  st->tuple = json_tuple_next(m, st->tuple, byte);
  return evaluate_string(m, st) && json_element_may_be_new(m, st);
}

/* Adds a character. If that fails, *last is the last character whose UTF-8 begins with the same bytes, up to the refused one. */
static bool add_char(struct json_machine *m, struct json_state *st, uint32_t c, uint32_t *last) {
  const int tail = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; /* bytes after the first */
  static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
  for (int left = tail; left >= 0; left--) {
    const uint32_t bits = c >> 6 * left;
    *last = c | ((1u << 6 * left) - 1);
    if (!content(m, st, (uint8_t)(left == tail ? lead[tail] | bits : 0x80 | (bits & 63)))) return false;
  }
  return true;
}

static bool content_char(struct json_machine *m, struct json_state *st, uint32_t c) {
  uint32_t last;
  return add_char(m, st, c, &last);
}

/* May some character in lo .. hi come? Used for incomplete escapes. In most states one of the first that are tested is allowed.
 * All characters that begin with a byte that is refused are passed over at once. */
static bool some_char(struct json_machine *m, const struct json_state *st, uint32_t lo, uint32_t hi) {
  const struct json_mark mark = json_mark_of(m->tape);
  if (st->mode == MODE_STRING && m->tuples[st->tuple].n == 0) return true;
  for (uint32_t c = lo, last; c <= hi; c = last + 1) {
    struct json_state probe = *st;
    if (c >= 0xd800 && c < 0xe000) c = 0xe000;
    if (c > hi) break;
    bool ok = add_char(m, &probe, c, &last);
    json_rewind(m->tape, mark);
    if (ok) return true;
    if (m->no_memory || m->too_large || m->s->pool.full) return false;
  }
  return false;
}

enum {
  ESC_NONE,
  ESC_BACKSLASH,
  ESC_HEX,
  ESC_HEX_LAST = ESC_HEX + 3,
  ESC_LOW_BACKSLASH,
  ESC_LOW_U,
  ESC_LOW_HEX,
  ESC_LOW_LAST = ESC_LOW_HEX + 3
};

static int hex_digit(uint8_t c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static bool any_escape(struct json_machine *m, const struct json_state *st) {
  if (m->tape->canonical)
    return some_char(m, st, 0, 0x1f) ||
           (st->escape == ESC_BACKSLASH && (some_char(m, st, '"', '"') || some_char(m, st, '\\', '\\')));
  return some_char(m, st, 'a', 'z') || some_char(m, st, 0, 0x10ffff);
}

/* Reads a digit of \uXXXX, if the code so far and some continuation are allowed. */
static bool hex_byte(struct json_machine *m, struct json_state *st, uint8_t byte) {
  int d = hex_digit(byte);
  if (d < 0) return false;
  bool low = st->escape >= ESC_LOW_HEX;
  int left = (low ? ESC_LOW_LAST : ESC_HEX_LAST) - st->escape; /* digits after this one */
  st->code = st->code * 16 + (uint32_t)d;
  uint32_t lo = st->code << 4 * left, hi = lo + (1u << 4 * left) - 1;
  if (m->tape->canonical) {
    if (low || lo > 0x1f) return false;
    hi = ANE_MIN(hi, 0x1f);
  }
  if (low) {
    lo = ANE_MAX(lo, 0xdc00);
    hi = ANE_MIN(hi, 0xdfff);
    if (lo > hi) return false;
    uint32_t base = 0x10000 + ((uint32_t)st->high << 10) - 0xdc00;
    if (left == 0) {
      st->escape = ESC_NONE;
      return content_char(m, st, base + lo);
    }
    st->escape++;
    return some_char(m, st, base + lo, base + hi);
  }
  if (left == 0) {
    if (lo >= 0xdc00 && lo < 0xe000) return false;
    if (lo >= 0xd800 && lo < 0xdc00) {
      st->high = (uint16_t)(lo - 0xd800);
      st->escape = ESC_LOW_BACKSLASH;
      return some_char(m, st, 0x10000 + ((uint32_t)st->high << 10), 0x10000 + ((uint32_t)st->high << 10) + 0x3ff);
    }
    st->escape = ESC_NONE;
    return content_char(m, st, lo);
  }
  st->escape++;
  if (some_char(m, st, lo, hi)) return true;
  /* First halves of surrogate pairs. */
  uint32_t from = ANE_MAX(lo, 0xd800), to = ANE_MIN(hi, 0xdbff);
  return from <= to && some_char(m, st, 0x10000 + ((from - 0xd800) << 10), 0x10000 + ((to - 0xd800) << 10) + 0x3ff);
}

static bool escape_byte(struct json_machine *m, struct json_state *st, uint8_t byte) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (st->escape == ESC_BACKSLASH) {
    if (byte == 'u') {
      st->escape = ESC_HEX;
      st->code = 0;
      return any_escape(m, st);
    }
    const char *at = byte ? strchr(from, byte) : NULL;
    if (!at || (byte == '/' && m->tape->canonical)) return false;
    st->escape = ESC_NONE;
    return content(m, st, (uint8_t)to[at - from]);
  }
  if (st->escape == ESC_LOW_BACKSLASH || st->escape == ESC_LOW_U) {
    if (byte != (st->escape == ESC_LOW_BACKSLASH ? '\\' : 'u')) return false;
    st->escape++;
    st->code = 0;
    return true;
  }
  return hex_byte(m, st, byte);
}

/* Bytes of UTF-8 (Unicode 15, table 3-7). */
static bool utf8_byte(struct json_state *st, uint8_t byte) {
  if (st->need > 0) {
    if (byte < st->from || byte > st->to) return false;
    st->need--;
    st->from = 0x80;
    st->to = 0xbf;
    return true;
  }
  if (byte < 0x80) return true;
  int n = ane_utf8_lead(byte, &st->from, &st->to);
  if (!n) return false;
  st->need = (uint8_t)(n - 1);
  return true;
}

static bool string_byte(struct json_machine *m, struct json_state *st, uint8_t byte) {
  if (st->escape) return escape_byte(m, st, byte);
  if (!utf8_byte(st, byte) || byte < 0x20) return false;
  if (byte == '\\') {
    st->escape = ESC_BACKSLASH;
    return any_escape(m, st);
  }
  if (byte != '"') return content(m, st, byte);
  if (st->mode == MODE_STRING) return end_string(m, st);
  st->mode = MODE_COLON;
  st->spaces = 0;
  return json_key_end(m, st);
}

/* ---- Numbers -----------------------------------------------------------------------------------------------------*/

/* Evaluates a goal of a number that ends in `part`. d: the value of a complete number; NULL: more may come. */
static status3 evaluate_number(struct json_machine *m, expr_id e, const char *s, size_t len, number_part part,
                               const struct decimal *d) {
  if (e < 2) return e == EXPR_TRUE ? STATUS_TRUE : STATUS_FALSE;
  const struct expr *x = &m->s->exprs[e];
  uint32_t sure = 0, open = 0, wrong = 0;
  if (x->kind == EXPR_ATOM) {
    const struct number_rule *r = &m->s->atoms[x->atom].number;
    if (r->plain && part >= NUMBER_POINT) return STATUS_FALSE;
    if (d) return number_fits(r, d) ? STATUS_TRUE : STATUS_FALSE;
    return number_viable(r, s, len, part) ? STATUS_OPEN : STATUS_FALSE;
  }
  for (uint32_t i = 0; i < x->n; i++) {
    status3 one = evaluate_number(m, x->list[i], s, len, part, d);
    sure += one == STATUS_TRUE;
    open += one == STATUS_OPEN;
    wrong += one == STATUS_FALSE;
  }
  switch (x->kind) {
    case EXPR_NOT: return sure ? STATUS_FALSE : wrong ? STATUS_TRUE : STATUS_OPEN;
    case EXPR_AND: return wrong ? STATUS_FALSE : open ? STATUS_OPEN : STATUS_TRUE;
    case EXPR_OR: return sure ? STATUS_TRUE : open ? STATUS_OPEN : STATUS_FALSE;
    default: return sure > 1 ? STATUS_FALSE : open ? STATUS_OPEN : sure == 1 ? STATUS_TRUE : STATUS_FALSE;
  }
}

/* May the value that is read end with these results? The state stays as it is. */
static bool may_end(struct json_machine *m, const struct json_state *st, const bool *results, uint64_t hash) {
  struct json_state probe = *st;
  struct json_mark mark = json_mark_of(m->tape);
  bool ok = json_done(m, &probe, results, hash);
  json_rewind(m->tape, mark);
  return ok;
}

/* May the number that is read, of at most 64 goals, be d? */
static bool number_may_be(struct json_machine *m, const struct json_state *st, number_part part, const struct decimal *d) {
  bool results[64];
  for (uint32_t i = 0; i < st->context->n; i++) results[i] = evaluate_number(m, st->typed->e[i], NULL, 0, part, d) == STATUS_TRUE;
  return may_end(m, st, results, decimal_hash(d));
}

enum { FEW_NUMBERS = 16 };

/* Can the number s[0..len) become one with which the root can be satisfied? Goals are tested one by one elsewhere. This tests
 * them together, and against the earlier elements of an array with uniqueItems. It does so if some goal that has to hold allows
 * at most FEW_NUMBERS numbers, else it returns true. */
static bool some_number(struct json_machine *m, const struct json_state *st, const char *s, size_t len, number_part part) {
  const struct typed_context *t = st->typed;
  uint32_t n = st->context->n, few = NO_LIMIT;
  bool list[64] = {false};
  bool compared = st->frame && st->frame->typed->unique && st->frame->others;
  if (n == 0 || n > ANE_COUNT(list) || (n == 1 && t->ruled[0] && !compared)) return true;
  for (uint32_t i = 0; i < n && few == NO_LIMIT; i++) {
    if (!t->ruled[i] || number_count(&t->rules[i]) > FEW_NUMBERS) continue;
    list[i] = true;
    if (!json_survives(m, st->frame, list, n)) few = i;
    list[i] = false;
  }
  if (few == NO_LIMIT) return true;
  struct decimal d;
  if (number_whole(part) && decimal_read(&d, s, len) && number_may_be(m, st, part, &d)) return true;
  for (uint32_t k = number_count(&t->rules[few]); k-- > 0;) {
    char text[24];
    if (!number_nth(&t->rules[few], k, text, &d)) continue;
    struct number_rule one = {.points = &d, .n_points = 1};
    if (!number_viable(&one, s, len, part)) continue;
    if (number_may_be(m, st, part, &d)) return true;
  }
  return false;
}

static bool number_byte(struct json_machine *m, struct json_state *st, uint8_t byte) {
  const struct typed_context *t = st->typed;
  number_part part = number_step((number_part)st->part, (char)byte);
  if (!part) return false;
  st->part = (uint8_t)part;
  const char *s = (const char *)m->tape->bytes + st->start;
  size_t len = st->position - st->start;
  if (len > NUMBER_LONGEST) return false;
  uint32_t n = st->context->n;
  bool fixed[64], any = false, *failed = n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, n, sizeof *failed);
  if (!failed) return false;
  static const struct number_rule plain = {0};
  if (t->all_true) return number_viable(&plain, s, len, part);
  for (uint32_t i = 0; i < n; i++) {
    if (t->e[i] < 2)
      failed[i] = t->e[i] == EXPR_FALSE;
    else if (t->ruled[i] && (t->rules[i].plain || (m->tape->canonical && t->rules[i].integer)) && part >= NUMBER_POINT)
      failed[i] = true;
    else if (t->ruled[i])
      failed[i] = !number_viable(&t->rules[i], s, len, part);
    else
      failed[i] = evaluate_number(m, t->e[i], s, len, part, NULL) == STATUS_FALSE;
    any |= failed[i];
  }
  return (!any || note_failed(m, st, failed, n)) && some_number(m, st, s, len, part);
}

static bool end_number(struct json_machine *m, struct json_state *st) {
  struct decimal d;
  if (!number_whole((number_part)st->part)) return false;
  if (st->typed->all_true && !(st->frame && st->frame->hashing)) return done_plain(m, st, 0);
  if (!decimal_read(&d, (const char *)m->tape->bytes + st->start, st->position - st->start)) return false;
  uint32_t n = st->context->n;
  bool fixed[64], *results = n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, n, sizeof *results);
  if (!results) return false;
  for (uint32_t i = 0; i < n; i++)
    results[i] = evaluate_number(m, st->typed->e[i], NULL, 0, (number_part)st->part, &d) == STATUS_TRUE;
  return json_done(m, st, results, decimal_hash(&d));
}

/* ---- Structure ---------------------------------------------------------------------------------------------------*/

static bool is_blank(uint8_t c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Reads a blank: after a colon or a comma, and elsewhere if the options allow it. */
static bool blank(struct json_machine *m, struct json_state *st, uint8_t byte) {
  bool behind = (st->mode == MODE_VALUE && st->frame && (st->frame->object || st->frame->count > 0)) || st->mode == MODE_MEMBER;
  if (m->separators && (!behind || byte != ' ')) return false;
  return st->spaces++ < m->max_spaces;
}

/* Tests a word at its first byte, which decides its value. */
static bool word_may_end(struct json_machine *m, const struct json_state *st) {
  struct json_state probe = *st;
  struct json_mark mark = json_mark_of(m->tape);
  bool ok = done_plain(m, &probe, 0x100u + st->word);
  json_rewind(m->tape, mark);
  return ok;
}

static bool value_byte(struct json_machine *m, struct json_state *st, uint8_t byte) {
  st->hash = JSON_TEXT_START;
  switch (byte) {
    case '{': return enter(m, st, T_OBJECT) && json_open(m, st, true);
    case '[': return enter(m, st, T_ARRAY) && json_open(m, st, false);
    case '"':
      if (!enter(m, st, T_STRING)) return false;
      st->mode = MODE_STRING;
      st->escape = st->need = 0;
      st->length = 0;
      st->tuple = st->typed->tuple;
      return evaluate_string(m, st);
    case 'n':
    case 'f':
    case 't':
      st->word = byte == 'n' ? 0 : byte == 'f' ? 1 : 2;
      st->mode = MODE_WORD;
      st->part = 1;
      return enter(m, st, byte == 'n' ? T_NULL : byte == 'f' ? T_FALSE : T_TRUE) && word_may_end(m, st);
    default:
      if (byte != '-' && (byte < '0' || byte > '9')) return false;
      if (!enter(m, st, T_NUMBER)) return false;
      st->mode = MODE_NUMBER;
      st->start = st->position - 1;
      st->part = NUMBER_NONE;
      return number_byte(m, st, byte);
  }
}

static bool step(struct json_machine *m, struct json_state *st, uint8_t byte) {
  switch ((json_mode)st->mode) {
    case MODE_STRING:
    case MODE_KEY: return string_byte(m, st, byte);
    case MODE_NUMBER:
      if (number_step((number_part)st->part, (char)byte)) return number_byte(m, st, byte);
      st->position--; /* the number ends before this byte */
      if (!end_number(m, st)) return false;
      st->position++;
      return step(m, st, byte);
    case MODE_WORD:
      if (byte != (uint8_t)words[st->word][st->part]) return false;
      st->part++;
      return words[st->word][st->part] || done_plain(m, st, 0x100 + st->word);
    default: break;
  }
  if (is_blank(byte)) return blank(m, st, byte);
  switch ((json_mode)st->mode) {
    case MODE_VALUE: return value_byte(m, st, byte);
    case MODE_OPENED:
      if (byte == (st->frame->object ? '}' : ']')) return json_close(m, st);
      if (st->frame->object) break;
      return json_element(m, st) && value_byte(m, st, byte);
    case MODE_MEMBER: break;
    case MODE_COLON:
      st->mode = MODE_VALUE;
      st->spaces = 0;
      return byte == ':';
    case MODE_NEXT:
      if (byte == (st->frame->object ? '}' : ']')) return json_close(m, st);
      if (byte != ',') return false;
      st->spaces = 0;
      st->mode = st->frame->object ? MODE_MEMBER : MODE_VALUE;
      return st->frame->object ? json_key_may_come(m, st) : json_element(m, st);
    default: return false;
  }
  if (byte != '"') return false;
  st->mode = MODE_KEY;
  st->escape = st->need = 0;
  return json_key_start(m, st);
}

bool json_step(struct json_machine *m, const struct json_state *in, uint8_t byte, struct json_state *out) {
  if (in != out) *out = *in;
  struct json_tape *t = m->tape;
  if (out->position >= t->room_bytes) {
    size_t room = t->room_bytes ? t->room_bytes * 2 : 4096;
    uint8_t *p = room > UINT32_MAX / 2 ? NULL : ane_realloc(t->bytes, room);
    if (!p) return m->no_memory = true, false;
    t->bytes = p;
    t->room_bytes = room;
  }
  t->bytes[out->position++] = byte;
  bool ok = step(m, out, byte);
  return ok && !m->no_memory && !m->too_large && !m->s->pool.full;
}

static void set_bytes(uint64_t bits[4], const char *list) {
  for (; *list; list++) bits[(uint8_t)*list >> 6] |= (uint64_t)1 << (*list & 63);
}

void json_first_bytes(const struct json_machine *m, const struct json_state *st, uint64_t bits[4]) {
  static const char blanks[] = " \t\n\r";
  memset(bits, 0, 4 * sizeof *bits);
  switch ((json_mode)st->mode) {
    case MODE_STRING:
    case MODE_KEY: {
      if (st->escape)
        set_bytes(bits, "\"\\/bfnrtu0123456789abcdefABCDEF");
      else if (st->mode == MODE_STRING || st->other || st->need)
        memset(bits, 0xff, 4 * sizeof *bits);
      else {
        set_bytes(bits, "\"\\");
        const struct typed_context *t = st->frame->typed;
        for (uint32_t k = st->lo; k < st->hi; k++)
          if (t->names[k].len > st->depth) {
            uint8_t b = (uint8_t)t->names[k].data[st->depth];
            bits[b >> 6] |= (uint64_t)1 << (b & 63);
          }
      }
      return;
    }
    case MODE_NUMBER: set_bytes(bits, "0123456789.eE+-,]}"); break;
    case MODE_WORD: {
      char one[2] = {words[st->word][st->part], 0};
      set_bytes(bits, one);
      return;
    }
    case MODE_VALUE: set_bytes(bits, "\"{[-0123456789tfn"); break;
    case MODE_OPENED: set_bytes(bits, st->frame->object ? "\"}" : "\"{[-0123456789tfn]"); break;
    case MODE_MEMBER: set_bytes(bits, "\""); break;
    case MODE_COLON: set_bytes(bits, ":"); break;
    case MODE_NEXT: set_bytes(bits, st->frame->object ? ",}" : ",]"); break;
    case MODE_END: break;
  }
  if (m->max_spaces > 0) set_bytes(bits, m->separators ? " " : blanks);
}

bool json_accepts(struct json_machine *m, const struct json_state *st) {
  if (st->mode == MODE_END) return true;
  if (st->mode != MODE_NUMBER || st->frame) return false;
  struct json_state probe = *st;
  struct json_mark mark = json_mark_of(m->tape);
  bool ok = end_number(m, &probe);
  json_rewind(m->tape, mark);
  return ok;
}

ane_status json_machine_failed(const struct json_machine *m, struct ane_error *err) {
  if (m->no_memory || m->s->pool.no_memory) return ane_fail(err, ANE_NOMEM, "no memory to follow the grammar");
  if (m->too_large || m->s->pool.full) return ane_fail(err, ANE_RANGE, "the grammar needs more states than its limits allow");
  return ANE_OK;
}

ane_status json_machine_make(struct json_machine *m, struct schema *s, struct json_state *start, struct ane_error *err) {
  memset(m, 0, sizeof *m);
  m->s = s;
  m->max_spaces = 1;
  m->separators = true;
  json_tuple(m, NULL, 0);
  struct value_context *p = json_context(m, &s->root, s->root == EXPR_TRUE ? 0 : 1);
  if (!p) return ane_fail(err, ANE_NOMEM, "no memory for the grammar");
  *start = (struct json_state){.context = p, .mode = MODE_VALUE};
  return ANE_OK;
}

void json_machine_free(struct json_machine *m) {
  ane_free(m->tuples);
  ane_free(m->tuple_table);
  ane_free(m->contexts);
  ane_free(m->context_table);
  ane_arena_free(&m->arena);
  memset(m, 0, sizeof *m);
}

void json_tape_free(struct json_tape *t) {
  for (uint32_t i = 0; i < t->n_blocks; i++) ane_free(t->blocks[i]);
  ane_free(t->blocks);
  ane_free(t->bytes);
  memset(t, 0, sizeof *t);
}
