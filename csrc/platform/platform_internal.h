/* Shared by append.c, file.c, folder.c, map_guard.c and mmap.c. */
#ifndef ANE_PLATFORM_PLATFORM_INTERNAL_H
#define ANE_PLATFORM_PLATFORM_INTERNAL_H

#include "platform/platform.h"

/* openat, repeated after interruptions; always with O_CLOEXEC. `mode` counts where a file is created. Never returns 0, 1 or 2.
 * With O_EXCL no file is left after a failure. */
int ane_fd_open(int folder, const char *path, int flags, unsigned mode);
/* Waits for the lock that a writer holds during its lifetime. Succeeds if the file system has no locks. false: see errno. */
bool ane_fd_lock(int fd);
/* Writes everything, resuming after interruptions. false: see errno; errno 0: no progress. */
bool ane_fd_write(int fd, const void *data, size_t size);
/* The same for bytes that have been written; the next write is at the end again. */
bool ane_fd_overwrite(int fd, uint64_t offset, const void *data, size_t size);
/* Syncs to the disk. Returns 0, or -1 with errno. */
int ane_fd_sync(int fd);
/* Calls remove_dead(p) for each path p beside `path` that names a temporary file or folder of a writer of `path`,
 * "path.<pid>-<n>.tmp". remove_dead removes what no writer has locked; a failure there is not an error. */
void ane_sweep_temps(const char *path, void (*remove_dead)(const char *temp));
/* Makes a rename in the folder of `path` durable. Ignores errors: some file systems cannot sync folders, and the rename itself
 * has succeeded. Truncates `path` at its last slash. */
void ane_sync_folder_of(char *path);

/* Guards a mapped file against lost pages until ane_map_unguard: see map_guard.h. false: out of memory. */
bool ane_map_guard(const struct ane_map *map, const char *path);
void ane_map_unguard(const struct ane_map *map);

#endif
