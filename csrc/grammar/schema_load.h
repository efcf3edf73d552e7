/* Declarations that the files that read schemas share. */
#ifndef ANE_GRAMMAR_SCHEMA_LOAD_H
#define ANE_GRAMMAR_SCHEMA_LOAD_H

#include "grammar/schema.h"

/* A schema object that is being loaded. */
struct node {
  struct jv *v;
  bool open; /* being loaded: a reference to it is a cycle */
  bool done;
  expr_id e;
};

struct loading {
  struct schema *s;
  struct schema_ids *ids;
  const struct schema_options *options;
  struct node *nodes;
  uint32_t n_nodes, room_nodes;
  int depth;
  struct ane_error *err;
  ane_status status;
};

/* Sets the error "keyword at #/path: ..." and returns EXPR_FALSE. The first error is kept. */
expr_id load_fail(struct loading *l, ane_status status, const struct jv *at, const char *keyword, const char *fmt, ...)
    ANE_PRINTF(5, 6);
/* Returns the expression of a schema. */
expr_id load_node(struct loading *l, struct jv *v);
/* Makes an atom that every value satisfies; NULL: no memory. *number is its index. The pointer is valid until the next call. */
struct atom *load_atom(struct loading *l, uint32_t *number);
/* Allocation in the schema's arena; NULL: no memory, and the error is set. */
void *load_alloc(struct loading *l, size_t n, size_t size);
/* Returns the expression "an object with this member". */
expr_id load_has(struct loading *l, const char *name, size_t len);
/* Returns the expression of unevaluatedProperties and unevaluatedItems of an object. */
expr_id load_unevaluated(struct loading *l, struct jv *v);
/* Fails if more schemas apply to one value than the limits of schema.h. Call it when all atoms are closed. */
void load_sizes(struct loading *l);
/* Returns the target of $ref or $dynamicRef. NULL: an error was set. */
struct jv *load_target(struct loading *l, struct jv *v, const char *keyword);

#endif
