/* From the graph of a recipe to Core ML packages: where it is cut, what the laws of the Neural Engine say of it. */
#ifndef ANE_MIL_MIL_H
#define ANE_MIL_MIL_H

#include "mil/partition.h"
#include "mil/export.h"
#include "mil/residency.h"
#include "mil/lower.h"

#endif
