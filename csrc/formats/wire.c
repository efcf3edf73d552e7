#include "formats/wire.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <string.h>

enum wire { WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_GROUP, WIRE_GROUP_END, WIRE_FIXED32 };

struct walk {
  const uint8_t *base;    /* of the whole input: for positions in errors and references */
  struct ane_buffer lean; /* the smaller copy that protobuf-c unpacks */
  uint64_t memory, most;  /* bytes that the messages and texts so far take when they are unpacked, and their limit */
  struct ane_error *err;
};

/* One field as it lies in the input. */
struct item {
  uint64_t number;
  enum wire wire;
  uint64_t value;          /* VARINT */
  const uint8_t *from, *p; /* of the tag; of the value or content */
  uint64_t size;           /* bytes of the value or content */
};

/* ---- Reading -------------------------------------------------------------------------------------------------------*/

static ane_status wrong(struct walk *w, const ProtobufCMessageDescriptor *d, const uint8_t *at, const char *what) {
  return ane_fail(w->err, ANE_FORMAT, "%s at byte %zu: %s", d->short_name, (size_t)(at - w->base), what);
}

/* Length of the varint at p in bytes; 0: it does not end within ten bytes or before `end`. */
static size_t read_varint(const uint8_t *p, const uint8_t *end, uint64_t *value) {
  *value = 0;
  for (size_t i = 0; i < 10 && p + i < end; i++) {
    *value |= (uint64_t)(p[i] & 0x7F) << 7 * i;
    if (p[i] < 0x80) return i + 1;
  }
  return 0;
}

static ane_status read_item(struct walk *w, const ProtobufCMessageDescriptor *d, const uint8_t *p, const uint8_t *end,
                            struct item *it) {
  uint64_t tag, len;
  size_t n = read_varint(p, end, &tag);
  if (!n) return wrong(w, d, p, "the tag is not a varint of at most ten bytes");
  *it = (struct item){.number = tag >> 3, .wire = tag & 7, .from = p, .p = p + n};
  if (it->number == 0 || it->number > 0x1FFFFFFF) return wrong(w, d, p, "the field number is not in 1 .. 2^29 - 1");
  switch ((unsigned)it->wire) {
    case WIRE_VARINT:
      if (!(it->size = read_varint(it->p, end, &it->value))) return wrong(w, d, it->p, "a varint does not end within ten bytes");
      return ANE_OK;
    case WIRE_FIXED64: it->size = 8; break;
    case WIRE_FIXED32: it->size = 4; break;
    case WIRE_BYTES:
      if (!(n = read_varint(it->p, end, &len))) return wrong(w, d, it->p, "a length is not a varint of at most ten bytes");
      it->p += n;
      it->size = len;
      break;
    case WIRE_GROUP:
    case WIRE_GROUP_END: return wrong(w, d, p, "a group, which is not supported");
    default: return wrong(w, d, p, "a wire type that does not exist");
  }
  if (it->size > (uint64_t)(end - it->p)) {
    return ane_fail(w->err, ANE_FORMAT, "%s at byte %zu: field %" PRIu64 " has %" PRIu64 " bytes, only %zu are left",
                    d->short_name, (size_t)(p - w->base), it->number, it->size, (size_t)(end - it->p));
  }
  return ANE_OK;
}

static enum wire wire_of(ProtobufCType t) {
  switch (t) {
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT: return WIRE_FIXED32;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return WIRE_FIXED64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: return WIRE_BYTES;
    default: return WIRE_VARINT;
  }
}

/* Does the field hold packed numbers that end exactly with it? */
static bool packed_ok(const struct item *it, enum wire each) {
  if (each == WIRE_FIXED32) return it->size % 4 == 0;
  if (each == WIRE_FIXED64) return it->size % 8 == 0;
  uint64_t v;
  for (const uint8_t *p = it->p, *end = it->p + it->size; p < end;) {
    size_t n = read_varint(p, end, &v);
    if (!n) return false;
    p += n;
  }
  return true;
}

/* ---- Writing -------------------------------------------------------------------------------------------------------*/

/* Writes a length as a varint of five bytes, whatever its value, so that it can be filled in after the content is written. */
static void put_length(uint8_t *p, size_t n) {
  for (int i = 0; i < 5; i++) p[i] = (uint8_t)((n >> 7 * i & 0x7F) | (i < 4 ? 0x80 : 0));
}

static ane_status append(struct walk *w, const void *p, size_t n) {
  return ane_buffer_append(&w->lean, p, n) ? ANE_OK : ane_fail(w->err, ANE_NOMEM, "no memory for a protobuf message");
}

/* Writes the tag of a field and leaves room for its length at *hole. */
static ane_status open_bytes(struct walk *w, const struct item *it, size_t *hole) {
  uint8_t room[5] = {0};
  size_t tag = (size_t)(it->p - it->from); /* tag and stored length; only the tag is copied */
  uint64_t v;
  tag = read_varint(it->from, it->from + tag, &v);
  ane_status st = append(w, it->from, tag);
  *hole = w->lean.size;
  return st ? st : append(w, room, sizeof room);
}

static ane_status put_reference(struct walk *w, const struct item *it) {
  uint8_t ref[16];
  size_t hole;
  uint64_t at = (uint64_t)(it->p - w->base);
  for (int i = 0; i < 8; i++) ref[i] = (uint8_t)(at >> 8 * i), ref[8 + i] = (uint8_t)(it->size >> 8 * i);
  ane_status st = open_bytes(w, it, &hole);
  if (st) return st;
  put_length(w->lean.data + hole, sizeof ref);
  return append(w, ref, sizeof ref);
}

const uint8_t *ane_wire_view(const ProtobufCBinaryData *ref, const uint8_t *data, size_t *size) {
  *size = 0;
  if (ref->len != 16) return data; /* absent */
  *size = (size_t)ane_load_u64(ref->data + 8);
  return data + ane_load_u64(ref->data);
}

/* What the system adds to each piece of memory, with the pointer to it. */
enum { PIECE = 32 };

/* An empty message takes two bytes of the file, and a hundred when it is unpacked. */
static ane_status take_memory(struct walk *w, const ProtobufCMessageDescriptor *d, const struct item *it, size_t bytes) {
  w->memory += bytes + PIECE;
  return w->memory <= w->most ? ANE_OK : wrong(w, d, it->from, "its messages take much more memory than the file");
}

/* ---- The walk ------------------------------------------------------------------------------------------------------*/

static ane_status walk_message(struct walk *w, const ProtobufCMessageDescriptor *d, const uint8_t *p, const uint8_t *end,
                               int depth);

static ane_status walk_nested(struct walk *w, const ProtobufCMessageDescriptor *d, const struct item *it, int depth) {
  if (depth >= ANE_WIRE_DEPTH)
    return ane_fail(w->err, ANE_FORMAT, "messages nested deeper than %d at byte %zu", ANE_WIRE_DEPTH,
                    (size_t)(it->from - w->base));
  size_t hole;
  ane_status st = take_memory(w, d, it, d->sizeof_message);
  if (!st) st = open_bytes(w, it, &hole);
  if (!st) st = walk_message(w, d, it->p, it->p + it->size, depth + 1);
  if (st) return st;
  size_t n = w->lean.size - hole - 5;
  if (n > INT32_MAX) return wrong(w, d, it->from, "a message of more than 2 GiB");
  put_length(w->lean.data + hole, n);
  return ANE_OK;
}

static ane_status walk_field(struct walk *w, const ProtobufCMessageDescriptor *d, const ProtobufCFieldDescriptor *f,
                             const struct item *it, int depth) {
  enum wire each = wire_of(f->type);
  bool packed = f->label == PROTOBUF_C_LABEL_REPEATED && each != WIRE_BYTES && it->wire == WIRE_BYTES;
  if (it->wire != each && !packed) {
    return ane_fail(w->err, ANE_FORMAT, "%s.%s at byte %zu has wire type %d, but must have %d", d->short_name, f->name,
                    (size_t)(it->from - w->base), (int)it->wire, (int)each);
  }
  if (packed && !packed_ok(it, each)) return wrong(w, d, it->from, "packed numbers do not end with their field");
  if (f->type == PROTOBUF_C_TYPE_MESSAGE) return walk_nested(w, f->descriptor, it, depth);
  if (f->type == PROTOBUF_C_TYPE_BYTES || f->type == PROTOBUF_C_TYPE_STRING) {
    ane_status st = take_memory(w, d, it, f->type == PROTOBUF_C_TYPE_STRING ? (size_t)it->size : sizeof(ProtobufCBinaryData));
    if (st) return st;
  }
  if (f->type == PROTOBUF_C_TYPE_BYTES) return put_reference(w, it);
  if (f->type == PROTOBUF_C_TYPE_STRING) {
    if (it->size && memchr(it->p, 0, (size_t)it->size))
      return ane_fail(w->err, ANE_FORMAT, "%s.%s at byte %zu holds a NUL", d->short_name, f->name, (size_t)(it->from - w->base));
    if (it->size > INT32_MAX) return wrong(w, d, it->from, "a text of more than 2 GiB");
  }
  return append(w, it->from, (size_t)(it->p - it->from + (ptrdiff_t)it->size));
}

static ane_status walk_message(struct walk *w, const ProtobufCMessageDescriptor *d, const uint8_t *p, const uint8_t *end,
                               int depth) {
  uint64_t seen = 0; /* bit i: field i of the descriptor, a single message, has come */
  while (p < end) {
    struct item it = {0};
    ane_status st = read_item(w, d, p, end, &it);
    if (st) return st;
    p = it.p + it.size;
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(d, (unsigned)it.number);
    if (!f) continue;
    size_t i = (size_t)(f - d->fields);
    if (f->type == PROTOBUF_C_TYPE_MESSAGE && f->label != PROTOBUF_C_LABEL_REPEATED && i < 64) {
      if (seen >> i & 1)
        return ane_fail(w->err, ANE_FORMAT, "%s.%s at byte %zu comes a second time", d->short_name, f->name,
                        (size_t)(it.from - w->base));
      seen |= UINT64_C(1) << i;
    }
    st = walk_field(w, d, f, &it, depth);
    if (st) return st;
  }
  return ANE_OK;
}

/* ---- Unpacking -----------------------------------------------------------------------------------------------------*/

static void *wire_alloc(void *arg ANE_UNUSED, size_t size) { return ane_malloc(size); }
static void wire_free(void *arg ANE_UNUSED, void *p) { ane_free(p); }

/* The most memory of unpacked messages: MOST_MEMORY bytes and a multiple of the size of the file. */
enum { MOST_MEMORY = 1 << 29, MOST_TIMES = 16 };

ProtobufCAllocator ane_wire_allocator = {wire_alloc, wire_free, NULL};

ane_status ane_wire_unpack(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t size, ProtobufCMessage **out,
                           struct ane_error *err) {
  struct walk w = {.base = data, .most = MOST_MEMORY + MOST_TIMES * (uint64_t)size, .err = err};
  *out = NULL;
  ane_status st = walk_message(&w, d, data, data + size, 1);
  /* What protobuf-c could still refuse has been checked, so a failure is one of memory. */
  if (!st && !(*out = protobuf_c_message_unpack(d, &ane_wire_allocator, w.lean.size, w.lean.data ? w.lean.data : data)))
    st = ane_fail(err, ANE_NOMEM, "no memory for a protobuf message of %zu bytes", w.lean.size);
  ane_buffer_free(&w.lean);
  return st;
}
