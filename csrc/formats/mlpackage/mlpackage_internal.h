/* Declarations that the files of the package reader and writer share. */
#ifndef ANE_FORMATS_MLPACKAGE_INTERNAL_H
#define ANE_FORMATS_MLPACKAGE_INTERNAL_H

#include "formats/formats_internal.h"
#include "formats/mlpackage/mlpackage.h"

/* Layout of weight files (coremltools 9.0, mlmodel/src/MILBlob/Blob/StorageFormat.hpp). */
enum { BLOB_ALIGN = 64, BLOB_HEADER = 64, BLOB_RECORD = 64, BLOB_VERSION = 2 };
#define BLOB_SENTINEL 0xDEADBEEFu

#define MLPACKAGE_AUTHOR "com.apple.CoreML"
#define MLPACKAGE_PREFIX "@model_path/"

/* Maps a weight file and walks over its records; `f->name` is set. */
ane_status mlpackage_weights_open(struct ane_arena *arena, struct ane_mlpackage_file *f, const char *model_path,
                                  struct ane_error *err);
/* Index of the record at this offset, or UINT32_MAX. */
uint32_t mlpackage_weights_record(const struct ane_mlpackage_file *f, uint64_t offset);
/* Sets *data to the data of a blob, after checking them against its type. *fresh: this is the first request for the record. */
ane_status mlpackage_weights_find(struct ane_mlpackage_file *f, const struct ane_mil_value *v, const uint8_t **data, bool *fresh,
                                  struct ane_error *err);

/* Sets *location to the path of the model inside the package ("Data/com.apple.CoreML/model.mlmodel"), in the arena. Checks that
 * all items of the manifest exist inside the package. */
ane_status mlpackage_manifest(struct ane_arena *arena, const char *manifest, const char **location, struct ane_error *err);

#endif
