/* A JSON Schema (2020-12 and the spellings of older drafts) as boolean expressions over atoms.
 *
 * An atom holds the constraints of one schema object, separately for each type, without those of schemas inside it. An expression
 * combines atoms with and, or, not and "exactly one", as allOf, anyOf, oneOf, not and if require. Members and elements refer to
 * expressions again. A value is validated while it is read: each atom is pending, true or false. A text is rejected as soon as
 * its expression is false for every continuation. */
#ifndef ANE_GRAMMAR_SCHEMA_H
#define ANE_GRAMMAR_SCHEMA_H

#include "base/arena.h"
#include "base/strmap.h"
#include "grammar/number.h"
#include "grammar/regex.h"

/* ---- JSON as a tree ----------------------------------------------------------------------------------------------*/

typedef enum { JV_NULL, JV_FALSE, JV_TRUE, JV_NUMBER, JV_STRING, JV_ARRAY, JV_OBJECT } jv_kind;

struct jv;
struct jv_member {
  const char *name;
  size_t len;
  struct jv *value;
};
struct jv {
  jv_kind kind;
  uint32_t node;             /* index of the node as a schema + 1; 0: none yet */
  const char *text;          /* of a string: decoded; of a number: as spelled */
  size_t len;                /* of the text; elements, members */
  struct jv **items;         /* JV_ARRAY */
  struct jv_member *members; /* JV_OBJECT; of equal names the last one counts */
  const struct jv *parent;   /* NULL: the root */
  const char *key;           /* its name in the parent; NULL: an element */
  uint32_t index;            /* its index in the parent */
  /* Of schema_ids: */
  uint32_t resource;          /* number of its identifier + 1; 0: none */
  struct jv_member **by_name; /* JV_OBJECT: the members in order of length and name; NULL: not sorted yet */
};

/* Parses a whole text. The result lives in the arena. Errors: ANE_FORMAT (position and cause), ANE_RANGE (depth), ANE_NOMEM. */
ane_status jv_read(struct jv **out, struct ane_arena *arena, const char *text, size_t len, struct ane_error *err);
/* Returns a member by name; NULL: there is none. */
struct jv *jv_get(const struct jv *object, const char *name);
/* Returns whether a value is this string. */
bool jv_is(const struct jv *string, const char *s);

/* ---- Schemas -----------------------------------------------------------------------------------------------------*/

/* Types of values; null, false and true are one value each. */
enum { T_NULL = 1, T_FALSE = 2, T_TRUE = 4, T_NUMBER = 8, T_STRING = 16, T_ARRAY = 32, T_OBJECT = 64, T_ALL = 127 };

typedef uint32_t expr_id; /* EXPR_FALSE, EXPR_TRUE, or a number of schema->exprs */
enum {
  EXPR_FALSE = 0,
  EXPR_TRUE = 1,
  EXPR_MAX_SIZE = 1 << 15,   /* maximum size of an expression */
  TYPED_MAX_ATOMS = 1 << 12, /* maximum number of atoms of arrays or objects for one value */
  TYPED_MAX_NAMES = 1 << 20, /* maximum of names in them, counted as often as they occur */
  TYPED_MAX_TABLE = 1 << 20  /* maximum of different names times one more than the atoms */
};
typedef enum { EXPR_ATOM = 2, EXPR_AND, EXPR_OR, EXPR_NOT, EXPR_ONE } expr_kind;

struct expr {
  expr_kind kind;
  uint32_t atom; /* EXPR_ATOM */
  const expr_id *list;
  uint32_t n;
  uint32_t size; /* number of expressions in it, as a tree: shared ones count each time */
  uint8_t types; /* types of which some value may satisfy it */
};

struct property {
  const char *name;
  size_t len;
  expr_id value;
  const struct jv *schema; /* until the expressions are made */
};

struct pattern_property {
  ane_re re;
  expr_id value;
  const struct jv *schema;
};

#define NO_LIMIT UINT32_MAX

struct atom {
  uint8_t types;    /* allowed types */
  uint8_t bare;     /* types of which every value satisfies the atom */
  uint8_t possible; /* types of which some value satisfies it */
  /* strings */
  ane_re re; /* of the decoded text */
  uint32_t min_length, max_length;
  uint32_t n_texts; /* the strings are a list of this many texts; 0: no list */
  /* numbers */
  struct number_rule number;
  /* arrays */
  struct property *prefix; /* [n_prefix], without names */
  uint32_t n_prefix;
  expr_id items, contains;
  const struct jv *items_schema, *contains_schema;
  uint32_t min_items, max_items, min_contains, max_contains;
  bool has_contains, unique;
  /* objects */
  struct property *properties;
  const struct property **by_name; /* [n_properties] sorted by length and name; NULL: they are few */
  uint32_t n_properties;
  struct pattern_property *patterns;
  uint32_t n_patterns;
  expr_id additional, names;
  const struct jv *additional_schema, *names_schema;
  struct re_text *required;
  uint32_t n_required;
  uint32_t min_properties, max_properties;
  bool monotone; /* of an object: once satisfied, it stays satisfied */
};

struct schema {
  struct ane_arena arena;
  struct re_pool pool;
  struct atom *atoms;
  uint32_t n_atoms, room_atoms;
  struct expr *exprs;
  uint32_t n_exprs, room_exprs;
  uint32_t *table, table_size; /* of expressions */
  expr_id root;
  bool too_large; /* an expression exceeded EXPR_MAX_SIZE */
};

struct schema_options {
  bool lenient; /* unknown annotations, such as a format, are ignored */
};

/* Compiles a schema. Errors: ANE_FORMAT (the text), ANE_INVALID (a keyword's value; no value fulfils the schema),
 * ANE_UNSUPPORTED (cannot be enforced), ANE_RANGE (limits), ANE_NOMEM; the message begins with keyword and path. */
ane_status schema_compile(struct schema *s, const char *text, size_t len, const struct schema_options *options,
                          struct ane_error *err);
void schema_free(struct schema *s);

/* Constructors of expressions. Equal expressions have equal ids. If memory is out, or the expression is too large, they return
 * EXPR_FALSE and set s->pool.full. */
expr_id expr_atom(struct schema *s, uint32_t atom);
expr_id expr_not(struct schema *s, expr_id a);
/* Returns an upper limit of the number of values that satisfy e; NO_LIMIT: none is known. */
uint32_t expr_count(const struct schema *s, expr_id e);
expr_id expr_of(struct schema *s, expr_kind kind, const expr_id *list, uint32_t n);
static inline expr_id expr_two(struct schema *s, expr_kind kind, expr_id a, expr_id b) {
  return expr_of(s, kind, (expr_id[]){a, b}, 2);
}
/* Simplifies an expression for values of one type. */
expr_id expr_for(struct schema *s, expr_id e, uint8_t type);
/* Returns the types of which some value may satisfy e: the least fixed point over atoms. Conjunctions are tested part by part. */
uint8_t expr_types(const struct schema *s, expr_id e);
/* Tests whether some value satisfies the root. Errors: ANE_INVALID (none does), ANE_RANGE, ANE_NOMEM. */
ane_status schema_possible(struct schema *s, struct ane_error *err);
/* Returns the expression that an atom gives for the member `name`. */
expr_id atom_member(struct schema *s, const struct atom *a, const char *name, size_t len);
enum { NAMES_LISTED = 64, NAMES_LONGEST = 64 };
/* Lists the names that members of an object may have by the atom's patterns and propertyNames. NO_LIMIT: they are more than
 * NAMES_LISTED, one is longer than NAMES_LONGEST bytes, or the atom has neither. */
uint32_t atom_names(struct schema *s, const struct atom *a, struct re_text out[NAMES_LISTED]);
/* Returns the regular expression of the strings that satisfy e. lengths: with the bounds of the length. */
ane_re expr_strings(struct schema *s, expr_id e, bool lengths);

/* What a "format" requires of strings and of numbers. */
struct schema_format {
  const char *name;
  const char *pattern;           /* of a whole string; NULL: every string */
  const char *minimum, *maximum; /* of numbers; NULL: no limit */
};
/* Returns a format by name; NULL: unknown. */
const struct schema_format *schema_format(const char *name, size_t len);

/* ---- References --------------------------------------------------------------------------------------------------*/

struct schema_ids; /* of one document */
ane_status schema_ids_make(struct schema_ids **out, struct ane_arena *arena, struct jv *root, struct ane_error *err);
void schema_ids_free(struct schema_ids *ids); /* what is not in the arena; NULL is fine */
/* Returns the schema that a reference in `from` names; NULL if the document has none. */
struct jv *schema_resolve(struct schema_ids *ids, const struct jv *from, const char *ref, size_t len);
/* Returns the target of $dynamicRef (recursive: of $recursiveRef) if it does not depend on the path to the reference: no other
 * schema has the anchor, or the root resource, which is the outermost of every dynamic scope, has it. *several: the target
 * depends on the path. */
struct jv *schema_resolve_dynamic(struct schema_ids *ids, const struct jv *from, const char *ref, size_t len, bool recursive,
                                  bool *several);
/* Returns whether keywords beside $ref are ignored, as in drafts up to 7. */
bool schema_old_refs(const struct schema_ids *ids);
/* Returns whether an integer is a number that is written without a fraction and an exponent, as in drafts 3 and 4 (draft 4, 3.5).
 */
bool schema_plain_integers(const struct schema_ids *ids);

#endif
