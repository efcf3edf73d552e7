/* Reads and writes .aimodel folders, the assets of Core AI (macOS and iOS 27):
 *
 *   NAME.aimodel/main.mlirb       MLIR bytecode of the aicode dialect: the program, with its weights as resources
 *   NAME.aimodel/main.hash        SHA-256 of main.mlirb, 32 bytes
 *   NAME.aimodel/metadata.json    assetVersion, producer */
#ifndef ANE_FORMATS_AIMODEL_H
#define ANE_FORMATS_AIMODEL_H

#include "formats/aimodel/ai_build.h"
#include "formats/aimodel/ai_spec.h"
#include "platform/platform.h"

/* ---- Reading --------------------------------------------------------------------------------------------------------*/

struct ane_aimodel {
  const char *path;                     /* as opened */
  const struct ane_ai_program *program; /* constants point into the mapped file */
  const char *producer;                 /* the program that wrote the bytecode */
  uint32_t n_resources;
  uint64_t resource_bytes;
  struct ane_map map;
  struct ane_arena arena;
};

/* Opens an asset, written by this library or by Apple's, and reads its program. An operation without a row in ai_op.def keeps its
 * name. Declared types are not checked. *out is NULL on failure. Errors: ANE_IO, ANE_FORMAT ("byte N: ..."), ANE_UNSUPPORTED (a
 * feature of MLIR that the dialect does not use; more than 10 dimensions), ANE_NOMEM. */
ane_status ane_aimodel_open(struct ane_aimodel **out, const char *path, struct ane_error *err);
/* Sets *at to whether the folder contains main.mlirb, as an asset does. Errors: ANE_NOMEM. */
ane_status ane_aimodel_at(const char *path, bool *at, struct ane_error *err);
/* Closes the asset and frees its program. NULL is fine. */
void ane_aimodel_close(struct ane_aimodel *m);

/* ---- Writing --------------------------------------------------------------------------------------------------------*/

struct ane_aimodel_writer;

/* Begins to write an asset at `path`. The commit replaces an older asset or an empty folder there. Anything else at `path` is an
 * error and is not touched. Weights are streamed: 16 bytes per blob stay in memory. Errors: ANE_INVALID, ANE_IO, ANE_NOMEM. */
ane_status ane_aimodel_create(struct ane_aimodel_writer **out, const char *path, struct ane_error *err);
/* The same, but in a folder PATH.partial, which stays there if the process is killed or the writer is left. The next call finds
 * in it what this one has noted. ANE_STATE: another writer has the folder. */
ane_status ane_aimodel_resume(struct ane_aimodel_writer **out, const char *path, struct ane_error *err);
/* Begins the blob of a constant of this type. The previous blob must be complete. *resource is the number that ane_ai_resource
 * takes, in any number of functions. Errors: ANE_INVALID, ANE_IO, ANE_NOMEM. */
ane_status ane_aimodel_blob(struct ane_aimodel_writer *w, const struct ane_ai_type *type, int32_t *resource,
                            struct ane_error *err);
/* Appends bytes to the blob, in portions of any size. Errors: ANE_INVALID (more bytes than its type has), ANE_IO. */
ane_status ane_aimodel_data(struct ane_aimodel_writer *w, const void *data, size_t size, struct ane_error *err);
/* Verifies the program, writes it after the weights, syncs all files and renames the asset into place. A killed process leaves
 * either the old asset or the new one. The same calls write the same bytes. Frees the writer, also on failure; the old asset is
 * then unchanged. Errors: those of ane_ai_verify, ANE_INVALID (a blob is incomplete, or a resource was not written), ANE_IO,
 * ANE_NOMEM. */
ane_status ane_aimodel_commit(struct ane_aimodel_writer *w, const struct ane_ai_program *p, struct ane_error *err);
/* Removes what was written and frees the writer. NULL is fine. A writer of ane_aimodel_resume keeps its folder instead. */
void ane_aimodel_abandon(struct ane_aimodel_writer *w);

/* ---- Interrupted work -----------------------------------------------------------------------------------------------*/

/* What an interrupted writer has left under a key: `data` as it was noted, and the bytes of the blob. Valid until the commit. */
struct ane_aimodel_note {
  const uint8_t *data, *bytes;
  uint64_t size, n_bytes;
};
/* Notes a complete blob and `size` bytes of the caller's under a key, so that a later writer need not compute them again. Does
 * nothing for writers of ane_aimodel_create. Errors: ANE_INVALID, ANE_IO (also if a mapped file has lost pages: the blob may come
 * from it). */
ane_status ane_aimodel_note(struct ane_aimodel_writer *w, const char *key, size_t len, const void *data, size_t size,
                            int32_t resource, struct ane_error *err);
/* Finds what was noted under a key before the interruption. False: nothing, or it was damaged since. */
bool ane_aimodel_noted(const struct ane_aimodel_writer *w, const char *key, size_t len, struct ane_aimodel_note *out);

#endif
