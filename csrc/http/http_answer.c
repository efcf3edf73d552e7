/* Responses: the owner writes them and libmicrohttpd fetches them. */
#include "http/http_internal.h"

#include "base/alloc.h"
#include "platform/platform.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
  BLOCK = 16 << 10,  /* maximum bytes that libmicrohttpd fetches at once */
  DIRECT = 16 << 10, /* maximum bytes unsent in a socket to which the owner sends; sockets have room for more */
};

const struct ane_http_request *ane_http_request(const struct ane_http_exchange *x) { return &x->request; }

const char *ane_http_header(const struct ane_http_exchange *x, const char *name) {
  const char *p = x->request.path + strlen(x->request.path) + 1;
  const char *end = (const char *)x->head.data + x->head.size;
  while (p < end) {
    const char *value = p + strlen(p) + 1;
    if (strcasecmp(p, name) == 0) return value;
    p = value + strlen(value) + 1;
  }
  return NULL;
}

bool ane_http_add_header(struct ane_http_exchange *x, const char *name, const char *value) {
  if (!*name || strpbrk(name, " \t\r\n:") || strpbrk(value, "\r\n")) return false;
  return ane_buffer_append(&x->headers, name, strlen(name) + 1) && ane_buffer_append(&x->headers, value, strlen(value) + 1);
}

/* Puts the headers into a response. */
static bool add_headers(const struct ane_http_exchange *x, struct MHD_Response *r) {
  const char *p = (const char *)x->headers.data, *end = p + x->headers.size;
  while (p < end) {
    const char *value = p + strlen(p) + 1;
    if (ane_mhd.add_response_header(r, p, value) != MHD_YES) return false;
    p = value + strlen(value) + 1;
  }
  return true;
}

/* ---- With the lock held --------------------------------------------------------------------------------------------------*/

void ane_http_unref(struct ane_http_exchange *x) {
  struct ane_http *h = x->server;
  if (--x->refs) return;
  if (x->previous)
    x->previous->next = x->next;
  else
    h->exchanges = x->next;
  if (x->next) x->next->previous = x->previous;
  h->bodies -= x->counted;
  h->refs--; /* the owner of the server, or the caller of this function, holds another reference */
  if (x->response) ane_mhd.destroy_response(x->response);
  ane_buffer_free(&x->head);
  ane_buffer_free(&x->body);
  ane_buffer_free(&x->headers);
  ane_buffer_free(&x->output);
  ane_free(x);
}

void ane_http_resume(struct ane_http_exchange *x) {
  if (!x->suspended) return;
  x->suspended = x->between = false;
  ane_mhd.resume_connection(x->connection);
}

/* Notes that the response is whole, and starts the timeout for the client to read it. Nothing else sets `ended`. */
static void note_end(struct ane_http_exchange *x) {
  x->ended = true;
  if (x->socket) x->socket->deadline = ane_clock() + x->server->limits.receive_s;
}

/* Ends the exchange with an incomplete response. */
static void cut_off(struct ane_http_exchange *x) {
  x->broken = true;
  ane_http_resume(x);
}

/* ---- In libmicrohttpd's thread -------------------------------------------------------------------------------------------*/

/* The client has read n more bytes, or will soon. */
static void note_read(struct ane_http_exchange *x, size_t n) {
  const struct ane_http_options *limits = &x->server->limits;
  x->sent += n;
  if (x->ended) x->socket->deadline = ane_clock() + limits->receive_s;
  if (x->awaited && x->output.size - x->sent <= limits->output_bytes / 2) {
    x->awaited = false;
    ane_http_wake(x->server);
  }
  if (x->sent == x->output.size) x->sent = x->output.size = 0;
}

/* Returns the output available now; suspends if there is none yet. */
static ssize_t fetch(void *cls, ANE_UNUSED uint64_t position, char *to, size_t room) {
  struct ane_http_exchange *x = cls;
  pthread_mutex_lock(&x->server->lock);
  size_t n = ANE_MIN(x->output.size - x->sent, room);
  ssize_t result = (ssize_t)n;
  if (x->broken || (x->server->stopping && !x->ended)) {
    result = MHD_CONTENT_READER_END_WITH_ERROR;
  } else if (n) {
    memcpy(to, x->output.data + x->sent, n);
    note_read(x, n);
  } else if (x->ended) {
    result = MHD_CONTENT_READER_END_OF_STREAM;
  } else {
    x->suspended = x->between = true;
    ane_mhd.suspend_connection(x->connection);
  }
  pthread_mutex_unlock(&x->server->lock);
  return result;
}

/* ---- Chunks that the owner sends -----------------------------------------------------------------------------------------*/

/* May the owner send chunks itself? Only if the encoding is certainly chunked and the bytes are not encrypted. */
static bool may_send(const struct ane_http_exchange *x) {
  const char *connection = ane_http_header(x, "Connection");
  return x->http11 && !x->server->tls && (!connection || strcasecmp(connection, "keep-alive") == 0);
}

/* Has the socket so little unsent that n more bytes fit as a whole? */
static bool has_room(int fd, size_t n) {
#ifdef TIOCOUTQ
  int unsent = 0;
  return n < DIRECT && ioctl(fd, TIOCOUTQ, &unsent) == 0 && (size_t)unsent + n < DIRECT;
#else
  (void)fd, (void)n;
  return false;
#endif
}

/* Sends a chunk from the owner's thread, which spares a wake of libmicrohttpd's thread for each piece of a stream. The connection
 * is suspended between two chunks, so libmicrohttpd has nothing to send and does not use the socket. It need not know of the
 * chunk: it does not count the bytes of a response of unknown size. Returns false if the bytes must wait in the output. Call it
 * with the lock held. */
static bool send_chunk(struct ane_http_exchange *x, const void *data, size_t size) {
  if (!x->direct || !x->between || x->broken || x->gone || x->output.size || !size || !has_room(x->socket->fd, size + 16))
    return false;
  char head[24];
  int n = snprintf(head, sizeof head, "%zx\r\n", size);
  struct iovec parts[3] = {{head, (size_t)n}, {(void *)data, size}, {(void *)"\r\n", 2}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
  ssize_t sent = sendmsg(x->socket->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS || errno == ENOMEM))
    return false;
  if (sent != (ssize_t)(size + (size_t)n + 2)) { /* the connection is lost, or the chunk is broken */
    x->gone = true;
    cut_off(x);
  }
  return true;
}

/* ---- In the owner's thread -----------------------------------------------------------------------------------------------*/

/* Passes a response to libmicrohttpd. whole: no chunks follow. */
static ane_status hand_over(struct ane_http_exchange *x, int status, struct MHD_Response *response, bool whole,
                            struct ane_error *err) {
  if (!response || !add_headers(x, response)) {
    if (response) ane_mhd.destroy_response(response);
    return ane_fail(err, ANE_NOMEM, "answer: out of memory");
  }
  pthread_mutex_lock(&x->server->lock);
  bool left = !x->connection;
  if (left) {
    ane_mhd.destroy_response(response);
  } else {
    x->status = status;
    x->response = response;
    x->streaming = !whole;
    x->direct = !whole && may_send(x);
    if (whole) note_end(x);
    ane_http_resume(x);
  }
  pthread_mutex_unlock(&x->server->lock);
  return left ? ane_fail(err, ANE_STOPPED, "the client has left") : ANE_OK;
}

/* Moves the unsent bytes to the front of the buffer if that is worthwhile. */
static void compact(struct ane_http_exchange *x) {
  if (x->sent == 0 || x->sent < x->output.size / 2) return;
  memmove(x->output.data, x->output.data + x->sent, x->output.size - x->sent);
  x->output.size -= x->sent;
  x->sent = 0;
}

static bool append(struct ane_http_exchange *x, const void *data, size_t size) {
  compact(x);
  return ane_buffer_append(&x->output, data, size);
}

ane_status ane_http_reply(struct ane_http_exchange *x, int status, const void *body, size_t size, struct ane_error *err) {
  return hand_over(x, status, ane_mhd.create_response_from_buffer(size, (void *)body, MHD_RESPMEM_MUST_COPY), true, err);
}

ane_status ane_http_begin(struct ane_http_exchange *x, int status, const char *probe, struct ane_error *err) {
  if (strlen(probe) >= sizeof x->probe) return ane_fail(err, ANE_INVALID, "a probe of %zu bytes", strlen(probe));
  memcpy(x->probe, probe, strlen(probe) + 1);
  return hand_over(x, status, ane_mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, fetch, x, NULL), false, err);
}

ane_status ane_http_write(struct ane_http_exchange *x, const void *data, size_t size, struct ane_error *err) {
  ane_status st = ANE_OK;
  pthread_mutex_lock(&x->server->lock);
  if (x->gone || !x->connection) {
    st = ane_fail(err, ANE_STOPPED, "the client has left");
  } else if (send_chunk(x, data, size)) {
    if (x->gone) st = ane_fail(err, ANE_STOPPED, "the client has left");
  } else {
    if (!append(x, data, size))
      st = ane_fail(err, ANE_NOMEM, "answer: out of memory");
    else if (!x->response)
      ane_http_resume(x);
  }
  pthread_mutex_unlock(&x->server->lock);
  return st;
}

/* libmicrohttpd sends the last bytes together with the end. */
void ane_http_end(struct ane_http_exchange *x, const void *data, size_t size) {
  pthread_mutex_lock(&x->server->lock);
  if (x->streaming && append(x, data, size))
    note_end(x);
  else
    cut_off(x);
  ane_http_resume(x);
  pthread_mutex_unlock(&x->server->lock);
}

bool ane_http_full(struct ane_http_exchange *x) {
  pthread_mutex_lock(&x->server->lock);
  x->awaited = x->connection && !x->gone && x->output.size - x->sent > x->server->limits.output_bytes;
  bool full = x->awaited;
  pthread_mutex_unlock(&x->server->lock);
  return full;
}

size_t ane_http_pending(const struct ane_http_exchange *x) {
  pthread_mutex_lock(&x->server->lock);
  size_t n = x->output.size - x->sent;
  pthread_mutex_unlock(&x->server->lock);
  return n;
}

bool ane_http_gone(const struct ane_http_exchange *x) {
  pthread_mutex_lock(&x->server->lock);
  bool gone = x->gone || !x->connection;
  pthread_mutex_unlock(&x->server->lock);
  return gone;
}

void ane_http_release(struct ane_http_exchange *x) {
  if (!x) return;
  struct ane_http *h = x->server;
  pthread_mutex_lock(&h->lock);
  h->refs++; /* for this call */
  if (!x->ended && x->connection) cut_off(x);
  ane_http_unref(x);
  pthread_mutex_unlock(&h->lock);
  ane_http_drop(h);
}
