/* Files that appear whole or not at all, paths, and directory listings. */
#include "platform/platform_internal.h"

#include "base/alloc.h"
#include "platform/map_guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

char ane_path_kind(const char *path) {
  struct stat st;
  if (stat(path, &st) != 0) return 0;
  return S_ISREG(st.st_mode) ? 'f' : S_ISDIR(st.st_mode) ? 'd' : 'o';
}

bool ane_path_is_link(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

bool ane_path_same(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The target of a symbolic link, so that the link itself stays; otherwise the path itself. */
static const char *real_target(const char *path, char buf[PATH_MAX]) {
  struct stat st;
  if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && realpath(path, buf)) return buf;
  return path;
}

/* ---- Temporary files -----------------------------------------------------------------------------------------------*/

int ane_fd_open(int folder, const char *path, int flags, unsigned mode) {
  int fd;
  do fd = openat(folder, path, flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  /* A standard stream of the process is closed. What is written to it must not end up in this file. */
  int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), why = errno;
  if (high < 0 && flags & O_EXCL) unlinkat(folder, path, 0);
  close(fd);
  errno = why;
  return high;
}

bool ane_fd_lock(int fd) {
  int r;
  do r = flock(fd, LOCK_EX);
  while (r != 0 && errno == EINTR);
  return r == 0 || errno == ENOLCK || errno == EOPNOTSUPP;
}

/* Creates and locks a file "path.<pid>-<n>.tmp". mkstemp is not used, since the mode must follow the umask. -1: see errno, and
 * there is no such file. */
static int open_temp(struct ane_file_writer *w, size_t room) {
  static _Atomic unsigned counter;
  for (int tries = 0; tries < 100; tries++) {
    struct stat st;
    snprintf(w->temp, room, "%s.%ld-%u.tmp", w->path, (long)getpid(), atomic_fetch_add(&counter, 1));
    int fd = ane_fd_open(AT_FDCWD, w->temp, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 && errno != EEXIST) return fd;
    if (fd < 0) continue;
    bool locked = ane_fd_lock(fd) && fstat(fd, &st) == 0;
    /* A sweep may have removed the file between open and lock. */
    if (locked && st.st_nlink > 0) return fd;
    int why = errno;
    if (!locked) unlink(w->temp);
    close(fd);
    errno = why;
    if (!locked) return -1;
  }
  errno = EEXIST;
  return -1;
}

/* Removes the temporary file of a writer that was killed, which is one that nobody has locked. */
static void remove_dead(const char *temp) {
  struct stat mine, there;
  int fd = ane_fd_open(AT_FDCWD, temp, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
  if (fd < 0) return;
  /* If its writer has just renamed it, the name is gone or refers to another writer's file. */
  bool dead = flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &mine) == 0 && S_ISREG(mine.st_mode) && lstat(temp, &there) == 0 &&
              mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
  if (dead) unlink(temp);
  close(fd);
}

/* ---- Writing -------------------------------------------------------------------------------------------------------*/

static void release(struct ane_file_writer *w) {
  ane_free(w->path);
  ane_free(w->temp);
  *w = (struct ane_file_writer){.fd = -1};
}

ane_status ane_file_create(struct ane_file_writer *w, const char *path, struct ane_error *err) {
  *w = (struct ane_file_writer){.fd = -1};
  /* A rename would replace a device or a pipe with a file. */
  char kind = ane_path_kind(path);
  if (kind == 'd') return ane_fail(err, ANE_IO, "%s: must be a file, but is a folder", path);
  if (kind == 'o') return ane_fail(err, ANE_IO, "%s: is not a regular file", path);
  char buf[PATH_MAX];
  const char *target = real_target(path, buf);
  size_t len = strlen(target), room = len + 48;
  w->path = ane_strndup(target, len);
  w->temp = ane_calloc(1, room);
  if (!w->path || !w->temp) {
    release(w);
    return ane_fail(err, ANE_NOMEM, "%s: not enough memory to write", path);
  }
  ane_sweep_temps(w->path, remove_dead);
  w->fd = open_temp(w, room);
  if (w->fd < 0) {
    ane_fail(err, ANE_IO, "%s: cannot create: %s", path, strerror(errno));
    release(w);
    return ANE_IO;
  }
  struct stat st;
  if (kind == 'f' && stat(w->path, &st) == 0) (void)!fchmod(w->fd, st.st_mode & 07777);
  return ANE_OK;
}

/* Names the output, and the file beside it that is written. */
static ane_status write_failed(const struct ane_file_writer *w, struct ane_error *err) {
  const char *slash = strrchr(w->temp, '/');
  return ane_fail(err, ANE_IO, "%s: cannot write %s: %s", w->path, slash ? slash + 1 : w->temp,
                  errno ? strerror(errno) : "no progress");
}

ane_status ane_file_write(struct ane_file_writer *w, const void *data, size_t size, struct ane_error *err) {
  if (!w->temp) return ane_fail(err, ANE_INVALID, "the writer is closed");
  return ane_fd_write(w->fd, data, size) ? ANE_OK : write_failed(w, err);
}

ane_status ane_file_overwrite(struct ane_file_writer *w, uint64_t offset, const void *data, size_t size, struct ane_error *err) {
  if (!w->temp) return ane_fail(err, ANE_INVALID, "the writer is closed");
  return ane_fd_overwrite(w->fd, offset, data, size) ? ANE_OK : write_failed(w, err);
}

/* Writes. At the process's file size limit it fails with EFBIG and consumes the signal that would end the process. */
static ssize_t write_quietly(int fd, const void *data, size_t size) {
  sigset_t limit, before, pending;
  sigemptyset(&limit);
  sigaddset(&limit, SIGXFSZ);
  if (pthread_sigmask(SIG_BLOCK, &limit, &before) != 0) return write(fd, data, size);
  ssize_t n = write(fd, data, size);
  int why = errno, got;
  bool raised =
      n < 0 && why == EFBIG && !sigismember(&before, SIGXFSZ) && sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ);
  if (raised) sigwait(&limit, &got);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = why;
  return n;
}

bool ane_fd_write(int fd, const void *data, size_t size) {
  const char *p = data;
  while (size > 0) {
    ssize_t n = write_quietly(fd, p, ANE_MIN(size, (size_t)1 << 30)); /* Linux writes at most 2 GiB per call */
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    p += n;
    size -= (size_t)n;
  }
  return true;
}

bool ane_fd_overwrite(int fd, uint64_t offset, const void *data, size_t size) {
  return lseek(fd, (off_t)offset, SEEK_SET) >= 0 && ane_fd_write(fd, data, size) && lseek(fd, 0, SEEK_END) >= 0;
}

int ane_fd_sync(int fd) {
  int r;
#ifdef __APPLE__
  if (fcntl(fd, F_FULLFSYNC) == 0) return 0; /* fsync does not reach the disk on macOS */
#endif
  do r = fsync(fd);
  while (r != 0 && errno == EINTR);
  return r;
}

void ane_sync_folder_of(char *path) {
  char *slash = strrchr(path, '/');
  if (slash) slash[slash == path] = '\0';
  int fd = ane_fd_open(AT_FDCWD, slash ? path : ".", O_RDONLY | O_DIRECTORY, 0);
  if (fd < 0) return;
  (void)ane_fd_sync(fd);
  close(fd);
}

ane_status ane_file_commit(struct ane_file_writer *w, struct ane_error *err) {
  if (!w->temp) return ane_fail(err, ANE_INVALID, "the writer is closed");
  if (ane_maps_check(err)) { /* what was written may come from that file */
    ane_file_abandon(w);
    return ANE_IO;
  }
  /* The file is closed only after the rename: its lock keeps sweeps away until then. */
  if (ane_fd_sync(w->fd) != 0 || rename(w->temp, w->path) != 0) {
    (void)write_failed(w, err);
    ane_file_abandon(w);
    return ANE_IO;
  }
  close(w->fd);
  ane_sync_folder_of(w->path);
  release(w);
  return ANE_OK;
}

void ane_file_abandon(struct ane_file_writer *w) {
  if (!w->temp) return;
  unlink(w->temp); /* under the lock: the name cannot be another writer's yet */
  if (w->fd >= 0) close(w->fd);
  release(w);
}

ane_status ane_folder_each(const char *path, bool (*fn)(void *arg, const char *name), void *arg, struct ane_error *err) {
  DIR *d = opendir(path);
  if (!d) return ane_fail(err, ANE_IO, "cannot list %s: %s", path, strerror(errno));
  struct dirent *e;
  while (errno = 0, (e = readdir(d))) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    if (!fn(arg, e->d_name)) break;
  }
  int why = e ? 0 : errno;
  closedir(d);
  return why ? ane_fail(err, ANE_IO, "cannot list %s: %s", path, strerror(why)) : ANE_OK;
}
