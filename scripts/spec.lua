-- Runs busted, with the Lua that runs this file: `lua5.4 scripts/spec.lua [busted's options] [FILE ...]`.
-- .busted has the settings; ANE_BUILD names the build folder, by default build/release.
require "busted.runner" { standalone = false }
