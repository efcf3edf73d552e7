/* What the files of csrc/platform share. */
#ifndef ANE_PLATFORM_PLATFORM_INTERNAL_H
#define ANE_PLATFORM_PLATFORM_INTERNAL_H

#include "platform/platform.h"

#include <pthread.h>
#include <stdatomic.h>

/* All of it, over interruptions; false with errno, 0: no progress. */
bool ane_fd_write(int fd, const void *data, size_t size);
/* To the disk; 0, or -1 with errno. */
int ane_fd_sync(int fd);
/* Makes a rename in the folder of `path` durable. Best effort: some file systems cannot sync folders, and the rename has
 * been done. Cuts `path` at its last slash. */
void ane_sync_folder_of(char *path);

/* ---- thread_system.c ----------------------------------------------------------------------------------------------*/

/* Threads wait for another generation. A zeroed gate, then gate_init. */
struct gate {
  _Atomic uint32_t generation;
  _Atomic int sleepers;
#ifndef __linux__
  pthread_mutex_t mutex;
  pthread_cond_t cond;
#endif
};
void gate_init(struct gate *g);
void gate_destroy(struct gate *g);
/* Until the generation is not `seen`; with seconds > 0 perhaps less long, about so many at most. */
void gate_sleep(struct gate *g, uint32_t seen, double seconds);
/* The next generation; wakes who sleeps. */
void gate_open(struct gate *g);

/* CPU time of a thread, seconds; -1 where unknown. */
double thread_used(pthread_t t);
/* Where this thread stands; -1 where unknown. */
int thread_cpu(void);
/* Takes a thread to the CPU of this one, where alone it may stand from now on. false: it cannot be done here. */
bool thread_fetch(pthread_t t);
/* Lets a thread stand wherever this one may, but for `cpu`, unless that is all there is: then false. -1: anywhere. */
bool thread_keep_off(pthread_t t, int cpu);

#endif
