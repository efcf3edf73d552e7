/* UTF-8: the single definition of well-formed text (Unicode 15, table 3-7: no overlong forms, no surrogates). */
#ifndef ANE_BASE_UTF8_H
#define ANE_BASE_UTF8_H

#include "base/attr.h"

/* The length of a sequence by its first byte, and the range of its second byte; further bytes are 0x80 .. 0xBF. 1: ASCII. 0: no
 * sequence begins with this byte. */
int ane_utf8_lead(uint8_t first, uint8_t *low, uint8_t *high);

/* The length of the well-formed sequence at s[0..len), len > 0. If it is ill-formed, -n: its first n >= 1 bytes are the "maximal
 * subpart" that one U+FFFD replaces (Unicode 15, 3.9, D93b), as Python's errors="replace" counts them. *cut (may be NULL): the
 * text ends inside a sequence that more bytes could complete. */
int ane_utf8_step(const char *s, size_t len, bool *cut);

/* The length of s without an incomplete sequence of 1 to 3 bytes at its end. */
size_t ane_utf8_whole(const char *s, size_t len);

/* The length of the longest well-formed prefix of s[0..len). */
size_t ane_utf8_run(const char *s, size_t len);

/* A copy of s with U+FFFD for each maximal ill-formed subpart, in new memory (ane_free), NUL-terminated. NULL: out of memory. */
char *ane_utf8_replace(const char *s, size_t len, size_t *out_len);

#endif
