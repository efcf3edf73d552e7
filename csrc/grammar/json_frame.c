/* Open arrays and objects: which members and elements may come next, and which atoms these decide. */
#include "base/alloc.h"
#include "base/search.h"
#include "grammar/json_machine.h"
#include "grammar/regex_internal.h"

#include <string.h>

enum { BLOCK = 1 << 16 };

/* ---- Memory ------------------------------------------------------------------------------------------------------*/

void *json_alloc(struct json_machine *m, size_t n, size_t size) {
  struct json_tape *t = m->tape;
  size_t bytes = (n * size + 15) & ~(size_t)15;
  if (bytes > BLOCK) { /* rare: a block of its own would break the order of marks */
    m->too_large = true;
    return NULL;
  }
  if (t->n_blocks == 0 || t->used + bytes > BLOCK) {
    uint32_t next = t->n_blocks == 0 ? 0 : t->block + 1;
    if (next == t->n_blocks) {
      if (!re_grow((void **)&t->blocks, &t->room_blocks, t->n_blocks, sizeof *t->blocks) ||
          !(t->blocks[next] = ane_malloc(BLOCK))) {
        m->no_memory = true;
        return NULL;
      }
      t->n_blocks++;
    }
    t->block = next;
    t->used = 0;
  }
  void *p = t->blocks[t->block] + t->used;
  t->used += bytes;
  return memset(p, 0, bytes);
}

struct json_mark json_mark_of(const struct json_tape *t) {
  return (struct json_mark){t->block, t->used};
}
void json_rewind(struct json_tape *t, struct json_mark mark) {
  t->block = mark.block;
  t->used = mark.used;
}

/* ---- Sets of hashes ----------------------------------------------------------------------------------------------*/

bool json_has_seen(const struct seen *set, uint64_t hash) {
  while (set && ane_find_u64(set->hashes, set->n, hash) == UINT32_MAX) set = set->next;
  return set != NULL;
}

/* Returns a set with one more hash; the old one stays. NULL: no memory. */
static const struct seen *add_seen(struct json_machine *m, const struct seen *set, uint64_t hash) {
  uint32_t n = 1;
  const struct seen *rest = set;
  for (; rest && rest->n == n && n < SEEN_LONGEST; rest = rest->next) n *= 2;
  struct seen *s = json_alloc(m, 1, sizeof *s + n * sizeof *s->hashes);
  if (!s) return NULL;
  s->next = rest;
  s->n = n;
  s->hashes[0] = hash;
  for (n = 1; set != rest; n *= 2, set = set->next)
    for (uint32_t i = n, k = n, to = 2 * n; k > 0;) /* merges from the end */
      s->hashes[--to] = i > 0 && s->hashes[i - 1] > set->hashes[k - 1] ? s->hashes[--i] : set->hashes[--k];
  return s;
}

static struct frame *copy_frame(struct json_machine *m, const struct frame *f) {
  struct frame *g = json_alloc(m, 1, sizeof *g);
  if (g) *g = *f;
  return g;
}

/* ---- What is still possible -------------------------------------------------------------------------------------*/

static bool json_alive(struct json_machine *m, const struct frame *f, const uint8_t *status) {
  uint32_t n = f->context->n;
  bool fixed[64], any = false, *failed = n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, n, sizeof *failed);
  if (!failed) return false;
  for (uint32_t i = 0; i < n; i++) {
    failed[i] = json_lost(m, f->typed, f->typed->e[i], status);
    any |= failed[i];
  }
  return !any || json_survives(m, f->parent, failed, n);
}

bool json_survives(struct json_machine *m, const struct frame *f, const bool *failed, uint32_t n) {
  if (!f) return n == 0 || !failed[0];
  uint32_t atoms = f->typed->n;
  uint8_t fixed[64], *status = atoms <= ANE_COUNT(fixed) ? fixed : json_alloc(m, atoms, sizeof *status);
  bool changed = false;
  if (!status) return false;
  memcpy(status, f->status, atoms);
  for (uint32_t i = 0; i < atoms; i++) {
    uint16_t g = f->child->goal[i];
    if (g < n && failed[g] && status[i] == STATUS_OPEN) {
      status[i] = STATUS_FALSE;
      changed = true;
    }
  }
  return !changed || json_alive(m, f, status);
}

/* ---- Atoms -------------------------------------------------------------------------------------------------------*/

static const struct atom *atom_at(const struct json_machine *m, const struct typed_context *t, uint32_t i) {
  return &m->s->atoms[t->atoms[i]];
}

static bool is_named(const uint64_t *named, uint32_t i) { return named[i >> 6] >> (i & 63) & 1; }

/* Returns the number of names that the i-th atom requires and that are still missing. */
static uint32_t missing(const struct typed_context *t, const uint64_t *named, uint32_t i) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < t->n_names; k++) n += t->required[(size_t)k * t->n + i] && !is_named(named, k);
  return n;
}

/* Returns the number of missing names of the i-th atom of the frame. */
static uint32_t lacking_of(const struct json_machine *m, const struct frame *f, uint32_t i) {
  return atom_at(m, f->typed, i)->n_required ? missing(f->typed, f->named, i) : 0;
}

/* Returns the status of an atom of an object with `count` members. lacking: required names that are missing. final: no more
 * members come. */
static status3 object_status(const struct atom *a, uint32_t count, uint32_t lacking, bool final) {
  if (final) return lacking || count < a->min_properties || count > a->max_properties ? STATUS_FALSE : STATUS_TRUE;
  if ((uint64_t)count + lacking > a->max_properties) return STATUS_FALSE;
  return a->monotone && !lacking && count >= a->min_properties ? STATUS_TRUE : STATUS_OPEN;
}

static status3 array_status(const struct json_machine *m, const struct typed_context *t, uint32_t i, uint32_t count,
                            const uint32_t *contains, bool final) {
  const struct atom *a = atom_at(m, t, i);
  uint32_t found = contains ? contains[i] : 0;
  if (count > a->max_items || (a->has_contains && found > a->max_contains)) return STATUS_FALSE;
  if (final) return count < a->min_items || (a->has_contains && found < a->min_contains) ? STATUS_FALSE : STATUS_TRUE;
  if (a->has_contains && found < a->min_contains && (uint64_t)count + (a->min_contains - found) > a->max_items)
    return STATUS_FALSE;
  return STATUS_OPEN;
}

/* Returns the statuses of all atoms in the frame's current state. */
static uint8_t *statuses(struct json_machine *m, const struct frame *f, bool final) {
  const struct typed_context *t = f->typed;
  uint8_t *status = json_alloc(m, t->n, 1);
  for (uint32_t i = 0; status && i < t->n; i++) {
    status[i] = f->status[i];
    if (status[i] == STATUS_OPEN)
      status[i] = (uint8_t)(f->object ? object_status(atom_at(m, t, i), f->count, lacking_of(m, f, i), final)
                                      : array_status(m, t, i, f->count, f->contains, final));
  }
  return status;
}

/* ---- Names that may come -----------------------------------------------------------------------------------------*/

/* May the k-th name come next? lacking: names that are missing now, by atom. */
static bool name_may_come(struct json_machine *m, const struct frame *f, uint32_t k, uint8_t *status, const uint32_t *lacking) {
  const struct typed_context *t = f->typed;
  bool changed = false;
  if (is_named(f->named, k)) return false;
  for (uint32_t i = 0; i < t->n; i++) {
    status[i] = f->status[i];
    if (status[i] != STATUS_OPEN) continue;
    const struct atom *a = atom_at(m, t, i);
    if (t->children[(size_t)k * t->n + i] == EXPR_FALSE)
      status[i] = STATUS_FALSE;
    else if (a->max_properties != NO_LIMIT || a->monotone)
      status[i] = (uint8_t)object_status(a, f->count + 1, lacking[i] - t->required[(size_t)k * t->n + i], false);
    changed |= status[i] != STATUS_OPEN;
  }
  return !changed || json_alive(m, f, status);
}

/* Sets open atoms to false if they require a name that is neither present nor allowed. Returns whether there are any. */
static bool drop_unmet(const struct typed_context *t, const uint64_t *named, const uint64_t *allowed, uint8_t *status) {
  bool any = false;
  for (uint32_t i = 0; i < t->n; i++)
    for (uint32_t k = 0; k < t->n_names && status[i] == STATUS_OPEN; k++)
      if (t->required[(size_t)k * t->n + i] && !is_named(named, k) && !is_named(allowed, k)) {
        status[i] = STATUS_FALSE;
        any = true;
      }
  return any;
}

/* A name is not allowed if it requires (dependentRequired) another name that is not allowed. Such chains are followed for at most
 * MOST_NEEDS names. A name that is not allowed now is never allowed later, since decided statuses do not change. */
enum { MOST_NEEDS = 4 };

static uint64_t *allowed_names(struct json_machine *m, const struct frame *f) {
  const struct typed_context *t = f->typed;
  size_t words = t->n_names / 64 + 1;
  uint64_t *allowed = json_alloc(m, words, sizeof *allowed);
  uint32_t *lacking = json_alloc(m, t->n, sizeof *lacking);
  uint8_t *status = json_alloc(m, t->n, 1);
  if (!allowed || !lacking || !status) return NULL;
  for (uint32_t i = 0; i < t->n; i++) lacking[i] = f->status[i] == STATUS_OPEN ? lacking_of(m, f, i) : 0;
  for (uint32_t k = 0; k < t->n_names; k++)
    if (name_may_come(m, f, k, status, lacking)) allowed[k >> 6] |= (uint64_t)1 << (k & 63);
  if (t->n < 2) return allowed; /* expr_types has seen what the only atom needs */
  struct frame rest = *f;
  uint8_t *left = json_alloc(m, t->n, 1);
  if (!left) return NULL;
  memcpy(left, f->status, t->n);
  rest.status = left;
  for (int round = 0; round < MOST_NEEDS && drop_unmet(t, f->named, allowed, left); round++) {
    bool alive = json_alive(m, f, left);
    for (uint32_t k = 0; k < t->n_names; k++)
      if (is_named(allowed, k) && (!alive || !name_may_come(m, &rest, k, status, lacking)))
        allowed[k >> 6] &= ~((uint64_t)1 << (k & 63));
  }
  return allowed;
}

/* Can all required names still come? An atom that requires a name that is no longer allowed is false. This also tests a
 * conjunction of objects before it begins. */
static bool needs_can_come(struct json_machine *m, const struct frame *f) {
  const struct typed_context *t = f->typed;
  if (t->n < 2) return true;
  uint8_t *status = json_alloc(m, t->n, 1);
  const uint64_t *allowed = allowed_names(m, f);
  if (!status || !allowed) return false;
  memcpy(status, f->status, t->n);
  return !drop_unmet(t, f->named, allowed, status) || json_alive(m, f, status);
}

/* May a name that is not listed come? tuple: the beginning of the name. */
static bool other_may_come(struct json_machine *m, const struct frame *f, uint32_t tuple) {
  const struct typed_context *t = f->typed;
  const uint32_t *parts = m->tuples[tuple].states;
  uint32_t at = 0;
  uint8_t fixed[64], *status = t->n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, t->n, 1);
  bool changed = false;
  if (!status) return false;
  for (uint32_t i = 0; i < t->n; i++) {
    const struct atom *a = atom_at(m, t, i);
    bool possible = expr_types(m->s, a->additional) != 0;
    for (uint32_t k = 0; k < a->n_patterns; k++)
      possible |= parts[t->pattern_part[at++]] != 0 && expr_types(m->s, a->patterns[k].value);
    if (t->names_part[i] != NO_LIMIT && !parts[t->names_part[i]]) possible = false;
    status[i] = f->status[i];
    if (status[i] != STATUS_OPEN) continue;
    if (!possible)
      status[i] = STATUS_FALSE;
    else if (a->max_properties != NO_LIMIT || a->monotone)
      status[i] = (uint8_t)object_status(a, f->count + 1, lacking_of(m, f, i), false);
    changed |= status[i] != STATUS_OPEN;
  }
  return !changed || json_alive(m, f, status);
}

bool json_key_other(struct json_machine *m, const struct json_state *st) { return other_may_come(m, st->frame, st->tuple); }

static bool range_allowed(const struct json_state *st) {
  for (uint32_t k = st->lo; k < st->hi; k++)
    if (is_named(st->allowed, k)) return true;
  return false;
}

bool json_key_start(struct json_machine *m, struct json_state *st) {
  const struct frame *f = st->frame;
  if (!(st->allowed = allowed_names(m, f))) return false;
  st->lo = st->depth = 0;
  st->hi = f->typed->n_names;
  st->tuple = f->typed->key_tuple;
  st->length = 0;
  st->hash = JSON_TEXT_START;
  st->other = other_may_come(m, f, st->tuple);
  return st->other || range_allowed(st);
}

bool json_key_may_come(struct json_machine *m, const struct json_state *st) {
  struct json_state probe = *st;
  struct json_mark mark = json_mark_of(m->tape);
  bool ok = json_key_start(m, &probe);
  json_rewind(m->tape, mark);
  return ok;
}

bool json_key_byte(struct json_machine *m, struct json_state *st, uint8_t byte) {
  const struct typed_context *t = st->frame->typed;
  if (st->lo < st->hi) {
    uint32_t lo = st->lo, hi = st->hi;
    while (lo < hi && (t->names[lo].len <= st->depth || (uint8_t)t->names[lo].data[st->depth] < byte)) lo++;
    uint32_t end = lo;
    while (end < hi && (uint8_t)t->names[end].data[st->depth] == byte) end++;
    st->lo = lo;
    st->hi = end;
  }
  st->depth++;
  st->hash = json_mix(st->hash, byte);
  if (t->n_key > 0 && st->other) {
    uint32_t to = json_tuple_next(m, st->tuple, byte);
    if (to != st->tuple) {
      st->tuple = to;
      st->other = other_may_come(m, st->frame, to);
    }
  }
  return st->other || range_allowed(st);
}

/* ---- Children ----------------------------------------------------------------------------------------------------*/

struct goals {
  expr_id *list;
  uint32_t n;
};

static uint16_t goal_of(struct goals *g, expr_id e) {
  if (e < 2) return e == EXPR_TRUE ? GOAL_TRUE : GOAL_FALSE;
  for (uint32_t i = 0; i < g->n; i++)
    if (g->list[i] == e) return (uint16_t)i;
  g->list[g->n] = e;
  return (uint16_t)g->n++;
}

/* Makes the goals of a child. es[i]: the expression that the i-th atom gives for it. Decided atoms give no goal. */
static const struct child *make_child(struct json_machine *m, const struct frame *f, const expr_id *es, const expr_id *contains) {
  uint32_t n = f->typed->n;
  struct goals g = {json_alloc(m, 2 * (size_t)n, sizeof *g.list), 0};
  struct child *c = json_alloc(m, 1, sizeof *c);
  if (!g.list || !c || !(c->goal = json_alloc(m, n, sizeof *c->goal))) return NULL;
  for (uint32_t i = 0; i < n; i++) c->goal[i] = f->status[i] == STATUS_OPEN ? goal_of(&g, es[i]) : GOAL_TRUE;
  if (contains) {
    if (!(c->contains = json_alloc(m, n, sizeof *c->contains))) return NULL;
    for (uint32_t i = 0; i < n; i++) c->contains[i] = f->status[i] == STATUS_OPEN ? goal_of(&g, contains[i]) : GOAL_FALSE;
  }
  c->context = json_context(m, g.list, g.n);
  return c->context ? c : NULL;
}

/* Sets the frame to wait for a child. Atoms whose goal is FALSE become false. */
static bool await(struct json_machine *m, struct json_state *st, struct frame *f, const struct child *c) {
  uint8_t *status = NULL;
  for (uint32_t i = 0; i < f->typed->n; i++) {
    if (c->goal[i] != GOAL_FALSE) continue;
    if (!status) {
      if (!(status = json_alloc(m, f->typed->n, 1))) return false;
      memcpy(status, f->status, f->typed->n);
    }
    status[i] = STATUS_FALSE;
  }
  if (status && !json_alive(m, f, status)) return false;
  if (status) f->status = status;
  f->child = c;
  st->frame = f;
  st->context = c->context;
  return true;
}

bool json_key_end(struct json_machine *m, struct json_state *st) {
  const struct frame *old = st->frame;
  const struct typed_context *t = old->typed;
  struct frame *f = copy_frame(m, old);
  expr_id *es = json_alloc(m, t->n, sizeof *es);
  if (!f || !es) return false;
  f->key_hash = json_mix(st->hash, JSON_KEY_END);
  if (st->lo < st->hi && t->names[st->lo].len == st->depth) {
    uint32_t k = st->lo;
    if (!is_named(st->allowed, k)) return false;
    size_t words = t->n_names / 64 + 1;
    uint64_t *named = json_alloc(m, words, sizeof *named);
    if (!named) return false;
    memcpy(named, old->named, words * sizeof *named);
    named[k >> 6] |= (uint64_t)1 << (k & 63);
    f->named = named;
    for (uint32_t i = 0; i < t->n; i++) es[i] = t->children[(size_t)k * t->n + i];
  } else {
    if (!st->other) return false;
    if (json_has_seen(old->others, f->key_hash) || !(f->others = add_seen(m, old->others, f->key_hash))) return false;
    const uint32_t *parts = m->tuples[st->tuple].states;
    const struct re_state *states = m->s->pool.states;
    uint32_t at = 0;
    for (uint32_t i = 0; i < t->n; i++) {
      const struct atom a = *atom_at(m, t, i);
      bool found = false;
      es[i] = EXPR_TRUE;
      for (uint32_t k = 0; k < a.n_patterns; k++) {
        if (!states[parts[t->pattern_part[at++]]].accepts) continue;
        es[i] = expr_two(m->s, EXPR_AND, es[i], a.patterns[k].value);
        found = true;
      }
      if (!found) es[i] = a.additional;
      if (t->names_part[i] != NO_LIMIT && !states[parts[t->names_part[i]]].accepts) es[i] = EXPR_FALSE;
      if (!expr_types(m->s, es[i])) es[i] = EXPR_FALSE;
    }
  }
  const struct child *c = make_child(m, f, es, NULL);
  if (!c) return false;
  /* The member counts from here on, so the names that it requires are known. */
  struct frame counted = *f;
  counted.count++;
  uint8_t *status = statuses(m, &counted, false);
  return status && await(m, st, f, c) && json_alive(m, f, status);
}

bool json_element(struct json_machine *m, struct json_state *st) {
  const struct typed_context *t = st->frame->typed;
  struct frame *f = copy_frame(m, st->frame);
  expr_id *es = json_alloc(m, t->n, sizeof *es), *contains = t->counts ? json_alloc(m, t->n, sizeof *contains) : NULL;
  if (!f || !es || (t->counts && !contains)) return false;
  for (uint32_t i = 0; i < t->n; i++) {
    const struct atom *a = atom_at(m, t, i);
    es[i] = f->count >= a->max_items ? EXPR_FALSE : f->count < a->n_prefix ? a->prefix[f->count].value : a->items;
    if (!expr_types(m->s, es[i])) es[i] = EXPR_FALSE;
    if (contains) contains[i] = a->has_contains ? a->contains : EXPR_FALSE;
  }
  const struct child *c = make_child(m, f, es, contains);
  return c && await(m, st, f, c);
}

/* ---- Beginning and end -------------------------------------------------------------------------------------------*/

bool json_open(struct json_machine *m, struct json_state *st, bool object) {
  struct typed_context *t = st->typed;
  struct frame *f = json_alloc(m, 1, sizeof *f);
  if (!f) return false;
  f->parent = st->frame;
  f->depth = st->frame ? st->frame->depth + 1 : 1;
  if (f->depth > JSON_MAX_DEPTH) return false;
  f->context = st->context;
  f->typed = t;
  f->object = object;
  f->hashing = (st->frame && st->frame->hashing) || t->unique;
  uint8_t *status = json_alloc(m, t->n, 1);
  if (!status) return false;
  f->status = status;
  if (object && !(f->named = json_alloc(m, t->n_names / 64 + 1, sizeof *f->named))) return false;
  if (t->counts && !(f->contains = json_alloc(m, t->n, sizeof *f->contains))) return false;
  f->status = statuses(m, f, false);
  if (!f->status || !json_alive(m, f, f->status)) return false;
  if (object && !needs_can_come(m, f)) return false;
  st->frame = f;
  st->mode = MODE_OPENED;
  st->spaces = 0;
  return true;
}

bool json_close(struct json_machine *m, struct json_state *st) {
  const struct frame *f = st->frame;
  uint32_t n = f->context->n;
  bool fixed[64], *results = n <= ANE_COUNT(fixed) ? fixed : json_alloc(m, n, sizeof *results);
  const uint8_t *status = statuses(m, f, true);
  if (!status || !results) return false;
  for (uint32_t i = 0; i < n; i++) results[i] = json_evaluate(m, f->typed, f->typed->e[i], status) == STATUS_TRUE;
  st->frame = f->parent;
  st->context = f->context;
  return json_done(m, st, results, json_mix(f->hash, f->object ? 0x7b7d : 0x5b5d));
}

/* Does an element equal an earlier one? If not, adds it. */
static bool is_repeated(struct json_machine *m, struct frame *f, uint64_t hash) {
  return json_has_seen(f->others, hash) || !(f->others = add_seen(m, f->others, hash));
}

/* Does the state of a regular expression lead to a text that differs from all earlier elements? True if the budget is spent. */
static bool some_new(struct re_pool *p, const struct frame *f, uint32_t state, uint64_t hash, int depth, int *budget) {
  if (--*budget <= 0 || depth > 256) return true;
  if (p->states[state].accepts && !json_has_seen(f->others, json_mix(hash, JSON_STRING_END))) return true;
  for (unsigned b = 0; b < 256; b++) {
    uint32_t to = re_next(p, state, (uint8_t)b);
    if (to && some_new(p, f, to, json_mix(hash, b), depth + 1, budget)) return true;
  }
  return false;
}

bool json_element_may_be_new(struct json_machine *m, const struct json_state *st) {
  const struct frame *f = st->frame;
  if (!f || !f->typed->unique || !f->others || m->tuples[st->tuple].n == 0) return true;
  uint8_t *status = json_alloc(m, f->typed->n, 1);
  bool changed = false;
  if (!status) return false;
  memcpy(status, f->status, f->typed->n);
  for (uint32_t i = 0; i < f->typed->n; i++) {
    uint16_t g = f->child->goal[i];
    if (status[i] != STATUS_OPEN || !atom_at(m, f->typed, i)->unique || g >= GOAL_FALSE) continue;
    uint32_t state = m->tuples[st->tuple].states[g];
    int budget = 2000;
    if (!state || some_new(&m->s->pool, f, state, st->hash, 0, &budget)) continue;
    status[i] = STATUS_FALSE;
    changed = true;
  }
  return !changed || json_alive(m, f, status);
}

bool json_done(struct json_machine *m, struct json_state *st, const bool *results, uint64_t hash) {
  const struct frame *old = st->frame;
  st->spaces = 0;
  if (!old) {
    st->mode = MODE_END;
    return st->context->n == 0 || results[0];
  }
  const struct typed_context *t = old->typed;
  const struct child *c = old->child;
  struct frame *f = copy_frame(m, old);
  uint8_t *status = json_alloc(m, t->n, 1);
  if (!f || !status) return false;
  memcpy(status, old->status, t->n);
  f->count++;
  if (f->object)
    f->hash += json_mix(f->key_hash, hash);
  else
    f->hash = json_mix(f->hash, hash);
  for (uint32_t i = 0; i < t->n; i++)
    if (status[i] == STATUS_OPEN && c->goal[i] < GOAL_FALSE && !results[c->goal[i]]) status[i] = STATUS_FALSE;
  if (t->counts) {
    uint32_t *contains = json_alloc(m, t->n, sizeof *contains);
    if (!contains) return false;
    for (uint32_t i = 0; i < t->n; i++) {
      uint16_t g = c->contains[i];
      contains[i] = old->contains[i] + (g == GOAL_TRUE || (g < GOAL_FALSE && results[g]));
    }
    f->contains = contains;
  }
  if (t->unique && is_repeated(m, f, hash))
    for (uint32_t i = 0; i < t->n; i++)
      if (atom_at(m, t, i)->unique && status[i] == STATUS_OPEN) status[i] = STATUS_FALSE;
  f->status = status;
  if (!(f->status = statuses(m, f, false))) return false;
  f->child = NULL;
  st->frame = f;
  st->mode = MODE_NEXT;
  return json_alive(m, f, f->status);
}
