/* From the graph of a recipe to Core ML packages: its shards, their operations, and where these are predicted to run. */
#ifndef ANE_MIL_MIL_H
#define ANE_MIL_MIL_H

#include "mil/partition.h"
#include "mil/export.h"
#include "mil/residency.h"
#include "mil/lower.h"

#endif
