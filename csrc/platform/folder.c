/* Folders that appear, or are replaced, whole or not at all. */
#include "platform/platform_internal.h"

#include "base/alloc.h"
#include "platform/map_guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

/* Maximum depth of the folders that the project writes. A deeper tree is not ours and is not removed. */
enum { MAX_DEPTH = 32 };

/* ---- Trees ---------------------------------------------------------------------------------------------------------*/

/* Walks the tree of folder fd and closes fd. remove: empties the folder, without following links. Otherwise syncs all folders;
 * the files must be synced already. false: see errno. */
static bool walk_tree(int fd, bool remove, int depth) {
  DIR *d = fdopendir(fd);
  bool ok = d && depth < MAX_DEPTH;
  if (!d) close(fd);
  for (struct dirent *e; ok && (e = readdir(d));) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    int inner = ane_fd_open(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (inner >= 0)
      ok = walk_tree(inner, remove, depth + 1);
    else
      ok = errno == ENOTDIR || errno == ELOOP || errno == ENOENT; /* a file, a link, gone */
    if (remove && ok) ok = unlinkat(fd, e->d_name, inner >= 0 ? AT_REMOVEDIR : 0) == 0 || errno == ENOENT;
  }
  if (d && !remove && ok) ok = ane_fd_sync(fd) == 0 || errno == EINVAL; /* EINVAL: the file system cannot sync folders */
  if (d) closedir(d);
  return ok;
}

static void remove_tree(const char *path) {
  int fd = ane_fd_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  if (fd >= 0 && walk_tree(fd, true, 0)) rmdir(path);
}

/* ---- Names ---------------------------------------------------------------------------------------------------------*/

static char *copy_path(const char *path, size_t len) {
  char *copy = ane_strndup(path, len);
  if (!copy) errno = ENOMEM;
  return copy;
}

/* The path of the folder that exists or will exist at `path`, with links resolved, in memory from ane_malloc. NULL: see errno. */
static char *resolve(const char *path) {
  char buf[PATH_MAX];
  struct stat st;
  size_t len = strlen(path);
  if (realpath(path, buf)) return copy_path(buf, strlen(buf));
  if (errno != ENOENT) return NULL;
  if (!len || lstat(path, &st) == 0) return errno = ENOENT, NULL; /* a dangling link */
  while (len > 1 && path[len - 1] == '/') len--;
  return copy_path(path, len);
}

/* Is name "base.<pid>-<n>.tmp"? */
static bool is_temp(const char *name, const char *base) {
  size_t n = strlen(base);
  if (strncmp(name, base, n) != 0 || name[n] != '.') return false;
  const char *s = name + n + 1;
  size_t pid = strspn(s, "0123456789");
  if (!pid || s[pid] != '-') return false;
  s += pid + 1;
  size_t number = strspn(s, "0123456789");
  return number && strcmp(s + number, ".tmp") == 0;
}

struct sweep {
  const char *path, *base;
  size_t folder; /* length of the folder part of path, including the slash */
  void (*remove_dead)(const char *temp);
};

static bool sweep_one(void *arg, const char *name) {
  struct sweep *s = arg;
  char path[PATH_MAX];
  if (!is_temp(name, s->base)) return true;
  if (snprintf(path, sizeof path, "%.*s%s", (int)s->folder, s->path, name) < (int)sizeof path) s->remove_dead(path);
  return true;
}

void ane_sweep_temps(const char *path, void (*remove_dead)(const char *temp)) {
  const char *slash = strrchr(path, '/');
  struct sweep s = {path, slash ? slash + 1 : path, slash ? (size_t)(slash + 1 - path) : 0, remove_dead};
  char parent[PATH_MAX];
  if (s.folder >= sizeof parent) return;
  snprintf(parent, sizeof parent, "%.*s", (int)s.folder, path);
  (void)ane_folder_each(s.folder ? parent : ".", sweep_one, &s, NULL);
}

/* Removes a temporary folder that no writer has locked. */
static void remove_dead(const char *temp) {
  int fd = ane_fd_open(AT_FDCWD, temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  if (fd < 0) return;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) remove_tree(temp); /* under the lock: a writer that has just created it waits */
  close(fd);
}

/* ---- Writing -------------------------------------------------------------------------------------------------------*/

static void release(struct ane_folder_writer *w) {
  if (w->fd >= 0) close(w->fd);
  ane_free(w->path);
  ane_free(w->temp);
  *w = (struct ane_folder_writer){.fd = -1};
}

/* Creates and locks a folder "path.<pid>-<n>.tmp". false: see errno, and there is no such folder. */
static bool make_temp(struct ane_folder_writer *w, size_t room) {
  static _Atomic unsigned counter;
  for (int tries = 0; tries < 100; tries++) {
    struct stat st;
    snprintf(w->temp, room, "%s.%ld-%u.tmp", w->path, (long)getpid(), atomic_fetch_add(&counter, 1));
    if (mkdir(w->temp, 0777) != 0) {
      if (errno == EEXIST || errno == EINTR) continue;
      return false;
    }
    w->fd = ane_fd_open(AT_FDCWD, w->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    bool locked = w->fd >= 0 && ane_fd_lock(w->fd) && fstat(w->fd, &st) == 0;
    if (locked && st.st_nlink > 0) return true;
    /* A sweep may have removed it between mkdir and the lock. */
    bool swept = locked || (w->fd < 0 && errno == ENOENT);
    int why = errno;
    if (!swept) rmdir(w->temp);
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
    errno = why;
    if (!swept) return false;
  }
  errno = EEXIST;
  return false;
}

ane_status ane_folder_create(struct ane_folder_writer *w, const char *path, struct ane_error *err) {
  *w = (struct ane_folder_writer){.fd = -1};
  ane_folder_restore(path);
  char kind = ane_path_kind(path);
  if (kind && kind != 'd') return ane_fail(err, ANE_IO, "%s: is not a folder", path);
  w->path = resolve(path);
  size_t room = w->path ? strlen(w->path) + 48 : 0;
  w->temp = room ? ane_calloc(1, room) : NULL;
  if (room && !w->temp) errno = ENOMEM;
  if (w->temp) ane_sweep_temps(w->path, remove_dead);
  if (!w->temp || !make_temp(w, room)) {
    ane_status st = errno == ENOMEM ? ANE_NOMEM : ANE_IO;
    ane_fail(err, st, "%s: cannot create: %s", path, strerror(errno));
    release(w);
    return st;
  }
  struct stat st;
  if (kind == 'd' && stat(w->path, &st) == 0) (void)!fchmod(w->fd, (st.st_mode & 07777) | 0700);
  return ANE_OK;
}

static bool count_one(void *arg, const char *name ANE_UNUSED) { return ++*(int *)arg < 1; }

ane_status ane_folder_replaceable(const char *path, const char *marker, const char *what, struct ane_error *err) {
  int entries = 0;
  if (ane_path_kind(path) != 'd') return ANE_OK; /* other paths are refused by ane_folder_create */
  size_t room = strlen(path) + strlen(marker) + 2;
  char *known = ane_calloc(1, room);
  if (!known) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", path);
  snprintf(known, room, "%s/%s", path, marker);
  bool replaceable = ane_path_kind(known) == 'f';
  ane_free(known);
  ane_status st = replaceable ? ANE_OK : ane_folder_each(path, count_one, &entries, err);
  if (st || !entries) return st;
  return ane_fail(err, ANE_INVALID, "%s: is a folder with other things in it, not %s to be replaced", path, what);
}

/* Opens or creates w->temp and locks it. false: see errno; EWOULDBLOCK: another writer has it. */
static bool lock_partial(struct ane_folder_writer *w) {
  for (int tries = 0; tries < 100; tries++) {
    struct stat mine, there;
    if (mkdir(w->temp, 0777) != 0 && errno != EEXIST) return false;
    w->fd = ane_fd_open(AT_FDCWD, w->temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (w->fd < 0 && errno != ENOENT) return false;
    if (w->fd < 0) continue;
    if (flock(w->fd, LOCK_EX | LOCK_NB) != 0 && errno != ENOLCK && errno != EOPNOTSUPP) {
      int why = errno;
      if (why != EWOULDBLOCK) rmdir(w->temp); /* only one that is empty */
      errno = why;
      return false;
    }
    /* Its writer may have committed it between open and lock; then the name refers to another folder. */
    if (fstat(w->fd, &mine) == 0 && lstat(w->temp, &there) == 0 && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
      return true;
    close(w->fd);
    w->fd = -1;
  }
  return false;
}

ane_status ane_folder_resume(struct ane_folder_writer *w, const char *path, struct ane_error *err) {
  *w = (struct ane_folder_writer){.fd = -1};
  ane_folder_restore(path);
  char kind = ane_path_kind(path);
  if (kind && kind != 'd') return ane_fail(err, ANE_IO, "%s: is not a folder", path);
  w->path = resolve(path);
  size_t room = w->path ? strlen(w->path) + 16 : 0;
  w->temp = room ? ane_calloc(1, room) : NULL;
  if (room && !w->temp) errno = ENOMEM;
  if (w->temp) snprintf(w->temp, room, "%s.partial", w->path);
  if (!w->temp || !lock_partial(w)) {
    bool held = w->temp && w->fd >= 0 && errno == EWOULDBLOCK;
    ane_status st = held ? ANE_STATE : errno == ENOMEM ? ANE_NOMEM : ANE_IO;
    ane_fail(err, st, "%s: %s%s", path, held ? "another process writes there" : "cannot create: ", held ? "" : strerror(errno));
    release(w);
    return st;
  }
  return ANE_OK;
}

void ane_folder_leave(struct ane_folder_writer *w) {
  if (!w->temp) return;
  (void)!rmdir(w->temp); /* only one that is empty; under the lock */
  release(w);
}

ane_status ane_folder_remove(struct ane_folder_writer *w, const char *name, struct ane_error *err) {
  if (!w->temp) return ane_fail(err, ANE_INVALID, "the writer is closed");
  if (strchr(name, '/') || strcmp(name, "..") == 0 || strcmp(name, ".") == 0)
    return ane_fail(err, ANE_INVALID, "%s: is not the name of an entry of the folder", name);
  int fd = ane_fd_open(w->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  bool ok = fd < 0 || walk_tree(fd, true, 0);
  if (ok) ok = unlinkat(w->fd, name, fd >= 0 ? AT_REMOVEDIR : 0) == 0 || errno == ENOENT;
  return ok ? ANE_OK : ane_fail(err, ANE_IO, "%s/%s: cannot remove: %s", w->path, name, strerror(errno));
}

ane_status ane_folder_make(struct ane_folder_writer *w, const char *name, struct ane_error *err) {
  if (!w->temp) return ane_fail(err, ANE_INVALID, "the writer is closed");
  return mkdirat(w->fd, name, 0777) == 0 ? ANE_OK
                                         : ane_fail(err, ANE_IO, "%s/%s: cannot create: %s", w->path, name, strerror(errno));
}

ane_status ane_folder_open(struct ane_folder_writer *w, const char *name, struct ane_folder_file *f, struct ane_error *err) {
  *f = (struct ane_folder_file){-1, name};
  if (!w->temp) return ane_fail(err, ANE_INVALID, "the writer is closed");
  f->fd = ane_fd_open(w->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  return f->fd >= 0 ? ANE_OK : ane_fail(err, ANE_IO, "%s/%s: cannot create: %s", w->path, name, strerror(errno));
}

static ane_status write_failed(const struct ane_folder_file *f, struct ane_error *err) {
  return ane_fail(err, ANE_IO, "%s: cannot write: %s", f->name, errno ? strerror(errno) : "no progress");
}

ane_status ane_folder_write(struct ane_folder_file *f, const void *data, size_t size, struct ane_error *err) {
  return ane_fd_write(f->fd, data, size) ? ANE_OK : write_failed(f, err);
}

ane_status ane_folder_overwrite(struct ane_folder_file *f, uint64_t offset, const void *data, size_t size,
                                struct ane_error *err) {
  return ane_fd_overwrite(f->fd, offset, data, size) ? ANE_OK : write_failed(f, err);
}

ane_status ane_folder_sync(struct ane_folder_file *f, struct ane_error *err) {
  bool ok = ane_fd_sync(f->fd) == 0;
  int why = errno;
  if (close(f->fd) != 0 && ok && errno != EINTR) ok = false, why = errno;
  f->fd = -1;
  errno = why;
  return ok ? ANE_OK : write_failed(f, err);
}

void ane_folder_close(struct ane_folder_file *f) {
  if (f->fd >= 0) close(f->fd);
  f->fd = -1;
}

/* ---- Commit ----------------------------------------------------------------------------------------------------------*/

static _Atomic bool can_swap = true;

void ane_folder_can_swap(bool can) { can_swap = can; }

/* Swaps two folders atomically. -1: see errno, also if the system does not support it. */
static int swap_folders(const char *a, const char *b) {
  errno = ENOSYS;
  if (!can_swap) return -1;
#if defined(__APPLE__)
  return renamex_np(a, b, RENAME_SWAP);
#elif defined(__linux__) && defined(SYS_renameat2)
  return (int)syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE of linux/fs.h */);
#else
  (void)a, (void)b;
  return -1;
#endif
}

static bool is_unsupported(int why) { return why == ENOSYS || why == EINVAL || why == ENOTSUP; }

/* The name of the old folder between the two renames. */
static bool aside_name(const char *path, char aside[PATH_MAX]) {
  size_t len = strlen(path);
  while (len > 1 && path[len - 1] == '/') len--;
  return snprintf(aside, PATH_MAX, "%.*s.old.tmp", (int)ANE_MIN(len, (size_t)PATH_MAX), path) < PATH_MAX;
}

/* Replaces the folder with two renames. false: see errno, and nothing has changed. */
static bool replace_in_two(const char *temp, const char *path) {
  char aside[PATH_MAX];
  errno = ENAMETOOLONG;
  if (!aside_name(path, aside)) return false;
  remove_tree(aside); /* left by a process that was killed after its renames */
  if (rename(path, aside) != 0) return false;
  if (rename(temp, path) != 0) {
    int why = errno;
    (void)!rename(aside, path);
    errno = why;
    return false;
  }
  return true;
}

void ane_folder_restore(const char *path) {
  char aside[PATH_MAX];
  struct stat st;
  if (lstat(path, &st) == 0 || !aside_name(path, aside)) return;
  if (lstat(aside, &st) == 0 && S_ISDIR(st.st_mode)) (void)!rename(aside, path);
}

static void sync_parent(const char *path) {
  char copy[PATH_MAX];
  if (snprintf(copy, sizeof copy, "%s", path) < (int)sizeof copy) ane_sync_folder_of(copy);
}

/* Moves the new folder into place, syncs, then removes the old one. */
static bool replace(struct ane_folder_writer *w) {
  char aside[PATH_MAX] = "";
  const char *old = NULL;
  /* rename succeeds if the path does not exist or is an empty folder. */
  if (rename(w->temp, w->path) != 0) {
    if (errno != EEXIST && errno != ENOTEMPTY) return false;
    old = w->temp;
    if (swap_folders(w->temp, w->path) != 0) {
      if (!is_unsupported(errno) || !replace_in_two(w->temp, w->path) || !aside_name(w->path, aside)) return false;
      old = aside;
    }
  }
  sync_parent(w->path);
  if (old) remove_tree(old);
  return true;
}

ane_status ane_folder_commit(struct ane_folder_writer *w, struct ane_error *err) {
  if (!w->temp) return ane_fail(err, ANE_INVALID, "the writer is closed");
  if (ane_maps_check(err)) { /* what was written may come from that file */
    ane_folder_abandon(w);
    return ANE_IO;
  }
  int fd = ane_fd_open(w->fd, ".", O_RDONLY | O_DIRECTORY, 0);
  if (fd < 0 || !walk_tree(fd, false, 0) || !replace(w)) {
    ane_fail(err, ANE_IO, "%s: cannot write: %s", w->path, strerror(errno));
    ane_folder_abandon(w);
    return ANE_IO;
  }
  release(w);
  return ANE_OK;
}

void ane_folder_abandon(struct ane_folder_writer *w) {
  if (!w->temp) return;
  remove_tree(w->temp);
  release(w);
}
