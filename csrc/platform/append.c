/* Files that grow by appending. */
#include "platform/append.h"

#include "base/alloc.h"
#include "platform/map_guard.h"
#include "platform/platform_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static ane_status fail(const struct ane_append *f, const char *what, struct ane_error *err) {
  return ane_fail(err, ANE_IO, "%s: cannot %s: %s", f->path, what, errno ? strerror(errno) : "no progress");
}

/* Checks the kind of an open file, and locks it. Succeeds if the file system has no locks. */
static ane_status check_and_lock(struct ane_append *f, struct ane_error *err) {
  struct stat st;
  if (fstat(f->fd, &st) != 0) return fail(f, "open", err);
  if (!S_ISREG(st.st_mode)) return ane_fail(err, ANE_IO, "%s: is not a regular file", f->path);
  if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return ane_fail(err, ANE_STATE, "%s: another process is writing it", f->path);
  }
  if (fstat(f->fd, &st) != 0) return fail(f, "open", err);
  f->size = (uint64_t)st.st_size;
  return ANE_OK;
}

ane_status ane_append_open(struct ane_append *f, const char *path, struct ane_error *err) {
  *f = (struct ane_append){.fd = -1, .path = ane_strndup(path, strlen(path))};
  if (!f->path) return ane_fail(err, ANE_NOMEM, "%s: not enough memory to write", path);
  ane_status st;
  f->fd = ane_fd_open(AT_FDCWD, path, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK, 0666);
  if (f->fd < 0)
    st = fail(f, "write", err);
  else
    st = check_and_lock(f, err);
  if (st) ane_append_close(f);
  return st;
}

static int truncate_fd(int fd, uint64_t size) {
  int r;
  do r = ftruncate(fd, (off_t)size);
  while (r != 0 && errno == EINTR);
  return r;
}

ane_status ane_append_write(struct ane_append *f, const void *data, size_t size, struct ane_error *err) {
  if (ane_maps_check(err)) return ANE_IO; /* the bytes may come from that file, and a later run would take them over */
  if (!ane_fd_write(f->fd, data, size)) {
    ane_status st = fail(f, "write", err);
    (void)truncate_fd(f->fd, f->size);
    return st;
  }
  f->size += size;
  return ANE_OK;
}

ane_status ane_append_truncate(struct ane_append *f, uint64_t size, struct ane_error *err) {
  if (size > f->size)
    return ane_fail(err, ANE_RANGE, "%s: has %llu bytes, cannot be truncated to %llu", f->path, (unsigned long long)f->size,
                    (unsigned long long)size);
  if (truncate_fd(f->fd, size) != 0) return fail(f, "truncate", err);
  f->size = size;
  return ANE_OK;
}

ane_status ane_append_sync(struct ane_append *f, struct ane_error *err) {
  return ane_fd_sync(f->fd) == 0 ? ANE_OK : fail(f, "write", err);
}

void ane_append_close(struct ane_append *f) {
  if (!f->path) return;
  if (f->fd >= 0) close(f->fd);
  ane_free(f->path);
  *f = (struct ane_append){.fd = -1};
}

bool ane_fd_ready(int fd, int ms) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return poll(&one, 1, ms) != 0;
}

int64_t ane_fd_read(int fd, void *data, size_t max) { return read(fd, data, max); }
