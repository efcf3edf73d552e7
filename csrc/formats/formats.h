/* Where a model comes from: tensors by name, metadata by key, whatever the file format. A reader checks every offset,
 * count, length and shape before it says that the source is open; afterwards all views it gives lie inside the file. */
#ifndef ANE_FORMATS_FORMATS_H
#define ANE_FORMATS_FORMATS_H

#include "base/arena.h"
#include "base/status.h"
#include "base/strmap.h"
#include "formats/mlpackage/mlpackage.h"
#include "formats/onnx/onnx.h"
#include "platform/platform.h"
#include "tensor/tensor.h"

/* ---- Metadata ----------------------------------------------------------------------------------------------------*/

typedef enum { ANE_META_INT, ANE_META_UINT, ANE_META_FLOAT, ANE_META_BOOL, ANE_META_STRING, ANE_META_ARRAY } ane_meta_kind;

/* One value, or one array of scalars or strings (arrays of arrays: `items` are ANE_META_ARRAY). All pointers stay valid
 * for the life of the source. Scalar arrays are views of the file: little endian, maybe unaligned. */
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
  const struct ane_tensor *parts; /* not NULL: the rows are those of n_parts tensors, one after the other, and `tensor` says */
  uint32_t n_parts;               /* no more than their common shape; its type is that of the first */
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
  const struct ane_onnx *onnx;       /* the graph; NULL where the format holds none */
  struct ane_source *parent;         /* whose files these are; NULL: its own */
  uint32_t refs;                     /* owners beside the one who opened it */
  struct ane_arena arena;            /* owns all the above */
};

/* Opens by content (magic), not by file name. A split GGUF may be opened by any of its parts' first file; the others are
 * found beside it. A folder opens by what is in it: model.safetensors, or the files of model.safetensors.index.json. *out is NULL
 * on failure. Errors: ANE_IO, ANE_FORMAT (names file, tensor or key, byte), ANE_UNSUPPORTED, ANE_NOMEM. */
ane_status ane_source_open(struct ane_source **out, const char *path, struct ane_error *err);
/* Gives up one ownership; the last one frees. NULL is fine. */
void ane_source_close(struct ane_source *s);
/* One more owner: whoever keeps pointers into the source. Not for several threads at once. */
void ane_source_retain(struct ane_source *s);

/* NULL where there is none. */
const struct ane_source_tensor *ane_source_tensor(const struct ane_source *s, const char *name);
const struct ane_meta *ane_source_meta(const struct ane_source *s, const char *key);

/* Is `path` one of the files of the source, under whatever name? */
bool ane_source_holds(const struct ane_source *s, const char *path);

/* The system may forget the pages of this tensor (they can still be read again from the file). */
void ane_source_drop(const struct ane_source *s, const struct ane_source_tensor *t);

/* ---- Sources made of an ONNX source ------------------------------------------------------------------------------------*/

/* A part of the graph as a source of its own (which keeps s): what the values `want` are made of, up to the values `given`,
 * which become inputs beside those inputs of the graph that are needed. Inputs and outputs are called "v" and their number.
 * Values of subgraphs cannot be asked for. ANE_INVALID where a number is no value. */
ane_status ane_onnx_part(struct ane_source **out, struct ane_source *s, const int32_t *want, int32_t n_want, const int32_t *given,
                         int32_t n_given, struct ane_error *err);

/* How a weight is stored: constants by value number, -1: none. */
typedef enum {
  ANE_ONNX_PLAIN,      /* floats [rows, cols], transposed: [cols, rows]; any shape where neither transposed nor cut */
  ANE_ONNX_NBITS,      /* MatMulNBits, GatherBlockQuantized, QMoE: codes [rows, blocks, ..] as uint8 with bits and block */
  ANE_ONNX_DEQUANTIZE, /* DequantizeLinear [rows, cols] or transposed, axis and block as there */
} ane_onnx_kind;
struct ane_onnx_piece {
  ane_onnx_kind kind;
  int32_t data, scales, zeros, g_idx;
  bool transposed;
  bool padded;           /* NBITS: each row of codes is filled up to whole blocks */
  int64_t rows, cols;    /* of one matrix as seen by the product: [out, in] */
  int64_t matrix;        /* which one of a stack along the outermost dimension; 0 */
  int64_t from, step, n; /* rows from, from + step, ...: n of them */
  int bits;
  int64_t block, axis; /* block 0: one scale a row (NBITS), one for each place of the axis or a single one (DEQUANTIZE) */
  float zero_default;
};
struct ane_onnx_weight {
  const char *name;
  const struct ane_onnx_piece *pieces; /* their rows one after the other */
  uint32_t n_pieces;
  struct ane_shape shape; /* of all */
};
/* The weights of a graph by other names, as a source that keeps s. Every size is checked. ANE_SHAPE, ANE_UNSUPPORTED. */
ane_status ane_onnx_weights(struct ane_source **out, struct ane_source *s, const struct ane_onnx_weight *list, uint32_t n,
                            struct ane_error *err);

/* ---- Writing GGUF ------------------------------------------------------------------------------------------------*/

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
