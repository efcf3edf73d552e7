/* Whether the CPU computes 512 bits in two halves: products of the level avx512vnni are then divided in another way. Their bits
 * do not depend on it. */
#ifndef ANE_KERNELS_HALF_UNITS_H
#define ANE_KERNELS_HALF_UNITS_H

#include <stdbool.h>

/* ane_kernels_get sets it once by the CPU. Specs set it to compare both ways. */
extern bool ane_half_units;

#endif
