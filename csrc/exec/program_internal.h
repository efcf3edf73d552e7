/* The planned program: steps, packed weights, and all memory that a run uses. Planning fills it (planner.h); a run changes only
 * the scratch memory and the counters. */
#ifndef ANE_EXEC_PROGRAM_INTERNAL_H
#define ANE_EXEC_PROGRAM_INTERNAL_H

#include "exec/pruned_head.h"
#include "exec/step.h"
#include "kv/kv.h"

#include <stdatomic.h>

enum { RING_KEEP = 64 };      /* positions a ring keeps beyond those that steps look back to: a rewind of up to 64 is free */
enum { OUT_ROWS_BLOCK = 64 }; /* output rows that one pass through the program's tail takes */
enum { MAX_CHUNK = 32768 };   /* tokens of a run */

/* Shape of the KV state of one layer. */
struct kv_spec {
  int64_t heads, head_dim;
  bool relative; /* int16 keys are stored relative to the first (struct ane_kv) */
};

/* The tokens of an item whose session carries adapters: [from, to) of the run, and its output rows. */
struct adapted {
  const struct session_adapters *adapters;
  int64_t from, to, row_from, row_to;
};

/* The tokens of the current run, in the order of its items. Each list has room for a chunk. */
struct token_lists {
  int32_t *ids;
  int32_t *types;
  int32_t *positions; /* in the session's state */
  int32_t *angles;    /* in the sequence: what rope rotates by */
  bool *long_rope;    /* the token's sequence uses the long rope factors */
  int32_t *out_rows;  /* tokens that are output rows, ascending */
  int32_t *best;      /* per output row: the best id and its logit */
  float *best_logit;
  const uint32_t **masks;  /* per output row: the ids among which the best one is searched (ane_run_item); NULL: all */
  struct adapted *adapted; /* items whose sessions carry adapters */
};

/* Memory for adapters during a run. It grows when a session takes adapters, never during a run. */
struct adapter_scratch {
  int64_t ranks; /* maximum floats of A x per token: the largest sum of the ranks of a session's adapters in one step */
  int64_t rows;  /* maximum rows of a step that an adapter changes */
  float *memory; /* shared: [chunk][ranks]; then for each thread: [ranks], ADAPTER_TEMP, and [rows] for its adapter_share */
};

/* A stage as planned (stage.c). A whole program has all steps and exchanges nothing. */
struct program_stage {
  bool first, last; /* it holds the start of the body; it makes the result */
  bool rows;        /* sends values of output rows, which stage_pack_rows collects */
  bool fp16;
  struct ane_stage_link link;
  const struct slot **in, **out; /* the values that are received and sent */
  int32_t n_in, n_out;
  float *message; /* [chunk * floats of a token, sent or received]; NULL: nothing is exchanged */
};

struct ane_program {
  struct ane_program_options o;
  struct program_stage stage;
  struct ane_tensor_parallel team; /* a copy of o.tensor; ranks 0: the matrices are whole */
  float *exchange;                 /* one message: the floats per token of the largest step, times chunk; NULL: ranks is 0 */
  float *common;                   /* the buffer in shared memory, for outputs that all ranks write in place; NULL: none */
  uint64_t messages;               /* the number that this rank has posted to shared memory, as has every other rank */
  int64_t exchanged;               /* floats per token that this rank sends to each other one in the body */
  const struct step *divided_head; /* the last step, if its rows are divided and are the logits; else NULL */
  const struct ane_kernels *k;
  float *common_rows; /* logits of the rows of a run of several sessions, which get copies; NULL: none yet */
  size_t common_rows_bytes;
  struct ane_pool *pool;
  struct ane_arena arena; /* all that is not allocated apart: steps, slots, names, vectors */
  struct step *steps;
  int32_t n_steps, n_body; /* steps [n_body, n_steps) are the tail, which works on output rows */
  struct slot *slots;      /* by value of the graph */
  int32_t n_slots;
  const struct slot *result;
  int64_t vocab, n_ids;         /* logits per row; rows of the embedding: valid ids are 0 .. n_ids - 1 */
  int64_t n_types, n_positions; /* rows of the tables of token types and positions; 0: the model has none */
  struct matrix *matrices;
  int32_t n_matrices;
  uint8_t *slab; /* packed groups of all matrices */
  size_t slab_bytes;
  float *aux; /* row scales and lookup tables of matrices */
  struct kv_spec *kv;
  int32_t n_kv;
  int64_t *ring_channels; /* channels of each ring */
  int32_t n_rings;
  int64_t ring_length, ring_taps; /* positions per ring; the most that a step looks back, its own included */
  struct ane_kv_store
      *stores[ANE_DTYPE_COUNT];         /* default page stores by kv type, for sessions that are given none; NULL: none yet */
  int64_t *recurrent, recurrent_floats; /* offset of each recurrent state among the floats of all; their total */
  int32_t n_recurrent;
  bool bidirectional;      /* some token sees later ones: a run takes a whole sequence */
  int64_t long_rope_after; /* sequences longer than this use the long rope factors; 0: there are none */
  uint64_t fingerprint;    /* of graph, weights and arithmetic: decides whether a saved state fits */
  /* The scratch memory: one block, and its parts */
  uint8_t *scratch;
  size_t scratch_bytes, activation_bytes;
  uint8_t *activations[ANE_ACTIVATION_COUNT]; /* shared: prepared activations of a chunk */
  float *normed;                              /* shared: normed input of a chunk */
  uint8_t *thread_mem;                        /* [threads][thread_bytes] */
  size_t thread_bytes, thread_activations[ANE_ACTIVATION_COUNT], thread_normed, thread_temp, thread_kernel; /* offsets in it */
  int64_t temp_rows;   /* matrix rows of an epilogue's temporary, for each of 2 matrices */
  uint8_t *shared;     /* shared scratch of the current step */
  float *parts;        /* partial attention of one token over all tiles */
  float *result_block; /* [OUT_ROWS_BLOCK][vocab], committed on use */
  size_t result_block_bytes;
  _Atomic int64_t *counters; /* [n_steps][2]: next task, for tasks that no thread owns */
  _Atomic int64_t *claimed;  /* [threads][claimed_stride]: two per step, how many of a thread's own tasks have been claimed */
  int64_t claimed_stride;
  struct prefetch *prefetch; /* [threads] */
  struct token_lists token_lists;
  struct pruned_head pruned_head;
  struct adapter_scratch adapter_scratch;
  struct ane_step_profile *profile; /* [n_steps + 1]; NULL: off */
};

/* profile.c: adds one run, from `start` to `now`, to row i. */
void profile_step(struct ane_program *p, int32_t i, double start, double now);
/* Adds the cost of the product of a matrix and t tokens. */
void profile_matrix(const struct ane_packed *w, int64_t t, struct ane_step_profile *p);

#endif
