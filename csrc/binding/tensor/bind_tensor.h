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

/* Pushes a zeroed tensor and returns its data (row-major; valid as long as the userdata lives). Raises if the shape has a
 * negative dimension, or if memory is out. */
float *bind_tensor_new(lua_State *L, const struct ane_shape *shape);

/* Returns the tensor at `arg`; raises if it is something else. */
struct bind_tensor *bind_check_tensor(lua_State *L, int arg);

/* Returns the element type whose name is at `arg`; raises if there is none. */
ane_dtype bind_check_dtype(lua_State *L, int arg);

/* Adds slices, comparison and arithmetic: methods to the table at the top of the stack, metamethods to the one below. */
void bind_tensor_math(lua_State *L);

#endif
