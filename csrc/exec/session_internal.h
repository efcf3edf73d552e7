/* A session's memory: ids, KV states, rings and the rows of its last run. */
#ifndef ANE_EXEC_SESSION_INTERNAL_H
#define ANE_EXEC_SESSION_INTERNAL_H

#include "exec/program_internal.h"

/* Keys and values of one layer. Owns `memory`; `kv` points into it. */
struct kv_state {
  struct ane_kv kv;
  void *memory;
  size_t bytes;
};

struct ane_session {
  struct ane_program *program; /* borrowed: it outlives the session */
  int64_t context, length;
  int64_t origin; /* tokens of the sequence before position 0 of the state; rope counts them */
  ane_dtype kv_dtype;
  int32_t *ids;        /* [context] */
  struct kv_state *kv; /* [n_kv] */
  float *rings;        /* all rings, one after another: [ring_length][channels] each */
  int64_t ring_low;    /* lowest position that the rings still hold */
  /* Results of the last run */
  int64_t rows, room_rows;
  ane_want want;
  float *logits; /* [room_rows][vocab] */
  int32_t *best; /* [chunk] */
  float *best_logit;
  bool long_rope;   /* the state was computed with the long rope factors */
  int64_t replayed; /* tokens fed again */
  _Atomic bool stop;
};

/* Calls fn for each range of bytes of the state that `length` positions use: first the rings (layer STATE_RINGS), then for each
 * layer and head the first tiles of K, of V, and of their scales. `offset` counts from state_bytes of the layer. Ends at the
 * first false and returns it. */
enum { STATE_RINGS = -1 };
uint8_t *state_bytes(const struct ane_session *s, int layer);
bool state_each_used(const struct ane_session *s, bool (*fn)(void *arg, int layer, size_t offset, size_t bytes), void *arg);

/* Channels of position `pos` in a ring, which holds the last ring_length positions. */
float *ring_at(const struct ane_session *s, int ring, int64_t pos);

/* run.c: feeds the first `length` of the session's own ids again, from an empty state. After ANE_STOPPED the session is shorter
 * and consistent. */
ane_status run_replay(struct ane_session *s, int64_t length, struct ane_error *err);
/* run.c: makes room for rows of logits. Those that are there stay. */
ane_status session_room(struct ane_session *s, int64_t rows, struct ane_error *err);

#endif
