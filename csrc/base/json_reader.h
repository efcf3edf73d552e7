/* Streaming reader of JSON (RFC 8259). It builds no tree: the caller walks the text and keeps what it needs. It serves large
 * documents and exact numbers; formats/json.c says which documents jansson reads, and why. For a tokenizer.json of 10 MB
 * jansson takes 0.37 s, this reader a tenth of that.
 *
 * A function returns false at a fault: `why` is the message, `p` the place. The reader is of no use afterwards. */
#ifndef ANE_BASE_JSON_READER_H
#define ANE_BASE_JSON_READER_H

#include "base/bytes.h"

enum { ANE_JSON_DEPTH = 512 };

struct ane_json {
  const char *text, *p, *end; /* *end must be NUL */
  const char *why;            /* NULL: no fault yet */
  bool no_memory;             /* the fault is none of the text */
  int depth;                  /* of open arrays and objects */
  struct ane_buffer *scratch; /* the caller's: holds strings that had escapes */
};

/* Starts on text[0..len), which a NUL follows; skips a byte order mark. */
void ane_json_start(struct ane_json *j, const char *text, size_t len, struct ane_buffer *scratch);
/* The first character of the next value, blanks skipped: one of { [ " n t f or, of a number, - or a digit; else a fault
 * and NUL. */
char ane_json_peek(struct ane_json *j);
/* A string; the bytes stay until the next string is read. They are well-formed UTF-8 and may hold NUL. */
bool ane_json_string(struct ane_json *j, const char **s, size_t *len);
/* A number: an integer where it is written as one and fits into 64 bits, else a double; "-0" is a double. */
bool ane_json_number(struct ane_json *j, bool *integer, int64_t *i, double *d);
/* null, true or false. */
bool ane_json_word(struct ane_json *j, const char *word);

/* Into an array ('[') or object ('{') that is next. */
bool ane_json_enter(struct ane_json *j, char bracket);
/* Whether one more element or member comes: `first` is whether none has come yet. At the end of the array or object it
 * is closed, *more is false. */
bool ane_json_next(struct ane_json *j, char bracket, bool first, bool *more);
/* The name of a member and the colon behind it. */
bool ane_json_name(struct ane_json *j, const char **s, size_t *len);
/* Moves past the next value, whatever it is. */
bool ane_json_skip(struct ane_json *j);
/* Whether only blanks are left. */
bool ane_json_finish(struct ane_json *j);

/* Sets the fault; always false. */
bool ane_json_fail(struct ane_json *j, const char *at, const char *why);
/* The place of the fault; columns count characters. */
void ane_json_place(const struct ane_json *j, int *line, int *column);

#endif
