/* Counts the lines of Lua that run, for `make coverage`. A process that loads this (scripts/coverage/start.lua) appends, when it
 * ends, to the file that ANE_COVERAGE names: one line per Lua file, its path and the numbers of the lines that ran. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

enum { BUCKETS = 1024, MOST_LINES = 8192 };

struct file {
  struct file *next;
  unsigned char ran[MOST_LINES / 8];
  char path[];
};

static struct file *files[BUCKETS], *last;

static struct file *find(const char *path) {
  unsigned hash = 5381;
  for (const char *p = path; *p; p++) hash = hash * 33 + (unsigned char)*p;
  struct file **at = &files[hash % BUCKETS];
  for (; *at; at = &(*at)->next)
    if (strcmp((*at)->path, path) == 0) return *at;
  size_t size = strlen(path) + 1;
  struct file *f = calloc(1, sizeof *f + size);
  if (!f) abort();
  memcpy(f->path, path, size);
  return *at = f;
}

/* A hook set from C is inherited by the coroutines that are made later. */
static void count(lua_State *L, lua_Debug *ar) {
  lua_getinfo(L, "S", ar);
  if (*ar->source != '@' || ar->currentline < 0 || ar->currentline >= MOST_LINES) return;
  if (!last || strcmp(last->path, ar->source + 1) != 0) last = find(ar->source + 1);
  last->ran[ar->currentline / 8] |= (unsigned char)(1 << ar->currentline % 8);
}

/* One write, so that processes that end together do not mix. */
__attribute__((destructor)) static void save(void) {
  const char *to = getenv("ANE_COVERAGE");
  char *text = NULL;
  size_t size = 0;
  FILE *out = to ? open_memstream(&text, &size) : NULL;
  if (!out) return;
  for (int i = 0; i < BUCKETS; i++) {
    for (struct file *f = files[i]; f; f = f->next) {
      fprintf(out, "%s\t", f->path);
      for (int line = 0; line < MOST_LINES; line++)
        if (f->ran[line / 8] & 1 << line % 8) fprintf(out, " %d", line);
      fputc('\n', out);
    }
  }
  fclose(out);
  int fd = open(to, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (fd >= 0) {
    if (write(fd, text, size) != (ssize_t)size) abort();
    close(fd);
  }
  free(text);
}

int luaopen_lines(lua_State *L);
int luaopen_lines(lua_State *L) {
  lua_sethook(L, count, LUA_MASKLINE, 0);
  return 0;
}
