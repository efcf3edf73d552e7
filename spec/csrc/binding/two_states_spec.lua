-- Two Lua states in one process, each on a thread of its own: nothing in the module may be shared between them.

local PROGRAM = [[
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <pthread.h>
#include <stdio.h>

static char text[2][256];
static int failed[2];

static void *run(void *arg) {
  int i = *(int *)arg;
  lua_State *L = luaL_newstate();
  luaL_openlibs(L);
  lua_pushinteger(L, i + 1);
  lua_setglobal(L, "threads");
  failed[i] = luaL_dofile(L, "@SCRIPT@");
  snprintf(text[i], sizeof text[i], "%s", lua_tostring(L, -1));
  lua_close(L);
  return NULL;
}

int main(void) {
  pthread_t thread[2];
  int index[2] = {0, 1};
  for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, run, &index[i]);
  for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
  printf("%d %d %s|%s", failed[0], failed[1], text[0], text[1]);
  return 0;
}
]]

local SCRIPT = [[
local ane = require "ane"
local last
for _ = 1, 3 do
  local model <close> = assert(ane.load("spec/fixtures/gguf/llama-q8_0.gguf", {threads = threads}))
  local result = assert(model:generate({1, 2, 3}, {max_tokens = 20, ignore_eos = true, details = true, temperature = 1, seed = 5}))
  last = table.concat(result.ids, " ")
end
return last
]]

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

describe("two Lua states", function()
  it("work at once and agree", function()
    local base = os.tmpname()
    write(base .. ".lua", SCRIPT)
    write(base .. ".c", (PROGRAM:gsub("@SCRIPT@", base .. ".lua")))
    local flags = "$(pkg-config --cflags --libs lua5.4 2>/dev/null || echo -I/usr/include/lua5.4 -llua5.4) -lpthread"
    local compile = ("env -u LD_PRELOAD cc -o %s.exe %s.c %s 2>/dev/null"):format(base, base, flags)
    local built = os.execute(compile)
    local out
    if built then
      local run = io.popen(("LUA_PATH='%s' LUA_CPATH='%s' %s.exe"):format(package.path, package.cpath, base))
      out = run:read "a"
      run:close()
    end
    for _, ending in ipairs { "", ".lua", ".c", ".exe" } do os.remove(base .. ending) end
    if not built then return pending "no C compiler, or no liblua5.4" end
    local first, second = out:match "^0 0 ([%d ]+)|([%d ]+)$"
    assert.is_string(first, out)
    assert.equal(first, second)
  end)
end)
