/* The CPU executor. A graph is planned once into a program (steps, packed weights, one activation arena). A session holds the
 * state of one sequence. A run feeds tokens to sessions. A run of one session allocates nothing, except once the rows of logits
 * that the caller keeps. */
#ifndef ANE_EXEC_EXEC_H
#define ANE_EXEC_EXEC_H

#include "base/status.h"
#include "graph/graph.h"
#include "kernels/kernels.h"
#include "kv/kv.h"
#include "platform/platform.h"
#include "quant/quant.h"
#include "session/session.h"
#include "quant/weight_schemes.h"

#include <stdatomic.h>

struct ane_program;
struct ane_session;

/* ---- Program -------------------------------------------------------------------------------------------------------*/

/* How matrices are held. FILE: as stored. DTYPE: re-encoded to a dtype; a matrix whose rows are not whole blocks of it stays as
 * stored. SCHEME: re-encoded as packages of that scheme hold them (quant/weight_schemes.h); never FP16, which is a DTYPE. */
typedef enum { ANE_WEIGHTS_FILE, ANE_WEIGHTS_DTYPE, ANE_WEIGHTS_SCHEME } ane_weights_kind;
struct ane_weights_encoding {
  ane_weights_kind kind;
  ane_dtype dtype; /* DTYPE: one with an encoder */
  struct ane_weight_spec scheme;
};
/* The encoding of matrices whose names match a pattern (base/glob.h). */
struct ane_weights_rule {
  const char *pattern;
  bool ordered; /* false: it is an error where an earlier rule matches too and differs */
  struct ane_weights_encoding encoding;
};

/* How the best id of a single token is found. The result is the same. FULL: by the whole product. PRUNED: 8-bit heads skip rows
 * that cannot win, which reads less and computes more. AUTO prunes heads of 48 MB or more (measured: bench/RESULTS.md). */
typedef enum { ANE_HEAD_AUTO, ANE_HEAD_PRUNED, ANE_HEAD_FULL } ane_head_mode;

struct ane_program_options {
  ane_isa isa; /* an available level */
  int threads; /* 1 .. 1024 */
  bool int8;   /* products with quantised weights take int8 activations; else everything is fp32 */
  ane_head_mode head;
  struct ane_weights_encoding weights;
  const struct ane_weights_rule *rules; /* other encodings for some matrices: the last match counts; read by create only */
  int32_t n_rules;
  int64_t context; /* the most positions a session can hold, >= 1 */
  int64_t chunk;   /* the most tokens of one run, 1 .. 4096 */
  /* Called on the caller's thread while weights are packed. done, total: bytes of the source. May be NULL. */
  void (*progress)(void *arg, uint64_t done, uint64_t total);
  /* Called when the stored bytes of a weight, or of some of its rows, have been packed: the caller may drop them from memory;
   * they must stay readable. May be NULL. */
  void (*release)(void *arg, const void *data, uint64_t bytes);
  /* The importance of each of `cols` input features of a matrix that takes a SCHEME (ane_weight_fit), or NULL. May be NULL. */
  const float *(*importance)(void *arg, const char *name, int64_t cols);
  void *arg;
};

/* Plans a graph that went through the "cpu" pipeline. Constants are borrowed: their memory must outlive the program. The
 * graph itself may be destroyed afterwards. Errors: ANE_UNSUPPORTED (an op or type without a step, named), ANE_NOMEM,
 * ANE_INVALID (a weight that its scheme cannot hold, a rule that matches no matrix). */
ane_status ane_program_create(struct ane_program **out, const struct ane_graph *g, const struct ane_program_options *o,
                              struct ane_error *err);
void ane_program_destroy(struct ane_program *p); /* NULL is fine; its sessions must be gone */

struct ane_matrix_info {
  const char *name;
  const char *input; /* name of the value that it is multiplied by, as a tap sees it; NULL: a fused step hides it */
  const char *layout, *activations; /* packed layout; activation type: "fp32", "int8", "bf16" */
  ane_dtype stored, dtype;          /* as stored; as held (SCHEME: as stored) */
  const char *weights;              /* name of its SCHEME, or NULL */
  int64_t rows, cols;
  uint64_t bytes;
  bool recoded; /* re-encoded; `error` is what that cost */
  struct ane_recode_error error;
};
struct ane_program_info {
  ane_isa isa;
  int threads;
  int64_t context, chunk;
  int64_t n_ids, vocab; /* valid ids: 0 .. n_ids - 1; logits per position */
  bool int8;
  uint64_t weight_bytes, scratch_bytes; /* packed weights; activations and per-thread memory */
  uint64_t kv_bytes_per_token;          /* at fp16 */
  int64_t long_rope_after;              /* sequences longer than this use the long rope factors; 0: there are none */
  int32_t n_matrices, n_steps;
};
struct ane_program_info ane_program_info(const struct ane_program *p);
/* i in 0 .. n_matrices - 1. */
struct ane_matrix_info ane_program_matrix(const struct ane_program *p, int32_t i);
/* One line per step: op, name, and the slot of each result. false: out of memory. */
bool ane_program_print(const struct ane_program *p, struct ane_buffer *out);

/* ---- Profile -------------------------------------------------------------------------------------------------------*/

/* What one step took, summed over all runs since profiling began. bytes: weights and cached state that it must read, counted
 * once per run. ops: multiplications and additions of its products. A step that only moves activations counts neither. */
struct ane_step_profile {
  const char *name, *op;
  int64_t runs;
  double seconds, bytes, ops;
};
/* Begins profiling with all sums at zero, or ends it. Not during a run. While off it costs nothing. Errors: ANE_NOMEM. */
ane_status ane_program_profile(struct ane_program *p, bool on, struct ane_error *err);
/* Row i, 0 .. n_steps: the steps in running order, then the choice of the best ids. false beyond the last, and while profiling
 * is off. */
bool ane_program_profiled(const struct ane_program *p, int32_t i, struct ane_step_profile *out);
/* Name of weight n (from 0) that step i multiplies by. NULL beyond the last, and for experts. */
const char *ane_program_step_weight(const struct ane_program *p, int32_t i, int n);

/* The pruned head since the program was created: tokens whose head was pruned, bytes that these read, and bytes of the whole
 * head (0: this head is never pruned). */
struct ane_head_stats {
  uint64_t pruned, read, whole;
};
struct ane_head_stats ane_program_head(const struct ane_program *p);

/* Fills all activation memory with NaN, for specs: a step must read only what the same run wrote. Not during a run. */
void ane_program_poison(struct ane_program *p);

/* ---- Session -------------------------------------------------------------------------------------------------------*/

/* The state of a session lies in pages of 64 positions, which it takes as it grows, and shares with its forks and with all that
 * began behind the same prefix. Who writes to a shared page gets a copy of its own. */

/* A store of pages for sessions of this program with kv ANE_F16, ANE_F32 or ANE_I8. The caller is its first owner. NULL: no
 * memory. */
struct ane_kv_store *ane_program_store(const struct ane_program *p, ane_dtype kv, struct ane_error *err);
/* kv: ANE_F16, ANE_F32 or ANE_I8. context: at most the program's. store: of ane_program_store with the same kv, which becomes the
 * session's as well; NULL: one that belongs to the program. */
ane_status ane_session_create(struct ane_session **out, struct ane_program *p, int64_t context, ane_dtype kv,
                              struct ane_kv_store *store, struct ane_error *err);
void ane_session_destroy(struct ane_session *s); /* NULL is fine */

int64_t ane_session_length(const struct ane_session *s);
int64_t ane_session_context(const struct ane_session *s);
/* The ids fed so far, as many as the length. Valid until the next feed. */
const int32_t *ane_session_ids(const struct ane_session *s);
/* Tokens fed again since the session began, because the rope factors changed or rings had to be computed again. */
int64_t ane_session_replayed(const struct ane_session *s);
/* Bytes of KV state that positions up to length occupy. */
uint64_t ane_session_kv_bytes(const struct ane_session *s);
/* Drops all positions from `length` on, 0 <= length <= the current one, and the rows of the last run. */
ane_status ane_session_rewind(struct ane_session *s, int64_t length, struct ane_error *err);
/* Drops all positions; what is fed next is a part of a longer sequence, after `origin` tokens of it, 0 <= origin < 2^24. Only for
 * bidirectional models. Where origin is a multiple of ANE_TILE, positions whose whole window was fed get the bits of a run of the
 * whole sequence. Rewinding to 0 ends it. */
ane_status ane_session_part(struct ane_session *s, int64_t origin, struct ane_error *err);
/* A second session with the same past, which copies only the rings. */
ane_status ane_session_fork(struct ane_session **out, const struct ane_session *s, struct ane_error *err);
/* Adds what the session holds to a tree of prefixes of the same store; all: the last page too where it is partly filled, else
 * whole pages only. Pages that cannot be gone on from are left out: none of a bidirectional program is kept. Errors: ANE_NOMEM.
 */
ane_status ane_session_keep(const struct ane_session *s, struct ane_kv_prefixes *t, bool all, struct ane_error *err);
/* Gives an empty session the longest known start of ids[0 .. n - 1), of a sequence that will have n ids; copies none of its
 * pages. Returns its length: 0 where nothing is known or the session is not empty. */
int64_t ane_session_begin(struct ane_session *s, struct ane_kv_prefixes *t, const int32_t *ids, int64_t n);
/* The length that ane_session_begin would give to a session with this key of its adapters (ane_session_adapters_key). */
int64_t ane_program_known(const struct ane_program *p, const struct ane_kv_prefixes *t, uint64_t adapters, const int32_t *ids,
                          int64_t n);
/* Writes a tree of prefixes of pages of `store`, of kv type `kv`, to a file, whole or not at all, and adds what such a file holds
 * to a tree, the most recently used of it up to `most` bytes. As for sessions, only the same program reads it: ANE_STATE names
 * what differs, ANE_FORMAT what is damaged; the tree is then as it was. ANE_NOMEM: a part of them may have been added. */
ane_status ane_program_save_prefixes(const struct ane_program *p, struct ane_kv_prefixes *t, ane_dtype kv,
                                     const struct ane_kv_store *store, const char *path, struct ane_error *err);
ane_status ane_program_restore_prefixes(const struct ane_program *p, struct ane_kv_prefixes *t, ane_dtype kv,
                                        struct ane_kv_store *store, const char *path, uint64_t most, struct ane_error *err);
/* Writes ids, state, the logits of the last token where the last run kept them, and a note to a file, whole or not at all, and
 * reads them back. Restoring needs the same program (graph, weights, kv type, ISA level): ANE_STATE names what differs. A failed
 * restore leaves the session unchanged. note: as ane_saved_note fills it. */
ane_status ane_session_save(const struct ane_session *s, const char *path, const struct ane_session_note *note,
                            struct ane_error *err);
ane_status ane_session_restore(struct ane_session *s, const char *path, struct ane_buffer *note, struct ane_error *err);
/* Sets the flag that ends the next run with ANE_STOPPED before it starts. That run clears it. May be called from a signal handler
 * or another thread. */
void ane_session_stop(struct ane_session *s);

/* ---- Adapters (LoRA, Hu et al. 2021) ----------------------------------------------------------------------------------*/

/* Adds scale * B (A x) to the products of some matrices and to the rows of some embeddings, for the tokens of the sessions that
 * carry it. The weights of the program stay as they are, so one program serves any number of adapters at once. */
struct ane_adapter;

/* What an adapter adds to one weight. All is copied. */
struct ane_adapter_part {
  const char *weight; /* name of the matrix, as ane_matrix_info gives it; of the embedding's table */
  bool embedding;     /* a is [cols][rank], a row for each id; the ids' embeddings are changed, not the products */
  int64_t rank;       /* 0: the part has only a bias */
  float scale;        /* alpha / rank, or what else the file means by it */
  const float *a;     /* [rank][cols] */
  const float *b;     /* [rows][rank] */
  const float *bias;  /* [rows], added as it is; or NULL */
  int64_t rows, cols; /* as the file has them; checked */
};

/* hash: of the adapter's contents; it becomes part of the key of saved sessions. The program outlives the adapter. Errors:
 * ANE_NOTFOUND (no such weight), ANE_UNSUPPORTED (a weight that no plain product reads), ANE_SHAPE, ANE_INVALID (two parts for a
 * weight; an element that is not finite), ANE_NOMEM; all name the weight. */
ane_status ane_adapter_create(struct ane_adapter **out, struct ane_program *p, const struct ane_adapter_part *parts, int32_t n,
                              uint64_t hash, struct ane_error *err);
/* One more owner, and one less; the last one frees. NULL is fine. Sessions own the adapters that they carry. */
void ane_adapter_retain(struct ane_adapter *a);
void ane_adapter_release(struct ane_adapter *a);
uint64_t ane_adapter_bytes(const struct ane_adapter *a);

enum { ANE_SESSION_ADAPTERS = 16 }; /* that a session can carry */
/* Gives an empty session its adapters in place of those that it had: list[i] with the factor scales[i]. A factor of 0 leaves the
 * adapter out. A fork carries what its source carries. Errors: ANE_STATE (the session holds tokens), ANE_INVALID (an adapter of
 * another program, a factor that is not finite), ANE_RANGE (too many), ANE_NOMEM. */
ane_status ane_session_adapt(struct ane_session *s, struct ane_adapter *const *list, const float *scales, int32_t n,
                             struct ane_error *err);
/* Tells states under other adapters or scales apart; 0: the session carries none. */
uint64_t ane_session_adapters_key(const struct ane_session *s);

/* ---- Run -----------------------------------------------------------------------------------------------------------*/

struct ane_run_item {
  struct ane_session *session; /* each at most once in a run */
  const int32_t *ids;          /* 0 .. vocab - 1 */
  const int32_t *types;        /* token types, n of them; NULL: all 0. Models without token types do not read them */
  int64_t n;                   /* >= 1; the sum over items <= the program's chunk */
  int64_t until;               /* length of the session at the end of this feed, which may take several runs; 0: of this run */
  ane_want want;
};

/* Feeds tokens to sessions of one program. Either all sessions advance or none does (ids out of range, context exceeded:
 * ANE_RANGE; stop flag: ANE_STOPPED). Results do not depend on how tokens are divided among runs, items or threads. One run at a
 * time per program.
 *
 * Rope that depends on the length (longrope): a run uses the factors of the length `until`. Where a session's state was computed
 * with the others, its ids are fed again first. After ANE_STOPPED there, the session is shorter and consistent. */
ane_status ane_run(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, struct ane_error *err);

/* The same. Calls `tap` with the result of every step, on the caller's thread, while the others wait: [tokens][channels] floats,
 * dense, valid during the call. Values of output rows come block by block; `first` is the first row of the block, else 0. Fused
 * steps hide the values between their parts: a graph of the pipeline "cpu-plain" shows every value. */
typedef void (*ane_tap_fn)(void *arg, const char *name, const float *data, int64_t first, int64_t tokens, int64_t channels);
ane_status ane_run_tapped(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, ane_tap_fn tap, void *arg,
                          struct ane_error *err);
/* Names of the values that a tap sees; i from 0, NULL beyond the last. channels may be NULL. */
const char *ane_program_value(const struct ane_program *p, int32_t i, int64_t *channels);

/* Output rows of the session's last run; 0 after a rewind or ANE_WANT_NONE, 1 after a restore that brought logits. */
int64_t ane_session_rows(const struct ane_session *s);
/* How the rows of a run become one vector: the first or the last; the mean; the largest of each channel; the sum divided by the
 * root of the number of rows; the mean weighted by 1, 2, 3, ... from row 0 on. As sentence-transformers' Pooling. */
typedef enum {
  ANE_POOLING_CLS,
  ANE_POOLING_LAST,
  ANE_POOLING_MEAN,
  ANE_POOLING_MAX,
  ANE_POOLING_MEAN_SQRT,
  ANE_POOLING_WEIGHTED_MEAN
} ane_pooling;
/* The rows [from, rows) of the session's last run as one vector of vocab floats. false: there are no such
 * rows. */
bool ane_session_pooled(const struct ane_session *s, ane_pooling pooling, int64_t from, float *out);
/* Logits of a row, vocab floats; NULL where there are none (ANE_WANT_ARGMAX, row out of range). Valid until the session's next
 * run, rewind or end. */
const float *ane_session_logits(const struct ane_session *s, int64_t row);
/* Best id of a row and its logit; of equal logits the lowest id. -1: there is no such row. */
int32_t ane_session_argmax(const struct ane_session *s, int64_t row, float *logit);

#endif
