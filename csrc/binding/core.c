/* luaopen_ane_core: the table `ane.core`, the C core of the public module in lua/ane. */
#include "binding/bind.h"

#define EXPORT __attribute__((visibility("default")))

int luaopen_ane_core(lua_State *L);

EXPORT int luaopen_ane_core(lua_State *L) {
  luaL_checkversion(L);
  lua_newtable(L);
  bind_system(L);
  bind_append(L);
  bind_writer(L);
  bind_sandbox(L);
  bind_tensor(L);
  bind_moments(L);
  bind_mask(L);
  bind_source(L);
  bind_gguf(L);
  bind_merged(L);
  bind_tokenizer(L);
  bind_vocabulary(L);
  bind_grammar(L);
  bind_graph(L);
  bind_program(L);
  bind_session(L);
  bind_gradient(L);
  bind_prefixes(L);
  bind_adapter(L);
  bind_saved(L);
  bind_sampler(L);
  bind_json(L);
  bind_interp(L);
  bind_lm(L);
  bind_onnx(L);
  bind_package(L);
  bind_aimodel(L);
  bind_coreml(L);
  bind_mil(L);
  bind_folder(L);
  bind_embedding(L);
  bind_export(L);
  bind_match(L);
  bind_http(L);
  bind_fetch(L);
  lua_newtable(L);
  bind_testing(L);
  bind_testing_matmul(L);
  bind_testing_kernels(L);
  bind_testing_base(L);
  bind_testing_exec(L);
  bind_testing_package(L);
  bind_testing_aimodel(L);
  lua_setfield(L, -2, "testing");
  return 1;
}
