/* Runs a Lua program in N threads at once, each in its own state. usage: states N SCRIPT. Ends with 0 where all ran well. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const char *script;

static void *run(void *arg) {
  lua_State *L = luaL_newstate();
  luaL_openlibs(L);
  lua_pushinteger(L, (lua_Integer)(size_t)arg);
  lua_setglobal(L, "THREAD");
  int failed = luaL_dofile(L, script);
  if (failed) fprintf(stderr, "%s\n", lua_tostring(L, -1));
  lua_close(L);
  return failed ? (void *)1 : NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[64];
  int n = argc == 3 ? atoi(argv[1]) : 0, failed = 0;
  if (n < 1 || n > 64) return 2;
  script = argv[2];
  for (int i = 0; i < n; i++)
    if (pthread_create(&threads[i], NULL, run, (void *)(size_t)i)) return 2;
  for (int i = 0; i < n; i++) {
    void *result;
    pthread_join(threads[i], &result);
    failed |= result != NULL;
  }
  return failed;
}
