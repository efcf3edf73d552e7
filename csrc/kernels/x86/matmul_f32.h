/* Products with float activations. A template: include the lanes and matmul_unpack.h first.
 *
 * Weights are read as columns of LANES rows: from the matrix itself (F32, F16, BF16), or from a panel [ANE_PANEL][16] in scratch
 * memory, which holds a decoded range of columns. Each output is one sum over k in ascending order. Between ranges, `out` holds
 * the sums. */
#ifndef ANE_KERNELS_X86_MATMUL_F32_H
#define ANE_KERNELS_X86_MATMUL_F32_H

enum { F32_MAX_NV = 4, PANEL_FLOATS = ANE_PANEL * ANE_GROUP };

/* The constants of a call, and the current range [k, k + n) of columns. */
struct f32_job {
  const struct ane_packed *w;
  const struct ane_activations *x;
  float *out;
  int64_t ld_out, k, n;
  int groups; /* groups that are processed together */
};

/* Returns column k of the rows at p. odd = k & 1, a constant after unrolling. */
INLINE vf fetch(ane_layout f, const uint8_t *p, int64_t k, int odd) {
  switch (f) {
    case ANE_LAYOUT_F16: return v_load_f16(p + 32 * k);
    case ANE_LAYOUT_BF16: {
      vi pair = vi_load(p + 32 * (k - odd));
      return v_bits(odd ? vi_and(pair, vi_set((int)0xFFFF0000)) : vi_shl_by(pair, 16));
    }
    default: return v_load((const float *)(p + 64 * k));
  }
}

INLINE void f32_step(ane_layout f, int nv, int nt, const uint8_t *const p[], const float *x, int64_t ld, int64_t k, int odd,
                     vf acc[F32_MAX_NV][F32_NT]) {
  vf w[F32_MAX_NV];
#pragma GCC unroll 4
  for (int i = 0; i < nv; i++) w[i] = fetch(f, p[i], k + odd, odd);
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++) {
    vf v = v_set(x[t * ld + k + odd]);
#pragma GCC unroll 4
    for (int i = 0; i < nv; i++) acc[i][t] = v_fma(w[i], v, acc[i][t]);
  }
}

/* Multiplies vectors [vc, vc + nv), whose columns lie at p[], with tokens [t0, t0 + nt). */
INLINE void f32_tile(ane_layout f, int nv, int nt, const struct f32_job *j, int64_t vc, const uint8_t *const p[], int64_t t0) {
  vf acc[F32_MAX_NV][F32_NT];
  float *out = j->out + t0 * j->ld_out + vc * LANES;
  const float *x = j->x->f32 + t0 * j->x->ld + j->k;
  const int64_t left = j->w->rows - vc * LANES, n = j->n, ld = j->x->ld;
#pragma GCC unroll 4
  for (int i = 0; i < nv; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
      acc[i][t] = j->k && left > i * LANES ? v_load_masked(out + t * j->ld_out + i * LANES, left - i * LANES) : v_set(0);
  int64_t k = 0;
  for (; k + 1 < n; k += 2) {
    if (f != ANE_LAYOUT_F32) /* two columns are one cache line. F32 needs no prefetch, and its panels are in the cache */
#pragma GCC unroll 4
      for (int i = 0; i < nv; i += PARTS) prefetch_packed(p[i], j->w->group_bytes, j->groups, 32 * (size_t)k, 1);
    f32_step(f, nv, nt, p, x, ld, k, 0, acc);
    f32_step(f, nv, nt, p, x, ld, k, 1, acc);
  }
  if (k < n) f32_step(f, nv, nt, p, x, ld, k, 0, acc);
#pragma GCC unroll 4
  for (int i = 0; i < nv; i++)
    if (left > i * LANES)
#pragma GCC unroll 8
      for (int t = 0; t < nt; t++) v_store_masked(out + t * j->ld_out + i * LANES, acc[i][t], left - i * LANES);
}

/* Multiplies nv vectors with all tokens, in tiles of nearly equal width. */
INLINE void f32_tiles(ane_layout f, int nv, const struct f32_job *j, int64_t vc, const uint8_t *const p[]) {
  int64_t width = nv > F32_NV ? 2 : F32_NT, n = (j->x->t + width - 1) / width;
  for (int64_t i = 0, t = 0; i < n; i++) {
    int nt = (int)((j->x->t - t) / (n - i));
    if (nt == 1)
      f32_tile(f, nv, 1, j, vc, p, t);
    else if (nt == 2)
      f32_tile(f, nv, 2, j, vc, p, t);
    else if (nv <= F32_NV) {
      if (nt == 3)
        f32_tile(f, nv, 3, j, vc, p, t);
      else if (nt == 4)
        f32_tile(f, nv, 4, j, vc, p, t);
      else if (nt == 5)
        f32_tile(f, nv, 5, j, vc, p, t);
      else
        f32_tile(f, nv, 6, j, vc, p, t);
    }
    t += nt;
  }
}

INLINE void f32_any(ane_layout f, int nv, const struct f32_job *j, int64_t vc, const uint8_t *const p[]) {
  if (nv == 4)
    f32_tiles(f, 4, j, vc, p);
  else if (nv == 3)
    f32_tiles(f, 3, j, vc, p);
  else if (nv == 2)
    f32_tiles(f, 2, j, vc, p);
  else
    f32_tiles(f, 1, j, vc, p);
}

/* Decodes the current range of one vector of rows to floats, in whole blocks of 32. */
INLINE void f32_unpack(ane_layout f, const struct f32_job *j, int64_t vc, float *panel) {
  const struct ane_packed *w = j->w;
  int part = (int)(vc % PARTS);
  const uint8_t *group = w->data + (size_t)(vc / PARTS) * w->group_bytes;
  const struct code_table values = code_table(f, w, false);
  struct v_tables table;
  if (f == ANE_LAYOUT_LUT4) table = v_load_tables(w->lut + vc * LANES * 2);
  for (int64_t c0 = 0; c0 < j->n; c0 += ANE_BLOCK) {
    struct block_parts at = block_at(f, group, (j->k + c0) / ANE_BLOCK);
    if (part == 0) prefetch_block(f, w, group, j->groups, (j->k + c0) / ANE_BLOCK, false);
    vi c[8];
    unpack_block(f, w, vc / PARTS, (j->k + c0) / ANE_BLOCK, at.codes, part, false, values, c);
    vf min = layout_has_offset(f) ? unpack_offset(f, at, part) : layout_has_min(f) ? unpack_min(f, at, part) : v_set(0);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      vf scale = f == ANE_LAYOUT_I8 ? v_load(w->row_scale + vc * LANES) : unpack_scale(f, at, values, part, half);
      if (layout_has_sub_min(f)) min = unpack_sub_min(at, part, half);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        vi code = vi_and(vi_shr_by(c[4 * half + i / 4], 8 * (i % 4)), vi_set(255));
        vf number = v_float(vi_sub(code, vi_set(layout_zero(f))));
        vf value = f == ANE_LAYOUT_LUT4 ? v_table(table, code) : v_mul(scale, layout_has_offset(f) ? v_add(number, min) : number);
        if (layout_has_sub_min(f) || (layout_has_min(f) && !layout_has_offset(f))) value = v_add(value, min);
        v_store(panel + (c0 + 16 * half + i) * ANE_GROUP, value);
      }
    }
  }
}

/* Decodes the current range of one group to a panel. */
INLINE void f32_panel(ane_layout f, const struct f32_job *j, int64_t g, float *panel, float *tmp) {
  if (f == ANE_LAYOUT_ROWS)
    ane_read_panel(j->w, g, j->k, (int)j->n, panel, tmp);
  else
    for (int part = 0; part < PARTS; part++) f32_unpack(f, j, g * PARTS + part, panel + part * LANES);
}

static void f32_product(const struct f32_job *j, int nv, int64_t vc, const uint8_t *const p[]) {
  f32_any(ANE_LAYOUT_F32, nv, j, vc, p);
}

/* Multiplies through panels: F32_MAX_NV vectors at a time for one or two tokens, F32_NV for more. */
INLINE void f32_by_panel(ane_layout f, struct f32_job *j, int64_t from, int64_t to, float *scratch) {
  int width = j->x->t <= 2 ? F32_MAX_NV : F32_NV;
  j->groups = width / PARTS;
  for (int64_t vc = from; vc < to; vc += width) {
    int nv = (int)ANE_MIN(to - vc, width);
    for (j->k = 0; j->k < j->w->cols; j->k += ANE_PANEL) {
      const uint8_t *p[F32_MAX_NV];
      j->n = ANE_MIN(j->w->cols - j->k, ANE_PANEL);
      for (int i = 0; i < nv; i += PARTS)
        f32_panel(f, j, (vc + i) / PARTS, scratch + i / PARTS * PANEL_FLOATS, scratch + F32_MAX_NV * PANEL_FLOATS);
      for (int i = 0; i < nv; i++) p[i] = (const uint8_t *)(scratch + i / PARTS * PANEL_FLOATS + i % PARTS * LANES);
      f32_product(j, nv, vc, p);
    }
  }
}

/* Multiplies from the matrix itself (F32, F16, BF16). Widening again for each tile costs less than a panel. */
INLINE void f32_direct(ane_layout f, struct f32_job *j, int64_t from, int64_t to) {
  int width = j->x->t <= 2 ? F32_MAX_NV : F32_NV, bytes = f == ANE_LAYOUT_F16 ? 2 : 4;
  j->k = 0, j->n = j->w->cols, j->groups = width / PARTS;
  for (int64_t vc = from; vc < to; vc += width) {
    const uint8_t *p[F32_MAX_NV];
    int nv = (int)ANE_MIN(to - vc, width);
    for (int i = 0; i < nv; i++)
      p[i] = j->w->data + (size_t)((vc + i) / PARTS) * j->w->group_bytes + (size_t)((vc + i) % PARTS * LANES * bytes);
    f32_any(f, nv, j, vc, p);
  }
}

#define MATMUL_F32(f)                                                                                                            \
  static void matmul_f32_##f(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to,          \
                             float *out, int64_t ld_out, void *scratch) {                                                        \
    struct f32_job j = {w, x, out, ld_out, 0, 0, 1};                                                                             \
    if (ANE_LAYOUT_##f == ANE_LAYOUT_F32 || ANE_LAYOUT_##f == ANE_LAYOUT_F16 || ANE_LAYOUT_##f == ANE_LAYOUT_BF16)               \
      f32_direct(ANE_LAYOUT_##f, &j, g_from *PARTS, g_to *PARTS);                                                                \
    else                                                                                                                         \
      f32_by_panel(ANE_LAYOUT_##f, &j, g_from *PARTS, g_to *PARTS, scratch);                                                     \
  }
#define ANE_LAYOUT(id, ...) MATMUL_F32(id)
#include "kernels/layout.def"
#undef ANE_LAYOUT

INLINE void overlay_f32(struct ane_kernels *k) {
#define ANE_LAYOUT(id, ...) k->matmul[ANE_LAYOUT_##id][ANE_ACTIVATION_F32] = matmul_f32_##id;
#include "kernels/layout.def"
#undef ANE_LAYOUT
}

#endif
