/* HTTP exchanges: one request to one address, with the response written to a file or to memory. libcurl does the work; it is
 * loaded when the first exchange begins. Nothing is redirected or retried automatically, and no header is added: the caller
 * decides which redirects to follow, and with which headers. */
#ifndef ANE_FETCH_FETCH_H
#define ANE_FETCH_FETCH_H

#include "base/status.h"

struct ane_fetch;

struct ane_fetch_request {
  const char *url; /* http:// or https:// */
  const char *const *headers;
  size_t n_headers; /* "Name: value" */
  /* The file for the content of a response 200 or 206; NULL: memory, where the content of all other responses goes too. The file
   * is created if missing and locked until the end: a second exchange with it is ANE_STATE. */
  const char *path;
  uint64_t offset; /* bytes that the file has already: only the rest is requested. A response 200 starts the file again */
  size_t most;     /* maximum bytes in memory; beyond it, ANE_RANGE for 200 and 206; for other responses the rest is dropped */
  uint32_t connect_ms; /* connection timeout */
  uint32_t stall_ms;   /* the exchange fails after this time without a byte */
};

/* Can exchanges be made here? If not, err says why. */
bool ane_fetch_available(struct ane_error *err);

/* Begins an exchange. Errors: ANE_UNSUPPORTED (no libcurl), ANE_IO (the file), ANE_STATE, ANE_INVALID (the address), ANE_NOMEM.
 * */
ane_status ane_fetch_begin(struct ane_fetch **out, const struct ane_fetch_request *r, struct ane_error *err);
/* Continues for at most timeout_ms. *done: the response is complete. Errors: ANE_IO with the cause, including a lost connection;
 * ANE_RANGE. */
ane_status ane_fetch_step(struct ane_fetch *f, uint32_t timeout_ms, bool *done, struct ane_error *err);
/* The response, as far as it has been received. Texts are valid until the next step. */
int ane_fetch_status(const struct ane_fetch *f);        /* 200, 404, ...; 0: not known yet */
uint64_t ane_fetch_received(const struct ane_fetch *f); /* bytes of the file, including the offset; or of the content in memory */
const char *ane_fetch_headers(const struct ane_fetch *f, size_t *n); /* lines, as received */
const char *ane_fetch_body(const struct ane_fetch *f, size_t *n);
/* Syncs the file to the disk. Errors: ANE_IO. */
ane_status ane_fetch_sync(struct ane_fetch *f, struct ane_error *err);
/* Ends the exchange; the file is kept as it is. NULL is fine. */
void ane_fetch_end(struct ane_fetch *f);

/* ---- Files of a cache --------------------------------------------------------------------------------------------*/

/* Makes a folder and its missing parents. Errors here and below: ANE_IO. */
ane_status ane_cache_folder(const char *path, struct ane_error *err);
/* Sets *n to the bytes of a regular file; false: there is none. Follows links. */
bool ane_cache_size(const char *path, uint64_t *n);
/* Atomically makes `path` a symbolic link to `target`, replacing whatever it was. */
ane_status ane_cache_link(const char *target, const char *path, struct ane_error *err);
/* Reads the target of a symbolic link; false: there is none, or it does not fit. */
bool ane_cache_link_target(const char *path, char *target, size_t size);
/* Renames a file, replacing any file at `to`, and syncs its new folder to the disk. */
ane_status ane_cache_move(const char *from, const char *to, struct ane_error *err);

#endif
