/* HTTP exchanges with libcurl; see fetch.h. The library is loaded on first use, so that programs that fetch nothing neither load
 * nor need it. */
#define CURL_DISABLE_TYPECHECK
#include "fetch/fetch.h"

#include "base/alloc.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The headers of libcurl define these as macros. */
#undef curl_easy_setopt
#undef curl_easy_getinfo

enum { MAX_HEADERS = 1 << 17 };

static struct {
  CURLcode (*global_init)(long);
  CURL *(*easy_init)(void);
  void (*easy_cleanup)(CURL *);
  CURLcode (*easy_setopt)(CURL *, CURLoption, ...);
  CURLcode (*easy_getinfo)(CURL *, CURLINFO, ...);
  const char *(*easy_strerror)(CURLcode);
  CURLM *(*multi_init)(void);
  CURLMcode (*multi_cleanup)(CURLM *);
  CURLMcode (*multi_add_handle)(CURLM *, CURL *);
  CURLMcode (*multi_remove_handle)(CURLM *, CURL *);
  CURLMcode (*multi_perform)(CURLM *, int *);
  CURLMcode (*multi_wait)(CURLM *, struct curl_waitfd *, unsigned, int, int *);
  CURLMsg *(*multi_info_read)(CURLM *, int *);
  struct curl_slist *(*slist_append)(struct curl_slist *, const char *);
  void (*slist_free_all)(struct curl_slist *);
  bool ready;
  char missing[128];
} curl;

static void *symbol(void *library, const char *name) {
  void *p = dlsym(library, name);
  if (!p && !curl.missing[0]) snprintf(curl.missing, sizeof curl.missing, "libcurl has no %s", name);
  return p;
}

/* Converts an object pointer to a function pointer, as POSIX allows. */
#define FIND(field, name)                                                                                                        \
  do {                                                                                                                           \
    void *p = symbol(library, name);                                                                                             \
    memcpy(&curl.field, &p, sizeof p);                                                                                           \
  } while (0)

static void open_library(void) {
  void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (!library) library = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(curl.missing, sizeof curl.missing, "there is no libcurl here (Debian: libcurl4)");
    return;
  }
  FIND(global_init, "curl_global_init");
  FIND(easy_init, "curl_easy_init");
  FIND(easy_cleanup, "curl_easy_cleanup");
  FIND(easy_setopt, "curl_easy_setopt");
  FIND(easy_getinfo, "curl_easy_getinfo");
  FIND(easy_strerror, "curl_easy_strerror");
  FIND(multi_init, "curl_multi_init");
  FIND(multi_cleanup, "curl_multi_cleanup");
  FIND(multi_add_handle, "curl_multi_add_handle");
  FIND(multi_remove_handle, "curl_multi_remove_handle");
  FIND(multi_perform, "curl_multi_perform");
  FIND(multi_wait, "curl_multi_wait");
  FIND(multi_info_read, "curl_multi_info_read");
  FIND(slist_append, "curl_slist_append");
  FIND(slist_free_all, "curl_slist_free_all");
  curl.ready = !curl.missing[0] && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  if (!curl.ready && !curl.missing[0]) snprintf(curl.missing, sizeof curl.missing, "libcurl does not start");
}

bool ane_fetch_available(struct ane_error *err) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
  if (!curl.ready) ane_fail(err, ANE_UNSUPPORTED, "nothing can be fetched: %s", curl.missing);
  return curl.ready;
}

struct text {
  char *data;
  size_t n, room;
};

struct ane_fetch {
  CURL *easy;
  CURLM *multi;
  struct curl_slist *list;
  char *path;
  int fd; /* -1: none */
  int status;
  uint64_t offset, received;
  size_t most;
  struct text headers, body;
  bool begun; /* the first byte of the content has arrived */
  bool done, too_large;
  int write_error; /* errno */
  bool no_memory;
  char reason[CURL_ERROR_SIZE];
};

static bool append(struct text *t, const char *data, size_t n) {
  if (t->n + n + 1 > t->room) {
    size_t room = ANE_MAX(t->room * 2, t->n + n + 1);
    char *p = ane_realloc(t->data, room);
    if (!p) return false;
    t->data = p;
    t->room = room;
  }
  memcpy(t->data + t->n, data, n);
  t->n += n;
  t->data[t->n] = 0;
  return true;
}

/* Called for each header line. The status line of a further response, such as 200 after 100 Continue, discards the headers so
 * far. */
static size_t on_header(char *data, size_t size, size_t count, void *arg) {
  struct ane_fetch *f = arg;
  size_t n = size * count;
  if (n >= 5 && memcmp(data, "HTTP/", 5) == 0) f->headers.n = 0;
  if (f->headers.n + n > MAX_HEADERS) return 0;
  f->no_memory |= !append(&f->headers, data, n);
  return f->no_memory ? 0 : n;
}

static bool is_content(const struct ane_fetch *f) { return f->status == 200 || f->status == 206; }

/* Called on the first byte. A response with status 200 holds the whole content, so the file is truncated. */
static bool begin_file(struct ane_fetch *f) {
  if (f->status == 200) f->offset = 0;
  f->received = f->offset;
  int r;
  do r = ftruncate(f->fd, (off_t)f->offset);
  while (r != 0 && errno == EINTR);
  if (r == 0 && lseek(f->fd, (off_t)f->offset, SEEK_SET) >= 0) return true;
  f->write_error = errno;
  return false;
}

static size_t on_body(char *data, size_t size, size_t count, void *arg) {
  struct ane_fetch *f = arg;
  size_t n = size * count;
  long code = 0;
  if (!f->begun) {
    f->begun = true;
    curl.easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &code);
    f->status = (int)code;
    if (is_content(f) && f->fd >= 0 && !begin_file(f)) return 0;
  }
  if (is_content(f) && f->fd >= 0) {
    for (size_t at = 0; at < n;) {
      ssize_t wrote = write(f->fd, data + at, n - at);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        f->write_error = errno;
        return 0;
      }
      at += (size_t)wrote;
    }
    f->received += n;
    return n;
  }
  if (f->body.n + n > f->most) {
    f->too_large = is_content(f);
    return f->too_large ? 0 : n;
  }
  f->no_memory |= !append(&f->body, data, n);
  f->received = f->body.n;
  return f->no_memory ? 0 : n;
}

/* Opens and locks the file. */
static ane_status open_file(struct ane_fetch *f, const struct ane_fetch_request *r, struct ane_error *err) {
  size_t n = strlen(r->path) + 1;
  f->path = ane_malloc(n);
  if (f->path) memcpy(f->path, r->path, n);
  if (!f->path) return ane_fail(err, ANE_NOMEM, "no memory for a request");
  do f->fd = open(r->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  while (f->fd < 0 && errno == EINTR);
  if (f->fd < 0) return ane_fail(err, ANE_IO, "%s: %s", r->path, strerror(errno));
  if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return ane_fail(err, ANE_STATE, "%s: another process fetches this file", r->path);
  struct stat st;
  if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode)) return ane_fail(err, ANE_IO, "%s: no regular file", r->path);
  if ((uint64_t)st.st_size < r->offset) return ane_fail(err, ANE_INVALID, "%s: has fewer bytes than the offset", r->path);
  return ANE_OK;
}

static ane_status set_options(struct ane_fetch *f, const struct ane_fetch_request *r, struct ane_error *err) {
  CURLcode bad = CURLE_OK;
#define SET(option, value) bad = bad ? bad : curl.easy_setopt(f->easy, option, value)
  SET(CURLOPT_NOSIGNAL, 1L);
  SET(CURLOPT_ERRORBUFFER, f->reason);
#if LIBCURL_VERSION_NUM >= 0x075500
  SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
  SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  SET(CURLOPT_FOLLOWLOCATION, 0L);
  SET(CURLOPT_USERAGENT, "ane");
  SET(CURLOPT_CONNECTTIMEOUT_MS, (long)r->connect_ms);
  SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
  SET(CURLOPT_LOW_SPEED_TIME, (long)ANE_MAX((r->stall_ms + 999) / 1000, 1u));
  SET(CURLOPT_TCP_KEEPALIVE, 1L);
  SET(CURLOPT_HEADERFUNCTION, on_header);
  SET(CURLOPT_HEADERDATA, f);
  SET(CURLOPT_WRITEFUNCTION, on_body);
  SET(CURLOPT_WRITEDATA, f);
  SET(CURLOPT_HTTPHEADER, f->list);
  char range[32];
  if (r->offset > 0) {
    snprintf(range, sizeof range, "%llu-", (unsigned long long)r->offset);
    SET(CURLOPT_RANGE, range); /* libcurl copies the string */
  }
  SET(CURLOPT_URL, r->url);
#undef SET
  if (bad == CURLE_OUT_OF_MEMORY) return ane_fail(err, ANE_NOMEM, "no memory for a request");
  return bad ? ane_fail(err, ANE_INVALID, "%s: %s", r->url, curl.easy_strerror(bad)) : ANE_OK;
}

ane_status ane_fetch_begin(struct ane_fetch **out, const struct ane_fetch_request *r, struct ane_error *err) {
  *out = NULL;
  if (!ane_fetch_available(err)) return ANE_UNSUPPORTED;
  struct ane_fetch *f = ane_calloc(1, sizeof *f);
  if (!f) return ane_fail(err, ANE_NOMEM, "no memory for a request");
  f->fd = -1;
  f->most = r->most;
  f->offset = r->offset;
  ane_status st = r->path ? open_file(f, r, err) : ANE_OK;
  f->received = r->path ? r->offset : 0;
  for (size_t i = 0; i < r->n_headers && st == ANE_OK; i++) {
    struct curl_slist *list = curl.slist_append(f->list, r->headers[i]);
    if (list)
      f->list = list;
    else
      st = ane_fail(err, ANE_NOMEM, "no memory for a request");
  }
  if (st == ANE_OK && (!(f->easy = curl.easy_init()) || !(f->multi = curl.multi_init())))
    st = ane_fail(err, ANE_NOMEM, "no memory for a request");
  if (st == ANE_OK) st = set_options(f, r, err);
  if (st == ANE_OK && curl.multi_add_handle(f->multi, f->easy) != CURLM_OK)
    st = ane_fail(err, ANE_NOMEM, "no memory for a request");
  if (st) {
    ane_fetch_end(f);
    return st;
  }
  *out = f;
  return ANE_OK;
}

/* Returns the result of the exchange. */
static ane_status outcome(struct ane_fetch *f, CURLcode code, struct ane_error *err) {
  if (f->write_error) return ane_fail(err, ANE_IO, "%s: %s", f->path, strerror(f->write_error));
  if (f->no_memory || code == CURLE_OUT_OF_MEMORY) return ane_fail(err, ANE_NOMEM, "no memory for the answer");
  if (f->too_large) return ane_fail(err, ANE_RANGE, "the answer is longer than %zu bytes", f->most);
  if (code) return ane_fail(err, ANE_IO, "%s", f->reason[0] ? f->reason : curl.easy_strerror(code));
  long status = 0;
  curl.easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
  f->status = (int)status;
  f->done = true;
  if (!f->begun && is_content(f) && f->fd >= 0 && !begin_file(f)) /* the content was empty */
    return ane_fail(err, ANE_IO, "%s: %s", f->path, strerror(f->write_error));
  return ANE_OK;
}

ane_status ane_fetch_step(struct ane_fetch *f, uint32_t timeout_ms, bool *done, struct ane_error *err) {
  int running = 0, left = 0;
  *done = f->done;
  if (f->done) return ANE_OK;
  CURLMcode bad = curl.multi_perform(f->multi, &running);
  if (!bad && running) bad = curl.multi_wait(f->multi, NULL, 0, (int)ANE_MIN(timeout_ms, 60000u), NULL);
  if (!bad) bad = curl.multi_perform(f->multi, &running);
  if (bad) return ane_fail(err, ANE_IO, "libcurl fails with code %d", (int)bad);
  for (CURLMsg *m; (m = curl.multi_info_read(f->multi, &left));)
    if (m->msg == CURLMSG_DONE) {
      ane_status st = outcome(f, m->data.result, err);
      *done = f->done;
      return st;
    }
  return ANE_OK;
}

int ane_fetch_status(const struct ane_fetch *f) { return f->status; }
uint64_t ane_fetch_received(const struct ane_fetch *f) { return f->received; }

const char *ane_fetch_headers(const struct ane_fetch *f, size_t *n) {
  *n = f->headers.n;
  return f->headers.data ? f->headers.data : "";
}

const char *ane_fetch_body(const struct ane_fetch *f, size_t *n) {
  *n = f->body.n;
  return f->body.data ? f->body.data : "";
}

ane_status ane_fetch_sync(struct ane_fetch *f, struct ane_error *err) {
  int r = 0;
  if (f->fd >= 0) {
    do r = fsync(f->fd);
    while (r != 0 && errno == EINTR);
  }
  return r == 0 ? ANE_OK : ane_fail(err, ANE_IO, "%s: %s", f->path, strerror(errno));
}

void ane_fetch_end(struct ane_fetch *f) {
  if (!f) return;
  if (f->multi && f->easy) curl.multi_remove_handle(f->multi, f->easy);
  if (f->easy) curl.easy_cleanup(f->easy);
  if (f->multi) curl.multi_cleanup(f->multi);
  if (f->list) curl.slist_free_all(f->list);
  if (f->fd >= 0) close(f->fd);
  ane_free(f->path);
  ane_free(f->headers.data);
  ane_free(f->body.data);
  ane_free(f);
}
