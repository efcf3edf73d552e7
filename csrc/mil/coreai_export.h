/* Writes a whole model as one asset of Core AI, with the functions that Apple's runner of language models calls (source:
 * apple/coreai-models; names, shapes and types below are its contract). V: rows of the embedding, H: channels, q: tokens per
 * call, C: positions of the context, L: layers with keys.
 *
 *   load_embeddings         -> embedding_table fp16 [V, 1, H]
 *   gather_embeddings_{q}   in_new_token_ids int32 [1, q], embedding_table -> gathered_embeddings fp16 [1, q, 1, H]
 *   extend_{C}_{q}          transformer_input fp16 [1, q, 1, H], position_ids uint16 [1, q], in_step int32 [1] (tokens that the
 *                           states hold already), causal_mask fp16 [1, C, 1, q] (0: visible, -40000: hidden), embedding_table
 *                           -> out_logits fp16 [1, q, 1, V]
 *   prompt_opt_{C}_{q}      the same inputs -> out_prompt_opt fp16, a scalar without meaning: only the states matter. A model
 *                           without layers has none
 *   states of the last two  key_cache, value_cache fp16 [L, 1, kv heads * head dim, 1, C]
 *
 * Apple's own exports also ask for layouts (channels of the states and rows of the table interleaved by 8). They are left out: in
 * a trial with them, Apple's library for Linux aborted.
 *
 * A call writes positions in_step .. in_step + q - 1 of the states. Padding at its end is harmless: the next call overwrites it.
 *
 * Beyond the contract: if layers differ in kv heads * head dim, each has states of its own, [1, kv heads, C, head dim]. Causal
 * convolutions have states [1, channels, K - 1, 1], which do not allow padding. A model that takes whole sequences (a classifier,
 * an embedding model, a reranker) has instead, for each T:
 *
 *   main, or main_{T}       input_ids int32 [1, T], attention_mask fp16 [1, T] (1: a token, 0: padding, after the tokens),
 *                           token_type_ids int32 [1, T] (if the model has types), pooling_mask fp16 [1, T] (with prompt_mask)
 *                           -> logits fp16 [1, T, N] of a token classifier; embedding fp16 [1, D]; logits fp16 [1, N] of a
 *                           reranker, before any activation
 */
#ifndef ANE_MIL_COREAI_EXPORT_H
#define ANE_MIL_COREAI_EXPORT_H

#include "formats/formats.h"
#include "mil/export.h"

/* How the hidden states of a sequence become one vector, as ane_pooling of exec.h has it. */
typedef enum {
  ANE_COREAI_CLS,
  ANE_COREAI_LAST,
  ANE_COREAI_MEAN,
  ANE_COREAI_MAX,
  ANE_COREAI_MEAN_SQRT,
  ANE_COREAI_WEIGHTED_MEAN,
  ANE_COREAI_POOLINGS
} ane_coreai_pooling;

/* A dense layer after pooling: weight fp32 [rows, columns], bias [rows] or NULL. Its data stays with the caller during the
 * export. */
struct ane_coreai_dense {
  const float *weight, *bias;
  int64_t rows, columns;
  bool tanh;
};

/* What a model that takes whole sequences gives. poolings 0: the rows of all tokens. */
struct ane_coreai_result {
  ane_coreai_pooling poolings[ANE_COREAI_POOLINGS];
  uint32_t n_poolings;
  const struct ane_coreai_dense *dense;
  uint32_t n_dense;
  bool normalise;   /* to length 1 */
  bool prompt_mask; /* only the tokens of the input pooling_mask are pooled, those of a prompt are not */
  const char *name; /* of the output; NULL: "logits" */
};

struct ane_coreai_plan {
  const int64_t *contexts, *tokens; /* C and q: ascending, >= 1; pairs with q > C are skipped */
  uint32_t n_contexts, n_tokens;
  struct ane_coreai_result result; /* of models that take whole sequences */
};

/* Writes the asset at `path` (see ane_aimodel_create). Of e's options only the description is used. All functions share one copy
 * of the weights. *out, the program, is in the arena. Errors: those of ane_mil_lower, ANE_UNSUPPORTED (no embedding; an operation
 * without a counterpart; a context above 65,535 positions), those of the encoder and of the writer. The message begins with the
 * name of the function. */
ane_status ane_coreai_export(struct ane_mil_export *e, const struct ane_partition *partition, const struct ane_coreai_plan *plan,
                             const char *path, struct ane_arena *arena, struct ane_ai_program *out, struct ane_error *err);

/* Writes a shard of a model as one asset at `path`, for models that are too large for a single one. Its functions, inputs,
 * outputs and states are those of the same shard as a package (lower.h, ane_mil_export_functions), so one host runs both: it
 * makes rope tables and masks, and passes values from asset to asset. Each function takes a fixed number of tokens; all share one
 * copy of the weights, and states that are sized for the largest context. Layout [1, C, T, 1], norms in fp32; the call sets those
 * options itself. out: n entries in the arena, one per function. Errors: ANE_INVALID (a function without fixed_t; options.fp32),
 * those of ane_mil_lower, of the encoder and of the writer, ANE_UNSUPPORTED (an operation without a counterpart). */
ane_status ane_coreai_export_shard(struct ane_mil_export *e, const struct ane_shard *shard, const struct ane_mil_options *o,
                                   const struct ane_mil_function_plan *functions, uint32_t n, const char *path,
                                   struct ane_arena *arena, struct ane_mil_lowered **out, struct ane_error *err);
/* Sets the options of the lowering that assets of shards have: layout and norm. */
void ane_coreai_options(struct ane_mil_options *o);
/* Translates a lowered function as ane_coreai_export_shard does. Constants of kind BLOB become resources, whose number is the
 * offset. *out is in the arena. Errors: ANE_UNSUPPORTED (an operation without a counterpart), ANE_NOMEM. */
ane_status ane_coreai_function(struct ane_arena *arena, const struct ane_mil_lowered *part, struct ane_ai_function *out,
                               struct ane_error *err);

#endif
