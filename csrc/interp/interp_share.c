/* Packed weights that functions of one package share. A product packs its constant inputs only. If another function has the
 * same constants, at the same offsets of the same file, it uses the packed weights. */
#include "interp/interp_internal.h"

#include "base/alloc.h"
#include "base/hash64.h"

#include <string.h>

/* Constants of up to this many bytes are compared by content, larger ones by address. */
enum { BY_CONTENT = 256 };

struct interp_shared_state {
  struct ane_prim_state *state;
  struct ane_buffer key;
  uint64_t hash;                  /* of the key */
  const struct ane_interp *maker; /* the key points into its memory; NULL: it is gone, and no key matches the entry */
  int refs;
  struct interp_shared_state *next;
};

/* Lists by the hash of the key: a package may have as many products as operations. */
enum { LISTS = 4096 };
struct ane_interp_shared {
  struct interp_shared_state *lists[LISTS];
};

ane_status ane_interp_shared_create(struct ane_interp_shared **out, struct ane_error *err) {
  *out = ane_calloc(1, sizeof **out);
  return *out ? ANE_OK : interp_no_memory(err);
}

void ane_interp_shared_destroy(struct ane_interp_shared *s) { ane_free(s); }

/* ---- Keys ----------------------------------------------------------------------------------------------------------*/

static bool put(struct ane_buffer *b, const void *data, size_t size) { return size == 0 || ane_buffer_append(b, data, size); }

/* Returns the number of groups of scales of a coded constant. */
static int64_t groups_of(const struct ane_coded *w) {
  int64_t last = 0;
  for (int32_t k = 0; k < w->rank; k++) last += (w->dim[k] - 1) / w->block[k] * w->step[k];
  return last + 1;
}

static bool put_numbers(struct ane_buffer *b, const float *v, int64_t n) {
  struct ane_hash64 h = {0};
  uint64_t sum = 0;
  if (v) ane_hash64_add(&h, v, (size_t)n * sizeof *v), sum = ane_hash64_end(&h);
  return put(b, &(uint64_t){v != NULL}, sizeof(uint64_t)) && put(b, &sum, sizeof sum);
}

static bool put_coded(struct ane_buffer *b, const struct ane_coded *w) {
  int64_t groups = groups_of(w), fields[] = {w->bits, w->is_signed, w->round, w->rank, w->entries};
  size_t dims = (size_t)w->rank * sizeof w->dim[0];
  const void *codes = w->codes;
  return put(b, &codes, sizeof codes) && put(b, fields, sizeof fields) && put(b, w->dim, dims) && put(b, w->block, dims) &&
         put(b, w->step, dims) && put_numbers(b, w->scale, groups) && put_numbers(b, w->offset, groups) &&
         put_numbers(b, w->table, groups * w->entries);
}

static bool put_constant(struct ane_buffer *b, const struct ane_dyn *t) {
  int64_t head[] = {t != NULL, t ? (int64_t)t->dtype : 0, t ? t->rank : 0, t && t->coded != NULL};
  if (!put(b, head, sizeof head) || !t) return t == NULL;
  if (!put(b, t->dim, (size_t)t->rank * sizeof t->dim[0])) return false;
  if (t->coded) return put_coded(b, t->coded);
  const void *data = t->data;
  if (ane_dyn_bytes(t) <= BY_CONTENT) return put(b, data, (size_t)ane_dyn_bytes(t));
  return put(b, &data, sizeof data);
}

/* Returns whether each large constant has an address in the file. Folded ones do not, so they cannot be compared. */
static bool has_address(const struct ane_prim_call *c) {
  bool ok = true;
  for (int i = 0; i < c->n_in; i++) ok &= !c->in[i] || !c->in[i]->block || ane_dyn_bytes(c->in[i]) <= BY_CONTENT;
  return ok;
}

static bool make_key(const struct ane_prim_call *c, struct ane_buffer *key) {
  const void *kernels = c->kernels;
  int64_t head[] = {c->op, c->n_in};
  bool ok = put(key, &kernels, sizeof kernels) && put(key, head, sizeof head);
  for (int i = 0; ok && i < c->n_in; i++) ok = put_constant(key, c->in[i]);
  return ok;
}

/* ---- Sharing -------------------------------------------------------------------------------------------------------*/

static uint64_t hash_of(const struct ane_buffer *key) {
  struct ane_hash64 h = {0};
  ane_hash64_add(&h, key->data, key->size);
  return ane_hash64_end(&h);
}

static struct interp_shared_state *find(const struct ane_interp_shared *s, const struct ane_buffer *key, uint64_t hash) {
  for (struct interp_shared_state *e = s->lists[hash % LISTS]; e; e = e->next)
    if (e->maker && e->hash == hash && e->key.size == key->size && memcmp(e->key.data, key->data, key->size) == 0) return e;
  return NULL;
}

/* Keeps prepared weights for other functions, if no stored bytes are read in place. */
static ane_status keep(struct ane_interp *g, struct interp_node *n, struct ane_buffer *key, uint64_t hash,
                       struct ane_error *err) {
  if (!n->state || !ane_prim_state_packed(n->state)) return ANE_OK;
  struct interp_shared_state *e = ane_calloc(1, sizeof *e);
  if (!e) return interp_no_memory(err);
  struct interp_shared_state **list = &g->options.shared->lists[hash % LISTS];
  *e = (struct interp_shared_state){.state = n->state, .key = *key, .hash = hash, .maker = g, .refs = 1, .next = *list};
  *key = (struct ane_buffer){0};
  *list = e;
  n->shared = e;
  return ANE_OK;
}

/* The most bytes of packed weights, as a multiple of the bytes of the file. Beyond it they count against the budget: constants
 * that are not in the file are packed once for each node that reads them, so a small file could take any amount of memory. */
enum { MOST_TIMES = 16 };

static ane_status check_weights(const struct ane_interp *g, struct ane_error *err) {
  uint64_t bytes = g->info.weight_bytes, plain = g->options.file_bytes;
  if (bytes / MOST_TIMES <= plain) return ANE_OK;
  ane_status st = ane_dyn_budget_check(g->memory.budget, bytes - plain * MOST_TIMES, err);
  return st ? ane_fail_in(err, st, "packed weights") : ANE_OK;
}

static ane_status prepare(struct ane_interp *g, struct interp_node *n, struct ane_prim_call *c, struct ane_error *err) {
  ane_status st = ane_prim_prepare(c, &n->state);
  if (st) return st;
  g->info.weight_bytes += ane_prim_state_bytes(n->state);
  return check_weights(g, err);
}

ane_status interp_prepare(struct ane_interp *g, struct interp_node *n, struct ane_prim_call *c, struct ane_error *err) {
  if (!g->options.shared || !has_address(c)) return prepare(g, n, c, err);
  struct ane_buffer key = {0};
  ane_status st = make_key(c, &key) ? ANE_OK : interp_no_memory(err);
  uint64_t hash = st ? 0 : hash_of(&key);
  struct interp_shared_state *old = st ? NULL : find(g->options.shared, &key, hash);
  if (old) {
    old->refs++;
    n->state = old->state;
    n->shared = old;
  } else if (!st && !(st = prepare(g, n, c, err))) {
    st = keep(g, n, &key, hash, err);
  }
  ane_buffer_free(&key);
  return st;
}

void interp_give_up(struct ane_interp *g, struct interp_node *n) {
  struct interp_shared_state *e = n->shared;
  n->shared = NULL;
  if (!e) ane_prim_state_free(n->state);
  n->state = NULL;
  if (!e) return;
  if (e->maker == g) e->maker = NULL;
  if (--e->refs > 0) return;
  struct interp_shared_state **at = &g->options.shared->lists[e->hash % LISTS];
  while (*at != e) at = &(*at)->next;
  *at = e->next;
  ane_prim_state_free(e->state);
  ane_buffer_free(&e->key);
  ane_free(e);
}
