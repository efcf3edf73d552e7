/* Primitive ops: the ops of Core ML's MIL and of ONNX (with ONNX Runtime's contrib ops), one plain kernel each. Shapes of tensors
 * are known only at run time. prim.def lists the ops.
 *
 * All floats are computed in float32, and float results are float32. Sums are float64, except those that matrix kernels make.
 * Integers are computed in 64 bits and stored in the type of the first operand.
 * All parameters of an op are inputs, as in MIL: an axis is a tensor of one integer. A kernel reads its parameters by name and
 * has a default for each optional one. So the same kernel serves constant and computed parameters. */
#ifndef ANE_PRIM_PRIM_H
#define ANE_PRIM_PRIM_H

#include "kernels/kernels.h"
#include "platform/platform.h"
#include "tensor/dyn.h"

enum { ANE_PRIM_MAX_OUTPUTS = 256 };

/* ---- Coded constants -------------------------------------------------------------------------------------------------*/

/* A float32 constant that is stored as codes. Its elements are decoded whenever they are read; products pack the codes.
 * Element i of dim (row-major) has code i and belongs to group sum over k of (index_k / block_k) * step_k:
 *   table NULL   scale[group] * (code - offset[group])      (offset NULL: 0)
 *   else         table[group * entries + code]              (codes are below entries) */
struct ane_coded {
  const uint8_t *codes; /* one stream of `bits` each, code i from bit i * bits of byte 0 on; bits 16 and 32: fp16, fp32 */
  int bits;
  bool is_signed;
  bool round; /* each element is rounded to fp16 */
  int32_t rank;
  int64_t dim[ANE_DYN_RANK], block[ANE_DYN_RANK], step[ANE_DYN_RANK];
  const float *scale, *offset, *table;
  int64_t entries;
};
/* Merges neighbouring axes where groups allow it; afterwards rank >= 1. Call it when all fields are set. */
void ane_coded_simplify(struct ane_coded *w);
/* Decodes elements from .. from + n - 1. */
void ane_coded_read(const struct ane_coded *w, int64_t from, int64_t n, float *out);
/* Returns the bytes of the codes of n elements. */
uint64_t ane_coded_bytes(const struct ane_coded *w, int64_t n);

/* ---- Ops ---------------------------------------------------------------------------------------------------------*/

typedef enum {
#define ANE_PRIM(name, params, outputs) ANE_PRIM_##name,
#include "prim/prim.def"
#undef ANE_PRIM
  ANE_PRIM_COUNT
} ane_prim;

struct ane_prim_info {
  const char *name;
  const char *params; /* as in prim.def */
  int max_outputs;
  int n_params; /* without a variadic one */
  bool variadic;
};
struct ane_prim_info ane_prim_info(ane_prim op);
/* Returns the index of a parameter among the inputs of an op, or -1. */
int ane_prim_param(ane_prim op, const char *name);

/* What an op prepares from its constant inputs: packed weights. */
struct ane_prim_state;
void ane_prim_state_free(struct ane_prim_state *s); /* NULL is fine */
uint64_t ane_prim_state_bytes(const struct ane_prim_state *s);
/* Are all weights in packed layouts, so that the stored codes are no longer read? */
bool ane_prim_state_packed(const struct ane_prim_state *s);
/* Returns the rows of the (first) matrix: the channels that a product with it gives. */
int64_t ane_prim_state_rows(const struct ane_prim_state *s);

struct ane_prim_call {
  ane_prim op;
  const struct ane_dyn *const *in; /* [n_in]; NULL: absent, or in ane_prim_prepare not constant */
  int n_in;
  struct ane_dyn *out; /* n_out of them, empty; dropped by the caller, also after a failure */
  int n_out;
  const bool *wanted;                 /* which outputs are used; NULL: all */
  const struct ane_prim_state *state; /* from ane_prim_prepare, or NULL */
  struct ane_dyn_memory *memory;
  const struct ane_kernels *kernels;
  struct ane_pool *pool;
  struct ane_error *err;
  /* Private to the kernel: */
  ane_status status; /* first failure of a parameter */
  struct ane_dyn_block *temps;
};

/* Runs the op. Errors: ANE_SHAPE, ANE_INVALID (parameters), ANE_RANGE (too large; index outside), ANE_UNSUPPORTED, ANE_NOMEM.
 * The message does not name the node: the caller does. */
ane_status ane_prim_run(struct ane_prim_call *c);
/* Checks the constant inputs and packs weights. c->in holds constants only. *state stays NULL if nothing is packed; free it with
 * ane_prim_state_free, also after an error. Errors: as for ane_prim_run. */
ane_status ane_prim_prepare(struct ane_prim_call *c, struct ane_prim_state **state);
/* Is input `i` read only by ane_prim_prepare? Its bytes may leave memory once the op is prepared. */
bool ane_prim_packs(ane_prim op, int i);

#endif
