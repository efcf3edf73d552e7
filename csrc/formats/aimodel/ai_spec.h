/* A Core AI program as plain structs: the content of an asset's main.mlirb, for reading and writing. All pointers are borrowed,
 * usually from one arena. Names are never NULL in programs that were read. */
#ifndef ANE_FORMATS_AI_SPEC_H
#define ANE_FORMATS_AI_SPEC_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/status.h"

/* ---- Types ----------------------------------------------------------------------------------------------------------*/

/* The values are the codes of the bytecode. */
typedef enum {
#define ANE_AI_DTYPE(id, code, name, dialect, bits, dtype) ANE_AI_##id = code,
#include "formats/aimodel/ai_dtype.def"
#undef ANE_AI_DTYPE
} ane_ai_dtype;

/* Name ("fp16") and bits per element; "?" and 0 if t is not a type. */
const char *ane_ai_dtype_name(ane_ai_dtype t);
uint32_t ane_ai_dtype_bits(ane_ai_dtype t);
/* Bytes of n elements. Sub-byte elements are packed, low bits first. False on overflow, or if t is not a type. */
bool ane_ai_bytes(ane_ai_dtype t, uint64_t n, uint64_t *bytes);

/* Files store unknown dimensions as INT64_MIN. The writer writes static shapes only. */
enum { ANE_AI_RANK = 10, ANE_AI_UNKNOWN = -1 };

typedef enum { ANE_AI_TENSOR = 1, ANE_AI_HANDLE, ANE_AI_TOKEN } ane_ai_kind;

/* TENSOR; HANDLE: a state that holds a tensor of this type; TOKEN: orders the reads and writes of a state. */
struct ane_ai_type {
  ane_ai_kind kind;
  ane_ai_dtype dtype;
  int32_t rank;
  int64_t dim[ANE_AI_RANK]; /* outermost first */
  /* Layout of a function input or a state: an IOSurface with an interleave factor for each dimension, as hardware asks for. All
   * 0: no layout. */
  int64_t interleave[ANE_AI_RANK];
};

struct ane_ai_type ane_ai_tensor(ane_ai_dtype dtype, int32_t rank, const int64_t *dim);
bool ane_ai_type_equal(const struct ane_ai_type *a, const struct ane_ai_type *b);
/* Number of elements (ane_count_elements); false also if a dimension is unknown. */
bool ane_ai_count(const struct ane_ai_type *t, uint64_t *count);
/* "fp16 [1, 4, 8]", "state fp16 [...]" or "token"; truncated to fit. Returns out. */
enum { ANE_AI_TYPE_TEXT = 128 };
const char *ane_ai_type_text(char out[ANE_AI_TYPE_TEXT], const struct ane_ai_type *t);

/* ---- Program --------------------------------------------------------------------------------------------------------*/

typedef enum {
#define ANE_AI_OP(id, name, version, in, out, rule, body) ANE_AI_##id,
#include "formats/aimodel/ai_op.def"
#undef ANE_AI_OP
  ANE_AI_OPS /* the number of rows; also the id of an operation without a row, in programs that were read */
} ane_ai_op_id;

/* GELU by erf, or its approximation by tanh or sigmoid. */
typedef enum { ANE_AI_GELU_ERF, ANE_AI_GELU_TANH, ANE_AI_GELU_SIGMOID } ane_ai_gelu_kind;
/* How padding is filled, numbered as in files (constant, reflect and replicate were seen). */
typedef enum {
  ANE_AI_PAD_NONE,
  ANE_AI_PAD_CONSTANT,
  ANE_AI_PAD_REFLECT,
  ANE_AI_PAD_REPLICATE,
  ANE_AI_PAD_SYMMETRIC,
  ANE_AI_PAD_CIRCULAR
} ane_ai_pad_mode;

/* "primitive.mul"; NULL for ANE_AI_OPS. */
const char *ane_ai_op_name(ane_ai_op_id id);

struct ane_ai_op;
struct ane_ai_function;
struct ane_ai_value {
  struct ane_ai_type type;
  int32_t number;             /* in its function: inputs first, then results in order */
  const struct ane_ai_op *op; /* the operation whose result it is; NULL: an input of the function */
};

/* Elements of a constant: dense, row-major, little-endian. With `resource` >= 0 they are a blob of the asset; readers set `data`
 * too. Otherwise `data` holds all elements, or with `splat` the one value that all elements have. */
struct ane_ai_data {
  const void *data;
  uint64_t bytes;
  bool splat;
  int32_t resource;
};

struct ane_ai_op {
  ane_ai_op_id id;
  const char *name; /* as in the file: "primitive.mul_v1" */
  const struct ane_ai_value *const *in;
  struct ane_ai_value *out;
  uint32_t n_in, n_out;
  struct ane_ai_data data;            /* of a constant */
  ane_ai_gelu_kind gelu;              /* of a GELU */
  ane_ai_pad_mode pad;                /* of a padding */
  uint32_t mode;                      /* of a scan, a scatter or an interpolation: its mode, numbered as in files */
  const char *callee;                 /* of an invoke: the name of a function; else NULL */
  const struct ane_ai_function *body; /* its decomposition, which ends with a yield. NULL: a primitive, or the writer builds it */
  /* Regions that use values from outside, of control flow. Their values have numbers of their own in the function around them,
   * which regions beside each other share. */
  const struct ane_ai_function *regions;
  uint32_t n_regions;
};

struct ane_ai_port {
  const char *name;
  const struct ane_ai_value *value;
};

/* Operations are in topological order. */
struct ane_ai_function {
  const char *name;
  bool local;                        /* private: only other functions call it */
  const struct ane_ai_port *inputs;  /* tensors and states, in the order of arguments */
  const struct ane_ai_port *outputs; /* a token for each state that is written, named after the state; then tensors */
  const struct ane_ai_op *const *ops;
  uint32_t n_inputs, n_outputs, n_ops;
  int32_t n_values; /* a bound of the numbers of values, with those in regions */
};

struct ane_ai_program {
  const struct ane_ai_function *functions;
  uint32_t n_functions;
};

/* The function of this name; NULL if there is none. */
const struct ane_ai_function *ane_ai_function(const struct ane_ai_program *p, const char *name);

/* Does the operation take n_in operands and give n_out results? */
bool ane_ai_fits(ane_ai_op_id id, uint32_t n_in, uint32_t n_out);

/* Infers the types of an operation's results, out[0 .. n_out), from its operands. Operands that determine shapes (axes, bounds)
 * must be constants. Two operations read the rest from `out`: a cast its element type, a slice with computed bounds its sizes.
 * Errors: ANE_SHAPE, ANE_INVALID (types, number of operands), ANE_UNSUPPORTED (no rule). The text names the operation. */
ane_status ane_ai_infer(ane_ai_op_id id, const struct ane_ai_value *const *in, uint32_t n_in, struct ane_ai_type *out,
                        uint32_t n_out, struct ane_error *err);

/* Checks that operations use earlier values only, that results have the types that ane_ai_infer gives, that constants have the
 * bytes of their types, and that names are unique. Errors: ANE_FORMAT with function and operation; ANE_NOMEM. */
ane_status ane_ai_verify(const struct ane_ai_program *p, struct ane_error *err);

/* Appends the program as text, one line per operation; of long constants the first 64 bytes. False: out of memory. */
bool ane_ai_print(const struct ane_ai_program *p, struct ane_buffer *out);

#endif
