#include "base/arena.h"

#include "base/alloc.h"

#include <string.h>

struct ane_arena_block {
  struct ane_arena_block *next;
  size_t used, size; /* of data */
  _Alignas(16) unsigned char data[];
};

enum { BLOCK_SIZE = 16 * 1024 };

void *ane_arena_alloc(struct ane_arena *arena, size_t size) {
  if (size > SIZE_MAX / 2) return NULL;
  size = ane_align_up(size ? size : 1, 16);
  struct ane_arena_block *b = arena->head;
  if (!b || b->size - b->used < size) {
    size_t room = ANE_MAX(size, (size_t)BLOCK_SIZE);
    b = ane_calloc(1, sizeof *b + room);
    if (!b) return NULL;
    b->size = room;
    b->next = arena->head;
    arena->head = b;
  }
  void *p = b->data + b->used;
  b->used += size;
  return p;
}

void *ane_arena_array(struct ane_arena *arena, size_t count, size_t size) {
  size_t bytes;
  return ane_mul_size(count, size, &bytes) ? ane_arena_alloc(arena, bytes) : NULL;
}

char *ane_arena_strndup(struct ane_arena *arena, const char *s, size_t len) {
  if (len == SIZE_MAX) return NULL;
  char *copy = ane_arena_alloc(arena, len + 1);
  if (copy) memcpy(copy, s, len);
  return copy;
}

void ane_arena_free(struct ane_arena *arena) {
  for (struct ane_arena_block *b = arena->head, *next; b; b = next) {
    next = b->next;
    ane_free(b);
  }
  arena->head = NULL;
}
