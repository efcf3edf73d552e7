/* Writes a shard of a model as one asset: each function is lowered as for a package, then translated. */
#include "mil/coreai.h"
#include "mil/coreai_export.h"
#include "mil/export_internal.h"

#include <string.h>

static struct ane_ai_type port_type(const struct ane_mil_port *p) {
  struct ane_mil_type type = ane_mil_tensor_type(p->dtype, p->rank, p->dim);
  return coreai_type(&type);
}

/* Declares the states of a function, each a store of its own. `stores` and s->states have room for them. */
static void declare_states(struct coreai_scope *s, const struct ane_mil_lowered *part, struct coreai_state *states,
                           struct coreai_store *stores) {
  for (uint32_t i = 0; i < part->n_states; i++) {
    const struct ane_mil_port *p = &part->states[i];
    stores[i].state = ane_ai_state(s->b, p->name, port_type(p));
    states[i] = (struct coreai_state){.name = p->name, .store = &stores[i]};
  }
  s->states = states;
  s->n_states = part->n_states;
}

void ane_coreai_options(struct ane_mil_options *o) {
  o->layout = ANE_MIL_CT1;
  o->norm = ANE_MIL_NORM_FP32;
}

ane_status ane_coreai_function(struct ane_arena *arena, const struct ane_mil_lowered *part, struct ane_ai_function *out,
                               struct ane_error *err) {
  const struct ane_mil_function *f = &part->model->program.functions[0];
  struct coreai_state *states = ane_arena_array(arena, (size_t)part->n_states + 1, sizeof *states);
  struct coreai_store *stores = ane_arena_array(arena, (size_t)part->n_states + 1, sizeof *stores);
  if (!states || !stores) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  struct ane_ai_build b;
  ane_ai_build_begin(&b, arena, f->name, err);
  struct coreai_scope s = coreai_scope_begin(&b, arena);
  for (uint32_t i = 0; i < part->n_inputs; i++)
    coreai_bind(&s, part->inputs[i].name, ane_ai_input(&b, part->inputs[i].name, port_type(&part->inputs[i])));
  declare_states(&s, part, states, stores);
  coreai_lower(&s, f);
  for (uint32_t i = 0; i < part->n_outputs && !b.status; i++)
    ane_ai_output(&b, part->outputs[i].name, coreai_value(&s, part->outputs[i].name));
  for (uint32_t i = 0; i < part->n_states && !b.status; i++) coreai_store_end(&b, &stores[i]);
  coreai_scope_free(&s);
  return ane_ai_build_end(&b, out);
}

/* Stores what lowering left in memory, and translates all functions. */
static ane_status translate_all(struct exporting *x, struct ane_mil_lowered *const *parts, uint32_t n,
                                struct ane_ai_program *out) {
  struct ane_ai_function *list = ane_arena_array(x->arena, (size_t)n + 1, sizeof *list);
  if (!list) return ane_fail(x->err, ANE_NOMEM, "no memory for the program");
  *out = (struct ane_ai_program){list, n};
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < n && !st; i++) {
    st = export_store_rest(x, parts[i]->model);
    if (!st) st = ane_coreai_function(x->arena, parts[i], &list[i], x->err);
    if (st) ane_fail_in(x->err, st, "function %s", parts[i]->model->program.functions[0].name);
  }
  return st;
}

ane_status ane_coreai_export_shard(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                                   const struct ane_mil_function_plan *functions, uint32_t n, const char *path,
                                   struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err) {
  struct exporting x = {.e = e, .coreai = true, .arena = arena, .err = err};
  struct ane_mil_options own = *o;
  struct ane_aimodel_writer *w;
  struct ane_ai_program program;
  if (o->fp32) return ane_fail(err, ANE_INVALID, "assets of Core AI compute in fp16");
  for (uint32_t i = 0; i < n; i++)
    if (functions[i].profile.fixed_t < 1)
      return ane_fail(err, ANE_INVALID, "function %s needs a fixed number of tokens, which Core AI requires", functions[i].name);
  ane_status st = coreai_begin(e, path, &w, &x.sink, err);
  if (st) return st;
  own.weight = export_provide;
  own.weight_arg = &x;
  own.ios18_weights = true;
  ane_coreai_options(&own);
  st = export_lower_functions(&x, shard, &own, functions, n, out);
  if (!st) st = translate_all(&x, out, n, &program);
  if (st)
    ane_aimodel_abandon(w);
  else
    st = ane_aimodel_commit(w, &program, err);
  export_free(&x);
  return st;
}
