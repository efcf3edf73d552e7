/* The table of each level. ref fills every entry; the overlays of the architecture then replace the entries they implement. */
#include "kernels/kernels_internal.h"

#include <pthread.h>

bool ane_half_units;

static struct ane_kernels tables[ANE_ISA_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void build(void) {
  ane_half_units = ane_cpu_halves_512();
  for (int isa = 0; isa < ANE_ISA_COUNT; isa++) {
    struct ane_kernels *k = &tables[isa];
    if (!ane_isa_available((ane_isa)isa)) continue;
    ane_matmul_ref(k);
    ane_norm_ref(k);
    ane_low_rank_ref(k);
    ane_elementwise_ref(k);
    ane_attention_ref(k);
#if defined(__x86_64__) || defined(__i386__)
    ane_kernels_init_x86(k, (ane_isa)isa);
#elif defined(__aarch64__)
    ane_kernels_init_arm(k, (ane_isa)isa);
#endif
    k->isa = (ane_isa)isa;
  }
}

const struct ane_kernels *ane_kernels_get(ane_isa isa) {
  pthread_once(&once, build);
  return &tables[isa];
}

/* Returns the maximum over all levels. It does not depend on the number of tokens of x. */
size_t ane_matmul_scratch(const struct ane_packed *w) {
  (void)w;
  return ANE_SCRATCH;
}
