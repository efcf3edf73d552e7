/* embed: looks up rows of a table by id, token type or position, and decodes them from their stored dtype. gather: copies the
 * tokens that are output rows. */
#include "exec/adapter.h"
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include <inttypes.h>
#include <string.h>

static const int32_t *list_of(const struct run *r, const struct step *s) {
  return s->embed.list == EMBED_IDS ? r->ids : s->embed.list == EMBED_TYPES ? r->types : r->positions;
}

int64_t embed_row(const struct step *s, int32_t number) {
  return s->embed.rest && number >= s->embed.table->shape.dim[0] ? 0 : number;
}

static void run_embed(struct thread_ctx *tc, const struct step *s) {
  float *out = thread_data(tc, s->out[0]);
  const struct ane_tensor *t = s->embed.table;
  const int32_t *list = list_of(tc->r, s);
  int64_t c = s->out[0]->channels, from, to;
  size_t row = (size_t)(t->bytes / (uint64_t)t->shape.dim[0]);
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const int64_t at = embed_row(s, list[i]);
    if (t->gather)
      ane_gather_floats(t, at, out + i * c);
    else
      s->embed.decode((const uint8_t *)t->data + (size_t)at * row, out + i * c, (uint64_t)c);
  }
  if (tc->r->n_adapted) adapter_embed(tc, s, list, from, to, out);
}

ane_status embed_check(const struct ane_program *p, const int32_t *ids, int64_t n, struct ane_error *err) {
  for (int32_t i = 0; i < p->n_steps; i++) {
    const struct step *s = &p->steps[i];
    if (s->run != run_embed || s->embed.list != EMBED_IDS || s->embed.table->gather) continue;
    const struct ane_tensor *t = s->embed.table;
    const size_t row = (size_t)(t->bytes / (uint64_t)t->shape.dim[0]);
    for (int64_t j = 0; j < n; j++) {
      const int64_t at = embed_row(s, ids[j]);
      if (ane_find_not_finite(t->dtype, (const uint8_t *)t->data + (size_t)at * row, (uint64_t)t->shape.dim[1]) >= 0)
        return ane_fail(err, ANE_INVALID, "weight %s: row %" PRId64 " has an element that is not finite", s->embed.name, at);
    }
  }
  return ANE_OK;
}

static void run_gather(struct thread_ctx *tc, const struct step *s) {
  const float *x = thread_data(tc, s->in[0]);
  float *out = thread_data(tc, s->out[0]);
  int64_t c = s->out[0]->channels, from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++)
    memcpy(out + i * c, x + tc->r->out_rows[tc->first_out_row + i] * c, (size_t)c * sizeof *out);
}

/* Lowers *rows to the size of the smallest table that a list is looked up in; 0: none yet. */
static void limit(int64_t *rows, int64_t table) { *rows = *rows ? ANE_MIN(*rows, table) : table; }

/* The list that an embedding looks up. */
static int kind_of_list(const struct planner *pl, const struct ane_node *n) {
  const char *name = pl->g->values[n->inputs[0]].name;
  return strcmp(name, "types") == 0 ? EMBED_TYPES : strcmp(name, "positions") == 0 ? EMBED_POSITIONS : EMBED_IDS;
}

ane_status planner_limits(struct planner *pl, const struct ane_node *n, struct ane_error *err) {
  struct ane_program *p = pl->p;
  int list = kind_of_list(pl, n);
  int64_t rows = pl->g->values[n->inputs[1]].shape.dim[0];
  if (ane_node_int(n, "rest")) return ANE_OK;
  limit(list == EMBED_IDS ? &p->n_ids : list == EMBED_TYPES ? &p->n_types : &p->n_positions, rows);
  if (p->n_positions && p->o.context > p->n_positions)
    return ane_fail(err, ANE_RANGE, "context is %" PRId64 ", the model has embeddings for %" PRId64 " positions", p->o.context,
                    p->n_positions);
  return ANE_OK;
}

ane_status plan_embed(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  if (n->op == ANE_OP_GATHER) {
    s->run = run_gather;
    s->in[0] = planner_slot(pl, n->inputs[0]);
    return ANE_OK;
  }
  const struct ane_value *t = &pl->g->values[n->inputs[1]];
  if (!(s->embed.name = ane_arena_strndup(&pl->p->arena, t->name, strlen(t->name))))
    return ane_fail(err, ANE_NOMEM, "no memory for the program");
  s->embed.decode = ane_decoder(t->dtype);
  uint64_t row;
  if (t->kind != ANE_VALUE_CONST || t->data.transposed || !s->embed.decode ||
      !ane_dtype_bytes(t->dtype, (uint64_t)t->shape.dim[1], &row))
    return ane_fail(err, ANE_UNSUPPORTED, "table %s (%s) cannot be looked up", t->name, ane_dtype_info(t->dtype)->name);
  struct ane_tensor *table = ane_arena_alloc(&pl->p->arena, sizeof *table);
  if (!table) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  *table = t->data;
  s->embed.table = table;
  s->run = run_embed;
  s->embed.list = kind_of_list(pl, n);
  s->embed.rest = ane_node_int(n, "rest") != 0;
  return planner_limits(pl, n, err);
}
