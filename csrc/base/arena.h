/* Bump allocator: many small allocations with one lifetime, freed together. */
#ifndef ANE_BASE_ARENA_H
#define ANE_BASE_ARENA_H

#include "base/attr.h"

struct ane_arena_block;
struct ane_arena {
  struct ane_arena_block *head; /* zero-initialised = empty */
};

/* `size` zeroed bytes, 16-byte aligned, valid until ane_arena_free. NULL: out of memory. */
void *ane_arena_alloc(struct ane_arena *arena, size_t size);
/* The same for an array. Also NULL if count * size overflows. */
void *ane_arena_array(struct ane_arena *arena, size_t count, size_t size);
/* A NUL-terminated copy of s[0..len) in the arena. NULL: out of memory. */
char *ane_arena_strndup(struct ane_arena *arena, const char *s, size_t len);
/* Frees everything. The arena is then empty and usable. */
void ane_arena_free(struct ane_arena *arena);

#endif
