/* The machine and its files: CPU levels, memory, clock, reading and atomic writing. */
#include "binding/bind.h"

#include "base/bytes.h"
#include "base/glob.h"
#include "kernels/kernels.h"
#include "platform/map_guard.h"
#include "platform/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#define MAP_CLASS "ane.map"
#define BUFFER_CLASS "ane.buffer"
#define INTERRUPT_CLASS "ane.interrupts"

/* isa_list() -> names of the kernel levels this machine can run, weakest first */
static int isa_list(lua_State *L) {
  lua_Integer n = 0;
  lua_newtable(L);
  for (int i = 0; i < ANE_ISA_COUNT; i++) {
    if (!ane_isa_available((ane_isa)i)) continue;
    lua_pushstring(L, ane_isa_name((ane_isa)i));
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

static int isa_best(lua_State *L) {
  lua_pushstring(L, ane_isa_name(ane_isa_best()));
  return 1;
}

static int cpu_name(lua_State *L) {
  char name[128];
  ane_cpu_name(name, sizeof name);
  lua_pushstring(L, name);
  return 1;
}

static int cpu_cores(lua_State *L) {
  lua_pushinteger(L, ane_cpu_cores());
  return 1;
}

/* clock() -> seconds of a monotonic clock */
static int clock_now(lua_State *L) {
  lua_pushnumber(L, ane_clock());
  return 1;
}

/* limits(threads, level) -> {read (bytes per second), dot, bf16, fma (operations per second; nil: unknown)}; or nil, message,
 * code */
static int limits(lua_State *L) {
  struct ane_pool *pool;
  struct ane_limits l;
  struct ane_error err;
  int threads = (int)bind_integer(L, 1, 1, ANE_LIMIT_THREADS);
  ane_isa isa = ane_isa_from_name(luaL_checkstring(L, 2));
  luaL_argcheck(L, isa != ANE_ISA_COUNT && ane_isa_available(isa), 2, "level not available");
  if (ane_pool_create(&pool, threads, &err)) return bind_fail(L, &err);
  ane_status st = ane_limits_measure(pool, isa, &l, &err);
  ane_pool_destroy(pool);
  if (st) return bind_fail(L, &err);
  const struct {
    const char *name;
    double value;
  } fields[] = {{"read", l.read}, {"dot", l.dot}, {"bf16", l.bf16}, {"fma", l.fma}};
  lua_createtable(L, 0, (int)ANE_COUNT(fields));
  for (size_t i = 0; i < ANE_COUNT(fields); i++) {
    if (!(fields[i].value > 0)) continue;
    lua_pushnumber(L, fields[i].value);
    lua_setfield(L, -2, fields[i].name);
  }
  return 1;
}

/* memory() -> {resident, peak, available} in bytes; 0: unknown */
static int memory(lua_State *L) {
  lua_createtable(L, 0, 3);
  lua_pushinteger(L, (lua_Integer)ane_memory_resident());
  lua_setfield(L, -2, "resident");
  lua_pushinteger(L, (lua_Integer)ane_memory_peak());
  lua_setfield(L, -2, "peak");
  lua_pushinteger(L, (lua_Integer)ane_memory_available());
  lua_setfield(L, -2, "available");
  return 1;
}

/* path_kind(path) -> "file", "folder", "other"; nil: does not exist */
static int path_kind(lua_State *L) {
  switch (ane_path_kind(bind_text(L, 1))) {
    case 'f': lua_pushliteral(L, "file"); break;
    case 'd': lua_pushliteral(L, "folder"); break;
    case 'o': lua_pushliteral(L, "other"); break;
    default: lua_pushnil(L);
  }
  return 1;
}

/* is_link(path) -> is the path itself a symbolic link? */
static int is_link(lua_State *L) {
  lua_pushboolean(L, ane_path_is_link(bind_text(L, 1)));
  return 1;
}

struct ane_buffer *bind_buffer(lua_State *L) {
  return bind_new(L, BUFFER_CLASS, sizeof(struct ane_buffer), 0);
}

static int buffer_gc(lua_State *L) {
  ane_buffer_free(luaL_checkudata(L, 1, BUFFER_CLASS));
  return 0;
}

/* Collects a name. All names are collected before any call of Lua, so that no folder is open when Lua raises. */
static bool add_name(void *arg, const char *name) { return ane_buffer_append(arg, name, strlen(name) + 1); }

/* list_dir(path) -> list of names, in no order; or nil, message, code */
static int list_dir(lua_State *L) {
  struct ane_buffer *names = bind_buffer(L);
  struct ane_error err;
  if (ane_folder_each(bind_text(L, 1), add_name, names, &err)) return bind_fail(L, &err);
  lua_newtable(L);
  lua_Integer n = 0;
  for (size_t at = 0; at < names->size; at += strlen((const char *)names->data + at) + 1) {
    lua_pushstring(L, (const char *)names->data + at);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

/* write_file(path, bytes) -> true; or nil, message, code. The file is replaced atomically or is unchanged. */
static int write_file(lua_State *L) {
  const char *path = bind_text(L, 1);
  size_t len;
  const char *bytes = luaL_checklstring(L, 2, &len);
  struct ane_file_writer w;
  struct ane_error err;
  ane_status st = ane_file_create(&w, path, &err);
  if (!st) st = ane_file_write(&w, bytes, len, &err);
  if (!st) st = ane_file_commit(&w, &err);
  ane_file_abandon(&w);
  if (st) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static int map_close(lua_State *L) {
  ane_map_close(luaL_checkudata(L, 1, MAP_CLASS));
  return 0;
}

/* read_file(path) -> bytes; or nil, message, code */
static int read_file(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct ane_map *map = bind_new(L, MAP_CLASS, sizeof *map, 0); /* owns the mapping if lua_pushlstring raises */
  struct ane_error err;
  if (ane_map_open(map, path, &err)) return bind_fail(L, &err);
  lua_pushlstring(L, map->data ? (const char *)map->data : "", (size_t)map->size);
  ane_status st = ane_map_check(map, &err);
  ane_map_close(map);
  return st ? bind_fail(L, &err) : 1;
}

/* fill_standard_files(): standard streams that are closed become files that can be neither read nor written as such, so that no
 * file opened later takes their place and receives messages */
static int fill_standard_files(lua_State *L) {
  (void)L;
  for (int fd = 0; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) break; /* the lowest that is free */
  }
  return 0;
}

/* isatty(fd) -> boolean */
static int is_tty(lua_State *L) {
  lua_pushboolean(L, isatty((int)bind_integer(L, 1, 0, INT32_MAX)));
  return 1;
}

/* terminal_mode(fd) -> the mode of a terminal, as bytes; nil: not a terminal
 * terminal_mode(fd, bytes): sets it */
static int terminal_mode(lua_State *L) {
  struct termios mode;
  int fd = (int)bind_integer(L, 1, 0, INT32_MAX);
  size_t len;
  const char *bytes = luaL_optlstring(L, 2, NULL, &len);
  if (bytes) {
    luaL_argcheck(L, len == sizeof mode, 2, "not made by terminal_mode");
    memcpy(&mode, bytes, sizeof mode);
    tcsetattr(fd, TCSADRAIN, &mode);
    return 0;
  }
  if (tcgetattr(fd, &mode)) return 0;
  lua_pushlstring(L, (const char *)&mode, sizeof mode);
  return 1;
}

/* keep_input(fd): from now on the terminal keeps what was typed before Ctrl-C. By default the kernel drops it, and a read that
 * follows poll may block. terminal_mode(fd, bytes) undoes it */
static int keep_input(lua_State *L) {
  struct termios mode;
  int fd = (int)bind_integer(L, 1, 0, INT32_MAX);
  if (tcgetattr(fd, &mode)) return 0;
  mode.c_lflag |= NOFLSH;
  tcsetattr(fd, TCSADRAIN, &mode);
  return 0;
}

/* drop_input(fd): drops what was typed and not read yet */
static int drop_input(lua_State *L) {
  tcflush((int)bind_integer(L, 1, 0, INT32_MAX), TCIFLUSH);
  return 0;
}

/* The Lua state that Ctrl-C interrupts. Only the command sets it: a library leaves signals to its host. */
static lua_State *volatile interrupted;
static volatile sig_atomic_t interrupt_held; /* a SIGINT arrived in mode "hold" */
static lua_Integer interrupts_raised;        /* in the main coroutine, since the process began */

static void raise_interrupt(lua_State *L, lua_Debug *ar) {
  (void)ar;
  interrupts_raised++;
  lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted!");
}

/* lua_sethook is the one function of Lua that may be called from a signal handler (manual, 4.7). */
static void on_interrupt(int signal) {
  (void)signal;
  if (interrupted) lua_sethook(interrupted, raise_interrupt, LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

static void hold_interrupt(int signal) {
  (void)signal;
  interrupt_held = 1;
}

static bool interrupt_pending(lua_State *main) { return lua_gethook(main) == raise_interrupt; }

/* Runs when the interrupted state closes. Signals no longer use it then. */
static int forget_interrupts(lua_State *L) {
  lua_State *const *guard = luaL_checkudata(L, 1, INTERRUPT_CLASS);
  if (interrupted == *guard) interrupted = NULL;
  return 0;
}

/* Creates one guard for the lifetime of the state. */
static void guard_interrupts(lua_State *L, lua_State *main) {
  if (lua_getfield(L, LUA_REGISTRYINDEX, INTERRUPT_CLASS ".guard") == LUA_TNIL) {
    lua_State **guard = bind_new(L, INTERRUPT_CLASS, sizeof *guard, 0);
    *guard = main;
    lua_setfield(L, LUA_REGISTRYINDEX, INTERRUPT_CLASS ".guard");
  }
  lua_pop(L, 1);
}

static lua_State *main_state(lua_State *L) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  lua_State *main = lua_tothread(L, -1);
  lua_pop(L, 1);
  return main;
}

/* What SIGINT does: it ends the process, waits until the mode is RAISES, or raises "interrupted!" in the main coroutine. */
enum interrupt_mode { INTERRUPT_ENDS, INTERRUPT_HELD, INTERRUPT_RAISES };

/* Sets the mode of the process and returns the one before. A SIGINT that waits is raised or, in mode ENDS, dropped. The handler
 * of the stand-alone interpreter raises at the first SIGINT only; this one raises at each. */
static enum interrupt_mode set_interrupts(lua_State *L, enum interrupt_mode mode) {
  static enum interrupt_mode current = INTERRUPT_ENDS;
  static void (*const handlers[])(int) = {SIG_DFL, hold_interrupt, on_interrupt};
  lua_State *main = main_state(L);
  guard_interrupts(L, main);
  interrupted = main;
  sigaction(SIGINT, &(struct sigaction){.sa_handler = handlers[mode]}, NULL);
  if (mode != INTERRUPT_RAISES && interrupt_pending(main)) {
    lua_sethook(main, NULL, 0, 0);
    interrupt_held = 1;
  }
  if (mode != INTERRUPT_HELD) {
    if (interrupt_held && mode == INTERRUPT_RAISES) on_interrupt(SIGINT);
    interrupt_held = 0;
  }
  enum interrupt_mode before = current;
  current = mode;
  return before;
}

/* hold_interrupts(on): while on, SIGINT waits for the next call of interruptible. Off: SIGINT ends the process */
static int hold_interrupts(lua_State *L) {
  set_interrupts(L, lua_toboolean(L, 1) ? INTERRUPT_HELD : INTERRUPT_ENDS);
  return 0;
}

/* interruptible(f, ...) -> as pcall: every SIGINT raises "interrupted!" in the main coroutine while f runs */
static int interruptible(lua_State *L) {
  luaL_checkany(L, 1);
  enum interrupt_mode before = set_interrupts(L, INTERRUPT_RAISES);
  int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  set_interrupts(L, before);
  lua_pushboolean(L, status == LUA_OK);
  lua_insert(L, 1);
  return lua_gettop(L);
}

static void block_signals(sigset_t *before) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, before);
}

/* wait_input(fd) -> true: the file is readable, at its end or in error; false: a signal arrived, or an interrupt is about to be
 * raised */
static int wait_input(lua_State *L) {
  struct pollfd file = {.fd = (int)bind_integer(L, 1, 0, INT32_MAX), .events = POLLIN};
  sigset_t before;
  int ready = 0;
  block_signals(&before); /* so that none arrives between the test and ppoll */
  if (!interrupt_pending(main_state(L))) ready = ppoll(&file, 1, NULL, &before);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  lua_pushboolean(L, ready > 0);
  return 1;
}

/* without_signals(f): calls f; SIGINT and SIGTERM wait for its end */
static int without_signals(lua_State *L) {
  sigset_t before;
  block_signals(&before);
  lua_settop(L, 1);
  int status = lua_pcall(L, 0, 0, 0);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return status == LUA_OK ? 0 : lua_error(L);
}

static volatile sig_atomic_t terminated;

static void on_terminate(int signal) {
  terminated = 1;
  on_interrupt(signal);
}

/* interrupts() -> number of interrupts that interruptible has raised: a caller notices one that a pcall below it has caught */
static int interrupts(lua_State *L) {
  lua_pushinteger(L, interrupts_raised);
  return 1;
}

/* catch_termination(on): while on, SIGTERM raises "interrupted!" in the main coroutine, so that unfinished files are removed;
 * terminated() distinguishes it from Ctrl-C. Off: SIGTERM ends the process, if it was on */
static int catch_termination(lua_State *L) {
  static bool caught = false;
  bool on = lua_toboolean(L, 1);
  if (!on && !caught) return 0;
  caught = on;
  struct sigaction action = {.sa_handler = on ? on_terminate : SIG_DFL};
  lua_State *main = main_state(L);
  guard_interrupts(L, main);
  if (on) interrupted = main;
  if (on) terminated = 0;
  sigaction(SIGTERM, &action, NULL);
  return 0;
}

/* terminated() -> whether SIGTERM has arrived since catch_termination(true) */
static int was_terminated(lua_State *L) {
  lua_pushboolean(L, terminated != 0);
  return 1;
}

/* glob(pattern, name) -> whether the pattern matches anywhere in the name. See base/glob.h. */
static int glob(lua_State *L) {
  lua_pushboolean(L, ane_glob(luaL_checkstring(L, 1), luaL_checkstring(L, 2)));
  return 1;
}

static const luaL_Reg functions[] = {
    {"isa_list", isa_list},
    {"isa_best", isa_best},
    {"cpu_name", cpu_name},
    {"cpu_cores", cpu_cores},
    {"clock", clock_now},
    {"limits", limits},
    {"memory", memory},
    {"path_kind", path_kind},
    {"is_link", is_link},
    {"write_file", write_file},
    {"read_file", read_file},
    {"fill_standard_files", fill_standard_files},
    {"isatty", is_tty},
    {"wait_input", wait_input},
    {"terminal_mode", terminal_mode},
    {"list_dir", list_dir},
    {"hold_interrupts", hold_interrupts},
    {"interruptible", interruptible},
    {"interrupts", interrupts},
    {"without_signals", without_signals},
    {"keep_input", keep_input},
    {"drop_input", drop_input},
    {"catch_termination", catch_termination},
    {"terminated", was_terminated},
    {"glob", glob},
    {NULL, NULL},
};

static const luaL_Reg no_methods[] = {{NULL, NULL}};
static const luaL_Reg buffer_meta[] = {{"__gc", buffer_gc}, {NULL, NULL}};
static const luaL_Reg interrupt_meta[] = {{"__gc", forget_interrupts}, {NULL, NULL}};
static const luaL_Reg map_meta[] = {{"__gc", map_close}, {"__close", map_close}, {NULL, NULL}};

void bind_system(lua_State *L) {
  bind_class(L, MAP_CLASS, no_methods, map_meta);
  bind_class(L, BUFFER_CLASS, no_methods, buffer_meta);
  bind_class(L, INTERRUPT_CLASS, no_methods, interrupt_meta);
  luaL_setfuncs(L, functions, 0);
}
