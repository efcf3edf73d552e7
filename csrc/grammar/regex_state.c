/* Derivatives of expressions, and the automaton that they form.
 *
 * An assertion depends on everything after it, so a derivative takes an expression n together with `rest`, the expression after
 * it: consume(n, rest) is what may follow the byte if n consumes it, and after_empty(n) is what may follow if n matches the empty
 * text (RE_ALL if anything may). */
#include "base/alloc.h"
#include "grammar/regex_internal.h"

#include <string.h>

struct position {
  struct re_pool *p;
  uint8_t byte;
  re_before before;
};

static bool is_word(unsigned b) { return (b >= '0' && b <= '9') || (b >= 'A' && b <= 'Z') || (b >= 'a' && b <= 'z') || b == '_'; }

static bool has(const struct re_set *s, uint8_t b) { return s->bits[b >> 6] >> (b & 63) & 1; }

/* Does the empty text match at the end of the text, after `before`? */
static bool accepts(const struct re_pool *p, ane_re re, re_before before) {
  for (;;) {
    const struct re_node *n = &p->nodes[re];
    if (!n->asserts) return n->nullable;
    switch (n->kind) {
      case RE_KIND_CAT:
      case RE_KIND_AND:
        if (!accepts(p, n->a, before)) return false;
        re = n->b;
        continue;
      case RE_KIND_ALT:
        if (accepts(p, n->a, before)) return true;
        re = n->b;
        continue;
      case RE_KIND_NOT: return !accepts(p, n->a, before);
      case RE_KIND_REPEAT: return n->lo == 0 || accepts(p, n->a, before);
      case RE_KIND_AHEAD: return accepts(p, n->a, before) != (n->lo != 0);
      case RE_KIND_START: return before == RE_AT_START;
      case RE_KIND_BOUNDARY: return (before == RE_AFTER_WORD) != (n->lo != 0);
      default: return n->nullable;
    }
  }
}

static ane_re derive(const struct position *at, ane_re re);

/* Returns the derivative of the texts that may follow if `re` matches the empty text: RE_NONE if it cannot, RE_ALL if any may. */
static ane_re after_empty(const struct position *at, ane_re re) {
  struct re_pool *p = at->p;
  struct re_node n = p->nodes[re];
  if (!n.asserts) return n.nullable ? RE_ALL : RE_NONE;
  switch (n.kind) {
    case RE_KIND_CAT:
    case RE_KIND_AND: {
      ane_re a = after_empty(at, n.a);
      return a == RE_NONE ? a : re_and(p, a, after_empty(at, n.b));
    }
    case RE_KIND_ALT: return re_alt(p, after_empty(at, n.a), after_empty(at, n.b));
    case RE_KIND_REPEAT: return n.lo == 0 ? RE_ALL : after_empty(at, n.a);
    case RE_KIND_AHEAD: {
      ane_re d = derive(at, n.a);
      return n.lo ? re_not(p, d) : d;
    }
    case RE_KIND_START: return at->before == RE_AT_START ? RE_ALL : RE_NONE;
    case RE_KIND_BOUNDARY: {
      bool edge = (at->before == RE_AFTER_WORD) != is_word(at->byte);
      return edge != (n.lo != 0) ? RE_ALL : RE_NONE;
    }
    default: return n.nullable ? RE_ALL : RE_NONE;
  }
}

/* Returns the expression of the texts that follow the byte, if n consumes it and `rest` comes after n. */
static ane_re consume(const struct position *at, ane_re re, ane_re rest) {
  struct re_pool *p = at->p;
  ane_re all = RE_NONE, condition = RE_ALL;
  for (;;) {
    if (++p->steps > p->step_limit) p->full = true;
    if (p->full) return RE_NONE;
    struct re_node n = p->nodes[re];
    ane_re one = RE_NONE;
    switch (n.kind) {
      case RE_KIND_NONE:
      case RE_KIND_EMPTY:
      case RE_KIND_AHEAD:
      case RE_KIND_START:
      case RE_KIND_BOUNDARY: break;
      case RE_KIND_ALL: one = re_cat(p, RE_ALL, rest); break;
      case RE_KIND_SET: one = has(&p->sets[n.a], at->byte) ? rest : RE_NONE; break;
      case RE_KIND_ALT:
        for (;;) {
          one = re_alt(p, one, consume(at, n.a, rest));
          if (p->nodes[n.b].kind != RE_KIND_ALT) break;
          n = p->nodes[n.b];
        }
        one = re_alt(p, one, consume(at, n.b, rest));
        break;
      case RE_KIND_REPEAT: {
        ane_re more = re_repeat(p, n.a, n.lo ? n.lo - 1 : 0, n.hi == RE_INF ? RE_INF : n.hi - 1);
        one = consume(at, n.a, re_cat(p, more, rest));
        break;
      }
      case RE_KIND_CAT: {
        one = consume(at, n.a, re_cat(p, n.b, rest));
        all = re_alt(p, all, re_and(p, condition, one));
        ane_re empty = after_empty(at, n.a);
        if (empty == RE_NONE) return all;
        condition = re_and(p, condition, empty);
        re = n.b;
        continue;
      }
      /* intersections and complements are whole texts: nothing comes after them */
      case RE_KIND_AND: one = re_and(p, derive(at, n.a), derive(at, n.b)); break;
      case RE_KIND_NOT: one = re_not(p, derive(at, n.a)); break;
      default: break;
    }
    return re_alt(p, all, re_and(p, condition, one));
  }
}

static ane_re derive(const struct position *at, ane_re re) { return consume(at, re, RE_EMPTY); }

/* ---- States ------------------------------------------------------------------------------------------------------*/

static uint32_t hash_state(ane_re re, uint8_t before) {
  uint64_t h = ((uint64_t)re << 2 | before) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 32);
}

static uint32_t hash_of_state(const struct re_pool *p, uint32_t number) {
  return hash_state(p->states[number].re, p->states[number].before);
}

static uint32_t state_of(struct re_pool *p, ane_re re, re_before before) {
  if (re == RE_NONE || p->full) return 0;
  if (!p->nodes[re].looks_back) before = RE_AFTER_OTHER;
  struct re_table *t = &p->state_table;
  if ((p->n_states + 1) * 2 > t->size && !re_grow_table(t, 256, p, p->n_states - 1, hash_of_state)) goto no_memory;
  uint32_t at = hash_state(re, (uint8_t)before) & (t->size - 1);
  for (; t->slots[at]; at = (at + 1) & (t->size - 1)) {
    const struct re_state *s = &p->states[t->slots[at]];
    if (s->re == re && s->before == before) return t->slots[at];
  }
  if (p->n_states >= RE_MAX_STATES) {
    p->full = true;
    return 0;
  }
  if (!re_grow((void **)&p->states, &p->room_states, p->n_states, sizeof *p->states)) goto no_memory;
  p->states[p->n_states] =
      (struct re_state){.re = re, .before = (uint8_t)before, .accepts = accepts(p, re, before), .whole = re == RE_ALL};
  t->slots[at] = p->n_states;
  return p->n_states++;
no_memory:
  p->full = p->no_memory = true;
  return 0;
}

/* Returns the state after one byte, also if it is not alive. */
static uint32_t raw_next(struct re_pool *p, uint32_t state, uint8_t byte) {
  if (state == 0) return 0;
  struct re_state *s = &p->states[state];
  if (s->whole) return state;
  if (s->next && s->next[byte]) return s->next[byte] - 1;
  if (!s->next && !(s->next = ane_calloc(256, sizeof *s->next))) {
    p->full = p->no_memory = true;
    return 0;
  }
  struct position at = {p, byte, (re_before)s->before};
  ane_re d = derive(&at, s->re);
  uint32_t to = state_of(p, d, is_word(byte) ? RE_AFTER_WORD : RE_AFTER_OTHER);
  if (p->full) return 0;
  p->states[state].next[byte] = to + 1;
  return to;
}

/* A set of states in the order of their insertion. */
struct reached {
  uint32_t *list, n, room;
  uint32_t *table, size;
};

static void put_slot(struct reached *r, uint32_t state) {
  uint32_t k = state * 2654435761u & (r->size - 1);
  while (r->table[k]) k = (k + 1) & (r->size - 1);
  r->table[k] = state;
}

/* false: no memory. */
static bool reach(struct reached *r, uint32_t state) {
  if (r->size > 0) {
    uint32_t k = state * 2654435761u & (r->size - 1);
    for (; r->table[k]; k = (k + 1) & (r->size - 1))
      if (r->table[k] == state) return true;
  }
  if (!re_grow((void **)&r->list, &r->room, r->n, sizeof *r->list)) return false;
  if ((r->n + 1) * 2 > r->size) {
    uint32_t size = r->size ? r->size * 2 : 256, *table = ane_calloc(size, sizeof *table);
    if (!table) return false;
    ane_free(r->table);
    r->table = table;
    r->size = size;
    for (uint32_t i = 0; i < r->n; i++) put_slot(r, r->list[i]);
  }
  put_slot(r, state);
  r->list[r->n++] = state;
  return true;
}

/* Can an accepting state, or a state that is known to be alive, be reached? */
static bool search_alive(struct re_pool *p, uint32_t start) {
  struct reached r = {0};
  bool alive = false;
  if (!reach(&r, start)) p->full = p->no_memory = true;
  for (uint32_t at = 0; at < r.n && !alive && !p->full; at++) {
    for (unsigned b = 0; b < 256 && !alive && !p->full; b++) {
      uint32_t to = raw_next(p, r.list[at], (uint8_t)b);
      if (to == 0 || p->states[to].alive == 2) continue;
      alive = p->states[to].alive == 1 || p->states[to].accepts || !p->nodes[p->states[to].re].boolean;
      if (!alive && !reach(&r, to)) p->full = p->no_memory = true;
    }
  }
  if (!alive && !p->full) /* no state that was reached is alive either */
    for (uint32_t i = 0; i < r.n; i++) p->states[r.list[i]].alive = 2;
  ane_free(r.list);
  ane_free(r.table);
  return alive || p->full;
}

static bool state_alive(struct re_pool *p, uint32_t state) {
  if (p->states[state].alive == 0) {
    const struct re_state *s = &p->states[state];
    bool alive = s->accepts || !p->nodes[s->re].boolean || search_alive(p, state);
    p->states[state].alive = alive ? 1 : 2;
  }
  return p->states[state].alive == 1;
}

bool re_alive(struct re_pool *p, ane_re re, re_before before) {
  uint32_t s = state_of(p, re, before);
  return p->full || state_alive(p, s);
}

uint32_t re_begin(struct re_pool *p, ane_re re) {
  uint32_t s = state_of(p, re, RE_AT_START);
  return state_alive(p, s) ? s : 0;
}

uint32_t re_next(struct re_pool *p, uint32_t state, uint8_t byte) {
  uint32_t to = raw_next(p, state, byte);
  return to && (p->states[to].alive == 1 || state_alive(p, to)) ? to : 0;
}
