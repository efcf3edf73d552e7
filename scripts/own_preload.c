/* Preloaded in runs under the thread sanitizer: the programs that specs start run without it. On some kernels a shell crashes with it. */
#include <stdlib.h>
__attribute__((constructor)) static void forget(void) { unsetenv("LD_PRELOAD"); }
