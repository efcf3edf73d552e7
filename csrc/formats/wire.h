/* Unpacks protobuf bytes that nobody has checked. protobuf-c does not limit the depth of nesting, and it copies unknown fields
 * and all `bytes` fields. So a message is first walked along its descriptor. Every tag, wire type, length and varint is checked,
 * and a smaller copy is made, which protobuf-c then unpacks:
 *   - fields that the descriptor does not have are left out;
 *   - a `bytes` field holds a reference instead of the bytes: ane_wire_view returns its bytes in the original;
 *   - a `string` field is known to hold no NUL, so its C string is all of it.
 * Refused: groups, field number 0, varints of more than 10 bytes, lengths beyond the parent's end, a wire type that the
 * field cannot have, a second value for a field that is one message, nesting deeper than ANE_WIRE_DEPTH, messages that would take
 * more than 512 MB and 16 times the size of the file. */
#ifndef ANE_FORMATS_WIRE_H
#define ANE_FORMATS_WIRE_H

#include "base/status.h"

#include <protobuf-c/protobuf-c.h>

/* protobuf's own limit of nested messages (google::protobuf::io::CodedInputStream). */
enum { ANE_WIRE_DEPTH = 100 };

/* Messages made here live in ane_malloc memory and are freed with this allocator:
 * protobuf_c_message_free_unpacked(message, &ane_wire_allocator). */
extern ProtobufCAllocator ane_wire_allocator;

/* Checks and unpacks a message. *out is NULL on failure. Errors: ANE_FORMAT (names message, field, byte), ANE_NOMEM. */
ane_status ane_wire_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t size, ProtobufCMessage **out,
                           struct ane_error *err);

/* The bytes that a `bytes` field of a message unpacked from `data` stands for. */
const uint8_t *ane_wire_view(const ProtobufCBinaryData *ref, const uint8_t *data, size_t *size);

#endif
