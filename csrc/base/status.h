/* Status codes, and the record of an error: its code and its message.
 *
 * A function that can fail returns `ane_status` and takes `struct ane_error *err` as its last argument. err may be NULL: then no
 * message is written. On success err is unchanged. */
#ifndef ANE_BASE_STATUS_H
#define ANE_BASE_STATUS_H

#include "base/attr.h"

/* X(name, word): `word` is the third value that Lua receives after nil and the message. */
#define ANE_STATUS_LIST(X)                                                                                                       \
  X(OK, "ok")                                                                                                                    \
  X(NOMEM, "memory")            /* an allocation failed */                                                                       \
  X(IO, "io")                   /* a system call failed: open, read, write, map */                                               \
  X(FORMAT, "format")           /* a file breaks the rules of its format */                                                      \
  X(UNSUPPORTED, "unsupported") /* well formed, but not supported here */                                                        \
  X(INVALID, "invalid")         /* an argument or attribute is out of its range */                                               \
  X(SHAPE, "shape")             /* shapes or dtypes do not fit together */                                                       \
  X(NOTFOUND, "notfound")       /* a name that should exist does not */                                                          \
  X(RANGE, "range")             /* a position or length beyond a limit, such as the context */                                   \
  X(STATE, "state")             /* the state of an object forbids it: a saved state of another model, a locked file */           \
  X(STOPPED, "stopped")         /* ended by the caller's stop flag */

typedef enum {
#define ANE_STATUS_ENUM(name, word) ANE_##name,
  ANE_STATUS_LIST(ANE_STATUS_ENUM)
#undef ANE_STATUS_ENUM
} ane_status;

struct ane_error {
  ane_status code;
  char text[512]; /* NUL-terminated; longer messages are truncated at a code point */
};

/* Fills *err (if not NULL) from a printf format. Returns `code`, for use as `return ane_fail(...)`. */
ane_status ane_fail(struct ane_error *err, ane_status code, const char *fmt, ...) ANE_PRINTF(3, 4);

/* Prepends "prefix: " to the message in err, and sets and returns `code`. For callers that know the file, layer or tensor. */
ane_status ane_fail_in(struct ane_error *err, ane_status code, const char *fmt, ...) ANE_PRINTF(3, 4);

/* The word of a code, as in ANE_STATUS_LIST. Never NULL. */
const char *ane_status_word(ane_status code);

#endif
