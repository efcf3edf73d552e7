/* Contexts of a schema. A context is made when a text first reaches it. */
#include "base/alloc.h"
#include "grammar/json_machine.h"
#include "grammar/regex_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CONTEXTS = 1 << 16, MAX_TUPLES = 1 << 18, MAX_CELLS = 1 << 25 };
enum { MAX_TESTS = 1 << 22, MAX_KEY_PATTERNS = 1 << 14 }; /* of one object: names tested by patterns; patterns */

static void *keep(struct json_machine *m, size_t n, size_t size) {
  void *p = ane_arena_array(&m->arena, n ? n : 1, size);
  if (!p) m->no_memory = true;
  return p;
}

/* ---- Tuples ------------------------------------------------------------------------------------------------------*/

static uint32_t hash_words(const uint32_t *w, uint32_t n) {
  uint64_t h = n;
  for (uint32_t i = 0; i < n; i++) h = json_mix(h, w[i]);
  return (uint32_t)(h >> 16);
}

uint32_t json_tuple(struct json_machine *m, const uint32_t *states, uint32_t n) {
  if ((m->n_tuples + 1) * 2 > m->tuple_table_size) {
    uint32_t size = m->tuple_table_size ? m->tuple_table_size * 2 : 256, *table = ane_calloc(size, sizeof *table);
    if (!table) return m->no_memory = true, 0;
    for (uint32_t i = 0; i < m->n_tuples; i++) {
      uint32_t at = hash_words(m->tuples[i].states, m->tuples[i].n) & (size - 1);
      while (table[at]) at = (at + 1) & (size - 1);
      table[at] = i + 1;
    }
    ane_free(m->tuple_table);
    m->tuple_table = table;
    m->tuple_table_size = size;
  }
  uint32_t at = hash_words(states, n) & (m->tuple_table_size - 1);
  for (; m->tuple_table[at]; at = (at + 1) & (m->tuple_table_size - 1)) {
    const struct tuple *t = &m->tuples[m->tuple_table[at] - 1];
    if (t->n == n && (n == 0 || memcmp(t->states, states, n * sizeof *states) == 0)) return m->tuple_table[at] - 1;
  }
  if (m->n_tuples >= MAX_TUPLES) return m->too_large = true, 0;
  uint32_t *copy = keep(m, n, sizeof *copy);
  if (!copy || !re_grow((void **)&m->tuples, &m->room_tuples, m->n_tuples, sizeof *m->tuples)) return m->no_memory = true, 0;
  if (n > 0) memcpy(copy, states, n * sizeof *copy);
  m->tuples[m->n_tuples] = (struct tuple){.states = copy, .n = n};
  m->tuple_table[at] = ++m->n_tuples;
  return m->n_tuples - 1;
}

uint32_t json_tuple_next(struct json_machine *m, uint32_t tuple, uint8_t byte) {
  struct tuple *t = &m->tuples[tuple];
  if (t->n == 0) return tuple;
  if (!t->next && !(t->next = keep(m, 256, sizeof *t->next))) return tuple;
  if (t->next[byte]) return t->next[byte] - 1;
  uint32_t fixed[64], *states = t->n <= ANE_COUNT(fixed) ? fixed : ane_malloc(t->n * sizeof *states);
  if (!states) return m->no_memory = true, tuple;
  m->s->pool.step_limit = m->s->pool.steps + RE_MAX_STEPS;
  uint32_t n = t->n;
  for (uint32_t i = 0; i < n; i++) states[i] = re_next(&m->s->pool, t->states[i], byte);
  uint32_t to = json_tuple(m, states, n);
  if (states != fixed) ane_free(states);
  if (!m->s->pool.full) m->tuples[tuple].next[byte] = to + 1;
  return to;
}

/* ---- Contexts ------------------------------------------------------------------------------------------------------*/

struct value_context *json_context(struct json_machine *m, const expr_id *goals, uint32_t n) {
  if ((m->n_contexts + 1) * 2 > m->context_table_size) {
    uint32_t size = m->context_table_size ? m->context_table_size * 2 : 64, *table = ane_calloc(size, sizeof *table);
    if (!table) return m->no_memory = true, NULL;
    for (uint32_t i = 0; i < m->n_contexts; i++) {
      uint32_t at = hash_words(m->contexts[i]->goals, m->contexts[i]->n) & (size - 1);
      while (table[at]) at = (at + 1) & (size - 1);
      table[at] = i + 1;
    }
    ane_free(m->context_table);
    m->context_table = table;
    m->context_table_size = size;
  }
  uint32_t at = hash_words(goals, n) & (m->context_table_size - 1);
  for (; m->context_table[at]; at = (at + 1) & (m->context_table_size - 1)) {
    struct value_context *p = m->contexts[m->context_table[at] - 1];
    if (p->n == n && (n == 0 || memcmp(p->goals, goals, n * sizeof *goals) == 0)) return p;
  }
  if (m->n_contexts >= MAX_CONTEXTS || n >= GOAL_FALSE) return m->too_large = true, NULL;
  struct value_context *p = keep(m, 1, sizeof *p);
  expr_id *copy = keep(m, n, sizeof *copy);
  if (!p || !copy || !re_grow((void **)&m->contexts, &m->room_contexts, m->n_contexts, sizeof *m->contexts))
    return m->no_memory = true, NULL;
  if (n > 0) memcpy(copy, goals, n * sizeof *copy);
  *p = (struct value_context){.goals = copy, .n = n, .number = m->n_contexts};
  m->contexts[m->n_contexts] = p;
  m->context_table[at] = ++m->n_contexts;
  return p;
}

/* ---- Contexts of one type ----------------------------------------------------------------------------------------*/

/* Moves the bounds of the length from an expression to *min and *max, if they always apply, as those of the atoms of a
 * conjunction do. Returns the regular expression that remains to be matched. */
static ane_re take_lengths(struct schema *s, expr_id e, uint32_t *min, uint32_t *max) {
  *min = 0;
  *max = NO_LIMIT;
  if (e < 2) return expr_strings(s, e, false);
  const struct expr *x = &s->exprs[e];
  const expr_id *list = x->kind == EXPR_AND ? x->list : &e;
  uint32_t n = x->kind == EXPR_AND ? x->n : 1;
  ane_re re = RE_ALL;
  for (uint32_t i = 0; i < n; i++) {
    const struct expr *y = &s->exprs[list[i]];
    bool atom = y->kind == EXPR_ATOM;
    if (atom) {
      *min = ANE_MAX(*min, s->atoms[y->atom].min_length);
      *max = ANE_MIN(*max, s->atoms[y->atom].max_length);
    }
    re = re_and(&s->pool, re, expr_strings(s, list[i], !atom));
  }
  return re;
}

static bool fill_strings(struct json_machine *m, const struct value_context *p, struct typed_context *t) {
  uint32_t *states = keep(m, p->n, sizeof *states);
  t->min = keep(m, p->n, sizeof *t->min);
  t->max = keep(m, p->n, sizeof *t->max);
  if (!states || !t->min || !t->max) return false;
  m->s->pool.step_limit = m->s->pool.steps + RE_MAX_STEPS;
  for (uint32_t i = 0; i < p->n; i++) {
    ane_re re = take_lengths(m->s, t->e[i], &t->min[i], &t->max[i]);
    const struct re_node *n = re_at(&m->s->pool, re);
    states[i] = n->min_chars > t->max[i] || n->max_chars < t->min[i] || t->min[i] > t->max[i] ? 0 : re_begin(&m->s->pool, re);
  }
  t->tuple = json_tuple(m, states, t->all_true ? 0 : p->n);
  return true;
}

static bool fill_numbers(struct json_machine *m, const struct value_context *p, struct typed_context *t) {
  t->rules = keep(m, p->n, sizeof *t->rules);
  t->ruled = keep(m, p->n, sizeof *t->ruled);
  if (!t->rules || !t->ruled) return false;
  for (uint32_t i = 0; i < p->n; i++) {
    if (t->e[i] < 2) continue;
    const struct expr *x = &m->s->exprs[t->e[i]];
    const expr_id *list = x->kind == EXPR_AND ? x->list : &t->e[i];
    uint32_t n = x->kind == EXPR_AND ? x->n : 1;
    t->ruled[i] = true;
    for (uint32_t k = 0; k < n; k++) {
      const struct expr *y = &m->s->exprs[list[k]];
      t->ruled[i] = t->ruled[i] && y->kind == EXPR_ATOM && number_join(&t->rules[i], &m->s->atoms[y->atom].number);
    }
  }
  return true;
}

/* Adds the atoms of an expression; false: no memory, or too many. */
static bool collect(struct json_machine *m, expr_id e, uint32_t **list, uint32_t *n, uint32_t *room) {
  if (e < 2) return true;
  const struct expr *x = &m->s->exprs[e];
  if (x->kind == EXPR_ATOM) {
    for (uint32_t i = 0; i < *n; i++) /* analyser: the list has n entries. */
      if ((*list)[i] == x->atom) return true;
    if (*n == TYPED_MAX_ATOMS) return m->too_large = true, false;
    if (!re_grow((void **)list, room, *n, sizeof **list)) return m->no_memory = true, false;
    (*list)[(*n)++] = x->atom;
    return true;
  }
  for (uint32_t i = 0; i < x->n; i++)
    if (!collect(m, m->s->exprs[e].list[i], list, n, room)) return false;
  return true;
}

static int by_number(const void *x, const void *y) {
  uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
  return (a > b) - (a < b);
}

static bool fill_atoms(struct json_machine *m, const struct value_context *p, struct typed_context *t, uint8_t type) {
  uint32_t *list = NULL, room = 0;
  bool ok = true;
  for (uint32_t i = 0; i < p->n && ok; i++) ok = collect(m, t->e[i], &list, &t->n, &room);
  t->atoms = keep(m, t->n, sizeof *t->atoms);
  ok = ok && t->atoms;
  if (ok && t->n > 0) {
    /* analyser: the list has n entries. */
    memcpy(t->atoms, list, t->n * sizeof *list);
    qsort(t->atoms, t->n, sizeof *list, by_number);
  }
  ane_free(list);
  uint64_t range = ok && t->n > 1 ? (uint64_t)t->atoms[t->n - 1] - t->atoms[0] + 1 : 0;
  if (range && range <= 8 * (uint64_t)t->n) {
    ok = (t->position = keep(m, (size_t)range, sizeof *t->position)) != NULL;
    for (uint32_t i = 0; ok && i < t->n; i++) t->position[t->atoms[i] - t->atoms[0]] = i;
  }
  for (uint32_t i = 0; ok && type == T_ARRAY && i < t->n; i++) {
    t->counts |= m->s->atoms[t->atoms[i]].has_contains;
    t->unique |= m->s->atoms[t->atoms[i]].unique;
  }
  return ok;
}

static int by_name(const void *x, const void *y) {
  const struct member_name *a = x, *b = y;
  int c = memcmp(a->data, b->data, ANE_MIN(a->len, b->len));
  return c ? c : (a->len > b->len) - (a->len < b->len);
}

static bool fill_names(struct json_machine *m, struct typed_context *t) {
  const struct schema *s = m->s;
  uint64_t n = 0;
  for (uint32_t i = 0; i < t->n; i++) n += (uint64_t)s->atoms[t->atoms[i]].n_properties + s->atoms[t->atoms[i]].n_required;
  if (n > TYPED_MAX_NAMES) return m->too_large = true, false;
  t->names = keep(m, (size_t)n, sizeof *t->names);
  if (!t->names) return false;
  n = 0;
  for (uint32_t i = 0; i < t->n; i++) {
    const struct atom *a = &s->atoms[t->atoms[i]];
    for (uint32_t k = 0; k < a->n_properties; k++)
      t->names[n++] = (struct member_name){a->properties[k].name, a->properties[k].len};
    for (uint32_t k = 0; k < a->n_required; k++) t->names[n++] = (struct member_name){a->required[k].data, a->required[k].len};
  }
  if (n > 1) qsort(t->names, (size_t)n, sizeof *t->names, by_name);
  for (uint64_t i = 0; i < n; i++)
    if (t->n_names == 0 || by_name(&t->names[t->n_names - 1], &t->names[i])) t->names[t->n_names++] = t->names[i];
  const uint64_t cells = (uint64_t)t->n_names * (t->n + 1);
  m->cells += cells;
  return (cells <= TYPED_MAX_TABLE && m->cells <= MAX_CELLS) || (m->too_large = true, false);
}

/* Fills the expression that each atom gives for each name. */
static bool fill_children(struct json_machine *m, struct typed_context *t) {
  uint64_t patterns = 0;
  for (uint32_t i = 0; i < t->n; i++) patterns += m->s->atoms[t->atoms[i]].n_patterns;
  if (patterns * t->n_names > MAX_TESTS) return m->too_large = true, false;
  t->children = keep(m, (size_t)t->n_names * t->n, sizeof *t->children);
  t->required = keep(m, (size_t)t->n_names * t->n, sizeof *t->required);
  if (!t->children || !t->required) return false;
  for (uint32_t i = 0; i < t->n; i++) {
    const struct atom a = m->s->atoms[t->atoms[i]];
    bool plain = a.n_patterns == 0 && a.names == EXPR_TRUE;
    for (uint32_t k = 0; k < t->n_names; k++) {
      expr_id e = plain ? a.additional : atom_member(m->s, &a, t->names[k].data, t->names[k].len);
      t->children[(size_t)k * t->n + i] = expr_types(m->s, e) ? e : EXPR_FALSE;
    }
    for (uint32_t j = 0; j < a.n_properties + a.n_required; j++) {
      bool property = j < a.n_properties;
      struct member_name name = {property ? a.properties[j].name : a.required[j - a.n_properties].data,
                                 property ? a.properties[j].len : a.required[j - a.n_properties].len};
      const struct member_name *at = bsearch(&name, t->names, t->n_names, sizeof name, by_name);
      size_t cell = (size_t)(at - t->names) * t->n + i;
      if (!property)
        t->required[cell] = true;
      else if (plain)
        t->children[cell] = expr_types(m->s, a.properties[j].value) ? a.properties[j].value : EXPR_FALSE;
    }
  }
  return true;
}

/* Makes the expressions that unlisted names are matched with. */
static bool fill_keys(struct json_machine *m, struct typed_context *t) {
  struct schema *s = m->s;
  uint32_t at = 0;
  uint64_t total = 0;
  for (uint32_t i = 0; i < t->n; i++) total += s->atoms[t->atoms[i]].n_patterns;
  if (total > MAX_KEY_PATTERNS) return m->too_large = true, false;
  uint32_t *states = keep(m, total + t->n, sizeof *states);
  t->pattern_part = keep(m, total, sizeof *t->pattern_part);
  t->names_part = keep(m, t->n, sizeof *t->names_part);
  if (!states || !t->pattern_part || !t->names_part) return false;
  s->pool.step_limit = s->pool.steps + RE_MAX_STEPS;
  for (uint32_t i = 0; i < t->n; i++) {
    const struct atom a = s->atoms[t->atoms[i]];
    for (uint32_t k = 0; k <= a.n_patterns; k++) {
      bool names = k == a.n_patterns;
      if (names && a.names == EXPR_TRUE) {
        t->names_part[i] = NO_LIMIT;
        break;
      }
      uint32_t state = re_begin(&s->pool, names ? expr_strings(s, expr_for(s, a.names, T_STRING), true) : a.patterns[k].re),
               part = 0;
      while (part < t->n_key && states[part] != state) part++;
      if (part == t->n_key) states[t->n_key++] = state;
      if (names)
        t->names_part[i] = part;
      else
        t->pattern_part[at++] = part;
    }
  }
  t->key_tuple = json_tuple(m, states, t->n_key);
  return true;
}

static int type_index(uint8_t type) { return __builtin_ctz(type); }

struct typed_context *json_typed(struct json_machine *m, struct value_context *p, uint8_t type) {
  struct typed_context **slot = &p->types[type_index(type)];
  /* analyser: what follows is not the same condition, but may fill the slot. */
  if (*slot) return *slot;
  struct typed_context *t = keep(m, 1, sizeof *t);
  if (!t || !(t->e = keep(m, p->n, sizeof *t->e))) return NULL;
  t->all_true = true;
  for (uint32_t i = 0; i < p->n; i++) {
    t->e[i] = expr_for(m->s, p->goals[i], type);
    t->all_true &= t->e[i] == EXPR_TRUE;
  }
  bool ok = true;
  if (type == T_STRING) ok = fill_strings(m, p, t);
  if (type == T_NUMBER) ok = fill_numbers(m, p, t);
  if (type & (T_ARRAY | T_OBJECT)) ok = fill_atoms(m, p, t, type);
  if (ok && type == T_OBJECT) ok = fill_names(m, t) && fill_children(m, t) && fill_keys(m, t);
  if (!ok || m->no_memory || m->too_large || m->s->pool.full) return NULL;
  return *slot = t;
}

/* ---- Evaluation -----------------------------------------------------------------------------------------------------*/

static status3 invert(status3 s) { return s == STATUS_TRUE ? STATUS_FALSE : s == STATUS_FALSE ? STATUS_TRUE : s; }

static status3 status_of(const struct typed_context *t, uint32_t atom, const uint8_t *status) {
  if (t->n == 1) return (status3)status[0];
  if (t->position) return (status3)status[t->position[atom - t->atoms[0]]];
  const uint32_t *at = bsearch(&atom, t->atoms, t->n, sizeof *t->atoms, by_number);
  return (status3)status[at - t->atoms];
}

bool json_lost(const struct json_machine *m, const struct typed_context *t, expr_id e, const uint8_t *status) {
  const struct expr *x = &m->s->exprs[e];
  if (e < 2 || (x->kind != EXPR_AND && x->kind != EXPR_OR)) return json_evaluate(m, t, e, status) == STATUS_FALSE;
  bool all = x->kind == EXPR_OR; /* are all parts needed to lose? */
  for (uint32_t i = 0; i < x->n; i++)
    if (json_lost(m, t, x->list[i], status) != all) return !all;
  return all;
}

status3 json_evaluate(const struct json_machine *m, const struct typed_context *t, expr_id e, const uint8_t *status) {
  if (e < 2) return e == EXPR_TRUE ? STATUS_TRUE : STATUS_FALSE;
  const struct expr *x = &m->s->exprs[e];
  uint32_t sure = 0, open = 0;
  switch (x->kind) {
    case EXPR_ATOM: return status_of(t, x->atom, status);
    case EXPR_NOT: return invert(json_evaluate(m, t, x->list[0], status));
    case EXPR_AND:
    case EXPR_OR: {
      status3 final = x->kind == EXPR_AND ? STATUS_FALSE : STATUS_TRUE;
      for (uint32_t i = 0; i < x->n; i++) {
        status3 one = json_evaluate(m, t, x->list[i], status);
        if (one == final) return final;
        open += one == STATUS_OPEN;
      }
      return open ? STATUS_OPEN : invert(final);
    }
    case EXPR_ONE:
      for (uint32_t i = 0; i < x->n; i++) {
        status3 one = json_evaluate(m, t, x->list[i], status);
        sure += one == STATUS_TRUE;
        open += one == STATUS_OPEN;
      }
      return sure > 1 ? STATUS_FALSE : open ? STATUS_OPEN : sure == 1 ? STATUS_TRUE : STATUS_FALSE;
  }
  return STATUS_OPEN;
}
