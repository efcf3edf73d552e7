/* Resolves $ref: anchors, pointers and identifiers inside one document. */
#include "base/strmap.h"
#include "grammar/schema.h"

#include <stdlib.h>
#include <string.h>

struct named {
  const char *uri; /* absolute where the document has a base; without an empty fragment */
  size_t len;
  struct jv *value;
  bool dynamic; /* a $dynamicAnchor */
};

struct schema_ids {
  struct ane_arena *arena;
  struct jv *root;
  struct named *list;
  uint32_t n, room;
  struct ane_strmap by_uri; /* number in the list */
  uint32_t recursive;       /* schemas with $recursiveAnchor: true */
  bool old_refs;            /* drafts up to 7 */
  bool plain_id;            /* drafts up to 4: id instead of $id */
  bool no_memory;
};

/* ---- URIs (RFC 3986) ---------------------------------------------------------------------------------------------*/

static size_t scheme_length(const char *s, size_t len) {
  for (size_t i = 0; i < len; i++) {
    char c = s[i];
    if (c == ':') return i > 0 ? i + 1 : 0;
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && (i == 0 || !(c == '+' || c == '-' || c == '.' || (c >= '0' && c <= '9')))) return 0;
  }
  return 0;
}

/* Returns the offset of the path in a URI. */
static size_t path_start(const char *s, size_t len) {
  size_t at = scheme_length(s, len);
  if (len - at >= 2 && s[at] == '/' && s[at + 1] == '/') {
    at += 2;
    while (at < len && s[at] != '/' && s[at] != '?') at++;
  }
  return at;
}

/* Removes "." and ".." from the path after `from` (RFC 3986, 5.2.4). */
static size_t tidy_path(char *s, size_t from, size_t len) {
  size_t out = from;
  for (size_t at = from; at < len;) {
    size_t end = at + (s[at] == '/');
    while (end < len && s[end] != '/') end++;
    const char *part = s + at + (s[at] == '/');
    size_t n = (size_t)(s + end - part);
    if (n == 2 && part[0] == '.' && part[1] == '.') {
      while (out > from)
        if (s[--out] == '/') break;
      if (end == len && out < len) s[out++] = '/';
    } else if (n == 1 && part[0] == '.') {
      if (end == len) s[out++] = '/';
    } else {
      memmove(s + out, s + at, end - at);
      out += end - at;
    }
    at = end;
  }
  return out;
}

/* Resolves a reference against a base to a URI without fragment, in the arena (RFC 3986, 5.2.2). */
static bool join(struct schema_ids *ids, const char *base, size_t base_len, const char *ref, size_t len, const char **out,
                 size_t *out_len) {
  if (len == 0) return *out = base, *out_len = base_len, true;
  size_t keep = 0;
  if (scheme_length(ref, len) == 0) {
    if (len >= 2 && ref[0] == '/' && ref[1] == '/')
      keep = scheme_length(base, base_len);
    else if (ref[0] == '/')
      keep = path_start(base, base_len);
    else {
      keep = base_len;
      size_t start = path_start(base, base_len);
      while (keep > start && base[keep - 1] != '/') keep--;
    }
  }
  char *s = ane_arena_alloc(ids->arena, keep + len + 1);
  if (!s) return ids->no_memory = true, false;
  if (keep > 0) memcpy(s, base, keep);
  memcpy(s + keep, ref, len);
  *out = s;
  *out_len = tidy_path(s, path_start(s, keep + len), keep + len);
  if (memcmp(s, "urn:", ANE_MIN(keep + len, (size_t)4)) == 0) *out_len = keep + len;
  return true;
}

/* ---- Names -------------------------------------------------------------------------------------------------------*/

static void note(struct schema_ids *ids, const char *uri, size_t len, struct jv *value) {
  if (ids->n == ids->room) {
    uint32_t room = ids->room ? ids->room * 2 : 16;
    struct named *list = ane_arena_array(ids->arena, room, sizeof *list);
    if (!list) {
      ids->no_memory = true;
      return;
    }
    if (ids->n > 0) memcpy(list, ids->list, ids->n * sizeof *list);
    ids->list = list;
    ids->room = room;
  }
  if (!ane_strmap_put(&ids->by_uri, uri, len, ids->n, NULL)) {
    ids->no_memory = true;
    return;
  }
  ids->list[ids->n++] = (struct named){uri, len, value, false};
  if (!value->resource && !memchr(uri, '#', len)) value->resource = ids->n;
}

static void note_anchor(struct schema_ids *ids, const char *base, size_t base_len, const struct jv *anchor, struct jv *value) {
  if (!anchor || anchor->kind != JV_STRING) return;
  char *s = ane_arena_alloc(ids->arena, base_len + anchor->len + 2);
  if (!s) {
    ids->no_memory = true;
    return;
  }
  if (base_len > 0) memcpy(s, base, base_len);
  s[base_len] = '#';
  memcpy(s + base_len + 1, anchor->text, anchor->len);
  note(ids, s, base_len + 1 + anchor->len, value);
}

/* Returns the value of $id (or id) of an object; NULL if it has none. */
static struct jv *id_of(const struct schema_ids *ids, const struct jv *v) {
  struct jv *id = jv_get(v, "$id");
  if (!id && ids->plain_id) id = jv_get(v, "id");
  return id && id->kind == JV_STRING ? id : NULL;
}

typedef enum { HOLDS_SCHEMA, HOLDS_SCHEMAS, HOLDS_DATA } holding; /* a schema or a list of schemas; schemas by name; no schema */

/* Returns what a keyword's value holds. Only schemas have identifiers. */
static holding what_holds(const char *keyword) {
  static const char *const one[] = {"allOf",
                                    "anyOf",
                                    "oneOf",
                                    "not",
                                    "if",
                                    "then",
                                    "else",
                                    "items",
                                    "prefixItems",
                                    "additionalItems",
                                    "contains",
                                    "additionalProperties",
                                    "propertyNames",
                                    "unevaluatedItems",
                                    "unevaluatedProperties",
                                    "contentSchema"};
  static const char *const named[] = {"properties",  "patternProperties", "$defs",
                                      "definitions", "dependentSchemas",  "dependencies"};
  for (size_t i = 0; i < ANE_COUNT(one); i++)
    if (strcmp(keyword, one[i]) == 0) return HOLDS_SCHEMA;
  for (size_t i = 0; i < ANE_COUNT(named); i++)
    if (strcmp(keyword, named[i]) == 0) return HOLDS_SCHEMAS;
  return HOLDS_DATA;
}

static bool is_recursive(const struct jv *v) {
  const struct jv *anchor = jv_get(v, "$recursiveAnchor");
  return anchor && anchor->kind == JV_TRUE;
}

static void note_names(struct schema_ids *ids, struct jv *v, const char **base, size_t *base_len) {
  struct jv *id = id_of(ids, v);
  const char *mark = id ? memchr(id->text, '#', id->len) : NULL;
  size_t id_len = id ? (mark ? (size_t)(mark - id->text) : id->len) : 0;
  if (id && id_len > 0 && !(ids->old_refs && jv_get(v, "$ref")) && join(ids, *base, *base_len, id->text, id_len, base, base_len))
    note(ids, *base, *base_len, v);
  if (mark && mark + 1 < id->text + id->len) { /* drafts up to 7: an identifier that is only a fragment is an anchor */
    struct jv fragment = {.kind = JV_STRING, .text = mark + 1, .len = (size_t)(id->text + id->len - mark - 1)};
    note_anchor(ids, *base, *base_len, &fragment, v);
  }
  note_anchor(ids, *base, *base_len, jv_get(v, "$anchor"), v);
  uint32_t before = ids->n;
  note_anchor(ids, *base, *base_len, jv_get(v, "$dynamicAnchor"), v);
  if (ids->n > before) ids->list[before].dynamic = true;
  ids->recursive += is_recursive(v);
}

/* Records all identifiers and anchors at and below v, and sets parents. */
static void walk(struct schema_ids *ids, struct jv *v, const char *base, size_t base_len, holding is) {
  if (v->kind == JV_ARRAY) {
    for (size_t i = 0; i < v->len; i++) {
      v->items[i]->parent = v;
      v->items[i]->index = (uint32_t)i;
      walk(ids, v->items[i], base, base_len, is);
    }
    return;
  }
  if (v->kind != JV_OBJECT) return;
  if (is == HOLDS_SCHEMA) note_names(ids, v, &base, &base_len);
  for (size_t i = 0; i < v->len; i++) {
    struct jv_member *m = &v->members[i];
    m->value->parent = v;
    m->value->key = m->name;
    m->value->index = (uint32_t)i;
    walk(ids, m->value, base, base_len,
         is == HOLDS_SCHEMA    ? what_holds(m->name)
         : is == HOLDS_SCHEMAS ? HOLDS_SCHEMA
                               : HOLDS_DATA);
  }
}

ane_status schema_ids_make(struct schema_ids **out, struct ane_arena *arena, struct jv *root, struct ane_error *err) {
  struct schema_ids *ids = *out = ane_arena_alloc(arena, sizeof *ids);
  if (!ids) return ane_fail(err, ANE_NOMEM, "no memory for the schema");
  ids->arena = arena;
  ids->root = root;
  const struct jv *draft = jv_get(root, "$schema");
  for (const char *d = "34567"; draft && draft->kind == JV_STRING && *d; d++) {
    char name[] = "draft-0?";
    name[7] = *d;
    if (!strstr(draft->text, name)) continue;
    ids->old_refs = true;
    ids->plain_id = *d <= '4';
  }
  walk(ids, root, "", 0, HOLDS_SCHEMA);
  return ids->no_memory ? ane_fail(err, ANE_NOMEM, "no memory for the schema") : ANE_OK;
}

void schema_ids_free(struct schema_ids *ids) {
  if (ids) ane_strmap_free(&ids->by_uri);
}

bool schema_old_refs(const struct schema_ids *ids) { return ids->old_refs; }
bool schema_plain_integers(const struct schema_ids *ids) { return ids->plain_id; }

/* ---- Resolution --------------------------------------------------------------------------------------------------*/

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Decodes percent signs in place. Returns the new length. */
static size_t decode(char *s, size_t len) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++) {
    if (s[i] == '%' && i + 2 < len && hex_digit(s[i + 1]) >= 0 && hex_digit(s[i + 2]) >= 0) {
      s[n++] = (char)(hex_digit(s[i + 1]) * 16 + hex_digit(s[i + 2]));
      i += 2;
    } else
      s[n++] = s[i];
  }
  return n;
}

static int by_length_and_name(const void *x, const void *y) {
  const struct jv_member *a = *(struct jv_member *const *)x, *b = *(struct jv_member *const *)y;
  return a->len != b->len ? (a->len > b->len) - (a->len < b->len) : memcmp(a->name, b->name, a->len);
}

/* Returns the member of an object; NULL: there is none. Objects of many members are sorted, since many references may search
 * them. Without memory they are searched in order. */
static struct jv *member(struct schema_ids *ids, struct jv *v, const char *name, size_t len) {
  enum { FEW = 16 };
  if (v->len > FEW && !v->by_name && (v->by_name = ane_arena_array(ids->arena, v->len, sizeof *v->by_name))) {
    for (size_t i = 0; i < v->len; i++) v->by_name[i] = &v->members[i];
    qsort(v->by_name, v->len, sizeof *v->by_name, by_length_and_name);
  }
  if (v->by_name) {
    struct jv_member key = {.name = name, .len = len}, *wanted = &key;
    struct jv_member **found = bsearch(&wanted, v->by_name, v->len, sizeof *v->by_name, by_length_and_name);
    return found ? (*found)->value : NULL;
  }
  for (size_t i = 0; i < v->len; i++)
    if (v->members[i].len == len && memcmp(v->members[i].name, name, len) == 0) return v->members[i].value;
  return NULL;
}

/* Takes one step of a JSON pointer. Decodes ~0 and ~1 of s[0..len) in place. */
static struct jv *child(struct schema_ids *ids, struct jv *v, char *s, size_t len) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++) {
    if (s[i] == '~' && i + 1 < len && (s[i + 1] == '0' || s[i + 1] == '1'))
      s[n++] = s[++i] == '0' ? '~' : '/';
    else
      s[n++] = s[i];
  }
  if (v->kind == JV_ARRAY) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
      if (s[i] < '0' || s[i] > '9' || at > v->len) return NULL;
      at = at * 10 + (size_t)(s[i] - '0');
    }
    return n > 0 && at < v->len ? v->items[at] : NULL;
  }
  return v->kind == JV_OBJECT ? member(ids, v, s, n) : NULL;
}

static struct jv *find(const struct schema_ids *ids, const char *uri, size_t len) {
  uint32_t i = ane_strmap_get(&ids->by_uri, uri, len);
  return i == UINT32_MAX ? NULL : ids->list[i].value;
}

/* Gives the base URI of a value: the identifier of the resource around it. */
static void base_of(const struct schema_ids *ids, const struct jv *v, const char **uri, size_t *len, struct jv **resource) {
  while (v && !v->resource) v = v->parent;
  if (v) {
    const struct named *n = &ids->list[v->resource - 1];
    *uri = n->uri;
    *len = n->len;
    *resource = n->value;
    return;
  }
  *uri = "";
  *len = 0;
  *resource = ids->root;
}

struct jv *schema_resolve(struct schema_ids *ids, const struct jv *from, const char *ref, size_t len) {
  const char *mark = memchr(ref, '#', len), *base, *uri;
  size_t uri_len = mark ? (size_t)(mark - ref) : len, base_len;
  struct jv *at;
  base_of(ids, from, &base, &base_len, &at);
  if (uri_len > 0) {
    if (!join(ids, base, base_len, ref, uri_len, &uri, &uri_len) || !(at = find(ids, uri, uri_len))) return NULL;
    base = uri;
    base_len = uri_len;
  }
  size_t n = mark ? (size_t)(ref + len - mark - 1) : 0;
  if (n == 0) return at;
  char *s = ane_arena_alloc(ids->arena, base_len + n + 2);
  if (!s) return NULL;
  char *fragment = s + base_len + 1;
  if (base_len > 0) memcpy(s, base, base_len);
  s[base_len] = '#';
  memcpy(fragment, mark + 1, n);
  n = decode(fragment, n);
  if (fragment[0] != '/') return find(ids, s, base_len + 1 + n);
  for (size_t i = 1; at && i <= n;) {
    size_t end = i;
    while (end < n && fragment[end] != '/') end++;
    at = child(ids, at, fragment + i, end - i);
    i = end + 1;
  }
  return at;
}

/* Returns the entry of the dynamic anchor of this name that a value has; NULL if it has none. */
static const struct named *dynamic_entry(const struct schema_ids *ids, const struct jv *value, const char *anchor, size_t len) {
  for (uint32_t i = 0; i < ids->n; i++) {
    const struct named *n = &ids->list[i];
    if (n->value == value && n->dynamic && n->len > len && n->uri[n->len - len - 1] == '#' &&
        memcmp(n->uri + n->len - len, anchor, len) == 0)
      return n;
  }
  return NULL;
}

/* Returns the dynamic anchor of a name in the root resource, or else the only one in the document. NULL: there are several, or
 * none. */
static struct jv *outermost(const struct schema_ids *ids, const char *anchor, size_t len) {
  const char *base;
  size_t base_len;
  struct jv *resource, *only = NULL;
  uint32_t n = 0;
  base_of(ids, ids->root, &base, &base_len, &resource);
  for (uint32_t i = 0; i < ids->n; i++) {
    const struct named *a = &ids->list[i];
    if (!a->dynamic || a->len <= len || a->uri[a->len - len - 1] != '#' || memcmp(a->uri + a->len - len, anchor, len) != 0)
      continue;
    if (a->len == base_len + 1 + len && memcmp(a->uri, base, base_len) == 0) return a->value;
    only = a->value;
    n++;
  }
  return n == 1 ? only : NULL;
}

struct jv *schema_resolve_dynamic(struct schema_ids *ids, const struct jv *from, const char *ref, size_t len, bool recursive,
                                  bool *several) {
  struct jv *target = schema_resolve(ids, from, ref, len), *found;
  *several = false;
  if (!target) return NULL;
  if (recursive) {
    if (!is_recursive(target)) return target;
    found = is_recursive(ids->root) ? ids->root : ids->recursive == 1 ? target : NULL;
  } else {
    const char *mark = memchr(ref, '#', len);
    size_t n = mark ? (size_t)(ref + len - mark - 1) : 0;
    char *anchor = ane_arena_alloc(ids->arena, n + 1);
    if (!anchor) return NULL;
    if (n > 0) memcpy(anchor, mark + 1, n);
    n = decode(anchor, n);
    if (n == 0 || !dynamic_entry(ids, target, anchor, n)) return target;
    found = outermost(ids, anchor, n);
  }
  *several = !found;
  return found;
}
