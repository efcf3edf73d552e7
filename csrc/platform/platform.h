/* What differs between systems and machines: CPU features, memory, files, clock, threads. The only layer (with
 * csrc/coreml) that may ask which system it is built for. */
#ifndef ANE_PLATFORM_PLATFORM_H
#define ANE_PLATFORM_PLATFORM_H

#include "base/status.h"

/* ---- CPU ---------------------------------------------------------------------------------------------------------*/

/* Kernel levels, weakest first; x86 and ARM levels exclude each other. X(id, name). */
#define ANE_ISA_LIST(X)                                                                                                          \
  X(REF, "ref")                                                                                                                  \
  X(AVX2, "avx2")                                                                                                                \
  X(AVXVNNI, "avxvnni") X(AVX512, "avx512") X(AVX512VNNI, "avx512vnni") X(NEON, "neon") X(DOTPROD, "dotprod") X(I8MM, "i8mm")

typedef enum {
#define ANE_ISA_ENUM(id, name) ANE_ISA_##id,
  ANE_ISA_LIST(ANE_ISA_ENUM)
#undef ANE_ISA_ENUM
      ANE_ISA_COUNT
} ane_isa;

const char *ane_isa_name(ane_isa isa);
/* The level of this name, or ANE_ISA_COUNT. */
ane_isa ane_isa_from_name(const char *name);
/* Can this machine (CPU and operating system) run the level? ref: always. AVX2 asks for FMA and F16C as well; AVXVNNI
 * for the 8-bit dot of 32 bytes on top; AVX512 for F, BW, DQ, VL on top of AVX2; AVX512VNNI for VNNI on top of that. NEON: every
 * AArch64; DOTPROD asks for half-precision arithmetic as well; I8MM for both on top. */
bool ane_isa_available(ane_isa isa);
/* The best level of this machine. */
ane_isa ane_isa_best(void);
/* AVX512_BF16 or the bfdot of ARM beside the level (used only by avx512vnni and i8mm). */
bool ane_cpu_has_bf16_dot(void);
/* "AMD EPYC 9R45" or "" where unknown, into out (NUL-terminated). */
void ane_cpu_name(char *out, size_t size);
/* Cores that this process may use: physical ones where the system tells, else logical; at least 1. */
int ane_cpu_cores(void);
/* Threads of this process that can run at once: logical CPUs; at least 1. */
int ane_cpu_slots(void);

/* ---- Memory ------------------------------------------------------------------------------------------------------*/

/* Large zeroed memory straight from the system, 64-byte aligned (page aligned), committed on first touch; with huge
 * pages asked for where `huge`. NULL where there is none. Freed by ane_pages_free with the same size. */
void *ane_pages_alloc(size_t size, bool huge);
void ane_pages_free(void *p, size_t size);
/* Resident memory now and at its peak, bytes; 0 where unknown. */
uint64_t ane_memory_resident(void);
uint64_t ane_memory_peak(void);
/* Free memory of the machine as the system sees it (Linux: MemAvailable), bytes; 0 where unknown. */
uint64_t ane_memory_available(void);

/* ---- Files -------------------------------------------------------------------------------------------------------*/

/* A whole file mapped for reading. The address is page aligned; an empty file has data = NULL. The mapping is private,
 * and the file must not be truncated while it is mapped. */
struct ane_map {
  const uint8_t *data;
  uint64_t size;
};
/* Maps a regular file; a folder, a missing or unreadable file is ANE_IO with the system's reason. */
ane_status ane_map_open(struct ane_map *map, const char *path, struct ane_error *err);
/* Maps the file `location` (relative, no "..", parts separated by /) in the folder of the file `beside`. No symbolic link
 * is followed on the way, but for the layout of model hubs' caches: where `beside` is itself a link, the location may be
 * one too, to a file in the folder that the first link leads to. */
ane_status ane_map_open_beside(struct ane_map *map, const char *beside, const char *location, struct ane_error *err);
void ane_map_close(struct ane_map *map);
/* Tells the system that [offset, offset + size) is no longer needed in memory; it stays readable. */
void ane_map_drop(const struct ane_map *map, uint64_t offset, uint64_t size);

/* A file that appears whole or not at all: written beside its final place under a temporary name. */
struct ane_file_writer {
  int fd;
  char *path, *temp;
};
ane_status ane_file_create(struct ane_file_writer *w, const char *path, struct ane_error *err);
ane_status ane_file_write(struct ane_file_writer *w, const void *data, size_t size, struct ane_error *err);
/* Syncs, renames into place, frees. On failure the temporary file is gone and the old file untouched. */
ane_status ane_file_commit(struct ane_file_writer *w, struct ane_error *err);
/* Drops what was written; fine on a zeroed or finished writer. */
void ane_file_abandon(struct ane_file_writer *w);

/* A folder that appears whole or not at all: made beside its final place under a temporary name, which is locked while
 * its writer lives; what writers that were killed have left there is removed by the next one. */
struct ane_folder_writer {
  char *path, *temp;
  int fd; /* of the temporary folder; it holds the lock */
};
/* A folder that is at `path` stays until the commit; where `path` is a symbolic link, what it leads to is replaced. */
ane_status ane_folder_create(struct ane_folder_writer *w, const char *path, struct ane_error *err);
/* The same in a folder PATH.partial, which stays where ane_folder_leave or a kill ends the work: the next call goes on with what
 * is in it. ANE_STATE where another writer has it. */
ane_status ane_folder_resume(struct ane_folder_writer *w, const char *path, struct ane_error *err);
/* Closes, and leaves what was written for the next ane_folder_resume; fine on a zeroed or finished writer. */
void ane_folder_leave(struct ane_folder_writer *w);
/* Removes a file or folder inside, if it is there. `name` has no slash. */
ane_status ane_folder_remove(struct ane_folder_writer *w, const char *name, struct ane_error *err);
/* A folder inside; its parent has been made. Names are relative, their parts separated by /. */
ane_status ane_folder_make(struct ane_folder_writer *w, const char *name, struct ane_error *err);
/* A new file inside, open for writing. */
struct ane_folder_file {
  int fd; /* -1: closed; a zeroed one must not be closed */
  const char *name;
};
ane_status ane_folder_open(struct ane_folder_writer *w, const char *name, struct ane_folder_file *f, struct ane_error *err);
ane_status ane_folder_write(struct ane_folder_file *f, const void *data, size_t size, struct ane_error *err);
/* Over bytes that have been written. */
ane_status ane_folder_overwrite(struct ane_folder_file *f, uint64_t offset, const void *data, size_t size, struct ane_error *err);
/* Closes; a failure to sync counts. */
ane_status ane_folder_sync(struct ane_folder_file *f, struct ane_error *err);
void ane_folder_close(struct ane_folder_file *f);
/* Syncs, swaps the folders in one step where the system can, removes the old one, frees. Where it cannot swap, the old folder
 * is called PATH.old.tmp for a moment; killed there, ane_folder_restore brings it back. On failure the old folder is as it
 * was. */
ane_status ane_folder_commit(struct ane_folder_writer *w, struct ane_error *err);
/* Drops what was written; fine on a zeroed or finished writer. */
void ane_folder_abandon(struct ane_folder_writer *w);
/* After a kill in that moment: puts the old folder back to `path`, where nothing is. Readers call it. */
void ane_folder_restore(const char *path);
/* Test hook: false lets commits do as on systems that cannot swap folders; true is the start value. */
void ane_folder_can_swap(bool can);

/* 'f' regular file, 'd' folder, 'o' other, 0 nothing there. */
char ane_path_kind(const char *path);
/* Do both paths lead to one file that is there? */
bool ane_path_same(const char *a, const char *b);

/* Calls fn with each name in a folder but "." and "..", in no order; stops where fn gives false. ANE_IO where it cannot
 * be read. */
ane_status ane_folder_each(const char *path, bool (*fn)(void *arg, const char *name), void *arg, struct ane_error *err);

/* Seconds of a clock that only goes forward. */
double ane_clock(void);

/* ---- Threads -----------------------------------------------------------------------------------------------------*/

/* A pool of the caller and up to n - 1 workers: never more threads than the process has CPUs. Workers spin for a short while
 * between meetings (about 50 us), then sleep; none spins between two runs for longer than that.
 *
 * A worker that is put off its CPU by another program while others wait for it is taken to the caller's to finish what it has
 * begun (Linux), leaves, and comes back when it gets a CPU. It may not stand where the caller stands for a second from then
 * on. The caller's own affinity is never changed. */
struct ane_pool;
ane_status ane_pool_create(struct ane_pool **pool, int threads, struct ane_error *err);
void ane_pool_destroy(struct ane_pool *pool);
/* As asked for: the most that take part. */
int ane_pool_threads(const struct ane_pool *pool);
/* Runs fn(arg, thread, threads) once on each thread of the pool, thread 0 being the caller, and returns when all are
 * done. Not re-entrant; two callers at once take turns. */
typedef void (*ane_pool_fn)(void *arg, int thread, int threads);
void ane_pool_run(struct ane_pool *pool, ane_pool_fn fn, void *arg);

/* A run of steps 0 .. count - 1, between which all threads meet and workers come and go: each step is done by those that are
 * there, `threads` of them, numbered 0 .. threads - 1, at least the caller (always 0). `seat`, below ane_pool_threads, stays
 * that of a thread; the caller's is 0. */
typedef bool (*ane_idle_fn)(void *idle_arg, int seat);
struct ane_pool_steps {
  int64_t count;
  void (*step)(void *arg, int64_t step, int thread, int threads, int seat);
  void *arg;
  /* While a thread waits awake for the next step, it calls this again and again until it gives false. A call is some ten
   * nanoseconds of something useful. A last one may come when the run is over: idle_arg lives as long as the pool. NULL: none. */
  ane_idle_fn idle;
  void *idle_arg;
};
void ane_pool_run_steps(struct ane_pool *pool, const struct ane_pool_steps *steps);
/* Only inside a step, and then by every thread that takes part in it: returns when all have come; what each wrote before is
 * seen by all after. */
void ane_pool_barrier(struct ane_pool *pool, int seat);

/* Test hook, for pools made from then on: FREE as above; TOGETHER: all threads asked for take part in every step; MIXED: others
 * from step to step. */
enum ane_pool_manner { ANE_POOL_FREE, ANE_POOL_TOGETHER, ANE_POOL_MIXED };
void ane_pool_manner(enum ane_pool_manner manner);

/* Splits [0, n) evenly: the range of `part` out of `parts`. */
static inline void ane_split(int64_t n, int part, int parts, int64_t *from, int64_t *to) {
  *from = n * part / parts;
  *to = n * (part + 1) / parts;
}

#endif
