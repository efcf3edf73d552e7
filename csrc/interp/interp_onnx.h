/* Translation of ONNX nodes: what its two files share. */
#ifndef ANE_INTERP_ONNX_H
#define ANE_INTERP_ONNX_H

#include "interp/interp_internal.h"

#include <stdarg.h>

struct onnx_import {
  struct ane_interp *g;
  struct interp_block *block; /* receives the nodes */
  struct ane_error *err;
};

ane_status onnx_node_fail(const struct onnx_import *t, const struct ane_onnx_node *n, ane_status code, const char *fmt, ...)
    ANE_PRINTF(4, 5);
/* Returns input i as a value, or INTERP_NONE. */
int32_t onnx_in(const struct onnx_import *t, const struct ane_onnx_node *n, int i);
/* Reads an attribute. If it is absent, *out is unchanged. false: it has another type. */
bool onnx_int(const struct ane_onnx_node *n, const char *name, int64_t *out);
bool onnx_float(const struct ane_onnx_node *n, const char *name, float *out);

/* Adds the node as one primitive, by a mapping as in onnx.def. */
ane_status onnx_map(struct onnx_import *t, const struct ane_onnx_node *n, ane_prim prim, const char *mapping);
ane_status onnx_if(struct onnx_import *t, const struct ane_onnx_node *n);
/* Ops of several primitives (interp_compose.c). *done is false for other ops. */
ane_status onnx_compose(struct onnx_import *t, const struct ane_onnx_node *n, bool *done);

#endif
