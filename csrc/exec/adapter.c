/* Adapters: y = W x + sum of scale * B (A x), for the tokens of the sessions that carry them.
 *
 * A and B are fp16 if the program uses int8 activations, and fp32 otherwise; they are multiplied by fp32 activations. B is a
 * packed matrix. A has few rows, stored one after another: the kernel low_rank divides each sum over lanes. A token gets the same
 * bits whatever else is in the run: products do not depend on the number of tokens, and each session adds its adapters in its own
 * order. */
#include "exec/adapter.h"

#include "base/alloc.h"
#include "exec/session_internal.h"
#include "exec/thread_ctx.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct part {
  float scale;
  int64_t rank;
  const void *a; /* fp16 or fp32 in the blocks of low_rank; unused for embeddings */
  int64_t cols;
  struct ane_packed b; /* [rows, rank] */
  const float *table;  /* embeddings: [ids][rank] */
  const float *bias;   /* [rows]; NULL: none */
};

struct ane_adapter {
  struct ane_program *program;
  int refs; /* owners in addition to the creator */
  uint64_t hash, bytes;
  struct part *parts;
  int32_t *of_matrix; /* [n_matrices]: index of the part, or -1 */
  int32_t *of_step;   /* [n_steps]: the same for embed steps */
  int64_t ranks;      /* the largest sum of ranks in one step */
  uint8_t *slab;      /* all A and B */
  size_t slab_bytes, used;
  struct ane_arena arena; /* everything else */
};

/* ---- Creation ---------------------------------------------------------------------------------------------------------- */

static bool is_half(const struct ane_adapter *a) { return a->program->o.int8; }

enum { LOW_ROWS = 4, LOW_COLS = 16 }; /* size of a block of A, as the kernel low_rank reads it */
enum { MOST_DIVIDED = 62 };           /* threads that can divide A: each has a bit of a step's counter */

/* Bytes of LOW_ROWS rows of A. */
static size_t low_bytes(const struct ane_adapter *a, int64_t cols) {
  return ane_align_up((size_t)cols, LOW_COLS) * LOW_ROWS * (is_half(a) ? 2 : 4);
}

/* Describes a matrix [rows, cols] in packed layout, without its memory. *bytes: the bytes it needs. false: too large. */
static bool describe(const struct ane_adapter *a, struct ane_packed *w, int64_t rows, int64_t cols, size_t *bytes) {
  *w = (struct ane_packed){.layout = is_half(a) ? ANE_LAYOUT_F16 : ANE_LAYOUT_F32,
                           .dtype = is_half(a) ? ANE_F16 : ANE_F32,
                           .rows = rows,
                           .cols = cols,
                           .groups = (rows + ANE_GROUP - 1) / ANE_GROUP};
  return ane_layout_group_bytes(w->layout, cols, &w->group_bytes) && ane_packed_bytes(w, bytes);
}

/* Allocates the slab of all A and B, in huge pages, since each token reads all of it. */
static ane_status allocate(struct ane_adapter *a, const struct ane_adapter_part *parts, int32_t n, struct ane_error *err) {
  size_t total = 64;
  bool fits = true;
  for (int32_t i = 0; i < n && fits; i++) {
    const struct ane_adapter_part *q = &parts[i];
    struct ane_packed w;
    size_t low = 0, up = 0;
    if (!q->rank) continue;
    fits = (q->embedding || ane_mul_size(ane_div_up((size_t)q->rank, LOW_ROWS), low_bytes(a, q->cols), &low)) &&
           describe(a, &w, q->rows, q->rank, &up) && ane_add_size(total, ane_align_up(low, 64), &total) &&
           ane_add_size(total, ane_align_up(up, 64), &total);
  }
  a->slab = fits ? ane_pages_alloc(total, true) : NULL;
  if (!a->slab) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  a->slab_bytes = a->bytes = total;
  return ANE_OK;
}

/* Allocates the next `bytes` bytes of the slab. */
static uint8_t *slab_alloc(struct ane_adapter *a, size_t bytes) {
  uint8_t *at = a->slab + a->used;
  a->used += ane_align_up(bytes, 64);
  return at;
}

/* Packs the fp32 rows of B. */
static ane_status pack(struct ane_adapter *a, struct ane_packed *w, const float *rows, int64_t n, int64_t cols,
                       struct ane_error *err) {
  size_t bytes, row = (size_t)cols * (is_half(a) ? 2 : 4);
  uint8_t *encoded = ane_malloc(ANE_GROUP * row);
  if (!encoded || !describe(a, w, n, cols, &bytes)) {
    ane_free(encoded);
    return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  }
  ane_packed_place(w, slab_alloc(a, bytes));
  for (int64_t g = 0; g < w->groups; g++) {
    int here = (int)ANE_MIN(n - g * ANE_GROUP, (int64_t)ANE_GROUP);
    for (int i = 0; i < here; i++)
      ane_encoder(w->dtype)(rows + (g * ANE_GROUP + i) * cols, encoded + (size_t)i * row, (uint64_t)cols);
    ane_pack_rows(w, w->dtype, encoded, row, here, g);
  }
  ane_free(encoded);
  return ANE_OK;
}

/* Encodes A in the blocks that low_rank reads. */
static const void *encode_low(struct ane_adapter *a, const float *rows, int64_t n, int64_t cols) {
  const size_t four = low_bytes(a, cols), size = is_half(a) ? 2 : 4, bytes = ane_div_up((size_t)n, LOW_ROWS) * four;
  uint8_t *memory = slab_alloc(a, bytes);
  memset(memory, 0, bytes);
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c += LOW_COLS) {
      uint8_t *block = memory + (size_t)(r / LOW_ROWS) * four + (size_t)(c * LOW_ROWS) * size;
      ane_encoder(is_half(a) ? ANE_F16 : ANE_F32)(rows + r * cols + c, block + (size_t)(r % LOW_ROWS * LOW_COLS) * size,
                                                  (uint64_t)ANE_MIN(cols - c, (int64_t)LOW_COLS));
    }
  return memory;
}

static const float *copy(struct ane_adapter *a, const float *x, int64_t n) {
  float *to = ane_arena_array(&a->arena, (size_t)n, sizeof *to);
  if (to) memcpy(to, x, (size_t)n * sizeof *to);
  a->bytes += (uint64_t)n * sizeof *to;
  return to;
}

static bool all_finite(const float *x, int64_t n) {
  for (int64_t i = 0; x && i < n; i++)
    if (!isfinite(x[i])) return false;
  return true;
}

static ane_status check_part(const struct ane_adapter_part *q, int64_t rows, int64_t cols, struct ane_error *err) {
  if (q->rows != rows || q->cols != cols)
    return ane_fail(err, ANE_SHAPE,
                    "the adapter is for a weight %s of [%" PRId64 ", %" PRId64 "], the model has [%" PRId64 ", %" PRId64 "]",
                    q->weight, q->rows, q->cols, rows, cols);
  if (!all_finite(q->a, q->rank * cols) || !all_finite(q->b, q->rank * rows) || !all_finite(q->bias, rows) || !isfinite(q->scale))
    return ane_fail(err, ANE_INVALID, "the adapter for weight %s has an element that is not finite", q->weight);
  return ANE_OK;
}

static bool is_product(const struct step *s) { return s->op == ane_op_info(ANE_OP_LINEAR); }

/* Does some step multiply by matrix m alone, as a linear step does? */
static bool in_linear(const struct ane_program *p, const struct matrix *m) {
  for (int32_t i = 0; i < p->n_steps; i++)
    for (int j = 0; is_product(&p->steps[i]) && j < p->steps[i].linear.count; j++)
      if (p->steps[i].linear.w[j] == m) return true;
  return false;
}

/* Assigns the part to the matrix that its weight names. */
static ane_status place_matrix(struct ane_adapter *a, int32_t index, const struct ane_adapter_part *q, struct ane_error *err) {
  const struct ane_program *p = a->program;
  for (int32_t i = 0; i < p->n_matrices; i++) {
    const struct matrix *m = &p->matrices[i];
    if (strcmp(m->name, q->weight) != 0) continue;
    if (!in_linear(p, m))
      return ane_fail(err, ANE_UNSUPPORTED, "weight %s is one of a fused step: its adapter has to be merged", q->weight);
    if (a->of_matrix[i] >= 0) return ane_fail(err, ANE_INVALID, "the adapter has two parts for weight %s", q->weight);
    a->of_matrix[i] = index;
    return check_part(q, m->packed.rows, m->packed.cols, err);
  }
  return ane_fail(err, ANE_NOTFOUND, "no step multiplies by a weight %s", q->weight);
}

/* Assigns the part to all steps that look up ids in the table that its weight names. */
static ane_status place_embedding(struct ane_adapter *a, int32_t index, const struct ane_adapter_part *q, struct ane_error *err) {
  const struct ane_program *p = a->program;
  ane_status st = ane_fail(err, ANE_NOTFOUND, "no step looks up ids in a table %s", q->weight);
  for (int32_t i = 0; i < p->n_steps; i++) {
    const struct step *s = &p->steps[i];
    if (s->op != ane_op_info(ANE_OP_EMBED) || s->embed.list != EMBED_IDS || strcmp(s->embed.name, q->weight) != 0) continue;
    if (a->of_step[i] >= 0) return ane_fail(err, ANE_INVALID, "the adapter has two parts for table %s", q->weight);
    a->of_step[i] = index;
    st = check_part(q, s->out[0]->channels, s->embed.table->shape.dim[0], err);
    if (st) return st;
  }
  return st;
}

static ane_status fill_part(struct ane_adapter *a, int32_t index, const struct ane_adapter_part *q, struct ane_error *err) {
  struct part *part = &a->parts[index];
  ane_status st = q->embedding ? place_embedding(a, index, q, err) : place_matrix(a, index, q, err);
  if (st) return st;
  part->scale = q->scale;
  part->rank = q->rank;
  if (q->bias && !(part->bias = copy(a, q->bias, q->rows))) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  if (q->rank == 0) return ANE_OK;
  if (q->embedding) {
    part->table = copy(a, q->a, q->rank * q->cols);
    if (!part->table) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  } else {
    part->a = encode_low(a, q->a, q->rank, q->cols);
  }
  part->cols = q->cols;
  return pack(a, &part->b, q->b, q->rows, q->rank, err);
}

static const struct part *part_of_matrix(const struct ane_adapter *a, const struct matrix *m) {
  int32_t i = a->of_matrix[m - a->program->matrices];
  return i < 0 ? NULL : &a->parts[i];
}

/* The sum of the ranks in a step. */
static int64_t step_ranks(const struct ane_adapter *a, const struct step *s) {
  int64_t sum = 0;
  if (a->of_step[s->index] >= 0) return a->parts[a->of_step[s->index]].rank;
  for (int m = 0; is_product(s) && m < s->linear.count; m++) {
    const struct part *q = part_of_matrix(a, s->linear.w[m]);
    if (q) sum += q->rank;
  }
  return sum;
}

static ane_status fill(struct ane_adapter *a, const struct ane_adapter_part *parts, int32_t n, struct ane_error *err) {
  const struct ane_program *p = a->program;
  a->parts = ane_arena_array(&a->arena, (size_t)n, sizeof *a->parts);
  a->of_matrix = ane_arena_array(&a->arena, (size_t)p->n_matrices, sizeof *a->of_matrix);
  a->of_step = ane_arena_array(&a->arena, (size_t)p->n_steps, sizeof *a->of_step);
  if (!a->parts || !a->of_matrix || !a->of_step) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  memset(a->of_matrix, 0xFF, (size_t)p->n_matrices * sizeof *a->of_matrix);
  memset(a->of_step, 0xFF, (size_t)p->n_steps * sizeof *a->of_step);
  for (int32_t i = 0; i < n; i++) {
    ane_status st = fill_part(a, i, &parts[i], err);
    if (st) return st;
  }
  for (int32_t i = 0; i < p->n_steps; i++) a->ranks = ANE_MAX(a->ranks, step_ranks(a, &p->steps[i]));
  return ANE_OK;
}

ane_status ane_adapter_create(struct ane_adapter **out, struct ane_program *p, const struct ane_adapter_part *parts, int32_t n,
                              uint64_t hash, struct ane_error *err) {
  *out = NULL;
  struct ane_adapter *a = ane_calloc(1, sizeof *a);
  if (!a) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  a->program = p;
  a->hash = hash;
  ane_status st = allocate(a, parts, n, err);
  if (!st) st = fill(a, parts, n, err);
  if (st)
    ane_adapter_release(a);
  else
    *out = a;
  return st;
}

void ane_adapter_retain(struct ane_adapter *a) { a->refs++; }

void ane_adapter_release(struct ane_adapter *a) {
  if (!a || a->refs-- > 0) return;
  if (a->slab) ane_pages_free(a->slab, a->slab_bytes);
  ane_arena_free(&a->arena);
  ane_free(a);
}

uint64_t ane_adapter_bytes(const struct ane_adapter *a) { return a->bytes; }

/* ---- Sessions --------------------------------------------------------------------------------------------------------*/

void session_adapters_drop(struct session_adapters *s) {
  while (s->n > 0) ane_adapter_release(s->list[--s->n]);
}

void session_adapters_share(struct session_adapters *to, const struct session_adapters *from) {
  *to = *from;
  for (int32_t i = 0; i < to->n; i++) ane_adapter_retain(to->list[i]);
}

uint64_t ane_session_adapters_key(const struct ane_session *s) {
  uint64_t h = 0;
  for (int32_t i = 0; i < s->adapters.n; i++) {
    uint32_t scale;
    memcpy(&scale, &s->adapters.scale[i], sizeof scale);
    h = (h ^ s->adapters.list[i]->hash ^ scale) * 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio, as in hashes */
    h = (h << 31 | h >> 33) + (uint64_t)(i + 1);
  }
  return h;
}

/* The floats of one thread's part of the scratch. */
static int64_t thread_floats(int64_t ranks) { return ranks + ADAPTER_TEMP; }

/* Makes room for steps whose ranks add up to `ranks`. */
static ane_status reserve(struct ane_program *p, int64_t ranks, struct ane_error *err) {
  struct adapter_scratch *a = &p->adapter_scratch;
  ranks = (int64_t)ane_align_up((size_t)ranks, 16);
  if (a->memory && a->ranks >= ranks) return ANE_OK;
  float *memory = ane_malloc((size_t)(p->o.chunk * ranks + p->o.threads * thread_floats(ranks)) * sizeof *memory);
  if (!memory) return ane_fail(err, ANE_NOMEM, "no memory for adapters of %" PRId64 " ranks", ranks);
  ane_free(a->memory);
  *a = (struct adapter_scratch){ranks, memory};
  return ANE_OK;
}

ane_status ane_session_adapt(struct ane_session *s, struct ane_adapter *const *list, const float *scales, int32_t n,
                             struct ane_error *err) {
  struct session_adapters wanted = {0};
  int64_t ranks = 0;
  if (s->length > 0)
    return ane_fail(err, ANE_STATE, "the session holds %" PRId64 " tokens: adapters are chosen while it is empty", s->length);
  for (int32_t i = 0; i < n; i++) {
    if (list[i]->program != s->program) return ane_fail(err, ANE_INVALID, "the adapter belongs to another model");
    if (!isfinite(scales[i])) return ane_fail(err, ANE_INVALID, "the scale of an adapter is not finite");
    if (scales[i] == 0) continue;
    if (wanted.n == ANE_SESSION_ADAPTERS)
      return ane_fail(err, ANE_RANGE, "a session carries at most %d adapters", ANE_SESSION_ADAPTERS);
    wanted.scale[wanted.n] = scales[i];
    wanted.list[wanted.n++] = list[i];
    ranks += list[i]->ranks;
  }
  ane_status st = wanted.n ? reserve(s->program, ranks, err) : ANE_OK;
  if (st) return st;
  session_adapters_drop(&s->adapters);
  session_adapters_share(&s->adapters, &wanted);
  return ANE_OK;
}

/* ---- Steps -----------------------------------------------------------------------------------------------------------*/

bool adapter_on_head(const struct run *r) {
  const struct step *head = &r->p->steps[r->p->n_steps - 1];
  for (int32_t i = 0; i < r->n_adapted; i++)
    for (int32_t j = 0; j < r->adapted[i].adapters->n; j++) {
      const struct ane_adapter *a = r->adapted[i].adapters->list[j];
      for (int m = 0; is_product(head) && m < head->linear.count; m++)
        if (part_of_matrix(a, head->linear.w[m])) return true;
    }
  return false;
}

/* The tokens of adapted item i that this step computes: [*from, *to), which may be empty. */
static const struct session_adapters *tokens_of(const struct thread_ctx *tc, const struct step *s, int32_t i, int64_t *from,
                                                int64_t *to) {
  const struct adapted *a = &tc->r->adapted[i];
  const bool tail = s->out[0]->tail;
  const int64_t first = tail ? tc->first_out_row : 0;
  *from = ANE_MAX((tail ? a->row_from : a->from) - first, (int64_t)0);
  *to = ANE_MIN((tail ? a->row_to : a->to) - first, tc->tokens);
  return a->adapters;
}

/* Blocks of LOW_ROWS rows of A; 0 if q is NULL. */
static int64_t blocks_of(const struct part *q) { return q ? (q->rank + LOW_ROWS - 1) / LOW_ROWS : 0; }

/* This thread's own scratch: [ranks], then ADAPTER_TEMP floats. */
static float *thread_scratch(const struct thread_ctx *tc) {
  const struct adapter_scratch *a = &tc->p->adapter_scratch;
  return a->memory + tc->p->o.chunk * a->ranks + tc->worker * thread_floats(a->ranks);
}

static void multiply(const struct thread_ctx *tc, const struct ane_packed *w, const struct ane_activations *x, int64_t g0,
                     int64_t g1, float *out, int64_t ld) {
  /* The kernel writes out[t * ld + r] for absolute rows r; the base is moved back so that row g0 * 16 goes to out. */
  float *base = (float *)((uintptr_t)out - (uintptr_t)(g0 * ANE_GROUP) * sizeof *out);
  tc->k->matmul[w->layout][ANE_ACTIVATION_F32](w, x, g0, g1, base, ld, tc->mem + tc->p->thread_kernel);
}

/* out[t * ld + r] = by * (A x)[t][r] for n tokens from token t0 on and rows r of blocks [b0, b1) of LOW_ROWS rows. */
static void down_part(const struct thread_ctx *tc, const struct part *q, float by, const struct ane_activations *x, int64_t t0,
                      int64_t n, int64_t b0, int64_t b1, float *out, int64_t ld) {
  const bool half = tc->p->o.int8;
  const size_t block = ane_align_up((size_t)q->cols, LOW_COLS) * LOW_ROWS * (half ? 2 : 4);
  const int64_t row = b0 * LOW_ROWS, rows = ANE_MIN(b1 * LOW_ROWS, q->rank) - row;
  if (rows <= 0) return;
  tc->k->low_rank((const uint8_t *)q->a + (size_t)b0 * block, half, rows, x->f32 + t0 * x->ld, x->ld, n, q->cols, out + row, ld);
  for (int64_t t = 0; t < n; t++) tc->k->scale(out + t * ld + row, q->scale * by, out + t * ld + row, rows);
}

const float *adapter_down(const struct thread_ctx *tc, const struct step *s, const struct ane_activations *x, int64_t from,
                          int64_t to) {
  const int64_t ld = tc->p->adapter_scratch.ranks;
  float *low = tc->tokens == 1 ? thread_scratch(tc) : tc->p->adapter_scratch.memory;
  for (int32_t i = 0; i < tc->r->n_adapted; i++) {
    int64_t t0, t1, at = 0;
    const struct session_adapters *all = tokens_of(tc, s, i, &t0, &t1);
    t0 = ANE_MAX(t0, from), t1 = ANE_MIN(t1, to);
    for (int32_t j = 0; t0 < t1 && j < all->n; j++)
      for (int m = 0; m < s->linear.count; m++) {
        const struct part *q = part_of_matrix(all->list[j], s->linear.w[m]);
        if (!q || !q->rank) continue;
        down_part(tc, q, all->scale[j], x, t0, t1 - t0, 0, blocks_of(q), low + t0 * ld + at, ld);
        at += q->rank;
      }
  }
  return low;
}

/* The adapters of the step's only token; NULL: it has none. */
static const struct session_adapters *of_one_token(const struct thread_ctx *tc, const struct step *s) {
  for (int32_t i = 0; i < tc->r->n_adapted; i++) {
    int64_t t0, t1;
    const struct session_adapters *all = tokens_of(tc, s, i, &t0, &t1);
    if (t0 < t1) return all;
  }
  return NULL;
}

bool adapter_down_divided(const struct thread_ctx *tc, const struct step *s, const struct ane_activations *x) {
  const struct session_adapters *all = of_one_token(tc, s);
  int64_t blocks = 0, from, to, before = 0, at = 0;
  if (!all || tc->threads == 1 || tc->threads > MOST_DIVIDED) return false;
  for (int32_t j = 0; j < all->n; j++)
    for (int m = 0; m < s->linear.count; m++) blocks += blocks_of(part_of_matrix(all->list[j], s->linear.w[m]));
  ane_split(blocks, tc->thread, tc->threads, &from, &to);
  for (int32_t j = 0; j < all->n; j++)
    for (int m = 0; m < s->linear.count; m++) {
      const struct part *q = part_of_matrix(all->list[j], s->linear.w[m]);
      const int64_t n = blocks_of(q);
      if (n == 0) continue;
      down_part(tc, q, all->scale[j], x, 0, 1, ANE_MAX(from - before, (int64_t)0), ANE_MIN(to - before, n),
                tc->p->adapter_scratch.memory + at, tc->p->adapter_scratch.ranks);
      at += q->rank;
      before += n;
    }
  atomic_fetch_or_explicit(&tc->p->counters[2 * s->index], (int64_t)1 << tc->thread, memory_order_release);
  return true;
}

const float *adapter_down_join(const struct thread_ctx *tc, const struct step *s, const struct ane_activations *x) {
  enum { SPINS = 2000 }; /* some microseconds */
  const int64_t all = ((int64_t)1 << tc->threads) - 1;
  for (int i = 0; i < SPINS; i++)
    if (atomic_load_explicit(&tc->p->counters[2 * s->index], memory_order_acquire) == all) return tc->p->adapter_scratch.memory;
  return adapter_down(tc, s, x, 0, 1);
}

void adapter_prefetch(const struct thread_ctx *tc, const struct step *s, int m, int64_t g0, int64_t g1) {
  enum { LINE = 64, FEW = 8 };
  for (int32_t i = 0; tc->tokens <= FEW && i < tc->r->n_adapted; i++)
    for (int32_t j = 0; j < tc->r->adapted[i].adapters->n; j++) {
      const struct part *q = part_of_matrix(tc->r->adapted[i].adapters->list[j], s->linear.w[m]);
      if (!q || !q->rank) continue;
      const uint8_t *from = q->b.data + (size_t)g0 * q->b.group_bytes, *to = q->b.data + (size_t)g1 * q->b.group_bytes;
      for (; from < to; from += LINE) __builtin_prefetch(from);
    }
}

/* dst[t * ld + r] += (B low)[t][r] for n tokens and row groups [g0, g1); many tokens in blocks that fit into temp. low:
 * [n][ld_low].
 */
static void add_product(const struct thread_ctx *tc, const struct ane_packed *b, const float *low, int64_t ld_low, int64_t n,
                        int64_t g0, int64_t g1, float *dst, int64_t ld, float *temp) {
  enum { GROUPS = 64, FEW = 3 };
  if (n <= FEW) {
    for (int64_t t = 0; t < n; t++) tc->k->low_rank_add(b, low + t * ld_low, g0, g1, dst + t * ld);
    return;
  }
  for (int64_t g = g0; g < g1; g += GROUPS) {
    int64_t end = ANE_MIN(g + GROUPS, g1), first = (g - g0) * ANE_GROUP, rows = ANE_MIN(end * ANE_GROUP, b->rows) - g * ANE_GROUP;
    int64_t most = ADAPTER_TEMP / ((end - g) * ANE_GROUP);
    for (int64_t t = 0; t < n; t += most) {
      int64_t here = ANE_MIN(most, n - t);
      struct ane_activations x = {.kind = ANE_ACTIVATION_F32, .t = here, .cols = b->cols, .f32 = low + t * ld_low, .ld = ld_low};
      multiply(tc, b, &x, g, end, temp, rows);
      for (int64_t i = 0; i < here; i++) {
        float *y = dst + (t + i) * ld + first;
        tc->k->add(y, temp + i * rows, y, rows);
      }
    }
  }
}

/* y += by * bias, n elements. */
static void add_bias(const struct thread_ctx *tc, const float *bias, float by, int64_t n, float *y, float *temp) {
  for (int64_t i = 0; i < n; i += ADAPTER_TEMP) {
    int64_t here = ANE_MIN(n - i, (int64_t)ADAPTER_TEMP);
    tc->k->scale(bias + i, by, temp, here);
    tc->k->add(y + i, temp, y + i, here);
  }
}

void adapter_up(const struct thread_ctx *tc, const struct step *s, const float *low, int m, int64_t g0, int64_t g1, float *dst,
                int64_t ld) {
  const int64_t ranks = tc->p->adapter_scratch.ranks;
  float *temp = thread_scratch(tc) + ranks;
  for (int32_t i = 0; i < tc->r->n_adapted; i++) {
    int64_t t0, t1, at = 0;
    const struct session_adapters *all = tokens_of(tc, s, i, &t0, &t1);
    for (int32_t j = 0; t0 < t1 && j < all->n; j++)
      for (int k = 0; k < s->linear.count; k++) {
        const struct part *q = part_of_matrix(all->list[j], s->linear.w[k]);
        if (!q) continue;
        if (k == m && q->rank) add_product(tc, &q->b, low + t0 * ranks + at, ranks, t1 - t0, g0, g1, dst + t0 * ld, ld, temp);
        for (int64_t t = t0; k == m && q->bias && t < t1; t++) {
          int64_t r0 = g0 * ANE_GROUP, rows = ANE_MIN(g1 * ANE_GROUP, s->linear.w[m]->packed.rows) - r0;
          add_bias(tc, q->bias + r0, all->scale[j], rows, dst + t * ld, temp);
        }
        at += q->rank;
      }
  }
}

void adapter_embed(const struct thread_ctx *tc, const struct step *s, const int32_t *list, int64_t from, int64_t to, float *out) {
  const int64_t c = s->out[0]->channels;
  float *low = thread_scratch(tc), *temp = low + tc->p->adapter_scratch.ranks;
  for (int32_t i = 0; i < tc->r->n_adapted; i++) {
    int64_t t0, t1;
    const struct session_adapters *all = tokens_of(tc, s, i, &t0, &t1);
    t0 = ANE_MAX(t0, from), t1 = ANE_MIN(t1, to);
    for (int32_t j = 0; j < all->n; j++) {
      int32_t at = all->list[j]->of_step[s->index];
      const struct part *q = at < 0 ? NULL : &all->list[j]->parts[at];
      for (int64_t t = t0; q && t < t1; t++) {
        tc->k->scale(q->table + list[t] * q->rank, q->scale * all->scale[j], low, q->rank);
        add_product(tc, &q->b, low, q->rank, 1, 0, q->b.groups, out + t * c, c, temp);
      }
    }
  }
}
