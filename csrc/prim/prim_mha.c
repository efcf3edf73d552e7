/* MultiHeadAttention of ONNX Runtime (ContribOperators.md): separate q, k, v of [batch, length, hidden], with the same number
 * of heads. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct mha {
  int64_t batch, s, new_keys, past, heads, d, dv;
};

static ane_status read_sizes(struct ane_prim_call *c, struct mha *m) {
  const struct ane_dyn *q = c->in[0], *k = c->in[1], *v = c->in[2], *pk = prim_in(c, "past_key"), *pv = prim_in(c, "past_value");
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  m->heads = prim_int(c, "num_heads", 0);
  if (c->status) return c->status;
  if (m->heads < 1) return prim_fail(c, ANE_INVALID, "num_heads is %" PRId64, m->heads);
  bool fits = q->rank == 3 && k->rank == 3 && v->rank == 3 && k->dim[0] == q->dim[0] && v->dim[0] == q->dim[0] &&
              k->dim[1] == v->dim[1] && q->dim[2] == k->dim[2] && q->dim[2] % m->heads == 0 && v->dim[2] % m->heads == 0;
  if (!fits)
    return prim_fail(c, ANE_UNSUPPORTED, "query %s and key %s of %" PRId64 " heads", ane_dyn_text(q, a), ane_dyn_text(k, b),
                     m->heads);
  m->batch = q->dim[0], m->s = q->dim[1], m->new_keys = k->dim[1], m->d = q->dim[2] / m->heads, m->dv = v->dim[2] / m->heads;
  if (!pk != !pv) return prim_fail(c, ANE_INVALID, "one of past_key and past_value is missing");
  for (int i = 0; pk && i < 2; i++) {
    const struct ane_dyn *t = i ? pv : pk;
    if (t->rank != 4 || t->dim[0] != m->batch || t->dim[1] != m->heads || t->dim[3] != (i ? m->dv : m->d) ||
        (i && t->dim[2] != m->past))
      return prim_fail(c, ANE_SHAPE, "%s is %s", i ? "past_value" : "past_key", ane_dyn_text(t, a));
    m->past = t->dim[2];
  }
  return c->status;
}

/* Returns concat(past, new + bias), [batch, heads, past + new, d], as output `out` or in temporary memory. */
static const float *keys_of(struct ane_prim_call *c, const struct mha *m, int out, const struct ane_dyn *t,
                            const struct ane_dyn *past, int64_t d, const float *bias) {
  int64_t total = m->past + m->new_keys, dim[4] = {m->batch, m->heads, total, d};
  const float *v = prim_f32(c, t), *old = past ? prim_f32(c, past) : NULL;
  float *y = prim_wanted(c, out) ? prim_out(c, out, ANE_F32, 4, dim) : prim_temp_array(c, sizeof *y, 4, dim);
  if (c->status) return NULL;
  for (int64_t n = 0; total > 0 && d > 0 && n < m->batch * m->heads; n++) {
    int64_t b = n / m->heads, h = n % m->heads;
    float *to = y + n * total * d;
    if (old) memcpy(to, old + n * m->past * d, (size_t)(m->past * d) * sizeof *to);
    for (int64_t i = 0; i < m->new_keys; i++)
      for (int64_t k = 0; k < d; k++)
        to[(m->past + i) * d + k] = v[((b * m->new_keys + i) * m->heads + h) * d + k] + (bias ? bias[h * d + k] : 0);
  }
  return y;
}

/* Combines attention_bias and key_padding_mask (0: add mask_filter_value) to one bias of [batch, heads or 1, s, total]. */
static ane_status read_bias(struct ane_prim_call *c, const struct mha *m, struct prim_attention_args *a) {
  const struct ane_dyn *bias = prim_in(c, "attention_bias"), *pad = prim_in(c, "key_padding_mask");
  char text[ANE_DYN_TEXT];
  int64_t total = a->t, full[4] = {m->batch, m->heads, m->s, total}, dim[ANE_DYN_RANK], stride[ANE_DYN_RANK] = {0};
  int rank;
  if (!bias && !pad) return c->status;
  if (bias &&
      (bias->rank > 4 || !prim_broadcast(bias->rank, bias->dim, 4, full, &rank, dim) || memcmp(dim, full, sizeof full) != 0))
    return prim_fail(c, ANE_SHAPE, "attention_bias is %s", ane_dyn_text(bias, text));
  float fill = prim_float(c, "mask_filter_value", -10000), *y = prim_temp_array(c, sizeof *y, 4, full);
  if (!y) return c->status;
  if (pad && pad->count != m->batch && pad->count != m->batch * total && pad->count != m->batch * m->s * total)
    return prim_fail(c, ANE_UNSUPPORTED, "key_padding_mask is %s", ane_dyn_text(pad, text));
  if (bias) prim_broadcast_strides(bias, 4, full, stride);
  const float *v = bias ? prim_f32(c, bias) : NULL;
  const int64_t *p = pad ? prim_i64(c, pad) : NULL;
  if (c->status) return c->status;
  for (int64_t n = 0; n < m->batch * m->heads * m->s * total; n++) {
    int64_t t = n % total, i = n / total % m->s, h = n / (total * m->s) % m->heads, b = n / (total * m->s * m->heads);
    bool hidden =
        p && (pad->count == m->batch ? t >= p[b] : p[(pad->count == m->batch * total ? b : b * m->s + i) * total + t] == 0);
    y[n] = (v ? v[b * stride[0] + h * stride[1] + i * stride[2] + t * stride[3]] : 0) + (hidden ? fill : 0);
  }
  a->bias = y;
  a->bias_stride[3] = 1, a->bias_stride[2] = total, a->bias_stride[1] = m->s * total, a->bias_stride[0] = m->heads * m->s * total;
  return c->status;
}

ane_status prim_multi_head_attention(struct ane_prim_call *c) {
  struct mha m = {0};
  const struct ane_dyn *bias = prim_in(c, "bias");
  bool causal = prim_bool(c, "unidirectional", false);
  if (read_sizes(c, &m)) return c->status;
  int64_t hd = m.heads * m.d, hv = m.heads * m.dv, total = m.past + m.new_keys, out[3] = {m.batch, m.s, hv};
  if (bias && bias->count != 2 * hd + hv)
    return prim_fail(c, ANE_SHAPE, "bias has %" PRId64 " elements, but must have %" PRId64, bias->count, 2 * hd + hv);
  const float *v = prim_f32(c, c->in[0]), *add = bias ? prim_f32(c, bias) : NULL;
  float *q = prim_temp(c, (uint64_t)(m.batch * m.s * hd) * sizeof *q);
  int64_t *first = prim_temp(c, (uint64_t)(m.batch * m.s) * sizeof *first),
          *last = prim_temp(c, (uint64_t)(m.batch * m.s) * sizeof *last);
  if (c->status) return c->status;
  for (int64_t i = 0; i < m.batch * m.s * hd; i++) q[i] = v[i] + (add ? add[i % hd] : 0);
  for (int64_t i = 0; i < m.batch * m.s; i++)
    first[i] = 0, last[i] = causal ? ANE_MAX(ANE_MIN(total - m.s + i % m.s + 1, total), 0) : total;
  struct prim_attention_args a = {.batch = m.batch,
                                  .heads = m.heads,
                                  .kv_heads = m.heads,
                                  .s = m.s,
                                  .t = total,
                                  .d = m.d,
                                  .dv = m.dv,
                                  .q = q,
                                  .first = first,
                                  .last = last};
  a.k = keys_of(c, &m, 1, c->in[1], prim_in(c, "past_key"), m.d, add ? add + hd : NULL);
  a.v = keys_of(c, &m, 2, c->in[2], prim_in(c, "past_value"), m.dv, add ? add + 2 * hd : NULL);
  a.scale = prim_float(c, "scale", 0);
  if (a.scale == 0) a.scale = 1 / sqrtf((float)ANE_MAX(m.d, 1));
  a.q_stride[0] = m.s * hd, a.q_stride[1] = m.d, a.q_stride[2] = hd;
  a.y_stride[0] = m.s * hv, a.y_stride[1] = m.dv, a.y_stride[2] = hv;
  a.k_stride[0] = m.heads * total * m.d, a.k_stride[1] = total * m.d, a.k_stride[2] = m.d;
  a.v_stride[0] = m.heads * total * m.dv, a.v_stride[1] = total * m.dv, a.v_stride[2] = m.dv;
  a.y = prim_out(c, 0, ANE_F32, 3, out);
  if (c->status || read_bias(c, &m, &a)) return c->status;
  return prim_attention_core(c, &a);
}
