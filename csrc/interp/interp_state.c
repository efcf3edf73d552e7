/* States of Core ML functions, and casts of results to their declared types. */
#include "interp/interp_internal.h"

#include "base/alloc.h"
#include "tensor/half.h"

#include <string.h>

/* ---- Results -------------------------------------------------------------------------------------------------------*/

static ane_status cast_to(struct ane_interp *g, struct ane_dyn_memory *m, struct ane_dyn *t, ane_dtype to,
                          struct ane_error *err) {
  const char *name = ane_dtype_info(to)->name;
  struct ane_dyn text = {.dtype = ANE_U8,
                         .rank = 1,
                         .dim = {(int64_t)strlen(name)},
                         .count = (int64_t)strlen(name),
                         .data = name},
                 out = {0};
  const struct ane_dyn *in[2] = {t, &text};
  struct ane_prim_call c = {.op = ANE_PRIM_cast,
                            .in = in,
                            .n_in = 2,
                            .out = &out,
                            .n_out = 1,
                            .memory = m,
                            .kernels = g->kernels,
                            .pool = g->pool,
                            .err = err};
  ane_status st = ane_prim_run(&c);
  if (st) return ane_dyn_drop(m, &out), st;
  ane_dyn_drop(m, t);
  *t = out;
  return ANE_OK;
}

static bool fits(const struct ane_dyn *t, const struct ane_mil_type *type) {
  bool ok = t->rank == type->rank;
  for (int32_t i = 0; ok && i < t->rank; i++) ok = type->dim[i] == ANE_MIL_UNKNOWN || type->dim[i] == t->dim[i];
  return ok;
}

static void declared_text(const struct ane_mil_type *type, char out[ANE_DYN_TEXT]) {
  struct ane_dyn t = {.dtype = ane_mil_dtype_plain(type->dtype), .rank = type->rank};
  memcpy(t.dim, type->dim, sizeof t.dim);
  ane_dyn_text(&t, out);
}

/* Rounds in place. Copies the tensor first if it has other owners. */
static ane_status round_to_half(struct ane_dyn_memory *m, struct ane_dyn *t, struct ane_error *err) {
  struct ane_dyn to = *t;
  bool shared = !ane_dyn_alone(t);
  if (shared) {
    ane_status st = ane_dyn_alloc(m, &to, err);
    if (st) return st;
  }
  const float *x = t->data;
  float *y = ane_dyn_data(&to);
  for (int64_t i = 0; i < t->count; i++) y[i] = ane_f16_f32(ane_f32_f16(x[i]));
  if (shared) {
    ane_dyn_drop(m, t);
    *t = to;
  }
  return ANE_OK;
}

ane_status interp_settle(struct ane_interp *g, const struct interp_node *n, int32_t k, struct ane_dyn_memory *m,
                         struct ane_dyn *t, struct ane_error *err) {
  const struct interp_result *r = n->results ? &n->results[k] : NULL;
  char got[ANE_DYN_TEXT], want[ANE_DYN_TEXT];
  if (!r) return ANE_OK;
  bool floats = t->dtype == ANE_F32 || t->dtype == ANE_F16 || t->dtype == ANE_F64 || t->dtype == ANE_BF16;
  if (!fits(t, r->type) || floats != (r->dtype == ANE_F32)) {
    declared_text(r->type, want);
    return ane_fail(err, ANE_SHAPE, "the result is %s, but is declared as %s", ane_dyn_text(t, got), want);
  }
  if (t->dtype != r->dtype) {
    ane_status st = cast_to(g, m, t, r->dtype, err);
    if (st) return st;
  }
  return r->round && !t->coded ? round_to_half(m, t, err) : ANE_OK;
}

ane_status interp_solid(const struct ane_dyn *t, struct ane_dyn_memory *m, struct ane_dyn *out, struct ane_error *err) {
  *out = *t;
  if (!t->coded && t->block) return ane_dyn_keep(t), ANE_OK;
  out->coded = NULL;
  ane_status st = ane_dyn_alloc(m, out, err);
  if (st) return *out = (struct ane_dyn){0}, st;
  if (t->coded)
    ane_coded_read(t->coded, 0, t->count, ane_dyn_data(out));
  else if (t->count)
    memcpy(ane_dyn_data(out), t->data, (size_t)ane_dyn_bytes(t));
  return ANE_OK;
}

/* ---- States --------------------------------------------------------------------------------------------------------*/

int32_t interp_state_find(const struct ane_interp_states *s, const char *name) {
  /* analyser: the states are given, or new_states() did not return ANE_OK. */
  for (int32_t i = 0; i < s->n; i++)
    if (strcmp(s->list[i].name, name) == 0) return i;
  return -1;
}

bool interp_same_shape(const struct ane_dyn *t, const struct ane_mil_type *type) {
  return t->rank == type->rank && memcmp(t->dim, type->dim, (size_t)t->rank * sizeof *t->dim) == 0;
}

/* Adds a state of zeros. */
static ane_status add_zeros(struct ane_interp_states *s, const char *name, const struct ane_dyn *shape, struct ane_error *err) {
  struct ane_dyn d = {.dtype = ANE_F32, .rank = shape->rank};
  memcpy(d.dim, shape->dim, sizeof d.dim);
  /* analyser: as above. */
  ane_status st = ane_dyn_alloc(s->memory, &d, err);
  if (st) return ane_fail_in(err, st, "state %.100s", name);
  memset(ane_dyn_data(&d), 0, (size_t)ane_dyn_bytes(&d));
  s->list[s->n++] = (struct interp_state){name, d};
  return ANE_OK;
}

/* Adds a state. skip: a state that the set already has with another shape is left out, and is not an error. */
static ane_status add_state(struct ane_interp_states *s, const struct ane_mil_named_type *t, bool skip, struct ane_error *err) {
  struct ane_dyn d = {.rank = t->type.rank};
  int32_t at = interp_state_find(s, t->name);
  memcpy(d.dim, t->type.dim, sizeof d.dim);
  if (t->type.dtype != ANE_MIL_FP16 && t->type.dtype != ANE_MIL_FP32)
    return ane_fail(err, ANE_UNSUPPORTED, "state %.100s is of type %s", t->name, ane_mil_dtype_name(t->type.dtype));
  for (int32_t i = 0; i < d.rank; i++)
    if (d.dim[i] < 1) return ane_fail(err, ANE_UNSUPPORTED, "state %.100s is of unknown shape", t->name);
  if (at < 0) return add_zeros(s, t->name, &d, err);
  return skip || interp_same_shape(&s->list[at].t, &t->type)
             ? ANE_OK
             : ane_fail(err, ANE_SHAPE, "state %.100s has another shape in each of several functions: name the function",
                        t->name);
}

static ane_status add_states_of(struct ane_interp_states *s, const struct ane_mil_function *f, bool skip, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; !st && i < f->n_inputs; i++)
    if (f->inputs[i].type.kind == ANE_MIL_STATE) st = add_state(s, &f->inputs[i], skip, err);
  return st;
}

static ane_status new_states(struct ane_interp_states **out, size_t room, struct ane_dyn_memory *memory, struct ane_error *err) {
  struct ane_interp_states *s = ane_calloc(1, sizeof *s);
  *out = NULL;
  if (s) s->list = ane_calloc(room + 1, sizeof *s->list);
  if (!s || !s->list) return ane_free(s), interp_no_memory(err);
  s->memory = memory;
  *out = s;
  return ANE_OK;
}

ane_status ane_interp_states_create(struct ane_interp_states **out, const struct ane_mil_model *m, const char *function,
                                    struct ane_dyn_memory *memory, struct ane_error *err) {
  const struct ane_mil_program *p = &m->program;
  size_t room = 0;
  for (uint32_t f = 0; f < p->n_functions; f++) room += p->functions[f].n_inputs;
  ane_status st = new_states(out, room, memory, err);
  for (uint32_t f = 0; !st && function && f < p->n_functions; f++)
    if (strcmp(p->functions[f].name, function) == 0) st = add_states_of(*out, &p->functions[f], true, err);
  for (uint32_t f = 0; !st && f < p->n_functions; f++) st = add_states_of(*out, &p->functions[f], function != NULL, err);
  if (st) ane_interp_states_destroy(*out), *out = NULL;
  return st;
}

void ane_interp_states_destroy(struct ane_interp_states *s) {
  if (!s) return;
  for (int32_t i = 0; i < s->n; i++) ane_dyn_drop(s->memory, &s->list[i].t);
  ane_free(s->list);
  ane_free(s);
}

int32_t ane_interp_states_count(const struct ane_interp_states *s) { return s->n; }
const char *ane_interp_states_name(const struct ane_interp_states *s, int32_t i) { return s->list[i].name; }
const struct ane_dyn *ane_interp_states_tensor(const struct ane_interp_states *s, int32_t i) { return &s->list[i].t; }

float *ane_interp_states_data(struct ane_interp_states *s, int32_t i, struct ane_error *err) {
  struct ane_dyn *t = &s->list[i].t;
  if (!ane_dyn_alone(t)) { /* an output of the last run may be a view of it */
    struct ane_dyn own = *t;
    if (ane_dyn_alloc(s->memory, &own, err)) return NULL;
    memcpy(ane_dyn_data(&own), t->data, (size_t)ane_dyn_bytes(t));
    ane_dyn_drop(s->memory, t);
    *t = own;
  }
  return ane_dyn_data(t);
}

ane_status ane_interp_states_reset(struct ane_interp_states *s, struct ane_error *err) {
  for (int32_t i = 0; i < s->n; i++) {
    float *p = ane_interp_states_data(s, i, err);
    if (!p) return ANE_NOMEM;
    memset(p, 0, (size_t)ane_dyn_bytes(&s->list[i].t));
  }
  s->spoiled = false;
  return ANE_OK;
}

ane_status ane_interp_states_copy(struct ane_interp_states **out, const struct ane_interp_states *from,
                                  struct ane_dyn_memory *memory, struct ane_error *err) {
  ane_status st = new_states(out, (size_t)from->n, memory, err);
  for (int32_t i = 0; !st && i < from->n; i++) {
    st = add_zeros(*out, from->list[i].name, &from->list[i].t, err);
    if (!st) memcpy(ane_dyn_data(&(*out)->list[i].t), from->list[i].t.data, (size_t)ane_dyn_bytes(&from->list[i].t));
  }
  if (!st) /* analyser: as above. */
    (*out)->spoiled = from->spoiled;
  else
    ane_interp_states_destroy(*out), *out = NULL;
  return st;
}
