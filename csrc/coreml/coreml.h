/* Functions of Core ML packages run by Core ML itself, on the Neural Engine: only built on Darwin, NEVER RUN ON HARDWARE.
 * No machine of the project can run it; it is checked by clang against stand-in headers (spec/csrc/coreml).
 *
 * The calls are those of the package runner of interp/interp.h, with the same meaning: a function, its states, runs on
 * tensors in order of inputs and outputs. What differs: states are Core ML's own objects, fp16 as the package declares them,
 * and a program says where its operations will run and may refuse to be anywhere but on the engine. Elsewhere than on Darwin
 * ane_coreml_create says ANE_UNSUPPORTED (coreml_none.c). */
#ifndef ANE_COREML_COREML_H
#define ANE_COREML_COREML_H

#include "base/status.h"
#include "tensor/dyn.h"

struct ane_coreml;
struct ane_coreml_states;

struct ane_coreml_options {
  const char *path;     /* the .mlpackage */
  const char *function; /* NULL: the default one */
  /* Where the compiled model (.mlmodelc) is kept: used if it is there, else written by a rename. The caller sees to it that it
   * belongs to this package. NULL: compiled anew, removed with the program. */
  const char *compiled;
  bool anywhere; /* false: an error (ANE_UNSUPPORTED) unless every convolution prefers the Neural Engine */
};

struct ane_coreml_info {
  int32_t n_inputs, n_outputs;
  /* Of the operations that have a device at all: how many, and how many prefer the Neural Engine; the same of convolutions. */
  int32_t n_operations, on_engine, n_convs, convs_on_engine;
};

/* A declared input or output. dtype: ANE_F16, ANE_F32 or ANE_I32; dim: the default shape. */
struct ane_coreml_feature {
  const char *name;
  ane_dtype dtype;
  int32_t rank;
  int64_t dim[ANE_DYN_RANK];
};

/* Can this system run it: macOS 15 or later. */
bool ane_coreml_available(void);

/* Compiles where needed, asks where operations will run, loads. Takes seconds to minutes. Errors: ANE_UNSUPPORTED (system;
 * feature or function that is not there; a convolution off the engine, named), ANE_IO (Core ML's words), ANE_NOMEM. */
ane_status ane_coreml_create(struct ane_coreml **out, const struct ane_coreml_options *o, struct ane_error *err);
void ane_coreml_destroy(struct ane_coreml *m); /* NULL is fine; its states must be gone */

struct ane_coreml_info ane_coreml_info(const struct ane_coreml *m);
/* In the order of their names. */
const struct ane_coreml_feature *ane_coreml_input(const struct ane_coreml *m, int32_t i);
const struct ane_coreml_feature *ane_coreml_output(const struct ane_coreml *m, int32_t i);

/* One sequence's states (an MLState), zeros at first. */
ane_status ane_coreml_states_create(struct ane_coreml_states **out, const struct ane_coreml *m, struct ane_error *err);
void ane_coreml_states_destroy(struct ane_coreml_states *s); /* NULL is fine */
int32_t ane_coreml_states_count(const struct ane_coreml_states *s);
const char *ane_coreml_states_name(const struct ane_coreml_states *s, int32_t i); /* in their order; NULL: no such state */
/* The elements as fp32 from `memory`, and back from a tensor of the same shape. */
ane_status ane_coreml_states_read(const struct ane_coreml_states *s, int32_t i, struct ane_dyn_memory *memory, struct ane_dyn *t,
                                  struct ane_error *err);
ane_status ane_coreml_states_write(struct ane_coreml_states *s, int32_t i, const struct ane_dyn *t, struct ane_error *err);
ane_status ane_coreml_states_reset(struct ane_coreml_states *s, struct ane_error *err);
/* Both are of the same program. */
ane_status ane_coreml_states_copy(struct ane_coreml_states *to, const struct ane_coreml_states *from, struct ane_error *err);

/* Runs the function. inputs: one for each input, fp32, fp16 or integers, converted to what is declared; outputs: as many as the
 * function has, zeroed; they come as fp32 or int32 from `memory` and belong to the caller, also what is there after a failure.
 * s: NULL where the function has no states; of any function of the package that declares the same ones, as was reported to work
 * (FluidInference/FluidAudio#679). One run at a time. Errors: ANE_SHAPE (an input, named), ANE_IO, ANE_NOMEM. */
ane_status ane_coreml_run(struct ane_coreml *m, struct ane_dyn_memory *memory, struct ane_coreml_states *s,
                          const struct ane_dyn *inputs, struct ane_dyn *outputs, struct ane_error *err);

#endif
