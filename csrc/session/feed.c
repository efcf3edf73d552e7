/* Checks of a feed that all engines share. */
#include "session/session.h"

#include <inttypes.h>

ane_status ane_ids_check(const int32_t *ids, int64_t n, int64_t n_ids, int64_t first, struct ane_error *err) {
  for (int64_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= n_ids)
      return ane_fail(err, ANE_RANGE, "id %" PRId32 " at position %" PRId64 " is not in 0 .. %" PRId64, ids[i], first + i,
                      n_ids - 1);
  return ANE_OK;
}
