/* The scratch memory of a program: a part shared by all threads, and a part for each thread. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

/* Adds `size` bytes to a running total, which stays a multiple of 64. Returns the offset of the added bytes. */
static size_t reserve(size_t *total, size_t size) {
  size_t at = *total;
  *total += ane_align_up(size, 64);
  return at;
}

/* The largest needs of any step, for the shared scratch and for that of a thread. */
struct scratch_needs {
  int64_t cols[ANE_ACTIVATION_COUNT], channels, part, temp;
  size_t kernel, shared;
};

static void scratch_needs_of(const struct ane_program *p, struct scratch_needs *w) {
  for (int32_t i = 0; i < p->n_steps; i++) {
    const struct step *s = &p->steps[i];
    w->kernel = ANE_MAX(w->kernel, s->kernel_bytes);
    w->shared = ANE_MAX(w->shared, s->shared_bytes);
    w->temp = ANE_MAX(w->temp, s->temp_floats);
    if (s->op == ane_op_info(ANE_OP_LINEAR)) {
      for (int m = 0; m < s->linear.count; m++) {
        const struct matrix *x = s->linear.w[m];
        w->cols[x->activation_type] = ANE_MAX(w->cols[x->activation_type], x->packed.cols);
        w->channels = ANE_MAX(w->channels, x->packed.cols);
        w->kernel = ANE_MAX(w->kernel, ane_matmul_scratch(&x->packed));
      }
    } else if (s->op == ane_op_info(ANE_OP_FUSED_ATTENTION) || s->op == ane_op_info(ANE_OP_ATTENTION)) {
      w->kernel = ANE_MAX(w->kernel, ane_attention_scratch(s->attention.heads, s->attention.kv_heads, s->attention.head_dim));
      w->part = ANE_MAX(w->part, s->attention.heads * (2 + s->attention.head_dim));
    }
  }
}

ane_status plan_scratch(struct ane_program *p, size_t activations, struct ane_error *err) {
  struct scratch_needs w = {0};
  scratch_needs_of(p, &w);
  int64_t chunk = p->o.chunk, tiles = (p->o.context + ANE_TILE - 1) / ANE_TILE;
  size_t total = 0, at[ANE_ACTIVATION_COUNT], normed, parts, counters, claimed, prefetch, thread_mem, shared;
  p->activation_bytes = activations;
  reserve(&total, activations);
  for (int a = 0; a < ANE_ACTIVATION_COUNT; a++) {
    size_t bytes = a == ANE_ACTIVATION_F32 || !w.cols[a] ? 0 : ane_activations_bytes((ane_activation_type)a, chunk, w.cols[a]);
    at[a] = reserve(&total, bytes);
    size_t alone = bytes ? ane_activations_bytes((ane_activation_type)a, ALONE_TOKENS, w.cols[a]) : 0;
    p->thread_activations[a] = reserve(&p->thread_bytes, alone);
  }
  normed = reserve(&total, (size_t)(chunk * w.channels) * sizeof(float));
  parts = reserve(&total, (size_t)(tiles * w.part) * sizeof(float));
  shared = reserve(&total, w.shared);
  counters = reserve(&total, (size_t)p->n_steps * 2 * sizeof *p->counters);
  p->claimed_stride = (int64_t)ane_align_up(2 * (size_t)p->n_steps, 64 / sizeof *p->claimed);
  claimed = reserve(&total, (size_t)(p->claimed_stride * p->o.threads) * sizeof *p->claimed);
  prefetch = reserve(&total, (size_t)p->o.threads * sizeof *p->prefetch);
  p->thread_normed = reserve(&p->thread_bytes, (size_t)(ALONE_TOKENS * w.channels) * sizeof(float));
  p->temp_rows = 64;
  p->thread_temp = reserve(&p->thread_bytes, (size_t)ANE_MAX(2 * chunk * p->temp_rows, w.temp) * sizeof(float));
  p->thread_kernel = reserve(&p->thread_bytes, w.kernel);
  p->thread_bytes = ane_align_up(p->thread_bytes, 4096);
  thread_mem = reserve(&total, p->thread_bytes * (size_t)p->o.threads);
  p->scratch_bytes = total;
  p->scratch = ane_pages_alloc(total, false); /* not in huge pages: a short prompt then commits little of it */
  if (!p->scratch) return ane_fail(err, ANE_NOMEM, "no memory for %zu bytes of activations", total);
  for (int a = 0; a < ANE_ACTIVATION_COUNT; a++) p->activations[a] = p->scratch + at[a];
  p->normed = (float *)(void *)(p->scratch + normed);
  p->shared = p->scratch + shared;
  p->parts = (float *)(void *)(p->scratch + parts);
  p->counters = (_Atomic int64_t *)(void *)(p->scratch + counters);
  p->claimed = (_Atomic int64_t *)(void *)(p->scratch + claimed);
  p->prefetch = (struct prefetch *)(void *)(p->scratch + prefetch);
  p->thread_mem = p->scratch + thread_mem;
  p->result_block_bytes = (size_t)p->vocab * OUT_ROWS_BLOCK * sizeof(float);
  p->result_block = ane_pages_alloc(p->result_block_bytes, false);
  return p->result_block ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for the program");
}
