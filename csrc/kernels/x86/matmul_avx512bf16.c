/* bf16 matrices times bf16 activations: vdpbf16ps, 16 rows and a pair of columns a step. */
#define ANE_LANES_VNNI
#include "kernels/x86/matmul_lanes_avx512.h"
#include "kernels/x86/matmul_prefetch.h"

enum { MAX_NV = 4, MAX_NT = 6 };

struct bf16_job {
  const struct ane_packed *w;
  const struct ane_activations *x;
  float *out;
  int64_t ld_out, pairs;
};

/* Multiplies nv groups from g on with nt tokens from t0 on. */
INLINE void bf16_tile(int nv, int nt, const struct bf16_job *j, int64_t g, int64_t t0) {
  vf acc[MAX_NV][MAX_NT];
  const uint8_t *w[MAX_NV];
  const uint16_t *x = j->x->bf16 + t0 * j->pairs * 2;
#pragma GCC unroll 4
  for (int i = 0; i < nv; i++) {
    w[i] = j->w->data + (size_t)(g + i) * j->w->group_bytes;
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) acc[i][t] = v_set(0);
  }
  for (int64_t k = 0; k < j->pairs; k++) {
    vi pair[MAX_NV];
#pragma GCC unroll 4
    for (int i = 0; i < nv; i++) {
      pair[i] = vi_load(w[i] + 64 * k);
      prefetch_packed(w[i], j->w->group_bytes, nv, 64 * (size_t)k, 1);
    }
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++) {
      vi v = vi_word(x + (t * j->pairs + k) * 2);
#if defined(__clang__) && __clang_major__ <= 17
      __asm__("" : "+v"(v)); /* clang 16 and 17 crash where it makes this broadcast an operand in memory of vdpbf16ps */
#endif
#pragma GCC unroll 4
      for (int i = 0; i < nv; i++) acc[i][t] = _mm512_dpbf16_ps(acc[i][t], (__m512bh)pair[i], (__m512bh)v);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < nv; i++)
#pragma GCC unroll 8
    for (int t = 0; t < nt; t++)
      v_store_masked(j->out + (t0 + t) * j->ld_out + (g + i) * LANES, acc[i][t], j->w->rows - (g + i) * LANES);
}

INLINE void bf16_tiles(int nv, const struct bf16_job *j, int64_t g) {
  int64_t width = nv > 2 ? 2 : MAX_NT, n = (j->x->t + width - 1) / width;
  for (int64_t i = 0, t = 0; i < n; i++) {
    int nt = (int)((j->x->t - t) / (n - i));
    if (nt == 1)
      bf16_tile(nv, 1, j, g, t);
    else if (nt == 2)
      bf16_tile(nv, 2, j, g, t);
    else if (nv <= 2) {
      if (nt == 3)
        bf16_tile(nv, 3, j, g, t);
      else if (nt == 4)
        bf16_tile(nv, 4, j, g, t);
      else if (nt == 5)
        bf16_tile(nv, 5, j, g, t);
      else
        bf16_tile(nv, 6, j, g, t);
    }
    t += nt;
  }
}

static void matmul_bf16(const struct ane_packed *w, const struct ane_activations *x, int64_t g_from, int64_t g_to, float *out,
                        int64_t ld_out, void *scratch) {
  struct bf16_job j = {w, x, out, ld_out, (w->cols + 1) / 2};
  int width = x->t <= 2 ? MAX_NV : 2;
  (void)scratch;
  for (int64_t g = g_from; g < g_to; g += width) {
    int64_t nv = ANE_MIN(g_to - g, width);
    if (nv == 4)
      bf16_tiles(4, &j, g);
    else if (nv == 3)
      bf16_tiles(3, &j, g);
    else if (nv == 2)
      bf16_tiles(2, &j, g);
    else
      bf16_tiles(1, &j, g);
  }
}

/* Converts with integer operations, because vcvtneps2bf16 flushes subnormal numbers to zero and ref keeps them. */
static void convert_bf16(const struct ane_activations *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t pad = a->cols + (a->cols & 1);
  for (int64_t t = t_from; t < t_to; t++) {
    uint16_t *to = (uint16_t *)a->bf16 + t * pad;
    for (int64_t i = 0; i < a->cols; i += 16) {
      __mmask16 some = v_first_lanes(a->cols - i);
      __m512 v = _mm512_maskz_loadu_ps(some, x + t * ld + i);
      __m512i u = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
      __m512i half = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7FFF)), 16);
      __m512i nan = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
      half = _mm512_mask_mov_epi32(half, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
      _mm512_mask_cvtepi32_storeu_epi16(to + i, some, half);
    }
    if (pad > a->cols) to[a->cols] = 0;
  }
}

void ane_matmul_avx512bf16(struct ane_kernels *k) {
  k->bf16_dot = true;
  k->matmul[ANE_LAYOUT_BF16][ANE_ACTIVATION_BF16] = matmul_bf16;
  k->convert_bf16 = convert_bf16;
}
