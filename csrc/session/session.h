/* What the sessions of all engines share: what a feed is asked for, and the file of a saved session. */
#ifndef ANE_SESSION_SESSION_H
#define ANE_SESSION_SESSION_H

#include "base/bytes.h"
#include "base/status.h"
#include "platform/platform.h"

/* ---- Feeds ---------------------------------------------------------------------------------------------------------*/

/* The rows that a feed leaves. */
typedef enum {
  ANE_WANT_NONE,
  ANE_WANT_LAST,   /* logits of the last token */
  ANE_WANT_ALL,    /* logits of every token */
  ANE_WANT_ARGMAX, /* best id and its logit for every token; no logits are kept */
} ane_want;

/* Output rows of a feed of n tokens. */
static inline int64_t ane_want_rows(ane_want want, int64_t n) {
  return want == ANE_WANT_NONE ? 0 : want == ANE_WANT_LAST ? 1 : n;
}

/* The one check of ids by their values; what is below an engine relies on it. Are all in 0 .. n_ids - 1? first: position of
 * ids[0], for the message. Errors: ANE_RANGE. */
ane_status ane_ids_check(const int32_t *ids, int64_t n, int64_t n_ids, int64_t first, struct ane_error *err);

/* ---- Saved sessions ------------------------------------------------------------------------------------------------*/

/* The version of the arithmetic. A change that alters one bit of any engine's states or logits raises it: a state of the old
 * bits does not go on as a state of the new ones. */
enum { ANE_ARITHMETIC = 1 };

/* Whose state a file holds. */
struct ane_saved_key {
  const char *engine; /* "recipe", "graph", "packages": at most 15 bytes */
  uint64_t model;     /* fingerprint of all that the state depends on: graph, weights, types, kernels */
};

/* A file is, in little endian, "ANESTATE", u32 version, u32 ANE_ARITHMETIC, u64 model, char engine[16] (filled with NUL); then
 * chunks, each u32 bytes of the name, u64 bytes of the data, the name, the data. The last chunk is named "end"; its data is the
 * CRC-32 (zlib) of all bytes before the data, as u32. */

/* Writes a file that appears whole or not at all. After a failure the later calls do nothing and give the same status. */
struct ane_saved_writer {
  struct ane_file_writer file;
  uint32_t crc;
  ane_status status;
  struct ane_error *err; /* may be NULL */
};
ane_status ane_saved_create(struct ane_saved_writer *w, const char *path, const struct ane_saved_key *key, struct ane_error *err);
/* Begins a chunk of `bytes` bytes, which ane_saved_write gives in one or several parts. A name occurs once. */
ane_status ane_saved_chunk(struct ane_saved_writer *w, const char *name, uint64_t bytes);
ane_status ane_saved_write(struct ane_saved_writer *w, const void *data, size_t n);
/* Ends the file and puts it in place; after a failure, of this call or before, nothing is left of it. Always the last call. */
ane_status ane_saved_commit(struct ane_saved_writer *w);

/* A file that has been checked. */
struct ane_saved {
  struct ane_map map;
  const char *path;         /* borrowed */
  struct ane_reader chunks; /* all but the last */
};
/* Errors: ANE_IO; ANE_FORMAT (no saved session, or a damaged one); ANE_STATE (another version of the format or of the arithmetic,
 * another engine, another model). *out is then empty. */
ane_status ane_saved_open(struct ane_saved *out, const char *path, const struct ane_saved_key *key, struct ane_error *err);
void ane_saved_close(struct ane_saved *s);
/* The chunk that begins at *at (0: the first), and moves *at behind it; false behind the last. name is not NUL-terminated. */
struct ane_saved_part {
  const char *name;
  const uint8_t *data;
  size_t name_bytes;
  uint64_t bytes;
};
bool ane_saved_next(const struct ane_saved *s, size_t *at, struct ane_saved_part *out);
/* The data of a chunk; NULL where there is none. */
const uint8_t *ane_saved_find(const struct ane_saved *s, const char *name, uint64_t *bytes);
/* The data of a chunk of just so many bytes. Errors: ANE_FORMAT, which names file and chunk. */
ane_status ane_saved_need(const struct ane_saved *s, const char *name, uint64_t bytes, const uint8_t **data,
                          struct ane_error *err);

/* The tokens of the part "ids", i32 each: ids that are not in 0 .. n_ids - 1 are ANE_FORMAT, more than `context` are ANE_RANGE.
 */
ane_status ane_saved_ids(const struct ane_saved *s, int64_t n_ids, int64_t context, const uint8_t **ids, int64_t *length,
                         struct ane_error *err);

/* A text of the caller that a file keeps beside the session; text NULL: none. */
struct ane_session_note {
  const char *text;
  size_t bytes;
};
/* Appends the part "note" where there is one: then the buffer has data, also where the text is empty. */
ane_status ane_saved_note(const struct ane_saved *s, struct ane_buffer *note, struct ane_error *err);

#endif
