/* Declarations that the files of the translation of Core AI programs share. */
#ifndef ANE_INTERP_AI_H
#define ANE_INTERP_AI_H

#include "interp/interp_internal.h"

enum { AI_MAX_OPERANDS = 9 }; /* of an operation that is translated; those of lists are not limited */

/* A value of the function that is being translated. */
struct slot {
  const char *name;                /* NULL: a token */
  const struct ane_mil_value *raw; /* of a constant */
  struct ane_mil_type type;
};

struct translation {
  struct ane_arena *arena;
  const struct ane_ai_program *program;
  const struct ane_ai_op *op; /* the operation, for messages */
  struct ane_buffer ops;      /* of struct ane_mil_op */
  uint32_t n_names, n_ops;    /* in all functions: new names, translated operations */
  uint64_t bytes;             /* of constants that were copied */
  int depth;                  /* of calls, bodies and regions */
  struct ane_error *err;
};

/* A parameter of an operation of MIL: a slot, a value or a list of slots. None of them: memory ran out while the value was made.
 */
struct param {
  const char *name;
  const struct slot *slot;
  const struct ane_mil_value *value;
  const struct slot *const *list;
  uint32_t n;
};

/* An operation of Core AI with its operands and results as slots. */
struct call {
  const struct ane_ai_op *op;
  const struct slot *in[AI_MAX_OPERANDS];
  struct slot *out;
};

ane_status ai_no_memory(struct translation *t);
/* Fails with the name of the operation before the text. */
ane_status ai_fail(struct translation *t, ane_status code, const char *format, ...) ANE_PRINTF(3, 4);

/* The type in MIL. Errors: ANE_UNSUPPORTED. */
ane_status ai_type_of(struct translation *t, const struct ane_ai_type *from, struct ane_mil_type *out);
/* Make constants of MIL in the arena; NULL: out of memory. */
const struct ane_mil_value *ai_value(struct translation *t, struct ane_mil_type type, const void *data, uint64_t count);
const struct ane_mil_value *ai_ints(struct translation *t, const int32_t *v, int64_t n);
const struct ane_mil_value *ai_integer(struct translation *t, int32_t v);
const struct ane_mil_value *ai_flag(struct translation *t, bool v);
const struct ane_mil_value *ai_real(struct translation *t, float v);
const struct ane_mil_value *ai_text(struct translation *t, const char *s);

/* Returns a name that no other value has; NULL: out of memory. */
const char *ai_name(struct translation *t);
/* Appends an operation of MIL and names its results. out: n_out slots with their types set. */
ane_status ai_emit(struct translation *t, const char *type, const struct param *params, uint32_t n, struct slot *out,
                   uint32_t n_out);
ane_status ai_emit_constant(struct translation *t, const struct ane_mil_value *v, struct slot *out);
/* Translates a constant. Integers wider than a byte become int32. */
ane_status ai_translate_constant(struct translation *t, const struct ane_ai_op *op, struct slot *out);
/* Allocates memory for the copy of a constant; NULL: the error is set (ANE_UNSUPPORTED: the copies of a program are too
 * large). */
void *ai_copy(struct translation *t, uint64_t bytes);
/* Reads the numbers of a constant slot: *n of them, at most `most`. false: the slot is no constant, or has more numbers. */
bool ai_constant_ints(const struct slot *s, int32_t *out, int64_t most, int64_t *n);

/* Translates an operation that has a row in ai_op.def, except constants, calls and concatenations. */
ane_status ai_translate_op(struct translation *t, const struct call *c);
/* Translates a transposed convolution, a pooling or an interpolation (interp_ai_window.c). */
ane_status ai_translate_window(struct translation *t, const struct call *c);
/* Translates the operations of a function. in: its inputs. slots: its values, by number. */
ane_status ai_translate_body(struct translation *t, const struct ane_ai_function *f, const struct slot *const *in,
                             struct slot *slots);
/* Translates an `if` or a `while` (interp_ai_control.c). slots: the values of the function around it. */
ane_status ai_translate_control(struct translation *t, const struct ane_ai_op *op, const struct slot *const *in, struct slot *out,
                                struct slot *slots);
/* Translates a concatenation. in: the axis, then the n - 1 operands. */
ane_status ai_concat(struct translation *t, const struct slot *const *in, uint32_t n, struct slot *out);

#endif
