/* Plain weights: decoded, in memory. */
#include "mil/lower.h"

#include "quant/quant.h"
#include "quant/weight_schemes.h"
#include "tensor/finite.h"

#include <inttypes.h>
#include <string.h>

/* Converts n numbers to the type. false: one of them is not finite in this type. */
static bool round_into(ane_mil_dtype t, const float *src, void *dst, uint64_t n) {
  if (t != ANE_MIL_FP32) return ane_round_f16(src, n, dst);
  memcpy(dst, src, n * sizeof *src);
  return ane_all_finite(src, n);
}

ane_status ane_mil_weight_plain(void *arg, struct ane_arena *arena, const struct ane_mil_weight_request *request,
                                struct ane_mil_weight *out, struct ane_error *err) {
  (void)arg;
  struct ane_tensor t = request->graph->values[request->value].data;
  struct ane_weight_rows rows;
  /* Kernels over tokens, [C_out, C, K], are flattened to a matrix. */
  for (; t.shape.rank > 2; t.shape.rank--) t.shape.dim[t.shape.rank - 2] *= t.shape.dim[t.shape.rank - 1];
  ane_status st = ane_weight_rows_of(&t, &rows, err);
  if (st) return st;
  uint64_t per = (uint64_t)rows.cols, n = (uint64_t)(request->to - request->from) * per;
  size_t size = request->dtype == ANE_MIL_FP32 ? 4 : 2;
  float *row = ane_arena_array(arena, per, sizeof *row);
  uint8_t *data = ane_arena_array(arena, n, size);
  if (!row || !data) return ane_fail(err, ANE_NOMEM, "no memory for the weight");
  for (int64_t r = request->from; r < request->to; r++) {
    rows.read(rows.arg, r, 1, row);
    for (uint64_t i = 0; i < per; i++) row[i] = (row[i] + request->add) * request->times;
    if (!round_into(request->dtype, row, data + (uint64_t)(r - request->from) * per * size, per))
      return ane_fail(err, ANE_INVALID, "%s %" PRId64 " %s not finite%s", per > 1 ? "row" : "element", r,
                      per > 1 ? "has an element that is" : "is", request->dtype == ANE_MIL_FP32 ? "" : ", or beyond fp16");
  }
  *out = (struct ane_mil_weight){.op = "const", .n_params = 1};
  out->params[0].name = "val";
  out->params[0].value = (struct ane_mil_value){.type = ane_mil_tensor_type(request->dtype, request->rank, request->dim),
                                                .kind = ANE_MIL_NUMBERS,
                                                .count = n,
                                                .data = data,
                                                .bytes = n * size};
  return ANE_OK;
}
