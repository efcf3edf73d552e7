/* Runs a Lua program in which the n-th call of a kind fails: allocations, system calls, starts of threads, allocations of Lua.
 * usage: faults SCRIPT [ARG ...]
 *
 * The executable defines the functions below, so that calls of all loaded libraries arrive here. `faults` is a library of the
 * script:
 *   faults.kinds                         list of names
 *   faults.try(n, kind, mode, prepare, run, check) -> {reached, problem, ok, message, code, ["alloc calls"] and so on of each kind}
 * try forks. The child calls prepare() without faults, then run(it) in which call n of the kind (1: the first) fails: `once`, or
 * `on`: all from then on, then check(it, ok, value, message, code) without faults. check returns nil, or what is wrong. The child
 * then closes its Lua state and looks at what is left: allocations, mappings, open files, threads. `reached`: there was a call n.
 * `problem`: what check found, what is left over, or how the child died; nil: nothing.
 *   faults.here(n, kind, mode, run) -> calls of the kind; then true and what run() returns, or false and its error
 * runs run() in this process, for ranks of MPI, which must not fork. Only calls that ane's modules and Lua make are counted and fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS 60 /* a child that takes longer hangs */

/* ---- Which call fails ------------------------------------------------------------------------------------------------*/

enum kind { ALLOC, MAP, OPEN, READ, WRITE, SYNC, RENAME, THREAD, LUA, INTERRUPT, SOCKET, KINDS };
static const char *const kinds[] = {"alloc", "map", "open", "read", "write", "sync", "rename", "thread", "lua", "interrupt", "socket", NULL};

static _Atomic int armed = -1; /* a kind */
static _Atomic long left;      /* calls until the one that fails */
static _Atomic long calls[KINDS]; /* while a kind is armed */
static bool lasting;
static bool traced; /* print callers */

/* Code whose calls count; none: all code. */
static struct {
  uintptr_t from, to;
} own[8];
static int n_own;

static bool is_own(const void *caller) {
  bool found = n_own == 0;
  for (int i = 0; i < n_own; i++) found |= (uintptr_t)caller >= own[i].from && (uintptr_t)caller < own[i].to;
  return found;
}

static bool fails_for(enum kind k, const void *caller) {
  const int kind = atomic_load(&armed);
  if (kind >= 0 && k != LUA && !is_own(caller)) return false;
  if (kind >= 0) atomic_fetch_add(&calls[k], 1);
  if (kind != (int)k) return false;
  long n = atomic_fetch_sub(&left, 1);
  bool now = lasting && k != INTERRUPT ? n <= 1 : n <= 1 && (lasting ? n & 1 : n == 1); /* an interrupted call can be repeated */
  if (now && n == 1 && traced && k != LUA) {
    void *callers[12];
    atomic_store(&armed, -1);
    backtrace_symbols_fd(callers, backtrace(callers, 12), 2);
    atomic_store(&armed, (int)k);
  }
  return now;
}

#define fails(k) fails_for(k, __builtin_return_address(0))

static bool fails_for_as(enum kind k, int why, const void *caller) {
  bool interrupted = fails_for(INTERRUPT, caller), failed = fails_for(k, caller);
  if (interrupted || failed) errno = interrupted ? EINTR : why;
  return interrupted || failed;
}
#define fails_as(k, why) fails_for_as(k, why, __builtin_return_address(0))

/* ---- Blocks in use ---------------------------------------------------------------------------------------------------*/

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { SLOTS = 1 << 16, DEPTH = 10 };
struct block {
  void *p; /* NULL: never used; GONE: freed */
  size_t size;
};
#define GONE ((void *)-1)
static struct block *blocks; /* SLOTS; NULL: not watching */
static void *(*callers)[DEPTH]; /* of each slot; only if traced */
static atomic_flag blocks_lock = ATOMIC_FLAG_INIT;

static size_t slot_of(const void *p) { return ((uintptr_t)p >> 4) * 0x9E3779B97F4A7C15u >> 48; }

static _Thread_local bool unwatched; /* memory that the C library keeps for the next thread is not left over */

static void lock(void) {
  while (atomic_flag_test_and_set(&blocks_lock)) sched_yield();
}

static void *note(void *p, size_t size) {
  if (!blocks || !p || unwatched) return p;
  lock();
  size_t i = slot_of(p), seen = 0;
  while (blocks[i].p && blocks[i].p != GONE && seen++ < SLOTS) i = (i + 1) % SLOTS;
  if (seen < SLOTS) blocks[i] = (struct block){p, size};
  if (seen < SLOTS && traced) memset(callers[i], 0, sizeof callers[i]), backtrace(callers[i], DEPTH);
  atomic_flag_clear(&blocks_lock);
  return p;
}

static void forget(const void *p) {
  if (!blocks || !p) return;
  lock();
  size_t i = slot_of(p), seen = 0;
  while (blocks[i].p && blocks[i].p != p && seen++ < SLOTS) i = (i + 1) % SLOTS;
  if (blocks[i].p == p) blocks[i].p = GONE;
  atomic_flag_clear(&blocks_lock);
}

void *malloc(size_t size) { return fails(ALLOC) ? (errno = ENOMEM, NULL) : note(__libc_malloc(size), size); }

void *calloc(size_t n, size_t size) { return fails(ALLOC) ? (errno = ENOMEM, NULL) : note(__libc_calloc(n, size), n * size); }

void *realloc(void *old, size_t size) {
  if (fails(ALLOC)) return errno = ENOMEM, NULL;
  forget(old);
  void *p = __libc_realloc(old, size);
  if (!p && size) note(old, 0);
  return note(p, size);
}

void free(void *p) {
  forget(p);
  __libc_free(p);
}

void *memalign(size_t to, size_t size) { return fails(ALLOC) ? (errno = ENOMEM, NULL) : note(__libc_memalign(to, size), size); }
void *aligned_alloc(size_t to, size_t size) { return fails(ALLOC) ? (errno = ENOMEM, NULL) : note(__libc_memalign(to, size), size); }

int posix_memalign(void **out, size_t to, size_t size) {
  void *p = fails(ALLOC) ? NULL : note(__libc_memalign(to, size), size);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}

/* ---- System calls ----------------------------------------------------------------------------------------------------*/

static _Atomic long mapped; /* bytes */

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (fails(MAP)) return errno = ENOMEM, MAP_FAILED;
  void *p = (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
  if (p != MAP_FAILED && !(flags & MAP_FIXED)) atomic_fetch_add(&mapped, (long)((size + 4095) & ~4095ul));
  return p;
}

int munmap(void *at, size_t size) {
  int r = (int)syscall(SYS_munmap, at, size);
  if (r == 0) atomic_fetch_sub(&mapped, (long)((size + 4095) & ~4095ul));
  return r;
}

int openat(int folder, const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  unsigned mode = va_arg(list, unsigned);
  va_end(list);
  return fails_as(OPEN, EMFILE) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

int open(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  unsigned mode = va_arg(list, unsigned);
  va_end(list);
  return fails_as(OPEN, EMFILE) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t read(int fd, void *to, size_t n) { return fails_as(READ, EIO) ? -1 : syscall(SYS_read, fd, to, n); }
ssize_t pread(int fd, void *to, size_t n, off_t at) { return fails_as(READ, EIO) ? -1 : syscall(SYS_pread64, fd, to, n, at); }

/* A write that is interrupted may have written a part: here, half. */
ssize_t write(int fd, const void *from, size_t n) {
  if (fails(INTERRUPT)) return n > 1 ? syscall(SYS_write, fd, from, n / 2) : (errno = EINTR, -1);
  return fails(WRITE) ? (errno = ENOSPC, -1) : syscall(SYS_write, fd, from, n);
}

int ftruncate(int fd, off_t size) { return fails(INTERRUPT) ? (errno = EINTR, -1) : (int)syscall(SYS_ftruncate, fd, size); }
int fsync(int fd) { return fails_as(SYNC, EIO) ? -1 : (int)syscall(SYS_fsync, fd); }
int rename(const char *from, const char *to) { return fails(RENAME) ? (errno = EACCES, -1) : (int)syscall(SYS_rename, from, to); }

ssize_t recv(int fd, void *to, size_t n, int flags) {
  return fails_as(SOCKET, ECONNRESET) ? -1 : syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL);
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags) {
  return fails_as(SOCKET, ECONNRESET) ? -1 : syscall(SYS_recvmsg, fd, m, flags);
}

ssize_t send(int fd, const void *from, size_t n, int flags) {
  return fails_as(SOCKET, EPIPE) ? -1 : syscall(SYS_sendto, fd, from, n, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
  return fails_as(SOCKET, EPIPE) ? -1 : syscall(SYS_sendmsg, fd, m, flags);
}

int accept4(int fd, struct sockaddr *from, socklen_t *size, int flags) {
  return fails_as(SOCKET, ECONNABORTED) ? -1 : (int)syscall(SYS_accept4, fd, from, size, flags);
}

/* Of the C library's streams, which Lua's io uses. */
static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static FILE *open_stream(const char *path, const char *mode, bool fail) {
  static FILE *(*real)(const char *, const char *);
  if (!real) *(void **)&real = next("fopen");
  return fail ? (errno = EMFILE, NULL) : real(path, mode);
}

FILE *fopen(const char *path, const char *mode) { return open_stream(path, mode, fails(OPEN)); }
FILE *fopen64(const char *path, const char *mode) { return open_stream(path, mode, fails(OPEN)); }

size_t fwrite(const void *from, size_t size, size_t n, FILE *f) {
  static size_t (*real)(const void *, size_t, size_t, FILE *);
  if (!real) *(void **)&real = next("fwrite");
  return fails(WRITE) ? (errno = ENOSPC, 0) : real(from, size, n, f);
}

size_t fread(void *to, size_t size, size_t n, FILE *f) {
  static size_t (*real)(void *, size_t, size_t, FILE *);
  if (!real) *(void **)&real = next("fread");
  if (!fails(READ)) return real(to, size, n, f);
  f->_flags |= 0x20; /* _IO_ERR_SEEN: what ferror tells */
  errno = EIO;
  return 0;
}

int fflush(FILE *f) {
  static int (*real)(FILE *);
  if (!real) *(void **)&real = next("fflush");
  return fails(WRITE) ? (errno = ENOSPC, EOF) : real(f);
}

int pthread_create(pthread_t *t, const pthread_attr_t *attributes, void *(*main)(void *), void *arg) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real) *(void **)&real = next("pthread_create");
  if (fails(THREAD)) return EAGAIN;
  unwatched = true;
  int r = real(t, attributes, main, arg);
  unwatched = false;
  return r;
}

int dlclose(void *handle) { return (void)handle, 0; } /* code stays, so that its faults have names */

/* ---- Lua's memory ----------------------------------------------------------------------------------------------------*/

static long lua_bytes;

/* Lua collects garbage and asks again after a refusal, so a refusal is given twice. */
static void *lua_memory(void *ud, void *old, size_t had, size_t size) {
  static void *again;
  static size_t again_size;
  (void)ud;
  if (!old) had = 0;
  if (size > had) {
    bool repeated = again_size == size && again == old && atomic_load(&armed) == LUA;
    again_size = 0;
    if (repeated) return NULL;
    if (fails(LUA)) {
      again = old, again_size = size;
      return NULL;
    }
  }
  lua_bytes += (long)size - (long)had;
  if (size) return __libc_realloc(old, size);
  __libc_free(old);
  return NULL;
}

/* ---- A try -----------------------------------------------------------------------------------------------------------*/

enum { ARG_N = 1, ARG_KIND, ARG_MODE, ARG_PREPARE, ARG_RUN, ARG_CHECK };

static int count_entries(const char *folder) {
  int n = 0;
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
  if (d) closedir(d);
  return n;
}

static int reply_fd;

static void reply(const char *format, ...) {
  char text[4096];
  va_list list;
  va_start(list, format);
  int n = vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (n > (int)sizeof text - 1) n = sizeof text - 1;
  (void)!syscall(SYS_write, reply_fd, text, n);
}

static void reply_blocks(void) {
  struct block *all = blocks;
  size_t n = 0, bytes = 0;
  blocks = NULL;
  for (size_t i = 0; i < SLOTS; i++) {
    if (!all[i].p || all[i].p == GONE) continue;
    n++, bytes += all[i].size;
    if (!traced || n > 4) continue;
    fprintf(stderr, "left: %zu bytes\n", all[i].size);
    backtrace_symbols_fd(callers[i], DEPTH, 2);
  }
  if (n) reply("problem%c%zu allocations of %zu bytes are left%c", 0, n, bytes, 0);
}

static void push_text(lua_State *L, int i) {
  const char *text = luaL_tolstring(L, i, NULL);
  lua_pushstring(L, text);
  lua_remove(L, -2);
}

/* Calls the three functions. Stack: the arguments of try. */
static void child(lua_State *L) {
  int kind = luaL_checkoption(L, ARG_KIND, NULL, kinds);
  lua_pushvalue(L, ARG_PREPARE);
  lua_call(L, 0, 1);
  int thing = lua_gettop(L);
  lasting = strcmp(luaL_checkstring(L, ARG_MODE), "on") == 0;
  lua_pushvalue(L, ARG_CHECK);
  lua_pushvalue(L, thing);
  lua_pushboolean(L, 0);
  luaL_checkstack(L, 40, NULL);
  lua_pushvalue(L, ARG_RUN);
  lua_pushvalue(L, thing);
  atomic_store(&left, (long)luaL_checkinteger(L, ARG_N));
  for (int k = 0; k < KINDS; k++) atomic_store(&calls[k], 0);
  atomic_store(&armed, kind);
  int status = lua_pcall(L, 1, 3, 0);
  atomic_store(&armed, -1);
  if (status != LUA_OK) lua_settop(L, lua_gettop(L) + 2); /* the error is the value */
  lua_pushboolean(L, status == LUA_OK);
  lua_replace(L, thing + 3);
  bool good = status == LUA_OK && lua_toboolean(L, -3);
  push_text(L, good ? -1 : status == LUA_OK ? -2 : -3);
  for (int k = 0; k < KINDS; k++) reply("%s calls%c%ld%c", kinds[k], 0, (long)calls[k], 0);
  reply("ok%c%d%cmessage%c%s%c", 0, good, 0, 0, good ? "" : lua_tostring(L, -1), 0);
  lua_pop(L, 1);
  if (status == LUA_OK && !good && lua_isstring(L, -1)) reply("code%c%s%c", 0, lua_tostring(L, -1), 0);
  if (lua_pcall(L, 5, 1, 0) != LUA_OK || lua_toboolean(L, -1)) {
    push_text(L, -1);
    reply("problem%c%s%c", 0, lua_tostring(L, -1), 0);
  }
  lua_settop(L, 0);
}

static void run_child(lua_State *L) {
  int files = count_entries("/proc/self/fd");
  long before = atomic_load(&mapped);
  alarm(SECONDS);
  if (traced) callers = __libc_calloc(SLOTS, sizeof *callers);
  blocks = __libc_calloc(SLOTS, sizeof *blocks);
  child(L);
  lua_close(L);
  reply_blocks();
  if (atomic_load(&mapped) > before) reply("problem%c%ld bytes stay mapped%c", 0, (long)mapped - before, 0);
  if (count_entries("/proc/self/fd") > files) reply("problem%c%d files stay open%c", 0, count_entries("/proc/self/fd") - files, 0);
  if (count_entries("/proc/self/task") > 1) reply("problem%ca thread stays%c", 0, 0);
  if (lua_bytes != 0) reply("problem%c%ld bytes of Lua are left%c", 0, lua_bytes, 0);
  reply("end%c1%c", 0, 0);
  _exit(0);
}

/* Sets the fields that the child has written: names and values, each with a NUL. */
static void set_fields(lua_State *L, const char *text, size_t size) {
  const char *end = text + size;
  while (text < end) {
    const char *value = text + strlen(text) + 1;
    if (value >= end) break;
    if (lua_getfield(L, -1, text) == LUA_TSTRING && strcmp(text, "problem") == 0)
      lua_pushfstring(L, "%s; %s", lua_tostring(L, -1), value);
    else
      lua_pushstring(L, value);
    lua_setfield(L, -3, text);
    lua_pop(L, 1);
    text = value + strlen(value) + 1;
  }
}

static int try(lua_State *L) {
  int ends[2], status;
  char text[65536];
  size_t size = 0;
  fflush(NULL);
  if (pipe(ends)) return luaL_error(L, "no pipe");
  pid_t pid = fork();
  if (pid < 0) return luaL_error(L, "no process");
  if (pid == 0) {
    close(ends[0]);
    reply_fd = ends[1];
    run_child(L);
  }
  close(ends[1]);
  for (ssize_t n; size < sizeof text - 1 && (n = read(ends[0], text + size, sizeof text - 1 - size)) > 0;) size += (size_t)n;
  close(ends[0]);
  waitpid(pid, &status, 0);
  text[size] = '\0';
  lua_newtable(L);
  set_fields(L, text, size);
  if (WIFSIGNALED(status) || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    lua_pushfstring(L, WIFSIGNALED(status) ? "killed by signal %d" : "ended with status %d",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    lua_setfield(L, -2, "problem");
  }
  return 1;
}

static int note_own(struct dl_phdr_info *info, size_t size, void *arg) {
  (void)size, (void)arg;
  const char *name = info->dlpi_name;
  if (!strstr(name, "/ane/core.so") && !strstr(name, "/ane/mpi.so") && !strstr(name, "/liblua")) return 0;
  for (int i = 0; i < info->dlpi_phnum && n_own < (int)(sizeof own / sizeof *own); i++) {
    const ElfW(Phdr) *h = &info->dlpi_phdr[i];
    uintptr_t from = info->dlpi_addr + h->p_vaddr;
    if (h->p_type == PT_LOAD && (h->p_flags & PF_X)) own[n_own].from = from, own[n_own++].to = from + h->p_memsz;
  }
  return 0;
}

static int here(lua_State *L) {
  int kind = luaL_checkoption(L, ARG_KIND, NULL, kinds);
  lasting = strcmp(luaL_checkstring(L, ARG_MODE), "on") == 0;
  lua_settop(L, ARG_PREPARE); /* run() */
  n_own = 0;
  dl_iterate_phdr(note_own, NULL);
  luaL_checkstack(L, 40, NULL);
  lua_pushnil(L); /* the calls */
  lua_pushvalue(L, ARG_PREPARE);
  atomic_store(&left, (long)luaL_checkinteger(L, ARG_N));
  atomic_store(&calls[kind], 0);
  atomic_store(&armed, kind);
  int status = lua_pcall(L, 0, LUA_MULTRET, 0);
  atomic_store(&armed, -1);
  lua_pushinteger(L, calls[kind]);
  lua_replace(L, ARG_PREPARE + 1);
  lua_pushboolean(L, status == LUA_OK);
  lua_insert(L, ARG_PREPARE + 2);
  return lua_gettop(L) - ARG_PREPARE;
}

int main(int argc, char **argv) {
  static const luaL_Reg functions[] = {{"try", try}, {"here", here}, {NULL, NULL}};
  mallopt(M_PERTURB, 0x5A); /* freed memory has no old contents */
  traced = getenv("FAULTS_TRACE") != NULL;
  if (traced) backtrace((void *[1]){NULL}, 1);
  lua_State *L = lua_newstate(lua_memory, NULL);
  if (argc < 2 || !L) return fprintf(stderr, "usage: faults SCRIPT [ARG ...]\n"), 2;
  luaL_openlibs(L);
  luaL_newlib(L, functions);
  lua_setglobal(L, "faults");
  lua_createtable(L, argc, 0);
  for (int i = 1; i < argc; i++) lua_pushstring(L, argv[i]), lua_rawseti(L, -2, i - 1);
  lua_setglobal(L, "arg");
  if (luaL_dofile(L, argv[1])) return fprintf(stderr, "%s\n", lua_tostring(L, -1)), 2;
  return (int)lua_tointeger(L, -1);
}
