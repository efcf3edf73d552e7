/* Turns MIL's messages into the structs of mil_spec.h: types, values, operations, blocks, functions. */
#include "formats/mil/mil_internal.h"

#include "formats/wire.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Helpers -------------------------------------------------------------------------------------------------------*/

ane_status mil_no_memory(struct ane_error *err) { return ane_fail(err, ANE_NOMEM, "not enough memory"); }

void *mil_array(struct ane_arena *arena, size_t n, size_t size) { return ane_arena_array(arena, n ? n : 1, size); }

ane_status mil_copy(struct mil_unpack *u, const char *s, const char **out) {
  *out = s && *s ? ane_arena_strndup(u->arena, s, strlen(s)) : "";
  return *out ? ANE_OK : mil_no_memory(u->err);
}

/* Copies a name that must be present. */
static ane_status copy_name(struct mil_unpack *u, const char *s, const char *what, const char **out) {
  return s && *s ? mil_copy(u, s, out) : ane_fail(u->err, ANE_FORMAT, "%s has no name", what);
}

/* Puts the name of the enclosing item before the error. */
static ane_status in_name(struct mil_unpack *u, ane_status st, const char *what, const char *name) {
  char q[ANE_QUOTE_TEXT];
  const char *s = name ? name : "";
  return st ? ane_fail_in(u->err, st, "%s%s", what, ane_quote(q, s, strlen(s))) : ANE_OK;
}

/* Fails if a sorted map has a key twice. `step`: bytes from one `const char *` to the next. */
static ane_status check_keys(struct mil_unpack *u, const void *first, size_t n, size_t step, const char *what) {
  const char *last = NULL, *key;
  char q[ANE_QUOTE_TEXT];
  for (size_t i = 0; i < n; i++, last = key) {
    memcpy(&key, (const char *)first + i * step, sizeof key);
    if (last && strcmp(last, key) == 0)
      return ane_fail(u->err, ANE_FORMAT, "%s %s comes twice", what, ane_quote(q, key, strlen(key)));
  }
  return ANE_OK;
}

/* Every row of a map begins with its key. */
static int by_key(const void *a, const void *b) {
  const char *x, *y;
  memcpy(&x, a, sizeof x);
  memcpy(&y, b, sizeof y);
  return strcmp(x, y);
}

static ane_status sort_map(struct mil_unpack *u, void *rows, size_t n, size_t step, const char *what) {
  if (n > 1) qsort(rows, n, step, by_key);
  return check_keys(u, rows, n, step, what);
}

/* ---- Types ---------------------------------------------------------------------------------------------------------*/

static ane_status unpack_type(struct mil_unpack *u, const AneMl__ValueType *t, struct ane_mil_type *out);

bool mil_count(int32_t rank, const int64_t *dim, uint64_t *count) {
  uint64_t room = 1; /* with 1 for a dimension of 0: those must not hide an overflow of the others */
  *count = 1;
  for (int32_t i = 0; i < rank; i++) {
    if (dim[i] == ANE_MIL_UNKNOWN) continue;
    if (dim[i] < 0 || !ane_mul_u64(room, (uint64_t)ANE_MAX(dim[i], 1), &room) || room > MIL_MAX_COUNT) return false;
    *count *= (uint64_t)dim[i];
  }
  return true;
}

static ane_status unpack_dimension(struct mil_unpack *u, const AneMl__Dimension *d, int64_t *out) {
  if (d->constant && d->unknown) return ane_fail(u->err, ANE_FORMAT, "a dimension is both constant and unknown");
  if (!d->constant && !d->unknown) return ane_fail(u->err, ANE_FORMAT, "a dimension is neither constant nor unknown");
  if (d->unknown && d->unknown->variadic) return ane_fail(u->err, ANE_UNSUPPORTED, "a type of unknown rank");
  if (d->constant && d->constant->size > INT64_MAX)
    return ane_fail(u->err, ANE_FORMAT, "a dimension of %" PRIu64, d->constant->size);
  *out = d->constant ? (int64_t)d->constant->size : ANE_MIL_UNKNOWN;
  return ANE_OK;
}

static ane_status unpack_tensor_type(struct mil_unpack *u, const AneMl__TensorType *t, struct ane_mil_type *out) {
  out->dtype = (ane_mil_dtype)t->datatype;
  if (*ane_mil_dtype_name(out->dtype) == '?')
    return ane_fail(u->err, ANE_FORMAT, "data type %" PRId32 ", which MIL does not have", t->datatype);
  if (t->rank < 0) return ane_fail(u->err, ANE_UNSUPPORTED, "a type of unknown rank");
  if ((uint64_t)t->rank != t->n_dimensions)
    return ane_fail(u->err, ANE_FORMAT, "rank %" PRId64 ", but %zu dimensions", t->rank, t->n_dimensions);
  if (t->rank > ANE_MIL_RANK)
    return ane_fail(u->err, ANE_UNSUPPORTED, "rank %" PRId64 ", at most %d is supported", t->rank, ANE_MIL_RANK);
  out->rank = (int32_t)t->rank;
  for (int32_t i = 0; i < out->rank; i++) {
    ane_status st = unpack_dimension(u, t->dimensions[i], &out->dim[i]);
    if (st) return st;
  }
  uint64_t count;
  if (!mil_count(out->rank, out->dim, &count))
    return ane_fail(u->err, ANE_FORMAT, "a shape of more elements than any file holds");
  return ANE_OK;
}

static ane_status unpack_items(struct mil_unpack *u, AneMl__ValueType *const *types, size_t n, struct ane_mil_type *out) {
  struct ane_mil_type *items = mil_array(u->arena, n, sizeof *items);
  if (!items || n > UINT32_MAX) return mil_no_memory(u->err);
  for (size_t i = 0; i < n; i++) {
    ane_status st = unpack_type(u, types[i], &items[i]);
    if (st) return st;
  }
  out->items = items;
  out->n_items = (uint32_t)n;
  return ANE_OK;
}

static ane_status unpack_type(struct mil_unpack *u, const AneMl__ValueType *t, struct ane_mil_type *out) {
  *out = (struct ane_mil_type){.kind = ANE_MIL_TENSOR};
  if (!t) return ane_fail(u->err, ANE_FORMAT, "a type is missing");
  if (!!t->tensortype + !!t->listtype + !!t->tupletype + !!t->dictionarytype + !!t->statetype != 1)
    return ane_fail(u->err, ANE_FORMAT, "a type must be one of tensor, list, tuple, dictionary, state");
  if (t->tensortype) return unpack_tensor_type(u, t->tensortype, out);
  if (t->statetype) {
    const AneMl__ValueType *inner = t->statetype->wrappedtype;
    if (!inner || !inner->tensortype) return ane_fail(u->err, ANE_FORMAT, "a state that holds no tensor");
    out->kind = ANE_MIL_STATE;
    return unpack_tensor_type(u, inner->tensortype, out);
  }
  if (t->tupletype) {
    out->kind = ANE_MIL_TUPLE;
    return unpack_items(u, t->tupletype->types, t->tupletype->n_types, out);
  }
  if (t->dictionarytype) {
    AneMl__ValueType *pair[2] = {t->dictionarytype->keytype, t->dictionarytype->valuetype};
    out->kind = ANE_MIL_DICTIONARY;
    return unpack_items(u, pair, 2, out);
  }
  out->kind = ANE_MIL_LIST;
  if (!t->listtype->length) return ane_fail(u->err, ANE_FORMAT, "a list without a length");
  ane_status st = unpack_dimension(u, t->listtype->length, &out->length);
  return st ? st : unpack_items(u, &t->listtype->type, 1, out);
}

static ane_status unpack_named_types(struct mil_unpack *u, AneMl__NamedValueType *const *list, size_t n, const char *what,
                                     const struct ane_mil_named_type **out, uint32_t *n_out) {
  struct ane_mil_named_type *rows = mil_array(u->arena, n, sizeof *rows);
  if (!rows || n > UINT32_MAX) return mil_no_memory(u->err);
  for (size_t i = 0; i < n; i++) {
    ane_status st = copy_name(u, list[i]->name, what, &rows[i].name);
    if (!st) st = in_name(u, unpack_type(u, list[i]->type, &rows[i].type), "type of ", list[i]->name);
    if (st) return st;
  }
  *out = rows;
  *n_out = (uint32_t)n;
  return ANE_OK;
}

/* ---- Values --------------------------------------------------------------------------------------------------------*/

static ane_status unpack_value(struct mil_unpack *u, const AneMl__Value *v, struct ane_mil_value *out);

const char *const mil_field_names[] = {"bytes", "floats", "ints", "bools", "strings", "longInts", "doubles"};

enum mil_field mil_field_of(ane_mil_dtype t) {
  switch (t) {
#define ANE_MIL_DTYPE(id, number, name, bits, blob, field, dtype)                                                                \
  case ANE_MIL_##id:                                                                                                             \
    return MIL_##field;
#include "formats/mil/mil_dtype.def"
#undef ANE_MIL_DTYPE
  }
  return MIL_BYTES;
}

/* What a TensorValue holds. */
struct held {
  int fields; /* number of fields of the oneof that are present; it should be 1 */
  enum mil_field field;
  const void *values;
  size_t n, step; /* number of elements and their size in memory; for `bytes` the number of bytes */
};

static struct held find_held(const struct mil_unpack *u, const AneMl__TensorValue *t) {
  struct held h = {0};
#define HELD(there, id, from, count, size)                                                                                       \
  if (there) h = (struct held){h.fields + 1, id, from, count, size}
  HELD(t->floats, MIL_FLOATS, t->floats->values, t->floats->n_values, 4);
  HELD(t->ints, MIL_INTS, t->ints->values, t->ints->n_values, 4);
  HELD(t->bools, MIL_BOOLS, t->bools->values, t->bools->n_values, sizeof(protobuf_c_boolean));
  HELD(t->strings, MIL_STRINGS, t->strings->values, t->strings->n_values, sizeof(char *));
  HELD(t->longints, MIL_LONGS, t->longints->values, t->longints->n_values, 8);
  HELD(t->doubles, MIL_DOUBLES, t->doubles->values, t->doubles->n_values, 8);
#undef HELD
  if (t->bytes) {
    h = (struct held){h.fields + 1, MIL_BYTES, NULL, 0, 1};
    h.values = ane_wire_view(&t->bytes->values, u->data, &h.n);
  }
  return h;
}

static ane_status unpack_strings(struct mil_unpack *u, const struct held *h, struct ane_mil_value *out) {
  const char **copy = mil_array(u->arena, h->n, sizeof *copy);
  char *const *from = h->values;
  if (!copy) return mil_no_memory(u->err);
  for (size_t i = 0; i < h->n; i++) {
    ane_status st = mil_copy(u, from[i], &copy[i]);
    if (st) return st;
  }
  out->kind = ANE_MIL_STRINGS;
  out->strings = copy;
  return ANE_OK;
}

/* int16 and uint16 are stored as int32. Fails if a number does not fit its type. */
static ane_status check_ints(struct mil_unpack *u, ane_mil_dtype t, const int32_t *values, size_t n) {
  int32_t low = t == ANE_MIL_INT16 ? INT16_MIN : 0, high = t == ANE_MIL_INT16 ? INT16_MAX : UINT16_MAX;
  for (size_t i = 0; t != ANE_MIL_INT32 && i < n; i++)
    if (values[i] < low || values[i] > high)
      return ane_fail(u->err, ANE_FORMAT, "number %zu is %" PRId32 ", which %s cannot hold", i + 1, values[i],
                      ane_mil_dtype_name(t));
  return ANE_OK;
}

/* Copies the low `size` bytes of each number. The machine must be little-endian. */
static void narrow(const struct held *h, uint8_t *dst, size_t size) {
  const uint8_t *src = h->values;
  if (h->step == size && h->n)
    memcpy(dst, src, h->n * size);
  else
    for (size_t i = 0; i < h->n; i++) memcpy(dst + i * size, src + i * h->step, size);
}

static ane_status unpack_tensor(struct mil_unpack *u, const AneMl__TensorValue *t, struct ane_mil_value *out) {
  struct held h = find_held(u, t);
  ane_mil_dtype dtype = out->type.dtype;
  enum mil_field want = mil_field_of(dtype);
  if (h.fields != 1)
    return ane_fail(u->err, ANE_FORMAT, "the value has %s", h.fields ? "its numbers in more than one field" : "no numbers");
  if (h.field != want)
    return ane_fail(u->err, ANE_FORMAT, "the numbers of %s must be in the field %s, but are in %s", ane_mil_dtype_name(dtype),
                    mil_field_names[want], mil_field_names[h.field]);
  uint64_t wanted = out->count;
  if (want == MIL_BYTES && !ane_mil_bytes(dtype, out->count, &wanted)) wanted = UINT64_MAX;
  if (h.n != wanted)
    return ane_fail(u->err, ANE_FORMAT, "the value has %zu %s, but its shape needs %" PRIu64, h.n,
                    want == MIL_BYTES ? "bytes" : "elements", wanted);
  if (want == MIL_STRINGS) return unpack_strings(u, &h, out);
  ane_status st = want == MIL_INTS ? check_ints(u, dtype, h.values, h.n) : ANE_OK;
  if (st) return st;
  size_t size = want == MIL_BYTES ? 1 : ane_mil_dtype_bits(dtype) / 8;
  uint8_t *dst = mil_array(u->arena, h.n, size);
  if (!dst) return mil_no_memory(u->err);
  narrow(&h, dst, size);
  out->kind = ANE_MIL_NUMBERS;
  out->data = dst;
  out->bytes = (uint64_t)h.n * size;
  return ANE_OK;
}

static ane_status unpack_blob(struct mil_unpack *u, const AneMl__BlobFileValue *b, struct ane_mil_value *out) {
  if (out->type.kind != ANE_MIL_TENSOR) return ane_fail(u->err, ANE_FORMAT, "a blob that is not a tensor");
  if (!ane_mil_dtype_blob(out->type.dtype))
    return ane_fail(u->err, ANE_FORMAT, "a blob of %s, which blobs cannot hold", ane_mil_dtype_name(out->type.dtype));
  out->kind = ANE_MIL_BLOB;
  out->offset = b->offset;
  return copy_name(u, b->filename, "the file of a blob", &out->file);
}

static ane_status unpack_list(struct mil_unpack *u, AneMl__Value *const *values, size_t n, struct ane_mil_value *out) {
  struct ane_mil_value *items = mil_array(u->arena, n, sizeof *items);
  if (!items) return mil_no_memory(u->err);
  for (size_t i = 0; i < n; i++) {
    ane_status st = unpack_value(u, values[i], &items[i]);
    if (st) return st;
  }
  out->items = items;
  out->count = n;
  return ANE_OK;
}

static ane_status unpack_dictionary(struct mil_unpack *u, const AneMl__DictionaryValue *d, struct ane_mil_value *out) {
  struct ane_mil_value *items = mil_array(u->arena, d->n_values, 2 * sizeof *items);
  if (!items) return mil_no_memory(u->err);
  for (size_t i = 0; i < d->n_values; i++) {
    ane_status st = unpack_value(u, d->values[i]->key, &items[2 * i]);
    if (!st) st = unpack_value(u, d->values[i]->value, &items[2 * i + 1]);
    if (st) return st;
  }
  out->items = items;
  out->count = 2 * (uint64_t)d->n_values;
  return ANE_OK;
}

/* Checks the number and types of the items of a list, tuple or dictionary against its type. */
static ane_status check_items(struct mil_unpack *u, const struct ane_mil_value *v) {
  const struct ane_mil_type *t = &v->type;
  uint64_t want = t->kind == ANE_MIL_TUPLE                    ? t->n_items
                  : t->kind == ANE_MIL_LIST && t->length >= 0 ? (uint64_t)t->length
                                                              : v->count;
  if (v->count != want)
    return ane_fail(u->err, ANE_FORMAT, "the value has %" PRIu64 " items, but its type needs %" PRIu64, v->count, want);
  for (uint64_t i = 0; i < v->count; i++) {
    const struct ane_mil_type *item = &t->items[t->kind == ANE_MIL_TUPLE ? i : t->kind == ANE_MIL_DICTIONARY ? i % 2 : 0];
    if (!ane_mil_type_equal(item, &v->items[i].type))
      return ane_fail(u->err, ANE_FORMAT, "item %" PRIu64 " has another type than its list says", i + 1);
  }
  return ANE_OK;
}

static ane_status unpack_immediate(struct mil_unpack *u, const AneMl__ImmediateValue *v, struct ane_mil_value *out) {
  if (!!v->tensor + !!v->tuple + !!v->list + !!v->dictionary != 1)
    return ane_fail(u->err, ANE_FORMAT, "a value must be one of tensor, tuple, list, dictionary");
  ane_mil_type_kind kind = v->tensor ? ANE_MIL_TENSOR : v->tuple ? ANE_MIL_TUPLE : v->list ? ANE_MIL_LIST : ANE_MIL_DICTIONARY;
  if (kind != out->type.kind) return ane_fail(u->err, ANE_FORMAT, "a value of another kind than its type");
  if (v->tensor) return unpack_tensor(u, v->tensor, out);
  out->kind = ANE_MIL_ITEMS;
  const AneMl__ValueList *l = v->tuple ? v->tuple : v->list;
  ane_status st = l ? unpack_list(u, l->values, l->n_values, out) : unpack_dictionary(u, v->dictionary, out);
  return st ? st : check_items(u, out);
}

static ane_status unpack_value(struct mil_unpack *u, const AneMl__Value *v, struct ane_mil_value *out) {
  if (!v) return ane_fail(u->err, ANE_FORMAT, "a value is missing");
  ane_status st = unpack_type(u, v->type, &out->type);
  if (st) return st;
  if (out->type.kind == ANE_MIL_STATE) return ane_fail(u->err, ANE_FORMAT, "a value that is a state");
  if (out->type.kind == ANE_MIL_TENSOR) {
    for (int32_t i = 0; i < out->type.rank; i++)
      if (out->type.dim[i] < 0) return ane_fail(u->err, ANE_FORMAT, "a value with an unknown dimension");
    (void)mil_count(out->type.rank, out->type.dim, &out->count); /* the type has been checked */
    if (out->type.dtype != ANE_MIL_STRING && !ane_mil_bytes(out->type.dtype, out->count, &out->bytes))
      return ane_fail(u->err, ANE_FORMAT, "a shape of more elements than any file holds");
  }
  if (!v->immediatevalue == !v->blobfilevalue)
    return ane_fail(u->err, ANE_FORMAT,
                    v->blobfilevalue ? "a value that is both here and in a file" : "a value is neither here nor in a file");
  return v->immediatevalue ? unpack_immediate(u, v->immediatevalue, out) : unpack_blob(u, v->blobfilevalue, out);
}

static ane_status unpack_attrs(struct mil_unpack *u, AneMl__ValueEntry *const *list, size_t n, const struct ane_mil_attr **out,
                               uint32_t *n_out) {
  struct ane_mil_attr *rows = mil_array(u->arena, n, sizeof *rows);
  if (!rows || n > UINT32_MAX) return mil_no_memory(u->err);
  for (size_t i = 0; i < n; i++) {
    ane_status st = copy_name(u, list[i]->key, "an attribute", &rows[i].name);
    if (!st) st = in_name(u, unpack_value(u, list[i]->value, &rows[i].value), "attribute ", list[i]->key);
    if (st) return st;
  }
  *out = rows;
  *n_out = (uint32_t)n;
  return sort_map(u, rows, n, sizeof *rows, "attribute");
}

/* ---- Operations, blocks, functions -----------------------------------------------------------------------------------*/

static ane_status unpack_block(struct mil_unpack *u, const AneMl__Block *b, struct ane_mil_block *out);

static ane_status unpack_binding(struct mil_unpack *u, const AneMl__Binding *b, struct ane_mil_binding *out) {
  if (!b->name == !b->value)
    return ane_fail(u->err, ANE_FORMAT, b->name ? "is bound to a name and a value" : "is bound to neither a name nor a value");
  if (b->name) return copy_name(u, b->name, "what it is bound to", &out->name);
  struct ane_mil_value *v = mil_array(u->arena, 1, sizeof *v);
  out->value = v;
  return v ? unpack_value(u, b->value, v) : mil_no_memory(u->err);
}

static ane_status unpack_arg(struct mil_unpack *u, const AneMl__ArgumentEntry *e, struct ane_mil_arg *out) {
  size_t n = e->value ? e->value->n_arguments : 0;
  struct ane_mil_binding *rows = mil_array(u->arena, n, sizeof *rows);
  ane_status st = copy_name(u, e->key, "a parameter", &out->name);
  if (st) return st;
  if (!rows || n > UINT32_MAX) return mil_no_memory(u->err);
  if (!n) return in_name(u, ane_fail(u->err, ANE_FORMAT, "has no binding"), "parameter ", e->key);
  for (size_t i = 0; i < n; i++)
    if ((st = unpack_binding(u, e->value->arguments[i], &rows[i]))) return in_name(u, st, "parameter ", e->key);
  out->bindings = rows;
  out->n_bindings = (uint32_t)n;
  return ANE_OK;
}

static ane_status unpack_op(struct mil_unpack *u, const AneMl__Operation *o, struct ane_mil_op *out) {
  struct ane_mil_arg *args = mil_array(u->arena, o->n_inputs, sizeof *args);
  struct ane_mil_block *blocks = mil_array(u->arena, o->n_blocks, sizeof *blocks);
  if (!args || !blocks || o->n_inputs > UINT32_MAX || o->n_blocks > UINT32_MAX) return mil_no_memory(u->err);
  ane_status st = unpack_named_types(u, o->outputs, o->n_outputs, "an output", &out->outputs, &out->n_outputs);
  for (size_t i = 0; !st && i < o->n_inputs; i++) st = unpack_arg(u, o->inputs[i], &args[i]);
  if (!st) st = sort_map(u, args, o->n_inputs, sizeof *args, "parameter");
  if (!st) st = unpack_attrs(u, o->attributes, o->n_attributes, &out->attrs, &out->n_attrs);
  for (size_t i = 0; !st && i < o->n_blocks; i++) st = unpack_block(u, o->blocks[i], &blocks[i]);
  out->inputs = args;
  out->n_inputs = (uint32_t)o->n_inputs;
  out->blocks = blocks;
  out->n_blocks = (uint32_t)o->n_blocks;
  return st;
}

/* Puts the operation's type and output, from the message, before an error. */
static ane_status in_op(struct mil_unpack *u, ane_status st, const AneMl__Operation *o) {
  struct ane_mil_named_type first = {.name = o->n_outputs && o->outputs[0]->name ? o->outputs[0]->name : ""};
  struct ane_mil_op op = {.type = o->type ? o->type : "", .outputs = &first, .n_outputs = 1};
  char text[ANE_MIL_OP_TEXT];
  return ane_fail_in(u->err, st, "%s", ane_mil_op_text(text, &op));
}

static ane_status unpack_block(struct mil_unpack *u, const AneMl__Block *b, struct ane_mil_block *out) {
  const char **outputs = mil_array(u->arena, b->n_outputs, sizeof *outputs);
  struct ane_mil_op *ops = mil_array(u->arena, b->n_operations, sizeof *ops);
  if (!outputs || !ops || b->n_outputs > UINT32_MAX || b->n_operations > UINT32_MAX) return mil_no_memory(u->err);
  ane_status st = unpack_named_types(u, b->inputs, b->n_inputs, "an input of a block", &out->inputs, &out->n_inputs);
  for (size_t i = 0; !st && i < b->n_outputs; i++) st = copy_name(u, b->outputs[i], "an output of a block", &outputs[i]);
  if (!st) st = unpack_attrs(u, b->attributes, b->n_attributes, &out->attrs, &out->n_attrs);
  for (size_t i = 0; !st && i < b->n_operations; i++) {
    const char *type = b->operations[i]->type;
    if (!type || !*type) return ane_fail(u->err, ANE_FORMAT, "operation %zu has no type", i + 1);
    st = mil_copy(u, type, &ops[i].type);
    if (!st) st = unpack_op(u, b->operations[i], &ops[i]);
    if (st) st = in_op(u, st, b->operations[i]);
  }
  out->outputs = outputs;
  out->n_outputs = (uint32_t)b->n_outputs;
  out->ops = ops;
  out->n_ops = (uint32_t)b->n_operations;
  return st;
}

static ane_status unpack_function(struct mil_unpack *u, const AneMl__Function *f, struct ane_mil_function *out) {
  if (!f) return ane_fail(u->err, ANE_FORMAT, "is empty");
  ane_status st = unpack_named_types(u, f->inputs, f->n_inputs, "an input", &out->inputs, &out->n_inputs);
  if (!st) st = unpack_attrs(u, f->attributes, f->n_attributes, &out->attrs, &out->n_attrs);
  if (!st) st = copy_name(u, f->opset, "the opset", &out->opset);
  if (st) return st;
  char q[ANE_QUOTE_TEXT];
  ane_quote(q, out->opset, strlen(out->opset));
  if (!ane_mil_opset_version(out->opset)) return ane_fail(u->err, ANE_UNSUPPORTED, "opset %s, known are CoreML5 .. CoreML9", q);
  if (f->n_block_specializations > 1)
    return ane_fail(u->err, ANE_UNSUPPORTED, "has %zu block specializations, one is supported", f->n_block_specializations);
  const AneMl__BlockEntry *b = f->n_block_specializations ? f->block_specializations[0] : NULL;
  if (!b || !b->value || !b->key || strcmp(b->key, out->opset) != 0)
    return ane_fail(u->err, ANE_FORMAT, "has no block for its opset %s", q);
  return unpack_block(u, b->value, &out->block);
}

ane_status mil_unpack_program(struct mil_unpack *u, const AneMl__Program *p, struct ane_mil_program *out) {
  if (p->version != 1) return ane_fail(u->err, ANE_UNSUPPORTED, "program version %" PRId64 ", known is 1", p->version);
  if (!p->n_functions) return ane_fail(u->err, ANE_FORMAT, "the program has no functions");
  struct ane_mil_function *rows = mil_array(u->arena, p->n_functions, sizeof *rows);
  if (!rows || p->n_functions > UINT32_MAX) return mil_no_memory(u->err);
  ane_status st = unpack_attrs(u, p->attributes, p->n_attributes, &out->attrs, &out->n_attrs);
  for (size_t i = 0; !st && i < p->n_functions; i++) {
    st = copy_name(u, p->functions[i]->key, "a function", &rows[i].name);
    if (!st) st = in_name(u, unpack_function(u, p->functions[i]->value, &rows[i]), "function ", p->functions[i]->key);
  }
  if (st) return st;
  out->functions = rows;
  out->n_functions = (uint32_t)p->n_functions;
  return sort_map(u, rows, p->n_functions, sizeof *rows, "function");
}
