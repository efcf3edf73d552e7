/* Context-free grammars: see rules.h. */
#include "grammar/rules.h"

#include "base/alloc.h"
#include "grammar/regex_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RULES = 1 << 16, MAX_POSITIONS = 1 << 20, MAX_SETS = 1 << 17, MAX_ITEMS = 1 << 14 };

/* Limits of a grammar over all texts: items in its sets (12 bytes each), and items that completions visit. The second one bounds
 * the time of ambiguous grammars, which is cubic in the length of the text (Earley 1970). */
enum { MAX_TOTAL_ITEMS = 1 << 24, MAX_VISITS = 1 << 30 };

/* ---- Reading the description -------------------------------------------------------------------------------------*/

static ane_status text_of(struct rules *r, const struct ane_rule_symbol *s, ane_re *re, struct ane_error *err) {
  if (s->kind == ANE_RULE_LITERAL) {
    *re = re_literal(r->pool, s->text.data, s->text.len);
    return ANE_OK;
  }
  return re_parse(r->pool, s->text.data, s->text.len, s->kind == ANE_RULE_PATTERN_NO_CASE ? RE_NO_CASE : 0, re, err);
}

static ane_status add_position(struct rules *r, struct rule_position p, struct ane_error *err) {
  if (r->n_positions >= MAX_POSITIONS) return ane_fail(err, ANE_RANGE, "the grammar is too large");
  if (!re_grow((void **)&r->positions, &r->room_positions, r->n_positions, sizeof p))
    return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  r->positions[r->n_positions++] = p;
  return ANE_OK;
}

static ane_status add_alternative(struct rules *r, uint32_t rule, const struct ane_rule_alternative *a, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (size_t i = 0; i < a->n && st == ANE_OK; i++) {
    const struct ane_rule_symbol *s = &a->symbols[i];
    struct rule_position p = {POSITION_RULE, s->rule};
    if (s->kind == ANE_RULE_REFERENCE) {
      if (s->rule >= r->n_rules) return ane_fail(err, ANE_INVALID, "rule %u does not exist", (unsigned)s->rule + 1);
    } else {
      ane_re re = RE_NONE;
      st = text_of(r, s, &re, err);
      p = (struct rule_position){POSITION_TEXT, re};
    }
    if (st == ANE_OK) st = add_position(r, p, err);
  }
  return st ? st : add_position(r, (struct rule_position){POSITION_END, rule}, err);
}

static ane_status read_rules(struct rules *r, const struct ane_rule *list, size_t n, struct ane_error *err) {
  size_t total = 0;
  for (size_t i = 0; i < n; i++) total += list[i].n;
  if (n == 0 || n > MAX_RULES || total > MAX_POSITIONS)
    return ane_fail(err, ANE_RANGE, "%zu rules: 1 to %d are possible", n, MAX_RULES);
  r->n_rules = (uint32_t)n;
  r->first = ane_arena_array(&r->arena, n + 1, sizeof *r->first);
  r->starts = ane_arena_array(&r->arena, total + 1, sizeof *r->starts);
  r->nullable = ane_arena_array(&r->arena, n, sizeof *r->nullable);
  if (!r->first || !r->starts || !r->nullable) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  uint32_t at = 0;
  for (uint32_t i = 0; i < n; i++) {
    r->first[i] = at;
    for (size_t k = 0; k < list[i].n; k++) {
      r->starts[at++] = r->n_positions;
      ane_status st = add_alternative(r, i, &list[i].alternatives[k], err);
      if (st) return st;
    }
  }
  r->first[n] = at;
  return ANE_OK;
}

/* A search for the rules that have a property: some alternative of theirs consists of texts and rules that have it. */
struct search {
  uint32_t *missing; /* [alternatives] rules in it that are not known to have the property; UINT32_MAX: a text lacks it */
  uint32_t *rule_of; /* [alternatives] */
  uint32_t *first;   /* [n_rules + 1] into users */
  uint32_t *users;   /* the alternatives with a rule, as often as it occurs there */
  uint32_t *queue;   /* [n_rules] rules that have the property */
  uint32_t n;        /* of them */
};

static bool make_search(struct rules *r, struct search *s) {
  const uint32_t n = r->first[r->n_rules];
  *s = (struct search){ane_calloc(n + 1, sizeof *s->missing),        ane_calloc(n + 1, sizeof *s->rule_of),
                       ane_calloc(r->n_rules + 2, sizeof *s->first), ane_calloc(r->n_positions + 1, sizeof *s->users),
                       ane_calloc(r->n_rules, sizeof *s->queue),     0};
  if (!s->missing || !s->rule_of || !s->first || !s->users || !s->queue) return false;
  for (uint32_t i = 0; i < r->n_rules; i++)
    for (uint32_t k = r->first[i]; k < r->first[i + 1]; k++) s->rule_of[k] = i;
  /* The users of rule i are counted in first[i + 2]. The sums then make first[i + 1] the begin of the rule's range, and filling
   * the range moves it to the end. */
  for (uint32_t p = 0; p < r->n_positions; p++)
    if (r->positions[p].kind == POSITION_RULE) s->first[r->positions[p].which + 2]++;
  for (uint32_t i = 2; i < r->n_rules + 2; i++) s->first[i] += s->first[i - 1];
  for (uint32_t k = 0; k < n; k++)
    for (uint32_t p = r->starts[k]; r->positions[p].kind != POSITION_END; p++)
      if (r->positions[p].kind == POSITION_RULE) s->users[s->first[r->positions[p].which + 1]++] = k;
  return true;
}

static void free_search(struct search *s) {
  ane_free(s->missing);
  ane_free(s->rule_of);
  ane_free(s->first);
  ane_free(s->users);
  ane_free(s->queue);
}

/* Does an expression match the empty text, or any text? */
static bool text_has(struct rules *r, ane_re re, bool empty) {
  uint32_t state = re_begin(r->pool, re);
  return empty ? r->pool->states[state].accepts : state != 0;
}

static void note(struct search *s, bool *known, uint32_t alternative) {
  uint32_t rule = s->rule_of[alternative];
  if (s->missing[alternative] > 0 || known[rule]) return;
  known[rule] = true;
  s->queue[s->n++] = rule;
}

/* Finds the rules that match a text, or the empty text: known [n_rules]. */
static void find_rules(struct rules *r, struct search *s, bool empty, bool *known) {
  s->n = 0;
  for (uint32_t k = 0; k < r->first[r->n_rules]; k++) {
    s->missing[k] = 0;
    for (uint32_t p = r->starts[k]; s->missing[k] != UINT32_MAX && r->positions[p].kind != POSITION_END; p++)
      if (r->positions[p].kind == POSITION_RULE)
        s->missing[k]++;
      else if (!text_has(r, r->positions[p].which, empty))
        s->missing[k] = UINT32_MAX;
    note(s, known, k);
  }
  for (uint32_t i = 0; i < s->n; i++)
    for (uint32_t u = s->first[s->queue[i]]; u < s->first[s->queue[i] + 1]; u++) {
      uint32_t k = s->users[u];
      if (s->missing[k] == UINT32_MAX) continue;
      s->missing[k]--;
      note(s, known, k);
    }
}

/* Removes alternatives that match no text, and finds rules that match the empty text. */
static ane_status prune(struct rules *r, struct ane_error *err) {
  struct search s;
  bool *productive = ane_calloc(r->n_rules, sizeof *productive);
  bool ok = make_search(r, &s) && productive, starts = false;
  if (ok) {
    find_rules(r, &s, true, r->nullable);
    find_rules(r, &s, false, productive);
    starts = productive[0];
    for (uint32_t k = 0; k < r->first[r->n_rules]; k++) /* an alternative that matches no text is never begun */
      if (s.missing[k] > 0) r->starts[k] = UINT32_MAX;
  }
  free_search(&s);
  ane_free(productive);
  if (!ok) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  return starts ? ANE_OK : ane_fail(err, ANE_INVALID, "no text fulfils the grammar");
}

/* ---- Sets --------------------------------------------------------------------------------------------------------*/

static uint32_t hash_item(const struct rule_item *i) {
  uint64_t h = ((uint64_t)i->position << 32 | i->origin) * 0x9e3779b97f4a7c15u;
  h = (h ^ i->state) * 0xc2b2ae3d27d4eb4fu;
  return (uint32_t)(h >> 32);
}

/* Adds an item to the set under construction, once. */
static void add(struct rules *r, struct rule_item item) {
  if ((r->n_work + 1) * 2 > r->n_slots) {
    uint32_t n = r->n_slots ? r->n_slots * 2 : 128, *slots = r->n_work >= MAX_ITEMS ? NULL : ane_calloc(n, sizeof *slots);
    if (!slots) {
      if (r->n_work >= MAX_ITEMS)
        r->too_large = true;
      else
        r->no_memory = true;
      return;
    }
    for (uint32_t i = 0; i < r->n_work; i++) {
      uint32_t at = hash_item(&r->work[i]) & (n - 1);
      while (slots[at]) at = (at + 1) & (n - 1);
      slots[at] = i + 1;
    }
    ane_free(r->slots);
    r->slots = slots;
    r->n_slots = n;
  }
  uint32_t at = hash_item(&item) & (r->n_slots - 1);
  for (; r->slots[at]; at = (at + 1) & (r->n_slots - 1))
    if (memcmp(&r->work[r->slots[at] - 1], &item, sizeof item) == 0) return;
  if (!re_grow((void **)&r->work, &r->room_work, r->n_work, sizeof item)) {
    r->no_memory = true;
    return;
  }
  r->work[r->n_work] = item;
  r->slots[at] = ++r->n_work;
}

/* Advances the items of the set `origin` that wait for a completed rule. Items of the set under construction need no advance: a
 * rule that is complete there matched the empty text, which predict handles. */
static void complete(struct rules *r, uint32_t rule, uint32_t origin) {
  if (origin == RULES_SELF) return; /* the empty text */
  r->visits += r->sets[origin].n;
  if (r->visits > MAX_VISITS) {
    r->too_large = true;
    return;
  }
  for (uint32_t i = 0; i < r->sets[origin].n; i++) {
    struct rule_item w = r->sets[origin].items[i];
    if (r->positions[w.position].kind != POSITION_RULE || r->positions[w.position].which != rule) continue;
    add(r, (struct rule_item){w.position + 1, w.origin == RULES_SELF ? origin : w.origin, 0});
  }
}

/* Adds all items that follow from those of the set under construction. */
static void close_set(struct rules *r, bool *accepts) {
  *accepts = false;
  for (uint32_t i = 0; i < r->n_work && !r->no_memory && !r->too_large; i++) {
    struct rule_item x = r->work[i];
    struct rule_position p = r->positions[x.position];
    if (p.kind == POSITION_END) {
      *accepts |= p.which == r->n_rules;
      if (p.which < r->n_rules) complete(r, p.which, x.origin);
    } else if (p.kind == POSITION_RULE) {
      for (uint32_t k = r->first[p.which]; k < r->first[p.which + 1]; k++)
        if (r->starts[k] != UINT32_MAX) add(r, (struct rule_item){r->starts[k], RULES_SELF, 0});
      if (r->nullable[p.which]) add(r, (struct rule_item){x.position + 1, x.origin, 0});
    } else if (x.state == 0) {
      uint32_t s = re_begin(r->pool, p.which);
      if (s) add(r, (struct rule_item){x.position, x.origin, s});
      if (s && r->pool->states[s].accepts) add(r, (struct rule_item){x.position + 1, x.origin, 0});
    }
  }
}

static int by_item(const void *x, const void *y) { return memcmp(x, y, sizeof(struct rule_item)); }

static uint32_t hash_set(const struct rule_item *items, uint32_t n, bool accepts) {
  uint64_t h = n * 2 + accepts;
  for (uint32_t i = 0; i < n; i++) h = (h ^ hash_item(&items[i])) * 0x9e3779b97f4a7c15u ^ h >> 29;
  return (uint32_t)(h >> 20);
}

static bool grow_sets(struct rules *r) {
  uint32_t size = r->table_size ? r->table_size * 2 : 256, *table = ane_calloc(size, sizeof *table);
  if (!table) return false;
  for (uint32_t i = 1; i < r->n_sets; i++) {
    uint32_t at = hash_set(r->sets[i].items, r->sets[i].n, r->sets[i].accepts) & (size - 1);
    while (table[at]) at = (at + 1) & (size - 1);
    table[at] = i;
  }
  ane_free(r->table);
  r->table = table;
  r->table_size = size;
  return true;
}

/* Interns the set under construction and returns its number. Clears it. */
static uint32_t finish_set(struct rules *r) {
  bool accepts;
  close_set(r, &accepts);
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n_work; i++) { /* keeps only items that a byte can advance: no ends */
    struct rule_item x = r->work[i];
    uint8_t kind = (uint8_t)r->positions[x.position].kind;
    if (kind == POSITION_RULE || (kind == POSITION_TEXT && x.state)) r->work[n++] = x;
  }
  if (r->n_slots > 0) memset(r->slots, 0, r->n_slots * sizeof *r->slots);
  r->n_work = 0;
  if (r->no_memory || r->too_large || r->pool->full || (n == 0 && !accepts)) return 0;
  if (n > 1) qsort(r->work, n, sizeof *r->work, by_item);
  if ((r->n_sets + 1) * 2 > r->table_size && !grow_sets(r)) return r->no_memory = true, 0;
  uint32_t at = hash_set(r->work, n, accepts) & (r->table_size - 1);
  for (; r->table[at]; at = (at + 1) & (r->table_size - 1)) {
    const struct rule_set *s = &r->sets[r->table[at]];
    if (s->n == n && s->accepts == accepts && (n == 0 || memcmp(s->items, r->work, n * sizeof *s->items) == 0))
      return r->table[at];
  }
  if (r->n_sets >= MAX_SETS || r->n_items + n > MAX_TOTAL_ITEMS) return r->too_large = true, 0;
  struct rule_item *items = ane_arena_array(&r->arena, n + 1, sizeof *items);
  if (!items || !re_grow((void **)&r->sets, &r->room_sets, r->n_sets, sizeof *r->sets)) return r->no_memory = true, 0;
  if (n > 0) memcpy(items, r->work, n * sizeof *items);
  r->sets[r->n_sets] = (struct rule_set){.items = items, .n = n, .accepts = accepts};
  r->table[at] = r->n_sets;
  r->n_items += n;
  return r->n_sets++;
}

uint32_t rules_next(struct rules *r, uint32_t set, uint8_t byte) {
  if (set == 0) return 0;
  if (r->sets[set].next && r->sets[set].next[byte]) return r->sets[set].next[byte] - 1;
  if (!r->sets[set].next && !(r->sets[set].next = ane_arena_array(&r->arena, 256, sizeof(uint32_t))))
    return r->no_memory = true, 0;
  r->pool->step_limit = r->pool->steps + RE_MAX_STEPS;
  for (uint32_t i = 0; i < r->sets[set].n; i++) {
    struct rule_item x = r->sets[set].items[i];
    uint32_t s = x.state ? re_next(r->pool, x.state, byte) : 0;
    if (!s) continue;
    uint32_t origin = x.origin == RULES_SELF ? set : x.origin;
    add(r, (struct rule_item){x.position, origin, s});
    if (r->pool->states[s].accepts) add(r, (struct rule_item){x.position + 1, origin, 0});
  }
  uint32_t to = finish_set(r);
  if (!r->no_memory && !r->too_large && !r->pool->full) r->sets[set].next[byte] = to + 1;
  return to;
}

/* ---- Grammars ----------------------------------------------------------------------------------------------------*/

ane_status rules_make(struct rules *r, struct re_pool *pool, const struct ane_rule *list, size_t n, uint32_t *start,
                      struct ane_error *err) {
  memset(r, 0, sizeof *r);
  r->pool = pool;
  ane_status st = read_rules(r, list, n, err);
  pool->step_limit = pool->steps + 4 * (uint64_t)RE_MAX_STEPS;
  if (st == ANE_OK) st = prune(r, err);
  uint32_t root = r->n_positions; /* a root rule around the first one: its end is the end of the text */
  if (st == ANE_OK) st = add_position(r, (struct rule_position){POSITION_RULE, 0}, err);
  if (st == ANE_OK) st = add_position(r, (struct rule_position){POSITION_END, r->n_rules}, err);
  if (st == ANE_OK && !re_grow((void **)&r->sets, &r->room_sets, 0, sizeof *r->sets))
    st = ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  if (st) return st;
  r->sets[0] = (struct rule_set){.n = 0};
  r->n_sets = 1;
  add(r, (struct rule_item){root, RULES_SELF, 0});
  *start = finish_set(r);
  return ANE_OK;
}

void rules_free(struct rules *r) {
  ane_arena_free(&r->arena);
  ane_free(r->positions);
  ane_free(r->sets);
  ane_free(r->table);
  ane_free(r->work);
  ane_free(r->slots);
  memset(r, 0, sizeof *r);
}
