/* Masks inside JSON strings. Most tokens stay inside the string. They are precomputed by the number of characters that they add,
 * or found by a walk of the string's automaton alone (mask_walk.c). Tokens that end the string fall into classes with the same
 * bytes from the quote on; each class is tested once. */
#include "base/alloc.h"
#include "grammar/mask_inside.h"
#include "grammar/regex_internal.h"

#include <string.h>

static void clear(uint32_t *mask, uint32_t token) { mask[token >> 5] &= ~((uint32_t)1 << (token & 31)); }

bool mask_exact(struct masking *k, struct token_test *test, uint32_t token) {
  union engine_state *path = k->m->path;
  const uint8_t *bytes = k->t->bytes[token];
  uint32_t len = k->t->lengths[token], common = 0;
  /* analyser: without bytes, test->len is 0. */
  while (common < ANE_MIN(len, test->len) && bytes[common] == test->bytes[common]) common++;
  if (test->failed && common > test->good) return false;
  uint32_t d = ANE_MIN(common, test->good);
  while (d < len && engine_step(k->m->g, &path[d], bytes[d], &path[d + 1])) d++;
  *test = (struct token_test){bytes, len, d, d < len};
  return !test->failed;
}

/* ---- Tokens that end the string ----------------------------------------------------------------------------------*/

/* Returns the classes that are allowed from the probe's state. */
static uint64_t *evaluate_classes(struct inside *in, const struct json_state *probe) {
  struct ane_matcher *m = in->k->m;
  const struct ane_token_tree *t = in->k->t;
  uint64_t *bits = json_alloc(in->m, t->n_classes / 64 + 1, sizeof *bits);
  if (!bits) return NULL;
  union engine_state saved = m->path[0];
  m->path[0].json = *probe;
  for (uint32_t i = 0; i < t->n_closings;) {
    const struct token_node *x = &t->closings[i];
    if (!engine_step(m->g, &m->path[x->depth - 1], x->byte, &m->path[x->depth])) {
      i = x->skip;
      continue;
    }
    if (x->token) bits[(x->token - 1) >> 6] |= (uint64_t)1 << ((x->token - 1) & 63);
    i++;
  }
  m->path[0] = saved;
  return bits;
}

const uint64_t *mask_allowed_classes(struct inside *in, uint32_t tuple, uint32_t length) {
  struct json_state probe = *in->st;
  uint64_t key = 0;
  probe.tuple = tuple;
  probe.length = length;
  if (in->is_key) {
    probe.lo = probe.hi = 0;
    probe.hash = json_mix(probe.hash, 256); /* of a name that no text has: is_taken tests the real ones */
    key = tuple;
  } else {
    const struct tuple *parts = &in->m->tuples[tuple];
    for (uint32_t i = 0; i < parts->n; i++) {
      bool holds =
          in->m->s->pool.states[parts->states[i]].accepts && length >= probe.typed->min[i] && length <= probe.typed->max[i];
      key = json_mix(key, holds);
    }
  }
  for (uint32_t i = 0; i < in->n_allowed; i++)
    if (in->allowed[i].key == key) return in->allowed[i].classes;
  uint64_t *classes = evaluate_classes(in, &probe);
  if (in->n_allowed < ANE_COUNT(in->allowed)) in->allowed[in->n_allowed++] = (struct allowed_classes){key, classes};
  return classes;
}

/* Does a token complete a member name that the object already has? */
static bool is_taken(const struct inside *in, const struct closing_token *c) {
  if (c->escaped) return !mask_exact(in->k, &(struct token_test){0}, c->token);
  uint64_t h = in->st->hash;
  for (uint32_t i = 0; i < c->prefix; i++) h = json_mix(h, in->k->t->bytes[c->token][i]);
  return json_has_seen(in->st->frame->others, json_mix(h, JSON_KEY_END));
}

/* Allows closing tokens if neither names nor automata distinguish their prefixes. */
static void plain_ends(struct inside *in) {
  const struct ane_token_tree *t = in->k->t;
  const struct json_state *st = in->st;
  bool bounded = !in->is_key && in->m->tuples[st->tuple].n > 0;
  uint32_t min = bounded ? st->typed->min[0] : 0, max = bounded ? st->typed->max[0] : NO_LIMIT;
  const uint64_t *good = mask_allowed_classes(in, st->tuple, ANE_MAX(min, ANE_MIN(st->length, max)));
  if (!good) return;
  bool compare = in->is_key && st->frame->others;
  for (uint32_t c = 0; c < t->n_classes; c++) {
    if (!(good[c >> 6] >> (c & 63) & 1)) continue;
    for (uint32_t i = t->class_start[c]; i < t->class_start[c + 1]; i++) {
      const struct closing_token *x = &t->class_tokens[i];
      uint64_t length = (uint64_t)st->length + x->chars;
      if (length < min || length > max || (compare && is_taken(in, x))) continue;
      mask_set(in->k->mask, x->token);
    }
  }
}

/* ---- Names -------------------------------------------------------------------------------------------------------*/

static uint32_t child_of(const struct ane_token_tree *t, uint32_t from, uint32_t to, uint8_t byte) {
  for (uint32_t i = from; i < to; i = t->nodes[i].skip)
    if (t->nodes[i].byte == byte) return i;
  return UINT32_MAX;
}

/* Returns the number of bytes, from `from` on, that two names have in common. */
static uint32_t common_bytes(const struct member_name *a, const struct member_name *b, uint32_t from) {
  uint32_t n = 0;
  while (from + n < ANE_MIN(a->len, b->len) && a->data[from + n] == b->data[from + n]) n++;
  return n;
}

/* Must a byte of a name be escaped? */
static bool needs_escape(uint8_t byte) { return byte < 0x20 || byte == '"' || byte == '\\'; }

/* Allows tokens that begin or complete a listed name. What follows is tested for that name, and so is what follows an escape in
 * it. The names are sorted: the nodes and states of the bytes that a name shares with the one before are known. */
static void walk_names(struct inside *in) {
  struct masking *k = in->k;
  const struct ane_token_tree *t = k->t;
  const struct json_state *st = in->st;
  union engine_state *path = k->m->path;
  uint32_t nodes[TOKEN_LONGEST + 1], known = 0; /* by depth; the depth up to which nodes and states are those of the last name */
  for (uint32_t n = st->lo; n < st->hi; n++) {
    const struct member_name *name = &st->frame->typed->names[n];
    uint32_t d = known ? ANE_MIN(known, common_bytes(name - 1, name, st->depth)) : 0, at = st->depth + d;
    /* analyser: nodes 1 to known are set. */
    uint32_t from = d ? nodes[d] + 1 : 0, to = d ? t->nodes[nodes[d]].skip : t->n_nodes;
    known = d;
    for (bool ok = true; ok; at++) {
      uint8_t byte = at == name->len ? '"' : (uint8_t)name->data[at];
      bool last = needs_escape(byte);
      uint32_t node = child_of(t, from, to, at < name->len && last ? '\\' : byte);
      if (node == UINT32_MAX || (!last && t->lex[node] > LEX_PARTIAL)) break;
      if (last) {
        for (uint32_t j = node; j < t->nodes[node].skip; j++)
          for (uint32_t token = t->nodes[j].token; token; token = t->twin[token - 1]) clear(k->mask, token - 1);
        mask_walk(k, t->nodes, node, t->nodes[node].skip);
        break;
      }
      ok = engine_step(k->m->g, &path[d], t->nodes[node].byte, &path[d + 1]);
      nodes[++d] = node;
      if (ok) {
        known = d;
        mask_allow(k, t->nodes[node].token);
      }
      from = node + 1;
      to = t->nodes[node].skip;
    }
  }
}

/* ---- The mask ----------------------------------------------------------------------------------------------------*/

/* Allows tokens that stay inside a string of any content with bounds of its length. */
static void whole_inside(struct inside *in) {
  const struct ane_token_tree *t = in->k->t;
  const struct json_state *st = in->st;
  uint32_t max = in->is_key || in->m->tuples[st->tuple].n == 0 ? NO_LIMIT : st->typed->max[0];
  uint64_t left = max == NO_LIMIT ? UINT32_MAX : max < st->length ? 0 : max - st->length;
  const uint32_t *from = NULL;
  if (left >= t->most_chars)
    from = t->inside[TOKEN_CHARS];
  else if (left < TOKEN_CHARS)
    from = t->inside[left];
  else { /* between the masks by length: the few longer tokens, one by one */
    memcpy(in->k->mask, t->inside[TOKEN_CHARS - 1], t->words * sizeof *from);
    for (uint32_t i = 0; i < t->n_many; i++)
      if (t->chars[t->many[i]] <= left) mask_allow(in->k, t->nodes[t->many[i]].token);
    return;
  }
  memcpy(in->k->mask, from, t->words * sizeof *from);
}

static bool never_changes(const struct json_machine *m, uint32_t tuple) {
  const struct tuple *parts = &m->tuples[tuple];
  return parts->n == 0 || (parts->n == 1 && m->s->pool.states[parts->states[0]].whole);
}

/* Is the string an element of an array with uniqueItems, with few possible values? Values that occurred are excluded byte by
 * byte.
 */
static bool few_texts(const struct json_machine *m, const struct json_state *st) {
  const struct tuple *parts = &m->tuples[st->tuple];
  if (st->mode == MODE_KEY || !st->frame || !st->frame->typed->unique || !st->frame->others) return false;
  for (uint32_t i = 0; i < parts->n; i++)
    if (re_at(&m->s->pool, m->s->pool.states[parts->states[i]].re)->max_chars != RE_INF) return true;
  return false;
}

bool mask_string(struct masking *k) {
  const struct json_state *st = &k->m->path[0].json;
  struct json_values *values = engine_values(k->m->g, &k->m->path[0]);
  if (!values) return false;
  struct json_machine *m = &values->machine;
  if ((st->mode != MODE_STRING && st->mode != MODE_KEY) || st->escape || st->need || few_texts(m, st)) return false;
  const struct json_state copy = *st;
  struct inside in = {.k = k, .values = values, .m = m, .st = &copy, .is_key = st->mode == MODE_KEY};
  const struct frame *f = st->frame;
  in.exact_ends = f && (f->hashing || (in.is_key && f->others));
  if (in.is_key && !st->other) return false; /* only listed names: few paths */
  bool whole = never_changes(m, st->tuple);
  if (!in.is_key && whole && m->tuples[st->tuple].n == 1) { /* a text that becomes too long must end the string */
    bool failed = true;
    whole = !json_survives(m, f, &failed, 1);
  }
  if (whole && !(f && f->hashing)) {
    whole_inside(&in);
    plain_ends(&in);
  } else
    mask_walk_string(&in);
  if (in.is_key) walk_names(&in);
  ane_free(in.viable);
  return true;
}
