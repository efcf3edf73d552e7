/* A build without libmicrohttpd: starting a server is an error. */
#include "http/http.h"

bool ane_http_available(struct ane_error *err) {
  ane_fail(err, ANE_UNSUPPORTED, "built without libmicrohttpd: install its headers (libmicrohttpd-dev) and build again");
  return false;
}

ane_status ane_http_start(struct ane_http **out, ANE_UNUSED const struct ane_http_options *o, struct ane_error *err) {
  *out = NULL;
  ane_http_available(err);
  return ANE_UNSUPPORTED;
}

/* No server can exist for the calls below; the Lua binding still links to them. */
int ane_http_port(ANE_UNUSED const struct ane_http *h) { return 0; }
int ane_http_connections(ANE_UNUSED struct ane_http *h) { return 0; }
int ane_http_busy(ANE_UNUSED struct ane_http *h) { return 0; }
void ane_http_quiesce(ANE_UNUSED struct ane_http *h) {}
void ane_http_stop(ANE_UNUSED struct ane_http *h) {}
void ane_http_wait(ANE_UNUSED struct ane_http *h, ANE_UNUSED double seconds) {}
int ane_http_wake_file(ANE_UNUSED const struct ane_http *h) { return -1; }
void ane_http_look(ANE_UNUSED struct ane_http *h) {}
struct ane_http_exchange *ane_http_take(ANE_UNUSED struct ane_http *h) {
  return NULL;
}
const struct ane_http_request *ane_http_request(ANE_UNUSED const struct ane_http_exchange *x) { return NULL; }
const char *ane_http_header(ANE_UNUSED const struct ane_http_exchange *x, ANE_UNUSED const char *name) { return NULL; }
bool ane_http_add_header(ANE_UNUSED struct ane_http_exchange *x, ANE_UNUSED const char *name, ANE_UNUSED const char *value) {
  return false;
}
ane_status ane_http_reply(ANE_UNUSED struct ane_http_exchange *x, ANE_UNUSED int status, ANE_UNUSED const void *body,
                          ANE_UNUSED size_t size, ANE_UNUSED struct ane_error *err) {
  return ANE_UNSUPPORTED;
}
ane_status ane_http_begin(ANE_UNUSED struct ane_http_exchange *x, ANE_UNUSED int status, ANE_UNUSED const char *probe,
                          ANE_UNUSED struct ane_error *err) {
  return ANE_UNSUPPORTED;
}
ane_status ane_http_write(ANE_UNUSED struct ane_http_exchange *x, ANE_UNUSED const void *data, ANE_UNUSED size_t size,
                          ANE_UNUSED struct ane_error *err) {
  return ANE_UNSUPPORTED;
}
void ane_http_end(ANE_UNUSED struct ane_http_exchange *x, ANE_UNUSED const void *data, ANE_UNUSED size_t size) {}
size_t ane_http_pending(ANE_UNUSED const struct ane_http_exchange *x) { return 0; }
bool ane_http_full(ANE_UNUSED struct ane_http_exchange *x) { return false; }
bool ane_http_gone(ANE_UNUSED const struct ane_http_exchange *x) { return true; }
void ane_http_release(ANE_UNUSED struct ane_http_exchange *x) {}
