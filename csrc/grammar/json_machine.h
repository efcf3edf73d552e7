/* Validates a text byte by byte against a schema. States are values: a step makes a new state and does not change the old one, so
 * a caller that keeps states can go back to them. A state points to memory of the machine's arena, which lives until it is
 * rewound. */
#ifndef ANE_GRAMMAR_JSON_MACHINE_H
#define ANE_GRAMMAR_JSON_MACHINE_H

#include "grammar/schema.h"

enum { JSON_MAX_DEPTH = 256 };

/* ---- Contexts: what the schema requires of a value, before its text is read ------------------------------------------*/

enum { GOAL_TRUE = 0xffff, GOAL_FALSE = 0xfffe };

/* The states of the regular expressions that a string is matched with at the same time. State 0 cannot match any more. */
struct tuple {
  uint32_t *states; /* [n] */
  uint32_t n;
  uint32_t *next; /* [256] tuple + 1; NULL: no byte was tried */
};

struct member_name {
  const char *data;
  size_t len;
};

/* A context of a value whose type is known. */
struct typed_context {
  expr_id *e;    /* [n_goals] the goals, simplified for the type */
  bool all_true; /* every value of the type fulfils every goal */
  /* strings */
  uint32_t tuple;      /* expressions of the goals */
  uint32_t *min, *max; /* [n_goals] characters */
  /* numbers */
  struct number_rule *rules; /* [n_goals] */
  bool *ruled;               /* [n_goals] the goal is this rule alone */
  /* arrays and objects */
  uint32_t *atoms; /* [n], ascending */
  uint32_t n;
  uint32_t *position;        /* of the atom atoms[0] + i: its index; NULL: the atoms lie far apart */
  bool counts;               /* some array atom has contains */
  bool unique;               /* some array atom has uniqueItems */
  struct member_name *names; /* [n_names], sorted: all names in the atoms */
  uint32_t n_names;
  expr_id *children;      /* [n_names * n] */
  bool *required;         /* [n_names * n] */
  uint32_t key_tuple;     /* the patterns of the names, then propertyNames of the atoms that have it */
  uint32_t n_key;         /* parts of that tuple */
  uint32_t *pattern_part; /* of the patterns of all atoms, one after the other: their part of the tuple */
  uint32_t *names_part;   /* [n] part of the tuple; NO_LIMIT: any name */
};

/* A context of a value: its goals, which are the expressions that are evaluated on it. Equal contexts are one. */
struct value_context {
  expr_id *goals;
  uint32_t n;
  uint32_t number;                /* index in the machine */
  struct typed_context *types[7]; /* by type, made on first use */
};

/* How the goals of a member or element follow from the atoms of its array or object. */
struct child {
  struct value_context *context;
  uint16_t *goal;     /* [n] of the atom: index of a goal, GOAL_TRUE, GOAL_FALSE */
  uint16_t *contains; /* [n] the goal that says whether the element counts; NULL without counts */
};

/* ---- States --------------------------------------------------------------------------------------------------------*/

typedef enum { STATUS_OPEN, STATUS_TRUE, STATUS_FALSE } status3;

/* A set of hashes, in lists of different sizes. An added hash is merged with the lists before it that have as many as are merged
 * already, so a set of n hashes has few lists. */
struct seen {
  const struct seen *next;
  uint32_t n;        /* a power of two, at most SEEN_LONGEST */
  uint64_t hashes[]; /* [n] ascending */
};
enum { SEEN_LONGEST = 4096 };

/* An open array or object. Frames are immutable. */
struct frame {
  const struct frame *parent;
  const struct value_context *context;
  struct typed_context *typed;
  bool object, hashing; /* hashing: an array around it has uniqueItems */
  uint16_t depth;
  uint32_t count;            /* members or elements that are complete */
  const uint8_t *status;     /* [n] status3 of the atoms */
  const uint32_t *contains;  /* [n] elements that count so far, or NULL */
  const uint64_t *named;     /* a bit for each name that occurred */
  const struct seen *others; /* other names; elements, where they are compared */
  uint64_t hash;             /* of the members or elements so far */
  const struct child *child; /* of the member or element that is read */
  uint64_t key_hash;
};

typedef enum {
  MODE_VALUE,
  MODE_STRING,
  MODE_NUMBER,
  MODE_WORD,
  MODE_OPENED, /* after { or [ */
  MODE_MEMBER, /* after , in an object */
  MODE_KEY,
  MODE_COLON,
  MODE_NEXT, /* after a value: , or the end */
  MODE_END
} json_mode;

struct json_state {
  const struct frame *frame;           /* the innermost one; NULL: the value itself */
  const struct value_context *context; /* of the value that is read */
  struct typed_context *typed;
  const uint64_t *allowed; /* MODE_KEY: names that may come */
  uint64_t hash;
  uint64_t failed;        /* of the first 64 goals */
  uint32_t position;      /* bytes so far */
  uint32_t start;         /* of the number */
  uint32_t tuple, length; /* of the string: parts, characters */
  uint32_t lo, hi, depth; /* MODE_KEY: names that begin so, bytes of them */
  uint32_t code;          /* escape that is read */
  uint16_t high;          /* first half of a surrogate pair */
  uint16_t spaces;        /* blanks read at this place */
  uint8_t mode, escape;
  uint8_t part;           /* of a number: number_part; of a word: the characters read */
  uint8_t need, from, to; /* bytes of the character that are missing, and bounds of the next one */
  uint8_t word;
  bool other; /* MODE_KEY: a name that is not among the names may come */
};

/* The data of one text. Zero-initialised, it is empty. */
struct json_tape {
  uint8_t *bytes; /* the text so far: numbers are read again */
  size_t room_bytes;
  bool canonical; /* accept canonical spellings only: escapes that JSON needs, integers without point and exponent */
  /* Frames are made in blocks that a mark can be rewound to. */
  uint8_t **blocks;
  uint32_t n_blocks, room_blocks;
  uint32_t block;
  size_t used;
};

struct json_machine {
  struct schema *s;
  struct ane_arena arena; /* contexts; live as long as the machine */
  struct tuple *tuples;
  uint32_t n_tuples, room_tuples;
  uint32_t *tuple_table, tuple_table_size;
  struct value_context **contexts;
  uint32_t n_contexts, room_contexts;
  uint32_t *context_table, context_table_size;
  uint64_t cells;         /* the sum of names x (atoms + 1) over all contexts */
  struct json_tape *tape; /* of the current text: the caller of a step sets it */
  uint32_t max_spaces;    /* blanks at each place where they may stand: 0 .. 65535 */
  bool separators;        /* blanks are allowed only after , and : */
  bool no_memory, too_large;
};

struct json_mark {
  uint32_t block;
  size_t used;
};

/* Makes a machine and the state before the first byte. The machine reads s and adds to its pools; s must outlive it. Errors:
 * ANE_NOMEM. */
ane_status json_machine_make(struct json_machine *m, struct schema *s, struct json_state *start, struct ane_error *err);
void json_machine_free(struct json_machine *m);
void json_tape_free(struct json_tape *t);
/* Consumes a byte. false: no text continues with it, or a limit was reached (json_machine_failed). in and out may be the same. */
bool json_step(struct json_machine *m, const struct json_state *in, uint8_t byte, struct json_state *out);
/* Returns whether the text may end in the state. */
bool json_accepts(struct json_machine *m, const struct json_state *st);
/* Returns the error if a limit was reached or memory is out: ANE_RANGE, ANE_NOMEM; else ANE_OK. */
ane_status json_machine_failed(const struct json_machine *m, struct ane_error *err);
/* Returns a mark of the frames so far. json_rewind frees the frames that were made after it. */
struct json_mark json_mark_of(const struct json_tape *t);
void json_rewind(struct json_tape *t, struct json_mark mark);

/* ---- Between the files ---------------------------------------------------------------------------------------------*/

/* Allocates zeroed memory that lives until the tape is rewound. NULL: no memory. */
void *json_alloc(struct json_machine *m, size_t n, size_t size);
/* Return the context of n goals, a context of one type, a tuple of n states, and the tuple after a byte. Each is made on first
 * use. NULL or 0: no memory, or a limit is reached. */
struct value_context *json_context(struct json_machine *m, const expr_id *goals, uint32_t n);
struct typed_context *json_typed(struct json_machine *m, struct value_context *p, uint8_t type);
uint32_t json_tuple_next(struct json_machine *m, uint32_t tuple, uint8_t byte);
uint32_t json_tuple(struct json_machine *m, const uint32_t *states, uint32_t n);
/* Evaluates a goal of an array or object from the statuses of its atoms. */
status3 json_evaluate(const struct json_machine *m, const struct typed_context *t, expr_id e, const uint8_t *status);
/* Returns whether the goal is false, whatever comes. This is known sooner than the result of json_evaluate. */
bool json_lost(const struct json_machine *m, const struct typed_context *t, expr_id e, const uint8_t *status);

/* Returns whether the text can still satisfy the root if these goals of the value in f's child are false. */
bool json_survives(struct json_machine *m, const struct frame *f, const bool *failed, uint32_t n);
/* Opens the array or object whose context and type the state holds. false: nothing can satisfy it. */
bool json_open(struct json_machine *m, struct json_state *st, bool object);
/* Closes the innermost array or object. false: its goals, or the root, are not satisfied. */
bool json_close(struct json_machine *m, struct json_state *st);
/* Completes the value of the state's context. results[i]: goal i holds. false: the root can no longer be satisfied. */
bool json_done(struct json_machine *m, struct json_state *st, const bool *results, uint64_t hash);
/* Returns whether the current string can become one that the array with uniqueItems around it does not have yet. */
bool json_element_may_be_new(struct json_machine *m, const struct json_state *st);
/* Prepare one more element, or the name of one more member. false: none may come. */
bool json_element(struct json_machine *m, struct json_state *st);
bool json_key_start(struct json_machine *m, struct json_state *st);
/* Consume a byte of a name, and complete the name. false: no name continues so. */
bool json_key_byte(struct json_machine *m, struct json_state *st, uint8_t byte);
bool json_key_end(struct json_machine *m, struct json_state *st);
/* Returns whether one more member may come. */
bool json_key_may_come(struct json_machine *m, const struct json_state *st);

/* Returns whether a set has a hash. */
bool json_has_seen(const struct seen *set, uint64_t hash);

/* For masks: return whether a name that is not listed, or a string, may continue from the tuple and length of the state. */
bool json_key_other(struct json_machine *m, const struct json_state *st);
bool json_string_viable(struct json_machine *m, const struct json_state *st);
/* For strings with at most 64 parts. Returns the goals that no continuation of the string satisfies: bit i for goal i. bounds:
 * count those that a bound of the length excludes. */
uint64_t json_string_failed(const struct json_machine *m, const struct json_state *st, bool bounds);
/* Returns whether the text can still satisfy the root if these goals of the state's string are false. */
bool json_string_survives(struct json_machine *m, const struct json_state *st, uint64_t failed);

enum {
  JSON_TEXT_START = 0x7478, /* the hash of an empty text: not 0, which a NUL would keep */
  JSON_STRING_END = 0x2222, /* mixed into the hash of a whole string */
  JSON_KEY_END = 0x6b6579   /* of a whole name */
};

/* Sets the bits of a superset of the bytes that may follow: a filter before a step. */
void json_first_bytes(const struct json_machine *m, const struct json_state *st, uint64_t bits[4]);

static inline uint64_t json_mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 31;
}

#endif
