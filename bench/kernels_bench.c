/* Speed of norms, activations and attention at each level of this machine, one thread, best of many runs. Beside them is the
 * level's limit: a loop of independent fp32 fused multiply-adds.
 *
 *   make bench && build/release/bench/kernels_bench [seconds]
 *
 * GFLOPS of attention count 4 * head_dim operations for each visible pair of query and key, and do not count exp. GB/s of
 * decode count the keys and values read; GB/s of elementwise functions count every array once. */
#include "kernels/kernels.h"

#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double budget = 0.3; /* seconds a measurement */

#define BEST(seconds, statement)                                                                                                 \
  double seconds = 1e9;                                                                                                          \
  for (double end_ = ane_clock() + budget; ane_clock() < end_;) {                                                                \
    double start_ = ane_clock();                                                                                                 \
    statement;                                                                                                                   \
    double took_ = ane_clock() - start_;                                                                                         \
    if (took_ < seconds) seconds = took_;                                                                                        \
  }

static void *memory(size_t size) {
  void *p = ane_pages_alloc(size, true);
  if (!p) exit(1);
  return p;
}

static float *noise(size_t n, float limit) {
  float *x = memory(n * sizeof *x);
  uint32_t s = 1;
  for (size_t i = 0; i < n; i++, s = s * 1664525u + 1013904223u) x[i] = ((float)(s >> 8) * 0x1p-23f - 1) * limit;
  return x;
}

enum { CHAINS = 12, STEPS = 200000 };

#define FMA_LOOP(name, target_, type, set, fma, lanes)                                                                           \
  __attribute__((target(target_))) static double name(void) {                                                                    \
    type s[CHAINS];                                                                                                              \
    const type a = set(0.999f), b = set(1e-3f);                                                                                  \
    for (int i = 0; i < CHAINS; i++) s[i] = set((float)i);                                                                       \
    BEST(seconds, {                                                                                                              \
      for (int k = 0; k < STEPS; k++) _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) s[i] = fma(s[i], a, b);          \
    })                                                                                                                           \
    volatile float sink = 0;                                                                                                     \
    for (int i = 0; i < CHAINS; i++) sink += s[i][0];                                                                            \
    return 2.0 * lanes * CHAINS * STEPS / seconds * 1e-9;                                                                        \
  }
FMA_LOOP(limit_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, 8)
FMA_LOOP(limit_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, 16)

static double limit(ane_isa isa) {
  if (isa == ANE_ISA_AVX2) return limit_avx2();
  return isa >= ANE_ISA_AVX512 && isa <= ANE_ISA_AVX512VNNI ? limit_avx512() : NAN;
}

static struct ane_kv cache(const struct ane_kernels *k, ane_dtype dtype, int64_t heads, int64_t hd, int64_t count) {
  const int64_t tiles = (count + ANE_TILE - 1) / ANE_TILE;
  struct ane_kv kv = {.dtype = dtype, .heads = heads, .head_dim = hd};
  const size_t page = ane_kv_layout(&kv, 0);
  uint8_t **pages = memory((size_t)tiles * sizeof *pages), *data = memory((size_t)tiles * page);
  for (int64_t i = 0; i < tiles; i++) pages[i] = data + (size_t)i * page;
  kv.pages = pages;
  float *x = noise((size_t)(heads * hd), 1);
  for (int64_t p = 0; p < count; p++) k->kv_write(&kv, p, 1, x, x, heads * hd, 0, heads);
  return kv;
}

struct shape {
  const char *name;
  int64_t heads, kv_heads, hd, t, pos, window;
  ane_dtype dtype;
};

static void attention(const struct ane_kernels *k, const struct shape *s, double peak) {
  struct ane_kv kv = cache(k, s->dtype, s->kv_heads, s->hd, s->pos + s->t);
  const int64_t row = s->heads * s->hd;
  struct ane_attention a = {.kv = &kv,
                            .q = noise((size_t)(s->t * row), 1),
                            .out = memory((size_t)(s->t * row) * 4),
                            .ld_q = row,
                            .ld_out = row,
                            .t = s->t,
                            .n_heads = s->heads,
                            .pos = s->pos,
                            .window = s->window,
                            .scale = 0.125f};
  void *scratch = memory(ane_attention_scratch(s->heads, s->kv_heads, s->hd));
  BEST(seconds, for (int64_t h = 0; h < s->kv_heads; h++) k->attention(&a, h, 0, s->t, scratch))
  double pairs = 0;
  for (int64_t p = s->pos; p < s->pos + s->t; p++) pairs += (double)(s->window && p >= s->window ? s->window : p + 1);
  const double gflops = 4.0 * pairs * (double)row / seconds * 1e-9;
  const double width = s->dtype == ANE_F16 || s->dtype == ANE_I16 ? 2 : s->dtype == ANE_I8 ? 1 : 4;
  const double gb = s->t == 1 ? 2.0 * pairs * (double)(s->kv_heads * s->hd) * width / seconds * 1e-9 : 0;
  printf("  %-36s %9.1f us %8.1f GFLOPS %5.1f %%", s->name, seconds * 1e6, gflops, 100 * gflops / peak);
  if (gb > 0) printf(" %7.1f GB/s", gb);
  putchar('\n');
}

static void line(const char *name, double seconds, double bytes) {
  printf("  %-36s %9.2f us %8.1f GB/s\n", name, seconds * 1e6, bytes / seconds * 1e-9);
}

static void vectors(const struct ane_kernels *k, int64_t n, const char *where) {
  float *a = noise((size_t)n, 4), *b = noise((size_t)n, 4), *y = memory((size_t)n * 4), best;
  const double bytes = 4.0 * (double)n;
  volatile int64_t sink;
  printf("  %lld floats (%s)\n", (long long)n, where);
  BEST(rms, k->rms_norm(a, 576, b, 1e-5f, y, 576, n / 576, 576))
  line("rms_norm, rows of 576", rms, 2 * bytes);
  BEST(layer, k->layer_norm(a, 576, b, b, 1e-5f, y, 576, n / 576, 576))
  line("layer_norm, rows of 576", layer, 2 * bytes);
  BEST(add, k->add(a, b, y, n))
  line("add", add, 3 * bytes);
  BEST(silu, k->silu(a, b, y, n))
  line("silu * u", silu, 3 * bytes);
  BEST(tanh, k->gelu_tanh(a, b, y, n))
  line("gelu_tanh * u", tanh, 3 * bytes);
  BEST(erf, k->gelu_erf(a, b, y, n))
  line("gelu_erf * u", erf, 3 * bytes);
  BEST(cap, k->softcap(a, 30, y, n))
  line("softcap", cap, 2 * bytes);
  BEST(neox, k->rope(y, b, n / 64, 64, 64, true))
  line("rope, halves", neox, 2 * bytes);
  BEST(pairs, k->rope(y, b, n / 64, 64, 64, false))
  line("rope, pairs", pairs, 2 * bytes);
  BEST(most, sink = k->argmax(a, n, &best))
  line("argmax", most, bytes);
  (void)sink;
}

int main(int argc, char **argv) {
  static const struct shape shapes[] = {
      {"prefill 512, 9/3 heads of 64", 9, 3, 64, 512, 0, 0, ANE_F16},
      {"prefill 512, 14/2 heads of 64", 14, 2, 64, 512, 0, 0, ANE_F16},
      {"prefill 512, 9/3 heads of 64, int8", 9, 3, 64, 512, 0, 0, ANE_I8},
      {"prefill 512, 9/3 heads of 64, fp32", 9, 3, 64, 512, 0, 0, ANE_F32},
      {"prefill 512, 9/3 heads of 64, int16", 9, 3, 64, 512, 0, 0, ANE_I16},
      {"prefill 512 at 1536, 9/3 heads of 64", 9, 3, 64, 512, 1536, 0, ANE_F16},
      {"prefill 512 at 1536, 9/3, int16", 9, 3, 64, 512, 1536, 0, ANE_I16},
      {"prefill 512 at 3584, 9/3 heads of 64", 9, 3, 64, 512, 3584, 0, ANE_F16},
      {"prefill 512 at 3584, 9/3, int16", 9, 3, 64, 512, 3584, 0, ANE_I16},
      {"prefill 512, 32/8 heads of 128", 32, 8, 128, 512, 0, 0, ANE_F16},
      {"prefill 512, 32/8 heads of 80", 32, 8, 80, 512, 0, 0, ANE_F16},
      {"prefill 512, 8/4 heads of 256", 8, 4, 256, 512, 0, 0, ANE_F16},
      {"prefill 512 at 512, window 128, 9/3", 9, 3, 64, 512, 512, 128, ANE_F16},
      {"8 tokens at 2048, 9/3 heads of 64", 9, 3, 64, 8, 2048, 0, ANE_F16},
      {"decode at 2048, 9/3 heads of 64", 9, 3, 64, 1, 2048, 0, ANE_F16},
      {"decode at 2048, 14/2 heads of 64", 14, 2, 64, 1, 2048, 0, ANE_F16},
      {"decode at 2048, 32/8 heads of 128", 32, 8, 128, 1, 2048, 0, ANE_F16},
      {"decode at 2048, 9/3 heads of 64, int8", 9, 3, 64, 1, 2048, 0, ANE_I8},
      {"decode at 2048, 9/3 heads of 64, fp32", 9, 3, 64, 1, 2048, 0, ANE_F32},
      {"decode at 2048, 9/3 heads of 64, int16", 9, 3, 64, 1, 2048, 0, ANE_I16},
      {"decode at 65536, 8/8 heads of 64", 8, 8, 64, 1, 65536, 0, ANE_F16},
      {"decode at 65536, 9/3 heads of 64", 9, 3, 64, 1, 65536, 0, ANE_F16},
      {"decode at 65536, 14/2 heads of 64", 14, 2, 64, 1, 65536, 0, ANE_F16},
  };
  if (argc > 1) budget = atof(argv[1]);
  if (!(budget > 0))
    return fprintf(stderr, "kernels_bench: no number of seconds %s\nusage: kernels_bench [seconds]\n", argv[1]), 2;
  for (ane_isa isa = ANE_ISA_AVX2; isa < ANE_ISA_COUNT; isa++) {
    if (!ane_isa_available(isa) || isa == ANE_ISA_AVXVNNI) continue; /* the same functions as an earlier level */
    const struct ane_kernels *k = ane_kernels_get(isa);
    const double peak = limit(isa);
    printf("%s: fused multiply-adds alone %.1f GFLOPS\n", ane_isa_name(isa), peak);
    for (size_t i = 0; i < ANE_COUNT(shapes); i++) attention(k, &shapes[i], peak);
    vectors(k, 576 * 4, "first level cache");
    vectors(k, 576 * 16384, "memory");
  }
  return 0;
}
