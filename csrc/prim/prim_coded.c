/* Constants that are stored as codes: decoding to floats, and matrices for products. */
#include "prim/prim_internal.h"

#include "base/bytes.h"
#include "tensor/half.h"

#include <string.h>

/* ---- Reading -------------------------------------------------------------------------------------------------------*/

void ane_coded_simplify(struct ane_coded *w) {
  int n = 0;
  for (int k = 0; k < w->rank; k++) {
    if (w->dim[k] == 1) continue; /* its only block has index 0 */
    bool whole = w->block[k] == w->dim[k], first = n == 1 && w->block[0] != w->dim[0];
    if (n > 0 && whole && !first) { /* the axis of rows stays apart: products need it */
      w->dim[n - 1] *= w->dim[k];
      w->block[n - 1] *= w->dim[k];
      continue;
    }
    w->dim[n] = w->dim[k], w->block[n] = w->block[k], w->step[n] = whole ? 0 : w->step[k];
    n++;
  }
  if (n == 0) w->dim[0] = w->block[0] = 1, w->step[0] = 0, n = 1;
  w->rank = n;
}

uint64_t ane_coded_bytes(const struct ane_coded *w, int64_t n) { return ((uint64_t)n * (uint64_t)w->bits + 7) / 8; }

/* Returns code i of fewer than 8 bits, lowest bits first. It may continue in the next byte. */
static inline int bits_at(const uint8_t *p, int bits, int64_t i) {
  int64_t at = i * bits;
  int low = (int)(at & 7), v = p[at >> 3] >> low;
  if (low + bits > 8) v |= p[(at >> 3) + 1] << (8 - low);
  return v & ((1 << bits) - 1);
}

static inline int sign_extend(int v, int bits) { return (v ^ 1 << (bits - 1)) - (1 << (bits - 1)); }

/* Reads codes at .. at + n - 1 as numbers. */
static void read_codes(const struct ane_coded *w, int64_t at, int64_t n, float *out) {
  const uint8_t *p = w->codes;
  switch (w->bits) {
    case 8:
      for (int64_t i = 0; i < n; i++) out[i] = w->is_signed ? (float)(int8_t)p[at + i] : (float)p[at + i];
      break;
    case 16:
      for (int64_t i = 0; i < n; i++) out[i] = ane_f16_f32(ane_load_u16(p + 2 * (at + i)));
      break;
    case 32: memcpy(out, p + 4 * at, (size_t)n * 4); break;
    default:
      for (int64_t i = 0; i < n; i++) {
        int v = bits_at(p, w->bits, at + i);
        out[i] = (float)(w->is_signed ? sign_extend(v, w->bits) : v);
      }
  }
}

static void read_run(const struct ane_coded *w, int64_t at, int64_t n, int64_t group, float *out) {
  if (w->table) {
    const float *table = w->table + group * w->entries;
    for (int64_t i = 0; i < n; i++) out[i] = table[w->bits == 8 ? w->codes[at + i] : bits_at(w->codes, w->bits, at + i)];
  } else {
    float scale = w->scale[group], offset = w->offset ? w->offset[group] : 0;
    read_codes(w, at, n, out);
    for (int64_t i = 0; i < n; i++) out[i] = scale * (out[i] - offset);
  }
  for (int64_t i = 0; w->round && i < n; i++) out[i] = ane_f16_f32(ane_f32_f16(out[i]));
}

void ane_coded_read(const struct ane_coded *w, int64_t from, int64_t n, float *out) {
  int64_t at[ANE_DYN_RANK], rest = from, end = from + n;
  int last = w->rank - 1;
  for (int k = last; k >= 0; k--) at[k] = w->dim[k] ? rest % w->dim[k] : 0, rest = w->dim[k] ? rest / w->dim[k] : 0;
  while (from < end) {
    int64_t group = 0;
    for (int k = 0; k <= last; k++) group += at[k] / w->block[k] * w->step[k];
    int64_t run = ANE_MIN(ANE_MIN(w->block[last] - at[last] % w->block[last], w->dim[last] - at[last]), end - from);
    read_run(w, from, run, group, out);
    from += run, out += run, at[last] += run;
    for (int k = last; k > 0 && at[k] == w->dim[k]; k--) at[k] = 0, at[k - 1]++;
  }
}

/* ---- Matrices ------------------------------------------------------------------------------------------------------*/

/* How groups map to [rows, cols]; grid_of fails if a group does not depend on row and column blocks alone. */
struct grid {
  int64_t row_block, row_step, col_block, col_step;
};

static bool grid_of(const struct ane_coded *w, int64_t rows, int64_t cols, struct grid *g) {
  *g = (struct grid){rows, 0, cols, 0};
  if (w->rank == 1) {
    if (w->step[0] == 0) return true;
    if (w->dim[0] == rows && cols == 1) return *g = (struct grid){w->block[0], w->step[0], 1, 0}, true;
    if (w->dim[0] == cols && rows == 1) return *g = (struct grid){1, 0, w->block[0], w->step[0]}, true;
    return false;
  }
  if (w->rank != 2 || w->dim[0] != rows || w->dim[1] != cols) return false;
  *g = (struct grid){w->block[0], w->step[0], w->block[1], w->step[1]};
  return true;
}

static int64_t n_groups(const struct ane_coded *w) {
  int64_t n = 1;
  for (int k = 0; k < w->rank; k++) n += (w->dim[k] / w->block[k] - 1) * w->step[k];
  return n;
}

static bool all_equal(const float *v, int64_t n, float x) {
  for (int64_t i = 0; v && i < n; i++)
    if (v[i] != x) return false;
  return true;
}

/* Is each value exactly representable in fp16? NaN is not: its bits may change. */
static bool all_halves(const float *v, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (!(ane_f16_f32(ane_f32_f16(v[i])) == v[i])) return false;
  return true;
}

struct packing {
  const struct ane_coded *w;
  struct prim_matrix *m;
  struct grid g;
  uint8_t *dst, *rows; /* rows: `room` bytes for each thread */
  size_t room;
};

/* Writes row r as Q4_0: blocks of 32 columns with an fp16 scale; byte j holds the codes + 8 of columns j (low nibble) and j +
 * 16. */
static void q4_0_row(const struct packing *p, int64_t r, uint8_t *out) {
  const struct ane_coded *w = p->w;
  int64_t cols = p->m->cols;
  for (int64_t k = 0; k < cols; k += ANE_BLOCK, out += 18) {
    uint16_t scale = ane_f32_f16(w->scale[r / p->g.row_block * p->g.row_step + k / p->g.col_block * p->g.col_step]);
    memcpy(out, &scale, 2);
    for (int j = 0; j < 16; j++) {
      int a = prim_code(w->codes, 4, r * cols + k + j), b = prim_code(w->codes, 4, r * cols + k + j + 16);
      if (w->is_signed) a ^= 8, b ^= 8;
      out[2 + j] = (uint8_t)(a | b << 4);
    }
  }
}

static void pack_groups(void *arg, int64_t from, int64_t to, int thread) {
  const struct packing *p = arg;
  const struct prim_matrix *m = p->m;
  ane_layout layout = m->packed.layout;
  uint8_t *rows = p->rows + (size_t)thread * p->room;
  size_t step = layout == ANE_LAYOUT_F32   ? (size_t)m->cols * 4
                : layout == ANE_LAYOUT_F16 ? (size_t)m->cols * 2
                                           : (size_t)m->cols / ANE_BLOCK * 18;
  float *line = (float *)(void *)rows;
  uint8_t *stored = layout == ANE_LAYOUT_F32 ? rows : rows + (size_t)m->cols * 4;
  for (int64_t g = from; g < to; g++) {
    int64_t first = g * ANE_GROUP, n = ANE_MIN(m->rows - first, ANE_GROUP);
    uint8_t *dst = p->dst + (size_t)g * m->packed.group_bytes;
    if (layout == ANE_LAYOUT_I8) {
      ane_pack_group(layout, ANE_I8, p->w->codes + first * m->cols, (size_t)m->cols, (int)n, m->cols, dst);
      continue;
    }
    for (int64_t r = 0; r < n; r++) {
      if (layout == ANE_LAYOUT_F32)
        ane_coded_read(p->w, (first + r) * m->cols, m->cols, line + r * m->cols);
      else if (layout == ANE_LAYOUT_Q4_0)
        q4_0_row(p, first + r, stored + (size_t)r * step);
      else {
        uint16_t *half = (uint16_t *)(void *)(stored + (size_t)r * step);
        ane_coded_read(p->w, (first + r) * m->cols, m->cols, line);
        for (int64_t k = 0; k < m->cols; k++) half[k] = ane_f32_f16(line[k]);
      }
    }
    ane_pack_group(layout, m->packed.dtype, stored, step, (int)n, m->cols, dst);
  }
}

/* Keeps codes of 4 or 8 bits as they are stored. Products decode them to panels. */
static ane_status keep_codes(struct ane_prim_call *c, struct prim_matrix *m, const struct ane_coded *w, const struct grid *g) {
  int64_t n = n_groups(w);
  float *scales, *zeros;
  if (prim_matrix_scales(c, m, n, w->offset != NULL, &scales, &zeros)) return c->status;
  memcpy(scales, w->scale, (size_t)n * sizeof *scales);
  if (w->offset) memcpy(zeros, w->offset, (size_t)n * sizeof *zeros);
  m->codes = w->codes, m->bits = w->bits, m->is_signed = w->is_signed;
  m->row_stride = m->cols, m->col_stride = 1;
  m->block = g->col_block, m->row_block = g->row_block, m->scale_row = g->row_step, m->scale_col = g->col_step;
  return c->status;
}

ane_status prim_matrix_coded(struct ane_prim_call *c, struct prim_matrix *m, const struct ane_coded *w, int64_t rows,
                             int64_t cols) {
  int64_t groups = (rows + ANE_GROUP - 1) / ANE_GROUP, n = n_groups(w);
  struct packing p = {.w = w, .m = m};
  bool grid = grid_of(w, rows, cols, &p.g), linear = !w->table && !w->round && grid;
  ane_layout layout = ANE_LAYOUT_F32;
  *m = (struct prim_matrix){.rows = rows, .cols = cols};
  if (linear && w->bits == 8 && w->is_signed && p.g.col_step == 0 && all_equal(w->offset, n, 0))
    layout = ANE_LAYOUT_I8;
  else if (linear && w->bits == 4 && cols % ANE_BLOCK == 0 && (p.g.col_step == 0 || p.g.col_block % ANE_BLOCK == 0) &&
           all_equal(w->offset, n, w->is_signed ? 0 : 8) && (w->is_signed || w->offset) && all_halves(w->scale, n))
    layout = ANE_LAYOUT_Q4_0;
  else if (linear && (w->bits == 4 || w->bits == 8))
    return keep_codes(c, m, w, &p.g);
  else if (w->round || (w->table && all_halves(w->table, n * w->entries)))
    layout = ANE_LAYOUT_F16;
  ane_dtype t = layout == ANE_LAYOUT_I8     ? ANE_I8
                : layout == ANE_LAYOUT_Q4_0 ? ANE_Q4_0
                : layout == ANE_LAYOUT_F16  ? ANE_F16
                                            : ANE_F32;
  m->packed = (struct ane_packed){.layout = layout, .dtype = t, .rows = rows, .cols = cols, .groups = groups};
  uint64_t bytes, scales = layout == ANE_LAYOUT_I8 ? (uint64_t)groups * ANE_GROUP * sizeof(float) : 0;
  if (!ane_layout_group_bytes(layout, cols, &m->packed.group_bytes) ||
      !ane_mul_u64((uint64_t)groups, m->packed.group_bytes, &bytes))
    return prim_fail(c, ANE_RANGE, "weights of %lld rows and %lld columns", (long long)rows, (long long)cols);
  /* floats of a row and 16 stored rows; F32: 16 rows of floats */
  p.room = ane_align_up((size_t)cols * (layout == ANE_LAYOUT_F32 ? 64 : layout == ANE_LAYOUT_I8 ? 0 : 4 + 32) + 64, 64);
  p.rows = prim_temp(c, (uint64_t)prim_threads(c) * p.room);
  if (!p.rows || !(p.dst = prim_matrix_memory(c, m, bytes + scales))) return c->status;
  m->packed.data = p.dst;
  if (layout == ANE_LAYOUT_I8) {
    float *scale = (float *)(void *)(p.dst + bytes);
    for (int64_t r = 0; r < groups * ANE_GROUP; r++) scale[r] = r < rows ? w->scale[r / p.g.row_block * p.g.row_step] : 0;
    m->packed.row_scale = scale;
  }
  prim_parallel(c, groups, (double)rows * (double)cols, pack_groups, &p);
  return c->status;
}
