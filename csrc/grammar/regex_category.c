/* The general categories of all characters, as runs of characters of one category. They are found once in a process: a pattern of
 * 64 KB can name 13,000 categories, and a schema can have many patterns. */
#include "grammar/regex_internal.h"

#include <pthread.h>
#include <utf8proc.h>

enum { LAST_CHAR = 0x10ffff, MOST_RUNS = 8192 /* Unicode 15 has about 4,000 */ };

static struct {
  uint32_t first; /* the run ends before the first character of the next one */
  char name[2];
} runs[MOST_RUNS + 1];
static uint32_t n_runs;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_runs(void) {
  for (uint32_t c = 0; c <= LAST_CHAR && n_runs < MOST_RUNS; c++) {
    const char *is = utf8proc_category_string((utf8proc_int32_t)c);
    if (n_runs && runs[n_runs - 1].name[0] == is[0] && runs[n_runs - 1].name[1] == is[1]) continue;
    runs[n_runs].first = c;
    runs[n_runs].name[0] = is[0];
    runs[n_runs++].name[1] = is[1];
  }
  runs[n_runs].first = LAST_CHAR + 1;
}

bool re_category(const char *name, uint32_t *at, uint32_t *lo, uint32_t *hi) {
  pthread_once(&once, find_runs);
  for (uint32_t i = *at; i < n_runs; i++) {
    if (runs[i].name[0] != name[0] || (name[1] && runs[i].name[1] != name[1])) continue;
    *at = i + 1;
    *lo = runs[i].first;
    *hi = runs[i + 1].first - 1;
    return true;
  }
  return false;
}
