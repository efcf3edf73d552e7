/* Class "ane.factor": the factor of a second moment, which compensated rounding takes. */
#ifndef ANE_BINDING_BIND_FACTOR_H
#define ANE_BINDING_BIND_FACTOR_H

#include "binding/bind.h"
#include "quant/compensate.h"

#define BIND_FACTOR "ane.factor"

/* Returns the factor at `arg`, which must have `cols` columns (0: any number); raises otherwise. */
const struct ane_factor *bind_check_factor(lua_State *L, int arg, int64_t cols);

#endif
