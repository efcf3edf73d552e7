/* Adapters inside the executor: what a session holds, and the functions that steps call (adapter.c). */
#ifndef ANE_EXEC_ADAPTER_H
#define ANE_EXEC_ADAPTER_H

#include "exec/exec.h"

struct thread_ctx;
struct prepared;
struct prefetch;
struct adapter_share;
struct step_parts;
struct step;
struct run;

enum { ADAPTER_TEMP = 4096 }; /* floats of a thread's block of B (A x) */

/* The adapters of a session, in the order in which their products are added. The session is an owner of each. */
struct session_adapters {
  int32_t n;
  struct ane_adapter *list[ANE_SESSION_ADAPTERS];
  float scale[ANE_SESSION_ADAPTERS]; /* never 0 */
};
void session_adapters_drop(struct session_adapters *s);
/* to: must be empty. */
void session_adapters_share(struct session_adapters *to, const struct session_adapters *from);

/* Does an adapter of the run change the program's last step? Then the head's own bounds do not hold, and it cannot be pruned. */
bool adapter_on_head(const struct run *r);

/* Computes the first half of the adapters' products in a linear step, for tokens [from, to): scale * A x for each adapter of the
 * token's session and each matrix of the step, one after another. x: the step's input, prepared for each activation type of the
 * step and in F32. The result is [tokens][ranks] in adapter_scratch. In a step of one token each thread fills a row of its own;
 * with more tokens the threads fill the shared rows [from, to). */
const float *adapter_down(const struct thread_ctx *tc, const struct step *s, const struct ane_activations x[ANE_ACTIVATION_COUNT],
                          int64_t from, int64_t to);
/* Computes the first half for a step of one token, divided among the threads: each multiplies some rows of A, into the shared
 * row, so that A is read once. false: the step has one thread, too many threads, or a token without adapters; then call
 * adapter_down. */
bool adapter_down_divided(const struct thread_ctx *tc, const struct step *s,
                          const struct ane_activations x[ANE_ACTIVATION_COUNT]);
/* Returns the result of adapter_down_divided, with the rows of all threads. It waits for the other threads for some microseconds
 * only, because the system may have suspended one of them. After that it computes all rows again, into the thread's own row. */
const float *adapter_down_join(const struct thread_ctx *tc, const struct step *s,
                               const struct ane_activations x[ANE_ACTIVATION_COUNT]);
/* Prefetches what the second half will read for row groups [g0, g1) of matrix m, in a call with few tokens. */
void adapter_prefetch(const struct thread_ctx *tc, const struct step *s, int m, int64_t g0, int64_t g1);
/* The second half: adds B times the result of the first half, and biases, to the product of matrix m. Row groups [g0, g1); dst[t
 * * ld + r] is row g0 * 16 + r of token t. */
void adapter_up(const struct thread_ctx *tc, const struct step *s, const float *low, int m, int64_t g0, int64_t g1, float *dst,
                int64_t ld);
/* Does the same for the step's only token, from the products in in->share, which the first call computes. Groups [g0, g1) must be
 * in the share of matrix m, and in->low must be set. */
void adapter_up_shared(const struct thread_ctx *tc, const struct step *s, struct prepared *in, int m, int64_t g0, int64_t g1,
                       float *dst);
/* What the only adapter of the step's only token adds to its matrices, if the products with B can be computed by shares: all B
 * are in codes, and there are no biases. NULL otherwise. */
const struct step_parts *adapter_shares(const struct thread_ctx *tc, const struct step *s);
/* Adds to `a` what the thread reads of A and B in a step of one token: its part of A, and the B of its share of the rows. */
void adapter_prefetch_share(const struct thread_ctx *tc, const struct step *s, const struct adapter_share *share,
                            struct prefetch *a);
/* Adds the adapters' part to the embeddings of tokens [from, to). list: the ids of all tokens; out: their embeddings. */
void adapter_embed(const struct thread_ctx *tc, const struct step *s, const int32_t *list, int64_t from, int64_t to, float *out);

#endif
