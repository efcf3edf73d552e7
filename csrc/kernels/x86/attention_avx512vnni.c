#define V_VNNI
#include "kernels/vec/vec_avx512.h"
#include "kernels/vec/attention_vec.h"

void ane_attention_avx512vnni(struct ane_kernels *k) {
  k->kv_write = kv_write;
  k->attention = attention;
  k->attention_part = attention_part;
  k->attention_merge = attention_merge;
}
