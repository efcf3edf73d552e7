/* The fingerprint of a program, stored in saved sessions. Programs whose results differ have different fingerprints. */
#include "exec/planner.h"

static uint64_t hash_bytes(uint64_t h, const void *data, size_t n) {
  const uint8_t *b = data;
  for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
  return h;
}

enum { SAMPLES = 64, SAMPLE = 16, WHOLE = 4096 };

/* Hashes all bytes if there are at most WHOLE of them; otherwise samples of SAMPLE bytes at about SAMPLES equal distances. */
static uint64_t hash_samples(uint64_t h, const void *data, uint64_t bytes) {
  if (bytes <= WHOLE) return hash_bytes(h, data, (size_t)bytes);
  for (uint64_t at = 0; at + SAMPLE <= bytes; at += bytes / SAMPLES) h = hash_bytes(h, (const uint8_t *)data + at, SAMPLE);
  return h;
}

/* Hashes a matrix that is gathered from pieces: the scales or tables of all pieces, and the codes of all but the first, which the
 * caller hashes. rows: the rows of a piece that does not state its own number. */
static uint64_t hash_gather(uint64_t h, const struct ane_gather *g, int64_t rows, int64_t cols) {
  for (bool first = true; g; g = g->next, first = false) {
    int64_t n = g->rows ? g->rows : rows;
    if (!first) h = hash_samples(h, g->data, g->bytes);
    if (g->table)
      h = hash_samples(h, g->table, ((uint64_t)((n - 1) / g->row_block + 1) << g->bits) * ane_dtype_info(g->table_dtype)->bytes);
    if (!g->scales || g->g_idx) continue;
    int64_t last = (n - 1) / g->row_block * g->scale_row + (cols - 1) / g->block * g->scale_col;
    size_t size = g->fp4 ? 1 : ane_dtype_info(g->scale_dtype)->bytes;
    h = hash_samples(h, (const uint8_t *)g->scales + (size_t)g->scale_base * size, (uint64_t)(last + 1) * size);
    if (!g->zeros || g->zero_bits || (g->zero_dtype != ANE_F16 && g->zero_dtype != ANE_F32)) continue;
    size = ane_dtype_info(g->zero_dtype)->bytes; /* offsets that are floats */
    h = hash_samples(h, (const uint8_t *)g->zeros + (size_t)g->scale_base * size, (uint64_t)(last + 1) * size);
  }
  return h;
}

/* Hashes a constant. For other values it returns h unchanged. */
static uint64_t hash_const(uint64_t h, const struct ane_value *v) {
  const struct ane_tensor *t = &v->data;
  if (v->kind != ANE_VALUE_CONST) return h;
  h = hash_samples(h, t->data, t->bytes);
  if (t->gather && t->shape.rank == 2) h = hash_gather(h, t->gather, t->row0 + t->shape.dim[0], t->shape.dim[1]);
  return h;
}

/* Hashes the numbers and the constants of the nodes that the stage holds. */
static uint64_t hash_stage(uint64_t h, const struct planner *pl) {
  for (int32_t i = 0; i < pl->g->n_nodes; i++) {
    const struct ane_node *n = &pl->g->nodes[i];
    if (!pl->held[i]) continue;
    h = hash_bytes(h, &i, sizeof i);
    for (int32_t j = 0; j < n->n_inputs; j++)
      if (n->inputs[j] != ANE_NONE) h = hash_const(h, &pl->g->values[n->inputs[j]]);
  }
  return h;
}

uint64_t fingerprint_graph(const struct planner *pl, const struct ane_buffer *text) {
  const struct ane_program *p = pl->p;
  uint64_t h = hash_bytes(0xcbf29ce484222325u, text->data, text->size);
  if (p->o.stage)
    h = hash_stage(h, pl);
  else
    for (int32_t i = 0; i < pl->g->n_values; i++)
      if (!p->exchange || pl->matrix_of[i] < 0) h = hash_const(h, &pl->g->values[i]);
  for (int32_t i = 0; p->exchange && i < p->n_matrices; i++) { /* it reads its own rows only */
    h = hash_bytes(h, &p->matrices[i].first, sizeof p->matrices[i].first);
    h = hash_samples(h, p->matrices[i].stored.data, p->matrices[i].stored.bytes);
  }
  for (int32_t i = 0; i < p->n_matrices; i++) {
    const ane_layout layout = p->matrices[i].packed.layout; /* a head in the split layout holds the same numbers */
    const int32_t held[] = {(int32_t)(layout == ANE_LAYOUT_Q8_0_SPLIT ? ANE_LAYOUT_Q8_0 : layout),
                            (int32_t)p->matrices[i].packed.dtype, (int32_t)p->matrices[i].activation_type};
    h = hash_bytes(h, held, sizeof held);
  }
  const int32_t options[] = {p->o.int8, (int32_t)p->o.isa, (int32_t)p->o.weights.kind};
  return hash_bytes(h, options, sizeof options);
}

uint64_t fingerprint_packed(const struct ane_program *p) {
  uint64_t h = p->fingerprint;
  for (int32_t i = 0; i < p->n_matrices; i++)
    if (p->matrices[i].recoded) h = hash_bytes(h, &p->matrices[i].error.error, sizeof(double));
  return h;
}

/* Bytes of each constant that ane_stage_identity hashes: few, because each process should read little beyond its own weights. */
enum { SAMPLE_IDENTITY = 16 };

ane_status ane_stage_identity(const struct ane_graph *g, uint64_t *out, struct ane_error *err) {
  struct ane_buffer text = {0};
  if (!ane_graph_print(g, &text)) {
    ane_buffer_free(&text);
    return ane_fail(err, ANE_NOMEM, "no memory to print the graph");
  }
  uint64_t h = hash_bytes(0xcbf29ce484222325u, text.data, text.size);
  ane_buffer_free(&text);
  for (int32_t i = 0; i < g->n_values; i++) {
    const struct ane_tensor *t = &g->values[i].data;
    if (g->values[i].kind != ANE_VALUE_CONST || !t->data) continue;
    uint64_t bytes = ANE_MIN(t->bytes, (uint64_t)SAMPLE_IDENTITY);
    h = hash_bytes(h, (const uint8_t *)t->data + (t->bytes - bytes) / 2, (size_t)bytes);
  }
  *out = h;
  return ANE_OK;
}
