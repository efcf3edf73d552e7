/* The description of a model into protobuf messages. */
#include "formats/mil/mil_internal.h"

#include <stdlib.h>
#include <string.h>

MIL_BY_KEY(TextEntry)

/* ---- Features ------------------------------------------------------------------------------------------------------*/

static int32_t feature_dtype(struct mil_pack *p, const struct ane_mil_feature *f) {
#define FEATURE_NUMBER(id, type)                                                                                                 \
  if (f->dtype == (type)) return id;
  MIL_FEATURE_DTYPES(FEATURE_NUMBER)
#undef FEATURE_NUMBER
  mil_pack_fail(p, ANE_INVALID, "has an element type that inputs and outputs cannot have", f->name);
  return 0;
}

static int64_t *pack_dims(struct mil_pack *p, const struct ane_mil_dims *d, size_t *n) {
  int64_t *dim = ane_arena_array(&p->arena, ANE_MIL_RANK, sizeof *dim);
  if (!dim && !p->st) p->st = mil_no_memory(p->err);
  if (d->rank < 0 || d->rank > ANE_MIL_RANK) mil_pack_fail(p, ANE_INVALID, "a shape with too many dimensions", NULL);
  *n = dim && !p->st ? (size_t)d->rank : 0;
  if (dim) memcpy(dim, d->dim, *n * sizeof *dim);
  return dim;
}

static AneMl__ArrayShape *pack_shape(struct mil_pack *p, const struct ane_mil_dims *d) {
  AneMl__ArrayShape *m = mil_message(p, &ane_ml__array_shape__descriptor);
  if (m) m->shape = pack_dims(p, d, &m->n_shape);
  return m;
}

static AneMl__SizeRange *pack_size(struct mil_pack *p, int64_t low, int64_t high) {
  AneMl__SizeRange *m = mil_message(p, &ane_ml__size_range__descriptor);
  if (!m) return NULL;
  m->lowerbound = (uint64_t)low;
  m->has_lowerbound = low != 0;
  m->upperbound = high;
  m->has_upperbound = high != 0;
  return m;
}

static AneMl__ArrayFeatureType *pack_array(struct mil_pack *p, const struct ane_mil_feature *f) {
  AneMl__ArrayFeatureType *m = mil_message(p, &ane_ml__array_feature_type__descriptor);
  if (!m) return NULL;
  m->shape = pack_dims(p, &f->shape, &m->n_shape);
  m->has_datatype = true;
  m->datatype = feature_dtype(p, f);
  if (f->flexibility == ANE_MIL_ENUMERATED && (m->enumeratedshapes = mil_message(p, &ane_ml__enumerated_shapes__descriptor)))
    MIL_LIST(p, m->enumeratedshapes, shapes, f->n_shapes, pack_shape(p, &f->shapes[i]));
  if (f->flexibility == ANE_MIL_RANGE && (m->shaperange = mil_message(p, &ane_ml__shape_range__descriptor)))
    MIL_LIST(p, m->shaperange, sizeranges, m->n_shape, pack_size(p, f->low[i], f->high[i]));
  m->has_intdefaultvalue = f->default_kind == 'i';
  m->intdefaultvalue = m->has_intdefaultvalue ? (int32_t)f->default_value : 0;
  m->has_floatdefaultvalue = f->default_kind == 'f';
  m->floatdefaultvalue = m->has_floatdefaultvalue ? (float)f->default_value : 0;
  m->has_doubledefaultvalue = f->default_kind == 'd';
  m->doubledefaultvalue = m->has_doubledefaultvalue ? f->default_value : 0;
  return m;
}

static AneMl__FeatureDescription *pack_feature(struct mil_pack *p, const struct ane_mil_feature *f) {
  AneMl__FeatureDescription *m = mil_message(p, &ane_ml__feature_description__descriptor);
  AneMl__FeatureType *t = mil_message(p, &ane_ml__feature_type__descriptor);
  if (!m || !t) return NULL;
  if (f->kind == ANE_MIL_OTHER)
    mil_pack_fail(p, ANE_UNSUPPORTED, "is not an array: models with it can be read, but not written", f->name);
  m->name = mil_string(f->name);
  m->shortdescription = mil_optional(f->description);
  m->type = t;
  t->isoptional = t->has_isoptional = f->optional;
  AneMl__ArrayFeatureType *a = p->st ? NULL : pack_array(p, f);
  if (f->kind == ANE_MIL_ARRAY)
    t->multiarraytype = a;
  else if ((t->statetype = mil_message(p, &ane_ml__state_feature_type__descriptor)))
    t->statetype->arraytype = a;
  return m;
}

/* ---- Description ---------------------------------------------------------------------------------------------------*/

#define PACK_FEATURES(m, d)                                                                                                      \
  do {                                                                                                                           \
    MIL_LIST(p, m, input, (d)->n_inputs, pack_feature(p, &(d)->inputs[i]));                                                      \
    MIL_LIST(p, m, output, (d)->n_outputs, pack_feature(p, &(d)->outputs[i]));                                                   \
    MIL_LIST(p, m, state, (d)->n_states, pack_feature(p, &(d)->states[i]));                                                      \
    (m)->predictedfeaturename = mil_optional((d)->predicted);                                                                    \
    (m)->predictedprobabilitiesname = mil_optional((d)->probabilities);                                                          \
  } while (0)

static AneMl__FunctionDescription *pack_interface(struct mil_pack *p, const struct ane_mil_interface *d) {
  AneMl__FunctionDescription *m = mil_message(p, &ane_ml__function_description__descriptor);
  if (!m) return NULL;
  m->name = mil_string(d->name);
  PACK_FEATURES(m, d);
  return m;
}

static AneMl__TextEntry *pack_text(struct mil_pack *p, const struct ane_mil_text *t) {
  AneMl__TextEntry *m = mil_message(p, &ane_ml__text_entry__descriptor);
  if (!m) return NULL;
  m->key = mil_string(t->key);
  m->value = mil_string(t->value);
  return m;
}

static AneMl__Metadata *pack_metadata(struct mil_pack *p, const struct ane_mil_metadata *d) {
  AneMl__Metadata *m = mil_message(p, &ane_ml__metadata__descriptor);
  if (!m) return NULL;
  m->shortdescription = mil_optional(d->description);
  m->versionstring = mil_optional(d->version);
  m->author = mil_optional(d->author);
  m->license = mil_optional(d->license);
  MIL_LIST(p, m, userdefined, d->n_user, pack_text(p, &d->user[i]));
  MIL_SORT(p, TextEntry, m->userdefined, m->n_userdefined);
  return m;
}

AneMl__ModelDescription *mil_pack_description(struct mil_pack *p, const struct ane_mil_model *m) {
  AneMl__ModelDescription *d = mil_message(p, &ane_ml__model_description__descriptor);
  if (!d) return NULL;
  d->metadata = pack_metadata(p, &m->metadata);
  if (m->multi) {
    MIL_LIST(p, d, functions, m->n_interfaces, pack_interface(p, &m->interfaces[i]));
    d->defaultfunctionname = mil_string(m->default_function);
  } else if (m->n_interfaces == 1) {
    PACK_FEATURES(d, m->interfaces);
  } else {
    mil_pack_fail(p, ANE_INVALID, "functions must be described one by one", NULL);
  }
  return d;
}
