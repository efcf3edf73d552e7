#include "kernels/vec/vec_neon.h"
#include "kernels/vec/attention_vec.h"

void ane_attention_neon(struct ane_kernels *k) {
  k->kv_write = kv_write;
  k->attention = attention;
  k->attention_part = attention_part;
  k->attention_merge = attention_merge;
}
