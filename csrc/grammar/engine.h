/* What every kind of grammar is to the code that walks tokens: states that are values, and a step by a byte. */
#ifndef ANE_GRAMMAR_ENGINE_H
#define ANE_GRAMMAR_ENGINE_H

#include "grammar/grammar.h"
#include "grammar/json_machine.h"

typedef enum { ENGINE_JSON, ENGINE_REGEX } engine_kind;

union engine_state {
  struct json_state json;
  uint32_t regex; /* a state of the pool */
};

struct inside_cache;

struct ane_grammar {
  engine_kind kind;
  struct re_pool pool; /* ENGINE_REGEX */
  struct schema schema;
  struct json_machine machine; /* ENGINE_JSON */
  union engine_state start;
  struct inside_cache *cache; /* of mask_string.c */
};

bool engine_step(struct ane_grammar *g, const union engine_state *in, uint8_t byte, union engine_state *out);
bool engine_accepts(struct ane_grammar *g, const union engine_state *st);
void mask_cache_free(struct inside_cache *c);
ane_status engine_failed(const struct ane_grammar *g, struct ane_error *err);

#endif
