#include "base/glob.h"

/* Does s begin with the pattern? Backtracks only to the last *: a later * can match whatever an earlier one left. */
static bool begins(const char *p, const char *s) {
  const char *star = NULL, *at = NULL;
  while (*p) {
    if (*p == '*')
      star = ++p, at = s;
    else if (*s && (*p == '?' || *p == *s))
      p++, s++;
    else if (star && *at)
      p = star, s = ++at;
    else
      return false;
  }
  return true;
}

bool ane_glob(const char *pattern, const char *name) {
  do
    if (begins(pattern, name)) return true;
  while (*name++);
  return false;
}
