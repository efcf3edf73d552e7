/* What the files of the HTTP server share: its state, connections, exchanges. */
#ifndef ANE_HTTP_HTTP_INTERNAL_H
#define ANE_HTTP_HTTP_INTERNAL_H

#include "base/bytes.h"
#include "http/http.h"
#include "http/mhd.h"

#include <poll.h>
#include <pthread.h>

/* A connection, made and freed in libmicrohttpd's thread. */
struct ane_http_line {
  struct ane_http_line *previous, *next;
  int fd;
  double deadline; /* of ane_clock; infinity while a request is answered */
};

struct ane_http_exchange {
  struct ane_http *server;
  struct ane_http_exchange *previous, *next; /* in the list of exchanges that libmicrohttpd still knows */
  struct ane_http_exchange *after;           /* in the list of those to be taken */
  struct MHD_Connection *connection;         /* NULL: libmicrohttpd has completed it */
  struct ane_http_line *line;
  struct ane_http_request request;
  struct ane_buffer head; /* method, path, then name and value of each header, each NUL-terminated */
  struct ane_buffer body;
  size_t counted;                /* bytes of the body in server->bodies */
  struct MHD_Response *response; /* not queued yet */
  struct ane_buffer headers;     /* of the answer: names and values, each NUL-terminated */
  struct ane_buffer output;      /* bytes at `sent` .. size wait for the client */
  size_t sent;
  char probe[16];
  int status;
  int refs; /* the owner, libmicrohttpd */
  bool http11, suspended, answered, streaming, ended, broken, gone, probed;
};

struct ane_http {
  struct MHD_Daemon *daemon;
  pthread_mutex_t lock; /* for all below, and all of the exchanges but `request` */
  struct ane_http_options limits;
  bool tls, secured, stopping;
  char secret[65]; /* hash of the secret, in hexadecimal */
  struct ane_http_line *lines;
  struct ane_http_exchange *exchanges;
  struct ane_http_exchange *first, *last; /* to be taken */
  size_t bodies;
  int open;
  int port, wake[2]; /* wake: a pipe */
  int refs;          /* the owner, and exchanges */
  struct pollfd *files;
  size_t files_room;
  char log[256]; /* the last that libmicrohttpd said */
};

/* Callbacks of libmicrohttpd; `cls` is the server. See microhttpd.h. */
enum MHD_Result ane_http_on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                    const char *data, size_t *size, void **exchange);
void ane_http_on_completed(void *cls, struct MHD_Connection *c, void **exchange, enum MHD_RequestTerminationCode code);
void ane_http_on_line(void *cls, struct MHD_Connection *c, void **line, enum MHD_ConnectionNotificationCode code);

/* The hash of a secret; two hashes are compared in a time that does not depend on them. */
void ane_http_hash(const char *secret, char out[65]);

/* Drops a reference. Both with server->lock held: an exchange without references is taken off and freed. */
void ane_http_unref(struct ane_http_exchange *x);
/* Lets libmicrohttpd go on with the exchange. */
void ane_http_resume(struct ane_http_exchange *x);
/* Wakes the owner. */
void ane_http_wake(const struct ane_http *h);
/* Drops a reference of the server; the last one frees it. The lock is not held. */
void ane_http_drop(struct ane_http *h);

#endif
