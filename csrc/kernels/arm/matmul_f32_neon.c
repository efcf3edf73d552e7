/* Products with float activations for NEON. Weights are read as columns of 16 rows: from the matrix itself (F32, F16, BF16), or
 * from a panel [ANE_PANEL][16] in scratch memory, which holds a decoded range of columns. Each output is one chain of sums over k
 * in ascending order. Between ranges, `out` holds the sums. */
#include "kernels/arm/matmul_unpack.h"

enum {
  MAX_GROUPS = 2, /* groups of a tile with one or two tokens: more independent chains hide the latency of fma */
  MAX_NT = 6,
  PANEL_FLOATS = ANE_PANEL * ANE_GROUP
};

/* The constants of a call, and the current range [k, k + n) of columns. */
struct job {
  const struct ane_packed *w;
  const struct ane_activations *x;
  float *out;
  int64_t ld_out, k, n;
};

/* Returns rows 4 i .. 4 i + 3 of column k of the group at p. odd = k & 1, a constant after inlining. */
INLINE float32x4_t fetch(ane_layout f, const uint8_t *p, int64_t k, int odd, int i) {
  switch (f) {
    case ANE_LAYOUT_F16: return load_half(p + 32 * k + 8 * i);
    case ANE_LAYOUT_BF16: {
      uint32x4_t pair = vreinterpretq_u32_u8(vld1q_u8(p + 32 * (k - odd) + 16 * i));
      return vreinterpretq_f32_u32(odd ? vandq_u32(pair, vdupq_n_u32(0xFFFF0000)) : vshlq_n_u32(pair, 16));
    }
    default: return vreinterpretq_f32_u8(vld1q_u8(p + 64 * k + 16 * i));
  }
}

/* Adds the products of column k + odd of ng groups with nt tokens. */
INLINE void step(ane_layout f, int ng, int nt, const uint8_t *const p[], const float *x, int64_t ld, int64_t k, int odd,
                 float32x4_t acc[MAX_GROUPS * PARTS][MAX_NT]) {
  float32x4_t w[MAX_GROUPS * PARTS];
#pragma GCC unroll 8
  for (int i = 0; i < ng * PARTS; i++) w[i] = fetch(f, p[i / PARTS], k + odd, odd, i % PARTS);
#pragma GCC unroll 8
  for (int t = 0; t < nt; t++) {
    const float v = x[t * ld + k + odd];
#pragma GCC unroll 8
    for (int i = 0; i < ng * PARTS; i++) acc[i][t] = vfmaq_n_f32(acc[i][t], w[i], v);
  }
}

/* Multiplies groups [g, g + ng), whose columns are at p[], with tokens [t0, t0 + nt). */
INLINE void tile(ane_layout f, int ng, int nt, const struct job *j, int64_t g, const uint8_t *const p[], int64_t t0) {
  float32x4_t acc[MAX_GROUPS * PARTS][MAX_NT];
  float *out = j->out + t0 * j->ld_out + g * ANE_GROUP;
  const float *x = j->x->f32 + t0 * j->x->ld + j->k;
  const int64_t left = j->w->rows - g * ANE_GROUP, n = j->n, ld = j->x->ld;
#pragma GCC unroll 8
  for (int i = 0; i < ng * PARTS; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) acc[i][t] = j->k ? v_load_n(out + t * j->ld_out + i * LANES, left - i * LANES) : vdupq_n_f32(0);
  int64_t k = 0;
  for (; k + 1 < n; k += 2) {
    step(f, ng, nt, p, x, ld, k, 0, acc);
    step(f, ng, nt, p, x, ld, k, 1, acc);
  }
  if (k < n) step(f, ng, nt, p, x, ld, k, 0, acc);
#pragma GCC unroll 8
  for (int i = 0; i < ng * PARTS; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) v_store_n(out + t * j->ld_out + i * LANES, acc[i][t], left - i * LANES);
}

/* Multiplies ng groups with all tokens, in tiles of nearly equal width. */
#define TILES(f)                                                                                                                 \
  static void tiles_##f(int ng, const struct job *j, int64_t g, const uint8_t *const p[]) {                                      \
    const int64_t n = (j->x->t + MAX_NT - 1) / MAX_NT;                                                                           \
    for (int64_t i = 0, t = 0; i < n; i++) {                                                                                     \
      const int nt = (int)((j->x->t - t) / (n - i));                                                                             \
      switch (nt + (ng == 2 ? MAX_NT : 0)) {                                                                                     \
        case 1: tile(ANE_LAYOUT_##f, 1, 1, j, g, p, t); break;                                                                   \
        case 2: tile(ANE_LAYOUT_##f, 1, 2, j, g, p, t); break;                                                                   \
        case 3: tile(ANE_LAYOUT_##f, 1, 3, j, g, p, t); break;                                                                   \
        case 4: tile(ANE_LAYOUT_##f, 1, 4, j, g, p, t); break;                                                                   \
        case 5: tile(ANE_LAYOUT_##f, 1, 5, j, g, p, t); break;                                                                   \
        case 6: tile(ANE_LAYOUT_##f, 1, 6, j, g, p, t); break;                                                                   \
        case MAX_NT + 1: tile(ANE_LAYOUT_##f, 2, 1, j, g, p, t); break;                                                          \
        case MAX_NT + 2: tile(ANE_LAYOUT_##f, 2, 2, j, g, p, t); break;                                                          \
      }                                                                                                                          \
      t += nt;                                                                                                                   \
    }                                                                                                                            \
  }
TILES(F32)
TILES(F16)
TILES(BF16)

static void tiles(ane_layout f, int ng, const struct job *j, int64_t g, const uint8_t *const p[]) {
  if (f == ANE_LAYOUT_F16)
    tiles_F16(ng, j, g, p);
  else if (f == ANE_LAYOUT_BF16)
    tiles_BF16(ng, j, g, p);
  else
    tiles_F32(ng, j, g, p);
}

/* Returns four elements of a table of 16 floats. at: their indices. The bytes of element i are 4 i .. 4 i + 3. */
INLINE float32x4_t look_up(uint8x16x4_t table, uint32x4_t at) {
  const uint32x4_t bytes = vaddq_u32(vmulq_n_u32(at, 0x04040404), vdupq_n_u32(0x03020100));
  return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)));
}

/* Decodes columns 16 half .. 16 half + 15 of the four rows of a part of LUT4. c: their codes. Two parts share a table. */
INLINE void unpack_table(const struct job *j, int64_t g, int part, int half, const int8x16_t c[8], float *panel) {
  const uint8x16x4_t table = vld1q_u8_x4((const uint8_t *)(j->w->lut + (2 * g + part / 2) * 16));
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    const uint32x4_t code = vreinterpretq_u32_s8(c[4 * half + i / 4]);
    vst1q_f32(panel + i * ANE_GROUP, look_up(table, vandq_u32(vshlq_u32(code, vdupq_n_s32(-8 * (i % 4))), vdupq_n_u32(15))));
  }
}

/* Decodes the current range of group g to a panel of floats. Writes whole blocks of 32 columns. */
INLINE void unpack_panel(ane_layout f, const struct job *j, int64_t g, float *panel) {
  const struct ane_packed *w = j->w;
  const uint8_t *group = w->data + (size_t)g * w->group_bytes;
  const struct code_table values = code_table(f, w);
  for (int64_t c0 = 0; c0 < j->n; c0 += ANE_BLOCK)
    for (int part = 0; part < PARTS; part++) {
      const struct block_parts at = block_at(f, group, (j->k + c0) / ANE_BLOCK);
      int8x16_t c[8];
      unpack_block(f, w, g, (j->k + c0) / ANE_BLOCK, at.codes, part, values, c);
      float32x4_t min = layout_has_offset(f) ? unpack_offset(f, at, part)
                        : layout_has_min(f)  ? unpack_min(f, at, part)
                                             : vdupq_n_f32(0);
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        if (f == ANE_LAYOUT_LUT4) {
          unpack_table(j, g, part, half, c, panel + (c0 + 16 * half) * ANE_GROUP + part * LANES);
          continue;
        }
        const float32x4_t scale =
            f == ANE_LAYOUT_I8 ? vld1q_f32(w->row_scale + g * ANE_GROUP + part * LANES) : unpack_scale(f, at, values, part, half);
        if (layout_has_sub_min(f)) min = unpack_sub_min(at, part, half);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) { /* byte i % 4 of each word, sign extended */
          int32x4_t code = vreinterpretq_s32_s8(c[4 * half + i / 4]);
          code = vshlq_s32(vshlq_s32(code, vdupq_n_s32(24 - 8 * (i % 4))), vdupq_n_s32(-24));
          const float32x4_t number = vcvtq_f32_s32(vsubq_s32(code, vdupq_n_s32(zero_left(f))));
          float32x4_t value = vmulq_f32(scale, layout_has_offset(f) ? vaddq_f32(number, min) : number);
          if (layout_has_sub_min(f) || (layout_has_min(f) && !layout_has_offset(f))) value = vaddq_f32(value, min);
          vst1q_f32(panel + (c0 + 16 * half + i) * ANE_GROUP + part * LANES, value);
        }
      }
    }
}

static void panel_of(ane_layout f, const struct job *j, int64_t g, float *panel, float *tmp) {
  switch (f) {
#define ANE_LAYOUT(id, name, unit, ...)                                                                                          \
  case ANE_LAYOUT_##id:                                                                                                          \
    if (unit < ANE_BLOCK)                                                                                                        \
      ane_read_panel(j->w, g, j->k, (int)j->n, panel, tmp);                                                                      \
    else                                                                                                                         \
      unpack_panel(ANE_LAYOUT_##id, j, g, panel);                                                                                \
    break;
#include "kernels/layout.def"
#undef ANE_LAYOUT
    default: break;
  }
}

static void matmul_f32(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out,
                       int64_t ld_out, void *scratch) {
  const ane_layout f = w->layout;
  const bool direct = f == ANE_LAYOUT_F32 || f == ANE_LAYOUT_F16 || f == ANE_LAYOUT_BF16;
  const int width = x->t <= 2 ? MAX_GROUPS : 1;
  float *panels = scratch;
  struct job j = {w, x, out, ld_out, 0, 0};
  for (int64_t g = g_from; g < g_to; g += width) {
    const int ng = (int)ANE_MIN(g_to - g, width);
    for (j.k = 0; j.k < w->cols; j.k += j.n) {
      const uint8_t *p[MAX_GROUPS];
      j.n = direct ? w->cols : ANE_MIN(w->cols - j.k, ANE_PANEL);
      for (int i = 0; i < ng; i++) {
        if (direct) {
          p[i] = w->data + (size_t)(g + i) * w->group_bytes;
        } else {
          panel_of(f, &j, g + i, panels + i * PANEL_FLOATS, panels + MAX_GROUPS * PANEL_FLOATS);
          p[i] = (const uint8_t *)(panels + i * PANEL_FLOATS);
        }
      }
      tiles(f, ng, &j, g, p);
    }
  }
}

void ane_matmul_f32_neon(struct ane_kernels *k) {
  for (int f = 0; f < ANE_LAYOUT_COUNT; f++) k->matmul[f][ANE_ACTIVATION_F32] = matmul_f32;
}
