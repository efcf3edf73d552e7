/* Limits of the schemas that apply to one value. They are tested when a schema is compiled, so that a text does not fail later.
 */
#include "base/alloc.h"
#include "grammar/regex_internal.h"
#include "grammar/schema_load.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VISITS = 1 << 24 }; /* of all expressions together; what is beyond fails when a text reaches it */

struct sizes {
  struct schema *s;
  uint32_t *seen; /* [n_atoms] the number of the count in which the atom was met last */
  uint32_t count;
  uint32_t *atoms; /* of this count */
  uint32_t n, room;
  uint32_t visits;
  bool no_memory;
};

/* Collects the atoms of an expression that values of a type can make true or false. */
static void collect(struct sizes *z, expr_id e, uint8_t type) {
  if (e < 2 || z->no_memory || z->visits++ >= MAX_VISITS) return;
  const struct expr *x = &z->s->exprs[e];
  if (x->kind != EXPR_ATOM) {
    for (uint32_t i = 0; i < x->n; i++) collect(z, x->list[i], type);
    return;
  }
  const struct atom *a = &z->s->atoms[x->atom];
  if (!(a->possible & type) || a->bare & type || z->seen[x->atom] == z->count) return;
  z->seen[x->atom] = z->count;
  if (!re_grow((void **)&z->atoms, &z->room, z->n, sizeof *z->atoms))
    z->no_memory = true;
  else
    z->atoms[z->n++] = x->atom;
}

static int by_text(const void *x, const void *y) {
  const struct re_text *a = x, *b = y;
  return a->len != b->len ? (a->len > b->len) - (a->len < b->len) : memcmp(a->data, b->data, a->len);
}

/* Returns the number of different names in the collected atoms; if they have more than TYPED_MAX_NAMES names, duplicates
 * count. */
static uint64_t count_names(struct sizes *z) {
  uint64_t n = 0, different = 0;
  for (uint32_t i = 0; i < z->n; i++) {
    const struct atom *a = &z->s->atoms[z->atoms[i]];
    n += (uint64_t)a->n_properties + a->n_required;
  }
  if (n * (z->n + 1) <= TYPED_MAX_TABLE || n > TYPED_MAX_NAMES) return n;
  struct re_text *names = ane_malloc((size_t)n * sizeof *names);
  if (!names) return z->no_memory = true, 0;
  n = 0;
  for (uint32_t i = 0; i < z->n; i++) {
    const struct atom *a = &z->s->atoms[z->atoms[i]];
    for (uint32_t k = 0; k < a->n_properties; k++) names[n++] = (struct re_text){a->properties[k].name, a->properties[k].len};
    for (uint32_t k = 0; k < a->n_required; k++) names[n++] = a->required[k];
  }
  qsort(names, (size_t)n, sizeof *names, by_text);
  for (uint64_t i = 0; i < n; i++) different += i == 0 || by_text(&names[i - 1], &names[i]) != 0;
  ane_free(names);
  return different;
}

/* Returns the keyword that probably makes most of an expression: for messages. */
static const char *main_keyword(const struct jv *v) {
  static const char *const names[] = {"enum", "anyOf", "oneOf", "allOf", "dependentSchemas", "dependentRequired", "properties"};
  for (size_t i = 0; i < ANE_COUNT(names); i++)
    if (jv_get(v, names[i])) return names[i];
  return NULL;
}

/* Are the schemas that apply to a value of this type within the limits? exact: schemas that the type alone decides do not count.
 * A count that is too high is repeated with `exact` before it is an error. */
static bool fits(struct sizes *z, struct loading *l, const struct node *node, uint8_t type, bool exact) {
  z->n = 0;
  z->count++;
  collect(z, exact ? expr_for(z->s, node->e, type) : node->e, type);
  uint64_t names = type == T_OBJECT && z->n <= TYPED_MAX_ATOMS ? count_names(z) : 0;
  bool many = z->n > TYPED_MAX_ATOMS, large = names > TYPED_MAX_NAMES || names * (z->n + 1) > TYPED_MAX_TABLE;
  if (z->no_memory || (!many && !large)) return true;
  if (!exact) return fits(z, l, node, type, true);
  if (many)
    load_fail(l, ANE_RANGE, node->v, main_keyword(node->v), "%u schemas of %s apply to one value, the most is %d", (unsigned)z->n,
              type == T_OBJECT ? "objects" : "arrays", TYPED_MAX_ATOMS);
  else
    load_fail(l, ANE_RANGE, node->v, main_keyword(node->v), "%u schemas of objects with %llu names apply to one value, too many",
              (unsigned)z->n, (unsigned long long)names);
  return false;
}

void load_sizes(struct loading *l) {
  struct schema *s = l->s;
  struct sizes z = {.s = s, .seen = ane_calloc(s->n_atoms ? s->n_atoms : 1, sizeof *z.seen)};
  uint32_t n_exprs = s->n_exprs;
  bool *done = ane_calloc(n_exprs ? n_exprs : 1, sizeof *done);
  z.no_memory = !z.seen || !done;
  for (uint32_t i = 0; i < l->n_nodes && !z.no_memory && !s->pool.full; i++) {
    const struct node *node = &l->nodes[i];
    if (!node->done || node->e < 2 || done[node->e]) continue;
    done[node->e] = true;
    if (!fits(&z, l, node, T_OBJECT, false) || !fits(&z, l, node, T_ARRAY, false)) break;
  }
  if (z.no_memory && !l->status) l->status = ane_fail(l->err, ANE_NOMEM, "no memory for the schema");
  ane_free(z.seen);
  ane_free(z.atoms);
  ane_free(done);
}
