/* core.testing, matrix products: packs stored rows, prepares activations and multiplies at a given level. Floats are passed as
 * strings of native float32, so that specs can compare bits. */
#include "binding/bind.h"

#include "base/alloc.h"
#include "kernels/kernels.h"
#include "platform/platform.h"
#include "quant/quant.h"

#include <string.h>

#define MATRIX_CLASS "ane.testing.matrix"

struct matrix {
  struct ane_packed w;
  uint8_t *memory;  /* w.data lies in it; NULL: closed */
  float *row_scale; /* of int8; of lut4 its tables; else NULL */
};

static const char *const activation_names[] = {"fp32", "int8", "bf16", NULL}; /* ORDER ane_activation_type */

/* Pushes a userdata and returns an address in it that is a multiple of 64. */
static void *push_buffer(lua_State *L, size_t size) {
  return (void *)ane_align_up((size_t)lua_newuserdatauv(L, size + 63, 0), 64);
}

static int matrix_gc(lua_State *L) {
  struct matrix *m = luaL_checkudata(L, 1, MATRIX_CLASS);
  ane_free(m->memory);
  ane_free(m->row_scale);
  *m = (struct matrix){0};
  return 0;
}

static int matrix_layout(lua_State *L) {
  struct matrix *m = luaL_checkudata(L, 1, MATRIX_CLASS);
  lua_pushstring(L, ane_layout_info(m->w.layout)->name);
  return 1;
}

static const luaL_Reg matrix_methods[] = {{"layout", matrix_layout}, {NULL, NULL}};
static const luaL_Reg matrix_meta[] = {{"__gc", matrix_gc}, {NULL, NULL}};

/* Sets up m->w and its memory for a layout; raises if memory is out. */
static void matrix_make(lua_State *L, struct matrix *m, ane_layout f, ane_dtype t, int64_t rows, int64_t cols) {
  m->w = (struct ane_packed){.layout = f, .dtype = t, .rows = rows, .cols = cols, .groups = (rows + ANE_GROUP - 1) / ANE_GROUP};
  uint64_t row_bytes;
  size_t size = 0;
  luaL_argcheck(L, ane_dtype_bytes(t, (uint64_t)cols, &row_bytes), 3, "no whole number of blocks");
  m->w.row_bytes = (size_t)row_bytes;
  luaL_argcheck(L, ane_layout_group_bytes(f, cols, &m->w.group_bytes) && (f == ANE_LAYOUT_ROWS || ane_packed_bytes(&m->w, &size)),
                3, "too large");
  if (f == ANE_LAYOUT_ROWS) size = (size_t)row_bytes * (size_t)rows;
  m->memory = ane_malloc(size + 63);
  if (f == ANE_LAYOUT_I8) m->row_scale = ane_calloc((size_t)m->w.groups, ANE_GROUP * sizeof(float));
  if (!m->memory || (f == ANE_LAYOUT_I8 && !m->row_scale)) luaL_error(L, "not enough memory");
  ane_packed_place(&m->w, (const void *)ane_align_up((size_t)m->memory, 64));
  m->w.row_scale = m->row_scale;
}

/* matmul_pack(dtype, rows, cols, bytes [, row scales]) -> matrix; dtype "halves": of q8_0, in two halves */
static int matmul_pack(lua_State *L) {
  size_t len, name_len;
  const char *name = luaL_checklstring(L, 1, &name_len);
  int64_t rows = bind_integer(L, 2, 1, 1 << 20), cols = bind_integer(L, 3, 1, 1 << 20);
  const char *bytes = luaL_checklstring(L, 4, &len);
  bool halves = !strcmp(name, "halves");
  ane_dtype t = halves ? ANE_Q8_0 : ane_dtype_from_name(name, name_len);
  luaL_argcheck(L, t != ANE_DTYPE_COUNT, 1, "no such dtype");
  ane_layout f = halves && cols % ANE_BLOCK == 0 ? ANE_LAYOUT_Q8_0_SPLIT : ane_layout_for(t, cols);
  luaL_argcheck(L, f != ANE_LAYOUT_ROWS || ane_decoder(t), 1, "no decoder for this dtype");
  struct matrix *m = bind_new(L, MATRIX_CLASS, sizeof *m, 0);
  matrix_make(L, m, f, t, rows, cols);
  luaL_argcheck(L, len == m->w.row_bytes * (size_t)rows, 4, "wrong number of bytes");
  if (m->row_scale) {
    const char *scale = luaL_checklstring(L, 5, &len);
    luaL_argcheck(L, len == sizeof(float) * (size_t)rows, 5, "one float a row expected");
    memcpy(m->row_scale, scale, len);
  }
  uint8_t *data = (uint8_t *)m->w.data;
  if (f == ANE_LAYOUT_ROWS)
    memcpy(data, bytes, len);
  else
    for (int64_t g = 0; g < m->w.groups; g++)
      ane_pack_rows(&m->w, t, bytes + (size_t)(g * ANE_GROUP) * m->w.row_bytes, m->w.row_bytes,
                    (int)ANE_MIN(rows - g * ANE_GROUP, ANE_GROUP), g);
  return 1;
}

/* matmul_pack_lut4(rows, cols, codes (a byte each), tables (floats, 16 for each 8 rows of whole groups)) -> matrix */
static int matmul_pack_lut4(lua_State *L) {
  size_t len, lut_len;
  int64_t rows = bind_integer(L, 1, 1, 1 << 20), cols = bind_integer(L, 2, 1, 1 << 20);
  const char *codes = luaL_checklstring(L, 3, &len), *lut = luaL_checklstring(L, 4, &lut_len);
  luaL_argcheck(L, len == (size_t)(rows * cols), 3, "rows * cols bytes expected");
  struct matrix *m = bind_new(L, MATRIX_CLASS, sizeof *m, 0);
  matrix_make(L, m, ANE_LAYOUT_LUT4, ANE_U8, rows, cols);
  luaL_argcheck(L, lut_len == sizeof(float) * 32 * (size_t)m->w.groups, 4, "32 floats a group expected");
  if (!(m->row_scale = ane_malloc(lut_len))) return luaL_error(L, "not enough memory");
  memcpy(m->row_scale, lut, lut_len);
  m->w.lut = m->row_scale;
  for (int64_t g = 0; g < m->w.groups; g++)
    ane_pack_group(ANE_LAYOUT_LUT4, ANE_U8, codes + g * ANE_GROUP * cols, (size_t)cols,
                   (int)ANE_MIN(rows - g * ANE_GROUP, ANE_GROUP), cols, (uint8_t *)m->w.data + (size_t)g * m->w.group_bytes);
  return 1;
}

static const struct ane_kernels *check_level(lua_State *L, int arg) {
  ane_isa isa = ane_isa_from_name(luaL_checkstring(L, arg));
  luaL_argcheck(L, isa != ANE_ISA_COUNT && ane_isa_available(isa), arg, "level not available");
  return ane_kernels_get(isa);
}

/* Prepares t tokens of floats (a string at `arg`), `precise` as in ane_activations; pushes the buffer that *a points into. */
static void push_activations(lua_State *L, int arg, const struct ane_kernels *k, ane_activation_type kind, int64_t t,
                             int64_t cols, bool precise, struct ane_activations *a) {
  size_t len;
  const char *floats = luaL_checklstring(L, arg, &len);
  luaL_argcheck(L, len == sizeof(float) * (size_t)(t * cols), arg, "t * cols floats expected");
  float *x = push_buffer(L, len);
  memcpy(x, floats, len);
  ane_activations_place(a, kind, t, cols, push_buffer(L, ane_activations_bytes(kind, t, cols)));
  a->precise = precise;
  if (kind == ANE_ACTIVATION_F32)
    a->f32 = x;
  else if (kind == ANE_ACTIVATION_I8)
    k->quantise_i8(a, x, cols, 0, t);
  else
    k->convert_bf16(a, x, cols, 0, t);
}

/* matmul(matrix, level, type, x, t [, g_from, g_to]) -> floats [t][16 * groups + 1], or nil if the level does not offer
 * the pair. What the product does not write is -77. */
static int matmul(lua_State *L) {
  struct matrix *m = luaL_checkudata(L, 1, MATRIX_CLASS);
  const struct ane_kernels *k = check_level(L, 2);
  ane_activation_type type = (ane_activation_type)luaL_checkoption(L, 3, NULL, activation_names);
  int64_t t = bind_integer(L, 5, 1, 1 << 16);
  int64_t g_from = bind_opt_integer(L, 6, 0, 0, m->w.groups), g_to = bind_opt_integer(L, 7, m->w.groups, g_from, m->w.groups);
  int64_t ld = m->w.groups * ANE_GROUP + 1;
  struct ane_activations a;
  if (!k->matmul[m->w.layout][type]) return lua_pushnil(L), 1;
  push_activations(L, 4, k, type, t, m->w.cols, true, &a);
  void *scratch = push_buffer(L, ane_matmul_scratch(&m->w));
  float *out = push_buffer(L, sizeof(float) * (size_t)(t * ld));
  for (int64_t i = 0; i < t * ld; i++) out[i] = -77;
  k->matmul[m->w.layout][type](&m->w, &a, g_from, g_to, out, ld, scratch);
  lua_pushlstring(L, (const char *)out, sizeof(float) * (size_t)(t * ld));
  return 1;
}

/* Pushes data of blocks, `bytes` each, as [t][blocks]. `from` is ordered as a->outlier. Blocks without a residual code are 0. */
static void push_by_tokens(lua_State *L, const struct ane_activations *a, const void *from, size_t bytes) {
  int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK);
  char *to = push_buffer(L, (size_t)(a->t * nb) * bytes);
  for (int64_t i = 0; i < a->t * nb; i++) {
    int64_t at = i % nb * a->outlier_ld + i / nb;
    if (a->outlier[at])
      memcpy(to + (size_t)i * bytes, (const char *)from + (size_t)at * bytes, bytes);
    else
      memset(to + (size_t)i * bytes, 0, bytes);
  }
  lua_pushlstring(L, to, (size_t)(a->t * nb) * bytes);
  lua_remove(L, -2);
}

/* matmul_activations(level, "int8", x, t, cols [, coarse]) -> eight strings, each [t][blocks]: codes, scales, sums of half
 * blocks, scaled sums; then residual codes, a byte of bits for the groups of four columns that have one, scales of the residual
 * codes and their sums of half blocks; these are 0 where a block has no residual code. (level, "bf16", ...) -> bf16 [t][cols] */
static int matmul_activations(lua_State *L) {
  const struct ane_kernels *k = check_level(L, 1);
  ane_activation_type type = (ane_activation_type)luaL_checkoption(L, 2, NULL, activation_names);
  int64_t t = bind_integer(L, 4, 1, 1 << 16), cols = bind_integer(L, 5, 1, 1 << 20);
  struct ane_activations a;
  push_activations(L, 3, k, type, t, cols, !lua_toboolean(L, 6), &a);
  int64_t nb = (int64_t)ane_div_up((size_t)cols, ANE_BLOCK);
  size_t blocks = (size_t)(t * nb);
  if (type == ANE_ACTIVATION_BF16) {
    lua_pushlstring(L, (const char *)a.bf16, 2 * (size_t)(t * (cols + (cols & 1))));
    return 1;
  }
  luaL_argcheck(L, type == ANE_ACTIVATION_I8, 2, "int8 or bf16 expected");
  lua_pushlstring(L, (const char *)a.q, blocks * ANE_BLOCK);
  lua_pushlstring(L, (const char *)a.d, blocks * sizeof *a.d);
  lua_pushlstring(L, (const char *)a.isum, blocks * 2 * sizeof *a.isum);
  lua_pushlstring(L, (const char *)a.dsum, blocks * sizeof *a.dsum);
  push_by_tokens(L, &a, a.residual, ANE_BLOCK);
  push_by_tokens(L, &a, a.outlier, 1);
  push_by_tokens(L, &a, a.d_residual, sizeof *a.d_residual);
  push_by_tokens(L, &a, a.residual_isum, 2 * sizeof *a.residual_isum);
  return 8;
}

/* matmul_bounds(matrix, level, x [, t]) -> floats [t][16 * groups]: upper bounds of the products of a split matrix with t tokens
 * from the high nibbles, and [t][rows] from both nibbles (rows in descending order); nil if the level has no such bounds */
static int matmul_bounds(lua_State *L) {
  struct matrix *m = luaL_checkudata(L, 1, MATRIX_CLASS);
  const struct ane_kernels *k = check_level(L, 2);
  const int64_t t = luaL_optinteger(L, 4, 1), nb = m->w.cols / ANE_BLOCK, ld = m->w.groups * ANE_GROUP;
  struct ane_activations a;
  luaL_argcheck(L, m->w.layout == ANE_LAYOUT_Q8_0_SPLIT, 1, "no matrix in halves");
  push_activations(L, 3, k, ANE_ACTIVATION_I8, t, m->w.cols, true, &a);
  struct ane_bound_block *blocks = push_buffer(L, (size_t)(t * nb) * sizeof *blocks);
  size_t bytes = (size_t)(t * ld) * sizeof(float);
  float *bound = push_buffer(L, bytes), *base = push_buffer(L, bytes), *refined = push_buffer(L, bytes);
  int32_t *rows = push_buffer(L, (size_t)ld * sizeof *rows);
  for (int32_t i = 0; i < m->w.rows; i++) rows[i] = (int32_t)m->w.rows - 1 - i;
  for (int64_t i = 0; i < t; i++) {
    const struct ane_activations one = ane_activations_rows(&a, i, 1);
    ane_bound_prepare(&one, blocks + i * nb);
  }
  k->upper_bound(&m->w, &a, blocks, 0, m->w.groups, bound, base, ld);
  for (int64_t i = 0; i < t; i++) {
    const struct ane_activations one = ane_activations_rows(&a, i, 1);
    k->row_bound(&m->w, &one, blocks + i * nb, rows, (int)m->w.rows, base + i * ld, refined + i * m->w.rows);
  }
  lua_pushlstring(L, (const char *)bound, bytes);
  lua_pushlstring(L, (const char *)refined, (size_t)(t * m->w.rows) * sizeof(float));
  return 2;
}

/* matmul_levels() -> {"ref", ...}: those of this machine */
static int matmul_levels(lua_State *L) {
  lua_newtable(L);
  for (int i = 0, n = 0; i < ANE_ISA_COUNT; i++)
    if (ane_isa_available((ane_isa)i)) {
      lua_pushstring(L, ane_isa_name((ane_isa)i));
      lua_rawseti(L, -2, ++n);
    }
  return 1;
}

/* matmul_half_units([is]) -> what it was (kernels.h) */
static int matmul_half_units(lua_State *L) {
  lua_pushboolean(L, ane_half_units);
  if (!lua_isnoneornil(L, 1)) ane_half_units = lua_toboolean(L, 1);
  return 1;
}

/* matmul_functions(matrix, level, type) -> a text that is equal for two levels only if both run the same functions for
 * activations and product; their results then need no comparison. nil if the level does not offer the pair */
static int matmul_functions(lua_State *L) {
  struct matrix *m = luaL_checkudata(L, 1, MATRIX_CLASS);
  const struct ane_kernels *k = check_level(L, 2);
  ane_activation_type type = (ane_activation_type)luaL_checkoption(L, 3, NULL, activation_names);
  struct {
    ane_matmul_fn product;
    void (*prepare)(const struct ane_activations *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to);
  } of = {k->matmul[m->w.layout][type], type == ANE_ACTIVATION_I8     ? k->quantise_i8
                                        : type == ANE_ACTIVATION_BF16 ? k->convert_bf16
                                                                      : NULL};
  if (!of.product) return lua_pushnil(L), 1;
  lua_pushlstring(L, (const char *)&of, sizeof of);
  return 1;
}

/* matmul_activation_type(matrix, level) -> the activation type if the user asks for int8 */
static int matmul_activation_type(lua_State *L) {
  struct matrix *m = luaL_checkudata(L, 1, MATRIX_CLASS);
  lua_pushstring(L, activation_names[ane_activation_type_for(m->w.layout, true, check_level(L, 2)->bf16_dot)]);
  return 1;
}

void bind_testing_matmul(lua_State *L) {
  static const luaL_Reg functions[] = {{"matmul_pack", matmul_pack},
                                       {"matmul_pack_lut4", matmul_pack_lut4},
                                       {"matmul", matmul},
                                       {"matmul_activations", matmul_activations},
                                       {"matmul_bounds", matmul_bounds},
                                       {"matmul_levels", matmul_levels},
                                       {"matmul_half_units", matmul_half_units},
                                       {"matmul_functions", matmul_functions},
                                       {"matmul_activation_type", matmul_activation_type},
                                       {NULL, NULL}};
  bind_class(L, MATRIX_CLASS, matrix_methods, matrix_meta);
  luaL_setfuncs(L, functions, 0);
}
