/* What the files that read schemas share. */
#ifndef ANE_GRAMMAR_SCHEMA_LOAD_H
#define ANE_GRAMMAR_SCHEMA_LOAD_H

#include "grammar/schema.h"

/* One schema object on its way. */
struct node {
  struct jv *v;
  bool open; /* being made: a reference back to it is a circle */
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

/* Sets the error "keyword at #/path: ..." and gives EXPR_FALSE; the first one counts. */
expr_id load_fail(struct loading *l, ane_status status, const struct jv *at, const char *keyword, const char *fmt, ...)
    ANE_PRINTF(5, 6);
/* The expression of a schema. */
expr_id load_node(struct loading *l, struct jv *v);
/* An atom that any value fulfils; NULL: no memory. *number is its number. It is good until the next one is made. */
struct atom *load_atom(struct loading *l, uint32_t *number);
/* Allocation in the schema's arena; NULL: no memory, and the error is set. */
void *load_alloc(struct loading *l, size_t n, size_t size);
/* "has this member": objects only. */
expr_id load_has(struct loading *l, const char *name, size_t len);
/* unevaluatedProperties and unevaluatedItems of an object. */
expr_id load_unevaluated(struct loading *l, struct jv *v);
/* The target of $ref or $dynamicRef. NULL: an error was set. */
struct jv *load_target(struct loading *l, struct jv *v, const char *keyword);

#endif
