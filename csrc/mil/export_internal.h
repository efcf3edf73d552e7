/* What the exports share (export.c: packages of Core ML; coreai_export.c, coreai_shard.c: assets of Core AI): weights in their
 * schemes, encoded one after another straight into a file. */
#ifndef ANE_MIL_EXPORT_INTERNAL_H
#define ANE_MIL_EXPORT_INTERNAL_H

#include "mil/export.h"

/* Constants below this size lie in the model file, as coremltools does it. */
enum { BLOB_FROM = 10 };

/* Where the bytes of constants go: the weight file of a package, or the resources of an asset. */
struct export_sink {
  void *to;
  /* Begins a constant of this type; *offset is what a value of kind BLOB has for it. */
  ane_status (*begin)(void *to, const struct ane_mil_type *type, uint64_t count, uint64_t *offset, struct ane_error *err);
  ane_status (*data)(void *to, const void *data, uint64_t bytes, struct ane_error *err);
  /* Remember an encoded matrix for the next call after an interruption, and recall it: `data` under a key, with the bytes of the
   * constant at `offset`. NULL: nothing is remembered. */
  ane_status (*note)(void *to, const char *key, size_t len, const void *data, size_t size, uint64_t offset,
                     struct ane_error *err);
  bool (*noted)(void *to, const char *key, size_t len, struct ane_aimodel_note *out);
};

/* A constant in the file. A later request for equal bytes uses the same record. */
struct stored {
  struct ane_mil_type type;
  uint64_t bytes, offset, hash;
  const void *data; /* in the arena */
};

struct exporting {
  struct ane_mil_export *e;
  struct export_sink sink;
  /* Core AI: constants of less than 8 bits are resources, however few their elements are; blocks with an offset have the
   * parameter "minimum" instead, -scale * offset, added after scaling. */
  bool coreai;
  struct ane_arena *arena;
  struct ane_error *err;
  struct ane_strmap known;     /* text of a request -> index into answers */
  struct ane_buffer answers;   /* of struct ane_mil_weight: functions share them */
  struct ane_buffer constants; /* of struct stored */
};

/* Provides weights in their schemes (ane_mil_weight_fn; arg: struct exporting). Functions that request the same weight share its
 * record, because the answer to a repeated request is cached. */
ane_status export_provide(void *arg, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                          struct ane_mil_weight *out, struct ane_error *err);
/* Returns the scheme of a matrix of the graph, fitted to its shape. */
struct ane_weight_spec export_spec_of(const struct ane_mil_export *e, int32_t value);
/* Moves the numbers of a constant in memory to the file, where equal ones are stored once. Its data stays with the caller for as
 * long as x. */
ane_status export_store_constant(struct exporting *x, struct ane_mil_value *v);
/* Stores the constants that lowering left in memory: norms, biases, tables. */
ane_status export_store_rest(struct exporting *x, const struct ane_mil_model *m);
/* Lowers a shard once for each function; T and context of `o` are ignored, and the states are sized for the largest context. out:
 * n entries in x's arena. Errors: those of ane_mil_lower, with the function's name. */
ane_status export_lower_functions(struct exporting *x, const struct ane_shard *shard, const struct ane_mil_options *o,
                                  const struct ane_mil_function_plan *functions, uint32_t n, struct ane_mil_lowered **out);
void export_free(struct exporting *x);

#endif
