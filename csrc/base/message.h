/* Reads protocol buffer messages (protobuf.dev, "Encoding") field by field, for formats that need few fields. It copies nothing
 * and does not recurse: for a nested message the caller opens a reader on the field's bytes. */
#ifndef ANE_BASE_MESSAGE_H
#define ANE_BASE_MESSAGE_H

#include "base/bytes.h"

typedef enum { ANE_MESSAGE_VARINT = 0, ANE_MESSAGE_64 = 1, ANE_MESSAGE_BYTES = 2, ANE_MESSAGE_32 = 5 } ane_message_type;

struct ane_message_field {
  uint32_t number;
  ane_message_type type;
  uint64_t value;      /* the number, or the bits of a float or double */
  const uint8_t *data; /* ANE_MESSAGE_BYTES: data[0..size) in the message */
  size_t size;
};

/* Reads the next field. false: the end, or, if r->bad is set, a malformed message. */
bool ane_message_next(struct ane_reader *r, struct ane_message_field *f);

#endif
