/* An ML Program as plain structs: what the Model and MIL messages of a .mlpackage contain (proto/coreml.proto), for reading and
 * writing. This folder does not know what operations compute.
 *
 * All pointers are borrowed, usually from one arena. A caller that builds a model may mix arena, static and stack memory. In
 * models that were read
 *   - maps (inputs and attributes of operations, functions, metadata) are sorted by key, in byte order, and no key comes twice;
 *   - all names are present (never NULL; "" only where the file may omit them) and hold no NUL, but may hold any other bytes;
 *   - nesting is not deeper than protobuf allows (100). */
#ifndef ANE_FORMATS_MIL_SPEC_H
#define ANE_FORMATS_MIL_SPEC_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/status.h"
#include "tensor/tensor.h"

/* ---- Types -------------------------------------------------------------------------------------------------------*/

/* The numbers are those of MIL.proto. */
typedef enum {
#define ANE_MIL_DTYPE(id, number, name, bits, blob, field, dtype) ANE_MIL_##id = number,
#include "formats/mil/mil_dtype.def"
#undef ANE_MIL_DTYPE
} ane_mil_dtype;

/* Name ("fp16"), bits per element (0: string), code in blob records (0: none). "?" and 0 for other values. */
const char *ane_mil_dtype_name(ane_mil_dtype t);
uint32_t ane_mil_dtype_bits(ane_mil_dtype t);
uint32_t ane_mil_dtype_blob(ane_mil_dtype t);
/* The type of tensor.h with the same elements, or ANE_DTYPE_COUNT: strings, uint1, uint2, uint3, uint6. */
ane_dtype ane_mil_dtype_plain(ane_mil_dtype t);
/* Bytes of n elements, those of sub-byte types packed to a bit stream; false on overflow, and for strings. */
bool ane_mil_bytes(ane_mil_dtype t, uint64_t n, uint64_t *bytes);

/* A table for constexpr_lut_to_dense has two dimensions more than the weight, which has at most five. */
enum { ANE_MIL_RANK = 10, ANE_MIL_UNKNOWN = -1 };

typedef enum { ANE_MIL_TENSOR = 1, ANE_MIL_LIST, ANE_MIL_TUPLE, ANE_MIL_DICTIONARY, ANE_MIL_STATE } ane_mil_type_kind;

struct ane_mil_type {
  ane_mil_type_kind kind;
  ane_mil_dtype dtype;       /* TENSOR; STATE: of the tensor inside */
  int32_t rank;              /* of the same */
  int64_t dim[ANE_MIL_RANK]; /* outermost first; ANE_MIL_UNKNOWN: not known before the run */
  uint32_t n_items;          /* LIST: 1, the element; DICTIONARY: 2, key and value; TUPLE: any number */
  const struct ane_mil_type *items;
  int64_t length; /* LIST; ANE_MIL_UNKNOWN: not known */
};

/* A tensor type with these dimensions (NULL for rank 0). */
struct ane_mil_type ane_mil_tensor_type(ane_mil_dtype dtype, int32_t rank, const int64_t *dim);
bool ane_mil_type_equal(const struct ane_mil_type *a, const struct ane_mil_type *b);

/* ---- Values ------------------------------------------------------------------------------------------------------*/

typedef enum {
  ANE_MIL_NUMBERS = 1, /* a tensor stored in the model file */
  ANE_MIL_STRINGS,     /* a tensor of strings, stored in the model file */
  ANE_MIL_BLOB,        /* a tensor in a weight file */
  ANE_MIL_ITEMS,       /* a list, tuple or dictionary */
} ane_mil_value_kind;

struct ane_mil_value {
  struct ane_mil_type type; /* of a tensor: without unknown dimensions */
  ane_mil_value_kind kind;
  uint64_t count; /* elements, strings or items */
  /* NUMBERS, and BLOB once a package has found it: dense, row-major, little endian; a bool is a byte 0 or 1; sub-byte types
   * are one bit stream, element i of n bits at bits [i*n, i*n + n) counted from bit 0 of byte 0. 16-byte aligned. */
  const void *data;
  uint64_t bytes;
  const char *const *strings;        /* STRINGS */
  const struct ane_mil_value *items; /* ITEMS; DICTIONARY: key, value, key, value, ... */
  const char *file;                  /* BLOB: as the file has it, "@model_path/weights/weight.bin" */
  uint64_t offset;                   /* BLOB: of its record */
};

/* Element i of a tensor of numbers, i < count. ane_mil_integer gives the integer part of a float, saturated. */
double ane_mil_number(const struct ane_mil_value *v, uint64_t i);
int64_t ane_mil_integer(const struct ane_mil_value *v, uint64_t i);

/* ---- Program -----------------------------------------------------------------------------------------------------*/

struct ane_mil_attr {
  const char *name;
  struct ane_mil_value value;
};

struct ane_mil_named_type {
  const char *name;
  struct ane_mil_type type;
};

/* What a parameter is bound to: the name of a value or a value itself; the other one is NULL. */
struct ane_mil_binding {
  const char *name;
  const struct ane_mil_value *value;
};

/* One parameter; most have one binding, tuples (`values` of concat) several. */
struct ane_mil_arg {
  const char *name;
  const struct ane_mil_binding *bindings;
  uint32_t n_bindings;
};

struct ane_mil_block;
struct ane_mil_op {
  const char *type;
  const struct ane_mil_arg *inputs;
  const struct ane_mil_named_type *outputs; /* none: write_state */
  const struct ane_mil_attr *attrs;         /* const: `val`; constexpr_* of iOS16: all parameters; `name` */
  const struct ane_mil_block *blocks;       /* of control flow */
  uint32_t n_inputs, n_outputs, n_attrs, n_blocks;
};

/* Operations are in an order in which each uses only results of earlier ones. */
struct ane_mil_block {
  const struct ane_mil_named_type *inputs; /* none in the body of a function */
  const char *const *outputs;
  const struct ane_mil_op *ops;
  const struct ane_mil_attr *attrs;
  uint32_t n_inputs, n_outputs, n_ops, n_attrs;
};

struct ane_mil_function {
  const char *name;
  const char *opset; /* "CoreML8" */
  const struct ane_mil_named_type *inputs;
  const struct ane_mil_attr *attrs;
  uint32_t n_inputs, n_attrs;
  struct ane_mil_block block;
};

struct ane_mil_program {
  const struct ane_mil_function *functions;
  const struct ane_mil_attr *attrs;
  uint32_t n_functions, n_attrs;
};

/* The attribute or parameter of this name; NULL: the operation has none. */
const struct ane_mil_value *ane_mil_op_attr(const struct ane_mil_op *op, const char *name);
const struct ane_mil_arg *ane_mil_op_arg(const struct ane_mil_op *op, const char *name);

/* ---- Description -------------------------------------------------------------------------------------------------*/

typedef enum {
  ANE_MIL_ARRAY = 1,
  ANE_MIL_ARRAY_STATE,
  /* A feature that language models do not need: read, so that it can be reported, but never written. */
  ANE_MIL_OTHER,
} ane_mil_feature_kind;

typedef enum { ANE_MIL_FIXED, ANE_MIL_ENUMERATED, ANE_MIL_RANGE } ane_mil_flexibility;

struct ane_mil_dims {
  int32_t rank;
  int64_t dim[ANE_MIL_RANK];
};

struct ane_mil_feature {
  const char *name, *description; /* description: "" where not given */
  ane_mil_feature_kind kind;
  const char *other;   /* OTHER: what it is, "image" */
  ane_mil_dtype dtype; /* fp16, fp32, fp64, int32, int8 */
  bool optional;
  struct ane_mil_dims shape; /* the default; rank 0 where not said (outputs) */
  ane_mil_flexibility flexibility;
  const struct ane_mil_dims *shapes; /* ENUMERATED: all, with the default */
  uint32_t n_shapes;
  int64_t low[ANE_MIL_RANK], high[ANE_MIL_RANK]; /* RANGE, inclusive; high ANE_MIL_UNKNOWN: no bound */
  /* The value of an optional input that is not given. */
  char default_kind; /* type of the value: 'i' int32, 'f' float, 'd' double; 0: none is stated */
  double default_value;
};

struct ane_mil_interface {
  const char *name; /* of the function */
  const struct ane_mil_feature *inputs, *outputs, *states;
  uint32_t n_inputs, n_outputs, n_states;
  const char *predicted, *probabilities; /* classifiers: names of outputs; else "" */
};

struct ane_mil_text {
  const char *key, *value;
};

struct ane_mil_metadata {
  const char *description, *version, *author, *license; /* "" where not given */
  const struct ane_mil_text *user;
  uint32_t n_user;
};

/* ---- Model -------------------------------------------------------------------------------------------------------*/

enum { ANE_MIL_MIN_VERSION = 6, ANE_MIL_MAX_VERSION = 10 };

struct ane_mil_model {
  int32_t version; /* specificationVersion */
  /* One for each function, in file order. A file whose only function is `main` may describe it in the model itself; `multi` is
   * then false. */
  const struct ane_mil_interface *interfaces;
  uint32_t n_interfaces;
  bool multi;
  const char *default_function; /* "main" where not said */
  struct ane_mil_metadata metadata;
  struct ane_mil_program program;
};

/* The function, interface or feature of this name; NULL: there is none. */
const struct ane_mil_function *ane_mil_function(const struct ane_mil_model *m, const char *name);
const struct ane_mil_interface *ane_mil_interface(const struct ane_mil_model *m, const char *name);
const struct ane_mil_feature *ane_mil_feature(const struct ane_mil_feature *list, uint32_t n, const char *name);
/* The newest opset of a specification version ("CoreML8" for 9); NULL: there is none. ane_mil_opset_version is the inverse; 0: no
 * version has this opset. */
const char *ane_mil_opset(int32_t version);
int32_t ane_mil_opset_version(const char *opset);

/* Reads the bytes of model.mlmodel and checks them, with ane_mil_verify too. The model does not point into `data`. Blobs are
 * not loaded: their `data` is NULL. *out is NULL on failure. Errors: ANE_FORMAT (function, operation, parameter),
 * ANE_UNSUPPORTED (no ML Program; newer than known), ANE_NOMEM. */
ane_status ane_mil_unpack(struct ane_arena *arena, const uint8_t *data, size_t size, struct ane_mil_model **out,
                          struct ane_error *err);

/* Sets *file and *offset to the position of a blob in the file to be written, if it differs from that in the value. */
typedef void (*ane_mil_place_fn)(void *arg, const struct ane_mil_value *v, const char **file, uint64_t *offset);

/* Verifies the model and appends its bytes to `out`. The same model gives the same bytes: maps are written in the order of
 * their keys, numbers packed, zeros left out. `place` may be NULL. */
ane_status ane_mil_pack(const struct ane_mil_model *m, ane_mil_place_fn place, void *arg, struct ane_buffer *out,
                        struct ane_error *err);

/* Checks that a program is well formed: names are defined once and before their use, constants are constants, and the
 * description of each function agrees with it. Errors: ANE_FORMAT, ANE_NOMEM. */
ane_status ane_mil_verify(const struct ane_mil_model *m, struct ane_error *err);

/* Calls fn for each value of the program, nested ones too, in the order of the file; `op` is NULL for attributes of blocks,
 * functions and the program. Stops at the first failure, which it returns. */
typedef ane_status (*ane_mil_value_fn)(void *arg, const struct ane_mil_function *f, const struct ane_mil_op *op, const char *name,
                                       const struct ane_mil_value *v);
ane_status ane_mil_each_value(const struct ane_mil_model *m, ane_mil_value_fn fn, void *arg);

/* "op conv (y)" for messages, without control characters. */
enum { ANE_MIL_OP_TEXT = 200 };
const char *ane_mil_op_text(char out[ANE_MIL_OP_TEXT], const struct ane_mil_op *op);

/* Appends the program as text, one line per operation. Long values and blobs are printed as a hash of their bytes, so equal
 * programs have equal texts wherever their weights are stored. false: out of memory. */
bool ane_mil_print(const struct ane_mil_model *m, struct ane_buffer *out);

#endif
