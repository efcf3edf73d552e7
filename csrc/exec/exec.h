/* The CPU executor: a graph is planned once into a program (steps, packed weights, one activation arena), sessions hold
 * the state of one sequence each, and a run feeds tokens to sessions. A run of one session allocates nothing but, once, the rows
 * of logits that a caller asks to keep. */
#ifndef ANE_EXEC_EXEC_H
#define ANE_EXEC_EXEC_H

#include "base/status.h"
#include "graph/graph.h"
#include "kernels/kernels.h"
#include "platform/platform.h"
#include "quant/quant.h"
#include "quant/weight_schemes.h"

#include <stdatomic.h>

struct ane_program;
struct ane_session;

/* ---- Program -------------------------------------------------------------------------------------------------------*/

/* How matrices are held. FILE: as stored. DTYPE: re-encoded to a type (where a row is not whole blocks the tensor stays as
 * stored). FORM: as a package of that form holds them (quant/weight_schemes.h), but FP16, which is DTYPE. */
typedef enum { ANE_WEIGHTS_FILE, ANE_WEIGHTS_DTYPE, ANE_WEIGHTS_SCHEME } ane_weights_kind;
struct ane_weights_how {
  ane_weights_kind kind;
  ane_dtype dtype; /* DTYPE: one with an encoder */
  struct ane_weight_spec scheme;
};
/* The matrices whose names a pattern fits (base/glob.h). */
struct ane_weights_rule {
  const char *pattern;
  bool ordered; /* false: where it differs from a rule before it that fits too, that is an error */
  struct ane_weights_how how;
};

/* How the best id alone is found, with the same result: by the whole product, or by a search in a head of 8 bits, which reads
 * less and computes more. AUTO searches in heads of 48 MB or more (measured: bench/RESULTS.md). */
typedef enum { ANE_HEAD_AUTO, ANE_HEAD_PRUNED, ANE_HEAD_FULL } ane_head_how;

struct ane_program_options {
  ane_isa isa; /* an available level */
  int threads; /* 1 .. 1024 */
  bool int8;   /* activations meet quantised weights as 8-bit blocks; else everything is fp32 */
  ane_head_how head;
  struct ane_weights_how weights;
  const struct ane_weights_rule *rules; /* other ways for some matrices, the last that fits counts; used by create only */
  int32_t n_rules;
  int64_t context; /* the most positions a session can hold, >= 1 */
  int64_t chunk;   /* the most tokens of one run, 1 .. 4096 */
  /* Called on the caller's thread while weights are packed, bytes of the source. May be NULL. */
  void (*progress)(void *arg, uint64_t done, uint64_t total);
  /* Called when the stored bytes of a weight, or of some of its rows, have been copied for good: the caller may drop them
   * from memory (they must stay readable). May be NULL. */
  void (*release)(void *arg, const void *data, uint64_t bytes);
  /* A weight for each of `cols` columns of a matrix that takes a FORM (ane_weight_fit), or NULL. May be NULL. */
  const float *(*importance)(void *arg, const char *name, int64_t cols);
  void *arg;
};

/* Plans a graph that went through the "cpu" pipeline. Constants are borrowed: their memory must outlive the program. The
 * graph itself may be destroyed afterwards. Errors: ANE_UNSUPPORTED (an op or type without a step, named), ANE_NOMEM,
 * ANE_INVALID (a weight that its form cannot hold, a rule that fits no matrix). */
ane_status ane_program_create(struct ane_program **out, const struct ane_graph *g, const struct ane_program_options *o,
                              struct ane_error *err);
void ane_program_destroy(struct ane_program *p); /* NULL is fine; its sessions must be gone */

struct ane_matrix_info {
  const char *name;
  const char *input; /* name of the value whose columns it meets, as a tap sees it; NULL: it has none (fused steps) */
  const char *layout, *activations; /* packed form; activations it meets: "fp32", "int8", "bf16" */
  ane_dtype stored, dtype;          /* as stored; as held (of a FORM: as stored) */
  const char *weights;              /* name of the FORM that it has taken, or NULL */
  int64_t rows, cols;
  uint64_t bytes;
  bool recoded; /* it was re-encoded, and this is what that left */
  struct ane_recode_error error;
};
struct ane_program_info {
  ane_isa isa;
  int threads;
  int64_t context, chunk;
  int64_t n_ids, vocab; /* ids that can be fed: 0 .. n_ids - 1; logits of a position */
  bool int8;
  uint64_t weight_bytes, scratch_bytes; /* packed weights; activations and per-thread memory */
  uint64_t kv_bytes_per_token;          /* at fp16 */
  int64_t switch_at;                    /* sequences longer than this have other rope factors; 0: none has */
  int32_t n_matrices, n_steps;
};
struct ane_program_info ane_program_info(const struct ane_program *p);
/* i in 0 .. n_matrices - 1. */
struct ane_matrix_info ane_program_matrix(const struct ane_program *p, int32_t i);
/* One line a step: kind, name, and where each of its results lies in the arena; false where there is no memory. */
bool ane_program_print(const struct ane_program *p, struct ane_buffer *out);

/* ---- Profile -------------------------------------------------------------------------------------------------------*/

/* What one step took, summed over all runs since the profile was switched on. bytes: weights and cached state that it must
 * read, each counted once a run; ops: multiplications and additions of its products. What moves activations only counts
 * neither. */
struct ane_step_profile {
  const char *name, *op;
  int64_t runs;
  double seconds, bytes, ops;
};
/* Begins (all sums at zero) or ends profiling; no run may go on. While off it costs nothing. Errors: ANE_NOMEM. */
ane_status ane_program_profile(struct ane_program *p, bool on, struct ane_error *err);
/* Row i, 0 .. n_steps: one a step, in the order in which they run; the last is the search for the best ids. False behind
 * it, and where no profile is on. */
bool ane_program_profiled(const struct ane_program *p, int32_t i, struct ane_step_profile *out);
/* Name of the n-th weight (from 0) that step i multiplies by; NULL behind the last, and for steps without. Of experts none. */
const char *ane_program_step_weight(const struct ane_program *p, int32_t i, int n);

/* How the best ids of single tokens were found since the program began: searches, and the bytes of the head that they read;
 * the bytes of the whole head (0: this head is never searched). */
struct ane_head_stats {
  uint64_t pruned, read, whole;
};
struct ane_head_stats ane_program_head(const struct ane_program *p);

/* Fills all activation memory with NaN (specs: no step reads what no step of the same run wrote). No run may go on. */
void ane_program_poison(struct ane_program *p);

/* ---- Session -------------------------------------------------------------------------------------------------------*/

/* kv: ANE_F16, ANE_F32 or ANE_I8; context <= the program's. Address space for the whole context is reserved now, memory
 * is committed as positions are written. */
ane_status ane_session_create(struct ane_session **out, struct ane_program *p, int64_t context, ane_dtype kv,
                              struct ane_error *err);
void ane_session_destroy(struct ane_session *s); /* NULL is fine */

int64_t ane_session_length(const struct ane_session *s);
int64_t ane_session_context(const struct ane_session *s);
/* The tokens fed so far, length of them; valid until the next feed. */
const int32_t *ane_session_ids(const struct ane_session *s);
/* Tokens fed again since the session began because the rope's factors changed. */
int64_t ane_session_replayed(const struct ane_session *s);
/* Bytes of KV state that positions up to length occupy. */
uint64_t ane_session_kv_bytes(const struct ane_session *s);
/* Forgets all positions from `length` on: 0 <= length <= the present one. Logits of the last run are gone. */
ane_status ane_session_rewind(struct ane_session *s, int64_t length, struct ane_error *err);
/* Forgets all; what is fed next is the part of a longer sequence that stands behind `origin` tokens, 0 <= origin < 2^24. For
 * models that see tokens on both sides. Where origin is a multiple of ANE_TILE, positions whose whole reach was fed get the bits
 * of a run of the whole sequence. Rewinding to 0 ends it. */
ane_status ane_session_part(struct ane_session *s, int64_t origin, struct ane_error *err);
/* A second session with the same past. */
ane_status ane_session_fork(struct ane_session **out, const struct ane_session *s, struct ane_error *err);
/* Writes tokens and state to a file (whole or not at all), and back. Restoring asks for the same program (graph, weights,
 * kv type, ISA level): ANE_STATE says what differs. A failed restore leaves the session as it was. */
ane_status ane_session_save(const struct ane_session *s, const char *path, struct ane_error *err);
ane_status ane_session_restore(struct ane_session *s, const char *path, struct ane_error *err);
/* The flag that ends runs with ANE_STOPPED before they start; cleared by the run that it ended. May be set from a signal
 * handler or another thread. */
void ane_session_stop(struct ane_session *s);

/* ---- Run -----------------------------------------------------------------------------------------------------------*/

typedef enum {
  ANE_WANT_NONE,
  ANE_WANT_LAST,   /* logits of the last token */
  ANE_WANT_ALL,    /* logits of every token */
  ANE_WANT_ARGMAX, /* best id and its logit for every token; no logits are kept */
} ane_want;

struct ane_run_item {
  struct ane_session *session; /* each at most once in a run */
  const int32_t *ids;          /* 0 .. vocab - 1 */
  int64_t n;                   /* >= 1; the sum over items <= the program's chunk */
  int64_t until;               /* length of the session when all that belongs to this feed is in; 0: when this run is done */
  ane_want want;
};

/* Rope that depends on the length (longrope): the factors of a run are those of the length `until`. Where a session's
 * state was made with the others, its tokens are fed again first; stopped then, the session is left shorter, and right. */

/* Feeds tokens to sessions of one program. Either all sessions advance or none does (ids out of range, context exceeded:
 * ANE_RANGE; stop flag: ANE_STOPPED). Results do not depend on how tokens are spread over runs, items or threads. One
 * run at a time per program. */
ane_status ane_run(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, struct ane_error *err);

/* The same, and `tap` is called with the result of every step that has a name, on the caller's thread, while the others
 * wait: cols columns of `channels` floats, dense, valid during the call. For out_rows positions (the head) it is called
 * block by block, first_col the first of the block. Fused steps hide what stood between their parts: plan a graph of the
 * pipeline "cpu-plain" to see every value. */
typedef void (*ane_tap_fn)(void *arg, const char *name, const float *data, int64_t first_col, int64_t cols, int64_t channels);
ane_status ane_run_tapped(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, ane_tap_fn tap, void *arg,
                          struct ane_error *err);
/* Names of the values that a tap sees; i from 0, NULL behind the last. *channels may be NULL. */
const char *ane_program_value(const struct ane_program *p, int32_t i, int64_t *channels);

/* Results of the session's last run: rows out_rows (0 after a rewind, restore or ANE_WANT_NONE). */
int64_t ane_session_rows(const struct ane_session *s);
/* Logits of a row, vocab floats; NULL where there are none (ANE_WANT_ARGMAX, or row out of range). Valid until the
 * session's next run, rewind or end. */
const float *ane_session_logits(const struct ane_session *s, int64_t row);
/* Best id (lowest where equal) of a row and its logit; -1 where there is no such row. */
int32_t ane_session_argmax(const struct ane_session *s, int64_t row, float *logit);

#endif
