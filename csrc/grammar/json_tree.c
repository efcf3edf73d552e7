/* Parses JSON texts to trees. */
#include "base/json_reader.h"
#include "grammar/schema.h"

#include <string.h>

enum { MAX_DEPTH = 256 };

struct reading {
  struct ane_json j;
  struct ane_arena *arena;
  bool deep;
};

static struct jv *value(struct reading *r, int depth);

static bool copy(struct reading *r, const char *s, size_t len, const char **out) {
  *out = ane_arena_strndup(r->arena, s, len);
  if (!*out) r->j.no_memory = true;
  return *out != NULL;
}

/* Doubles the room of an array in the arena. */
static bool room_for(struct reading *r, void **list, size_t n, size_t *room, size_t size) {
  if (n < *room) return true;
  size_t more = *room ? *room * 2 : 4;
  void *p = ane_arena_array(r->arena, more, size);
  if (!p) {
    r->j.no_memory = true;
    return false;
  }
  if (n > 0) memcpy(p, *list, n * size);
  *list = p;
  *room = more;
  return true;
}

static bool elements(struct reading *r, struct jv *v, int depth) {
  bool more;
  size_t room = 0;
  if (!ane_json_enter(&r->j, '[')) return false;
  for (;;) {
    if (!ane_json_next(&r->j, '[', v->len == 0, &more)) return false;
    if (!more) return true;
    if (!room_for(r, (void **)&v->items, v->len, &room, sizeof *v->items)) return false;
    if (!(v->items[v->len] = value(r, depth + 1))) return false;
    v->len++;
  }
}

static bool members(struct reading *r, struct jv *v, int depth) {
  bool more, first = true;
  size_t room = 0;
  struct ane_strmap seen = {0};
  bool ok = false;
  if (!ane_json_enter(&r->j, '{')) return false;
  for (;;) {
    const char *s;
    struct jv_member m;
    uint32_t old;
    if (!ane_json_next(&r->j, '{', first, &more)) break;
    if (!more) {
      ok = true;
      break;
    }
    first = false;
    if (!ane_json_name(&r->j, &s, &m.len) || !copy(r, s, m.len, &m.name)) break;
    if (!(m.value = value(r, depth + 1))) break;
    if (!ane_strmap_put(&seen, m.name, m.len, (uint32_t)v->len, &old)) {
      r->j.no_memory = true;
      break;
    }
    if (old != UINT32_MAX) {
      v->members[old] = m;
      continue;
    }
    if (!room_for(r, (void **)&v->members, v->len, &room, sizeof m)) break;
    v->members[v->len++] = m;
  }
  ane_strmap_free(&seen);
  return ok;
}

static struct jv *value(struct reading *r, int depth) {
  struct jv *v = ane_arena_alloc(r->arena, sizeof *v);
  if (!v) {
    r->j.no_memory = true;
    return NULL;
  }
  if (depth > MAX_DEPTH) {
    r->deep = true;
    return NULL;
  }
  const char *s;
  bool integer;
  int64_t i;
  double d;
  char c = ane_json_peek(&r->j);
  switch (c) {
    case '{': v->kind = JV_OBJECT; return members(r, v, depth) ? v : NULL;
    case '[': v->kind = JV_ARRAY; return elements(r, v, depth) ? v : NULL;
    case '"': v->kind = JV_STRING; return ane_json_string(&r->j, &s, &v->len) && copy(r, s, v->len, &v->text) ? v : NULL;
    case 'n': v->kind = JV_NULL; return ane_json_word(&r->j, "null") ? v : NULL;
    case 't': v->kind = JV_TRUE; return ane_json_word(&r->j, "true") ? v : NULL;
    case 'f': v->kind = JV_FALSE; return ane_json_word(&r->j, "false") ? v : NULL;
    case 0: return NULL;
    default:
      v->kind = JV_NUMBER;
      s = r->j.p;
      if (!ane_json_number(&r->j, &integer, &i, &d)) return NULL;
      while (s < r->j.p && (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r')) s++;
      v->len = (size_t)(r->j.p - s);
      return copy(r, s, v->len, &v->text) ? v : NULL;
  }
}

ane_status jv_read(struct jv **out, struct ane_arena *arena, const char *text, size_t len, struct ane_error *err) {
  struct ane_buffer scratch = {0};
  struct reading r = {.arena = arena};
  char *copied = ane_arena_strndup(arena, text, len); /* the reader needs a NUL after the text */
  if (!copied) return ane_fail(err, ANE_NOMEM, "no memory for the schema");
  ane_json_start(&r.j, copied, len, &scratch);
  *out = value(&r, 0);
  bool ok = *out && ane_json_finish(&r.j);
  ane_buffer_free(&scratch);
  if (ok) return ANE_OK;
  if (r.j.no_memory) return ane_fail(err, ANE_NOMEM, "no memory for the schema");
  if (r.deep) return ane_fail(err, ANE_RANGE, "the JSON is nested more than %d deep", MAX_DEPTH);
  int line, column;
  ane_json_place(&r.j, &line, &column);
  return ane_fail(err, ANE_FORMAT, "line %d, column %d: %s", line, column, r.j.why ? r.j.why : "not JSON");
}

struct jv *jv_get(const struct jv *object, const char *name) {
  size_t len = strlen(name);
  if (object->kind != JV_OBJECT) return NULL;
  for (size_t i = 0; i < object->len; i++)
    if (object->members[i].len == len && memcmp(object->members[i].name, name, len) == 0) return object->members[i].value;
  return NULL;
}

bool jv_is(const struct jv *string, const char *s) {
  return string && string->kind == JV_STRING && string->len == strlen(s) && memcmp(string->text, s, string->len) == 0;
}
