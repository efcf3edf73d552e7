/* Vocabularies as other binding files see them (lua_vocabulary.c). */
#ifndef ANE_BINDING_BIND_VOCABULARY_H
#define ANE_BINDING_BIND_VOCABULARY_H

#include "binding/bind.h"
#include "text/text.h"

bool bind_is_vocabulary(lua_State *L, int arg);
void bind_close_vocabulary(lua_State *L, int arg);
/* Describes the vocabulary at `arg` with the pipeline in the table at `table`. The description is valid while both are unchanged.
 * Raises if the table is not as lua_vocabulary.c requires. Errors: ANE_FORMAT, ANE_NOMEM. */
ane_status bind_describe(lua_State *L, int arg, int table, struct ane_tokenizer_desc *desc, struct ane_error *err);

/* Returns the tokenizer at `arg` (lua_tokenizer.c); raises if it is none or closed. */
const struct ane_tokenizer *bind_check_tokenizer(lua_State *L, int arg);

#endif
