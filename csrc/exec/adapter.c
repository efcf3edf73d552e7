/* Adapters: y = W x + sum of scale * B (A x), for the tokens of the sessions that carry them.
 *
 * Coded parts: if the matrix takes int8 activations, A and B are stored in 8-bit codes. A token reads all of A and B, as it reads
 * all weights, and codes have half the bytes of fp16. The A of all matrices of a step form one Q8_0 matrix, which is multiplied
 * with the step's activation codes. B has the format of the kernel low_codes_add.
 *
 * Other parts: A and B are fp16 if the program has int8 activations, and fp32 otherwise. They are multiplied with fp32
 * activations. B is a packed matrix. A has few rows, so it is stored in the blocks of the kernel low_rank, which divides each sum
 * over lanes.
 *
 * A token gets the same bits whatever else is in the run: products do not depend on the number of tokens, and each session adds
 * its adapters in its own order. */
#include "exec/adapter.h"

#include "base/alloc.h"
#include "exec/session_internal.h"
#include "exec/thread_ctx.h"
#include "tensor/finite.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What an adapter adds to one matrix or embedding. */
struct part {
  float scale; /* of a coded part: it also undoes the power of two by which A was multiplied */
  int64_t rank;
  bool coded;    /* 8-bit codes: A is in `down` of the step, B in `up` */
  const void *a; /* not coded: fp16 or fp32 in the blocks of low_rank; unused for embeddings */
  int64_t rows, cols;
  struct ane_packed b;     /* not coded: [rows, rank] */
  struct ane_low_codes up; /* coded */
  const float *table;      /* embeddings: [ids][rank] */
  const float *bias;       /* [rows]; NULL: none */
};

/* What an adapter adds to the products of one step. */
struct step_parts {
  int64_t ranks;          /* floats of A x of all parts */
  bool shared;            /* all parts are coded and have no bias: threads can compute B by shares */
  struct ane_packed down; /* A of all coded parts, one below the other, in Q8_0; no rows: none */
  struct {
    const struct part *part; /* NULL: none */
    int64_t at;              /* its first float in A x; coded parts come first */
  } m[MAX_LINEAR];
};

struct ane_adapter {
  struct ane_program *program;
  int refs; /* owners in addition to the creator */
  uint64_t hash, bytes;
  struct part *parts;
  int32_t *of_matrix;        /* [n_matrices]: index of the part, or -1 */
  int32_t *of_step;          /* [n_steps]: the same for embed steps */
  struct step_parts **steps; /* [n_steps]: of linear steps; NULL: nothing is added */
  int64_t ranks, rows;       /* the largest sum of ranks in one step; of rows of its matrices */
  uint8_t *slab;             /* all A and B; NULL while their bytes are counted */
  size_t slab_bytes, used;
  bool too_large;         /* the count has overflowed */
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
static bool describe(struct ane_packed *w, ane_layout layout, ane_dtype dtype, int64_t rows, int64_t cols, size_t *bytes) {
  *w = (struct ane_packed){
      .layout = layout, .dtype = dtype, .rows = rows, .cols = cols, .groups = (rows + ANE_GROUP - 1) / ANE_GROUP};
  return ane_layout_group_bytes(layout, cols, &w->group_bytes) && ane_packed_bytes(w, bytes);
}

/* Returns the next `bytes` bytes of the slab; NULL while bytes are counted. */
static uint8_t *slab_alloc(struct ane_adapter *a, size_t bytes) {
  uint8_t *at = a->slab ? a->slab + a->used : NULL;
  if (!ane_add_size(a->used, ane_align_up(bytes, 64), &a->used)) a->too_large = true;
  return at;
}

/* Packs `rows` rows of cols floats into groups g, g + 1, ... of w. */
static ane_status pack_groups(struct ane_packed *w, const float *rows, int64_t n, int64_t g, struct ane_error *err) {
  const size_t row = (size_t)w->cols / ane_dtype_info(w->dtype)->block * ane_dtype_info(w->dtype)->bytes;
  uint8_t *encoded = ane_malloc(ANE_GROUP * row);
  if (!encoded) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  for (int64_t from = 0; from < n; from += ANE_GROUP, g++) {
    int here = (int)ANE_MIN(n - from, (int64_t)ANE_GROUP);
    for (int i = 0; i < here; i++)
      ane_encoder(w->dtype)(rows + (from + i) * w->cols, encoded + (size_t)i * row, (uint64_t)w->cols);
    ane_pack_rows(w, w->dtype, encoded, row, here, g);
  }
  ane_free(encoded);
  return ANE_OK;
}

/* Packs the fp32 rows of a B that has no codes. */
static ane_status pack(struct ane_adapter *a, struct ane_packed *w, const float *rows, int64_t n, int64_t cols,
                       struct ane_error *err) {
  size_t bytes;
  if (!describe(w, is_half(a) ? ANE_LAYOUT_F16 : ANE_LAYOUT_F32, is_half(a) ? ANE_F16 : ANE_F32, n, cols, &bytes))
    return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  uint8_t *memory = slab_alloc(a, bytes);
  if (!memory) return ANE_OK;
  ane_packed_place(w, memory);
  return pack_groups(w, rows, n, 0, err);
}

/* Encodes an A that has no codes in the blocks that low_rank reads. */
static const void *encode_low(struct ane_adapter *a, const float *rows, int64_t n, int64_t cols) {
  const size_t four = low_bytes(a, cols), size = is_half(a) ? 2 : 4, bytes = ane_div_up((size_t)n, LOW_ROWS) * four;
  uint8_t *memory = slab_alloc(a, bytes);
  if (!memory) return NULL;
  memset(memory, 0, bytes);
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < cols; c += LOW_COLS) {
      uint8_t *block = memory + (size_t)(r / LOW_ROWS) * four + (size_t)(c * LOW_ROWS) * size;
      ane_encoder(is_half(a) ? ANE_F16 : ANE_F32)(rows + r * cols + c, block + (size_t)(r % LOW_ROWS * LOW_COLS) * size,
                                                  (uint64_t)ANE_MIN(cols - c, (int64_t)LOW_COLS));
    }
  return memory;
}

/* The exponent of the power of two that brings the largest of n magnitudes to 2^9 .. 2^10. Without it the fp16 scales of Q8_0
 * would be subnormal for small rows, and imprecise. */
static int exponent_for(const float *x, int64_t n) {
  enum { WANTED = 10, MOST = 40 };
  float amax = 0;
  int e = 0;
  for (int64_t i = 0; i < n; i++) amax = fmaxf(amax, fabsf(x[i]));
  frexpf(amax, &e);
  return amax > 0 ? ANE_MAX(ANE_MIN(WANTED - e, MOST), -MOST) : 0;
}

/* Packs the A of all coded parts of a step into s->down. parts: as the caller of ane_adapter_create gave them. */
static ane_status pack_down(struct ane_adapter *a, struct step_parts *s, const struct ane_adapter_part *parts,
                            struct ane_error *err) {
  int64_t rows = 0, cols = 0;
  size_t bytes;
  for (int m = 0; m < MAX_LINEAR; m++)
    if (s->m[m].part && s->m[m].part->coded) rows += s->m[m].part->rank, cols = s->m[m].part->cols;
  if (!rows) return ANE_OK;
  float *all = NULL;
  if (!describe(&s->down, ANE_LAYOUT_Q8_0, ANE_Q8_0, rows, cols, &bytes)) goto nomem;
  uint8_t *memory = slab_alloc(a, bytes);
  if (!memory) return ANE_OK;
  ane_packed_place(&s->down, memory);
  all = ane_malloc((size_t)(rows * cols) * sizeof *all);
  if (!all) goto nomem;
  for (int m = 0; m < MAX_LINEAR; m++) {
    const struct part *q = s->m[m].part;
    if (!q || !q->coded) continue;
    const float *from = parts[q - a->parts].a;
    const int e = exponent_for(from, q->rank * cols);
    for (int64_t i = 0; i < q->rank * cols; i++) all[s->m[m].at * cols + i] = ldexpf(from[i], e);
  }
  ane_status st = pack_groups(&s->down, all, rows, 0, err);
  ane_free(all);
  return st;
nomem:
  return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
}

/* Encodes the B of a coded part, and puts the power of two of A into its scale. */
static ane_status encode_up(struct ane_adapter *a, struct part *part, const struct ane_adapter_part *q, struct ane_error *err) {
  size_t bytes;
  if (!ane_low_codes_shape(&part->up, q->rows, q->rank, &bytes)) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  uint8_t *memory = slab_alloc(a, bytes);
  if (!memory) return ANE_OK;
  ane_low_codes_encode(&part->up, q->b, memory);
  part->up.data = memory;
  part->scale = ldexpf(q->scale, -exponent_for(q->a, q->rank * q->cols));
  return ANE_OK;
}

static const float *copy(struct ane_adapter *a, const float *x, int64_t n) {
  float *to = ane_arena_array(&a->arena, (size_t)n, sizeof *to);
  if (to) memcpy(to, x, (size_t)n * sizeof *to);
  a->bytes += (uint64_t)n * sizeof *to;
  return to;
}

static bool is_fine(const float *x, int64_t n) { return !x || ane_all_finite(x, (uint64_t)n); }

static ane_status check_part(const struct ane_adapter_part *q, int64_t rows, int64_t cols, struct ane_error *err) {
  if (q->rows != rows || q->cols != cols)
    return ane_fail(err, ANE_SHAPE,
                    "the adapter is for a weight %s of [%" PRId64 ", %" PRId64 "], the model has [%" PRId64 ", %" PRId64 "]",
                    q->weight, q->rows, q->cols, rows, cols);
  if (!is_fine(q->a, q->rank * cols) || !is_fine(q->b, q->rank * rows) || !is_fine(q->bias, rows) || !isfinite(q->scale))
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

static const struct part *part_of_matrix(const struct ane_adapter *a, const struct matrix *m) {
  int32_t i = a->of_matrix[m - a->program->matrices];
  return i < 0 ? NULL : &a->parts[i];
}

/* Are A and B in 8-bit codes? They are where the matrix takes activations in codes, which A is then multiplied with. */
static bool is_coded(const struct ane_adapter *a, int32_t index) {
  const struct ane_program *p = a->program;
  for (int32_t i = 0; i < p->n_matrices; i++)
    if (a->of_matrix[i] == index)
      return p->matrices[i].activation_type == ANE_ACTIVATION_I8 && p->matrices[i].packed.cols % ANE_BLOCK == 0 &&
             a->parts[index].rank <= ANE_LOW_RANKS;
  return false;
}

/* Assigns part `index` to a matrix or an embedding, and copies what is not in the slab. */
static ane_status place_part(struct ane_adapter *a, int32_t index, const struct ane_adapter_part *q, struct ane_error *err) {
  struct part *part = &a->parts[index];
  ane_status st = q->embedding ? place_embedding(a, index, q, err) : place_matrix(a, index, q, err);
  if (st) return st;
  *part = (struct part){
      .scale = q->scale,
      .rank = q->rank,
      .rows = q->rows,
      .cols = q->cols,
  };
  part->coded = q->rank > 0 && is_coded(a, index);
  if (q->bias && !(part->bias = copy(a, q->bias, q->rows))) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  if (q->rank > 0 && q->embedding && !(part->table = copy(a, q->a, q->rank * q->cols)))
    return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  return ANE_OK;
}

/* Collects the parts of a linear step. */
static ane_status place_step(struct ane_adapter *a, const struct step *s, struct ane_error *err) {
  struct step_parts all = {.shared = true};
  bool some = false;
  int64_t rows = 0;
  for (int m = 0; m < s->linear.count; m++) rows += s->linear.w[m]->packed.groups * ANE_GROUP;
  for (int coded = 1; coded >= 0; coded--)
    for (int m = 0; m < s->linear.count; m++) {
      const struct part *q = part_of_matrix(a, s->linear.w[m]);
      if (!q || q->coded != (coded == 1)) continue;
      some = true;
      all.shared = all.shared && q->coded && !q->bias;
      all.m[m].part = q;
      all.m[m].at = all.ranks;
      all.ranks += q->rank;
    }
  if (!some) return ANE_OK;
  if (!(a->steps[s->index] = ane_arena_array(&a->arena, 1, sizeof all)))
    return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  *a->steps[s->index] = all;
  a->ranks = ANE_MAX(a->ranks, all.ranks);
  a->rows = ANE_MAX(a->rows, rows);
  return ANE_OK;
}

static ane_status place(struct ane_adapter *a, const struct ane_adapter_part *parts, int32_t n, struct ane_error *err) {
  const struct ane_program *p = a->program;
  a->parts = ane_arena_array(&a->arena, (size_t)n, sizeof *a->parts);
  a->of_matrix = ane_arena_array(&a->arena, (size_t)p->n_matrices, sizeof *a->of_matrix);
  a->of_step = ane_arena_array(&a->arena, (size_t)p->n_steps, sizeof *a->of_step);
  a->steps = ane_arena_array(&a->arena, (size_t)p->n_steps, sizeof *a->steps);
  if (!a->parts || !a->of_matrix || !a->of_step || !a->steps) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  memset(a->of_matrix, 0xFF, (size_t)p->n_matrices * sizeof *a->of_matrix);
  memset(a->of_step, 0xFF, (size_t)p->n_steps * sizeof *a->of_step);
  for (int32_t i = 0; i < p->n_steps; i++) a->steps[i] = NULL;
  ane_status st = ANE_OK;
  for (int32_t i = 0; !st && i < n; i++) st = place_part(a, i, &parts[i], err);
  for (int32_t i = 0; !st && i < p->n_steps; i++) {
    if (a->of_step[i] >= 0) a->ranks = ANE_MAX(a->ranks, a->parts[a->of_step[i]].rank);
    if (is_product(&p->steps[i])) st = place_step(a, &p->steps[i], err);
  }
  return st;
}

/* Writes all A and B to the slab, in the order in which the steps read them; without a slab it counts their bytes. */
static ane_status fill(struct ane_adapter *a, const struct ane_adapter_part *parts, int32_t n, struct ane_error *err) {
  ane_status st = ANE_OK;
  a->used = 0;
  for (int32_t i = 0; !st && i < n; i++) {
    struct part *part = &a->parts[i];
    if (!part->rank) continue;
    if (part->coded) {
      st = encode_up(a, part, &parts[i], err);
      continue;
    }
    if (!parts[i].embedding) part->a = encode_low(a, parts[i].a, parts[i].rank, parts[i].cols);
    st = pack(a, &part->b, parts[i].b, parts[i].rows, parts[i].rank, err);
  }
  for (int32_t i = 0; !st && i < a->program->n_steps; i++)
    if (a->steps[i]) st = pack_down(a, a->steps[i], parts, err);
  return st;
}

/* Allocates the slab of all A and B, in huge pages, since each token reads all of it. */
static ane_status allocate(struct ane_adapter *a, struct ane_error *err) {
  a->slab_bytes = ane_align_up(ANE_MAX(a->used, (size_t)64), a->used > 1 << 20 ? 1 << 21 : 64);
  a->slab = a->too_large ? NULL : ane_pages_alloc(a->slab_bytes, true);
  if (!a->slab) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  a->bytes += a->slab_bytes;
  return ANE_OK;
}

ane_status ane_adapter_create(struct ane_adapter **out, struct ane_program *p, const struct ane_adapter_part *parts, int32_t n,
                              uint64_t hash, struct ane_error *err) {
  *out = NULL;
  struct ane_adapter *a = ane_calloc(1, sizeof *a);
  if (!a) return ane_fail(err, ANE_NOMEM, "no memory for an adapter");
  a->program = p;
  a->hash = hash;
  ane_status st = place(a, parts, n, err);
  if (!st) st = fill(a, parts, n, err);
  if (!st) st = allocate(a, err);
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

/* The number of floats of scratch memory for one thread. */
static int64_t thread_floats(int64_t ranks, int64_t rows) { return ranks + ADAPTER_TEMP + rows; }

/* Makes room for steps whose ranks add up to `ranks`, with `rows` rows. */
static ane_status reserve(struct ane_program *p, int64_t ranks, int64_t rows, struct ane_error *err) {
  struct adapter_scratch *a = &p->adapter_scratch;
  ranks = ANE_MAX((int64_t)ane_align_up((size_t)ranks, 16), a->ranks);
  rows = ANE_MAX(rows, a->rows);
  if (a->memory && a->ranks == ranks && a->rows == rows) return ANE_OK;
  float *memory = ane_malloc((size_t)(p->o.chunk * ranks + p->o.threads * thread_floats(ranks, rows)) * sizeof *memory);
  if (!memory) return ane_fail(err, ANE_NOMEM, "no memory for adapters of %" PRId64 " ranks", ranks);
  ane_free(a->memory);
  *a = (struct adapter_scratch){ranks, rows, memory};
  return ANE_OK;
}

ane_status ane_session_adapt(struct ane_session *s, struct ane_adapter *const *list, const float *scales, int32_t n,
                             struct ane_error *err) {
  struct session_adapters wanted = {0};
  int64_t ranks = 0, rows = 0;
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
    rows = ANE_MAX(rows, list[i]->rows);
  }
  ane_status st = wanted.n ? reserve(s->program, ranks, rows, err) : ANE_OK;
  if (st) return st;
  session_adapters_drop(&s->adapters);
  session_adapters_share(&s->adapters, &wanted);
  return ANE_OK;
}

/* ---- Steps -----------------------------------------------------------------------------------------------------------*/

bool adapter_on_head(const struct run *r) {
  const struct step *head = &r->p->steps[r->p->pruned_head.step];
  for (int32_t i = 0; i < r->n_adapted; i++)
    for (int32_t j = 0; j < r->adapted[i].adapters->n; j++) {
      const struct ane_adapter *a = r->adapted[i].adapters->list[j];
      if (a->steps[head->index]) return true;
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

/* A x of a step is computed in units, which the threads can divide: first groups of 16 rows of the coded parts, then blocks of
 * LOW_ROWS rows of each other part. blocks_of gives the blocks of one part, units_of all units of a step. */
static int64_t blocks_of(const struct part *q) { return q && !q->coded ? (q->rank + LOW_ROWS - 1) / LOW_ROWS : 0; }

static int64_t units_of(const struct step_parts *p) {
  int64_t n = p ? p->down.groups : 0;
  for (int m = 0; p && m < MAX_LINEAR; m++) n += blocks_of(p->m[m].part);
  return n;
}

/* This thread's own scratch: [ranks] floats of A x, then ADAPTER_TEMP floats, then [rows] floats of its adapter_share. */
static float *thread_scratch(const struct thread_ctx *tc) {
  const struct adapter_scratch *a = &tc->p->adapter_scratch;
  return a->memory + tc->p->o.chunk * a->ranks + tc->worker * thread_floats(a->ranks, a->rows);
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

/* Does the same for the coded parts of a step and groups [g0, g1) of the rows of `down`. x: activations in codes. */
static void down_coded(const struct thread_ctx *tc, const struct step_parts *p, float by, const struct ane_activations *x,
                       int64_t t0, int64_t n, int64_t g0, int64_t g1, float *out, int64_t ld) {
  const int64_t from = g0 * ANE_GROUP, to = ANE_MIN(g1 * ANE_GROUP, p->down.rows);
  if (from >= to) return; /* x is not set up if the step takes no codes */
  const struct ane_activations rows = ane_activations_rows(x, t0, n);
  tc->k->matmul[p->down.layout][ANE_ACTIVATION_I8](&p->down, &rows, g0, g1, out, ld, tc->mem + tc->p->thread_kernel);
  for (int m = 0; m < MAX_LINEAR; m++) {
    const struct part *q = p->m[m].part;
    if (!q || !q->coded) continue;
    const int64_t first = ANE_MAX(from, p->m[m].at), end = ANE_MIN(to, p->m[m].at + q->rank);
    for (int64_t t = 0; first < end && t < n; t++)
      tc->k->scale(out + t * ld + first, q->scale * by, out + t * ld + first, end - first);
  }
}

/* Computes units [from, to) of A x of one adapter in a step, for n tokens from token t0 on. */
static void down_units(const struct thread_ctx *tc, const struct step_parts *p, float by,
                       const struct ane_activations x[ANE_ACTIVATION_COUNT], int64_t t0, int64_t n, int64_t from, int64_t to,
                       float *out, int64_t ld) {
  int64_t before = p->down.groups;
  down_coded(tc, p, by, &x[ANE_ACTIVATION_I8], t0, n, ANE_MAX(from, (int64_t)0), ANE_MIN(to, before), out, ld);
  for (int m = 0; m < MAX_LINEAR; m++) {
    const struct part *q = p->m[m].part;
    const int64_t blocks = blocks_of(q);
    if (!blocks) continue;
    down_part(tc, q, by, &x[ANE_ACTIVATION_F32], t0, n, ANE_MAX(from - before, (int64_t)0), ANE_MIN(to - before, blocks),
              out + p->m[m].at, ld);
    before += blocks;
  }
}

const float *adapter_down(const struct thread_ctx *tc, const struct step *s, const struct ane_activations x[ANE_ACTIVATION_COUNT],
                          int64_t from, int64_t to) {
  const int64_t ld = tc->p->adapter_scratch.ranks;
  float *low = tc->tokens == 1 ? thread_scratch(tc) : tc->p->adapter_scratch.memory;
  for (int32_t i = 0; i < tc->r->n_adapted; i++) {
    int64_t t0, t1, at = 0;
    const struct session_adapters *all = tokens_of(tc, s, i, &t0, &t1);
    t0 = ANE_MAX(t0, from), t1 = ANE_MIN(t1, to);
    for (int32_t j = 0; t0 < t1 && j < all->n; j++) {
      const struct step_parts *p = all->list[j]->steps[s->index];
      if (!p) continue;
      down_units(tc, p, all->scale[j], x, t0, t1 - t0, 0, units_of(p), low + t0 * ld + at, ld);
      at += p->ranks;
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

bool adapter_down_divided(const struct thread_ctx *tc, const struct step *s,
                          const struct ane_activations x[ANE_ACTIVATION_COUNT]) {
  const struct session_adapters *all = of_one_token(tc, s);
  int64_t units = 0, from, to, before = 0, at = 0;
  if (!all || tc->threads == 1 || tc->threads > MOST_DIVIDED) return false;
  for (int32_t j = 0; j < all->n; j++) units += units_of(all->list[j]->steps[s->index]);
  ane_split(units, tc->thread, tc->threads, &from, &to);
  for (int32_t j = 0; j < all->n; j++) {
    const struct step_parts *p = all->list[j]->steps[s->index];
    if (!p) continue;
    down_units(tc, p, all->scale[j], x, 0, 1, from - before, to - before, tc->p->adapter_scratch.memory + at,
               tc->p->adapter_scratch.ranks);
    at += p->ranks;
    before += units_of(p);
  }
  atomic_fetch_or_explicit(&tc->p->counters[2 * s->index], (int64_t)1 << tc->thread, memory_order_release);
  return true;
}

const float *adapter_down_join(const struct thread_ctx *tc, const struct step *s,
                               const struct ane_activations x[ANE_ACTIVATION_COUNT]) {
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
      const struct step_parts *p = tc->r->adapted[i].adapters->list[j]->steps[s->index];
      const struct part *q = p ? p->m[m].part : NULL;
      if (!q || !q->rank) continue;
      const uint8_t *b = q->coded ? q->up.data : q->b.data;
      const size_t group = q->coded ? q->up.group_bytes : q->b.group_bytes;
      for (const uint8_t *at = b + (size_t)g0 * group, *to = b + (size_t)g1 * group; at < to; at += LINE) __builtin_prefetch(at);
    }
}

/* dst[t * ld + r] += (B low)[t][r] for n tokens and row groups [g0, g1). low: [n][ld_low]. More than FEW tokens are multiplied in
 * blocks whose products fit into temp. */
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

/* Adds part q's product and bias to tokens of dst as adapter_up does. low: the first of the part's floats of the first token. */
static void up_part(const struct thread_ctx *tc, const struct part *q, float by, const float *low, int64_t n, int64_t g0,
                    int64_t g1, float *dst, int64_t ld) {
  const int64_t ranks = tc->p->adapter_scratch.ranks;
  float *temp = thread_scratch(tc) + ranks;
  if (q->coded)
    tc->k->low_codes_add(&q->up, low, ranks, n, g0, g1, dst, ld);
  else if (q->rank)
    add_product(tc, &q->b, low, ranks, n, g0, g1, dst, ld, temp);
  for (int64_t t = 0; q->bias && t < n; t++) {
    const int64_t r0 = g0 * ANE_GROUP, rows = ANE_MIN(g1 * ANE_GROUP, q->rows) - r0;
    add_bias(tc, q->bias + r0, by, rows, dst + t * ld, temp);
  }
}

void adapter_up(const struct thread_ctx *tc, const struct step *s, const float *low, int m, int64_t g0, int64_t g1, float *dst,
                int64_t ld) {
  for (int32_t i = 0; i < tc->r->n_adapted; i++) {
    int64_t t0, t1, at = 0;
    const struct session_adapters *all = tokens_of(tc, s, i, &t0, &t1);
    for (int32_t j = 0; t0 < t1 && j < all->n; j++) {
      const struct step_parts *p = all->list[j]->steps[s->index];
      if (!p) continue;
      if (p->m[m].part)
        up_part(tc, p->m[m].part, all->scale[j], low + t0 * tc->p->adapter_scratch.ranks + at + p->m[m].at, t1 - t0, g0, g1,
                dst + t0 * ld, ld);
      at += p->ranks;
    }
  }
}

const struct step_parts *adapter_shares(const struct thread_ctx *tc, const struct step *s) {
  const struct session_adapters *all = tc->tokens == 1 ? of_one_token(tc, s) : NULL;
  const struct step_parts *p = all && all->n == 1 ? all->list[0]->steps[s->index] : NULL;
  return p && p->shared ? p : NULL;
}

void adapter_up_shared(const struct thread_ctx *tc, const struct step *s, struct prepared *in, int m, int64_t g0, int64_t g1,
                       float *dst) {
  struct adapter_share *share = &in->share;
  const struct step_parts *p = share->parts;
  if (!p->m[m].part) return;
  if (!share->sum[m]) {
    float *sum = thread_scratch(tc) + tc->p->adapter_scratch.ranks + ADAPTER_TEMP;
    for (int i = 0; i < s->linear.count; i++) {
      const int64_t n = (share->g1[i] - share->g0[i]) * ANE_GROUP;
      if (n == 0 || !p->m[i].part) continue;
      memset(sum, 0, (size_t)n * sizeof *sum);
      tc->k->low_codes_add(&p->m[i].part->up, in->low + p->m[i].at, 0, 1, share->g0[i], share->g1[i], sum, 0);
      share->sum[i] = sum;
      sum += n;
    }
  }
  const int64_t rows = ANE_MIN(g1 * ANE_GROUP, p->m[m].part->rows) - g0 * ANE_GROUP;
  tc->k->add(dst, share->sum[m] + (g0 - share->g0[m]) * ANE_GROUP, dst, rows);
}

void adapter_prefetch_share(const struct thread_ctx *tc, const struct step *s, const struct adapter_share *share,
                            struct prefetch *a) {
  const struct step_parts *p = share->parts;
  int64_t from, to;
  ane_split(units_of(p), tc->thread, tc->threads, &from, &to);
  to = ANE_MIN(to, p->down.groups);
  if (from < to) prefetch_add(a, p->down.data + (size_t)from * p->down.group_bytes, (size_t)(to - from) * p->down.group_bytes);
  for (int m = 0; m < s->linear.count; m++) {
    const struct part *q = p->m[m].part;
    if (q && q->coded && share->g0[m] < share->g1[m])
      prefetch_add(a, q->up.data + (size_t)share->g0[m] * q->up.group_bytes,
                   (size_t)(share->g1[m] - share->g0[m]) * q->up.group_bytes);
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
        tc->k->scale(q->table + embed_row(s, list[t]) * q->rank, q->scale * all->scale[j], low, q->rank);
        add_product(tc, &q->b, low, q->rank, 1, 0, q->b.groups, out + t * c, c, temp);
      }
    }
  }
}
