/* An HTTP server and its exchanges for Lua: core.http. */
#include "binding/bind.h"

#include "http/http.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define SERVER_CLASS "ane.http"
#define EXCHANGE_CLASS "ane.exchange"

struct server {
  struct ane_http *http; /* NULL: closed */
  bool signals;          /* it is the one that SIGINT and SIGTERM wake */
  bool last;             /* its close leaves both ignored: the process ends */
};

struct exchange {
  struct ane_http_exchange *x; /* NULL: closed */
};

static struct server *open_server(lua_State *L) {
  struct server *s = luaL_checkudata(L, 1, SERVER_CLASS);
  if (!s->http) luaL_error(L, "server is closed");
  return s;
}

static struct ane_http_exchange *open_exchange(lua_State *L) {
  struct exchange *e = luaL_checkudata(L, 1, EXCHANGE_CLASS);
  if (!e->x) luaL_error(L, "exchange is closed");
  return e->x;
}

/* ---- Signals -------------------------------------------------------------------------------------------------------------*/

static volatile sig_atomic_t signals_seen, wake_file = -1;

static void on_signal(ANE_UNUSED int number) {
  signals_seen = signals_seen + 1;
  if (wake_file >= 0) {
    ssize_t ignored = write(wake_file, "", 1);
    (void)ignored;
  }
}

/* Sets what SIGINT and SIGTERM do. on: they are counted and wake the server. off: both end the process again, or are ignored if
 * the process is about to end. */
static void catch_signals(struct server *s, bool on) {
  struct sigaction action = {.sa_handler = on ? on_signal : s->last ? SIG_IGN : SIG_DFL};
  if (on) signals_seen = 0;
  wake_file = on ? ane_http_wake_file(s->http) : -1;
  s->signals = on;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

/* server:catch_signals(on, last). last: the process ends after the server's close, and ignores both signals from there on */
static int server_catch_signals(lua_State *L) {
  struct server *s = open_server(L);
  s->last = lua_toboolean(L, 3);
  catch_signals(s, lua_toboolean(L, 2));
  return 0;
}

/* server:signals() -> number of signals since catch_signals(true) */
static int server_signals(lua_State *L) {
  (void)open_server(L);
  lua_pushinteger(L, signals_seen);
  return 1;
}

/* ---- The server ----------------------------------------------------------------------------------------------------------*/

static double seconds_option(lua_State *L, const char *name, double def) {
  return bind_opt_number_option(L, 1, name, def, 0.01, 1e6);
}

/* http {host, port, cert, key, secret, connections, header_bytes, body_bytes, bodies_bytes, output_bytes, receive_s} -> server;
 * or nil, message, code. See http/http.h */
static int http_start(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const char *host = bind_opt_text_option(L, 1, "host");
  struct ane_http_options o = {
      .host = host ? host : "127.0.0.1",
      .port = (uint16_t)bind_opt_integer_option(L, 1, "port", 0, 0, UINT16_MAX),
      .cert = bind_opt_text_option(L, 1, "cert"),
      .key = bind_opt_text_option(L, 1, "key"),
      .secret = bind_opt_text_option(L, 1, "secret"),
      .connections = (int)bind_opt_integer_option(L, 1, "connections", 256, 1, 1 << 16),
      .header_bytes = (size_t)bind_opt_integer_option(L, 1, "header_bytes", 16 << 10, 1 << 10, 1 << 20),
      .body_bytes = (size_t)bind_opt_integer_option(L, 1, "body_bytes", 8 << 20, 1, 1 << 30),
      .bodies_bytes = (size_t)bind_opt_integer_option(L, 1, "bodies_bytes", 64 << 20, 1, (lua_Integer)1 << 40),
      .output_bytes = (size_t)bind_opt_integer_option(L, 1, "output_bytes", 1 << 20, 1 << 10, 1 << 30),
      .receive_s = seconds_option(L, "receive_s", 60),
  };
  if (!o.cert != !o.key) return luaL_error(L, "options cert and key must be given together");
  struct server *s = bind_new(L, SERVER_CLASS, sizeof *s, 0);
  struct ane_error err;
  if (ane_http_start(&s->http, &o, &err)) return bind_fail(L, &err);
  return 1;
}

static int server_port(lua_State *L) {
  lua_pushinteger(L, ane_http_port(open_server(L)->http));
  return 1;
}

static int server_connections(lua_State *L) {
  lua_pushinteger(L, ane_http_connections(open_server(L)->http));
  return 1;
}

static int server_busy(lua_State *L) {
  lua_pushinteger(L, ane_http_busy(open_server(L)->http));
  return 1;
}

/* server:quiesce(): no new connections */
static int server_quiesce(lua_State *L) {
  ane_http_quiesce(open_server(L)->http);
  return 0;
}

/* server:wait(seconds): waits until a request arrives */
static int server_wait(lua_State *L) {
  struct server *s = open_server(L);
  lua_Number seconds = luaL_checknumber(L, 2);
  ane_http_wait(s->http, seconds > 0 ? seconds : 0);
  return 0;
}

/* server:look(): detects clients that have disconnected */
static int server_look(lua_State *L) {
  ane_http_look(open_server(L)->http);
  return 0;
}

/* server:take() -> exchange; nil: no request is pending */
static int server_take(lua_State *L) {
  struct server *s = open_server(L);
  struct exchange *e = bind_new(L, EXCHANGE_CLASS, sizeof *e, 0);
  e->x = ane_http_take(s->http);
  if (!e->x) lua_pushnil(L);
  return 1;
}

static int server_close(lua_State *L) {
  struct server *s = luaL_checkudata(L, 1, SERVER_CLASS);
  if (!s->http) return 0;
  if (s->signals) catch_signals(s, false);
  ane_http_stop(s->http);
  s->http = NULL;
  return 0;
}

/* ---- Exchanges -----------------------------------------------------------------------------------------------------------*/

/* exchange:request() -> {method, path, body, authorised, too_large, crowded, long_head, malformed} */
static int exchange_request(lua_State *L) {
  const struct ane_http_request *r = ane_http_request(open_exchange(L));
  lua_createtable(L, 0, 8);
  bind_set_text(L, "method", r->method);
  bind_set_text(L, "path", r->path);
  bind_set_bytes(L, "body", r->body, r->size);
  bind_set_boolean(L, "authorised", r->authorised);
  bind_set_boolean(L, "too_large", r->too_large);
  bind_set_boolean(L, "crowded", r->crowded);
  bind_set_boolean(L, "long_head", r->long_head);
  bind_set_boolean(L, "malformed", r->malformed);
  return 1;
}

/* exchange:header(name) -> value; nil: none */
static int exchange_header(lua_State *L) {
  lua_pushstring(L, ane_http_header(open_exchange(L), luaL_checkstring(L, 2)));
  return 1;
}

/* Adds the headers of the table at `arg`, name = value. */
static void add_headers(lua_State *L, struct ane_http_exchange *x, int arg) {
  luaL_checktype(L, arg, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    luaL_argcheck(L, lua_type(L, -2) == LUA_TSTRING && lua_isstring(L, -1), arg, "headers map names to texts");
    if (!ane_http_add_header(x, lua_tostring(L, -2), lua_tostring(L, -1))) luaL_argerror(L, arg, "not a header");
  }
}

/* exchange:reply(status, headers, body) -> true; or nil, message, code */
static int exchange_reply(lua_State *L) {
  struct ane_http_exchange *x = open_exchange(L);
  int status = (int)bind_integer(L, 2, 200, 599);
  size_t size;
  const char *body = luaL_checklstring(L, 4, &size);
  struct ane_error err;
  add_headers(L, x, 3);
  return bind_done(L, ane_http_reply(x, status, body, size, &err), &err);
}

/* exchange:begin(status, headers, probe) -> true; or nil, message, code */
static int exchange_begin(lua_State *L) {
  struct ane_http_exchange *x = open_exchange(L);
  int status = (int)bind_integer(L, 2, 200, 599);
  struct ane_error err;
  add_headers(L, x, 3);
  return bind_done(L, ane_http_begin(x, status, luaL_optstring(L, 4, ""), &err), &err);
}

/* exchange:write(text) -> true; or nil, message, code ("stopped": the client has disconnected or does not read) */
static int exchange_write(lua_State *L) {
  struct ane_http_exchange *x = open_exchange(L);
  size_t size;
  const char *data = luaL_checklstring(L, 2, &size);
  struct ane_error err;
  return bind_done(L, ane_http_write(x, data, size, &err), &err);
}

/* exchange:finish([text]): appends the last text and ends the response */
static int exchange_finish(lua_State *L) {
  struct ane_http_exchange *x = open_exchange(L);
  size_t size;
  const char *data = luaL_optlstring(L, 2, "", &size);
  ane_http_end(x, data, size);
  return 0;
}

static int exchange_pending(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)ane_http_pending(open_exchange(L)));
  return 1;
}

/* exchange:full() -> do so many bytes wait for the client that no more should be written? */
static int exchange_full(lua_State *L) {
  lua_pushboolean(L, ane_http_full(open_exchange(L)));
  return 1;
}

static int exchange_gone(lua_State *L) {
  lua_pushboolean(L, ane_http_gone(open_exchange(L)));
  return 1;
}

static int exchange_close(lua_State *L) {
  struct exchange *e = luaL_checkudata(L, 1, EXCHANGE_CLASS);
  ane_http_release(e->x);
  e->x = NULL;
  return 0;
}

/* http_available() -> true; or nil, message, code if no server can be started. */
static int http_available(lua_State *L) {
  struct ane_error err;
  if (!ane_http_available(&err)) return bind_fail(L, &err);
  lua_pushboolean(L, 1);
  return 1;
}

static const luaL_Reg server_methods[] = {
    {"port", server_port},
    {"connections", server_connections},
    {"busy", server_busy},
    {"quiesce", server_quiesce},
    {"wait", server_wait},
    {"look", server_look},
    {"take", server_take},
    {"catch_signals", server_catch_signals},
    {"signals", server_signals},
    {"close", server_close},
    {NULL, NULL},
};
static const luaL_Reg exchange_methods[] = {
    {"request", exchange_request},
    {"header", exchange_header},
    {"reply", exchange_reply},
    {"begin", exchange_begin},
    {"write", exchange_write},
    {"finish", exchange_finish},
    {"pending", exchange_pending},
    {"full", exchange_full},
    {"gone", exchange_gone},
    {"close", exchange_close},
    {NULL, NULL},
};
static const luaL_Reg server_meta[] = {{"__gc", server_close}, {"__close", server_close}, {NULL, NULL}};
static const luaL_Reg exchange_meta[] = {{"__gc", exchange_close}, {"__close", exchange_close}, {NULL, NULL}};
static const luaL_Reg functions[] = {{"http", http_start}, {"http_available", http_available}, {NULL, NULL}};

void bind_http(lua_State *L) {
  bind_class(L, SERVER_CLASS, server_methods, server_meta);
  bind_class(L, EXCHANGE_CLASS, exchange_methods, exchange_meta);
  luaL_setfuncs(L, functions, 0);
}
