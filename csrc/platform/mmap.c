#include "platform/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ane_status map_fd(struct ane_map *map, int fd, const char *path, struct ane_error *err) {
  struct stat st;
  if (fstat(fd, &st) != 0) return ane_fail(err, ANE_IO, "%s: %s", path, strerror(errno));
  if (S_ISDIR(st.st_mode)) return ane_fail(err, ANE_IO, "%s: is a folder, wanted a file", path);
  if (!S_ISREG(st.st_mode)) return ane_fail(err, ANE_IO, "%s: is not a regular file", path);
  if (st.st_size == 0) return ANE_OK;
  if ((uint64_t)st.st_size > SIZE_MAX / 2) return ane_fail(err, ANE_IO, "%s: too large to map", path);
  void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (p == MAP_FAILED) return ane_fail(err, ANE_IO, "%s: cannot map: %s", path, strerror(errno));
  *map = (struct ane_map){p, (uint64_t)st.st_size};
  return ANE_OK;
}

ane_status ane_map_open(struct ane_map *map, const char *path, struct ane_error *err) {
  *map = (struct ane_map){0};
  int fd;
  do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* O_NONBLOCK: a FIFO must not make us wait */
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return ane_fail(err, ANE_IO, "%s: %s", path, strerror(errno));
  ane_status st = map_fd(map, fd, path, err);
  close(fd); /* the mapping keeps the file */
  return st;
}

void ane_map_close(struct ane_map *map) {
  if (map->data) munmap((void *)(uintptr_t)map->data, (size_t)map->size);
  *map = (struct ane_map){0};
}

/* The part of [offset, offset + size) that lies in the file. */
static bool clip(const struct ane_map *map, uint64_t offset, uint64_t *size) {
  if (!map->data || offset >= map->size) return false;
  *size = ANE_MIN(*size, map->size - offset);
  return *size > 0;
}

static uint64_t page_size(void) {
  long n = sysconf(_SC_PAGESIZE);
  return n > 0 ? (uint64_t)n : 4096;
}

void ane_map_will_need(const struct ane_map *map, uint64_t offset, uint64_t size) {
  if (!clip(map, offset, &size)) return;
  uint64_t from = offset & ~(page_size() - 1);
  madvise((void *)(uintptr_t)(map->data + from), (size_t)(offset + size - from), MADV_WILLNEED);
}

void ane_map_drop(const struct ane_map *map, uint64_t offset, uint64_t size) {
  if (!clip(map, offset, &size)) return;
  /* Whole pages only, so that neighbours stay; the last page of the file counts as whole. */
  uint64_t page = page_size(), from = (offset + page - 1) & ~(page - 1), to = offset + size;
  if (to < map->size) to &= ~(page - 1);
  if (to > from) madvise((void *)(uintptr_t)(map->data + from), (size_t)(to - from), MADV_DONTNEED);
}
