/* Vocabularies as other binding files see them (lua_vocabulary.c). */
#ifndef ANE_BINDING_BIND_VOCABULARY_H
#define ANE_BINDING_BIND_VOCABULARY_H

#include "binding/bind.h"
#include "text/text.h"

bool bind_is_vocabulary(lua_State *L, int arg);
void bind_close_vocabulary(lua_State *L, int arg);
/* The vocabulary at `arg` and the table that describes the pipeline at `table` as one description, which is good for as long
 * as both stay as they are. Raises where the table is not as lua_vocabulary.c says. Errors: ANE_FORMAT, ANE_NOMEM. */
ane_status bind_describe(lua_State *L, int arg, int table, struct ane_tokenizer_desc *desc, struct ane_error *err);

/* The tokenizer at `arg` (lua_tokenizer.c); raises where it is none or closed. */
const struct ane_tokenizer *bind_check_tokenizer(lua_State *L, int arg);

#endif
