/* Declarations for imported graphs that binding files share. */
#ifndef ANE_BINDING_BIND_INTERP_H
#define ANE_BINDING_BIND_INTERP_H

#include "binding/bind.h"
#include "binding/formats/bind_source.h"
#include "binding/tensor/bind_dyn.h"
#include "interp/interp.h"

/* Reads the options isa, threads, run_memory (bytes; nil: see ane_dyn_budget_new) and progress(done, total) from the table at
 * `arg`. *load must outlive o. s: the source of the weights, whose pages are dropped after packing; NULL: they stay. */
struct bind_loading {
  struct bind_progress progress; /* first */
  struct ane_source *source;
};
void bind_interp_options(lua_State *L, int arg, struct ane_source *s, struct ane_interp_options *o, struct bind_loading *load);

/* Methods of all classes that run an imported graph. Each pushes one value. `what`, for errors: "graph" or "program". */
int bind_interp_info(lua_State *L, const struct ane_interp *g); /* {isa, threads, nodes, folded, weight_bytes, constant_bytes} */
int bind_interp_dump(lua_State *L, const struct ane_interp *g, const char *what); /* text of the nodes */
struct bind_names bind_interp_inputs(const struct ane_interp *g);
struct bind_names bind_interp_outputs(const struct ane_interp *g);

#endif
