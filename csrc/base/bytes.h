/* A bounds-checked little-endian reader, and a growable byte buffer. */
#ifndef ANE_BASE_BYTES_H
#define ANE_BASE_BYTES_H

#include "base/attr.h"

/* Reads borrowed bytes. The first read beyond the end sets `bad`; that read and all later ones return zeros (or NULL), so a
 * parser may check once after a group of reads. */
struct ane_reader {
  const uint8_t *data;
  size_t size, pos;
  bool bad;
};

static inline struct ane_reader ane_reader_of(const void *data, size_t size) {
  return (struct ane_reader){(const uint8_t *)data, size, 0, false};
}
static inline size_t ane_reader_left(const struct ane_reader *r) { return r->bad ? 0 : r->size - r->pos; }
/* The next n bytes; NULL, with `bad` set, if there are fewer. */
const uint8_t *ane_read_bytes(struct ane_reader *r, uint64_t n);
uint8_t ane_read_u8(struct ane_reader *r);
uint32_t ane_read_u32(struct ane_reader *r);
uint64_t ane_read_u64(struct ane_reader *r);

/* Loads from unaligned little-endian memory. */
uint16_t ane_load_u16(const void *p);
uint32_t ane_load_u32(const void *p);
uint64_t ane_load_u64(const void *p);
/* Stores to unaligned little-endian memory. */
void ane_store_u32(void *p, uint32_t v);
void ane_store_u64(void *p, uint64_t v);

/* A growable buffer. Zero-initialised = empty. Free the data with ane_buffer_free. */
struct ane_buffer {
  uint8_t *data;
  size_t size, room;
};

/* Appends. false: out of memory; the buffer is unchanged. */
ANE_NODISCARD bool ane_buffer_append(struct ane_buffer *b, const void *data, size_t size);
/* Makes room for `extra` more bytes. false: out of memory; the buffer is unchanged. */
ANE_NODISCARD bool ane_buffer_reserve(struct ane_buffer *b, size_t extra);
void ane_buffer_free(struct ane_buffer *b);

#endif
