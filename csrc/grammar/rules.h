/* Context-free grammars over patterns, parsed byte by byte (Earley 1970). Sets of items are interned by content, so equal
 * situations are one state. Transitions between states are cached, so repeated situations cost as little as an automaton. */
#ifndef ANE_GRAMMAR_RULES_H
#define ANE_GRAMMAR_RULES_H

#include "base/arena.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"

/* A position in an alternative of a rule, given by the symbol after it (a dotted rule). Each alternative ends with POSITION_END.
 */
struct rule_position {
  enum { POSITION_END, POSITION_RULE, POSITION_TEXT } kind;
  uint32_t which; /* POSITION_RULE, POSITION_END: the rule; POSITION_TEXT: an expression of the pool */
};

struct rule_item {
  uint32_t position; /* index of the position: the symbol that is read next */
  uint32_t origin;   /* set in which the alternative begins; RULES_SELF: the set of this item */
  uint32_t state;    /* POSITION_TEXT: of the automaton */
};

struct rule_set {
  struct rule_item *items; /* sorted; completed items are left out */
  uint32_t n;
  bool accepts;
  uint32_t *next; /* [256] set + 1; 1: dead; 0: not known */
};

#define RULES_SELF UINT32_MAX

struct rules {
  struct ane_arena arena;
  struct re_pool *pool;
  struct rule_position *positions;
  uint32_t n_positions, room_positions;
  uint32_t *first;  /* [n_rules + 1] into starts */
  uint32_t *starts; /* positions at which alternatives begin */
  uint32_t n_rules;
  bool *nullable;        /* [n_rules] */
  struct rule_set *sets; /* 0 is dead */
  uint32_t n_sets, room_sets;
  uint32_t n_items; /* of all sets */
  uint64_t visits;  /* items that completions visited */
  uint32_t *table, table_size;
  struct rule_item *work; /* the set under construction */
  uint32_t n_work, room_work;
  uint32_t *slots, n_slots; /* of the items in work */
  bool no_memory, too_large;
};

/* Reads a description (see ane_grammar_rules). *start: the set before the first byte. r uses the pool, which must outlive it. */
ane_status rules_make(struct rules *r, struct re_pool *pool, const struct ane_rule *list, size_t n, uint32_t *start,
                      struct ane_error *err);
void rules_free(struct rules *r);
/* Returns the set after a byte. 0: no text continues with it, or a limit is reached. */
uint32_t rules_next(struct rules *r, uint32_t set, uint8_t byte);

#endif
