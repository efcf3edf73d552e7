/* Vocabularies as files store them, read for a tokenizer: spellings, ids, scores, types, merges. */
#ifndef ANE_VOCABULARY_VOCABULARY_H
#define ANE_VOCABULARY_VOCABULARY_H

#include "base/arena.h"
#include "base/json_reader.h"
#include "formats/formats.h"
#include "text/text.h"

struct vocabulary_entry {
  struct ane_text text; /* in the file's text, or in the arena */
  uint32_t id;
  uint8_t type; /* ane_token_type */
  double score;
};

/* Zero-initialised = empty. */
struct vocabulary {
  struct ane_arena arena;
  struct ane_buffer scratch;
  struct vocabulary_entry *entries;
  size_t n, room;
  struct ane_token_pair *merges;
  size_t n_merges, merges_room;
  bool scored; /* the entries have scores */
  bool unique; /* two entries with the same spelling are an error */
};

void vocabulary_free(struct vocabulary *v);
/* Adds an entry. false: out of memory. */
bool vocabulary_add(struct vocabulary *v, const struct vocabulary_entry *e);

/* Read the values of "vocab" (an object of ids, or a list of pairs of spelling and score) and "merges" (strings with one space,
 * or pairs) in a tokenizer.json. false: the text is malformed. */
bool vocabulary_read_tokens(struct vocabulary *v, struct ane_json *j);
bool vocabulary_read_merges(struct vocabulary *v, struct ane_json *j);

/* A SentencePiece model (sentencepiece_model.proto). Its pieces go to a vocabulary, the rest to these fields. */
struct sentencepiece {
  int model_type; /* 1 unigram, 2 BPE, 3 words, 4 characters */
  bool byte_fallback, whitespace_suffix, add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
  int64_t bos, eos, pad;
  struct ane_text unk_surface, charsmap, denormaliser;
};

/* Reads a model. The texts in s and v point into data[0..size), which must outlive them. Errors: ANE_FORMAT, ANE_NOMEM. */
ane_status sentencepiece_read(struct sentencepiece *s, struct vocabulary *v, const void *data, size_t size,
                              struct ane_error *err);

/* ---- The tokenizer in the metadata of a GGUF file (gguf_tokenizer.c) ---- */

/* The description of a tokenizer. Its texts point into the source; its arrays lie in the arena, which the caller frees. */
struct gguf_tokenizer {
  const struct ane_source *source;
  struct ane_arena arena;
  struct ane_tokenizer_desc desc;
  struct ane_normaliser normalisers[3];
  int32_t eot, eom, unk, pad; /* ids, or ANE_NO_TOKEN */
};

/* Fills all fields except `source`, which the caller has set. Errors: ANE_NOTFOUND (no tokenizer), ANE_UNSUPPORTED, ANE_FORMAT,
 * ANE_NOMEM. */
ane_status gguf_tokenizer_describe(struct gguf_tokenizer *g, struct ane_error *err);

#endif
