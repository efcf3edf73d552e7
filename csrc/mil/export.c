/* Writes shards as packages, with one function or several. */
#include "mil/export_internal.h"

#include "mil/partition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Do the matrices of the shard need operations of iOS 18? */
static bool needs_ios18(const struct ane_mil_export *e, const struct ane_shard *p) {
  for (int32_t i = 0; i < p->n_consts; i++) {
    if (e->graph->values[p->consts[i]].shape.rank != 2) continue;
    struct ane_weight_spec s = export_spec_of(e, p->consts[i]);
    if (ane_weight_has_blocks(s) || (s.scheme == ANE_WEIGHT_LUT && (s.size || s.bits == 3))) return true;
  }
  return false;
}

/* ---- Functions ---------------------------------------------------------------------------------------------------------*/

bool ane_mil_reads_keys(const struct ane_graph *g, const struct ane_shard *shard) {
  for (int32_t i = 0; i < shard->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[shard->nodes[i]];
    if (n->op == ANE_OP_ATTENTION && ane_shard_has_state(shard, n->inputs[3])) return true;
  }
  return false;
}

static bool same_profile(const struct ane_mil_profile *a, const struct ane_mil_profile *b, bool any_context) {
  bool same_t = a->fixed_t > 0 || b->fixed_t > 0 ? a->fixed_t == b->fixed_t : a->max_t == b->max_t;
  return same_t && (any_context || a->context == b->context);
}

static const char *function_name(struct ane_arena *arena, const struct ane_mil_profile *p, bool with_context) {
  char text[96];
  int len = p->fixed_t > 0 ? snprintf(text, sizeof text, "t%" PRId64, p->fixed_t)
                           : snprintf(text, sizeof text, "t1_%" PRId64, p->max_t);
  if (with_context) len += snprintf(text + len, sizeof text - (size_t)len, "_c%" PRId64, p->context);
  return ane_arena_strndup(arena, text, (size_t)len);
}

ane_status ane_mil_plan_functions(struct ane_arena *arena, const struct ane_graph *g, const struct ane_shard *shard,
                                  const struct ane_mil_profile *profiles, uint32_t n, struct ane_mil_function_plan **out,
                                  uint32_t *n_out, struct ane_error *err) {
  struct ane_mil_function_plan *list = ane_arena_array(arena, (size_t)n + 1, sizeof *list);
  bool keys = ane_mil_reads_keys(g, shard), several = false;
  uint32_t count = 0;
  *out = NULL;
  *n_out = 0;
  if (!list) return ane_fail(err, ANE_NOMEM, "no memory for the functions");
  for (uint32_t i = 1; i < n; i++) several |= profiles[i].context != profiles[0].context;
  for (uint32_t i = 0; i < n; i++) {
    bool old = false;
    for (uint32_t j = 0; j < i; j++)
      if (same_profile(&profiles[j], &profiles[i], false))
        return ane_fail(err, ANE_INVALID, "two functions have the same T and context");
    for (uint32_t j = 0; j < count; j++) old |= same_profile(&list[j].profile, &profiles[i], !keys);
    if (old) continue;
    list[count] = (struct ane_mil_function_plan){function_name(arena, &profiles[i], keys && several), profiles[i], !keys};
    if (!list[count++].name) return ane_fail(err, ANE_NOMEM, "no memory for the functions");
  }
  *out = list;
  *n_out = count;
  return ANE_OK;
}

/* ---- Packages ----------------------------------------------------------------------------------------------------------*/

static ane_status begin_record(void *to, const struct ane_mil_type *type, uint64_t count, uint64_t *offset,
                               struct ane_error *err) {
  return ane_mlpackage_blob(to, type->dtype, count, offset, err);
}

static ane_status add_data(void *to, const void *data, uint64_t bytes, struct ane_error *err) {
  return ane_mlpackage_data(to, data, bytes, err);
}

static ane_status begin_package(struct exporting *x, const char *path) {
  x->sink = (struct export_sink){.begin = begin_record, .data = add_data};
  struct ane_mlpackage_writer *w;
  ane_status st = ane_mlpackage_create(&w, path, x->err);
  x->sink.to = w;
  return st;
}

static struct ane_mil_options own_options(struct exporting *x, const struct ane_shard *shard, const struct ane_mil_options *o) {
  struct ane_mil_options own = *o;
  own.weight = export_provide;
  own.weight_arg = x;
  own.ios18_weights = needs_ios18(x->e, shard);
  return own;
}

/* Finishes the package of a model whose matrices are in the file. */
static ane_status finish(struct exporting *x, const struct ane_mil_model *m, ane_status st) {
  if (!st) st = export_store_rest(x, m);
  if (st)
    ane_mlpackage_abandon(x->sink.to);
  else
    st = ane_mlpackage_commit(x->sink.to, m, x->err);
  export_free(x);
  return st;
}

ane_status ane_mil_export(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                          const char *path, struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err) {
  struct exporting x = {.e = e, .arena = arena, .err = err};
  *out = NULL;
  ane_status st = begin_package(&x, path);
  if (st) return st;
  struct ane_mil_options own = own_options(&x, shard, o);
  struct ane_mil_lowered *lowered = NULL;
  st = ane_mil_lower(arena, e->graph, shard, &own, &lowered, err);
  st = finish(&x, st ? NULL : lowered->model, st);
  if (!st) *out = lowered;
  return st;
}

ane_status export_lower_functions(struct exporting *x, const struct ane_shard *shard, const struct ane_mil_options *o,
                                  const struct ane_mil_function_plan *functions, uint32_t n, struct ane_mil_lowered **out) {
  struct ane_mil_options own = *o;
  ane_status st = ANE_OK;
  own.several = true;
  for (uint32_t i = 0; i < n; i++) own.held = ANE_MAX(own.held, functions[i].profile.context);
  for (uint32_t i = 0; i < n && !st; i++) {
    own.function = functions[i].name;
    own.context = functions[i].profile.context;
    own.fixed_t = functions[i].profile.fixed_t;
    own.max_t = functions[i].profile.max_t;
    st = ane_mil_lower(x->arena, x->e->graph, shard, &own, &out[i], x->err);
    if (st) ane_fail_in(x->err, st, "function %s", functions[i].name);
  }
  return st;
}

ane_status ane_mil_export_functions(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                                    const struct ane_mil_function_plan *functions, uint32_t n, const char *path,
                                    struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err) {
  struct exporting x = {.e = e, .arena = arena, .err = err};
  ane_status st = begin_package(&x, path);
  if (st) return st;
  struct ane_mil_options own = own_options(&x, shard, o);
  struct ane_mil_model *m = NULL;
  st = export_lower_functions(&x, shard, &own, functions, n, out);
  if (!st) st = ane_mil_join(arena, out, n, &m, err);
  return finish(&x, m, st);
}
