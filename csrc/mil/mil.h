/* Makes Core ML packages from a recipe's graph: shards, their operations, and the predicted device of each. */
#ifndef ANE_MIL_MIL_H
#define ANE_MIL_MIL_H

#include "mil/partition.h"
#include "mil/coreai_export.h"
#include "mil/export.h"
#include "mil/residency.h"
#include "mil/lower.h"
#include "mil/match.h"

#endif
