/* Declarations for graphs, programs and sessions that binding files share. */
#ifndef ANE_BINDING_BIND_MODEL_H
#define ANE_BINDING_BIND_MODEL_H

#include "binding/bind.h"
#include "binding/formats/bind_source.h"
#include "exec/exec.h"
#include "graph/graph.h"

/* A graph with the sources that its constants point into. Each source is retained until the graph is closed. */
enum { BIND_MAX_SOURCES = 8 };
struct bind_graph {
  struct ane_graph *graph; /* NULL: closed */
  struct ane_source *sources[BIND_MAX_SOURCES];
  int n_sources;
  bool blank; /* has constants without data */
  int uses;   /* calls of Lua functions during which it must neither change nor be closed */
};
/* Returns the open graph at `arg`, which is not in use; raises otherwise. */
struct bind_graph *bind_check_graph(lua_State *L, int arg);
/* Pushes the dimensions of a value's shape as a list; open ones are "T", "W" and "context". */
void bind_push_shape(lua_State *L, const struct ane_shape *s);

/* A program, owned by its Lua value and its sessions. The last owner frees it and its sources. */
struct bind_program_box {
  struct ane_program *program;
  struct ane_source *sources[BIND_MAX_SOURCES];
  int n_sources, refs;
  struct ane_adapter *adapters[ANE_SESSION_ADAPTERS]; /* default adapters of sessions; owned */
  float scales[ANE_SESSION_ADAPTERS];
  int n_adapters;
  void *draw_scratch;     /* of program:draw, for all threads; NULL: none yet */
  struct bind_link *link; /* of a stage; NULL: the program is whole */
  bool running;           /* functions of the link may be called: they cannot use the program or its sessions */
};
void bind_program_release(struct bind_program_box *box);
/* Returns the open program at `arg`; raises otherwise. Metamethods, functions that a call takes, and finalisers that run when
 * memory is allocated may close it: check it again after them. The same holds for all objects of the binding. */
struct bind_program_box *bind_check_program(lua_State *L, int arg);
/* ane_run_tapped, during which functions of a stage cannot use the program or its sessions. All that the items point to must be
 * on the stack of Lua, since these functions may change tables. */
ane_status bind_run(struct bind_program_box *box, const struct ane_run_item *items, int32_t n, ane_tap_fn tap, void *arg,
                    struct ane_error *err);
/* Raises if the program is in a run. */
void bind_check_idle(lua_State *L, const struct bind_program_box *box);
/* Returns the mask (core.mask) at `arg` for a run of this program; NULL: none. Raises if it has fewer ids than the program has
 * logits. */
const uint32_t *bind_run_mask(lua_State *L, int arg, const struct bind_program_box *box);
/* Fails with ANE_IO and the path if a file that the weights are read from has lost pages. Call it after each run. */
ane_status bind_program_check(const struct bind_program_box *box, struct ane_error *err);

/* lua_stage.c: reads the option stage = {from =, to = (body steps), fp16 =, receive = function(bytes) -> string, send =
 * function(string)} of core.program at stack index `t` into *out; false: there is none. The functions return nil, message if they
 * fail. */
struct bind_link;
bool bind_stage_option(lua_State *L, int t, struct bind_program_box *box, struct ane_stage *out);
/* lua_stage.c: reads the option tensor = {rank =, ranks =, send = function(string) (to all other ranks), receive = function(rank)
 * -> string} in the same way. */
bool bind_tensor_option(lua_State *L, int t, struct bind_program_box *box, struct ane_tensor_parallel *out);
/* Sets the Lua state in which the functions of a stage are called from now on: that of the current call. */
void bind_link_enter(struct bind_program_box *box, lua_State *L);
void bind_link_free(struct bind_program_box *box);
/* graph:costs() and graph:identity(), see lua_stage.c. */
int bind_graph_costs(lua_State *L);
int bind_graph_identity(lua_State *L);
int bind_graph_head(lua_State *L);
int bind_graph_slice_head(lua_State *L);

/* Returns the open session at `arg`, and its program in *box; raises otherwise. */
struct ane_session *bind_check_session(lua_State *L, int arg, struct bind_program_box **box);
/* program:draw; see lua_sampler.c. */
int bind_program_draw(lua_State *L);
/* program:adapter; see lua_adapter.c. */
int bind_adapter_new(lua_State *L, int program);
/* Reads the list {{adapter, scale}, ...} at `arg` and returns its length. Raises if it is something else. */
int bind_adapters(lua_State *L, int arg, struct ane_adapter *list[ANE_SESSION_ADAPTERS], float scales[ANE_SESSION_ADAPTERS]);

/* Pushes a session of the program at stack index `program`, which it owns a share of; or nil, message, code. prefixes: the stack
 * index of prefixes whose store has its pages; 0: the store of the program. Returns the number of values. */
int bind_session_open(lua_State *L, int program, int64_t context, ane_dtype kv, int prefixes);

/* Known prefixes and the store of their pages. Owns a share of the program. */
struct bind_prefixes {
  struct ane_kv_prefixes *tree; /* NULL: closed */
  struct ane_kv_store *store;
  struct bind_program_box *box;
  ane_dtype kv;
};
/* Returns the open prefixes at `arg`; raises otherwise. */
struct bind_prefixes *bind_check_prefixes(lua_State *L, int arg);
/* Pushes empty prefixes of the program at stack index `program`; or nil, message, code. Returns the number of values. */
int bind_prefixes_open(lua_State *L, int program, ane_dtype kv);

#endif
