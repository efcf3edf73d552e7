/* Where a model comes from: tensors by name and metadata by key, whatever the file format. A reader checks every offset,
 * count, length and shape before the source is open. All views that the source gives then lie inside its files. */
#ifndef ANE_FORMATS_SOURCE_H
#define ANE_FORMATS_SOURCE_H

#include "base/arena.h"
#include "base/status.h"
#include "base/strmap.h"
#include "platform/platform.h"
#include "tensor/tensor.h"

struct ane_onnx;

/* ---- Metadata ----------------------------------------------------------------------------------------------------*/

typedef enum { ANE_META_INT, ANE_META_UINT, ANE_META_FLOAT, ANE_META_BOOL, ANE_META_STRING, ANE_META_ARRAY } ane_meta_kind;

/* One value, or one array of scalars or strings (of arrays of arrays, `items` are ANE_META_ARRAY). All pointers stay valid for
 * the life of the source. Scalar arrays are views of the file: little endian, perhaps unaligned. */
struct ane_meta {
  ane_meta_kind kind;
  ane_dtype dtype; /* scalars (not STRING, ARRAY): as stored */
  union {
    int64_t i;  /* INT, BOOL (0 or 1) */
    uint64_t u; /* UINT */
    double f;   /* FLOAT */
    struct {
      const char *data; /* not NUL-terminated; may hold any bytes */
      uint64_t len;
    } s;
    struct {
      ane_meta_kind kind; /* of the elements */
      ane_dtype dtype;    /* of scalar elements as they lie at `data` (BOOL: one byte 0 or 1) */
      uint64_t count;
      const uint8_t *data;          /* scalars: count * size bytes */
      const struct ane_meta *items; /* STRING, ARRAY: count values; NULL for scalars */
    } a;
  };
};

/* Number at index i of an array of scalars, as double or as a (saturated) int64. i < count. */
double ane_meta_array_number(const struct ane_meta *array, uint64_t i);
int64_t ane_meta_array_integer(const struct ane_meta *array, uint64_t i);

/* ---- Source ------------------------------------------------------------------------------------------------------*/

struct ane_source_tensor {
  const char *name;               /* NUL-terminated; names with a NUL inside are refused */
  struct ane_tensor tensor;       /* data lies in the mapped file; row-major shape, outermost first */
  uint64_t offset;                /* of the data in its file */
  uint32_t file;                  /* index into files */
  const struct ane_tensor *parts; /* not NULL: the rows are those of n_parts tensors, one after another. Only the shape */
  uint32_t n_parts;               /* (of all parts together) and the type (of the first) of `tensor` are valid */
  bool *unset; /* not NULL: the data is memory of an overlay. true: nobody has filled it yet, so its numbers mean nothing. One
                  flag in the overlay's arena, which all sources derived from it share */
};

struct ane_source_file {
  char *path;
  struct ane_map map;
};

struct ane_source {
  const char *format; /* "gguf", "safetensors" */
  char *path;         /* as opened */
  struct ane_source_file *files;
  uint32_t n_files;
  struct ane_source_tensor *tensors; /* in file order */
  uint32_t n_tensors;
  struct ane_meta *values; /* metadata, in file order; keys[i] names values[i] */
  const char **keys;       /* NUL-terminated */
  uint32_t n_values;
  struct ane_strmap by_name, by_key; /* to indices of tensors, values */
  const struct ane_onnx *onnx;       /* the graph; NULL if the format holds none */
  void (*free_owned)(void *owned);   /* frees what else the source owns, when it is closed; NULL: nothing */
  void *owned;                       /* in the arena */
  uint32_t n_borrowed;               /* the last of the files: their maps belong to `owned` */
  struct ane_source *parent;         /* whose files these are; NULL: its own */
  uint32_t refs;                     /* owners beside the one who opened it */
  struct ane_arena arena;            /* owns all the above */
};

/* Opens a model file. Its contents (magic) decide on the reader, not its name. A split GGUF is opened by its first part; the
 * others must be beside it. In a folder it opens model.safetensors, the files of model.safetensors.index.json, or an ONNX model.
 * *out is NULL on failure. Errors: ANE_IO, ANE_FORMAT (names file, tensor or key, byte), ANE_UNSUPPORTED, ANE_NOMEM. */
ane_status ane_source_open(struct ane_source **out, const char *path, struct ane_error *err);
/* Makes a source with the tensors and metadata of `s`, of which it is an owner. Entries of `list` replace the tensors of the same
 * name; entries with other names come after all tensors of s. An entry without data gets memory of its type and shape, and is
 * unset until the caller fills it (ane_source_set); the data of other entries are borrowed. Errors: ANE_NOMEM, ANE_SHAPE. */
ane_status ane_source_overlay(struct ane_source **out, struct ane_source *s, const struct ane_source_tensor *list, uint32_t n,
                              struct ane_error *err);
/* Removes an owner; removing the last one frees the source. NULL is fine. */
void ane_source_close(struct ane_source *s);
/* Adds an owner. Whoever keeps pointers into the source must be one. Not thread-safe. */
void ane_source_retain(struct ane_source *s);

/* The tensor of this name, the value of this key; NULL: there is none. */
const struct ane_source_tensor *ane_source_tensor(const struct ane_source *s, const char *name);
const struct ane_meta *ane_source_meta(const struct ane_source *s, const char *key);

/* Fails with ANE_IO and the path if a file of the source has lost pages (platform/map_guard.h). */
ane_status ane_source_check(const struct ane_source *s, struct ane_error *err);

/* Is `path` one of the files of the source, also under another name (ane_path_same)? */
bool ane_source_holds(const struct ane_source *s, const char *path);

/* Has the tensor its numbers? False for the memory of an overlay that is not filled. */
static inline bool ane_source_is_set(const struct ane_source_tensor *t) { return !t->unset || !*t->unset; }
/* Notes that the caller has filled t, memory of an overlay. */
void ane_source_set(const struct ane_source_tensor *t);
/* Gives the memory of t back to the system, if it is that of an overlay. It is unset until the caller fills it again. */
void ane_source_forget(const struct ane_source_tensor *t);

/* Lets the system drop the pages of this tensor from memory. It stays readable, from the file. */
void ane_source_drop(const struct ane_source *s, const struct ane_source_tensor *t);

#endif
