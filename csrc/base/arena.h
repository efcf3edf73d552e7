/* Bump allocator: many small things with one life time, freed at once. */
#ifndef ANE_BASE_ARENA_H
#define ANE_BASE_ARENA_H

#include "base/attr.h"

struct ane_arena_block;
struct ane_arena {
  struct ane_arena_block *head; /* zero-initialised = empty */
};

/* `size` zeroed bytes, 16-byte aligned, alive until ane_arena_free; NULL where there is no memory. */
void *ane_arena_alloc(struct ane_arena *arena, size_t size);
/* The same for an array, overflow checked. */
void *ane_arena_array(struct ane_arena *arena, size_t count, size_t size);
/* Copy of s[0..len) with a NUL behind. */
char *ane_arena_strndup(struct ane_arena *arena, const char *s, size_t len);
/* Frees everything; the arena is empty and usable again. */
void ane_arena_free(struct ane_arena *arena);

#endif
