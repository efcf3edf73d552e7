/* An ONNX model as plain structs: every name resolved to a value, local functions inlined, constants with their bytes. Meaning of
 * the bytes: onnx/onnx.proto and the operator documents of ONNX. This folder does not know what ops compute.
 *
 * All structs are in the arena of their source. Names are not trusted: they have any length and any bytes except NUL. */
#ifndef ANE_FORMATS_ONNX_H
#define ANE_FORMATS_ONNX_H

#include "tensor/tensor.h"

/* IO_RANK: the most dimensions of what describes inputs and outputs of graphs, those of Core ML included. */
enum { ANE_ONNX_RANK = 8, ANE_ONNX_IO_RANK = 10, ANE_ONNX_MAX_OPSET = 28 };

/* Row-major. 4-bit types hold two elements per byte, low nibble first, over the flat array. The data may be unaligned. */
struct ane_onnx_tensor {
  const char *name; /* "" for the tensor of an attribute */
  ane_dtype dtype;
  int32_t rank;
  int64_t dim[ANE_ONNX_RANK];
  uint64_t count, bytes;
  const uint8_t *data;
  uint32_t file;   /* index into the source's files; UINT32_MAX: in the arena */
  uint64_t offset; /* of the data in that file */
};

struct ane_onnx_value {
  const char *name;
  const struct ane_onnx_tensor *constant; /* an initialiser, or the value of a Constant node; NULL: an input or a node's output */
};

struct ane_onnx_text {
  const char *data; /* NUL-terminated too, but may hold NULs */
  size_t len;
};

typedef enum {
  ANE_ONNX_FLOAT = 1, /* numbers as in AttributeProto.AttributeType */
  ANE_ONNX_INT,
  ANE_ONNX_STRING,
  ANE_ONNX_TENSOR,
  ANE_ONNX_GRAPH,
  ANE_ONNX_FLOATS,
  ANE_ONNX_INTS,
  ANE_ONNX_STRINGS,
} ane_onnx_attr_type;

struct ane_onnx_graph;
struct ane_onnx_attr {
  const char *name;
  ane_onnx_attr_type type;
  size_t n; /* of the lists */
  union {
    float f;
    int64_t i;
    struct ane_onnx_text s;
    const struct ane_onnx_tensor *t;
    const struct ane_onnx_graph *g;
    const float *floats;
    const int64_t *ints;
    const struct ane_onnx_text *strings;
  };
};

struct ane_onnx_node {
  const char *name; /* never empty: the first output's name where the file gives none; inlined nodes have "caller/" before it */
  const char *op;
  const char *domain; /* "": the standard */
  int64_t opset;      /* version of the domain, in the scope of the node */
  int32_t n_in, n_out, n_attrs;
  const int32_t *in, *out; /* values; -1: absent */
  const struct ane_onnx_attr *attrs;
};

/* An input or output of a graph as declared. */
struct ane_onnx_io {
  const char *name;
  int32_t value;
  ane_dtype dtype;                      /* ANE_DTYPE_COUNT: not declared */
  int32_t rank;                         /* -1: not declared */
  int64_t dim[ANE_ONNX_IO_RANK];        /* -1: unknown or a symbol */
  const char *symbol[ANE_ONNX_IO_RANK]; /* NULL: none */
};

/* Nodes are in topological order. A subgraph (of If) also uses values of the enclosing graphs. */
struct ane_onnx_graph {
  struct ane_onnx_node *nodes;
  struct ane_onnx_io *inputs, *outputs; /* inputs without those that an initialiser gives */
  int32_t n_nodes, n_inputs, n_outputs;
  int32_t n_all, depth; /* nodes with those of subgraphs, which several nodes may share: each use counts; 1: no subgraphs */
};

struct ane_onnx {
  struct ane_onnx_graph graph;
  struct ane_onnx_value *values; /* of all graphs */
  int32_t n_values;
  const char *producer; /* name and version, "" where not given */
  int64_t ir_version, opset;
};

/* The attribute of this name; NULL: the node has none. */
const struct ane_onnx_attr *ane_onnx_attr(const struct ane_onnx_node *n, const char *name);

#endif
