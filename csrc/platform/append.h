/* Files that grow by appending and are kept over several runs of a program; reading what a file or pipe has now. */
#ifndef ANE_PLATFORM_APPEND_H
#define ANE_PLATFORM_APPEND_H

#include "base/status.h"

/* A regular file open for appending. Its lock ends with the process, so that one process writes it at a time. */
struct ane_append {
  int fd;        /* -1: closed */
  char *path;    /* owned; NULL: closed */
  uint64_t size; /* bytes of the file */
};
/* Opens or creates the file and locks it. ANE_IO: the path cannot be written, or is not a regular file. ANE_STATE: another
 * process has it open. On failure `f` is closed. */
ane_status ane_append_open(struct ane_append *f, const char *path, struct ane_error *err);
/* Appends bytes. On failure (ANE_IO: a full disk, or a mapped file has lost pages) the file keeps its old size. */
ane_status ane_append_write(struct ane_append *f, const void *data, size_t size, struct ane_error *err);
/* Truncates the file to `size` bytes, at most its present size (else ANE_RANGE). */
ane_status ane_append_truncate(struct ane_append *f, uint64_t size, struct ane_error *err);
/* Writes everything to the disk. */
ane_status ane_append_sync(struct ane_append *f, struct ane_error *err);
/* Closes. Does nothing on a closed file. */
void ane_append_close(struct ane_append *f);

/* Waits up to `ms` milliseconds (-1: without limit) until `fd` has bytes, is at its end or in error. false: nothing yet. */
bool ane_fd_ready(int fd, int ms);
/* Reads at most `max` bytes, as many as are available. Waits for the first one. Returns their number; 0: the end; -1: see errno
 * (EINTR: a signal arrived). */
int64_t ane_fd_read(int fd, void *data, size_t max);

#endif
