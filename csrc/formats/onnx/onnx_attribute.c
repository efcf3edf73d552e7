/* AttributeProto: a value of the type that it names, or a reference to an attribute of the calling node. */
#include "formats/onnx/onnx_internal.h"

#include "formats/wire.h"

#include <stdio.h>
#include <string.h>

static ane_status copy_text(struct onnx_reader *r, const ProtobufCBinaryData *ref, struct ane_onnx_text *out) {
  const uint8_t *p = ane_wire_view(ref, r->s->files[0].map.data, &out->len);
  out->data = onnx_strndup(r, (const char *)p, out->len);
  return out->data ? ANE_OK : onnx_no_memory(r);
}

static ane_status copy_texts(struct onnx_reader *r, const AneOnnx__Attribute *a, struct ane_onnx_attr *out) {
  struct ane_onnx_text *t = onnx_array(r, a->n_strings, sizeof *t);
  if (!t) return onnx_no_memory(r);
  for (size_t i = 0; i < a->n_strings; i++) {
    ane_status st = copy_text(r, &a->strings[i], &t[i]);
    if (st) return st;
  }
  out->strings = t;
  out->n = a->n_strings;
  return ANE_OK;
}

static ane_status copy_numbers(struct onnx_reader *r, const void *from, size_t n, size_t size, const void **to) {
  void *p = onnx_array(r, n, size);
  if (!p) return onnx_no_memory(r);
  if (n) memcpy(p, from, n * size);
  *to = p;
  return ANE_OK;
}

/* The type of an attribute in old files, which do not state it: that of the field that is present. */
static int guess_type(const AneOnnx__Attribute *a) {
  return a->has_f       ? ANE_ONNX_FLOAT
         : a->has_i     ? ANE_ONNX_INT
         : a->has_s     ? ANE_ONNX_STRING
         : a->t         ? ANE_ONNX_TENSOR
         : a->g         ? ANE_ONNX_GRAPH
         : a->n_floats  ? ANE_ONNX_FLOATS
         : a->n_ints    ? ANE_ONNX_INTS
         : a->n_strings ? ANE_ONNX_STRINGS
                        : 0;
}

/* Are all values in the field of the stated type? If not, it is not clear which value counts. */
static bool only_of_type(const AneOnnx__Attribute *a, int type) {
  return (type == ANE_ONNX_FLOAT || !a->has_f) && (type == ANE_ONNX_INT || !a->has_i) && (type == ANE_ONNX_STRING || !a->has_s) &&
         (type == ANE_ONNX_TENSOR || !a->t) && (type == ANE_ONNX_GRAPH || !a->g) && (type == ANE_ONNX_FLOATS || !a->n_floats) &&
         (type == ANE_ONNX_INTS || !a->n_ints) && (type == ANE_ONNX_STRINGS || !a->n_strings);
}

static ane_status read_tensor(struct onnx_reader *r, const char *node, const AneOnnx__Attribute *a, struct ane_onnx_attr *out) {
  char what[2 * ANE_QUOTE_TEXT + 32];
  if (!a->t) return onnx_fail(r, ANE_FORMAT, "node %s: attribute %s holds no tensor", node, out->name);
  struct ane_onnx_tensor *t = ane_arena_alloc(&r->s->arena, sizeof *t);
  if (!t) return onnx_no_memory(r);
  snprintf(what, sizeof what, "node %.80s: attribute %.80s", node, out->name);
  out->t = t;
  return onnx_tensor(r, a->t, what, t);
}

static ane_status read_graph(struct onnx_reader *r, const struct onnx_scope *scope, const char *node, const AneOnnx__Attribute *a,
                             struct ane_onnx_attr *out) {
  if (!a->g) return onnx_fail(r, ANE_FORMAT, "node %s: attribute %s holds no graph", node, out->name);
  if (scope->depth >= ONNX_MAX_DEPTH)
    return onnx_fail(r, ANE_FORMAT, "node %s: calls and subgraphs are nested deeper than %d", node, ONNX_MAX_DEPTH);
  struct ane_onnx_graph *g = ane_arena_alloc(&r->s->arena, sizeof *g);
  if (!g) return onnx_no_memory(r);
  out->g = g;
  return onnx_graph(r, scope, a->g, g);
}

/* The attribute of the caller, or the function's default, which the caller adds to the same list. */
static bool refer(const struct onnx_scope *scope, const char *ref, struct ane_onnx_attr *out) {
  for (const struct onnx_scope *s = scope; s; s = s->outer)
    for (int32_t i = 0; i < s->n_given; i++) {
      if (strcmp(s->given[i].name, ref) != 0) continue;
      const char *name = out->name;
      *out = s->given[i];
      out->name = name;
      return true;
    }
  return false;
}

ane_status onnx_attribute(struct onnx_reader *r, const struct onnx_scope *scope, const char *node, const AneOnnx__Attribute *a,
                          struct ane_onnx_attr *out, bool *present) {
  char q[ANE_QUOTE_TEXT];
  int type = a->type ? a->type : guess_type(a);
  *present = true;
  *out = (struct ane_onnx_attr){.type = (ane_onnx_attr_type)type};
  if (!(out->name = onnx_copy(r, a->name))) return onnx_no_memory(r);
  if (a->ref_attr_name && *a->ref_attr_name) return *present = refer(scope, a->ref_attr_name, out), ANE_OK;
  ane_quote(q, out->name, strlen(out->name));
  if (!only_of_type(a, type))
    return onnx_fail(r, ANE_FORMAT, "node %s: attribute %s holds another value than its type %d says", node, q, type);
  switch (type) {
    case ANE_ONNX_FLOAT: return out->f = a->f, ANE_OK;
    case ANE_ONNX_INT: return out->i = a->i, ANE_OK;
    case ANE_ONNX_STRING: return copy_text(r, &a->s, &out->s);
    case ANE_ONNX_TENSOR: return read_tensor(r, node, a, out);
    case ANE_ONNX_GRAPH: return read_graph(r, scope, node, a, out);
    case ANE_ONNX_FLOATS:
      return out->n = a->n_floats, copy_numbers(r, a->floats, a->n_floats, sizeof *a->floats, (const void **)&out->floats);
    case ANE_ONNX_INTS:
      return out->n = a->n_ints, copy_numbers(r, a->ints, a->n_ints, sizeof *a->ints, (const void **)&out->ints);
    case ANE_ONNX_STRINGS: return copy_texts(r, a, out);
    default: return onnx_fail(r, ANE_UNSUPPORTED, "node %s: attribute %s is of type %d, which is not supported", node, q, type);
  }
}
