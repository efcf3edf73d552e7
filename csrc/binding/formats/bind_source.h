/* Sources as other binding files see them. */
#ifndef ANE_BINDING_BIND_SOURCE_H
#define ANE_BINDING_BIND_SOURCE_H

#include "binding/bind.h"
#include "formats/formats.h"

/* The open source at `arg`; raises if it is something else or closed. It lives as long as the Lua value is open: who
 * keeps pointers into it also keeps the value (a user value slot), and expects that it may be closed by its owner. */
struct ane_source *bind_check_source(lua_State *L, int arg);
/* Pushes a closed source; what is put there belongs to it. */
struct ane_source **bind_new_source(lua_State *L);

/* Stored bytes of one of these sources may leave memory. Does not touch Lua. */
void bind_release(struct ane_source *const *sources, int n, const void *data, uint64_t bytes);

#endif
