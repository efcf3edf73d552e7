/* The server: start and stop, wake-up of the owner, and checks of the sockets. */
#include "http/http_internal.h"

#include "base/alloc.h"
#include "platform/platform.h"
#include "platform/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef POLLRDHUP
#define POLLRDHUP 0 /* without it, a disconnect is noticed only when something is written to the client */
#endif

/* Seconds between polls of the idle connections, and for the rest of a request to be read after its client has closed. */
#define POLL_S 0.5
#define CLOSED_S 3.0

/* Bytes of headers beyond the limit that can still be read, so that the owner answers. They are used only by requests that have
 * them. */
enum { HEAD_ROOM = 128 << 10 };

/* Sent to a client that has closed its side and to which nothing has been sent yet: HTTP/1.1 lets clients discard it. */
static const char CONTINUE[] = "HTTP/1.1 100 Continue\r\n\r\n";

bool ane_http_available(struct ane_error *err) { return ane_mhd_load(err) == ANE_OK; }
int ane_http_port(const struct ane_http *h) { return h->port; }
int ane_http_wake_file(const struct ane_http *h) { return h->wake[1]; }

int ane_http_connections(struct ane_http *h) {
  pthread_mutex_lock(&h->lock);
  int open = h->open;
  pthread_mutex_unlock(&h->lock);
  return open;
}

int ane_http_busy(struct ane_http *h) {
  int n = 0;
  pthread_mutex_lock(&h->lock);
  for (const struct ane_http_exchange *x = h->exchanges; x; x = x->next) n += x->connection && x->answered;
  pthread_mutex_unlock(&h->lock);
  return n;
}

/* ---- Creation and destruction --------------------------------------------------------------------------------------------*/

void ane_http_drop(struct ane_http *h) {
  pthread_mutex_lock(&h->lock);
  bool last = --h->refs == 0;
  pthread_mutex_unlock(&h->lock);
  if (!last) return;
  if (h->wake[0] >= 0) close(h->wake[0]);
  if (h->wake[1] >= 0) close(h->wake[1]);
  pthread_mutex_destroy(&h->lock);
  ane_free(h->files);
  ane_free(h);
}

static void note(void *cls, const char *format, va_list args) {
  struct ane_http *h = cls;
  (void)vsnprintf(h->log, sizeof h->log, format, args);
  h->log[strcspn(h->log, "\n")] = '\0';
}

static bool open_pipe(int files[2]) {
  if (pipe(files)) {
    files[0] = files[1] = -1;
    return false;
  }
  for (int i = 0; i < 2; i++) {
    if (fcntl(files[i], F_SETFD, FD_CLOEXEC) || fcntl(files[i], F_SETFL, O_NONBLOCK)) return false;
  }
  return true;
}

/* Starts the thread, with signals blocked. */
static struct MHD_Daemon *start_daemon(struct ane_http *h, const struct ane_http_options *o, const struct addrinfo *at) {
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
  if (o->cert) flags |= MHD_USE_TLS;
  if (at->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
  /* TLS 1.0 and 1.1 are out of use (RFC 8996). */
  static const char VERSIONS[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
  const struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)VERSIONS},
                                       {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)o->cert},
                                       {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)o->key},
                                       {MHD_OPTION_END, 0, NULL}};
  const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
  sigset_t before;
  ane_signals_block(&before);
  struct MHD_Daemon *d = ane_mhd.start_daemon(
      flags, o->port, NULL, NULL, ane_http_on_request, h, MHD_OPTION_EXTERNAL_LOGGER, note, h, MHD_OPTION_NOTIFY_COMPLETED,
      ane_http_on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, ane_http_on_connection, h, MHD_OPTION_UNESCAPE_CALLBACK,
      ane_http_unescape, NULL, MHD_OPTION_SOCK_ADDR, at->ai_addr, MHD_OPTION_CONNECTION_LIMIT, (unsigned)o->connections,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, o->header_bytes + (size_t)HEAD_ROOM, MHD_OPTION_CONNECTION_TIMEOUT,
      (unsigned)ceil(o->receive_s), MHD_OPTION_STRICT_FOR_CLIENT,
      0,                            /* it would answer in HTML where the owner answers: see is_malformed */
      MHD_OPTION_NONCE_NC_SIZE, 0u, /* of digest authentication, which is not used */
      MHD_OPTION_ARRAY, o->cert ? tls : none, MHD_OPTION_END);
  ane_signals_restore(&before);
  return d;
}

static ane_status listen_at(struct ane_http *h, const struct ane_http_options *o, struct ane_error *err) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
  char port[8];
  (void)snprintf(port, sizeof port, "%u", (unsigned)o->port);
  int fault = getaddrinfo(o->host, port, &hints, &found);
  if (fault) return ane_fail(err, ANE_IO, "host %s: %s", o->host, gai_strerror(fault));
  errno = 0;
  h->daemon = start_daemon(h, o, found);
  int system = errno;
  freeaddrinfo(found);
  if (h->daemon) {
    h->port = ane_mhd.get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    return ANE_OK;
  }
  const char *why = h->log[0] ? h->log : strerror(system);
  if (h->tls && strstr(why, "TLS"))
    why = "the certificate or the private key is damaged, the key has a passphrase, or it belongs to another certificate";
  return ane_fail(err, ANE_IO, "cannot listen on %s port %u: %s", o->host, (unsigned)o->port, why);
}

ane_status ane_http_start(struct ane_http **out, const struct ane_http_options *o, struct ane_error *err) {
  *out = NULL;
  ane_status st = ane_mhd_load(err);
  if (st) return st;
  struct ane_http *h = ane_calloc(1, sizeof *h);
  if (!h) return ane_fail(err, ANE_NOMEM, "server: out of memory");
  pthread_mutex_init(&h->lock, NULL);
  h->refs = 1;
  h->limits = *o;
  h->limits.host = h->limits.cert = h->limits.key = h->limits.secret = NULL;
  h->tls = o->cert != NULL;
  h->secured = o->secret != NULL;
  if (o->secret) ane_http_hash(o->secret, h->secret);
  st = open_pipe(h->wake) ? ANE_OK : ane_fail(err, ANE_IO, "server: no pipe: %s", strerror(errno));
  if (!st) st = listen_at(h, o, err);
  if (st) {
    ane_http_drop(h);
    return st;
  }
  *out = h;
  return ANE_OK;
}

void ane_http_quiesce(struct ane_http *h) {
  MHD_socket listening = ane_mhd.quiesce_daemon(h->daemon);
  if (listening != MHD_INVALID_SOCKET) close(listening);
}

void ane_http_stop(struct ane_http *h) {
  if (!h) return;
  pthread_mutex_lock(&h->lock);
  h->stopping = true;
  for (struct ane_http_exchange *x = h->exchanges; x; x = x->next) {
    if (!x->connection) continue;
    if (!x->ended) x->gone = x->broken = true;
    ane_http_resume(x); /* libmicrohttpd cannot stop while a connection is suspended */
  }
  pthread_mutex_unlock(&h->lock);
  ane_mhd.stop_daemon(h->daemon);
  struct ane_http_exchange *x;
  while ((x = ane_http_take(h))) ane_http_release(x);
  ane_http_drop(h);
}

/* ---- Waking --------------------------------------------------------------------------------------------------------------*/

void ane_http_wake(const struct ane_http *h) {
  ssize_t ignored = write(h->wake[1], "", 1); /* if the pipe is full, the owner wakes anyway */
  (void)ignored;
}

void ane_http_wait(struct ane_http *h, double seconds) {
  struct pollfd file = {.fd = h->wake[0], .events = POLLIN};
  char bytes[64];
  (void)poll(&file, 1, (int)ceil(ANE_MIN(seconds, 3600.0) * 1000));
  while (read(h->wake[0], bytes, sizeof bytes) > 0) {}
}

struct ane_http_exchange *ane_http_take(struct ane_http *h) {
  pthread_mutex_lock(&h->lock);
  struct ane_http_exchange *x = h->first;
  if (x) {
    h->first = x->after;
    if (!h->first) h->last = NULL;
  }
  pthread_mutex_unlock(&h->lock);
  return x;
}

/* ---- Polling the sockets -------------------------------------------------------------------------------------------------*/

/* A client that has closed its side may still read. If it does not, sending to it results in an error, which a later poll
 * reports. */
static void probe(struct ane_http_exchange *x) {
  if (x->probed) return;
  x->probed = true;
  if (!x->streaming && x->suspended && x->http11) {
    (void)send(x->socket->fd, CONTINUE, sizeof CONTINUE - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (x->streaming && *x->probe && !x->ended && ane_buffer_append(&x->output, x->probe, strlen(x->probe))) {
    if (!x->response) ane_http_resume(x);
  }
}

/* Evaluates the poll events of an exchange's socket. */
static void judge(struct ane_http_exchange *x, short events) {
  bool closed = (events & POLLRDHUP) != 0;
  if ((events & (POLLHUP | POLLERR | POLLNVAL)) || (closed && x->server->tls))
    x->gone = true;
  else if (closed)
    probe(x);
}

/* Is the owner still working on it? */
static bool watched(const struct ane_http_exchange *x) { return x->connection && x->answered && !x->ended && !x->gone; }

static bool poll_room(struct ane_http *h, size_t n) {
  if (n <= h->files_room) return true;
  struct pollfd *more = ane_realloc(h->files, n * sizeof *more);
  if (more) h->files = more, h->files_room = n;
  return more != NULL;
}

static void poll_exchanges(struct ane_http *h) {
  size_t n = 0;
  for (struct ane_http_exchange *x = h->exchanges; x; x = x->next) n += watched(x);
  if (!n || !poll_room(h, n)) return;
  size_t i = 0;
  for (struct ane_http_exchange *x = h->exchanges; x; x = x->next) {
    if (watched(x)) h->files[i++] = (struct pollfd){.fd = x->socket->fd, .events = POLLRDHUP};
  }
  if (poll(h->files, (nfds_t)n, 0) <= 0) return;
  i = 0;
  for (struct ane_http_exchange *x = h->exchanges; x; x = x->next) {
    if (watched(x)) judge(x, h->files[i++].revents);
  }
}

/* Gives connections that the client has closed, outside of a response, a short time to end. libmicrohttpd 0.9.75 closes them
 * itself, except those whose last bytes came together with the end of the stream: there it waits for more. */
static void poll_sockets(struct ane_http *h, double now) {
  size_t n = 0;
  if (now < h->poll_at) return;
  h->poll_at = now + POLL_S;
  for (const struct ane_http_socket *s = h->sockets; s; s = s->next) n += !s->answering;
  if (!n || !poll_room(h, n)) return;
  size_t i = 0;
  for (const struct ane_http_socket *s = h->sockets; s; s = s->next) {
    if (!s->answering) h->files[i++] = (struct pollfd){.fd = s->fd, .events = POLLRDHUP};
  }
  if (poll(h->files, (nfds_t)n, 0) <= 0) return;
  i = 0;
  for (struct ane_http_socket *s = h->sockets; s; s = s->next) {
    if (!s->answering && h->files[i++].revents) s->deadline = fmin(s->deadline, now + CLOSED_S);
  }
}

void ane_http_look(struct ane_http *h) {
  double now = ane_clock();
  pthread_mutex_lock(&h->lock);
  poll_sockets(h, now);
  for (struct ane_http_socket *s = h->sockets; s; s = s->next) {
    if (now < s->deadline) continue;
    s->deadline = INFINITY;
    (void)shutdown(s->fd, SHUT_RDWR); /* libmicrohttpd sees the end of the stream and closes the socket */
  }
  poll_exchanges(h);
  pthread_mutex_unlock(&h->lock);
}
