/* Tensors of the primitive kernels as Lua values. */
#ifndef ANE_BINDING_BIND_DYN_H
#define ANE_BINDING_BIND_DYN_H

#include "binding/bind.h"
#include "tensor/dyn.h"

/* Reads the value at the top of the stack, an ane.tensor or {dtype, shape, data (bytes)}, as a view; nil: absent. Raises on
 * anything else, naming the input. */
void bind_dyn_read(lua_State *L, const char *name, struct ane_dyn *t);
/* Pushes floats of at most 5 dimensions as an ane.tensor, others as {shape, dtype, numbers or booleans as a list}. */
void bind_dyn_push(lua_State *L, const struct ane_dyn *t);
/* Pushes {dtype, shape, data (bytes)}. */
void bind_dyn_push_bytes(lua_State *L, const struct ane_dyn *t);

/* ---- Tensors by name -------------------------------------------------------------------------------------------------*/

/* The names of n inputs, outputs or states: name(of, i) is number i, from 0. */
struct bind_names {
  const char *(*name)(const void *of, int32_t i);
  const void *of;
  int32_t n;
};

/* Pushes the list of names. */
void bind_names_push(lua_State *L, const struct bind_names *names);
/* Returns the number of the name at `arg`; raises "there is no <what> <name>". */
int32_t bind_names_index(lua_State *L, int arg, const struct bind_names *names, const char *what);

/* Reads the tensors of the table at `arg` by name, with bind_dyn_read, into a userdata that is pushed. */
struct ane_dyn *bind_dyn_inputs(lua_State *L, int arg, const struct bind_names *names);
/* Pushes a userdata with an empty list for n results. */
struct ane_dyn *bind_dyn_list(lua_State *L, int32_t n);
/* After a run: pushes a table of the results by name, or nil, message and code if st is not ANE_OK; then drops the results.
 * Returns the number of values. Raises if Lua has no memory. */
int bind_dyn_results(lua_State *L, ane_status st, const struct ane_error *err, const struct bind_names *names,
                     struct ane_dyn *results, struct ane_dyn_memory *memory);

#endif
