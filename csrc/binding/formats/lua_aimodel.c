/* core.aimodel(path): what a Core AI asset holds. */
#include "binding/bind.h"

#include "formats/formats.h"

#include <string.h>

#define ASSET_CLASS "ane.aimodel"

struct lua_aimodel {
  struct ane_aimodel *m;    /* NULL: closed */
  struct ane_buffer buffer; /* while Lua copies it, which may raise */
};

static struct lua_aimodel *check_asset(lua_State *L) {
  struct lua_aimodel *ud = luaL_checkudata(L, 1, ASSET_CLASS);
  if (!ud->m) luaL_error(L, "asset is closed");
  return ud;
}

/* aimodel(path) -> asset; or nil, message, code */
static int aimodel_open(lua_State *L) {
  const char *path = bind_text(L, 1);
  struct ane_error err;
  struct lua_aimodel *ud = bind_new(L, ASSET_CLASS, sizeof *ud, 0);
  return ane_aimodel_open(&ud->m, path, &err) ? bind_fail(L, &err) : 1;
}

static int meth_close(lua_State *L) {
  struct lua_aimodel *ud = luaL_checkudata(L, 1, ASSET_CLASS);
  ane_buffer_free(&ud->buffer);
  ane_aimodel_close(ud->m);
  ud->m = NULL;
  return 0;
}

/* asset:text() -> the program, one operation per line */
static int meth_text(lua_State *L) {
  struct lua_aimodel *ud = check_asset(L);
  ud->buffer.size = 0;
  if (!ane_ai_print(ud->m->program, &ud->buffer)) return luaL_error(L, "not enough memory");
  lua_pushlstring(L, ud->buffer.data ? (const char *)ud->buffer.data : "", ud->buffer.size);
  ane_buffer_free(&ud->buffer);
  return 1;
}

/* ---- Contents ------------------------------------------------------------------------------------------------------*/

/* Appends {name, dtype, shape (-1: unknown)} to the list in the field `key` of the table at the top. */
static void append_port(lua_State *L, const char *key, const char *name, const struct ane_ai_type *t) {
  lua_getfield(L, -1, key);
  lua_createtable(L, 0, 3);
  bind_set_text(L, "name", name);
  bind_set_text(L, "dtype", ane_ai_dtype_name(t->dtype));
  lua_createtable(L, t->rank, 0);
  for (int32_t i = 0; i < t->rank; i++) {
    lua_pushinteger(L, t->dim[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, -2, "shape");
  lua_rawseti(L, -2, luaL_len(L, -2) + 1);
  lua_pop(L, 1);
}

static void count_in(lua_State *L, const char *key, lua_Integer by) {
  lua_getfield(L, -1, key);
  lua_Integer n = lua_tointeger(L, -1) + by;
  lua_pop(L, 1);
  bind_set_integer(L, key, n);
}

/* Adds the operations of a function and of its regions to the table at the top. */
static void count_ops(lua_State *L, const struct ane_ai_function *f) {
  for (uint32_t i = 0; i < f->n_ops; i++) {
    count_in(L, f->ops[i]->name, 1);
    for (uint32_t j = 0; j < f->ops[i]->n_regions; j++) count_ops(L, &f->ops[i]->regions[j]);
  }
}

static void push_function(lua_State *L, const struct ane_ai_function *f) {
  static const char *const lists[] = {"inputs", "outputs", "states", "ops"};
  lua_createtable(L, 0, 6);
  bind_set_text(L, "name", f->name);
  bind_set_boolean(L, "private", f->local);
  for (size_t i = 0; i < ANE_COUNT(lists); i++) {
    lua_newtable(L);
    lua_setfield(L, -2, lists[i]);
  }
  for (uint32_t i = 0; i < f->n_inputs; i++) {
    const struct ane_ai_type *t = &f->inputs[i].value->type;
    if (t->kind != ANE_AI_TOKEN) append_port(L, t->kind == ANE_AI_HANDLE ? "states" : "inputs", f->inputs[i].name, t);
  }
  for (uint32_t i = 0; i < f->n_outputs; i++)
    if (f->outputs[i].value->type.kind == ANE_AI_TENSOR)
      append_port(L, "outputs", f->outputs[i].name, &f->outputs[i].value->type);
  lua_getfield(L, -1, "ops");
  count_ops(L, f);
  lua_pop(L, 1);
}

static void count_weights(lua_State *L, const struct ane_ai_function *f, bool *seen) {
  for (uint32_t i = 0; i < f->n_ops; i++) {
    const struct ane_ai_op *op = f->ops[i];
    for (uint32_t j = 0; j < op->n_regions; j++) count_weights(L, &op->regions[j], seen);
    if (op->id != ANE_AI_CONSTANT || op->data.resource < 0 || seen[op->data.resource]) continue;
    seen[op->data.resource] = true;
    count_in(L, ane_ai_dtype_name(op->out->type.dtype), (lua_Integer)op->data.bytes);
  }
}

/* Pushes {dtype = bytes}: the resources by the type of the constants that use them, each counted once. */
static void push_weights(lua_State *L, const struct ane_aimodel *m) {
  lua_newtable(L);
  bool *seen = lua_newuserdatauv(L, (size_t)m->n_resources + 1, 0);
  memset(seen, 0, (size_t)m->n_resources + 1);
  lua_insert(L, -2);
  for (uint32_t i = 0; i < m->program->n_functions; i++) count_weights(L, &m->program->functions[i], seen);
  lua_remove(L, -2);
}

/* asset:contents() -> {producer, resources, resource_bytes, weights = {dtype = bytes}, functions = {{name, private, inputs,
 * outputs, states, ops = {name = count}}, ...}} */
static int meth_contents(lua_State *L) {
  const struct ane_aimodel *m = check_asset(L)->m;
  luaL_checkstack(L, 12, "too many values");
  lua_createtable(L, 0, 5);
  bind_set_text(L, "producer", m->producer);
  bind_set_integer(L, "resources", m->n_resources);
  bind_set_integer(L, "resource_bytes", (lua_Integer)m->resource_bytes);
  push_weights(L, m);
  lua_setfield(L, -2, "weights");
  lua_createtable(L, (int)ANE_MIN(m->program->n_functions, 65536u), 0);
  for (uint32_t i = 0; i < m->program->n_functions; i++) {
    push_function(L, &m->program->functions[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "functions");
  return 1;
}

static const luaL_Reg methods[] = {
    {"close", meth_close},
    {"text", meth_text},
    {"contents", meth_contents},
    {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__gc", meth_close},
    {"__close", meth_close},
    {NULL, NULL},
};

static const luaL_Reg functions[] = {
    {"aimodel", aimodel_open},
    {NULL, NULL},
};

void bind_aimodel(lua_State *L) {
  bind_class(L, ASSET_CLASS, methods, meta);
  luaL_setfuncs(L, functions, 0);
}
