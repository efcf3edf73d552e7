/* Encodes weights: parameters of a whole matrix, tiles of rows, whole matrices on all threads; and decodes them. */
#include "quant/weight_schemes.h"

#include "base/alloc.h"
#include "quant/compensate.h"
#include "quant/exact_line.h"
#include "quant/fit.h"
#include "quant/palette.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- Codes ---------------------------------------------------------------------------------------------------------*/

/* The smallest fp16 that is at least amax / 127, so that no code is clamped; 65504 if no fp16 is. */
static uint16_t int8_scale(float amax) {
  uint16_t h = ane_f32_f16(amax / 127.0f), most = 0x7BFF;
  if (h > most) h = most;
  if (ane_f16_f32(h) * 127.0f < amax && h < most) h++;
  return h;
}

/* Rounds to the nearest integer, ties to even: 1.5 * 2^23 has a unit in the last place of 1, so the addition rounds, and its
 * low byte is the integer. Values are clamped first; NaN becomes one of the limits. */
static void int8_codes(const float *x, int64_t n, float scale, uint8_t *codes) {
  if (scale == 0) memset(codes, 0, (size_t)n);
  for (int64_t i = 0; scale != 0 && i < n; i++) {
    float v = x[i] / scale;
    v = v < 127 ? v : 127;
    v = v > -127 ? v : -127;
    codes[i] = (uint8_t)ane_f32_bits(v + 0x1.8p23f);
  }
}

static float largest(const float *x, int64_t n) {
  float lane[8] = {0};
  for (int64_t i = 0; i < n; i += 8)
    for (int64_t j = 0; j < ANE_MIN(n - i, 8); j++) {
      float a = fabsf(x[i + j]);
      lane[j] = a > lane[j] ? a : lane[j];
    }
  for (int j = 1; j < 8; j++) lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
  return lane[0];
}

/* Is each number a product of the scale and a code? If so, writes the codes. */
static bool has_codes(const float *x, int n, float scale, uint8_t *codes) {
  for (int i = 0; i < n; i++) {
    float q = rintf(x[i] / scale);
    if (!(q >= -8 && q <= 7 && q * scale == x[i])) return false;
    codes[i] = (uint8_t)(int)q;
  }
  return true;
}

/* Finds the scale and codes of a block whose numbers are already those of an int4 block, such as one of Q4_0, so that they stay
 * the same. The scale may be negative; positive ones are tried first. false: there is no such scale. */
static bool int4_again(const float *x, int n, uint16_t *scale, uint8_t *codes) {
  int top = 0;
  for (int i = 1; i < n; i++) top = fabsf(x[i]) > fabsf(x[top]) ? i : top;
  if (x[top] == 0) return false;
  for (int k = 16; k-- > 0;) { /* the code of the largest number: 8 .. 1 with its sign, then with the other one */
    float code = (float)(k % 8 + 1) * ((x[top] < 0) == (k >= 8) ? -1.0f : 1.0f);
    *scale = ane_f32_f16(x[top] / code);
    if (code <= 7 && ane_f16_f32(*scale) * code == x[top] && has_codes(x, n, ane_f16_f32(*scale), codes)) return true;
  }
  return false;
}

/* Encodes one block with codes -8 .. 7. Returns its scale as fp16. */
static uint16_t int4_block(const float *x, const float *w, int n, uint8_t *codes) {
  uint16_t stored;
  if (int4_again(x, n, &stored, codes)) return stored;
  struct ane_span s = ane_span_of(x, w, n);
  float q[ANE_SPAN_MAX];
  uint16_t h = ane_f32_f16(ane_fit_positive(&s, 8).scale);
  if (h > 0x7BFF) h = 0x7BFF;
  float scale = ane_f16_f32(h);
  ane_span_code(&s, (struct ane_line){scale, -8 * scale}, 15, q);
  for (int i = 0; i < n; i++) codes[i] = scale == 0 ? 0 : (uint8_t)((int)q[i] - 8);
  return h;
}

/* Encodes one block with an offset and codes 0 .. 15. */
static void uint4_block(const float *x, const float *w, int n, uint8_t *codes, uint16_t *scale, uint16_t *offset) {
  float q[ANE_SPAN_MAX];
  struct ane_line l = ane_fit_exact(x, w, n, q);
  for (int i = 0; i < n; i++) codes[i] = (uint8_t)q[i];
  /* analyser: tiles of this scheme have offsets. */
  *scale = ane_f32_f16(l.scale), *offset = ane_line_shift(l);
}

/* ---- Importance ----------------------------------------------------------------------------------------------------*/

/* Weights of columns as integers with a mean of 1024, so that sums do not depend on their order. */
static uint32_t whole_weight(const float *importance, double per_mean, int64_t c) {
  double v = importance ? rint((double)importance[c] * per_mean) : 1;
  return v >= 1 ? v <= 0x1p24 ? (uint32_t)v : 1u << 24 : 1;
}

static double weight_per_mean(const float *importance, int64_t cols) {
  double sum = 0;
  for (int64_t c = 0; importance && c < cols; c++) sum += (double)importance[c];
  return sum > 0 ? 1024.0 * (double)cols / sum : 0;
}

/* Counts a row in the bins; false if an element is not finite in fp16. */
static bool count_row(const float *x, int64_t cols, const float *importance, double per_mean, uint64_t *bins) {
  bool fine = true;
  for (int64_t c = 0; c < cols; c++) {
    bool finite = fabsf(x[c]) < 65520.0f;
    if (finite) bins[ane_palette_key(x[c])] += whole_weight(importance, per_mean, c);
    fine &= finite;
  }
  return fine;
}

/* ---- Whole matrices, pass one --------------------------------------------------------------------------------------*/

struct fitting {
  const struct ane_weight_rows *src;
  const float *importance;
  double per_mean;
  float *tiles;              /* threads x tile */
  uint64_t *bins;            /* threads x ANE_PALETTE_KEYS; NULL: only the largest is wanted */
  _Atomic int64_t next, bad; /* tile; first row with an element that is not finite, or INT64_MAX */
  _Atomic uint32_t peak;     /* largest |w|, as bits: positive floats order as integers */
};

static void least(_Atomic int64_t *to, int64_t v) {
  int64_t seen = atomic_load(to);
  while (v < seen && !atomic_compare_exchange_weak(to, &seen, v)) {}
}

static void fit_rows(void *arg, int thread, int threads) {
  struct fitting *k = arg;
  (void)threads;
  int64_t cols = k->src->cols;
  float *x = k->tiles + (size_t)thread * ANE_WEIGHT_TILE * (size_t)cols, peak = 0;
  uint64_t *bins = k->bins ? k->bins + (size_t)thread * ANE_PALETTE_KEYS : NULL;
  for (int64_t i; (i = atomic_fetch_add(&k->next, 1) * ANE_WEIGHT_TILE) < k->src->rows;) {
    int64_t n = ANE_MIN(k->src->rows - i, ANE_WEIGHT_TILE);
    k->src->read(k->src->arg, i, n, x);
    for (int64_t r = 0; bins && r < n; r++)
      if (!count_row(x + r * cols, cols, k->importance, k->per_mean, bins)) least(&k->bad, i + r);
    if (!bins) peak = ANE_MAX(peak, largest(x, n * cols));
  }
  uint32_t bits = ane_f32_bits(peak), seen = atomic_load(&k->peak);
  while (seen < bits && !atomic_compare_exchange_weak(&k->peak, &seen, bits)) {}
}

static void take_table(struct fitting *k, size_t threads, int entries, void *scratch, uint16_t *lut) {
  for (size_t t = 1; t < threads; t++)
    for (size_t i = 0; i < ANE_PALETTE_KEYS; i++) k->bins[i] += k->bins[t * ANE_PALETTE_KEYS + i];
  ane_palette(k->bins, entries, scratch, lut);
}

ane_status ane_weight_fit(struct ane_weight_fit *out, struct ane_pool *pool, const struct ane_weight_rows *src,
                          struct ane_weight_spec spec, const float *importance, struct ane_error *err) {
  *out = (struct ane_weight_fit){.spec = ane_weight_spec_fit(spec, src->rows, src->cols)};
  bool table = out->spec.scheme == ANE_WEIGHT_LUT && out->spec.size == 0;
  if (!table && out->spec.scheme != ANE_WEIGHT_INT8) return ANE_OK;
  size_t threads = (size_t)ane_pool_threads(pool), floats;
  if (!ane_mul_size(threads * ANE_WEIGHT_TILE * sizeof(float), (size_t)src->cols, &floats))
    return ane_fail(err, ANE_SHAPE, "its size overflows");
  struct fitting k = {.src = src, .importance = importance, .per_mean = weight_per_mean(importance, src->cols), .bad = INT64_MAX};
  ane_status st = ANE_OK;
  k.tiles = ane_malloc(floats);
  k.bins = table ? ane_calloc(threads * ANE_PALETTE_KEYS, sizeof *k.bins) : NULL;
  void *scratch = ane_malloc(table ? ane_palette_scratch() : 0);
  if (!k.tiles || !scratch || (table && !k.bins)) {
    st = ane_fail(err, ANE_NOMEM, "not enough memory for rows of %" PRId64, src->cols);
    goto out;
  }
  ane_pool_run(pool, fit_rows, &k);
  if (k.bad < INT64_MAX) {
    st = ane_fail(err, ANE_INVALID, "row %" PRId64 " has an element that is not finite, or beyond fp16", (int64_t)k.bad);
    goto out;
  }
  if (table)
    take_table(&k, threads, 1 << spec.bits, scratch, out->lut);
  else
    out->scale = ane_f16_f32(int8_scale(ane_bits_f32(atomic_load(&k.peak))));
out:
  ane_free(k.tiles);
  ane_free(k.bins);
  ane_free(scratch);
  return st;
}

/* ---- Tiles ---------------------------------------------------------------------------------------------------------*/

/* Bytes of scratch memory for tables of some rows: bins, the palette's own memory, and weights of columns if there is no
 * importance. */
static size_t table_scratch(const struct ane_weight_fit *fit) {
  bool tables = fit->spec.scheme == ANE_WEIGHT_LUT && fit->spec.size > 0;
  return tables ? ane_align_up(ANE_PALETTE_KEYS * sizeof(uint64_t) + ane_palette_scratch(), 64) : 0;
}

size_t ane_weight_tile_scratch(const struct ane_weight_fit *fit, int64_t cols) {
  (void)cols;
  return table_scratch(fit) + (fit->factor ? ane_compensate_scratch(fit->factor) : 0);
}

static void lut_tile(const struct ane_weight_fit *fit, const float *rows, int n, int64_t cols, const float *importance,
                     void *scratch, struct ane_weight_tile *out) {
  const int entries = 1 << fit->spec.bits;
  if (fit->spec.size == 0) {
    memcpy(out->lut, fit->lut, (size_t)entries * sizeof *out->lut);
    ane_palette_assign(rows, n * cols, fit->lut, entries, out->codes);
    return;
  }
  uint64_t *bins = scratch;
  double per_mean = weight_per_mean(importance, cols);
  for (int r = 0; r < n; r += fit->spec.size) {
    int last = ANE_MIN(n, r + fit->spec.size);
    uint16_t *lut = out->lut + entries * (r / fit->spec.size);
    memset(bins, 0, ANE_PALETTE_KEYS * sizeof *bins);
    for (int i = r; i < last; i++) count_row(rows + i * cols, cols, importance, per_mean, bins);
    ane_palette(bins, entries, bins + ANE_PALETTE_KEYS, lut);
    ane_palette_assign(rows + r * cols, (last - r) * cols, lut, entries, out->codes + r * cols);
  }
}

/* Encodes a tile of INT4_BLOCK or UINT4_BLOCK. */
static void nibble_tile(const struct ane_weight_fit *fit, const float *rows, int n, int64_t cols, const float *importance,
                        struct ane_weight_tile *out) {
  float even[ANE_SPAN_MAX];
  int size = fit->spec.size;
  for (int i = 0; i < size; i++) even[i] = 1;
  for (int64_t i = 0, b = 0; i < n * cols; i += size, b++) {
    const float *w = importance ? importance + i % cols : even;
    if (fit->spec.scheme == ANE_WEIGHT_UINT4_BLOCK)
      uint4_block(rows + i, w, size, out->codes + i, &out->scales[b], &out->offsets[b]);
    else
      out->scales[b] = int4_block(rows + i, w, size, out->codes + i);
  }
}

static void int8_tile(const struct ane_weight_fit *fit, const float *rows, int n, int64_t cols, struct ane_weight_tile *out) {
  int64_t size = fit->spec.scheme == ANE_WEIGHT_INT8_BLOCK ? fit->spec.size : cols;
  for (int64_t i = 0, k = 0; i < n * cols; i += size, k++) {
    bool whole = fit->spec.scheme == ANE_WEIGHT_INT8;
    out->scales[k] = whole ? ane_f32_f16(fit->scale) : int8_scale(largest(rows + i, size));
    int8_codes(rows + i, size, ane_f16_f32(out->scales[k]), out->codes + i);
  }
}

void ane_weight_encode_tile(const struct ane_weight_fit *fit, const float *rows, int n, int64_t cols, const float *importance,
                            void *scratch, struct ane_weight_tile *out) {
  if (fit->factor && fit->spec.scheme != ANE_WEIGHT_FP16) {
    struct ane_weight_fit own = *fit;
    own.factor = NULL;
    ane_compensate_tile(fit->factor, &own, rows, n, scratch, out, (uint8_t *)scratch + table_scratch(fit));
    return;
  }
  switch (fit->spec.scheme) {
    case ANE_WEIGHT_FP16: break;
    case ANE_WEIGHT_INT8:
    case ANE_WEIGHT_INT8_CHANNEL:
    case ANE_WEIGHT_INT8_BLOCK: int8_tile(fit, rows, n, cols, out); break;
    case ANE_WEIGHT_INT4_BLOCK:
    case ANE_WEIGHT_UINT4_BLOCK: nibble_tile(fit, rows, n, cols, importance, out); break;
    case ANE_WEIGHT_LUT: lut_tile(fit, rows, n, cols, importance, scratch, out); break;
  }
}

void ane_weight_decode_tile(const struct ane_weight_fit *fit, const struct ane_weight_tile *tile, int n, int64_t cols,
                            float *dst) {
  struct ane_weight_spec s = fit->spec;
  for (int r = 0; r < n; r++, dst += cols) {
    const uint8_t *codes = tile->codes + r * cols;
    if (s.scheme == ANE_WEIGHT_LUT) {
      float lut[ANE_WEIGHT_LUT_MAX];
      const uint16_t *halves = tile->lut + ((s.size ? r / s.size : 0) << s.bits);
      for (int i = 0; i < 1 << s.bits; i++) lut[i] = ane_f16_f32(halves[i]);
      /* analyser: codes are below 1 << bits. */
      for (int64_t c = 0; c < cols; c++) dst[c] = lut[codes[c]];
      continue;
    }
    int64_t block = ane_weight_has_blocks(s) ? s.size : cols;
    for (int64_t c = 0; c < cols; c += block) {
      float scale = ane_f16_f32(tile->scales[(r * cols + c) / block]);
      float offset = s.scheme == ANE_WEIGHT_UINT4_BLOCK ? ane_f16_f32(tile->offsets[(r * cols + c) / block]) : 0;
      for (int64_t i = c; i < c + block; i++) dst[i] = scale * ((float)(int8_t)codes[i] - offset);
    }
  }
}

/* ---- Whole matrices, pass two --------------------------------------------------------------------------------------*/

struct encoding {
  struct ane_weights *w;
  const struct ane_weight_rows *src;
  const struct ane_weight_fit *fit;
  const float *importance;
  int64_t from;
  _Atomic int64_t next;
  float *rows;      /* threads x 2 x tile: as read, as decoded */
  uint8_t *codes;   /* threads x tile */
  uint8_t *scratch; /* threads x scratch_bytes */
  size_t scratch_bytes;
  struct ane_measure *errors; /* of tiles; summed up in their order. bad: of the whole matrix, a row */
};

static int code_bits(struct ane_weight_spec s) {
  bool nibbles = s.scheme == ANE_WEIGHT_INT4_BLOCK || s.scheme == ANE_WEIGHT_UINT4_BLOCK;
  return s.scheme == ANE_WEIGHT_LUT ? s.bits : nibbles ? 4 : 8;
}

/* Stores codes of some bits; `at` is a multiple of 8. */
static void put_codes(uint8_t *payload, int64_t at, int bits, const uint8_t *codes, int64_t n) {
  uint8_t *to = payload + at / 8 * bits;
  unsigned held = 0, mask = (1u << bits) - 1;
  int count = 0;
  for (int64_t i = 0; i < n; i++) {
    held |= (codes[i] & mask) << count;
    for (count += bits; count >= 8; count -= 8, held >>= 8) *to++ = (uint8_t)held;
  }
  if (count) *to = (uint8_t)held;
}

static unsigned code_at(const uint8_t *payload, int64_t i, int bits) {
  int64_t bit = i * bits;
  unsigned v = payload[bit / 8];
  if ((bit & 7) + bits > 8) v |= (unsigned)payload[bit / 8 + 1] << 8;
  return v >> (bit & 7) & ((1u << bits) - 1);
}

static void encode_one(struct encoding *k, int64_t row, int n, const float *x, uint8_t *codes, void *scratch) {
  struct ane_weights *w = k->w;
  struct ane_weight_spec s = w->spec;
  int64_t at = row * w->cols;
  uint16_t same[ANE_WEIGHT_TILE], table[ANE_WEIGHT_LUT_MAX];
  if (s.scheme == ANE_WEIGHT_FP16) {
    ane_encoder(ANE_F16)(x, w->payload + 2 * at, (uint64_t)(n * w->cols));
    return;
  }
  struct ane_weight_tile t = {codes, same, NULL, table};
  if (s.scheme == ANE_WEIGHT_INT8_CHANNEL) t.scales = w->scales + row;
  if (ane_weight_has_blocks(s)) t.scales = w->scales + at / s.size;
  if (w->offsets) t.offsets = w->offsets + at / s.size;
  if (s.scheme == ANE_WEIGHT_LUT && s.size) t.lut = w->lut + (row / s.size << s.bits);
  ane_weight_encode_tile(k->fit, x, n, w->cols, k->importance, scratch, &t);
  if (code_bits(s) < 8)
    put_codes(w->payload, at, code_bits(s), codes, n * w->cols);
  else
    memcpy(w->payload + at, codes, (size_t)(n * w->cols));
}

/* The index of the first of n numbers that is too large for fp16, in which packages compute; -1: none. */
static int64_t beyond_half(const float *x, int64_t n) {
  if (largest(x, n) < 65520.0f) return -1;
  int64_t i = 0;
  while (fabsf(x[i]) < 65520.0f) i++;
  return i;
}

static void encode_tiles(void *arg, int thread, int threads) {
  struct encoding *k = arg;
  struct ane_weights *w = k->w;
  (void)threads;
  size_t tile = (size_t)ANE_WEIGHT_TILE * (size_t)w->cols;
  float *x = k->rows + (size_t)thread * 2 * tile, *back = x + tile;
  for (int64_t i; (i = atomic_fetch_add(&k->next, 1)) * ANE_WEIGHT_TILE < w->rows;) {
    int64_t row = i * ANE_WEIGHT_TILE, n = ANE_MIN(w->rows - row, ANE_WEIGHT_TILE);
    k->src->read(k->src->arg, k->from + row, n, x);
    encode_one(k, row, (int)n, x, k->codes + (size_t)thread * tile, k->scratch + (size_t)thread * k->scratch_bytes);
    ane_weights_decode(w, row, n, back);
    k->errors[i] = ane_measure(x, back, n * w->cols);
    if (k->errors[i].bad < 0) k->errors[i].bad = beyond_half(x, n * w->cols);
    if (k->errors[i].bad >= 0) k->errors[i].bad = k->errors[i].bad / w->cols + k->from + row;
  }
}

static ane_status add_errors(const struct encoding *k, int64_t tiles, struct ane_error *err) {
  const struct ane_weights *w = k->w;
  for (int64_t i = 0; i < tiles; i++) {
    const struct ane_measure *e = &k->errors[i];
    if (e->bad >= 0)
      return ane_fail(err, ANE_INVALID, "row %" PRId64 " has an element that is not finite, or beyond fp16", e->bad);
    ane_recode_add(&k->w->error, e, (uint64_t)(ANE_MIN(w->rows - i * ANE_WEIGHT_TILE, ANE_WEIGHT_TILE) * w->cols));
  }
  return ANE_OK;
}

static ane_status check_slice(const struct ane_weight_rows *src, struct ane_weight_spec s, int64_t from, int64_t to,
                              struct ane_error *err) {
  if (from < 0 || to <= from || to > src->rows)
    return ane_fail(err, ANE_RANGE, "rows %" PRId64 " .. %" PRId64 " of %" PRId64, from, to, src->rows);
  int64_t table = s.scheme == ANE_WEIGHT_LUT && s.size ? s.size : 1;
  if (from % table || (to % table && to != src->rows))
    return ane_fail(err, ANE_RANGE, "rows %" PRId64 " .. %" PRId64 " are not whole tables of %" PRId64 " rows", from, to, table);
  return ANE_OK;
}

/* Allocates the parts of the result and sets what all rows share. */
static bool make_parts(struct ane_weights *w, const struct ane_weight_fit *fit) {
  w->payload = ane_malloc((size_t)w->sizes.payload);
  if (w->sizes.scales) w->scales = ane_malloc((size_t)w->sizes.scales * sizeof *w->scales);
  if (w->sizes.offsets) w->offsets = ane_malloc((size_t)w->sizes.offsets * sizeof *w->offsets);
  if (w->sizes.lut) w->lut = ane_malloc((size_t)w->sizes.lut * sizeof *w->lut);
  if (!w->payload || (w->sizes.scales && !w->scales) || (w->sizes.offsets && !w->offsets) || (w->sizes.lut && !w->lut))
    return false;
  if (w->spec.scheme == ANE_WEIGHT_INT8) w->scales[0] = ane_f32_f16(fit->scale);
  if (w->spec.scheme == ANE_WEIGHT_LUT && !w->spec.size) memcpy(w->lut, fit->lut, sizeof *w->lut << w->spec.bits);
  return true;
}

ane_status ane_weights_encode(struct ane_weights *out, struct ane_pool *pool, const struct ane_weight_rows *src,
                              const struct ane_weight_fit *fit, int64_t from, int64_t to, const float *importance,
                              struct ane_error *err) {
  *out = (struct ane_weights){.spec = fit->spec};
  if (to < 0) to = src->rows;
  ane_status st = check_slice(src, fit->spec, from, to, err);
  if (st) return st;
  out->rows = to - from, out->cols = src->cols;
  size_t threads = (size_t)ane_pool_threads(pool), tile;
  int64_t tiles = (out->rows + ANE_WEIGHT_TILE - 1) / ANE_WEIGHT_TILE;
  if (!ane_weight_sizes(fit->spec, out->rows, out->cols, &out->sizes) ||
      !ane_mul_size(threads * ANE_WEIGHT_TILE * 2 * sizeof(float), (size_t)out->cols, &tile))
    return ane_fail(err, ANE_SHAPE, "its size overflows");
  struct encoding k = {.w = out, .src = src, .fit = fit, .importance = importance, .from = from};
  k.scratch_bytes = ane_align_up(ane_weight_tile_scratch(fit, out->cols), 64);
  k.rows = ane_malloc(tile);
  k.codes = ane_malloc(tile / 8);
  k.scratch = ane_malloc(threads * k.scratch_bytes);
  k.errors = ane_calloc((size_t)tiles, sizeof *k.errors);
  if (!k.rows || !k.codes || !k.scratch || !k.errors || !make_parts(out, fit))
    st = ane_fail(err, ANE_NOMEM, "not enough memory for %" PRIu64 " bytes of weights", out->sizes.bytes);
  if (!st) {
    ane_pool_run(pool, encode_tiles, &k);
    st = add_errors(&k, tiles, err);
  }
  ane_free(k.rows);
  ane_free(k.codes);
  ane_free(k.scratch);
  ane_free(k.errors);
  return st;
}

void ane_weights_free(struct ane_weights *w) {
  ane_free(w->payload);
  ane_free(w->scales);
  ane_free(w->offsets);
  ane_free(w->lut);
  *w = (struct ane_weights){0};
}

/* ---- Decoding ------------------------------------------------------------------------------------------------------*/

void ane_weights_decode(const struct ane_weights *w, int64_t from, int64_t n, float *dst) {
  struct ane_weight_spec s = w->spec;
  float lut[ANE_WEIGHT_LUT_MAX];
  for (int64_t r = from; r < from + n; r++, dst += w->cols) {
    int64_t at = r * w->cols;
    switch (s.scheme) {
      case ANE_WEIGHT_FP16: ane_decoder(ANE_F16)(w->payload + 2 * at, dst, (uint64_t)w->cols); break;
      case ANE_WEIGHT_INT8:
      case ANE_WEIGHT_INT8_CHANNEL: {
        float scale = ane_f16_f32(w->scales[s.scheme == ANE_WEIGHT_INT8 ? 0 : r]);
        for (int64_t c = 0; c < w->cols; c++) dst[c] = scale * (float)(int8_t)w->payload[at + c];
        break;
      }
      case ANE_WEIGHT_INT8_BLOCK:
        for (int64_t c = 0; c < w->cols; c++)
          dst[c] = ane_f16_f32(w->scales[(at + c) / s.size]) * (float)(int8_t)w->payload[at + c];
        break;
      case ANE_WEIGHT_INT4_BLOCK:
        for (int64_t c = 0; c < w->cols; c++)
          dst[c] = ane_f16_f32(w->scales[(at + c) / s.size]) * (float)((int)(code_at(w->payload, at + c, 4) ^ 8) - 8);
        break;
      case ANE_WEIGHT_UINT4_BLOCK:
        for (int64_t c = 0; c < w->cols; c++) {
          int64_t b = (at + c) / s.size;
          dst[c] = ane_f16_f32(w->scales[b]) * ((float)code_at(w->payload, at + c, 4) - ane_f16_f32(w->offsets[b]));
        }
        break;
      case ANE_WEIGHT_LUT:
        for (int i = 0; i < 1 << s.bits; i++) lut[i] = ane_f16_f32(w->lut[((s.size ? r / s.size : 0) << s.bits) + i]);
        for (int64_t c = 0; c < w->cols; c++) dst[c] = lut[code_at(w->payload, at + c, s.bits)];
        break;
    }
  }
}
