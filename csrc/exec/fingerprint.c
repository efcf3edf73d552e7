/* The fingerprint of a program, stored in saved sessions. Programs whose results differ have different fingerprints. */
#include "exec/planner.h"

static uint64_t hash_bytes(uint64_t h, const void *data, size_t n) {
  const uint8_t *b = data;
  for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u;
  return h;
}

uint64_t fingerprint_graph(const struct ane_program *p, const struct ane_graph *g, const struct ane_buffer *text) {
  enum { SAMPLES = 64, SAMPLE = 16, WHOLE = 4096 };
  uint64_t h = hash_bytes(0xcbf29ce484222325u, text->data, text->size);
  for (int32_t i = 0; i < g->n_values; i++) {
    const struct ane_tensor *t = &g->values[i].data;
    if (g->values[i].kind != ANE_VALUE_CONST) continue;
    if (t->bytes <= WHOLE)
      h = hash_bytes(h, t->data, (size_t)t->bytes);
    else
      for (uint64_t at = 0; at + SAMPLE <= t->bytes; at += t->bytes / SAMPLES)
        h = hash_bytes(h, (const uint8_t *)t->data + at, SAMPLE);
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
