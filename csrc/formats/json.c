/* JSON documents of model files, read by jansson: safetensors headers and indices, package manifests, genai_config.json.
 *
 * Three readers of JSON exist, each for a reason:
 *   - This one, for small documents of C code: jansson builds a tree, refuses equal names, and needs no code here.
 *   - base/json_reader.h, for large documents and for exact numbers: it streams, builds no tree, takes a tenth of jansson's time
 *     for a tokenizer.json, tells integers from floats and keeps integers beyond 64 bits as floats. core.json_decode, the
 *     vocabularies and the grammars use it. jansson has either integers that overflow as an error or floats only.
 *   - lua/ane/jinja/json.lua, for template variables: it keeps the order of names and the digits of every integer, and
 *     ane.jinja is plain Lua.
 *
 * The allocations of jansson are its own. Its hooks for them are global to the process, which may use jansson too, and would
 * outlive an unloaded module. jansson refuses texts nested deeper than 2048, strings with NUL, and invalid UTF-8. */
#include "base/alloc.h"
#include "base/json_reader.h"
#include "formats/formats_internal.h"

#include <string.h>

/* jansson's message up to the text that it quotes. That text is the file's and may hold anything. */
static size_t reason_length(const char *text) {
  const char *near = strstr(text, " near '");
  return near ? (size_t)(near - text) : strlen(text);
}

/* Did an allocation fail? Inside a token, jansson reports that as a fault of the text; elsewhere with no code and no text. So a
 * text that the other reader accepts has no fault. */
static bool no_memory(const json_error_t *e, const char *text, size_t size) {
  enum json_error_code code = json_error_code(e);
  struct ane_buffer scratch = {0};
  struct ane_json j;
  if (code == json_error_out_of_memory || !e->text[0]) return true;
  if (code != json_error_invalid_syntax && code != json_error_premature_end_of_input && code != json_error_unknown) return false;
  char *copy = ane_strndup(text, size); /* the reader wants a NUL behind the text */
  if (!copy) return true;
  ane_json_start(&j, copy, size, &scratch);
  bool valid = ane_json_skip(&j) && ane_json_finish(&j);
  bool none = valid || j.no_memory;
  ane_buffer_free(&scratch);
  ane_free(copy);
  return none;
}

ane_status ane_json_parse(json_t **out, const void *text, uint64_t size, uint64_t at, struct ane_error *err) {
  json_error_t e;
  *out = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &e);
  if (*out) return ANE_OK;
  if (no_memory(&e, text, (size_t)size))
    return ane_fail(err, ANE_NOMEM, "not enough memory to read %" PRIu64 " bytes of JSON", size);
  uint64_t place = e.position > 0 ? (uint64_t)e.position : 0;
  char quoted[ANE_QUOTE_TEXT], reason[ANE_QUOTE_TEXT];
  uint64_t from = place > 24 ? place - 24 : 0;
  ane_quote(quoted, (const char *)text + from, ANE_MIN(size, place) - ANE_MIN(size, from));
  ane_quote(reason, e.text, reason_length(e.text));
  return ane_fail(err, ANE_FORMAT, "the JSON is broken at byte %" PRIu64 ", behind \"%s\": %s", at + place, quoted, reason);
}

const char *ane_json_kind(const json_t *v) {
  if (!v) return "missing";
  switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "a whole number";
    case JSON_REAL: return "a number with a fraction or exponent";
    case JSON_NULL: return "null";
    default: return "true or false";
  }
}

bool ane_json_count(const json_t *v, uint64_t *n) {
  if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
  *n = (uint64_t)json_integer_value(v);
  return true;
}
