/* An HTTP/1.1 server for one owner thread. libmicrohttpd reads and writes the sockets in a thread of its own (epoll, TLS by
 * gnutls); complete requests wait in a list from which the owner takes them. A request and its answer are an *exchange*. The
 * owner writes to the exchange's output, and the thread sends that as fast as the client reads.
 *
 * Every function may be called while the thread runs. Those that take an exchange are for the one owner thread only. */
#ifndef ANE_HTTP_HTTP_H
#define ANE_HTTP_HTTP_H

#include "base/status.h"

struct ane_http;
struct ane_http_exchange;

struct ane_http_options {
  const char *host; /* numeric address or name to listen on */
  uint16_t port;    /* 0: one that is free */
  const char *cert; /* PEM texts of certificate and private key, both or neither; NULL: no TLS */
  const char *key;
  const char *secret;  /* what a request must give as bearer token or X-API-Key to be `authorised`; NULL: all are */
  int connections;     /* most at once; more wait to be accepted */
  size_t header_bytes; /* of one request; more is answered with status 431 */
  size_t body_bytes;   /* of one request; see `too_large` */
  size_t bodies_bytes; /* of all requests that are being read or answered; see `crowded` */
  size_t output_bytes; /* that wait for one client; a reply that would hold more is cut off */
  double receive_s;    /* from the first byte, or the reply before, to the end of a request, and from the end of a reply until the
                          client has read it. The connection is then closed */
};

/* Can servers be started: was this built with the headers of libmicrohttpd, and is the library installed? If not, sets err. */
bool ane_http_available(struct ane_error *err);

/* Listens and starts the thread. Strings of `o` are not used after the call. */
ane_status ane_http_start(struct ane_http **out, const struct ane_http_options *o, struct ane_error *err);
/* The port that it listens on. */
int ane_http_port(const struct ane_http *h);
/* Connections that are open. */
int ane_http_connections(struct ane_http *h);
/* Requests that are being read or answered, or whose answer is being sent. */
int ane_http_busy(struct ane_http *h);
/* Accepts no more connections; those that are open go on. */
void ane_http_quiesce(struct ane_http *h);
/* Closes all connections and ends the thread. Exchanges that the owner holds stay valid, with `gone`. NULL is fine. */
void ane_http_stop(struct ane_http *h);

/* Waits until a request can be taken, ane_http_wake is called or `seconds` are over. */
void ane_http_wait(struct ane_http *h, double seconds);
/* Ends a wait. Async-signal-safe, for one server: the file to write a byte to. */
int ane_http_wake_file(const struct ane_http *h);
/* Looks at the sockets: closes those whose time is over, and marks exchanges whose client has left. One poll() call. */
void ane_http_look(struct ane_http *h);

/* The next request, which is complete; the caller owns it. NULL: none. */
struct ane_http_exchange *ane_http_take(struct ane_http *h);

/* What was asked. The texts live as long as the exchange. */
struct ane_http_request {
  const char *method, *path; /* the path without its query, percent-decoded */
  const char *body;          /* NUL-terminated */
  size_t size;
  bool authorised;
  bool too_large; /* the body was longer than body_bytes, or than 64 KiB of a request that is not authorised: it is not here */
  bool crowded;   /* there was no room for the body */
};
const struct ane_http_request *ane_http_request(const struct ane_http_exchange *x);
/* A header's value, by its name in any case; NULL: none. */
const char *ane_http_header(const struct ane_http_exchange *x, const char *name);

/* Adds a header to the answer, before it begins. false: out of memory, or not a header. */
ANE_NODISCARD bool ane_http_add_header(struct ane_http_exchange *x, const char *name, const char *value);
/* Answers with a whole body, which is copied. */
ane_status ane_http_reply(struct ane_http_exchange *x, int status, const void *body, size_t size, struct ane_error *err);
/* Begins an answer that is written piece by piece.
 * probe: bytes without meaning to the client, sent where it has closed its side, to learn whether it still reads; "" sends none
 */
ane_status ane_http_begin(struct ane_http_exchange *x, int status, const char *probe, struct ane_error *err);
/* Adds to the answer. ANE_STOPPED: the client has left, or does not read; the answer is cut off. */
ane_status ane_http_write(struct ane_http_exchange *x, const void *data, size_t size, struct ane_error *err);
/* Ends an answer that was begun. */
void ane_http_end(struct ane_http_exchange *x);
/* Bytes that wait for the client. */
size_t ane_http_pending(const struct ane_http_exchange *x);
/* Has the client left? Known after ane_http_look. */
bool ane_http_gone(const struct ane_http_exchange *x);
/* Gives the exchange back. Without a whole answer the connection is closed. NULL is fine. */
void ane_http_release(struct ane_http_exchange *x);

#endif
