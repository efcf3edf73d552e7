/* Known prefixes of a program's sequences: the pages that sessions keep and begin from, and their file format. A file has three
 * parts. "form": u32 kv type, u32 reserved, u64 bytes of a page, u64 number of pages. "tree": for each page, the most recently
 * used first, i64 number of the page that it continues, u64 key, u32 positions, u32 reserved, i32 ids[64]. "pages": the bytes of
 * the pages, in the same order. */
#include "base/alloc.h"
#include "exec/session_internal.h"
#include "platform/map_guard.h"

#include <inttypes.h>
#include <string.h>

static const char engine[] = "recipe pages";
enum { FORM = 24, ENTRY = 24 + 4 * ANE_KV_POSITIONS };

/* ---- Sessions ------------------------------------------------------------------------------------------------------*/

/* Can a sequence of this program continue after a prefix of another one? It cannot if tokens see later ones, if the next token
 * looks back further than the border rows, or if the program has a recurrent state. */
static bool has_prefixes(const struct ane_program *p) {
  return !p->bidirectional && !p->n_recurrent && (!p->n_rings || border_rows(p) > 0);
}

/* Gives prefixes with equal ids different keys if they were computed with different adapters or rope factors. */
static uint64_t key_of(uint64_t adapters, bool long_rope) { return adapters << 1 ^ long_rope; }

ane_status ane_session_keep(const struct ane_session *s, struct ane_kv_prefixes *t, bool all, struct ane_error *err) {
  int64_t n = s->length / ANE_TILE * ANE_TILE;
  bool rings = s->program->n_rings > 0;
  if (!has_prefixes(s->program)) return ANE_OK;
  for (int64_t i = 0; rings && i < n / ANE_TILE; i++)
    if (!s->pages[i]->whole) n = i * ANE_TILE;
  if (all && !rings) n = s->length;
  return ane_kv_prefixes_keep(t, key_of(ane_session_adapters_key(s), s->long_rope), s->ids, n, s->pages)
             ? ane_fail(err, ANE_NOMEM, "no memory for a prefix")
             : ANE_OK;
}

/* Does a sequence of `total` tokens use the long rope factors? */
static bool is_long(const struct ane_program *p, int64_t total) { return p->long_rope_after && total > p->long_rope_after; }

int64_t ane_program_known(const struct ane_program *p, const struct ane_kv_prefixes *t, uint64_t adapters, const int32_t *ids,
                          int64_t n) {
  return has_prefixes(p)
             ? ane_kv_prefixes_known(t, key_of(adapters, is_long(p, n)), ids, ANE_MAX(n - 1, (int64_t)0), p->n_rings > 0)
             : 0;
}

int64_t ane_session_begin(struct ane_session *s, struct ane_kv_prefixes *t, const int32_t *ids, int64_t n) {
  const struct ane_program *p = s->program;
  int64_t most = ANE_MIN(n - 1, s->context);
  if (s->length || most < 1 || !has_prefixes(p)) return 0;
  state_release(s, 0);
  s->length = ane_kv_prefixes_find(t, key_of(ane_session_adapters_key(s), is_long(p, n)), ids, most, p->n_rings > 0, s->pages);
  s->n_pages = pages_of(s->length);
  for (int64_t i = 0; i < s->n_pages; i++) s->data[i] = s->pages[i]->data;
  memcpy(s->ids, ids, (size_t)s->length * sizeof *ids);
  s->rows = 0;
  if (s->length == 0) return 0;
  s->long_rope = is_long(p, n);
  s->ring_low = ANE_MAX(s->length - border_rows(p), (int64_t)0);
  state_copy_borders(s, s->ring_low, s->length, true);
  return s->length;
}

/* ---- Files ---------------------------------------------------------------------------------------------------------*/

static bool save_entry(void *arg, const struct ane_kv_prefix *p) {
  uint8_t entry[ENTRY] = {0};
  ane_store_u64(entry, (uint64_t)p->above);
  ane_store_u64(entry + 8, p->key);
  ane_store_u32(entry + 16, (uint32_t)p->n);
  for (int32_t i = 0; i < p->n; i++) ane_store_u32(entry + 24 + 4 * i, (uint32_t)p->ids[i]);
  return ane_saved_write(arg, entry, sizeof entry) == ANE_OK;
}

static bool save_page(void *arg, const struct ane_kv_prefix *p) {
  return ane_saved_write(arg, p->page->data, ane_kv_store_page_bytes(p->page->store)) == ANE_OK;
}

ane_status ane_program_save_prefixes(const struct ane_program *p, struct ane_kv_prefixes *t, ane_dtype kv,
                                     const struct ane_kv_store *store, const char *path, struct ane_error *err) {
  struct ane_saved_writer w;
  struct ane_saved_key key = {engine, p->fingerprint};
  uint64_t count = (uint64_t)ane_kv_prefixes_count(t), bytes = ane_kv_store_page_bytes(store);
  uint8_t form[FORM] = {0};
  ane_store_u32(form, (uint32_t)kv);
  ane_store_u64(form + 8, bytes);
  ane_store_u64(form + 16, count);
  ane_saved_create(&w, path, &key, err);
  ane_saved_begin_part(&w, "form", sizeof form);
  ane_saved_write(&w, form, sizeof form);
  ane_saved_begin_part(&w, "tree", count * ENTRY);
  ane_kv_prefixes_each(t, save_entry, &w);
  ane_saved_begin_part(&w, "pages", count * bytes);
  ane_kv_prefixes_each(t, save_page, &w);
  return ane_saved_commit(&w);
}

/* The contents of a file, after all of it has been checked. */
struct found {
  const uint8_t *tree, *pages;
  int64_t count;
  struct ane_kv_page **made; /* [count]: the pages read so far; NULL: not yet read */
};

static int64_t above_of(const struct found *f, int64_t i) { return (int64_t)ane_load_u64(f->tree + i * ENTRY); }
static int64_t filled(const struct found *f, int64_t i) { return (int64_t)ane_load_u32(f->tree + i * ENTRY + 16); }

static ane_status check_entry(const struct ane_program *p, const struct found *f, int64_t i) {
  const uint8_t *entry = f->tree + i * ENTRY;
  int64_t above = above_of(f, i), n = filled(f, i);
  bool ok = above >= -1 && above < i && n >= 1 && n <= ANE_KV_POSITIONS && (above < 0 || filled(f, above) == ANE_KV_POSITIONS) &&
            (n == ANE_KV_POSITIONS || p->n_rings == 0);
  for (int64_t j = 0; ok && j < n; j++) ok = ane_load_u32(entry + 24 + 4 * j) < (uint64_t)p->n_ids;
  return ok ? ANE_OK : ANE_FORMAT;
}

static ane_status find_all(const struct ane_program *p, const struct ane_saved *file, ane_dtype kv, size_t page, struct found *f,
                           struct ane_error *err) {
  const uint8_t *form;
  ane_status st = ane_saved_need(file, "form", FORM, &form, err);
  if (st) return st;
  uint64_t bytes, count = ane_load_u64(form + 16);
  if (ane_load_u32(form) != (uint32_t)kv || ane_load_u64(form + 8) != page)
    return ane_fail(err, ANE_STATE, "%s holds kv of another type than %s", file->path, ane_dtype_info(kv)->name);
  if (!ane_saved_find(file, "tree", &bytes) || count > bytes) count = 0;
  f->count = (int64_t)count;
  st = ane_saved_need(file, "tree", count * ENTRY, &f->tree, err);
  if (!st) st = ane_saved_need(file, "pages", count * page, &f->pages, err);
  for (int64_t i = 0; !st && i < f->count; i++)
    if (check_entry(p, f, i)) st = ane_fail(err, ANE_FORMAT, "%s is damaged: wrong entry %" PRId64, file->path, i);
  return st;
}

/* Adds the sequence that ends with page i. ids and pages have room for all of it. */
static ane_status keep_sequence(struct ane_kv_prefixes *t, const struct found *f, int64_t i, int64_t depth, int32_t *ids,
                                struct ane_kv_page **pages) {
  int64_t n = (depth - 1) * ANE_KV_POSITIONS + filled(f, i);
  uint64_t key = ane_load_u64(f->tree + i * ENTRY + 8);
  for (int64_t at = i; at >= 0; at = above_of(f, at)) {
    depth--;
    pages[depth] = f->made[at];
    for (int64_t j = 0; j < filled(f, at); j++)
      ids[depth * ANE_KV_POSITIONS + j] = (int32_t)ane_load_u32(f->tree + at * ENTRY + 24 + 4 * j);
  }
  return ane_kv_prefixes_keep(t, key, ids, n, pages);
}

/* Reads the first n pages and adds each sequence of them, the least recently used first. */
static ane_status adopt(struct ane_kv_prefixes *t, struct ane_kv_store *store, const struct found *f, int64_t n) {
  size_t page = ane_kv_store_page_bytes(store);
  int32_t *ids = ane_malloc((size_t)(n * ANE_KV_POSITIONS) * sizeof *ids);
  struct ane_kv_page **pages = ane_malloc((size_t)n * sizeof *pages);
  ane_status st = ids && pages ? ANE_OK : ANE_NOMEM;
  for (int64_t i = 0; !st && i < n; i++) {
    if (!(f->made[i] = ane_kv_page_new(store))) st = ANE_NOMEM;
    if (!st) memcpy(f->made[i]->data, f->pages + (size_t)i * page, page);
    if (!st) f->made[i]->whole = filled(f, i) == ANE_KV_POSITIONS;
  }
  for (int64_t i = n - 1; !st && i >= 0; i--) {
    int64_t depth = 0;
    for (int64_t at = i; at >= 0; at = above_of(f, at)) depth++;
    st = keep_sequence(t, f, i, depth, ids, pages);
  }
  ane_free(ids);
  ane_free(pages);
  return st;
}

ane_status ane_program_restore_prefixes(const struct ane_program *p, struct ane_kv_prefixes *t, ane_dtype kv,
                                        struct ane_kv_store *store, const char *path, uint64_t most, struct ane_error *err) {
  struct ane_saved file;
  struct ane_saved_key key = {engine, p->fingerprint};
  struct found f = {0};
  ane_status st = ane_saved_open(&file, path, &key, err);
  if (st) return st;
  st = find_all(p, &file, kv, ane_kv_store_page_bytes(store), &f, err);
  int64_t n = (int64_t)ANE_MIN((uint64_t)f.count, most / ane_kv_store_page_bytes(store));
  if (!st) {
    f.made = ane_calloc((size_t)f.count + 1, sizeof(struct ane_kv_page *));
    st = f.made ? adopt(t, store, &f, n) : ANE_NOMEM;
    if (st) ane_fail(err, st, "no memory for the prefixes of %s", path);
  }
  for (int64_t i = 0; f.made && i < n; i++) ane_kv_page_release(f.made[i]);
  ane_free(f.made);
  if (!st && (st = ane_map_check(&file.map, err)))
    ane_kv_prefixes_forget(t, UINT64_MAX); /* lost pages of the file read as zeros */
  ane_saved_close(&file);
  return st;
}
