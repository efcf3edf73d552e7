/* Masks inside JSON strings. Most tokens stay inside the string. They are precomputed by the number of characters that they add,
 * or found by a walk of the string's automaton alone. Tokens that end the string fall into classes with the same bytes from the
 * quote on; each class is tested once. */
#include "base/alloc.h"
#include "grammar/mask.h"
#include "grammar/regex_internal.h"

#include <string.h>

/* The classes of closing tokens that are allowed after one outcome of the string. */
struct verdict {
  uint64_t key;
  uint64_t *classes; /* a bit for each class; NULL: none is allowed */
};

struct inside {
  struct masking *k;
  struct json_values *values;
  struct json_machine *m; /* of them */
  const struct json_state *st;
  bool is_key, exact_ends; /* exact_ends: what may follow the string depends on its contents */
  uint32_t whole;          /* a tuple that never changes: its only part accepts every text, or it has no part */
  struct verdict verdicts[32];
  uint32_t n_verdicts;
  uint8_t *viable; /* by tuple: 0 not known, 1 yes, 2 no */
  uint32_t n_viable;
};

static void set(uint32_t *mask, uint32_t token) { mask[token >> 5] |= (uint32_t)1 << (token & 31); }
static void clear(uint32_t *mask, uint32_t token) { mask[token >> 5] &= ~((uint32_t)1 << (token & 31)); }

/* Does the grammar accept all bytes of a token from the matcher's state on? */
static bool exact(struct masking *k, uint32_t token) {
  union engine_state st = k->m->path[0];
  for (uint32_t i = 0; i < k->t->lengths[token]; i++)
    if (!engine_step(k->m->g, &st, k->t->bytes[token][i], &st)) return false;
  return true;
}

/* ---- Ends --------------------------------------------------------------------------------------------------------*/

/* Returns the classes that are allowed from the probe's state. */
static uint64_t *judge_classes(struct inside *in, const struct json_state *probe) {
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

/* Returns the classes that are allowed if the string ends with this tuple and length. Equal outcomes are tested once. */
static const uint64_t *verdict(struct inside *in, uint32_t tuple, uint32_t length) {
  struct json_state probe = *in->st;
  uint64_t key = 0;
  probe.tuple = tuple;
  probe.length = length;
  if (in->is_key) {
    probe.lo = probe.hi = 0;
    key = tuple;
  } else {
    const struct tuple *parts = &in->m->tuples[tuple];
    for (uint32_t i = 0; i < parts->n; i++) {
      bool holds =
          in->m->s->pool.states[parts->states[i]].accepts && length >= probe.typed->min[i] && length <= probe.typed->max[i];
      key = json_mix(key, holds);
    }
  }
  for (uint32_t i = 0; i < in->n_verdicts; i++)
    if (in->verdicts[i].key == key) return in->verdicts[i].classes;
  uint64_t *classes = judge_classes(in, &probe);
  if (in->n_verdicts < ANE_COUNT(in->verdicts)) in->verdicts[in->n_verdicts++] = (struct verdict){key, classes};
  return classes;
}

/* Does a token complete a member name that the object already has? */
static bool is_taken(const struct inside *in, const struct closing_token *c) {
  if (c->escaped) return !exact(in->k, c->token);
  uint64_t h = in->st->hash;
  for (uint32_t i = 0; i < c->prefix; i++) h = json_mix(h, in->k->t->bytes[c->token][i]);
  h = json_mix(h, JSON_KEY_END);
  for (const struct seen *s = in->st->frame->others; s; s = s->next)
    if (s->hash == h) return true;
  return false;
}

/* Allows closing tokens if neither names nor automata distinguish their prefixes. */
static void plain_ends(struct inside *in) {
  const struct ane_token_tree *t = in->k->t;
  const struct json_state *st = in->st;
  bool bounded = !in->is_key && in->m->tuples[st->tuple].n > 0;
  uint32_t min = bounded ? st->typed->min[0] : 0, max = bounded ? st->typed->max[0] : NO_LIMIT;
  const uint64_t *good = verdict(in, st->tuple, ANE_MAX(min, ANE_MIN(st->length, max)));
  if (!good) return;
  bool compare = in->is_key && st->frame->others;
  for (uint32_t c = 0; c < t->n_classes; c++) {
    if (!(good[c >> 6] >> (c & 63) & 1)) continue;
    for (uint32_t i = t->class_start[c]; i < t->class_start[c + 1]; i++) {
      const struct closing_token *x = &t->class_tokens[i];
      uint64_t length = (uint64_t)st->length + x->chars;
      if (length < min || length > max || (compare && is_taken(in, x))) continue;
      set(in->k->mask, x->token);
    }
  }
}

/* ---- Automata ----------------------------------------------------------------------------------------------------*/

/* May the string continue from a tuple and a length in characters? */
static bool may_go_on(struct inside *in, uint32_t tuple, uint32_t length) {
  const struct typed *t = in->st->typed;
  const struct tuple *parts = &in->m->tuples[tuple];
  bool lengths = false;
  if (!in->is_key) {
    for (uint32_t i = 0; i < parts->n; i++) lengths |= t->min[i] > 0 || t->max[i] != NO_LIMIT;
    if (parts->n == 1 && lengths) {
      uint32_t s = parts->states[0];
      const struct re_node *x = re_at(&in->m->s->pool, in->m->s->pool.states[s].re);
      if (s && (uint64_t)length + x->least <= t->max[0] && (x->most == RE_INF || (uint64_t)length + x->most >= t->min[0]))
        return true;
    }
  }
  if (!lengths && tuple < in->n_viable && in->viable[tuple]) return in->viable[tuple] == 1;
  struct json_state probe = *in->st;
  probe.tuple = tuple;
  probe.length = length;
  bool ok = in->is_key ? json_key_other(in->m, &probe) : json_string_viable(in->m, &probe);
  if (!lengths) {
    if (tuple >= in->n_viable) {
      uint32_t room = (tuple + 256) * 2;
      uint8_t *p = ane_realloc(in->viable, room);
      if (!p) return ok;
      memset(p + in->n_viable, 0, room - in->n_viable);
      in->viable = p;
      in->n_viable = room;
    }
    in->viable[tuple] = ok ? 1 : 2;
  }
  return ok;
}

/* What a walk finds. Tokens that end the string are stored with the state at the quote; what follows is tested for each mask. */
struct long_token {
  uint32_t token, need; /* need: characters of the token and of the shortest text after it */
};
struct string_end {
  uint32_t node, tuple;
};
struct walked {
  uint32_t tuple;
  uint32_t *mask;
  struct string_end *ends;
  uint32_t n_ends, room_ends;
  uint32_t *odd; /* tokens with an escape that end the string, or whose length counts */
  uint32_t n_odd, room_odd;
  struct long_token *longs; /* tokens that need more than LONG characters; they are not in the mask */
  uint32_t n_longs, room_longs;
  bool limited; /* made for strings with bounds of their length: tokens with escapes are tested for each mask */
  bool bounded; /* some followed expression has a longest match */
};

enum { LONG = 32, CACHED = 128 };

/* Walks from earlier tuples, for one vocabulary. */
struct inside_cache {
  uint64_t serial;
  struct walked entries[CACHED];
  uint32_t n;
};

static void free_walked(struct walked *w) {
  ane_free(w->mask);
  ane_free(w->ends);
  ane_free(w->odd);
  ane_free(w->longs);
  memset(w, 0, sizeof *w);
}

void mask_cache_free(struct inside_cache *c) {
  for (uint32_t i = 0; c && i < c->n; i++) free_walked(&c->entries[i]);
  ane_free(c);
}

/* Tests tokens below the first backslash of a path byte by byte. */
static bool walk_escape(struct inside *in, struct walked *w, uint32_t node, const uint8_t *bytes) {
  struct masking *k = in->k;
  const struct token_node *nodes = k->t->nodes;
  union engine_state *path = k->m->path;
  uint32_t *mask = k->mask;
  bool ok = true;
  for (uint32_t d = 1; d < nodes[node].depth && ok; d++) ok = engine_step(k->m->g, &path[d - 1], bytes[d - 1], &path[d]);
  for (uint32_t i = node; i < nodes[node].skip && ok; i++) {
    uint32_t d = nodes[i].depth;
    bool later = k->t->quote[i] || (w->limited && nodes[i].token);
    if (later || k->t->lex[i] == LEX_BAD) {
      for (uint32_t j = i; j < nodes[i].skip && later; j++)
        for (uint32_t token = nodes[j].token; token; token = k->t->twin[token - 1]) {
          if (!re_grow((void **)&w->odd, &w->room_odd, w->n_odd, sizeof *w->odd)) return false;
          w->odd[w->n_odd++] = token - 1;
        }
      i = nodes[i].skip - 1;
      continue;
    }
    if (!engine_step(k->m->g, &path[d - 1], nodes[i].byte, &path[d]))
      i = nodes[i].skip - 1;
    else if (nodes[i].token)
      mask_allow(k, nodes[i].token);
  }
  k->mask = mask;
  return true;
}

/* Records a node whose text has no escape. false: no memory. */
static bool note_plain(struct inside *in, struct walked *w, uint32_t node, uint32_t tuple, bool lengths_apart) {
  const struct ane_token_tree *t = in->k->t;
  if (!t->nodes[node].token) return true;
  if (lengths_apart) {
    const struct re_node *x = re_at(&in->m->s->pool, in->m->s->pool.states[in->m->tuples[tuple].states[0]].re);
    w->bounded |= x->most != RE_INF;
    uint64_t need = (uint64_t)t->chars[node] + x->least;
    if (need > LONG) {
      if (!re_grow((void **)&w->longs, &w->room_longs, w->n_longs, sizeof *w->longs)) return false;
      w->longs[w->n_longs++] = (struct long_token){t->nodes[node].token, (uint32_t)ANE_MIN(need, (uint64_t)UINT32_MAX)};
      return true;
    }
  }
  mask_allow(in->k, t->nodes[node].token);
  return true;
}

/* lengths_apart: the caller checks bounds of the length; a dead tuple ends the text. */
static bool walk_strings(struct inside *in, struct walked *w, bool lengths_apart) {
  struct masking *k = in->k;
  const struct ane_token_tree *t = k->t;
  uint32_t *mask = k->mask, *tuples = ane_malloc((t->longest + 1) * sizeof *tuples);
  uint8_t *bytes = ane_malloc(t->longest + 1);
  bool ok = tuples && bytes;
  k->mask = w->mask;
  if (ok) tuples[0] = in->st->tuple;
  for (uint32_t i = 0; i < t->n_nodes && ok && !in->m->too_large && !in->m->s->pool.full;) {
    const struct token_node *x = &t->nodes[i];
    switch (t->lex[i]) {
      case LEX_PLAIN:
      case LEX_PARTIAL: {
        uint32_t to = json_tuple_next(in->m, tuples[x->depth - 1], x->byte);
        if (lengths_apart ? !in->m->tuples[to].states[0] : !may_go_on(in, to, in->st->length + t->chars[i])) break;
        tuples[x->depth] = to;
        bytes[x->depth - 1] = x->byte;
        ok = note_plain(in, w, i, to, lengths_apart);
        i++;
        continue;
      }
      case LEX_QUOTE:
        if (lengths_apart && !in->m->s->pool.states[in->m->tuples[tuples[x->depth - 1]].states[0]].accepts) break;
        ok = re_grow((void **)&w->ends, &w->room_ends, w->n_ends, sizeof *w->ends);
        if (ok) w->ends[w->n_ends++] = (struct string_end){i, tuples[x->depth - 1]};
        break;
      case LEX_ESCAPE: ok = walk_escape(in, w, i, bytes); break;
      default: break;
    }
    i = x->skip;
  }
  k->mask = mask;
  ane_free(tuples);
  ane_free(bytes);
  if (!ok) in->m->no_memory = true;
  return ok;
}

/* Allows the tokens that a walk found, for the current state of the string. */
static void use_walked(struct inside *in, const struct walked *w, uint32_t max) {
  struct masking *k = in->k;
  const struct ane_token_tree *t = k->t;
  memcpy(k->mask, w->mask, t->words * sizeof *k->mask);
  for (uint32_t i = 0; i < w->n_longs; i++)
    if ((uint64_t)in->st->length + w->longs[i].need <= max) mask_allow(k, w->longs[i].token);
  for (uint32_t i = 0; i < w->n_odd; i++)
    if (exact(k, w->odd[i])) set(k->mask, w->odd[i]);
  for (uint32_t i = 0; i < w->n_ends; i++) {
    uint32_t node = w->ends[i].node;
    const uint64_t *good = in->exact_ends ? NULL : verdict(in, w->ends[i].tuple, in->st->length + t->chars[node]);
    if (!in->exact_ends && !good) continue;
    for (uint32_t j = node; j < t->nodes[node].skip; j++)
      for (uint32_t token = t->nodes[j].token; token; token = t->twin[token - 1]) {
        uint32_t c = t->class_of[token - 1] - 1;
        if (in->exact_ends ? exact(k, token - 1) : good[c >> 6] >> (c & 63) & 1) set(k->mask, token - 1);
      }
  }
}

/* Returns the walk from the state's tuple, which is made once. NULL: it cannot be cached. */
static struct walked *kept_walk(struct inside *in, bool limited) {
  struct json_values *g = in->values;
  const struct ane_token_tree *t = in->k->t;
  if (!g->cache || g->cache->serial != t->serial) {
    mask_cache_free(g->cache);
    if (!(g->cache = ane_calloc(1, sizeof *g->cache))) return NULL;
    g->cache->serial = t->serial;
  }
  struct inside_cache *c = g->cache;
  for (uint32_t i = 0; i < c->n; i++)
    if (c->entries[i].tuple == in->st->tuple && c->entries[i].limited == limited) return &c->entries[i];
  struct walked *w = &c->entries[c->n < CACHED ? c->n : in->st->tuple % CACHED];
  if (c->n == CACHED) free_walked(w);
  w->tuple = in->st->tuple;
  w->limited = limited;
  w->mask = ane_calloc(t->words, sizeof *w->mask);
  if (!w->mask || !walk_strings(in, w, true)) {
    free_walked(w);
    w->tuple = UINT32_MAX;
    return NULL;
  }
  if (c->n < CACHED) c->n++;
  return w;
}

/* Uses a cached walk for a string with one part, if no bound of its length can be reached. */
static bool try_kept(struct inside *in) {
  const struct json_state *st = in->st;
  if (in->is_key || in->m->tuples[st->tuple].n != 1) return false;
  bool failed = true;
  if (json_survives(in->m, st->frame, &failed, 1)) return false;
  uint32_t min = st->typed->min[0], max = st->typed->max[0];
  if (max != NO_LIMIT && (uint64_t)st->length + LONG > max) return false;
  struct walked *w = kept_walk(in, min > 0 || max != NO_LIMIT);
  if (!w || (w->bounded && min > st->length)) return false;
  use_walked(in, w, max);
  return true;
}

static void walk_now(struct inside *in) {
  struct walked w = {.mask = ane_calloc(in->k->t->words, sizeof *w.mask)};
  if (!w.mask)
    in->m->no_memory = true;
  else if (walk_strings(in, &w, false))
    use_walked(in, &w, NO_LIMIT);
  free_walked(&w);
}

/* ---- Names -------------------------------------------------------------------------------------------------------*/

static uint32_t child_of(const struct ane_token_tree *t, uint32_t from, uint32_t to, uint8_t byte) {
  for (uint32_t i = from; i < to; i = t->nodes[i].skip)
    if (t->nodes[i].byte == byte) return i;
  return UINT32_MAX;
}

/* Allows tokens that complete a listed name. What follows is tested for that name. */
static void walk_names(struct inside *in) {
  struct masking *k = in->k;
  const struct ane_token_tree *t = k->t;
  const struct json_state *st = in->st;
  union engine_state *path = k->m->path;
  for (uint32_t n = st->lo; n < st->hi; n++) {
    const struct member_name *name = &st->frame->typed->names[n];
    uint32_t from = 0, to = t->n_nodes, at = st->depth, d = 0;
    bool ok = true, reached = false;
    for (; ok && !reached; at++) {
      bool last = at == name->len;
      uint32_t node = child_of(t, from, to, last ? '"' : (uint8_t)name->data[at]);
      if (node == UINT32_MAX || (!last && t->lex[node] > LEX_PARTIAL)) break;
      if (last) {
        reached = true;
        for (uint32_t j = node; j < t->nodes[node].skip; j++)
          for (uint32_t token = t->nodes[j].token; token; token = t->twin[token - 1]) clear(k->mask, token - 1);
        mask_walk(k, t->nodes, node, t->nodes[node].skip);
        break;
      }
      ok = engine_step(k->m->g, &path[d], t->nodes[node].byte, &path[d + 1]);
      d++;
      from = node + 1;
      to = t->nodes[node].skip;
    }
  }
}

/* ---- The whole ---------------------------------------------------------------------------------------------------*/

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
    if (re_at(&m->s->pool, m->s->pool.states[parts->states[i]].re)->most != RE_INF) return true;
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
  if (whole && !(in.exact_ends && !in.is_key)) {
    whole_inside(&in);
    plain_ends(&in);
  } else if (!try_kept(&in))
    walk_now(&in);
  if (in.is_key) walk_names(&in);
  ane_free(in.viable);
  return true;
}
