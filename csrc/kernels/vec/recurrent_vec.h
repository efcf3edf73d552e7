/* Recurrent blocks for any vector length; included by recurrent_<isa>.c after vec_<isa>.h. A slice of columns of the state
 * processes all tokens before the next slice starts, so that it stays in the L1 cache. One token reads each state once, from
 * memory: its slices are WIDE vectors, whole cache lines side by side. Several tokens have slices of NARROW vectors. */
#include "kernels/recurrent.h"

enum { NARROW = 2, WIDE = V_REGISTERS >= 32 ? 4 : 2 /* vectors of a slice; each has four sums in registers */ };

#define EACH_VECTOR _Pragma("GCC unroll 4") for (int j = 0; j < nv; j++)
/* All rows i of a state of n rows, with the row at s; the sums of row i have the index k = i % 4. */
#define EACH_ROW(s, a, at)                                                                                                       \
  float *s = (a)->state + (at);                                                                                                  \
  for (int64_t i = 0; i < (a)->n; i += 4) _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++, s += (a)->width) if (i + k < (a)->n)

V_FN vf four(const vf a[4]) { return v_add(v_add(a[0], a[1]), v_add(a[2], a[3])); }

V_FN void clear(int nv, vf sum[WIDE][4]) { EACH_VECTOR sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = v_set(0); }

/* Computes nv vectors of columns from `at` on of a scan. m: columns of a vector, VL if nv is not 1. */
V_FN void scan_columns(const struct ane_scan *a, int nv, int64_t at, int64_t m) {
  for (int64_t t = 0; t < a->tokens; t++) {
    const float *b = a->b + t * a->ld, *c = a->c + t * a->ld;
    const vf decay = v_set(a->decay[t]);
    vf x[WIDE], u[WIDE], sum[WIDE][4];
    clear(nv, sum);
    EACH_VECTOR x[j] = v_load_n(a->x + t * a->ld + at + j * VL, m), u[j] = v_mul(v_set(a->dt[t]), x[j]);
    EACH_ROW(s, a, at) {
      EACH_VECTOR {
        vf y = v_fma(v_set(b[i + k]), u[j], v_mul(decay, v_load_n(s + j * VL, m)));
        v_store_n(s + j * VL, y, m);
        sum[j][k] = v_fma(v_set(c[i + k]), y, sum[j][k]);
      }
    }
    EACH_VECTOR v_store_n(a->y + t * a->y_ld + at + j * VL, v_fma(v_set(a->d), x[j], four(sum[j])), m);
  }
}

/* Computes nv vectors of columns from `at` on of a delta rule. m: columns of a vector, VL if nv is not 1. */
V_FN void delta_columns(const struct ane_delta *a, int nv, int64_t at, int64_t m) {
  for (int64_t t = 0; t < a->tokens; t++) {
    const float *q = a->q + t * a->n, *key = a->k + t * a->n;
    const vf decay = v_set(a->decay[t]), beta = v_set(a->beta[t]);
    vf e[WIDE], sum[WIDE][4];
    clear(nv, sum);
    {
      EACH_ROW(s, a, at) { EACH_VECTOR sum[j][k] = v_fma(v_set(key[i + k]), v_mul(decay, v_load_n(s + j * VL, m)), sum[j][k]); }
    }
    EACH_VECTOR e[j] = v_mul(beta, v_sub(v_load_n(a->v + t * a->v_ld + at + j * VL, m), four(sum[j])));
    clear(nv, sum);
    EACH_ROW(s, a, at) {
      EACH_VECTOR {
        vf y = v_fma(v_set(key[i + k]), e[j], v_mul(decay, v_load_n(s + j * VL, m)));
        v_store_n(s + j * VL, y, m);
        sum[j][k] = v_fma(v_set(q[i + k]), y, sum[j][k]);
      }
    }
    EACH_VECTOR v_store_n(a->y + t * a->y_ld + at + j * VL, four(sum[j]), m);
  }
}

/* Calls `columns` for all columns, in slices of `wide` vectors, then of one vector, then of the rest. */
#define ALL_COLUMNS(columns, a, wide)                                                                                            \
  for (; at + (wide)*VL <= (a)->width; at += (wide)*VL) columns(a, wide, at, VL);                                                \
  for (; at + VL <= (a)->width; at += VL) columns(a, 1, at, VL);                                                                 \
  if (at < (a)->width) columns(a, 1, at, (a)->width - at);

static void scan(const struct ane_scan *a) {
  int64_t at = 0;
  if (a->tokens == 1)
    for (; at + WIDE * VL <= a->width; at += WIDE * VL) scan_columns(a, WIDE, at, VL);
  ALL_COLUMNS(scan_columns, a, NARROW)
}

static void delta(const struct ane_delta *a) {
  int64_t at = 0;
  if (a->tokens == 1)
    for (; at + WIDE * VL <= a->width; at += WIDE * VL) delta_columns(a, WIDE, at, VL);
  ALL_COLUMNS(delta_columns, a, NARROW)
}
