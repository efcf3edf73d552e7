/* Recurrent blocks in scalar C: the template with vectors of one element. */
#include "kernels/recurrent.h"

#include "base/status.h"
#include "kernels/vec/vec_scalar.h"

#include <stdint.h>

#define VL 1
#define V_REGISTERS 16

V_FN vf v_load_n(const float *p, int64_t n) { return (void)n, *p; }
V_FN void v_store_n(float *p, vf a, int64_t n) { (void)n, *p = a; }

#include "kernels/vec/recurrent_vec.h"

const struct ane_recurrent_kernels ane_recurrent_ref = {scan, delta};
