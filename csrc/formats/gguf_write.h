/* Writing GGUF files. */
#ifndef ANE_FORMATS_GGUF_WRITE_H
#define ANE_FORMATS_GGUF_WRITE_H

#include "formats/source.h"

/* A GGUF file (version 3) on its way to disk: first metadata and the list of tensors in any order, then ane_gguf_begin,
 * then the bytes of all tensors in the order in which they were listed. What has been written so far is a temporary file
 * beside the final one, which appears whole at ane_gguf_commit. The same calls give the same bytes. */
struct ane_gguf_writer;
ane_status ane_gguf_create(struct ane_gguf_writer **out, const char *path, struct ane_error *err);
/* A value: scalars by their dtype, arrays by that of their elements. Nothing is kept of key and m. The key
 * general.alignment (a UINT32, a power of two of at least 8) also sets the alignment; else it is 32. ANE_INVALID where the
 * key was added before. */
ane_status ane_gguf_add_value(struct ane_gguf_writer *w, const char *key, const struct ane_meta *m, struct ane_error *err);
/* A tensor of rank 1 to 4 with a name of at most 63 bytes (what ggml reads). *bytes (may be NULL) gets its size. */
ane_status ane_gguf_add_tensor(struct ane_gguf_writer *w, const char *name, ane_dtype t, const struct ane_shape *shape,
                               uint64_t *bytes, struct ane_error *err);
/* Writes all that comes before the data. No more values and tensors after this. */
ane_status ane_gguf_begin(struct ane_gguf_writer *w, struct ane_error *err);
/* The next bytes of the present tensor; may be called many times for one. ANE_RANGE beyond the last tensor's end, or
 * where they would run over into the next. */
ane_status ane_gguf_write(struct ane_gguf_writer *w, const void *data, size_t size, struct ane_error *err);
/* Bytes that the present tensor still wants, 0 when all are there; its name (then NULL) and type. Both may be NULL. */
uint64_t ane_gguf_wanted(const struct ane_gguf_writer *w, const char **name, ane_dtype *t);
/* Syncs and renames into place. ANE_INVALID where tensors are not complete. */
ane_status ane_gguf_commit(struct ane_gguf_writer *w, struct ane_error *err);
/* Bytes of the whole file, and those of it that are written; 0 before it has begun. */
uint64_t ane_gguf_size(const struct ane_gguf_writer *w);
uint64_t ane_gguf_done(const struct ane_gguf_writer *w);
/* Frees; what was not committed disappears. NULL is fine. */
void ane_gguf_close(struct ane_gguf_writer *w);

#endif
