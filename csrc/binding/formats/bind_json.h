/* JSON as other binding files read it: parts by themselves, parts as Lua values (lua_json.c). */
#ifndef ANE_BINDING_BIND_JSON_H
#define ANE_BINDING_BIND_JSON_H

#include "base/json_reader.h"
#include "binding/bind.h"

/* Pushes the next value, as core.json_decode gives it. false: the text is malformed; the stack may then hold other values. */
bool bind_json_value(lua_State *L, struct ane_json *j);
/* Pushes the name of the next member of an object whose table is on top. false: the text is malformed, or the table has the
 * name. */
bool bind_json_member(lua_State *L, struct ane_json *j);
/* Pushes nil, "line 3, column 7: ...", "format". Returns 3. */
int bind_json_fail(lua_State *L, const struct ane_json *j);

#endif
