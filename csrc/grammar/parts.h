/* Grammars of sequences of parts (literals, patterns, JSON values): an automaton whose edges are the parts. */
#ifndef ANE_GRAMMAR_PARTS_H
#define ANE_GRAMMAR_PARTS_H

#include "base/arena.h"
#include "grammar/json_machine.h"
#include "grammar/regex.h"

struct parts_link {
  struct parts_link *next;
  uint32_t to;
  uint8_t byte;
};

/* A node of the automaton: a state of the description (struct ane_part), or a position inside a literal. */
struct parts_node {
  struct parts_link *links; /* bytes of literals */
  uint32_t value;           /* index + 1 of the schema of the JSON value that begins here */
  uint32_t pattern;         /* start state of the pattern that begins here */
  uint32_t after;           /* node after the value or pattern */
  bool accepts;
};

struct parts_state {
  struct json_state json; /* must come first, because engine_state.json reads it. It also counts the bytes of all values so far */
  uint32_t node;
  uint32_t regex; /* of a node with a pattern */
};

struct parts {
  struct ane_arena arena;   /* of the links */
  struct parts_node *nodes; /* the first n_states are the states of the description */
  uint32_t n_nodes, room_nodes;
  uint32_t n_states;
};

#endif
