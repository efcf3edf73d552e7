/* core.testing: kernels at a level by name, on strings of little-endian float32 (or of stored cache elements). Results
 * are new strings. Memory for a kernel has exactly the length that it may touch, so that sanitizers find an access beyond. */
#include "binding/bind.h"

#include "kernels/kernels.h"
#include "quant/compensate.h"

#include <math.h>
#include <string.h>

static const struct ane_kernels *check_kernels(lua_State *L, int arg) {
  ane_isa isa = ane_isa_from_name(luaL_checkstring(L, arg));
  luaL_argcheck(L, isa < ANE_ISA_COUNT && ane_isa_available(isa), arg, "no level of this machine");
  return ane_kernels_get(isa);
}

/* Returns n floats; NULL for nil, if `optional`. */
static const float *check_floats(lua_State *L, int arg, lua_Integer n, bool optional) {
  size_t size;
  if (optional && lua_isnoneornil(L, arg)) return NULL;
  const char *s = luaL_checklstring(L, arg, &size);
  if (size != (size_t)n * sizeof(float))
    luaL_error(L, "argument %d: must have %I floats, but has %I bytes", arg, (LUAI_UACINT)n, (LUAI_UACINT)size);
  return (const float *)(const void *)s;
}

static lua_Integer count_floats(lua_State *L, int arg) {
  size_t size;
  luaL_checklstring(L, arg, &size);
  return (lua_Integer)(size / sizeof(float));
}

/* Pushes a userdata and returns its memory: 64-byte aligned if `aligned`, else of the exact size. */
static void *new_bytes(lua_State *L, size_t size, bool aligned) {
  char *p = lua_newuserdatauv(L, size + (aligned ? 64 : 0), 0);
  return aligned ? p + (64 - (uintptr_t)p % 64) % 64 : p;
}

/* kernel_levels() -> names of the levels of this machine, weakest first */
static int kernel_levels(lua_State *L) {
  lua_newtable(L);
  for (int i = 0; i < ANE_ISA_COUNT; i++) {
    if (!ane_isa_available((ane_isa)i)) continue;
    lua_pushstring(L, ane_isa_name((ane_isa)i));
    lua_rawseti(L, -2, (lua_Integer)lua_rawlen(L, -2) + 1);
  }
  return 1;
}

/* norm(level, "rms" | "layer", x, w | nil, b | nil, eps, rows [, in_place]) -> y. Rows of x lie one after the other; those
 * of y have two floats of nan between them, which must survive. */
static int norm(lua_State *L) {
  enum { GAP = 2 };
  const struct ane_kernels *k = check_kernels(L, 1);
  const bool layer = strcmp(luaL_checkstring(L, 2), "layer") == 0;
  const int64_t rows = bind_integer(L, 7, 1, 1 << 20), c = count_floats(L, 3) / rows;
  const float *x = check_floats(L, 3, rows * c, false), *w = check_floats(L, 4, c, true), *b = check_floats(L, 5, c, true);
  const float eps = (float)luaL_checknumber(L, 6);
  float *y = new_bytes(L, (size_t)(rows * (c + GAP)) * sizeof(float), false);
  memset(y, 0xFF, (size_t)(rows * (c + GAP)) * sizeof(float));
  int64_t ldx = c;
  if (lua_toboolean(L, 8)) {
    for (int64_t t = 0; t < rows; t++) memcpy(y + t * (c + GAP), x + t * c, (size_t)c * sizeof(float));
    x = y;
    ldx = c + GAP;
  }
  if (layer)
    k->layer_norm(x, ldx, w, b, eps, y, c + GAP, rows, c);
  else
    k->rms_norm(x, ldx, w, eps, y, c + GAP, rows, c);
  luaL_Buffer out;
  luaL_buffinit(L, &out);
  for (int64_t t = 0; t < rows; t++) {
    static const unsigned char gap[GAP * sizeof(float)] = {255, 255, 255, 255, 255, 255, 255, 255};
    if (memcmp(y + t * (c + GAP) + c, gap, sizeof gap) != 0) return luaL_error(L, "row %d: written beyond its end", (int)t);
    luaL_addlstring(&out, (const char *)(y + t * (c + GAP)), (size_t)c * sizeof(float));
  }
  luaL_pushresult(&out);
  return 1;
}

/* elementwise(level, name, a, b) -> y. b: a string (add, mul), a number (scale, softcap), a string or nil (activations). */
static int elementwise(lua_State *L) {
  static const char *const names[] = {"add", "mul", "silu", "gelu_tanh", "gelu_erf", "sigmoid", "scale", "softcap", NULL};
  const struct ane_kernels *k = check_kernels(L, 1);
  const int f = luaL_checkoption(L, 2, NULL, names);
  const int64_t n = count_floats(L, 3);
  const float *a = check_floats(L, 3, n, false), *b = f < 6 ? check_floats(L, 4, n, f >= 2) : NULL;
  const float s = f < 6 ? 0 : (float)luaL_checknumber(L, 4);
  float *y = new_bytes(L, (size_t)n * sizeof(float), false);
  switch (f) {
    case 0: k->add(a, b, y, n); break;
    case 1: k->mul(a, b, y, n); break;
    case 2: k->silu(a, b, y, n); break;
    case 3: k->gelu_tanh(a, b, y, n); break;
    case 4: k->gelu_erf(a, b, y, n); break;
    case 5: k->sigmoid(a, b, y, n); break;
    case 6: k->scale(a, s, y, n); break;
    default: k->softcap(a, s, y, n); break;
  }
  lua_pushlstring(L, (const char *)y, (size_t)n * sizeof(float));
  return 1;
}

/* rope(level, x, cs, n_heads, head_dim, r, neox) -> rotated x */
static int rope(lua_State *L) {
  const struct ane_kernels *k = check_kernels(L, 1);
  const lua_Integer heads = bind_integer(L, 4, 1, 4096), hd = bind_integer(L, 5, 1, 4096), r = bind_integer(L, 6, 0, hd);
  const float *x = check_floats(L, 2, heads * hd, false), *cs = check_floats(L, 3, r, false);
  float *y = new_bytes(L, (size_t)(heads * hd) * sizeof(float), false);
  memcpy(y, x, (size_t)(heads * hd) * sizeof(float));
  k->rope(y, cs, heads, hd, r, lua_toboolean(L, 7));
  lua_pushlstring(L, (const char *)y, (size_t)(heads * hd) * sizeof(float));
  return 1;
}

/* argmax(level, x) -> index from 0, value */
static int argmax(lua_State *L) {
  const struct ane_kernels *k = check_kernels(L, 1);
  float best;
  lua_pushinteger(L, k->argmax(check_floats(L, 2, count_floats(L, 2), false), count_floats(L, 2), &best));
  lua_pushnumber(L, (lua_Number)best);
  return 2;
}

/* ---- Attention ---------------------------------------------------------------------------------------------------*/

/* Returns n floats of field `name`, whose string stays on the stack. */
static const float *floats(lua_State *L, int t, const char *name, lua_Integer n) {
  lua_getfield(L, t, name);
  return check_floats(L, lua_gettop(L), n, false);
}

/* A cache of `tiles` pages; they lie in memory in descending order. */
struct test_kv {
  struct ane_kv kv;
  int64_t tiles;
};

/* Fills tile `tile` with finite garbage from *x. Bytes below 0x7B make finite numbers of every kind: the largest fp16 exponent is
 * 30. */
static void spoil(const struct ane_kv *kv, int64_t tile, uint32_t *x) {
  for (size_t i = 0; i < (size_t)kv->heads * kv->stride; i++, *x = *x * 1664525u + 1013904223u)
    kv->pages[tile][i] = (uint8_t)((*x >> 24) % 0x7B | (*x >> 8 & 0x80));
  for (int64_t h = 0; h < kv->heads && ane_kv_has_scales(kv->dtype); h++)
    for (int64_t i = 0; i < ANE_TILE; i++) {
      ane_kv_k_scale(kv, h, tile)[i] = (float)(i % 7) * 1e3f;
      ane_kv_v_scale(kv, h, tile)[i] = kv->dtype == ANE_I16 ? (float)(i * 17 % 121 - 60) : (float)((i + 3) % 7) * 1e3f;
    }
}

/* Makes a cache with keys and values of `count` positions from the table's k and v, [count][kv_heads][head_dim], from position
 * `start` on, written with `run` positions per call (0: all in one). If the table has `stale`, the cache is first filled with
 * finite garbage. Leaves its memory on the stack. */
static struct test_kv new_kv(lua_State *L, int t, const struct ane_kernels *writer, int64_t count) {
  lua_getfield(L, t, "dtype");
  const char *name = luaL_optstring(L, -1, "fp16");
  const int64_t start = bind_opt_integer_option(L, t, "start", 0, INT64_MIN, INT64_MAX),
                run = bind_opt_integer_option(L, t, "run", 0, INT64_MIN, INT64_MAX);
  struct ane_kv kv = {.dtype = ane_dtype_from_name(name, strlen(name)),
                      .heads = bind_opt_integer_option(L, t, "kv_heads", 1, INT64_MIN, INT64_MAX),
                      .head_dim = bind_opt_integer_option(L, t, "head_dim", 64, INT64_MIN, INT64_MAX),
                      .relative = bind_boolean_option(L, t, "relative")};
  const int64_t tiles = (start + count + ANE_TILE - 1) / ANE_TILE;
  const size_t page = ane_kv_layout(&kv, 0);
  const int stale = (int)bind_opt_integer_option(L, t, "stale", 0, INT64_MIN, INT64_MAX);
  uint8_t *memory = new_bytes(L, page * (size_t)tiles, true), **pages = new_bytes(L, (size_t)tiles * sizeof *pages, true);
  uint32_t x = (uint32_t)stale * 2654435761u;
  memset(memory, 0, page * (size_t)tiles);
  kv.pages = pages;
  for (int64_t i = 0; i < tiles; i++) {
    pages[i] = memory + (size_t)(tiles - 1 - i) * page;
    if (stale) spoil(&kv, i, &x);
  }
  const int64_t row = kv.heads * kv.head_dim;
  const float *k = floats(L, t, "k", count * row), *v = floats(L, t, "v", count * row);
  for (int64_t p = 0, some; p < count; p += some) {
    some = run > 0 ? ANE_MIN(run, count - p) : count;
    writer->kv_write(&kv, start + p, some, k + p * row, v + p * row, row, 0, kv.heads);
  }
  return (struct test_kv){kv, tiles};
}

/* Pushes a part of each tile, at `offset` in its page, by head and tile: n bytes for each. */
static void push_tiles(lua_State *L, const struct test_kv *t, size_t offset, size_t n) {
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (int64_t h = 0; h < t->kv.heads; h++)
    for (int64_t i = 0; i < t->tiles; i++)
      luaL_addlstring(&b, (const char *)t->kv.pages[i] + offset + (size_t)h * t->kv.stride, n);
  luaL_pushresult(&b);
}

/* kv_write(level, {dtype, relative, kv_heads, head_dim, count, start, run, k, v, stale}) -> bytes of K, V, scales of K, scales of
 * V, bases (of each tile; the first is used) */
static int kv_write(lua_State *L) {
  const struct test_kv t = new_kv(L, 2, check_kernels(L, 1), bind_opt_integer_option(L, 2, "count", 1, INT64_MIN, INT64_MAX));
  push_tiles(L, &t, t.kv.k, t.kv.tile_bytes);
  push_tiles(L, &t, t.kv.v, t.kv.tile_bytes);
  const size_t scales = ane_kv_has_scales(t.kv.dtype) ? ANE_TILE * sizeof(float) : 0;
  push_tiles(L, &t, t.kv.k_scale, scales);
  push_tiles(L, &t, t.kv.v_scale, scales);
  push_tiles(L, &t, t.kv.base, t.kv.relative ? (size_t)t.kv.head_dim * sizeof(float) : 0);
  return 5;
}

/* Computes attention in parts of three tiles each, and merges the parts. */
static void by_parts(lua_State *L, const struct ane_kernels *k, const struct ane_attention *a, int64_t tiles, void *scratch) {
  const int64_t size = ane_part_floats(a);
  float *part = new_bytes(L, (size_t)(tiles * size) * sizeof(float), false);
  for (int64_t h = 0; h < a->kv->heads; h++)
    for (int64_t t = 0; t < a->t; t++) {
      memset(part, 0xFF, (size_t)(tiles * size) * sizeof(float));
      for (int64_t i = (tiles - 1) / 3 * 3; i >= 0; i -= 3)
        k->attention_part(a, h, t, i, ANE_MIN(i + 3, tiles), part + i * size, scratch);
      k->attention_merge(a, h, t, 0, tiles, part);
    }
}

/* attention(level, options) -> out [t][n_heads * head_dim]. Options: q [t][n_heads * head_dim], k and v (see new_kv,
 * count positions, at least pos + t), dtype, relative, n_heads, kv_heads, head_dim, t, pos, count, window, ahead, scale, softcap,
 * sinks [n_heads]?, stale, how: "whole" (one call per head), "single" (one call per query), "parts". */
static int attention(lua_State *L) {
  static const char *const hows[] = {"whole", "single", "parts", NULL};
  const struct ane_kernels *k = check_kernels(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  enum { GAP = 3 };
  const int64_t t = bind_opt_integer_option(L, 2, "t", 1, INT64_MIN, INT64_MAX),
                pos = bind_opt_integer_option(L, 2, "pos", 0, INT64_MIN, INT64_MAX);
  const struct test_kv cache =
      new_kv(L, 2, ane_kernels_get(ANE_ISA_REF), bind_opt_integer_option(L, 2, "count", pos + t, INT64_MIN, INT64_MAX));
  const struct ane_kv kv = cache.kv;
  const int64_t heads = bind_opt_integer_option(L, 2, "n_heads", kv.heads, INT64_MIN, INT64_MAX), row = heads * kv.head_dim;
  struct ane_attention a = {.kv = &kv,
                            .ld_q = row,
                            .ld_out = row + GAP,
                            .t = t,
                            .n_heads = heads,
                            .pos = pos,
                            .window = bind_opt_integer_option(L, 2, "window", 0, INT64_MIN, INT64_MAX),
                            .scale = (float)bind_opt_number_option(L, 2, "scale", 1, -HUGE_VAL, HUGE_VAL),
                            .softcap = (float)bind_opt_number_option(L, 2, "softcap", 0, -HUGE_VAL, HUGE_VAL)};
  lua_getfield(L, 2, "how");
  const int how = luaL_checkoption(L, lua_gettop(L), "whole", hows);
  a.q = floats(L, 2, "q", t * row);
  a.ahead = bind_opt_integer_option(L, 2, "ahead", 0, INT64_MIN, INT64_MAX);
  if (lua_getfield(L, 2, "sinks") != LUA_TNIL) a.sinks = floats(L, 2, "sinks", heads);
  const size_t size = (size_t)(t * a.ld_out) * sizeof(float);
  char *out = new_bytes(L, size, false);
  a.out = (float *)(void *)out;
  memset(out, 0xFF, size);
  void *scratch = new_bytes(L, ane_attention_scratch(heads, kv.heads, kv.head_dim), true);
  memset(scratch, 0xFF, ane_attention_scratch(heads, kv.heads, kv.head_dim));
  if (how == 2) by_parts(L, k, &a, cache.tiles, scratch);
  for (int64_t h = 0; h < kv.heads && how < 2; h++)
    for (int64_t i = 0, step = how == 0 ? t : 1; i < t; i += step) k->attention(&a, h, i, i + step, scratch);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (int64_t i = 0; i < t; i++) luaL_addlstring(&b, (const char *)(a.out + i * a.ld_out), (size_t)row * sizeof(float));
  luaL_pushresult(&b);
  for (int64_t i = 0; i < t; i++)
    for (int64_t j = row; j < a.ld_out; j++)
      if (a.out[i * a.ld_out + j] == a.out[i * a.ld_out + j]) return luaL_error(L, "row %d: written beyond its end", (int)i);
  return 1;
}

/* wide_most([bytes]) -> what it was (compensate.h) */
static int wide_most(lua_State *L) {
  lua_pushinteger(L, ane_wide_most);
  if (!lua_isnoneornil(L, 1)) ane_wide_most = (int)bind_integer(L, 1, 16, 64);
  return 1;
}

static const luaL_Reg functions[] = {
    {"wide_most", wide_most},
    {"kernel_levels", kernel_levels},
    {"norm", norm},
    {"elementwise", elementwise},
    {"rope", rope},
    {"argmax", argmax},
    {"kv_write", kv_write},
    {"attention", attention},
    {NULL, NULL},
};

void bind_testing_kernels(lua_State *L) { luaL_setfuncs(L, functions, 0); }
