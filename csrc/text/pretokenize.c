/* Splits text by patterns, which PCRE2 runs with its JIT compiler. */
#include "base/alloc.h"
#include "text/text_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

/* Exceeding these limits is an error. The steps of one match, and the items that all matches of a text try, are limited to a
 * multiple of the bytes of the text (a run of blanks is one match). The heap is in KiB. */
enum {
  LEAST_STEPS = 10 * 1000 * 1000,
  STEPS_A_BYTE = 16,
  LEAST_ITEMS = 1000 * 1000,
  ITEMS_A_BYTE = 64,
  DEPTH_LIMIT = 1000 * 1000,
  HEAP_LIMIT = 256 * 1024,
  JIT_STACK = 8 * 1024 * 1024,
  NEST_LIMIT = 200
};

static void *pcre_alloc(size_t size, void *data) {
  (void)data;
  return ane_malloc(size);
}

static void pcre_free(void *p, void *data) {
  (void)data;
  ane_free(p);
}

/* ---- Patterns ----------------------------------------------------------------------------------------------------*/

ane_status ane_pattern_compile(struct ane_pattern *p, const struct ane_split *split, struct ane_error *err) {
  ane_status st = ANE_OK;
  struct ane_buffer text = {0};
  pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
  pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
  uint32_t options = PCRE2_UTF | (split->literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  if (!context) {
    st = ane_fail(err, ANE_NOMEM, "no memory for a pattern");
    goto out;
  }
  if (strlen(split->pattern) > ANE_PATTERN_BYTES) {
    st = ane_fail(err, ANE_RANGE, "a pattern must have at most %d bytes, but this one has %zu", ANE_PATTERN_BYTES,
                  strlen(split->pattern));
    goto out;
  }
  if (!split->literal && (st = ane_onig_translate(split->pattern, &text, err))) {
    ane_fail_in(err, st, "pattern %s", split->pattern);
    goto out;
  }
  int code;
  PCRE2_SIZE at;
  if (!split->literal && !ane_pretokenizer_has(split->pattern)) options |= PCRE2_AUTO_CALLOUT;
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context, NEST_LIMIT);
  p->code = split->literal ? pcre2_compile((PCRE2_SPTR)split->pattern, strlen(split->pattern), options, &code, &at, context)
                           : pcre2_compile(text.data ? text.data : (PCRE2_SPTR) "", text.size, options, &code, &at, context);
  if (!p->code) {
    PCRE2_UCHAR why[128];
    pcre2_get_error_message(code, why, sizeof why);
    st = ane_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? ANE_NOMEM : ANE_UNSUPPORTED, "pattern %s: %s at byte %zu",
                  split->pattern, (const char *)why, (size_t)at);
    goto out;
  }
  p->behaviour = split->behaviour;
  p->invert = split->invert;
  pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* if it fails, the interpreter runs the pattern */
out:
  if (st && split->place) ane_fail_in(err, st, "%s", split->place);
  ane_buffer_free(&text);
  pcre2_compile_context_free(context);
  pcre2_general_context_free(general);
  return st;
}

void ane_pattern_free(struct ane_pattern *p) {
  pcre2_code_free(p->code);
  p->code = NULL;
}

/* ---- Matching ----------------------------------------------------------------------------------------------------*/

/* Called before each item of a pattern of a file: the JIT compiler counts no steps back in a repeat of a character against the
 * limit of a match. */
static int count_item(pcre2_callout_block *block, void *left) {
  (void)block;
  uint64_t *items = left;
  return *items > 0 ? (--*items, 0) : PCRE2_ERROR_MATCHLIMIT;
}

ane_status ane_pattern_memory_open(struct ane_pattern_memory *m, struct ane_error *err) {
  pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
  if (general) {
    m->data = pcre2_match_data_create(1, general);
    m->context = pcre2_match_context_create(general);
    m->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK, general);
    pcre2_general_context_free(general);
  }
  if (!m->data || !m->context) return ane_fail(err, ANE_NOMEM, "no memory to match patterns");
  pcre2_set_depth_limit(m->context, DEPTH_LIMIT);
  pcre2_set_heap_limit(m->context, HEAP_LIMIT);
  if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
  return ANE_OK;
}

void ane_pattern_memory_close(struct ane_pattern_memory *m) {
  pcre2_match_data_free(m->data);
  pcre2_match_context_free(m->context);
  pcre2_jit_stack_free(m->stack);
  *m = (struct ane_pattern_memory){0};
}

ane_status ane_pattern_next(const struct ane_pattern *p, struct ane_pattern_memory *m, const char *s, size_t len,
                            struct ane_matches *walk, bool *found, size_t range[2], struct ane_error *err) {
  *found = false;
  while (walk->from <= len) {
    int rc = pcre2_match(p->code, (PCRE2_SPTR)s, len, walk->from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(p->code, (PCRE2_SPTR)s, len, walk->from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->context);
    if (rc == PCRE2_ERROR_NOMATCH) return ANE_OK;
    if (rc < 0) {
      PCRE2_UCHAR why[128];
      pcre2_get_error_message(rc, why, sizeof why);
      return ane_fail(err, rc == PCRE2_ERROR_NOMEMORY ? ANE_NOMEM : ANE_RANGE, "matching with PCRE2 failed: %s",
                      (const char *)why);
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(m->data);
    range[0] = v[0];
    range[1] = v[1];
    if (range[1] > range[0] || walk->none || range[0] != walk->last) {
      *found = true;
      *walk = (struct ane_matches){.from = range[1], .last = range[1]};
      return ANE_OK;
    }
    walk->from += walk->from < len ? (size_t)ane_utf8_step(s + walk->from, len - walk->from, NULL) : 1;
  }
  return ANE_OK;
}

void ane_pattern_memory_limit(struct ane_pattern_memory *m, size_t len) {
  uint64_t steps = LEAST_STEPS + (uint64_t)len * STEPS_A_BYTE;
  pcre2_set_match_limit(m->context, (uint32_t)ANE_MIN(steps, (uint64_t)UINT32_MAX));
  m->items = LEAST_ITEMS + (uint64_t)len * ITEMS_A_BYTE;
  pcre2_set_callout(m->context, count_item, &m->items);
}

/* ---- Steps -------------------------------------------------------------------------------------------------------*/

/* A walk through the steps; `pattern` is the current one. */
struct walk {
  const struct ane_pattern *pattern, *end;
  struct ane_pattern_memory *m;
  ane_piece_fn fn;
  void *context;
};

static ane_status step(const struct walk *w, const char *s, size_t len, struct ane_error *err);

/* Passes a piece to the next step. */
static ane_status give(const struct walk *w, const char *s, size_t len, struct ane_error *err) {
  if (!len) return ANE_OK;
  if (w->pattern + 1 == w->end) return w->fn(w->context, s, len, err);
  struct walk next = *w;
  next.pattern++;
  return step(&next, s, len, err);
}

/* Turns the matches and gaps of one text, in order, into pieces. [start, end) is pending: later segments may join it. */
struct cutter {
  const struct walk *w;
  const char *s;
  size_t start, end;
  bool last; /* was the previous segment a match? */
};

static ane_status flush(struct cutter *c, struct ane_error *err) {
  size_t start = c->start;
  c->start = c->end;
  return give(c->w, c->s + start, c->end - start, err);
}

static size_t forward(const char *s, size_t at, size_t end, size_t k) {
  for (; k && at < end; k--) at += (size_t)ane_utf8_step(s + at, end - at, NULL);
  return at;
}

/* Splits the match [a, b) into groups of three characters, the shorter one first. */
static ane_status threes(struct cutter *c, size_t a, size_t b, bool cuts_only, struct ane_error *err) {
  size_t n = 0;
  ane_status st = cuts_only ? ANE_OK : flush(c, err);
  for (size_t i = a; i < b; i = forward(c->s, i, b, 1)) n++;
  c->end = forward(c->s, a, b, n % 3);
  while (c->end < b && !st) {
    st = flush(c, err);
    c->end = forward(c->s, c->end, b, 3);
  }
  return st || cuts_only ? st : flush(c, err);
}

/* Adds the segment [a, b), which begins at c->end and may be an empty match. */
static ane_status segment(struct cutter *c, size_t a, size_t b, bool match, struct ane_error *err) {
  bool joins = false;
  ane_status st;
  match = match != c->w->pattern->invert;
  switch (c->w->pattern->behaviour) {
    case ANE_SPLIT_ISOLATED: break;
    case ANE_SPLIT_REMOVED:
      c->start = match ? b : a;
      c->end = b;
      return flush(c, err);
    case ANE_SPLIT_MERGED_WITH_PREVIOUS: joins = match && !c->last; break;
    case ANE_SPLIT_MERGED_WITH_NEXT: joins = !match && c->last; break;
    case ANE_SPLIT_CONTIGUOUS: joins = match == c->last; break;
    case ANE_SPLIT_THREES:
      if (match) return threes(c, a, b, false, err);
      break;
    case ANE_SPLIT_CUT_THREES:
      if (match) return threes(c, a, b, true, err);
      joins = true;
      break;
  }
  if (!joins && (st = flush(c, err))) return st;
  c->end = b;
  c->last = match;
  return ANE_OK;
}

static ane_status step(const struct walk *w, const char *s, size_t len, struct ane_error *err) {
  struct cutter c = {w, s, 0, 0, false};
  struct ane_matches walk = {.none = true};
  ane_status st = ANE_OK;
  size_t at = 0;
  for (bool found = true; found && !st;) {
    size_t range[2] = {len, len};
    if ((st = ane_pattern_next(w->pattern, w->m, s, len, &walk, &found, range, err))) return st;
    if (!found) range[0] = range[1] = len;
    if (range[0] > at) st = segment(&c, at, range[0], false, err);
    if (found && !st) st = segment(&c, range[0], range[1], true, err);
    at = range[1];
  }
  return st ? st : flush(&c, err);
}

ane_status ane_pretokenize(const struct ane_pattern *patterns, uint32_t n, struct ane_pattern_memory *m, const char *s,
                           size_t len, ane_piece_fn fn, void *context, struct ane_error *err) {
  if (!n) return len ? fn(context, s, len, err) : ANE_OK;
  ane_pattern_memory_limit(m, len);
  return step(&(struct walk){patterns, patterns + n, m, fn, context}, s, len, err);
}
