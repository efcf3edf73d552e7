/* embed: rows of a table by id, decoded from where they are stored. gather: the tokens that are output rows. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include <string.h>

static void run_embed(struct thread_ctx *tc, const struct step *s) {
  float *out = thread_data(tc, s->out[0]);
  const struct ane_tensor *t = s->embed.table;
  int64_t c = s->out[0]->channels, from, to;
  size_t row = (size_t)(t->bytes / (uint64_t)t->shape.dim[0]);
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; t->gather && i < to; i++) ane_gather_floats(t, tc->r->ids[i], out + i * c);
  if (t->gather) return;
  for (int64_t i = from; i < to; i++)
    s->embed.decode((const uint8_t *)t->data + (size_t)tc->r->ids[i] * row, out + i * c, (uint64_t)c);
}

static void run_gather(struct thread_ctx *tc, const struct step *s) {
  const float *x = thread_data(tc, s->in[0]);
  float *out = thread_data(tc, s->out[0]);
  int64_t c = s->out[0]->channels, from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++)
    memcpy(out + i * c, x + tc->r->out_rows[tc->first_out_row + i] * c, (size_t)c * sizeof *out);
}

ane_status plan_embed(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  if (n->op == ANE_OP_GATHER) {
    s->run = run_gather;
    s->in[0] = planner_slot(pl, n->inputs[0]);
    return ANE_OK;
  }
  const struct ane_value *t = &pl->g->values[n->inputs[1]];
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
  pl->p->n_ids = t->shape.dim[0];
  return ANE_OK;
}
