/* JSON to Lua values and back (RFC 8259).
 *
 *   null <-> core.null (a light userdata); integers and floats keep their Lua subtype
 *   array -> sequence with a metatable whose __jsontype is "array"; object -> table, an empty one with __jsontype "object"
 *
 * Integers beyond 64 bits become floats (tokenizer_config.json files hold "model_max_length":
 * 1000000000000000019884624838656), unless the option `exact` keeps numbers as written: see json_decode. base/json_reader.h does
 * the reading. */
#include "binding/formats/bind_json.h"

#include "base/bytes.h"
#include "base/utf8.h"
#include "grammar/number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 512 };

#define ARRAY_CLASS "ane.json_array"
#define OBJECT_CLASS "ane.json_object"
#define NUMBER_CLASS "ane.json_number"
#define OUTPUT_CLASS "ane.json_output"

static char null_address; /* core.null is its address */

static void push_null(lua_State *L) { lua_pushlightuserdata(L, &null_address); }

/* ---- Doubles -----------------------------------------------------------------------------------------------------*/

enum { NUMBER_ROOM = 40 };

/* Replaces the decimal separator of the locale by a point, as JSON requires. */
static void set_point(char *s, int n) {
  char point = localeconv()->decimal_point[0], *found = point == '.' ? NULL : memchr(s, point, (size_t)n);
  if (found) *found = '.';
}

/* Writes a finite double with the fewest of 15 to 17 digits that give it back. Returns the length. */
static int write_double(char s[NUMBER_ROOM], double v) {
  int n = 0;
  for (int digits = 15; digits <= 17; digits++) {
    n = snprintf(s, NUMBER_ROOM, "%.*g", digits, v);
    if (strtod(s, NULL) == v) break;
  }
  set_point(s, n);
  return n;
}

/* ---- Decode ------------------------------------------------------------------------------------------------------*/

static bool decode_value(lua_State *L, struct ane_json *j);

static bool decode_array(lua_State *L, struct ane_json *j) {
  bool more;
  if (!ane_json_enter(j, '[')) return false;
  lua_newtable(L);
  luaL_setmetatable(L, ARRAY_CLASS);
  for (lua_Integer i = 1; ane_json_next(j, '[', i == 1, &more) && more; i++) {
    if (!decode_value(L, j)) return false;
    lua_rawseti(L, -2, i);
  }
  return !j->why;
}

bool bind_json_member(lua_State *L, struct ane_json *j) {
  const char *s, *at;
  size_t len;
  while (j->p < j->end && memchr(" \n\t\r", *j->p, 4)) j->p++;
  at = j->p;
  if (!ane_json_name(j, &s, &len)) return false;
  lua_pushlstring(L, s, len);
  lua_pushvalue(L, -1);
  return lua_rawget(L, -3) == LUA_TNIL ? (lua_pop(L, 1), true) : ane_json_fail(j, at, "the name appears twice in the object");
}

static bool decode_object(lua_State *L, struct ane_json *j) {
  bool more, first = true;
  if (!ane_json_enter(j, '{')) return false;
  lua_newtable(L);
  for (; ane_json_next(j, '{', first, &more) && more; first = false) {
    if (!bind_json_member(L, j) || !decode_value(L, j)) return false;
    lua_rawset(L, -3);
  }
  if (!j->why && first) luaL_setmetatable(L, OBJECT_CLASS);
  return !j->why;
}

static bool decode_number(lua_State *L, struct ane_json *j) {
  bool integer;
  int64_t i = 0;
  double d = 0;
  if (!ane_json_number(j, &integer, &i, &d)) return false;
  if (integer)
    lua_pushinteger(L, (lua_Integer)i);
  else
    lua_pushnumber(L, d);
  return true;
}

/* Does write_double write v as a number that equals the text? */
static bool is_exact(const char *s, size_t len, double v) {
  char text[NUMBER_ROOM];
  struct decimal a, b;
  return decimal_read(&a, s, len) && decimal_read(&b, text, (size_t)write_double(text, v)) && decimal_compare(&a, &b) == 0;
}

/* Pushes a number without loss: as an integer or a double if that equals the text, otherwise as a table with the text. */
static bool decode_exact(lua_State *L, struct ane_json *j) {
  const char *s;
  size_t len;
  struct ane_json at = *j;
  if (!ane_json_number_text(j, &s, &len)) return false;
  bool integer;
  int64_t i = 0;
  double d = 0;
  if (!j->texts && ane_json_number(&at, &integer, &i, &d) && (integer || is_exact(s, len, d))) {
    if (integer)
      lua_pushinteger(L, (lua_Integer)i);
    else
      lua_pushnumber(L, d);
    return true;
  }
  lua_createtable(L, 1, 0);
  lua_pushlstring(L, s, len);
  lua_rawseti(L, -2, 1);
  luaL_setmetatable(L, NUMBER_CLASS);
  return true;
}

static bool decode_string(lua_State *L, struct ane_json *j) {
  const char *s;
  size_t len;
  if (!ane_json_string(j, &s, &len)) return false;
  lua_pushlstring(L, s, len);
  return true;
}

/* Pushes one value. On failure it does not restore the stack; the caller clears it. */
static bool decode_value(lua_State *L, struct ane_json *j) {
  luaL_checkstack(L, LUA_MINSTACK, "JSON value");
  switch (ane_json_peek(j)) {
    case '\0': return false;
    case '{': return decode_object(L, j);
    case '[': return decode_array(L, j);
    case '"': return decode_string(L, j);
    case 'n': return ane_json_word(j, "null") && (push_null(L), true);
    case 't': return ane_json_word(j, "true") && (lua_pushboolean(L, 1), true);
    case 'f': return ane_json_word(j, "false") && (lua_pushboolean(L, 0), true);
    default: return j->exact ? decode_exact(L, j) : decode_number(L, j);
  }
}

bool bind_json_value(lua_State *L, struct ane_json *j) { return decode_value(L, j); }

int bind_json_fail(lua_State *L, const struct ane_json *j) {
  struct ane_error err;
  int line, column;
  ane_json_place(j, &line, &column);
  if (j->no_memory)
    ane_fail(&err, ANE_NOMEM, "%s", j->why);
  else
    ane_fail(&err, ANE_FORMAT, "line %d, column %d: %s", line, column, j->why);
  return bind_fail(L, &err);
}

/* Reads the option `exact` of json_decode. *texts: it asks for the text of every number. */
static bool exact_option(lua_State *L, int arg, bool *texts) {
  luaL_checktype(L, arg, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING || strcmp(lua_tostring(L, -2), "exact") != 0)
      luaL_argerror(L, arg, lua_pushfstring(L, "unknown option '%s'", lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : ""));
  }
  lua_getfield(L, arg, "exact");
  *texts = lua_type(L, -1) == LUA_TSTRING && strcmp(lua_tostring(L, -1), "texts") == 0;
  return lua_toboolean(L, -1);
}

/* json_decode(text [, {exact = true or "texts"}]) -> value; or nil, "line 3, column 7: ...", "format". Columns count characters.
 * exact: a number that no integer or double of Lua gives back becomes a table {its text} whose metatable has the __jsontype
 * "number"; json_encode writes that text. "texts": every number does. */
static int json_decode(lua_State *L) {
  size_t len;
  struct ane_json j;
  const char *text = luaL_checklstring(L, 1, &len);
  bool texts = false, exact = !lua_isnoneornil(L, 2) && exact_option(L, 2, &texts);
  lua_settop(L, 1);
  ane_json_start(&j, text, len, bind_new(L, OUTPUT_CLASS, sizeof *j.scratch, 0));
  j.exact = exact;
  j.texts = texts;
  bool ok = decode_value(L, &j) && ane_json_finish(&j);
  ane_buffer_free(j.scratch);
  if (ok) return 1;
  lua_settop(L, 1);
  return bind_json_fail(L, &j);
}

/* ---- Encode ------------------------------------------------------------------------------------------------------*/

struct encoder {
  lua_State *L;
  struct ane_buffer *out; /* in a userdata, so that a raise frees it */
  int indent;             /* blanks per level; 0: one line */
  bool sort, exact;
};

static void encode_value(struct encoder *e, int depth);

/* Returns room for n more bytes. The caller then adds the number of bytes that it wrote to out->size. */
static char *room(struct encoder *e, size_t n) {
  if (!ane_buffer_reserve(e->out, n)) luaL_error(e->L, "not enough memory for the JSON text");
  return (char *)e->out->data + e->out->size;
}

static void add(struct encoder *e, const char *s, size_t n) {
  if (n) memcpy(room(e, n), s, n);
  e->out->size += n;
}

static void add_line(struct encoder *e, int depth) {
  if (!e->indent) return;
  size_t n = (size_t)e->indent * (size_t)depth;
  char *p = room(e, n + 1);
  p[0] = '\n';
  memset(p + 1, ' ', n);
  e->out->size += n + 1;
}

static void encode_string(struct encoder *e, const char *s, size_t len) {
  static const char escapes[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
  add(e, "\"", 1);
  size_t done = 0;
  for (size_t i = 0; i < len;) {
    unsigned char c = (unsigned char)s[i];
    int n = c >= 0x80 ? ane_utf8_step(s + i, len - i, NULL) : c >= 0x20 && c != '"' && c != '\\';
    if (n > 0) {
      i += (size_t)n;
      continue;
    }
    add(e, s + done, i - done);
    const char *found = c ? strchr(escapes, c) : NULL;
    char code[8];
    if (found)
      add(e, (char[]){'\\', letters[found - escapes]}, 2);
    else if (c < 0x20)
      add(e, code, (size_t)snprintf(code, sizeof code, "\\u%04x", c));
    else
      add(e, "\xEF\xBF\xBD", 3); /* a byte of an ill-formed sequence: U+FFFD */
    done = ++i;
  }
  add(e, s + done, len - done);
  add(e, "\"", 1);
}

/* Writes a number. 9 digits give back any float32 (as a float32), 17 any double. Whole numbers below 2^53 keep all their digits.
 * exact: every double is written so that it comes back. */
static void encode_number(struct encoder *e, int at) {
  char *p = room(e, NUMBER_ROOM);
  int n;
  if (lua_isinteger(e->L, at)) {
    n = snprintf(p, NUMBER_ROOM, "%lld", (long long)lua_tointeger(e->L, at));
  } else {
    double v = lua_tonumber(e->L, at);
    if (!isfinite(v)) {
      add(e, "null", 4);
      return;
    }
    bool whole = fabs(v) < 0x1p53 && v == floor(v);
    if (e->exact) {
      n = write_double(p, v);
    } else {
      n = snprintf(p, NUMBER_ROOM, !whole && (double)(float)v == v ? "%.9g" : "%.17g", v);
      set_point(p, n);
    }
  }
  e->out->size += (size_t)n;
}

/* Writes the table on top if it is a number that json_decode has kept as text. */
static bool encode_kept(struct encoder *e) {
  lua_State *L = e->L;
  if (!lua_getmetatable(L, -1)) return false;
  luaL_getmetatable(L, NUMBER_CLASS);
  bool kept = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  if (!kept) return false;
  lua_rawgeti(L, -1, 1);
  size_t len;
  const char *s = luaL_checklstring(L, -1, &len);
  add(e, s, len);
  lua_pop(L, 1);
  return true;
}

/* Returns the number of elements if the table on top becomes an array, else -1. A mark decides for marked tables. */
static lua_Integer array_length(struct encoder *e) {
  lua_State *L = e->L;
  lua_Integer n = (lua_Integer)lua_rawlen(L, -1), seen = 0;
  if (luaL_getmetafield(L, -1, "__jsontype") != LUA_TNIL) {
    const char *mark = lua_tostring(L, -1);
    bool array = mark && strcmp(mark, "array") == 0, object = mark && strcmp(mark, "object") == 0;
    lua_pop(L, 1);
    if (array) return n;
    if (object) return -1;
  }
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
    lua_Integer k = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
    if (k < 1 || k > n) {
      lua_pop(L, 2);
      return -1;
    }
    seen++;
  }
  return seen == n ? n : -1;
}

static void encode_array(struct encoder *e, lua_Integer n, int depth) {
  add(e, "[", 1);
  for (lua_Integer i = 1; i <= n; i++) {
    if (i > 1) add(e, ",", 1);
    add_line(e, depth + 1);
    lua_rawgeti(e->L, -1, i);
    if (lua_isnil(e->L, -1))
      add(e, "null", 4);
    else
      encode_value(e, depth + 1);
    lua_pop(e->L, 1);
  }
  if (n) add_line(e, depth);
  add(e, "]", 1);
}

/* Encodes the member whose key and value are on top: "key":value. */
static void encode_member(struct encoder *e, bool first, int depth) {
  lua_State *L = e->L;
  if (!first) add(e, ",", 1);
  add_line(e, depth + 1);
  int type = lua_type(L, -2);
  if (type != LUA_TSTRING && type != LUA_TNUMBER) luaL_error(L, "a key of type %s has no JSON form", luaL_typename(L, -2));
  lua_pushvalue(L, -2); /* a copy: lua_next needs its key unconverted */
  size_t len;
  const char *key = lua_tolstring(L, -1, &len);
  encode_string(e, key, len);
  lua_pop(L, 1);
  add(e, ": ", e->indent ? 2 : 1);
  encode_value(e, depth + 1);
}

struct sort_key {
  const char *s;
  size_t len;
  lua_Integer index; /* of the key itself in the list of keys */
};

static int compare_keys(const void *a, const void *b) {
  const struct sort_key *x = a, *y = b;
  int order = memcmp(x->s, y->s, ANE_MIN(x->len, y->len));
  return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Encodes members sorted by the bytes of their keys. */
static void encode_sorted(struct encoder *e, int depth) {
  lua_State *L = e->L;
  int t = lua_gettop(L), keys = t + 1, texts = t + 2;
  lua_Integer n = 0;
  lua_newtable(L);
  lua_newtable(L);
  for (lua_pushnil(L); lua_next(L, t); lua_pop(L, 1)) {
    lua_pushvalue(L, -2);
    lua_rawseti(L, keys, ++n);
  }
  struct sort_key *order = lua_newuserdatauv(L, (size_t)(n ? n : 1) * sizeof *order, 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, keys, i + 1);
    order[i].s = lua_tolstring(L, -1, &order[i].len); /* a number key becomes a string here, which texts keeps */
    order[i].index = i + 1;
    if (!order[i].s) luaL_error(L, "a key of type %s has no JSON form", luaL_typename(L, -1));
    lua_rawseti(L, texts, i + 1);
  }
  if (n) qsort(order, (size_t)n, sizeof *order, compare_keys);
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, keys, order[i].index);
    lua_pushvalue(L, -1);
    lua_rawget(L, t);
    encode_member(e, i == 0, depth);
    lua_pop(L, 2);
  }
  lua_settop(L, t);
}

static void encode_object(struct encoder *e, int depth) {
  lua_State *L = e->L;
  bool first = true;
  add(e, "{", 1);
  if (e->sort)
    encode_sorted(e, depth);
  else
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1), first = false) encode_member(e, first, depth);
  lua_pushnil(L);
  if (lua_next(L, -2)) {
    lua_pop(L, 2);
    add_line(e, depth);
  }
  add(e, "}", 1);
}

/* Encodes the value on top of the stack and leaves it there. */
static void encode_value(struct encoder *e, int depth) {
  lua_State *L = e->L;
  size_t len;
  if (depth > MAX_DEPTH) luaL_error(L, "tables nested deeper than %d (or in a cycle) have no JSON form", MAX_DEPTH);
  luaL_checkstack(L, LUA_MINSTACK, "JSON value");
  switch (lua_type(L, -1)) {
    case LUA_TNIL: add(e, "null", 4); return;
    case LUA_TBOOLEAN: lua_toboolean(L, -1) ? add(e, "true", 4) : add(e, "false", 5); return;
    case LUA_TNUMBER: encode_number(e, -1); return;
    case LUA_TSTRING: {
      const char *s = lua_tolstring(L, -1, &len);
      encode_string(e, s, len);
      return;
    }
    case LUA_TTABLE: {
      if (encode_kept(e)) return;
      lua_Integer n = array_length(e);
      if (n >= 0)
        encode_array(e, n, depth);
      else
        encode_object(e, depth);
      return;
    }
    case LUA_TLIGHTUSERDATA:
      if (lua_touserdata(L, -1) == &null_address) {
        add(e, "null", 4);
        return;
      }
      /* fall through */
    default: luaL_error(L, "a %s has no JSON form", luaL_typename(L, -1));
  }
}

static void check_options(lua_State *L, int arg, struct encoder *e) {
  luaL_checktype(L, arg, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    const char *name = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "";
    if (strcmp(name, "sort") == 0)
      e->sort = lua_toboolean(L, -1);
    else if (strcmp(name, "exact") == 0)
      e->exact = lua_toboolean(L, -1);
    else if (strcmp(name, "indent") != 0)
      luaL_argerror(L, arg, lua_pushfstring(L, "unknown option '%s'", name));
    else if (lua_isinteger(L, -1) && lua_tointeger(L, -1) >= 0 && lua_tointeger(L, -1) <= 16)
      e->indent = (int)lua_tointeger(L, -1);
    else if (lua_isboolean(L, -1))
      e->indent = lua_toboolean(L, -1) ? 2 : 0;
    else
      luaL_argerror(L, arg, "indent must be 0 .. 16 or a boolean");
  }
}

/* json_encode(value [, {indent = 0 .. 16 or true, sort = false, exact = false}]) -> text, always valid JSON. exact: every float
 * comes back the same; without it, a float that a float32 holds comes back as that float32. Raises for values without a JSON
 * form: functions, other userdata, keys that are neither strings nor numbers, cycles. */
static int json_encode(lua_State *L) {
  luaL_checkany(L, 1);
  struct encoder e = {.L = L};
  if (!lua_isnoneornil(L, 2)) check_options(L, 2, &e);
  lua_settop(L, 1);
  e.out = bind_new(L, OUTPUT_CLASS, sizeof *e.out, 0);
  lua_pushvalue(L, 1);
  encode_value(&e, 0);
  lua_pushlstring(L, (const char *)e.out->data, e.out->size);
  ane_buffer_free(e.out);
  return 1;
}

static int output_close(lua_State *L) {
  ane_buffer_free(luaL_checkudata(L, 1, OUTPUT_CLASS));
  return 0;
}

/* ---- Marks -------------------------------------------------------------------------------------------------------*/

static int mark(lua_State *L, const char *cls) {
  if (lua_isnoneornil(L, 1)) lua_settop(L, 0), lua_newtable(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  luaL_setmetatable(L, cls);
  return 1;
}

/* json_array([t]), json_object([t]) -> t, marked to become [] or {} whatever is in it */
static int json_array(lua_State *L) { return mark(L, ARRAY_CLASS); }
static int json_object(lua_State *L) { return mark(L, OBJECT_CLASS); }

static void mark_class(lua_State *L, const char *cls, const char *type) {
  luaL_newmetatable(L, cls);
  lua_pushstring(L, type);
  lua_setfield(L, -2, "__jsontype");
  lua_pop(L, 1);
}

static const luaL_Reg functions[] = {
    {"json_decode", json_decode},
    {"json_encode", json_encode},
    {"json_array", json_array},
    {"json_object", json_object},
    {NULL, NULL},
};

static const luaL_Reg no_methods[] = {{NULL, NULL}};
static const luaL_Reg output_meta[] = {{"__gc", output_close}, {"__close", output_close}, {NULL, NULL}};

void bind_json(lua_State *L) {
  bind_class(L, OUTPUT_CLASS, no_methods, output_meta);
  mark_class(L, ARRAY_CLASS, "array");
  mark_class(L, OBJECT_CLASS, "object");
  mark_class(L, NUMBER_CLASS, "number");
  luaL_setfuncs(L, functions, 0);
  push_null(L);
  lua_setfield(L, -2, "null");
}
