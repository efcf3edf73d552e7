/* core.testing: runs of several sessions, and activation memory that is filled with NaN. */
#include "binding/model/bind_model.h"
#include "binding/model/bind_saved.h"

enum { MAX_ITEMS = 16 };

/* Reads the item {session, ids [, want]} on top of the stack. The memory of its ids stays on the stack. */
static void check_run_item(lua_State *L, struct ane_run_item *item, struct bind_program_box **box) {
  int at = lua_gettop(L);
  size_t n;
  *item = (struct ane_run_item){0};
  lua_rawgeti(L, at, 1);
  item->session = bind_check_session(L, -1, box);
  lua_rawgeti(L, at, 3);
  item->want = bind_want(L, -1);
  lua_rawgeti(L, at, 2);
  item->ids = bind_ids(L, lua_gettop(L), &n);
  item->n = (int64_t)n;
}

/* run{{session, ids, want}, ...} -> true; or nil, message, code: all items in one run of the first session's program */
static int run_items(lua_State *L) {
  struct ane_run_item items[MAX_ITEMS];
  struct bind_program_box *box = NULL, *other;
  struct ane_error err;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
  luaL_argcheck(L, n >= 1 && n <= MAX_ITEMS, 1, "1 to 16 items");
  luaL_checkstack(L, 5 * MAX_ITEMS, "items");
  for (lua_Integer i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    check_run_item(L, &items[i], i ? &other : &box);
  }
  /* analyser: n is at least 1, so box is that of the first item. */
  if (ane_run(box->program, items, (int32_t)n, &err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

/* poison(session): fills all activations of its program with NaN. A step that reads a value that no step wrote then gives NaN */
static int poison(lua_State *L) {
  struct bind_program_box *box;
  bind_check_session(L, 1, &box);
  ane_program_poison(box->program);
  return 0;
}

/* pool_manner(name): how threads take part in the runs of programs made from now on */
static int pool_manner(lua_State *L) {
  static const char *const names[] = {"free", "together", "mixed", NULL};
  static const enum ane_pool_manner manners[] = {ANE_POOL_FREE, ANE_POOL_TOGETHER, ANE_POOL_MIXED};
  ane_pool_manner(manners[luaL_checkoption(L, 1, NULL, names)]);
  return 0;
}

static const luaL_Reg exec_functions[] = {
    {"pool_manner", pool_manner},
    {"run", run_items},
    {"poison", poison},
    {NULL, NULL},
};

void bind_testing_exec(lua_State *L) { luaL_setfuncs(L, exec_functions, 0); }
