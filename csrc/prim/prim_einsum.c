/* ONNX's and MIL's einsum (numpy.einsum). Sums are float64, those of integers 64 bits. */
#include "prim/prim_internal.h"

#include <string.h>

enum { OPERANDS = 4, LETTERS = 52 + ANE_DYN_RANK };

/* Letters of an equation and their sizes. Letters of the result come first, those that are summed over follow. The axes of an
 * ellipsis are letters too: '0' is the last of them, '1' the one before. */
struct letters {
  char name[LETTERS];
  int64_t size[LETTERS]; /* -1: not known */
  int n, n_out;
};

static int letter(struct letters *l, char name) {
  for (int i = 0; i < l->n; i++)
    if (l->name[i] == name) return i;
  /* analyser: there are no more different names. */
  l->name[l->n] = name;
  l->size[l->n] = -1;
  return l->n++;
}

static bool is_letter(char ch) { return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z'); }

/* Gives an axis of an operand to a letter. Axes of an ellipsis may have one element, which is repeated. */
static bool take_axis(struct letters *l, char name, int64_t dim, int64_t step, int64_t stride[LETTERS]) {
  int i = letter(l, name);
  bool repeat = !is_letter(name) && dim == 1;
  if (l->size[i] >= 0 && l->size[i] != dim && !repeat && (is_letter(name) || l->size[i] != 1)) return false;
  if (l->size[i] < 0 || !repeat) l->size[i] = dim;
  stride[i] += repeat ? 0 : step;
  return true;
}

/* Returns the number of letters of a term, which ends before `,`, `-` or the end; -1: it has other characters. *dots: does it
 * have an ellipsis? */
static int term_letters(const char *s, bool *dots) {
  int n = 0;
  *dots = false;
  for (; *s && *s != ',' && *s != '-'; s++) {
    if (strncmp(s, "...", 3) == 0 && !*dots)
      *dots = true, s += 2;
    else if (is_letter(*s))
      n++;
    else if (*s != ' ')
      return -1;
  }
  return n;
}

/* Reads the strides of operand `t` by letter. Its term begins at *s. */
static bool read_term(struct letters *l, const char **s, const struct ane_dyn *t, int64_t stride[LETTERS]) {
  int64_t own[ANE_DYN_RANK];
  bool dots;
  int axis = 0, n = term_letters(*s, &dots);
  prim_strides(t->rank, t->dim, own);
  memset(stride, 0, LETTERS * sizeof *stride);
  if (n < 0 || n > t->rank || (n < t->rank && !dots)) return false;
  for (; **s && **s != ',' && **s != '-'; ++*s) {
    if (**s == '.') {
      for (int k = t->rank - n - 1; k >= 0; k--, axis++)
        if (!take_axis(l, (char)('0' + k), t->dim[axis], own[axis], stride)) return false;
      *s += 2;
    } else if (**s != ' ') {
      if (!take_axis(l, **s, t->dim[axis], own[axis], stride)) return false;
      axis++;
    }
  }
  if (**s == ',') ++*s;
  return true;
}

/* Returns the most axes that an ellipsis of an operand stands for. */
static int ellipsis_axes(const struct ane_prim_call *c, const char *s) {
  int most = 0;
  for (int i = prim_first(c); i < c->n_in; i++) {
    bool dots;
    int n = term_letters(s, &dots);
    if (dots && n >= 0) most = ANE_MAX(most, c->in[i]->rank - n);
    s += strcspn(s, ",");
    if (*s == ',') s++;
  }
  return most;
}

/* Takes the letters of the result: as the equation says, or without an arrow the axes of ellipses, then the letters that occur
 * once, by the alphabet. */
static bool result_letters(struct letters *l, const char *s, int dots) {
  const char *arrow = strstr(s, "->");
  bool has, once = true;
  if (strchr(s, '-') != arrow) return false;
  if (arrow) {
    if (term_letters(arrow + 2, &has) < 0 || strpbrk(arrow + 2, ",-")) return false; /* one term, up to the end */
    for (const char *p = arrow + 2; *p; p++) {
      int before = l->n;
      if (*p == '.') {
        for (int k = dots - 1; k >= 0; k--) letter(l, (char)('0' + k));
        p += 2;
      } else if (*p != ' ') {
        letter(l, *p);
        once = once && l->n > before;
      }
    }
  } else {
    for (int k = dots - 1; k >= 0; k--) letter(l, (char)('0' + k));
    for (int code = 'A'; code <= 'z'; code++) {
      const char ch = (char)code;
      const char *first = is_letter(ch) ? strchr(s, ch) : NULL;
      if (first && !strchr(first + 1, ch)) letter(l, ch);
    }
  }
  l->n_out = l->n;
  return once && l->n <= ANE_DYN_RANK;
}

/* What a result sums: products of the operands' elements. */
struct einsum {
  struct letters l;
  int n;
  int64_t stride[OPERANDS][LETTERS];
  const float *f[OPERANDS]; /* floats, or NULL */
  const int64_t *i[OPERANDS];
};

static void sum_at(const struct einsum *e, const int64_t *base, double *sum, uint64_t *whole) {
  int64_t at[LETTERS] = {0}, o[OPERANDS];
  const struct letters *l = &e->l;
  for (int i = 0; i < e->n; i++) o[i] = base[i];
  for (;;) {
    double product = 1;
    uint64_t ints = 1;
    for (int i = 0; i < e->n; i++) {
      if (e->f[0])
        product *= (double)e->f[i][o[i]];
      else
        ints *= (uint64_t)e->i[i][o[i]];
    }
    *sum += product;
    *whole += ints;
    int k = l->n - 1;
    for (; k >= l->n_out; k--) {
      for (int i = 0; i < e->n; i++) o[i] += e->stride[i][k];
      if (++at[k] < l->size[k]) break;
      for (int i = 0; i < e->n; i++) o[i] -= e->stride[i][k] * l->size[k];
      at[k] = 0;
    }
    if (k < l->n_out) return;
  }
}

ane_status prim_einsum(struct ane_prim_call *c) {
  const struct ane_dyn *eq = c->in[0];
  char text[PRIM_TEXT];
  int first = prim_first(c), n = c->n_in - first;
  const char *s = prim_text(c, "equation", "", text);
  struct einsum e = {.n = n};
  struct letters *l = &e.l;
  int64_t dim[ANE_DYN_RANK], at[ANE_DYN_RANK] = {0}, base[OPERANDS] = {0};
  if (n < 1 || n > OPERANDS || eq->count >= PRIM_TEXT || !result_letters(l, s, ellipsis_axes(c, s)))
    return prim_fail(c, ANE_UNSUPPORTED, "the equation \"%s\" of %d operands", s, n);
  bool empty = false, floats = false;
  for (int i = 0; i < n; i++) {
    if (!read_term(l, &s, c->in[first + i], e.stride[i]))
      return prim_fail(c, ANE_SHAPE, "operand %d does not fit the equation \"%s\"", i + 1, text);
    floats = floats || prim_is_float(c->in[first + i]->dtype);
  }
  if (*s && *s != '-') return prim_fail(c, ANE_INVALID, "the equation \"%s\" has more terms than operands", text);
  for (int i = 0; i < l->n; i++) {
    if (l->size[i] < 0) return prim_fail(c, ANE_INVALID, "the equation \"%s\" has a result letter that no operand has", text);
    if (i < l->n_out)
      dim[i] = l->size[i];
    else
      empty = empty || l->size[i] == 0;
  }
  for (int i = 0; i < n && !c->status; i++) {
    if (floats)
      e.f[i] = prim_f32(c, c->in[first + i]);
    else
      e.i[i] = prim_i64(c, c->in[first + i]);
  }
  ane_dtype t = floats ? ANE_F32 : c->in[first]->dtype;
  char *y = c->status ? NULL : prim_out(c, 0, t, l->n_out, dim);
  for (int64_t i = 0; y && i < c->out[0].count; i++) {
    double sum = 0;
    uint64_t whole = 0;
    if (!empty) sum_at(&e, base, &sum, &whole);
    if (floats) {
      float f = (float)sum;
      memcpy(y + (size_t)i * sizeof f, &f, sizeof f);
    } else {
      prim_store(t, y + (size_t)i * prim_width(t), (const int64_t *)&whole, 1);
    }
    for (int k = l->n_out - 1; k >= 0; k--) {
      for (int o = 0; o < n; o++) base[o] += e.stride[o][k];
      if (++at[k] < l->size[k]) break;
      for (int o = 0; o < n; o++) base[o] -= e.stride[o][k] * l->size[k];
      at[k] = 0;
    }
  }
  return c->status;
}
