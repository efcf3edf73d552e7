/* Declarations that the binding files for Core ML packages share: options from Lua tables, and partitions that Lua owns. */
#ifndef ANE_BINDING_BIND_MIL_H
#define ANE_BINDING_BIND_MIL_H

#include "binding/model/bind_model.h"
#include "mil/mil.h"

/* Reads the options layout, norm, rope, context, max_t, fixed_t, argmax, fp32 and hidden. */
void bind_mil_options(lua_State *L, int t, struct ane_mil_options *o);
/* Reads the options of bind_mil_options, and gather ("all", "last") and embed. */
void bind_mil_exporter_options(lua_State *L, int t, struct ane_mil_options *o);
/* Reads the option `functions`, a list of {fixed_t or max_t, context}, with defaults from `o`. Pushes a userdata that owns the
 * result. *n is 0 if the option is absent. */
struct ane_mil_profile *bind_mil_profiles(lua_State *L, int t, const struct ane_mil_options *o, uint32_t *n);
/* Pushes {name, fixed_t or max_t, context (if it makes a difference)}. */
void bind_mil_push_function(lua_State *L, const struct ane_mil_function_plan *f);
/* Sets inputs, outputs and states of the table on top: lists of {name, role, edge, index, dtype, shape}; T is "T". */
void bind_mil_push_lowered(lua_State *L, const struct ane_graph *g, const struct ane_mil_lowered *r);
/* Sets functions of the table on top: a list of {name, fixed_t or max_t, context (if it makes a difference), inputs, outputs,
 * states}. */
void bind_mil_push_functions(lua_State *L, const struct ane_graph *g, const struct ane_mil_function_plan *list, uint32_t n,
                             struct ane_mil_lowered *const *lowered);
/* Pushes {ropes = list of {inv_freq, magnitude, long_freq, original}, masks = list of {window, ahead}}. `index` of rope and mask
 * ports is an index into these lists, from 0. Pushes nothing on failure. */
ane_status bind_mil_push_tables(lua_State *L, const struct ane_graph *g, struct ane_arena *arena, struct ane_error *err);
/* Pushes a userdata with the requested scheme of each value of the graph: `weights`, or the entry of `schemes` for its name. */
struct ane_weight_spec *bind_mil_schemes(lua_State *L, int t, const struct ane_graph *g);
/* Makes the partition that the options in the table describe (`whole`: one shard). */
ane_status bind_mil_partition(lua_State *L, int t, const struct ane_graph *g, struct ane_weight_spec *specs,
                              struct ane_partition **out, struct ane_error *err);

/* A partition that a userdata owns. It is pushed empty. */
struct bind_partition {
  struct ane_partition *partition;
};

#endif
