/* Unpacks what a model holds besides its program: the description of inputs, outputs and states, the metadata, and the file as a
 * whole. */
#include "formats/mil/mil_internal.h"

#include "formats/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static ane_status feature_fail(struct mil_unpack *u, ane_status st, const char *what, const char *name) {
  char q[ANE_QUOTE_TEXT];
  const char *s = name ? name : "";
  return st ? ane_fail_in(u->err, st, "%s %s", what, ane_quote(q, s, strlen(s))) : ANE_OK;
}

/* ---- Features ------------------------------------------------------------------------------------------------------*/

static bool dtype_of(int32_t number, ane_mil_dtype *out) {
  switch (number) {
#define FEATURE_CASE(id, dtype)                                                                                                  \
  case id: return *out = dtype, true;
    MIL_FEATURE_DTYPES(FEATURE_CASE)
#undef FEATURE_CASE
    default: return false;
  }
}

static ane_status unpack_dims(struct mil_unpack *u, const int64_t *dim, size_t n, struct ane_mil_dims *out) {
  uint64_t count;
  if (n > ANE_MIL_RANK) return ane_fail(u->err, ANE_UNSUPPORTED, "a shape of rank %zu, at most %d is supported", n, ANE_MIL_RANK);
  out->rank = (int32_t)n;
  for (size_t i = 0; i < n; i++) {
    if (dim[i] < 0) return ane_fail(u->err, ANE_FORMAT, "dimension %zu must be 0 or more, but is %" PRId64, i + 1, dim[i]);
    out->dim[i] = dim[i];
  }
  return mil_count(out->rank, out->dim, &count) ? ANE_OK
                                                : ane_fail(u->err, ANE_FORMAT, "a shape of more elements than any file holds");
}

static ane_status unpack_enumerated(struct mil_unpack *u, const AneMl__EnumeratedShapes *e, struct ane_mil_feature *out) {
  struct ane_mil_dims *shapes = mil_array(u->arena, e->n_shapes, sizeof *shapes);
  bool found = false;
  if (!shapes || e->n_shapes > UINT32_MAX) return mil_no_memory(u->err);
  for (size_t i = 0; i < e->n_shapes; i++) {
    ane_status st = unpack_dims(u, e->shapes[i]->shape, e->shapes[i]->n_shape, &shapes[i]);
    if (st) return st;
    if (shapes[i].rank != out->shape.rank)
      return ane_fail(u->err, ANE_FORMAT, "enumerated shape %zu has another rank than the default", i + 1);
    found = found || memcmp(shapes[i].dim, out->shape.dim, sizeof shapes[i].dim) == 0;
  }
  if (!found) return ane_fail(u->err, ANE_FORMAT, "the default shape is not among the enumerated ones");
  out->flexibility = ANE_MIL_ENUMERATED;
  out->shapes = shapes;
  out->n_shapes = (uint32_t)e->n_shapes;
  return ANE_OK;
}

static ane_status unpack_range(struct mil_unpack *u, const AneMl__ShapeRange *r, struct ane_mil_feature *out) {
  if (r->n_sizeranges != (size_t)out->shape.rank)
    return ane_fail(u->err, ANE_FORMAT, "has %zu size ranges, its shape %" PRId32 " dimensions", r->n_sizeranges,
                    out->shape.rank);
  for (int32_t i = 0; i < out->shape.rank; i++) {
    const AneMl__SizeRange *s = r->sizeranges[i];
    if (s->lowerbound > INT64_MAX)
      return ane_fail(u->err, ANE_FORMAT, "size range %" PRId32 " begins at %" PRIu64, i + 1, s->lowerbound);
    int64_t low = (int64_t)s->lowerbound, high = s->upperbound < 0 ? ANE_MIL_UNKNOWN : s->upperbound;
    if (out->shape.dim[i] < low || (high >= 0 && out->shape.dim[i] > high))
      return ane_fail(u->err, ANE_FORMAT, "the default %" PRId64 " of dimension %" PRId32 " is not in %" PRId64 " .. %" PRId64,
                      out->shape.dim[i], i + 1, low, high);
    out->low[i] = low;
    out->high[i] = high;
  }
  out->flexibility = ANE_MIL_RANGE;
  return ANE_OK;
}

static ane_status unpack_array(struct mil_unpack *u, const AneMl__ArrayFeatureType *a, struct ane_mil_feature *out) {
  if (!a) return ane_fail(u->err, ANE_FORMAT, "is a state without an array");
  if (!dtype_of(a->datatype, &out->dtype))
    return ane_fail(u->err, ANE_FORMAT, "array data type %" PRId32 " does not exist", a->datatype);
  if (a->enumeratedshapes && a->shaperange) return ane_fail(u->err, ANE_FORMAT, "has both enumerated shapes and ranges");
  ane_status st = unpack_dims(u, a->shape, a->n_shape, &out->shape);
  if (!st && a->enumeratedshapes) st = unpack_enumerated(u, a->enumeratedshapes, out);
  if (!st && a->shaperange) st = unpack_range(u, a->shaperange, out);
  if (a->has_intdefaultvalue)
    out->default_kind = 'i', out->default_value = a->intdefaultvalue;
  else if (a->has_floatdefaultvalue)
    out->default_kind = 'f', out->default_value = (double)a->floatdefaultvalue;
  else if (a->has_doubledefaultvalue)
    out->default_kind = 'd', out->default_value = a->doubledefaultvalue;
  return st;
}

static ane_status unpack_feature(struct mil_unpack *u, const AneMl__FeatureDescription *f, bool state,
                                 struct ane_mil_feature *out) {
  const AneMl__FeatureType *t = f->type;
  if (!f->name || !*f->name) return ane_fail(u->err, ANE_FORMAT, "has no name");
  ane_status st = mil_copy(u, f->name, &out->name);
  if (!st) st = mil_copy(u, f->shortdescription, &out->description);
  if (st) return st;
  int kinds = !t ? 0
                 : !!t->int64type + !!t->doubletype + !!t->stringtype + !!t->imagetype + !!t->multiarraytype +
                       !!t->dictionarytype + !!t->sequencetype + !!t->statetype;
  if (kinds != 1) return ane_fail(u->err, ANE_FORMAT, kinds ? "has more than one type" : "has no type");
  if (state != !!t->statetype) return ane_fail(u->err, ANE_FORMAT, state ? "is not a state" : "must be an array, but is a state");
  out->optional = t->isoptional;
  out->kind = state ? ANE_MIL_ARRAY_STATE : ANE_MIL_ARRAY;
  if (state) return unpack_array(u, t->statetype->arraytype, out);
  if (t->multiarraytype) return unpack_array(u, t->multiarraytype, out);
  out->kind = ANE_MIL_OTHER;
  out->other = t->int64type        ? "int64"
               : t->doubletype     ? "double"
               : t->stringtype     ? "string"
               : t->imagetype      ? "image"
               : t->dictionarytype ? "dictionary"
                                   : "sequence";
  return ANE_OK;
}

static ane_status unpack_features(struct mil_unpack *u, AneMl__FeatureDescription *const *list, size_t n, const char *what,
                                  const struct ane_mil_feature **out, uint32_t *n_out) {
  struct ane_mil_feature *rows = mil_array(u->arena, n, sizeof *rows);
  if (!rows || n > UINT32_MAX) return mil_no_memory(u->err);
  for (size_t i = 0; i < n; i++) {
    ane_status st = feature_fail(u, unpack_feature(u, list[i], *what == 's', &rows[i]), what, list[i]->name);
    if (st) return st;
  }
  *out = rows;
  *n_out = (uint32_t)n;
  return ANE_OK;
}

/* ---- Description ---------------------------------------------------------------------------------------------------*/

static ane_status unpack_single(struct mil_unpack *u, const AneMl__ModelDescription *d, struct ane_mil_interface *out) {
  out->name = "main";
  ane_status st = unpack_features(u, d->input, d->n_input, "input", &out->inputs, &out->n_inputs);
  if (!st) st = unpack_features(u, d->output, d->n_output, "output", &out->outputs, &out->n_outputs);
  if (!st) st = unpack_features(u, d->state, d->n_state, "state", &out->states, &out->n_states);
  if (!st) st = mil_copy(u, d->predictedfeaturename, &out->predicted);
  return st ? st : mil_copy(u, d->predictedprobabilitiesname, &out->probabilities);
}

static ane_status unpack_interface(struct mil_unpack *u, const AneMl__FunctionDescription *d, struct ane_mil_interface *out) {
  if (!d->name || !*d->name) return ane_fail(u->err, ANE_FORMAT, "has no name");
  ane_status st = mil_copy(u, d->name, &out->name);
  if (!st) st = unpack_features(u, d->input, d->n_input, "input", &out->inputs, &out->n_inputs);
  if (!st) st = unpack_features(u, d->output, d->n_output, "output", &out->outputs, &out->n_outputs);
  if (!st) st = unpack_features(u, d->state, d->n_state, "state", &out->states, &out->n_states);
  if (!st) st = mil_copy(u, d->predictedfeaturename, &out->predicted);
  return st ? st : mil_copy(u, d->predictedprobabilitiesname, &out->probabilities);
}

static int by_text_key(const void *a, const void *b) {
  return strcmp(((const struct ane_mil_text *)a)->key, ((const struct ane_mil_text *)b)->key);
}

static ane_status unpack_metadata(struct mil_unpack *u, const AneMl__Metadata *d, struct ane_mil_metadata *out) {
  *out = (struct ane_mil_metadata){"", "", "", "", NULL, 0};
  if (!d) return ANE_OK;
  struct ane_mil_text *user = mil_array(u->arena, d->n_userdefined, sizeof *user);
  if (!user || d->n_userdefined > UINT32_MAX) return mil_no_memory(u->err);
  ane_status st = mil_copy(u, d->shortdescription, &out->description);
  if (!st) st = mil_copy(u, d->versionstring, &out->version);
  if (!st) st = mil_copy(u, d->author, &out->author);
  if (!st) st = mil_copy(u, d->license, &out->license);
  for (size_t i = 0; !st && i < d->n_userdefined; i++) {
    st = mil_copy(u, d->userdefined[i]->key, &user[i].key);
    if (!st) st = mil_copy(u, d->userdefined[i]->value, &user[i].value);
  }
  if (st) return st;
  if (d->n_userdefined > 1) qsort(user, d->n_userdefined, sizeof *user, by_text_key);
  char q[ANE_QUOTE_TEXT];
  for (size_t i = 1; i < d->n_userdefined; i++)
    if (strcmp(user[i - 1].key, user[i].key) == 0)
      return ane_fail(u->err, ANE_FORMAT, "metadata key %s comes twice", ane_quote(q, user[i].key, strlen(user[i].key)));
  out->user = user;
  out->n_user = (uint32_t)d->n_userdefined;
  return ANE_OK;
}

static ane_status unpack_description(struct mil_unpack *u, const AneMl__ModelDescription *d, struct ane_mil_model *out) {
  if (!d) return ane_fail(u->err, ANE_FORMAT, "the model has no description");
  out->multi = d->n_functions > 0;
  size_t n = out->multi ? d->n_functions : 1;
  struct ane_mil_interface *rows = mil_array(u->arena, n, sizeof *rows);
  if (!rows || n > UINT32_MAX) return mil_no_memory(u->err);
  if (out->multi && d->n_input + d->n_output + d->n_state > 0)
    return ane_fail(u->err, ANE_FORMAT, "the model is described both as a whole and by functions");
  ane_status st = out->multi ? ANE_OK : unpack_single(u, d, rows);
  for (size_t i = 0; !st && out->multi && i < n; i++)
    st = feature_fail(u, unpack_interface(u, d->functions[i], &rows[i]), "description of function", d->functions[i]->name);
  out->interfaces = rows;
  out->n_interfaces = (uint32_t)n;
  out->default_function = "main";
  if (!st && d->defaultfunctionname && *d->defaultfunctionname) st = mil_copy(u, d->defaultfunctionname, &out->default_function);
  return st ? st : unpack_metadata(u, d->metadata, &out->metadata);
}

/* ---- Model ---------------------------------------------------------------------------------------------------------*/

static ane_status unpack_model(struct mil_unpack *u, const AneMl__Model *m, struct ane_mil_model *out) {
  if (!m->mlprogram) {
    const char *what = m->neuralnetwork || m->neuralnetworkclassifier || m->neuralnetworkregressor
                           ? "a neural network of the older kind"
                       : m->pipeline || m->pipelineclassifier || m->pipelineregressor ? "a pipeline of models"
                                                                                      : "a model of another kind";
    return ane_fail(u->err, ANE_UNSUPPORTED, "must be an ML Program, but is %s", what);
  }
  out->version = m->specificationversion;
  if (out->version < ANE_MIL_MIN_VERSION || out->version > ANE_MIL_MAX_VERSION)
    return ane_fail(u->err, ANE_UNSUPPORTED, "specification version %" PRId32 ", known are %d .. %d", out->version,
                    ANE_MIL_MIN_VERSION, ANE_MIL_MAX_VERSION);
  if (m->isupdatable) return ane_fail(u->err, ANE_UNSUPPORTED, "is made to be trained on the device, which is not supported");
  ane_status st = unpack_description(u, m->description, out);
  if (!st) st = mil_unpack_program(u, m->mlprogram, &out->program);
  return st ? st : ane_mil_verify(out, u->err);
}

/* Weights are in other files, so model files are small. A large one is damaged, and its messages would take many times its size
 * in memory. */
enum { MAX_BYTES = 128 << 20 };

ane_status ane_mil_unpack(struct ane_arena *arena, const uint8_t *data, size_t size, struct ane_mil_model **out,
                          struct ane_error *err) {
  struct mil_unpack u = {arena, data, err};
  ProtobufCMessage *m;
  *out = NULL;
  if (size > MAX_BYTES)
    return ane_fail(err, ANE_UNSUPPORTED, "is larger than %d MiB, which no model without weights should be", MAX_BYTES >> 20);
  struct ane_mil_model *model = mil_array(arena, 1, sizeof *model);
  if (!model) return mil_no_memory(err);
  ane_status st = ane_wire_unpack(&ane_ml__model__descriptor, data, size, &m, err);
  if (st) return st;
  st = unpack_model(&u, (const AneMl__Model *)m, model);
  protobuf_c_message_free_unpacked(m, &ane_wire_allocator);
  if (!st) *out = model;
  return st;
}
