/* A step is one node of a planned graph, as the threads run it. Builders (planner.h) fill it once; runs only read it. */
#ifndef ANE_EXEC_STEP_H
#define ANE_EXEC_STEP_H

#include "exec/exec.h"
#include "kernels/recurrent.h"
#include "quant/weight_schemes.h"

/* A weight matrix. Owned by the program. */
struct matrix {
  const char *name;
  struct ane_packed packed;
  ane_activation_type activation_type;
  struct ane_tensor stored; /* borrowed from the graph's constant */
  size_t offset;            /* bytes in the slab; unused for layout ROWS */
  const char *input;        /* value that it is multiplied by; NULL: that value has no slot */
  size_t aux;               /* floats in the program's aux array: row scales, lookup tables */
  bool by_scheme;           /* re-encoded by the package scheme `spec` */
  struct ane_weight_spec spec;
  const char *unfit; /* the requested scheme or dtype, which its shape does not take; NULL: it is held as requested */
  bool recoded;      /* re-encoded; `error` is the resulting error */
  struct ane_recode_error error;
  int64_t first, all_rows; /* divided (exchange.c): this rank's first row, and the rows of all ranks; all_rows 0: whole */
};

/* Where a value lives: [tokens][channels] floats at scratch + offset. */
struct slot {
  const char *name;
  size_t offset; /* bytes */
  int64_t channels;
  bool tail;     /* its tokens are the output rows */
  bool result;   /* it is not in scratch but in the caller's result rows */
  bool common;   /* it is not in scratch but in the common buffer of all ranks (exchange.c) */
  bool by_heads; /* q, k or v of an attention whose heads are divided: a rank has the channels of its own heads only */
};

struct step;
struct thread_ctx;
struct prefetch;

/* Runs one thread's part of the step. All threads of the step call it. */
typedef void (*step_fn)(struct thread_ctx *tc, const struct step *s);
/* Adds the bytes that the step must read and the operations that it must do to p (struct ane_step_profile). Thread 0 calls it
 * after its own part, while the step's scratch is still valid. */
typedef void (*cost_fn)(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p);
/* Adds the first weights that the thread will read in this step to `a`. Called before the step begins. */
typedef void (*prefetch_fn)(const struct thread_ctx *tc, const struct step *s, struct prefetch *a);
/* y = act(g) * u, n elements; u NULL: y = act(g) (kernels.h). */
typedef void (*act_fn)(const float *g, const float *u, float *y, int64_t n);

enum { MAX_LINEAR = 8 }; /* matrices of one linear step */
enum { EMBED_IDS, EMBED_TYPES, EMBED_POSITIONS };

/* The weights of one expert. */
struct expert {
  const struct matrix *gate, *up, *down;
  const float *gate_bias, *up_bias, *down_bias;
};

struct step {
  const char *name;
  const struct ane_op_info *op;
  step_fn run;
  cost_fn cost;                               /* NULL: the step reads neither weights nor state */
  prefetch_fn prefetch;                       /* NULL: nothing to prefetch */
  const struct slot *in[4], *out[MAX_LINEAR]; /* in: x; residual, second operand or k; rope table; v */
  int32_t index;                              /* index among the program's steps: selects its task counters */
  size_t shared_bytes, kernel_bytes;          /* scratch: shared by all threads; of its kernels, per thread */
  int64_t temp_floats;                        /* minimum size of a thread's thread_temp */
  bool exchanges;                             /* other ranks have rows of its outputs, or heads (exchange.c) */
  int64_t exchange_floats;                    /* per token, of the rank with the most of its rows */
  bool gathers;                               /* its rows go to rank 0 only: it is the last step that exchanges */
  union {                                     /* by op */
    struct {
      const char *name; /* of the table */
      const struct ane_tensor *table;
      ane_decode_fn decode;
      int list;  /* the list of row numbers: EMBED_IDS, EMBED_TYPES or EMBED_POSITIONS */
      bool rest; /* numbers beyond the table mean row 0 */
    } embed;
    struct {
      int count;
      const struct matrix *w[MAX_LINEAR];
      const float *bias[MAX_LINEAR];
      act_fn act; /* NULL: none */
      bool norm;
      const float *norm_weight;
      float eps;
      unsigned activation_types; /* bit a: some matrix takes activations of type a */
      bool precise;              /* of int8 activations */
      int64_t few_groups;        /* row groups of a task with 2 .. 8 tokens */
    } linear;
    struct {
      int kv;      /* index of the layer's state in a session */
      bool writes; /* it writes k and v; false for a layer that shares those of an earlier step */
      int64_t heads, kv_heads, head_dim, window, ahead; /* window, ahead: struct ane_attention. heads: those of this rank */
      int64_t first, first_kv;                          /* this rank's first head and kv head: 0 if it has all */
      float scale, softcap, eps;
      int norm;  /* of each head of q and k: 0 none, 1 before rope, 2 after */
      bool half; /* rope pairs: x[i] and x[i + n / 2]; false: x[2 i] and x[2 i + 1] */
      const float *q_norm, *k_norm, *sinks;
    } attention;
    struct {
      const float *weight, *bias;
      float eps;
      int64_t groups;
    } norm;
    struct {
      const float *inv_freq, *long_freq; /* long_freq NULL: one set for all lengths */
      int64_t n;                         /* frequencies */
      float magnitude;
      int64_t heads;
      bool half, fp16;
    } rope;
    struct {
      float beta;
      int64_t original; /* positions of the factor 1 */
    } position_scale;
    struct {
      act_fn act;
      float by;     /* factor of scale; cap of softcap */
      int64_t from; /* first channel of a slice */
      int64_t heads;
    } math;
    struct {
      const float *bias, *weight;
      float eps;
      int64_t groups; /* heads or groups of channels that an op treats alike */
      int64_t times;  /* copies of a head, or heads of a mean */
    } mix;
    struct {
      int ring; /* index of the state in a session */
      int64_t taps, groups;
      const float *weight, *bias, *before; /* depthwise [taps][C]; [C_out]; [C] */
      const struct ane_packed *matrix;     /* grouped: one per group; NULL: depthwise */
    } conv;
    struct {
      int64_t heads;
      const struct matrix **list;
      bool precise;
    } head_linear;
    struct {
      struct ane_recurrent_kernels kernels;
      int state; /* index of the state in a session */
      int64_t heads, groups, n, width;
      const float *a, *d, *dt_bias; /* a: negative */
      float low, high;              /* limits of the time step; high 0: none */
      bool interleaved;             /* head h uses key h % keys; false: consecutive heads share a key */
    } recurrent;
    struct {
      int64_t k;
      int score;
      bool norm;
      float norm_eps, scale;
      const float *bias, *factors; /* of the experts; NULL: none */
      int64_t groups, groups_kept, group_best;
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

#endif
