/* The CPU executor. A graph is planned once into a program (steps, packed weights, one activation arena). A session holds the
 * state of one sequence. A run feeds tokens to sessions. A run of one session allocates nothing, except once, for the rows of
 * logits that the caller keeps. */
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

/* ---- Stages of a pipeline --------------------------------------------------------------------------------------------*/

/* The steps of a graph that went through the "cpu" pipeline fall into a body, on all tokens, and a tail, on output rows. The body
 * steps are numbered from 0 in the graph's order. A pipeline cuts the body into ranges, one for each of several processes, which
 * all plan the same graph and then do the same calls on their sessions in the same order. A program that is a stage has the
 * weights and the state of its steps only. Its steps, kernels and layouts are those of the whole program, so its results have the
 * same bits.
 *
 * At the start of a run a stage receives the values that earlier stages made and that are still needed. At the end it sends those
 * that later stages need. Rope tables are not sent: each stage computes its own. */
struct ane_stage_link {
  /* receive: fills `data` with the message of the stage before, which has `bytes` bytes. send: sends a message to the stage
   * after. Both are called on the thread that calls ane_run. A failure fails the run; the sessions of the stages then differ. */
  ane_status (*receive)(void *arg, void *data, size_t bytes, struct ane_error *err);
  ane_status (*send)(void *arg, const void *data, size_t bytes, struct ane_error *err);
  void *arg;
};
/* The steps of the tail that the stage at the end of the body has.
 * ALL: the whole tail.
 *
 * NO_HEAD: the tail without the head (ane_graph_head). If a run has output rows, the stage sends the values of these rows that
 * the head takes, [rows][channels].
 *
 * HEAD: the head alone; from and to are the end of the body, chunk at most OUT_ROWS_BLOCK. A run feeds one id (any valid one)
 * for each output row and receives the values that NO_HEAD sends. Several such programs can divide the head
 * (ane_graph_slice_head). */
typedef enum { ANE_STAGE_TAIL_ALL, ANE_STAGE_TAIL_NO_HEAD, ANE_STAGE_TAIL_HEAD } ane_stage_tail;
struct ane_stage {
  int32_t from, to; /* body steps [from, to) */
  ane_stage_tail tail;
  bool fp16; /* values are sent as fp16, which halves the traffic and changes bits */
  struct ane_stage_link link;
};

/* ---- Tensor parallelism ------------------------------------------------------------------------------------------------*/

/* One of several programs of the same graph that divide the matrices of linear steps by rows, do the same calls on their sessions
 * in the same order, and exchange rows after each such step. The rows of the head, the last such step of the tail, go to rank 0
 * only: it alone has all logits. On another rank, the logits of rows that it does not hold are zero. If a run keeps no
 * logits, only the best ids go to rank 0; on another rank, they are the best of its own rows. Attention is divided by heads if
 * the ranks divide the key-value heads and the rows of q, k and v equally; then a rank caches the keys and values of its heads.
 * Each rank has all other weights and states. Matrices that are not stored by rows, or have fewer groups of 16 rows than there
 * are ranks, are not divided. All functions are called on the caller's thread. A failure fails the run, and the sessions of the
 * programs then differ. */
struct ane_tensor_parallel {
  int32_t rank, ranks; /* 0 .. ranks - 1 */
  /* send: sends a message to all other ranks; to_first: only to rank 0, and never called on rank 0. receive: fills `data` with
   * the next message of another rank, which has `bytes` bytes. */
  ane_status (*send)(void *arg, const void *data, size_t bytes, bool to_first, struct ane_error *err);
  ane_status (*receive)(void *arg, int32_t rank, void *data, size_t bytes, struct ane_error *err);
  void *arg;
  /* shared: memory that all programs share, 128-byte aligned; NULL: none. Its first 128 bytes per rank must be zero before the
   * first program is created. A message goes through it instead of send and receive if the rows of one token fit. begin: called
   * before the steps of each run. wait: called about every millisecond while a message of `rank` is awaited, for `seconds` so
   * far. An error of either ends the run. Both are needed with shared memory only. */
  void *shared;
  size_t shared_bytes;
  ane_status (*begin)(void *arg, struct ane_error *err);
  ane_status (*wait)(void *arg, int32_t rank, double seconds, struct ane_error *err);
};

/* The cost of a body step, by which a cut is chosen. After the body there is one row for the tail. Bytes: as stored; of constants
 * without data, of graphs that are only planned, as fp16. */
struct ane_step_cost {
  const char *name;  /* borrowed from the graph */
  uint64_t weights;  /* bytes of its weights, without tables of embeddings */
  uint64_t read;     /* the part of `weights` that one token reads: of a mixture, the chosen experts */
  uint64_t values;   /* the numbers that `read` holds: multiplications per token */
  uint64_t table;    /* bytes of its tables of embeddings */
  int64_t kv;        /* numbers of K and V that it caches per token */
  int64_t attention; /* multiplications of its attention per token and position that it sees */
  int64_t window;    /* positions that a token sees at most; 0: all before it */
  int64_t crossing;  /* floats per token that a cut before this step sends */
};
/* The rows of all body steps and of the tail, from ane_malloc; *n of them. Errors: ANE_NOMEM. */
ane_status ane_stage_costs(const struct ane_graph *g, struct ane_step_cost **out, int32_t *n, struct ane_error *err);
/* A hash of the graph's text and of a few bytes of each constant, by which processes compare their models. Errors: ANE_NOMEM. */
ane_status ane_stage_identity(const struct ane_graph *g, uint64_t *out, struct ane_error *err);

/* ---- Program -------------------------------------------------------------------------------------------------------*/

/* How matrices are held in memory. FILE: as stored. DTYPE: re-encoded to a dtype; where rows are not whole blocks of it, to its
 * nearest type (dtype.def), or as stored if that does not fit either. SCHEME: re-encoded as packages of that scheme hold them
 * (quant/weight_schemes.h); never FP16, which is a DTYPE. */
typedef enum { ANE_WEIGHTS_FILE, ANE_WEIGHTS_DTYPE, ANE_WEIGHTS_SCHEME } ane_weights_kind;
struct ane_weights_encoding {
  ane_weights_kind kind;
  ane_dtype dtype; /* DTYPE: a dtype that has an encoder */
  struct ane_weight_spec scheme;
};
/* The encoding of matrices whose names match a pattern (base/glob.h). */
struct ane_weights_rule {
  const char *pattern;
  bool ordered; /* false: it is an error if an earlier rule also matches and differs */
  struct ane_weights_encoding encoding;
};

/* How a run that keeps no logits finds the best ids of a few output rows. The result is the same. FULL: from the whole product.
 * PRUNED: 8-bit heads skip rows that cannot win, which reads less and computes more. AUTO prunes heads of 48 MB or more
 * (bench/results/prompts-and-decode.md). */
typedef enum { ANE_HEAD_AUTO, ANE_HEAD_PRUNED, ANE_HEAD_FULL } ane_head_mode;

struct ane_program_options {
  ane_isa isa; /* an available level */
  int threads; /* 1 .. 1024 */
  bool int8;   /* products with quantised weights take int8 activations; otherwise all activations are fp32 */
  ane_head_mode head;
  struct ane_weights_encoding weights;
  const struct ane_weights_rule *rules; /* other encodings for some matrices: the last match counts; read only during create */
  int32_t n_rules;                      /* a stage does not check that each rule matches some matrix */
  /* Returns another name of a matrix that patterns of rules may match, or NULL. The callback may be NULL. */
  const char *(*other_name)(void *arg, const char *name);
  const struct ane_stage *stage;            /* the program is this stage of a pipeline; copied. NULL: the whole */
  const struct ane_tensor_parallel *tensor; /* the matrices are divided by rows; copied. NULL: they are whole. Not with stage,
                                             * nor with other weights than FILE, whose scales depend on all rows */
  int64_t context;                          /* maximum positions of a session, >= 1 */
  int64_t chunk;                            /* maximum tokens of one run, 1 .. 32768 */
  /* Called on the caller's thread while weights are packed. done, total: bytes of the source weights. May be NULL. */
  void (*progress)(void *arg, uint64_t done, uint64_t total);
  /* Called when the stored bytes of a weight, or of some of its rows, have been packed. The caller may then drop them from
   * memory, but they must stay readable. May be NULL. */
  void (*release)(void *arg, const void *data, uint64_t bytes);
  /* Returns the importance of each of the `cols` columns of a matrix that is encoded by a SCHEME (ane_weight_fit), or NULL if it
   * is not known. The callback may be NULL. */
  const float *(*importance)(void *arg, const char *name, int64_t cols);
  void *arg;
};

/* Plans a graph that went through the "cpu" pipeline. Constants are borrowed: their memory must outlive the program. The graph
 * itself may be destroyed afterwards. Errors: ANE_UNSUPPORTED (an op or type without a step, named), ANE_NOMEM, ANE_INVALID (a
 * weight that its scheme cannot hold, a rule that matches no matrix). */
ane_status ane_program_create(struct ane_program **out, const struct ane_graph *g, const struct ane_program_options *o,
                              struct ane_error *err);
void ane_program_destroy(struct ane_program *p); /* NULL is fine; its sessions must be destroyed first */

struct ane_matrix_info {
  const char *name;
  const char *input; /* name of the value that it is multiplied by, as a tap sees it; NULL: hidden by a fused step */
  const char *layout, *activations; /* packed layout; activation type: "fp32", "int8", "bf16" */
  ane_dtype stored, dtype;          /* as stored; as held (SCHEME: as stored) */
  const char *weights;              /* name of its SCHEME, or NULL */
  const char *unfit;                /* name of the requested encoding, if its shape does not take that one; or NULL */
  int64_t rows, cols;
  uint64_t bytes;
  bool recoded; /* re-encoded; `error` is the resulting error */
  struct ane_recode_error error;
};
struct ane_program_info {
  ane_isa isa;
  int threads;
  int64_t context, chunk;
  int64_t n_ids, vocab; /* valid ids: 0 .. n_ids - 1; logits per position */
  bool int8;
  uint64_t weight_bytes, scratch_bytes; /* packed weights; activations and per-thread memory */
  uint64_t stored_bytes;                /* of the weights as stored: what creating the program has read */
  uint64_t kv_bytes_per_token;          /* at fp16 */
  uint64_t exchanged_bytes;             /* that a token sends to each other rank (ane_tensor_parallel); without the head */
  int64_t long_rope_after;              /* sequences longer than this use the long rope factors; 0: there are none */
  int32_t n_matrices, n_steps;
};
struct ane_program_info ane_program_info(const struct ane_program *p);
/* i in 0 .. n_matrices - 1. */
struct ane_matrix_info ane_program_matrix(const struct ane_program *p, int32_t i);
/* Appends one line per step: op, name, and the slot of each result. false: out of memory. */
bool ane_program_print(const struct ane_program *p, struct ane_buffer *out);

/* ---- Profile -------------------------------------------------------------------------------------------------------*/

/* The cost of one step, summed over all runs since profiling began. bytes: weights and cached state that it must read, counted
 * once per run. ops: multiplications and additions of its products. A step that only moves activations counts neither. */
struct ane_step_profile {
  const char *name, *op;
  int64_t runs;
  double seconds, bytes, ops;
};
/* Starts profiling with all sums at zero, or stops it. Not during a run. It costs nothing while off. Errors: ANE_NOMEM. */
ane_status ane_program_profile(struct ane_program *p, bool on, struct ane_error *err);
/* Row i, 0 .. n_steps: the steps in execution order, then the choice of the best ids. false past the last row, and while
 * profiling is off. */
bool ane_program_profiled(const struct ane_program *p, int32_t i, struct ane_step_profile *out);
/* The name of weight n (from 0) that step i multiplies by. NULL past the last, and for experts. */
const char *ane_program_step_weight(const struct ane_program *p, int32_t i, int n);

/* Statistics of the pruned head since the program was created: runs whose head was pruned, bytes that these read, and bytes of
 * the whole head (0: this head is never pruned). */
struct ane_head_stats {
  uint64_t pruned, read, whole;
};
struct ane_head_stats ane_program_head(const struct ane_program *p);

/* Calls fn(arg, i, thread) once for each i in [0, n), on the program's threads; thread is 0 .. threads - 1. For work on the
 * results of a run. Not during a run, nor from fn. */
void ane_program_each(struct ane_program *p, int64_t n, void (*fn)(void *arg, int64_t i, int thread), void *arg);

/* Fills all activation memory with NaN, for specs: a step must read only values that the same run wrote. Not during a run. */
void ane_program_poison(struct ane_program *p);

/* ---- Session -------------------------------------------------------------------------------------------------------*/

/* The state of a session lies in pages of 64 positions. A session allocates pages as it grows, and shares them with its forks and
 * with sessions that begin with the same prefix. A session that writes to a shared page gets a copy of its own. */

/* A store of pages for sessions of this program with the type `kv` (ane_session_create). The caller is its first owner. NULL: out
 * of memory. */
struct ane_kv_store *ane_program_store(const struct ane_program *p, ane_dtype kv, struct ane_error *err);
/* context: positions that the session can hold, 1 .. the program's context. kv: element type of the cached keys and values,
 * ANE_I16, ANE_F16, ANE_F32 or ANE_I8. store: from ane_program_store with the same kv; the session becomes an owner. store NULL:
 * a store that belongs to the program. Errors: ANE_RANGE (context), ANE_INVALID (kv), ANE_NOMEM. */
ane_status ane_session_create(struct ane_session **out, struct ane_program *p, int64_t context, ane_dtype kv,
                              struct ane_kv_store *store, struct ane_error *err);
void ane_session_destroy(struct ane_session *s); /* NULL is fine */

int64_t ane_session_length(const struct ane_session *s);
int64_t ane_session_context(const struct ane_session *s);
ane_dtype ane_session_kv(const struct ane_session *s); /* type of the cached keys and values */
/* All ids fed so far, as many as the length. Valid until the next feed. */
const int32_t *ane_session_ids(const struct ane_session *s);
/* The number of tokens fed again since the session began, because the rope factors changed or rings had to be recomputed. */
int64_t ane_session_replayed(const struct ane_session *s);
/* The bytes of KV state of all positions up to the length. */
uint64_t ane_session_kv_bytes(const struct ane_session *s);
/* Drops all positions from `length` on, 0 <= length <= the current one, and the rows of the last run. If rings or recurrent
 * states cannot step back so far, some ids are fed again (ane_session_replayed). Errors: ANE_RANGE (length); of feeding again,
 * those of ane_run: the session is then shorter but consistent. */
ane_status ane_session_rewind(struct ane_session *s, int64_t length, struct ane_error *err);
/* Drops all positions. The next feed is a part of a longer sequence and follows `origin` tokens of it, 0 <= origin < 2^24. Only
 * for bidirectional models. If origin is a multiple of ANE_TILE, positions whose whole window was fed get the same bits as in a
 * run of the whole sequence. Rewinding to 0 ends the part. Errors: ANE_UNSUPPORTED (a model that sees all of the past, or has
 * embeddings of positions), ANE_RANGE. */
ane_status ane_session_part(struct ane_session *s, int64_t origin, struct ane_error *err);
/* Makes a second session with the same past and adapters. It shares the pages and copies the ids, rings and recurrent states. It
 * has no rows of a run. Errors: ANE_NOMEM. */
ane_status ane_session_fork(struct ane_session **out, const struct ane_session *s, struct ane_error *err);
/* Adds the session's pages to a tree of prefixes of the same program and kv type. all: also the last page if it is partly filled;
 * otherwise whole pages only. Pages from which a sequence cannot continue are left out, so nothing is kept for a bidirectional
 * program. Errors: ANE_NOMEM. */
ane_status ane_session_keep(const struct ane_session *s, struct ane_kv_prefixes *t, bool all, struct ane_error *err);
/* Gives an empty session the longest known prefix of ids[0 .. n - 1), where n is the length that the sequence will have. Its
 * pages are shared, not copied, and are of the same program and kv type. Returns the length of the prefix: 0 if none is known or
 * the session is not empty. */
int64_t ane_session_begin(struct ane_session *s, struct ane_kv_prefixes *t, const int32_t *ids, int64_t n);
/* The length that ane_session_begin would return for a session with this key of its adapters (ane_session_adapters_key). */
int64_t ane_program_known(const struct ane_program *p, const struct ane_kv_prefixes *t, uint64_t adapters, const int32_t *ids,
                          int64_t n);
/* Save: writes a tree of prefixes, of pages of `store` with kv type `kv`, to a file, whole or not at all. Load: adds the contents
 * of such a file to a tree, the most recently used pages first, up to `most` bytes. As for sessions, only the same program can
 * read the file. ANE_STATE names what differs, ANE_FORMAT what is damaged; the tree is then unchanged. After ANE_NOMEM some pages
 * may have been added. After ANE_IO (the file lost bytes while it was read) the pages that only the tree owns are removed. */
ane_status ane_program_save_prefixes(const struct ane_program *p, struct ane_kv_prefixes *t, ane_dtype kv,
                                     const struct ane_kv_store *store, const char *path, struct ane_error *err);
ane_status ane_program_restore_prefixes(const struct ane_program *p, struct ane_kv_prefixes *t, ane_dtype kv,
                                        struct ane_kv_store *store, const char *path, uint64_t most, struct ane_error *err);
/* Save: writes to a file, whole or not at all, the ids, the state, the logits of the last token if the last run kept them, and a
 * note. Restore: reads them back. It needs the same program (graph, weights, kv type, ISA level): ANE_STATE names what differs. A
 * failed restore leaves the session unchanged, but empty if the file lost bytes while it was read (ANE_IO). note: as
 * ane_saved_note fills it. */
ane_status ane_session_save(const struct ane_session *s, const char *path, const struct ane_session_note *note,
                            struct ane_error *err);
ane_status ane_session_restore(struct ane_session *s, const char *path, struct ane_buffer *note, struct ane_error *err);
/* Sets the flag that ends the next run with ANE_STOPPED before it starts; that run clears it. May be called from a signal handler
 * or another thread. */
void ane_session_stop(struct ane_session *s);

/* ---- Adapters (LoRA, Hu et al. 2021) ----------------------------------------------------------------------------------*/

/* An adapter adds scale * B (A x) to the products of some matrices and to the rows of some embeddings, for the tokens of the
 * sessions that carry it. The weights of the program are unchanged, so one program serves any number of adapters at once. */
struct ane_adapter;

/* What an adapter adds to one weight. Everything is copied. */
struct ane_adapter_part {
  const char *weight; /* name of the matrix, as in ane_matrix_info, or of the embedding's table */
  bool embedding;     /* a is [cols][rank], one row per id; it changes the embeddings of the ids, not products */
  int64_t rank;       /* 0: the part has only a bias */
  float scale;        /* alpha / rank, or another factor that the file defines */
  const float *a;     /* [rank][cols] */
  const float *b;     /* [rows][rank] */
  const float *bias;  /* [rows], added unscaled; or NULL */
  int64_t rows, cols; /* as in the file; checked */
};

/* hash: of the adapter's contents; it becomes part of the key of saved sessions. The program must outlive the adapter. Errors:
 * ANE_NOTFOUND (no such weight), ANE_UNSUPPORTED (a weight that no plain product reads), ANE_SHAPE, ANE_INVALID (two parts for
 * one weight; an element that is not finite), ANE_NOMEM; all name the weight. */
ane_status ane_adapter_create(struct ane_adapter **out, struct ane_program *p, const struct ane_adapter_part *parts, int32_t n,
                              uint64_t hash, struct ane_error *err);
/* Adds and removes an owner; removing the last one frees the adapter. NULL is fine. Sessions are owners of the adapters that they
 * carry. */
void ane_adapter_retain(struct ane_adapter *a);
void ane_adapter_release(struct ane_adapter *a);
/* The bytes of memory that the adapter holds. */
uint64_t ane_adapter_bytes(const struct ane_adapter *a);

enum { ANE_SESSION_ADAPTERS = 16 }; /* maximum per session */
/* Replaces the adapters of an empty session: list[i] with the factor scales[i]. A factor of 0 omits the adapter. A fork has the
 * same adapters as its source. Errors: ANE_STATE (the session holds tokens), ANE_INVALID (an adapter of another program, a factor
 * that is not finite), ANE_RANGE (too many), ANE_NOMEM. */
ane_status ane_session_adapt(struct ane_session *s, struct ane_adapter *const *list, const float *scales, int32_t n,
                             struct ane_error *err);
/* A key that differs between states with different adapters or scales; 0: the session has none. */
uint64_t ane_session_adapters_key(const struct ane_session *s);

/* ---- Run -----------------------------------------------------------------------------------------------------------*/

/* A stage that does not end with the body leaves no rows, whatever `want` is. */
struct ane_run_item {
  struct ane_session *session; /* occurs at most once in a run */
  const int32_t *ids;          /* 0 .. n_ids - 1 (ane_program_info) */
  const int32_t *types;        /* token types, n of them; NULL: all 0. Ignored by models without token types */
  int64_t n;                   /* >= 1; the sum over items <= the program's chunk */
  int64_t until; /* length of the session at the end of this feed, which may take several runs; 0: at the end of this run */
  ane_want want;
  /* The ids among which the best one is searched: id i if bit i % 32 of word i / 32 is set; bits beyond the vocabulary are
   * ignored. Only with ANE_WANT_BEST. NULL: all ids. The result is that of the logits in which all other ids have -infinity, to
   * the bit; a pruned head skips weights of rows that are not in the mask. If the best logit is -infinity, the id means nothing.
   */
  const uint32_t *mask;
};

/* Feeds tokens to sessions of one program. Either all sessions advance or none does (ids out of range, context exceeded:
 * ANE_RANGE; stop flag: ANE_STOPPED). Results do not depend on how tokens are divided among runs, items or threads. One run at a
 * time per program.
 *
 * If rope depends on the length (longrope), a run uses the factors for the length `until`. If a session's state was computed with
 * the other factors, its ids are fed again first. If that is stopped (ANE_STOPPED), the session is shorter but consistent. */
ane_status ane_run(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, struct ane_error *err);

/* The same, but calls `tap` with the result of every step, on the caller's thread, while the other threads wait:
 * [tokens][channels] floats, dense, valid during the call. Values of output rows come in blocks; `first` is the first row of the
 * block, else 0. Fused steps hide the values between their parts; a graph of the pipeline "cpu-plain" shows every value. */
typedef void (*ane_tap_fn)(void *arg, const char *name, const float *data, int64_t first, int64_t tokens, int64_t channels);
ane_status ane_run_tapped(struct ane_program *p, const struct ane_run_item *items, int32_t n_items, ane_tap_fn tap, void *arg,
                          struct ane_error *err);
/* The names of the values that a tap sees; i from 0, NULL past the last. channels may be NULL. */
const char *ane_program_value(const struct ane_program *p, int32_t i, int64_t *channels);

/* The output rows of the session's last run; 0 after a rewind or ANE_WANT_NONE, 1 after a restore that included logits. */
int64_t ane_session_rows(const struct ane_session *s);
/* How the rows of a run become one vector: the first or the last row; the mean; the maximum of each channel; the sum divided by
 * the square root of the number of rows; the mean weighted by 1, 2, 3, ... from row 0 on. As in sentence-transformers' Pooling.
 * */
typedef enum {
  ANE_POOLING_CLS,
  ANE_POOLING_LAST,
  ANE_POOLING_MEAN,
  ANE_POOLING_MAX,
  ANE_POOLING_MEAN_SQRT,
  ANE_POOLING_WEIGHTED_MEAN
} ane_pooling;
/* Pools the rows [from, rows) of the session's last run into one vector of vocab floats. false: there are no such rows. */
bool ane_session_pooled(const struct ane_session *s, ane_pooling pooling, int64_t from, float *out);
/* The logits of a row, vocab floats; NULL if there are none (ANE_WANT_ARGMAX, ANE_WANT_BEST, row out of range). Valid until the
 * session's next run or rewind, or its end. */
const float *ane_session_logits(const struct ane_session *s, int64_t row);
/* The best id of a row, among those of the run's mask, and its logit; of equal logits, the lowest id. -1: there is no such row.
 */
int32_t ane_session_argmax(const struct ane_session *s, int64_t row, float *logit);

#endif
