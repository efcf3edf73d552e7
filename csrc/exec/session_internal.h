/* A session's memory: ids, KV states, rings and the rows of its last run. */
#ifndef ANE_EXEC_SESSION_INTERNAL_H
#define ANE_EXEC_SESSION_INTERNAL_H

#include "exec/adapter.h"
#include "exec/program_internal.h"

enum { RECURRENT_COPIES = 2 };

struct ane_session {
  struct ane_program *program; /* borrowed: it outlives the session */
  int64_t context, length;
  int64_t origin; /* tokens of the sequence before position 0 of the state; rope positions include them */
  ane_dtype kv_dtype;
  int32_t *ids;               /* [context] */
  struct ane_kv_store *store; /* of the pages; the session is one of its owners */
  struct ane_kv_page **pages; /* [pages of the context]: the first n_pages exist; some are shared with other sessions */
  uint8_t **data;             /* their memory */
  int64_t n_pages;
  struct ane_kv *kv; /* [n_kv]: where each layer lies in a page; all point to `data` */
  float *rings;      /* all rings, one after another: [ring_length][channels] each */
  int64_t ring_low;  /* lowest position that the rings still hold */
  float
      *recurrent; /* the recurrent states, then RECURRENT_COPIES earlier ones (session_recurrent.c); NULL: the program has none */
  int64_t recurrent_at[RECURRENT_COPIES]; /* number of tokens that each copy covers; -1: no copy */
  size_t border;                          /* offset of the border rows in a page */
  /* Results of the last run */
  int64_t rows, room_rows;
  ane_want want;
  float *logits; /* [room_rows][vocab] */
  int32_t *best; /* [chunk] */
  float *best_logit;
  struct session_adapters adapters;
  bool long_rope;   /* the state was computed with the long rope factors */
  int64_t replayed; /* tokens fed again */
  _Atomic bool stop;
};

/* Makes the session the only owner of the pages of positions [from, from + n) and allocates missing ones. The contents of the
 * first `length` positions are kept. After ANE_NOMEM the state is unchanged. */
ane_status state_own(struct ane_session *s, int64_t from, int64_t n, struct ane_error *err);

/* Releases the pages from number `from` on. */
void state_release(struct ane_session *s, int64_t from);
/* The number of pages for this many positions. */
static inline int64_t pages_of(int64_t positions) { return (positions + ANE_TILE - 1) / ANE_TILE; }

/* Calls fn for each range of bytes of the state that the session's positions use: first the rings and the recurrent states; then
 * for each layer and head the tiles of K and of V, the key to which others are relative, and the tiles of their scales, in
 * ascending order. Stops when fn returns false, and returns that. data is NULL for pages that do not exist: a caller that only
 * counts bytes needs none. */
bool state_each_used(const struct ane_session *s, bool (*fn)(void *arg, uint8_t *data, size_t bytes), void *arg);

/* Channels of position `pos` in a ring, which holds the last ring_length positions. */
float *ring_at(const struct ane_session *s, int ring, int64_t pos);
/* Channels of position `pos` in the border rows of its page, which hold the last positions of the page, as many as the next token
 * looks back to. With them a sequence can continue after any whole page. NULL: the border rows do not hold `pos`. */
float *border_at(const struct ane_session *s, int ring, int64_t pos);
/* The number of border rows per page; 0: the program has no rings, or they look back further than a page. */
int64_t border_rows(const struct ane_program *p);
/* For positions [from, to) that border rows hold: copies them from the rings, which must hold them too, to the border rows, or
 * with to_rings from the border rows to the rings. */
void state_copy_borders(const struct ane_session *s, int64_t from, int64_t to, bool to_rings);

/* run.c: feeds the session's own ids [from, length) again, from a state that covers the first `from` of them. After ANE_STOPPED
 * the session is shorter but consistent. */
ane_status run_replay(struct ane_session *s, int64_t from, int64_t length, struct ane_error *err);
/* run.c: makes room for rows of logits. Existing rows are kept. */
ane_status session_room(struct ane_session *s, int64_t rows, struct ane_error *err);

#endif
