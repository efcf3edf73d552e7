/* Sessions: ids, KV states and rings, rewind and fork, results. */
#include "base/alloc.h"
#include "exec/session_internal.h"

#include <inttypes.h>
#include <string.h>

/* Bytes of one tile of one head: K or V. */
static size_t tile_bytes(const struct ane_session *s, int layer) {
  return (size_t)s->program->kv[layer].head_dim * ANE_TILE * ane_dtype_info(s->kv_dtype)->bytes;
}

static ane_status open_kv(struct ane_session *s, int layer, struct ane_error *err) {
  const struct kv_spec *spec = &s->program->kv[layer];
  struct kv_state *kv = &s->kv[layer];
  int64_t tiles = (s->context + ANE_TILE - 1) / ANE_TILE;
  size_t half, scales = 0;
  if (!ane_mul_size((size_t)(spec->heads * tiles), tile_bytes(s, layer), &half))
    return ane_fail(err, ANE_NOMEM, "a context of %" PRId64 " is too large", s->context);
  if (s->kv_dtype == ANE_I8) scales = (size_t)(spec->heads * tiles) * ANE_TILE * sizeof(float);
  half = ane_align_up(half, 64);
  kv->bytes = 2 * half + 2 * scales;
  kv->memory = ane_pages_alloc(kv->bytes, false);
  if (!kv->memory)
    return ane_fail(err, ANE_NOMEM, "no memory for a context of %" PRId64 " (%zu bytes per layer)", s->context, kv->bytes);
  uint8_t *m = kv->memory;
  kv->kv = (struct ane_kv){
      .dtype = s->kv_dtype, .heads = spec->heads, .head_dim = spec->head_dim, .tiles = tiles, .k = m, .v = m + half};
  if (scales) {
    kv->kv.k_scale = (float *)(void *)(m + 2 * half);
    kv->kv.v_scale = (float *)(void *)(m + 2 * half + scales);
  }
  return ANE_OK;
}

/* Floats of all rings. */
static int64_t ring_floats(const struct ane_program *p) {
  int64_t channels = 0;
  for (int32_t i = 0; i < p->n_rings; i++) channels += p->ring_channels[i];
  return channels * p->ring_length;
}

float *ring_at(const struct ane_session *s, int ring, int64_t pos) {
  const struct ane_program *p = s->program;
  int64_t before = 0;
  for (int i = 0; i < ring; i++) before += p->ring_channels[i];
  return s->rings + before * p->ring_length + pos % p->ring_length * p->ring_channels[ring];
}

ane_status ane_session_create(struct ane_session **out, struct ane_program *p, int64_t context, ane_dtype kv,
                              struct ane_error *err) {
  *out = NULL;
  if (context < 1 || context > p->o.context)
    return ane_fail(err, ANE_RANGE, "context is %" PRId64 ", not in 1 .. %" PRId64, context, p->o.context);
  if (kv != ANE_F16 && kv != ANE_F32 && kv != ANE_I8)
    return ane_fail(err, ANE_INVALID, "kv is %s; choose fp16, fp32 or int8", ane_dtype_info(kv)->name);
  struct ane_session *s = ane_calloc(1, sizeof *s);
  ane_status st = s ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for a session");
  if (st) return st;
  s->program = p;
  s->context = context;
  s->kv_dtype = kv;
  s->ids = ane_malloc((size_t)context * sizeof *s->ids);
  s->kv = ane_calloc((size_t)p->n_kv, sizeof *s->kv);
  s->rings = ane_calloc((size_t)ring_floats(p), sizeof *s->rings);
  s->best = ane_malloc((size_t)p->o.chunk * sizeof *s->best);
  s->best_logit = ane_malloc((size_t)p->o.chunk * sizeof *s->best_logit);
  if (!s->ids || !s->kv || !s->rings || !s->best || !s->best_logit)
    st = ane_fail(err, ANE_NOMEM, "no memory for a session of %" PRId64, context);
  for (int i = 0; !st && i < p->n_kv; i++) st = open_kv(s, i, err);
  if (st)
    ane_session_destroy(s);
  else
    *out = s;
  return st;
}

void ane_session_destroy(struct ane_session *s) {
  if (!s) return;
  for (int i = 0; s->kv && i < s->program->n_kv; i++)
    if (s->kv[i].memory) ane_pages_free(s->kv[i].memory, s->kv[i].bytes);
  ane_free(s->kv);
  ane_free(s->rings);
  ane_free(s->ids);
  ane_free(s->logits);
  ane_free(s->best);
  ane_free(s->best_logit);
  ane_free(s);
}

int64_t ane_session_length(const struct ane_session *s) { return s->length; }
int64_t ane_session_replayed(const struct ane_session *s) { return s->replayed; }
int64_t ane_session_context(const struct ane_session *s) { return s->context; }
const int32_t *ane_session_ids(const struct ane_session *s) { return s->ids; }
void ane_session_stop(struct ane_session *s) { atomic_store(&s->stop, true); }

bool state_each_used(const struct ane_session *s, bool (*fn)(void *arg, int layer, size_t offset, size_t bytes), void *arg) {
  size_t used = (size_t)(s->length + ANE_TILE - 1) / ANE_TILE;
  size_t rings = (size_t)ring_floats(s->program) * sizeof *s->rings;
  if (used && rings && !fn(arg, STATE_RINGS, 0, rings)) return false;
  for (int l = 0; used && l < s->program->n_kv; l++) {
    const struct ane_kv *kv = &s->kv[l].kv;
    const uint8_t *base = s->kv[l].memory;
    size_t tile = tile_bytes(s, l), scale = ANE_TILE * sizeof(float);
    for (int64_t h = 0; h < kv->heads; h++) {
      size_t at = (size_t)(h * kv->tiles);
      size_t k = (size_t)((const uint8_t *)kv->k - base) + at * tile, v = (size_t)((const uint8_t *)kv->v - base) + at * tile;
      if (!fn(arg, l, k, used * tile) || !fn(arg, l, v, used * tile)) return false;
      if (!kv->k_scale) continue;
      size_t ks = (size_t)((const uint8_t *)kv->k_scale - base) + at * scale,
             vs = (size_t)((const uint8_t *)kv->v_scale - base) + at * scale;
      if (!fn(arg, l, ks, used * scale) || !fn(arg, l, vs, used * scale)) return false;
    }
  }
  return true;
}

static bool add_bytes(void *arg, int layer, size_t offset, size_t bytes) {
  (void)layer, (void)offset;
  *(uint64_t *)arg += bytes;
  return true;
}

uint64_t ane_session_kv_bytes(const struct ane_session *s) {
  uint64_t total = 0;
  state_each_used(s, add_bytes, &total);
  return total;
}

ane_status ane_session_rewind(struct ane_session *s, int64_t length, struct ane_error *err) {
  if (length < 0 || length > s->length)
    return ane_fail(err, ANE_RANGE, "cannot rewind to %" PRId64 ": the session holds %" PRId64 " positions", length, s->length);
  /* The next token looks back ring_taps - 1 positions. Where the rings no longer hold them, they are computed again. */
  if (s->program->n_rings && length > 0 && ANE_MAX(length - (s->program->ring_taps - 1), (int64_t)0) < s->ring_low)
    return run_replay(s, length, err);
  if (length == 0) s->ring_low = s->origin = 0;
  s->length = length;
  s->rows = 0;
  return ANE_OK;
}

ane_status ane_session_part(struct ane_session *s, int64_t origin, struct ane_error *err) {
  if (!s->program->bidirectional)
    return ane_fail(err, ANE_UNSUPPORTED, "this model sees all of the past: a part of a sequence cannot be fed alone");
  if (s->program->n_positions && origin > 0)
    return ane_fail(err, ANE_UNSUPPORTED, "this model has embeddings of positions: a part of a sequence cannot be fed alone");
  if (origin < 0 || origin >= 1 << 24)
    return ane_fail(err, ANE_RANGE, "a part begins at %" PRId64 ", not in 0 .. 2^24 - 1", origin);
  ane_status st = ane_session_rewind(s, 0, err);
  if (!st) s->origin = origin;
  return st;
}

uint8_t *state_bytes(const struct ane_session *s, int layer) {
  return layer == STATE_RINGS ? (uint8_t *)(void *)s->rings : s->kv[layer].memory;
}

struct copy {
  const struct ane_session *from;
  struct ane_session *to;
};

static bool copy_bytes(void *arg, int layer, size_t offset, size_t bytes) {
  const struct copy *c = arg;
  memcpy(state_bytes(c->to, layer) + offset, state_bytes(c->from, layer) + offset, bytes);
  return true;
}

ane_status ane_session_fork(struct ane_session **out, const struct ane_session *s, struct ane_error *err) {
  ane_status st = ane_session_create(out, s->program, s->context, s->kv_dtype, err);
  if (st) return st;
  struct copy c = {s, *out};
  memcpy((*out)->ids, s->ids, (size_t)s->length * sizeof *s->ids);
  (*out)->length = s->length;
  (*out)->long_rope = s->long_rope;
  (*out)->ring_low = s->ring_low;
  state_each_used(s, copy_bytes, &c);
  return ANE_OK;
}

int64_t ane_session_rows(const struct ane_session *s) { return s->rows; }

const float *ane_session_logits(const struct ane_session *s, int64_t row) {
  if (row < 0 || row >= s->rows || s->want == ANE_WANT_ARGMAX) return NULL;
  return s->logits + row * s->program->vocab;
}

int32_t ane_session_argmax(const struct ane_session *s, int64_t row, float *logit) {
  if (row < 0 || row >= s->rows) return -1;
  if (logit) *logit = s->best_logit[row];
  return s->best[row];
}
