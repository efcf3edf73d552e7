/* Compensated rounding of rows (compensate.h), 32 at a time: each lane of the vectors has one row. */
#include "quant/compensate.h"
#include "quant/exact_line.h"
#include "quant/rounding.h"
#include "quant/wide.h"

#include "tensor/half.h"

#include <math.h>

enum { LANES = ANE_COMPENSATE_ROWS, PARTS = LANES / 8, GROUP_MAX = 256, PART_MAX = 64, LEVELS_MAX = ANE_WEIGHT_LUT_MAX };

/* One number per row, in parts of a vector. */
typedef struct {
  ane_f8x h[PARTS];
} lanes;

/* The working memory of a thread. Columns are in the order of ane_factor (positions). */
struct rows {
  const struct ane_factor *f;
  lanes *w, *e;                        /* [cols] weights; errors w - v of rounded columns */
  lanes *code, *scale, *offset;        /* of sweeps: codes [cols], lines by group */
  lanes base[GROUP_MAX];               /* of the group: w plus the compensation for all columns before the current part */
  lanes target[GROUP_MAX];             /* of the group: targets if no column of the group is rounded */
  lanes trial[PART_MAX], q[GROUP_MAX]; /* errors of a candidate; codes of the group */
  lanes value[LEVELS_MAX];             /* of tables: T by code */
  struct ane_block_params params[LANES];
  float x[GROUP_MAX], weight[GROUP_MAX]; /* of one row */
  uint8_t codes[GROUP_MAX];
  int top; /* of codes */
  bool table;
};

static inline float *lane(lanes *v, int l) { return (float *)v + l; }

size_t ane_compensate_scratch(const struct ane_factor *f) {
  return sizeof(struct rows) + (f->drift ? 6 : 5) * (size_t)f->cols * sizeof(lanes) + 2 * 64;
}

/* ---- Vectors -----------------------------------------------------------------------------------------------------------*/

#define ALL(v) ((float)(v) - (ane_f8x){0})
#define PICK(mask, a, b) ((ane_f8x)(((mask) & (ane_i8x)(a)) | (~(mask) & (ane_i8x)(b))))

/* R[i][j] / R[j][j] for i = from, from + 1, ..., 4 floats apart. */
static inline const float *ratios(const struct ane_factor *f, int64_t from, int64_t j) {
  return f->ratio + ane_factor_strip(j / ANE_STRIP) + ANE_STRIP * from + j % ANE_STRIP;
}

/* Adds to base of positions [at, at + n) the compensation for the errors of positions [from, to). at is a multiple of 4. first:
 * base is set to w first. */
static void gather_errors(struct rows *k, int64_t from, int64_t to, int64_t at, int64_t n, lanes *base, bool first) {
  for (int64_t j = 0; j < n; j += ANE_STRIP) {
    lanes acc[ANE_STRIP];
    const lanes *start = first ? k->w + at + j : base + j;
    int64_t width = ANE_MIN(n - j, ANE_STRIP);
    memset(acc, 0, sizeof acc);
    memcpy(acc, start, (size_t)width * sizeof *start);
    ane_strip((float *)acc, ANE_PANEL, ratios(k->f, from, at + j), ANE_STRIP, (const float *)(k->e + from), to - from);
    memcpy(base + j, acc, (size_t)width * sizeof *base);
  }
}

/* Computes the targets of positions [at, at + n) from base: each column compensates the differences between base and target of
 * the columns before it. */
static ANE_WIDE void free_targets(struct rows *k, int64_t at, int64_t n) {
  lanes *e = k->e + at; /* these columns have no errors yet: the memory holds the differences */
  for (int64_t j = 0; j < n; j++) {
    lanes t = k->base[j];
    const float *r = ratios(k->f, at, at + j);
    for (int64_t i = 0; i < j; i++, r += ANE_STRIP)
      for (int h = 0; h < PARTS; h++) t.h[h] += *r * e[i].h[h];
    k->target[j] = t;
    for (int h = 0; h < PARTS; h++) e[j].h[h] = k->w[at + j].h[h] - t.h[h];
  }
}

/* Rounds *from, in units of the scale, to the nearest of the values T: sets *code, and *v to the value. Without a table the
 * values are the codes minus `half`. h: the part of the lanes. Vectors are passed by pointer, because the ABI of vector arguments
 * depends on AVX. */
ANE_ALWAYS_INLINE void nearest(const struct rows *k, int h, int half, const ane_f8x *from, ane_f8x *code, ane_f8x *v) {
  const ane_f8x magic = ALL(0x1.8p23f), zero = ALL(0), one = ALL(1), top = ALL((float)k->top), shift = ALL((float)half);
  ane_f8x u = *from;
  if (!k->table) {
    u += shift;
    u = PICK(u > zero, u, zero);
    u = PICK(u < top, u, top);
    *code = (u + magic) - magic, *v = *code - shift;
    return;
  }
  *code = zero, *v = k->value[0].h[h];
  for (int i = 0; i < k->top; i++) {
    ane_i8x above = u > 0.5f * (k->value[i].h[h] + k->value[i + 1].h[h]);
    *code = PICK(above, *code + one, *code), *v = PICK(above, k->value[i + 1].h[h], *v);
  }
}

/* Rounds positions [at, at + n) to values scale * T + offset. Writes errors to e, codes to q (unless NULL), and the loss. */
static ANE_WIDE void decide(const struct rows *k, int64_t at, int64_t n, const lanes *base, const lanes *scale,
                            const lanes *offset, lanes *e, lanes *q, lanes *loss) {
  const ane_f8x zero = ALL(0), one = ALL(1);
  lanes inv, sum = {{zero}};
  for (int h = 0; h < PARTS; h++) {
    ane_i8x none = scale->h[h] == zero;
    inv.h[h] = PICK(none, zero, one / PICK(none, one, scale->h[h]));
  }
  for (int64_t j = 0; j < n; j++) {
    lanes t = base[j];
    const float *r = ratios(k->f, at, at + j);
    for (int64_t i = 0; i < j; i++, r += ANE_STRIP)
      for (int h = 0; h < PARTS; h++) t.h[h] += *r * e[i].h[h];
    for (int h = 0; h < PARTS; h++) {
      const ane_f8x u = (t.h[h] - offset->h[h]) * inv.h[h];
      ane_f8x code, v;
      nearest(k, h, 0, &u, &code, &v);
      v = v * scale->h[h] + offset->h[h];
      e[j].h[h] = k->w[at + j].h[h] - v;
      ane_f8x left = t.h[h] - v;
      sum.h[h] += k->f->weight[at + j] * left * left;
      if (q) q[j].h[h] = code;
    }
  }
  *loss = sum;
}

/* ---- Drift -------------------------------------------------------------------------------------------------------------*/

/* Sets e [cols] to w D. */
static void apply_drift(struct rows *k) {
  for (int64_t j = 0; j < k->f->cols; j += ANE_STRIP) {
    lanes acc[ANE_STRIP];
    memset(acc, 0, sizeof acc);
    ane_strip((float *)acc, ANE_PANEL, k->f->drift + j * k->f->cols, ANE_STRIP, (const float *)k->w, k->f->cols);
    memcpy(k->e + j, acc, (size_t)ANE_MIN(k->f->cols - j, ANE_STRIP) * sizeof *k->e);
  }
}

/* With S[i][j] = R[i][j] / R[j][j], H is S diag(weight) S'. Solves z S' = e in place, from the last column. */
static ANE_WIDE void solve_back(struct rows *k) {
  for (int64_t j = k->f->cols - 1; j > 0; j--) {
    const lanes z = k->e[j];
    const float *r = ratios(k->f, 0, j);
    for (int64_t i = 0; i < j; i++, r += ANE_STRIP)
      for (int h = 0; h < PARTS; h++) k->e[i].h[h] -= *r * z.h[h];
  }
}

/* Solves u S diag(weight) = e in place, from the first column; e becomes -u, and u is added to w. */
static ANE_WIDE void solve_forward(struct rows *k) {
  for (int64_t at = 0; at < k->f->cols; at += ANE_STRIP) {
    int64_t n = ANE_MIN(k->f->cols - at, ANE_STRIP);
    for (int64_t j = at; j < at + n; j++)
      for (int h = 0; h < PARTS; h++) k->e[j].h[h] /= k->f->weight[j];
    lanes sum[ANE_STRIP];
    memset(sum, 0, sizeof sum);
    ane_strip((float *)sum, ANE_PANEL, ratios(k->f, 0, at), ANE_STRIP, (const float *)k->e, at);
    for (int64_t j = at; j < at + n; j++) {
      const float *r = ratios(k->f, at, j);
      for (int h = 0; h < PARTS; h++) {
        ane_f8x u = k->e[j].h[h] + sum[j - at].h[h];
        for (int64_t i = at; i < j; i++) u += r[ANE_STRIP * (i - at)] * k->e[i].h[h];
        k->e[j].h[h] = -u;
        k->w[j].h[h] += u;
      }
    }
  }
}

/* Replaces w by w + w D H^-1. */
static void follow_drift(struct rows *k) {
  apply_drift(k);
  solve_back(k);
  solve_forward(k);
}

/* ---- Rows in and out ---------------------------------------------------------------------------------------------------*/

/* Lays out the memory and loads the rows. Lanes without a row are zero. */
static struct rows *begin(const struct ane_factor *f, const float *rows, int n, void *scratch) {
  struct rows *k = (struct rows *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
  k->f = f;
  k->w = (lanes *)(((uintptr_t)(k + 1) + 63) & ~(uintptr_t)63);
  k->e = k->w + f->cols;
  k->code = k->e + f->cols, k->scale = k->code + f->cols, k->offset = k->scale + f->cols;
  memset(k->w, 0, (size_t)f->cols * sizeof *k->w);
  for (int64_t p = 0; p < f->cols; p++)
    for (int l = 0; l < n; l++) *lane(k->w + p, l) = rows[l * f->cols + f->order[p]];
  if (f->drift) follow_drift(k);
  return k;
}

/* The rows to round, [n][cols]: those of the caller or, with a drift, the corrected ones. */
static const float *rows_of(struct rows *k, const float *rows, int n) {
  float *to = (float *)(k->offset + k->f->cols);
  if (!k->f->drift) return rows;
  for (int l = 0; l < n; l++)
    for (int64_t p = 0; p < k->f->cols; p++) to[l * k->f->cols + k->f->order[p]] = *lane(k->w + p, l);
  return to;
}

static void set_table(struct rows *k, const struct ane_rounding *rounding) {
  k->top = rounding->top;
  k->table = rounding->table != NULL;
  for (int i = 0; k->table && i <= rounding->top; i++)
    for (int l = 0; l < LANES; l++) *lane(&k->value[i], l) = (float)rounding->table[i];
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------------*/

/* The index, within its group, of the column that stands at position `at + i` of the order. */
static int column_in_group(const struct rows *k, int64_t at, int i, int group) { return (int)(k->f->order[at + i] % group); }

/* Chooses the parameters of the group at `at` for lane l from the targets, with the columns in their own order. */
static void fit_lane(struct rows *k, const struct ane_rounding *rounding, int64_t at, int l) {
  for (int s = 0; s < rounding->group; s += rounding->sub) {
    int to = column_in_group(k, at, s, rounding->group) / rounding->sub * rounding->sub;
    for (int i = 0; i < rounding->sub; i++) {
      k->x[to + i] = *lane(&k->target[s + i], l);
      k->weight[to + i] = k->f->weight[at + s + i];
    }
  }
  rounding->fit(rounding, k->x, k->weight, &k->params[l]);
}

static void lines(struct rows *k, const struct ane_rounding *rounding, int part, int candidate, int n, lanes *scale,
                  lanes *offset) {
  memset(scale, 0, sizeof *scale);
  memset(offset, 0, sizeof *offset);
  for (int l = 0; l < n; l++) {
    struct ane_line line = rounding->line(rounding, &k->params[l], part, candidate);
    *lane(scale, l) = line.scale, *lane(offset, l) = line.offset;
  }
}

/* Rounds the part at group + s with, for each lane, the candidate of the least loss. */
static void decide_part(struct rows *k, const struct ane_rounding *rounding, int64_t at, int s, int n) {
  int part = column_in_group(k, at, s, rounding->group) / rounding->sub;
  lanes scale, offset, loss, best;
  int kept[LANES] = {0};
  /* analyser: s is an index in a group, below GROUP_MAX. */
  if (s > 0) gather_errors(k, at, at + s, at + s, rounding->sub, k->base + s, false);
  for (int c = 0; rounding->candidates > 1 && c < rounding->candidates; c++) {
    lines(k, rounding, part, c, n, &scale, &offset);
    decide(k, at + s, rounding->sub, k->base + s, &scale, &offset, k->trial, NULL, &loss);
    for (int l = 0; l < n; l++) {
      if (c > 0 && !(*lane(&loss, l) < *lane(&best, l))) continue;
      *lane(&best, l) = *lane(&loss, l), kept[l] = c;
    }
  }
  for (int l = 0; l < n; l++) rounding->keep(rounding, &k->params[l], part, kept[l]);
  lines(k, rounding, part, 0, n, &scale, &offset);
  decide(k, at + s, rounding->sub, k->base + s, &scale, &offset, k->e + at + s, k->q + s, &loss);
}

/* Rounds the group at `at`. */
static void decide_group(struct rows *k, const struct ane_rounding *rounding, int64_t at, int n) {
  gather_errors(k, 0, at, at, rounding->group, k->base, true);
  free_targets(k, at, rounding->group);
  for (int l = 0; l < n; l++) fit_lane(k, rounding, at, l);
  for (int s = 0; s < rounding->group; s += rounding->sub) decide_part(k, rounding, at, s, n);
}

/* ---- Sweeps ------------------------------------------------------------------------------------------------------------*/

/* After all columns are rounded, sweeps change one number at a time to the value that gives the least error E while all others
 * stay (coordinate descent: QuantEase, Behdin et al. 2023, arXiv 2309.01885): the scale of a block, then its codes. The gradient
 * of a column is g = (w - v) H. */

enum { SWEEPS = 3, SWEPT_TABLE = 15 }; /* rounds; the largest code of tables that are swept */

static inline float moment(const struct ane_factor *f, int64_t i, int64_t j) {
  return f->moment[(j / ANE_STRIP * f->cols + i) * ANE_STRIP + j % ANE_STRIP];
}

/* Computes the gradients g [n] of positions [at, at + n). */
static void gradients(const struct rows *k, int64_t at, int64_t n, lanes *g) {
  for (int64_t j = 0; j < n; j += ANE_STRIP) {
    lanes acc[ANE_STRIP];
    memset(acc, 0, sizeof acc);
    ane_strip((float *)acc, ANE_PANEL, k->f->moment + (at + j) * k->f->cols, ANE_STRIP, (const float *)k->e, k->f->cols);
    memcpy(g + j, acc, (size_t)ANE_MIN(n - j, ANE_STRIP) * sizeof *g);
  }
}

/* Sets the values T of codes; without a table the value is the code minus `half`. */
static ANE_WIDE void values_of(const struct rows *k, const lanes *code, int64_t n, int half, lanes *value) {
  for (int64_t j = 0; j < n; j++)
    for (int h = 0; h < PARTS; h++) {
      ane_f8x c = code[j].h[h], v = c - ALL((float)half);
      if (k->table) v = k->value[0].h[h];
      for (int i = 1; k->table && i <= k->top; i++) {
        ane_i8x is = c == ALL((float)i);
        v = PICK(is, k->value[i].h[h], v);
      }
      value[j].h[h] = v;
    }
}

/* Moves the scales of a block to the best ones for its codes. */
static ANE_WIDE void sweep_scale(struct rows *k, int64_t at, int64_t n, const lanes *value, lanes *g, lanes *scale) {
  const ane_f8x zero = ALL(0);
  lanes along = {{zero}}, across = {{zero}}, step, hv[PART_MAX];
  for (int64_t j = 0; j < n; j++) {
    hv[j] = (lanes){{zero}};
    for (int64_t i = 0; i < n; i++)
      for (int h = 0; h < PARTS; h++) hv[j].h[h] += moment(k->f, at + i, at + j) * value[i].h[h];
    for (int h = 0; h < PARTS; h++) along.h[h] += g[j].h[h] * value[j].h[h], across.h[h] += hv[j].h[h] * value[j].h[h];
  }
  for (int l = 0; l < LANES; l++) {
    float old = *lane(scale, l), a = *lane(&along, l), b = *lane(&across, l), to = b > 0 ? old + a / b : old;
    to = ane_f16_f32(ane_f32_f16(ANE_MAX(ANE_MIN(to, 65504.0f), -65504.0f)));
    float d = to - old;
    bool better = old != 0 && to * old > 0 && d * (d * b - 2 * a) < 0;
    *lane(&step, l) = better ? d : 0;
    if (better) *lane(scale, l) = to;
  }
  for (int64_t j = 0; j < n; j++)
    for (int h = 0; h < PARTS; h++) g[j].h[h] -= step.h[h] * hv[j].h[h], k->e[at + j].h[h] -= step.h[h] * value[j].h[h];
}

/* Moves the codes of a block, one column after the other. */
static ANE_WIDE void sweep_codes(struct rows *k, int64_t at, int64_t n, int half, const lanes *scale, lanes *value, lanes *g) {
  const ane_f8x zero = ALL(0), one = ALL(1);
  lanes inv;
  ane_i8x none[PARTS];
  for (int h = 0; h < PARTS; h++) {
    none[h] = scale->h[h] == zero;
    inv.h[h] = PICK(none[h], zero, one / PICK(none[h], one, scale->h[h]));
  }
  for (int64_t j = 0; j < n; j++) {
    const float own = 1 / moment(k->f, at + j, at + j);
    for (int h = 0; h < PARTS; h++) {
      const ane_f8x u = value[j].h[h] + own * g[j].h[h] * inv.h[h];
      ane_f8x code, v;
      nearest(k, h, half, &u, &code, &v);
      v = PICK(none[h], value[j].h[h], v), code = PICK(none[h], k->code[at + j].h[h], code);
      ane_f8x step = scale->h[h] * (v - value[j].h[h]);
      value[j].h[h] = v, k->code[at + j].h[h] = code;
      k->e[at + j].h[h] -= step;
      for (int64_t i = 0; i < n; i++) g[i].h[h] -= moment(k->f, at + j, at + i) * step;
    }
  }
}

/* Sweeps over all columns, in groups with a scale each: k->scale[at / group]. fits: scales may take any value of fp16. */
static void sweep(struct rows *k, int group, int half, bool fits) {
  lanes g[PART_MAX], value[PART_MAX];
  for (int round = 0; round < SWEEPS; round++)
    for (int64_t at = 0; at < k->f->cols; at += ANE_MIN(group, PART_MAX)) {
      int64_t n = ANE_MIN(ANE_MIN(group, PART_MAX), k->f->cols - at);
      lanes *scale = k->scale + at / group;
      gradients(k, at, n, g);
      values_of(k, k->code + at, n, half, value);
      if (fits) sweep_scale(k, at, n, value, g, scale);
      sweep_codes(k, at, n, half, scale, value, g);
    }
}

/* Copies the codes of lane l to `codes`, in the order of columns. */
static void copy_codes(struct rows *k, const struct ane_rounding *rounding, lanes *q_of, int64_t at, int l, uint8_t *codes) {
  for (int i = 0; i < rounding->group; i++) {
    uint8_t q = (uint8_t)*lane(&q_of[i], l);
    codes[column_in_group(k, at, i, rounding->group)] = rounding->code ? rounding->code[q] : q;
  }
}

/* Rounds rows in groups of one part, and sweeps them: k->code, k->scale, k->offset. */
static void decide_flat(struct rows *k, const struct ane_rounding *rounding, int n) {
  set_table(k, rounding);
  for (int64_t at = 0; at < k->f->cols; at += rounding->group) {
    lanes *scale = k->scale + at / rounding->group, *offset = k->offset + at / rounding->group;
    decide_group(k, rounding, at, n);
    memcpy(k->code + at, k->q, (size_t)rounding->group * sizeof *k->q);
    memset(scale, 0, sizeof *scale);
    memset(offset, 0, sizeof *offset);
    for (int l = 0; l < n; l++) *lane(scale, l) = k->params[l].scale, *lane(offset, l) = k->params[l].offset;
  }
  sweep(k, rounding->group, rounding->half, ane_rounding_fits(rounding));
}

bool ane_compensate_groups(ane_dtype t, int32_t *group, int32_t *sub) {
  const struct ane_rounding *rounding = ane_rounding_of(t);
  if (!rounding) return false;
  *group = rounding->group, *sub = rounding->sub;
  return true;
}

static void take_line(struct rows *k, int64_t group, int l) {
  k->params[l].scale = *lane(&k->scale[group], l), k->params[l].offset = *lane(&k->offset[group], l);
}

void ane_compensate_rows(const struct ane_factor *f, ane_dtype t, const float *rows, int n, void *dst, size_t stride,
                         void *scratch) {
  const struct ane_rounding *rounding = ane_rounding_of(t);
  struct rows *k = begin(f, rows, n, scratch);
  size_t bytes = ane_dtype_info(t)->bytes;
  bool flat = rounding->group == rounding->sub;
  if (flat)
    decide_flat(k, rounding, n);
  else
    set_table(k, rounding);
  for (int64_t at = 0; at < f->cols; at += rounding->group) {
    uint8_t *to = (uint8_t *)dst + (size_t)(f->order[at] / rounding->group) * bytes;
    if (!flat) decide_group(k, rounding, at, n);
    for (int l = 0; l < n; l++, to += stride) {
      if (flat) take_line(k, at / rounding->group, l);
      copy_codes(k, rounding, flat ? k->code + at : k->q, at, l, k->codes);
      rounding->pack(rounding, &k->params[l], k->codes, to);
    }
  }
}

/* ---- Schemes -----------------------------------------------------------------------------------------------------------*/

void ane_compensate_scheme_groups(struct ane_weight_spec s, int32_t *group, int32_t *sub) {
  *group = *sub = ane_weight_has_blocks(s) ? s.size : 1;
}

/* Rounds rows in blocks with a scale each, and an offset if the scheme has one. */
static void block_tile(struct rows *k, const struct ane_rounding *rounding, int n, struct ane_weight_tile *out) {
  int64_t blocks = k->f->cols / rounding->group;
  decide_flat(k, rounding, n);
  for (int64_t at = 0; at < k->f->cols; at += rounding->group) {
    int64_t b = k->f->order[at] / rounding->group, group = at / rounding->group;
    for (int l = 0; l < n; l++) {
      uint8_t *to = out->codes + l * k->f->cols + b * rounding->group;
      copy_codes(k, rounding, k->code + at, at, l, to);
      for (int i = 0; i < rounding->group; i++) to[i] = (uint8_t)(to[i] - rounding->half);
      struct ane_line line = {*lane(&k->scale[group], l), *lane(&k->offset[group], l)};
      out->scales[l * blocks + b] = ane_f32_f16(line.scale);
      if (out->offsets) out->offsets[l * blocks + b] = ane_line_shift(line);
    }
  }
}

/* Rounds rows with one scale for all columns. The stored code is the rounded one minus `half`. */
static void row_tile(struct rows *k, const lanes *scale, const lanes *offset, int half, int n, struct ane_weight_tile *out) {
  lanes loss;
  for (int64_t at = 0; at < k->f->cols; at += ANE_PANEL) {
    int64_t width = ANE_MIN(k->f->cols - at, ANE_PANEL);
    gather_errors(k, 0, at, at, width, k->base, true);
    decide(k, at, width, k->base, scale, offset, k->e + at, k->code + at, &loss);
  }
  k->scale[0] = *scale;
  if (k->table && k->top <= SWEPT_TABLE) sweep(k, INT32_MAX, 0, false);
  for (int64_t i = 0; i < k->f->cols; i++)
    for (int l = 0; l < n; l++) out->codes[l * k->f->cols + k->f->order[i]] = (uint8_t)((int)*lane(&k->code[i], l) - half);
}

static void int8_tile(struct rows *k, int n, struct ane_weight_tile *out) {
  lanes scale, offset;
  memset(&scale, 0, sizeof scale);
  memset(&offset, 0, sizeof offset);
  k->top = 254, k->table = false;
  for (int l = 0; l < n; l++) {
    *lane(&scale, l) = ane_f16_f32(out->scales[l]);
    *lane(&offset, l) = -127 * *lane(&scale, l);
  }
  row_tile(k, &scale, &offset, 127, n, out);
  for (int l = 0; l < n; l++)
    if (out->scales[l] == 0) memset(out->codes + l * k->f->cols, 0, (size_t)k->f->cols);
}

static void lut_tile(struct rows *k, const struct ane_weight_fit *fit, int n, struct ane_weight_tile *out) {
  lanes scale, offset = {{ALL(0)}};
  const int bits = fit->spec.bits;
  for (int h = 0; h < PARTS; h++) scale.h[h] = ALL(1);
  k->top = (1 << bits) - 1, k->table = true;
  memset(k->value, 0, sizeof k->value);
  for (int i = 0; i <= k->top; i++)
    for (int l = 0; l < n; l++)
      *lane(&k->value[i], l) = ane_f16_f32(out->lut[((fit->spec.size ? l / fit->spec.size : 0) << bits) + i]);
  row_tile(k, &scale, &offset, 0, n, out);
}

void ane_compensate_tile(const struct ane_factor *f, const struct ane_weight_fit *fit, const float *rows, int n, void *search,
                         struct ane_weight_tile *out, void *scratch) {
  struct rows *k = begin(f, rows, n, scratch);
  switch (fit->spec.scheme) {
    case ANE_WEIGHT_FP16: break;
    case ANE_WEIGHT_INT8_BLOCK: block_tile(k, ane_rounding_of(ANE_Q8_0), n, out); break; /* blocks of the same size */
    case ANE_WEIGHT_INT4_BLOCK: block_tile(k, ane_rounding_int4(fit->spec.size), n, out); break;
    case ANE_WEIGHT_UINT4_BLOCK: block_tile(k, ane_rounding_uint4(), n, out); break;
    case ANE_WEIGHT_INT8:
    case ANE_WEIGHT_INT8_CHANNEL:
      ane_weight_encode_tile(fit, rows_of(k, rows, n), n, f->cols, f->importance, search, out);
      int8_tile(k, n, out);
      break;
    case ANE_WEIGHT_LUT:
      ane_weight_encode_tile(fit, rows_of(k, rows, n), n, f->cols, f->importance, search, out);
      lut_tile(k, fit, n, out);
      break;
  }
}
