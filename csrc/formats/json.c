/* JSON of model files, by jansson. Its allocations are its own: the hooks it offers are global to the process, which may
 * use jansson for other things, and would outlive an unloaded module. It refuses texts nested deeper than 2048, strings
 * with NUL and invalid UTF-8 by itself. */
#include "formats/formats_internal.h"

#include <string.h>

/* What jansson says without the text it quotes: that is the file's, and may hold anything. */
static size_t reason_length(const char *text) {
  const char *near = strstr(text, " near '");
  return near ? (size_t)(near - text) : strlen(text);
}

ane_status ane_json_parse(json_t **out, const void *text, uint64_t size, uint64_t at, struct ane_error *err) {
  json_error_t e;
  *out = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &e);
  if (*out) return ANE_OK;
  if (json_error_code(&e) == json_error_out_of_memory) return ane_fail(err, ANE_NOMEM, "not enough memory");
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
