/* Everything that differs between systems and machines: CPU features, memory, files, clock, threads. Only this folder and
 * csrc/coreml may depend on the target system. */
#ifndef ANE_PLATFORM_PLATFORM_H
#define ANE_PLATFORM_PLATFORM_H

#include "base/status.h"

/* ---- CPU ---------------------------------------------------------------------------------------------------------*/

/* Kernel levels, weakest first, x86 before ARM. X(id, name). */
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
/* Can this machine (CPU and operating system) run the level? REF: always. AVX2 includes FMA and F16C. AVXVNNI: AVX2 and the 8-bit
 * dot product on 32 bytes. AVX512: AVX2 and AVX-512 F, BW, DQ, VL. AVX512VNNI: AVX512 and VNNI. NEON: every AArch64. DOTPROD
 * includes half-precision arithmetic. I8MM: DOTPROD and int8 matrix products. */
bool ane_isa_available(ane_isa isa);
/* The best level of this machine. */
ane_isa ane_isa_best(void);
/* AVX512_BF16, or bfdot of ARM. Only the levels avx512vnni and i8mm use it. */
bool ane_cpu_has_bf16_dot(void);
/* Does the CPU compute 512 bits in two halves of 256 (Zen 4)? */
bool ane_cpu_halves_512(void);
/* Writes the CPU's name to out (NUL-terminated): "AMD EPYC 9R45", or "" if unknown. */
void ane_cpu_name(char *out, size_t size);
/* The cores that this process may use: physical cores if the system reports them, else logical CPUs; at least 1. */
int ane_cpu_cores(void);
/* The logical CPUs that this process may use: how many of its threads can run at once; at least 1. */
int ane_cpu_logical(void);

/* ---- Memory ------------------------------------------------------------------------------------------------------*/

/* Zeroed memory from the system, page aligned, committed on first touch. huge: requests huge pages. NULL: out of memory. Free it
 * with ane_pages_free and the same size. */
void *ane_pages_alloc(size_t size, bool huge);
void ane_pages_free(void *p, size_t size);
/* Gives the whole pages inside [p, p + size) back to the system. It must be private memory of this process. Until the pages are
 * written again, they read as zeros or with their old contents. */
void ane_pages_drop(void *p, size_t size);
/* Current and peak resident memory in bytes; 0 if unknown. */
uint64_t ane_memory_resident(void);
uint64_t ane_memory_peak(void);
/* Memory available to new programs as reported by the system (Linux: MemAvailable), in bytes; 0 if unknown. */
uint64_t ane_memory_available(void);

/* ---- Files -------------------------------------------------------------------------------------------------------*/

/* A whole file mapped for reading. The address is page aligned; an empty file has data = NULL. The mapping is private. If another
 * process truncates the file, reading a page beyond its new end gives zeros, and ane_map_check fails from then on (map_guard.h).
 * If the file is replaced by a rename, the mapping keeps the old contents. */
struct ane_map {
  const uint8_t *data;
  uint64_t size;
};
/* Maps a regular file. A folder, or a missing or unreadable file, is ANE_IO with the system's reason. */
ane_status ane_map_open(struct ane_map *map, const char *path, struct ane_error *err);
/* Maps the file `location` (relative, without "..", components separated by /) in the folder of the file `beside`. Follows no
 * symbolic link, except in the layout of model hubs' caches: `location` may be a link to a blob of a cache
 * (models--OWNER--NAME/blobs/HASH), and if `beside` is a link, to a file in the folder of its target. */
ane_status ane_map_open_beside(struct ane_map *map, const char *beside, const char *location, struct ane_error *err);
void ane_map_close(struct ane_map *map);
/* Lets the system drop [offset, offset + size) from memory. The range stays readable. */
void ane_map_drop(const struct ane_map *map, uint64_t offset, uint64_t size);
/* sparse: the next reads are of a few bytes far from each other, so the system reads no more of the file than asked. false: the
 * default again, and the pages that were read are dropped from memory. */
void ane_map_read_sparsely(const struct ane_map *map, bool sparse);

/* A file that appears whole or not at all. It is written in the same folder under a temporary name, which is locked while its
 * writer lives. The next writer removes what killed writers of the same file have left. */
struct ane_file_writer {
  int fd;
  char *path, *temp;
};
/* Creates the temporary file. If `path` is a symbolic link, the commit replaces its target. ANE_IO: `path` cannot be created, or
 * is a folder, a device or a pipe. After an error the writer is closed. */
ane_status ane_file_create(struct ane_file_writer *w, const char *path, struct ane_error *err);
/* Appends bytes. Errors of all calls: ANE_IO; ANE_INVALID (the writer is closed). */
ane_status ane_file_write(struct ane_file_writer *w, const void *data, size_t size, struct ane_error *err);
/* Overwrites bytes that have been written. The next ane_file_write appends again. */
ane_status ane_file_overwrite(struct ane_file_writer *w, uint64_t offset, const void *data, size_t size, struct ane_error *err);
/* Syncs, renames to the path, frees. On failure the temporary file is removed and the old file is unchanged. */
ane_status ane_file_commit(struct ane_file_writer *w, struct ane_error *err);
/* Removes what was written. Does nothing on a zeroed or finished writer. */
void ane_file_abandon(struct ane_file_writer *w);

/* A folder that appears whole or not at all. It is written beside its path under a temporary name, which is locked while its
 * writer lives. The next writer removes what killed writers have left. */
struct ane_folder_writer {
  char *path, *temp;
  int fd; /* of the temporary folder; it holds the lock */
};
/* Creates a folder. One that exists at `path` stays until the commit. If `path` is a symbolic link, the commit replaces its
 * target. */
ane_status ane_folder_create(struct ane_folder_writer *w, const char *path, struct ane_error *err);
/* Fails with ANE_INVALID if `path` is a folder that holds other things than `what` ("a package"), which is known by a file
 * `marker` in it. An empty folder, or none, is fine. */
ane_status ane_folder_replaceable(const char *path, const char *marker, const char *what, struct ane_error *err);
/* Like ane_folder_create, but writes to a folder PATH.partial. It stays if ane_folder_leave or a kill ends the work, and the next
 * call continues in it. ANE_STATE: another writer has it. */
ane_status ane_folder_resume(struct ane_folder_writer *w, const char *path, struct ane_error *err);
/* Closes the folder and keeps what was written for the next ane_folder_resume; an empty one is removed. Does nothing on a
 * zeroed or finished writer. */
void ane_folder_leave(struct ane_folder_writer *w);
/* Removes a file or folder inside the folder, if it exists. `name` has no slash. */
ane_status ane_folder_remove(struct ane_folder_writer *w, const char *name, struct ane_error *err);
/* Makes a folder inside the folder; its parent must exist. Names are relative, with components separated by /. */
ane_status ane_folder_make(struct ane_folder_writer *w, const char *name, struct ane_error *err);
/* A new file in the folder, open for writing. */
struct ane_folder_file {
  int fd; /* -1: closed; a zeroed one must not be closed */
  const char *name;
};
ane_status ane_folder_open(struct ane_folder_writer *w, const char *name, struct ane_folder_file *f, struct ane_error *err);
ane_status ane_folder_write(struct ane_folder_file *f, const void *data, size_t size, struct ane_error *err);
/* Overwrites bytes that have been written. */
ane_status ane_folder_overwrite(struct ane_folder_file *f, uint64_t offset, const void *data, size_t size, struct ane_error *err);
/* Syncs and closes. Fails if the sync fails. */
ane_status ane_folder_sync(struct ane_folder_file *f, struct ane_error *err);
void ane_folder_close(struct ane_folder_file *f);
/* Syncs, swaps the folders, removes the old one and frees the writer. The swap is atomic if the system supports it. Otherwise the
 * old folder has the name PATH.old.tmp for a moment; if the process is killed then, ane_folder_restore brings it back. On failure
 * the old folder is unchanged. */
ane_status ane_folder_commit(struct ane_folder_writer *w, struct ane_error *err);
/* Removes what was written. Does nothing on a zeroed or finished writer. */
void ane_folder_abandon(struct ane_folder_writer *w);
/* Renames PATH.old.tmp back to `path` if `path` does not exist. Readers call it. */
void ane_folder_restore(const char *path);
/* Test hook: after false, commits work as on systems that cannot swap folders. Initially true. */
void ane_folder_can_swap(bool can);

/* 'f': regular file, 'd': folder, 'o': other, 0: does not exist. */
char ane_path_kind(const char *path);
/* Is the path itself a symbolic link? */
bool ane_path_is_link(const char *path);
/* Do both paths lead to the same existing file? */
bool ane_path_same(const char *a, const char *b);

/* Calls fn with each name in a folder except "." and "..", in no particular order, until fn returns false. ANE_IO: the folder
 * cannot be read. */
ane_status ane_folder_each(const char *path, bool (*fn)(void *arg, const char *name), void *arg, struct ane_error *err);

/* Seconds on a monotonic clock. */
double ane_clock(void);
/* Pauses between two reads of memory that another process writes. waited: seconds since the first read. Short waits use the CPU,
 * longer ones yield it, long ones sleep. */
void ane_pause(double waited);

/* ---- Threads -----------------------------------------------------------------------------------------------------*/

/* A pool of the caller and up to n - 1 workers; it never has more threads than the process has CPUs. Waiting workers spin for
 * about 50 us, then sleep; between two runs all sleep.
 *
 * Linux: a preempted worker that others wait for migrates to the caller's CPU, finishes its part of the step there, and leaves
 * the run until it gets a CPU again. For a second it may not run on the caller's CPU. The caller's affinity never changes. */
struct ane_pool;
/* threads: n, 1 .. 1024. Errors: ANE_INVALID (threads), ANE_NOMEM (no memory, or the system starts no more threads). */
ane_status ane_pool_create(struct ane_pool **pool, int threads, struct ane_error *err);
void ane_pool_destroy(struct ane_pool *pool); /* NULL is fine */
/* The number of threads asked for, which is an upper limit. */
int ane_pool_threads(const struct ane_pool *pool);
/* Runs fn(arg, thread, threads) once on each thread of the pool, thread 0 being the caller, and returns when all are done. Not
 * re-entrant. Calls from two threads run one after the other. */
typedef void (*ane_pool_fn)(void *arg, int thread, int threads);
void ane_pool_run(struct ane_pool *pool, ane_pool_fn fn, void *arg);

/* A run of steps 0 .. count - 1. All active threads run a step, then meet at a barrier, where workers may become active or idle.
 * `threads` threads are active in a step, numbered 0 .. threads - 1; the caller is always active, as number 0. `worker` is the
 * thread's index in the pool, 0 .. ane_pool_threads - 1, and the same in all steps; the caller's is 0. */
typedef bool (*ane_idle_fn)(void *idle_arg, int worker);
struct ane_pool_steps {
  int64_t count;
  void (*step)(void *arg, int64_t step, int thread, int threads, int worker);
  void *arg;
  /* A thread that spins before the next step calls this until it returns false. A call takes some ten nanoseconds. The last call
   * may come after the run, so idle_arg must live as long as the pool. NULL: none. */
  ane_idle_fn idle;
  void *idle_arg;
  /* true: all workers take part in the first step, which waits until those that sleep are awake (some 50 microseconds). Worth it
   * if steps are long. false: a worker that sleeps takes part from the first step that begins after it has woken. */
  bool all;
};
void ane_pool_run_steps(struct ane_pool *pool, const struct ane_pool_steps *steps);
/* Waits for all threads of the step. What each wrote before the barrier is visible to all after it. Call it only inside a step,
 * on every thread of the step. */
void ane_pool_barrier(struct ane_pool *pool, int worker);

/* Test hook for pools created afterwards. FREE: as above. TOGETHER: all requested threads take part in every step. MIXED: the
 * participating threads change from step to step. */
enum ane_pool_manner { ANE_POOL_FREE, ANE_POOL_TOGETHER, ANE_POOL_MIXED };
void ane_pool_manner(enum ane_pool_manner manner);

/* Divides [0, n) evenly: [*from, *to) is part `part` of `parts`. */
static inline void ane_split(int64_t n, int part, int parts, int64_t *from, int64_t *to) {
  *from = n * part / parts;
  *to = n * (part + 1) / parts;
}

#endif
