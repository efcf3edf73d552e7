/* HTTP exchanges in builds without libcurl's headers: every call is an error. */
#include "fetch/fetch.h"

static ane_status none(struct ane_error *err) {
  return ane_fail(err, ANE_UNSUPPORTED,
                  "this build has no HTTP client: build it with libcurl's headers (Debian: libcurl4-openssl-dev)");
}

bool ane_fetch_available(struct ane_error *err) { return none(err) == ANE_OK; }

ane_status ane_fetch_begin(struct ane_fetch **out, ANE_UNUSED const struct ane_fetch_request *r, struct ane_error *err) {
  *out = NULL;
  return none(err);
}

/* No exchange can exist for the calls below; the Lua binding still links to them. */
ane_status ane_fetch_step(ANE_UNUSED struct ane_fetch *f, ANE_UNUSED uint32_t timeout_ms, ANE_UNUSED bool *done,
                          struct ane_error *err) {
  return none(err);
}
int ane_fetch_status(ANE_UNUSED const struct ane_fetch *f) { return 0; }
uint64_t ane_fetch_received(ANE_UNUSED const struct ane_fetch *f) { return 0; }
const char *ane_fetch_headers(ANE_UNUSED const struct ane_fetch *f, size_t *n) {
  *n = 0;
  return "";
}
const char *ane_fetch_body(ANE_UNUSED const struct ane_fetch *f, size_t *n) {
  *n = 0;
  return "";
}
ane_status ane_fetch_sync(ANE_UNUSED struct ane_fetch *f, struct ane_error *err) { return none(err); }
void ane_fetch_end(ANE_UNUSED struct ane_fetch *f) {}
