/* Rights that the process gives up for good: Landlock for files, seccomp for system calls (Linux 5.13 and later). */
#ifndef ANE_PLATFORM_SANDBOX_H
#define ANE_PLATFORM_SANDBOX_H

#include "base/status.h"

struct ane_sandbox {
  const char *const *reads; /* files, and folders with all below them, that may still be read; missing ones are skipped */
  size_t n_reads;
  const char *const *writes; /* folders that may be read and written, with all below them */
  size_t n_writes;
};
/* From now on the calling thread, and the threads that it starts, can open only these paths. No thread of the process can start a
 * program or a process, use sockets, or access other processes. Open files stay usable. A second call restricts further. Errors:
 * ANE_UNSUPPORTED (names what the kernel lacks; no right was given up), ANE_IO (some rights may have been given up). */
ane_status ane_sandbox_enter(const struct ane_sandbox *s, struct ane_error *err);

#endif
