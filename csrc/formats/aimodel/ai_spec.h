/* A Core AI program as plain structs: what main.mlirb of an .aimodel holds, for reading and writing. All pointers are borrowed,
 * usually from one arena. In programs that were read, names are never NULL. */
#ifndef ANE_FORMATS_AI_SPEC_H
#define ANE_FORMATS_AI_SPEC_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/status.h"

/* ---- Types -------------------------------------------------------------------------------------------------------*/

/* The numbers are the codes of the bytecode. */
typedef enum {
#define ANE_AI_DTYPE(id, code, name, dialect, bits, dtype) ANE_AI_##id = code,
#include "formats/aimodel/ai_dtype.def"
#undef ANE_AI_DTYPE
} ane_ai_dtype;

/* Name ("fp16") and bits an element; "?" and 0 for what is no type. */
const char *ane_ai_dtype_name(ane_ai_dtype t);
uint32_t ane_ai_dtype_bits(ane_ai_dtype t);
/* Bytes of n elements, those of sub-byte types packed from the low bits up; false on overflow or for what is no type. */
bool ane_ai_bytes(ane_ai_dtype t, uint64_t n, uint64_t *bytes);

/* Unknown dimensions are the least int64 in files. The writer writes none: shapes are static. */
enum { ANE_AI_RANK = 8, ANE_AI_UNKNOWN = -1 };

typedef enum { ANE_AI_TENSOR = 1, ANE_AI_HANDLE, ANE_AI_TOKEN } ane_ai_kind;

/* TENSOR; HANDLE: a state, which holds such a tensor; TOKEN: an order of reads and writes of a state. */
struct ane_ai_type {
  ane_ai_kind kind;
  ane_ai_dtype dtype;
  int32_t rank;
  int64_t dim[ANE_AI_RANK]; /* outermost first */
  /* The layout that the hardware wants, of function inputs and states: an IOSurface with these interleave factors by dimension.
   * All 0: none. */
  int64_t interleave[ANE_AI_RANK];
};

struct ane_ai_type ane_ai_tensor(ane_ai_dtype dtype, int32_t rank, const int64_t *dim);
bool ane_ai_type_equal(const struct ane_ai_type *a, const struct ane_ai_type *b);
/* Elements; false on overflow or an unknown dimension. */
bool ane_ai_count(const struct ane_ai_type *t, uint64_t *count);
/* "fp16 [1, 4, 8]", "state fp16 [...]", "token"; cut to fit. */
enum { ANE_AI_TYPE_TEXT = 128 };
const char *ane_ai_type_text(char out[ANE_AI_TYPE_TEXT], const struct ane_ai_type *t);

/* ---- Program -----------------------------------------------------------------------------------------------------*/

typedef enum {
#define ANE_AI_OP(id, name, version, in, out, rule, body) ANE_AI_##id,
#include "formats/aimodel/ai_op.def"
#undef ANE_AI_OP
  ANE_AI_OPS /* of readers: an operation without a row */
} ane_ai_op_id;

/* How GELU is computed: with erf, or approximately. */
typedef enum { ANE_AI_GELU_ERF, ANE_AI_GELU_TANH, ANE_AI_GELU_SIGMOID } ane_ai_gelu_kind;

/* "primitive.mul"; NULL for ANE_AI_OPS. */
const char *ane_ai_op_name(ane_ai_op_id id);

struct ane_ai_op;
struct ane_ai_function;
struct ane_ai_value {
  struct ane_ai_type type;
  int32_t number;             /* in its function: inputs, then results in order */
  const struct ane_ai_op *op; /* that makes it; NULL: an input of the function */
};

/* Elements of a constant: dense, row-major, little endian. One of three: `resource` >= 0, a blob of the asset (readers set data
 * too); else data of all elements; or, with `splat`, of one element that all are equal to. */
struct ane_ai_data {
  const void *data;
  uint64_t bytes;
  bool splat;
  int32_t resource;
};

struct ane_ai_op {
  ane_ai_op_id id;
  const char *name; /* in the file: "primitive.mul_v1" */
  const struct ane_ai_value *const *in;
  struct ane_ai_value *out;
  uint32_t n_in, n_out;
  struct ane_ai_data data;            /* of a constant */
  ane_ai_gelu_kind gelu;              /* of a GELU */
  const char *callee;                 /* of an invoke: a function; else NULL */
  const struct ane_ai_function *body; /* what it is made of, ending with a yield. NULL: of a primitive; the writer makes those of
                                         other operations */
};

struct ane_ai_port {
  const char *name;
  const struct ane_ai_value *value;
};

/* Operations stand in an order in which each uses only what came before it. */
struct ane_ai_function {
  const char *name;
  bool local;                        /* only called by others */
  const struct ane_ai_port *inputs;  /* tensors and states, in the order of the call */
  const struct ane_ai_port *outputs; /* a token, named after its state, for every state that is written; tensors */
  const struct ane_ai_op *const *ops;
  uint32_t n_inputs, n_outputs, n_ops;
  int32_t n_values;
};

struct ane_ai_program {
  const struct ane_ai_function *functions;
  uint32_t n_functions;
};

/* NULL where there is none of the name. */
const struct ane_ai_function *ane_ai_function(const struct ane_ai_program *p, const char *name);

/* May the operation have so many operands and results? */
bool ane_ai_fits(ane_ai_op_id id, uint32_t n_in, uint32_t n_out);

/* Types of the results of an operation from its operands: out[0 .. n_out). The shape operands (axes, bounds) must be constants;
 * a slice with other bounds, and a cast, take what they cannot know (size, element type) from out as it comes in. Errors:
 * ANE_SHAPE, ANE_INVALID (types, number of operands), ANE_UNSUPPORTED (no rule). The text names the operation. */
ane_status ane_ai_infer(ane_ai_op_id id, const struct ane_ai_value *const *in, uint32_t n_in, struct ane_ai_type *out,
                        uint32_t n_out, struct ane_error *err);

/* Checks that each operation uses earlier values, that its results have the types that ane_ai_infer gives, that constants have
 * the bytes of their types, and names. Errors: ANE_FORMAT with function and operation; ANE_NOMEM. */
ane_status ane_ai_verify(const struct ane_ai_program *p, struct ane_error *err);

/* The program as text, an operation a line; long constants by a hash of their bytes. False where there is no memory. */
bool ane_ai_print(const struct ane_ai_program *p, struct ane_buffer *out);

#endif
