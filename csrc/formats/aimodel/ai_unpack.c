/* Reads the sections of an asset's bytecode. The file is not trusted: counts are bounded by the remaining bytes, indices by the
 * tables that they refer to, and nesting by a limit. Errors name a byte offset. */
#include "formats/aimodel/ai_unpack.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ALIGN = 1 << 16 };

/* ---- Bytes and errors -----------------------------------------------------------------------------------------------*/

ane_status ai_wrong(const struct ai_file *f, uint64_t at, const char *format, ...) {
  char text[256];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  return ane_fail(f->err, ANE_FORMAT, "byte %" PRIu64 ": %s", at, text);
}

struct ai_span ai_span_of(const struct ai_file *f, uint64_t at, uint64_t size) {
  return (struct ai_span){f->data, at, at + size, at};
}

bool ai_read_byte(struct ai_span *s, uint8_t *out) {
  if (s->at >= s->end) return false;
  *out = s->data[s->at++];
  return true;
}

bool ai_read_number(struct ai_span *s, uint64_t *out) {
  uint8_t first;
  if (!ai_read_byte(s, &first)) return false;
  size_t n = 1;
  while (n < AI_VARINT && !(first >> (n - 1) & 1)) n++;
  if (n - 1 > s->end - s->at) return false;
  uint64_t v = 0;
  for (size_t i = n - 1; i-- > 0;) v = v << 8 | s->data[s->at + i];
  s->at += n - 1;
  *out = n == AI_VARINT ? v : n == 8 ? v : (v << 8 | first) >> n;
  return true;
}

bool ai_read_index(struct ai_span *s, uint64_t limit, uint32_t *out) {
  uint64_t v;
  s->last = s->at;
  if (!ai_read_number(s, &v) || v >= limit || v > UINT32_MAX) return false;
  *out = (uint32_t)v;
  return true;
}

bool ai_read_signed(struct ai_span *s, int64_t *out) {
  uint64_t v;
  if (!ai_read_number(s, &v)) return false;
  *out = (int64_t)(v >> 1 ^ (v & 1 ? UINT64_MAX : 0));
  return true;
}

static ane_status truncated(const struct ai_file *f, const struct ai_span *s, const char *what) {
  return ai_wrong(f, s->at, "%s is truncated, or a number in it is too large", what);
}

static void *allocate(struct ai_file *f, uint64_t count, size_t size) {
  void *p = count < SIZE_MAX ? ane_arena_array(f->arena, (size_t)count + 1, size) : NULL;
  if (!p) (void)ane_fail(f->err, ANE_NOMEM, "no memory for the program");
  return p;
}

/* ---- Sections -------------------------------------------------------------------------------------------------------*/

static ane_status read_sections(struct ai_file *f) {
  static const char magic[] = {'M', 'L', (char)0xEF, 'R'};
  struct ai_span s = ai_span_of(f, 0, f->size);
  uint64_t version, length, align;
  uint8_t id;
  if (f->size < sizeof magic || memcmp(f->data, magic, sizeof magic) != 0) return ai_wrong(f, 0, "is not MLIR bytecode");
  s.at = sizeof magic;
  if (!ai_read_number(&s, &version)) return truncated(f, &s, "the header");
  if (version != AI_BYTECODE)
    return ane_fail(f->err, ANE_UNSUPPORTED, "byte 4: the bytecode version must be %d, but is %" PRIu64, AI_BYTECODE, version);
  const uint8_t *producer = f->data + s.at, *nul = memchr(producer, 0, (size_t)(s.end - s.at));
  if (!nul) return truncated(f, &s, "the producer");
  f->producer = (const char *)producer;
  s.at += (uint64_t)(nul - producer) + 1;
  while (s.at < s.end) {
    uint64_t at = s.at;
    if (!ai_read_byte(&s, &id) || !ai_read_number(&s, &length)) return truncated(f, &s, "the head of a section");
    if ((id & 0x7F) >= AI_SECTIONS || f->sections[id & 0x7F].data)
      return ai_wrong(f, at, "section %d is unknown or repeated", id & 0x7F);
    if (id & 0x80) {
      if (!ai_read_number(&s, &align) || align == 0 || align > MAX_ALIGN)
        return ai_wrong(f, s.at, "an alignment is out of range");
      uint64_t skip = (align - s.at % align) % align;
      if (skip > s.end - s.at) return truncated(f, &s, "the padding of a section");
      s.at += skip;
    }
    if (length > s.end - s.at)
      return ai_wrong(f, at, "section %d has %" PRIu64 " bytes, but %" PRIu64 " are left", id & 0x7F, length, s.end - s.at);
    f->sections[id & 0x7F] = ai_span_of(f, s.at, length);
    s.at += length;
  }
  for (int i = 0; i < AI_SECTIONS; i++) {
    bool optional = i == AI_RESOURCES || i == AI_RESOURCE_OFFSETS || i == AI_DIALECT_VERSIONS || i == AI_PROPERTIES;
    if (!f->sections[i].data && !optional) return ai_wrong(f, f->size, "section %d is missing", i);
  }
  return ANE_OK;
}

static ane_status read_strings(struct ai_file *f) {
  struct ai_span *s = &f->sections[AI_STRINGS];
  uint64_t total = 0;
  if (!ai_read_index(s, s->end - s->at, &f->n_strings)) return truncated(f, s, "the list of strings");
  f->strings = allocate(f, f->n_strings, sizeof *f->strings);
  uint64_t *sizes = allocate(f, f->n_strings, sizeof *sizes);
  if (!f->strings || !sizes) return ANE_NOMEM;
  for (uint32_t i = f->n_strings; i-- > 0;) {
    if (!ai_read_number(s, &sizes[i]) || sizes[i] == 0 || sizes[i] > s->end - s->at) return truncated(f, s, "a string");
    total += sizes[i];
    if (total > s->end - s->at) return truncated(f, s, "a string");
  }
  uint64_t at = s->end - total;
  for (uint32_t i = 0; i < f->n_strings; at += sizes[i], i++) {
    if (f->data[at + sizes[i] - 1] != 0 || memchr(f->data + at, 0, (size_t)sizes[i] - 1))
      return ai_wrong(f, at, "a string contains a NUL, or does not end with one");
    f->strings[i] = (const char *)f->data + at;
  }
  return ANE_OK;
}

/* Reads the dialects with their versions, then the names of operations, grouped by dialect. */
static ane_status read_dialects(struct ai_file *f) {
  struct ai_span *s = &f->sections[AI_DIALECTS];
  uint32_t n, dialect, group, name, left;
  uint64_t size;
  uint8_t id;
  if (!ai_read_index(s, s->end - s->at + 1, &n)) return truncated(f, s, "the list of dialects");
  bool *own = allocate(f, n, sizeof *own);
  if (!own) return ANE_NOMEM;
  for (uint32_t i = 0; i < n; i++) {
    if (!ai_read_index(s, (uint64_t)f->n_strings * 2, &name)) return truncated(f, s, "a dialect");
    own[i] = strcmp(f->strings[name >> 1], AI_DIALECT) == 0;
    if (!(name & 1)) continue;
    if (!ai_read_byte(s, &id) || (id & 0x7F) != AI_DIALECT_VERSIONS || !ai_read_number(s, &size) || (id & 0x80) ||
        size > s->end - s->at)
      return truncated(f, s, "the version of a dialect");
    s->at += size;
  }
  if (!ai_read_index(s, s->end - s->at + 1, &left)) return truncated(f, s, "the list of operations");
  f->n_ops = left;
  f->ops = allocate(f, left, sizeof *f->ops);
  if (!f->ops) return ANE_NOMEM;
  for (uint32_t at = 0; at < left;) {
    if (!ai_read_index(s, n, &dialect) || !ai_read_index(s, (uint64_t)left - at + 1, &group))
      return truncated(f, s, "the list of operations");
    for (; group > 0; group--, at++) {
      if (!ai_read_index(s, (uint64_t)f->n_strings * 2, &name)) return truncated(f, s, "the name of an operation");
      f->ops[at].name = f->strings[name >> 1];
      f->ops[at].known = own[dialect];
    }
    if (s->at >= s->end && at < left) return truncated(f, s, "the list of operations");
  }
  return ANE_OK;
}

/* ---- Attributes, types, properties, resources -----------------------------------------------------------------------*/

static ane_status read_group(struct ai_file *f, struct ai_span *s, struct ai_entry *list, uint32_t n, uint64_t *at) {
  struct ai_span *data = &f->sections[AI_ATTRIBUTES];
  for (uint32_t i = 0, group, dialect; i < n;) {
    if (!ai_read_index(s, UINT32_MAX, &dialect) || !ai_read_index(s, (uint64_t)n - i + 1, &group) || s->at >= s->end)
      return truncated(f, s, "the list of attributes and types");
    for (; group > 0; group--, i++) {
      uint64_t v;
      if (!ai_read_number(s, &v) || v >> 1 > data->end - *at) return truncated(f, s, "an attribute or type");
      list[i] = (struct ai_entry){*at, v >> 1, v & 1};
      *at += v >> 1;
    }
  }
  return ANE_OK;
}

static ane_status read_attributes(struct ai_file *f) {
  struct ai_span *s = &f->sections[AI_ATTRIBUTE_OFFSETS];
  uint64_t at = f->sections[AI_ATTRIBUTES].at;
  if (!ai_read_index(s, s->end - s->at + 1, &f->n_attributes) || !ai_read_index(s, s->end - s->at + 1, &f->n_types))
    return truncated(f, s, "the list of attributes and types");
  f->attributes = allocate(f, f->n_attributes, sizeof *f->attributes);
  f->types = allocate(f, f->n_types, sizeof *f->types);
  if (!f->attributes || !f->types) return ANE_NOMEM;
  ane_status st = read_group(f, s, f->attributes, f->n_attributes, &at);
  return st ? st : read_group(f, s, f->types, f->n_types, &at);
}

static ane_status read_properties(struct ai_file *f) {
  struct ai_span *s = &f->sections[AI_PROPERTIES];
  if (!s->data) return ANE_OK;
  if (!ai_read_index(s, s->end - s->at + 1, &f->n_properties)) return truncated(f, s, "the list of properties");
  f->properties = allocate(f, f->n_properties, sizeof *f->properties);
  if (!f->properties) return ANE_NOMEM;
  for (uint32_t i = 0; i < f->n_properties; i++) {
    uint64_t size;
    if (!ai_read_number(s, &size) || size > s->end - s->at) return truncated(f, s, "a property");
    f->properties[i] = (struct ai_entry){s->at, size, true};
    s->at += size;
  }
  return ANE_OK;
}

/* Reads one resource: alignment, size, padding, bytes. */
static ane_status read_resource(struct ai_file *f, uint64_t at, uint64_t size, struct ai_entry *out) {
  struct ai_span s = ai_span_of(f, at, size);
  uint64_t align, bytes;
  if (!ai_read_number(&s, &align) || align == 0 || align > MAX_ALIGN || !ai_read_number(&s, &bytes))
    return truncated(f, &s, "a resource");
  uint64_t skip = (align - s.at % align) % align;
  if (skip > s.end - s.at || bytes > s.end - s.at - skip) return truncated(f, &s, "a resource");
  *out = (struct ai_entry){s.at + skip, bytes, true};
  return ANE_OK;
}

static ane_status read_resources(struct ai_file *f) {
  struct ai_span *s = &f->sections[AI_RESOURCE_OFFSETS], *data = &f->sections[AI_RESOURCES];
  struct ane_buffer list = {0};
  uint64_t outside, at = data->at, size;
  uint32_t n = 0, dialect, key;
  uint8_t kind;
  ane_status st = ANE_OK;
  if (!s->data) return ANE_OK;
  if (!ai_read_number(s, &outside) || outside) return ai_wrong(f, s->at, "resources outside dialects");
  while (s->at < s->end && !st) {
    if (!ai_read_index(s, UINT32_MAX, &dialect) || !ai_read_index(s, s->end - s->at + 1, &n))
      st = truncated(f, s, "the list of resources");
    for (uint32_t i = 0; !st && i < n; i++) {
      struct ai_entry e;
      if (!ai_read_index(s, f->n_strings, &key) || !ai_read_number(s, &size) || !ai_read_byte(s, &kind) || !data->data ||
          size > data->end - at)
        st = truncated(f, s, "a resource");
      else if (kind != 0)
        st = ai_wrong(f, s->at, "resource %s is not a blob", f->strings[key]);
      /* analyser: size is read before st can be ANE_OK. */
      if (!st) st = read_resource(f, at, size, &e);
      if (!st && !ane_buffer_append(&list, &e, sizeof e)) st = ane_fail(f->err, ANE_NOMEM, "no memory for the program");
      at += st ? 0 : size;
    }
  }
  f->n_resources = (uint32_t)(list.size / sizeof *f->resources);
  if (!st && !(f->resources = allocate(f, f->n_resources, sizeof *f->resources))) st = ANE_NOMEM;
  if (!st && list.size) memcpy(f->resources, list.data, list.size);
  ane_buffer_free(&list);
  return st;
}

ane_status ai_unpack(struct ai_file *f) {
  ane_status st = read_sections(f);
  if (!st) st = read_strings(f);
  if (!st) st = read_dialects(f);
  if (!st) st = read_attributes(f);
  if (!st) st = read_properties(f);
  if (!st) st = read_resources(f);
  return st ? st : ai_unpack_program(f);
}
