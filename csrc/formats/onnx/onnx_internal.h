/* Declarations that the files of the ONNX reader share. */
#ifndef ANE_FORMATS_ONNX_INTERNAL_H
#define ANE_FORMATS_ONNX_INTERNAL_H

#include "base/bytes.h"
#include "formats/formats_internal.h"
#include "formats/onnx/onnx.h"
#include "formats/proto/onnx.pb-c.h"

#include <string.h>

/* The most bytes that calls of functions take. */
#define ONNX_MAX_INLINED (UINT64_C(1) << 30)

/* Limits: nodes after inlining, with those of subgraphs wherever they are used; function calls and subgraphs inside each other;
 * files of external data; attributes of a node or function, whose names are compared with each other; inputs
 * and outputs of a graph; names and attributes that count as one more node. */
enum {
  ONNX_MAX_NODES = 1000000,
  ONNX_MAX_DEPTH = 100,
  ONNX_MAX_FILES = 4096,
  ONNX_MAX_ATTRIBUTES = 1024,
  ONNX_MAX_PORTS = 4096,
  ONNX_NODE_NAMES = 64
};

struct onnx_reader {
  struct ane_source *s;
  struct ane_onnx *doc;
  const AneOnnx__Model *model;
  struct ane_strmap functions; /* function_key -> index into model->functions */
  struct ane_strmap locations; /* of external data -> index into the source's files */
  struct ane_buffer values;    /* of struct ane_onnx_value */
  uint32_t room_files;
  int calls;        /* of local functions that are being inlined */
  uint64_t inlined; /* bytes of the arena that calls took */
  struct ane_error *err;
};

/* As ane_fail, with the file's name before the message. */
ane_status onnx_fail(struct onnx_reader *r, ane_status code, const char *fmt, ...) ANE_PRINTF(3, 4);
ane_status onnx_no_memory(struct onnx_reader *r);
/* Memory of the arena, zeroed, and copies in it; NULL if there is no memory. What calls of functions take is counted: each call
 * copies the names, lists and constants of its function. */
void *onnx_array(struct onnx_reader *r, size_t n, size_t size);
char *onnx_strndup(struct onnx_reader *r, const char *s, size_t len);
const char *onnx_copy(struct onnx_reader *r, const char *s);

/* Reads a tensor of the file, checks it and gives its bytes. `what` names it in errors: "tensor x", "attribute value". */
ane_status onnx_tensor(struct onnx_reader *r, const AneOnnx__Tensor *t, const char *what, struct ane_onnx_tensor *out);
/* Finds the `bytes` bytes of a tensor that lie in another file of the model's folder. */
ane_status onnx_external(struct onnx_reader *r, const AneOnnx__Tensor *t, const char *what, uint64_t bytes,
                         struct ane_onnx_tensor *out);

/* Names of one graph or function body to values; looked up from the inside out. */
struct onnx_scope {
  const struct onnx_scope *outer;
  struct ane_strmap names;
  const char *prefix; /* put before the names of nodes and values: "" or "call/" */
  int depth;          /* calls and subgraphs around it */
  AneOnnx__OperatorSetId **opsets;
  size_t n_opsets;
  /* In the body of a function: the attributes that ref_attr_name refers to. */
  const struct ane_onnx_attr *given;
  int32_t n_given;
};

/* Reads an attribute. *present is false if it refers to one that the caller does not give. Graphs are read in `scope`. */
ane_status onnx_attribute(struct onnx_reader *r, const struct onnx_scope *scope, const char *node, const AneOnnx__Attribute *a,
                          struct ane_onnx_attr *out, bool *present);
ane_status onnx_graph(struct onnx_reader *r, const struct onnx_scope *outer, const AneOnnx__Graph *g, struct ane_onnx_graph *out);

/* Fills r->functions; refuses recursion, deep calls and growth beyond ONNX_MAX_NODES before anything is inlined. */
ane_status onnx_functions(struct onnx_reader *r);
/* The function that a node calls, or NULL. */
const AneOnnx__Function *onnx_function(const struct onnx_reader *r, const AneOnnx__Node *n);

/* "" for an absent string. */
static inline const char *onnx_text(const char *s) { return s ? s : ""; }
/* The standard's domain has two names. */
static inline const char *onnx_domain(const char *s) { return !s || strcmp(s, "ai.onnx") == 0 ? "" : s; }

#endif
