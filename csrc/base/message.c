#include "base/message.h"

/* At most ten bytes; the tenth holds one bit. */
static uint64_t varint(struct ane_reader *r) {
  uint64_t v = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    uint8_t b = ane_read_u8(r);
    if (r->bad || (shift == 63 && b > 1)) break;
    v |= (uint64_t)(b & 0x7F) << shift;
    if (b < 0x80) return v;
  }
  r->bad = true;
  return 0;
}

bool ane_message_next(struct ane_reader *r, struct ane_message_field *f) {
  if (!ane_reader_left(r)) return false;
  uint64_t tag = varint(r);
  *f = (struct ane_message_field){.number = (uint32_t)(tag >> 3), .type = (ane_message_type)(tag & 7)};
  if (tag >> 32 || f->number == 0) r->bad = true;
  switch (f->type) {
    case ANE_MESSAGE_VARINT: f->value = varint(r); break;
    case ANE_MESSAGE_64: f->value = ane_read_u64(r); break;
    case ANE_MESSAGE_32: f->value = ane_read_u32(r); break;
    case ANE_MESSAGE_BYTES:
      f->value = varint(r);
      f->data = ane_read_bytes(r, f->value);
      f->size = (size_t)f->value;
      break;
    default: r->bad = true; /* groups are not supported */
  }
  return !r->bad;
}
