/* Prints a program as text:
 *
 *   function main
 *     %0 = input x: fp16 [1, 4]
 *     %1 = constant: fp16 [4, 8] resource 0
 *     %2 = primitive.batch_matmul_v1(%0, %1): fp16 [1, 8]
 *     output y = %2 */
#include "formats/aimodel/ai_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = 64 };

struct printer {
  struct ane_buffer *out;
  bool failed;
};

static void put(struct printer *p, const char *format, ...) ANE_PRINTF(2, 3);
static void put(struct printer *p, const char *format, ...) {
  char text[400];
  va_list ap;
  va_start(ap, format);
  int n = vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  size_t len = n < 0 ? 0 : ANE_MIN((size_t)n, sizeof text - 1);
  p->failed = p->failed || !ane_buffer_append(p->out, text, len);
}

/* Prints a name; bytes outside printable ASCII become '?'. */
static void put_name(struct printer *p, const char *name) {
  for (; *name; name++) put(p, "%c", *name >= ' ' && *name < 127 ? *name : '?');
}

static void put_data(struct printer *p, const struct ane_ai_data *d) {
  if (d->resource >= 0) {
    put(p, " resource %d", (int)d->resource);
    return;
  }
  const uint8_t *bytes = d->data;
  put(p, d->splat ? " all " : " ");
  for (uint64_t i = 0; i < d->bytes && i < SHOWN_BYTES; i++) put(p, "%02x", bytes[i]);
  if (d->bytes > SHOWN_BYTES) put(p, "... (%" PRIu64 " bytes)", d->bytes);
}

static void put_types(struct printer *p, const struct ane_ai_op *op) {
  char text[ANE_AI_TYPE_TEXT];
  for (uint32_t i = 0; i < op->n_out; i++) put(p, "%s%s", i ? ", " : ": ", ane_ai_type_text(text, &op->out[i].type));
}

static void put_function(struct printer *p, const struct ane_ai_function *f, int depth);

static void put_op(struct printer *p, const struct ane_ai_op *op, int depth) {
  static const char *const kinds[] = {" erf", " tanh", " sigmoid"}, *const pads[] = {" none",      " constant",  " reflect",
                                                                                     " replicate", " symmetric", " circular"};
  put(p, "%*s", 2 * depth, "");
  for (uint32_t i = 0; i < op->n_out; i++) put(p, "%s%%%d", i ? ", " : "", (int)op->out[i].number);
  if (op->n_out) put(p, " = ");
  put_name(p, op->id == ANE_AI_CONSTANT ? "constant" : op->name);
  if (op->callee) put(p, " ");
  if (op->callee) put_name(p, op->callee);
  if (op->id == ANE_AI_GELU) put(p, "%s", kinds[op->gelu]);
  if (op->id == ANE_AI_PAD) put(p, "%s", pads[op->pad]);
  for (uint32_t i = 0; i < op->n_in; i++) put(p, "%s%%%d", i ? ", " : "(", (int)op->in[i]->number);
  if (op->n_in) put(p, ")");
  put_types(p, op);
  if (op->id == ANE_AI_CONSTANT) put_data(p, &op->data);
  put(p, "\n");
  if (op->body && op->id == ANE_AI_OPS) put_function(p, op->body, depth + 1); /* bodies of known operations are left out */
  for (uint32_t i = 0; i < op->n_regions; i++) {
    put(p, "%*sregion %u\n", 2 * depth + 2, "", (unsigned)i + 1);
    put_function(p, &op->regions[i], depth + 2);
  }
}

static void put_function(struct printer *p, const struct ane_ai_function *f, int depth) {
  char text[ANE_AI_TYPE_TEXT];
  for (uint32_t i = 0; i < f->n_inputs; i++) {
    put(p, "%*s%%%d = input ", 2 * depth, "", (int)f->inputs[i].value->number);
    put_name(p, f->inputs[i].name);
    put(p, ": %s\n", ane_ai_type_text(text, &f->inputs[i].value->type));
  }
  for (uint32_t i = 0; i < f->n_ops && !p->failed; i++) put_op(p, f->ops[i], depth);
  for (uint32_t i = 0; i < f->n_outputs; i++) {
    put(p, "%*soutput ", 2 * depth, "");
    put_name(p, f->outputs[i].name);
    put(p, " = %%%d\n", (int)f->outputs[i].value->number);
  }
}

bool ane_ai_print(const struct ane_ai_program *program, struct ane_buffer *out) {
  struct printer p = {out, false};
  for (uint32_t i = 0; i < program->n_functions; i++) {
    const struct ane_ai_function *f = &program->functions[i];
    put(&p, "%sfunction ", f->local ? "private " : "");
    put_name(&p, f->name);
    put(&p, "\n");
    put_function(&p, f, 1);
  }
  return !p.failed;
}
