/* A vocabulary as a tree of bytes in preorder. */
#ifndef ANE_GRAMMAR_TOKEN_TREE_H
#define ANE_GRAMMAR_TOKEN_TREE_H

#include "base/arena.h"
#include "grammar/grammar.h"

enum { TOKEN_LONGEST = 1024 }; /* bytes; longer tokens are never allowed */

struct token_node {
  uint32_t skip;  /* the node after the subtree */
  uint32_t token; /* + 1; 0: no token ends here */
  uint16_t depth; /* 1: the first byte */
  uint8_t byte;
};

/* What the bytes of a node's path mean inside a JSON string. */
enum {
  LEX_PLAIN,   /* complete characters */
  LEX_PARTIAL, /* characters, the last one incomplete */
  LEX_ESCAPE,  /* a backslash stands on the path before the end of the string */
  LEX_QUOTE,   /* characters, then the quote that ends the string */
  LEX_AFTER,   /* bytes after that quote */
  LEX_BAD      /* not allowed in a string */
};

enum { TOKEN_CHARS = 32 }; /* masks by number of characters: 0 .. 31, and one for all */

/* A token that ends a string. Tokens with the same bytes from the quote on are one class. */
struct closing_token {
  uint32_t token, chars;
  uint32_t prefix; /* bytes before the quote */
  bool escaped;    /* a backslash is among them */
};

/* Bytes are divided into classes that expressions often distinguish. A set of classes is a word of bits. A character beyond ASCII
 * has the class of its first byte; its other bytes have none. */
enum { CLASS_NONE = 255 };

/* A token that stays inside a string and has no escape. */
struct plain_token {
  uint32_t node; /* must come first, as in string_stop: first_item searches by it */
  uint32_t token;
  uint64_t classes; /* of its bytes */
  uint32_t chars;
};
/* The first quote or backslash of a path. */
struct string_stop {
  uint32_t node;
  uint64_t classes; /* of the bytes before */
};

struct ane_token_tree {
  uint64_t serial; /* unique in the process */
  struct token_node *nodes;
  uint8_t *lex;    /* [n_nodes] */
  uint16_t *chars; /* [n_nodes] characters of the path, up to the quote */
  uint16_t *quote; /* [n_nodes] depth of the quote that ends the string; 0: none on the path */
  uint32_t n_nodes;
  uint32_t n_tokens, words; /* words of a mask */
  uint32_t *twin;           /* [n_tokens] the next token of the same bytes + 1 */
  uint32_t longest;         /* bytes of the longest token */
  uint32_t most_chars;      /* maximum characters of a token inside a string */
  /* inside[k]: mask of the tokens that stay inside a string and add at most k characters, an incomplete one counted; the last:
   * all.
   */
  uint32_t *inside[TOKEN_CHARS + 1];
  uint32_t n_inside[TOKEN_CHARS + 1];
  uint8_t byte_class[256];    /* CLASS_NONE: never the first byte of a character inside a string */
  uint64_t *below;            /* [n_nodes] classes of the bytes inside the string, of the node and all below it */
  uint64_t all_classes;       /* of the whole tree */
  struct plain_token *plains; /* [n_plains] by node */
  uint32_t n_plains;
  struct string_stop *stops; /* [n_stops] by node */
  uint32_t n_stops;
  uint32_t *many; /* [n_many] nodes of tokens inside a string with TOKEN_CHARS characters or more */
  uint32_t n_many;
  /* The classes of the tokens that end a string, as a tree: token of a node is the class + 1. */
  struct token_node *closings;
  uint32_t n_closings;
  uint32_t n_classes;
  uint32_t *class_start; /* [n_classes + 1] into class_tokens */
  struct closing_token *class_tokens;
  uint32_t *class_of;    /* [n_tokens] class + 1; 0: it ends no string */
  const uint8_t **bytes; /* [n_tokens] into the arena */
  uint32_t *lengths;     /* [n_tokens] */
  struct ane_arena arena;
};

/* Returns the class of a byte as a set. */
static inline uint64_t token_class(const struct ane_token_tree *t, uint8_t byte) {
  return t->byte_class[byte] == CLASS_NONE ? 0 : (uint64_t)1 << t->byte_class[byte];
}

#endif
