/* The program of all fuzz targets: libFuzzer, an embedded Lua, and the C core linked in.
 * usage: ANE_FUZZ_TARGET=name fuzz [libFuzzer's options] CORPUS ...     from the root of the tree; `make fuzz` calls it so
 *
 * fuzz/targets/NAME.lua returns a table:
 *   - run(data) raises where a promise is broken. The driver prints the error and aborts, which is a find for libFuzzer.
 *   - mutate(data, most, random, bytes), if there is one, gives a changed input of at most `most` bytes. random(n) gives 0 to
 *     n - 1; bytes(s, most) is libFuzzer's own mutator, which also makes half of all changes.
 *   - lines: true counts lines of Lua, see below.
 *   - seeds() and words, if there are any, are written by fuzz/replay.lua where ANE_FUZZ_SEEDS names a folder. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLLECT_RUNS 32 /* runs between two full collections */
#define LEAK_RUNS 2048  /* runs between two searches for leaks; libFuzzer ends its own after a thousand tries */

int luaopen_ane_core(lua_State *L);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
int __lsan_do_recoverable_leak_check(void); /* of the sanitizer: prints leaks, and says whether there are any */

static lua_State *state;      /* its stack holds the target's table, run and mutate */
static uint64_t random_state; /* of the mutator */
enum { TARGET = 1, RUN, MUTATE };

static void give_up(const char *what, const char *why) {
  fprintf(stderr, "fuzz: %s: %s\n", what, why);
  abort();
}

static int traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

/* random(n) -> 0 .. n-1, by the generator of Knuth's MMIX */
static int lua_random(lua_State *L) {
  lua_Integer n = luaL_checkinteger(L, 1);
  luaL_argcheck(L, n > 0, 1, "must be positive");
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  lua_pushinteger(L, (lua_Integer)((random_state >> 33) % (uint64_t)n));
  return 1;
}

/* bytes(s, most) -> s changed by libFuzzer */
static int lua_bytes(lua_State *L) {
  size_t size, most = (size_t)luaL_checkinteger(L, 2);
  const char *s = luaL_checklstring(L, 1, &size);
  luaL_argcheck(L, most > 0 && most <= 1 << 24, 2, "must be 1 to 2^24");
  if (size > most) size = most;
  uint8_t *buffer = lua_newuserdatauv(L, most, 0);
  memcpy(buffer, s, size);
  lua_pushlstring(L, (const char *)buffer, LLVMFuzzerMutate(buffer, size, most));
  return 1;
}

/* Lines of Lua that ran, as more counters for libFuzzer: an input that reaches another line is kept. Targets with `lines = true`
 * have them, because most of the code they test is Lua. Each line then costs a call. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t lines[1 << 15];

static void count_line(lua_State *L, lua_Debug *ar) {
  lua_getinfo(L, "S", ar);
  uint64_t hash = ((uint64_t)(uintptr_t)ar->source + (uint64_t)ar->currentline * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
  uint8_t *count = &lines[hash >> 49];
  if (*count < UINT8_MAX) ++*count;
}

static void open_target(lua_State *L, const char *name) {
  luaL_openlibs(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_ane_core);
  lua_setfield(L, -2, "ane.core");
  lua_settop(L, 0);
  if (luaL_dostring(L, "package.path = 'lua/?.lua;lua/?/init.lua;models/?.lua;fuzz/?.lua;spec/?.lua;' .. package.path"))
    give_up(name, lua_tostring(L, -1));
  char path[256];
  snprintf(path, sizeof path, "fuzz/targets/%s.lua", name);
  lua_pushcfunction(L, traceback);
  if (luaL_loadfile(L, path) || lua_pcall(L, 0, 1, 1)) give_up(name, lua_tostring(L, -1));
  lua_remove(L, 1);
  lua_getfield(L, TARGET, "lines");
  if (lua_toboolean(L, -1)) lua_sethook(L, count_line, LUA_MASKLINE, 0);
  lua_pop(L, 1);
  if (lua_getfield(L, TARGET, "run") != LUA_TFUNCTION) give_up(name, "has no function run");
  lua_getfield(L, TARGET, "mutate");
}

/* Writes the inputs that the target makes of fixtures. */
static void write_seeds(lua_State *L, const char *name, const char *folder) {
  if (luaL_dostring(L, "return require('replay').write_seeds")) give_up("replay", lua_tostring(L, -1));
  lua_pushstring(L, name);
  lua_pushstring(L, folder);
  if (lua_pcall(L, 2, 0, 0)) give_up(name, lua_tostring(L, -1));
}

static void close_state(void) { lua_close(state); }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  const char *name = getenv("ANE_FUZZ_TARGET");
  if (!name || strchr(name, '/')) give_up("ANE_FUZZ_TARGET", "must name a file of fuzz/targets");
  state = luaL_newstate();
  if (!state) give_up(name, "no memory");
  open_target(state, name);
  atexit(close_state);
  if (getenv("ANE_FUZZ_SEEDS")) write_seeds(state, name, getenv("ANE_FUZZ_SEEDS"));
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int runs;
  lua_State *L = state;
  int top = lua_gettop(L);
  lua_pushcfunction(L, traceback);
  lua_pushvalue(L, RUN);
  lua_pushlstring(L, (const char *)data, size);
  if (lua_pcall(L, 1, 0, top + 1)) give_up(getenv("ANE_FUZZ_TARGET"), lua_tostring(L, -1));
  lua_settop(L, top);
  if (++runs % COLLECT_RUNS == 0) lua_gc(L, LUA_GCCOLLECT);
  if (runs % LEAK_RUNS == 0 && __lsan_do_recoverable_leak_check()) give_up(getenv("ANE_FUZZ_TARGET"), "memory leaks");
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned int seed) {
  lua_State *L = state;
  if (seed % 2 == 0 || lua_isnil(L, MUTATE)) return LLVMFuzzerMutate(data, size, most);
  int top = lua_gettop(L);
  random_state = seed;
  lua_pushcfunction(L, traceback);
  lua_pushvalue(L, MUTATE);
  lua_pushlstring(L, (const char *)data, size);
  lua_pushinteger(L, (lua_Integer)most);
  lua_pushcfunction(L, lua_random);
  lua_pushcfunction(L, lua_bytes);
  if (lua_pcall(L, 4, 1, top + 1)) give_up("mutate", lua_tostring(L, -1));
  size_t changed = 0;
  const char *s = lua_tolstring(L, -1, &changed);
  if (!s) give_up("mutate", "gave no string");
  if (changed > most) changed = most;
  memcpy(data, s, changed);
  lua_settop(L, top);
  return changed;
}
