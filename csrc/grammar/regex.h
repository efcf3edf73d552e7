/* Regular languages over bytes: expressions with intersection and complement, hash-consed, matched by derivatives
 * (Brzozowski 1964; Owens, Reppy and Turon 2009), each state made when it is first reached.
 *
 * Expressions are numbers into a pool. Texts that are matched are UTF-8; a character set is compiled to its byte sequences.
 * Limits: nodes, derivative steps and states of a pool. Beyond them `pool->full` is set, functions return RE_NONE, and
 * earlier expressions and states stay valid. */
#ifndef ANE_GRAMMAR_REGEX_H
#define ANE_GRAMMAR_REGEX_H

#include "base/arena.h"
#include "base/status.h"
#include "base/strmap.h"

typedef uint32_t ane_re;

enum {
  RE_NONE = 0,  /* matches nothing */
  RE_EMPTY = 1, /* matches the empty text */
  RE_ALL = 2,   /* matches every text */
  RE_ANY_BYTE = 3
};
#define RE_INF UINT32_MAX

/* The kind of character before a position, which assertions test. */
typedef enum { RE_AT_START, RE_AFTER_OTHER, RE_AFTER_WORD } re_before;

struct re_node {
  uint8_t kind;
  bool nullable;                 /* matches the empty text, if there is no assertion inside */
  bool asserts;                  /* an assertion is inside: whether it matches the empty text depends on the position */
  bool looks_back;               /* ^ or \b is inside: derivatives depend on the position */
  bool boolean;                  /* an intersection or a complement is inside: it may be empty though it is not RE_NONE */
  uint32_t a, b;                 /* operands, or the number of a byte set */
  uint32_t lo, hi;               /* of a repetition */
  uint32_t min_chars, max_chars; /* characters of the shortest and longest match; max_chars RE_INF: no limit */
};

struct re_set {
  uint64_t bits[4]; /* bytes 0..255 */
};

/* A state of the automaton: an expression, and the kind of character before it. */
struct re_state {
  ane_re re;
  uint8_t before; /* re_before; RE_AFTER_OTHER if the expression does not depend on it */
  bool accepts;
  uint8_t alive;  /* 0 not known, 1 some continuation is accepted, 2 none is */
  bool whole;     /* every continuation is accepted */
  uint32_t *next; /* [256] state + 1; 0 not known yet; NULL: no byte was tried */
};

/* Finds items by a hash, with open addressing. A slot holds the number of an item, or 0 if it is free. Numbers are the indices of
 * nodes and sets plus 1, and those of states, of which the first is dead and not in the table. */
struct re_table {
  uint32_t *slots, size; /* size: a power of two */
};

struct re_pool {
  struct re_node *nodes;
  uint32_t n_nodes, room_nodes;
  struct re_table node_table;
  struct re_set *sets;
  uint32_t n_sets, room_sets;
  struct re_table set_table;
  struct re_state *states;
  uint32_t n_states, room_states;
  struct re_table state_table;
  uint64_t steps;      /* derivative steps so far */
  uint64_t step_limit; /* raised by the caller for each call from outside */
  ane_re byte_re[256]; /* of single bytes; RE_NONE: not made yet */
  /* Expressions of character classes by their spelling, without and with RE_NO_CASE: a large class takes a millisecond to make.
   */
  struct ane_strmap classes[2];
  struct ane_arena spellings;
  bool full, no_memory;
};

enum {
  RE_MAX_NODES = 1 << 21,
  RE_MAX_STATES = 1 << 17,
  RE_MAX_STEPS = 1 << 22, /* of one call */
  RE_MAX_DEPTH = 200,     /* of groups */
  RE_MAX_PATTERN = 1 << 16,
  RE_MAX_REPEAT = 100000
};

/* false: no memory. Free the pool in any case. */
bool re_pool_init(struct re_pool *p);
void re_pool_free(struct re_pool *p);

/* Constructors. They simplify: simple expressions that match the same texts have the same number. */
ane_re re_literal(struct re_pool *p, const char *s, size_t len);
ane_re re_cat(struct re_pool *p, ane_re a, ane_re b);
ane_re re_alt(struct re_pool *p, ane_re a, ane_re b);
ane_re re_and(struct re_pool *p, ane_re a, ane_re b);
ane_re re_not(struct re_pool *p, ane_re a);
ane_re re_repeat(struct re_pool *p, ane_re a, uint32_t lo, uint32_t hi);
/* Zero-width: the text that follows begins with a match of a (negative: with none). */
ane_re re_ahead(struct re_pool *p, ane_re a, bool negative);
ane_re re_start(struct re_pool *p);                   /* ^ */
ane_re re_boundary(struct re_pool *p, bool negative); /* \b, \B */
/* Characters lo..hi (code points without surrogates) as UTF-8. */
ane_re re_chars(struct re_pool *p, uint32_t lo, uint32_t hi);
ane_re re_any_char(struct re_pool *p);
/* Any one of n texts: a trie, so that long lists stay cheap. The list is sorted in place. */
struct re_text {
  const char *data;
  size_t len;
};
ane_re re_choice(struct re_pool *p, struct re_text *texts, size_t n);

/* What a pattern matches. */
enum re_syntax {
  RE_SEARCH = 1,  /* a match anywhere in the text is enough (JSON Schema); without it the whole text is matched */
  RE_DOT_ALL = 2, /* . matches line ends too */
  RE_NO_CASE = 4  /* ASCII letters of either case */
};
/* Parses a pattern of ECMA-262 (flag u), or of the syntax that Python's re shares with it. Errors: ANE_UNSUPPORTED (names the
 * construct and its offset: back references, look-behind, ...), ANE_INVALID (not a pattern), ANE_RANGE (a limit), ANE_NOMEM. */
ane_status re_parse(struct re_pool *p, const char *text, size_t len, unsigned syntax, ane_re *out, struct ane_error *err);

/* The automaton. State 0 is dead: no continuation is accepted. */
uint32_t re_begin(struct re_pool *p, ane_re re); /* the state before the first byte; 0 and p->full at a limit */
uint32_t re_next(struct re_pool *p, uint32_t state, uint8_t byte);

/* Returns whether some text matches. Exact, except that the answer at a limit is true. */
bool re_alive(struct re_pool *p, ane_re re, re_before before);

static inline const struct re_node *re_at(const struct re_pool *p, ane_re re) { return &p->nodes[re]; }

#endif
