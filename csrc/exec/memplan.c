/* Assigns offsets from liveness. Every activation gets a slot in one arena; two values share memory only if they are never alive
 * at the same time. A value is sized for the largest chunk, or for a block of output rows. The method is greedy by size: the
 * largest value first, each at the lowest offset that no value with an overlapping lifetime uses (Pisarchyk and Lee 2020,
 * "Efficient Memory Management for Deep Neural Net Inference"). */
#include "base/alloc.h"
#include "exec/planner.h"

#include <stdlib.h>
#include <string.h>

struct lifetime {
  int32_t value, first, last; /* first, last: indices of the nodes that make it and use it last */
  size_t size, offset;
};

/* Compares lifetimes for qsort: the largest first. */
static int by_size(const void *a, const void *b) {
  const struct lifetime *x = a, *y = b;
  if (x->size != y->size) return x->size < y->size ? 1 : -1;
  return x->value - y->value;
}

/* The last node that uses a value made by node `made`; n_nodes: the value is a result of the graph. */
static int32_t last_use(const struct ane_graph *g, int32_t value, int32_t made) {
  int32_t last = made;
  for (int32_t i = made + 1; i < g->n_nodes; i++)
    for (int32_t j = 0; j < g->nodes[i].n_inputs; j++)
      if (g->nodes[i].inputs[j] == value) last = i;
  for (int32_t i = 0; i < g->n_results; i++)
    if (g->results[i] == value) last = g->n_nodes;
  return last;
}

/* The first node of the tail; n_nodes: there is none. The tail runs after the whole body, once per block of output rows, so
 * memplan keeps the values that the tail makes or reads alive until the end. Those that it makes are alive from its first node
 * on. */
static int32_t tail_start(const struct ane_graph *g) {
  int32_t i = 0;
  while (i < g->n_nodes && g->values[g->nodes[i].outputs[0]].shape.dim[2] != ANE_DIM_OUT_ROWS) i++;
  return i;
}

/* Returns the lowest offset at which `l` overlaps no placed value with an overlapping lifetime. */
static size_t lowest_offset(const struct lifetime *placed, int32_t n, const struct lifetime *l) {
  size_t at = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (int32_t i = 0; i < n; i++) {
      const struct lifetime *o = &placed[i];
      bool together = o->first <= l->last && l->first <= o->last;
      if (together && at < o->offset + o->size && o->offset < at + l->size) {
        at = o->offset + o->size;
        moved = true;
      }
    }
  }
  return at;
}

ane_status memplan(struct planner *pl, size_t *bytes, struct ane_error *err) {
  const struct ane_graph *g = pl->g;
  struct ane_program *p = pl->p;
  struct lifetime *lives = ane_calloc((size_t)g->n_values + 1, sizeof *lives);
  if (!lives) return ane_fail(err, ANE_NOMEM, "no memory to plan %d values", g->n_values);
  int32_t n = 0, tail = tail_start(g);
  for (int32_t v = 0; v < g->n_values; v++) {
    const struct ane_value *val = &g->values[v];
    if (val->kind != ANE_VALUE_RESULT || val->node == ANE_NONE) continue;
    struct slot *slot = &p->slots[v];
    slot->channels = val->shape.dim[1];
    if (!(slot->name = ane_arena_strndup(&p->arena, val->name, strlen(val->name)))) {
      ane_free(lives);
      return ane_fail(err, ANE_NOMEM, "no memory for the program");
    }
    slot->tail = val->shape.dim[2] == ANE_DIM_OUT_ROWS;
    if (slot->result) continue;
    int64_t tokens = slot->tail ? ANE_MIN((int64_t)OUT_ROWS_BLOCK, p->o.chunk) : p->o.chunk;
    int32_t last = slot->tail ? g->n_nodes : last_use(g, v, val->node);
    if (last >= tail) last = g->n_nodes;
    lives[n++] = (struct lifetime){v, slot->tail ? ANE_MIN(tail, val->node) : val->node, last,
                                   ane_align_up((size_t)(slot->channels * tokens) * sizeof(float), 64), 0};
  }
  qsort(lives, (size_t)n, sizeof *lives, by_size);
  *bytes = 0;
  for (int32_t i = 0; i < n; i++) {
    lives[i].offset = lowest_offset(lives, i, &lives[i]);
    p->slots[lives[i].value].offset = lives[i].offset;
    *bytes = ANE_MAX(*bytes, lives[i].offset + lives[i].size);
  }
  ane_free(lives);
  return ANE_OK;
}
