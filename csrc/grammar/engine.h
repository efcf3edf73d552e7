/* What every kind of grammar is to the code that walks tokens: states that are values, and a step by a byte. */
#ifndef ANE_GRAMMAR_ENGINE_H
#define ANE_GRAMMAR_ENGINE_H

#include "grammar/grammar.h"
#include "grammar/json_machine.h"
#include "grammar/rules.h"

typedef enum { ENGINE_JSON, ENGINE_REGEX, ENGINE_RULES } engine_kind;

union engine_state {
  struct json_state json;
  uint32_t regex; /* a state of the pool */
  uint32_t rules; /* a set of items */
};

struct inside_cache;
struct state_masks;

struct ane_grammar {
  engine_kind kind;
  struct re_pool pool; /* ENGINE_REGEX, ENGINE_RULES */
  struct rules rules;
  struct schema schema;
  struct json_machine machine; /* ENGINE_JSON */
  union engine_state start;
  struct inside_cache *cache; /* of mask_string.c */
  struct state_masks *masks;  /* of mask.c */
};

bool engine_step(struct ane_grammar *g, const union engine_state *in, uint8_t byte, union engine_state *out);
bool engine_accepts(struct ane_grammar *g, const union engine_state *st);
void mask_cache_free(struct inside_cache *c);
void mask_states_free(struct state_masks *s);
ane_status engine_failed(const struct ane_grammar *g, struct ane_error *err);

#endif
