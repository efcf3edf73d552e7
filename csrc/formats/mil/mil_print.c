/* A model as text: see ane_mil_print. */
#include "formats/mil/mil_internal.h"

#include "base/hash64.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Elements of the longest tensor that is printed in full; longer ones are printed as a hash. */
enum { SHOWN = 16 };

/* ---- Words ---------------------------------------------------------------------------------------------------------*/

static bool put(struct ane_buffer *b, const char *fmt, ...) ANE_PRINTF(2, 3);
static bool put(struct ane_buffer *b, const char *fmt, ...) {
  char text[128];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return n >= 0 && ane_buffer_append(b, text, ANE_MIN((size_t)n, sizeof text - 1));
}

static bool plain(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '@' || c == '.';
}

/* A text in quotes; bytes that cannot be printed become \xNN. */
static bool put_text(struct ane_buffer *b, const char *s) {
  bool ok = put(b, "\"");
  for (; ok && *s; s++) {
    unsigned char c = (unsigned char)*s;
    ok = c < 0x20 || c == 0x7F || c == '"' || c == '\\' ? put(b, "\\x%02x", c) : ane_buffer_append(b, s, 1);
  }
  return ok && put(b, "\"");
}

/* Identifiers stay without quotes. */
static bool put_name(struct ane_buffer *b, const char *s) {
  size_t n = 0;
  while (plain((unsigned char)s[n])) n++;
  return n && !s[n] ? ane_buffer_append(b, s, n) : put_text(b, s);
}

/* Prints a float with a decimal point, in every locale. */
static bool put_float(struct ane_buffer *b, double f, int digits) {
  char text[64], out[64];
  size_t n = 0;
  if (isnan(f)) return put(b, "nan"); /* C libraries differ in showing its sign */
  snprintf(text, sizeof text, "%.*g", digits, f);
  for (const char *s = text; *s; s++) {
    bool keep = plain((unsigned char)*s) || *s == '-' || *s == '+';
    if (keep)
      out[n++] = *s;
    else if (!n || out[n - 1] != '.')
      out[n++] = '.';
  }
  return ane_buffer_append(b, out, n);
}

/* ---- Types and values ------------------------------------------------------------------------------------------------*/

static bool put_dims(struct ane_buffer *b, int32_t rank, const int64_t *dim) {
  bool ok = put(b, "[");
  for (int32_t i = 0; ok && i < rank; i++)
    ok = dim[i] < 0 ? put(b, "%s?", i ? ", " : "") : put(b, "%s%" PRId64, i ? ", " : "", dim[i]);
  return ok && put(b, "]");
}

static bool put_type(struct ane_buffer *b, const struct ane_mil_type *t) {
  static const char *const words[] = {
      [ANE_MIL_LIST] = "list", [ANE_MIL_TUPLE] = "tuple", [ANE_MIL_DICTIONARY] = "dictionary", [ANE_MIL_STATE] = "state "};
  if (t->kind == ANE_MIL_TENSOR || t->kind == ANE_MIL_STATE)
    return put(b, "%s%s", t->kind == ANE_MIL_STATE ? words[t->kind] : "", ane_mil_dtype_name(t->dtype)) &&
           (t->rank == 0 || put_dims(b, t->rank, t->dim));
  bool ok = put(b, "%s(", words[t->kind]);
  for (uint32_t i = 0; ok && i < t->n_items; i++) ok = (i == 0 || put(b, ", ")) && put_type(b, &t->items[i]);
  if (ok && t->kind == ANE_MIL_LIST && t->length >= 0) ok = put(b, ", %" PRId64, t->length);
  return ok && put(b, ")");
}

static bool put_hash(struct ane_buffer *b, const struct ane_mil_value *v) {
  struct ane_hash64 h = {0};
  if (!v->data && v->bytes)
    return put(b, " ") && put_text(b, v->file ? v->file : "") && put(b, ":%" PRIu64, v->offset); /* not loaded yet */
  ane_hash64_add(&h, v->data, (size_t)v->bytes);
  return put(b, " #%016" PRIx64, ane_hash64_end(&h));
}

static bool is_float(ane_mil_dtype t) {
  return t == ANE_MIL_FP16 || t == ANE_MIL_FP32 || t == ANE_MIL_FP64 || t == ANE_MIL_BF16 || t == ANE_MIL_FP8E4M3 ||
         t == ANE_MIL_FP8E5M2;
}

static bool put_element(struct ane_buffer *b, const struct ane_mil_value *v, uint64_t i) {
  ane_mil_dtype t = v->type.dtype;
  if (v->kind == ANE_MIL_STRINGS) return put_text(b, v->strings[i]);
  if (t == ANE_MIL_BOOL) return put(b, ane_mil_integer(v, i) ? "true" : "false");
  if (t == ANE_MIL_UINT64) return put(b, "%" PRIu64, ane_load_u64((const uint8_t *)v->data + 8 * i));
  return is_float(t) ? put_float(b, ane_mil_number(v, i), t == ANE_MIL_FP64 ? 17 : 9) : put(b, "%" PRId64, ane_mil_integer(v, i));
}

static bool put_value(struct ane_buffer *b, const struct ane_mil_value *v) {
  if (v->kind == ANE_MIL_ITEMS) {
    bool ok = put(b, "(");
    for (uint64_t i = 0; ok && i < v->count; i++) ok = (i == 0 || put(b, ", ")) && put_value(b, &v->items[i]);
    return ok && put(b, ")");
  }
  bool hash = v->kind == ANE_MIL_BLOB || (v->kind == ANE_MIL_NUMBERS && v->count > SHOWN);
  bool ok = (v->kind != ANE_MIL_BLOB || put(b, "blob ")) && put_type(b, &v->type);
  if (!ok || hash) return ok && put_hash(b, v);
  ok = put(b, v->type.rank ? " {" : " ");
  for (uint64_t i = 0; ok && i < v->count; i++) ok = (i == 0 || put(b, ", ")) && put_element(b, v, i);
  return ok && (v->type.rank == 0 || put(b, "}"));
}

/* ---- Program -------------------------------------------------------------------------------------------------------*/

static bool put_attrs(struct ane_buffer *b, const struct ane_mil_attr *list, uint32_t n) {
  bool ok = n == 0 || put(b, " {");
  for (uint32_t i = 0; ok && i < n; i++)
    ok = (i == 0 || put(b, "; ")) && put_name(b, list[i].name) && put(b, "=") && put_value(b, &list[i].value);
  return ok && (n == 0 || put(b, "}"));
}

static bool put_arg(struct ane_buffer *b, const struct ane_mil_arg *a) {
  bool many = a->n_bindings > 1, ok = put_name(b, a->name) && put(b, many ? "=(" : "=");
  for (uint32_t i = 0; ok && i < a->n_bindings; i++) {
    const struct ane_mil_binding *one = &a->bindings[i];
    ok = (i == 0 || put(b, ", ")) && (one->name ? put(b, "%%") && put_name(b, one->name) : put_value(b, one->value));
  }
  return ok && (!many || put(b, ")"));
}

static bool put_named_types(struct ane_buffer *b, const struct ane_mil_named_type *list, uint32_t n) {
  bool ok = true;
  for (uint32_t i = 0; ok && i < n; i++)
    ok = (i == 0 || put(b, ", ")) && put(b, "%%") && put_name(b, list[i].name) && put(b, ": ") && put_type(b, &list[i].type);
  return ok;
}

static bool put_block(struct ane_buffer *b, const struct ane_mil_block *block, int depth);

static bool put_op(struct ane_buffer *b, const struct ane_mil_op *op, int depth) {
  bool ok = put(b, "%*s", 2 * depth, "") && put_named_types(b, op->outputs, op->n_outputs) &&
            put(b, op->n_outputs ? " = " : "") && put_name(b, op->type) && put(b, "(");
  for (uint32_t i = 0; ok && i < op->n_inputs; i++) ok = (i == 0 || put(b, ", ")) && put_arg(b, &op->inputs[i]);
  ok = ok && put(b, ")") && put_attrs(b, op->attrs, op->n_attrs) && put(b, "\n");
  for (uint32_t i = 0; ok && i < op->n_blocks; i++)
    ok = put(b, "%*sblock(", 2 * depth + 2, "") && put_block(b, &op->blocks[i], depth + 2);
  return ok;
}

static bool put_block(struct ane_buffer *b, const struct ane_mil_block *block, int depth) {
  bool ok = put_named_types(b, block->inputs, block->n_inputs) && put(b, ")") && put_attrs(b, block->attrs, block->n_attrs) &&
            put(b, "\n");
  for (uint32_t i = 0; ok && i < block->n_ops; i++) ok = put_op(b, &block->ops[i], depth);
  ok = ok && put(b, "%*sreturn ", 2 * depth, "");
  for (uint32_t i = 0; ok && i < block->n_outputs; i++) ok = put(b, i ? ", %%" : "%%") && put_name(b, block->outputs[i]);
  return ok && put(b, "\n");
}

/* ---- Description ---------------------------------------------------------------------------------------------------*/

static bool put_flexibility(struct ane_buffer *b, const struct ane_mil_feature *f) {
  bool ok = true;
  if (f->flexibility == ANE_MIL_ENUMERATED)
    for (uint32_t i = 0; ok && i < f->n_shapes; i++)
      ok = put(b, i ? " | " : " one of ") && put_dims(b, f->shapes[i].rank, f->shapes[i].dim);
  if (f->flexibility != ANE_MIL_RANGE) return ok;
  ok = put(b, " in [");
  for (int32_t i = 0; ok && i < f->shape.rank; i++) {
    ok = put(b, "%s%" PRId64, i ? ", " : "", f->low[i]);
    if (ok && f->high[i] != f->low[i]) ok = f->high[i] < 0 ? put(b, "..") : put(b, "..%" PRId64, f->high[i]);
  }
  return ok && put(b, "]");
}

static bool put_features(struct ane_buffer *b, const char *what, const struct ane_mil_feature *list, uint32_t n) {
  bool ok = true;
  for (uint32_t i = 0; ok && i < n; i++) {
    const struct ane_mil_feature *f = &list[i];
    ok = put(b, "  %s ", what) && put_name(b, f->name) &&
         put(b, ": %s", f->kind == ANE_MIL_OTHER ? f->other : ane_mil_dtype_name(f->dtype));
    if (f->kind != ANE_MIL_OTHER) ok = ok && put_dims(b, f->shape.rank, f->shape.dim) && put_flexibility(b, f);
    if (f->default_kind) ok = ok && put(b, " default ") && put_float(b, f->default_value, 17);
    if (f->optional) ok = ok && put(b, " optional");
    if (*f->description) ok = ok && put(b, " ") && put_text(b, f->description);
    ok = ok && put(b, "\n");
  }
  return ok;
}

static bool put_function(struct ane_buffer *b, const struct ane_mil_model *m, const struct ane_mil_function *f) {
  const struct ane_mil_interface *d = ane_mil_interface(m, f->name);
  bool ok = put(b, "function ") && put_name(b, f->name) && put(b, " %s\n", f->opset);
  if (d)
    ok = ok && put_features(b, "input", d->inputs, d->n_inputs) && put_features(b, "state", d->states, d->n_states) &&
         put_features(b, "output", d->outputs, d->n_outputs);
  ok = ok && put(b, "  (") && put_named_types(b, f->inputs, f->n_inputs) && put(b, ")") && put_attrs(b, f->attrs, f->n_attrs) &&
       put(b, "\n  body(");
  return ok && put_block(b, &f->block, 2);
}

bool ane_mil_print(const struct ane_mil_model *m, struct ane_buffer *out) {
  bool ok = put(out, "program %" PRId32, m->version) && put_attrs(out, m->program.attrs, m->program.n_attrs) && put(out, "\n");
  if (m->multi) ok = ok && put(out, "default ") && put_name(out, m->default_function) && put(out, "\n");
  for (uint32_t i = 0; ok && i < m->program.n_functions; i++) ok = put_function(out, m, &m->program.functions[i]);
  return ok;
}
