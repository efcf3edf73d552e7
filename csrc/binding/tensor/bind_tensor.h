/* Class "ane.tensor": dense float32 tensors whose memory belongs to Lua, so that the collector counts it. */
#ifndef ANE_BINDING_BIND_TENSOR_H
#define ANE_BINDING_BIND_TENSOR_H

#include "binding/bind.h"
#include "tensor/tensor.h"

#define BIND_TENSOR "ane.tensor"

struct bind_tensor {
  struct ane_shape shape;
  uint64_t count; /* elements */
  float *data;    /* inside the userdata */
};

/* Pushes a zeroed tensor and returns its data (row-major, alive while the userdata is). Raises if the shape has a
 * negative dimension or the memory is not there. */
float *bind_tensor_new(lua_State *L, const struct ane_shape *shape);

/* The tensor at `arg`; raises otherwise. */
struct bind_tensor *bind_check_tensor(lua_State *L, int arg);

/* The element type whose name is at `arg`; raises otherwise. */
ane_dtype bind_check_dtype(lua_State *L, int arg);

/* Adds slices, comparison and arithmetic: methods to the table at the top of the stack, metamethods to the one below. */
void bind_tensor_math(lua_State *L);

#endif
