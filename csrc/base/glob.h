/* Patterns of names. */
#ifndef ANE_BASE_GLOB_H
#define ANE_BASE_GLOB_H

#include "base/attr.h"

/* Is the pattern found anywhere in the name? * stands for any characters, ? for one; all others for themselves. */
bool ane_glob(const char *pattern, const char *name);

#endif
