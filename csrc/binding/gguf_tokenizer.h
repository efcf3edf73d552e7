/* The tokenizer that the metadata of a GGUF file describe (gguf_tokenizer.c). */
#ifndef ANE_BINDING_GGUF_TOKENIZER_H
#define ANE_BINDING_GGUF_TOKENIZER_H

#include "formats/formats.h"
#include "text/text.h"

/* Views into the source, arrays in the arena, which the caller frees. */
struct gguf_tokenizer {
  const struct ane_source *source;
  struct ane_arena arena;
  struct ane_tokenizer_desc desc;
  struct ane_normaliser normalisers[3];
  int32_t eot, eom, unk, pad; /* ids, or ANE_NO_TOKEN */
};

/* Fills all but `source`, which is set. Errors: ANE_NOTFOUND (no tokenizer), ANE_UNSUPPORTED, ANE_FORMAT, ANE_NOMEM. */
ane_status gguf_tokenizer_describe(struct gguf_tokenizer *g, struct ane_error *err);

#endif
