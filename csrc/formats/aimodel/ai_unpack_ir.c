/* Reads the program of an asset: types, attributes, operations. */
#include "formats/aimodel/ai_unpack.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 24, MAX_PORT_ATTRS = 64 };

static ane_status no_memory(const struct ai_file *f) { return ane_fail(f->err, ANE_NOMEM, "no memory for the program"); }

/* ---- Types ----------------------------------------------------------------------------------------------------------*/

/* Opens entry `index` of a table: sets *s to its bytes after the code that they begin with, and *code to that code. at: offset
 * of the index in the file, for messages. */
static ane_status open_entry(const struct ai_file *f, const struct ai_entry *list, uint32_t n, uint64_t index, const char *what,
                             struct ai_span *s, uint64_t *code, uint64_t at) {
  *code = 0;
  *s = (struct ai_span){0};
  if (index >= n) return ai_wrong(f, at, "%s %" PRIu64 " of %u", what, index, (unsigned)n);
  *s = ai_span_of(f, list[index].at, list[index].size);
  if (!list[index].custom) return ai_wrong(f, s->at, "%s %" PRIu64 " is written as text", what, index);
  return ai_read_number(s, code) ? ANE_OK : ai_wrong(f, s->at, "%s %" PRIu64 " is empty", what, index);
}

static ane_status open_type(const struct ai_file *f, uint64_t index, struct ai_span *s, uint64_t *code, uint64_t at) {
  return open_entry(f, f->types, f->n_types, index, "type", s, code, at);
}

static ane_status open_attribute(const struct ai_file *f, uint64_t index, struct ai_span *s, uint64_t *code, uint64_t at) {
  return open_entry(f, f->attributes, f->n_attributes, index, "attribute", s, code, at);
}

static ane_status read_layout(const struct ai_file *f, uint64_t attribute, struct ane_ai_type *t, uint64_t at) {
  struct ai_span s;
  uint64_t code, n;
  int64_t v;
  ane_status st = open_attribute(f, attribute, &s, &code, at);
  if (st) return st;
  if (code != AI_ATTR_LAYOUT) return ANE_OK; /* other layouts (images, sparse tensors) do not change results */
  if (!ai_read_number(&s, &n) || n != (uint64_t)t->rank + 1) return ai_wrong(f, s.at, "a layout does not fit its tensor");
  for (uint64_t i = 0; i < n; i++)
    if (!ai_read_signed(&s, &v)) return ai_wrong(f, s.at, "a layout is truncated");
  if (!ai_read_number(&s, &n) || n != (uint64_t)t->rank) return ai_wrong(f, s.at, "a layout does not fit its tensor");
  for (uint64_t i = 0; i < n; i++)
    if (!ai_read_signed(&s, &t->interleave[i]) || t->interleave[i] < 1) return ai_wrong(f, s.at, "a layout is out of range");
  return ANE_OK;
}

static ane_status read_tensor(const struct ai_file *f, struct ai_span *s, bool laid_out, struct ane_ai_type *out) {
  uint64_t rank, element, code, layout, at = s->at;
  struct ai_span e;
  *out = (struct ane_ai_type){.kind = ANE_AI_TENSOR};
  if (!ai_read_number(s, &rank)) return ai_wrong(f, at, "a tensor is truncated");
  if (rank > ANE_AI_RANK)
    return ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": a tensor of %" PRIu64 " dimensions", at, rank);
  out->rank = (int32_t)rank;
  for (uint64_t i = 0; i < rank; i++) {
    if (!ai_read_signed(s, &out->dim[i])) return ai_wrong(f, s->at, "a tensor is truncated");
    if (out->dim[i] < 0) out->dim[i] = ANE_AI_UNKNOWN;
  }
  if (!ai_read_number(s, &element)) return ai_wrong(f, s->at, "a tensor is truncated");
  ane_status st = open_type(f, element, &e, &code, s->at);
  if (st) return st;
  if (code > INT32_MAX || !ane_ai_dtype_bits((ane_ai_dtype)code))
    return ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": a tensor of elements of type %" PRIu64, e.at, code);
  out->dtype = (ane_ai_dtype)code;
  if (!laid_out) return ANE_OK;
  return ai_read_number(s, &layout) ? read_layout(f, layout, out, s->at) : ai_wrong(f, s->at, "a tensor is truncated");
}

static ane_status read_type(const struct ai_file *f, uint64_t index, struct ane_ai_type *out, uint64_t at) {
  struct ai_span s;
  uint64_t code, inner;
  ane_status st = open_type(f, index, &s, &code, at);
  if (st) return st;
  bool handle = code == AI_TYPE_HANDLE;
  if (handle) {
    uint64_t from = s.at;
    if (!ai_read_number(&s, &inner)) return ai_wrong(f, s.at, "a state is truncated");
    st = open_type(f, inner, &s, &code, from);
  }
  if (st) return st;
  if (code == AI_TYPE_TENSOR || code == AI_TYPE_LAID_OUT) {
    st = read_tensor(f, &s, code == AI_TYPE_LAID_OUT, out);
    if (handle) out->kind = ANE_AI_HANDLE;
    return st;
  }
  *out = (struct ane_ai_type){.kind = ANE_AI_TOKEN};
  if (code == AI_TYPE_TOKEN && !handle) return ANE_OK;
  return ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": a value of type %" PRIu64, s.at, code);
}

/* ---- Attributes -----------------------------------------------------------------------------------------------------*/

static ane_status read_string(const struct ai_file *f, uint64_t index, const char **out, uint64_t at) {
  struct ai_span s;
  uint64_t code;
  uint32_t n;
  ane_status st = open_attribute(f, index, &s, &code, at);
  if (st) return st;
  if (code != AI_ATTR_STRING || !ai_read_index(&s, f->n_strings, &n))
    return ai_wrong(f, s.at, "attribute %" PRIu64 " is not a string", index);
  *out = f->strings[n];
  return ANE_OK;
}

static ane_status open_array(const struct ai_file *f, uint64_t index, struct ai_span *s, uint64_t *n, uint64_t at) {
  uint64_t code;
  *n = 0;
  ane_status st = open_attribute(f, index, s, &code, at);
  if (st) return st;
  return code == AI_ATTR_ARRAY && ai_read_number(s, n) && *n <= s->end - s->at
             ? ANE_OK
             : ai_wrong(f, s->at, "attribute %" PRIu64 " is not an array", index);
}

/* Reads the name of an input or output from its attributes. */
static ane_status port_name(const struct ai_file *f, uint64_t index, const char **out, uint64_t at) {
  struct ai_span s, own;
  uint64_t n, item, code = 0, count, text;
  uint32_t key;
  ane_status st = open_array(f, index, &s, &n, at);
  if (!st && n > MAX_PORT_ATTRS) st = ai_wrong(f, s.at, "%" PRIu64 " attributes of a port", n);
  for (uint64_t i = 0; i < n && !st; i++) {
    uint64_t from = s.at;
    st = ai_read_number(&s, &item) ? open_attribute(f, item, &own, &code, from) : ai_wrong(f, s.at, "an array is truncated");
    if (st || code != AI_ATTR_NAMED || !ai_read_index(&own, f->n_strings, &key) ||
        strcmp(f->strings[key], AI_DIALECT ".name") != 0)
      continue;
    from = own.at;
    if (!ai_read_number(&own, &count) || count != 1 || !ai_read_number(&own, &text))
      return ai_wrong(f, from, "a port has no name");
    st = read_string(f, text, out, from);
  }
  return st;
}

static ane_status port_names(struct ai_file *f, uint64_t index, struct ane_ai_port *list, uint32_t n, uint64_t at) {
  struct ai_span s;
  uint64_t count = 0, item;
  ane_status st = open_array(f, index, &s, &count, at);
  if (st) return st;
  for (uint32_t i = 0; i < n && !st; i++) {
    uint64_t from = s.at;
    list[i].name = "";
    if (i >= count) continue;
    st = ai_read_number(&s, &item) ? port_name(f, item, &list[i].name, from) : ai_wrong(f, s.at, "an array is truncated");
  }
  return st;
}

static ane_status symbol(const struct ai_file *f, uint64_t index, const char **out, uint64_t at) {
  struct ai_span s;
  uint64_t code, scope, n;
  uint32_t name;
  ane_status st = open_attribute(f, index, &s, &code, at);
  if (!st && code == AI_ATTR_SYMBOL) {
    uint64_t from = s.at;
    st = ai_read_number(&s, &scope) ? open_attribute(f, scope, &s, &code, from) : ai_wrong(f, s.at, "a symbol is truncated");
  }
  if (st) return st;
  if (code != AI_ATTR_SCOPE || !ai_read_number(&s, &n) || n != 1 || !ai_read_index(&s, f->n_strings, &name))
    return ai_wrong(f, s.at, "attribute %" PRIu64 " names no function", index);
  *out = f->strings[name];
  return ANE_OK;
}

/* Reads the elements of a constant of this type. Of a resource that is longer than the type needs, the first bytes are used, as
 * in Apple's runtime. */
static ane_status constant(const struct ai_file *f, uint64_t index, const struct ane_ai_type *t, struct ane_ai_data *out,
                           uint64_t at) {
  struct ai_span s;
  uint64_t code, count, all, one, size;
  uint32_t resource;
  uint8_t splat;
  ane_status st = open_attribute(f, index, &s, &code, at);
  if (st) return st;
  if (t->kind != ANE_AI_TENSOR || !ane_ai_count(t, &count) || !ane_ai_bytes(t->dtype, count, &all) ||
      !ane_ai_bytes(t->dtype, 1, &one))
    return ai_wrong(f, at, "a constant of unknown size");
  if (code == AI_ATTR_RESOURCE) {
    if (!ai_read_index(&s, f->n_resources, &resource)) return ai_wrong(f, s.last, "a constant of an unknown resource");
    const struct ai_entry *e = &f->resources[resource];
    if (e->size < all)
      return ai_wrong(f, e->at, "resource %u has %" PRIu64 " bytes, but must have %" PRIu64, (unsigned)resource, e->size, all);
    *out = (struct ane_ai_data){f->data + e->at, all, false, (int32_t)resource};
    return ANE_OK;
  }
  if (code != AI_ATTR_ELEMENTS || !ai_read_byte(&s, &splat) || !ai_read_number(&s, &size) || size > s.end - s.at)
    return ai_wrong(f, s.at, "attribute %" PRIu64 " holds no elements", index);
  if (splat > 1 || size < (splat ? one : all) || (!splat && size != all))
    return ai_wrong(f, s.at, "%" PRIu64 " bytes of elements, expected %" PRIu64, size, splat ? one : all);
  *out = (struct ane_ai_data){f->data + s.at, splat ? one : all, splat, -1};
  return ANE_OK;
}

/* ---- Operations -----------------------------------------------------------------------------------------------------*/

/* A region that is being read, with the values and operations so far. Its values are numbered from `first`: after all values of
 * the region around it, if it uses these, else from 0. */
struct region {
  struct ane_buffer values; /* of struct ane_ai_value * */
  struct ane_buffer ops;    /* of struct ane_ai_op * */
  const struct ane_ai_op *end;
  uint32_t n_inputs;
  uint64_t first, declared; /* declared: how many values the file says it has */
  uint64_t bound;           /* of the numbers so far, with those of regions inside */
  const struct region *outer;
  uint32_t outer_known; /* how many values of `outer` are defined before it */
};

static void free_region(struct region *r) {
  ane_buffer_free(&r->values);
  ane_buffer_free(&r->ops);
}

static uint32_t n_values(const struct region *r) { return (uint32_t)(r->values.size / sizeof(struct ane_ai_value *)); }

/* The value of this number among the first `known` of the region and those before it outside; NULL: none. */
static const struct ane_ai_value *value_of(const struct region *r, uint32_t known, uint32_t number) {
  for (; r && number < r->first; r = r->outer) known = r->outer_known;
  if (!r || number - r->first >= known) return NULL;
  return ((struct ane_ai_value **)(void *)r->values.data)[number - r->first];
}

/* Defines n values; the indices of their types follow. flagged: the lowest bit of each says that a location follows it. */
static ane_status define(struct ai_file *f, struct region *r, struct ai_span *s, uint32_t n, bool flagged,
                         const struct ane_ai_op *op, struct ane_ai_value **out) {
  struct ane_ai_value *list = ane_arena_array(f->arena, (size_t)n + 1, sizeof *list);
  if (!list) return no_memory(f);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t type, location, at = s->at;
    struct ane_ai_value *v = &list[i];
    if (!ai_read_number(s, &type)) return ai_wrong(f, at, "a list of types is truncated");
    if (flagged && type & 1 && !ai_read_number(s, &location)) return ai_wrong(f, s->at, "a location is truncated");
    ane_status st = read_type(f, flagged ? type >> 1 : type, &v->type, at);
    if (st) return st;
    if (n_values(r) >= r->declared) return ai_wrong(f, at, "a region has more values than it declares");
    v->number = (int32_t)(r->first + n_values(r));
    v->op = op;
    if (!ane_buffer_append(&r->values, &v, sizeof v)) return no_memory(f);
  }
  *out = list;
  return ANE_OK;
}

static ane_ai_op_id row_of(const char *name) {
  char text[96];
  for (int i = 0; i < ANE_AI_OPS; i++) {
    snprintf(text, sizeof text, "%s_v%d", ai_rows[i].name, ai_rows[i].version);
    if (strcmp(text, name) == 0) return (ane_ai_op_id)i;
  }
  return ANE_AI_OPS;
}

/* The head of an operation, without what is skipped (location, attributes). */
struct head {
  const char *name;
  uint8_t mask;
  uint64_t at, properties; /* UINT64_MAX: none */
};

static ane_status read_head(struct ai_file *f, struct ai_span *s, struct head *h) {
  uint32_t name;
  uint64_t skipped;
  *h = (struct head){.name = "", .at = s->at, .properties = UINT64_MAX};
  if (!ai_read_index(s, f->n_ops, &name)) return ai_wrong(f, h->at, "an operation without a name");
  if (!ai_read_byte(s, &h->mask) || !ai_read_number(s, &skipped)) return ai_wrong(f, s->at, "an operation is truncated");
  if (h->mask & ~(AI_HAS_ATTRIBUTES | AI_HAS_RESULTS | AI_HAS_OPERANDS | AI_HAS_REGIONS | AI_HAS_PROPERTIES))
    return ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": an operation with successors or use-list orders", h->at);
  if (h->mask & AI_HAS_ATTRIBUTES && !ai_read_number(s, &skipped)) return ai_wrong(f, s->at, "an operation is truncated");
  if (h->mask & AI_HAS_PROPERTIES && !ai_read_number(s, &h->properties)) return ai_wrong(f, s->at, "an operation is truncated");
  if (h->mask & AI_HAS_PROPERTIES && h->properties >= f->n_properties)
    return ai_wrong(f, s->at, "property %" PRIu64 " of %u", h->properties, (unsigned)f->n_properties);
  h->name = f->ops[name].name;
  size_t own = sizeof AI_DIALECT;
  bool prefixed = strncmp(h->name, AI_DIALECT ".", own) == 0;
  if (prefixed) h->name += own;
  return f->ops[name].known || prefixed
             ? ANE_OK
             : ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": operation %.64s of another dialect", h->at, h->name);
}

/* Reads the operands, which must be among the first `known` values of the region, or outside before it. */
static ane_status read_operands(struct ai_file *f, struct ai_span *s, const struct region *r, uint32_t known,
                                struct ane_ai_op *op) {
  uint64_t at = s->at;
  if (!ai_read_index(s, s->end - s->at + 1, &op->n_in)) return ai_wrong(f, at, "an operation is truncated");
  const struct ane_ai_value **in = ane_arena_array(f->arena, (size_t)op->n_in + 1, sizeof *in);
  if (!in) return no_memory(f);
  for (uint32_t i = 0, v; i < op->n_in; i++) {
    in[i] = ai_read_index(s, UINT32_MAX, &v) ? value_of(r, known, v) : NULL;
    if (!in[i]) return ai_wrong(f, s->last, "an operand of %.64s is not an earlier value", op->name);
  }
  op->in = in;
  return ANE_OK;
}

/* Reads the mode of an operation: an attribute that holds a number. */
static ane_status read_mode(struct ai_file *f, uint64_t index, struct ane_ai_op *op, uint64_t at) {
  struct ai_span s;
  uint64_t code, mode;
  ane_status st = open_attribute(f, index, &s, &code, at);
  if (st) return st;
  bool pad = op->id == ANE_AI_PAD, gelu = op->id == ANE_AI_GELU, read = ai_read_number(&s, &mode);
  if (!read || (pad && code != AI_ATTR_PAD) || (gelu && code != AI_ATTR_GELU) || mode > UINT8_MAX ||
      (pad && mode > ANE_AI_PAD_CIRCULAR) || (gelu && mode > ANE_AI_GELU_SIGMOID))
    return ai_wrong(f, s.at, "%.64s has an unknown mode", op->name);
  if (pad)
    op->pad = (ane_ai_pad_mode)mode;
  else if (gelu)
    op->gelu = (ane_ai_gelu_kind)mode;
  else
    op->mode = (uint32_t)mode;
  return ANE_OK;
}

/* Reads the properties of constants and calls, and the modes of operations. Those of other operations are skipped. */
static ane_status read_properties(struct ai_file *f, const struct head *h, struct ane_ai_op *op) {
  bool mode = op->id == ANE_AI_GELU || op->id == ANE_AI_PAD || op->id == ANE_AI_SCAN || op->id == ANE_AI_SCATTER_ALONG_AXIS ||
              op->id == ANE_AI_INTERPOLATE;
  if (!mode && op->id != ANE_AI_CONSTANT && op->id != ANE_AI_INVOKE) return ANE_OK;
  if (h->properties == UINT64_MAX) return ai_wrong(f, h->at, "%.64s has no properties", op->name);
  const struct ai_entry *e = &f->properties[h->properties];
  struct ai_span s = ai_span_of(f, e->at, e->size);
  uint64_t first, second;
  if (!ai_read_number(&s, &first)) return ai_wrong(f, e->at, "the properties of %.64s are truncated", op->name);
  if (mode) return read_mode(f, first, op, e->at);
  if (op->id == ANE_AI_CONSTANT)
    return op->n_out == 1 ? constant(f, first, &op->out->type, &op->data, e->at)
                          : ai_wrong(f, h->at, "a constant has one result");
  return ai_read_number(&s, &second) ? symbol(f, second, &op->callee, e->at) : ai_wrong(f, s.at, "a call is truncated");
}

static ane_status read_region(struct ai_file *f, struct ai_span *s, struct region *r, int depth);

/* Turns a region that has been read into a function without names. */
static ane_status close_region(struct ai_file *f, const struct region *r, struct ane_ai_function *out) {
  uint32_t n_out = r->end ? r->end->n_in : 0, n_ops = (uint32_t)(r->ops.size / sizeof(struct ane_ai_op *));
  struct ane_ai_port *in = ane_arena_array(f->arena, (size_t)r->n_inputs + 1, sizeof *in);
  struct ane_ai_port *results = ane_arena_array(f->arena, (size_t)n_out + 1, sizeof *results);
  const struct ane_ai_op **ops = ane_arena_array(f->arena, (size_t)n_ops + 1, sizeof *ops);
  if (!in || !results || !ops) return no_memory(f);
  for (uint32_t i = 0; i < r->n_inputs; i++)
    in[i] = (struct ane_ai_port){"", ((struct ane_ai_value **)(void *)r->values.data)[i]};
  for (uint32_t i = 0; i < n_out; i++) results[i] = (struct ane_ai_port){"", r->end->in[i]};
  if (n_ops) memcpy(ops, r->ops.data, r->ops.size);
  *out = (struct ane_ai_function){.name = "",
                                  .inputs = in,
                                  .outputs = results,
                                  .ops = ops,
                                  .n_inputs = r->n_inputs,
                                  .n_outputs = n_out,
                                  .n_ops = n_ops,
                                  .n_values = (int32_t)r->bound};
  return ANE_OK;
}

/* The regions of an operation. open: they use values of the region around them. */
struct regions {
  struct ane_ai_function *list;
  uint32_t n;
  bool open;
};

/* Sets *s to the bytes of an isolated region, which is a section of its own, and *from after them. */
static bool open_isolated(const struct ai_file *f, struct ai_span *from, struct ai_span *s) {
  uint64_t size;
  uint8_t id;
  if (!ai_read_byte(from, &id) || id != AI_IR || !ai_read_number(from, &size) || size > from->end - from->at) return false;
  *s = ai_span_of(f, from->at, size);
  from->at += size;
  return true;
}

/* Reads the regions of an operation after the first `known` values of *outer (NULL: of the asset). */
static ane_status read_regions(struct ai_file *f, struct ai_span *s, const char *name, struct region *outer, uint32_t known,
                               struct regions *out, int depth) {
  uint64_t n, at = s->at;
  *out = (struct regions){0};
  if (!ai_read_number(s, &n)) return ai_wrong(f, at, "an operation is truncated");
  out->open = !(n & 1) && n;
  n >>= 1;
  if (depth >= MAX_DEPTH) return ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": regions are nested too deep", at);
  if (n > s->end - s->at) return ai_wrong(f, at, "%" PRIu64 " regions in %" PRIu64 " bytes", n, s->end - s->at);
  if (out->open && !outer) return ai_wrong(f, at, "a region of %.64s is not isolated", name);
  out->list = ane_arena_array(f->arena, (size_t)n + 1, sizeof *out->list);
  if (!out->list) return no_memory(f);
  ane_status st = ANE_OK;
  for (; out->n < n && !st; out->n++) {
    struct ai_span own;
    struct region r = {0};
    at = s->at;
    if (out->open)
      r.outer = outer, r.outer_known = known, r.first = outer->first + outer->declared;
    else if (!open_isolated(f, s, &own))
      return ai_wrong(f, at, "a region of %.64s is truncated", name);
    st = read_region(f, out->open ? s : &own, &r, depth + 1);
    if (!st) st = close_region(f, &r, &out->list[out->n]);
    if (out->open) outer->bound = ANE_MAX(outer->bound, r.bound);
    free_region(&r);
  }
  return st;
}

static ane_status read_op(struct ai_file *f, struct ai_span *s, struct region *r, bool last, int depth) {
  struct head h;
  struct ane_ai_op *op = ane_arena_alloc(f->arena, sizeof *op);
  struct regions regions = {0};
  if (!op) return no_memory(f);
  ane_status st = read_head(f, s, &h);
  if (st) return st;
  uint64_t from = s->at;
  *op = (struct ane_ai_op){.id = row_of(h.name), .name = h.name, .data = {.resource = -1}};
  if (h.mask & AI_HAS_RESULTS && !ai_read_index(s, s->end - s->at + 1, &op->n_out))
    return ai_wrong(f, from, "an operation is truncated");
  uint32_t known = n_values(r); /* results come before the operands, which may not refer to them */
  st = define(f, r, s, op->n_out, false, op, &op->out);
  if (!st && h.mask & AI_HAS_OPERANDS) st = read_operands(f, s, r, known, op);
  if (!st) st = read_properties(f, &h, op);
  if (!st && h.mask & AI_HAS_REGIONS) {
    st = read_regions(f, s, op->name, r, known, &regions, depth);
    op->body = regions.n && !regions.open ? regions.list : NULL;
    if (regions.open) op->regions = regions.list, op->n_regions = regions.n;
  }
  if (st) return st;
  bool ends = op->id == ANE_AI_OUTPUT || op->id == ANE_AI_YIELD || op->id == ANE_AI_CONDITION;
  if (ends && last) return r->end = op, ANE_OK;
  if (ends) return ai_wrong(f, h.at, "%.64s is not the last operation", op->name);
  return ane_buffer_append(&r->ops, &op, sizeof op) ? ANE_OK : no_memory(f);
}

static ane_status read_region(struct ai_file *f, struct ai_span *s, struct region *r, int depth) {
  uint64_t blocks, head, n, at = s->at;
  uint8_t orders;
  struct ane_ai_value *args;
  if (!ai_read_number(s, &blocks)) return ai_wrong(f, at, "a region is truncated");
  if (blocks == 0) return ANE_OK;
  if (blocks != 1) return ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": a region of %" PRIu64 " blocks", at, blocks);
  if (!ai_read_number(s, &r->declared) || !ai_read_number(s, &head)) return ai_wrong(f, s->at, "a region is truncated");
  if (r->declared > s->end - s->at || r->first + r->declared > INT32_MAX)
    return ai_wrong(f, at, "%" PRIu64 " values in %" PRIu64 " bytes", r->declared, s->end - s->at);
  r->bound = r->first + r->declared;
  if (head & 1) {
    at = s->at;
    if (!ai_read_index(s, s->end - s->at + 1, &r->n_inputs)) return ai_wrong(f, at, "a block is truncated");
    ane_status st = define(f, r, s, r->n_inputs, true, NULL, &args);
    if (st) return st;
    if (!ai_read_byte(s, &orders) || orders) return ai_wrong(f, s->at, "a block with use-list orders");
  }
  n = head >> 1;
  if (n > s->end - s->at) return ai_wrong(f, s->at, "%" PRIu64 " operations in %" PRIu64 " bytes", n, s->end - s->at);
  ane_status st = ANE_OK;
  for (uint64_t i = 0; i < n && !st; i++) st = read_op(f, s, r, i + 1 == n, depth);
  if (!st && n_values(r) != r->declared) st = ai_wrong(f, at, "a region has fewer values than it declares");
  return st;
}

/* ---- The program ----------------------------------------------------------------------------------------------------*/

/* argAttrs, compositeDecl, externalize, functionType, isPrivate, name, noInline, paramDecls, resAttrs */
enum { P_INPUTS, P_COMPOSITE, P_EXTERNALIZE, P_TYPE, P_PRIVATE, P_NAME, P_NO_INLINE, P_PARAMS, P_OUTPUTS, P_COUNT };

static ane_status read_function(struct ai_file *f, struct ai_span *s, struct ane_ai_function *out) {
  struct head h;
  uint64_t p[P_COUNT], code;
  struct regions regions;
  ane_status st = read_head(f, s, &h);
  if (st) return st;
  if (strcmp(h.name, "dataflow.graph_v1") != 0)
    return ane_fail(f->err, ANE_UNSUPPORTED, "byte %" PRIu64 ": %.64s among the functions", h.at, h.name);
  if (h.properties == UINT64_MAX || h.mask & (AI_HAS_RESULTS | AI_HAS_OPERANDS) || !(h.mask & AI_HAS_REGIONS))
    return ai_wrong(f, h.at, "a function without properties or region, or with results or operands");
  const struct ai_entry *e = &f->properties[h.properties];
  struct ai_span list = ai_span_of(f, e->at, e->size), flag = {0};
  for (int i = 0; i < P_COUNT; i++)
    if (!ai_read_number(&list, &p[i])) return ai_wrong(f, e->at, "the properties of a function are truncated");
  st = read_regions(f, s, h.name, NULL, 0, &regions, 0);
  if (!st && !regions.n) st = ai_wrong(f, h.at, "a function has no body");
  if (!st) *out = regions.list[0];
  if (!st) st = read_string(f, p[P_NAME], &out->name, e->at);
  if (!st) st = port_names(f, p[P_INPUTS], (struct ane_ai_port *)(uintptr_t)out->inputs, out->n_inputs, e->at);
  if (!st) st = port_names(f, p[P_OUTPUTS], (struct ane_ai_port *)(uintptr_t)out->outputs, out->n_outputs, e->at);
  if (!st) st = open_attribute(f, p[P_PRIVATE], &flag, &code, e->at);
  if (!st) out->local = flag.end > flag.at && f->data[flag.end - 1] & 1; /* an integer of one bit ends with its byte */
  return st;
}

ane_status ai_unpack_program(struct ai_file *f) {
  struct ai_span s = f->sections[AI_IR];
  struct head h;
  uint64_t n, size, blocks, values, head;
  uint8_t id;
  /* The module has one block with one operation, the asset. The asset has one isolated region of one block. */
  if (!ai_read_number(&s, &n) || n != 1 << 1) return ai_wrong(f, s.at, "the module does not hold one operation");
  ane_status st = read_head(f, &s, &h);
  if (st) return st;
  if (strcmp(h.name, "serialization.asset") != 0 || !(h.mask & AI_HAS_REGIONS))
    return ai_wrong(f, h.at, "is not a Core AI asset");
  if (!ai_read_number(&s, &n) || n != (1 << 1 | 1) || !ai_read_byte(&s, &id) || id != AI_IR || !ai_read_number(&s, &size) ||
      size > s.end - s.at)
    return ai_wrong(f, s.at, "the region of the asset is truncated");
  s.end = s.at + size;
  if (!ai_read_number(&s, &blocks) || blocks != 1 || !ai_read_number(&s, &values) || !ai_read_number(&s, &head) || head & 1 ||
      head >> 1 > s.end - s.at)
    return ai_wrong(f, s.at, "the asset is not one block of functions");
  struct ane_ai_function *list = ane_arena_array(f->arena, (size_t)(head >> 1) + 1, sizeof *list);
  f->program = ane_arena_alloc(f->arena, sizeof *f->program);
  if (!list || !f->program) return no_memory(f);
  for (uint64_t i = 0; i < head >> 1 && !st; i++) st = read_function(f, &s, &list[i]);
  *f->program = (struct ane_ai_program){list, (uint32_t)(head >> 1)};
  return st;
}
