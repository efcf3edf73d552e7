/* Walks of a string's automaton over the vocabulary. If each byte of a subtree either leads back to one state or ends the text,
 * the sets of bytes of its tokens decide, without a step. Walks are cached by the state in which they begin. */
#include "base/alloc.h"
#include "base/utf8.h"
#include "grammar/mask_inside.h"
#include "grammar/regex_internal.h"

#include <string.h>

/* The result of a walk. Tokens that end the string are stored with the state at the quote; what follows is tested for each mask.
 */
struct long_token {
  uint32_t token, need; /* need: characters of the token and of the shortest text after it */
};
struct string_end {
  uint32_t node, tuple;
};
struct tested {
  uint32_t tuple;
  bool viable;
};
struct walked {
  uint32_t tuple;
  uint32_t *mask;
  struct string_end *ends;
  uint32_t n_ends, room_ends;
  uint32_t *odd; /* tokens with an escape that are tested for each mask: they end the string, or see escapes_later */
  uint32_t n_odd, room_odd;
  struct long_token *longs; /* tokens that need more than LONG characters; they are not in the mask */
  uint32_t n_longs, room_longs;
  struct tested *tested; /* the tuples whose goals were judged: the walk holds where these judgements do */
  uint32_t n_tested, room_tested;
  bool is_key;
  bool judged;  /* by goals, so `tested` counts; not: a dead tuple ends the text, and the caller checks bounds of the length */
  bool limited; /* made for strings with bounds of their length: long tokens stand apart */
  bool exact;   /* made for the current length alone */
  bool escapes_later; /* tokens with escapes are tested for each mask */
  bool bounded;       /* some followed expression has a longest match */
};

enum { LONG = 32, CACHED = 128, FEW_PARTS = 64 };

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
  ane_free(w->tested);
  memset(w, 0, sizeof *w);
}

void mask_cache_free(struct inside_cache *c) {
  for (uint32_t i = 0; c && i < c->n; i++) free_walked(&c->entries[i]);
  ane_free(c);
}

/* ---- Judging tuples ----------------------------------------------------------------------------------------------*/

/* Finds the bounds of the string's length that matter. */
static void find_bounds(struct inside *in) {
  const struct typed_context *t = in->st->typed;
  in->max = NO_LIMIT;
  for (uint32_t i = 0; !in->is_key && i < in->m->tuples[in->st->tuple].n; i++) {
    in->far_min |= t->min[i] > in->st->length + 1;
    in->max = ANE_MIN(in->max, t->max[i]);
  }
}

/* May the string continue from a tuple? bounds: with this length in characters; false: with one that all bounds allow. */
static bool judge(struct inside *in, uint32_t tuple, uint32_t length, bool bounds) {
  struct json_state probe = *in->st;
  probe.tuple = tuple;
  probe.length = length;
  if (in->is_key) return json_key_other(in->m, &probe);
  if (in->m->tuples[tuple].n > FEW_PARTS) return json_string_viable(in->m, &probe);
  uint64_t failed = json_string_failed(in->m, &probe, bounds);
  for (uint32_t i = 0; failed && i < in->n_judged; i++)
    if (in->judged[i].failed == failed) return in->judged[i].viable;
  bool ok = json_string_survives(in->m, &probe, failed);
  if (failed && in->n_judged < ANE_COUNT(in->judged)) {
    in->judged[in->n_judged].failed = failed;
    in->judged[in->n_judged++].viable = ok;
  }
  return ok;
}

/* May the string continue from a tuple and a length in characters? bounds: as for judge. */
static bool may_go_on(struct inside *in, uint32_t tuple, uint32_t length, bool bounds) {
  if (bounds) return judge(in, tuple, length, true);
  if (tuple < in->n_viable && in->viable[tuple]) return in->viable[tuple] == 1;
  bool ok = judge(in, tuple, length, false);
  if (tuple >= in->n_viable) {
    uint32_t room = (tuple + 256) * 2;
    uint8_t *p = ane_realloc(in->viable, room);
    if (!p) return ok;
    memset(p + in->n_viable, 0, room - in->n_viable);
    in->viable = p;
    in->n_viable = room;
  }
  in->viable[tuple] = ok ? 1 : 2;
  return ok;
}

/* ---- Results -----------------------------------------------------------------------------------------------*/

/* Tests tokens below the first backslash of a path byte by byte. */
static bool walk_escape(struct inside *in, struct walked *w, uint32_t node) {
  struct masking *k = in->k;
  const struct token_node *nodes = k->t->nodes;
  uint32_t some = node;
  while (!nodes[some].token) some++; /* a leaf is a token */
  const uint8_t *bytes = k->t->bytes[nodes[some].token - 1];
  union engine_state *path = k->m->path;
  uint32_t *mask = k->mask;
  bool ok = true;
  for (uint32_t d = 1; d < nodes[node].depth && ok; d++) ok = engine_step(k->m->g, &path[d - 1], bytes[d - 1], &path[d]);
  for (uint32_t i = node; i < nodes[node].skip && ok; i++) {
    uint32_t d = nodes[i].depth;
    bool later = k->t->quote[i] || (w->escapes_later && nodes[i].token);
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

/* Records a token without an escape of a string with bounds, and the tuple after it. false: no memory. */
static bool note_limited(struct inside *in, struct walked *w, uint32_t token, uint32_t chars, uint32_t tuple) {
  const struct re_pool *p = &in->m->s->pool;
  const struct tuple *parts = &in->m->tuples[tuple];
  uint64_t need = 0;
  for (uint32_t i = 0; i < parts->n; i++) {
    const struct re_node *left = re_at(p, p->states[parts->states[i]].re);
    if (parts->n == 1 || parts->states[i]) need = ANE_MAX(need, (uint64_t)chars + left->min_chars);
    w->bounded |= left->max_chars != RE_INF;
  }
  if (need <= LONG) {
    mask_set(in->k->mask, token);
    return true;
  }
  if (!re_grow((void **)&w->longs, &w->room_longs, w->n_longs, sizeof *w->longs)) return false;
  w->longs[w->n_longs++] = (struct long_token){token, (uint32_t)ANE_MIN(need, (uint64_t)UINT32_MAX)};
  return true;
}

/* Records a token without an escape, and the tuple after it. false: no memory. */
static inline bool note_plain(struct inside *in, struct walked *w, uint32_t token, uint32_t chars, uint32_t tuple) {
  if (w->limited) return note_limited(in, w, token, chars, tuple);
  mask_set(in->k->mask, token);
  return true;
}

/* Records a quote or a backslash, the first of its path. false: no memory. */
static bool note_stop(struct inside *in, struct walked *w, uint32_t node, uint32_t tuple) {
  if (in->k->t->lex[node] == LEX_ESCAPE) return walk_escape(in, w, node);
  if (!w->judged && !in->m->s->pool.states[in->m->tuples[tuple].states[0]].accepts) return true;
  if (!re_grow((void **)&w->ends, &w->room_ends, w->n_ends, sizeof *w->ends)) return false;
  w->ends[w->n_ends++] = (struct string_end){node, tuple};
  return true;
}

/* ---- Loops -------------------------------------------------------------------------------------------------------*/

/* The classes of bytes that lead from a tuple back to it, and those after which no text continues. */
struct loop {
  uint32_t tuple; /* + 1; 0: empty */
  uint64_t known, stays, dies;
};

/* A node of the path. */
struct step {
  uint32_t tuple;
  uint64_t classes; /* of the path's bytes */
  /* The tokens below that stay in `stays` or reach `dies` are done. scanned: all bytes since that was found are of `stays`. */
  uint64_t stays, dies;
  bool scanned;
};

/* A walk in progress. */
struct walk {
  struct inside *in;
  struct walked *found;
  struct step *path; /* [longest + 1] by depth */
  struct loop loops[256];
  uint32_t dead; /* where goals are not judged: the tuple of the text that ended */
  bool bounds;   /* bounds of the length are judged at each node */
};

/* Judges a tuple, and records that the walk depends on it. */
static bool is_hopeless(struct walk *w, uint32_t tuple, uint32_t length) {
  struct walked *found = w->found;
  struct inside *in = w->in;
  bool again = w->bounds || (tuple < in->n_viable && in->viable[tuple]), ok = may_go_on(in, tuple, length, w->bounds);
  if (!again && re_grow((void **)&found->tested, &found->room_tested, found->n_tested, sizeof *found->tested))
    found->tested[found->n_tested++] = (struct tested){tuple, ok};
  else if (!again)
    in->m->no_memory = true;
  return !ok;
}

static inline bool is_dead(struct walk *w, uint32_t tuple, uint32_t length) {
  return w->found->judged ? is_hopeless(w, tuple, length) : tuple == w->dead;
}

/* Returns whether all continuations of a character (need bytes, the first in from .. to) lead to a tuple. */
static bool returns(struct json_machine *m, uint32_t at, int need, int from, int to, uint32_t tuple) {
  uint32_t last = UINT32_MAX;
  for (int b = from; b <= to; b++) {
    uint32_t next = json_tuple_next(m, at, (uint8_t)b);
    if (next == last) continue; /* as the byte before */
    if (need == 1 ? next != tuple : !returns(m, next, need - 1, 0x80, 0xbf, tuple)) return false;
    last = next;
  }
  return true;
}

/* Returns whether every character with this first byte, after which the tuple is `at`, leads to a tuple. */
static bool character_returns(struct json_machine *m, uint32_t at, uint8_t lead, uint32_t tuple) {
  uint8_t from, to;
  int n = ane_utf8_lead(lead, &from, &to);
  return returns(m, at, n - 1, from, to, tuple);
}

/* Returns what is known of a tuple, with the wanted classes. */
static const struct loop *loop_of(struct walk *w, uint32_t tuple, uint64_t wanted) {
  struct json_machine *m = w->in->m;
  struct loop *l = &w->loops[tuple % ANE_COUNT(w->loops)];
  if (l->tuple != tuple + 1) *l = (struct loop){.tuple = tuple + 1};
  wanted &= ~l->known;
  uint64_t stays = wanted, dies = wanted;
  for (int b = 0x20; b <= 0xf4 && wanted; b++) {
    uint64_t c = token_class(w->in->k->t, (uint8_t)b);
    if (!(c & (stays | dies))) continue;
    uint32_t to = json_tuple_next(m, tuple, (uint8_t)b);
    if ((dies & c) && (to == tuple || !is_dead(w, to, w->in->st->length + 1))) dies &= ~c;
    if ((stays & c) && !(b < 0x80 ? to == tuple : !(dies & c) && character_returns(m, to, (uint8_t)b, tuple))) stays &= ~c;
  }
  l->known |= wanted;
  l->stays |= stays;
  l->dies |= dies;
  return l;
}

/* Returns the first of n items, sorted by node, that is not before `node`. size: bytes of an item, which begins with its node. */
static uint32_t first_item(const void *items, size_t size, uint32_t n, uint32_t node) {
  uint32_t lo = 0, hi = n;
  while (lo < hi) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (*(const uint32_t *)(const void *)((const char *)items + mid * size) < node)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* Records the tokens in the nodes [from, to) whose bytes are all of `stays`, or all tokens. false: no memory. */
static bool note_range(struct walk *w, uint32_t from, uint32_t to, uint32_t tuple, uint64_t stays, bool all) {
  struct inside *in = w->in;
  const struct ane_token_tree *t = in->k->t;
  for (uint32_t i = first_item(t->plains, sizeof *t->plains, t->n_plains, from); i < t->n_plains && t->plains[i].node < to; i++) {
    const struct plain_token *x = &t->plains[i];
    if ((all || !(x->classes & ~stays)) && !note_plain(in, w->found, x->token, x->chars, tuple)) return false;
  }
  for (uint32_t i = first_item(t->stops, sizeof *t->stops, t->n_stops, from); i < t->n_stops && t->stops[i].node < to; i++)
    if ((all || !(t->stops[i].classes & ~stays)) && !note_stop(in, w->found, t->stops[i].node, tuple)) return false;
  return true;
}

/* Finds at once the tokens in the nodes [from, to) below a step whose bytes lead from its tuple back to it. below: classes of the
 * nodes. Sets the step's stays, dies and scanned. false: no memory. */
static bool scan(struct walk *w, struct step *at, uint32_t from, uint32_t to, uint64_t below) {
  enum { WORTHWHILE = 256 }; /* nodes */
  struct inside *in = w->in;
  const struct ane_token_tree *t = in->k->t;
  at->scanned = false;
  if (to - from < WORTHWHILE || w->bounds) return true;
  const struct loop *l = loop_of(w, at->tuple, below);
  uint64_t stays = l->stays;
  bool all = !(below & ~stays); /* each byte leads back */
  /* The sets of tokens hold the bytes of the path too. */
  if (!(below & stays) || (!all && (at->classes & ~stays)) || in->m->too_large || in->m->s->pool.full) return true;
  at->stays = stays;
  at->dies = l->dies;
  at->scanned = true;
  for (uint32_t i = from; i < to; i = t->nodes[i].skip)
    if (!(token_class(t, t->nodes[i].byte) & ~stays) && !note_range(w, i, t->nodes[i].skip, at->tuple, stays, all)) return false;
  return true;
}

/* ---- Walks -------------------------------------------------------------------------------------------------------*/

/* Enters a node inside the string, if its text may continue. entered: it may. false: no memory. */
static bool enter_node(struct walk *w, uint32_t i, bool *entered) {
  struct inside *in = w->in;
  const struct ane_token_tree *t = in->k->t;
  const struct token_node *x = &t->nodes[i];
  const struct step *before = &w->path[x->depth - 1];
  uint64_t c = token_class(t, x->byte);
  *entered = false;
  if (before->scanned && !(t->below[i] & ~(before->stays | before->dies))) return true;
  uint32_t to = json_tuple_next(in->m, before->tuple, x->byte);
  if (is_dead(w, to, in->st->length + t->chars[i])) return true;
  *entered = true;
  struct step *at = &w->path[x->depth];
  *at = (struct step){to, before->classes | c, before->stays, before->dies, before->scanned && !(c & ~before->stays)};
  if (at->scanned) return true;
  for (uint32_t token = x->token; token; token = t->twin[token - 1])
    if (!note_plain(in, w->found, token - 1, t->chars[i], to)) return false;
  return t->lex[i] != LEX_PLAIN || scan(w, at, i + 1, x->skip, t->below[i]);
}

/* Walks the whole tree. false: no memory. */
static bool walk_tree(struct walk *w) {
  struct inside *in = w->in;
  const struct ane_token_tree *t = in->k->t;
  w->path[0] = (struct step){.tuple = in->st->tuple};
  if (!scan(w, &w->path[0], 0, t->n_nodes, t->all_classes)) return false;
  for (uint32_t i = 0; i < t->n_nodes && !in->m->too_large && !in->m->s->pool.full;) {
    const struct step *before = &w->path[t->nodes[i].depth - 1];
    bool entered = false;
    if (t->lex[i] == LEX_PLAIN || t->lex[i] == LEX_PARTIAL) {
      if (!enter_node(w, i, &entered)) return false;
    } else if (t->lex[i] != LEX_BAD && !before->scanned && !note_stop(in, w->found, i, before->tuple))
      return false;
    i = entered ? i + 1 : t->nodes[i].skip;
  }
  return true;
}

static bool walk_string(struct inside *in, struct walked *found) {
  struct masking *k = in->k;
  uint32_t *mask = k->mask;
  const uint32_t none = 0;
  struct walk w = {.in = in, .found = found, .dead = json_tuple(in->m, &none, 1), .bounds = found->exact};
  found->mask = ane_calloc(k->t->words, sizeof *found->mask);
  w.path = ane_malloc((k->t->longest + 1) * sizeof *w.path);
  k->mask = found->mask;
  bool ok = found->mask && w.path && walk_tree(&w);
  k->mask = mask;
  ane_free(w.path);
  if (!ok) in->m->no_memory = true;
  return ok;
}

/* Allows the tokens that a walk found, for the current state of the string. */
static void use_walked(struct inside *in, const struct walked *w, uint32_t max) {
  struct masking *k = in->k;
  const struct ane_token_tree *t = k->t;
  struct token_test test = {0};
  memcpy(k->mask, w->mask, t->words * sizeof *k->mask);
  for (uint32_t i = 0; i < w->n_longs; i++)
    if ((uint64_t)in->st->length + w->longs[i].need <= max || (w->judged && mask_exact(k, &test, w->longs[i].token)))
      mask_set(k->mask, w->longs[i].token);
  for (uint32_t i = 0; i < w->n_odd; i++)
    if (mask_exact(k, &test, w->odd[i])) mask_set(k->mask, w->odd[i]);
  for (uint32_t i = 0; i < w->n_ends; i++) {
    uint32_t node = w->ends[i].node;
    test = (struct token_test){0};
    const uint64_t *good = in->exact_ends ? NULL : mask_allowed_classes(in, w->ends[i].tuple, in->st->length + t->chars[node]);
    if (!in->exact_ends && !good) continue;
    for (uint32_t j = node; j < t->nodes[node].skip; j++)
      for (uint32_t token = t->nodes[j].token; token; token = t->twin[token - 1]) {
        uint32_t c = t->class_of[token - 1] - 1;
        if (in->exact_ends ? mask_exact(k, &test, token - 1) : good[c >> 6] >> (c & 63) & 1) mask_set(k->mask, token - 1);
      }
  }
}

/* Returns whether the evaluations of a walk hold for the current string. */
static bool holds(struct inside *in, const struct walked *w) {
  for (uint32_t i = 0; i < w->n_tested; i++)
    if (may_go_on(in, w->tested[i].tuple, in->st->length + 1, false) != w->tested[i].viable) return false;
  return true;
}

/* Returns a walk like `wanted` from the state's tuple, which is made once. NULL: it cannot be cached. */
static const struct walked *kept_walk(struct inside *in, const struct walked *wanted) {
  struct json_values *g = in->values;
  const struct ane_token_tree *t = in->k->t;
  if (!g->cache || g->cache->serial != t->serial) {
    mask_cache_free(g->cache);
    if (!(g->cache = ane_calloc(1, sizeof *g->cache))) return NULL;
    g->cache->serial = t->serial;
  }
  struct inside_cache *c = g->cache;
  for (uint32_t i = 0; i < c->n; i++) {
    const struct walked *w = &c->entries[i];
    if (w->tuple == wanted->tuple && w->limited == wanted->limited && w->judged == wanted->judged &&
        w->is_key == wanted->is_key && holds(in, w))
      return w;
  }
  if (in->n_viable > 0) memset(in->viable, 0, in->n_viable); /* so that the walk records each judgement */
  struct walked *w = &c->entries[c->n < CACHED ? c->n : in->st->tuple % CACHED];
  if (c->n == CACHED) free_walked(w);
  *w = *wanted;
  if (!walk_string(in, w)) {
    free_walked(w);
    w->tuple = UINT32_MAX;
    return NULL;
  }
  if (c->n < CACHED) c->n++;
  return w;
}

/* Uses a cached walk for a string with one part, whose failure cannot be survived, if no bound of its length can be reached. */
static bool try_single(struct inside *in) {
  const struct json_state *st = in->st;
  if (in->is_key || in->m->tuples[st->tuple].n != 1) return false;
  bool failed = true;
  if (json_survives(in->m, st->frame, &failed, 1)) return false;
  uint32_t min = st->typed->min[0], max = st->typed->max[0];
  if (max != NO_LIMIT && (uint64_t)st->length + LONG > max) return false;
  bool limited = min > 0 || max != NO_LIMIT;
  const struct walked *w = kept_walk(in, &(struct walked){.tuple = st->tuple, .limited = limited, .escapes_later = limited});
  if (!w || (w->bounded && min > st->length)) return false;
  use_walked(in, w, max);
  return true;
}

/* Uses a cached walk if no bound of the string's length can be reached. */
static bool try_judged(struct inside *in) {
  bool limited = in->max != NO_LIMIT;
  if (in->far_min || (limited && (in->m->tuples[in->st->tuple].n > FEW_PARTS || (uint64_t)in->st->length + LONG > in->max)))
    return false;
  struct walked wanted = {
      .tuple = in->st->tuple, .is_key = in->is_key, .judged = true, .limited = limited, .escapes_later = true};
  const struct walked *w = kept_walk(in, &wanted);
  if (w) use_walked(in, w, in->max);
  return w;
}

void mask_walk_string(struct inside *in) {
  find_bounds(in);
  if (try_single(in) || try_judged(in)) return;
  struct walked w = {.tuple = in->st->tuple, .judged = true, .exact = in->far_min || in->max != NO_LIMIT};
  if (walk_string(in, &w)) use_walked(in, &w, NO_LIMIT);
  free_walked(&w);
}
