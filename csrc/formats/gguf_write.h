/* Writing GGUF files. */
#ifndef ANE_FORMATS_GGUF_WRITE_H
#define ANE_FORMATS_GGUF_WRITE_H

#include "formats/source.h"

/* A GGUF file (version 3) that is being written. First come the values and the list of tensors, in any order, then
 * ane_gguf_begin, then the bytes of all tensors in the order of the list. Until ane_gguf_commit they are in a temporary file
 * beside the final one, which then appears whole. The same calls give the same bytes. */
struct ane_gguf_writer;
/* Begins a file at `path`. Errors: ANE_IO, ANE_NOMEM. */
ane_status ane_gguf_create(struct ane_gguf_writer **out, const char *path, struct ane_error *err);
/* Adds a value. A scalar gets the GGUF type of its dtype, an array that of its elements. key and m are copied. The key
 * general.alignment (a UINT32, a power of two of at least 8) also sets the alignment, which is 32 otherwise. Errors: ANE_INVALID
 * (the key was added before, or the data has begun), ANE_UNSUPPORTED (a type that GGUF does not have), ANE_NOMEM. */
ane_status ane_gguf_add_value(struct ane_gguf_writer *w, const char *key, const struct ane_meta *m, struct ane_error *err);
/* Adds a tensor of rank 1 to 4 with a name of at most 63 bytes (ggml's limit). *bytes receives its size; may be NULL. Errors:
 * ANE_INVALID (name, or the data has begun), ANE_SHAPE, ANE_UNSUPPORTED (dtype), ANE_NOMEM. */
ane_status ane_gguf_add_tensor(struct ane_gguf_writer *w, const char *name, ane_dtype t, const struct ane_shape *shape,
                               uint64_t *bytes, struct ane_error *err);
/* Writes all that precedes the data. Values and tensors cannot be added afterwards. */
ane_status ane_gguf_begin(struct ane_gguf_writer *w, struct ane_error *err);
/* Writes the next bytes of the current tensor, in any number of calls. Errors: ANE_RANGE (more bytes than the tensor lacks, or
 * all tensors are complete), ANE_IO, ANE_INVALID. */
ane_status ane_gguf_write(struct ane_gguf_writer *w, const void *data, size_t size, struct ane_error *err);
/* Replaces all bytes of a complete tensor. Errors: ANE_NOTFOUND (no complete tensor has this name), ANE_RANGE (another size),
 * ANE_IO. */
ane_status ane_gguf_rewrite(struct ane_gguf_writer *w, const char *name, const void *data, size_t size, struct ane_error *err);
/* The temporary path of the file. Once all tensors are complete, the file can be opened there. */
const char *ane_gguf_path(const struct ane_gguf_writer *w);
/* Bytes that the current tensor still lacks (0: all tensors are complete), its name (then NULL) and its type. Both may be
 * NULL. */
uint64_t ane_gguf_wanted(const struct ane_gguf_writer *w, const char **name, ane_dtype *t);
/* Syncs the file and renames it to its final name. Errors: ANE_INVALID (a tensor is not complete), ANE_IO. */
ane_status ane_gguf_commit(struct ane_gguf_writer *w, struct ane_error *err);
/* Bytes of the whole file, and the number of them that are written; 0 before ane_gguf_begin. */
uint64_t ane_gguf_size(const struct ane_gguf_writer *w);
uint64_t ane_gguf_done(const struct ane_gguf_writer *w);
/* Frees the writer. Without a commit the temporary file is removed. NULL is fine. */
void ane_gguf_close(struct ane_gguf_writer *w);

#endif
