/* What the parts of the MIL reader and writer share. */
#ifndef ANE_FORMATS_MIL_INTERNAL_H
#define ANE_FORMATS_MIL_INTERNAL_H

#include "formats/formats_internal.h"
#include "formats/mil/mil_spec.h"
#include "formats/proto/coreml.pb-c.h"

/* Largest number of elements of a shape. Sizes of smaller shapes cannot overflow, in bits either. */
#define MIL_MAX_COUNT (UINT64_C(1) << 57)

/* ArrayFeatureType.ArrayDataType (FeatureTypes.proto) and the same type of MIL. X(number, dtype) */
#define MIL_FEATURE_DTYPES(X)                                                                                                    \
  X(65568, ANE_MIL_FP32) X(65600, ANE_MIL_FP64) X(131104, ANE_MIL_INT32) X(65552, ANE_MIL_FP16) X(131080, ANE_MIL_INT8)

/* Field of TensorValue that holds the numbers of a type. */
enum mil_field { MIL_BYTES, MIL_FLOATS, MIL_INTS, MIL_BOOLS, MIL_STRINGS, MIL_LONGS, MIL_DOUBLES };
enum mil_field mil_field_of(ane_mil_dtype t);
extern const char *const mil_field_names[];

/* Sets *count to the number of elements of a shape; unknown dimensions count as one. false: more than MIL_MAX_COUNT, where
 * dimensions of 0 count as 1. */
bool mil_count(int32_t rank, const int64_t *dim, uint64_t *count);

/* ---- Unpacking ---------------------------------------------------------------------------------------------------*/

struct mil_unpack {
  struct ane_arena *arena;
  const uint8_t *data; /* of the file, which `bytes` fields refer to */
  struct ane_error *err;
};

ane_status mil_no_memory(struct ane_error *err);
/* An array in the arena. NULL: out of memory; never NULL for n = 0 otherwise. */
void *mil_array(struct ane_arena *arena, size_t n, size_t size);
/* Copies a string into the arena; an absent one becomes "". */
ane_status mil_copy(struct mil_unpack *u, const char *s, const char **out);
ane_status mil_unpack_program(struct mil_unpack *u, const AneMl__Program *p, struct ane_mil_program *out);

/* ---- Packing -----------------------------------------------------------------------------------------------------*/

struct mil_pack {
  struct ane_arena arena; /* of the messages */
  ane_mil_place_fn place;
  void *arg;
  ane_status st; /* the first failure; messages are still built, but not used */
  struct ane_error *err;
};

/* An initialised message; an array of n pointers. NULL: out of memory, and p->st is set. */
void *mil_message(struct mil_pack *p, const ProtobufCMessageDescriptor *d);
void *mil_list(struct mil_pack *p, size_t n);
/* Keeps the first failure. */
void mil_pack_fail(struct mil_pack *p, ane_status st, const char *what, const char *name);
/* A string for a field of protobuf-c's messages, whose type is not const. */
char *mil_string(const char *s);
/* The same; absent, as in proto3, if it is empty or NULL. */
char *mil_optional(const char *s);

/* Fills the list `field` of message m: expr is a message for index i. */
#define MIL_LIST(p, m, field, count, expr)                                                                                       \
  do {                                                                                                                           \
    (m)->field = mil_list(p, count);                                                                                             \
    (m)->n_##field = (m)->field ? (count) : 0;                                                                                   \
    for (size_t i = 0; i < (m)->n_##field; i++) (m)->field[i] = (expr);                                                          \
  } while (0)

/* Sorts a map's entries of this type by key and refuses a key that comes twice. */
#define MIL_SORT(p, Type, list, n)                                                                                               \
  do {                                                                                                                           \
    if ((p)->st == ANE_OK && (n) > 1) qsort(list, n, sizeof *(list), by_key_##Type);                                             \
    for (size_t i = 1; (p)->st == ANE_OK && i < (n); i++)                                                                        \
      if (strcmp((list)[i - 1]->key, (list)[i]->key) == 0) mil_pack_fail(p, ANE_INVALID, "comes twice", (list)[i]->key);         \
  } while (0)

/* Both pointers are to entries of a map. */
#define MIL_BY_KEY(Type)                                                                                                         \
  static int by_key_##Type(const void *a, const void *b) {                                                                       \
    return strcmp((*(AneMl__##Type *const *)a)->key, (*(AneMl__##Type *const *)b)->key);                                         \
  }

AneMl__ModelDescription *mil_pack_description(struct mil_pack *p, const struct ane_mil_model *m);

#endif
