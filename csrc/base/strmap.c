#include "base/strmap.h"

#include "base/alloc.h"

#include <string.h>

/* FNV-1a, 64 bit: http://www.isthe.com/chongo/tech/comp/fnv (Fowler, Noll, Vo). The final mix spreads the high bits
 * into the low ones that index the table. */
static uint64_t hash(uint64_t seed, const char *s, size_t len) {
  uint64_t h = 0xcbf29ce484222325u ^ seed;
  for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
  return h ^ h >> 29;
}

static struct ane_strmap_slot *find(const struct ane_strmap *m, const char *key, size_t len) {
  size_t i = (size_t)hash(m->seed, key, len) & (m->room - 1);
  while (m->slots[i].key && (m->slots[i].len != len || memcmp(m->slots[i].key, key, len) != 0)) i = (i + 1) & (m->room - 1);
  return &m->slots[i];
}

bool ane_strmap_reserve(struct ane_strmap *m, size_t count) {
  size_t room = 16;
  if (count > SIZE_MAX / 64) return false;
  while (room < count * 2) room *= 2;
  if (room <= m->room) return true;
  struct ane_strmap bigger = {ane_calloc(room, sizeof *bigger.slots), m->count, room, m->seed};
  if (!bigger.slots) return false;
  if (!bigger.seed) bigger.seed = (uint64_t)(uintptr_t)bigger.slots * 0x9E3779B97F4A7C15u | 1;
  for (size_t i = 0; i < m->room; i++)
    if (m->slots[i].key) *find(&bigger, m->slots[i].key, m->slots[i].len) = m->slots[i];
  ane_free(m->slots);
  *m = bigger;
  return true;
}

bool ane_strmap_put(struct ane_strmap *m, const char *key, size_t len, uint32_t value, uint32_t *old) {
  if (len > UINT32_MAX || !ane_strmap_reserve(m, m->count + 1)) return false;
  struct ane_strmap_slot *s = find(m, key, len);
  if (old) *old = s->key ? s->value : UINT32_MAX;
  if (!s->key) {
    *s = (struct ane_strmap_slot){key, (uint32_t)len, value};
    m->count++;
  }
  return true;
}

uint32_t ane_strmap_get(const struct ane_strmap *m, const char *key, size_t len) {
  if (!m->count) return UINT32_MAX;
  const struct ane_strmap_slot *s = find(m, key, len);
  return s->key ? s->value : UINT32_MAX;
}

void ane_strmap_free(struct ane_strmap *m) {
  ane_free(m->slots);
  *m = (struct ane_strmap){0};
}
