/* Reference-counted pages of cached state. They are allocated in slabs, so that the system can provide huge pages: attention
 * reads single tiles at scattered addresses, and with small pages each would cost a page table walk. */
#include "kv/kv.h"

#include "base/alloc.h"
#include "platform/platform.h"

#include <string.h>

enum { SLAB_PAGES = 8 };

struct ane_kv_slab {
  struct ane_kv_slab *next;
  uint8_t *data;
  int32_t used;     /* pages that have an owner */
  uint32_t touched; /* a bit for each page that has ever had an owner and so is no longer zero */
  struct ane_kv_page pages[SLAB_PAGES];
};

struct ane_kv_store {
  size_t page_bytes;
  int64_t owned; /* pages that have an owner */
  struct ane_kv_slab *slabs;
  int32_t idle; /* slabs whose pages all have no owner; one is kept */
  int32_t refs;
};

struct ane_kv_store *ane_kv_store_create(size_t page_bytes) {
  struct ane_kv_store *s = ane_calloc(1, sizeof *s);
  if (s) *s = (struct ane_kv_store){.page_bytes = ane_align_up(page_bytes, 64), .refs = 1};
  return s;
}

struct ane_kv_store *ane_kv_store_retain(struct ane_kv_store *s) {
  s->refs++;
  return s;
}

static void free_slab(struct ane_kv_store *s, struct ane_kv_slab *b) {
  struct ane_kv_slab **at = &s->slabs;
  while (*at != b) at = &(*at)->next;
  *at = b->next;
  ane_pages_free(b->data, SLAB_PAGES * s->page_bytes);
  ane_free(b);
}

void ane_kv_store_release(struct ane_kv_store *s) {
  if (!s || --s->refs > 0) return;
  while (s->slabs) free_slab(s, s->slabs);
  ane_free(s);
}

uint64_t ane_kv_store_bytes(const struct ane_kv_store *s) { return (uint64_t)s->owned * s->page_bytes; }
size_t ane_kv_store_page_bytes(const struct ane_kv_store *s) { return s->page_bytes; }

static struct ane_kv_slab *new_slab(struct ane_kv_store *s) {
  struct ane_kv_slab *b = ane_calloc(1, sizeof *b);
  if (b && !(b->data = ane_pages_alloc(SLAB_PAGES * s->page_bytes, true))) {
    ane_free(b);
    return NULL;
  }
  if (!b) return NULL;
  for (int i = 0; i < SLAB_PAGES; i++)
    b->pages[i] = (struct ane_kv_page){.data = b->data + (size_t)i * s->page_bytes, .store = s, .slab = b};
  b->next = s->slabs;
  s->slabs = b;
  s->idle++;
  return b;
}

/* Allocates a page, with the caller as its owner. If not `zeroed`, it may hold old data. */
static struct ane_kv_page *allocate_page(struct ane_kv_store *s, bool zeroed) {
  struct ane_kv_slab *b = s->slabs;
  while (b && b->used == SLAB_PAGES) b = b->next;
  if (!b && !(b = new_slab(s))) return NULL;
  int i = 0;
  while (b->pages[i].refs > 0) i++;
  struct ane_kv_page *p = &b->pages[i];
  if (zeroed && b->touched >> i & 1) memset(p->data, 0, s->page_bytes);
  b->touched |= 1u << i;
  s->idle -= b->used++ == 0;
  s->owned++;
  p->refs = 1;
  p->whole = false;
  ane_kv_store_retain(s); /* a page is an owner of its store */
  return p;
}

struct ane_kv_page *ane_kv_page_new(struct ane_kv_store *s) {
  return allocate_page(s, true);
}

struct ane_kv_page *ane_kv_page_retain(struct ane_kv_page *p) {
  p->refs++;
  return p;
}

void ane_kv_page_release(struct ane_kv_page *p) {
  if (!p || --p->refs > 0) return;
  struct ane_kv_store *s = p->store;
  struct ane_kv_slab *b = p->slab;
  s->owned--;
  s->idle += --b->used == 0;
  if (s->idle > 1) {
    s->idle--;
    free_slab(s, b);
  }
  ane_kv_store_release(s);
}

bool ane_kv_page_own(struct ane_kv_page **p, bool copy) {
  if ((*p)->refs == 1) return true;
  struct ane_kv_page *own = allocate_page((*p)->store, !copy);
  if (!own) return false;
  if (copy) memcpy(own->data, (*p)->data, own->store->page_bytes);
  ane_kv_page_release(*p);
  *p = own;
  return true;
}
