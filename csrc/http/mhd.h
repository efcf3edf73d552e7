/* The functions of libmicrohttpd. The library is opened when the first server starts, so that programs without a server neither
 * load nor need it. */
#ifndef ANE_HTTP_MHD_H
#define ANE_HTTP_MHD_H

#include "base/status.h"

#include <microhttpd.h>

#define ANE_MHD_FUNCTIONS(F)                                                                                                     \
  F(add_response_header)                                                                                                         \
  F(create_response_from_buffer)                                                                                                 \
  F(create_response_from_callback)                                                                                               \
  F(destroy_response)                                                                                                            \
  F(get_connection_info)                                                                                                         \
  F(get_connection_values)                                                                                                       \
  F(get_daemon_info)                                                                                                             \
  F(lookup_connection_value)                                                                                                     \
  F(queue_response)                                                                                                              \
  F(quiesce_daemon)                                                                                                              \
  F(resume_connection)                                                                                                           \
  F(start_daemon)                                                                                                                \
  F(stop_daemon)                                                                                                                 \
  F(suspend_connection)

/* ane_mhd.start_daemon is MHD_start_daemon, and so on. Valid after ane_mhd_load has returned ANE_OK. */
struct ane_mhd {
#define FIELD(name) __typeof__(MHD_##name) *name;
  ANE_MHD_FUNCTIONS(FIELD)
#undef FIELD
};
extern struct ane_mhd ane_mhd;

/* Opens the library once per process; any thread may call it. Error: ANE_UNSUPPORTED, the library or a function of it is missing.
 */
ane_status ane_mhd_load(struct ane_error *err);

#endif
