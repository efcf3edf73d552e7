/* Core ML packages, as shared by the files of the binding. */
#ifndef ANE_BINDING_BIND_PACKAGE_H
#define ANE_BINDING_BIND_PACKAGE_H

#include "binding/bind.h"
#include "formats/formats.h"
#include "interp/interp.h"

/* A package, shared by the Lua value that opened it and by its programs and states; the last owner closes it. */
struct bind_package {
  struct ane_mlpackage *p;
  const struct ane_aimodel *asset;  /* a Core AI asset, of which p's model is a translation; NULL: p is a package on disk */
  struct ane_interp_shared *shared; /* packed weights of its programs */
  struct ane_dyn_budget *budget;    /* of the runs of its programs, and of its states */
  int refs;
};
/* Opens a package, or an asset as the package of its translation, whose only file is main.mlirb. *asset: that of *out, which owns
 * it; NULL for a package on disk. *out is NULL on failure. */
ane_status bind_open_package(struct ane_mlpackage **out, const struct ane_aimodel **asset, const char *path,
                             struct ane_error *err);
/* Returns the open package at `arg`; raises otherwise. */
struct bind_package *bind_check_package(lua_State *L, int arg);
/* Drops a reference. NULL is fine. */
void bind_package_release(struct bind_package *b);

/* Methods of packages that compute (lua_predict.c): program, state. */
int bind_package_program(lua_State *L);
int bind_package_state(lua_State *L);
void bind_predict(lua_State *L);

#endif
