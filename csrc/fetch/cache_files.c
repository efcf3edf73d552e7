/* Folders, links and moves by path; see fetch.h. */
#include "fetch/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ane_status failed(const char *path, struct ane_error *err) {
  return ane_fail(err, ANE_IO, "%s: %s", path, strerror(errno));
}

static ane_status fail_with(int cause, const char *path, struct ane_error *err) {
  errno = cause;
  return failed(path, err);
}

ane_status ane_cache_folder(const char *path, struct ane_error *err) {
  char part[PATH_MAX];
  size_t n = strlen(path);
  if (n == 0 || n >= sizeof part) return fail_with(n ? ENAMETOOLONG : ENOENT, path, err);
  memcpy(part, path, n + 1);
  for (size_t i = 1; i <= n; i++) {
    if (part[i] != '/' && part[i] != 0) continue;
    part[i] = 0;
    if (mkdir(part, 0777) != 0 && errno != EEXIST) return failed(part, err);
    part[i] = path[i];
  }
  struct stat st;
  if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return ANE_OK;
  return fail_with(ENOTDIR, path, err);
}

bool ane_cache_size(const char *path, uint64_t *n) {
  struct stat st;
  if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
  *n = (uint64_t)st.st_size;
  return true;
}

ane_status ane_cache_link(const char *target, const char *path, struct ane_error *err) {
  char temp[PATH_MAX];
  for (unsigned tries = 0; tries < 100; tries++) {
    int n = snprintf(temp, sizeof temp, "%s.%ld-%u.tmp", path, (long)getpid(), tries);
    if (n < 0 || (size_t)n >= sizeof temp) return fail_with(ENAMETOOLONG, path, err);
    if (symlink(target, temp) == 0) {
      if (rename(temp, path) == 0) return ANE_OK;
      int cause = errno;
      unlink(temp);
      return fail_with(cause, path, err);
    }
    if (errno != EEXIST) break;
  }
  return failed(path, err);
}

bool ane_cache_link_target(const char *path, char *target, size_t size) {
  ssize_t n = readlink(path, target, size);
  if (n < 0 || (size_t)n >= size) return false;
  target[n] = 0;
  return true;
}

ane_status ane_cache_move(const char *from, const char *to, struct ane_error *err) {
  char folder[PATH_MAX];
  if (rename(from, to) != 0) return failed(to, err);
  const char *slash = strrchr(to, '/');
  size_t n = slash ? (size_t)(slash - to) : 1;
  if (n >= sizeof folder) return ANE_OK;
  memcpy(folder, slash ? to : ".", n);
  folder[n] = 0;
  int fd;
  do fd = open(n > 0 ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return ANE_OK; /* the rename is done; it may reach the disk later */
  fsync(fd);
  close(fd);
  return ANE_OK;
}
