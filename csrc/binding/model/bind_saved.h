/* Declarations that the sessions of all engines share in the binding. */
#ifndef ANE_BINDING_BIND_SAVED_H
#define ANE_BINDING_BIND_SAVED_H

#include "binding/bind.h"
#include "session/session.h"

/* Returns which rows a feed computes: "none", "last" (default), "all" or "argmax" at `arg`; raises otherwise. */
ane_want bind_want(lua_State *L, int arg);

#endif
