/* The optional module ane.mpi: sends byte strings between the ranks of an MPI 3 program. ane.batch.ranks and ane.pipeline.team
 * use it. `make mpi` builds it with the mpicc of Open MPI or MPICH.
 *
 * Sends do not block: a copy of the bytes is kept until MPI has sent them. MPI moves large messages only inside its calls, so a
 * thread calls it while sends are in progress. Without that thread a message would wait until the rank has finished computing.
 * Errors of MPI are returned, so that a dead rank does not end the others if the launcher allows that (Open MPI: mpirun
 * --enable-recovery). */
#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

int luaopen_ane_mpi(lua_State *L);

enum { TAG = 1, MAX_BYTES = 1 << 30, CLEARED = 1 << 18 };

/* A send in progress. */
struct sending {
  struct sending *next;
  MPI_Request request;
  size_t size;
  char bytes[];
};
static struct sending *sends;
static size_t sends_bytes; /* of all */

/* Memory for an arriving message, kept for the next one. Used by poll() only. */
static char *arrival;
static size_t arrival_bytes;

/* The window of share(). */
static MPI_Win shared = MPI_WIN_NULL;

/* Held around calls of MPI and uses of the sends while the progress thread runs. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t send_begun = PTHREAD_COND_INITIALIZER;
static pthread_t progress;
static bool threads_allowed, progress_runs, progress_ends; /* by MPI; the thread exists; it must return */

/* Pushes nil, message, "io" for an error of MPI. */
static int fail(lua_State *L, const char *what, int error) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int len = 0;
  (void)MPI_Error_string(error, text, &len);
  lua_pushnil(L);
  lua_pushfstring(L, "MPI: %s: %s", what, text);
  lua_pushliteral(L, "io");
  return 3;
}

/* Ignores SIGUSR1 unless the host handles it. MPICH's launcher sends it to all ranks when one has died; its default ends the
 * process. */
static void ignore_sigusr1(void) {
  struct sigaction now;
  if (sigaction(SIGUSR1, NULL, &now) == 0 && now.sa_handler == SIG_DFL) (void)signal(SIGUSR1, SIG_IGN);
}

/* Has MPI been finalised in this process? Then it aborts the process at almost any call (MPI 4.0, 11.2.2). */
static bool is_finalised(void) {
  int done = 0;
  return MPI_Finalized(&done) == MPI_SUCCESS && done;
}

/* init() -> rank (from 0), number of ranks, number of ranks on this host, name of the host; or nil, message, code. May be
 * repeated, but not after finish(). */
static int mpi_init(lua_State *L) {
  int had, level, rank, size, near, len = 0;
  char host[MPI_MAX_PROCESSOR_NAME] = "";
  MPI_Comm local;
  if (is_finalised()) {
    lua_pushnil(L);
    lua_pushliteral(L, "MPI: has ended in this process and cannot start again");
    lua_pushliteral(L, "state");
    return 3;
  }
  int error = MPI_Initialized(&had);
  if (!error && !had) error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  if (!error) error = MPI_Query_thread(&level);
  threads_allowed = !error && level >= MPI_THREAD_SERIALIZED;
  if (!error) error = MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (!error) error = MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (!error) error = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  if (!error) error = MPI_Comm_size(local, &near);
  if (!error) error = MPI_Comm_free(&local);
  if (!error) error = MPI_Get_processor_name(host, &len);
  if (!error) error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (error) return fail(L, "cannot start", error);
  ignore_sigusr1();
  lua_pushinteger(L, rank);
  lua_pushinteger(L, size);
  lua_pushinteger(L, near);
  lua_pushlstring(L, host, (size_t)len);
  return 4;
}

/* share(bytes) -> memory that all ranks of this host share (light userdata), whose first CLEARED bytes are zero; or nil, message,
 * code. All ranks of the host call it at the same time, once. It is valid until finish(). */
static int mpi_share(lua_State *L) {
  MPI_Aint bytes = (MPI_Aint)luaL_checkinteger(L, 1), size;
  MPI_Comm local;
  int rank, unit;
  void *base = NULL;
  luaL_argcheck(L, bytes > 0 && shared == MPI_WIN_NULL, 1, "memory is shared once, and has 1 byte or more");
  int error = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  if (error) return fail(L, "cannot share memory", error);
  (void)MPI_Comm_set_errhandler(local, MPI_ERRORS_RETURN);
  error = MPI_Comm_rank(local, &rank);
  if (!error) error = MPI_Win_allocate_shared(rank ? 0 : bytes, 1, MPI_INFO_NULL, local, &base, &shared);
  if (!error) error = MPI_Win_shared_query(shared, 0, &size, &unit, &base);
  if (!error && rank == 0) memset(base, 0, bytes < CLEARED ? (size_t)bytes : CLEARED); /* pages not touched take no memory */
  if (!error) error = MPI_Barrier(local);
  (void)MPI_Comm_free(&local);
  if (error) return fail(L, "cannot share memory", error);
  lua_pushlightuserdata(L, base);
  return 1;
}

/* Frees the completed sends. */
static void free_completed(void) {
  for (struct sending **at = &sends; *at;) {
    struct sending *s = *at;
    int complete = 0;
    if (MPI_Test(&s->request, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && !complete) {
      at = &s->next;
      continue;
    }
    *at = s->next;
    sends_bytes -= s->size;
    free(s);
  }
}

/* The progress thread: tests the sends every 100 us, and sleeps while there are none. */
static void *progress_main(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  while (!progress_ends) {
    free_completed();
    if (!sends) {
      pthread_cond_wait(&send_begun, &lock);
      continue;
    }
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    pthread_mutex_lock(&lock);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* Starts or wakes the progress thread, which takes no signals. The caller holds the lock. If it cannot start, sends are slower.
 */
static void wake_progress(void) {
  sigset_t all, before;
  if (progress_runs) pthread_cond_signal(&send_begun);
  if (progress_runs || !threads_allowed) return;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  progress_runs = pthread_create(&progress, NULL, progress_main, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void stop_progress(void) {
  if (!progress_runs) return;
  pthread_mutex_lock(&lock);
  progress_ends = true;
  pthread_cond_signal(&send_begun);
  pthread_mutex_unlock(&lock);
  pthread_join(progress, NULL);
  progress_runs = progress_ends = false;
}

/* __gc of a value in the registry: the thread must end before the library is unloaded. */
static int on_close(lua_State *L) {
  (void)L;
  stop_progress();
  return 0;
}

/* send(rank, bytes [, more]) -> true; or nil, message, code. The message is `bytes` followed by `more`, at most 1 GiB. */
static int mpi_send(lua_State *L) {
  int rank = (int)luaL_checkinteger(L, 1);
  size_t first, rest;
  const char *bytes = luaL_checklstring(L, 2, &first), *more = luaL_optlstring(L, 3, "", &rest);
  luaL_argcheck(L, first <= MAX_BYTES && rest <= MAX_BYTES - first, 2, "a message has at most 1 GiB");
  size_t len = first + rest;
  struct sending *s = malloc(sizeof *s + len);
  if (!s) return luaL_error(L, "not enough memory");
  memcpy(s->bytes, bytes, first);
  memcpy(s->bytes + first, more, rest);
  s->size = len;
  pthread_mutex_lock(&lock);
  int error = MPI_Isend(s->bytes, (int)len, MPI_BYTE, rank, TAG, MPI_COMM_WORLD, &s->request);
  if (!error) {
    s->next = sends;
    sends = s;
    sends_bytes += len;
    free_completed();
    if (sends) wake_progress();
  }
  pthread_mutex_unlock(&lock);
  if (error) {
    free(s);
    return fail(L, "cannot send", error);
  }
  lua_pushboolean(L, 1);
  return 1;
}

/* pending() -> bytes of the messages that MPI has not sent yet. */
static int mpi_pending(lua_State *L) {
  pthread_mutex_lock(&lock);
  free_completed();
  lua_Integer bytes = (lua_Integer)sends_bytes;
  pthread_mutex_unlock(&lock);
  lua_pushinteger(L, bytes);
  return 1;
}

/* Pauses between probes; since: when the wait began. For SPIN seconds the thread only yields, because the latency of messages
 * counts in a pipeline. Then it sleeps, longer after SHORT seconds. */
static void pause_between_probes(double since) {
  static const double SPIN = 2e-3, SHORT = 50e-3;
  double waited = MPI_Wtime() - since;
  if (waited < SPIN)
    (void)sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = waited < SHORT ? 50000 : 1000000}, NULL);
}

/* Returns memory for `bytes` of an arriving message; NULL: out of memory. */
static char *room_for(size_t bytes) {
  if (bytes <= arrival_bytes) return arrival;
  char *grown = realloc(arrival, bytes);
  if (!grown) return NULL;
  arrival_bytes = bytes;
  return arrival = grown;
}

/* Frees the memory of a large message. */
static void give_room_back(void) {
  enum { KEPT = 4 << 20 };
  if (arrival_bytes <= KEPT) return;
  free(arrival);
  arrival = NULL;
  arrival_bytes = 0;
}

/* poll(wait [, head]) -> rank, bytes of the next message; nothing if none arrives within `wait` seconds (default 0); or nil,
 * message, code. Sleeps between probes. With head, the first `head` bytes and the others are two texts: rank, text, text. */
static int mpi_poll(lua_State *L) {
  double start = MPI_Wtime(), end = start + luaL_optnumber(L, 1, 0);
  lua_Integer head = luaL_optinteger(L, 2, 0);
  int there = 0;
  luaL_argcheck(L, end == end, 1, "not a number of seconds");
  luaL_argcheck(L, head >= 0, 2, "must not be negative");
  MPI_Status status;
  for (;;) {
    pthread_mutex_lock(&lock);
    free_completed();
    int error = MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &there, &status);
    pthread_mutex_unlock(&lock);
    if (error) return fail(L, "cannot receive", error);
    if (there || MPI_Wtime() >= end) break;
    pause_between_probes(start);
  }
  if (!there) return 0;
  int len = 0, error = MPI_Get_count(&status, MPI_BYTE, &len);
  char *bytes = room_for((size_t)(len > 0 ? len : 1));
  if (!bytes) return luaL_error(L, "not enough memory");
  pthread_mutex_lock(&lock);
  if (!error) error = MPI_Recv(bytes, len, MPI_BYTE, status.MPI_SOURCE, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  pthread_mutex_unlock(&lock);
  if (error) return fail(L, "cannot receive", error);
  lua_pushinteger(L, status.MPI_SOURCE);
  if (head) lua_pushlstring(L, bytes, (size_t)(head < len ? head : len));
  lua_pushlstring(L, bytes + (head < len ? head : len), (size_t)(head < len ? len - head : 0));
  give_room_back();
  return head ? 3 : 2;
}

/* process() -> id of this process. */
static int mpi_process(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)getpid());
  return 1;
}

/* alive(process) -> whether a process of this host exists. */
static int mpi_alive(lua_State *L) {
  pid_t pid = (pid_t)luaL_checkinteger(L, 1);
  lua_pushboolean(L, kill(pid, 0) == 0 || errno == EPERM);
  return 1;
}

/* finish(): waits for the sends and finalises MPI. Blocks until all ranks do so: not to be called after a rank has died. */
static int mpi_finish(lua_State *L) {
  (void)L;
  if (is_finalised()) return 0;
  stop_progress();
  for (; sends; free_completed()) nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
  if (shared != MPI_WIN_NULL) (void)MPI_Win_free(&shared);
  (void)MPI_Finalize();
  return 0;
}

/* abort(code): ends all ranks at once. */
static int mpi_abort(lua_State *L) {
  (void)MPI_Abort(MPI_COMM_WORLD, (int)luaL_optinteger(L, 1, 1));
  return 0;
}

EXPORT int luaopen_ane_mpi(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"init", mpi_init},     {"send", mpi_send},       {"poll", mpi_poll},   {"process", mpi_process}, {"alive", mpi_alive},
      {"finish", mpi_finish}, {"pending", mpi_pending}, {"abort", mpi_abort}, {"share", mpi_share},     {NULL, NULL},
  };
  lua_newuserdatauv(L, 1, 0);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, on_close);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  luaL_ref(L, LUA_REGISTRYINDEX);
  luaL_newlib(L, functions);
  return 1;
}
