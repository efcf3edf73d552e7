/* Files mapped for reading. */
#include "platform/platform_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ane_status map_fd(struct ane_map *map, int fd, const char *path, struct ane_error *err) {
  struct stat st;
  if (fstat(fd, &st) != 0) return ane_fail(err, ANE_IO, "%s: %s", path, strerror(errno));
  if (S_ISDIR(st.st_mode)) return ane_fail(err, ANE_IO, "%s: must be a file, but is a folder", path);
  if (!S_ISREG(st.st_mode)) return ane_fail(err, ANE_IO, "%s: is not a regular file", path);
  if (st.st_size == 0) return ANE_OK;
  if ((uint64_t)st.st_size > SIZE_MAX / 2) return ane_fail(err, ANE_IO, "%s: too large to map", path);
  void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (p == MAP_FAILED) return ane_fail(err, errno == ENOMEM ? ANE_NOMEM : ANE_IO, "%s: cannot map: %s", path, strerror(errno));
  *map = (struct ane_map){p, (uint64_t)st.st_size};
  if (ane_map_guard(map, path)) return ANE_OK;
  ane_map_close(map);
  return ane_fail(err, ANE_NOMEM, "%s: not enough memory to map", path);
}

ane_status ane_map_open(struct ane_map *map, const char *path, struct ane_error *err) {
  *map = (struct ane_map){0};
  int fd = ane_fd_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0); /* O_NONBLOCK: opening a FIFO must not block */
  if (fd < 0) return ane_fail(err, ANE_IO, "%s: %s", path, strerror(errno));
  ane_status st = map_fd(map, fd, path, err);
  close(fd); /* the mapping keeps the file open */
  return st;
}

/* Length of the folder part of a path, including the slash; 0: none. */
static size_t folder_length(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? (size_t)(slash + 1 - path) : 0;
}

/* Is it a file of a model hub's cache, .../models--OWNER--NAME/blobs/HASH? */
static bool is_blob(const char *target) {
  static const char blobs[] = "/blobs/", models[] = "/models--";
  size_t n = folder_length(target), len = sizeof blobs - 1;
  if (n < len || memcmp(target + n - len, blobs, len) != 0) return false;
  size_t at = n - len;
  while (at > 0 && target[at - 1] != '/') at--;
  return at > 0 && strncmp(target + at - 1, models, sizeof models - 1) == 0;
}

/* Are both files in one folder? */
static bool is_beside(const char *a, const char *b) {
  size_t n = folder_length(a);
  return n == folder_length(b) && memcmp(a, b, n) == 0;
}

/* Opens a file in the layout of model hubs' caches: `path` is a link to a file in the folder of the target of the link `beside`,
 * or, in folders that older versions of the hub's library filled, to a blob of the cache. */
static int open_linked(const char *beside, const char *path) {
  char to[PATH_MAX], target[PATH_MAX];
  errno = ELOOP;
  if (!realpath(beside, to) || !realpath(path, target)) return -1;
  errno = ELOOP;
  if (!(ane_path_is_link(beside) && is_beside(to, target)) && !is_blob(target)) return -1;
  return ane_fd_open(AT_FDCWD, target, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW, 0);
}

/* Opens each path component below the folder in turn, without following links. */
static int open_below(const char *folder, char *location) {
  int at = ane_fd_open(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY, 0);
  for (char *part = location, *slash; at >= 0; part = slash + 1) {
    slash = strchr(part, '/');
    if (slash) *slash = '\0';
    int next = ane_fd_open(at, *part ? part : ".", O_RDONLY | O_NOFOLLOW | (slash ? O_DIRECTORY : O_NONBLOCK | O_NOCTTY), 0);
    int why = errno;
    close(at);
    errno = why;
    at = next;
    if (!slash) break;
  }
  return at;
}

ane_status ane_map_open_beside(struct ane_map *map, const char *beside, const char *location, struct ane_error *err) {
  char folder[PATH_MAX], path[PATH_MAX], parts[PATH_MAX];
  size_t n = folder_length(beside);
  *map = (struct ane_map){0};
  if (n + strlen(location) >= PATH_MAX) return ane_fail(err, ANE_IO, "%s: the path is too long", location);
  snprintf(folder, sizeof folder, "%.*s", (int)n, beside);
  snprintf(path, sizeof path, "%.*s%s", (int)n, beside, location);
  memcpy(parts, location, strlen(location) + 1);
  int fd = open_below(n ? folder : ".", parts);
  if (fd < 0 && (errno == ELOOP || errno == EMLINK)) fd = open_linked(beside, path);
  if (fd < 0)
    return ane_fail(err, ANE_IO, "%s: %s", path,
                    errno == ELOOP ? "a symbolic link that leads out of the folder" : strerror(errno));
  ane_status st = map_fd(map, fd, path, err);
  close(fd);
  return st;
}

void ane_map_close(struct ane_map *map) {
  if (map->data) {
    ane_map_unguard(map);
    munmap((void *)(uintptr_t)map->data, (size_t)map->size);
  }
  *map = (struct ane_map){0};
}

/* Clips [offset, offset + size) to the file. false: nothing is left. */
static bool clip(const struct ane_map *map, uint64_t offset, uint64_t *size) {
  if (!map->data || offset >= map->size) return false;
  *size = ANE_MIN(*size, map->size - offset);
  return *size > 0;
}

static uint64_t page_size(void) {
  long n = sysconf(_SC_PAGESIZE);
  return n > 0 ? (uint64_t)n : 4096;
}

void ane_map_drop(const struct ane_map *map, uint64_t offset, uint64_t size) {
  if (!clip(map, offset, &size)) return;
  /* Only whole pages are dropped, so that neighbouring data stays in memory. The last page of the file counts as whole. */
  uint64_t page = page_size(), from = (offset + page - 1) & ~(page - 1), to = offset + size;
  if (to < map->size) to &= ~(page - 1);
  if (to > from) madvise((void *)(uintptr_t)(map->data + from), (size_t)(to - from), MADV_DONTNEED);
}

void ane_map_read_sparsely(const struct ane_map *map, bool sparse) {
  if (!map->data) return;
  madvise((void *)(uintptr_t)map->data, (size_t)map->size, sparse ? MADV_RANDOM : MADV_NORMAL);
  if (!sparse) ane_map_drop(map, 0, map->size);
}
