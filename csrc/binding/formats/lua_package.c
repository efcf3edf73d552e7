/* core.package(path): a Core ML package as it is on disk, or a Core AI asset as the ML Program that it is translated to. */
#include "binding/formats/bind_package.h"

#include "base/alloc.h"
#include "base/bytes.h"

#include <string.h>

#define PACKAGE_CLASS "ane.mlpackage"
#define TEXT_CLASS "ane.mlpackage_text"

struct lua_package {
  struct bind_package *box; /* NULL: closed */
};

/* Owns a buffer while Lua copies it, which may raise. */
struct lua_text {
  struct ane_buffer buffer;
};

struct bind_package *bind_check_package(lua_State *L, int arg) {
  struct lua_package *ud = luaL_checkudata(L, arg, PACKAGE_CLASS);
  if (!ud->box) luaL_error(L, "package is closed");
  return ud->box;
}

void bind_package_release(struct bind_package *b) {
  if (!b || --b->refs > 0) return;
  ane_interp_shared_destroy(b->shared);
  ane_dyn_budget_drop(b->budget);
  ane_mlpackage_close(b->p);
  ane_free(b);
}

static const struct ane_mlpackage *check_package(lua_State *L) { return bind_check_package(L, 1)->p; }

static void close_asset(void *asset) { ane_aimodel_close(asset); }

/* Translates an asset into the package that owns it. */
static ane_status translate(struct ane_mlpackage *p, struct ane_aimodel *asset, struct ane_error *err) {
  struct ane_mil_model *m;
  p->path = p->model_path = asset->path;
  p->files = ane_arena_array(&p->arena, 1, sizeof *p->files);
  if (!p->files) return ane_fail(err, ANE_NOMEM, "%s: not enough memory", asset->path);
  ane_status st = ane_interp_mil_of_ai(&p->arena, asset->program, &m, err);
  if (st) return ane_fail_in(err, st, "%s", asset->path);
  p->model = m;
  p->n_blobs = asset->n_resources;
  p->blob_bytes = asset->resource_bytes;
  *p->files = (struct ane_mlpackage_file){.name = "main.mlirb", .map = asset->map};
  p->n_files = 1;
  asset->map = (struct ane_map){0}; /* the package closes it */
  return ANE_OK;
}

static ane_status open_asset(struct ane_mlpackage **out, const struct ane_aimodel **asset, const char *path,
                             struct ane_error *err) {
  struct ane_aimodel *m;
  ane_status st = ane_aimodel_open(&m, path, err);
  struct ane_mlpackage *p = st ? NULL : ane_calloc(1, sizeof *p);
  if (!p) {
    ane_aimodel_close(st ? NULL : m);
    return st ? st : ane_fail(err, ANE_NOMEM, "%s: not enough memory", path);
  }
  p->release = close_asset;
  p->release_arg = m;
  if ((st = translate(p, m, err))) {
    ane_mlpackage_close(p);
    return st;
  }
  *out = p;
  *asset = m;
  return ANE_OK;
}

ane_status bind_open_package(struct ane_mlpackage **out, const struct ane_aimodel **asset, const char *path,
                             struct ane_error *err) {
  bool at;
  *out = NULL;
  *asset = NULL;
  ane_status st = ane_aimodel_at(path, &at, err);
  if (st) return st;
  return at ? open_asset(out, asset, path, err) : ane_mlpackage_open(out, path, err);
}

/* Opens a package. like: a package whose budget it shares; NULL: it has a budget of its own, of run_memory bytes. */
static ane_status open_box(struct bind_package *box, const char *path, const struct bind_package *like, uint64_t run_memory,
                           struct ane_error *err) {
  box->budget = like ? ane_dyn_budget_keep(like->budget) : ane_dyn_budget_new(run_memory);
  if (!box->budget) return ane_fail(err, ANE_NOMEM, "%s: no memory for a package", path);
  ane_status st = ane_interp_shared_create(&box->shared, err);
  return st ? st : bind_open_package(&box->p, &box->asset, path, err);
}

/* package(path [, run_memory or package]) -> package; or nil, message, code. run_memory: bytes that its states and the values of
 * its runs may hold (nil: see ane_dyn_budget_new); a package: they share the limit of that one. */
static int package_open(lua_State *L) {
  const char *path = bind_text(L, 1);
  const struct bind_package *like = lua_isuserdata(L, 2) ? bind_check_package(L, 2) : NULL;
  lua_Integer run_memory = like ? 0 : luaL_optinteger(L, 2, 0);
  luaL_argcheck(L, run_memory >= 0, 2, "must be bytes");
  struct lua_package *ud = bind_new(L, PACKAGE_CLASS, sizeof *ud, 0);
  struct ane_error err;
  struct bind_package *box = ud->box = ane_calloc(1, sizeof *ud->box);
  if (!box) return ane_fail(&err, ANE_NOMEM, "%s: no memory for a package", path), bind_fail(L, &err);
  box->refs = 1;
  if (open_box(box, path, like, (uint64_t)run_memory, &err)) {
    ud->box = NULL;
    bind_package_release(box);
    return bind_fail(L, &err);
  }
  return 1;
}

static int meth_close(lua_State *L) {
  struct lua_package *ud = luaL_checkudata(L, 1, PACKAGE_CLASS);
  bind_package_release(ud->box);
  ud->box = NULL;
  return 0;
}

static int meth_tostring(lua_State *L) {
  struct lua_package *ud = luaL_checkudata(L, 1, PACKAGE_CLASS);
  if (ud->box)
    lua_pushfstring(L, "package (%s)", ud->box->p->path);
  else
    lua_pushliteral(L, "package (closed)");
  return 1;
}

/* ---- What it holds -----------------------------------------------------------------------------------------------------*/

static void push_dims(lua_State *L, int32_t rank, const int64_t *dim) {
  lua_createtable(L, rank, 0);
  for (int32_t i = 0; i < rank; i++) {
    lua_pushinteger(L, dim[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

/* Pushes {{low, high}, ...}; high is nil if there is no bound. */
static void push_range(lua_State *L, const struct ane_mil_feature *f) {
  lua_createtable(L, f->shape.rank, 0);
  for (int32_t i = 0; i < f->shape.rank; i++) {
    lua_createtable(L, 2, 0);
    lua_pushinteger(L, f->low[i]);
    lua_rawseti(L, -2, 1);
    if (f->high[i] >= 0) {
      lua_pushinteger(L, f->high[i]);
      lua_rawseti(L, -2, 2);
    }
    lua_rawseti(L, -2, i + 1);
  }
}

static void push_enumerated(lua_State *L, const struct ane_mil_feature *f) {
  lua_createtable(L, (int)ANE_MIN(f->n_shapes, 65536u), 0);
  for (uint32_t i = 0; i < f->n_shapes; i++) {
    push_dims(L, f->shapes[i].rank, f->shapes[i].dim);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* Pushes {name, dtype, shape (-1: unknown), optional}; flexible features also have default (a shape), and range or enumerated.
 * type: that of the program, whose shape is used; NULL: that of the description. */
static void push_feature(lua_State *L, const struct ane_mil_feature *f, const struct ane_mil_type *type) {
  lua_createtable(L, 0, 8);
  bind_set_text(L, "name", f->name);
  bind_set_text(L, "dtype", f->kind == ANE_MIL_OTHER ? f->other : ane_mil_dtype_name(f->dtype));
  lua_pushboolean(L, f->optional);
  lua_setfield(L, -2, "optional");
  if (*f->description) bind_set_text(L, "description", f->description);
  if (f->default_kind) {
    lua_pushnumber(L, f->default_value);
    lua_setfield(L, -2, "default_value");
  }
  if (type)
    push_dims(L, type->rank, type->dim);
  else
    push_dims(L, f->shape.rank, f->shape.dim);
  lua_setfield(L, -2, "shape");
  if (f->flexibility == ANE_MIL_FIXED) return;
  push_dims(L, f->shape.rank, f->shape.dim);
  lua_setfield(L, -2, "default");
  if (f->flexibility == ANE_MIL_RANGE)
    push_range(L, f);
  else
    push_enumerated(L, f);
  lua_setfield(L, -2, f->flexibility == ANE_MIL_RANGE ? "range" : "enumerated");
}

static const struct ane_mil_type *type_of(const struct ane_mil_named_type *list, uint32_t n, const char *name) {
  for (uint32_t i = 0; i < n; i++)
    if (strcmp(list[i].name, name) == 0) return &list[i].type;
  return NULL;
}

/* Returns the type that the program gives a feature: that of an input or of an operation's output. Searches from the end, since
 * outputs are made late. */
static const struct ane_mil_type *program_type(const struct ane_mil_function *f, const char *name) {
  const struct ane_mil_type *t = type_of(f->inputs, f->n_inputs, name);
  for (uint32_t i = f->block.n_ops; !t && i-- > 0;) t = type_of(f->block.ops[i].outputs, f->block.ops[i].n_outputs, name);
  return t && (t->kind == ANE_MIL_TENSOR || t->kind == ANE_MIL_STATE) ? t : NULL;
}

static void set_features(lua_State *L, const char *key, const struct ane_mil_function *f, const struct ane_mil_feature *list,
                         uint32_t n) {
  lua_createtable(L, (int)ANE_MIN(n, 65536u), 0);
  for (uint32_t i = 0; i < n; i++) {
    push_feature(L, &list[i], program_type(f, list[i].name));
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, key);
}

/* Adds the operations of a block to the table at the top: type -> number. */
static lua_Integer count_ops(lua_State *L, const struct ane_mil_block *b) {
  lua_Integer all = b->n_ops;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const struct ane_mil_op *op = &b->ops[i];
    lua_getfield(L, -1, op->type);
    lua_Integer n = lua_tointeger(L, -1);
    lua_pop(L, 1);
    bind_set_integer(L, op->type, n + 1);
    for (uint32_t j = 0; j < op->n_blocks; j++) all += count_ops(L, &op->blocks[j]);
  }
  return all;
}

/* Pushes {name, opset, inputs, outputs, states, ops (type -> number), n_ops}. */
static void push_function(lua_State *L, const struct ane_mil_model *m, const struct ane_mil_interface *d) {
  const struct ane_mil_function *f = ane_mil_function(m, d->name); /* not NULL: the reader has checked it */
  lua_createtable(L, 0, 7);
  bind_set_text(L, "name", d->name);
  bind_set_text(L, "opset", f->opset);
  set_features(L, "inputs", f, d->inputs, d->n_inputs);
  set_features(L, "outputs", f, d->outputs, d->n_outputs);
  set_features(L, "states", f, d->states, d->n_states);
  lua_newtable(L);
  lua_Integer all = count_ops(L, &f->block);
  lua_setfield(L, -2, "ops");
  bind_set_integer(L, "n_ops", all);
}

static void push_metadata(lua_State *L, const struct ane_mil_metadata *d) {
  lua_createtable(L, 0, 5);
  bind_set_text(L, "description", d->description);
  bind_set_text(L, "version", d->version);
  bind_set_text(L, "author", d->author);
  bind_set_text(L, "license", d->license);
  lua_createtable(L, 0, (int)ANE_MIN(d->n_user, 65536u));
  for (uint32_t i = 0; i < d->n_user; i++) bind_set_text(L, d->user[i].key, d->user[i].value);
  lua_setfield(L, -2, "user");
}

/* info() -> {path, version, default_function, functions, weights = {number, bytes, files}, metadata} */
static int meth_info(lua_State *L) {
  const struct ane_mlpackage *p = check_package(L);
  const struct ane_mil_model *m = p->model;
  luaL_checkstack(L, 16, "package");
  lua_createtable(L, 0, 6);
  bind_set_text(L, "path", p->path);
  bind_set_integer(L, "version", m->version);
  bind_set_text(L, "kind", bind_check_package(L, 1)->asset ? "aimodel" : "mlpackage");
  bind_set_text(L, "default_function", m->default_function);
  lua_createtable(L, (int)m->n_interfaces, 0);
  for (uint32_t i = 0; i < m->n_interfaces; i++) {
    push_function(L, m, &m->interfaces[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  lua_setfield(L, -2, "functions");
  lua_createtable(L, 0, 3);
  bind_set_integer(L, "number", p->n_blobs);
  bind_set_integer(L, "bytes", (lua_Integer)p->blob_bytes);
  bind_set_integer(L, "files", p->n_files);
  lua_setfield(L, -2, "weights");
  push_metadata(L, &m->metadata);
  lua_setfield(L, -2, "metadata");
  return 1;
}

/* ---- Program -----------------------------------------------------------------------------------------------------------*/

static int text_gc(lua_State *L) {
  struct lua_text *ud = luaL_checkudata(L, 1, TEXT_CLASS);
  ane_buffer_free(&ud->buffer);
  return 0;
}

/* dump() -> the description and the program as text, one operation per line */
static int meth_dump(lua_State *L) {
  const struct ane_mlpackage *p = check_package(L);
  const struct ane_aimodel *asset = bind_check_package(L, 1)->asset;
  struct lua_text *ud = bind_new(L, TEXT_CLASS, sizeof *ud, 0);
  if (asset ? !ane_ai_print(asset->program, &ud->buffer) : !ane_mil_print(p->model, &ud->buffer)) {
    struct ane_error err;
    ane_fail(&err, ANE_NOMEM, "%s: not enough memory for the text of the program", p->path);
    return bind_fail(L, &err);
  }
  lua_pushlstring(L, (const char *)ud->buffer.data, ud->buffer.size);
  ane_buffer_free(&ud->buffer);
  return 1;
}

/* Finds the operation of this output, in nested blocks too; NULL: there is none. */
static const struct ane_mil_op *find_op(const struct ane_mil_block *b, const char *output) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const struct ane_mil_op *op = &b->ops[i], *inner = NULL;
    if (type_of(op->outputs, op->n_outputs, output)) return op;
    for (uint32_t j = 0; j < op->n_blocks && !inner; j++) inner = find_op(&op->blocks[j], output);
    if (inner) return inner;
  }
  return NULL;
}

/* Returns an attribute, or the one value that a parameter is bound to in place. */
static const struct ane_mil_value *find_value(const struct ane_mil_op *op, const char *name) {
  const struct ane_mil_arg *arg = ane_mil_op_arg(op, name);
  const struct ane_mil_value *v = ane_mil_op_attr(op, name);
  return v || !arg || arg->n_bindings != 1 ? v : arg->bindings[0].value;
}

/* Pushes the string, or a list of the strings. */
static void push_strings(lua_State *L, const struct ane_mil_value *v) {
  if (v->type.rank == 0) {
    lua_pushstring(L, v->strings[0]);
    return;
  }
  lua_newtable(L);
  for (uint64_t i = 0; i < v->count; i++) {
    lua_pushstring(L, v->strings[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* value(output [, parameter [, function]]) -> bytes (strings: text or list of texts), dtype and shape of the constant with this
 * output; with `parameter`, of the value that the operation has for it in place; or nil, message, code */
static int meth_value(lua_State *L) {
  const struct ane_mlpackage *p = check_package(L);
  const char *output = bind_text(L, 2), *name = lua_isnoneornil(L, 3) ? "val" : bind_text(L, 3);
  const char *function = lua_isnoneornil(L, 4) ? p->model->default_function : bind_text(L, 4);
  struct ane_error err;
  const struct ane_mil_function *f = ane_mil_function(p->model, function);
  const struct ane_mil_op *op = f ? find_op(&f->block, output) : NULL;
  const struct ane_mil_value *v = op ? find_value(op, name) : NULL;
  if (!v) {
    if (!f)
      ane_fail(&err, ANE_NOTFOUND, "there is no function \"%.100s\"", function);
    else if (!op)
      ane_fail(&err, ANE_NOTFOUND, "no operation has an output \"%.100s\"", output);
    else
      ane_fail(&err, ANE_NOTFOUND, "the operation %.60s of \"%.100s\" holds no value \"%.60s\"", op->type, output, name);
    return bind_fail(L, &err);
  }
  if (v->kind == ANE_MIL_ITEMS) {
    ane_fail(&err, ANE_UNSUPPORTED, "\"%.100s\" is a list, tuple or dictionary, no tensor", output);
    return bind_fail(L, &err);
  }
  if (v->kind == ANE_MIL_STRINGS)
    push_strings(L, v);
  else
    lua_pushlstring(L, v->data, (size_t)v->bytes);
  lua_pushstring(L, ane_mil_dtype_name(v->type.dtype));
  push_dims(L, v->type.rank, v->type.dim);
  return 3;
}

/* rewrite(path) -> true; or nil, message, code */
static int meth_rewrite(lua_State *L) {
  const struct ane_mlpackage *p = check_package(L);
  struct ane_error err;
  if (bind_check_package(L, 1)->asset)
    return ane_fail(&err, ANE_UNSUPPORTED, "%s: a Core AI asset is not rewritten", p->path), bind_fail(L, &err);
  if (ane_mlpackage_rewrite(p, bind_text(L, 2), &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static const luaL_Reg methods[] = {
    {"info", meth_info},
    {"dump", meth_dump},
    {"value", meth_value},
    {"rewrite", meth_rewrite},
    {"program", bind_package_program},
    {"state", bind_package_state},
    {"close", meth_close},
    {NULL, NULL},
};

static const luaL_Reg meta[] = {
    {"__gc", meth_close},
    {"__close", meth_close},
    {"__tostring", meth_tostring},
    {NULL, NULL},
};

static const luaL_Reg no_methods[] = {{NULL, NULL}};
static const luaL_Reg text_meta[] = {{"__gc", text_gc}, {NULL, NULL}};

/* Test hook, see platform.h. */
static int folder_can_swap(lua_State *L) {
  ane_folder_can_swap(lua_toboolean(L, 1));
  return 0;
}

static const luaL_Reg testing[] = {{"folder_can_swap", folder_can_swap}, {NULL, NULL}};

void bind_package(lua_State *L) {
  bind_class(L, PACKAGE_CLASS, methods, meta);
  bind_class(L, TEXT_CLASS, no_methods, text_meta);
  bind_predict(L);
  lua_pushcfunction(L, package_open);
  lua_setfield(L, -2, "package");
}

void bind_testing_package(lua_State *L) { luaL_setfuncs(L, testing, 0); }
