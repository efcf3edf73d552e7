/* Turns the structs of mil_spec.h into protobuf messages, and these into bytes: types, values, operations, functions. protobuf-c
 * writes fields in the order of their numbers, and maps are sorted here, so the bytes depend on the model alone. */
#include "formats/mil/mil_internal.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- Helpers -------------------------------------------------------------------------------------------------------*/

void *mil_message(struct mil_pack *p, const ProtobufCMessageDescriptor *d) {
  ProtobufCMessage *m = ane_arena_alloc(&p->arena, d->sizeof_message);
  if (m)
    protobuf_c_message_init(d, m);
  else if (!p->st)
    p->st = mil_no_memory(p->err);
  return m;
}

void *mil_list(struct mil_pack *p, size_t n) {
  void *list = ane_arena_array(&p->arena, n ? n : 1, sizeof(void *));
  if (!list && !p->st) p->st = mil_no_memory(p->err);
  return list;
}

void mil_pack_fail(struct mil_pack *p, ane_status st, const char *what, const char *name) {
  char q[ANE_QUOTE_TEXT];
  if (p->st) return;
  p->st = ane_fail(p->err, st, "%s %s", name ? ane_quote(q, name, strlen(name)) : "", what);
}

char *mil_string(const char *s) { return (char *)(uintptr_t)(s ? s : ""); }

char *mil_optional(const char *s) { return s && *s ? mil_string(s) : NULL; }

MIL_BY_KEY(ArgumentEntry)
MIL_BY_KEY(FunctionEntry)
MIL_BY_KEY(ValueEntry)

/* ---- Types ---------------------------------------------------------------------------------------------------------*/

static AneMl__ValueType *pack_type(struct mil_pack *p, const struct ane_mil_type *t);

static AneMl__Dimension *pack_dimension(struct mil_pack *p, int64_t d) {
  AneMl__Dimension *m = mil_message(p, &ane_ml__dimension__descriptor);
  if (!m) return NULL;
  if (d < 0) {
    m->unknown = mil_message(p, &ane_ml__unknown_dimension__descriptor);
    return m;
  }
  m->constant = mil_message(p, &ane_ml__constant_dimension__descriptor);
  if (m->constant) m->constant->size = (uint64_t)d, m->constant->has_size = d != 0;
  return m;
}

static AneMl__TensorType *pack_tensor_type(struct mil_pack *p, const struct ane_mil_type *t) {
  AneMl__TensorType *m = mil_message(p, &ane_ml__tensor_type__descriptor);
  if (!m) return NULL;
  if (*ane_mil_dtype_name(t->dtype) == '?' || t->rank < 0 || t->rank > ANE_MIL_RANK)
    mil_pack_fail(p, ANE_INVALID, "a type that MIL does not have", NULL);
  m->has_datatype = true;
  m->datatype = (int32_t)t->dtype;
  m->has_rank = t->rank != 0;
  m->rank = t->rank;
  MIL_LIST(p, m, dimensions, (size_t)ANE_MAX(t->rank, 0), pack_dimension(p, t->dim[i]));
  return m;
}

/* Lists, tuples, dictionaries. */
static void pack_items_type(struct mil_pack *p, const struct ane_mil_type *t, AneMl__ValueType *m) {
  uint32_t want = t->kind == ANE_MIL_LIST ? 1 : t->kind == ANE_MIL_DICTIONARY ? 2 : t->n_items;
  if (t->n_items != want) {
    mil_pack_fail(p, ANE_INVALID, "a type with the wrong number of types in it", NULL);
  } else if (t->kind == ANE_MIL_LIST) {
    if (!(m->listtype = mil_message(p, &ane_ml__list_type__descriptor))) return;
    m->listtype->type = pack_type(p, t->items);
    m->listtype->length = pack_dimension(p, t->length);
  } else if (t->kind == ANE_MIL_DICTIONARY) {
    if (!(m->dictionarytype = mil_message(p, &ane_ml__dictionary_type__descriptor))) return;
    m->dictionarytype->keytype = pack_type(p, &t->items[0]);
    m->dictionarytype->valuetype = pack_type(p, &t->items[1]);
  } else {
    if (!(m->tupletype = mil_message(p, &ane_ml__tuple_type__descriptor))) return;
    MIL_LIST(p, m->tupletype, types, t->n_items, pack_type(p, &t->items[i]));
  }
}

static AneMl__ValueType *pack_type(struct mil_pack *p, const struct ane_mil_type *t) {
  AneMl__ValueType *m = mil_message(p, &ane_ml__value_type__descriptor);
  if (!m) return NULL;
  if (t->kind == ANE_MIL_TENSOR) {
    m->tensortype = pack_tensor_type(p, t);
  } else if (t->kind == ANE_MIL_STATE) {
    m->statetype = mil_message(p, &ane_ml__state_type__descriptor);
    if (m->statetype) m->statetype->wrappedtype = mil_message(p, &ane_ml__value_type__descriptor);
    if (m->statetype && m->statetype->wrappedtype) m->statetype->wrappedtype->tensortype = pack_tensor_type(p, t);
  } else {
    pack_items_type(p, t, m);
  }
  return m;
}

static AneMl__NamedValueType *pack_named_type(struct mil_pack *p, const struct ane_mil_named_type *t) {
  AneMl__NamedValueType *m = mil_message(p, &ane_ml__named_value_type__descriptor);
  if (!m) return NULL;
  m->name = mil_string(t->name);
  m->type = pack_type(p, &t->type);
  return m;
}

/* ---- Values --------------------------------------------------------------------------------------------------------*/

static AneMl__Value *pack_value(struct mil_pack *p, const struct ane_mil_value *v);

/* A copy of the numbers, `step` bytes each; narrower integers are widened with their sign. NULL if there is no memory. */
static void *widen(struct mil_pack *p, const struct ane_mil_value *v, size_t step) {
  uint8_t *to = ane_arena_array(&p->arena, v->count ? (size_t)v->count : 1, step);
  size_t size = ane_mil_dtype_bits(v->type.dtype) / 8;
  if (!to) {
    if (!p->st) p->st = mil_no_memory(p->err);
  } else if (size == step) {
    if (v->bytes) memcpy(to, v->data, (size_t)v->bytes);
  } else {
    for (uint64_t i = 0; i < v->count; i++) {
      int32_t n = (int32_t)ane_mil_integer(v, i); /* of at most two bytes */
      memcpy(to + i * step, &n, sizeof n);
    }
  }
  return to;
}

#define PACK_NUMBERS(field, name, size)                                                                                          \
  do {                                                                                                                           \
    t->field = mil_message(p, &ane_ml__repeated_##name##__descriptor);                                                           \
    if (!t->field) break;                                                                                                        \
    t->field->values = widen(p, v, size);                                                                                        \
    t->field->n_values = t->field->values ? (size_t)v->count : 0;                                                                \
  } while (0)

static void pack_bytes(struct mil_pack *p, const struct ane_mil_value *v, AneMl__TensorValue *t) {
  t->bytes = mil_message(p, &ane_ml__repeated_bytes__descriptor);
  if (!t->bytes) return;
  t->bytes->has_values = v->bytes > 0;
  t->bytes->values = (ProtobufCBinaryData){(size_t)v->bytes, (uint8_t *)(uintptr_t)v->data};
}

static void pack_strings(struct mil_pack *p, const struct ane_mil_value *v, AneMl__TensorValue *t) {
  t->strings = mil_message(p, &ane_ml__repeated_strings__descriptor);
  if (t->strings) MIL_LIST(p, t->strings, values, (size_t)v->count, mil_string(v->strings[i]));
}

static AneMl__TensorValue *pack_tensor(struct mil_pack *p, const struct ane_mil_value *v) {
  AneMl__TensorValue *t = mil_message(p, &ane_ml__tensor_value__descriptor);
  if (!t) return NULL;
  switch (mil_field_of(v->type.dtype)) {
    case MIL_FLOATS: PACK_NUMBERS(floats, floats, 4); break;
    case MIL_INTS: PACK_NUMBERS(ints, ints, 4); break;
    case MIL_BOOLS: PACK_NUMBERS(bools, bools, sizeof(protobuf_c_boolean)); break;
    case MIL_LONGS: PACK_NUMBERS(longints, long_ints, 8); break;
    case MIL_DOUBLES: PACK_NUMBERS(doubles, doubles, 8); break;
    case MIL_STRINGS: pack_strings(p, v, t); break;
    case MIL_BYTES: pack_bytes(p, v, t); break;
  }
  return t;
}

static AneMl__KeyValuePair *pack_pair(struct mil_pack *p, const struct ane_mil_value *pair) {
  AneMl__KeyValuePair *m = mil_message(p, &ane_ml__key_value_pair__descriptor);
  if (!m) return NULL;
  m->key = pack_value(p, &pair[0]);
  m->value = pack_value(p, &pair[1]);
  return m;
}

static void pack_items(struct mil_pack *p, const struct ane_mil_value *v, AneMl__ImmediateValue *m) {
  if (v->type.kind == ANE_MIL_DICTIONARY) {
    m->dictionary = mil_message(p, &ane_ml__dictionary_value__descriptor);
    if (m->dictionary) MIL_LIST(p, m->dictionary, values, (size_t)(v->count / 2), pack_pair(p, &v->items[2 * i]));
    return;
  }
  AneMl__ValueList *l = mil_message(p, &ane_ml__value_list__descriptor);
  if (l) MIL_LIST(p, l, values, (size_t)v->count, pack_value(p, &v->items[i]));
  if (v->type.kind == ANE_MIL_LIST)
    m->list = l;
  else
    m->tuple = l;
}

/* Does the value agree with its type? A model that was read does; one that was built may not. */
static bool is_sound(const struct ane_mil_value *v) {
  uint64_t count, bytes = 0;
  bool tensor = v->type.kind == ANE_MIL_TENSOR;
  if (v->kind == ANE_MIL_ITEMS) return !tensor && v->type.kind != ANE_MIL_STATE && (v->items || !v->count);
  if (!tensor || v->type.rank > ANE_MIL_RANK || !mil_count(v->type.rank, v->type.dim, &count) || count != v->count) return false;
  for (int32_t i = 0; i < v->type.rank; i++)
    if (v->type.dim[i] < 0) return false;
  if (v->kind == ANE_MIL_STRINGS) return v->type.dtype == ANE_MIL_STRING && (v->strings || !count);
  if (!ane_mil_bytes(v->type.dtype, count, &bytes) || bytes != v->bytes) return false;
  return v->kind == ANE_MIL_BLOB ? ane_mil_dtype_blob(v->type.dtype) != 0 && v->file
                                 : v->kind == ANE_MIL_NUMBERS && (v->data || !bytes);
}

static AneMl__Value *pack_value(struct mil_pack *p, const struct ane_mil_value *v) {
  AneMl__Value *m = mil_message(p, &ane_ml__value__descriptor);
  if (!is_sound(v)) mil_pack_fail(p, ANE_INVALID, "a value does not have the numbers that its type says", NULL);
  if (!m || p->st) return m;
  m->type = pack_type(p, &v->type);
  if (v->kind == ANE_MIL_BLOB) {
    AneMl__BlobFileValue *b = m->blobfilevalue = mil_message(p, &ane_ml__blob_file_value__descriptor);
    if (!b) return m;
    const char *file = v->file;
    uint64_t offset = v->offset;
    if (p->place) p->place(p->arg, v, &file, &offset);
    b->filename = mil_string(file);
    b->offset = offset;
    b->has_offset = offset != 0;
    return m;
  }
  m->immediatevalue = mil_message(p, &ane_ml__immediate_value__descriptor);
  if (!m->immediatevalue) return m;
  if (v->kind == ANE_MIL_ITEMS)
    pack_items(p, v, m->immediatevalue);
  else
    m->immediatevalue->tensor = pack_tensor(p, v);
  return m;
}

/* ---- Operations, blocks, functions -----------------------------------------------------------------------------------*/

static AneMl__Block *pack_block(struct mil_pack *p, const struct ane_mil_block *b);

static AneMl__ValueEntry *pack_attr(struct mil_pack *p, const struct ane_mil_attr *a) {
  AneMl__ValueEntry *m = mil_message(p, &ane_ml__value_entry__descriptor);
  if (!m) return NULL;
  m->key = mil_string(a->name);
  m->value = pack_value(p, &a->value);
  return m;
}

static AneMl__Binding *pack_binding(struct mil_pack *p, const struct ane_mil_binding *b) {
  AneMl__Binding *m = mil_message(p, &ane_ml__binding__descriptor);
  if (!m) return NULL;
  if (!b->name == !b->value) mil_pack_fail(p, ANE_INVALID, "a parameter must be bound to a name or a value", NULL);
  if (b->name)
    m->name = mil_string(b->name);
  else if (b->value)
    m->value = pack_value(p, b->value);
  return m;
}

static AneMl__ArgumentEntry *pack_arg(struct mil_pack *p, const struct ane_mil_arg *a) {
  AneMl__ArgumentEntry *m = mil_message(p, &ane_ml__argument_entry__descriptor);
  if (!m) return NULL;
  m->key = mil_string(a->name);
  m->value = mil_message(p, &ane_ml__argument__descriptor);
  if (m->value) MIL_LIST(p, m->value, arguments, a->n_bindings, pack_binding(p, &a->bindings[i]));
  return m;
}

static AneMl__Operation *pack_op(struct mil_pack *p, const struct ane_mil_op *o) {
  AneMl__Operation *m = mil_message(p, &ane_ml__operation__descriptor);
  if (!m || p->st) return m;
  m->type = mil_string(o->type);
  MIL_LIST(p, m, inputs, o->n_inputs, pack_arg(p, &o->inputs[i]));
  MIL_SORT(p, ArgumentEntry, m->inputs, m->n_inputs);
  MIL_LIST(p, m, outputs, o->n_outputs, pack_named_type(p, &o->outputs[i]));
  MIL_LIST(p, m, blocks, o->n_blocks, pack_block(p, &o->blocks[i]));
  MIL_LIST(p, m, attributes, o->n_attrs, pack_attr(p, &o->attrs[i]));
  MIL_SORT(p, ValueEntry, m->attributes, m->n_attributes);
  if (p->st && p->err) {
    char text[ANE_MIL_OP_TEXT];
    ane_fail_in(p->err, p->st, "%s", ane_mil_op_text(text, o));
  }
  return m;
}

static AneMl__Block *pack_block(struct mil_pack *p, const struct ane_mil_block *b) {
  AneMl__Block *m = mil_message(p, &ane_ml__block__descriptor);
  if (!m) return NULL;
  MIL_LIST(p, m, inputs, b->n_inputs, pack_named_type(p, &b->inputs[i]));
  MIL_LIST(p, m, outputs, b->n_outputs, mil_string(b->outputs[i]));
  MIL_LIST(p, m, operations, p->st ? 0 : b->n_ops, pack_op(p, &b->ops[i]));
  MIL_LIST(p, m, attributes, b->n_attrs, pack_attr(p, &b->attrs[i]));
  MIL_SORT(p, ValueEntry, m->attributes, m->n_attributes);
  return m;
}

static AneMl__FunctionEntry *pack_function(struct mil_pack *p, const struct ane_mil_function *f) {
  AneMl__FunctionEntry *entry = mil_message(p, &ane_ml__function_entry__descriptor);
  AneMl__Function *m = mil_message(p, &ane_ml__function__descriptor);
  AneMl__BlockEntry *b = mil_message(p, &ane_ml__block_entry__descriptor);
  if (!entry || !m || !b) return NULL;
  entry->key = mil_string(f->name);
  entry->value = m;
  m->opset = b->key = mil_string(f->opset);
  MIL_LIST(p, m, inputs, f->n_inputs, pack_named_type(p, &f->inputs[i]));
  b->value = pack_block(p, &f->block);
  MIL_LIST(p, m, block_specializations, (size_t)1, b);
  MIL_LIST(p, m, attributes, f->n_attrs, pack_attr(p, &f->attrs[i]));
  MIL_SORT(p, ValueEntry, m->attributes, m->n_attributes);
  return entry;
}

static AneMl__Program *pack_program(struct mil_pack *p, const struct ane_mil_program *g) {
  AneMl__Program *m = mil_message(p, &ane_ml__program__descriptor);
  if (!m) return NULL;
  m->has_version = true;
  m->version = 1;
  MIL_LIST(p, m, functions, g->n_functions, pack_function(p, &g->functions[i]));
  MIL_SORT(p, FunctionEntry, m->functions, m->n_functions);
  MIL_LIST(p, m, attributes, g->n_attrs, pack_attr(p, &g->attrs[i]));
  MIL_SORT(p, ValueEntry, m->attributes, m->n_attributes);
  return m;
}

/* ---- Model ---------------------------------------------------------------------------------------------------------*/

static ane_status pack_model(struct mil_pack *p, const struct ane_mil_model *m, struct ane_buffer *out) {
  AneMl__Model *model = mil_message(p, &ane_ml__model__descriptor);
  if (!model) return p->st;
  model->has_specificationversion = true;
  model->specificationversion = m->version;
  model->description = mil_pack_description(p, m);
  model->mlprogram = pack_program(p, &m->program);
  if (p->st) return p->st;
  size_t size = ane_ml__model__get_packed_size(model);
  if (size > INT32_MAX) return ane_fail(p->err, ANE_UNSUPPORTED, "a model file of %zu bytes, more than protobuf allows", size);
  if (!ane_buffer_reserve(out, size)) return mil_no_memory(p->err);
  out->size += ane_ml__model__pack(model, out->data + out->size);
  return ANE_OK;
}

ane_status ane_mil_pack(const struct ane_mil_model *m, ane_mil_place_fn place, void *arg, struct ane_buffer *out,
                        struct ane_error *err) {
  struct mil_pack p = {.place = place, .arg = arg, .err = err};
  ane_status st = ane_mil_verify(m, err);
  if (!st) st = pack_model(&p, m, out);
  ane_arena_free(&p.arena);
  return st;
}
