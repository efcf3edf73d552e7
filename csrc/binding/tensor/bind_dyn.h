/* Tensors of the primitive kernels as Lua values. */
#ifndef ANE_BINDING_BIND_DYN_H
#define ANE_BINDING_BIND_DYN_H

#include "binding/bind.h"
#include "tensor/dyn.h"

/* The value at the top of the stack, an ane.tensor or {dtype, shape, data (bytes)}, as a view; nil: absent. Raises on anything
 * else, naming the input. */
void bind_dyn_read(lua_State *L, const char *name, struct ane_dyn *t);
/* Pushes an ane.tensor of floats of at most 5 dimensions; else {shape, dtype, numbers or booleans as a list}. */
void bind_dyn_push(lua_State *L, const struct ane_dyn *t);

#endif
