/* Facts about a program for its callers. */
#include "exec/program_internal.h"

#include <inttypes.h>
#include <stdio.h>

struct ane_program_info ane_program_info(const struct ane_program *p) {
  struct ane_program_info i = {.isa = p->o.isa,
                               .threads = p->o.threads,
                               .context = p->o.context,
                               .chunk = p->o.chunk,
                               .n_ids = p->n_ids,
                               .vocab = p->vocab,
                               .int8 = p->o.int8,
                               .weight_bytes = p->slab_bytes,
                               .scratch_bytes = p->scratch_bytes + p->result_block_bytes,
                               .n_matrices = p->n_matrices,
                               .n_steps = p->n_steps,
                               .exchanged_bytes = (uint64_t)p->exchanged * sizeof(float),
                               .long_rope_after = p->long_rope_after};
  for (int32_t m = 0; m < p->n_matrices; m++) i.stored_bytes += p->matrices[m].stored.bytes;
  for (int32_t l = 0; l < p->n_kv; l++) i.kv_bytes_per_token += (uint64_t)(p->kv[l].heads * p->kv[l].head_dim) * 4;
  return i;
}

const char *ane_program_value(const struct ane_program *p, int32_t i, int64_t *channels) {
  for (int32_t v = 0; v < p->n_slots; v++) {
    if (!p->slots[v].name || i-- > 0) continue;
    if (channels) *channels = p->slots[v].channels;
    return p->slots[v].name;
  }
  return NULL;
}

struct ane_matrix_info ane_program_matrix(const struct ane_program *p, int32_t i) {
  static const char *const names[] = {"fp32", "int8", "bf16"};
  const struct matrix *m = &p->matrices[i];
  const struct ane_packed *w = &m->packed;
  size_t bytes = m->stored.bytes;
  if (w->layout != ANE_LAYOUT_ROWS) ane_packed_bytes(w, &bytes);
  return (struct ane_matrix_info){.name = m->name,
                                  .layout = ane_layout_info(w->layout)->name,
                                  .activations = names[m->activation_type],
                                  .dtype = w->dtype,
                                  .stored = m->stored.dtype,
                                  .input = m->input,
                                  .weights = m->by_scheme ? ane_weight_spec_name(m->spec) : NULL,
                                  .unfit = m->unfit,
                                  .rows = w->rows,
                                  .cols = w->cols,
                                  .bytes = bytes,
                                  .recoded = m->recoded,
                                  .error = m->error};
}

bool ane_program_print(const struct ane_program *p, struct ane_buffer *out) {
  for (int32_t i = 0; i < p->n_steps; i++) {
    const struct step *s = &p->steps[i];
    char line[256];
    int n = snprintf(line, sizeof line, "%-12s %-40s", s->op->name, s->name);
    if (n < 0 || !ane_buffer_append(out, line, ANE_MIN((size_t)n, sizeof line - 1))) return false;
    for (int o = 0; o < MAX_LINEAR && s->out[o]; o++) {
      n = snprintf(line, sizeof line, " @%zu x %" PRId64 "%s", s->out[o]->offset, s->out[o]->channels,
                   s->out[o]->result ? " result" : "");
      if (n < 0 || !ane_buffer_append(out, line, (size_t)n)) return false;
    }
    if (!ane_buffer_append(out, "\n", 1)) return false;
  }
  return true;
}
