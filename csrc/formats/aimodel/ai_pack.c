/* Writes a program as MLIR bytecode. Strings, attributes, types, operations and properties are numbered in the order of their
 * first use, each kind in a section of its own.
 *
 * Sources: "MLIR Bytecode Format", version 6 (mlir.llvm.org), for the sections. The encoding of the aicode dialect's attributes,
 * types and properties was observed in assets of coreai-core 1.0.0b3. */
#include "formats/aimodel/ai_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

size_t ai_varint(uint8_t out[AI_VARINT], uint64_t v) {
  size_t n = 1;
  while (n < AI_VARINT && v >> 7 * n) n++;
  if (n == AI_VARINT) {
    ai_varint_wide(out, v);
    return n;
  }
  v = v << n | (uint64_t)1 << (n - 1);
  for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(v >> 8 * i);
  return n;
}

void ai_varint_wide(uint8_t out[AI_VARINT], uint64_t v) {
  out[0] = 0;
  ane_store_u64(out + 1, v);
}

/* Distinct byte strings, by number. */
struct table {
  struct ane_strmap map;
  struct ane_buffer rows; /* of struct row */
};
struct row {
  const char *data;
  size_t size;
};

struct packer {
  struct ane_arena arena; /* of the rows' bytes and of bodies */
  struct table strings, attributes, types, ops, properties;
  uint32_t location; /* the location attribute of the current function */
  ane_status status; /* the first failure */
  struct ane_error *err;
};

static void no_memory(struct packer *p) {
  if (!p->status) p->status = ane_fail(p->err, ANE_NOMEM, "no memory for the program");
}

static void put(struct packer *p, struct ane_buffer *b, const void *data, size_t size) {
  if (!p->status && !ane_buffer_append(b, data, size)) no_memory(p);
}

static void put_number(struct packer *p, struct ane_buffer *b, uint64_t v) {
  uint8_t bytes[AI_VARINT];
  put(p, b, bytes, ai_varint(bytes, v));
}

static void put_signed(struct packer *p, struct ane_buffer *b, int64_t v) {
  put_number(p, b, (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0));
}

static uint32_t count(const struct table *t) { return (uint32_t)(t->rows.size / sizeof(struct row)); }
static const struct row *rows(const struct table *t) { return (const struct row *)(const void *)t->rows.data; }

/* The number of these bytes in the table, which gets a row for them if it has none. */
static uint32_t number(struct packer *p, struct table *t, const void *data, size_t size) {
  uint32_t old = p->status ? 0 : ane_strmap_get(&t->map, data, size), at = count(t);
  if (old != UINT32_MAX) return old;
  struct row r = {ane_arena_strndup(&p->arena, size ? data : "", size), size};
  if (!r.data || !ane_buffer_append(&t->rows, &r, sizeof r) || !ane_strmap_put(&t->map, r.data, size, at, NULL)) no_memory(p);
  return at;
}

/* The same for the bytes of a buffer, which is freed. */
static uint32_t number_of(struct packer *p, struct table *t, struct ane_buffer *b) {
  uint32_t n = number(p, t, b->data, b->size);
  ane_buffer_free(b);
  return n;
}

static uint32_t string(struct packer *p, const char *s) { return number(p, &p->strings, s, strlen(s)); }

/* The same for n numbers (uint32_t), as varints. */
static uint32_t numbers(struct packer *p, struct table *t, int n, ...) {
  struct ane_buffer b = {0};
  va_list list;
  va_start(list, n);
  for (int i = 0; i < n; i++) put_number(p, &b, va_arg(list, uint32_t));
  va_end(list);
  return number_of(p, t, &b);
}

/* ---- Attributes -----------------------------------------------------------------------------------------------------*/

static uint32_t attr_string(struct packer *p, const char *s) {
  return numbers(p, &p->attributes, 2, (uint32_t)AI_ATTR_STRING, string(p, s));
}

/* An integer of one bit: its value is a byte, not a varint. */
static uint32_t attr_flag(struct packer *p, bool v) {
  uint8_t bytes[4] = {AI_ATTR_INTEGER << 1 | 1, 1 << 1 | 1, 0 << 1 | 1, v};
  return number(p, &p->attributes, bytes, sizeof bytes);
}

static uint32_t attr_integer(struct packer *p, uint32_t bits, int64_t v) {
  struct ane_buffer b = {0};
  put_number(p, &b, AI_ATTR_INTEGER);
  put_number(p, &b, bits);
  put_number(p, &b, 0); /* unsigned */
  put_signed(p, &b, v);
  return number_of(p, &p->attributes, &b);
}

static uint32_t attr_type(struct packer *p, uint32_t type) { return numbers(p, &p->attributes, 2, (uint32_t)AI_ATTR_TYPE, type); }

static uint32_t attr_array(struct packer *p, const uint32_t *list, uint32_t n) {
  struct ane_buffer b = {0};
  put_number(p, &b, AI_ATTR_ARRAY);
  put_number(p, &b, n);
  for (uint32_t i = 0; i < n; i++) put_number(p, &b, list[i]);
  return number_of(p, &p->attributes, &b);
}

/* A named attribute with one string: aicode.name{"x"}. */
static uint32_t attr_named(struct packer *p, const char *key, const char *value) {
  uint32_t name = string(p, key), text = attr_string(p, value);
  return numbers(p, &p->attributes, 4, (uint32_t)AI_ATTR_NAMED, name, 1u, text);
}

static bool all_equal(const uint8_t *data, uint64_t bytes, uint32_t size) {
  return bytes > size && memcmp(data, data + size, (size_t)bytes - size) == 0;
}

bool ai_uniform(const struct ane_ai_value *v, uint8_t *first) {
  const struct ane_ai_data *d = &v->op->data;
  const uint8_t *p = d->data;
  uint32_t bits = ane_ai_dtype_bits(v->type.dtype);
  if (bits >= 8 || !bits || !p || !d->bytes) return false;
  uint64_t count;
  *first = (uint8_t)(p[0] & ((1u << bits) - 1));
  if (d->splat) return true;
  if (!ane_ai_count(&v->type, &count)) return false;
  for (uint64_t i = 0; i < count * bits; i++)
    if ((p[i / 8] >> i % 8 & 1) != (*first >> i % bits & 1)) return false;
  return true;
}

static uint32_t attr_data(struct packer *p, const struct ane_ai_value *v) {
  const struct ane_ai_data *d = &v->op->data;
  if (d->resource >= 0) return numbers(p, &p->attributes, 2, (uint32_t)AI_ATTR_RESOURCE, (uint32_t)d->resource);
  struct ane_buffer b = {0};
  uint32_t size = ane_ai_dtype_bits(v->type.dtype) / 8;
  uint64_t bytes = d->bytes;
  uint8_t first;
  bool packed = ai_uniform(v, &first); /* then one element, in a byte */
  bool equal = size && v->type.dtype != ANE_AI_BOOL && all_equal(d->data, bytes, size);
  uint8_t splat = d->splat || packed || bytes == size || equal;
  if (splat) bytes = packed ? 1 : size;
  put_number(p, &b, AI_ATTR_ELEMENTS);
  put(p, &b, &splat, 1);
  put_number(p, &b, bytes);
  put(p, &b, packed ? (const void *)&first : d->data, (size_t)bytes);
  return number_of(p, &p->attributes, &b);
}

/* An empty location inside this function. Apple's library refuses operations without one. */
static uint32_t attr_location(struct packer *p, const char *function) {
  uint32_t none = string(p, "");
  uint32_t file = numbers(p, &p->attributes, 4, (uint32_t)AI_ATTR_FILE, none, none, none);
  uint32_t source = numbers(p, &p->attributes, 6, (uint32_t)AI_ATTR_SOURCE, file, 0u, 0u, 0u, 0u);
  uint32_t scope = numbers(p, &p->attributes, 3, (uint32_t)AI_ATTR_SCOPE, 1u, string(p, function));
  return numbers(p, &p->attributes, 5, (uint32_t)AI_ATTR_LOCATION, source, scope, 0u, 0u);
}

/* The layout of an IOSurface: rank + 1 alignment factors, all 1, then rank interleave factors. */
static uint32_t attr_layout(struct packer *p, const struct ane_ai_type *t) {
  struct ane_buffer b = {0};
  put_number(p, &b, AI_ATTR_LAYOUT);
  put_number(p, &b, (uint32_t)t->rank + 1);
  for (int32_t i = 0; i <= t->rank; i++) put_signed(p, &b, 1);
  put_number(p, &b, (uint32_t)t->rank);
  for (int32_t i = 0; i < t->rank; i++) put_signed(p, &b, t->interleave[i]);
  put_number(p, &b, AI_IOSURFACE);
  return number_of(p, &p->attributes, &b);
}

/* ---- Types ----------------------------------------------------------------------------------------------------------*/

static uint32_t type_of(struct packer *p, const struct ane_ai_type *t) {
  if (t->kind == ANE_AI_TOKEN) return numbers(p, &p->types, 1, (uint32_t)AI_TYPE_TOKEN);
  struct ane_buffer b = {0};
  uint32_t element = numbers(p, &p->types, 1, (uint32_t)t->dtype);
  bool laid_out = t->rank && t->interleave[0];
  put_number(p, &b, laid_out ? AI_TYPE_LAID_OUT : AI_TYPE_TENSOR);
  put_number(p, &b, (uint32_t)t->rank);
  for (int32_t i = 0; i < t->rank; i++) put_signed(p, &b, t->dim[i] < 0 ? INT64_MIN : t->dim[i]);
  put_number(p, &b, element);
  if (laid_out) put_number(p, &b, attr_layout(p, t));
  uint32_t tensor = number_of(p, &p->types, &b);
  return t->kind == ANE_AI_HANDLE ? numbers(p, &p->types, 2, (uint32_t)AI_TYPE_HANDLE, tensor) : tensor;
}

static void put_ports(struct packer *p, struct ane_buffer *b, const struct ane_ai_port *list, uint32_t n) {
  put_number(p, b, n);
  for (uint32_t i = 0; i < n; i++) put_number(p, b, type_of(p, &list[i].value->type));
}

static uint32_t function_type(struct packer *p, const struct ane_ai_function *f) {
  struct ane_buffer b = {0};
  put_number(p, &b, AI_TYPE_FUNCTION);
  put_ports(p, &b, f->outputs, f->n_outputs);
  put_ports(p, &b, f->inputs, f->n_inputs);
  return number_of(p, &p->types, &b);
}

/* ---- Operations -----------------------------------------------------------------------------------------------------*/

static void put_section(struct packer *p, struct ane_buffer *out, uint8_t id, const struct ane_buffer *body) {
  put(p, out, &id, 1);
  put_number(p, out, body->size);
  put(p, out, body->data, body->size);
}

static uint32_t op_number(struct packer *p, const char *name, int version) {
  char text[96];
  int len = version ? snprintf(text, sizeof text, "%s_v%d", name, version) : snprintf(text, sizeof text, "%s", name);
  (void)string(p, text);
  return number(p, &p->ops, text, (size_t)len);
}

/* Writes name, mask, location and properties (UINT32_MAX: none) of an operation. */
static void put_head(struct packer *p, struct ane_buffer *b, uint32_t op, uint8_t mask, uint32_t properties) {
  if (properties != UINT32_MAX) mask |= AI_HAS_PROPERTIES;
  put_number(p, b, op);
  put(p, b, &mask, 1);
  put_number(p, b, p->location);
  if (properties != UINT32_MAX) put_number(p, b, properties);
}

/* Writes an isolated region with one block. Isolated: it uses no values from outside. */
static void put_region(struct packer *p, struct ane_buffer *out, const struct ane_buffer *block, uint32_t values) {
  struct ane_buffer region = {0};
  put_number(p, &region, 1);
  put_number(p, &region, values);
  put(p, &region, block->data, block->size);
  put_number(p, out, 1 << 1 | 1); /* one region, isolated */
  put_section(p, out, AI_IR, &region);
  ane_buffer_free(&region);
}

static void put_block(struct packer *p, struct ane_buffer *b, const struct ane_ai_function *f, ane_ai_op_id end);

static void put_body(struct packer *p, struct ane_buffer *b, const struct ane_ai_op *op) {
  struct ane_ai_function made;
  const struct ane_ai_function *f = op->body;
  if (!f && !p->status) p->status = ai_body_make(&p->arena, op, &made, p->err);
  if (p->status) return;
  if (!f) f = &made;
  struct ane_buffer block = {0};
  put_block(p, &block, f, ANE_AI_YIELD);
  put_region(p, b, &block, (uint32_t)f->n_values);
  ane_buffer_free(&block);
}

static uint32_t op_properties(struct packer *p, const struct ane_ai_op *op) {
  if (op->id == ANE_AI_CONSTANT) return numbers(p, &p->properties, 1, attr_data(p, op->out));
  if (op->id == ANE_AI_GELU)
    return numbers(p, &p->properties, 1, numbers(p, &p->attributes, 2, (uint32_t)AI_ATTR_GELU, (uint32_t)op->gelu));
  if (op->id != ANE_AI_INVOKE) return UINT32_MAX;
  uint32_t none = attr_array(p, NULL, 0),
           scope = numbers(p, &p->attributes, 3, (uint32_t)AI_ATTR_SCOPE, 1u, string(p, op->callee));
  uint32_t symbol =
      numbers(p, &p->attributes, 3, (uint32_t)AI_ATTR_SYMBOL, scope, numbers(p, &p->types, 1, (uint32_t)AI_TYPE_NONE));
  return numbers(p, &p->properties, 3, none, symbol, none);
}

static void put_op(struct packer *p, struct ane_buffer *b, const struct ane_ai_op *op) {
  bool body = op->body || (op->id < ANE_AI_OPS && ai_rows[op->id].body != AI_BODY_NONE);
  uint8_t mask = (uint8_t)((op->n_out ? AI_HAS_RESULTS : 0) | (op->n_in ? AI_HAS_OPERANDS : 0) | (body ? AI_HAS_REGIONS : 0));
  uint32_t name = op_number(p, op->name, 0), properties = op_properties(p, op);
  put_head(p, b, name, mask, properties);
  if (op->n_out) put_number(p, b, op->n_out);
  for (uint32_t i = 0; i < op->n_out; i++) put_number(p, b, type_of(p, &op->out[i].type));
  if (op->n_in) put_number(p, b, op->n_in);
  for (uint32_t i = 0; i < op->n_in; i++) put_number(p, b, (uint32_t)op->in[i]->number);
  if (body) put_body(p, b, op);
}

/* Writes the block of a function or body: inputs, operations, and the terminator `end`. */
static void put_block(struct packer *p, struct ane_buffer *b, const struct ane_ai_function *f, ane_ai_op_id end) {
  static const uint8_t no_use_orders = 0;
  put_number(p, b, (uint64_t)(f->n_ops + 1) << 1 | (f->n_inputs > 0));
  if (f->n_inputs) put_number(p, b, f->n_inputs);
  for (uint32_t i = 0; i < f->n_inputs; i++) {
    put_number(p, b, (uint64_t)type_of(p, &f->inputs[i].value->type) << 1 | 1);
    put_number(p, b, p->location);
  }
  if (f->n_inputs) put(p, b, &no_use_orders, 1);
  for (uint32_t i = 0; i < f->n_ops && !p->status; i++) put_op(p, b, f->ops[i]);
  put_head(p, b, op_number(p, ai_rows[end].name, ai_rows[end].version), f->n_outputs ? AI_HAS_OPERANDS : 0, UINT32_MAX);
  if (f->n_outputs) put_number(p, b, f->n_outputs);
  for (uint32_t i = 0; i < f->n_outputs; i++) put_number(p, b, (uint32_t)f->outputs[i].value->number);
}

/* ---- Functions ------------------------------------------------------------------------------------------------------*/

/* The attributes of inputs or outputs: the name; of states also that the function changes them. */
static uint32_t port_attrs(struct packer *p, const struct ane_ai_port *list, uint32_t n) {
  uint32_t *all = ane_arena_array(&p->arena, (size_t)n + 1, sizeof *all);
  if (!all) return no_memory(p), 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t own[2], k = 0;
    if (list[i].value->type.kind == ANE_AI_HANDLE) own[k++] = attr_named(p, "MutableBuffers.buffer_mutation", list[i].name);
    own[k++] = attr_named(p, AI_DIALECT ".name", list[i].name);
    all[i] = attr_array(p, own, k);
  }
  return attr_array(p, all, n);
}

static uint32_t function_properties(struct packer *p, const struct ane_ai_function *f) {
  uint32_t inputs = port_attrs(p, f->inputs, f->n_inputs), type = attr_type(p, function_type(p, f)), no = attr_flag(p, false);
  uint32_t local = attr_flag(p, f->local), name = attr_string(p, f->name), none = attr_array(p, NULL, 0);
  uint32_t outputs = port_attrs(p, f->outputs, f->n_outputs);
  /* argAttrs, compositeDecl (0: none), externalize, functionType, isPrivate, name, noInline, paramDecls, resAttrs */
  return numbers(p, &p->properties, 9, inputs, 0u, no, type, local, name, no, none, outputs);
}

static void put_function(struct packer *p, struct ane_buffer *b, const struct ane_ai_function *f) {
  struct ane_buffer block = {0};
  p->location = attr_location(p, f->name);
  uint32_t op = op_number(p, "dataflow.graph", 1), properties = function_properties(p, f);
  put_head(p, b, op, AI_HAS_REGIONS, properties);
  put_block(p, &block, f, ANE_AI_OUTPUT);
  put_region(p, b, &block, (uint32_t)f->n_values);
  ane_buffer_free(&block);
}

static void put_program(struct packer *p, struct ane_buffer *ir, const struct ane_ai_program *program) {
  struct ane_buffer block = {0};
  uint32_t version = attr_integer(p, 32, AI_ASSET_VERSION);
  put_number(p, &block, (uint64_t)program->n_functions << 1);
  for (uint32_t i = 0; i < program->n_functions && !p->status; i++) put_function(p, &block, &program->functions[i]);
  p->location = attr_location(p, "main");
  put_number(p, ir, 1 << 1); /* the module: one block of one operation, without arguments */
  uint32_t op = op_number(p, "serialization.asset", 0);
  uint32_t properties = numbers(p, &p->properties, 2, 0u, version << 1 | 1); /* no compilation; the version */
  put_head(p, ir, op, AI_HAS_REGIONS, properties);
  put_region(p, ir, &block, 0);
  ane_buffer_free(&block);
}

/* ---- Sections -------------------------------------------------------------------------------------------------------*/

static void put_dialects(struct packer *p, struct ane_buffer *out) {
  struct ane_buffer b = {0}, version = {0};
  put_number(p, &version, AI_DIALECT_VERSION);
  put_number(p, &b, 1);
  put_number(p, &b, (uint64_t)string(p, AI_DIALECT) << 1 | 1); /* with a version */
  put_section(p, &b, AI_DIALECT_VERSIONS, &version);
  put_number(p, &b, count(&p->ops));
  put_number(p, &b, 0); /* of dialect 0: */
  put_number(p, &b, count(&p->ops));
  for (uint32_t i = 0; i < count(&p->ops); i++) {
    const struct row *r = &rows(&p->ops)[i];
    put_number(p, &b, (uint64_t)number(p, &p->strings, r->data, r->size) << 1 | 1); /* registered */
  }
  put_section(p, out, AI_DIALECTS, &b);
  ane_buffer_free(&version);
  ane_buffer_free(&b);
}

static void put_rows(struct packer *p, struct ane_buffer *offsets, struct ane_buffer *data, const struct table *t) {
  put_number(p, offsets, 0); /* of dialect 0: */
  put_number(p, offsets, count(t));
  for (uint32_t i = 0; i < count(t); i++) {
    put_number(p, offsets, (uint64_t)rows(t)[i].size << 1 | 1); /* in the dialect's encoding */
    put(p, data, rows(t)[i].data, rows(t)[i].size);
  }
}

static void put_attributes(struct packer *p, struct ane_buffer *out) {
  struct ane_buffer offsets = {0}, data = {0};
  put_number(p, &offsets, count(&p->attributes));
  put_number(p, &offsets, count(&p->types));
  put_rows(p, &offsets, &data, &p->attributes);
  put_rows(p, &offsets, &data, &p->types);
  put_section(p, out, AI_ATTRIBUTE_OFFSETS, &offsets);
  put_section(p, out, AI_ATTRIBUTES, &data);
  ane_buffer_free(&offsets);
  ane_buffer_free(&data);
}

static void put_resources(struct packer *p, struct ane_buffer *out, const uint64_t *entries, uint32_t n) {
  struct ane_buffer b = {0};
  put_number(p, &b, 0);        /* none outside dialects */
  if (n) put_number(p, &b, 0); /* of dialect 0: */
  if (n) put_number(p, &b, n);
  for (uint32_t i = 0; i < n; i++) {
    static const uint8_t blob = 0;
    char key[32];
    snprintf(key, sizeof key, "resource_%u", (unsigned)i);
    put_number(p, &b, string(p, key));
    put_number(p, &b, entries[i]);
    put(p, &b, &blob, 1);
  }
  put_section(p, out, AI_RESOURCE_OFFSETS, &b);
  ane_buffer_free(&b);
}

/* Writes the strings: their sizes in reverse order, then the bytes, each with a final NUL. */
static void put_strings(struct packer *p, struct ane_buffer *out) {
  struct ane_buffer b = {0};
  uint32_t n = count(&p->strings);
  put_number(p, &b, n);
  for (uint32_t i = n; i-- > 0;) put_number(p, &b, rows(&p->strings)[i].size + 1);
  for (uint32_t i = 0; i < n; i++) put(p, &b, rows(&p->strings)[i].data, rows(&p->strings)[i].size + 1);
  put_section(p, out, AI_STRINGS, &b);
  ane_buffer_free(&b);
}

static void put_properties(struct packer *p, struct ane_buffer *out) {
  struct ane_buffer b = {0};
  put_number(p, &b, count(&p->properties));
  for (uint32_t i = 0; i < count(&p->properties); i++) {
    put_number(p, &b, rows(&p->properties)[i].size);
    put(p, &b, rows(&p->properties)[i].data, rows(&p->properties)[i].size);
  }
  put_section(p, out, AI_PROPERTIES, &b);
  ane_buffer_free(&b);
}

static void free_table(struct table *t) {
  ane_strmap_free(&t->map);
  ane_buffer_free(&t->rows);
}

ane_status ai_pack(const struct ane_ai_program *program, const uint64_t *entries, uint32_t n, struct ane_buffer *out,
                   struct ane_error *err) {
  struct packer p = {.err = err};
  struct ane_buffer ir = {0};
  put_program(&p, &ir, program);
  put_dialects(&p, out);
  put_attributes(&p, out);
  put_section(&p, out, AI_IR, &ir);
  put_resources(&p, out, entries, n);
  put_strings(&p, out);
  put_properties(&p, out);
  ane_buffer_free(&ir);
  struct table *tables[] = {&p.strings, &p.attributes, &p.types, &p.ops, &p.properties};
  for (size_t i = 0; i < ANE_COUNT(tables); i++) free_table(tables[i]);
  ane_arena_free(&p.arena);
  return p.status;
}
