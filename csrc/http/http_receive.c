/* Receives requests, in libmicrohttpd's thread. */
#include "http/http_internal.h"

#include "base/alloc.h"
#include "base/sha256.h"
#include "platform/platform.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
  UNAUTHORISED_BODY = 64 << 10, /* bytes of a body that are kept if the request is not authorised: its response needs none */
  DISCARDED = 1 << 20,          /* bytes beyond the limit that are read, so that the client sees the response */
};

void ane_http_hash(const char *secret, char out[65]) {
  struct ane_sha256 s;
  ane_sha256_begin(&s);
  ane_sha256_add(&s, secret, strlen(secret));
  ane_sha256_end(&s, out);
}

static bool same_hash(const char a[65], const char b[65]) {
  unsigned difference = 0;
  for (int i = 0; i < 64; i++) difference |= (unsigned)(a[i] ^ b[i]);
  return difference == 0;
}

static bool is_secret(const struct ane_http *h, const char *given) {
  char hash[65];
  if (!given) return false;
  ane_http_hash(given, hash);
  return same_hash(hash, h->secret);
}

static bool authorised(const struct ane_http *h, struct MHD_Connection *c) {
  if (!h->secured) return true;
  const char *bearer = ane_mhd.lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
  if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0 && is_secret(h, bearer + 7)) return true;
  return is_secret(h, ane_mhd.lookup_connection_value(c, MHD_HEADER_KIND, "X-API-Key"));
}

static bool add_text(struct ane_buffer *b, const char *s) { return ane_buffer_append(b, s, strlen(s) + 1); }

/* Copies a header. */
static enum MHD_Result add_header(void *cls, ANE_UNUSED enum MHD_ValueKind kind, const char *name, const char *value) {
  struct ane_http_exchange *x = cls;
  return add_text(&x->head, name) && add_text(&x->head, value ? value : "") ? MHD_YES : MHD_NO;
}

/* Counts the headers of a name. */
static int count_headers(const struct ane_http_exchange *x, const char *name) {
  const char *p = x->request.path + strlen(x->request.path) + 1;
  const char *end = (const char *)x->head.data + x->head.size;
  int n = 0;
  while (p < end) {
    n += strcasecmp(p, name) == 0;
    p += strlen(p) + 1;
    p += strlen(p) + 1;
  }
  return n;
}

/* Does the name of a header contain a blank? */
static bool has_blank_name(const struct ane_http_exchange *x) {
  const char *p = x->request.path + strlen(x->request.path) + 1;
  const char *end = (const char *)x->head.data + x->head.size;
  while (p < end) {
    if (strpbrk(p, " \t")) return true;
    p += strlen(p) + 1;
    p += strlen(p) + 1;
  }
  return false;
}

/* Is the request malformed (see struct ane_http_request)? Every version but 1.0 must name a host. */
static bool is_malformed(const struct ane_http_exchange *x, const char *version) {
  int hosts = count_headers(x, "Host");
  const char *encoding = ane_http_header(x, "Transfer-Encoding");
  int lengths = count_headers(x, "Content-Length");
  if (encoding && (lengths || strcasecmp(encoding, "chunked") != 0 || count_headers(x, "Transfer-Encoding") > 1)) return true;
  if (hosts == 0 && strcmp(version, MHD_HTTP_VERSION_1_0) != 0) return true;
  return lengths > 1 || hosts > 1 || has_blank_name(x);
}

/* Returns the path of a request's target. Requests to a proxy, and those of some clients, have scheme and host before it (RFC
 * 9112, 3.2.2). */
static const char *path_of(const char *target) {
  size_t scheme = strncasecmp(target, "http://", 7) == 0 ? 7 : strncasecmp(target, "https://", 8) == 0 ? 8 : 0;
  const char *path = scheme ? strchr(target + scheme, '/') : target;
  return path ? path : "/";
}

/* Returns the length of the body that a request announces; 0: none. */
static size_t announced(struct MHD_Connection *c) {
  const char *text = ane_mhd.lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
  return text ? (size_t)strtoull(text, NULL, 10) : 0;
}

static size_t body_limit(const struct ane_http_exchange *x) {
  size_t most = x->server->limits.body_bytes;
  return x->request.authorised ? most : ANE_MIN(most, (size_t)UNAUTHORISED_BODY);
}

/* Makes an exchange with the head of its request. NULL: out of memory. */
static struct ane_http_exchange *make_exchange(struct ane_http *h, struct MHD_Connection *c, const char *url, const char *method,
                                               const char *version) {
  struct ane_http_socket *socket = *(struct ane_http_socket **)ane_mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  struct ane_http_exchange *x = socket ? ane_calloc(1, sizeof *x) : NULL; /* NULL: there was no memory for the socket */
  if (!x) return NULL;
  bool ok = add_text(&x->head, method) && add_text(&x->head, path_of(url));
  int count = ok ? ane_mhd.get_connection_values(c, MHD_HEADER_KIND, NULL, NULL) : 0;
  if (!ok || ane_mhd.get_connection_values(c, MHD_HEADER_KIND, add_header, x) != count) {
    ane_buffer_free(&x->head);
    ane_free(x);
    return NULL;
  }
  x->server = h;
  x->connection = c;
  x->socket = socket;
  x->http11 = strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
  x->request.method = (const char *)x->head.data;
  x->request.path = x->request.method + strlen(method) + 1;
  x->request.authorised = authorised(h, c);
  x->request.body = "";
  x->request.long_head = x->head.size > h->limits.header_bytes;
  x->request.malformed = is_malformed(x, version);
  x->refs = 1;
  return x;
}

static void link_exchange(struct ane_http *h, struct ane_http_exchange *x) {
  pthread_mutex_lock(&h->lock);
  x->next = h->exchanges;
  if (x->next) x->next->previous = x;
  h->exchanges = x;
  h->refs++;
  pthread_mutex_unlock(&h->lock);
}

/* Reserves `more` bytes in the limit for all bodies. false: the limit would be exceeded. */
static bool take_room(struct ane_http_exchange *x, size_t more) {
  struct ane_http *h = x->server;
  pthread_mutex_lock(&h->lock);
  bool room = more <= h->limits.bodies_bytes && h->bodies <= h->limits.bodies_bytes - more;
  if (room) h->bodies += more, x->counted += more;
  pthread_mutex_unlock(&h->lock);
  return room;
}

/* Keeps a part of the body, or records why not. false: the connection must be closed. */
static bool keep(struct ane_http_exchange *x, const char *data, size_t size) {
  struct ane_http_request *r = &x->request;
  r->size += size;
  if (r->size > body_limit(x)) r->too_large = true;
  if (!r->too_large && !r->crowded && !take_room(x, size)) r->crowded = true;
  if (r->too_large || r->crowded) return r->size <= body_limit(x) + DISCARDED;
  return ane_buffer_append(&x->body, data, size);
}

/* Queues a complete request for the owner and suspends the connection. */
static enum MHD_Result complete(struct ane_http_exchange *x) {
  struct ane_http *h = x->server;
  struct ane_http_request *r = &x->request;
  if (r->too_large || r->crowded) ane_buffer_free(&x->body);
  if (!ane_buffer_append(&x->body, "", 1)) return MHD_NO;
  r->size = x->body.size - 1;
  r->body = (const char *)x->body.data;
  pthread_mutex_lock(&h->lock);
  bool stopping = h->stopping;
  if (!stopping) {
    x->answered = true;
    x->refs++;
    x->socket->deadline = INFINITY;
    x->socket->answering = true;
    x->suspended = true;
    ane_mhd.suspend_connection(x->connection);
    if (h->last)
      h->last->after = x;
    else
      h->first = x;
    h->last = x;
    ane_http_wake(h);
  }
  pthread_mutex_unlock(&h->lock);
  return stopping ? MHD_NO : MHD_YES;
}

/* Passes the response to libmicrohttpd; suspends the connection if there is none yet. */
static enum MHD_Result answer(struct ane_http_exchange *x) {
  struct ane_http *h = x->server;
  enum MHD_Result result = MHD_YES;
  pthread_mutex_lock(&h->lock);
  struct MHD_Response *response = x->response;
  if (response) {
    x->response = NULL;
  } else if (x->broken || h->stopping) {
    result = MHD_NO;
  } else {
    x->suspended = true;
    ane_mhd.suspend_connection(x->connection);
  }
  pthread_mutex_unlock(&h->lock);
  if (response) {
    result = ane_mhd.queue_response(x->connection, (unsigned)x->status, response);
    ane_mhd.destroy_response(response);
  }
  return result;
}

enum MHD_Result ane_http_on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                    const char *data, size_t *size, void **exchange) {
  struct ane_http *h = cls;
  struct ane_http_exchange *x = *exchange;
  if (!x) {
    x = make_exchange(h, c, url, method, version);
    if (!x) return MHD_NO;
    *exchange = x;
    link_exchange(h, x);
    /* A body that is too large, or of unknown length, is not requested: the response is sent at once, and the connection is
     * closed. */
    if (announced(c) > body_limit(x)) x->request.too_large = true;
    return x->request.too_large || x->request.malformed || x->request.long_head ? complete(x) : MHD_YES;
  }
  if (*size) {
    if (!keep(x, data, *size)) return MHD_NO;
    *size = 0;
    return MHD_YES;
  }
  if (x->answered) return answer(x);
  if (x->whole) return complete(x);
  /* The connection is suspended in the next call only. libmicrohttpd 0.9.75 would otherwise still wait for bytes of a request
   * when it resumes the connection: it would read the end of the stream of a client that has closed its side, and drop the
   * response. */
  x->whole = true;
  return MHD_YES;
}

void ane_http_on_completed(void *cls, ANE_UNUSED struct MHD_Connection *c, void **exchange,
                           ANE_UNUSED enum MHD_RequestTerminationCode code) {
  struct ane_http *h = cls;
  struct ane_http_exchange *x = *exchange;
  if (!x) return;
  pthread_mutex_lock(&h->lock);
  x->gone = x->gone || !x->ended;
  x->socket->deadline = ane_clock() + h->limits.receive_s;
  x->socket->answering = false;
  x->connection = NULL;
  x->socket = NULL;
  x->suspended = false;
  ane_http_unref(x);
  pthread_mutex_unlock(&h->lock);
  *exchange = NULL;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  char lower = (char)(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Decodes %XX. %00 stays as it is: a NUL would end the path early, and so change it. */
size_t ane_http_unescape(ANE_UNUSED void *cls, ANE_UNUSED struct MHD_Connection *c, char *text) {
  char *to = text;
  for (const char *p = text; *p; p++) {
    int high = *p == '%' ? hex_digit(p[1]) : -1, low = high >= 0 ? hex_digit(p[2]) : -1;
    if (low >= 0 && high + low > 0) {
      *to++ = (char)(high << 4 | low);
      p += 2;
    } else {
      *to++ = *p;
    }
  }
  *to = '\0';
  return (size_t)(to - text);
}

void ane_http_on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code) {
  struct ane_http *h = cls;
  struct ane_http_socket *s = *context;
  pthread_mutex_lock(&h->lock);
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    s = ane_calloc(1, sizeof *s);
    *context = s;
    if (s) {
      s->fd = ane_mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
      s->deadline = ane_clock() + h->limits.receive_s;
      s->next = h->sockets;
      if (s->next) s->next->previous = s;
      h->sockets = s;
      h->open++;
    }
  } else if (s) {
    if (s->previous)
      s->previous->next = s->next;
    else
      h->sockets = s->next;
    if (s->next) s->next->previous = s->previous;
    h->open--;
    ane_free(s);
    *context = NULL;
  }
  pthread_mutex_unlock(&h->lock);
}
