/* Converts schemas to atoms and expressions: a function for each group of keywords. */
#include "base/alloc.h"
#include "grammar/regex_internal.h"
#include "grammar/schema_load.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 200000, MAX_NESTED = 400 };

/* ---- Errors and memory -------------------------------------------------------------------------------------------*/

/* Writes the JSON pointer of a value. A pointer that is too long loses its beginning. */
static void path_of(const struct jv *v, char *out, size_t size) {
  char text[200];
  size_t at = sizeof text - 1;
  text[at] = 0;
  for (; v && v->parent; v = v->parent) {
    char number[16];
    snprintf(number, sizeof number, "%u", (unsigned)v->index);
    const char *key = v->key ? v->key : number;
    size_t n = strlen(key);
    if (n + 1 > at) break;
    at -= n;
    memcpy(text + at, key, n);
    text[--at] = '/';
  }
  snprintf(out, size, "#%s%s", v && v->parent ? "..." : "", text + at);
}

expr_id load_fail(struct loading *l, ane_status status, const struct jv *at, const char *keyword, const char *fmt, ...) {
  char what[256], path[240];
  va_list args;
  if (l->status) return EXPR_FALSE;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  path_of(at, path, sizeof path);
  l->status =
      keyword ? ane_fail(l->err, status, "%s at %s: %s", keyword, path, what) : ane_fail(l->err, status, "%s: %s", path, what);
  return EXPR_FALSE;
}

void *load_alloc(struct loading *l, size_t n, size_t size) {
  void *p = ane_arena_array(&l->s->arena, n ? n : 1, size);
  if (!p && !l->status) l->status = ane_fail(l->err, ANE_NOMEM, "no memory for the schema");
  return p;
}

struct atom *load_atom(struct loading *l, uint32_t *number) {
  struct schema *s = l->s;
  if (!re_grow((void **)&s->atoms, &s->room_atoms, s->n_atoms, sizeof *s->atoms)) {
    if (!l->status) l->status = ane_fail(l->err, ANE_NOMEM, "no memory for the schema");
    return NULL;
  }
  struct atom *a = &s->atoms[ *number = s->n_atoms++];
  *a = (struct atom){.types = T_ALL,
                     .re = RE_ALL,
                     .max_length = NO_LIMIT,
                     .items = EXPR_TRUE,
                     .contains = EXPR_TRUE,
                     .max_items = NO_LIMIT,
                     .max_contains = NO_LIMIT,
                     .additional = EXPR_TRUE,
                     .names = EXPR_TRUE,
                     .max_properties = NO_LIMIT};
  return a;
}

/* Reads a keyword's value as an integer >= 0, capped at NO_LIMIT - 1. false: the keyword is absent or its value is invalid. */
static bool load_count(struct loading *l, struct jv *v, const char *keyword, uint32_t *out) {
  struct jv *n = jv_get(v, keyword);
  struct decimal d;
  if (!n) return false;
  if (n->kind != JV_NUMBER || !decimal_read(&d, n->text, n->len) || d.negative || !decimal_is_integer(&d)) {
    load_fail(l, ANE_INVALID, v, keyword, "must be a whole number that is not negative");
    return false;
  }
  uint64_t k = 0;
  if (d.exponent > 9)
    k = NO_LIMIT - 1;
  else {
    const char *p = d.digits;
    for (int64_t i = 0; i < d.exponent; i++) {
      if (i < d.n && *p == '.') p++;
      k = k * 10 + (i < d.n ? (uint64_t)(*p++ - '0') : 0);
    }
  }
  *out = (uint32_t)ANE_MIN(k, (uint64_t)NO_LIMIT - 1);
  return true;
}

/* Returns a keyword's value, which must be of `kind`. NULL: the keyword is absent, or an error is set. */
static struct jv *keyword(struct loading *l, struct jv *v, const char *name, jv_kind kind) {
  static const char *const words[] = {"null", "false", "true", "a number", "a string", "a list", "an object"};
  struct jv *k = jv_get(v, name);
  if (k && k->kind != kind) {
    load_fail(l, ANE_INVALID, v, name, "must be %s", words[kind]);
    return NULL;
  }
  return k;
}

static expr_id load_values(struct loading *l, struct jv *const *values, size_t n);

/* ---- Values ------------------------------------------------------------------------------------------------------*/

static expr_id object_value(struct loading *l, const struct jv *v) {
  uint32_t id, n = (uint32_t)v->len;
  struct property *list = load_alloc(l, n, sizeof *list);
  struct re_text *required = load_alloc(l, n, sizeof *required);
  if (!list || !required) return EXPR_FALSE;
  for (uint32_t i = 0; i < n && !l->status; i++) {
    const struct jv_member *m = &v->members[i];
    list[i] = (struct property){.name = m->name, .len = m->len, .value = load_values(l, &m->value, 1)};
    required[i] = (struct re_text){m->name, m->len};
  }
  struct atom *a = load_atom(l, &id);
  if (!a) return EXPR_FALSE;
  a->types = T_OBJECT;
  a->properties = list;
  a->required = required;
  a->n_properties = a->n_required = n;
  a->additional = EXPR_FALSE;
  return expr_atom(l->s, id);
}

static expr_id array_value(struct loading *l, const struct jv *v) {
  uint32_t id, n = (uint32_t)v->len;
  struct property *list = load_alloc(l, n, sizeof *list);
  if (!list) return EXPR_FALSE;
  for (uint32_t i = 0; i < n && !l->status; i++) list[i].value = load_values(l, &v->items[i], 1);
  struct atom *a = load_atom(l, &id);
  if (!a) return EXPR_FALSE;
  a->types = T_ARRAY;
  a->prefix = list;
  a->n_prefix = a->min_items = a->max_items = n;
  return expr_atom(l->s, id);
}

/* Makes one atom for all scalars, and one for each array and object. */
static expr_id load_values(struct loading *l, struct jv *const *values, size_t n) {
  uint32_t n_texts = 0, n_points = 0, n_parts = 0, id;
  expr_id *parts = load_alloc(l, n + 1, sizeof *parts);
  struct re_text *texts = load_alloc(l, n, sizeof *texts);
  struct decimal *points = load_alloc(l, n, sizeof *points);
  uint8_t types = 0;
  if (!parts || !texts || !points) return EXPR_FALSE;
  for (size_t i = 0; i < n && !l->status; i++) {
    const struct jv *v = values[i];
    switch (v->kind) {
      case JV_NULL: types |= T_NULL; break;
      case JV_FALSE: types |= T_FALSE; break;
      case JV_TRUE: types |= T_TRUE; break;
      case JV_NUMBER:
        types |= T_NUMBER;
        n_points += decimal_read(&points[n_points], v->text, v->len);
        break;
      case JV_STRING:
        types |= T_STRING;
        texts[n_texts++] = (struct re_text){v->text, v->len};
        break;
      case JV_ARRAY: parts[n_parts++] = array_value(l, v); break;
      case JV_OBJECT: parts[n_parts++] = object_value(l, v); break;
    }
  }
  if (l->status) return EXPR_FALSE;
  if (!types) return expr_of(l->s, EXPR_OR, parts, n_parts);
  struct atom *a = load_atom(l, &id);
  if (!a) return EXPR_FALSE;
  a->types = types;
  if (types & T_STRING) a->re = re_choice(&l->s->pool, texts, n_texts);
  a->n_texts = n_texts;
  number_sort(points, n_points);
  if (types & T_NUMBER) a->number = (struct number_rule){.points = points, .n_points = n_points};
  parts[n_parts++] = expr_atom(l->s, id);
  return expr_of(l->s, EXPR_OR, parts, n_parts);
}

/* ---- Keywords of one type ----------------------------------------------------------------------------------------*/

static void read_type(struct loading *l, struct jv *v, struct atom *a) {
  static const struct {
    const char *name;
    uint8_t type;
  } rows[] = {{"null", T_NULL},      {"boolean", T_FALSE | T_TRUE}, {"number", T_NUMBER},
              {"integer", T_NUMBER}, {"string", T_STRING},          {"array", T_ARRAY},
              {"object", T_OBJECT}};
  struct jv *t = jv_get(v, "type");
  if (!t) return;
  struct jv *const *list = t->kind == JV_ARRAY ? t->items : &t;
  size_t n = t->kind == JV_ARRAY ? t->len : 1;
  bool integer = false, number = false;
  a->types = 0;
  for (size_t i = 0; i < n; i++) {
    size_t k = 0;
    while (k < ANE_COUNT(rows) && !jv_is(list[i], rows[k].name)) k++;
    if (k == ANE_COUNT(rows)) {
      load_fail(l, ANE_INVALID, v, "type", "must be null, boolean, number, integer, string, array, object, or a list of these");
      return;
    }
    a->types |= rows[k].type;
    integer |= k == 3;
    number |= k == 2;
  }
  a->number.integer = integer && !number;
  a->number.plain = a->number.integer && schema_plain_integers(l->ids);
}

static void read_bound(struct loading *l, struct jv *v, const char *name, bool *has, struct decimal *d) {
  struct jv *n = keyword(l, v, name, JV_NUMBER);
  if (n) *has = decimal_read(d, n->text, n->len);
}

static void read_numbers(struct loading *l, struct jv *v, struct atom *a) {
  struct number_rule *r = &a->number;
  read_bound(l, v, "minimum", &r->has_min, &r->min);
  read_bound(l, v, "maximum", &r->has_max, &r->max);
  static const char *const names[] = {"exclusiveMinimum", "exclusiveMaximum"};
  for (int i = 0; i < 2; i++) {
    struct jv *x = jv_get(v, names[i]);
    if (!x || x->kind == JV_FALSE) continue;
    if (x->kind == JV_TRUE) { /* draft 4: of the bound beside it */
      if (i == 0)
        r->above_min = r->has_min;
      else
        r->below_max = r->has_max;
      continue;
    }
    struct number_rule more = {0};
    if (i == 0)
      read_bound(l, v, names[i], &more.has_min, &more.min), more.above_min = true;
    else
      read_bound(l, v, names[i], &more.has_max, &more.max), more.below_max = true;
    number_join(r, &more);
  }
  read_bound(l, v, "multipleOf", &r->has_step, &r->step);
  if (r->has_step && (r->step.negative || r->step.n == 0)) load_fail(l, ANE_INVALID, v, "multipleOf", "must be above 0");
  if (r->has_step && r->step.n > 18) load_fail(l, ANE_UNSUPPORTED, v, "multipleOf", "more than 18 digits are not supported");
}

static void read_format(struct loading *l, struct jv *v, struct atom *a) {
  struct jv *f = keyword(l, v, "format", JV_STRING);
  const struct schema_format *format = f ? schema_format(f->text, f->len) : NULL;
  ane_re re;
  if (!f) return;
  if (!format) {
    if (!l->options->lenient)
      load_fail(l, ANE_UNSUPPORTED, v, "format", "'%.60s' is not known (strict = false passes over it)", f->text);
    return;
  }
  struct number_rule bounds = {.has_min = format->minimum, .has_max = format->maximum};
  if (format->minimum) decimal_read(&bounds.min, format->minimum, strlen(format->minimum));
  if (format->maximum) decimal_read(&bounds.max, format->maximum, strlen(format->maximum));
  number_join(&a->number, &bounds);
  if (!format->pattern) return;
  struct ane_error err;
  if (re_parse(&l->s->pool, format->pattern, strlen(format->pattern), 0, &re, &err))
    load_fail(l, err.code, v, "format", "%s", err.text);
  else
    a->re = re_and(&l->s->pool, a->re, re);
}

static void read_strings(struct loading *l, struct jv *v, struct atom *a) {
  struct jv *p = keyword(l, v, "pattern", JV_STRING);
  struct ane_error err;
  ane_re re;
  load_count(l, v, "minLength", &a->min_length);
  load_count(l, v, "maxLength", &a->max_length);
  if (p) {
    ane_status st = re_parse(&l->s->pool, p->text, p->len, RE_SEARCH, &re, &err);
    if (st)
      load_fail(l, st, v, "pattern", "%s", err.text);
    else
      a->re = re_and(&l->s->pool, a->re, re);
  }
  read_format(l, v, a);
  const struct re_node *n = re_at(&l->s->pool, a->re);
  if (n->min_chars >= a->min_length) a->min_length = 0; /* holds by itself */
  if (n->max_chars <= a->max_length) a->max_length = NO_LIMIT;
}

static void read_arrays(struct loading *l, struct jv *v, struct atom *a) {
  struct jv *prefix = keyword(l, v, "prefixItems", JV_ARRAY), *items = jv_get(v, "items"), *rest = items;
  if (items && items->kind == JV_ARRAY) { /* drafts before 2020-12 */
    prefix = items;
    rest = jv_get(v, "additionalItems");
  }
  if (prefix) {
    a->n_prefix = (uint32_t)prefix->len;
    if (!(a->prefix = load_alloc(l, prefix->len, sizeof *a->prefix))) return;
    for (uint32_t i = 0; i < a->n_prefix; i++) a->prefix[i].schema = prefix->items[i];
  }
  a->items_schema = rest;
  a->contains_schema = jv_get(v, "contains");
  a->has_contains = a->contains_schema != NULL;
  a->min_contains = a->has_contains;
  load_count(l, v, "minItems", &a->min_items);
  load_count(l, v, "maxItems", &a->max_items);
  if (a->has_contains) {
    load_count(l, v, "minContains", &a->min_contains);
    load_count(l, v, "maxContains", &a->max_contains);
  }
  struct jv *unique = jv_get(v, "uniqueItems");
  if (unique && unique->kind != JV_TRUE && unique->kind != JV_FALSE)
    load_fail(l, ANE_INVALID, v, "uniqueItems", "must be true or false");
  a->unique = unique && unique->kind == JV_TRUE;
}

static void read_names(struct loading *l, struct jv *v, struct jv *list, const char *name, struct re_text **out, uint32_t *n) {
  struct ane_strmap seen = {0};
  if (!(*out = load_alloc(l, list->len, sizeof **out))) return;
  for (size_t i = 0; i < list->len && !l->status; i++) {
    const struct jv *item = list->items[i];
    uint32_t before;
    if (item->kind != JV_STRING)
      load_fail(l, ANE_INVALID, v, name, "must be a list of strings");
    else if (!ane_strmap_put(&seen, item->text, item->len, 0, &before))
      load_fail(l, ANE_NOMEM, v, name, "no memory");
    else if (before == UINT32_MAX)
      (*out)[(*n)++] = (struct re_text){item->text, item->len};
  }
  ane_strmap_free(&seen);
}

/* Limits of an object: tests of names by patterns, which take about 0.1 us each, and patterns. */
enum { MAX_TESTS = 1 << 22, MAX_PATTERNS = 1 << 14 };

static void read_objects(struct loading *l, struct jv *v, struct atom *a) {
  struct jv *properties = keyword(l, v, "properties", JV_OBJECT), *patterns = keyword(l, v, "patternProperties", JV_OBJECT);
  struct jv *required = keyword(l, v, "required", JV_ARRAY);
  if (properties) {
    if (!(a->properties = load_alloc(l, properties->len, sizeof *a->properties))) return;
    a->n_properties = (uint32_t)properties->len;
    for (uint32_t i = 0; i < a->n_properties; i++) {
      const struct jv_member *m = &properties->members[i];
      a->properties[i] = (struct property){.name = m->name, .len = m->len, .schema = m->value};
    }
  }
  if (patterns) {
    if (!(a->patterns = load_alloc(l, patterns->len, sizeof *a->patterns))) return;
    a->n_patterns = (uint32_t)patterns->len;
    for (uint32_t i = 0; i < a->n_patterns; i++) {
      const struct jv_member *m = &patterns->members[i];
      struct ane_error err;
      ane_status st = re_parse(&l->s->pool, m->name, m->len, RE_SEARCH, &a->patterns[i].re, &err);
      if (st) load_fail(l, st, patterns, "patternProperties", "'%.60s': %s", m->name, err.text);
      a->patterns[i].schema = m->value;
    }
  }
  a->additional_schema = jv_get(v, "additionalProperties");
  a->names_schema = jv_get(v, "propertyNames");
  if (required) read_names(l, v, required, "required", &a->required, &a->n_required);
  uint64_t names = (uint64_t)a->n_properties + a->n_required;
  if (a->n_patterns > MAX_PATTERNS) load_fail(l, ANE_RANGE, v, "patternProperties", "more than %d patterns", MAX_PATTERNS);
  if (names * a->n_patterns > MAX_TESTS)
    load_fail(l, ANE_RANGE, v, "patternProperties", "too many patterns for %llu names", (unsigned long long)names);
  load_count(l, v, "minProperties", &a->min_properties);
  load_count(l, v, "maxProperties", &a->max_properties);
}

/* ---- Atoms -------------------------------------------------------------------------------------------------------*/

/* Returns the types of which the atom accepts every value. */
static uint8_t bare_types(const struct atom *a) {
  uint8_t t = a->types & (T_NULL | T_FALSE | T_TRUE);
  const struct number_rule *r = &a->number;
  if (a->re == RE_ALL && a->min_length == 0 && a->max_length == NO_LIMIT) t |= T_STRING;
  if (!r->integer && !r->has_min && !r->has_max && !r->has_step && !r->points) t |= T_NUMBER;
  if (a->n_prefix == 0 && a->items == EXPR_TRUE && !a->has_contains && a->min_items == 0 && a->max_items == NO_LIMIT &&
      !a->unique)
    t |= T_ARRAY;
  bool free_members = a->n_properties == 0 && a->n_patterns == 0 && a->additional == EXPR_TRUE && a->names == EXPR_TRUE;
  if (free_members && a->n_required == 0 && a->min_properties == 0 && a->max_properties == NO_LIMIT) t |= T_OBJECT;
  return t & a->types;
}

static int by_length_and_name(const void *x, const void *y) {
  const struct property *a = *(const struct property *const *)x, *b = *(const struct property *const *)y;
  return a->len != b->len ? (a->len > b->len) - (a->len < b->len) : memcmp(a->name, b->name, a->len);
}

static void sort_properties(struct loading *l, struct atom *a) {
  enum { FEW = 8 };
  a->by_name = a->n_properties > FEW ? load_alloc(l, a->n_properties, sizeof(const struct property *)) : NULL;
  if (!a->by_name) return;
  for (uint32_t i = 0; i < a->n_properties; i++) a->by_name[i] = &a->properties[i];
  qsort(a->by_name, a->n_properties, sizeof *a->by_name, by_length_and_name);
}

/* If patterns or propertyNames allow only a few names, turns them into a list of properties, so that each name has one entry. */
static void list_names(struct loading *l, struct atom *a) {
  struct re_text names[NAMES_LISTED];
  uint32_t n = atom_names(l->s, a, names);
  if (n == NO_LIMIT) return;
  struct property *list = load_alloc(l, n, sizeof *list);
  if (!list) return;
  a->names = EXPR_TRUE;
  for (uint32_t i = 0; i < n; i++)
    list[i] = (struct property){names[i].data, names[i].len, atom_member(l->s, a, names[i].data, names[i].len), NULL};
  a->properties = list;
  a->n_properties = n;
  a->n_patterns = 0;
  a->additional = EXPR_FALSE;
}

/* Replaces the schemas of members and elements by expressions. */
static void close_atom(struct loading *l, uint32_t id) {
  struct atom a = l->s->atoms[id]; /* the list may move */
  for (uint32_t i = 0; i < a.n_prefix; i++)
    if (a.prefix[i].schema) a.prefix[i].value = load_node(l, (struct jv *)(uintptr_t)a.prefix[i].schema);
  for (uint32_t i = 0; i < a.n_properties; i++)
    if (a.properties[i].schema) a.properties[i].value = load_node(l, (struct jv *)(uintptr_t)a.properties[i].schema);
  for (uint32_t i = 0; i < a.n_patterns; i++)
    if (a.patterns[i].schema) a.patterns[i].value = load_node(l, (struct jv *)(uintptr_t)a.patterns[i].schema);
  if (a.items_schema) a.items = load_node(l, (struct jv *)(uintptr_t)a.items_schema);
  if (a.contains_schema) a.contains = load_node(l, (struct jv *)(uintptr_t)a.contains_schema);
  if (a.additional_schema) a.additional = load_node(l, (struct jv *)(uintptr_t)a.additional_schema);
  if (a.names_schema) a.names = load_node(l, (struct jv *)(uintptr_t)a.names_schema);
  if (a.unique) a.max_items = (uint32_t)ANE_MIN(a.max_items, (uint64_t)a.n_prefix + expr_count(l->s, a.items));
  list_names(l, &a);
  bool all_true = a.additional == EXPR_TRUE && a.names == EXPR_TRUE && a.max_properties == NO_LIMIT;
  for (uint32_t i = 0; i < a.n_properties; i++) all_true &= a.properties[i].value == EXPR_TRUE;
  for (uint32_t i = 0; i < a.n_patterns; i++) all_true &= a.patterns[i].value == EXPR_TRUE;
  a.monotone = all_true;
  if (all_true) a.n_properties = a.n_patterns = 0;
  a.bare = bare_types(&a);
  sort_properties(l, &a);
  l->s->atoms[id] = a;
}

static expr_id own_atom(struct loading *l, struct jv *v) {
  uint32_t id;
  if (!load_atom(l, &id)) return EXPR_FALSE;
  struct atom a = l->s->atoms[id];
  read_type(l, v, &a);
  if (a.types & T_NUMBER) read_numbers(l, v, &a);
  read_strings(l, v, &a);
  read_arrays(l, v, &a);
  read_objects(l, v, &a);
  l->s->atoms[id] = a;
  bool members =
      a.n_prefix || a.items_schema || a.has_contains || a.n_properties || a.n_patterns || a.additional_schema || a.names_schema;
  if (!members && a.types == T_ALL && bare_types(&a) == T_ALL) {
    l->s->n_atoms--;
    return EXPR_TRUE;
  }
  return expr_atom(l->s, id);
}

/* ---- Keywords that join schemas ----------------------------------------------------------------------------------*/

static expr_id read_list(struct loading *l, struct jv *v, const char *name, expr_kind kind) {
  struct jv *list = keyword(l, v, name, JV_ARRAY);
  if (!list) return EXPR_TRUE;
  if (list->len == 0) return load_fail(l, ANE_INVALID, v, name, "must not be empty");
  expr_id *parts = ane_malloc(list->len * sizeof *parts);
  if (!parts) return load_fail(l, ANE_NOMEM, v, name, "no memory");
  for (size_t i = 0; i < list->len; i++) parts[i] = load_node(l, list->items[i]);
  expr_id e = expr_of(l->s, kind, parts, (uint32_t)list->len);
  ane_free(parts);
  return e;
}

static expr_id read_condition(struct loading *l, struct jv *v) {
  struct jv *i = jv_get(v, "if"), *t = jv_get(v, "then"), *e = jv_get(v, "else");
  if (!i || (!t && !e)) return EXPR_TRUE;
  expr_id holds = load_node(l, i), then = t ? load_node(l, t) : EXPR_TRUE, other = e ? load_node(l, e) : EXPR_TRUE;
  return expr_two(l->s, EXPR_AND, expr_two(l->s, EXPR_OR, expr_not(l->s, holds), then), expr_two(l->s, EXPR_OR, holds, other));
}

expr_id load_has(struct loading *l, const char *name, size_t len) {
  uint32_t id;
  struct atom *a = load_atom(l, &id);
  if (!a) return EXPR_FALSE;
  a->types = T_OBJECT;
  struct re_text *required = load_alloc(l, 1, sizeof *required);
  if (!required) return EXPR_FALSE;
  *required = (struct re_text){name, len};
  a->required = required;
  a->n_required = 1;
  return expr_atom(l->s, id);
}

/* Returns the expression "an object with all names of a list". */
static expr_id has_all(struct loading *l, struct jv *v, struct jv *list, const char *name) {
  uint32_t id, n = 0;
  struct re_text *required = NULL;
  read_names(l, v, list, name, &required, &n);
  struct atom *a = l->status ? NULL : load_atom(l, &id);
  if (!a) return EXPR_FALSE;
  a->required = required;
  a->n_required = n;
  return expr_atom(l->s, id);
}

/* Reads dependentRequired, dependentSchemas or dependencies. */
static expr_id read_dependent(struct loading *l, struct jv *v, const char *name) {
  struct jv *d = keyword(l, v, name, JV_OBJECT);
  if (!d || l->status) return EXPR_TRUE;
  expr_id *parts = ane_malloc((d->len + 1) * sizeof *parts);
  if (!parts) return load_fail(l, ANE_NOMEM, v, name, "no memory");
  for (size_t i = 0; i < d->len; i++) {
    struct jv_member *m = &d->members[i];
    expr_id then = m->value->kind == JV_ARRAY ? has_all(l, v, m->value, name) : load_node(l, m->value);
    parts[i] = l->status ? EXPR_FALSE : expr_two(l->s, EXPR_OR, expr_not(l->s, load_has(l, m->name, m->len)), then);
  }
  expr_id all = expr_of(l->s, EXPR_AND, parts, (uint32_t)d->len);
  ane_free(parts);
  return all;
}

struct jv *load_target(struct loading *l, struct jv *v, const char *name) {
  struct jv *ref = keyword(l, v, name, JV_STRING);
  if (!ref) return NULL;
  bool several = false, plain = strcmp(name, "$ref") == 0;
  struct jv *target = plain
                          ? schema_resolve(l->ids, v, ref->text, ref->len)
                          : schema_resolve_dynamic(l->ids, v, ref->text, ref->len, strcmp(name, "$recursiveRef") == 0, &several);
  if (several) {
    load_fail(l, ANE_UNSUPPORTED, v, name,
              "several schemas have the dynamic anchor '%.100s', and none of them is in the root resource", ref->text);
    return NULL;
  }
  if (!target) load_fail(l, ANE_UNSUPPORTED, v, name, "'%.100s' is not in the document", ref->text);
  return target;
}

static expr_id read_reference(struct loading *l, struct jv *v, const char *name) {
  if (!jv_get(v, name)) return EXPR_TRUE;
  struct jv *target = load_target(l, v, name);
  return target ? load_node(l, target) : EXPR_FALSE;
}

static expr_id read_values(struct loading *l, struct jv *v) {
  struct jv *list = keyword(l, v, "enum", JV_ARRAY), *one = jv_get(v, "const");
  expr_id e = list ? load_values(l, list->items, list->len) : EXPR_TRUE;
  return one ? expr_two(l->s, EXPR_AND, e, load_values(l, &one, 1)) : e;
}

static expr_id object_schema(struct loading *l, struct jv *v) {
  struct schema *s = l->s;
  expr_id e = read_reference(l, v, "$ref");
  if (jv_get(v, "$ref") && schema_old_refs(l->ids)) return e;
  e = expr_two(s, EXPR_AND, e, read_reference(l, v, "$dynamicRef"));
  e = expr_two(s, EXPR_AND, e, read_reference(l, v, "$recursiveRef"));
  e = expr_two(s, EXPR_AND, e, own_atom(l, v));
  e = expr_two(s, EXPR_AND, e, read_values(l, v));
  e = expr_two(s, EXPR_AND, e, read_list(l, v, "allOf", EXPR_AND));
  e = expr_two(s, EXPR_AND, e, read_list(l, v, "anyOf", EXPR_OR));
  e = expr_two(s, EXPR_AND, e, read_list(l, v, "oneOf", EXPR_ONE));
  if (jv_get(v, "not")) e = expr_two(s, EXPR_AND, e, expr_not(s, load_node(l, jv_get(v, "not"))));
  e = expr_two(s, EXPR_AND, e, read_condition(l, v));
  e = expr_two(s, EXPR_AND, e, read_dependent(l, v, "dependentRequired"));
  e = expr_two(s, EXPR_AND, e, read_dependent(l, v, "dependentSchemas"));
  e = expr_two(s, EXPR_AND, e, read_dependent(l, v, "dependencies"));
  return l->status ? EXPR_FALSE : expr_two(s, EXPR_AND, e, load_unevaluated(l, v));
}

expr_id load_node(struct loading *l, struct jv *v) {
  if (l->status) return EXPR_FALSE;
  if (v->kind == JV_TRUE || v->kind == JV_FALSE) return v->kind == JV_TRUE ? EXPR_TRUE : EXPR_FALSE;
  if (v->kind != JV_OBJECT) return load_fail(l, ANE_INVALID, v, NULL, "a schema must be an object, true or false");
  if (v->node == 0) {
    if (l->n_nodes >= MAX_NODES) return load_fail(l, ANE_RANGE, v, NULL, "more than %d schemas", MAX_NODES);
    if (!re_grow((void **)&l->nodes, &l->room_nodes, l->n_nodes, sizeof *l->nodes))
      return load_fail(l, ANE_NOMEM, v, NULL, "no memory");
    l->nodes[l->n_nodes] = (struct node){.v = v};
    v->node = ++l->n_nodes;
  }
  uint32_t at = v->node - 1;
  if (l->nodes[at].done) return l->nodes[at].e;
  if (l->nodes[at].open) return load_fail(l, ANE_INVALID, v, "$ref", "refers to itself without a value in between");
  if (++l->depth > MAX_NESTED) return load_fail(l, ANE_RANGE, v, NULL, "schemas are nested more than %d deep", MAX_NESTED);
  l->nodes[at].open = true;
  expr_id e = object_schema(l, v);
  l->depth--;
  l->nodes[at].open = false;
  l->nodes[at].done = true;
  l->nodes[at].e = e;
  return e;
}

/* ---- Compilation -------------------------------------------------------------------------------------------------*/

ane_status schema_compile(struct schema *s, const char *text, size_t len, const struct schema_options *options,
                          struct ane_error *err) {
  struct jv *root;
  memset(s, 0, sizeof *s);
  if (!re_pool_init(&s->pool)) return ane_fail(err, ANE_NOMEM, "no memory for the schema");
  s->pool.step_limit = UINT64_MAX; /* patterns set their own */
  ane_status st = jv_read(&root, &s->arena, text, len, err);
  struct loading l = {.s = s, .options = options, .err = err};
  if (st == ANE_OK) st = schema_ids_make(&l.ids, &s->arena, root, err);
  if (st == ANE_OK) {
    s->root = load_node(&l, root);
    for (uint32_t i = 0; i < s->n_atoms && !l.status; i++) close_atom(&l, i);
    st = l.status;
  }
  if (st == ANE_OK && s->pool.full)
    st = s->pool.no_memory ? ane_fail(err, ANE_NOMEM, "no memory for the schema")
         : s->too_large
             ? ane_fail(err, ANE_RANGE, "#: schemas that apply to one value combine to more than %d conditions", EXPR_MAX_SIZE)
             : ane_fail(err, ANE_RANGE, "the schema's patterns are too large");
  if (st == ANE_OK) st = schema_possible(s, err);
  if (st == ANE_OK && !expr_types(s, s->root)) st = ane_fail(err, ANE_INVALID, "#: no value fulfils the schema");
  if (st == ANE_OK) {
    load_sizes(&l);
    st = l.status;
    if (st == ANE_OK && s->pool.full) st = ane_fail(err, ANE_NOMEM, "no memory for the schema");
  }
  ane_free(l.nodes);
  schema_ids_free(l.ids);
  if (st) schema_free(s);
  return st;
}

void schema_free(struct schema *s) {
  ane_arena_free(&s->arena);
  re_pool_free(&s->pool);
  ane_free(s->atoms);
  ane_free(s->exprs);
  ane_free(s->table);
  memset(s, 0, sizeof *s);
}
