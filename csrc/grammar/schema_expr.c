/* Boolean expressions over atoms: constructors, simplification for a type, and a test whether any value can satisfy them. */
#include "base/alloc.h"
#include "grammar/regex_internal.h"
#include "grammar/schema.h"

#include <stdlib.h>
#include <string.h>

/* ---- Constructors ------------------------------------------------------------------------------------------------*/

static uint32_t hash_expr(const struct expr *e) {
  uint64_t h = ((uint64_t)e->kind << 32 | e->atom) * 0x9e3779b97f4a7c15u;
  for (uint32_t i = 0; i < e->n; i++) h = (h ^ e->list[i]) * 0x9e3779b97f4a7c15u ^ h >> 31;
  return (uint32_t)(h >> 32);
}

static bool same_expr(const struct expr *a, const struct expr *b) {
  return a->kind == b->kind && a->atom == b->atom && a->n == b->n &&
         (a->n == 0 || memcmp(a->list, b->list, a->n * sizeof *a->list) == 0);
}

static uint8_t types_of(const struct schema *s, const struct expr *e) {
  uint8_t all = T_ALL, some = 0;
  for (uint32_t i = 0; i < e->n; i++) {
    all &= expr_types(s, e->list[i]);
    some |= expr_types(s, e->list[i]);
  }
  switch (e->kind) {
    case EXPR_ATOM: return s->atoms[e->atom].possible;
    case EXPR_AND: return all;
    case EXPR_OR:
    case EXPR_ONE: return some;
    case EXPR_NOT: { /* only an atom that accepts every value of a type leaves none */
      const struct expr *of = &s->exprs[e->list[0]];
      return of->kind == EXPR_ATOM ? T_ALL & ~s->atoms[of->atom].bare : T_ALL;
    }
  }
  return T_ALL;
}

uint8_t expr_types(const struct schema *s, expr_id e) { return e == EXPR_FALSE ? 0 : e == EXPR_TRUE ? T_ALL : s->exprs[e].types; }

static uint32_t size_of(const struct schema *s, const struct expr *e) {
  uint64_t size = 1;
  for (uint32_t i = 0; i < e->n; i++) size += s->exprs[e->list[i]].size;
  return (uint32_t)ANE_MIN(size, (uint64_t)UINT32_MAX);
}

static bool grow_exprs(struct schema *s) {
  uint32_t size = s->table_size ? s->table_size * 2 : 256, *table = ane_calloc(size, sizeof *table);
  if (!table) return false;
  for (uint32_t i = 2; i < s->n_exprs; i++) {
    uint32_t at = hash_expr(&s->exprs[i]) & (size - 1);
    while (table[at]) at = (at + 1) & (size - 1);
    table[at] = i;
  }
  ane_free(s->table);
  s->table = table;
  s->table_size = size;
  return true;
}

/* Returns the id of an expression. Copies its list if it is new. */
static expr_id intern(struct schema *s, struct expr e) {
  e.size = size_of(s, &e);
  if (e.size > EXPR_MAX_SIZE) return s->pool.full = s->too_large = true, EXPR_FALSE;
  if ((s->n_exprs + 1) * 2 > s->table_size && !grow_exprs(s)) goto no_memory;
  uint32_t at = hash_expr(&e) & (s->table_size - 1);
  for (; s->table[at]; at = (at + 1) & (s->table_size - 1))
    if (same_expr(&s->exprs[s->table[at]], &e)) return s->table[at];
  while (s->n_exprs < 2 || s->n_exprs >= s->room_exprs) {
    if (!re_grow((void **)&s->exprs, &s->room_exprs, s->n_exprs, sizeof e)) goto no_memory;
    if (s->n_exprs >= 2) break;
    s->exprs[0] = s->exprs[1] = (struct expr){.n = 0};
    s->n_exprs = 2;
  }
  expr_id *list = ane_arena_array(&s->arena, e.n + 1, sizeof *list);
  if (!list) goto no_memory;
  if (e.n > 0) memcpy(list, e.list, e.n * sizeof *list);
  e.list = list;
  e.types = types_of(s, &e);
  s->exprs[s->n_exprs] = e;
  s->table[at] = s->n_exprs;
  return s->n_exprs++;
no_memory:
  s->pool.full = s->pool.no_memory = true;
  return EXPR_FALSE;
}

expr_id expr_atom(struct schema *s, uint32_t atom) { return intern(s, (struct expr){.kind = EXPR_ATOM, .atom = atom}); }

expr_id expr_not(struct schema *s, expr_id a) {
  if (a == EXPR_FALSE) return EXPR_TRUE;
  if (a == EXPR_TRUE) return EXPR_FALSE;
  if (s->exprs[a].kind == EXPR_NOT) return s->exprs[a].list[0];
  return intern(s, (struct expr){.kind = EXPR_NOT, .list = &a, .n = 1});
}

static int by_number(const void *x, const void *y) {
  expr_id a = *(const expr_id *)x, b = *(const expr_id *)y;
  return (a > b) - (a < b);
}

/* Makes "exactly one of the list", without constants. */
static expr_id one_of(struct schema *s, expr_id *list, uint32_t n) {
  uint32_t out = 0, sure = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (list[i] == EXPR_TRUE)
      sure++;
    else if (list[i] != EXPR_FALSE)
      list[out++] = list[i];
  }
  if (sure > 1) return EXPR_FALSE;
  if (out == 0) return sure ? EXPR_TRUE : EXPR_FALSE;
  if (sure == 1) return expr_not(s, expr_of(s, EXPR_OR, list, out));
  if (out == 1) return list[0];
  qsort(list, out, sizeof *list, by_number);
  return intern(s, (struct expr){.kind = EXPR_ONE, .list = list, .n = out});
}

expr_id expr_of(struct schema *s, expr_kind kind, const expr_id *parts, uint32_t n) {
  const expr_id neutral = kind == EXPR_AND ? EXPR_TRUE : EXPR_FALSE, final = kind == EXPR_AND ? EXPR_FALSE : EXPR_TRUE;
  uint32_t total = 0, out = 0;
  for (uint32_t i = 0; i < n; i++)
    total += parts[i] >= 2 && kind != EXPR_ONE && s->exprs[parts[i]].kind == kind ? s->exprs[parts[i]].n : 1;
  expr_id *list = ane_malloc((total + 1) * sizeof *list), result;
  if (!list) {
    s->pool.full = s->pool.no_memory = true;
    return EXPR_FALSE;
  }
  if (kind == EXPR_ONE) {
    if (n > 0) memcpy(list, parts, n * sizeof *list);
    result = one_of(s, list, n);
    goto done;
  }
  for (uint32_t i = 0; i < n; i++) {
    const struct expr *e = parts[i] >= 2 ? &s->exprs[parts[i]] : NULL;
    if (e && e->kind == kind) {
      memcpy(list + out, e->list, e->n * sizeof *list);
      out += e->n;
    } else
      list[out++] = parts[i];
  }
  if (out > 1) qsort(list, out, sizeof *list, by_number);
  n = out;
  out = 0;
  result = final;
  for (uint32_t i = 0; i < n; i++) {
    if (list[i] == final) goto done;
    if (list[i] != neutral && (out == 0 || list[out - 1] != list[i])) list[out++] = list[i];
  }
  for (uint32_t i = 0; i < out; i++) { /* x beside not x */
    const struct expr *e = &s->exprs[list[i]];
    if (e->kind == EXPR_NOT && bsearch(e->list, list, out, sizeof *list, by_number)) goto done;
  }
  result = out == 0 ? neutral : out == 1 ? list[0] : intern(s, (struct expr){.kind = kind, .list = list, .n = out});
done:
  ane_free(list);
  return result;
}

/* ---- For one type ------------------------------------------------------------------------------------------------*/

expr_id expr_for(struct schema *s, expr_id e, uint8_t type) {
  if (e < 2) return e;
  struct expr x = s->exprs[e];
  if (x.kind == EXPR_ATOM) {
    const struct atom *a = &s->atoms[x.atom];
    return !(a->possible & type) ? EXPR_FALSE : a->bare & type ? EXPR_TRUE : e;
  }
  if (x.kind == EXPR_NOT) return expr_not(s, expr_for(s, x.list[0], type));
  expr_id *list = ane_malloc(x.n * sizeof *list);
  if (!list) {
    s->pool.full = s->pool.no_memory = true;
    return EXPR_FALSE;
  }
  for (uint32_t i = 0; i < x.n; i++) list[i] = expr_for(s, x.list[i], type);
  expr_id r = expr_of(s, x.kind, list, x.n);
  ane_free(list);
  return r;
}

ane_re expr_strings(struct schema *s, expr_id e, bool lengths) {
  struct re_pool *p = &s->pool;
  if (e < 2) return e == EXPR_TRUE ? RE_ALL : RE_NONE;
  struct expr x = s->exprs[e];
  ane_re re = x.kind == EXPR_AND ? RE_ALL : RE_NONE;
  switch (x.kind) {
    case EXPR_ATOM: {
      const struct atom *a = &s->atoms[x.atom];
      if (!(a->types & T_STRING)) return RE_NONE;
      if (!lengths || (a->min_length == 0 && a->max_length == NO_LIMIT)) return a->re;
      return re_and(p, a->re, re_repeat(p, re_any_char(p), a->min_length, a->max_length));
    }
    case EXPR_NOT: return re_not(p, expr_strings(s, x.list[0], lengths));
    case EXPR_AND:
      for (uint32_t i = 0; i < x.n; i++) re = re_and(p, re, expr_strings(s, x.list[i], lengths));
      return re;
    case EXPR_OR:
      for (uint32_t i = 0; i < x.n; i++) re = re_alt(p, re, expr_strings(s, x.list[i], lengths));
      return re;
    case EXPR_ONE: { /* once, and not twice */
      ane_re twice = RE_NONE;
      for (uint32_t i = 0; i < x.n; i++) {
        ane_re one = expr_strings(s, x.list[i], lengths);
        twice = re_alt(p, twice, re_and(p, re, one));
        re = re_alt(p, re, one);
      }
      return re_and(p, re, re_not(p, twice));
    }
  }
  return re;
}

/* Does re match a whole text? */
static bool re_matches(struct re_pool *p, ane_re re, const char *text, size_t len) {
  uint32_t state = re_begin(p, re);
  for (size_t i = 0; i < len && state; i++) state = re_next(p, state, (uint8_t)text[i]);
  return state && p->states[state].accepts;
}

uint32_t expr_count(const struct schema *s, expr_id e) {
  if (e < 2) return e == EXPR_TRUE ? NO_LIMIT : 0;
  const struct expr *x = &s->exprs[e];
  uint64_t n = x->kind == EXPR_AND ? NO_LIMIT : 0;
  switch (x->kind) {
    case EXPR_ATOM: {
      const struct atom *a = &s->atoms[x->atom];
      uint8_t t = a->types;
      if (t & (T_ARRAY | T_OBJECT) || (t & T_STRING && !a->n_texts && a->max_length > 0)) return NO_LIMIT;
      n = !!(t & T_NULL) + !!(t & T_FALSE) + !!(t & T_TRUE);
      if (t & T_STRING) n += a->n_texts ? a->n_texts : 1;
      if (t & T_NUMBER) n += number_count(&a->number);
      return (uint32_t)ANE_MIN(n, (uint64_t)NO_LIMIT);
    }
    case EXPR_NOT: return NO_LIMIT;
    case EXPR_AND:
      for (uint32_t i = 0; i < x->n; i++) n = ANE_MIN(n, expr_count(s, x->list[i]));
      return (uint32_t)n;
    default:
      for (uint32_t i = 0; i < x->n; i++) n = ANE_MIN(n + expr_count(s, x->list[i]), (uint64_t)NO_LIMIT);
      return (uint32_t)n;
  }
}

/* ---- What is possible --------------------------------------------------------------------------------------------*/

/* Finds a property by name. NULL: there is none. */
static const struct property *property_of(const struct atom *a, const char *name, size_t len) {
  if (!a->by_name) {
    for (uint32_t i = 0; i < a->n_properties; i++)
      if (a->properties[i].len == len && memcmp(a->properties[i].name, name, len) == 0) return &a->properties[i];
    return NULL;
  }
  uint32_t first = 0, end = a->n_properties;
  while (first < end) {
    uint32_t middle = first + (end - first) / 2;
    const struct property *p = a->by_name[middle];
    int c = p->len != len ? (p->len > len) - (p->len < len) : memcmp(p->name, name, len);
    if (c == 0) return p;
    if (c < 0)
      first = middle + 1;
    else
      end = middle;
  }
  return NULL;
}

expr_id atom_member(struct schema *s, const struct atom *a, const char *name, size_t len) {
  const struct property *own = property_of(a, name, len);
  expr_id e = own ? own->value : EXPR_TRUE;
  bool found = own != NULL;
  for (uint32_t i = 0; i < a->n_patterns; i++)
    if (re_matches(&s->pool, a->patterns[i].re, name, len)) {
      e = expr_two(s, EXPR_AND, e, a->patterns[i].value);
      found = true;
    }
  if (!found) e = a->additional;
  if (a->names != EXPR_TRUE) {
    ane_re re = expr_strings(s, expr_for(s, a->names, T_STRING), true);
    if (!re_matches(&s->pool, re, name, len)) e = EXPR_FALSE;
  }
  return e;
}

/* The list of the texts that an automaton accepts, while it is made. */
struct listing {
  struct schema *s;
  struct re_text *out;
  uint32_t n;
  int budget; /* of steps */
  size_t len;
  char text[NAMES_LONGEST];
  uint32_t path[NAMES_LONGEST + 1]; /* the states before each of its bytes */
};

/* Adds all texts that begin with z->text and lead from the state to acceptance. false: they are too many, or too long. If a state
 * occurs twice on a path, the automaton accepts infinitely many texts. */
static bool list_texts(struct listing *z, uint32_t state) {
  struct re_pool *p = &z->s->pool;
  for (size_t i = 0; i < z->len; i++)
    if (z->path[i] == state) return false;
  z->path[z->len] = state;
  if (p->states[state].accepts) {
    char *copy = z->n < NAMES_LISTED ? ane_arena_alloc(&z->s->arena, z->len + 1) : NULL;
    if (!copy) return false;
    memcpy(copy, z->text, z->len);
    z->out[z->n++] = (struct re_text){copy, z->len};
  }
  for (unsigned b = 0; b < 256; b++) {
    if (--z->budget < 0) return false;
    uint32_t to = re_next(p, state, (uint8_t)b);
    if (!to) continue;
    if (z->len == NAMES_LONGEST) return false;
    z->text[z->len++] = (char)b;
    if (!list_texts(z, to)) return false;
    z->len--;
  }
  return !p->full;
}

uint32_t atom_names(struct schema *s, const struct atom *a, struct re_text out[NAMES_LISTED]) {
  struct re_pool *p = &s->pool;
  bool closed = a->additional == EXPR_FALSE;
  if (p->full || (a->names == EXPR_TRUE && (!closed || a->n_patterns == 0))) return NO_LIMIT;
  if (closed && (a->n_patterns > NAMES_LISTED || a->n_properties > NAMES_LISTED)) return NO_LIMIT;
  p->step_limit = p->steps + RE_MAX_STEPS;
  ane_re names = expr_strings(s, a->names, true), listed = RE_NONE;
  for (uint32_t i = 0; closed && i < a->n_properties; i++)
    listed = re_alt(p, listed, re_literal(p, a->properties[i].name, a->properties[i].len));
  for (uint32_t i = 0; closed && i < a->n_patterns; i++)
    if (a->patterns[i].value != EXPR_FALSE) listed = re_alt(p, listed, a->patterns[i].re);
  struct listing z = {.s = s, .out = out, .budget = 1 << 14};
  uint32_t state = re_begin(p, closed ? re_and(p, names, listed) : names);
  bool all = state == 0 || list_texts(&z, state);
  if (p->full && !p->no_memory) p->full = false; /* this was an attempt: what was made before stays valid */
  return all && !p->full ? z.n : NO_LIMIT;
}

/* Returns the maximum number of elements that an atom allows. */
static uint32_t max_elements(const struct schema *s, const struct atom *a) {
  uint32_t max = a->max_items;
  for (uint32_t i = 0; i < a->n_prefix && i < max; i++)
    if (!expr_types(s, a->prefix[i].value)) max = i;
  if (!expr_types(s, a->items)) max = ANE_MIN(max, a->n_prefix);
  return max;
}

static bool array_possible(const struct schema *s, const struct atom *a) {
  uint32_t min = a->min_items;
  if (a->has_contains && a->min_contains > 0) {
    if (!expr_types(s, a->contains) || a->min_contains > a->max_contains) return false;
    min = ANE_MAX(min, a->min_contains);
  }
  return min <= max_elements(s, a);
}

/* Can an object satisfy the atom? members[i]: the expression of the i-th required name. */
static bool object_possible(struct schema *s, const struct atom *a) {
  if (a->min_properties > a->max_properties || a->n_required > a->max_properties) return false;
  for (uint32_t i = 0; i < a->n_required; i++)
    if (!expr_types(s, atom_member(s, a, a->required[i].data, a->required[i].len))) return false;
  if (a->min_properties > 0 && a->n_patterns == 0 && !expr_types(s, a->additional)) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_properties; i++) n += expr_types(s, a->properties[i].value) != 0;
    if (a->min_properties > n) return false;
  }
  return true;
}

/* Each pass finds at least one atom, and takes as many steps as there are expressions and atoms. Schemas that need each other in
 * a long chain take a pass for each link. */
enum { MAX_POSSIBLE_STEPS = 1 << 25 };

ane_status schema_possible(struct schema *s, struct ane_error *err) {
  struct re_pool *p = &s->pool;
  uint64_t steps = 0;
  for (uint32_t i = 0; i < s->n_atoms; i++) {
    struct atom *a = &s->atoms[i];
    p->step_limit = p->steps + RE_MAX_STEPS;
    const struct re_node *n = re_at(p, a->re);
    a->possible = a->types & (T_NULL | T_FALSE | T_TRUE);
    if (a->types & T_STRING && a->min_length <= a->max_length && n->min_chars <= a->max_length && n->max_chars >= a->min_length &&
        re_alive(p, a->re, RE_AT_START))
      a->possible |= T_STRING;
    if (a->types & T_NUMBER && !number_impossible(&a->number)) a->possible |= T_NUMBER;
  }
  p->step_limit = p->steps + 4 * (uint64_t)RE_MAX_STEPS;
  for (bool changed = true; changed && !p->full;) {
    changed = false;
    steps += (uint64_t)s->n_exprs + s->n_atoms;
    if (steps > MAX_POSSIBLE_STEPS)
      return ane_fail(err, ANE_RANGE, "#: %u schemas need each other in too long a chain", (unsigned)s->n_atoms);
    for (uint32_t i = 2; i < s->n_exprs; i++) {
      uint8_t t = types_of(s, &s->exprs[i]);
      changed |= t != s->exprs[i].types;
      s->exprs[i].types = t;
    }
    for (uint32_t i = 0; i < s->n_atoms; i++) {
      uint8_t open = s->atoms[i].types & ~s->atoms[i].possible, won = 0;
      if (open & T_ARRAY && array_possible(s, &s->atoms[i])) won |= T_ARRAY;
      if (open & T_OBJECT && object_possible(s, &s->atoms[i])) won |= T_OBJECT;
      s->atoms[i].possible |= won;
      changed |= won != 0;
    }
  }
  if (p->full)
    return p->no_memory ? ane_fail(err, ANE_NOMEM, "no memory for the schema")
                        : ane_fail(err, ANE_RANGE, "the schema's patterns are too large");
  return ANE_OK;
}
