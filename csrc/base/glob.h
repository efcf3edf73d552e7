/* Name patterns. */
#ifndef ANE_BASE_GLOB_H
#define ANE_BASE_GLOB_H

#include "base/attr.h"

/* Does the pattern occur anywhere in the name? * matches any characters, ? matches one, and every other character matches itself.
 * */
bool ane_glob(const char *pattern, const char *name);

#endif
