/* Shared by the sessions of all engines: what a feed returns, and the file of a saved session. */
#ifndef ANE_SESSION_SESSION_H
#define ANE_SESSION_SESSION_H

#include "base/bytes.h"
#include "base/status.h"
#include "platform/platform.h"

/* ---- Feeds ---------------------------------------------------------------------------------------------------------*/

/* The output rows that a feed leaves. */
typedef enum {
  ANE_WANT_NONE,
  ANE_WANT_LAST,   /* logits of the last token */
  ANE_WANT_ALL,    /* logits of every token */
  ANE_WANT_ARGMAX, /* best id and its logit for every token; no logits are kept */
  ANE_WANT_BEST,   /* the same for the last token only */
} ane_want;

/* Output rows of a feed of n tokens. */
static inline int64_t ane_want_rows(ane_want want, int64_t n) {
  return want == ANE_WANT_NONE ? 0 : want == ANE_WANT_LAST || want == ANE_WANT_BEST ? 1 : n;
}
/* Does a feed keep only the best ids of its output rows? */
static inline bool ane_want_best_only(ane_want want) { return want == ANE_WANT_ARGMAX || want == ANE_WANT_BEST; }

/* Checks that all ids are in 0 .. n_ids - 1. This is the only check of their values; the layers below an engine rely on it.
 * first: position of ids[0], for the message. Errors: ANE_RANGE. */
ane_status ane_ids_check(const int32_t *ids, int64_t n, int64_t n_ids, int64_t first, struct ane_error *err);

/* ---- Saved sessions ------------------------------------------------------------------------------------------------*/

/* The version of the arithmetic. A change that alters one bit of any engine's states or logits increments it: a state with the
 * old bits must not be continued. */
enum { ANE_ARITHMETIC = 4 };

/* Identifies the model whose state a file holds. */
struct ane_saved_key {
  const char *engine; /* "recipe", "graph", "packages": at most 15 bytes */
  uint64_t model;     /* fingerprint of everything that the state depends on: graph, weights, types, kernels */
};

/* The format of a file, in little endian: "ANESTATE", u32 version, u32 ANE_ARITHMETIC, u64 model, char engine[16] (filled with
 * NUL); then parts, each with u32 bytes of the name, u64 bytes of the data, the name, the data. The last part is named "end"; its
 * data is the CRC-32 (zlib) of all bytes before the data, as u32. */

/* Writes a file that appears whole or not at all. After a failure later calls do nothing and return the same status. */
struct ane_saved_writer {
  struct ane_file_writer file;
  uint32_t crc;
  ane_status status;
  struct ane_error *err; /* may be NULL */
};
/* Creates the file and writes its head. err is kept for the later calls. Errors of all calls: ANE_IO, ANE_NOMEM. */
ane_status ane_saved_create(struct ane_saved_writer *w, const char *path, const struct ane_saved_key *key, struct ane_error *err);
/* Begins a part of `bytes` bytes, which one or several calls of ane_saved_write provide. Each name must be unique. */
ane_status ane_saved_begin_part(struct ane_saved_writer *w, const char *name, uint64_t bytes);
ane_status ane_saved_write(struct ane_saved_writer *w, const void *data, size_t n);
/* Completes the file and moves it into place. After a failure, of this call or an earlier one, the file is removed. Always the
 * last call. */
ane_status ane_saved_commit(struct ane_saved_writer *w);

/* A file whose contents have been checked. */
struct ane_saved {
  struct ane_map map;
  const char *path;        /* borrowed */
  struct ane_reader parts; /* all parts except the last */
};
/* Opens and checks a file. Errors: ANE_IO; ANE_FORMAT (not a saved session, or a damaged one); ANE_STATE (another version of the
 * format or of the arithmetic, another engine, another model). After an error *out is empty. */
ane_status ane_saved_open(struct ane_saved *out, const char *path, const struct ane_saved_key *key, struct ane_error *err);
void ane_saved_close(struct ane_saved *s);
/* Reads the part at *at (0: the first) and moves *at past it; false after the last one. name is not NUL-terminated. */
struct ane_saved_part {
  const char *name;
  const uint8_t *data;
  size_t name_bytes;
  uint64_t bytes;
};
bool ane_saved_next(const struct ane_saved *s, size_t *at, struct ane_saved_part *out);
/* The data of a part, *bytes bytes, valid until ane_saved_close. NULL if there is no such part; *bytes is then unchanged. */
const uint8_t *ane_saved_find(const struct ane_saved *s, const char *name, uint64_t *bytes);
/* The data of a part that must have exactly this many bytes. Errors: ANE_FORMAT, which names file and part. */
ane_status ane_saved_need(const struct ane_saved *s, const char *name, uint64_t bytes, const uint8_t **data,
                          struct ane_error *err);

/* The ids of the part "ids", i32 each: *length of them at *ids, unaligned. Errors: ANE_FORMAT (an id outside 0 .. n_ids - 1),
 * ANE_RANGE (more than `context` ids). */
ane_status ane_saved_ids(const struct ane_saved *s, int64_t n_ids, int64_t context, const uint8_t **ids, int64_t *length,
                         struct ane_error *err);

/* A text of the caller that a file stores with the session; text NULL: none. */
struct ane_session_note {
  const char *text;
  size_t bytes;
};
/* Appends the part "note", if it exists, to the buffer, whose data is then not NULL, even if the text is empty. Errors:
 * ANE_NOMEM. */
ane_status ane_saved_note(const struct ane_saved *s, struct ane_buffer *note, struct ane_error *err);

#endif
