#include "base/bytes.h"

#include "base/alloc.h"

#include <string.h>

uint16_t ane_load_u16(const void *p) {
  const uint8_t *b = p;
  return (uint16_t)(b[0] | b[1] << 8);
}

uint32_t ane_load_u32(const void *p) {
  const uint8_t *b = p;
  return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t ane_load_u64(const void *p) { return (uint64_t)ane_load_u32(p) | (uint64_t)ane_load_u32((const uint8_t *)p + 4) << 32; }

void ane_store_u32(void *p, uint32_t v) {
  for (int i = 0; i < 4; i++) ((uint8_t *)p)[i] = (uint8_t)(v >> 8 * i);
}

void ane_store_u64(void *p, uint64_t v) {
  ane_store_u32(p, (uint32_t)v);
  ane_store_u32((uint8_t *)p + 4, (uint32_t)(v >> 32));
}

const uint8_t *ane_read_bytes(struct ane_reader *r, uint64_t n) {
  if (r->bad || n > r->size - r->pos) {
    r->bad = true;
    return NULL;
  }
  const uint8_t *p = r->data + r->pos;
  r->pos += (size_t)n;
  return p;
}

uint8_t ane_read_u8(struct ane_reader *r) {
  const uint8_t *p = ane_read_bytes(r, 1);
  return p ? *p : 0;
}

uint32_t ane_read_u32(struct ane_reader *r) {
  const uint8_t *p = ane_read_bytes(r, 4);
  return p ? ane_load_u32(p) : 0;
}

uint64_t ane_read_u64(struct ane_reader *r) {
  const uint8_t *p = ane_read_bytes(r, 8);
  return p ? ane_load_u64(p) : 0;
}

bool ane_buffer_reserve(struct ane_buffer *b, size_t extra) {
  size_t need;
  if (!ane_add_size(b->size, extra, &need) || need > SIZE_MAX / 2) return false;
  if (need <= b->room) return true;
  size_t room = ANE_MAX(ANE_MAX(need, b->room * 2), (size_t)64);
  uint8_t *data = ane_realloc(b->data, room);
  if (!data) return false;
  b->data = data;
  b->room = room;
  return true;
}

bool ane_buffer_append(struct ane_buffer *b, const void *data, size_t size) {
  if (!ane_buffer_reserve(b, size)) return false;
  if (size) memcpy(b->data + b->size, data, size);
  b->size += size;
  return true;
}

void ane_buffer_free(struct ane_buffer *b) {
  ane_free(b->data);
  *b = (struct ane_buffer){0};
}
