-- Run by every Lua of `make coverage`, by LUA_INIT, before its script: starts counting lines (lines.c).
assert(package.loadlib(assert(os.getenv "ANE_COVERAGE"):gsub("[^/]*$", "lines.so"), "luaopen_lines"))()
