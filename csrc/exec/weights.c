/* Weight matrices: which packed form each takes, and packing them all, on every thread, into one slab. */
#include "exec/exec_internal.h"

#include "tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The stored type after `weights=`: rows that are not whole blocks of it stay as they are. */
static ane_dtype held_dtype(const struct ane_program *p, const struct matrix *m) {
  ane_dtype t = p->o.weights_dtype;
  return p->o.weights == ANE_WEIGHTS_DTYPE && m->packed.cols % ane_dtype_info(t)->block == 0 ? t : m->stored.dtype;
}

ane_status weights_describe(const struct ane_program *p, struct matrix *m, struct ane_error *err) {
  const struct ane_tensor *t = &m->stored;
  if (!ane_decoder(t->dtype)) return ane_fail(err, ANE_UNSUPPORTED, "weight %s is %s, which cannot be multiplied", m->name, ane_dtype_info(t->dtype)->name);
  struct ane_packed *w = &m->packed;
  w->rows = t->shape.dim[0];
  w->cols = t->shape.dim[1];
  w->groups = (w->rows + ANE_GROUP - 1) / ANE_GROUP;
  uint64_t row;
  if (!ane_dtype_bytes(t->dtype, (uint64_t)w->cols, &row))
    return ane_fail(err, ANE_SHAPE, "weight %s: a row of %" PRId64 " is not whole blocks of %s", m->name, w->cols, ane_dtype_info(t->dtype)->name);
  w->row_bytes = (size_t)row;
  w->dtype = held_dtype(p, m);
  bool int8 = (p->o.weights == ANE_WEIGHTS_INT8 || p->o.weights == ANE_WEIGHTS_INT8_CHANNEL) && w->cols % ANE_BLOCK == 0;
  w->form = int8 ? ANE_FORM_I8 : ane_form_for(w->dtype, w->cols);
  if (w->form == ANE_FORM_ROWS && w->dtype != t->dtype) w->dtype = t->dtype, w->form = ane_form_for(t->dtype, w->cols);
  m->act = ane_act_for(w->form, p->o.int8, p->k->bf16_dot);
  if (!p->k->matmul[w->form][m->act]) return ane_fail(err, ANE_UNSUPPORTED, "weight %s: no kernel for form %s", m->name, ane_form_info(w->form)->name);
  if (w->form != ANE_FORM_ROWS && !ane_form_group_bytes(w->form, w->cols, &w->group_bytes))
    return ane_fail(err, ANE_SHAPE, "weight %s is too large", m->name);
  return ANE_OK;
}

/* Shared by the packing threads. */
struct packing {
  struct ane_program *p;
  struct matrix *m;
  _Atomic int64_t next;
  float *rows;       /* threads x 16 x cols floats, where rows are re-encoded */
  uint8_t *encoded;  /* threads x 16 encoded rows */
  uint8_t *gathered; /* threads x 16 rows of a transposed matrix */
  size_t encoded_row;
  _Atomic uint32_t peak; /* largest |w| so far, as bits: positive floats order as integers */
};

enum { GROUPS_A_TURN = 8 };

static int group_rows(const struct matrix *m, int64_t g) { return (int)ANE_MIN((int64_t)ANE_GROUP, m->packed.rows - g * ANE_GROUP); }

/* 16 rows of a transposed matrix [R, C], stored as [C, ld], laid out as rows. */
static void gather_rows(const struct matrix *m, int64_t g, int n, uint8_t *rows) {
  size_t size = ane_dtype_info(m->stored.dtype)->bytes;
  const uint8_t *base = (const uint8_t *)m->stored.data + (size_t)g * ANE_GROUP * size;
  for (int64_t c = 0; c < m->packed.cols; c++, base += (size_t)m->stored.ld * size)
    for (int r = 0; r < n; r++) memcpy(rows + ((size_t)r * (size_t)m->packed.cols + (size_t)c) * size, base + (size_t)r * size, size);
}

/* The stored rows of group g, one behind the other. */
static const uint8_t *stored_rows(const struct packing *k, int64_t g, int thread) {
  const struct ane_packed *w = &k->m->packed;
  if (!k->m->stored.transposed) return (const uint8_t *)k->m->stored.data + (size_t)(g * ANE_GROUP) * w->row_bytes;
  uint8_t *rows = k->gathered + (size_t)thread * ANE_GROUP * w->row_bytes;
  gather_rows(k->m, g, group_rows(k->m, g), rows);
  return rows;
}

static void decode_group(const struct packing *k, int64_t g, int thread, float *rows) {
  ane_decode_fn decode = ane_decoder(k->m->stored.dtype);
  const uint8_t *stored = stored_rows(k, g, thread);
  for (int i = 0; i < group_rows(k->m, g); i++)
    decode(stored + (size_t)i * k->m->packed.row_bytes, rows + i * k->m->packed.cols, (uint64_t)k->m->packed.cols);
}

static void find_peak(void *arg, int thread, int threads) {
  struct packing *k = arg;
  (void)threads;
  int64_t cols = k->m->packed.cols;
  float *rows = k->rows + (size_t)thread * ANE_GROUP * (size_t)cols, peak = 0;
  for (int64_t g; (g = atomic_fetch_add(&k->next, 1)) < k->m->packed.groups;) {
    decode_group(k, g, thread, rows);
    for (int64_t i = 0; i < group_rows(k->m, g) * cols; i++) peak = fmaxf(peak, fabsf(rows[i]));
  }
  uint32_t bits = ane_f32_bits(peak), seen = atomic_load(&k->peak);
  while (seen < bits && !atomic_compare_exchange_weak(&k->peak, &seen, bits)) {}
}

/* The smallest fp16 that is not below amax / 127, so that no code is clamped. */
static float scale_fp16(float amax) {
  uint16_t h = ane_f32_f16(amax / 127.0f), most = 0x7BFF; /* 65504; weights beyond 127 times that are clamped */
  if (h > most) h = most;
  if (ane_f16_f32(h) * 127.0f < amax && h < most) h++;
  return ane_f16_f32(h);
}

static void pack_int8(const struct packing *k, int64_t g, int thread, float *rows, uint8_t *dst) {
  const struct ane_packed *w = &k->m->packed;
  float *scales = k->p->row_scales + k->m->scale_offset + g * ANE_GROUP;
  int n = group_rows(k->m, g);
  decode_group(k, g, thread, rows);
  for (int i = 0; i < n; i++) {
    float amax = ane_bits_f32(atomic_load(&k->peak));
    if (k->p->o.weights == ANE_WEIGHTS_INT8_CHANNEL) {
      amax = 0;
      for (int64_t c = 0; c < w->cols; c++) amax = fmaxf(amax, fabsf(rows[i * w->cols + c]));
    }
    scales[i] = scale_fp16(amax);
  }
  ane_pack_group_i8(rows, scales, n, w->cols, dst);
}

static void pack_encoded(const struct packing *k, int64_t g, int thread, float *rows, uint8_t *encoded, uint8_t *dst) {
  const struct ane_packed *w = &k->m->packed;
  ane_encode_fn encode = ane_encoder(w->dtype);
  int n = group_rows(k->m, g);
  decode_group(k, g, thread, rows);
  for (int i = 0; i < n; i++) encode(rows + i * w->cols, encoded + (size_t)i * k->encoded_row, (uint64_t)w->cols);
  ane_pack_group(w->form, w->dtype, encoded, k->encoded_row, n, w->cols, dst);
}

static void pack_groups(void *arg, int thread, int threads) {
  struct packing *k = arg;
  (void)threads;
  const struct ane_packed *w = &k->m->packed;
  float *rows = k->rows ? k->rows + (size_t)thread * ANE_GROUP * (size_t)w->cols : NULL;
  uint8_t *encoded = k->encoded ? k->encoded + (size_t)thread * ANE_GROUP * k->encoded_row : NULL;
  for (int64_t from; (from = atomic_fetch_add(&k->next, GROUPS_A_TURN)) < w->groups;) {
    for (int64_t g = from; g < ANE_MIN(from + GROUPS_A_TURN, w->groups); g++) {
      uint8_t *dst = k->p->slab + k->m->offset + (size_t)g * w->group_bytes;
      if (w->form == ANE_FORM_I8) pack_int8(k, g, thread, rows, dst);
      else if (w->dtype != k->m->stored.dtype) pack_encoded(k, g, thread, rows, encoded, dst);
      else ane_pack_group(w->form, w->dtype, stored_rows(k, g, thread), w->row_bytes, group_rows(k->m, g), w->cols, dst);
    }
  }
}

static ane_status pack_one(struct ane_program *p, struct matrix *m, struct ane_error *err) {
  struct ane_packed *w = &m->packed;
  if (w->form == ANE_FORM_ROWS) { /* only block types, which are never transposed */
    w->data = m->stored.data;
    return ANE_OK;
  }
  struct packing k = {.p = p, .m = m};
  if (m->stored.transposed && !(k.gathered = ane_malloc((size_t)p->o.threads * ANE_GROUP * w->row_bytes)))
    return ane_fail(err, ANE_NOMEM, "no memory to turn %s", m->name);
  bool recode = w->form == ANE_FORM_I8 || w->dtype != m->stored.dtype;
  ane_status st = ANE_OK;
  if (recode) {
    uint64_t row = 0;
    ane_dtype_bytes(w->dtype, (uint64_t)w->cols, &row);
    k.encoded_row = (size_t)row;
    size_t lanes = (size_t)p->o.threads * ANE_GROUP;
    k.rows = ane_malloc(lanes * (size_t)w->cols * sizeof(float));
    k.encoded = ane_malloc(lanes * k.encoded_row);
    if (!k.rows || !k.encoded) {
      st = ane_fail(err, ANE_NOMEM, "no memory to re-encode %s", m->name);
      goto out;
    }
    if (p->o.weights == ANE_WEIGHTS_INT8) ane_pool_run(p->pool, find_peak, &k);
    atomic_store(&k.next, 0);
  }
  ane_pool_run(p->pool, pack_groups, &k);
  w->data = p->slab + m->offset;
  if (w->form == ANE_FORM_I8) w->row_scale = p->row_scales + m->scale_offset;
out:
  ane_free(k.rows);
  ane_free(k.gathered);
  ane_free(k.encoded);
  return st;
}

ane_status weights_pack(struct ane_program *p, struct ane_error *err) {
  size_t total = 0, scales = 0;
  uint64_t bytes = 0, done = 0;
  for (int32_t i = 0; i < p->n_matrices; i++) {
    struct matrix *m = &p->matrices[i];
    size_t size = 0;
    bool fits = m->packed.form == ANE_FORM_ROWS || ane_mul_size((size_t)m->packed.groups, m->packed.group_bytes, &size);
    m->offset = total;
    m->scale_offset = (int32_t)scales;
    if (!fits || !ane_add_size(total, ane_align_up(size, 64), &total)) return ane_fail(err, ANE_SHAPE, "weight %s is too large", m->name);
    if (m->packed.form == ANE_FORM_I8) scales += (size_t)m->packed.groups * ANE_GROUP;
    bytes += m->stored.bytes;
  }
  p->slab_bytes = total;
  p->slab = ane_pages_alloc(ANE_MAX(total, (size_t)64), true);
  p->row_scales = ane_calloc(scales, sizeof *p->row_scales);
  if (!p->slab || !p->row_scales) return ane_fail(err, ANE_NOMEM, "no memory for %zu bytes of weights", total);
  for (int32_t i = 0; i < p->n_matrices; i++) {
    struct matrix *m = &p->matrices[i];
    ane_status st = pack_one(p, m, err);
    if (st) return st;
    if (p->o.release && m->packed.form != ANE_FORM_ROWS) p->o.release(p->o.arg, m->stored.data, m->stored.bytes);
    done += m->stored.bytes;
    if (p->o.progress) p->o.progress(p->o.arg, done, bytes);
  }
  return ANE_OK;
}
