/* What all classes of the Lua binding share: userdata, arguments, options, results and errors.
 *
 * Rule: create the userdata first (zeroed = closed, metatable set), then acquire into it. __gc and __close accept the closed
 * state, so nothing leaks wherever Lua raises. */
#ifndef ANE_BINDING_BIND_H
#define ANE_BINDING_BIND_H

#include "base/status.h"

#include <lauxlib.h>
#include <lua.h>

/* Pushes a zeroed userdata of `size` bytes with the metatable of `cls` (registered by bind_class) and `uservalues` slots. */
void *bind_new(lua_State *L, const char *cls, size_t size, int uservalues);

/* Registers a class: metatable `cls` with __index = methods (and "close" if meta has __gc), __name = cls, __gc and __close from
 * meta. Leaves nothing on the stack. */
void bind_class(lua_State *L, const char *cls, const luaL_Reg *methods, const luaL_Reg *meta);

/* Pushes nil, message and code word. Returns 3, the number of values. */
int bind_fail(lua_State *L, const struct ane_error *err);

/* Return an integer argument in [lo, hi], or `def` if it is absent; raise otherwise, naming the range. */
lua_Integer bind_integer(lua_State *L, int arg, lua_Integer lo, lua_Integer hi);
lua_Integer bind_opt_integer(lua_State *L, int arg, lua_Integer def, lua_Integer lo, lua_Integer hi);

/* Returns the raw length of the table at `arg`; raises on anything else, and on more than `most` entries. The length of a table
 * of a few entries can be any number (Lua manual, 3.4.7), and a metamethod may return a negative one. So lists are read by this
 * function before memory is allocated for them. */
size_t bind_length(lua_State *L, int arg, size_t most);

/* Returns a string argument as a C string; raises if it holds a NUL. */
const char *bind_text(lua_State *L, int arg);

/* Copies the integer sequence at `arg` (a table of ids, or one integer) into a userdata, which is pushed: each entry is in
 * [0, INT32_MAX]. Raises on anything else, naming the index. *n: the length. */
int32_t *bind_ids(lua_State *L, int arg, size_t *n);

/* Pushes true, or after a failure nil, message and code. Returns the number of values. */
int bind_done(lua_State *L, ane_status st, const struct ane_error *err);

/* Reads the argument as one of `rows` rows: counted from 1, or if negative from the end; default: the last. Returns the row
 * counted from 0; -1: there is no such row, and bind_no_row raises the error. */
int64_t bind_row(lua_State *L, int arg, int64_t rows);
int bind_no_row(lua_State *L, int64_t rows);

/* ---- Fields of tables ------------------------------------------------------------------------------------------------*/

/* Pushes an empty buffer, which the collector frees. */
struct ane_buffer *bind_buffer(lua_State *L);

/* Set a field of the table at the top of the stack. NULL leaves it unset. */
void bind_set_text(lua_State *L, const char *key, const char *s);
void bind_set_bytes(lua_State *L, const char *key, const void *data, size_t size);
void bind_set_integer(lua_State *L, const char *key, lua_Integer v);
void bind_set_number(lua_State *L, const char *key, lua_Number v);
void bind_set_boolean(lua_State *L, const char *key, bool v);

/* Pushes a field of the table at stack index t without metamethods, which could close what the caller uses, or give a text that
 * no table keeps. Returns its type; raises if there is no table. */
int bind_field(lua_State *L, int t, const char *name);
/* Read an option of the table at stack index t, as bind_field. They leave the stack as it was, and raise "option NAME is VALUE,
 * but must be ...". */
lua_Integer bind_integer_option(lua_State *L, int t, const char *name, lua_Integer lo, lua_Integer hi);
/* Read an option; `def` if it is absent. */
lua_Integer bind_opt_integer_option(lua_State *L, int t, const char *name, lua_Integer def, lua_Integer lo, lua_Integer hi);
lua_Number bind_opt_number_option(lua_State *L, int t, const char *name, lua_Number def, lua_Number lo, lua_Number hi);
/* Returns the type of a value, as messages name it: "a table", or "nil". Pushes the text. */
const char *bind_kind(lua_State *L, int i);
/* Reads a text; NULL if it is absent. The table keeps the text alive. */
const char *bind_opt_text_option(lua_State *L, int t, const char *name);
/* Reads n float32 as bytes; NULL if they are absent. The table keeps them alive. of: the table, as messages name it. */
const float *bind_opt_floats_option(lua_State *L, int t, const char *name, lua_Integer n, const char *of);
/* Reads a boolean; false if it is absent. */
bool bind_boolean_option(lua_State *L, int t, const char *name);
/* Returns the index of the option's word in a NULL-terminated list; 0 if it is absent. */
int bind_choice_option(lua_State *L, int t, const char *name, const char *const *words);

/* ---- Progress --------------------------------------------------------------------------------------------------------*/

/* The first member of the argument of callbacks. The progress function runs in protected mode; its error stays on the stack, and
 * the caller raises it when nothing is half made. */
struct bind_progress {
  lua_State *L;
  int function; /* its stack index, 0: none */
  bool raised;  /* the message is at the top of the stack */
};
/* Calls progress(done, total). arg: a struct bind_progress. */
void bind_on_progress(void *arg, uint64_t done, uint64_t total);

/* Openers of the parts of ane.core. Each adds its functions to the table at the top of the stack. */
void bind_system(lua_State *L);
void bind_append(lua_State *L);
void bind_writer(lua_State *L);
void bind_sandbox(lua_State *L);
void bind_tensor(lua_State *L);
void bind_moments(lua_State *L);
void bind_source(lua_State *L);
void bind_gguf(lua_State *L);
void bind_merged(lua_State *L);
void bind_tokenizer(lua_State *L);
void bind_vocabulary(lua_State *L);
void bind_grammar(lua_State *L);
void bind_mask(lua_State *L);
void bind_graph(lua_State *L);
void bind_program(lua_State *L);
void bind_session(lua_State *L);
void bind_gradient(lua_State *L);
void bind_prefixes(lua_State *L);
void bind_adapter(lua_State *L);
void bind_saved(lua_State *L);
void bind_sampler(lua_State *L);
void bind_json(lua_State *L);
void bind_interp(lua_State *L);
void bind_lm(lua_State *L);
void bind_onnx(lua_State *L);
void bind_package(lua_State *L);
void bind_aimodel(lua_State *L);
void bind_coreml(lua_State *L);
void bind_mil(lua_State *L);
void bind_folder(lua_State *L);
void bind_embedding(lua_State *L);
void bind_export(lua_State *L);
void bind_match(lua_State *L);
void bind_http(lua_State *L);
void bind_fetch(lua_State *L);
/* The table core.testing, for specs only: one opener per topic. */
void bind_testing(lua_State *L);
void bind_testing_matmul(lua_State *L);
void bind_testing_kernels(lua_State *L);
void bind_testing_base(lua_State *L);
void bind_testing_exec(lua_State *L);
void bind_testing_package(lua_State *L);
void bind_testing_aimodel(lua_State *L);

#endif
