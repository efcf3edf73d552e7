/* Imported graphs (ONNX, Core ML), run op by op on the primitive kernels (prim/prim.h). A graph runs if its ops are known,
 * whatever its shapes. It is built once from a file: ops are translated, constants folded, weights packed. A run frees each
 * value after its last use. On top of it, language models: sessions that feed tokens and carry the graph's caches. */
#ifndef ANE_INTERP_INTERP_H
#define ANE_INTERP_INTERP_H

#include "base/bytes.h"
#include "formats/formats.h"
#include "platform/platform.h"
#include "prim/prim.h"
#include "session/session.h"

struct ane_interp;

/* Packed weights that the functions of one package share if they read the same constants. It must outlive the graphs. */
struct ane_interp_shared;
ane_status ane_interp_shared_create(struct ane_interp_shared **out, struct ane_error *err);
void ane_interp_shared_destroy(struct ane_interp_shared *s); /* NULL is fine; its graphs must be gone */

struct ane_interp_options {
  ane_isa isa; /* an available level */
  int threads; /* 1 .. 1024 */
  /* Called on the caller's thread while the graph is prepared, with the number of nodes that are done. May be NULL. */
  void (*progress)(void *arg, uint64_t done, uint64_t total);
  bool fp16; /* Core ML: results of type fp16 are rounded to fp16 after each op; otherwise all floats stay fp32 */
  /* Runs the graph, and must outlive it; `threads` is then ignored. NULL: the graph makes a pool of its own. */
  struct ane_pool *pool;
  struct ane_interp_shared *shared; /* for graphs of the same model in memory; NULL: nothing is shared */
  /* What the graph's constants and the memories of its runs may hold; the graph becomes an owner. NULL: a budget of its own, of
   * `run_memory` bytes (0: see ane_dyn_budget_new). */
  struct ane_dyn_budget *budget;
  uint64_t run_memory;
  /* MIL: bytes of the files that hold the constants. Packed weights beyond 16 times as many bytes count against the budget. */
  uint64_t file_bytes;
  /* Called when the stored bytes of a weight are packed and no longer read. May be NULL. */
  void (*release)(void *arg, const void *data, uint64_t bytes);
  void *arg;
};

struct ane_interp_info {
  ane_isa isa;
  int threads;
  int32_t n_nodes, n_folded, n_inputs, n_outputs;
  uint64_t weight_bytes, constant_bytes; /* weights that were packed for this graph; folded constants */
};

/* Makes a graph from an ONNX file. s holds an ONNX graph and must outlive the result, which the caller destroys. Errors:
 * ANE_UNSUPPORTED (the message names node and op, or the attribute), ANE_INVALID, ANE_SHAPE (a node's constants), ANE_RANGE (a
 * constant with too many elements), ANE_NOMEM. */
ane_status ane_interp_from_onnx(struct ane_interp **out, const struct ane_source *s, const struct ane_interp_options *o,
                                struct ane_error *err);
/* Makes a graph from a function (NULL: the default one) of a Core ML package or of a model in memory, whose blobs must be loaded.
 * m must outlive the result. Constants of constexpr ops stay codes: products pack them, other ops decode them at run time. Sparse
 * ones and tables of vectors are decoded here. Errors as above, and ANE_NOTFOUND (no such function), ANE_FORMAT. */
ane_status ane_interp_from_mil(struct ane_interp **out, const struct ane_mil_model *m, const char *function,
                               const struct ane_interp_options *o, struct ane_error *err);
/* Translates the functions of a Core AI program to an ML Program that computes the same, for ane_interp_from_mil and states. *out
 * lives in the arena and points into the program. A constant whose resource has no data, as in programs that are not from a file,
 * becomes a value of kind BLOB whose offset is the number of the resource. Errors: ANE_UNSUPPORTED (function and operation; an
 * element type; too many operations once calls are inlined), ANE_FORMAT, ANE_NOMEM. */
ane_status ane_interp_mil_of_ai(struct ane_arena *arena, const struct ane_ai_program *p, struct ane_mil_model **out,
                                struct ane_error *err);
/* Checks that every op is known, with its attributes and inputs. Nothing is prepared. Errors as above, of the nodes alone. */
ane_status ane_interp_check_onnx(const struct ane_source *s, struct ane_error *err);
void ane_interp_destroy(struct ane_interp *g); /* NULL is fine */
struct ane_interp_info ane_interp_info(const struct ane_interp *g);

/* Returns the budget of the graph, which the memories of its runs should use (ane_dyn_memory_use). It lives at least as long as
 * the graph. */
struct ane_dyn_budget *ane_interp_budget(const struct ane_interp *g);

/* Inputs and outputs as the file declares them. Floats of any type are float32 when the graph runs. */
const struct ane_onnx_io *ane_interp_input(const struct ane_interp *g, int32_t i);
const struct ane_onnx_io *ane_interp_output(const struct ane_interp *g, int32_t i);
/* Returns the index of an input or output by name, or -1. */
int32_t ane_interp_find(const struct ane_interp *g, const char *name, bool output);
/* Appends one line per node: name, op, inputs. false: out of memory. */
bool ane_interp_print(const struct ane_interp *g, struct ane_buffer *out);

/* Runs the graph once; one run at a time. m: the memory of all values of the run. inputs: one for each input, in order. outputs:
 * one for each output, zeroed; they belong to the caller (ane_dyn_drop with the same memory), also after a failure. The message
 * begins with the node's name. ANE_NOMEM is also the error if a value does not fit the budget of `m`. */
ane_status ane_interp_run(struct ane_interp *g, struct ane_dyn_memory *m, const struct ane_dyn *inputs, struct ane_dyn *outputs,
                          struct ane_error *err);

/* ---- States of Core ML functions -----------------------------------------------------------------------------------*/

/* One set of a model's states, in float32. All functions that name a state share it. */
struct ane_interp_states;

/* Makes a set of states that are all zero. The tensors live in `memory`, which must outlive the set. function: the set has the
 * states of this function, and those of other functions that do not differ from them; NULL: of all functions. Errors: ANE_SHAPE
 * (function NULL, and two functions declare one state with different shapes), ANE_UNSUPPORTED, ANE_NOMEM. */
ane_status ane_interp_states_create(struct ane_interp_states **out, const struct ane_mil_model *m, const char *function,
                                    struct ane_dyn_memory *memory, struct ane_error *err);
void ane_interp_states_destroy(struct ane_interp_states *s); /* NULL is fine */
int32_t ane_interp_states_count(const struct ane_interp_states *s);
const char *ane_interp_states_name(const struct ane_interp_states *s, int32_t i);
/* Returns state i as fp32 of the declared shape; valid until the next run or reset, or until ane_interp_states_data. */
const struct ane_dyn *ane_interp_states_tensor(const struct ane_interp_states *s, int32_t i);
/* Returns the elements of a state, writable in place; NULL: out of memory. */
float *ane_interp_states_data(struct ane_interp_states *s, int32_t i, struct ane_error *err);
ane_status ane_interp_states_reset(struct ane_interp_states *s, struct ane_error *err);
/* Makes a second set with the same states and contents, in its own memory. */
ane_status ane_interp_states_copy(struct ane_interp_states **out, const struct ane_interp_states *from,
                                  struct ane_dyn_memory *memory, struct ane_error *err);

/* Runs a Core ML function with its states, which the run changes; `m` is their memory, NULL if the function has none.
 * Inputs are checked against their declared types and ranges. A run that fails half-way may leave states partly updated: the
 * set then refuses to run until it is reset. */
ane_status ane_interp_run_states(struct ane_interp *g, struct ane_dyn_memory *m, struct ane_interp_states *s,
                                 const struct ane_dyn *inputs, struct ane_dyn *outputs, struct ane_error *err);

/* ---- Language models -----------------------------------------------------------------------------------------------*/

struct ane_lm;
struct ane_lm_session;

/* A cache: the output `present` of a call is the input `past` of the next. */
struct ane_lm_state {
  const char *past, *present;
  int64_t rows; /* capacity of a sliding cache; 0: as the graph says */
};

struct ane_lm_options {
  /* Names of inputs. NULL, except for ids: the graph has no such input. n: tokens of the call; past: tokens before it. */
  const char *ids;                        /* [1, n] integers */
  const char *mask;                       /* [1, past + n] ones */
  const char *positions;                  /* [1, n]: past .. past + n - 1 */
  const char *past_length, *total_length; /* one number */
  const char *logits;                     /* the output */
  const struct ane_lm_state *states;
  int32_t n_states;
  int64_t kv_heads, head_size; /* for caches whose dimensions are symbols; 0: unknown */
  int64_t context, chunk;      /* maximum positions of a session; maximum tokens of a run */
};

/* Makes a language model from a graph. It owns the graph, even on failure. Errors: ANE_NOTFOUND (the graph has no input or output
 * of a name), ANE_UNSUPPORTED (an input that no option names; a cache of unknown size), ANE_INVALID (an input or output that
 * two options name). */
ane_status ane_lm_create(struct ane_lm **out, struct ane_interp *g, const struct ane_lm_options *o, struct ane_error *err);
void ane_lm_destroy(struct ane_lm *m); /* NULL is fine; its sessions must be gone */
struct ane_interp *ane_lm_graph(const struct ane_lm *m);
int64_t ane_lm_vocab(const struct ane_lm *m);
int64_t ane_lm_context(const struct ane_lm *m);
int64_t ane_lm_chunk(const struct ane_lm *m);

/* Returns a fingerprint of the graph, its constants (samples of large ones) and the kernels. A saved state fits only if it is
 * equal.
 */
uint64_t ane_lm_fingerprint(const struct ane_lm *m);

/* The states of a sequence. For state i, 0 .. ane_lm_states(m) - 1, the functions return: the name of its input; whether it grows
 * by a row for each token (else it keeps the last positions only: convolutions, sliding windows); the number of its elements,
 * fp32, after `length` tokens. */
int32_t ane_lm_states(const struct ane_lm *m);
const char *ane_lm_state_name(const struct ane_lm *m, int32_t i);
bool ane_lm_state_grows(const struct ane_lm *m, int32_t i);
int64_t ane_lm_state_count(const struct ane_lm *m, int32_t i, int64_t length);

/* One sequence: its states and the rows of its last feed. The caller keeps the tokens. The last bits of results may depend on
 * how tokens are divided into feeds. */
ane_status ane_lm_session_create(struct ane_lm_session **out, struct ane_lm *m, struct ane_error *err);
void ane_lm_session_destroy(struct ane_lm_session *s); /* NULL is fine */
int64_t ane_lm_length(const struct ane_lm_session *s);
/* Feeds n tokens. A failed feed leaves the states unchanged; if its run failed, the session has no rows. Errors: ANE_INVALID (n),
 * ANE_RANGE (an id, the context), and those of ane_interp_run. */
ane_status ane_lm_feed(struct ane_lm_session *s, const int32_t *ids, int64_t n, ane_want want, struct ane_error *err);
/* Returns state i, fp32; valid until the session changes. */
const struct ane_dyn *ane_lm_state(const struct ane_lm_session *s, int32_t i);
/* Sets the states of a sequence of `length` tokens. data[i] gives the elements of state i; NULL keeps what the session has,
 * truncated to `length` rows if it grows. Drops the rows. A failure leaves the session as it was. Errors: ANE_RANGE (a state
 * that grows is shorter than `length`), ANE_NOMEM. */
ane_status ane_lm_put(struct ane_lm_session *s, int64_t length, const float *const *data, struct ane_error *err);
/* Makes a second session with the same states, without rows. */
ane_status ane_lm_copy(struct ane_lm_session **out, const struct ane_lm_session *s, struct ane_error *err);
int64_t ane_lm_rows(const struct ane_lm_session *s);
/* Returns the logits of a row, ane_lm_vocab floats; NULL if there are none. Valid until the session changes. */
const float *ane_lm_logits(const struct ane_lm_session *s, int64_t row);
/* Returns the best id of a row (of equal logits, the lowest) and its logit; -1 if there is no such row. */
int32_t ane_lm_argmax(const struct ane_lm_session *s, int64_t row, float *logit);

#endif
