/* Sessions of a language model, as their files share them. */
#ifndef ANE_INTERP_LM_H
#define ANE_INTERP_LM_H

#include "interp/interp_internal.h"

#include <stdatomic.h>

struct ane_lm_session {
  struct ane_lm *lm;
  struct ane_dyn_memory memory;
  struct ane_dyn *states; /* one for each of the model's; own their blocks, or are its first states */
  int32_t *ids;           /* [length], room for room_ids */
  int64_t length, room_ids, context;
  struct ane_dyn logits; /* of the last feed: [.., rows, vocab], or empty */
  int64_t rows;
  bool best_only; /* ARGMAX: rows are asked for their best id only */
  _Atomic bool stop;
};

void lm_drop_logits(struct ane_lm_session *s);
ane_status lm_reserve_ids(struct ane_lm_session *s, int64_t n, struct ane_error *err);

#endif
