/* Speed of matrix products beside the machine's limits: `matmul_bench [type|all [isa|best [int8|fp32 [threads]]]]`.
 *
 * For each type, shape, thread count and T: the best of many runs. T up to 32 walks through copies of the matrix of 96 MB
 * in all, as a model's layers do, and is compared with reading memory, with a loop of dots on registers, and with T = 1.
 * T = 512 uses one matrix and is compared with the loop of dots. Limits are measured again beside every line, since other
 * work may share the machine. One block of activations in 16 has outliers, as in SmolLM2 and Qwen2.5. */

#include "base/alloc.h"
#include "kernels/kernels.h"
#include "platform/platform.h"
#include "tensor/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCRATCH = 1 << 20, MAX_THREADS = 64 };

static const int64_t tokens[] = {1, 2, 4, 8, 16, 32, 512};

struct job {
  const struct ane_kernels *k;
  struct ane_packed *w;
  int64_t from, to; /* copies of the matrix */
  struct ane_activations x;
  float *out;
  uint8_t *scratch;
  uint64_t sink[MAX_THREADS];
  double ops[MAX_THREADS];
};

static uint32_t seed = 1;
static uint32_t next(void) { return seed = seed * 1664525 + 1013904223; }

/* A row of random bytes from 0x20 to 0x2F: at any offset, fp16, bf16 and fp32 fields are small and finite. */
static void random_row(uint8_t *row, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++) row[i] = (uint8_t)(0x20 | next() >> 28);
}

static void run_product(void *arg, int thread, int threads) {
  struct job *j = arg;
  int64_t from, to;
  ane_split(j->w->groups, thread, threads, &from, &to);
  for (int64_t c = j->from; c < j->to; c++)
    j->k->matmul[j->w->layout][j->x.kind](&j->w[c], &j->x, from, to, j->out, j->w->rows, j->scratch + (size_t)thread * SCRATCH);
}

static void run_read(void *arg, int thread, int threads) {
  struct job *j = arg;
  int64_t from, to;
  ane_split(j->w->groups, thread, threads, &from, &to);
  for (int64_t c = j->from; c < j->to; c++)
    j->sink[thread] ^= ane_limit_read(j->w[c].data + (size_t)from * j->w->group_bytes, (size_t)(to - from) * j->w->group_bytes);
}

static void run_limit(void *arg, int thread, int threads) {
  struct job *j = arg;
  (void)threads;
  const ane_isa isa = j->k->isa;
  j->ops[thread] = j->x.kind == ANE_ACTIVATION_I8     ? ane_limit_dot(isa, 400000)
                   : j->x.kind == ANE_ACTIVATION_BF16 ? ane_limit_bf16(isa, 400000)
                                                      : ane_limit_fma(isa, 400000);
}

/* Seconds of the best of `runs` runs of each of two functions, which run alternately. */
static void best_of(struct ane_pool *pool, int runs, ane_pool_fn a, ane_pool_fn b, struct job *j, double best[2]) {
  best[0] = best[1] = 1e9;
  for (int i = 0; i < runs; i++)
    for (int s = 0; s < 2; s++) {
      double t = ane_clock();
      ane_pool_run(pool, s ? b : a, j);
      t = ane_clock() - t;
      if (t < best[s]) best[s] = t;
    }
}

/* Operations a second that the job's kind of dot can reach: the best of some runs. */
static double dot_limit(struct ane_pool *pool, struct job *j) {
  double best[2], ops = 0;
  best_of(pool, 2, run_limit, run_limit, j, best);
  for (int i = 0; i < ane_pool_threads(pool); i++) ops += j->ops[i];
  return ops / ANE_MIN(best[0], best[1]);
}

/* One line. *one: seconds of T = 1, which comes first. */
static void bench_tokens(struct ane_pool *pool, struct job *j, int64_t t, int64_t copies, double *one) {
  const bool few = t <= 32;
  double best[2];
  j->from = 0, j->to = few ? copies : 1;
  best_of(pool, few ? 9 : 25, run_product, few ? run_read : run_limit, j, best);
  double ops = 2.0 * (double)j->w->rows * (double)j->w->cols * (double)(t * j->to), limit = dot_limit(pool, j),
         bytes = (double)j->w->groups * (double)j->w->group_bytes * (double)j->to;
  printf("  %dthr T=%-3d %7.1f GOPS %5.1f%% of %6.1f", ane_pool_threads(pool), (int)t, ops / best[0] * 1e-9,
         100 * ops / best[0] / limit, limit * 1e-9);
  if (t == 1) *one = best[0];
  if (few)
    printf(", %5.1f GB/s %5.1f%% of %5.1f, %5.2f x T=1", bytes / best[0] * 1e-9, 100 * best[1] / best[0], bytes / best[1] * 1e-9,
           best[0] / *one);
  printf("\n");
  fflush(stdout);
}

static void bench_layout(const struct ane_kernels *k, ane_dtype t, int64_t rows, int64_t cols, bool int8, int only_threads) {
  struct ane_packed w = {.layout = ane_layout_for(t, cols), .dtype = t, .rows = rows, .cols = cols, .groups = (rows + 15) / 16};
  uint64_t row_bytes;
  if (!ane_dtype_bytes(t, (uint64_t)cols, &row_bytes) || !ane_layout_group_bytes(w.layout, cols, &w.group_bytes)) return;
  size_t bytes = (size_t)w.groups * w.group_bytes;
  int64_t copies = (int64_t)(96e6 / (double)bytes) + 1, t_max = 512;
  uint8_t *memory = ane_pages_alloc(bytes * (size_t)copies, true), *stored = malloc(row_bytes * ANE_GROUP);
  struct ane_packed *all = malloc(sizeof *all * (size_t)copies);
  float *scale = malloc(sizeof(float) * (size_t)w.groups * ANE_GROUP), *x = malloc(sizeof(float) * (size_t)(t_max * cols));
  struct job j = {.k = k,
                  .w = all,
                  .out = malloc(sizeof(float) * (size_t)(t_max * rows)),
                  .scratch = ane_pages_alloc((size_t)MAX_THREADS * SCRATCH, true)};
  double pack_time = 0;
  for (int64_t g = 0; g < w.groups; g++) {
    for (int r = 0; r < ANE_GROUP; r++) random_row(stored + (size_t)r * row_bytes, row_bytes);
    double start = ane_clock();
    for (int i = 0; i < 4; i++)
      ane_pack_group(w.layout, t, stored, row_bytes, ANE_GROUP, cols, memory + (size_t)g * w.group_bytes);
    pack_time += (ane_clock() - start) / 4;
  }
  for (int64_t i = 0; i < w.groups * ANE_GROUP; i++) scale[i] = 0.01f;
  if (w.layout == ANE_LAYOUT_I8) w.row_scale = scale;
  for (int64_t c = 0; c < copies; c++) {
    if (c) memcpy(memory + (size_t)c * bytes, memory, bytes);
    all[c] = w;
    all[c].data = memory + (size_t)c * bytes;
  }
  for (int64_t i = 0; i < t_max * cols; i++) x[i] = (float)(next() >> 8) * 0x1p-24f - 0.5f;
  for (int64_t i = 0; i < t_max * cols; i += ANE_BLOCK)
    if (next() >> 28 == 0) x[i + (next() >> 27)] = x[i + (next() >> 27)] = 3;
  ane_activation_type act = ane_activation_type_for(w.layout, int8, k->bf16_dot);
  printf("%-5s %s %dx%d  pack %.1f GB/s\n", ane_layout_info(w.layout)->name,
         act == ANE_ACTIVATION_I8     ? "i8"
         : act == ANE_ACTIVATION_BF16 ? "bf16"
                                      : "f32",
         (int)rows, (int)cols, (double)row_bytes * (double)rows / pack_time * 1e-9);
  for (int threads = 1; threads <= 2; threads++) {
    struct ane_pool *pool;
    if (only_threads && threads != only_threads) continue;
    if (ane_pool_create(&pool, threads, NULL)) return;
    double one = 0;
    for (size_t i = 0; i < ANE_COUNT(tokens); i++) {
      const int64_t n = tokens[i];
      size_t size = ane_activations_bytes(act, n, cols);
      void *mem = ane_pages_alloc(size, true);
      ane_activations_place(&j.x, act, n, cols, mem);
      if (act == ANE_ACTIVATION_I8)
        k->quantise_i8(&j.x, x, cols, 0, n);
      else if (act == ANE_ACTIVATION_BF16)
        k->convert_bf16(&j.x, x, cols, 0, n);
      else
        j.x.f32 = x;
      bench_tokens(pool, &j, n, copies, &one);
      ane_pages_free(mem, size);
    }
    ane_pool_destroy(pool);
  }
  ane_pages_free(memory, bytes * (size_t)copies);
  ane_pages_free(j.scratch, 4 * SCRATCH);
  free(stored), free(all), free(scale), free(x), free(j.out);
}

static bool has_layout(ane_dtype t) { return ane_layout_for(t, 256) != ANE_LAYOUT_ROWS; }

static int wrong(const char *what, const char *found) {
  fprintf(stderr, "matmul_bench: no %s %s\nusage: matmul_bench [type|all [isa|best [int8|fp32 [threads]]]]\n", what, found);
  return 2;
}

int main(int argc, char **argv) {
  static const int shapes[][2] = {{576, 1536}, {1536, 576}, {4864, 896}};
  bool best = argc <= 2 || !strcmp(argv[2], "best"), int8 = argc <= 3 || strcmp(argv[3], "fp32");
  ane_isa isa = best ? ane_isa_best() : ane_isa_from_name(argv[2]);
  int threads = argc > 4 ? atoi(argv[4]) : 0;
  bool known = argc <= 1 || !strcmp(argv[1], "all");
  for (int t = 0; t < ANE_DTYPE_COUNT; t++)
    known |= argc > 1 && has_layout((ane_dtype)t) && !strcmp(argv[1], ane_dtype_info((ane_dtype)t)->name);
  if (!known) return wrong("type", argv[1]);
  if (isa == ANE_ISA_COUNT || !ane_isa_available(isa)) return wrong("level", argv[2]);
  if (argc > 3 && strcmp(argv[3], "int8") && strcmp(argv[3], "fp32")) return wrong("kind of activations", argv[3]);
  if (argc > 4 && (threads < 1 || threads > MAX_THREADS)) return wrong("number of threads", argv[4]);
  for (int i = 0; i < ANE_DTYPE_COUNT; i++) {
    const struct ane_dtype_info *t = ane_dtype_info((ane_dtype)i);
    if (!has_layout((ane_dtype)i)) continue;
    if (argc > 1 && strcmp(argv[1], "all") && strcmp(argv[1], t->name)) continue;
    for (size_t s = 0; s < ANE_COUNT(shapes); s++) /* rows of K-quants are shortened to whole blocks */
      bench_layout(ane_kernels_get(isa), (ane_dtype)i, shapes[s][0], shapes[s][1] / t->block * t->block, int8, threads);
  }
  return 0;
}
