/* Reading inputs: as numbers, lists, floats, integers. */
#include "prim/prim_internal.h"

#include "base/bytes.h"
#include "tensor/half.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

ane_status prim_fail(struct ane_prim_call *c, ane_status code, const char *fmt, ...) {
  char text[480];
  if (c->status) return c->status; /* the first error counts */
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  c->status = code;
  return ane_fail(c->err, code, "%s", text);
}

/* ---- Elements ------------------------------------------------------------------------------------------------------*/

static int64_t element_i64(ane_dtype t, const uint8_t *p, int64_t i) {
  switch (t) {
    case ANE_I8: return (int8_t)p[i];
    case ANE_U8: return p[i];
    case ANE_BOOL: return p[i] != 0;
    case ANE_I16: return (int16_t)ane_load_u16(p + 2 * i);
    case ANE_U16: return ane_load_u16(p + 2 * i);
    case ANE_I32: return (int32_t)ane_load_u32(p + 4 * i);
    case ANE_U32: return ane_load_u32(p + 4 * i);
    case ANE_I64:
    case ANE_U64: return (int64_t)ane_load_u64(p + 8 * i);
    case ANE_U4: return prim_code(p, 4, i);
    case ANE_I4: return (prim_code(p, 4, i) ^ 8) - 8;
    default: return 0;
  }
}

/* Converts a float to a 64-bit integer, towards zero. Saturates outside the range; NaN gives 0. */
static int64_t truncate_f32(float f) {
  if (f != f) return 0;
  if (f >= 0x1p63f) return INT64_MAX;
  return f < -0x1p63f ? INT64_MIN : (int64_t)f;
}

const float *prim_f32(struct ane_prim_call *c, const struct ane_dyn *t) {
  if (t->coded) {
    float *all = prim_temp(c, (uint64_t)t->count * sizeof *all);
    if (all) ane_coded_read(t->coded, 0, t->count, all);
    return all;
  }
  if (t->dtype == ANE_F32 && (uintptr_t)t->data % sizeof(float) == 0) return t->data ? t->data : "";
  float *out = prim_temp(c, (uint64_t)t->count * sizeof *out);
  if (!out) return NULL;
  if (t->dtype == ANE_U4 || t->dtype == ANE_I4) {
    for (int64_t i = 0; i < t->count; i++) out[i] = (float)element_i64(t->dtype, t->data, i);
    return out;
  }
  struct ane_error own;
  ane_status st = t->count ? ane_to_f32(t->dtype, t->data, out, (uint64_t)t->count, &own) : ANE_OK;
  if (!st) return out;
  prim_fail(c, st, "%s", own.text);
  return NULL;
}

const int64_t *prim_i64(struct ane_prim_call *c, const struct ane_dyn *t) {
  if (t->dtype == ANE_I64 && (uintptr_t)t->data % sizeof(int64_t) == 0) return t->data ? t->data : "";
  int64_t *out = prim_temp(c, (uint64_t)t->count * sizeof *out);
  if (!out) return NULL;
  if (prim_is_float(t->dtype)) {
    const float *f = prim_f32(c, t);
    if (!f) return NULL;
    for (int64_t i = 0; i < t->count; i++) out[i] = truncate_f32(f[i]);
  } else {
    for (int64_t i = 0; i < t->count; i++) out[i] = element_i64(t->dtype, t->data, i);
  }
  return out;
}

const void *prim_elements(struct ane_prim_call *c, const struct ane_dyn *t, ane_dtype *as) {
  *as = prim_is_float(t->dtype) ? ANE_F32 : t->dtype == ANE_I4 ? ANE_I8 : t->dtype == ANE_U4 ? ANE_U8 : t->dtype;
  if (*as == ANE_F32) return prim_f32(c, t);
  if (*as == t->dtype) return t->data ? t->data : "";
  uint8_t *out = prim_temp(c, (uint64_t)t->count);
  for (int64_t i = 0; out && i < t->count; i++) out[i] = (uint8_t)element_i64(t->dtype, t->data, i);
  return out;
}

void prim_store(ane_dtype t, void *dst, const int64_t *src, int64_t n) {
  if (t == ANE_BOOL) {
    for (int64_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = src[i] != 0;
    return;
  }
  size_t size = prim_width(t);
  for (int64_t i = 0; i < n; i++) memcpy((uint8_t *)dst + (size_t)i * size, &src[i], size); /* little endian: the low bytes */
}

/* ---- Parameters ----------------------------------------------------------------------------------------------------*/

static const struct ane_dyn *scalar(struct ane_prim_call *c, const char *name) {
  const struct ane_dyn *t = prim_in(c, name);
  char text[ANE_DYN_TEXT];
  if (t && t->count != 1) return prim_fail(c, ANE_SHAPE, "%s must be one number, but is %s", name, ane_dyn_text(t, text)), NULL;
  return t;
}

int64_t prim_int(struct ane_prim_call *c, const char *name, int64_t def) {
  const struct ane_dyn *t = scalar(c, name);
  if (!t) return def;
  if (!prim_is_float(t->dtype)) return element_i64(t->dtype, t->data, 0);
  const float *f = prim_f32(c, t);
  return f ? truncate_f32(*f) : def;
}

float prim_float(struct ane_prim_call *c, const char *name, float def) {
  const struct ane_dyn *t = scalar(c, name);
  if (!t) return def;
  const float *f = prim_f32(c, t);
  float v = def;
  if (f) memcpy(&v, f, sizeof v);
  return v;
}

bool prim_bool(struct ane_prim_call *c, const char *name, bool def) { return prim_int(c, name, def) != 0; }

int prim_axis(struct ane_prim_call *c, const char *name, int64_t def, int rank) {
  int64_t a = prim_int(c, name, def), at = a < 0 ? a + rank : a;
  if (at >= 0 && at < rank) return (int)at;
  prim_fail(c, ANE_INVALID, "%s is %" PRId64 ", not an axis of %d dimensions", name, a, rank);
  return 0;
}

int prim_ints(struct ane_prim_call *c, const char *name, int64_t *out, int most) {
  const struct ane_dyn *t = prim_in(c, name);
  char text[ANE_DYN_TEXT];
  if (!t) return -1;
  if (t->rank > 1 || t->count > most) {
    prim_fail(c, ANE_SHAPE, "%s must be a list of at most %d numbers, but is %s", name, most, ane_dyn_text(t, text));
    return -1;
  }
  const int64_t *v = prim_i64(c, t);
  if (!v) return -1;
  memcpy(out, v, (size_t)t->count * sizeof *out);
  return (int)t->count;
}

const char *prim_text(struct ane_prim_call *c, const char *name, const char *def, char out[PRIM_TEXT]) {
  const struct ane_dyn *t = prim_in(c, name);
  if (!t) return def;
  out[0] = '\0';
  if (t->dtype != ANE_U8 || t->count >= PRIM_TEXT) return out;
  memcpy(out, t->data, (size_t)t->count);
  out[t->count] = '\0';
  return out;
}

ane_dtype prim_dtype(struct ane_prim_call *c, const char *name, ane_dtype def) {
  char text[PRIM_TEXT];
  if (!prim_in(c, name)) return def;
  prim_text(c, name, "", text);
  ane_dtype t = ane_dtype_from_name(text, strlen(text));
  if (t != ANE_DTYPE_COUNT && prim_is_float(t)) return ANE_F32;
  if (t == ANE_BOOL || t == ANE_I64 || t == ANE_U64 || t == ANE_I32 || t == ANE_U32 || t == ANE_I16 || t == ANE_U16 ||
      t == ANE_I8 || t == ANE_U8)
    return t;
  prim_fail(c, ANE_UNSUPPORTED, "%s is \"%s\", which no result can have", name, text);
  return ANE_F32;
}

uint32_t prim_axes(struct ane_prim_call *c, const char *name, int rank) {
  int64_t list[ANE_DYN_RANK];
  int n = prim_ints(c, name, list, ANE_DYN_RANK);
  if (n < 0) return (1u << rank) - 1;
  uint32_t mask = 0;
  for (int i = 0; i < n; i++) {
    int64_t a = list[i] < 0 ? list[i] + rank : list[i];
    if (a < 0 || a >= rank || mask >> a & 1) {
      prim_fail(c, ANE_INVALID, "%s holds %" PRId64 ", not an axis of %d dimensions, or twice", name, list[i], rank);
      return mask;
    }
    mask |= 1u << a;
  }
  return mask;
}

/* ---- Shapes --------------------------------------------------------------------------------------------------------*/

void prim_strides(int rank, const int64_t *dim, int64_t *stride) {
  int64_t n = 1;
  for (int i = rank - 1; i >= 0; i--) stride[i] = n, n *= dim[i];
}

bool prim_broadcast(int ra, const int64_t *a, int rb, const int64_t *b, int *rank, int64_t out[ANE_DYN_RANK]) {
  int64_t tmp[ANE_DYN_RANK];
  int r = ANE_MAX(ra, rb);
  for (int i = 0; i < r; i++) {
    int64_t da = i < r - ra ? 1 : a[i - (r - ra)], db = i < r - rb ? 1 : b[i - (r - rb)];
    if (da != db && da != 1 && db != 1) return false;
    tmp[i] = da == 1 ? db : da;
  }
  /* analyser: the loop has written tmp[0 .. r - 1]. */
  memcpy(out, tmp, (size_t)r * sizeof *out);
  *rank = r;
  return true;
}

void prim_broadcast_strides(const struct ane_dyn *t, int rank, const int64_t *dim, int64_t *stride) {
  int64_t own[ANE_DYN_RANK];
  prim_strides(t->rank, t->dim, own);
  for (int i = 0; i < rank; i++) {
    int k = i - (rank - t->rank);
    /* analyser: k is below the rank of t, so own[k] is written. */
    stride[i] = k < 0 || (t->dim[k] == 1 && dim[i] != 1) ? 0 : own[k];
  }
}

/* ---- Copies --------------------------------------------------------------------------------------------------------*/

static void copy_run(uint8_t *dst, int64_t dst_step, const uint8_t *src, int64_t src_step, size_t size, int64_t n) {
  if (dst_step == 1 && src_step == 1) {
    memcpy(dst, src, (size_t)n * size);
    return;
  }
  for (int64_t i = 0; i < n; i++)
    memcpy(dst + (size_t)(i * dst_step) * size, src + (ptrdiff_t)(i * src_step) * (ptrdiff_t)size, size);
}

/* Copies one run along the last axis for each index of the other axes. */
static void copy_blocks(uint8_t *dst, const uint8_t *src, size_t size, int rank, const int64_t *dim, const int64_t *ds,
                        const int64_t *ss) {
  int64_t at[ANE_DYN_RANK] = {0}, outer = 1, n = rank ? dim[rank - 1] : 1, d = 0, s = 0;
  for (int i = 0; i + 1 < rank; i++) outer *= dim[i];
  for (int64_t k = 0; n > 0 && k < outer; k++) {
    copy_run(dst + d * (ptrdiff_t)size, rank ? ds[rank - 1] : 1, src + s * (ptrdiff_t)size, rank ? ss[rank - 1] : 1, size, n);
    for (int i = rank - 2; i >= 0; i--) {
      /* analyser: i is below the rank. */
      d += ds[i], s += ss[i];
      if (++at[i] < dim[i]) break;
      d -= ds[i] * dim[i], s -= ss[i] * dim[i], at[i] = 0;
    }
  }
}

void prim_copy(void *dst, const void *src, size_t size, int rank, const int64_t *dim, const int64_t *stride) {
  int64_t dense[ANE_DYN_RANK];
  prim_strides(rank, dim, dense);
  copy_blocks(dst, src, size, rank, dim, dense, stride);
}

void prim_copy_into(void *dst, const void *src, size_t size, int rank, const int64_t *dim, const int64_t *stride) {
  int64_t dense[ANE_DYN_RANK];
  prim_strides(rank, dim, dense);
  copy_blocks(dst, src, size, rank, dim, stride, dense);
}

/* ---- Threads -------------------------------------------------------------------------------------------------------*/

struct range {
  prim_range_fn fn;
  void *arg;
  int64_t n;
};

static void run_range(void *arg, int thread, int threads) {
  const struct range *r = arg;
  int64_t from, to;
  ane_split(r->n, thread, threads, &from, &to);
  if (from < to) r->fn(r->arg, from, to, thread);
}

void prim_parallel(const struct ane_prim_call *c, int64_t n, double work, prim_range_fn fn, void *arg) {
  struct range r = {fn, arg, n};
  if (n > 1 && work > 50000)
    ane_pool_run(c->pool, run_range, &r); /* waking the pool costs some microseconds */
  else if (n > 0)
    fn(arg, 0, n, 0);
}
