/* unevaluatedProperties and unevaluatedItems. Which members are evaluated depends on which schemas beside these keywords hold.
 * Schemas that must hold always count. For the others, each combination of holding and not holding is a case. */
#include "base/alloc.h"
#include "grammar/regex_internal.h"
#include "grammar/schema_load.h"

#include <string.h>

enum { MAX_UNITS = 64, MAX_CONDITIONS = 6, MAX_GATHER = 32, MAX_VISITS = 1 << 16 };

/* A schema object that evaluates members or elements if `when` holds. */
struct unit {
  struct jv *v;
  expr_id when;
};

struct gathering {
  struct loading *l;
  struct jv *at;
  const char *keyword;
  struct unit units[MAX_UNITS];
  uint32_t n;
  uint32_t visits; /* schemas, as often as they are met */
};

static void gather(struct gathering *g, struct jv *v, expr_id when, int depth);

static void gather_list(struct gathering *g, struct jv *v, const char *name, bool sure, expr_id when, int depth) {
  struct jv *list = jv_get(v, name);
  for (size_t i = 0; list && list->kind == JV_ARRAY && i < list->len && !g->l->status; i++)
    gather(g, list->items[i], sure ? when : expr_two(g->l->s, EXPR_AND, when, load_node(g->l, list->items[i])), depth);
}

/* Collects the conditional schemas inside v, without v itself. */
static void gather_joined(struct gathering *g, struct jv *v, expr_id when, int depth) {
  struct schema *s = g->l->s;
  static const char *const refs[] = {"$ref", "$dynamicRef", "$recursiveRef"};
  for (size_t i = 0; i < ANE_COUNT(refs); i++) {
    struct jv *target = jv_get(v, refs[i]) ? load_target(g->l, v, refs[i]) : NULL;
    if (target) gather(g, target, when, depth);
  }
  gather_list(g, v, "allOf", true, when, depth);
  gather_list(g, v, "anyOf", false, when, depth);
  gather_list(g, v, "oneOf", false, when, depth);
  struct jv *i = jv_get(v, "if"), *t = jv_get(v, "then"), *e = jv_get(v, "else");
  if (i) {
    expr_id holds = load_node(g->l, i);
    gather(g, i, expr_two(s, EXPR_AND, when, holds), depth);
    if (t) gather(g, t, expr_two(s, EXPR_AND, when, holds), depth);
    if (e) gather(g, e, expr_two(s, EXPR_AND, when, expr_not(s, holds)), depth);
  }
  struct jv *d = jv_get(v, "dependentSchemas");
  for (size_t k = 0; d && d->kind == JV_OBJECT && k < d->len; k++)
    gather(g, d->members[k].value, expr_two(s, EXPR_AND, when, load_has(g->l, d->members[k].name, d->members[k].len)), depth);
}

static void gather(struct gathering *g, struct jv *v, expr_id when, int depth) {
  static const char *const names[] = {
      "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "prefixItems",
      "items",      "contains",          "unevaluatedItems"};
  bool members = strcmp(g->keyword, "unevaluatedProperties") == 0, any = false;
  if (v->kind != JV_OBJECT || g->l->status || when == EXPR_FALSE) return;
  for (size_t i = members ? 0 : 4; i < (members ? 4 : 8); i++) any |= jv_get(v, names[i]) != NULL;
  if (depth > MAX_GATHER || ++g->visits > MAX_VISITS || (any && v != g->at && g->n == MAX_UNITS)) {
    load_fail(g->l, ANE_UNSUPPORTED, g->at, g->keyword, "too many schemas beside it");
    return;
  }
  if (any && v != g->at) g->units[g->n++] = (struct unit){v, when};
  gather_joined(g, v, when, depth + 1);
}

/* Makes the atom of one case. on[i]: unit i holds. EXPR_TRUE: everything is evaluated. */
static expr_id members_case(struct gathering *g, const bool *on, const struct jv *rest) {
  struct loading *l = g->l;
  uint32_t n = 0, m = 0, id;
  for (uint32_t i = 0; i <= g->n; i++) {
    struct jv *v = i < g->n ? g->units[i].v : g->at, *p = jv_get(v, "properties"), *q = jv_get(v, "patternProperties");
    if (i < g->n && !on[i]) continue;
    if (jv_get(v, "additionalProperties") || (i < g->n && jv_get(v, "unevaluatedProperties"))) return EXPR_TRUE;
    n += p ? (uint32_t)p->len : 0;
    m += q ? (uint32_t)q->len : 0;
  }
  struct property *list = load_alloc(l, n, sizeof *list);
  struct pattern_property *patterns = load_alloc(l, m, sizeof *patterns);
  if (!list || !patterns) return EXPR_FALSE;
  n = m = 0;
  for (uint32_t i = 0; i <= g->n; i++) {
    struct jv *v = i < g->n ? g->units[i].v : g->at, *p = jv_get(v, "properties"), *q = jv_get(v, "patternProperties");
    if (i < g->n && !on[i]) continue;
    for (size_t k = 0; p && k < p->len; k++)
      list[n++] = (struct property){.name = p->members[k].name, .len = p->members[k].len, .value = EXPR_TRUE};
    for (size_t k = 0; q && k < q->len; k++) {
      patterns[m].value = EXPR_TRUE;
      if (re_parse(&l->s->pool, q->members[k].name, q->members[k].len, RE_SEARCH, &patterns[m++].re, NULL))
        return load_fail(l, ANE_UNSUPPORTED, q, "patternProperties", "the pattern is not supported");
    }
  }
  struct atom *a = load_atom(l, &id);
  if (!a) return EXPR_FALSE;
  a->properties = list;
  a->n_properties = n;
  a->patterns = patterns;
  a->n_patterns = m;
  a->additional_schema = rest;
  return expr_atom(l->s, id);
}

static expr_id elements_case(struct gathering *g, const bool *on, struct jv *rest) {
  struct loading *l = g->l;
  uint32_t n = 0, id;
  expr_id free_items = load_node(l, rest);
  for (uint32_t i = 0; i <= g->n; i++) {
    struct jv *v = i < g->n ? g->units[i].v : g->at, *items = jv_get(v, "items"), *prefix = jv_get(v, "prefixItems"),
              *contains = jv_get(v, "contains");
    if (i < g->n && !on[i]) continue;
    if (items && items->kind == JV_ARRAY) {
      if (jv_get(v, "additionalItems")) return EXPR_TRUE;
      prefix = items;
    } else if (items)
      return EXPR_TRUE;
    if (i < g->n && jv_get(v, "unevaluatedItems")) return EXPR_TRUE;
    if (prefix) n = ANE_MAX(n, (uint32_t)prefix->len);
    if (contains) free_items = expr_two(l->s, EXPR_OR, free_items, load_node(l, contains));
  }
  struct property *list = load_alloc(l, n, sizeof *list);
  if (!list) return EXPR_FALSE;
  for (uint32_t i = 0; i < n; i++) list[i].value = EXPR_TRUE;
  struct atom *a = load_atom(l, &id);
  if (!a) return EXPR_FALSE;
  a->prefix = list;
  a->n_prefix = n;
  a->items = free_items;
  return expr_atom(l->s, id);
}

/* Joins all cases, each with its condition. */
static expr_id cases(struct gathering *g, struct jv *rest, bool members) {
  struct schema *s = g->l->s;
  expr_id conditions[MAX_CONDITIONS], all = EXPR_TRUE;
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->n; i++) {
    uint32_t k = 0;
    while (k < n && conditions[k] != g->units[i].when) k++;
    if (g->units[i].when == EXPR_TRUE || k < n) continue;
    if (n == MAX_CONDITIONS)
      return load_fail(g->l, ANE_UNSUPPORTED, g->at, g->keyword, "more than %d schemas that may hold or not beside it",
                       MAX_CONDITIONS);
    conditions[n++] = g->units[i].when;
  }
  for (uint32_t mask = 0; mask < 1u << n && !g->l->status; mask++) {
    bool on[MAX_UNITS];
    expr_id when = EXPR_TRUE;
    for (uint32_t i = 0; i < g->n; i++) {
      on[i] = g->units[i].when == EXPR_TRUE;
      for (uint32_t k = 0; k < n; k++)
        if (conditions[k] == g->units[i].when) on[i] = mask >> k & 1;
    }
    for (uint32_t k = 0; k < n; k++)
      when = expr_two(s, EXPR_AND, when, mask >> k & 1 ? conditions[k] : expr_not(s, conditions[k]));
    if (when == EXPR_FALSE) continue;
    expr_id then = members ? members_case(g, on, rest) : elements_case(g, on, rest);
    all = expr_two(s, EXPR_AND, all, expr_two(s, EXPR_OR, expr_not(s, when), then));
  }
  return all;
}

expr_id load_unevaluated(struct loading *l, struct jv *v) {
  static const char *const names[] = {"unevaluatedProperties", "unevaluatedItems"};
  expr_id all = EXPR_TRUE;
  for (int i = 0; i < 2; i++) {
    struct jv *rest = jv_get(v, names[i]);
    if (!rest || rest->kind == JV_TRUE) continue;
    struct gathering *g = ane_calloc(1, sizeof *g);
    if (!g) return load_fail(l, ANE_NOMEM, v, names[i], "no memory");
    g->l = l;
    g->at = v;
    g->keyword = names[i];
    gather_joined(g, v, EXPR_TRUE, 1);
    if (!l->status) all = expr_two(l->s, EXPR_AND, all, cases(g, rest, i == 0));
    ane_free(g);
  }
  return l->status ? EXPR_FALSE : all;
}
