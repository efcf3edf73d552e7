#include "kernels/vec/vec_avx2.h"
#include "kernels/vec/attention_vec.h"

void ane_attention_avx2(struct ane_kernels *k) {
  k->kv_write = kv_write;
  k->attention = attention;
  k->attention_part = attention_part;
  k->attention_merge = attention_merge;
}
