/* Pages of cached state, counted by their owners. */
#include "kv/kv.h"

#include "base/alloc.h"
#include "platform/platform.h"

#include <string.h>

struct ane_kv_store {
  size_t page_bytes;
  int64_t owned;             /* pages that have an owner */
  struct ane_kv_page *spare; /* released pages, n_spare of them */
  int32_t n_spare, most_spare, refs;
};

struct ane_kv_store *ane_kv_store_create(size_t page_bytes, int32_t spare) {
  struct ane_kv_store *s = ane_calloc(1, sizeof *s);
  if (s) *s = (struct ane_kv_store){.page_bytes = page_bytes, .most_spare = spare, .refs = 1};
  return s;
}

struct ane_kv_store *ane_kv_store_retain(struct ane_kv_store *s) {
  s->refs++;
  return s;
}

static void free_page(struct ane_kv_page *p) {
  ane_pages_free(p->data, p->store->page_bytes);
  ane_free(p);
}

void ane_kv_store_release(struct ane_kv_store *s) {
  if (!s || --s->refs > 0) return;
  for (struct ane_kv_page *p = s->spare, *next; p; p = next) {
    next = p->next;
    free_page(p);
  }
  ane_free(s);
}

uint64_t ane_kv_store_bytes(const struct ane_kv_store *s) { return (uint64_t)s->owned * s->page_bytes; }
size_t ane_kv_store_page_bytes(const struct ane_kv_store *s) { return s->page_bytes; }

/* A page that is nobody's yet. zeroed: else it may be stale. */
static struct ane_kv_page *any_page(struct ane_kv_store *s, bool zeroed) {
  struct ane_kv_page *p = s->spare;
  if (p) {
    s->spare = p->next;
    s->n_spare--;
    if (zeroed) memset(p->data, 0, s->page_bytes);
    return p;
  }
  p = ane_malloc(sizeof *p);
  uint8_t *data = p ? ane_pages_alloc(s->page_bytes, false) : NULL;
  if (!data) {
    ane_free(p);
    return NULL;
  }
  *p = (struct ane_kv_page){.data = data, .store = s};
  return p;
}

static struct ane_kv_page *adopt(struct ane_kv_page *p) {
  if (!p) return NULL;
  p->refs = 1;
  p->whole = false;
  p->next = NULL;
  p->store->owned++;
  ane_kv_store_retain(p->store);
  return p;
}

struct ane_kv_page *ane_kv_page_new(struct ane_kv_store *s) {
  return adopt(any_page(s, true));
}

struct ane_kv_page *ane_kv_page_retain(struct ane_kv_page *p) {
  p->refs++;
  return p;
}

void ane_kv_page_release(struct ane_kv_page *p) {
  if (!p || --p->refs > 0) return;
  struct ane_kv_store *s = p->store;
  s->owned--;
  if (s->n_spare < s->most_spare) {
    p->next = s->spare;
    s->spare = p;
    s->n_spare++;
  } else {
    free_page(p);
  }
  ane_kv_store_release(s); /* a page is an owner of its store */
}

bool ane_kv_page_own(struct ane_kv_page **p, bool copy) {
  if ((*p)->refs == 1) return true;
  struct ane_kv_page *own = adopt(any_page((*p)->store, !copy));
  if (!own) return false;
  if (copy) memcpy(own->data, (*p)->data, own->store->page_bytes);
  ane_kv_page_release(*p);
  *p = own;
  return true;
}
