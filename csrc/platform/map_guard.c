#include "platform/map_guard.h"

#include "base/alloc.h"
#include "platform/platform_internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The handler reads the table without a lock: a slot counts while `size` is not 0. Files beyond its length are not guarded. */
enum { MOST_MAPS = 16384 };
static struct guard {
  _Atomic uintptr_t from;
  _Atomic size_t size; /* whole pages; 0: free */
  _Atomic bool broken;
  char *path; /* owned */
} guards[MOST_MAPS];
static _Atomic size_t used;      /* slots below this have been used */
static _Atomic int broken_maps;  /* those that are open now */
static _Atomic size_t page_size; /* power of two */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below, and of `path` */
static size_t open_maps;
static bool installed;
static struct sigaction before; /* written while the handler is not installed */

/* ---- The handler -------------------------------------------------------------------------------------------------------*/

/* Replaces the mapping from the page of `at` on with zeros. false: `at` is in no mapped file. */
static bool replace_pages(uintptr_t at) {
  size_t n = atomic_load(&used), page = atomic_load(&page_size);
  for (size_t i = 0; i < n; i++) {
    struct guard *g = &guards[i];
    size_t size = atomic_load(&g->size);
    uintptr_t from = atomic_load(&g->from);
    if (at < from || at - from >= size) continue;
    uintptr_t first = at & ~(uintptr_t)(page - 1);
    void *p = mmap((void *)first, from + size - first, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    if (!atomic_exchange(&g->broken, true)) atomic_fetch_add(&broken_maps, 1);
    return true;
  }
  return false;
}

/* Does what would have happened without this handler. */
static void pass_on(int signal_number, siginfo_t *info, void *context) {
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal_number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal_number);
  } else if (before.sa_handler == SIG_DFL || info->si_code > 0) { /* a fault cannot be ignored */
    signal(signal_number, SIG_DFL);
    raise(signal_number); /* ends the process when the handler returns */
  }
}

static void on_bus_error(int signal_number, siginfo_t *info, void *context) {
  int why = errno;
  if (info->si_code <= 0 || !replace_pages((uintptr_t)info->si_addr)) pass_on(signal_number, info, context);
  errno = why;
}

static void install(void) {
  struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  installed = sigaction(SIGBUS, NULL, &before) == 0 && sigaction(SIGBUS, &action, NULL) == 0;
}

/* A handler of the host that was installed later may call this one. Then it stays, and this library stays in memory. */
static void uninstall(void) {
  struct sigaction now;
  if (sigaction(SIGBUS, NULL, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error) {
    sigaction(SIGBUS, &before, NULL);
    installed = false;
    return;
  }
  Dl_info self;
  if (dladdr((void *)&used, &self) && self.dli_fname) (void)dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

/* ---- The table -----------------------------------------------------------------------------------------------------------*/

static struct guard *free_slot(void) {
  size_t n = atomic_load(&used);
  for (size_t i = 0; i < n; i++)
    if (atomic_load(&guards[i].size) == 0) return &guards[i];
  if (n == MOST_MAPS) return NULL;
  atomic_store(&used, n + 1);
  return &guards[n];
}

static struct guard *guard_of(const struct ane_map *map) {
  size_t n = atomic_load(&used);
  for (size_t i = 0; i < n; i++)
    if (atomic_load(&guards[i].size) && atomic_load(&guards[i].from) == (uintptr_t)map->data) return &guards[i];
  return NULL;
}

bool ane_map_guard(const struct ane_map *map, const char *path) {
  char *copy = ane_strndup(path, strlen(path));
  if (!copy) return false;
  long page = sysconf(_SC_PAGESIZE);
  pthread_mutex_lock(&lock);
  atomic_store(&page_size, page > 0 ? (size_t)page : 4096);
  struct guard *g = free_slot();
  if (g) {
    if (!open_maps++ && !installed) install();
    g->path = copy;
    copy = NULL;
    atomic_store(&g->broken, false);
    atomic_store(&g->from, (uintptr_t)map->data);
    atomic_store(&g->size, (size_t)ane_align_up((size_t)map->size, atomic_load(&page_size)));
  }
  pthread_mutex_unlock(&lock);
  ane_free(copy);
  return true;
}

void ane_map_unguard(const struct ane_map *map) {
  pthread_mutex_lock(&lock);
  struct guard *g = guard_of(map);
  char *path = NULL;
  if (g) {
    atomic_store(&g->size, 0);
    if (atomic_load(&g->broken)) atomic_fetch_sub(&broken_maps, 1);
    path = g->path;
    g->path = NULL;
    if (!--open_maps && installed) uninstall();
  }
  pthread_mutex_unlock(&lock);
  ane_free(path);
}

/* ---- Checks --------------------------------------------------------------------------------------------------------------*/

static ane_status fail(const struct guard *g, struct ane_error *err) {
  return ane_fail(err, ANE_IO, "%s: was truncated, or became unreadable, while it was in use", g->path);
}

ane_status ane_map_check(const struct ane_map *map, struct ane_error *err) {
  if (atomic_load_explicit(&broken_maps, memory_order_relaxed) == 0 || !map->data) return ANE_OK;
  pthread_mutex_lock(&lock);
  const struct guard *g = guard_of(map);
  ane_status st = g && atomic_load(&g->broken) ? fail(g, err) : ANE_OK;
  pthread_mutex_unlock(&lock);
  return st;
}

ane_status ane_maps_check(struct ane_error *err) {
  if (atomic_load_explicit(&broken_maps, memory_order_relaxed) == 0) return ANE_OK;
  ane_status st = ANE_OK;
  pthread_mutex_lock(&lock);
  size_t n = atomic_load(&used);
  for (size_t i = 0; !st && i < n; i++)
    if (atomic_load(&guards[i].size) && atomic_load(&guards[i].broken)) st = fail(&guards[i], err);
  pthread_mutex_unlock(&lock);
  return st;
}
