/* JSON documents of model files: safetensors headers and indices, package manifests, genai_config.json.
 *
 * Two readers of JSON exist, each for a reason:
 *   - base/json_reader.h streams, builds no tree, tells integers from floats and keeps integers beyond 64 bits as floats.
 *     core.json_decode, the vocabularies and the grammars use it. Here it fills a tree of jansson, for small documents of C code.
 *     The parser of jansson (2.14) is not used: it ignores failed allocations inside tokens, and then reads beyond them.
 *   - lua/ane/jinja/json.lua, for template variables: it keeps the order of names and the digits of every integer, and
 *     ane.jinja is plain Lua.
 *
 * The allocations of jansson are its own. Its hooks for them are global to the process, which may use jansson too, and would
 * outlive an unloaded module. Equal names in an object, and strings with NUL, are refused. */
#include "base/alloc.h"
#include "base/json_reader.h"
#include "formats/formats_internal.h"

#include <float.h>
#include <string.h>

/* Returns a new value. NULL: `j` says what is wrong. */
static json_t *read_value(struct ane_json *j);

static json_t *made(struct ane_json *j, json_t *v) {
  if (!v) j->no_memory = true, ane_json_fail(j, j->p, "not enough memory");
  return v;
}

static json_t *refuse(struct ane_json *j, const char *at, const char *why) {
  ane_json_fail(j, at, why);
  return NULL;
}

static json_t *read_string(struct ane_json *j) {
  const char *s, *at = j->p;
  size_t len;
  if (!ane_json_string(j, &s, &len)) return NULL;
  if (memchr(s, '\0', len)) return refuse(j, at, "a string with NUL");
  return made(j, json_stringn_nocheck(s, len));
}

static json_t *read_number(struct ane_json *j) {
  const char *at = j->p;
  bool integer;
  int64_t i;
  double d;
  if (!ane_json_number(j, &integer, &i, &d)) return NULL;
  if (!integer && (d > DBL_MAX || d < -DBL_MAX)) return refuse(j, at, "the number is too large");
  return made(j, integer ? json_integer(i) : json_real(d));
}

static json_t *read_word(struct ane_json *j, const char *word, json_t *v) { return ane_json_word(j, word) ? v : NULL; }

/* Reads a member of an object. */
static bool read_member(struct ane_json *j, json_t *object) {
  const char *name, *at = j->p;
  size_t len;
  if (!ane_json_name(j, &name, &len)) return false;
  if (memchr(name, '\0', len)) return refuse(j, at, "a name with NUL"), false;
  char *copy = ane_strndup(name, len);
  if (!copy) return made(j, NULL), false;
  json_t *v = json_object_get(object, copy) ? refuse(j, at, "the name appears twice in its object") : read_value(j);
  bool ok = v && (json_object_set_new_nocheck(object, copy, v) == 0 || made(j, NULL));
  ane_free(copy);
  return ok;
}

static json_t *read_list(struct ane_json *j, char bracket) {
  json_t *list = made(j, bracket == '{' ? json_object() : json_array());
  bool more, ok = list && ane_json_enter(j, bracket);
  for (bool first = true; ok && (ok = ane_json_next(j, bracket, first, &more)) && more; first = false) {
    if (bracket == '{') {
      ok = read_member(j, list);
    } else {
      json_t *v = read_value(j);
      ok = v && (json_array_append_new(list, v) == 0 || made(j, NULL));
    }
  }
  if (ok) return list;
  json_decref(list);
  return NULL;
}

/* Recursion ends at ANE_JSON_DEPTH: the reader refuses to enter a deeper list. */
static json_t *read_value(struct ane_json *j) { /* NOLINT(misc-no-recursion) */
  char c = ane_json_peek(j);
  switch (c) {
    case '\0': return NULL;
    case '{':
    case '[': return read_list(j, c);
    case '"': return read_string(j);
    case 'n': return read_word(j, "null", json_null());
    case 't': return read_word(j, "true", json_true());
    case 'f': return read_word(j, "false", json_false());
    default: return read_number(j);
  }
}

ane_status ane_json_parse(json_t **out, const void *text, uint64_t size, uint64_t at, struct ane_error *err) {
  struct ane_buffer scratch = {0};
  struct ane_json j = {.no_memory = true};
  char *copy = ane_strndup(text, (size_t)size); /* the reader needs a NUL after the text */
  *out = NULL;
  if (copy) {
    ane_json_start(&j, copy, (size_t)size, &scratch);
    *out = read_value(&j);
  }
  if (*out && !ane_json_finish(&j)) {
    json_decref(*out);
    *out = NULL;
  }
  size_t place = copy ? (size_t)(j.p - copy) : 0;
  ane_buffer_free(&scratch);
  ane_free(copy);
  if (*out) return ANE_OK;
  if (j.no_memory) return ane_fail(err, ANE_NOMEM, "not enough memory to read %" PRIu64 " bytes of JSON", size);
  char quoted[ANE_QUOTE_TEXT];
  size_t from = place > 24 ? place - 24 : 0;
  ane_quote(quoted, (const char *)text + from, place - from);
  return ane_fail(err, ANE_FORMAT, "the JSON is broken at byte %" PRIu64 ", after \"%s\": %s", at + place, quoted, j.why);
}

const char *ane_json_kind(const json_t *v) {
  if (!v) return "missing";
  switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "a whole number";
    case JSON_REAL: return "a number with a fraction or exponent, or beyond 64 bits";
    case JSON_NULL: return "null";
    default: return "true or false";
  }
}

bool ane_json_count(const json_t *v, uint64_t *n) {
  if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
  *n = (uint64_t)json_integer_value(v);
  return true;
}
