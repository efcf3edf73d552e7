/* Compensated rounding of rows (compensate.h), 32 at a time: each lane of the vectors has one row. */
#include "quant/compensate.h"
#include "quant/exact_line.h"
#include "quant/rounding.h"
#include "quant/wide.h"

#include "tensor/half.h"

#include <math.h>

enum { LANES = ANE_COMPENSATE_ROWS, GROUP_MAX = 256, PART_MAX = 64, LEVELS_MAX = ANE_WEIGHT_LUT_MAX };

/* One number per row. */
typedef struct {
  ane_f16x h[2];
} lanes;

/* The working memory of a thread. Columns are in the order of ane_factor (positions). */
struct rows {
  const struct ane_factor *f;
  lanes *w, *e;                        /* [cols] weights; errors w - v of rounded columns */
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
  return sizeof(struct rows) + (f->drift ? 3 : 2) * (size_t)f->cols * sizeof(lanes) + 2 * 64;
}

/* ---- Vectors -----------------------------------------------------------------------------------------------------------*/

#define ALL(v) ((float)(v) - (ane_f16x){0})
#define PICK(mask, a, b) ((ane_f16x)(((mask) & (ane_i16x)(a)) | (~(mask) & (ane_i16x)(b))))

/* R[i][j] / R[j][j] for i = from, from + 1, ..., 4 floats apart. */
static inline const float *ratios(const struct ane_factor *f, int64_t from, int64_t j) {
  return f->ratio + ane_factor_strip(j / ANE_STRIP) + ANE_STRIP * from + j % ANE_STRIP;
}

/* Adds to base of positions [at, at + n) the compensation for the errors of positions [from, to). at is a multiple of 4. first:
 * sets base to w before. */
static ANE_WIDE void gather_errors(struct rows *k, int64_t from, int64_t to, int64_t at, int64_t n, lanes *base, bool first) {
  for (int64_t j = 0; j < n; j += ANE_STRIP) {
    ane_f16x acc[ANE_STRIP][2];
    const lanes *start = first ? k->w + at + j : base + j;
    int64_t width = ANE_MIN(n - j, ANE_STRIP);
    memset(acc, 0, sizeof acc);
    memcpy(acc, start, (size_t)width * sizeof *start);
    ane_strip(acc, ratios(k->f, from, at + j), ANE_STRIP, (const float *)(k->e + from), to - from);
    memcpy(base + j, acc, (size_t)width * sizeof *base);
  }
}

/* Computes target of positions [at, at + n) from base: each column compensates the difference of base and target of earlier ones.
 */
static ANE_WIDE void free_targets(struct rows *k, int64_t at, int64_t n) {
  lanes *e = k->e + at; /* these columns have no errors yet: the memory holds the differences */
  for (int64_t j = 0; j < n; j++) {
    lanes t = k->base[j];
    const float *r = ratios(k->f, at, at + j);
    for (int64_t i = 0; i < j; i++, r += ANE_STRIP)
      for (int h = 0; h < 2; h++) t.h[h] += *r * e[i].h[h];
    k->target[j] = t;
    for (int h = 0; h < 2; h++) e[j].h[h] = k->w[at + j].h[h] - t.h[h];
  }
}

/* Rounds positions [at, at + n) to values scale * T + offset. Writes errors to e, codes to q (unless NULL), and the loss. */
static ANE_WIDE void decide(const struct rows *k, int64_t at, int64_t n, const lanes *base, const lanes *scale,
                            const lanes *offset, lanes *e, lanes *q, lanes *loss) {
  const ane_f16x magic = ALL(0x1.8p23f), zero = ALL(0), top = ALL((float)k->top), one = ALL(1);
  lanes inv, sum = {{zero, zero}};
  for (int h = 0; h < 2; h++) {
    ane_i16x none = scale->h[h] == zero;
    inv.h[h] = PICK(none, zero, one / PICK(none, one, scale->h[h]));
  }
  for (int64_t j = 0; j < n; j++) {
    lanes t = base[j];
    const float *r = ratios(k->f, at, at + j);
    for (int64_t i = 0; i < j; i++, r += ANE_STRIP)
      for (int h = 0; h < 2; h++) t.h[h] += *r * e[i].h[h];
    for (int h = 0; h < 2; h++) {
      ane_f16x u = (t.h[h] - offset->h[h]) * inv.h[h], code, v;
      if (k->table) {
        code = zero, v = k->value[0].h[h];
        for (int i = 0; i < k->top; i++) {
          ane_i16x above = u > 0.5f * (k->value[i].h[h] + k->value[i + 1].h[h]);
          code = PICK(above, code + one, code), v = PICK(above, k->value[i + 1].h[h], v);
        }
      } else {
        u = PICK(u > zero, u, zero);
        u = PICK(u < top, u, top);
        v = code = (u + magic) - magic;
      }
      v = v * scale->h[h] + offset->h[h];
      e[j].h[h] = k->w[at + j].h[h] - v;
      ane_f16x left = t.h[h] - v;
      sum.h[h] += k->f->weight[at + j] * left * left;
      if (q) q[j].h[h] = code;
    }
  }
  *loss = sum;
}

/* ---- Drift -------------------------------------------------------------------------------------------------------------*/

/* Sets e [cols] to w D. */
static ANE_WIDE void apply_drift(struct rows *k) {
  for (int64_t j = 0; j < k->f->cols; j += ANE_STRIP) {
    ane_f16x acc[ANE_STRIP][2];
    memset(acc, 0, sizeof acc);
    ane_strip(acc, k->f->drift + j * k->f->cols, ANE_STRIP, (const float *)k->w, k->f->cols);
    memcpy(k->e + j, acc, (size_t)ANE_MIN(k->f->cols - j, ANE_STRIP) * sizeof *k->e);
  }
}

/* With S[i][j] = R[i][j] / R[j][j], H is S diag(weight) S'. Solves z S' = e in place, from the last column. */
static ANE_WIDE void solve_back(struct rows *k) {
  for (int64_t j = k->f->cols - 1; j > 0; j--) {
    const lanes z = k->e[j];
    const float *r = ratios(k->f, 0, j);
    for (int64_t i = 0; i < j; i++, r += ANE_STRIP)
      for (int h = 0; h < 2; h++) k->e[i].h[h] -= *r * z.h[h];
  }
}

/* Solves u S diag(weight) = e in place, from the first column; e becomes -u, and u is added to w. */
static ANE_WIDE void solve_forward(struct rows *k) {
  for (int64_t at = 0; at < k->f->cols; at += ANE_STRIP) {
    int64_t n = ANE_MIN(k->f->cols - at, ANE_STRIP);
    for (int64_t j = at; j < at + n; j++)
      for (int h = 0; h < 2; h++) k->e[j].h[h] /= k->f->weight[j];
    lanes sum[ANE_STRIP];
    ane_f16x acc[ANE_STRIP][2];
    memset(acc, 0, sizeof acc);
    ane_strip(acc, ratios(k->f, 0, at), ANE_STRIP, (const float *)k->e, at);
    memcpy(sum, acc, sizeof sum);
    for (int64_t j = at; j < at + n; j++) {
      const float *r = ratios(k->f, at, j);
      for (int h = 0; h < 2; h++) {
        ane_f16x u = k->e[j].h[h] + sum[j - at].h[h];
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
  memset(k->w, 0, (size_t)f->cols * sizeof *k->w);
  for (int64_t p = 0; p < f->cols; p++)
    for (int l = 0; l < n; l++) *lane(k->w + p, l) = rows[l * f->cols + f->order[p]];
  if (f->drift) follow_drift(k);
  return k;
}

/* The rows to round [n][cols]: those of the caller, or what the drift made of them. */
static const float *rows_of(struct rows *k, const float *rows, int n) {
  float *to = (float *)(k->e + k->f->cols);
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

/* The index of position `at + i` among the group's columns, in their own order. */
static int place(const struct rows *k, int64_t at, int i, int group) { return (int)(k->f->order[at + i] % group); }

/* Chooses the parameters of the group at `at` for lane l from the targets, with the columns in their own order. */
static void fit_lane(struct rows *k, const struct ane_rounding *rounding, int64_t at, int l) {
  for (int s = 0; s < rounding->group; s += rounding->sub) {
    int to = place(k, at, s, rounding->group) / rounding->sub * rounding->sub;
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
  int part = place(k, at, s, rounding->group) / rounding->sub;
  lanes scale, offset, loss, best;
  int kept[LANES] = {0};
  /* analyser: s is a place in a group, below GROUP_MAX. */
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

/* Copies the codes of lane l to `codes`, in the order of columns. */
static void copy_codes(struct rows *k, const struct ane_rounding *rounding, int64_t at, int l, uint8_t *codes) {
  for (int i = 0; i < rounding->group; i++) {
    uint8_t q = (uint8_t)*lane(&k->q[i], l);
    codes[place(k, at, i, rounding->group)] = rounding->code ? rounding->code[q] : q;
  }
}

bool ane_compensate_groups(ane_dtype t, int32_t *group, int32_t *sub) {
  const struct ane_rounding *rounding = ane_rounding_of(t);
  if (!rounding) return false;
  *group = rounding->group, *sub = rounding->sub;
  return true;
}

void ane_compensate_rows(const struct ane_factor *f, ane_dtype t, const float *rows, int n, void *dst, size_t stride,
                         void *scratch) {
  const struct ane_rounding *rounding = ane_rounding_of(t);
  struct rows *k = begin(f, rows, n, scratch);
  size_t bytes = ane_dtype_info(t)->bytes;
  set_table(k, rounding);
  for (int64_t at = 0; at < f->cols; at += rounding->group) {
    decide_group(k, rounding, at, n);
    uint8_t *to = (uint8_t *)dst + (size_t)(f->order[at] / rounding->group) * bytes;
    for (int l = 0; l < n; l++, to += stride) {
      copy_codes(k, rounding, at, l, k->codes);
      rounding->pack(rounding, &k->params[l], k->codes, to);
    }
  }
}

/* ---- Schemes -----------------------------------------------------------------------------------------------------------*/

void ane_compensate_scheme_groups(struct ane_weight_spec s, int32_t *group, int32_t *sub) {
  *group = *sub = ane_weight_has_blocks(s) ? s.size : 1;
}

/* Rounds rows in blocks with a scale each, and an offset where the scheme has one. */
static void block_tile(struct rows *k, const struct ane_rounding *rounding, int n, struct ane_weight_tile *out) {
  int64_t blocks = k->f->cols / rounding->group;
  set_table(k, rounding);
  for (int64_t at = 0; at < k->f->cols; at += rounding->group) {
    int64_t b = k->f->order[at] / rounding->group;
    decide_group(k, rounding, at, n);
    for (int l = 0; l < n; l++) {
      uint8_t *to = out->codes + l * k->f->cols + b * rounding->group;
      copy_codes(k, rounding, at, l, to);
      for (int i = 0; i < rounding->group; i++) to[i] = (uint8_t)(to[i] - rounding->half);
      struct ane_line line = {k->params[l].scale, k->params[l].offset};
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
    decide(k, at, width, k->base, scale, offset, k->e + at, k->q, &loss);
    for (int64_t i = 0; i < width; i++)
      for (int l = 0; l < n; l++) out->codes[l * k->f->cols + k->f->order[at + i]] = (uint8_t)((int)*lane(&k->q[i], l) - half);
  }
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
  lanes scale = {{ALL(1), ALL(1)}}, offset = {{ALL(0), ALL(0)}};
  const int bits = fit->spec.bits;
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
