/* Exchanges over HTTP: one request to one address, whose answer goes to a file or to memory. libcurl does the work; it is found
 * when the first exchange begins. Nothing is followed, repeated or sent by itself: who is redirected where, and with which
 * headers, is the caller's to decide. */
#ifndef ANE_FETCH_FETCH_H
#define ANE_FETCH_FETCH_H

#include "base/status.h"

struct ane_fetch;

struct ane_fetch_request {
  const char *url; /* http:// or https:// */
  const char *const *headers;
  size_t n_headers; /* "Name: value" */
  /* Where the content of an answer 200 or 206 goes; NULL: to memory, as that of all other answers does. The file is made where it
   * is missing, and locked until the end: a second exchange with it is ANE_STATE. */
  const char *path;
  uint64_t offset;     /* bytes of the file that are there: the rest is asked for. An answer 200 begins the file anew */
  size_t most;         /* bytes in memory; beyond them ANE_RANGE for 200 and 206, else the rest is dropped */
  uint32_t connect_ms; /* time to connect */
  uint32_t stall_ms;   /* time without a byte after which the exchange fails */
};

/* Whether exchanges can be made here; else why not. */
bool ane_fetch_available(struct ane_error *err);

/* Begins an exchange. Errors: ANE_UNSUPPORTED (no libcurl), ANE_IO (the file), ANE_STATE, ANE_INVALID (the address), ANE_NOMEM.
 */
ane_status ane_fetch_begin(struct ane_fetch **out, const struct ane_fetch_request *r, struct ane_error *err);
/* Goes on for at most so long. *done: the answer is whole. Errors: ANE_IO with the cause, also where the connection broke;
 * ANE_RANGE. */
ane_status ane_fetch_step(struct ane_fetch *f, uint32_t timeout_ms, bool *done, struct ane_error *err);
/* Of the answer, as far as it came. */
int ane_fetch_status(const struct ane_fetch *f);        /* 200, 404, ...; 0: not known */
uint64_t ane_fetch_received(const struct ane_fetch *f); /* bytes of the file, with the offset; or of the content in memory */
const char *ane_fetch_headers(const struct ane_fetch *f, size_t *n); /* lines, as they came */
const char *ane_fetch_body(const struct ane_fetch *f, size_t *n);
/* Writes the file to the disk. Errors: ANE_IO. */
ane_status ane_fetch_sync(struct ane_fetch *f, struct ane_error *err);
/* Ends it; a file stays as it is. NULL is fine. */
void ane_fetch_end(struct ane_fetch *f);

/* ---- Files of a cache --------------------------------------------------------------------------------------------*/

/* Makes a folder and those above it, where they are missing. Errors here and below: ANE_IO. */
ane_status ane_cache_folder(const char *path, struct ane_error *err);
/* Bytes of a regular file; false where there is none. Follows links. */
bool ane_cache_size(const char *path, uint64_t *n);
/* Makes `path` a symbolic link to `target`, in one step, whatever it was. */
ane_status ane_cache_link(const char *target, const char *path, struct ane_error *err);
/* Renames a file, in place of another one, and writes its new folder to the disk. */
ane_status ane_cache_move(const char *from, const char *to, struct ane_error *err);

#endif
