/* What the readers of csrc/formats share. */
#ifndef ANE_FORMATS_FORMATS_INTERNAL_H
#define ANE_FORMATS_FORMATS_INTERNAL_H

#include "formats/source.h"

#include <inttypes.h>
#include <jansson.h>

/* Fills a source whose path and files[0] are set and mapped, and whose magic has matched. On failure the caller closes
 * the source. */
typedef ane_status (*ane_source_reader)(struct ane_source *s, struct ane_error *err);

ane_status ane_gguf_read(struct ane_source *s, struct ane_error *err);
ane_status ane_onnx_read(struct ane_source *s, struct ane_error *err);

/* Sets *model to the path of the model file of a folder with an ONNX model, from ane_malloc; NULL: the folder has none. Errors:
 * ANE_FORMAT, ANE_IO, ANE_NOMEM. */
ane_status ane_onnx_find(const char *folder, char **model, struct ane_error *err);
ane_status ane_safetensors_read(struct ane_source *s, struct ane_error *err);
/* files[0] is the index. The files that the index names, in its folder, replace it. */
ane_status ane_safetensors_read_index(struct ane_source *s, struct ane_error *err);

/* Joins each pair NAME_blocks, NAME_scales of MXFP4 to one tensor, and indexes the tensors again. */
ane_status ane_safetensors_join_mxfp4(struct ane_source *s, struct ane_error *err);

/* Fills by_name. ANE_FORMAT if a name appears twice. */
ane_status ane_source_index_tensors(struct ane_source *s, struct ane_error *err);

/* An empty source that owns a reference to s and shares its files; NULL: no memory. */
struct ane_source *ane_source_derive(struct ane_source *s);

/* Copies text from a file for use in a message: control bytes and invalid UTF-8 become '?', and long texts are truncated. */
enum { ANE_QUOTE_TEXT = 84 };
const char *ane_quote(char out[ANE_QUOTE_TEXT], const char *s, uint64_t len);

/* Checks the path of a file that another file names. Returns what is wrong, for a message ("leaves the folder"); NULL: nothing.
 * The path must stay inside the folder on every system. So it is not absolute and has no drive or scheme (`:`), no `\` and no
 * `..`. ane_map_open_beside checks links. */
const char *ane_location_fault(const char *location);

/* A path for a message: the path, or the end of a very long one. */
const char *ane_path_tail(const char *path);

/* ---- JSON --------------------------------------------------------------------------------------------------------*/

/* Parses an array or object, in which equal names are an error. The caller frees it with json_decref. at: the byte of the file at
 * which the text begins, for the message. Errors: ANE_FORMAT, ANE_NOMEM. */
ane_status ane_json_parse(json_t **out, const void *text, uint64_t size, uint64_t at, struct ane_error *err);
/* The kind of a value for messages: "a string", ...; "missing" for NULL. */
const char *ane_json_kind(const json_t *v);
/* False if v is not a whole number of at least 0. */
bool ane_json_count(const json_t *v, uint64_t *n);

/* ---- Metadata ----------------------------------------------------------------------------------------------------*/

/* Sets *n to an integer value. false: it is not an integer, or it is negative. */
bool ane_meta_count(const struct ane_meta *m, uint64_t *n);

#endif
