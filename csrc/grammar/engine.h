/* The interface of every kind of grammar to the code that walks tokens: states are values, and a step consumes one byte. */
#ifndef ANE_GRAMMAR_ENGINE_H
#define ANE_GRAMMAR_ENGINE_H

#include "grammar/grammar.h"
#include "grammar/json_machine.h"
#include "grammar/parts.h"
#include "grammar/rules.h"

typedef enum { ENGINE_JSON, ENGINE_REGEX, ENGINE_RULES, ENGINE_PARTS } engine_kind;

union engine_state {
  struct json_state json;
  uint32_t regex; /* a state of the pool */
  uint32_t rules; /* a set of items */
  struct parts_state parts;
};

struct inside_cache;
struct state_masks;

/* Values of one schema. */
struct json_values {
  struct schema schema;
  struct json_machine machine;
  struct json_state start;
  struct inside_cache *cache; /* of mask_string.c */
};

struct ane_grammar {
  engine_kind kind;
  struct re_pool pool; /* ENGINE_REGEX, ENGINE_RULES, ENGINE_PARTS */
  struct rules rules;
  struct parts parts;
  struct json_values **values; /* [n_values] ENGINE_JSON: one; ENGINE_PARTS: one for each part that is JSON */
  uint32_t n_values;
  union engine_state start;
  struct state_masks *masks; /* of mask.c */
};

/* Consumes a byte. false: the grammar does not allow it, or a limit is reached (engine_failed). in and out may be the same. */
bool engine_step(struct ane_grammar *g, const union engine_state *in, uint8_t byte, union engine_state *out);
/* Returns whether the text may end in the state. */
bool engine_accepts(struct ane_grammar *g, const union engine_state *st);
/* Returns the schema whose value the state is inside; NULL: none. st->json is the state in that value. */
struct json_values *engine_values(const struct ane_grammar *g, const union engine_state *st);
/* Makes the values of a schema. Errors: as ane_grammar_json_schema. */
ane_status json_values_make(struct json_values *v, const char *text, size_t len, const struct ane_json_options *options,
                            struct ane_error *err);
/* parts.c: fills a grammar whose kind is set. Errors: as ane_grammar_parts. */
ane_status parts_make(struct ane_grammar *g, const struct ane_part *list, size_t n, const uint32_t *ends, size_t n_ends,
                      const struct ane_json_options *options, struct ane_error *err);
void parts_free(struct parts *p);
bool parts_step(struct ane_grammar *g, const struct parts_state *in, uint8_t byte, struct parts_state *out);
bool parts_accepts(struct ane_grammar *g, const struct parts_state *in);
void mask_cache_free(struct inside_cache *c);
void mask_states_free(struct state_masks *s);
/* Returns the error if a limit was reached or memory is out: ANE_RANGE, ANE_NOMEM; else ANE_OK. */
ane_status engine_failed(const struct ane_grammar *g, struct ane_error *err);

#endif
