/* Grammars and matchers: see grammar.h. */
#include "base/alloc.h"
#include "grammar/engine.h"
#include "grammar/regex_internal.h"

#include <string.h>

/* ---- Engines -----------------------------------------------------------------------------------------------------*/

bool engine_step(struct ane_grammar *g, const union engine_state *in, uint8_t byte, union engine_state *out) {
  if (g->kind == ENGINE_JSON) return json_step(&g->values[0]->machine, &in->json, byte, &out->json);
  if (g->kind == ENGINE_PARTS) return parts_step(g, &in->parts, byte, &out->parts);
  if (g->kind == ENGINE_RULES) {
    out->rules = rules_next(&g->rules, in->rules, byte);
    return out->rules != 0;
  }
  out->regex = re_next(&g->pool, in->regex, byte);
  return out->regex != 0 && !g->pool.full;
}

bool engine_accepts(struct ane_grammar *g, const union engine_state *st) {
  if (g->kind == ENGINE_RULES) return g->rules.sets[st->rules].accepts;
  if (g->kind == ENGINE_PARTS) return parts_accepts(g, &st->parts);
  return g->kind == ENGINE_JSON ? json_accepts(&g->values[0]->machine, &st->json) : g->pool.states[st->regex].accepts;
}

struct json_values *engine_values(const struct ane_grammar *g, const union engine_state *st) {
  if (g->kind == ENGINE_JSON) return g->values[0];
  uint32_t value = g->kind == ENGINE_PARTS ? g->parts.nodes[st->parts.node].value : 0;
  return value ? g->values[value - 1] : NULL;
}

ane_status engine_failed(const struct ane_grammar *g, struct ane_error *err) {
  for (uint32_t i = 0; i < g->n_values; i++) {
    ane_status st = g->values[i]->machine.s ? json_machine_failed(&g->values[i]->machine, err) : ANE_OK;
    if (st) return st;
  }
  if (g->pool.no_memory || g->rules.no_memory) return ane_fail(err, ANE_NOMEM, "no memory to follow the grammar");
  if (g->pool.full || g->rules.too_large) return ane_fail(err, ANE_RANGE, "the grammar needs more states than its limits allow");
  return ANE_OK;
}

/* ---- Grammars ----------------------------------------------------------------------------------------------------*/

ane_status json_values_make(struct json_values *v, const char *text, size_t len, const struct ane_json_options *options,
                            struct ane_error *err) {
  struct schema_options how = {.lenient = options && options->lenient};
  ane_status st = schema_compile(&v->schema, text, len, &how, err);
  if (st == ANE_OK) st = json_machine_make(&v->machine, &v->schema, &v->start, err);
  if (st == ANE_OK && options) {
    v->machine.separators = !options->free_blanks;
    v->machine.max_spaces = options->max_blanks;
  }
  return st;
}

static void json_values_free(struct json_values *v) {
  mask_cache_free(v->cache);
  json_machine_free(&v->machine);
  schema_free(&v->schema);
  ane_free(v);
}

ane_status ane_grammar_json_schema(struct ane_grammar **out, const char *text, size_t len, const struct ane_json_options *options,
                                   struct ane_error *err) {
  struct ane_grammar *g = *out = ane_calloc(1, sizeof *g);
  if (!g) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  g->kind = ENGINE_JSON;
  g->values = ane_calloc(1, sizeof *g->values);
  struct json_values *v = g->values ? ane_calloc(1, sizeof *v) : NULL;
  if (v) g->values[g->n_values++] = v;
  ane_status st = v ? json_values_make(v, text, len, options, err) : ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  if (st) {
    ane_grammar_destroy(g);
    *out = NULL;
    return st;
  }
  /* analyser: without v there is no memory, so st is set. */
  g->start.json = v->start;
  return ANE_OK;
}

/* Makes a grammar of regular expressions with an empty pool; NULL: no memory. */
static struct ane_grammar *plain_grammar(void) {
  struct ane_grammar *g = ane_calloc(1, sizeof *g);
  if (!g) return NULL;
  g->kind = ENGINE_REGEX;
  if (re_pool_init(&g->pool)) return g;
  ane_free(g);
  return NULL;
}

/* Sets the start state to an expression; destroys the grammar on failure. */
static ane_status begin(struct ane_grammar **out, struct ane_grammar *g, ane_re re, ane_status st, struct ane_error *err) {
  if (st == ANE_OK) {
    g->start.regex = re_begin(&g->pool, re);
    st = engine_failed(g, err);
    if (st == ANE_OK && !g->start.regex) st = ane_fail(err, ANE_INVALID, "no text fulfils the grammar");
  }
  if (st) ane_grammar_destroy(g);
  *out = st ? NULL : g;
  return st;
}

ane_status ane_grammar_regex(struct ane_grammar **out, const char *pattern, size_t len, struct ane_error *err) {
  struct ane_grammar *g = plain_grammar();
  ane_re re = RE_NONE;
  *out = NULL;
  if (!g) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  ane_status st = re_parse(&g->pool, pattern, len, 0, &re, err);
  return begin(out, g, re, st, err);
}

ane_status ane_grammar_choice(struct ane_grammar **out, const struct ane_bytes *texts, size_t n, struct ane_error *err) {
  struct ane_grammar *g = plain_grammar();
  struct re_text *list = ane_malloc((n + 1) * sizeof *list);
  *out = NULL;
  if (!g || !list) {
    ane_grammar_destroy(g);
    ane_free(list);
    return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  }
  for (size_t i = 0; i < n; i++) list[i] = (struct re_text){texts[i].data, texts[i].len};
  ane_re re = re_choice(&g->pool, list, n);
  ane_free(list);
  return begin(out, g, re, engine_failed(g, err), err);
}

ane_status ane_grammar_rules(struct ane_grammar **out, const struct ane_rule *rules, size_t n, struct ane_error *err) {
  struct ane_grammar *g = *out = plain_grammar();
  if (!g) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  g->kind = ENGINE_RULES;
  ane_status st = rules_make(&g->rules, &g->pool, rules, n, &g->start.rules, err);
  if (st == ANE_OK || st == ANE_INVALID) { /* a state that lacks memory is the dead state, as if no text reached it */
    struct ane_error why;
    ane_status engine = engine_failed(g, &why);
    if (engine) st = engine, *err = why;
  }
  if (st) {
    ane_grammar_destroy(g);
    *out = NULL;
  }
  return st;
}

ane_status ane_grammar_parts(struct ane_grammar **out, const struct ane_part *parts, size_t n, const uint32_t *ends,
                             size_t n_ends, const struct ane_json_options *options, struct ane_error *err) {
  struct ane_grammar *g = *out = plain_grammar();
  if (!g) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  g->kind = ENGINE_PARTS;
  ane_status st = parts_make(g, parts, n, ends, n_ends, options, err);
  if (st) {
    ane_grammar_destroy(g);
    *out = NULL;
  }
  return st;
}

void ane_grammar_destroy(struct ane_grammar *g) {
  if (!g) return;
  mask_states_free(g->masks);
  for (uint32_t i = 0; i < g->n_values; i++) json_values_free(g->values[i]);
  ane_free(g->values);
  parts_free(&g->parts);
  rules_free(&g->rules);
  re_pool_free(&g->pool);
  ane_free(g);
}
