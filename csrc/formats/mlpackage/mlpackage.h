/* A .mlpackage: a folder with Manifest.json, a model (mil_spec.h) and weight files.
 *
 *   NAME.mlpackage/Manifest.json                          items by id; the id of the model
 *   NAME.mlpackage/Data/com.apple.CoreML/model.mlmodel    protobuf
 *   NAME.mlpackage/Data/com.apple.CoreML/weights/weight.bin
 *
 * A weight file is a header of 64 bytes (u32 number of blobs, u32 version 2, zeros), then blob after blob, each at a
 * multiple of 64: a record of 64 bytes (u32 0xDEADBEEF, u32 element type, u64 bytes of data, u64 offset of the data in the
 * file, u64 unused bits in the last byte, zeros) and the data directly after it. Little endian. */
#ifndef ANE_FORMATS_MLPACKAGE_H
#define ANE_FORMATS_MLPACKAGE_H

#include "formats/mil/mil_spec.h"
#include "formats/source.h"
#include "platform/platform.h"

/* ---- Reading -----------------------------------------------------------------------------------------------------*/

struct ane_mlpackage_file {
  const char *name; /* as the model has it: "@model_path/weights/weight.bin" */
  struct ane_map map;
  const uint64_t *records; /* offsets, ascending */
  bool *used;              /* by the model */
  uint32_t n_records;
};

struct ane_mlpackage {
  const char *path;                  /* as opened */
  const char *model_path;            /* of model.mlmodel */
  const struct ane_mil_model *model; /* its blobs have data, in the mapped files */
  struct ane_mlpackage_file *files;
  uint32_t n_files;
  uint32_t n_blobs;    /* that the model uses, each once */
  uint64_t blob_bytes; /* their data */
  struct ane_arena arena;
  /* Called with release_arg when the package is closed, to free other memory that the model points into. NULL: there is none. */
  void (*release)(void *arg);
  void *release_arg;
};

/* Reads the model, maps the weight files and checks all blobs; afterwards all values have their data. Paths in the files may
 * not leave the folder or follow symbolic links (except those of model hubs' caches, see ane_map_open_beside). *out is NULL on
 * failure. Errors: ANE_IO, ANE_FORMAT (file, function, operation, parameter), ANE_UNSUPPORTED, ANE_NOMEM. */
ane_status ane_mlpackage_open(struct ane_mlpackage **out, const char *path, struct ane_error *err);
/* NULL is fine. */
void ane_mlpackage_close(struct ane_mlpackage *p);

/* ---- As a source -------------------------------------------------------------------------------------------------*/

/* The parts of a source of packages. */
struct ane_mlpackage_parts {
  const char *path; /* of the set */
  struct ane_source_tensor *tensors;
  uint32_t n_tensors;
  struct ane_mlpackage **packages;
  uint32_t n_packages;
  struct ane_source_file embedding; /* the file of a table; without a path: none */
  struct ane_arena arena;           /* holds everything above but the packages and the maps, and what the tensors point to */
};
/* A source whose tensors point into packages, by names of the caller's choice, with format "package set". On success it owns the
 * packages, the map and the arena, which the call empties in `parts`. On failure the caller still owns them. Errors: ANE_NOMEM,
 * ANE_FORMAT (a name appears twice). */
ane_status ane_mlpackage_source(struct ane_source **out, struct ane_mlpackage_parts *parts, struct ane_error *err);

/* ---- Writing -----------------------------------------------------------------------------------------------------*/

/* The name by which a model refers to the weights that a writer has written. */
#define ANE_MLPACKAGE_WEIGHTS "@model_path/weights/weight.bin"

struct ane_mlpackage_writer;

/* Begins a package at `path`. The commit replaces an older package or an empty folder there. Anything else at `path` is an error
 * and is not touched. Weights are streamed: 24 bytes per blob stay in memory. Errors: ANE_INVALID, ANE_IO, ANE_NOMEM. */
ane_status ane_mlpackage_create(struct ane_mlpackage_writer **out, const char *path, struct ane_error *err);
/* Begins a blob of `count` elements. The previous blob must be complete. *offset is the value for ane_mil_value.offset. Errors:
 * ANE_INVALID, ANE_IO, ANE_NOMEM. */
ane_status ane_mlpackage_blob(struct ane_mlpackage_writer *w, ane_mil_dtype dtype, uint64_t count, uint64_t *offset,
                              struct ane_error *err);
/* Appends bytes to the blob, laid out as ane_mil_value.data, in portions of any size. Errors: ANE_INVALID (more bytes than the
 * blob lacks), ANE_IO. */
ane_status ane_mlpackage_data(struct ane_mlpackage_writer *w, const void *data, size_t size, struct ane_error *err);
/* Writes the model, syncs all files and renames the package into place. A killed process leaves either the old package or the new
 * one. The blobs of the model must have been written. The same calls write the same bytes. Frees the writer, also on failure; the
 * old package is then unchanged. Errors: those of ane_mil_verify, ANE_INVALID (a blob is incomplete, or was not written), ANE_IO,
 * ANE_NOMEM. */
ane_status ane_mlpackage_commit(struct ane_mlpackage_writer *w, const struct ane_mil_model *m, struct ane_error *err);
/* Removes what was written and frees the writer. NULL is fine. */
void ane_mlpackage_abandon(struct ane_mlpackage_writer *w);

/* Writes a package that was read to `path`, with the weights that its model uses, in the order in which the model names them.
 * Errors: those of ane_mlpackage_create and ane_mlpackage_commit. */
ane_status ane_mlpackage_rewrite(const struct ane_mlpackage *p, const char *path, struct ane_error *err);

#endif
