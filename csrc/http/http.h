/* An HTTP/1.1 server with one owner thread. libmicrohttpd reads and writes the sockets in a thread of its own (epoll, TLS by
 * gnutls). Complete requests wait in a queue from which the owner takes them. A request and its response together are an
 * *exchange*. The owner writes to the exchange's output, which the server thread sends as fast as the client reads.
 *
 * Every function may be called while the thread runs. Functions that take an exchange are for the owner thread only. */
#ifndef ANE_HTTP_HTTP_H
#define ANE_HTTP_HTTP_H

#include "base/status.h"

struct ane_http;
struct ane_http_exchange;

struct ane_http_options {
  const char *host; /* numeric address or name to listen on */
  uint16_t port;    /* 0: any free port */
  const char *cert; /* PEM texts of certificate and private key; set both or neither; NULL: no TLS */
  const char *key;
  const char *secret;  /* bearer token or X-API-Key that makes a request `authorised`; NULL: all requests are */
  int connections;     /* maximum open at once; others wait to be accepted */
  size_t header_bytes; /* maximum per request; larger headers get status 431 */
  size_t body_bytes;   /* maximum per request; see `too_large` */
  size_t bodies_bytes; /* maximum over all requests being read or answered; see `crowded` */
  size_t output_bytes; /* waiting for one client, beyond which the exchange is full; see ane_http_full */
  double receive_s;    /* timeout for receiving a request, from its first byte or the previous response; for the client to read a
                          complete body; and for it to read more of a response that is written piece by piece (then in whole
                          seconds, rounded up). After it the connection is closed */
};

/* Can servers be started: was this built with the headers of libmicrohttpd, and is the library installed? If not, sets err. */
bool ane_http_available(struct ane_error *err);

/* Listens and starts the thread. Strings of `o` need not outlive the call. Stop the server with ane_http_stop. Errors:
 * ANE_UNSUPPORTED (no libmicrohttpd), ANE_IO (the address, the port, the certificate), ANE_NOMEM. */
ane_status ane_http_start(struct ane_http **out, const struct ane_http_options *o, struct ane_error *err);
/* Returns the port that it listens on. */
int ane_http_port(const struct ane_http *h);
/* Returns the number of open connections. */
int ane_http_connections(struct ane_http *h);
/* Returns the number of requests that have arrived and are being answered, or whose response is being sent. */
int ane_http_busy(struct ane_http *h);
/* Stops accepting connections; open ones continue. */
void ane_http_quiesce(struct ane_http *h);
/* Closes all connections and ends the thread. Exchanges that the owner holds stay valid and are marked `gone`. NULL is fine. */
void ane_http_stop(struct ane_http *h);

/* Waits until a request can be taken, ane_http_wake is called, or `seconds` have passed. */
void ane_http_wait(struct ane_http *h, double seconds);
/* A file descriptor for one server: writing a byte to it ends a wait, and is async-signal-safe. */
int ane_http_wake_file(const struct ane_http *h);
/* Polls the sockets: closes connections that have timed out, and marks exchanges whose client has disconnected. */
void ane_http_look(struct ane_http *h);

/* Returns the next complete request, which the caller releases. NULL: there is none. */
struct ane_http_exchange *ane_http_take(struct ane_http *h);

/* The request of an exchange. The texts live as long as the exchange. */
struct ane_http_request {
  const char *method, *path; /* the path without its query, percent-decoded */
  const char *body;          /* NUL-terminated */
  size_t size;
  bool authorised;
  bool too_large; /* the body exceeded body_bytes, or 64 KiB in a request that is not authorised, and was dropped */
  bool crowded;   /* there was no room for the body */
  bool long_head; /* the headers exceeded header_bytes, but could be read */
  bool malformed; /* what follows the headers is ambiguous: two Hosts or lengths, a length and an encoding, an unknown encoding, a
                     name with a space, no Host. The response must close the connection (RFC 9112, 6.3) */
};
const struct ane_http_request *ane_http_request(const struct ane_http_exchange *x);
/* Returns the value of a header, by its case-insensitive name; NULL: there is none. */
const char *ane_http_header(const struct ane_http_exchange *x, const char *name);

/* Adds a header to the response before it begins. false: out of memory, or not a valid header. */
ANE_NODISCARD bool ane_http_add_header(struct ane_http_exchange *x, const char *name, const char *value);
/* Sends a complete body, which is copied. */
ane_status ane_http_reply(struct ane_http_exchange *x, int status, const void *body, size_t size, struct ane_error *err);
/* Begins a response that is written piece by piece. probe: bytes that the client ignores, sent after it has closed its side to
 * find out whether it still reads; "" sends none. */
ane_status ane_http_begin(struct ane_http_exchange *x, int status, const char *probe, struct ane_error *err);
/* Appends to the response, which keeps any number of bytes: see ane_http_full. ANE_STOPPED: the client has disconnected or has
 * not read for receive_s; the response is cut off. */
ane_status ane_http_write(struct ane_http_exchange *x, const void *data, size_t size, struct ane_error *err);
/* Appends the last bytes of a response begun by ane_http_begin, maybe none, and ends it. Without memory for them the response is
 * cut off. */
void ane_http_end(struct ane_http_exchange *x, const void *data, size_t size);
/* Returns the bytes that wait for the client. */
size_t ane_http_pending(const struct ane_http_exchange *x);
/* Do more bytes wait for the client than output_bytes? The owner then writes no more until they do not. Once the client has read
 * half of output_bytes, a wait of the owner ends. */
bool ane_http_full(struct ane_http_exchange *x);
/* Has the client disconnected? ane_http_look updates this. */
bool ane_http_gone(const struct ane_http_exchange *x);
/* Releases the exchange. If the response is incomplete, the connection is closed. NULL is fine. */
void ane_http_release(struct ane_http_exchange *x);

#endif
