/* Finds libmicrohttpd when it is first needed: see mhd.h. */
#include "http/mhd.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct ane_mhd ane_mhd;
static char missing[128]; /* why the library cannot be used; "" : it can */

/* Finds a function and stores its pointer in `field`. POSIX allows the conversion from an object pointer. */
static void find(void *library, const char *name, void *field) {
  void *p = dlsym(library, name);
  if (!p && !missing[0]) snprintf(missing, sizeof missing, "libmicrohttpd has no %s", name);
  memcpy(field, &p, sizeof p);
}

static void open_library(void) {
  void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(missing, sizeof missing, "libmicrohttpd is not installed (Debian: libmicrohttpd12)");
    return;
  }
#define FIND(name) find(library, "MHD_" #name, &ane_mhd.name);
  ANE_MHD_FUNCTIONS(FIND)
#undef FIND
}

ane_status ane_mhd_load(struct ane_error *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
  return missing[0] ? ane_fail(err, ANE_UNSUPPORTED, "no server can be started: %s", missing) : ANE_OK;
}
