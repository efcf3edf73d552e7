/* Lists of tokens and merges, and how they are read from a tokenizer.json. */
#include "vocabulary/vocabulary.h"

#include "base/alloc.h"

#include <string.h>

void vocabulary_free(struct vocabulary *v) {
  ane_arena_free(&v->arena);
  ane_buffer_free(&v->scratch);
  ane_free(v->entries);
  ane_free(v->merges);
  *v = (struct vocabulary){0};
}

/* Makes room for one more element of `size` bytes. Returns the list, which may have moved. NULL: out of memory; the list stays.
 */
static void *grown(void *list, size_t n, size_t *room, size_t size) {
  size_t more = *room ? *room * 2 : 1024, bytes;
  if (n < *room) return list;
  void *bigger = ane_mul_size(more, size, &bytes) ? ane_realloc(list, bytes) : NULL;
  if (bigger) *room = more;
  return bigger;
}

bool vocabulary_add(struct vocabulary *v, const struct vocabulary_entry *e) {
  struct vocabulary_entry *entries = grown(v->entries, v->n, &v->room, sizeof *entries);
  if (!entries) return false;
  v->entries = entries;
  v->entries[v->n++] = *e;
  return true;
}

/* false: out of memory. */
static bool add_merge(struct vocabulary *v, struct ane_text left, struct ane_text right) {
  struct ane_token_pair *merges = grown(v->merges, v->n_merges, &v->merges_room, sizeof *merges);
  if (!merges) return false;
  v->merges = merges;
  v->merges[v->n_merges++] = (struct ane_token_pair){left, right};
  return true;
}

/* ---- tokenizer.json ----------------------------------------------------------------------------------------------*/

static bool no_memory(struct ane_json *j) {
  j->no_memory = true;
  return ane_json_fail(j, j->p, "not enough memory");
}

/* Reads a string that stays valid: it lies in the text, or in the arena if it has escapes. why: the message if it is not a
 * string. */
static bool read_text(struct vocabulary *v, struct ane_json *j, const char *why, struct ane_text *out) {
  char c = ane_json_peek(j);
  if (!c) return false;
  if (c != '"') return ane_json_fail(j, j->p, why);
  if (!ane_json_string(j, &out->data, &out->len)) return false;
  if (out->data >= j->text && out->data <= j->end) return true;
  out->data = ane_arena_strndup(&v->arena, out->data, out->len);
  return out->data || no_memory(j);
}

static bool read_number(struct ane_json *j, const char *why, bool whole, int64_t *i, double *d) {
  bool integer;
  char c = ane_json_peek(j);
  const char *at = j->p;
  if (!c) return false;
  if (c != '-' && (c < '0' || c > '9')) return ane_json_fail(j, at, why);
  if (!ane_json_number(j, &integer, i, d)) return false;
  if (whole && !integer) return ane_json_fail(j, at, why);
  if (!whole && integer) *d = (double)*i;
  return true;
}

static bool read_ids(struct vocabulary *v, struct ane_json *j) {
  static const char why[] = "model.vocab: an id must be an integer from 0 to 2^31 - 2";
  struct vocabulary_entry e = {.type = ANE_TOKEN_NORMAL};
  bool more;
  v->unique = true;
  if (!ane_json_enter(j, '{')) return false;
  for (bool first = true; ane_json_next(j, '{', first, &more) && more; first = false) {
    int64_t id;
    double unused;
    if (!ane_json_name(j, &e.text.data, &e.text.len)) return false;
    if (e.text.data < j->text || e.text.data > j->end) e.text.data = ane_arena_strndup(&v->arena, e.text.data, e.text.len);
    if (!e.text.data) return no_memory(j);
    const char *at = j->p;
    if (!read_number(j, why, true, &id, &unused)) return false;
    /* analyser: ane_json_fail() returns false, so the number was read. */
    if (id < 0 || id >= INT32_MAX) return ane_json_fail(j, at, why);
    e.id = (uint32_t)id;
    if (!vocabulary_add(v, &e)) return no_memory(j);
  }
  return !j->why;
}

/* Calls ane_json_next and requires that `more` equals `want`. */
static bool expect(struct ane_json *j, bool first, bool want, const char *why) {
  bool more;
  return ane_json_next(j, '[', first, &more) && (more == want || ane_json_fail(j, j->p, why));
}

static bool read_scores(struct vocabulary *v, struct ane_json *j) {
  static const char why[] = "model.vocab: must have pairs of a string and a number";
  bool more;
  v->scored = true;
  if (!ane_json_enter(j, '[')) return false;
  for (bool first = true; ane_json_next(j, '[', first, &more) && more; first = false) {
    struct vocabulary_entry e = {.id = (uint32_t)v->n, .type = ANE_TOKEN_NORMAL};
    int64_t unused;
    if (ane_json_peek(j) != '[') return j->why ? false : ane_json_fail(j, j->p, why);
    if (!ane_json_enter(j, '[') || !expect(j, true, true, why) || !read_text(v, j, why, &e.text) ||
        !expect(j, false, true, why) || !read_number(j, why, false, &unused, &e.score) || !expect(j, false, false, why))
      return false;
    if (v->n >= INT32_MAX - 1) return ane_json_fail(j, j->p, "model.vocab: more than 2^31 tokens");
    if (!vocabulary_add(v, &e)) return no_memory(j);
  }
  return !j->why;
}

bool vocabulary_read_tokens(struct vocabulary *v, struct ane_json *j) {
  char c = ane_json_peek(j);
  if (c == '{') return read_ids(v, j);
  if (c == '[') return read_scores(v, j);
  return c && ane_json_fail(j, j->p, "model.vocab: must be an object or an array");
}

/* Adds the merge of an entry "left right". false: the entry is malformed, or out of memory. */
static bool split_merge(struct vocabulary *v, struct ane_json *j, const char *at, struct ane_text s) {
  static const char version[] = "#version";
  /* analyser: ane_json_fail() returns false, so the text was read. */
  if (s.len >= sizeof version - 1 && memcmp(s.data, version, sizeof version - 1) == 0) return true;
  const char *gap = memchr(s.data, ' ', s.len);
  size_t left = gap ? (size_t)(gap - s.data) : 0;
  if (!gap || memchr(gap + 1, ' ', s.len - left - 1))
    return ane_json_fail(j, at, "model.merges: an entry must be two tokens with one space between them");
  return add_merge(v, (struct ane_text){s.data, left}, (struct ane_text){gap + 1, s.len - left - 1}) || no_memory(j);
}

bool vocabulary_read_merges(struct vocabulary *v, struct ane_json *j) {
  static const char why[] = "model.merges: must have strings, or pairs of strings";
  bool more;
  if (ane_json_peek(j) != '[') return j->why ? false : ane_json_fail(j, j->p, "model.merges: must be an array");
  if (!ane_json_enter(j, '[')) return false;
  for (bool first = true; ane_json_next(j, '[', first, &more) && more; first = false) {
    struct ane_text a, b;
    char c = ane_json_peek(j);
    const char *at = j->p;
    if (c == '"') {
      if (!read_text(v, j, why, &a) || !split_merge(v, j, at, a)) return false;
    } else {
      if (c != '[') return c && ane_json_fail(j, j->p, why);
      if (!ane_json_enter(j, '[') || !expect(j, true, true, why) || !read_text(v, j, why, &a) || !expect(j, false, true, why) ||
          !read_text(v, j, why, &b) || !expect(j, false, false, why))
        return false;
      if (!add_merge(v, a, b)) return no_memory(j);
    }
  }
  return !j->why;
}
