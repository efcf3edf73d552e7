/* core.testing: csrc/base and csrc/tensor, for specs. */
#include "binding/bind.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "base/elementary.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "base/sha256.h"
#include "base/strmap.h"
#include "base/utf8.h"
#include "quant/quant.h"
#include "tensor/half.h"
#include "tensor/tensor.h"

#include <string.h>

/* ---- Bytes -----------------------------------------------------------------------------------------------------------*/

/* read_bytes(bytes, sizes) -> list: sizes 1, 4 and 8 read u8, u32 and u64, n <= 0 reads -n bytes as a string or false; left, bad
 */
static int read_bytes(lua_State *L) {
  size_t len;
  const char *bytes = luaL_checklstring(L, 1, &len);
  struct ane_reader r = ane_reader_of(bytes, len);
  lua_Integer n = luaL_len(L, 2);
  lua_newtable(L);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 2, i);
    lua_Integer size = lua_tointeger(L, -1);
    lua_pop(L, 1);
    const uint8_t *p = size <= 0 ? ane_read_bytes(&r, (uint64_t)-size) : NULL;
    if (size > 0)
      lua_pushinteger(L, size == 1 ? ane_read_u8(&r) : size == 4 ? ane_read_u32(&r) : (lua_Integer)ane_read_u64(&r));
    else if (p)
      lua_pushlstring(L, (const char *)p, (size_t)-size);
    else
      lua_pushboolean(L, false);
    lua_rawseti(L, -2, i);
  }
  lua_pushinteger(L, (lua_Integer)ane_reader_left(&r));
  lua_pushboolean(L, r.bad);
  return 3;
}

/* store_load(v) -> bytes of the u32, bytes of the u64, and both and the u16 of the first two bytes read again */
static int store_load(lua_State *L) {
  uint64_t v = (uint64_t)luaL_checkinteger(L, 1);
  uint8_t small[4], large[8];
  ane_store_u32(small, (uint32_t)v);
  ane_store_u64(large, v);
  lua_pushlstring(L, (const char *)small, 4);
  lua_pushlstring(L, (const char *)large, 8);
  lua_pushinteger(L, ane_load_u32(small));
  lua_pushinteger(L, (lua_Integer)ane_load_u64(large));
  lua_pushinteger(L, ane_load_u16(large));
  return 5;
}

/* append(list of strings) -> number of strings appended before memory ran out, the bytes */
static int append(lua_State *L) {
  struct ane_buffer b = {0};
  lua_Integer n = luaL_len(L, 1), done = 0;
  bool ok = true;
  for (lua_Integer i = 1; ok && i <= n; i++) {
    size_t len;
    lua_rawgeti(L, 1, i);
    const char *s = lua_tolstring(L, -1, &len);
    if ((ok = ane_buffer_append(&b, s, len))) done = i;
    lua_pop(L, 1);
  }
  lua_pushinteger(L, done);
  lua_pushlstring(L, b.data ? (const char *)b.data : "", b.size);
  ane_buffer_free(&b);
  return 2;
}

/* ---- Arena and map -----------------------------------------------------------------------------------------------------*/

/* arena(sizes) -> list of addresses (false: no memory), are all bytes zero at first?, are all intact at the end? */
static int arena(lua_State *L) {
  struct ane_arena a = {0};
  lua_Integer n = luaL_len(L, 1);
  uint8_t **p = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *p, 0);
  size_t *size = lua_newuserdatauv(L, ((size_t)n + 1) * sizeof *size, 0);
  bool zero = true, intact = true;
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    size[i] = (size_t)lua_tointeger(L, -1);
    lua_pop(L, 1);
    p[i] = ane_arena_alloc(&a, size[i]);
    for (size_t b = 0; p[i] && b < size[i]; b++) zero &= p[i][b] == 0;
    if (p[i]) memset(p[i], (int)(i % 255) + 1, size[i]);
  }
  for (lua_Integer i = 0; i < n; i++)
    for (size_t b = 0; p[i] && b < size[i]; b++) intact &= p[i][b] == (uint8_t)(i % 255 + 1);
  lua_createtable(L, (int)n, 0);
  for (lua_Integer i = 0; i < n; i++) {
    if (p[i])
      lua_pushinteger(L, (lua_Integer)(uintptr_t)p[i]);
    else
      lua_pushboolean(L, false);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushboolean(L, zero);
  lua_pushboolean(L, intact && (ane_arena_free(&a), a.head == NULL));
  return 3;
}

/* arena_copies(count, size, text) -> was an array of count * size allocated?, the copy of text with its NUL */
static int arena_copies(lua_State *L) {
  struct ane_arena a = {0};
  size_t len;
  const char *text = luaL_checklstring(L, 3, &len);
  void *array = ane_arena_array(&a, (size_t)luaL_checkinteger(L, 1), (size_t)luaL_checkinteger(L, 2));
  char *copy = ane_arena_strndup(&a, text, len);
  lua_pushboolean(L, array != NULL);
  lua_pushlstring(L, copy ? copy : "", copy ? len + 1 : 0);
  ane_arena_free(&a);
  return 2;
}

/* strmap(keys, queries [, reserve]) puts key i with value i; -> for each key the value it had (false: new; nil: no memory), for
 * each query its value or false */
static int strmap(lua_State *L) {
  struct ane_strmap m = {0};
  lua_Integer n = luaL_len(L, 1), q = luaL_len(L, 2);
  bool ok = ane_strmap_reserve(&m, (size_t)luaL_optinteger(L, 3, 0));
  lua_createtable(L, (int)n, 0);
  for (lua_Integer i = 1; ok && i <= n; i++) {
    size_t len;
    uint32_t old;
    lua_rawgeti(L, 1, i); /* the list keeps the key alive */
    const char *key = lua_tolstring(L, -1, &len);
    lua_pop(L, 1);
    if (!(ok = ane_strmap_put(&m, key, len, (uint32_t)i, &old))) break;
    if (old == UINT32_MAX)
      lua_pushboolean(L, false);
    else
      lua_pushinteger(L, old);
    lua_rawseti(L, -2, i);
  }
  lua_createtable(L, (int)q, 0);
  for (lua_Integer i = 1; i <= q; i++) {
    size_t len;
    lua_rawgeti(L, 2, i);
    const char *key = lua_tolstring(L, -1, &len);
    uint32_t v = ane_strmap_get(&m, key, len);
    lua_pop(L, 1);
    if (v == UINT32_MAX)
      lua_pushboolean(L, false);
    else
      lua_pushinteger(L, v);
    lua_rawseti(L, -2, i);
  }
  ane_strmap_free(&m);
  return 2;
}

/* ---- Texts and messages ------------------------------------------------------------------------------------------------*/

/* utf8(bytes) -> step (0 for ""), cut, whole, run, replaced */
static int utf8(lua_State *L) {
  size_t len, out_len = 0;
  const char *s = luaL_checklstring(L, 1, &len);
  bool cut = false;
  lua_pushinteger(L, len ? ane_utf8_step(s, len, &cut) : 0);
  lua_pushboolean(L, cut);
  lua_pushinteger(L, (lua_Integer)ane_utf8_whole(s, len));
  lua_pushinteger(L, (lua_Integer)ane_utf8_run(s, len));
  char *out = ane_utf8_replace(s, len, &out_len);
  lua_pushlstring(L, out ? out : "", out_len);
  ane_free(out);
  return 5;
}

/* sha256(list of strings) -> hexadecimal digits of their concatenation, added one by one */
static int sha256(lua_State *L) {
  struct ane_sha256 s;
  char out[ANE_SHA256_TEXT];
  lua_Integer n = luaL_len(L, 1);
  ane_sha256_begin(&s);
  for (lua_Integer i = 1; i <= n; i++) {
    size_t len;
    lua_rawgeti(L, 1, i);
    const char *data = lua_tolstring(L, -1, &len);
    ane_sha256_add(&s, data, len);
    lua_pop(L, 1);
  }
  ane_sha256_end(&s, out);
  lua_pushstring(L, out);
  return 1;
}

/* message(bytes) -> list of {number, type, value or bytes}, is the message broken? */
static int message(lua_State *L) {
  size_t len;
  const char *bytes = luaL_checklstring(L, 1, &len);
  struct ane_reader r = ane_reader_of(bytes, len);
  struct ane_message_field f;
  lua_newtable(L);
  for (lua_Integer i = 1; ane_message_next(&r, &f); i++) {
    lua_createtable(L, 3, 0);
    lua_pushinteger(L, f.number);
    lua_rawseti(L, -2, 1);
    lua_pushinteger(L, f.type);
    lua_rawseti(L, -2, 2);
    if (f.type == ANE_MESSAGE_BYTES)
      lua_pushlstring(L, (const char *)f.data, f.size);
    else
      lua_pushinteger(L, (lua_Integer)f.value);
    lua_rawseti(L, -2, 3);
    lua_rawseti(L, -2, i);
  }
  lua_pushboolean(L, r.bad);
  return 2;
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------*/

/* Appends the events of the next value to the list at `list`. */
static bool walk(lua_State *L, struct ane_json *j, int list) {
  const char *s;
  size_t len;
  bool integer, more;
  int64_t i;
  double d;
  char c = ane_json_peek(j);
  luaL_checkstack(L, 4, NULL);
  switch (c) {
    case '\0': return false;
    case '{':
    case '[':
      lua_pushlstring(L, &c, 1);
      lua_rawseti(L, list, luaL_len(L, list) + 1);
      if (!ane_json_enter(j, c)) return false;
      for (bool first = true;; first = false) {
        if (!ane_json_next(j, c, first, &more)) return false;
        if (!more) break;
        if (c == '{') {
          if (!ane_json_name(j, &s, &len)) return false;
          lua_pushfstring(L, "name %s", lua_pushlstring(L, s, len));
          lua_remove(L, -2);
          lua_rawseti(L, list, luaL_len(L, list) + 1);
        }
        if (!walk(L, j, list)) return false;
      }
      lua_pushstring(L, c == '{' ? "}" : "]");
      break;
    case '"':
      if (!ane_json_string(j, &s, &len)) return false;
      lua_pushlstring(L, s, len);
      break;
    case 'n':
    case 't':
    case 'f': {
      const char *word = c == 'n' ? "null" : c == 't' ? "true" : "false";
      if (!ane_json_word(j, word)) return false;
      lua_pushfstring(L, "word %s", word);
      break;
    }
    default:
      if (!ane_json_number(j, &integer, &i, &d)) return false;
      if (integer)
        lua_pushinteger(L, i);
      else
        lua_pushnumber(L, d);
  }
  lua_rawseti(L, list, luaL_len(L, list) + 1);
  return true;
}

/* json_walk(text) -> list of events in order; or nil, what is wrong, line, column, is it memory? */
static int json_walk(lua_State *L) {
  size_t len;
  const char *text = luaL_checklstring(L, 1, &len);
  struct ane_buffer scratch = {0};
  struct ane_json j;
  lua_newtable(L);
  ane_json_start(&j, text, len, &scratch);
  bool ok = walk(L, &j, lua_gettop(L)) && ane_json_finish(&j);
  ane_buffer_free(&scratch);
  if (ok) return 1;
  int line, column;
  ane_json_place(&j, &line, &column);
  lua_pushnil(L);
  lua_pushstring(L, j.why);
  lua_pushinteger(L, line);
  lua_pushinteger(L, column);
  lua_pushboolean(L, j.no_memory);
  return 5;
}

/* ---- Tensors -----------------------------------------------------------------------------------------------------------*/

/* dtype(name) -> {block, bytes, gguf}, or nil */
static int dtype(lua_State *L) {
  size_t len;
  const char *name = luaL_checklstring(L, 1, &len);
  ane_dtype t = ane_dtype_from_name(name, len);
  if (t == ANE_DTYPE_COUNT) return 0;
  const struct ane_dtype_info *info = ane_dtype_info(t);
  lua_createtable(L, 0, 4);
  bind_set_integer(L, "block", info->block);
  bind_set_integer(L, "bytes", info->bytes);
  bind_set_integer(L, "gguf", info->gguf);
  if (info->gguf >= 0) bind_set_boolean(L, "found", ane_dtype_from_gguf((uint32_t)info->gguf) == t);
  return 1;
}

/* dtype_bytes(name, n) -> bytes of n elements, or nil */
static int dtype_bytes(lua_State *L) {
  uint64_t bytes;
  const char *name = luaL_checkstring(L, 1);
  if (!ane_dtype_bytes(ane_dtype_from_name(name, strlen(name)), (uint64_t)luaL_checkinteger(L, 2), &bytes)) return 0;
  lua_pushinteger(L, (lua_Integer)bytes);
  return 1;
}

static struct ane_shape check_shape(lua_State *L, int arg) {
  struct ane_shape s = {.rank = (uint32_t)luaL_len(L, arg)};
  luaL_argcheck(L, s.rank <= ANE_MAX_RANK, arg, "too many dimensions");
  for (uint32_t i = 0; i < s.rank; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    s.dim[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  return s;
}

/* shape(dims, others) -> number of elements or nil, text, are both equal? */
static int shape(lua_State *L) {
  struct ane_shape a = check_shape(L, 1), b = check_shape(L, 2);
  char text[ANE_SHAPE_TEXT];
  uint64_t n;
  if (ane_shape_count(&a, &n))
    lua_pushinteger(L, (lua_Integer)n);
  else
    lua_pushnil(L);
  lua_pushstring(L, ane_shape_text(&a, text));
  lua_pushboolean(L, ane_shape_equal(&a, &b));
  return 3;
}

/* to_f32(dtype, bytes) -> float32 bytes; or nil, message, code */
static int to_f32(lua_State *L) {
  size_t len;
  struct ane_error err;
  const char *name = luaL_checkstring(L, 1), *bytes = luaL_checklstring(L, 2, &len);
  ane_dtype t = ane_dtype_from_name(name, strlen(name));
  uint64_t n = len / ane_dtype_info(t)->bytes;
  luaL_Buffer b;
  float *out = (float *)(void *)luaL_buffinitsize(L, &b, (n + 1) * sizeof *out);
  if (ane_to_f32(t, bytes, out, n, &err)) return bind_fail(L, &err);
  luaL_pushresultsize(&b, n * sizeof *out);
  return 1;
}

/* half(float bits) -> fp16 bits, fp32 bits of that; bf16 bits, fp32 bits of that */
static int half(lua_State *L) {
  float f = ane_bits_f32((uint32_t)luaL_checkinteger(L, 1));
  uint16_t h = ane_f32_f16(f), b = ane_f32_bf16(f);
  lua_pushinteger(L, h);
  lua_pushinteger(L, ane_f32_bits(ane_f16_f32(h)));
  lua_pushinteger(L, b);
  lua_pushinteger(L, ane_f32_bits(ane_bf16_f32(b)));
  return 4;
}

static const void *bytes_option(lua_State *L, const char *name, size_t *len) {
  lua_getfield(L, 1, name);
  const char *s = lua_tolstring(L, -1, len); /* the table keeps it alive */
  lua_pop(L, 1);
  return s;
}

static ane_dtype dtype_option(lua_State *L, const char *name) {
  const char *s = bind_opt_text_option(L, 1, name);
  return s ? ane_dtype_from_name(s, strlen(s)) : ANE_F32;
}

/* gather{data, dtype, bits, signed, base, row_step, col_step, scales, scale_dtype, scale_base, scale_row, scale_col, block,
 * row_block, zeros, zero_dtype, zero_bits, zero_row_bytes, zero_blocks, zero_default, g_idx, table, table_dtype, row0}(rows,
 * cols) -> dtype, list of rows in that type, list of rows as float32 bytes */
static int gather(lua_State *L) {
#define INT(name, def) .name = bind_opt_integer_option(L, 1, #name, def, INT32_MIN, INT32_MAX)
  size_t len, unused;
  const void *data = bytes_option(L, "data", &len), *g_idx = bytes_option(L, "g_idx", &unused);
  int64_t rows = luaL_checkinteger(L, 2), cols = luaL_checkinteger(L, 3);
  struct ane_gather g = {.data = data,
                         .bytes = len,
                         .dtype = dtype_option(L, "dtype"),
                         .decode = bind_boolean_option(L, 1, "blocks") ? ane_decoder(dtype_option(L, "dtype")) : NULL,
                         .bits = (int)bind_opt_integer_option(L, 1, "bits", 0, 0, 8),
                         .is_signed = bind_boolean_option(L, 1, "signed"),
                         INT(base, 0),
                         INT(row_step, cols),
                         INT(col_step, 1),
                         .scales = bytes_option(L, "scales", &unused),
                         .scale_dtype = dtype_option(L, "scale_dtype"),
                         INT(scale_base, 0),
                         INT(scale_row, 0),
                         INT(scale_col, 1),
                         INT(block, 32),
                         INT(row_block, 1),
                         .zeros = bytes_option(L, "zeros", &unused),
                         .zero_dtype = dtype_option(L, "zero_dtype"),
                         .zero_bits = (int)bind_opt_integer_option(L, 1, "zero_bits", 0, 0, 8),
                         INT(zero_row_bytes, 0),
                         INT(zero_blocks, 1),
                         .zero_default = (float)bind_opt_number_option(L, 1, "zero_default", 0, -1e9, 1e9),
                         .g_idx = g_idx,
                         .table = bytes_option(L, "table", &unused),
                         .table_dtype = dtype_option(L, "table_dtype")};
  struct ane_tensor t = {.dtype = ane_gather_dtype(&g, rows, cols),
                         .shape = {2, {rows, cols}},
                         .gather = &g,
                         .row0 = bind_opt_integer_option(L, 1, "row0", 0, 0, INT32_MAX)};
#undef INT
  uint64_t bytes;
  if (!ane_dtype_bytes(t.dtype, (uint64_t)cols, &bytes))
    return luaL_error(L, "a row of %I is not whole blocks", (LUAI_UACINT)cols);
  uint8_t *row = lua_newuserdatauv(L, (size_t)bytes, 0);
  float *floats = lua_newuserdatauv(L, (size_t)cols * sizeof *floats, 0);
  lua_pushstring(L, ane_dtype_info(t.dtype)->name);
  lua_newtable(L);
  lua_newtable(L);
  for (int64_t r = 0; r < rows; r++) {
    ane_gather_row(&t, r, row);
    ane_gather_floats(&t, r, floats);
    lua_pushlstring(L, (const char *)row, (size_t)bytes);
    lua_rawseti(L, -3, r + 1);
    lua_pushlstring(L, (const char *)floats, (size_t)cols * sizeof *floats);
    lua_rawseti(L, -2, r + 1);
  }
  return 3;
}

/* elementary(name, x) -> "exp", "log", "softplus", "sin" or "cos" of the float32 x */
static int elementary(lua_State *L) {
  static const char *const names[] = {"exp", "log", "softplus", "sin", "cos", NULL};
  static float (*const functions[])(float) = {ane_expf, ane_logf, ane_softplusf, ane_sinf, ane_cosf};
  int i = luaL_checkoption(L, 1, NULL, names);
  lua_pushnumber(L, functions[i]((float)luaL_checknumber(L, 2)));
  return 1;
}

void bind_testing_base(lua_State *L) {
  static const luaL_Reg functions[] = {{"read_bytes", read_bytes},
                                       {"store_load", store_load},
                                       {"append", append},
                                       {"arena", arena},
                                       {"arena_copies", arena_copies},
                                       {"strmap", strmap},
                                       {"utf8", utf8},
                                       {"sha256", sha256},
                                       {"message", message},
                                       {"json_walk", json_walk},
                                       {"dtype", dtype},
                                       {"dtype_bytes", dtype_bytes},
                                       {"shape", shape},
                                       {"to_f32", to_f32},
                                       {"half", half},
                                       {"gather", gather},
                                       {"elementary", elementary},
                                       {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
