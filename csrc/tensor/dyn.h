/* Dynamic tensors: tensors whose shapes are known only when a program runs, and the memory that holds them.
 * A tensor is a small struct. Its elements lie in a reference-counted block of an ane_dyn_memory, or in borrowed memory that
 * outlives it. Not thread-safe: reference counts are plain integers. */
#ifndef ANE_TENSOR_DYN_H
#define ANE_TENSOR_DYN_H

#include "tensor/tensor.h"

enum { ANE_DYN_RANK = 10 };

/* ---- Memory ------------------------------------------------------------------------------------------------------*/

/* A block of memory. `next` links the free blocks of a size class; the owner of a block in use may use it for lists of its
 * own. */
struct ane_dyn_block {
  struct ane_dyn_block *next;
  uint32_t refs, size_class;
  uint64_t size; /* of data */
  _Alignas(64) unsigned char data[];
};

/* The limit of what all memories of a model hold together. A file of a few bytes can name tensors of any size, so each graph that
 * comes from a file runs within a budget. Reference-counted. */
struct ane_dyn_budget {
  uint64_t limit; /* 0: not fixed yet, see below */
  uint64_t held;  /* bytes in all blocks of its memories */
  int refs;
  struct ane_dyn_memory *memories; /* a list */
};
enum { ANE_DYN_ALWAYS = 256 << 20 };
/* Makes a budget with one owner; NULL: out of memory. limit: bytes; 0: ANE_DYN_ALWAYS bytes at first. When these do not suffice
 * for the first time, the limit becomes half of the memory that is free then. */
struct ane_dyn_budget *ane_dyn_budget_new(uint64_t limit);
struct ane_dyn_budget *ane_dyn_budget_keep(struct ane_dyn_budget *b); /* adds an owner; returns b */
void ane_dyn_budget_drop(struct ane_dyn_budget *b);                   /* NULL is fine; the last owner frees it */
/* Returns the limit, and fixes it if it is not fixed yet. */
uint64_t ane_dyn_budget_limit(struct ane_dyn_budget *b);
/* Checks that `bytes` more can be held. b NULL: there is no limit. Errors: ANE_NOMEM. */
ane_status ane_dyn_budget_check(struct ane_dyn_budget *b, uint64_t bytes, struct ane_error *err);

/* Memory that grows. A freed block serves later requests of about its size. Before a request fails for lack of budget, all free
 * blocks of the budget's memories are given back to the system. */
struct ane_dyn_memory {
  uint64_t limit;                  /* no single block may be larger; 0: no limit */
  uint64_t refused;                /* the last size that exceeded the limit or the budget */
  uint64_t used, peak;             /* bytes in blocks handed out */
  uint64_t held;                   /* bytes in all blocks */
  struct ane_dyn_budget *budget;   /* an owner of it; NULL: none */
  struct ane_dyn_memory *next;     /* in the budget's list */
  struct ane_dyn_block *free[128]; /* by size class */
};
/* Puts an empty memory under a budget, of which it becomes an owner. It must not move from then on. */
void ane_dyn_memory_use(struct ane_dyn_memory *m, struct ane_dyn_budget *b);
/* Frees the memory and leaves its budget. All blocks must have been given back. */
void ane_dyn_memory_free(struct ane_dyn_memory *m);

/* Returns a block with one owner, not zeroed. NULL: ANE_RANGE (above the limit) or ANE_NOMEM (no memory, or beyond the
 * budget). */
struct ane_dyn_block *ane_dyn_block_new(struct ane_dyn_memory *m, uint64_t bytes, struct ane_error *err);
/* Drops one reference. The last one frees the block. */
void ane_dyn_block_give(struct ane_dyn_memory *m, struct ane_dyn_block *b);

/* ---- Tensors -----------------------------------------------------------------------------------------------------*/

struct ane_coded; /* prim/prim.h */

/* A row-major, dense tensor. 4-bit types have two elements per byte over the flat array, low nibble first. A copy of the struct
 * is a view that must not outlive the block; ane_dyn_keep makes it an owner. */
struct ane_dyn {
  ane_dtype dtype;
  int32_t rank;
  int64_t dim[ANE_DYN_RANK];
  int64_t count;                 /* product of dim */
  const void *data;              /* constants may be unaligned */
  struct ane_dyn_block *block;   /* NULL: borrowed for as long as the graph lives */
  const struct ane_coded *coded; /* not NULL: elements are computed from codes, dtype is fp32 and data NULL */
};
/* ane_dyn_keep adds a reference. ane_dyn_drop drops one and empties the struct (dtype 0, count 0, data NULL). */
void ane_dyn_keep(const struct ane_dyn *t);
void ane_dyn_drop(struct ane_dyn_memory *m, struct ane_dyn *t);
/* Is this the only reference? Then the elements may be changed. */
bool ane_dyn_alone(const struct ane_dyn *t);
/* Allocates a tensor whose dtype, rank and dim are set. Fills count, data, block. Errors: ANE_RANGE, ANE_NOMEM. */
ane_status ane_dyn_alloc(struct ane_dyn_memory *m, struct ane_dyn *t, struct ane_error *err);
/* Returns the elements of a tensor that ane_dyn_alloc made, to write to before it is shared. */
void *ane_dyn_data(const struct ane_dyn *t);
/* Returns the bytes of the elements. */
uint64_t ane_dyn_bytes(const struct ane_dyn *t);
/* Writes "fp32[1, 4, 16]" to out and returns it. */
enum { ANE_DYN_TEXT = 200 };
const char *ane_dyn_text(const struct ane_dyn *t, char out[ANE_DYN_TEXT]);

/* ---- Shapes ------------------------------------------------------------------------------------------------------*/

/* ane_count_elements for the dimensions of a dynamic tensor. */
bool ane_dyn_count(int rank, const int64_t *dim, int64_t *count);
/* Writes "[2, 3]" to out and returns it. */
const char *ane_dyn_dims(int rank, const int64_t *dim, char out[ANE_DYN_TEXT]);

#endif
