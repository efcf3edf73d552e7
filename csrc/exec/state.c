/* Sessions: ids, KV states and rings, rewind and fork, results. */
#include "base/alloc.h"
#include "exec/session_recurrent.h"

#include <inttypes.h>
#include <string.h>

_Static_assert((int)ANE_TILE == (int)ANE_KV_POSITIONS, "a page holds a tile of each head");

/* Lays out layer `layer` in a page, from byte `at` on. Returns the byte after it. */
static size_t layout_layer(const struct ane_program *p, int layer, ane_dtype dtype, size_t at, struct ane_kv *out) {
  const struct kv_spec *spec = &p->kv[layer];
  *out = (struct ane_kv){.dtype = dtype, .heads = spec->heads, .head_dim = spec->head_dim, .relative = spec->relative};
  return ane_kv_layout(out, at);
}

int64_t border_rows(const struct ane_program *p) {
  int64_t rows = p->n_rings ? p->ring_taps - 1 : 0;
  return rows <= ANE_TILE ? rows : 0;
}

static int64_t ring_channels(const struct ane_program *p, int rings) {
  int64_t channels = 0;
  for (int i = 0; i < rings; i++) channels += p->ring_channels[i];
  return channels;
}

/* Lays out a page: all layers, then the border rows, from byte *border on. Returns the bytes of a page. */
static size_t page_layout(const struct ane_program *p, ane_dtype dtype, struct ane_kv *layers, size_t *border) {
  size_t at = 0;
  for (int i = 0; i < p->n_kv; i++) at = layout_layer(p, i, dtype, at, &layers[i]);
  *border = at;
  return at + (size_t)(ring_channels(p, p->n_rings) * border_rows(p)) * sizeof(float);
}

struct ane_kv_store *ane_program_store(const struct ane_program *p, ane_dtype kv, struct ane_error *err) {
  size_t border;
  struct ane_kv *layers = ane_malloc((size_t)p->n_kv * sizeof *layers);
  struct ane_kv_store *store = NULL;
  if (layers) store = ane_kv_store_create(ANE_MAX(page_layout(p, kv, layers, &border), (size_t)1));
  ane_free(layers);
  if (!store) ane_fail(err, ANE_NOMEM, "no memory for a store of pages");
  return store;
}

/* The store for sessions that are given none. */
static struct ane_kv_store *default_store(struct ane_program *p, ane_dtype kv, struct ane_error *err) {
  if (!p->stores[kv]) p->stores[kv] = ane_program_store(p, kv, err);
  return p->stores[kv];
}

static ane_status no_page(const struct ane_session *s, struct ane_error *err) {
  return ane_fail(err, ANE_NOMEM, "no memory for %d more positions (%zu bytes) of a session of %" PRId64, ANE_TILE,
                  ane_kv_store_page_bytes(s->store), s->length);
}

ane_status state_own(struct ane_session *s, int64_t from, int64_t n, struct ane_error *err) {
  for (int64_t i = from / ANE_TILE; i < pages_of(from + n); i++) {
    if (i == s->n_pages) {
      if (!(s->pages[i] = ane_kv_page_new(s->store))) return no_page(s, err);
      s->n_pages++;
    } else if (!ane_kv_page_own(&s->pages[i], i * ANE_TILE < s->length)) {
      return no_page(s, err);
    }
    s->pages[i]->whole = false;
    s->data[i] = s->pages[i]->data;
  }
  return ANE_OK;
}

void state_release(struct ane_session *s, int64_t from) {
  while (s->n_pages > from) ane_kv_page_release(s->pages[--s->n_pages]);
}

/* Floats of all rings. */
static int64_t ring_floats(const struct ane_program *p) { return ring_channels(p, p->n_rings) * p->ring_length; }

float *ring_at(const struct ane_session *s, int ring, int64_t pos) {
  const struct ane_program *p = s->program;
  return s->rings + ring_channels(p, ring) * p->ring_length + pos % p->ring_length * p->ring_channels[ring];
}

float *border_at(const struct ane_session *s, int ring, int64_t pos) {
  const struct ane_program *p = s->program;
  int64_t rows = border_rows(p), row = pos % ANE_TILE - (ANE_TILE - rows);
  if (row < 0) return NULL;
  float *border = (float *)(void *)(s->data[pos / ANE_TILE] + s->border);
  return border + ring_channels(p, ring) * rows + row * p->ring_channels[ring];
}

void state_copy_borders(const struct ane_session *s, int64_t from, int64_t to, bool to_rings) {
  const struct ane_program *p = s->program;
  for (int ring = 0; ring < p->n_rings; ring++)
    for (int64_t pos = from; pos < to; pos++) {
      float *border = border_at(s, ring, pos), *row = ring_at(s, ring, pos);
      if (border) memcpy(to_rings ? row : border, to_rings ? border : row, (size_t)p->ring_channels[ring] * sizeof *row);
    }
}

ane_status ane_session_create(struct ane_session **out, struct ane_program *p, int64_t context, ane_dtype kv,
                              struct ane_kv_store *store, struct ane_error *err) {
  *out = NULL;
  if (context < 1 || context > p->o.context)
    return ane_fail(err, ANE_RANGE, "context is %" PRId64 ", not in 1 .. %" PRId64, context, p->o.context);
  if (kv != ANE_F16 && kv != ANE_F32 && kv != ANE_I8 && kv != ANE_I16)
    return ane_fail(err, ANE_INVALID, "kv is %s; choose int16, fp16, fp32 or int8", ane_dtype_info(kv)->name);
  struct ane_session *s = ane_calloc(1, sizeof *s);
  ane_status st = s ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for a session");
  if (st) return st;
  s->program = p;
  s->context = context;
  s->kv_dtype = kv;
  s->ids = ane_malloc((size_t)context * sizeof *s->ids);
  s->kv = ane_calloc((size_t)p->n_kv, sizeof *s->kv);
  s->pages = ane_calloc((size_t)pages_of(context), sizeof *s->pages);
  s->data = ane_calloc((size_t)pages_of(context), sizeof *s->data);
  s->rings = ane_calloc((size_t)ring_floats(p), sizeof *s->rings);
  s->best = ane_malloc((size_t)p->o.chunk * sizeof *s->best);
  s->best_logit = ane_malloc((size_t)p->o.chunk * sizeof *s->best_logit);
  if (!recurrent_open(s) || !s->ids || !s->kv || !s->pages || !s->data || !s->rings || !s->best || !s->best_logit)
    st = ane_fail(err, ANE_NOMEM, "no memory for a session of %" PRId64 " positions", context);
  if (!st && !store && !(store = default_store(p, kv, err))) st = ANE_NOMEM;
  if (st) return ane_session_destroy(s), st;
  s->store = ane_kv_store_retain(store);
  page_layout(p, kv, s->kv, &s->border);
  for (int i = 0; i < p->n_kv; i++) s->kv[i].pages = s->data;
  *out = s;
  return ANE_OK;
}

void ane_session_destroy(struct ane_session *s) {
  if (!s) return;
  state_release(s, 0);
  ane_kv_store_release(s->store);
  session_adapters_drop(&s->adapters);
  ane_free(s->kv);
  ane_free(s->pages);
  ane_free(s->data);
  ane_free(s->rings);
  ane_free(s->recurrent);
  ane_free(s->ids);
  ane_free(s->logits);
  ane_free(s->best);
  ane_free(s->best_logit);
  ane_free(s);
}

int64_t ane_session_length(const struct ane_session *s) { return s->length; }
int64_t ane_session_replayed(const struct ane_session *s) { return s->replayed; }
int64_t ane_session_context(const struct ane_session *s) { return s->context; }
ane_dtype ane_session_kv(const struct ane_session *s) { return s->kv_dtype; }
const int32_t *ane_session_ids(const struct ane_session *s) { return s->ids; }
void ane_session_stop(struct ane_session *s) { atomic_store(&s->stop, true); }

typedef bool (*range_fn)(void *arg, uint8_t *data, size_t bytes);

/* Visits one part of each used tile: n bytes at `offset` in its page. */
static bool each_tile(const struct ane_session *s, size_t offset, size_t n, range_fn fn, void *arg) {
  for (int64_t i = 0; i < pages_of(s->length); i++)
    if (!fn(arg, i < s->n_pages ? s->data[i] + offset : NULL, n)) return false;
  return true;
}

bool state_each_used(const struct ane_session *s, range_fn fn, void *arg) {
  size_t rings = (size_t)ring_floats(s->program) * sizeof *s->rings, scale = ANE_TILE * sizeof(float);
  size_t recurrent = (size_t)s->program->recurrent_floats * sizeof *s->recurrent;
  if (s->length && rings && !fn(arg, (uint8_t *)(void *)s->rings, rings)) return false;
  if (s->length && recurrent && !fn(arg, (uint8_t *)(void *)s->recurrent, recurrent)) return false;
  for (int l = 0; l < s->program->n_kv; l++) {
    const struct ane_kv *kv = &s->kv[l];
    for (size_t h = 0; h < (size_t)kv->heads; h++) {
      size_t tile = kv->tile_bytes, base = (size_t)kv->head_dim * sizeof(float);
      if (!each_tile(s, kv->k + h * kv->stride, tile, fn, arg) || !each_tile(s, kv->v + h * kv->stride, tile, fn, arg))
        return false;
      if (kv->relative && s->length && !fn(arg, s->n_pages ? s->data[0] + kv->base + h * kv->stride : NULL, base)) return false;
      if (!ane_kv_has_scales(kv->dtype)) continue;
      if (!each_tile(s, kv->k_scale + h * kv->stride, scale, fn, arg) ||
          !each_tile(s, kv->v_scale + h * kv->stride, scale, fn, arg))
        return false;
    }
  }
  return true;
}

static bool add_bytes(void *arg, uint8_t *data, size_t bytes) {
  (void)data;
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
  if (s->program->n_recurrent && length > 0 && length < s->length) return run_replay(s, recurrent_rewind(s, length), length, err);
  /* The next token looks back ring_taps - 1 positions. If the rings no longer hold them, they are recomputed. */
  if (s->program->n_rings && length > 0 && ANE_MAX(length - (s->program->ring_taps - 1), (int64_t)0) < s->ring_low)
    return run_replay(s, 0, length, err);
  if (length == 0) s->ring_low = s->origin = 0;
  s->length = length;
  s->rows = 0;
  /* Keeps a few pages: a rejected draft, or the next tokens, will soon write to them. */
  state_release(s, pages_of(length) + pages_of(s->program->o.chunk) + 1);
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

ane_status ane_session_fork(struct ane_session **out, const struct ane_session *s, struct ane_error *err) {
  ane_status st = ane_session_create(out, s->program, s->context, s->kv_dtype, s->store, err);
  if (st) return st;
  struct ane_session *to = *out;
  memcpy(to->ids, s->ids, (size_t)s->length * sizeof *s->ids);
  memcpy(to->rings, s->rings, (size_t)ring_floats(s->program) * sizeof *s->rings);
  if (s->recurrent) memcpy(to->recurrent, s->recurrent, (size_t)s->program->recurrent_floats * sizeof *s->recurrent);
  to->n_pages = pages_of(s->length);
  for (int64_t i = 0; i < to->n_pages; i++) {
    to->pages[i] = ane_kv_page_retain(s->pages[i]);
    to->data[i] = s->data[i];
  }
  to->length = s->length;
  to->origin = s->origin;
  to->long_rope = s->long_rope;
  to->ring_low = s->ring_low;
  session_adapters_share(&to->adapters, &s->adapters);
  return ANE_OK;
}

int64_t ane_session_rows(const struct ane_session *s) { return s->rows; }

const float *ane_session_logits(const struct ane_session *s, int64_t row) {
  if (row < 0 || row >= s->rows || ane_want_best_only(s->want)) return NULL;
  return s->logits + row * s->program->vocab;
}

int32_t ane_session_argmax(const struct ane_session *s, int64_t row, float *logit) {
  if (row < 0 || row >= s->rows) return -1;
  if (logit) *logit = s->best_logit[row];
  return s->best[row];
}
