/* Declarations that the files of the reader of Core AI assets share. */
#ifndef ANE_FORMATS_AI_UNPACK_H
#define ANE_FORMATS_AI_UNPACK_H

#include "formats/aimodel/ai_internal.h"

/* Bytes [at, end) of the file. Offsets count from the start of the file. */
struct ai_span {
  const uint8_t *data; /* the whole file; NULL: the section is absent */
  uint64_t at, end;
  uint64_t last; /* offset of the last index that was read, for messages */
};

struct ai_entry {
  uint64_t at, size;
  bool custom; /* in the dialect's encoding, not as text */
};

struct ai_file {
  const uint8_t *data;
  uint64_t size;
  struct ane_arena *arena;
  struct ane_error *err;
  const char *producer;
  struct ai_span sections[AI_SECTIONS];
  const char **strings;
  struct ai_op_name {
    const char *name;
    bool known; /* of the aicode dialect */
  } * ops;
  struct ai_entry *attributes, *types, *properties, *resources;
  uint32_t n_strings, n_ops, n_attributes, n_types, n_properties, n_resources;
  struct ane_ai_program *program; /* the result */
};

/* Readers advance s->at. They return false at the end of the span, or if a number is out of range. */
struct ai_span ai_span_of(const struct ai_file *f, uint64_t at, uint64_t size);
bool ai_read_byte(struct ai_span *s, uint8_t *out);
bool ai_read_number(struct ai_span *s, uint64_t *out);
bool ai_read_signed(struct ai_span *s, int64_t *out);
/* A number below `limit`. */
bool ai_read_index(struct ai_span *s, uint64_t limit, uint32_t *out);
/* Fails with ANE_FORMAT and "byte N: ...", where N is `at`. */
ane_status ai_wrong(const struct ai_file *f, uint64_t at, const char *format, ...) ANE_PRINTF(3, 4);

/* Reads the sections and the program from f->data. Errors: ANE_FORMAT, ANE_UNSUPPORTED, ANE_NOMEM. */
ane_status ai_unpack(struct ai_file *f);
/* Reads the program (ai_unpack_ir.c), after all sections. */
ane_status ai_unpack_program(struct ai_file *f);

#endif
