#ifndef ANE_EXEC_INTERNAL_H
#define ANE_EXEC_INTERNAL_H

#include "base/alloc.h"
#include "exec/exec.h"
#include "quant/weight_schemes.h"

/* A matrix as the steps use it. */
struct matrix {
  const char *name;
  struct ane_packed packed;
  ane_activation_type activation_type;
  struct ane_tensor stored;
  size_t offset;     /* in the slab; unused for ROWS */
  const char *input; /* value that it is multiplied by, NULL: none that has a place of its own */
  size_t side;       /* in the program's side array: scales of rows, tables */
  bool coded;        /* has taken the form `spec` */
  struct ane_weight_spec spec;
  bool recoded;
  struct ane_recode_error error;
};

/* Where a value lives while the program runs: [cols][channels] floats at arena + offset. */
struct place {
  const char *name;
  size_t offset;
  int64_t channels;
  bool tail;   /* its columns are out_rows positions */
  bool result; /* lives in the caller's result rows */
};

struct step;
struct thread_ctx;
typedef void (*step_fn)(struct thread_ctx *tc, const struct step *s);
/* What a step must read and compute (see ane_step_profile), added to p. On thread 0, when its own part has just run and the
 * step's scratch is still there. */
typedef void (*cost_fn)(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p);

/* What the thread needs first of the step's weights, to be asked for before the step begins (prefetch.c). */
struct prefetch;
typedef void (*prefetch_fn)(const struct thread_ctx *tc, const struct step *s, struct prefetch *a);

enum { MAX_LINEAR = 8 };

/* y = act(g) * u, n elements (kernels.h). */
typedef void (*act_fn)(const float *g, const float *u, float *y, int64_t n);

/* The weights of one expert. */
struct expert {
  const struct matrix *gate, *up, *down;
  const float *gate_bias, *up_bias, *down_bias;
};

/* One step of the program. Inputs and outputs are places; what is special to an op stands in the union. */
struct step {
  const char *name;
  const struct ane_op_info *op;
  step_fn run;
  cost_fn cost;                                /* NULL: neither weights nor state are read */
  prefetch_fn prefetch;                        /* NULL: nothing */
  const struct place *in[4], *out[MAX_LINEAR]; /* in: x; residual, second operand or k; rope table; v */
  int32_t index;                               /* own work counters */
  size_t shared_bytes, kernel_bytes;           /* scratch of the step: for all threads together; for its kernels, each */
  int64_t temp_floats;                         /* least that a thread's thread_temp must hold */
  union {
    struct {
      const struct ane_tensor *table;
      ane_decode_fn decode;
    } embed;
    struct {
      int count;
      const struct matrix *w[MAX_LINEAR];
      const float *bias[MAX_LINEAR];
      act_fn act; /* NULL: none */
      bool norm;
      const float *norm_weight;
      float eps;
      unsigned activation_types; /* bit a: some matrix meets activations of kind a */
      bool precise;              /* of 8-bit activations */
    } linear;
    struct {
      int kv; /* index of the layer's state in a session */
      int64_t heads, kv_heads, head_dim, window, ahead;
      float scale, softcap, eps;
      int norm;
      bool half;
      const float *q_norm, *k_norm, *sinks;
    } attention;
    struct {
      const float *weight, *bias;
      float eps;
      int64_t groups;
    } norm;
    struct {
      const float *inv_freq, *long_freq; /* long_freq NULL: one set for all lengths */
      int64_t n;
      float magnitude;
      int64_t heads;
      bool half, fp16;
    } rope;
    struct {
      act_fn act;
      float by;
      int64_t from;
    } math;
    struct {
      const float *bias, *weight;
      float eps;
      int64_t groups, times;
    } mix;
    struct {
      int ring; /* index of the state in a session */
      int64_t taps, groups;
      const float *weight, *bias, *before; /* depthwise [K][C]; [C_out]; [C] */
      const struct ane_packed *matrix;     /* grouped: one a group */
    } conv;
    struct {
      int64_t k;
      int score;
      bool norm;
      float norm_eps, scale;
      const float *bias;
    } route;
    struct {
      int64_t count, k, inner;
      const struct expert *list;
      act_fn act; /* NULL: swiglu_oai */
      float limit, alpha;
      bool soft;
      unsigned activation_types;
    } experts;
  };
};

/* What one kind of state a session holds, per layer. */
struct kv_spec {
  int64_t heads, head_dim;
};

/* The search for the best id (pruned_head.c). */
struct head {
  const struct ane_packed *matrix; /* NULL: the head cannot be searched */
  float *bounds, *bases;           /* [groups * 16] each, as upper_bound gives them */
  struct found *found;             /* one a thread */
  float share;                     /* price of searches, as a share of that of the whole head: a running mean */
  int rest, rests;                 /* tokens until the next search; the last such number, 0: a search has paid since */
  uint64_t pruned, read;           /* searches, and bytes of weights they read */
};

struct ane_program {
  struct ane_program_options o;
  const struct ane_kernels *k;
  struct ane_pool *pool;
  struct ane_arena arena; /* everything small */
  struct step *steps;
  int32_t n_steps, n_body; /* steps [n_body, n_steps) work on out_rows positions */
  struct place *places;
  int32_t n_places;
  const struct place *result;
  int64_t vocab, n_ids; /* logits a row; rows of the embedding (ids allowed) */
  struct matrix *matrices;
  int32_t n_matrices;
  uint8_t *slab;
  size_t slab_bytes;
  float *side; /* what belongs to matrices beside their packed groups */
  struct kv_spec *kv;
  int32_t n_kv;
  int64_t *ring_channels; /* states that keep columns: channels of each */
  int32_t n_rings;
  int64_t ring_columns, ring_taps; /* columns each ring holds; most that a step looks back, its own included */
  bool bidirectional;              /* some token sees later ones: a run takes a whole sequence */
  int64_t switch_at;               /* sequences longer than this use the long rope factors; 0: there are none */
  uint64_t fingerprint;
  /* scratch */
  uint8_t *scratch;
  size_t scratch_bytes, activation_bytes;
  uint8_t *activations[ANE_ACTIVATION_COUNT]; /* shared prepared activations, chunk columns */
  float *normed;                              /* shared, chunk columns */
  uint8_t *thread_mem;                        /* threads x thread_bytes */
  size_t thread_bytes, thread_activations[ANE_ACTIVATION_COUNT], thread_normed, thread_temp, thread_kernel;
  int64_t temp_rows;   /* rows of an epilogue's temporary, for each of 2 matrices */
  uint8_t *shared;     /* of the step that runs */
  float *parts;        /* partial attention of one token over all tiles */
  float *result_block; /* [OUT_ROWS_BLOCK][vocab], committed on use */
  size_t result_block_bytes;
  _Atomic int64_t *counters; /* 2 a step */
  _Atomic int64_t *shares;   /* [threads][share_row]: turns taken of each thread's share of a step */
  int64_t share_row;
  struct prefetch *prefetch; /* [threads] */
  struct columns *columns;
  struct head head;
  struct ane_step_profile *profile; /* [n_steps + 1]; NULL: off */
};

/* Columns that rings keep beyond what the steps look back: rewinds up to here cost nothing. */
enum { RING_KEEP = 64 };

enum { OUT_ROWS_BLOCK = 64, MAX_CHUNK = 4096 };

/* Column lists of the run that goes on. */
struct columns {
  int32_t ids[MAX_CHUNK], positions[MAX_CHUNK], angles[MAX_CHUNK], out_rows[MAX_CHUNK], best[MAX_CHUNK];
  float best_logit[MAX_CHUNK];
  bool longer[MAX_CHUNK]; /* the column's sequence uses the long rope factors */
};

/* The used part of the state: first all rings (layer STATE_RINGS), then for each layer and head the first tiles of K, of
 * V, and of their scales. Calls fn on each run of bytes (offset from state_bytes of the layer); stops at the first false. */
enum { STATE_RINGS = -1 };
uint8_t *state_bytes(const struct ane_session *s, int layer);
bool state_each_used(const struct ane_session *s, bool (*fn)(void *arg, int layer, size_t offset, size_t bytes), void *arg);

/* Column `pos` of ring r: the ring holds the last ring_columns positions written. */
float *state_column(const struct ane_session *s, int ring, int64_t pos);

/* run.c: feeds the first `length` of the session's own tokens again from an empty state. A stop between two chunks leaves
 * it shorter, and right. */
ane_status run_replay(struct ane_session *s, int64_t length, struct ane_error *err);

struct kv_state {
  struct ane_kv kv;
  void *memory;
  size_t bytes;
};

struct ane_session {
  struct ane_program *program;
  int64_t context, length;
  int64_t origin; /* what stands before position 0 of the state, in the sequence: rope's positions count from there */
  ane_dtype kv_dtype;
  int32_t *ids;
  struct kv_state *kv;
  float *rings;     /* all rings, one behind the other: [ring_columns][channels] each */
  int64_t ring_low; /* lowest position whose columns the rings still hold */
  /* results of the last run */
  int64_t rows, room_rows;
  ane_want want;
  float *logits; /* [rows][vocab] */
  int32_t *best; /* [chunk] */
  float *best_logit;
  bool longer; /* the state was made with the long rope factors */
  int64_t replayed;
  _Atomic bool stop;
};

/* One run, shared by its threads; read-only while it goes, but for what steps write. */
struct run {
  struct ane_program *p;
  const struct ane_run_item *items;
  int32_t n_items;
  int64_t cols;                   /* tokens of all items */
  const int32_t *ids, *positions; /* [cols]; positions in the state */
  const int32_t *angles;          /* [cols] positions in the sequence */
  const int32_t *out_rows;        /* [n_out_rows] columns */
  int64_t n_out_rows;
  float *results; /* [n_out_rows][vocab], or NULL: block by block, argmax only */
  int32_t *best;  /* [n_out_rows] */
  float *best_logit;
  bool pruned;      /* the head is searched */
  int64_t tail;     /* pool steps of a block of out_rows rows: program steps [n_body, n_steps), and the search for the best ids */
  int32_t profiled; /* the row of the profile that goes on, and when it began; -1: none */
  double profiled_from;
  ane_tap_fn tap; /* NULL: none */
  void *tap_arg;
};

/* A thread's view of the run. */
struct thread_ctx {
  struct run *r;
  struct ane_program *p;
  const struct ane_kernels *k;
  int thread, threads;   /* among those that do this step */
  int seat;              /* in the pool */
  int64_t cols;          /* columns of the steps that run now */
  int64_t first_out_row; /* first out_rows column of this block */
  uint8_t *mem;          /* this thread's scratch */
};

static inline float *thread_data(const struct thread_ctx *tc, const struct place *p) {
  if (p->result) return tc->r->results ? tc->r->results + tc->first_out_row * tc->p->vocab : tc->p->result_block;
  return (float *)(void *)(tc->p->scratch + p->offset);
}
static inline void thread_barrier(const struct thread_ctx *tc) { ane_pool_barrier(tc->p->pool, tc->seat); }
static inline int64_t thread_next(const struct thread_ctx *tc, const struct step *s, int which) {
  return atomic_fetch_add_explicit(&tc->p->counters[2 * s->index + which], 1, memory_order_relaxed);
}

static inline _Atomic int64_t *thread_share(const struct thread_ctx *tc, const struct step *s, int thread) {
  return &tc->p->shares[thread * tc->p->share_row + s->index];
}
/* One of `total` turns that nobody has, -1: all are taken. A thread has a share of turns that lie one behind the other, so that
 * it walks through memory without gaps, and takes of the others' when its own is used up. *away: 0 at first; how many threads
 * further it takes from. */
static inline int64_t thread_claim(const struct thread_ctx *tc, const struct step *s, int64_t total, int *away) {
  for (; *away < tc->threads; ++*away) {
    int of = (tc->thread + *away) % tc->threads;
    int64_t from, to;
    ane_split(total, of, tc->threads, &from, &to);
    _Atomic int64_t *taken = thread_share(tc, s, of);
    if (from + atomic_load_explicit(taken, memory_order_relaxed) >= to) continue;
    int64_t turn = from + atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
    if (turn < to) return turn;
  }
  return -1;
}

/* profile.c: adds what began at `start` and ends now to row i. */
void profile_step(struct ane_program *p, int32_t i, double start, double now);
/* The product of a matrix and t columns. */
void profile_matrix(const struct ane_packed *w, int64_t t, struct ane_step_profile *p);

/* step_linear.c: input prepared for a product, by activation kind. */
struct prepared {
  struct ane_activations a[ANE_ACTIVATION_COUNT];
};
/* One token, in the thread's own scratch. */
void linear_prepare_alone(const struct thread_ctx *tc, const struct step *s, struct prepared *out);

/* prefetch.c: ranges of weights; what steps behind `step` need; one more range; asks for some lines, false: there are no more
 * (what an ane_idle_fn does). */
struct prefetch {
  _Alignas(64) int n;
  int at;
  struct {
    const uint8_t *data, *end;
  } part[2];
};
enum { PREFETCH_BYTES = 65536 }; /* of all ranges together: what a wait of some us can fetch, and the nearer caches hold */
void prefetch_begin(struct prefetch *a, const struct thread_ctx *tc, int32_t step);
void prefetch_add(struct prefetch *a, const uint8_t *data, size_t bytes);
bool prefetch_more(struct prefetch *a);

/* pruned_head.c: decides whether the head can be searched, before scratch is planned; takes its memory; gives it back. */
void head_plan(struct ane_program *p);
ane_status head_reserve(struct ane_program *p, struct ane_error *err);
void head_free(struct ane_program *p);
/* Is the head of this run searched instead of multiplied? Once a run, since it counts tokens. */
bool head_prunes(struct ane_program *p, const struct run *r);
/* Of the bounds (an prefetch_fn). */
void head_prefetch(const struct thread_ctx *tc, const struct step *s, struct prefetch *a);
/* The last step and the search for the best id in one, by all threads; they have met when it returns. */
void head_run_pruned(struct thread_ctx *tc);

/* Builders of steps: fill s from node n. Found by op in plan.c. */
struct planner;
typedef ane_status (*plan_fn)(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_embed(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_linear(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_attention(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_norm(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_rope(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_mix(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_conv(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_route(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_experts(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);
ane_status plan_math(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err);

struct planner {
  struct ane_program *p;
  const struct ane_graph *g;
  int32_t *matrix_of; /* by value: index of matrix, or -1 */
  int32_t *kv_of;     /* by value of the K state: index, or -1 */
  int32_t *ring_of;   /* by value of a column state: index, or -1 */
  bool *precise;      /* by value: what makes it takes large activations apart closely */
};

/* A constant vector as fp32 in the program's arena, plus `offset`; *out NULL where the input is absent. */
ane_status planner_vector(struct planner *pl, int32_t value, float offset, const float **out, struct ane_error *err);
/* The matrix of a constant, made known at first use (packed later). input: the place whose columns it meets as they are, or
 * NULL. */
ane_status planner_matrix(struct planner *pl, int32_t value, const struct place *input, const struct matrix **out,
                          struct ane_error *err);
/* The kernel of a named activation. */
ane_status planner_act(const struct ane_kernels *k, const char *name, act_fn *act, struct ane_error *err);
/* The place of a value; NULL where the input is absent. */
const struct place *planner_place(struct planner *pl, int32_t value);

/* memplan.c: gives every result value of the graph its place; *bytes = size of the activation arena. */
ane_status memplan(struct planner *pl, size_t *bytes, struct ane_error *err);
/* weights.c: allocates the slab and packs all matrices. */
ane_status weights_pack(struct ane_program *p, struct ane_error *err);
/* weights.c: decides how a matrix is held, and what activations it meets. */
ane_status weights_describe(const struct ane_program *p, struct matrix *m, struct ane_error *err);

#endif
