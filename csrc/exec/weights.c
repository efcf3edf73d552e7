/* Weight matrices: chooses the encoding and layout of each, and packs all of them into one slab, using every thread. */
#include "base/alloc.h"
#include "base/glob.h"
#include "exec/planner.h"
#include "tensor/half.h"
#include "tensor/rows.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Encoding and layout ---------------------------------------------------------------------------------------------*/

/* Does a rule's pattern match a matrix, by its name in the graph or by its other name? */
static bool rule_matches(const struct ane_program *p, const struct ane_weights_rule *r, const char *name) {
  if (ane_glob(r->pattern, name)) return true;
  const char *other = p->o.other_name ? p->o.other_name(p->o.arg, name) : NULL;
  return other && ane_glob(r->pattern, other);
}

static struct ane_weights_encoding encoding_of(const struct ane_program *p, const char *name) {
  struct ane_weights_encoding encoding = p->o.weights;
  for (int32_t i = 0; i < p->o.n_rules; i++)
    if (rule_matches(p, &p->o.rules[i], name)) encoding = p->o.rules[i].encoding;
  return encoding;
}

static ane_layout layout_of_scheme(struct ane_weight_spec s) {
  switch (s.scheme) {
    case ANE_WEIGHT_INT8:
    case ANE_WEIGHT_INT8_CHANNEL: return ANE_LAYOUT_I8;
    case ANE_WEIGHT_INT8_BLOCK: return ANE_LAYOUT_Q8_0;
    case ANE_WEIGHT_INT4_BLOCK: return ANE_LAYOUT_Q4_0;
    case ANE_WEIGHT_UINT4_BLOCK: return ANE_LAYOUT_Q4_1;
    case ANE_WEIGHT_LUT: return s.bits <= 4 ? ANE_LAYOUT_LUT4 : ANE_LAYOUT_F16;
    case ANE_WEIGHT_FP16: break;
  }
  return ANE_LAYOUT_F16; /* entries of larger tables are fp16 */
}

/* Does the matrix hold codes into tables that the layout LUT4 can take, one table for each 8 rows? */
static bool has_tables(const struct ane_tensor *t) {
  return t->gather && t->row0 == 0 && ane_gather_has_tables(t->gather, ANE_GROUP / 2);
}

/* The dtype for rows of n columns where t is requested: t, or its nearest type (dtype.def), as in written files. ANE_DTYPE_COUNT:
 * the rows are not whole blocks of either. */
static ane_dtype fitting(ane_dtype t, int64_t n) {
  const struct ane_dtype_info *info = ane_dtype_info(t);
  if (n % info->block == 0) return t;
  return info->nearest ? fitting(ane_dtype_from_name(info->nearest, strlen(info->nearest)), n) : ANE_DTYPE_COUNT;
}

/* Chooses the layout of a matrix and the dtype that it is held in. A matrix that takes neither the requested dtype nor its
 * nearest keeps its stored dtype. */
static void choose_layout(struct matrix *m, struct ane_weights_encoding encoding) {
  struct ane_packed *w = &m->packed;
  w->dtype = m->stored.dtype;
  m->by_scheme = encoding.kind == ANE_WEIGHTS_SCHEME;
  if (m->by_scheme) {
    m->spec = ane_weight_spec_fit(encoding.scheme, w->rows, w->cols);
    if (!ane_weight_spec_equal(m->spec, encoding.scheme)) m->unfit = ane_weight_spec_name(encoding.scheme);
    w->layout = layout_of_scheme(m->spec);
    return;
  }
  if (encoding.kind == ANE_WEIGHTS_FILE && has_tables(&m->stored)) {
    w->layout = ANE_LAYOUT_LUT4;
    return;
  }
  ane_dtype fits = encoding.kind == ANE_WEIGHTS_DTYPE ? fitting(encoding.dtype, w->cols) : w->dtype;
  if (fits != ANE_DTYPE_COUNT) w->dtype = fits;
  w->layout = ane_layout_for(w->dtype, w->cols);
  if (w->layout == ANE_LAYOUT_ROWS && w->dtype != m->stored.dtype)
    w->dtype = m->stored.dtype, w->layout = ane_layout_for(w->dtype, w->cols);
  if (encoding.kind == ANE_WEIGHTS_DTYPE && w->dtype != encoding.dtype) m->unfit = ane_dtype_info(encoding.dtype)->name;
}

ane_status weights_describe(const struct ane_program *p, struct matrix *m, struct ane_error *err) {
  const struct ane_tensor *t = &m->stored;
  if (!ane_decoder(t->dtype))
    return ane_fail(err, ANE_UNSUPPORTED, "weight %s is %s, which cannot be multiplied", m->name, ane_dtype_info(t->dtype)->name);
  struct ane_packed *w = &m->packed;
  w->rows = t->shape.dim[0];
  w->cols = t->shape.dim[1];
  w->groups = (w->rows + ANE_GROUP - 1) / ANE_GROUP;
  uint64_t row;
  if (!ane_dtype_bytes(t->dtype, (uint64_t)w->cols, &row))
    return ane_fail(err, ANE_SHAPE, "weight %s: a row of %" PRId64 " is not whole blocks of %s", m->name, w->cols,
                    ane_dtype_info(t->dtype)->name);
  w->row_bytes = (size_t)row;
  choose_layout(m, encoding_of(p, m->name));
  m->activation_type = ane_activation_type_for(w->layout, p->o.int8, p->k->bf16_dot);
  if (!p->k->matmul[w->layout][m->activation_type])
    return ane_fail(err, ANE_UNSUPPORTED, "weight %s: no kernel for layout %s", m->name, ane_layout_info(w->layout)->name);
  if (w->layout != ANE_LAYOUT_ROWS && !ane_layout_group_bytes(w->layout, w->cols, &w->group_bytes))
    return ane_fail(err, ANE_SHAPE, "weight %s is too large", m->name);
  return ANE_OK;
}

static bool same_encoding(struct ane_weights_encoding a, struct ane_weights_encoding b) {
  if (a.kind != b.kind) return false;
  return a.kind == ANE_WEIGHTS_SCHEME ? ane_weight_spec_equal(a.scheme, b.scheme)
                                      : a.kind == ANE_WEIGHTS_FILE || a.dtype == b.dtype;
}

static ane_status check_rule(const struct ane_program *p, const struct ane_weights_rule *r, struct ane_error *err) {
  int32_t found = 0;
  for (int32_t m = 0; m < p->n_matrices; m++) {
    const char *name = p->matrices[m].name;
    if (!rule_matches(p, r, name)) continue;
    found++;
    for (const struct ane_weights_rule *q = p->o.rules; q < r && !r->ordered; q++)
      if (rule_matches(p, q, name) && !same_encoding(q->encoding, r->encoding))
        return ane_fail(
            err, ANE_INVALID,
            "option mixed: weight %s matches \"%s\" and \"%s\", which differ; a list of {pattern, weights} has an order", name,
            q->pattern, r->pattern);
  }
  return found || p->o.stage ? ANE_OK : ane_fail(err, ANE_INVALID, "option mixed: no weight matches \"%s\"", r->pattern);
}

/* ---- Packing -------------------------------------------------------------------------------------------------------*/

/* Shared by the packing threads. */
struct packing {
  struct ane_program *p;
  struct matrix *m;
  _Atomic int64_t next; /* next group or tile to claim */
  _Atomic int64_t bad;  /* first stored row with an element that is not finite; INT64_MAX: none */
  int64_t end;          /* of this piece */
  uint8_t *thread_mem;  /* [threads][thread_bytes]: rows as read and as held, in floats; codes or encoded rows; scratch */
  size_t thread_bytes, codes_at, scratch_at;
  uint8_t *gathered; /* [threads][16 rows]: gathered rows of a matrix that is not stored by rows */
  size_t encoded_row;
  struct ane_measure *errors; /* per group or tile; NULL: nothing is re-encoded */
  /* Used by schemes: */
  struct ane_weight_rows src;
  struct ane_weight_fit fit;
  const float *importance;
};

enum { GROUPS_PER_TASK = 8, PIECE_BYTES = 16 << 20 };

static int group_rows(const struct matrix *m, int64_t g) {
  return (int)ANE_MIN((int64_t)ANE_GROUP, m->packed.rows - g * ANE_GROUP);
}

/* Must rows be gathered before they can be packed? */
static bool scattered(const struct matrix *m) { return m->stored.transposed || m->stored.gather; }

/* The stored rows of group g, made contiguous. */
static const uint8_t *stored_rows(const struct packing *k, int64_t g, int thread) {
  uint8_t *copy = k->gathered ? k->gathered + (size_t)thread * ANE_GROUP * k->m->packed.row_bytes : NULL;
  return ane_tensor_rows(&k->m->stored, g * ANE_GROUP, group_rows(k->m, g), k->m->packed.row_bytes, copy);
}

/* Remembers the least row with an element that is not finite, whichever thread finds it. */
static void set_bad(struct packing *k, int64_t row) {
  int64_t old = atomic_load(&k->bad);
  while (row < old && !atomic_compare_exchange_weak(&k->bad, &old, row)) {}
}

/* Checks n contiguous stored rows, from row `first` on. */
static void check_rows(struct packing *k, int64_t first, int n, const uint8_t *rows) {
  int64_t at = ane_find_not_finite(k->m->stored.dtype, rows, (uint64_t)(n * k->m->packed.cols));
  if (at >= 0) set_bad(k, first + at / k->m->packed.cols);
}

/* Checks the 16 entries of the table of the rows from `first` on. */
static void check_table(struct packing *k, int64_t first, const float *table) {
  if (ane_find_not_finite(ANE_F32, table, 16) >= 0) set_bad(k, first);
}

static void decode_group(const struct packing *k, int64_t g, int thread, float *rows) {
  ane_decode_fn decode = ane_decoder(k->m->stored.dtype);
  const uint8_t *stored = stored_rows(k, g, thread);
  for (int i = 0; i < group_rows(k->m, g); i++)
    decode(stored + (size_t)i * k->m->packed.row_bytes, rows + i * k->m->packed.cols, (uint64_t)k->m->packed.cols);
}

/* ---- Encoding as a dtype ---------------------------------------------------------------------------------------------*/

static void pack_encoded(const struct packing *k, int64_t g, int thread) {
  const struct ane_packed *w = &k->m->packed;
  int n = group_rows(k->m, g);
  uint8_t *mem = k->thread_mem + (size_t)thread * k->thread_bytes, *encoded = mem + k->codes_at;
  float *rows = (float *)(void *)mem, *back = rows + ANE_GROUP * w->cols;
  decode_group(k, g, thread, rows);
  for (int i = 0; i < n; i++) {
    ane_encoder(w->dtype)(rows + i * w->cols, encoded + (size_t)i * k->encoded_row, (uint64_t)w->cols);
    ane_decoder(w->dtype)(encoded + (size_t)i * k->encoded_row, back + i * w->cols, (uint64_t)w->cols);
  }
  k->errors[g] = ane_measure(rows, back, n * w->cols);
  ane_pack_rows(w, w->dtype, encoded, k->encoded_row, n, g);
}

static void pack_groups(void *arg, int thread, int threads) {
  struct packing *k = arg;
  (void)threads;
  const struct ane_packed *w = &k->m->packed;
  for (int64_t from; (from = atomic_fetch_add(&k->next, GROUPS_PER_TASK)) < k->end;)
    for (int64_t g = from; g < ANE_MIN(from + GROUPS_PER_TASK, k->end); g++)
      if (k->errors)
        pack_encoded(k, g, thread);
      else {
        const uint8_t *rows = stored_rows(k, g, thread);
        check_rows(k, g * ANE_GROUP, group_rows(k->m, g), rows);
        ane_pack_rows(w, w->dtype, rows, w->row_bytes, group_rows(k->m, g), g);
      }
}

/* Checks the rows of a matrix that is multiplied as it is stored. */
static void check_groups(void *arg, int thread, int threads) {
  struct packing *k = arg;
  (void)threads;
  for (int64_t from; (from = atomic_fetch_add(&k->next, GROUPS_PER_TASK)) < k->end;)
    for (int64_t g = from; g < ANE_MIN(from + GROUPS_PER_TASK, k->end); g++)
      check_rows(k, g * ANE_GROUP, group_rows(k->m, g), stored_rows(k, g, thread));
}

/* ---- Encoding by a package scheme ------------------------------------------------------------------------------------*/

/* The type of the blocks that a tile of this layout is packed from; ANE_DTYPE_COUNT: it is packed from codes or fp16. */
static ane_dtype blocks_of(ane_layout f) {
  switch (f) {
    case ANE_LAYOUT_Q4_0: return ANE_Q4_0;
    case ANE_LAYOUT_Q4_1: return ANE_Q4_1;
    case ANE_LAYOUT_Q8_0: return ANE_Q8_0;
    default: return ANE_DTYPE_COUNT;
  }
}

/* Copies the tables of 16 rows as the layout has them: 16 floats for each 8 rows. Smaller tables are padded. */
static void copy_tables(const struct ane_weight_spec *s, const uint16_t *lut, int first, int rows, float *side) {
  for (int i = 0; i < rows; i += 8) {
    const uint16_t *from = lut + ((s->size ? (first + i) / s->size : 0) << s->bits);
    for (int j = 0; j < 16; j++) *side++ = j < 1 << s->bits ? ane_f16_f32(from[j]) : 0;
  }
}

/* Packs the n rows of the tile that begins at `row`. values: the decoded rows; blocks: scratch. Only the last group may have
 * fewer than 16 rows. */
static void pack_tile(const struct packing *k, int64_t row, int n, const struct ane_weight_tile *t, const float *values,
                      uint8_t *blocks) {
  const struct ane_packed *w = &k->m->packed;
  const ane_dtype type = blocks_of(w->layout);
  float *side = k->p->aux + k->m->aux;
  for (int first = 0; first < n; first += ANE_GROUP) {
    int64_t g = (row + first) / ANE_GROUP;
    int rows = ANE_MIN(n - first, ANE_GROUP);
    const uint8_t *codes = t->codes + first * w->cols;
    if (type != ANE_DTYPE_COUNT) {
      const size_t stride = (size_t)(w->cols / ANE_BLOCK) * ane_dtype_info(type)->bytes;
      for (int i = 0; i < rows; i++)
        ane_weight_contain_row(&k->fit.spec, t, first + i, w->cols, type, blocks + (size_t)i * stride);
      ane_pack_rows(w, type, blocks, stride, rows, g);
      continue;
    }
    if (w->layout == ANE_LAYOUT_F16) {
      ane_encoder(ANE_F16)(values + first * w->cols, blocks, (uint64_t)(rows * w->cols));
      ane_pack_rows(w, ANE_F16, blocks, 2 * (size_t)w->cols, rows, g);
      continue;
    }
    ane_pack_rows(w, ANE_I8, codes, (size_t)w->cols, rows, g);
    if (w->layout == ANE_LAYOUT_I8)
      for (int i = 0; i < rows; i++) side[g * ANE_GROUP + i] = ane_f16_f32(t->scales[first + i]);
    else
      copy_tables(&k->fit.spec, t->lut, first, rows, side + 2 * g * 16);
  }
}

static void pack_tiles(void *arg, int thread, int threads) {
  struct packing *k = arg;
  (void)threads;
  const struct ane_packed *w = &k->m->packed;
  const int64_t tile = ANE_WEIGHT_TILE * w->cols;
  uint8_t *mem = k->thread_mem + (size_t)thread * k->thread_bytes, *codes = mem + k->codes_at;
  float *rows = (float *)(void *)mem, *back = rows + tile;
  /* There is at most one scale and one offset per block of 32. */
  uint16_t *scales = (uint16_t *)(void *)(codes + tile), *offsets = scales + tile / ANE_BLOCK + ANE_WEIGHT_TILE;
  uint16_t lut[ANE_WEIGHT_LUT_MAX];
  uint8_t *blocks = (uint8_t *)(offsets + tile / ANE_BLOCK + ANE_WEIGHT_TILE);
  for (int64_t i; (i = atomic_fetch_add(&k->next, 1)) < k->end;) {
    int64_t row = i * ANE_WEIGHT_TILE;
    int n = (int)ANE_MIN(w->rows - row, ANE_WEIGHT_TILE);
    /* analyser: lut is written through t, before it is read. */
    struct ane_weight_tile t = {codes, scales, offsets, lut};
    k->src.read(k->src.arg, row, n, rows);
    ane_weight_encode_tile(&k->fit, rows, n, w->cols, k->importance, mem + k->scratch_at, &t);
    ane_weight_decode_tile(&k->fit, &t, n, w->cols, back);
    k->errors[i] = ane_measure(rows, back, n * w->cols);
    pack_tile(k, row, n, &t, back, blocks);
  }
}

/* ---- Stored tables -----------------------------------------------------------------------------------------------------*/

/* Packs codes and their tables as they are stored. k->gathered is scratch for the codes of each thread's group. */
static void pack_tables(void *arg, int thread, int threads) {
  struct packing *k = arg;
  (void)threads;
  const struct ane_packed *w = &k->m->packed;
  /* One byte per code: at most the size of a row of fp16. */
  uint8_t *codes = k->gathered + (size_t)thread * ANE_GROUP * w->row_bytes;
  for (int64_t from; (from = atomic_fetch_add(&k->next, GROUPS_PER_TASK)) < k->end;)
    for (int64_t g = from; g < ANE_MIN(from + GROUPS_PER_TASK, k->end); g++) {
      float *tables = k->p->aux + k->m->aux + 2 * g * 16, unused[16];
      for (int i = 0; i < group_rows(k->m, g); i++) /* analyser: unused is only written to. */
        ane_gather_codes(&k->m->stored, g * ANE_GROUP + i, codes + i * w->cols, i % 8 ? unused : tables + i / 8 * 16);
      for (int i = 0; i < group_rows(k->m, g); i += 8) check_table(k, g * ANE_GROUP + i, tables + i / 8 * 16);
      ane_pack_rows(w, ANE_I8, codes, (size_t)w->cols, group_rows(k->m, g), g);
    }
}

/* ---- One matrix ------------------------------------------------------------------------------------------------------*/

/* Computes the sizes of a thread's memory. false on overflow. */
static bool thread_layout(struct packing *k) {
  const struct ane_packed *w = &k->m->packed;
  size_t rows = k->m->by_scheme ? ANE_WEIGHT_TILE : ANE_GROUP, floats, codes;
  uint64_t encoded = 0;
  if (!k->m->by_scheme) ane_dtype_bytes(w->dtype, (uint64_t)w->cols, &encoded);
  k->encoded_row = (size_t)encoded;
  if (!ane_mul_size(2 * sizeof(float) * rows, (size_t)w->cols, &floats)) return false;
  /* For a scheme: codes; a scale and an offset of 2 bytes each per row and block of 32; a group as Q4_0, Q4_1, Q8_0 or fp16. */
  codes = k->m->by_scheme ? rows * ((size_t)w->cols + (size_t)w->cols / 8 + 8) + ANE_GROUP * 2 * (size_t)w->cols
                          : rows * k->encoded_row;
  k->codes_at = ane_align_up(floats, 64);
  k->scratch_at = k->codes_at + ane_align_up(codes, 64);
  k->thread_bytes = k->scratch_at + (k->m->by_scheme ? ane_align_up(ane_weight_tile_scratch(&k->fit, w->cols), 64) : 0);
  return k->thread_bytes < SIZE_MAX / 2048;
}

static ane_status fail_row(const struct packing *k, int64_t row, struct ane_error *err) {
  return ane_fail(err, ANE_INVALID, "weight %s: row %" PRId64 " has an element that is not finite", k->m->name, row);
}

static ane_status sum_errors(const struct packing *k, int64_t n, int64_t rows, struct ane_error *err) {
  const struct ane_packed *w = &k->m->packed;
  for (int64_t i = 0; i < n; i++) {
    const struct ane_measure *e = &k->errors[i];
    if (e->bad >= 0) return fail_row(k, i * rows + e->bad / w->cols, err);
    ane_recode_add(&k->m->error, e, (uint64_t)(ANE_MIN(rows, w->rows - i * rows) * w->cols));
  }
  k->m->recoded = true;
  return ANE_OK;
}

/* Packs n groups or tiles of `rows` rows in pieces. The source of each piece is released before the next one begins, so that a
 * large matrix is not in memory twice. */
static void pack_pieces(struct packing *k, ane_pool_fn fn, int64_t n, int64_t rows) {
  const struct ane_program *p = k->p;
  const struct ane_packed *w = &k->m->packed;
  size_t unit = (size_t)rows * w->row_bytes;
  bool give_back = p->o.release && !scattered(k->m);
  int64_t piece = give_back ? (int64_t)(PIECE_BYTES / unit) + 1 : n;
  for (int64_t from = 0; from < n; from = k->end) {
    atomic_store(&k->next, from);
    k->end = ANE_MIN(from + piece, n);
    ane_pool_run(p->pool, fn, k);
    if (give_back)
      p->o.release(p->o.arg, (const uint8_t *)k->m->stored.data + (size_t)from * unit,
                   (size_t)(ANE_MIN(k->end * rows, w->rows) - from * rows) * w->row_bytes);
  }
}

/* Re-encodes and packs: to a dtype by groups, by a scheme in tiles. */
static ane_status pack_recoded(struct packing *k, struct ane_error *err) {
  struct ane_program *p = k->p;
  struct matrix *m = k->m;
  ane_status st = ANE_OK;
  if (m->by_scheme) {
    k->importance = p->o.importance ? p->o.importance(p->o.arg, m->name, m->packed.cols) : NULL;
    if ((st = ane_weight_rows_of(&m->stored, &k->src, err)) ||
        (st = ane_weight_fit(&k->fit, p->pool, &k->src, m->spec, k->importance, err)))
      return ane_fail_in(err, st, "weight %s", m->name);
  }
  int64_t rows = m->by_scheme ? ANE_WEIGHT_TILE : ANE_GROUP, n = (m->packed.rows + rows - 1) / rows;
  bool fits = thread_layout(k);
  k->thread_mem = fits ? ane_malloc((size_t)p->o.threads * k->thread_bytes) : NULL;
  k->errors = ane_calloc((size_t)n, sizeof *k->errors);
  if (!k->thread_mem || !k->errors)
    st = ane_fail(err, ANE_NOMEM, "no memory to re-encode %s", m->name);
  else
    pack_pieces(k, m->by_scheme ? pack_tiles : pack_groups, n, rows);
  if (!st) st = sum_errors(k, n, rows, err);
  ane_free(k->thread_mem);
  ane_free(k->errors);
  return st;
}

static ane_status check_bad(const struct packing *k, struct ane_error *err) {
  int64_t row = atomic_load(&k->bad);
  return row == INT64_MAX ? ANE_OK : fail_row(k, row, err);
}

static ane_status pack_one(struct ane_program *p, struct matrix *m, struct ane_error *err) {
  struct ane_packed *w = &m->packed;
  struct packing k = {.p = p, .m = m, .bad = INT64_MAX};
  if (w->layout == ANE_LAYOUT_ROWS) { /* only block types of GGUF files, which are stored by rows */
    w->data = m->stored.data;
    pack_pieces(&k, check_groups, w->groups, ANE_GROUP);
    return check_bad(&k, err);
  }
  if (scattered(m) && !m->by_scheme && !(k.gathered = ane_malloc((size_t)p->o.threads * ANE_GROUP * w->row_bytes)))
    return ane_fail(err, ANE_NOMEM, "no memory for rows of %s", m->name);
  ane_status st = ANE_OK;
  ane_packed_place(w, p->slab + m->offset);
  if (m->by_scheme || w->dtype != m->stored.dtype)
    st = pack_recoded(&k, err);
  else
    pack_pieces(&k, w->layout == ANE_LAYOUT_LUT4 ? pack_tables : pack_groups, w->groups, ANE_GROUP);
  if (w->layout == ANE_LAYOUT_I8) w->row_scale = p->aux + m->aux;
  if (w->layout == ANE_LAYOUT_LUT4) w->lut = p->aux + m->aux;
  ane_free(k.gathered);
  return st ? st : check_bad(&k, err);
}

/* Floats of the aux array that a group takes. */
static size_t aux_floats(ane_layout f) { return f == ANE_LAYOUT_I8 ? ANE_GROUP : f == ANE_LAYOUT_LUT4 ? 2 * 16 : 0; }

ane_status weights_pack(struct ane_program *p, struct ane_error *err) {
  size_t total = 0, aux = 0;
  uint64_t bytes = 0, done = 0;
  ane_status st = ANE_OK;
  for (int32_t i = 0; !st && i < p->o.n_rules; i++) st = check_rule(p, &p->o.rules[i], err);
  if (st) return st;
  for (int32_t i = 0; i < p->n_matrices; i++) {
    struct matrix *m = &p->matrices[i];
    size_t size = 0;
    bool fits = m->packed.layout == ANE_LAYOUT_ROWS || ane_packed_bytes(&m->packed, &size);
    m->offset = total;
    m->aux = aux;
    if (!fits || !ane_add_size(total, ane_align_up(size, 64), &total))
      return ane_fail(err, ANE_SHAPE, "weight %s is too large", m->name);
    aux += aux_floats(m->packed.layout) * (size_t)m->packed.groups;
    bytes += m->stored.bytes;
  }
  p->slab_bytes = total;
  p->slab = ane_pages_alloc(ANE_MAX(total, (size_t)64), true);
  p->aux = ane_calloc(aux, sizeof *p->aux);
  if (!p->slab || !p->aux) return ane_fail(err, ANE_NOMEM, "no memory for %zu bytes of weights", total);
  for (int32_t i = 0; i < p->n_matrices; i++) {
    struct matrix *m = &p->matrices[i];
    if ((st = pack_one(p, m, err))) return st;
    /* Releases the whole matrix again: for pages that two pieces share, and for matrices not stored by rows. */
    if (p->o.release && m->packed.layout != ANE_LAYOUT_ROWS) p->o.release(p->o.arg, m->stored.data, m->stored.bytes);
    done += m->stored.bytes;
    if (p->o.progress) p->o.progress(p->o.arg, done, bytes);
  }
  return ANE_OK;
}
