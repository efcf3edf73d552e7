rockspec_format = "3.0"
package = "ane"
version = "0.1.0-1"
source = {
  url = "file://ane-0.1.0.tar.gz", -- in the rock that make dist packs; a published rockspec names an address (CONTRIBUTING.md)
  dir = "ane-0.1.0",
}
description = {
  summary = "Language models in Lua, with a C core",
  detailed = "Loads language models from GGUF files and runs them on the CPU: tokenizer, chat template, sampling, sessions, " ..
    "and a command.",
  license = "MIT",
  labels = { "llm", "machine-learning" },
}
supported_platforms = { "linux" }
dependencies = {
  "lua >= 5.4, < 5.5",
  "argparse >= 0.7",
  "lpeg >= 1.0",
}
external_dependencies = {
  JANSSON = { header = "jansson.h" },
  ["PROTOBUF-C"] = { header = "protobuf-c/protobuf-c.h" },
  PCRE2 = { header = "pcre2.h" },
  UTF8PROC = { header = "utf8proc.h" },
  ZLIB = { header = "zlib.h" },
}
build = {
  type = "make",
  build_variables = {
    CFLAGS = "$(CFLAGS)",
    LUA_INCDIR = "$(LUA_INCDIR)",
  },
  install_variables = {
    CFLAGS = "$(CFLAGS)", -- the same, or installing would build again
    LUA_INCDIR = "$(LUA_INCDIR)",
    INST_LIBDIR = "$(LIBDIR)",
    INST_LUADIR = "$(LUADIR)",
    INST_BINDIR = "$(BINDIR)",
  },
}
