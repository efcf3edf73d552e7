/* Writes the embedding of an asset, whose rows a tied head uses as well. */
#include "mil/coreai_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Rows that are decoded at once. */
enum { TABLE_ROWS = 1024 };

/* ---- Tied heads -----------------------------------------------------------------------------------------------------------*/

/* Is the constant a matrix in fp16 with the numbers of the embedding? */
static bool is_tied(const struct exporting *x, int32_t table, int32_t value) {
  const struct ane_value *a = &x->e->graph->values[table], *b = &x->e->graph->values[value];
  if (b->kind != ANE_VALUE_CONST || b->shape.rank != 2) return false;
  const struct ane_tensor *s = &a->data, *t = &b->data;
  bool same = value == table || (s->data == t->data && s->dtype == t->dtype && s->gather == t->gather && s->row0 == t->row0 &&
                                 s->transposed == t->transposed && s->ld == t->ld);
  return same && a->shape.dim[0] == b->shape.dim[0] && a->shape.dim[1] == b->shape.dim[1] &&
         export_spec_of(x->e, value).scheme == ANE_WEIGHT_FP16;
}

static bool is_slice(const struct exporting *x, int32_t table, const struct ane_shard *s) {
  return s->kind == ANE_SHARD_HEAD && s->split != ANE_NONE && is_tied(x, table, x->e->graph->nodes[s->split].inputs[1]);
}

/* Divides the rows as the slices of a tied head do; else into one part. */
static ane_status divide(struct coreai_table *t, const struct exporting *x, const struct ane_partition *p) {
  int64_t rows = t->rows;
  t->parts = ane_arena_array(x->arena, (size_t)p->n_shards + 1, sizeof *t->parts);
  if (!t->parts) return ane_fail(x->err, ANE_NOMEM, "no memory for the embedding");
  int64_t at = 0;
  for (int32_t i = 0; i < p->n_shards && at >= 0; i++) {
    const struct ane_shard *s = &p->shards[i];
    if (!is_slice(x, t->value, s)) continue;
    if (s->from == at && s->to > at && s->to <= rows)
      t->parts[t->n++] = (struct coreai_table_part){.from = s->from, .to = at = s->to};
    else
      at = -1;
  }
  if (at == rows) return ANE_OK;
  t->n = 1;
  t->parts[0] = (struct coreai_table_part){.from = 0, .to = rows};
  return ANE_OK;
}

/* ---- Writing --------------------------------------------------------------------------------------------------------------*/

/* Takes the rows over from an interrupted export. false: there are none. */
static bool recall(const struct exporting *x, struct coreai_table_part *part, const char *key, size_t len, uint64_t bytes,
                   struct ane_aimodel_note *out) {
  if (!x->sink.noted(x->sink.to, key, len, out) || out->n_bytes != bytes || out->size != sizeof part->error) return false;
  memcpy(&part->error, out->data, sizeof part->error);
  return true;
}

static ane_status encode(struct exporting *x, int32_t table, const struct ane_weight_rows *rows, struct coreai_table_part *part) {
  const struct ane_weight_fit plain = {.spec = {ANE_WEIGHT_FP16, 0}};
  ane_status st = ANE_OK;
  for (int64_t from = part->from; !st && from < part->to; from += TABLE_ROWS) {
    struct ane_weights encoded = {0};
    st = ane_weights_encode(&encoded, x->e->pool, rows, &plain, from, ANE_MIN(from + TABLE_ROWS, part->to), NULL, x->err);
    if (st)
      ane_fail_in(x->err, st, "%s", x->e->graph->values[table].name);
    else
      st = x->sink.data(x->sink.to, encoded.payload, encoded.sizes.payload, x->err);
    struct ane_measure m = {.max_abs = encoded.error.max_abs, .error = encoded.error.error, .signal = encoded.error.signal};
    ane_recode_add(&part->error, &m, encoded.error.count);
    ane_weights_free(&encoded);
  }
  return st;
}

static ane_status write_part(struct exporting *x, int32_t table, const struct ane_weight_rows *rows,
                             struct coreai_table_part *part, struct ane_aimodel_writer *w) {
  char key[80];
  struct ane_aimodel_note old;
  size_t len = (size_t)snprintf(key, sizeof key, "table %" PRId32 " %" PRId64 " %" PRId64, table, part->from, part->to);
  int64_t n = part->to - part->from;
  struct ane_ai_type type = ane_ai_tensor(ANE_AI_FP16, 3, (int64_t[]){n, 1, rows->cols});
  ane_status st = ane_aimodel_blob(w, &type, &part->resource, x->err);
  if (st) return st;
  if (recall(x, part, key, len, 2 * (uint64_t)n * (uint64_t)rows->cols, &old))
    st = ane_aimodel_data(w, old.bytes, (size_t)old.n_bytes, x->err);
  else
    st = encode(x, table, rows, part);
  return st ? st : ane_aimodel_note(w, key, len, &part->error, sizeof part->error, part->resource, x->err);
}

static ane_status write_table(struct coreai_table *t, struct exporting *x, const struct ane_partition *p,
                              struct ane_aimodel_writer *w) {
  struct ane_weight_rows rows;
  ane_status st = ane_weight_rows_of(&x->e->graph->values[t->value].data, &rows, x->err);
  if (st) return st;
  t->rows = rows.rows;
  t->columns = rows.cols;
  st = divide(t, x, p);
  for (int32_t i = 0; i < t->n && !st; i++) st = write_part(x, t->value, &rows, &t->parts[i], w);
  return st;
}

ane_status coreai_table_write(struct coreai_embedding *t, struct exporting *x, const struct ane_partition *p,
                              struct ane_aimodel_writer *w) {
  int64_t columns = 0;
  ane_status st = ANE_OK;
  *t = (struct coreai_embedding){.n = p->n_embeddings};
  for (int32_t i = 0; i < t->n && !st; i++) {
    t->tables[i].value = p->tables[i];
    st = write_table(&t->tables[i], x, p, w);
    columns += t->tables[i].columns;
  }
  t->type = ane_ai_tensor(ANE_AI_FP16, 3, (int64_t[]){t->tables[0].rows, 1, columns});
  return st;
}

/* ---- In functions ---------------------------------------------------------------------------------------------------------*/

static ane_ai_value no_memory(struct ane_ai_build *b) {
  ane_ai_build_fail(b, ane_fail(b->err, ANE_NOMEM, "no memory for the program"));
  return ane_ai_int(b, ANE_AI_INT32, 0);
}

/* Returns one table with `rows` rows: those that it lacks are its row 0. */
static ane_ai_value value_of(struct ane_ai_build *b, struct ane_arena *arena, const struct coreai_table *t, int64_t rows) {
  ane_ai_value *list = ane_arena_array(arena, (size_t)t->n + 1, sizeof *list);
  uint32_t n = 0;
  if (!list) return no_memory(b);
  for (int32_t i = 0; i < t->n; i++) {
    const struct coreai_table_part *part = &t->parts[i];
    struct ane_ai_type type = ane_ai_tensor(ANE_AI_FP16, 3, (int64_t[]){part->to - part->from, 1, t->columns});
    list[n++] = ane_ai_resource(b, type, part->resource);
  }
  if (t->rows < rows) {
    ane_ai_value first = ane_ai_slice(b, list[0], 0, 0, 1, 1);
    list[n++] = ane_ai_broadcast_to(b, first, 3, (int64_t[]){rows - t->rows, 1, t->columns});
  }
  return n > 1 ? ane_ai_concat(b, list, n, 0) : list[0];
}

ane_ai_value coreai_table_value(struct ane_ai_build *b, struct ane_arena *arena, const struct coreai_embedding *t) {
  ane_ai_value list[ANE_PARTITION_EMBEDDINGS];
  for (int32_t i = 0; i < t->n; i++) list[i] = value_of(b, arena, &t->tables[i], t->tables[0].rows);
  /* analyser: n is at least 1. */
  return t->n > 1 ? ane_ai_concat(b, list, (uint32_t)t->n, 2) : list[0];
}

ane_status coreai_table_provide(const struct coreai_embedding *all, struct exporting *x,
                                const struct ane_mil_weight_request *request, struct ane_mil_weight *out, bool *done) {
  const struct coreai_table *t = &all->tables[0];
  struct ane_weights w = {.spec = {ANE_WEIGHT_FP16, 0}, .rows = request->to - request->from, .cols = t->columns};
  *done = false;
  if (!request->matrix || request->dtype != ANE_MIL_FP16 || !is_tied(x, t->value, request->value)) return ANE_OK;
  for (int32_t i = 0; i < t->n && !*done; i++) {
    const struct coreai_table_part *part = &t->parts[i];
    if (part->from != request->from || part->to != request->to) continue;
    uint64_t count = (uint64_t)w.rows * (uint64_t)w.cols;
    *out = (struct ane_mil_weight){.op = "const", .n_params = 1};
    out->params[0].name = "val";
    out->params[0].value = (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_FP16, request->rank, request->dim),
                                                  .kind = ANE_MIL_BLOB,
                                                  .count = count,
                                                  .bytes = 2 * count,
                                                  .file = ANE_MLPACKAGE_WEIGHTS,
                                                  .offset = (uint64_t)part->resource};
    w.error = part->error;
    *done = true;
  }
  if (!*done || !x->e->wrote || !ane_weight_sizes(w.spec, w.rows, w.cols, &w.sizes)) return ANE_OK;
  return x->e->wrote(x->e->arg, request->value, request->from, request->to, &w, x->err);
}
