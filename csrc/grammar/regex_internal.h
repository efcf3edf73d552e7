/* Declarations that the files of regular expressions share. */
#ifndef ANE_GRAMMAR_REGEX_INTERNAL_H
#define ANE_GRAMMAR_REGEX_INTERNAL_H

#include "grammar/regex.h"

enum {
  RE_KIND_NONE,
  RE_KIND_EMPTY,
  RE_KIND_ALL,
  RE_KIND_SET,     /* a: number of the set */
  RE_KIND_CAT,     /* a, then b; a is not a CAT */
  RE_KIND_ALT,     /* a or b; a is not an ALT and has a lower number than all in b */
  RE_KIND_AND,     /* a and b; ordered as ALT */
  RE_KIND_NOT,     /* every text but those of a */
  RE_KIND_REPEAT,  /* a, lo to hi times */
  RE_KIND_AHEAD,   /* zero-width: the text that follows begins with (lo: no) match of a */
  RE_KIND_START,   /* zero-width: start of the text */
  RE_KIND_BOUNDARY /* zero-width: (lo: not a) word boundary */
};

/* Finds the next run of characters lo..hi of a general category, "Lu", or of all that begin with a letter, "L". *at: 0 at first.
 * false: there is none. */
bool re_category(const char *name, uint32_t *at, uint32_t *lo, uint32_t *hi);

/* Makes room for one more item in an array of n items of `size` bytes. false: no memory. */
bool re_grow(void **items, uint32_t *room, uint32_t n, size_t size);
/* Doubles a table, at first to `least` slots, and enters the numbers 1 .. n again by the hashes of their items. false: no memory.
 */
bool re_grow_table(struct re_table *t, uint32_t least, const struct re_pool *p, uint32_t n,
                   uint32_t (*hash)(const struct re_pool *p, uint32_t number));

#endif
