/* What the files of the Core AI format share. */
#ifndef ANE_FORMATS_AI_INTERNAL_H
#define ANE_FORMATS_AI_INTERNAL_H

#include "formats/aimodel/aimodel.h"

#define AI_DIALECT "aicode"
/* MLIR bytecode: sections, by number. */
enum {
  AI_STRINGS,
  AI_DIALECTS,
  AI_ATTRIBUTES,
  AI_ATTRIBUTE_OFFSETS,
  AI_IR,
  AI_RESOURCES,
  AI_RESOURCE_OFFSETS,
  AI_DIALECT_VERSIONS,
  AI_PROPERTIES,
  AI_SECTIONS
};
enum { AI_BYTECODE = 6, AI_DIALECT_VERSION = 2, AI_ASSET_VERSION = 20260317, AI_ALIGN = 16, AI_PAD = 0xCB };

/* Codes of attributes and types of the dialect. */
enum {
  AI_ATTR_STRING = 1,
  AI_ATTR_INTEGER = 2,
  AI_ATTR_TYPE = 4,
  AI_ATTR_ARRAY = 5,
  AI_ATTR_ELEMENTS = 6,
  AI_ATTR_RESOURCE = 7,
  AI_ATTR_NAMED = 9,
  AI_ATTR_LAYOUT = 12,
  AI_ATTR_SCOPE = 14,
  AI_ATTR_SYMBOL = 16,
  AI_ATTR_GELU = 19,
  AI_ATTR_FILE = 30,
  AI_ATTR_SOURCE = 31,
  AI_ATTR_LOCATION = 40,
  AI_TYPE_TENSOR = 2,
  AI_TYPE_LAID_OUT = 3, /* a tensor with a layout */
  AI_TYPE_FUNCTION = 30,
  AI_TYPE_HANDLE = 31,
  AI_TYPE_TOKEN = 32,
  AI_TYPE_NONE = 33
};

/* Where a layout's memory is. */
enum { AI_BUFFER, AI_IOSURFACE, AI_HEAP };

/* The bits of an operation's mask: which parts follow, in this order. */
enum {
  AI_HAS_ATTRIBUTES = 0x01,
  AI_HAS_RESULTS = 0x02,
  AI_HAS_OPERANDS = 0x04,
  AI_HAS_SUCCESSORS = 0x08,
  AI_HAS_REGIONS = 0x10,
  AI_HAS_USE_ORDERS = 0x20,
  AI_HAS_PROPERTIES = 0x40
};

/* ---- Rows of ai_op.def --------------------------------------------------------------------------------------------------*/

typedef enum {
  AI_BODY_NONE,
  AI_BODY_SIGMOID,
  AI_BODY_SILU,
  AI_BODY_RELU,
  AI_BODY_BROADCAST,
  AI_BODY_BROADCAST_MATMUL,
  AI_BODY_SOFTMAX,
  AI_BODY_ARGMAX,
  AI_BODY_REDUCE,
  AI_BODY_MEAN
} ai_body;

struct ai_row {
  const char *name;
  int version, in, out;
  ai_body body;
};
extern const struct ai_row ai_rows[ANE_AI_OPS];

/* Makes the body of an operation that needs one. Errors: ANE_NOMEM, those of ane_ai_build_end. */
ane_status ai_body_make(struct ane_arena *arena, const struct ane_ai_op *op, struct ane_ai_function *out, struct ane_error *err);

/* Element i of an integer constant, or false: not a constant, not in memory, no integer, beyond the end. */
bool ai_constant_int(const struct ane_ai_value *v, uint64_t i, int64_t *out);

/* Is v a constant, in the program, of elements below a byte that are all equal? first: one of them. Apple's library takes others
 * of these types from resources only. */
bool ai_uniform(const struct ane_ai_value *v, uint8_t *first);

/* ---- Bytes of bytecode ---------------------------------------------------------------------------------------------------*/

/* A varint: the number of zero bits at the end of the first byte is the number of bytes that follow. */
enum { AI_VARINT = 9 };
size_t ai_varint(uint8_t out[AI_VARINT], uint64_t v);
/* In nine bytes, whatever the value is. */
void ai_varint_wide(uint8_t out[AI_VARINT], uint64_t v);

/* What an asset holds besides the resources: the sections that are written behind them. `keys`: bytes of each resource with its
 * header, by number. */
ane_status ai_pack(const struct ane_ai_program *p, const uint64_t *entries, uint32_t n, struct ane_buffer *out,
                   struct ane_error *err);

#endif
