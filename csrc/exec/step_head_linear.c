/* head_linear: multiplies each head by a matrix of its own, as latent attention does to derive keys and values. A task is one
 * head of some tokens; its input is prepared in the thread's own scratch. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

enum { BLOCK = 32 }; /* tokens of a task */

/* Multiplies tokens [from, from + n) of head h. */
static void multiply_head(const struct thread_ctx *tc, const struct step *s, int64_t h, int64_t from, int64_t n) {
  const struct matrix *w = s->head_linear.list[h];
  int64_t ld = s->in[0]->channels, c = ld / s->head_linear.heads, ld_out = s->out[0]->channels,
          rows = ld_out / s->head_linear.heads;
  const float *x = thread_data(tc, s->in[0]) + from * ld + h * c;
  struct ane_activations a = {.kind = ANE_ACTIVATION_F32, .t = n, .cols = c, .f32 = x, .ld = ld};
  if (w->activation_type != ANE_ACTIVATION_F32) {
    ane_activations_place(&a, w->activation_type, n, c, tc->mem + tc->p->thread_temp);
    a.precise = s->head_linear.precise;
    if (w->activation_type == ANE_ACTIVATION_I8)
      tc->k->quantise_i8(&a, x, ld, 0, n);
    else
      tc->k->convert_bf16(&a, x, ld, 0, n);
  }
  float *out = thread_data(tc, s->out[0]) + from * ld_out + h * rows;
  tc->k->matmul[w->packed.layout][w->activation_type](&w->packed, &a, 0, w->packed.groups, out, ld_out,
                                                      tc->mem + tc->p->thread_kernel);
}

static void run_head_linear(struct thread_ctx *tc, const struct step *s) {
  int64_t blocks = (tc->tokens + BLOCK - 1) / BLOCK;
  int stolen = 0;
  for (int64_t task; (task = thread_claim(tc, s, 0, blocks * s->head_linear.heads, &stolen)) >= 0;) {
    int64_t from = task / s->head_linear.heads * BLOCK;
    multiply_head(tc, s, task % s->head_linear.heads, from, ANE_MIN((int64_t)BLOCK, tc->tokens - from));
  }
}

static void head_linear_cost(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p) {
  for (int64_t h = 0; h < s->head_linear.heads; h++) profile_matrix(&s->head_linear.list[h]->packed, tc->tokens, p);
}

ane_status plan_head_linear(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  int64_t heads = n->n_inputs - 1, c;
  const struct matrix **list = ane_arena_array(&pl->p->arena, (size_t)heads, sizeof *list);
  if (!list) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  s->run = run_head_linear;
  s->cost = head_linear_cost;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->head_linear.heads = heads;
  s->head_linear.list = list;
  s->head_linear.precise = pl->precise[n->outputs[0]];
  c = s->in[0]->channels / heads;
  for (int64_t h = 0; h < heads; h++) {
    ane_status st = planner_matrix(pl, n->inputs[1 + h], NULL, &list[h], err);
    if (st) return st;
    if (list[h]->activation_type == ANE_ACTIVATION_F32) continue;
    size_t bytes = ane_activations_bytes(list[h]->activation_type, BLOCK, c);
    s->temp_floats = ANE_MAX(s->temp_floats, (int64_t)ane_div_up(bytes, sizeof(float)));
  }
  return ANE_OK;
}
