/* Declarations that the files of regular expressions share. */
#ifndef ANE_GRAMMAR_REGEX_INTERNAL_H
#define ANE_GRAMMAR_REGEX_INTERNAL_H

#include "grammar/regex.h"

enum {
  RE_KIND_NONE,
  RE_KIND_EMPTY,
  RE_KIND_ALL,
  RE_KIND_SET,     /* a: number of the set */
  RE_KIND_CAT,     /* a, then b; a is no join */
  RE_KIND_ALT,     /* a or b; a is no ALT and has a lower number than all in b */
  RE_KIND_AND,     /* the same */
  RE_KIND_NOT,     /* every text but those of a */
  RE_KIND_REPEAT,  /* a, lo to hi times */
  RE_KIND_AHEAD,   /* zero-width: what follows is (lo: is not) a text of a */
  RE_KIND_START,   /* zero-width: start of the text */
  RE_KIND_BOUNDARY /* zero-width: (lo: no) edge of a word */
};

/* Makes room for one more of n items; false: no memory. */
bool re_grow(void **items, uint32_t *room, uint32_t n, size_t size);

#endif
