/* Measures the time of each step over all runs, with the bytes that it must read and the operations that it must do. */
#include "base/alloc.h"
#include "exec/program_internal.h"

ane_status ane_program_profile(struct ane_program *p, bool on, struct ane_error *err) {
  ane_free(p->profile);
  p->profile = NULL;
  if (!on) return ANE_OK;
  p->profile = ane_calloc((size_t)p->n_steps + 1, sizeof *p->profile);
  if (!p->profile) return ane_fail(err, ANE_NOMEM, "no memory for the profile of %d steps", p->n_steps);
  for (int32_t i = 0; i < p->n_steps; i++) {
    p->profile[i].name = p->steps[i].name;
    p->profile[i].op = p->steps[i].op->name;
  }
  p->profile[p->n_steps].name = p->profile[p->n_steps].op = "argmax";
  return ANE_OK;
}

bool ane_program_profiled(const struct ane_program *p, int32_t i, struct ane_step_profile *out) {
  if (!p->profile || i < 0 || i > p->n_steps) return false;
  *out = p->profile[i];
  return true;
}

const char *ane_program_step_weight(const struct ane_program *p, int32_t i, int n) {
  const struct step *s = i < p->n_steps ? &p->steps[i] : NULL;
  return s && s->op == ane_op_info(ANE_OP_LINEAR) && n < s->linear.count ? s->linear.w[n]->name : NULL;
}

void profile_step(struct ane_program *p, int32_t i, double start, double now) {
  struct ane_step_profile *row = &p->profile[i];
  row->seconds += now - start;
  row->runs++;
}

void profile_matrix(const struct ane_packed *w, int64_t t, struct ane_step_profile *p) {
  p->bytes += (double)w->groups * ((double)w->group_bytes + (w->layout == ANE_LAYOUT_Q8_0_SPLIT ? 8 * (double)w->cols : 0));
  p->ops += 2.0 * (double)w->rows * (double)w->cols * (double)t;
}
