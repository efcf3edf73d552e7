/* Runs functions of Core ML packages with Core ML itself, on the Neural Engine. Only built on Darwin; NEVER RUN ON HARDWARE. No
 * machine of the project can run it; clang checks it against stub headers (spec/csrc/coreml).
 *
 * The calls are those of the package runner of interp/interp.h, with the same meaning: a function, with its states, runs on
 * tensors in the order of its inputs and outputs. There are two differences: states are Core ML's own objects, fp16 as the
 * package declares them; and a program reports where its operations will run, and can refuse to run anywhere but on the engine.
 * On other systems ane_coreml_create returns ANE_UNSUPPORTED (coreml_none.c). */
#ifndef ANE_COREML_COREML_H
#define ANE_COREML_COREML_H

#include "base/status.h"
#include "tensor/dyn.h"

struct ane_coreml;
struct ane_coreml_states;

struct ane_coreml_options {
  const char *path;     /* the .mlpackage */
  const char *function; /* NULL: the default one */
  /* Where the compiled model (.mlmodelc) is cached: used if it exists, else written by a rename. The caller ensures that it
   * belongs to this package. NULL: the model is compiled each time and removed with the program. */
  const char *compiled;
  bool anywhere; /* false: an error (ANE_UNSUPPORTED) unless every convolution prefers the Neural Engine */
};

struct ane_coreml_info {
  int32_t n_inputs, n_outputs;
  /* The number of operations that run on a device, and of those that prefer the Neural Engine; the same for convolutions. */
  int32_t n_operations, on_engine, n_convs, convs_on_engine;
};

/* A declared input or output. dtype: ANE_F16, ANE_F32 or ANE_I32; dim: the default shape. */
struct ane_coreml_feature {
  const char *name;
  ane_dtype dtype;
  int32_t rank;
  int64_t dim[ANE_DYN_RANK];
};

/* Can this system run it? It needs macOS 15 or later. */
bool ane_coreml_available(void);

/* Compiles if needed, queries where operations will run, and loads. Takes seconds to minutes. Errors: ANE_UNSUPPORTED (the
 * system; a missing feature or function; a convolution off the engine, named), ANE_IO (with Core ML's message), ANE_NOMEM. */
ane_status ane_coreml_create(struct ane_coreml **out, const struct ane_coreml_options *o, struct ane_error *err);
void ane_coreml_destroy(struct ane_coreml *m); /* NULL is fine; its states must be gone */

struct ane_coreml_info ane_coreml_info(const struct ane_coreml *m);
/* Return input or output i, in the order of their names. */
const struct ane_coreml_feature *ane_coreml_input(const struct ane_coreml *m, int32_t i);
const struct ane_coreml_feature *ane_coreml_output(const struct ane_coreml *m, int32_t i);

/* The states of one sequence (an MLState), initially zero. */
ane_status ane_coreml_states_create(struct ane_coreml_states **out, const struct ane_coreml *m, struct ane_error *err);
void ane_coreml_states_destroy(struct ane_coreml_states *s); /* NULL is fine */
int32_t ane_coreml_states_count(const struct ane_coreml_states *s);
const char *ane_coreml_states_name(const struct ane_coreml_states *s, int32_t i); /* in their order; NULL: no such state */
/* ane_coreml_states_read reads the elements of state i as fp32, in a tensor from `memory`. ane_coreml_states_write writes them
 * from a tensor of the same shape. Errors: ANE_NOTFOUND (i), ANE_SHAPE, ANE_NOMEM. */
ane_status ane_coreml_states_read(const struct ane_coreml_states *s, int32_t i, struct ane_dyn_memory *memory, struct ane_dyn *t,
                                  struct ane_error *err);
ane_status ane_coreml_states_write(struct ane_coreml_states *s, int32_t i, const struct ane_dyn *t, struct ane_error *err);
ane_status ane_coreml_states_reset(struct ane_coreml_states *s, struct ane_error *err);
/* Copies states. Both belong to the same program. */
ane_status ane_coreml_states_copy(struct ane_coreml_states *to, const struct ane_coreml_states *from, struct ane_error *err);

/* Runs the function. inputs: one per input, fp32, fp16 or integers, converted to the declared type. outputs: one per output,
 * zeroed; they are returned as fp32 or int32 from `memory` and belong to the caller, even after a failure. s: NULL if the
 * function has no states. It may come from any function of the package that declares the same states, as was reported to work
 * (FluidInference/FluidAudio#679). One run at a time. Errors: ANE_SHAPE (an input, named), ANE_IO, ANE_NOMEM. */
ane_status ane_coreml_run(struct ane_coreml *m, struct ane_dyn_memory *memory, struct ane_coreml_states *s,
                          const struct ane_dyn *inputs, struct ane_dyn *outputs, struct ane_error *err);

#endif
