/* Rows of one type to rows of another: decoded, changed, encoded and measured on all threads, a block of rows at a time. */
#include "quant/compensate.h"
#include "quant/weight_schemes.h"

#include "base/alloc.h"
#include "tensor/rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { BLOCK_ELEMENTS = 1 << 20, COPY_BYTES = 1 << 22 };

struct recoding {
  const struct ane_recode *r;
  struct ane_tensor src; /* r->src as a matrix: stacked matrices are one below the other */
  int64_t to;
  int64_t cols, first, rows; /* the block: rows [first, first + rows) of the output */
  size_t src_row, dst_row;   /* bytes */
  int64_t room;              /* rows of a block */
  _Atomic int64_t next;
  int64_t tile;     /* rows that a thread takes at a time */
  float *plain;     /* threads x 2 x tile x cols: rows, and what their bytes give back */
  uint8_t *scratch; /* threads x scratch_bytes, of compensated rounding; NULL: there is none */
  size_t scratch_bytes;
  uint8_t *gathered;          /* threads x src_row, for tensors that are not stored row by row */
  uint8_t *out;               /* room x dst_row */
  struct ane_measure *errors; /* room; summed up in the order of rows, so that a report does not depend on the threads */
};

/* The source row that becomes row i. */
static int64_t source_row(const struct ane_recode *r, int64_t i) {
  i += r->from;
  if (!r->pair) return i;
  int64_t at = i % r->pair;
  return i - at + at % 2 * (r->pair / 2) + at / 2;
}

static const uint8_t *row_bytes(const struct recoding *k, int64_t i, uint8_t *gathered) {
  return ane_tensor_rows(&k->src, source_row(k->r, i), 1, k->src_row, gathered);
}

struct ane_measure ane_measure(const float *want, const float *got, int64_t n) {
  enum { LANES = 8 };
  double max[LANES] = {0}, error[LANES] = {0}, signal[LANES] = {0};
  struct ane_measure m = {0, 0, 0, -1};
  for (int64_t i = 0; i < n; i += LANES)
    for (int j = 0; j < ANE_MIN(n - i, LANES); j++) {
      double x = (double)want[i + j], d = fabs(x - (double)got[i + j]);
      max[j] = d > max[j] ? d : max[j];
      error[j] += d * d;
      signal[j] += x * x;
    }
  for (int j = 0; j < LANES; j++) m.max_abs = fmax(m.max_abs, max[j]), m.error += error[j], m.signal += signal[j];
  for (int64_t i = 0; !isfinite(m.error) && i < n; i++) { /* bad: a number of the source that is not finite, if any */
    bool at_fault = m.bad < 0 ? !isfinite(want[i] - got[i]) : isfinite(want[m.bad]) && !isfinite(want[i]);
    if (at_fault) m.bad = i;
  }
  return m;
}

/* The scratch memory of a thread: that of compensated rounding or of the scheme, then codes, scales, offsets and tables of a
 * tile. */
static size_t scratch_layout(const struct recoding *k, size_t *codes) {
  const struct ane_recode *r = k->r;
  size_t tile = (size_t)(ANE_WEIGHT_TILE * k->cols);
  *codes = 0;
  if (!r->fit) return r->factor ? ane_align_up(ane_compensate_scratch(r->factor), 64) : 0;
  *codes = ane_align_up(ane_weight_tile_scratch(r->fit, k->cols), 64);
  return *codes + ane_align_up(tile + 4 * (tile / 32 + ANE_WEIGHT_TILE) + 2 * 16 * ANE_WEIGHT_TILE, 64);
}

/* Encodes rows [n][cols] by the scheme and writes them to `out` in its container. back: receives the decoded rows. */
static void contain_rows(const struct recoding *k, const float *rows, int n, float *back, uint8_t *scratch, uint8_t *out) {
  size_t at, tile = (size_t)(ANE_WEIGHT_TILE * k->cols);
  scratch_layout(k, &at);
  uint8_t *codes = scratch + at;
  uint16_t *scales = (uint16_t *)(void *)(codes + tile), *offsets = scales + tile / 32 + ANE_WEIGHT_TILE;
  struct ane_weight_tile t = {codes, scales, offsets, offsets + tile / 32 + ANE_WEIGHT_TILE};
  ane_weight_encode_tile(k->r->fit, rows, n, k->cols, k->r->importance, scratch, &t);
  ane_weight_tile_contain(k->r->fit, &t, n, k->cols, back, out, k->dst_row);
}

static void recode_rows(void *arg, int thread, int threads) {
  struct recoding *k = arg;
  const struct ane_recode *r = k->r;
  (void)threads;
  float *row = k->plain + (size_t)thread * 2 * (size_t)(k->tile * k->cols), *back = row + k->tile * k->cols;
  uint8_t *gathered = k->gathered ? k->gathered + (size_t)thread * k->src_row : NULL;
  for (int64_t i; (i = atomic_fetch_add(&k->next, 1) * k->tile) < k->rows;) {
    uint8_t *out = k->out + (size_t)i * k->dst_row;
    int64_t n = ANE_MIN(k->tile, k->rows - i);
    for (int64_t j = 0; j < n; j++)
      ane_decoder(r->src->dtype)(row_bytes(k, k->first + i + j, gathered), row + j * k->cols, (uint64_t)k->cols);
    for (int64_t c = 0; r->add != 0 && c < n * k->cols; c++) row[c] += r->add;
    for (int64_t c = 0; r->by != 0 && c < n * k->cols; c++) row[c] *= r->by;
    uint8_t *scratch = k->scratch + (size_t)thread * k->scratch_bytes;
    if (r->fit)
      contain_rows(k, row, (int)n, back, scratch, out);
    else if (r->factor)
      ane_compensate_rows(r->factor, r->dtype, row, (int)n, out, k->dst_row, scratch);
    else
      ane_encode(r->dtype, row, r->importance, out, (uint64_t)k->cols);
    ane_decoder(r->dtype)(out, back, (uint64_t)(n * k->cols));
    for (int64_t j = 0; j < n; j++) k->errors[i + j] = ane_measure(row + j * k->cols, back + j * k->cols, k->cols);
  }
}

/* For the same type without a change: copies the bytes, and checks that they are finite, because one NaN in a norm or scale
 * spoils all results. */
static void copy_rows(struct recoding *k) {
  for (int64_t i = 0; i < k->rows; i++) {
    uint8_t *out = k->out + (size_t)i * k->dst_row;
    const uint8_t *row = row_bytes(k, k->first + i, out);
    if (row != out) memcpy(out, row, k->dst_row);
    k->errors[i] = (struct ane_measure){0, 0, 0, ane_find_not_finite(k->r->dtype, out, (uint64_t)k->cols)};
  }
}

static ane_status add_errors(const struct recoding *k, struct ane_recode_error *total, struct ane_error *err) {
  for (int64_t i = 0; i < k->rows; i++) {
    const struct ane_measure *e = &k->errors[i];
    if (e->bad >= 0)
      return ane_fail(err, ANE_INVALID, "element %" PRId64 " of row %" PRId64 " is not finite, or too large for %s", e->bad,
                      source_row(k->r, k->first + i), ane_dtype_info(k->r->dtype)->name);
    ane_recode_add(total, e, (uint64_t)k->cols);
  }
  return ANE_OK;
}

static bool same_bytes(const struct ane_recode *r) { return r->src->dtype == r->dtype && r->add == 0 && r->by == 0 && !r->fit; }

static ane_status recode_blocks(struct recoding *k, struct ane_pool *pool, ane_recode_sink sink, void *arg,
                                struct ane_recode_error *total, struct ane_error *err) {
  int64_t rows = k->to - k->r->from;
  for (k->first = 0; k->first < rows; k->first += k->rows) {
    k->rows = ANE_MIN(k->room, rows - k->first);
    atomic_store(&k->next, 0);
    if (same_bytes(k->r))
      copy_rows(k);
    else
      ane_pool_run(pool, recode_rows, k);
    ane_status st = add_errors(k, total, err);
    if (!st) st = sink(arg, k->out, (size_t)k->rows * k->dst_row, err);
    if (st) return st;
  }
  return ANE_OK;
}

/* Rows and columns. 1-D tensors and scalars are one row, unless their elements are permuted. */
static bool matrix_of(const struct ane_recode *r, int64_t *rows, int64_t *cols) {
  const struct ane_tensor *t = r->src;
  uint64_t count;
  if (!ane_shape_count(&t->shape, &count) || count > INT64_MAX) return false;
  *cols = t->shape.rank > (r->pair ? 1 : 0) ? t->shape.dim[t->shape.rank - 1] : 1;
  *rows = *cols ? (int64_t)count / *cols : 0;
  return true;
}

static ane_status check(const struct ane_recode *r, struct recoding *k, struct ane_error *err) {
  int64_t rows;
  const struct ane_dtype_info *from = ane_dtype_info(r->src->dtype), *to = ane_dtype_info(r->dtype);
  uint64_t src_row, dst_row;
  if (!matrix_of(r, &rows, &k->cols)) return ane_fail(err, ANE_SHAPE, "its size overflows");
  if (!same_bytes(r) && !ane_decoder(r->src->dtype)) return ane_fail(err, ANE_UNSUPPORTED, "%s cannot be decoded", from->name);
  int32_t group = 1, sub;
  bool encodes = r->factor ? ane_compensate_groups(r->dtype, &group, &sub) : ane_encoder(r->dtype) != NULL;
  if (!same_bytes(r) && !encodes) return ane_fail(err, ANE_UNSUPPORTED, "%s has no encoder", to->name);
  if (!ane_dtype_bytes(r->src->dtype, (uint64_t)k->cols, &src_row) || !ane_dtype_bytes(r->dtype, (uint64_t)k->cols, &dst_row))
    return ane_fail(err, ANE_SHAPE, "a row of %" PRId64 " is not whole blocks of %s and %s", k->cols, from->name, to->name);
  if (r->factor && (r->factor->cols != k->cols || r->factor->group != group))
    return ane_fail(err, ANE_SHAPE,
                    "the factor has %" PRId64 " columns in groups of %d, but must have %" PRId64 " in groups of %d",
                    r->factor->cols, (int)r->factor->group, k->cols, (int)group);
  k->tile = r->fit ? ANE_WEIGHT_TILE : r->factor && !same_bytes(r) ? ANE_COMPENSATE_ROWS : 1;
  if (r->fit && ane_weight_container(r->fit->spec, k->cols) != r->dtype)
    return ane_fail(err, ANE_INVALID, "%s is not the container of %s", to->name, ane_weight_spec_name(r->fit->spec));
  k->src = *r->src;
  k->src.shape = (struct ane_shape){2, {rows, k->cols}};
  k->to = r->to < 0 ? rows : r->to;
  if (r->from < 0 || k->to < r->from || k->to > rows)
    return ane_fail(err, ANE_RANGE, "rows %" PRId64 " .. %" PRId64 " of %" PRId64, r->from, k->to, rows);
  if (r->pair < 0 || r->pair % 2 || (r->pair && (r->from % r->pair || k->to % r->pair)))
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " rows are not heads of %" PRId64, k->to - r->from, r->pair);
  k->src_row = (size_t)src_row, k->dst_row = (size_t)dst_row;
  return ANE_OK;
}

ane_status ane_recode_rows(struct ane_pool *pool, const struct ane_recode *r, ane_recode_sink sink, void *arg,
                           struct ane_recode_error *total, struct ane_error *err) {
  struct recoding k = {.r = r};
  ane_status st = check(r, &k, err);
  if (st || r->from == k.to) return st;
  k.room = ANE_MAX(1, same_bytes(r) ? COPY_BYTES / (int64_t)ANE_MAX(k.dst_row, (size_t)1) : BLOCK_ELEMENTS / k.cols);
  k.room = (k.room + k.tile - 1) / k.tile * k.tile;
  k.room = ANE_MIN(k.room, k.to - r->from);
  size_t threads = (size_t)ane_pool_threads(pool), floats, bytes, codes;
  if (!ane_mul_size(threads * 2 * sizeof(float) * (size_t)k.tile, (size_t)k.cols, &floats) ||
      !ane_mul_size((size_t)k.room, k.dst_row, &bytes))
    return ane_fail(err, ANE_SHAPE, "its size overflows");
  k.plain = ane_malloc(same_bytes(r) ? 0 : floats);
  k.gathered = ane_malloc(r->src->transposed || r->src->gather ? threads * k.src_row : 0);
  k.out = ane_malloc(bytes);
  k.scratch_bytes = k.tile > 1 ? scratch_layout(&k, &codes) : 0;
  k.scratch = ane_malloc(threads * k.scratch_bytes);
  k.errors = ane_calloc((size_t)k.room, sizeof *k.errors);
  if (!k.plain || !k.gathered || !k.scratch || !k.out || !k.errors)
    st = ane_fail(err, ANE_NOMEM, "not enough memory for a block of rows");
  else
    st = recode_blocks(&k, pool, sink, arg, total, err);
  ane_free(k.plain);
  ane_free(k.gathered);
  ane_free(k.out);
  ane_free(k.scratch);
  ane_free(k.errors);
  return st;
}
