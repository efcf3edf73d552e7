/* What the kernels share: parameters, memory, loops, matrices. */
#ifndef ANE_PRIM_INTERNAL_H
#define ANE_PRIM_INTERNAL_H

#include "prim/prim.h"

#define ANE_PRIM(name, params, outputs) ane_status prim_##name(struct ane_prim_call *c);
#include "prim/prim.def"
#undef ANE_PRIM

/* ---- Inputs --------------------------------------------------------------------------------------------------------*/

/* Returns the input of this name, or NULL. The op must have a parameter of this name. */
const struct ane_dyn *prim_in(const struct ane_prim_call *c, const char *name);
/* Returns the index of the first variadic input. They end at c->n_in. */
int prim_first(const struct ane_prim_call *c);

/* Return one number; `def` if it is absent. An invalid one (several elements, a text, outside int64) sets c->status. */
int64_t prim_int(struct ane_prim_call *c, const char *name, int64_t def);
float prim_float(struct ane_prim_call *c, const char *name, float def);
bool prim_bool(struct ane_prim_call *c, const char *name, bool def);
/* Returns an axis of a tensor of this rank; negative ones count from the end. One that is out of range sets c->status. */
int prim_axis(struct ane_prim_call *c, const char *name, int64_t def, int rank);
/* Reads a list of at most `most` integers. Returns their number; -1 if the list is absent, or invalid (c->status is then set). */
int prim_ints(struct ane_prim_call *c, const char *name, int64_t *out, int most);
/* Returns a text (a uint8 tensor); `def` if it is absent, "" if it is too long or of another type. */
enum { PRIM_TEXT = 64 };
const char *prim_text(struct ane_prim_call *c, const char *name, const char *def, char out[PRIM_TEXT]);
/* Returns the dtype that a text names (fp16, bf16, fp64, ... are fp32 here); `def` if it is absent. An unknown one sets
 * c->status. */
ane_dtype prim_dtype(struct ane_prim_call *c, const char *name, ane_dtype def);
/* Returns several axes as a bit mask; all axes if the list is absent. */
uint32_t prim_axes(struct ane_prim_call *c, const char *name, int rank);

/* Return all elements as floats or as integers, in memory that lasts until the call ends; NULL: no memory, and c->status is set.
 * If the tensor has the type already, the result points into it. */
const float *prim_f32(struct ane_prim_call *c, const struct ane_dyn *t);
const int64_t *prim_i64(struct ane_prim_call *c, const struct ane_dyn *t);

/* Returns all elements in a type that results can have and that fills whole bytes, *as: floats as float32, 4-bit integers as
 * 8-bit ones, others as they are. NULL: c->status is set. */
const void *prim_elements(struct ane_prim_call *c, const struct ane_dyn *t, ane_dtype *as);

static inline bool prim_is_float(ane_dtype t) {
  return t == ANE_F32 || t == ANE_F16 || t == ANE_BF16 || t == ANE_F64 || t == ANE_F8E4M3 || t == ANE_F8E5M2;
}
/* Are the elements 8-bit codes, as the products of integers take them? */
static inline bool prim_is_code(const struct ane_dyn *t) { return t->dtype == ANE_I8 || t->dtype == ANE_U8; }

/* ---- Results -------------------------------------------------------------------------------------------------------*/

/* Returns memory that lasts until the call ends, 64-byte aligned, not zeroed; NULL: c->status is set. */
void *prim_temp(struct ane_prim_call *c, uint64_t bytes);
/* The same for an array of this shape with elements of `size` bytes. A shape of too many elements sets c->status. */
void *prim_temp_array(struct ane_prim_call *c, size_t size, int rank, const int64_t *dim);
/* Frees what prim_temp returned since c->temps was `until`; NULL: all of it. */
void prim_drop(struct ane_prim_call *c, const struct ane_dyn_block *until);
/* Allocates output i with this shape. Returns its data, not zeroed (never NULL for an empty one); NULL: c->status is set. A type
 * whose elements do not fill whole bytes is refused. */
void *prim_out(struct ane_prim_call *c, int i, ane_dtype t, int rank, const int64_t *dim);
/* Makes output i a view of the elements of t with another shape of as many elements. */
ane_status prim_view(struct ane_prim_call *c, int i, const struct ane_dyn *t, int rank, const int64_t *dim);
/* Writes 64-bit integers as elements of an integer type or bool; wraps. */
void prim_store(ane_dtype t, void *dst, const int64_t *src, int64_t n);
bool prim_wanted(const struct ane_prim_call *c, int i);

/* Fills c->status and the error. */
ane_status prim_fail(struct ane_prim_call *c, ane_status code, const char *fmt, ...) ANE_PRINTF(3, 4);

/* ---- Shapes --------------------------------------------------------------------------------------------------------*/

/* Computes row-major strides in elements. */
void prim_strides(int rank, const int64_t *dim, int64_t *stride);
/* Broadcasts two shapes as NumPy does; false: they do not fit. out may be one of them. */
bool prim_broadcast(int ra, const int64_t *a, int rb, const int64_t *b, int *rank, int64_t out[ANE_DYN_RANK]);
/* Computes the strides of t, seen as a tensor of the shape (rank, dim) that it broadcasts to: 0 along repeated axes. */
void prim_broadcast_strides(const struct ane_dyn *t, int rank, const int64_t *dim, int64_t *stride);

/* Bytes of one element of a type that fills whole bytes. */
static inline size_t prim_width(ane_dtype t) { return ane_dtype_info(t)->bytes; }

/* Copies an n-dimensional block of elements of `size` bytes: dst is dense, src is strided (in elements). */
void prim_copy(void *dst, const void *src, size_t size, int rank, const int64_t *dim, const int64_t *stride);
/* Copies the other way: dst is strided, src is dense. */
void prim_copy_into(void *dst, const void *src, size_t size, int rank, const int64_t *dim, const int64_t *stride);

/* ---- Threads -------------------------------------------------------------------------------------------------------*/

/* Calls fn(arg, from, to, thread) over ranges of [0, n); makes a single call if `work` (roughly, multiply-adds) is small. */
typedef void (*prim_range_fn)(void *arg, int64_t from, int64_t to, int thread);
void prim_parallel(const struct ane_prim_call *c, int64_t n, double work, prim_range_fn fn, void *arg);
static inline int prim_threads(const struct ane_prim_call *c) { return ane_pool_threads(c->pool); }

/* ---- Matrices ------------------------------------------------------------------------------------------------------*/

/* A weight matrix [rows, cols] that products read 16 rows at a time. Float weights are packed once. Stored codes stay as they
 * are and are decoded to float32 when they are used. */
struct prim_matrix {
  int64_t rows, cols;
  struct ane_packed packed; /* layout ROWS: not packed, the fields below say how to decode */
  void *memory;
  uint64_t bytes; /* of memory */
  /* Codes. Element (r, k) has code number r * row_stride + k * col_stride (in codes), and scale and zero point number
   * (r / row_block) * scale_row + (k / block) * scale_col; if g_idx is given, g_idx[k] replaces k / block. */
  const uint8_t *codes;
  int bits; /* 2, 4, 8 */
  bool is_signed;
  int64_t row_stride, col_stride, block, row_block, scale_row, scale_col;
  const float *scales; /* converted; in memory */
  const float *zeros;  /* one for each scale, or NULL: zero_default */
  float zero_default;
  const uint8_t *g_idx; /* int32 [cols], maybe unaligned; or NULL */
};

struct ane_prim_state {
  int n;
  struct prim_matrix m[]; /* in the order of the op's inputs */
};
struct ane_prim_state *prim_state_new(struct ane_prim_call *c, int n);

/* Makes m from float weights: element (r, k) is at r * row_stride + k * col_stride. t is a float type; data may be unaligned. */
ane_status prim_matrix_float(struct ane_prim_call *c, struct prim_matrix *m, ane_dtype t, const void *data, int64_t rows,
                             int64_t cols, int64_t row_stride, int64_t col_stride);
/* Makes m from the elements of a coded constant as [rows, cols], row after row. Codes stay codes if a packed layout, or the
 * decoder of prim_multiply, yields the same float32 numbers. */
ane_status prim_matrix_coded(struct ane_prim_call *c, struct prim_matrix *m, const struct ane_coded *w, int64_t rows,
                             int64_t cols);
/* Allocates the scales and zeros of a matrix of codes. The caller fills them. */
ane_status prim_matrix_scales(struct ane_prim_call *c, struct prim_matrix *m, int64_t n, bool zeros, float **scales,
                              float **zero_points);
void prim_matrix_free(struct prim_matrix *m);
/* Allocates 64-byte aligned memory that m owns; NULL: c->status is set. */
void *prim_matrix_memory(struct ane_prim_call *c, struct prim_matrix *m, uint64_t bytes);
/* Computes y[t][r] = bias[r] + the sum over k of w[r][k] x[t][k], for t tokens; bias NULL: none. Rows of x and y are ldx and ldy
 * floats apart. The order of the sum does not depend on t. */
ane_status prim_multiply(struct ane_prim_call *c, const struct prim_matrix *m, const float *x, int64_t t, int64_t ldx,
                         const float *bias, float *y, int64_t ldy);

/* Multiplies as matmul does, with x and y for the elements of its two operands: int32. */
ane_status prim_multiply_i64(struct ane_prim_call *c, const int64_t *x, const int64_t *y);

/* Returns element i of packed codes of 2, 4 or 8 bits each, the lower bits first. */
static inline int prim_code(const uint8_t *p, int bits, int64_t i) {
  return bits == 8 ? p[i] : bits == 4 ? p[i >> 1] >> 4 * (i & 1) & 15 : p[i >> 2] >> 2 * (i & 3) & 3;
}

/* Make the state of an op with weights: from constants in ane_prim_prepare, or for one call. */
typedef ane_status (*prim_prepare_fn)(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_matmul(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_matmul_dequantize(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_matmul_integer(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_matmul_nbits(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_group_query_attention(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_conv(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_lstm(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_gru(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_rnn(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_moe(struct ane_prim_call *c, struct ane_prim_state **state);
ane_status prim_prepare_qmoe(struct ane_prim_call *c, struct ane_prim_state **state);

/* ---- Attention -----------------------------------------------------------------------------------------------------*/

/* The operands of softmax(scale q k + bias) v, computed for each batch entry, head and query. s queries and t keys have width d,
 * values have width dv. Strides are in elements. Query head h uses key head h / (heads / kv_heads). Query (b, i) sees keys
 * first[b * s + i] .. last[b * s + i] - 1; if there are none, its result is zeros. */
struct prim_attention_args {
  int64_t batch, heads, kv_heads, s, t, d, dv;
  const float *q, *k, *v;
  float *y;
  int64_t q_stride[3], k_stride[3], v_stride[3], y_stride[3]; /* batch, head, position */
  float scale, softcap;                                       /* softcap c > 0: c tanh(score / c), before the bias */
  const float *bias;                                          /* NULL: none */
  const uint8_t *mask;                                        /* 0 hides; NULL: none */
  int64_t bias_stride[4];                                     /* of bias and mask: batch, head, query, key; 0 repeats */
  const int64_t *first, *last;
  const float *sink; /* [heads]: a score that has no value, in the sum of each softmax; NULL: none */
  /* [batch, heads, s, t], or NULL: for all keys q k scale (mode 0), that after softcap (1), then with bias, and -INFINITY where a
   * key is hidden (2), or the softmax, 0 where a key is hidden (3) */
  float *qk;
  int qk_mode;
};
ane_status prim_attention_core(struct ane_prim_call *c, const struct prim_attention_args *a);

/* Rotates the first `dims` channels of one head in place by a row of the tables (dims / 2 cosines and sines). */
void prim_rotate(float *x, const float *cos, const float *sin, int64_t dims, bool interleaved);

#endif
