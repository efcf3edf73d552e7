/* Weight matrices: packed floats, or stored codes that are decoded 16 rows at a time. Both end in the matrix kernel for
 * float32 activations, so the kernel fixes the order of each sum: ascending k, for any number of tokens. */
#include "prim/prim_internal.h"

#include "base/alloc.h"
#include "tensor/rows.h"

#include <string.h>

void *prim_matrix_memory(struct ane_prim_call *c, struct prim_matrix *m, uint64_t bytes) {
  if (bytes > SIZE_MAX / 2 || !(m->memory = ane_malloc((size_t)bytes + 64))) {
    prim_fail(c, ANE_NOMEM, "no memory for weights of %llu bytes", (unsigned long long)bytes);
    return NULL;
  }
  m->bytes = bytes;
  return (void *)(((uintptr_t)m->memory + 63) & ~(uintptr_t)63);
}

void prim_matrix_free(struct prim_matrix *m) {
  ane_free(m->memory);
  *m = (struct prim_matrix){0};
}

/* ---- Floats --------------------------------------------------------------------------------------------------------*/

struct packing {
  struct prim_matrix *m;
  ane_dtype dtype;
  const uint8_t *data;
  int64_t row_stride, col_stride;
  uint8_t *dst;
  uint8_t *rows;    /* a copy of 16 rows for each thread, if rows are not contiguous */
  size_t row_bytes; /* of that copy */
};

/* Copies groups whose columns of 16 floats are contiguous in the source. */
static void copy_columns(const struct packing *p, int64_t first, int64_t n, uint8_t *dst) {
  for (int64_t k = 0; k < p->m->cols; k++) {
    memcpy(dst + 64 * k, p->data + 4 * (size_t)(first + k * p->col_stride), (size_t)n * 4);
    memset(dst + 64 * k + 4 * n, 0, (size_t)(ANE_GROUP - n) * 4);
  }
}

static void pack_groups(void *arg, int64_t from, int64_t to, int thread) {
  const struct packing *p = arg;
  const struct prim_matrix *m = p->m;
  size_t size = prim_width(p->dtype);
  for (int64_t g = from; g < to; g++) {
    int64_t first = g * ANE_GROUP, n = ANE_MIN(m->rows - first, ANE_GROUP);
    uint8_t *dst = p->dst + (size_t)g * m->packed.group_bytes;
    if (p->dtype == ANE_F32 && p->row_stride == 1) {
      copy_columns(p, first, n, dst);
      continue;
    }
    const uint8_t *rows = p->data + (size_t)(first * p->row_stride) * size;
    size_t step = (size_t)p->row_stride * size;
    if (p->col_stride != 1) {
      uint8_t *copy = p->rows + (size_t)thread * ANE_GROUP * p->row_bytes;
      ane_copy_matrix(rows, size, p->row_stride, p->col_stride, n, m->cols, copy, p->row_bytes);
      rows = copy;
      step = p->row_bytes;
    }
    ane_pack_group(m->packed.layout, p->dtype, rows, step, (int)n, m->cols, dst);
  }
}

ane_status prim_matrix_float(struct ane_prim_call *c, struct prim_matrix *m, ane_dtype t, const void *data, int64_t rows,
                             int64_t cols, int64_t row_stride, int64_t col_stride) {
  int64_t groups = (rows + ANE_GROUP - 1) / ANE_GROUP;
  struct packing p = {m, t, data, row_stride, col_stride, NULL, NULL, (size_t)cols * prim_width(t)};
  *m = (struct prim_matrix){
      .rows = rows,
      .cols = cols,
      .packed = {.layout = ane_layout_for(t, cols), .dtype = t, .rows = rows, .cols = cols, .groups = groups}};
  uint64_t bytes;
  if (m->packed.layout == ANE_LAYOUT_ROWS) return prim_fail(c, ANE_UNSUPPORTED, "weights of type %s", ane_dtype_info(t)->name);
  if (!ane_layout_group_bytes(m->packed.layout, cols, &m->packed.group_bytes) ||
      !ane_mul_u64((uint64_t)groups, m->packed.group_bytes, &bytes))
    return prim_fail(c, ANE_RANGE, "weights of %lld rows and %lld columns", (long long)rows, (long long)cols);
  if (col_stride != 1 && !(p.rows = prim_temp(c, (uint64_t)prim_threads(c) * ANE_GROUP * p.row_bytes))) return c->status;
  if (!(p.dst = prim_matrix_memory(c, m, bytes))) return c->status;
  m->packed.data = p.dst;
  prim_parallel(c, groups, (double)rows * (double)cols, pack_groups, &p);
  return c->status;
}

/* ---- Codes ---------------------------------------------------------------------------------------------------------*/

ane_status prim_matrix_scales(struct ane_prim_call *c, struct prim_matrix *m, int64_t n, bool zeros, float **scales,
                              float **zero_points) {
  *scales = prim_matrix_memory(c, m, (uint64_t)n * (zeros ? 2 : 1) * sizeof **scales);
  *zero_points = zeros && *scales ? *scales + n : NULL;
  m->scales = *scales;
  m->zeros = *zero_points;
  return c->status;
}

/* Returns the block of scales that column k belongs to. */
static inline int64_t block_of(const struct prim_matrix *m, int64_t k) {
  int32_t block;
  if (!m->g_idx) return k / m->block;
  memcpy(&block, m->g_idx + 4 * k, sizeof block);
  return block;
}

static inline float code_value(const struct prim_matrix *m, int64_t code, int64_t scale) {
  int q = prim_code(m->codes, m->bits, code);
  if (m->is_signed) q = (q ^ 1 << (m->bits - 1)) - (1 << (m->bits - 1));
  return ((float)q - (m->zeros ? m->zeros[scale] : m->zero_default)) * m->scales[scale];
}

/* Decodes unsigned 4-bit codes in blocks of whole bytes. A table of the block's 16 values gives two values for each byte. */
static void decode_nibbles(const struct prim_matrix *m, int64_t r, float *out) {
  const uint8_t *p = m->codes + r * m->row_stride / 2;
  int64_t scale = r * m->scale_row;
  for (int64_t k = 0; k < m->cols; k += m->block, scale++) {
    float zero = m->zeros ? m->zeros[scale] : m->zero_default, by = m->scales[scale], table[16];
    int64_t n = ANE_MIN(m->block, m->cols - k);
    for (int i = 0; i < 16; i++) table[i] = ((float)i - zero) * by;
    for (int64_t j = 0; j + 1 < n; j += 2, p++) out[k + j] = table[*p & 15], out[k + j + 1] = table[*p >> 4];
    if (n & 1) out[k + n - 1] = table[*p & 15];
  }
}

/* Decodes row r to floats. */
static void read_row(const struct prim_matrix *m, int64_t r, float *out) {
  if (m->bits == 4 && !m->is_signed && !m->g_idx && m->col_stride == 1 && m->row_block == 1 && m->scale_col == 1 &&
      m->block % 2 == 0) {
    decode_nibbles(m, r, out);
    return;
  }
  for (int64_t k = 0; k < m->cols; k++) {
    int64_t block = block_of(m, k);
    out[k] = code_value(m, r * m->row_stride + k * m->col_stride, r / m->row_block * m->scale_row + block * m->scale_col);
  }
}

/* Decodes rows first .. first + n - 1 to the float32 layout: 16 floats for each column. */
static void decode_panel(const struct prim_matrix *m, int64_t first, int64_t n, float *panel, float *rows) {
  if (m->col_stride == 1) {
    for (int64_t r = 0; r < n; r++) read_row(m, first + r, rows + r * m->cols);
    ane_pack_group(ANE_LAYOUT_F32, ANE_F32, rows, (size_t)m->cols * sizeof *rows, (int)n, m->cols, panel);
    return;
  }
  for (int64_t k = 0; k < m->cols; k++) {
    int64_t block = block_of(m, k);
    for (int64_t r = 0; r < ANE_GROUP; r++) {
      int64_t row = first + r;
      panel[k * ANE_GROUP + r] =
          r < n ? code_value(m, row * m->row_stride + k * m->col_stride, row / m->row_block * m->scale_row + block * m->scale_col)
                : 0;
    }
  }
}

/* ---- Product -------------------------------------------------------------------------------------------------------*/

struct product {
  const struct prim_matrix *m;
  const struct ane_kernels *k;
  struct ane_activations x;
  const float *bias;
  float *y;
  int64_t ldy;
  uint8_t *scratch; /* scratch_bytes for each thread: kernel's scratch, panel, rows */
  size_t scratch_bytes, kernel_bytes;
};

static void multiply_groups(void *arg, int64_t from, int64_t to, int thread) {
  const struct product *p = arg;
  const struct prim_matrix *m = p->m;
  uint8_t *scratch = p->scratch + (size_t)thread * p->scratch_bytes;
  float *panel = (float *)(void *)(scratch + p->kernel_bytes), *rows = panel + m->cols * ANE_GROUP;
  bool packed = m->packed.layout != ANE_LAYOUT_ROWS;
  if (packed) p->k->matmul[m->packed.layout][ANE_ACTIVATION_F32](&m->packed, &p->x, from, to, p->y, p->ldy, scratch);
  for (int64_t g = from; !packed && g < to; g++) {
    int64_t first = g * ANE_GROUP, n = ANE_MIN(m->rows - first, ANE_GROUP);
    decode_panel(m, first, n, panel, rows);
    struct ane_packed one = {.layout = ANE_LAYOUT_F32,
                             .dtype = ANE_F32,
                             .rows = n,
                             .cols = m->cols,
                             .groups = 1,
                             .group_bytes = (size_t)m->cols * 64,
                             .data = (const uint8_t *)panel};
    p->k->matmul[ANE_LAYOUT_F32][ANE_ACTIVATION_F32](&one, &p->x, 0, 1, p->y + first, p->ldy, scratch);
  }
  int64_t r0 = from * ANE_GROUP, r1 = ANE_MIN(to * ANE_GROUP, m->rows);
  for (int64_t t = 0; p->bias && t < p->x.t; t++)
    for (int64_t r = r0; r < r1; r++) p->y[t * p->ldy + r] += p->bias[r];
}

ane_status prim_multiply(struct ane_prim_call *c, const struct prim_matrix *m, const float *x, int64_t t, int64_t ldx,
                         const float *bias, float *y, int64_t ldy) {
  struct ane_packed shape = m->packed;
  bool packed = shape.layout != ANE_LAYOUT_ROWS;
  if (!packed)
    shape = (struct ane_packed){.layout = ANE_LAYOUT_F32, .dtype = ANE_F32, .rows = ANE_GROUP, .cols = m->cols, .groups = 1};
  struct product p = {
      m, c->kernels, {.kind = ANE_ACTIVATION_F32, .t = t, .cols = m->cols, .f32 = x, .ld = ldx}, bias, y, ldy, NULL, 0, 0};
  if (t == 0 || m->rows == 0) return c->status;
  p.kernel_bytes = ane_align_up(ane_matmul_scratch(&shape), 64);
  p.scratch_bytes = ane_align_up(p.kernel_bytes + (packed ? 0 : (size_t)m->cols * ANE_GROUP * 2 * sizeof(float)), 64);
  if (!(p.scratch = prim_temp(c, (uint64_t)prim_threads(c) * p.scratch_bytes))) return c->status;
  double work = (double)m->rows * (double)m->cols * ((double)t / 8 + (packed ? 0 : 4));
  prim_parallel(c, (m->rows + ANE_GROUP - 1) / ANE_GROUP, work, multiply_groups, &p);
  return c->status;
}
