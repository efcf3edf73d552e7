/* MIL's recurrent layers: lstm, gru and rnn. x is [s, b, in], weight_ih [gates * h, in], weight_hh [gates * h, h], a state
 * [b, directions * h]. The part of the input is one product for all steps; each step adds the part of the state.
 * The order of the results differs: "reverse" gives them in the order of the steps, the last element of x first; in
 * "bidirectional" both directions stand beside each other at their element of x. */
#include "prim/prim_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Activations ---------------------------------------------------------------------------------------------------*/

typedef float (*activation)(float x);

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static float hard_sigmoid(float x) { return fminf(fmaxf(0.2f * x + 0.5f, 0), 1); }
static float relu(float x) { return x > 0 ? x : x == x ? 0 : x; }
static float linear(float x) { return x; }

/* scaled_tanh has no parameters here: its scales are 1. */
static activation read_activation(struct ane_prim_call *c, const char *name, const char *def) {
  static const struct {
    const char *name;
    activation fn;
  } known[] = {{"tanh", tanhf}, {"sigmoid", sigmoid}, {"hard_sigmoid", hard_sigmoid}, {"sigmoid_hard", hard_sigmoid},
               {"relu", relu},  {"linear", linear},   {"scaled_tanh", tanhf}};
  char text[PRIM_TEXT], lower[PRIM_TEXT];
  const char *s = prim_text(c, name, def, text);
  size_t n = strlen(s);
  for (size_t i = 0; i <= n; i++) lower[i] = (char)tolower((unsigned char)s[i]);
  for (size_t i = 0; i < ANE_COUNT(known); i++)
    if (strcmp(known[i].name, lower) == 0) return known[i].fn;
  prim_fail(c, ANE_INVALID, "%s is \"%s\"; known are tanh, scaled_tanh, sigmoid, hard_sigmoid, relu, linear", name, s);
  return linear;
}

/* ---- Weights -------------------------------------------------------------------------------------------------------*/

static ane_status pack_rows(struct ane_prim_call *c, struct prim_matrix *m, const struct ane_dyn *w, int64_t first,
                            int64_t rows) {
  int64_t cols = w->dim[1];
  if (w->coded && rows == w->dim[0]) return prim_matrix_coded(c, m, w->coded, rows, cols);
  bool as_is = !w->coded && (w->dtype == ANE_F32 || w->dtype == ANE_F16 || w->dtype == ANE_BF16);
  ane_dtype t = as_is ? w->dtype : ANE_F32;
  const char *data = as_is ? w->data : (const void *)prim_f32(c, w);
  if (!data) return c->status;
  return prim_matrix_float(c, m, t, data + (size_t)(first * cols) * prim_width(t), rows, cols, cols, 1);
}

/* Packs the weights of the directions: weight_ih whole, weight_hh in `parts` of equal rows. *state stays NULL if one of them is
 * not there or has a shape that prim_* refuses. */
static ane_status pack(struct ane_prim_call *c, struct ane_prim_state **state, int parts, int directions) {
  const struct ane_dyn *w[] = {prim_in(c, "weight_ih"), prim_in(c, "weight_hh"), prim_in(c, "weight_ih_back"),
                               prim_in(c, "weight_hh_back")};
  for (int i = 0; i < 2 * directions; i++)
    if (!w[i] || w[i]->rank != 2 || !prim_is_float(w[i]->dtype) || w[i]->count == 0 || w[i]->dim[0] % parts) return c->status;
  if (!(*state = prim_state_new(c, directions * (1 + parts)))) return c->status;
  struct prim_matrix *m = (*state)->m;
  for (int d = 0; d < directions && !c->status; d++) {
    const struct ane_dyn *ih = w[2 * d], *hh = w[2 * d + 1];
    int64_t rows = hh->dim[0] / parts;
    pack_rows(c, m++, ih, 0, ih->dim[0]);
    for (int p = 0; p < parts && !c->status; p++) pack_rows(c, m++, hh, p * rows, rows);
  }
  return c->status;
}

ane_status prim_prepare_lstm(struct ane_prim_call *c, struct ane_prim_state **state) {
  return pack(c, state, 1, prim_in(c, "weight_ih_back") && prim_in(c, "weight_hh_back") ? 2 : 1);
}
ane_status prim_prepare_gru(struct ane_prim_call *c, struct ane_prim_state **state) { return pack(c, state, 3, 1); }
ane_status prim_prepare_rnn(struct ane_prim_call *c, struct ane_prim_state **state) { return pack(c, state, 1, 1); }

/* ---- Layers --------------------------------------------------------------------------------------------------------*/

struct layer {
  int gates, directions, parts;
  bool reverse, sequence, reset_after;
  int64_t s, b, in, h;
  activation inner, cell, outer;
  float clip;
  const float *x, *bias[2], *peephole[2], *late; /* late: the bias of the state's part, with reset_after */
  float *y, *state, *memory;                     /* states [b, directions * h], updated in place; memory: of an lstm */
  float *own;                                    /* [2, b, h]: the state of one direction; of a gru, that state reset */
};

static ane_status wrong(struct ane_prim_call *c, const char *name, const struct ane_dyn *t) {
  char text[ANE_DYN_TEXT];
  return prim_fail(c, ANE_SHAPE, "%s is %s", name, ane_dyn_text(t, text));
}

/* Reads an optional vector of n elements. */
static const float *vector(struct ane_prim_call *c, const char *name, int64_t n) {
  const struct ane_dyn *t = prim_in(c, name);
  if (!t) return NULL;
  if (t->count == n && t->rank <= 1) return prim_f32(c, t);
  char text[ANE_DYN_TEXT];
  prim_fail(c, ANE_SHAPE, "%s is %s, but must have %" PRId64 " elements", name, ane_dyn_text(t, text), n);
  return NULL;
}

/* Makes output k with the initial state in it. */
static float *first_state(struct ane_prim_call *c, const struct layer *l, const char *name, int k) {
  const struct ane_dyn *t = prim_in(c, name);
  const int64_t dim[] = {l->b, l->directions * l->h};
  if (t->rank != 2 || t->dim[0] != dim[0] || t->dim[1] != dim[1]) return wrong(c, name, t), NULL;
  const float *v = prim_f32(c, t);
  float *y = v ? k < c->n_out ? prim_out(c, k, ANE_F32, 2, dim) : prim_temp_array(c, sizeof *y, 2, dim) : NULL;
  if (y) memcpy(y, v, (size_t)t->count * sizeof *y);
  return y;
}

static ane_status check_weights(struct ane_prim_call *c, const struct layer *l, const char *ih, const char *hh) {
  const struct ane_dyn *a = prim_in(c, ih), *b = prim_in(c, hh);
  if (!a || !b) return prim_fail(c, ANE_INVALID, "the input %s is missing", a ? hh : ih);
  bool fits = a->rank == 2 && a->dim[0] % l->gates == 0 && a->dim[0] / l->gates == l->h && a->dim[1] == l->in;
  if (!fits || !prim_is_float(a->dtype)) return wrong(c, ih, a);
  fits = b->rank == 2 && b->dim[0] == a->dim[0] && b->dim[1] == l->h;
  return fits && prim_is_float(b->dtype) ? ANE_OK : wrong(c, hh, b);
}

static ane_status read_layer(struct ane_prim_call *c, struct layer *l, int gates, int parts) {
  const struct ane_dyn *x = c->in[0], *hh = prim_in(c, "weight_hh");
  char text[PRIM_TEXT];
  const char *direction = prim_text(c, "direction", "forward", text);
  bool both = strcmp(direction, "bidirectional") == 0 && c->op == ANE_PRIM_lstm;
  *l = (struct layer){.gates = gates, .directions = both ? 2 : 1, .parts = parts};
  l->reverse = strcmp(direction, "reverse") == 0;
  l->sequence = prim_bool(c, "output_sequence", false);
  l->outer = read_activation(c, "activation", "tanh");
  if (c->status) return c->status;
  if (!both && !l->reverse && strcmp(direction, "forward") != 0)
    return prim_fail(c, ANE_INVALID, "direction is \"%s\"; known are forward, reverse%s", direction,
                     c->op == ANE_PRIM_lstm ? ", bidirectional" : "");
  if (x->rank != 3 || x->dim[2] < 1) return wrong(c, "x", x);
  if (hh->rank != 2 || hh->dim[1] < 1) return wrong(c, "weight_hh", hh);
  l->s = x->dim[0], l->b = x->dim[1], l->in = x->dim[2], l->h = hh->dim[1];
  if (check_weights(c, l, "weight_ih", "weight_hh") || (both && check_weights(c, l, "weight_ih_back", "weight_hh_back")))
    return c->status;
  l->bias[0] = vector(c, "bias", gates * l->h);
  const int64_t dim[] = {l->sequence ? l->s : 1, l->b, l->directions * l->h}, own[] = {2, l->b, l->h};
  l->x = prim_f32(c, x);
  if (!c->status) l->state = first_state(c, l, "initial_h", 1); /* b is not larger than what a file holds */
  if (!c->status) l->y = prim_out(c, 0, ANE_F32, 3, dim);
  l->own = c->status ? NULL : prim_temp_array(c, sizeof *l->own, 3, own);
  return c->status;
}

/* Updates h and the memory from the sums of the gates i, f, o, z: g of the input, r of the state. */
static void lstm_step(const struct layer *l, const float *g, const float *r, int d, float *h) {
  const float *p = l->peephole[d];
  for (int64_t k = 0; k < l->b * l->h; k++) {
    int64_t row = k / l->h, j = k % l->h;
    const float *gi = g + row * 4 * l->h + j, *ri = r + row * 4 * l->h + j;
    float *m = l->memory + (row * l->directions + d) * l->h + j;
    float i = l->inner(gi[0] + ri[0] + (p ? *m * p[j] : 0)), f = l->inner(gi[l->h] + ri[l->h] + (p ? *m * p[l->h + j] : 0));
    float z = l->cell(gi[3 * l->h] + ri[3 * l->h]);
    *m = fminf(fmaxf(f * *m + i * z, -l->clip), l->clip);
    h[k] = l->inner(gi[2 * l->h] + ri[2 * l->h] + (p ? *m * p[2 * l->h + j] : 0)) * l->outer(*m);
  }
}

/* Computes the gates r, o, z. reset_after: r multiplies the product of the state; else the state before the product. */
static ane_status gru_step(struct ane_prim_call *c, const struct layer *l, const struct prim_matrix *m, const float *g, float *r,
                           float *h) {
  int64_t n = l->b * l->h, w = 3 * l->h;
  float *reset = l->own + n;
  for (int i = 0; i < 3; i++) { /* r and z; o only with reset_after */
    if (i == 1 && !l->reset_after) continue;
    if (prim_multiply(c, &m[i], h, l->b, l->h, l->late ? l->late + i * l->h : NULL, r + i * l->h, w)) return c->status;
  }
  for (int64_t k = 0; k < n; k++) {
    int64_t at = k / l->h * w + k % l->h;
    float gate = l->inner(g[at] + r[at]);
    if (l->reset_after)
      r[at + l->h] *= gate;
    else
      reset[k] = gate * h[k];
  }
  if (!l->reset_after && prim_multiply(c, &m[1], reset, l->b, l->h, NULL, r + l->h, w)) return c->status;
  for (int64_t k = 0; k < n; k++) {
    int64_t at = k / l->h * w + k % l->h;
    float z = l->inner(g[at + 2 * l->h] + r[at + 2 * l->h]), o = l->outer(g[at + l->h] + r[at + l->h]);
    h[k] = (1 - z) * o + z * h[k];
  }
  return c->status;
}

static ane_status step(struct ane_prim_call *c, const struct layer *l, const struct prim_matrix *m, const float *g, float *r,
                       int d, float *h) {
  if (l->gates == 3) return gru_step(c, l, m, g, r, h);
  if (prim_multiply(c, m, h, l->b, l->h, NULL, r, l->gates * l->h)) return c->status;
  if (l->gates == 4) lstm_step(l, g, r, d, h);
  for (int64_t k = 0; l->gates == 1 && k < l->b * l->h; k++) h[k] = l->outer(g[k] + r[k]);
  return c->status;
}

/* Runs direction d, whose weights are m[0] (input) and m[1].. (state). */
static ane_status run_direction(struct ane_prim_call *c, const struct layer *l, const struct prim_matrix *m, int d) {
  int64_t width = l->gates * l->h, out = l->directions * l->h;
  const int64_t inputs[] = {l->s, l->b, width}, one[] = {l->b, width};
  bool back = l->reverse || d == 1;
  float *g = prim_temp_array(c, sizeof *g, 3, inputs), *r = prim_temp_array(c, sizeof *r, 2, one), *h = l->own;
  if (c->status || prim_multiply(c, &m[0], l->x, l->s * l->b, l->in, l->bias[d], g, width)) return c->status;
  for (int64_t i = 0; i < l->b; i++) memcpy(h + i * l->h, l->state + i * out + d * l->h, (size_t)l->h * sizeof *h);
  struct ane_dyn_block *before = c->temps;
  for (int64_t k = 0; k < l->s; k++) {
    int64_t t = back ? l->s - 1 - k : k, place = l->directions == 2 ? t : k;
    if (step(c, l, &m[1], g + t * l->b * width, r, d, h)) return c->status;
    prim_drop(c, before); /* the scratch of the products */
    for (int64_t i = 0; l->sequence && i < l->b; i++)
      memcpy(l->y + (place * l->b + i) * out + d * l->h, h + i * l->h, (size_t)l->h * sizeof *h);
  }
  for (int64_t i = 0; i < l->b; i++) {
    memcpy(l->state + i * out + d * l->h, h + i * l->h, (size_t)l->h * sizeof *h);
    if (!l->sequence) memcpy(l->y + i * out + d * l->h, h + i * l->h, (size_t)l->h * sizeof *h);
  }
  return c->status;
}

static ane_status run(struct ane_prim_call *c, const struct layer *l) {
  struct ane_prim_state *own = NULL;
  int each = 1 + l->parts, need = l->directions * each;
  if (c->status || l->b == 0 || !l->own) return c->status; /* failed, or no results; own is NULL only after an error */
  if (!c->state || c->state->n < need) pack(c, &own, l->parts, l->directions);
  const struct ane_prim_state *s = own ? own : c->state;
  for (int d = 0; d < l->directions && !c->status; d++) run_direction(c, l, &s->m[d * each], d);
  ane_prim_state_free(own);
  return c->status;
}

ane_status prim_lstm(struct ane_prim_call *c) {
  struct layer l;
  if (read_layer(c, &l, 4, 1)) return c->status;
  l.inner = read_activation(c, "recurrent_activation", "sigmoid");
  l.cell = read_activation(c, "cell_activation", "tanh");
  l.clip = prim_float(c, "clip", INFINITY);
  l.peephole[0] = vector(c, "peephole", 3 * l.h);
  l.bias[1] = l.directions == 2 ? vector(c, "bias_back", 4 * l.h) : NULL;
  l.peephole[1] = l.directions == 2 ? vector(c, "peephole_back", 3 * l.h) : NULL;
  if (!c->status) l.memory = first_state(c, &l, "initial_c", 2);
  return run(c, &l);
}

/* With reset_after, `bias` belongs to the part of the state and input_bias to that of the input, as in cuDNN and PyTorch. */
ane_status prim_gru(struct ane_prim_call *c) {
  struct layer l;
  if (read_layer(c, &l, 3, 3)) return c->status;
  l.inner = read_activation(c, "recurrent_activation", "sigmoid");
  l.reset_after = prim_bool(c, "reset_after", false);
  const float *input = vector(c, "input_bias", 3 * l.h), *bias = l.bias[0];
  if (l.reset_after) {
    l.late = bias, l.bias[0] = input;
  } else if (input && bias) {
    float *sum = prim_temp(c, (uint64_t)(3 * l.h) * sizeof *sum);
    for (int64_t i = 0; sum && i < 3 * l.h; i++) sum[i] = input[i] + bias[i];
    l.bias[0] = sum;
  } else if (input) {
    l.bias[0] = input;
  }
  return run(c, &l);
}

ane_status prim_rnn(struct ane_prim_call *c) {
  struct layer l;
  return read_layer(c, &l, 1, 1) ? c->status : run(c, &l);
}
