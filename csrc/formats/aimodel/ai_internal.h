/* Declarations that the files of the Core AI format share. */
#ifndef ANE_FORMATS_AI_INTERNAL_H
#define ANE_FORMATS_AI_INTERNAL_H

#include "formats/aimodel/aimodel.h"

#define AI_DIALECT "aicode"

/* Sections of MLIR bytecode, by number. */
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

/* Codes of the dialect's attributes and types. */
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
  AI_ATTR_PAD = 17,
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

/* The memory that a layout asks for. */
enum { AI_BUFFER, AI_IOSURFACE, AI_HEAP };

/* Bits of an operation's mask. The parts that it announces follow in this order. */
enum {
  AI_HAS_ATTRIBUTES = 0x01,
  AI_HAS_RESULTS = 0x02,
  AI_HAS_OPERANDS = 0x04,
  AI_HAS_SUCCESSORS = 0x08,
  AI_HAS_REGIONS = 0x10,
  AI_HAS_USE_ORDERS = 0x20,
  AI_HAS_PROPERTIES = 0x40
};

/* ---- Rows of ai_op.def ----------------------------------------------------------------------------------------------*/

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

/* Builds the body of an operation whose row has one. Errors: ANE_NOMEM, those of ane_ai_build_end. */
ane_status ai_body_make(struct ane_arena *arena, const struct ane_ai_op *op, struct ane_ai_function *out, struct ane_error *err);

/* Sets *out to element i of an integer constant. False if v is not a constant, has no data, is not of integers, or has no
 * element i. */
bool ai_constant_int(const struct ane_ai_value *v, uint64_t i, int64_t *out);

/* Is v a constant with sub-byte elements that are all equal? Sets *first to their value. Apple's library reads other sub-byte
 * constants from resources only. */
bool ai_uniform(const struct ane_ai_value *v, uint8_t *first);

/* ---- Bytes of bytecode ----------------------------------------------------------------------------------------------*/

/* A varint. The number of trailing zero bits of the first byte is the number of bytes that follow. Returns its size. */
enum { AI_VARINT = 9 };
size_t ai_varint(uint8_t out[AI_VARINT], uint64_t v);
/* Writes the form of nine bytes, so that a placeholder can be overwritten with any value. */
void ai_varint_wide(uint8_t out[AI_VARINT], uint64_t v);

/* Appends the sections that follow the resources: all of the file except its header and the resource section. entries [n]: bytes
 * of each resource, with its header. Errors: ANE_NOMEM, those of ai_body_make. */
ane_status ai_pack(const struct ane_ai_program *p, const uint64_t *entries, uint32_t n, struct ane_buffer *out,
                   struct ane_error *err);

#endif
