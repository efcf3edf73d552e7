/* Sleeping until another process changes a word of memory that both share. */
#ifndef ANE_PLATFORM_SHARED_WAIT_H
#define ANE_PLATFORM_SHARED_WAIT_H

#include <stdatomic.h>
#include <stdint.h>

/* Both words are zero before the first use. */
struct ane_shared_word {
  _Atomic uint32_t value;    /* changed by one process */
  _Atomic uint32_t sleepers; /* of all processes */
};

/* Sleeps until the value is not `seen`, for at most `seconds` (below 1). May return earlier. */
void ane_shared_sleep(struct ane_shared_word *w, uint32_t seen, double seconds);
/* Sets the value and wakes all sleepers. What was written before is visible to those that see the value. */
void ane_shared_set(struct ane_shared_word *w, uint32_t value);

#endif
