/* A .aimodel: an asset of Core AI (macOS and iOS 27). A folder:
 *
 *   NAME.aimodel/main.mlirb       MLIR bytecode of the dialect aicode: the program, and its weights as resources
 *   NAME.aimodel/main.hash        SHA-256 of main.mlirb, 32 bytes
 *   NAME.aimodel/metadata.json    assetVersion, producer */
#ifndef ANE_FORMATS_AIMODEL_H
#define ANE_FORMATS_AIMODEL_H

#include "formats/aimodel/ai_build.h"
#include "formats/aimodel/ai_spec.h"
#include "platform/platform.h"

/* ---- Reading -----------------------------------------------------------------------------------------------------*/

struct ane_aimodel {
  const char *path;                     /* as opened */
  const struct ane_ai_program *program; /* its constants lie in the mapped file */
  const char *producer;                 /* who wrote the bytecode */
  uint32_t n_resources;
  uint64_t resource_bytes;
  struct ane_map map;
  struct ane_arena arena;
};

/* Opens an asset of ours or of Apple's library and reads its program. Operations without a row in ai_op.def keep their names;
 * declared types are kept as they stand. *out is NULL on failure. Errors: ANE_IO, ANE_FORMAT ("byte N: ..."), ANE_UNSUPPORTED (a
 * part of MLIR that the dialect does not need; more than 8 dimensions), ANE_NOMEM. */
ane_status ane_aimodel_open(struct ane_aimodel **out, const char *path, struct ane_error *err);
/* Sets *at: the folder holds an asset's main.mlirb. Errors: ANE_NOMEM. */
ane_status ane_aimodel_at(const char *path, bool *at, struct ane_error *err);
/* NULL is fine. */
void ane_aimodel_close(struct ane_aimodel *m);

/* ---- Writing -----------------------------------------------------------------------------------------------------*/

struct ane_aimodel_writer;

/* Begins an asset that will be at `path`. The commit replaces an older asset there, or an empty folder; anything else is an error
 * and stays as it is. Of the weights only 16 bytes a blob stay in memory. */
ane_status ane_aimodel_create(struct ane_aimodel_writer **out, const char *path, struct ane_error *err);
/* Begins the blob of a constant of this type; the blob before must be complete. *resource is for ane_ai_resource, in any number
 * of functions. */
ane_status ane_aimodel_blob(struct ane_aimodel_writer *w, const struct ane_ai_type *type, int32_t *resource,
                            struct ane_error *err);
/* Writes the next bytes of the blob, in portions of any size. */
ane_status ane_aimodel_data(struct ane_aimodel_writer *w, const void *data, size_t size, struct ane_error *err);
/* Verifies the program, writes it behind the weights, syncs all files and renames the asset into place. A process that is killed
 * leaves the old asset or the new one. The same calls write the same bytes. Frees the writer, also on failure; the old asset is
 * then unchanged. */
ane_status ane_aimodel_commit(struct ane_aimodel_writer *w, const struct ane_ai_program *p, struct ane_error *err);
/* Drops what was written. NULL is fine. */
void ane_aimodel_abandon(struct ane_aimodel_writer *w);

#endif
