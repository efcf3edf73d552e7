/* GroupQueryAttention of ONNX Runtime (ContribOperators.md): packed or separate q, k, v; rope; caches that grow, that are
 * shared buffers, or that slide. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct gqa {
  int64_t batch, s, heads, kv_heads, d;
  int64_t window; /* 0: none */
  bool causal, sliding;
  const struct ane_dyn *past_key, *past_value;
  int64_t past_rows;     /* rows of the past tensors */
  const int64_t *valid;  /* seqlens_k: [batch], valid keys after this step - 1 */
  int64_t total;         /* total_sequence_length */
  int64_t rows;          /* keys of this step: rows of k and v */
  float *q, *k, *v;      /* q [batch, s, heads, d]; k, v [batch, kv_heads, rows, d] */
  int64_t *first, *last; /* [batch, s] */
};

/* analyser: `valid` is set where c->status is ANE_OK. */
static int64_t before(const struct gqa *g, int64_t b) { return ANE_MAX(g->valid[b] + 1 - g->s, 0); }

/* ---- Reading -------------------------------------------------------------------------------------------------------*/

static ane_status read_heads(struct ane_prim_call *c, int64_t *heads, int64_t *kv_heads) {
  *heads = prim_int(c, "num_heads", 0);
  *kv_heads = prim_int(c, "kv_num_heads", 0);
  if (c->status) return c->status;
  if (*kv_heads < 1 || *heads < 1 || *heads % *kv_heads || *heads > INT32_MAX)
    return prim_fail(c, ANE_INVALID,
                     "num_heads is %" PRId64 " and kv_num_heads is %" PRId64 ", but num_heads must be a multiple of kv_num_heads",
                     *heads, *kv_heads);
  if (prim_bool(c, "do_rotary", false) && c->n_in <= ane_prim_param(c->op, "sin_cache"))
    return prim_fail(c, ANE_INVALID, "do_rotary is set, but the tables are missing");
  if (prim_in(c, "q_norm_weight") || prim_in(c, "k_norm_weight"))
    return prim_fail(c, ANE_UNSUPPORTED, "the op's own norms of q and k are not supported");
  return c->status;
}

ane_status prim_prepare_group_query_attention(struct ane_prim_call *c, struct ane_prim_state **state) {
  int64_t heads, kv_heads;
  (void)state;
  return read_heads(c, &heads, &kv_heads);
}

static ane_status read_sizes(struct ane_prim_call *c, struct gqa *g) {
  const struct ane_dyn *q = c->in[0], *k = prim_in(c, "key"), *v = prim_in(c, "value");
  char text[ANE_DYN_TEXT];
  if (read_heads(c, &g->heads, &g->kv_heads)) return c->status;
  if (q->rank != 3 || !k != !v)
    return prim_fail(c, ANE_SHAPE, "query must have three dimensions, but is %s", ane_dyn_text(q, text));
  int64_t parts = k ? g->heads : g->heads + 2 * g->kv_heads;
  g->batch = q->dim[0], g->s = q->dim[1], g->d = q->dim[2] / parts;
  if (g->d < 1 || q->dim[2] % parts) return prim_fail(c, ANE_SHAPE, "query is %s, no whole heads", ane_dyn_text(q, text));
  for (int i = 0; k && i < 2; i++) {
    const struct ane_dyn *t = i ? v : k;
    if (t->rank != 3 || t->dim[0] != g->batch || t->dim[1] != g->s || t->dim[2] != g->kv_heads * g->d)
      return prim_fail(c, ANE_SHAPE, "%s is %s, query %" PRId64 " heads of %" PRId64, i ? "value" : "key", ane_dyn_text(t, text),
                       g->heads, g->d);
  }
  return c->status;
}

static ane_status read_past(struct ane_prim_call *c, struct gqa *g) {
  const struct ane_dyn *valid = prim_in(c, "seqlens_k");
  char text[ANE_DYN_TEXT];
  g->past_key = prim_in(c, "past_key");
  g->past_value = prim_in(c, "past_value");
  if (!g->past_key != !g->past_value) return prim_fail(c, ANE_INVALID, "one of past_key and past_value is missing");
  for (int i = 0; g->past_key && i < 2; i++) {
    const struct ane_dyn *t = i ? g->past_value : g->past_key;
    bool fits = t->rank == 4 && t->dim[0] == g->batch && t->dim[1] == g->kv_heads && t->dim[3] == g->d;
    if (i && fits) fits = t->dim[2] == g->past_rows;
    if (!fits)
      return prim_fail(c, ANE_SHAPE, "%s must have %" PRId64 " heads of %" PRId64 ", but is %s", i ? "past_value" : "past_key",
                       g->kv_heads, g->d, ane_dyn_text(t, text));
    g->past_rows = t->dim[2];
  }
  g->total = prim_int(c, "total_sequence_length", 0);
  if (valid->count != g->batch)
    return prim_fail(c, ANE_SHAPE, "seqlens_k must have %" PRId64 " elements, but is %s", g->batch, ane_dyn_text(valid, text));
  if (!(g->valid = prim_i64(c, valid)) || c->status) return c->status;
  for (int64_t b = 0; b < g->batch; b++)
    if (g->valid[b] < 0 || g->valid[b] >= g->total || (!g->sliding && before(g, b) > g->past_rows))
      return prim_fail(c, ANE_RANGE, "seqlens_k is %" PRId64 " with %" PRId64 " cached rows and a total of %" PRId64, g->valid[b],
                       g->past_rows, g->total);
  return c->status;
}

/* ---- Rotation ------------------------------------------------------------------------------------------------------*/

struct tables {
  const float *cos, *sin;
  int64_t rows, half;
  const int64_t *positions; /* [batch, s], or NULL */
  bool interleaved, on;
};

static ane_status read_tables(struct ane_prim_call *c, const struct gqa *g, struct tables *t) {
  const struct ane_dyn *cos = prim_in(c, "cos_cache"), *sin = prim_in(c, "sin_cache"), *p = prim_in(c, "position_ids");
  *t = (struct tables){.on = prim_bool(c, "do_rotary", false), .interleaved = prim_bool(c, "rotary_interleaved", false)};
  if (!t->on || c->status) return c->status;
  if (!cos || !sin) return prim_fail(c, ANE_INVALID, "do_rotary is set, but the tables are missing");
  if (cos->rank != 2 || sin->rank != 2 || cos->count != sin->count || cos->dim[1] < 1 || 2 * cos->dim[1] > g->d)
    return prim_fail(c, ANE_SHAPE, "cos_cache and sin_cache do not fit heads of %" PRId64, g->d);
  if (p && p->count != g->batch * g->s) return prim_fail(c, ANE_SHAPE, "position_ids has %" PRId64 " elements", p->count);
  t->rows = cos->dim[0], t->half = cos->dim[1];
  t->cos = prim_f32(c, cos), t->sin = prim_f32(c, sin);
  t->positions = p ? prim_i64(c, p) : NULL;
  for (int64_t i = 0; !c->status && i < g->batch * g->s; i++) {
    int64_t at = p ? t->positions[i] : before(g, i / g->s) + i % g->s;
    if (at < 0 || at >= t->rows)
      return prim_fail(c, ANE_RANGE, "position %" PRId64 " is outside of tables of %" PRId64 " rows", at, t->rows);
  }
  return c->status;
}

static void rotate(const struct tables *t, const struct gqa *g, int64_t b, int64_t i, float *x) {
  if (!t->on) return;
  int64_t at = t->positions ? t->positions[b * g->s + i] : before(g, b) + i;
  prim_rotate(x, t->cos + at * t->half, t->sin + at * t->half, 2 * t->half, t->interleaved);
}

/* ---- Caches --------------------------------------------------------------------------------------------------------*/

/* Returns the number of positions that a sliding cache holds after t positions (onnxruntime, group_query_attention): all, until
 * they exceed the capacity; then the rows drop to `window` - 1 or more, and grow again. */
static int64_t sliding_rows(int64_t t, int64_t capacity, int64_t window) {
  int64_t step = capacity - window + 1;
  return t <= capacity ? t : t - step * ((t - capacity + step - 1) / step);
}

/* Returns the rows of the past that are in use, for batch entry b. */
static int64_t held(const struct gqa *g, int64_t b) {
  return g->sliding ? sliding_rows(before(g, b), g->past_rows, g->window) : before(g, b);
}

/* Gathers the operands of the step: all of q and the new rows of k, rotated, and the new rows of v. k and v follow the cached
 * rows. */
static void gather_step(const struct gqa *g, const struct tables *t, const float *q, const float *k, const float *v,
                        int64_t q_row, int64_t kv_row) {
  for (int64_t b = 0; b < g->batch; b++)
    for (int64_t i = 0; i < g->s; i++) {
      float *to = g->q + (b * g->s + i) * g->heads * g->d;
      memcpy(to, q + (b * g->s + i) * q_row, (size_t)(g->heads * g->d) * sizeof *to);
      for (int64_t h = 0; h < g->heads; h++) rotate(t, g, b, i, to + h * g->d);
      for (int64_t h = 0; h < g->kv_heads; h++) {
        int64_t at = ((b * g->kv_heads + h) * g->rows + held(g, b) + i) * g->d, from = (b * g->s + i) * kv_row + h * g->d;
        memcpy(g->k + at, k + from, (size_t)g->d * sizeof *to);
        memcpy(g->v + at, v + from, (size_t)g->d * sizeof *to);
        rotate(t, g, b, i, g->k + at);
      }
    }
}

static void copy_past(const struct gqa *g, const float *pk, const float *pv) {
  size_t row = (size_t)g->d * sizeof(float);
  for (int64_t b = 0; b < g->batch; b++)
    for (int64_t h = 0; h < g->kv_heads; h++) {
      int64_t to = (b * g->kv_heads + h) * g->rows * g->d, from = (b * g->kv_heads + h) * g->past_rows * g->d, n = held(g, b);
      memset(g->k + to, 0, (size_t)g->rows * row);
      memset(g->v + to, 0, (size_t)g->rows * row);
      if (n && pk) memcpy(g->k + to, pk + from, (size_t)n * row), memcpy(g->v + to, pv + from, (size_t)n * row);
    }
}

/* Sets the keys that each query sees, as rows of k and v. */
static void set_visible(const struct gqa *g) {
  for (int64_t b = 0; b < g->batch; b++)
    for (int64_t i = 0; i < g->s; i++) {
      int64_t own = held(g, b) + i, *first = &g->first[b * g->s + i], *last = &g->last[b * g->s + i];
      *last = g->causal ? own + 1 : held(g, b) + ANE_MIN(g->s, g->valid[b] + 1 - before(g, b));
      *first = g->window > 0 && g->causal ? ANE_MAX(own + 1 - g->window, 0) : 0;
    }
}

/* Sliding caches: copies the last rows of the step to the front of a tensor of the cache's capacity. */
static ane_status slide(struct ane_prim_call *c, const struct gqa *g) {
  int64_t dim[4] = {g->batch, g->kv_heads, g->past_rows, g->d};
  for (int out = 1; out <= 2; out++) {
    if (!prim_wanted(c, out)) continue;
    float *y = prim_out(c, out, ANE_F32, 4, dim);
    const float *from = out == 1 ? g->k : g->v;
    for (int64_t n = 0; y && n < g->batch * g->kv_heads; n++) {
      int64_t b = n / g->kv_heads, have = held(g, b) + g->s, keep = sliding_rows(before(g, b) + g->s, g->past_rows, g->window);
      keep = ANE_MIN(keep, have);
      memcpy(y + n * g->past_rows * g->d, from + (n * g->rows + have - keep) * g->d, (size_t)(keep * g->d) * sizeof *y);
      memset(y + (n * g->past_rows + keep) * g->d, 0, (size_t)((g->past_rows - keep) * g->d) * sizeof *y);
    }
  }
  return c->status;
}

/* Allocates the memory of the step. Presents that grow are written to the outputs directly. */
static ane_status make_room(struct ane_prim_call *c, struct gqa *g) {
  g->rows = g->sliding ? 0 : ANE_MAX(g->past_rows, g->total);
  for (int64_t b = 0; b < g->batch; b++) g->rows = ANE_MAX(g->rows, held(g, b) + g->s);
  int64_t dim[4] = {g->batch, g->kv_heads, g->rows, g->d};
  for (int i = 1; i <= 2; i++) {
    bool out = !g->sliding && prim_wanted(c, i);
    float *p = out ? prim_out(c, i, ANE_F32, 4, dim) : prim_temp_array(c, sizeof *p, 4, dim);
    *(i == 1 ? &g->k : &g->v) = p;
  }
  g->q = prim_temp(c, (uint64_t)(g->batch * g->s * g->heads * g->d) * sizeof *g->q);
  g->first = prim_temp(c, (uint64_t)(g->batch * g->s) * sizeof *g->first);
  g->last = prim_temp(c, (uint64_t)(g->batch * g->s) * sizeof *g->last);
  return c->status;
}

/* ---- The op --------------------------------------------------------------------------------------------------------*/

static ane_status run_attention(struct ane_prim_call *c, const struct gqa *g) {
  const struct ane_dyn *bias = prim_in(c, "attention_bias"), *sink = prim_in(c, "head_sink");
  struct prim_attention_args a = {.batch = g->batch,
                                  .heads = g->heads,
                                  .kv_heads = g->kv_heads,
                                  .s = g->s,
                                  .t = g->rows,
                                  .d = g->d,
                                  .dv = g->d,
                                  .q = g->q,
                                  .k = g->k,
                                  .v = g->v,
                                  .first = g->first,
                                  .last = g->last};
  a.scale = prim_float(c, "scale", 0);
  if (a.scale == 0) a.scale = 1 / sqrtf((float)g->d);
  a.softcap = prim_float(c, "softcap", 0);
  int64_t hd = g->heads * g->d, rd = g->rows * g->d, out[3] = {g->batch, g->s, hd};
  a.q_stride[0] = a.y_stride[0] = g->s * hd, a.q_stride[1] = a.y_stride[1] = g->d, a.q_stride[2] = a.y_stride[2] = hd;
  a.k_stride[0] = a.v_stride[0] = g->kv_heads * rd, a.k_stride[1] = a.v_stride[1] = rd, a.k_stride[2] = a.v_stride[2] = g->d;
  if (bias) {
    int64_t keys = ANE_MAX(g->total, g->s); /* queries see up to s keys also where seqlens_k says that fewer are valid */
    bool fits = bias->rank == 4 && !g->sliding && (bias->dim[0] == 1 || bias->dim[0] == g->batch) &&
                (bias->dim[1] == 1 || bias->dim[1] == g->heads) && bias->dim[2] == g->s && bias->dim[3] >= keys;
    if (!fits) return prim_fail(c, ANE_SHAPE, "attention_bias does not fit %" PRId64 " queries and %" PRId64 " keys", g->s, keys);
    a.bias = prim_f32(c, bias);
    a.bias_stride[3] = 1, a.bias_stride[2] = bias->dim[3];
    a.bias_stride[1] = bias->dim[1] == 1 ? 0 : g->s * bias->dim[3];
    a.bias_stride[0] = bias->dim[0] == 1 ? 0 : bias->dim[1] * g->s * bias->dim[3];
  }
  if (sink) {
    if (sink->count != g->heads)
      return prim_fail(c, ANE_SHAPE, "head_sink has %" PRId64 " elements, but must have %" PRId64, sink->count, g->heads);
    a.sink = prim_f32(c, sink);
  } else if (prim_int(c, "smooth_softmax", -1) > 0) {
    float *zero = prim_temp(c, (uint64_t)g->heads * sizeof *zero);
    if (zero) memset(zero, 0, (size_t)g->heads * sizeof *zero);
    a.sink = zero;
  }
  a.y = prim_out(c, 0, ANE_F32, 3, out);
  return c->status ? c->status : prim_attention_core(c, &a);
}

ane_status prim_group_query_attention(struct ane_prim_call *c) {
  struct gqa g = {.causal = prim_bool(c, "causal", true), .sliding = prim_bool(c, "sliding_window_cache", false)};
  struct tables t;
  g.window = ANE_MAX(prim_int(c, "local_window_size", -1), 0);
  if (c->status || read_sizes(c, &g) || read_past(c, &g)) return c->status;
  if (g.sliding && (g.window < 1 || g.past_rows < g.window))
    return prim_fail(c, ANE_SHAPE, "a sliding cache of %" PRId64 " rows for a window of %" PRId64, g.past_rows, g.window);
  if (read_tables(c, &g, &t) || make_room(c, &g)) return c->status;
  const struct ane_dyn *key = prim_in(c, "key");
  const float *q = prim_f32(c, c->in[0]), *k = key ? prim_f32(c, key) : q, *v = key ? prim_f32(c, prim_in(c, "value")) : q;
  const float *pk = g.past_key ? prim_f32(c, g.past_key) : NULL, *pv = g.past_value ? prim_f32(c, g.past_value) : NULL;
  if (c->status) return c->status;
  int64_t hd = g.heads * g.d, kd = g.kv_heads * g.d;
  if (!key) k += hd, v += hd + kd;
  copy_past(&g, pk, pv);
  gather_step(&g, &t, q, k, v, key ? hd : hd + 2 * kd, key ? kd : hd + 2 * kd);
  set_visible(&g);
  if (run_attention(c, &g)) return c->status;
  return g.sliding ? slide(c, &g) : c->status;
}
