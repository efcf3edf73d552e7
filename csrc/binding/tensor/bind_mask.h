/* Class "ane.mask": a set of token ids, as a run takes it (ane_run_item). */
#ifndef ANE_BINDING_BIND_MASK_H
#define ANE_BINDING_BIND_MASK_H

#include "binding/bind.h"

/* Bit i % 32 of word i / 32: id i is in the set. Bits from n on mean nothing. */
struct bind_mask {
  uint32_t n, words; /* ids; words, (n + 31) / 32 */
  uint32_t bits[];
};

/* Returns the mask at `arg`; raises if it is something else. */
struct bind_mask *bind_check_mask(lua_State *L, int arg);

#endif
