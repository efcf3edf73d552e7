/* Shared by the files of the HTTP server: its state, connections and exchanges. */
#ifndef ANE_HTTP_HTTP_INTERNAL_H
#define ANE_HTTP_HTTP_INTERNAL_H

#include "base/bytes.h"
#include "http/http.h"
#include "http/mhd.h"

#include <poll.h>
#include <pthread.h>

/* The socket of a connection. It is created and freed in libmicrohttpd's thread. */
struct ane_http_socket {
  struct ane_http_socket *previous, *next;
  int fd;
  double deadline; /* of ane_clock; infinity while a request is answered */
  bool answering;  /* from the end of a request to the end of its response */
};

struct ane_http_exchange {
  struct ane_http *server;
  struct ane_http_exchange *previous, *next; /* in the list of exchanges that libmicrohttpd still uses */
  struct ane_http_exchange *after;           /* in the queue of exchanges to be taken */
  struct MHD_Connection *connection;         /* NULL: libmicrohttpd has completed it */
  struct ane_http_socket *socket;
  struct ane_http_request request;
  struct ane_buffer head; /* method, path, then name and value of each header, each NUL-terminated */
  struct ane_buffer body;
  size_t counted;                /* bytes of the body that are counted in server->bodies */
  struct MHD_Response *response; /* not queued yet */
  struct ane_buffer headers;     /* of the response: names and values, each NUL-terminated */
  struct ane_buffer output;      /* bytes at `sent` .. size wait for the client */
  size_t sent;
  char probe[16];
  int status;
  int refs; /* held by the owner and by libmicrohttpd */
  bool http11, suspended, answered, streaming, broken, gone, probed;
  bool whole;   /* the request has arrived; used by the thread of libmicrohttpd only */
  bool ended;   /* the response is whole; else ane_http_release cuts it off. Never taken back */
  bool awaited; /* the owner waits until the output is no longer full */
  bool direct;  /* the owner may send chunks itself */
  bool between; /* suspended between two chunks */
};

struct ane_http {
  struct MHD_Daemon *daemon;
  pthread_mutex_t lock; /* protects all fields below, and all fields of the exchanges except `request` */
  struct ane_http_options limits;
  bool tls, secured, stopping;
  char secret[65]; /* hash of the secret, in hexadecimal */
  struct ane_http_socket *sockets;
  struct ane_http_exchange *exchanges;
  struct ane_http_exchange *first, *last; /* queue of exchanges to be taken */
  size_t bodies;
  int open;
  int port, wake[2]; /* wake: a pipe */
  int refs;          /* held by the owner and by exchanges */
  double poll_at;    /* when the idle connections are polled next; of ane_clock */
  struct pollfd *files;
  size_t files_room;
  char log[256]; /* the last message of libmicrohttpd */
};

/* Callbacks of libmicrohttpd; `cls` is the server. See microhttpd.h. */
enum MHD_Result ane_http_on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                    const char *data, size_t *size, void **exchange);
void ane_http_on_completed(void *cls, struct MHD_Connection *c, void **exchange, enum MHD_RequestTerminationCode code);
size_t ane_http_unescape(void *cls, struct MHD_Connection *c, char *text); /* in place; returns the length */
void ane_http_on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code);

/* Hashes a secret. Secrets are compared by their hashes, in a time that does not depend on them. */
void ane_http_hash(const char *secret, char out[65]);

/* Drops a reference. Call both with server->lock held. An exchange without references is removed from the list and freed. */
void ane_http_unref(struct ane_http_exchange *x);
/* Lets libmicrohttpd resume the exchange. */
void ane_http_resume(struct ane_http_exchange *x);
/* Wakes the owner. */
void ane_http_wake(const struct ane_http *h);
/* Drops a reference to the server; the last one frees it. Call it without the lock. */
void ane_http_drop(struct ane_http *h);

#endif
