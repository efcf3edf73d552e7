/* What happens to mapped files that lose pages: another program truncates one, or its disk fails.
 *
 * Reading such a page raises SIGBUS. While files are mapped, a handler of this process looks at the address. If it is in a
 * mapped file, the rest of the mapping is replaced with zeros, the file counts as broken, and the program continues. All other
 * SIGBUS go to the handler that was installed before, or end the process as before. The handler is removed with the last
 * mapping. It does nothing if the host installs its own later, or blocks SIGBUS in the thread that reads. */
#ifndef ANE_PLATFORM_MAP_GUARD_H
#define ANE_PLATFORM_MAP_GUARD_H

#include "platform/platform.h"

/* Fails with ANE_IO and the path if the mapped file has lost pages: what was read from it is then worthless. Costs one load as
 * long as no mapped file of the process has lost pages. */
ane_status ane_map_check(const struct ane_map *map, struct ane_error *err);
/* The same for all files that are mapped now. */
ane_status ane_maps_check(struct ane_error *err);

#endif
