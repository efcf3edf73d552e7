/* Ops that move elements and compute nothing. */
#include "prim/prim_internal.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

ane_status prim_transpose(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t perm[ANE_DYN_RANK], own[ANE_DYN_RANK], dim[ANE_DYN_RANK], stride[ANE_DYN_RANK];
  int n = prim_ints(c, "perm", perm, ANE_DYN_RANK);
  uint32_t seen = 0;
  if (c->status) return c->status;
  if (n >= 0 && n != x->rank) return prim_fail(c, ANE_SHAPE, "perm has %d entries for %d dimensions", n, x->rank);
  prim_strides(x->rank, x->dim, own);
  for (int i = 0; i < x->rank; i++) {
    int64_t p = n < 0 ? x->rank - 1 - i : perm[i] < 0 ? perm[i] + x->rank : perm[i];
    if (p < 0 || p >= x->rank || seen >> p & 1) return prim_fail(c, ANE_INVALID, "perm is not a permutation of %d axes", x->rank);
    seen |= 1u << p;
    dim[i] = x->dim[p];
    stride[i] = own[p];
  }
  ane_dtype t;
  const void *v = prim_elements(c, x, &t);
  void *y = prim_out(c, 0, t, x->rank, dim);
  if (v && y) prim_copy(y, v, prim_width(t), x->rank, dim, stride);
  return c->status;
}

/* ---- Joining -------------------------------------------------------------------------------------------------------*/

/* Joins the operands to [outer, sum of n_i, inner]; operand i fills [outer, n_i, inner] of it. interleave: along the axis,
 * elements of all operands alternate (operands have the same shape). */
static ane_status join(struct ane_prim_call *c, int axis, int rank, const int64_t *dim, bool interleave) {
  int first = prim_first(c), parts = c->n_in - first;
  int64_t outer = 1, inner = 1, at = 0, total = dim[axis];
  ane_dtype t = ANE_F32, own;
  /* analyser: the axis is below the rank. */
  for (int i = 0; i < axis; i++) outer *= dim[i];
  for (int i = axis + 1; i < rank; i++) inner *= dim[i];
  for (int i = 0; i < parts; i++) { /* float32 if one is a float; else the type of the first */
    bool f = prim_is_float(c->in[first + i]->dtype);
    if (i == 0) (void)prim_elements(c, c->in[first], &t);
    if (f) t = ANE_F32;
  }
  char *y = prim_out(c, 0, t, rank, dim);
  if (!y) return c->status;
  for (int i = 0; i < parts; i++) {
    const struct ane_dyn *x = c->in[first + i];
    const char *v = prim_elements(c, x, &own);
    if (t == ANE_F32 && own != ANE_F32) v = (const char *)prim_f32(c, x), own = ANE_F32;
    if (!v) return c->status;
    if (own != t) return prim_fail(c, ANE_SHAPE, "parts are %s and %s", ane_dtype_info(t)->name, ane_dtype_info(own)->name);
    size_t size = prim_width(t);
    int64_t n = outer && inner ? x->count / (outer * inner) : 0;
    if (!interleave) {
      int64_t d[3] = {outer, n, inner}, s[3] = {total * inner, inner, 1};
      prim_copy_into(y + (size_t)(at * inner) * size, v, size, 3, d, s);
    } else {
      int64_t d[3] = {outer, n, inner}, s[3] = {total * inner, inner * parts, 1};
      prim_copy_into(y + (size_t)(i * inner) * size, v, size, 3, d, s);
    }
    at += n;
  }
  return c->status;
}

ane_status prim_concat(struct ane_prim_call *c) {
  int first = prim_first(c);
  if (c->n_in <= first) return prim_fail(c, ANE_INVALID, "nothing to join");
  const struct ane_dyn *a = c->in[first];
  char ta[ANE_DYN_TEXT], tb[ANE_DYN_TEXT];
  if (a->rank == 0) return prim_stack(c); /* MIL: each scalar is an element */
  int axis = prim_axis(c, "axis", 0, a->rank);
  bool interleave = prim_bool(c, "interleave", false);
  int64_t dim[ANE_DYN_RANK];
  if (c->status) return c->status;
  memcpy(dim, a->dim, sizeof dim);
  for (int k = first + 1; k < c->n_in; k++) {
    const struct ane_dyn *b = c->in[k];
    bool same = b->rank == a->rank;
    for (int i = 0; same && i < a->rank; i++) same = i == axis ? !interleave || b->dim[i] == a->dim[i] : b->dim[i] == a->dim[i];
    if (!same)
      return prim_fail(c, ANE_SHAPE, "%s and %s cannot be joined along axis %d", ane_dyn_text(a, ta), ane_dyn_text(b, tb), axis);
    if (__builtin_add_overflow(dim[axis], b->dim[axis], &dim[axis])) return prim_fail(c, ANE_RANGE, "the result is too large");
  }
  return join(c, axis, a->rank, dim, interleave);
}

ane_status prim_stack(struct ane_prim_call *c) {
  int first = prim_first(c);
  if (c->n_in <= first) return prim_fail(c, ANE_INVALID, "nothing to join");
  const struct ane_dyn *a = c->in[first];
  int axis = prim_axis(c, "axis", 0, a->rank + 1);
  int64_t dim[ANE_DYN_RANK + 1];
  for (int k = first; k < c->n_in; k++)
    if (c->in[k]->rank != a->rank || memcmp(c->in[k]->dim, a->dim, (size_t)a->rank * sizeof *dim) != 0)
      return prim_fail(c, ANE_SHAPE, "parts differ in shape");
  if (a->rank >= ANE_DYN_RANK) return prim_fail(c, ANE_UNSUPPORTED, "a result of %d dimensions", a->rank + 1);
  for (int i = 0; i <= a->rank; i++) dim[i] = i < axis ? a->dim[i] : i == axis ? c->n_in - first : a->dim[i - 1];
  return c->status ? c->status : join(c, axis, a->rank + 1, dim, false);
}

/* ---- Slicing -------------------------------------------------------------------------------------------------------*/

/* What a slice reads of each axis: count elements from `begin`, `step` apart. */
struct slice {
  int64_t begin[ANE_DYN_RANK], step[ANE_DYN_RANK], count[ANE_DYN_RANK];
  uint32_t squeeze; /* axes that are dropped: count is 1 */
};

static int64_t offset_of(const struct ane_dyn *x, const struct slice *k, int64_t stride[ANE_DYN_RANK]) {
  int64_t own[ANE_DYN_RANK], offset = 0;
  prim_strides(x->rank, x->dim, own);
  for (int i = 0; i < x->rank; i++) {
    if (k->count[i] > 0) offset += k->begin[i] * own[i];   /* an empty slice may begin at the end */
    stride[i] = k->count[i] > 1 ? own[i] * k->step[i] : 0; /* the step of a single element may have any size */
  }
  return offset;
}

static ane_status copy_slice(struct ane_prim_call *c, int out, const struct ane_dyn *x, const struct slice *k) {
  int64_t stride[ANE_DYN_RANK], dim[ANE_DYN_RANK];
  int rank = 0;
  ane_dtype t;
  const char *v = prim_elements(c, x, &t);
  for (int i = 0; i < x->rank; i++)
    if (!(k->squeeze >> i & 1)) dim[rank++] = k->count[i];
  int64_t offset = offset_of(x, k, stride);
  void *y = v ? prim_out(c, out, t, rank, dim) : NULL;
  if (y && c->out[out].count)
    prim_copy(y, v + (ptrdiff_t)offset * (ptrdiff_t)prim_width(t), prim_width(t), x->rank, k->count, stride);
  return c->status;
}

ane_status prim_split(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int axis = prim_axis(c, "axis", 0, ANE_MAX(x->rank, 1));
  int64_t sizes[ANE_PRIM_MAX_OUTPUTS], parts = prim_int(c, "num_splits", c->n_out), sum = 0;
  int n = prim_ints(c, "split_sizes", sizes, ANE_PRIM_MAX_OUTPUTS);
  if (c->status) return c->status;
  if (x->rank == 0) return prim_fail(c, ANE_SHAPE, "a scalar cannot be split");
  int64_t whole = x->dim[axis];
  if (n < 0) {
    if (parts < 1 || parts > c->n_out) return prim_fail(c, ANE_INVALID, "%" PRId64 " parts for %d outputs", parts, c->n_out);
    int64_t each = (whole + parts - 1) / parts;
    for (n = 0; n < parts; n++) sizes[n] = ANE_MIN(each, whole - ANE_MIN(whole, n * each));
  }
  for (int i = 0; i < n; i++) {
    if (sizes[i] < 0 || sizes[i] > whole - sum) return prim_fail(c, ANE_SHAPE, "parts do not fill %" PRId64 " elements", whole);
    sum += sizes[i];
  }
  if (sum != whole || n != c->n_out)
    return prim_fail(c, ANE_SHAPE, "%d parts of %" PRId64 " elements in total, expected %d outputs of %" PRId64, n, sum, c->n_out,
                     whole);
  int64_t at = 0;
  for (int i = 0; i < n && !c->status; i++) {
    struct slice k = {.squeeze = 0};
    for (int a = 0; a < x->rank; a++) k.step[a] = 1, k.count[a] = x->dim[a];
    k.begin[axis] = at;
    k.count[axis] = sizes[i];
    at += sizes[i];
    if (prim_wanted(c, i)) copy_slice(c, i, x, &k);
  }
  return c->status;
}

/* Returns the number of elements from `from` towards `to` (excluded) in steps. */
static int64_t count_between(int64_t from, int64_t to, int64_t step) {
  if (step > 0) return from < to ? (to - from - 1) / step + 1 : 0;
  return from > to ? (from - to - 1) / -step + 1 : 0;
}

/* Reads the masks and the stride of MIL's slices. */
static ane_status read_slice(struct ane_prim_call *c, const struct ane_dyn *x, struct slice *k) {
  int64_t begin[ANE_DYN_RANK], end[ANE_DYN_RANK], step[ANE_DYN_RANK], bm[ANE_DYN_RANK], em[ANE_DYN_RANK], sm[ANE_DYN_RANK];
  int n[6] = {prim_ints(c, "begin", begin, ANE_DYN_RANK), prim_ints(c, "end", end, ANE_DYN_RANK),
              prim_ints(c, "stride", step, ANE_DYN_RANK), prim_ints(c, "begin_mask", bm, ANE_DYN_RANK),
              prim_ints(c, "end_mask", em, ANE_DYN_RANK), prim_ints(c, "squeeze_mask", sm, ANE_DYN_RANK)};
  *k = (struct slice){.squeeze = 0};
  for (int i = 0; i < 6 && !c->status; i++)
    if (n[i] >= 0 && n[i] != x->rank) prim_fail(c, ANE_SHAPE, "a list of %d entries for %d dimensions", n[i], x->rank);
  for (int i = 0; i < x->rank && !c->status; i++) {
    int64_t d = x->dim[i], s = n[2] < 0 ? 1 : step[i], b = begin[i] < 0 ? begin[i] + d : begin[i],
            e = end[i] < 0 ? end[i] + d : end[i];
    if (s == 0 || s == INT64_MIN) return prim_fail(c, ANE_INVALID, "stride holds %" PRId64, s);
    if (n[3] > 0 && bm[i]) b = s > 0 ? 0 : d - 1;
    if (n[4] > 0 && em[i]) e = s > 0 ? d : -1;
    bool single = n[5] > 0 && sm[i];
    if (single) s = 1, k->squeeze |= 1u << i;
    if (b < (s > 0 ? 0 : -1) || b > d)
      return prim_fail(c, ANE_RANGE, "begin holds %" PRId64 ", but the axis has %" PRId64 " elements", begin[i], d);
    e = single ? ANE_MIN(b + 1, d) : s > 0 ? ANE_MIN(e, d) : ANE_MAX(e, -1);
    k->begin[i] = b;
    k->step[i] = s;
    k->count[i] = count_between(b, e, s);
    if (k->squeeze >> i & 1 && k->count[i] != 1) k->count[i] = -1;
    if (k->count[i] < 0 || (k->count[i] > 0 && (b < 0 || b >= d)))
      return prim_fail(c, ANE_RANGE, "begin holds %" PRId64 ", the axis has %" PRId64 " elements", begin[i], d);
  }
  return c->status;
}

ane_status prim_slice_by_index(struct ane_prim_call *c) {
  struct slice k;
  return read_slice(c, c->in[0], &k) ? c->status : copy_slice(c, 0, c->in[0], &k);
}

ane_status prim_slice_by_size(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  struct slice k = {.squeeze = 0};
  int a = prim_ints(c, "begin", k.begin, ANE_DYN_RANK), b = prim_ints(c, "size", k.count, ANE_DYN_RANK);
  if (!c->status && (a != x->rank || b != x->rank))
    prim_fail(c, ANE_SHAPE, "lists of %d and %d entries for %d dimensions", a, b, x->rank);
  for (int i = 0; i < x->rank && !c->status; i++) {
    if (k.begin[i] < 0) k.begin[i] += x->dim[i];
    if (k.count[i] == -1 && k.begin[i] >= 0) k.count[i] = x->dim[i] - k.begin[i];
    k.step[i] = 1;
    if (k.begin[i] < 0 || k.count[i] < 0 || k.begin[i] > x->dim[i] || k.count[i] > x->dim[i] - k.begin[i])
      prim_fail(c, ANE_RANGE, "%" PRId64 " elements at %" PRId64 " of %" PRId64, k.count[i], k.begin[i], x->dim[i]);
  }
  return c->status ? c->status : copy_slice(c, 0, x, &k);
}

ane_status prim_slice_by_axes(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t from[ANE_DYN_RANK], to[ANE_DYN_RANK], axes[ANE_DYN_RANK], steps[ANE_DYN_RANK];
  struct slice k = {.squeeze = 0};
  int n = prim_ints(c, "starts", from, ANE_DYN_RANK), m = prim_ints(c, "ends", to, ANE_DYN_RANK),
      na = prim_ints(c, "axes", axes, ANE_DYN_RANK), ns = prim_ints(c, "steps", steps, ANE_DYN_RANK);
  uint32_t seen = 0;
  if (c->status) return c->status;
  if (m != n || (na >= 0 && na != n) || (ns >= 0 && ns != n) || n > x->rank)
    return prim_fail(c, ANE_SHAPE, "starts, ends, axes and steps differ in length");
  for (int i = 0; i < x->rank; i++) k.step[i] = 1, k.count[i] = x->dim[i];
  for (int i = 0; i < n; i++) {
    int64_t a = na < 0 ? i : axes[i] < 0 ? axes[i] + x->rank : axes[i], s = ns < 0 ? 1 : steps[i];
    if (a < 0 || a >= x->rank || seen >> a & 1) return prim_fail(c, ANE_INVALID, "axes holds %" PRId64, a);
    if (s == 0 || s == INT64_MIN) return prim_fail(c, ANE_INVALID, "steps holds %" PRId64, s);
    int64_t d = x->dim[a], lo = s > 0 ? 0 : -1, hi = s > 0 ? d : d - 1;
    int64_t b = from[i] < 0 ? from[i] + d : from[i], e = to[i] < 0 ? to[i] + d : to[i];
    seen |= 1u << a;
    b = ANE_MIN(ANE_MAX(b, 0), hi); /* with a negative step too, a start before the axis means its first element */
    e = ANE_MIN(ANE_MAX(e, lo), hi + (s > 0 ? 0 : 1));
    k.begin[a] = b;
    k.step[a] = s;
    k.count[a] = count_between(b, e, s);
  }
  return copy_slice(c, 0, x, &k);
}

/* Copies the first count[i] elements of each dimension of u, contiguous. The caller frees them; NULL: no memory. */
static void *first_elements(const struct ane_dyn *u, const void *elements, size_t width, const int64_t *count, int64_t n) {
  int64_t stride[ANE_DYN_RANK], step = 1;
  for (int i = u->rank - 1; i >= 0; step *= u->dim[i--]) stride[i] = step;
  void *first = ane_malloc((size_t)n * width);
  if (first) prim_copy(first, elements, width, u->rank, count, stride);
  return first;
}

/* Replaces a slice of x. With clip, an update that reaches past the end of x is cut off there, as Core AI's library does (not for
 * squeezed slices). */
ane_status prim_slice_update(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *u = c->in[1];
  struct slice k;
  ane_dtype t, tu;
  int64_t stride[ANE_DYN_RANK], n = 1;
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  if (read_slice(c, x, &k)) return c->status;
  int rank = 0;
  bool same = true, clip = prim_bool(c, "clip", false) && !k.squeeze;
  for (int i = 0; i < x->rank; i++) {
    n *= k.count[i];
    if (k.squeeze >> i & 1) continue;
    same = same && rank < u->rank && (u->dim[rank] == k.count[i] || (clip && u->dim[rank] > k.count[i]));
    rank++;
  }
  if (!same || rank != u->rank || (u->count != n && !clip))
    return prim_fail(c, ANE_SHAPE, "update is %s, the slice %s", ane_dyn_text(u, a), ane_dyn_dims(x->rank, k.count, b));
  const void *v = prim_elements(c, x, &t), *w = prim_elements(c, u, &tu);
  char *y = v && w ? prim_out(c, 0, t, x->rank, x->dim) : NULL;
  if (!y) return c->status;
  if (t != tu) return prim_fail(c, ANE_SHAPE, "update is %s, x is %s", ane_dtype_info(tu)->name, ane_dtype_info(t)->name);
  memcpy(y, v, (size_t)x->count * prim_width(t));
  int64_t offset = offset_of(x, &k, stride);
  void *first = n && u->count > n ? first_elements(u, w, prim_width(t), k.count, n) : NULL;
  if (n && u->count > n && !first) return prim_fail(c, ANE_NOMEM, "no memory for the update");
  if (n)
    prim_copy_into(y + (ptrdiff_t)offset * (ptrdiff_t)prim_width(t), first ? first : w, prim_width(t), x->rank, k.count, stride);
  ane_free(first);
  return c->status;
}

/* ---- Repeating -----------------------------------------------------------------------------------------------------*/

ane_status prim_expand(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t want[ANE_DYN_RANK], dim[ANE_DYN_RANK], stride[ANE_DYN_RANK];
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  int n = prim_ints(c, "shape", want, ANE_DYN_RANK), rank;
  ane_dtype t;
  if (c->status) return c->status;
  if (!prim_broadcast(x->rank, x->dim, n, want, &rank, dim))
    return prim_fail(c, ANE_SHAPE, "%s does not expand to %s", ane_dyn_text(x, a), ane_dyn_dims(n, want, b));
  const void *v = prim_elements(c, x, &t);
  void *y = v ? prim_out(c, 0, t, rank, dim) : NULL;
  prim_broadcast_strides(x, rank, dim, stride);
  if (y && c->out[0].count) prim_copy(y, v, prim_width(t), rank, dim, stride);
  return c->status;
}

ane_status prim_tile(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t reps[ANE_DYN_RANK], dim[ANE_DYN_RANK], own[ANE_DYN_RANK], at[ANE_DYN_RANK] = {0};
  int n = prim_ints(c, "reps", reps, ANE_DYN_RANK);
  ane_dtype t;
  if (c->status) return c->status;
  if (n != x->rank) return prim_fail(c, ANE_SHAPE, "reps has %d entries for %d dimensions", n, x->rank);
  for (int i = 0; i < n; i++)
    if (reps[i] < 0 || __builtin_mul_overflow(x->dim[i], reps[i], &dim[i]))
      return prim_fail(c, ANE_RANGE, "reps holds %" PRId64, reps[i]);
  const char *v = prim_elements(c, x, &t);
  char *y = v ? prim_out(c, 0, t, n, dim) : NULL;
  prim_strides(n, x->dim, own);
  for (int64_t i = 0; y && i < c->out[0].count; i++) {
    int64_t from = 0;
    for (int k = 0; k < n; k++) from += at[k] % x->dim[k] * own[k];
    memcpy(y + (size_t)i * prim_width(t), v + (size_t)from * prim_width(t), prim_width(t));
    /* analyser: k is below the rank, and dim is set up to it. */
    for (int k = n - 1; k >= 0 && ++at[k] == dim[k]; k--) at[k] = 0;
  }
  return c->status;
}

ane_status prim_reverse(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  uint32_t mask = prim_axes(c, "axes", x->rank);
  struct slice k = {.squeeze = 0};
  for (int i = 0; i < x->rank; i++) {
    bool back = mask >> i & 1;
    k.begin[i] = back ? ANE_MAX(x->dim[i] - 1, 0) : 0;
    k.step[i] = back ? -1 : 1;
    k.count[i] = x->dim[i];
  }
  return c->status ? c->status : copy_slice(c, 0, x, &k);
}

/* Padding of an axis: negative numbers first cut elements off, so that `n` are left from `from` on; `before` and `after` are
 * added to these. */
struct padding {
  int64_t before, after, from, n;
};

enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE, PAD_WRAP };

/* Reads the mode by MIL's name or ONNX's. */
static enum pad_mode pad_mode(struct ane_prim_call *c) {
  static const struct {
    const char *name;
    enum pad_mode mode;
  } modes[] = {{"constant", PAD_CONSTANT},
               {"reflect", PAD_REFLECT},
               {"replicate", PAD_REPLICATE},
               {"edge", PAD_REPLICATE},
               {"wrap", PAD_WRAP}};
  char text[PRIM_TEXT];
  const char *mode = prim_text(c, "mode", "constant", text);
  for (size_t i = 0; i < ANE_COUNT(modes); i++)
    if (strcmp(modes[i].name, mode) == 0) return modes[i].mode;
  prim_fail(c, ANE_INVALID, "mode is \"%s\"; known are constant, reflect, replicate or edge, wrap", mode);
  return PAD_CONSTANT;
}

/* Reads the padding of each axis of x: by the list of axes, else that of the last ones. */
static ane_status read_pads(struct ane_prim_call *c, const struct ane_dyn *x, enum pad_mode mode, struct padding *p) {
  int64_t pad[2 * ANE_DYN_RANK], axes[ANE_DYN_RANK];
  int n = prim_ints(c, "pad", pad, 2 * ANE_DYN_RANK), na = prim_ints(c, "axes", axes, ANE_DYN_RANK);
  bool ends_last = prim_bool(c, "ends_last", false);
  uint32_t seen = 0;
  for (int i = 0; i < x->rank; i++) p[i] = (struct padding){.n = x->dim[i]};
  if (c->status) return c->status;
  if (n % 2 || n / 2 > x->rank || (na >= 0 && na != n / 2))
    return prim_fail(c, ANE_SHAPE, "pad has %d entries for %d dimensions", n, na >= 0 ? na : x->rank);
  for (int i = 0; i < n / 2; i++) {
    int64_t at = na < 0 ? x->rank - n / 2 + i : axes[i] < 0 ? axes[i] + x->rank : axes[i];
    if (at < 0 || at >= x->rank || seen >> at & 1)
      return prim_fail(c, ANE_INVALID, "axes holds %" PRId64 ", not an axis of %d dimensions, or twice", axes[i], x->rank);
    seen |= 1u << at;
    int64_t a = ends_last ? pad[i] : pad[2 * i], b = ends_last ? pad[n / 2 + i] : pad[2 * i + 1], d = x->dim[at];
    bool fits = a >= -d && b >= -d && a <= INT32_MAX && b <= INT32_MAX && d + a + b >= 0;
    if (fits) p[at] = (struct padding){ANE_MAX(a, 0), ANE_MAX(b, 0), ANE_MAX(-a, 0), d + ANE_MIN(a, 0) + ANE_MIN(b, 0)};
    int64_t most = mode == PAD_REFLECT ? p[at].n - 1 : p[at].n == 0 && mode != PAD_CONSTANT ? 0 : INT32_MAX;
    if (!fits || p[at].n < 0 || p[at].before > ANE_MAX(most, 0) || p[at].after > ANE_MAX(most, 0))
      return prim_fail(c, ANE_RANGE, "pad of %" PRId64 " and %" PRId64 " on %" PRId64 " elements", a, b, d);
  }
  return c->status;
}

/* Returns the source index of element i of a padded axis; -1: the constant. */
static int64_t pad_source(int64_t i, const struct padding *p, enum pad_mode mode) {
  i -= p->before;
  if (i < 0 || i >= p->n) {
    switch (mode) {
      case PAD_CONSTANT: return -1;
      case PAD_REPLICATE: i = i < 0 ? 0 : p->n - 1; break;
      case PAD_REFLECT: i = i < 0 ? -i : 2 * (p->n - 1) - i; break;
      case PAD_WRAP: i %= p->n, i += i < 0 ? p->n : 0; break;
    }
  }
  return p->from + i;
}

ane_status prim_pad(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *value = prim_in(c, "constant_val");
  int64_t dim[ANE_DYN_RANK], own[ANE_DYN_RANK], at[ANE_DYN_RANK] = {0}, fill[1] = {0};
  struct padding p[ANE_DYN_RANK];
  enum pad_mode mode = pad_mode(c);
  ane_dtype t;
  if (c->status || read_pads(c, x, mode, p)) return c->status;
  for (int i = 0; i < x->rank; i++) dim[i] = p[i].before + p[i].n + p[i].after;
  const char *v = prim_elements(c, x, &t);
  float f = t == ANE_F32 && value ? prim_float(c, "constant_val", 0) : 0;
  if (t != ANE_F32 && value) *fill = prim_int(c, "constant_val", 0);
  if (t == ANE_F32) memcpy(fill, &f, sizeof f);
  char *y = v && !c->status ? prim_out(c, 0, t, x->rank, dim) : NULL;
  prim_strides(x->rank, x->dim, own);
  for (int64_t i = 0; y && i < c->out[0].count; i++) {
    int64_t from = 0;
    for (int k = 0; k < x->rank && from >= 0; k++) {
      int64_t s = pad_source(at[k], &p[k], mode);
      from = s < 0 ? -1 : from + s * own[k];
    }
    memcpy(y + (size_t)i * prim_width(t), from < 0 ? (const char *)fill : v + (size_t)from * prim_width(t), prim_width(t));
    /* analyser: k is below the rank, and dim is set up to it. */
    for (int k = x->rank - 1; k >= 0 && ++at[k] == dim[k]; k--) at[k] = 0;
  }
  return c->status;
}

/* Sets elements below (upper) or above the k-th diagonal of the last two axes to zero. */
ane_status prim_trilu(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t k = prim_int(c, "k", 0);
  bool upper = prim_bool(c, "upper", true);
  ane_dtype t;
  if (x->rank < 2) return prim_fail(c, ANE_SHAPE, "x has %d dimensions, but must have two or more", x->rank);
  const char *v = prim_elements(c, x, &t);
  char *y = v && !c->status ? prim_out(c, 0, t, x->rank, x->dim) : NULL;
  int64_t rows = x->dim[x->rank - 2], cols = x->dim[x->rank - 1];
  for (int64_t i = 0; y && i < x->count; i++) {
    int64_t row = i / cols % rows, col = i % cols;
    int64_t shift = k > cols + rows ? cols + rows : k < -(cols + rows) ? -(cols + rows) : k;
    bool keep = upper ? col >= row + shift : col <= row + shift;
    if (keep)
      memcpy(y + (size_t)i * prim_width(t), v + (size_t)i * prim_width(t), prim_width(t));
    else
      memset(y + (size_t)i * prim_width(t), 0, prim_width(t));
  }
  return c->status;
}
