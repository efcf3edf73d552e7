/* Sources as other binding files see them. */
#ifndef ANE_BINDING_BIND_SOURCE_H
#define ANE_BINDING_BIND_SOURCE_H

#include "binding/bind.h"
#include "formats/formats.h"

/* Returns the open source at `arg`; raises if it is something else or closed. It lives as long as the Lua value is open. A caller
 * that keeps pointers into it also keeps the value (in a user value slot), and must expect that its owner closes it. */
struct ane_source *bind_check_source(lua_State *L, int arg);
/* Pushes a closed source and returns its slot. A source that is put there belongs to the Lua value. */
struct ane_source **bind_new_source(lua_State *L);

/* Lets stored bytes of one of these sources leave memory. Does not touch Lua. */
void bind_release(struct ane_source *const *sources, int n, const void *data, uint64_t bytes);

#endif
