/* Mixtures of experts: MoE and QMoE of ONNX Runtime (ContribOperators.md). Only the chosen experts are computed. Their
 * weighted results are added in ascending order of experts. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* One call. The matrices of expert e are m[e] for fc1, m[n + e] for fc2 and, if there is one, m[2 n + e] for fc3. */
struct moe {
  int64_t tokens, hidden, inner, experts, k;
  const struct ane_prim_state *state;
  bool has_fc3, normalise;
  int act, fusion; /* of enum act; swiglu_fusion */
  float limit, alpha, beta;
  const float *bias[3];      /* of fc1, fc2, fc3: [experts, rows]; NULL: none */
  const float *router, *mix; /* [tokens, experts]; mix NULL: from the router */
};

enum act { RELU, GELU, SILU, IDENTITY, SWIGLU, UNKNOWN };
static const char *const act_names[] = {"relu", "gelu", "silu", "identity", "swiglu"};

/* ---- Weights -------------------------------------------------------------------------------------------------------*/

static const char *const weight_names[] = {"fc1", "fc2", "fc3"};

static ane_status count_experts(struct ane_prim_call *c, int64_t *experts, bool *has_fc3) {
  const struct ane_dyn *w1 = prim_in(c, "fc1"), *w2 = prim_in(c, "fc2"), *w3 = prim_in(c, "fc3");
  if (!w1 || !w2) return c->status;
  *experts = w1->rank == 3 ? w1->dim[0] : 0;
  *has_fc3 = w3 != NULL;
  bool fits = *experts >= 1 && *experts <= 65536 && w1->count > 0 && w2->count > 0 && w2->rank == 3 && w2->dim[0] == *experts &&
              (!w3 || (w3->count > 0 && w3->rank == 3 && w3->dim[0] == *experts));
  if (!fits)
    return prim_fail(c, ANE_SHAPE, "the weights of fc1, fc2 and fc3 are not [experts, rows, columns], each of them 1 or more");
  return c->status;
}

ane_status prim_prepare_moe(struct ane_prim_call *c, struct ane_prim_state **state) {
  int64_t n = 0;
  bool fc3;
  if (count_experts(c, &n, &fc3) || n == 0 || !(*state = prim_state_new(c, (int)(3 * n)))) return c->status;
  for (int w = 0; w < 3; w++) {
    const struct ane_dyn *t = prim_in(c, weight_names[w]);
    if (!t) continue;
    if (t->dtype != ANE_F32 && t->dtype != ANE_F16 && t->dtype != ANE_BF16)
      return prim_fail(c, ANE_UNSUPPORTED, "%s of type %s", weight_names[w], ane_dtype_info(t->dtype)->name);
    int64_t rows = t->dim[1], cols = t->dim[2];
    for (int64_t e = 0; e < n; e++)
      if (prim_matrix_float(c, &(*state)->m[w * n + e], t->dtype,
                            (const char *)t->data + (size_t)(e * rows * cols) * prim_width(t->dtype), rows, cols, cols, 1))
        return c->status;
  }
  return c->status;
}

/* Fills the matrices of one weight: codes [experts, rows, columns * bits / 8]; scales [experts, rows] or [experts, rows, blocks];
 * zero points as many, packed like the codes, with each row padded to whole bytes. */
static ane_status coded_experts(struct ane_prim_call *c, struct ane_prim_state *s, int w, int64_t n, int bits, int64_t block) {
  char name[32];
  const struct ane_dyn *t = prim_in(c, weight_names[w]);
  if (!t) return c->status;
  (void)snprintf(name, sizeof name, "%s_scales", weight_names[w]);
  const struct ane_dyn *scales = prim_in(c, name);
  (void)snprintf(name, sizeof name, "%s_zero_points", weight_names[w]);
  const struct ane_dyn *zeros = prim_in(c, name);
  if (!scales) return prim_fail(c, ANE_INVALID, "%s has no scales that are constant", weight_names[w]);
  if (t->dtype != ANE_U8) return prim_fail(c, ANE_SHAPE, "%s is not uint8", weight_names[w]);
  int64_t rows = t->dim[1], cols = t->dim[2] * (8 / bits), each = block > 0 ? block : cols, nb = (cols + each - 1) / each,
          zero_row = (nb * bits + 7) / 8;
  if (scales->count != n * rows * nb || !prim_is_float(scales->dtype))
    return prim_fail(c, ANE_SHAPE, "%s_scales has %" PRId64 " elements, but must have %" PRId64, weight_names[w], scales->count,
                     n * rows * nb);
  if (zeros && (zeros->dtype != ANE_U8 || zeros->count != n * rows * zero_row))
    return prim_fail(c, ANE_SHAPE, "%s_zero_points has %" PRId64 " elements, but must have %" PRId64, weight_names[w],
                     zeros->count, n * rows * zero_row);
  const float *v = prim_f32(c, scales);
  for (int64_t e = 0; v && e < n && !c->status; e++) {
    struct prim_matrix *m = &s->m[w * n + e];
    float *own, *zero;
    if (prim_matrix_scales(c, m, rows * nb, zeros != NULL, &own, &zero)) break;
    memcpy(own, v + e * rows * nb, (size_t)(rows * nb) * sizeof *own);
    for (int64_t i = 0; zero && i < rows * nb; i++)
      /* analyser: prim_matrix_scales() gives `zero` only where there are zero points. */
      zero[i] = (float)prim_code((const uint8_t *)zeros->data + (e * rows + i / nb) * zero_row, bits, i % nb);
    m->rows = rows, m->cols = cols, m->codes = (const uint8_t *)t->data + e * rows * t->dim[2], m->bits = bits;
    m->row_stride = cols, m->col_stride = 1, m->block = each, m->row_block = 1, m->scale_row = nb, m->scale_col = 1;
    m->zero_default = (float)(1 << (bits - 1));
  }
  return c->status;
}

ane_status prim_prepare_qmoe(struct ane_prim_call *c, struct ane_prim_state **state) {
  int64_t n = 0, bits = prim_int(c, "bits", 4), block = prim_int(c, "block_size", 0);
  bool fc3;
  if (c->status) return c->status;
  if (bits != 2 && bits != 4 && bits != 8) return prim_fail(c, ANE_INVALID, "bits must be 2, 4 or 8, but is %" PRId64, bits);
  if (block < 0 || (block > 0 && (block < 16 || (block & (block - 1)) || block > INT32_MAX)))
    return prim_fail(c, ANE_INVALID, "block_size must be a power of two of at least 16, but is %" PRId64, block);
  if (count_experts(c, &n, &fc3) || n == 0 || !(*state = prim_state_new(c, (int)(3 * n)))) return c->status;
  for (int w = 0; w < 3 && !c->status; w++) coded_experts(c, *state, w, n, (int)bits, block);
  return c->status;
}

/* ---- Shapes --------------------------------------------------------------------------------------------------------*/

static ane_status check_sizes(struct ane_prim_call *c, struct moe *m) {
  const struct ane_dyn *x = c->in[0], *router = c->in[1];
  const struct prim_matrix *w = m->state->m;
  int64_t n = m->experts;
  char a[ANE_DYN_TEXT];
  m->hidden = x->rank ? x->dim[x->rank - 1] : 0;
  m->tokens = m->hidden ? x->count / m->hidden : 0;
  if (router->count != m->tokens * n)
    return prim_fail(c, ANE_SHAPE, "router is %s for %" PRId64 " tokens and %" PRId64 " experts", ane_dyn_text(router, a),
                     m->tokens, n);
  if (m->k < 1 || m->k > n) return prim_fail(c, ANE_INVALID, "k is %" PRId64 " of %" PRId64 " experts", m->k, n);
  /* analyser: the matrices are those of prepare(), or c->status is not ANE_OK. */
  m->inner = w[n].cols;
  int64_t gates = m->act == SWIGLU && m->fusion ? 2 : 1;
  bool fits = w[0].cols == m->hidden && w[n].rows == m->hidden && w[0].rows == gates * m->inner;
  if (fits && m->has_fc3) fits = w[2 * n].cols == m->hidden && w[2 * n].rows == m->inner && gates == 1;
  if (!fits || (m->act == SWIGLU && gates == 1 && !m->has_fc3))
    return prim_fail(c, ANE_SHAPE,
                     "fc1 [%" PRId64 ", %" PRId64 "] and fc2 [%" PRId64 ", %" PRId64 "] do not fit x of %" PRId64
                     " and swiglu_fusion %d",
                     w[0].rows, w[0].cols, w[n].rows, w[n].cols, m->hidden, m->fusion);
  static const char *const names[] = {"fc1_bias", "fc2_bias", "fc3_bias"};
  for (int i = 0; i < 3; i++) {
    const struct ane_dyn *b = prim_in(c, names[i]);
    if (!b) continue;
    if (b->count != n * w[i * n].rows) return prim_fail(c, ANE_SHAPE, "%s is %s", names[i], ane_dyn_text(b, a));
    m->bias[i] = prim_f32(c, b);
  }
  return c->status;
}

static ane_status read_options(struct ane_prim_call *c, struct moe *m) {
  char text[PRIM_TEXT];
  const char *act = prim_text(c, "activation", "relu", text);
  while (m->act < UNKNOWN && strcmp(act_names[m->act], act) != 0) m->act++;
  if (m->act == UNKNOWN)
    return prim_fail(c, ANE_INVALID, "activation is \"%s\"; known are relu, gelu, silu, swiglu, identity", act);
  m->k = prim_int(c, "k", 1);
  m->normalise = prim_bool(c, "normalize", false);
  int64_t fusion = prim_int(c, "swiglu_fusion", 0);
  m->limit = prim_float(c, "swiglu_limit", INFINITY);
  m->alpha = prim_float(c, "alpha", 1);
  m->beta = prim_float(c, "beta", 0);
  if (fusion < 0 || fusion > 2) return prim_fail(c, ANE_INVALID, "swiglu_fusion must be 0, 1 or 2, but is %" PRId64, fusion);
  m->fusion = (int)fusion;
  return c->status;
}

/* ---- Choice --------------------------------------------------------------------------------------------------------*/

/* Chooses the experts of token t. share[t][e]: the weight of expert e, 0 if it is not chosen; chosen[t][e]: whether it is. */
static void choose(const struct moe *m, int64_t t, float *share, uint8_t *chosen) {
  const float *logit = m->router + t * m->experts;
  double total = 0, sum = 0;
  float top = -INFINITY;
  memset(chosen, 0, (size_t)m->experts);
  for (int64_t e = 0; e < m->experts; e++) top = fmaxf(top, logit[e]), share[e] = 0;
  for (int64_t e = 0; e < m->experts; e++) total += exp((double)logit[e] - (double)top);
  for (int64_t i = 0; i < m->k; i++) {
    int64_t best = -1;
    for (int64_t e = 0; e < m->experts; e++)
      if (!chosen[e] && (best < 0 || logit[e] > logit[best])) best = e;
    chosen[best] = 1;
    double w = m->mix ? (double)m->mix[t * m->experts + best] : exp((double)logit[best] - (double)top) / total;
    share[best] = (float)w;
    sum += w;
  }
  for (int64_t e = 0; m->normalise && sum != 0 && e < m->experts; e++) share[e] = (float)((double)share[e] / sum);
}

/* ---- One expert ----------------------------------------------------------------------------------------------------*/

static float activate(const struct moe *m, float g) {
  switch (m->act) {
    case RELU: return g > 0 ? g : 0;
    case GELU: return 0.5f * g * (1 + tanhf(0.79788456080286536f * (g + 0.044715f * g * g * g)));
    case SILU: return g / (1 + expf(-g));
    default: return g;
  }
}

static float swiglu(const struct moe *m, float g, float l) {
  g = fminf(g, m->limit);
  l = fminf(fmaxf(l, -m->limit), m->limit);
  return g / (1 + expf(-m->alpha * g)) * (l + m->beta);
}

/* Applies the activation function: h [n][rows of fc1] to [n][inner], in place; up: [n][inner] or NULL. */
static void activate_rows(const struct moe *m, float *h, int64_t rows, const float *up, int64_t n) {
  for (int64_t t = 0; t < n; t++)
    for (int64_t i = 0; i < m->inner; i++) {
      const float *row = h + t * rows;
      float l = up ? up[t * m->inner + i] : 0, v;
      if (m->act == SWIGLU && m->fusion == 1)
        v = swiglu(m, row[2 * i], row[2 * i + 1]);
      else if (m->act == SWIGLU && m->fusion == 2)
        v = swiglu(m, row[i], row[m->inner + i]);
      else if (m->act == SWIGLU)
        v = swiglu(m, row[i], l);
      else
        v = activate(m, row[i]) * (up ? l : 1);
      h[t * m->inner + i] = v; /* this element has been read already: inner <= rows */
    }
}

/* Memory for the tokens of one expert. */
struct room {
  float *x, *h, *up, *y;
  int64_t *tokens;
};

static ane_status run_expert(struct ane_prim_call *c, const struct moe *m, int64_t e, const struct room *r, int64_t n) {
  const struct prim_matrix *w = m->state->m;
  int64_t k = m->experts, rows = w[e].rows;
  const float *b1 = m->bias[0] ? m->bias[0] + e * rows : NULL, *b2 = m->bias[1] ? m->bias[1] + e * m->hidden : NULL,
              *b3 = m->bias[2] ? m->bias[2] + e * m->inner : NULL;
  if (prim_multiply(c, &w[e], r->x, n, m->hidden, b1, r->h, rows)) return c->status;
  if (m->has_fc3 && prim_multiply(c, &w[2 * k + e], r->x, n, m->hidden, b3, r->up, m->inner)) return c->status;
  activate_rows(m, r->h, rows, m->has_fc3 ? r->up : NULL, n);
  return prim_multiply(c, &w[k + e], r->h, n, m->inner, b2, r->y, m->hidden);
}

static ane_status run_all(struct ane_prim_call *c, const struct moe *m, const float *x, float *y) {
  /* analyser: as in check_sizes. */
  const int64_t t = m->tokens, each[] = {t, m->experts}, in[] = {t, m->hidden}, up[] = {t, m->state->m[0].rows},
                inner[] = {t, m->inner};
  float *share = prim_temp_array(c, sizeof *share, 2, each);
  uint8_t *chosen = prim_temp_array(c, sizeof *chosen, 2, each);
  struct room r = {prim_temp_array(c, sizeof *r.x, 2, in), prim_temp_array(c, sizeof *r.h, 2, up),
                   m->has_fc3 ? prim_temp_array(c, sizeof *r.up, 2, inner) : NULL, prim_temp_array(c, sizeof *r.y, 2, in),
                   prim_temp_array(c, sizeof *r.tokens, 1, &t)};
  if (c->status) return c->status;
  for (int64_t i = 0; i < m->tokens; i++) choose(m, i, share + i * m->experts, chosen + i * m->experts);
  memset(y, 0, (size_t)(m->tokens * m->hidden) * sizeof *y);
  for (int64_t e = 0; e < m->experts; e++) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->tokens; i++) {
      if (!chosen[i * m->experts + e]) continue;
      memcpy(r.x + n * m->hidden, x + i * m->hidden, (size_t)m->hidden * sizeof *x);
      r.tokens[n++] = i;
    }
    if (n && run_expert(c, m, e, &r, n)) return c->status;
    for (int64_t i = 0; i < n; i++)
      for (int64_t d = 0; d < m->hidden; d++)
        y[r.tokens[i] * m->hidden + d] += share[r.tokens[i] * m->experts + e] * r.y[i * m->hidden + d];
  }
  return c->status;
}

static ane_status run_moe(struct ane_prim_call *c, prim_prepare_fn prepare) {
  struct moe m = {0};
  struct ane_prim_state *own = NULL;
  const struct ane_dyn *x = c->in[0], *mix = c->op == ANE_PRIM_qmoe ? prim_in(c, "router_weights") : NULL;
  if (read_options(c, &m) || count_experts(c, &m.experts, &m.has_fc3)) return c->status;
  if (!c->state) prepare(c, &own);
  m.state = c->state ? c->state : own;
  if (!c->status && !check_sizes(c, &m)) {
    m.router = prim_f32(c, c->in[1]);
    m.mix = mix ? prim_f32(c, mix) : NULL;
    if (mix && mix->count != m.tokens * m.experts) prim_fail(c, ANE_SHAPE, "router_weights has %" PRId64 " elements", mix->count);
    const float *v = prim_f32(c, x);
    float *y = prim_out(c, 0, ANE_F32, x->rank, x->dim);
    if (!c->status) run_all(c, &m, v, y);
  }
  ane_prim_state_free(own);
  return c->status;
}

ane_status prim_moe(struct ane_prim_call *c) { return run_moe(c, prim_prepare_moe); }
ane_status prim_qmoe(struct ane_prim_call *c) { return run_moe(c, prim_prepare_qmoe); }
